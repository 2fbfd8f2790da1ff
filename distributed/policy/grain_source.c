/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/policy/grain_source.h"

#include "distributed/balance/handout.h"
#include "distributed/comm/comm_internal.h"
#include "distributed/grains/counter.h"
#include "distributed/pass/division.h"
#include "distributed/pass/shares.h"
#include "distributed/system/system.h"
#include "distributed/team/step.h"

/* The part of a pass that is divided among GPUs before it begins. */
#define AHEAD 0.5

/* --- ranks on CPUs ---------------------------------------------------------------------------- */

/* The rank has run its grains, if it had any. */
static void note_end(const trek_grain_call *call, const trek_grain_source *source, int rank)
{
    int64_t number = call->running[rank], size = call->s->grains->size, rows = size * call->running_n[rank], left;
    if (number < 0)
        return;
    left = call->pass->rows - number * size;
    double part = (double)(left < rows ? left : rows) / (double)size;
    trek_grain_pace_stop(source->pace, source->first_rank + rank, call->pass->backward ? part : 0, trek_now_ns());
}

/* Returns whether a process has died or left. Its ranks may still look as if they were about to take a grain. */
static bool some_are_gone(const trek_grain_call *call)
{
    return call->s->job.comm && trek_comm_ended(call->s->job.comm);
}

/* Takes grains, if the others would not be done earlier without this rank, or cannot be expected to take any. Otherwise it waits,
 * as it would have to at the end of the pass, and looks again. */
static int64_t next_by_pace(trek_grain_call *call, int rank, int64_t most, int64_t *n)
{
    trek_grain_source *source = call->source;
    int number = source->first_rank + rank;
    int64_t left, taken = -1;
    note_end(call, source, rank);
    while (taken < 0 && (left = source->left(source)) > 0 && !atomic_load_explicit(&call->failed, memory_order_relaxed)) {
        int64_t some = most > 1 ? trek_grain_pace_most(source->pace, number, left) : 1;
        some = most > 1 && most < some ? most : some;
        if (trek_grain_pace_takes(source->pace, number, left, trek_now_ns()) || some_are_gone(call))
            taken = source->take(source, some, n);
        else
            trek_sleep_ns(trek_grain_pace_pause(source->pace));
    }
    if (taken >= 0)
        trek_grain_pace_start(source->pace, number, *n, trek_now_ns());
    call->running[rank] = taken;
    call->running_n[rank] = *n;
    return taken;
}

static int64_t left_of_part(const trek_grain_source *source)
{
    return source->end - atomic_load_explicit(&source->next, memory_order_relaxed);
}

static int64_t take_of_part(trek_grain_source *source, int64_t most, int64_t *n)
{
    int64_t first = atomic_load_explicit(&source->next, memory_order_relaxed);
    do {
        *n = source->end - first < most ? source->end - first : most;
    } while (*n > 0 && !atomic_compare_exchange_weak_explicit(&source->next, &first, first + *n, memory_order_relaxed,
                                                              memory_order_relaxed));
    return *n > 0 ? first : -1;
}

static int64_t left_of_ranges(const trek_grain_source *source) { return trek_grain_ranges_left(&source->ranges); }
static int64_t take_of_ranges(trek_grain_source *source, int64_t most, int64_t *n)
{
    return trek_grain_ranges_take(&source->ranges, most, n);
}

static int64_t coming_of_ranges(trek_grain_call *call, int rank)
{
    const trek_grain_source *source = call->source;
    (void)rank;
    return trek_grain_ranges_expect(&source->ranges, call->s->job.local_ranks);
}

/* --- ranks on GPUs ---------------------------------------------------------------------------- */

/* Takes grains from the process's part. Returns how many, from *first on. */
static int64_t take_some(trek_grain_source *source, const trek_rank_grains *of, int64_t *first)
{
    int64_t n;
    *first = atomic_load_explicit(&source->next, memory_order_relaxed);
    do {
        n = trek_handout_next(source->end - *first, of->part, source->fastest, 1);
    } while (n > 0 && !atomic_compare_exchange_weak_explicit(&source->next, first, *first + n, memory_order_relaxed,
                                                             memory_order_relaxed));
    return n;
}

/* First what the rank was given, then what it takes. */
static int64_t next_by_share(trek_grain_call *call, int rank, int64_t most, int64_t *n)
{
    trek_grain_source *source = call->source;
    (void)most;
    *n = 1;
    trek_rank_grains *of = &source->of[rank];
    if (of->n == 0 && (of->n = take_some(source, of, &of->first)) == 0)
        return -1;
    of->n--;
    return of->first++;
}

/* A rank of a job takes one grain at a time. It takes none if others will have done what is left before it has done one. */
static int64_t next_of_ranges_by_share(trek_grain_call *call, int rank, int64_t most, int64_t *n)
{
    trek_grain_source *source = call->source;
    (void)most;
    int64_t left = trek_grain_ranges_left(&source->ranges);
    return trek_handout_next(left, source->of[rank].part, source->fastest, 1) > 0 ? trek_grain_ranges_take(&source->ranges, 1, n)
                                                                                : -1;
}

/* Finds the parts of n ranks that take from one place, and those of the process among them. */
static double set_parts(trek_grain_source *source, const double *shares, int n, int first, int local)
{
    double sum = 0, most = 0;
    for (int r = 0; r < n; r++) {
        sum += shares[r];
        most = shares[r] > most ? shares[r] : most;
    }
    for (int r = 0; r < local; r++)
        source->of[r] = (trek_rank_grains){ .part = sum > 0 ? shares[first + r] / sum : 1.0 / n };
    source->fastest = sum > 0 ? most / sum : 1.0 / n;
    return sum;
}

/* --- process 0 hands out ------------------------------------------------------------------------ */

/* A failure is the thread's error. */
static int64_t next_of_process_0(trek_grain_call *call, int rank, int64_t most, int64_t *n)
{
    int64_t number;
    (void)rank, (void)most;
    *n = 1;
    return trek_grain_counter_take(call->s->grains->counter, &number) == TREK_OK ? number : -1;
}

static int64_t coming_of_process_0(trek_grain_call *call, int rank)
{
    (void)rank;
    return trek_grain_counter_expect(call->s->grains->counter);
}

/* --- before a pass -------------------------------------------------------------------------------- */

/* Writes where the range of each process begins, and how fast it is: all processes divide the batch as they do for reading. */
static trek_status divide(const trek_grain_call *call, int64_t *first, double *speed)
{
    const trek_step *s = call->s;
    const double *shares = trek_ranks_shares(s);
    trek_division_of(call->pass->rows, first);
    for (int p = 0, at = 0; p < s->job.processes; p++) {
        speed[p] = 0;
        for (int r = 0; r < s->job.process_ranks[p]; r++)
            speed[p] += shares[at++];
        if (first[p] % s->grains->size != 0 && first[p] != call->pass->rows)
            return trek_fail(TREK_ERR_STATE, "graph_train_batch: batch: another graph divides the batches of this job in another "
                                             "way; give both the same .grain");
    }
    for (int p = 0; p <= s->job.processes; p++)
        first[p] = trek_grains_count(s->grains, first[p]);
    return TREK_OK;
}

/* Ranks take grains as their pace says. */
static void begin_pace(trek_grain_source *source, trek_grain_call *call, trek_grain_pace *pace, uint32_t serial, int first_rank)
{
    source->pace = pace;
    source->first_rank = first_rank;
    call->next = next_by_pace;
    for (int r = 0; r < call->s->team->local_ranks; r++)
        call->running[r] = -1;
    trek_grain_pace_begin(pace, serial, first_rank, call->s->team->local_ranks, trek_now_ns());
}

/* Processes of one machine take grains from each other's ranges. */
static trek_status plan_ranges(trek_grain_source *source, trek_grain_call *call)
{
    const trek_step *s = call->s;
    trek_grain_ranges *ranges = &source->ranges;
    uint32_t serial = (uint32_t)s->job.comm->calls; /* equal in all processes, and each pass makes a call */
    ranges->words = s->grains->words.words;
    ranges->process = s->job.process;
    ranges->processes = s->job.processes;
    ranges->serial = serial;
    source->left = left_of_ranges;
    source->take = take_of_ranges;
    call->coming = coming_of_ranges;
    call->next = next_of_ranges_by_share;
    set_parts(source, trek_ranks_shares(s), s->job.world_size, s->job.first_rank, s->job.local_ranks);
    if (s->team->on_host)
        begin_pace(source, call, &s->grains->pace_of_all, serial, s->job.first_rank);
    return divide(call, ranges->first, ranges->speed);
}

/* Process 0 hands out what is left of the ranges of all. */
static trek_status plan_far(trek_grain_call *call)
{
    int64_t first[TREK_MAX_RANKS + 1];
    double speed[TREK_MAX_RANKS];
    trek_status status = divide(call, first, speed);
    if (status == TREK_OK)
        trek_grain_counter_begin(call->s->grains->counter, &(trek_grain_division){ call->s->job.comm->calls, first, speed },
                                 call->s->job.local_ranks);
    call->next = next_of_process_0;
    call->coming = coming_of_process_0;
    return status;
}

/* The ranks of a process take the grains of its own part. */
static trek_status plan_part(trek_grain_source *source, trek_grain_call *call)
{
    const trek_step *s = call->s;
    const double *shares = trek_ranks_shares(s) + s->job.first_rank;
    int64_t counts[TREK_MAX_RANKS], at = call->batch->first / s->grains->size, n = trek_grains_count(s->grains, call->batch->n);
    int ranks = s->team->local_ranks;
    trek_status status = TREK_OK;
    source->end = at + n;
    source->left = left_of_part;
    source->take = take_of_part;
    call->next = next_by_share;
    if (s->team->on_host) {
        begin_pace(source, call, &s->grains->pace, s->grains->pace.serial + 1, 0);
    } else {
        double sum = set_parts(source, shares, ranks, 0, ranks);
        status = trek_handout_ahead(n, ranks > 1 ? AHEAD : 1, sum > 0 ? shares : NULL, ranks, counts);
        for (int r = 0; r < ranks && status == TREK_OK; r++) {
            source->of[r].first = at;
            source->of[r].n = counts[r];
            at += counts[r];
        }
    }
    atomic_init(&source->next, at);
    return status;
}

/* Streams are read by each process for itself. */
trek_status trek_grain_source_plan(trek_grain_source *source, trek_grain_call *call)
{
    const trek_step *s = call->s;
    const trek_grains *g = s->grains;
    bool any = call->pass->joint && trek_job_has_others(&s->job) && !trek_loader_plan(call->batch->loader)->feed;
    call->source = source;
    if (any && g->words.words && trek_grains_count(g, call->pass->rows) <= TREK_GRAIN_RANGES_MOST)
        return plan_ranges(source, call);
    return any && g->counter ? plan_far(call) : plan_part(source, call);
}
