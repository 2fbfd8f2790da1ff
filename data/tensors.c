/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tensors in memory. */
#include <inttypes.h>
#include <string.h>

#include "data/dataset_internal.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/shapes.h"

typedef struct tensors {
    trek_dataset base;
    int n;
    trek_tensor **rows; /* contiguous, in host memory */
} tensors;

static int64_t tensors_length(const trek_dataset *self) { return trek_tensor_shape(((const tensors *)self)->rows[0]).sizes[0]; }

static trek_status tensors_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    tensors *set = (tensors *)self;
    for (int k = 0; k < set->n; k++) {
        trek_shape shape = trek_tensor_shape(set->rows[k]);
        trek_shape sample = trek_shape_make(shape.sizes + 1, shape.ndim - 1);
        out[k] = trek_dataset_tensor(fetch->n, sample, trek_tensor_dtype(set->rows[k]));
        if (!out[k])
            return trek_status_or(TREK_ERR_MEMORY);
        size_t bytes = (size_t)trek_shape_numel(sample) * trek_dtype_size(trek_tensor_dtype(set->rows[k]));
        char *to = trek_tensor_data(out[k]);
        const char *from = trek_tensor_data(set->rows[k]);
        for (int64_t i = 0; bytes > 0 && i < fetch->n; i++)
            memcpy(to + (size_t)i * bytes, from + (size_t)fetch->indices[i] * bytes, bytes);
    }
    return TREK_OK;
}

static void tensors_free(trek_dataset *self)
{
    tensors *set = (tensors *)self;
    for (int k = 0; k < set->n; k++)
        trek_tensor_release(set->rows[k]);
    trek_free(set->rows);
}

static const trek_dataset_class tensors_class = {
    .name = "tensors", .size = sizeof(tensors), .length = tensors_length, .get = tensors_get, .free = tensors_free,
};

static trek_status tensors_check(const char *const *names, trek_tensor *const *list, int n)
{
    char text[TREK_SHAPE_TEXT], other[TREK_SHAPE_TEXT];
    if (n < 1 || !names || !list)
        return trek_fail_missing("dataset_tensors", "names and tensors");
    for (int k = 0; k < n; k++) {
        if (!names[k] || !list[k])
            return trek_fail_missing("dataset_tensors", list[k] ? "name" : "tensor");
        trek_shape shape = trek_tensor_shape(list[k]);
        if (shape.ndim < 1)
            return trek_fail(TREK_ERR_SHAPE, "dataset_tensors: \"%s\": it is a scalar; must have rows", names[k]);
        trek_shape first = trek_tensor_shape(list[0]);
        if (shape.sizes[0] != first.sizes[0])
            return trek_fail(TREK_ERR_SHAPE,
                             "dataset_tensors: tensors: numbers of rows differ: \"%s\" %s, \"%s\" %s; must be equal", names[0],
                             trek_shape_format(first, text, sizeof text), names[k],
                             trek_shape_format(shape, other, sizeof other));
    }
    return TREK_OK;
}

static trek_status tensors_fill(tensors *set, const char *const *names, trek_tensor *const *list, int n)
{
    trek_status status = trek_dataset_set_fields(&set->base, names, n);
    if (status != TREK_OK)
        return status;
    set->rows = trek_calloc((size_t)n, sizeof(*set->rows));
    if (!set->rows)
        return TREK_ERR_MEMORY;
    set->n = n;
    for (int k = 0; k < n; k++) {
        set->rows[k] = trek_tensor_retain(list[k]);
        status = trek_tensor_settle(&set->rows[k]);
        if (status != TREK_OK)
            return status;
    }
    return TREK_OK;
}

trek_dataset *trek_dataset_tensors(const char *const *names, trek_tensor *const *list, int n_fields)
{
    if (tensors_check(names, list, n_fields) != TREK_OK)
        return NULL;
    trek_dataset *set = trek_dataset_new(&tensors_class);
    if (set && tensors_fill((tensors *)set, names, list, n_fields) != TREK_OK)
        trek_dataset_free(&set);
    return set;
}
