/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a job on this machine: how they are started, told who they are, sent signals, and waited for. trek-run does
 * so, and its agents on other machines. */
#ifndef TREK_TOOLS_RUN_START_H
#define TREK_TOOLS_RUN_START_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { MOST = 1024, USAGE = 2, NOT_RUN = 126, NOT_FOUND = 127 };

typedef struct job {
    int processes;         /* of all machines */
    int locals, cores;     /* on this one; cores of each, 0: not pinned */
    const char *address, *port, *token, *folder; /* folder: where they run; NULL: here */
    char **program;        /* NULL-terminated */
} job;

typedef struct place {
    int rank, local;
    bool again;            /* it was started before */
    int in;                /* what it reads; -1: nothing; -2: what this process reads */
    int out[2];            /* where it writes; -1: where this process does */
} place;

double now(void);

/* Blocks the signals that are passed on, and adopts what processes leave behind. A signalfd that never waits; -1 and errno. */
int start_begin(void);
/* Before exec in other children. */
void start_unblock(void);
/* A port that is free at all addresses of this machine, and stays this program's until it ends: who listens there with
 * SO_REUSEADDR, as trek's processes do, may beside it, but no other job finds it. False and errno. */
bool start_find_port(char text[16]);
/* The machine, and the network in which its processes are. */
void start_machine(char *text, size_t size);
int start_count_cores(void);
/* Whether so many processes can have cores of their own. */
bool start_has_cores(int processes, int cores);
/* errno, or 0: it runs. The descriptors stay the caller's. */
int start(const job *j, const place *p);
bool start_runs(int rank);
/* So many processes of this machine are stopped, as by SIGSTOP. */
int start_count_stopped(void);
/* The processes of this machine that run. */
void start_send(int signal);
/* Children that are no process of the job: those whose parents have gone, and others. spared: not these; NULL: none. */
void start_send_orphans(int signal, bool (*spared)(pid_t pid));
/* Calls ended for each process that has ended, in the order in which they did, and other for other children. false: no child is
 * left. */
bool start_reap(void (*ended)(void *arg, int rank, int status), void (*other)(void *arg, pid_t pid, int status), void *arg);
/* Tells the processes, those who wait for others, that one has ended: "3 ended with status 1\n". */
void start_note_death(const char *line);

#endif
