/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/graph/modules.h"

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/module_tree.h"
#include "tests/support/unit.h"

/* --- modules whose arithmetic is easy to follow ---------------------------------------------------------- */

typedef struct scale_module {
    trek_module base;
    trek_var *factor;
} scale_module;

int alive;
static trek_var *scale_forward(trek_module *self, trek_var *x) { return trek_mul(x, ((scale_module *)self)->factor); }
static void scale_free(trek_module *self) { (void)self, alive--; }

static const trek_module_class scale_class = {
    .name = "scale", .size = sizeof(scale_module), .forward = scale_forward, .free = scale_free,
};

trek_module *scale(double factor)
{
    trek_module *m = trek_module_new(&scale_class);
    if (!m)
        return NULL;
    alive++;
    trek_module_param(m, "factor", offsetof(scale_module, factor), trek_tensor_full(trek_dims(1), factor, TREK_F32, trek_cpu(0)));
    return trek_module_check(m);
}

static trek_var *sum_forward(trek_module *self, trek_var *const *inputs, int n)
{
    trek_var *sum = inputs[0];
    for (int k = 1; k < n; k++)
        sum = trek_add(sum, inputs[k]);
    return sum;
}

const trek_module_class sum_class = { .name = "sum", .size = sizeof(trek_module), .forward_many = sum_forward };

/* inputs[0] - 10 inputs[1] + 100 inputs[2]: shows which came where. */
static trek_var *ports_forward(trek_module *self, trek_var *const *inputs, int n)
{
    trek_var *y = inputs[0];
    if (n > 1)
        y = trek_sub(y, trek_mul_scalar(inputs[1], 10));
    return n > 2 ? trek_add(y, trek_mul_scalar(inputs[2], 100)) : y;
}

static const char *const port_names[] = { "minus", "plus", NULL };

const trek_module_class ports_class = {
    .name = "ports", .size = sizeof(trek_module), .forward_many = ports_forward, .input_names = port_names,
};

/* --- helpers --------------------------------------------------------------------------------------------- */

trek_scope scope;

int begin(void **state)
{
    alive = 0;
    trek_error_clear();
    scope = trek_scope_begin();
    return 0;
}

int end(void **state)
{
    trek_scope_end(scope);
    int64_t nodes = trek_tape_size();
    if (trek_error_status() != TREK_OK)
        print_error("left: %s\n", trek_error());
    if (alive || nodes)
        print_error("%d modules and %lld tape nodes alive\n", alive, (long long)nodes);
    return trek_error_status() != TREK_OK || alive != 0 || nodes != 0;
}

trek_var *filled(double value) { return trek_var_from(trek_tensor_full(trek_dims(2, 3), value, TREK_F32, trek_cpu(0))); }

void assert_all(trek_var *v, double value)
{
    if (!v)
        fail_msg("no value: %s", trek_error());
    float data[64];
    int64_t n = trek_var_numel(v);
    assert_in_range(n, 1, 64);
    assert_int_equal(trek_tensor_to_host(trek_var_data(v), TREK_F32, data, (size_t)n * sizeof *data), TREK_OK);
    for (int64_t k = 0; k < n; k++)
        if (!(fabs((double)data[k] - value) <= 1e-5 * (1 + fabs(value))))
            fail_msg("element %lld is %g, not %g", (long long)k, (double)data[k], value);
}

trek_graph *built(trek_flow *flow)
{
    trek_graph *graph = trek_flow_build(flow);
    if (!graph)
        fail_msg("%s", trek_error());
    return graph;
}

void assert_forward(trek_graph *graph, double x, double y) { assert_all(trek_graph_forward(graph, filled(x)), y); }

void assert_mistake(trek_flow *flow, const char *text)
{
    assert_null(trek_flow_build(flow));
    assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
    if (!strstr(trek_error(), text))
        fail_msg("\"%s\" does not say \"%s\"", trek_error(), text);
    assert_int_equal(alive, 0);
    trek_error_clear();
}

double grad_of(trek_graph *graph, const char *name)
{
    trek_var *param = trek_module_find(trek_graph_module(graph), name);
    if (!param)
        fail_msg("there is no parameter %s", name);
    trek_var *grad = trek_var_grad(param);
    return grad ? trek_var_item(grad) : (double)NAN;
}

double value_of(trek_graph *graph, const char *name)
{
    trek_var *param = trek_module_find(trek_graph_module(graph), name);
    if (!param)
        fail_msg("there is no parameter %s", name);
    return trek_var_item(param);
}

trek_var *total(trek_var *v) { return trek_sum(v, trek_dims_all(), false); }
