/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between offloading and the tape and its walk. A value is a storage that nodes of one tape have saved.
 * It is moved, not copied: while the tape's tensors are its only holders, the storage gives up its memory on the
 * device, and has memory there again before anybody uses it. So versions, views and shared storages are not affected.
 * Everything belongs to the tape's owner thread. */
#ifndef TREK_AUTOGRAD_OFFLOAD_INTERNAL_H
#define TREK_AUTOGRAD_OFFLOAD_INTERNAL_H

#include "autograd/tape_internal.h"

static inline bool trek_offloads(void) { return trek_grad_mode_here.offload.min_bytes > 0; }

/* Announces that the tape will hold `tensor` (it has a reference, or will have one before the next call) for a node
 * with about that serial. If it returns true, the tensor is managed from now on, and trek_offload_forget has to be
 * called before that reference is released. */
bool trek_offload_note(trek_tape *tape, trek_tensor *tensor, uint64_t serial, const trek_offload_opts *opts);
void trek_offload_forget(trek_tape *tape, const trek_tensor *tensor);
/* Sends the values that by now only the tape holds. Called in or after a scope in which a node was recorded, but not
 * in a walk, which needs the values soon. */
void trek_offload_send(trek_tape *tape);
/* Makes the tensor's memory available on the device for this thread's work there. Fails with MEMORY or CUDA, or with
 * STATE in a capture. */
trek_status trek_offload_bring(trek_tape *tape, const trek_tensor *tensor);

/* Called before a node's rule: begins to bring back what this node and the next ones of the walk have saved. */
void trek_offload_bring_ahead(const trek_node *node, uint32_t walk);
/* Called after it, in a walk that keeps the tape: values that no older node needs leave again. */
void trek_offload_leave_again(const trek_node *node);

/* Returns how many bytes the calling thread's tape has sent to host memory. */
int64_t trek_offload_sent_here(void);

static inline bool trek_offload_has(const trek_tape *tape) { return tape->n_offloaded > 0; }
/* Called if the thread has ended between begin and end. */
void trek_offload_thread_end(trek_tape *tape);

#endif
