/* SPDX-License-Identifier: Apache-2.0 */
/* The engine whose operations a library carries out by itself once they are started
 * (MPI, Gloo), and what its files share: async.c (handles, the caller's side), thread.c
 * (the communication thread), call.c (a call, as the thread carries it out). mpi/ and
 * gloo/ say how a library is begun and how its groups are made.
 *
 * One thread of the process begins the library and carries out started calls; a caller
 * that waits carries its call out itself where the library lets it. Ranks meet before
 * each call: they send each other what they are about to do, and small calls' data with
 * it. What is larger goes through memory of the engine's own in pieces, so that the
 * library never holds an address of the caller's: after an error, nothing writes to the
 * caller's memory any more. A call that fails after the ranks have met may have written
 * a part of its result. */
#ifndef TREK_DISTRIBUTED_COMM_ASYNC_ASYNC_INTERNAL_H
#define TREK_DISTRIBUTED_COMM_ASYNC_ASYNC_INTERNAL_H

#include <stdatomic.h>

#include "distributed/comm/async/async_table.h"
#include "distributed/comm/meeting.h"
#include "distributed/control/control.h"
#include "distributed/control/tree.h"
#include "distributed/control/wait.h"
#include "distributed/system/system.h"

enum { TREK_ASYNC_QUEUE = 256, TREK_ASYNC_SLOTS = 4, TREK_ASYNC_SMALL = 4096 };

/* A piece under way. */
typedef struct trek_async_slot {
    char *in, *out;
    trek_async_request request;
    int64_t first, count; /* elements of the call's count */
} trek_async_slot;

typedef enum trek_async_state { TREK_ASYNC_JOINING, TREK_ASYNC_IDLE, TREK_ASYNC_MEETING, TREK_ASYNC_NAMING,
                                TREK_ASYNC_MOVING } trek_async_state;

typedef struct trek_async_service trek_async_service;

typedef struct trek_async_comm {
    trek_comm base;
    trek_comm_engine engine;      /* base's */
    trek_async_service *service;  /* its library's */
    const trek_async_table *table;
    atomic_int references;        /* the caller's, the thread's */

    /* of the end, and of the caller's memory: held while it is read or written on the caller's behalf */
    trek_lock lock;
    trek_comm_end end;

    /* between caller and thread */
    trek_gate done;               /* changes when a call is done, the group has ended, or has been given back */
    _Atomic uint64_t submitted, completed;
    _Atomic int64_t progress_ns;  /* when something last arrived */
    atomic_bool joined, closing, closed;
    atomic_bool driven;           /* a caller that waits does the thread's work */
    atomic_uchar *come;           /* [world] whose note of the present call is here */
    atomic_bool met;              /* all of them */
    trek_comm_call queue[TREK_ASYNC_QUEUE];

    /* the thread's own */
    struct trek_async_comm *next;
    trek_async_group *group;      /* the caller's until the thread has the handle */
    trek_async_state state;
    trek_status failure;          /* the library's, while the control channel is given time to say whose fault it is */
    char failure_text[TREK_ERROR_SIZE];
    int64_t failure_ns;
    trek_comm_call call;
    bool direct, spin;
    trek_control *channel;        /* over which the ranks meet, and small data go; NULL: by the library */
    size_t stride;                /* of notes */
    char *mine, *notes;           /* this rank's trek_call_note, and small calls' data behind it; all ranks' */
    trek_async_request *requests;   /* [2 x world] receiving and sending notes */
    int64_t hash[2];
    const void **ins;             /* [world] */
    int *ranks;                   /* [world] as the library numbers all processes; NULL: the group has all of them */
    size_t piece;                 /* bytes of a slot's halves */
    int64_t piece_count;          /* elements of the present call in a piece */
    trek_dtype wire;              /* as what its elements travel */
    int64_t loaded, finished;     /* elements of it */
    int oldest, under_way, ready; /* slots: ready ones are loaded, and behind those under way */
    trek_async_slot slots[TREK_ASYNC_SLOTS];
    char *memory;                 /* of the slots */
} trek_async_comm;

/* --- thread.c: a library and its thread ----------------------------------------------------------------------------- */

typedef enum trek_async_begun { TREK_ASYNC_NONE, TREK_ASYNC_STARTING, TREK_ASYNC_READY, TREK_ASYNC_GONE } trek_async_begun;

/* One of each library in a process, for good: MPI cannot be initialised twice. */
struct trek_async_service {
    const char *name, *engine_name, *plugin, *open_name; /* "MPI", "mpi", "trek-mpi", TREK_MPI_OPEN */
    const char *packages;       /* what it needs to be built: "libopenmpi-dev openmpi-bin" */
    trek_async_host host;       /* with this service as its owner */
    trek_lock lock;             /* of begun, status, message, incoming, table's opening */
    trek_lock calling;          /* held while the library is called, and of `comms` */
    trek_async_begun begun;
    trek_status status;
    char message[TREK_ERROR_SIZE];
    bool opened, ours;
    trek_async_table table;
    trek_async_comm *incoming, *comms;
    trek_gate bell;             /* something to do */
    trek_gate news;             /* `begun` has changed */
    atomic_bool gone, leave;
    atomic_int handles;
    atomic_bool failed;         /* a group ended by an error */
    atomic_size_t piece;        /* of tests: bytes of a piece, and whether calls go by the library's own; 0: as usual */
    atomic_int direct;
    struct trek_async_service *next; /* of those that end at the program's end */
};

/* Whether the plug-in is there and of this version; why gets the reason. Starts nothing. */
bool trek_async_thread_there(trek_async_service *service, char *why, size_t size);
/* Starts the thread at first need, and waits until the library is ready. */
trek_status trek_async_thread_use(trek_async_service *service, int64_t timeout_ns);
/* Gives a handle to the thread, which has a reference of its own from here on. */
void trek_async_thread_add(trek_async_comm *comm);
/* A caller that waits does the thread's work on its handle itself, which spares two changes of threads; one thread at a
 * time calls the library. False if it cannot: the library wants one thread only, or the thread is at work. */
bool trek_async_thread_drive(trek_async_comm *comm, bool *moved);
/* Between two looks: nothing has happened since then. */
void trek_async_rest(int64_t quiet_since);
/* The thread has something to do. */
void trek_async_thread_ring(trek_async_service *service);
/* A handle has come or gone: the library is finalised at the program's end when all have gone, and none by an error. */
void trek_async_thread_count(trek_async_service *service, int handles, bool by_error);

/* --- async.c -------------------------------------------------------------------------------------------------------- */

/* How long processes may take to come to the making of a group. */
#define TREK_ASYNC_JOIN_NS 300000000000

typedef struct trek_async_opts {
    int rank, world, local_world;
    size_t piece;               /* bytes of a piece */
    int direct; /* the largest world in which ranks meet by messages to each other instead of a reduction; 0: 32 */
    trek_control *control;      /* NULL: none */
    const int *ranks;           /* [world] of MPI_COMM_WORLD, copied; NULL: all */
    bool by_channel;            /* in worlds too large for messages to each other, ranks meet over the control channel */
} trek_async_opts;

/* A handle that the thread does not have yet. NULL and MEMORY. */
trek_async_comm *trek_async_comm_new(trek_async_service *service, const trek_async_opts *opts);
/* Gives it to the thread and waits until the group is made. A failure: the caller frees the handle. */
trek_status trek_async_comm_join(trek_async_comm *comm);
/* Whether all processes have come so far with OK: who has not would be waited for. what: "cannot use MPI". */
trek_status trek_async_agree(trek_control *control, trek_status status, const char *what);
/* Gives back what trek_async_comm_new has made. */
void trek_async_comm_free(trek_async_comm *comm);
/* Ends the group here: the first reason counts. */
void trek_async_comm_end(trek_async_comm *comm, trek_status status, const char *message);
static inline bool trek_async_comm_ended(const trek_async_comm *comm) { return trek_comm_end_is_known(&comm->end); }
void trek_async_comm_release(trek_async_comm *comm);
/* Something on the handle has changed: who waits for that looks again. */
void trek_async_comm_wake(trek_async_comm *comm);

/* --- channel.c: meeting over the control channel, whose tree takes a few messages of each process ------------------------ */

/* From the making of a handle to its end. */
void trek_async_channel_use(trek_async_comm *comm, trek_control *control);
void trek_async_channel_leave(trek_async_comm *comm);
/* comm->mine to all. */
void trek_async_channel_send(trek_async_comm *comm, size_t bytes);
/* Whether comm->notes are here. */
bool trek_async_channel_test(trek_async_comm *comm, size_t bytes);

/* --- call.c --------------------------------------------------------------------------------------------------------- */

/* The thread's work on a handle; returns whether it has more to do at once or to wait for. *moved: something
 * happened. A failure ends the group. */
bool trek_async_comm_advance(trek_async_comm *comm, bool *moved);

#endif
