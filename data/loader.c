/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs, batches and the scopes around them. */
#include "data/loader.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

#include "data/batch_here.h"
#include "data/loader_internal.h"
#include "data/loader_position.h"
#include "data/prefetch_internal.h"
#include "data/stream.h"
#include "tensor/backend.h"
#include "tensor/debug.h"
#include "tensor/option_internal.h"
#include "tensor/rank_context.h"
#include "tensor/scope_internal.h"
#include "tensor/tensor_internal.h"
#include "tensor/trace.h"

#define DEFAULT_PREFETCH 2

struct trek_loader {
    uint64_t id;
    trek_batch_plan plan; /* owns dataset and sampler */
    trek_device device;
    int depth;            /* 0: fetched by the calling thread */
    int workers;          /* threads that fetch ahead */
    trek_prefetch *prefetch; /* made by the first start */
    bool begun;           /* an epoch was begun */
    bool active;          /* the current epoch is running */
    bool ahead;           /* `fetched` is the next batch already (trek_loader_more) */
    int64_t epoch, position;
    uint64_t digest;      /* see trek_batch_plan_digest; 0 if not computed yet, or if there is nothing to compare */
    uint64_t job_version; /* the version of the division among processes when the current batches were fetched */
    bool left_to_ranks;   /* the ranks read for themselves, so nothing is fetched ahead here */
    bool asked;           /* in this epoch, someone wanted all of a batch that was left to the ranks */
    int64_t *window;      /* indices of the last window or batch that was left to the ranks, if they were asked for; NULL if
                           * there are none yet */
    int64_t window_room;
    trek_loader_follower *followers;
    trek_fetched *fetched; /* the current batch's tensors and indices */
    trek_batch batch;
    trek_scope scope;     /* of the current batch, on thread `home`; depth 0 if there is none */
    const void *home;
};

static bool scope_is_open(trek_scope scope)
{
    const trek_scope_stack *stack = &trek_scopes;
    return scope.depth > 0 && (int)scope.depth <= stack->depth && stack->marks[scope.depth - 1].serial == scope.serial;
}

/* -- making and freeing ----------------------------------------------------- */

static trek_status sampler_check(const trek_dataset *dataset, const trek_loader_opts *opts)
{
    const trek_sampler *s = opts->sampler;
    int64_t over = s->klass->over ? s->klass->over(s) : 0, length = trek_dataset_length(dataset);
    if (over > length)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: .sampler: %s is for %" PRId64 " samples; dataset %s has %" PRId64,
                         s->klass->name, over, dataset->klass->name, length);
    int64_t batch = s->klass->batch_size ? s->klass->batch_size(s) : opts->batch_size;
    if (batch != opts->batch_size)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: .batch_size: %" PRId64 "; the sampler %s makes batches of %" PRId64,
                         opts->batch_size, s->klass->name, batch);
    return TREK_OK;
}

static trek_status opts_check(const trek_dataset *dataset, const trek_loader_opts *opts)
{
    if (!opts || opts->batch_size < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: .batch_size: %" PRId64 "; must be at least 1", opts ? opts->batch_size : 0);
    if ((opts->prefetch < 0 && opts->prefetch != TREK_ZERO) || opts->prefetch > 4096)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: .prefetch: %d; must be TREK_ZERO or 0 .. 4096", opts->prefetch);
    if (opts->workers < 0 || opts->workers > 256)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: .workers: %d; must be 0 (one) .. 256", opts->workers);
    if (opts->workers > 1 && opts->prefetch == TREK_ZERO)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: .workers: %d, but a .prefetch of TREK_ZERO gives them nothing to do",
                         opts->workers);
    if (trek_dataset_is_stream(dataset) && (opts->sampler || opts->shuffle))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "loader: .%s: set, but dataset %s is a stream; trek_dataset_shuffle gives it another order",
                         opts->sampler ? "sampler" : "shuffle", dataset->klass->name);
    if (trek_dataset_is_stream(dataset) && opts->workers > 1)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: .workers: %d, but dataset %s is a stream, which one worker reads",
                         opts->workers, dataset->klass->name);
    if (opts->sampler && opts->shuffle)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: .shuffle: set together with .sampler, which determines the order itself");
    if (dataset->n_fields < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: dataset %s has no fields", dataset->klass->name);
    if (trek_dataset_is_stream(dataset))
        return TREK_OK;
    if (opts->sampler && sampler_check(dataset, opts) != TREK_OK)
        return TREK_ERR_ARGUMENT;
    int64_t samples = opts->sampler ? trek_sampler_length(opts->sampler) : trek_dataset_length(dataset);
    if (trek_dataset_length(dataset) < 1 || samples < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: dataset: %s has no samples; must have at least one", dataset->klass->name);
    if (opts->drop_last && samples < opts->batch_size)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "loader: .drop_last: set, but with %" PRId64 " samples in batches of %" PRId64 " no batch would remain",
                         samples, opts->batch_size);
    return TREK_OK;
}

/* Computes the numbers of samples and batches of a dataset with indices. */
static trek_status count_batches(trek_batch_plan *plan, trek_sampler **sampler, const trek_loader_opts *opts)
{
    int64_t length = trek_dataset_length(plan->dataset);
    plan->sampler = *sampler ? *sampler : opts->shuffle ? trek_sampler_random(length, opts->seed)
        : trek_sampler_sequential(length);
    *sampler = NULL;
    if (!plan->sampler)
        return trek_status_or(TREK_ERR_MEMORY);
    plan->samples = trek_sampler_length(plan->sampler);
    plan->batch_size = opts->batch_size < plan->samples ? opts->batch_size : plan->samples;
    plan->batches = (plan->samples - 1) / plan->batch_size + 1;
    if (opts->drop_last) {
        plan->batches = plan->samples / plan->batch_size;
        plan->samples = plan->batches * plan->batch_size;
    }
    return TREK_OK;
}

static trek_status begin_feed(trek_batch_plan *plan, const trek_loader_opts *opts)
{
    plan->batch_size = opts->batch_size;
    plan->batches = INT64_MAX / plan->batch_size;
    plan->samples = plan->batches * plan->batch_size;
    plan->feed = trek_calloc(1, sizeof(*plan->feed));
    return plan->feed ? TREK_OK : TREK_ERR_MEMORY;
}

static trek_status fill(trek_loader *l, trek_sampler **sampler, const trek_loader_opts *opts)
{
    static atomic_uint_fast64_t ids;
    l->id = atomic_fetch_add(&ids, 1) + 1;
    trek_batch_plan *plan = &l->plan;
    plan->whole = opts->whole;
    plan->seed = opts->seed;
    plan->drop_last = opts->drop_last;
    trek_status status = trek_dataset_is_stream(plan->dataset) ? begin_feed(plan, opts) : count_batches(plan, sampler, opts);
    if (status != TREK_OK)
        return status;
    l->workers = opts->workers ? opts->workers : 1;
    int64_t depth = trek_option_integer(opts->prefetch, DEFAULT_PREFETCH) * l->workers;
    l->depth = (int)(depth < plan->batches ? depth : plan->batches);
    l->device = trek_device_resolve(opts->device);
    plan->device = l->device;
    l->batch.dataset = plan->dataset;
    l->batch.vars = trek_calloc((size_t)plan->dataset->n_fields, sizeof(*l->batch.vars));
    l->fetched = trek_fetched_new(plan);
    return l->batch.vars && l->fetched ? TREK_OK : TREK_ERR_MEMORY;
}

trek_loader *trek_loader_new(trek_dataset *dataset, const trek_loader_opts *opts)
{
    trek_sampler *sampler = opts ? opts->sampler : NULL;
    trek_loader *l = NULL;
    if (trek_dataset_hold(dataset, "loader_new") != TREK_OK)
        dataset = NULL; /* owned by someone else */
    if (sampler && trek_debug && trek_debug_give(sampler, "loader_new", "the sampler") != TREK_OK)
        sampler = NULL;
    else if (dataset && opts_check(dataset, opts) == TREK_OK)
        l = trek_calloc(1, sizeof(*l));
    if (!l) {
        trek_sampler_free(&sampler);
        trek_dataset_let_go(&dataset);
        return NULL;
    }
    l->plan.dataset = dataset;
    if (fill(l, &sampler, opts) != TREK_OK)
        trek_loader_free(&l);
    return l;
}

/* Ends the current batch. This is safe if the user has already ended the scopes. */
static void end_batch(trek_loader *l)
{
    if (l->scope.depth && l->home == trek_batch_here() && scope_is_open(l->scope))
        trek_scope_end(l->scope);
    l->scope = (trek_scope){ 0, 0 };
    for (int k = 0; l->batch.vars && k < l->plan.dataset->n_fields; k++) {
        trek_var_release(l->batch.vars[k]);
        l->batch.vars[k] = NULL;
    }
    if (l->batch.given) {
        trek_batch_here()->rows = -1;
        trek_batch_here()->loader = NULL;
        trek_batch_here()->digest = 0;
    }
    l->batch.n = 0;
    l->batch.given = l->batch.unread = false;
    if (l->fetched && !l->ahead)
        trek_fetched_clear(l->fetched, &l->plan);
}

static void end_epoch(trek_loader *l)
{
    l->ahead = false;
    end_batch(l);
    if (trek_batch_here()->outermost == l->id)
        trek_batch_here()->outermost = 0;
    if (l->active && l->prefetch)
        trek_prefetch_stop(l->prefetch);
    l->active = false;
}

void trek_loader_free(trek_loader **loader)
{
    if (!loader || !*loader || trek_gone(*loader, "loader_free", "the loader"))
        return;
    trek_loader *l = *loader;
    *loader = NULL;
    if (trek_forked)
        return; /* the thread and everything it may hold belong to the parent */
    end_epoch(l);
    for (trek_loader_follower *f = l->followers, *next; f; f = next) {
        next = f->next;
        f->forget(f);
    }
    trek_prefetch_free(&l->prefetch);
    trek_fetched_free(l->fetched, &l->plan);
    trek_free(l->batch.vars);
    trek_free(l->window);
    if (l->plan.feed)
        trek_stream_close(&l->plan.feed->stream);
    trek_free(l->plan.feed);
    trek_sampler_free(&l->plan.sampler);
    trek_dataset_let_go(&l->plan.dataset);
    if (trek_debug)
        trek_debug_ended(l, "loader", NULL);
    trek_free(l);
}

/* -- who reads for it ------------------------------------------------------------- */

static pthread_mutex_t followers_lock = PTHREAD_MUTEX_INITIALIZER;

void trek_loader_follow(trek_loader *loader, trek_loader_follower *follower)
{
    pthread_mutex_lock(&followers_lock);
    follower->next = loader->followers;
    loader->followers = follower;
    pthread_mutex_unlock(&followers_lock);
}

void trek_loader_unfollow(trek_loader *loader, trek_loader_follower *follower)
{
    pthread_mutex_lock(&followers_lock);
    trek_loader_follower **link = &loader->followers;
    while (*link && *link != follower)
        link = &(*link)->next;
    if (*link)
        *link = follower->next;
    pthread_mutex_unlock(&followers_lock);
}

/* -- an epoch ----------------------------------------------------------------- */

trek_status trek_loader_start(trek_loader *loader, int64_t epoch) { return trek_loader_seek(loader, epoch, 0); }

static void start_fetching(trek_loader *l, int64_t epoch, int64_t batch)
{
    if (trek_job_here.processes > 1 && l->digest == 0)
        l->digest = trek_batch_plan_digest(&l->plan);
    l->job_version = trek_job_here.version;
    if (l->prefetch && !l->left_to_ranks)
        trek_prefetch_start(l->prefetch, epoch, batch, l->plan.batches, NULL);
}

trek_status trek_loader_seek(trek_loader *loader, int64_t epoch, int64_t batch)
{
    trek_loader *l = loader;
    if (!l)
        return trek_fail_missing("loader_start", "loader");
    if (trek_gone(l, "loader_start", "the loader"))
        return TREK_ERR_STATE;
    if (trek_forked)
        return trek_fail_forked();
    end_epoch(l);
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    if (epoch < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: epoch: %" PRId64 "; must be 0 or more", epoch);
    if (batch < 0 || batch > l->plan.batches)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: batch: %" PRId64 " does not exist; an epoch has %" PRId64 " batches", batch,
                         l->plan.batches);
    if (l->depth > 0 && !l->prefetch) {
        l->prefetch = trek_prefetch_new(&l->plan, l->depth, l->workers);
        if (!l->prefetch)
            return trek_status_or(TREK_ERR_STATE);
    }
    l->asked = false;
    start_fetching(l, epoch, batch);
    l->begun = l->active = true;
    l->epoch = epoch;
    l->position = batch;
    return TREK_OK;
}

/* The thread's outermost active loader opens a scope and the others do not, so that what the user makes in the loops
 * is released in the order of the user's own loops. */
static trek_status open_scope(trek_loader *l)
{
    trek_batch_slot *here = trek_batch_here();
    if (here->outermost && here->outermost != l->id && scope_is_open(here->scope))
        return TREK_OK;
    l->scope = trek_scope_begin();
    if (l->scope.depth == 0)
        return trek_status_or(TREK_ERR_MEMORY);
    l->home = here;
    here->outermost = l->id;
    here->scope = l->scope;
    return TREK_OK;
}

static trek_status fetch(trek_loader *l)
{
    bool restart = l->left_to_ranks || l->job_version != trek_job_here.version; /* it was another part of the batches */
    bool ahead = l->ahead && !restart;
    l->left_to_ranks = l->ahead = false;
    if (ahead)
        return TREK_OK;
    int64_t start = trek_trace_enter("loader wait"), began = trek_clock_ns();
    trek_fetched_clear(l->fetched, &l->plan);
    if (restart)
        start_fetching(l, l->epoch, l->position);
    trek_status status = l->prefetch ? trek_prefetch_take(l->prefetch, &l->fetched)
                                     : trek_fetched_fill(l->fetched, &l->plan, l->epoch, l->position, NULL);
    trek_trace_end("loader wait", start, l->position);
    trek_batch_here()->loader_ns += trek_clock_ns() - began;
    return status;
}

/* Makes the next batches of the epoch the current one. */
static void give(trek_loader *l, int64_t n, int64_t first, int64_t global, const int64_t *indices, int64_t batches)
{
    l->batch.given = true;
    l->batch.loader = l;
    l->batch.epoch = l->epoch;
    l->batch.first_batch = l->position;
    l->batch.batches = batches;
    l->position += batches;
    l->batch.n = n;
    l->batch.first = first;
    l->batch.global = global;
    l->batch.indices = indices;
    l->batch.window = false;
    trek_batch_here()->rows = n;
    trek_batch_here()->first = first;
    trek_batch_here()->global = global;
    trek_batch_here()->loader = l;
    trek_batch_here()->digest = l->digest;
}

static trek_status make_vars(trek_loader *l)
{
    for (int k = 0; k < l->plan.dataset->n_fields; k++) {
        trek_tensor *tensor = l->fetched->tensors[k];
        bool move = !trek_device_equal(trek_tensor_device(tensor), l->device);
        tensor = move ? trek_tensor_to(tensor, l->device) : trek_tensor_retain(tensor);
        l->batch.vars[k] = tensor ? trek_var_new(tensor, false) : NULL;
        trek_tensor_release(tensor);
        if (!l->batch.vars[k])
            return trek_status_or(TREK_ERR_MEMORY);
        trek_tensor_release(l->fetched->tensors[k]); /* from here on only the variable refers to it */
        l->fetched->tensors[k] = NULL;
    }
    return TREK_OK;
}

/* Ends the current batch. Returns false if there is no further one, or on an error. */
static bool advance(trek_loader *l)
{
    if (!l)
        return trek_fail_missing("loader_next", "loader"), false;
    if (trek_gone(l, "loader_next", "the loader"))
        return false;
    if (trek_forked)
        return trek_fail_forked(), false;
    end_batch(l);
    if (!l->begun && trek_error_status() == TREK_OK)
        return trek_fail(TREK_ERR_STATE, "loader_next: no epoch was begun; call trek_loader_start first"), false;
    if (l->active && trek_error_status() == TREK_OK && l->position < l->plan.batches)
        return true;
    end_epoch(l);
    return false;
}

trek_batch *trek_loader_next(trek_loader *loader)
{
    trek_loader *l = loader;
    if (!advance(l))
        return NULL;
    if (fetch(l) != TREK_OK || l->fetched->end || open_scope(l) != TREK_OK || make_vars(l) != TREK_OK) {
        end_epoch(l);
        return NULL;
    }
    give(l, l->fetched->n, l->fetched->first, l->fetched->global, l->fetched->indices, 1);
    return &l->batch;
}

bool trek_loader_more(trek_loader *loader)
{
    trek_loader *l = loader;
    if (!advance(l))
        return false;
    if (!l->plan.feed)
        return true;
    if (fetch(l) != TREK_OK || l->fetched->end) {
        end_epoch(l);
        return false;
    }
    return l->ahead = true;
}

bool trek_loader_stream_ended(const trek_loader *loader) { return loader->plan.feed && loader->begun && !loader->active; }

/* -- batches that ranks read ------------------------------------------------------- */

void trek_loader_leave_to_ranks(trek_loader *loader) { loader->left_to_ranks = true; }

static void leave_to_ranks(trek_loader *l)
{
    if (l->prefetch && !l->left_to_ranks)
        trek_prefetch_stop(l->prefetch);
    l->left_to_ranks = true;
}

trek_batch *trek_loader_next_parts(trek_loader *loader)
{
    trek_loader *l = loader;
    if (l && (l->asked || l->plan.feed)) /* a stream is read by one process */
        return trek_loader_next(l);
    if (!advance(l))
        return NULL;
    int64_t first, n, global = trek_batch_plan_cut(&l->plan, l->position, NULL, &first, &n);
    leave_to_ranks(l);
    if (open_scope(l) != TREK_OK) {
        end_epoch(l);
        return NULL;
    }
    give(l, n, first, global, NULL, 1);
    l->batch.unread = true;
    return &l->batch;
}

trek_status trek_batch_fill(const trek_batch *batch)
{
    if (!batch->unread)
        return TREK_OK;
    trek_loader *l = batch->loader;
    trek_batch_cut cut = { batch->first, batch->n, batch->first, batch->n };
    trek_status status = trek_fetched_fill(l->fetched, &l->plan, batch->epoch, batch->first_batch, &cut);
    if (status == TREK_OK)
        status = make_vars(l);
    l->asked = true;
    l->batch.unread = status != TREK_OK;
    l->batch.indices = status == TREK_OK ? l->fetched->indices : l->batch.indices;
    for (int k = 0; k < l->plan.dataset->n_fields && status != TREK_OK; k++) {
        trek_var_release(l->batch.vars[k]);
        l->batch.vars[k] = NULL;
    }
    return status;
}

/* Lists the samples of the current batch. This costs more than everything else here, so it happens only on request. */
static trek_status list_samples(trek_loader *l)
{
    const trek_batch *b = &l->batch;
    if (b->n > l->window_room || !l->window) {
        trek_free(l->window);
        l->window = trek_alloc((size_t)(b->n > 0 ? b->n : 1) * sizeof *l->window);
        l->window_room = l->window ? b->n : 0;
        if (!l->window)
            return trek_status_or(TREK_ERR_MEMORY);
    }
    return trek_sampler_at(l->plan.sampler, b->epoch, b->first_batch * l->plan.batch_size + b->first, b->n, l->window);
}

trek_batch *trek_loader_next_window(trek_loader *loader, int64_t count)
{
    trek_loader *l = loader;
    if (!advance(l))
        return NULL;
    if (l->plan.feed)
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "loader: dataset: %s is a stream, of which ranks cannot read windows",
                              l->plan.dataset->klass->name);
    int64_t batches = l->plan.batches - l->position < count ? l->plan.batches - l->position : count;
    int64_t left = l->plan.samples - l->position * l->plan.batch_size, size = batches * l->plan.batch_size;
    leave_to_ranks(l);
    if (open_scope(l) != TREK_OK) {
        end_epoch(l);
        return NULL;
    }
    give(l, left < size ? left : size, 0, left < size ? left : size, NULL, batches);
    trek_batch_here()->rows = -1; /* no forward of the caller covers it */
    l->batch.window = true;
    return &l->batch;
}

/* -- asking ------------------------------------------------------------------- */

int64_t trek_loader_batches(const trek_loader *loader)
{
    if (loader)
        return loader->plan.feed ? -1 : loader->plan.batches;
    trek_fail_missing("loader_batches", "loader");
    return -1;
}

int64_t trek_loader_samples(const trek_loader *loader)
{
    if (loader)
        return loader->plan.feed ? -1 : loader->plan.samples;
    trek_fail_missing("loader_samples", "loader");
    return -1;
}

const trek_batch_plan *trek_loader_plan(const trek_loader *loader) { return &loader->plan; }
trek_status trek_loader_describe(const trek_loader *loader, trek_text *text)
{
    return trek_batch_plan_describe(&loader->plan, text);
}
int trek_loader_depth(const trek_loader *loader) { return loader->depth; }
int trek_loader_workers(const trek_loader *loader) { return loader->workers; }
uint64_t trek_loader_id(const trek_loader *loader) { return loader->id; }

trek_dataset *trek_loader_dataset(const trek_loader *loader) 
{
    return loader && !trek_gone(loader, "loader_dataset", "the loader") ? loader->plan.dataset : NULL;
}

void trek_loader_position(const trek_loader *loader, int64_t *epoch, int64_t *batch)
{
    if (epoch)
        *epoch = loader ? loader->epoch : 0;
    if (batch)
        *batch = loader ? loader->position : 0;
}

trek_status trek_loader_indices(const trek_loader *loader, int64_t epoch, int64_t batch, int64_t *indices, int64_t *n)
{
    if (!loader || !indices || !n)
        return trek_fail_missing("loader_indices", loader ? "array for the indices" : "loader");
    if (loader->plan.feed)
        return trek_fail(TREK_ERR_UNSUPPORTED, "loader: dataset: %s is a stream, whose samples have no numbers",
                         loader->plan.dataset->klass->name);
    if (batch < 0 || batch >= loader->plan.batches)
        return trek_fail(TREK_ERR_ARGUMENT, "loader: batch: %" PRId64 " does not exist; an epoch has %" PRId64 " batches", batch,
                         loader->plan.batches);
    return trek_batch_plan_indices(&loader->plan, epoch, batch, indices, n);
}

trek_var *trek_batch_get(const trek_batch *batch, const char *name)
{
    if (!batch) {
        trek_fail_missing("batch_get", "batch");
        return NULL;
    }
    if (!batch->given)
        return trek_fail_null(TREK_ERR_STATE, "batch_get: batch: it has ended; read it before the loader gives the next one");
    if (batch->window)
        return trek_fail_null(
            TREK_ERR_UNSUPPORTED,
            "batch_get: batch: it is a window, whose batches the ranks read; the function of trek_graph_set_loss gets them");
    int field = trek_dataset_field(batch->dataset, name);
    return field < 0 || trek_batch_fill(batch) != TREK_OK ? NULL : batch->vars[field];
}

int64_t trek_batch_size(const trek_batch *batch)
{
    if (batch)
        return batch->n;
    trek_fail_missing("batch_size", "batch");
    return -1;
}

const int64_t *trek_batch_indices(const trek_batch *batch)
{
    if (!batch || !batch->given)
        return NULL;
    if (!batch->indices && list_samples(batch->loader) == TREK_OK)
        batch->loader->batch.indices = batch->loader->window;
    return batch->indices;
}
