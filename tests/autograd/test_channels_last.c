/* SPDX-License-Identifier: Apache-2.0 */
/* Images that lie channels last: convolutions over whatever lies how, against loops and differences; what keeps the order,
 * through a block of a residual network and back; convolutions with their activation. */
#include "autograd/backward.h"
#include "autograd/gradcheck.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "graph/flow.h"
#include "graph/graph.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/channels_last.h"
#include "tests/autograd/differences.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static bool lies_last(const trek_var *v) { return v && trek_lies_channels_last(trek_var_data(v)); }

/* A leaf of random numbers of that dtype, channels last or row-major. */
static trek_var *image(uint32_t stream, trek_shape shape, trek_dtype dtype, bool last, bool needs_grad)
{
    trek_var *v = trek_cast(random_values(stream, shape), dtype);
    v = last ? trek_channels_last(v) : trek_contiguous(v);
    assert_non_null(v);
    v = trek_var_from(trek_tensor_retain(trek_var_data(v))); /* a leaf */
    if (needs_grad)
        assert_int_equal(trek_var_set_requires_grad(v, true), TREK_OK);
    return v;
}

/* --- the order of dimensions ------------------------------------------------------------------- */

static void another_order_is_the_same_numbers(void **state)
{
    trek_var *x = random_values(1, trek_dims(2, 3, 4, 5)), *y = trek_channels_last(x);
    assert_true(lies_last(y) && !lies_last(x));
    assert_memory_equal(trek_tensor_strides(trek_var_data(y)).sizes, ((int64_t[]){ 60, 1, 15, 3 }), 4 * sizeof(int64_t));
    assert_true(test_same_bits(trek_var_data(x), trek_var_data(y)));
    assert_ptr_equal(trek_channels_last(y), y);
    assert_true(trek_tensor_is_contiguous(trek_var_data(trek_contiguous(y))));
    for (int empty = 0; empty < 4; empty++) {
        trek_shape shape = trek_dims(2, 3, 4, 5);
        shape.sizes[empty] = 0;
        assert_int_equal(trek_var_numel(trek_channels_last(random_values(1, shape))), 0);
    }
    assert_false(lies_last(trek_channels_last(random_values(1, trek_dims(2, 1, 4, 5))))); /* both orders are one */
    ASSERT_REFUSED(trek_channels_last(random_values(1, trek_dims(3, 4, 5))), TREK_ERR_SHAPE);
    ASSERT_REFUSED(trek_conv2d_activation(x, random_values(2, trek_dims(4, 3, 1, 1)), NULL, NULL, (trek_activation)7),
                   TREK_ERR_ARGUMENT);
}

static trek_var *turn(trek_var *const *inputs) { return trek_channels_last(inputs[0]); }

static void another_order_has_a_gradient(void **state)
{
    check_gradients(turn, 1, (const trek_shape[]){ trek_dims(2, 3, 2, 2) }, true);
}

/* --- convolutions against loops ------------------------------------------------------------------ */

typedef struct conv_case {
    int64_t x[4], weight[4], y[4], stride[2], padding[2], dilation[2], groups;
    bool bias, relu, x_last, weight_last, seed_last;
    unsigned needs; /* bits: x, weight, bias */
} conv_case;

static uint32_t draws;
static int64_t draw(int64_t from, int64_t to)
{
    return from + (int64_t)((test_number(99, draws++) + 1) / 2 * (float)(to - from + 1));
}

/* One channel a group, odd channels, one row, no rows; windows that fit. */
static conv_case random_case(void)
{
    conv_case c = { 0 };
    c.groups = draw(0, 3) == 0 ? draw(2, 5) : 1;
    int64_t own = draw(0, 2) == 0 ? 1 : draw(1, 9), filters = c.groups > 1 && draw(0, 1) ? 1 : draw(1, 9);
    c.x[0] = draw(0, 9) == 0 ? 0 : draw(1, 3), c.x[1] = own * c.groups;
    c.weight[0] = filters * c.groups, c.weight[1] = own;
    c.y[0] = c.x[0], c.y[1] = c.weight[0];
    for (int d = 0; d < 2; d++) {
        int64_t kernel = c.weight[2 + d] = draw(0, 2) == 0 ? 1 : draw(1, 3);
        c.stride[d] = draw(1, 3), c.dilation[d] = draw(1, 2), c.padding[d] = draw(0, 2);
        int64_t reach = c.dilation[d] * (kernel - 1) + 1, least = reach - 2 * c.padding[d];
        c.x[2 + d] = draw(0, 4) == 0 && least <= 1 ? 1 : draw(least > 1 ? least : 1, 8);
        c.y[2 + d] = (c.x[2 + d] + 2 * c.padding[d] - reach) / c.stride[d] + 1;
    }
    c.bias = draw(0, 1), c.relu = draw(0, 1);
    c.x_last = draw(0, 2) > 0, c.weight_last = draw(0, 1), c.seed_last = draw(0, 2) > 0;
    c.needs = (unsigned)draw(1, c.bias ? 7 : 3);
    return c;
}

static trek_var *convolve(const conv_case *c, trek_var *x, trek_var *weight, trek_var *bias)
{
    trek_conv_opts o = { .groups = c->groups };
    for (int d = 0; d < 2; d++) {
        o.stride[d] = c->stride[d], o.dilation[d] = c->dilation[d];
        o.padding[d] = c->padding[d] ? c->padding[d] : TREK_ZERO;
    }
    return c->relu ? trek_conv2d_activation(x, weight, bias, &o, TREK_ACTIVATION_RELU) : trek_conv2d(x, weight, bias, &o);
}

static int64_t place(const int64_t *sizes, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return ((a * sizes[1] + b) * sizes[2] + c) * sizes[3] + d;
}

/* y where dy is NULL; else dx and dweight. */
static void loops(const conv_case *c, const double *x, const double *w, double *y, const double *dy, double *dx, double *dw)
{
    int64_t filters = c->weight[0] / c->groups;
    for (int64_t n = 0; n < c->y[0]; n++)
        for (int64_t k = 0; k < c->y[1]; k++)
            for (int64_t p = 0; p < c->y[2] * c->y[3]; p++)
                for (int64_t tap = 0; tap < c->weight[1] * c->weight[2] * c->weight[3]; tap++) {
                    int64_t u = tap % c->weight[3], v = tap / c->weight[3] % c->weight[2],
                        i = tap / (c->weight[2] * c->weight[3]);
                    int64_t row = p / c->y[3] * c->stride[0] - c->padding[0] + v * c->dilation[0];
                    int64_t column = p % c->y[3] * c->stride[1] - c->padding[1] + u * c->dilation[1];
                    if (row < 0 || column < 0 || row >= c->x[2] || column >= c->x[3])
                        continue;
                    int64_t of_x = place(c->x, n, k / filters * c->weight[1] + i, row, column);
                    int64_t of_w = place(c->weight, k, i, v, u), of_y = place(c->y, n, k, p / c->y[3], p % c->y[3]);
                    if (!dy) {
                        y[of_y] += x[of_x] * w[of_w];
                        continue;
                    }
                    dx[of_x] += dy[of_y] * w[of_w];
                    dw[of_w] += dy[of_y] * x[of_x];
                }
}

static void compare(trek_var *have, const double *want, double unit, const char *what, int at)
{
    if (!have)
        fail_msg("case %d, %s: %s", at, what, trek_error());
    double *numbers = test_read(trek_var_data(have)), largest = 1;
    int64_t n = trek_var_numel(have);
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(numbers[i] - want[i]) <= unit * largest))
            fail_msg("case %d, %s: element %lld is %.9g, not %.9g", at, what, (long long)i, numbers[i], want[i]);
    free(numbers);
}

static int64_t count(const int64_t *sizes) { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
static trek_shape shape_of(const int64_t *sizes) { return trek_dims(sizes[0], sizes[1], sizes[2], sizes[3]); }

/* The result and all gradients asked for: right, and lying as they should. */
static void check_case(const conv_case *c, trek_dtype dtype, double unit, int at)
{
    trek_var *in[3] = { image(1, shape_of(c->x), dtype, c->x_last, c->needs & 1),
                        image(2, shape_of(c->weight), dtype, c->weight_last, c->needs >> 1 & 1), NULL };
    if (c->bias) {
        in[2] = trek_cast(random_values(3, trek_dims(c->y[1])), dtype);
        assert_int_equal(trek_var_set_requires_grad(in[2], c->needs >> 2 & 1), TREK_OK);
    }
    trek_var *y = convolve(c, in[0], in[1], in[2]), *seed = image(4, shape_of(c->y), dtype, c->seed_last, false);
    double *x = test_read(trek_var_data(in[0])), *w = test_read(trek_var_data(in[1])), *dy = test_read(trek_var_data(seed));
    double *b = c->bias ? test_read(trek_var_data(in[2])) : NULL, *want = calloc((size_t)count(c->y) + 1, sizeof *want);
    double *dx = calloc((size_t)count(c->x) + 1, sizeof *dx), *dw = calloc((size_t)count(c->weight) + 1, sizeof *dw);
    double *db = calloc((size_t)c->y[1] + 1, sizeof *db);
    loops(c, x, w, want, NULL, NULL, NULL);
    for (int64_t i = 0; i < count(c->y); i++) {
        int64_t channel = i / (c->y[2] * c->y[3]) % c->y[1];
        want[i] += b ? b[channel] : 0;
        dy[i] = c->relu && want[i] <= 0 ? 0 : dy[i];
        want[i] = c->relu && want[i] < 0 ? 0 : want[i];
        db[channel] += dy[i];
    }
    compare(y, want, unit, "result", at);
    bool told = lies_last(in[0]) || lies_last(in[1]), open = c->y[1] == 1 || c->y[2] * c->y[3] == 1 || count(c->y) == 0;
    if (lies_last(y) != (told && !open))
        fail_msg("case %d: the result lies otherwise than its operands", at);
    loops(c, x, w, NULL, dy, dx, dw);
    trek_var *grads[3] = { NULL }, *wanted[3];
    const double *right[3] = { dx, dw, db };
    static const char *const names[] = { "dx", "dweight", "dbias" };
    int which[3], n = 0;
    for (int k = 0; k < 3; k++)
        if (c->needs >> k & 1)
            wanted[n] = in[k], which[n++] = k;
    if (trek_grad(&y, 1, wanted, n, &seed, NULL, grads) != TREK_OK)
        fail_msg("case %d: %s", at, trek_error());
    for (int k = 0; k < n; k++) {
        compare(grads[k], right[which[k]], unit, names[which[k]], at);
        if (which[k] < 2 && lies_last(grads[k]) != lies_last(wanted[k]))
            fail_msg("case %d: %s does not lie as what it is the gradient of", at, names[which[k]]);
    }
    free(x), free(w), free(dy), free(b), free(want), free(dx), free(dw), free(db);
}

/* 16 bits: where rounding to it could turn a result about 0 round, ReLU's gradient tells nothing. */
static void convolutions_of_any_order(void **state)
{
    static const struct { trek_dtype dtype; double unit; } formats[] = {
        { TREK_F64, 1e-13 }, { TREK_F32, 1e-5 }, { TREK_BF16, 0x1p-7 }, { TREK_F16, 0x1p-10 } };
    draws = 0;
    for (int at = 0; at < 240; at++) {
        conv_case c = random_case();
        bool half = formats[at % 4].unit > 1e-4;
        c.relu = c.relu && !half;
        trek_scope inner = trek_scope_begin();
        check_case(&c, formats[at % 4].dtype, formats[at % 4].unit, at);
        trek_scope_end(inner);
    }
}

/* Of a size that libraries take, and layers of a ResNet: 3 x 3, 1 x 1, strided, depthwise. */
static void large_convolutions_of_any_order(void **state)
{
    const conv_case cases[] = {
        { { 3, 32, 14, 15 }, { 48, 32, 3, 3 }, { 3, 48, 14, 15 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1, true, true, true, false,
          true, 7 },
        { { 5, 64, 12, 12 }, { 128, 64, 1, 1 }, { 5, 128, 12, 12 }, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1, true, true, true, true,
          true, 7 },
        { { 4, 32, 17, 16 }, { 64, 32, 3, 3 }, { 4, 64, 9, 8 }, { 2, 2 }, { 1, 1 }, { 1, 1 }, 1, false, false, true, false,
          false, 3 },
        { { 5, 64, 16, 16 }, { 64, 64, 3, 3 }, { 5, 64, 16, 16 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1, false, true, true, true,
          true, 3 },
        { { 2, 40, 11, 9 }, { 40, 1, 3, 3 }, { 2, 40, 11, 9 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 40, true, true, true, false, true,
          7 },
        { { 2, 96, 8, 8 }, { 160, 96, 3, 3 }, { 2, 160, 8, 8 }, { 1, 1 }, { 2, 2 }, { 2, 2 }, 1, true, false, true, false, true,
          7 },
    };
    size_t n = getenv("TREK_TEST_SHORT") ? 2 : sizeof cases / sizeof cases[0];
    for (size_t k = 0; k < n; k++) {
        trek_scope inner = trek_scope_begin();
        check_case(&cases[k], TREK_F32, 2e-5, (int)k);
        trek_scope_end(inner);
    }
}

static trek_var *convolve_inputs(trek_var *const *inputs, int n, void *arg)
{
    return convolve(arg, inputs[0], inputs[1], n > 2 ? inputs[2] : NULL);
}

static void gradients_are_differences(void **state)
{
    draws = 5000;
    for (int at = 0, done = 0; done < 12; at++) {
        conv_case c = random_case();
        if (count(c.x) == 0 || count(c.x) > 200 || count(c.weight) > 100 || !(c.x_last || c.weight_last))
            continue;
        trek_scope inner = trek_scope_begin();
        trek_var *in[3] = { image(1 + (uint32_t)at, shape_of(c.x), TREK_F64, c.x_last, true),
                            image(2 + (uint32_t)at, shape_of(c.weight), TREK_F64, c.weight_last, true),
                            random_values(3, trek_dims(c.y[1])) };
        assert_int_equal(trek_var_set_requires_grad(in[2], true), TREK_OK);
        if (trek_gradcheck(convolve_inputs, in, 2 + c.bias, &c, &(trek_gradcheck_opts){ .second = done % 3 == 0 }) != TREK_OK)
            fail_msg("case %d: %s", at, trek_error());
        trek_scope_end(inner);
        done++;
    }
}

/* --- ReLU behind a convolution -------------------------------------------------------------------- */

static void relu_passes_nan(void **state)
{
    for (int last = 0; last < 2; last++) {
        trek_var *x = VALUES(trek_dims(1, 2, 1, 2), TREK_F32, NAN, -1, 2, 3);
        trek_var *w = VALUES(trek_dims(2, 2, 1, 1), TREK_F32, 1, 1, -1, -1);
        ASSERT_VALUES(trek_conv2d_activation(last ? trek_channels_last(x) : x, w, NULL, NULL, TREK_ACTIVATION_RELU), NAN, 2,
                      NAN, 0);
    }
}

static void gelu_is_an_op_behind(void **state)
{
    trek_var *x = random_values(1, trek_dims(1, 2, 3, 3)), *w = random_values(2, trek_dims(3, 2, 2, 2));
    trek_var *y = trek_conv2d_activation(x, w, NULL, NULL, TREK_ACTIVATION_GELU);
    assert_true(test_same_bits(trek_var_data(y), trek_var_data(trek_gelu(trek_conv2d(x, w, NULL, NULL)))));
}

/* Nodes that a forward leaves on the tape. */
static int64_t nodes_of(trek_module *m, trek_var *x)
{
    trek_scope inner = trek_scope_begin();
    int64_t before = trek_tape_size();
    assert_non_null(trek_forward(m, x));
    int64_t nodes = trek_tape_size() - before;
    trek_scope_end(inner);
    return nodes;
}

static void sequential_takes_relu_into_its_convolution(void **state)
{
    trek_var *x = trek_cast(random_values(1, trek_dims(2, 3, 6, 6)), TREK_F32);
    trek_module *conv = trek_nn_conv2d(3, 4, 3, test_device()), *alone = trek_nn_relu();
    trek_module *both = trek_nn_sequential((trek_module *[]){ conv, trek_nn_relu() }, 2);
    trek_var *want = trek_forward(alone, trek_forward(conv, x)), *have = trek_forward(both, x);
    double *numbers = test_read(trek_var_data(want));
    compare(have, numbers, 1e-6, "sequential", 0);
    free(numbers);
    assert_int_equal(nodes_of(both, x), nodes_of(conv, x));
    trek_module_free(&alone);
    trek_module_free(&both);
}

/* A graph does, unless the value between is tagged. */
static void graphs_take_relu_into_their_convolutions(void **state)
{
    trek_var *x = trek_cast(random_values(1, trek_dims(2, 3, 6, 6)), TREK_F32);
    double *numbers[2];
    int64_t nodes[2];
    for (int tagged = 0; tagged < 2; tagged++) {
        trek_seed(4);
        trek_flow *flow = trek_flow_from(trek_nn_channels_last());
        trek_flow_through(flow, trek_nn_conv2d(3, 4, 3, test_device()));
        if (tagged)
            trek_flow_tag(flow, "before");
        trek_flow_through(flow, trek_nn_relu());
        trek_graph *graph = trek_flow_build(flow);
        int64_t before = trek_tape_size();
        trek_var *y = trek_graph_forward(graph, x);
        nodes[tagged] = trek_tape_size() - before;
        assert_true(lies_last(y));
        if (tagged)
            assert_non_null(trek_graph_tagged(graph, "before"));
        numbers[tagged] = test_read(trek_var_data(y));
        if (tagged)
            compare(y, numbers[0], 1e-6, "graph", 0);
        trek_graph_free(&graph);
    }
    assert_int_equal(nodes[1] - nodes[0], 1);
    free(numbers[0]), free(numbers[1]);
}

/* --- a residual network ------------------------------------------------------------------------------ */

enum { VALUES_SEEN = 24 };

static int n_seen, n_grads;

static trek_var *gradient_lies_last(trek_var *var, trek_var *grad, void *arg)
{
    n_grads++;
    if (!lies_last(grad))
        fail_msg("the gradient of %s does not lie channels last",
                 trek_shape_format(trek_var_shape(var), (char[TREK_SHAPE_TEXT]){ 0 }, TREK_SHAPE_TEXT));
    return NULL;
}

/* The value and, later, its gradient lie channels last (where asked). */
static trek_var *seen(trek_var *v, bool last)
{
    if (!v)
        fail_msg("%s", trek_error());
    if (last && !lies_last(v))
        fail_msg("value %d does not lie channels last", n_seen);
    if (last)
        assert_true(trek_var_on_grad(v, gradient_lies_last, NULL) > 0);
    n_seen++;
    return v;
}

typedef struct network {
    trek_module *stem, *stem_norm, *conv[3], *norm[3], *down, *down_norm, *head;
} network;

static trek_module *conv_of(int64_t in, int64_t out, int64_t kernel, int64_t stride)
{
    return trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = in, .out = out, .kernel = { kernel }, .stride = { stride },
                                                    .padding = { kernel / 2, kernel / 2 }, .no_bias = true,
                                                    .device = test_device() });
}

static network network_new(void)
{
    network n = { .stem = conv_of(3, 8, 3, 1), .stem_norm = trek_nn_batch_norm2d(8, test_device()),
                  .conv = { conv_of(8, 8, 3, 1), conv_of(8, 12, 3, 2), conv_of(12, 12, 1, 1) },
                  .norm = { trek_nn_batch_norm2d(8, test_device()), trek_nn_batch_norm2d(12, test_device()),
                            trek_nn_batch_norm2d(12, test_device()) },
                  .down = conv_of(8, 12, 1, 2), .down_norm = trek_nn_batch_norm2d(12, test_device()),
                  .head = trek_nn_linear(12, 5, test_device()) };
    return n;
}

static void network_free(network *n)
{
    trek_module **all[] = { &n->stem, &n->stem_norm, &n->conv[0], &n->conv[1], &n->conv[2], &n->norm[0], &n->norm[1], &n->norm[2],
                            &n->down, &n->down_norm, &n->head };
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        trek_module_free(all[k]);
}

/* A stem with a max pool, a bottleneck that halves, the average over all pixels. */
static trek_var *run(const network *n, trek_var *x, bool last)
{
    const trek_pool_opts pool = { .kernel = { 3 }, .stride = { 2 }, .padding = { 1, 1 } };
    const trek_pool_opts average = { .kernel = { 2 }, .stride = { 1 } };
    x = seen(trek_forward(n->stem, last ? trek_channels_last(x) : x), last);
    x = seen(trek_relu(seen(trek_forward(n->stem_norm, x), last)), last);
    x = seen(trek_max_pool2d(x, &pool), last);
    trek_var *y = seen(trek_forward(n->conv[0], x), last);
    y = seen(trek_relu(seen(trek_forward(n->norm[0], y), last)), last);
    y = seen(trek_relu(seen(trek_forward(n->norm[1], seen(trek_forward(n->conv[1], y), last)), last)), last);
    y = seen(trek_forward(n->norm[2], seen(trek_forward(n->conv[2], y), last)), last);
    x = seen(trek_forward(n->down_norm, seen(trek_forward(n->down, x), last)), last);
    y = seen(trek_avg_pool2d(seen(trek_relu(seen(trek_add(x, y), last)), last), &average), last);
    y = trek_flatten(trek_adaptive_avg_pool2d(y, 1, 1), 1, -1);
    return trek_forward(n->head, y);
}

static void a_residual_network_stays_channels_last(void **state)
{
    trek_seed(7);
    network n = network_new();
    trek_var *x = trek_cast(random_values(1, trek_dims(4, 3, 16, 16)), TREK_F32), *dy = random_values(2, trek_dims(4, 5));
    double *want[3] = { NULL };
    dy = trek_cast(dy, TREK_F32);
    for (int last = 0; last < 2; last++) {
        trek_var *leaf = trek_clone(x), *grads[2], *weight = trek_module_find(n.conv[0], "weight");
        leaf = trek_var_detach(leaf);
        assert_int_equal(trek_var_set_requires_grad(leaf, true), TREK_OK);
        n_seen = n_grads = 0;
        trek_var *y = run(&n, leaf, last), *wanted[2] = { leaf, weight };
        assert_int_equal(trek_grad(&y, 1, wanted, 2, &dy, NULL, grads), TREK_OK);
        assert_int_equal(n_grads, last ? n_seen : 0);
        trek_var *have[3] = { y, grads[0], grads[1] };
        for (int k = 0; k < 3; k++)
            if (last)
                compare(have[k], want[k], 1e-4, "network", k);
            else
                want[k] = test_read(trek_var_data(have[k]));
    }
    for (int k = 0; k < 3; k++)
        free(want[k]);
    network_free(&n);
}

/* Of one row of pixels, odd channels and none: the same numbers as row-major. */
static void poolings_and_norms_of_any_order(void **state)
{
    const trek_shape shapes[] = { trek_dims(2, 3, 5, 6), trek_dims(1, 8, 4, 4), trek_dims(3, 5, 1, 7), trek_dims(0, 3, 4, 4),
                                  trek_dims(2, 16, 9, 3) };
    const trek_dtype dtypes[] = { TREK_F32, TREK_BF16, TREK_F64 };
    for (int at = 0; at < 5 * 3; at++) {
        trek_shape s = shapes[at % 5];
        const trek_pool_opts pool = { .kernel = { s.sizes[2] > 2 ? 3 : 1, 3 }, .stride = { 2, 1 }, .padding = { TREK_ZERO, 1 } };
        trek_var *x[2], *y[2][5];
        for (int last = 0; last < 2; last++) {
            x[last] = image(3, s, dtypes[at / 5], last, false);
            trek_var *weight = trek_cast(random_values(4, trek_dims(s.sizes[1])), dtypes[at / 5]);
            y[last][0] = trek_max_pool2d(x[last], &pool);
            y[last][1] = trek_avg_pool2d(x[last], &pool);
            y[last][2] = trek_adaptive_avg_pool2d(x[last], 2, 3);
            y[last][3] = s.sizes[0] ? trek_batch_norm(x[last], NULL, NULL, weight, weight, true, 0.1, 1e-5) : x[last];
            y[last][4] = trek_add(trek_relu(x[last]), trek_reshape(weight, trek_dims(s.sizes[1], 1, 1)));
        }
        for (int k = 0; k < 5; k++) {
            if (!y[0][k] || !y[1][k])
                fail_msg("shape %d, op %d: %s", at % 5, k, trek_error());
            double *want = test_read(trek_var_data(y[0][k]));
            compare(y[1][k], want, dtypes[at / 5] == TREK_BF16 ? 0x1p-8 : 1e-5, "pooling or norm", at * 5 + k);
            assert_true(lies_last(y[1][k]) || trek_var_numel(y[1][k]) == 0);
            free(want);
        }
    }
}

/* --- cuDNN ----------------------------------------------------------------------------------------------- */

static void (*fake_fails)(const char *specification);
static long (*fake_calls)(const char *function);

static bool has_fake_cudnn(void)
{
    void *addresses[2] = { test_fake("trek_fake_fail"), test_fake("trek_fake_calls") };
    if (!addresses[0] || !addresses[1] || !getenv("TREK_CUDNN_LIBRARY"))
        return false;
    memcpy(&fake_fails, &addresses[0], sizeof fake_fails);
    memcpy(&fake_calls, &addresses[1], sizeof fake_calls);
    fake_fails("cudnnBackendExecute:1000000000"); /* counts from here on */
    return true;
}

/* Which of these go by a graph: three directions of what lies channels last, with bias and ReLU in the first one's; of what does
 * not, what has a ReLU behind it. */
static void cudnn_takes_channels_last(void **state)
{
    if (!has_fake_cudnn())
        skip();
    for (int way = 0; way < 16; way++) {
        trek_dtype dtype = way & 1 ? TREK_F16 : TREK_F32;
        bool last = way & 2, relu = way & 4, turned = way & 8;
        trek_var *x = image(1, trek_dims(2, 8, 5, 5), dtype, last, true);
        trek_var *w = image(2, trek_dims(16, 8, 3, 3), dtype, turned, true);
        trek_var *b = trek_cast(random_values(3, trek_dims(16)), dtype), *grads[2], *in[2] = { x, w };
        trek_var *dy = image(4, trek_dims(2, 16, 3, 3), dtype, last || turned, false);
        long before = fake_calls("cudnnBackendExecute");
        trek_var *y = trek_conv2d_activation(x, w, b, NULL, relu ? TREK_ACTIVATION_RELU : TREK_ACTIVATION_NONE);
        assert_int_equal(trek_grad(&y, 1, in, 2, &dy, NULL, grads), TREK_OK);
        if (fake_calls("cudnnBackendExecute") - before != (last || turned ? 3 : relu))
            fail_msg("way %d ran %ld graphs", way, fake_calls("cudnnBackendExecute") - before);
    }
    fake_fails(NULL);
}

/* f32 is not rounded to TF32 unless that is allowed. */
static void cudnn_rounds_as_allowed(void **state)
{
    if (!has_fake_cudnn())
        skip();
    trek_var *x = trek_channels_last(VALUES(trek_dims(1, 2, 1, 2), TREK_F32, 1 + 0x1p-14, 1, 1, 1));
    trek_var *w = VALUES(trek_dims(2, 2, 1, 1), TREK_F32, 1, 0, 0, 1);
    for (int allowed = 0; allowed < 2; allowed++) {
        trek_matmul_precision_set(allowed ? TREK_MATMUL_PRECISION_HIGH : TREK_MATMUL_PRECISION_HIGHEST);
        double *y = test_read(trek_var_data(trek_conv2d(x, w, NULL, NULL)));
        assert_true(y[0] == (allowed ? 1 : 1 + 0x1p-14));
        free(y);
    }
    trek_matmul_precision_set(TREK_MATMUL_PRECISION_HIGHEST);
    fake_fails(NULL);
}

/* Where a graph or a plan cannot be made the own kernels take the call; a run that fails is an error of the op. */
static void cudnn_failures(void **state)
{
    if (!has_fake_cudnn())
        skip();
    for (int n = 1; n < 16; n += 2) { /* of a graph, until its run */
        char what[40];
        trek_var *x = image(1, trek_dims(1, 4, 5 + n, 4), TREK_F32, true, false);
        trek_var *w = image(2, trek_dims(4, 4, 3, 3), TREK_F32, true, false);
        trek_var *b = trek_cast(random_values(3, trek_dims(4)), TREK_F32);
        snprintf(what, sizeof what, "cudnnBackendFinalize:%d", n);
        fake_fails(what);
        trek_var *y = trek_conv2d_activation(x, w, b, NULL, TREK_ACTIVATION_RELU);
        fake_fails(NULL);
        double *want = test_read(trek_var_data(trek_relu(trek_conv2d(trek_cast(x, TREK_F64), trek_cast(w, TREK_F64),
                                                                     trek_cast(b, TREK_F64), NULL))));
        compare(y, want, 1e-5, what, n);
        free(want);
    }
    trek_var *x = image(1, trek_dims(1, 4, 5, 4), TREK_F32, true, false);
    trek_var *w = image(2, trek_dims(4, 4, 3, 3), TREK_F32, true, false);
    assert_int_equal(trek_device_sync(test_device()), TREK_OK);
    fake_fails("cudnnBackendExecute:1");
    REFUSED(trek_conv2d(x, w, NULL, NULL), TREK_ERR_CUDA, "conv2d");
    assert_non_null(trek_conv2d(x, w, NULL, NULL));
    fake_fails(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(another_order_is_the_same_numbers), TEST(another_order_has_a_gradient), TEST(convolutions_of_any_order),
        TEST(large_convolutions_of_any_order), TEST(gradients_are_differences), TEST(relu_passes_nan), TEST(gelu_is_an_op_behind),
        TEST(sequential_takes_relu_into_its_convolution), TEST(graphs_take_relu_into_their_convolutions),
        TEST(a_residual_network_stays_channels_last), TEST(poolings_and_norms_of_any_order), TEST(cudnn_takes_channels_last),
        TEST(cudnn_rounds_as_allowed), TEST(cudnn_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
