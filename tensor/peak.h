/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine's cores can do at best, measured: what a profile compares with. */
#ifndef TREK_TENSOR_PEAK_H
#define TREK_TENSOR_PEAK_H

#include "tensor/status.h"

TREK_BEGIN

typedef struct trek_peak {
    int threads;
    double flops; /* a second, of f32 multiply-adds (2 each) of the widest vectors that the CPU has, in registers alone */
    double bytes; /* a second, read and written, copying arrays that no cache holds */
} trek_peak;

/* Of the threads of the calling rank (else of the process: TREK_THREADS). The first call for a number of threads
 * measures (about 0.3 s, 256 MiB of memory meanwhile), later ones give the same numbers. Each is the best of several short
 * rounds. ARGUMENT, or MEMORY. From any thread. */
TREK_API trek_status trek_measure_peak(trek_peak *peak);

TREK_END

#endif
