/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of recurrent layers. */
#include "tests/ops/suite.h"

typedef struct recurrent_shape {
    int64_t steps, rows, hidden;
    int given;       /* bits: h0, c0 (of a GRU: the bias), lengths */
    int lengths;     /* their dtype */
    bool reverse, large;
} recurrent_shape;

enum { H0 = 1, C0 = 2, BIAS = 2, LENGTHS = 4, LSTM = 4, GRU = 3 };

static const recurrent_shape recurrent_shapes[] = {
    { 3, 2, 2, 0, TREK_I64, false, false },
    { 3, 2, 2, 0, TREK_I64, true, false },
    { 2, 3, 2, H0 | C0, TREK_I64, false, false },
    { 2, 3, 2, H0 | C0, TREK_I64, true, false },
    { 3, 4, 2, LENGTHS, TREK_I64, false, false },
    { 3, 4, 2, H0 | C0 | LENGTHS, TREK_I32, true, false },
    { 4, 3, 1, H0 | LENGTHS, TREK_U8, true, false },
    { 3, 1, 3, C0, TREK_I64, false, false },
    { 3, 1, 2, H0 | LENGTHS, TREK_I64, false, false },
    { 1, 2, 3, H0 | C0, TREK_I64, false, false },
    { 1, 1, 1, 0, TREK_I64, true, false },
    { 3, 0, 2, H0 | LENGTHS, TREK_I64, false, false },
    { 0, 2, 2, H0 | C0, TREK_I64, false, false },
    { 2, 2, 0, H0, TREK_I64, false, false },
    { 9, 37, 37, H0 | C0 | LENGTHS, TREK_I64, true, true },
    { 5, 70, 130, 0, TREK_I64, false, true },
    { 6, 1, 260, H0 | C0, TREK_I64, false, true },
    { 3, 17, 600, 0, TREK_I64, true, true },
};
enum { RECURRENT_SHAPES = sizeof recurrent_shapes / sizeof recurrent_shapes[0] };

static void optional(op_case *c, const recurrent_shape *s, int bit, trek_shape shape)
{
    if (s->given & bit)
        case_typed(c, D_UNIT, DTYPE_ROW, shape, 0);
    else
        case_absent(c);
}

static void lengths_input(op_case *c, const recurrent_shape *s)
{
    if (s->given & LENGTHS)
        case_typed(c, D_INDEX, s->lengths, trek_dims(s->rows), s->steps + 1);
    else
        case_absent(c);
}

static op_case recurrent_case(const op_row *row, const recurrent_shape *s, int gates, bool keep, const char *label)
{
    op_case c = case_begin(row, label);
    trek_shape state = trek_dims(s->rows, s->hidden);
    case_input(&c, row, trek_dims(s->steps, s->rows, gates * s->hidden));
    case_input(&c, row, trek_dims(gates * s->hidden, s->hidden));
    optional(&c, s, gates == LSTM ? H0 : BIAS, gates == LSTM ? state : trek_dims(gates * s->hidden));
    optional(&c, s, gates == LSTM ? C0 : H0, state);
    lengths_input(&c, s);
    c.attrs.i[0] = s->reverse;
    c.attrs.i[1] = keep;
    c.no_gradient = !keep || s->steps == 0; /* nothing depends on anything */
    c.large = s->large;
    return c;
}

static void bad_shape(const op_row *row, op_sink sink, void *arg, op_case c, int k, trek_shape shape)
{
    c.in[k].shape = shape;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
}

static void recurrent_cases(const op_row *row, op_sink sink, void *arg, int gates)
{
    for (int k = 0; k < RECURRENT_SHAPES; k++)
        for (int keep = 1; keep >= 0; keep--) {
            op_case c = recurrent_case(row, &recurrent_shapes[k], gates, keep, "steps");
            sink(row, &c, arg);
        }
    op_case c = recurrent_case(row, &recurrent_shapes[2], gates, true, "shapes that do not fit");
    bad_shape(row, sink, arg, c, 0, trek_dims(2, 3, gates * 2 + 1));
    bad_shape(row, sink, arg, c, 0, trek_dims(3, gates * 2));
    bad_shape(row, sink, arg, c, 1, trek_dims(gates * 2 + 1, 2));
    bad_shape(row, sink, arg, c, 2, trek_dims(3, 5));
    bad_shape(row, sink, arg, c, 3, trek_dims(2, 2));
    c = recurrent_case(row, &recurrent_shapes[4], gates, true, "lengths that do not fit");
    bad_shape(row, sink, arg, c, 4, trek_dims(5));
    c.in[4].dtype = TREK_F32;
    c.in[4].domain = D_ANY;
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
    recurrent_shape many = { 2, 64, 2, LENGTHS, TREK_I64, false, false };
    c = recurrent_case(row, &many, gates, true, "a length beyond the steps");
    c.in[4].limit = 9;
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
}

FAMILY(lstm) { recurrent_cases(row, sink, arg, LSTM); }
FAMILY(gru) { recurrent_cases(row, sink, arg, GRU); }

/* weight, kept, (y,) grad, grad of the state, c0 (h0), lengths; the kernel does not ask whether they belong together. */
static op_case recurrent_gradient(const op_row *row, const recurrent_shape *s, int gates, int grads)
{
    op_case c = case_begin(row, "steps back");
    trek_shape y = trek_dims(s->steps, s->rows, s->hidden), state = trek_dims(s->rows, s->hidden);
    case_input(&c, row, trek_dims(gates * s->hidden, s->hidden));
    case_typed(&c, D_PROBABILITY, DTYPE_STATISTICS, trek_dims(s->steps, s->rows, (gates + 1) * s->hidden), 0);
    if (gates == GRU)
        case_typed(&c, D_UNIT, DTYPE_ROW, y, 0);
    for (int k = 0; k < 2; k++) {
        trek_shape shape = k == 0 ? y : gates == GRU ? state : trek_dims(2, s->rows, s->hidden);
        if (grads >> k & 1)
            case_typed(&c, D_UNIT, DTYPE_ROW, shape, 0);
        else
            case_absent(&c);
    }
    optional(&c, s, gates == LSTM ? C0 : H0, state);
    lengths_input(&c, s);
    c.attrs.i[0] = s->reverse;
    c.attrs.i[1] = 1;
    c.large = s->large;
    return c;
}

static void recurrent_gradients(const op_row *row, op_sink sink, void *arg, int gates)
{
    for (int k = 0; k < RECURRENT_SHAPES; k++)
        for (int grads = 1; grads < 4; grads++) {
            op_case c = recurrent_gradient(row, &recurrent_shapes[k], gates, grads);
            sink(row, &c, arg);
        }
    const recurrent_shape *s = &recurrent_shapes[2];
    op_case c = recurrent_gradient(row, s, gates, 3);
    bad_shape(row, sink, arg, c, 0, trek_dims(gates * 2, 3));
    bad_shape(row, sink, arg, c, 1, trek_dims(2, 3, gates * 2));
    bad_shape(row, sink, arg, c, gates == GRU ? 3 : 2, trek_dims(3, 3, 2));
    bad_shape(row, sink, arg, c, gates == GRU ? 4 : 3, trek_dims(3, 3));
    bad_shape(row, sink, arg, c, gates == GRU ? 5 : 4, trek_dims(3, 3));
}

FAMILY(lstm_backward) { recurrent_gradients(row, sink, arg, LSTM); }
FAMILY(gru_backward) { recurrent_gradients(row, sink, arg, GRU); }
