/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel from inside. Everything below is guarded by the control's lock unless it is said otherwise. */
#ifndef TREK_DISTRIBUTED_CONTROL_CONTROL_INTERNAL_H
#define TREK_DISTRIBUTED_CONTROL_CONTROL_INTERNAL_H

#include "distributed/control/control.h"
#include "distributed/control/tree.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"

#define TREK_CONTROL_BEAT_NS 1000000000
#define TREK_CONTROL_SILENCE_NS 5000000000
/* How long the star may take to say why a connection of the tree has ended. */
#define TREK_CONTROL_TORN_NS 2000000000
#define TREK_CONTROL_TOKEN 256
#define TREK_CONTROL_NEWCOMERS 256
#define TREK_CONTROL_HOOKS 8
#define TREK_CONTROL_PAYLOAD (64u << 20)
/* How a process is lost whose message does not fit its seal. */
#define TREK_CONTROL_FORGED                                                                                                      \
    "sent a message that is not sealed as the next one of its connection: somebody on the network has changed, repeated or "     \
    "left out what it said"

/* A message after the handshake: this head, then `bytes` bytes, then the seal of both. All machines of a job have the same byte
 * order, which the magic number verifies. */
typedef enum trek_control_type {
    TREK_CONTROL_HELLO = 1, /* trek_control_hello */
    TREK_CONTROL_WELCOME,
    TREK_CONTROL_REFUSED,  /* text */
    TREK_CONTROL_START,    /* all are here: trek_control_start */
    TREK_CONTROL_BEAT,     /* trek_control_report[] */
    TREK_CONTROL_GATHER,   /* the parts of gather `number` of a process and of those below it */
    TREK_CONTROL_GATHERED, /* all parts, from process 0 down */
    TREK_CONTROL_LATE,     /* int64: the deadline of gather `number` has passed there */
    TREK_CONTROL_EXTEND,   /* who is missing is alive: wait on */
    TREK_CONTROL_END,      /* int32 status, text */
    TREK_CONTROL_LEFT,     /* trek_control_report of a process that has left; number: gathers it came to */
    TREK_CONTROL_LATER,    /* to a HELLO: who listens is still in the job's group before: come again in a while */
} trek_control_type;

typedef struct trek_control_head {
    uint64_t magic, number;
    uint32_t type, bytes;
} trek_control_head;

#define TREK_CONTROL_MAGIC 0x32306c746b657274u /* "trektl02": protocol and byte order */
#define TREK_CONTROL_MAGIC_OF_4 0x31306c746b657274u /* "trektl01": before there was a handshake, processes began so */

typedef struct trek_control_hello {
    int32_t processes, process, pid, unused;
    char machine[128], host[64];
    char address[64];       /* where it listens for its children, should there be a tree; port 0: it does not */
    int32_t port, generation;
    int64_t left_ns;        /* how long it still waits for all to come */
} trek_control_hello;

/* fan 0: no tree. address, port: of the recipient's parent; port 0: that is process 0. */
typedef struct trek_control_start {
    int32_t same_machine, fan, port;
    char address[64];
} trek_control_start;

/* What a process does. Times are ages when it is sent, and moments of trek_now_ns() where it is kept. */
typedef struct trek_control_report {
    int32_t process;
    int32_t is_long, in_call, exited;
    char phase[32];
    int64_t phase_ns, call_ns, heard_ns;
    uint64_t number, done;  /* of the calls: the last one begun, and ended */
    uint64_t gathers;       /* that it has come to */
    int32_t kind, op, dtype, root;
    int64_t count;
} trek_control_report;

typedef struct trek_control_peer_state {
    trek_control_report report;
    bool joined, left;
    uint64_t gathers;       /* that it has come to, as far as is known */
    char host[64], address[64];
    int pid, port;
} trek_control_peer_state;

/* A connection. fd -1: none, or no longer. */
typedef struct trek_control_link {
    int fd, process;        /* process -1: has not said who it is */
    int error;              /* errno of what ended it; 0: the other side did */
    int64_t since_ns;
    bool closing;           /* what is still to be sent goes out, then it is closed */
    bool lost;              /* the other side is taken for dead; should it live, it is told why */
    bool forged;            /* a message did not fit its seal */
    trek_seal seal;         /* until it is open, messages to be sent wait in out */
    char *in, *out;
    size_t in_used, in_size, out_begin, out_used, out_size;
} trek_control_link;

/* One gather; two of them, used in turn. */
typedef struct trek_control_slot {
    uint64_t number;
    size_t bytes, size;     /* of a part; of data's memory */
    int came;               /* parts of this process and those below it */
    bool done;
    bool extended;          /* process 0 says that it is right to wait on */
    bool *has;              /* [processes] whose part is here */
    char *data;             /* parts by number; all of them when it is done */
} trek_control_slot;

struct trek_control {
    int process, processes, port;
    char address[256], where[TREK_WHERE], token[TREK_CONTROL_TOKEN], machine[128];
    trek_hmac_key secret;   /* of the token */
    double join_s;
    int deaths, flat;       /* of trek_launch; -1: none. Of the options */
    bool (*died)(void *arg, char *text, size_t size); /* of the options, with its arg */
    void *died_arg;
    int32_t generation;
    int64_t death_ns;       /* when it was seen that a process has ended while the others wait for it; 0: none has */
    atomic_bool ended, stopping;
    trek_lock lock;
    trek_condition changed;
    trek_thread thread;
    bool has_lock, has_condition, has_thread;
    int bell, listen_fd;
    bool started, same_machine, welcome;
    bool patient;           /* of the options */
    bool later;             /* this process is to come again: its connection to process 0 has ended */
    int unanswered;         /* so often nobody has answered it */
    trek_status status;     /* why it has ended */
    char message[TREK_ERROR_SIZE];
    int64_t ended_ns, join_until_ns, beat_ns, loop_ns;
    int64_t crowded_ns;     /* since when newcomers wait for a place among those who have said nothing; 0: they do not */
    bool warned;            /* a wrong secret has been logged */
    bool table_logged, zero_logs, beat_now;
    int links_count;        /* process 0: one for each process (its own stays unused); others: one */
    trek_control_link *links, newcomers[TREK_CONTROL_NEWCOMERS];
    int newcomers_top, newcomers_polled; /* top: entries from here on are unused */
    trek_tree_node node;    /* this process's place; from the start on */
    bool has_tree;
    char up_address[64];    /* of the parent that is not process 0; up_port 0: it is */
    int up_port;
    trek_control_link up, below[TREK_TREE_FAN]; /* in the tree, but for those that are in the star */
    int torn;               /* to whom such a connection has ended, and when; 0: to none */
    int64_t torn_ns;
    struct {
        uint64_t number;
        int64_t deadline_ns, decide_ns; /* 0: nobody has asked */
    } late;                 /* process 0, in a tree: what there is to decide, when all have said that they have come */
    trek_control_peer_state *peers;
    struct pollfd *polled;
    const char *phase;      /* this process's, a literal */
    trek_control_slot slots[2];
    uint64_t gathers;
    trek_control_gatherer gatherer;
    int relay_from;         /* whose states the next beat begins with */
    struct {
        trek_control_ended_fn fn;
        void *arg;
        bool called, calling;
    } hooks[TREK_CONTROL_HOOKS];
};

/* control.c */
/* What there is without any connection, and its end. Options are taken as they are. NULL and MEMORY. */
trek_control *trek_control_make(const trek_control_opts *opts);
void trek_control_destroy(trek_control *control);

/* wire.c */
/* Queues a message and sends what can be sent; a connection that is broken shows when it is read. */
void trek_control_send(trek_control *control, trek_control_link *link, trek_control_type type, uint64_t number, const void *data,
                       size_t bytes);
void trek_control_flush(trek_control_link *link);
/* Returns whether messages wait and may be sent. */
bool trek_control_is_full(const trek_control_link *link);
/* Begins the handshake of a connection to another process. A link that listens needs no such call. */
void trek_control_call_up(trek_control *control, trek_control_link *link);
/* Continues the handshake of a connection with the bytes that have been read. DONE: it is complete. */
trek_shake trek_control_shake(trek_control *control, trek_control_link *link);
/* Reads what is there. false: the connection has ended. */
bool trek_control_receive(trek_control *control, trek_control_link *link);
/* The first whole message in the buffer: its head and payload; false: none. bad: not one of ours, or not what the other side has
 * said: link->forged. */
bool trek_control_message(trek_control_link *link, trek_control_head *head, const char **data, bool *bad);
void trek_control_consume(trek_control_link *link, const trek_control_head *head);
void trek_control_link_close(trek_control_link *link);
void trek_control_wake(trek_control *control);

/* serve.c */
void *trek_control_serve(void *control);
/* Reads what has come on a connection and acts on each message: one of a process of the job, and one of a stranger. */
void trek_control_serve_link(trek_control *control, trek_control_link *link);
void trek_control_serve_newcomer(trek_control *control, trek_control_link *newcomer);
/* Returns whether the process that was called has proved itself. If false, link->forged says whether it has failed for good. */
bool trek_control_has_proof(trek_control *control, trek_control_link *link);
/* The same for a connection of the tree. */
void trek_control_serve_branch(trek_control *control, trek_control_link *link);

/* branch.c */
/* Connects to the parent, where it is not process 0. Without the lock. */
trek_status trek_control_climb(trek_control *control);
/* place.c */
/* Takes the place that process 0 gives: fan 0: there is no tree. */
void trek_control_take_place(trek_control *control, int fan);
/* The fan of the tree that this job gets: 0 where some process cannot have children. */
int trek_control_choose_fan(const trek_control *control);
trek_control_link *trek_control_up(trek_control *control);
/* The connection to the k-th child. */
trek_control_link *trek_control_below(trek_control *control, int k);

/* end.c */
void trek_control_end_locked(trek_control *control, trek_status status, const char *message);
void trek_control_lost(trek_control *control, int process, const char *how);
void trek_control_take_left(trek_control *control, int process, const trek_control_report *report, uint64_t gathers);
void trek_control_say_goodbye(trek_control *control, bool exited);
void trek_control_check_left(trek_control *control);

/* state.c */
/* Calls, and says who this process is, and where it listens for children. */
void trek_control_say_hello(trek_control *control, trek_control_link *link, const char *address, int port);
void trek_control_own_report(trek_control *control, trek_control_report *report);
void trek_control_take_report(trek_control *control, const trek_control_report *report);
void trek_control_send_beats(trek_control *control);
/* "in phase \"save\" for 2.1 s, in call 7, barrier, for 1 s": as last heard. */
char *trek_control_doing(trek_control *control, int process, char *text, size_t size);
void trek_control_log_table(trek_control *control);
bool trek_control_excused_locked(trek_control *control, int process, int64_t deadline_ns);

/* gather.c */
void trek_control_contribute(trek_control *control, int process, uint64_t number, const void *data, size_t bytes);
void trek_control_gathered(trek_control *control, uint64_t number, const void *data, size_t bytes);
void trek_control_late(trek_control *control, uint64_t number, int64_t deadline_ns);
void trek_control_decide_late(trek_control *control);
void trek_control_extend(trek_control *control, uint64_t number);
void trek_control_gather_left(trek_control *control);

#endif
