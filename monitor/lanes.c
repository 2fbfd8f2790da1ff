/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank of this process is doing, from the spans that trek reports of a step. A span counts without the
 * spans inside it, so that no time is counted twice; the names tell what a rank does in them. Samples are always
 * counted. For short steps of a single rank, spans are observed only in some steps, which stand for the steps before
 * them. */
#include <math.h>
#include <string.h>

#include "monitor/monitor_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

enum { NOTHING, COMPUTING, WAITING, REDUCING, DEEPEST = 8, THREADS = 256 };

typedef struct lane {
    atomic_llong ns[4], samples;
    atomic_int now;
} lane;

static lane lanes[TREK_MONITOR_LANES];

/* Finished spans of a thread, to be subtracted from the enclosing one. It is identified by its number, because
 * thread-local memory is scarce. On threads beyond the limit, spans count whole. */
typedef struct ended_spans {
    int n;
    struct { int64_t start, ns; } spans[DEEPEST];
} ended_spans;
static ended_spans ended_of[THREADS];

static const struct { const char *name; int what; } known[] = {
    { "forward", COMPUTING }, { "backward", COMPUTING }, { "optimizer", COMPUTING }, { "replay", COMPUTING },
    { "take in", COMPUTING }, { "loader wait", WAITING }, { "reduce", REDUCING }, { "sync", REDUCING }, { "average", REDUCING },
    { "buffers", REDUCING }, { "bucket", REDUCING }, { "reduce processes", REDUCING },
    { "gather parameters", REDUCING },
};

static int what_is(const char *name)
{
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (known[k].name == name || strcmp(known[k].name, name) == 0)
            return known[k].what;
    return NOTHING;
}

static lane *mine(void)
{
    const trek_rank_context *context = trek_rank_context_mine;
    int rank = context ? context->rank : 0;
    return rank >= 0 && rank < TREK_MONITOR_LANES ? &lanes[rank] : NULL;
}

static void enter(const char *name)
{
    lane *l = mine();
    if (l)
        atomic_store_explicit(&l->now, what_is(name), memory_order_relaxed);
}

static int64_t take_inner(ended_spans *ended, int64_t start)
{
    int64_t inner = 0;
    while (ended->n && ended->spans[ended->n - 1].start >= start)
        inner += ended->spans[--ended->n].ns;
    return inner;
}

/* Returns a span's time without what is inside it. */
static int64_t count_own(ended_spans *ended, int64_t start, int64_t ns)
{
    int64_t inner = take_inner(ended, start);
    if (ended->n == DEEPEST)
        memmove(ended->spans, ended->spans + 1, (size_t)--ended->n * sizeof *ended->spans);
    ended->spans[ended->n].start = start;
    ended->spans[ended->n++].ns = ns;
    return ns - inner;
}

static void leave(const char *name, int64_t start_ns, int64_t end_ns)
{
    lane *l = mine();
    int what = what_is(name), thread = trek_trace_thread();
    int64_t own = end_ns - start_ns;
    if (thread >= 0 && thread < THREADS)
        own = count_own(&ended_of[thread], start_ns, own);
    if (!l || !what)
        return;
    atomic_fetch_add_explicit(&l->ns[what], own > 0 ? own : 0, memory_order_relaxed);
    atomic_store_explicit(&l->now, NOTHING, memory_order_relaxed);
}

static void count_samples(int64_t n)
{
    lane *l = mine();
    if (l && n > 0)
        atomic_fetch_add_explicit(&l->samples, n, memory_order_relaxed);
}

static const trek_trace_watch all = { enter, leave, count_samples }, samples_only = { NULL, NULL, count_samples };

/* --- steps that stand for others: of lane 0 ------------------------------------------------------ */

enum { AWAKE, RESTING, SAMPLING };
static atomic_int phase;
static int64_t rest_ns, sample_ns;   /* when the rest began, and the step being observed; of the thread that trains */
static int64_t before_sample[4];

void trek_monitor_lanes_listen(bool on)
{
    atomic_store(&phase, AWAKE);
    atomic_store(&trek_trace_watcher, on ? &all : NULL);
}

void trek_monitor_lanes_rest(int64_t now)
{
    rest_ns = now;
    atomic_store(&phase, RESTING);
    atomic_store(&trek_trace_watcher, &samples_only);
}

static bool wake(int to)
{
    int resting = RESTING;
    bool woken = atomic_compare_exchange_strong(&phase, &resting, to);
    if (woken)
        atomic_store(&trek_trace_watcher, &all);
    return woken;
}

void trek_monitor_lanes_wake(void) { wake(AWAKE); }

void trek_monitor_lanes_sample(int64_t now)
{
    sample_ns = now;
    for (int k = 0; k < 4; k++)
        before_sample[k] = atomic_load_explicit(&lanes[0].ns[k], memory_order_relaxed);
    wake(SAMPLING);
}

void trek_monitor_lanes_sampled(int64_t now)
{
    int sampling = SAMPLING;
    if (!atomic_compare_exchange_strong(&phase, &sampling, AWAKE) || now <= sample_ns)
        return;
    double unseen = (double)(sample_ns - rest_ns) / (double)(now - sample_ns);
    for (int k = 0; k < 4; k++) {
        int64_t seen = atomic_load_explicit(&lanes[0].ns[k], memory_order_relaxed) - before_sample[k];
        atomic_fetch_add_explicit(&lanes[0].ns[k], llround((double)seen * unseen), memory_order_relaxed);
    }
}

/* --- what was counted ----------------------------------------------------------------------------- */

trek_monitor_lane trek_monitor_lane_read(int rank)
{
    if (rank < 0 || rank >= TREK_MONITOR_LANES)
        return (trek_monitor_lane){ 0 };
    lane *l = &lanes[rank];
    return (trek_monitor_lane){ atomic_load(&l->ns[COMPUTING]), atomic_load(&l->ns[WAITING]), atomic_load(&l->ns[REDUCING]),
        atomic_load(&l->samples), atomic_load(&l->now) };
}

int64_t trek_monitor_samples(int ranks)
{
    int64_t samples = 0;
    for (int k = 0; k < ranks && k < TREK_MONITOR_LANES; k++)
        samples += atomic_load_explicit(&lanes[k].samples, memory_order_relaxed);
    return samples;
}
