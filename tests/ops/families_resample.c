/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of resampling and of sampling at places of a grid. */
#include "tests/ops/suite.h"

#define NUMBERS(...) (trek_attrs){ .i = { __VA_ARGS__ } }

static void resample_cases(const op_row *row, op_sink sink, void *arg, bool backward)
{
    static const struct {
        int64_t sizes[4], dim, out;
        double scale;
        bool large;
    } some[] = {
        { { 2, 2, 3, 5 }, 3, 8, 0, false },   { { 2, 2, 3, 5 }, 2, 7, 0, false },  { { 1, 2, 9, 4 }, 2, 4, 0, false },
        { { 1, 2, 2, 11 }, -1, 3, 0, false }, { { 1, 2, 2, 5 }, 3, 6, 1.3, false }, { { 1, 3, 1, 2 }, 2, 4, 0, false },
        { { 2, 1, 5, 3 }, 2, 1, 0, false },   { { 0, 2, 3, 4 }, 3, 6, 0, false },  { { 3, 4, 19, 23 }, 3, 46, 0, true },
        { { 3, 4, 47, 23 }, 2, 15, 0, true }, { { 2, 3, 5, 83 }, 3, 20, 0, true },  { { 2, 3, 9, 40 }, 2, 18, 0, true },
    };
    for (int kind = 0; kind < 4; kind++)
        for (int align = 0; align < 2; align++)
            for (int k = 0; k < (int)(sizeof some / sizeof some[0]); k++) {
                trek_shape shape = trek_shape_make(some[k].sizes, 4);
                int dim = (int)some[k].dim < 0 ? (int)some[k].dim + 4 : (int)some[k].dim;
                int64_t in = shape.sizes[dim];
                shape.sizes[dim] = backward ? some[k].out : in;
                op_case c = case_begin(row, "lines");
                case_input(&c, row, shape);
                c.attrs = NUMBERS(some[k].dim, backward ? in : some[k].out, kind, align);
                c.attrs.f[0] = some[k].scale;
                c.large = some[k].large;
                sink(row, &c, arg);
            }
    op_case c = case_begin(row, "lines");
    case_input(&c, row, trek_dims(2, 3));
    c.attrs = NUMBERS(2, 4, 0, 0);
    c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
    c.attrs = NUMBERS(1, 4, 4, 0);
    sink(row, &c, arg);
    c.attrs = NUMBERS(1, 0, 0, 0);
    c.expect = TREK_ERR_SHAPE;
    sink(row, &c, arg);
    c.in[0].shape = trek_dims(2, 0);
    c.attrs = NUMBERS(1, 4, 0, 0);
    sink(row, &c, arg);
}

FAMILY(resample)
{
    resample_cases(row, sink, arg, false);
}

FAMILY(resample_backward)
{
    resample_cases(row, sink, arg, true);
}

/* x, places of the grid; of four dimensions the last size is 0 */
static const struct grid_shape {
    int64_t n, channels, x[3], places[3];
    bool large;
} grid_shapes[] = {
    { 2, 2, { 4, 5 }, { 2, 3 }, false },       { 1, 1, { 1, 3 }, { 1, 4 }, false },   { 0, 2, { 3, 3 }, { 2, 2 }, false },
    { 2, 0, { 3, 3 }, { 2, 2 }, false },       { 1, 2, { 3, 3 }, { 0, 2 }, false },   { 1, 2, { 2, 3, 4 }, { 2, 1, 2 }, false },
    { 2, 1, { 1, 2, 3 }, { 1, 2, 2 }, false }, { 3, 35, { 7, 9 }, { 13, 19 }, true }, { 2, 3, { 4, 5, 6 }, { 5, 6, 7 }, true },
};
enum { GRID_SHAPES = sizeof grid_shapes / sizeof grid_shapes[0] };

static trek_shape sized(int64_t first, int64_t second, const int64_t *rest, int64_t last)
{
    trek_shape shape = trek_dims(first);
    if (second >= 0)
        shape.sizes[shape.ndim++] = second;
    for (int d = 0; d < 3 && (d < 2 || rest[d] > 0); d++)
        shape.sizes[shape.ndim++] = rest[d];
    if (last > 0)
        shape.sizes[shape.ndim++] = last;
    return shape;
}

/* The case of a shape, its attributes aside. */
static op_case grid_case(const op_row *row, const struct grid_shape *s, bool backward)
{
    op_case c = case_begin(row, "grid");
    if (backward)
        case_input(&c, row, sized(s->n, s->channels, s->places, 0));
    case_input(&c, row, sized(s->n, s->channels, s->x, 0));
    case_input(&c, row, sized(s->n, -1, s->places, s->x[2] > 0 ? 3 : 2));
    c.large = s->large;
    return c;
}

static void grid_bad(const op_row *row, op_sink sink, void *arg, bool backward)
{
    op_case good = grid_case(row, &grid_shapes[0], backward), c = good;
    int x = backward;
    good.expect = TREK_ERR_ARGUMENT;
    c = good, c.attrs = NUMBERS(3, 0, 0);
    sink(row, &c, arg);
    c = good, c.attrs = NUMBERS(0, -1, 0);
    sink(row, &c, arg);
    c = grid_case(row, &grid_shapes[5], backward), c.attrs = NUMBERS(2, 0, 0), c.expect = TREK_ERR_ARGUMENT;
    sink(row, &c, arg);
    good.expect = TREK_ERR_SHAPE;
    c = good, c.in[x + 1].shape.sizes[3] = 3;
    sink(row, &c, arg);
    c = good, c.in[x + 1].shape.sizes[0]++;
    sink(row, &c, arg);
    c = good, c.in[x].shape.sizes[2] = 0;
    sink(row, &c, arg);
    c = good, c.in[x].shape = trek_dims(2, 2, 4);
    sink(row, &c, arg);
    if (backward) {
        c = good, c.in[0].shape.sizes[2]++;
        sink(row, &c, arg);
    }
}

static void grid_cases(const op_row *row, op_sink sink, void *arg, bool backward)
{
    for (int mode = 0; mode < 3; mode++)
        for (int padding = 0; padding < 3; padding++)
            for (int align = 0; align < 2; align++)
                for (int k = 0; k < GRID_SHAPES; k++) {
                    if (mode == TREK_GRID_MODE_BICUBIC && grid_shapes[k].x[2] > 0)
                        continue;
                    op_case c = grid_case(row, &grid_shapes[k], backward);
                    c.attrs = NUMBERS(mode, padding, align);
                    sink(row, &c, arg);
                }
    if (backward)
        for (int without = 1; without < 4; without++) {
            op_case c = grid_case(row, &grid_shapes[0], true);
            c.attrs = NUMBERS(0, 0, 0, without);
            sink(row, &c, arg);
        }
    grid_bad(row, sink, arg, backward);
}

FAMILY(grid_sample)
{
    grid_cases(row, sink, arg, false);
}

FAMILY(grid_sample_backward)
{
    grid_cases(row, sink, arg, true);
}
