/* SPDX-License-Identifier: Apache-2.0 */
/* Products, convolutions and attention. */
#include <math.h>

#include "onnx/onnx_internal.h"

static trek_dtype in_dtype(const trek_onnx *x) { return trek_onnx_in_seen(x, 0)->dtype; }

/* --- products ------------------------------------------------------------------------------------ */

static void matmul(trek_onnx *x, const char **outs)
{
    outs[0] = trek_onnx_2(x, "MatMul", trek_onnx_in(x, 0), trek_onnx_in(x, 1));
}

static const char *turned(trek_onnx *x, const char *a)
{
    const char *y = trek_onnx_1(x, "Transpose", a);
    trek_onnx_attr_ints(x, "perm", 2, (const int64_t[]){ 1, 0 });
    return y;
}

static void linear(trek_onnx *x, const char **outs)
{
    const char *a = trek_onnx_in(x, 0), *weight = trek_onnx_in(x, 1), *bias = trek_onnx_in(x, 2), *y;
    if (trek_onnx_in_seen(x, 0)->ndim == 2) {
        y = trek_onnx_3(x, "Gemm", a, weight, bias);
        trek_onnx_attr_int(x, "transB", 1);
    } else {
        y = trek_onnx_2(x, "MatMul", a, turned(x, weight));
        y = bias ? trek_onnx_2(x, "Add", y, bias) : y;
    }
    outs[1] = y; /* the value before its activation */
    outs[0] = trek_onnx_activated(x, y, in_dtype(x), (int)trek_onnx_i(x, 0));
}

/* --- convolutions ------------------------------------------------------------------------------------ */

static void convolution_numbers(trek_onnx *x, bool by_kernel)
{
    int64_t n[7];
    for (int k = 0; k < 7; k++)
        n[k] = trek_onnx_i(x, k);
    if (by_kernel)
        trek_onnx_attr_ints(x, "kernel_shape", 2, (const int64_t[]){ trek_onnx_fixed(x, 1, 2), trek_onnx_fixed(x, 1, 3) });
    trek_onnx_attr_ints(x, "strides", 2, n);
    trek_onnx_attr_ints(x, "pads", 4, (const int64_t[]){ n[2], n[3], n[2], n[3] });
    trek_onnx_attr_ints(x, "dilations", 2, n + 4);
    if (by_kernel)
        trek_onnx_attr_int(x, "group", n[6]);
}

static void conv(trek_onnx *x, const char **outs)
{
    const char *y = trek_onnx_3(x, "Conv", trek_onnx_in(x, 0), trek_onnx_in(x, 1), trek_onnx_in(x, 2));
    convolution_numbers(x, true);
    outs[0] = trek_onnx_activated(x, y, in_dtype(x), (int)trek_onnx_i(x, 7));
}

static void conv_transpose(trek_onnx *x, const char **outs)
{
    int64_t more[2] = { trek_onnx_i(x, 7), trek_onnx_i(x, 8) };
    outs[0] = trek_onnx_3(x, "ConvTranspose", trek_onnx_in(x, 0), trek_onnx_in(x, 1), trek_onnx_in(x, 2));
    convolution_numbers(x, true);
    trek_onnx_attr_ints(x, "output_padding", 2, more);
}

/* Each element of a window is the result of a kernel with a single 1. */
static void unfold(trek_onnx *x, const char **outs)
{
    int64_t h = trek_onnx_i(x, 7), w = trek_onnx_i(x, 8), c = trek_onnx_fixed(x, 0, 1), area = h * w;
    if (c > ((int64_t)1 << 26) / (area * area)) {
        trek_onnx_refuse(x, "windows of %lld elements of %lld channels", (long long)area, (long long)c);
        return;
    }
    trek_tensor *one = trek_tensor_eye(area, in_dtype(x), trek_cpu(0)), *all = NULL, *kernels = NULL;
    if (one && (all = trek_tensor_expand(one, trek_dims(c, area, area))))
        kernels = trek_tensor_reshape(all, trek_dims(c * area, 1, h, w));
    trek_tensor_release(all);
    trek_tensor_release(one);
    const char *kernel = kernels ? trek_onnx_constant(x, NULL, kernels) : "";
    trek_tensor_release(kernels);
    const char *y = trek_onnx_2(x, "Conv", trek_onnx_in(x, 0), kernel);
    convolution_numbers(x, false);
    trek_onnx_attr_int(x, "group", c);
    outs[0] = trek_onnx_2(x, "Reshape", y, trek_onnx_ints(x, 3, (const int64_t[]){ 0, c * area, -1 }));
}

static void fold(trek_onnx *x, const char **outs)
{
    int64_t kernel[2] = { trek_onnx_i(x, 7), trek_onnx_i(x, 8) }, size[2] = { trek_onnx_i(x, 9), trek_onnx_i(x, 10) };
    if (x->opset < 18)
        trek_onnx_refuse(x, "it exists from opset 18 on");
    outs[0] = trek_onnx_3(x, "Col2Im", trek_onnx_in(x, 0), trek_onnx_ints(x, 2, size), trek_onnx_ints(x, 2, kernel));
    convolution_numbers(x, false);
}

/* --- attention ------------------------------------------------------------------------------------------- */

/* Repeats each head of [B, G, S, D] as often as queries need it. */
static const char *repeated(trek_onnx *x, const char *a, int64_t heads, int64_t times)
{
    if (times == 1)
        return a;
    a = trek_onnx_2(x, "Unsqueeze", a, trek_onnx_int(x, 2));
    a = trek_onnx_2(x, "Expand", a, trek_onnx_ints(x, 5, (const int64_t[]){ 1, 1, times, 1, 1 }));
    return trek_onnx_2(x, "Reshape", a, trek_onnx_ints(x, 4, (const int64_t[]){ 0, heads, -1, 0 }));
}

/* Returns 0, 1, ... for dimension 2 of input k, as a column or a row. */
static const char *counted(trek_onnx *x, int k, int64_t axis)
{
    const char *n = trek_onnx_2(x, "Squeeze", trek_onnx_dim_of(x, trek_onnx_in(x, k), 2), trek_onnx_int(x, 0));
    const char *line = trek_onnx_3(x, "Range", trek_onnx_scalar(x, TREK_I64, 0), n, trek_onnx_scalar(x, TREK_I64, 1));
    return trek_onnx_2(x, "Unsqueeze", line, trek_onnx_int(x, axis));
}

static double lowest(trek_dtype dtype)
{
    return dtype == TREK_F16 ? -65504 : dtype == TREK_F64 ? -1.7976931348623157e308 : dtype == TREK_BF16 ? -3.3895313892515355e38
        : -3.4028234663852886e38;
}

/* Softmax over what may be seen; a query that sees no key gives 0. `seen` is bools or NULL. */
static const char *probabilities(trek_onnx *x, const char *scores, const char *seen, const char *added)
{
    trek_dtype dtype = in_dtype(x);
    const char *nothing = NULL, *zero = trek_onnx_scalar(x, dtype, 0);
    if (added) {
        scores = trek_onnx_2(x, "Add", scores, added);
        const char *most = trek_onnx_reduced(x, "ReduceMax", scores, 8, true);
        nothing = trek_onnx_2(x, "Equal", most, trek_onnx_scalar(x, dtype, -INFINITY));
    }
    if (seen)
        scores = trek_onnx_3(x, "Where", seen, scores, trek_onnx_scalar(x, dtype, lowest(dtype)));
    const char *p = trek_onnx_1(x, "Softmax", scores);
    trek_onnx_attr_int(x, "axis", -1);
    if (seen)
        p = trek_onnx_3(x, "Where", seen, p, zero);
    return nothing ? trek_onnx_3(x, "Where", nothing, zero, p) : p;
}

static void attention(trek_onnx *x, const char **outs)
{
    int64_t heads = trek_onnx_fixed(x, 0, 1), times = heads / trek_onnx_fixed(x, 1, 1);
    trek_dtype dtype = in_dtype(x);
    if (trek_onnx_f(x, 0) != 0 || trek_onnx_wanted(x, 1)) {
        trek_onnx_refuse(x, trek_onnx_wanted(x, 1) ? "its second result has no counterpart" : "dropout draws random numbers");
        return;
    }
    const char *k = repeated(x, trek_onnx_in(x, 1), heads, times), *v = repeated(x, trek_onnx_in(x, 2), heads, times);
    k = trek_onnx_1(x, "Transpose", k);
    trek_onnx_attr_ints(x, "perm", 4, (const int64_t[]){ 0, 1, 3, 2 });
    const char *q = trek_onnx_2(x, "Mul", trek_onnx_in(x, 0), trek_onnx_scalar(x, dtype, trek_onnx_f(x, 1)));
    const char *scores = trek_onnx_2(x, "MatMul", q, k), *seen = NULL, *added = NULL;
    if (trek_onnx_i(x, 4))
        seen = trek_onnx_2(x, "GreaterOrEqual", counted(x, 0, 1), counted(x, 1, 0));
    if (trek_onnx_has(x, 3) && trek_onnx_in_seen(x, 3)->dtype == TREK_BOOL)
        seen = seen ? trek_onnx_2(x, "And", seen, trek_onnx_in(x, 3)) : trek_onnx_in(x, 3);
    else if (trek_onnx_has(x, 3))
        added = trek_onnx_cast(x, trek_onnx_in(x, 3), trek_onnx_in_seen(x, 3)->dtype, dtype);
    outs[0] = trek_onnx_2(x, "MatMul", probabilities(x, scores, seen, added), v);
}

const trek_onnx_row trek_onnx_rows_products[] = {
    { TREK_OP_matmul, matmul, NULL }, { TREK_OP_linear, linear, NULL }, { TREK_OP_conv2d, conv, NULL },
    { TREK_OP_conv_transpose2d, conv_transpose, NULL }, { TREK_OP_unfold, unfold, NULL }, { TREK_OP_fold, fold, NULL },
    { TREK_OP_attention, attention, NULL },
    { 0, NULL, NULL },
};
