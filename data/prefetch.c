/* SPDX-License-Identifier: Apache-2.0 */
/* The loader's thread. It fills a spare batch without holding the lock, then
 * exchanges it for a place in the ring; a batch of an epoch that was given up
 * meanwhile is known by its generation and dropped, so nobody waits for it. */
#include "data/prefetch_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "tensor/backend.h"
#include "tensor/rank_context.h"
#include "tensor/scope_internal.h"
#include "tensor/tensor_internal.h"
#include "tensor/thread_start.h"

/* -- one batch ---------------------------------------------------------------- */

trek_fetched *trek_fetched_new(const trek_batch_plan *plan)
{
    trek_fetched *fetched = trek_calloc(1, sizeof(*fetched));
    if (!fetched)
        return NULL;
    fetched->indices = trek_calloc((size_t)plan->batch_size, sizeof(*fetched->indices));
    fetched->tensors = trek_calloc((size_t)plan->dataset->n_fields, sizeof(*fetched->tensors));
    fetched->message = trek_calloc(1, TREK_ERROR_SIZE);
    if (!fetched->indices || !fetched->tensors || !fetched->message) {
        trek_fetched_free(fetched, plan);
        return NULL;
    }
    return fetched;
}

void trek_fetched_clear(trek_fetched *fetched, const trek_batch_plan *plan)
{
    for (int k = 0; k < plan->dataset->n_fields; k++) {
        trek_tensor_release(fetched->tensors[k]);
        fetched->tensors[k] = NULL;
    }
    fetched->n = 0;
    fetched->is_sent = false;
    fetched->status = TREK_OK;
}

void trek_fetched_free(trek_fetched *fetched, const trek_batch_plan *plan)
{
    if (!fetched)
        return;
    if (fetched->tensors)
        trek_fetched_clear(fetched, plan);
    if (fetched->sent)
        trek_backends[plan->device.type]->event_free(fetched->sent);
    trek_free(fetched->indices);
    trek_free(fetched->tensors);
    trek_free(fetched->message);
    trek_free(fetched);
}

trek_status trek_batch_plan_indices(const trek_batch_plan *plan, int64_t epoch, int64_t batch, int64_t *indices, int64_t *n)
{
    int64_t first = batch * plan->batch_size;
    *n = plan->samples - first < plan->batch_size ? plan->samples - first : plan->batch_size;
    return trek_sampler_at(plan->sampler, epoch, first, *n, indices);
}

int64_t trek_batch_plan_cut(const trek_batch_plan *plan, int64_t batch, const trek_batch_cut *cut, int64_t *first, int64_t *n)
{
    int64_t left = plan->samples - batch * plan->batch_size, global = left < plan->batch_size ? left : plan->batch_size;
    trek_job_cut divide = atomic_load(&trek_job_here.cut);
    *first = 0;
    *n = global;
    if (cut && batch == plan->batches - 1) {
        *first = cut->last_first;
        *n = cut->last_rows;
    } else if (cut) {
        *first = cut->first;
        *n = cut->rows;
    } else if (divide && !plan->whole) {
        divide(global, first, n);
    }
    return global;
}

/* Who has no part of a batch gets tensors without rows: one sample tells their shapes. */
static trek_status fill_empty(trek_fetched *fetched, const trek_batch_plan *plan)
{
    trek_status status = trek_dataset_get(plan->dataset, fetched->indices, 1, fetched->tensors);
    for (int k = 0; k < plan->dataset->n_fields && status == TREK_OK; k++) {
        trek_tensor *one = fetched->tensors[k];
        int64_t sizes[TREK_MAX_DIMS];
        memcpy(sizes, one->sizes, sizeof sizes);
        sizes[0] = 0;
        fetched->tensors[k] = trek_tensor_make(one->ndim, sizes, (trek_dtype)one->dtype, one->device);
        trek_tensor_release(one);
        if (!fetched->tensors[k])
            status = trek_status_or(TREK_ERR_MEMORY);
    }
    return status;
}

trek_status trek_fetched_fill(trek_fetched *f, const trek_batch_plan *plan, int64_t epoch, int64_t batch,
                              const trek_batch_cut *cut)
{
    f->global = trek_batch_plan_cut(plan, batch, cut, &f->first, &f->n);
    int64_t at = batch * plan->batch_size;
    f->status = f->n > 0 ? trek_sampler_at(plan->sampler, epoch, at + f->first, f->n, f->indices)
                         : trek_sampler_at(plan->sampler, epoch, at, 1, f->indices);
    if (f->status == TREK_OK)
        f->status = f->n > 0 ? trek_dataset_get(plan->dataset, f->indices, f->n, f->tensors) : fill_empty(f, plan);
    return f->status;
}

/* -- onto a GPU ------------------------------------------------------------------ */

/* On the loader's thread, and so on a stream of its own: copies do not wait for computation, nor it for them. */
static trek_status send(trek_fetched *f, const trek_batch_plan *plan)
{
    const trek_backend *backend = trek_backend_get(plan->device.type);
    trek_status status = backend ? TREK_OK : trek_error_status();
    for (int k = 0; k < plan->dataset->n_fields && status == TREK_OK; k++) {
        trek_tensor *there = trek_tensor_to(f->tensors[k], plan->device);
        if (!there)
            return trek_error_status();
        trek_tensor_release(f->tensors[k]);
        f->tensors[k] = there;
    }
    if (status == TREK_OK && !f->sent)
        status = backend->event_new(plan->device, &f->sent);
    if (status == TREK_OK)
        status = backend->event_record(f->sent, NULL);
    f->is_sent = status == TREK_OK;
    return status;
}

/* The calling thread's stream waits for the copies, and their memory, when it is free again, for that stream. */
static trek_status receive(trek_fetched *f, const trek_batch_plan *plan)
{
    if (!f->is_sent)
        return TREK_OK;
    const trek_backend *backend = trek_backends[plan->device.type];
    trek_device before = trek_rank_here.device;
    trek_rank_here.device = plan->device; /* the stream that NULL stands for */
    trek_status status = backend->stream_wait(NULL, f->sent);
    trek_rank_here.device = before;
    for (int k = 0; k < plan->dataset->n_fields; k++)
        backend->record_use(f->tensors[k]->storage->handle, NULL);
    return status;
}

/* -- the thread ---------------------------------------------------------------- */

struct trek_prefetch {
    const trek_batch_plan *plan;
    int depth;
    trek_fetched **ring;   /* [depth]; batch b lies in place b % depth */
    trek_fetched *spare;   /* the thread's */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;  /* guards all that follows, and the ring */
    pthread_cond_t work;   /* there is room, a new epoch, or quit */
    pthread_cond_t ready;  /* a batch lies in the ring */
    uint64_t generation;   /* counts starts and stops */
    int64_t epoch;
    int64_t end;           /* no further than here */
    trek_batch_cut cut;    /* if is_cut: what is fetched of each */
    bool is_cut;
    int64_t fetched;       /* the next batch to be fetched */
    int64_t taken;         /* the next batch to be given */
    bool idle;             /* nothing to fetch: no epoch, or a failure that nobody has taken */
    bool quit;
};

static bool has_work(const trek_prefetch *p)
{
    return !p->idle && p->fetched < p->end && p->fetched - p->taken < p->depth;
}

static void put(trek_prefetch *p, int64_t batch)
{
    trek_fetched **place = &p->ring[batch % p->depth], *filled = p->spare;
    p->spare = *place;
    *place = filled;
    p->fetched++;
    p->idle = filled->status != TREK_OK;
    pthread_cond_signal(&p->ready);
}

static void *run(void *arg)
{
    trek_prefetch *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        if (!has_work(p)) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        uint64_t generation = p->generation;
        int64_t epoch = p->epoch, batch = p->fetched;
        trek_batch_cut cut = p->cut;
        bool is_cut = p->is_cut;
        pthread_mutex_unlock(&p->lock);
        trek_fetched *spare = p->spare; /* the thread's alone */
        trek_status status = trek_fetched_fill(spare, p->plan, epoch, batch, is_cut ? &cut : NULL);
        if (status == TREK_OK && p->plan->device.type != TREK_CPU)
            status = send(spare, p->plan);
        if (status != TREK_OK)
            trek_error_take(&spare->status, spare->message);
        trek_error_clear(); /* a get that succeeds in the end may have left one */
        pthread_mutex_lock(&p->lock);
        if (generation == p->generation && !p->quit)
            put(p, batch);
        else
            trek_fetched_clear(spare, p->plan);
    }
    pthread_mutex_unlock(&p->lock);
    trek_scope_thread_end();
    return NULL;
}

trek_prefetch *trek_prefetch_new(const trek_batch_plan *plan, int depth)
{
    trek_prefetch *p = trek_calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->plan = plan;
    p->depth = depth;
    p->idle = true;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->ready, NULL);
    p->spare = trek_fetched_new(plan);
    p->ring = trek_calloc((size_t)depth, sizeof(trek_fetched *));
    bool complete = p->spare && p->ring;
    for (int k = 0; complete && k < depth; k++) {
        p->ring[k] = trek_fetched_new(plan);
        complete = p->ring[k] != NULL;
    }
    int failed = complete ? trek_thread_start(&p->thread, run, p) : 0;
    if (failed)
        trek_fail(TREK_ERR_STATE, "loader: its thread cannot be started: %s", strerror(failed));
    p->started = complete && !failed;
    if (!p->started)
        trek_prefetch_free(&p);
    return p;
}

void trek_prefetch_free(trek_prefetch **prefetch)
{
    trek_prefetch *p = *prefetch;
    *prefetch = NULL;
    if (!p)
        return;
    if (p->started) {
        pthread_mutex_lock(&p->lock);
        p->quit = true;
        pthread_cond_signal(&p->work);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    }
    for (int k = 0; p->ring && k < p->depth; k++)
        trek_fetched_free(p->ring[k], p->plan);
    trek_fetched_free(p->spare, p->plan);
    trek_free(p->ring);
    pthread_cond_destroy(&p->ready);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    trek_free(p);
}

static void restart(trek_prefetch *p, bool idle, int64_t epoch, int64_t batch, int64_t end, const trek_batch_cut *cut)
{
    pthread_mutex_lock(&p->lock);
    p->is_cut = cut != NULL;
    if (cut)
        p->cut = *cut;
    p->generation++;
    p->idle = idle;
    p->epoch = epoch;
    p->end = end;
    p->fetched = p->taken = batch;
    for (int k = 0; k < p->depth; k++)
        trek_fetched_clear(p->ring[k], p->plan);
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

void trek_prefetch_start(trek_prefetch *prefetch, int64_t epoch, int64_t batch, int64_t end, const trek_batch_cut *cut)
{
    restart(prefetch, false, epoch, batch, end, cut);
}

void trek_prefetch_extend(trek_prefetch *prefetch, int64_t end)
{
    pthread_mutex_lock(&prefetch->lock);
    prefetch->end = end;
    pthread_cond_signal(&prefetch->work);
    pthread_mutex_unlock(&prefetch->lock);
}

void trek_prefetch_stop(trek_prefetch *prefetch) { restart(prefetch, true, 0, 0, 0, NULL); }

trek_status trek_prefetch_take(trek_prefetch *prefetch, trek_fetched **fetched)
{
    trek_prefetch *p = prefetch;
    pthread_mutex_lock(&p->lock);
    while (p->taken == p->fetched)
        pthread_cond_wait(&p->ready, &p->lock);
    trek_fetched **place = &p->ring[p->taken % p->depth], *full = *place;
    *place = *fetched;
    *fetched = full;
    p->taken++;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    if (full->status != TREK_OK)
        trek_fail(full->status, "%s", full->message);
    return full->status == TREK_OK ? receive(full, p->plan) : full->status;
}
