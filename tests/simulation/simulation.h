/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated job: its processes, their threads, the network between their machines and the time, all from one seed. What
 * distributed/system/ declares is defined here. Of one schedule everything stands in `sim`. */
#ifndef TREK_TESTS_SIMULATION_SIMULATION_H
#define TREK_TESTS_SIMULATION_SIMULATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/rank_context.h"
#include "tests/simulation/fiber.h"

#define SIM_MS ((int64_t)1000000)
#define SIM_S ((int64_t)1000000000)
#define SIM_NEVER INT64_MAX

enum { SIM_PROCESSES = 96, SIM_MACHINES = 64, SIM_FAULTS = 12, SIM_FDS = 512, SIM_NUMBERS = 64 };

/* --- chance --------------------------------------------------------------------------------------------------------- */

typedef struct sim_random {
    uint64_t state;
} sim_random;

uint64_t sim_draw(sim_random *random);
/* 0 .. below-1. */
int64_t sim_below(sim_random *random, int64_t below);
/* Whether something happens that does so in `of` out of 1000 cases. */
bool sim_chance(sim_random *random, int of);
/* Of a span over several orders of magnitude: as often small as large. */
int64_t sim_span(sim_random *random, int64_t low, int64_t high);

/* --- threads --------------------------------------------------------------------------------------------------------- */

typedef enum sim_state { SIM_READY, SIM_WAITING, SIM_ENDED } sim_state;

typedef struct trek_simulated_thread {
    struct sim_process *process;
    fiber *fiber;
    int number; /* in the schedule, from 1 */
    sim_state state;
    bool detached, timed_out, held;                    /* held: it could run, but its process is stopped */
    uint64_t wait;                                     /* counts its waits: a wake of an earlier one is none */
    struct trek_simulated_thread *next_waiting, *next; /* of a lock or a condition; of its process */
    struct trek_simulated_thread *joiner;
    trek_lock *waits_lock;
    trek_condition *waits_condition;
    const void *word;      /* it waits for a change of this one */
    const char *waits_for; /* in words */
    void *(*run)(void *arg);
    void *arg;
    char name[16];
    struct sim_own *own; /* TREK_PER_THREAD */
} sim_thread;

/* What belongs to a process or a thread. */
typedef struct sim_own {
    const void *key;
    struct sim_own *next;
    _Alignas(64) char value[];
} sim_own;

/* --- processes ------------------------------------------------------------------------------------------------------- */

typedef enum sim_end { SIM_ALIVE, SIM_EXITED, SIM_KILLED } sim_end;

typedef struct sim_variable {
    char name[24], value[64];
} sim_variable;

typedef struct sim_block {
    struct sim_block *before, *next;
    struct sim_process *process; /* NULL: nobody's */
    size_t bytes;
    size_t alignment;
} sim_block;

typedef struct sim_mapping {
    char *memory;
    size_t bytes;
    uint64_t file; /* 0: of no file */
    int64_t offset;
    struct sim_mapping *next;
} sim_mapping;

typedef struct sim_process {
    int pid, number, machine; /* number: what the scenario calls it */
    sim_end end;
    int code;              /* of its exit */
    bool stopped, tainted; /* tainted: a fault has touched it or its machine */
    int64_t stopped_until;
    int slow; /* in 1000: how often a step of its threads takes long */
    int64_t slow_ns;
    uint64_t steps, sends; /* scheduling points passed; calls that send */
    int64_t began_ns, ended_ns;
    sim_thread *threads;
    sim_own *own;
    void (*hooks[8])(void);
    int n_hooks;
    sim_variable variables[12];
    int n_variables;
    struct sim_socket *sockets[SIM_FDS];
    sim_block blocks; /* head of a ring */
    int n_blocks;
    sim_mapping *mappings;
    int files[32];  /* real descriptors that it has open, plus 1 */
    int largest_group; /* of those whose members it has entered */
    int files_kept; /* so many of them until it ends */
    int threads_kept;
    trek_job_context job; /* trek_job_here while it does not run */
    int (*main)(void *arg);
    void *arg;
} sim_process;

/* --- events ------------------------------------------------------------------------------------------------------------ */

typedef void (*sim_event_fn)(void *arg, uint64_t number);

typedef struct sim_event {
    int64_t at_ns;
    uint64_t order, number;
    sim_event_fn fn;
    void *arg;
} sim_event;

/* --- faults --------------------------------------------------------------------------------------------------------------- */

typedef enum sim_fault_kind {
    SIM_KILL,  /* a process, as by kill -9 */
    SIM_POWER, /* a machine: nothing is heard of it any more */
    SIM_STOP,  /* a process, for a while */
    SIM_SLOW,  /* a process, from then on */
    SIM_CUT,   /* between two machines, both ways */
    SIM_CUT_ONE_WAY,
    SIM_ISOLATE, /* one machine from all others */
    SIM_FULL,    /* no memory in files from then on, for a while */
    SIM_SUSPEND, /* all processes of a machine, for a while */
    SIM_LINGER,  /* one thread of a process, which comes to a moment; its others go on */
    SIM_FAULT_KINDS
} sim_fault_kind;

/* The one that comes to the moment, or its machine. */
enum { SIM_WHO_COMES = -1 };

typedef struct sim_fault {
    sim_fault_kind kind;
    int process, other; /* or machines */
    int64_t at_ns;      /* when; */
    uint64_t at_step;   /* or at the process's so many-th scheduling point, if it is not 0; */
    uint64_t at_send;   /* or when it sends for the so many-th time */
    int64_t for_ns;     /* SIM_NEVER: for ever */
    bool follows, done; /* follows: so many of the process's points, or sends, or so long after the fault before it, or */
    int moment, turns;  /* after somebody, or its own process, has come to this moment for the so many-th time, from 0; 0: none */
    bool own;
} sim_fault;

/* --- one schedule --------------------------------------------------------------------------------------------------------- */

typedef struct sim_settings {
    int preempt;                   /* in 1000: how often a scheduling point lets another thread run */
    int spurious;                  /* in 1000: how often a wait ends by itself */
    int64_t step_ns;               /* what a scheduling point takes */
    int64_t latency_ns, jitter_ns; /* of the network, one way */
    int spikes;                    /* in 1000: how often a packet is late, by up to */
    int64_t spike_ns;
    int splits;   /* in 1000: how often what is sent arrives in pieces */
    int64_t room; /* bytes on the way in each direction of a connection */
} sim_settings;

typedef struct sim_world {
    uint64_t seed;
    sim_random random, chance, nonces; /* of the order of things; of the network; of what processes draw */
    sim_settings settings;
    int64_t now_ns, bound_ns; /* simulated time; when it is over at the latest */
    uint64_t steps, most_steps, hash, order;
    bool trace, trace_points, over;
    sim_thread *running; /* NULL: the test itself */
    sim_thread **ready;
    int n_ready, cap_ready, n_threads;
    sim_event *events;
    int n_events, cap_events;
    int machines, n_processes;
    int began_with; /* so many processes. Each further number belongs to one process for good: */
    int owners[SIM_NUMBERS]; /* which has its rendezvous at this port of its machine, as one number; 0: nobody has had it */
    sim_process *processes[SIM_PROCESSES];
    int n_faults;
    sim_fault faults[SIM_FAULTS];
    uint32_t left_out;                             /* bits: faults that do not happen, while they are shrunk */
    int64_t cut_until[SIM_MACHINES][SIM_MACHINES]; /* from, to */
    bool powerless[SIM_MACHINES], disturbed;       /* a fault has happened */
    bool warming;                                  /* what is allocated outlives the schedule: tables of the library, made once */
    int64_t disk_full_until;
    struct sim_socket *listening;
    int next_port;
    char failure[1024]; /* "": none so far */
    uint64_t next_file;
} sim_world;

extern sim_world sim;

/* --- schedule.c --- */
void sim_reset(uint64_t seed);
/* Runs until all processes have ended, or the time is over. */
void sim_run(void);
/* After it: what is left of the processes goes. */
void sim_clear(void);
/* A scheduling point of the thread that runs. */
void sim_point(const char *what);
/* Sleeps until it is woken, or that time: false then. */
bool sim_wait(int64_t until_ns, const char *what);
void sim_wake(sim_thread *thread);
void sim_at(int64_t at_ns, sim_event_fn fn, void *arg, uint64_t number);
sim_thread *sim_thread_new(sim_process *process, void *(*run)(void *arg), void *arg);
void sim_threads_drop(sim_process *process);
void sim_hold(sim_process *process);
void sim_let_go(sim_process *process);
/* The first failure of a schedule counts. */
void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line of the trace of events, and of its hash. */
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sim_hash(uint64_t value);

/* --- process.c --- */
sim_process *sim_process_begin(int number, int machine, int (*main)(void *arg), void *arg);
void sim_process_set(sim_process *process, const char *name, const char *value);
/* Its end: nothing of it is run any more. */
void sim_process_kill(sim_process *process, sim_end end);
sim_process *sim_here(void);
/* What a process has open, in words; "": nothing. */
const char *sim_process_left(const sim_process *process);

/* --- network.c --- */
void sim_network_close(sim_process *process, bool silently);
void sim_network_clear(void);
int sim_sockets_open(const sim_process *process);

/* --- memory.c --- */
void sim_memory_begin(void);
void sim_memory_drop(sim_process *process);
int sim_files_open(const sim_process *process);
/* The same for all addresses at which a word of a file is mapped. */
const void *sim_word_key(const void *word, bool shared);

/* --- faults.c --- */
typedef struct sim_fault_mix {
    int most; /* faults of a schedule */
    int weights[SIM_FAULT_KINDS];
    int processes, machines;
    int64_t within_ns;  /* they happen */
    uint64_t steps;     /* of a process, for those that come by its steps */
    int64_t longest_ns; /* of what passes */
} sim_fault_mix;

void sim_faults_draw(sim_random *random, const sim_fault_mix *mix);
/* One of the processes with which the job began has come to a moment: faults that wait for it come from here on. */
void sim_faults_come_to(int moment, sim_process *who);
/* Events of those that come by time. */
void sim_faults_arm(void);
/* Those that come by the steps of a process. Whether the running one is dead. */
void sim_faults_look(sim_process *process);
char *sim_fault_text(const sim_fault *fault, char *text, size_t size);
bool sim_cut(int from, int to);

#endif
