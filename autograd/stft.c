/* SPDX-License-Identifier: Apache-2.0 */
/* Fourier transforms of a signal's frames, and the signal back from them. */
#include <math.h>

#include "autograd/fft.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"

/* --- what both ways share ----------------------------------------------------------------------------- */

typedef struct frames {
    int64_t n, hop, count;
    trek_var *window; /* [n], or NULL for ones */
} frames;

/* Fills in the settings, with a window of n elements in the dtype of x. Returns false on failure. */
static bool settings(const char *name, trek_var *x, int64_t n, const trek_stft_opts *opts, frames *f)
{
    int64_t length = opts->win_length ? opts->win_length : n;
    f->n = n;
    f->hop = opts->hop_length ? opts->hop_length : n / 4;
    f->window = opts->window;
    if (n < 1 || f->hop < 1 || length < 1 || length > n)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "%s: n_fft: %lld, hop_length: %lld, win_length: %lld; must be at least 1, and win_length at most n_fft",
                         name, (long long)n, (long long)f->hop, (long long)length),
               false;
    trek_dtype dtype = trek_var_dtype(x);
    if (dtype != TREK_F32 && dtype != TREK_F64)
        return trek_fail(TREK_ERR_DTYPE, "%s: x: dtype %s; must be f32 or f64", name, trek_dtype_name(dtype)), false;
    if (f->window && (trek_var_ndim(f->window) != 1 || trek_var_size(f->window, 0) != length))
        return trek_fail(TREK_ERR_SHAPE, "%s: window: wrong shape; must have %lld elements", name, (long long)length), false;
    if (f->window && trek_var_dtype(f->window) != dtype)
        return trek_fail(TREK_ERR_DTYPE, "%s: window: dtype %s; the signal has %s", name,
                         trek_dtype_name(trek_var_dtype(f->window)), trek_dtype_name(dtype)),
               false;
    if (length == n)
        return true;
    if (!f->window) {
        trek_tensor *ones = trek_tensor_full(trek_dims(length), 1, dtype, trek_var_device(x));
        f->window = ones ? trek_var_from(ones) : NULL;
    }
    int64_t left = (n - length) / 2;
    f->window = trek_pad(f->window, trek_dims(left, n - length - left), TREK_PAD_MODE_CONSTANT, 0);
    return f->window != NULL;
}

/* Returns the positions of element j in frame i, i hop + j, for all frames in order. */
static trek_var *places(const frames *f, trek_device device)
{
    trek_tensor *made = trek_tensor_empty(trek_dims(f->count * f->n), TREK_I64, trek_cpu(0));
    if (!made)
        return NULL;
    int64_t *to = (void *)made->data;
    for (int64_t i = 0; i < f->count; i++)
        for (int64_t j = 0; j < f->n; j++)
            *to++ = i * f->hop + j;
    trek_var *v = trek_var_from(made);
    return device.type == TREK_CPU ? v : trek_to(v, device);
}

/* --- there -------------------------------------------------------------------------------------------- */

/* Returns the signal with half a frame added at both ends. */
static trek_var *centered(trek_var *lines, int64_t n, trek_stft_pad mode)
{
    static const trek_pad_mode modes[] = { TREK_PAD_MODE_REFLECT, TREK_PAD_MODE_CONSTANT, TREK_PAD_MODE_REPLICATE,
                                           TREK_PAD_MODE_CIRCULAR };
    if (mode < TREK_STFT_PAD_REFLECT || mode > TREK_STFT_PAD_CIRCULAR)
        return trek_fail_null(TREK_ERR_ARGUMENT, "stft: .pad_mode: %d; must be a value of trek_stft_pad", (int)mode);
    return trek_pad(lines, trek_dims(n / 2, n / 2), modes[mode], 0);
}

/* Returns the other half of a real signal's frequencies: the conjugates in reverse order. */
static trek_var *mirrored(trek_var *made, int64_t n)
{
    const double signs[] = { 1, -1 };
    trek_tensor *mirror = made ? trek_tensor_from_data(signs, trek_dims(2), TREK_F64, trek_cpu(0)) : NULL;
    trek_var *by = mirror ? trek_cast(trek_var_from(mirror), trek_var_dtype(made)) : NULL;
    if (!by)
        return NULL;
    by = trek_var_device(made).type == TREK_CPU ? by : trek_to(by, trek_var_device(made));
    trek_var *rest = trek_flip(trek_narrow(made, 2, 1, (n - 1) / 2), trek_dims(2));
    return trek_cat((trek_var *[]){ made, trek_mul(rest, by) }, 2, 2);
}

trek_var *trek_stft(trek_var *x, int64_t n_fft, const trek_stft_opts *opts)
{
    static const trek_stft_opts defaults;
    frames f;
    if (!x)
        return trek_fail_missing("stft", "variable"), NULL;
    int ndim = trek_var_ndim(x);
    opts = opts ? opts : &defaults;
    if (ndim != 1 && ndim != 2)
        return trek_fail_null(TREK_ERR_SHAPE, "stft: x: wrong shape; must be a signal [T] or [B, T]");
    if (!settings("stft", x, n_fft, opts, &f))
        return NULL;
    trek_var *lines = ndim == 1 ? trek_unsqueeze(x, 0) : x;
    if (lines && !opts->no_center)
        lines = centered(lines, n_fft, opts->pad_mode);
    if (!lines)
        return NULL;
    int64_t length = trek_var_size(lines, 1), rows = trek_var_size(lines, 0);
    if (length < n_fft)
        return trek_fail_null(TREK_ERR_SHAPE, "stft: x: a signal of %lld; must be at least n_fft, %lld", (long long)length,
                              (long long)n_fft);
    f.count = 1 + (length - n_fft) / f.hop;
    trek_var *cut = trek_index_select(lines, 1, places(&f, trek_var_device(lines)));
    cut = trek_reshape(cut, trek_dims(rows, f.count, n_fft));
    cut = f.window ? trek_mul(cut, f.window) : cut;
    trek_fft_norm norm = opts->normalized ? TREK_FFT_NORM_ORTHO : TREK_FFT_NORM_BACKWARD;
    trek_var *made = trek_rfft(cut, 0, 2, norm);
    made = opts->two_sided ? mirrored(made, n_fft) : made;
    made = trek_transpose(made, 1, 2);
    return ndim == 1 ? trek_squeeze(made, 0) : made;
}

/* --- and back ----------------------------------------------------------------------------------------- */

/* Adds frames [rows, count, n] where they overlap, giving [rows, length]. */
static trek_var *overlapped(const frames *f, trek_var *cut, int64_t length)
{
    int64_t rows = trek_var_size(cut, 0);
    trek_tensor *zeros = trek_tensor_zeros(trek_dims(rows, length), trek_var_dtype(cut), trek_var_device(cut));
    trek_var *flat = trek_reshape(cut, trek_dims(rows, f->count * f->n));
    return zeros ? trek_index_add(trek_var_from(zeros), 1, places(f, trek_var_device(cut)), flat) : NULL;
}

/* Returns the sum of the squared windows, [1, length]. */
static trek_var *envelope(const frames *f, trek_var *cut, int64_t length)
{
    trek_var *square = f->window ? trek_square(f->window) : trek_ones_like(trek_select(trek_select(cut, 0, 0), 0, 0));
    return overlapped(f, trek_expand(square, trek_dims(1, f->count, f->n)), length);
}

trek_var *trek_istft(trek_var *x, int64_t n_fft, int64_t length, const trek_stft_opts *opts)
{
    static const trek_stft_opts defaults;
    frames f;
    if (!x)
        return trek_fail_missing("istft", "variable"), NULL;
    int ndim = trek_var_ndim(x);
    opts = opts ? opts : &defaults;
    if ((ndim != 3 && ndim != 4) || trek_var_size(x, -1) != 2)
        return trek_fail_null(TREK_ERR_SHAPE, "istft: x: wrong shape; must be pairs [F, frames, 2] or [B, F, frames, 2]");
    if (!settings("istft", x, n_fft, opts, &f))
        return NULL;
    if (f.hop > (opts->win_length ? opts->win_length : n_fft))
        return trek_fail_null(TREK_ERR_ARGUMENT, "istft: hop_length: %lld is beyond the window; must be at most its length",
                              (long long)f.hop);
    int64_t half = n_fft / 2 + 1, edge = opts->no_center ? 0 : n_fft / 2;
    trek_var *lines = ndim == 3 ? trek_unsqueeze(x, 0) : x;
    f.count = lines ? trek_var_size(lines, 2) : 0;
    if (!lines || trek_var_numel(lines) == 0 || trek_var_size(lines, 1) != (opts->two_sided ? n_fft : half))
        return !lines ? NULL
                      : trek_fail_null(TREK_ERR_SHAPE, "istft: x: %lld frequencies and %lld frames do not fit n_fft",
                                       (long long)trek_var_size(lines, 1), (long long)f.count);
    int64_t all = n_fft + f.hop * (f.count - 1), end = length ? edge + length : all - edge, kept = end < all ? end : all;
    if (length < 0 || kept <= edge)
        return trek_fail_null(TREK_ERR_ARGUMENT, "istft: %lld elements are left; must be at least 1", (long long)(kept - edge));
    trek_var *cut = trek_transpose(trek_narrow(lines, 1, 0, half), 1, 2);
    cut = trek_irfft(cut, n_fft, 2, opts->normalized ? TREK_FFT_NORM_ORTHO : TREK_FFT_NORM_BACKWARD);
    cut = f.window ? trek_mul(cut, f.window) : cut;
    trek_var *sum = cut ? trek_narrow(overlapped(&f, cut, all), 1, edge, kept - edge) : NULL;
    trek_var *by = sum ? trek_narrow(envelope(&f, cut, all), 1, edge, kept - edge) : NULL;
    trek_var *least = trek_min(by ? trek_var_detach(by) : NULL, trek_dims_all(), false);
    if (!least)
        return NULL;
    if (trek_var_item(least) < 1e-11)
        return trek_fail_null(TREK_ERR_ARGUMENT, "istft: window: it leaves an element out: the squares add up to 0 there");
    trek_var *made = trek_div(sum, by);
    if (end > kept)
        made = trek_pad(made, trek_dims(0, end - kept), TREK_PAD_MODE_CONSTANT, 0);
    return ndim == 3 ? trek_squeeze(made, 0) : made;
}
