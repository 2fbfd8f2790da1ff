/* SPDX-License-Identifier: Apache-2.0 */
/* What a dtype is: its size, its name, its kind, and the dtype to which two promote. */
#ifndef TREK_TENSOR_DTYPES_H
#define TREK_TENSOR_DTYPES_H

#include "tensor/types.h"

TREK_BEGIN

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

TREK_END

#endif
