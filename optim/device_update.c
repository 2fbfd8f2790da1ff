/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps that are decided in the device's memory (tensor/update.h): the tables there, which change with the
 * plan, and the launches of a step. The host learns step counts and norms only when somebody asks for them. */
#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "optim/optimizer_internal.h"
#include "tensor/rank_context.h"

struct trek_device_update {
    trek_tensor *memory;  /* u8: everything below, one after the other */
    trek_update at;
    trek_update_run *runs;     /* the host's copy of the runs that `at` has on the device */
    trek_update_group *groups;
    int cap_groups, cap_cuts;
    int64_t cap_tiles;
    uint64_t planned;     /* the optimizer's plan that the tables show */
    uint64_t changes;     /* counts changes of what a captured step was made with */
    bool written;         /* step counts are on the device */
    uint64_t numbers;     /* the key of the learning rates and limits that are there; 0 if unknown */
};

_Thread_local uint64_t trek_device_update_captured;

/* --- memory ----------------------------------------------------------------- */

static size_t place(size_t *end, size_t count, size_t size)
{
    size_t at = *end;
    *end = (at + count * size + 63) & ~(size_t)63;
    return at;
}

static int64_t tiles_of(int64_t count) { return (count + TREK_UPDATE_TILE - 1) / TREK_UPDATE_TILE; }

static trek_status make_memory(trek_optimizer *optimizer, trek_device_update *r)
{
    const trek_arena *arena = optimizer->arena;
    size_t n = (size_t)arena->n_segments, groups = (size_t)r->cap_groups, end = 0;
    size_t most = n + (size_t)r->cap_cuts; /* runs: segments, cut where one rank's part ends */
    for (int k = 0; k < arena->n_segments; k++)
        r->cap_tiles += tiles_of(arena->segments[k].count);
    r->cap_tiles += r->cap_cuts;
    size_t state = place(&end, 1, sizeof(trek_update_state)), lr = place(&end, groups, sizeof(double));
    size_t group = place(&end, groups, sizeof(trek_update_group)), segments = place(&end, n, sizeof(trek_update_segment));
    size_t of = place(&end, n, sizeof(int32_t)), runs = place(&end, most, sizeof(trek_update_run));
    size_t tiles = place(&end, (size_t)r->cap_tiles, sizeof(int32_t));
    int64_t bytes = (int64_t)end;
    r->memory = trek_tensor_zeros(trek_shape_make(&bytes, 1), TREK_U8, arena->device);
    r->runs = trek_calloc(most, sizeof *r->runs);
    r->groups = trek_calloc(groups, sizeof *r->groups);
    if (!r->memory || !r->runs || !r->groups)
        return trek_error_status();
    char *base = r->memory->data;
    r->at = (trek_update){ .state = (void *)(base + state), .lr = (void *)(base + lr), .groups = (void *)(base + group),
                           .segments = (void *)(base + segments), .segment_group = (void *)(base + of),
                           .runs = (void *)(base + runs), .tile_run = (void *)(base + tiles), .n_segments = arena->n_segments,
                           .kernel = optimizer->kernel, .coded = trek_optimizer_is_coded(optimizer), .host_runs = r->runs,
                           .host_groups = r->groups };
    return TREK_OK;
}

static void device_update_free(trek_device_update *r)
{
    if (!r)
        return;
    trek_tensor_release(r->memory);
    trek_free(r->runs);
    trek_free(r->groups);
    trek_free(r);
}

static trek_device_update *device_update_new(trek_optimizer *optimizer)
{
    const trek_arena *arena = optimizer->arena;
    int most_cuts = arena->twice ? arena->n_segments + 4 * arena->n_parts : 0; /* it may be divided anew */
    trek_device_update *r = trek_calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->cap_groups = optimizer->n_groups + 7;
    r->cap_cuts = arena->n_cuts > most_cuts ? arena->n_cuts : most_cuts;
    if (make_memory(optimizer, r) == TREK_OK)
        return r;
    device_update_free(r);
    return NULL;
}

trek_status trek_optimizer_use_device_update(trek_optimizer *optimizer)
{
    if (trek_optimizer_is_whole(optimizer) && optimizer->arena->backend->host_accessible)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "%s: on CPUs the host decides about updates of whole parameters, so they cannot be captured",
                         optimizer->klass->name);
    if (!optimizer->device_update)
        optimizer->device_update = device_update_new(optimizer);
    return optimizer->device_update ? TREK_OK : trek_error_status();
}

void trek_device_update_free(trek_optimizer *optimizer)
{
    device_update_free(optimizer->device_update);
    optimizer->device_update = NULL;
}

void trek_device_update_forget(trek_optimizer *optimizer)
{
    if (optimizer->device_update)
        optimizer->device_update->written = false;
}

static trek_status to_device(const trek_optimizer *optimizer, const void *to, const void *from, size_t bytes)
{
    const trek_arena *arena = optimizer->arena;
    return arena->backend->copy_bytes((void *)(uintptr_t)to, arena->device, from, trek_cpu(0), bytes, NULL);
}

static trek_status from_device(const trek_optimizer *optimizer, void *to, const void *from, size_t bytes)
{
    const trek_arena *arena = optimizer->arena;
    return arena->backend->copy_bytes(to, trek_cpu(0), from, arena->device, bytes, NULL);
}

/* --- tables ------------------------------------------------------------------- */

static trek_update_group group_entry(const trek_optimizer *optimizer, const trek_optimizer_group *group)
{
    const trek_optimizer_class *klass = optimizer->klass;
    trek_update_group entry = { .kept = group->kept, .positive = optimizer->positive,
                                .by_step = trek_optimizer_by_step(optimizer),
                                .maximize = klass->maximize && group->spec.options[klass->maximize] != 0 };
    memcpy(entry.options, group->spec.options, sizeof entry.options);
    memcpy(entry.corrected, optimizer->corrected, sizeof entry.corrected);
    return entry;
}

/* Returns a piece of segment k; without sharers it is the whole segment. */
static trek_update_run run_entry(const trek_optimizer *optimizer, int k, const trek_arena_cut *piece, int64_t first_tile)
{
    const trek_arena_segment *segment = &optimizer->arena->segments[k];
    const trek_arena_part *part = &optimizer->arena->parts[segment->part];
    size_t wide = (size_t)trek_item_size[part->wide];
    int64_t at = trek_arena_part_is_low(part) ? piece->place : piece->begin;
    trek_update_run run = { .param = part->master->data + (size_t)at * wide,
                            .grad = part->grads->data + (size_t)piece->begin * wide, .count = piece->end - piece->begin,
                            .first = piece->begin, .dtype = part->wide, .low_dtype = part->dtype,
                            .state_dtype = trek_optimizer_state_dtype(optimizer, segment->part), .segment = k,
                            .group = segment->group, .first_tile = first_tile };
    trek_shape shape;
    int64_t begin;
    for (int s = 0; s < TREK_UPDATE_STATES; s++)
        if (optimizer->state[s][segment->part] && trek_optimizer_state_extent(optimizer, s, k, &begin, &shape) > 0) {
            begin = optimizer->place[s] ? begin : piece->place;
            run.state[s] = optimizer->state[s][segment->part]->data + (size_t)begin * trek_item_size[run.state_dtype];
            if (run.state_dtype == TREK_U8)
                run.scale[s] = (float *)optimizer->scale[s][segment->part]->data + begin / TREK_CODE_BLOCK;
        }
    if (trek_arena_part_is_low(part))
        run.low = part->params->data + (size_t)piece->begin * trek_item_size[part->dtype];
    shape = trek_var_shape(segment->param);
    if (shape.ndim > 1)
        run.rows = shape.sizes[shape.ndim - 2], run.cols = shape.sizes[shape.ndim - 1];
    return run;
}

static void fill_tables(const trek_optimizer *optimizer, trek_device_update *r, int32_t *tiles, int32_t *groups, trek_update *at)
{
    trek_update_run *runs = r->runs;
    at->n_groups = optimizer->n_groups;
    at->n_runs = 0;
    at->n_tiles = 0;
    for (int g = 0; g < optimizer->n_groups; g++)
        r->groups[g] = group_entry(optimizer, &optimizer->groups[g]);
    for (int k = 0; k < optimizer->arena->n_segments; k++) {
        groups[k] = optimizer->active[k] ? optimizer->arena->segments[k].group : -1;
        if (!optimizer->active[k] || optimizer->arena->segments[k].count == 0)
            continue;
        const trek_arena_segment *segment = &optimizer->arena->segments[k];
        int64_t from = segment->offset, end = from + segment->count;
        trek_arena_cut piece;
        while (trek_arena_next_own(optimizer->arena, segment->part, &from, end, &piece)) {
            runs[at->n_runs] = run_entry(optimizer, k, &piece, at->n_tiles);
            for (int64_t t = tiles_of(runs[at->n_runs].count); t > 0; t--)
                tiles[at->n_tiles++] = at->n_runs;
            at->n_runs++;
        }
    }
}

static trek_status write_plan(trek_optimizer *optimizer, trek_device_update *r)
{
    size_t n = (size_t)optimizer->arena->n_segments;
    int32_t *tiles = trek_calloc((size_t)r->cap_tiles, sizeof *tiles), *groups = trek_calloc(n, sizeof *groups);
    trek_update at = r->at;
    trek_status status = tiles && groups ? TREK_OK : trek_error_status();
    if (status == TREK_OK) {
        fill_tables(optimizer, r, tiles, groups, &at);
        status = to_device(optimizer, at.groups, r->groups, (size_t)at.n_groups * sizeof *r->groups);
    }
    if (status == TREK_OK)
        status = to_device(optimizer, at.runs, r->runs, (size_t)at.n_runs * sizeof *r->runs);
    if (status == TREK_OK)
        status = to_device(optimizer, at.tile_run, tiles, (size_t)at.n_tiles * sizeof *tiles);
    if (status == TREK_OK)
        status = to_device(optimizer, at.segment_group, groups, n * sizeof *groups);
    if (status == TREK_OK) {
        r->at = at;
        r->planned = optimizer->plans;
        r->changes++;
    }
    trek_free(tiles);
    trek_free(groups);
    return status;
}

static trek_status write_counts(const trek_optimizer *optimizer, trek_device_update *r)
{
    size_t n = (size_t)optimizer->arena->n_segments;
    trek_update_segment *segments = trek_calloc(n, sizeof *segments);
    if (!segments)
        return trek_error_status();
    for (size_t k = 0; k < n; k++)
        segments[k] = (trek_update_segment){ .steps = optimizer->arena->segments[k].steps, .written = optimizer->written[k] };
    trek_status status = to_device(optimizer, r->at.segments, segments, n * sizeof *segments);
    r->written = status == TREK_OK;
    trek_free(segments);
    return status;
}

trek_status trek_device_update_read(trek_optimizer *optimizer)
{
    trek_device_update *r = optimizer->device_update;
    if (!r || !r->written)
        return TREK_OK;
    size_t n = (size_t)optimizer->arena->n_segments;
    trek_update_segment *segments = trek_calloc(n, sizeof *segments);
    trek_status status = segments ? from_device(optimizer, segments, r->at.segments, n * sizeof *segments) : trek_error_status();
    for (size_t k = 0; k < n && status == TREK_OK; k++) {
        optimizer->arena->segments[k].steps = segments[k].steps;
        optimizer->written[k] = segments[k].written;
    }
    trek_free(segments);
    return status;
}

/* There are more groups, or cuts, than fit into the record: makes a larger one, which continues where the old one was. */
static trek_status grow(trek_optimizer *optimizer)
{
    trek_status status = trek_device_update_read(optimizer);
    trek_device_update *bigger = status == TREK_OK ? device_update_new(optimizer) : NULL;
    if (!bigger)
        return trek_error_status();
    trek_update_state state;
    status = from_device(optimizer, &state, optimizer->device_update->at.state, sizeof state);
    if (status == TREK_OK)
        status = to_device(optimizer, bigger->at.state, &state, sizeof state);
    bigger->changes = optimizer->device_update->changes;
    if (status == TREK_OK) {
        device_update_free(optimizer->device_update);
        optimizer->device_update = bigger;
    } else {
        device_update_free(bigger);
    }
    return status;
}

/* After trek_optimizer_prepare: makes the tables follow the plan. */
static trek_status prepare(trek_optimizer *optimizer)
{
    const trek_device_update *has = optimizer->device_update;
    bool fits = optimizer->n_groups <= has->cap_groups && optimizer->arena->n_cuts <= has->cap_cuts;
    trek_status status = fits ? TREK_OK : grow(optimizer);
    trek_device_update *r = optimizer->device_update;
    if (status == TREK_OK && r->planned != optimizer->plans)
        status = write_plan(optimizer, r);
    if (status == TREK_OK && !r->written)
        status = write_counts(optimizer, r);
    return status;
}

/* --- a step ----------------------------------------------------------------------- */

/* Returns a key of the numbers on the device, without the RNG's step, which the capture handles. It is never 0. */
static uint64_t numbers_key(const trek_optimizer *optimizer, const trek_step_opts *opts)
{
    uint64_t key = trek_mix_double(trek_mix_double(1, opts->max_norm), trek_step_factor(opts));
    key = trek_mix_double(key, opts->max_value);
    for (int g = 0; g < optimizer->n_groups; g++)
        key = trek_mix_double(key, *trek_lr_of(&optimizer->groups[g].spec));
    return key | 1;
}

trek_status trek_device_update_numbers(trek_optimizer *optimizer, const trek_step_opts *opts)
{
    trek_device_update *r = optimizer->device_update;
    trek_update_numbers numbers = { .max_norm = opts->max_norm, .max_value = opts->max_value,
                                    .factor = trek_step_factor(opts), .rng_step = trek_rank_here.rng_step };
    trek_status status = TREK_OK;
    do {
        int left = optimizer->n_groups - numbers.first_lr;
        numbers.n_lrs = left < TREK_UPDATE_LRS ? left : TREK_UPDATE_LRS;
        for (int k = 0; k < numbers.n_lrs; k++)
            numbers.lr[k] = *trek_lr_of(&optimizer->groups[numbers.first_lr + k].spec);
        status = optimizer->arena->backend->update_numbers(optimizer->arena->device, &r->at, &numbers);
        numbers.first_lr += numbers.n_lrs;
    } while (status == TREK_OK && numbers.first_lr < optimizer->n_groups);
    r->numbers = status == TREK_OK ? numbers_key(optimizer, opts) : 0;
    return status;
}

/* Measures the gradients of all sharers, with the same bits however many these are. */
static trek_status measure_whole(const trek_optimizer *optimizer)
{
    const trek_arena *arena = optimizer->arena;
    trek_update_span spans[TREK_DTYPE_COUNT];
    for (int p = 0; p < arena->n_parts; p++)
        spans[p] = (trek_update_span){ arena->parts[p].grads->data, trek_arena_filled(arena, p), arena->parts[p].wide };
    return arena->backend->update_norm(arena->device, &optimizer->device_update->at, spans, arena->n_parts);
}

/* Measures this rank's own gradients; with sharers, join_norm then combines the results of all. */
static trek_status measure(const trek_optimizer *optimizer, const trek_step_opts *opts)
{
    const trek_arena *arena = optimizer->arena;
    if (opts->norm_parts)
        return arena->backend->norm_join(arena->device, opts->norm_parts, opts->n_norm_parts, optimizer->device_update->at.state);
    if (opts->whole)
        return measure_whole(optimizer);
    trek_update_span few[TREK_DTYPE_COUNT] = { { 0 } };
    trek_update_span *spans = arena->cuts ? trek_calloc((size_t)arena->n_cuts + 1, sizeof *spans) : few;
    int n = 0;
    if (!spans)
        return TREK_ERR_MEMORY;
    for (int p = 0; p < arena->n_parts; p++) {
        const trek_arena_part *part = &arena->parts[p];
        trek_arena_cut piece;
        for (int64_t at = 0; trek_arena_next_own(arena, p, &at, part->count, &piece);)
            spans[n++] = (trek_update_span){ part->grads->data + (size_t)piece.begin * (size_t)trek_item_size[part->wide],
                                             piece.end - piece.begin, part->wide };
    }
    trek_status status = arena->backend->update_norm(arena->device, &optimizer->device_update->at, spans, n);
    if (spans != few)
        trek_free(spans);
    return status == TREK_OK && opts->join_norm ? opts->join_norm(optimizer->device_update->at.state, opts->arg) : status;
}

/* Only the device knows whether the step will be skipped, so versions count either way. */
static void commit(trek_optimizer *optimizer)
{
    for (int k = 0; k < optimizer->arena->n_segments; k++) {
        trek_arena_segment *segment = &optimizer->arena->segments[k];
        if (!optimizer->active[k])
            continue;
        trek_tensor_bump(segment->param->data);
        segment->version = segment->param->data->storage->version;
    }
}

trek_status trek_device_update_before_replay(trek_optimizer *optimizer, const trek_step_opts *opts)
{
    const trek_device_update *r = optimizer->device_update;
    return r && r->numbers != numbers_key(optimizer, opts) ? trek_device_update_numbers(optimizer, opts) : TREK_OK;
}

void trek_device_update_after_replay(trek_optimizer *optimizer)
{
    if (optimizer->device_update)
        commit(optimizer);
}

trek_status trek_device_update_step(trek_optimizer *optimizer, const trek_step_opts *opts)
{
    const trek_arena *arena = optimizer->arena;
    trek_update_scaler *scaler = opts->scaler ? trek_scaler_record(opts->scaler, arena->device) : NULL;
    if (opts->scaler && !scaler)
        return trek_error_status();
    trek_status status = prepare(optimizer);
    if (status != TREK_OK)
        return status;
    trek_device_update *r = optimizer->device_update;
    bool measured = opts->max_norm > 0 || scaler;
    r->changes += r->at.scaler != scaler;
    r->at.scaler = scaler;
    /* A captured step reads its numbers from the device in every replay: the caller of the replay has written them. */
    if (arena->backend->capturing && arena->backend->capturing())
        trek_device_update_captured++;
    else
        status = trek_device_update_numbers(optimizer, opts);
    if (status == TREK_OK && measured)
        status = measure(optimizer, opts);
    if (status == TREK_OK)
        status = arena->backend->update_decide(arena->device, &r->at, measured);
    if (status == TREK_OK)
        status = arena->backend->update_apply(arena->device, &r->at, opts->zero_grad);
    if (status != TREK_OK)
        return status;
    commit(optimizer);
    return opts->adapt && scaler ? trek_grad_scaler_update(opts->scaler) : TREK_OK;
}

trek_status trek_optimizer_last_step(trek_optimizer *optimizer, trek_update_state *state)
{
    if (!optimizer->device_update || !optimizer->device_update->written) {
        *state = optimizer->last;
        return TREK_OK;
    }
    return from_device(optimizer, state, optimizer->device_update->at.state, sizeof *state);
}

const trek_update *trek_optimizer_update(const trek_optimizer *optimizer, uint64_t *plan)
{
    if (!optimizer->device_update)
        return NULL;
    *plan = optimizer->device_update->changes;
    return &optimizer->device_update->at;
}
