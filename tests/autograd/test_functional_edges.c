/* SPDX-License-Identifier: Apache-2.0 */
/* Public ops at their edges, as PyTorch has them: where functions bend, large and small numbers, narrow dtypes, empty
 * dimensions, missing lists, numbers that a dtype does not hold, memory that overlaps. */
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/rank_context.h"
#include "tensor/tensor_internal.h"
#include "tests/autograd/values.h"
#include "tests/support/support.h"

/* --- where functions bend: PyTorch's values -------------------------------------------------------------- */

static trek_var *leaf_of(const double *values, int n, trek_dtype dtype)
{
    trek_var *x = trek_var_from(test_values(values, trek_dims(n), dtype));
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    return x;
}

static trek_var *constant_of(double value, int n, trek_dtype dtype)
{
    return trek_var_from(trek_tensor_full(trek_dims(n), value, dtype, test_device()));
}

static trek_var *of_prod(trek_var *x) { return trek_prod(x, trek_dims_all(), false); }
static trek_var *of_std(trek_var *x) { return trek_std(x, trek_dims_all(), false); }
static trek_var *of_max(trek_var *x) { return trek_max(x, trek_dims_all(), false); }
static trek_var *of_min(trek_var *x) { return trek_min(x, trek_dims_all(), false); }
static trek_var *of_norm_half(trek_var *x) { return trek_norm(x, 0.5, trek_dims_all(), false); }
static trek_var *of_norm_minus_one(trek_var *x) { return trek_norm(x, -1, trek_dims_all(), false); }
static trek_var *of_norm_zero(trek_var *x) { return trek_norm(x, 0, trek_dims_all(), false); }
static trek_var *of_atan2(trek_var *x) { return trek_atan2(trek_narrow(x, 0, 0, 1), trek_narrow(x, 0, 1, 1)); }
static trek_var *of_atan2_far(trek_var *x) { return trek_atan2(trek_mul_scalar(x, 2), constant_of(1.7e308, 1, TREK_F64)); }
static trek_var *of_elu(trek_var *x) { return trek_elu(x, 1); }
static trek_var *of_clamp(trek_var *x) { return trek_clamp(x, -1, 1); }
static trek_var *of_softplus(trek_var *x) { return trek_softplus(x, 1, 1); }
static trek_var *of_maximum(trek_var *x) { return trek_maximum(x, constant_of(1, 3, TREK_F64)); }

static trek_var *of_power(trek_var *x)
{
    return trek_pow(x, trek_var_from(test_values((double[]){ 0, 2, 0 }, trek_dims(3), TREK_F64)));
}

static trek_var *of_exponent(trek_var *p)
{
    return trek_pow(trek_var_from(test_values((double[]){ 0, 0, 2 }, trek_dims(3), TREK_F64)), p);
}

static trek_var *of_divisor(trek_var *y)
{
    return trek_remainder(trek_var_from(test_values((double[]){ 0x1.3333333333333p-2, 1, 7 }, trek_dims(3), TREK_F64)), y);
}

static trek_var *of_small_divisor(trek_var *y) { return trek_div(constant_of(0, 1, TREK_F64), y); }
static trek_var *of_smooth_l1(trek_var *x) { return trek_smooth_l1_loss(x, trek_zeros_like(x), 0.5); }
static trek_var *of_bce(trek_var *x) { return trek_bce_with_logits(x, trek_full_like(x, 0.25)); }
#define END 1e300 /* the second derivative is not looked at */

typedef struct bend {
    const char *name;
    trek_var *(*f)(trek_var *x);
    int n;
    double x[3], slope[3], second[3]; /* of sum(f), of sum(slope) */
} bend;

static void gradients_where_functions_bend(void **state)
{
    const double ln2 = 0.69314718055994530942, nan = NAN;
    const bend bends[] = {
        { "prod, one zero", of_prod, 3, { 0, 2, 3 }, { 6, 0, 0 }, { 5, 3, 2 } },
        { "prod, two zeros", of_prod, 3, { 0, 0, 3 }, { 0, 0, 0 }, { 3, 3, 0 } },
        { "prod, zero and infinity", of_prod, 3, { 0, INFINITY, 3 }, { INFINITY, 0, nan }, { END } },
        { "std of equals", of_std, 3, { 2, 2, 2 }, { 0, 0, 0 }, { 0, 0, 0 } },
        { "norm 0.5 at 0", of_norm_half, 2, { 0, 1 }, { 0, 1 }, { 0, 0 } },
        { "norm -1 at 0", of_norm_minus_one, 2, { 0, 1 }, { 0, 0 }, { 0, 0 } },
        { "norm 0", of_norm_zero, 3, { 0, 1, nan }, { 0, 0, 0 }, { END } },
        { "atan2 at the origin", of_atan2, 2, { 0, 0 }, { 0, 0 }, { 0, 0 } },
        { "atan2 far away", of_atan2_far, 1, { 0 }, { 0 }, { 0 } },
        { "max at NaN", of_max, 3, { nan, 1, nan }, { 0.5, 0, 0.5 }, { END } },
        { "min at NaN", of_min, 3, { 2, 1, nan }, { 0, 0, 1 }, { END } },
        { "maximum at NaN", of_maximum, 3, { nan, 1, 2 }, { 1, 0.5, 1 }, { END } },
        { "elu", of_elu, 3, { nan, 0, 1 }, { 1, 1, 1 }, { 0, 0, 0 } },
        { "clamp at its bounds", of_clamp, 3, { -1, 1, nan }, { 0, 0, 0 }, { 0, 0, 0 } },
        { "softplus at its threshold", of_softplus, 2, { 1, 2 }, { 0.7310585786300049, 1 }, { 0, 0 } },
        { "powers", of_power, 3, { 0, 0, nan }, { 0, 0, 0 }, { 0, 2, 0 } },
        { "exponents", of_exponent, 3, { 0, -1, 0 }, { 0, -INFINITY, ln2 }, { 0, INFINITY, ln2 * ln2 } },
        { "remainder's divisor", of_divisor, 3, { 0.1, -INFINITY, 2 }, { -2, 1, -3 }, { 0, 0, 0 } },
        { "smooth_l1 at 0", of_smooth_l1, 1, { 0 }, { 0 }, { 2 } },
        { "smooth_l1 at NaN", of_smooth_l1, 1, { nan }, { nan }, { END } },
        { "smooth_l1 at infinity", of_smooth_l1, 1, { -INFINITY }, { -1 }, { END } },
        { "atan far away", trek_atan, 2, { -1.7e308, 1e200 }, { 0, 0 }, { 0, 0 } },
        { "a small divisor of 0", of_small_divisor, 1, { 1e-310 }, { 0 }, { END } },
        { "bce at 0", of_bce, 1, { 0 }, { 0.25 }, { 0.25 } },
    };
    for (size_t k = 0; k < sizeof bends / sizeof bends[0]; k++) {
        const bend *b = &bends[k];
        for (int create_graph = 0; create_graph <= (b->second[0] != END); create_graph++) {
            trek_var *x = leaf_of(b->x, b->n, TREK_F64), *slope = NULL, *second = NULL;
            trek_var *y = trek_sum(b->f(x), trek_dims_all(), false);
            if (trek_grad(&y, 1, &x, 1, NULL, &(trek_backward_opts){ .create_graph = create_graph }, &slope) != TREK_OK)
                fail_msg("%s: %s", b->name, trek_error());
            trek_var *sum = trek_sum(slope, trek_dims_all(), false);
            if (create_graph && trek_var_requires_grad(sum) && trek_grad(&sum, 1, &x, 1, NULL, NULL, &second) != TREK_OK)
                fail_msg("%s, again: %s", b->name, trek_error());
            for (int i = 0; i < b->n; i++) {
                double got = at(slope, i), bent = second ? at(second, i) : 0;
                if (!(fabs(got - b->slope[i]) < 1e-14) && !(isnan(got) && isnan(b->slope[i])) && got != b->slope[i])
                    fail_msg("%s: slope %d is %g, not %g (create_graph %d)", b->name, i, got, b->slope[i], create_graph);
                if (create_graph && !(fabs(bent - b->second[i]) < 1e-14) && bent != b->second[i])
                    fail_msg("%s: second derivative %d is %g, not %g", b->name, i, bent, b->second[i]);
            }
        }
    }
}

/* A window whose elements all lie in the padding gives -infinity, which no element made. */
static void windows_in_the_padding(void **state)
{
    trek_pool_opts opts = { .kernel = { 2 }, .stride = { 3 }, .padding = { 1, 1 }, .dilation = { 1, 2 }, .ceil_mode = true };
    for (int create_graph = 0; create_graph < 2; create_graph++) {
        trek_var *x = leaf_of((double[]){ 1, 2, 5, 3, 4 }, 5, TREK_F32), *slope;
        trek_var *pooled = trek_max_pool2d(trek_reshape(x, trek_dims(1, 1, 5, 1)), &opts),
            *y = trek_sum(pooled, trek_dims_all(), false);
        assert_true(at(pooled, 0) == -INFINITY && at(pooled, 1) == -INFINITY);
        assert_int_equal(trek_grad(&y, 1, &x, 1, NULL, &(trek_backward_opts){ .create_graph = create_graph }, &slope), TREK_OK);
        for (int i = 0; i < 5; i++)
            assert_true(at(slope, i) == 0);
    }
    trek_var *whole = trek_var_from(test_values((double[]){ 1, 2, 3 }, trek_dims(1, 1, 3, 1), TREK_I64));
    assert_true(at(trek_max_pool2d(whole, &opts), 0) == -0x1p63);
}

/* dx = dy weight rstd, whatever x is. */
static void norm_in_evaluation_is_linear(void **state)
{
    for (int wide = 1; wide <= 3; wide += 2)
        for (int create_graph = 0; create_graph < 2; create_graph++) {
            trek_var *x = leaf_of((double[]){ INFINITY, 1, NAN }, 3, TREK_F64), *mean = constant_of(2, 3 / wide, TREK_F64),
                *slope;
            trek_var *variance = constant_of(4, 3 / wide, TREK_F64), *in = trek_reshape(x, trek_dims(1, 3 / wide, wide));
            trek_var *y = trek_sum(trek_batch_norm(in, mean, variance, NULL, NULL, false, 0, 0), trek_dims_all(), false);
            assert_int_equal(trek_grad(&y, 1, &x, 1, NULL, &(trek_backward_opts){ .create_graph = create_graph }, &slope),
                             TREK_OK);
            for (int i = 0; i < 3; i++)
                assert_true(at(slope, i) == 0.5);
        }
}

/* By the cotangent of a mean over nothing: a sum of no terms. */
static void mean_of_nothing_again(void **state)
{
    trek_var *x = leaf_of((double[]){ 0 }, 0, TREK_F32), *seed = leaf_of((double[]){ 2 }, 1, TREK_F32), *slope, *again;
    trek_var *y = trek_mean(x, trek_dims_all(), true), *scalar = trek_reshape(seed, trek_dims(1));
    assert_int_equal(trek_grad(&y, 1, &x, 1, &scalar, &(trek_backward_opts){ .create_graph = true }, &slope), TREK_OK);
    trek_var *sum = trek_sum(slope, trek_dims_all(), false);
    assert_int_equal(trek_grad(&sum, 1, &seed, 1, NULL, NULL, &again), TREK_OK);
    assert_true(at(again, 0) == 0);
}

/* --- large numbers, narrow dtypes ------------------------------------------------------------------------ */

static void nothing_overflows_on_the_way(void **state)
{
    trek_var *large = leaf_of((double[]){ 1e38, -1e38, 2e38, 0.5e38 }, 4, TREK_F32), *slope = NULL;
    trek_var *deviation = trek_std(large, trek_dims_all(), false);
    assert_true(fabs(at(deviation, 0) / 1.25e38 - 1) < 1e-6);
    assert_int_equal(trek_grad(&deviation, 1, &large, 1, NULL, NULL, &slope), TREK_OK);
    assert_true(fabs(at(slope, 0) - 0.1) < 1e-6 && fabs(at(slope, 2) - 1.375 / 3.75) < 1e-6);

    trek_var *small = leaf_of((double[]){ 300, 400 }, 2, TREK_F16), *norm = trek_norm(small, 2, trek_dims_all(), false);
    assert_int_equal(trek_var_dtype(norm), TREK_F16);
    assert_true(at(norm, 0) == 500);
    assert_int_equal(trek_grad(&norm, 1, &small, 1, NULL, NULL, &slope), TREK_OK);
    assert_true(fabs(at(slope, 0) - 0.6) < 1e-3 && fabs(at(slope, 1) - 0.8) < 1e-3);
    assert_true(at(trek_norm(constant_of(-INFINITY, 2, TREK_F32), -1, trek_dims_all(), false), 0) == INFINITY);
    REFUSED(trek_norm(constant_of(1, 0, TREK_F32), -1, trek_dims_all(), false), TREK_ERR_SHAPE, "norm: ");
}

static trek_var *softplus_beta(trek_var *x) { return trek_softplus(x, 1.7, 20); }
static trek_var *logsumexp_of(trek_var *x) { return trek_logsumexp(x, trek_dims_all(), false); }

/* The gradient in a 16-bit dtype is that of the rounded input, rounded once. */
static void steep_formulas_in_16_bits(void **state)
{
    static const struct {
        trek_var *(*f)(trek_var *x);
        double x[4];
    } cases[] = {
        { softplus_beta, { -47, -20.3, -3.3, 11 } }, { trek_erf, { -3.3, 2.7, 1.7, 0.3 } },
            { trek_asin, { 0.99, -0.97, 0.3, 0.9 } },
        { trek_gelu, { -3, -2.3, 0.7, 3 } },         { trek_gelu_tanh, { -3, -2.3, 0.7, 3 } },
        { trek_silu, { -9, -3.3, 1.7, 5 } },
        { logsumexp_of, { 90.5, 91, 89.3, 88 } },
    };
    for (size_t k = 0; k < 2 * sizeof cases / sizeof cases[0]; k++) {
        trek_backward_opts opts = { .create_graph = k % 2 };
        trek_var *x = leaf_of(cases[k / 2].x, 4, TREK_BF16), *exact = trek_clone(trek_cast(trek_var_detach(x), TREK_F64));
        trek_var_set_requires_grad(exact, true);
        trek_var *y = trek_sum(cases[k / 2].f(x), trek_dims_all(), false), *slope;
        trek_var *z = trek_sum(cases[k / 2].f(exact), trek_dims_all(), false), *right;
        assert_int_equal(trek_grad(&y, 1, &x, 1, NULL, &opts, &slope), TREK_OK);
        assert_int_equal(trek_grad(&z, 1, &exact, 1, NULL, NULL, &right), TREK_OK);
        for (int i = 0; i < 4; i++)
            if (fabs(at(slope, i) - at(right, i)) > 0x1p-8 * fabs(at(right, i)))
                fail_msg("case %zu, element %d: %g, not %g", k, i, at(slope, i), at(right, i));
    }
}

/* Against f64 of the same values: what is computed in the wider dtype is rounded last. */
static void mixed_dtypes_round_last(void **state)
{
    const double base[3] = { 0.3, 1.7, 60 }, exponent[3] = { 1.3, 2.7, 0.1 };
    trek_var *x = leaf_of(base, 3, TREK_F16), *p = leaf_of(exponent, 3, TREK_F32), *slopes[2];
    trek_var *y = trek_sum(trek_pow(x, p), trek_dims_all(), false);
    trek_var *wide[2] = { trek_clone(trek_cast(trek_var_detach(x), TREK_F64)),
                          trek_clone(trek_cast(trek_var_detach(p), TREK_F64)) };
    trek_var *right[2], *narrow[2] = { x, p };
    trek_var_set_requires_grad(wide[0], true);
    trek_var_set_requires_grad(wide[1], true);
    trek_var *z = trek_sum(trek_pow(wide[0], wide[1]), trek_dims_all(), false);
    assert_int_equal(trek_grad(&y, 1, narrow, 2, NULL, NULL, slopes), TREK_OK);
    assert_int_equal(trek_grad(&z, 1, wide, 2, NULL, NULL, right), TREK_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(fabs(at(slopes[0], i) / at(right[0], i) - 1) < 0x1p-11);
        assert_true(fabs(at(slopes[1], i) / at(right[1], i) - 1) < 1e-6);
    }

    trek_no_grad_begin();
    trek_var *to = constant_of(1, 2, TREK_BF16), *by = constant_of(0x1.003p-9, 2, TREK_F32); /* rounded first: half a step, */
    assert_ptr_equal(trek_sub_(to, by), to);                                                 /* which goes to even */
    double result = at(to, 0);
    trek_var *whole = trek_var_from(test_values((double[]){ 1, 2 }, trek_dims(2), TREK_I64));
    REFUSED(trek_add_(whole, constant_of(0.5, 2, TREK_F32)), TREK_ERR_DTYPE, "add_: ");
    REFUSED(trek_mul_(constant_of(1, 1, TREK_BF16), constant_of(1, 3, TREK_F32)), TREK_ERR_SHAPE, "mul_: ");
    trek_no_grad_end();
    assert_true(result == 0x1.fep-1);
}

/* --- in place: what is written must not lie where something else is read --------------------------------- */

static void refused(trek_var *result)
{
    REFUSED(result, TREK_ERR_ARGUMENT, "");
}

static void overlapping_memory_is_refused(void **state)
{
    trek_var *b = trek_var_from(trek_tensor_arange(1, 7, 1, TREK_F32, test_device()));
    trek_var *m = trek_reshape(trek_var_from(trek_tensor_arange(0, 9, 1, TREK_F32, test_device())), trek_dims(3, 3));
    trek_var *column = constant_of(1, 3, TREK_F32), *wide = trek_expand(trek_reshape(column, trek_dims(3, 1)), trek_dims(3, 3));
    trek_no_grad_begin();
    refused(trek_add_(trek_narrow(b, 0, 1, 4), trek_narrow(b, 0, 0, 4)));
    refused(trek_sub_(trek_narrow(b, 0, 0, 4), trek_narrow(b, 0, 2, 4)));
    refused(trek_add_(wide, m));
    refused(trek_copy_(wide, m));
    refused(trek_mul_(m, trek_transpose(m, 0, 1)));
    refused(trek_div_(m, trek_select(m, 0, 0)));
    refused(trek_copy_(m, trek_transpose(m, 0, 1)));
    refused(trek_copy_(trek_narrow(b, 0, 1, 4), trek_narrow(b, 0, 0, 4)));
    refused(trek_add_(trek_narrow(m, 1, 0, 2), trek_narrow(m, 1, 1, 2)));
    refused(trek_add_(trek_select(m, 0, 1), trek_select(m, 1, 1))); /* they cross at one element */
    FAILS(trek_tensor_copy_from(trek_var_data(wide), trek_var_data(m)), TREK_ERR_ARGUMENT, "");
    assert_true(at(b, 1) == 2 && at(m, 5) == 5 && at(column, 0) == 1);

    assert_non_null(trek_add_(m, m)); /* the same view */
    assert_non_null(trek_copy_(b, b));
    assert_ptr_equal(trek_copy_(wide, wide), wide); /* nothing is written */
    assert_true(at(m, 5) == 10);
    assert_non_null(trek_add_(trek_narrow(b, 0, 0, 3), trek_narrow(b, 0, 3, 3)));
    assert_non_null(trek_add_(trek_narrow(m, 1, 0, 1), trek_narrow(m, 1, 2, 1))); /* columns beside each other */
    assert_non_null(trek_copy_(trek_transpose(m, 0, 1), trek_transpose(m, 0, 1)));
    assert_non_null(trek_add_(trek_select(m, 0, 0), trek_select(m, 0, 2)));
    trek_var *pairs = trek_reshape(b, trek_dims(3, 2));
    assert_non_null(trek_add_(trek_select(pairs, 1, 0), trek_select(pairs, 1, 1))); /* the even ones, the odd ones */
    assert_non_null(trek_fill_(wide, 3));
    trek_no_grad_end();
    assert_true(at(b, 0) == 1 + 4 + 2 + 5 && at(column, 2) == 3);
}

/* A view of the base by three steps, which the digits of k choose. */
static trek_var *small_view(trek_var *base, uint32_t k)
{
    trek_var *v = trek_reshape(base, k % 3 == 0 ? trek_dims(12) : k % 3 == 1 ? trek_dims(3, 4) : trek_dims(2, 3, 2));
    for (uint32_t digits = k / 3, step = 0; step < 3; step++, digits /= 7) {
        int dim = (int)(digits % (uint32_t)trek_var_ndim(v));
        int64_t size = trek_var_size(v, dim);
        trek_shape doubled = trek_var_shape(trek_unsqueeze(v, 0));
        doubled.sizes[0] = 2;
        switch (digits % 7) {
        case 0: v = trek_narrow(v, dim, 0, (size + 1) / 2); break;
        case 1: v = trek_narrow(v, dim, size / 2, size - size / 2); break;
        case 2: v = trek_transpose(v, 0, -1); break;
        case 3: v = trek_var_ndim(v) > 1 ? trek_select(v, dim, size - 1) : v; break;
        case 4: v = trek_expand(trek_unsqueeze(v, 0), doubled); break;
        case 5: v = trek_narrow(v, dim, size > 1, size - (size > 1)); break;
        default: break;
        }
        assert_non_null(v);
    }
    return v;
}

/* Against the places themselves, which the elements name. */
static void overlaps_are_found(void **state)
{
    trek_var *base = trek_var_from(trek_tensor_arange(0, 12, 1, TREK_F64, test_device()));
    trek_no_grad_begin();
    for (uint32_t k = 0; k < 400; k++) {
        trek_scope inner = trek_scope_begin();
        trek_var *to = small_view(base, (k * 2654435761u) >> 20), *from = small_view(base, (k * 40503u + 77) % 1029);
        bool twice = false, crossed = false, same = trek_var_numel(to) == trek_var_numel(from);
        double places[96], others[96];
        assert_true(trek_var_numel(to) <= 96 && trek_var_numel(from) <= 96);
        for (int64_t i = 0; i < trek_var_numel(to); i++)
            places[i] = at(to, i);
        for (int64_t i = 0; i < trek_var_numel(from); i++)
            others[i] = at(from, i);
        for (int64_t i = 0; i < trek_var_numel(to); i++) {
            for (int64_t j = 0; j < i; j++)
                twice |= places[i] == places[j];
            for (int64_t j = 0; j < trek_var_numel(from); j++)
                crossed |= places[i] == others[j];
            same = same && places[i] == others[i];
        }
        trek_tensor *a = trek_var_data(to), *b = trek_var_data(from);
        assert_int_equal(trek_overlaps_itself(a), twice);
        if (!same) /* the same places in the same order are one view */
            assert_int_equal(trek_overlaps_partly(a, b), crossed);
        trek_scope_end(inner);
    }
    trek_no_grad_end();
}

/* --- what only large integers, empty dimensions and missing lists show ----------------------------------- */

static void large_integers_compare_exactly(void **state)
{
    const int64_t values[6] = { INT64_MIN, -((int64_t)1 << 53) - 1, ((int64_t)1 << 53), ((int64_t)1 << 53) + 1, INT64_MAX - 1,
                                INT64_MAX };
    const double numbers_[] = { -INFINITY, -0x1p64, -0x1p63, -0x1p53, -0.5, 0, 0.5, 0x1p53, 0x1p63, 0x1p64, INFINITY, NAN };
    trek_var *x = trek_var_from(trek_tensor_from_data(values, trek_dims(6), TREK_I64, test_device()));
    for (size_t k = 0; k < sizeof numbers_ / sizeof numbers_[0]; k++) {
        double v = numbers_[k];
        for (int i = 0; i < 6; i++) {
            long double exact = (long double)values[i];
            assert_true(at(trek_eq_scalar(x, v), i) == (exact == (long double)v));
            assert_true(at(trek_ne_scalar(x, v), i) == (exact != (long double)v));
            assert_true(at(trek_lt_scalar(x, v), i) == (exact < (long double)v));
            assert_true(at(trek_le_scalar(x, v), i) == (exact <= (long double)v));
            assert_true(at(trek_gt_scalar(x, v), i) == (exact > (long double)v));
            assert_true(at(trek_ge_scalar(x, v), i) == (exact >= (long double)v));
        }
    }
}

static void empty_dimensions_in_parts(void **state)
{
    trek_var *none = trek_var_from(trek_tensor_zeros(trek_dims(0, 2), TREK_F32, test_device())), *parts[4];
    assert_int_equal(trek_chunk(none, 3, 0, parts, 4), 3);
    for (int k = 0; k < 3; k++)
        assert_true(trek_shape_equal(trek_var_shape(parts[k]), trek_dims(0, 2)));
    assert_int_equal(trek_chunk(none, 5, 0, parts, 4), -1);
    expect_error(TREK_ERR_ARGUMENT, "chunk: ");
    assert_int_equal(trek_split(none, 0, 0, parts, 4), 1);
    assert_int_equal(trek_split(none, 2, 0, parts, 4), 1);
    trek_var *some = constant_of(1, 5, TREK_F32);
    assert_int_equal(trek_split(some, INT64_MAX, 0, parts, 4), 1);
    assert_int_equal(trek_split(some, 0, 0, parts, 4), -1);
    expect_error(TREK_ERR_ARGUMENT, "split: ");
    assert_int_equal(trek_split(some, 2, 0, NULL, 4), -1);
    expect_error(TREK_ERR_ARGUMENT, "split: ");
    assert_int_equal(trek_chunk(some, 2, 0, NULL, 4), -1);
    expect_error(TREK_ERR_ARGUMENT, "chunk: ");
    assert_int_equal(trek_split(trek_sum(some, trek_dims_all(), false), 1, 0, parts, 4), -1);
    expect_error(TREK_ERR_SHAPE, "split: ");
    assert_int_equal(trek_unbind(none, 0, parts, 4), 0);
    assert_int_equal(trek_unbind(some, 0, parts, 1), -1);
    expect_error(TREK_ERR_ARGUMENT, "unbind: ");
    assert_int_equal(trek_unbind(some, 3, parts, 4), -1);
    expect_error(TREK_ERR_ARGUMENT, "unbind: ");
    assert_int_equal(trek_unbind(NULL, 0, parts, 4), -1);
    expect_error(TREK_ERR_ARGUMENT, "unbind: ");
    assert_int_equal(trek_unbind(trek_sum(some, trek_dims_all(), false), 0, parts, 4), -1);
    expect_error(TREK_ERR_SHAPE, "unbind: ");
    same(trek_flip(some, trek_dims_none()), some);
    trek_var *flags = trek_any(trek_cast(some, TREK_U8), trek_dims_all(), false);
    assert_int_equal(trek_var_dtype(flags), TREK_BOOL);
}

static trek_status twice_forward(trek_function_context *context, trek_var *const *inputs, int n, trek_var **outputs,
                                 int n_outputs)
{
    outputs[0] = trek_add(inputs[0], inputs[0]);
    return TREK_OK;
}

static void missing_lists(void **state)
{
    trek_var *x = leaf_of((double[]){ 1, 2 }, 2, TREK_F32), *y = trek_sum(x, trek_dims_all(), false), *grad;
    static const trek_function forward_only = { .name = "twice", .forward = twice_forward }, empty = { .name = "empty" };
    FAILS(trek_grad(&y, 1, &x, 1, NULL, NULL, NULL), TREK_ERR_ARGUMENT, "grad: ");
    FAILS(trek_grad(&y, 1, NULL, 1, NULL, NULL, &grad), TREK_ERR_ARGUMENT, "grad: ");
    FAILS(trek_grad(NULL, 1, &x, 1, NULL, NULL, &grad), TREK_ERR_ARGUMENT, "grad: ");
    FAILS(trek_grad(&y, -1, &x, 1, NULL, NULL, &grad), TREK_ERR_ARGUMENT, "grad: ");
    FAILS(trek_grad(&y, 1, &x, -1, NULL, NULL, &grad), TREK_ERR_ARGUMENT, "grad: ");
    REFUSED(trek_function_apply_one(NULL, NULL, &x, 1), TREK_ERR_ARGUMENT, "function_apply: ");
    REFUSED(trek_function_apply_one(&empty, NULL, &x, 1), TREK_ERR_ARGUMENT, "function_apply: ");
    REFUSED(trek_function_apply_one(&forward_only, NULL, NULL, 1), TREK_ERR_ARGUMENT, "twice: ");
    REFUSED(trek_function_apply_one(&forward_only, NULL, &x, -1), TREK_ERR_ARGUMENT, "twice: ");
    FAILS(trek_function_apply(&forward_only, NULL, &x, 1, NULL, 1), TREK_ERR_ARGUMENT, "twice: ");
    trek_var *twice = trek_sum(trek_function_apply_one(&forward_only, NULL, &x, 1), trek_dims_all(), false);
    assert_int_not_equal(trek_backward(twice), TREK_OK);
    expect_error(TREK_ERR_UNSUPPORTED, "twice: ");
    FAILS(trek_save_for_backward(NULL, &x, 1), TREK_ERR_ARGUMENT, "");
    assert_null(trek_saved(NULL, 0));
    assert_null(trek_function_data(NULL));
    assert_false(trek_needs_grad(NULL, 0));
    trek_error_clear();
    REFUSED(trek_tensor_zeros(trek_shape_make(NULL, 2), TREK_F32, test_device()), TREK_ERR_SHAPE, "tensor_zeros: ");
}

/* --- numbers that a dtype does not hold, and dtypes that an op does not take: as PyTorch ----------------- */

static trek_var *some(trek_dtype dtype) { return trek_var_from(test_values((double[]){ 1, 0, 1 }, trek_dims(3), dtype)); }

static void refused_dtype(trek_var *result, const char *prefix)
{
    REFUSED(result, TREK_ERR_DTYPE, prefix);
}

static void refused_number(trek_var *result, const char *prefix)
{
    REFUSED(result, TREK_ERR_ARGUMENT, prefix);
}

static void numbers_that_do_not_fit(void **state)
{
    const struct number {
        trek_dtype dtype;
        double fits, not;
    } numbers[] = {
        { TREK_U8, 255, 256 },         { TREK_U8, 0.5, -0.5 },        { TREK_U8, 0, -1 },
        { TREK_I32, -0x1p31, 0x1p31 }, { TREK_I64, -0x1p63, 0x1p63 }, { TREK_I64, 1.5, INFINITY },
        { TREK_I32, 0, NAN },          { TREK_F16, 65504, 1e38 },     { TREK_BF16, 1e38, 3.4e38 },
        { TREK_F16, INFINITY, -7e4 },  { TREK_F32, NAN, 1e39 },
    };
    trek_var *mask = some(TREK_BOOL);
    trek_no_grad_begin();
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        trek_var *x = some(numbers[k].dtype);
        assert_non_null(trek_masked_fill(x, mask, numbers[k].fits));
        refused_number(trek_masked_fill(x, mask, numbers[k].not), "masked_fill: ");
        refused_number(trek_fill_(x, numbers[k].not), "fill_: ");
        assert_true(at(x, 0) == 1);
        assert_non_null(trek_fill_(x, numbers[k].fits));
    }
    trek_no_grad_end();
    REFUSED(trek_tensor_full(trek_dims(2), -1, TREK_U8, test_device()), TREK_ERR_ARGUMENT, "fill: ");
    const trek_dtype whole[] = { TREK_BOOL, TREK_U8, TREK_I32, TREK_I64 };
    for (int k = 0; k < 4; k++) {
        refused_number(trek_pow_scalar(some(whole[k]), -2), "pow_scalar: ");
        refused_number(trek_add_scalar(some(whole[k]), 1e38), "add_scalar: ");
        refused_number(trek_mul_scalar(some(whole[k]), -1e38), "mul_scalar: ");
        refused_number(trek_clamp(some(whole[k]), 0, 1e38), "clamp: ");
        assert_int_equal(trek_var_dtype(trek_pow_scalar(some(whole[k]), -0.5)), TREK_F32);
    }
    refused_number(trek_pow_scalar(some(TREK_U8), 256), "pow_scalar: ");
    refused_number(trek_pow_scalar(some(TREK_F16), 1e38), "pow_scalar: ");
    refused_number(trek_clamp(some(TREK_F16), 0, 1e38), "clamp: ");
    assert_true(at(trek_div_scalar(some(TREK_F16), 1e38), 0) == 0);
}

static void dtypes_as_pytorch(void **state)
{
    trek_var *b = some(TREK_BOOL), *x = some(TREK_F32), *i = some(TREK_I64);
    refused_dtype(trek_sub(b, b), "sub: ");
    refused_dtype(trek_sub(x, b), "sub: ");
    refused_dtype(trek_sub(b, i), "sub: ");
    refused_dtype(trek_sub_scalar(b, 1), "sub_scalar: ");
    trek_no_grad_begin();
    refused_dtype(trek_sub_(x, b), "sub_: ");
    trek_no_grad_end();
    assert_int_equal(trek_var_dtype(trek_sign(b)), TREK_BOOL);
    assert_int_equal(trek_var_dtype(trek_square(b)), TREK_I64);
    assert_true(at(trek_sign(b), 0) == 1 && at(trek_square(b), 1) == 0);
    const struct bounds {
        double low, high;
        trek_dtype of_bool, of_i64;
    } bounds[] = { { 0, 1, TREK_I64, TREK_I64 }, { 0.5, 2, TREK_F32, TREK_F32 }, { 0, 0.5, TREK_F32, TREK_F32 },
                   { 0, INFINITY, TREK_F32, TREK_F32 }, { -INFINITY, 0, TREK_F32, TREK_F32 } };
    for (int k = 0; k < 5; k++) {
        assert_int_equal(trek_var_dtype(trek_clamp(b, bounds[k].low, bounds[k].high)), bounds[k].of_bool);
        assert_int_equal(trek_var_dtype(trek_clamp(i, bounds[k].low, bounds[k].high)), bounds[k].of_i64);
    }
    assert_true(at(trek_clamp(i, 0.5, 2), 1) == 0.5);
    assert_int_equal(trek_var_dtype(trek_norm(i, 1, trek_dims_all(), false)), TREK_F32);
    assert_true(at(trek_norm(trek_add_scalar(i, 1), -1, trek_dims_all(), false), 0) == 0.5);
}

/* Also where the result has no elements. */
static void nothing_has_no_largest(void **state)
{
    trek_var *(*const ops[])(trek_var *, trek_dims_list, bool) = { trek_max, trek_min, trek_argmax, trek_argmin };
    trek_var *x = numbers(1, trek_dims(0, 0), false), *y = numbers(1, trek_dims(0, 3), false);
    for (int k = 0; k < 4; k++) {
        REFUSED(ops[k](x, trek_dims(0), false), TREK_ERR_SHAPE, "");
        assert_null(ops[k](x, trek_dims(-1), true));
        trek_error_clear();
        assert_true(trek_var_numel(ops[k](y, trek_dims(1), false)) == 0);
    }
}

/* As PyTorch's: with ceil_mode the only window may reach beyond the input, but begins in it. */
static void windows_larger_than_the_input(void **state)
{
    trek_var *x = constant_of(6, 4, TREK_F32);
    for (int size = 1; size <= 2; size++) {
        trek_var *image = trek_expand(trek_reshape(trek_narrow(x, 0, 0, 1), trek_dims(1, 1, 1, 1)), trek_dims(1, 1, size, size));
        const trek_pool_opts fits = { .kernel = { 3 }, .ceil_mode = true },
            not = { .kernel = { 4 }, .stride = { 2 }, .ceil_mode = true };
        same(trek_max_pool2d(image, &fits), trek_reshape(constant_of(6, 1, TREK_F32), trek_dims(1, 1, 1, 1)));
        same(trek_avg_pool2d(image, &fits), trek_reshape(constant_of(6, 1, TREK_F32), trek_dims(1, 1, 1, 1)));
        REFUSED(trek_max_pool2d(image, &not), TREK_ERR_SHAPE, "max_pool2d: ");
        REFUSED(trek_avg_pool2d(image, &not), TREK_ERR_SHAPE, "avg_pool2d: ");
    }
}

static void divisors_that_16_bits_do_not_hold(void **state)
{
    const double eleven = 11;
    trek_var *zero = constant_of(0, 1, TREK_F16), *x = trek_var_from(test_values(&eleven, trek_dims(1), TREK_BF16));
    assert_true(at(trek_div_scalar(zero, 1e-40), 0) == 0);
    assert_true(at(trek_div_scalar(x, 0.3007), 0) == 36.5); /* 36.58; by bf16's 0.30078 36.57, by 0.3 36.67 */
    assert_true(at(trek_div_scalar(x, 0.3), 0) == 36.75);   /* 36.67 */
    assert_int_equal(trek_var_dtype(trek_div_scalar(x, 0.3)), TREK_BF16);
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    assert_int_equal(trek_backward_with(trek_div_scalar(x, 0.3), NULL, NULL), TREK_OK);
    assert_true(at(trek_var_grad(x), 0) == 3.328125);
}

/* With create_graph as without: Phi(x) + x phi(x) cancels in f32. */
static void slope_of_gelu_far_out(void **state)
{
    const double values[] = { -5.5, -4.5, -3, 0, 2 };
    for (int form = 0; form < 2; form++) {
        trek_var *x = trek_var_from(test_values(values, trek_dims(5), TREK_F32)), *slopes[2], *wide[1];
        trek_var *x64 = trek_cast(x, TREK_F64);
        assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
        assert_int_equal(trek_var_set_requires_grad(x64, true), TREK_OK);
        for (int create = 0; create < 2; create++) {
            trek_var *y = trek_sum(form ? trek_gelu_tanh(x) : trek_gelu(x), trek_dims_all(), false);
            assert_int_equal(trek_grad(&y, 1, &x, 1, NULL, &(trek_backward_opts){ .create_graph = create }, &slopes[create]),
                             TREK_OK);
        }
        trek_var *y = trek_sum(form ? trek_gelu_tanh(x64) : trek_gelu(x64), trek_dims_all(), false);
        assert_int_equal(trek_grad(&y, 1, &x64, 1, NULL, NULL, wide), TREK_OK);
        for (int k = 0; k < 5; k++)
            assert_true(fabs(at(slopes[1], k) - at(wide[0], k)) <= 1e-6 * fabs(at(wide[0], k)));
        assert_int_equal(trek_var_dtype(slopes[1]), TREK_F32);
    }
}

/* 30 x 30 x 100 is infinite in f16, the products of two are not. */
static void product_beyond_its_dtype(void **state)
{
    const double values[] = { 30, 30, 100 };
    trek_var *x = trek_var_from(test_values(values, trek_dims(3), TREK_F16));
    assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
    assert_int_equal(trek_backward(trek_prod(x, trek_dims_all(), false)), TREK_OK);
    assert_true(at(trek_var_grad(x), 0) == 3000 && at(trek_var_grad(x), 1) == 3000 && at(trek_var_grad(x), 2) == 900);
}

/* Broadcast dimensions are folded once: as if each number stood there. */
static void reductions_of_broadcast_inputs(void **state)
{
    trek_var *(*const ops[])(trek_var *, trek_dims_list, bool) = { trek_sum, trek_mean, trek_prod, trek_max, trek_min, trek_any,
                                                                   trek_all, trek_logsumexp, trek_std, trek_variance };
    const double values[] = { 2, 3, 0, 1 };
    trek_var *narrow = trek_var_from(test_values(values, trek_dims(4, 1), TREK_F64)),
        *wide = trek_expand(narrow, trek_dims(4, 13));
    trek_var *written = trek_add_scalar(wide, 0);
    for (int k = 0; k < 10; k++)
        for (int dim = 0; dim < 3; dim++) {
            trek_dims_list dims = dim < 2 ? trek_dims(dim) : trek_dims_all();
            trek_var *got = ops[k](wide, dims, false), *want = ops[k](trek_contiguous(written), dims, false);
            for (int64_t i = 0; i < trek_var_numel(want); i++)
                assert_true(fabs(at(got, i) - at(want, i)) <= 1e-12 * fabs(at(want, i)));
        }
    trek_var *bytes = trek_expand(trek_cast(narrow, TREK_U8), trek_dims(4, 13));
    assert_true(at(trek_sum(bytes, trek_dims(1), false), 1) == 39 && at(trek_prod(bytes, trek_dims(1), false), 0) == 8192);
    assert_true(at(trek_max(bytes, trek_dims_all(), false), 0) == 3 && at(trek_min(bytes, trek_dims_all(), false), 0) == 0);
    assert_true(at(trek_any(bytes, trek_dims_all(), false), 0) == 1 && at(trek_all(bytes, trek_dims_all(), false), 0) == 0);
}

/* Pairs are added in f32, which 3e38 twice overflows; NaN is seen wherever it stands. */
static void long_rows_of_extremes(void **state)
{
    double values[130];
    for (int place = 0; place < 130; place++) {
        for (int k = 0; k < 130; k++)
            values[k] = k == place || k == (place + 8) % 130 ? 3e38 : k == (place + 1) % 130 ? -3e38 : 1;
        trek_var *x = trek_var_from(test_values(values, trek_dims(130), TREK_F32));
        assert_true(fabs(at(trek_sum(x, trek_dims_all(), false), 0) / 3e38 - 1) < 1e-6);
        values[place] = NAN;
        for (int half = 0; half < 2; half++) {
            trek_var *y = trek_var_from(test_values(values, trek_dims(130), half ? TREK_F64 : TREK_F32));
            assert_true(isnan(at(trek_max(y, trek_dims_all(), false), 0)) && isnan(at(trek_min(y, trek_dims_all(), false), 0)));
            assert_true(isnan(at(trek_sum(y, trek_dims_all(), false), 0)));
            trek_var *running = trek_cumsum(y, 0);
            assert_true(isnan(at(running, 129)) && (place == 0 || !isnan(at(running, place - 1))));
        }
    }
}

/* Transposed copies pass through blocks of 16 bytes and what is left over, where rows lie apart as they may and where they lie
 * some 2,048 bytes apart. */
static void transposed_copies(void **state)
{
    const trek_dtype dtypes[] = { TREK_U8, TREK_BF16, TREK_F32, TREK_F64 };
    static double values[77 * 83], got[77 * 83];
    for (int k = 0; k < 77 * 83; k++)
        values[k] = k % 251;
    for (int d = 0; d < 8; d++) {
        const trek_dtype dtype = dtypes[d / 2];
        trek_var *x = trek_var_from(test_values(values, trek_dims(77, 83), dtype));
        if (d % 2) {
            trek_var *parts[] = { x, trek_var_from(trek_tensor_zeros(trek_dims(77, 2048 - 83), dtype, test_device())) };
            x = trek_narrow(trek_cat(parts, 2, 1), 1, 0, 83);
        }
        trek_var *turned = trek_transpose(x, 0, 1);
        trek_var *results[] = { trek_contiguous(turned), trek_clone(turned),
                                trek_flip(trek_flip(turned, trek_dims(0)), trek_dims(0)),
                                trek_flip(trek_flip(turned, trek_dims(0, 1)), trek_dims(1, 0)), trek_tril(turned, -2),
                                trek_triu(turned, -1) };
        for (int c = 0; c < 6; c++) {
            assert_int_equal(trek_tensor_to_host(trek_var_data(results[c]), TREK_F64, got, sizeof got), TREK_OK);
            for (int64_t k = 0; k < 77 * 83; k++) {
                int64_t row = k / 77, column = k % 77;
                bool kept = c < 4 || (c == 4 ? column <= row - 2 : column >= row - 1);
                assert_true(got[k] == (kept ? values[column * 83 + row] : 0));
            }
        }
    }
}

/* Not the rows that they are made of. */
static void errors_name_what_was_called(void **state)
{
    trek_var *x = numbers(1, trek_dims(3), false), *y = numbers(2, trek_dims(2), false), *whole = trek_cast(x, TREK_I64);
    trek_var *half = trek_cast(x, TREK_BF16), *line = numbers(3, trek_dims(1, 2, 6), false);
    trek_var *volume = numbers(4, trek_dims(1, 2, 4, 4, 4), false), *image = numbers(4, trek_dims(1, 2, 4, 4), false);
    const trek_pool_opts padded = { .kernel = { 2 }, .padding = { 2, 2 } };
    const trek_conv_opts still = { .stride = { TREK_ZERO } };
    REFUSED(trek_hardswish(whole), TREK_ERR_DTYPE, "hardswish: ");
    REFUSED(trek_leaky_relu(NULL, 1), TREK_ERR_ARGUMENT, "leaky_relu: ");
    REFUSED(trek_relu6(whole), TREK_ERR_DTYPE, "relu6: ");
    REFUSED(trek_addcmul(x, y, y, 1), TREK_ERR_SHAPE, "addcmul: ");
    REFUSED(trek_addcdiv(x, x, y, 1), TREK_ERR_SHAPE, "addcdiv: ");
    REFUSED(trek_lerp(x, y, 0.5), TREK_ERR_SHAPE, "lerp: ");
    REFUSED(trek_dot(x, half), TREK_ERR_DTYPE, "dot: ");
    REFUSED(trek_dot(x, y), TREK_ERR_SHAPE, "dot: ");
    REFUSED(trek_conv1d(line, numbers(5, trek_dims(2, 3, 2), false), NULL, NULL), TREK_ERR_SHAPE, "conv1d: ");
    REFUSED(trek_conv3d(volume, numbers(5, trek_dims(2, 3, 2, 2, 2), false), NULL, NULL), TREK_ERR_SHAPE, "conv3d: ");
    REFUSED(trek_avg_pool1d(line, &padded), TREK_ERR_ARGUMENT, "avg_pool1d: ");
    REFUSED(trek_avg_pool3d(volume, &padded), TREK_ERR_ARGUMENT, "avg_pool3d: ");
    REFUSED(trek_max_pool3d(volume, &padded), TREK_ERR_ARGUMENT, "max_pool3d: ");
    REFUSED(trek_avg_pool2d(image, &padded), TREK_ERR_ARGUMENT, "avg_pool2d: ");
    REFUSED(trek_conv2d(image, numbers(5, trek_dims(2, 2, 2, 2), false), NULL, &still), TREK_ERR_ARGUMENT, "stride [0, 0]");
    REFUSED(trek_take_along_dim(numbers(5, trek_dims(3, 3), false), trek_cast(numbers(6, trek_dims(4, 2), false), TREK_I64), 1),
            TREK_ERR_SHAPE, "take_along_dim: ");
    REFUSED(trek_mul(x, y), TREK_ERR_SHAPE, "mul: "); /* and afterwards itself */
}

/* The smaller addend is not lost to the product's rounding. */
static void added_products_round_once(void **state)
{
    for (int batched = 0; batched < 2; batched++) {
        const double ones[] = { 1, 1 }, less[] = { -1 }, columns[] = { 1, 0.00195 };
        trek_shape square = batched ? trek_dims(1, 1, 1) : trek_dims(1, 1);
        trek_var *x = trek_var_from(test_values(less, square, TREK_BF16)), *slope[3];
        trek_var *y = trek_var_from(test_values(ones, batched ? trek_dims(1, 1, 2) : trek_dims(1, 2), TREK_BF16));
        trek_var *z = trek_var_from(test_values(columns, batched ? trek_dims(1, 2, 1) : trek_dims(2, 1), TREK_BF16));
        trek_var *in[3] = { x, y, z };
        for (int k = 0; k < 3; k++)
            assert_int_equal(trek_var_set_requires_grad(in[k], true), TREK_OK);
        trek_var *sum = batched ? trek_baddbmm(x, y, z, 1, 1) : trek_addmm(x, y, z, 1, 1);
        assert_int_equal(trek_var_dtype(sum), TREK_BF16);
        assert_true(fabs(at(sum, 0) - at(z, 1)) < 1e-7);
        trek_var *seed = trek_ones_like(sum);
        assert_int_equal(trek_grad(&sum, 1, in, 3, &seed, NULL, slope), TREK_OK);
        assert_true(at(slope[0], 0) == 1 && at(slope[1], 1) == at(z, 1) && at(slope[2], 1) == 1);
        assert_int_equal(trek_var_dtype(slope[1]), TREK_BF16);
    }
}

/* Nothing varies, and nothing is added: 0, with gradients of 0, as PyTorch's instance norm. */
static void norm_of_what_does_not_vary(void **state)
{
    for (int create = 0; create < 2; create++) {
        trek_var *x = trek_ones_like(numbers(1, trek_dims(2, 2, 3), false)), *slope;
        assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
        trek_var *y = trek_batch_norm(x, NULL, NULL, NULL, NULL, true, 0.1, 0), *ones = trek_ones_like(y);
        assert_int_equal(trek_grad(&y, 1, &x, 1, &ones, &(trek_backward_opts){ .create_graph = create }, &slope), TREK_OK);
        same(y, trek_zeros_like(y));
        same(trek_var_detach(slope), trek_zeros_like(y));
    }
}

/* Of functions that treat large arguments otherwise. */
static void neighbours_change_no_bit(void **state)
{
    enum { COUNT = 700 };
    trek_var *(*const functions[])(trek_var *) = { trek_sin, trek_cos, trek_tan, trek_exp, trek_log, trek_tanh, trek_sigmoid,
                                                   trek_gelu, trek_erf, trek_expm1, trek_log1p, trek_atan, trek_sinh };
    const float large[] = { INFINITY, NAN, 3e38f, -3e9f };
    trek_scope scope = trek_scope_begin();
    for (size_t k = 0; k < sizeof functions / sizeof *functions * 4; k++) {
        float values[2][COUNT];
        for (int i = 0; i < COUNT; i++)
            values[0][i] = values[1][i] = (float)(i * 37 % COUNT) * 0.0123f - 4;
        values[1][333] = large[k % 4];
        const char *results[2];
        for (int w = 0; w < 2; w++) {
            trek_var *x = trek_var_from(trek_tensor_from_data(values[w], trek_dims(COUNT), TREK_F32, trek_cpu(0)));
            trek_var *y = functions[k / 4](x);
            assert_non_null(y);
            results[w] = trek_tensor_data(trek_var_data(y));
        }
        assert_memory_equal(results[0], results[1], 333 * sizeof(float));
        assert_memory_equal(results[0] + 334 * sizeof(float), results[1] + 334 * sizeof(float), (COUNT - 334) * sizeof(float));
    }
    assert_int_equal(trek_scope_end(scope), TREK_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(gradients_where_functions_bend), TEST(nothing_overflows_on_the_way), TEST(steep_formulas_in_16_bits),
        TEST(mixed_dtypes_round_last), TEST(neighbours_change_no_bit), TEST(overlapping_memory_is_refused),
        TEST(overlaps_are_found),
        TEST(windows_in_the_padding), TEST(mean_of_nothing_again), TEST(norm_in_evaluation_is_linear),
        TEST(large_integers_compare_exactly), TEST(empty_dimensions_in_parts), TEST(missing_lists), TEST(numbers_that_do_not_fit),
        TEST(dtypes_as_pytorch), TEST(nothing_has_no_largest), TEST(windows_larger_than_the_input),
        TEST(divisors_that_16_bits_do_not_hold), TEST(slope_of_gelu_far_out), TEST(product_beyond_its_dtype),
        TEST(reductions_of_broadcast_inputs), TEST(long_rows_of_extremes), TEST(transposed_copies),
        TEST(errors_name_what_was_called),
        TEST(added_products_round_once), TEST(norm_of_what_does_not_vary),
    };
    return cmocka_run_group_tests_name("functional_edges", tests, NULL, NULL);
}
