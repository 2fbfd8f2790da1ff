/* SPDX-License-Identifier: Apache-2.0 */
/* A metric: sums and a list. Metrics are merged by adding the sums and appending the lists. Each kind defines to what
 * a batch is reduced on its device, what is added of that on the host, and the value. */
#ifndef TREK_GRAPH_METRIC_INTERNAL_H
#define TREK_GRAPH_METRIC_INTERNAL_H

#include <math.h>
#include <string.h>

#include "graph/metric.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* The spec with its defaults. Its padding does not matter: it is compared and sent as numbers (metric.c). */
typedef struct metric_form {
    trek_metric_kind kind;
    trek_metric_average average;
    int64_t classes, top_k, ignore_index, outputs;
    bool multilabel, logits, ignores;
    double threshold, beta, zero_division;
} metric_form;

static inline bool metric_is_binary(const metric_form *f) { return f->classes == 0; }
static inline bool metric_is_multiclass(const metric_form *f) { return f->classes > 0 && !f->multilabel; }
/* Returns how many classes, labels or outputs have their own values; a binary metric has one. */
static inline int64_t metric_parts(const metric_form *f) { return f->classes > 0 ? f->classes : 1; }
static inline bool metric_ignores(const metric_form *f, double target) { return f->ignores && target == (double)f->ignore_index; }

/* A batch on its device: n rows. */
enum { METRIC_PRED, METRIC_TARGET, METRIC_WEIGHT, METRIC_TOP, METRIC_COLUMNS };
typedef struct metric_columns {
    int64_t n;
    int64_t classes;                     /* of perplexity's logits */
    trek_tensor *column[METRIC_COLUMNS]; /* [n] or [n, width], or NULL. TOP: the largest score; NaN if one is NaN */
} metric_columns;

/* A batch on the host. */
typedef struct metric_rows {
    int64_t n, classes;
    int64_t width[METRIC_COLUMNS];
    double *column[METRIC_COLUMNS];
} metric_rows;

static inline double metric_weight(const metric_rows *rows, int64_t k)
{
    return rows->column[METRIC_WEIGHT] ? rows->column[METRIC_WEIGHT][k] : 1;
}

typedef struct metric_class {
    const char *name;
    int64_t (*sums)(const metric_form *form);             /* number of sums */
    int64_t (*width)(const metric_form *form);            /* how many numbers a row of the list has; NULL: there is no list */
    trek_status (*check)(const metric_form *form, const metric_rows *rows); /* checks a batch; adds nothing */
    trek_status (*add)(trek_metric *metric, const metric_rows *rows);       /* adds a batch that was checked */
    trek_shape (*shape)(const metric_form *form);         /* of the value */
    trek_status (*value)(const trek_metric *metric, double *values);
} metric_class;

/* A sum with twice the digits of a double. */
typedef struct metric_sum {
    double high, low;
} metric_sum;

struct trek_metric {
    int references;
    metric_form form;
    const metric_class *klass;
    int64_t n_sums, counted;
    metric_sum *sums;
    int64_t width, rows, capacity;   /* of the list */
    double *list;
    metric_columns *waiting;         /* batches on devices */
    int n_waiting, cap_waiting;
    int64_t waiting_bytes;
};

extern const metric_class trek_metric_counts, trek_metric_confusion, trek_metric_scores, trek_metric_errors,
    trek_metric_perplexity;

/* --- sums: Dekker, "A floating-point technique for extending the available precision" (1971) -------------------- */

static inline metric_sum metric_plus(metric_sum a, double b)
{
    double high = a.high + b, back = high - a.high;
    double error = (a.high - (high - back)) + (b - back);
    return (metric_sum){ high, a.low + error };
}
static inline metric_sum metric_plus_sum(metric_sum a, metric_sum b)
{
    a = metric_plus(a, b.high);
    a.low += b.low;
    return a;
}
static inline double metric_number(metric_sum a) { return isfinite(a.high) ? a.high + a.low : a.high; }
static inline metric_sum metric_times(double a, double b)
{
    double high = a * b;
    return (metric_sum){ high, fma(a, b, -high) };
}

static inline double metric_sum_of(const trek_metric *m, int64_t k) { return metric_number(m->sums[k]); }
static inline void metric_add(trek_metric *m, int64_t k, double value) { m->sums[k] = metric_plus(m->sums[k], value); }

/* Makes room for `more` rows at the list's end, which the caller fills and counts (rows). */
static inline trek_status metric_list_room(trek_metric *m, int64_t more, double **place)
{
    int64_t rows = m->rows + more;
    if (rows > m->capacity && m->width > 0) {
        double *list = trek_realloc(m->list, (size_t)((rows + rows / 2) * m->width) * sizeof *list);
        if (!list)
            return TREK_ERR_MEMORY;
        m->list = list;
        m->capacity = rows + rows / 2;
    }
    *place = m->list ? m->list + m->rows * m->width : NULL; /* without a list, no memory is needed */
    return TREK_OK;
}

/* --- metric_form.c ------------------------------------------------------------------------------------------------ */

/* Checks a spec. Fails with ARGUMENT, which names the field. */
trek_status trek_metric_form(const char *function, const trek_metric_spec *spec, metric_form *form);
const metric_class *trek_metric_class_of(trek_metric_kind kind);

/* --- metric_batch.c ----------------------------------------------------------------------------------------------- */

/* Reduces a batch by ops on its device, in the current scope. A tensor of the caller is copied if *waits, because
 * some data are on a device. The columns are owned. No data are read. */
trek_status trek_metric_prepare(const char *function, const metric_form *form, trek_var *pred, trek_var *target, trek_var *weight,
                                metric_columns *columns, bool *waits);
void trek_metric_columns_clear(metric_columns *columns);

/* --- metric.c ------------------------------------------------------------------------------------------------------- */

trek_metric *trek_metric_retain(trek_metric *metric);
trek_metric *trek_metric_make(const metric_form *form);
bool trek_metric_is(const trek_metric *metric, const metric_form *form);
trek_status trek_metric_compare(const trek_metric *a, const trek_metric *b);
/* Counts the batches that wait on devices. Called on the thread that works there, or when all work there has ended. */
trek_status trek_metric_read(trek_metric *metric);
/* Updates as trek_metric_update_weighted does; errors name `function`. */
trek_status trek_metric_take(const char *function, trek_metric *metric, trek_var *pred, trek_var *target, trek_var *weight);
/* Return all of a metric as numbers, to be freed, after everything was counted; and make a new metric from such
 * numbers (NULL and FORMAT on failure). */
double *trek_metric_pack(const trek_metric *metric, int64_t *n);
trek_metric *trek_metric_unpack(const double *numbers, int64_t n);

/* A metric at some time. What is only appended to is shared. */
typedef struct trek_metric_mark {
    trek_metric *metric;             /* NULL: none */
    metric_sum *sums;
    int64_t counted, rows;
    metric_columns *waiting;
    int n_waiting;
} trek_metric_mark;
trek_status trek_metric_mark_set(trek_metric_mark *mark, trek_metric *metric);
void trek_metric_mark_clear(trek_metric_mark *mark);
/* Makes a new metric of what had been counted then. */
trek_metric *trek_metric_mark_make(const trek_metric_mark *mark);

#endif
