/* SPDX-License-Identifier: Apache-2.0 */
/* Decides when a layer's product uses 8-bit operands and when the record of their magnitudes advances. */
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/fp8_internal.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/fp8_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "tensor/backend.h"
#include "tensor/fp8.h"
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

/* Returns whether this is the first forward of a training step: a graph's step has a new number, and an optimizer's
 * step has written the weight. So does each grain, for which buffers are what they were before the step. A recomputation in
 * backward (recompute.h) belongs to the step of the first run. The very first forward begins a step as well: the record it finds
 * was loaded, or is what other ranks saw. */
static bool begins_step(trek_fp8_layer *fp8, const trek_var *weight)
{
    uint64_t step = trek_rank_here.rng_step;
    uint32_t version = weight->data->storage->version;
    uint64_t grain_run = trek_rank_here.grain_run;
    bool begins = !fp8->began || fp8->step != step || fp8->version != version || fp8->grain_run != grain_run;
    fp8->began = true;
    fp8->step = step;
    fp8->grain_run = grain_run;
    fp8->version = version;
    return begins;
}

/* Returns whether a row of the record, which is about to advance by a step, holds a magnitude. */
static bool is_known(const int32_t *record, int64_t history, int role)
{
    const int32_t *row = record + role * (history + 1);
    bool known = false;
    for (int64_t k = 0; k < history; k++)
        known |= row[k] > 0 && (uint32_t)row[k] < TREK_FP8_INFINITE;
    return known;
}

/* Returns whether the module's parameters may get gradients from this forward, whether it is recomputed or not. */
static bool learns(const trek_module *module)
{
    bool any = false;
    for (int k = 0; k < module->own->n_params; k++)
        any |= module->own->params[k].var->requires_grad;
    return any && (trek_grad_enabled() || trek_runs_again > 0);
}

/* Returns whether the step that begins has to do without scales, because scales from one rank's own part of the data
 * would differ from those of a single device. Until all magnitudes are known, this reads the record and waits for the
 * device. A capture cannot wait, and uses the tensors' own magnitudes instead. */
static bool has_to_calibrate(trek_fp8_layer *fp8, const trek_module *module)
{
    const trek_tensor *record = fp8->record->data;
    const trek_backend *backend = trek_backend_get((trek_device_type)record->device.type);
    if (fp8->known || (backend && backend->capturing && backend->capturing()))
        return false;
    size_t bytes = (size_t)record->numel * sizeof(int32_t);
    int32_t *now = trek_block_alloc(bytes);
    if (!now || trek_tensor_to_host(record, TREK_I32, now, bytes) != TREK_OK) {
        trek_block_free(now);
        return true;
    }
    bool input = is_known(now, fp8->history, TREK_FP8_INPUT), grad = is_known(now, fp8->history, TREK_FP8_GRAD);
    trek_block_free(now);
    fp8->known = input && grad;
    return !input || (!grad && learns(module));
}

static _Thread_local int paused;

void trek_fp8_pause(bool on) { paused += on ? 1 : -1; }

trek_var *trek_module_linear(trek_module *module, trek_var *x, trek_var *weight, trek_var *bias)
{
    trek_fp8_layer *fp8 = module->own->fp8;
    if (!fp8 || paused > 0 || !takes(x, weight, bias))
        return trek_linear(x, weight, bias);
    trek_fp8_scaling scaling = { .record = fp8->record, .margin = fp8->margin, .training = module->own->training };
    scaling.roll = fp8->record && module->own->training && begins_step(fp8, weight);
    if (scaling.roll)
        fp8->calibrates = has_to_calibrate(fp8, module);
    scaling.calibrates = fp8->calibrates && module->own->training;
    return trek_fp8_linear(x, weight, bias, &scaling);
}
