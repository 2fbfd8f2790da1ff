/* SPDX-License-Identifier: Apache-2.0 */
/* Reduction under backward, between processes of one rank each, by engines that
 * progress by themselves: a bucket of the arena is started as soon as the last
 * of its gradients is complete, in one fixed order on all processes. Only the
 * pass that is the step's last sends; should another follow all the same,
 * what was reduced stays with process 0 and the rest is reduced in step(). */
#include "distributed/step/overlap.h"

#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/step/buckets.h"
#include "distributed/step/job_sync.h"
#include "tensor/trace.h"

typedef struct bucket {
    trek_bucket cut;
    int first, last;         /* segments that reach into it */
    int segments, waiting;   /* of those: all; without a complete gradient in this pass */
} bucket;

struct trek_overlap {
    bucket *buckets;
    int n_buckets, next;     /* the next one to be started */
    int *segment_of;         /* [params] */
    trek_status status;      /* of what was started in this pass */
};

/* --- planning ------------------------------------------------------------------------- */

static trek_status note_bucket(const trek_bucket *cut, void *arg)
{
    const ranks_stepper *s = arg;
    const trek_arena *arena = s->replicas[0].arena;
    bucket *b = &s->overlap->buckets[cut->number];
    *b = (bucket){ .cut = *cut, .first = -1 };
    for (int j = 0; j < arena->n_segments; j++) {
        const trek_arena_segment *segment = &arena->segments[j];
        if (segment->part != cut->part || segment->offset >= cut->begin + cut->count || segment->offset + segment->count <= cut->begin)
            continue;
        b->first = b->first < 0 ? j : b->first;
        b->last = j;
        b->segments++;
    }
    return TREK_OK;
}

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
    trek_buckets_each(first->arena, s->bucket_bytes, NULL, NULL, &o->n_buckets);
    o->buckets = trek_calloc((size_t)o->n_buckets, sizeof *o->buckets);
    o->segment_of = trek_calloc((size_t)first->model->n_params, sizeof *o->segment_of);
    if (!o->buckets || !o->segment_of)
        return trek_status_get();
    for (int k = 0; k < first->model->n_params; k++)
        o->segment_of[k] = trek_arena_find(first->arena, first->model->params[k]);
    return trek_buckets_each(first->arena, s->bucket_bytes, note_bucket, s, NULL);
}

void trek_overlap_free(ranks_stepper *s)
{
    if (!s->overlap)
        return;
    trek_free(s->overlap->buckets);
    trek_free(s->overlap->segment_of);
    trek_free(s->overlap);
    s->overlap = NULL;
}

/* --- a pass ------------------------------------------------------------------------------ */

static void start(ranks_stepper *s, const bucket *b)
{
    trek_status status = trek_comm_start(s->comm, trek_bucket_call(s->replicas[0].arena, &b->cut));
    if (s->overlap->status == TREK_OK)
        s->overlap->status = status;
}

void trek_overlap_begin(ranks_stepper *s, bool sends)
{
    trek_overlap *o = s->overlap;
    s->sending = o && sends;
    if (!s->sending)
        return;
    o->next = 0;
    o->status = TREK_OK;
    for (int k = 0; k < o->n_buckets; k++)
        o->buckets[k].waiting = o->buckets[k].segments;
}

void trek_overlap_complete(int k, void *arg)
{
    ranks_stepper *s = arg;
    trek_overlap *o = s->overlap;
    int segment = o->segment_of[k];
    for (int j = o->next; segment >= 0 && j < o->n_buckets; j++)
        if (o->buckets[j].segments > 0 && segment >= o->buckets[j].first && segment <= o->buckets[j].last)
            o->buckets[j].waiting--;
    while (o->next < o->n_buckets && o->buckets[o->next].waiting <= 0)
        start(s, &o->buckets[o->next++]);
}

trek_status trek_overlap_end(ranks_stepper *s)
{
    if (!s->sending)
        return TREK_OK;
    trek_overlap *o = s->overlap;
    while (o->next < o->n_buckets)
        start(s, &o->buckets[o->next++]);
    s->sending = false;
    s->sent = true;
    s->passes_sent = s->passes;
    return o->status;
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
    if (s->sent) {
        s->sent = false;
        s->holds_sum = true;
        status = trek_comm_finish(s->comm);
        if (status == TREK_OK)
            status = trek_ranks_settle(s);
    }
    if (status != TREK_OK || !s->holds_sum)
        return status;
    s->holds_sum = false;
    return s->process > 0 ? trek_ranks_call(s->ranks, zero_first, s) : TREK_OK;
}
