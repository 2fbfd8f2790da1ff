/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the rendezvous: what its thread (rendezvous.c) and the processes that look for each other share
 * (find_members.c). */
#ifndef TREK_DISTRIBUTED_CONTROL_RENDEZVOUS_INTERNAL_H
#define TREK_DISTRIBUTED_CONTROL_RENDEZVOUS_INTERNAL_H

#include "distributed/control/rendezvous.h"
#include "distributed/control/handshake.h"
#include "distributed/system/system.h"
#include "tensor/version.h"

#define TREK_RENDEZVOUS_BEAT_NS 250000000
#define TREK_RENDEZVOUS_SILENCE_NS 5000000000
/* How many strangers may be connected that have not proved that they belong to the job, in all and from one address.
 * If more want to connect, one that has been silent for this long is disconnected; an address with many connections
 * loses one first. A process of the job speaks as soon as it has connected. */
#define TREK_RENDEZVOUS_STRANGERS 64
#define TREK_RENDEZVOUS_STRANGERS_OF_ADDRESS 16
#define TREK_RENDEZVOUS_PATIENCE_NS 250000000
#define TREK_RENDEZVOUS_PATIENCE_OF_MANY_NS 100000000
#define TREK_RENDEZVOUS_REST_NS 20000000

/* A process whose thread has not run for this long has stood still; and this much later its group may still end
 * because of that. */
#define TREK_RENDEZVOUS_STILL_NS 2500000000
#define TREK_RENDEZVOUS_NOTICED_NS 2000000000

/* What is sent over a rendezvous's connections after the handshake, in both directions. */
typedef enum trek_rendezvous_kind {
    TREK_RENDEZVOUS_VISIT = 1,   /* `number` has come and waits for the next group */
    TREK_RENDEZVOUS_PROBE,       /* asks whether the process is alive */
    TREK_RENDEZVOUS_RUNNING,     /* one answer: it is in a group without the process that asked; */
    TREK_RENDEZVOUS_COMING,      /* the other: it will come as soon as it knows that its group has ended */
    TREK_RENDEZVOUS_BEAT,        /* the sender is still waiting */
    TREK_RENDEZVOUS_GROUP,       /* where the next group comes together, and the recipient's position in it */
    TREK_RENDEZVOUS_GONE,        /* the others have gone on without the recipient */
    TREK_RENDEZVOUS_FEW,         /* only `processes` are left of the `least` that are needed */
    TREK_RENDEZVOUS_STILL,       /* all who are left have stood still, and the others may have gone on */
    TREK_RENDEZVOUS_JOIN,        /* `number` of `processes` (-1: a newcomer) asks to be let in; its rendezvous is at address and
                                    port, and it runs `program` of this `version` of trek */
    TREK_RENDEZVOUS_GO,          /* an answer, also to a visit: the host of the next group is at address and port. A joiner is
                                    process number `process` of a job that began with `processes` */
    TREK_RENDEZVOUS_OVER,        /* an answer: the job has ended */
    TREK_RENDEZVOUS_TAKEN,       /* an answer: the process of that number is alive */
    TREK_RENDEZVOUS_DIFFERS,     /* an answer: the others run another program */
    TREK_RENDEZVOUS_OTHER_WORLD, /* an answer: the job has `processes`, which is not the number that the joiner assumes */
    TREK_RENDEZVOUS_LATER,       /* an answer: the first group is still forming, and nobody can join it yet */
    TREK_RENDEZVOUS_OTHER_VERSION, /* an answer: the others are of this `version` of trek */
    TREK_RENDEZVOUS_FULL,        /* an answer: the job would have more than TREK_MAX_RANKS ranks */
    TREK_RENDEZVOUS_APART,       /* an answer: no engine joins its machine and the others */
    TREK_RENDEZVOUS_FAREWELL,    /* the member `number` leaves, and has `done` so much; it is answered, so that it knows */
} trek_rendezvous_kind;

typedef struct trek_rendezvous_note {
    uint64_t magic; /* protocol and byte order */
    int32_t kind, number;
    int64_t generation;
    uint64_t program, machine;
    int64_t done;
    int32_t process, processes, port, least;
    int32_t awake;  /* of a visit: it was in the group that has ended, and has not stood still */
    int32_t ranks, version;
    uint32_t engines;
    char address[64];
    unsigned char code[TREK_SEAL_BYTES]; /* the seal of everything before it */
} trek_rendezvous_note;

/* A connection that carries notes. With only fd set, nothing has been sent yet. */
typedef struct trek_rendezvous_line {
    int fd;           /* -1: not connected, or the connection has ended */
    trek_shake fault; /* why the handshake has failed; 0: it has not failed */
    bool holds, deaf; /* holds: a note waits for the end of the handshake; deaf: input is discarded */
    trek_rendezvous_note held;
    trek_seal seal;
    size_t used;
    char in[sizeof(trek_rendezvous_note)];
} trek_rendezvous_line;

typedef struct trek_rendezvous_visitor {
    trek_rendezvous_line line;
    int number;                /* -1: it has not said who it is */
    bool answered;             /* it knows the next group */
    bool awake;                /* as it has said */
    bool waits, invited, told; /* of a joiner; told: it knows how its waiting has ended */
    int met;                   /* how many meetings of the group it has waited through */
    trek_joiner joiner;
    int64_t generation, heard_ns, since_ns;
    uint64_t from; /* its address */
} trek_rendezvous_visitor;

/* The lock guards everything that changes. */
struct trek_rendezvous {
    trek_member own;
    trek_hmac_key secret;
    trek_lock lock;
    trek_condition changed;
    trek_thread thread;
    bool has_lock, has_condition, has_thread, stopping;
    int bell, listen_fd;
    int join_fd; /* listens at the job's address; -1: not in this process */
    uint64_t program;
    int world;        /* the number of processes with which the job began */
    int unused;       /* the first number that no process has had, at least */
    bool joins;       /* it is in no group yet and is about to join one */
    int64_t loop_ns;  /* when its thread last began to wait, which it does every quarter of a second */
    int64_t still_ns; /* when that was last found to be long ago; 0: never */
    int64_t lost_ns;  /* when the process began to look for the next group */
    bool running;     /* it is in the group of `members`; otherwise it looks for the next one */
    int64_t generation;
    int n_members, n_entered; /* the members from n_entered on have been invited, and were not in the group */
    trek_member *members;
    int64_t left_done; /* the most that a member had done that has said farewell; 0: none has */
    bool is_guest; /* it waits at the rendezvous of `host`, which is alive; processes that come here for the next group are
                    * sent there */
    trek_member host;
    bool hosts; /* it receives the others at its own rendezvous, */
    int elder;  /* and so does the member elder - 1, which comes before it and seemed dead; 0: none does */
    int n_visitors, cap_visitors, cap_polled;
    trek_rendezvous_visitor *visitors;
    struct pollfd *polled;
    int64_t beat_ns;
    int64_t rest_ns;          /* until then nobody is let in, because places or descriptors are missing; 0: none are missing */
    trek_rendezvous_line host_line; /* to the host that said where the next group is; used by the thread that looks */
};

/* What trek_rendezvous_note.version is for this version of trek. */
#define TREK_RENDEZVOUS_VERSION (TREK_VERSION_MAJOR << 16 | TREK_VERSION_MINOR << 8 | TREK_VERSION_PATCH)

/* note.c */
trek_rendezvous_note trek_rendezvous_note_of(const trek_rendezvous *rendezvous, trek_rendezvous_kind kind);
/* Answers a whole note that arrived where processes join the control channel. Returns whether it is from a process that wants to
 * join the job; that process is then told to come again later. `process` is the number of the one that answers. */
bool trek_rendezvous_answer_early(const char *in, int process, trek_seal *seal, int fd);
/* Tells a process that wants to join a group over the control channel to come again, because not all have left the
 * group before. */
void trek_rendezvous_put_off(trek_rendezvous_line *line);
/* Sends a note, and returns whether it could be sent in one piece. The first note of a caller is kept until the other end has
 * proved itself; trek_rendezvous_receive then sends it. Further notes are dropped until then. */
bool trek_rendezvous_send(const trek_rendezvous *rendezvous, trek_rendezvous_line *line, const trek_rendezvous_note *note);
/* Continues the handshake and reads a note as far as it has arrived. Returns 1 if the note is whole, 0 if more must be read, and
 * 2 for a process of this job that is to join a group by the control channel. Returns -1 if the connection has ended, or if what
 * arrived is not a note of this job or its seal does not fit. */
int trek_rendezvous_receive(const trek_rendezvous *rendezvous, trek_rendezvous_line *line, trek_rendezvous_note *note);
/* Returns whether the process stood still when its group ended, or later. Called with the lock held. */
bool trek_rendezvous_stood_still(const trek_rendezvous *rendezvous);
/* Returns whether the number belongs to the group. Called with the lock held. */
bool trek_rendezvous_is_member(const trek_rendezvous *rendezvous, int number);
/* Closes the connection of a visitor. A visitor that was answered still counts as one that has ended. Called
 * with the lock held. */
void trek_rendezvous_drop(trek_rendezvous_visitor *visitor);
/* Makes the thread look again at what it must watch. */
void trek_rendezvous_wake(const trek_rendezvous *rendezvous);

/* rendezvous.c: reads what a visitor has sent. Called with the lock held. */
void trek_rendezvous_read_visitor(trek_rendezvous *rendezvous, trek_rendezvous_visitor *visitor);

/* find_members.c */
/* Waits for a note other than a beat, and answers beats. Returns false if none will come. until_ns 0: no limit.
 * *heard is set by anything that arrives. host is the process whose guest this process becomes when it hears of it;
 * NULL: none. */
bool trek_rendezvous_wait(trek_rendezvous *rendezvous, trek_rendezvous_line *line, const trek_member *host, int64_t until_ns,
                          trek_rendezvous_note *note,
                    bool *heard);

/* Becomes the guest of the host. `lost`: the host is dead. */
trek_status trek_rendezvous_visit(trek_rendezvous *rendezvous, const trek_member *host, int64_t until_ns,
                                  trek_rendezvous_place *place, bool *lost);

/* join_queue.c, called with the lock held */
void trek_rendezvous_take_joiner(trek_rendezvous *rendezvous, trek_rendezvous_visitor *visitor, const trek_rendezvous_note *note);
/* Raises the first number that no process has had. */
void trek_rendezvous_raise_unused(trek_rendezvous *rendezvous, int number);
/* Tells invited joiners who hosts. */
void trek_rendezvous_send_on(trek_rendezvous *rendezvous, const trek_member *host);
/* Sends a visitor that has come for the next group to the host of this process. */
void trek_rendezvous_send_visitor_on(const trek_rendezvous *rendezvous, trek_rendezvous_visitor *visitor);
/* Tells those who wait that nobody will come. */
void trek_rendezvous_close_join_queue(trek_rendezvous *rendezvous);

#endif
