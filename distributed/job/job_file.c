/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/job/job_file.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tensor/memory_internal.h"

/* How much is sent at a time. */
#define PIECE ((int64_t)16 << 20)

static trek_status fail(void)
{
    return trek_fail(TREK_ERR_MEMORY, "job: no memory for the state of training: %s", strerror(errno));
}

trek_status trek_job_file_empty(int *fd)
{
    if (*fd < 0)
        *fd = memfd_create("trek-state", MFD_CLOEXEC);
    return *fd < 0 || ftruncate(*fd, 0) != 0 ? fail() : TREK_OK;
}

/* fd -1: of a new file. */
static trek_status map(trek_job_file *file, int fd, int64_t bytes, int flags)
{
    int own = fd < 0 ? memfd_create("trek-state", MFD_CLOEXEC) : fd;
    void *memory = MAP_FAILED;
    *file = (trek_job_file){ .fd = own, .bytes = bytes, .mapped = bytes };
    if (own >= 0 && (fd >= 0 || ftruncate(own, bytes) == 0))
        memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, own, 0);
    if (memory != MAP_FAILED) {
        file->memory = memory;
        return TREK_OK;
    }
    fail();
    if (fd < 0 && own >= 0) {
        close(own);
        file->fd = -1;
    }
    return TREK_ERR_MEMORY;
}

trek_status trek_job_file_map(trek_job_file *file, int fd, int64_t bytes) { return map(file, fd, bytes, 0); }

trek_status trek_job_file_reserve(trek_job_file *file, int64_t bytes) { return map(file, -1, bytes, MAP_POPULATE); }

trek_status trek_job_file_resize(trek_job_file *file, int64_t bytes)
{
    if (ftruncate(file->fd, bytes) != 0)
        return fail();
    file->bytes = bytes;
    if (file->memory && bytes <= file->mapped)
        return TREK_OK;
    trek_job_file_unmap(file);
    return map(file, file->fd, bytes, 0);
}

trek_status trek_job_file_send(trek_comm *comm, const trek_job_file *file, int root)
{
    int64_t piece = file->bytes < PIECE ? file->bytes : PIECE;
    char *dropped = file->memory ? NULL : trek_calloc((size_t)piece, 1);
    trek_status status = TREK_OK;
    if (!file->memory && !dropped) {
        trek_comm_abort(comm, "a process has no memory for a piece of the state"); /* the others wait for its part */
        return TREK_ERR_MEMORY;
    }
    for (int64_t at = 0; at < file->bytes && status == TREK_OK; at += piece) {
        int64_t count = file->bytes - at < piece ? file->bytes - at : piece;
        char *here = file->memory ? file->memory + at : dropped;
        status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_BROADCAST, .dtype = TREK_U8, .root = root,
                                                       .count = count, .in = here, .out = here });
    }
    trek_free(dropped);
    return status;
}

void trek_job_file_unmap(trek_job_file *file)
{
    if (file->memory)
        munmap(file->memory, (size_t)file->mapped);
    file->memory = NULL;
}

void trek_job_file_end(trek_job_file *file)
{
    trek_job_file_unmap(file);
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

static void *end(void *arg)
{
    trek_job_file_end(arg);
    return NULL;
}

void trek_job_file_begin_end(trek_job_file_ending *ending, trek_job_file *file)
{
    ending->file = *file;
    *file = (trek_job_file){ .fd = -1 };
    ending->begun = trek_thread_begin(&ending->thread, end, &ending->file) == 0;
    if (!ending->begun)
        trek_job_file_end(&ending->file);
}

void trek_job_file_await_end(trek_job_file_ending *ending)
{
    if (ending->begun && !trek_forked)
        trek_thread_join(ending->thread);
    ending->begun = false;
}
