/* SPDX-License-Identifier: Apache-2.0 */
/* Divided gradients of GPUs. Their sums lie in host memory, where ranks of all processes can add to them, and take nothing of
 * what a GPU has. A bucket is copied there beside backward as soon as a grain has completed it. When backward has completed the
 * next one, the CPU adds it to the sums of those who keep it. At the end of a step each rank gets the gradients that it keeps
 * back. */
#include <string.h>

#include "distributed/grains/grains.h"
#include "distributed/team/copier.h"
#include "distributed/team/step.h"
#include "tensor/memory_internal.h"
#include "tensor/pages.h"
#include "tensor/try_internal.h"

trek_status trek_grain_stage_make(trek_step *s, int rank)
{
    trek_grain_stage *stage = &s->grains->sums[rank].stage;
    return stage->copier ? TREK_OK : trek_copier_new(s->team->replicas[rank].arena->device, &stage->copier);
}

void trek_grain_stage_free(trek_grain_stage *stage)
{
    if (stage->room)
        trek_copier_put_away(stage->copier, stage->room);
    trek_copier_free(&stage->copier);
    trek_tensor_release(stage->norm);
    *stage = (trek_grain_stage){ 0 };
}

/* --- from the device ----------------------------------------------------------------------------- */

/* Copies the gradients that the grain has given, and makes zeros of what lies between them, whose memory may be absent. */
static trek_status copy_segments(const trek_grain_stage *stage, const trek_arena *arena, const trek_bucket *bucket)
{
    size_t size = trek_dtype_size(arena->parts[bucket->part].wide);
    const char *grads = arena->parts[bucket->part].grads->data;
    int64_t done = stage->begin;
    for (int k = bucket->first; k < bucket->end; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        int64_t begin = segment->offset > stage->begin ? segment->offset : stage->begin, end = segment->offset + segment->count;
        end = end < bucket->begin + bucket->count ? end : bucket->begin + bucket->count;
        if (begin >= end || !segment->param->leaf->has_grad)
            continue;
        memset(stage->room + (size_t)(done - stage->begin) * size, 0, (size_t)(begin - done) * size);
        TRY(trek_copier_bring(stage->copier, stage->room + (size_t)(begin - stage->begin) * size, grads + (size_t)begin * size,
                              (size_t)(end - begin) * size));
        done = end;
    }
    memset(stage->room + (size_t)(done - stage->begin) * size, 0, (size_t)(stage->end - done) * size);
    return TREK_OK;
}

static trek_status copy_bucket(const trek_grain_stage *stage, const trek_arena *arena, const trek_bucket *bucket)
{
    TRY(trek_copier_begin(stage->copier));
    TRY(copy_segments(stage, arena, bucket));
    return trek_copier_end(stage->copier);
}

void trek_grain_stage_bucket(const trek_grain_bucket *on, const trek_bucket *bucket)
{
    const trek_arena *arena = on->s->team->replicas[on->rank].arena;
    trek_grain_stage *stage = &on->s->grains->sums[on->rank].stage;
    int64_t end = trek_arena_slot_end(bucket->begin + bucket->count); /* whole blocks */
    size_t bytes = (size_t)(end - bucket->begin) * trek_dtype_size(arena->parts[bucket->part].wide);
    if (bucket->count == 0 || !(stage->room = trek_copier_room(stage->copier, bytes)))
        return;
    stage->part = bucket->part;
    stage->begin = bucket->begin;
    stage->end = end;
    copy_bucket(stage, arena, bucket);
}

/* The rank's own keep their memory. As on CPUs a program that looks at them before the step sees zeros. */
static void clear_own(const trek_grain_stage *stage, const trek_arena *arena)
{
    const trek_arena_part *part = &arena->parts[stage->part];
    size_t size = trek_dtype_size(part->wide);
    trek_arena_cut own;
    for (int64_t at = stage->begin; trek_arena_next_own(arena, stage->part, &at, stage->end, &own);)
        trek_pages_give_back(part->pages, part->grads->data + (size_t)own.begin * size, (size_t)(own.end - own.begin) * size);
}

void trek_grain_stage_settle(void *arg)
{
    const trek_grain_bucket *on = arg;
    trek_grain_stage *stage = &on->s->grains->sums[on->rank].stage;
    const trek_arena *arena = on->s->team->replicas[on->rank].arena;
    if (!stage->room)
        return;
    if (trek_copier_wait(stage->copier) == TREK_OK && trek_error_status() == TREK_OK)
        trek_grain_sums_add_to_keepers(on, stage->part, stage->begin, stage->end, stage->room, false);
    clear_own(stage, arena);
    trek_copier_put_away(stage->copier, stage->room);
    stage->room = NULL;
}

/* --- and back ---------------------------------------------------------------------------------------- */

trek_status trek_grain_stage_read(trek_step *s, int rank, const trek_arena_cut *cut)
{
    const trek_arena *arena = s->team->replicas[rank].arena;
    trek_grain_stage *stage = &s->grains->sums[rank].stage;
    const trek_binned *sums = &s->grains->sums[rank].parts[cut->part];
    size_t size = trek_dtype_size(sums->dtype);
    for (int64_t begin = cut->begin, end; begin < cut->end; begin = end) {
        end = begin + s->grains->piece < cut->end ? begin + s->grains->piece : cut->end;
        char *room = trek_copier_room(stage->copier, (size_t)(end - begin) * size);
        if (!room)
            return trek_error_status();
        trek_cpu_backend()->binned_read(sums, s->grains->factor, room - (size_t)begin * size, begin / TREK_BINNED_BLOCK,
                                        trek_binned_blocks(end - begin));
        trek_status status = arena->backend->copy_bytes(arena->parts[cut->part].grads->data + (size_t)begin * size, arena->device,
                                                        room, trek_cpu(0), (size_t)(end - begin) * size, NULL);
        arena->backend->pinned_release_after(room, arena->device, NULL);
        TRY(status);
    }
    return TREK_OK;
}
