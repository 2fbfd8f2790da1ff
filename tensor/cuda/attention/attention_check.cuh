/* SPDX-License-Identifier: Apache-2.0 */
/* Checks whether attention with the sm_90a kernels can be trusted on a device. */
#ifndef TREK_TENSOR_CUDA_ATTENTION_ATTENTION_CHECK_CUH
#define TREK_TENSOR_CUDA_ATTENTION_ATTENTION_CHECK_CUH

#include "tensor/cuda/attention/attention.cuh"

/* Compares them with the kernels for all GPUs once for each device, dtype and class of depths (up to 64, up to 128),
 * on a small problem of its own, forward and backward, and keeps the result for the life of the process. The first
 * call waits for the device and uses some megabytes for a moment. Returns false, with the reason for
 * trek_cuda_refuse, if they differ (with one warning), if they do not accept the problem, or if nothing could be
 * compared. A first call in a capture cannot compare; they are then not used at all, so that captured and eager steps
 * have the same bits. Any thread may call it, and it leaves no error. */
bool trek_cuda_attention_agrees(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, int64_t depth);
/* Computes delta of a job, which backward reads: the sum of dy y over the depth (attention.cu). */
trek_status trek_cuda_attention_delta(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job,
                                      trek_dtype dtype);

#endif
