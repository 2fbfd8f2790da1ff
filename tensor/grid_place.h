/* SPDX-License-Identifier: Apache-2.0 */
/* Where grid_sample reads, for one real type: PLACE_REAL is its C type, PLACE(name) makes names for it. All backends
 * use this text; its only branches are on options. It includes nothing: resample.h must be included before it. */

/* Returns -2^30 if x is 2^30 or more away, or NaN: no line is so long. (C's function is a call, or may trap. All
 * candidates are computed first and choices do not depend on each other, so that loops can be vectorised.) */
TREK_EVERYWHERE PLACE_REAL PLACE(place_floor)(PLACE_REAL x)
{
    const PLACE_REAL most = (PLACE_REAL)(1 << 30), away = x < 0 ? -x : x;
    x = away < most ? x : -most;
    PLACE_REAL whole = (PLACE_REAL)(int32_t)x, above = whole > x ? 1 : 0;
    return whole - above;
}

/* Rounds to the nearest integer, halves to even. */
TREK_EVERYWHERE PLACE_REAL PLACE(place_round)(PLACE_REAL x)
{
    PLACE_REAL below = PLACE(place_floor)(x), past = x - below, odd = below - 2 * PLACE(place_floor)(below / 2);
    PLACE_REAL up = past > (PLACE_REAL)0.5 ? 1 : 0;
    return below + (past == (PLACE_REAL)0.5 ? odd : up);
}

/* Converts a coordinate of the grid to a position along a dimension of `size`: -1 is its beginning and 1 its end, or
 * the centres of the elements there. */
TREK_EVERYWHERE PLACE_REAL PLACE(place_of)(PLACE_REAL at, PLACE_REAL size, bool align)
{
    return align ? (at + 1) / 2 * (size - 1) : ((at + 1) * size - 1) / 2;
}

/* Mirrors the position at both edges; *slope is multiplied by the derivative. */
TREK_EVERYWHERE PLACE_REAL PLACE(place_mirrored)(PLACE_REAL at, PLACE_REAL size, bool align, PLACE_REAL *slope)
{
    const PLACE_REAL low = align ? 0 : (PLACE_REAL)-0.5, span = align ? size - 1 : size, safe = span > 0 ? span : 1;
    PLACE_REAL off = at - low, turn = off < 0 ? -*slope : *slope;
    off = off < 0 ? -off : off;
    PLACE_REAL flips = PLACE(place_floor)(off / safe), rest = off - flips * safe;
    PLACE_REAL odd = flips - 2 * PLACE(place_floor)(flips / 2);
    PLACE_REAL back = span - rest;
    turn = odd != 0 ? -turn : turn;
    rest = (odd != 0 ? back : rest) + low;
    *slope = span > 0 ? turn : 0;
    return span > 0 ? rest : 0;
}

/* Returns the nearest position of the line; for NaN the first. */
TREK_EVERYWHERE PLACE_REAL PLACE(place_held)(PLACE_REAL at, PLACE_REAL size, PLACE_REAL *slope)
{
    PLACE_REAL last = size - 1, kept = at > 0 ? *slope : 0;
    *slope = at < last ? kept : 0;
    at = at > 0 ? at : 0;
    return at < last ? at : last;
}

/* Moves the position into the line, by the padding. slope is multiplied by the derivative. */
TREK_EVERYWHERE PLACE_REAL PLACE(place_padded)(PLACE_REAL at, PLACE_REAL size, int padding, bool align, PLACE_REAL *slope)
{
    if (padding == TREK_GRID_PADDING_ZEROS)
        return at;
    if (padding == TREK_GRID_PADDING_REFLECTION)
        at = PLACE(place_mirrored)(at, size, align, slope);
    return PLACE(place_held)(at, size, slope);
}

/* Returns the index of the element `tap` after `from`, a floor, or -1 if it is outside. */
TREK_EVERYWHERE int32_t PLACE(place_inside)(PLACE_REAL from, int32_t tap, int32_t size)
{
    int32_t at = (int32_t)from + tap;
    return (uint32_t)at < (uint32_t)size ? at : -1;
}

/* Keys' kernel with a = -0.75 for the four elements around a position that is `past` after the second, and its
 * derivative. */
TREK_EVERYWHERE PLACE_REAL PLACE(place_cubic)(PLACE_REAL past, int tap, PLACE_REAL *slope)
{
    const PLACE_REAL a = (PLACE_REAL)-0.75;
    PLACE_REAL x = tap == 0 ? past + 1 : tap == 1 ? past : tap == 2 ? 1 - past : 2 - past;
    bool near = tap == 1 || tap == 2;
    PLACE_REAL rise = near ? (3 * (a + 2) * x - 2 * (a + 3)) * x : (3 * a * x - 10 * a) * x + 8 * a;
    *slope = tap < 2 ? rise : -rise;
    return near ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}
