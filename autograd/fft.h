/* SPDX-License-Identifier: Apache-2.0 */
/* Discrete Fourier transforms, torch.fft's. There is no complex dtype: complex numbers are pairs, a last dimension of 2, as
 * torch.view_as_real gives them; dimensions are counted without it. Lifetimes, NULL and errors as in autograd/ops.h.
 *
 * By FFTW 3 (or oneMKL), which is opened at the first call: UNSUPPORTED where it is not installed (libfftw3-single3,
 * libfftw3-double3; TREK_FFT names another library). f32 and f64; integers as f32 (DTYPE: 16 bits). What lies on a GPU is moved
 * to the host for it and the result back. Gradients of all orders. */
#ifndef TREK_AUTOGRAD_FFT_H
#define TREK_AUTOGRAD_FFT_H

#include "autograd/var.h"

TREK_BEGIN

/* What is divided by the number of elements: the inverse, each by its root, or the forward transform. */
typedef enum trek_fft_norm { TREK_FFT_BACKWARD, TREK_FFT_ORTHO, TREK_FFT_FORWARD } trek_fft_norm;

/* n: how many elements of dim are transformed, which is cut or filled with zeros before; 0: all. ARGUMENT: below 0, or none. */
TREK_API trek_var *trek_fft(trek_var *x, int64_t n, int dim, trek_fft_norm norm);  /* x [..., 2] */
TREK_API trek_var *trek_ifft(trek_var *x, int64_t n, int dim, trek_fft_norm norm); /* x [..., 2] */
TREK_API trek_var *trek_rfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm); /* real x: n / 2 + 1 pairs */
/* Its inverse: n real numbers of n / 2 + 1 pairs; 0: twice as many as there are, less 2. Imaginary parts of the first one, and of
 * the last one of an even n, are not looked at. */
TREK_API trek_var *trek_irfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm);
/* Over the last two dimensions. */
TREK_API trek_var *trek_fft2(trek_var *x, trek_fft_norm norm);
TREK_API trek_var *trek_ifft2(trek_var *x, trek_fft_norm norm);
TREK_API trek_var *trek_rfft2(trek_var *x, trek_fft_norm norm);
TREK_API trek_var *trek_irfft2(trek_var *x, trek_fft_norm norm);

/* They transform these dimensions, one after the other. dims trek_dims_none() stands for all dimensions or, if there are sizes,
 * for as many of the last ones. sizes says how many elements of each dimension are transformed; a size of 0, or trek_dims_none()
 * as sizes, stands for all. Along the last dimension that is listed, rfftn returns pairs and irfftn returns real numbers; irfftn
 * takes a size of 0 for 2 (pairs - 1). ARGUMENT: the number of sizes is not that of the dimensions; a dimension is listed twice.
 */
TREK_API trek_var *trek_fftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm);
TREK_API trek_var *trek_ifftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm);
TREK_API trek_var *trek_rfftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm);
TREK_API trek_var *trek_irfftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm);
/* hfft transforms a signal that equals its own mirror image, conjugated, so that the frequencies are real: from the first
 * n / 2 + 1 pairs of the signal it returns n real numbers. ihfft is its inverse. n means what it means in irfft and rfft. */
TREK_API trek_var *trek_hfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm);
TREK_API trek_var *trek_ihfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm);

/* -- frequencies -- */
/* fftshift moves frequency 0, which a transform puts first, to the middle of these dimensions (trek_dims_none(): all);
 * ifftshift moves it back. Both take any dtype on any device. If `pairs` is true, the last dimension of x holds the pairs: it is
 * not counted and not shifted. */
TREK_API trek_var *trek_fftshift(trek_var *x, trek_dims_list dims, bool pairs);
TREK_API trek_var *trek_ifftshift(trek_var *x, trek_dims_list dims, bool pairs);
/* The frequency, in cycles per unit of d, of each element that fft (rfft) returns for n samples which are d apart: constants
 * of shape [n] ([n / 2 + 1]). ARGUMENT: n is below 1; d is 0 or not finite. DTYPE: dtype is no floating one. */
TREK_API trek_var *trek_fftfreq(int64_t n, double d, trek_dtype dtype, trek_device device);
TREK_API trek_var *trek_rfftfreq(int64_t n, double d, trek_dtype dtype, trek_device device);

/* -- frames of a signal -- */
/* 0.5 - 0.5 cos, 0.54 - 0.46 cos over one turn of n steps (periodic: what transforms want) or of n - 1: constants [n]. */
TREK_API trek_var *trek_hann_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device);
TREK_API trek_var *trek_hamming_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device);
/* Blackman's window is 0.42 - 0.5 cos(a) + 0.08 cos(2 a) over one turn of a; Bartlett's is a triangle; Kaiser's is
 * I0(beta sqrt(1 - t^2)) / I0(beta) for t from -1 to 1 (ARGUMENT: |beta| is above 100,000). */
TREK_API trek_var *trek_blackman_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device);
TREK_API trek_var *trek_bartlett_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device);
TREK_API trek_var *trek_kaiser_window(int64_t n, bool periodic, double beta, trek_dtype dtype, trek_device device);

typedef enum trek_stft_pad { TREK_STFT_REFLECT, TREK_STFT_CONSTANT, TREK_STFT_REPLICATE, TREK_STFT_CIRCULAR } trek_stft_pad;

typedef struct trek_stft_opts {
    int64_t hop_length;     /* between frames; default n_fft / 4 */
    int64_t win_length;     /* of the window, which zeros fill up to n_fft on both sides; default n_fft */
    trek_var *window;       /* [win_length], of the signal's dtype; default ones */
    bool no_center;         /* frame i begins at i hop_length; else its middle is there, of the signal padded by n_fft / 2 */
    trek_stft_pad pad_mode; /* of that padding */
    bool normalized;        /* divided by the root of n_fft */
    bool two_sided;         /* all n_fft frequencies, not n_fft / 2 + 1 */
} trek_stft_opts;

/* As torch.stft: x [T] or [B, T], of f32 or f64 (DTYPE) -> [.., frequencies, frames, 2]. opts may be NULL. SHAPE: a signal
 * shorter than a frame, or than its reflection. */
TREK_API trek_var *trek_stft(trek_var *x, int64_t n_fft, const trek_stft_opts *opts);
/* Its inverse by least squares, as torch.istft: frames are added where they overlap and divided by the sum of their windows'
 * squares. length: of the signal; 0: all there is. two_sided: the second half is not looked at. ARGUMENT: a hop beyond the
 * window, an element that all windows leave out, for which a GPU is waited for. */
TREK_API trek_var *trek_istft(trek_var *x, int64_t n_fft, int64_t length, const trek_stft_opts *opts);

TREK_END

#endif
