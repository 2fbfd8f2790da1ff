/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cpu/order/order.h"

#include "tensor/cpu/elementwise/map.h"

void trek_order_begin(trek_order *o, const trek_op_call *call, int64_t block)
{
    const trek_tensor *x = call->inputs[0], *tensors[TREK_ORDER_OPERANDS] = { x, call->outputs[0], call->outputs[1] };
    int dim = (int)call->attrs.i[0], across = -1;
    *o = (trek_order){ .call = call, .operands = call->outputs[1] ? 3 : 2, .width = trek_item_size[x->dtype], .columns = 1 };
    o->n = x->ndim > 0 ? x->sizes[dim] : 1;
    if (x->ndim > 1 && dim != x->ndim - 1)
        across = x->ndim - 1;
    for (int k = 0; k < o->operands; k++) {
        const trek_tensor *t = tensors[k];
        int n = 0;
        o->data[k] = t->data;
        o->along[k] = t->ndim > 0 ? t->strides[dim] : 0;
        o->across[k] = across >= 0 ? t->strides[across] : 0;
        for (int d = 0; d < t->ndim; d++)
            if (d != dim && d != across)
                o->outer[k][n++] = t->strides[d];
    }
    for (int d = 0; d < x->ndim; d++) {
        if (d == across)
            o->columns = x->sizes[d];
        else if (d != dim)
            o->outer_sizes[o->n_outer++] = x->sizes[d];
    }
    o->block = block < 1 ? 1 : block < o->columns ? block : o->columns;
    o->blocks = o->block > 0 ? (o->columns + o->block - 1) / o->block : 0;
}

static void run_part(void *arg, int64_t begin, int64_t end)
{
    trek_order *o = arg;
    const trek_tensor *out = o->call->outputs[0];
    void *scratch = o->scratch ? trek_block_alloc(o->scratch) : NULL;
    if (o->scratch && !scratch) {
        atomic_store(&o->failed, true);
        return;
    }
    int width[TREK_ORDER_OPERANDS] = { o->width, trek_item_size[out->dtype], 8 };
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t first = unit % o->blocks * o->block, outer = unit / o->blocks, at[TREK_ORDER_OPERANDS];
        char *data[TREK_ORDER_OPERANDS] = { NULL };
        for (int k = 0; k < o->operands; k++)
            at[k] = first * o->across[k];
        for (int d = o->n_outer - 1; d >= 0; d--) {
            int64_t place = outer % o->outer_sizes[d];
            outer /= o->outer_sizes[d];
            for (int k = 0; k < o->operands; k++)
                at[k] += place * o->outer[k][d];
        }
        for (int k = 0; k < o->operands; k++)
            data[k] = o->data[k] + at[k] * width[k];
        o->run(o, data, o->columns - first < o->block ? o->columns - first : o->block, scratch);
    }
    trek_block_free(scratch);
}

trek_status trek_order_run(trek_order *o, int64_t work)
{
    int64_t units = o->blocks;
    for (int d = 0; d < o->n_outer; d++)
        units *= o->outer_sizes[d];
    int64_t each = (work < 1 ? 1 : work) * o->block;
    atomic_init(&o->failed, false);
    trek_parallel(units, (TREK_GRAIN_FUNCTION - 1) / each + 1, run_part, o);
    if (!atomic_load(&o->failed))
        return TREK_OK;
    return trek_op_fail(o->call, TREK_ERR_MEMORY, "no %zu bytes to sort in", o->scratch);
}
