/* SPDX-License-Identifier: Apache-2.0 */
/* The implementation of attention that TREK_CUDA_ATTENTION selects. */
#ifndef TREK_TENSOR_CUDA_ATTENTION_CHOICE_H
#define TREK_TENSOR_CUDA_ATTENTION_CHOICE_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

typedef enum trek_cuda_attention_kind {
    TREK_CUDA_ATTENTION_AUTO,  /* as wgmma, if its results agree with those of the kernels for all GPUs (attention_check.cu) */
    TREK_CUDA_ATTENTION_OWN,   /* the kernels for all GPUs */
    TREK_CUDA_ATTENTION_WGMMA, /* the kernels for sm_90a if the device supports them, those for all GPUs otherwise */
    TREK_CUDA_ATTENTION_CUDNN, /* cuDNN; as auto for calls that it does not support */
} trek_cuda_attention_kind;

/* The variable is read once. Any other value gives a warning and means `auto`. */
trek_cuda_attention_kind trek_cuda_attention_choice(void);

TREK_END

#endif
