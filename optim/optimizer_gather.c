/* SPDX-License-Identifier: Apache-2.0 */
/* State that sharers have in pieces, together for a while: whoever brings it here knows the sharers. */
#include "optim/optimizer_internal.h"
#include "tensor/memory_internal.h"

trek_tensor *trek_optimizer_own(const trek_optimizer *optimizer, int s, int part)
{
    const trek_arena_part *of = &optimizer->arena->parts[part];
    if (s < TREK_UPDATE_STATES)
        return optimizer->state[s][part];
    return trek_arena_part_is_low(of) ? of->master : NULL;
}

static trek_tensor **room_of(trek_optimizer_gathered *gathered, int s, int part)
{
    return s < TREK_UPDATE_STATES ? &gathered->state[s][part] : &gathered->masters[part];
}

trek_tensor *trek_optimizer_gathered_of(const trek_optimizer *optimizer, int s, int part)
{
    return optimizer->gathered ? *room_of(optimizer->gathered, s, part) : NULL;
}

trek_status trek_optimizer_gather_begin(trek_optimizer *optimizer)
{
    const trek_arena *arena = optimizer->arena;
    trek_optimizer_gather_end(optimizer);
    trek_optimizer_gathered *gathered = optimizer->gathered = trek_calloc(1, sizeof *gathered);
    trek_status status = gathered ? TREK_OK : TREK_ERR_MEMORY;
    for (int s = 0; s <= TREK_UPDATE_STATES; s++)
        for (int p = 0; p < arena->n_parts && status == TREK_OK; p++) {
            const trek_tensor *own = trek_optimizer_own(optimizer, s, p);
            if (!own)
                continue;
            trek_tensor **room = room_of(gathered, s, p);
            *room = trek_tensor_zeros(trek_shape_make(1, &arena->parts[p].count), trek_tensor_dtype(own), trek_cpu(0));
            status = *room ? TREK_OK : trek_error_status();
        }
    if (status != TREK_OK)
        trek_optimizer_gather_end(optimizer);
    return status;
}

void trek_optimizer_gather_end(trek_optimizer *optimizer)
{
    trek_optimizer_gathered *gathered = optimizer->gathered;
    optimizer->gathered = NULL;
    for (int s = 0; s <= TREK_UPDATE_STATES && gathered; s++)
        for (int p = 0; p < TREK_DTYPE_COUNT; p++)
            trek_tensor_release(*room_of(gathered, s, p));
    trek_free(gathered);
}
