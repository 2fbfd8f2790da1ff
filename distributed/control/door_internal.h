/* SPDX-License-Identifier: Apache-2.0 */
/* The door from inside: what its thread (door.c) and those who look for each other (regroup.c) share. */
#ifndef TREK_DISTRIBUTED_CONTROL_DOOR_INTERNAL_H
#define TREK_DISTRIBUTED_CONTROL_DOOR_INTERNAL_H

#include "distributed/control/door.h"
#include "distributed/control/handshake.h"
#include "distributed/system/system.h"

#define TREK_DOOR_BEAT_NS 250000000
#define TREK_DOOR_SILENCE_NS 5000000000
/* So many may be there who have not said that they belong to the job. Where more want to come, one of those goes who have been
 * silent for so long, first of an address that has many; whoever belongs to the job speaks as soon as it has connected. */
#define TREK_DOOR_STRANGERS 64
#define TREK_DOOR_STRANGERS_OF_ADDRESS 16
#define TREK_DOOR_PATIENCE_NS 250000000
#define TREK_DOOR_PATIENCE_OF_MANY_NS 100000000
#define TREK_DOOR_REST_NS 20000000

/* Whose thread has not run for so long has stood still; and so much later its group may end by that. */
#define TREK_DOOR_STILL_NS 2500000000
#define TREK_DOOR_NOTICED_NS 2000000000

/* What goes over a door's connections behind the handshake, both ways. */
typedef enum trek_door_kind {
    TREK_DOOR_VISIT = 1,   /* `number` has come, and waits for the next group */
    TREK_DOOR_PROBE,       /* is the process alive? */
    TREK_DOOR_RUNNING,     /* the answers: it is in a group, without the one who asked; */
    TREK_DOOR_COMING,      /* it will come, as soon as it knows that its group has ended */
    TREK_DOOR_BEAT,        /* still there */
    TREK_DOOR_GROUP,       /* the place of the next group, and the recipient's in it */
    TREK_DOOR_GONE,        /* the others have gone on without the recipient */
    TREK_DOOR_FEW,         /* `processes` are left, and `least` are needed */
    TREK_DOOR_STILL,       /* all who are left have stood still, and the others may have gone on */
    TREK_DOOR_JOIN,        /* `number` of `processes`, whose door is at address and port, is to be let in; it runs `program` */
    TREK_DOOR_GO,          /* the answers: the next group's host is at address and port (of a visit, too); */
    TREK_DOOR_OVER,        /* the job has ended; */
    TREK_DOOR_TAKEN,       /* the process of that number is alive; */
    TREK_DOOR_DIFFERS,     /* the others run another program */
    TREK_DOOR_OTHER_WORLD, /* the job has `processes`, another number than the newcomer believes; */
    TREK_DOOR_LATER,       /* the first group is forming still, and lets nobody join it yet */
} trek_door_kind;

typedef struct trek_door_note {
    uint64_t magic;      /* protocol and byte order */
    int32_t kind, number;
    int64_t generation;
    uint64_t program;
    int32_t process, processes, port, least;
    int32_t awake, unused; /* awake: of a visit: it was in the group that has ended, and has not stood still */
    char address[64];
    unsigned char code[TREK_SEAL_BYTES]; /* the seal of what stands before it */
} trek_door_note;

/* A connection that carries notes. With only fd set, nothing has been sent yet. */
typedef struct trek_door_line {
    int fd;              /* -1: not connected, or the connection has ended */
    trek_shake fault;    /* why the handshake has failed; 0: it has not failed */
    bool holds, deaf;    /* holds: a note waits for the end of the handshake; deaf: input is discarded */
    trek_door_note held;
    trek_seal seal;
    size_t used;
    char in[sizeof(trek_door_note)];
} trek_door_line;

typedef struct trek_door_visitor {
    trek_door_line line;
    int number;          /* -1: has not said who it is */
    bool answered;       /* it was told of the next group */
    bool awake;          /* as it has said */
    bool waits, invited, told; /* of a newcomer; told: how its waiting has ended */
    int met;             /* so many meetings of the group it has waited through */
    trek_member newcomer;
    int64_t generation, heard_ns, since_ns;
    uint64_t from;       /* its address */
} trek_door_visitor;

/* Everything but what never changes is guarded by the lock. */
struct trek_door {
    trek_member own;
    trek_hmac_key secret;
    trek_lock lock;
    trek_condition changed;
    trek_thread thread;
    bool has_lock, has_condition, has_thread, stopping;
    int bell, listen_fd;
    int lobby_fd;        /* at the job's address; -1: not here */
    uint64_t program;
    int world;           /* of the job's processes */
    bool joins;          /* it is in no group yet, and about to be */
    int64_t loop_ns;     /* when its thread last began to wait; it does so every quarter of a second */
    int64_t still_ns;    /* when that was last noticed to be long ago; 0: never */
    int64_t lost_ns;     /* when the process began to look for the next group */
    bool running;        /* in the group of `members`; else it looks for the next one */
    int64_t generation;
    int n_members;
    trek_member *members;
    bool is_guest;       /* at the door of `host`, which is alive: whoever comes here for the next group is sent there */
    trek_member host;
    bool hosts;          /* it receives the others at its own door, */
    int elder;           /* and so does this one of the members, plus 1, that stands before it and seemed dead; 0: none */
    int n_visitors, cap_visitors, cap_polled;
    trek_door_visitor *visitors;
    struct pollfd *polled;
    int64_t beat_ns;
    int64_t rest_ns;     /* until then nobody is let in: there is no place, or no descriptor; 0: there are */
    trek_door_line host_line; /* to the host that told where the next group is: the looking thread's */
};

/* note.c */
trek_door_note trek_door_note_of(const trek_door *door, trek_door_kind kind);
/* Answers a whole note that arrived where processes join the control channel. Returns whether it is from a process that wants to
 * join the job; that process is then told to come again later. `process` is the number of the one that answers. */
bool trek_door_answer_early(const char *in, int process, trek_seal *seal, int fd);
/* Tells a process that is to join a group by the control channel to come again: not all have left the group before. */
void trek_door_put_off(trek_door_line *line);
/* Sends a note, and returns whether it could be sent in one piece. The first note of a caller is kept until the other end has
 * proved itself; trek_door_receive then sends it. Further notes are dropped until then. */
bool trek_door_send(const trek_door *door, trek_door_line *line, const trek_door_note *note);
/* Continues the handshake and reads a note as far as it has arrived. Returns 1 if the note is whole, 0 if more must be read, and
 * 2 for a process of this job that is to join a group by the control channel. Returns -1 if the connection has ended, or if what
 * arrived is not a note of this job or its seal does not fit. */
int trek_door_receive(const trek_door *door, trek_door_line *line, trek_door_note *note);
/* With the lock held: whether the process stood still when its group ended, or later. */
bool trek_door_stood_still(const trek_door *door);
/* With the lock held: whether the number is one of the group's. */
bool trek_door_is_member(const trek_door *door, int number);
/* With the lock held: the connection ends. One that was answered is still counted among those that have come to an end. */
void trek_door_drop(trek_door_visitor *visitor);
/* Its thread looks anew at what there is to be watched. */
void trek_door_wake(const trek_door *door);

/* door.c, with the lock held: what there is to be read of a visitor. */
void trek_door_read_visitor(trek_door *door, trek_door_visitor *visitor);

/* regroup.c */
/* Waits for a note other than a beat; beats are given for it. false: there will be none. until_ns 0: as long as it takes. *heard
 * is set by anything that comes; host (NULL: nobody): whose guest this process is from then on. */
bool trek_door_wait(trek_door *door, trek_door_line *line, const trek_member *host, int64_t until_ns, trek_door_note *note,
                    bool *heard);

/* To be the guest of that one. `lost`: it is dead. */
trek_status trek_door_visit(trek_door *door, const trek_member *host, int64_t until_ns, trek_door_place *place, bool *lost);

/* lobby.c, with the lock held */
void trek_door_take_newcomer(trek_door *door, trek_door_visitor *visitor, const trek_door_note *note);
/* Those who are invited learn who hosts. */
void trek_door_send_on(trek_door *door, const trek_member *host);
/* One that has come for the next group goes to the host of this process. */
void trek_door_send_visitor_on(const trek_door *door, trek_door_visitor *visitor);
/* Those who wait learn that nobody will come. */
void trek_door_close_lobby(trek_door *door);

#endif
