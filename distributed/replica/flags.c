/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks read off rank 0's modules: train and freeze flags, which the others
 * follow at the start of their runs, and whether layers meet. */
#include "autograd/var_internal.h"
#include "distributed/step/stepper_ranks.h"
#include "nn/layers_internal.h"

void trek_ranks_note_flags(ranks_stepper *s)
{
    const trek_replica *first = &s->replicas[0];
    bool changed = false;
    for (int k = 0; k < first->n_modules; k++) {
        changed |= s->training[k] != first->modules[k]->training;
        s->training[k] = first->modules[k]->training;
    }
    for (int k = 0; k < first->n_params; k++) {
        changed |= s->requires_grad[k] != first->params[k]->requires_grad;
        s->requires_grad[k] = first->params[k]->requires_grad;
    }
    s->flags += changed;
}

void trek_ranks_follow_flags(ranks_stepper *s, int rank)
{
    trek_replica *replica = &s->replicas[rank];
    if (rank == 0 || replica->flags_seen == s->flags)
        return;
    for (int k = 0; k < replica->n_modules; k++)
        replica->modules[k]->training = s->training[k];
    for (int k = 0; k < replica->n_params; k++)
        replica->params[k]->requires_grad = s->requires_grad[k];
    replica->flags_seen = s->flags;
}

bool trek_ranks_sync(const ranks_stepper *s)
{
    for (int k = 0; k < s->replicas[0].n_modules; k++)
        if (s->replicas[0].modules[k]->klass == &trek_sync_batch_norm_class)
            return true;
    return false;
}
