/* SPDX-License-Identifier: Apache-2.0 */
/* A metric: sums and a list that become one with others' by adding and by appending. A kind says what its batches are reduced
 * to where they lie, what is added of that on the host, and the value. Internal. */
#ifndef TREK_GRAPH_METRIC_INTERNAL_H
#define TREK_GRAPH_METRIC_INTERNAL_H

#include <math.h>
#include <string.h>

#include "graph/metric.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* The spec with its defaults. No padding matters: compared and sent as numbers (metric.c). */
typedef struct metric_form {
    trek_metric_kind kind;
    trek_metric_average average;
    int64_t classes, top_k, ignore_index, outputs;
    bool multilabel, logits, ignores;
    double threshold, beta, zero_division;
} metric_form;

static inline bool metric_is_binary(const metric_form *f) { return f->classes == 0; }
static inline bool metric_is_multiclass(const metric_form *f) { return f->classes > 0 && !f->multilabel; }
/* Classes, labels or outputs that have values of their own; of a binary metric one. */
static inline int64_t metric_parts(const metric_form *f) { return f->classes > 0 ? f->classes : 1; }
static inline bool metric_ignores(const metric_form *f, double target) { return f->ignores && target == (double)f->ignore_index; }

/* A batch where it lies: n rows. */
enum { METRIC_PRED, METRIC_TARGET, METRIC_WEIGHT, METRIC_TOP, METRIC_COLUMNS };
typedef struct metric_columns {
    int64_t n;
    int64_t classes;                     /* of perplexity's logits */
    trek_tensor *column[METRIC_COLUMNS]; /* [n] or [n, width]; NULL: none. TOP: the largest score, NaN where one is */
} metric_columns;

/* The same on the host. */
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
    int64_t (*sums)(const metric_form *form);             /* how many */
    int64_t (*width)(const metric_form *form);            /* numbers of a row of the list; NULL: there is no list */
    trek_status (*check)(const metric_form *form, const metric_rows *rows); /* what is wrong with a batch; nothing is added */
    trek_status (*add)(trek_metric *metric, const metric_rows *rows);       /* of one that is right */
    trek_shape (*shape)(const metric_form *form);         /* of the value */
    trek_status (*value)(const trek_metric *metric, double *values);
} metric_class;

/* A sum in twice a double's digits. */
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
    metric_columns *waiting;         /* of batches on devices */
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

/* Room for so many rows more at the list's end, which the caller fills and counts (rows). */
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
    *place = m->list ? m->list + m->rows * m->width : NULL; /* nothing is asked for where there is none */
    return TREK_OK;
}

/* --- metric_form.c ------------------------------------------------------------------------------------------------ */

/* ARGUMENT: which field does not fit. */
trek_status trek_metric_form(const char *function, const trek_metric_spec *spec, metric_form *form);
const metric_class *trek_metric_class_of(trek_metric_kind kind);

/* --- metric_batch.c ----------------------------------------------------------------------------------------------- */

/* What a batch is reduced to, by ops where it lies, in the present scope; a tensor that is the caller's is copied if
 * *waits: one lies on a device. The columns are owned. Nothing of it is read. */
trek_status trek_metric_prepare(const char *function, const metric_form *form, trek_var *pred, trek_var *target, trek_var *weight,
                                metric_columns *columns, bool *waits);
void trek_metric_columns_clear(metric_columns *columns);

/* --- metric.c ------------------------------------------------------------------------------------------------------- */

trek_metric *trek_metric_retain(trek_metric *metric);
trek_metric *trek_metric_make(const metric_form *form);
bool trek_metric_is(const trek_metric *metric, const metric_form *form);
trek_status trek_metric_compare(const trek_metric *a, const trek_metric *b);
/* What waits on devices is counted: on the thread that works there, or when all work there has ended. */
trek_status trek_metric_read(trek_metric *metric);
/* trek_metric_update_weighted, for `function`. */
trek_status trek_metric_take(const char *function, trek_metric *metric, trek_var *pred, trek_var *target, trek_var *weight);
/* All of a metric as numbers, to be freed; nothing waits. And a new one made of such numbers: NULL and FORMAT. */
double *trek_metric_pack(const trek_metric *metric, int64_t *n);
trek_metric *trek_metric_unpack(const double *numbers, int64_t n);

/* A metric as it was at some time: what is only appended to is shared. */
typedef struct trek_metric_mark {
    trek_metric *metric;             /* NULL: none */
    metric_sum *sums;
    int64_t counted, rows;
    metric_columns *waiting;
    int n_waiting;
} trek_metric_mark;
trek_status trek_metric_mark_set(trek_metric_mark *mark, trek_metric *metric);
void trek_metric_mark_clear(trek_metric_mark *mark);
/* A new metric, of what was counted then. */
trek_metric *trek_metric_mark_make(const trek_metric_mark *mark);

#endif
