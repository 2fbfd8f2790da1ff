/* SPDX-License-Identifier: Apache-2.0 */
/* The base of every dataset: references, fields and checked fetching, and what datasets made from others share. */
#include "data/dataset_internal.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/debug.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/scope.h"
#include "tensor/shapes.h"

struct trek_dataset_hidden {
    atomic_int refs;
    atomic_int held; /* the references held by loaders and subsets */
    char **names; /* set by trek_dataset_set_fields; head.fields points to it */
    int n_names;
    bool needs_batch; /* otherwise the class decides */
    bool stream;
    const trek_dataset *whole; /* the dataset that it is a part of, or NULL */
};

trek_dataset *trek_dataset_new(const trek_dataset_class *klass)
{
    bool numbered = klass && klass->length && klass->get;
    bool stream = klass && klass->stream && klass->stream->open && klass->stream->next;
    if (!klass || !klass->name || !(numbered || stream) || klass->size < sizeof(trek_dataset) ||
        (klass->n_fields > 0 && !klass->fields))
        return trek_fail_null(TREK_ERR_ARGUMENT, "dataset_new: class: incomplete; it must have a name, a size, length and get (a "
                                                 "stream: open and next), and names for its fields");
    trek_dataset *dataset = trek_calloc(1, klass->size);
    if (!dataset)
        return NULL;
    dataset->hidden = trek_calloc(1, sizeof(*dataset->hidden));
    if (!dataset->hidden) {
        trek_free(dataset);
        return NULL;
    }
    atomic_init(&dataset->hidden->refs, 1);
    dataset->klass = klass;
    dataset->hidden->stream = !numbered;
    dataset->n_fields = klass->n_fields;
    dataset->fields = klass->fields;
    return dataset;
}

static void names_free(char **names, int n)
{
    for (int k = 0; names && k < n; k++)
        trek_free(names[k]);
    trek_free(names);
}

static trek_status names_check(const trek_dataset *dataset, const char *const *names, int n)
{
    const char *set = dataset->klass->name;
    if (n <= 0 || !names)
        return trek_fail(TREK_ERR_ARGUMENT, "dataset %s: fields: none; must be at least one", set);
    for (int k = 0; k < n; k++) {
        if (!names[k] || !names[k][0])
            return trek_fail(TREK_ERR_ARGUMENT, "dataset %s: fields: field %d has no name; each must have one", set, k);
        for (int j = 0; j < k; j++)
            if (strcmp(names[j], names[k]) == 0)
                return trek_fail(TREK_ERR_ARGUMENT, "dataset %s: fields: \"%s\" occurs twice; names must differ", set,
                                 names[k]);
    }
    return TREK_OK;
}

trek_status trek_dataset_set_fields(trek_dataset *dataset, const char *const *names, int n)
{
    if (!dataset)
        return trek_fail_missing("dataset_set_fields", "dataset");
    trek_status status = names_check(dataset, names, n);
    if (status != TREK_OK)
        return status;
    char **copies = trek_calloc((size_t)n, sizeof(*copies));
    if (!copies)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < n; k++) {
        copies[k] = trek_strdup(names[k]);
        if (!copies[k]) {
            names_free(copies, n);
            return TREK_ERR_MEMORY;
        }
    }
    names_free(dataset->hidden->names, dataset->hidden->n_names);
    dataset->hidden->names = copies;
    dataset->hidden->n_names = n;
    dataset->fields = (const char *const *)copies;
    dataset->n_fields = n;
    return TREK_OK;
}

trek_dataset *trek_dataset_retain(trek_dataset *dataset)
{
    if (trek_gone(dataset, "dataset_retain", "the dataset"))
        return NULL;
    if (dataset)
        atomic_fetch_add_explicit(&dataset->hidden->refs, 1, memory_order_relaxed);
    return dataset;
}

trek_status trek_dataset_hold(trek_dataset *dataset, const char *function)
{
    if (!dataset)
        return trek_fail_missing(function, "dataset");
    if (trek_gone(dataset, function, "the dataset"))
        return TREK_ERR_STATE;
    if (atomic_fetch_add(&dataset->hidden->held, 1) < atomic_load(&dataset->hidden->refs))
        return TREK_OK;
    atomic_fetch_sub(&dataset->hidden->held, 1);
    return trek_fail(TREK_ERR_STATE,
                     "%s: dataset: %s already belongs to a loader or a subset; call trek_dataset_retain for each further owner",
                     function, dataset->klass->name);
}

void trek_dataset_let_go(trek_dataset **dataset)
{
    if (!dataset || !*dataset)
        return;
    atomic_fetch_sub(&(*dataset)->hidden->held, 1);
    trek_dataset_free(dataset);
}

void trek_dataset_free(trek_dataset **dataset)
{
    if (!dataset || !*dataset || trek_gone(*dataset, "dataset_free", "the dataset"))
        return;
    trek_dataset *d = *dataset;
    *dataset = NULL;
    if (atomic_load(&d->hidden->held) >= atomic_load(&d->hidden->refs)) {
        trek_fail(TREK_ERR_STATE, "dataset_free: dataset: %s belongs to a loader or a subset, which frees it", d->klass->name);
        return;
    }
    if (atomic_fetch_sub_explicit(&d->hidden->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (d->klass->free)
        d->klass->free(d);
    names_free(d->hidden->names, d->hidden->n_names);
    trek_free(d->hidden);
    if (trek_debug)
        trek_debug_ended(d, "dataset", d->klass->name);
    trek_free(d);
}

int64_t trek_dataset_length(const trek_dataset *dataset)
{
    if (!dataset) {
        trek_fail_missing("dataset_length", "dataset");
        return -1;
    }
    if (trek_gone(dataset, "dataset_length", "the dataset"))
        return -1;
    return dataset->hidden->stream ? -1 : dataset->klass->length(dataset);
}

bool trek_dataset_is_stream(const trek_dataset *dataset)
{
    return dataset && !trek_gone(dataset, "dataset_is_stream", "the dataset") && dataset->hidden->stream;
}

int trek_dataset_field_count(const trek_dataset *dataset) { return dataset ? dataset->n_fields : 0; }

const char *trek_dataset_field_name(const trek_dataset *dataset, int field)
{
    return dataset && field >= 0 && field < dataset->n_fields ? dataset->fields[field] : NULL;
}

int trek_dataset_field(const trek_dataset *dataset, const char *name)
{
    if (!dataset || !name) {
        trek_fail_missing("dataset_field", dataset ? "name" : "dataset");
        return -1;
    }
    if (trek_gone(dataset, "dataset_field", "the dataset"))
        return -1;
    for (int k = 0; k < dataset->n_fields; k++)
        if (strcmp(dataset->fields[k], name) == 0)
            return k;
    char list[400];
    size_t used = 0;
    list[0] = 0;
    for (int k = 0; k < dataset->n_fields; k++) {
        size_t length = strlen(dataset->fields[k]);
        if (used + length + 8 > sizeof(list)) {
            strcpy(list + used, ", ...");
            break;
        }
        if (k > 0) {
            memcpy(list + used, ", ", 2);
            used += 2;
        }
        memcpy(list + used, dataset->fields[k], length + 1);
        used += length;
    }
    trek_fail(TREK_ERR_ARGUMENT, "dataset %s: there is no field \"%s\"; the fields are: %s", dataset->klass->name, name, list);
    return -1;
}

/* Checks what the class's get has produced: one tensor of n rows for each field. */
trek_status trek_batch_check(const trek_dataset *dataset, int64_t n, trek_tensor *const *out)
{
    for (int k = 0; k < dataset->n_fields; k++) {
        const char *field = dataset->fields[k];
        if (!out[k])
            return trek_fail(TREK_ERR_CALLBACK, "dataset %s: get: no tensor for \"%s\"; it must make one for each field",
                             dataset->klass->name, field);
        trek_shape shape = trek_tensor_shape(out[k]);
        char text[TREK_SHAPE_TEXT];
        if (shape.ndim < 1 || shape.sizes[0] != n)
            return trek_fail(TREK_ERR_SHAPE,
                             "dataset %s: get: \"%s\" of shape %s for %" PRId64
                             " samples; the first dimension must be the number of samples",
                             dataset->klass->name,
                             field, trek_shape_format(shape, text, sizeof text), n);
    }
    return TREK_OK;
}

static trek_status indices_check(const trek_dataset *dataset, const int64_t *indices, int64_t n)
{
    int64_t length = dataset->klass->length(dataset);
    for (int64_t i = 0; i < n; i++)
        if (indices[i] < 0 || indices[i] >= length)
            return trek_fail(TREK_ERR_ARGUMENT, "dataset %s: index: sample %" PRId64 " does not exist; there are %" PRId64,
                             dataset->klass->name, indices[i], length);
    return TREK_OK;
}

static trek_status fetch_check(const trek_dataset *dataset, const trek_fetch *fetch)
{
    if (dataset->hidden->stream)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "dataset %s: it is a stream, whose samples have no numbers; trek_stream_open reads it",
                         dataset->klass->name);
    if (fetch->n < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "dataset %s: n: %" PRId64 " samples; must be at least 1", dataset->klass->name,
                         fetch->n);
    if (fetch->epoch < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "dataset %s: epoch: %" PRId64 "; must be 0 or more", dataset->klass->name,
                         fetch->epoch);
    if (dataset->n_fields < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "dataset %s: it has no fields", dataset->klass->name);
    trek_status status = indices_check(dataset, fetch->indices, fetch->n);
    return status == TREK_OK && fetch->batch ? indices_check(dataset, fetch->batch, fetch->n_batch) : status;
}

trek_status trek_dataset_get(trek_dataset *dataset, const int64_t *indices, int64_t n, trek_tensor **out)
{
    return trek_dataset_fetch(dataset, &(trek_fetch){ .indices = indices, .n = n }, out);
}

trek_status trek_dataset_fetch(trek_dataset *dataset, const trek_fetch *fetch, trek_tensor **out)
{
    if (!dataset || !fetch || !fetch->indices || !out)
        return trek_fail_missing("dataset_get", !dataset                   ? "dataset"
                                                : fetch && fetch->indices ? "array for the tensors"
                                                                          : "indices");
    if (trek_gone(dataset, "dataset_get", "the dataset"))
        return TREK_ERR_STATE;
    for (int k = 0; k < dataset->n_fields; k++)
        out[k] = NULL;
    trek_status status = fetch_check(dataset, fetch);
    if (status != TREK_OK)
        return status;
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return TREK_ERR_MEMORY;
    status = dataset->klass->get(dataset, fetch, out);
    if (status == TREK_OK)
        status = trek_batch_check(dataset, fetch->n, out);
    else
        trek_fail_after(status, "dataset %s: get failed (%s)", dataset->klass->name, trek_status_description(status));
    trek_scope_end(scope);
    for (int k = 0; status != TREK_OK && k < dataset->n_fields; k++) {
        trek_tensor_release(out[k]);
        out[k] = NULL;
    }
    return status;
}

trek_var *trek_dataset_sample(trek_dataset *dataset, int64_t index, const char *field, trek_device device)
{
    int place = trek_dataset_field(dataset, field);
    if (place < 0)
        return NULL;
    trek_tensor **out = trek_calloc((size_t)dataset->n_fields, sizeof(*out));
    if (!out)
        return NULL;
    trek_var *var = NULL;
    if (trek_dataset_get(dataset, &index, 1, out) == TREK_OK) {
        trek_tensor *moved = trek_tensor_to(out[place], device);
        var = moved ? trek_var_from(moved) : NULL;
        for (int k = 0; k < dataset->n_fields; k++)
            trek_tensor_release(out[k]);
    }
    trek_free(out);
    return var;
}

trek_tensor *trek_dataset_tensor(int64_t n, trek_shape sample, trek_dtype dtype)
{
    if (sample.ndim + 1 > TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_SHAPE,
                              "dataset_tensor: sample: %d dimensions; must be at most %d, because the batch adds one",
                              sample.ndim, TREK_MAX_DIMS - 1);
    trek_shape shape = { .ndim = sample.ndim + 1, .sizes = { n } };
    for (int d = 0; d < sample.ndim; d++)
        shape.sizes[d + 1] = sample.sizes[d];
    return trek_tensor_empty(shape, dtype, trek_cpu(0));
}

/* -- made of others -------------------------------------------------------------- */

bool trek_dataset_needs_batch(const trek_dataset *dataset)
{
    return dataset->klass->needs_batch || dataset->hidden->needs_batch;
}

void trek_dataset_set_needs_batch(trek_dataset *dataset) { dataset->hidden->needs_batch = true; }

void trek_dataset_needs_as(trek_dataset *dataset, const trek_dataset *part)
{
    dataset->hidden->needs_batch |= trek_dataset_needs_batch(part);
}

const trek_dataset *trek_dataset_root(const trek_dataset *dataset)
{
    while (dataset && dataset->hidden->whole)
        dataset = dataset->hidden->whole;
    return dataset;
}

trek_around *trek_dataset_around(const trek_dataset_class *klass, trek_dataset *inner, const char *function)
{
    if (trek_dataset_hold(inner, function) != TREK_OK)
        return NULL;
    if (trek_dataset_is_stream(inner) && !klass->stream) {
        trek_fail(TREK_ERR_UNSUPPORTED, "%s: dataset: %s is a stream, whose samples have no numbers", function,
                  inner->klass->name);
        trek_dataset_let_go(&inner);
        return NULL;
    }
    trek_around *around = (trek_around *)trek_dataset_new(klass);
    if (!around) {
        trek_dataset_let_go(&inner);
        return NULL;
    }
    around->inner = inner;
    around->base.n_fields = inner->n_fields; /* lives as long as inner */
    around->base.fields = inner->fields;
    around->base.hidden->whole = inner;
    around->base.hidden->stream = inner->hidden->stream;
    trek_dataset_needs_as(&around->base, inner);
    return around;
}

int64_t trek_around_length(const trek_dataset *self) { return trek_dataset_length(((const trek_around *)self)->inner); }

void trek_around_free(trek_dataset *self) { trek_dataset_let_go(&((trek_around *)self)->inner); }

trek_status trek_tensor_settle(trek_tensor **tensor)
{
    /* host memory of any CPU device is as good as cpu:0's */
    trek_tensor *here = trek_tensor_data(*tensor) || trek_tensor_numel(*tensor) == 0 ? trek_tensor_retain(*tensor)
                                                                                     : trek_tensor_to(*tensor, trek_cpu(0));
    trek_tensor *dense = here ? trek_tensor_contiguous(here) : NULL;
    trek_tensor_release(here);
    if (!dense)
        return trek_status_or(TREK_ERR_MEMORY);
    trek_tensor_release(*tensor);
    *tensor = dense;
    return TREK_OK;
}

trek_status trek_rows_put(const trek_dataset *dataset, int field, trek_tensor **to, int64_t n, int64_t at, trek_tensor *from,
                          int64_t row)
{
    trek_shape shape = trek_tensor_shape(from);
    trek_dtype dtype = trek_tensor_dtype(from);
    if (!*to)
        *to = trek_dataset_tensor(n, trek_shape_make(shape.sizes + 1, shape.ndim - 1), dtype);
    if (!*to)
        return trek_status_or(TREK_ERR_MEMORY);
    trek_shape wanted = trek_tensor_shape(*to);
    shape.sizes[0] = wanted.sizes[0];
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (!trek_shape_equal(shape, wanted) || dtype != trek_tensor_dtype(*to))
        return trek_fail(TREK_ERR_SHAPE,
                         "dataset %s: samples of \"%s\" differ: %s %s and %s %s; they must have one shape and dtype",
                         dataset->klass->name, dataset->fields[field],
                         trek_shape_format(trek_shape_make(wanted.sizes + 1, wanted.ndim - 1), a, sizeof a),
                         trek_dtype_name(trek_tensor_dtype(*to)),
                         trek_shape_format(trek_shape_make(shape.sizes + 1, shape.ndim - 1), b, sizeof b),
                         trek_dtype_name(dtype));
    size_t bytes = (size_t)trek_shape_numel(trek_shape_make(shape.sizes + 1, shape.ndim - 1)) * trek_dtype_size(dtype);
    if (bytes > 0)
        memcpy((char *)trek_tensor_data(*to) + (size_t)at * bytes, (const char *)trek_tensor_data(from) + (size_t)row * bytes,
               bytes);
    return TREK_OK;
}

trek_tensor **trek_tensors_new(int n) { return trek_calloc((size_t)(n > 0 ? n : 1), sizeof(trek_tensor *)); }

void trek_tensors_clear(trek_tensor **tensors, int n)
{
    for (int k = 0; tensors && k < n; k++) {
        trek_tensor_release(tensors[k]);
        tensors[k] = NULL;
    }
}
