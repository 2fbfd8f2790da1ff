/* SPDX-License-Identifier: Apache-2.0 */
/* Which implementation of attention TREK_CUDA_ATTENTION asks for. */
#ifndef TREK_TENSOR_CUDA_ATTENTION_CHOICE_H
#define TREK_TENSOR_CUDA_ATTENTION_CHOICE_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

typedef enum trek_cuda_attention_kind {
    TREK_CUDA_ATTENTION_AUTO,  /* as wgmma where its results agree with those of the kernels for all GPUs (attention_check.cu) */
    TREK_CUDA_ATTENTION_OWN,   /* the kernels for all GPUs */
    TREK_CUDA_ATTENTION_WGMMA, /* those for sm_90a where the device takes them, those for all GPUs for the rest */
    TREK_CUDA_ATTENTION_CUDNN, /* cuDNN; as auto for what it does not take */
} trek_cuda_attention_kind;

/* The variable is read once. Any other value gives a warning and means `auto`. */
trek_cuda_attention_kind trek_cuda_attention_choice(void);

TREK_END

#endif
