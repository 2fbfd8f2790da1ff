/* SPDX-License-Identifier: Apache-2.0 */
/* A grain that a rank runs in a forward and a backward of its own. */
#ifndef TREK_DISTRIBUTED_POLICY_GRAIN_ALONE_H
#define TREK_DISTRIBUTED_POLICY_GRAIN_ALONE_H

#include "distributed/policy/grain_pass.h"

/* Says which samples the thread works on; NULL: on none. */
void trek_grain_set_place(const trek_grain_call *call, const trek_batch *grain, int64_t number);
/* Returns whether somebody looks at the gradients of a grain: a digest, an audit, or a test. */
bool trek_grain_shows(const trek_grain_call *call, int64_t number);
/* Returns how the rank runs a batch, without callbacks. */
trek_batch_run trek_grain_batch_run(const trek_grain_call *call, int rank);
/* Notes that the rank has run a grain. */
trek_grain_record *trek_grain_note(const trek_grain_call *call, int rank, int64_t number, const trek_batch *grain);
/* The same, with the digest of what it has given and the buffers that it has left. */
void trek_grain_keep(const trek_grain_call *call, int rank, int64_t number, const trek_batch *grain, trek_digest gradients);
/* Runs forward, loss and backward. */
trek_status trek_grain_train(trek_grain_call *call, int rank, int64_t number, const trek_batch *grain);

#endif
