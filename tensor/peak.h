/* SPDX-License-Identifier: Apache-2.0 */
/* The highest speed of the machine's cores, measured, for comparison with a profile. */
#ifndef TREK_TENSOR_PEAK_H
#define TREK_TENSOR_PEAK_H

#include "tensor/status.h"

TREK_BEGIN

/* The result of trek_measure_peak. */
typedef struct trek_peak {
    int threads;  /* how many threads were measured together */
    /* Floating-point operations per second of f32 multiply-adds (2 operations each) with the widest vectors of the CPU, on
     * values in registers. */
    double flops;
    double bytes; /* bytes per second, read and written, when arrays are copied that are larger than every cache */
} trek_peak;

/* Measures the highest speed of the calling rank's threads, or of the process's threads (TREK_THREADS) if the caller is not
 * a rank. The first call for a number of threads measures, which takes about 0.3 s and 256 MiB of memory; later calls return
 * the same numbers. Each number is the best of several short rounds. Any thread may call it.
 * Errors: ARGUMENT if `peak` is NULL; MEMORY. */
TREK_API trek_status trek_measure_peak(trek_peak *peak);

TREK_END

#endif
