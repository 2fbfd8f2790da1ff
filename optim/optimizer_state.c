/* SPDX-License-Identifier: Apache-2.0 */
/* Taking over an optimizer's state by parameter name: the contents of checkpoints. */
#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "nn/state_internal.h"
#include "optim/optimizer_internal.h"

/* The kinds of entries: first the class's states, then these; from STATE_SCALE on, the scales of states in u8, in the
 * order of the states. */
enum { STATE_STEP = TREK_UPDATE_STATES, STATE_MASTER, STATE_SCALE, STATE_KINDS = STATE_SCALE + TREK_UPDATE_STATES };
#define SCALE TREK_OPTIMIZER_SCALE

static bool is_called(const char *from, const char *end, const char *name)
{
    return strlen(name) == (size_t)(end - from) && memcmp(from, name, (size_t)(end - from)) == 0;
}

/* Finds the segment of an entry and its state (STATE_STEP for the step count, STATE_MASTER for the f32 copy,
 * STATE_SCALE + s for the scales of state s). */
static bool locate(const trek_optimizer *optimizer, const char *name, int *segment, int *state)
{
    size_t length = strlen(name), more = strlen(SCALE);
    bool scale = length > more && strcmp(name + length - more, SCALE) == 0;
    const char *end = name + length - (scale ? more : 0), *dot = end;
    while (dot > name && *--dot != '.') {}
    if (dot == name)
        return false;
    *state = -1;
    for (int s = 0; s < TREK_UPDATE_STATES; s++)
        if (optimizer->state[s][0] && is_called(dot + 1, end, optimizer->klass->states[s].name))
            *state = scale ? STATE_SCALE + s : s;
    if (!scale && is_called(dot + 1, end, "step"))
        *state = STATE_STEP;
    if (!scale && is_called(dot + 1, end, "master"))
        *state = STATE_MASTER;
    length = (size_t)(dot - name);
    for (*segment = 0; *state >= 0 && *segment < optimizer->arena->n_segments; ++*segment) {
        const char *own = optimizer->arena->segments[*segment].name;
        if (strlen(own) == length && memcmp(own, name, length) == 0)
            return *state != STATE_MASTER ||
                   trek_arena_part_is_low(&optimizer->arena->parts[optimizer->arena->segments[*segment].part]);
    }
    return false;
}

typedef struct trek_optimizer_import_plan {
    bool has[STATE_KINDS];    /* there is an entry */
    bool coded[TREK_UPDATE_STATES]; /* the entry has codes */
    int64_t steps;
    trek_tensor *source[STATE_KINDS]; /* retained, in the dtype and on the device of the state; the step has none. Codes, and
                                       * what becomes codes, are on the CPU until all entries are there. Of a sharer: what it
                                       * keeps, in one dimension, or NULL if that is nothing */
} import_plan; /* of one segment */

/* With sharers, each has memory only for its own part. */
static trek_device source_device(const trek_arena *arena) { return arena->cuts ? trek_cpu(0) : arena->device; }

/* An entry that is in memory, or still in its file. */
static trek_state_entry stored_of(const trek_optimizer_entry *entry)
{
    return entry->tensor ? (trek_state_entry){ .tensor = entry->tensor } : *entry->stored;
}

static trek_status read_steps(const trek_optimizer_entry *entry, import_plan *plan)
{
    trek_state_entry stored = stored_of(entry);
    trek_tensor *tensor = trek_state_entry_read(&stored);
    if (!tensor)
        return trek_error_status();
    double steps = trek_tensor_numel(tensor) == 1 ? trek_tensor_item(tensor) : -1.0;
    trek_tensor_release(tensor);
    if (!(steps >= 0.0 && steps < 9e15))
        return trek_fail(TREK_ERR_FORMAT, "optimizer state: '%s': it is not a count of steps", entry->name);
    plan->steps = (int64_t)steps;
    return TREK_OK;
}

static trek_status check_entry(const trek_optimizer *optimizer, const trek_optimizer_entry *entry, int k, int state)
{
    const trek_arena_segment *segment = &optimizer->arena->segments[k];
    trek_state_entry stored = stored_of(entry);
    trek_shape shape = trek_state_entry_shape(&stored), own = trek_var_shape(segment->param);
    trek_dtype dtype = trek_state_entry_dtype(&stored);
    int64_t begin, blocks = trek_code_blocks(segment->count);
    if (state < TREK_UPDATE_STATES)
        trek_optimizer_state_extent(optimizer, state, k, &begin, &own);
    else if (state >= STATE_SCALE)
        own = trek_shape_make(&blocks, 1);
    bool fits = trek_dtype_is_float(dtype) || (state < TREK_UPDATE_STATES && dtype == TREK_U8);
    if (fits && trek_shape_equal(shape, own))
        return TREK_OK;
    char text[TREK_SHAPE_TEXT], own_text[TREK_SHAPE_TEXT];
    return trek_fail(TREK_ERR_FORMAT, "optimizer state: '%s': %s %s; must be %s of a floating dtype%s", entry->name,
                     trek_shape_format(shape, text, sizeof text),
                     trek_dtype_name(dtype), trek_shape_format(own, own_text, sizeof own_text),
                     state < TREK_UPDATE_STATES ? " or u8" : "");
}

/* Converts and moves the tensor now, so that copying it into place later cannot fail. */
static trek_tensor *prepared(trek_tensor *tensor, trek_dtype dtype, trek_device device)
{
    trek_tensor *cast = trek_tensor_cast(tensor, dtype), *here = cast ? trek_tensor_to(cast, device) : NULL;
    trek_tensor *result = here ? trek_tensor_contiguous(here) : NULL;
    trek_tensor_release(cast);
    trek_tensor_release(here);
    return result;
}

/* --- what a sharer keeps ------------------------------------------------------------ */

/* Finds the next of the numbers of a segment that this rank keeps: `count` of them, from `begin` on. There is one for each
 * `block` of elements, and cuts never divide a block. */
static bool next_own(const trek_arena *arena, const trek_arena_segment *segment, int64_t block, int64_t *at, int64_t *begin,
                     int64_t *count, int64_t *place)
{
    trek_arena_cut piece;
    if (!trek_arena_next_own(arena, segment->part, at, segment->offset + segment->count, &piece))
        return false;
    *begin = (piece.begin - segment->offset) / block;
    *count = (piece.end - piece.begin + block - 1) / block;
    *place = piece.place / block;
    return true;
}

/* Returns how many numbers of a segment this rank keeps, of which there is one for each `block` of elements. */
static int64_t count_own(const trek_arena *arena, int k, int64_t block)
{
    const trek_arena_segment *segment = &arena->segments[k];
    int64_t all = 0;
    for (int64_t at = segment->offset, begin, count, place; next_own(arena, segment, block, &at, &begin, &count, &place);)
        all += count;
    return all;
}

static int64_t block_of(int state) { return state >= STATE_SCALE ? TREK_CODE_BLOCK : 1; }

/* Reads the pieces that this rank keeps, one after the other. */
static trek_tensor *read_pieces(const trek_arena *arena, int k, int state, const trek_state_entry *stored)
{
    const trek_arena_segment *segment = &arena->segments[k];
    int64_t block = block_of(state), all = count_own(arena, k, block), done = 0;
    size_t size = trek_dtype_size(trek_state_entry_dtype(stored));
    trek_tensor *own = trek_tensor_empty(trek_shape_make(&all, 1), trek_state_entry_dtype(stored), trek_cpu(0));
    trek_status status = own ? TREK_OK : trek_error_status();
    for (int64_t at = segment->offset, begin, count, place;
         status == TREK_OK && next_own(arena, segment, block, &at, &begin, &count, &place); done += count) {
        trek_tensor *piece = trek_state_entry_read_part(stored, begin, count);
        status = piece ? TREK_OK : trek_error_status();
        if (piece)
            memcpy(own->data + (size_t)done * size, piece->data, (size_t)count * size);
        trek_tensor_release(piece);
    }
    if (status == TREK_OK)
        return own;
    trek_tensor_release(own);
    return NULL;
}

/* Reads what this rank keeps of an entry. *own stays NULL if that is nothing. */
static trek_status read_own(const trek_optimizer *optimizer, int k, int state, const trek_state_entry *stored, trek_tensor **own)
{
    const trek_arena *arena = optimizer->arena;
    bool uneven = state < TREK_UPDATE_STATES && optimizer->place[state];
    if (arena->cuts && (uneven ? !trek_arena_has_whole(arena, k) : count_own(arena, k, block_of(state)) == 0))
        return TREK_OK;
    *own = arena->cuts && !uneven ? read_pieces(arena, k, state, stored) : trek_state_entry_read(stored);
    return *own ? TREK_OK : trek_error_status();
}

/* --- planning ----------------------------------------------------------------------- */

static trek_status plan_entry(trek_optimizer *optimizer, const trek_optimizer_entry *entry, import_plan *plans)
{
    int k, state;
    if (!entry->name || (!entry->tensor && !entry->stored))
        return trek_fail(TREK_ERR_ARGUMENT, "optimizer state: an entry has no name or tensor");
    if (!locate(optimizer, entry->name, &k, &state))
        return trek_fail(TREK_ERR_FORMAT, "optimizer state: '%s': it belongs to none of the optimizer's parameters", entry->name);
    import_plan *plan = &plans[k];
    if (plan->has[state])
        return trek_fail(TREK_ERR_FORMAT, "optimizer state: '%s': it occurs twice", entry->name);
    plan->has[state] = true;
    if (state == STATE_STEP)
        return read_steps(entry, plan);
    const trek_arena_segment *segment = &optimizer->arena->segments[k];
    trek_state_entry stored = stored_of(entry);
    trek_dtype dtype = state >= STATE_SCALE ? TREK_F32 : optimizer->arena->parts[segment->part].wide;
    trek_dtype from = trek_state_entry_dtype(&stored);
    if (state < TREK_UPDATE_STATES)
        dtype = trek_optimizer_state_dtype(optimizer, segment->part);
    trek_tensor *own = NULL;
    trek_status status = check_entry(optimizer, entry, k, state);
    if (status == TREK_OK)
        status = read_own(optimizer, k, state, &stored, &own);
    if (state < TREK_UPDATE_STATES)
        plan->coded[state] = from == TREK_U8;
    if (!own)
        return status;
    if (state < TREK_UPDATE_STATES && (from == TREK_U8 || dtype == TREK_U8))
        plan->source[state] = prepared(own, from == TREK_U8 ? TREK_U8 : TREK_F32, trek_cpu(0));
    else
        plan->source[state] = prepared(own, dtype, state >= STATE_SCALE ? trek_cpu(0) : source_device(optimizer->arena));
    trek_tensor_release(own);
    return plan->source[state] ? TREK_OK : trek_error_status();
}

/* A parameter that was updated has all of its state. State that only certain options need starts again if it is
 * missing. */
static trek_status check_whole(const trek_optimizer *optimizer, const import_plan *plans)
{
    for (int k = 0; k < optimizer->arena->n_segments; k++) {
        const import_plan *plan = &plans[k];
        bool any = false, all = true;
        for (int s = 0; s < TREK_UPDATE_STATES; s++) {
            const trek_optimizer_state *state = &optimizer->klass->states[s];
            any |= plan->has[s] || plan->has[STATE_SCALE + s];
            int64_t begin;
            trek_shape shape;
            all &= plan->has[s] || !state->name || state->kept_with ||
                   (state->extent != TREK_STATE_EXTENT_ELEMENTS &&
                    trek_optimizer_state_extent(optimizer, s, k, &begin, &shape) == 0);
        }
        for (int s = 0; s < TREK_UPDATE_STATES; s++) /* codes and scales belong together */
            all &= plan->has[STATE_SCALE + s] == plan->coded[s];
        if (plan->has[STATE_STEP] ? !all : any)
            return trek_fail(TREK_ERR_FORMAT, "optimizer state: parameter '%s': a part of its state is missing",
                             optimizer->arena->segments[k].name);
    }
    return TREK_OK;
}

static void zero_whole(const trek_arena *arena, trek_tensor *whole)
{
    if (arena->backend->host_accessible) {
        memset(whole->data, 0, (size_t)whole->numel * trek_dtype_size((trek_dtype)whole->dtype));
        return;
    }
    trek_op_call fill = { .op = &trek_ops[TREK_OP_fill], .n_outputs = 1, .outputs = { whole } };
    trek_op_run(&fill);
}

/* A state that is never below 0 has no scales below 0 either. */
static trek_status check_scales(const trek_optimizer *optimizer, int s, int k, const trek_tensor *scales)
{
    const float *scale = (const float *)scales->data;
    for (int64_t i = 0; optimizer->positive >> s & 1 && i < scales->numel; i++)
        if (scale[i] < 0)
            return trek_fail(TREK_ERR_FORMAT, "optimizer state: '%s.%s" SCALE "' has a number below 0, %g",
                             optimizer->arena->segments[k].name, optimizer->klass->states[s].name, (double)scale[i]);
    return TREK_OK;
}

/* Converts a state to or from codes, depending on how it is kept, and replaces source and scales. */
static trek_status settle_state(const trek_optimizer *optimizer, int s, int k, import_plan *plan)
{
    trek_tensor **source = &plan->source[s], **scale = &plan->source[STATE_SCALE + s];
    trek_dtype dtype = trek_optimizer_state_dtype(optimizer, optimizer->arena->segments[k].part);
    trek_device device = source_device(optimizer->arena);
    trek_tensor *now = NULL, *scales = NULL;
    trek_status status = *scale ? check_scales(optimizer, s, k, *scale) : TREK_OK;
    if (status != TREK_OK)
        return status;
    if ((*source)->dtype != TREK_U8) {
        status = trek_codes_of(*source, optimizer->positive >> s & 1, &now, &scales);
    } else if (dtype == TREK_U8) {
        now = trek_tensor_retain(*source), scales = trek_tensor_retain(*scale);
    } else {
        now = trek_codes_read(*source, *scale, optimizer->positive >> s & 1);
    }
    trek_tensor_release(*source);
    trek_tensor_release(*scale);
    *source = now ? prepared(now, dtype, device) : NULL;
    *scale = scales ? prepared(scales, TREK_F32, device) : NULL;
    status = *source && (*scale || dtype != TREK_U8) ? status : trek_error_status();
    trek_tensor_release(now);
    trek_tensor_release(scales);
    return status;
}

/* Converts codes to states, and states to codes. */
static trek_status settle_codes(const trek_optimizer *optimizer, import_plan *plans)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < optimizer->arena->n_segments; k++)
        for (int s = 0; s < TREK_UPDATE_STATES && status == TREK_OK; s++) {
            trek_dtype dtype = trek_optimizer_state_dtype(optimizer, optimizer->arena->segments[k].part);
            const trek_tensor *source = plans[k].source[s];
            if (source && (source->dtype == TREK_U8 || dtype == TREK_U8))
                status = settle_state(optimizer, s, k, &plans[k]);
        }
    return status;
}

/* Copies what this rank keeps of a segment to where it keeps it. */
static void copy_own(const trek_arena *arena, const trek_arena_segment *segment, trek_tensor *whole, const trek_tensor *source,
                     int64_t block)
{
    size_t size = trek_dtype_size((trek_dtype)whole->dtype);
    int64_t done = 0;
    for (int64_t at = segment->offset, begin, count, place; next_own(arena, segment, block, &at, &begin, &count, &place);
         done += count)
        arena->backend->copy_bytes(whole->data + (size_t)place * size, arena->device, source->data + (size_t)done * size,
                                   source_device(arena), (size_t)count * size, NULL);
}

/* After a reset the masters go on, so they belong to what is saved before the next step. On a device with step counts
 * of its own, the parameter may have been updated. */
static bool is_ahead(const trek_optimizer *optimizer, const trek_arena_segment *segment, const import_plan *plan)
{
    bool kept = !plan->source[STATE_MASTER] && !plan->has[STATE_MASTER] &&
        (segment->ahead || segment->steps > 0 || optimizer->device_update);
    return trek_arena_part_is_low(&optimizer->arena->parts[segment->part]) && (plan->has[STATE_MASTER] || kept);
}

static void take_over(trek_optimizer *optimizer, const import_plan *plans)
{
    const trek_arena *arena = optimizer->arena;
    for (int s = 0; s < TREK_UPDATE_STATES; s++)
        for (int p = 0; p < arena->n_parts; p++) {
            if (optimizer->state[s][p])
                zero_whole(arena, optimizer->state[s][p]);
            if (optimizer->scale[s][p])
                zero_whole(arena, optimizer->scale[s][p]);
        }
    for (int k = 0; k < arena->n_segments; k++) {
        trek_arena_segment *segment = &arena->segments[k];
        const trek_arena_part *part = &arena->parts[segment->part];
        optimizer->written[k] = 0;
        for (int s = 0; s < STATE_KINDS; s++) {
            trek_tensor *whole = s == STATE_MASTER ? part->master
                : s < TREK_UPDATE_STATES           ? optimizer->state[s][segment->part]
                : s >= STATE_SCALE                 ? optimizer->scale[s - STATE_SCALE][segment->part]
                                                   : NULL;
            trek_tensor *source = plans[k].source[s];
            int64_t begin = segment->offset, count = segment->count;
            bool elements = s >= TREK_UPDATE_STATES || !optimizer->place[s];
            if (s < TREK_UPDATE_STATES) {
                trek_shape shape;
                count = trek_optimizer_state_extent(optimizer, s, k, &begin, &shape);
                optimizer->written[k] |= plans[k].has[s] || (count == 0 && plans[k].has[STATE_STEP]) ? 1u << s : 0;
            }
            size_t size = whole ? trek_dtype_size((trek_dtype)whole->dtype) : 0;
            if (whole && source && elements)
                copy_own(arena, segment, whole, source, block_of(s));
            else if (whole && source && trek_arena_has_whole(arena, k))
                arena->backend->copy_bytes(whole->data + (size_t)begin * size, arena->device, source->data,
                                           source_device(arena), (size_t)count * size, NULL);
        }
        segment->ahead = is_ahead(optimizer, segment, &plans[k]);
        segment->version = segment->param->data->storage->version - 1; /* the next step checks whether the master fits */
        segment->steps = plans[k].steps;
    }
    optimizer->stale = true;
    trek_device_update_forget(optimizer);
}

/* Masters of 16-bit parameters without an entry become NaN, which rounds to no parameter, so that the next step makes
 * them again from the parameters. The old masters might happen to round to the new values. */
static trek_status forget_masters(const trek_optimizer *optimizer, import_plan *plans)
{
    const trek_arena *arena = optimizer->arena;
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        const trek_arena_part *part = &arena->parts[segment->part];
        int64_t own = count_own(arena, k, 1);
        if (!trek_arena_part_is_low(part) || plans[k].has[STATE_MASTER])
            continue;
        plans[k].source[STATE_MASTER] = trek_tensor_full(trek_shape_make(&own, 1), (double)NAN, part->wide,
                                                         source_device(arena));
        if (!plans[k].source[STATE_MASTER])
            return trek_error_status();
    }
    return TREK_OK;
}

static trek_status begin_import(trek_optimizer *optimizer, const trek_optimizer_entry *entries, int n, bool keep_masters,
                                trek_optimizer_import_plan **result)
{
    *result = NULL;
    import_plan *plans = trek_calloc((size_t)optimizer->arena->n_segments + 1, sizeof *plans);
    if (!plans)
        return TREK_ERR_MEMORY;
    trek_status status = TREK_OK;
    for (int k = 0; status == TREK_OK && k < n; k++)
        status = plan_entry(optimizer, &entries[k], plans);
    if (status == TREK_OK)
        status = check_whole(optimizer, plans);
    if (status == TREK_OK)
        status = settle_codes(optimizer, plans);
    if (status == TREK_OK && !keep_masters)
        status = forget_masters(optimizer, plans);
    *result = plans;
    if (status != TREK_OK)
        trek_optimizer_import_end(optimizer, result, false);
    return status;
}

trek_status trek_optimizer_import_begin(trek_optimizer *optimizer, const trek_optimizer_entry *entries, int n,
                                        trek_optimizer_import_plan **plan)
{
    return begin_import(optimizer, entries, n, false, plan);
}

void trek_optimizer_import_end(trek_optimizer *optimizer, trek_optimizer_import_plan **address, bool commit)
{
    import_plan *plans = *address;
    *address = NULL;
    if (plans && commit)
        take_over(optimizer, plans);
    for (int k = 0; plans && k < optimizer->arena->n_segments; k++)
        for (int s = 0; s < STATE_KINDS; s++)
            trek_tensor_release(plans[k].source[s]);
    trek_free(plans);
}

trek_status trek_optimizer_import(trek_optimizer *optimizer, const trek_optimizer_entry *entries, int n)
{
    if (!optimizer || (n > 0 && !entries))
        return trek_fail_missing("optimizer_import", optimizer ? "entries" : "optimizer");
    trek_optimizer_import_plan *plans;
    trek_status status = begin_import(optimizer, entries, n, true, &plans);
    trek_optimizer_import_end(optimizer, &plans, true);
    return status;
}
