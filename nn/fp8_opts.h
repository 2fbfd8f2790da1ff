/* SPDX-License-Identifier: Apache-2.0 */
/* Options of products of 8 bits: nn/fp8.h. */
#ifndef TREK_NN_FP8_OPTS_H
#define TREK_NN_FP8_OPTS_H

#include "tensor/common.h"

TREK_BEGIN

/* Options of trek_fp8_enable. */
typedef struct trek_fp8_opts {
    /* Number of steps that scales follow from; default 16, at most 65536. TREK_OFF: each tensor's own magnitude, which takes one
     * more pass over it and needs no buffers. */
    int64_t history;
    int margin; /* scales are divided by 2^margin, at most 64 and at least -64; default 0 */
} trek_fp8_opts;

TREK_END

#endif
