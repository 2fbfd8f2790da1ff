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

/* Collects the entries of all ranks' timelines on rank 0 of the communicator, on its clock, in order of their ends. Returns a new
 * timeline on rank 0, which can be read and saved as any other, and NULL without an error on the other ranks. It is a collective.
 * timeline is this rank's own, or NULL if it has none; the timelines given are not changed. Threads that are ranks may all give
 * the one timeline of their process, which is then taken once.
 *
 * Ranks in the entries are numbered through: first those of rank 0's process, then those of the next process. Entries that a
 * timeline has dropped are counted in the joined one. It has no sums: trek_timeline_averages of it fails with STATE.
 *
 * The clocks of machines differ; twenty barriers give a bound for the difference. *error_ns, which may be NULL, gets the same
 * number on all ranks: the largest error of an entry's time against rank 0's clock, as of the call. It is 0 for processes of one
 * machine, and between machines about half the duration of a barrier, some tens of microseconds on a local network. Clocks that
 * follow a time server drift by a few microseconds a second before the call; that is not corrected.
 *
 * Ownership: the caller frees the result with trek_timeline_free.
 * Errors: ARGUMENT if comm is NULL, those of the communicator, PEER, MEMORY. NULL is returned.
 * PyTorch writes one trace for each process, with the clock of its machine. */
TREK_API trek_timeline *trek_timeline_join(trek_comm *comm, trek_timeline *timeline, int64_t *error_ns);

TREK_END

#endif
