/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of a set of samples that comes in batches. The value is exact however the set is divided: into batches of different
 * sizes, over ranks and processes, also over ranks without samples. A metric keeps sums (of counts, of squares) or, if the order
 * of all scores matters, the scores. States of several metrics are added or concatenated, and the value is computed from the
 * result. It is never a mean of values.
 *
 *     trek_metric *f1 = trek_metric_new(&(trek_metric_spec){ .kind = TREK_METRIC_KIND_F1, .classes = 10 });
 *     for (each batch)
 *         trek_metric_update(f1, logits, labels);
 *     double value = trek_metric_compute(f1, graph);
 *
 * There are three ways to use metrics:
 * - in a loop of the program, as above, also with several ranks (whose joined outputs the loop sees) and several processes
 * - with trek_record_metric in the function of trek_graph_set_loss
 * - with trek_record_metric in the functions of a run, whose values trek_metrics_get returns
 *
 * Values are those of scikit-learn and torchmetrics. If these differ they are scikit-learn's, unless a comment says otherwise.
 *
 * Sums are kept with twice the digits of a double. Any two divisions of a set give the same bits if the predictions have the
 * same bits. trek's loaders give each sample once and never pad (the last batch is smaller, a rank's part may be empty), so that
 * no sample is counted twice. */
#ifndef TREK_GRAPH_METRIC_H
#define TREK_GRAPH_METRIC_H

#include "graph/graph.h"

TREK_BEGIN

/* What a metric measures. tp, fp and fn are the numbers of true positives, false positives and false negatives. */
typedef enum trek_metric_kind {
    /* Metrics of classes. */
    TREK_METRIC_KIND_ACCURACY,  /* the fraction of correct predictions; averaged over classes it is the recall */
    TREK_METRIC_KIND_PRECISION, /* tp / (tp + fp) */
    TREK_METRIC_KIND_RECALL,    /* tp / (tp + fn) */
    TREK_METRIC_KIND_F1,        /* (1 + beta^2) tp / ((1 + beta^2) tp + beta^2 fn + fp) */
    TREK_METRIC_KIND_CONFUSION, /* counts [C, C], row: true class, column: predicted class (binary [2, 2], labels [L, 2, 2]) */
    /* Metrics of scores. All scores are kept on the host, in 8 bytes each. So are those of all processes while the value is
     * computed. Equal scores are one step of the curve. */
    TREK_METRIC_KIND_AUROC,             /* area under the ROC curve, by trapezoids; with several classes one against the rest */
    TREK_METRIC_KIND_AVERAGE_PRECISION, /* sum of (step of recall) * precision, not interpolated; 0 without positive targets */
    /* Metrics of numbers. NaN and infinity in the numbers give NaN or infinity. */
    TREK_METRIC_KIND_MSE,       /* mean squared error */
    TREK_METRIC_KIND_RMSE,      /* square root of the mean squared error */
    TREK_METRIC_KIND_MAE,       /* mean absolute error */
    /* 1 - (residual sum of squares) / (total sum of squares). For a constant target it is 1 if all residuals are 0, otherwise 0.
     * For fewer than two samples it is NaN. */
    TREK_METRIC_KIND_R2,
    TREK_METRIC_KIND_PERPLEXITY /* e^(mean of -log p of the target) for logits [..., C] and class targets [...] */
} trek_metric_kind;

/* How the values of several classes, labels or outputs are combined to one value. */
typedef enum trek_metric_average {
    TREK_METRIC_AVERAGE_DEFAULT,  /* micro for accuracy, macro for the other kinds */
    TREK_METRIC_AVERAGE_MICRO,    /* the value of the counts or scores of all classes together */
    /* The mean. For precision, recall, F1 and accuracy of several classes it is over the classes that occur as a target or as a
     * prediction. */
    TREK_METRIC_AVERAGE_MACRO,
    TREK_METRIC_AVERAGE_WEIGHTED,            /* the mean weighted by how often a class is a target, for R2 by the variance */
    TREK_METRIC_AVERAGE_EACH                 /* one value for each; zero_division for classes that never occur */
} trek_metric_average;

/* What a metric measures and how. Fields that are 0 have their defaults. */
typedef struct trek_metric_spec {
    trek_metric_kind kind;       /* what is measured */
    int64_t classes;             /* default 0: binary; otherwise the number of classes, >= 2, or of labels, >= 1 */
    bool multilabel;             /* a sample may have any number of labels, each of which is binary; default false */
    trek_metric_average average; /* not for binary metrics, confusion and perplexity; micro not for metrics of numbers */
    /* For accuracy of several classes: a prediction is correct if the target is among the k largest scores, of equal scores the
     * first. Default 1. */
    int64_t top_k;
    double threshold;            /* binary and multilabel: a score above it is positive; default 0.5 (TREK_ZERO for 0) */
    /* Predictions are logits: the scores are their sigmoid, or their softmax over classes. Default false. trek does not guess it
     * from the values, because each batch could give another answer. */
    bool logits;
    /* Class targets of this value are not counted. With multilabel the other labels of the sample are counted. TREK_ZERO stands
     * for 0. Default: all targets count. */
    int64_t ignore_index;
    double beta;                 /* for F1: the weight of the recall; default 1 */
    double zero_division;        /* the value of precision, recall and F1 if their denominator is 0; default 0 */
    int64_t outputs;             /* for numbers: size of the last dimension, with one value each; default 1: one value */
} trek_metric_spec;

/* A metric with the state of what it has counted. Only one thread at a time may use it. */
typedef struct trek_metric trek_metric;

/* Returns a new metric, which the caller frees with trek_metric_free.
 * Errors: ARGUMENT if a field of `spec` does not fit its kind. MEMORY. NULL is returned. */
TREK_API trek_metric *trek_metric_new(const trek_metric_spec *spec);
/* Frees the metric and sets *metric to NULL. */
TREK_API void trek_metric_free(trek_metric **metric);

/* Adds a batch of predictions and targets to the metric. The batch may have no rows. Shapes:
 * - binary: `pred` and `target` have one shape, which may be any. A target is 0 or 1. `pred` are scores, or classes in an
 *   integer dtype or bool.
 * - several classes: `pred` are scores [N, C, ...] or classes [N, ...] in an integer dtype, `target` are classes [N, ...].
 * - multilabel: `pred` and `target` are [N, L, ...], with values as in binary metrics.
 * - numbers: `pred` and `target` have one shape, with outputs > 1 it is [..., outputs].
 * - perplexity: `pred` is [..., C], `target` is [...].
 *
 * Dtypes: scores and numbers may have any floating dtype. Strides may be any. No gradients are computed. The call does not wait
 * for a GPU: small tensors are kept there, at most 256 MiB, and are read by the functions below, which then report errors in
 * them. A step that is captured does not call it.
 * Errors: SHAPE. DTYPE. ARGUMENT if a class is out of range or a score is NaN. A batch with an error is not counted. */
TREK_API trek_status trek_metric_update(trek_metric *metric, trek_var *pred, trek_var *target);
/* Adds a batch as trek_metric_update does, with weights of the samples. `weight` is >= 0 and has the shape of `target`, without
 * the dimension of labels or outputs, or the shape [N]. NULL stands for weights of 1.
 * Errors: as trek_metric_update, and ARGUMENT if a weight is negative or not finite. */
TREK_API trek_status trek_metric_update_weighted(trek_metric *metric, trek_var *pred, trek_var *target, trek_var *weight);

/* Returns the value of the metric, or NaN if no sample was counted. If `graph` was set up by trek_trainer_setup in a job of
 * several processes, the value is that of the samples of all processes. The call is then a collective, also for processes
 * without samples. If `graph` is NULL, the value is that of this process. The state of the metric does not change.
 * Errors, with NaN as the result: SHAPE if the value is not one number. ARGUMENT for AUROC if all targets are of one class
 * (with several classes the message names it; with TREK_METRIC_AVERAGE_EACH the value of such a class is NaN without an error).
 * ARGUMENT if the metrics of the processes differ. */
TREK_API double trek_metric_compute(trek_metric *metric, trek_graph *graph);
/* Returns the value of the metric as trek_metric_compute does, as a tensor of one or several numbers. It is f64 on the CPU, of
 * shape [], [C], [C, C], [2, 2], [L, 2, 2] or [outputs]. If no sample was counted, the numbers are NaN, those of a confusion are
 * 0. The caller releases it. NULL is returned on failure. */
TREK_API trek_tensor *trek_metric_values(trek_metric *metric, trek_graph *graph);
/* Returns how many rows this process has counted since the last reset, or -1 on failure. Rows that are ignored do not count.
 * Rows count whatever their weight is. With multilabel a row counts if at least one of its labels does. */
TREK_API int64_t trek_metric_count(trek_metric *metric);
/* Resets the metric: afterwards no sample is counted. */
TREK_API void trek_metric_reset(trek_metric *metric);

/* Adds the counts of `from` to `metric`. `from` does not change. Errors: ARGUMENT if the two do not measure the same. */
TREK_API trek_status trek_metric_merge(trek_metric *metric, trek_metric *from);
/* Returns the state of the metric, with a description of what it measures, as a tensor [n] of f64 on the CPU. It can be stored
 * with a checkpoint (trek_state_add) or sent to another process. The caller releases it. */
TREK_API trek_tensor *trek_metric_state(trek_metric *metric);
/* Replaces the state of the metric by a state that trek_metric_state has returned.
 * Errors: FORMAT if the tensor is not such a state. ARGUMENT if it is the state of another metric. The metric does not change
 * then. */
TREK_API trek_status trek_metric_set_state(trek_metric *metric, const trek_tensor *state);

/* Adds a batch to a metric whose value becomes the point of `name` (trek_graph_flush, or an epoch of a run or its evaluation).
 * It may be called only in the function of trek_graph_set_loss or trek_trainer_run, on any rank. The value is that of the
 * samples that all ranks and processes have recorded. `spec` must be the same at each call. A value that does not exist, such as
 * AUROC of one class, is NaN, and a warning in the log says why.
 * Errors: as trek_metric_new, trek_metric_update and trek_record_mean (observe.h). */
TREK_API trek_status trek_record_metric(const char *name, const trek_metric_spec *spec, trek_var *pred, trek_var *target);
/* Adds a batch as trek_record_metric does, with weights of the samples as in trek_metric_update_weighted. `weight` may be
 * NULL. */
TREK_API trek_status trek_record_metric_weighted(const char *name, const trek_metric_spec *spec, trek_var *pred, trek_var *target,
                                                 trek_var *weight);
/* Returns the values of the last flushed point of a recorded metric, as trek_metric_values does. The name's trend has the value
 * as a number, or NaN if it is not one number. The caller releases the tensor. Returns NULL without an error if no such point
 * exists. */
TREK_API trek_tensor *trek_graph_metric_values(trek_graph *graph, const char *name);

TREK_END

#endif
