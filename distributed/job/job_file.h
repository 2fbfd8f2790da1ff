/* SPDX-License-Identifier: Apache-2.0 */
/* A file in memory that one process of a job sends to others: the state of training for processes that come later, or that
 * continue without a process that has died. */
#ifndef TREK_DISTRIBUTED_JOB_JOB_FILE_H
#define TREK_DISTRIBUTED_JOB_JOB_FILE_H

#include "distributed/comm/comm_internal.h"
#include "distributed/system/system.h"

typedef struct trek_job_file {
    int fd;                  /* -1: none */
    char *memory;            /* its bytes; NULL: this process does not keep them */
    int64_t bytes;
    int64_t mapped;          /* bytes of the mapping, which may be longer than the file */
} trek_job_file;

/* Opens an empty file, or empties the one that *fd is (-1: none). Fails with MEMORY. */
trek_status trek_job_file_empty(int *fd);
/* Maps the bytes of a file; fd -1: of a new one with so many bytes. The file then has this descriptor. Fails with MEMORY. */
trek_status trek_job_file_map(trek_job_file *file, int fd, int64_t bytes);
/* Makes and maps a new file of so many bytes with memory for all of them, which takes time. Fails with MEMORY. */
trek_status trek_job_file_reserve(trek_job_file *file, int64_t bytes);
/* Gives a file another size, and maps it again if it has become longer than its mapping. Fails with MEMORY. */
trek_status trek_job_file_resize(trek_job_file *file, int64_t bytes);
/* Copies the bytes of `root` to the files of all processes, as a collective. A process without memory takes part, and keeps
 * nothing; it must know the number of bytes. Each piece counts as progress. */
trek_status trek_job_file_send(trek_comm *comm, const trek_job_file *file, int root);
/* Ends the mapping. The descriptor stays open. */
void trek_job_file_unmap(trek_job_file *file);
/* Ends the mapping, and closes the file. */
void trek_job_file_end(trek_job_file *file);

/* The same on a thread of its own: the system takes long to take much memory back, and other processes may wait for this one. */
typedef struct trek_job_file_ending {
    trek_job_file file;
    trek_thread thread;
    bool begun;
} trek_job_file_ending;
void trek_job_file_begin_end(trek_job_file_ending *ending, trek_job_file *file);
/* Waits until it has ended. Does nothing if no end was begun, or after a fork. */
void trek_job_file_await_end(trek_job_file_ending *ending);

#endif
