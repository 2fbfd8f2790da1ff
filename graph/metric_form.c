/* SPDX-License-Identifier: Apache-2.0 */
/* Checks which fields of a metric's spec belong together, and which kind of metric computes it. */
#include "graph/metric_internal.h"
#include "tensor/option_internal.h"

static const metric_class *const classes[] = {
    [TREK_METRIC_ACCURACY] = &trek_metric_counts, [TREK_METRIC_PRECISION] = &trek_metric_counts,
    [TREK_METRIC_RECALL] = &trek_metric_counts, [TREK_METRIC_F1] = &trek_metric_counts,
    [TREK_METRIC_CONFUSION] = &trek_metric_confusion, [TREK_METRIC_AUROC] = &trek_metric_scores,
    [TREK_METRIC_AVERAGE_PRECISION] = &trek_metric_scores, [TREK_METRIC_MSE] = &trek_metric_errors,
    [TREK_METRIC_RMSE] = &trek_metric_errors, [TREK_METRIC_MAE] = &trek_metric_errors, [TREK_METRIC_R2] = &trek_metric_errors,
    [TREK_METRIC_PERPLEXITY] = &trek_metric_perplexity,
};

const metric_class *trek_metric_class_of(trek_metric_kind kind)
{
    return (unsigned)kind <= TREK_METRIC_PERPLEXITY ? classes[kind] : NULL;
}

static bool is_of_numbers(trek_metric_kind kind) { return kind >= TREK_METRIC_MSE && kind <= TREK_METRIC_R2; }
static bool is_of_classes(trek_metric_kind kind) { return kind <= TREK_METRIC_AVERAGE_PRECISION; }

/* Returns what is wrong with the classes, or NULL. */
static const char *wrong_classes(const trek_metric_spec *s)
{
    if (!is_of_classes(s->kind) && (s->classes != 0 || s->multilabel || s->logits || s->threshold != 0 || s->top_k != 0))
        return "classes, multilabel, top_k, threshold and logits are of classes";
    if (s->multilabel ? s->classes < 1 : s->classes != 0 && s->classes < 2)
        return s->multilabel ? "multilabel needs .classes, how many labels there are"
                             : "classes is 0 (binary), or at least 2";
    if (s->classes > INT32_MAX)
        return "there are too many classes";
    bool of_several = s->kind == TREK_METRIC_ACCURACY && s->classes > 0 && !s->multilabel;
    if (s->top_k != 0 && (!of_several || s->top_k < 1 || s->top_k > s->classes))
        return "top_k is of an accuracy of several classes, 1 to .classes";
    if (s->top_k > 1 && s->logits)
        return "top_k needs no logits: the order of scores is that of logits";
    return NULL;
}

static const char *wrong_average(const trek_metric_spec *s)
{
    if ((unsigned)s->average > TREK_METRIC_EACH)
        return "there is no such average";
    bool has_parts = is_of_classes(s->kind) ? s->classes > 0 && s->kind != TREK_METRIC_CONFUSION : is_of_numbers(s->kind);
    if (s->average != TREK_METRIC_AVERAGE_DEFAULT && !has_parts)
        return "an average is of several classes, labels or outputs";
    if (is_of_numbers(s->kind) && (s->average == TREK_METRIC_MICRO ||
                                   (s->average == TREK_METRIC_WEIGHTED && s->kind != TREK_METRIC_R2)))
        return "errors of outputs have the mean of all, or each (R2 also by variance)";
    return NULL;
}

static const char *wrong_numbers(const trek_metric_spec *s)
{
    if (s->outputs != 0 && (!is_of_numbers(s->kind) || s->outputs < 1 || s->outputs > INT32_MAX))
        return "outputs is of metrics of numbers, at least 1";
    if (s->ignore_index != 0 && is_of_numbers(s->kind))
        return "ignore_index is of class targets";
    if (s->beta != 0 && (s->kind != TREK_METRIC_F1 || !(s->beta > 0) || isinf(s->beta)))
        return "beta is of F1, above 0";
    if (isnan(s->threshold) || (s->threshold != 0 && s->classes > 0 && !s->multilabel))
        return "threshold is a number, of binary and multilabel metrics";
    return NULL;
}

trek_status trek_metric_form(const char *function, const trek_metric_spec *s, metric_form *form)
{
    if (!s)
        return trek_fail_missing(function, "spec");
    if (!trek_metric_class_of(s->kind))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: %d is no kind of metric", function, (int)s->kind);
    const char *wrong = wrong_classes(s);
    wrong = wrong ? wrong : wrong_average(s);
    wrong = wrong ? wrong : wrong_numbers(s);
    if (wrong)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: %s", function, wrong);
    trek_metric_average otherwise = s->kind == TREK_METRIC_ACCURACY ? TREK_METRIC_MICRO : TREK_METRIC_MACRO;
    *form = (metric_form){ .kind = s->kind, .classes = s->classes, .multilabel = s->multilabel, .logits = s->logits,
                           .average = s->average == TREK_METRIC_AVERAGE_DEFAULT ? otherwise : s->average,
                           .top_k = trek_option_integer(s->top_k, 1), .outputs = trek_option_integer(s->outputs, 1),
                           .ignores = s->ignore_index != 0, .ignore_index = trek_option_integer(s->ignore_index, 0),
                           .threshold = trek_option(s->threshold, 0.5), .beta = trek_option(s->beta, 1),
                           .zero_division = trek_option(s->zero_division, 0) };
    return TREK_OK;
}
