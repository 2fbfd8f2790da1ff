/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of batches on a rank's device, and a rank's own reader of whole batches. */
#include <string.h>

#include "autograd/var_internal.h"
#include "data/loader_internal.h"
#include "tensor/tensor_internal.h"

/* --- a part of a batch --------------------------------------------------------- */

static trek_tensor *rows_on(trek_tensor *x, int64_t first, int64_t rows, trek_device device)
{
    int64_t sizes[TREK_MAX_DIMS];
    memcpy(sizes, x->sizes, sizeof sizes);
    sizes[0] = rows;
    char *data = x->data + first * x->strides[0] * (int64_t)trek_dtype_size((trek_dtype)x->dtype);
    trek_tensor *view = trek_tensor_make_view(x, data, x->ndim, sizes, x->strides);
    trek_tensor *there = view ? trek_tensor_to(view, device) : NULL;
    trek_tensor_release(view);
    return there;
}

trek_status trek_batch_part(const trek_batch *whole, int64_t first, int64_t rows, trek_device device, trek_var **vars,
                            trek_batch *part)
{
    *part = *whole;
    part->vars = vars;
    part->n = rows;
    part->first = whole->first + first;
    part->indices = whole->indices + first;
    memset(vars, 0, (size_t)whole->dataset->n_fields * sizeof *vars);
    for (int k = 0; k < whole->dataset->n_fields; k++) {
        trek_tensor *x = rows_on(whole->vars[k]->data, first, rows, device);
        vars[k] = x ? trek_var_new(x, false) : NULL;
        trek_tensor_release(x);
        if (!vars[k]) {
            trek_batch_part_release(part);
            return trek_status_or(TREK_ERR_MEMORY);
        }
    }
    return TREK_OK;
}

void trek_batch_part_release(trek_batch *part)
{
    for (int k = 0; k < part->dataset->n_fields; k++) {
        trek_var_release(part->vars[k]);
        part->vars[k] = NULL;
    }
    part->given = false;
}

/* --- readers --------------------------------------------------------------------- */

struct trek_reader {
    uint64_t loader;         /* its id */
    trek_batch_plan plan;    /* a copy; its parts are the loader's */
    trek_device device;
    trek_prefetch *prefetch; /* NULL: read by the calling thread */
    trek_fetched *fetched;
    trek_batch batch;
    int64_t epoch, next, end; /* what prefetch reads on */
    bool running;            /* prefetch has epoch, next, end */
};

trek_reader *trek_reader_new(const trek_loader *loader, trek_device device)
{
    trek_reader *r = trek_calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->loader = trek_loader_id(loader);
    r->plan = *trek_loader_plan(loader);
    r->plan.whole = true;
    r->plan.device = device;
    r->device = device;
    r->fetched = trek_fetched_new(&r->plan);
    r->batch.dataset = r->plan.dataset;
    r->batch.vars = trek_calloc((size_t)r->plan.dataset->n_fields, sizeof *r->batch.vars);
    int depth = trek_loader_depth(loader);
    if (depth > 0)
        r->prefetch = trek_prefetch_new(&r->plan, depth);
    if (!r->fetched || !r->batch.vars || (depth > 0 && !r->prefetch))
        trek_reader_free(&r);
    return r;
}

static void end_batch(trek_reader *r)
{
    if (r->batch.vars)
        trek_batch_part_release(&r->batch);
    if (r->fetched)
        trek_fetched_clear(r->fetched, &r->plan);
}

void trek_reader_free(trek_reader **reader)
{
    trek_reader *r = *reader;
    *reader = NULL;
    if (!r)
        return;
    end_batch(r);
    trek_prefetch_free(&r->prefetch);
    trek_fetched_free(r->fetched, &r->plan);
    trek_free(r->batch.vars);
    trek_free(r);
}

bool trek_reader_is_of(const trek_reader *r, const trek_loader *loader) { return r->loader == trek_loader_id(loader); }

trek_status trek_reader_begin(trek_reader *r, int64_t epoch, int64_t first, int64_t end)
{
    end_batch(r);
    bool goes_on = r->running && r->epoch == epoch && r->next == first;
    if (r->prefetch && goes_on)
        trek_prefetch_extend(r->prefetch, end);
    else if (r->prefetch)
        trek_prefetch_start(r->prefetch, epoch, first, end);
    r->epoch = epoch;
    r->next = first;
    r->end = end;
    r->running = true;
    return TREK_OK;
}

trek_batch *trek_reader_next(trek_reader *r)
{
    end_batch(r);
    if (r->next >= r->end)
        return trek_fail_null(TREK_ERR_STATE, "reader: no batch is left");
    trek_status status = r->prefetch ? trek_prefetch_take(r->prefetch, &r->fetched)
                                     : trek_fetched_fill(r->fetched, &r->plan, r->epoch, r->next);
    r->running = status == TREK_OK;
    if (status != TREK_OK)
        return NULL;
    r->next++;
    r->batch.n = r->batch.global = r->fetched->n;
    r->batch.indices = r->fetched->indices;
    r->batch.given = true;
    for (int k = 0; k < r->plan.dataset->n_fields; k++) {
        trek_tensor *x = trek_tensor_to(r->fetched->tensors[k], r->device);
        r->batch.vars[k] = x ? trek_var_new(x, false) : NULL;
        trek_tensor_release(x);
        trek_tensor_release(r->fetched->tensors[k]);
        r->fetched->tensors[k] = NULL;
        if (!r->batch.vars[k]) {
            end_batch(r);
            return NULL;
        }
    }
    return &r->batch;
}

void trek_reader_rest(trek_reader *r, int64_t first, int64_t end)
{
    end_batch(r);
    if (!r->prefetch || first >= end)
        return;
    if (r->running && r->next == first)
        trek_prefetch_extend(r->prefetch, end);
    else
        trek_prefetch_start(r->prefetch, r->epoch, first, end);
    r->next = first;
    r->end = end;
    r->running = true;
}
