/* SPDX-License-Identifier: Apache-2.0 */
/* Weight norm: a weight as length and direction. */
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/parametrize.h"
#include "tensor/dtypes.h"
#include "tensor/status_internal.h"

typedef struct weight_norm {
    trek_module base;
    int dim;                  /* -1 for none */
} weight_norm;

/* Returns the 2-norm over all dimensions except dim, which stay with size 1. For dim -1 it is over all dimensions, a
 * scalar. */
static trek_var *norm_except(trek_var *v, int dim)
{
    int ndim = trek_var_ndim(v);
    if (dim < 0)
        return trek_norm(v, 2, trek_dims_all(), false);
    if (ndim == 1)
        return trek_abs(v);
    trek_dims_list dims = { .ndim = ndim - 1 };
    for (int d = 0, k = 0; d < ndim; d++)
        if (d != dim)
            dims.sizes[k++] = d;
    return trek_norm(v, 2, dims, true);
}

/* Computes g v / |v| from the inputs g and v. */
static trek_var *weight_norm_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    int dim = ((weight_norm *)self)->dim;
    if (n != 2)
        return trek_fail_null(TREK_ERR_ARGUMENT, "weight_norm: inputs: %d; it takes length and direction", n);
    trek_var *g = inputs[0], *v = inputs[1];
    trek_dtype dtype = trek_var_dtype(v);
    if (!trek_dtype_is_16bit(dtype))
        return trek_mul(v, trek_div(g, norm_except(v, dim)));
    v = trek_cast(v, TREK_F32);
    return trek_cast(trek_mul(v, trek_div(trek_cast(g, TREK_F32), norm_except(v, dim))), dtype);
}

static void weight_norm_describe(const trek_module *self, char *text, size_t size)
{
    int dim = ((const weight_norm *)self)->dim;
    if (dim < 0)
        snprintf(text, size, "dim none");
    else
        snprintf(text, size, "dim %d", dim);
}

static const trek_module_class weight_norm_class = { .name = "weight_norm", .size = sizeof(weight_norm),
                                                     .forward_many = weight_norm_forward_many,
                                                     .describe = weight_norm_describe };

static trek_status weight_norm_inverse(trek_module *self, trek_var *weight, trek_var **originals, int n)
{
    (void)n;
    originals[0] = norm_except(weight, ((weight_norm *)self)->dim);
    originals[1] = weight;
    return trek_error_status();
}

trek_status trek_weight_norm(trek_module *module, const char *name, int dim)
{
    name = name ? name : "weight";
    if (!module)
        return trek_fail_missing("weight_norm", "module");
    if (trek_is_parametrized(module, name))
        return trek_fail(TREK_ERR_ARGUMENT, "weight_norm: name: \"%s\" is already parametrised", name);
    trek_var *weight = trek_parametrized_weight(module, name);
    if (!weight)
        return trek_error_status();
    if (dim < -1 || dim >= trek_var_ndim(weight))
        return trek_fail(TREK_ERR_ARGUMENT, "weight_norm: dim: %d; must be inside [-1, %d)", dim, trek_var_ndim(weight));
    weight_norm *part = (weight_norm *)trek_module_new(&weight_norm_class);
    if (!part)
        return trek_error_status();
    part->dim = dim;
    trek_parametrize_opts opts = { .originals = 2, .right_inverse = weight_norm_inverse };
    return trek_parametrize(module, name, &part->base, &opts);
}
