/* SPDX-License-Identifier: Apache-2.0 */
/* Layers with 8-bit products: their state, and what graphs and exports need to know. */
#ifndef TREK_NN_FP8_INTERNAL_H
#define TREK_NN_FP8_INTERNAL_H

#include "nn/fp8.h"

enum { TREK_FP8_MULTIPLE = 16 }; /* sizes have to be multiples of this */

/* The state that a module keeps. Only the thread that runs the module in training reads and writes it. */
typedef struct trek_fp8_layer {
    trek_var *record;         /* the module's buffer, borrowed; NULL if each tensor's own magnitude is used */
    int64_t history;          /* 0 if there is none */
    int margin;
    bool began;               /* the record belongs to a step: */
    uint64_t step;            /* the RNG's step number, */
    uint64_t grain_run;       /* a run of a grain: each begins with the record of the steps before */
    uint32_t version;         /* with a weight of this version */
    bool calibrates;          /* in this step products use bf16, since not all magnitudes are known */
    bool known;               /* all magnitudes have been known once */
} trek_fp8_layer;

/* Fails with ARGUMENT if the options are out of range. */
trek_status trek_fp8_check(const trek_fp8_opts *opts);
/* Returns whether all suitable layers of the module use 8-bit products with this history. It is an error only if they
 * use a different history. */
bool trek_fp8_enabled(trek_module *module, const trek_fp8_opts *opts);
/* Between on and off, which nest, the calling thread's layers compute their ordinary products. Exports for other
 * programs use this. */
void trek_fp8_pause(bool on);

#endif
