/* SPDX-License-Identifier: Apache-2.0 */
/* Divided parameters (ZeRO's third stage): a rank has memory for its own cuts of its arena's parameters, and for the buckets that
 * it has used last. A bucket is gathered when an op is about to read it: its pieces are copied from the ranks that keep them,
 * in this process or in others. They do not take part in it. So ranks may read different parameters, at different times, as often
 * as they like.
 *
 * What a rank keeps only changes in the update of a step, while no rank reads anything. Copies of it are given back before.
 *
 * Programs may write parameters of rank 0 between two passes, for example by loading a state. Rank 0 then has all parameters, and
 * the others refuse to read, until trek_graph_parameters_changed has let each take its own cuts of them. Over processes each
 * program writes its own copy. A process that has not written reads the old values until all have called
 * trek_graph_parameters_changed.
 *
 * In a job that outlives some of its processes (team->twice) two processes keep each part, and make the same updates of it.
 * Reading goes to the one that can be reached. When the processes of the job change, what was lent is withdrawn, parts that now
 * belong to others are sent to these from one that lives (reduce/redivide.c), and then all lend anew. */
#ifndef TREK_DISTRIBUTED_TEAM_DIVIDED_H
#define TREK_DISTRIBUTED_TEAM_DIVIDED_H

#include "distributed/team/sharer.h"
#include "distributed/team/team.h"

/* The number of buckets that a rank keeps besides its own cuts, unless one op reads more. A bucket that is gathered ahead
 * (team->gathers_ahead) is one of them. If an op reads that many, it is one more. See trek_divided_keep. */
enum { TREK_DIVIDED_BUCKETS = 2 };

/* What a rank has of its parameters (rank_replica.divided). */
typedef struct trek_divided trek_divided;

/* Begins to divide what all ranks of the team have. The arenas have cuts, and parameters in pages. comm: of the processes, and
 * all call it; NULL: all ranks are in this process. blank: the process has come to a job whose values it does not have, and which
 * it has not met; until then what is not its own is zeros, with which passes can be measured. Fails with MEMORY; with UNSUPPORTED
 * if processes cannot map each other's memory; or with errors of the engine. */
trek_status trek_divided_begin(trek_team *team, trek_comm *comm, bool blank);
/* Rank 0 gets all parameters again, which are the program's; the others' must not be used any more. If the graph ends, too
 * (team->graph_ends), or another process has ended in an update, a process that has only parts of them refuses to read them. */
void trek_divided_end(trek_team *team);

/* Ends lending to the processes of a group, before others are in it: what was gathered is given back, and until all lend again
 * nothing can be read but a rank's own cuts. Fails with MEMORY. */
trek_status trek_divided_withdraw(trek_team *team);
/* Lends the present cuts to the processes of a group. A collective of these. Fails as trek_lent_new does. */
trek_status trek_divided_lend(trek_team *team, trek_comm *comm);

/* Changing the cuts of all ranks: `prepare` takes what is a rank's by the new ones, and has no effect for anyone who uses the old
 * ones; when all have done so and the arena has the new ones, `settle` gives back the rest. Nothing may be read between. copies
 * false: it takes memory, which the caller fills. Without divided parameters both do nothing. Fails with MEMORY. */
trek_status trek_divided_prepare(const rank_replica *replica, const trek_sharer_cuts *next, bool copies);
void trek_divided_settle(const rank_replica *replica);

/* Sets whether a rank keeps all buckets that it has gathered until the next update, so that all passes of a step have them. Those
 * that exceed its budget are given back nevertheless. */
void trek_divided_keep(const rank_replica *replica, bool keeps);
/* Waits until no rank's thread copies ahead any more; GPUs wait for each other in trek_divided_begin_update. Called while ranks
 * are idle, before anyone updates. */
void trek_divided_rest(const trek_team *team);
/* Returns how often an op has needed a bucket that was gathered then, or (ahead) before. */
int64_t trek_divided_gathered(const rank_replica *replica, bool ahead);
/* Begins and ends an update of the rank's own cuts: what it has of others is given back. Called by the rank. They fail on GPUs
 * only, with errors of the device. */
trek_status trek_divided_begin_update(const rank_replica *replica);
trek_status trek_divided_end_update(const rank_replica *replica);
/* Gives back what ranks have of others. Called while they are idle. */
void trek_divided_forget(const trek_team *team);

/* Returns TREK_OK unless the program has written parameters that the other ranks do not know of. Then it fails with STATE. */
trek_status trek_divided_check(const trek_team *team, const char *what);
/* Gives each rank its own cuts of what the program has written. Over processes (comm) all call it, and all programs must have
 * written, or none; otherwise it fails with STATE. */
trek_status trek_divided_take_written(trek_team *team, trek_comm *comm);
/* Called when all have done so, also in other processes: rank 0 keeps its own cuts only. Until then the former can be repeated.
 */
void trek_divided_forget_written(const trek_team *team);

#endif
