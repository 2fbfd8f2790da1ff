/* SPDX-License-Identifier: Apache-2.0 */
/* A range of parameters that an optimizer updates, as the element kernels of the optimizer's class receive it, with the numbers
 * of the step. It is plain C, so that C++ and nvcc can read it. */
#ifndef TREK_TENSOR_UPDATE_SLICE_H
#define TREK_TENSOR_UPDATE_SLICE_H

#include "tensor/types.h"

TREK_BEGIN

/* The most options that a class of optimizers can have. */
#define TREK_UPDATE_OPTIONS 16
/* The most arrays of state that a class of optimizers can have. An array has one number for each element of the parameters. */
#define TREK_UPDATE_STATES 3
/* The most numbers that a kernel can compute in advance from the options (TREK_UPDATE_NUMBERS). */
#define TREK_UPDATE_NUMBERS_MOST 16
/* The most options whose powers a kernel can receive. */
#define TREK_UPDATE_CORRECTIONS 4

/* A range of parameters and the numbers of the step. All arrays have `count` elements of the dtype that the kernel is called
 * with, f32 or f64. Kernels see neither 16-bit parameters, which are updated in f32 copies, nor state of fewer bits, which is
 * converted to f32 and back. Fields marked "caller" are for the code that calls the kernel; kernels ignore them. */
typedef struct trek_update_slice {
    void *param;                      /* the parameters */
    void *grad;                       /* their gradients */
    void *state[TREK_UPDATE_STATES];  /* arrays of state: 0 before they are first written; NULL if an array is not kept */
    int64_t count;                    /* number of elements */
    /* The options in the order of the class. The first is the learning rate of this step. */
    double options[TREK_UPDATE_OPTIONS];
    /* 1 - value^step for each option that the class marks for correction. */
    double correction[TREK_UPDATE_CORRECTIONS];
    /* The number of updates of these parameters, this one included. It is 0 unless the class is by_step or state is stored
     * in bf16. */
    int64_t step;
    uint32_t kept;                    /* bit k: state k is kept */
    uint32_t fresh;                   /* bit k: state k is kept and was never written */
    double grad_scale;                /* the kernel multiplies gradients by it first */
    bool zero_grad;                   /* the kernel sets gradients to 0 after use */
    double value_limit;               /* caller: gradients are clipped to [-limit, limit] first; <= 0: no clipping */
    void *low;                        /* caller: 16-bit parameters that are rewritten from param; NULL: none */
    trek_dtype low_dtype;             /* caller: the dtype of `low` */
    trek_dtype state_dtype;           /* caller: the dtype in which `state` is stored */
    int64_t first;                    /* caller: the index of element 0 among all elements of the optimizer's parameters */
    float *scale[TREK_UPDATE_STATES]; /* caller: the scales of states in u8, starting with the block of element 0 */
    uint32_t positive;                /* caller: bit k: state k is never below 0 */
} trek_update_slice;

/* A kernel that updates the elements [begin, end) of a slice. It updates each element independently of the others, so that the
 * result has the same bits however a slice is divided. Several threads call it at once. It must neither fail nor allocate. */
typedef void (*trek_update_fn)(trek_dtype dtype, const trek_update_slice *slice, int64_t begin, int64_t end);

TREK_END

#endif
