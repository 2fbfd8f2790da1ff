/* SPDX-License-Identifier: Apache-2.0 */
/* Which process of which job this is, from options or from the environment of its launcher. Internal. */
#ifndef TREK_DISTRIBUTED_CONTROL_LAUNCH_H
#define TREK_DISTRIBUTED_CONTROL_LAUNCH_H

#include "tensor/tensor.h"

/* What the program says itself; of zero or NULL, nothing. */
typedef struct trek_launch_opts {
    int rank, world_size;  /* of processes; world_size 0: from the environment */
    const char *address;   /* of process 0 */
    int port;
    const char *token;
} trek_launch_opts;

typedef struct trek_launch {
    int process, processes;
    int local, locals;     /* among the processes of this machine; -1: not known */
    char source[32];       /* "trek-run", "torchrun", "Open MPI", "Slurm", "options", "single process" */
    char address[256];     /* of process 0 */
    int port;              /* 0: not known */
    int deaths;            /* the file in which trek-run notes which processes have ended; -1: there is none */
    char token[256];       /* of the job: a secret where one is given, else a name of the job, which tells jobs apart */
    bool secret, trusted;  /* it is a secret; TREK_TOKEN=none: nobody on the network means harm */
    char job[300]; /* a name for what the job writes, the same on all its processes: "4711.0"; "": of a single process. What is
                      started by hand across machines, or by torchrun without a run id, has the same each time */
} trek_launch;

/* Options first, then trek-run's variables, torchrun's, Open MPI's, Slurm's (of a step: a shell in an allocation is a
 * single process). opts may be NULL. ARGUMENT where one is wrong or incomplete, or two launchers say different things: both are
 * named. */
trek_status trek_launch_find(const trek_launch_opts *opts, trek_launch *launch);
/* Whether such a job may be joined: where others than this machine reach process 0 it has a secret of at least 16 bytes, unless
 * its network is trusted. ARGUMENT. */
trek_status trek_launch_check_secret(const trek_launch *launch);
/* "process 1 was ended by signal 9 (Killed)": the first that the launcher has noted, and has not started again. false: nobody has
 * ended yet. */
bool trek_launch_death(int deaths, char *text, size_t size);
/* Sets ended[p] of those processes that the launcher has noted so; returns how many. */
int trek_launch_ended(int deaths, bool *ended, int processes);
/* Those who have joined for the first time tell those who are started again on their machine. */
void trek_launch_note_begun(int deaths);
/* Whether TREK_JOIN says that this process was started again, to join the others, who are at work: not so where the launcher's
 * file says that they have not begun. */
bool trek_launch_joins(void);
/* The first host of a list as Slurm writes it: "gpu[07-12,20]-ib,login" is gpu07-ib. false: it is malformed or too long. */
bool trek_launch_first_host(const char *list, char *host, size_t size);

#endif
