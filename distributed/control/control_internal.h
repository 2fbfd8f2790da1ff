/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the control channel. The control's lock guards everything below unless stated otherwise. */
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
#define TREK_CONTROL_ARRIVALS 256
/* How long a stranger may take to say who it is, if others wait for its place. */
#define TREK_CONTROL_HURRIED_NS 250000000
#define TREK_CONTROL_HOOKS 40 /* each GPU of a process may have one */
#define TREK_CONTROL_PAYLOAD (64u << 20)
/* The words for the loss of a process whose message does not fit its seal. */
#define TREK_CONTROL_FORGED                                                                                                      \
    "sent a message that is not sealed as the next one of its connection: somebody on the network has changed, repeated or "     \
    "left out what it said"

/* A message after the handshake: this head, then `bytes` bytes, then the seal of both. All machines of a job have the same byte
 * order, which the magic number verifies. */
typedef enum trek_control_type {
    TREK_CONTROL_HELLO = 1, /* a trek_control_hello */
    TREK_CONTROL_WELCOME,
    TREK_CONTROL_REFUSED,  /* a text */
    TREK_CONTROL_START,    /* all have come: a trek_control_start */
    TREK_CONTROL_BEAT,     /* an array of trek_control_report */
    TREK_CONTROL_GATHER,   /* the parts of gather `number` of a process and of those below it */
    TREK_CONTROL_GATHERED, /* all parts, from process 0 down */
    TREK_CONTROL_LATE,     /* an int64: the deadline of gather `number` has passed at the sender */
    TREK_CONTROL_EXTEND,   /* the missing processes are alive: keep waiting */
    TREK_CONTROL_END,      /* an int32 status and a text */
    TREK_CONTROL_LEFT,     /* the trek_control_report of a process that has left; number: the gathers that it took part in */
    TREK_CONTROL_LATER,    /* the answer to a HELLO if the listener is still in the job's group before: come again later */
    TREK_CONTROL_ASK,      /* int64s, of which the first is the subject of the question with that number */
    TREK_CONTROL_ANSWER,   /* the same for the answer to it */
} trek_control_type;

typedef struct trek_control_head {
    uint64_t magic, number;
    uint32_t type, bytes;
} trek_control_head;

#define TREK_CONTROL_MAGIC 0x32306c746b657274u      /* "trektl02": protocol and byte order */
#define TREK_CONTROL_MAGIC_OF_4 0x31306c746b657274u /* "trektl01": the first word of processes of versions without a handshake   \
                                                     */

typedef struct trek_control_hello {
    int32_t processes, process, pid, unused;
    char machine[128], host[64];
    char address[64]; /* where it listens for its children, in case there is a tree; port 0: it does not listen */
    int32_t port, generation;
    int64_t left_ns; /* how long it still waits for all to come */
} trek_control_hello;

/* fan 0: there is no tree. address, port: of the recipient's parent; port 0: the parent is process 0. */
typedef struct trek_control_start {
    int32_t same_machine, fan, port;
    char address[64];
} trek_control_start;

/* What a process does. Times are ages in messages, and values of trek_now_ns() in memory. */
typedef struct trek_control_report {
    int32_t process;
    int32_t is_long, in_call, exited;
    char phase[32];
    int64_t phase_ns, call_ns, heard_ns;
    uint64_t number, done; /* of the last call that was begun, and of the last that ended */
    uint64_t gathers;      /* how many it has taken part in */
    int32_t kind, op, dtype, root;
    int64_t count;
} trek_control_report;

typedef struct trek_control_peer_state {
    trek_control_report report;
    bool joined, left;
    uint64_t gathers; /* how many it has taken part in, as far as is known */
    char host[64], address[64];
    int pid, port;
} trek_control_peer_state;

/* A connection. fd -1: it does not exist, or no longer. */
typedef struct trek_control_link {
    int fd, process; /* process -1: the other end has not said who it is */
    int error;       /* the errno that ended it; 0: the other end closed it */
    int64_t since_ns;
    bool closing;   /* the rest of the output is sent, then the connection is closed */
    bool lost;      /* the other end is considered dead; if it is alive after all, it gets the reason */
    bool forged;    /* a message did not fit its seal */
    trek_seal seal; /* until the seal is open, messages wait in `out` */
    char *in, *out;
    size_t in_used, in_size, out_begin, out_used, out_size;
} trek_control_link;

/* The state of one gather. There are two, which are used alternately. */
typedef struct trek_control_slot {
    uint64_t number;
    size_t bytes, size; /* of a part; of the memory at `data` */
    int came;           /* how many parts of this process and those below it have arrived */
    bool done;
    bool extended; /* process 0 says that it is right to keep waiting */
    bool *has;     /* [processes] whose parts have arrived */
    char *data;    /* the parts by number; all of them when the gather is done */
} trek_control_slot;

/* A subject of questions. */
typedef struct trek_control_subject_state {
    trek_control_answer_fn fn; /* process 0; NULL: nobody answers */
    void *arg;
    uint64_t asked;            /* the number of this process's last question */
    bool has_answer;
    int64_t answer[TREK_CONTROL_ANSWERS];
} trek_control_subject_state;

struct trek_control {
    int process, processes, port;
    char address[256], where[TREK_WHERE], token[TREK_CONTROL_TOKEN], machine[128];
    trek_hmac_key secret; /* made from the token */
    double join_s;
    int deaths, flat;                                 /* from trek_launch, -1: none; from the options */
    bool (*died)(void *arg, char *text, size_t size); /* from the options, called with its arg */
    void *died_arg;
    int32_t generation;
    int64_t death_ns; /* when this process saw that a process for which the others wait has ended; 0: none has */
    atomic_bool ended, stopping;
    trek_lock lock;
    trek_condition changed;
    trek_thread thread;
    bool has_lock, has_condition, has_thread;
    int bell, listen_fd;
    bool started, same_machine, welcome;
    bool patient;       /* from the options */
    bool later;         /* this process must come again: its connection to process 0 has ended */
    int unanswered;     /* how many times in a row nobody has answered it */
    trek_status status; /* why the group has ended */
    char message[TREK_ERROR_SIZE];
    int64_t ended_ns, join_until_ns, beat_ns, loop_ns;
    int64_t still_ns;   /* when the thread last noticed that this process had stood still; 0: it never has */
    int64_t crowded_ns; /* when arrivals began to wait for a place among the silent ones; 0: none waits */
    bool warned;        /* a wrong secret has been logged */
    bool table_logged, zero_logs, beat_now;
    int links_count; /* process 0: one for each process, of which its own is not used; other processes: one */
    trek_control_link *links, arrivals[TREK_CONTROL_ARRIVALS];
    int arrivals_top, arrivals_polled; /* top: entries from here on are not used */
    trek_tree_node node;                 /* the position of this process, known from the start on */
    bool has_tree;
    char up_address[64]; /* of a parent other than process 0; up_port 0: the parent is process 0 */
    int up_port;
    trek_control_link up, below[TREK_TREE_FAN]; /* connections of the tree, except those that belong to the star */
    int torn;                                   /* the process whose connection of the tree has ended, and when; 0: none has */
    int64_t torn_ns;
    struct {
        uint64_t number;
        int64_t deadline_ns, decide_ns; /* 0: nobody has asked */
    } late;                             /* process 0 in a tree: what must be decided when all have said whether they have come */
    trek_control_peer_state *peers;
    struct pollfd *polled;
    const char *phase; /* a literal, of this process */
    trek_control_slot slots[2];
    uint64_t gathers;
    trek_control_gatherer gatherer;
    trek_control_subject_state subjects[TREK_CONTROL_SUBJECTS];
    int n_subjects;
    int relay_from; /* the process whose state the next beat begins with */
    struct {
        trek_control_ended_fn fn;
        void *arg;
        bool called, calling;
    } hooks[TREK_CONTROL_HOOKS];
};

/* control.c */
/* Leaves the group: hears what has come, then says goodbye. The thread still runs. */
void trek_control_leave(trek_control *control, bool exited);
/* Make what needs no connection, and free it. The options are used as they are. make returns NULL on failure (MEMORY). */
trek_control *trek_control_make(const trek_control_opts *opts);
void trek_control_destroy(trek_control *control);

/* wire.c */
/* Queues a message and sends what can be sent now. A broken connection is noticed when it is read. */
void trek_control_send(trek_control *control, trek_control_link *link, trek_control_type type, uint64_t number, const void *data,
                       size_t bytes);
void trek_control_flush(trek_control_link *link);
/* Returns whether messages wait and may be sent. */
bool trek_control_is_full(const trek_control_link *link);
/* Begins the handshake of a connection to another process. A link that listens needs no such call. */
void trek_control_call_up(trek_control *control, trek_control_link *link);
/* Continues the handshake of a connection with the bytes that have been read. DONE: it is complete. */
trek_shake trek_control_shake(trek_control *control, trek_control_link *link);
/* Reads what has arrived. Returns false if the connection has ended. */
bool trek_control_receive(trek_control *control, trek_control_link *link);
/* Gets the first whole message of the buffer: its head and payload. Returns false if there is none. bad: it is not a
 * message of trek, or not what the other end has sent (link->forged). */
bool trek_control_message(trek_control_link *link, trek_control_head *head, const char **data, bool *bad);
void trek_control_consume(trek_control_link *link, const trek_control_head *head);
void trek_control_link_close(trek_control_link *link);
void trek_control_wake(trek_control *control);

/* arrivals.c: accepts the connections of strangers, as far as there are places for them. */
void trek_control_accept_arrivals(trek_control *control);
/* Reads what a stranger has sent, and admits or refuses it. */
void trek_control_serve_arrival(trek_control *control, trek_control_link *arrival);

/* serve.c */
void *trek_control_serve(void *control);
/* Reads what has come on the connection of a process of the job, and acts on each message. */
void trek_control_serve_link(trek_control *control, trek_control_link *link);
/* Returns whether the process that was called has proved itself. If false, link->forged says whether it has failed for good. */
bool trek_control_has_proof(trek_control *control, trek_control_link *link);
/* Serves a connection of the tree in the same way. */
void trek_control_serve_branch(trek_control *control, trek_control_link *link);

/* branch.c */
/* Connects to the parent if that is not process 0. Called without the lock. */
trek_status trek_control_climb(trek_control *control);
/* Gives the connection to the parent up if that does not answer. */
void trek_control_notice_silent_parent(trek_control *control, int64_t now);
/* place.c */
/* Takes the position that process 0 assigns. fan 0: there is no tree. */
void trek_control_take_place(trek_control *control, int fan);
/* Returns the fan of the tree that this job gets, or 0 if some process cannot have children. */
int trek_control_choose_fan(const trek_control *control);
trek_control_link *trek_control_up(trek_control *control);
/* Returns the connection to the k-th child. */
trek_control_link *trek_control_below(trek_control *control, int k);

/* end.c */
void trek_control_end_locked(trek_control *control, trek_status status, const char *message);
void trek_control_lost(trek_control *control, int process, const char *how);
/* Takes what another process has said of the end of the group. */
void trek_control_take_end(trek_control *control, const char *data, size_t bytes);
void trek_control_take_left(trek_control *control, int process, const trek_control_report *report, uint64_t gathers);
void trek_control_say_goodbye(trek_control *control, bool exited);
void trek_control_check_left(trek_control *control);
/* Ends the group if process 0 has left and owes this process an answer. */
void trek_control_ask_left(trek_control *control);

/* process_state.c */
/* Sends who this process is, and where it listens for children. */
void trek_control_say_hello(trek_control *control, trek_control_link *link, const char *address, int port);
void trek_control_own_report(trek_control *control, trek_control_report *report);
void trek_control_take_report(trek_control *control, const trek_control_report *report);
void trek_control_send_beats(trek_control *control);
/* Writes what a process was doing when last heard, e.g. "in phase \"save\" for 2.1 s, in call 7, barrier, for 1 s". */
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

/* ask.c */
void trek_control_take_question(trek_control *control, trek_control_link *link, uint64_t number, const char *data, size_t bytes);
void trek_control_take_answer(trek_control *control, const trek_control_link *link, uint64_t number, const char *data,
                              size_t bytes);

#endif
