/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of inputs that the shape rules of nn's ops have in common. */
#ifndef TREK_TENSOR_INFER_INTERNAL_H
#define TREK_TENSOR_INFER_INTERNAL_H

#include "tensor/op.h"
#include "tensor/try_internal.h"

static inline trek_tensor *input(const trek_op_call *call, int k)
{
    return k < call->n_inputs ? call->inputs[k] : NULL;
}

static inline bool is_integer(const trek_tensor *t)
{
    return t->dtype == TREK_I64 || t->dtype == TREK_I32 || t->dtype == TREK_U8;
}

/* Statistics are in f32 for 16-bit inputs. */
static inline trek_dtype statistics_dtype(trek_dtype dtype)
{
    return trek_dtype_is_16bit(dtype) ? TREK_F32 : dtype;
}

static inline trek_status need_ndim(const trek_op_call *call, const char *name, const trek_tensor *t, int ndim)
{
    char text[TREK_SHAPE_TEXT];
    if (t->ndim == ndim)
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_SHAPE, "%s: %s; must have %d dimensions", name, trek_tensor_shape_text(t, text), ndim);
}

/* Checks an optional vector of `size` elements. */
static inline trek_status need_vector(const trek_op_call *call, const char *name, const trek_tensor *t, int64_t size)
{
    char text[TREK_SHAPE_TEXT];
    if (!t || (t->ndim == 1 && t->sizes[0] == size))
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_SHAPE, "%s: %s; must be [%lld]", name, trek_tensor_shape_text(t, text), (long long)size);
}

static inline trek_status need_sizes(const trek_op_call *call, const char *name, const trek_tensor *t, int ndim,
                                     const int64_t *sizes)
{
    char text[TREK_SHAPE_TEXT], expected[TREK_SHAPE_TEXT];
    bool same = t->ndim == ndim;
    for (int d = 0; same && d < ndim; d++)
        same = t->sizes[d] == sizes[d];
    if (same)
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_SHAPE, "%s: %s; must be %s", name, trek_tensor_shape_text(t, text),
                        trek_shape_format(trek_shape_make(sizes, ndim), expected, sizeof expected));
}

static inline trek_status need_dtype(const trek_op_call *call, const char *name, const trek_tensor *t, trek_dtype dtype)
{
    if (!t || t->dtype == dtype)
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_DTYPE, "%s: dtype %s; must be %s", name, trek_dtype_name(t->dtype),
                        trek_dtype_name(dtype));
}

static inline trek_status need_float(const trek_op_call *call, const char *name, const trek_tensor *t)
{
    if (!t || trek_dtype_is_float(t->dtype))
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_DTYPE, "%s: dtype %s; must be floating", name, trek_dtype_name(t->dtype));
}

/* Checks a parameter of a norm: it has the input's dtype, or f32 if that has 16 bits. */
static inline trek_status need_norm_dtype(const trek_op_call *call, const char *name, const trek_tensor *t, trek_dtype dtype)
{
    if (!t || t->dtype == dtype || (trek_dtype_is_16bit(dtype) && t->dtype == TREK_F32))
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_DTYPE, "%s: dtype %s, for an input of %s; must be the same%s", name,
                        trek_dtype_name((trek_dtype)t->dtype), trek_dtype_name(dtype),
                        trek_dtype_is_16bit(dtype) ? ", or f32" : "");
}

/* Checks weight and bias (either may be NULL) of a norm over inputs of `dtype`. */
static inline trek_status need_norm_dtypes(const trek_op_call *call, trek_dtype dtype, const trek_tensor *weight,
                                           const trek_tensor *bias)
{
    trek_status status = need_norm_dtype(call, "weight", weight, dtype);
    if (status == TREK_OK)
        status = need_norm_dtype(call, "bias", bias, dtype);
    if (status != TREK_OK || !weight || !bias || weight->dtype == bias->dtype)
        return status;
    return trek_op_fail(call, TREK_ERR_DTYPE, "weight and bias: dtypes %s and %s; must be equal",
                        trek_dtype_name((trek_dtype)weight->dtype), trek_dtype_name((trek_dtype)bias->dtype));
}

/* Returns the dtype of a bias's gradient: that of the weight, because both have one dtype; without a weight one that
 * is wide enough for either. */
static inline trek_dtype norm_bias_dtype(trek_dtype dtype, const trek_tensor *weight)
{
    return weight ? (trek_dtype)weight->dtype : statistics_dtype(dtype);
}

static inline trek_status need_integer(const trek_op_call *call, const char *name, const trek_tensor *t)
{
    if (is_integer(t))
        return TREK_OK;
    return trek_op_fail(call, TREK_ERR_DTYPE, "%s: dtype %s; must be an integer dtype", name, trek_dtype_name(t->dtype));
}

#endif
