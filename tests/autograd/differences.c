/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/autograd/differences.h"

#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/copies.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST = 4 };

trek_var *values_of(trek_shape shape, trek_dtype dtype, const double *numbers)
{
    return trek_var_from(test_values(numbers, shape, dtype));
}

trek_var *random_values(uint32_t stream, trek_shape shape)
{
    trek_tensor *narrow = test_tensor(stream, shape, 1), *wide = trek_tensor_cast(narrow, TREK_F64);
    trek_tensor_release(narrow);
    return trek_var_from(wide);
}

void assert_values(trek_var *v, size_t n, const double *wanted, int line)
{
    double have[64];
    if (!v)
        fail_msg("line %d: %s", line, trek_error());
    if ((size_t)trek_var_numel(v) != n || trek_tensor_to_host(trek_var_data(v), TREK_F64, have, n * sizeof *have) != TREK_OK)
        fail_msg("line %d: %lld elements, not %zu", line, (long long)trek_var_numel(v), n);
    for (size_t i = 0; i < n; i++)
        if (!(fabs(have[i] - wanted[i]) <= 1e-6 * fmax(1, fabs(wanted[i])) || (isnan(have[i]) && isnan(wanted[i])) ||
              have[i] == wanted[i]))
            fail_msg("line %d: element %zu is %g, not %g", line, i, have[i], wanted[i]);
}

/* What is differentiated: the weighted sum itself, or of its gradients. */
static trek_var *total(function_of *f, int n, trek_var **in, bool of_gradients)
{
    trek_var *y = f(in);
    if (!y)
        fail_msg("%s", trek_error());
    trek_var *sum = trek_sum(trek_mul(y, random_values(77, trek_var_shape(y))), trek_dims_all(), false), *grads[MOST];
    if (!of_gradients)
        return sum;
    trek_var *wanted[MOST], *whole = NULL;
    for (int k = 0; k < n; k++)
        wanted[k] = in[k];
    SUCCEEDS(trek_grad(&sum, 1, wanted, n, NULL, &(trek_backward_opts){ .create_graph = true }, grads));
    for (int k = 0; k < n; k++) {
        trek_var *part = trek_sum(trek_mul(grads[k], random_values(90 + (uint32_t)k, trek_var_shape(grads[k]))),
                                  trek_dims_all(), false);
        whole = whole ? trek_add(whole, part) : part;
    }
    return whole;
}

/* The inputs as leaves, one element of one of them moved. */
static void make_inputs(int n, const trek_shape *shapes, trek_var **in, int moved, int64_t at, double by)
{
    for (int k = 0; k < n; k++) {
        in[k] = trek_clone(random_values(10 + (uint32_t)k, shapes[k]));
        double *numbers = test_read(trek_var_data(in[k]));
        if (k == moved)
            numbers[at] += by;
        in[k] = values_of(shapes[k], TREK_F64, numbers);
        free(numbers);
        assert_int_equal(trek_var_set_requires_grad(in[k], true), TREK_OK);
    }
}

static double value_at(function_of *f, int n, const trek_shape *shapes, bool of_gradients, int k, int64_t at, double by)
{
    trek_var *in[MOST];
    trek_scope scope = trek_scope_begin();
    make_inputs(n, shapes, in, k, at, by);
    double value = trek_var_item(total(f, n, in, of_gradients));
    trek_scope_end(scope);
    return value;
}

static void check_order(function_of *f, int n, const trek_shape *shapes, bool of_gradients)
{
    trek_var *in[MOST], *grads[MOST];
    make_inputs(n, shapes, in, -1, 0, 0);
    trek_var *sum = total(f, n, in, of_gradients);
    if (!trek_var_requires_grad(sum) && of_gradients) /* of a linear function */
        return;
    SUCCEEDS(trek_grad(&sum, 1, in, n, NULL, NULL, grads));
    for (int k = 0; k < n; k++) {
        double *have = grads[k] ? test_read(trek_var_data(grads[k])) : NULL;
        for (int64_t i = 0; i < trek_var_numel(in[k]); i++) {
            double step = 1e-5, slope = (value_at(f, n, shapes, of_gradients, k, i, step) -
                                         value_at(f, n, shapes, of_gradients, k, i, -step)) / (2 * step);
            double grad = have ? have[i] : 0;
            if (!(fabs(grad - slope) <= 2e-6 * fmax(1, fabs(slope))))
                fail_msg("%s derivative of input %d, element %lld: %g, by differences %g", of_gradients ? "second" : "first", k,
                         (long long)i, grad, slope);
        }
        free(have);
    }
}

void check_gradients(function_of *f, int n, const trek_shape *shapes, bool second)
{
    trek_scope scope = trek_scope_begin();
    check_order(f, n, shapes, false);
    if (second)
        check_order(f, n, shapes, true);
    trek_scope_end(scope);
}
