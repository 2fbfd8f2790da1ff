/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons of integers with a real number, exact even if the integers are wider than its fraction. */
#ifndef TREK_TENSOR_INTEGER_RANGE_H
#define TREK_TENSOR_INTEGER_RANGE_H

#include <math.h>

#include "tensor/op.h"

/* The integers for which the comparison is true: those from low to high, or with `outside` the others. */
typedef struct trek_integer_range {
    int64_t low, high;
    bool outside;
} trek_integer_range;

/* For x op number, where op is eq_scalar to ge_scalar: ends are rounded to integers before they can lose a digit. */
static inline trek_integer_range trek_integer_range_of(int op, double number)
{
    double down = floor(number), up = ceil(number);
    trek_integer_range none = { 1, 0, op == TREK_OP_ne_scalar }, all = { INT64_MIN, INT64_MAX, false };
    if (number != number)
        return none;
    if (op == TREK_OP_eq_scalar || op == TREK_OP_ne_scalar) {
        if (down != number || down < -0x1p63 || down >= 0x1p63)
            return none;
        none.low = none.high = (int64_t)number;
        return none;
    }
    bool below = op == TREK_OP_lt_scalar || op == TREK_OP_le_scalar;
    double end = op == TREK_OP_lt_scalar || op == TREK_OP_ge_scalar ? up : down;
    if (end >= 0x1p63 || end < -0x1p63)
        return below == (end > 0) ? all : none;
    int64_t whole = (int64_t)end;
    if (op == TREK_OP_lt_scalar && whole == INT64_MIN)
        return none;
    if (below)
        all.high = op == TREK_OP_lt_scalar ? whole - 1 : whole;
    else
        all.low = op == TREK_OP_gt_scalar ? whole + 1 : whole; /* a double below 2^63 is not INT64_MAX */
    return all;
}

#endif
