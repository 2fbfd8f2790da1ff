/* SPDX-License-Identifier: Apache-2.0 */
/* The loader's threads. Each takes the next batch and fills a spare one without holding the lock, then exchanges it
 * for that batch's place in the ring, from which batches are given out in order. A batch of an epoch that was
 * abandoned meanwhile is recognised by its generation and dropped, so nobody waits for it. */
#include "data/prefetch_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "data/stream.h"
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
    fetched->is_sent = fetched->end = false;
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
    trek_free(fetched->batch);
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

/* Lists the other samples of the batch, for datasets that need to know them. */
static trek_status list_batch(trek_fetched *f, const trek_batch_plan *plan, int64_t batch, trek_fetch *fetch)
{
    if (!f->batch)
        f->batch = trek_alloc((size_t)plan->batch_size * sizeof(*f->batch));
    if (!f->batch)
        return TREK_ERR_MEMORY;
    fetch->batch = f->batch;
    fetch->batch_first = f->n > 0 ? f->first : 0;
    return trek_batch_plan_indices(plan, fetch->epoch, batch, f->batch, &fetch->n_batch);
}

/* A process without a share of a batch gets tensors without rows; one sample determines their shapes. */
static trek_status fill_empty(trek_fetched *fetched, const trek_batch_plan *plan, trek_fetch fetch)
{
    fetch.n = 1;
    trek_status status = trek_dataset_fetch(plan->dataset, &fetch, fetched->tensors);
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

/* Reads on, or from the start, up to that batch. */
static trek_status seek_stream(const trek_batch_plan *plan, int64_t epoch, int64_t batch)
{
    trek_feed *feed = plan->feed;
    bool there = feed->stream && feed->epoch == epoch && feed->next == batch;
    feed->epoch = epoch;
    feed->next = batch;
    if (there)
        return TREK_OK;
    trek_stream_close(&feed->stream);
    feed->stream = trek_stream_open(plan->dataset, epoch, plan->seed);
    return feed->stream ? trek_stream_skip(feed->stream, batch * plan->batch_size, NULL) : trek_status_or(TREK_ERR_MEMORY);
}

/* All processes read all of a stream and so see the same batches. Each keeps its own rows. */
static trek_status keep_rows(trek_fetched *f, const trek_batch_plan *plan)
{
    trek_job_cut divide = atomic_load(&trek_job_here.cut);
    f->first = 0;
    f->n = f->global;
    if (!divide || plan->whole)
        return TREK_OK;
    divide(f->global, &f->first, &f->n);
    for (int k = 0; k < plan->dataset->n_fields; k++) {
        trek_tensor *x = f->tensors[k];
        int64_t sizes[TREK_MAX_DIMS];
        memcpy(sizes, x->sizes, sizeof sizes);
        sizes[0] = f->n;
        char *rows = x->data + (f->n > 0 ? f->first * x->strides[0] * (int64_t)trek_dtype_size((trek_dtype)x->dtype) : 0);
        f->tensors[k] = trek_tensor_make_view(x, rows, x->ndim, sizes, x->strides);
        trek_tensor_release(x);
        if (!f->tensors[k])
            return trek_status_or(TREK_ERR_MEMORY);
    }
    return TREK_OK;
}

static trek_status fill_from_stream(trek_fetched *f, const trek_batch_plan *plan, int64_t epoch, int64_t batch)
{
    trek_status status = seek_stream(plan, epoch, batch);
    if (status == TREK_OK)
        status = trek_stream_next(plan->feed->stream, plan->batch_size, f->tensors, &f->global);
    plan->feed->next++;
    f->end = status == TREK_OK && (f->global == 0 || (plan->drop_last && f->global < plan->batch_size));
    if (status != TREK_OK || f->end)
        trek_stream_close(&plan->feed->stream); /* begun again when it is requested again */
    if (status != TREK_OK)
        return status;
    if (f->end) {
        f->n = f->first = 0;
        trek_tensors_clear(f->tensors, plan->dataset->n_fields);
        return TREK_OK;
    }
    status = keep_rows(f, plan);
    for (int64_t i = 0; i < f->n; i++)
        f->indices[i] = batch * plan->batch_size + f->first + i;
    return status;
}

trek_status trek_fetched_fill(trek_fetched *f, const trek_batch_plan *plan, int64_t epoch, int64_t batch,
                              const trek_batch_cut *cut)
{
    if (plan->feed)
        return f->status = fill_from_stream(f, plan, epoch, batch);
    f->global = trek_batch_plan_cut(plan, batch, cut, &f->first, &f->n);
    int64_t at = batch * plan->batch_size;
    f->status = f->n > 0 ? trek_sampler_at(plan->sampler, epoch, at + f->first, f->n, f->indices)
                         : trek_sampler_at(plan->sampler, epoch, at, 1, f->indices);
    trek_fetch fetch = { .indices = f->indices, .n = f->n, .epoch = epoch, .seed = plan->seed };
    if (f->status == TREK_OK && trek_dataset_needs_batch(plan->dataset))
        f->status = list_batch(f, plan, batch, &fetch);
    if (f->status == TREK_OK)
        f->status = f->n > 0 ? trek_dataset_fetch(plan->dataset, &fetch, f->tensors) : fill_empty(f, plan, fetch);
    return f->status;
}

/* -- onto a GPU ------------------------------------------------------------------ */

/* Runs on the loader's thread and so on a stream of its own: copies and computation do not wait for each other. */
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

/* Makes the calling thread's stream wait for the copies. Their memory, once freed, also waits for that stream. */
static trek_status receive(trek_fetched *f, const trek_batch_plan *plan)
{
    if (!f->is_sent)
        return TREK_OK;
    const trek_backend *backend = trek_backends[plan->device.type];
    trek_status status = backend->stream_wait(plan->device, NULL, f->sent);
    for (int k = 0; k < plan->dataset->n_fields; k++)
        backend->record_use(f->tensors[k]->storage->handle, NULL);
    return status;
}

/* -- the threads --------------------------------------------------------------- */

typedef struct worker {
    trek_prefetch *prefetch;
    trek_fetched *spare; /* used by this thread only */
    pthread_t thread;
} worker;

typedef struct place {
    trek_fetched *batch;
    bool full;
} place;

struct trek_prefetch {
    const trek_batch_plan *plan;
    int depth;
    place *ring;           /* [depth]; batch b is at b % depth */
    worker *workers;       /* [n_workers] */
    int n_workers, started;
    pthread_mutex_t lock;  /* guards everything below, and the ring */
    pthread_cond_t work;   /* there is room, a new epoch, or quit */
    pthread_cond_t ready;  /* the next batch to give out is in the ring */
    uint64_t generation;   /* counts starts and stops */
    int64_t epoch;
    int64_t end;           /* fetch no further than here */
    trek_batch_cut cut;    /* if is_cut: the rows fetched of each */
    bool is_cut;
    int64_t begun;         /* the next batch to fetch: earlier ones are complete or being fetched by a worker */
    int64_t taken;         /* the next batch to give out */
    bool idle;             /* nothing to fetch: no epoch, or a failure not yet reported */
    bool quit;
};

static bool has_work(const trek_prefetch *p)
{
    return !p->idle && p->begun < p->end && p->begun - p->taken < p->depth;
}

/* A failure ends the fetching. Workers with an earlier batch continue; nobody will ask for later ones. */
static void put(trek_prefetch *p, worker *w, int64_t batch)
{
    place *at = &p->ring[batch % p->depth];
    trek_fetched *filled = w->spare;
    w->spare = at->batch;
    at->batch = filled;
    at->full = true;
    p->idle = p->idle || filled->status != TREK_OK || filled->end;
    if (batch == p->taken)
        pthread_cond_signal(&p->ready);
}

/* Fetches the next batch. Called with the lock held, and holds it on return. */
static void fetch_one(trek_prefetch *p, worker *w)
{
    uint64_t generation = p->generation;
    int64_t epoch = p->epoch, batch = p->begun++;
    trek_batch_cut cut = p->cut;
    bool is_cut = p->is_cut;
    pthread_mutex_unlock(&p->lock);
    trek_status status = trek_fetched_fill(w->spare, p->plan, epoch, batch, is_cut ? &cut : NULL);
    if (status == TREK_OK && !w->spare->end && p->plan->device.type != TREK_CPU)
        status = send(w->spare, p->plan);
    if (status != TREK_OK)
        trek_error_take(&w->spare->status, w->spare->message);
    trek_error_clear(); /* a get that succeeded in the end may have left an error */
    pthread_mutex_lock(&p->lock);
    if (generation == p->generation && !p->quit)
        put(p, w, batch);
    else
        trek_fetched_clear(w->spare, p->plan);
}

static void *run(void *arg)
{
    worker *w = arg;
    trek_prefetch *p = w->prefetch;
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        if (has_work(p))
            fetch_one(p, w);
        else
            pthread_cond_wait(&p->work, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    trek_scope_thread_end();
    return NULL;
}

static trek_status start_workers(trek_prefetch *p, int n)
{
    p->workers = trek_calloc((size_t)n, sizeof(*p->workers));
    p->ring = trek_calloc((size_t)p->depth, sizeof(*p->ring));
    if (!p->workers || !p->ring)
        return TREK_ERR_MEMORY;
    p->n_workers = n;
    for (int k = 0; k < p->depth; k++)
        if (!(p->ring[k].batch = trek_fetched_new(p->plan)))
            return TREK_ERR_MEMORY;
    for (int k = 0; k < n; k++)
        if (!(p->workers[k].spare = trek_fetched_new(p->plan)))
            return TREK_ERR_MEMORY;
    for (; p->started < n; p->started++) {
        worker *w = &p->workers[p->started];
        w->prefetch = p;
        int failed = trek_thread_start(&w->thread, run, w);
        if (failed)
            return trek_fail(TREK_ERR_STATE, "loader: the thread of a worker cannot be started: %s", strerror(failed));
    }
    return TREK_OK;
}

trek_prefetch *trek_prefetch_new(const trek_batch_plan *plan, int depth, int workers)
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
    if (start_workers(p, workers < depth ? workers : depth) != TREK_OK)
        trek_prefetch_free(&p);
    return p;
}

void trek_prefetch_free(trek_prefetch **prefetch)
{
    trek_prefetch *p = *prefetch;
    *prefetch = NULL;
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int k = 0; k < p->started; k++)
        pthread_join(p->workers[k].thread, NULL);
    for (int k = 0; k < p->n_workers; k++)
        trek_fetched_free(p->workers[k].spare, p->plan);
    for (int k = 0; p->ring && k < p->depth; k++)
        trek_fetched_free(p->ring[k].batch, p->plan);
    trek_free(p->workers);
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
    p->begun = p->taken = batch;
    for (int k = 0; k < p->depth; k++) {
        trek_fetched_clear(p->ring[k].batch, p->plan);
        p->ring[k].full = false;
    }
    pthread_cond_broadcast(&p->work);
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
    pthread_cond_broadcast(&prefetch->work);
    pthread_mutex_unlock(&prefetch->lock);
}

void trek_prefetch_stop(trek_prefetch *prefetch) { restart(prefetch, true, 0, 0, 0, NULL); }

trek_status trek_prefetch_take(trek_prefetch *prefetch, trek_fetched **fetched)
{
    trek_prefetch *p = prefetch;
    pthread_mutex_lock(&p->lock);
    place *at = &p->ring[p->taken % p->depth];
    while (!at->full)
        pthread_cond_wait(&p->ready, &p->lock);
    trek_fetched *full = at->batch;
    at->batch = *fetched;
    at->full = false;
    *fetched = full;
    p->taken++;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    if (full->status != TREK_OK)
        trek_fail(full->status, "%s", full->message);
    return full->status == TREK_OK ? receive(full, p->plan) : full->status;
}
