/* SPDX-License-Identifier: Apache-2.0 */
/* The engine for libraries that carry out operations by themselves once they are started (MPI, Gloo), and what its
 * files share: async.c (handles, the caller's side), thread.c (the communication thread) and async_call.c (a call as the
 * thread carries it out). mpi/ and gloo/ say how a library is initialised and how its groups are made.
 *
 * One thread of the process initialises the library and carries out started calls. A caller that waits carries its
 * call out itself if the library allows that. Before each call the ranks meet: they send each other what they are
 * about to do, together with the data of small calls. Larger data go in pieces through memory of the engine, so that
 * the library never holds an address of the caller: after an error nothing writes to the caller's memory any more. A
 * call that fails after the ranks have met may have written a part of its result. */
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

/* A piece that is being transferred. */
typedef struct trek_async_slot {
    char *in, *out;
    trek_async_request request;
    int64_t first, count; /* elements of the call */
} trek_async_slot;

typedef enum trek_async_state {
    TREK_ASYNC_JOINING,
    TREK_ASYNC_IDLE,
    TREK_ASYNC_MEETING,
    TREK_ASYNC_NAMING,
    TREK_ASYNC_MOVING
} trek_async_state;

typedef struct trek_async_service trek_async_service;

typedef struct trek_async_comm {
    trek_comm base;
    trek_comm_engine engine;     /* of the base */
    trek_async_service *service; /* the library's service */
    const trek_async_table *table;
    atomic_int references; /* one of the caller and one of the thread */

    /* The lock guards the end, and the caller's memory while that is read or written: */
    trek_lock lock;
    trek_comm_end end;

    /* Shared by caller and thread: */
    trek_gate done; /* changes when a call is done, when the group has ended, and when the group has been given
                     * back */
    _Atomic uint64_t submitted, completed;
    _Atomic int64_t progress_ns; /* when something last arrived */
    atomic_bool joined, closing, closed;
    atomic_bool driven; /* a waiting caller does the thread's work */
    atomic_uchar *come; /* [world] which ranks' notes of the current call have arrived */
    atomic_bool met;    /* all of them have */
    trek_comm_call queue[TREK_ASYNC_QUEUE];

    /* Used by the thread only: */
    struct trek_async_comm *next;
    trek_async_group *group; /* used by the caller until the thread has the handle */
    trek_async_state state;
    trek_status failure; /* the library's error, while the control channel is given time to name the cause */
    char failure_text[TREK_ERROR_SIZE];
    int64_t failure_ns;
    trek_comm_call call;
    bool direct, spin;
    trek_control *channel;        /* carries the meetings of the ranks and small data; NULL: the library carries them */
    size_t stride;                /* between notes */
    char *mine, *notes;           /* this rank's trek_call_note, followed by the data of small calls; the notes of all ranks */
    trek_async_request *requests; /* [2 x world] requests that receive and send notes */
    int64_t hash[2];
    const void **ins;             /* [world] */
    int *ranks;                   /* [world] numbers in the library's numbering of all processes; NULL: the group has all of
                                   * them */
    size_t piece;                 /* bytes of each half of a slot */
    int64_t piece_count;          /* elements of the current call in a piece */
    trek_dtype wire;              /* the type in which elements are sent */
    int64_t loaded, finished;     /* numbers of elements */
    int oldest, under_way, ready; /* slots: ready slots are loaded and follow those under way */
    trek_async_slot slots[TREK_ASYNC_SLOTS];
    char *memory; /* memory of the slots */
} trek_async_comm;

/* --- thread.c: a library and its thread ----------------------------------------------------------------------------- */

typedef enum trek_async_begun { TREK_ASYNC_NONE, TREK_ASYNC_STARTING, TREK_ASYNC_READY, TREK_ASYNC_GONE } trek_async_begun;

/* One service for each library in a process. It is never freed, because MPI cannot be initialised twice. */
struct trek_async_service {
    const char *name, *engine_name, *plugin, *open_name; /* "MPI", "mpi", "trek-mpi", TREK_MPI_OPEN */
    bool ends_together;                                  /* as in trek_comm_engine */
    const char *packages;                                /* the packages needed to build it: "libopenmpi-dev openmpi-bin" */
    const char *piece_variable;                          /* sets the bytes of a piece: "TREK_MPI_PIECE" */
    size_t default_piece;
    trek_async_host host; /* its owner is this service */
    trek_lock lock;       /* guards begun, status, message, incoming, and the opening of the table */
    trek_lock calling;    /* held while the library is called; guards `comms` */
    trek_async_begun begun;
    trek_status status;
    char message[TREK_ERROR_SIZE];
    bool opened, ours;
    trek_async_table table;
    trek_async_comm *incoming, *comms;
    trek_gate bell; /* rung when there is something to do */
    trek_gate news; /* changes with `begun` */
    atomic_bool gone, leave;
    atomic_int handles;
    atomic_bool failed;  /* a group has ended by an error */
    atomic_size_t piece; /* for tests: bytes of a piece, and whether calls use the library's own collectives; 0: the
                          * usual */
    atomic_int direct;
    struct trek_async_service *next; /* in the list of those that end at the program's end */
};

/* Returns whether the plug-in is available in this version; otherwise `why` gets the reason. Starts nothing. */
bool trek_async_thread_there(trek_async_service *service, char *why, size_t size);
/* Starts the thread when it is first needed, and waits until the library is ready. */
trek_status trek_async_thread_use(trek_async_service *service, int64_t timeout_ns);
/* Gives a handle to the thread, which from here on has a reference of its own. */
void trek_async_thread_add(trek_async_comm *comm);
/* Does the thread's work on a handle from a caller that waits, which saves two changes of threads. One thread at a
 * time calls the library. Returns false if it cannot: the library allows one thread only, or the thread is at work. */
bool trek_async_thread_drive(trek_async_comm *comm, bool *moved);
/* Rests between two looks; nothing has happened since quiet_since. */
void trek_async_rest(int64_t quiet_since);
/* Tells the thread that there is something to do. */
void trek_async_thread_ring(trek_async_service *service);
/* Counts handles that are made and freed. At the program's end the library is finalised if all have been freed and
 * none ended by an error. */
void trek_async_thread_count(trek_async_service *service, int handles, bool by_error);

/* --- async.c -------------------------------------------------------------------------------------------------------- */

/* How long processes may take until all of them make a group. */
#define TREK_ASYNC_JOIN_NS 300000000000

typedef struct trek_async_opts {
    int rank, world, local_world;
    trek_control *control; /* NULL: no control channel */
    const int *ranks;      /* [world] ranks in MPI_COMM_WORLD, copied; NULL: all of them */
    bool by_channel;       /* in worlds that are too large for messages to each other, ranks meet over the control channel */
} trek_async_opts;

/* Makes a handle that the thread does not have yet. Returns NULL on failure (MEMORY). */
trek_async_comm *trek_async_comm_new(trek_async_service *service, const trek_async_opts *opts);
/* Sets sizes for handles that are made from here on, for tests; 0 stands for the default. piece: bytes of a piece. direct: the
 * largest world in which ranks meet by messages to each other instead of by a reduction (the default is 32). */
void trek_async_set_sizes(trek_async_service *service, size_t piece, int direct);
/* Makes a group of the new handle, or frees it if that fails. status: what this process has met with so far; comm is NULL if it
 * has failed. meet: the processes come together; a process that has failed calls it as well, because the others wait for it, and
 * it returns what they have agreed on. */
trek_status trek_async_comm_form(trek_control *control, trek_async_comm *comm, trek_status status,
                                 trek_status (*meet)(trek_control *control, trek_async_comm *comm, trek_status status),
                                 trek_comm **result);
/* Returns whether all processes have come this far without an error; otherwise the others would wait for the one that
 * has failed. `what` is for the message, e.g. "cannot use MPI". */
trek_status trek_async_agree(trek_control *control, trek_status status, const char *what);
/* Frees what trek_async_comm_new has made. */
void trek_async_comm_free(trek_async_comm *comm);
/* Ends the group here. The first reason counts. */
void trek_async_comm_end(trek_async_comm *comm, trek_status status, const char *message);
static inline bool trek_async_comm_ended(const trek_async_comm *comm) { return trek_comm_end_is_known(&comm->end); }
void trek_async_comm_release(trek_async_comm *comm);
/* Wakes all who wait for a change of the handle. */
void trek_async_comm_wake(trek_async_comm *comm);

/* --- channel.c: meetings over the control channel, whose tree carries a few messages of each process ------------------ */

/* Begin and end the use of the channel, when a handle is made and when it ends. */
void trek_async_channel_use(trek_async_comm *comm, trek_control *control);
void trek_async_channel_leave(trek_async_comm *comm);
/* Sends comm->mine to all. */
void trek_async_channel_send(trek_async_comm *comm, size_t bytes);
/* Returns whether comm->notes have arrived. */
bool trek_async_channel_test(trek_async_comm *comm, size_t bytes);

/* --- async_call.c --------------------------------------------------------------------------------------------------------- */

/* Does the thread's work on a handle. Returns whether the handle has more to do at once, or to wait for. *moved:
 * something happened. A failure ends the group. */
bool trek_async_comm_advance(trek_async_comm *comm, bool *moved);

#endif
