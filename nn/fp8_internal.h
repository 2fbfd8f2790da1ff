/* SPDX-License-Identifier: Apache-2.0 */
/* Layers with 8-bit products: what they keep, and what graphs and exports ask. Internal. */
#ifndef TREK_NN_FP8_INTERNAL_H
#define TREK_NN_FP8_INTERNAL_H

#include "nn/fp8.h"

enum { TREK_FP8_MULTIPLE = 16 }; /* sizes that are multiples of it */

/* What a module keeps. Read and written by the thread that runs it in training. */
typedef struct trek_fp8_layer {
    trek_var *record;         /* the module's buffer, borrowed; NULL: each tensor's own magnitude */
    int64_t history;          /* 0: none */
    int margin;
    bool began;               /* the record is of some step: */
    uint64_t step;            /* of this one of the RNG's, */
    uint32_t version;         /* of a weight of this version */
    bool calibrates;          /* in it products are bf16 ones, since not all magnitudes are known */
    bool known;               /* they all were, once */
} trek_fp8_layer;

/* ARGUMENT for options out of range. */
trek_status trek_fp8_check(const trek_fp8_opts *opts);
/* Whether all layers of the module that could have it do, with this history. An error only where they have another one. */
bool trek_fp8_enabled(trek_module *module, const trek_fp8_opts *opts);
/* Between on and off, which nest, the calling thread's products are the layers' own: what is written down for other programs. */
void trek_fp8_pause(bool on);

#endif
