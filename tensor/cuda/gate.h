/* SPDX-License-Identifier: Apache-2.0 */
/* Between the collectives of several ranks of this process and calls of the driver that wait for devices. */
#ifndef TREK_TENSOR_CUDA_GATE_H
#define TREK_TENSOR_CUDA_GATE_H

#include "tensor/cuda/cuda.h"

TREK_BEGIN

/* Of n ranks that make the same calls: from the first that begins one to the last that has given it to its device, what the
 * first has given waits on its device for the others, whose launches the driver must not hold up. NULL and MEMORY. */
typedef struct trek_cuda_gate trek_cuda_gate;
trek_cuda_gate *trek_cuda_gate_new(int n);
void trek_cuda_gate_free(trek_cuda_gate *gate);

/* Around a rank's launch. begin waits for calls that have passed; NULL: one rank alone, which holds up nobody. */
void trek_cuda_gate_begin(trek_cuda_gate *gate, int rank);
void trek_cuda_gate_end(trek_cuda_gate *gate, int rank);
/* For good: a rank that was aborted gives nothing any more. */
void trek_cuda_gate_open(trek_cuda_gate *gate);

/* Around calls that may wait for devices while the driver's locks are held (cudaMalloc, cudaFree, cudaHostAlloc): waits until
 * no launch is half done. Not within each other. */
void trek_cuda_pass(void);
void trek_cuda_passed(void);

TREK_END

#endif
