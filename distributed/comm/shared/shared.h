/* SPDX-License-Identifier: Apache-2.0 */
/* The engine between processes of one machine: shared memory. */
#ifndef TREK_DISTRIBUTED_COMM_SHARED_SHARED_H
#define TREK_DISTRIBUTED_COMM_SHARED_SHARED_H

#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"

/* Makes a communicator among the processes of the channel, which it borrows and which must outlive it. All of them
 * must call it. If the processes cannot share memory (other machines, name spaces or users), all get UNSUPPORTED.
 * Fails also with COMM, TIMEOUT, PEER or MEMORY. */
trek_status trek_comm_shared_new(trek_control *control, trek_comm **comm);

/* Words of 64 bits, which all processes can change at any time. */
typedef struct trek_shared_words {
    _Atomic uint64_t *words; /* zero at first; NULL: the processes are not on one machine, or cannot share memory */
    void *memory;
    size_t bytes;
} trek_shared_words;
/* Makes n such words, n being equal in all of them, for the processes of a communicator of any engine. It is a collective. It
 * does not fail if they share no memory. trek_shared_words_end gives this process's view of them back; they exist until the last
 * process has done so. */
trek_status trek_shared_words_make(trek_comm *comm, int64_t n, trek_shared_words *words);
void trek_shared_words_end(trek_shared_words *words);

/* Returns how many reductions of this handle went directly between the processes' own memory instead of through the
 * segment. */
uint64_t trek_comm_shared_direct(const trek_comm *comm);

#endif
