/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients between the passes of a step. */
#ifndef TREK_DISTRIBUTED_REDUCE_GRADIENTS_H
#define TREK_DISTRIBUTED_REDUCE_GRADIENTS_H

#include "distributed/team/reducer.h"
#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* Multiply gradients by `factor`, which becomes 1. */
trek_status trek_ranks_apply_grad_factor(trek_step *s);
trek_status trek_ranks_apply_grad_factor_here(int rank, void *step); /* on the rank's thread */
/* Put gradients aside, and bring them back; the gradients since then are multiplied by `factor`, which becomes 1. */
trek_status trek_ranks_stash_grads(trek_step *s);
trek_status trek_ranks_unstash_grads(trek_step *s);
/* Returns how a rank sends its gradients by a communicator: `how`, and if gradients are divided, what that needs. */
trek_sending trek_ranks_giving_back(const trek_step *s, const trek_comm *comm, trek_sending how);
/* Sets the gradients of all ranks to zero. */
trek_status trek_ranks_zero(trek_step *s);

#endif
