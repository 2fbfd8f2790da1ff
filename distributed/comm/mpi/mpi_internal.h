/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the MPI engine share: comm_mpi.c (handles, the caller's side),
 * comm_mpi_thread.c (the communication thread), comm_mpi_call.c (a call, as the
 * thread carries it out). */
#ifndef TREK_DISTRIBUTED_COMM_MPI_MPI_INTERNAL_H
#define TREK_DISTRIBUTED_COMM_MPI_MPI_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "distributed/comm/mpi/mpi.h"
#include "distributed/comm/mpi/mpi_table.h"
#include "distributed/control/wait.h"

enum { TREK_MPI_QUEUE = 256, TREK_MPI_SLOTS = 4, TREK_MPI_SMALL = 4096 };

/* What a rank tells the others before a call; small calls' data follow it. */
typedef struct trek_mpi_note {
    uint64_t number;
    int64_t count;
    int32_t kind, op, dtype, root, on_device, unused;
} trek_mpi_note;

/* A piece under way. */
typedef struct trek_mpi_slot {
    char *in, *out;
    trek_mpi_request request;
    int64_t first, count; /* elements of the call's count */
} trek_mpi_slot;

typedef enum trek_mpi_state { TREK_MPI_JOINING, TREK_MPI_IDLE, TREK_MPI_MEETING, TREK_MPI_NAMING, TREK_MPI_MOVING } trek_mpi_state;

typedef struct trek_mpi_comm {
    trek_comm base;
    const trek_mpi_table *table;
    atomic_int references;        /* the caller's, the thread's */

    /* of ended, status, message, and of the caller's memory: held while it is read or written on the caller's behalf */
    pthread_mutex_t lock;
    bool ended;
    trek_status status;
    char message[TREK_ERROR_SIZE];
    atomic_bool over;             /* ended, to be looked at without the lock */

    /* between caller and thread */
    trek_gate done;               /* changes when a call is done, the group has ended, or has been given back */
    _Atomic uint64_t submitted, completed;
    _Atomic int64_t progress_ns;  /* when something last arrived */
    atomic_bool joined, closing, closed;
    atomic_uchar *come;           /* [world] whose note of the present call is here */
    atomic_bool met;              /* all of them */
    trek_comm_call queue[TREK_MPI_QUEUE];

    /* the thread's own */
    struct trek_mpi_comm *next;
    trek_mpi_group *group;
    trek_mpi_state state;
    trek_comm_call call;
    bool direct, spin;
    size_t stride;                /* of notes */
    char *mine, *notes;           /* this rank's note; all ranks' */
    trek_mpi_request *requests;   /* [2 x world] receiving and sending notes */
    int64_t hash[2];
    const void **ins;             /* [world] */
    size_t piece;                 /* bytes of a slot's halves */
    int64_t piece_count;          /* elements of the present call in a piece */
    trek_dtype wire;              /* as what its elements travel */
    int64_t loaded, finished;     /* elements of it */
    int oldest, under_way, ready; /* slots: ready ones are loaded, and behind those under way */
    trek_mpi_slot slots[TREK_MPI_SLOTS];
    char *memory;                 /* of the slots */
} trek_mpi_comm;

/* comm_mpi.c. Ends the group here: the first reason counts. */
void trek_mpi_comm_end(trek_mpi_comm *comm, trek_status status, const char *message);
void trek_mpi_comm_release(trek_mpi_comm *comm);

/* comm_mpi_call.c. The thread's work on a handle; returns whether it has more to do at once or to wait for. *moved: something
 * happened. A failure ends the group. */
bool trek_mpi_comm_advance(trek_mpi_comm *comm, bool *moved);

/* comm_mpi_thread.c */
/* Starts the thread at first need, and waits until MPI is ready. */
trek_status trek_mpi_thread_use(const trek_mpi_table **table, int64_t timeout_ns);
/* Gives a handle to the thread, which has a reference of its own from here on. */
void trek_mpi_thread_add(trek_mpi_comm *comm);
/* A caller that waits does the thread's work on its handle itself, which spares two changes of threads; one thread at a
 * time calls MPI. False if it cannot: MPI wants one thread only, or the thread is at work. */
bool trek_mpi_thread_shared(void);
bool trek_mpi_thread_drive(trek_mpi_comm *comm, bool *moved);
/* Between two looks: nothing has happened since then. */
void trek_mpi_rest(int64_t quiet_since);
/* The thread has something to do. */
void trek_mpi_thread_ring(void);
/* A handle has come or gone: MPI is finalised at the program's end when all have gone, and none by an error. */
void trek_mpi_thread_count(int handles, bool by_error);

#endif
