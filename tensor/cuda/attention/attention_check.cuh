/* SPDX-License-Identifier: Apache-2.0 */
/* Whether attention by the kernels for sm_90a may be trusted on a device. */
#ifndef TREK_TENSOR_CUDA_ATTENTION_ATTENTION_CHECK_CUH
#define TREK_TENSOR_CUDA_ATTENTION_ATTENTION_CHECK_CUH

#include "tensor/cuda/attention/attention.cuh"

/* Compares them once for each device, dtype and class of depths (up to 64, up to 128) with the kernels for all GPUs, on a small
 * problem of its own, forward and backward, and keeps what came out for as long as the process runs. The first call waits for
 * the device and takes some megabytes for a moment. False by trek_cuda_refuse: they differ (warned of once), they do not take
 * the problem, or nothing could be compared; a first call in a capture cannot compare, and then they are not used at all, so that
 * captured and eager steps have the same bits. Any thread; no error is left. */
bool trek_cuda_attention_agrees(const trek_op_call *call, trek_cuda_queue *queue, trek_dtype dtype, int64_t depth);
/* delta of a job, which backward reads: the sum of dy y over the depth (attention.cu). */
trek_status trek_cuda_attention_delta(const trek_op_call *call, trek_cuda_queue *queue, const attention_job &job,
                                      trek_dtype dtype);

#endif
