/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction under backward, between processes of one rank each, by engines that
 * progress by themselves: a bucket of the arena is started as soon as the last
 * of its gradients is complete, in one fixed order on all processes. Only the
 * pass that is the step's last sends; should another follow all the same,
 * what was reduced stays with process 0 and the rest is reduced in step(). */
#include "distributed/step/overlap.h"

#include "distributed/step/job_sync.h"

void trek_overlap_plan(ranks_stepper *s)
{
    bool on_device = s->replicas[0].arena->device.type != TREK_CPU;
    s->overlaps = s->comm && s->ranks_most == 1 && !s->mixed &&
        (on_device ? s->comm->nccl != NULL : trek_comm_overlaps(s->comm));
}

bool trek_overlap_wants(const ranks_stepper *s)
{
    const trek_accumulation *a = &s->base.graph->accumulation;
    int last = trek_accumulation_weighs(a) ? a->passes : 1;
    return s->overlaps && s->step.passes + 1 == last && s->step.phase != TREK_STEP_SENT && !trek_ranks_meet(s);
}

/* --- a pass ------------------------------------------------------------------------------ */

void trek_overlap_begin(ranks_stepper *s, bool sends)
{
    if (!s->overlaps || !sends)
        return;
    trek_step_sends(&s->step);
    trek_reducer_begin(s->replicas[0].reducer, (trek_sending){ .comm = s->comm, .starts = true });
}

trek_status trek_overlap_end(ranks_stepper *s)
{
    if (s->step.phase != TREK_STEP_SENDING)
        return TREK_OK;
    trek_status status = trek_reducer_rest(s->replicas[0].reducer);
    trek_step_sent(&s->step);
    return status;
}

/* --- where what was sent is not the whole ---------------------------------------------------- */

/* They count as gradients all the same: it may be this process alone that had them. */
static trek_status zero_first(int rank, void *arg)
{
    ranks_stepper *s = arg;
    for (int k = 0; rank == 0 && k < s->replicas[0].arena->n_segments; k++)
        trek_arena_zero_segment(s->replicas[0].arena, k);
    return TREK_OK;
}

/* The sum over all processes counts once: it stays with process 0. */
trek_status trek_overlap_keep(ranks_stepper *s)
{
    trek_status status = TREK_OK;
    if (s->step.phase == TREK_STEP_SENT) {
        trek_step_folded(&s->step);
        status = trek_comm_finish(s->comm);
        if (status == TREK_OK)
            status = trek_ranks_settle(s);
    }
    if (status != TREK_OK || s->step.phase != TREK_STEP_FOLDED)
        return status;
    trek_step_accumulates(&s->step);
    return s->process > 0 ? trek_ranks_call(s->ranks, zero_first, s) : TREK_OK;
}
