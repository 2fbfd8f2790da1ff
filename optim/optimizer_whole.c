/* SPDX-License-Identifier: Apache-2.0 */
/* Classes that update whole parameters: the shapes of their state, scratch memory, and the call itself. */
#include <stdatomic.h>

#include "autograd/var_internal.h"
#include "optim/optimizer_internal.h"

/* One for each thread that updates, so that none waits or allocates. */
typedef struct trek_whole_workspaces {
    int n;
    size_t bytes; /* of each */
    trek_tensor *memory;
    atomic_bool *taken;
} trek_whole_workspaces;

/* --- what is kept of a parameter ---------------------------------------------------- */

static int64_t extent_of(trek_state_extent extent, trek_shape *shape)
{
    if (extent == TREK_STATE_EXTENT_ELEMENTS)
        return trek_shape_numel(*shape);
    if ((shape->ndim < 2) != (extent == TREK_STATE_EXTENT_VECTORS)) {
        *shape = trek_dims(0);
        return 0;
    }
    if (extent != TREK_STATE_EXTENT_VECTORS)
        shape->sizes[shape->ndim - (extent == TREK_STATE_EXTENT_ROWS ? 1 : 2)] = 1;
    return trek_shape_numel(*shape);
}

int64_t trek_optimizer_state_extent(const trek_optimizer *optimizer, int s, int k, int64_t *begin, trek_shape *shape)
{
    const trek_arena_segment *segment = &optimizer->arena->segments[k];
    *shape = trek_var_shape(segment->param);
    int64_t count = extent_of(optimizer->klass->states[s].extent, shape);
    if (optimizer->place[s])
        *begin = optimizer->place[s][k];
    else
        *begin = optimizer->arena->owner ? trek_arena_place(optimizer->arena, segment->part, segment->offset) : segment->offset;
    return count;
}

int64_t trek_optimizer_whole_begin(const trek_optimizer *optimizer, int s, int k)
{
    const trek_arena *arena = optimizer->arena;
    return optimizer->place[s] ? optimizer->place[s][arena->n_segments + k] : arena->segments[k].offset;
}

void trek_optimizer_state_of(const trek_optimizer *optimizer, int s, int part, int owner, int64_t *begin, int64_t *count)
{
    const trek_arena *arena = optimizer->arena;
    *begin = *count = 0;
    for (int k = 0; k < arena->n_segments; k++) {
        if (arena->segments[k].part != part || (arena->owner && owner >= 0 && arena->owner[k] != owner))
            continue;
        trek_shape shape = trek_var_shape(arena->segments[k].param);
        int64_t own = extent_of(optimizer->klass->states[s].extent, &shape);
        if (*count == 0)
            *begin = trek_optimizer_whole_begin(optimizer, s, k);
        *count += own;
    }
}

int64_t trek_optimizer_state_count(const trek_optimizer *optimizer, int s, int part)
{
    const trek_arena *arena = optimizer->arena;
    if (!optimizer->place[s])
        return arena->cuts ? arena->owned[part] : arena->parts[part].count;
    int64_t all = 0;
    for (int k = 0; k < arena->n_segments; k++) {
        trek_shape shape = trek_var_shape(arena->segments[k].param);
        if (arena->segments[k].part == part && trek_arena_has_whole(arena, k))
            all += extent_of(optimizer->klass->states[s].extent, &shape);
    }
    return all;
}

trek_status trek_optimizer_lay_out(trek_optimizer *optimizer, int s)
{
    const trek_arena *arena = optimizer->arena;
    int64_t next[TREK_DTYPE_COUNT] = { 0 }, next_own[TREK_DTYPE_COUNT] = { 0 };
    int n = arena->n_segments;
    if (optimizer->klass->states[s].extent == TREK_STATE_EXTENT_ELEMENTS || optimizer->place[s])
        return TREK_OK;
    optimizer->place[s] = trek_calloc(2 * (size_t)n, sizeof *optimizer->place[s]);
    if (!optimizer->place[s])
        return TREK_ERR_MEMORY;
    for (int k = 0; k < n; k++) {
        trek_shape shape = trek_var_shape(arena->segments[k].param);
        int part = arena->segments[k].part;
        int64_t count = extent_of(optimizer->klass->states[s].extent, &shape);
        optimizer->place[s][k] = next_own[part];
        optimizer->place[s][n + k] = next[part];
        next[part] += count;
        next_own[part] += trek_arena_has_whole(arena, k) ? count : 0;
    }
    return TREK_OK;
}

/* --- owners ---------------------------------------------------------------------------- */

trek_status trek_optimizer_owners(const trek_optimizer_spec *given, const trek_arena *arena, int **owner)
{
    trek_optimizer_spec spec = *given;
    *owner = NULL;
    trek_status status = trek_optimizer_resolve(&spec);
    if (status != TREK_OK || !spec.klass->whole)
        return status;
    double *work = trek_calloc((size_t)arena->n_segments + 1, sizeof *work);
    for (int k = 0; k < arena->n_segments && work && spec.klass->work; k++)
        work[k] = spec.klass->work(trek_var_shape(arena->segments[k].param), spec.options);
    *owner = work ? trek_arena_owners(arena, work) : NULL;
    trek_free(work);
    return *owner ? TREK_OK : TREK_ERR_MEMORY;
}

/* --- workspaces ---------------------------------------------------------------------------- */

static void free_workspaces(trek_whole_workspaces *workspaces)
{
    if (!workspaces)
        return;
    trek_tensor_release(workspaces->memory);
    trek_free(workspaces->taken);
    trek_free(workspaces);
}

trek_status trek_optimizer_share(trek_optimizer *optimizer, int threads)
{
    trek_whole_workspaces *workspaces = trek_calloc(1, sizeof *workspaces);
    atomic_bool *taken = trek_calloc((size_t)threads, sizeof *taken);
    trek_status status = workspaces && taken ? TREK_OK : TREK_ERR_MEMORY;
    for (int s = 0; s < TREK_UPDATE_STATES && status == TREK_OK; s++)
        status = trek_optimizer_lay_out(optimizer, s);
    if (status != TREK_OK) {
        trek_free(workspaces);
        trek_free(taken);
        return status;
    }
    *workspaces = (trek_whole_workspaces){ .n = threads, .taken = taken };
    free_workspaces(optimizer->workspaces);
    optimizer->workspaces = workspaces;
    optimizer->stale = true;
    return TREK_OK;
}

void trek_optimizer_free_workspaces(trek_optimizer *optimizer)
{
    free_workspaces(optimizer->workspaces);
    optimizer->workspaces = NULL;
    for (int s = 0; s < TREK_UPDATE_STATES; s++) {
        trek_free(optimizer->place[s]);
        optimizer->place[s] = NULL;
    }
}

/* Returns what the workspace of a parameter needs that this rank updates, otherwise 0. */
static size_t workspace_of(const trek_optimizer *optimizer, int k)
{
    const trek_arena *arena = optimizer->arena;
    const trek_arena_segment *segment = &arena->segments[k];
    const double *options = optimizer->groups[segment->group].spec.options;
    if (!trek_arena_has_whole(arena, k) || !optimizer->klass->workspace)
        return 0;
    return optimizer->klass->workspace(arena->parts[segment->part].wide, trek_var_shape(segment->param), options);
}

/* Makes workspaces of at least so many bytes each. */
static trek_status make_workspaces(trek_optimizer *optimizer, size_t bytes)
{
    const trek_arena *arena = optimizer->arena;
    trek_whole_workspaces *workspaces = optimizer->workspaces;
    bytes = (bytes + 63) & ~(size_t)63;
    if (bytes <= workspaces->bytes || !arena->backend->host_accessible) /* devices allocate their own scratch memory */
        return TREK_OK;
    int64_t all = (int64_t)bytes * workspaces->n;
    trek_tensor *memory = trek_tensor_empty(trek_shape_make(&all, 1), TREK_U8, arena->device);
    if (!memory)
        return trek_error_status();
    trek_tensor_release(workspaces->memory);
    workspaces->memory = memory;
    workspaces->bytes = bytes;
    return TREK_OK;
}

trek_status trek_optimizer_ready_whole(trek_optimizer *optimizer)
{
    const trek_arena *arena = optimizer->arena;
    const trek_optimizer_class *klass = optimizer->klass;
    size_t bytes = 0;
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        if (!optimizer->active[k])
            continue;
        trek_status status = !klass->check_shape ? TREK_OK
            : klass->check_shape(segment->name, trek_var_shape(segment->param),
                                 optimizer->groups[segment->group].spec.options);
        if (status != TREK_OK)
            return status;
        bytes = workspace_of(optimizer, k) > bytes ? workspace_of(optimizer, k) : bytes;
    }
    return make_workspaces(optimizer, bytes);
}

trek_status trek_optimizer_reserve_whole(trek_optimizer *optimizer)
{
    size_t bytes = 0;
    if (!optimizer->workspaces)
        return TREK_OK;
    for (int k = 0; k < optimizer->arena->n_segments; k++)
        if (optimizer->arena->segments[k].param->requires_grad)
            bytes = workspace_of(optimizer, k) > bytes ? workspace_of(optimizer, k) : bytes;
    return make_workspaces(optimizer, bytes);
}

/* --- updating --------------------------------------------------------------------------- */

void trek_optimizer_apply_whole(trek_optimizer *optimizer, const trek_optimizer_run *run, trek_update_slice *slice)
{
    trek_arena *arena = optimizer->arena;
    const trek_arena_segment *segment = &arena->segments[run->segment];
    const trek_arena_part *part = &arena->parts[run->part];
    trek_whole_workspaces *workspaces = optimizer->workspaces;
    int64_t size = trek_item_size[part->wide], begin;
    trek_shape shape;
    for (int s = 0; s < TREK_UPDATE_STATES; s++)
        if (slice->kept >> s & 1 && trek_optimizer_state_extent(optimizer, s, run->segment, &begin, &shape) > 0)
            slice->state[s] = optimizer->state[s][run->part]->data + begin * size;
    if (slice->value_limit > 0) { /* it is read more than once */
        arena->backend->clamp_abs(arena->device, part->wide, slice->grad, slice->count, slice->value_limit);
        slice->value_limit = 0;
    }
    int workspace = 0;
    while (atomic_exchange(&workspaces->taken[workspace], true))
        workspace = (workspace + 1) % workspaces->n;
    trek_update_whole whole = { slice, trek_var_shape(segment->param),
                                workspaces->memory ? workspaces->memory->data + (size_t)workspace * workspaces->bytes : NULL };
    optimizer->klass->whole(part->wide, &whole);
    atomic_store(&workspaces->taken[workspace], false);
    if (slice->low)
        arena->backend->write_low(slice->low, slice->low_dtype, slice->param, 0, slice->count);
    if (slice->zero_grad)
        memset(slice->grad, 0, (size_t)(slice->count * size));
}
