/* SPDX-License-Identifier: Apache-2.0 */
/* When a layer's product is one of 8-bit operands, and when the record of their magnitudes goes on. */
#include "autograd/autocast.h"
#include "autograd/fp8_internal.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/fp8_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "tensor/rank_context.h"

static bool fits(const trek_var *var)
{
    trek_dtype dtype = trek_var_dtype(var);
    return dtype == TREK_F32 || dtype == TREK_BF16;
}

static bool takes(const trek_var *x, const trek_var *weight, const trek_var *bias)
{
    return trek_autocast_dtype() == TREK_BF16 && x && weight && fits(x) && fits(weight) && (!bias || fits(bias)) &&
           trek_var_ndim(x) > 0 && trek_var_numel(x) > 0 && weight->data->sizes[0] % TREK_FP8_MULTIPLE == 0 &&
           weight->data->sizes[1] % TREK_FP8_MULTIPLE == 0 && x->data->sizes[x->data->ndim - 1] == weight->data->sizes[1];
}

/* Whether this is the first forward of a step in training: a graph's step has another number, an optimizer's has written the
 * weight. What runs again in backward (recompute.h) is of the step of its first time. The very first one begins a step, too: what
 * the record then has was loaded, or is what other ranks saw. */
static bool begins_step(trek_fp8_layer *fp8, const trek_var *weight)
{
    uint64_t step = trek_rank_here.rng_step;
    uint32_t version = weight->data->storage->version;
    bool begins = !fp8->began || fp8->step != step || fp8->version != version;
    fp8->began = true;
    fp8->step = step;
    fp8->version = version;
    return begins;
}

static _Thread_local int paused;

void trek_fp8_pause(bool on) { paused += on ? 1 : -1; }

trek_var *trek_module_linear(trek_module *module, trek_var *x, trek_var *weight, trek_var *bias)
{
    trek_fp8_layer *fp8 = module->upkeep->fp8;
    if (!fp8 || paused > 0 || !takes(x, weight, bias))
        return trek_linear(x, weight, bias);
    trek_fp8_scaling scaling = { .record = fp8->record, .margin = fp8->margin, .training = module->training };
    scaling.roll = fp8->record && module->training && begins_step(fp8, weight);
    return trek_fp8_linear(x, weight, bias, &scaling);
}
