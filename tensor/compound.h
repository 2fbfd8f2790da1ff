/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that consist of several ops in trek and are one op in other systems. Code that watches the thread (onnx/)
 * sees them as one. */
#ifndef TREK_TENSOR_COMPOUND_H
#define TREK_TENSOR_COMPOUND_H

#include "tensor/rank_context.h"
#include "tensor/tensor.h"

typedef enum trek_compound_kind {
    TREK_COMPOUND_CONV,           /* x, weight, bias or NULL */
    TREK_COMPOUND_CONV_TRANSPOSE, /* x, weight, bias or NULL; its output padding follows from the sizes */
    TREK_COMPOUND_MAX_POOL,       /* x */
    TREK_COMPOUND_AVG_POOL,
    TREK_COMPOUND_RNN, /* x [T, N, in], weight_ih, weight_hh; each or NULL: bias_ih, bias_hh, h0, lengths; y, hn or NULL */
    TREK_COMPOUND_PAD,            /* x */
    TREK_COMPOUNDS
} trek_compound_kind;

/* The numbers of such a function, for `dims` spatial dimensions, the first one first. */
typedef struct trek_compound {
    trek_compound_kind kind;
    int dims;
    int64_t kernel[3], stride[3], padding[3], dilation[3], groups; /* kernel: for pools */
    bool counts_padding;          /* for average pools */
    bool reverse, relu;           /* for an RNN */
    int64_t pads[2 * TREK_MAX_DIMS]; /* before and after x's first dimension, its second, ... */
    int pad_mode;                 /* trek_pad_mode */
    double value;
    struct trek_tensor *inputs[7], *outputs[2];
} trek_compound;

/* Called before and after its ops. leave is only called after success. */
static inline void trek_compound_enter(void)
{
    const trek_rank_watch *watch = trek_rank_watched();
    if (watch && watch->enter)
        watch->enter(watch->arg);
}
static inline void trek_compound_leave(const trek_compound *compound)
{
    const trek_rank_watch *watch = trek_rank_watched();
    if (watch && watch->leave)
        watch->leave(compound, watch->arg);
}

#endif
