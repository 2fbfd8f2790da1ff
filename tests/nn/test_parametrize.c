/* SPDX-License-Identifier: Apache-2.0 */
/* Weights made of other parameters: weight norm and spectral norm against plain loops, on every layer that has weights; gradients
 * of both orders; a module of the program's own, chains of them; modes, names, states, resetting, folding back, where layers
 * are run as one, recomputed, optimized; refused calls and memory that runs out. PyTorch's are compared in tests/differential. */
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/gradcheck.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/parametrize.h"
#include "nn/params.h"
#include "nn/recompute.h"
#include "nn/state.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "optim/optimizer.h"
#include "tensor/copies.h"
#include "tensor/dtypes.h"
#include "tensor/print.h"
#include "tensor/shapes.h"
#include "tests/nn/values.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- layers that have weights -------------------------------------------------------------------- */

typedef struct kind {
    const char *name, *weight;
    trek_shape input;
} kind;

static const kind kinds[] = {
    { "linear", "weight", { 2, { 3, 5 } } },        { "conv1d", "weight", { 3, { 2, 4, 7 } } },
    { "conv2d", "weight", { 4, { 2, 4, 5, 6 } } },  { "conv3d", "weight", { 5, { 1, 4, 3, 4, 3 } } },
    { "conv_transpose1d", "weight", { 3, { 2, 4, 5 } } }, { "conv_transpose2d", "weight", { 4, { 2, 4, 3, 4 } } },
    { "conv_transpose3d", "weight", { 5, { 1, 4, 2, 3, 2 } } }, { "embedding", "weight", { 1, { 4 } } },
    { "lstm", "weight_hh_l0", { 3, { 4, 2, 5 } } }, { "gru", "weight_ih_l1", { 3, { 4, 2, 5 } } },
    { "linear", "bias", { 2, { 3, 5 } } },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static trek_module *layer(const kind *k, trek_dtype dtype)
{
    trek_device d = test_device();
    const char *n = k->name;
    if (strcmp(n, "linear") == 0)
        return trek_nn_linear_with(&(trek_linear_opts){ .in = 5, .out = 4, .dtype = dtype, .device = d });
    if (strcmp(n, "conv1d") == 0)
        return trek_nn_conv1d_with(&(trek_conv1d_opts){ .in = 4, .out = 6, .kernel = 3, .groups = 2, .dtype = dtype,
                                                        .device = d });
    if (strcmp(n, "conv2d") == 0)
        return trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 4, .out = 3, .kernel = { 3, 2 }, .dtype = dtype, .device = d });
    if (strcmp(n, "conv3d") == 0)
        return trek_nn_conv3d_with(&(trek_conv3d_opts){ .in = 4, .out = 3, .kernel = { 2 }, .dtype = dtype, .device = d });
    if (strcmp(n, "conv_transpose1d") == 0)
        return trek_nn_conv_transpose1d_with(&(trek_conv_transpose1d_opts){ .in = 4, .out = 3, .kernel = 3, .dtype = dtype,
                                                                            .device = d });
    if (strcmp(n, "conv_transpose2d") == 0)
        return trek_nn_conv_transpose2d_with(&(trek_conv_transpose2d_opts){ .in = 4, .out = 3, .kernel = { 2 }, .dtype = dtype,
                                                                            .device = d });
    if (strcmp(n, "conv_transpose3d") == 0)
        return trek_nn_conv_transpose3d_with(&(trek_conv_transpose3d_opts){ .in = 4, .out = 3, .kernel = { 2 }, .dtype = dtype,
                                                                            .device = d });
    if (strcmp(n, "embedding") == 0)
        return trek_nn_embedding_with(&(trek_embedding_opts){ .num = 7, .dim = 3, .dtype = dtype, .device = d });
    trek_lstm_opts o = { .in = 5, .hidden = 3, .layers = 2, .dtype = dtype, .device = d };
    return strcmp(n, "lstm") == 0 ? trek_nn_lstm_with(&o) : trek_nn_gru_with(&o);
}

static trek_var *input(const kind *k, trek_dtype dtype)
{
    if (strcmp(k->name, "embedding") == 0)
        return trek_var_from(test_values((double[]){ 0, 3, 6, 3 }, k->input, TREK_I64));
    trek_tensor *narrow = test_tensor(7, k->input, 1), *cast = trek_tensor_cast(narrow, dtype);
    trek_tensor_release(narrow);
    return trek_var_from(cast);
}

/* A layer of numbers that need no generator. */
static trek_module *drawn(const kind *k, trek_dtype dtype)
{
    trek_module *m = layer(k, dtype);
    assert_non_null(m);
    for (int i = 0; i < m->own->n_params; i++) {
        trek_tensor *values = test_tensor(30 + (uint32_t)i, trek_var_shape(m->own->params[i].var), 0.5);
        assert_int_equal(trek_tensor_copy_from(trek_var_data(m->own->params[i].var), values), TREK_OK);
        trek_tensor_release(values);
    }
    return m;
}

static trek_var *run(trek_module *m, trek_var *x)
{
    trek_var *y = trek_forward(m, x);
    if (!y)
        fail_msg("%s", trek_error());
    return y;
}

static double distance(trek_var *a, trek_var *b)
{
    if (!a || !b)
        fail_msg("%s", trek_error());
    return trek_var_item(trek_max(trek_abs(trek_sub(a, b)), trek_dims_all(), false));
}

static trek_var *find(trek_module *m, const char *weight, const char *rest)
{
    char name[128];
    snprintf(name, sizeof name, "parametrizations.%s.%s", weight, rest);
    return trek_module_find(m, name);
}

static void write(trek_var *var, const double *values)
{
    trek_tensor *tensor = trek_tensor_from_data(values, trek_var_shape(var), TREK_F64, trek_var_device(var));
    assert_int_equal(trek_tensor_copy_from(trek_var_data(var), tensor), TREK_OK);
    trek_tensor_release(tensor);
}

/* The index along dim of element i. */
static int64_t along(trek_shape shape, int dim, int64_t i)
{
    int64_t step = 1;
    for (int d = dim + 1; d < shape.ndim; d++)
        step *= shape.sizes[d];
    return i / step % shape.sizes[dim];
}

/* --- weight norm ------------------------------------------------------------------------------------ */

static void expect_weight_norm(trek_module *m, const kind *k, int dim, trek_shape shape)
{
    trek_var *g = find(m, k->weight, "original0"), *v = find(m, k->weight, "original1");
    assert_non_null(g);
    assert_non_null(v);
    int64_t count = dim < 0 ? 1 : shape.sizes[dim], n = trek_var_numel(v);
    assert_int_equal(trek_var_numel(g), count);
    assert_int_equal(trek_var_ndim(g), dim < 0 ? 0 : shape.ndim);
    double *lengths = test_read(trek_var_data(g)), *directions = test_read(trek_var_data(v)), *sums = calloc((size_t)count, 8);
    for (int64_t i = 0; i < count; i++)
        lengths[i] *= 1.5 + (double)i;
    write(g, lengths);
    for (int64_t i = 0; i < n; i++)
        sums[dim < 0 ? 0 : along(shape, dim, i)] += directions[i] * directions[i];
    trek_var *w = trek_parametrized_weight(m, k->weight);
    assert_true(trek_shape_equal(trek_var_shape(w), shape));
    double *made = test_read(trek_var_data(w));
    for (int64_t i = 0; i < n; i++) {
        int64_t row = dim < 0 ? 0 : along(shape, dim, i);
        expect_near(made[i], directions[i] * lengths[row] / sqrt(sums[row]), 1e-14);
    }
    free(made), free(lengths), free(directions), free(sums);
}

/* A plain layer of the same make has the weight that is made, and gives the same. */
static void expect_as_plain(trek_module *m, const kind *k)
{
    trek_module *plain = drawn(k, TREK_F64);
    fine(trek_tensor_copy_from(trek_var_data(trek_module_find(plain, k->weight)),
                               trek_var_data(trek_parametrized_weight(m, k->weight))));
    trek_var *x = input(k, TREK_F64);
    assert_true(distance(run(m, x), run(plain, x)) == 0);
    trek_module_free(&plain);
}

static void test_weight_norm(void **state)
{
    for (int i = 0; i < KINDS; i++) {
        const kind *k = &kinds[i];
        trek_module *first = drawn(k, TREK_F64);
        trek_shape shape = trek_var_shape(trek_module_find(first, k->weight));
        trek_module_free(&first);
        for (int dim = -1; dim < shape.ndim; dim++) {
            trek_module *m = drawn(k, TREK_F64);
            trek_scope scope = trek_scope_begin();
            trek_var *x = input(k, TREK_F64), *before = run(m, x);
            int n = m->own->n_params;
            fine(trek_weight_norm(m, k->weight, dim));
            assert_int_equal(m->own->n_params, n - 1);
            assert_null(trek_module_find(m, k->weight));
            assert_true(distance(run(m, x), before) < 1e-14);
            expect_weight_norm(m, k, dim, shape);
            expect_as_plain(m, k);
            trek_scope_end(scope);
            trek_module_free(&m);
        }
    }
}

/* --- spectral norm ------------------------------------------------------------------------------------ */

/* The matrix of a weight: rows along dim. */
static double *matrix_of(trek_var *weight, int dim, int64_t *rows, int64_t *columns)
{
    trek_shape shape = trek_var_shape(weight);
    *rows = shape.sizes[dim];
    *columns = trek_var_numel(weight) / *rows;
    double *values = test_read(trek_var_data(weight)), *matrix = malloc((size_t)(*rows * *columns) * sizeof *matrix);
    int64_t *filled = calloc((size_t)*rows, sizeof *filled);
    for (int64_t i = 0; i < *rows * *columns; i++) {
        int64_t row = along(shape, dim, i);
        matrix[row * *columns + filled[row]++] = values[i];
    }
    free(filled), free(values);
    return matrix;
}

static void normalized(double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        x[i] /= fmax(sqrt(sum), 1e-12);
}

/* n steps of the power method on u and v; gives sigma. */
static double power(const double *w, int64_t rows, int64_t columns, double *u, double *v, int n)
{
    for (int k = 0; k < n; k++) {
        for (int64_t i = 0; i < rows; i++) {
            u[i] = 0;
            for (int64_t j = 0; j < columns; j++)
                u[i] += w[i * columns + j] * v[j];
        }
        normalized(u, rows);
        for (int64_t j = 0; j < columns; j++) {
            v[j] = 0;
            for (int64_t i = 0; i < rows; i++)
                v[j] += w[i * columns + j] * u[i];
        }
        normalized(v, columns);
    }
    double sigma = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            sigma += u[i] * w[i * columns + j] * v[j];
    return sigma;
}

static void expect_vector(trek_var *var, const double *wanted, double tolerance)
{
    for (int64_t i = 0; i < trek_var_numel(var); i++)
        expect_near(at(var, i), wanted[i], tolerance);
}

/* A forward in training takes `steps` steps from the buffers' vectors, one in eval none. */
static void expect_spectral_norm(trek_module *m, const kind *k, int dim, int steps)
{
    int64_t rows, columns;
    trek_var *u = find(m, k->weight, "0._u"), *v = find(m, k->weight, "0._v"), *original = find(m, k->weight, "original");
    double *w = matrix_of(original, dim, &rows, &columns), *a = test_read(trek_var_data(u)), *b = test_read(trek_var_data(v));
    assert_int_equal(trek_var_numel(u), rows);
    assert_int_equal(trek_var_numel(v), columns);
    trek_var *x = input(k, TREK_F64);
    for (int pass = 0; pass < 4; pass++) {
        bool training = pass % 2 == 0;
        fine(trek_module_train(m, training));
        double sigma = power(w, rows, columns, a, b, training ? steps : 0);
        run(m, x);
        expect_vector(u, a, 1e-12);
        expect_vector(v, b, 1e-12);
        fine(trek_module_train(m, false));
        trek_var *made = trek_parametrized_weight(m, k->weight);
        assert_true(distance(made, trek_mul_scalar(original, 1 / sigma)) < 1e-12);
    }
    expect_as_plain(m, k);
    double largest = power(w, rows, columns, a, b, 2000);
    double factor = trek_var_item(trek_div(trek_norm(trek_parametrized_weight(m, k->weight), 2, trek_dims_all(), false),
                                           trek_norm(original, 2, trek_dims_all(), false)));
    assert_true(factor * largest > 1 - 1e-9 && factor * largest < 1.2); /* the steps since the beginning have come near it */
    free(w), free(a), free(b);
}

static void test_spectral_norm(void **state)
{
    for (int i = 0; i < KINDS - 1; i++) /* the last is a vector */
        for (int option = 0; option < 2; option++) {
            const kind *k = &kinds[i];
            trek_module *m = drawn(k, TREK_F64);
            trek_scope scope = trek_scope_begin();
            trek_var *weight = trek_module_find(m, k->weight);
            int dim = option ? trek_var_ndim(weight) - 1 : strstr(k->name, "transpose") ? 1 : 0;
            trek_spectral_norm_opts o = { .n_power_iterations = 3, .dim = -1 };
            trek_seed(5);
            fine(trek_spectral_norm(m, k->weight, option ? &o : NULL));
            assert_ptr_equal(find(m, k->weight, "original"), weight); /* the very variable */
            expect_spectral_norm(m, k, dim, option ? 3 : 1);
            trek_scope_end(scope);
            trek_module_free(&m);
        }
}

static void test_spectral_norm_of_a_vector(void **state)
{
    trek_module *m = drawn(&kinds[KINDS - 1], TREK_F64);
    trek_scope scope = trek_scope_begin();
    fine(trek_spectral_norm(m, "bias", NULL));
    assert_null(find(m, "bias", "0._u"));
    trek_var *made = trek_parametrized_weight(m, "bias"), *b = find(m, "bias", "original");
    assert_true(distance(made, trek_div(b, trek_norm(b, 2, trek_dims_all(), false))) < 1e-15);
    expect_as_plain(m, &kinds[KINDS - 1]);
    trek_scope_end(scope);
    trek_module_free(&m);
}

/* --- gradients ------------------------------------------------------------------------------------------ */

static trek_var *forward_of(trek_var *const *inputs, int n, void *arg)
{
    return trek_forward(arg, inputs[0]);
}

static trek_status gather(const char *name, trek_var *var, void *arg)
{
    trek_var **list = arg;
    while (*list)
        list++;
    *list = var;
    return TREK_OK;
}

static void check_gradients(trek_module *m, trek_var *x)
{
    trek_var *inputs[16] = { x };
    trek_module_each_param(m, gather, inputs);
    int n = 0;
    while (inputs[n])
        n++;
    trek_var_set_requires_grad(x, trek_dtype_is_float(trek_var_dtype(x)));
    fine(trek_gradcheck(forward_of, inputs, n, m, &(trek_gradcheck_opts){ .second = true, .seed = 3 }));
}

/* In eval, where a function of the same numbers gives the same. */
static void test_gradients(void **state)
{
    for (int i = 0; i < KINDS; i++)
        for (int spectral = 0; spectral < 2; spectral++) {
            const kind *k = &kinds[i];
            if (test_short_on_device() && (i + spectral) % 3 != 0) /* made of ops that have tests of their own there */
                continue;
            trek_module *m = drawn(k, TREK_F64);
            trek_scope scope = trek_scope_begin();
            fine(spectral ? trek_spectral_norm(m, k->weight, NULL)
                 : trek_weight_norm(m, k->weight, i % 3 - 1 < 1 ? i % 3 - 1 : 0));
            fine(trek_module_train(m, false));
            check_gradients(m, input(k, TREK_F64));
            trek_scope_end(scope);
            trek_module_free(&m);
        }
}

/* In training u and v are constants, and those of a forward stay its own whatever comes after. */
static void test_vectors_are_constants(void **state)
{
    const kind *k = &kinds[0];
    trek_module *m = drawn(k, TREK_F64);
    fine(trek_spectral_norm(m, "weight", NULL));
    trek_scope scope = trek_scope_begin();
    trek_var *x = input(k, TREK_F64), *original = find(m, "weight", "original"), *grads[2];
    trek_var *y = trek_sum(trek_square(run(m, x)), trek_dims_all(), false);
    fine(trek_module_train(m, false));
    trek_var *same = trek_sum(trek_square(run(m, x)), trek_dims_all(), false);
    fine(trek_module_train(m, true));
    run(m, x);
    fine(trek_grad(&y, 1, &original, 1, NULL, NULL, &grads[0]));
    fine(trek_grad(&same, 1, &original, 1, NULL, NULL, &grads[1]));
    assert_true(distance(y, same) == 0 && distance(grads[0], grads[1]) == 0);
    trek_scope_end(scope);
    trek_module_free(&m);
}

/* --- 16 bits, autocast --------------------------------------------------------------------------------- */

static void test_16_bits(void **state)
{
    const trek_dtype dtypes[] = { TREK_BF16, TREK_F16 };
    for (int d = 0; d < 2; d++)
        for (int spectral = 0; spectral < 2; spectral++) {
            const kind *k = &kinds[2];
            trek_module *m = drawn(k, dtypes[d]), *wide = drawn(k, TREK_F32);
            trek_scope scope = trek_scope_begin();
            trek_seed(4);
            fine(spectral ? trek_spectral_norm(m, "weight", NULL) : trek_weight_norm(m, "weight", 0));
            trek_seed(4);
            fine(spectral ? trek_spectral_norm(wide, "weight", NULL) : trek_weight_norm(wide, "weight", 0));
            fine(trek_module_copy(wide, m)); /* the rounded numbers */
            fine(trek_module_train(m, false));
            fine(trek_module_train(wide, false));
            trek_var *made = trek_parametrized_weight(m, "weight"), *exact = trek_parametrized_weight(wide, "weight");
            assert_int_equal(trek_var_dtype(made), dtypes[d]);
            assert_true(distance(trek_cast(made, TREK_F32), trek_cast(trek_cast(exact, dtypes[d]), TREK_F32)) == 0);
            fine(trek_module_train(m, true));
            fine(trek_backward(trek_sum(run(m, input(k, dtypes[d])), trek_dims_all(), false)));
            trek_var *original = find(m, "weight", spectral ? "original" : "original0");
            assert_non_null(trek_var_grad(original));
            assert_int_equal(trek_var_dtype(trek_var_grad(original)), dtypes[d]);
            trek_scope_end(scope);
            trek_module_free(&m);
            trek_module_free(&wide);
        }
}

/* The weight is made in its own dtype; the product alone is a 16-bit one. */
static void test_autocast(void **state)
{
    const kind *k = &kinds[0];
    for (int spectral = 0; spectral < 2; spectral++) {
        trek_module *m = drawn(k, TREK_F32), *plain = drawn(k, TREK_F32);
        trek_scope scope = trek_scope_begin();
        fine(spectral ? trek_spectral_norm(m, NULL, NULL) : trek_weight_norm(m, NULL, 0));
        fine(trek_module_train(m, false));
        fine(trek_tensor_copy_from(trek_var_data(trek_module_find(plain, "weight")),
                                   trek_var_data(trek_parametrized_weight(m, "weight"))));
        trek_autocast_begin(TREK_BF16);
        trek_var *y = run(m, input(k, TREK_F32)), *wanted = run(plain, input(k, TREK_F32));
        trek_autocast_end();
        assert_int_equal(trek_var_dtype(y), TREK_BF16);
        assert_true(distance(y, wanted) == 0);
        trek_scope_end(scope);
        trek_module_free(&m);
        trek_module_free(&plain);
    }
}

/* --- a program's own, and chains ---------------------------------------------------------------------------- */

typedef struct scaled {
    trek_module base;
    trek_var *scale;
    trek_module *inner;
} scaled;

/* scale exp(x): one original, its logarithm. */
static trek_var *scaled_forward(trek_module *self, trek_var *x) { return trek_mul(trek_exp(x), ((scaled *)self)->scale); }

static trek_status scaled_inverse(trek_module *self, trek_var *weight, trek_var **originals, int n)
{
    assert_int_equal(n, 1);
    originals[0] = trek_log(trek_div(weight, ((scaled *)self)->scale));
    return originals[0] ? TREK_OK : trek_error_status();
}

static const trek_module_class scaled_class = { .name = "scaled", .size = sizeof(scaled), .forward = scaled_forward };

static trek_module *scaled_new(double scale)
{
    trek_module *m = trek_module_new(&scaled_class);
    trek_module_param(m, "scale", offsetof(scaled, scale), test_values(&scale, trek_dims_none(), TREK_F64));
    return trek_module_check(m);
}

/* A product of three. */
static trek_var *triple_forward(trek_module *self, trek_var *const *inputs, int n)
{
    return n == 3 ? trek_mul(inputs[0], trek_mul(inputs[1], inputs[2])) : NULL;
}
static trek_status triple_inverse(trek_module *self, trek_var *weight, trek_var **originals, int n)
{
    originals[0] = trek_full_like(weight, 2);
    originals[1] = trek_full_like(weight, 0.25);
    originals[2] = trek_mul_scalar(weight, 2);
    return TREK_OK;
}
static const trek_module_class triple_class = { .name = "triple", .size = sizeof(trek_module), .forward_many = triple_forward };

static trek_module *positive(void)
{
    trek_module *m = drawn(&kinds[0], TREK_F64);
    trek_scope scope = trek_scope_begin();
    trek_var *w = trek_module_find(m, "weight");
    fine(trek_tensor_copy_from(trek_var_data(w), trek_var_data(trek_add_scalar(trek_abs(w), 0.1))));
    trek_scope_end(scope);
    return m;
}

static void test_own(void **state)
{
    const kind *k = &kinds[0];
    trek_module *m = positive();
    trek_scope scope = trek_scope_begin();
    trek_var *x = input(k, TREK_F64), *before = run(m, x), *first = trek_clone(trek_module_find(m, "weight"));
    fine(trek_parametrize(m, "weight", scaled_new(0.5), &(trek_parametrize_opts){ .right_inverse = scaled_inverse }));
    assert_true(distance(run(m, x), before) < 1e-14);
    assert_non_null(find(m, "weight", "0.scale"));
    fine(trek_parametrize(m, "weight", scaled_new(2), &(trek_parametrize_opts){ .right_inverse = scaled_inverse }));
    trek_var *chained = trek_mul_scalar(trek_exp(first), 2);
    assert_true(distance(trek_parametrized_weight(m, "weight"), chained) < 1e-14);
    check_gradients(m, input(k, TREK_F64));
    trek_var *wanted = trek_add_scalar(trek_mul_scalar(first, 3), 3);
    fine(trek_parametrized_assign(m, "weight", trek_var_data(wanted)));
    assert_true(distance(trek_parametrized_weight(m, "weight"), wanted) < 1e-13);
    fine(trek_parametrize_remove(m, "weight", true));
    assert_false(trek_is_parametrized(m, NULL));
    assert_true(distance(trek_module_find(m, "weight"), wanted) < 1e-13);
    assert_int_equal(m->own->n_children, 0);
    trek_scope_end(scope);
    trek_module_free(&m);
}

static void test_several_originals(void **state)
{
    const kind *k = &kinds[0];
    trek_module *m = drawn(k, TREK_F64);
    trek_scope scope = trek_scope_begin();
    trek_var *x = input(k, TREK_F64), *before = run(m, x);
    fine(trek_parametrize(m, "weight", trek_module_new(&triple_class),
                          &(trek_parametrize_opts){ .originals = 3, .right_inverse = triple_inverse }));
    assert_true(distance(run(m, x), before) < 1e-15);
    assert_true(at(find(m, "weight", "original1"), 0) == 0.25);
    check_gradients(m, x);
    FAILS(trek_parametrize_remove(m, "weight", false), TREK_ERR_ARGUMENT, "3 originals");
    trek_scope_end(scope);
    trek_module_free(&m);
}

/* Weight norm under a spectral norm: both gone at once, both names there before. */
static void test_norms_in_a_chain(void **state)
{
    trek_module *m = drawn(&kinds[2], TREK_F64);
    trek_scope scope = trek_scope_begin();
    fine(trek_weight_norm(m, NULL, 0));
    fine(trek_spectral_norm(m, NULL, &(trek_spectral_norm_opts){ .n_power_iterations = 60 }));
    assert_non_null(find(m, "weight", "original1"));
    assert_non_null(find(m, "weight", "1._u"));
    fine(trek_module_train(m, false));
    check_gradients(m, input(&kinds[2], TREK_F64));
    expect_as_plain(m, &kinds[2]);
    fine(trek_parametrize_remove(m, "weight", true));
    int64_t rows, columns;
    double *w = matrix_of(trek_module_find(m, "weight"), 0, &rows, &columns);
    double u[8], v[64];
    for (int i = 0; i < 64; i++)
        v[i] = 1 + 0.1 * i, u[i % 8] = 0;
    expect_near(power(w, rows, columns, u, v, 500), 1, 1e-4);
    free(w);
    trek_scope_end(scope);
    trek_module_free(&m);
}

/* --- the tree ------------------------------------------------------------------------------------------------- */

static trek_module *nested(void)
{
    trek_module *lstm = trek_nn_lstm(4, 3, test_device());
    trek_module *m = trek_nn_sequential((trek_module *[]){ lstm, trek_nn_linear(3, 2, test_device()) }, 2);
    trek_module *linear = m->own->children[1].module;
    fine(trek_weight_norm(linear, "weight", 0));
    fine(trek_spectral_norm(linear, "bias", NULL));
    fine(trek_spectral_norm(lstm, "weight_hh_l0", NULL));
    return m;
}

static void test_names_and_state(void **state)
{
    char names[1024] = "";
    trek_seed(1);
    trek_module *m = nested();
    trek_seed(2);
    trek_module *other = nested();
    trek_state *saved = trek_state_of(m);
    for (int k = 0; k < trek_state_count(saved); k++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s ", trek_state_name(saved, k));
    assert_string_equal(names, "0.weight_ih_l0 0.bias_ih_l0 0.bias_hh_l0 0.parametrizations.weight_hh_l0.original "
                               "0.parametrizations.weight_hh_l0.0._u 0.parametrizations.weight_hh_l0.0._v "
                               "1.parametrizations.weight.original0 1.parametrizations.weight.original1 "
                               "1.parametrizations.bias.original ");
    fine(trek_state_apply(saved, other));
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(3, trek_dims(5, 2, 4), 1));
    assert_true(distance(run(m, x), run(other, x)) == 0);
    trek_scope_end(scope);
    char *summary = trek_module_summary(m);
    assert_non_null(strstr(summary, "weight_norm(dim 0)"));
    assert_non_null(strstr(summary, "spectral_norm(dim 0, power iterations 1, eps 1e-12)"));
    assert_non_null(strstr(summary, "parametrized(f32 [2, 3])"));
    trek_string_free(&summary);
    trek_state_free(&saved);
    trek_module_free(&m);
    trek_module_free(&other);
}

static void test_removing(void **state)
{
    for (int i = 0; i < KINDS; i++)
        for (int spectral = 0; spectral < 2; spectral++) {
            const kind *k = &kinds[i];
            trek_module *m = drawn(k, TREK_F64);
            trek_scope scope = trek_scope_begin();
            int at_first = 0;
            while (strcmp(m->own->params[at_first].name, k->weight) != 0)
                at_first++;
            fine(spectral ? trek_spectral_norm(m, k->weight, NULL) : trek_weight_norm(m, k->weight, 0));
            assert_true(trek_is_parametrized(m, k->weight) && trek_is_parametrized(m, NULL));
            fine(trek_module_train(m, false));
            trek_var *x = input(k, TREK_F64), *before = run(m, x), *original = find(m, k->weight, "original");
            fine(trek_parametrize_remove(m, k->weight, true));
            assert_true(distance(run(m, x), before) == 0);
            assert_string_equal(m->own->params[at_first].name, k->weight);
            assert_true(!spectral || m->own->params[at_first].var == original);
            assert_true(trek_var_requires_grad(m->own->params[at_first].var));
            assert_false(trek_is_parametrized(m, NULL));
            assert_int_equal(m->own->n_children, 0);
            fine(spectral ? trek_weight_norm(m, k->weight, 0) : trek_spectral_norm(m, k->weight, NULL)); /* and again */
            run(m, x);
            trek_scope_end(scope);
            trek_module_free(&m);
        }
}

static void test_removing_to_the_original(void **state)
{
    trek_module *m = drawn(&kinds[0], TREK_F64);
    trek_scope scope = trek_scope_begin();
    trek_var *weight = trek_module_find(m, "weight"), *copy = trek_clone(weight);
    fine(trek_spectral_norm(m, NULL, NULL));
    fine(trek_parametrize_remove(m, "weight", false));
    assert_ptr_equal(trek_module_find(m, "weight"), weight);
    assert_true(distance(weight, copy) == 0);
    trek_scope_end(scope);
    trek_module_free(&m);
}

/* A reset gives the weight that the plain layer would have. */
static void test_reset(void **state)
{
    for (int i = 0; i < KINDS; i++) {
        trek_module *m = drawn(&kinds[i], TREK_F64), *plain = drawn(&kinds[i], TREK_F64);
        trek_scope scope = trek_scope_begin();
        fine(trek_weight_norm(m, kinds[i].weight, 0));
        trek_seed(6);
        fine(trek_module_reset(m));
        trek_seed(6);
        fine(trek_module_reset(plain));
        trek_var *x = input(&kinds[i], TREK_F64);
        assert_true(distance(run(m, x), run(plain, x)) < 1e-13);
        trek_scope_end(scope);
        trek_module_free(&m);
        trek_module_free(&plain);
    }
}

/* Frozen ones stay frozen, shared ones stay the other's, too. */
static void test_frozen_and_shared(void **state)
{
    trek_module *m = drawn(&kinds[0], TREK_F64), *other = drawn(&kinds[0], TREK_F64);
    trek_var *weight = trek_module_find(m, "weight");
    trek_module *both = trek_nn_sequential((trek_module *[]){ m, other }, 2);
    assert_non_null(trek_module_share_param(other, "tied", TREK_NO_FIELD, weight));
    fine(trek_module_freeze(m));
    fine(trek_spectral_norm(m, NULL, NULL));
    assert_ptr_equal(trek_module_find(other, "tied"), find(m, "weight", "original"));
    assert_false(trek_var_requires_grad(find(m, "weight", "original")));
    fine(trek_weight_norm(m, "bias", -1));
    assert_false(trek_var_requires_grad(find(m, "bias", "original0")));
    trek_module_free(&both);
}

/* --- where layers are run as one, or twice ------------------------------------------------------------------------ */

/* A linear layer and its ReLU in one op, in a sequential, a flow and a transformer. */
static void test_run_as_one(void **state)
{
    trek_device d = test_device();
    for (int way = 0; way < 3; way++) {
        trek_module *linear = way < 2 ? trek_nn_linear(4, 6, d) : NULL, *m = linear;
        trek_graph *graph = NULL;
        if (way == 0)
            m = trek_nn_sequential((trek_module *[]){ linear, trek_nn_relu() }, 2);
        else if (way == 1)
            m = trek_graph_module(graph = trek_flow_build(trek_flow_through(trek_flow_from(linear), trek_nn_relu())));
        else
            m = trek_nn_transformer_encoder_layer_with(&(trek_transformer_opts){ .d_model = 4, .heads = 1, .dim_feedforward = 6,
                                                                                 .dropout = TREK_ZERO, .device = d });
        if (way == 2)
            for (int k = 0; k < m->own->n_children; k++)
                if (strcmp(m->own->children[k].name, "linear1") == 0)
                    linear = m->own->children[k].module;
        fine(trek_weight_norm(linear, NULL, 0));
        trek_scope scope = trek_scope_begin();
        trek_var *g = find(linear, "weight", "original0"), *x = trek_var_from(test_tensor(2, trek_dims(3, 2, 4), 1));
        write(g, (double[]){ 1, 2, 3, 4, 5, 6 });
        trek_var *y = run(m, x);
        fine(trek_parametrize_remove(linear, "weight", true));
        assert_true(distance(run(m, x), y) == 0);
        fine(trek_weight_norm(linear, NULL, 0));
        fine(trek_backward(trek_sum(trek_square(run(m, x)), trek_dims_all(), false)));
        assert_non_null(trek_var_grad(find(linear, "weight", "original1")));
        trek_scope_end(scope);
        if (graph)
            trek_graph_free(&graph);
        else
            trek_module_free(&m);
    }
}

/* Backward's second run divides by what the first did, however many forwards lie between. */
static void test_recomputed(void **state)
{
    const kind *k = &kinds[2];
    double grads[2][2];
    for (int again = 0; again < 2; again++) {
        trek_seed(9);
        trek_module *m = drawn(k, TREK_F64);
        fine(trek_spectral_norm(m, NULL, NULL));
        write(find(m, "weight", "0._v"), (double[24]){ 1 }); /* far from it */
        trek_var *original = trek_var_retain(find(m, "weight", "original"));
        trek_module *outer = again ? trek_nn_recompute(m) : m;
        trek_scope scope = trek_scope_begin();
        trek_var *x = input(k, TREK_F64);
        trek_var *y = trek_sum(trek_square(run(outer, x)), trek_dims_all(), false);
        trek_var *z = trek_sum(trek_square(run(outer, trek_mul_scalar(x, 2))), trek_dims_all(), false);
        fine(trek_backward(y));
        grads[again][0] = trek_var_item(trek_sum(trek_abs(trek_var_grad(original)), trek_dims_all(), false));
        fine(trek_backward(z));
        grads[again][1] = trek_var_item(trek_sum(trek_abs(trek_var_grad(original)), trek_dims_all(), false));
        trek_scope_end(scope);
        trek_var_release(original);
        trek_module_free(&outer);
    }
    assert_memory_equal(grads[0], grads[1], sizeof grads[0]);
}

/* --- training ---------------------------------------------------------------------------------------------------- */

static void test_optimized(void **state)
{
    trek_seed(3);
    trek_module *first = trek_nn_linear(4, 16, test_device()), *last = trek_nn_linear(16, 2, test_device());
    fine(trek_spectral_norm(first, NULL, NULL));
    fine(trek_weight_norm(last, NULL, 0));
    trek_module *m = trek_nn_sequential((trek_module *[]){ first, trek_nn_tanh(), last }, 3);
    trek_params *params = trek_module_params(m);
    assert_int_equal(trek_params_count(params), 5);
    trek_optimizer *optimizer = trek_optimizer_new(trek_adamw(&(trek_adam_opts){ .lr = 0.01 }), params);
    double losses[200];
    for (int step = 0; step < 200; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(11, trek_dims(8, 4), 1)), *y = trek_var_from(test_tensor(12, trek_dims(8, 2), 1));
        trek_var *loss = trek_mean(trek_square(trek_sub(run(m, x), y)), trek_dims_all(), false);
        fine(trek_backward(loss));
        trek_clip_grad_norm(params, 1);
        fine(trek_optimizer_step(optimizer));
        fine(trek_optimizer_zero_grad(optimizer));
        losses[step] = trek_var_item(loss);
        trek_scope_end(scope);
    }
    assert_true(losses[199] < 0.5 * losses[0]);
    assert_int_equal(trek_weight_norm(last, "bias", 0), TREK_ERR_STATE); /* it lives in the arena */
    expect_error(TREK_ERR_STATE, "arena");
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_module_free(&m);
}

/* --- refused calls ------------------------------------------------------------------------------------------------ */

static trek_var *too_wide(trek_module *self, trek_var *x) { (void)self; return trek_cat((trek_var *[]){ x, x }, 2, 0); }
static trek_var *other_dtype(trek_module *self, trek_var *x) { (void)self; return trek_cast(x, TREK_F64); }
static trek_var *fails(trek_module *self, trek_var *x) { (void)self, (void)x; return NULL; }
static const trek_module_class wide_class = { .name = "wide", .size = sizeof(trek_module), .forward = too_wide };
static const trek_module_class cast_class = { .name = "cast", .size = sizeof(trek_module), .forward = other_dtype };
static const trek_module_class failing_class = { .name = "failing", .size = sizeof(trek_module), .forward = fails };

static void test_refused(void **state)
{
    trek_module *m = trek_nn_linear(3, 2, test_device());
    refuse(trek_weight_norm(NULL, NULL, 0), TREK_ERR_ARGUMENT, "module");
    refuse(trek_weight_norm(m, "weigth", 0), TREK_ERR_ARGUMENT, "weigth");
    refuse(trek_weight_norm(m, NULL, 2), TREK_ERR_ARGUMENT, "dim");
    refuse(trek_weight_norm(m, NULL, -2), TREK_ERR_ARGUMENT, "dim");
    refuse(trek_spectral_norm(NULL, NULL, NULL), TREK_ERR_ARGUMENT, "module");
    refuse(trek_spectral_norm(m, "x", NULL), TREK_ERR_ARGUMENT, "\"x\"");
    refuse(trek_spectral_norm(m, NULL, &(trek_spectral_norm_opts){ .dim = 2 }), TREK_ERR_ARGUMENT, "dim");
    refuse(trek_spectral_norm(m, NULL, &(trek_spectral_norm_opts){ .dim = -3 }), TREK_ERR_ARGUMENT, "dim");
    refuse(trek_spectral_norm(m, NULL, &(trek_spectral_norm_opts){ .n_power_iterations = -1 }), TREK_ERR_ARGUMENT, "-1");
    refuse(trek_spectral_norm(m, NULL, &(trek_spectral_norm_opts){ .eps = -1 }), TREK_ERR_ARGUMENT, "eps");
    refuse(trek_spectral_norm(m, NULL, &(trek_spectral_norm_opts){ .eps = (double)NAN }), TREK_ERR_ARGUMENT, "eps");
    refuse(trek_parametrize(m, "weight", NULL, NULL), TREK_ERR_ARGUMENT, "parametrization");
    refuse(trek_parametrize(m, "weight", m, NULL), TREK_ERR_ARGUMENT, "itself");
    refuse(trek_parametrize(m, NULL, trek_nn_identity(), NULL), TREK_ERR_ARGUMENT, "name");
    refuse(trek_parametrize(m, "weight", trek_module_new(&wide_class), NULL), TREK_ERR_SHAPE, "[4, 3]");
    refuse(trek_parametrize(m, "weight", trek_module_new(&cast_class), NULL), TREK_ERR_DTYPE, "f64");
    refuse(trek_parametrize(m, "weight", trek_module_new(&failing_class), NULL), TREK_ERR_CALLBACK, "failing");
    refuse(trek_parametrize(m, "weight", trek_nn_identity(), &(trek_parametrize_opts){ .originals = 2 }), TREK_ERR_ARGUMENT,
           "right inverse");
    refuse(trek_parametrize(m, "weight", trek_nn_identity(),
                            &(trek_parametrize_opts){ .originals = 9, .right_inverse = triple_inverse }), TREK_ERR_ARGUMENT, "9");
    refuse(trek_parametrize_remove(m, "weight", true), TREK_ERR_ARGUMENT, "no parametrised");
    REFUSED(trek_parametrized_weight(m, "x"), TREK_ERR_ARGUMENT, "\"x\"");
    assert_ptr_equal(trek_parametrized_weight(m, "bias"), trek_module_find(m, "bias"));
    assert_int_equal(m->own->n_children, 0);
    fine(trek_weight_norm(m, NULL, 0));
    refuse(trek_weight_norm(m, NULL, 0), TREK_ERR_ARGUMENT, "already");
    refuse(trek_parametrize(m, "weight", trek_nn_identity(),
                            &(trek_parametrize_opts){ .originals = 3, .right_inverse = triple_inverse }), TREK_ERR_ARGUMENT,
           "already");
    refuse(trek_parametrize(m, "weight", trek_module_new(&wide_class), NULL), TREK_ERR_SHAPE, "[4, 3]");
    trek_tensor *narrow = test_tensor(1, trek_dims(2, 2), 1), *whole = test_values((double[6]){ 1 }, trek_dims(2, 3), TREK_I64);
    refuse(trek_parametrized_assign(m, "weight", narrow), TREK_ERR_SHAPE, "[2, 2]");
    refuse(trek_parametrized_assign(m, "weight", whole), TREK_ERR_DTYPE, "i64");
    refuse(trek_parametrized_assign(m, "bias", narrow), TREK_ERR_ARGUMENT, "bias");
    refuse(trek_parametrized_assign(m, "weight", NULL), TREK_ERR_ARGUMENT, "weight");
    fine(trek_parametrize(m, "weight", trek_nn_identity(), NULL));
    trek_tensor *right = test_tensor(1, trek_dims(2, 3), 1);
    refuse(trek_parametrized_assign(m, "weight", right), TREK_ERR_UNSUPPORTED, "identity has no right inverse");
    assert_false(trek_is_parametrized(NULL, NULL));
    trek_tensor_release(narrow), trek_tensor_release(whole), trek_tensor_release(right);
    trek_module *norm = trek_nn_layer_norm(3, test_device());
    assert_non_null(trek_module_share_param(norm, "free", TREK_NO_FIELD, trek_module_find(m, "bias")));
    refuse(trek_weight_norm(norm, "free", 0), TREK_ERR_UNSUPPORTED, "field");
    trek_module_free(&norm);
    trek_module_free(&m);
}

/* Whichever allocation fails, the module is as it was, or done. */
static void test_without_memory(void **state)
{
    for (int what = 0; what < 4; what++) {
        bool done = false;
        for (int64_t fail = 1; !done; fail++) {
            trek_module *m = drawn(&kinds[2], TREK_F64);
            if (what > 1)
                fine(trek_weight_norm(m, "weight", 0));
            trek_scope scope = trek_scope_begin();
            trek_var *x = input(&kinds[2], TREK_F64), *before = run(m, x);
            test_allocator_restart(fail);
            trek_status status = what == 0 ? trek_weight_norm(m, "weight", 0) : what == 1 ? trek_spectral_norm(m, NULL, NULL)
                : what == 2 ? trek_parametrize_remove(m, "weight", true) : trek_spectral_norm(m, "bias", NULL);
            test_allocator_restart(0);
            done = status == TREK_OK;
            if (!done) {
                expect_error(TREK_ERR_MEMORY, "");
                assert_true(trek_is_parametrized(m, "weight") == (what > 1));
                assert_true(distance(run(m, x), before) == 0);
                assert_int_equal(m->own->n_children, what > 1);
            }
            run(m, x);
            trek_scope_end(scope);
            trek_module_free(&m);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weight_norm), cmocka_unit_test(test_spectral_norm),
        cmocka_unit_test(test_spectral_norm_of_a_vector), cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_vectors_are_constants), cmocka_unit_test(test_16_bits), cmocka_unit_test(test_autocast),
        cmocka_unit_test(test_own), cmocka_unit_test(test_several_originals), cmocka_unit_test(test_norms_in_a_chain),
        cmocka_unit_test(test_names_and_state), cmocka_unit_test(test_removing), cmocka_unit_test(test_removing_to_the_original),
        cmocka_unit_test(test_reset), cmocka_unit_test(test_frozen_and_shared), cmocka_unit_test(test_run_as_one),
        cmocka_unit_test(test_recomputed), cmocka_unit_test(test_optimized), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_without_memory),
    };
    return test_allocator_use() == TREK_OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
