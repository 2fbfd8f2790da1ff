/* SPDX-License-Identifier: Apache-2.0 */
/* Export to ONNX, read back by the generated reader: names, shapes, tied weights, open dimensions, files; what is refused, and
 * that nothing is left of it. That runtimes compute the same is check_onnx.py's. */
#include <unistd.h>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/ops.h"
#include "autograd/spatial.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/passes.h"
#include "nn/fp8.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/spatial.h"
#include "onnx/export.h"
#include "onnx/onnx_internal.h"
#include "tensor/creation.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static char folder[256], path[300];

static int begin(void **state)
{
    *state = NULL;
    snprintf(folder, sizeof folder, "/tmp/test_onnx.XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    return 0;
}

static void drop(const char *name)
{
    char full[320];
    snprintf(full, sizeof full, "%s/%s", folder, name);
    unlink(full);
}

/* Nothing but the named files is there. */
static int end(void **state)
{
    *state = NULL;
    drop("model.onnx");
    drop("model.onnx.data");
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(trek_error_status(), TREK_OK);
    return 0;
}

static void expect(trek_status given, trek_status status, const char *part)
{
    assert_int_equal(given, status);
    assert_int_equal(trek_error_status(), status);
    if (!strstr(trek_error(), part))
        print_error("no \"%s\" in: %s\n", part, trek_error());
    assert_non_null(strstr(trek_error(), part));
    trek_error_clear();
}

static trek_var *numbers(trek_shape shape) { return trek_var_from(test_tensor(3, shape, 1)); }

#ifdef TREK_HAVE_ONNX

#include <onnx.pb-c.h>

static unsigned char *content(const char *name, size_t *bytes)
{
    FILE *file = fopen(name, "rb");
    assert_non_null(file);
    unsigned char *data = malloc(1 << 22);
    *bytes = fread(data, 1, 1 << 22, file);
    fclose(file);
    return data;
}

static TrekOnnx__ModelProto *model_read(void)
{
    size_t bytes;
    unsigned char *data = content(path, &bytes);
    TrekOnnx__ModelProto *model = trek_onnx__model_proto__unpack(NULL, bytes, data);
    free(data);
    assert_non_null(model);
    return model;
}

static TrekOnnx__TensorProto *constant(const TrekOnnx__GraphProto *graph, const char *name)
{
    TrekOnnx__TensorProto *found = NULL;
    for (size_t k = 0; k < graph->n_initializer; k++)
        if (strcmp(graph->initializer[k]->name, name) == 0) {
            assert_null(found); /* once */
            found = graph->initializer[k];
        }
    return found;
}

static int nodes_of(const TrekOnnx__GraphProto *graph, const char *type)
{
    int n = 0;
    for (size_t k = 0; k < graph->n_node; k++)
        n += strcmp(graph->node[k]->op_type, type) == 0;
    return n;
}

/* Of dimension d; an open one's name. */
static const char *open_name(const TrekOnnx__ValueInfoProto *info, int d)
{
    return info->type->tensor_type->shape->dim[d]->dim_param;
}

static int64_t size_of(const TrekOnnx__ValueInfoProto *info, int d)
{
    return info->type->tensor_type->shape->dim[d]->dim_value;
}

/* --- what is written ----------------------------------------------------------------------------- */

/* x W, then W's transpose: one weight under two names. */
typedef struct tied {
    trek_module base;
    trek_module *in, *out;
    trek_var *again, *unused;
} tied;

static trek_var *tied_forward(trek_module *self, trek_var *x)
{
    tied *m = (tied *)self;
    trek_var *ignored = trek_erf(trek_add(x, x)); /* nobody reads it */
    (void)ignored;
    return trek_matmul(trek_forward(m->in, x), m->again);
}

static const trek_module_class tied_class = { .name = "tied", .size = sizeof(tied), .forward = tied_forward };

static trek_module *make_tied(void)
{
    tied *m = (tied *)trek_module_new(&tied_class);
    trek_module_add(&m->base, "in", offsetof(tied, in), trek_nn_linear(4, 6, test_device()));
    trek_module_share_param(&m->base, "again", offsetof(tied, again), trek_module_find(m->in, "weight"));
    trek_module_param(&m->base, "unused", offsetof(tied, unused), trek_tensor_zeros(trek_dims(3), TREK_F32, test_device()));
    return trek_module_check(&m->base);
}

static void test_names(void **unused)
{
    trek_scope scope = trek_scope_begin();
    trek_module *m = make_tied();
    assert_int_equal(trek_onnx_export(m, path, (trek_var *[]){ numbers(trek_dims(3, 4)) }, 1, NULL), TREK_OK);
    TrekOnnx__ModelProto *model = model_read();
    const TrekOnnx__GraphProto *graph = model->graph;
    assert_int_equal(model->ir_version, 8);
    assert_int_equal(model->opset_import[0]->version, 17);
    assert_string_equal(model->producer_name, "trek");
    assert_int_equal(graph->n_initializer, 2); /* the weight once, the bias; not what nobody reads */
    const TrekOnnx__TensorProto *weight = constant(graph, "again");
    weight = weight ? weight : constant(graph, "in.weight");
    assert_non_null(weight);
    assert_non_null(constant(graph, "in.bias"));
    assert_int_equal(weight->n_dims, 2);
    assert_int_equal(weight->dims[0], 6);
    assert_int_equal(weight->data_type, 1);
    double *values = test_read(trek_var_data(trek_module_find(m, "in.weight")));
    for (int k = 0; k < 24; k++) {
        float value;
        memcpy(&value, weight->raw_data.data + 4 * k, 4);
        assert_true((double)value == values[k]);
    }
    free(values);
    assert_int_equal(graph->n_node, 2);
    assert_int_equal(nodes_of(graph, "Gemm"), 1);
    assert_int_equal(nodes_of(graph, "MatMul"), 1);
    assert_string_equal(graph->input[0]->name, "input");
    assert_string_equal(graph->output[0]->name, "output");
    assert_string_equal(open_name(graph->input[0], 0), "batch");
    assert_string_equal(open_name(graph->output[0], 0), "batch");
    assert_int_equal(size_of(graph->output[0], 1), 4);
    trek_onnx__model_proto__free_unpacked(model, NULL);
    trek_module_free(&m);
    trek_scope_end(scope);
}

static trek_graph *make_graph(void)
{
    trek_flow *flow = trek_flow_from(trek_nn_linear(4, 6, test_device()));
    trek_flow_label(flow, "first");
    trek_flow_tag(trek_flow_through(flow, trek_nn_dropout(0.5)), "hidden");
    trek_flow_input(flow, "side");
    trek_flow_using(trek_flow_through(flow, trek_nn_bilinear(6, 5, 3, test_device())), "side");
    return trek_flow_build(flow);
}

static void test_graph(void **unused)
{
    trek_scope scope = trek_scope_begin();
    trek_graph *g = make_graph();
    trek_module *m = trek_graph_module(g);
    trek_var *inputs[] = { numbers(trek_dims(3, 4)), numbers(trek_dims(3, 5)) };
    assert_non_null(trek_graph_forward_many(g, inputs, 2));
    trek_var *tagged = trek_graph_tagged(g, "hidden");
    trek_module *inner = trek_graph_at(g, "first");
    trek_module_train(inner, false); /* modes of its own */
    trek_seed(5);
    trek_tensor *drawn = trek_tensor_rand(trek_dims(4), TREK_F32, test_device());
    trek_seed(5);
    trek_onnx_opts opts = { .opset = 21, .tags = (const char *const[]){ "hidden", NULL } };
    assert_int_equal(trek_onnx_export(m, path, inputs, 2, &opts), TREK_OK);
    trek_tensor *again = trek_tensor_rand(trek_dims(4), TREK_F32, test_device());
    assert_true(test_same_bits(drawn, again)); /* random numbers go on where they were */
    trek_tensor_release(drawn);
    trek_tensor_release(again);
    assert_true(trek_module_is_training(m));
    assert_false(trek_module_is_training(inner));
    assert_ptr_equal(trek_graph_tagged(g, "hidden"), tagged);
    assert_true(trek_grad_enabled());
    TrekOnnx__ModelProto *model = model_read();
    assert_int_equal(model->ir_version, 10);
    assert_int_equal(model->opset_import[0]->version, 21);
    assert_int_equal(model->graph->n_input, 2);
    assert_string_equal(model->graph->input[1]->name, "side");
    assert_int_equal(model->graph->n_output, 2);
    assert_string_equal(model->graph->output[1]->name, "hidden");
    assert_non_null(constant(model->graph, "first.weight"));
    trek_onnx__model_proto__free_unpacked(model, NULL);
    trek_graph_free(&g);
    trek_scope_end(scope);
}

/* Dimensions by name; the same bytes each time, whatever was drawn and run before. */
static void test_dims(void **unused)
{
    trek_scope scope = trek_scope_begin();
    trek_module *m = trek_nn_multihead_attention(8, 2, test_device());
    trek_onnx_dim dims[] = { { 0, 1, "length", 0 } };
    trek_onnx_opts opts = { .dims = dims, .n_dims = 1, .input_names = (const char *const[]){ "tokens" },
                            .output_names = (const char *const[]){ "mixed" } };
    trek_var *x = numbers(trek_dims(1, 4, 8));
    size_t bytes[2];
    unsigned char *data[2];
    for (int k = 0; k < 2; k++) {
        assert_int_equal(trek_onnx_export(m, path, &x, 1, &opts), TREK_OK);
        data[k] = content(path, &bytes[k]);
        assert_non_null(trek_forward(m, numbers(trek_dims(2, 3, 8))));
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(data[0], data[1], bytes[0]);
    free(data[0]);
    free(data[1]);
    TrekOnnx__ModelProto *model = model_read();
    assert_string_equal(model->graph->input[0]->name, "tokens");
    assert_string_equal(model->graph->output[0]->name, "mixed");
    assert_string_equal(open_name(model->graph->output[0], 0), "batch");
    assert_string_equal(open_name(model->graph->output[0], 1), "length");
    assert_int_equal(size_of(model->graph->output[0], 2), 8);
    trek_onnx__model_proto__free_unpacked(model, NULL);
    assert_int_equal(trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .batch = TREK_OFF }), TREK_OK);
    model = model_read();
    assert_int_equal(size_of(model->graph->input[0], 0), 1); /* sizes of 1 are the example's then */
    trek_onnx__model_proto__free_unpacked(model, NULL);
    trek_module_free(&m);
    trek_scope_end(scope);
}

/* What trek makes of several ops is one node. */
static void test_compounds(void **unused)
{
    trek_scope scope = trek_scope_begin();
    trek_module *layers[] = { trek_nn_conv3d(2, 4, 3, test_device()), trek_nn_max_pool3d(2),
                              trek_nn_flatten_with(&(trek_flatten_opts){ .start_dim = 2 }),
                              trek_nn_conv1d(4, 3, 2, test_device()),
                              trek_nn_avg_pool1d(2), trek_nn_conv_transpose1d(3, 2, 2, test_device()) };
    trek_module *m = trek_nn_sequential(layers, 6);
    trek_var *x = numbers(trek_dims(2, 2, 6, 6, 6));
    assert_int_equal(trek_onnx_export(m, path, &x, 1, NULL), TREK_OK);
    TrekOnnx__ModelProto *model = model_read();
    assert_int_equal(nodes_of(model->graph, "Conv"), 2);
    assert_int_equal(nodes_of(model->graph, "ConvTranspose"), 1);
    assert_int_equal(nodes_of(model->graph, "MaxPool"), 1);
    assert_int_equal(nodes_of(model->graph, "AveragePool"), 1);
    assert_int_equal(model->graph->n_node, 6); /* and the flattening */
    assert_int_equal(constant(model->graph, "0.weight")->n_dims, 5);
    trek_onnx__model_proto__free_unpacked(model, NULL);
    trek_module_free(&m);
    trek_scope_end(scope);
}

/* A layer whose products are of 8 bits is written as one of bf16: the same file. */
static void test_8_bits(void **unused)
{
    trek_scope scope = trek_scope_begin();
    trek_module *m = trek_nn_linear(16, 32, test_device());
    trek_var *x = numbers(trek_dims(2, 16));
    unsigned char *data[2];
    size_t bytes[2];
    for (int k = 0; k < 2; k++) {
        if (k == 1)
            assert_int_equal(trek_fp8_enable(m, NULL), TREK_OK);
        trek_autocast_begin(TREK_BF16);
        assert_int_equal(trek_onnx_export(m, path, &x, 1, NULL), TREK_OK);
        trek_autocast_end();
        data[k] = content(path, &bytes[k]);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(data[0], data[1], bytes[0]);
    free(data[0]);
    free(data[1]);
    trek_module_free(&m);
    trek_scope_end(scope);
}

static void test_outside(void **unused)
{
    trek_scope scope = trek_scope_begin();
    trek_module *m = trek_nn_linear(40, 30, test_device());
    trek_var *x = numbers(trek_dims(2, 40));
    char beside[320];
    snprintf(beside, sizeof beside, "%s.data", path);
    assert_int_equal(trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .external_data = 1 }), TREK_OK);
    TrekOnnx__ModelProto *model = model_read();
    const TrekOnnx__TensorProto *weight = constant(model->graph, "weight");
    assert_int_equal(weight->data_location, 1);
    assert_int_equal(weight->raw_data.len, 0);
    assert_string_equal(weight->external_data[0]->value, "model.onnx.data");
    size_t bytes;
    unsigned char *data = content(beside, &bytes);
    assert_int_equal(bytes, 40 * 30 * 4);
    assert_int_equal(atoi(weight->external_data[2]->value), bytes);
    double *values = test_read(trek_var_data(trek_module_find(m, "weight")));
    for (int k = 0; k < 1200; k++)
        assert_true((double)((float *)(void *)data)[k] == values[k]);
    free(values);
    free(data);
    assert_int_equal(constant(model->graph, "bias")->raw_data.len, 30 * 4); /* small ones stay */
    trek_onnx__model_proto__free_unpacked(model, NULL);
    trek_module_free(&m);
    trek_scope_end(scope);
}

/* --- what is refused ---------------------------------------------------------------------------------- */

typedef trek_var *(*function)(trek_var *x);
typedef struct function_module {
    trek_module base;
    function fn;
} function_module;

static trek_var *function_forward(trek_module *self, trek_var *x) { return ((function_module *)self)->fn(x); }
static const trek_module_class function_class = { .name = "function", .size = sizeof(function_module),
                                                  .forward = function_forward };

static trek_module *of_function(function fn)
{
    function_module *m = (function_module *)trek_module_new(&function_class);
    m->fn = fn;
    return trek_module_check(&m->base);
}

static trek_var *no_such_op(trek_var *x) { return trek_add(x, trek_cummax(x, 1, NULL)); }
static trek_var *random_numbers(trek_var *x) { return trek_dropout(x, 0.5, true); }
/* Of values that are not those of the first call. */
static double first_seen = NAN;
static trek_var *by_value(trek_var *x)
{
    double seen = trek_var_item(trek_sum(x, trek_dims_all(), false));
    first_seen = isnan(first_seen) ? seen : first_seen;
    return seen == first_seen ? trek_relu(x) : trek_tanh(x);
}
static trek_var *by_size(trek_var *x) { return trek_var_size(x, 0) > 3 ? trek_relu(x) : trek_tanh(x); }
static trek_var *number_of_values(trek_var *x) { return trek_mul_scalar(x, trek_var_item(trek_max(x, trek_dims_all(), false))); }
static trek_var *host_values(trek_var *x)
{
    double *values = test_read(trek_var_data(x));
    trek_tensor *t = test_values(values, trek_var_shape(x), TREK_F64);
    free(values);
    return trek_add(trek_cast(trek_var_from(t), TREK_F32), x);
}
static trek_var *square_size(trek_var *x)
{
    int64_t n = trek_var_size(x, 0), size = n * n * n + n;
    return trek_add(trek_sum(x, trek_dims_all(), false),
                    trek_var_from(trek_tensor_ones(trek_dims(size), TREK_F32, trek_var_device(x))));
}
static trek_var *as_many_as_ever(trek_var *x) { return trek_nonzero(trek_gt_scalar(trek_select(x, 0, 0), -1e6)); }
static trek_var *written_in_part(trek_var *x)
{
    trek_no_grad_begin();
    trek_var *y = trek_clone(x), *part = trek_narrow(y, 1, 0, 1);
    trek_fill_(part, 3);
    trek_no_grad_end();
    return trek_neg(y);
}
static trek_var *fails_in_forward(trek_var *x)
{
    return trek_add(NULL, NULL);
}

static void refused(function fn, trek_status status, const char *part)
{
    trek_scope scope = trek_scope_begin();
    trek_module *m = trek_nn_sequential((trek_module *[]){ trek_nn_linear(4, 4, test_device()), of_function(fn) }, 2);
    trek_var *x = numbers(trek_dims(3, 4));
    size_t bytes;
    FILE *file = fopen(path, "wb"); /* an earlier one stays */
    fputs("earlier", file);
    fclose(file);
    expect(trek_onnx_export(m, path, &x, 1, NULL), status, part);
    unsigned char *data = content(path, &bytes);
    assert_int_equal(bytes, 7);
    free(data);
    assert_true(trek_module_is_training(m));
    assert_true(trek_grad_enabled());
    trek_module_free(&m);
    trek_scope_end(scope);
}

/* A writer that serves several ops distinguishes them by the types in their rows, and each op has one row. */
static void test_rows(void **unused)
{
    static const trek_onnx_row *const tables[] = {
        trek_onnx_rows_elementwise, trek_onnx_rows_reduce, trek_onnx_rows_shape, trek_onnx_rows_nn,
        trek_onnx_rows_products, trek_onnx_rows_recurrent, trek_onnx_rows_compound,
    };
    int n = 0, found = 0;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const trek_onnx_row *row = tables[t]; row->write; row++, n++)
            if (trek_onnx_row_of(row->op) != row)
                fail_msg("row %d of table %zu: its op has an earlier row", (int)(row - tables[t]), t);
    for (int op = 0; op < TREK_ONNX_ROWS; op++) {
        const trek_onnx_row *row = trek_onnx_row_of(op);
        found += row != NULL;
        for (int k = 0; k < op && row; k++) {
            const trek_onnx_row *other = trek_onnx_row_of(k);
            if (other && other->write == row->write && (!row->type || !other->type || strcmp(row->type, other->type) == 0))
                fail_msg("op %d would be exported as op %d", op, k);
        }
    }
    assert_true(n == found && found > 140);
    trek_onnx model = { .call = -1 };
    trek_onnx_node(&model, "", 0, NULL);
    assert_false(trek_onnx_fine(&model));
    assert_string_equal(model.problem, "its row names no ONNX op");
}

static void test_refused(void **unused)
{
    refused(no_such_op, TREK_ERR_UNSUPPORTED, "1 (function): onnx_export: cummax: ONNX does not have this op");
    refused(random_numbers, TREK_ERR_UNSUPPORTED, "1 (function): onnx_export: dropout: random numbers");
    refused(by_size, TREK_ERR_UNSUPPORTED, "other ops for other sizes or values");
    refused(by_value, TREK_ERR_UNSUPPORTED, "other ops for other sizes or values");
    refused(number_of_values, TREK_ERR_UNSUPPORTED, "1 (function): onnx_export: mul_scalar: one of its numbers depends");
    if (test_on_cpu())
        refused(host_values, TREK_ERR_UNSUPPORTED,
                "1 (function): onnx_export: convert: it reads a value that depends on the inputs");
    refused(square_size, TREK_ERR_UNSUPPORTED, "not a sum or product");
    refused(as_many_as_ever, TREK_ERR_UNSUPPORTED, "nonzero: 4 places with all values");
    refused(written_in_part, TREK_ERR_UNSUPPORTED, "1 (function): onnx_export: neg: it reads memory that was written in part");
    refused(fails_in_forward, TREK_ERR_ARGUMENT, "1 (function): add: input: NULL");
}

static void test_state(void **unused)
{
    trek_scope scope = trek_scope_begin();
    trek_flow *flow = trek_flow_from(trek_nn_gru_cell(4, 4, test_device()));
    trek_flow_using(trek_flow_tag(flow, "h"), "h");
    trek_graph *g = trek_flow_build(flow);
    assert_non_null(g);
    trek_var *x = numbers(trek_dims(3, 4));
    expect(trek_onnx_export(trek_graph_module(g), path, &x, 1, NULL), TREK_ERR_UNSUPPORTED, "carries state");
    trek_graph_free(&g);
    trek_scope_end(scope);
}

static void test_arguments(void **unused)
{
    trek_scope scope = trek_scope_begin();
    trek_module *m = trek_nn_linear(4, 4, test_device());
    trek_var *x = numbers(trek_dims(3, 4));
    trek_onnx_dim dim = { 0, 2, "far", 0 }, other = { 0, 1, "batch", 0 }, unnamed = { 0, 1, NULL, 0 };
    const char *same[] = { "output" };
    const char *weight[] = { "weight" };
    const char *tags[] = { "none", NULL };
    expect(trek_onnx_export(NULL, path, &x, 1, NULL), TREK_ERR_ARGUMENT, "module");
    expect(trek_onnx_export(m, NULL, &x, 1, NULL), TREK_ERR_ARGUMENT, "path");
    expect(trek_onnx_export(m, path, NULL, 1, NULL), TREK_ERR_ARGUMENT, "inputs");
    expect(trek_onnx_export(m, path, &x, 0, NULL), TREK_ERR_ARGUMENT, "n: 0 inputs");
    expect(trek_onnx_export(m, path, (trek_var *[]){ NULL }, 1, NULL), TREK_ERR_ARGUMENT, "input 0");
    expect(trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .opset = 16 }), TREK_ERR_ARGUMENT, ".opset: 16");
    expect(trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .opset = 22 }), TREK_ERR_ARGUMENT, ".opset: 22");
    expect(trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .dims = &dim, .n_dims = 1 }), TREK_ERR_ARGUMENT, "dimension 2");
    expect(trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .dims = &unnamed, .n_dims = 1 }), TREK_ERR_ARGUMENT, "name NULL");
    expect(trek_onnx_export(m, path, (trek_var *[]){ x, numbers(trek_dims(2)) }, 2, NULL), TREK_ERR_ARGUMENT, "sizes 3 and 2");
    expect(trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .dims = &other, .n_dims = 1 }), TREK_ERR_SHAPE, "linear");
    expect(trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .input_names = same }), TREK_ERR_ARGUMENT, "called \"output\"");
    expect(trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .input_names = weight }), TREK_ERR_UNSUPPORTED,
           "named \"weight\"");
    expect(trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .tags = tags }), TREK_ERR_ARGUMENT, ".tags: given");
    expect(trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .n_results = 2 }), TREK_ERR_ARGUMENT, "results: 2; it has 1");
    expect(trek_onnx_export(m, path, (trek_var *[]){ numbers(trek_dims(0, 4)) }, 1, NULL), TREK_ERR_ARGUMENT, "0 elements");
    expect(trek_onnx_export(m, path, (trek_var *[]){ numbers(trek_dims(3, 5)) }, 1, NULL), TREK_ERR_SHAPE, "linear");
    expect(trek_onnx_export(m, "/no such folder/model.onnx", &x, 1, NULL), TREK_ERR_IO, "/no such folder");
    trek_module_free(&m);
    trek_scope_end(scope);
}

/* Every allocation that can fail does: MEMORY, and nothing is left of it. */
static void test_memory_fails(void **unused)
{
    if (!test_on_cpu())
        return;
    trek_scope scope = trek_scope_begin();
    trek_module *layers[] = { trek_nn_conv2d(1, 2, 3, trek_cpu(0)), trek_nn_relu(), trek_nn_flatten(),
                              trek_nn_linear(8, 3, trek_cpu(0)) };
    trek_module *m = trek_nn_sequential(layers, 4);
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(2, 1, 4, 4), TREK_F32, trek_cpu(0)));
    int64_t at = 1, failed = 0;
    for (trek_status status = TREK_ERR_MEMORY; at < 2000; at++) {
        test_allocator_restart(at);
        test_memory.fail_count = 2; /* the allocator asks again */
        status = trek_onnx_export(m, path, &x, 1, &(trek_onnx_opts){ .external_data = 1 });
        bool reached = test_memory.calls >= at;
        test_allocator_restart(0);
        if (status != TREK_OK) {
            assert_int_equal(status, TREK_ERR_MEMORY);
            failed++;
        }
        assert_true(trek_module_is_training(m));
        trek_error_clear();
        if (!reached)
            break;
    }
    assert_true(at < 2000 && failed > 20);
    trek_module_free(&m);
    trek_scope_end(scope);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names, begin, end), cmocka_unit_test_setup_teardown(test_graph, begin, end),
        cmocka_unit_test_setup_teardown(test_dims, begin, end), cmocka_unit_test_setup_teardown(test_outside, begin, end),
        cmocka_unit_test_setup_teardown(test_rows, begin, end), cmocka_unit_test_setup_teardown(test_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_state, begin, end),
        cmocka_unit_test_setup_teardown(test_arguments, begin, end), cmocka_unit_test_setup_teardown(test_compounds, begin, end),
        cmocka_unit_test_setup_teardown(test_8_bits, begin, end), cmocka_unit_test_setup_teardown(test_memory_fails, begin, end),
    };
    if (test_allocator_use() != TREK_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

/* Without protobuf-c. */
static void test_missing(void **unused)
{
    trek_scope scope = trek_scope_begin();
    trek_module *m = trek_nn_linear(4, 4, test_device());
    trek_var *x = numbers(trek_dims(3, 4));
    expect(trek_onnx_export(m, path, &x, 1, NULL), TREK_ERR_UNSUPPORTED, "without protobuf-c");
    trek_module_free(&m);
    trek_scope_end(scope);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(test_missing, begin, end) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
