/* SPDX-License-Identifier: Apache-2.0 */
/* A job of which one process fails: what its processes are told, do and leave; how it is run; what is expected. */
#ifndef TREK_TESTS_DISTRIBUTED_FAILURES_H
#define TREK_TESTS_DISTRIBUTED_FAILURES_H

#include <stdatomic.h>
#include <sys/types.h>

#include "data/loader.h"
#include "distributed/comm/comm.h"
#include "distributed/trainer.h"

enum {
    SAMPLES = 96,
    IN = 8,
    HIDDEN = 48,
    WIDE = 400,
    CLASSES = 4,
    BATCH = 24,
    STEPS = 12,
    LONGEST = 5000,
    DEADLINE_S = 3, /* longer than anybody is kept from the machine by others */
    MOST_PROCESSES = 3,
    AT_ONCE = 8,
    SCENARIOS = 64,
    FAILED = 10,
    TEXT = 1 << 15
};

/* FORK: a child makes all calls of its parent, and is refused. */
typedef enum act { NOTHING, KILL, STOP, EXIT, COUNT, ERROR, SILENT, BUSY, TERM, TERM_ONE, FORK } act;

typedef enum mode {
    PER_RANK,
    GATHERED,
    WINDOWS,
    SYNC,
    LARGE,
    PARTS,
    OWNERS,
    MODES
} mode; /* SYNC, LARGE, PARTS, OWNERS: per rank; sums of the job within layers, a reduction that takes its time, or the
           optimizer's state in parts, of elements or of whole parameters */

typedef enum place { NOWHERE, JOIN, SETUP, FIRST, LOSS, BACKWARD, STEP, SAVE, IN_SAVE, EVALUATION, LEAVING, END, EARLY } place;

/* What the processes of a job are told. delays: 1: pauses at random; 2: signals that interrupt what waits. */
typedef struct scenario {
    int gloo, processes, ranks, victim, act, place, mode, delays;
    uint32_t seed;
} scenario;

/* What a process leaves in the job's file, which all map. */
typedef struct record {
    int steps, failed, status, again, later, ended, pid;
    uint64_t hashes[LONGEST + 1], after;
    double ended_at;
    char error[1024];
} record;

typedef struct job_file {
    atomic_int training; /* processes that do */
    atomic_int waits;    /* the victim does, for those that hear of its phase */
    atomic_int heard;    /* that have heard of the phase in which the victim dies */
    record of[MOST_PROCESSES];
} job_file;

/* --- a process of a job -------------------------------------------------------------------------------------- */

double now(void);                 /* seconds */
void pause_us(double us);
uint32_t random_number(uint32_t *state);
job_file *map_job(const char *folder, bool make); /* NULL: it cannot be */
extern scenario my;               /* what this process was told */
extern job_file *job;

/* The name of the checkpoint that a job saves: of a file, or of a set of files, which all processes write. */
const char *checkpoint_of(const scenario *s);

/* What all train: model, data, optimizer; and a number that stands for the parameters. */
trek_graph *build(trek_device device, void *arg);
trek_loader *loader_new(void);
uint64_t hash_of(trek_graph *graph);
trek_status set_up(trek_graph *graph, int ranks, trek_comm *among, double deadline);

/* The program of a process; `text` is its scenario, `folder` the job's. Returns its exit status. */
int child(const char *text, const char *folder);

/* --- how it is run ------------------------------------------------------------------------------------------ */

typedef struct running {
    const scenario *of;
    pid_t pid;
    bool signalled;
    double start, signal_at;
    char folder[64], text[TEXT];
    job_file *job;
    int code;
} running;

extern const char *self, *launcher; /* this program, trek-run */
extern char word[64]; /* in every process's command line */

/* Gloo adds in an order of its own. */
extern uint64_t references[2][MOST_PROCESSES + 1][3][MODES][STEPS + 1]; /* [engine][processes][ranks][mode] */

extern uint64_t long_reference[2][MOST_PROCESSES + 1][LONGEST + 1];

/* Runs them, a few at a time, and looks at each; returns how many went wrong. */
int run_all(const scenario *list, int n, int at_once, bool (*look)(running *r));

/* Prints what is wrong with a process (-1: the job), and all that is known of it; false. */
bool say_wrong(const running *r, int process, const char *what);

/* --- what is expected ---------------------------------------------------------------------------------------- */

/* All went well: the same parameters in all processes after every step. */
bool look_well(running *r);

/* "process 1" or "rank 1", also in a list. */
bool names(const char *text, int process);

/* The others have failed in time, with the victim's name, and lost nothing. */
bool look_failed(running *r);

/* The victim has died at the very end: nobody needed it any more. */
bool look_died_at_end(running *r);

/* All have stopped at the same step, as they were asked to. */
bool look_stopped(running *r);

#endif
