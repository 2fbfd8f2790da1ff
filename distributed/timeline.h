/* SPDX-License-Identifier: Apache-2.0 */
/* One timeline of a whole job.
 *
 *     trek_timeline *job = trek_timeline_join(comm, timeline, NULL);
 *     if (job)
 *         trek_timeline_save(job, "trace.json");
 *     trek_timeline_free(&job); */
#ifndef TREK_DISTRIBUTED_TIMELINE_H
#define TREK_DISTRIBUTED_TIMELINE_H

#include "distributed/comm/comm.h"
#include "graph/timeline.h"

TREK_BEGIN

/* Brings the entries of all ranks' timelines to rank 0 of the communicator, on its clock, in order of their ends. It is a
 * collective; rank 0 gets a new timeline, which is the caller's (trek_timeline_free) and is read and saved as any other, and the
 * other ranks get NULL without an error. The timelines given stay as they are; NULL: this rank has none. Threads that are ranks
 * may all give the one timeline of their process: it is taken once.
 *
 * Ranks in the entries are numbered through: first those of rank 0's process, then those of the next one. Entries that a timeline
 * has dropped are counted in the joined one. It has no sums: trek_timeline_averages of it is STATE. Module paths and shapes of
 * others count among those that rank 0's process keeps.
 *
 * Clocks of machines differ. Twenty meetings bound by how much: nobody leaves one before all have come to it. *error_ns (may be
 * NULL; the same on all ranks) gets the most by which an entry of one rank can lie off against rank 0's at the time of the call:
 * 0 for processes of one machine, and about half of what a meeting takes between machines, some tens of microseconds on a local
 * network. Before that, clocks drift: those that follow a time server by some microseconds in each second at most. PyTorch has a
 * trace for each process, whose clocks are those of their machines. Returns NULL and an error: ARGUMENT without a communicator,
 * what the communicator reports, PEER, MEMORY. */
TREK_API trek_timeline *trek_timeline_join(trek_comm *comm, trek_timeline *timeline, int64_t *error_ns);

TREK_END

#endif
