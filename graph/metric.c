/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics as objects: how batches are counted, how counting is delayed, and how metrics are merged and sent. */
#include "graph/metric.h"

#include "autograd/var_internal.h"
#include "graph/graph_internal.h"
#include "graph/metric_internal.h"

/* The most bytes that may wait on devices. */
#define MOST_WAITING ((int64_t)256 << 20)

/* --- made and freed --------------------------------------------------------------------------------------- */

trek_metric *trek_metric_make(const metric_form *form)
{
    trek_metric *m = trek_calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->references = 1;
    m->form = *form;
    m->klass = trek_metric_class_of(form->kind);
    m->n_sums = m->klass->sums(form);
    m->width = m->klass->width ? m->klass->width(form) : 0;
    m->sums = trek_calloc((size_t)m->n_sums + 1, sizeof *m->sums);
    if (!m->sums)
        trek_metric_free(&m);
    return m;
}

trek_metric *trek_metric_new(const trek_metric_spec *spec)
{
    metric_form form;
    return trek_metric_form("metric_new", spec, &form) == TREK_OK ? trek_metric_make(&form) : NULL;
}

trek_metric *trek_metric_retain(trek_metric *metric)
{
    metric->references++;
    return metric;
}

static void drop_waiting(metric_columns *waiting, int n)
{
    for (int k = 0; k < n; k++)
        trek_metric_columns_clear(&waiting[k]);
}

void trek_metric_free(trek_metric **metric)
{
    trek_metric *m = metric ? *metric : NULL;
    if (metric)
        *metric = NULL;
    if (!m || --m->references > 0)
        return;
    drop_waiting(m->waiting, m->n_waiting);
    trek_free(m->waiting);
    trek_free(m->sums);
    trek_free(m->list);
    trek_free(m);
}

void trek_metric_reset(trek_metric *metric)
{
    if (!metric)
        return;
    drop_waiting(metric->waiting, metric->n_waiting);
    metric->n_waiting = 0;
    metric->waiting_bytes = 0;
    memset(metric->sums, 0, (size_t)metric->n_sums * sizeof *metric->sums);
    metric->counted = metric->rows = 0;
}

/* --- counting --------------------------------------------------------------------------------------------- */

static void clear_rows(metric_rows *rows)
{
    for (int k = 0; k < METRIC_COLUMNS; k++)
        trek_free(rows->column[k]);
}

static trek_status read_columns(const metric_columns *columns, metric_rows *rows)
{
    *rows = (metric_rows){ .n = columns->n, .classes = columns->classes };
    trek_status status = TREK_OK;
    for (int k = 0; k < METRIC_COLUMNS && status == TREK_OK; k++) {
        const trek_tensor *x = columns->column[k];
        if (!x)
            continue;
        size_t bytes = (size_t)trek_tensor_numel(x) * sizeof(double);
        rows->width[k] = x->ndim > 1 ? x->sizes[1] : 1;
        rows->column[k] = trek_alloc(bytes);
        status = rows->column[k] ? trek_tensor_to_host(x, TREK_F64, rows->column[k], bytes) : TREK_ERR_MEMORY;
    }
    return status;
}

static trek_status check_weights(const trek_metric *m, const metric_rows *rows)
{
    for (int64_t k = 0; rows->column[METRIC_WEIGHT] && k < rows->n; k++)
        if (!(metric_weight(rows, k) >= 0) || isinf(metric_weight(rows, k)))
            return trek_fail(TREK_ERR_ARGUMENT, "%s: weight: %g at row %lld; must be finite and not negative", m->klass->name,
                             metric_weight(rows, k), (long long)k);
    return TREK_OK;
}

/* A batch is checked as a whole before any of it is counted. */
static trek_status count(trek_metric *m, const metric_columns *columns)
{
    metric_rows rows = { 0 };
    trek_status status = read_columns(columns, &rows);
    if (status == TREK_OK)
        status = check_weights(m, &rows);
    if (status == TREK_OK)
        status = m->klass->check(&m->form, &rows);
    if (status == TREK_OK)
        status = m->klass->add(m, &rows);
    clear_rows(&rows);
    return status;
}

trek_status trek_metric_read(trek_metric *m)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < m->n_waiting && status == TREK_OK; k++)
        status = count(m, &m->waiting[k]);
    drop_waiting(m->waiting, m->n_waiting);
    m->n_waiting = 0;
    m->waiting_bytes = 0;
    return status;
}

/* Counts bytes as a device's allocator does, where small tensors are blocks, too. */
static int64_t bytes_of(const metric_columns *columns)
{
    int64_t bytes = 0;
    for (int k = 0; k < METRIC_COLUMNS; k++)
        if (columns->column[k])
            bytes +=
                512 + trek_tensor_numel(columns->column[k]) * (int64_t)trek_dtype_size(trek_tensor_dtype(columns->column[k]));
    return bytes;
}

static trek_status wait(trek_metric *m, metric_columns *columns)
{
    if (trek_array_grow(&m->waiting, &m->cap_waiting, m->n_waiting + 1, sizeof *m->waiting) != TREK_OK)
        return TREK_ERR_MEMORY;
    m->waiting[m->n_waiting++] = *columns;
    m->waiting_bytes += bytes_of(columns);
    *columns = (metric_columns){ 0 };
    return m->waiting_bytes > MOST_WAITING ? trek_metric_read(m) : TREK_OK;
}

trek_status trek_metric_take(const char *function, trek_metric *metric, trek_var *pred, trek_var *target, trek_var *weight)
{
    if (!metric || !pred || !target)
        return trek_fail_missing(function, metric ? pred ? "target" : "pred" : "metric");
    metric_columns columns = { 0 };
    bool waits;
    trek_status status = trek_error_status();
    if (status == TREK_OK)
        status = trek_metric_prepare(function, &metric->form, pred, target, weight, &columns, &waits);
    if (status == TREK_OK && columns.n > 0)
        status = waits ? wait(metric, &columns) : count(metric, &columns);
    trek_metric_columns_clear(&columns);
    return status;
}

trek_status trek_metric_update(trek_metric *metric, trek_var *pred, trek_var *target)
{
    return trek_metric_take("metric_update", metric, pred, target, NULL);
}

trek_status trek_metric_update_weighted(trek_metric *metric, trek_var *pred, trek_var *target, trek_var *weight)
{
    return trek_metric_take("metric_update_weighted", metric, pred, target, weight);
}

int64_t trek_metric_count(trek_metric *metric)
{
    if (!metric)
        trek_fail_missing("metric_count", "metric");
    return metric && trek_metric_read(metric) == TREK_OK ? metric->counted : -1;
}

/* --- two become one ----------------------------------------------------------------------------------------- */

enum { FORM_NUMBERS = 12, PACKED_HEAD = FORM_NUMBERS + 4 };

static void form_numbers(const metric_form *f, double *to)
{
    const double numbers[FORM_NUMBERS] = { (double)f->kind, (double)f->average, (double)f->classes, (double)f->top_k,
                                           (double)f->ignore_index, (double)f->outputs, f->multilabel, f->logits, f->ignores,
                                           f->threshold, f->beta, f->zero_division };
    memcpy(to, numbers, sizeof numbers);
}

bool trek_metric_is(const trek_metric *metric, const metric_form *form)
{
    double x[FORM_NUMBERS], y[FORM_NUMBERS];
    form_numbers(&metric->form, x);
    form_numbers(form, y);
    bool same = true;
    for (int k = 0; k < FORM_NUMBERS; k++)
        same &= x[k] == y[k] || (isnan(x[k]) && isnan(y[k]));
    return same;
}

trek_status trek_metric_compare(const trek_metric *a, const trek_metric *b)
{
    if (trek_metric_is(a, &b->form))
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT,
                     "metric_merge: metrics of different specs (%s of %lld classes, %s of %lld); they must be equal",
                     a->klass->name, (long long)a->form.classes, b->klass->name, (long long)b->form.classes);
}

trek_status trek_metric_merge(trek_metric *metric, trek_metric *from)
{
    if (!metric || !from)
        return trek_fail_missing("metric_merge", metric ? "from" : "metric");
    double *place;
    trek_status status = trek_metric_compare(metric, from);
    if (status == TREK_OK)
        status = trek_metric_read(from);
    if (status == TREK_OK)
        status = metric_list_room(metric, from->rows, &place);
    if (status != TREK_OK)
        return status;
    int64_t rows = from->rows;
    if (place && rows)
        memcpy(place, from->list, (size_t)(rows * metric->width) * sizeof *place);
    metric->rows += rows;
    metric->counted += from->counted;
    for (int64_t k = 0; k < metric->n_sums; k++)
        metric->sums[k] = metric_plus_sum(metric->sums[k], from->sums[k]);
    return TREK_OK;
}

/* --- as numbers ---------------------------------------------------------------------------------------------- */

double *trek_metric_pack(const trek_metric *m, int64_t *n)
{
    int64_t sums = 2 * m->n_sums, listed = m->rows * m->width;
    double *numbers = trek_alloc((size_t)(PACKED_HEAD + sums + listed) * sizeof *numbers), *at = numbers;
    if (!numbers)
        return NULL;
    form_numbers(&m->form, at);
    at += FORM_NUMBERS;
    *at++ = 1; /* the version of the format */
    *at++ = (double)m->counted;
    *at++ = (double)m->n_sums;
    *at++ = (double)m->rows;
    for (int64_t k = 0; k < m->n_sums; k++) {
        *at++ = m->sums[k].high;
        *at++ = m->sums[k].low;
    }
    if (listed)
        memcpy(at, m->list, (size_t)listed * sizeof *at);
    *n = PACKED_HEAD + sums + listed;
    return numbers;
}

/* Returns a whole number from 0 on, or -1. */
static int64_t whole(double x) { return x >= 0 && x < 9e15 && floor(x) == x ? (int64_t)x : -1; }

/* Reads the spec from numbers; trek_metric_form checks it like any other. */
static bool read_form(const double *x, metric_form *form)
{
    for (int k = 0; k < 9; k++)
        if (k != 4 && whole(x[k]) < 0)
            return false;
    if (x[0] > TREK_METRIC_KIND_PERPLEXITY || x[1] > TREK_METRIC_AVERAGE_EACH || !(fabs(x[4]) < 9e15) || floor(x[4]) != x[4])
        return false;
    *form = (metric_form){ .kind = (trek_metric_kind)x[0], .average = (trek_metric_average)x[1], .classes = (int64_t)x[2],
                           .top_k = (int64_t)x[3], .ignore_index = (int64_t)x[4], .outputs = (int64_t)x[5],
                           .multilabel = x[6] != 0,
                           .logits = x[7] != 0, .ignores = x[8] != 0, .threshold = x[9], .beta = x[10], .zero_division = x[11] };
    return form->classes <= INT32_MAX && form->outputs >= 1 && form->outputs <= INT32_MAX && form->top_k >= 1;
}

trek_metric *trek_metric_unpack(const double *numbers, int64_t n)
{
    metric_form form;
    const double *head = numbers + FORM_NUMBERS;
    if (n < PACKED_HEAD || !read_form(numbers, &form) || head[0] != 1)
        return trek_fail_null(TREK_ERR_FORMAT, "metric_set_state: state: it is damaged, or of another version");
    const metric_class *klass = trek_metric_class_of(form.kind);
    int64_t counted = whole(head[1]), sums = whole(head[2]), rows = whole(head[3]),
        width = klass->width ? klass->width(&form) : 0;
    if (counted < 0 || sums != klass->sums(&form) || rows < 0 || (width == 0 && rows > 0) || sums > n ||
        (width > 0 && rows > n / width) || PACKED_HEAD + 2 * sums + rows * width != n)
        return trek_fail_null(TREK_ERR_FORMAT, "metric_set_state: state: it is damaged");
    trek_metric *m = trek_metric_make(&form);
    double *place = NULL;
    if (!m || metric_list_room(m, rows, &place) != TREK_OK) {
        trek_metric_free(&m);
        return NULL;
    }
    m->counted = counted;
    m->rows = rows;
    for (int64_t k = 0; k < sums; k++)
        m->sums[k] = (metric_sum){ numbers[PACKED_HEAD + 2 * k], numbers[PACKED_HEAD + 2 * k + 1] };
    if (rows)
        memcpy(place, numbers + PACKED_HEAD + 2 * sums, (size_t)(rows * width) * sizeof *place);
    return m;
}

trek_tensor *trek_metric_state(trek_metric *metric)
{
    if (!metric)
        return trek_fail_missing("metric_state", "metric"), NULL;
    int64_t n;
    double *numbers = trek_metric_read(metric) == TREK_OK ? trek_metric_pack(metric, &n) : NULL;
    trek_tensor *state = numbers ? trek_tensor_from_data(numbers, trek_dims(n), TREK_F64, trek_cpu(0)) : NULL;
    trek_free(numbers);
    return state;
}

static trek_status take_state(trek_metric *metric, trek_metric *from)
{
    trek_status status = trek_metric_compare(metric, from);
    if (status != TREK_OK)
        return status;
    trek_metric_reset(metric);
    return trek_metric_merge(metric, from);
}

trek_status trek_metric_set_state(trek_metric *metric, const trek_tensor *state)
{
    if (!metric || !state)
        return trek_fail_missing("metric_set_state", metric ? "state" : "metric");
    char text[TREK_SHAPE_TEXT];
    if (state->ndim != 1 || state->dtype != TREK_F64)
        return trek_fail(TREK_ERR_FORMAT, "metric_set_state: state: %s %s; must be f64 [n]",
                         trek_dtype_name((trek_dtype)state->dtype),
                         trek_tensor_shape_text(state, text));
    size_t bytes = (size_t)state->sizes[0] * sizeof(double);
    double *numbers = trek_alloc(bytes);
    trek_status status = numbers ? trek_tensor_to_host(state, TREK_F64, numbers, bytes) : TREK_ERR_MEMORY;
    trek_metric *from = status == TREK_OK ? trek_metric_unpack(numbers, state->sizes[0]) : NULL;
    if (status == TREK_OK)
        status = from ? take_state(metric, from) : trek_error_status();
    trek_metric_free(&from);
    trek_free(numbers);
    return status;
}

/* --- at some time ---------------------------------------------------------------------------------------------- */

void trek_metric_mark_clear(trek_metric_mark *mark)
{
    drop_waiting(mark->waiting, mark->n_waiting);
    trek_free(mark->waiting);
    trek_free(mark->sums);
    trek_metric_free(&mark->metric);
    *mark = (trek_metric_mark){ 0 };
}

static trek_status mark_waiting(trek_metric_mark *mark, const trek_metric *m)
{
    drop_waiting(mark->waiting, mark->n_waiting);
    trek_free(mark->waiting);
    mark->n_waiting = 0;
    mark->waiting = m->n_waiting ? trek_calloc((size_t)m->n_waiting, sizeof *mark->waiting) : NULL;
    if (m->n_waiting && !mark->waiting)
        return TREK_ERR_MEMORY;
    for (; mark->n_waiting < m->n_waiting; mark->n_waiting++) {
        metric_columns *to = &mark->waiting[mark->n_waiting];
        *to = m->waiting[mark->n_waiting];
        for (int c = 0; c < METRIC_COLUMNS; c++)
            trek_tensor_retain(to->column[c]);
    }
    return TREK_OK;
}

trek_status trek_metric_mark_set(trek_metric_mark *mark, trek_metric *m)
{
    if (mark->metric != m)
        trek_metric_mark_clear(mark);
    if (!m)
        return TREK_OK;
    if (!mark->metric) {
        if (!(mark->sums = trek_calloc((size_t)m->n_sums + 1, sizeof *mark->sums)))
            return TREK_ERR_MEMORY;
        mark->metric = trek_metric_retain(m);
    }
    memcpy(mark->sums, m->sums, (size_t)m->n_sums * sizeof *mark->sums);
    mark->counted = m->counted;
    mark->rows = m->rows;
    return mark_waiting(mark, m);
}

trek_metric *trek_metric_mark_make(const trek_metric_mark *mark)
{
    trek_metric *m = trek_metric_make(&mark->metric->form);
    double *place = NULL;
    trek_status status = m ? metric_list_room(m, mark->rows, &place) : TREK_ERR_MEMORY;
    if (status == TREK_OK) {
        memcpy(m->sums, mark->sums, (size_t)m->n_sums * sizeof *m->sums);
        if (mark->rows)
            memcpy(place, mark->metric->list, (size_t)(mark->rows * m->width) * sizeof *place);
        m->counted = mark->counted;
        m->rows = mark->rows;
    }
    for (int k = 0; k < mark->n_waiting && status == TREK_OK; k++)
        status = count(m, &mark->waiting[k]);
    if (status != TREK_OK)
        trek_metric_free(&m);
    return m;
}

/* --- the value ---------------------------------------------------------------------------------------------------- */

static trek_tensor *values_of(const trek_metric *m)
{
    trek_shape shape = m->klass->shape(&m->form);
    int64_t n = trek_shape_numel(shape);
    double *values = trek_calloc((size_t)n, sizeof *values);
    if (!values)
        return NULL;
    bool none = m->counted == 0 && m->form.kind != TREK_METRIC_KIND_CONFUSION;
    for (int64_t k = 0; none && k < n; k++)
        values[k] = NAN;
    trek_status status = none ? TREK_OK : m->klass->value(m, values);
    trek_tensor *made = status == TREK_OK ? trek_tensor_from_data(values, shape, TREK_F64, trek_cpu(0)) : NULL;
    trek_free(values);
    return made;
}

/* Returns the metric of all processes, which the caller owns, or the metric itself, retained. */
static trek_metric *join(trek_metric *metric, trek_graph *graph)
{
    const trek_stepper *s = graph ? graph->stepper : NULL;
    if (s && s->klass->join_metric)
        return s->klass->join_metric(graph->stepper, metric);
    return trek_metric_read(metric) == TREK_OK ? trek_metric_retain(metric) : NULL;
}

trek_tensor *trek_metric_values(trek_metric *metric, trek_graph *graph)
{
    if (!metric)
        return trek_fail_missing("metric_values", "metric"), NULL;
    trek_metric *all = join(metric, graph);
    trek_tensor *values = all ? values_of(all) : NULL;
    trek_metric_free(&all);
    return values;
}

double trek_metric_compute(trek_metric *metric, trek_graph *graph)
{
    if (!metric) {
        trek_fail_missing("metric_compute", "metric");
        return NAN;
    }
    trek_tensor *values = trek_metric_values(metric, graph);
    double value = values && trek_tensor_numel(values) == 1 ? trek_tensor_item(values) : (double)NAN;
    if (values && values->ndim > 0) {
        trek_fail(TREK_ERR_SHAPE, "metric_compute: the value of %s is not a single number; trek_metric_values returns it",
                  metric->klass->name);
        value = NAN;
    }
    trek_tensor_release(values);
    return value;
}
