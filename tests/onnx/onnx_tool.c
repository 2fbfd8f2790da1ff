/* SPDX-License-Identifier: Apache-2.0 */
/* Exports many models with what they give, for check_onnx.py.
 *   onnx_tool FOLDER SEED OPSET
 * Of each: FOLDER/NAME.onnx and NAME.safetensors with in0.INPUT, out0.OUTPUT at the sizes of the export, in1.*, out1.* at others.
 * Names of inputs and outputs are the model's. What cannot be exported at an opset is printed as "NAME: message". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/zoo/zoo.h"
#include "trek.h"

enum { BATCH = -1, LENGTH = -2, MOST = 5 };

static const char *folder;
static int opset, failures;
static uint64_t state;

/* --- drawing --------------------------------------------------------------------------------- */

static int64_t draw(int64_t low, int64_t high)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)((state >> 33) % (uint64_t)(high - low + 1));
}

static bool coin(void) { return draw(0, 1) != 0; }

/* --- inputs ------------------------------------------------------------------------------------ */

/* f: normal; d, h, w: of f64, f16, bf16; p: 0.2 .. 2; u: -0.9 .. 0.9; g: 1 .. 3; i: i64 of 0 .. 9; s: of 0 .. 3; l: i32 of 1 ..
 * 4; b: bool; o: 0, 1, ..; y: u8 of 0 .. 9; -: left out */
typedef struct spec {
    char kind;
    trek_shape shape;
} spec;

typedef struct ends {
    const char *inputs[MOST], *outputs[MOST];
    int n_results;
    const char *const *tags;
    int n_tags;
    int64_t other;
    int external;
} ends;

static int64_t resolved(int64_t size, int set)
{
    static const int64_t batch[2] = { 3, 5 }, length[2] = { 6, 9 };
    return size == BATCH ? batch[set] : size == LENGTH ? length[set] : size;
}

static trek_tensor *in_range(trek_shape shape, double low, double high)
{
    int64_t n = trek_shape_numel(shape);
    float *values = malloc((size_t)(n + 1) * sizeof *values);
    for (int64_t k = 0; k < n; k++)
        values[k] = (float)(low + (high - low) * (double)draw(0, 1 << 20) / (1 << 20));
    trek_tensor *t = trek_tensor_from_data(values, shape, TREK_F32, trek_cpu(0));
    free(values);
    return t;
}

static trek_var *cast(trek_tensor *t, trek_dtype dtype)
{
    trek_tensor *made = t ? trek_tensor_cast(t, dtype) : NULL;
    trek_tensor_release(t);
    return made ? trek_var_from(made) : NULL;
}

static trek_var *arange(int64_t n) { return trek_var_from(trek_tensor_arange(0, (double)n, 1, TREK_I64, trek_cpu(0))); }

static trek_var *input_of(spec s, int set)
{
    for (int d = 0; d < s.shape.ndim; d++)
        s.shape.sizes[d] = resolved(s.shape.sizes[d], set);
    switch (s.kind) {
    case '-': return NULL;
    case 'i': return trek_var_from(trek_tensor_randint(0, 10, s.shape, TREK_I64, trek_cpu(0)));
    case 'o': return arange(trek_shape_numel(s.shape));
    case 's': return trek_var_from(trek_tensor_randint(0, 4, s.shape, TREK_I64, trek_cpu(0)));
    case 'l': return trek_var_from(trek_tensor_randint(1, 5, s.shape, TREK_I32, trek_cpu(0)));
    case 'y': return trek_var_from(trek_tensor_randint(0, 10, s.shape, TREK_U8, trek_cpu(0)));
    case 'b': return trek_gt_scalar(trek_var_from(in_range(s.shape, -1, 1)), -0.2);
    case 'p': return trek_var_from(in_range(s.shape, 0.2, 2));
    case 'g': return trek_var_from(in_range(s.shape, 1, 3));
    case 'u': return trek_var_from(in_range(s.shape, -0.9, 0.9));
    case 'd': return cast(in_range(s.shape, -2, 2), TREK_F64);
    case 'h': return cast(in_range(s.shape, -2, 2), TREK_F16);
    case 'w': return cast(in_range(s.shape, -2, 2), TREK_BF16);
    default: return trek_var_from(in_range(s.shape, -2, 2));
    }
}

/* --- one model ----------------------------------------------------------------------------------- */

static void complain(const char *name)
{
    bool unsupported = trek_error_status() == TREK_ERR_UNSUPPORTED;
    printf("%s: %s\n", name, trek_error());
    failures += !unsupported;
    trek_error_clear();
}

static void add(trek_state *to, const char *kind, int set, const char *name, trek_var *var)
{
    char full[128];
    snprintf(full, sizeof full, "%s%d.%s", kind, set, name);
    trek_var *flat = var ? trek_contiguous(var) : NULL;
    if (flat)
        trek_state_add(to, full, trek_var_data(flat));
}

static void run(trek_module *m, const spec *in, int n, const ends *e, int set, trek_var **inputs, trek_state *to)
{
    trek_var *results[MOST] = { NULL };
    trek_graph *graph = strcmp(trek_module_name(m), "graph") == 0 ? trek_graph_from_module(m) : NULL;
    for (int k = 0; k < n; k++)
        if (!inputs[k])
            inputs[k] = input_of(in[k], set);
    trek_module_train(m, false);
    if (graph)
        results[0] = trek_graph_forward_many(graph, inputs, n);
    else
        trek_forward_results(m, inputs, n, results, e->n_results ? e->n_results : 1);
    for (int k = 0; k < n; k++)
        if (inputs[k])
            add(to, "in", set, e->inputs[k], inputs[k]);
    for (int k = 0; k < (e->n_results ? e->n_results : 1); k++)
        add(to, "out", set, e->outputs[k], results[k]);
    for (int k = 0; k < e->n_tags; k++)
        add(to, "out", set, e->tags[k], trek_graph_tagged(graph, e->tags[k]));
    trek_module_train(m, true);
}

static int open_dims(const spec *in, int n, const ends *e, trek_onnx_dim *dims)
{
    int count = 0;
    for (int k = 0; k < n; k++)
        for (int d = 0; d < in[k].shape.ndim && in[k].kind != '-'; d++) {
            int64_t size = in[k].shape.sizes[d];
            if (size == BATCH || size == LENGTH)
                dims[count++] = (trek_onnx_dim){ k, d, size == BATCH ? "batch" : "length", size == LENGTH ? e->other : 0 };
        }
    return count;
}

static void put_with(const char *name, trek_module *m, const spec *in, int n, ends e)
{
    char path[512];
    trek_scope scope = trek_scope_begin();
    trek_onnx_dim dims[32];
    trek_onnx_opts opts = { .opset = opset, .batch = TREK_OFF, .dims = dims, .n_dims = open_dims(in, n, &e, dims), .tags = e.tags,
                            .input_names = e.inputs, .output_names = e.outputs, .n_results = e.n_results,
                            .external_data = e.external };
    for (int k = 0; k < n; k++)
        e.inputs[k] = e.inputs[k] ? e.inputs[k] : (const char *[]){ "a", "b", "c", "d", "e" }[k];
    for (int k = 0; k < MOST; k++)
        e.outputs[k] = e.outputs[k] ? e.outputs[k] : (const char *[]){ "y", "y1", "y2", "y3", "y4" }[k];
    trek_var *inputs[2][MOST] = { { NULL } };
    trek_state *values = trek_state_new();
    for (int set = 0; set < 2; set++)
        run(m, in, n, &e, set, inputs[set], values);
    snprintf(path, sizeof path, "%s/%s.onnx", folder, name);
    if (trek_onnx_export(m, path, inputs[0], n, &opts) != TREK_OK) {
        complain(name);
    } else {
        snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
        if (trek_state_write(values, path) != TREK_OK)
            complain(name);
    }
    trek_state_free(&values);
    trek_scope_end(scope);
    trek_module_free(&m);
}

#define IN(...) (const spec[]){ __VA_ARGS__ }, (int)(sizeof((spec[]){ __VA_ARGS__ }) / sizeof(spec))
#define F(...) { 'f', trek_dims(__VA_ARGS__) }
static void put(const char *name, trek_module *m, const spec *in, int n) { put_with(name, m, in, n, (ends){ .n_results = 1 }); }

/* A name with a number behind it: of what is drawn several times. */
static const char *numbered(const char *name, int k)
{
    static char text[64];
    snprintf(text, sizeof text, "%s_%d", name, k);
    return text;
}

/* --- functions -------------------------------------------------------------------------------------- */

typedef trek_var *(*function)(trek_var *const *in);
typedef struct function_module {
    trek_module base;
    function fn;
    trek_module *child;
} function_module;

static trek_var *function_many(trek_module *self, trek_var *const *in, int n)
{
    (void)n;
    return ((function_module *)self)->fn(in);
}
static trek_var *function_one(trek_module *self, trek_var *x) { return function_many(self, &x, 1); }
static const trek_module_class function_class = { .name = "function", .size = sizeof(function_module), .forward = function_one,
                                                  .forward_many = function_many };

static trek_module *of_function(function fn)
{
    function_module *m = (function_module *)trek_module_new(&function_class);
    m->fn = fn;
    return trek_module_check(&m->base);
}

static trek_var *both(trek_var *y, trek_var *indices) { return trek_add(trek_cast(indices, TREK_F32), y); }
static trek_var *sorted(trek_var *x, bool descending)
{
    trek_var *places, *y = trek_sort(x, 2, descending, &places);
    return both(y, places);
}
static trek_var *top(trek_var *x, bool largest)
{
    trek_var *places, *y = trek_topk(x, 3, -1, largest, &places);
    return both(y, places);
}
static trek_var *scaled_by_length(trek_var *x)
{
    return trek_div(x, trek_var_from(trek_tensor_full(trek_dims_none(), (double)trek_var_size(x, 0), TREK_F32, trek_cpu(0))));
}
static trek_var *in_place(trek_var *x)
{
    trek_no_grad_begin();
    trek_var *y = trek_clone(x);
    trek_add_(y, x);
    trek_mul_(y, x);
    trek_no_grad_end();
    return y;
}

/* x, y: the inputs, [BATCH, 4, 6] */
#define FUNCTIONS(X) \
    X(neg, "f", trek_neg(x)) X(abs, "f", trek_abs(x)) X(sign, "f", trek_sign(x)) X(exp, "f", trek_exp(x)) \
    X(expm1, "f", trek_expm1(x)) X(log, "p", trek_log(x)) X(log1p, "p", trek_log1p(x)) X( log2, "p", trek_log2(x)) \
    X(log10, "p", trek_log10(x)) X(sqrt, "p", trek_sqrt(x)) X(rsqrt, "p", trek_rsqrt(x)) \
    X(reciprocal, "p", trek_reciprocal(x)) X(square, "f", trek_square(x)) X(sin, "f", trek_sin(x)) \
    X(cos, "f", trek_cos(x)) X(tan, "u", trek_tan(x)) X(asin, "u", trek_asin(x)) X(acos, "u", trek_acos(x)) \
    X(atan, "f", trek_atan(x)) X(sinh, "f", trek_sinh(x)) X(cosh, "f", trek_cosh(x)) X(erf, "f", trek_erf(x)) \
    X( relu_of_integers, "i", trek_relu(trek_sub_scalar(x, 4))) X(floor, "f", trek_floor(x)) X(ceil, "f", trek_ceil(x)) \
    X(round, "f", trek_round(x)) X(trunc, "f", trek_trunc(x)) X( isnan, "f", trek_isnan(trek_sqrt(x))) \
    X(isinf, "f", trek_isinf(trek_log(trek_relu(x)))) X(asinh, "f", trek_asinh(x)) \
    X(isfinite, "f", trek_isfinite(trek_log(x))) X(acosh, "g", trek_acosh(x)) X(atanh, "u", trek_atanh(x)) \
    X(erfc, "f", trek_erfc(x)) X(logical_not, "s", trek_logical_not(x)) X( logical_and, "sf", trek_logical_and(x, y)) \
    X(logical_or, "bs", trek_logical_or(x, y)) X(logical_xor, "bs", trek_logical_xor(x, y)) \
    X(clamp, "f", trek_clamp(x, -0.5, 1)) X( clamp_low, "f", trek_clamp(x, 0.25, (double)INFINITY)) \
    X(clamp_integers, "i", trek_clamp(x, 2, 7)) X(add_scalar, "f", trek_add_scalar(x, 1.5)) \
    X(sub_scalar, "i", trek_sub_scalar(x, 2)) X(integer_and_fraction, "i", trek_mul_scalar(x, 0.5)) \
    X(div_scalar, "f", trek_div_scalar(x, 3)) X(pow_scalar, "p", trek_pow_scalar(x, 1.7)) \
    X(eq_scalar, "s", trek_eq_scalar(x, 2)) X(ne_scalar, "s", trek_ne_scalar(x, 1)) \
    X(lt_scalar, "i", trek_lt_scalar(x, 4.5)) X(le_scalar, "f", trek_le_scalar(x, 0.5)) \
    X( gt_scalar, "y", trek_gt_scalar(x, 4)) X(ge_scalar, "b", trek_ge_scalar(x, 1)) X(add, "ff", trek_add(x, y)) \
    X(add_promoted, "fi", trek_add(x, y)) X(add_bools, "bb", trek_add(x, y)) X(sub, "ff", trek_sub(x, y)) \
    X( mul, "ff", trek_mul(x, y)) X(mul_bools, "bb", trek_mul(x, y)) X(div, "fp", trek_div(x, y)) \
    X(div_integers, "is", trek_div(x, trek_add_scalar(y, 1))) X( pow, "pf", trek_pow(x, y)) \
    X(maximum, "ff", trek_maximum(x, y)) X(minimum, "ff", trek_minimum(x, y)) X(remainder, "fp", trek_remainder(x, y)) \
    X( remainder_of_integers, "is", trek_remainder(trek_sub_scalar(x, 5), trek_add_scalar(y, 1))) \
    X(fmod, "fp", trek_fmod(x, y)) X(floor_divide, "fp", trek_floor_divide(x, y)) \
    X(floor_divide_integers, "is", trek_floor_divide(trek_sub_scalar(x, 5), trek_add_scalar(y, 2))) \
    X(div_trunc_integers, "is", trek_div_mode(trek_sub_scalar(x, 5), trek_add_scalar(y, 2), TREK_ROUNDING_TRUNC)) \
    X(hypot, "ff", trek_hypot( x, y)) X(eq, "ss", trek_eq( x, y)) X(ne, "ss", trek_ne( x, y)) X(lt, "ff", trek_lt(x, y)) \
    X(le, "bb", trek_le(x, y)) X(gt, "fi", trek_gt(x, y)) X(ge, "ii", trek_ge( x, y)) \
    X(where, "bff", trek_where(x, y, in[2])) X(masked_fill, "fb", trek_masked_fill(x, y, -3)) \
    X(bitwise_and, "ii", trek_bitwise_and(x, y)) X(bitwise_not, "i", trek_bitwise_not( x)) \
    X(bitwise_or, "bb", trek_bitwise_or(x, y)) X(bitwise_xor, "ii", trek_bitwise_xor( x, y)) \
    X(shift, "yy", trek_bitwise_left_shift(x, y)) X(sum, "f", trek_sum( x, trek_dims(1), false)) \
    X(sum_all, "f", trek_sum(x, trek_dims_all(), false)) X(sum_integers, "y", trek_sum( x, trek_dims( 0, 2), true)) \
    X(mean, "f", trek_mean( x, trek_dims( -1), true)) X(mean_of_batch, "f", trek_mean(x, trek_dims(0), false)) \
    X(prod, "f", trek_prod( x, trek_dims(2), false)) X(max, "f", trek_max( x, trek_dims(1, 2), false)) \
    X(min, "i", trek_min(x, trek_dims(1), true)) X(max_bools, "b", trek_max( x, trek_dims( 1), true)) \
    X(argmax, "f", trek_argmax(x, trek_dims(1), false)) X(argmin, "f", trek_argmin( x, trek_dims( 2), true)) \
    X(argmax_all, "f", trek_argmax(x, trek_dims_all(), false)) X(any, "b", trek_any(x, trek_dims(1), false)) \
    X(all, "s", trek_all( x, trek_dims(2), true)) X(variance, "f", trek_variance( x, trek_dims( 1, 2), true)) \
    X(std, "f", trek_std(x, trek_dims( 2), false)) X(std_of_batch, "f", trek_std(x, trek_dims( 0), false)) \
    X(norm, "f", trek_norm(x, 2, trek_dims(1), false)) X(norm_1, "f", trek_norm(x, 1, trek_dims(1, 2), true)) \
    X(norm_inf, "f", trek_norm(x, (double) INFINITY, trek_dims( 2), true)) \
    X(normalize, "f", trek_normalize( x, 2, 1, 1e-12)) X(logsumexp, "f", trek_logsumexp(x, trek_dims(1), true)) \
    X(cumsum, "f", trek_cumsum(x, 1)) X(cumsum_integers, "i", trek_cumsum(x, -1)) X(softmax, "f", trek_softmax(x, 1)) \
    X(log_softmax, "f", trek_log_softmax(x, -1)) X(reshape, "f", trek_reshape(x, trek_dims( trek_var_size(x, 0), 24))) \
    X(reshape_rows, "f", trek_reshape( x, trek_dims( -1, 6))) \
    X(reshape_apart, "f", trek_reshape(trek_reshape(x, trek_dims( -1, 6)), trek_dims( trek_var_size( x, 0), 2, 2, 6))) \
    X(reshape_over, "f", trek_reshape( trek_permute(x, trek_dims( 1, 0, 2)), trek_dims( 2, 2, trek_var_size(x, 0), 3, 2))) \
    X(flatten, "f", trek_flatten( x, 0, 1)) X(unflatten, "f", trek_unflatten(x, 2, trek_dims(2, -1))) \
    X(expand, "f", trek_expand( trek_unsqueeze( x, 1), trek_dims(-1, 3, -1, -1))) \
    X(expand_to_batch, "f", trek_add(x, trek_expand(arange(6), trek_var_shape(x)))) \
    X(permute, "f", trek_permute( x, trek_dims( 2, 0, 1))) X(transpose, "f", trek_transpose(x, 0, 2)) \
    X(squeeze, "f", trek_squeeze( trek_unsqueeze(x, -1), 3)) X(narrow, "f", trek_narrow(x, 2, 1, 3)) \
    X(narrow_batch, "f", trek_narrow( x, 0, 1, trek_var_size( x, 0) - 1)) \
    X(narrow_to_last, "f", trek_narrow( x, 0, 0, trek_var_size(x, 0) - 1)) \
    X(narrow_last, "f", trek_narrow(x, 0, trek_var_size(x, 0) - 2, 2)) X(select, "f", trek_select(x, 1, -1)) \
    X(select_last, "f", trek_select( x, 0, -1)) X(flip, "f", trek_flip( x, trek_dims( 0, 2))) \
    X(tril, "f", trek_tril(x, 1)) X(triu_bools, "b", trek_triu( x, -1)) X(cat, "ff", trek_cat( in, 2, 1)) \
    X(stack, "ff", trek_stack(in, 2, 0)) \
    X(index_select, "f", trek_index_select( x, 1, trek_var_from(trek_tensor_arange(3, -1, -1, TREK_I64, trek_cpu(0))))) \
    X(gather, "fs", trek_gather(x, 2, y)) X(scatter_add, "fsf", trek_scatter_add( x, 2, y, in[2])) \
    X(index_add, "ff", trek_index_add( x, 1, arange(4), y)) X(one_hot, "s", trek_one_hot(x, 5)) \
    X(sort, "f", sorted( x, false)) X(sort_down, "f", sorted( x, true)) X(topk, "f", top(x, true)) \
    X(topk_small, "f", top(x, false)) X(kthvalue, "f", trek_kthvalue( x, 2, 1, false, NULL)) \
    X(median, "f", trek_median( x, 2, true, NULL)) X(cast_to_half, "f", trek_cast(x, TREK_F16)) \
    X(cast_to_integers, "f", trek_cast( x, TREK_I64)) X(cast_to_bool, "s", trek_cast(x, TREK_BOOL)) \
    X( doubles, "dd", trek_tanh(trek_add( x, y))) X(halves, "hh", trek_softmax(trek_mul(x, y), -1)) \
    X(matmul, "ff", trek_matmul(x, trek_transpose(y, 1, 2))) \
    X( matmul_integers, "ii", trek_matmul( x, trek_transpose( y, 1, 2))) \
    X(einsum, "ff", trek_einsum("bij,bkj->bki", in, 2)) X(einsum_outer, "ff", trek_einsum("bij,bkl->bijl", in, 2)) \
    X( pad, "f", trek_pad( x, trek_dims(1, 2, 0, 1), TREK_PAD_MODE_CONSTANT, 2.5)) \
    X(pad_reflect, "f", trek_pad(x, trek_dims(2, 1), TREK_PAD_MODE_REFLECT, 0)) \
    X(pad_replicate, "f", trek_pad(x, trek_dims(2, 1), TREK_PAD_MODE_REPLICATE, 0)) \
    X( pad_circular, "f", trek_pad( x, trek_dims(2, 1), TREK_PAD_MODE_CIRCULAR, 0)) \
    X(crop, "f", trek_pad(x, trek_dims(-1, -2), TREK_PAD_MODE_CONSTANT, 0)) \
    X(roll, "f", trek_roll(x, trek_dims(2), trek_dims(1))) X( repeat, "f", trek_repeat( x, trek_dims(1, 2, 1))) \
    X(atan2, "ff", trek_atan2(x, y)) X(atan2_signs, "is", trek_atan2(trek_sub_scalar(x, 5), trek_sub_scalar(y, 1))) \
    X(copysign, "ff", trek_copysign(x, y)) X(diagonal, "f", trek_diagonal(x, 1, 2, 1)) \
    X(diagonal_below, "f", trek_diagonal(x, -1, 1, 2)) \
    X(searchsorted, "f", trek_searchsorted(trek_cast(arange(4), TREK_F32), x, true)) \
    X(searchsorted_lines, "ff", trek_searchsorted(trek_sort(x, 2, false, NULL), y, false)) \
    X(pad_bools, "b", trek_pad(x, trek_dims(1, 1), TREK_PAD_MODE_CONSTANT, 1)) \
    X(pad_by_size, "f", trek_pad(x, trek_dims(trek_var_size(x, 0), 0, 1, 0), TREK_PAD_MODE_CONSTANT, 0)) \
    X(nonzero, "f", trek_nonzero(trek_gt_scalar(x, 0.06))) X(masked_select, "f", trek_masked_select(x, trek_gt_scalar(x, 0.06))) \
    X(repeat_interleave_batch, "f", trek_repeat_interleave(x, 3, 0)) \
    X(repeat_interleave, "f", trek_repeat_interleave(x, 2, 1)) \
    X( arange_added, "f", trek_add( x, trek_reshape( arange(trek_var_size( x, 0)), trek_dims( -1, 1, 1)))) \
    X(divided_by_size, "f", scaled_by_length(x)) X(in_place, "f", in_place(x)) X( logaddexp, "ff", trek_logaddexp( x, y)) \
    X(lerp, "f" "f", trek_lerp(x, y, 0.3)) X(addcmul, "fff", trek_addcmul( x, y, in[2], 0.5)) \
    X(clamp_var, "fff", trek_clamp_var(x, y, in[2])) \
    X(gelu_tanh, "f", trek_gelu_tanh(x)) X( zeros, "f", trek_add( trek_zeros_like( x), trek_ones_like( x))) \
    X(rot90, "f", trek_rot90( x, 1, trek_dims( 1, 2))) \
    X(attention_masked, "ffb", trek_squeeze( trek_attention( trek_unsqueeze( x, 1), trek_unsqueeze( y, 1), \
      trek_unsqueeze( y, 1), &(trek_attention_opts){ .mask = trek_narrow( trek_unsqueeze( in[2], 1), 3, 0, 4) }), 1)) \
    X(same, "f", x) X(bf16_values, "w", trek_mul( x, x))

#define FUNCTION(name, kinds, expression)                                                                                        \
    static trek_var *fn_##name(trek_var *const *in)                                                                              \
    {                                                                                                                            \
        trek_var *x = in[0], *y = in[1];                                                                                         \
        (void)x, (void)y;                                                                                                        \
        return expression;                                                                                                       \
    }
FUNCTIONS(FUNCTION)
#undef FUNCTION

static void functions(void)
{
    static const struct { const char *name, *kinds; function fn; } list[] = {
#define FUNCTION(name, kinds, expression) { #name, kinds, fn_##name },
        FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        spec in[3];
        int n = (int)strlen(list[k].kinds);
        for (int i = 0; i < n; i++)
            in[i] = (spec){ list[k].kinds[i], trek_dims(BATCH, 4, 6) };
        char name[64];
        snprintf(name, sizeof name, "f_%s", list[k].name);
        put(name, of_function(list[k].fn), in, n);
    }
}

/* --- layers ----------------------------------------------------------------------------------------- */

static void products(void)
{
    trek_device cpu = trek_cpu(0);
    put("linear", trek_nn_linear(6, 5, cpu), IN(F(BATCH, 6)));
    put("linear_3d", trek_nn_linear(6, 5, cpu), IN(F(BATCH, LENGTH, 6)));
    put("linear_no_bias", trek_nn_linear_with(&(trek_linear_opts){ .in = 6, .out = 5, .no_bias = true }), IN(F(BATCH, 6)));
    put("linear_f64", trek_nn_linear_with(&(trek_linear_opts){ .in = 6, .out = 5, .dtype = TREK_F64 }),
        IN({ 'd', trek_dims(BATCH, 6) }));
    put("linear_f16", trek_nn_linear_with(&(trek_linear_opts){ .in = 6, .out = 5, .dtype = TREK_F16 }),
        IN({ 'h', trek_dims(BATCH, 6) }));
    put("bilinear", trek_nn_bilinear(4, 5, 3, cpu), IN(F(BATCH, 4), F(BATCH, 5)));
    put("swiglu", trek_nn_swiglu(6, 8, cpu), IN(F(BATCH, 6)));
    trek_module *normed = trek_nn_linear(6, 5, cpu), *lora = trek_nn_linear(6, 5, cpu), *spectral = trek_nn_linear(6, 5, cpu);
    trek_weight_norm(normed, "weight", 0);
    put("weight_norm", normed, IN(F(BATCH, 6)));
    trek_lora(lora, &(trek_lora_opts){ .r = 2 });
    put("lora", lora, IN(F(BATCH, 6)));
    trek_spectral_norm(spectral, "weight", NULL);
    put("spectral_norm", spectral, IN(F(BATCH, 6)));
}

static void convolutions(void)
{
    for (int k = 0; k < 6; k++) {
        int64_t g = draw(1, 2), kernel = draw(1, 3), dilation = draw(1, 2), stride = draw(1, 3), padding = draw(0, kernel / 2);
        trek_pad_mode mode = padding > 0 ? (trek_pad_mode)draw(TREK_PAD_MODE_CONSTANT, TREK_PAD_MODE_CIRCULAR)
            : TREK_PAD_MODE_CONSTANT;
        bool no_bias = coin();
        put(numbered("conv1d", k), trek_nn_conv1d_with(&(trek_conv1d_opts){ .in = 4, .out = 6, .kernel = kernel, .stride = stride,
            .padding = padding, .dilation = dilation, .groups = g, .no_bias = no_bias, .padding_mode = mode }),
            IN(F(BATCH, 4, LENGTH)));
        put(numbered("conv2d", k), trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 4, .out = 6, .kernel = { kernel, draw(1, 3) },
            .stride = { stride, draw(1, 2) }, .padding = { padding, padding }, .dilation = { dilation, 1 }, .groups = g,
            .no_bias = no_bias, .padding_mode = mode }), IN(F(BATCH, 4, LENGTH, 8)));
        put(numbered("conv3d", k), trek_nn_conv3d_with(&(trek_conv3d_opts){ .in = 4, .out = 6,
                                                                            .kernel = { kernel, 2, draw(1, 3) },
            .stride = { stride, 1, 2 }, .padding = { draw(0, 1), 1, TREK_ZERO }, .dilation = { dilation, 1, 1 }, .groups = g,
            .no_bias = no_bias }), IN(F(BATCH, 4, 6, 5, 6)));
        int64_t more = stride > 1 ? draw(0, stride - 1) : 0;
        put(numbered("conv_transpose1d", k), trek_nn_conv_transpose1d_with(&(trek_conv_transpose1d_opts){ .in = 4, .out = 6,
            .kernel = kernel, .stride = stride, .padding = padding, .output_padding = more, .dilation = dilation, .groups = g,
            .no_bias = no_bias }), IN(F(BATCH, 4, LENGTH)));
        put(numbered("conv_transpose2d", k), trek_nn_conv_transpose2d_with(&(trek_conv_transpose2d_opts){ .in = 4, .out = 6,
            .kernel = { kernel, 2 }, .stride = { stride, stride }, .padding = { padding, TREK_ZERO },
            .output_padding = { more, TREK_ZERO },
            .dilation = { dilation, 1 }, .groups = g, .no_bias = no_bias }), IN(F(BATCH, 4, LENGTH, 5)));
        put(numbered("conv_transpose3d", k), trek_nn_conv_transpose3d_with(&(trek_conv_transpose3d_opts){ .in = 4, .out = 6,
            .kernel = { kernel, 2, 2 }, .stride = { stride, 1, 2 }, .padding = { padding, TREK_ZERO, TREK_ZERO },
            .output_padding = { more, TREK_ZERO, TREK_ZERO },
            .dilation = { dilation, 1, 1 }, .groups = g, .no_bias = no_bias }), IN(F(BATCH, 4, 4, 3, 4)));
    }
    put("conv2d_same", trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 3, .out = 4, .kernel = { 4, 3 },
                                                                .padding_kind = TREK_PADDING_SAME }),
        IN(F(BATCH, 3, 7, 8)));
    put("conv2d_valid", trek_nn_conv2d_with(&(trek_conv2d_opts){ .in = 3, .out = 4, .kernel = { 3 },
                                                                 .padding_kind = TREK_PADDING_VALID }),
        IN(F(BATCH, 3, 7, 8)));
}

static void norms(void)
{
    trek_device cpu = trek_cpu(0);
    put("batch_norm1d", trek_nn_batch_norm1d(6, cpu), IN(F(BATCH, 6)));
    put("batch_norm1d_3d", trek_nn_batch_norm1d_with(&(trek_batch_norm_opts){ .features = 6, .no_affine = true }),
        IN(F(BATCH, 6, LENGTH)));
    put("batch_norm2d", trek_nn_batch_norm2d_with(&(trek_batch_norm_opts){ .features = 6, .eps = 1e-3 }),
        IN(F(BATCH, 6, LENGTH, 4)));
    put("batch_norm2d_of_batch", trek_nn_batch_norm2d_with(&(trek_batch_norm_opts){ .features = 6, .no_running_stats = true }),
        IN(F(BATCH, 6, 5, 4)));
    put("batch_norm3d", trek_nn_batch_norm3d(4, cpu), IN(F(BATCH, 4, 3, 3, 3)));
    put("sync_batch_norm", trek_nn_sync_batch_norm(4, cpu), IN(F(BATCH, 4, 3, 3)));
    put("layer_norm", trek_nn_layer_norm(6, cpu), IN(F(BATCH, LENGTH, 6)));
    put("layer_norm_2", trek_nn_layer_norm_with(&(trek_layer_norm_opts){ .shape = trek_dims(4, 6), .no_affine = true }),
        IN(F(BATCH, 4, 6)));
    put("layer_norm_no_bias", trek_nn_layer_norm_with(&(trek_layer_norm_opts){ .shape = trek_dims(6), .no_bias = true,
                                                                               .eps = 1e-3 }), IN(F(BATCH, 6)));
    put("rms_norm", trek_nn_rms_norm(6, cpu), IN(F(BATCH, LENGTH, 6)));
    put("group_norm", trek_nn_group_norm(2, 6, cpu), IN(F(BATCH, 6, LENGTH, 4)));
    put("instance_norm1d", trek_nn_instance_norm1d(4, cpu), IN(F(BATCH, 4, LENGTH)));
    put("instance_norm2d", trek_nn_instance_norm2d_with(&(trek_instance_norm_opts){ .features = 4, .affine = true }),
        IN(F(BATCH, 4, 5, 4)));
    put("instance_norm3d", trek_nn_instance_norm3d_with(&(trek_instance_norm_opts){ .features = 4, .running_stats = true }),
        IN(F(BATCH, 4, 3, 3, 2)));
    put("local_response_norm", trek_nn_local_response_norm(3), IN(F(BATCH, 6, 4, 5)));
}

static void activations(void)
{
    trek_device cpu = trek_cpu(0);
    struct { const char *name; trek_module *m; } list[] = {
        { "relu", trek_nn_relu() }, { "gelu", trek_nn_gelu() },
            { "gelu_tanh", trek_nn_gelu_with(&(trek_gelu_opts){ .tanh = true }) },
        { "silu", trek_nn_silu() }, { "tanh", trek_nn_tanh() }, { "sigmoid", trek_nn_sigmoid() },
        { "leaky_relu", trek_nn_leaky_relu(0.2) },
        { "softmax", trek_nn_softmax(-1) }, { "softmax_1", trek_nn_softmax(1) }, { "log_softmax", trek_nn_log_softmax(-1) },
        { "relu6", trek_nn_relu6() }, { "selu", trek_nn_selu() }, { "softsign", trek_nn_softsign() },
        { "hardswish", trek_nn_hardswish() },
        { "hardsigmoid", trek_nn_hardsigmoid() }, { "tanhshrink", trek_nn_tanhshrink() }, { "mish", trek_nn_mish() },
        { "logsigmoid", trek_nn_logsigmoid() }, { "elu", trek_nn_elu_with(&(trek_elu_opts){ .alpha = 0.7 }) },
        { "celu", trek_nn_celu_with(&(trek_celu_opts){ .alpha = 0.7 }) }, { "softplus", trek_nn_softplus() },
        { "softplus_2", trek_nn_softplus_with(&(trek_softplus_opts){ .beta = 2, .threshold = 1 }) },
        { "hardtanh", trek_nn_hardtanh() },
        { "hardshrink", trek_nn_hardshrink() }, { "softshrink", trek_nn_softshrink() },
        { "threshold", trek_nn_threshold(0.1, 3) },
        { "rrelu", trek_nn_rrelu() }, { "softmin", trek_nn_softmin(1) }, { "glu", trek_nn_glu(1) },
        { "prelu", trek_nn_prelu(cpu) },
        { "prelu_6", trek_nn_prelu_with(&(trek_prelu_opts){ .parameters = 6 }) }, { "identity", trek_nn_identity() },
        { "dropout", trek_nn_dropout(0.5) }, { "dropout1d", trek_nn_dropout1d(0.5) },
        { "alpha_dropout", trek_nn_alpha_dropout(0.5) },
        { "feature_alpha_dropout", trek_nn_feature_alpha_dropout(0.5) }, { "flatten", trek_nn_flatten() },
    };
    for (size_t k = 0; k < sizeof list / sizeof *list; k++)
        put(list[k].name, list[k].m, IN(F(BATCH, 6, 4)));
    put("softmax2d", trek_nn_softmax2d(), IN(F(BATCH, 3, 4, 5)));
    put("unflatten", trek_nn_unflatten(1, trek_dims(2, 3)), IN(F(BATCH, 6)));
}

static void pools(void)
{
    for (int k = 0; k < 5; k++) {
        int64_t kernel = draw(2, 3), stride = draw(1, 3), padding = draw(0, 1), dilation = draw(1, 2);
        bool ceil_mode = coin(), exclude = coin();
        trek_pool_opts max = { .kernel = { kernel, 2, 2 }, .stride = { stride, 1, 2 },
                               .padding = { padding ? padding : TREK_ZERO, 1, TREK_ZERO },
                               .dilation = { dilation, 1, 1 }, .ceil_mode = ceil_mode };
        trek_pool_opts avg = max;
        avg.dilation[0] = 0;
        avg.dilation[1] = avg.dilation[2] = 0;
        avg.exclude_padding = exclude;
        put(numbered("max_pool1d", k), trek_nn_max_pool1d_with(&max), IN(F(BATCH, 3, 8)));
        put(numbered("max_pool2d", k), trek_nn_max_pool2d_with(&max), IN(F(BATCH, 3, 8, 7)));
        put(numbered("max_pool3d", k), trek_nn_max_pool3d_with(&max), IN(F(BATCH, 3, 8, 7, 6)));
        put_with(numbered("max_pool2d_places", k), trek_nn_max_pool2d_with(&max), IN(F(BATCH, 3, 8, 7)),
                 (ends){ .n_results = 2 });
        put(numbered("avg_pool1d", k), trek_nn_avg_pool1d_with(&avg), IN(F(BATCH, 3, 8)));
        put(numbered("avg_pool2d", k), trek_nn_avg_pool2d_with(&avg), IN(F(BATCH, 3, 8, 7)));
        put(numbered("avg_pool3d", k), trek_nn_avg_pool3d_with(&avg), IN(F(BATCH, 3, 8, 7, 6)));
        trek_pool_opts lp = { .kernel = { kernel }, .stride = { stride } };
        put(numbered("lp_pool2d", k), trek_nn_lp_pool2d_with(2, &lp), IN({ 'p', trek_dims(BATCH, 3, 8, 7) }));
    }
    put("lp_pool1d", trek_nn_lp_pool1d(3, 2), IN({ 'p', trek_dims(BATCH, 3, 8) }));
    put("max_pool2d_open", trek_nn_max_pool2d(2), IN(F(BATCH, 3, LENGTH, 8)));
    put("avg_pool2d_open", trek_nn_avg_pool2d(2), IN(F(BATCH, 3, LENGTH, 8)));
    put("adaptive_avg_pool1d", trek_nn_adaptive_avg_pool1d(3), IN(F(BATCH, 3, 7)));
    put("adaptive_avg_pool2d", trek_nn_adaptive_avg_pool2d(1, 1), IN(F(BATCH, 3, LENGTH, LENGTH)));
    put("adaptive_avg_pool2d_even", trek_nn_adaptive_avg_pool2d(4, 2), IN(F(BATCH, 3, 8, 6)));
    put("adaptive_avg_pool2d_odd", trek_nn_adaptive_avg_pool2d(3, 5), IN(F(BATCH, 3, 8, 7)));
    put("adaptive_avg_pool3d", trek_nn_adaptive_avg_pool3d(2, 3, 2), IN(F(BATCH, 3, 4, 5, 6)));
    put("adaptive_max_pool1d", trek_nn_adaptive_max_pool1d(2), IN(F(BATCH, 3, 8)));
    put_with("adaptive_max_pool2d_even", trek_nn_adaptive_max_pool2d(4, 2), IN(F(BATCH, 3, 8, 6)), (ends){ .n_results = 2 });
    put("adaptive_max_pool2d_odd", trek_nn_adaptive_max_pool2d(3, 5), IN(F(BATCH, 3, 8, 7)));
    put("adaptive_max_pool2d_global", trek_nn_adaptive_max_pool2d(1, 1), IN(F(BATCH, 3, LENGTH, 5)));
    put("adaptive_max_pool3d", trek_nn_adaptive_max_pool3d(2, 1, 2), IN(F(BATCH, 3, 4, 5, 6)));
    put("max_unpool2d", trek_nn_max_unpool2d(2), IN(F(BATCH, 2, 2, 2), { 's', trek_dims(BATCH, 2, 2, 2) }));
}

static void space(void)
{
    put("pixel_shuffle", trek_nn_pixel_shuffle(2), IN(F(BATCH, 8, LENGTH, 4)));
    put("pixel_unshuffle", trek_nn_pixel_unshuffle(2), IN(F(BATCH, 2, 4, 6)));
    put("channel_shuffle", trek_nn_channel_shuffle(2), IN(F(BATCH, 6, 3, LENGTH)));
    put("pad", trek_nn_pad(trek_dims(1, 0, 2, 1), TREK_PAD_MODE_CONSTANT, -1), IN(F(BATCH, 2, LENGTH, 4)));
    put("pad_reflect", trek_nn_pad(trek_dims(1, 2, 2, 1), TREK_PAD_MODE_REFLECT, 0), IN(F(BATCH, 2, LENGTH, 4)));
    trek_interpolate_opts nearest = { .scale = { 2 } }, exact = { .scale = { 3 }, .mode = TREK_INTERPOLATE_MODE_NEAREST_EXACT };
    trek_interpolate_opts linear = { .scale = { 2 }, .mode = TREK_INTERPOLATE_MODE_LINEAR };
    put("upsample_open", trek_nn_upsample(&nearest), IN(F(BATCH, 2, LENGTH, LENGTH)));
    put("upsample_open_exact", trek_nn_upsample(&exact), IN(F(BATCH, 2, LENGTH, 4)));
    put("upsample_open_linear", trek_nn_upsample(&linear), IN(F(BATCH, 2, LENGTH, 4)));
    put("unfold", trek_nn_unfold(&(trek_unfold_opts){ .kernel = { 3, 2 }, .stride = { 2, 1 }, .padding = { 1, 1 } }),
        IN(F(BATCH, 2, 6, 5)));
    put("fold", trek_nn_fold(6, 5, &(trek_unfold_opts){ .kernel = { 2, 2 } }), IN(F(BATCH, 8, 20)));
    static const struct { const char *name; trek_interpolate_opts opts; int ndim; } ups[] = {
        { "nearest", { .scale = { 2 } }, 4 }, { "nearest_size", { .size = { 5, 7 } }, 4 },
        { "nearest_exact", { .size = { 5, 7 }, .mode = TREK_INTERPOLATE_MODE_NEAREST_EXACT }, 4 },
        { "linear", { .scale = { 1.7 }, .mode = TREK_INTERPOLATE_MODE_LINEAR }, 3 },
        { "linear_2d", { .size = { 5, 9 }, .mode = TREK_INTERPOLATE_MODE_LINEAR }, 4 },
        { "linear_2d_corners", { .size = { 5, 9 }, .mode = TREK_INTERPOLATE_MODE_LINEAR, .align_corners = true }, 4 },
        { "linear_2d_scale_corners", { .scale = { 2 }, .mode = TREK_INTERPOLATE_MODE_LINEAR, .align_corners = true }, 4 },
        { "linear_3d", { .scale = { 2 }, .mode = TREK_INTERPOLATE_MODE_LINEAR }, 5 },
        { "cubic", { .scale = { 2 }, .mode = TREK_INTERPOLATE_MODE_CUBIC }, 4 },
        { "cubic_corners", { .size = { 7, 5 }, .mode = TREK_INTERPOLATE_MODE_CUBIC, .align_corners = true }, 4 },
        { "antialias", { .size = { 2, 3 }, .mode = TREK_INTERPOLATE_MODE_LINEAR, .antialias = true }, 4 },
        { "area", { .size = { 2, 3 }, .mode = TREK_INTERPOLATE_MODE_AREA }, 4 },
    };
    for (size_t k = 0; k < sizeof ups / sizeof *ups; k++) {
        char name[64];
        snprintf(name, sizeof name, "upsample_%s", ups[k].name);
        spec in = F(BATCH, 2, 4, 6, 3);
        in.shape.ndim = ups[k].ndim;
        put(name, trek_nn_upsample(&ups[k].opts), &in, 1);
    }
}

static void recurrent(void)
{
    for (int k = 0; k < 6; k++) {
        bool first = coin(), both_ways = coin(), no_bias = coin();
        int64_t layers = draw(1, 2);
        trek_lstm_opts o = { .in = 5, .hidden = 4, .layers = layers, .no_bias = no_bias, .batch_first = first,
                             .bidirectional = both_ways, .dropout = layers > 1 ? 0.5 : 0 };
        trek_rnn_opts r = { .in = 5, .hidden = 4, .layers = layers, .no_bias = no_bias, .batch_first = first,
                            .bidirectional = both_ways, .relu = coin() };
        spec x = first ? (spec)F(BATCH, LENGTH, 5) : (spec)F(LENGTH, BATCH, 5);
        spec h = F(layers * (both_ways ? 2 : 1), BATCH, 4), lengths = { coin() ? 'l' : '-', trek_dims(BATCH) };
        put_with(numbered("lstm", k), trek_nn_lstm_with(&o), IN(x), (ends){ .n_results = 3 });
        put_with(numbered("lstm_state", k), trek_nn_lstm_with(&o), IN(x, lengths, h, h), (ends){ .n_results = 3 });
        put_with(numbered("gru", k), trek_nn_gru_with(&o), IN(x), (ends){ .n_results = 2 });
        put_with(numbered("gru_state", k), trek_nn_gru_with(&o), IN(x, lengths, h), (ends){ .n_results = 2 });
        put_with(numbered("rnn", k), trek_nn_rnn_with(&r), IN(x), (ends){ .n_results = 2 });
        put_with(numbered("rnn_state", k), trek_nn_rnn_with(&r), IN(x, lengths, h), (ends){ .n_results = 2 });
    }
    trek_device cpu = trek_cpu(0);
    put_with("lstm_cell", trek_nn_lstm_cell(5, 4, cpu), IN(F(BATCH, 5), F(BATCH, 4), F(BATCH, 4)), (ends){ .n_results = 2 });
    put("gru_cell", trek_nn_gru_cell(5, 4, cpu), IN(F(BATCH, 5), F(BATCH, 4)));
    put("rnn_cell", trek_nn_rnn_cell(5, 4, cpu), IN(F(BATCH, 5), F(BATCH, 4)));
}

static void transformers(void)
{
    trek_device cpu = trek_cpu(0);
    put("attention", trek_nn_multihead_attention(8, 2, cpu), IN(F(BATCH, LENGTH, 8)));
    put("attention_causal", trek_nn_multihead_attention_with(&(trek_multihead_attention_opts){ .embed_dim = 8, .heads = 4,
                                                                                               .causal = true }),
                                                                                               IN(F(BATCH, LENGTH, 8)));
    put("attention_to", trek_nn_multihead_attention(8, 2, cpu), IN(F(BATCH, LENGTH, 8), F(BATCH, 4, 8), F(BATCH, 4, 8)));
    for (int k = 0; k < 4; k++) {
        trek_transformer_opts o = { .d_model = 8, .heads = 2, .dim_feedforward = 12,
                                    .activation = coin() ? TREK_ACTIVATION_GELU : TREK_ACTIVATION_RELU,
                                    .norm_first = coin(), .no_bias = coin(), .causal = coin(), .layers = 2,
                                    .final_norm = coin() };
        put(numbered("encoder_layer", k), trek_nn_transformer_encoder_layer_with(&o), IN(F(BATCH, LENGTH, 8)));
        put(numbered("encoder", k), trek_nn_transformer_encoder_with(&o), IN(F(BATCH, LENGTH, 8)));
        put(numbered("decoder_layer", k), trek_nn_transformer_decoder_layer_with(&o), IN(F(BATCH, LENGTH, 8), F(BATCH, 5, 8)));
        put(numbered("decoder", k), trek_nn_transformer_decoder_with(&o), IN(F(BATCH, LENGTH, 8), F(BATCH, 5, 8)));
    }
    put("embedding", trek_nn_embedding(10, 4, cpu), IN({ 'i', trek_dims(BATCH, LENGTH) }));
    put("embedding_padding", trek_nn_embedding_with(&(trek_embedding_opts){ .num = 10, .dim = 4, .padding_idx = TREK_ZERO }),
        IN({ 'i', trek_dims(BATCH) }));
    for (int k = 0; k < 3; k++) {
        trek_embedding_bag_opts o = { .num = 10, .dim = 4, .mode = (trek_reduction)k, .padding_idx = 3 };
        put(numbered("embedding_bag", k), trek_nn_embedding_bag_with(&o), IN({ 'i', trek_dims(BATCH, LENGTH) }));
        put(numbered("embedding_bag_offsets", k), trek_nn_embedding_bag_with(&o),
            IN({ 'i', trek_dims(14) }, { 'o', trek_dims(BATCH) }));
    }
    trek_embedding_bag_opts sums = { .num = 10, .dim = 4, .mode = TREK_REDUCTION_SUM };
    put("embedding_bag_weights", trek_nn_embedding_bag_with(&sums),
        IN({ 'i', trek_dims(BATCH, 4) }, { '-', trek_dims(1) }, F(BATCH, 4)));
    put("rotary", trek_nn_rotary_with(&(trek_rotary_layer_opts){ .dim = 4, .length = 64 }), IN(F(BATCH, 2, LENGTH, 6)));
    put("rotary_interleaved", trek_nn_rotary_with(&(trek_rotary_layer_opts){ .dim = 6, .length = 64, .interleaved = true }),
        IN(F(BATCH, 2, LENGTH, 6)));
    put("sinusoidal", trek_nn_sinusoidal_positions_with(&(trek_sinusoidal_positions_opts){ .dim = 6, .length = 32 }),
        IN(F(BATCH, LENGTH, 6)));
}

/* --- graphs and whole models ----------------------------------------------------------------------------- */

static trek_graph *inner_graph(void)
{
    trek_flow *flow = trek_flow_from(trek_nn_linear(6, 6, trek_cpu(0)));
    trek_flow_also(trek_flow_through(flow, trek_nn_gelu()), trek_nn_linear(6, 6, trek_cpu(0)));
    return trek_flow_build(flow);
}

static void graphs(void)
{
    trek_device cpu = trek_cpu(0);
    trek_flow *flow = trek_flow_from(trek_nn_linear(4, 6, cpu));
    trek_flow_label(flow, "first");
    trek_flow_tag(trek_flow_through(flow, trek_nn_relu()), "hidden");
    trek_flow_split(flow, (trek_module *[]){ trek_nn_linear(6, 3, cpu), trek_nn_tanh(), trek_graph_module(inner_graph()) }, 3);
    trek_flow_tag(trek_flow_merge_cat(flow, 1), "joined");
    trek_flow_input(flow, "side");
    trek_flow_using(trek_flow_through(flow, trek_nn_bilinear(15, 5, 4, cpu)), "side");
    trek_graph *graph = trek_flow_build(flow);
    put_with("graph", trek_graph_module(graph), IN(F(BATCH, 4), F(BATCH, 5)),
             (ends){ .inputs = { "input", "side" }, .outputs = { "output" },
                     .tags = (const char *const[]){ "hidden", "joined", NULL }, .n_tags = 2 });
    flow = trek_flow_from(trek_nn_conv2d(3, 4, 3, cpu));
    trek_flow_through(trek_flow_through(trek_flow_through(flow, trek_nn_batch_norm2d(4, cpu)), trek_nn_relu()),
                      trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(4 * 36, 3, cpu));
    graph = trek_flow_build(flow);
    put_with("graph_outside", trek_graph_module(graph), IN(F(BATCH, 3, 8, 8)), (ends){ .external = 1 });
}

/* A zoo model with the inputs that its loss makes. */
typedef struct closed_module {
    trek_module base;
    const zoo_model *zoo;
    trek_module *model;
} closed_module;

static trek_var *closed_forward(trek_module *self, trek_var *x)
{
    closed_module *m = (closed_module *)self;
    trek_var *output = NULL;
    (void)x;
    return m->zoo->loss(m->model, 0, &output) ? output : NULL;
}
static const trek_module_class closed_class = { .name = "closed", .size = sizeof(closed_module), .forward = closed_forward };

static void zoo(void)
{
    put("zoo_resnet18", zoo_resnet18.build(), IN(F(BATCH, 3, 64, 64)));
    put("zoo_mobilenet_v2", zoo_mobilenet_v2.build(), IN(F(BATCH, 3, 40, 40)));
    put("zoo_unet", zoo_unet.build(), IN(F(BATCH, 3, 24, 24)));
    put("zoo_vit", zoo_vit.build(), IN(F(BATCH, 3, 16, 16)));
    put("zoo_gpt2", zoo_gpt2.build(), IN({ 'i', trek_dims(BATCH, LENGTH) }));
    static const zoo_model *const others[] = { &zoo_bert, &zoo_t5, &zoo_vae, &zoo_dcgan };
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        closed_module *m = (closed_module *)trek_module_new(&closed_class);
        char name[64];
        m->zoo = others[k];
        trek_module_add(&m->base, "model", offsetof(closed_module, model), others[k]->build());
        snprintf(name, sizeof name, "zoo_%s", others[k]->name);
        put(name, trek_module_check(&m->base), IN(F(BATCH, 1)));
    }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    setenv("TREK_DEVICES", "cpu:0", 1); /* where layers are whose device is left out */
    folder = argv[1];
    state = (uint64_t)atoll(argv[2]);
    opset = atoi(argv[3]);
    trek_seed(state);
    functions();
    products();
    convolutions();
    norms();
    activations();
    pools();
    space();
    recurrent();
    transformers();
    graphs();
    zoo();
    if (failures)
        fprintf(stderr, "%d models failed otherwise than by what ONNX has not\n", failures);
    return failures != 0;
}
