/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/distributed/run/line.h"

#include "autograd/ops.h"
#include "graph/flow.h"
#include "tensor/copies.h"
#include "tests/support/support.h"

typedef struct line {
    trek_module base;
    trek_var *w;
} line;

static trek_var *line_forward(trek_module *self, trek_var *input) { return trek_matmul(input, ((line *)self)->w); }

static const trek_module_class line_class = { .name = "line", .size = sizeof(line), .forward = line_forward };

const double line_start[FEATURES] = { 0.3, -0.2, 0.5 }, line_aim[FEATURES] = { 1, -2, 0.5 };

trek_dtype line_dtype = TREK_F64;

static trek_tensor *numbers(const void *values, trek_shape shape, trek_device device)
{
    trek_tensor *x = trek_tensor_from_data(values, shape, TREK_F64, device), *y = trek_tensor_cast(x, line_dtype);
    trek_tensor_release(x);
    return y;
}

trek_graph *line_build(trek_device device, void *arg)
{
    (void)arg;
    trek_module *m = trek_module_new(&line_class);
    trek_module_param(m, "w", offsetof(line, w), numbers(line_start, trek_dims(FEATURES, 1), device));
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

double line_feature(int row, int k) { return test_number(3, (uint32_t)(row * FEATURES + k)); }

/* noise: then there is no w that fits all. */
double line_target(int row, bool noise)
{
    double y = noise ? test_number(4, (uint32_t)row) : 0;
    for (int k = 0; k < FEATURES; k++)
        y += line_aim[k] * line_feature(row, k);
    return y;
}

trek_dataset *line_dataset(bool noise)
{
    double x[ROWS][FEATURES], y[ROWS], row[ROWS];
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < FEATURES; k++)
            x[i][k] = line_feature(i, k);
        y[i] = line_target(i, noise);
        row[i] = i;
    }
    trek_tensor *tensors[] = { numbers(x, trek_dims(ROWS, FEATURES), trek_cpu(0)),
                               numbers(y, trek_dims(ROWS, 1), trek_cpu(0)),
                               numbers(row, trek_dims(ROWS, 1), trek_cpu(0)) };
    trek_dataset *dataset = trek_dataset_tensors((const char *[]){ "x", "y", "row" }, tensors, 3);
    for (int k = 0; k < 3; k++)
        trek_tensor_release(tensors[k]);
    return dataset;
}

trek_var *line_squares(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_mean(trek_square(trek_sub(output, trek_batch_get(batch, "y"))), trek_dims_all(), false);
}

