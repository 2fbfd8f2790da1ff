/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/team/passes.h"

#include <stddef.h>
#include <string.h>

#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"

/* The loader ends: none of its samples can be read any more. */
static void forget(trek_loader_follower *follower)
{
    trek_step_passes *p = (trek_step_passes *)(void *)((char *)follower - offsetof(trek_step_passes, follower));
    for (int64_t k = 0; k < p->n; k++)
        p->of[k].loader = p->of[k].loader == p->loader ? NULL : p->of[k].loader;
    p->loader = NULL;
}

static void follow(trek_step_passes *p, trek_loader *loader)
{
    if (p->loader == loader)
        return;
    p->follower.forget = forget;
    if (p->loader) {
        trek_loader_unfollow(p->loader, &p->follower);
        forget(&p->follower);
    }
    if (loader)
        trek_loader_follow(loader, &p->follower);
    p->loader = loader;
}

trek_status trek_step_passes_add(trek_step_passes *p, const trek_step_pass *pass)
{
    if (p->n == p->room) {
        int64_t room = 2 * p->room + 4;
        trek_step_pass *grown = trek_calloc((size_t)room, sizeof *grown);
        if (!grown)
            return TREK_ERR_MEMORY;
        if (p->n > 0)
            memcpy(grown, p->of, (size_t)p->n * sizeof *grown);
        trek_free(p->of);
        p->of = grown;
        p->room = room;
    }
    follow(p, pass->loader);
    p->of[p->n++] = *pass;
    return TREK_OK;
}

void trek_step_passes_clear(trek_step_passes *p)
{
    follow(p, NULL);
    trek_free(p->of);
    *p = (trek_step_passes){ 0 };
}

trek_step_pass trek_step_pass_of(const trek_batch *batch)
{
    return (trek_step_pass){ .loader = batch->loader, .epoch = batch->epoch, .batch = batch->first_batch, .rows = batch->global,
                             .no_grad_depth = trek_grad_mode_here.no_grad_depth, .offload = trek_grad_mode_here.offload,
                             .rng_step = trek_rank_here.rng_step, .rng_draw = trek_rank_here.rng_draw };
}
