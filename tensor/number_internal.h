/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a number can be represented in a dtype. */
#ifndef TREK_TENSOR_NUMBER_INTERNAL_H
#define TREK_TENSOR_NUMBER_INTERNAL_H

#include <float.h>
#include <math.h>

#include "tensor/types.h"

/* Fractions may be lost, but not the size: the cases in which PyTorch says "cannot be converted without overflow". */
static inline bool trek_dtype_holds(trek_dtype dtype, double value)
{
    switch (dtype) {
    case TREK_U8: return value >= 0 && value <= 255;
    case TREK_I32: return value >= INT32_MIN && value <= INT32_MAX;
    case TREK_I64: return value >= -0x1p63 && value < 0x1p63;
    case TREK_F16: return !isfinite(value) || fabs(value) <= 65504;
    case TREK_BF16: return !isfinite(value) || fabs(value) <= 0x1.fep127;
    case TREK_F32: return !isfinite(value) || fabs(value) <= FLT_MAX;
    default: return true;
    }
}

#endif
