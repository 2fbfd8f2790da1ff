/* SPDX-License-Identifier: Apache-2.0 */
/* A site: the ranks of a process, which make every step together and exactly, as in a job of one process; the results
 * of all processes are averaged in the background. So a site has a second stepper over the same replicas, without the
 * other processes. Its workload says how a batch is divided here; the job's workload says how many batches each
 * process gets. Rounds (distributed/background/) see one rank, the first: the caller's thread decides once whether an
 * average is taken in. */
#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/background/background.h"
#include "distributed/balance/workload.h"
#include "distributed/grains/grains.h"
#include "distributed/step/average.h"
#include "distributed/step/job_sync.h"
#include "distributed/step/overlap.h"
#include "distributed/step/rank_devices.h"
#include "distributed/step/stepper_ranks.h"
#include "graph/graph_loader_internal.h"
#include "tensor/rank_context.h"

/* --- who gets how much ------------------------------------------------------------------------------- */

static int process_of(const ranks_stepper *s, int rank)
{
    int p = 0;
    for (; p < s->processes && rank >= s->process_ranks[p]; p++)
        rank -= s->process_ranks[p];
    return p;
}

static bool are_given(const ranks_stepper *s, const trek_workload_opts *o) { return o->shares && o->n_shares == s->world_size; }

static trek_status share_ranks(ranks_stepper *s, const trek_workload_opts *o)
{
    double sum = 0;
    s->rank_shares = trek_calloc((size_t)s->world_size, sizeof *s->rank_shares);
    for (int r = 0; r < s->world_size && s->rank_shares; r++)
        sum += s->rank_shares[r] = are_given(s, o) ? o->shares[r] : 1;
    for (int r = 0; r < s->world_size && s->rank_shares; r++)
        s->rank_shares[r] /= sum;
    return trek_error_status();
}

/* Counts of batches: of fixed shares each process has the sum of its ranks' shares. A hint about a slow rank only
 * applies to its process if it is the only rank there. */
static trek_workload *workload_of_sites(const ranks_stepper *s, const trek_workload_opts *o)
{
    trek_workload_opts sites = *o;
    double shares[TREK_MAX_RANKS] = { 0 };
    int slow = process_of(s, o->elche.slow_rank);
    for (int r = 0; r < s->world_size; r++)
        shares[process_of(s, r)] += s->rank_shares[r];
    sites.balance = TREK_OFF;
    sites.shares = are_given(s, o) ? shares : NULL;
    sites.n_shares = s->processes;
    if (slow < s->processes) {
        sites.elche.slow_rank = s->process_ranks[slow] == 1 ? slow : 0;
        sites.elche.speed_ratio = s->process_ranks[slow] == 1 ? o->elche.speed_ratio : 0;
    }
    return trek_workload_new(s->processes, &sites);
}

/* Shares of a batch. */
static trek_workload *workload_of_ranks(const ranks_stepper *s, const trek_workload_opts *o)
{
    trek_workload_opts ranks = { .unequal = trek_ranks_devices_differ(s, s->first_rank, s->local_ranks), .balance = o->balance,
                                 .balancer = o->balancer };
    int slow = o->balancer.slow_rank - s->first_rank;
    bool has_any = false;
    for (int r = 0; r < s->local_ranks; r++)
        has_any |= s->rank_shares[s->first_rank + r] > 0;
    if (are_given(s, o) && has_any) {
        ranks.shares = s->rank_shares + s->first_rank;
        ranks.n_shares = s->local_ranks;
    }
    bool is_here = slow >= 0 && slow < s->local_ranks;
    ranks.balancer.slow_rank = is_here ? slow : 0;
    ranks.balancer.speed_ratio = is_here ? o->balancer.speed_ratio : 0;
    ranks.unequal |= ranks.balancer.speed_ratio > 1;
    return trek_workload_new(s->local_ranks, &ranks);
}

/* --- making ---------------------------------------------------------------------------------------------- */

/* Everything that is not listed here belongs to the job's stepper. */
static trek_status make_stepper(ranks_stepper *s, const trek_workload_opts *o)
{
    ranks_stepper *site = trek_calloc(1, sizeof *site);
    if (!site)
        return trek_error_status();
    *site = *s;
    s->site = site;
    site->comm = NULL;
    site->process = site->first_rank = 0;
    site->processes = 1;
    site->world_size = site->local_ranks;
    site->mixed = (site->kinds & (site->kinds - 1)) != 0;
    site->averages = site->sites = false;
    site->rank_shares = NULL;
    memset(&site->reduce_watch, 0, sizeof site->reduce_watch);
    site->workload = workload_of_ranks(s, o);
    site->ms = trek_calloc((size_t)site->local_ranks, sizeof *site->ms);
    site->units = trek_calloc((size_t)site->local_ranks, sizeof *site->units);
    site->starved_ms = trek_calloc((size_t)site->local_ranks, sizeof *site->starved_ms);
    site->starvation = (trek_starvation){ 0 };
    bool made = trek_starvation_begin(&site->starvation, site->local_ranks) == TREK_OK && site->starved_ms;
    return made && site->workload && site->ms && site->units ? trek_overlap_plan(site) : trek_error_status();
}

trek_status trek_site_make(ranks_stepper *s, const trek_workload_opts *o)
{
    trek_status status = share_ranks(s, o);
    if (status == TREK_OK && !(s->workload = workload_of_sites(s, o)))
        status = trek_error_status();
    return status == TREK_OK && s->local_ranks > 1 ? make_stepper(s, o) : status;
}

void trek_site_end(ranks_stepper *s)
{
    ranks_stepper *site = s->site;
    s->site = NULL;
    trek_free(s->rank_shares);
    s->rank_shares = NULL;
    if (!site)
        return;
    trek_workload_free(&site->workload);
    trek_stopwatch_clear(&site->reduce_watch);
    trek_var_release(site->tape_leaf);
    trek_free(site->ms);
    trek_free(site->units);
    trek_free(site->starved_ms);
    trek_starvation_end(&site->starvation);
    trek_free(site);
}

/* --- a pass ------------------------------------------------------------------------------------------------ */

typedef struct site_pass {
    ranks_stepper *s;
    const trek_batch *window;
    uint64_t rng_step, rng_draw; /* random numbers depend on a sample's position in the epoch, not on its rank */
    int64_t samples;
} site_pass;

/* Makes a step of all ranks. The schedule depends on the steps of all processes, which the graph counts at the end of
 * the pass. */
static trek_status step(ranks_stepper *site)
{
    rank_replica *first = &site->replicas[0];
    int64_t *steps = &site->base.graph->settings.steps, before = *steps;
    *steps += first->steps_ahead + first->local_steps;
    trek_status status = trek_ranks_step(&site->base);
    *steps = before;
    for (int k = 0; k < first->arena->n_segments; k++)
        first->trained[k] |= site->any[k] && first->arena->segments[k].param->requires_grad;
    first->local_steps += status == TREK_OK;
    return status;
}

static trek_status train_batch(site_pass *p, const trek_batch *batch)
{
    ranks_stepper *site = p->s->site;
    trek_scope scope = trek_scope_begin();
    trek_status status = scope.depth ? TREK_OK : trek_error_status();
    if (status == TREK_OK && !trek_ranks_train_batch(&site->base, batch))
        status = trek_status_or(TREK_ERR_CALLBACK);
    if (status == TREK_OK)
        status = step(site);
    trek_rank_here.rng_step = p->rng_step;
    trek_rank_here.rng_draw = p->rng_draw;
    p->s->grad_norm = site->grad_norm;
    p->samples += status == TREK_OK ? batch->n : 0;
    trek_scope_end(scope);
    return status;
}

static trek_status run_batches(site_pass *p, int64_t first, int64_t end)
{
    ranks_stepper *s = p->s;
    trek_loader *loader = s->base.graph->graph_loader->loader;
    trek_reader *reader = trek_ranks_reader(s, 0, loader);
    trek_status status = reader ? trek_reader_begin(reader, p->window->epoch, first, end) : trek_error_status();
    for (int64_t k = first; k < end && status == TREK_OK; k++) {
        trek_batch *batch = trek_reader_next(reader);
        if (!batch)
            return trek_error_status();
        batch->first = (k - p->window->first_batch) * trek_loader_plan(loader)->batch_size;
        batch->global = batch->n;
        status = trek_background_before(s->background, 0);
        if (status == TREK_OK)
            status = train_batch(p, batch);
        if (status == TREK_OK)
            trek_background_ran(s->background, 0, batch->n);
        trek_job_sync_say(s, "forward and backward", false);
    }
    return status;
}

/* Removes everything of a step that has failed; the error remains. */
static void drop_step(ranks_stepper *site)
{
    trek_overlap_finish(site);
    trek_ranks_zero(site);
    trek_ranks_reset(site);
    trek_ranks_merged(site);
}

static trek_status run_rounds(site_pass *p)
{
    ranks_stepper *s = p->s;
    trek_allotment a;
    trek_status status;
    while (trek_background_next(s->background, 0, &a, &status)) {
        for (int k = 0; k < a.n && status == TREK_OK; k++)
            status = run_batches(p, a.of[k].first, a.of[k].end);
        if (status != TREK_OK)
            drop_step(s->site);
        if ((status = trek_background_done(s->background, 0, status)) != TREK_OK)
            break;
    }
    if (s->replicas[0].reader)
        trek_reader_rest(s->replicas[0].reader, 0, 0);
    return status;
}

/* For the job this is a pass of the first rank, which has trained everything. */
static trek_status run_pass(site_pass *p)
{
    ranks_stepper *s = p->s;
    int64_t batches = 0, first = p->window->first_batch;
    double total;
    trek_status status = trek_average_begin_pass(s);
    trek_ranks_follow_flags(s);
    if (status == TREK_OK) {
        status = trek_background_begin(s->background, first, first + p->window->batches);
        if (status == TREK_OK)
            status = run_rounds(p);
        status = trek_background_end(s->background, status, &batches);
    }
    s->window_batches += batches;
    s->replicas[0].samples += p->samples;
    if (status != TREK_OK) {
        trek_job_sync_failed(s, status);
        return status;
    }
    status = trek_job_sync_pass(s, 0, &total, NULL);
    trek_step_passed(&s->step, true);
    s->windowed = true;
    return status;
}

trek_var *trek_site_train_batch(trek_stepper *stepper, const trek_batch *batch)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    if (s->grains)
        return trek_grains_train_batch(s, batch);
    if (!s->site || !s->background || !batch->window || !trek_graph_learns(stepper->graph))
        return trek_ranks_train_batch(stepper, batch);
    site_pass pass = { .s = s, .window = batch, .rng_step = trek_rank_here.rng_step, .rng_draw = trek_rank_here.rng_draw };
    trek_job_sync_say(s, "forward and backward", true);
    if (run_pass(&pass) != TREK_OK)
        return NULL;
    /* the mean is among what the ranks have observed */
    return trek_var_from(trek_tensor_full(trek_dims_none(), (double)NAN, TREK_F32, trek_ranks_device(s->ranks, 0)));
}
