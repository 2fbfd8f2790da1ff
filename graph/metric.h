/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of a set that comes in batches, exact however it is divided: among batches that are not of one size, ranks,
 * processes, ranks without samples. What is kept are sums (of counts, squares) or, where the order of all scores matters, the
 * scores; so several metrics' states become one by adding, or one list, and the value is taken from that, never a mean of
 * values.
 *
 *     trek_metric *f1 = trek_metric_new(&(trek_metric_spec){ .kind = TREK_METRIC_F1, .classes = 10 });
 *     for (each batch)
 *         trek_metric_update(f1, logits, labels);
 *     double value = trek_metric_compute(f1, graph);
 *
 * Three places to use them: a loop of one's own, as above, over ranks of a process (whose joined outputs it sees) and
 * over processes; trek_record_metric from the function of trek_graph_set_loss; the same from a run's functions, read by
 * trek_metrics_get. Values are scikit-learn's and torchmetrics', where those differ scikit-learn's, unless it says so below.
 *
 * Sums are kept in twice the digits of a double: one division of a set gives the bits of any other, as far as the
 * predictions do. trek's loaders give each sample once and never pad (a last batch is smaller, a part may be empty), so
 * nothing is counted twice. */
#ifndef TREK_GRAPH_METRIC_H
#define TREK_GRAPH_METRIC_H

#include "graph/graph.h"

TREK_BEGIN

typedef enum trek_metric_kind {
    /* Of classes. */
    TREK_METRIC_ACCURACY,  /* binary, of several classes, of labels: the part that is right; over classes: recall */
    TREK_METRIC_PRECISION, /* tp / (tp + fp) */
    TREK_METRIC_RECALL,    /* tp / (tp + fn) */
    TREK_METRIC_F1,        /* (1 + beta^2) tp / ((1 + beta^2) tp + beta^2 fn + fp) */
    TREK_METRIC_CONFUSION, /* [C, C]: row: the true class, column: the one predicted; binary [2, 2]; labels [L, 2, 2] */
    /* Of scores: all are kept on the host, 8 bytes a score, and so are those of all processes while the value is taken. Ties are
     * one step of the curve. */
    TREK_METRIC_AUROC,             /* the area under the ROC curve, by trapezoids; several classes: each against the rest */
    TREK_METRIC_AVERAGE_PRECISION, /* sum of (recall's step) * precision, without interpolation; nothing positive: 0 */
    /* Of numbers; NaN and infinity pass through. */
    TREK_METRIC_MSE,
    TREK_METRIC_RMSE,
    TREK_METRIC_MAE,
    TREK_METRIC_R2,        /* 1 - residual / total sum of squares; a constant target: 1 where the residuals are 0, else 0;
                              fewer than two samples: NaN */
    TREK_METRIC_PERPLEXITY /* e^(mean of -log p of the target), of logits [..., C], class targets [...] */
} trek_metric_kind;

/* How the values of classes (labels, outputs) become one. */
typedef enum trek_metric_average {
    TREK_METRIC_AVERAGE_DEFAULT,     /* micro for accuracy, else macro */
    TREK_METRIC_MICRO,               /* counts (or scores) of all together */
    TREK_METRIC_MACRO,               /* the mean. Precision, recall, F1 and accuracy of several classes: over classes that
                                        are targets or predicted at all */
    TREK_METRIC_WEIGHTED,            /* by how often each is a target; R2: by variance */
    TREK_METRIC_EACH                 /* no mean: a value for each; classes that never occur: zero_division */
} trek_metric_average;

/* What is measured. Fields left 0 are defaults. */
typedef struct trek_metric_spec {
    trek_metric_kind kind;
    int64_t classes;                 /* 0: binary. Else how many classes there are, >= 2; with multilabel: labels, >= 1 */
    bool multilabel;                 /* any number of labels for a sample, each by itself */
    trek_metric_average average;     /* not of binary metrics, confusion and perplexity; micro: not of numbers */
    int64_t top_k;                   /* accuracy of several classes: right if among the k largest scores (of equals the first, as
                                        of 1); default 1 */
    double threshold;                /* binary, multilabel: above it is positive; default 0.5; TREK_ZERO */
    bool logits;          /* predictions are logits: scores are their sigmoid, or softmax over classes. Not guessed from
                             values, which may be told otherwise by each batch */
    int64_t ignore_index; /* targets of this value are not counted (multilabel: that label of that sample); default: all
                             are; TREK_ZERO for 0. Of class targets */
    double beta;                     /* F1: default 1 */
    double zero_division;            /* precision, recall, F1 of nothing; default 0 */
    int64_t outputs;                 /* of numbers: size of the last dimension, each column a value; default 1: all are one */
} trek_metric_spec;

typedef struct trek_metric trek_metric;

/* Used by one thread at a time. NULL and ARGUMENT: which field does not fit the kind; MEMORY. */
TREK_API trek_metric *trek_metric_new(const trek_metric_spec *spec);
TREK_API void trek_metric_free(trek_metric **metric);

/* Adds a batch, which may be of no rows. Any floating dtype, any strides, no gradients. Shapes:
 *   binary: pred and target alike, of any shape; target 0 or 1; pred scores, or classes in an integer dtype or bool;
 *   several classes: pred [N, C, ...] or classes [N, ...] in an integer dtype, target [N, ...] classes;
 *   multilabel: pred and target [N, L, ...], as binary;
 *   numbers: pred and target alike, with outputs > 1 [..., outputs];
 *   perplexity: pred [..., C], target [...].
 * weight: of the samples, >= 0, of target's shape (multilabel and outputs: without that dimension), or [N]; NULL: 1 each.
 * Errors, after which the batch is not counted: SHAPE; DTYPE; ARGUMENT: a class out of range, a NaN score, a bad weight.
 * Of tensors on a GPU nothing waits: what is small is kept there (at most 256 MiB) and read by the calls below, which then
 * report what is wrong with it. Not for a captured step, which does not call it. */
TREK_API trek_status trek_metric_update(trek_metric *metric, trek_var *pred, trek_var *target);
TREK_API trek_status trek_metric_update_weighted(trek_metric *metric, trek_var *pred, trek_var *target, trek_var *weight);

/* The value. graph: in a job of several processes, whose graph trek_trainer_setup has set up, what all processes have
 * counted, and a collective, for processes without samples, too; the metric itself stays what it is. NULL: of this process
 * alone. Nothing counted: NaN (a confusion: zeros). NaN and an error: ARGUMENT: AUROC where only one class is there (of
 * several classes: named; with TREK_METRIC_EACH those are NaN without an error), metrics that differ between processes; SHAPE:
 * the value is not one number. */
TREK_API double trek_metric_compute(trek_metric *metric, trek_graph *graph);
/* The same for any value: f64 on the CPU, [], [C], [C, C], [2, 2], [L, 2, 2] or [outputs]; the caller's. NULL on failure. */
TREK_API trek_tensor *trek_metric_values(trek_metric *metric, trek_graph *graph);
/* Rows counted since the last reset, here: those not ignored, whatever their weight (multilabel: samples with any label). -1
 * and an error on failure. */
TREK_API int64_t trek_metric_count(trek_metric *metric);
/* Nothing is counted. */
TREK_API void trek_metric_reset(trek_metric *metric);

/* Adds what `from` has counted, which stays as it is. ARGUMENT: they measure different things. */
TREK_API trek_status trek_metric_merge(trek_metric *metric, trek_metric *from);
/* What is counted, and of what, as f64 [n] on the CPU, the caller's: to be kept beside a checkpoint (trek_state_add), or to be
 * sent. */
TREK_API trek_tensor *trek_metric_state(trek_metric *metric);
/* Replaces what is counted. FORMAT: it is no such state; ARGUMENT: of another metric. Then nothing has changed. */
TREK_API trek_status trek_metric_set_state(trek_metric *metric, const trek_tensor *state);

/* From the function of trek_graph_set_loss (or of trek_trainer_run), on whatever rank it runs: the point of `name`
 * (trek_graph_flush; an epoch of a run, its evaluation) is the metric's value of what all ranks and processes have recorded. The
 * spec is the same at each call. Errors as of trek_metric_new, trek_metric_update and trek_record_mean (observe.h). A value that
 * does not exist (AUROC of one class) is NaN, and a warning in the log says why. weight may be NULL. */
TREK_API trek_status trek_record_metric(const char *name, const trek_metric_spec *spec, trek_var *pred, trek_var *target);
TREK_API trek_status trek_record_metric_weighted(const char *name, const trek_metric_spec *spec, trek_var *pred, trek_var *target,
                                                 trek_var *weight);
/* Of the last flushed point of a recorded metric, what trek_metric_values gives (its trend has the number, or NaN where it is
 * not one); a new reference. NULL without an error: there is none. */
TREK_API trek_tensor *trek_graph_metric_values(trek_graph *graph, const char *name);

TREK_END

#endif
