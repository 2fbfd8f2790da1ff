/* SPDX-License-Identifier: Apache-2.0 */
/* The types that are passed by value: dtypes, devices and shapes. */
#ifndef TREK_TENSOR_TYPES_H
#define TREK_TENSOR_TYPES_H

#include "tensor/status.h"

TREK_BEGIN

/* Lists the dtypes: X(NAME, name, size in bytes, kind). The kind decides about promotion: 'b' (bool) is below 'u' and 'i'
 * (integers), and these are below 'f' (floating point). */
#define TREK_DTYPE_LIST(X)                                                     \
    X(F32, f32, 4, 'f')                                                        \
    X(F64, f64, 8, 'f')                                                        \
    X(BF16, bf16, 2, 'f')                                                      \
    X(F16, f16, 2, 'f')                                                        \
    X(I64, i64, 8, 'i')                                                        \
    X(I32, i32, 4, 'i')                                                        \
    X(U8, u8, 1, 'u')                                                          \
    X(BOOL, bool, 1, 'b')

/* The type of a tensor's elements: TREK_F32, TREK_F64 and so on, one for each row of TREK_DTYPE_LIST. TREK_DTYPE_COUNT is
 * their number. */
typedef enum trek_dtype {
#define TREK_DTYPE_ENUM(NAME, name, size, kind) TREK_##NAME,
    TREK_DTYPE_LIST(TREK_DTYPE_ENUM)
#undef TREK_DTYPE_ENUM
    TREK_DTYPE_COUNT
} trek_dtype;

/* Returns the size of an element in bytes, or 0 if `dtype` is not a dtype. */
TREK_API size_t trek_dtype_size(trek_dtype dtype);
/* Returns the name of a dtype, such as "f32", or "invalid" if `dtype` is not a dtype. The string is never freed. */
TREK_API const char *trek_dtype_name(trek_dtype dtype);
/* Returns true for the floating dtypes: f32, f64, bf16 and f16. */
TREK_API bool trek_dtype_is_float(trek_dtype dtype);
/* Returns true for the floating dtypes of 16 bits: bf16 and f16. */
static inline bool trek_dtype_is_16bit(trek_dtype dtype) { return dtype == TREK_BF16 || dtype == TREK_F16; }
/* Returns the dtype to which PyTorch promotes two tensors of dtypes `a` and `b`. */
TREK_API trek_dtype trek_dtype_promote(trek_dtype a, trek_dtype b);

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
/* Reads a device from text such as "cpu", "cpu:1" or "cuda:0".
 * Errors: ARGUMENT if the text is not a device; *device is then unchanged. */
TREK_API trek_status trek_device_parse(const char *text, trek_device *device);
/* Returns how many devices of a kind can be used: for TREK_CPU the number of cores, for TREK_CUDA the number of GPUs, which
 * is 0 without a driver, and 0 for anything else. */
TREK_API int trek_device_count(trek_device_type type);
/* The number of bytes that holds the name of any device. */
#define TREK_DEVICE_NAME 24
/* Writes the name of a device, such as "cpu:0", to `text` and returns `text`. What does not fit into `capacity` bytes, the ending
 * zero included, is cut off; TREK_DEVICE_NAME bytes are enough. */
TREK_API char *trek_device_name(trek_device device, char *text, size_t capacity);
/* Waits until the device has finished all work it was given. Returns the error of that work, if there was one. */
TREK_API trek_status trek_device_sync(trek_device device);
/* Returns true if both are the same device. */
TREK_API bool trek_device_equal(trek_device a, trek_device b);

/* Allows or forbids that matrix products and convolutions of f32 on GPUs round their factors to TF32, which has 10 bits of
 * fraction and is several times faster; sums stay in f32. It is forbidden by default. The setting holds for the whole
 * process and for work that begins after the call. Any thread may call it. It is PyTorch's allow_tf32. */
TREK_API void trek_allow_tf32(bool allow);
/* Returns whether TF32 is allowed, as set by trek_allow_tf32. Any thread may call it. */
TREK_API bool trek_tf32_allowed(void);

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
/* Returns the number of elements: the product of the sizes, or INT64_MAX if that is too large. */
TREK_API int64_t trek_shape_numel(trek_shape shape);
/* Returns true if both shapes have the same number of dimensions and the same sizes. */
TREK_API bool trek_shape_equal(trek_shape a, trek_shape b);
/* The number of bytes that holds the text of any shape. */
#define TREK_SHAPE_TEXT 192
/* Writes a shape, such as "[64, 784]", to `text` and returns `text`. What does not fit into `capacity` bytes, the ending zero
 * included, is cut off; TREK_SHAPE_TEXT bytes are enough. */
TREK_API char *trek_shape_format(trek_shape shape, char *text, size_t capacity);

#ifndef __cplusplus
/* trek_dims(2, 3) is a shape with the sizes 2 and 3, or a list of the dimensions 2 and 3. With more than TREK_MAX_DIMS
 * entries it is a shape that every function refuses. In C++ it is a function, which is defined below. */
#define trek_dims(...)                                                         \
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
