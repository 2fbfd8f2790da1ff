/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of numbers: mean squared and absolute errors, R2; and perplexity. For each output there are the sums of the
 * weights and of the errors, and for R2 also those of the targets and their squares, and the count. */
#include "graph/metric_internal.h"

enum { WEIGHTS, ERRORS, TARGETS, SQUARES, SUMS };

static int64_t sums_of(const metric_form *f) { return SUMS * f->outputs; }

static trek_status check(const metric_form *f, const metric_rows *rows)
{
    (void)f, (void)rows;
    return TREK_OK;
}

static void add_sum(trek_metric *m, int64_t k, metric_sum value) { m->sums[k] = metric_plus_sum(m->sums[k], value); }

/* Computes a * b, where a has twice the digits. */
static metric_sum scaled(metric_sum a, double b)
{
    metric_sum product = metric_times(a.high, b);
    product.low += a.low * b;
    return product;
}

static void add_number(trek_metric *m, int64_t output, double pred, double target, double weight)
{
    metric_sum *sums = m->sums + output * SUMS;
    double error = pred - target;
    sums[WEIGHTS] = metric_plus(sums[WEIGHTS], weight);
    if (m->form.kind == TREK_METRIC_KIND_MAE)
        add_sum(m, output * SUMS + ERRORS, metric_times(fabs(error), weight));
    else
        add_sum(m, output * SUMS + ERRORS, scaled(metric_times(error, error), weight));
    if (m->form.kind == TREK_METRIC_KIND_R2) {
        add_sum(m, output * SUMS + TARGETS, metric_times(target, weight));
        add_sum(m, output * SUMS + SQUARES, scaled(metric_times(target, target), weight));
    }
}

static trek_status add(trek_metric *m, const metric_rows *rows)
{
    int64_t outputs = m->form.outputs;
    for (int64_t k = 0; k < rows->n; k++)
        for (int64_t o = 0; o < outputs; o++)
            add_number(m, o, rows->column[METRIC_PRED][k * outputs + o], rows->column[METRIC_TARGET][k * outputs + o],
                       metric_weight(rows, k));
    m->counted += rows->n;
    return TREK_OK;
}

/* --- the value ---------------------------------------------------------------------------------------------------- */

static metric_sum squared(metric_sum a)
{
    metric_sum square = metric_times(a.high, a.high);
    square.low += 2 * a.high * a.low;
    return square;
}

static metric_sum divided(metric_sum a, metric_sum b)
{
    double high = a.high / b.high;
    metric_sum back = scaled(b, high);
    double rest = (a.high - back.high) + (a.low - back.low);
    return (metric_sum){ high, rest / b.high };
}

/* Computes the sum of weight * (target - mean)^2 without loss of precision if targets are far from 0. */
static double total_squares(const trek_metric *m, const metric_sum *sums)
{
    metric_sum mean = divided(squared(sums[TARGETS]), sums[WEIGHTS]);
    metric_sum total = metric_plus(sums[SQUARES], -mean.high);
    double number = metric_number((metric_sum){ total.high, total.low - mean.low });
    double rounding = 1e-31 * (double)m->counted * fabs(sums[SQUARES].high); /* a smaller sum means no variance */
    return number > rounding || isnan(number) ? number : 0;
}

static double determination(const trek_metric *m, const metric_sum *sums)
{
    double residual = metric_number(sums[ERRORS]), total = total_squares(m, sums);
    if (m->counted < 2)
        return NAN;
    return total != 0 ? 1 - residual / total : isnan(residual) ? residual : residual == 0;
}

static double value_of(const trek_metric *m, int64_t output)
{
    const metric_sum *sums = m->sums + output * SUMS;
    double mean = metric_number(sums[ERRORS]) / metric_number(sums[WEIGHTS]);
    if (m->form.kind == TREK_METRIC_KIND_R2)
        return determination(m, sums);
    return m->form.kind == TREK_METRIC_KIND_RMSE ? sqrt(mean) : mean;
}

static trek_status value(const trek_metric *m, double *values)
{
    const metric_form *f = &m->form;
    double sum = 0, weights = 0;
    for (int64_t o = 0; o < f->outputs; o++) {
        double value = value_of(m, o), weight = f->average == TREK_METRIC_AVERAGE_WEIGHTED ? total_squares(m, m->sums + o * SUMS)
            : 1;
        if (f->average == TREK_METRIC_AVERAGE_EACH && f->outputs > 1)
            values[o] = value;
        sum += weight * value;
        weights += weight;
    }
    if (f->average != TREK_METRIC_AVERAGE_EACH || f->outputs == 1)
        values[0] = weights != 0 ? sum / weights : value_of(m, 0);
    return TREK_OK;
}

static trek_shape shape_of(const metric_form *f)
{
    return f->outputs > 1 && f->average == TREK_METRIC_AVERAGE_EACH ? trek_dims(f->outputs) : trek_dims_none();
}

/* --- perplexity ----------------------------------------------------------------------------------------------------- */

static trek_status check_tokens(const metric_form *f, const metric_rows *rows)
{
    for (int64_t k = 0; k < rows->n; k++) {
        double target = rows->column[METRIC_TARGET][k];
        if (!metric_ignores(f, target) && !(target >= 0 && target < (double)rows->classes))
            return trek_fail(TREK_ERR_ARGUMENT, "perplexity: target: %g at row %lld; must be inside [0, %lld)", target,
                             (long long)k, (long long)rows->classes);
    }
    return TREK_OK;
}

static trek_status add_tokens(trek_metric *m, const metric_rows *rows)
{
    for (int64_t k = 0; k < rows->n; k++) {
        double weight = metric_weight(rows, k);
        if (metric_ignores(&m->form, rows->column[METRIC_TARGET][k]))
            continue;
        m->counted++;
        metric_add(m, 0, weight);
        if (weight > 0)
            add_sum(m, 1, metric_times(rows->column[METRIC_PRED][k], weight));
    }
    return TREK_OK;
}

static int64_t sums_of_tokens(const metric_form *f)
{
    (void)f;
    return 2;
}

static trek_shape shape_of_tokens(const metric_form *f)
{
    (void)f;
    return trek_dims_none();
}

static trek_status value_of_tokens(const trek_metric *m, double *values)
{
    values[0] = exp(metric_sum_of(m, 1) / metric_sum_of(m, 0));
    return TREK_OK;
}

const metric_class trek_metric_errors = { .name = "a metric of numbers", .sums = sums_of, .check = check, .add = add,
                                          .shape = shape_of, .value = value };
const metric_class trek_metric_perplexity = { .name = "perplexity", .sums = sums_of_tokens, .check = check_tokens,
                                              .add = add_tokens, .shape = shape_of_tokens, .value = value_of_tokens };
