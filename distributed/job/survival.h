/* SPDX-License-Identifier: Apache-2.0 */
/* A job that continues when some of its processes die, even in the middle of a step. The survivors form a new group
 * (comm/regroup.h) and agree on how far they have come. pass/survivors.h acts on what they have agreed.
 *
 * An operation of all processes, such as a step, has two parts. The first part changes nothing that it needs itself, so it can
 * be repeated. It ends when the process has everything for the second part (the whole gradient), which needs no other process.
 * Between the two parts all processes meet: this is the commit. So after a death each survivor is in one of these places:
 *
 * - before commit k: it repeats the first part, from what the survivors have computed.
 * - in commit k, and another process has left it: then all processes had come to it, so this one has everything, and it
 *   continues with the second part. If no survivor has left commit k, but all have come to it, they continue as well.
 *   Otherwise they repeat the first part.
 * - before commit k + 1, because it has left commit k. It waits until the others have completed the second part.
 *
 * No survivor can be further ahead, since commit k + 1 needs all processes.
 *
 * After the last commit a process may end its program while another one is still in that commit. It therefore says farewell
 * (trek_regroup_leave): a process in commit k which has been told that another has completed it continues with the second part,
 * however few are left.
 *
 * A process that comes to the job (pass/arrivals.h) is in such an operation, too: its first part is that the others send it their
 * state. It has no state before it has left the commit of this operation, and says so (`joins`). All others have the state of the
 * last complete step then.
 *
 * Several graphs of a process, and wrappers (trek_ddp), have one survival together, since a death may find some processes in an
 * operation of one graph and others in an operation of another. All processes call these operations in the same order, so they
 * are counted over all graphs. The new group becomes that of all graphs at once, in the order in which these were set up, when
 * every process is between the same two operations: before it repeats the first part, or after it has completed the second one.
 * A graph that one process has freed meanwhile keeps its old group in the others, which are about to free it, too.
 *
 * In a run, processes also meet outside such operations, for example when an epoch begins. A survivor that was there, or that
 * has just joined, says that it is away (trek_survival_tell_away). The others then complete the second part, if they have
 * everything, and leave their operation with PEER. All of them go on together from the last complete step (run/elastic.c), in
 * the group that they have formed. */
#ifndef TREK_DISTRIBUTED_JOB_SURVIVAL_H
#define TREK_DISTRIBUTED_JOB_SURVIVAL_H

#include "distributed/comm/regroup.h"
#include "distributed/job/job.h"
#include "distributed/job/job_file.h"
#include "graph/graph.h"

/* Where the job was when a process came to it. */
typedef struct trek_survival_place {
    int64_t epoch, batch;    /* of the batch on which it trained next */
    uint64_t data, settings; /* digests of the loader, and of what steps depend on */
} trek_survival_place;

/* How the state of training is collected, and read from a file, without a collective. What is collected refers to the tensors
 * themselves. */
typedef struct trek_survival_state {
    struct trek_state *(*collect)(trek_graph *graph, void *arg);
    trek_status (*read)(trek_graph *graph, int fd, void *arg);
    void *arg;
    const char *optimizer;   /* with which names of the optimizer's state begin */
} trek_survival_state;

/* What trains in a job, with a survival. */
typedef struct trek_survival_opts {
    uint64_t program;        /* the same number in all processes; one that joins must have it, too */
    int least;               /* how many processes must survive */
    trek_regroup *lent;      /* of a run; NULL: none */
    const trek_survival_state *state; /* NULL: nobody is let in */
    trek_status (*take_over)(void *arg); /* makes survival->group that of its job (trek_job_replace), as a collective of it */
    void *arg;
} trek_survival_opts;

typedef struct trek_survival_member {
    const trek_job *job;     /* NULL: this place is empty */
    trek_status (*take_over)(void *arg);
    void *arg;
} trek_survival_member;

enum { TREK_SURVIVAL_MEMBERS = 63 };

typedef struct trek_survival {
    trek_survival_member members[TREK_SURVIVAL_MEMBERS]; /* what has it together; each has the same place in all processes */
    int n_members, entered;  /* how many there are, and have ever been */
    int64_t together;        /* bits of the members that all processes had when they met last */
    trek_regroup *regroup;
    bool lent;               /* the regroup belongs to a run, which ends it */
    int least;               /* how many processes must survive */
    trek_comm *first, *group; /* the group with which it began (NULL: it has joined), and the one that has met last */
    bool next;               /* the latter is not that of the members yet */
    int64_t groups;          /* how many have met since the job's first one */
    int64_t commits;         /* how many this process has completed */
    bool over;               /* the survivors cannot continue */
    bool few;                /* fewer are left than must be, which is enough to complete the last commit only */
    bool again;              /* the last commit has ended with the decision to repeat the first part */
    bool joins;              /* this process has come to the job, and has no state of it yet */
    bool arrived;            /* it has one, and has made no pass since */
    bool joiners;            /* processes wait to be let in, as all know since the last step */
    int newcomers;           /* processes that had no state when all met last */
    bool ahead;              /* a survivor had not left the last commit yet, as this one had; pass/arrivals.c resets it */
    trek_survival_place place; /* of a process that has arrived, */
    trek_job_file_ending taken; /* and the state that it has got */
    const trek_survival_state *state; /* NULL: nobody is let in, for instance because several graphs are trained */
    bool away;               /* a survivor was outside such operations: the group is for the run */
    bool held;               /* loaders divide batches as before the last death, until a step is complete */
} trek_survival;

/* What a survivor reports when the survivors meet. */
typedef struct trek_survivor {
    int64_t commits;
    int64_t members;         /* a bit for each member that it has */
    int64_t ready;           /* it is in a commit, with everything that it needs */
    int64_t left;            /* the most commits that a process which has left in order had completed, as far as it knows */
    int64_t away;            /* it is outside such an operation */
    int64_t joins;           /* it has no state of the job yet */
} trek_survivor;

/* What a survivor does next. */
typedef enum trek_survival_verdict {
    TREK_SURVIVAL_AGAIN,     /* it repeats the first part of its operation */
    TREK_SURVIVAL_GO_ON      /* it continues with the second part */
} trek_survival_verdict;

/* Decides from the reports of n survivors; `own` is one of them. Survivors in the same place decide alike. */
trek_survival_verdict trek_survival_decide(const trek_survivor *all, int n, const trek_survivor *own);

/* Makes a job of several processes able to go on, as a collective: it becomes a member of the survival that others of this
 * process have over these processes, or gets the first one. With a regroup that is lent it gets its own, and that is no
 * collective. Fails with the errors of trek_regroup_new, with MEMORY, or with UNSUPPORTED (too many members). When the caller is
 * able to take over, it calls trek_survival_entered. */
trek_status trek_survival_begin(trek_job *job, const trek_survival_opts *opts);
/* Meets the others in the same call, so that all have the new member when one of them returns. Fails as trek_survival_commit and
 * take_over do. */
trek_status trek_survival_entered(const trek_job *job);
/* Lets this process join a job that is at work with that many ranks, instead of beginning one: waits until it is let in, and
 * meets the others. Their group becomes the job's. Fails with the errors of trek_regroup_join, as trek_survival_again does, or
 * with MEMORY. */
trek_status trek_survival_join(trek_job *job, const trek_survival_opts *opts, int ranks, double deadline_s);
/* The first part of it: they have let it in. */
trek_status trek_survival_begin_joining(trek_job *job, const trek_survival_opts *opts, int ranks);
/* Returns the survival that members of this process have over the job of this communicator, which is that with which it began or
 * its present one; NULL: none. */
trek_survival *trek_survival_of(const trek_comm *comm);
/* Gives the regroup of a job that this process has joined to its run, which lends it to the job from then on. */
trek_regroup *trek_survival_give_regroup(const trek_job *job);
/* Takes this process out of the job for good. The others go on as if it had died; why: their log says it. */
void trek_survival_leave(const trek_job *job, const char *why);
/* Ends it for this job. If no other member has it, this process says farewell, where few survivors could not continue. */
void trek_survival_end(trek_job *job);
/* Gives it a group that has met and is not that of the members yet. */
void trek_survival_give_group(trek_survival *survival, trek_comm *group);
/* Returns the bits of its members. */
int64_t trek_survival_own_members(const trek_survival *survival);
/* Makes its group that of all members which all processes have. Another group may meet in a commit within; if a survivor is not
 * away, that is taken over, too. Fails as take_over does. */
trek_status trek_survival_take_over(trek_survival *survival);
/* Returns whether a call has failed because processes of a job have died that the others can outlive. */
bool trek_survival_may(const trek_job *job, trek_status status);
/* Returns the same, or whether the last commit has ended with the decision to repeat the first part. */
bool trek_survival_repeats(const trek_job *job, trek_status status);
/* Called when an operation has failed and survivors can continue. They form a group, unless they have met in a commit, and begin
 * again if more processes die meanwhile. The thread's error must be that of the call that failed; it is cleared. The group
 * becomes that of the members. When it has succeeded, the caller repeats the first part. Fails with PEER if fewer than
 * .min_processes survive, with the errors of trek_regroup_meet (the message then contains the first error as well), with PEER if
 * a survivor is away, or as take_over does. */
trek_status trek_survival_again(const trek_job *job);
/* Calls it if this is so. Returns true if it has succeeded. Returns false otherwise; if the survivors cannot continue, *status
 * says why. */
bool trek_survival_go_on(const trek_job *job, trek_status *status);
/* Called after a commit, when the second part has been done: a group that has met in the commit becomes that of the members. */
trek_status trek_survival_take_next(const trek_job *job);
/* The part of a process in the meeting of the survivors that is outside operations. `next` is the group that has met; survival is
 * that of its job, or NULL if it has none. Fails with errors of the engine. */
trek_status trek_survival_tell_away(trek_comm *next, const trek_survival *survival);
/* Fails with PEER in a process that has met one that is away. */
trek_status trek_survival_fail_away(void);
/* The meeting between the two parts, in a job that can outlive some of its processes; in other jobs it does nothing. Fewer than
 * .min_processes survivors suffice if another process has already completed this commit, and has left. Fails with PEER if the
 * first part must be repeated, or if too few processes survive, and with errors of the engine. */
trek_status trek_survival_commit(const trek_job *job);

#endif
