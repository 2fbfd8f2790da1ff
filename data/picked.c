/* SPDX-License-Identifier: Apache-2.0 */
/* Some samples of another dataset: a range, a list, or the parts of a split. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "data/compose.h"
#include "data/dataset_internal.h"
#include "data/sampler.h"

typedef struct picked {
    trek_around around;
    int64_t first, count;
    int64_t *list; /* [count] their indices in inner; NULL means first, first + 1, ... */
} picked;

static int64_t picked_length(const trek_dataset *self) { return ((const picked *)self)->count; }

static int64_t place_of(const picked *p, int64_t index) { return p->list ? p->list[index] : p->first + index; }

static trek_status picked_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    const picked *p = (const picked *)self;
    int64_t *places = trek_alloc((size_t)(fetch->n + fetch->n_batch) * sizeof(*places));
    if (!places)
        return TREK_ERR_MEMORY;
    for (int64_t i = 0; i < fetch->n; i++)
        places[i] = place_of(p, fetch->indices[i]);
    for (int64_t i = 0; i < fetch->n_batch; i++)
        places[fetch->n + i] = place_of(p, fetch->batch[i]);
    trek_fetch inner = *fetch;
    inner.indices = places;
    inner.batch = fetch->batch ? places + fetch->n : NULL;
    trek_status status = p->around.inner->klass->get(p->around.inner, &inner, out);
    trek_free(places);
    return status;
}

static void picked_free(trek_dataset *self)
{
    trek_free(((picked *)self)->list);
    trek_around_free(self);
}

static const trek_dataset_class subset_class = {
    .name = "subset", .size = sizeof(picked), .length = picked_length, .get = picked_get, .free = picked_free,
};

static const trek_dataset_class indices_class = {
    .name = "indices", .size = sizeof(picked), .length = picked_length, .get = picked_get, .free = picked_free,
};

trek_dataset *trek_dataset_subset(trek_dataset *dataset, int64_t first, int64_t count)
{
    picked *p = (picked *)trek_dataset_around(&subset_class, dataset, "dataset_subset");
    trek_dataset *base = (trek_dataset *)p;
    if (!p)
        return NULL;
    int64_t length = trek_around_length(base);
    p->first = first;
    p->count = count;
    if (first < 0 || count < 0 || first > length || count > length - first) {
        trek_fail(TREK_ERR_ARGUMENT, "dataset_subset: %" PRId64 " samples from %" PRId64 " on; dataset %s has %" PRId64, count,
                  first, dataset->klass->name, length);
        trek_dataset_free(&base);
    }
    return base;
}

static trek_status list_check(const trek_dataset *dataset, const int64_t *indices, int64_t n)
{
    int64_t length = trek_around_length(dataset);
    if (n < 0 || (n > 0 && !indices))
        return trek_fail(TREK_ERR_ARGUMENT, "dataset_indices: n: %" PRId64 " indices%s; must be at least 1, and a list of them",
                         n, indices ? "" : ", and no list of them");
    for (int64_t i = 0; i < n; i++)
        if (indices[i] < 0 || indices[i] >= length)
            return trek_fail(TREK_ERR_ARGUMENT, "dataset_indices: index: sample %" PRId64 " does not exist; there are %" PRId64,
                             indices[i], length);
    return TREK_OK;
}

trek_dataset *trek_dataset_indices(trek_dataset *dataset, const int64_t *indices, int64_t n)
{
    picked *p = (picked *)trek_dataset_around(&indices_class, dataset, "dataset_indices");
    trek_dataset *base = (trek_dataset *)p;
    if (!p)
        return NULL;
    bool right = list_check(base, indices, n) == TREK_OK;
    p->list = right ? trek_alloc((size_t)(n > 0 ? n : 1) * sizeof(*p->list)) : NULL;
    p->count = n;
    if (!p->list)
        trek_dataset_free(&base);
    else if (n > 0)
        memcpy(p->list, indices, (size_t)n * sizeof(*p->list));
    return base;
}

/* -- a split ---------------------------------------------------------------------------- */

/* Accepts shares that sum to 1, or numbers that sum to the length. */
static trek_status split_counts(const double *sizes, int n, int64_t length, int64_t *counts)
{
    double sum = 0;
    bool whole = true;
    for (int k = 0; k < n; k++) {
        if (!(sizes[k] >= 0) || sizes[k] > 9e15)
            return trek_fail(TREK_ERR_ARGUMENT, "dataset_split: size of part %d: %g; must be finite and not negative", k,
                             sizes[k]);
        sum += sizes[k];
        whole = whole && sizes[k] == floor(sizes[k]);
    }
    if (whole && sum == (double)length) {
        for (int k = 0; k < n; k++)
            counts[k] = (int64_t)sizes[k];
        return TREK_OK;
    }
    if (fabs(sum - 1) > 1e-6)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "dataset_split: sizes: their sum is %g; must be 1 or %" PRId64 ", the number of samples", sum, length);
    int64_t left = length;
    for (int k = 0; k < n; k++) {
        counts[k] = (int64_t)(sizes[k] * (double)length);
        counts[k] = counts[k] < left ? counts[k] : left;
        left -= counts[k];
    }
    for (int k = 0; left > 0; k = (k + 1) % n, left--)
        counts[k]++;
    return TREK_OK;
}

static trek_status draw_order(int64_t length, uint64_t seed, int64_t *order)
{
    trek_sampler *sampler = trek_sampler_random(length, seed);
    trek_status status = sampler ? trek_sampler_at(sampler, 0, 0, length, order) : trek_status_or(TREK_ERR_MEMORY);
    trek_sampler_free(&sampler);
    return status;
}

static trek_status split(trek_dataset *dataset, const double *sizes, int n, uint64_t seed, trek_dataset **parts)
{
    int64_t length = trek_dataset_length(dataset), at = 0;
    int64_t *counts = trek_alloc((size_t)n * sizeof(*counts));
    int64_t *order = trek_alloc((size_t)(length > 0 ? length : 1) * sizeof(*order));
    trek_status status = counts && order ? split_counts(sizes, n, length, counts) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = draw_order(length, seed, order);
    for (int k = 0; k < n && status == TREK_OK; k++) {
        parts[k] = trek_dataset_indices(trek_dataset_retain(dataset), order + at, counts[k]);
        status = parts[k] ? TREK_OK : trek_status_or(TREK_ERR_MEMORY);
        at += counts[k];
    }
    for (int k = 0; k < n && status != TREK_OK; k++)
        trek_dataset_free(&parts[k]);
    trek_free(counts);
    trek_free(order);
    return status;
}

trek_status trek_dataset_split(trek_dataset *dataset, const double *sizes, int n_parts, uint64_t seed, trek_dataset **parts)
{
    for (int k = 0; parts && k < n_parts; k++)
        parts[k] = NULL;
    trek_status status = trek_dataset_hold(dataset, "dataset_split");
    if (status != TREK_OK)
        return status;
    if (!sizes || !parts || n_parts < 1)
        status = trek_fail_missing("dataset_split", sizes ? "array for the parts" : "sizes");
    else if (trek_dataset_is_stream(dataset))
        status = trek_fail(TREK_ERR_UNSUPPORTED, "dataset_split: dataset: %s is a stream, whose samples have no numbers",
                           dataset->klass->name);
    else if (trek_dataset_length(dataset) < 0)
        status = trek_status_or(TREK_ERR_ARGUMENT);
    else
        status = split(dataset, sizes, n_parts, seed, parts);
    trek_dataset_let_go(&dataset);
    return status;
}
