/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/pass/dry_pass.h"

#include "autograd/var_internal.h"
#include "data/loader_internal.h"
#include "data/loader_position.h"
#include "data/prefetch_internal.h"
#include "distributed/grains/digests.h"
#include "distributed/pass/kept.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/pass/shares.h"
#include "distributed/reduce/gradients.h"
#include "distributed/reduce/reduce.h"
#include "distributed/team/divided.h"
#include "distributed/team/memory.h"
#include "distributed/team/observations.h"
#include "distributed/team/step.h"
#include "distributed/team/step_policy.h"
#include "distributed/system/system.h"
#include "graph/batch_run.h"
#include "tensor/devices.h"
#include "tensor/rank_context.h"

typedef struct dry_pass {
    trek_step *s;
    trek_loader *loader;
    int64_t batch;           /* samples of all ranks */
    int64_t first[TREK_MAX_RANKS], rows[TREK_MAX_RANKS]; /* [local_ranks] of the batch */
    uint64_t rng_step;
    trek_dry_pass_result to;
    int one;                 /* the only rank that runs; -1: all run */
} dry_pass;

/* --- whether it can be measured ----------------------------------------------------------- */

static bool is_alone_on_gpu(const trek_team *team, int rank)
{
    trek_device own = trek_ranks_device(team->ranks, rank);
    for (int r = 0; r < team->local_ranks; r++)
        if (r != rank && trek_device_equal(trek_ranks_device(team->ranks, r), own))
            return false;
    return own.type != TREK_CPU;
}

bool trek_dry_pass_can_run(const trek_step *s)
{
    const trek_graph *graph = s->team->graph;
    const trek_graph_loader *graph_loader = graph->graph_loader;
    return graph_loader && graph_loader->loader && graph_loader->loss &&
        !trek_dataset_is_stream(trek_loader_dataset(graph_loader->loader)) && trek_graph_learns(graph) &&
        !trek_team_meets(s->team) && graph->layout.n_states == 0;
}

/* --- a rank ------------------------------------------------------------------------------- */

/* Keeps copies of the buffers, or puts them back. */
static trek_status copy_buffers(const trek_replica *model, trek_tensor **copies, bool back)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < model->n_buffers && status == TREK_OK; k++) {
        trek_tensor *buffer = model->buffers[k]->data;
        if (back)
            status = trek_tensor_copy_from(buffer, copies[k]);
        else if (!(copies[k] = trek_tensor_clone(buffer)))
            status = trek_error_status();
    }
    return status;
}

/* Who is told of gradients. */
typedef struct completion {
    const rank_replica *own;
    bool sends;
    trek_digest *digest;     /* NULL: not wanted */
    trek_grain_taker taker;  /* of grains; sums NULL: none */
    int64_t products;        /* bytes that it would take */
} completion;

static bool foresee(int k, trek_tensor *grad, trek_tensor *x, void *arg)
{
    completion *to = arg;
    to->products += trek_grain_sums_foresee(k, grad, x, &to->taker);
    return false;
}

/* In a pass as many grains may wait as there are slots. */
static void note_products(const dry_pass *c, const completion *to)
{
    trek_grain_slots *slots = &to->taker.sums->slots;
    int64_t grains = (c->batch + c->s->grain - 1) / c->s->grain, bytes = to->products * (grains < slots->n ? grains : slots->n);
    slots->product_bytes = bytes > slots->product_bytes ? bytes : slots->product_bytes;
}

static void complete(int k, void *arg)
{
    const completion *to = arg;
    const trek_leaf *leaf = to->own->model->params[k]->leaf;
    if (to->digest && leaf->has_grad && leaf->grad->data->contiguous)
        trek_digest_add(to->digest, (uint64_t)k << 32, leaf->grad->data->data,
                        (size_t)leaf->grad->data->numel * trek_dtype_size((trek_dtype)leaf->grad->data->dtype));
    if (to->sends)
        trek_reducer_complete(k, to->own->reducer);
}

static trek_status run_rows(const dry_pass *c, int rank)
{
    const rank_replica *own = &c->s->team->replicas[rank];
    trek_reader *reader = trek_ranks_reader(c->s, rank, c->loader);
    trek_batch *batch = reader ? trek_reader_rows(reader, 0, 0, c->first[rank], c->rows[rank]) : NULL;
    if (!batch)
        return trek_error_status();
    trek_batch_run run = { .graph_loader = c->s->team->graph->graph_loader, .scaler = trek_ranks_scaler(c->s, rank),
                           .leaves = own->model->params, .n_leaves = own->model->n_params, .denominator = (double)c->batch,
                           .backward = true };
    bool on_host = own->arena->backend->host_accessible;
    completion to = { .own = own, .sends = c->s->team->divides_grads,
                      .digest = c->to.gradients && on_host ? &c->to.gradients[rank] : NULL };
    const trek_comm *carrier = trek_step_carrier(c->s, rank);
    bool carries = c->s->grain == 0; /* the buckets of a grain are added to sums at once */
    if (to.sends)
        trek_reducer_begin(own->reducer, carries ? trek_ranks_giving_back(c->s, carrier, (trek_sending){ 0 })
                                                 : (trek_sending){ .gives_back = true, .lags = !on_host });
    run.complete = to.sends || to.digest ? complete : NULL;
    if (c->s->grains && c->s->grain > 0 && on_host && !to.sends) {
        to.taker = (trek_grain_taker){ .sums = &c->s->grains->sums[rank], .arena = own->arena };
        run.product = foresee;
    }
    run.arg = &to;
    trek_pass_sum sum = { 0 };
    trek_rank_context before = trek_rank_here;
    trek_rank_here.first_sample = batch->first;
    trek_rank_here.rows = batch->n;
    trek_rank_here.global_rows = c->batch;
    trek_rank_here.rng_step = c->rng_step;
    const trek_module_watch *watch = c->to.kept ? trek_module_watch_set(&c->to.kept[rank].watch) : NULL;
    int64_t start = trek_now_ns();
    trek_status status = trek_graph_run_batch(own->graph, batch, &run, &sum);
    if (status == TREK_OK && c->to.ns && !on_host)
        status = trek_device_sync(own->arena->device);
    if (c->to.ns)
        c->to.ns[rank] = trek_now_ns() - start;
    if (c->to.kept)
        trek_module_watch_set(watch);
    trek_rank_here = before;
    if (status == TREK_OK && c->to.gradients && !on_host)
        c->to.gradients[rank] = trek_digests_gradients(own->arena);
    if (c->s->team->divides_grads)
        trek_reducer_rest(own->reducer);
    if (to.taker.sums)
        note_products(c, &to);
    trek_pass_sum_clear(&sum);
    trek_reader_end_batch(reader);
    return status;
}

static trek_status run_rank(int rank, void *arg)
{
    const dry_pass *c = arg;
    const rank_replica *own = &c->s->team->replicas[rank];
    if (c->rows[rank] == 0 || (c->one >= 0 && c->one != rank))
        return TREK_OK;
    trek_tensor **copies = trek_calloc((size_t)own->model->n_buffers + 1, sizeof *copies);
    trek_text recorded = trek_observations_take(own->graph);
    trek_scope scope = trek_scope_begin();
    trek_status status = copies && scope.depth && !recorded.failed ? copy_buffers(own->model, copies, false) : TREK_ERR_MEMORY;
    if (status == TREK_OK) {
        status = run_rows(c, rank);
        trek_status back = copy_buffers(own->model, copies, true);
        status = status == TREK_OK ? back : status;
    }
    trek_scope_end(scope);
    trek_text dropped = trek_observations_take(own->graph);
    trek_text_clear(&dropped);
    if (status == TREK_OK && recorded.length > 0)
        status = trek_observations_unpack(own->graph, recorded.data, (int64_t)recorded.length);
    trek_text_clear(&recorded);
    for (int k = 0; copies && k < own->model->n_buffers; k++)
        trek_tensor_release(copies[k]);
    trek_free(copies);
    trek_graph_clear_traces(own->graph);
    return status;
}

/* --- the caller's side --------------------------------------------------------------------- */

/* Finds the rows of each rank: what it will have in a step, at most. */
static trek_status plan(dry_pass *c)
{
    const trek_batch_plan *plan = trek_loader_plan(c->loader);
    int64_t at, n, counts[TREK_MAX_RANKS];
    c->batch = plan->batch_size;
    trek_batch_plan_cut(plan, 0, NULL, &at, &n);
    trek_status status = trek_ranks_split(c->s, n, counts);
    for (int r = 0; r < c->s->team->local_ranks && status == TREK_OK; r++) {
        c->first[r] = at;
        c->rows[r] = counts[r];
        at += counts[r];
        int64_t alone = trek_workload_window(c->s->pace.workload) > 0 || !c->s->policy->sums ? c->batch : c->s->grain;
        if (alone > 0) {
            c->first[r] = 0;
            c->rows[r] = alone < c->batch ? alone : c->batch;
        }
    }
    return status;
}

static trek_memory_account *account_of(const dry_pass *c, int rank)
{
    trek_memory_account **accounts = c->s->team->memory->accounts;
    return accounts ? accounts[trek_memory_row_of(c->s->team, rank)] : NULL;
}

static void begin_measuring(const dry_pass *c, int rank)
{
    trek_device device = trek_ranks_device(c->s->team->ranks, rank);
    if (device.type != TREK_CPU)
        trek_memory_reset_peak(device);
    else if (account_of(c, rank))
        trek_memory_account_reset_peak(account_of(c, rank));
}

/* Adds what a rank has needed to its row. */
static void end_measuring(const dry_pass *c, int rank)
{
    const trek_team *team = c->s->team;
    trek_device device = trek_ranks_device(team->ranks, rank);
    const trek_memory_account *account = account_of(c, rank);
    int row = trek_memory_row_of(team, rank);
    int64_t needed = -1;
    if (device.type == TREK_CPU && account) {
        int64_t room = c->s->grains ? c->s->grains->sums[rank].slots.product_room : 0;
        needed = trek_memory_account_peak(account) - trek_memory_account_used(account) + room;
    } else if (is_alone_on_gpu(team, rank)) {
        trek_memory_stats stats = trek_memory_usage(device);
        needed = stats.allocated_peak - stats.allocated;
    }
    if (needed < 0)
        return;
    const trek_dry_pass_result *to = &c->to;
    to->activations[row] = (to->activations[row] > 0 ? to->activations[row] : 0) + needed;
    to->samples[row] = c->rows[rank] > to->samples[row] ? c->rows[rank] : to->samples[row];
    if (to->needed)
        to->needed[rank] = needed;
}

/* Ranks that have an account together run one after another: how much of their peaks coincides depends on chance. */
static trek_status run_all(dry_pass *c)
{
    const trek_team *team = c->s->team;
    int turns = team->shared ? team->local_ranks : 1;
    trek_status status = TREK_OK;
    for (int k = 0; k < turns && status == TREK_OK; k++) {
        c->one = team->shared ? k : -1;
        for (int r = 0; r < team->local_ranks; r++)
            begin_measuring(c, r);
        status = trek_ranks_call(team->ranks, run_rank, c);
        trek_divided_forget(team); /* what is left of a pass counts with it */
        for (int r = 0; r < team->local_ranks && status == TREK_OK; r++)
            if (c->one < 0 || c->one == r)
                end_measuring(c, r);
    }
    return status;
}

/* Runs a pass so that it is known which bucket of parameters follows which; the pass that is measured then gathers ahead. */
static trek_status learn_order(const dry_pass *measured)
{
    int64_t activations[TREK_MAX_RANKS] = { 0 }, samples[TREK_MAX_RANKS] = { 0 };
    dry_pass c = *measured;
    c.to = (trek_dry_pass_result){ .activations = activations, .samples = samples };
    trek_status status = run_all(&c), dropped = trek_ranks_zero(c.s);
    return status == TREK_OK ? dropped : status;
}

/* The last grain of a batch may be shorter, and kernels for few rows may need more memory than those for many. */
static trek_status run_rest(const dry_pass *whole)
{
    const trek_step *s = whole->s;
    int64_t rest = s->grain > 0 ? whole->batch % s->grain : 0, activations[TREK_MAX_RANKS], samples[TREK_MAX_RANKS];
    dry_pass c = *whole;
    if (rest == 0)
        return TREK_OK;
    c.to = (trek_dry_pass_result){ .activations = activations, .samples = samples };
    for (int r = 0; r < s->team->local_ranks; r++)
        c.rows[r] = rest;
    for (int k = 0; k < s->team->memory->n_own; k++)
        activations[k] = -1, samples[k] = 0;
    trek_status status = run_all(&c);
    for (int k = 0; k < s->team->memory->n_own && status == TREK_OK; k++)
        if (activations[k] > whole->to.activations[k])
            whole->to.activations[k] = activations[k];
    return status;
}

trek_status trek_dry_pass(trek_step *s, const trek_dry_pass_result *result)
{
    dry_pass c = { .s = s, .rng_step = trek_rank_here.rng_step, .to = *result };
    for (int k = 0; k < s->team->memory->n_own; k++)
        result->activations[k] = -1, result->samples[k] = 0;
    for (int r = 0; r < s->team->local_ranks; r++) {
        if (result->needed)
            result->needed[r] = -1;
        if (result->gradients)
            result->gradients[r] = (trek_digest){ { 0, 0 } };
        if (result->kept)
            trek_kept_begin(&result->kept[r], trek_ranks_device(s->team->ranks, r), account_of(&c, r));
    }
    if (!trek_dry_pass_can_run(s))
        return TREK_OK;
    c.loader = s->team->graph->graph_loader->loader;
    trek_status status = plan(&c);
    if (status == TREK_OK)
        status = trek_ranks_prepare_scaler(s);
    trek_team_follow_flags(s->team);
    if (status == TREK_OK && s->team->gathers_ahead)
        status = learn_order(&c);
    if (status == TREK_OK)
        status = run_all(&c);
    if (status == TREK_OK)
        status = run_rest(&c);
    trek_status dropped = trek_ranks_zero(s);
    return status == TREK_OK ? dropped : status;
}
