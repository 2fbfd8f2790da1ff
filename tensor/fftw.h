/* SPDX-License-Identifier: Apache-2.0 */
/* Discrete Fourier transforms of lines by FFTW 3, or what has its interface (oneMKL), opened at the first of them: libfftw3f and
 * libfftw3, or what TREK_FFT names. Internal. */
#ifndef TREK_TENSOR_FFTW_H
#define TREK_TENSOR_FFTW_H

#include "tensor/types.h"

typedef enum trek_dft { TREK_DFT_REAL, TREK_DFT_TO_REAL, TREK_DFT_FORWARD, TREK_DFT_BACKWARD } trek_dft;

/* Whether there is one for f32 or f64; UNSUPPORTED, naming `what` and what to install. */
bool trek_fftw_there(const char *what, trek_dtype dtype);

/* `lines` lines of n numbers, unscaled: real ones to n / 2 + 1 complex ones, those back, or n complex ones, forward or backward.
 * Everything contiguous, complex numbers as pairs; lines on trek's threads. MEMORY. */
trek_status trek_fftw_run(trek_dtype dtype, trek_dft kind, int n, int64_t lines, void *from, void *to);

#endif
