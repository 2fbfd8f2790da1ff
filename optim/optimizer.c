/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers of every class over a flat arena. The stretches of the arena that one kernel call can update are planned
 * once, and again only when the used, frozen or grouped parameters change. A step is then a walk over a handful of
 * runs. */
#include "optim/optimizer_internal.h"

#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "nn/params.h"
#include "tensor/debug.h"
#include "tensor/trace.h"

static trek_optimizer_group group_of(const trek_optimizer_spec *spec)
{
    return (trek_optimizer_group){ .spec = *spec, .initial_lr = spec->options[0], .kept = trek_optimizer_kept(spec) };
}

/* --- made and freed ------------------------------------------------------------ */

trek_status trek_optimizer_make_state(trek_optimizer *optimizer, int s, int p)
{
    trek_dtype dtype = trek_optimizer_state_dtype(optimizer, p);
    trek_device device = optimizer->arena->device;
    int64_t count = trek_optimizer_state_count(optimizer, s, p), blocks = trek_code_blocks(count);
    if (dtype == TREK_U8 && !optimizer->scale[s][p])
        optimizer->scale[s][p] = trek_tensor_zeros(trek_shape_make(&blocks, 1), TREK_F32, device);
    if (dtype != TREK_U8 || optimizer->scale[s][p])
        optimizer->state[s][p] = trek_tensor_zeros(trek_shape_make(&count, 1), dtype, device);
    return optimizer->state[s][p] ? TREK_OK : TREK_ERR_MEMORY;
}

static trek_status ensure_state(trek_optimizer *optimizer, uint32_t kept)
{
    trek_status status = TREK_OK;
    for (int s = 0; s < TREK_UPDATE_STATES; s++)
        for (int p = 0; p < optimizer->arena->n_parts && status == TREK_OK; p++)
            if (kept >> s & 1 && !optimizer->state[s][p])
                status = trek_optimizer_make_state(optimizer, s, p);
    return status;
}

trek_optimizer *trek_optimizer_new_over(trek_optimizer_spec spec, trek_arena *arena)
{
    if (!arena) {
        trek_fail_missing("optimizer_new_over", "arena");
        return NULL;
    }
    trek_update_kernel kernel;
    if (spec.klass && spec.klass->whole && arena->cuts && !arena->owner)
        return trek_fail_null(TREK_ERR_STATE, "%s: it updates whole parameters, which cannot be divided among ranks",
                              spec.klass->name);
    if (trek_optimizer_resolve(&spec) != TREK_OK || trek_optimizer_find_kernel(spec.klass, arena, &kernel) != TREK_OK)
        return NULL;
    trek_optimizer *optimizer = trek_calloc(1, sizeof *optimizer);
    if (!optimizer)
        return NULL;
    size_t n = (size_t)arena->n_segments;
    optimizer->klass = spec.klass;
    optimizer->kernel = kernel;
    optimizer->arena = arena;
    trek_optimizer_corrected(spec.klass, optimizer->corrected);
    optimizer->positive = trek_optimizer_positive(spec.klass);
    optimizer->stale = true;
    optimizer->runs = trek_calloc(n, sizeof *optimizer->runs);
    optimizer->active = trek_calloc(n, sizeof *optimizer->active);
    optimizer->written = trek_calloc(n, sizeof *optimizer->written);
    if (!optimizer->runs || !optimizer->active || !optimizer->written ||
        trek_array_grow(&optimizer->groups, &optimizer->cap_groups, 1, sizeof *optimizer->groups) != TREK_OK ||
        (spec.klass->whole && trek_optimizer_share(optimizer, 1) != TREK_OK)) {
        trek_optimizer_free(&optimizer);
        return NULL;
    }
    optimizer->groups[0] = group_of(&spec);
    optimizer->n_groups = 1;
    if (ensure_state(optimizer, optimizer->groups[0].kept) != TREK_OK) {
        trek_optimizer_free(&optimizer);
        return NULL;
    }
    for (int k = 0; k < arena->n_segments; k++) {
        arena->segments[k].group = 0;
        arena->segments[k].steps = 0;
    }
    optimizer->last = (trek_update_state){ .norm = NAN };
    if (!arena->backend->host_accessible && trek_optimizer_use_device_update(optimizer) != TREK_OK)
        trek_optimizer_free(&optimizer);
    return optimizer;
}

trek_optimizer *trek_optimizer_new(trek_optimizer_spec spec, const trek_params *params)
{
    if (!params) {
        trek_fail_missing("optimizer_new", "params");
        return NULL;
    }
    if (trek_optimizer_spec_check(&spec) != TREK_OK)
        return NULL;
    if (trek_params_count(params) == 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: params: the list is empty; must have at least one", spec.klass->name);
    trek_arena *arena = trek_arena_new(params);
    if (!arena)
        return NULL;
    trek_optimizer *optimizer = trek_optimizer_new_over(spec, arena);
    if (optimizer)
        optimizer->owns_arena = true;
    else
        trek_arena_free(&arena);
    return optimizer;
}

void trek_optimizer_free(trek_optimizer **address)
{
    if (!address || !*address || trek_gone(*address, "optimizer_free", "the optimizer"))
        return;
    trek_optimizer *optimizer = *address;
    *address = NULL;
    for (int s = 0; s < TREK_UPDATE_STATES; s++)
        for (int p = 0; p < TREK_DTYPE_COUNT; p++) {
            trek_tensor_release(optimizer->state[s][p]);
            trek_tensor_release(optimizer->scale[s][p]);
        }
    if (optimizer->behind && optimizer->behind->end)
        optimizer->behind->end(optimizer->behind_arg);
    trek_device_update_free(optimizer);
    trek_optimizer_gather_end(optimizer);
    trek_optimizer_free_workspaces(optimizer);
    if (optimizer->owns_arena)
        trek_arena_free(&optimizer->arena);
    trek_free(optimizer->groups);
    trek_free(optimizer->runs);
    trek_free(optimizer->active);
    trek_free(optimizer->written);
    if (trek_debug)
        trek_debug_ended(optimizer, "optimizer", NULL);
    trek_free(optimizer);
}

/* --- groups and learning rates --------------------------------------------------- */

int trek_optimizer_add_group(trek_optimizer *optimizer, const trek_params *params, trek_optimizer_spec spec)
{
    if (!optimizer || !params) {
        trek_fail_missing("optimizer_add_group", optimizer ? "params" : "optimizer");
        return -1;
    }
    if (trek_optimizer_resolve(&spec) != TREK_OK)
        return -1;
    if (spec.klass != optimizer->klass) {
        trek_fail(TREK_ERR_ARGUMENT, "optimizer_add_group: the optimizer is %s, but the group %s; must be equal",
                  optimizer->klass->name, spec.klass->name);
        return -1;
    }
    trek_dtype state_dtype = optimizer->groups[0].spec.state_dtype;
    spec.state_dtype = spec.state_dtype == TREK_F32 ? state_dtype : spec.state_dtype;
    if (spec.state_dtype != state_dtype) {
        trek_fail(TREK_ERR_ARGUMENT, "optimizer_add_group: the optimizer keeps state in %s, but the group in %s; must be equal",
                  trek_dtype_name(state_dtype), trek_dtype_name(spec.state_dtype));
        return -1;
    }
    int n = trek_params_count(params), group = optimizer->n_groups;
    for (int k = 0; k < n; k++)
        if (trek_arena_find(optimizer->arena, trek_params_var(params, k)) < 0) {
            trek_fail(TREK_ERR_ARGUMENT, "optimizer_add_group: parameter '%s' is not one of the optimizer's",
                      trek_params_name(params, k));
            return -1;
        }
    if (trek_array_grow(&optimizer->groups, &optimizer->cap_groups, group + 1, sizeof *optimizer->groups) != TREK_OK ||
        ensure_state(optimizer, trek_optimizer_kept(&spec)) != TREK_OK)
        return -1;
    optimizer->groups[group] = group_of(&spec);
    optimizer->n_groups++;
    for (int k = 0; k < n; k++)
        optimizer->arena->segments[trek_arena_find(optimizer->arena, trek_params_var(params, k))].group = group;
    optimizer->stale = true;
    optimizer->edits++;
    return group;
}

trek_status trek_optimizer_follow(trek_optimizer *optimizer, const trek_optimizer *first)
{
    if (optimizer == first || optimizer->followed == first->edits)
        return TREK_OK;
    if (trek_array_grow(&optimizer->groups, &optimizer->cap_groups, first->n_groups, sizeof *optimizer->groups) != TREK_OK)
        return TREK_ERR_MEMORY;
    for (int g = 0; g < first->n_groups; g++)
        if (ensure_state(optimizer, first->groups[g].kept) != TREK_OK)
            return TREK_ERR_MEMORY;
    memcpy(optimizer->groups, first->groups, (size_t)first->n_groups * sizeof *first->groups);
    optimizer->n_groups = first->n_groups;
    for (int k = 0; k < optimizer->arena->n_segments; k++)
        optimizer->arena->segments[k].group = first->arena->segments[k].group;
    optimizer->stale = true;
    if (optimizer->resets != first->resets && trek_optimizer_import(optimizer, NULL, 0) != TREK_OK)
        return TREK_ERR_MEMORY;
    optimizer->resets = first->resets;
    optimizer->followed = first->edits;
    return TREK_OK;
}

static trek_status check_lr(const trek_optimizer *optimizer, const char *function, double *lr)
{
    if (!optimizer)
        return trek_fail_missing(function, "optimizer");
    if (trek_gone(optimizer, function, "the optimizer"))
        return TREK_ERR_STATE;
    if (*lr == TREK_ZERO)
        *lr = 0.0;
    return trek_optimizer_check_option(optimizer->klass, 0, *lr);
}

trek_status trek_optimizer_set_lr(trek_optimizer *optimizer, double lr)
{
    trek_status status = check_lr(optimizer, "optimizer_set_lr", &lr);
    for (int g = 0; status == TREK_OK && g < optimizer->n_groups; g++)
        *trek_lr_of(&optimizer->groups[g].spec) = lr;
    if (status == TREK_OK)
        optimizer->edits++;
    return status;
}

static trek_status check_group(const trek_optimizer *optimizer, const char *function, int group)
{
    if (group >= 0 && group < optimizer->n_groups)
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "%s: group: %d; must be 0 to %d", function, group, optimizer->n_groups - 1);
}

trek_status trek_optimizer_set_group_lr(trek_optimizer *optimizer, int group, double lr)
{
    trek_status status = check_lr(optimizer, "optimizer_set_group_lr", &lr);
    if (status == TREK_OK)
        status = check_group(optimizer, "optimizer_set_group_lr", group);
    if (status != TREK_OK)
        return status;
    *trek_lr_of(&optimizer->groups[group].spec) = lr;
    optimizer->edits++;
    return TREK_OK;
}

double trek_optimizer_group_lr(const trek_optimizer *optimizer, int group)
{
    if (!optimizer) {
        trek_fail_missing("optimizer_group_lr", "optimizer");
        return NAN;
    }
    if (check_group(optimizer, "optimizer_group_lr", group) != TREK_OK)
        return NAN;
    return *trek_lr_of(&optimizer->groups[group].spec);
}

double trek_optimizer_lr(const trek_optimizer *optimizer) { return trek_optimizer_group_lr(optimizer, 0); }

trek_status trek_optimizer_schedule_lr(trek_optimizer *optimizer, double lr)
{
    trek_status status = check_lr(optimizer, "optimizer_schedule_lr", &lr);
    for (int g = 0; status == TREK_OK && g < optimizer->n_groups; g++) {
        trek_optimizer_group *group = &optimizer->groups[g];
        double base = optimizer->groups[0].initial_lr;
        *trek_lr_of(&group->spec) = base > 0.0 && g > 0 ? lr * (group->initial_lr / base) : lr;
    }
    return status;
}

/* --- planning ----------------------------------------------------------------- */

/* A parameter that was moved, or that got a gradient elsewhere, would be updated in memory nobody reads. */
static trek_status check_homes(const trek_optimizer *optimizer)
{
    const trek_arena *arena = optimizer->arena;
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        const trek_arena_part *part = &arena->parts[segment->part];
        size_t offset = (size_t)segment->offset * trek_item_size[part->dtype];
        const trek_leaf *leaf = segment->param->leaf;
        if (segment->param->data->data == part->params->data + offset && leaf->grad_in_arena)
            continue;
        return trek_fail(TREK_ERR_STATE,
                         "optimizer: parameter '%s' was moved since the optimizer was made (by trek_module_to?); make a new one",
                         segment->name);
    }
    return TREK_OK;
}

/* Returns whether the segment can extend the run. Padding between them would be updated too, so zeros have to stay
 * zeros, and the padding's state must not enter a block's scale. */
static bool joins(const trek_optimizer *optimizer, const trek_optimizer_run *run, const trek_arena_segment *segment,
                  const trek_optimizer_run *candidate)
{
    if (run->part != segment->part || run->group != segment->group || run->fresh != candidate->fresh ||
        run->steps != candidate->steps)
        return false;
    bool (*keeps_zeros)(const double *options) = optimizer->klass->keeps_zeros;
    if (trek_optimizer_is_whole(optimizer))
        return false;
    if (run->end == segment->offset)
        return true;
    return !trek_optimizer_is_coded(optimizer) && keeps_zeros && keeps_zeros(optimizer->groups[run->group].spec.options);
}

static void plan_runs(trek_optimizer *optimizer)
{
    const trek_arena *arena = optimizer->arena;
    bool adjacent = false; /* the previous segment is the end of the last run */
    optimizer->n_runs = 0;
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        if (!optimizer->active[k]) {
            adjacent = false;
            continue;
        }
        trek_optimizer_run run = { .part = segment->part, .segment = k, .group = segment->group, .begin = segment->offset,
                                   .end = segment->offset + segment->count,
                                   .steps = trek_optimizer_by_step(optimizer) ? segment->steps : 0,
                                   .fresh = optimizer->groups[segment->group].kept & ~optimizer->written[k] };
        trek_optimizer_run *last = optimizer->n_runs > 0 ? &optimizer->runs[optimizer->n_runs - 1] : NULL;
        if (adjacent && joins(optimizer, last, segment, &run))
            last->end = run.end;
        else
            optimizer->runs[optimizer->n_runs++] = run;
        adjacent = true;
    }
    optimizer->stale = false;
    optimizer->plans++;
}

trek_status trek_optimizer_prepare(trek_optimizer *optimizer)
{
    if (!optimizer)
        return trek_fail_missing("optimizer_prepare", "optimizer");
    if (trek_gone(optimizer, "optimizer_prepare", "the optimizer"))
        return TREK_ERR_STATE;
    trek_status status = trek_error_status();
    if (status == TREK_OK)
        status = check_homes(optimizer);
    if (status == TREK_OK)
        status = trek_arena_refresh_masters(optimizer->arena);
    if (status != TREK_OK)
        return status;
    const trek_arena *arena = optimizer->arena;
    for (int k = 0; k < arena->n_segments; k++) {
        bool active = arena->segments[k].used && arena->segments[k].param->requires_grad;
        optimizer->stale |= active != optimizer->active[k];
        optimizer->active[k] = active;
    }
    if (optimizer->stale && trek_optimizer_is_whole(optimizer) && (status = trek_optimizer_ready_whole(optimizer)) != TREK_OK)
        return status;
    if (optimizer->stale)
        plan_runs(optimizer);
    for (int r = 0; r < optimizer->n_runs; r++) {
        trek_optimizer_run *run = &optimizer->runs[r];
        const double *options = optimizer->groups[run->group].spec.options;
        for (int c = 0; c < TREK_UPDATE_CORRECTIONS && optimizer->corrected[c]; c++)
            run->correction[c] = trek_update_correction(options[optimizer->corrected[c]], run->steps + 1);
    }
    return TREK_OK;
}

/* --- updating ------------------------------------------------------------------- */

/* Returns a slice with everything that all slices of the run have in common. */
static trek_update_slice slice_of(const trek_optimizer *optimizer, const trek_optimizer_run *run, double grad_scale,
                                  double value_limit, bool zero_grad)
{
    const trek_optimizer_group *group = &optimizer->groups[run->group];
    const trek_optimizer_class *klass = optimizer->klass;
    trek_update_slice s = { .step = trek_optimizer_by_step(optimizer) ? run->steps + 1 : 0, .kept = group->kept,
                            .fresh = run->fresh, .positive = optimizer->positive,
                            .zero_grad = zero_grad, .value_limit = value_limit,
                            .state_dtype = trek_optimizer_state_dtype(optimizer, run->part) };
    s.grad_scale = klass->maximize && group->spec.options[klass->maximize] != 0 ? -grad_scale : grad_scale;
    memcpy(s.options, group->spec.options, sizeof s.options);
    memcpy(s.correction, run->correction, sizeof s.correction);
    return s;
}

_Static_assert(TREK_ARENA_SLOT % TREK_CODE_BLOCK == 0, "no block has elements of two parameters, or sharers");

/* Returns the end of the block that contains the element, or the element itself if it begins a block. */
static int64_t block_end(int64_t at) { return trek_code_blocks(at) * TREK_CODE_BLOCK; }

/* Points the slice at the states of the elements from `place` on, in the buffers of this rank's own elements. */
static void point_at_states(const trek_optimizer *optimizer, int part, int64_t place, trek_update_slice *slice)
{
    int64_t size = trek_item_size[slice->state_dtype];
    for (int s = 0; s < TREK_UPDATE_STATES; s++) {
        if (!(slice->kept >> s & 1))
            continue;
        slice->state[s] = optimizer->state[s][part]->data + place * size;
        if (slice->state_dtype == TREK_U8)
            slice->scale[s] = (float *)optimizer->scale[s][part]->data + place / TREK_CODE_BLOCK;
    }
}

/* One kernel call: elements of a run that are adjacent in the buffers of this rank's own elements. */
static void apply_piece(trek_optimizer *optimizer, const trek_optimizer_run *run, const trek_arena_cut *piece, void *grads,
                        trek_update_slice *slice)
{
    const trek_arena_part *all = &optimizer->arena->parts[piece->part];
    int64_t size = trek_item_size[all->wide];
    bool whole = trek_optimizer_is_whole(optimizer), low = trek_arena_part_is_low(all);
    slice->param = all->master->data + (low ? piece->place : piece->begin) * size;
    slice->grad = (char *)grads + piece->begin * size;
    slice->count = piece->end - piece->begin;
    slice->first = piece->begin;
    if (!whole)
        point_at_states(optimizer, piece->part, piece->place, slice);
    if (low)
        slice->low = all->params->data + piece->begin * trek_item_size[all->dtype];
    slice->low_dtype = all->dtype;
    if (whole)
        trek_optimizer_apply_whole(optimizer, run, slice);
    else
        optimizer->arena->backend->update_slice(optimizer->arena->device, &optimizer->kernel, all->wide, slice);
}

void trek_optimizer_apply_range_from(trek_optimizer *optimizer, int part, int64_t begin, int64_t end, void *grads,
                                     double grad_scale, double value_limit, bool zero_grad)
{
    bool whole = trek_optimizer_is_whole(optimizer);
    if (trek_optimizer_state_dtype(optimizer, part) == TREK_U8)
        begin = block_end(begin), end = block_end(end); /* a block is updated in the range that has its first element */
    for (int r = 0; r < optimizer->n_runs; r++) {
        const trek_optimizer_run *run = &optimizer->runs[r];
        int64_t from = run->begin > begin ? run->begin : begin, to = run->end < end ? run->end : end;
        if (run->part != part || from >= to || (whole && from != run->begin))
            continue;
        to = whole ? run->end : to; /* a parameter is updated in the range that has its first element */
        trek_arena_cut piece;
        for (int64_t at = from; trek_arena_next_own(optimizer->arena, part, &at, to, &piece);) {
            trek_update_slice slice = slice_of(optimizer, run, grad_scale, value_limit, zero_grad);
            apply_piece(optimizer, run, &piece, grads, &slice);
        }
    }
}

void trek_optimizer_apply_range(trek_optimizer *optimizer, int part, int64_t begin, int64_t end, double grad_scale,
                                double value_limit, bool zero_grad)
{
    trek_optimizer_apply_range_from(optimizer, part, begin, end, optimizer->arena->parts[part].grads->data, grad_scale,
                                    value_limit, zero_grad);
}

void trek_optimizer_commit(trek_optimizer *optimizer)
{
    trek_arena *arena = optimizer->arena;
    for (int k = 0; k < arena->n_segments; k++) {
        if (!optimizer->active[k])
            continue;
        trek_arena_segment *segment = &arena->segments[k];
        uint32_t kept = optimizer->groups[segment->group].kept;
        segment->steps++;
        trek_tensor_bump(segment->param->data);
        segment->version = segment->param->data->storage->version;
        optimizer->stale |= (kept & ~optimizer->written[k]) != 0; /* they are no longer fresh */
        optimizer->written[k] |= kept;
    }
    if (trek_optimizer_by_step(optimizer))
        for (int r = 0; r < optimizer->n_runs; r++)
            optimizer->runs[r].steps++;
}

/* --- steps ---------------------------------------------------------------------- */

/* Zeroes what a fused pass has not: the gradients of segments that were not updated. */
static void zero_rest(trek_optimizer *optimizer)
{
    trek_arena *arena = optimizer->arena;
    for (int k = 0; k < arena->n_segments; k++)
        if (!optimizer->active[k] && arena->segments[k].param->leaf->has_grad)
            trek_arena_zero_segment(arena, k);
    trek_arena_forget_grads(arena);
}

/* Measures this rank's own gradients. */
static void measure_own(const trek_arena *arena, trek_update_state *s)
{
    s->sum_squares = 0;
    s->finite = true;
    for (int k = 0; k < arena->n_cuts; k++) {
        const trek_arena_cut *cut = &arena->cuts[k];
        const trek_arena_part *part = &arena->parts[cut->part];
        double squares;
        bool finite;
        arena->backend->sum_squares(arena->device, part->wide,
                                    part->grads->data + (size_t)cut->begin * trek_dtype_size(part->wide),
                                    cut->end - cut->begin, &squares, &finite);
        s->sum_squares += squares;
        s->finite = s->finite && finite;
    }
}

static void measure_all(const trek_arena *arena, trek_update_state *s)
{
    bool finite;
    trek_arena_sum_squares(arena, &s->sum_squares, &finite);
    s->finite = finite;
}

/* Measures and decides in the same way as a device's kernels. */
static trek_status decide(trek_optimizer *optimizer, const trek_step_opts *opts, trek_update_scaler *scaler)
{
    trek_update_state *s = &optimizer->last;
    bool measured = opts->max_norm > 0 || scaler;
    trek_status status = TREK_OK;
    s->factor = trek_step_factor(opts);
    s->max_norm = opts->max_norm;
    s->max_value = opts->max_value;
    if (measured && opts->join_norm) {
        measure_own(optimizer->arena, s);
        status = opts->join_norm(s, opts->arg);
    } else if (measured) {
        measure_all(optimizer->arena, s);
    }
    if (status == TREK_OK)
        trek_update_decide_state(s, scaler, measured);
    return status;
}

static void apply_all(trek_optimizer *optimizer, const trek_step_opts *opts)
{
    trek_arena *arena = optimizer->arena;
    const trek_update_state *s = &optimizer->last;
    for (int p = 0; p < arena->n_parts; p++)
        trek_optimizer_apply_range(optimizer, p, 0, arena->parts[p].count, s->grad_scale, s->value_limit, opts->zero_grad);
    trek_optimizer_commit(optimizer);
}

static bool steps_together(const trek_optimizer *optimizer) { return optimizer->behind && optimizer->behind->share; }

/* Sharers cannot step alone: their stepper does it, or all of them together. */
static trek_status check_alone(const trek_optimizer *optimizer, bool joined)
{
    if (!optimizer->arena->cuts || joined)
        return TREK_OK;
    return trek_fail(
        TREK_ERR_STATE,
        "optimizer: its state is divided among %d ranks (.shard), which step together; call trek_graph_step",
        optimizer->arena->sharers);
}

static trek_status step_on_device(trek_optimizer *optimizer, const trek_step_opts *opts)
{
    bool together = steps_together(optimizer);
    trek_step_opts own = *opts;
    if (together) {
        own.join_norm = optimizer->behind->join_norm;
        own.arg = optimizer->behind_arg;
    }
    trek_status status = trek_device_update_step(optimizer, &own);
    if (together)
        status = optimizer->behind->share(optimizer->behind_arg, status);
    if (status == TREK_OK && opts->zero_grad)
        zero_rest(optimizer);
    return status;
}

static trek_status step(trek_optimizer *optimizer, const trek_step_opts *opts)
{
    trek_arena *arena = optimizer->arena;
    bool together = steps_together(optimizer);
    if (check_alone(optimizer, together || opts->join_norm || opts->whole) != TREK_OK)
        return TREK_ERR_STATE;
    trek_arena_mark_used(arena);
    trek_status status = trek_optimizer_prepare(optimizer);
    trek_update_scaler *scaler = NULL;
    if (status == TREK_OK && opts->scaler && !(scaler = trek_scaler_record(opts->scaler, arena->device)))
        status = trek_error_status();
    if (together)
        status = optimizer->behind->meet(optimizer->behind_arg, status);
    if (status != TREK_OK)
        return status;
    if (optimizer->device_update)
        return step_on_device(optimizer, opts);
    status = decide(optimizer, opts, scaler);
    if (status != TREK_OK)
        return status;
    if (!optimizer->last.skip)
        apply_all(optimizer, opts);
    if (!optimizer->last.skip && together)
        status = optimizer->behind->share(optimizer->behind_arg, TREK_OK);
    if (status != TREK_OK)
        return status;
    if (opts->zero_grad && optimizer->last.skip)
        trek_arena_zero_grads(arena);
    else if (opts->zero_grad)
        zero_rest(optimizer);
    return opts->adapt && scaler ? trek_grad_scaler_update(opts->scaler) : TREK_OK;
}

/* Returns the bytes that one pass reads and writes. */
static double step_bytes(const trek_optimizer *optimizer, const trek_step_opts *opts)
{
    double bytes = 0;
    for (int p = 0; p < optimizer->arena->n_parts; p++) {
        const trek_arena_part *part = &optimizer->arena->parts[p];
        int64_t each = (2 + 1 + opts->zero_grad) * trek_item_size[part->wide]; /* the parameters, the gradients */
        for (int s = 0; s < TREK_UPDATE_STATES; s++)
            each += optimizer->state[s][p] ? 2 * trek_item_size[trek_optimizer_state_dtype(optimizer, p)] : 0;
                /* without the scales */
        double count = (double)(optimizer->arena->cuts ? optimizer->arena->owned[p] : part->count);
        bytes += count * (double)each;
        bytes += trek_arena_part_is_low(part) ? count * trek_item_size[part->dtype] : 0;
    }
    return bytes;
}

trek_status trek_optimizer_step_with(trek_optimizer *optimizer, const trek_step_opts *opts)
{
    if (!optimizer)
        return trek_fail_missing("optimizer_step", "optimizer");
    if (trek_gone(optimizer, "optimizer_step", "the optimizer"))
        return TREK_ERR_STATE;
    int frame = trek_trace_records() ? trek_trace_begin_op(optimizer->klass->name) : 0;
    if (frame)
        trek_trace_mark(frame, optimizer->arena->device);
    trek_status status = step(optimizer, opts);
    if (frame)
        trek_trace_end_pass(frame, status == TREK_OK ? step_bytes(optimizer, opts) : 0,
                            optimizer->arena->device.type != TREK_CPU);
    return status;
}

trek_status trek_optimizer_step(trek_optimizer *optimizer)
{
    return trek_optimizer_step_with(optimizer, &(trek_step_opts){ .zero_grad = false });
}

double trek_optimizer_grad_norm(trek_optimizer *optimizer)
{
    trek_update_state state;
    return optimizer && trek_optimizer_last_step(optimizer, &state) == TREK_OK ? state.norm : (double)NAN;
}

trek_status trek_optimizer_zero_grad(trek_optimizer *optimizer)
{
    if (!optimizer)
        return trek_fail_missing("optimizer_zero_grad", "optimizer");
    if (trek_gone(optimizer, "optimizer_zero_grad", "the optimizer"))
        return TREK_ERR_STATE;
    trek_status status = trek_error_status();
    if (status == TREK_OK) {
        trek_arena_zero_grads(optimizer->arena);
        optimizer->unscaled = false;
    }
    return status;
}
