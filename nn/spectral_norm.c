/* SPDX-License-Identifier: Apache-2.0 */
/* Spectral norm: a weight divided by its largest singular value, which power iteration estimates. */
#include <stdio.h>
#include <string.h>

#include "autograd/backward.h"
#include "autograd/norms.h"
#include "autograd/linalg.h"
#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/parametrize.h"
#include "tensor/copies.h"
#include "tensor/dtypes.h"
#include "tensor/creation.h"
#include "nn/module_internal.h"

enum { FIRST_ITERATIONS = 15 };

typedef struct spectral_norm {
    trek_module base;
    trek_var *u, *v;          /* NULL if the weight is a vector */
    int iterations, dim;
    double eps;
} spectral_norm;

static trek_var *wide(trek_var *x) { return trek_dtype_is_16bit(trek_var_dtype(x)) ? trek_cast(x, TREK_F32) : x; }

/* Returns the weight as [size of dim, product of the others]. */
static trek_var *as_matrix(trek_var *weight, int dim)
{
    int ndim = trek_var_ndim(weight);
    if (dim != 0) {
        trek_dims_list dims = { .ndim = ndim, .sizes = { dim } };
        for (int d = 0, k = 1; d < ndim; d++)
            if (d != dim)
                dims.sizes[k++] = d;
        weight = trek_permute(weight, dims);
    }
    return trek_flatten(weight, 1, -1);
}

/* Improves the buffers' vectors by power iteration. */
static trek_status iterate(spectral_norm *m, trek_var *matrix, int n)
{
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_var *rows = trek_var_detach(matrix), *u = NULL, *v = wide(m->v);
    for (int k = 0; k < n && v; k++) {
        u = trek_normalize(trek_matmul(rows, v), 2, 0, m->eps);
        v = trek_normalize(trek_matmul(u, rows), 2, 0, m->eps);
    }
    trek_status status = v ? trek_tensor_copy_from(trek_var_data(m->u), trek_var_data(u)) : trek_error_status();
    if (status == TREK_OK)
        status = trek_tensor_copy_from(trek_var_data(m->v), trek_var_data(v));
    trek_no_grad_end();
    trek_scope_end(scope);
    return status;
}

/* The buffers change in the next forward, so the tape uses copies. */
static trek_var *frozen(trek_var *buffer)
{
    return trek_dtype_is_16bit(trek_var_dtype(buffer)) ? trek_cast(buffer, TREK_F32) : trek_clone(buffer);
}

static trek_var *spectral_norm_forward(trek_module *self, trek_var *x)
{
    spectral_norm *m = (spectral_norm *)self;
    trek_dtype dtype = trek_var_dtype(x);
    if (!m->u)
        return trek_normalize(x, 2, 0, m->eps);
    trek_var *weight = wide(x), *matrix = as_matrix(weight, m->dim);
    if (!matrix || (self->own->training && iterate(m, matrix, m->iterations) != TREK_OK))
        return NULL;
    trek_var *sigma = trek_dot(frozen(m->u), trek_matmul(matrix, frozen(m->v)));
    trek_var *y = trek_div(weight, sigma);
    return y && trek_var_dtype(y) != dtype ? trek_cast(y, dtype) : y;
}

static void spectral_norm_describe(const trek_module *self, char *text, size_t size)
{
    const spectral_norm *m = (const spectral_norm *)self;
    char number[32];
    if (m->u)
        snprintf(text, size, "dim %d, power iterations %d, eps %s", m->dim, m->iterations, trek_layer_number(m->eps, number));
    else
        snprintf(text, size, "eps %s", trek_layer_number(m->eps, number));
}

const trek_module_class trek_spectral_norm_class = { .name = "spectral_norm", .size = sizeof(spectral_norm),
                                                     .forward = spectral_norm_forward, .describe = spectral_norm_describe };

/* As in PyTorch, the inverse is the weight itself. */
static trek_status spectral_norm_inverse(trek_module *self, trek_var *weight, trek_var **originals, int n)
{
    (void)self, (void)n;
    originals[0] = weight;
    return TREK_OK;
}

static trek_var *add_vector(spectral_norm *m, const char *name, size_t offset, int64_t size, const trek_var *weight)
{
    trek_tensor *tensor = trek_tensor_empty(trek_dims(size), trek_var_dtype(weight), trek_var_device(weight));
    trek_var *added = trek_module_buffer(&m->base, name, offset, tensor);
    return added && trek_init_normal(added, 0, 1) == TREK_OK ? added : NULL;
}

/* Starts with random vectors and some iterations. */
static trek_status begin(spectral_norm *m, trek_var *weight)
{
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_var *matrix = as_matrix(wide(trek_var_detach(weight)), m->dim);
    if (matrix && add_vector(m, "_u", offsetof(spectral_norm, u), trek_var_size(matrix, 0), weight) &&
        add_vector(m, "_v", offsetof(spectral_norm, v), trek_var_size(matrix, 1), weight)) {
        trek_var *v = trek_normalize(m->v, 2, 0, m->eps);
        if (v && trek_tensor_copy_from(trek_var_data(m->v), trek_var_data(v)) == TREK_OK)
            iterate(m, matrix, FIRST_ITERATIONS);
    }
    trek_no_grad_end();
    trek_scope_end(scope);
    return trek_error_status();
}

static trek_status check_options(const trek_module *module, const trek_var *weight, const trek_spectral_norm_opts *o, int *dim)
{
    int ndim = trek_var_ndim(weight);
    bool transposed = strncmp(module->own->klass->name, "conv_transpose", strlen("conv_transpose")) == 0;
    char number[32];
    *dim = (int)trek_option_integer(o->dim, transposed ? 1 : 0);
    if (*dim < 0)
        *dim += ndim;
    if (ndim == 0 || trek_var_numel(weight) == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "spectral_norm: weight: it has no %s", ndim == 0 ? "dimensions" : "elements");
    if (*dim < 0 || *dim >= ndim)
        return trek_fail(TREK_ERR_ARGUMENT, "spectral_norm: dim: %d; the weight has %d dimensions", o->dim, ndim);
    if (o->n_power_iterations < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "spectral_norm: n_power_iterations: %d; must be at least 1", o->n_power_iterations);
    if (!(trek_option(o->eps, 1e-12) >= 0))
        return trek_fail(TREK_ERR_ARGUMENT, "spectral_norm: eps: %s; must not be negative", trek_layer_number(o->eps, number));
    return TREK_OK;
}

/* Makes the parametrization for a weight of the module. Returns NULL on failure. */
static trek_module *spectral_norm_new(trek_module *module, const char *name, const trek_spectral_norm_opts *o)
{
    int dim = 0;
    trek_var *weight = trek_parametrized_weight(module, name);
    if (!weight || check_options(module, weight, o, &dim) != TREK_OK)
        return NULL;
    trek_module *base = trek_module_new(&trek_spectral_norm_class);
    if (!base)
        return NULL;
    spectral_norm *m = (spectral_norm *)base;
    m->iterations = o->n_power_iterations ? o->n_power_iterations : 1;
    m->eps = trek_option(o->eps, 1e-12);
    m->dim = dim;
    if (trek_var_ndim(weight) > 1 && begin(m, weight) != TREK_OK)
        trek_module_free(&base);
    return base;
}

trek_status trek_spectral_norm(trek_module *module, const char *name, const trek_spectral_norm_opts *opts)
{
    trek_spectral_norm_opts none = { 0 };
    name = name ? name : "weight";
    if (!module)
        return trek_fail_missing("spectral_norm", "module");
    trek_scope scope = trek_scope_begin();
    trek_module *part = scope.depth > 0 ? spectral_norm_new(module, name, opts ? opts : &none) : NULL;
    trek_scope_end(scope);
    return part ? trek_parametrize(module, name, part, &(trek_parametrize_opts){ .right_inverse = spectral_norm_inverse })
                : trek_error_status();
}
