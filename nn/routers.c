/* SPDX-License-Identifier: Apache-2.0 */
/* Routers and conditions: see routers.h. */
#include "nn/routers.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "tensor/creation.h"

typedef struct router {
    trek_module base;
    trek_module *proj;
} router;

/* Returns the projection of the sum of all inputs. */
static trek_var *logits(trek_module *self, trek_var *const *inputs, int n)
{
    trek_var *x = inputs[0];
    for (int k = 1; k < n; k++)
        x = trek_add(x, inputs[k]);
    return x ? trek_forward(((router *)self)->proj, x) : NULL;
}

static trek_var *softmax_many(trek_module *self, trek_var *const *inputs, int n)
{
    trek_var *z = logits(self, inputs, n);
    return z ? trek_softmax(z, -1) : NULL;
}

static trek_var *sigmoid_many(trek_module *self, trek_var *const *inputs, int n)
{
    trek_var *z = logits(self, inputs, n);
    return z ? trek_sigmoid(z) : NULL;
}

static trek_var *argmax_many(trek_module *self, trek_var *const *inputs, int n)
{
    trek_var *z = logits(self, inputs, n);
    return z ? trek_argmax(z, trek_dims(-1), false) : NULL;
}

static trek_var *softmax_one(trek_module *self, trek_var *x) { return softmax_many(self, &x, 1); }
static trek_var *sigmoid_one(trek_module *self, trek_var *x) { return sigmoid_many(self, &x, 1); }
static trek_var *argmax_one(trek_module *self, trek_var *x) { return argmax_many(self, &x, 1); }
static trek_var *halt_one(trek_module *self, trek_var *x) { return logits(self, &x, 1); }

static const trek_module_class softmax_class = { .name = "softmax_router", .size = sizeof(router), .forward = softmax_one,
                                                 .forward_many = softmax_many };
static const trek_module_class sigmoid_class = { .name = "sigmoid_router", .size = sizeof(router), .forward = sigmoid_one,
                                                 .forward_many = sigmoid_many };
static const trek_module_class argmax_class = { .name = "argmax_selector", .size = sizeof(router), .forward = argmax_one,
                                                .forward_many = argmax_many };
static const trek_module_class learned_class = { .name = "learned_halt", .size = sizeof(router), .forward = halt_one };

static trek_module *projecting(const trek_module_class *klass, int64_t in, int64_t n, trek_device device)
{
    if (trek_layer_positive(klass->name, "in", in) != TREK_OK || trek_layer_positive(klass->name, "n", n) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(klass);
    if (base)
        trek_module_add(base, "proj", offsetof(router, proj), trek_nn_linear(in, n, device));
    return base ? trek_module_check(base) : NULL;
}

trek_module *trek_nn_softmax_router(int64_t in, int64_t n, trek_device device)
{
    return projecting(&softmax_class, in, n, device);
}

trek_module *trek_nn_sigmoid_router(int64_t in, int64_t n, trek_device device)
{
    return projecting(&sigmoid_class, in, n, device);
}

trek_module *trek_nn_argmax_selector(int64_t in, int64_t n, trek_device device)
{
    return projecting(&argmax_class, in, n, device);
}

trek_module *trek_nn_learned_halt(int64_t in, trek_device device) { return projecting(&learned_class, in, 1, device); }

/* --- without parameters -------------------------------------------------------------- */

typedef struct fixed_number {
    trek_module base;
    int64_t index;
    double threshold;
} fixed_number;

static trek_var *fixed_many(trek_module *self, trek_var *const *inputs, int n)
{
    (void)n;
    if (trek_var_ndim(inputs[0]) < 1)
        return trek_fail_null(TREK_ERR_SHAPE, "fixed_selector: input: it is a scalar; must have rows");
    double index = (double)((fixed_number *)self)->index;
    trek_tensor *rows = trek_tensor_full(trek_dims(trek_var_size(inputs[0], 0)), index, TREK_I64, trek_var_device(inputs[0]));
    return rows ? trek_var_from(rows) : NULL;
}

static trek_var *fixed_one(trek_module *self, trek_var *x) { return fixed_many(self, &x, 1); }

static void fixed_describe(const trek_module *self, char *text, size_t size)
{
    snprintf(text, size, "%" PRId64, ((const fixed_number *)self)->index);
}

static trek_var *threshold_forward(trek_module *self, trek_var *x)
{
    if (trek_var_ndim(x) < 1)
        return trek_fail_null(TREK_ERR_SHAPE, "threshold_halt: input: it is a scalar; must have rows");
    int64_t rows = trek_var_size(x, 0), each = rows > 0 ? trek_var_numel(x) / rows : 1;
    if (rows > 0 && each == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "threshold_halt: input: rows of 0 elements have no maximum");
    trek_var *most = trek_max(trek_reshape(x, trek_dims(rows, each)), trek_dims(1), false);
    return most ? trek_add_scalar(most, -((fixed_number *)self)->threshold) : NULL;
}

static void threshold_describe(const trek_module *self, char *text, size_t size)
{
    char number[32];
    snprintf(text, size, "%s", trek_layer_number(((const fixed_number *)self)->threshold, number));
}

static const trek_module_class fixed_class = { .name = "fixed_selector", .size = sizeof(fixed_number), .forward = fixed_one,
                                               .forward_many = fixed_many, .describe = fixed_describe };
static const trek_module_class threshold_class = { .name = "threshold_halt", .size = sizeof(fixed_number),
                                                   .forward = threshold_forward, .describe = threshold_describe };

trek_module *trek_nn_fixed_selector(int64_t index)
{
    if (index < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "fixed_selector: index: %" PRId64 "; must not be negative", index);
    trek_module *base = trek_module_new(&fixed_class);
    if (base)
        ((fixed_number *)base)->index = index;
    return base;
}

trek_module *trek_nn_threshold_halt(double threshold)
{
    if (isnan(threshold))
        return trek_fail_null(TREK_ERR_ARGUMENT, "threshold_halt: threshold: NaN; must be a number");
    trek_module *base = trek_module_new(&threshold_class);
    if (base)
        ((fixed_number *)base)->threshold = threshold;
    return base;
}
