/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of element-wise rows, reductions and rows that run along a dimension. */
#include <math.h>

#include "tests/ops/suite.h"

#define SCALAR_SHAPE trek_dims_none()

static void one_input(const op_row *row, op_sink sink, void *arg, const char *label, trek_shape shape)
{
    op_case c = case_begin(row, label);
    case_input(&c, row, shape);
    sink(row, &c, arg);
}

static void special_input(const op_row *row, op_sink sink, void *arg, const trek_attrs *attrs)
{
    if (row->special == SPECIAL_NONE)
        return;
    op_case c = case_begin(row, "special values");
    case_input(&c, row, trek_dims(53));
    c.in[0].special = true;
    c.in[0].limit = row->special;
    c.attrs = *attrs;
    c.no_gradient = true;
    c.dtypes = TREK_FLOATS;
    sink(row, &c, arg);
}

/* One input under some attributes: the shapes that every element-wise row goes through. */
static void one_input_attrs(const op_row *row, op_sink sink, void *arg, trek_attrs attrs, bool large)
{
    const trek_shape shapes[] = { SCALAR_SHAPE, trek_dims(7), trek_dims(3, 5), trek_dims(2, 1, 4), trek_dims(2, 3, 2, 2),
                                  trek_dims(0), trek_dims(3, 0, 2) };
    for (int k = 0; k < (int)(sizeof shapes / sizeof shapes[0]); k++) {
        op_case c = case_begin(row, "small");
        case_input(&c, row, shapes[k]);
        c.attrs = attrs;
        sink(row, &c, arg);
    }
    special_input(row, sink, arg, &attrs);
    if (!large)
        return;
    op_case c = case_begin(row, "large");
    case_input(&c, row, trek_dims(259, 263));
    c.attrs = attrs;
    c.large = true;
    sink(row, &c, arg);
}

FAMILY(unary)
{
    one_input_attrs(row, sink, arg, (trek_attrs){ .f = { 0 } }, true);
}

/* Numbers that go with these rows and their gradients: bends lie on whole numbers. */
static trek_attrs sloped_attrs(int id)
{
    switch (id) {
    case TREK_OP_hardtanh:
    case TREK_OP_hardtanh_backward:
        return (trek_attrs){ .f = { -1, 2 } };
    case TREK_OP_celu:
    case TREK_OP_celu_backward:
    case TREK_OP_elu:
    case TREK_OP_elu_backward:
        return (trek_attrs){ .f = { 1.3 } };
    case TREK_OP_leaky_relu:
    case TREK_OP_leaky_relu_backward:
        return (trek_attrs){ .f = { 0.1 } };
    case TREK_OP_polygamma:
    case TREK_OP_polygamma_backward:
        return (trek_attrs){ .f = { 0 } };
    case TREK_OP_div_scalar:
        return (trek_attrs){ .f = { 0.7 } };
    default:
        return (trek_attrs){ .f = { 1, 2, -3 } };
    }
}

static void sloped_case(const op_row *row, op_sink sink, void *arg, trek_shape shape, int inputs)
{
    op_case c = case_begin(row, trek_shape_numel(shape) > 1000 ? "large" : "small");
    for (int k = 0; k < inputs; k++)
        case_input(&c, row, shape);
    c.attrs = sloped_attrs(row->id);
    c.large = trek_shape_numel(shape) > 1000;
    c.dtypes = c.large ? TREK_FLOATS : 0; /* integers are cast before the kernel, and some references take long */
    sink(row, &c, arg);
}

FAMILY(sloped)
{
    const trek_shape shapes[] = { SCALAR_SHAPE, trek_dims(7), trek_dims(2, 3, 2), trek_dims(3, 0, 2), trek_dims(259, 263) };
    for (int k = 0; k < 5; k++)
        sloped_case(row, sink, arg, shapes[k], 1);
    trek_attrs attrs = sloped_attrs(row->id);
    special_input(row, sink, arg, &attrs);
}

FAMILY(sloped_pair)
{
    const trek_shape shapes[] = { SCALAR_SHAPE, trek_dims(3, 7), trek_dims(2, 0), trek_dims(67001) };
    for (int k = 0; k < 4; k++)
        sloped_case(row, sink, arg, shapes[k], 2);
}

FAMILY(flag)
{
    one_input_attrs(row, sink, arg, (trek_attrs){ .i = { 0 } }, true);
    one_input_attrs(row, sink, arg, (trek_attrs){ .i = { 1 } }, true);
}

/* Numbers that an op of this kind is used with. */
static void with_value(const op_row *row, op_sink sink, void *arg, double value, bool large)
{
    one_input_attrs(row, sink, arg, (trek_attrs){ .f = { value } }, large);
}

static void bool_with_value(const op_row *row, op_sink sink, void *arg, double value)
{
    op_case c = case_begin(row, "bool and a number");
    case_typed(&c, D_BINARY, TREK_BOOL, trek_dims(5), 0);
    c.attrs.f[0] = value;
    c.no_gradient = true;
    c.dtypes = TREK_BIT(F32);
    sink(row, &c, arg);
}

/* Whole numbers that i64 does not hold, or a power that is none. */
static void number_too_large(const op_row *row, op_sink sink, void *arg, double value)
{
    op_case c = case_begin(row, "no such integer");
    case_typed(&c, D_ANY, TREK_I64, trek_dims(5), 0);
    c.attrs.f[0] = value;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
}

FAMILY(scalar)
{
    number_too_large(row, sink, arg, 1e38);
    with_value(row, sink, arg, 3, true);
    with_value(row, sink, arg, 2, false);
    with_value(row, sink, arg, row->id == TREK_OP_pow_scalar ? 0.5 : -1.25, true);
    if (row->id != TREK_OP_pow_scalar) {
        bool_with_value(row, sink, arg, 2);
        bool_with_value(row, sink, arg, 0.5);
        return;
    }
    number_too_large(row, sink, arg, -2);
    with_value(row, sink, arg, 0, false);
    with_value(row, sink, arg, 1, false);
    op_case c = case_begin(row, "negative exponent");
    case_input(&c, row, trek_dims(3, 3));
    c.attrs.f[0] = -1.5;
    c.dtypes = TREK_FLOATS;
    sink(row, &c, arg);
}

FAMILY(scalar_compare)
{
    with_value(row, sink, arg, 0, true);
    with_value(row, sink, arg, 1, false);
    with_value(row, sink, arg, 0.5, false);
}

FAMILY(scalar2)
{
    if (row->id == TREK_OP_softplus) {
        one_input_attrs(row, sink, arg, (trek_attrs){ .f = { 1, 20 } }, true);
        one_input_attrs(row, sink, arg, (trek_attrs){ .f = { 1.5, 1 } }, false);
        return;
    }
    one_input_attrs(row, sink, arg, (trek_attrs){ .f = { -1, 1 } }, true);
    one_input_attrs(row, sink, arg, (trek_attrs){ .f = { 0, INFINITY } }, false);
    one_input_attrs(row, sink, arg, (trek_attrs){ .f = { -INFINITY, 0.75 } }, false);
    bool_with_value(row, sink, arg, 0);
    bool_with_value(row, sink, arg, -0.5);
    number_too_large(row, sink, arg, 0x1p63);
}

static void pair_case(const op_row *row, op_sink sink, void *arg, const char *label, trek_shape a, trek_shape b,
                      trek_status expect)
{
    op_case c = case_begin(row, label);
    case_input(&c, row, a);
    case_input(&c, row, b);
    c.expect = expect;
    sink(row, &c, arg);
}

/* Two inputs of one shape: gradients and what was saved. */
FAMILY(same_pair)
{
    pair_case(row, sink, arg, "scalars", SCALAR_SHAPE, SCALAR_SHAPE, TREK_OK);
    pair_case(row, sink, arg, "small", trek_dims(3, 7), trek_dims(3, 7), TREK_OK);
    pair_case(row, sink, arg, "empty", trek_dims(2, 0), trek_dims(2, 0), TREK_OK);
    pair_case(row, sink, arg, "shapes differ", trek_dims(3, 7), trek_dims(7, 3), TREK_ERR_SHAPE);
    op_case c = case_begin(row, "large");
    case_input(&c, row, trek_dims(67001));
    case_input(&c, row, trek_dims(67001));
    c.large = true;
    sink(row, &c, arg);
    if (row->id != TREK_OP_gelu_backward)
        return;
    c = case_begin(row, "tanh form");
    case_input(&c, row, trek_dims(5, 9));
    case_input(&c, row, trek_dims(5, 9));
    c.attrs.i[0] = 1;
    sink(row, &c, arg);
}

/* Three inputs of one shape: a gradient and two that were saved. */
FAMILY(same_triple)
{
    const trek_shape shapes[] = { SCALAR_SHAPE, trek_dims(3, 7), trek_dims(2, 0), trek_dims(67001) };
    for (int s = 0; s < 4; s++) {
        op_case c = case_begin(row, "shapes");
        for (int k = 0; k < 3; k++)
            case_input(&c, row, shapes[s]);
        c.large = s == 3;
        sink(row, &c, arg);
    }
    for (int odd = 0; odd < 3; odd++) {
        op_case c = case_begin(row, "shapes differ");
        for (int k = 0; k < 3; k++)
            case_input(&c, row, k == odd ? trek_dims(7, 3) : trek_dims(3, 7));
        c.expect = TREK_ERR_SHAPE;
        sink(row, &c, arg);
    }
}

static void mixed_pair(const op_row *row, op_sink sink, void *arg, int other, unsigned dtypes)
{
    op_case c = case_begin(row, "mixed dtypes");
    case_input(&c, row, trek_dims(3, 4));
    case_input(&c, row, trek_dims(4));
    c.in[1].dtype = other;
    c.no_gradient = true;
    c.dtypes = dtypes;
    sink(row, &c, arg);
}

/* Bits are not mixed with floats. */
static bool mixes(const op_row *row, int other)
{
    return !dtype_floats((trek_dtype)other) || (trek_ops[row->id].dtypes & TREK_FLOATS);
}

static void binary_cases(const op_row *row, op_sink sink, void *arg)
{
    pair_case(row, sink, arg, "scalars", SCALAR_SHAPE, SCALAR_SHAPE, TREK_OK);
    pair_case(row, sink, arg, "same shape", trek_dims(3, 5), trek_dims(3, 5), TREK_OK);
    pair_case(row, sink, arg, "a row", trek_dims(3, 5), trek_dims(5), TREK_OK);
    pair_case(row, sink, arg, "a column", trek_dims(3, 1), trek_dims(3, 4), TREK_OK);
    pair_case(row, sink, arg, "outer", trek_dims(3, 1), trek_dims(1, 4), TREK_OK);
    pair_case(row, sink, arg, "a scalar", trek_dims(2, 3), SCALAR_SHAPE, TREK_OK);
    pair_case(row, sink, arg, "middle", trek_dims(2, 3, 2), trek_dims(2, 1, 2), TREK_OK);
    pair_case(row, sink, arg, "fewer on the left", trek_dims(4), trek_dims(2, 1, 4), TREK_OK);
    pair_case(row, sink, arg, "empty", trek_dims(0, 3), trek_dims(1, 3), TREK_OK);
    pair_case(row, sink, arg, "no broadcast", trek_dims(3, 5), trek_dims(4), TREK_ERR_SHAPE);
    for (int other = 0; other < TREK_DTYPE_COUNT; other++)
        if (!(row->id == TREK_OP_pow && !dtype_floats((trek_dtype)other)) && mixes(row, other))
            mixed_pair(row, sink, arg, other, trek_ops[row->id].dtypes == TREK_NUMBERS && other == TREK_BOOL ? TREK_NUMBERS : 0);
    const trek_shape large[][2] = { { trek_dims(70003), trek_dims(70003) }, { trek_dims(263, 257), trek_dims(257) },
                                    { trek_dims(263, 257), trek_dims(263, 1) }, { trek_dims(300, 229), SCALAR_SHAPE } };
    for (int k = 0; k < 4; k++) {
        op_case c = case_begin(row, "large");
        case_input(&c, row, large[k][0]);
        case_input(&c, row, large[k][1]);
        c.large = true;
        sink(row, &c, arg);
    }
    if (row->special == SPECIAL_NONE)
        return;
    op_case c = case_begin(row, "special values");
    for (int k = 0; k < 2; k++) {
        case_input(&c, row, k ? trek_dims(1, 31) : trek_dims(29, 1));
        c.in[k].special = true;
        c.in[k].limit = row->special;
    }
    c.no_gradient = true;
    c.dtypes = TREK_FLOATS;
    sink(row, &c, arg);
}

FAMILY(binary) { binary_cases(row, sink, arg); }

/* Sinks of cases that are given on with a flag. */
typedef struct flagged {
    op_sink sink;
    void *arg;
    bool flag;
} flagged;

static void with_flag(const op_row *row, const op_case *c, void *arg)
{
    const flagged *f = arg;
    op_case with = *c;
    with.attrs.i[0] = f->flag;
    f->sink(row, &with, f->arg);
}

/* Quotients towards 0, and downwards. */
FAMILY(divided)
{
    for (int down = 0; down < 2; down++)
        binary_cases(row, with_flag, &(flagged){ sink, arg, down != 0 });
}

static void where_case(const op_row *row, op_sink sink, void *arg, trek_shape condition, trek_shape x, trek_shape y,
                       trek_status expect)
{
    op_case c = case_begin(row, "shapes");
    case_typed(&c, D_BINARY, TREK_BOOL, condition, 0);
    case_input(&c, row, x);
    case_input(&c, row, y);
    c.expect = expect;
    c.large = condition.ndim == 1 && condition.sizes[0] > 60000;
    sink(row, &c, arg);
}

FAMILY(where)
{
    where_case(row, sink, arg, trek_dims(3, 4), trek_dims(3, 4), trek_dims(3, 4), TREK_OK);
    where_case(row, sink, arg, trek_dims(4), trek_dims(3, 1), SCALAR_SHAPE, TREK_OK);
    where_case(row, sink, arg, SCALAR_SHAPE, SCALAR_SHAPE, SCALAR_SHAPE, TREK_OK);
    where_case(row, sink, arg, trek_dims(2, 0), trek_dims(2, 1), trek_dims(2, 0), TREK_OK);
    where_case(row, sink, arg, trek_dims(66001), trek_dims(66001), trek_dims(66001), TREK_OK);
    where_case(row, sink, arg, trek_dims(3), trek_dims(4), trek_dims(4), TREK_ERR_SHAPE);
    op_case c = case_begin(row, "condition is no bool");
    case_typed(&c, D_ANY, TREK_F32, trek_dims(3), 0);
    case_input(&c, row, trek_dims(3));
    case_input(&c, row, trek_dims(3));
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
}

/* --- several steps in one pass -------------------------------------------------- */

static void fused_case(const op_row *row, op_sink sink, void *arg, double number, const trek_shape shapes[3], trek_status expect)
{
    op_case c = case_begin(row, "shapes");
    for (int k = 0; k < 3; k++)
        if (trek_ops[row->id].needed >> k & 1)
            case_input(&c, row, shapes[k]);
    c.attrs.f[0] = number;
    c.expect = expect;
    c.large = trek_shape_numel(shapes[0]) > 1000;
    sink(row, &c, arg);
}

/* Infinities and NaN against each other, with and without an equal one. */
static void fused_special(const op_row *row, op_sink sink, void *arg)
{
    op_case c = case_begin(row, "special values");
    for (int k = 0; k < 3; k++) {
        if (!(trek_ops[row->id].needed >> k & 1))
            continue;
        case_input(&c, row, k == 0 ? trek_dims(29, 1) : k == 1 ? trek_dims(1, 31) : trek_dims(31));
        c.in[k].special = true;
        c.in[k].limit = row->special;
    }
    c.attrs.f[0] = 1;
    c.no_gradient = true;
    c.dtypes = TREK_FLOATS;
    sink(row, &c, arg);
}

FAMILY(fused)
{
    const trek_shape shapes[][3] = {
        { SCALAR_SHAPE, SCALAR_SHAPE, SCALAR_SHAPE },       { trek_dims(3, 5), trek_dims(3, 5), trek_dims(3, 5) },
        { trek_dims(2, 1, 4), trek_dims(3, 1), trek_dims(4) }, { SCALAR_SHAPE, trek_dims(2, 3), trek_dims(1, 3) },
        { trek_dims(0, 3), trek_dims(1, 3), trek_dims(3) },  { trek_dims(70003), trek_dims(70003), trek_dims(70003) },
        { trek_dims(263, 257), trek_dims(257), trek_dims(263, 1) } };
    const double numbers[] = { 0.3, 1, 0.75 };
    for (int s = 0; s < 7; s++)
        for (int k = 0; k < 3; k++)
            fused_case(row, sink, arg, numbers[k], shapes[s], TREK_OK);
    fused_case(row, sink, arg, 1, (trek_shape[]){ trek_dims(3, 5), trek_dims(4), trek_dims(5) }, TREK_ERR_SHAPE);
    if (row->special != SPECIAL_NONE)
        fused_special(row, sink, arg);
}

/* --- reductions ----------------------------------------------------------------- */

static op_case reduce_case(const op_row *row, const char *label, trek_shape shape, trek_shape dims, bool keepdim)
{
    op_case c = case_begin(row, label);
    case_input(&c, row, shape);
    trek_attrs_reduce(&c.attrs, &dims, keepdim);
    if (row->id == TREK_OP_variance)
        c.attrs.f[0] = 1;
    return c;
}

static void reduce_one(const op_row *row, op_sink sink, void *arg, trek_shape shape, trek_shape dims, trek_status expect)
{
    for (int keepdim = 0; keepdim < 2; keepdim++) {
        op_case c = reduce_case(row, "shapes", shape, dims, keepdim);
        c.expect = expect;
        sink(row, &c, arg);
    }
}

static void reduce_bad(const op_row *row, op_sink sink, void *arg)
{
    reduce_one(row, sink, arg, trek_dims(2, 3), trek_dims(2), TREK_ERR_ARGUMENT);
    reduce_one(row, sink, arg, trek_dims(2, 3), trek_dims(-3), TREK_ERR_ARGUMENT);
}

/* Products of many numbers leave the dtypes' ranges, so theirs stay small. */
static void reduce_large(const op_row *row, op_sink sink, void *arg, int max_dims)
{
    const trek_shape shapes[] = { trek_dims(70001), trek_dims(257, 300), trek_dims(40, 50, 40) };
    const trek_shape dims[][3] = { { trek_dims(0), trek_dims_all(), trek_dims(-1) },
                                   { trek_dims(0), trek_dims(1), trek_dims_all() },
                                   { trek_dims(1), trek_dims(0, 2), trek_dims(2) } };
    for (int s = 0; s < 3; s++)
        for (int k = 0; k < 3; k++) {
            if (dims[s][k].ndim > max_dims)
                continue;
            op_case c = reduce_case(row, "large", shapes[s], dims[s][k], false);
            c.large = true;
            sink(row, &c, arg);
        }
}

static void reduce_common(const op_row *row, op_sink sink, void *arg)
{
    reduce_one(row, sink, arg, trek_dims(7), trek_dims_all(), TREK_OK);
    reduce_one(row, sink, arg, trek_dims(3, 4), trek_dims_all(), TREK_OK);
    reduce_one(row, sink, arg, trek_dims(3, 4), trek_dims(0), TREK_OK);
    reduce_one(row, sink, arg, trek_dims(3, 4), trek_dims(-1), TREK_OK);
    reduce_one(row, sink, arg, trek_dims(2, 3, 4), trek_dims(1), TREK_OK);
    reduce_one(row, sink, arg, trek_dims(2, 1, 3), trek_dims(1), TREK_OK);
    reduce_one(row, sink, arg, trek_dims(3, 0), trek_dims(0), TREK_OK);
    reduce_bad(row, sink, arg);
}

static void reduce_many(const op_row *row, op_sink sink, void *arg)
{
    reduce_one(row, sink, arg, trek_dims(2, 3, 4), trek_dims(0, 2), TREK_OK);
    reduce_one(row, sink, arg, trek_dims(2, 3, 2, 2), trek_dims(-1, 1), TREK_OK);
    reduce_one(row, sink, arg, trek_dims(2, 3), trek_dims(0, 0), TREK_ERR_ARGUMENT);
}

static void reduce_special(const op_row *row, op_sink sink, void *arg)
{
    for (int d = 0; d < 3; d++) {
        op_case c = reduce_case(row, "special values", trek_dims(9, 7), d < 2 ? trek_dims(d) : trek_dims_all(), false);
        c.in[0].special = true;
        c.in[0].limit = row->special;
        c.dtypes = TREK_FLOATS;
        c.no_gradient = true;
        sink(row, &c, arg);
    }
}

FAMILY(reduce)
{
    reduce_one(row, sink, arg, SCALAR_SHAPE, trek_dims_all(), TREK_OK);
    reduce_common(row, sink, arg);
    reduce_many(row, sink, arg);
    op_case c = reduce_case(row, "over nothing", trek_dims(3, 0), trek_dims(1), false);
    c.no_gradient = true;
    sink(row, &c, arg);
    if (row->id != TREK_OP_prod)
        reduce_large(row, sink, arg, 8);
    if (row->special != SPECIAL_NONE)
        reduce_special(row, sink, arg);
}

FAMILY(reduce_nonempty)
{
    reduce_one(row, sink, arg, SCALAR_SHAPE, trek_dims_all(), TREK_OK);
    reduce_common(row, sink, arg);
    reduce_many(row, sink, arg);
    reduce_one(row, sink, arg, trek_dims(3, 0), trek_dims(1), TREK_ERR_SHAPE);
    reduce_one(row, sink, arg, trek_dims(0), trek_dims_all(), TREK_ERR_SHAPE);
    reduce_one(row, sink, arg, trek_dims(0, 0), trek_dims(1), TREK_ERR_SHAPE);
    reduce_special(row, sink, arg);
    reduce_large(row, sink, arg, 8);
}

FAMILY(arg)
{
    reduce_one(row, sink, arg, SCALAR_SHAPE, trek_dims_all(), TREK_OK);
    reduce_common(row, sink, arg);
    reduce_one(row, sink, arg, trek_dims(0), trek_dims_all(), TREK_ERR_SHAPE);
    reduce_one(row, sink, arg, trek_dims(0, 0), trek_dims(1), TREK_ERR_SHAPE);
    reduce_one(row, sink, arg, trek_dims(2, 3), trek_dims(0, 1), TREK_ERR_ARGUMENT);
    reduce_special(row, sink, arg);
    reduce_large(row, sink, arg, 1);
}

FAMILY(variance)
{
    reduce_common(row, sink, arg);
    reduce_many(row, sink, arg);
    op_case c = reduce_case(row, "no correction", trek_dims(3, 4), trek_dims(1), true);
    c.attrs.f[0] = 0;
    sink(row, &c, arg);
    reduce_large(row, sink, arg, 8);
}

/* --- along a dimension ------------------------------------------------------------- */

static void dim_case(const op_row *row, op_sink sink, void *arg, int inputs, trek_shape shape, int dim, trek_status expect,
                     bool large)
{
    op_case c = case_begin(row, "shapes");
    for (int k = 0; k < inputs; k++)
        case_input(&c, row, shape);
    c.attrs.i[0] = dim;
    c.expect = expect;
    c.large = large;
    sink(row, &c, arg);
}

static void dim_cases(const op_row *row, op_sink sink, void *arg, int inputs)
{
    dim_case(row, sink, arg, inputs, trek_dims(6), 0, TREK_OK, false);
    dim_case(row, sink, arg, inputs, SCALAR_SHAPE, 0, TREK_OK, false);
    dim_case(row, sink, arg, inputs, trek_dims(3, 5), -1, TREK_OK, false);
    dim_case(row, sink, arg, inputs, trek_dims(3, 5), 0, TREK_OK, false);
    dim_case(row, sink, arg, inputs, trek_dims(2, 3, 4), 1, TREK_OK, false);
    dim_case(row, sink, arg, inputs, trek_dims(2, 1, 4), 1, TREK_OK, false);
    dim_case(row, sink, arg, inputs, trek_dims(0, 4), 1, TREK_OK, false);
    dim_case(row, sink, arg, inputs, trek_dims(3, 0), 1, TREK_OK, false);
    dim_case(row, sink, arg, inputs, trek_dims(2050, 33), 1, TREK_OK, true);
    dim_case(row, sink, arg, inputs, trek_dims(33, 2050), 0, TREK_OK, true);
    dim_case(row, sink, arg, inputs, trek_dims(23, 301), -1, TREK_OK, true);
    dim_case(row, sink, arg, inputs, trek_dims(3, 5), 2, TREK_ERR_ARGUMENT, false);
    dim_case(row, sink, arg, inputs, trek_dims(3, 5), -3, TREK_ERR_ARGUMENT, false);
}

FAMILY(dim)
{
    dim_cases(row, sink, arg, 1);
}

FAMILY(dim_pair)
{
    dim_cases(row, sink, arg, 2);
    pair_case(row, sink, arg, "shapes differ", trek_dims(3, 5), trek_dims(5, 3), TREK_ERR_SHAPE);
}

/* --- fills: the output is given ------------------------------------------------------ */

static void fill_case(const op_row *row, op_sink sink, void *arg, trek_shape shape, trek_attrs attrs, bool large)
{
    op_case c = case_begin(row, "fill");
    c.given = (op_input){ .shape = shape, .domain = D_ANY, .dtype = -1 };
    c.attrs = attrs;
    c.large = large;
    sink(row, &c, arg);
}

static void fill_cases(const op_row *row, op_sink sink, void *arg, trek_attrs attrs)
{
    fill_case(row, sink, arg, SCALAR_SHAPE, attrs, false);
    fill_case(row, sink, arg, trek_dims(3, 5), attrs, false);
    fill_case(row, sink, arg, trek_dims(0), attrs, false);
    fill_case(row, sink, arg, trek_dims(70001), attrs, true);
}

FAMILY(fill)
{
    fill_cases(row, sink, arg, (trek_attrs){ .f = { 3 } });
    fill_cases(row, sink, arg, (trek_attrs){ .f = { 0 } });
}

FAMILY(random)
{
    fill_cases(row, sink, arg, (trek_attrs){ .i = { 42, 3, 1, 0 }, .f = { 1, 6 } });
}

FAMILY(dropout)
{
    trek_attrs attrs = { .i = { 42, 3, 1, 0 }, .f = { 0.4 } };
    one_input_attrs(row, sink, arg, attrs, true);
    attrs.i[3] = 1001;
    attrs.f[0] = 0.1;
    one_input(row, sink, arg, "nothing drops", trek_dims(4, 3));
    one_input_attrs(row, sink, arg, attrs, false);
}
