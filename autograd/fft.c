/* SPDX-License-Identifier: Apache-2.0 */
/* Fourier transforms of lines on the tape. They are linear: the gradient is the opposite transform. For real lines,
 * each frequency between the ends stands for two. */
#include "autograd/fft.h"

#include <limits.h>
#include <math.h>

#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/fftw.h"
#include "tensor/pages.h"

typedef struct settings {
    trek_dft kind;
    int n;
} settings;

static trek_var *transform(trek_var *x, trek_dft kind, int64_t n);

/* Multiplies x [..., n / 2 + 1, 2] by `middle`, except for the frequencies that stand only for themselves. */
static trek_var *between_ends(trek_var *x, int n, double middle)
{
    int64_t half = n / 2 + 1;
    trek_tensor *factors = trek_tensor_full(trek_dims(half, 1), middle, TREK_F64, trek_cpu(0));
    if (!factors)
        return NULL;
    ((double *)factors->data)[0] = 1;
    if (n % 2 == 0)
        ((double *)factors->data)[half - 1] = 1;
    return trek_mul(x, trek_cast(trek_var_from(factors), trek_var_dtype(x)));
}

static trek_status forward(trek_function_context *context, trek_var *const *in, int n_in, trek_var **out, int n_out)
{
    (void)n_in, (void)n_out;
    const settings *s = trek_function_data(context);
    trek_var *x = trek_tensor_is_kept(in[0]->data) ? trek_clone(in[0]) : trek_contiguous(in[0]);
    if (!x)
        return trek_error_status();
    trek_shape shape = trek_var_shape(x);
    int64_t half = s->n / 2 + 1, each = s->kind == TREK_DFT_REAL ? s->n : s->kind == TREK_DFT_TO_REAL ? 2 * half
        : 2 * (int64_t)s->n;
    if (s->kind == TREK_DFT_REAL) {
        shape.sizes[shape.ndim - 1] = half;
        shape.sizes[shape.ndim++] = 2;
    } else if (s->kind == TREK_DFT_TO_REAL) {
        shape.sizes[--shape.ndim - 1] = s->n;
    }
    trek_tensor *made = trek_tensor_empty(shape, trek_var_dtype(x), trek_var_device(x));
    out[0] = made ? trek_var_from(made) : NULL;
    return out[0] ? trek_fftw_run(trek_var_dtype(x), s->kind, s->n, trek_var_numel(x) / each, x->data->data, made->data)
                  : trek_error_status();
}

static trek_status backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **to, int n_in)
{
    (void)n, (void)n_in;
    const settings *s = trek_function_data(context);
    if (s->kind == TREK_DFT_REAL)
        to[0] = transform(between_ends(grads[0], s->n, 0.5), TREK_DFT_TO_REAL, s->n);
    else if (s->kind == TREK_DFT_TO_REAL)
        to[0] = between_ends(transform(grads[0], TREK_DFT_REAL, s->n), s->n, 2);
    else
        to[0] = transform(grads[0], s->kind == TREK_DFT_FORWARD ? TREK_DFT_BACKWARD : TREK_DFT_FORWARD, s->n);
    return trek_error_status();
}

static const trek_function dft_function = { .name = "fft", .forward = forward, .backward = backward, .free = trek_free };

/* Transforms the last dimension (the one before the pairs), unscaled. */
static trek_var *transform(trek_var *x, trek_dft kind, int64_t n)
{
    settings *s = x ? trek_alloc(sizeof *s) : NULL;
    if (!s)
        return NULL;
    *s = (settings){ .kind = kind, .n = (int)n };
    return trek_function_apply_one(&dft_function, s, &x, 1);
}

/* --- the calls --------------------------------------------------------------------------------------- */

/* Returns x in the dtype that is transformed, on the host, or NULL on failure. */
static trek_var *taken(const char *name, trek_var *x, bool pairs, trek_fft_norm norm)
{
    char text[TREK_SHAPE_TEXT];
    if (!x)
        return trek_fail_missing(name, "variable"), NULL;
    int least = pairs ? 2 : 1;
    if (trek_var_ndim(x) < least || (pairs && trek_var_size(x, -1) != 2) || (!pairs && trek_var_ndim(x) == TREK_MAX_DIMS))
        return trek_fail_null(TREK_ERR_SHAPE, "%s: x: %s; must be %s", name, trek_tensor_shape_text(x->data, text),
                              pairs ? "pairs [..., n, 2]" : "of 1 to 7 dimensions");
    if (norm < TREK_FFT_NORM_BACKWARD || norm > TREK_FFT_NORM_FORWARD)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: norm: %d; must be a value of trek_fft_norm", name, (int)norm);
    trek_dtype dtype = trek_var_dtype(x);
    if (trek_dtype_is_16bit(dtype))
        return trek_fail_null(TREK_ERR_DTYPE, "%s: x: dtype %s; must be f32 or f64", name, trek_dtype_name(dtype));
    if (!trek_fftw_there(name, dtype))
        return NULL;
    x = trek_dtype_is_float(dtype) ? x : trek_cast(x, TREK_F32);
    return x && trek_var_device(x).type != TREK_CPU ? trek_to(x, trek_cpu(0)) : x;
}

/* Returns x with n elements in dimension d. */
static trek_var *resized(trek_var *x, int d, int64_t n)
{
    int64_t have = trek_var_size(x, d);
    if (have >= n)
        return have == n ? x : trek_narrow(x, d, 0, n);
    trek_shape shape = trek_var_shape(x);
    shape.sizes[d] = n - have;
    trek_tensor *zeros = trek_tensor_zeros(shape, trek_var_dtype(x), trek_var_device(x));
    return zeros ? trek_cat((trek_var *[]){ x, trek_var_from(zeros) }, 2, d) : NULL;
}

static double scale_of(trek_fft_norm norm, bool inverse, int64_t n)
{
    if (norm == TREK_FFT_NORM_ORTHO)
        return 1 / sqrt((double)n);
    return inverse == (norm == TREK_FFT_NORM_BACKWARD) ? 1 / (double)n : 1;
}

static trek_var *along(const char *name, trek_var *x, trek_dft kind, int64_t n, int dim, trek_fft_norm norm)
{
    bool pairs = kind != TREK_DFT_REAL, inverse = kind == TREK_DFT_BACKWARD || kind == TREK_DFT_TO_REAL;
    trek_var *y = taken(name, x, pairs, norm);
    if (!y)
        return NULL;
    int last = trek_var_ndim(y) - 1 - pairs, d = trek_normalize_dim(dim, last + 1, name);
    if (d < 0)
        return NULL;
    int64_t size = trek_var_size(y, d), count = n != 0 ? n : kind == TREK_DFT_TO_REAL ? 2 * (size - 1) : size;
    if (count < 1 || count > INT_MAX / 4)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: n: %lld elements; must be at least 1", name, (long long)count);
    y = resized(y, d, kind == TREK_DFT_TO_REAL ? count / 2 + 1 : count);
    y = transform(d == last ? y : trek_transpose(y, d, last), kind, count);
    y = d == last ? y : trek_transpose(y, d, last);
    double scale = scale_of(norm, inverse, count);
    y = scale == 1 ? y : trek_mul_scalar(y, scale);
    return y && trek_var_device(x).type != TREK_CPU ? trek_to(y, trek_var_device(x)) : y;
}

trek_var *trek_fft(trek_var *x, int64_t n, int dim, trek_fft_norm norm)
{
    return along("fft", x, TREK_DFT_FORWARD, n, dim, norm);
}
trek_var *trek_ifft(trek_var *x, int64_t n, int dim, trek_fft_norm norm)
{
    return along("ifft", x, TREK_DFT_BACKWARD, n, dim, norm);
}
trek_var *trek_rfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm) { return along("rfft", x, TREK_DFT_REAL, n, dim, norm); }
trek_var *trek_irfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm)
{
    return along("irfft", x, TREK_DFT_TO_REAL, n, dim, norm);
}

/* --- over several dimensions ---------------------------------------------------------------------------- */

/* Determines the dimensions, from the first one on, and how many elements of each are transformed. Returns false on
 * failure. */
static bool several_dims(const char *name, trek_var *x, bool pairs, trek_shape *sizes, trek_dims_list *dims)
{
    if (!x)
        return trek_fail_missing(name, "variable"), false;
    int ndim = trek_var_ndim(x) - pairs, count = dims->ndim > 0 ? dims->ndim : sizes->ndim > 0 ? sizes->ndim : ndim;
    unsigned seen = 0;
    if (count > ndim || (sizes->ndim > 0 && sizes->ndim != count))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: sizes: %d sizes for %d of %d dimensions; must be equal", name, sizes->ndim,
                         count, ndim),
               false;
    for (int k = 0; k < count; k++) {
        int d = trek_normalize_dim(dims->ndim > 0 ? dims->sizes[k] : ndim - count + k, ndim, name);
        if (d < 0)
            return false;
        if (seen >> d & 1)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: dims: dimension %d occurs twice", name, d), false;
        seen |= 1u << d;
        dims->sizes[k] = d;
        sizes->sizes[k] = sizes->ndim > 0 ? sizes->sizes[k] : 0;
    }
    dims->ndim = sizes->ndim = count;
    return true;
}

/* Applies `kind` along all dimensions. A real input dimension (the last one listed) comes first; a real result
 * dimension comes last. */
static trek_var *several(const char *name, trek_var *x, trek_dft kind, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm)
{
    bool real = kind == TREK_DFT_REAL, to_real = kind == TREK_DFT_TO_REAL;
    if (!several_dims(name, x, !real, &sizes, &dims))
        return NULL;
    int last = dims.ndim - 1;
    trek_dft others = kind == TREK_DFT_FORWARD || real ? TREK_DFT_FORWARD : TREK_DFT_BACKWARD;
    if (last < 0)
        return real || to_real ? trek_fail_null(TREK_ERR_ARGUMENT, "%s: dims: 0 dimensions; must be at least 1", name)
                               : trek_clone(taken(name, x, true, norm));
    if (real)
        x = along(name, x, kind, sizes.sizes[last], (int)dims.sizes[last], norm);
    for (int k = 0; x && k <= last - (real || to_real); k++)
        x = along(name, x, others, sizes.sizes[k], (int)dims.sizes[k], norm);
    return x && to_real ? along(name, x, kind, sizes.sizes[last], (int)dims.sizes[last], norm) : x;
}

trek_var *trek_fftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm)
{
    return several("fftn", x, TREK_DFT_FORWARD, sizes, dims, norm);
}
trek_var *trek_ifftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm)
{
    return several("ifftn", x, TREK_DFT_BACKWARD, sizes, dims, norm);
}
trek_var *trek_rfftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm)
{
    return several("rfftn", x, TREK_DFT_REAL, sizes, dims, norm);
}
trek_var *trek_irfftn(trek_var *x, trek_shape sizes, trek_dims_list dims, trek_fft_norm norm)
{
    return several("irfftn", x, TREK_DFT_TO_REAL, sizes, dims, norm);
}

trek_var *trek_fft2(trek_var *x, trek_fft_norm norm)
{
    return several("fft2", x, TREK_DFT_FORWARD, trek_dims_none(), trek_dims(-2, -1), norm);
}
trek_var *trek_ifft2(trek_var *x, trek_fft_norm norm)
{
    return several("ifft2", x, TREK_DFT_BACKWARD, trek_dims_none(), trek_dims(-2, -1), norm);
}
trek_var *trek_rfft2(trek_var *x, trek_fft_norm norm)
{
    return several("rfft2", x, TREK_DFT_REAL, trek_dims_none(), trek_dims(-2, -1), norm);
}
trek_var *trek_irfft2(trek_var *x, trek_fft_norm norm)
{
    return several("irfft2", x, TREK_DFT_TO_REAL, trek_dims_none(), trek_dims(-2, -1), norm);
}

/* --- of what is its own mirror image --------------------------------------------------------------------- */

static trek_var *conjugated(trek_var *x)
{
    if (!x)
        return NULL;
    trek_tensor *signs = trek_tensor_from_data((const double[]){ 1, -1 }, trek_dims(2), TREK_F64, trek_var_device(x));
    return signs ? trek_mul(x, trek_cast(trek_var_from(signs), trek_var_dtype(x))) : NULL;
}

/* The forward transform of a mirrored signal is the inverse transform of its conjugate without the factor, so the
 * norms are exchanged. */
static trek_fft_norm exchanged(trek_fft_norm norm)
{
    return norm == TREK_FFT_NORM_BACKWARD ? TREK_FFT_NORM_FORWARD : norm == TREK_FFT_NORM_FORWARD ? TREK_FFT_NORM_BACKWARD : norm;
}

trek_var *trek_hfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm)
{
    x = taken("hfft", x, true, norm) ? x : NULL;
    return x ? along("hfft", conjugated(trek_dtype_is_float(trek_var_dtype(x)) ? x : trek_cast(x, TREK_F32)), TREK_DFT_TO_REAL, n,
                     dim, exchanged(norm))
             : NULL;
}

trek_var *trek_ihfft(trek_var *x, int64_t n, int dim, trek_fft_norm norm)
{
    return conjugated(along("ihfft", x, TREK_DFT_REAL, n, dim, exchanged(norm)));
}
