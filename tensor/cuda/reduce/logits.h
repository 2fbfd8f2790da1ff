/* SPDX-License-Identifier: Apache-2.0 */
/* How many logits of linear_cross_entropy are computed at once, by TREK_CUDA_LOGITS. */
#ifndef TREK_TENSOR_CUDA_REDUCE_LOGITS_H
#define TREK_TENSOR_CUDA_REDUCE_LOGITS_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* Returns whether logits of 16-bit operands are in their dtype, with as many at once as an eighth of the device's
 * memory holds (`kept`, the default), instead of in f32 and few at once (`pieces`). It is read once; another value
 * causes a warning and means `kept`. */
bool trek_cuda_logits_kept(void);

TREK_END

#endif
