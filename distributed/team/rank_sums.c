/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over the ranks of a run. The last rank to come adds up all ranks' values in place, while the others wait, and
 * gives each of them the result. */
#include "distributed/team/rank_sums.h"

#include <stdio.h>
#include <string.h>

#include "distributed/control/wait.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"

typedef struct sums_slot {
    trek_rank_collectives collectives; /* what layers of this rank see */
    trek_rank_sums *sums;
    int rank;
    bool takes_part, left, done; /* done: `values` holds the sum */
    double *values;
    int64_t count;
    int64_t made;               /* how many sums it has made in this run */
} sums_slot;

struct trek_rank_sums {
    trek_gate gate;             /* its word changes when waiting ranks should look */
    trek_lock lock;             /* guards everything below while ranks run */
    int local_ranks, expected, arrived;
    bool spin;
    bool busy;                  /* the last rank has come and adds up */
    bool interprocess;          /* the run's sums are over all processes */
    bool goes_back, made_before; /* the run goes backward through the run before it; that one made sums */
    int64_t deadline_ns;
    trek_comm *comm;
    trek_status status;         /* of the run; the first failure counts */
    char message[TREK_ERROR_SIZE];
    sums_slot slots[];
};

static trek_status sum_values(double *values, int64_t count, void *arg);

trek_rank_sums *trek_rank_sums_new(int local_ranks, bool spin)
{
    trek_rank_sums *sums = trek_block_alloc(sizeof *sums + (size_t)local_ranks * sizeof *sums->slots);
    if (!sums)
        return NULL;
    memset(sums, 0, sizeof *sums + (size_t)local_ranks * sizeof *sums->slots);
    if (!trek_lock_init(&sums->lock)) {
        trek_block_free(sums);
        return trek_fail_null(TREK_ERR_MEMORY, "graph_forward: no memory for the sums of %d ranks", local_ranks);
    }
    sums->local_ranks = local_ranks;
    sums->spin = spin;
    sums->deadline_ns = 600000000000;
    for (int r = 0; r < local_ranks; r++) {
        sums_slot *slot = &sums->slots[r];
        slot->sums = sums;
        slot->rank = r;
        slot->collectives = (trek_rank_collectives){ .sum = sum_values, .arg = slot };
    }
    return sums;
}

void trek_rank_sums_free(trek_rank_sums **address)
{
    if (!address || !*address)
        return;
    trek_lock_destroy(&(*address)->lock);
    trek_block_free(*address);
    *address = NULL;
}

void trek_rank_sums_set_comm(trek_rank_sums *sums, trek_comm *comm)
{
    sums->comm = comm;
}

void trek_rank_sums_set_deadline(trek_rank_sums *sums, int64_t ns) { sums->deadline_ns = ns; }

/* --- a run ----------------------------------------------------------------------------- */

/* Returns a rank that has made more than `than` sums, or waits for one; -1: none. Called with the lock held. */
static int rank_ahead(const trek_rank_sums *sums, int64_t than)
{
    for (int r = 0; r < sums->local_ranks; r++)
        if (sums->slots[r].takes_part && sums->slots[r].made > than)
            return r;
    return -1;
}

void trek_rank_sums_begin(trek_rank_sums *sums, const bool *participates, bool interprocess)
{
    trek_lock_acquire(&sums->lock);
    sums->made_before = rank_ahead(sums, 0) >= 0 || (sums->goes_back && sums->made_before);
    sums->goes_back = false;
    sums->expected = sums->arrived = 0;
    sums->busy = false;
    sums->interprocess = interprocess;
    sums->status = TREK_OK;
    for (int r = 0; r < sums->local_ranks; r++) {
        sums_slot *slot = &sums->slots[r];
        slot->takes_part = !participates || participates[r];
        slot->left = slot->done = false;
        slot->made = 0;
        sums->expected += slot->takes_part;
    }
    trek_lock_release(&sums->lock);
}

void trek_rank_sums_goes_back(trek_rank_sums *sums) { sums->goes_back = true; }

void trek_rank_sums_enter(trek_rank_sums *sums, int rank)
{
    sums_slot *slot = &sums->slots[rank];
    bool alone = sums->expected == 1 && !sums->interprocess;
    trek_rank_here.collectives = slot->takes_part && !alone ? &slot->collectives : NULL;
}

/* Fails the run for all who wait or are yet to come. Called with the lock held. */
static void fail_run(trek_rank_sums *sums, trek_status status, const char *message)
{
    if (sums->status != TREK_OK)
        return;
    sums->status = status;
    snprintf(sums->message, sizeof sums->message, "%s", message);
    atomic_fetch_add(&sums->gate.word, 1);
    trek_gate_wake(&sums->gate);
    if (sums->interprocess && sums->comm && ((sums->goes_back && sums->made_before) || rank_ahead(sums, 0) >= 0))
        trek_comm_abort(sums->comm, sums->message);
}

void trek_rank_sums_leave(trek_rank_sums *sums, int rank, trek_status status)
{
    sums_slot *slot = &sums->slots[rank];
    trek_rank_here.collectives = NULL;
    if (!slot->takes_part || slot->left)
        return;
    char message[TREK_ERROR_SIZE];
    trek_lock_acquire(&sums->lock);
    slot->left = true;
    int ahead = rank_ahead(sums, slot->made);
    if (status != TREK_OK) {
        char process[32] = "";
        if (sums->interprocess && sums->comm)
            snprintf(process, sizeof process, " of process %d", trek_comm_rank(sums->comm));
        snprintf(message, sizeof message, "rank %d%s failed after %lld sums over the ranks: %.700s", rank, process,
                 (long long)slot->made,
                 trek_error());
        fail_run(sums, TREK_ERR_PEER, message);
    } else if (ahead >= 0) {
        snprintf(message, sizeof message,
                 "rank %d ended after %lld sums over the ranks, rank %d waits for its %lldth: all ranks must run the same", rank,
                 (long long)slot->made, ahead, (long long)sums->slots[ahead].made);
        fail_run(sums, TREK_ERR_COMM, message);
    }
    trek_lock_release(&sums->lock);
}

/* --- one sum ----------------------------------------------------------------------------- */

/* Called before a rank's next sum, with the lock held: a rank that has left will not come. */
static void check_left(trek_rank_sums *sums, const sums_slot *slot)
{
    char message[TREK_ERROR_SIZE];
    for (int r = 0; r < sums->local_ranks; r++)
        if (sums->slots[r].takes_part && sums->slots[r].left) {
            snprintf(message, sizeof message,
                     "rank %d ended after %lld sums over the ranks, rank %d comes to its %lldth: all ranks must run the same", r,
                     (long long)sums->slots[r].made, slot->rank, (long long)slot->made);
            fail_run(sums, TREK_ERR_COMM, message);
        }
}

/* Called when all ranks wait. Returns NULL if their counts differ; the run has then failed. */
static sums_slot *first_of(trek_rank_sums *sums)
{
    sums_slot *first = NULL;
    char message[TREK_ERROR_SIZE];
    for (int r = 0; r < sums->local_ranks; r++) {
        sums_slot *slot = &sums->slots[r];
        if (!slot->takes_part)
            continue;
        if (!first)
            first = slot;
        if (slot->count == first->count)
            continue;
        snprintf(message, sizeof message, "sum %lld over the ranks: rank %d comes with %lld numbers, rank %d with %lld",
                 (long long)first->made, first->rank, (long long)first->count, slot->rank, (long long)slot->count);
        fail_run(sums, TREK_ERR_COMM, message);
        return NULL;
    }
    return first;
}

/* Adds up into the first rank's values, also over the processes, then copies the result to all ranks. */
static trek_status add_up(trek_rank_sums *sums, sums_slot *first)
{
    for (int r = first->rank + 1; r < sums->local_ranks; r++)
        if (sums->slots[r].takes_part)
            for (int64_t i = 0; i < first->count; i++)
                first->values[i] += sums->slots[r].values[i];
    trek_status status = TREK_OK;
    if (sums->interprocess && !sums->comm)
        status = trek_fail(TREK_ERR_STATE,
                           "graph_forward: a layer makes sums with other processes, with which the graph no longer trains");
    else if (sums->interprocess)
        status = trek_comm_run(sums->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM,
                                                             .dtype = TREK_F64,
                                                             .count = first->count, .in = first->values, .out = first->values });
    for (int r = first->rank + 1; r < sums->local_ranks && status == TREK_OK; r++)
        if (sums->slots[r].takes_part)
            memcpy(sums->slots[r].values, first->values, (size_t)first->count * sizeof *first->values);
    return status;
}

/* Called by the last rank to come, with the lock held. The others wait, and cannot give up while busy is set. */
static void finish_sum(trek_rank_sums *sums)
{
    sums_slot *first = first_of(sums);
    if (!first)
        return;
    sums->busy = true;
    trek_lock_release(&sums->lock);
    trek_status status = add_up(sums, first);
    trek_lock_acquire(&sums->lock);
    sums->busy = false;
    sums->arrived = 0;
    if (status != TREK_OK) {
        fail_run(sums, status, trek_error());
        return;
    }
    for (int r = 0; r < sums->local_ranks; r++)
        sums->slots[r].done = sums->slots[r].takes_part;
    atomic_fetch_add(&sums->gate.word, 1);
    trek_gate_wake(&sums->gate);
}

static void fail_late(trek_rank_sums *sums, const sums_slot *slot)
{
    char message[TREK_ERROR_SIZE], missing[128] = "";
    size_t used = 0;
    for (int r = 0; r < sums->local_ranks; r++)
        if (sums->slots[r].takes_part && sums->slots[r].made < slot->made && used < sizeof missing - 16)
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used ? ", " : "", r);
    snprintf(message, sizeof message, "sum %lld over the ranks: rank %s did not come within %g s, rank %d waits",
             (long long)slot->made,
             missing, (double)sums->deadline_ns * 1e-9, slot->rank);
    fail_run(sums, TREK_ERR_TIMEOUT, message);
}

/* Waits until the sum is done or the run has failed. Called with the lock held. */
static void wait_for_sum(trek_rank_sums *sums, const sums_slot *slot)
{
    int64_t deadline = sums->deadline_ns ? trek_now_ns() + sums->deadline_ns : 0;
    while (!slot->done && sums->status == TREK_OK) {
        unsigned word = atomic_load(&sums->gate.word);
        int64_t limit = sums->busy ? 0 : deadline; /* the processes' communicator has its own deadline */
        trek_lock_release(&sums->lock);
        bool changed = trek_gate_wait(&sums->gate, word, sums->spin, limit);
        trek_lock_acquire(&sums->lock);
        if (!changed && !sums->busy && !slot->done)
            fail_late(sums, slot);
    }
}

static trek_status sum_values(double *values, int64_t count, void *arg)
{
    sums_slot *slot = arg;
    trek_rank_sums *sums = slot->sums;
    char message[TREK_ERROR_SIZE];
    trek_lock_acquire(&sums->lock);
    slot->values = values;
    slot->count = count;
    slot->done = false;
    slot->made++;
    if (sums->status == TREK_OK)
        check_left(sums, slot);
    if (sums->status == TREK_OK) {
        int64_t since = trek_now_ns();
        if (++sums->arrived == sums->expected)
            finish_sum(sums);
        else
            wait_for_sum(sums, slot);
        trek_rank_here.waited_ns += trek_now_ns() - since;
    }
    trek_status status = slot->done ? TREK_OK : sums->status;
    memcpy(message, sums->message, sizeof message);
    trek_lock_release(&sums->lock);
    return status == TREK_OK ? TREK_OK : trek_fail(status, "%s", message);
}

/* --- of a communicator ------------------------------------------------------------------ */

typedef struct comm_sums {
    trek_rank_collectives base;
    atomic_int holders;
    trek_comm *comm;            /* NULL: it has ended */
} comm_sums;

static trek_status sum_over_comm(double *values, int64_t count, void *arg)
{
    const comm_sums *sums = arg;
    if (!sums->comm)
        return trek_fail(TREK_ERR_STATE, "forward: a layer makes sums over the ranks of a ddp wrapper that was freed");
    return trek_comm_run(sums->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_F64,
                                                       .count = count,
                                                       .in = values, .out = values });
}

static void hold_comm(const trek_rank_collectives *collectives, int more)
{
    comm_sums *sums = collectives->arg;
    if (atomic_fetch_add(&sums->holders, more) + more == 0)
        trek_free(sums);
}

const trek_rank_collectives *trek_comm_sums_new(trek_comm *comm)
{
    comm_sums *sums = trek_calloc(1, sizeof *sums);
    if (!sums)
        return NULL;
    sums->base = (trek_rank_collectives){ sum_over_comm, sums, hold_comm };
    atomic_init(&sums->holders, 1);
    sums->comm = comm;
    return &sums->base;
}

void trek_comm_sums_end(const trek_rank_collectives *collectives)
{
    if (!collectives)
        return;
    ((comm_sums *)collectives->arg)->comm = NULL;
    hold_comm(collectives, -1);
}
