/* SPDX-License-Identifier: Apache-2.0 */
/* Whose attention TREK_CUDA_ATTENTION asks for. */
#ifndef TREK_TENSOR_CUDA_ATTENTION_CHOICE_H
#define TREK_TENSOR_CUDA_ATTENTION_CHOICE_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

typedef enum trek_cuda_attention_kind {
    TREK_CUDA_ATTENTION_OWN,   /* own kernels, the best that the device takes */
    TREK_CUDA_ATTENTION_MMA,   /* own kernels without those of sm_90a */
    TREK_CUDA_ATTENTION_CUDNN, /* cuDNN, own kernels for what it does not take */
} trek_cuda_attention_kind;

/* Read once; a value that is none of the three is warned of, and is `own`. */
trek_cuda_attention_kind trek_cuda_attention_choice(void);

TREK_END

#endif
