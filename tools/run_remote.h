/* SPDX-License-Identifier: Apache-2.0 */
/* Processes on other machines, as trek-run sees them: one agent (run_agent.h) for each machine, at the other end of ssh. */
#ifndef TREK_TOOLS_RUN_REMOTE_H
#define TREK_TOOLS_RUN_REMOTE_H

#include <poll.h>

#include "tools/run_hosts.h"
#include "tools/run_wire.h"

typedef struct remote_opts {
    const char *ssh;       /* a command; a host's name and another command follow it */
    const char *trek_run;  /* its path there */
    const char *folder;    /* where the processes run */
    char *const *travels;  /* names of variables beside TREK_*, NULL-terminated */
    /* What the machines tell. how: NULL, or why its status is not known. */
    void (*wrote)(int rank, int generation, int which, const char *bytes, size_t count); /* count 0: it is closed */
    void (*ended)(int rank, int status, const char *how);
    void (*failed)(int rank, int why);   /* errno; its end follows */
    void (*refused)(void);               /* the job cannot be run on a machine, or it is not reached at the beginning: said */
} remote_opts;

/* Starts an agent for each host that is not this machine. false, said. */
bool remote_begin(const hosts *h, const remote_opts *opts);
bool remote_all_are_here(void);      /* each has said hello */
/* Where the first process of the job will be reached by all; false, said: nobody knows. */
bool remote_find_address(char address[256], char port[16]);
/* The job that they will be asked to run; it stays the caller's. */
void remote_set_job(const job *j);
/* A process of another machine: generation 0, and one more each time that it is started again. */
void remote_start(int rank, int generation);
void remote_send(int signal);
/* Who is to be started on a machine that is not reached (again) has ended. */
void remote_give_up(void);
void remote_note_death(const char *line);
void remote_quit(void);              /* once; agents end what is left there, and themselves */
/* Whether it is an ssh that is still needed. */
bool remote_needs(pid_t pid);
/* An ssh has ended; false: it is none. */
bool remote_reaped(pid_t pid, int status);
/* What is to be polled, at most 3 MOST + 1; how many. */
nfds_t remote_poll(struct pollfd *watched);
/* Reads and writes what can be, and looks at the clock: at least once a second. */
void remote_serve(void);

#endif
