/* SPDX-License-Identifier: Apache-2.0 */
/* Low-rank adapters of linear layers (LoRA; Hu et al. 2021), as in peft: y = W x + bias + s B (A dropout(x)). W and the bias are
 * frozen, and only A [r, in] and B [out, r] are trained. s is lora_alpha / r, or lora_alpha / sqrt(r) with rsLoRA (Kalajdzievski
 * 2023). A begins as U(-b, b) with b = 1 / sqrt(in) (Kaiming uniform with a = sqrt(5)) and B as zeros, so that at first nothing
 * changes.
 *
 * The layer stays the same module. Its parameters keep their names, and it gets two children, "lora_A" and "lora_B", whose
 * weights are A and B. Parents of the layer, optimizers, clipping, checkpoints and ranks work as before. Add adapters before the
 * optimizer and the trainer are made and equally on every replica, that is, in the function that builds the replicas. The weight
 * may be parametrised (parametrize.h); it cannot be merged then.
 *
 * Errors of every function here: ARGUMENT if an option is out of range, a layer is not linear, has an adapter already or has
 * none; DTYPE, STATE, MEMORY. */
#ifndef TREK_NN_LORA_H
#define TREK_NN_LORA_H

#include "nn/state.h"

TREK_BEGIN

/* Options of trek_lora and trek_lora_apply. */
typedef struct trek_lora_opts {
    int64_t r;           /* rank of the adapter; default 8 */
    double lora_alpha;   /* scale of the adapter; default 8, TREK_ZERO for 0 */
    double lora_dropout; /* probability of dropping an element of the adapter's input in training; default 0 */
    bool use_rslora;     /* divides lora_alpha by sqrt(r) instead of r */
    /* For trek_lora_apply: the layers, by their full names or the last parts of them ("q_proj", "mlp.up"), ended by NULL. Default
     * NULL: every linear layer. */
    const char *const *target_modules;
    /* The dtype of A and B; default f32, for an f64 layer f64. Outside of autocast the input is converted to it, and the result
     * has the layer's dtype. */
    trek_dtype dtype;
} trek_lora_opts;

/* Gives the linear layer an adapter and freezes its own parameters. opts may be NULL. */
TREK_API trek_status trek_lora(trek_module *linear, const trek_lora_opts *opts);

/* Gives all linear layers of the module that target_modules names an adapter, and freezes all other parameters of the module, as
 * peft does. Use trek_module_thaw for other parameters that are to be trained. opts may be NULL. On failure no layer
 * has a new adapter.
 * Errors: ARGUMENT if no layer has one of the names. */
TREK_API trek_status trek_lora_apply(trek_module *module, const trek_lora_opts *opts);

/* Adds s B A to the weights of all adapted layers of the module and leaves the adapters out of their forwards. Each merge rounds
 * once to the dtype of the weight. Layers that are merged already stay as they are. A merged state fits a module without
 * adapters, because a state contains the weights as they are. The replicas of a graph follow after trek_graph_parameters_changed.
 * Errors: STATE if a weight is parametrised; the layers before it are merged then. ARGUMENT if the module has no adapters. */
TREK_API trek_status trek_lora_merge(trek_module *module);

/* Subtracts s B A from the weights of all merged layers again, up to rounding, and uses the adapters in their forwards. Layers
 * that are not merged stay as they are.
 * Errors: those of trek_lora_merge. */
TREK_API trek_status trek_lora_unmerge(trek_module *module);

/* Removes the adapters of all layers of the module. If `merge` is true they are merged into the weights before, otherwise merged
 * adapters are subtracted from the weights again. The weights stay frozen.
 * Errors: those of trek_lora_merge. */
TREK_API trek_status trek_lora_remove(trek_module *module, bool merge);

/* Returns a state with copies of the adapters only, on the CPU, or NULL on failure. The names are peft's: "base_model.model.",
 * the name of the layer, ".lora_A.weight" or ".lora_B.weight". The caller owns it. */
TREK_API trek_state *trek_lora_state_of(trek_module *module);

/* Copies a state into the adapters. Names may have or lack the beginning "base_model.model."; floating dtypes are converted.
 * Errors: ARGUMENT, with the name, if a weight of an adapter is missing or the state has other tensors. STATE if a layer is
 * merged. On these errors nothing has changed. */
TREK_API trek_status trek_lora_state_apply(const trek_state *state, trek_module *module);

/* Writes the adapters to a safetensors file, as trek_lora_state_of and trek_state_write. The file does not contain r and
 * lora_alpha; the program has to know them. */
TREK_API trek_status trek_lora_save(trek_module *module, const char *path);

/* Reads a file into the adapters, as trek_state_read and trek_lora_state_apply. */
TREK_API trek_status trek_lora_load(trek_module *module, const char *path);

TREK_END

#endif
