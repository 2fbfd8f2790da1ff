/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a job on this machine: starting them with their environment, sending them signals, and waiting for
 * them. trek-run uses this, and so do its agents on other machines. */
#ifndef TREK_TOOLS_RUN_START_H
#define TREK_TOOLS_RUN_START_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { MOST = 1024, USAGE = 2, NOT_RUN = 126, NOT_FOUND = 127 };

typedef struct job {
    int processes;         /* on all machines */
    bool joins;            /* they come to a job that is running, which gives them their numbers */
    int locals, cores;     /* on this one; cores of each, 0 if not pinned */
    const char *address, *port, *token, *folder; /* folder: where they run; NULL for the current one */
    char **program;        /* NULL-terminated */
} job;

typedef struct place {
    int rank, local;
    bool again;            /* it was started before */
    int in;                /* its input; -1: none; -2: this process's input */
    int out[2];            /* its outputs; -1: this process's */
} place;

double now(void);

/* Blocks the signals that are passed on, and adopts the orphans of processes. Returns a nonblocking signalfd, or -1
 * and errno. */
int start_begin(void);
/* Called before exec in other children. */
void start_unblock(void);
/* Finds a port that is free at all addresses of this machine and stays reserved until this program ends. Processes
 * that listen with SO_REUSEADDR, as trek's do, can use it, but no other job finds it. Returns false and errno on
 * failure. */
bool start_find_port(char text[16]);
/* Identifies the machine and the network namespace of its processes. */
void start_machine(char *text, size_t size);
int start_count_cores(void);
/* Returns whether this many processes can have cores of their own. */
bool start_has_cores(int processes, int cores);
/* Returns 0 if the process runs, otherwise errno. The descriptors stay the caller's. */
int start(const job *j, const place *p);
bool start_runs(int rank);
/* Returns how many processes of this machine are stopped, for example by SIGSTOP. */
int start_count_stopped(void);
/* Sends a signal to the running processes of this machine. */
void start_send(int signal);
/* Sends a signal to children that are no processes of the job: orphans and others, except those that `spared` (which
 * may be NULL) selects. */
void start_send_orphans(int signal, bool (*spared)(pid_t pid));
/* Calls `ended` for each process that has ended, in the order of their ends, and `other` for other children. Returns
 * false if no child is left. */
bool start_reap(void (*ended)(void *arg, int rank, int status), void (*other)(void *arg, pid_t pid, int status), void *arg);
/* Tells processes that wait for others that one has ended: "3 ended with status 1\n". */
void start_note_death(const char *line);

#endif
