/* SPDX-License-Identifier: Apache-2.0 */
/* State that sharers have in pieces, gathered for a while. The caller that brings the pieces knows the sharers. */
#include "optim/optimizer_internal.h"
#include "tensor/memory_internal.h"

trek_tensor *trek_optimizer_own(const trek_optimizer *optimizer, int s, int part)
{
    const trek_arena_part *of = &optimizer->arena->parts[part];
    if (s < TREK_OWN_SCALES)
        return optimizer->state[s][part];
    if (s < TREK_OWN_MASTERS)
        return optimizer->scale[s - TREK_OWN_SCALES][part];
    return trek_arena_part_is_low(of) ? of->master : NULL;
}

trek_tensor *trek_optimizer_gathered_of(const trek_optimizer *optimizer, int s, int part)
{
    return optimizer->gathered ? optimizer->gathered->of[s][part] : NULL;
}

trek_status trek_optimizer_gather_begin(trek_optimizer *optimizer, int first)
{
    const trek_arena *arena = optimizer->arena;
    trek_optimizer_gather_end(optimizer);
    trek_optimizer_gathered *gathered = optimizer->gathered = trek_calloc(1, sizeof *gathered);
    trek_status status = gathered ? TREK_OK : TREK_ERR_MEMORY;
    for (int s = first; s < TREK_GATHERED; s++)
        for (int p = 0; p < arena->n_parts && status == TREK_OK; p++) {
            const trek_tensor *own = trek_optimizer_own(optimizer, s, p);
            int64_t count = arena->parts[p].count / trek_optimizer_own_block(s), begin;
            if (!own)
                continue;
            if (trek_optimizer_is_uneven(optimizer, s))
                trek_optimizer_state_of(optimizer, s, p, -1, &begin, &count);
            gathered->of[s][p] = trek_tensor_zeros(trek_shape_make(&count, 1), trek_tensor_dtype(own), trek_cpu(0));
            status = gathered->of[s][p] ? TREK_OK : trek_error_status();
        }
    if (status != TREK_OK)
        trek_optimizer_gather_end(optimizer);
    return status;
}

void trek_optimizer_gather_end(trek_optimizer *optimizer)
{
    trek_optimizer_gathered *gathered = optimizer->gathered;
    optimizer->gathered = NULL;
    for (int s = 0; s < TREK_GATHERED && gathered; s++)
        for (int p = 0; p < TREK_DTYPE_COUNT; p++)
            trek_tensor_release(gathered->of[s][p]);
    trek_free(gathered);
}
