/* SPDX-License-Identifier: Apache-2.0 */
/* What of an arena one rank keeps and updates, and the f32 copies that it has of that. */
#include <string.h>

#include "autograd/var_internal.h"
#include "optim/arena.h"

/* --- one rank's cuts ------------------------------------------------------------ */

bool trek_arena_next_own(const trek_arena *arena, int part, int64_t *at, int64_t end, trek_arena_cut *piece)
{
    if (!arena->cuts) {
        *piece = (trek_arena_cut){ part, *at, end, *at };
        *at = end;
        return piece->begin < end;
    }
    for (int k = 0; k < arena->n_cuts; k++) {
        const trek_arena_cut *cut = &arena->cuts[k];
        int64_t begin = cut->begin > *at ? cut->begin : *at, stop = cut->end < end ? cut->end : end;
        if (cut->part != part || begin >= stop)
            continue;
        *piece = (trek_arena_cut){ part, begin, stop, cut->place + (begin - cut->begin) };
        *at = stop;
        return true;
    }
    return false;
}

trek_tensor *trek_arena_stretch(trek_tensor *flat, int64_t begin, int64_t count)
{
    trek_dtype dtype = (trek_dtype)flat->dtype;
    return trek_tensor_make_part(flat, (size_t)begin * trek_dtype_size(dtype), trek_shape_make(1, &count), dtype);
}

/* The f32 copies of what is its own. */
static trek_tensor *make_own_masters(const trek_arena *arena, int p)
{
    const trek_arena_part *part = &arena->parts[p];
    trek_tensor *all = trek_tensor_zeros(trek_shape_make(1, &arena->owned[p]), part->wide, arena->device);
    trek_status status = all ? TREK_OK : trek_error_status();
    trek_arena_cut piece;
    for (int64_t at = 0; status == TREK_OK && trek_arena_next_own(arena, p, &at, part->count, &piece);) {
        trek_tensor *from = trek_arena_stretch(part->params, piece.begin, piece.end - piece.begin);
        trek_tensor *to = from ? trek_arena_stretch(all, piece.place, piece.end - piece.begin) : NULL;
        status = to ? trek_tensor_copy_from(to, from) : TREK_ERR_MEMORY;
        trek_tensor_release(from);
        trek_tensor_release(to);
    }
    if (status == TREK_OK)
        return all;
    trek_tensor_release(all);
    return NULL;
}

static void drop_cuts(trek_arena *arena)
{
    trek_free(arena->cuts);
    arena->cuts = NULL;
    arena->n_cuts = 0;
}

trek_status trek_arena_shard(trek_arena *arena, const trek_arena_cut *cuts, int n)
{
    trek_tensor *masters[TREK_DTYPE_COUNT] = { NULL };
    if (!(arena->cuts = trek_calloc((size_t)n + 1, sizeof *arena->cuts)))
        return TREK_ERR_MEMORY;
    memset(arena->owned, 0, sizeof arena->owned);
    arena->n_cuts = n;
    for (int k = 0; k < n; k++) {
        arena->cuts[k] = cuts[k];
        arena->cuts[k].place = arena->owned[cuts[k].part];
        arena->owned[cuts[k].part] += cuts[k].end - cuts[k].begin;
    }
    bool good = true;
    for (int p = 0; p < arena->n_parts && good; p++)
        good = !trek_arena_part_is_low(&arena->parts[p]) || (masters[p] = make_own_masters(arena, p));
    for (int p = 0; p < arena->n_parts; p++) {
        if (good && masters[p])
            arena->parts[p].master = masters[p]; /* there was none */
        else
            trek_tensor_release(masters[p]);
    }
    if (!good)
        drop_cuts(arena);
    return good ? TREK_OK : trek_error_status();
}

/* --- masters that follow parameters ------------------------------------------------ */

/* Where a master rounds to what the parameter is, it stays. */
static trek_status refresh_piece(const trek_arena_part *part, const trek_arena_cut *piece)
{
    int64_t count = piece->end - piece->begin;
    trek_tensor *param = trek_arena_stretch(part->params, piece->begin, count);
    trek_tensor *master = param ? trek_arena_stretch(part->master, piece->place, count) : NULL;
    trek_tensor *rounded = master ? trek_tensor_cast(master, part->dtype) : NULL;
    trek_tensor *same = rounded ? trek_tensor_eq(rounded, param) : NULL;
    trek_tensor *wide = same ? trek_tensor_cast(param, part->wide) : NULL;
    trek_tensor *merged = wide ? trek_tensor_where(same, master, wide) : NULL;
    trek_status status = merged ? trek_tensor_copy_from(master, merged) : trek_error_status();
    trek_tensor_release(param);
    trek_tensor_release(master);
    trek_tensor_release(rounded);
    trek_tensor_release(same);
    trek_tensor_release(wide);
    trek_tensor_release(merged);
    return status;
}

static trek_status refresh_master(const trek_arena *arena, const trek_arena_segment *segment)
{
    trek_status status = TREK_OK;
    trek_arena_cut piece;
    for (int64_t at = segment->offset; status == TREK_OK && trek_arena_next_own(arena, segment->part, &at,
                                                                                segment->offset + segment->count, &piece);)
        status = refresh_piece(&arena->parts[segment->part], &piece);
    return status;
}

trek_status trek_arena_refresh_masters(trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++) {
        trek_arena_segment *segment = &arena->segments[k];
        if (!trek_arena_part_is_low(&arena->parts[segment->part]) || segment->version == segment->param->data->storage->version)
            continue;
        trek_status status = refresh_master(arena, segment);
        if (status != TREK_OK)
            return status;
        segment->version = segment->param->data->storage->version;
    }
    return TREK_OK;
}

void trek_arena_note_masters(trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++)
        arena->segments[k].version = arena->segments[k].param->data->storage->version;
}
