/* SPDX-License-Identifier: Apache-2.0 */
/* Checks which fields of a metric's spec belong together, and which kind of metric computes it. */
#include "graph/metric_internal.h"
#include "tensor/option_internal.h"

static const metric_class *const classes[] = {
    [TREK_METRIC_KIND_ACCURACY] = &trek_metric_counts, [TREK_METRIC_KIND_PRECISION] = &trek_metric_counts,
    [TREK_METRIC_KIND_RECALL] = &trek_metric_counts, [TREK_METRIC_KIND_F1] = &trek_metric_counts,
    [TREK_METRIC_KIND_CONFUSION] = &trek_metric_confusion, [TREK_METRIC_KIND_AUROC] = &trek_metric_scores,
    [TREK_METRIC_KIND_AVERAGE_PRECISION] = &trek_metric_scores, [TREK_METRIC_KIND_MSE] = &trek_metric_errors,
    [TREK_METRIC_KIND_RMSE] = &trek_metric_errors, [TREK_METRIC_KIND_MAE] = &trek_metric_errors,
    [TREK_METRIC_KIND_R2] = &trek_metric_errors,
    [TREK_METRIC_KIND_PERPLEXITY] = &trek_metric_perplexity,
};

const metric_class *trek_metric_class_of(trek_metric_kind kind)
{
    return (unsigned)kind <= TREK_METRIC_KIND_PERPLEXITY ? classes[kind] : NULL;
}

static bool is_of_numbers(trek_metric_kind kind) { return kind >= TREK_METRIC_KIND_MSE && kind <= TREK_METRIC_KIND_R2; }
static bool is_of_classes(trek_metric_kind kind) { return kind <= TREK_METRIC_KIND_AVERAGE_PRECISION; }

/* Returns what is wrong with the classes, or NULL. */
static const char *wrong_classes(const trek_metric_spec *s)
{
    if (!is_of_classes(s->kind) && (s->classes != 0 || s->multilabel || s->logits || s->threshold != 0 || s->top_k != 0))
        return ".classes, .multilabel, .top_k, .threshold, .logits: set; only metrics of classes have them";
    if (s->multilabel ? s->classes < 1 : s->classes != 0 && s->classes < 2)
        return s->multilabel ? ".multilabel: set without .classes, the number of labels, which it needs"
                             : ".classes: out of range; must be 0 (binary) or at least 2";
    if (s->classes > INT32_MAX)
        return ".classes: too many; must be less than 2^31";
    bool of_several = s->kind == TREK_METRIC_KIND_ACCURACY && s->classes > 0 && !s->multilabel;
    if (s->top_k != 0 && (!of_several || s->top_k < 1 || s->top_k > s->classes))
        return ".top_k: not allowed here, or out of range; only an accuracy of several classes has it, 1 to .classes";
    if (s->top_k > 1 && s->logits)
        return ".logits: set together with .top_k, which does not need it: scores and logits have one order";
    return NULL;
}

static const char *wrong_average(const trek_metric_spec *s)
{
    if ((unsigned)s->average > TREK_METRIC_AVERAGE_EACH)
        return ".average: unknown; must be a value of trek_metric_average";
    bool has_parts = is_of_classes(s->kind) ? s->classes > 0 && s->kind != TREK_METRIC_KIND_CONFUSION : is_of_numbers(s->kind);
    if (s->average != TREK_METRIC_AVERAGE_DEFAULT && !has_parts)
        return ".average: set; only metrics of several classes, labels or outputs have it";
    if (is_of_numbers(s->kind) && (s->average == TREK_METRIC_AVERAGE_MICRO ||
                                   (s->average == TREK_METRIC_AVERAGE_WEIGHTED && s->kind != TREK_METRIC_KIND_R2)))
        return ".average: not possible for errors of outputs; must be the mean of all, or each (for R2 also by variance)";
    return NULL;
}

static const char *wrong_numbers(const trek_metric_spec *s)
{
    if (s->outputs != 0 && (!is_of_numbers(s->kind) || s->outputs < 1 || s->outputs > INT32_MAX))
        return ".outputs: not allowed here, or out of range; only metrics of numbers have it, and it must be at least 1";
    if (s->ignore_index != 0 && is_of_numbers(s->kind))
        return ".ignore_index: set; only metrics of class targets have it";
    if (s->beta != 0 && (s->kind != TREK_METRIC_KIND_F1 || !(s->beta > 0) || isinf(s->beta)))
        return ".beta: not allowed here, or out of range; only F1 has it, and it must be above 0";
    if (isnan(s->threshold) || (s->threshold != 0 && s->classes > 0 && !s->multilabel))
        return ".threshold: not allowed here, or NaN; only binary and multilabel metrics have it";
    return NULL;
}

trek_status trek_metric_form(const char *function, const trek_metric_spec *s, metric_form *form)
{
    if (!s)
        return trek_fail_missing(function, "spec");
    if (!trek_metric_class_of(s->kind))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .kind: %d; must be a value of trek_metric_kind", function, (int)s->kind);
    const char *wrong = wrong_classes(s);
    wrong = wrong ? wrong : wrong_average(s);
    wrong = wrong ? wrong : wrong_numbers(s);
    if (wrong)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: %s", function, wrong);
    trek_metric_average otherwise = s->kind == TREK_METRIC_KIND_ACCURACY ? TREK_METRIC_AVERAGE_MICRO : TREK_METRIC_AVERAGE_MACRO;
    *form = (metric_form){ .kind = s->kind, .classes = s->classes, .multilabel = s->multilabel, .logits = s->logits,
                           .average = s->average == TREK_METRIC_AVERAGE_DEFAULT ? otherwise : s->average,
                           .top_k = trek_option_integer(s->top_k, 1), .outputs = trek_option_integer(s->outputs, 1),
                           .ignores = s->ignore_index != 0, .ignore_index = trek_option_integer(s->ignore_index, 0),
                           .threshold = trek_option(s->threshold, 0.5), .beta = trek_option(s->beta, 1),
                           .zero_division = trek_option(s->zero_division, 0) };
    return TREK_OK;
}
