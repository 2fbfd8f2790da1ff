/* SPDX-License-Identifier: Apache-2.0 */
/* The small values: dtypes, devices, shapes. */
#ifndef TREK_TENSOR_TYPES_H
#define TREK_TENSOR_TYPES_H

#include "tensor/status.h"

TREK_BEGIN

/* X(NAME, name, size in bytes, kind): kinds order promotion: b(ool) < u/i(nteger) < f(loating point). */
#define TREK_DTYPE_LIST(X)                                                     \
    X(F32, f32, 4, 'f')                                                        \
    X(F64, f64, 8, 'f')                                                        \
    X(BF16, bf16, 2, 'f')                                                      \
    X(F16, f16, 2, 'f')                                                        \
    X(I64, i64, 8, 'i')                                                        \
    X(I32, i32, 4, 'i')                                                        \
    X(U8, u8, 1, 'u')                                                          \
    X(BOOL, bool, 1, 'b')

/* What elements are: the list above. */
typedef enum trek_dtype {
#define TREK_DTYPE_ENUM(NAME, name, size, kind) TREK_##NAME,
    TREK_DTYPE_LIST(TREK_DTYPE_ENUM)
#undef TREK_DTYPE_ENUM
    TREK_DTYPE_COUNT
} trek_dtype;

TREK_API size_t trek_dtype_size(trek_dtype dtype);       /* bytes; 0 for a value that is no dtype */
TREK_API const char *trek_dtype_name(trek_dtype dtype);  /* "f32", ...; "invalid" */
TREK_API bool trek_dtype_is_float(trek_dtype dtype); /* f32, f64, bf16, f16 */
static inline bool trek_dtype_is_16bit(trek_dtype dtype) { return dtype == TREK_BF16 || dtype == TREK_F16; } /* floats */
TREK_API trek_dtype trek_dtype_promote(trek_dtype a, trek_dtype b); /* PyTorch's table for two tensors */

/* What computes. */
typedef enum trek_device_type { TREK_CPU, TREK_CUDA, TREK_DEVICE_TYPE_COUNT } trek_device_type;

/* cpu:0, cpu:1, ... are homes of different ranks that share memory and cores: values on several of them may be mixed
 * in any call. What is on a GPU goes with what is on the same GPU only. */
typedef struct trek_device {
    trek_device_type type;
    int index;
} trek_device;

/* The device of that number. */
TREK_API trek_device trek_cpu(int index);
TREK_API trek_device trek_cuda(int index);
/* The first of TREK_DEVICES; else a usable GPU: that of the process's number among those which its launcher (trek-run,
 * torchrun, Open MPI, Slurm) has started on the machine, in turn where they are more than GPUs; else cpu:0. */
TREK_API trek_device trek_device_default(void);
/* "cpu", "cpu:1", "cuda:0". Error ARGUMENT: *device is left alone. */
TREK_API trek_status trek_device_parse(const char *text, trek_device *device);
/* Devices of a type that can be used: the cores for CPUs; 0 without a driver. */
TREK_API int trek_device_count(trek_device_type type);
/* Writes e.g. "cpu:0" to text (at least 16 bytes); returns text. */
TREK_API char *trek_device_name(trek_device device, char *text);
/* Waits until all work given to the device has ended; reports its deferred error. */
TREK_API trek_status trek_device_sync(trek_device device);
TREK_API bool trek_device_equal(trek_device a, trek_device b);

/* Whether products and convolutions of f32 on GPUs may round their factors to TF32 (10 bits of
 * fraction), which is several times faster; sums stay f32. Off at first; for the whole process,
 * from any thread, for work that begins afterwards (PyTorch's allow_tf32). */
TREK_API void trek_allow_tf32(bool allow);
TREK_API bool trek_tf32_allowed(void);

#define TREK_MAX_DIMS 8 /* of a tensor */

/* Sizes, outermost first. ndim 0 is a scalar. Also used for lists of
 * dimensions (trek_dims), where negative entries count from the end. */
typedef struct trek_shape {
    int ndim;
    int64_t sizes[TREK_MAX_DIMS];
} trek_shape;

/* Dimensions by their numbers; trek_dims_none(): none given. */
typedef trek_shape trek_dims_list;

/* A shape of its sizes; their product; whether two are the same. */
TREK_API trek_shape trek_shape_make(int ndim, const int64_t *sizes);
TREK_API int64_t trek_shape_numel(trek_shape shape);
TREK_API bool trek_shape_equal(trek_shape a, trek_shape b);
/* Writes e.g. "[64, 784]" to text (at least TREK_SHAPE_TEXT bytes); returns text. */
#define TREK_SHAPE_TEXT 192
TREK_API char *trek_shape_text(trek_shape shape, char *text);

/* trek_dims(2, 3): a shape, or a list of dimensions. More than TREK_MAX_DIMS
 * entries make a shape that every function refuses. In C++ a function, below. */
#ifndef __cplusplus
#define trek_dims(...)                                                         \
    trek_shape_make((int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (const int64_t[]){ __VA_ARGS__ })
#endif
/* A scalar's shape, and "all dimensions" for reductions. */
#define trek_dims_none() trek_shape_make(0, NULL)

TREK_END

#ifdef __cplusplus
template <typename... Sizes> inline trek_shape trek_dims(Sizes... sizes)
{
    const int64_t list[] = { static_cast<int64_t>(sizes)..., 0 };
    return trek_shape_make(static_cast<int>(sizeof...(sizes)), list);
}
#endif

#endif
