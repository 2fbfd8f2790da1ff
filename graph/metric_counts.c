/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of counts: accuracy, precision, recall, F1, confusion.
 *
 * For binary metrics and labels, each label has four sums [target][predicted]: 00, 01, 10, 11. For several classes,
 * each class has three: targets, predicted, both; with top_k "predicted" is not used. A confusion of several classes
 * is the matrix itself. */
#include "graph/metric_internal.h"

/* --- a batch ------------------------------------------------------------------------------------------------- */

/* Checks the labels of row k that count. */
static trek_status check_label(const metric_form *f, const char *name, const metric_rows *rows, int64_t k)
{
    double pred = rows->column[METRIC_PRED][k], target = rows->column[METRIC_TARGET][k];
    long long row = (long long)(k / metric_parts(f));
    if (metric_ignores(f, target))
        return TREK_OK;
    if (target != 0 && target != 1)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: target: %g at row %lld; must be 0 or 1", name, target, row);
    return isnan(pred) ? trek_fail(TREK_ERR_ARGUMENT, "%s: pred: the score at row %lld is NaN; must be a number", name, row)
                       : TREK_OK;
}

static bool is_class(const metric_form *f, double x) { return x >= 0 && x < (double)f->classes && floor(x) == x; }

static trek_status check_class(const metric_form *f, const char *name, const metric_rows *rows, int64_t k)
{
    double target = rows->column[METRIC_TARGET][k], pred = rows->column[METRIC_PRED][k * f->top_k];
    if (metric_ignores(f, target))
        return TREK_OK;
    if (!is_class(f, target))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: target: %g at row %lld; must be inside [0, %lld)", name, target, (long long)k,
                         (long long)f->classes);
    if (rows->column[METRIC_TOP] && isnan(rows->column[METRIC_TOP][k]))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: pred: a score at row %lld is NaN; must be a number", name, (long long)k);
    if (!is_class(f, pred))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: pred: class %g at row %lld; must be inside [0, %lld)", name, pred, (long long)k,
                         (long long)f->classes);
    return TREK_OK;
}

static trek_status check_as(const char *name, const metric_form *f, const metric_rows *rows)
{
    int64_t n = metric_is_multiclass(f) ? rows->n : rows->n * metric_parts(f);
    trek_status status = TREK_OK;
    for (int64_t k = 0; k < n && status == TREK_OK; k++)
        status = metric_is_multiclass(f) ? check_class(f, name, rows, k) : check_label(f, name, rows, k);
    return status;
}

static void add_labels(trek_metric *m, const metric_rows *rows)
{
    const metric_form *f = &m->form;
    int64_t labels = metric_parts(f);
    for (int64_t k = 0; k < rows->n; k++) {
        const double *pred = rows->column[METRIC_PRED] + k * labels, *target = rows->column[METRIC_TARGET] + k * labels;
        bool counts = false;
        for (int64_t l = 0; l < labels; l++) {
            if (metric_ignores(f, target[l]))
                continue;
            metric_add(m, 4 * l + 2 * (target[l] == 1) + (pred[l] > f->threshold), metric_weight(rows, k));
            counts = true;
        }
        m->counted += counts;
    }
}

static bool is_among(const double *list, int64_t n, double x)
{
    for (int64_t k = 0; k < n; k++)
        if (list[k] == x)
            return true;
    return false;
}

static void add_classes(trek_metric *m, const metric_rows *rows)
{
    const metric_form *f = &m->form;
    for (int64_t k = 0; k < rows->n; k++) {
        double target = rows->column[METRIC_TARGET][k], weight = metric_weight(rows, k);
        const double *pred = rows->column[METRIC_PRED] + k * f->top_k;
        if (metric_ignores(f, target))
            continue;
        m->counted++;
        if (f->kind == TREK_METRIC_KIND_CONFUSION) {
            metric_add(m, (int64_t)target * f->classes + (int64_t)pred[0], weight);
            continue;
        }
        metric_add(m, 3 * (int64_t)target, weight);
        metric_add(m, 3 * (int64_t)pred[0] + 1, weight);
        if (is_among(pred, f->top_k, target))
            metric_add(m, 3 * (int64_t)target + 2, weight);
    }
}

static trek_status add(trek_metric *m, const metric_rows *rows)
{
    if (metric_is_multiclass(&m->form))
        add_classes(m, rows);
    else
        add_labels(m, rows);
    return TREK_OK;
}

/* --- the value ------------------------------------------------------------------------------------------------ */

/* The counts of one class or label, or of all together. */
typedef struct counts {
    double tp, fp, fn, tn;
} counts;

static counts counts_of(const trek_metric *m, int64_t c)
{
    if (metric_is_multiclass(&m->form)) {
        double targets = metric_sum_of(m, 3 * c), predicted = metric_sum_of(m, 3 * c + 1), both = metric_sum_of(m, 3 * c + 2);
        return (counts){ .tp = both, .fp = predicted - both, .fn = targets - both };
    }
    return (counts){ .tn = metric_sum_of(m, 4 * c), .fp = metric_sum_of(m, 4 * c + 1), .fn = metric_sum_of(m, 4 * c + 2),
                     .tp = metric_sum_of(m, 4 * c + 3) };
}

static double ratio(double part, double whole, double otherwise) { return whole > 0 ? part / whole : otherwise; }

static double rate(const metric_form *f, counts c)
{
    double b = f->beta * f->beta;
    switch (f->kind) {
    case TREK_METRIC_KIND_PRECISION: return ratio(c.tp, c.tp + c.fp, f->zero_division);
    case TREK_METRIC_KIND_F1: return ratio((1 + b) * c.tp, (1 + b) * c.tp + b * c.fn + c.fp, f->zero_division);
    case TREK_METRIC_KIND_ACCURACY:
        if (!metric_is_multiclass(f))
            return ratio(c.tp + c.tn, c.tp + c.tn + c.fp + c.fn, 0);
        return ratio(c.tp, c.tp + c.fn, 0);
    default: return ratio(c.tp, c.tp + c.fn, f->zero_division);
    }
}

/* With several classes, a mean omits classes that do not occur. With labels it omits none, as in scikit-learn. */
static double weight_of(const metric_form *f, counts c)
{
    if (f->average == TREK_METRIC_AVERAGE_WEIGHTED)
        return c.tp + c.fn;
    if (!metric_is_multiclass(f))
        return 1;
    return f->top_k > 1 ? c.tp + c.fn > 0 : c.tp + c.fp + c.fn > 0;
}

static double averaged(const trek_metric *m)
{
    double sum = 0, weights = 0;
    for (int64_t c = 0; c < metric_parts(&m->form); c++) {
        counts part = counts_of(m, c);
        double weight = weight_of(&m->form, part), value = rate(&m->form, part);
        if (weight > 0 && !isnan(value)) { /* NaN if zero_division is NaN */
            sum += weight * value;
            weights += weight;
        }
    }
    return ratio(sum, weights, m->form.zero_division);
}

static counts together(const trek_metric *m)
{
    counts all = { 0 };
    for (int64_t c = 0; c < metric_parts(&m->form); c++) {
        counts part = counts_of(m, c);
        all = (counts){ all.tp + part.tp, all.fp + part.fp, all.fn + part.fn, all.tn + part.tn };
    }
    return all;
}

static trek_status value(const trek_metric *m, double *values)
{
    const metric_form *f = &m->form;
    if (f->classes > 0 && f->average == TREK_METRIC_AVERAGE_EACH) {
        for (int64_t c = 0; c < f->classes; c++)
            values[c] = rate(f, counts_of(m, c));
        return TREK_OK;
    }
    bool micro = f->classes == 0 || f->average == TREK_METRIC_AVERAGE_MICRO;
    values[0] = micro ? rate(f, together(m)) : averaged(m);
    return TREK_OK;
}

static trek_status confusion(const trek_metric *m, double *values)
{
    for (int64_t k = 0; k < m->n_sums; k++)
        values[k] = metric_sum_of(m, k);
    return TREK_OK;
}

/* --- the kinds ------------------------------------------------------------------------------------------------- */

static trek_status check_counts(const metric_form *f, const metric_rows *rows)
{
    static const char *const names[] = { "accuracy", "precision", "recall", "F1" };
    return check_as(names[f->kind], f, rows);
}
static trek_status check_confusion(const metric_form *f, const metric_rows *rows) { return check_as("confusion", f, rows); }

static int64_t sums_of_counts(const metric_form *f) { return metric_is_multiclass(f) ? 3 * f->classes : 4 * metric_parts(f); }
static int64_t sums_of_confusion(const metric_form *f)
{
    return metric_is_multiclass(f) ? f->classes * f->classes : 4 * metric_parts(f);
}

static trek_shape shape_of_counts(const metric_form *f)
{
    return f->classes > 0 && f->average == TREK_METRIC_AVERAGE_EACH ? trek_dims(f->classes) : trek_dims_none();
}
static trek_shape shape_of_confusion(const metric_form *f)
{
    if (metric_is_binary(f))
        return trek_dims(2, 2);
    return f->multilabel ? trek_dims(f->classes, 2, 2) : trek_dims(f->classes, f->classes);
}

const metric_class trek_metric_counts = { .name = "a metric of classes", .sums = sums_of_counts, .check = check_counts,
                                          .add = add,
                                          .shape = shape_of_counts, .value = value };
const metric_class trek_metric_confusion = { .name = "confusion", .sums = sums_of_confusion, .check = check_confusion, .add = add,
                                             .shape = shape_of_confusion, .value = confusion };
