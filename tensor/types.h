/* SPDX-License-Identifier: Apache-2.0 */
/* The types that are passed by value: dtypes, devices and shapes. */
#ifndef TREK_TENSOR_TYPES_H
#define TREK_TENSOR_TYPES_H

#include "tensor/status.h"

TREK_BEGIN

/* Lists the dtypes: X(NAME, name, size in bytes, kind). The kind decides about promotion: 'b' (bool) is below 'u' and 'i'
 * (integers), and these are below 'f' (floating point). */
#define TREK_DTYPE_LIST(X)                                                                                                       \
    X(F32, f32, 4, 'f')                                                                                                          \
    X(F64, f64, 8, 'f')                                                                                                          \
    X(BF16, bf16, 2, 'f')                                                                                                        \
    X(F16, f16, 2, 'f')                                                                                                          \
    X(I64, i64, 8, 'i')                                                                                                          \
    X(I32, i32, 4, 'i')                                                                                                          \
    X(U8, u8, 1, 'u')                                                                                                            \
    X(BOOL, bool, 1, 'b')

/* The type of a tensor's elements: TREK_F32, TREK_F64 and so on, one for each row of TREK_DTYPE_LIST. TREK_DTYPE_COUNT is
 * their number. */
typedef enum trek_dtype {
#define TREK_DTYPE_ENUM(NAME, name, size, kind) TREK_##NAME,
    TREK_DTYPE_LIST(TREK_DTYPE_ENUM)
#undef TREK_DTYPE_ENUM
        TREK_DTYPE_COUNT
} trek_dtype;

/* The kind of a device. TREK_DEVICE_UNSET, 0, is the kind of a device that is left out. TREK_DEVICE_TYPE_COUNT is one more than
 * the last kind. */
typedef enum trek_device_type { TREK_DEVICE_UNSET, TREK_CPU, TREK_CUDA, TREK_DEVICE_TYPE_COUNT } trek_device_type;

/* A device: its kind and its number. cpu:0, cpu:1, ... belong to different ranks of a process that share memory and cores;
 * one call may mix values of several CPU devices. Values on a GPU can be combined only with values on the same GPU.
 * A device that is all zero is unset, as is the .device of options that leave it out. Every function takes it for
 * trek_device_default(), unless it says otherwise. */
typedef struct trek_device {
    trek_device_type type; /* the kind of the device */
    int index;             /* its number, from 0 */
} trek_device;

/* Returns the CPU device of that number. */
TREK_API trek_device trek_cpu(int index);
/* Returns the GPU of that number. */
TREK_API trek_device trek_cuda(int index);
/* Returns the device that trek uses where none is given.
 * It is the first device in the environment variable TREK_DEVICES. If that is not set, it is a GPU: with n usable GPUs, the
 * process to which its launcher (trek-run, torchrun, Open MPI, Slurm) gave local rank r gets cuda:(r modulo n). Without a
 * usable GPU it is cpu:0. */
TREK_API trek_device trek_device_default(void);

/* The most dimensions that a tensor can have. */
#define TREK_MAX_DIMS 8

/* The sizes of a tensor's dimensions, outermost first. A scalar has ndim 0. This type also holds lists of dimension numbers
 * (trek_dims), where a negative number counts from the last dimension. */
typedef struct trek_shape {
    int ndim;                     /* number of dimensions, at most TREK_MAX_DIMS */
    int64_t sizes[TREK_MAX_DIMS]; /* the first `ndim` of them are used */
} trek_shape;

/* A list of dimension numbers, made by trek_dims, trek_dims_all or trek_dims_none. */
typedef trek_shape trek_dims_list;

/* Returns the shape with these `ndim` sizes. With more than TREK_MAX_DIMS sizes it returns a shape that every function
 * refuses. */
TREK_API trek_shape trek_shape_make(const int64_t *sizes, int ndim);

#ifndef __cplusplus
/* trek_dims(2, 3) is a shape with the sizes 2 and 3, or a list of the dimensions 2 and 3. With more than TREK_MAX_DIMS
 * entries it is a shape that every function refuses. In C++ it is a function, which is defined below. */
#define trek_dims(...)                                                                                                           \
    trek_shape_make((const int64_t[]){ __VA_ARGS__ }, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)))
#endif
/* Returns the shape of a scalar, which is also the empty list of dimensions. Reductions, Fourier transforms and
 * trek_squeeze_dims take the empty list for all dimensions, as PyTorch does; other functions do nothing with it. */
static inline trek_shape trek_dims_none(void)
{
    return trek_shape_make(NULL, 0);
}
/* Returns the list of all dimensions of the tensor that it is used with, in their order. Every function that takes a list of
 * dimensions takes it. It is not a shape. */
static inline trek_dims_list trek_dims_all(void)
{
    return trek_shape_make(NULL, -1);
}

TREK_END

#ifdef __cplusplus
/* Returns a shape with these sizes, or a list of these dimensions: the macro trek_dims as a function for C++. */
template <typename... Sizes> inline trek_shape trek_dims(Sizes... sizes)
{
    const int64_t list[] = { static_cast<int64_t>(sizes)..., 0 };
    return trek_shape_make(list, static_cast<int>(sizeof...(sizes)));
}
#endif

#endif
