/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix exponential by scaling and squaring (Higham, "The scaling and squaring method for the matrix exponential
 * revisited", 2005), with a Taylor polynomial, which needs only products. */
#include <math.h>

#include "autograd/ops.h"
#include "autograd/tape_internal.h"

/* The polynomial of degree 18 has a remainder below f64's precision for norms up to 1 (1 / 19! = 8e-18), and below
 * f32's for norms up to 3 (3^19 / 19! = 1e-8). Each squaring doubles the relative error, so there should be few. */
enum { DEGREE = 18, GROUP = 6 };
static double largest_norm(trek_dtype dtype) { return dtype == TREK_F64 ? 1 : 3; }

static double factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1); }

static trek_var *unit_like(trek_var *a)
{
    trek_tensor *eye = a ? trek_tensor_eye(trek_var_size(a, -1), trek_var_dtype(a), trek_var_device(a)) : NULL;
    return eye ? trek_var_from(eye) : NULL;
}

/* Sums a^k / k! in groups of 6 powers (Paterson and Stockmeyer 1973), with 8 products. */
static trek_var *polynomial(trek_var *a)
{
    trek_var *powers[GROUP + 1] = { unit_like(a), a }, *sum = NULL;
    for (int k = 2; k <= GROUP; k++)
        powers[k] = trek_matmul(powers[k / 2], powers[k - k / 2]);
    for (int first = DEGREE; first >= 0; first -= GROUP) {
        if (sum)
            sum = trek_matmul(sum, powers[GROUP]);
        for (int k = 0; k < (first == DEGREE ? 1 : GROUP); k++) {
            trek_var *term = trek_mul_scalar(powers[k], 1 / factorial(first + k));
            sum = sum ? trek_add(sum, term) : term;
        }
    }
    return sum;
}

trek_var *trek_matrix_exp(trek_var *a)
{
    char text[TREK_SHAPE_TEXT];
    if (!a)
        return trek_fail_missing("matrix_exp", "variable"), NULL;
    trek_dtype dtype = trek_var_dtype(a);
    if (trek_var_ndim(a) < 2 || trek_var_size(a, -1) != trek_var_size(a, -2))
        return trek_fail_null(TREK_ERR_SHAPE, "matrix_exp: a: %s; must be square matrices",
                              trek_tensor_shape_text(a->data, text));
    if (!trek_dtype_is_float(dtype))
        return trek_fail_null(TREK_ERR_DTYPE, "matrix_exp: a: dtype %s; must be floating", trek_dtype_name(dtype));
    if (trek_var_numel(a) == 0)
        return trek_clone(a);
    a = trek_cast(a, trek_dtype_is_16bit(dtype) ? TREK_F32 : dtype);
    trek_var *columns = a ? trek_sum(trek_abs(trek_var_detach(a)), trek_dims(-2), false) : NULL;
    trek_var *norm = trek_max(columns, trek_dims_all(), false);
    double size = norm ? trek_var_item(norm) : NAN;
    if (!norm || !isfinite(size))
        return norm ? trek_fail_null(TREK_ERR_ARGUMENT, "matrix_exp: a: a matrix is not finite; must be finite") : NULL;
    double limit = largest_norm(trek_var_dtype(a));
    int squares = size > limit ? (int)ceil(log2(size / limit)) : 0;
    trek_var *y = polynomial(squares > 0 ? trek_mul_scalar(a, ldexp(1, -squares)) : a);
    for (int k = 0; y && k < squares; k++)
        y = trek_matmul(y, y);
    return trek_cast(y, dtype);
}
