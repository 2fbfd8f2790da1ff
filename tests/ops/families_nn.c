/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of products, convolution, pooling, norms and cross entropy. */
#include <string.h>

#include "tests/ops/suite.h"

#define NUMBERS(...) (trek_attrs){ .i = { __VA_ARGS__ } }

static op_case pair_begin(const op_row *row, const char *label, trek_shape x, trek_shape y)
{
    op_case c = case_begin(row, label);
    case_input(&c, row, x);
    case_input(&c, row, y);
    return c;
}

static void product(const op_row *row, op_sink sink, void *arg, trek_shape x, trek_shape y, trek_status expect)
{
    op_case c = pair_begin(row, "product", x, y);
    c.expect = expect;
    c.no_gradient = x.ndim < 2 || y.ndim < 2; /* trek_matmul makes matrices of vectors before the row sees them */
    sink(row, &c, arg);
}

/* With the sums of x's rows. */
static void summed_product(const op_row *row, op_sink sink, void *arg, trek_shape x, trek_shape y, bool large)
{
    op_case c = pair_begin(row, "with sums of rows", x, y);
    c.attrs.i[0] = 2;
    c.dtypes = TREK_FLOATS;
    c.large = large;
    sink(row, &c, arg);
}

static void summed_products(const op_row *row, op_sink sink, void *arg)
{
    summed_product(row, sink, arg, trek_dims(3, 5), trek_dims(5, 4), false);
    summed_product(row, sink, arg, trek_dims(1, 3), trek_dims(3, 2), false);
    summed_product(row, sink, arg, trek_dims(3, 1), trek_dims(1, 4), false);
    summed_product(row, sink, arg, trek_dims(3, 0), trek_dims(0, 4), false);
    summed_product(row, sink, arg, trek_dims(0, 3), trek_dims(3, 4), false);
    summed_product(row, sink, arg, trek_dims(3, 4), trek_dims(4, 0), false);
    summed_product(row, sink, arg, trek_dims(67, 131), trek_dims(131, 35), true);
    summed_product(row, sink, arg, trek_dims(40, 16), trek_dims(16, 24), true);
    summed_product(row, sink, arg, trek_dims(8, 801), trek_dims(801, 17), true);
    op_case c = pair_begin(row, "sums of rows of a batch", trek_dims(2, 3, 4), trek_dims(4, 5));
    c.attrs.i[0] = 2;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
}

static void large_product(const op_row *row, op_sink sink, void *arg, trek_shape x, trek_shape y)
{
    op_case c = pair_begin(row, "large", x, y);
    c.large = true;
    sink(row, &c, arg);
}

FAMILY(matmul)
{
    product(row, sink, arg, trek_dims(3, 4), trek_dims(4, 5), TREK_OK);
    product(row, sink, arg, trek_dims(1, 4), trek_dims(4, 1), TREK_OK);
    product(row, sink, arg, trek_dims(2, 3, 4), trek_dims(2, 4, 2), TREK_OK);
    product(row, sink, arg, trek_dims(2, 3, 4), trek_dims(4, 2), TREK_OK);
    product(row, sink, arg, trek_dims(3, 4), trek_dims(2, 4, 2), TREK_OK);
    product(row, sink, arg, trek_dims(2, 1, 2, 3), trek_dims(1, 2, 3, 2), TREK_OK);
    product(row, sink, arg, trek_dims(4), trek_dims(4), TREK_OK);
    product(row, sink, arg, trek_dims(3, 4), trek_dims(4), TREK_OK);
    product(row, sink, arg, trek_dims(4), trek_dims(4, 3), TREK_OK);
    product(row, sink, arg, trek_dims(4), trek_dims(2, 4, 3), TREK_OK);
    product(row, sink, arg, trek_dims(2, 3, 4), trek_dims(4), TREK_OK);
    product(row, sink, arg, trek_dims(0, 4), trek_dims(4, 2), TREK_OK);
    product(row, sink, arg, trek_dims(3, 0), trek_dims(0, 2), TREK_OK);
    product(row, sink, arg, trek_dims(3, 4), trek_dims(3, 4), TREK_ERR_SHAPE);
    product(row, sink, arg, trek_dims(2, 3, 4), trek_dims(3, 4, 2), TREK_ERR_SHAPE);
    product(row, sink, arg, trek_dims_none(), trek_dims(4), TREK_ERR_SHAPE);
    summed_products(row, sink, arg);
    large_product(row, sink, arg, trek_dims(129, 67), trek_dims(67, 131));
    large_product(row, sink, arg, trek_dims(5, 33, 40), trek_dims(5, 40, 17));
    large_product(row, sink, arg, trek_dims(64, 300), trek_dims(300));
    large_product(row, sink, arg, trek_dims(1, 131), trek_dims(131, 75)); /* one row, few rows, sums in several parts */
    large_product(row, sink, arg, trek_dims(11, 97), trek_dims(97, 35));
    large_product(row, sink, arg, trek_dims(17, 1601), trek_dims(1601, 35));
}

static void linear_case(const op_row *row, op_sink sink, void *arg, trek_shape x, int64_t out, bool bias, int activation,
                        bool large)
{
    op_case c = pair_begin(row, "linear", x, trek_dims(out, x.sizes[x.ndim - 1]));
    if (bias)
        case_input(&c, row, trek_dims(out));
    else
        case_absent(&c);
    c.attrs.i[0] = activation;
    c.large = large;
    sink(row, &c, arg);
}

FAMILY(linear)
{
    for (int activation = TREK_ACTIVATION_NONE; activation <= TREK_ACTIVATION_GELU; activation++)
        for (int bias = 0; bias < 2; bias++) {
            linear_case(row, sink, arg, trek_dims(3, 4), 5, bias, activation, false);
            linear_case(row, sink, arg, trek_dims(2, 3, 4), 2, bias, activation, false);
            linear_case(row, sink, arg, trek_dims(4), 3, bias, activation, false);
            linear_case(row, sink, arg, trek_dims(0, 4), 3, bias, activation, false);
            linear_case(row, sink, arg, trek_dims(3, 0), 2, bias, activation, false);
            linear_case(row, sink, arg, trek_dims(1, 4), 3, bias, activation, false);
            linear_case(row, sink, arg, trek_dims(1, 1, 4), 3, bias, activation, false);
            linear_case(row, sink, arg, trek_dims(0, 5, 4), 3, bias, activation, false);
            linear_case(row, sink, arg, trek_dims(5, 0, 4), 3, bias, activation, false);
            linear_case(row, sink, arg, trek_dims(3, 2, 0), 4, bias, activation, false);
            linear_case(row, sink, arg, trek_dims(3, 2, 2), 0, bias, activation, false);
            linear_case(row, sink, arg, trek_dims(129, 65), 131, bias, activation, true);
            linear_case(row, sink, arg, trek_dims(1, 131), 75, bias, activation, true);
            linear_case(row, sink, arg, trek_dims(11, 97), 35, bias, activation, true);
            linear_case(row, sink, arg, trek_dims(17, 801), 35, bias, activation, true);
        }
    op_case c = pair_begin(row, "widths differ", trek_dims(3, 4), trek_dims(5, 3));
    case_absent(&c);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = pair_begin(row, "bias does not fit", trek_dims(3, 4), trek_dims(5, 4));
    case_input(&c, row, trek_dims(4));
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
}

/* --- convolution ----------------------------------------------------------------- */

typedef struct conv_shape {
    int64_t n, channels, height, width, out, kh, kw;
    trek_attrs attrs;
    bool large;
} conv_shape;

/* stride, padding, dilation (h, w each), groups */
static const conv_shape conv_shapes[] = {
    { 2, 2, 5, 5, 3, 3, 3, { .i = { 1, 1, 0, 0, 1, 1, 1 } }, false },
    { 1, 3, 5, 6, 2, 3, 2, { .i = { 2, 1, 1, 2, 1, 1, 1 } }, false },
    { 2, 4, 6, 5, 4, 3, 3, { .i = { 1, 1, 1, 1, 1, 1, 2 } }, false },
    { 1, 4, 5, 5, 8, 3, 3, { .i = { 1, 2, 1, 1, 1, 1, 4 } }, false },
    { 1, 1, 7, 7, 2, 3, 3, { .i = { 1, 1, 2, 2, 2, 2, 1 } }, false },
    { 3, 5, 3, 4, 4, 1, 1, { .i = { 1, 1, 0, 0, 1, 1, 1 } }, false },
    { 2, 2, 4, 4, 3, 4, 4, { .i = { 1, 1, 0, 0, 1, 1, 1 } }, false },
    { 0, 2, 4, 4, 3, 3, 3, { .i = { 1, 1, 0, 0, 1, 1, 1 } }, false },
    { 2, 1, 6, 6, 2, 2, 2, { .i = { 3, 3, 0, 0, 1, 1, 1 } }, false },
    { 2, 2, 6, 8, 3, 4, 4, { .i = { 2, 2, 1, 1, 1, 1, 1 } }, false },
    { 1, 4, 8, 7, 2, 3, 2, { .i = { 3, 2, 1, 0, 2, 3, 2 } }, false },
    { 1, 0, 4, 4, 3, 3, 3, { .i = { 1, 1, 0, 0, 1, 1, 1 } }, false },
    { 2, 2, 4, 4, 0, 3, 3, { .i = { 1, 1, 1, 1, 1, 1, 1 } }, false },
    { 3, 16, 8, 8, 32, 4, 4, { .i = { 2, 2, 1, 1, 1, 1, 1 } }, true },
    { 2, 3, 16, 16, 20, 4, 4, { .i = { 2, 2, 1, 1, 1, 1, 1 } }, true },
    { 18, 32, 16, 16, 48, 4, 4, { .i = { 2, 2, 1, 1, 1, 1, 1 } }, true },
    { 4, 3, 17, 19, 20, 3, 3, { .i = { 1, 1, 1, 1, 1, 1, 1 } }, true },
    { 3, 1, 28, 28, 6, 5, 5, { .i = { 1, 1, 2, 2, 1, 1, 1 } }, true },
    { 2, 16, 12, 11, 32, 3, 3, { .i = { 2, 2, 1, 1, 1, 1, 1 } }, true },
    { 2, 32, 9, 9, 32, 3, 3, { .i = { 1, 1, 1, 1, 1, 1, 32 } }, true },
    { 2, 64, 8, 8, 33, 1, 1, { .i = { 1, 1, 0, 0, 1, 1, 1 } }, true },
    { 5, 32, 20, 20, 48, 3, 3, { .i = { 1, 1, 1, 1, 1, 1, 1 } }, true },
    { 5, 32, 22, 21, 48, 3, 3, { .i = { 1, 1, 0, 0, 1, 1, 1 } }, true },
    { 40, 64, 4, 4, 64, 3, 3, { .i = { 1, 1, 1, 1, 1, 1, 1 } }, true },
    { 4, 6, 12, 12, 16, 5, 5, { .i = { 1, 1, 0, 0, 1, 1, 1 } }, true }, /* few images: bands of them */
    { 4, 16, 8, 8, 6, 5, 5, { .i = { 1, 1, 4, 4, 1, 1, 1 } }, true },
    { 1, 3, 19, 9, 7, 3, 3, { .i = { 1, 1, 1, 1, 1, 1, 1 } }, true },
    { 3, 4, 11, 10, 6, 3, 2, { .i = { 2, 1, 3, 1, 1, 2, 2 } }, true },
    { 6, 2, 7, 7, 3, 3, 3, { .i = { 2, 2, 1, 0, 2, 1, 1 } }, true },
};
enum { CONV_SHAPES = sizeof conv_shapes / sizeof conv_shapes[0] };

static trek_shape conv_x(const conv_shape *s)
{
    return trek_dims(s->n, s->channels, s->height, s->width);
}

static trek_shape conv_w(const conv_shape *s)
{
    return trek_dims(s->out, s->channels / s->attrs.i[6], s->kh, s->kw);
}

static int64_t window_count(int64_t size, int64_t kernel, const trek_attrs *a, int side)
{
    return (size + 2 * a->i[2 + side] - a->i[4 + side] * (kernel - 1) - 1) / a->i[side] + 1;
}

static trek_shape conv_y(const conv_shape *s)
{
    return trek_dims(s->n, s->out, window_count(s->height, s->kh, &s->attrs, 0), window_count(s->width, s->kw, &s->attrs, 1));
}

FAMILY(conv)
{
    op_case c;
    for (int k = 0; k < CONV_SHAPES; k++)
        for (int way = 0; way < 4; way++) { /* a bias, ReLU */
            const conv_shape *s = &conv_shapes[k];
            c = pair_begin(row, "convolution", conv_x(s), conv_w(s));
            if (way & 1)
                case_input(&c, row, trek_dims(s->out));
            else
                case_absent(&c);
            c.attrs = s->attrs;
            c.attrs.i[7] = way & 2 ? TREK_ACTIVATION_RELU : TREK_ACTIVATION_NONE;
            c.large = s->large;
            sink(row, &c, arg);
        }
    const trek_shape bad[][2] = { { trek_dims(1, 3, 5, 5), trek_dims(2, 2, 3, 3) }, { trek_dims(3, 5, 5), trek_dims(2, 3, 3, 3) },
                                  { trek_dims(1, 2, 2, 2), trek_dims(2, 2, 3, 3) } };
    for (int k = 0; k < 3; k++) {
        c = pair_begin(row, "does not fit", bad[k][0], bad[k][1]);
        case_absent(&c);
        c.attrs = conv_shapes[0].attrs;
        c.expect = TREK_ERR_SHAPE;
        sink(row, &c, arg);
    }
    c = pair_begin(row, "an activation of another op", trek_dims(1, 2, 5, 5), trek_dims(2, 2, 3, 3));
    case_absent(&c);
    c.attrs = conv_shapes[0].attrs;
    c.attrs.i[7] = TREK_ACTIVATION_GELU;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
    c = pair_begin(row, "stride 0", trek_dims(1, 2, 5, 5), trek_dims(2, 2, 3, 3));
    case_absent(&c);
    c.attrs = conv_shapes[0].attrs;
    c.attrs.i[0] = -1;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
}

/* The input is what a convolution gives of these shapes; the rest of a stride is output padding, or the size is asked for. */
static void transposed_case(const op_row *row, op_sink sink, void *arg, const conv_shape *s, bool bias, bool by_size)
{
    op_case c = pair_begin(row, by_size ? "output size" : "transposed", conv_y(s), conv_w(s));
    if (bias)
        case_input(&c, row, trek_dims(s->channels));
    else
        case_absent(&c);
    c.attrs = s->attrs;
    c.large = s->large;
    const int64_t sizes[2] = { s->height, s->width }, kernel[2] = { s->kh, s->kw };
    for (int d = 0; d < 2; d++) {
        const int64_t *i = s->attrs.i;
        c.attrs.i[7 + d] = by_size ? 0 : (sizes[d] + 2 * i[2 + d] - i[4 + d] * (kernel[d] - 1) - 1) % i[d];
        c.attrs.i[9 + d] = by_size ? sizes[d] : 0;
    }
    sink(row, &c, arg);
}

static void transposed_bad(const op_row *row, op_sink sink, void *arg, const char *label, trek_shape x, trek_shape w,
                           trek_attrs attrs, trek_status expect)
{
    op_case c = pair_begin(row, label, x, w);
    case_absent(&c);
    c.attrs = attrs;
    c.expect = expect;
    sink(row, &c, arg);
}

FAMILY(conv_transpose)
{
    const trek_shape x = trek_dims(2, 4, 3, 3), w = trek_dims(4, 3, 3, 3);
    for (int k = 0; k < CONV_SHAPES; k++)
        for (int bias = 0; bias < 2; bias++)
            transposed_case(row, sink, arg, &conv_shapes[k], bias, k % 2 == bias);
    transposed_bad(row, sink, arg, "channels differ", trek_dims(2, 3, 3, 3), w, NUMBERS(1, 1, 0, 0, 1, 1, 1), TREK_ERR_SHAPE);
    transposed_bad(row, sink, arg, "three dimensions", trek_dims(4, 3, 3), w, NUMBERS(1, 1, 0, 0, 1, 1, 1), TREK_ERR_SHAPE);
    transposed_bad(row, sink, arg, "groups", x, w, NUMBERS(1, 1, 0, 0, 1, 1, 3), TREK_ERR_SHAPE);
    transposed_bad(row, sink, arg, "no groups", x, w, NUMBERS(1, 1, 0, 0, 1, 1, -1), TREK_ERR_ARGUMENT);
    transposed_bad(row, sink, arg, "stride", x, w, NUMBERS(1, -1, 0, 0, 1, 1, 1), TREK_ERR_ARGUMENT);
    transposed_bad(row, sink, arg, "empty kernel", x, trek_dims(4, 3, 0, 3), NUMBERS(1, 1, 0, 0, 1, 1, 1), TREK_ERR_SHAPE);
    transposed_bad(row, sink, arg, "no pixels", trek_dims(2, 4, 0, 3), w, NUMBERS(1, 1, 0, 0, 1, 1, 1), TREK_ERR_SHAPE);
    transposed_bad(row, sink, arg, "empty", trek_dims(2, 4, 1, 1), w, NUMBERS(1, 1, 2, 2, 1, 1, 1), TREK_ERR_SHAPE);
    transposed_bad(row, sink, arg, "output padding", x, w, NUMBERS(2, 2, 0, 0, 1, 1, 1, 0, 2), TREK_ERR_ARGUMENT);
    transposed_bad(row, sink, arg, "output padding below 0", x, w, NUMBERS(2, 2, 0, 0, 1, 1, 1, -1, 0), TREK_ERR_ARGUMENT);
    transposed_bad(row, sink, arg, "small output size", x, w, NUMBERS(2, 2, 0, 0, 1, 1, 1, 0, 0, 6, 7), TREK_ERR_ARGUMENT);
    transposed_bad(row, sink, arg, "large output size", x, w, NUMBERS(2, 2, 0, 0, 1, 1, 1, 0, 0, 7, 9), TREK_ERR_ARGUMENT);
}

static void conv_gradient_cases(const op_row *row, op_sink sink, void *arg, bool of_input)
{
    for (int k = 0; k < CONV_SHAPES; k++) {
        const conv_shape *s = &conv_shapes[k];
        trek_shape result = of_input ? conv_x(s) : conv_w(s);
        op_case c = pair_begin(row, "gradient", conv_y(s), of_input ? conv_w(s) : conv_x(s));
        c.attrs = s->attrs;
        memcpy(&c.attrs.i[7], result.sizes, 4 * sizeof(int64_t));
        c.large = s->large;
        sink(row, &c, arg);
        c.attrs.i[11] = 3; /* what it is the gradient of lies channels last */
        sink(row, &c, arg);
        if (k > 0)
            continue;
        c.in[0].shape.sizes[2]++;
        c.expect = TREK_ERR_SHAPE;
        sink(row, &c, arg);
    }
}

FAMILY(conv_input_grad)
{
    conv_gradient_cases(row, sink, arg, true);
}

FAMILY(conv_weight_grad)
{
    conv_gradient_cases(row, sink, arg, false);
}

FAMILY(unfold)
{
    for (int k = 0; k < CONV_SHAPES; k++) {
        const conv_shape *s = &conv_shapes[k];
        op_case c = case_begin(row, "columns");
        case_input(&c, row, conv_x(s));
        c.attrs = s->attrs;
        c.attrs.i[7] = s->kh;
        c.attrs.i[8] = s->kw;
        c.large = s->large;
        sink(row, &c, arg);
        if (k > 0)
            continue;
        c.attrs.i[7] = 9;
        c.expect = TREK_ERR_SHAPE;
        sink(row, &c, arg);
    }
}

FAMILY(fold)
{
    for (int k = 0; k < CONV_SHAPES; k++) {
        const conv_shape *s = &conv_shapes[k];
        trek_shape y = conv_y(s);
        op_case c = case_begin(row, "columns");
        case_input(&c, row, trek_dims(s->n, s->channels * s->kh * s->kw, y.sizes[2] * y.sizes[3]));
        c.attrs = s->attrs;
        c.attrs.i[7] = s->kh;
        c.attrs.i[8] = s->kw;
        c.attrs.i[9] = s->height;
        c.attrs.i[10] = s->width;
        c.large = s->large;
        sink(row, &c, arg);
        if (k > 0)
            continue;
        c.in[0].shape.sizes[1]++;
        c.expect = TREK_ERR_SHAPE;
        sink(row, &c, arg);
    }
}

/* --- pooling ----------------------------------------------------------------------- */

/* kernel, stride, padding, dilation (h, w each), ceil_mode, count_include_pad; sizes of x and y */
static const struct pool_shape {
    trek_attrs attrs;
    int64_t n, channels, height, width, rows, columns;
    bool max_only, large; /* large: no finite differences, of -infinity either */
} pool_shapes[] = {
    { { .i = { 2, 2, 2, 2, 0, 0, 1, 1, 0, 1 } }, 2, 2, 4, 6, 2, 3, false, false },
    { { .i = { 3, 2, 2, 1, 1, 1, 1, 1, 0, 1 } }, 1, 2, 5, 4, 3, 5, false, false },
    { { .i = { 3, 2, 2, 1, 1, 1, 1, 1, 0, 0 } }, 1, 2, 5, 4, 3, 5, false, false },
    { { .i = { 3, 3, 2, 2, 1, 1, 1, 1, 1, 1 } }, 1, 1, 6, 6, 4, 4, false, false },
    { { .i = { 3, 3, 2, 2, 0, 0, 1, 1, 1, 0 } }, 1, 1, 6, 5, 3, 2, false, false },
    { { .i = { 2, 2, 3, 3, 1, 1, 1, 1, 1, 1 } }, 1, 1, 5, 5, 2, 2, false, false },
    { { .i = { 2, 2, 1, 1, 0, 0, 2, 2, 0, 1 } }, 1, 2, 5, 5, 3, 3, true, false },
    { { .i = { 3, 3, 3, 3, 0, 0, 1, 1, 1, 1 } }, 2, 2, 1, 2, 1, 1, false, false }, /* the only window is larger than x */
    { { .i = { 4, 4, 2, 2, 1, 1, 1, 1, 1, 1 } }, 1, 2, 1, 3, 1, 2, false, false },
    { { .i = { 3, 3, 1, 1, 0, 0, 1, 1, 0, 1 } }, 0, 2, 5, 5, 3, 3, false, false },
    { { .i = { 2, 2, 2, 2, 0, 0, 1, 1, 0, 1 } }, 8, 16, 24, 24, 12, 12, false, true },
    { { .i = { 3, 3, 2, 2, 1, 1, 1, 1, 0, 1 } }, 4, 20, 29, 31, 15, 16, false, true },
    { { .i = { 2, 2, 3, 3, 1, 1, 1, 2, 1, 1 } }, 2, 3, 5, 1, 2, 1, true, true }, /* windows wholly in the padding */
    { { .i = { 3, 2, 1, 1, 1, 1, 3, 2, 0, 1 } }, 2, 3, 6, 3, 2, 3, true, false },
};
enum { POOL_SHAPES = sizeof pool_shapes / sizeof pool_shapes[0] };

static void pool_cases(const op_row *row, op_sink sink, void *arg, bool is_max)
{
    op_case c;
    for (int k = 0; k < POOL_SHAPES; k++) {
        const struct pool_shape *s = &pool_shapes[k];
        if (s->max_only && !is_max)
            continue;
        c = case_begin(row, "pool");
        case_input(&c, row, trek_dims(s->n, s->channels, s->height, s->width));
        c.attrs = s->attrs;
        c.large = s->large;
        sink(row, &c, arg);
    }
    c = case_begin(row, "kernel too large");
    case_input(&c, row, trek_dims(1, 1, 2, 2));
    c.attrs = NUMBERS(3, 3, 1, 1, 0, 0, 1, 1, 0, 1);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c.attrs.i[8] = 1;
    sink(row, &c, arg);
    c.in[0].shape = trek_dims(1, 1, 0, 5);
    c.attrs = NUMBERS(2, 2, 1, 1, 1, 1, 1, 1, 0, 1);
    sink(row, &c, arg);
    c.attrs = NUMBERS(3, 3, 1, 1, 0, 0, 1, 1, 0, 1);
    c.in[0].shape = trek_dims(2, 5);
    sink(row, &c, arg);
    c.in[0].shape = trek_dims(1, 1, 5, 5);
    c.attrs.i[4] = 2;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
}

FAMILY(max_pool)
{
    pool_cases(row, sink, arg, true);
}

FAMILY(avg_pool)
{
    pool_cases(row, sink, arg, false);
}

FAMILY(max_pool_backward)
{
    for (int large = 0; large < 2; large++) {
        trek_shape from = large ? trek_dims(8, 10, 14, 14) : trek_dims(2, 2, 3, 2);
        op_case c = case_begin(row, "places");
        case_input(&c, row, from);
        case_typed(&c, D_INDEX, TREK_I64, from, large ? 28 * 28 : 20);
        c.attrs = large ? NUMBERS(4, 8, 10, 28, 28) : NUMBERS(4, 2, 2, 5, 4);
        c.large = large;
        sink(row, &c, arg);
        c.in[1].shape.sizes[3]++;
        c.expect = TREK_ERR_SHAPE;
        sink(row, &c, arg);
    }
}

FAMILY(avg_pool_backward)
{
    for (int k = 0; k < POOL_SHAPES; k++) {
        const struct pool_shape *s = &pool_shapes[k];
        if (s->max_only)
            continue;
        op_case c = case_begin(row, "pool");
        case_input(&c, row, trek_dims(s->n, s->channels, s->rows, s->columns));
        c.attrs = s->attrs;
        c.attrs.i[10] = s->height;
        c.attrs.i[11] = s->width;
        c.large = s->large;
        sink(row, &c, arg);
        if (k > 0)
            continue;
        c.in[0].shape.sizes[2]++;
        c.expect = TREK_ERR_SHAPE;
        sink(row, &c, arg);
    }
}

static void adaptive_cases(const op_row *row, op_sink sink, void *arg, bool backward)
{
    static const int64_t sizes[][4] = { { 6, 6, 3, 3 }, { 5, 7, 3, 2 }, { 4, 4, 1, 1 }, { 2, 3, 4, 5 }, { 31, 29, 7, 8 } };
    for (int k = 0; k < 5; k++) {
        const int64_t *s = sizes[k];
        op_case c = case_begin(row, "adaptive");
        case_input(&c, row, trek_dims(k == 4 ? 5 : 2, k == 4 ? 16 : 2, backward ? s[2] : s[0], backward ? s[3] : s[1]));
        c.attrs = backward ? NUMBERS(s[0], s[1]) : NUMBERS(s[2], s[3]);
        c.large = k == 4;
        sink(row, &c, arg);
    }
    op_case c = case_begin(row, "three dimensions");
    case_input(&c, row, trek_dims(2, 4, 4));
    c.attrs = NUMBERS(2, 2);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c.in[0].shape = trek_dims(1, 2, 4, 4);
    c.attrs = NUMBERS(0, 2);
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
}

FAMILY(adaptive)
{
    adaptive_cases(row, sink, arg, false);
}

FAMILY(adaptive_backward)
{
    adaptive_cases(row, sink, arg, true);
}

/* --- norms --------------------------------------------------------------------------- */

/* Of `given`: parameters in f32 where the input has 16 bits. */
enum { WIDE = 16 };

static void layer_case(const op_row *row, op_sink sink, void *arg, trek_shape x, int dims, int given, trek_status expect,
                       bool large)
{
    op_case c = case_begin(row, "layer");
    trek_shape tail = trek_shape_make(x.sizes + (dims < x.ndim ? x.ndim - dims : 0), dims < x.ndim ? dims : x.ndim);
    case_input(&c, row, x);
    for (int k = 0; k < 2; k++) {
        if (given >> k & 1)
            case_typed(&c, row->domain[1 + k], given & WIDE ? DTYPE_STATISTICS : DTYPE_ROW, tail, 0);
        else
            case_absent(&c);
    }
    c.attrs.i[0] = dims;
    c.attrs.f[0] = 1e-5;
    c.expect = expect;
    c.large = large;
    sink(row, &c, arg);
}

FAMILY(layer_norm)
{
    for (int given = 0; given < 4; given++) {
        layer_case(row, sink, arg, trek_dims(4, 6), 1, given, TREK_OK, false);
        layer_case(row, sink, arg, trek_dims(3, 2, 4), 2, given, TREK_OK, false);
        layer_case(row, sink, arg, trek_dims(5), 1, given, TREK_OK, false);
        layer_case(row, sink, arg, trek_dims(0, 6), 1, given, TREK_OK, false);
        layer_case(row, sink, arg, trek_dims(1, 6), 1, given, TREK_OK, false);
        layer_case(row, sink, arg, trek_dims(3, 1), 1, given, TREK_OK, false);
        layer_case(row, sink, arg, trek_dims(3, 0), 1, given, TREK_OK, false);
        layer_case(row, sink, arg, trek_dims(130, 517), 1, given, TREK_OK, true);
        layer_case(row, sink, arg, trek_dims(4, 6), 1, given | WIDE, TREK_OK, false);
        layer_case(row, sink, arg, trek_dims(130, 520), 1, given | WIDE, TREK_OK, true);
    }
    layer_case(row, sink, arg, trek_dims(4, 6), 3, 0, TREK_ERR_ARGUMENT, false);
    layer_case(row, sink, arg, trek_dims(4, 6), 0, 0, TREK_ERR_ARGUMENT, false);
    op_case c = case_begin(row, "weight does not fit");
    case_input(&c, row, trek_dims(4, 6));
    case_input(&c, row, trek_dims(5));
    case_absent(&c);
    c.attrs.i[0] = 1;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
}

static void norm_gradient_case(const op_row *row, op_sink sink, void *arg, trek_shape x, int64_t groups, trek_shape weight,
                               int weighted, int64_t number, bool large)
{
    op_case c = case_begin(row, "gradient");
    case_input(&c, row, x);
    case_input(&c, row, x);
    case_typed(&c, D_ANY, DTYPE_STATISTICS, trek_dims(groups), 0);
    case_typed(&c, D_RSTD, DTYPE_STATISTICS, trek_dims(groups), 0);
    if (weighted)
        case_typed(&c, D_ANY, weighted & WIDE ? DTYPE_STATISTICS : DTYPE_ROW, weight, 0);
    else
        case_absent(&c);
    c.attrs.i[0] = number;
    c.large = large;
    sink(row, &c, arg);
    if (!large) {
        c.in[0].shape.sizes[0]++;
        c.expect = TREK_ERR_SHAPE;
        sink(row, &c, arg);
    }
}

FAMILY(layer_norm_backward)
{
    static const int weights[] = { 0, 1, WIDE };
    for (int k = 0; k < 3; k++) {
        int weighted = weights[k];
        norm_gradient_case(row, sink, arg, trek_dims(4, 6), 4, trek_dims(6), weighted, 1, false);
        norm_gradient_case(row, sink, arg, trek_dims(3, 2, 4), 3, trek_dims(2, 4), weighted, 2, false);
        norm_gradient_case(row, sink, arg, trek_dims(520, 131), 520, trek_dims(131), weighted, 1, true);
        norm_gradient_case(row, sink, arg, trek_dims(70, 264), 70, trek_dims(264), weighted, 1, true);
    }
}

static void group_case(const op_row *row, op_sink sink, void *arg, trek_shape x, int64_t groups, int given, trek_status expect,
                       bool large)
{
    op_case c = case_begin(row, "group");
    case_input(&c, row, x);
    for (int k = 0; k < 2; k++) {
        if (given >> k & 1)
            case_typed(&c, row->domain[1 + k], given & WIDE ? DTYPE_STATISTICS : DTYPE_ROW,
                       trek_dims(x.ndim > 1 ? x.sizes[1] : 1), 0);
        else
            case_absent(&c);
    }
    c.attrs.i[0] = groups;
    c.attrs.f[0] = 1e-5;
    c.expect = expect;
    c.large = large;
    sink(row, &c, arg);
}

FAMILY(group_norm)
{
    for (int given = 0; given < 8; given++) { /* the third bit: f32 beside 16 bits */
        int all = (given & 3) | (given & 4 ? WIDE : 0);
        group_case(row, sink, arg, trek_dims(2, 6, 3, 2), 2, all, TREK_OK, false);
        group_case(row, sink, arg, trek_dims(3, 4, 5), 4, all, TREK_OK, false);
        group_case(row, sink, arg, trek_dims(5, 6), 3, all, TREK_OK, false);
        group_case(row, sink, arg, trek_dims(1, 3, 7), 1, all, TREK_OK, false);
        group_case(row, sink, arg, trek_dims(0, 4, 2), 2, all, TREK_OK, false);
        group_case(row, sink, arg, trek_dims(2, 4, 0), 2, all, TREK_OK, false);
        group_case(row, sink, arg, trek_dims(9, 16, 21, 23), 4, all, TREK_OK, true);
        group_case(row, sink, arg, trek_dims(300, 200), 8, all, TREK_OK, true);
        group_case(row, sink, arg, trek_dims(3, 340, 9), 2, all, TREK_OK, true);
        group_case(row, sink, arg, trek_dims(2, 3, 65, 65), 3, all, TREK_OK, true);
    }
    group_case(row, sink, arg, trek_dims(5), 1, 0, TREK_ERR_SHAPE, false);
    group_case(row, sink, arg, trek_dims(4, 6), 4, 0, TREK_ERR_ARGUMENT, false);
    group_case(row, sink, arg, trek_dims(4, 6), 0, 0, TREK_ERR_ARGUMENT, false);
    group_case(row, sink, arg, trek_dims(1, 3), 3, 0, TREK_ERR_SHAPE, false);
}

FAMILY(group_norm_backward)
{
    static const int weights[] = { 0, 1, WIDE };
    for (int k = 0; k < 3; k++) {
        int weighted = weights[k];
        norm_gradient_case(row, sink, arg, trek_dims(2, 6, 3, 2), 4, trek_dims(6), weighted, 2, false);
        norm_gradient_case(row, sink, arg, trek_dims(5, 3), 15, trek_dims(3), weighted, 3, false);
        norm_gradient_case(row, sink, arg, trek_dims(4, 8, 7, 16), 8, trek_dims(8), weighted, 2, true);
        norm_gradient_case(row, sink, arg, trek_dims(1, 16, 16, 17), 16, trek_dims(16), weighted, 16, true);
        norm_gradient_case(row, sink, arg, trek_dims(2, 300, 2), 6, trek_dims(300), weighted, 3, true);
        norm_gradient_case(row, sink, arg, trek_dims(2, 1, 65, 65), 2, trek_dims(1), weighted, 1, true);
    }
}

static void batch_case(const op_row *row, op_sink sink, void *arg, trek_shape x, int given, bool training, trek_status expect,
                       bool large)
{
    op_case c = case_begin(row, "batch");
    trek_shape channels = trek_dims(x.ndim > 1 ? x.sizes[1] : 1);
    case_input(&c, row, x);
    for (int k = 0; k < 2; k++) {
        if (given >> k & 1)
            case_typed(&c, row->domain[1 + k], given & WIDE ? DTYPE_STATISTICS : DTYPE_ROW, channels, 0);
        else
            case_absent(&c);
    }
    for (int k = 0; k < 2; k++) {
        if (given >> 2 & 1) {
            case_typed(&c, k ? D_RSTD : D_ANY, DTYPE_STATISTICS, channels, 0);
            c.in[c.n - 1].plain = true;
        } else {
            case_absent(&c);
        }
    }
    c.attrs.i[0] = training;
    c.attrs.f[0] = 0.1;
    c.attrs.f[1] = 1e-5;
    c.expect = expect;
    c.large = large;
    sink(row, &c, arg);
}

FAMILY(batch_norm)
{
    for (int given = 0; given < 8; given++)
        for (int training = 0; training < 2; training++) {
            if (!training && given < 4)
                continue;
            batch_case(row, sink, arg, trek_dims(5, 3), given, training, TREK_OK, false);
            batch_case(row, sink, arg, trek_dims(5, 3), given | WIDE, training, TREK_OK, false);
            batch_case(row, sink, arg, trek_dims(2, 3, 2, 2), given, training, TREK_OK, false);
            batch_case(row, sink, arg, trek_dims(3, 2, 4), given, training, TREK_OK, false);
            batch_case(row, sink, arg, trek_dims(9, 16, 21, 23), given, training, TREK_OK, true);
            batch_case(row, sink, arg, trek_dims(700, 100), given, training, TREK_OK, true);
            batch_case(row, sink, arg, trek_dims(2, 300, 1, 3), given, training, TREK_OK, true);
            batch_case(row, sink, arg, trek_dims(2, 2, 65, 65), given, training, TREK_OK, true);
        }
    batch_case(row, sink, arg, trek_dims(5), 0, true, TREK_ERR_SHAPE, false);
    batch_case(row, sink, arg, trek_dims(1, 3), 0, true, TREK_ERR_SHAPE, false);
    batch_case(row, sink, arg, trek_dims(4, 3), 0, false, TREK_ERR_ARGUMENT, false);
}

FAMILY(batch_norm_backward)
{
    static const int weights[] = { 0, 1, WIDE };
    for (int k = 0; k < 3; k++)
        for (int training = 0; training < 2; training++) {
            int weighted = weights[k];
            norm_gradient_case(row, sink, arg, trek_dims(5, 3), 3, trek_dims(3), weighted, training, false);
            norm_gradient_case(row, sink, arg, trek_dims(2, 3, 2, 2), 3, trek_dims(3), weighted, training, false);
            norm_gradient_case(row, sink, arg, trek_dims(4, 8, 7, 6), 8, trek_dims(8), weighted, training, true);
            norm_gradient_case(row, sink, arg, trek_dims(1, 16, 16, 17), 16, trek_dims(16), weighted, training, true);
            norm_gradient_case(row, sink, arg, trek_dims(2, 300, 2), 300, trek_dims(300), weighted, training, true);
        }
}

/* --- cross entropy --------------------------------------------------------------------- */

typedef struct entropy_options {
    int64_t ignore;
    trek_reduction reduction;
    double smoothing;
    bool weighted;
    int label_dtype;
} entropy_options;

static const entropy_options entropies[] = {
    { -100, TREK_REDUCTION_MEAN, 0, false, TREK_I64 }, { -100, TREK_REDUCTION_SUM, 0, false, TREK_I32 },
    { -100, TREK_REDUCTION_NONE, 0, false, TREK_U8 },  { 1, TREK_REDUCTION_MEAN, 0, false, TREK_I64 },
    { 1, TREK_REDUCTION_NONE, 0, true, TREK_I64 },     { -100, TREK_REDUCTION_MEAN, 0.1, false, TREK_I64 },
    { -100, TREK_REDUCTION_MEAN, 0.2, true, TREK_I64 }, { 0, TREK_REDUCTION_SUM, 0.3, true, TREK_U8 },
    { -100, TREK_REDUCTION_MEAN, 0, true, TREK_I32 },
};
enum { ENTROPIES = sizeof entropies / sizeof entropies[0] };

static void entropy_attrs(op_case *c, const entropy_options *e)
{
    c->attrs.i[0] = e->ignore;
    c->attrs.i[1] = e->reduction;
    c->attrs.f[0] = e->smoothing;
}

static op_case entropy_case(const op_row *row, const entropy_options *e, int64_t rows, int64_t classes)
{
    op_case c = case_begin(row, "classes");
    case_input(&c, row, trek_dims(rows, classes));
    case_typed(&c, D_INDEX, e->label_dtype, trek_dims(rows), classes);
    if (e->weighted)
        case_typed(&c, D_RSTD, -1, trek_dims(classes), 0);
    else
        case_absent(&c);
    entropy_attrs(&c, e);
    return c;
}

FAMILY(cross_entropy)
{
    op_case c;
    for (int k = 0; k < ENTROPIES; k++) {
        c = entropy_case(row, &entropies[k], 5, 4);
        sink(row, &c, arg);
        c = entropy_case(row, &entropies[k], 0, 4);
        c.no_gradient = true;
        sink(row, &c, arg);
        c = entropy_case(row, &entropies[k], 520, 130);
        c.large = true;
        sink(row, &c, arg);
    }
    c = entropy_case(row, &entropies[0], 5, 4);
    c.in[1].shape = trek_dims(4);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = entropy_case(row, &entropies[0], 64, 4);
    c.in[1].limit = 9;
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
    c = entropy_case(row, &entropies[0], 5, 4);
    c.in[1].dtype = TREK_F32;
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
    c = entropy_case(row, &entropies[0], 5, 4);
    c.attrs.f[0] = 1.5;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
}

FAMILY(cross_entropy_backward)
{
    for (int k = 0; k < ENTROPIES; k++)
        for (int large = 0; large < 2; large++) {
            const entropy_options *e = &entropies[k];
            int64_t rows = large ? 520 : 5, classes = large ? 130 : 4;
            op_case c = case_begin(row, "classes");
            case_input(&c, row, e->reduction == TREK_REDUCTION_NONE ? trek_dims(rows) : trek_dims_none());
            case_input(&c, row, trek_dims(rows, classes));
            case_typed(&c, D_INDEX, e->label_dtype, trek_dims(rows), classes);
            if (e->weighted)
                case_typed(&c, D_RSTD, -1, trek_dims(classes), 0);
            else
                case_absent(&c);
            case_typed(&c, D_POSITIVE, TREK_F64, trek_dims(rows), 0);
            case_typed(&c, D_POSITIVE, DTYPE_STATISTICS, trek_dims_none(), 0);
            entropy_attrs(&c, e);
            c.large = large;
            sink(row, &c, arg);
            if (k > 0 || large)
                continue;
            c.in[2].shape = trek_dims(rows + 1);
            c.expect = TREK_ERR_SHAPE;
            sink(row, &c, arg);
        }
}
