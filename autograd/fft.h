/* SPDX-License-Identifier: Apache-2.0 */
/* Discrete Fourier transforms, as torch.fft. A complex number is a pair of real numbers in a last dimension of 2, as
 * torch.view_as_real returns it; dimensions are counted without that one. Lifetimes, NULL and errors are as in autograd/ops.h,
 * which includes this header.
 *
 * Transforms are computed by FFTW 3 (or oneMKL), which is opened at the first call. They fail with UNSUPPORTED if it is not
 * installed (libfftw3-single3, libfftw3-double3); TREK_FFT names another library. Dtypes: f32 and f64; integers are computed in
 * f32, and 16-bit dtypes fail with DTYPE. Tensors on a GPU are moved to the host, and results back. Gradients of all orders
 * exist. */
#ifndef TREK_AUTOGRAD_FFT_H
#define TREK_AUTOGRAD_FFT_H

#include "autograd/var.h"

TREK_BEGIN

/* Which transform is divided by the number of elements n: the inverse, both (each by the square root of n), or the forward
 * one. */
typedef enum trek_fft_norm { TREK_FFT_NORM_BACKWARD, TREK_FFT_NORM_ORTHO, TREK_FFT_NORM_FORWARD } trek_fft_norm;

/* -- transforms along one dimension or two. n is the number of elements of dim that are transformed: dim is first cut to n, or
 *    filled with zeros; 0 stands for all. Functions fail with ARGUMENT if n is negative, or if there are no elements. -- */
/* Computes the transform of pairs x [..., 2] along dim. */
TREK_API trek_var *trek_fft(trek_var *x, int64_t n, int dim, trek_fft_norm norm);
/* Computes the inverse of trek_fft of pairs x [..., 2] along dim. */
TREK_API trek_var *trek_ifft(trek_var *x, int64_t n, int dim, trek_fft_norm norm);
/* Computes the transform of real numbers x along dim: n / 2 + 1 pairs. */
TREK_API trek_var *trek_rfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm);
/* Computes the inverse of trek_rfft along dim: n real numbers from n / 2 + 1 pairs. If n is 0 it is 2 (pairs - 1). The imaginary
 * part of the first pair is ignored, and that of the last pair if n is even. */
TREK_API trek_var *trek_irfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm);
/* Computes trek_fft over the last two dimensions. */
TREK_API trek_var *trek_fft2(trek_var *x, trek_fft_norm norm);
/* Computes trek_ifft over the last two dimensions. */
TREK_API trek_var *trek_ifft2(trek_var *x, trek_fft_norm norm);
/* Computes the transform of real numbers over the last two dimensions, as trek_rfft along the last one. */
TREK_API trek_var *trek_rfft2(trek_var *x, trek_fft_norm norm);
/* Computes the inverse of trek_rfft2, as trek_irfft along the last dimension. */
TREK_API trek_var *trek_irfft2(trek_var *x, trek_fft_norm norm);

/* -- transforms over several dimensions, one after the other. dims lists them; trek_dims_all() stands for all dimensions or, if
 *    there are sizes, for as many of the last ones. sizes says how many elements of each dimension are transformed; a size of 0,
 *    or trek_dims_none() as sizes, stands for all. Functions fail with ARGUMENT if there are not as many sizes as dimensions, or
 *    if a dimension is listed twice. -- */
/* Computes the transform of pairs over dims. */
TREK_API trek_var *trek_fftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm);
/* Computes the inverse of trek_fftn over dims. */
TREK_API trek_var *trek_ifftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm);
/* Computes the transform of real numbers over dims. Along the last dimension that is listed it returns n / 2 + 1 pairs. */
TREK_API trek_var *trek_rfftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm);
/* Computes the inverse of trek_rfftn over dims, which returns real numbers. Along the last dimension that is listed a size of 0
 * stands for 2 (pairs - 1). */
TREK_API trek_var *trek_irfftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm);
/* Computes the transform along dim of a signal that equals its own mirror image, conjugated, so that the frequencies are real: n
 * real numbers from the first n / 2 + 1 pairs of the signal. n means what it means in trek_irfft. */
TREK_API trek_var *trek_hfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm);
/* Computes the inverse of trek_hfft along dim. n means what it means in trek_rfft. */
TREK_API trek_var *trek_ihfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm);

/* -- frequencies -- */
/* Moves frequency 0, which a transform puts first, to the middle of the listed dimensions (trek_dims_all(): all). It takes any
 * dtype on any device. If `pairs` is true the last dimension of x holds the pairs, and is neither counted nor shifted. */
TREK_API trek_var *trek_fftshift(trek_var *x, trek_dims_list dims, bool pairs);
/* Moves frequency 0 back to the beginning: the inverse of trek_fftshift with the same arguments. */
TREK_API trek_var *trek_ifftshift(trek_var *x, trek_dims_list dims, bool pairs);
/* Returns the frequency of each of the n elements of trek_fft, in cycles per unit of d, for samples that are d apart: constants
 * [n]. Fails with ARGUMENT if n is below 1, or if d is 0 or not finite, and with DTYPE if dtype is not floating. */
TREK_API trek_var *trek_fftfreq(int64_t n, double d, trek_dtype dtype, trek_device device);
/* Returns the frequency of each of the n / 2 + 1 elements of trek_rfft, in cycles per unit of d: constants [n / 2 + 1]. Errors
 * are those of trek_fftfreq. */
TREK_API trek_var *trek_rfftfreq(int64_t n, double d, trek_dtype dtype, trek_device device);

/* -- windows and frames of a signal. Windows are constants [n]. Their period is n steps if `periodic` is true, as transforms need
 *    it, and n - 1 steps otherwise. Window functions fail with ARGUMENT if n is negative, and with DTYPE if dtype is not
 *    floating. -- */
/* Returns Hann's window 0.5 - 0.5 cos(a), where a goes from 0 to 2 pi. */
TREK_API trek_var *trek_hann_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device);
/* Returns Hamming's window 0.54 - 0.46 cos(a), where a goes from 0 to 2 pi. */
TREK_API trek_var *trek_hamming_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device);
/* Returns Blackman's window 0.42 - 0.5 cos(a) + 0.08 cos(2 a), where a goes from 0 to 2 pi. */
TREK_API trek_var *trek_blackman_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device);
/* Returns Bartlett's window, which rises from 0 to 1 and falls to 0 linearly. */
TREK_API trek_var *trek_bartlett_window(int64_t n, bool periodic, trek_dtype dtype, trek_device device);
/* Returns Kaiser's window I0(beta sqrt(1 - t^2)) / I0(beta), for t from -1 to 1. Fails with ARGUMENT if |beta| is above
 * 100,000. */
TREK_API trek_var *trek_kaiser_window(int64_t n, bool periodic, double beta, trek_dtype dtype, trek_device device);

/* How a signal is padded at its ends. */
typedef enum trek_stft_pad {
    TREK_STFT_PAD_REFLECT,
    TREK_STFT_PAD_CONSTANT,
    TREK_STFT_PAD_REPLICATE,
    TREK_STFT_PAD_CIRCULAR
} trek_stft_pad;

/* Options of trek_stft and trek_istft. */
typedef struct trek_stft_opts {
    int64_t hop_length;     /* elements from one frame to the next; default n_fft / 4 */
    int64_t win_length;     /* elements of the window, which is filled with zeros to n_fft on both sides; default n_fft */
    trek_var *window;       /* [win_length], of the signal's dtype; default ones */
    bool no_center;         /* frame i begins at i hop_length; default: it is centred on it, in the signal padded by n_fft / 2 */
    trek_stft_pad pad_mode; /* how the signal is padded for that; default reflection */
    bool normalized;        /* divides by the square root of n_fft; default false */
    bool two_sided;         /* uses all n_fft frequencies instead of n_fft / 2 + 1; default false */
} trek_stft_opts;

/* Computes the short-time Fourier transform, as torch.stft: x [T] or [B, T] gives [.., frequencies, frames, 2]. Dtypes: f32 and
 * f64. opts may be NULL. Fails with SHAPE if the signal is shorter than a frame, or too short for its reflection. */
TREK_API trek_var *trek_stft(trek_var *x, int64_t n_fft, const trek_stft_opts *opts);
/* Computes the inverse of trek_stft by least squares, as torch.istft: overlapping frames are added and divided by the sum of the
 * squares of their windows. length is that of the signal, and 0 stands for all elements. With two_sided the second half of the
 * frequencies is ignored. opts may be NULL. The call synchronises with the GPU. Fails with ARGUMENT if hop_length is larger than
 * the window, or if all windows are 0 at an element. */
TREK_API trek_var *trek_istft(trek_var *x, int64_t n_fft, int64_t length, const trek_stft_opts *opts);

TREK_END

#endif
