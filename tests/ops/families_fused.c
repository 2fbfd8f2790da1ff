/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the fused ops of transformers. */
#include <string.h>

#include "tests/ops/suite.h"

/* --- rms_norm ------------------------------------------------------------------------ */

static trek_shape tail_of(trek_shape x, int dims)
{
    return trek_shape_make(x.sizes + x.ndim - dims, dims);
}

/* A parameter in f32 where the input has 16 bits. */
enum { WIDE = 16 };

static void rms_case(const op_row *row, op_sink sink, void *arg, trek_shape x, int dims, int weighted, bool large)
{
    op_case c = case_begin(row, "rows");
    case_input(&c, row, x);
    if (weighted)
        case_typed(&c, row->domain[1], weighted & WIDE ? DTYPE_STATISTICS : DTYPE_ROW, tail_of(x, dims), 0);
    else
        case_absent(&c);
    c.attrs.i[0] = dims;
    c.attrs.f[0] = 1e-5;
    c.large = large;
    sink(row, &c, arg);
}

FAMILY(rms_norm)
{
    for (int weighted = 0; weighted < 2; weighted++) {
        rms_case(row, sink, arg, trek_dims(4, 6), 1, weighted, false);
        rms_case(row, sink, arg, trek_dims(3, 2, 4), 2, weighted, false);
        rms_case(row, sink, arg, trek_dims(5), 1, weighted, false);
        rms_case(row, sink, arg, trek_dims(0, 6), 1, weighted, false);
        rms_case(row, sink, arg, trek_dims(1, 6), 1, weighted, false);
        rms_case(row, sink, arg, trek_dims(3, 1), 1, weighted, false);
        rms_case(row, sink, arg, trek_dims(3, 0), 1, weighted, false);
        rms_case(row, sink, arg, trek_dims(130, 517), 1, weighted, true);
    }
    rms_case(row, sink, arg, trek_dims(4, 6), 1, WIDE, false);
    rms_case(row, sink, arg, trek_dims(130, 520), 1, WIDE, true);
    op_case c = case_begin(row, "too many dimensions");
    case_input(&c, row, trek_dims(4, 6));
    case_absent(&c);
    c.attrs.i[0] = 3;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
    c.attrs.i[0] = 0;
    sink(row, &c, arg);
    c = case_begin(row, "weight does not fit");
    case_input(&c, row, trek_dims(4, 6));
    case_input(&c, row, trek_dims(5));
    c.attrs.i[0] = 1;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
}

static void rms_gradient_case(const op_row *row, op_sink sink, void *arg, trek_shape x, int dims, int weighted, bool large)
{
    op_case c = case_begin(row, "gradient");
    trek_shape tail = tail_of(x, dims);
    case_input(&c, row, x);
    case_input(&c, row, x);
    case_typed(&c, D_RSTD, DTYPE_STATISTICS, trek_dims(trek_shape_numel(x) / trek_shape_numel(tail)), 0);
    if (weighted)
        case_typed(&c, D_ANY, weighted & WIDE ? DTYPE_STATISTICS : DTYPE_ROW, tail, 0);
    else
        case_absent(&c);
    c.attrs.i[0] = dims;
    c.large = large;
    sink(row, &c, arg);
    if (large)
        return;
    c.in[0].shape.sizes[0]++;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
}

FAMILY(rms_norm_backward)
{
    for (int weighted = 0; weighted < 2; weighted++) {
        rms_gradient_case(row, sink, arg, trek_dims(4, 6), 1, weighted, false);
        rms_gradient_case(row, sink, arg, trek_dims(3, 2, 4), 2, weighted, false);
        rms_gradient_case(row, sink, arg, trek_dims(520, 131), 1, weighted, true);
    }
    rms_gradient_case(row, sink, arg, trek_dims(4, 6), 1, WIDE, false);
    rms_gradient_case(row, sink, arg, trek_dims(70, 264), 1, WIDE, true);
}

/* --- add_layer_norm ------------------------------------------------------------------- */

static void add_norm_case(const op_row *row, op_sink sink, void *arg, trek_shape x, int dims, int given, bool large)
{
    op_case c = case_begin(row, "rows");
    case_input(&c, row, x);
    case_input(&c, row, x);
    for (int k = 0; k < 2; k++) {
        if (given >> k & 1)
            case_typed(&c, row->domain[2], given & WIDE ? DTYPE_STATISTICS : DTYPE_ROW, tail_of(x, dims), 0);
        else
            case_absent(&c);
    }
    c.attrs.i[0] = dims;
    c.attrs.f[0] = 1e-5;
    c.large = large;
    sink(row, &c, arg);
}

FAMILY(add_layer_norm)
{
    for (int given = 0; given < 4; given++) {
        add_norm_case(row, sink, arg, trek_dims(4, 6), 1, given, false);
        add_norm_case(row, sink, arg, trek_dims(3, 2, 4), 2, given, false);
        add_norm_case(row, sink, arg, trek_dims(5), 1, given, false);
        add_norm_case(row, sink, arg, trek_dims(0, 6), 1, given, false);
        add_norm_case(row, sink, arg, trek_dims(1, 6), 1, given, false);
        add_norm_case(row, sink, arg, trek_dims(3, 1), 1, given, false);
        add_norm_case(row, sink, arg, trek_dims(3, 2), 1, given, false);
        add_norm_case(row, sink, arg, trek_dims(3, 0), 1, given, false);
        add_norm_case(row, sink, arg, trek_dims(130, 517), 1, given, true);
        add_norm_case(row, sink, arg, trek_dims(4, 6), 1, given | WIDE, false);
        add_norm_case(row, sink, arg, trek_dims(130, 520), 1, given | WIDE, true);
    }
    op_case c = case_begin(row, "branch does not fit");
    case_input(&c, row, trek_dims(4, 6));
    case_input(&c, row, trek_dims(1, 6));
    case_absent(&c);
    case_absent(&c);
    c.attrs.i[0] = 1;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c.in[1].shape = trek_dims(4, 6);
    c.in[3] = (op_input){ .shape = trek_dims(5), .domain = D_ANY, .dtype = DTYPE_ROW };
    sink(row, &c, arg);
    c.in[3] = (op_input){ .absent = true };
    c.attrs.i[0] = 3;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
}

static void add_norm_gradient_case(const op_row *row, op_sink sink, void *arg, trek_shape x, int dims, int given, bool large)
{
    op_case c = case_begin(row, "gradient");
    trek_shape tail = tail_of(x, dims);
    trek_shape rows = trek_dims(trek_shape_numel(x) / trek_shape_numel(tail));
    case_input(&c, row, x);
    if (given & 1)
        case_input(&c, row, x);
    else
        case_absent(&c);
    case_input(&c, row, x);
    case_typed(&c, D_ANY, DTYPE_STATISTICS, rows, 0);
    case_typed(&c, D_RSTD, DTYPE_STATISTICS, rows, 0);
    if (given & 2)
        case_typed(&c, D_ANY, given & WIDE ? DTYPE_STATISTICS : DTYPE_ROW, tail, 0);
    else
        case_absent(&c);
    c.attrs.i[0] = dims;
    c.large = large;
    sink(row, &c, arg);
    if (large)
        return;
    c.in[0].shape.sizes[0]++;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
}

FAMILY(add_layer_norm_backward)
{
    for (int given = 0; given < 4; given++) {
        add_norm_gradient_case(row, sink, arg, trek_dims(4, 6), 1, given, false);
        add_norm_gradient_case(row, sink, arg, trek_dims(3, 2, 4), 2, given, false);
        add_norm_gradient_case(row, sink, arg, trek_dims(520, 131), 1, given, true);
        add_norm_gradient_case(row, sink, arg, trek_dims(4, 6), 1, given | WIDE, false);
        add_norm_gradient_case(row, sink, arg, trek_dims(70, 264), 1, given | WIDE, true);
    }
}

/* --- pointwise_loss ------------------------------------------------------------------ */

static void loss_case(const op_row *row, op_sink sink, void *arg, int kind, trek_shape x, trek_shape target, trek_status expect)
{
    op_case c = case_begin(row, "a loss of elements");
    if (row->id == TREK_OP_pointwise_loss_backward)
        case_typed(&c, D_ANY, DTYPE_STATISTICS, x.ndim >= target.ndim &&
                   trek_shape_numel(x) >= trek_shape_numel(target) ? x : target, 0);
    case_typed(&c, kind == TREK_LOSS_BINARY ? D_PROBABILITY : D_ANY, DTYPE_ROW, x, 0);
    case_typed(&c, D_PROBABILITY, DTYPE_ROW, target, 0);
    c.attrs.i[0] = kind;
    c.attrs.f[0] = 0.75;
    c.expect = expect;
    c.large = trek_shape_numel(x) > 60000;
    sink(row, &c, arg);
}

static void loss_cases(const op_row *row, op_sink sink, void *arg)
{
    for (int kind = 0; kind < TREK_LOSS_KINDS; kind++) {
        loss_case(row, sink, arg, kind, trek_dims(3, 17), trek_dims(3, 17), TREK_OK);
        loss_case(row, sink, arg, kind, trek_dims(3, 5), trek_dims(5), TREK_OK);
        loss_case(row, sink, arg, kind, trek_dims(4), trek_dims(2, 3, 4), TREK_OK);
        loss_case(row, sink, arg, kind, trek_dims_none(), trek_dims_none(), TREK_OK);
        loss_case(row, sink, arg, kind, trek_dims(2, 0), trek_dims(2, 0), TREK_OK);
        loss_case(row, sink, arg, kind, trek_dims(259, 263), trek_dims(259, 263), TREK_OK);
    }
    loss_case(row, sink, arg, TREK_LOSS_SQUARED, trek_dims(3, 5), trek_dims(4), TREK_ERR_SHAPE);
}

FAMILY(pointwise_loss)
{
    loss_cases(row, sink, arg);
    loss_case(row, sink, arg, TREK_LOSS_KINDS, trek_dims(3), trek_dims(3), TREK_ERR_ARGUMENT);
}
FAMILY(pointwise_loss_backward) { loss_cases(row, sink, arg); }

/* --- linear_cross_entropy --------------------------------------------------------------- */

typedef struct loss_options {
    int64_t ignore;
    trek_reduction reduction;
    double smoothing;
    bool bias;
    int label_dtype;
    int gradients;
} loss_options;

static const loss_options losses[] = {
    { -100, TREK_REDUCTION_MEAN, 0, false, TREK_I64, 0 }, { -100, TREK_REDUCTION_SUM, 0, true, TREK_I32, 0 },
    { -100, TREK_REDUCTION_NONE, 0, true, TREK_U8, 0 },   { 1, TREK_REDUCTION_MEAN, 0, true, TREK_I64, 0 },
    { 1, TREK_REDUCTION_NONE, 0.1, false, TREK_I64, 0 },  { 0, TREK_REDUCTION_MEAN, 0.2, true, TREK_I64, 0 },
    { 1, TREK_REDUCTION_MEAN, 0.1, true, TREK_I64, TREK_HEAD_X | TREK_HEAD_WEIGHT | TREK_HEAD_BIAS },
    { -100, TREK_REDUCTION_SUM, 0, false, TREK_I32, TREK_HEAD_WEIGHT },
    { 2, TREK_REDUCTION_MEAN, 0, true, TREK_U8, TREK_HEAD_X | TREK_HEAD_BIAS },
};
enum { LOSSES = sizeof losses / sizeof losses[0] };

static void loss_inputs(op_case *c, const op_row *row, const loss_options *l, int64_t rows, int64_t columns, int64_t classes)
{
    case_input(c, row, trek_dims(rows, columns));
    case_input(c, row, trek_dims(classes, columns));
    if (l->bias)
        case_input(c, row, trek_dims(classes));
    else
        case_absent(c);
    case_typed(c, D_INDEX, l->label_dtype, trek_dims(rows), classes);
    c->attrs.i[0] = l->ignore;
    c->attrs.i[1] = l->reduction;
    c->attrs.i[2] = l->gradients;
    c->attrs.f[0] = l->smoothing;
}

FAMILY(linear_cross_entropy)
{
    for (int k = 0; k < LOSSES; k++) {
        op_case c = case_begin(row, "classes");
        loss_inputs(&c, row, &losses[k], 5, 3, 4);
        sink(row, &c, arg);
        c = case_begin(row, "no rows");
        loss_inputs(&c, row, &losses[k], 0, 3, 4);
        c.no_gradient = true;
        sink(row, &c, arg);
        c = case_begin(row, "pieces");
        loss_inputs(&c, row, &losses[k], 4200, 5, 63);
        c.large = true;
        sink(row, &c, arg);
    }
    op_case c = case_begin(row, "depths differ");
    loss_inputs(&c, row, &losses[1], 5, 3, 4);
    c.in[1].shape.sizes[1]++;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c.in[1].shape.sizes[1]--;
    c.in[2].shape = trek_dims(3);
    sink(row, &c, arg);
    c.in[2].shape = trek_dims(4);
    c.in[3].shape = trek_dims(6);
    sink(row, &c, arg);
    c.in[3].shape = trek_dims(5);
    c.in[3].dtype = TREK_F32;
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
    c.in[3].dtype = TREK_I32;
    c.attrs.f[0] = 1.5;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
    c = case_begin(row, "gradients of what is not there");
    loss_inputs(&c, row, &losses[0], 5, 3, 4);
    c.attrs.i[2] = TREK_HEAD_BIAS;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
    c = case_begin(row, "gradients of each row's loss");
    loss_inputs(&c, row, &losses[2], 5, 3, 4);
    c.attrs.i[2] = TREK_HEAD_X;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
    c = case_begin(row, "a label out of range");
    loss_inputs(&c, row, &losses[0], 64, 3, 4);
    c.in[3].limit = 9;
    c.expect = TREK_ERR_ARGUMENT;
    c.in_data = true;
    sink(row, &c, arg);
}

/* As long as the gradients are, which may be any numbers here. */
static void kept_input(op_case *c, const loss_options *l, int64_t rows, int64_t columns, int64_t classes)
{
    int64_t n = (l->gradients & TREK_HEAD_X ? rows * columns : 0) + (l->gradients & TREK_HEAD_WEIGHT ? classes * columns : 0) +
        (l->gradients & TREK_HEAD_BIAS ? classes : 0);
    if (l->gradients)
        case_typed(c, D_UNIT, DTYPE_STATISTICS, trek_dims(n), 0);
}

FAMILY(linear_cross_entropy_backward)
{
    for (int k = 0; k < LOSSES; k++)
        for (int large = 0; large < 2; large++) {
            const loss_options *l = &losses[k];
            int64_t rows = large ? 4200 : 5;
            op_case c = case_begin(row, "classes");
            case_typed(&c, D_UNIT, DTYPE_STATISTICS, l->reduction == TREK_REDUCTION_NONE ? trek_dims(rows) : trek_dims_none(), 0);
            loss_inputs(&c, row, l, rows, large ? 5 : 3, large ? 63 : 4);
            case_typed(&c, D_POSITIVE, TREK_F64, trek_dims(rows), 0);
            case_typed(&c, D_POSITIVE, DTYPE_STATISTICS, trek_dims_none(), 0);
            kept_input(&c, l, rows, large ? 5 : 3, large ? 63 : 4);
            c.large = large;
            sink(row, &c, arg);
            if (l->gradients && !large) {
                c.in[7].shape.sizes[0]--;
                c.expect = TREK_ERR_SHAPE;
                sink(row, &c, arg);
            }
            if (k > 0 || large)
                continue;
            c.in[5].shape = trek_dims(rows + 1);
            c.expect = TREK_ERR_SHAPE;
            sink(row, &c, arg);
        }
}

/* --- attention ------------------------------------------------------------------------- */

typedef enum mask_kind { MASK_NONE, MASK_BOOL, MASK_ROW_DTYPE, MASK_STATISTICS } mask_kind;

typedef struct attention_shape {
    int64_t batch, heads, kv_heads, queries, keys, depth;
    bool causal;
    double scale, p;
    mask_kind mask;
    int mask_dims;            /* how many of [B, H, T, S] the mask has */
    int mask_ones;            /* bits: dimensions of the mask that are 1, counted from the last */
    bool large;
} attention_shape;

static const attention_shape attention_shapes[] = {
    { 2, 2, 2, 3, 5, 4, false, 0, 0, MASK_NONE, 0, 0, false },
    { 1, 2, 2, 4, 4, 3, true, 0, 0, MASK_NONE, 0, 0, false },
    { 1, 1, 1, 5, 3, 4, true, 0.7, 0, MASK_NONE, 0, 0, false },
    { 1, 2, 1, 2, 4, 4, true, 0, 0, MASK_NONE, 0, 0, false },
    { 2, 4, 2, 3, 3, 2, false, -0.4, 0, MASK_NONE, 0, 0, false },
    { 2, 2, 1, 4, 2, 3, false, 0, 0, MASK_BOOL, 2, 0, false },
    { 2, 2, 2, 3, 4, 3, true, 0, 0, MASK_BOOL, 4, 6, false },
    { 2, 2, 2, 3, 4, 3, false, 0, 0, MASK_ROW_DTYPE, 3, 4, false },
    { 2, 2, 2, 3, 4, 3, false, 0, 0, MASK_STATISTICS, 4, 9, false },
    { 2, 2, 2, 3, 5, 4, false, 0, 0.3, MASK_NONE, 0, 0, false },
    { 1, 2, 1, 4, 4, 4, true, 0, 0.6, MASK_BOOL, 1, 0, false },
    { 1, 1, 1, 1, 1, 1, false, 0, 0, MASK_NONE, 0, 0, false },
    { 0, 2, 2, 3, 5, 4, false, 0, 0, MASK_NONE, 0, 0, false },
    { 2, 2, 2, 0, 5, 4, false, 0, 0, MASK_NONE, 0, 0, false },
    { 2, 2, 2, 3, 0, 4, false, 0, 0, MASK_NONE, 0, 0, false },
    { 2, 4, 2, 150, 600, 40, true, 0, 0, MASK_NONE, 0, 0, true },
    { 1, 2, 2, 530, 530, 33, true, 0, 0, MASK_NONE, 0, 0, true },
    { 1, 6, 6, 70, 300, 16, false, 0, 0.2, MASK_BOOL, 4, 4, true },
    { 8, 2, 2, 65, 257, 9, false, 0, 0, MASK_ROW_DTYPE, 2, 0, true },
    { 1, 2, 1, 70, 100, 72, true, 0, 0, MASK_NONE, 0, 0, true },
    { 1, 1, 1, 130, 40, 128, false, 0, 0.1, MASK_STATISTICS, 2, 0, true },
    { 1, 1, 1, 20, 70, 64, false, 0, 0, MASK_NONE, 0, 0, true },
};
enum { ATTENTION_SHAPES = sizeof attention_shapes / sizeof attention_shapes[0] };

static void attention_attrs(op_case *c, const attention_shape *s)
{
    c->attrs = (trek_attrs){ .i = { 42, 3, 1, 20, s->causal }, .f = { s->p, s->scale } };
    c->large = s->large;
}

static void attention_mask_input(op_case *c, const attention_shape *s)
{
    if (s->mask == MASK_NONE) {
        case_absent(c);
        return;
    }
    const int64_t whole[4] = { s->batch, s->heads, s->queries, s->keys };
    trek_shape shape = trek_shape_make(whole + 4 - s->mask_dims, s->mask_dims);
    for (int d = 0; d < shape.ndim; d++)
        if (s->mask_ones >> (shape.ndim - 1 - d) & 1)
            shape.sizes[d] = 1;
    case_typed(c, s->mask == MASK_BOOL ? D_BINARY : D_ANY,
               s->mask == MASK_BOOL ? (int)TREK_BOOL : s->mask == MASK_ROW_DTYPE ? DTYPE_ROW : DTYPE_STATISTICS, shape, 0);
}

static op_case attention_case(const op_row *row, const attention_shape *s, const char *label)
{
    op_case c = case_begin(row, label);
    case_input(&c, row, trek_dims(s->batch, s->heads, s->queries, s->depth));
    case_input(&c, row, trek_dims(s->batch, s->kv_heads, s->keys, s->depth));
    case_input(&c, row, trek_dims(s->batch, s->kv_heads, s->keys, s->depth));
    attention_mask_input(&c, s);
    attention_attrs(&c, s);
    return c;
}

FAMILY(attention)
{
    for (int k = 0; k < ATTENTION_SHAPES; k++) {
        op_case c = attention_case(row, &attention_shapes[k], "heads");
        sink(row, &c, arg);
    }
    const attention_shape *s = &attention_shapes[0];
    op_case c = attention_case(row, s, "three dimensions");
    c.in[0].shape = trek_dims(2, 3, 4);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = attention_case(row, s, "key and value differ");
    c.in[2].shape.sizes[2]++;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = attention_case(row, s, "depths differ");
    c.in[0].shape.sizes[3]++;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = attention_case(row, s, "heads are no multiple");
    c.in[0].shape.sizes[1] = 3;
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c = attention_case(row, s, "the mask does not fit");
    c.in[3] = (op_input){ .shape = trek_dims(2, 5), .domain = D_BINARY, .dtype = TREK_BOOL };
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c.in[3] = (op_input){ .shape = trek_dims(3, 5), .domain = D_BINARY, .dtype = TREK_I64 };
    c.expect = TREK_ERR_DTYPE;
    sink(row, &c, arg);
    c = attention_case(row, s, "dropout above 1");
    c.attrs.f[0] = 1.5;
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
}

/* grad, q, k, v, y, logsumexp, mask; the kernel does not ask whether y and logsumexp belong together. */
FAMILY(attention_backward)
{
    for (int k = 0; k < ATTENTION_SHAPES; k++) {
        const attention_shape *s = &attention_shapes[k];
        op_case c = case_begin(row, "heads");
        trek_shape queries = trek_dims(s->batch, s->heads, s->queries, s->depth);
        trek_shape keys = trek_dims(s->batch, s->kv_heads, s->keys, s->depth);
        case_input(&c, row, queries);
        case_input(&c, row, queries);
        case_input(&c, row, keys);
        case_input(&c, row, keys);
        case_input(&c, row, queries);
        case_typed(&c, D_POSITIVE, DTYPE_STATISTICS, trek_dims(s->batch, s->heads, s->queries), 0);
        attention_mask_input(&c, s);
        attention_attrs(&c, s);
        sink(row, &c, arg);
        if (k > 0)
            continue;
        c.in[0].shape.sizes[2]++;
        c.expect = TREK_ERR_SHAPE;
        sink(row, &c, arg);
        c.in[0].shape.sizes[2]--;
        c.in[5].shape.sizes[2]++;
        sink(row, &c, arg);
    }
}
