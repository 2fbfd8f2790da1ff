/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/comm/shared/lent.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "distributed/comm/served.h"
#include "distributed/comm/shared/shared_internal.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

/* The beginning of a file, whose first pages have nothing else. */
typedef struct lent_rank {
    _Atomic uint64_t updates; /* begun and ended: odd in the middle of one */
    atomic_uint lock;         /* FREE, HELD, or AWAITED: held, and others wait for it */
    uint32_t unused;
} lent_rank;

typedef struct lent_head {
    uint64_t nonce[2];
    lent_rank ranks[];        /* of the process */
} lent_head;

enum { FREE, HELD, AWAITED };
#define LOOK_NS 100000000 /* how long one waits for a lock before it looks whether the group has ended */

/* What each process announces to the others. */
typedef struct lent_ticket {
    int32_t pid, fd;          /* fd -1: it has failed */
    int32_t ranks;
    uint64_t each, nonce[2];  /* each: the bytes of a rank */
    char machine[128];        /* trek_control_machine */
} lent_ticket;

struct trek_lent {
    const char *what;
    struct trek_control *control; /* borrowed */
    trek_lent_take_fn take;   /* NULL: the others only read */
    void *arg;
    int rank, world, n, fd;
    int ranks;                /* of this process */
    size_t each;              /* the bytes of a rank */
    lent_head **heads;        /* [world] of the mapped files; of this process, too; NULL: on another machine, */
    trek_served *served;      /* which is read over a connection; NULL: there is none */
    int *first;               /* [world + 1] the first rank of each process */
    trek_pages **pages;       /* [ranks * n] borrowed */
    size_t *offsets;          /* [n] among those of a rank */
};

bool trek_lent_is_possible(const trek_comm *comm) { return comm->control; }

/* --- beginning and end --------------------------------------------------------------------- */

/* Returns where a rank's piece begins in the file of a process that has so many ranks, and (k = 0) how long a file is. */
static size_t place_of(const trek_lent *lent, int ranks, int rank, int k)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), head = sizeof(lent_head) + (size_t)ranks * sizeof(lent_rank);
    return (head + page - 1) / page * page + (size_t)rank * lent->each + lent->offsets[k];
}

static size_t bytes_of(const trek_lent *lent, int ranks) { return place_of(lent, ranks, ranks, 0); }

static trek_status share(const trek_lent *lent, int ranks)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < ranks * lent->n && status == TREK_OK; k++)
        status = trek_pages_share(lent->pages[k], lent->fd, place_of(lent, lent->ranks, k / lent->n, k % lent->n));
    return status;
}

static trek_status take_back(const trek_lent *lent, int ranks)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < ranks * lent->n && status == TREK_OK; k++)
        status = trek_pages_unshare(lent->pages[k]);
    return status;
}

static trek_status release(trek_lent *lent)
{
    trek_served_free(&lent->served);
    trek_status status = lent->pages ? take_back(lent, lent->ranks) : TREK_OK;
    for (int r = 0; r < lent->world && lent->heads; r++)
        if (lent->heads[r])
            munmap(lent->heads[r], bytes_of(lent, lent->first[r + 1] - lent->first[r]));
    if (lent->fd >= 0)
        close(lent->fd);
    trek_free(lent->heads);
    trek_free(lent->first);
    trek_free(lent->pages);
    trek_free(lent->offsets);
    trek_free(lent);
    return status;
}

static trek_status make_file(trek_lent *lent, lent_ticket *mine)
{
    ssize_t size = sizeof mine->nonce;
    size_t bytes = bytes_of(lent, lent->ranks);
    int fd = trek_shared_file_new("trek-lent", bytes);
    if (fd < 0 || getrandom(mine->nonce, (size_t)size, 0) != size || pwrite(fd, mine->nonce, (size_t)size, 0) != size) {
        if (fd >= 0)
            close(fd);
        return trek_fail(TREK_ERR_MEMORY, "%s: this process has no memory of %zu bytes to share with other processes", lent->what,
                         bytes);
    }
    lent->fd = fd;
    return share(lent, lent->ranks);
}

static trek_lent *make(const trek_comm *comm, const trek_lent_opts *opts)
{
    int ranks = opts->ranks, n = opts->n;
    trek_lent *lent = trek_calloc(1, sizeof *lent);
    if (!lent)
        return NULL;
    *lent = (trek_lent){ .what = opts->what, .control = comm->control, .take = opts->take, .arg = opts->arg, .rank = comm->rank,
                         .world = comm->world, .n = n, .fd = -1, .ranks = ranks };
    lent->heads = trek_calloc((size_t)lent->world, sizeof *lent->heads);
    lent->first = trek_calloc((size_t)lent->world + 1, sizeof *lent->first);
    lent->offsets = trek_calloc((size_t)n, sizeof *lent->offsets);
    lent->pages = trek_calloc((size_t)ranks * (size_t)n, sizeof *lent->pages);
    if (!lent->heads || !lent->first || !lent->offsets || !lent->pages) {
        trek_free(lent->pages); /* which are shared by now if there are any */
        lent->pages = NULL;
        return release(lent), NULL;
    }
    for (int k = 0; k < n; k++) {
        lent->offsets[k] = lent->each;
        lent->each += trek_pages_bytes(opts->pages[k]);
    }
    memcpy(lent->pages, opts->pages, (size_t)ranks * (size_t)n * sizeof *lent->pages);
    return lent;
}

/* Maps the files of all processes of this machine. Returns the first process whose file cannot be mapped, or -1. */
static int map_all(trek_lent *lent, const lent_ticket *all)
{
    for (int r = 0; r < lent->world; r++) {
        if (all[r].fd < 0 || all[r].each != lent->each)
            return r;
        lent->first[r + 1] = lent->first[r] + all[r].ranks;
        if (strcmp(all[r].machine, all[lent->rank].machine) != 0)
            continue;
        lent->heads[r] = trek_shared_file_open(all[r].pid, all[r].fd, bytes_of(lent, all[r].ranks), all[r].nonce);
        if (!lent->heads[r])
            return r;
    }
    return -1;
}

/* Returns whether some process is on another machine than process 0. */
static bool some_are_far(const lent_ticket *all, int world)
{
    for (int r = 1; r < world; r++)
        if (strcmp(all[r].machine, all[0].machine) != 0)
            return true;
    return false;
}

static bool copy_for(void *arg, const trek_served_ask *ask, void *to, uint64_t *version);
static bool take_from(void *arg, const trek_served_ask *ask, void *data);

/* own: the status of what this process has done so far. */
static trek_status exchange(trek_comm *comm, trek_lent *lent, const lent_ticket *mine, const char *what, trek_status own)
{
    lent_ticket all[TREK_MAX_RANKS];
    int32_t missing[TREK_MAX_RANKS], first = -1;
    trek_status status = trek_comm_gather_bytes(comm, mine, sizeof *mine, all);
    if (status == TREK_OK && own == TREK_OK)
        first = map_all(lent, all);
    if (status == TREK_OK) /* then nobody opens a file any more */
        status = trek_comm_gather_bytes(comm, &first, sizeof first, missing);
    if (status != TREK_OK || own != TREK_OK)
        return own != TREK_OK ? own : status;
    for (int r = 0; r < comm->world; r++)
        if (all[r].fd < 0)
            return trek_fail(TREK_ERR_PEER, "%s: process %d failed", what, r);
    for (int r = 0; r < comm->world; r++)
        if (missing[r] >= 0)
            return trek_fail(TREK_ERR_UNSUPPORTED,
                             "%s: process %d cannot map the memory of process %d, so that it cannot read its "
                             "part",
                             what, r, missing[r]);
    return some_are_far(all, comm->world) ? trek_served_new(comm, &(trek_served_opts){ what, copy_for, take_from, lent },
                                                             &lent->served) : TREK_OK;
}

trek_status trek_lent_new(trek_comm *comm, const trek_lent_opts *opts, trek_lent **made)
{
    lent_ticket mine = { .pid = (int32_t)trek_process_id(), .fd = -1, .ranks = opts->ranks };
    trek_lent *lent = make(comm, opts);
    trek_status own = lent ? make_file(lent, &mine) : TREK_ERR_MEMORY;
    if (own == TREK_OK) {
        mine.fd = lent->fd;
        mine.each = lent->each;
        snprintf(mine.machine, sizeof mine.machine, "%s", trek_control_machine(comm->control));
    }
    own = exchange(comm, lent, &mine, opts->what, own);
    *made = own == TREK_OK ? lent : NULL;
    if (own != TREK_OK && lent)
        release(lent);
    return own;
}

trek_status trek_lent_free(trek_lent **address)
{
    trek_lent *lent = *address;
    *address = NULL;
    return lent ? release(lent) : TREK_OK;
}

/* --- reading and writing --------------------------------------------------------------------- */

static trek_status has_other(const trek_lent *lent, int process, uint64_t own, uint64_t others)
{
    if (others & 1)
        return trek_fail(TREK_ERR_PEER,
                         "%s: process %d, which keeps a part of them, is or has ended in the middle of a step; load a "
                         "checkpoint",
                         lent->what, process);
    return trek_fail(TREK_ERR_PEER,
                     "%s: process %d, which keeps a part of them, has made %llu steps, and this process %llu; load a "
                     "checkpoint",
                     lent->what, process, (unsigned long long)others / 2, (unsigned long long)own / 2);
}

/* Copies bytes of a process whose file is mapped, and returns the number of its updates. If that has changed meanwhile, the
 * result is odd, too. */
static uint64_t copy_mapped(const trek_lent *lent, int process, const trek_served_ask *ask, void *to)
{
    lent_head *head = lent->heads[process];
    int ranks = lent->first[process + 1] - lent->first[process];
    uint64_t before = atomic_load_explicit(&head->ranks[ask->rank].updates, memory_order_acquire);
    memcpy(to, (const char *)head + place_of(lent, ranks, ask->rank, ask->k) + ask->offset, (size_t)ask->bytes);
    atomic_thread_fence(memory_order_acquire);
    uint64_t after = atomic_load_explicit(&head->ranks[ask->rank].updates, memory_order_relaxed);
    return before == after ? after : after | 1;
}

/* Runs on the thread that answers other machines. */
static bool copy_for(void *arg, const trek_served_ask *ask, void *to, uint64_t *version)
{
    const trek_lent *lent = arg;
    if (ask->rank < 0 || ask->rank >= lent->ranks || ask->k < 0 || ask->k >= lent->n)
        return false;
    size_t bytes = trek_pages_bytes(lent->pages[ask->rank * lent->n + ask->k]);
    if (ask->bytes > bytes || ask->offset > bytes - ask->bytes)
        return false;
    *version = copy_mapped(lent, lent->rank, ask, to);
    return true;
}

/* Runs on that thread, too. */
static bool take_from(void *arg, const trek_served_ask *ask, void *data)
{
    const trek_lent *lent = arg;
    return lent->take && ask->rank >= 0 && ask->rank < lent->ranks &&
        lent->take(lent->arg, ask->rank, ask->k, ask->offset, data, ask->bytes);
}

static int process_of(const trek_lent *lent, int rank)
{
    int process = 0;
    while (rank >= lent->first[process + 1])
        process++;
    return process;
}

trek_status trek_lent_read(const trek_lent *lent, const trek_lent_piece *piece, void *to)
{
    int process = process_of(lent, piece->rank);
    const trek_served_ask ask = { piece->rank - lent->first[process], piece->k, piece->offset, piece->bytes };
    uint64_t own = atomic_load_explicit(&lent->heads[lent->rank]->ranks[piece->reader].updates, memory_order_relaxed),
        others = own;
    trek_status status = TREK_OK;
    if (lent->heads[process])
        others = copy_mapped(lent, process, &ask, to);
    else
        status = trek_served_read(lent->served, process, &ask, to, &others);
    return status != TREK_OK || (others == own && !(own & 1)) ? status : has_other(lent, process, own, others);
}

char *trek_lent_memory(const trek_lent *lent, int rank, int k)
{
    int process = process_of(lent, rank), ranks = lent->first[process + 1] - lent->first[process];
    return lent->heads[process] ? (char *)lent->heads[process] + place_of(lent, ranks, rank - lent->first[process], k) : NULL;
}

static atomic_uint *lock_of(const trek_lent *lent, int rank)
{
    int process = process_of(lent, rank);
    return &lent->heads[process]->ranks[rank - lent->first[process]].lock;
}

/* Ulrich Drepper, Futexes Are Tricky: the second mutex. */
trek_status trek_lent_lock(const trek_lent *lent, int rank)
{
    atomic_uint *lock = lock_of(lent, rank);
    unsigned free = FREE;
    if (atomic_compare_exchange_strong(lock, &free, HELD))
        return TREK_OK;
    while (atomic_exchange(lock, AWAITED) != FREE) {
        trek_word_wait(lock, AWAITED, true, trek_now_ns() + LOOK_NS);
        if (trek_control_ended(lent->control)) /* who holds it may have died */
            return trek_control_fail(lent->control);
    }
    return TREK_OK;
}

void trek_lent_unlock(const trek_lent *lent, int rank)
{
    atomic_uint *lock = lock_of(lent, rank);
    if (atomic_exchange(lock, FREE) == AWAITED)
        trek_word_wake(lock, true);
}

trek_status trek_lent_give(const trek_lent *lent, const trek_lent_piece *piece, const void *bytes)
{
    int process = process_of(lent, piece->rank);
    return trek_served_give(lent->served, process, &(trek_served_ask){ piece->rank - lent->first[process], piece->k,
                                                                       piece->offset, piece->bytes }, bytes);
}

void trek_lent_begin_update(trek_lent *lent, int rank)
{
    atomic_fetch_add_explicit(&lent->heads[lent->rank]->ranks[rank].updates, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

void trek_lent_end_update(trek_lent *lent, int rank)
{
    atomic_fetch_add_explicit(&lent->heads[lent->rank]->ranks[rank].updates, 1, memory_order_release);
}

trek_status trek_lent_withhold(trek_lent *lent)
{
    trek_status status = take_back(lent, 1);
    if (status != TREK_OK)
        share(lent, 1);
    return status;
}

trek_status trek_lent_show(trek_lent *lent) { return share(lent, 1); }
