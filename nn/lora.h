/* SPDX-License-Identifier: Apache-2.0 */
/* Low-rank adapters of linear layers (LoRA; Hu et al. 2021), as peft has them: y = W x + bias + s B (A dropout(x)), where W and
 * the bias are frozen and only A [r, in] and B [out, r] are trained, s = lora_alpha / r (rsLoRA, Kalajdzievski 2023: lora_alpha /
 * sqrt(r)). A begins as U(-b, b), b = 1 / sqrt(in) (Kaiming uniform with a = sqrt(5)), B as zeros, so that at first nothing
 * changes.
 *
 * The layer stays the module that it was: its parameters keep their names, and two children join it, "lora_A" and "lora_B", whose
 * weights are theirs; whatever holds the layer, and what is done to a module's parameters (optimizers, clipping, checkpoints,
 * ranks), goes on as before. Adapters come before the optimizer and the trainer, on every replica alike: in the function that
 * builds them. The weight may be parametrised (parametrize.h); then it cannot be merged.
 *
 * Errors: ARGUMENT (what is out of range, no linear layer, an adapter twice or none), DTYPE, STATE, MEMORY. */
#ifndef TREK_NN_LORA_H
#define TREK_NN_LORA_H

#include "nn/state.h"

TREK_BEGIN

typedef struct trek_lora_opts {
    int64_t r;                /* default 8 */
    double lora_alpha;        /* default 8; TREK_ZERO for 0 */
    double lora_dropout;      /* of the adapter's input, in training; default 0 */
    bool use_rslora;
    /* Of trek_lora_apply: which layers, by their full names or the last parts of those ("q_proj", "mlp.up"); ended by NULL.
     * NULL, the default: every linear layer. */
    const char *const *target_modules;
    trek_dtype dtype;         /* of A and B; default f32, of an f64 layer f64. The input is converted to it where autocast is
                                 off, and the result has the layer's dtype */
} trek_lora_opts;

/* Gives the linear layer an adapter and freezes its own parameters. opts may be NULL. */
TREK_API trek_status trek_lora(trek_module *linear, const trek_lora_opts *opts);
/* Adapters for all linear layers of the module that target_modules names, all or none; then all of its parameters but those of
 * adapters are frozen, as by peft (thaw what is trained beside them: trek_module_freeze). ARGUMENT: no layer has such a name. */
TREK_API trek_status trek_lora_apply(trek_module *module, const trek_lora_opts *opts);

/* Adds s B A to the weights of all adapted layers of the module and leaves the adapters out of their forwards; and takes it out
 * again, up to rounding, which is once to the weight's dtype each time. A layer that is merged already (or is not) stays. What is
 * done to a graph's modules its replicas follow after trek_graph_parameters_changed. States hold the weights as they are, so a
 * merged one is for a module without adapters. STATE: a parametrised weight; layers before it are done. ARGUMENT: no adapters. */
TREK_API trek_status trek_lora_merge(trek_module *module);
TREK_API trek_status trek_lora_unmerge(trek_module *module);
/* The layers without their adapters, merged into the weights or not. The weights stay frozen. Otherwise as trek_lora_merge. */
TREK_API trek_status trek_lora_remove(trek_module *module, bool merge);

/* The adapters alone: copies on the CPU, under peft's names: "base_model.model.", the layer's name, ".lora_A.weight". */
TREK_API trek_state *trek_lora_state_of(trek_module *module);
/* Into the adapters, by names with or without that beginning; floating dtypes are converted. Each adapter's two weights must be
 * there, and nothing else: ARGUMENT names what is not so; and then, as after STATE (a layer is merged), nothing has changed. */
TREK_API trek_status trek_lora_state_apply(const trek_state *state, trek_module *module);
/* The same to a safetensors file and back (state.h). r and lora_alpha are the program's to remember. */
TREK_API trek_status trek_lora_save(trek_module *module, const char *path);
TREK_API trek_status trek_lora_load(trek_module *module, const char *path);

TREK_END

#endif
