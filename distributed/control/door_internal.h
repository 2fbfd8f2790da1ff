/* SPDX-License-Identifier: Apache-2.0 */
/* The door from inside: what its thread (door.c) and those who look for each other (regroup.c) share. */
#ifndef TREK_DISTRIBUTED_CONTROL_DOOR_INTERNAL_H
#define TREK_DISTRIBUTED_CONTROL_DOOR_INTERNAL_H

#include <pthread.h>

#include "distributed/control/door.h"

#define TREK_DOOR_TOKEN 256
#define TREK_DOOR_BEAT_NS 250000000
#define TREK_DOOR_SILENCE_NS 5000000000

/* What goes over a door's connections, both ways. */
typedef enum trek_door_kind {
    TREK_DOOR_VISIT = 1, /* `number` has come, and waits for the next group */
    TREK_DOOR_PROBE,     /* is the process alive? */
    TREK_DOOR_RUNNING,   /* the answers: it is in a group, without the one who asked; */
    TREK_DOOR_COMING,    /* it will come, as soon as it knows that its group has ended */
    TREK_DOOR_BEAT,      /* still there */
    TREK_DOOR_GROUP,     /* the place of the next group, and the recipient's in it */
    TREK_DOOR_GONE,      /* the others have gone on without the recipient */
    TREK_DOOR_FEW,       /* `processes` are left, and `least` are needed */
} trek_door_kind;

typedef struct trek_door_note {
    uint64_t magic;      /* protocol and byte order */
    int32_t kind, number;
    int64_t generation;
    int32_t process, processes, port, least;
    char address[64];
    char token[TREK_DOOR_TOKEN];
} trek_door_note;

typedef struct trek_door_visitor {
    int fd;              /* -1: the connection has ended */
    int number;          /* -1: has not said who it is */
    bool answered;       /* it was told of the next group */
    int64_t generation, heard_ns;
    size_t used;
    char in[sizeof(trek_door_note)];
} trek_door_visitor;

/* Everything but what never changes is guarded by the lock. */
struct trek_door {
    trek_member own;
    char token[TREK_DOOR_TOKEN];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_lock, has_condition, has_thread, stopping;
    int wake_fd, listen_fd;
    bool running;        /* in the group of `members`; else it looks for the next one */
    int64_t generation;
    int n_members;
    trek_member *members;
    int n_visitors, cap_visitors, cap_polled;
    trek_door_visitor *visitors;
    struct pollfd *polled;
    int64_t beat_ns;
    int host_fd; /* to the host that told where the next group is; -1: none. This and what follows: the looking thread's */
    size_t host_used;
    char host_in[sizeof(trek_door_note)];
};

trek_door_note trek_door_note_of(const trek_door *door, trek_door_kind kind);
/* Whether it could be sent in one piece. */
bool trek_door_send(int fd, const trek_door_note *note);
/* Reads what is there of a note. 1: it is whole, and the buffer empty again; 0: not yet; -1: the connection has ended, or brings
 * what is no note of this job. */
int trek_door_receive(const trek_door *door, int fd, char *in, size_t *used, trek_door_note *note);
/* With the lock held: whether the number is one of the group's. */
bool trek_door_is_member(const trek_door *door, int number);
/* With the lock held: the connection ends. One that was answered is still counted among those that have come to an end. */
void trek_door_drop(trek_door_visitor *visitor);

#endif
