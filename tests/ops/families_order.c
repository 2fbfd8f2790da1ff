/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of sorting, choosing, running extremes and products, searching, scattering and diagonals. */
#include "tests/ops/suite.h"

#define NUMBERS(...) (trek_attrs){ .i = { __VA_ARGS__ } }

static void emit(const op_row *row, op_sink sink, void *arg, trek_shape shape, trek_attrs attrs, trek_status expect)
{
    op_case c = case_begin(row, "lines");
    case_input(&c, row, shape);
    c.attrs = attrs;
    c.expect = expect;
    sink(row, &c, arg);
}

/* Values with NaN, infinities and zeros of both signs. */
static void emit_special(const op_row *row, op_sink sink, void *arg, trek_shape shape, trek_attrs attrs)
{
    op_case c = case_begin(row, "special values");
    case_input(&c, row, shape);
    c.in[0].special = true;
    c.in[0].limit = row->special;
    c.dtypes = TREK_FLOATS;
    c.no_gradient = true;
    c.attrs = attrs;
    sink(row, &c, arg);
}

static void emit_large(const op_row *row, op_sink sink, void *arg, trek_shape shape, trek_attrs attrs)
{
    op_case c = case_begin(row, "large");
    case_input(&c, row, shape);
    c.attrs = attrs;
    c.large = true;
    sink(row, &c, arg);
}

FAMILY(sort)
{
    for (int descending = 0; descending < 2; descending++) {
        emit(row, sink, arg, trek_dims(7), NUMBERS(0, descending), TREK_OK);
        emit(row, sink, arg, trek_dims(3, 5), NUMBERS(-1, descending), TREK_OK);
        emit(row, sink, arg, trek_dims(3, 5), NUMBERS(0, descending), TREK_OK);
        emit(row, sink, arg, trek_dims(2, 4, 3), NUMBERS(1, descending), TREK_OK);
        emit(row, sink, arg, trek_dims_none(), NUMBERS(-1, descending), TREK_OK);
        emit(row, sink, arg, trek_dims(3, 0), NUMBERS(1, descending), TREK_OK);
        emit(row, sink, arg, trek_dims(0, 3), NUMBERS(1, descending), TREK_OK);
        emit_special(row, sink, arg, trek_dims(9, 61), NUMBERS(1, descending));
        emit_special(row, sink, arg, trek_dims(61, 9), NUMBERS(0, descending));
        emit_large(row, sink, arg, trek_dims(1500), NUMBERS(0, descending));
        emit_large(row, sink, arg, trek_dims(40, 130), NUMBERS(1, descending));
        emit_large(row, sink, arg, trek_dims(130, 40), NUMBERS(0, descending));
    }
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(2, 0), TREK_ERR_ARGUMENT);
}

FAMILY(topk)
{
    for (int largest = 0; largest < 2; largest++) {
        emit(row, sink, arg, trek_dims(7), NUMBERS(0, 3, largest), TREK_OK);
        emit(row, sink, arg, trek_dims(3, 5), NUMBERS(-1, 5, largest), TREK_OK);
        emit(row, sink, arg, trek_dims(5, 3), NUMBERS(0, 2, largest), TREK_OK);
        emit(row, sink, arg, trek_dims(2, 4, 3), NUMBERS(1, 1, largest), TREK_OK);
        emit(row, sink, arg, trek_dims(2, 4), NUMBERS(1, 0, largest), TREK_OK);
        emit(row, sink, arg, trek_dims_none(), NUMBERS(0, 1, largest), TREK_OK);
        emit(row, sink, arg, trek_dims(0, 3), NUMBERS(1, 2, largest), TREK_OK);
        emit_special(row, sink, arg, trek_dims(4, 61), NUMBERS(1, 20, largest));
        emit_special(row, sink, arg, trek_dims(700), NUMBERS(0, 9, largest));
        emit_large(row, sink, arg, trek_dims(2500), NUMBERS(0, 100, largest));
        emit_large(row, sink, arg, trek_dims(1000, 20), NUMBERS(0, 7, largest));
    }
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(1, 4, 1), TREK_ERR_ARGUMENT);
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(1, -1, 1), TREK_ERR_ARGUMENT);
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(-3, 1, 1), TREK_ERR_ARGUMENT);
}

FAMILY(kthvalue)
{
    for (int which = 0; which < TREK_ORDER_CHOICES; which++) {
        emit(row, sink, arg, trek_dims(7), NUMBERS(0, 3, which), TREK_OK);
        emit(row, sink, arg, trek_dims(3, 6), NUMBERS(-1, 6, which), TREK_OK);
        emit(row, sink, arg, trek_dims(5, 3), NUMBERS(0, 1, which), TREK_OK);
        emit(row, sink, arg, trek_dims_none(), NUMBERS(0, 1, which), TREK_OK);
        emit(row, sink, arg, trek_dims(0, 3), NUMBERS(1, 2, which), TREK_OK);
        emit_special(row, sink, arg, trek_dims(5, 61), NUMBERS(1, 30, which));
        emit_large(row, sink, arg, trek_dims(2500), NUMBERS(0, 1200, which));
        emit_large(row, sink, arg, trek_dims(100, 40), NUMBERS(0, 99, which));
        emit(row, sink, arg, trek_dims(3, 0), NUMBERS(1, 1, which), which ? TREK_ERR_SHAPE : TREK_ERR_ARGUMENT);
    }
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(1, 0, 0), TREK_ERR_ARGUMENT);
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(1, 4, 0), TREK_ERR_ARGUMENT);
}

static void along(const op_row *row, op_sink sink, void *arg)
{
    emit(row, sink, arg, trek_dims(7), NUMBERS(0), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 5), NUMBERS(-1), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 5), NUMBERS(0), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 4, 3), NUMBERS(1), TREK_OK);
    emit(row, sink, arg, trek_dims_none(), NUMBERS(-1), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 0), NUMBERS(1), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3), NUMBERS(2), TREK_ERR_ARGUMENT);
}

FAMILY(running_extreme)
{
    along(row, sink, arg);
    emit_special(row, sink, arg, trek_dims(9, 31), NUMBERS(1));
    emit_special(row, sink, arg, trek_dims(31, 9), NUMBERS(0));
    emit_large(row, sink, arg, trek_dims(3000), NUMBERS(0));
    emit_large(row, sink, arg, trek_dims(70, 200), NUMBERS(0));
}

FAMILY(cumprod) { along(row, sink, arg); }

FAMILY(searchsorted)
{
    const trek_shape lines[] = { trek_dims(6), trek_dims(6), trek_dims(0), trek_dims(2, 5), trek_dims(2, 3, 40) };
    const trek_shape values[] = { trek_dims(3, 4), trek_dims_none(), trek_dims(3), trek_dims(2, 3), trek_dims(2, 3, 9) };
    for (int right = 0; right < 2; right++)
        for (int k = 0; k < 5; k++) {
            op_case c = case_begin(row, "lines");
            case_input(&c, row, lines[k]);
            case_input(&c, row, values[k]);
            c.attrs = NUMBERS(right);
            sink(row, &c, arg);
        }
    op_case c = case_begin(row, "does not fit");
    case_input(&c, row, trek_dims(2, 5));
    case_input(&c, row, trek_dims(3, 5));
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
}

FAMILY(nonzero)
{
    const trek_shape shapes[] = { trek_dims(9), trek_dims(3, 5), trek_dims(2, 3, 4), trek_dims_none(), trek_dims(3, 0) };
    for (int k = 0; k < 5; k++)
        emit(row, sink, arg, shapes[k], NUMBERS(0), TREK_OK);
    emit_special(row, sink, arg, trek_dims(5, 31), NUMBERS(0));
    emit_large(row, sink, arg, trek_dims(40001), NUMBERS(0));
    emit_large(row, sink, arg, trek_dims(170, 210), NUMBERS(0));
}

/* x, index along attrs.i[0], source of the index's shape. */
static op_case indexed(const op_row *row, trek_shape shape, trek_shape index, int64_t bound, trek_attrs attrs)
{
    op_case c = case_begin(row, "places");
    case_input(&c, row, shape);
    case_typed(&c, D_INDEX, TREK_I64, index, bound);
    case_input(&c, row, index);
    c.attrs = attrs;
    return c;
}

static void scatter_cases(const op_row *row, op_sink sink, void *arg, int kind)
{
    bool once = row->id == TREK_OP_scatter; /* several for a place: finite differences see the last alone */
    op_case c = indexed(row, trek_dims(4, 3), trek_dims(1, 3), 4, NUMBERS(0, kind));
    sink(row, &c, arg);
    c = indexed(row, trek_dims(3, 4), trek_dims(2, 1), 4, NUMBERS(-1, kind));
    c.in[1].dtype = TREK_I32;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(4, 3), trek_dims(6, 2), 4, NUMBERS(0, kind));
    c.no_gradient = once;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(2, 3, 4), trek_dims(2, 5, 4), 3, NUMBERS(1, kind));
    c.no_gradient = once;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(3, 4), trek_dims(0, 4), 4, NUMBERS(1, kind));
    sink(row, &c, arg);
    c = indexed(row, trek_dims(300, 50), trek_dims(300, 130), 50, NUMBERS(1, kind));
    c.large = true;
    c.dtypes = row->id == TREK_OP_scatter_reduce && kind == TREK_SCATTER_PROD ? TREK_BIT(F64) : 0; /* others overflow */
    sink(row, &c, arg);
    c = indexed(row, trek_dims(3, 4), trek_dims(4, 4), 4, NUMBERS(1, kind));
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = indexed(row, trek_dims(3, 4), trek_dims(3, 40), 9, NUMBERS(1, kind));
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
}

FAMILY(scatter) { scatter_cases(row, sink, arg, 0); }

FAMILY(scatter_reduce)
{
    for (int kind = 0; kind < TREK_SCATTER_KINDS; kind++)
        scatter_cases(row, sink, arg, kind);
}

FAMILY(diagonal)
{
    emit(row, sink, arg, trek_dims(3, 4), NUMBERS(0, 0, 1), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 4), NUMBERS(2, 0, 1), TREK_OK);
    emit(row, sink, arg, trek_dims(4, 3), NUMBERS(-2, 0, 1), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3, 4), NUMBERS(1, -1, 0), TREK_OK);
    emit(row, sink, arg, trek_dims(2, 3, 4), NUMBERS(-1, 1, 2), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 4), NUMBERS(9, 0, 1), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 4), NUMBERS(-9, 0, 1), TREK_OK);
    emit(row, sink, arg, trek_dims(0, 4), NUMBERS(0, 0, 1), TREK_OK);
    emit(row, sink, arg, trek_dims(3, 4), NUMBERS(0, 1, -1), TREK_ERR_ARGUMENT);
    emit(row, sink, arg, trek_dims(3), NUMBERS(0, 0, 0), TREK_ERR_ARGUMENT);
}
