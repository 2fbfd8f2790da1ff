/* SPDX-License-Identifier: Apache-2.0 */
/* A site: the ranks of a process, which make every step together and exactly, as in a job of one process; the results
 * of all processes are averaged in the background. So a site is a second step over the same team, in a job of one. Its workload
 * says how a batch is divided here; the job's workload says how many batches each process gets. Rounds (rounds.c)
 * see one rank, the first: the caller's thread decides once whether an average is taken in. */
#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/balance/workload.h"
#include "distributed/job/rank_devices.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/pass/shares.h"
#include "distributed/policy/exact.h"
#include "distributed/policy/policies.h"
#include "distributed/reduce/gradients.h"
#include "distributed/reduce/reduce.h"
#include "distributed/reduce/overlap.h"
#include "distributed/rounds/averaging.h"
#include "distributed/rounds/rounds.h"
#include "distributed/rounds/rounds_pass.h"
#include "distributed/rounds/site.h"
#include "distributed/team/step.h"
#include "graph/batch_run.h"
#include "tensor/rank_context.h"

/* --- who gets how much ------------------------------------------------------------------------------- */

static int process_of(const trek_step *s, int rank)
{
    int p = 0;
    for (; p < s->job.processes && rank >= s->job.process_ranks[p]; p++)
        rank -= s->job.process_ranks[p];
    return p;
}

static bool are_given(const trek_step *s, const trek_workload_opts *o) { return o->shares && o->n_shares == s->job.world_size; }

static trek_status share_ranks(trek_step *s, const trek_workload_opts *o)
{
    double sum = 0;
    s->pace.rank_shares = trek_calloc((size_t)s->job.world_size, sizeof *s->pace.rank_shares);
    for (int r = 0; r < s->job.world_size && s->pace.rank_shares; r++)
        sum += s->pace.rank_shares[r] = are_given(s, o) ? o->shares[r] : 1;
    for (int r = 0; r < s->job.world_size && s->pace.rank_shares; r++)
        s->pace.rank_shares[r] /= sum;
    return trek_error_status();
}

/* Counts of batches: of fixed shares each process has the sum of its ranks' shares. A hint about a slow rank only
 * applies to its process if it is the only rank there. */
static trek_workload *workload_of_sites(const trek_step *s, const trek_workload_opts *o)
{
    trek_workload_opts sites = *o;
    double shares[TREK_MAX_RANKS] = { 0 };
    int slow = process_of(s, o->elche.slow_rank);
    for (int r = 0; r < s->job.world_size; r++)
        shares[process_of(s, r)] += s->pace.rank_shares[r];
    sites.balance = TREK_OFF;
    sites.shares = are_given(s, o) ? shares : NULL;
    sites.n_shares = s->job.processes;
    if (slow < s->job.processes) {
        sites.elche.slow_rank = s->job.process_ranks[slow] == 1 ? slow : 0;
        sites.elche.speed_ratio = s->job.process_ranks[slow] == 1 ? o->elche.speed_ratio : 0;
    }
    return trek_workload_new(s->job.processes, &sites);
}

/* Shares of a batch. */
static trek_workload *workload_of_ranks(const trek_step *s, const trek_workload_opts *o)
{
    trek_workload_opts ranks = { .unequal = trek_ranks_devices_differ(&s->job, s->job.first_rank, s->team->local_ranks),
                                 .balance = o->balance,
                                 .balancer = o->balancer };
    int slow = o->balancer.slow_rank - s->job.first_rank;
    bool has_any = false;
    for (int r = 0; r < s->team->local_ranks; r++)
        has_any |= s->pace.rank_shares[s->job.first_rank + r] > 0;
    if (are_given(s, o) && has_any) {
        ranks.shares = s->pace.rank_shares + s->job.first_rank;
        ranks.n_shares = s->team->local_ranks;
    }
    bool is_here = slow >= 0 && slow < s->team->local_ranks;
    ranks.balancer.slow_rank = is_here ? slow : 0;
    ranks.balancer.speed_ratio = is_here ? o->balancer.speed_ratio : 0;
    ranks.unequal |= ranks.balancer.speed_ratio > 1;
    return trek_workload_new(s->team->local_ranks, &ranks);
}

/* --- making ---------------------------------------------------------------------------------------------- */

static trek_status make_step(trek_step *s, const trek_workload_opts *o)
{
    trek_step *site = trek_calloc(1, sizeof *site);
    if (!site)
        return trek_error_status();
    s->averaging->site = site;
    site->team = s->team;
    trek_job_begin(&site->job, NULL, s->team->local_ranks, s->team->kinds);
    site->policy = &trek_exact_policy;
    site->overlap.asked = s->overlap.asked;
    site->grad_norm = NAN;
    trek_ranks_begin(site);
    trek_status status = trek_pace_begin(site);
    if (status == TREK_OK && !(site->pace.workload = workload_of_ranks(s, o)))
        status = trek_error_status();
    return status == TREK_OK ? trek_overlap_plan(site) : status;
}

trek_status trek_site_make(trek_step *s, const trek_workload_opts *o)
{
    trek_status status = share_ranks(s, o);
    if (status == TREK_OK && !(s->pace.workload = workload_of_sites(s, o)))
        status = trek_error_status();
    return status == TREK_OK && s->team->local_ranks > 1 ? make_step(s, o) : status;
}

void trek_site_end(trek_step *s)
{
    trek_step *site = s->averaging ? s->averaging->site : NULL;
    if (!site)
        return;
    s->averaging->site = NULL;
    trek_pace_end(site);
    trek_var_release(site->overlap.tape_leaf);
    trek_job_end(&site->job);
    trek_free(site);
}

/* --- a pass ------------------------------------------------------------------------------------------------ */

typedef struct site_pass {
    trek_step *s;
    const trek_batch *window;
    uint64_t rng_step, rng_draw; /* random numbers depend on a sample's position in the epoch, not on its rank */
    int64_t samples;
} site_pass;

/* Makes a step of all ranks. The schedule depends on the steps of all processes, which the graph counts at the end of
 * the pass. */
static trek_status step(trek_step *site)
{
    rank_replica *first = &site->team->replicas[0];
    int64_t *steps = &site->team->graph->settings.steps, before = *steps;
    *steps += first->steps_ahead + first->local_steps;
    trek_status status = trek_ranks_step(site);
    *steps = before;
    for (int k = 0; k < first->arena->n_segments; k++)
        first->trained[k] |= site->team->any[k] && first->arena->segments[k].param->requires_grad;
    first->local_steps += status == TREK_OK;
    return status;
}

static trek_status train_batch(site_pass *p, const trek_batch *batch)
{
    trek_step *site = p->s->averaging->site;
    trek_scope scope = trek_scope_begin();
    trek_status status = scope.depth ? TREK_OK : trek_error_status();
    if (status == TREK_OK && !trek_ranks_train_batch(site, batch))
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

/* Removes everything of a step that has failed; the error remains. */
static void drop_step(trek_step *site)
{
    trek_overlap_finish(site);
    trek_ranks_zero(site);
    trek_ranks_reset(site);
    trek_step_merged(site);
}

static trek_status run_batch(void *arg, trek_batch *batch)
{
    batch->global = batch->n;
    return train_batch(arg, batch);
}

static void drop(void *arg) { drop_step(((site_pass *)arg)->s->averaging->site); }

/* For the job this is a pass of the first rank, which has trained everything. */
static trek_status run_pass(site_pass *p)
{
    trek_step *s = p->s;
    int64_t batches = 0, first = p->window->first_batch;
    double total;
    trek_status status = trek_average_begin_pass(s);
    trek_team_follow_flags(s->team);
    if (status == TREK_OK) {
        status = trek_rounds_begin(s->averaging->rounds, first, first + p->window->batches);
        if (status == TREK_OK)
            status = trek_rounds_run(s, 0, p->window, &(trek_rounds_way){ run_batch, drop, p });
        status = trek_rounds_end(s->averaging->rounds, status, &batches);
    }
    trek_average_count(s, batches);
    s->team->replicas[0].samples += p->samples;
    if (status != TREK_OK) {
        trek_job_sync_failed(s, status);
        return status;
    }
    status = trek_job_sync_pass(s, 0, &total, NULL);
    trek_ranks_passed(s, true);
    s->windowed = true;
    return status;
}

trek_var *trek_site_train(trek_step *s, const trek_batch *window)
{
    site_pass pass = { .s = s, .window = window, .rng_step = trek_rank_here.rng_step, .rng_draw = trek_rank_here.rng_draw };
    trek_job_say(&s->job, "forward and backward", true);
    if (run_pass(&pass) != TREK_OK)
        return NULL;
    /* the mean is among what the ranks have observed */
    return trek_var_from(trek_tensor_full(trek_dims_none(), (double)NAN, TREK_F32, trek_ranks_device(s->team->ranks, 0)));
}
