/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values of parameters. They are made on the CPU and then copied to the parameter's device. */
#include "nn/init.h"

#include <math.h>

#include "autograd/leaf.h"
#include "nn/init_internal.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/memory_internal.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

/* --- drawing nothing ---------------------------------------------------------- */

static _Thread_local int skips;

void trek_init_skip_begin(void) { skips++; }

void trek_init_skip_end(void) { skips -= skips > 0; }

bool trek_init_skips(void) { return skips > 0; }

/* --- values and their way into a parameter ---------------------------------- */

static trek_status check_param(const trek_var *param, const char *function)
{
    if (!param)
        return trek_fail_missing(function, "parameter");
    if (!trek_var_is_leaf(param))
        return trek_fail(TREK_ERR_STATE, "%s: param: it is the result of an op; only leaves can be initialised", function);
    if (!trek_dtype_is_float(trek_var_dtype(param)))
        return trek_fail(TREK_ERR_DTYPE, "%s: param: dtype %s; must be floating", function,
                         trek_dtype_name(trek_var_dtype(param)));
    return TREK_OK;
}

/* f64 parameters get values with all their bits. Values for 16-bit parameters are rounded once, when they are written. */
static trek_dtype value_dtype(const trek_var *param) { return trek_var_dtype(param) == TREK_F64 ? TREK_F64 : TREK_F32; }

static trek_tensor *random_values(const trek_var *param, bool normal)
{
    trek_shape shape = trek_var_shape(param);
    return normal ? trek_tensor_randn(shape, value_dtype(param), trek_cpu(0))
                  : trek_tensor_rand(shape, value_dtype(param), trek_cpu(0));
}

/* Computes values = values * scale + shift. */
static void scale_and_shift(trek_tensor *values, double scale, double shift)
{
    int64_t count = trek_tensor_numel(values);
    if (trek_tensor_dtype(values) == TREK_F64) {
        double *v = trek_tensor_data(values);
        for (int64_t k = 0; k < count; k++)
            v[k] = v[k] * scale + shift;
    } else {
        float *v = trek_tensor_data(values), scale32 = (float)scale, shift32 = (float)shift;
        for (int64_t k = 0; k < count; k++)
            v[k] = v[k] * scale32 + shift32;
    }
}

trek_status trek_init_write(trek_var *param, trek_tensor *values)
{
    if (!values)
        return trek_fail_missing("init", "values");
    trek_status status = trek_tensor_copy_from(trek_var_data(param), values);
    trek_tensor_release(values);
    return status;
}

trek_tensor *trek_init_normal_values(const trek_var *param, double mean, double deviation)
{
    trek_tensor *values = random_values(param, true);
    if (values)
        scale_and_shift(values, deviation, mean);
    return values;
}

/* --- distributions ---------------------------------------------------------- */

trek_status trek_init_uniform(trek_var *param, double low, double high)
{
    trek_status status = check_param(param, "init_uniform");
    if (status != TREK_OK)
        return status;
    if (!isfinite(low) || !isfinite(high) || low > high)
        return trek_fail(TREK_ERR_ARGUMENT, "init_uniform: low and high: %g and %g; must be finite and ascending", low, high);
    if (trek_init_skips())
        return TREK_OK;
    trek_tensor *values = random_values(param, false);
    if (values)
        scale_and_shift(values, high - low, low);
    return trek_init_write(param, values);
}

trek_status trek_init_normal(trek_var *param, double mean, double deviation)
{
    trek_status status = check_param(param, "init_normal");
    if (status != TREK_OK)
        return status;
    if (!isfinite(mean) || !isfinite(deviation) || deviation < 0)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "init_normal: mean and deviation: %g and %g; must be finite, and the deviation not negative", mean,
                         deviation);
    return trek_init_skips() ? TREK_OK : trek_init_write(param, trek_init_normal_values(param, mean, deviation));
}

/* The lower tail keeps its precision; the upper tail is computed as its mirror image. */
static double normal_below(double z) { return 0.5 * erfc(-z * M_SQRT1_2); }

/* Returns the z between low and high with normal_below(z) = p. Bisection is exact to the last bits, however far out
 * in a tail the interval lies. */
static double normal_quantile(double p, double low, double high)
{
    for (int k = 0; k < 64; k++) {
        double middle = 0.5 * (low + high);
        if (middle <= low || middle >= high)
            break;
        if (normal_below(middle) < p)
            low = middle;
        else
            high = middle;
    }
    return 0.5 * (low + high);
}

trek_status trek_init_trunc_normal(trek_var *param, double mean, double deviation, double low, double high)
{
    trek_status status = check_param(param, "init_trunc_normal");
    if (status != TREK_OK)
        return status;
    if (!isfinite(mean) || !isfinite(deviation) || deviation <= 0 || !(low < high))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "init_trunc_normal: deviation: %g, low: %g, high: %g; the deviation must be above 0, and low below high",
                         deviation, low, high);
    if (trek_init_skips())
        return TREK_OK;
    trek_tensor *values = trek_tensor_rand(trek_var_shape(param), TREK_F64, trek_cpu(0));
    if (!values)
        return trek_error_status();
    double *v = trek_tensor_data(values);
    double z_low = fmax((low - mean) / deviation, -38.0), z_high = fmin((high - mean) / deviation, 38.0);
    /* In the upper tail 1 - p loses precision, so the computation uses the mirror image. */
    bool mirror = z_low > 0;
    if (mirror) {
        double t = z_low;
        z_low = -z_high;
        z_high = -t;
    }
    double p_low = normal_below(z_low), p_high = normal_below(z_high);
    for (int64_t k = 0, count = trek_tensor_numel(values); k < count; k++) {
        double z = normal_quantile(p_low + v[k] * (p_high - p_low), z_low, z_high);
        v[k] = fmin(fmax(mean + deviation * (mirror ? -z : z), low), high);
    }
    return trek_init_write(param, values);
}

trek_status trek_init_constant(trek_var *param, double value)
{
    trek_status status = check_param(param, "init_constant");
    if (status != TREK_OK)
        return status;
    return trek_init_write(param, trek_tensor_full(trek_var_shape(param), value, value_dtype(param), trek_cpu(0)));
}

trek_status trek_init_zeros(trek_var *param) { return trek_init_constant(param, 0); }

trek_status trek_init_ones(trek_var *param) { return trek_init_constant(param, 1); }

/* --- by fan ------------------------------------------------------------------ */

double trek_init_gain(trek_nonlinearity nonlinearity, double negative_slope)
{
    switch (nonlinearity) {
    case TREK_NONLINEARITY_LEAKY_RELU: return sqrt(2.0 / (1.0 + negative_slope * negative_slope));
    case TREK_NONLINEARITY_RELU: return M_SQRT2;
    case TREK_NONLINEARITY_TANH: return 5.0 / 3.0;
    case TREK_NONLINEARITY_SELU: return 0.75;
    case TREK_NONLINEARITY_LINEAR: break;
    }
    return 1.0;
}

/* Computes the connections into and out of one unit: the first two sizes, times the receptive field. */
static trek_status fans(const trek_var *param, const char *function, double *fan_in, double *fan_out)
{
    trek_status status = check_param(param, function);
    if (status != TREK_OK)
        return status;
    trek_shape shape = trek_var_shape(param);
    char text[TREK_SHAPE_TEXT];
    if (shape.ndim < 2)
        return trek_fail(TREK_ERR_SHAPE, "%s: param: %s; must have at least 2 dimensions", function,
                         trek_shape_format(shape, text, sizeof text));
    double field = 1;
    for (int d = 2; d < shape.ndim; d++)
        field *= (double)shape.sizes[d];
    *fan_in = (double)shape.sizes[1] * field;
    *fan_out = (double)shape.sizes[0] * field;
    return TREK_OK;
}

/* A parameter without elements has fan 0 and nothing to fill. */
static double per_fan(double numerator, double fan) { return fan > 0 ? sqrt(numerator / fan) : 0; }

trek_status trek_init_xavier_uniform(trek_var *param, double gain)
{
    double fan_in, fan_out;
    trek_status status = fans(param, "init_xavier_uniform", &fan_in, &fan_out);
    if (status != TREK_OK)
        return status;
    double bound = fabs(gain) * per_fan(6, fan_in + fan_out);
    return trek_init_uniform(param, -bound, bound);
}

trek_status trek_init_xavier_normal(trek_var *param, double gain)
{
    double fan_in, fan_out;
    trek_status status = fans(param, "init_xavier_normal", &fan_in, &fan_out);
    if (status != TREK_OK)
        return status;
    return trek_init_normal(param, 0, fabs(gain) * per_fan(2, fan_in + fan_out));
}

/* Computes the standard deviation that He's rule asks for. */
static trek_status kaiming_deviation(const trek_var *param, const trek_kaiming_opts *opts, const char *function,
                                     double *deviation)
{
    static const trek_kaiming_opts defaults = { 0 };
    double fan_in, fan_out;
    trek_status status = fans(param, function, &fan_in, &fan_out);
    if (!opts)
        opts = &defaults;
    if (status == TREK_OK)
        *deviation = trek_init_gain(opts->nonlinearity, opts->negative_slope) *
                     per_fan(1, opts->mode == TREK_FAN_OUT ? fan_out : fan_in);
    return status;
}

trek_status trek_init_kaiming_uniform(trek_var *param, const trek_kaiming_opts *opts)
{
    double deviation;
    trek_status status = kaiming_deviation(param, opts, "init_kaiming_uniform", &deviation);
    if (status != TREK_OK)
        return status;
    double bound = sqrt(3.0) * deviation;
    return trek_init_uniform(param, -bound, bound);
}

trek_status trek_init_kaiming_normal(trek_var *param, const trek_kaiming_opts *opts)
{
    double deviation;
    trek_status status = kaiming_deviation(param, opts, "init_kaiming_normal", &deviation);
    return status == TREK_OK ? trek_init_normal(param, 0, deviation) : status;
}

/* --- orthogonal ---------------------------------------------------------------- */

static double dot(const double *a, const double *b, int64_t n, int64_t stride)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += a[k * stride] * b[k * stride];
    return sum;
}

/* Makes `count` vectors of length n orthonormal by Gram-Schmidt, projecting twice ("twice is enough", Giraud et al.
 * 2005). Vector j begins at v + j * step, and its elements are `stride` apart. */
static void orthonormalize(double *v, int64_t count, int64_t step, int64_t n, int64_t stride)
{
    for (int64_t j = 0; j < count; j++) {
        double *own = v + j * step;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = 0; i < j; i++) {
                double shared = dot(own, v + i * step, n, stride);
                for (int64_t k = 0; k < n; k++)
                    own[k * stride] -= shared * v[i * step + k * stride];
            }
        }
        double norm = sqrt(dot(own, own, n, stride));
        for (int64_t k = 0; k < n && norm > 0; k++)
            own[k * stride] /= norm;
    }
}

trek_status trek_init_orthogonal(trek_var *param, double gain)
{
    double fan_in, fan_out;
    trek_status status = fans(param, "init_orthogonal", &fan_in, &fan_out);
    if (status != TREK_OK || trek_init_skips())
        return status;
    trek_tensor *values = trek_tensor_randn(trek_var_shape(param), TREK_F64, trek_cpu(0));
    if (!values)
        return trek_error_status();
    int64_t count = trek_tensor_numel(values), rows = trek_var_size(param, 0), columns = rows > 0 ? count / rows : 0;
    double *v = trek_tensor_data(values);
    if (rows <= columns)
        orthonormalize(v, rows, columns, columns, 1);
    else
        orthonormalize(v, columns, 1, rows, columns);
    scale_and_shift(values, gain, 0);
    return trek_init_write(param, values);
}

/* --- mostly zeros ------------------------------------------------------------------ */

static void set(trek_tensor *values, int64_t k, double value)
{
    if (trek_tensor_dtype(values) == TREK_F64)
        ((double *)trek_tensor_data(values))[k] = value;
    else
        ((float *)trek_tensor_data(values))[k] = (float)value;
}

/* Checks that a parameter has between `least` and `most` dimensions. */
static trek_status check_dims(const trek_var *param, const char *function, int least, int most)
{
    trek_status status = check_param(param, function);
    char text[TREK_SHAPE_TEXT];
    if (status != TREK_OK || (trek_var_ndim(param) >= least && trek_var_ndim(param) <= most))
        return status;
    trek_shape_format(trek_var_shape(param), text, sizeof text);
    return least == most ? trek_fail(TREK_ERR_SHAPE, "%s: param: %s; must have %d dimensions", function, text, least)
                         : trek_fail(TREK_ERR_SHAPE, "%s: param: %s; must have %d to %d dimensions", function, text, least, most);
}

trek_status trek_init_eye(trek_var *param)
{
    trek_status status = check_dims(param, "init_eye", 2, 2);
    if (status != TREK_OK)
        return status;
    int64_t rows = trek_var_size(param, 0), columns = trek_var_size(param, 1);
    trek_tensor *values = trek_tensor_zeros(trek_var_shape(param), value_dtype(param), trek_cpu(0));
    for (int64_t k = 0; values && k < rows && k < columns; k++)
        set(values, k * columns + k, 1);
    return trek_init_write(param, values);
}

trek_status trek_init_dirac(trek_var *param, int64_t groups)
{
    trek_status status = check_dims(param, "init_dirac", 3, 5);
    if (status != TREK_OK)
        return status;
    trek_shape shape = trek_var_shape(param);
    if (groups < 1 || shape.sizes[0] % groups != 0)
        return trek_fail(TREK_ERR_ARGUMENT, "init_dirac: groups: %lld; must divide %lld output channels", (long long)groups,
                         (long long)shape.sizes[0]);
    int64_t each = shape.sizes[0] / groups, kernel = 1, middle = 0;
    for (int d = 2; d < shape.ndim; d++) {
        kernel *= shape.sizes[d];
        middle = middle * shape.sizes[d] + shape.sizes[d] / 2;
    }
    trek_tensor *values = trek_tensor_zeros(shape, value_dtype(param), trek_cpu(0));
    for (int64_t g = 0; values && kernel > 0 && g < groups; g++)
        for (int64_t k = 0; k < each && k < shape.sizes[1]; k++)
            set(values, ((g * each + k) * shape.sizes[1] + k) * kernel + middle, 1);
    return trek_init_write(param, values);
}

trek_status trek_init_sparse(trek_var *param, double sparsity, double deviation)
{
    trek_status status = check_dims(param, "init_sparse", 2, 2);
    if (status != TREK_OK)
        return status;
    if (!(sparsity >= 0 && sparsity <= 1) || !isfinite(deviation) || deviation < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "init_sparse: sparsity: %g, deviation: %g; must be inside [0, 1], and at least 0",
                         sparsity, deviation);
    if (trek_init_skips())
        return TREK_OK;
    int64_t rows = trek_var_size(param, 0), columns = trek_var_size(param, 1), zeros = (int64_t)ceil(sparsity * (double)rows);
    trek_tensor *values = trek_init_normal_values(param, 0, deviation);
    for (int64_t c = 0; values && c < columns && zeros > 0; c++) {
        trek_tensor *order = trek_tensor_randperm(rows, trek_cpu(0));
        if (!order) {
            trek_tensor_release(values);
            return trek_error_status();
        }
        for (int64_t k = 0; k < zeros; k++)
            set(values, ((const int64_t *)trek_tensor_data(order))[k] * columns + c, 0);
        trek_tensor_release(order);
    }
    return trek_init_write(param, values);
}
