/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's state of a step, one tensor at a time, wherever ranks and processes keep its pieces. Nobody ever holds the
 * whole: a tensor is put together when it is read, and belongs to the reader.
 *
 * Each tensor has one process that reads it. Where another process keeps a piece of it, all processes carry it there, in rounds:
 * in each, every process gets the next such tensor that it reads. So they write files at the same time, and meet before each
 * tensor that is divided among them. A process that reads its last one, or cannot go on, takes part in the others' rounds at the
 * end. */
#ifndef TREK_DISTRIBUTED_REDUCE_STATE_STREAM_H
#define TREK_DISTRIBUTED_REDUCE_STATE_STREAM_H

#include "distributed/reduce/reduce.h"
#include "nn/state_internal.h"

/* In addition to the tensor that is read, a stream holds this many bytes. */
#define TREK_STATE_STREAM_ROOM (4 << 20)

typedef struct trek_state_stream trek_state_stream;

/* Lists the state of an optimizer. s is its step, or NULL. The list is the same in all processes that have made the same steps.
 * No step may be made before the stream is freed. Fails with MEMORY, or errors of the device. */
trek_state_stream *trek_state_stream_new(trek_step *s, trek_optimizer *optimizer);
void trek_state_stream_free(trek_state_stream **stream);

/* Returns how many tensors there are. */
int trek_state_stream_count(const trek_state_stream *stream);
/* Returns tensor k, borrowed. */
const trek_optimizer_item *trek_state_stream_item(const trek_state_stream *stream, int k);
/* Returns how many bytes of tensor k a process keeps. */
int64_t trek_state_stream_kept(const trek_state_stream *stream, int k, int process);

/* Sets which process reads each tensor, [tensors], the same in all processes. Called once, before tensors are added. Fails with
 * MEMORY. */
trek_status trek_state_stream_plan(trek_state_stream *stream, const int *reader);
/* Adds tensor k to a state, which reads it from the stream when it is needed. A process that adds tensors which it reads itself
 * must read all of them, first those with wide elements and otherwise in their order, as trek_state_write does, or end. */
trek_status trek_state_stream_add(trek_state_stream *stream, int k, const char *name, trek_state *state);
/* Takes part in the rounds that are left. It is a collective, also for a process that has failed. Fails as they do. */
trek_status trek_state_stream_end(trek_state_stream *stream);

#endif
