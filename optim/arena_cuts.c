/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of an arena that one rank keeps and updates, and its f32 copies of them. */
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
    return trek_tensor_make_part(flat, (size_t)begin * trek_dtype_size(dtype), trek_shape_make(&count, 1), dtype);
}

int64_t trek_arena_place(const trek_arena *arena, int part, int64_t at)
{
    trek_arena_cut piece;
    int64_t begin = at;
    return trek_arena_next_own(arena, part, &begin, at + 1, &piece) ? piece.place : -1;
}

/* --- weights -------------------------------------------------------------------- */

trek_status trek_arena_weigh(trek_arena *arena, const double *weights)
{
    double *before = NULL;
    if (arena->twice) {
        trek_status status = trek_arena_set_sharers(arena, arena->sharers, weights, &before);
        trek_free(before);
        return status;
    }
    double *own = weights ? trek_calloc((size_t)arena->sharers, sizeof *own) : NULL;
    if (weights && !own)
        return TREK_ERR_MEMORY;
    for (int r = 0; weights && r < arena->sharers; r++)
        own[r] = weights[r];
    trek_free(arena->weights);
    arena->weights = own;
    return TREK_OK;
}

int64_t trek_arena_begin_of(const trek_arena *arena, int part, int sharer)
{
    int64_t units = arena->parts[part].count / arena->unit, at;
    double before = 0, all = 0;
    for (int r = 0; r < arena->sharers; r++) {
        before += r < sharer ? arena->weights[r] : 0;
        all += arena->weights[r];
    }
    at = before >= all ? units : (int64_t)((double)units * (before / all));
    return at * arena->unit;
}

/* --- owners --------------------------------------------------------------------- */

/* Segments that sharers are to own. */
typedef struct sharing_out {
    int n, sharers;
    const double *weights;   /* [n] of the segments */
    const double *room;      /* [sharers] of the sharers, of which the largest is 1; NULL: 1 each */
    int *owner;              /* [n] */
} sharing_out;

/* Returns how many sharers are needed if none has more than `most` times its room. A sharer may have a single segment that is
 * larger, unless rooms differ. `owner` gets the numbers of the owners. */
static int fill(const sharing_out *x, double most)
{
    int sharer = 0;
    double has = 0;
    for (int k = 0; k < x->n; k++) {
        for (; sharer < x->sharers && (has > 0 || x->room) && has + x->weights[k] > most * (x->room ? x->room[sharer] : 1);
             has = 0)
            sharer++;
        has += x->weights[k];
        x->owner[k] = sharer;
    }
    return sharer + 1;
}

/* Finds the least `most` for which there are enough sharers, to about a millionth. */
static void balance(const sharing_out *x)
{
    double low = 0, high = 0;
    for (int k = 0; k < x->n; k++)
        high += x->weights[k];
    for (int k = 0; k < 20; k++) {
        double middle = (low + high) / 2;
        if (fill(x, middle) <= x->sharers)
            high = middle;
        else
            low = middle;
    }
    fill(x, high);
}

/* Returns the arena's weights, divided by the largest. */
static double *make_rooms(const trek_arena *arena)
{
    double *room = trek_calloc((size_t)arena->sharers, sizeof *room), most = 0;
    for (int r = 0; r < arena->sharers; r++)
        most = arena->weights[r] > most ? arena->weights[r] : most;
    for (int r = 0; r < arena->sharers && room; r++)
        room[r] = arena->weights[r] / most;
    return room;
}

int *trek_arena_owners(const trek_arena *arena, const double *work)
{
    if (arena->twice)
        return trek_arena_keepers_of_segments(arena);
    int n = arena->n_segments;
    int *owner = trek_calloc((size_t)n + 1, sizeof *owner);
    double *weights = trek_calloc((size_t)n + 1, sizeof *weights), elements = 0, all_work = 0;
    double *room = arena->weights ? make_rooms(arena) : NULL;
    for (int k = 0; k < n; k++) {
        elements += (double)arena->segments[k].count;
        all_work += work && !arena->weights ? work[k] : 0;
    }
    for (int k = 0; k < n && weights && elements > 0; k++)
        weights[k] = (double)arena->segments[k].count / elements + (all_work > 0 ? work[k] / all_work : 0);
    bool made = owner && weights && (room || !arena->weights);
    if (made)
        balance(&(sharing_out){ n, arena->sharers, weights, room, owner });
    trek_free(weights);
    trek_free(room);
    if (made)
        return owner;
    trek_free(owner);
    return NULL;
}

/* --- divisions ------------------------------------------------------------------ */

/* Returns whether a division has a further piece of a part, and finds it. */
static bool next_of(const trek_arena_division *division, int part, int *k)
{
    while (*k < division->n_cuts && division->cuts[*k].part != part)
        ++*k;
    return *k < division->n_cuts;
}

/* Makes the f32 copies of this rank's own elements. */
static trek_tensor *make_own_masters(const trek_arena *arena, const trek_arena_division *division, int p,
                                     const trek_tensor *whole)
{
    const trek_arena_part *part = &arena->parts[p];
    trek_tensor *all = trek_tensor_zeros(trek_shape_make(&division->owned[p], 1), part->wide, arena->device);
    trek_status status = all ? TREK_OK : trek_error_status();
    for (int k = 0; status == TREK_OK && !division->bare && next_of(division, p, &k); k++) {
        const trek_arena_cut *cut = &division->cuts[k];
        size_t size = trek_dtype_size(part->wide);
        if (whole) {
            status = arena->backend->copy_bytes(all->data + (size_t)cut->place * size, arena->device,
                                                whole->data + (size_t)cut->begin * size, trek_cpu(0),
                                                (size_t)(cut->end - cut->begin) * size, NULL);
            continue;
        }
        trek_tensor *from = trek_arena_stretch(part->params, cut->begin, cut->end - cut->begin);
        trek_tensor *to = from ? trek_arena_stretch(all, cut->place, cut->end - cut->begin) : NULL;
        status = to ? trek_tensor_copy_from(to, from) : TREK_ERR_MEMORY;
        trek_tensor_release(from);
        trek_tensor_release(to);
    }
    if (status == TREK_OK)
        return all;
    trek_tensor_release(all);
    return NULL;
}

static void add_cut(trek_arena_division *division, trek_arena_cut cut)
{
    trek_arena_cut *last = division->n_cuts > 0 ? &division->cuts[division->n_cuts - 1] : NULL;
    cut.place = division->owned[cut.part];
    division->owned[cut.part] += cut.end - cut.begin;
    if (last && last->part == cut.part && last->end == cut.begin)
        last->end = cut.end;
    else if (cut.begin < cut.end)
        division->cuts[division->n_cuts++] = cut;
}

trek_status trek_arena_division_make(const trek_arena *arena, const trek_arena_cut *cuts, int n, trek_tensor *const *masters,
                                     trek_arena_division *division)
{
    if (!(division->cuts = trek_calloc((size_t)n + 1, sizeof *division->cuts)))
        return TREK_ERR_MEMORY;
    for (int k = 0; k < n; k++)
        add_cut(division, cuts[k]);
    bool good = true;
    for (int p = 0; p < arena->n_parts && good; p++)
        good = !trek_arena_part_is_low(&arena->parts[p]) ||
               (division->masters[p] = make_own_masters(arena, division, p, masters ? masters[p] : NULL));
    return good ? TREK_OK : trek_error_status();
}

void trek_arena_divide(trek_arena *arena, trek_arena_division *division)
{
    trek_arena_division old = { .owner = arena->owner, .n_cuts = arena->n_cuts, .cuts = arena->cuts };
    memcpy(old.owned, arena->owned, sizeof old.owned);
    for (int p = 0; p < arena->n_parts; p++) {
        if (!trek_arena_part_is_low(&arena->parts[p]))
            continue;
        old.masters[p] = arena->parts[p].master;
        arena->parts[p].master = division->masters[p];
    }
    arena->owner = division->owner;
    arena->n_cuts = division->n_cuts;
    arena->cuts = division->cuts;
    memcpy(arena->owned, division->owned, sizeof arena->owned);
    *division = old;
}

void trek_arena_division_clear(trek_arena_division *division)
{
    for (int p = 0; p < TREK_DTYPE_COUNT; p++)
        trek_tensor_release(division->masters[p]);
    trek_free(division->owner);
    trek_free(division->cuts);
    *division = (trek_arena_division){ 0 };
}

/* --- masters that follow parameters ------------------------------------------------ */

/* A master that rounds to the parameter is kept. */
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
