/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel: a small TCP star that joins the processes of a job, with
 * process 0 in its middle, and above 16 processes a tree for gathers. It carries the bootstrap, a few bytes at a time,
 * heartbeats, what each process does at present, and the end of the group. A thread
 * of its own serves it, so that a process that computes is known to be alive and
 * learns of the end while it computes. Internal.
 *
 * Once the group has ended (abort, a peer that died, a time-out) it stays ended: the
 * first reason counts, every process learns it, every call reports it. */
#ifndef TREK_DISTRIBUTED_CONTROL_CONTROL_H
#define TREK_DISTRIBUTED_CONTROL_CONTROL_H

#include <stdatomic.h>

#include "distributed/control/call.h"
#include "distributed/control/handshake.h"
#include "tensor/status_internal.h"

typedef struct trek_control trek_control;

typedef struct trek_control_opts {
    int process, processes;
    const char *address;      /* of process 0: name or number; process 0 binds to it */
    int port;
    const char *token;        /* shared secret of the job: who does not know it is turned away */
    double join_s;            /* how long all may take to come; 0: 300; TREK_OFF: for ever */
    int deaths;               /* plus 1: of trek_launch; 0: none */
    int flat;                 /* the largest job whose gathers all go to process 0 directly; 0: 16. Process 0's counts */
    int64_t generation;       /* of a group that follows on another one (door.h): all have the same */
    int listening; /* process 0: a socket that listens at that address and port, plus 1, which is taken over; 0: none */
    bool patient;  /* a process that is lost before all have come, or noted as ended and started again, may come anew */
    bool (*died)(void *arg, char *text, size_t size); /* instead of deaths: whether one who was to come has ended, and which */
    void *arg;
} trek_control_opts;
/* The options of another group of the same job; place, address, port and generation are to be set. What it points to is the
 * channel's. */
trek_control_opts trek_control_like(const trek_control *control);

/* Joins; returns when all processes have. NULL and COMM, TIMEOUT, ARGUMENT, MEMORY. */
trek_control *trek_control_join(const trek_control_opts *opts);
/* Where process 0 of a first group listens, with the address and port of its options; the caller's from here on, plus 1. 0: it
 * does not listen. Who still comes is not turned away any more. */
int trek_control_take_listening(trek_control *control);
/* Leaves in order. Peers that call on are told that this process has left. */
void trek_control_free(trek_control **control);

/* The process to which this one gives its part of a gather, and those of its children; -1: it is process 0. */
int trek_control_parent(const trek_control *control);
int trek_control_process(const trek_control *control);
/* Who this process is, for the handshake of another connection between the channel's processes. */
trek_identity trek_control_identity(const trek_control *control, trek_role role);
int trek_control_processes(const trek_control *control);
/* Whether the processes run on one machine: boot id, pid namespace. */
bool trek_control_same_machine(const trek_control *control);

/* all (processes x bytes) becomes the processes' parts, in order. A meeting of all; bytes must agree. */
trek_status trek_control_gather(trek_control *control, const void *mine, size_t bytes, void *all, int64_t deadline_ns);

/* The same for one who must not wait: begun, then asked for until it is done. The parts then lie `stride` bytes apart. An end of
 * the group is no answer: the hook of trek_control_on_end tells. */
void trek_control_gather_begin(trek_control *control, const void *mine, size_t bytes);
bool trek_control_gather_test(trek_control *control, size_t bytes, void *all, size_t stride);
/* Who begins gathers. gathered is called when one may be done: it wakes somebody and calls nothing of the channel. differ says
 * in words what two processes came with whose parts, of `least` bytes or more, differ in size. NULL: nobody. */
typedef struct trek_control_gatherer {
    void (*gathered)(void *arg);
    void (*differ)(int a, const void *part_a, int b, const void *part_b, char *text, size_t size);
    size_t least;
    void *arg;
} trek_control_gatherer;
void trek_control_set_gatherer(trek_control *control, const trek_control_gatherer *gatherer);

/* Ends the group on all processes with this reason. From any thread. */
void trek_control_end(trek_control *control, trek_status status, const char *message);
/* Not 0 once the group has ended: to be looked at in waits. */
bool trek_control_ended(const trek_control *control);
/* Whether another process is known to have left. */
bool trek_control_some_left(trek_control *control);
/* Sets the thread's error to the reason of the end and returns its status. */
trek_status trek_control_fail(trek_control *control);
/* fn is called once, on the control thread, as soon as the group has ended (at once if it has): engines wake what
 * waits and abort their libraries. At most 8. */
typedef void (*trek_control_ended_fn)(void *arg);
trek_status trek_control_on_end(trek_control *control, trek_control_ended_fn fn, void *arg);
void trek_control_forget(trek_control *control, void *arg);

/* What this process does from here on, for the peers' tables; phase is a literal ("forward", "step", "save"). Cheap:
 * two stores. call may be NULL. A long phase that is not a collective counts as progress, see deadlines in comm.h. */
void trek_control_say(trek_control *control, const char *phase, const trek_call_note *call);
/* The same for a phase that may take long and makes no calls ("save"): peers wait for it as long as it is alive. */
void trek_control_say_long(trek_control *control, const char *phase);
/* What the library begins on the program's behalf ("forward"): progress, also if it is the same again; a long phase that the
 * program has said goes on. */
void trek_control_note(trek_control *control, const char *phase);
/* A call begins; all that were begun have ended (trek_comm_run does both). A call that a process which has left will
 * never come to ends the group. */
void trek_control_call(trek_control *control, const trek_call_note *call);
void trek_control_called(trek_control *control);
/* Whether a process that is late by deadline_ns is waited for on: it said a long phase, or began something else more
 * recently than that, and it is alive. What engines ask of all who are missing before they call it a time-out. */
bool trek_control_excused(trek_control *control, int process, int64_t deadline_ns);
/* Number of the last call that a process is known to have begun. */
uint64_t trek_control_peer_call(trek_control *control, int process);
/* The numeric address by which this process is reached on the route that the channel takes; false: no connection is left. */
bool trek_control_own_address(trek_control *control, char *text, size_t size);
/* A name for the machine, its processes and its shared memory, the same for all who can share memory with this one. */
const char *trek_control_machine(const trek_control *control);
/* Appends a line for each process: phase, last operation, since when, heartbeat. Returns text. */
char *trek_control_table(trek_control *control, char *text, size_t size);
/* Phase of a peer, as last heard: a copy of at most size bytes; how long ago anything of it was heard in ns. */
void trek_control_peer(trek_control *control, int process, char *phase, size_t size, int64_t *silent_ns, int64_t *in_phase_ns);

#endif
