/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of slices, added in place, against the one that is recorded, which puts zeros around each: slices of every
 * kind, order and number, of nodes and leaves, beside other uses, with hooks, twice over, of whatever dtype. */
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "tensor/devices.h"
#include "tensor/shapes.h"
#include "tests/autograd/values.h"
#include "tests/support/support.h"

enum { TERMS = 7, PROGRAMS = 300 };

static uint32_t state_of_draw;

static int64_t draw(int64_t n) /* [0, n) */
{
    state_of_draw = state_of_draw * 1664525u + 1013904223u;
    return (state_of_draw >> 8) % n;
}

/* A slice of y, of a kind drawn; the kinds of one program favour one dimension, so that some lie side by side. */
static trek_var *slice_of(trek_var *y, int favoured)
{
    int dim = draw(4) ? favoured : (int)draw(3);
    int64_t size = trek_var_size(y, dim), start = draw(size);
    switch (draw(4)) {
    case 0: return trek_select(y, dim, start);
    case 1: return trek_transpose(trek_select(y, dim, start), 0, 1);
    case 2: return trek_narrow(y, dim, start, draw(size - start + 1));
    default: return trek_permute(trek_narrow(y, dim, start, size - start), trek_dims(2, 0, 1));
    }
}

/* What a term adds to the loss: linear or not, with a gradient of its own or one that is spread out. */
static trek_var *weighed(trek_var *term, uint32_t stream)
{
    trek_dims_list all = trek_dims_all();
    switch (draw(3)) {
    case 0: return trek_sum(term, all, false);
    case 1: return trek_sum(trek_mul(term, trek_cast(numbers(stream, trek_var_shape(term), false), trek_var_dtype(term))), all,
                            false);
    default: return trek_sum(trek_mul(term, trek_square(term)), all, false);
    }
}

static trek_var *kept;        /* a gradient that a hook held on to, and what it was then */
static trek_var *kept_copy;

static trek_var *keep(trek_var *var, trek_var *grad, void *arg)
{
    if (!kept) {
        kept = trek_var_retain(grad);
        kept_copy = trek_var_retain(trek_clone(grad));
    }
    return NULL;
}

/* A program over x: the sum of terms of what it is multiplied to, or of x itself. */
static trek_var *program(trek_var *x, uint32_t seed, trek_var **whole)
{
    state_of_draw = seed;
    trek_var *y = draw(3) ? trek_mul_scalar(x, 2) : x;
    if (y != x && draw(3) == 0)
        y = trek_cast(y, TREK_F32);
    *whole = y;
    int favoured = (int)draw(3), n = 1 + (int)draw(TERMS);
    trek_var *loss = NULL, *parts[8];
    for (int k = 0; k < n; k++) {
        trek_var *term = draw(6) ? slice_of(y, favoured) : y;
        if (draw(8) == 0) {
            int count = trek_unbind(y, favoured, parts, 8);
            term = trek_stack(parts, count - (int)draw(count), 0);
        }
        if (draw(5) == 0)
            trek_var_on_grad(term, keep, NULL);
        term = trek_cast(weighed(term, 100 + (uint32_t)k), TREK_F64);
        loss = loss ? trek_add(loss, term) : term;
    }
    return loss;
}

static void nearly(const trek_var *a, const trek_var *b, double within)
{
    assert_true(trek_shape_equal(trek_var_shape(a), trek_var_shape(b)));
    for (int64_t i = 0; i < trek_var_numel(a); i++)
        if (!(fabs(at(a, i) - at(b, i)) <= within * (1 + fabs(at(b, i)))))
            fail_msg("element %d: %.9g, not %.9g", (int)i, at(a, i), at(b, i));
}

static void as_recorded(void **state)
{
    for (uint32_t seed = 1; seed <= (test_short_on_device() ? PROGRAMS / 6 : PROGRAMS); seed++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = numbers(seed, trek_dims(4, 5, 3), true), *whole, *wanted[2], *found[2];
        trek_var *loss = program(x, seed, &whole);
        double within = trek_var_dtype(whole) == TREK_F32 ? 1e-5 : 1e-12;
        trek_var *inputs[2] = { x, whole };
        assert_int_equal(trek_grad(&loss, 1, inputs, 2, NULL, &(trek_backward_opts){ .create_graph = true }, wanted), TREK_OK);
        assert_int_equal(trek_grad(&loss, 1, inputs, 2, NULL, &(trek_backward_opts){ .retain_graph = true }, found), TREK_OK);
        for (int k = 0; k < 2; k++)
            nearly(found[k], wanted[k], within);
        assert_int_equal(trek_backward_with(loss, NULL, &(trek_backward_opts){ .retain_graph = true }), TREK_OK);
        nearly(trek_var_grad(x), wanted[0], within);
        assert_int_equal(trek_backward(loss), TREK_OK);
        nearly(trek_var_grad(x), trek_mul_scalar(wanted[0], 2), within);
        if (kept)
            same(kept, kept_copy); /* nobody wrote to it */
        trek_var_release(kept);
        trek_var_release(kept_copy);
        kept = kept_copy = NULL;
        trek_scope_end(scope);
    }
}

/* Twice differentiated: what is recorded is itself made of slices. */
static trek_var *cubes_of_slices(trek_var *x)
{
    trek_var *y = trek_square(x), *parts[4], *sum = trek_select(y, 0, 1);
    int n = trek_unbind(y, 1, parts, 4);
    for (int k = 0; k < n; k++)
        sum = trek_add(sum, trek_mul(parts[k], trek_narrow(y, 0, k, 1)));
    return trek_sum(sum, trek_dims_all(), false);
}

static void second_order(void **state)
{
    trek_var *x = numbers(1, trek_dims(3, 3), true), *grad, *seed = numbers(2, trek_dims(3, 3), false), *twice;
    trek_var *loss = cubes_of_slices(x);
    assert_int_equal(trek_grad(&loss, 1, &x, 1, NULL, &(trek_backward_opts){ .create_graph = true }, &grad), TREK_OK);
    trek_var *dot = trek_sum(trek_mul(grad, seed), trek_dims_all(), false);
    assert_int_equal(trek_grad(&dot, 1, &x, 1, NULL, NULL, &twice), TREK_OK);
    double *values = test_read(trek_var_data(x)), step = 1e-6;
    for (int64_t i = 0; i < 9; i++) { /* d dot / d x_i by differences of the gradient */
        double slope = 0, own = values[i];
        for (int side = -1; side <= 1; side += 2) {
            values[i] = own + side * step;
            trek_tensor *copy = test_values(values, trek_dims(3, 3), TREK_F64);
            trek_var *moved = trek_var_new(copy, true), *g;
            values[i] = own;
            trek_var *y = cubes_of_slices(moved);
            assert_int_equal(trek_grad(&y, 1, &moved, 1, NULL, NULL, &g), TREK_OK);
            for (int64_t j = 0; j < 9; j++)
                slope += side * at(g, j) * at(seed, j) / (2 * step);
            trek_tensor_release(copy);
            trek_var_release(moved);
        }
        assert_true(fabs(slope - at(twice, i)) < 1e-6 * (1 + fabs(slope)));
    }
    free(values);
}

/* The three parts of one product, cut in the two ways that are usual, some of them frozen. */
static void packed_attention(void **state)
{
    for (uint32_t seed = 0; seed < 48; seed += test_short_on_device() ? 5 : 1) {
        trek_scope scope = trek_scope_begin();
        int64_t length = (int64_t[]){ 3, 70, 131, 4, 300 }[seed % 5], batch = length < 200 ? 1 + seed / 5 % 2 : 1;
        int64_t heads = 2, depth = length < 50 ? 4 : 2, width = heads * depth;
        bool by_select = seed & 1, causal = seed & 2, frozen = seed & 4, besides = seed & 8;
        trek_dtype dtype = seed & 16 ? TREK_F32 : TREK_F64;
        trek_var *x = trek_cast(numbers(seed, trek_dims(batch, length, 3 * width), false), dtype), *part[3], *grads[2][1];
        x = trek_var_new(trek_var_data(x), true);
        trek_var *packed = trek_mul_scalar(x, 0.5);
        for (int k = 0; k < 3; k++) {
            part[k] = by_select ? trek_select(trek_reshape(packed, trek_dims(batch, length, 3, heads, depth)), 2, k)
                : trek_reshape(trek_narrow(packed, 2, k * width, width), trek_dims(batch, length, heads, depth));
            part[k] = trek_permute(part[k], trek_dims(0, 2, 1, 3));
        }
        if (frozen)
            part[seed % 3] = trek_var_detach(part[seed % 3]);
        trek_var *y = trek_attention(part[0], part[1], part[2], &(trek_attention_opts){ .causal = causal });
        trek_var *loss = trek_sum(trek_mul(trek_square(y), trek_cast(numbers(7, trek_var_shape(y), false), dtype)),
                                  trek_dims_all(), false);
        if (besides)
            loss = trek_add(loss, trek_sum(trek_square(packed), trek_dims_all(), false));
        for (int k = 0; k < 2; k++)
            assert_int_equal(trek_grad(&loss, 1, &x, 1, NULL,
                                       &(trek_backward_opts){ .create_graph = k == 0, .retain_graph = true },
                                       grads[k]), TREK_OK);
        nearly(grads[1][0], grads[0][0], dtype == TREK_F32 ? 1e-5 : 1e-12);
        trek_var_release(x);
        trek_scope_end(scope);
    }
}

/* Kernels of a fake device that the gradient of attention takes, by the whole of which q, k and v are parts, or by each. */
static long kernels_of_attention(bool packed)
{
    long (*kernels)(int device);
    void *address = test_fake("trek_fake_kernels");
    memcpy(&kernels, &address, sizeof kernels);
    int64_t heads = 2, depth = 8, length = 40;
    trek_var *x[3], *half[3], *part[3], *grads[3];
    for (int k = 0; k < 3; k++) {
        x[k] = trek_var_from(test_tensor(5, trek_dims(length, packed ? 3 : 1, heads, depth), 1));
        assert_int_equal(trek_var_set_requires_grad(x[k], true), TREK_OK);
        half[k] = trek_mul_scalar(x[k], 0.5);
    }
    for (int k = 0; k < 3; k++)
        part[k] = trek_unsqueeze(trek_permute(trek_select(half[packed ? 0 : k], 1, packed ? k : 0), trek_dims(1, 0, 2)), 0);
    trek_var *loss = trek_sum(trek_attention(part[0], part[1], part[2], NULL), trek_dims_all(), false);
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
    long before = kernels(test_device().index);
    assert_int_equal(trek_grad(&loss, 1, x, packed ? 1 : 3, NULL, NULL, grads), TREK_OK);
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
    return kernels(test_device().index) - before;
}

/* No zeros of the whole's size for each part, no sums of these: one gradient less to be halved than for three of their own. */
static void packed_as_few_kernels(void **state)
{
    if (!test_fake("trek_fake_kernels"))
        skip();
    assert_int_equal(kernels_of_attention(true), kernels_of_attention(false) - 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST(as_recorded), TEST(second_order), TEST(packed_attention),
                                        TEST(packed_as_few_kernels) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
