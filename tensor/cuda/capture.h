/* SPDX-License-Identifier: Apache-2.0 */
/* Captures in pieces, and collectives in them: what capture.c and nccl.c have of each other. */
#ifndef TREK_TENSOR_CUDA_CAPTURE_H
#define TREK_TENSOR_CUDA_CAPTURE_H

#include "tensor/cuda/cuda.h"
#include "tensor/device_comm.h"

TREK_BEGIN

/* The table's (tensor/device_comm.h). */
trek_status trek_cuda_capture_pause(trek_device device);
trek_status trek_cuda_capture_resume(trek_device device);
bool trek_cuda_capture_has(const trek_capture *capture, int piece);
trek_status trek_cuda_capture_replay_piece(trek_capture *capture, int piece, uint64_t rng_step);

/* A collective of the rank is in the piece that is under way. */
void trek_cuda_capture_meets(trek_capture *capture, trek_device_rank *rank);
/* Around the launch of such a piece. CANCELLED: the communicator was aborted; COMM: the library has found an error. */
trek_status trek_cuda_nccl_replay_begin(trek_device_rank *rank);
void trek_cuda_nccl_replay_end(trek_device_rank *rank, bool given);

TREK_END

#endif
