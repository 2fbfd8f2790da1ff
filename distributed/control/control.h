/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel: a small TCP star that connects the processes of a job, with process 0 in its middle; jobs of
 * more than 16 processes also have a tree for gathers. It carries the start-up, a few bytes at a time, heartbeats,
 * what each process is doing, and the end of the group. Its own thread serves it, so that a process is known to be
 * alive, and learns of the end, while it computes.
 *
 * Once the group has ended (abort, a peer that died, a time-out) it stays ended. The first reason counts; every
 * process learns it, and every call reports it. */
#ifndef TREK_DISTRIBUTED_CONTROL_CONTROL_H
#define TREK_DISTRIBUTED_CONTROL_CONTROL_H

#include <stdatomic.h>

#include "distributed/control/call.h"
#include "distributed/control/handshake.h"
#include "tensor/status_internal.h"

typedef struct trek_control trek_control;

typedef struct trek_control_opts {
    int process, processes;
    const char *address;      /* of process 0: a name or a number; process 0 binds to it */
    int port;
    const char *token;        /* the shared secret of the job; a process that does not know it is refused */
    double join_s;            /* how long all may take to come; 0: 300; TREK_OFF: no limit */
    int deaths;               /* from trek_launch, plus 1; 0: none */
    int flat;                 /* the largest job whose gathers all go to process 0 directly; 0: 16. The value of process 0
                               * counts */
    int64_t generation;       /* of a group that follows another one (rendezvous.h); all processes have the same */
    int listening; /* process 0: a socket that listens at that address and port, plus 1; the channel owns it. 0: none */
    bool patient;  /* a process that was lost before all have come, or was noted as ended and started again, may come again */
    bool (*died)(void *arg, char *text, size_t size); /* used instead of deaths: returns whether an expected process has ended,
                                                       * and writes which */
    void *arg;
} trek_control_opts;
/* Returns the options of another group of the same job. The caller sets place, address, port and generation. Pointers
 * point to memory of the channel. */
trek_control_opts trek_control_like(const trek_control *control);

/* Joins, and returns when all processes have joined. Returns NULL on failure (COMM, TIMEOUT, ARGUMENT, MEMORY). */
trek_control *trek_control_join(const trek_control_opts *opts);
/* Returns the socket, plus 1, at which process 0 of a first group listens, with the address and port of its options.
 * The caller owns it from here on. Returns 0 if the process does not listen. Processes that still come are no longer
 * refused. */
int trek_control_take_listening(trek_control *control);
/* Leaves in order. Peers that make further calls are told that this process has left. */
void trek_control_free(trek_control **control);

/* Returns the process to which this one sends its part of a gather and those of its children; -1: this is process 0. */
int trek_control_parent(const trek_control *control);
int trek_control_process(const trek_control *control);
/* Returns the identity of this process for the handshake of another connection between the channel's processes. */
trek_identity trek_control_identity(const trek_control *control, trek_role role);
int trek_control_processes(const trek_control *control);
/* Returns whether all processes run on one machine, by boot id and pid namespace. */
bool trek_control_same_machine(const trek_control *control);

/* Gathers the parts of all processes, in order, in `all` (processes x bytes). All must call it with the same `bytes`. */
trek_status trek_control_gather(trek_control *control, const void *mine, size_t bytes, void *all, int64_t deadline_ns);

/* Gather for a caller that must not wait: begin it, then ask until it is done. The parts then lie `stride` bytes
 * apart. If the group ends, no result comes; the hook of trek_control_on_end reports that. */
void trek_control_gather_begin(trek_control *control, const void *mine, size_t bytes);
bool trek_control_gather_test(trek_control *control, size_t bytes, void *all, size_t stride);
/* Callbacks of a caller that begins gathers. gathered is called when a gather may be done; it may wake a thread, but
 * must not call the channel. differ describes how the calls of two processes differ whose parts, of at least `least`
 * bytes, differ in size. NULL: no callbacks. */
typedef struct trek_control_gatherer {
    void (*gathered)(void *arg);
    void (*differ)(int a, const void *part_a, int b, const void *part_b, char *text, size_t size);
    size_t least;
    void *arg;
} trek_control_gatherer;
void trek_control_set_gatherer(trek_control *control, const trek_control_gatherer *gatherer);

/* Questions to process 0 about a subject, which its control thread answers at once, whatever its other threads do. */
#define TREK_CONTROL_SUBJECTS 256
#define TREK_CONTROL_ANSWERS 2 /* numbers of an answer */
/* Answers a question of a process: writes to `answer`, which is zero before. It is called with the channel's lock held, so it
 * must not call the channel, and it must not trust the numbers: question[1] to question[count - 1]. */
typedef void (*trek_control_answer_fn)(void *arg, int process, uint64_t number, const int64_t *question, int64_t count,
                                       int64_t *answer);
/* Returns a further subject; all processes call it in the same order. -1: there are too many. Only process 0 uses fn and arg.
 * After trek_control_drop_subject process 0 answers with zeros. */
int trek_control_subject(trek_control *control, trek_control_answer_fn fn, void *arg);
void trek_control_drop_subject(trek_control *control, int subject);
/* Asks without waiting for the answer. question[0] belongs to the channel. A process has one question of a subject at a time;
 * each has another number than the one before. */
void trek_control_ask(trek_control *control, int subject, uint64_t number, int64_t *question, int64_t count);
/* Gets the answer to the last question. *has: it has come. With `wait` it waits for it, and fails if the group ends. */
trek_status trek_control_answer(trek_control *control, int subject, bool wait, int64_t *answer, bool *has);

/* Ends the group on all processes with this reason, from any thread. */
void trek_control_end(trek_control *control, trek_status status, const char *message);
/* Returns whether the group has ended. Code that waits must look at it. */
bool trek_control_ended(const trek_control *control);
/* Returns whether another process is known to have left. */
bool trek_control_some_left(trek_control *control);
/* Sets the thread's error to the reason of the end and returns its status. */
trek_status trek_control_fail(trek_control *control);
/* Registers fn, which is called once, on the control thread, as soon as the group has ended; at once if it has ended
 * already. Engines use it to wake waiting threads and to abort their libraries. At most 8 can be registered. */
typedef void (*trek_control_ended_fn)(void *arg);
trek_status trek_control_on_end(trek_control *control, trek_control_ended_fn fn, void *arg);
void trek_control_forget(trek_control *control, void *arg);

/* Sets what this process does from here on, for the peers' tables. phase is a literal ("forward", "step", "save"). It
 * costs two stores. call may be NULL. A long phase that is not a collective counts as progress; see deadlines in
 * comm.h. */
void trek_control_say(trek_control *control, const char *phase, const trek_call_note *call);
/* Sets a phase that may take long and makes no calls ("save"). Peers wait for the process as long as it is alive. */
void trek_control_say_long(trek_control *control, const char *phase);
/* Sets what the library begins on the program's behalf ("forward"). It counts as progress, even if it is the same
 * again. A long phase that the program has set remains. */
void trek_control_note(trek_control *control, const char *phase);
/* Begin and end a call; trek_comm_run calls both. A call to which a process that has left will never come ends the
 * group. */
void trek_control_call(trek_control *control, const trek_call_note *call);
void trek_control_called(trek_control *control);
/* Returns whether a process that is late by deadline_ns should be waited for: it is alive, and it is in a long phase
 * or began something else within that time. Engines ask this about all missing processes before they report a
 * time-out. */
bool trek_control_excused(trek_control *control, int process, int64_t deadline_ns);
/* Returns the number of the last call that a process is known to have begun. */
uint64_t trek_control_peer_call(trek_control *control, int process);
/* Writes the numeric address of this process on the route of the channel. Returns false if no connection is left. */
bool trek_control_own_address(trek_control *control, char *text, size_t size);
/* Returns a name for the machine, its processes and its shared memory, the same for all processes that can share
 * memory with this one. */
const char *trek_control_machine(const trek_control *control);
/* Appends a line for each process: phase, last operation, since when, heartbeat. Returns text. */
char *trek_control_table(trek_control *control, char *text, size_t size);
/* Returns what was last heard of a peer: its phase, copied into at most size bytes, and how many ns ago anything was
 * heard of it. */
void trek_control_peer(trek_control *control, int process, char *phase, size_t size, int64_t *silent_ns, int64_t *in_phase_ns);

#endif
