/* SPDX-License-Identifier: Apache-2.0 */
/* Dividing a state that is kept twice anew: who has what, what is lost, and what goes where. */
#include <string.h>

#include "distributed/job/agreement.h"
#include "distributed/job/survival.h"
#include "distributed/reduce/sharded.h"
#include "distributed/reduce/twice.h"
#include "distributed/team/memory.h"
#include "distributed/team/replica.h"
#include "distributed/team/step.h"
#include "tensor/memory_account.h"
#include "tensor/trace.h"

/* Bytes that are sent at once. */
#define ROOM ((int64_t)4 << 20)

/* What each process says of itself. */
typedef struct card {
    int32_t sharer, sharers; /* its number at the last division, and theirs; -1: it has come since */
    int32_t joins, fresh, stale;
    double room;             /* what it may keep, in any unit */
} card;

typedef struct redivision {
    trek_step *s;
    trek_optimizer *optimizer; /* NULL: none yet */
    card *cards;             /* [processes] */
    int now[TREK_MAX_RANKS]; /* which process each sharer of the last division is; -1: it has died */
    trek_arena arena;        /* as it was: a copy whose members are borrowed, but for what a process that has come has made: */
    trek_optimizer old;      /* the same of the optimizer */
    double *weights;         /* of the last division; NULL: the arena's */
    int *owner;              /* the same of the owners */
    char *room;              /* [ROOM] */
    trek_ranks_cuts *cuts;   /* the last ones */
    double *weights_before;
    trek_optimizer_buffers buffers;
    int sharers_before, sharer_before;
    bool later;              /* nothing is moved */
    bool weighed, renewed;   /* the arena has the new weights; the optimizer has the new buffers */
} redivision;

static int processes_of(const redivision *x) { return x->s->job.processes; }
static trek_arena *arena_of(const redivision *x) { return x->s->team->replicas[0].arena; }

/* --- who is there ----------------------------------------------------------------------- */

/* Returns what this process can keep, by its budget; 1 in a job without budgets. */
static double room_of(const trek_step *s)
{
    const trek_team_memory *memory = s->team->memory;
    const trek_memory_row *row = &memory->rows[memory->first_own];
    bool any = false;
    for (int p = 0; p < s->job.processes; p++)
        any |= s->job.members[p].budgets & 1;
    int64_t whole = (s->team->divides_params ? 0 : row->params) + (s->team->divides_grads ? 0 : row->grads);
    int64_t left = row->budget - whole - row->other - (row->activations > 0 ? row->activations : 0);
    return !any ? 1 : left > 0 ? (double)left : 0;
}

static trek_status gather_cards(redivision *x)
{
    const trek_twice *twice = x->s->twice;
    card own = { .sharer = twice->sharer, .sharers = arena_of(x)->sharers, .joins = x->s->job.survival->joins,
                 .fresh = twice->fresh, .stale = twice->stale, .room = room_of(x->s) };
    if (!x->cards || !x->room)
        trek_comm_abort(x->s->job.comm, "a process has no memory to divide the optimizer's state");
    trek_status status = x->cards && x->room ? trek_comm_gather_bytes(x->s->job.comm, &own, sizeof own, x->cards)
        : TREK_ERR_MEMORY;
    for (int k = 0; k < TREK_MAX_RANKS; k++)
        x->now[k] = -1;
    for (int p = 0; status == TREK_OK && p < processes_of(x); p++)
        if (x->cards[p].sharer >= 0)
            x->now[x->cards[p].sharer] = p;
    return status;
}

/* Returns the first process that took part in the last division, or -1. fresh: that knows the counts of updates. */
static int first_of(const redivision *x, bool counts)
{
    for (int p = 0; p < processes_of(x); p++)
        if (counts ? !x->cards[p].fresh : x->cards[p].sharer >= 0)
            return p;
    return -1;
}

static trek_status broadcast(const redivision *x, int root, void *bytes, int64_t n)
{
    return trek_comm_run(x->s->job.comm, (trek_comm_call){ .kind = TREK_COMM_BROADCAST, .root = root, .dtype = TREK_U8,
                                                           .count = n, .in = bytes, .out = bytes });
}

static bool some(const redivision *x, bool (*is)(const card *card))
{
    bool any = false;
    for (int p = 0; p < processes_of(x); p++)
        any |= is(&x->cards[p]);
    return any;
}

static bool is_new(const card *card) { return card->sharer < 0; }
static bool joins(const card *card) { return card->joins; }
static bool is_stale(const card *card) { return card->stale; }
static bool needs_counts(const card *card) { return card->fresh && !card->joins; }

/* Returns whether those of the last division are all there, and the others have just come and get nothing yet: when these have
 * the state of the job it is divided among all, so nothing is moved before. */
static bool is_for_later(const redivision *x)
{
    int root = first_of(x, false), sharers = 0, others = 0;
    for (int p = 0; p < processes_of(x); p++) {
        sharers += !is_new(&x->cards[p]);
        others += is_new(&x->cards[p]) && !x->cards[p].joins;
    }
    return some(x, joins) && !some(x, is_stale) && root >= 0 && sharers == x->cards[root].sharers && others == 0;
}

/* Finds out how the state was divided, which a process that has come does not know. */
static trek_status find_last(redivision *x)
{
    int root = first_of(x, false), n = root < 0 ? 0 : x->cards[root].sharers;
    double weights[TREK_MAX_RANKS];
    trek_status status = TREK_OK;
    if (root >= 0 && some(x, is_new)) {
        memcpy(weights, arena_of(x)->weights, (size_t)arena_of(x)->sharers * sizeof *weights);
        status = broadcast(x, root, weights, n * (int64_t)sizeof *weights);
        if (status == TREK_OK)
            status = broadcast(x, root, x->s->twice->numbers, n * (int64_t)sizeof *x->s->twice->numbers);
    }
    x->arena = *arena_of(x);
    if (status == TREK_OK && x->s->twice->sharer < 0) {
        x->arena.weights = x->weights = trek_calloc((size_t)n + 1, sizeof *x->weights);
        x->arena.sharers = n;
        if (x->weights)
            memcpy(x->weights, weights, (size_t)n * sizeof *weights);
        if (x->weights && x->arena.owner)
            x->arena.owner = x->owner = trek_arena_keepers_of_segments(&x->arena);
        status = x->weights && (x->owner || !x->arena.owner) ? TREK_OK : TREK_ERR_MEMORY;
    }
    if (x->optimizer) {
        x->old = *x->optimizer;
        x->old.arena = &x->arena;
    }
    return status;
}

/* Finds the processes that have what two sharers kept; -1: it has died. */
static void find_living(const redivision *x, const trek_arena_keepers *keepers, int *living)
{
    for (int k = 0; k < 2; k++)
        living[k] = keepers->of[k] >= 0 ? x->now[keepers->of[k]] : -1;
}

static void note_lost(trek_twice *twice, const int *keepers)
{
    int first = twice->numbers[keepers[0]], second = keepers[1] >= 0 ? twice->numbers[keepers[1]] : first;
    twice->lost[0] = first < second ? first : second;
    twice->lost[1] = first < second ? second : first;
}

/* Returns whether something was divided, and nobody is left that took part in it, and notes it. */
static bool are_gone(const redivision *x)
{
    x->s->twice->gone |= first_of(x, false) < 0 && (x->optimizer || x->s->team->divides_params);
    return x->s->twice->gone;
}

/* Returns whether a part of the state has been lost with its keepers, and notes who they were. */
static bool is_lost(redivision *x)
{
    trek_twice *twice = x->s->twice;
    int living[2];
    for (int p = 0; p < x->arena.n_parts; p++)
        for (int64_t at = 0; at < x->arena.parts[p].count;) {
            trek_arena_keepers keepers = trek_arena_keepers_at(&x->arena, p, at);
            find_living(x, &keepers, living);
            at = keepers.end;
            if (living[0] >= 0 || living[1] >= 0 || keepers.of[0] < 0)
                continue;
            note_lost(twice, keepers.of);
            return true;
        }
    return false;
}

/* --- new cuts ----------------------------------------------------------------------------- */

/* A process that is alone shares with nobody: with a sharer that has nothing. */
static int weigh(const redivision *x, double *weights)
{
    double all = 0;
    for (int p = 0; p < processes_of(x); p++)
        all += weights[p] = x->cards[p].joins ? 0 : x->cards[p].room;
    for (int p = 0; p < processes_of(x) && all == 0; p++)
        weights[p] = !x->cards[p].joins;
    weights[processes_of(x)] = 0;
    return processes_of(x) > 2 ? processes_of(x) : 2;
}

/* Gives the arena other cuts, and the optimizer empty buffers for them. */
static trek_status divide(redivision *x)
{
    double weights[TREK_MAX_RANKS + 1];
    trek_optimizer_spec spec = { 0 };
    trek_arena *arena = arena_of(x);
    int sharers = weigh(x, weights);
    x->sharers_before = arena->sharers;
    x->sharer_before = arena->sharer;
    if (x->optimizer)
        spec = trek_optimizer_spec_again(&x->optimizer->groups[0].spec);
    trek_status status = trek_arena_set_sharers(arena, sharers, weights, &x->weights_before);
    if (status != TREK_OK)
        return status;
    x->weighed = true;
    x->s->team->sharers = sharers;
    status = trek_ranks_cut_bare(x->s, x->optimizer ? &spec : NULL, &x->cuts);
    if (status != TREK_OK || !x->optimizer)
        return status;
    status = trek_optimizer_renew(x->optimizer, &x->buffers);
    x->renewed = status == TREK_OK;
    return status == TREK_OK ? trek_device_update_read(x->optimizer) : status; /* the counts of updates */
}

/* Frees the old cuts, or puts them back. */
static void end(redivision *x, bool keep)
{
    trek_arena *arena = arena_of(x);
    if (x->renewed && !keep)
        trek_optimizer_exchange(x->optimizer, &x->buffers);
    trek_ranks_cut_end(&x->cuts, keep);
    if (x->weighed && !keep) {
        double *weights = arena->weights;
        arena->weights = x->weights_before;
        x->weights_before = weights;
        x->s->team->sharers = arena->sharers = x->sharers_before;
        arena->sharer = x->sharer_before;
    }
    trek_optimizer_buffers_clear(&x->buffers);
    trek_free(x->weights_before);
    trek_free(x->weights);
    trek_free(x->owner);
    trek_free(x->cards);
    trek_free(x->room);
}

/* --- moving ------------------------------------------------------------------------------- */

static bool has(const int *processes, int process) { return processes[0] == process || processes[1] == process; }

static bool on_host(const redivision *x) { return x->arena.backend->host_accessible; }

/* The others wait for what this process cannot copy. */
static trek_status copy(const redivision *x, void *to, trek_device to_device, const void *from, trek_device from_device,
                        int64_t bytes)
{
    trek_status status = x->arena.backend->copy_bytes(to, to_device, from, from_device, (size_t)bytes, NULL);
    if (status != TREK_OK)
        trek_comm_abort(x->s->job.comm, "a process cannot copy its part of the optimizer's state");
    return status;
}

/* Bytes that living processes keep, in memory of their devices, at `from` (NULL: not this one), and that others shall keep, at
 * `to`. */
typedef struct moving {
    int living[2];
    bool sent;               /* somebody needs them who has not kept them */
    const char *from;
    char *to;
    int64_t bytes;
} moving;

static trek_status move(const redivision *x, const moving *m)
{
    int root = m->living[0] >= 0 ? m->living[0] : m->living[1];
    bool gives = root == x->s->job.process, takes = m->to && !m->from;
    trek_device device = x->arena.device;
    trek_status status = TREK_OK;
    if (m->to && m->from && m->to != m->from)
        status = copy(x, m->to, device, m->from, device, m->bytes);
    for (int64_t at = 0, n; m->sent && at < m->bytes && status == TREK_OK; at += n) {
        n = m->bytes - at < ROOM ? m->bytes - at : ROOM;
        char *here = !on_host(x) ? x->room : gives ? (char *)(uintptr_t)m->from + at : takes ? m->to + at : x->room;
        if (gives && !on_host(x))
            status = copy(x, here, trek_cpu(0), m->from + at, device, n);
        if (status == TREK_OK)
            status = broadcast(x, root, here, n);
        if (status == TREK_OK && takes && !on_host(x))
            status = copy(x, m->to + at, device, here, trek_cpu(0), n);
    }
    return status;
}

/* Returns who keeps the elements from one on, before and from now on, and notes where both change next. */
static moving stretch_at(const redivision *x, int part, int64_t at, int64_t *end)
{
    trek_arena_keepers before = trek_arena_keepers_at(&x->arena, part, at), after = trek_arena_keepers_at(arena_of(x), part, at);
    moving m = { .sent = false };
    find_living(x, &before, m.living);
    for (int k = 0; k < 2; k++)
        m.sent |= after.of[k] >= 0 && !has(m.living, after.of[k]);
    m.from = has(m.living, x->s->job.process) ? "" : NULL; /* where, the caller knows */
    m.to = has(after.of, x->s->job.process) ? x->room : NULL;
    *end = before.end < after.end ? before.end : after.end;
    return m;
}

/* Gives all processes the parameters, if some have them only where they keep their state. */
static trek_status move_params(const redivision *x)
{
    trek_status status = TREK_OK;
    for (int p = 0; p < x->arena.n_parts && some(x, is_stale); p++) {
        const trek_arena_part *part = &x->arena.parts[p];
        size_t size = trek_dtype_size(part->dtype);
        for (int64_t at = 0; at < part->count && status == TREK_OK;) {
            trek_arena_keepers before = trek_arena_keepers_at(&x->arena, p, at);
            char *here = part->params->data + (size_t)at * size;
            moving m = { .sent = before.of[0] >= 0, .bytes = (before.end - at) * (int64_t)size };
            find_living(x, &before, m.living);
            m.from = has(m.living, x->s->job.process) ? here : NULL;
            m.to = here;
            status = move(x, &m);
            at = before.end;
        }
    }
    return status;
}

/* Moves a state with a number for each element, or block of them, or the masters. */
static trek_status move_even(const redivision *x, int kind, int p)
{
    const trek_tensor *before = trek_optimizer_own(&x->old, kind, p), *after = trek_optimizer_own(x->optimizer, kind, p);
    int64_t block = trek_optimizer_own_block(kind), size = (int64_t)trek_dtype_size((trek_dtype)after->dtype), end;
    trek_status status = TREK_OK;
    for (int64_t at = 0; at < x->arena.parts[p].count && status == TREK_OK; at = end) {
        moving m = stretch_at(x, p, at, &end);
        m.bytes = (end - at) / block * size;
        m.from = m.from ? before->data + trek_arena_place(&x->arena, p, at) / block * size : NULL;
        m.to = m.to ? after->data + trek_arena_place(arena_of(x), p, at) / block * size : NULL;
        status = move(x, &m);
    }
    return status;
}

/* Moves a state that has other numbers for each parameter. */
static trek_status move_uneven(const redivision *x, int kind, int p)
{
    const trek_tensor *before = trek_optimizer_own(&x->old, kind, p), *after = trek_optimizer_own(x->optimizer, kind, p);
    int64_t size = (int64_t)trek_dtype_size((trek_dtype)after->dtype), from, to, end;
    trek_status status = TREK_OK;
    trek_shape shape;
    for (int k = 0; k < x->arena.n_segments && status == TREK_OK; k++) {
        int64_t count = trek_optimizer_state_extent(x->optimizer, kind, k, &to, &shape);
        if (x->arena.segments[k].part != p || count == 0)
            continue;
        trek_optimizer_state_extent(&x->old, kind, k, &from, &shape);
        moving m = stretch_at(x, p, x->arena.segments[k].offset, &end);
        m.bytes = count * size;
        m.from = m.from ? before->data + from * size : NULL;
        m.to = m.to ? after->data + to * size : NULL;
        status = move(x, &m);
    }
    return status;
}

/* Moves divided parameters, whose pages have room for both divisions. */
static trek_status move_pages(const redivision *x, int p)
{
    const trek_arena_part *part = &x->arena.parts[p];
    int64_t size = (int64_t)trek_dtype_size(part->dtype), end;
    trek_status status = TREK_OK;
    for (int64_t at = 0; at < part->count && status == TREK_OK; at = end) {
        moving m = stretch_at(x, p, at, &end);
        char *here = part->params->data + at * size;
        m.bytes = (end - at) * size;
        m.from = m.from ? here : NULL;
        m.to = m.to ? here : NULL;
        status = move(x, &m);
    }
    return status;
}

static trek_status move_state(const redivision *x)
{
    trek_status status = TREK_OK;
    for (int p = 0; p < x->arena.n_parts && status == TREK_OK && x->s->team->divides_params; p++)
        status = move_pages(x, p);
    for (int kind = 0; kind < TREK_GATHERED && x->optimizer; kind++)
        for (int p = 0; p < x->arena.n_parts && status == TREK_OK; p++)
            if (trek_optimizer_own(x->optimizer, kind, p))
                status = trek_optimizer_is_uneven(x->optimizer, kind) ? move_uneven(x, kind, p) : move_even(x, kind, p);
    return status;
}

/* Without an optimizer nothing but parameters says what masters are. */
static trek_status fill_masters(const redivision *x)
{
    trek_arena *arena = arena_of(x);
    if (x->optimizer || !x->s->team->divides_params)
        return TREK_OK;
    for (int k = 0; k < arena->n_segments; k++)
        arena->segments[k].version = arena->segments[k].param->data->storage->version - 1;
    trek_status status = trek_arena_refresh_masters(arena);
    if (status != TREK_OK)
        trek_comm_abort(x->s->job.comm, "a process has no memory for its part of the parameters");
    return status;
}

/* How often a parameter has been updated, and what is known of its state. */
typedef struct update_count {
    int64_t steps;
    uint32_t written, ahead;
} update_count;

/* Tells processes that have come. */
static trek_status tell_counts(const redivision *x)
{
    const trek_arena *arena = arena_of(x);
    if (!x->optimizer || !some(x, needs_counts))
        return TREK_OK;
    update_count *counts = trek_calloc((size_t)arena->n_segments, sizeof *counts);
    if (!counts)
        trek_comm_abort(x->s->job.comm, "a process has no memory for counts of updates");
    for (int k = 0; k < arena->n_segments && counts; k++)
        counts[k] = (update_count){ arena->segments[k].steps, x->optimizer->written[k], arena->segments[k].ahead };
    trek_status status = counts ? broadcast(x, first_of(x, true), counts, arena->n_segments * (int64_t)sizeof *counts)
        : TREK_ERR_MEMORY;
    for (int k = 0; k < arena->n_segments && status == TREK_OK && x->s->twice->fresh; k++) {
        arena->segments[k].steps = counts[k].steps;
        arena->segments[k].ahead = counts[k].ahead;
        x->optimizer->written[k] = counts[k].written;
    }
    if (status == TREK_OK && x->s->twice->fresh)
        trek_device_update_forget(x->optimizer);
    trek_free(counts);
    return status;
}

/* --- the operation ------------------------------------------------------------------------ */

static trek_status redivide(redivision *x)
{
    trek_status status = gather_cards(x);
    x->later = status == TREK_OK && is_for_later(x);
    if (status == TREK_OK && !x->later && x->optimizer && x->s->twice->sharer >= 0) /* what it gives must fit the parameters */
        status = trek_arena_refresh_masters(arena_of(x));
    if (status == TREK_OK && are_gone(x))
        return TREK_OK;
    if (status == TREK_OK && !x->later)
        status = find_last(x);
    if (status == TREK_ERR_MEMORY)
        trek_comm_abort(x->s->job.comm, "a process has no memory to divide the optimizer's state");
    if (status != TREK_OK || x->later || is_lost(x))
        return status;
    status = move_params(x);
    if (status == TREK_OK)
        status = trek_replica_agree(x->s->job.comm, divide(x), "the optimizer's state");
    if (status == TREK_OK)
        status = move_state(x);
    if (status == TREK_OK)
        status = fill_masters(x);
    return status == TREK_OK ? tell_counts(x) : status;
}

static void conclude(redivision *x)
{
    trek_twice *twice = x->s->twice;
    for (int k = 0; k < x->arena.n_segments && x->s->team->divides_params && twice->fresh; k++)
        trek_tensor_bump(x->arena.segments[k].param->data);
    twice->settled = !some(x, joins);
    twice->sharer = x->s->job.process;
    twice->fresh &= x->s->job.survival->joins;
    twice->stale = false;
    for (int p = 0; p < processes_of(x); p++)
        twice->numbers[p] = trek_regroup_number(x->s->job.survival->regroup, p);
    trek_arena_note_masters(arena_of(x));
}

trek_status trek_twice_redivide(trek_step *s)
{
    redivision x = { .s = s, .optimizer = s->team->replicas[0].optimizer };
    int64_t start = trek_trace_enter("divide state");
    bool works = trek_memory_account_work(false); /* for a while there are two divisions */
    x.cards = trek_calloc((size_t)s->job.processes, sizeof *x.cards);
    x.room = trek_alloc((size_t)ROOM);
    trek_status status = redivide(&x);
    bool whole = status == TREK_OK && !x.later && s->twice->lost[0] < 0 && !s->twice->gone;
    if (status == TREK_OK)
        status = trek_survival_commit(&s->job);
    if (status == TREK_OK && whole)
        conclude(&x);
    end(&x, status == TREK_OK);
    trek_memory_account_work(works);
    trek_trace_end("divide state", start, s->job.processes);
    return status;
}
