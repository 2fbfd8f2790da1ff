/* SPDX-License-Identifier: Apache-2.0 */
/* x[...]: views for numbers, ranges and new dimensions, then one selection by all indices and masks together. */
#include "autograd/index_internal.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"

enum { AT, RANGE, NEW, REST, BY };

trek_subscript trek_subscript_at(int64_t index) { return (trek_subscript){ .kind = AT, .start = index }; }
trek_subscript trek_subscript_range(int64_t start, int64_t stop, int64_t step)
{
    return (trek_subscript){ .kind = RANGE, .start = start, .stop = stop, .step = step };
}
trek_subscript trek_subscript_all(void) { return trek_subscript_range(0, INT64_MAX, 1); }
trek_subscript trek_subscript_new(void) { return (trek_subscript){ .kind = NEW }; }
trek_subscript trek_subscript_rest(void) { return (trek_subscript){ .kind = REST }; }
trek_subscript trek_subscript_by(trek_var *of) { return (trek_subscript){ .kind = BY, .of = of }; }

/* What is left after the views: indices of some dimensions of x. */
typedef struct choice {
    trek_var *x;
    trek_var *index[TREK_MAX_DIMS]; /* [d] of dimension d; NULL for all of it */
    int dim;                        /* the next dimension that a subscript applies to */
} choice;

/* Returns how many dimensions of x the subscripts name, or -1 with an error. */
static int dimensions_named(const trek_var *x, const trek_subscript *s, int count)
{
    int named = 0, rests = 0;
    for (int k = 0; k < count; k++) {
        if (s[k].kind < AT || s[k].kind > BY)
            return trek_fail(TREK_ERR_ARGUMENT, "index: subscript %d: unknown; make it with a function of autograd/subscripts.h",
                             k),
                   -1;
        if (s[k].kind == BY && !s[k].of)
            return trek_fail_missing("index", "variable of indices"), -1;
        rests += s[k].kind == REST;
        named += s[k].kind == AT || s[k].kind == RANGE;
        if (s[k].kind == BY)
            named += trek_var_dtype(s[k].of) == TREK_BOOL ? trek_var_ndim(s[k].of) : 1;
    }
    if (rests > 1)
        return trek_fail(TREK_ERR_ARGUMENT, "index: \"...\": %d times; must be at most once", rests), -1;
    if (named > trek_var_ndim(x))
        return trek_fail(TREK_ERR_ARGUMENT, "index: subscripts: for %d dimensions; the tensor has %d", named, trek_var_ndim(x)),
               -1;
    return named;
}

/* A mask becomes an index for each of its dimensions. A mask without dimensions becomes an index of a new dimension. */
static bool take_mask(choice *c, trek_var *mask)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (trek_var_ndim(mask) == 0) {
        c->x = trek_unsqueeze(c->x, c->dim);
        mask = trek_unsqueeze(mask, 0);
        if (!c->x || !mask)
            return false;
    }
    int n = trek_var_ndim(mask);
    for (int d = 0; d < n; d++)
        if (trek_var_size(mask, d) != trek_var_size(c->x, c->dim + d))
            return trek_fail(TREK_ERR_SHAPE, "index: mask: %s does not fit the dimensions from %d on of %s",
                             trek_tensor_shape_text(mask->data, a), c->dim, trek_tensor_shape_text(c->x->data, b)),
                   false;
    trek_var *found = trek_nonzero(mask);
    for (int d = 0; d < n; d++)
        if (!(c->index[c->dim++] = trek_select(found, 1, d)))
            return false;
    return true;
}

/* Applies one subscript. `missing` is the number of dimensions that no subscript names. */
static bool take(choice *c, const trek_subscript *s, int missing)
{
    switch (s->kind) {
    case AT:
        c->x = trek_select(c->x, c->dim, s->start);
        break;
    case RANGE:
        c->x = trek_slice(c->x, c->dim++, s->start, s->stop, s->step);
        break;
    case NEW:
        c->x = trek_unsqueeze(c->x, c->dim++);
        break;
    case REST:
        c->dim += missing;
        break;
    default:
        if (trek_var_dtype(s->of) == TREK_BOOL)
            return take_mask(c, s->of);
        c->index[c->dim] = trek_checked_index("index", s->of, trek_var_size(c->x, c->dim));
        return c->index[c->dim++] != NULL;
    }
    return c->x != NULL;
}

/* Returns the row-major position among the indexed dimensions; indices broadcast. */
static trek_var *place_of(const choice *c, trek_shape shape)
{
    trek_var *place = NULL;
    for (int d = 0; d < shape.ndim; d++) {
        if (!c->index[d])
            continue;
        place = place ? trek_add(trek_mul_scalar(place, (double)shape.sizes[d]), c->index[d]) : c->index[d];
        if (!place)
            return NULL;
    }
    return place;
}

/* Moves the indexed dimensions to the front and merges them, selects by position, and moves the result to where they
 * were. */
static trek_var *chosen(const choice *c)
{
    trek_shape shape = trek_var_shape(c->x);
    trek_dims_list order = { 0 }, flat = { .ndim = 1, .sizes = { 1 } };
    int first = -1, last = -1, n = 0;
    for (int d = 0; d < shape.ndim; d++) {
        if (!c->index[d])
            continue;
        first = first < 0 ? d : first;
        last = d;
        n++;
        order.sizes[order.ndim++] = d;
        flat.sizes[0] *= shape.sizes[d];
    }
    trek_var *place = place_of(c, shape);
    if (!place)
        return NULL;
    trek_shape out = trek_var_shape(place);
    int broadcast = out.ndim;
    if (broadcast + shape.ndim - n > TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_SHAPE, "index: more than %d dimensions; must be fewer", TREK_MAX_DIMS);
    for (int d = 0; d < shape.ndim; d++) {
        if (c->index[d])
            continue;
        order.sizes[order.ndim++] = d;
        out.sizes[out.ndim++] = flat.sizes[flat.ndim++] = shape.sizes[d];
    }
    trek_var *lines = trek_reshape(trek_permute(c->x, order), flat);
    trek_var *y = trek_reshape(trek_index_select(lines, 0, trek_reshape(place, trek_dims(trek_var_numel(place)))), out);
    trek_dims_list from = { .ndim = broadcast }, to = { .ndim = broadcast };
    for (int k = 0; k < broadcast; k++) {
        from.sizes[k] = k;
        to.sizes[k] = first + k;
    }
    return last - first + 1 == n && first > 0 ? trek_movedim(y, from, to) : y;
}

trek_var *trek_index(trek_var *x, const trek_subscript *subscripts, int count)
{
    if (!x || (count > 0 && !subscripts))
        return trek_fail_missing("index", "input"), NULL;
    int named = dimensions_named(x, subscripts, count);
    if (named < 0)
        return NULL;
    choice c = { .x = x };
    for (int k = 0; k < count; k++)
        if (!take(&c, &subscripts[k], trek_var_ndim(x) - named))
            return NULL;
    for (int d = 0; d < trek_var_ndim(c.x); d++)
        if (c.index[d])
            return chosen(&c);
    return c.x;
}

trek_var *trek_index_assign(trek_var *x, const trek_subscript *subscripts, int count, trek_var *values, bool accumulate)
{
    TREK_NEEDED("index_assign", x, values);
    if (trek_var_dtype(x) != trek_var_dtype(values))
        return trek_fail_null(TREK_ERR_DTYPE, "index_assign: values: dtype %s; x has %s", trek_dtype_name(trek_var_dtype(values)),
                              trek_dtype_name(trek_var_dtype(x)));
    trek_var *places = trek_index(trek_numbered(x), subscripts, count);
    return places ? trek_put(x, places, trek_expand(values, trek_var_shape(places)), accumulate) : NULL;
}
