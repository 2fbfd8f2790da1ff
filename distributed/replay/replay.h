/* SPDX-License-Identifier: Apache-2.0 */
/* Replays: steps that are made again on one rank and compared with what an earlier run has written of them. */
#ifndef TREK_DISTRIBUTED_REPLAY_REPLAY_H
#define TREK_DISTRIBUTED_REPLAY_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/status.h"

struct trek_batch;
struct trek_tensor;
typedef struct trek_replay trek_replay;

/* Returns whether the environment asks for a replay, and of which step. */
bool trek_replay_asked(int64_t *step);

/* Returns the samples of a grain of a recorded run, or 0 with an error. `digests` is as in trek_replay_new. */
int64_t trek_replay_grain(const char *digests);
/* Begins a replay from a file of digests (NULL: TREK_REPLAY_DIGESTS names it). Returns NULL with an error if the file cannot be
 * read or has no such step: IO, FORMAT, ARGUMENT. */
trek_replay *trek_replay_new(const char *digests);
void trek_replay_free(trek_replay **replay);
/* Returns the number of ranks of the run that was recorded, or 0 if it is unknown. */
int trek_replay_ranks(const trek_replay *replay);

/* Called before a grain of a step that is made, on its rank's thread, and after it. */
void trek_replay_enter(trek_replay *replay, int64_t step, const struct trek_batch *grain);
void trek_replay_leave(trek_replay *replay);
/* Returns whether the operators of the present grain are watched. */
bool trek_replay_watches(const trek_replay *replay);
/* Looks at a result that was computed outside of an operator, where `name` would have computed it. */
void trek_replay_see(trek_replay *replay, const struct trek_tensor *x, const char *name);
/* Compares a step that was made with the recorded one, by their lines. Fails with STATE when the replay ends: something differs,
 * or this was the step that was asked for. The message says what was found. */
trek_status trek_replay_compare(trek_replay *replay, int64_t step, const char *lines);

#endif
