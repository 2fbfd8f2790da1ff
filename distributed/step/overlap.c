/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction under backward, between processes of one rank each, by engines that
 * progress by themselves: a bucket of the arena is started as soon as the last
 * of its gradients is complete, in one fixed order on all processes. Only the
 * pass that is the step's last sends; should another follow all the same,
 * what was reduced stays with process 0 and the rest is reduced in step(). */
#include "distributed/step/overlap.h"

#include "autograd/var_internal.h"
#include "distributed/step/job_sync.h"
#include "tensor/trace.h"

struct trek_overlap {
    int *segment_of;         /* [params] */
    trek_status status;      /* of what was started in this pass */
};

trek_status trek_overlap_plan(ranks_stepper *s)
{
    const rank_replica *first = &s->replicas[0];
    bool on_device = first->arena->device.type != TREK_CPU;
    if (!s->comm || s->ranks_most > 1 || s->mixed || !(on_device ? s->comm->nccl != NULL : trek_comm_overlaps(s->comm)))
        return TREK_OK;
    trek_overlap *o = trek_calloc(1, sizeof *o);
    if (!o)
        return trek_status_get();
    s->overlap = o;
    o->segment_of = trek_calloc((size_t)first->model->n_params, sizeof *o->segment_of);
    if (!o->segment_of)
        return trek_status_get();
    for (int k = 0; k < first->model->n_params; k++)
        o->segment_of[k] = trek_arena_find(first->arena, first->model->params[k]);
    return TREK_OK;
}

void trek_overlap_free(ranks_stepper *s)
{
    if (!s->overlap)
        return;
    trek_free(s->overlap->segment_of);
    trek_free(s->overlap);
    s->overlap = NULL;
}

/* --- a pass ------------------------------------------------------------------------------ */

static void start(const trek_bucket *bucket, void *arg)
{
    ranks_stepper *s = arg;
    trek_status status = bucket->count > 0 ? trek_comm_start(s->comm, trek_bucket_call(s->replicas[0].arena, bucket)) : TREK_OK;
    if (s->overlap->status == TREK_OK)
        s->overlap->status = status;
}

void trek_overlap_begin(ranks_stepper *s, bool sends)
{
    if (!s->overlap || !sends)
        return;
    trek_step_sends(&s->step);
    s->overlap->status = TREK_OK;
    trek_buckets_begin(&s->buckets);
}

void trek_overlap_complete(int k, void *arg)
{
    ranks_stepper *s = arg;
    if (s->overlap->segment_of[k] >= 0)
        trek_buckets_complete(&s->buckets, s->overlap->segment_of[k], start, s);
}

trek_status trek_overlap_end(ranks_stepper *s)
{
    if (s->step.phase != TREK_STEP_SENDING)
        return TREK_OK;
    trek_buckets_rest(&s->buckets, start, s);
    trek_step_sent(&s->step);
    return s->overlap->status;
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
