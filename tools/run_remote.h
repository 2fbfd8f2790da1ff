/* SPDX-License-Identifier: Apache-2.0 */
/* Processes on other machines, as trek-run sees them: one agent (run_agent.h) for each machine, at the other end of
 * ssh. */
#ifndef TREK_TOOLS_RUN_REMOTE_H
#define TREK_TOOLS_RUN_REMOTE_H

#include <poll.h>

#include "distributed/run.h"
#include "tools/run_hosts.h"
#include "tools/run_wire.h"

typedef struct remote_opts {
    const char *ssh;       /* a command, followed by a host's name and another command */
    const char *trek_run;  /* its path there */
    const char *folder;    /* where the processes run */
    char *const *travels;  /* names of variables in addition to TREK_*, NULL-terminated */
    /* What the machines report. `how` is NULL, or why the status is not known. */
    void (*wrote)(int rank, int generation, int which, const char *bytes, size_t count); /* count 0: it is closed */
    void (*ended)(int rank, int status, const char *how);
    void (*failed)(int rank, int why);   /* errno; its end follows */
    void (*refused)(void);               /* a machine cannot run the job, or was not reached at the beginning; already printed */
} remote_opts;

/* Starts an agent for each host that is not this machine. Returns false after printing the problem. */
bool remote_begin(const hosts *h, const remote_opts *opts);
bool remote_all_are_here(void);      /* each has sent its hello */
/* Finds the address at which all can reach the job's first process. Returns false after printing that there is none. */
bool remote_find_address(char address[256], char port[16]);
/* Sets the job that the agents will run. It stays the caller's. */
void remote_set_job(const job *j);
/* Starts a process on another machine: with generation 0, and one more for each restart. */
void remote_start(int rank, int generation);
void remote_send(int signal);
/* Processes to be started on a machine that is not reached (again) count as ended. */
void remote_give_up(void);
void remote_note_death(const char *line);
void remote_quit(void);              /* called once; agents end what is left there, and then themselves */
/* Returns whether the process is an ssh that is still needed. */
bool remote_needs(pid_t pid);
/* Returns how many processes of other machines are stopped, as their agents last said. */
int remote_count_stopped(void);
/* Handles the end of an ssh. Returns false if the process is none. */
bool remote_reaped(pid_t pid, int status);
/* Lists what is to be polled, at most 3 MOST + 1 entries, and returns their number. */
nfds_t remote_poll(struct pollfd *watched);
/* Reads and writes what is possible, and checks the time. Called at least once a second. */
void remote_serve(void);

#endif
