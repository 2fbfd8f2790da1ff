/* SPDX-License-Identifier: Apache-2.0 */
/* Where the tape and the walk meet offloading. A value is a storage that nodes of one tape have saved; it is moved, not
 * copied: while the tape's tensors are its only holders the storage gives up its memory on the device, and has memory there
 * again before anybody looks. So versions, views and shared storages stay what they are. All is the tape's owner's. */
#ifndef TREK_AUTOGRAD_OFFLOAD_INTERNAL_H
#define TREK_AUTOGRAD_OFFLOAD_INTERNAL_H

#include "autograd/tape_internal.h"

static inline bool trek_offloads(void) { return trek_grad_mode_here.offload.min_bytes > 0; }

/* The tape is going to hold `tensor` (it has a reference, or will have before the next call) for a node of about that serial.
 * True: it is looked after from here on, and trek_offload_forget is due before that reference goes. */
bool trek_offload_note(trek_tape *tape, trek_tensor *tensor, uint64_t serial, const trek_offload_opts *opts);
void trek_offload_forget(trek_tape *tape, const trek_tensor *tensor);
/* Sends what only the tape holds by now; called where a node has been recorded, in the scope or after it. Not in a walk, which
 * needs it soon. */
void trek_offload_send(trek_tape *tape);
/* The tensor's memory on the device, at hand for this thread's work there. Errors: MEMORY, CUDA; STATE in a capture. */
trek_status trek_offload_bring(trek_tape *tape, const trek_tensor *tensor);

/* Before a node's rule: begins to bring back what it and the next ones of the walk saved. */
void trek_offload_bring_ahead(const trek_node *node, uint32_t walk);
/* After it, in a walk that keeps the tape: what no older node needs leaves again. */
void trek_offload_leave_again(const trek_node *node);

static inline bool trek_offload_has(const trek_tape *tape) { return tape->n_offloaded > 0; }
/* The thread has ended between begin and end. */
void trek_offload_thread_end(trek_tape *tape);

#endif
