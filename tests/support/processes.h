/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds of real processes: the test program starts itself again, once for each process, with a role to play. */
#ifndef TREK_TESTS_PROCESSES_H
#define TREK_TESTS_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

enum { PROCESSES = 40, OUTPUT = 16384 };

typedef struct world {
    int n, port;
    pid_t pid[PROCESSES];
    FILE *file[PROCESSES];
    char text[PROCESSES][OUTPUT]; /* stdout and stderr */
    int code[PROCESSES];          /* exit code, or -signal; -1000: it had to be killed */
    double seconds[PROCESSES];    /* until it ended */
    double start;
    int net[PROCESSES];           /* file of the network name space it runs in; 0: this one's */
    const char *address;          /* of process 0 */
} world;

/* What a process of a world is told. */
typedef struct part {
    const char *role, *detail, *address;
    int process, processes, port;
} part;

/* At the start of main: true in a process of a world, which then plays its part and ends. One that mpirun has started writes to
 * out.P in the folder TREK_TEST_OUTPUT. */
bool processes_part(part *out);
int processes_free_port(void);
double processes_now(void);
void processes_init(world *w, int n);
/* Starts process p of the world; detail is handed on. */
void processes_start(world *w, int p, const char *role, const char *detail);
/* Starts all; detail for all, except that `victim` gets its own. */
void processes_start_all(world *w, int n, const char *role, const char *detail, int victim, const char *victim_detail);
/* The same, and waits until all have ended. */
void processes_run_all(world *w, int n, const char *role, const char *detail, int victim, const char *victim_detail);
/* Starts all with details of their own, of which one may be NULL, and waits until they have ended. */
void processes_run_each(world *w, int n, const char *role, const char *const *details);
/* Waits for those that run, and reads what they wrote. Not for `but` (-1: all). What hangs is killed after minutes: how long
 * something may take is tested in simulated time. */
void processes_finish(world *w, int but);
/* Whether process p has written these words so far. The other one waits until it has, or has ended. */
bool processes_wrote(const world *w, int p, const char *words);
bool processes_await(const world *w, int p, const char *words);
/* Waits, in a process of a world, until processes_go is called for it. */
void processes_await_go(void);
void processes_go(const world *w, int p);
/* Kills and reaps process p. */
void processes_kill(world *w, int p);
/* All that the processes wrote, to stderr: for a test that fails. */
void processes_print(const world *w);
/* Fails the case unless it is good, and prints that and what does not hold. */
void processes_want(const world *w, bool good, const char *what, int line);
#define WANT(w, condition) processes_want(w, condition, #condition, __LINE__)
/* Fails the case with that, and with all that the processes wrote. */
#define FAIL_WORLD(w, ...)     \
    do {                       \
        processes_print(w);    \
        fail_msg(__VA_ARGS__); \
    } while (0)

/* What a process of a world does in a role; its exit status. */
typedef struct processes_role {
    const char *name;
    int (*play)(const part *me);
} processes_role;
/* Plays the role of that part; 99: it is none of these. */
int processes_play(const part *me, const processes_role *roles, size_t count);
/* The engine under test: TREK_TEST_ENGINE in the environment of the whole program, by default "shared". */
const char *processes_engine(void);
/* The path of a file of the build's folder. */
const char *processes_built(const char *file);
/* Whether trek-run is there; otherwise says so. */
bool processes_launcher_there(void);
/* Has trek-run, or mpirun, start this program n times, and waits for it. variables: names and values of the environment, then
 * NULL. Returns the status with which it exits, or 128 and the signal. */
int processes_launch(int n, bool by_mpirun, const char *const *variables);
/* Returns how many other processes of the system have this in their command line. */
int processes_running(const char *word);
/* Sleeps. */
void processes_pause(int ms);

#endif
