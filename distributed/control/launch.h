/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out which process of which job this is, from options or from the environment that its launcher has set. */
#ifndef TREK_DISTRIBUTED_CONTROL_LAUNCH_H
#define TREK_DISTRIBUTED_CONTROL_LAUNCH_H

#include "tensor/tensor.h"

/* What the program says itself. Members that are zero or NULL say nothing. */
typedef struct trek_launch_opts {
    int rank, world_size;  /* of processes; world_size 0: from the environment */
    const char *address;   /* of process 0 */
    int port;
    const char *token;
} trek_launch_opts;

typedef struct trek_launch {
    int process, processes; /* of a newcomer: TREK_MAX_RANKS or more, and 2, since nobody has told it how many there are */
    int local, locals;     /* among the processes of this machine; -1: not known */
    char source[32];       /* "trek-run", "torchrun", "Open MPI", "Slurm", "TREK_JOIN", "options", "single process" */
    char address[256];     /* of process 0 */
    int port;              /* 0: not known */
    int deaths;            /* the file in which trek-run notes which processes have ended; -1: there is none */
    char token[256];       /* of the job: a secret if one is given; otherwise a name that distinguishes it from other jobs */
    bool newcomer;         /* TREK_JOIN=new: it was in no place of the job before, and the job gives it a number */
    bool secret, trusted;  /* the token is a secret; TREK_TOKEN=none: nobody on the network is hostile */
    char job[300]; /* a name for what the job writes, the same on all its processes: "4711.0"; "" for a single process. Jobs
                    * that are started by hand on several machines, or by torchrun without a run id, have the same name each
                    * time */
} trek_launch;

/* Finds the launch: from options, or from the variables of trek-run, torchrun, Open MPI or Slurm (of a step: a shell
 * in an allocation is a single process), in this order. opts may be NULL. Fails with ARGUMENT if a value is wrong or
 * missing, or if two launchers contradict each other; the error names both. */
trek_status trek_launch_find(const trek_launch_opts *opts, trek_launch *launch);
/* Checks whether such a job may be joined: if other machines can reach process 0, it needs a secret of at least 16
 * bytes, unless its network is trusted. Fails with ARGUMENT. */
trek_status trek_launch_check_secret(const trek_launch *launch);
/* Writes e.g. "process 1 was ended by signal 9 (Killed)" for the first process that the launcher has noted as ended
 * and has not started again. Returns false if there is none. */
bool trek_launch_death(int deaths, char *text, size_t size);
/* Sets ended[p] for the processes that the launcher has noted as ended, and returns their number. */
int trek_launch_ended(int deaths, bool *ended, int processes);
/* Notes in the launcher's file that the processes have joined for the first time, for those that are started again on
 * their machine. */
void trek_launch_note_begun(int deaths);
/* Returns whether TREK_JOIN says that this process must join others, which are at work: it was started again (1; false if the
 * launcher's file says that they have not begun), or it was not in the job before (new). */
bool trek_launch_joins(void);
/* Gets the first host of a list as Slurm writes it: of "gpu[07-12,20]-ib,login" it is gpu07-ib. Returns false if the
 * list is malformed or too long. */
bool trek_launch_first_host(const char *list, char *host, size_t size);

#endif
