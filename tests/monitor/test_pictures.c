/* SPDX-License-Identifier: Apache-2.0 */
/* monitor/graph_record, profile, image: a watched graph's nodes and what they took, by hand; images, decoded again. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/image.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/settings.h"
#include "graph/timeline.h"
#include "monitor/base64.h"
#include "monitor/monitor.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/layout.h"
#include "tests/monitor/watching.h"
#include "tests/support/scoped.h"

static int open_folder(void **state) { return begin(state) || open_scope(state); }
static int close_folder(void **state) { return close_scope(state) != 0 || end(state) != 0; }

static trek_monitor *watch(const char *name, int every)
{
    trek_monitor *m = trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .name = name, .profile_every = every });
    assert_non_null(m);
    return m;
}

/* --- graphs -------------------------------------------------------------------------------------- */

enum { ROWS = 6 };

/* A graph (a linear layer, and tanh of it added to it), and behind it a sequence. */
static trek_graph *net(void)
{
    trek_device on = test_device();
    trek_flow *inner = trek_flow_from(trek_nn_linear(4, 4, on));
    trek_flow_label(inner, "fc");
    trek_flow_also(inner, trek_nn_tanh());
    trek_flow *flow = trek_flow_from(trek_graph_module(trek_flow_build(inner)));
    trek_flow_label(flow, "body");
    trek_flow_tag(flow, "middle");
    trek_flow_through(flow, trek_nn_sequential((trek_module *[]){ trek_nn_linear(4, 8, on), trek_nn_softplus(),
                                                                    trek_nn_linear(8, 2, on),
                                                                    trek_nn_unflatten(1, trek_dims(2, 1)) }, 4));
    trek_flow_label(flow, "head_x");
    trek_graph *graph = trek_flow_build(flow);
    assert_non_null(graph);
    return graph;
}

static void pass(trek_graph *graph, int64_t rows, bool trains)
{
    trek_scope own = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(3, trek_dims(rows, 4), 1));
    if (!trains)
        trek_no_grad_begin();
    trek_var *y = trek_graph_forward(graph, x);
    if (!trains)
        trek_no_grad_end();
    else
        trek_graph_backward(graph, trek_mean(trek_square(y), trek_dims_all(), false));
    if (trains)
        trek_graph_step(graph);
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_scope_end(own);
}

static const trek_run_node *node_of(const trek_run_record *graph, const char *name)
{
    const trek_run_node *found = NULL;
    for (int k = 0; k < graph->n_nodes; k++)
        if (strcmp(graph->nodes[k].name, name) == 0) {
            assert_null(found); /* once */
            found = &graph->nodes[k];
        }
    if (!found)
        fail_msg("there is no node %s", name);
    return found;
}

static void expect_link(const trek_run_record *graph, const char *from, const char *to, int port, const char *label)
{
    for (int k = 0; k < graph->n_links; k++) {
        const trek_run_link *link = &graph->links[k];
        if (strcmp(link->from, from) == 0 && strcmp(link->to, to) == 0 && link->port == port) {
            assert_true(label ? link->label && strcmp(link->label, label) == 0 : !link->label);
            return;
        }
    }
    fail_msg("nothing leads from %s to %s, %d", from, to, port);
}

static trek_graph *trained(void)
{
    trek_graph *graph = net();
    assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.01 })), TREK_OK);
    return graph;
}

static void expect_shape_of_graph(const trek_run_record *graph)
{
    static const struct { const char *name, *kind, *op; int64_t parameters; } nodes[] = {
        { "input", "input", "input", -1 },        { "body", "group", "graph", 20 },
        { "body.input", "input", "input", -1 },   { "body.fc", "module", "linear", 20 },
        { "body.1", "module", "tanh", 0 },        { "body.output", "output", "output", -1 },
        { "head_x", "group", "sequential", 58 },  { "head_x.0", "module", "linear", 40 },
        { "head_x.1", "module", "softplus", 0 },  { "head_x.2", "module", "linear", 18 },
        { "head_x.3", "module", "unflatten", 0 },
        { "output", "output", "output", -1 },
    };
    for (size_t k = 0; k < sizeof nodes / sizeof *nodes; k++) {
        const trek_run_node *node = node_of(graph, nodes[k].name);
        assert_string_equal(node->kind, nodes[k].kind);
        assert_string_equal(node->op, nodes[k].op);
        assert_int_equal(node->parameters, nodes[k].parameters);
    }
    assert_int_equal(graph->n_nodes, sizeof nodes / sizeof *nodes + 1); /* and the sum, by the number of its value */
    const char *sum = NULL;
    for (int k = 0; k < graph->n_nodes; k++)
        if (strcmp(graph->nodes[k].kind, "merge") == 0)
            sum = graph->nodes[k].name;
    assert_non_null(sum);
    assert_int_equal(strncmp(sum, "body.add_", 9), 0);
    expect_link(graph, "input", "body.input", 0, NULL);
    expect_link(graph, "body.input", "body.fc", 0, NULL);
    expect_link(graph, "body.fc", "body.1", 0, NULL);
    expect_link(graph, sum, "body.output", 0, NULL);
    expect_link(graph, "body.output", "head_x.0", 0, NULL);
    expect_link(graph, "head_x.0", "head_x.1", 0, NULL);
    expect_link(graph, "head_x.1", "head_x.2", 0, NULL);
    expect_link(graph, "head_x.2", "head_x.3", 0, NULL);
    expect_link(graph, "head_x.3", "output", 0, NULL);
    assert_int_equal(graph->n_links, 11);
}

/* Of a step: multiply-adds, bytes of what its ops make and of its result, by hand. */
static void expect_figures(const trek_run_record *graph)
{
    static const struct { const char *name, *shape; double mult_adds, bytes, output; } nodes[] = {
        { "body", "f32[6, 4]", ROWS * 16, 3 * ROWS * 16, ROWS * 16 },
        { "body.fc", "f32[6, 4]", ROWS * 16, ROWS * 16, ROWS * 16 },
        { "body.1", "f32[6, 4]", 0, ROWS * 16, ROWS * 16 },
        { "head_x", "f32[6, 2, 1]", ROWS * (32 + 16), ROWS * (32 + 32 + 8), ROWS * 8 },
        { "head_x.0", "f32[6, 8]", ROWS * 32, ROWS * 32, ROWS * 32 },
        { "head_x.1", "f32[6, 8]", 0, ROWS * 32, ROWS * 32 },
        { "head_x.2", "f32[6, 2]", ROWS * 16, ROWS * 8, ROWS * 8 },
        { "head_x.3", "f32[6, 2, 1]", 0, 0, ROWS * 8 }, /* a view */
    };
    for (size_t k = 0; k < sizeof nodes / sizeof *nodes; k++) {
        const trek_run_node *node = node_of(graph, nodes[k].name);
        assert_string_equal(node->shape ? node->shape : "none", nodes[k].shape);
        assert_true(node->calls == 1 && node->mult_adds == nodes[k].mult_adds && node->output_bytes == nodes[k].output);
        assert_true(node->bytes == nodes[k].bytes);
        assert_true(node->forward_ms > 0 && node->backward_ms >= 0);
        assert_true(fabs(node->forward_ms + node->backward_ms - node->time_ms) < 1e-9);
    }
    assert_true(node_of(graph, "body")->time_ms >= node_of(graph, "body.fc")->time_ms + node_of(graph, "body.1")->time_ms);
    assert_true(isnan(node_of(graph, "input")->time_ms) && !node_of(graph, "input")->shape);
}

static void test_figures_are_those_of_a_step(void **state)
{
    trek_graph *graph = trained();
    trek_monitor *m = watch("g", 1);
    assert_int_equal(trek_monitor_attach(m, graph), TREK_OK);
    pass(graph, ROWS, true);
    trek_run_reader *r = read_run("g");
    const trek_run_record *told = trek_run_reader_state(r)->graph;
    assert_int_equal(told->steps, 0); /* before anything is measured */
    expect_shape_of_graph(told);
    assert_true(isnan(node_of(told, "body.fc")->time_ms) && isnan(node_of(told, "body.fc")->bytes));
    trek_run_reader_free(&r);
    for (int k = 0; k < 6; k++)
        pass(graph, ROWS, true);
    r = read_run("g"); /* while it goes on */
    told = trek_run_reader_state(r)->graph;
    assert_int_equal(told->steps, 3);
    assert_int_equal(told->step, 5);
    expect_shape_of_graph(told);
    expect_figures(told);
    trek_run_reader_free(&r);
    trek_graph_free(&graph);
    trek_monitor_free(&m);
}

/* An evaluation between two steps, of other rows, is not of a step; and the end of the graph tells the last. */
static void test_other_forwards_do_not_count(void **state)
{
    trek_graph *graph = trained();
    trek_monitor *m = watch("e", 1);
    assert_int_equal(trek_monitor_attach(m, graph), TREK_OK);
    for (int k = 0; k < 6; k++) {
        pass(graph, ROWS, true);
        if (k == 1 || k == 4)
            pass(graph, 50, false);
    }
    trek_graph_free(&graph);
    trek_run_reader *r = read_run("e");
    const trek_run_record *told = trek_run_reader_state(r)->graph;
    assert_int_equal(told->steps, 2); /* of four */
    expect_figures(told);
    trek_run_reader_free(&r);
    trek_monitor_free(&m);
}

/* Whoever profiles by a timeline of his own is not disturbed; nor where it is switched off. */
static void test_nothing_is_measured(void **state)
{
    static const char *const names[] = { "own", "off" };
    for (int k = 0; k < 2; k++) {
        trek_timeline *own = trek_timeline_new(&(trek_timeline_opts){ .ops = true });
        trek_graph *graph = trained();
        trek_monitor *m = watch(names[k], k == 0 ? 1 : TREK_OFF);
        assert_int_equal(trek_monitor_attach(m, graph), TREK_OK);
        if (k == 0)
            assert_int_equal(trek_timeline_attach(own), TREK_OK);
        for (int step = 0; step < 8; step++)
            pass(graph, ROWS, true);
        trek_timeline_row rows[64];
        int64_t n = trek_timeline_averages(own, &(trek_timeline_summary_opts){ .group = TREK_TIMELINE_GROUP_MODULE }, rows, 64);
        int64_t forwards = 0;
        for (int64_t i = 0; i < n; i++)
            forwards += strcmp(rows[i].name, "graph.body.fc") == 0 && !rows[i].backward ? rows[i].calls : 0;
        assert_int_equal(forwards, k == 0 ? 8 : 0);
        trek_monitor_free(&m);
        trek_run_reader *r = read_run(names[k]);
        assert_int_equal(trek_run_reader_state(r)->graph->steps, 0);
        expect_shape_of_graph(trek_run_reader_state(r)->graph);
        trek_run_reader_free(&r);
        trek_graph_free(&graph);
        trek_timeline_free(&own);
    }
}

static trek_status take_bits(const char *name, trek_var *param, void *arg)
{
    double *values = test_read(trek_var_data(param)), **to = arg;
    for (int64_t k = 0; values && k < trek_var_numel(param); k++)
        *(*to)++ = values[k];
    free(values);
    return trek_error_status();
}

/* Training is the same to the bit. */
static void test_training_does_not_change(void **state)
{
    double bits[2][128] = { { 0 } };
    for (int watched = 0; watched < 2; watched++) {
        double *to = bits[watched];
        trek_seed(7);
        trek_graph *graph = trained();
        trek_monitor *m = watched ? watch("same", 1) : NULL;
        if (m)
            assert_int_equal(trek_monitor_attach(m, graph), TREK_OK);
        for (int step = 0; step < 10; step++)
            pass(graph, ROWS, true);
        assert_int_equal(trek_module_each_param(trek_graph_module(graph), take_bits, &to), TREK_OK);
        assert_int_equal(to - bits[watched], 20 + 40 + 18);
        trek_graph_free(&graph);
        trek_monitor_free(&m);
    }
    assert_memory_equal(bits[0], bits[1], sizeof bits[0]);
}

/* Two streams that meet, and a name that is taken. */
static void test_links(void **state)
{
    trek_device on = test_device();
    trek_flow *flow = trek_flow_from(trek_nn_linear(3, 3, on));
    trek_flow_label(flow, "output"); /* as what the graph gives would be called */
    trek_flow_split(flow, (trek_module *[]){ trek_nn_tanh(), trek_nn_sigmoid() }, 2);
    trek_flow_merge_cat(flow, 1);
    trek_graph *graph = trek_flow_build(flow);
    if (!graph)
        fail_msg("%s", trek_error());
    trek_monitor *m = watch("links", 0);
    assert_int_equal(trek_monitor_graph(m, graph), TREK_OK);
    trek_run_reader *r = read_run("links");
    const trek_run_record *told = trek_run_reader_state(r)->graph;
    assert_string_equal(node_of(told, "output")->op, "linear");
    assert_string_equal(node_of(told, "output_")->kind, "output");
    const char *cat = NULL;
    for (int k = 0; k < told->n_nodes; k++)
        if (strcmp(told->nodes[k].op, "cat") == 0)
            cat = told->nodes[k].name;
    assert_non_null(cat);
    expect_link(told, cat, "output_", 0, NULL);
    int into = 0;
    for (int k = 0; k < told->n_links; k++)
        into += strcmp(told->links[k].to, cat) == 0 && told->links[k].port < 2;
    assert_int_equal(into, 2);
    trek_run_reader_free(&r);
    trek_graph_free(&graph);
    trek_monitor_free(&m);
}

/* --- images -------------------------------------------------------------------------------------- */

/* The last image of that name, decoded with so many channels. */
static trek_tensor *image_of(const trek_run_state *s, const char *name, int64_t step, int channels)
{
    for (int k = 0; k < s->n_images; k++) {
        const trek_run_record *image = &s->images[k];
        trek_text png = { 0 };
        if (strcmp(image->name, name) != 0)
            continue;
        assert_int_equal(image->step, step);
        assert_true(trek_base64_decode(&png, image->png));
        trek_tensor *t = trek_image_decode(png.data, png.length, name, &(trek_image_read_opts){ .channels = channels });
        assert_non_null(t);
        assert_int_equal(trek_tensor_shape(t).sizes[1], image->height);
        assert_int_equal(trek_tensor_shape(t).sizes[2], image->width);
        trek_text_clear(&png);
        return t;
    }
    fail_msg("there is no image %s", name);
    return NULL;
}

static void expect_bytes(const trek_run_state *s, const char *name, int64_t step, trek_shape shape, const unsigned char *bytes)
{
    trek_tensor *t = image_of(s, name, step, (int)shape.sizes[0]);
    trek_shape found = trek_tensor_shape(t);
    for (int d = 0; d < 3; d++)
        assert_int_equal(found.sizes[d], shape.sizes[d]);
    assert_memory_equal(trek_tensor_data(t), bytes, (size_t)trek_tensor_numel(t));
    trek_tensor_release(t);
}

static void tell(trek_monitor *m, const char *name, trek_tensor *image)
{
    if (trek_monitor_image(m, name, 5, image) != TREK_OK)
        fail_msg("%s: %s", name, trek_error());
    trek_tensor_release(image);
}

static void test_images_are_what_the_tensors_hold(void **state)
{
    const double levels[] = { 0, 0.5, 1, 1.5, -3, (double)NAN, 0.1, 0.999, 100.0 / 255 };
    const unsigned char level_bytes[] = { 0, 128, 255, 255, 0, 0, 26, 255, 100 };
    const unsigned char halved[] = { 0, 255, 0, 128, 0, 0, 255, 255, 100 }; /* the other way round, read down */
    unsigned char noise[4 * 5 * 6];
    for (size_t k = 0; k < sizeof noise; k++)
        noise[k] = (unsigned char)(k * 37 + k / 7);
    trek_monitor *m = watch("i", 0);
    tell(m, "f32", test_values(levels, trek_dims(3, 3), TREK_F32));
    tell(m, "f64", test_values(levels, trek_dims(1, 3, 3), TREK_F64));
    tell(m, "bool", test_values((double[]){ 0, 1, 1, 0 }, trek_dims(1, 4), TREK_BOOL));
    tell(m, "bf16", test_values((double[]){ 0, 0.5, 1, 2 }, trek_dims(2, 2), TREK_BF16));
    tell(m, "u8", trek_tensor_from_data(noise, trek_dims(4, 5, 6), TREK_U8, test_device()));
    tell(m, "rgb", trek_tensor_from_data(noise, trek_dims(3, 5, 6), TREK_U8, test_device()));
    trek_var *turned = trek_transpose(trek_var_from(test_values(levels, trek_dims(3, 3), TREK_F32)), 0, 1);
    assert_false(trek_tensor_is_contiguous(trek_var_data(turned)));
    assert_int_equal(trek_monitor_image(m, "turned", 5, trek_var_data(turned)), TREK_OK);
    trek_monitor_free(&m);
    trek_run_reader *r = read_run("i");
    const trek_run_state *s = trek_run_reader_state(r);
    expect_bytes(s, "f32", 5, trek_dims(1, 3, 3), level_bytes);
    expect_bytes(s, "f64", 5, trek_dims(1, 3, 3), level_bytes);
    expect_bytes(s, "bool", 5, trek_dims(1, 1, 4), (unsigned char[]){ 0, 255, 255, 0 });
    expect_bytes(s, "bf16", 5, trek_dims(1, 2, 2), (unsigned char[]){ 0, 128, 255, 255 });
    expect_bytes(s, "u8", 5, trek_dims(4, 5, 6), noise);
    expect_bytes(s, "rgb", 5, trek_dims(3, 5, 6), noise);
    unsigned char down[9];
    for (int k = 0; k < 9; k++)
        down[k] = level_bytes[k % 3 * 3 + k / 3];
    expect_bytes(s, "turned", 5, trek_dims(1, 3, 3), down);
    assert_memory_equal(down, halved, 2);
    trek_run_reader_free(&r);
}

/* Five in two rows of three; what lies between them and the place of the sixth are black. */
static void test_batches_are_grids(void **state)
{
    enum { N = 5, C = 3, H = 2, W = 4, GAP = 2, HIGH = 2 * H + GAP, WIDE = 3 * W + 2 * GAP };
    unsigned char batch[N][C][H][W], whole[C][HIGH][WIDE] = { { { 0 } } };
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            for (int y = 0; y < H; y++)
                for (int x = 0; x < W; x++) {
                    batch[n][c][y][x] = (unsigned char)(1 + n * 40 + c * 10 + y * 4 + x);
                    whole[c][n / 3 * (H + GAP) + y][n % 3 * (W + GAP) + x] = batch[n][c][y][x];
                }
    trek_monitor *m = watch("b", 0);
    tell(m, "batch", trek_tensor_from_data(batch, trek_dims(N, C, H, W), TREK_U8, test_device()));
    tell(m, "one", trek_tensor_from_data(batch, trek_dims(1, C, H, W), TREK_U8, test_device()));
    trek_monitor_free(&m);
    trek_run_reader *r = read_run("b");
    expect_bytes(trek_run_reader_state(r), "batch", 5, trek_dims(C, HIGH, WIDE), &whole[0][0][0]);
    expect_bytes(trek_run_reader_state(r), "one", 5, trek_dims(C, H, W), &batch[0][0][0][0]);
    trek_run_reader_free(&r);
}

static void test_what_is_no_image(void **state)
{
    static const struct { trek_shape shape; trek_dtype dtype; trek_status status; const char *text; } cases[] = {
        { { .ndim = 2, .sizes = { 2, 2 } }, TREK_I64, TREK_ERR_DTYPE, "i64; must be u8" },
        { { .ndim = 1, .sizes = { 4 } }, TREK_U8, TREK_ERR_SHAPE, "[4]; must be [height, width]" },
        { { .ndim = 5, .sizes = { 1, 1, 1, 2, 2 } }, TREK_U8, TREK_ERR_SHAPE, "[1, 1, 1, 2, 2]" },
        { { .ndim = 3, .sizes = { 2, 2, 2 } }, TREK_U8, TREK_ERR_SHAPE, "[2, 2, 2]; must be" },
        { { .ndim = 4, .sizes = { 0, 3, 2, 2 } }, TREK_U8, TREK_ERR_SHAPE, "[0, 3, 2, 2]" },
        { { .ndim = 2, .sizes = { 0, 3 } }, TREK_U8, TREK_ERR_SHAPE, "[0, 3]" },
        { { .ndim = 2, .sizes = { 1, 70000 } }, TREK_U8, TREK_ERR_SHAPE, "too large" },
        { { .ndim = 4, .sizes = { 1 << 26, 1, 1, 1 } }, TREK_BOOL, TREK_ERR_SHAPE, "24574 x 24574" },
    };
    trek_monitor *m = watch("none", 0);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        trek_tensor *t = trek_tensor_zeros(cases[k].shape, cases[k].dtype, test_device());
        assert_int_equal(trek_monitor_image(m, "x", 0, t), cases[k].status);
        expect_error(cases[k].status, cases[k].text);
        trek_tensor_release(t);
    }
    trek_tensor *fine = trek_tensor_zeros(trek_dims(2, 2), TREK_U8, test_device());
    FAILS(trek_monitor_image(m, "", 0, fine), TREK_ERR_ARGUMENT, "name: it is empty");
    FAILS(trek_monitor_image(m, "x", 0, NULL), TREK_ERR_ARGUMENT, "image");
    FAILS(trek_monitor_image(NULL, "x", 0, fine), TREK_ERR_ARGUMENT, "monitor");
    REFUSED(trek_monitor_new(&(trek_monitor_opts){ .folder = folder, .profile_every = -2 }), TREK_ERR_ARGUMENT, "profile_every");
    trek_tensor_release(fine);
    trek_monitor_free(&m);
    trek_run_reader *r = read_run("none");
    assert_int_equal(trek_run_reader_state(r)->n_images, 0);
    trek_run_reader_free(&r);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, open_folder, close_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_figures_are_those_of_a_step),
        CASE(test_other_forwards_do_not_count),
        CASE(test_nothing_is_measured),
        CASE(test_training_does_not_change),
        CASE(test_links),
        CASE(test_images_are_what_the_tensors_hold),
        CASE(test_batches_are_grids),
        CASE(test_what_is_no_image),
    };
    return cmocka_run_group_tests_name("pictures", tests, NULL, NULL);
}
