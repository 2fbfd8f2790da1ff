/* SPDX-License-Identifier: Apache-2.0 */
/* Losses. Lifetimes, NULL and errors are as in autograd/ops.h, which includes this header. Formulas, names and defaults are
 * PyTorch's. Options may be NULL.
 *
 * Shapes: x and target have one shape; otherwise a loss fails with SHAPE, even if they would broadcast, of which PyTorch only
 * warns: [N, 1] and [N] would give N * N losses. The result is a scalar, or has the losses' shape with reduction none.
 *
 * Dtypes: the result's dtype is what both promote to (PyTorch's bce: the target's). Steps are computed in it, or in f32 for 16
 * bits. At least one input is floating; otherwise a loss fails with DTYPE. The other input of trek_l1_loss is not bool. From
 * trek_bce on all inputs are floating unless a comment says otherwise.
 *
 * Means are over all elements or rows. A mean over no elements is 0 with gradients of 0. Data parallelism reads how many elements
 * a mean is over (trek_loss_weight). Derivatives by targets and weights exist, also where PyTorch has none. */
#ifndef TREK_AUTOGRAD_LOSSES_H
#define TREK_AUTOGRAD_LOSSES_H

#include "autograd/basic_losses.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* -- classes -- */
/* Options of the losses of classes. */
typedef struct trek_cross_entropy_opts {
    trek_var *weight;         /* [C], factor of each class's loss; default ones */
    int64_t ignore_index;     /* label whose rows do not count; default -100, TREK_ZERO for class 0 */
    double label_smoothing;   /* share of each target that is spread over all classes, in [0, 1]; default 0 */
    trek_reduction reduction; /* default mean: divided by the weights of the rows that are not ignored */
} trek_cross_entropy_opts;

/* Computes the cross entropy of logits [N, C, ...] and labels [N, ...] of any integer dtype, or probabilities of logits' shape.
 * An ignored row gives gradients of 0, whatever its logits are (PyTorch: NaN if they are infinite). Fails with ARGUMENT if labels
 * are probabilities and ignore_index is a class, and with UNSUPPORTED if labels are classes and class weights require a
 * gradient. */
TREK_API trek_var *trek_cross_entropy_with(trek_var *logits, trek_var *labels, const trek_cross_entropy_opts *opts);
/* Computes trek_cross_entropy_with(trek_linear(x, weight, bias), labels, opts) for many classes in little memory.
 *
 * Shapes: x is [..., D], weight [C, D], bias [C] or NULL, labels [...] of any integer dtype. Two further forms make all logits at
 * once, in f32 if x has 16 bits. In the first, labels are probabilities [..., C]. In the second, each row of x [N, D] has several
 * losses, as in PyTorch: weight is [C, d1, ..., D], bias [C, d1, ...], and labels are classes [N, d1, ...] or probabilities [N,
 * C, d1, ...]. The dtype of the loss of 16-bit x is f32.
 *
 * Memory: on a CPU, and for f32 and f64, logits are made for a part of the rows at a time. On a GPU, logits of 16-bit x are
 * rounded to its dtype, as those of PyTorch's autocast are, and are made for as many rows as an eighth of the GPU's memory holds;
 * their gradient overwrites them. TREK_CUDA_LOGITS=pieces keeps them in f32 on a GPU, for a part of the rows at a time
 * (docs/gpu.md).
 *
 * Gradients: while recording, the gradients of a sum or a mean are made together with the loss and kept for backward in f32 (f64
 * for f64), which takes as much memory as x and weight. A pass without backward belongs under trek_no_grad_begin. With reduction
 * none, and with class weights, backward makes the logits again.
 *
 * Errors: fails with UNSUPPORTED if labels are classes and class weights require a gradient, and with ARGUMENT if labels are
 * probabilities and ignore_index is a class. */
TREK_API trek_var *trek_linear_cross_entropy(trek_var *x, trek_var *weight, trek_var *bias, trek_var *labels,
                                             const trek_cross_entropy_opts *opts);
/* Computes the mean negative log likelihood of log_probabilities [N, C, ...] and labels [N, ...] of any integer dtype. Rows with
 * label -100 are ignored. */
TREK_API trek_var *trek_nll_loss(trek_var *log_probabilities, trek_var *labels);
/* Computes the negative log likelihood, as trek_nll_loss, with options. Fails with ARGUMENT if label_smoothing is not 0, and with
 * UNSUPPORTED if class weights require a gradient. */
TREK_API trek_var *trek_nll_loss_with(trek_var *log_probabilities, trek_var *labels, const trek_cross_entropy_opts *opts);

/* -- losses of elements -- */
/* Options of the losses of elements. */
typedef struct trek_loss_opts {
    trek_reduction reduction; /* default mean */
    trek_var *weight;         /* factor of each element's loss; broadcasts to the losses; default ones */
} trek_loss_opts;

/* Computes (x - target)^2 with options. A weighted mean is divided by the sum of the weights, as PyTorch's. */
TREK_API trek_var *trek_mse_loss_with(trek_var *x, trek_var *target, const trek_loss_opts *opts);
/* Computes the mean of |x - target|. */
TREK_API trek_var *trek_l1_loss(trek_var *x, trek_var *target);
/* Computes |x - target| with options. A weighted mean is divided by the sum of the weights, as PyTorch's. */
TREK_API trek_var *trek_l1_loss_with(trek_var *x, trek_var *target, const trek_loss_opts *opts);
/* Computes the mean of d^2 / (2 beta) where d = |x - target| is below beta, and of d - beta / 2 elsewhere. A beta of 0 makes it
 * trek_l1_loss. The second derivative at NaN is 1 / beta (PyTorch: 0). Fails with ARGUMENT if beta is negative. */
TREK_API trek_var *trek_smooth_l1_loss(trek_var *x, trek_var *target, double beta);
/* Computes trek_smooth_l1_loss with options. A weighted mean is divided by the number of elements, as PyTorch's. */
TREK_API trek_var *trek_smooth_l1_loss_with(trek_var *x, trek_var *target, double beta, const trek_loss_opts *opts);
/* Computes delta smooth_l1_loss(x, target, delta). A weighted mean is divided by the number of elements, as PyTorch's. Fails with
 * ARGUMENT if delta is not above 0. */
TREK_API trek_var *trek_huber_loss(trek_var *x, trek_var *target, double delta, const trek_loss_opts *opts);
/* Computes the binary cross entropy of probabilities in [0, 1]; others give NaN (PyTorch: an error). Logarithms are at least
 * -100, and p (1 - p) in the gradient is at least 1e-12 (PyTorch adds 1e-12 in the second derivative). A weighted mean is divided
 * by the number of elements, as PyTorch's. */
TREK_API trek_var *trek_bce(trek_var *probabilities, trek_var *target, const trek_loss_opts *opts);

/* Options of trek_bce_with_logits_with. */
typedef struct trek_bce_opts {
    trek_reduction reduction; /* default mean */
    trek_var *weight;         /* factor of each element's loss; broadcasts to the losses; default ones */
    trek_var *pos_weight;     /* factor of the part of targets 1; broadcasts to the losses; default ones */
} trek_bce_opts;

/* Computes the binary cross entropy of sigmoid(x) with options. A weighted mean is divided by the number of elements, as
 * PyTorch's. */
TREK_API trek_var *trek_bce_with_logits_with(trek_var *x, trek_var *target, const trek_bce_opts *opts);

/* Options of trek_focal_loss. */
typedef struct trek_focal_opts {
    double alpha; /* factor of targets 1, and 1 - alpha of 0; at most 1, below 0: no factor; default 0.25, TREK_ZERO for 0 */
    double gamma;             /* exponent, at least 0; default 2, TREK_ZERO for 0, which is the cross entropy */
    trek_reduction reduction; /* default mean */
} trek_focal_opts;

/* Computes (1 - p_t)^gamma times the binary cross entropy of sigmoid(x) (Lin et al. 2017), as torchvision's sigmoid_focal_loss,
 * which by default does not reduce. */
TREK_API trek_var *trek_focal_loss(trek_var *x, trek_var *target, const trek_focal_opts *opts);
/* Computes log(1 + exp(-target x)) for targets of -1 and 1. A weighted mean is divided by the number of elements. */
TREK_API trek_var *trek_soft_margin_loss(trek_var *x, trek_var *target, const trek_loss_opts *opts);

/* Options of trek_poisson_nll_loss. */
typedef struct trek_poisson_nll_opts {
    bool rates;               /* x are rates, not their logarithms (PyTorch's log_input = false); default false */
    bool full;                /* adds Stirling's approximation of log target! where target > 1; default false */
    double eps;               /* added to rates before their logarithm; default 1e-8, TREK_ZERO for 0 */
    trek_reduction reduction; /* default mean */
} trek_poisson_nll_opts;

/* Computes exp(x) - target x, the negative log likelihood of Poisson's distribution. With opts->rates it is x - target log(x +
 * eps). */
TREK_API trek_var *trek_poisson_nll_loss(trek_var *x, trek_var *target, const trek_poisson_nll_opts *opts);

/* Options of trek_gaussian_nll_loss. */
typedef struct trek_gaussian_nll_opts {
    bool full;                /* adds log(2 pi) / 2; default false */
    double eps;               /* smallest variance; default 1e-6, TREK_ZERO for 0 */
    trek_reduction reduction; /* default mean */
} trek_gaussian_nll_opts;

/* Computes (log v + (x - target)^2 / v) / 2 with v = max(variance, eps). The gradient of v goes to variance even where eps is
 * larger. variance broadcasts to x, or lacks its last dimension. The call synchronises with the GPU to check variance. Fails with
 * ARGUMENT if a variance is negative. */
TREK_API trek_var *trek_gaussian_nll_loss(trek_var *x, trek_var *target, trek_var *variance, const trek_gaussian_nll_opts *opts);

/* Options of trek_kl_div_with. */
typedef struct trek_kl_div_opts {
    bool log_target;          /* target are log probabilities, too; default false */
    bool per_element;         /* means are over elements, not over rows (PyTorch's mean, not its batchmean); default false */
    trek_reduction reduction; /* default mean */
} trek_kl_div_opts;

/* Computes the mean Kullback-Leibler divergence over rows. Details are those of trek_kl_div_with. */
TREK_API trek_var *trek_kl_div(trek_var *log_probabilities, trek_var *target);
/* Computes the Kullback-Leibler divergence target (log target - log_probabilities). A mean is PyTorch's batchmean: the sum is
 * divided by the size of dimension 0. An input without dimensions has a dtype as any other (PyTorch: as a number). At a target of
 * 0 the slope of t log t is taken as 0 (PyTorch: NaN). */
TREK_API trek_var *trek_kl_div_with(trek_var *log_probabilities, trek_var *target, const trek_kl_div_opts *opts);

/* -- pairs and margins -- */
/* Computes x y / (max(|x|, eps) max(|y|, eps)) along dim. Shapes broadcast. Where a length is 0 the subgradient is 0. */
TREK_API trek_var *trek_cosine_similarity(trek_var *x, trek_var *y, int dim, double eps);
/* Computes the p-norm of x - y + eps over the last dimension. Shapes broadcast. */
TREK_API trek_var *trek_pairwise_distance(trek_var *x, trek_var *y, double p, double eps, bool keepdim);

/* Options of the losses of pairs and margins. */
typedef struct trek_margin_opts {
    double margin;            /* default 1, but 0 in cosine_embedding and margin_ranking; TREK_ZERO for 0 */
    double p;                 /* triplet: order of the norm, default 2; multi_margin: exponent, 1 or 2, default 1 */
    double eps;               /* triplet: added to differences; default 1e-6, TREK_ZERO for 0 */
    bool swap;                /* triplet: takes the distance from positive to negative if it is smaller; default false */
    trek_var *weight;         /* multi_margin: [C], factor of each class; default ones; others fail with ARGUMENT if it is set */
    trek_reduction reduction; /* default mean */
} trek_margin_opts;

/* Computes 1 - cos(x, y) where target is 1, and max(0, cos(x, y) - margin) where it is -1. x and y are [N, D] (or [D]), target
 * [N] (or a scalar) of 1 (alike) and -1 (different). */
TREK_API trek_var *trek_cosine_embedding_loss(trek_var *x, trek_var *y, trek_var *target, const trek_margin_opts *opts);
/* Computes max(0, margin - target (x - y)). At least one of the inputs is floating. */
TREK_API trek_var *trek_margin_ranking_loss(trek_var *x, trek_var *y, trek_var *target, const trek_margin_opts *opts);
/* Computes x where target is 1, and max(0, margin - x) where it is -1. At least one of the inputs is floating. */
TREK_API trek_var *trek_hinge_embedding_loss(trek_var *x, trek_var *target, const trek_margin_opts *opts);
/* Computes max(0, margin + |anchor - positive| - |anchor - negative|) with distances as by trek_pairwise_distance. A margin of 0
 * is accepted (PyTorch refuses it). Fails with ARGUMENT if the margin is negative. */
TREK_API trek_var *trek_triplet_margin_loss(trek_var *anchor, trek_var *positive, trek_var *negative,
                                            const trek_margin_opts *opts);
/* Computes for each row of logits [N, C] the sum over the classes c other than its label of max(0, margin - x[label] + x[c])^p /
 * C. labels are [N], of an integer dtype. Fails with ARGUMENT if p is neither 1 nor 2. */
TREK_API trek_var *trek_multi_margin_loss(trek_var *logits, trek_var *labels, const trek_margin_opts *opts);
/* Computes the mean of bce_with_logits over the last dimension. opts->weight broadcasts to x. */
TREK_API trek_var *trek_multilabel_soft_margin_loss(trek_var *x, trek_var *target, const trek_loss_opts *opts);
/* Computes for each row of x [N, C] (or [C]) the sum over its labels y and its other classes c of max(0, 1 - x[y] + x[c]) / C.
 * target has x's shape and an integer dtype; a row's labels end at its first -1. The call synchronises with the GPU to check
 * target. Fails with ARGUMENT if target holds a number that is neither a class nor -1. */
TREK_API trek_var *trek_multilabel_margin_loss(trek_var *x, trek_var *target, trek_reduction reduction);
/* Computes InfoNCE (van den Oord et al. 2018): the cross entropy of the cosine similarities of query and key [N, D] divided by
 * temperature. Row i of query belongs to row i of key, and all other rows of key are its negatives. Over several ranks it is each
 * rank's own loss, because samples of different ranks do not see each other. Fails with ARGUMENT if temperature is not above
 * 0. */
TREK_API trek_var *trek_info_nce(trek_var *query, trek_var *key, double temperature, trek_reduction reduction);

/* -- sequences -- */
/* Options of trek_ctc_loss. */
typedef struct trek_ctc_opts {
    int64_t blank;            /* class of the blank; default 0 */
    bool zero_infinity;       /* gives a target without a path loss and gradients 0, not infinity and NaN; default false */
    trek_reduction reduction; /* default mean: of each row's loss divided by its target's length, at least 1 */
} trek_ctc_opts;

/* Computes minus the logarithm of the probability of the targets, over all ways to place them in time with blanks between them
 * (Graves et al. 2006).
 *
 * Shapes: log_probs is [T, N, C]. targets are [N, S], or those of all rows one after the other. input_lengths (at most T) and
 * target_lengths are [N]. For one row they are [T, C], [S] and one length each. targets and lengths have integer dtypes.
 *
 * It is computed on the host in f64: log_probs of a GPU are moved there, and the gradient back. The gradient is that of the loss
 * by log_probs. PyTorch adds exp(log_probs) to it, which makes no difference after log_softmax. A second derivative does not
 * exist, and fails with UNSUPPORTED. Fails with ARGUMENT if a label is the blank or not a class (PyTorch computes something), or
 * if lengths do not fit. */
TREK_API trek_var *trek_ctc_loss(trek_var *log_probs, trek_var *targets, trek_var *input_lengths, trek_var *target_lengths,
                                 const trek_ctc_opts *opts);

/* -- data parallelism -- */
/* Returns what a mean loss was divided by, so that the mean over several batches is the sum of weight x loss divided by the sum
 * of the weights. It is
 *   - the labels that are not ignored, or their classes' weights: losses of classes whose labels are classes;
 *   - the rows: labels that are probabilities, trek_kl_div, trek_ctc_loss, and the losses of pairs and margins;
 *   - the sum of the weights: trek_mse_loss_with and trek_l1_loss_with, if they have weights;
 *   - the elements: all other losses.
 *
 * Returns 0 if the mean is over no elements. Returns NaN if the weight is unknown: with reduction sum or none, or for a value
 * that is derived from a loss, such as a loss times a number. Returns NaN and sets the error on failure (MEMORY, DEVICE, or STATE
 * if labels were written to since). If labels are on a GPU they are counted by this call, which synchronises with it. */
TREK_API double trek_loss_weight(const trek_var *loss);
/* Sets the weight of a loss, for losses of your own or to replace the weight. Fails with ARGUMENT if weight is negative or not
 * finite. */
TREK_API trek_status trek_loss_set_weight(trek_var *loss, double weight);

TREK_END

#endif
