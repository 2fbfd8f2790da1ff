/* SPDX-License-Identifier: Apache-2.0 */
/* SGD, Adam and AdamW over a flat arena. Which stretches of the arena one kernel
 * call can update is planned once and again only when what is used, frozen or
 * grouped changes; a step is then a walk over a handful of runs. */
#include "optim/optimizer_internal.h"

#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "tensor/debug.h"
#include "tensor/option_internal.h"

/* --- options ----------------------------------------------------------------- */

trek_optimizer_spec trek_sgd(trek_sgd_opts opts)
{
    return (trek_optimizer_spec){ .kind = TREK_OPTIMIZER_SGD, .opts.sgd = opts };
}

trek_optimizer_spec trek_adam(trek_adam_opts opts)
{
    return (trek_optimizer_spec){ .kind = TREK_OPTIMIZER_ADAM, .opts.adam = opts };
}

trek_optimizer_spec trek_adamw(trek_adam_opts opts)
{
    return (trek_optimizer_spec){ .kind = TREK_OPTIMIZER_ADAMW, .opts.adam = opts };
}

static const char *kind_name(trek_optimizer_kind kind)
{
    switch (kind) {
    case TREK_OPTIMIZER_SGD:
        return "sgd";
    case TREK_OPTIMIZER_ADAM:
        return "adam";
    case TREK_OPTIMIZER_ADAMW:
        return "adamw";
    case TREK_OPTIMIZER_NONE:
        break;
    }
    return "none";
}

static trek_status check_from_zero(trek_optimizer_kind kind, const char *option, double value)
{
    if (isfinite(value) && value >= 0.0)
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "%s: %s must be finite and at least 0, not %g", kind_name(kind), option, value);
}

static trek_status check_beta(trek_optimizer_kind kind, const char *option, double value)
{
    if (value >= 0.0 && value < 1.0)
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "%s: %s must be in [0, 1), not %g", kind_name(kind), option, value);
}

static trek_status resolve_sgd(trek_sgd_opts *o)
{
    const trek_optimizer_kind kind = TREK_OPTIMIZER_SGD;
    o->lr = trek_option(o->lr, 1e-3);
    o->momentum = trek_option(o->momentum, 0.0);
    o->dampening = trek_option(o->dampening, 0.0);
    o->weight_decay = trek_option(o->weight_decay, 0.0);
    if (check_from_zero(kind, "lr", o->lr) != TREK_OK || check_from_zero(kind, "momentum", o->momentum) != TREK_OK ||
        check_from_zero(kind, "weight_decay", o->weight_decay) != TREK_OK)
        return TREK_ERR_ARGUMENT;
    if (!isfinite(o->dampening))
        return trek_fail(TREK_ERR_ARGUMENT, "sgd: dampening must be finite, not %g", o->dampening);
    if (o->nesterov && (o->momentum == 0.0 || o->dampening != 0.0))
        return trek_fail(TREK_ERR_ARGUMENT, "sgd: nesterov needs momentum above 0 and dampening 0, not %g and %g", o->momentum,
                         o->dampening);
    return TREK_OK;
}

static trek_status resolve_adam(trek_optimizer_kind kind, trek_adam_opts *o)
{
    o->lr = trek_option(o->lr, 1e-3);
    o->beta1 = trek_option(o->beta1, 0.9);
    o->beta2 = trek_option(o->beta2, 0.999);
    o->eps = trek_option(o->eps, 1e-8);
    o->weight_decay = trek_option(o->weight_decay, kind == TREK_OPTIMIZER_ADAMW ? 0.01 : 0.0);
    if (check_from_zero(kind, "lr", o->lr) != TREK_OK || check_beta(kind, "beta1", o->beta1) != TREK_OK ||
        check_beta(kind, "beta2", o->beta2) != TREK_OK || check_from_zero(kind, "eps", o->eps) != TREK_OK ||
        check_from_zero(kind, "weight_decay", o->weight_decay) != TREK_OK)
        return TREK_ERR_ARGUMENT;
    return TREK_OK;
}

/* Fills the defaults in and checks the ranges. */
static trek_status resolve(trek_optimizer_spec *spec)
{
    switch (spec->kind) {
    case TREK_OPTIMIZER_SGD:
        return resolve_sgd(&spec->opts.sgd);
    case TREK_OPTIMIZER_ADAM:
    case TREK_OPTIMIZER_ADAMW:
        return resolve_adam(spec->kind, &spec->opts.adam);
    case TREK_OPTIMIZER_NONE:
        break;
    }
    return trek_fail(TREK_ERR_ARGUMENT, "optimizer: no kind is given; make the spec with trek_sgd, trek_adam or trek_adamw");
}

trek_status trek_optimizer_spec_check(const trek_optimizer_spec *spec)
{
    if (!spec)
        return trek_fail_missing("trek_optimizer_spec_check", "spec");
    trek_optimizer_spec copy = *spec;
    return resolve(&copy);
}

static double *lr_of(trek_optimizer_spec *spec)
{
    return spec->kind == TREK_OPTIMIZER_SGD ? &spec->opts.sgd.lr : &spec->opts.adam.lr;
}

/* Flat state buffers that updates with this spec need. */
static int state_count(const trek_optimizer_spec *spec)
{
    if (spec->kind == TREK_OPTIMIZER_SGD)
        return spec->opts.sgd.momentum > 0.0 ? 1 : 0;
    return 2;
}

/* --- made and freed ------------------------------------------------------------ */

static trek_status ensure_state(trek_optimizer *optimizer, int count)
{
    const trek_arena *arena = optimizer->arena;
    for (int s = 0; s < count; s++)
        for (int p = 0; p < arena->n_parts; p++) {
            const trek_arena_part *part = &arena->parts[p];
            if (optimizer->state[s][p])
                continue;
            optimizer->state[s][p] = trek_tensor_zeros(trek_shape_make(1, &part->count), part->wide, arena->device);
            if (!optimizer->state[s][p])
                return TREK_ERR_MEMORY;
        }
    return TREK_OK;
}

trek_optimizer *trek_optimizer_new_over(trek_optimizer_spec spec, trek_arena *arena)
{
    if (!arena) {
        trek_fail_missing("trek_optimizer_new_over", "arena");
        return NULL;
    }
    if (resolve(&spec) != TREK_OK)
        return NULL;
    trek_optimizer *optimizer = trek_calloc(1, sizeof *optimizer);
    if (!optimizer)
        return NULL;
    size_t n = (size_t)arena->n_segments;
    optimizer->kind = spec.kind;
    optimizer->arena = arena;
    optimizer->stale = true;
    optimizer->runs = trek_calloc(n, sizeof *optimizer->runs);
    optimizer->active = trek_calloc(n, sizeof *optimizer->active);
    optimizer->has_momentum = trek_calloc(n, sizeof *optimizer->has_momentum);
    if (!optimizer->runs || !optimizer->active || !optimizer->has_momentum ||
        trek_array_grow(&optimizer->groups, &optimizer->cap_groups, 1, sizeof *optimizer->groups) != TREK_OK ||
        ensure_state(optimizer, state_count(&spec)) != TREK_OK) {
        trek_optimizer_free(&optimizer);
        return NULL;
    }
    for (int k = 0; k < arena->n_segments; k++) {
        arena->segments[k].group = 0;
        arena->segments[k].steps = 0;
    }
    optimizer->groups[0] = (trek_optimizer_group){ .spec = spec, .initial_lr = *lr_of(&spec) };
    optimizer->n_groups = 1;
    optimizer->last = (trek_update_state){ .norm = NAN };
    if (!arena->backend->host_accessible && trek_optimizer_use_records(optimizer) != TREK_OK)
        trek_optimizer_free(&optimizer);
    return optimizer;
}

trek_optimizer *trek_optimizer_new(trek_optimizer_spec spec, const trek_params *params)
{
    if (!params) {
        trek_fail_missing("trek_optimizer_new", "params");
        return NULL;
    }
    if (trek_optimizer_spec_check(&spec) != TREK_OK)
        return NULL;
    if (trek_params_count(params) == 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: the list of parameters is empty", kind_name(spec.kind));
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
    if (!address || !*address || trek_gone(*address, "trek_optimizer_free", "the optimizer"))
        return;
    trek_optimizer *optimizer = *address;
    *address = NULL;
    for (int s = 0; s < 2; s++)
        for (int p = 0; p < TREK_DTYPE_COUNT; p++)
            trek_tensor_release(optimizer->state[s][p]);
    trek_records_free(optimizer);
    if (optimizer->owns_arena)
        trek_arena_free(&optimizer->arena);
    trek_free(optimizer->groups);
    trek_free(optimizer->runs);
    trek_free(optimizer->active);
    trek_free(optimizer->has_momentum);
    if (trek_debug)
        trek_debug_ended(optimizer, "optimizer", NULL);
    trek_free(optimizer);
}

trek_arena *trek_optimizer_arena(trek_optimizer *optimizer) { return optimizer ? optimizer->arena : NULL; }

/* --- groups and learning rates --------------------------------------------------- */

int trek_optimizer_add_group(trek_optimizer *optimizer, const trek_params *params, trek_optimizer_spec spec)
{
    if (!optimizer || !params) {
        trek_fail_missing("trek_optimizer_add_group", optimizer ? "params" : "optimizer");
        return -1;
    }
    if (resolve(&spec) != TREK_OK)
        return -1;
    if (spec.kind != optimizer->kind) {
        trek_fail(TREK_ERR_ARGUMENT, "optimizer_add_group: the optimizer is %s, the group %s", kind_name(optimizer->kind),
                  kind_name(spec.kind));
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
        ensure_state(optimizer, state_count(&spec)) != TREK_OK)
        return -1;
    optimizer->groups[group] = (trek_optimizer_group){ .spec = spec, .initial_lr = *lr_of(&spec) };
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
        if (ensure_state(optimizer, state_count(&first->groups[g].spec)) != TREK_OK)
            return TREK_ERR_MEMORY;
    memcpy(optimizer->groups, first->groups, (size_t)first->n_groups * sizeof *first->groups);
    optimizer->n_groups = first->n_groups;
    for (int k = 0; k < optimizer->arena->n_segments; k++)
        optimizer->arena->segments[k].group = first->arena->segments[k].group;
    optimizer->stale = true;
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
    return check_from_zero(optimizer->kind, "lr", *lr);
}

trek_status trek_optimizer_set_lr(trek_optimizer *optimizer, double lr)
{
    trek_status status = check_lr(optimizer, "trek_optimizer_set_lr", &lr);
    for (int g = 0; status == TREK_OK && g < optimizer->n_groups; g++)
        *lr_of(&optimizer->groups[g].spec) = lr;
    if (status == TREK_OK)
        optimizer->edits++;
    return status;
}

static trek_status check_group(const trek_optimizer *optimizer, const char *function, int group)
{
    if (group >= 0 && group < optimizer->n_groups)
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "%s: there is no group %d, only 0 to %d", function, group, optimizer->n_groups - 1);
}

trek_status trek_optimizer_set_group_lr(trek_optimizer *optimizer, int group, double lr)
{
    trek_status status = check_lr(optimizer, "trek_optimizer_set_group_lr", &lr);
    if (status == TREK_OK)
        status = check_group(optimizer, "trek_optimizer_set_group_lr", group);
    if (status != TREK_OK)
        return status;
    *lr_of(&optimizer->groups[group].spec) = lr;
    optimizer->edits++;
    return TREK_OK;
}

double trek_optimizer_group_lr(const trek_optimizer *optimizer, int group)
{
    if (!optimizer) {
        trek_fail_missing("trek_optimizer_group_lr", "optimizer");
        return NAN;
    }
    if (check_group(optimizer, "trek_optimizer_group_lr", group) != TREK_OK)
        return NAN;
    return *lr_of(&optimizer->groups[group].spec);
}

double trek_optimizer_lr(const trek_optimizer *optimizer) { return trek_optimizer_group_lr(optimizer, 0); }

trek_status trek_optimizer_schedule_lr(trek_optimizer *optimizer, double lr)
{
    trek_status status = check_lr(optimizer, "trek_optimizer_schedule_lr", &lr);
    for (int g = 0; status == TREK_OK && g < optimizer->n_groups; g++) {
        trek_optimizer_group *group = &optimizer->groups[g];
        double base = optimizer->groups[0].initial_lr;
        *lr_of(&group->spec) = base > 0.0 && g > 0 ? lr * (group->initial_lr / base) : lr;
    }
    return status;
}

/* --- planning ----------------------------------------------------------------- */

/* A parameter that was moved, or given a gradient elsewhere, would be updated
 * where nobody looks. */
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

/* Whether segment can lengthen the run. Padding between them would be updated too: zeros
 * stay zeros, unless 0 / sqrt(0) is what the formula makes of them. */
static bool joins(const trek_optimizer *optimizer, const trek_optimizer_run *run, const trek_arena_segment *segment,
                  const trek_optimizer_run *candidate)
{
    if (run->part != segment->part || run->group != segment->group || run->first != candidate->first ||
        run->steps != candidate->steps)
        return false;
    bool padding_keeps = optimizer->kind == TREK_OPTIMIZER_SGD || optimizer->groups[run->group].spec.opts.adam.eps > 0.0;
    return padding_keeps || run->end == segment->offset;
}

static void plan_runs(trek_optimizer *optimizer)
{
    const trek_arena *arena = optimizer->arena;
    bool adjacent = false; /* the segment before is the end of the last run */
    optimizer->n_runs = 0;
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        if (!optimizer->active[k]) {
            adjacent = false;
            continue;
        }
        const trek_optimizer_spec *spec = &optimizer->groups[segment->group].spec;
        bool sgd = optimizer->kind == TREK_OPTIMIZER_SGD;
        trek_optimizer_run run = { .part = segment->part, .group = segment->group, .begin = segment->offset,
                                   .end = segment->offset + segment->count, .steps = sgd ? 0 : segment->steps,
                                   .first = sgd && spec->opts.sgd.momentum > 0.0 && !optimizer->has_momentum[k] };
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
        return trek_fail_missing("trek_optimizer_prepare", "optimizer");
    if (trek_gone(optimizer, "trek_optimizer_prepare", "the optimizer"))
        return TREK_ERR_STATE;
    trek_status status = trek_status_get();
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
    if (optimizer->stale)
        plan_runs(optimizer);
    if (optimizer->kind == TREK_OPTIMIZER_SGD)
        return TREK_OK;
    for (int r = 0; r < optimizer->n_runs; r++) {
        trek_optimizer_run *run = &optimizer->runs[r];
        const trek_adam_opts *o = &optimizer->groups[run->group].spec.opts.adam;
        run->bias1 = 1.0 - pow(o->beta1, (double)(run->steps + 1));
        run->bias2 = 1.0 - pow(o->beta2, (double)(run->steps + 1));
    }
    return TREK_OK;
}

/* --- updating ------------------------------------------------------------------- */

typedef struct slice_place {
    char *param, *grad, *state[2];
    char *low;          /* NULL: param is no master copy */
    int64_t count;
    trek_dtype dtype, low_dtype;
    double grad_scale;
    bool zero_grad;
} slice_place;

static void apply_sgd(const trek_backend *backend, const trek_optimizer_run *run, const trek_sgd_opts *o, const slice_place *at)
{
    trek_sgd_slice slice = { .param = at->param, .grad = at->grad, .momentum_buffer = o->momentum > 0.0 ? at->state[0] : NULL,
                             .count = at->count, .lr = o->lr, .momentum = o->momentum, .dampening = o->dampening,
                             .weight_decay = o->weight_decay, .nesterov = o->nesterov, .first = run->first,
                             .maximize = o->maximize, .grad_scale = at->grad_scale, .zero_grad = at->zero_grad,
                             .low = at->low, .low_dtype = at->low_dtype };
    backend->sgd(at->dtype, &slice);
}

static void apply_adam(const trek_backend *backend, const trek_optimizer_run *run, const trek_adam_opts *o, bool decoupled,
                       const slice_place *at)
{
    trek_adam_slice slice = { .param = at->param, .grad = at->grad, .m = at->state[0], .v = at->state[1], .count = at->count,
                              .lr = o->lr, .beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps,
                              .weight_decay = o->weight_decay, .bias1 = run->bias1, .bias2 = run->bias2,
                              .decoupled = decoupled, .maximize = o->maximize, .grad_scale = at->grad_scale,
                              .zero_grad = at->zero_grad, .low = at->low, .low_dtype = at->low_dtype };
    backend->adam(at->dtype, &slice);
}

void trek_optimizer_apply_range_from(trek_optimizer *optimizer, int part, int64_t begin, int64_t end, void *grads,
                                     double grad_scale, bool zero_grad)
{
    const trek_arena *arena = optimizer->arena;
    const trek_arena_part *whole = &arena->parts[part];
    int64_t size = trek_item_size[whole->wide];
    for (int r = 0; r < optimizer->n_runs; r++) {
        const trek_optimizer_run *run = &optimizer->runs[r];
        int64_t from = run->begin > begin ? run->begin : begin, to = run->end < end ? run->end : end;
        if (run->part != part || from >= to)
            continue;
        slice_place at = { .param = whole->master->data + from * size, .grad = (char *)grads + from * size, .count = to - from,
                           .dtype = whole->wide, .grad_scale = grad_scale, .zero_grad = zero_grad,
                           .low = trek_arena_part_is_low(whole) ? whole->params->data + from * trek_item_size[whole->dtype] : NULL,
                           .low_dtype = whole->dtype };
        for (int s = 0; s < 2; s++)
            if (optimizer->state[s][part])
                at.state[s] = optimizer->state[s][part]->data + from * size;
        const trek_optimizer_spec *spec = &optimizer->groups[run->group].spec;
        if (optimizer->kind == TREK_OPTIMIZER_SGD)
            apply_sgd(arena->backend, run, &spec->opts.sgd, &at);
        else
            apply_adam(arena->backend, run, &spec->opts.adam, optimizer->kind == TREK_OPTIMIZER_ADAMW, &at);
    }
}

void trek_optimizer_apply_range(trek_optimizer *optimizer, int part, int64_t begin, int64_t end, double grad_scale, bool zero_grad)
{
    trek_optimizer_apply_range_from(optimizer, part, begin, end, optimizer->arena->parts[part].grads->data, grad_scale,
                                    zero_grad);
}

void trek_optimizer_commit(trek_optimizer *optimizer)
{
    trek_arena *arena = optimizer->arena;
    bool sgd = optimizer->kind == TREK_OPTIMIZER_SGD;
    for (int k = 0; k < arena->n_segments; k++) {
        if (!optimizer->active[k])
            continue;
        trek_arena_segment *segment = &arena->segments[k];
        segment->steps++;
        trek_tensor_bump(segment->param->data);
        segment->version = segment->param->data->storage->version;
        if (sgd && !optimizer->has_momentum[k] && optimizer->groups[segment->group].spec.opts.sgd.momentum > 0.0) {
            optimizer->has_momentum[k] = true;
            optimizer->stale = true;
        }
    }
    if (!sgd)
        for (int r = 0; r < optimizer->n_runs; r++)
            optimizer->runs[r].steps++;
}

/* --- steps ---------------------------------------------------------------------- */

/* What a fused pass has not zeroed: gradients of segments that were not updated. */
static void zero_rest(trek_optimizer *optimizer)
{
    trek_arena *arena = optimizer->arena;
    for (int k = 0; k < arena->n_segments; k++)
        if (!optimizer->active[k] && arena->segments[k].param->leaf->has_grad)
            trek_arena_zero_segment(arena, k);
    trek_arena_forget_grads(arena);
}

trek_status trek_optimizer_step_scaled(trek_optimizer *optimizer, double grad_scale, bool zero_grad)
{
    if (!optimizer)
        return trek_fail_missing("trek_optimizer_step", "optimizer");
    if (trek_gone(optimizer, "trek_optimizer_step", "the optimizer"))
        return TREK_ERR_STATE;
    trek_arena_mark_used(optimizer->arena);
    trek_status status = optimizer->records ? trek_records_read(optimizer) : TREK_OK;
    optimizer->stale |= optimizer->records != NULL; /* of counts that the host did not know */
    if (status == TREK_OK)
        status = trek_optimizer_prepare(optimizer);
    if (status != TREK_OK)
        return status;
    for (int p = 0; p < optimizer->arena->n_parts; p++)
        trek_optimizer_apply_range(optimizer, p, 0, optimizer->arena->parts[p].count, grad_scale, zero_grad);
    trek_optimizer_commit(optimizer);
    if (optimizer->records)
        trek_records_forget(optimizer);
    if (zero_grad)
        zero_rest(optimizer);
    return TREK_OK;
}

/* Measures and decides as a device's kernels do. */
static void decide(trek_optimizer *optimizer, const trek_step_opts *opts, trek_update_scaler *scaler)
{
    trek_update_state *s = &optimizer->last;
    bool measured = opts->max_norm > 0 || scaler;
    s->factor = trek_step_factor(opts);
    s->max_norm = opts->max_norm;
    s->max_value = opts->max_value;
    if (measured) {
        bool finite;
        trek_arena_sum_squares(optimizer->arena, &s->sum_squares, &finite);
        s->finite = finite;
    }
    trek_update_decide_state(s, scaler, measured);
}

static void apply_all(trek_optimizer *optimizer, const trek_step_opts *opts)
{
    trek_arena *arena = optimizer->arena;
    const trek_update_state *s = &optimizer->last;
    for (int p = 0; p < arena->n_parts; p++) {
        trek_arena_part *part = &arena->parts[p];
        if (s->value_limit > 0)
            arena->backend->clamp_abs(part->wide, part->grads->data, part->count, s->value_limit);
        trek_optimizer_apply_range(optimizer, p, 0, part->count, s->grad_scale, opts->zero_grad);
    }
    trek_optimizer_commit(optimizer);
}

trek_status trek_optimizer_step_with(trek_optimizer *optimizer, const trek_step_opts *opts)
{
    if (!optimizer)
        return trek_fail_missing("trek_optimizer_step", "optimizer");
    if (trek_gone(optimizer, "trek_optimizer_step", "the optimizer"))
        return TREK_ERR_STATE;
    trek_arena *arena = optimizer->arena;
    trek_arena_mark_used(arena);
    trek_status status = trek_optimizer_prepare(optimizer);
    if (status != TREK_OK)
        return status;
    if (optimizer->records) {
        status = trek_records_step(optimizer, opts);
        if (status == TREK_OK && opts->zero_grad)
            zero_rest(optimizer);
        return status;
    }
    trek_update_scaler *scaler = NULL;
    if (opts->scaler && !(scaler = trek_scaler_record(opts->scaler, arena->device)))
        return trek_status_get();
    decide(optimizer, opts, scaler);
    if (!optimizer->last.skip)
        apply_all(optimizer, opts);
    if (opts->zero_grad && optimizer->last.skip)
        trek_arena_zero_grads(arena);
    else if (opts->zero_grad)
        zero_rest(optimizer);
    return opts->adapt && scaler ? trek_grad_scaler_update(opts->scaler) : TREK_OK;
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
        return trek_fail_missing("trek_optimizer_zero_grad", "optimizer");
    if (trek_gone(optimizer, "trek_optimizer_zero_grad", "the optimizer"))
        return TREK_ERR_STATE;
    trek_status status = trek_status_get();
    if (status == TREK_OK) {
        trek_arena_zero_grads(optimizer->arena);
        optimizer->unscaled = false;
    }
    return status;
}
