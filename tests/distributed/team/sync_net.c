/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/distributed/team/sync_net.h"

#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "distributed/stepper_internal.h"
#include "graph/flow.h"
#include "nn/batch_norm_internal.h"
#include "tensor/rank_context.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- a model with two of the layer: [N, WIDTH] -> norm over [N, C] -> [N, C, 2, 1] -> norm -> classes ---- */

/* x itself, but its backward fails. */
static trek_status stumble_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                   int n_outputs)
{
    outputs[0] = inputs[0];
    return TREK_OK;
}

static trek_status stumble_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **input_grads,
                                    int n_inputs)
{
    return trek_fail(TREK_ERR_STATE, "the module was told to fail");
}

static const trek_function stumble = { "stumble", stumble_forward, stumble_backward, NULL };

static trek_var *net_forward(trek_module *self, trek_var *x)
{
    net *m = (net *)self;
    x = trek_forward(m->norm, trek_forward(m->first, x));
    if (m->fails == IN_FORWARD)
        return trek_fail_null(TREK_ERR_STATE, "the module was told to fail");
    x = trek_tanh(m->fails == IN_BACKWARD ? trek_function_apply_one(&stumble, NULL, &x, 1) : x);
    int64_t rows = trek_var_size(x, 0);
    x = trek_reshape(trek_cat((trek_var *[]){ x, trek_square(x) }, 2, 1), trek_dims(rows, 2, CHANNELS, 1));
    x = trek_forward(m->second, trek_permute(x, trek_dims(0, 2, 1, 3)));
    return trek_forward(m->last, trek_reshape(x, trek_dims(rows, 2 * CHANNELS)));
}

const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

/* What a program would write: a layer that meets the other ranks says so in its class. */
static const trek_module_class *own_class(void)
{
    static trek_module_class own;
    own = trek_sync_batch_norm_class;
    own.name = "own_norm";
    return &own;
}

trek_module *norm_new(const model_opts *o, trek_device device, bool images, bool affine)
{
    trek_batch_norm_opts opts = { .features = CHANNELS, .dtype = o->dtype, .device = device, .no_affine = !affine,
                                  .momentum = o->cumulative ? TREK_OFF : 0 };
    if (o->own)
        return trek_batch_norm_layer_new(own_class(), &opts);
    return o->sync ? trek_nn_sync_batch_norm_with(&opts) : images ? trek_nn_batch_norm2d_with(&opts)
        : trek_nn_batch_norm1d_with(&opts);
}

trek_module *net_new(const model_opts *o, trek_device device)
{
    trek_seed(5);
    trek_module *m = trek_module_new(&net_class);
    trek_linear_opts first = { .in = WIDTH, .out = CHANNELS, .dtype = o->dtype, .device = device };
    trek_linear_opts last = { .in = 2 * CHANNELS, .out = CLASSES, .dtype = o->dtype, .device = device };
    trek_module_add(m, "first", offsetof(net, first), trek_nn_linear_with(&first));
    trek_module_add(m, "norm", offsetof(net, norm), norm_new(o, device, false, true));
    trek_module_add(m, "second", offsetof(net, second), norm_new(o, device, true, false));
    trek_module_add(m, "last", offsetof(net, last), trek_nn_linear_with(&last));
    return trek_module_check(m);
}

trek_graph *build(trek_device device, void *arg) { return trek_flow_build(trek_flow_from(net_new(arg, device))); }

/* --- a record of a run ----------------------------------------------------------------------------------- */

void note(record *to, const trek_tensor *tensor)
{
    int64_t count = trek_tensor_numel(tensor);
    assert_true(to->n + count <= MOST);
    assert_int_equal(trek_tensor_to_host(tensor, TREK_F64, to->values + to->n, (size_t)count * sizeof(double)), TREK_OK);
    to->n += (int)count;
}

trek_status note_param(const char *name, trek_var *param, void *arg)
{
    note(arg, trek_var_data(param));
    if (trek_var_grad(param))
        note(arg, trek_var_data(trek_var_grad(param)));
    return TREK_OK;
}

trek_status note_buffer(const char *name, trek_var *buffer, void *arg)
{
    note(arg, trek_var_data(buffer));
    return TREK_OK;
}

trek_var *typed(uint32_t stream, trek_shape shape, trek_dtype dtype)
{
    trek_tensor *plain = test_tensor(stream, shape, 2);
    trek_var *var = trek_var_from(trek_tensor_cast(plain, dtype));
    trek_tensor_release(plain);
    return var;
}

trek_var *labels_of(int64_t rows, int step)
{
    double values[64];
    for (int64_t k = 0; k < rows; k++)
        values[k] = (double)((k * 5 + step) % CLASSES);
    return trek_var_from(test_values(values, trek_dims(rows), TREK_I64));
}

void expect_close(const record *got, const record *expected, double tolerance, const char *what)
{
    assert_int_equal(got->n, expected->n);
    for (int k = 0; k < got->n; k++)
        if (!(fabs(got->values[k] - expected->values[k]) <= tolerance * (1 + fabs(expected->values[k]))))
            fail_msg("%s: number %d of %d is %.17g instead of %.17g", what, k, got->n, got->values[k], expected->values[k]);
}

/* --- slopes, and what cannot be normalised --------------------------------------------------------------- */

/* --- processes, started by trek-run ---------------------------------------------------------------------- */

int begin_test(void **state)
{
    trek_error_clear();
    alarm(60);
    return 0;
}
