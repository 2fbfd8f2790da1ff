/* SPDX-License-Identifier: Apache-2.0 */
/* Other buffers for an optimizer whose arena has been cut in another way. The caller brings their contents. */
#include "optim/optimizer_internal.h"
#include "tensor/memory_internal.h"

void trek_optimizer_exchange(trek_optimizer *optimizer, trek_optimizer_buffers *with)
{
    trek_optimizer_buffers own;
    memcpy(own.state, optimizer->state, sizeof own.state);
    memcpy(own.scale, optimizer->scale, sizeof own.scale);
    memcpy(own.place, optimizer->place, sizeof own.place);
    memcpy(optimizer->state, with->state, sizeof own.state);
    memcpy(optimizer->scale, with->scale, sizeof own.scale);
    memcpy(optimizer->place, with->place, sizeof own.place);
    *with = own;
    optimizer->stale = true; /* what is updated needs other workspaces */
}

void trek_optimizer_buffers_clear(trek_optimizer_buffers *buffers)
{
    for (int s = 0; s < TREK_UPDATE_STATES; s++) {
        for (int p = 0; p < TREK_DTYPE_COUNT; p++) {
            trek_tensor_release(buffers->state[s][p]);
            trek_tensor_release(buffers->scale[s][p]);
        }
        trek_free(buffers->place[s]);
    }
    *buffers = (trek_optimizer_buffers){ 0 };
}

trek_status trek_optimizer_renew(trek_optimizer *optimizer, trek_optimizer_buffers *before)
{
    trek_status status = TREK_OK;
    *before = (trek_optimizer_buffers){ 0 };
    trek_optimizer_exchange(optimizer, before);
    for (int s = 0; s < TREK_UPDATE_STATES && status == TREK_OK; s++) {
        if (before->place[s])
            status = trek_optimizer_lay_out(optimizer, s);
        for (int p = 0; p < optimizer->arena->n_parts && status == TREK_OK; p++)
            if (before->state[s][p])
                status = trek_optimizer_make_state(optimizer, s, p);
    }
    if (status == TREK_OK)
        return TREK_OK;
    trek_optimizer_exchange(optimizer, before);
    trek_optimizer_buffers_clear(before);
    return status;
}
