/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of batches on a rank's device, and a rank's own reader of whole batches or of its rows of each. */
#include <string.h>

#include "autograd/var_internal.h"
#include "data/batch_here.h"
#include "data/loader_internal.h"
#include "tensor/tensor_internal.h"
#include "tensor/trace.h"

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
    part->unread = false;
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
    trek_loader_follower follower;
    trek_loader *loader;     /* NULL if it has ended */
    uint64_t id;             /* the loader's */
    trek_batch_plan plan;    /* a copy; its parts are the loader's */
    trek_device device;
    trek_prefetch *prefetch; /* NULL if the calling thread reads */
    trek_fetched *fetched;
    trek_batch batch;
    int64_t epoch, next, end; /* what prefetch reads */
    trek_batch_cut cut;      /* if is_cut: the rows of them */
    bool is_cut;
    bool running;            /* prefetch was started with epoch, next, end and cut */
};

static void forget(trek_loader_follower *follower);

trek_reader *trek_reader_new(trek_loader *loader, trek_device device)
{
    trek_reader *r = trek_calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->follower.forget = forget;
    r->loader = loader;
    r->id = trek_loader_id(loader);
    r->plan = *trek_loader_plan(loader);
    r->plan.whole = true;
    r->plan.device = device;
    r->device = device;
    r->fetched = trek_fetched_new(&r->plan);
    r->batch.dataset = r->plan.dataset;
    r->batch.vars = trek_calloc((size_t)r->plan.dataset->n_fields, sizeof *r->batch.vars);
    trek_loader_follow(loader, &r->follower);
    if (!r->fetched || !r->batch.vars)
        trek_reader_free(&r);
    return r;
}

void trek_reader_end_batch(trek_reader *r)
{
    if (r->batch.vars)
        trek_batch_part_release(&r->batch);
    if (r->fetched)
        trek_fetched_clear(r->fetched, &r->plan);
}

/* Lets go of everything it has from its loader, because the loader ends or the reader does. It reads ahead on a
 * thread of its own. */
static void forget(trek_loader_follower *follower)
{
    trek_reader *r = (trek_reader *)follower;
    trek_reader_end_batch(r);
    trek_prefetch_free(&r->prefetch);
    trek_fetched_free(r->fetched, &r->plan);
    trek_free(r->batch.vars);
    r->fetched = NULL;
    r->batch.vars = NULL;
    r->loader = NULL;
    r->running = false;
}

void trek_reader_free(trek_reader **reader)
{
    trek_reader *r = *reader;
    *reader = NULL;
    if (!r)
        return;
    if (r->loader)
        trek_loader_unfollow(r->loader, &r->follower);
    forget(&r->follower);
    trek_free(r);
}

bool trek_reader_is_of(const trek_reader *r, const trek_loader *loader) { return r->loader && r->id == trek_loader_id(loader); }

static bool same_cut(const trek_reader *r, const trek_batch_cut *cut)
{
    const trek_batch_cut *have = &r->cut;
    return r->is_cut == (cut != NULL) && (!cut || (have->first == cut->first && have->rows == cut->rows &&
                                                   have->last_first == cut->last_first && have->last_rows == cut->last_rows));
}

/* What was read ahead is kept if it belongs to these batches. The threads that read ahead are started when they are first
 * needed: a reader that only reads what it is asked for has none. */
static trek_status read_on(trek_reader *r, int64_t epoch, int64_t first, int64_t end, const trek_batch_cut *cut)
{
    int depth = r->loader ? trek_loader_depth(r->loader) : 0;
    if (depth > 0 && !r->prefetch && !(r->prefetch = trek_prefetch_new(&r->plan, depth, trek_loader_workers(r->loader))))
        return trek_status_or(TREK_ERR_MEMORY);
    bool goes_on = r->running && r->epoch == epoch && r->next == first && same_cut(r, cut);
    if (r->prefetch && !goes_on)
        trek_prefetch_start(r->prefetch, epoch, first, end, cut);
    else if (r->prefetch && r->end != end)
        trek_prefetch_extend(r->prefetch, end);
    r->epoch = epoch;
    r->next = first;
    r->end = end;
    r->is_cut = cut != NULL;
    if (cut)
        r->cut = *cut;
    r->running = true;
    return TREK_OK;
}

trek_status trek_reader_begin(trek_reader *r, int64_t epoch, int64_t first, int64_t end)
{
    trek_reader_end_batch(r);
    return read_on(r, epoch, first, end, NULL);
}

trek_status trek_reader_begin_part(trek_reader *r, int64_t epoch, int64_t batch, const trek_batch_cut *cut)
{
    trek_reader_end_batch(r);
    int64_t last = r->plan.batches - 1;
    return read_on(r, epoch, batch, batch < last && cut->last_rows == 0 ? last : last + 1, cut);
}

/* Makes variables of what was fetched. */
static trek_batch *give(trek_reader *r)
{
    r->batch.n = r->fetched->n;
    r->batch.first = r->fetched->first;
    r->batch.global = r->fetched->global;
    r->batch.indices = r->fetched->indices;
    r->batch.given = true;
    for (int k = 0; k < r->plan.dataset->n_fields; k++) {
        trek_tensor *x = trek_tensor_to(r->fetched->tensors[k], r->device);
        r->batch.vars[k] = x ? trek_var_new(x, false) : NULL;
        trek_tensor_release(x);
        trek_tensor_release(r->fetched->tensors[k]);
        r->fetched->tensors[k] = NULL;
        if (!r->batch.vars[k]) {
            trek_reader_end_batch(r);
            return NULL;
        }
    }
    return &r->batch;
}

trek_batch *trek_reader_next(trek_reader *r)
{
    trek_reader_end_batch(r);
    if (r->next >= r->end)
        return trek_fail_null(TREK_ERR_STATE, "reader: no batch is left");
    int64_t start = trek_trace_enter("loader wait"), began = trek_clock_ns();
    trek_status status = r->prefetch ? trek_prefetch_take(r->prefetch, &r->fetched)
        : trek_fetched_fill(r->fetched, &r->plan, r->epoch, r->next, r->is_cut ? &r->cut : NULL);
    trek_trace_end("loader wait", start, r->next);
    trek_batch_here()->fed_ns += trek_clock_ns() - began;
    r->running = status == TREK_OK;
    if (status != TREK_OK)
        return NULL;
    r->next++;
    return give(r);
}

trek_status trek_reader_expect_rows(trek_reader *r, int64_t epoch, int64_t batch, int64_t first, int64_t rows)
{
    const trek_batch_cut cut = { first, rows, first, rows };
    bool ahead = r->loader && !r->plan.feed && trek_loader_depth(r->loader) > 0;
    return ahead ? read_on(r, epoch, batch, batch + 1, &cut) : TREK_OK;
}

trek_batch *trek_reader_rows(trek_reader *r, int64_t epoch, int64_t batch, int64_t first, int64_t rows)
{
    if (!r->loader)
        return trek_fail_null(TREK_ERR_STATE, "reader: the loader has ended, so no more samples can be read");
    trek_reader_end_batch(r);
    if (r->plan.feed)
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "reader: dataset %s is a stream, whose samples can only be read one after "
                                                    "the other", r->plan.dataset->klass->name);
    trek_batch_cut cut = { first, rows, first, rows };
    if (r->prefetch && r->running && r->epoch == epoch && r->next == batch && batch < r->end && same_cut(r, &cut))
        return trek_reader_next(r); /* they are expected */
    int64_t start = trek_trace_enter("loader wait"), began = trek_clock_ns();
    trek_status status = trek_fetched_fill(r->fetched, &r->plan, epoch, batch, &cut);
    trek_trace_end("loader wait", start, batch);
    trek_batch_here()->fed_ns += trek_clock_ns() - began;
    return status == TREK_OK ? give(r) : NULL;
}

void trek_reader_rest(trek_reader *r, int64_t first, int64_t end)
{
    trek_reader_end_batch(r);
    if (r->prefetch && first < end)
        read_on(r, r->epoch, first, end, NULL); /* with threads it cannot fail */
}
