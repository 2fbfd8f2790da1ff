/* SPDX-License-Identifier: Apache-2.0 */
/* A stretch of parameters that an optimizer updates: what the element kernels of its class are given, with the numbers of
 * the step. Plain C that C++ and nvcc understand. */
#ifndef TREK_TENSOR_UPDATE_SLICE_H
#define TREK_TENSOR_UPDATE_SLICE_H

#include "tensor/types.h"

TREK_BEGIN

#define TREK_UPDATE_OPTIONS 16    /* options of a class of optimizers, at most */
#define TREK_UPDATE_STATES 3      /* arrays of state, one number for each element of the parameters, at most */
#define TREK_UPDATE_NUMBERS_MOST 16 /* that kernels make of the options, TREK_UPDATE_NUMBERS */
#define TREK_UPDATE_CORRECTIONS 4 /* options whose powers kernels are given, at most */

/* All arrays are of the dtype that the kernel is told (F32 or F64) and have `count` elements. 16-bit parameters are updated in
 * f32 copies, and state that is kept in fewer bits is brought to f32 and back: kernels do not see them. */
typedef struct trek_update_slice {
    void *param, *grad;
    void *state[TREK_UPDATE_STATES];  /* 0 where they were never written; NULL: not kept */
    int64_t count;
    double options[TREK_UPDATE_OPTIONS]; /* in the order of the class; the first is the learning rate of this step */
    double correction[TREK_UPDATE_CORRECTIONS]; /* 1 - value^step of the options that the class wants corrected */
    int64_t step;                     /* updates of these parameters, this one counted; 0 unless the class is by_step or
                                         state is kept in bf16 */
    uint32_t kept, fresh;             /* bit k: state k is kept; it is kept and was never written */
    double grad_scale;                /* gradients are multiplied by it before all else */
    bool zero_grad;                   /* and set to 0 after use */
    double value_limit; /* for whoever calls the kernel: gradients are brought into [-limit, limit] before; <= 0: not */
    void *low;                        /* for whoever calls the kernel: 16-bit parameters, rewritten from param; NULL: none */
    trek_dtype low_dtype;
    trek_dtype state_dtype;           /* for whoever calls the kernel: what `state` is kept in */
    int64_t first;                    /* for whoever calls the kernel: the place of element 0 among the optimizer's parameters */
    float *scale[TREK_UPDATE_STATES]; /* for whoever calls the kernel: of states in u8, from that of element 0's block on */
    uint32_t positive;                /* for whoever calls the kernel: bit k: state k is never below 0 */
} trek_update_slice;

/* Updates elements [begin, end) of the slice. Each by itself: the bits are the same however a slice is cut. Called by several
 * threads at once; neither fails nor allocates. */
typedef void (*trek_update_fn)(trek_dtype dtype, const trek_update_slice *slice, int64_t begin, int64_t end);

TREK_END

#endif
