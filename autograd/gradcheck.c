/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing gradients with central differences. */
#include "autograd/gradcheck.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/dtypes.h"
#include "tensor/memory_internal.h"
#include "tensor/option_internal.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

enum { MOST_INPUTS = 64 };

typedef struct check {
    trek_gradcheck_fn fn;
    trek_var *const *inputs;
    int n;
    void *arg;
    trek_gradcheck_opts opts;  /* with defaults filled in */
    const char *order;         /* "gradient" or "second derivative" */
    int64_t count;             /* elements of the result */
    trek_shape shape;
    trek_device device;
    double *cotangent, *above, *below; /* [count] */
} check;

/* Returns reproducible numbers in [-1, 1]. */
static double drawn(uint64_t seed, uint64_t k)
{
    uint64_t h = (seed + 1) * 0x9e3779b97f4a7c15u + k * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return (double)((h ^ h >> 31) >> 11) * 0x1p-52 - 1;
}

static trek_status fits(const trek_var *y, const check *c)
{
    char got[TREK_SHAPE_TEXT], wanted[TREK_SHAPE_TEXT];
    if (trek_var_dtype(y) != TREK_F64)
        return trek_fail(TREK_ERR_DTYPE, "gradcheck: result: dtype %s; must be f64", trek_dtype_name(trek_var_dtype(y)));
    if (c->cotangent && !trek_shape_equal(trek_var_shape(y), c->shape))
        return trek_fail(TREK_ERR_CALLBACK,
                         "gradcheck: the function returned %s, and then %s, for the same inputs; it must repeat",
                         trek_shape_format(c->shape, wanted, sizeof wanted),
                         trek_shape_format(trek_var_shape(y), got, sizeof got));
    return TREK_OK;
}

/* Returns the function's result, in the current scope. */
static trek_var *run(const check *c)
{
    trek_var *y = c->fn(c->inputs, c->n, c->arg);
    if (!y) {
        trek_fail_after(TREK_ERR_CALLBACK, "gradcheck: the function returned no result; it must return one");
        return NULL;
    }
    return fits(y, c) == TREK_OK ? y : NULL;
}

/* Reads its values. */
static trek_status read_result(const check *c, double *values)
{
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return trek_error_status();
    trek_var *y = run(c);
    trek_status status = y ? trek_tensor_to_host(trek_var_data(y), TREK_F64, values, (size_t)c->count * sizeof *values)
                           : trek_error_status();
    trek_scope_end(scope);
    return status;
}

static trek_var *f64_of(const double *values, trek_shape shape, trek_device device)
{
    return trek_var_from(trek_tensor_from_data(values, shape, TREK_F64, device));
}

/* The first result determines shape and device. The second one is kept, to check that fn returns the same values
 * again. */
static trek_status begin(check *c)
{
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return trek_error_status();
    trek_var *y = run(c);
    trek_status status = y ? TREK_OK : trek_error_status();
    if (y) {
        c->shape = trek_var_shape(y);
        c->device = trek_var_device(y);
        c->count = trek_var_numel(y);
        c->cotangent = trek_alloc((size_t)(3 * c->count + 1) * sizeof(double));
        if (c->cotangent) {
            c->above = c->cotangent + c->count;
            c->below = c->above + c->count;
            status = trek_tensor_to_host(trek_var_data(y), TREK_F64, c->above, (size_t)c->count * sizeof(double));
        } else {
            status = trek_error_status();
        }
    }
    trek_scope_end(scope);
    for (int64_t j = 0; c->cotangent && j < c->count; j++)
        c->cotangent[j] = drawn(c->opts.seed, (uint64_t)j);
    return status == TREK_OK ? read_result(c, c->below) : status;
}

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static trek_status check_repeats(const check *c)
{
    for (int64_t j = 0; j < c->count; j++)
        if (!same(c->above[j], c->below[j]))
            return trek_fail(TREK_ERR_CALLBACK,
                             "gradcheck: the function returned %.17g, and then %.17g, for the same inputs; it must repeat",
                             c->above[j], c->below[j]);
    return TREK_OK;
}

/* Returns the gradients computed by the tape in the current scope, with NULL for inputs that are not reached. */
static trek_status differentiate(const check *c, trek_var **grads)
{
    trek_var *wanted[MOST_INPUTS], *found[MOST_INPUTS];
    int n = 0;
    for (int k = 0; k < c->n; k++)
        if (trek_var_requires_grad(c->inputs[k]))
            wanted[n++] = c->inputs[k];
    trek_var *y = run(c), *seed = y ? f64_of(c->cotangent, c->shape, c->device) : NULL;
    memset(grads, 0, (size_t)c->n * sizeof(trek_var *));
    if (!y || !seed)
        return trek_error_status();
    if (!trek_var_requires_grad(y))
        return TREK_OK; /* then no input may matter */
    trek_status status = trek_grad(&y, 1, wanted, n, &seed, NULL, found);
    for (int k = 0, j = 0; k < c->n && status == TREK_OK; k++)
        grads[k] = trek_var_requires_grad(c->inputs[k]) ? found[j++] : NULL;
    return status;
}

/* --- one input -------------------------------------------------------------------------------- */

static trek_status put(trek_var *input, const double *values)
{
    trek_tensor *tensor = trek_tensor_from_data(values, trek_var_shape(input), TREK_F64, trek_var_device(input));
    trek_status status = tensor ? trek_tensor_copy_from(trek_var_data(input), tensor) : trek_error_status();
    trek_tensor_release(tensor);
    return status;
}

static trek_status moved(const check *c, int k, double *values, int64_t i, double by, double *result)
{
    double kept = values[i];
    values[i] = kept + by;
    trek_status status = put(c->inputs[k], values);
    values[i] = kept;
    return status == TREK_OK ? read_result(c, result) : status;
}

/* Computes <cotangent, f(x + eps) - f(x - eps)> / 2 eps. */
static double quotient(const check *c)
{
    double sum = 0;
    for (int64_t j = 0; j < c->count; j++)
        sum += c->cotangent[j] * (c->above[j] - c->below[j]);
    return sum / (2 * c->opts.eps);
}

/* Writes a position such as "[1, 2]". */
static const char *place_text(trek_shape shape, int64_t i, char text[TREK_SHAPE_TEXT])
{
    trek_shape place = shape;
    for (int k = shape.ndim; k-- > 0; i /= shape.sizes[k])
        place.sizes[k] = i % shape.sizes[k];
    return trek_shape_format(place, text, TREK_SHAPE_TEXT);
}

static trek_status compare(const check *c, int k, int64_t i, double got)
{
    double wanted = quotient(c), off = fabs(got - wanted);
    char text[TREK_SHAPE_TEXT];
    if (off <= c->opts.atol + c->opts.rtol * fabs(wanted) || (isnan(got) && isnan(wanted)))
        return TREK_OK;
    return trek_fail(TREK_ERR_CALLBACK, "gradcheck: the %s of input %d at %s is %.10g; by differences it is %.10g", c->order, k,
                     place_text(trek_var_shape(c->inputs[k]), i, text), got, wanted);
}

/* values are those of the input; grads are the tape's. */
static trek_status check_elements(const check *c, int k, double *values, const double *grads, int64_t count)
{
    trek_status status = TREK_OK;
    for (int64_t i = 0; i < count && status == TREK_OK; i++) {
        status = moved(c, k, values, i, c->opts.eps, c->above);
        if (status == TREK_OK)
            status = moved(c, k, values, i, -c->opts.eps, c->below);
        if (status == TREK_OK)
            status = compare(c, k, i, grads[i]);
    }
    return status;
}

static trek_status check_input(const check *c, int k, trek_var *grad)
{
    int64_t count = trek_var_numel(c->inputs[k]);
    size_t bytes = (size_t)count * sizeof(double);
    double *values = trek_calloc((size_t)(2 * count + 1), sizeof *values), *grads = values + count;
    if (!values)
        return TREK_ERR_MEMORY;
    trek_status status = trek_tensor_to_host(trek_var_data(c->inputs[k]), TREK_F64, values, bytes);
    if (status == TREK_OK && grad)
        status = trek_tensor_to_host(trek_var_data(grad), TREK_F64, grads, bytes);
    if (status == TREK_OK) {
        status = check_elements(c, k, values, grads, count);
        trek_status back = put(c->inputs[k], values); /* also with an error set */
        status = status == TREK_OK ? back : status;
    }
    trek_free(values);
    return status;
}

static trek_status check_all(check *c)
{
    trek_var *grads[MOST_INPUTS];
    trek_status status = begin(c);
    if (status == TREK_OK)
        status = check_repeats(c);
    trek_scope scope = trek_scope_begin();
    if (status == TREK_OK)
        status = scope.depth == 0 ? trek_error_status() : differentiate(c, grads);
    for (int k = 0; k < c->n && status == TREK_OK; k++)
        if (trek_var_requires_grad(c->inputs[k]))
            status = check_input(c, k, grads[k]);
    trek_scope_end(scope);
    trek_free(c->cotangent);
    return status;
}

/* --- gradients of gradients ------------------------------------------------------------------------ */

/* A function of the inputs and, as the last one, a cotangent: all gradients, one after the other. arg is the check of
 * the function itself. */
static trek_var *gradients(trek_var *const *inputs, int n, void *arg)
{
    const check *c = arg;
    trek_var *wanted[MOST_INPUTS], *grads[MOST_INPUTS], *flat[MOST_INPUTS], *y = run(c), *seed = inputs[n - 1];
    int found = 0, reached = 0;
    for (int k = 0; k < c->n; k++)
        if (trek_var_requires_grad(inputs[k]))
            wanted[found++] = inputs[k];
    if (!y || !trek_var_requires_grad(y))
        return y;
    if (trek_grad(&y, 1, wanted, found, &seed, &(trek_backward_opts){ .create_graph = true }, grads) != TREK_OK)
        return NULL;
    for (int k = 0; k < found; k++)
        if (grads[k])
            flat[reached++] = trek_reshape(grads[k], trek_dims(-1));
    return reached ? trek_cat(flat, reached, 0) : y;
}

static trek_status check_second(check *c)
{
    trek_var *inputs[MOST_INPUTS];
    memcpy(inputs, c->inputs, (size_t)c->n * sizeof(trek_var *));
    trek_tensor *tensor = trek_tensor_empty(c->shape, TREK_F64, c->device);
    inputs[c->n] = tensor ? trek_var_new(tensor, true) : NULL;
    trek_tensor_release(tensor);
    double *values = inputs[c->n] ? trek_alloc((size_t)(c->count + 1) * sizeof *values) : NULL;
    trek_status status = values ? TREK_OK : trek_error_status();
    for (int64_t j = 0; values && j < c->count; j++)
        values[j] = drawn(c->opts.seed + 1, (uint64_t)j);
    if (status == TREK_OK)
        status = put(inputs[c->n], values);
    c->cotangent = NULL;
    check second = { .fn = gradients, .inputs = inputs, .n = c->n + 1, .arg = c, .opts = c->opts, .order = "second derivative" };
    if (status == TREK_OK)
        status = check_all(&second);
    trek_free(values);
    trek_var_release(inputs[c->n]);
    return status;
}

/* --- the call ------------------------------------------------------------------------------------------ */

static trek_status check_inputs(trek_var *const *inputs, int n)
{
    int wanted = 0;
    for (int k = 0; k < n; k++) {
        if (!inputs[k])
            return trek_fail_missing("gradcheck", "input");
        if (!trek_var_requires_grad(inputs[k]))
            continue;
        if (!trek_var_is_leaf(inputs[k]))
            return trek_fail(TREK_ERR_STATE, "gradcheck: input %d: it is not a leaf, so its value cannot be moved", k);
        if (trek_var_dtype(inputs[k]) != TREK_F64)
            return trek_fail(TREK_ERR_DTYPE,
                             "gradcheck: input %d: dtype %s; must be f64, since differences of less precise numbers mean nothing",
                             k, trek_dtype_name(trek_var_dtype(inputs[k])));
        wanted++;
    }
    return wanted ? TREK_OK : trek_fail(TREK_ERR_ARGUMENT, "gradcheck: inputs: none requires a gradient; one must");
}

trek_status trek_gradcheck(trek_gradcheck_fn fn, trek_var *const *inputs, int n, void *arg, const trek_gradcheck_opts *opts)
{
    trek_gradcheck_opts o = opts ? *opts : (trek_gradcheck_opts){ 0 };
    if (!fn || !inputs)
        return trek_fail_missing("gradcheck", fn ? "inputs" : "function");
    if (n < 1 || n >= MOST_INPUTS)
        return trek_fail(TREK_ERR_ARGUMENT, "gradcheck: inputs: %d; must be 1 to %d", n, MOST_INPUTS - 1);
    o.eps = o.eps == 0 ? 1e-6 : o.eps;
    o.atol = trek_option(o.atol, 1e-5);
    o.rtol = trek_option(o.rtol, 1e-3);
    if (!(o.eps > 0) || isinf(o.eps) || !(o.atol >= 0) || !(o.rtol >= 0))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "gradcheck: .eps, .atol, .rtol: out of range; .eps must be above 0, and the others not negative");
    if (trek_error_status() != TREK_OK || check_inputs(inputs, n) != TREK_OK)
        return trek_error_status();
    check c = { .fn = fn, .inputs = inputs, .n = n, .arg = arg, .opts = o, .order = "gradient" };
    trek_status status = check_all(&c);
    return status == TREK_OK && o.second ? check_second(&c) : status;
}
