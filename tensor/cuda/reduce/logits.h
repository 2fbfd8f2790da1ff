/* SPDX-License-Identifier: Apache-2.0 */
/* How many logits of linear_cross_entropy are made at once, by TREK_CUDA_LOGITS. */
#ifndef TREK_TENSOR_CUDA_REDUCE_LOGITS_H
#define TREK_TENSOR_CUDA_REDUCE_LOGITS_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* Whether logits of 16-bit operands are in their dtype, as many at once as an eighth of the device's memory holds (`kept`, the
 * default), instead of f32 and few at once (`pieces`). Read once; another value is warned of, and means `kept`. */
bool trek_cuda_logits_kept(void);

TREK_END

#endif
