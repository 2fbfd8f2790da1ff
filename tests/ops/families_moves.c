/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of views, moves of elements, and embedding. */
#include "tests/ops/suite.h"

#define SCALAR_SHAPE trek_dims_none()

/* One input and a few integer attributes. */
static void emit(const op_row *row, op_sink sink, void *arg, trek_shape shape, trek_attrs attrs, trek_status expect)
{
    op_case c = case_begin(row, "shapes");
    case_input(&c, row, shape);
    c.attrs = attrs;
    c.expect = expect;
    sink(row, &c, arg);
}

static trek_attrs listed(trek_shape list)
{
    trek_attrs a = { .i = { list.ndim } };
    for (int k = 0; k < list.ndim; k++)
        a.i[1 + k] = list.sizes[k];
    return a;
}

#define NUMBERS(...) (trek_attrs){ .i = { __VA_ARGS__ } }

FAMILY(reshape)
{
    emit(row, sink, arg, trek_dims(3, 4), listed(trek_dims(12)), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3, 4), listed(trek_dims(4, -1)), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3, 4), listed(trek_dims(6, 4)), TREK_OK);
    emit(row, sink, arg, SCALAR_SHAPE, listed(trek_dims(1, 1)), TREK_OK);
    emit(row, sink, arg, trek_dims(1), listed(SCALAR_SHAPE), TREK_OK);
    emit(row, sink, arg, trek_dims(0, 3), listed(trek_dims(3, 0)), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 4), listed(trek_dims(5, 2)), TREK_ERR_SHAPE);
    emit(row, sink, arg, trek_dims(3, 4), listed(trek_dims(-1, -1)), TREK_ERR_SHAPE);
    emit(row, sink, arg, trek_dims(3, 4), listed(trek_dims(-1, 5)), TREK_ERR_SHAPE);
}

FAMILY(expand)
{
    emit(row, sink, arg, trek_dims(3, 1), listed(trek_dims(3, 4)), TREK_OK);
    emit(row, sink, arg, trek_dims(3), listed(trek_dims(2, -1)), TREK_OK);
    emit(row, sink, arg, SCALAR_SHAPE, listed(trek_dims(2, 2)), TREK_OK);
    emit(row, sink, arg, trek_dims(1, 3), listed(trek_dims(0, 3)), TREK_OK);
    emit(row, sink, arg, trek_dims(3), listed(trek_dims(4)), TREK_ERR_SHAPE);
    emit(row, sink, arg, trek_dims(3, 1), listed(trek_dims(3)), TREK_ERR_SHAPE);
}

FAMILY(permute)
{
    emit(row, sink, arg, trek_dims(2, 3, 4), listed(trek_dims(2, 0, 1)), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3), listed(trek_dims(-1, 0)), TREK_OK);
    emit(row, sink, arg, SCALAR_SHAPE, listed(SCALAR_SHAPE), TREK_OK);
    emit(row, sink, arg, trek_dims(0, 3), listed(trek_dims(1, 0)), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3), listed(trek_dims(0, 0)), TREK_ERR_ARGUMENT);
    emit(row, sink, arg, trek_dims(2, 3), listed(trek_dims(0, 2)), TREK_ERR_ARGUMENT);
}

FAMILY(transpose)
{
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(0, 1), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3, 4), NUMBERS(-1, 0), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(1, 1), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 0, 3), NUMBERS(1, 2), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(0, 2), TREK_ERR_ARGUMENT);
}

FAMILY(squeeze)
{
    emit(row, sink, arg, trek_dims(2, 1, 3), NUMBERS(1), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(0), TREK_OK);
    emit(row, sink, arg, trek_dims(1), NUMBERS(-1), TREK_OK);
    emit(row, sink, arg, trek_dims(1, 0), NUMBERS(0), TREK_OK);
    emit(row, sink, arg, trek_dims(1, 3, 1, 4), NUMBERS(-2), TREK_OK);
    emit(row, sink, arg, trek_dims(1, 3, 1, 4), NUMBERS(-4), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 1), NUMBERS(2), TREK_ERR_ARGUMENT);
    emit(row, sink, arg, trek_dims(2, 1), NUMBERS(-3), TREK_ERR_ARGUMENT);
}

FAMILY(unsqueeze)
{
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(0), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(-1), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(1), TREK_OK);
    emit(row, sink, arg, SCALAR_SHAPE, NUMBERS(0), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(3), TREK_ERR_ARGUMENT);
}

FAMILY(narrow)
{
    emit(row, sink, arg, trek_dims(5), NUMBERS(0, 1, 3), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 4), NUMBERS(-1, 2, 2), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 4), NUMBERS(0, 1, 0), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3, 4), NUMBERS(1, 0, 2), TREK_OK);
    emit(row, sink, arg, trek_dims(5), NUMBERS(0, 3, 3), TREK_ERR_ARGUMENT);
    emit(row, sink, arg, trek_dims(5), NUMBERS(1, 0, 1), TREK_ERR_ARGUMENT);
    emit(row, sink, arg, trek_dims(5), NUMBERS(0, 1, -1), TREK_ERR_ARGUMENT);
}

FAMILY(select)
{
    emit(row, sink, arg, trek_dims(5), NUMBERS(0, 3), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 4), NUMBERS(1, -1), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3, 4), NUMBERS(-2, 1), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 0, 4), NUMBERS(0, 1), TREK_OK);
    emit(row, sink, arg, trek_dims(5), NUMBERS(0, 5), TREK_ERR_ARGUMENT);
    emit(row, sink, arg, SCALAR_SHAPE, NUMBERS(0, 0), TREK_ERR_SHAPE);
}

FAMILY(convert)
{
    for (int to = 0; to < TREK_DTYPE_COUNT; to++) {
        const trek_shape shapes[] = { trek_dims(3, 5), SCALAR_SHAPE, trek_dims(0) };
        for (int k = 0; k < 3; k++) {
            op_case c = case_begin(row, "to each dtype");
            case_input(&c, row, shapes[k]);
            /* what a negative fraction becomes in u8 is nobody's promise */
            c.in[0].domain = to == TREK_U8 ? D_POSITIVE : D_ANY;
            c.attrs.i[0] = to;
            c.no_gradient = !dtype_floats((trek_dtype)to) || to == TREK_BF16 || to == TREK_F16 || to == TREK_F32;
            sink(row, &c, arg);
        }
        op_case c = case_begin(row, "large");
        case_input(&c, row, trek_dims(68001));
        c.in[0].domain = to == TREK_U8 ? D_POSITIVE : D_WIDE;
        c.attrs.i[0] = to;
        c.large = true;
        sink(row, &c, arg);
    }
    op_case c = case_begin(row, "special values");
    case_input(&c, row, trek_dims(40));
    c.in[0].special = true;
    c.in[0].limit = SPECIAL_ALL;
    c.dtypes = TREK_FLOATS;
    c.no_gradient = true;
    const int to[] = { TREK_F32, TREK_F64, TREK_BF16, TREK_F16, TREK_BOOL };
    for (int k = 0; k < 5; k++) {
        c.attrs.i[0] = to[k];
        sink(row, &c, arg);
    }
    emit(row, sink, arg, trek_dims(3), NUMBERS(99), TREK_ERR_DTYPE);
}

FAMILY(flip)
{
    emit(row, sink, arg, trek_dims(5), listed(trek_dims(0)), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 4), listed(trek_dims(-1)), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3, 4), listed(trek_dims(0, 2)), TREK_OK);
    emit(row, sink, arg, trek_dims(0, 3), listed(trek_dims(1)), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 4), listed(trek_dims_none()), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 4), listed(trek_dims(2)), TREK_ERR_ARGUMENT);
    emit(row, sink, arg, trek_dims(3, 4), listed(trek_dims(1, 1)), TREK_ERR_ARGUMENT);
}

static void cat_case(const op_row *row, op_sink sink, void *arg, trek_shape a, trek_shape b, trek_shape third, int dim,
                     trek_status expect)
{
    op_case c = case_begin(row, "three parts");
    case_input(&c, row, a);
    case_input(&c, row, b);
    case_input(&c, row, third);
    c.attrs.i[0] = dim;
    c.expect = expect;
    c.large = a.sizes[0] > 10000;
    sink(row, &c, arg);
}

FAMILY(cat)
{
    cat_case(row, sink, arg, trek_dims(2), trek_dims(3), trek_dims(1), 0, TREK_OK);
    cat_case(row, sink, arg, trek_dims(2, 3), trek_dims(2, 1), trek_dims(2, 2), -1, TREK_OK);
    cat_case(row, sink, arg, trek_dims(2, 3, 2), trek_dims(2, 0, 2), trek_dims(2, 1, 2), 1, TREK_OK);
    cat_case(row, sink, arg, trek_dims(30000, 2), trek_dims(3000, 2), trek_dims(5, 2), 0, TREK_OK);
    cat_case(row, sink, arg, trek_dims(2, 3), trek_dims(3, 3), trek_dims(2, 3), 1, TREK_ERR_SHAPE);
    cat_case(row, sink, arg, trek_dims(2, 3), trek_dims(2), trek_dims(2, 3), 0, TREK_ERR_SHAPE);
    cat_case(row, sink, arg, trek_dims(2, 3), trek_dims(2, 3), trek_dims(2, 3), 2, TREK_ERR_ARGUMENT);
}

FAMILY(triangle)
{
    for (int diagonal = -2; diagonal <= 2; diagonal++) {
        emit(row, sink, arg, trek_dims(4, 5), NUMBERS(diagonal), TREK_OK);
        emit(row, sink, arg, trek_dims(2, 5, 3), NUMBERS(diagonal), TREK_OK);
    }
    static const int64_t beyond[] = { 100, -100, INT64_MAX, INT64_MIN };
    for (int k = 0; k < 4; k++)
        emit(row, sink, arg, trek_dims(3, 5), NUMBERS(beyond[k]), TREK_OK);
    emit(row, sink, arg, trek_dims(0, 3), NUMBERS(0), TREK_OK);
    emit(row, sink, arg, trek_dims(4), NUMBERS(0), TREK_ERR_SHAPE);
}

/* --- by index ---------------------------------------------------------------------- */

static op_case indexed(const op_row *row, trek_shape x, trek_shape index, int64_t limit, int dim)
{
    op_case c = case_begin(row, "index");
    case_input(&c, row, x);
    case_typed(&c, D_INDEX, TREK_I64, index, limit);
    c.attrs.i[0] = dim;
    return c;
}

static const int index_dtypes[] = { TREK_I64, TREK_I32, TREK_U8 };

FAMILY(index_select)
{
    for (int k = 0; k < 3; k++) {
        op_case c = indexed(row, trek_dims(4, 3), trek_dims(5), 4, 0);
        c.in[1].dtype = index_dtypes[k];
        sink(row, &c, arg);
    }
    op_case c = indexed(row, trek_dims(2, 3, 4), trek_dims(2), 4, -1);
    sink(row, &c, arg);
    c = indexed(row, trek_dims(2, 3, 4), trek_dims(6), 3, 1);
    sink(row, &c, arg);
    c = indexed(row, trek_dims(4, 3), trek_dims(0), 4, 0);
    sink(row, &c, arg);
    c = indexed(row, trek_dims(500, 130), trek_dims(600), 500, 0);
    c.large = true;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(4, 3), trek_dims(2, 2), 4, 0);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(4, 3), trek_dims(64), 9, 0); /* some index is 4 or more */
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(4, 3), trek_dims(2), 4, 0);
    c.in[1].dtype = TREK_F32;
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
}

/* Sums of a thousand terms of one sign: 16-bit ones show whether each addition was rounded. Rows, lines, columns; few places of
 * many. */
static void sums_of_many(const op_row *row, op_sink sink, void *arg, bool whole)
{
    const struct { trek_shape x, source; int dim; } cases[] = {
        { trek_dims(2, 70), trek_dims(2500, 70), 0 }, { trek_dims(3, 2), trek_dims(3, 2500), 1 },
        { trek_dims(2, 3, 5), trek_dims(2, 3000, 5), 1 }, { trek_dims(40000), trek_dims(1500), 0 },
        { trek_dims(3), trek_dims(3000), 0 }, { trek_dims(9000, 3), trek_dims(900, 3), 0 },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int dim = cases[k].dim;
        trek_shape index = whole ? cases[k].source : trek_dims(cases[k].source.sizes[dim]);
        op_case c = indexed(row, cases[k].x, index, cases[k].x.sizes[dim] < 4 ? cases[k].x.sizes[dim] : 2, dim);
        case_input(&c, row, cases[k].source);
        c.in[0].domain = c.in[2].domain = D_POSITIVE;
        c.large = true;
        c.dtypes = TREK_BIT(F32) | TREK_BIT(BF16) | TREK_BIT(F16);
        sink(row, &c, arg);
    }
}

FAMILY(index_add)
{
    op_case c;
    sums_of_many(row, sink, arg, false);
    for (int k = 0; k < 3; k++) {
        c = indexed(row, trek_dims(4, 3), trek_dims(6), 4, 0);
        c.in[1].dtype = index_dtypes[k];
        case_input(&c, row, trek_dims(6, 3));
        sink(row, &c, arg);
    }
    c = indexed(row, trek_dims(2, 3, 4), trek_dims(2), 4, -1);
    case_input(&c, row, trek_dims(2, 3, 2));
    sink(row, &c, arg);
    c = indexed(row, trek_dims(5), trek_dims(0), 5, 0);
    case_input(&c, row, trek_dims(0));
    sink(row, &c, arg);
    c = indexed(row, trek_dims(300, 64), trek_dims(1100), 300, 0);
    case_input(&c, row, trek_dims(1100, 64));
    c.large = true;
    c.dtypes = TREK_BIT(F32) | TREK_BIT(F64) | TREK_BIT(I64);
    sink(row, &c, arg);
    c = indexed(row, trek_dims(4, 3), trek_dims(6), 4, 0);
    case_input(&c, row, trek_dims(5, 3));
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(4, 3), trek_dims(64), 9, 0);
    case_input(&c, row, trek_dims(64, 3));
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
}

FAMILY(gather)
{
    op_case c;
    for (int k = 0; k < 2; k++) {
        c = indexed(row, trek_dims(4, 3), trek_dims(5, 3), 4, 0);
        c.in[1].dtype = index_dtypes[k];
        sink(row, &c, arg);
    }
    c = indexed(row, trek_dims(3, 4), trek_dims(2, 6), 4, 1);
    sink(row, &c, arg);
    c = indexed(row, trek_dims(2, 3, 4), trek_dims(2, 3, 1), 4, -1);
    sink(row, &c, arg);
    c = indexed(row, trek_dims(3, 4), trek_dims(0, 4), 4, 1);
    sink(row, &c, arg);
    c = indexed(row, trek_dims(300, 250), trek_dims(300, 230), 250, 1);
    c.large = true;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(3, 4), trek_dims(4, 4), 4, 1);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(3, 4), trek_dims(3, 40), 9, 1);
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
}

FAMILY(scatter_add)
{
    op_case c;
    sums_of_many(row, sink, arg, true);
    for (int k = 0; k < 2; k++) {
        c = indexed(row, trek_dims(4, 3), trek_dims(5, 3), 4, 0);
        c.in[1].dtype = index_dtypes[k];
        case_input(&c, row, trek_dims(5, 3));
        sink(row, &c, arg);
    }
    c = indexed(row, trek_dims(3, 4), trek_dims(2, 6), 4, 1);
    case_input(&c, row, trek_dims(3, 7));
    sink(row, &c, arg);
    c = indexed(row, trek_dims(3, 4), trek_dims(0, 4), 4, 1);
    case_input(&c, row, trek_dims(1, 4));
    sink(row, &c, arg);
    c = indexed(row, trek_dims(300, 50), trek_dims(300, 230), 50, 1);
    case_input(&c, row, trek_dims(300, 230));
    c.large = true;
    c.dtypes = TREK_BIT(F32) | TREK_BIT(F64) | TREK_BIT(I64);
    sink(row, &c, arg);
    c = indexed(row, trek_dims(3, 4), trek_dims(3, 6), 4, 1);
    case_input(&c, row, trek_dims(3, 5));
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(3, 4), trek_dims(3, 40), 9, 1);
    case_input(&c, row, trek_dims(3, 40));
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
}

FAMILY(one_hot)
{
    const trek_shape shapes[] = { trek_dims(6), trek_dims(2, 3), SCALAR_SHAPE, trek_dims(0) };
    for (int k = 0; k < 4; k++) {
        op_case c = case_begin(row, "classes given");
        case_typed(&c, D_INDEX, -1, shapes[k], 5);
        c.attrs.i[0] = 5;
        sink(row, &c, arg);
    }
    op_case c = case_begin(row, "classes from the data");
    case_typed(&c, D_INDEX, -1, trek_dims(7), 4);
    c.attrs.i[0] = -1;
    sink(row, &c, arg);
    c.in[0].limit = 9;
    c.in[0].shape = trek_dims(64);
    c.attrs.i[0] = 4;
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
    c.in[0].domain = D_ANY; /* negative ones among them */
    c.in[0].dtype = TREK_I64;
    c.attrs.i[0] = 10;
    sink(row, &c, arg);
    c.in_data = false;
    c.in[0].shape = trek_dims(0); /* so that no label is beyond them */
    static const int64_t none[] = { 0, -2 };
    for (int k = 0; k < 2; k++) {
        c.attrs.i[0] = none[k];
        sink(row, &c, arg);
    }
}

FAMILY(embedding)
{
    op_case c;
    for (int k = 0; k < 3; k++) {
        c = indexed(row, trek_dims(5, 3), trek_dims(2, 4), 5, -1);
        c.in[1].dtype = index_dtypes[k];
        sink(row, &c, arg);
    }
    c = indexed(row, trek_dims(5, 3), trek_dims_none(), 5, -1);
    sink(row, &c, arg);
    c = indexed(row, trek_dims(5, 3), trek_dims(0), 5, -1);
    sink(row, &c, arg);
    c = indexed(row, trek_dims(5, 3), trek_dims(9), 5, 2); /* a padding row has no gradient: not what differences say */
    c.no_gradient = true;
    sink(row, &c, arg);
    c.attrs.i[1] = 1; /* nor has one that is divided by how often its row is there */
    sink(row, &c, arg);
    c = indexed(row, trek_dims(100, 65), trek_dims(33, 33), 100, -1);
    c.large = true;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(5), trek_dims(4), 5, -1);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(5, 3), trek_dims(64), 9, -1);
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(5, 3), trek_dims(4), 5, -1);
    c.in[1].dtype = TREK_F32;
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
}

FAMILY(embedding_backward)
{
    op_case c = indexed(row, trek_dims(2, 4, 3), trek_dims(2, 4), 5, -1);
    c.attrs.i[1] = 5;
    sink(row, &c, arg);
    c.attrs.i[0] = 2;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(0, 3), trek_dims(0), 5, -1);
    c.attrs.i[1] = 5;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(1100, 65), trek_dims(1100), 100, -1);
    c.attrs.i[1] = 100;
    c.large = true;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(4, 3), trek_dims(5), 5, -1);
    c.attrs.i[1] = 5;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    /* by bags, of which the last stands for none, with factors, or without bags */
    for (int k = 0; k < 3; k++) {
        c = indexed(row, k == 1 ? trek_dims(9, 3) : trek_dims(4, 3), trek_dims(9), 5, k == 2 ? 3 : -1);
        if (k == 1)
            case_absent(&c);
        else
            case_typed(&c, D_INDEX, TREK_I64, trek_dims(9), 5);
        if (k > 0)
            case_typed(&c, D_ANY, DTYPE_STATISTICS, trek_dims(9), 0);
        c.attrs.i[1] = 5;
        sink(row, &c, arg);
    }
    c = indexed(row, trek_dims(70, 36), trek_dims(900), 40, 5);
    case_typed(&c, D_INDEX, TREK_I64, trek_dims(900), 72);
    case_typed(&c, D_ANY, DTYPE_STATISTICS, trek_dims(900), 0);
    c.attrs.i[1] = 41;
    c.large = true;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(4, 3), trek_dims(9), 5, -1);
    case_typed(&c, D_INDEX, TREK_I64, trek_dims(8), 5);
    c.attrs.i[1] = 5;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c.in[2].shape = trek_dims(9);
    c.in[2].dtype = TREK_I32;
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
    c.in[2].dtype = TREK_I64;
    case_typed(&c, D_ANY, DTYPE_STATISTICS, trek_dims(3, 3), 0);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
}

/* A weight, places, offsets of bags that end at `used`. */
static op_case bag_case(const op_row *row, trek_shape weight, int64_t places, int64_t bags, int64_t used, int64_t padding,
                        int mode)
{
    op_case c = indexed(row, weight, trek_dims(places), weight.sizes[0], (int)padding);
    case_typed(&c, D_OFFSETS, TREK_I64, trek_dims(bags + 1), used);
    c.in[2].plain = true;
    c.attrs.i[1] = mode;
    return c;
}

FAMILY(embedding_bag)
{
    op_case c;
    for (int mode = 0; mode < 3; mode++) {
        c = bag_case(row, trek_dims(5, 3), 9, 4, 9, -1, mode);
        for (int k = 0; k < 3; k++) {
            c.in[1].dtype = index_dtypes[k];
            sink(row, &c, arg);
        }
        c = bag_case(row, trek_dims(5, 3), 9, 12, 7, -1, mode); /* empty bags, places in none */
        sink(row, &c, arg);
        c = bag_case(row, trek_dims(5, 3), 0, 3, 0, -1, mode);
        sink(row, &c, arg);
        c = bag_case(row, trek_dims(5, 3), 9, 0, 0, -1, mode);
        sink(row, &c, arg);
        c = bag_case(row, trek_dims(5, 0), 9, 4, 9, -1, mode);
        sink(row, &c, arg);
        c = bag_case(row, trek_dims(5, 3), 9, 4, 9, 2, mode); /* a padding row has no gradient, as it is not looked at */
        sink(row, &c, arg);
        c = bag_case(row, trek_dims(60, 530), 300, 40, 280, 7, mode);
        c.large = true;
        sink(row, &c, arg);
    }
    c = bag_case(row, trek_dims(5, 3), 9, 4, 8, 1, TREK_REDUCTION_SUM);
    case_input(&c, row, trek_dims(9));
    sink(row, &c, arg);
    for (int mode = 0; mode < 3; mode += 2) {
        c.attrs.i[1] = mode;
        c.expect = TREK_ERR_ARGUMENT;
        sink(row, &c, arg);
    }
    c.attrs.i[1] = TREK_REDUCTION_SUM;
    c.in[3].shape = trek_dims(8);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = bag_case(row, trek_dims(5, 3), 9, 4, 9, 5, TREK_REDUCTION_SUM);
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
    c = bag_case(row, trek_dims(5, 3), 9, 4, 9, -1, 3);
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
    c = bag_case(row, trek_dims(5), 9, 4, 9, -1, TREK_REDUCTION_SUM);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = bag_case(row, trek_dims(5, 3), 9, 4, 9, -1, TREK_REDUCTION_SUM);
    c.in[1].shape = trek_dims(3, 3);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = bag_case(row, trek_dims(5, 3), 9, 4, 9, -1, TREK_REDUCTION_SUM);
    c.in[2].shape = trek_dims(0);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c.in[2].shape = trek_dims(5);
    c.in[2].dtype = TREK_I32;
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
    c = bag_case(row, trek_dims(5, 3), 9, 4, 10, -1, TREK_REDUCTION_SUM); /* beyond the places */
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
    c = bag_case(row, trek_dims(5, 3), 64, 4, 64, -1, TREK_REDUCTION_MAX);
    c.in[1].limit = 9;
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
    c = bag_case(row, trek_dims(5, 3), 64, 40, 64, -1, TREK_REDUCTION_MEAN); /* offsets that fall */
    c.in[2].domain = D_INDEX;
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
}

/* x, and a table of which every dimension but the last may be broadcast. */
FAMILY(rotary)
{
    static const struct {
        trek_shape x, table;
        bool large;
    } of[] = { { { 4, { 2, 3, 5, 6 } }, { 2, { 5, 6 } }, false },       { { 3, { 2, 5, 7 } }, { 3, { 2, 1, 4 } }, false },
               { { 1, { 8 } }, { 1, { 8 } }, false },                   { { 2, { 3, 4 } }, { 2, { 3, 0 } }, false },
               { { 3, { 2, 0, 6 } }, { 2, { 0, 6 } }, false },
               { { 5, { 2, 1, 3, 2, 2 } }, { 4, { 1, 3, 1, 2 } }, false },
               { { 3, { 3, 33, 1100 } }, { 2, { 33, 1064 } }, true },   { { 4, { 2, 9, 40, 64 } }, { 2, { 40, 64 } }, true } };
    for (size_t k = 0; k < sizeof of / sizeof of[0]; k++)
        for (int way = 0; way < 4; way++) {
            op_case c = case_begin(row, "positions");
            case_input(&c, row, of[k].x);
            case_typed(&c, D_UNIT, DTYPE_STATISTICS, of[k].table, 0);
            c.attrs.i[0] = way & 1;
            c.attrs.i[1] = way >> 1;
            c.large = of[k].large;
            sink(row, &c, arg);
        }
    static const trek_shape bad[] = { { 2, { 5, 3 } }, { 2, { 5, 8 } }, { 2, { 4, 6 } }, { 4, { 1, 1, 5, 6 } }, { 0, { 0 } } };
    for (int k = 0; k < 5; k++) {
        op_case c = case_begin(row, "a table that does not fit");
        case_input(&c, row, trek_dims(2, 5, 6));
        case_typed(&c, D_UNIT, DTYPE_STATISTICS, bad[k], 0);
        c.expect = TREK_ERR_SHAPE;
        sink(row, &c, arg);
    }
    op_case c = case_begin(row, "a table of bf16");
    case_input(&c, row, trek_dims(2, 5, 6));
    case_typed(&c, D_UNIT, TREK_BF16, trek_dims(5, 6), 0);
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
}
