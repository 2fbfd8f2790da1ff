/* SPDX-License-Identifier: Apache-2.0 */
/* Public ops that call their row with other parameters than it has, and those made from several rows. */
#include <math.h>

#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/backend.h"
#include "tensor/number_internal.h"

trek_var *trek_gelu(trek_var *x) { return trek_apply_gelu(x, false); }
trek_var *trek_gelu_tanh(trek_var *x) { return trek_apply_gelu(x, true); }
trek_var *trek_variance(trek_var *x, trek_dims_list dims, bool keepdim) { return trek_apply_variance(x, dims, keepdim, 1); }
trek_var *trek_std(trek_var *x, trek_dims_list dims, bool keepdim) { return trek_apply_std(x, dims, keepdim, 1); }
static trek_dims_list listed(const trek_var *x, trek_dims_list dims) { return trek_listed_dims(dims, x ? trek_var_ndim(x) : 0); }
trek_var *trek_permute(trek_var *x, trek_dims_list dims) { return trek_apply_permute(x, listed(x, dims)); }
trek_var *trek_flip(trek_var *x, trek_dims_list dims) { return trek_apply_flip(x, listed(x, dims)); }
trek_var *trek_index_select(trek_var *x, int dim, trek_var *index) { return trek_apply_index_select(x, index, dim); }
trek_var *trek_index_add(trek_var *x, int dim, trek_var *index, trek_var *source)
{
    return trek_apply_index_add(x, index, source, dim);
}
trek_var *trek_gather(trek_var *x, int dim, trek_var *index) { return trek_apply_gather(x, index, dim); }
trek_var *trek_scatter_add(trek_var *x, int dim, trek_var *index, trek_var *source)
{
    return trek_apply_scatter_add(x, index, source, dim);
}
trek_var *trek_linear(trek_var *x, trek_var *weight, trek_var *bias)
{
    return trek_apply_linear(x, weight, bias, TREK_ACTIVATION_NONE);
}
trek_var *trek_linear_activation(trek_var *x, trek_var *weight, trek_var *bias, trek_activation activation)
{
    return trek_apply_linear(x, weight, bias, (int)activation);
}

/* Returns x with `more` zeros at the end of a dimension. */
static trek_var *lengthened(trek_var *x, int dim, int64_t more)
{
    if (!x || more == 0)
        return x;
    trek_shape shape = trek_var_shape(x);
    shape.sizes[dim] = more;
    trek_tensor *zeros = trek_tensor_zeros(shape, trek_var_dtype(x), trek_var_device(x));
    return zeros ? trek_cat((trek_var *[]){ x, trek_var_from(zeros) }, 2, dim) : NULL;
}

/* If the kernel has gaps (dilation), the output padding may be as large as the stride or larger; that is as if x had
 * more rows of zeros. */
trek_var *trek_conv_transpose2d(trek_var *x, trek_var *weight, trek_var *bias, const trek_conv_transpose_opts *opts)
{
    if (!x || !opts || trek_var_ndim(x) != 4 || opts->output_size[0] != 0 || opts->output_size[1] != 0)
        return trek_apply_conv_transpose2d(x, weight, bias, opts);
    trek_attrs numbers;
    trek_attrs_conv_transpose(&numbers, opts);
    int64_t *stride = numbers.i, *dilation = numbers.i + 4, *more = numbers.i + 7;
    for (int d = 0; d < 2; d++)
        if (stride[d] > 0 && more[d] >= stride[d] && more[d] < dilation[d]) {
            x = lengthened(x, 2 + d, more[d] / stride[d]);
            more[d] %= stride[d];
        }
    trek_var *inputs[3] = { x, weight, bias };
    return x ? trek_apply(&trek_ops[TREK_OP_conv_transpose2d], inputs, 3, &numbers) : NULL;
}

trek_var *trek_layer_norm(trek_var *x, int normalized_dims, trek_var *weight, trek_var *bias, double eps)
{
    return trek_apply_layer_norm(x, weight, bias, normalized_dims, eps);
}
trek_var *trek_batch_norm(trek_var *x, trek_var *running_mean, trek_var *running_var, trek_var *weight, trek_var *bias,
                          bool training, double momentum, double eps)
{
    return trek_apply_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps);
}
trek_var *trek_embedding(trek_var *indices, trek_var *weight, int64_t padding_idx)
{
    return trek_apply_embedding(weight, indices, padding_idx, false);
}

/* --- with what PyTorch refuses, or takes in addition ---------------------------------------------- */

static bool is_bool(const trek_var *x) { return x && trek_var_dtype(x) == TREK_BOOL; }

static trek_var *fail_bool(const char *name)
{
    return trek_fail_null(
        TREK_ERR_DTYPE, "%s: inputs: dtype bool, which has no difference; use trek_logical_xor, trek_logical_not, or cast", name);
}

/* Returns whether a number can be represented in x; if not, an error is set. */
static bool held(const char *name, const trek_var *x, double value)
{
    if (!x || trek_dtype_holds(trek_var_dtype(x), value))
        return true;
    return trek_fail(TREK_ERR_ARGUMENT, "%s: value: %g; %s cannot hold it", name, value, trek_dtype_name(trek_var_dtype(x))),
           false;
}

/* Where the number is used with integers, the op itself knows what is possible. */
static bool float_held(const char *name, const trek_var *x, double value)
{
    return !x || !trek_dtype_is_float(trek_var_dtype(x)) || held(name, x, value);
}

trek_var *trek_sign(trek_var *x) { return is_bool(x) ? trek_apply_copy(x) : trek_apply_sign(x); }
trek_var *trek_square(trek_var *x) { return trek_apply_square(is_bool(x) ? trek_apply_convert(x, TREK_I64) : x); }
trek_var *trek_sub(trek_var *x, trek_var *y) { return is_bool(x) || is_bool(y) ? fail_bool("sub") : trek_apply_sub(x, y); }

trek_var *trek_sub_scalar(trek_var *x, double value)
{
    return is_bool(x) ? fail_bool("sub_scalar") : trek_add_scalar(x, -value);
}

trek_var *trek_pow_scalar(trek_var *x, double value)
{
    return float_held("pow_scalar", x, value) ? trek_apply_pow_scalar(x, value) : NULL;
}

trek_var *trek_clamp(trek_var *x, double low, double high)
{
    return float_held("clamp", x, low) && float_held("clamp", x, high) ? trek_apply_clamp(x, low, high) : NULL;
}

/* --- made of several ----------------------------------------------------------------------- */

trek_var *trek_masked_fill(trek_var *x, trek_var *mask, double value)
{
    if (!x || !mask)
        return trek_where(mask, x, x);
    if (!held("masked_fill", x, value))
        return NULL;
    trek_tensor *fill = trek_tensor_full(trek_dims_none(), value, trek_var_dtype(x), trek_var_device(x));
    return trek_where(mask, fill ? trek_var_from(fill) : NULL, x);
}

/* The root of a sum of powers. Where the sum is 0 the gradient is defined as 0: the inner value is replaced by 1 and
 * the result by 0. For negative powers the gradient is 0 where all elements are infinite, as the norm is then. */
static trek_var *root_of(trek_var *sum, double p)
{
    if (p < 0)
        return trek_apply_pow_scalar(sum, 1 / p);
    trek_var *zero = trek_eq_scalar(sum, 0), *safe = trek_masked_fill(sum, zero, 1);
    trek_var *root = p == 2 ? trek_sqrt(safe) : trek_apply_pow_scalar(safe, 1 / p);
    return trek_masked_fill(root, zero, 0);
}

/* Computes |x|^p. For p < 1 its slope at 0 is infinite and is defined as 0. */
static trek_var *powers_of(trek_var *x, double p)
{
    trek_var *size = trek_abs(x);
    if (p > 1)
        return trek_apply_pow_scalar(size, p);
    trek_var *zero = trek_eq_scalar(size, 0);
    return trek_masked_fill(trek_apply_pow_scalar(trek_masked_fill(size, zero, 1), p), zero, p < 0 ? INFINITY : 0);
}

/* Counts the elements that are not 0; the gradient is 0. */
static trek_var *nonzeros(trek_var *x)
{
    return trek_masked_fill(trek_abs(trek_apply_sign(x)), trek_isnan(x), 1);
}

static trek_var *norm_of(trek_var *x, double p, trek_dims_list dims, bool keepdim)
{
    if (p == INFINITY)
        return trek_max(trek_abs(x), dims, keepdim);
    if (p == -INFINITY)
        return trek_min(trek_abs(x), dims, keepdim);
    if (p == 0)
        return trek_sum(nonzeros(x), dims, keepdim);
    if (p == 1)
        return trek_sum(trek_abs(x), dims, keepdim);
    trek_var *sum = p == 2 ? trek_apply_sum_squares(x, dims, keepdim) : trek_sum(powers_of(x, p), dims, keepdim);
    if (p < 0 && sum && trek_var_numel(x) == 0 && trek_var_numel(sum) > 0)
        return trek_fail_null(TREK_ERR_SHAPE, "norm: x: it has 0 elements, which have no norm with p = %g", p);
    return root_of(sum, p);
}

trek_var *trek_norm(trek_var *x, double p, trek_dims_list dims, bool keepdim)
{
    trek_dtype dtype = x ? trek_var_dtype(x) : TREK_F32;
    if (!trek_dtype_is_float(dtype))
        return norm_of(trek_apply_convert(x, TREK_F32), p, dims, keepdim);
    if (!trek_dtype_is_16bit(dtype))
        return norm_of(x, p, dims, keepdim);
    /* squares have twice the exponent; their sum is f32 */
    trek_var *norm = norm_of(p == 2 ? x : trek_apply_convert(x, TREK_F32), p, dims, keepdim);
    return norm && trek_grad_mode_here.autocast == TREK_F32 ? trek_apply_convert(norm, dtype) : norm;
}

trek_var *trek_movedim(trek_var *x, trek_dims_list source, trek_dims_list destination)
{
    TREK_NEEDED("movedim", x);
    source = trek_listed_dims(source, trek_var_ndim(x));
    destination = trek_listed_dims(destination, trek_var_ndim(x));
    trek_shape order = { .ndim = trek_var_ndim(x) };
    bool taken[TREK_MAX_DIMS] = { false }, moved[TREK_MAX_DIMS] = { false };
    if (source.ndim != destination.ndim)
        return trek_fail_null(TREK_ERR_ARGUMENT, "movedim: source and destination: %d and %d dimensions; must be equal",
                              source.ndim, destination.ndim);
    if (order.ndim == 0)
        return x;
    for (int k = 0; k < source.ndim; k++) {
        int from = trek_normalize_dim(source.sizes[k], order.ndim, "movedim");
        int to = from < 0 ? -1 : trek_normalize_dim(destination.sizes[k], order.ndim, "movedim");
        if (to < 0)
            return NULL;
        if (moved[from] || taken[to])
            return trek_fail_null(TREK_ERR_ARGUMENT, "movedim: a dimension occurs twice; must be different ones");
        moved[from] = taken[to] = true;
        order.sizes[to] = from;
    }
    for (int to = 0, from = 0; to < order.ndim; to++) {
        if (taken[to])
            continue;
        while (moved[from])
            from++;
        order.sizes[to] = from++;
    }
    return trek_permute(x, order);
}

trek_var *trek_flatten(trek_var *x, int start_dim, int end_dim)
{
    if (!x)
        return trek_reshape(x, trek_dims(-1));
    trek_shape shape = trek_var_shape(x), flat = { 0 };
    int start = trek_normalize_dim(start_dim, shape.ndim, "flatten"), end = trek_normalize_dim(end_dim, shape.ndim, "flatten");
    if (start < 0 || end < 0)
        return NULL;
    if (start > end)
        return trek_fail_null(TREK_ERR_ARGUMENT, "flatten: start and end: dimension %d is after dimension %d; must be in order",
                              start, end);
    if (shape.ndim == 0)
        return trek_reshape(x, trek_dims(1));
    for (int d = 0; d < shape.ndim; d++) {
        if (d > start && d <= end)
            flat.sizes[flat.ndim - 1] *= shape.sizes[d];
        else
            flat.sizes[flat.ndim++] = shape.sizes[d];
    }
    return trek_reshape(x, flat);
}

trek_var *trek_unflatten(trek_var *x, int dim, trek_shape sizes)
{
    char text[TREK_SHAPE_TEXT];
    if (!x)
        return trek_fail_missing("unflatten", "variable"), NULL;
    trek_shape shape = trek_var_shape(x), whole = { 0 };
    int at = trek_normalize_dim(dim, shape.ndim, "unflatten");
    if (at < 0)
        return NULL;
    if (shape.ndim == 0 || sizes.ndim < 1 || sizes.ndim + shape.ndim - 1 > TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_SHAPE, "unflatten: a dimension of %s cannot become %d",
                              trek_shape_format(shape, text, sizeof text),
                              sizes.ndim);
    int64_t known = 1, open = -1;
    for (int d = 0; d < sizes.ndim && known >= 0; d++) {
        int64_t size = sizes.sizes[d];
        if (size == -1 && open < 0)
            open = d;
        else
            known = size < 0 || (size > 0 && known > INT64_MAX / size) ? -1 : known * size;
    }
    if (known > 0 && open >= 0 && shape.sizes[at] % known == 0)
        sizes.sizes[open] = shape.sizes[at] / known;
    else if (known != shape.sizes[at] || open >= 0)
        return trek_fail_null(TREK_ERR_SHAPE, "unflatten: sizes: %s; must have %lld elements",
                              trek_shape_format(sizes, text, sizeof text),
                              (long long)shape.sizes[at]);
    for (int d = 0; d < shape.ndim; d++)
        for (int k = 0; k < (d == at ? sizes.ndim : 1); k++)
            whole.sizes[whole.ndim++] = d == at ? sizes.sizes[k] : shape.sizes[d];
    return trek_reshape(x, whole);
}

trek_var *trek_contiguous(trek_var *x) { return x && x->data->contiguous ? x : trek_apply_copy(x); }
trek_var *trek_clone(trek_var *x) { return trek_apply_copy(x); }

trek_var *trek_cast(trek_var *x, trek_dtype dtype)
{
    return x && trek_var_dtype(x) == dtype ? x : trek_apply_convert(x, dtype);
}

static trek_status to_forward(trek_function_context *context, trek_var *const *inputs, int n, trek_var **outputs, int n_outputs)
{
    (void)n, (void)n_outputs;
    trek_tensor *moved = trek_tensor_to(inputs[0]->data, *(trek_device *)trek_function_data(context));
    outputs[0] = moved ? trek_var_from(moved) : NULL;
    return trek_error_status();
}

static trek_status to_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **input_grads,
                               int n_inputs)
{
    (void)n, (void)n_inputs;
    trek_device *devices = trek_function_data(context);
    input_grads[0] = grads[0] ? trek_to(grads[0], devices[1]) : NULL;
    return trek_error_status();
}

static const trek_function move_function = { .name = "to", .forward = to_forward, .backward = to_backward, .free = trek_free };

trek_var *trek_to(trek_var *x, trek_device device)
{
    if (!x)
        return trek_fail_missing("to", "variable"), NULL;
    device = trek_device_resolve(device);
    if (trek_device_equal(trek_var_device(x), device))
        return x;
    trek_device *devices = trek_alloc(2 * sizeof *devices); /* to, from */
    if (!devices)
        return NULL;
    devices[0] = device;
    devices[1] = trek_var_device(x);
    return trek_function_apply_one(&move_function, devices, &x, 1);
}

/* Converts the list to one dtype; `made` (with room for count) gets the converted ones. Returns false on failure. */
static bool promote_list(trek_var *const *list, int count, trek_var **made)
{
    trek_dtype common = TREK_DTYPE_COUNT;
    for (int k = 0; k < count; k++) {
        if (!list[k])
            return trek_fail_missing("cat", "input"), false;
        common = trek_dtype_promote(common, trek_var_dtype(list[k]));
    }
    for (int k = 0; k < count; k++)
        if (!(made[k] = trek_cast(list[k], common)))
            return false;
    return true;
}

static trek_var *cat_list(trek_var *const *list, int count, int dim, bool stacked)
{
    const char *name = stacked ? "stack" : "cat";
    if (!list || count < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: inputs: 0 inputs; must be at least 1", name);
    trek_var **made = trek_block_alloc((size_t)count * sizeof *made);
    if (!made)
        return NULL;
    bool fine = promote_list(list, count, made);
    for (int k = 0; fine && stacked && k < count; k++) {
        if (!trek_same_sizes(list[0]->data, list[k]->data)) {
            char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
            trek_fail(TREK_ERR_SHAPE, "stack: shapes differ: %s and %s; must be equal", trek_tensor_shape_text(list[0]->data, a),
                      trek_tensor_shape_text(list[k]->data, b));
            fine = false;
        } else {
            fine = (made[k] = trek_unsqueeze(made[k], dim)) != NULL;
        }
    }
    trek_var *result = fine ? trek_apply_cat(made, count, dim) : NULL;
    trek_block_free(made);
    return result;
}

trek_var *trek_cat(trek_var *const *list, int count, int dim) { return cat_list(list, count, dim, false); }
trek_var *trek_stack(trek_var *const *list, int count, int dim) { return cat_list(list, count, dim, true); }

/* Cuts n parts of `size` along dimension `at`, the last one possibly shorter. Returns n, or -1. */
static int cut(trek_var *x, int at, int64_t length, int64_t size, int n, trek_var **parts)
{
    for (int64_t k = 0; k < n; k++) {
        int64_t rest = length - k * size;
        if (!(parts[k] = trek_narrow(x, at, k * size, rest < size ? rest : size)))
            return -1;
    }
    return n;
}

int trek_split(trek_var *x, int64_t size, int dim, trek_var **parts, int capacity)
{
    if (!x || !parts)
        return trek_fail_missing("split", x ? "parts" : "x"), -1;
    int at = trek_normalize_dim(dim, trek_var_ndim(x), "split");
    if (at < 0)
        return -1;
    if (trek_var_ndim(x) == 0)
        return trek_fail(TREK_ERR_SHAPE, "split: x: it is a scalar; must have a dimension to split"), -1;
    int64_t length = trek_var_size(x, at);
    if (size < 0 || (size == 0 && length > 0))
        return trek_fail(TREK_ERR_ARGUMENT, "split: size: %lld; must be at least 1", (long long)size), -1;
    int64_t n = length ? (length - 1) / size + 1 : 1; /* an empty dimension gives one empty part */
    if (n > capacity)
        return trek_fail(TREK_ERR_ARGUMENT, "split: capacity: %d; there are %lld parts", capacity, (long long)n), -1;
    return cut(x, at, length, size, (int)n, parts);
}

int trek_chunk(trek_var *x, int chunks, int dim, trek_var **parts, int capacity)
{
    if (!x || !parts)
        return trek_fail_missing("chunk", x ? "parts" : "x"), -1;
    int at = trek_normalize_dim(dim, trek_var_ndim(x), "chunk");
    if (at < 0)
        return -1;
    if (trek_var_ndim(x) == 0)
        return trek_fail(TREK_ERR_SHAPE, "chunk: x: it is a scalar; must have a dimension to split"), -1;
    if (chunks < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "chunk: chunks: %d; must be at least 1", chunks), -1;
    int64_t length = trek_var_size(x, at), size = length ? (length - 1) / chunks + 1 : 0;
    int64_t n = length ? (length - 1) / size + 1 : chunks; /* an empty dimension gives as many empty parts */
    if (n > capacity)
        return trek_fail(TREK_ERR_ARGUMENT, "chunk: capacity: %d; there are %lld parts", capacity, (long long)n), -1;
    return cut(x, at, length, size, (int)n, parts);
}

int trek_unbind(trek_var *x, int dim, trek_var **parts, int capacity)
{
    if (!x || !parts)
        return trek_fail_missing("unbind", x ? "parts" : "x"), -1;
    int at = trek_normalize_dim(dim, trek_var_ndim(x), "unbind");
    if (at < 0)
        return -1;
    if (trek_var_ndim(x) == 0)
        return trek_fail(TREK_ERR_SHAPE, "unbind: x: it is a scalar; must have a dimension to split"), -1;
    int64_t n = trek_var_size(x, at);
    if (n > capacity)
        return trek_fail(TREK_ERR_ARGUMENT, "unbind: capacity: %d; there are %lld parts", capacity, (long long)n), -1;
    for (int64_t k = 0; k < n; k++)
        if (!(parts[k] = trek_select(x, at, k)))
            return -1;
    return (int)n;
}

/* As in torch.matmul, a vector on the left is a row and one on the right a column, and its dimension is removed again. */
trek_var *trek_matmul(trek_var *x, trek_var *y)
{
    if (!x || !y)
        return trek_apply_matmul(x, y);
    int a = trek_var_ndim(x), b = trek_var_ndim(y);
    if (a == 0 || b == 0)
        return trek_fail_null(TREK_ERR_SHAPE, "matmul: a scalar is not a matrix; use trek_mul");
    if (a >= 2 && b >= 2)
        return trek_apply_matmul(x, y);
    trek_var *product = trek_apply_matmul(a == 1 ? trek_unsqueeze(x, 0) : x, b == 1 ? trek_unsqueeze(y, 1) : y);
    if (b == 1)
        product = trek_squeeze(product, -1);
    return a == 1 ? trek_squeeze(product, b == 1 ? -1 : -2) : product;
}

/* --- like another ------------------------------------------------------------------------ */

static trek_var *made(trek_tensor *t) { return t ? trek_var_from(t) : NULL; }

trek_var *trek_full_like(trek_var *x, double value)
{
    TREK_NEEDED("full_like", x);
    if (!trek_dtype_holds(trek_var_dtype(x), value))
        return trek_fail_null(TREK_ERR_ARGUMENT, "full_like: value: %g; %s cannot hold it", value,
                              trek_dtype_name(trek_var_dtype(x)));
    return made(trek_tensor_full(trek_var_shape(x), value, trek_var_dtype(x), trek_var_device(x)));
}

trek_var *trek_zeros_like(trek_var *x)
{
    TREK_NEEDED("zeros_like", x);
    return made(trek_tensor_zeros(trek_var_shape(x), trek_var_dtype(x), trek_var_device(x)));
}

trek_var *trek_ones_like(trek_var *x)
{
    TREK_NEEDED("ones_like", x);
    return made(trek_tensor_ones(trek_var_shape(x), trek_var_dtype(x), trek_var_device(x)));
}

trek_var *trek_empty_like(trek_var *x)
{
    TREK_NEEDED("empty_like", x);
    return made(trek_tensor_empty(trek_var_shape(x), trek_var_dtype(x), trek_var_device(x)));
}

/* --- in place -------------------------------------------------------------------------------- */

static bool writable(const char *name, const trek_var *x, const trek_var *y)
{
    if (!x || !y)
        return trek_fail_missing(name, "input"), false;
    if (trek_recording())
        return trek_fail(TREK_ERR_STATE, "%s: writing in place is for use under no_grad", name), false;
    return trek_check_overwrite(name, x->data, y->data) == TREK_OK;
}

/* Returns whether a result of that dtype may be rounded into x: no floating result into integers, and only bool into
 * bool. */
static bool fits_dtype(const char *name, const trek_tensor *result, const trek_tensor *x)
{
    trek_dtype from = (trek_dtype)result->dtype, to = (trek_dtype)x->dtype;
    if (trek_dtype_is_float(to) || (to != TREK_BOOL && !trek_dtype_is_float(from)) || from == to)
        return true;
    trek_fail(TREK_ERR_DTYPE, "%s: result: dtype %s; does not fit into %s", name, trek_dtype_name(from), trek_dtype_name(to));
    return false;
}

/* Computes a result in the wider dtype that x and y promote to, and rounds it once. */
static trek_status write_promoted(const char *name, trek_op_call *call, trek_tensor *x)
{
    call->n_outputs = 0;
    call->outputs[0] = NULL;
    trek_tensor *wide = trek_op_run_first(call);
    trek_status status = trek_error_status();
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (wide && !trek_same_sizes(wide, x))
        status = trek_fail(TREK_ERR_SHAPE, "%s: result: %s; does not fit into %s", name, trek_tensor_shape_text(wide, a),
                           trek_tensor_shape_text(x, b));
    else if (wide)
        status = fits_dtype(name, wide, x) ? trek_tensor_copy_from(x, wide) : trek_error_status();
    trek_tensor_release(wide);
    return status;
}

static trek_var *in_place(const char *name, int op, trek_var *x, trek_var *y)
{
    if (!writable(name, x, y))
        return NULL;
    trek_dtype dtype = trek_var_dtype(x);
    trek_tensor *in[2] = { x->data, y->data };
    trek_op_call call = { .op = &trek_ops[op], .n_inputs = 2, .inputs = in, .n_outputs = 1, .outputs = { x->data } };
    bool promoted = trek_dtype_promote(dtype, trek_var_dtype(y)) != dtype;
    trek_status status = promoted ? write_promoted(name, &call, x->data) : trek_op_run(&call);
    if (status != TREK_OK)
        return NULL;
    trek_tensor_bump(x->data);
    return x;
}

trek_var *trek_add_(trek_var *x, trek_var *y) { return in_place("add_", TREK_OP_add, x, y); }
trek_var *trek_sub_(trek_var *x, trek_var *y)
{
    return is_bool(x) || is_bool(y) ? fail_bool("sub_") : in_place("sub_", TREK_OP_sub, x, y);
}
trek_var *trek_mul_(trek_var *x, trek_var *y) { return in_place("mul_", TREK_OP_mul, x, y); }
trek_var *trek_div_(trek_var *x, trek_var *y) { return in_place("div_", TREK_OP_div, x, y); }

trek_var *trek_fill_(trek_var *x, double value)
{
    if (!x)
        return trek_fail_missing("fill_", "variable"), NULL;
    if (trek_recording())
        return trek_fail_null(TREK_ERR_STATE, "fill_: writing in place is for use under no_grad");
    if (!held("fill_", x, value))
        return NULL;
    trek_tensor *filled = trek_tensor_fill(x->data, value);
    trek_tensor_release(filled);
    if (!filled)
        return NULL;
    trek_tensor_bump(x->data);
    return x;
}

trek_var *trek_copy_(trek_var *x, trek_var *y)
{
    if (x && x == y && !trek_recording()) /* as in PyTorch, also for an expanded view */
        return x;
    if (!writable("copy_", x, y))
        return NULL;
    trek_tensor *wide = trek_tensor_expand(y->data, trek_var_shape(x));
    trek_status status = wide ? trek_tensor_copy_from(x->data, wide) : trek_error_status();
    trek_tensor_release(wide);
    return status == TREK_OK ? x : NULL;
}
