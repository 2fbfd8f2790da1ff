/* SPDX-License-Identifier: Apache-2.0 */
/* Discrete Fourier transforms of lines by FFTW 3, or a library with its interface (oneMKL): libfftw3f and libfftw3,
 * or what TREK_FFT names. The first transform opens it. */
#ifndef TREK_TENSOR_FFTW_H
#define TREK_TENSOR_FFTW_H

#include "tensor/types.h"

typedef enum trek_dft { TREK_DFT_REAL, TREK_DFT_TO_REAL, TREK_DFT_FORWARD, TREK_DFT_BACKWARD } trek_dft;

/* Returns whether it is available for f32 or f64. Otherwise sets UNSUPPORTED, which names `what` and what to install. */
bool trek_fftw_there(const char *what, trek_dtype dtype);

/* Transforms `lines` lines of n numbers without scaling: n real numbers to n / 2 + 1 complex ones, those back, or n
 * complex ones, forward or backward. Everything is contiguous, with complex numbers as pairs. Lines are processed on
 * trek's threads. Fails with MEMORY. */
trek_status trek_fftw_run(trek_dtype dtype, trek_dft kind, int n, int64_t lines, void *from, void *to);

#endif
