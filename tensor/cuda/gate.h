/* SPDX-License-Identifier: Apache-2.0 */
/* Coordinates the collectives of several ranks of this process with calls of the driver that wait for devices. */
#ifndef TREK_TENSOR_CUDA_GATE_H
#define TREK_TENSOR_CUDA_GATE_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* Makes a gate for n ranks that make the same calls. From when the first rank begins a call until the last one has
 * launched it, the first one's work waits on its device for the others, whose launches the driver must not delay.
 * Returns NULL on failure (MEMORY). */
typedef struct trek_cuda_gate trek_cuda_gate;
trek_cuda_gate *trek_cuda_gate_new(int n);
void trek_cuda_gate_free(trek_cuda_gate *gate);

/* Called around a rank's launch. begin waits for calls that have passed. NULL: a single rank, which delays nobody. */
void trek_cuda_gate_begin(trek_cuda_gate *gate, int rank);
void trek_cuda_gate_end(trek_cuda_gate *gate, int rank);
/* Opens the gate for good: a rank that was aborted launches nothing any more. */
void trek_cuda_gate_open(trek_cuda_gate *gate);

/* Called around calls that may wait for devices while the driver's locks are held (cudaMalloc, cudaFree,
 * cudaHostAlloc): waits until no launch is incomplete. They must not be nested. */
void trek_cuda_pass(void);
void trek_cuda_passed(void);

TREK_END

#endif
