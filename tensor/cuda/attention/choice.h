/* SPDX-License-Identifier: Apache-2.0 */
/* Whose attention TREK_CUDA_ATTENTION asks for. */
#ifndef TREK_TENSOR_CUDA_ATTENTION_CHOICE_H
#define TREK_TENSOR_CUDA_ATTENTION_CHOICE_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

typedef enum trek_cuda_attention_kind {
    TREK_CUDA_ATTENTION_OWN,   /* own kernels for all GPUs */
    TREK_CUDA_ATTENTION_WGMMA, /* own kernels for sm_90a where the device takes them, those for all GPUs for the rest */
    TREK_CUDA_ATTENTION_CUDNN, /* cuDNN, own kernels for what it does not take */
} trek_cuda_attention_kind;

/* Read once; a value that is none of the three is warned of, and is `own`. */
trek_cuda_attention_kind trek_cuda_attention_choice(void);

TREK_END

#endif
