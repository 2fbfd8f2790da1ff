/* SPDX-License-Identifier: Apache-2.0 */
/* Words that the processes of one machine have in common: a file in memory of process 0, which the others open as segment.c
 * does. */
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "distributed/comm/shared/shared_internal.h"
#include "distributed/system/system.h"

enum { HEAD = 64 }; /* bytes before the words: the nonce */

typedef struct words_ticket {
    int32_t pid, fd;         /* fd -1: there is no file */
    uint64_t nonce[2];
} words_ticket;

/* Makes the file on process 0. */
static void make_file(words_ticket *mine, size_t bytes)
{
    size_t size = sizeof mine->nonce;
    mine->fd = trek_shared_file_new("trek-words", bytes);
    if (mine->fd >= 0 && getrandom(mine->nonce, size, 0) == (ssize_t)size &&
        pwrite(mine->fd, mine->nonce, size, 0) == (ssize_t)size)
        return;
    if (mine->fd >= 0)
        close(mine->fd);
    mine->fd = -1;
}

void trek_shared_words_end(trek_shared_words *w)
{
    if (w->memory)
        munmap(w->memory, w->bytes);
    *w = (trek_shared_words){ 0 };
}

trek_status trek_shared_words_make(trek_comm *comm, int64_t n, trek_shared_words *w)
{
    int world = comm->world, mapped[TREK_MAX_RANKS];
    words_ticket mine = { .pid = (int32_t)trek_process_id(), .fd = -1 }, all[TREK_MAX_RANKS];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = HEAD + (size_t)n * sizeof *w->words;
    *w = (trek_shared_words){ .bytes = (bytes + page - 1) / page * page };
    if (!comm->control || !trek_control_same_machine(comm->control))
        return TREK_OK;
    if (comm->rank == 0)
        make_file(&mine, w->bytes);
    trek_status status = trek_comm_gather_bytes(comm, &mine, sizeof mine, all);
    if (status == TREK_OK && all[0].fd >= 0)
        w->memory = trek_shared_file_open(all[0].pid, all[0].fd, w->bytes, all[0].nonce);
    int own = w->memory != NULL;
    if (status == TREK_OK)
        status = trek_comm_gather_bytes(comm, &own, sizeof own, mapped); /* then nobody opens the file any more */
    bool every = status == TREK_OK;
    for (int r = 0; r < world && every; r++)
        every = mapped[r];
    if (mine.fd >= 0)
        close(mine.fd);
    if (!every)
        trek_shared_words_end(w);
    else
        w->words = (_Atomic uint64_t *)(void *)((char *)w->memory + HEAD);
    return status;
}
