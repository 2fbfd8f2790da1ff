/* SPDX-License-Identifier: Apache-2.0 */
/* Defines an op, y = x sigmoid(beta x) with a trained beta (Ramachandran et al., 2017): plain C for the values and for the
 * gradients, a check of the gradients, and a module that uses the op in a model that learns two spirals.
 *
 *   custom_op [--steps N] [--seed N] [--wrong]
 *
 * --wrong makes a mistake in the gradient, to show that the check finds it. */
#include <math.h>

#include "training.h"

enum { POINTS = 400, WIDTH = 32 };

/* --- the op ----------------------------------------------------------------------------- */

/* The elements as f64, row-major, whatever the dtype, the strides and the device. NULL and an error. */
static double *elements(trek_var *x)
{
    int64_t n = trek_var_numel(x);
    double *values = malloc((size_t)(n + 1) * sizeof *values);
    if (!values)
        trek_fail(TREK_ERR_MEMORY, "out of memory for %lld elements", (long long)n);
    else if (trek_tensor_to_host(trek_var_data(x), TREK_F64, values, (size_t)n * sizeof *values) == TREK_OK)
        return values;
    free(values);
    return NULL;
}

/* And back, as like's dtype and shape, on its device; frees the values. */
static trek_var *as_var(double *values, trek_var *like)
{
    trek_tensor *wide = trek_tensor_from_data(values, trek_var_shape(like), TREK_F64, trek_var_device(like));
    trek_tensor *tensor = wide ? trek_tensor_cast(wide, trek_var_dtype(like)) : NULL;
    trek_tensor_release(wide);
    free(values);
    return trek_var_from(tensor); /* takes the reference over */
}

/* inputs: x of any shape, beta of one element. Nothing that is made here is recorded. */
static trek_status swish_forward(trek_function_context *context, trek_var *const *inputs, int n, trek_var **outputs,
                                 int n_outputs)
{
    (void)n_outputs;
    if (n != 2 || trek_var_numel(inputs[1]) != 1)
        return trek_fail(TREK_ERR_SHAPE, "swish: inputs: wrong number or shape; must be x and a beta of one element");
    double beta = trek_var_item(inputs[1]), *v = elements(inputs[0]);
    if (!v)
        return trek_error_status();
    for (int64_t i = 0; i < trek_var_numel(inputs[0]); i++)
        v[i] /= 1 + exp(-beta * v[i]);
    outputs[0] = as_var(v, inputs[0]);
    return trek_save_for_backward(context, inputs, 2); /* whoever writes over them later gets an error in backward */
}

/* With s = sigmoid(beta x): dy/dx = s + beta x s (1 - s), dy/dbeta = x^2 s (1 - s). */
static trek_status swish_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                  int n)
{
    (void)n_grads, (void)n;
    const bool *wrong = trek_function_data(context);
    trek_var *x = trek_saved(context, 0), *beta = trek_saved(context, 1);
    double b = beta ? trek_var_item(beta) : 0, to_beta = 0, *v = elements(x), *g = elements(grads[0]);
    for (int64_t i = 0; v && g && i < trek_var_numel(x); i++) {
        double s = 1 / (1 + exp(-b * v[i])), slope = v[i] * s * (1 - s);
        to_beta += g[i] * v[i] * slope;
        g[i] *= s + (wrong && *wrong ? 0 : b * slope);
    }
    bool good = v && g;
    if (good && trek_needs_grad(context, 1))
        input_grads[1] = trek_var_from(trek_tensor_full(trek_var_shape(beta), to_beta, trek_var_dtype(beta),
                                                        trek_var_device(beta)));
    if (good && trek_needs_grad(context, 0))
        input_grads[0] = as_var(g, x);
    else
        free(g);
    free(v);
    return good ? TREK_OK : trek_error_status();
}

static const trek_function swish_function = { .name = "swish", .forward = swish_forward, .backward = swish_backward };

/* wrong: NULL, or whether the gradient has a mistake; lives as long as the tape. */
static trek_var *swish(trek_var *x, trek_var *beta, bool *wrong)
{
    return trek_function_apply_one(&swish_function, wrong, (trek_var *[]){ x, beta }, 2);
}

/* --- its check --------------------------------------------------------------------------- */

static trek_var *checked(trek_var *const *inputs, int n, void *wrong)
{
    (void)n;
    return swish(inputs[0], inputs[1], wrong);
}

/* Central differences in f64 against the gradient, for each element of x and for beta. */
static trek_status check(bool *wrong)
{
    trek_scope scope = trek_scope_begin();
    trek_tensor *x = trek_tensor_randn(trek_dims(5, 7), TREK_F64, trek_cpu(0));
    trek_tensor *beta = trek_tensor_full(trek_dims(1), 1.3, TREK_F64, trek_cpu(0));
    trek_var *inputs[] = { trek_var_new(x, true), trek_var_new(beta, true) };
    trek_status status = trek_gradcheck(checked, inputs, 2, wrong, NULL);
    for (int k = 0; k < 2; k++)
        trek_var_release(inputs[k]);
    trek_tensor_release(x); /* the variables had references of their own */
    trek_tensor_release(beta);
    trek_scope_end(scope);
    return status;
}

/* --- a module of it ------------------------------------------------------------------------ */

typedef struct swish_module {
    trek_module base;
    trek_var *beta;
} swish_module;

static trek_var *module_forward(trek_module *self, trek_var *x)
{
    return swish(x, ((swish_module *)self)->beta, NULL);
}

static const trek_module_class swish_class = { .name = "swish", .size = sizeof(swish_module), .forward = module_forward };

static trek_module *swish_new(trek_device device)
{
    trek_module *module = trek_module_new(&swish_class);
    trek_module_param(module, "beta", offsetof(swish_module, beta), trek_tensor_ones(trek_dims(1), TREK_F32, device));
    return trek_module_check(module);
}

/* Two arms of a spiral, around the origin: class 0 and 1. */
static void spirals(float (*points)[2], int64_t *labels)
{
    for (int i = 0; i < POINTS; i++) {
        double t = 0.5 + 9.0 * (i / 2) / (POINTS / 2), angle = t + (i % 2 ? acos(-1.0) : 0);
        points[i][0] = (float)(t / 9.5 * cos(angle));
        points[i][1] = (float)(t / 9.5 * sin(angle));
        labels[i] = i % 2;
    }
}

static void learn(int steps)
{
    static float points[POINTS][2];
    static int64_t labels[POINTS];
    trek_device device = trek_cpu(0);
    spirals(points, labels);
    trek_module *model = trek_nn_sequential((trek_module *[]){
        trek_nn_linear(2, WIDTH, device), swish_new(device), trek_nn_linear(WIDTH, WIDTH, device), swish_new(device),
        trek_nn_linear(WIDTH, 2, device) }, 5);
    trek_params *params = trek_module_params(model);
    trek_optimizer *optimizer = trek_optimizer_new(trek_adam(&(trek_adam_opts){ .lr = 1e-2 }), params);
    double accuracy = 0;
    for (int step = 0; step < steps && trek_error_status() == TREK_OK; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(trek_tensor_from_data(points, trek_dims(POINTS, 2), TREK_F32, device));
        trek_var *y = trek_var_from(trek_tensor_from_data(labels, trek_dims(POINTS), TREK_I64, device));
        trek_var *logits = trek_forward(model, x);
        trek_backward(trek_cross_entropy(logits, y));
        trek_optimizer_step(optimizer);
        trek_optimizer_zero_grad(optimizer);
        trek_var *share = trek_accuracy(logits, y);
        accuracy = share ? trek_var_item(share) : 0;
        trek_scope_end(scope);
    }
    trek_var *first = model ? trek_module_find(model, "1.beta") : NULL;
    trek_var *second = model ? trek_module_find(model, "3.beta") : NULL;
    if (first && second && trek_error_status() == TREK_OK)
        printf("accuracy %.4f, beta of the layers %.3f and %.3f\n", accuracy, trek_var_item(first), trek_var_item(second));
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_module_free(&model);
}

int main(int argc, char **argv)
{
    int steps = 300;
    uint64_t seed = 1;
    bool wrong = false;
    const argument list[] = {
        { "--steps", "N", "of training", .whole = &steps, .least = 1 },
        { "--seed", "N", "of initial values", .seed = &seed },
        { "--wrong", "", "makes a mistake in the gradient, to show that the check finds it", .flag = &wrong },
    };
    arguments_read(argc, argv, "Defines an op, checks its gradient, and trains a model that uses it.", list, 3);
    trek_seed(seed);
    if (check(&wrong) == TREK_OK) {
        printf("the gradient is correct\n");
        learn(steps);
    }
    return training_end();
}
