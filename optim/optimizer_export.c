/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint has of an optimizer, by parameter name: first the list of it, then the tensors. */
#include <string.h>

#include "autograd/var_internal.h"
#include "optim/optimizer_internal.h"

/* --- the list --------------------------------------------------------------------- */

static bool has_state(const trek_optimizer *optimizer, int s, int k)
{
    const trek_arena_segment *segment = &optimizer->arena->segments[k];
    int64_t begin;
    trek_shape shape;
    return optimizer->state[s][segment->part] && segment->steps > 0 && optimizer->written[k] >> s & 1 &&
           (trek_optimizer_state_extent(optimizer, s, k, &begin, &shape) > 0 || segment->count == 0);
}

static trek_status add_item(trek_optimizer_item *list, int *n, const trek_optimizer_item *item, const char *param,
                            const char *what, const char *more)
{
    list[*n] = *item;
    list[*n].name = trek_format("%s.%s%s", param, what, more);
    *n += list[*n].name != NULL;
    return trek_error_status();
}

/* Adds a state, and the scales of its blocks. */
static trek_status add_state(const trek_optimizer *optimizer, int s, int k, trek_optimizer_item *list, int *n)
{
    const trek_arena_segment *segment = &optimizer->arena->segments[k];
    const char *name = optimizer->klass->states[s].name;
    trek_optimizer_item item = { .kind = s, .segment = k, .dtype = trek_optimizer_state_dtype(optimizer, segment->part) };
    int64_t begin, blocks = trek_code_blocks(segment->count);
    trek_optimizer_state_extent(optimizer, s, k, &begin, &item.shape);
    trek_status status = add_item(list, n, &item, segment->name, name, "");
    if (status != TREK_OK || !optimizer->scale[s][segment->part])
        return status;
    item = (trek_optimizer_item){ .kind = TREK_OWN_SCALES + s, .segment = k, .dtype = TREK_F32,
                                  .shape = trek_shape_make(&blocks, 1) };
    return add_item(list, n, &item, segment->name, name, TREK_OPTIMIZER_SCALE);
}

static trek_status add_segment(const trek_optimizer *optimizer, int k, trek_optimizer_item *list, int *n)
{
    const trek_arena_segment *segment = &optimizer->arena->segments[k];
    const trek_arena_part *part = &optimizer->arena->parts[segment->part];
    trek_status status = TREK_OK;
    if (segment->steps == 0 && !segment->ahead)
        return TREK_OK;
    for (int s = 0; s < TREK_UPDATE_STATES && status == TREK_OK; s++)
        if (has_state(optimizer, s, k))
            status = add_state(optimizer, s, k, list, n);
    if (status == TREK_OK && trek_arena_part_is_low(part))
        status = add_item(list, n, &(trek_optimizer_item){ .kind = TREK_OWN_MASTERS, .segment = k, .dtype = part->wide,
                                                           .shape = trek_var_shape(segment->param) },
                          segment->name, "master", "");
    if (status == TREK_OK && segment->steps > 0)
        status = add_item(list, n, &(trek_optimizer_item){ .kind = TREK_OWN_STEPS, .segment = k, .dtype = TREK_I64,
                                                           .shape = trek_dims_none() },
                          segment->name, "step", "");
    return status;
}

trek_status trek_optimizer_list(trek_optimizer *optimizer, trek_optimizer_item **items, int *n)
{
    const trek_arena *arena = optimizer->arena;
    *items = NULL;
    *n = 0;
    trek_status status = trek_device_update_read(optimizer);
    if (status == TREK_OK)
        status = trek_arena_refresh_masters(optimizer->arena);
    trek_optimizer_item *list = status == TREK_OK
        ? trek_calloc((size_t)arena->n_segments * (TREK_OWN_STEPS + 1) + 1, sizeof *list) : NULL;
    if (!list)
        return trek_error_status();
    for (int index = 0; status == TREK_OK && index < arena->n_segments; index++) {
        int k = 0; /* in the order of the list of parameters, not the arena's */
        while (arena->segments[k].index != index)
            k++;
        status = add_segment(optimizer, k, list, n);
    }
    *items = list;
    if (status != TREK_OK)
        trek_optimizer_list_free(items, n);
    return status;
}

void trek_optimizer_list_free(trek_optimizer_item **items, int *n)
{
    for (int k = 0; *items && k < *n; k++)
        trek_free((*items)[k].name);
    trek_free(*items);
    *items = NULL;
    *n = 0;
}

/* --- the tensors ------------------------------------------------------------------ */

/* Returns where an item's numbers begin, in a buffer that has those of all sharers. */
static int64_t begin_of(const trek_optimizer *optimizer, const trek_optimizer_item *item)
{
    const trek_arena *arena = optimizer->arena;
    int64_t begin = arena->segments[item->segment].offset / trek_optimizer_own_block(item->kind);
    trek_shape shape;
    if (item->kind < TREK_UPDATE_STATES && arena->cuts)
        begin = trek_optimizer_whole_begin(optimizer, item->kind, item->segment);
    else if (item->kind < TREK_UPDATE_STATES)
        trek_optimizer_state_extent(optimizer, item->kind, item->segment, &begin, &shape);
    return begin;
}

trek_tensor *trek_optimizer_item_tensor(const trek_optimizer *optimizer, const trek_optimizer_item *item)
{
    const trek_arena_segment *segment = &optimizer->arena->segments[item->segment];
    if (item->kind == TREK_OWN_STEPS)
        return trek_tensor_from_data(&segment->steps, trek_dims_none(), TREK_I64, trek_cpu(0));
    trek_tensor *whole = optimizer->arena->cuts ? trek_optimizer_gathered_of(optimizer, item->kind, segment->part)
                                                : trek_optimizer_own(optimizer, item->kind, segment->part);
    return trek_tensor_make_part(whole, (size_t)begin_of(optimizer, item) * trek_dtype_size(item->dtype), item->shape,
                                 item->dtype);
}

trek_status trek_optimizer_export(trek_optimizer *optimizer, trek_optimizer_entry **entries, int *n)
{
    if (!optimizer || !entries || !n)
        return trek_fail_missing("optimizer_export", optimizer ? "entries" : "optimizer");
    trek_optimizer_item *items;
    int count;
    *entries = NULL;
    *n = 0;
    trek_status status = trek_optimizer_list(optimizer, &items, &count);
    if (status == TREK_OK && optimizer->arena->cuts && !optimizer->gathered)
        status = trek_fail(TREK_ERR_STATE,
                           "optimizer: its state is divided among %d ranks (.shard); trek_checkpoint_save and "
                           "trek_trainer_setup, which all of them call, collect it",
                           optimizer->arena->sharers);
    if (status == TREK_OK && count > 0 && !(*entries = trek_calloc((size_t)count, sizeof **entries)))
        status = TREK_ERR_MEMORY;
    for (int k = 0; k < count && status == TREK_OK; k++) {
        trek_tensor *tensor = trek_optimizer_item_tensor(optimizer, &items[k]);
        if (!tensor) {
            status = trek_error_status();
            break;
        }
        (*entries)[(*n)++] = (trek_optimizer_entry){ .name = items[k].name, .tensor = tensor };
        items[k].name = NULL;
    }
    trek_optimizer_list_free(&items, &count);
    if (status != TREK_OK) {
        trek_optimizer_export_free(*entries, *n);
        *entries = NULL;
        *n = 0;
    }
    return status;
}

void trek_optimizer_export_free(trek_optimizer_entry *entries, int n)
{
    for (int k = 0; entries && k < n; k++) {
        trek_free(entries[k].name);
        trek_tensor_release(entries[k].tensor);
    }
    trek_free(entries);
}
