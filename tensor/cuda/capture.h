/* SPDX-License-Identifier: Apache-2.0 */
/* Captures in pieces, and collectives in them: what capture.c and nccl.c need of each other. */
#ifndef TREK_TENSOR_CUDA_CAPTURE_H
#define TREK_TENSOR_CUDA_CAPTURE_H

#include "tensor/cuda/cuda.h"
#include "tensor/device_comm.h"

TREK_BEGIN

/* Functions for the table (tensor/device_comm.h). */
trek_status trek_cuda_capture_pause(trek_device device);
trek_status trek_cuda_capture_resume(trek_device device);
bool trek_cuda_capture_has(const trek_capture *capture, int piece);
trek_status trek_cuda_capture_replay_piece(trek_capture *capture, int piece, uint64_t rng_step);

/* Notes that the current piece contains a collective of the rank. */
void trek_cuda_capture_meets(trek_capture *capture, trek_device_rank *rank);
/* Called around the launch of such a piece. Fail with CANCELLED (the communicator was aborted) or COMM (the library
 * has found an error). */
trek_status trek_cuda_nccl_replay_begin(trek_device_rank *rank);
void trek_cuda_nccl_replay_end(trek_device_rank *rank, bool given);

TREK_END

#endif
