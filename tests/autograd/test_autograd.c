/* SPDX-License-Identifier: Apache-2.0 */
/* The tape: accumulation, hooks, no_grad, retained graphs, what overwriting and
 * freeing give, user functions, promotion of gradients. */
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/creation.h"
#include "tensor/devices.h"
#include "tensor/memory.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static trek_var *full(double value, trek_shape shape, trek_dtype dtype, bool requires_grad)
{
    trek_var *v = trek_var_from(trek_tensor_full(shape, value, dtype, test_device()));
    if (requires_grad)
        assert_int_equal(trek_var_set_requires_grad(v, true), TREK_OK);
    return v;
}

static double element(const trek_var *v, int64_t k)
{
    double values[64];
    assert_non_null(v);
    assert_true(trek_var_numel(v) <= 64);
    assert_int_equal(trek_tensor_to_host(trek_var_data(v), TREK_F64, values, sizeof(double) * (size_t)trek_var_numel(v)),
                     TREK_OK);
    return values[k];
}

static trek_var *total(trek_var *x)
{
    return trek_sum(x, trek_dims_all(), false);
}

static void expect(trek_status status)
{
    if (trek_error_status() != status)
        fail_msg("%s, should be %s (%s)", trek_status_name(trek_error_status()), trek_status_name(status), trek_error());
    trek_error_clear();
}

/* CPUs share memory: their values mix freely, and a leaf's gradient is where the leaf is. */
static void values_of_several_cpus(void **state)
{
    if (!test_on_cpu())
        skip();
    double grads[2][3];
    for (int abroad = 0; abroad < 2; abroad++) {
        trek_device other = trek_cpu(abroad ? 2 : 0), third = trek_cpu(abroad ? 5 : 0);
        trek_var *x = trek_var_new(trek_tensor_full(trek_dims(2, 3), 0.5, TREK_F64, trek_cpu(0)), true);
        trek_var *w = trek_var_new(trek_tensor_full(trek_dims(4, 3), 0.25, TREK_F64, other), true);
        trek_var *b = trek_var_new(trek_tensor_full(trek_dims(4), -1, TREK_F64, third), true);
        for (int k = 0; k < 3; k++)
            trek_tensor_release(trek_var_data((trek_var *[]){ x, w, b }[k]));
        trek_var *classes = trek_var_from(trek_tensor_full(trek_dims(4), 2, TREK_F64, third));
        trek_var *labels = trek_var_from(trek_tensor_full(trek_dims(2), 3, TREK_I64, other));
        for (int pass = 0; pass < 2; pass++) { /* the second adds up */
            trek_var *y = trek_linear(x, w, b);
            trek_var *parts[] = { y, trek_mul(b, trek_cast(classes, TREK_F32)), trek_sum(x, trek_dims(0), false) };
            trek_var *loss = trek_add(trek_cross_entropy_with(y, labels, &(trek_cross_entropy_opts){ .weight = classes }),
                                      total(trek_mul(parts[1], parts[1])));
            SUCCEEDS(trek_backward(trek_add(loss, total(parts[2]))));
        }
        trek_var *leaves[] = { x, w, b };
        for (int k = 0; k < 3; k++) {
            assert_true(trek_device_equal(trek_var_device(trek_var_grad(leaves[k])), trek_var_device(leaves[k])));
            grads[abroad][k] = element(trek_var_grad(leaves[k]), 0);
        }
        trek_no_grad_begin(); /* in place: where it was */
        trek_var *same = trek_add_(w, trek_var_grad(b) ? trek_reshape(b, trek_dims(4, 1)) : NULL);
        trek_no_grad_end();
        assert_true(same && trek_device_equal(trek_var_device(same), other));
        for (int k = 0; k < 3; k++)
            trek_var_release(leaves[k]);
    }
    for (int k = 0; k < 3; k++)
        assert_true(grads[0][k] == grads[1][k] && grads[0][k] != 0);
}

/* What no op made: new variables, also those that need no gradient, and what is cut off the tape. */
static void leaves(void **state)
{
    trek_var *x = full(3, trek_dims(2), TREK_F32, true), *constant = full(1, trek_dims(2), TREK_F32, false), *y = trek_mul(x, x);
    assert_true(trek_var_is_leaf(x) && trek_var_is_leaf(constant));
    assert_false(trek_var_is_leaf(y) || trek_var_is_leaf(trek_narrow(x, 0, 0, 1)));
    assert_true(trek_var_is_leaf(trek_mul(constant, constant))); /* nothing was recorded */
    assert_true(trek_var_is_leaf(trek_var_detach(y)));
    trek_no_grad_begin();
    assert_true(trek_var_is_leaf(trek_mul(x, x)));
    trek_no_grad_end();
    assert_int_equal(trek_backward(total(y)), TREK_OK);
    assert_true(trek_var_is_leaf(trek_var_grad(x)));
    assert_false(trek_var_is_leaf(NULL));
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void gradients_accumulate(void **state)
{
    trek_var *x = full(3, trek_dims(2), TREK_F32, true);
    assert_null(trek_var_grad(x));
    assert_int_equal(trek_backward(total(trek_mul(x, x))), TREK_OK);
    assert_true(element(trek_var_grad(x), 1) == 6);
    assert_int_equal(trek_backward(total(trek_mul(x, x))), TREK_OK);
    assert_true(element(trek_var_grad(x), 1) == 12);
    trek_var_zero_grad(x);
    assert_int_equal(trek_backward(total(x)), TREK_OK);
    assert_true(element(trek_var_grad(x), 1) == 1);
}

static void one_value_used_often(void **state)
{
    trek_var *x = full(2, trek_dims(3), TREK_F64, true), *y = x;
    for (int k = 0; k < 5; k++)
        y = trek_add(y, trek_mul(y, x)); /* y (1 + x) */
    assert_int_equal(trek_backward(total(y)), TREK_OK);
    /* d/dx x (1 + x)^5 */
    assert_true(fabs(element(trek_var_grad(x), 0) - (pow(3, 5) + 2 * 5 * pow(3, 4))) < 1e-9);
}

static void gradients_have_their_inputs_shape_and_dtype(void **state)
{
    trek_var *x = full(2, trek_dims(2, 3), TREK_F64, true), *y = full(3, trek_dims(3), TREK_F32, true);
    trek_var *s = full(4, trek_dims_none(), TREK_F32, true);
    assert_int_equal(trek_backward(total(trek_mul(trek_mul(x, y), s))), TREK_OK);
    assert_int_equal(trek_var_dtype(trek_var_grad(y)), TREK_F32);
    assert_int_equal(trek_var_ndim(trek_var_grad(y)), 1);
    assert_true(element(trek_var_grad(y), 0) == 16);
    assert_int_equal(trek_var_ndim(trek_var_grad(s)), 0);
    assert_true(element(trek_var_grad(s), 0) == 36);
    assert_true(element(trek_var_grad(x), 5) == 12);
}

static void scalars_do_not_widen(void **state)
{
    trek_var *x = full(2, trek_dims(2), TREK_F32, false), *s = full(3, trek_dims_none(), TREK_F64, false);
    assert_int_equal(trek_var_dtype(trek_mul(x, s)), TREK_F32);
    assert_int_equal(trek_var_dtype(trek_mul(full(1, trek_dims(2), TREK_I32, false), s)), TREK_F64);
    assert_int_equal(trek_var_dtype(trek_add(full(1, trek_dims(2), TREK_U8, false), full(1, trek_dims_none(), TREK_I64, false))),
                     TREK_U8);
}

static void a_second_pass_needs_retain(void **state)
{
    trek_var *x = full(3, trek_dims(2), TREK_F32, true), *y = total(trek_mul(x, x));
    assert_int_equal(trek_backward_with(y, NULL, &(trek_backward_opts){ .retain_graph = true }), TREK_OK);
    assert_int_equal(trek_backward(y), TREK_OK);
    assert_true(element(trek_var_grad(x), 0) == 12);
    FAILS(trek_backward(y), TREK_ERR_STATE, "");
}

static void bad_roots(void **state)
{
    trek_var *x = full(3, trek_dims(2), TREK_F32, true);
    FAILS(trek_backward(trek_exp(x)), TREK_ERR_SHAPE, "variable: [2]; must be a scalar: trek_mean or trek_sum makes one");
    FAILS(trek_backward(total(full(3, trek_dims(2), TREK_F32, false))), TREK_ERR_STATE, "");
    FAILS(trek_backward_with(trek_exp(x), full(1, trek_dims(3), TREK_F32, false), NULL), TREK_ERR_SHAPE, "");
    assert_int_not_equal(trek_backward(NULL), TREK_OK);
    trek_error_clear();
    assert_null(trek_var_grad(x));
    FAILS(trek_var_set_requires_grad(full(1, trek_dims(2), TREK_I64, false), true), TREK_ERR_DTYPE, "");
    FAILS(trek_var_set_requires_grad(trek_exp(x), false), TREK_ERR_STATE, "");
}

static void no_grad_records_nothing(void **state)
{
    trek_var *x = full(3, trek_dims(2), TREK_F32, true);
    assert_true(trek_grad_enabled());
    trek_no_grad_begin();
    trek_no_grad_begin();
    assert_false(trek_grad_enabled());
    assert_false(trek_var_requires_grad(trek_exp(x)));
    trek_no_grad_end();
    assert_false(trek_var_requires_grad(trek_exp(x)));
    trek_no_grad_end();
    assert_true(trek_var_requires_grad(trek_exp(x)));
    assert_false(trek_var_requires_grad(trek_var_detach(trek_exp(x))));
}

static void in_place_only_without_grad(void **state)
{
    trek_var *x = full(3, trek_dims(2), TREK_F32, false), *y = full(2, trek_dims(2), TREK_F32, false);
    assert_null(trek_add_(x, y));
    expect(TREK_ERR_STATE);
    trek_no_grad_begin();
    assert_ptr_equal(trek_add_(x, y), x);
    assert_true(element(x, 0) == 5);
    assert_ptr_equal(trek_mul_(x, y), x);
    assert_ptr_equal(trek_sub_(x, y), x);
    assert_ptr_equal(trek_div_(x, y), x);
    assert_true(element(x, 0) == 4);
    assert_ptr_equal(trek_fill_(x, 9), x);
    assert_ptr_equal(trek_copy_(x, y), x);
    assert_true(element(x, 1) == 2);
    assert_null(trek_add_(x, full(1, trek_dims(3), TREK_F32, false)));
    expect(TREK_ERR_SHAPE);
    trek_no_grad_end();
}

static void overwriting_what_was_saved(void **state)
{
    trek_var *x = full(3, trek_dims(2), TREK_F32, true), *y = trek_exp(x), *loss = total(y);
    trek_no_grad_begin();
    assert_non_null(trek_fill_(y, 0));
    trek_no_grad_end();
    FAILS(trek_backward(loss), TREK_ERR_STATE, "exp");
}

/* --- hooks ------------------------------------------------------------------------------ */

static int hook_calls;

static trek_var *double_it(trek_var *var, trek_var *grad, void *arg)
{
    hook_calls += *(int *)arg;
    return trek_mul_scalar(grad, 2);
}

static trek_var *watch(trek_var *var, trek_var *grad, void *arg)
{
    hook_calls += *(int *)arg;
    assert_ptr_equal(trek_var_grad(var), grad);
    return NULL;
}

static void hooks(void **state)
{
    int one = 1, hundred = 100;
    hook_calls = 0;
    trek_var *x = full(3, trek_dims(2), TREK_F32, true), *y = trek_mul(x, x);
    assert_true(trek_var_on_grad(y, double_it, &one) > 0);
    int handle = trek_var_on_grad(x, watch, &hundred);
    assert_true(handle > 0);
    assert_int_equal(trek_backward(total(trek_add(y, y))), TREK_OK);
    assert_int_equal(hook_calls, 101);
    assert_true(element(trek_var_grad(x), 0) == 24);
    trek_var_remove_hook(x, handle);
    assert_int_equal(trek_backward(total(x)), TREK_OK);
    assert_int_equal(hook_calls, 101);
}

/* The slope's slope in x and in a weight, through a fused op that create_graph takes to pieces. */
static void bend_of_fused(bool hooked, double *bends, double *slopes)
{
    int one = 1;
    const double points[3] = { 0.5, -1.25, 2 }, gains[3] = { 1.5, 0.75, -2 };
    trek_var *x = trek_var_from(test_values(points, trek_dims(1, 3), TREK_F64));
    trek_var *gain = trek_var_from(test_values(gains, trek_dims(3), TREK_F64));
    trek_var_set_requires_grad(x, true);
    trek_var_set_requires_grad(gain, true);
    int handle = hooked ? trek_var_on_grad(gain, watch, &one) : 0;
    trek_var *before = trek_mul(trek_mul(x, x), gain), *y = trek_layer_norm(before, 1, gain, NULL, 1e-5);
    trek_var *loss = total(trek_mul(trek_mul(y, y), before)), *slope;
    assert_int_equal(trek_backward_with(loss, NULL, &(trek_backward_opts){ .create_graph = true }), TREK_OK);
    for (int k = 0; k < 3; k++)
        slopes[k] = element(trek_var_grad(x), k), slopes[3 + k] = element(trek_var_grad(gain), k);
    slope = total(trek_mul(trek_var_grad(x), trek_var_grad(x)));
    trek_var *grads[2];
    assert_int_equal(trek_grad(&slope, 1, (trek_var *[]){ x, gain }, 2, NULL, NULL, grads), TREK_OK);
    for (int k = 0; k < 3; k++)
        bends[k] = element(grads[0], k), bends[3 + k] = element(grads[1], k);
    if (handle)
        trek_var_remove_hook(gain, handle);
}

/* While a hook is alive walks count what they reach, but not those that a composite makes within another's. */
static void hooks_beside_composites(void **state)
{
    double plain[12], hooked[12];
    hook_calls = 0;
    bend_of_fused(false, plain, plain + 6);
    assert_int_equal(hook_calls, 0);
    bend_of_fused(true, hooked, hooked + 6);
    assert_int_equal(hook_calls, 1);
    for (int k = 0; k < 12; k++)
        assert_true(plain[k] == hooked[k]);
}

/* A backward within a backward: of a loss of its own, which was recorded before, over a leaf that the outer pass knows, too. */
typedef struct within {
    trek_var *loss, *leaf;
    trek_status status;
    int calls;
    double last;
} within;

static trek_status pass_on(trek_function_context *context, trek_var *const *inputs, int n, trek_var **outputs, int n_outputs)
{
    outputs[0] = inputs[0];
    return TREK_OK;
}

static trek_status go_back_within(trek_function_context *context, trek_var *const *grads, int n, trek_var **input_grads,
                                  int n_inputs)
{
    within *w = trek_function_data(context);
    w->status = trek_backward(w->loss);
    input_grads[0] = grads[0];
    return TREK_OK;
}

static trek_var *note_last(trek_var *var, trek_var *grad, void *arg)
{
    within *w = arg;
    w->calls++;
    w->last = element(grad, 0);
    return NULL;
}

static const trek_function goes_back = { .name = "goes_back", .forward = pass_on, .backward = go_back_within };

static void hooks_and_a_backward_within(void **state)
{
    for (int before = 0; before < 3; before++) { /* where the outer pass still uses the leaf: older, newer, or both */
        trek_var *p = full(3, trek_dims(2), TREK_F32, true), *x = full(1, trek_dims(2), TREK_F32, true);
        within w = { .loss = total(trek_mul(p, p)), .leaf = p }; /* 6 */
        int handle = trek_var_on_grad(p, note_last, &w);
        trek_var *older = trek_mul(x, before != 1 ? trek_mul_scalar(p, 2) : x);
        trek_var *y = trek_function_apply_one(&goes_back, &w, &older, 1);
        trek_var *newer = before ? trek_mul(y, trek_mul_scalar(p, 5)) : y;
        assert_int_equal(trek_backward(total(newer)), TREK_OK);
        assert_int_equal(w.status, TREK_OK);
        assert_true(w.last == element(trek_var_grad(p), 0));
        assert_true(w.last == (before == 0 ? 6 + 2 : before == 1 ? 6 + 5 : 6 + 2 * 15 + 5 * 6));
        assert_int_equal(w.calls, before == 1 ? 2 : 1);
            /* what comes after the last use of the outer pass is seen by another call */
        trek_var_remove_hook(p, handle);
    }
}

/* Over the outer pass's own nodes there is none: their gradients are half made. */
static void no_backward_within_over_the_same_nodes(void **state)
{
    for (int counts = 0; counts < 2; counts++) {
        trek_var *x = full(3, trek_dims(2), TREK_F32, true), *older = trek_mul(x, x);
        within w = { .leaf = x };
        int handle = counts ? trek_var_on_grad(x, note_last, &w) : 0;
        trek_var *y = trek_function_apply_one(&goes_back, &w, &older, 1), *sum = total(trek_mul(y, older));
        w.loss = total(older);
        assert_int_equal(trek_backward(sum), TREK_ERR_STATE);
        FAILS(w.status, TREK_ERR_STATE, "within a pass");
        if (handle)
            trek_var_remove_hook(x, handle);
    }
}

/* --- trek_grad and higher derivatives ------------------------------------------------------ */

static void grad_leaves_leaves_alone(void **state)
{
    trek_var *x = full(3, trek_dims(2), TREK_F64, true), *unused = full(1, trek_dims(2), TREK_F64, true), *grads[2];
    trek_var *y = total(trek_mul(x, trek_mul(x, x)));
    assert_int_equal(trek_grad(&y, 1, (trek_var *[]){ x, unused }, 2, NULL, &(trek_backward_opts){ .create_graph = true }, grads),
                     TREK_OK);
    assert_true(element(grads[0], 0) == 27);
    assert_null(grads[1]);
    assert_null(trek_var_grad(x));
    trek_var *second[1], *slope = total(grads[0]);
    assert_int_equal(trek_grad(&slope, 1, &x, 1, NULL, &(trek_backward_opts){ .create_graph = true }, second), TREK_OK);
    assert_true(element(second[0], 0) == 18);
    trek_var *third[1], *bend = total(second[0]);
    assert_int_equal(trek_grad(&bend, 1, &x, 1, NULL, NULL, third), TREK_OK);
    assert_true(element(third[0], 1) == 6);
}

static void grad_of_something_in_between(void **state)
{
    trek_var *x = full(3, trek_dims(2), TREK_F64, true), *y = trek_mul_scalar(x, 2), *loss = total(trek_mul(y, y)), *grad;
    assert_int_equal(trek_grad(&loss, 1, &y, 1, NULL, NULL, &grad), TREK_OK);
    assert_true(element(grad, 0) == 12);
}

/* --- functions of one's own ------------------------------------------------------------------ */

static trek_status cube_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                int n_outputs)
{
    outputs[0] = trek_mul(inputs[0], trek_mul(inputs[0], inputs[0]));
    return trek_save_for_backward(context, inputs, 1);
}

static trek_status cube_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                 int n_inputs)
{
    trek_var *x = trek_saved(context, 0);
    if (trek_needs_grad(context, 0))
        input_grads[0] = trek_mul_scalar(trek_mul(grads[0], trek_mul(x, x)), *(double *)trek_function_data(context));
    return TREK_OK;
}

static int freed;
static void count_free(void *data)
{
    freed++;
}

static const trek_function cube = { .name = "cube", .forward = cube_forward, .backward = cube_backward, .free = count_free };

static void own_functions(void **state)
{
    static double three = 3;
    freed = 0;
    trek_var *x = full(2, trek_dims(2), TREK_F64, true);
    trek_var *y = trek_function_apply_one(&cube, &three, &x, 1);
    assert_true(element(y, 0) == 8);
    assert_int_equal(trek_backward(total(y)), TREK_OK);
    assert_true(element(trek_var_grad(x), 0) == 12);
    assert_int_equal(trek_scope_end(scope), TREK_OK);
    assert_int_equal(freed, 1);
    scope = trek_scope_begin();
}

static trek_status failing_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                   int n_outputs)
{
    return trek_fail(TREK_ERR_CALLBACK, "refused");
}

static void failing_functions(void **state)
{
    static double three = 3;
    static const trek_function bad = { .name = "bad", .forward = failing_forward, .backward = cube_backward, .free = count_free };
    trek_var *x = full(2, trek_dims(2), TREK_F64, true);
    freed = 0;
    assert_null(trek_function_apply_one(&bad, &three, &x, 1));
    assert_int_equal(freed, 1);
    expect(TREK_ERR_CALLBACK);
}

/* --- size ---------------------------------------------------------------------------------------- */

static void a_long_tape(void **state)
{
    trek_var *x = full(1, trek_dims(2), TREK_F32, true), *y = x;
    for (int k = 0; k < 100000; k++) {
        y = trek_mul_scalar(y, 1);
        assert_non_null(y);
    }
    assert_int_equal(trek_backward(total(y)), TREK_OK);
    assert_true(element(trek_var_grad(x), 0) == 1);
    y = x;
    for (int k = 0; k < 100000; k++) /* and one that is never walked */
        y = trek_mul_scalar(y, 1);
}

static void nothing_is_left(void **state)
{
    trek_scope_end(scope);
    int64_t before = trek_memory_usage(test_device()).allocated;
    for (int k = 0; k < 3; k++) {
        trek_scope inner = trek_scope_begin();
        trek_var *x = full(1, trek_dims(100), TREK_F32, true);
        assert_int_equal(trek_backward(total(trek_exp(trek_mul(x, trek_sin(x))))), TREK_OK);
        trek_exp(x);
        trek_scope_end(inner);
    }
    assert_int_equal(trek_memory_usage(test_device()).allocated, before);
    scope = trek_scope_begin();
}

/* --- whose memory a gradient is ------------------------------------------------------------ */

/* Writes to the gradients of a, then of b, and looks at what else has changed. */
static void expect_own(trek_var *a, trek_var *b, trek_var *seed, double of_b)
{
    trek_var *two = full(2, trek_dims_none(), TREK_F32, false);
    double before = seed ? element(seed, 0) : 0;
    trek_no_grad_begin();
    assert_non_null(trek_mul_(a, two));
    assert_true(element(b, 0) == of_b && element(b, 2) == of_b);
    assert_non_null(trek_mul_(b, two));
    trek_no_grad_end();
    assert_true(element(b, 0) == 2 * of_b && element(b, 2) == 2 * of_b); /* once, though a sum's gradient is one number */
    assert_true(!seed || element(seed, 0) == before);
}

static void gradients_share_no_memory(void **state)
{
    trek_shape shape = trek_dims(3);
    for (int retain = 0; retain < 2; retain++) {
        trek_backward_opts opts = { .retain_graph = retain };
        trek_var *a = full(1, shape, TREK_F32, true), *b = full(2, shape, TREK_F32, true), *k = full(5, shape, TREK_F32, false);
        assert_int_equal(trek_backward_with(total(trek_mul(trek_add(a, b), k)), NULL, &opts), TREK_OK);
        expect_own(trek_var_grad(a), trek_var_grad(b), NULL, 5);

        trek_var *c = full(1, shape, TREK_F32, true), *d = full(1, shape, TREK_F32, true);
        assert_int_equal(trek_backward_with(trek_add(total(c), trek_mean(d, trek_dims_all(), false)), NULL, &opts), TREK_OK);
        expect_own(trek_var_grad(d), trek_var_grad(c), NULL, 1);

        trek_var *e = full(1, shape, TREK_F32, true), *f = full(1, shape, TREK_F32, true),
            *seed = full(3, shape, TREK_F32, false);
        assert_int_equal(trek_backward_with(trek_add(e, trek_reshape(f, shape)), seed, &opts), TREK_OK);
        expect_own(trek_var_grad(e), trek_var_grad(f), seed, 3);

        trek_var *inputs[3] = { a, b, a }, *grads[3], *out = trek_add(a, b);
        assert_int_equal(trek_grad(&out, 1, inputs, 3, &seed, &opts, grads), TREK_OK);
        expect_own(grads[0], grads[1], seed, 3);
        assert_true(element(grads[2], 0) == 3); /* the same input again */

        trek_var *leaf = full(1, shape, TREK_F32, true);
        assert_int_equal(trek_backward_with(leaf, seed, &opts), TREK_OK);
        expect_own(trek_var_grad(leaf), trek_var_grad(e), seed, 6);
    }
}

static void own_gradients_are_recorded(void **state)
{
    trek_var *x = full(3, trek_dims(2), TREK_F32, true), *y = full(2, trek_dims(2), TREK_F32, true), *inputs[2] = { x, y },
        *grads[2];
    trek_var *out = total(trek_square(trek_add(x, y))); /* one gradient for both: 2 (x + y) */
    assert_int_equal(trek_grad(&out, 1, inputs, 2, NULL, &(trek_backward_opts){ .create_graph = true }, grads), TREK_OK);
    trek_var *penalty = total(trek_mul(grads[0], grads[1])), *second[2];
    assert_int_equal(trek_grad(&penalty, 1, inputs, 2, NULL, NULL, second), TREK_OK);
    assert_true(element(second[0], 0) == 40 && element(second[1], 1) == 40);
}

static void a_seed_of_another_dtype(void **state)
{
    trek_var *x = full(3, trek_dims(2), TREK_F32, true), *wide = full(0.1, trek_dims(2), TREK_F64, false);
    assert_int_equal(trek_backward_with(trek_mul_scalar(x, 2), wide, NULL), TREK_OK);
    assert_int_equal(trek_var_dtype(trek_var_grad(x)), TREK_F32);
    assert_true(element(trek_var_grad(x), 0) == 2 * (double)0.1f);
    trek_var *leaf = full(3, trek_dims(2), TREK_BF16, true), *of_leaf;
    assert_int_equal(trek_grad(&leaf, 1, &leaf, 1, &wide, NULL, &of_leaf), TREK_OK);
    assert_int_equal(trek_var_dtype(of_leaf), TREK_BF16);
    trek_var *seed = full(1, trek_dims(2), TREK_F64, true), *y = trek_square(x), *grad, *of_seed;
    assert_int_equal(trek_grad(&y, 1, &x, 1, &seed, &(trek_backward_opts){ .create_graph = true }, &grad), TREK_OK);
    trek_var *sum = total(grad);
    assert_int_equal(trek_grad(&sum, 1, &seed, 1, NULL, NULL, &of_seed), TREK_OK);
    assert_int_equal(trek_var_dtype(of_seed), TREK_F64);
    assert_true(element(of_seed, 0) == 6);
}

/* --- products of several dtypes ------------------------------------------------------------- */

static void expect_mixed(const trek_var *result, const char *message)
{
    assert_null(result);
    assert_int_equal(trek_error_status(), TREK_ERR_DTYPE);
    assert_string_equal(trek_error(), message);
    trek_error_clear();
}

static void products_refuse_mixed_dtypes(void **state)
{
    trek_var *x = full(1, trek_dims(3, 4), TREK_F64, false), *w = full(1, trek_dims(2, 4), TREK_F32, true);
    expect_mixed(trek_linear(x, w, NULL), "linear: inputs: dtypes f64 and f32; must be equal, cast one of them");
    expect_mixed(trek_linear(trek_cast(x, TREK_I64), w, NULL),
                 "linear: inputs: dtypes i64 and f32; must be equal, cast one of them");
    expect_mixed(trek_linear_activation(trek_cast(x, TREK_F32), w, full(1, trek_dims(2), TREK_BF16, false), TREK_ACTIVATION_RELU),
                 "linear: inputs: dtypes f32 and bf16; must be equal, cast one of them");
    expect_mixed(trek_matmul(x, trek_transpose(w, 0, 1)), "matmul: inputs: dtypes f64 and f32; must be equal, cast one of them");
    expect_mixed(trek_matmul(full(1, trek_dims(4), TREK_I32, false), full(1, trek_dims(4), TREK_I64, false)),
                 "matmul: inputs: dtypes i32 and i64; must be equal, cast one of them");
    trek_var *pixels = full(1, trek_dims(1, 1, 4, 4), TREK_U8, false), *kernel = full(1, trek_dims(1, 1, 3, 3), TREK_F32, true);
    expect_mixed(trek_conv2d(pixels, kernel, NULL, NULL), "conv2d: inputs: dtypes u8 and f32; must be equal, cast one of them");
    trek_var *q = full(1, trek_dims(1, 1, 2, 4), TREK_F32, false), *k = trek_cast(q, TREK_F16);
    expect_mixed(trek_attention(q, k, k, NULL), "attention: inputs: dtypes f32 and f16; must be equal, cast one of them");
    expect_mixed(trek_linear_cross_entropy(x, w, NULL, full(0, trek_dims(3), TREK_I64, false), NULL),
                 "linear_cross_entropy: inputs: dtypes f64 and f32; must be equal, cast one of them");
    trek_autocast_begin(TREK_BF16); /* casts first */
    trek_var *y = trek_linear(full(1, trek_dims(3, 4), TREK_BF16, false), w, full(1, trek_dims(2), TREK_F16, false));
    trek_autocast_end();
    assert_int_equal(trek_var_dtype(y), TREK_BF16);
    assert_int_equal(trek_backward(total(y)), TREK_OK);
    assert_int_equal(trek_var_dtype(trek_var_grad(w)), TREK_F32);
}

/* Of a fused op under create_graph, what it reads may have another use, whose gradient waits while the plain ops are
 * differentiated; and what was made before is nothing to them. */
static void composite_beside_other_uses(void **state)
{
    double found[2];
    for (int create = 0; create < 2; create++) {
        trek_scope scope = trek_scope_begin();
        trek_tensor *values = trek_tensor_from_data((const double[]){ 0.3, -1, 2 }, trek_dims(1, 3), TREK_F64, test_device());
        trek_var *x = trek_var_new(values, true), *grad = NULL;
        trek_tensor_release(values);
        trek_var *twice = trek_mul_scalar(x, 2), *deep = trek_exp(twice), *normal = trek_layer_norm(deep, 1, NULL, NULL, 1e-5);
        trek_var *sum = trek_sum(trek_add(trek_mul(trek_square(normal), normal), trek_mul(deep, twice)), trek_dims_all(), false);
        assert_int_equal(trek_grad(&sum, 1, &x, 1, NULL, &(trek_backward_opts){ .create_graph = create }, &grad), TREK_OK);
        double numbers[3];
        assert_int_equal(trek_tensor_to_host(trek_var_data(grad), TREK_F64, numbers, sizeof numbers), TREK_OK);
        found[create] = numbers[0] + 10 * numbers[1] + 100 * numbers[2];
        trek_var_release(x);
        trek_scope_end(scope);
    }
    assert_true(fabs(found[0] - found[1]) <= 1e-9 * fabs(found[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(values_of_several_cpus), TEST(leaves), TEST(gradients_accumulate), TEST(one_value_used_often),
        TEST(gradients_have_their_inputs_shape_and_dtype), TEST(scalars_do_not_widen), TEST(a_second_pass_needs_retain),
        TEST(bad_roots), TEST(no_grad_records_nothing), TEST(in_place_only_without_grad), TEST(overwriting_what_was_saved),
        TEST(hooks), TEST(hooks_beside_composites), TEST(hooks_and_a_backward_within),
        TEST(no_backward_within_over_the_same_nodes), TEST(grad_leaves_leaves_alone), TEST(grad_of_something_in_between),
        TEST(own_functions), TEST(failing_functions), TEST(composite_beside_other_uses), TEST(a_long_tape), TEST(nothing_is_left),
        TEST(gradients_share_no_memory), TEST(own_gradients_are_recorded), TEST(a_seed_of_another_dtype),
        TEST(products_refuse_mixed_dtypes),
    };
    return cmocka_run_group_tests_name("autograd", tests, NULL, NULL);
}
