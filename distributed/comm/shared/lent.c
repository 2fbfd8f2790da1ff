/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/comm/shared/lent.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "distributed/comm/shared/shared_internal.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

/* The beginning of a file, whose first page has nothing else. */
typedef struct lent_head {
    uint64_t nonce[2];
    _Atomic uint64_t updates; /* begun and ended: odd in the middle of one */
} lent_head;

/* What each process announces to the others. */
typedef struct lent_ticket {
    int32_t pid, fd;          /* fd -1: it has failed */
    uint64_t bytes, nonce[2];
} lent_ticket;

struct trek_lent {
    const char *what;
    int rank, world, n, fd;
    size_t bytes;
    lent_head **heads;        /* [world] of the mapped files; of this process, too */
    trek_pages **pages;       /* [n] borrowed */
    size_t *offsets;          /* [n] in each file */
};

bool trek_lent_is_possible(const trek_comm *comm) { return comm->control && trek_control_same_machine(comm->control); }

/* --- beginning and end --------------------------------------------------------------------- */

static trek_status share(const trek_lent *lent)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < lent->n && status == TREK_OK; k++)
        status = trek_pages_share(lent->pages[k], lent->fd, lent->offsets[k]);
    return status;
}

static trek_status take_back(const trek_lent *lent)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < lent->n && status == TREK_OK; k++)
        status = trek_pages_unshare(lent->pages[k]);
    return status;
}

static trek_status release(trek_lent *lent)
{
    trek_status status = lent->pages ? take_back(lent) : TREK_OK;
    for (int r = 0; r < lent->world && lent->heads; r++)
        if (lent->heads[r])
            munmap(lent->heads[r], lent->bytes);
    if (lent->fd >= 0)
        close(lent->fd);
    trek_free(lent->heads);
    trek_free(lent->pages);
    trek_free(lent->offsets);
    trek_free(lent);
    return status;
}

static trek_status make_file(trek_lent *lent, lent_ticket *mine)
{
    ssize_t size = sizeof mine->nonce;
    int fd = trek_shared_file_new("trek-lent", lent->bytes);
    if (fd < 0 || getrandom(mine->nonce, (size_t)size, 0) != size || pwrite(fd, mine->nonce, (size_t)size, 0) != size) {
        if (fd >= 0)
            close(fd);
        return trek_fail(TREK_ERR_MEMORY, "%s: this process has no memory of %zu bytes to share with other processes", lent->what,
                         lent->bytes);
    }
    lent->fd = fd;
    return share(lent);
}

static trek_lent *make(const trek_comm *comm, trek_pages *const *pages, int n, const char *what)
{
    trek_lent *lent = trek_calloc(1, sizeof *lent);
    if (!lent)
        return NULL;
    *lent = (trek_lent){ .what = what, .rank = comm->rank, .world = comm->world, .n = n, .fd = -1,
                         .bytes = (size_t)sysconf(_SC_PAGESIZE) };
    lent->heads = trek_calloc((size_t)lent->world, sizeof *lent->heads);
    lent->offsets = trek_calloc((size_t)n, sizeof *lent->offsets);
    lent->pages = trek_calloc((size_t)n, sizeof *lent->pages);
    if (!lent->heads || !lent->offsets || !lent->pages)
        return release(lent), NULL;
    for (int k = 0; k < n; k++) {
        lent->pages[k] = pages[k];
        lent->offsets[k] = lent->bytes;
        lent->bytes += trek_pages_bytes(pages[k]);
    }
    return lent;
}

/* Returns the first process whose file this one cannot map, or -1. */
static int map_all(trek_lent *lent, const lent_ticket *all)
{
    for (int r = 0; r < lent->world; r++) {
        if (all[r].fd < 0 || all[r].bytes != lent->bytes)
            return r;
        lent->heads[r] = trek_shared_file_open(all[r].pid, all[r].fd, lent->bytes, all[r].nonce);
        if (!lent->heads[r])
            return r;
    }
    return -1;
}

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
    return TREK_OK;
}

trek_status trek_lent_new(trek_comm *comm, trek_pages *const *pages, int n, const char *what, trek_lent **made)
{
    lent_ticket mine = { .pid = (int32_t)trek_process_id(), .fd = -1 };
    trek_lent *lent = make(comm, pages, n, what);
    trek_status own = lent ? make_file(lent, &mine) : TREK_ERR_MEMORY;
    if (own == TREK_OK) {
        mine.fd = lent->fd;
        mine.bytes = lent->bytes;
    }
    own = exchange(comm, lent, &mine, what, own);
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

trek_status trek_lent_read(const trek_lent *lent, int process, int k, size_t offset, size_t bytes, void *to)
{
    const lent_head *head = lent->heads[process];
    uint64_t own = atomic_load_explicit(&lent->heads[lent->rank]->updates, memory_order_relaxed);
    uint64_t others = atomic_load_explicit(&head->updates, memory_order_acquire);
    if (others != own || (own & 1))
        return has_other(lent, process, own, others);
    memcpy(to, (const char *)head + lent->offsets[k] + offset, bytes);
    atomic_thread_fence(memory_order_acquire);
    others = atomic_load_explicit(&head->updates, memory_order_relaxed);
    return others == own ? TREK_OK : has_other(lent, process, own, others);
}

void trek_lent_begin_update(trek_lent *lent)
{
    atomic_fetch_add_explicit(&lent->heads[lent->rank]->updates, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

void trek_lent_end_update(trek_lent *lent)
{
    atomic_fetch_add_explicit(&lent->heads[lent->rank]->updates, 1, memory_order_release);
}

trek_status trek_lent_withhold(trek_lent *lent)
{
    trek_status status = take_back(lent);
    if (status != TREK_OK)
        share(lent);
    return status;
}

trek_status trek_lent_show(trek_lent *lent) { return share(lent); }
