/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the door: what its thread (door.c) and the processes that look for each other (find_members.c) share. */
#ifndef TREK_DISTRIBUTED_CONTROL_DOOR_INTERNAL_H
#define TREK_DISTRIBUTED_CONTROL_DOOR_INTERNAL_H

#include "distributed/control/door.h"
#include "distributed/control/handshake.h"
#include "distributed/system/system.h"

#define TREK_DOOR_BEAT_NS 250000000
#define TREK_DOOR_SILENCE_NS 5000000000
/* How many strangers may be connected that have not proved that they belong to the job, in all and from one address.
 * If more want to come, one of those that have been silent for this long is removed, first from an address that has
 * many. A process of the job speaks as soon as it has connected. */
#define TREK_DOOR_STRANGERS 64
#define TREK_DOOR_STRANGERS_OF_ADDRESS 16
#define TREK_DOOR_PATIENCE_NS 250000000
#define TREK_DOOR_PATIENCE_OF_MANY_NS 100000000
#define TREK_DOOR_REST_NS 20000000

/* A process whose thread has not run for this long has stood still; and this much later its group may still end
 * because of that. */
#define TREK_DOOR_STILL_NS 2500000000
#define TREK_DOOR_NOTICED_NS 2000000000

/* What is sent over a door's connections after the handshake, in both directions. */
typedef enum trek_door_kind {
    TREK_DOOR_VISIT = 1,   /* `number` has come and waits for the next group */
    TREK_DOOR_PROBE,       /* asks whether the process is alive */
    TREK_DOOR_RUNNING,     /* one answer: it is in a group without the process that asked; */
    TREK_DOOR_COMING,      /* the other: it will come as soon as it knows that its group has ended */
    TREK_DOOR_BEAT,        /* the sender is still waiting */
    TREK_DOOR_GROUP,       /* where the next group comes together, and the recipient's position in it */
    TREK_DOOR_GONE,        /* the others have gone on without the recipient */
    TREK_DOOR_FEW,         /* only `processes` are left of the `least` that are needed */
    TREK_DOOR_STILL,       /* all who are left have stood still, and the others may have gone on */
    TREK_DOOR_JOIN,        /* `number` of `processes` asks to be let in; its door is at address and port, and it runs `program` */
    TREK_DOOR_GO,          /* an answer, also to a visit: the host of the next group is at address and port */
    TREK_DOOR_OVER,        /* an answer: the job has ended */
    TREK_DOOR_TAKEN,       /* an answer: the process of that number is alive */
    TREK_DOOR_DIFFERS,     /* an answer: the others run another program */
    TREK_DOOR_OTHER_WORLD, /* an answer: the job has `processes`, which is not the number that the newcomer assumes */
    TREK_DOOR_LATER,       /* an answer: the first group is still forming, and nobody can join it yet */
} trek_door_kind;

typedef struct trek_door_note {
    uint64_t magic; /* protocol and byte order */
    int32_t kind, number;
    int64_t generation;
    uint64_t program;
    int32_t process, processes, port, least;
    int32_t awake, unused; /* awake, of a visit: it was in the group that has ended, and has not stood still */
    char address[64];
    unsigned char code[TREK_SEAL_BYTES]; /* the seal of everything before it */
} trek_door_note;

/* A connection that carries notes. With only fd set, nothing has been sent yet. */
typedef struct trek_door_line {
    int fd;           /* -1: not connected, or the connection has ended */
    trek_shake fault; /* why the handshake has failed; 0: it has not failed */
    bool holds, deaf; /* holds: a note waits for the end of the handshake; deaf: input is discarded */
    trek_door_note held;
    trek_seal seal;
    size_t used;
    char in[sizeof(trek_door_note)];
} trek_door_line;

typedef struct trek_door_visitor {
    trek_door_line line;
    int number;                /* -1: it has not said who it is */
    bool answered;             /* it knows the next group */
    bool awake;                /* as it has said */
    bool waits, invited, told; /* of a newcomer; told: it knows how its waiting has ended */
    int met;                   /* how many meetings of the group it has waited through */
    trek_member newcomer;
    int64_t generation, heard_ns, since_ns;
    uint64_t from; /* its address */
} trek_door_visitor;

/* The lock guards everything that changes. */
struct trek_door {
    trek_member own;
    trek_hmac_key secret;
    trek_lock lock;
    trek_condition changed;
    trek_thread thread;
    bool has_lock, has_condition, has_thread, stopping;
    int bell, listen_fd;
    int lobby_fd; /* listens at the job's address; -1: not in this process */
    uint64_t program;
    int world;        /* the number of the job's processes */
    bool joins;       /* it is in no group yet and is about to join one */
    int64_t loop_ns;  /* when its thread last began to wait, which it does every quarter of a second */
    int64_t still_ns; /* when that was last found to be long ago; 0: never */
    int64_t lost_ns;  /* when the process began to look for the next group */
    bool running;     /* it is in the group of `members`; otherwise it looks for the next one */
    int64_t generation;
    int n_members;
    trek_member *members;
    bool is_guest; /* it waits at the door of `host`, which is alive; processes that come here for the next group are
                    * sent there */
    trek_member host;
    bool hosts; /* it receives the others at its own door, */
    int elder;  /* and so does the member elder - 1, which comes before it and seemed dead; 0: none does */
    int n_visitors, cap_visitors, cap_polled;
    trek_door_visitor *visitors;
    struct pollfd *polled;
    int64_t beat_ns;
    int64_t rest_ns;          /* until then nobody is let in, because places or descriptors are missing; 0: none are missing */
    trek_door_line host_line; /* to the host that said where the next group is; used by the thread that looks */
};

/* note.c */
trek_door_note trek_door_note_of(const trek_door *door, trek_door_kind kind);
/* Answers a whole note that arrived where processes join the control channel. Returns whether it is from a process that wants to
 * join the job; that process is then told to come again later. `process` is the number of the one that answers. */
bool trek_door_answer_early(const char *in, int process, trek_seal *seal, int fd);
/* Tells a process that wants to join a group over the control channel to come again, because not all have left the
 * group before. */
void trek_door_put_off(trek_door_line *line);
/* Sends a note, and returns whether it could be sent in one piece. The first note of a caller is kept until the other end has
 * proved itself; trek_door_receive then sends it. Further notes are dropped until then. */
bool trek_door_send(const trek_door *door, trek_door_line *line, const trek_door_note *note);
/* Continues the handshake and reads a note as far as it has arrived. Returns 1 if the note is whole, 0 if more must be read, and
 * 2 for a process of this job that is to join a group by the control channel. Returns -1 if the connection has ended, or if what
 * arrived is not a note of this job or its seal does not fit. */
int trek_door_receive(const trek_door *door, trek_door_line *line, trek_door_note *note);
/* Returns whether the process stood still when its group ended, or later. Called with the lock held. */
bool trek_door_stood_still(const trek_door *door);
/* Returns whether the number belongs to the group. Called with the lock held. */
bool trek_door_is_member(const trek_door *door, int number);
/* Closes the connection of a visitor. A visitor that was answered still counts among those that have ended. Called
 * with the lock held. */
void trek_door_drop(trek_door_visitor *visitor);
/* Makes the thread look again at what it must watch. */
void trek_door_wake(const trek_door *door);

/* door.c: reads what a visitor has sent. Called with the lock held. */
void trek_door_read_visitor(trek_door *door, trek_door_visitor *visitor);

/* find_members.c */
/* Waits for a note other than a beat, and answers beats. Returns false if none will come. until_ns 0: no limit.
 * *heard is set by anything that arrives. host is the process whose guest this process becomes when it hears of it;
 * NULL: none. */
bool trek_door_wait(trek_door *door, trek_door_line *line, const trek_member *host, int64_t until_ns, trek_door_note *note,
                    bool *heard);

/* Becomes the guest of the host. `lost`: the host is dead. */
trek_status trek_door_visit(trek_door *door, const trek_member *host, int64_t until_ns, trek_door_place *place, bool *lost);

/* lobby.c, called with the lock held */
void trek_door_take_newcomer(trek_door *door, trek_door_visitor *visitor, const trek_door_note *note);
/* Tells invited newcomers who hosts. */
void trek_door_send_on(trek_door *door, const trek_member *host);
/* Sends a visitor that has come for the next group to the host of this process. */
void trek_door_send_visitor_on(const trek_door *door, trek_door_visitor *visitor);
/* Tells those who wait that nobody will come. */
void trek_door_close_lobby(trek_door *door);

#endif
