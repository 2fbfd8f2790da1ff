/* SPDX-License-Identifier: Apache-2.0 */
/* Reduces a batch to what is counted: rows of a few numbers, computed by ops on the batch's device, so that nothing
 * waits for a device. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "graph/metric_internal.h"

typedef struct metric_batch {
    const char *function;
    const metric_form *form;
    trek_var *pred, *target, *weight;
    trek_var *column[METRIC_COLUMNS];
    trek_shape rows;                     /* before they become one dimension */
    int64_t n, classes;
} metric_batch;

static trek_status fail_shapes(const metric_batch *b, const char *wanted)
{
    char pred[TREK_SHAPE_TEXT], target[TREK_SHAPE_TEXT];
    return trek_fail(TREK_ERR_SHAPE, "%s: pred of shape %s and target of shape %s; %s", b->function,
                     trek_shape_format(trek_var_shape(b->pred), pred, sizeof pred),
                     trek_shape_format(trek_var_shape(b->target), target, sizeof target), wanted);
}

static bool are_alike(const trek_var *a, const trek_var *b)
{
    trek_shape x = trek_var_shape(a), y = trek_var_shape(b);
    return x.ndim == y.ndim && memcmp(x.sizes, y.sizes, (size_t)x.ndim * sizeof *x.sizes) == 0;
}

/* Returns a shape without one of its dimensions. */
static trek_shape without(trek_shape shape, int dim)
{
    for (int k = dim; k + 1 < shape.ndim; k++)
        shape.sizes[k] = shape.sizes[k + 1];
    return trek_shape_make(shape.sizes, shape.ndim - 1);
}

static bool is_score(const trek_var *x) { return trek_dtype_is_float(trek_var_dtype(x)); }

/* Casts 16-bit scores to f32 before other numbers are computed from them. */
static trek_var *wide(trek_var *x) { return x && trek_dtype_is_16bit(trek_var_dtype(x)) ? trek_cast(x, TREK_F32) : x; }

/* Returns [n] or [n, width] in the order of rows. */
static trek_var *as_rows(trek_var *x, int64_t n, int64_t width)
{
    return trek_reshape(x, width < 0 ? trek_dims(n) : trek_dims(n, width));
}

/* Moves the dimension after the samples to the end. */
static trek_var *classes_last(trek_var *x)
{
    return trek_var_ndim(x) > 2 ? trek_movedim(x, trek_dims(1), trek_dims(-1)) : x;
}

/* --- the forms -------------------------------------------------------------------------------------------------- */

static trek_status take_alike(metric_batch *b, bool sigmoid)
{
    if (!are_alike(b->pred, b->target))
        return fail_shapes(b, "their shapes must be equal");
    b->rows = trek_var_shape(b->target);
    b->n = trek_shape_numel(b->rows);
    b->column[METRIC_PRED] = as_rows(sigmoid ? trek_sigmoid(wide(b->pred)) : b->pred, b->n, -1);
    b->column[METRIC_TARGET] = as_rows(b->target, b->n, -1);
    return trek_error_status();
}

static trek_status take_labels(metric_batch *b, bool sigmoid)
{
    int64_t labels = b->form->classes;
    if (!are_alike(b->pred, b->target) || trek_var_ndim(b->target) < 2 || trek_var_size(b->target, 1) != labels)
        return fail_shapes(b, "both must be [samples, labels, ...], with the metric's number of labels");
    b->rows = without(trek_var_shape(b->target), 1);
    b->n = trek_shape_numel(b->rows);
    b->column[METRIC_PRED] = as_rows(classes_last(sigmoid ? trek_sigmoid(wide(b->pred)) : b->pred), b->n, labels);
    b->column[METRIC_TARGET] = as_rows(classes_last(b->target), b->n, labels);
    return trek_error_status();
}

/* Computes the class with the largest score, and that score. */
static trek_status choose(metric_batch *b, trek_var *scores)
{
    trek_var *places = NULL, *top;
    if (b->form->top_k == 1) {
        top = trek_max_with_indices(scores, 1, false, &places);
    } else {
        trek_var *best = trek_topk(scores, b->form->top_k, 1, true, &places);
        top = best ? trek_reshape(trek_narrow(best, 1, 0, 1), trek_dims(b->n)) : NULL;
    }
    b->column[METRIC_PRED] = places;
    b->column[METRIC_TOP] = top;
    return trek_error_status();
}

static trek_status take_classes(metric_batch *b, bool all_scores)
{
    const metric_form *f = b->form;
    b->rows = trek_var_shape(b->target);
    b->n = trek_shape_numel(b->rows);
    b->column[METRIC_TARGET] = as_rows(b->target, b->n, -1);
    if (!is_score(b->pred) && !all_scores && f->top_k == 1) {
        if (!are_alike(b->pred, b->target))
            return fail_shapes(b, "there must be as many predicted classes as targets");
        b->column[METRIC_PRED] = as_rows(b->pred, b->n, -1);
        return trek_error_status();
    }
    if (!is_score(b->pred))
        return trek_fail(TREK_ERR_DTYPE, "%s: pred: scores of %s; must be of a floating dtype", b->function,
                         trek_dtype_name(trek_var_dtype(b->pred)));
    trek_shape scores = trek_var_shape(b->pred);
    if (scores.ndim < 2 || scores.sizes[1] != f->classes || scores.ndim != b->rows.ndim + 1 ||
        memcmp(without(scores, 1).sizes, b->rows.sizes, (size_t)b->rows.ndim * sizeof *scores.sizes) != 0)
        return fail_shapes(b, "they must be [N, C, ...], with the metric's number of classes, and [N, ...]");
    if (b->n == 0)
        return TREK_OK;
    trek_var *rows = as_rows(classes_last(b->pred), b->n, f->classes);
    if (!all_scores)
        return rows ? choose(b, rows) : trek_error_status();
    b->column[METRIC_PRED] = f->logits ? trek_softmax(wide(rows), 1) : rows;
    return trek_error_status();
}

static trek_status take_numbers(metric_batch *b)
{
    int64_t outputs = b->form->outputs;
    int ndim = trek_var_ndim(b->target);
    if (outputs == 1)
        return take_alike(b, false);
    if (!are_alike(b->pred, b->target) || ndim < 1 || trek_var_size(b->target, -1) != outputs)
        return fail_shapes(b, "their shapes must be equal, and the last dimension that of the metric's outputs");
    b->rows = without(trek_var_shape(b->target), ndim - 1);
    b->n = trek_shape_numel(b->rows);
    b->column[METRIC_PRED] = as_rows(b->pred, b->n, outputs);
    b->column[METRIC_TARGET] = as_rows(b->target, b->n, outputs);
    return trek_error_status();
}

/* Computes -log p of the targets. */
static trek_status take_tokens(metric_batch *b)
{
    trek_shape logits = trek_var_shape(b->pred);
    if (!is_score(b->pred))
        return trek_fail(TREK_ERR_DTYPE, "%s: pred: logits of %s; must be of a floating dtype", b->function,
                         trek_dtype_name(trek_var_dtype(b->pred)));
    b->rows = trek_var_shape(b->target);
    b->n = trek_shape_numel(b->rows);
    if (logits.ndim != b->rows.ndim + 1 ||
        memcmp(logits.sizes, b->rows.sizes, (size_t)b->rows.ndim * sizeof *logits.sizes) != 0)
        return fail_shapes(b, "they must be [..., C] and [...]");
    if (is_score(b->target))
        return trek_fail(TREK_ERR_DTYPE, "%s: target: classes of %s; must be of an integer dtype", b->function,
                         trek_dtype_name(trek_var_dtype(b->target)));
    b->classes = logits.sizes[b->rows.ndim];
    b->column[METRIC_TARGET] = as_rows(b->target, b->n, -1);
    if (b->n == 0)
        return TREK_OK;
    trek_cross_entropy_opts opts = { .ignore_index = b->form->ignores && b->form->ignore_index == 0 ? TREK_ZERO
                                     : b->form->ignores ? b->form->ignore_index : 0,
                                     .reduction = TREK_REDUCTION_NONE };
    b->column[METRIC_PRED] = trek_cross_entropy_with(wide(as_rows(b->pred, b->n, b->classes)), b->column[METRIC_TARGET], &opts);
    return trek_error_status();
}

static trek_status take(metric_batch *b)
{
    const metric_form *f = b->form;
    bool scores = f->kind == TREK_METRIC_KIND_AUROC || f->kind == TREK_METRIC_KIND_AVERAGE_PRECISION, sigmoid = f->logits &&
        is_score(b->pred);
    if (f->kind == TREK_METRIC_KIND_PERPLEXITY)
        return take_tokens(b);
    if (f->kind >= TREK_METRIC_KIND_MSE)
        return take_numbers(b);
    if (metric_is_multiclass(f))
        return take_classes(b, scores);
    return metric_is_binary(f) ? take_alike(b, sigmoid) : take_labels(b, sigmoid);
}

/* Makes one weight for each row, from weights of rows or of samples. */
static trek_status take_weight(metric_batch *b)
{
    trek_var *w = b->weight;
    if (!w)
        return TREK_OK;
    trek_shape shape = trek_var_shape(w);
    bool of_rows = shape.ndim == b->rows.ndim &&
        memcmp(shape.sizes, b->rows.sizes, (size_t)shape.ndim * sizeof *shape.sizes) == 0;
    if (!of_rows && !(shape.ndim == 1 && b->rows.ndim >= 1 && shape.sizes[0] == b->rows.sizes[0])) {
        char given[TREK_SHAPE_TEXT], rows[TREK_SHAPE_TEXT];
        return trek_fail(TREK_ERR_SHAPE, "%s: weight: shape %s; must be that of the targets' rows, %s, or of their samples",
                         b->function,
                         trek_shape_format(shape, given, sizeof given), trek_shape_format(b->rows, rows, sizeof rows));
    }
    if (!of_rows) {
        for (int k = 1; k < b->rows.ndim; k++)
            shape.sizes[k] = 1;
        w = trek_expand(trek_reshape(w, trek_shape_make(shape.sizes, b->rows.ndim)), b->rows);
    }
    b->column[METRIC_WEIGHT] = as_rows(w, b->n, -1);
    return trek_error_status();
}

/* --- what stays ---------------------------------------------------------------------------------------------------- */

void trek_metric_columns_clear(metric_columns *columns)
{
    for (int k = 0; k < METRIC_COLUMNS; k++)
        trek_tensor_release(columns->column[k]);
    *columns = (metric_columns){ 0 };
}

/* Copies what shares the caller's memory if it is read later, because the caller may write to it. */
static trek_status keep(const metric_batch *b, metric_columns *columns, bool waits)
{
    const trek_var *given[] = { b->pred, b->target, b->weight };
    columns->n = b->n;
    columns->classes = b->classes;
    for (int k = 0; k < METRIC_COLUMNS; k++) {
        trek_tensor *x = b->column[k] ? b->column[k]->data : NULL;
        bool shares = false;
        for (int g = 0; x && g < 3; g++)
            shares |= given[g] && given[g]->data->storage == x->storage;
        columns->column[k] = waits && shares ? trek_tensor_clone(x) : trek_tensor_retain(x);
    }
    return trek_error_status();
}

static trek_status prepare(metric_batch *b, metric_columns *columns, bool waits)
{
    trek_status status = take(b);
    if (status == TREK_OK)
        status = take_weight(b);
    return status == TREK_OK ? keep(b, columns, waits) : status;
}

trek_status trek_metric_prepare(const char *function, const metric_form *form, trek_var *pred, trek_var *target, trek_var *weight,
                                metric_columns *columns, bool *waits)
{
    metric_batch b = { .function = function, .form = form, .pred = pred, .target = target, .weight = weight };
    *waits = pred->data->device.type != TREK_CPU || target->data->device.type != TREK_CPU ||
        (weight && weight->data->device.type != TREK_CPU);
    trek_scope scope = trek_scope_begin();
    if (!scope.depth)
        return trek_error_status();
    trek_no_grad_begin();
    trek_status status = prepare(&b, columns, *waits);
    trek_no_grad_end();
    trek_scope_end(scope);
    if (status != TREK_OK)
        trek_metric_columns_clear(columns);
    return status;
}
