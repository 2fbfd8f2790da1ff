/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics that need all scores: the area under the ROC curve, average precision. A row of the list has the scores,
 * the target (one class, or one for each label; NaN: not counted) and the weight. */
#include <stdlib.h>

#include "graph/metric_internal.h"

static int64_t targets_of(const metric_form *f) { return f->multilabel ? f->classes : 1; }
static int64_t width_of(const metric_form *f) { return metric_parts(f) + targets_of(f) + 1; }
static int64_t sums_of(const metric_form *f)
{
    (void)f;
    return 0;
}

static const char *name_of(const metric_form *f) { return f->kind == TREK_METRIC_KIND_AUROC ? "AUROC" : "average precision"; }

/* --- a batch --------------------------------------------------------------------------------------------------- */

static trek_status check_row(const metric_form *f, const double *scores, const double *targets, int64_t row)
{
    double classes = metric_is_multiclass(f) ? (double)f->classes : 2;
    for (int64_t k = 0; k < targets_of(f); k++)
        if (!metric_ignores(f, targets[k]) && !(targets[k] >= 0 && targets[k] < classes && floor(targets[k]) == targets[k]))
            return trek_fail(TREK_ERR_ARGUMENT, "%s: target: %g at row %lld; must be inside [0, %g)", name_of(f), targets[k],
                             (long long)row, classes);
    for (int64_t k = 0; k < metric_parts(f); k++)
        if (isnan(scores[k]) && !metric_ignores(f, targets[f->multilabel ? k : 0]))
            return trek_fail(TREK_ERR_ARGUMENT, "%s: pred: a score at row %lld is NaN; must be a number", name_of(f),
                             (long long)row);
    return TREK_OK;
}

static trek_status check(const metric_form *f, const metric_rows *rows)
{
    trek_status status = TREK_OK;
    for (int64_t k = 0; k < rows->n && status == TREK_OK; k++)
        status = check_row(f, rows->column[METRIC_PRED] + k * metric_parts(f), rows->column[METRIC_TARGET] + k * targets_of(f),
                           k);
    return status;
}

static trek_status add(trek_metric *m, const metric_rows *rows)
{
    const metric_form *f = &m->form;
    int64_t parts = metric_parts(f), targets = targets_of(f);
    double *to;
    trek_status status = metric_list_room(m, rows->n, &to);
    for (int64_t k = 0; k < rows->n && status == TREK_OK; k++) {
        const double *target = rows->column[METRIC_TARGET] + k * targets;
        bool counts = false;
        memcpy(to, rows->column[METRIC_PRED] + k * parts, (size_t)parts * sizeof *to);
        for (int64_t t = 0; t < targets; t++) {
            to[parts + t] = metric_ignores(f, target[t]) ? (double)NAN : target[t];
            counts |= !isnan(to[parts + t]);
        }
        to[parts + targets] = metric_weight(rows, k);
        if (!counts)
            continue;
        to += m->width;
        m->rows++;
        m->counted++;
    }
    return status;
}

/* --- a curve ------------------------------------------------------------------------------------------------------ */

typedef struct point {
    double score, weight;
    bool positive;
} point;

typedef struct curve {
    point *points;
    int64_t n;
    metric_sum positive, negative; /* sums of weights */
} curve;

static int descending(const void *a, const void *b)
{
    double x = ((const point *)a)->score, y = ((const point *)b)->score;
    return x > y ? -1 : x < y;
}

/* Takes part c's scores and targets; of several classes, its targets against the rest. */
static void take_part(const trek_metric *m, int64_t c, curve *to)
{
    const metric_form *f = &m->form;
    int64_t parts = metric_parts(f), targets = targets_of(f);
    for (int64_t k = 0; k < m->rows; k++) {
        const double *row = m->list + k * m->width;
        double target = row[parts + (f->multilabel ? c : 0)], weight = row[parts + targets];
        if (isnan(target) || weight == 0)
            continue;
        bool positive = metric_is_multiclass(f) ? target == (double)c : target == 1;
        to->points[to->n++] = (point){ row[c], weight, positive };
        metric_sum *sum = positive ? &to->positive : &to->negative;
        *sum = metric_plus(*sum, weight);
    }
}

/* Sums the weights of equal scores, from k to *end. */
typedef struct step {
    metric_sum positive, negative;
} step;

static step step_at(const curve *c, int64_t k, int64_t *end)
{
    step s = { 0 };
    for (*end = k; *end < c->n && c->points[*end].score == c->points[k].score; ++*end) {
        metric_sum *sum = c->points[*end].positive ? &s.positive : &s.negative;
        *sum = metric_plus(*sum, c->points[*end].weight);
    }
    return s;
}

/* Returns NaN if it is not defined. */
static double area(const curve *c)
{
    metric_sum sum = { 0 }, before = { 0 };
    for (int64_t k = 0, end; k < c->n; k = end) {
        step s = step_at(c, k, &end);
        double up = metric_number(s.positive);
        sum = metric_plus(sum, metric_number(s.negative) * (metric_number(before) + up / 2));
        before = metric_plus_sum(before, s.positive);
    }
    double positive = metric_number(c->positive), negative = metric_number(c->negative);
    return positive > 0 && negative > 0 ? metric_number(sum) / positive / negative : (double)NAN;
}

static double precision(const curve *c)
{
    metric_sum sum = { 0 }, positive = { 0 }, all = { 0 };
    for (int64_t k = 0, end; k < c->n; k = end) {
        step s = step_at(c, k, &end);
        positive = metric_plus_sum(positive, s.positive);
        all = metric_plus_sum(metric_plus_sum(all, s.positive), s.negative);
        sum = metric_plus(sum, metric_number(s.positive) * (metric_number(positive) / metric_number(all)));
    }
    return metric_number(c->positive) > 0 ? metric_number(sum) / metric_number(c->positive) : 0;
}

static double value_of(const metric_form *f, curve *c)
{
    qsort(c->points, (size_t)c->n, sizeof *c->points, descending);
    return f->kind == TREK_METRIC_KIND_AUROC ? area(c) : precision(c);
}

/* --- the value ------------------------------------------------------------------------------------------------------ */

static trek_status undefined(const metric_form *f, int64_t c, const curve *curve)
{
    const char *kind = metric_number(curve->positive) > 0 ? "negative" : "positive";
    if (metric_is_binary(f) || f->average == TREK_METRIC_AVERAGE_MICRO)
        return trek_fail(TREK_ERR_ARGUMENT, "AUROC: target: there is only one class: no target is %s; both are needed", kind);
    return trek_fail(
        TREK_ERR_ARGUMENT,
        "AUROC: target: %s %lld has no %s targets, so there is no mean of all; TREK_METRIC_AVERAGE_EACH gives the others",
        f->multilabel ? "label" : "class", (long long)c, kind);
}

static trek_status micro(const trek_metric *m, curve *c, double *value)
{
    for (int64_t k = 0; k < metric_parts(&m->form); k++)
        take_part(m, k, c);
    *value = value_of(&m->form, c);
    return isnan(*value) ? undefined(&m->form, 0, c) : TREK_OK;
}

static trek_status each(const trek_metric *m, curve *c, double *values)
{
    const metric_form *f = &m->form;
    bool all = f->average == TREK_METRIC_AVERAGE_EACH;
    double sum = 0, weights = 0;
    for (int64_t k = 0; k < metric_parts(f); k++) {
        c->n = 0;
        c->positive = c->negative = (metric_sum){ 0 };
        take_part(m, k, c);
        double value = value_of(f, c), weight = f->average == TREK_METRIC_AVERAGE_WEIGHTED ? metric_number(c->positive) : 1;
        if (all)
            values[k] = value;
        else if (isnan(value))
            return undefined(f, k, c);
        sum += weight * value;
        weights += weight;
    }
    if (!all)
        values[0] = weights > 0 ? sum / weights : 0;
    return TREK_OK;
}

static trek_status value(const trek_metric *m, double *values)
{
    bool is_micro = metric_is_binary(&m->form) || m->form.average == TREK_METRIC_AVERAGE_MICRO;
    int64_t most = m->rows * (is_micro ? metric_parts(&m->form) : 1);
    curve c = { .points = trek_alloc((size_t)most * sizeof *c.points) };
    if (!c.points)
        return TREK_ERR_MEMORY;
    trek_status status = is_micro ? micro(m, &c, values) : each(m, &c, values);
    trek_free(c.points);
    return status;
}

static trek_shape shape_of(const metric_form *f)
{
    return f->classes > 0 && f->average == TREK_METRIC_AVERAGE_EACH ? trek_dims(f->classes) : trek_dims_none();
}

const metric_class trek_metric_scores = { .name = "a metric of scores", .sums = sums_of, .width = width_of, .check = check,
                                          .add = add, .shape = shape_of, .value = value };
