/* SPDX-License-Identifier: Apache-2.0 */
/* Losses. Lifetimes, NULL, broadcasting, promotion and errors as in autograd/ops.h; formulas, names and defaults are
 * PyTorch's. Options may be NULL. Means are over all elements or rows, 0 with gradients of 0 over nothing, and data
 * parallelism reads how many (trek_loss_weight).
 *
 * Inputs and targets have one shape (SHAPE: otherwise, also where they would broadcast, of which PyTorch warns: [N, 1] against
 * [N] would be N * N losses). The result's dtype is what both promote to (PyTorch's bce: the target's). Steps are computed in it,
 * or in f32 for 16-bit ones. Derivatives by targets and weights are taken where PyTorch has none. DTYPE: one input at least
 * is of a floating dtype; of l1_loss the other is not bool; of bce, kl_div and the later ones all are. */
#ifndef TREK_AUTOGRAD_LOSSES_H
#define TREK_AUTOGRAD_LOSSES_H

#include "autograd/var.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* -- classes -- */
typedef struct trek_cross_entropy_opts {
    trek_var *weight;         /* [C]; default none */
    int64_t ignore_index;     /* default -100; TREK_ZERO for class 0 */
    double label_smoothing;   /* default 0; in [0, 1] */
    trek_reduction reduction; /* default mean: divided by the weights of the rows not ignored */
} trek_cross_entropy_opts;

/* logits [N, C, ...]; labels [N, ...] of any integer dtype, or probabilities of logits' shape. Mean. ARGUMENT: a class to
 * ignore beside probabilities. UNSUPPORTED: class weights that require a gradient, beside labels that are classes.
 * An ignored row gives gradients of 0, whatever its logits are (PyTorch: NaN where they are infinite). */
TREK_API trek_var *trek_cross_entropy(trek_var *logits, trek_var *labels);
TREK_API trek_var *trek_cross_entropy_with(trek_var *logits, trek_var *labels, const trek_cross_entropy_opts *opts);
/* trek_cross_entropy_with(trek_linear(x, weight, bias), labels, opts) for many classes, in little memory.
 * On a CPU, and in f32 and f64, the logits are made for a part of the rows at a time. On a GPU, logits of 16-bit x are rounded to
 * its dtype, as those of PyTorch's autocast are, and made for as many rows as an eighth of the GPU's memory holds; their gradient
 * takes their place.
 * TREK_CUDA_LOGITS=pieces keeps them in f32 there, for a part of the rows at a time (docs/gpu.md). Of a sum or a mean the
 * gradients of what requires them are made with them, while recording, and kept for backward in f32 (f64 of f64): as much memory
 * as x and weight take; a pass without backward belongs under trek_no_grad_begin. Of each row's loss, backward makes the logits
 * again, and with class weights it does, too. x [..., D], weight [C, D], bias [C] or NULL, labels [...] of any integer dtype; the
 * loss of 16-bit x is f32. opts may be NULL. UNSUPPORTED: the labels are classes, and class weights require a gradient.
 * Two forms make all logits at once, in f32 if x has 16 bits. In the first, labels are probabilities [..., C] (ARGUMENT:
 * ignore_index is set). In the second, each row of x [N, D] has several losses, as in PyTorch: weight is [C, d1, ..., D], bias
 * [C, d1, ...], and labels are classes [N, d1, ...] or probabilities [N, C, d1, ...]. */
TREK_API trek_var *trek_linear_cross_entropy(trek_var *x, trek_var *weight, trek_var *bias, trek_var *labels,
                                             const trek_cross_entropy_opts *opts);
/* log_probabilities [N, C, ...], labels [N, ...] of any integer dtype; -100 is ignored. */
TREK_API trek_var *trek_nll_loss(trek_var *log_probabilities, trek_var *labels);
/* ARGUMENT: label smoothing. UNSUPPORTED: class weights that require a gradient. */
TREK_API trek_var *trek_nll_loss_with(trek_var *log_probabilities, trek_var *labels, const trek_cross_entropy_opts *opts);
/* Share of rows whose largest logit is the label's, an f64 scalar; 0 for no rows. No gradient. */
TREK_API trek_var *trek_accuracy(trek_var *logits, trek_var *labels);

/* -- of elements -- */
typedef struct trek_loss_opts {
    trek_reduction reduction; /* default mean */
    trek_var *weight;         /* each element's loss is multiplied by it; broadcasts to the loss; default none */
} trek_loss_opts;

/* A weighted mean of mse_loss and l1_loss is divided by the sum of the weights, that of the others by the number of
 * elements, as in PyTorch. */
TREK_API trek_var *trek_mse_loss(trek_var *x, trek_var *target);
TREK_API trek_var *trek_mse_loss_with(trek_var *x, trek_var *target, const trek_loss_opts *opts);
TREK_API trek_var *trek_l1_loss(trek_var *x, trek_var *target);
TREK_API trek_var *trek_l1_loss_with(trek_var *x, trek_var *target, const trek_loss_opts *opts);
TREK_API trek_var *trek_smooth_l1_loss(trek_var *x, trek_var *target, double beta);
    /* beta >= 0 (ARGUMENT); 0: l1_loss; second derivative 1 / beta at NaN (PyTorch: 0) */
TREK_API trek_var *trek_smooth_l1_loss_with(trek_var *x, trek_var *target, double beta, const trek_loss_opts *opts);
/* delta smooth_l1_loss(x, target, delta); delta > 0 (ARGUMENT). */
TREK_API trek_var *trek_huber_loss(trek_var *x, trek_var *target, double delta, const trek_loss_opts *opts);
/* Cross entropy of probabilities in [0, 1] (others give NaN; PyTorch: an error); logarithms end at -100, and the gradient's
 * p (1 - p) at 1e-12 (PyTorch adds 1e-12 in the second derivative). */
TREK_API trek_var *trek_bce(trek_var *probabilities, trek_var *target, const trek_loss_opts *opts);

typedef struct trek_bce_opts {
    trek_reduction reduction; /* default mean */
    trek_var *weight;         /* as in trek_loss_opts */
    trek_var *pos_weight;     /* the targets' part is multiplied by it; broadcasts to the loss; default none */
} trek_bce_opts;

TREK_API trek_var *trek_bce_with_logits(trek_var *x, trek_var *target);
TREK_API trek_var *trek_bce_with_logits_with(trek_var *x, trek_var *target, const trek_bce_opts *opts);

typedef struct trek_focal_opts {
    double alpha; /* of targets 1, 1 - alpha of targets 0; default 0.25; negative: neither; TREK_ZERO */
    double gamma; /* default 2; TREK_ZERO: the cross entropy */
    trek_reduction reduction; /* default mean */
} trek_focal_opts;

/* (1 - p_t)^gamma times the cross entropy of sigmoid(x) (Lin et al. 2017; torchvision's sigmoid_focal_loss, whose default
 * reduction is none). */
TREK_API trek_var *trek_focal_loss(trek_var *x, trek_var *target, const trek_focal_opts *opts);
/* log(1 + exp(-target x)), targets of -1 and 1. */
TREK_API trek_var *trek_soft_margin_loss(trek_var *x, trek_var *target, const trek_loss_opts *opts);

typedef struct trek_poisson_nll_opts {
    bool rates;   /* x are rates, not their logarithms (PyTorch's log_input = false) */
    bool full;    /* with Stirling's approximation of log target! where target > 1 */
    double eps;   /* default 1e-8; of rates: log(x + eps); TREK_ZERO */
    trek_reduction reduction; /* default mean */
} trek_poisson_nll_opts;

/* exp(x) - target x. */
TREK_API trek_var *trek_poisson_nll_loss(trek_var *x, trek_var *target, const trek_poisson_nll_opts *opts);

typedef struct trek_gaussian_nll_opts {
    bool full;    /* with log(2 pi) / 2 */
    double eps;   /* default 1e-6: smaller variances are this; TREK_ZERO */
    trek_reduction reduction; /* default mean */
} trek_gaussian_nll_opts;

/* (log v + (x - target)^2 / v) / 2, v = max(variance, eps), whose gradient goes to the variance all the same. ARGUMENT: a
 * negative variance (looked for, which waits for a GPU). variance broadcasts to x, or lacks its last dimension. */
TREK_API trek_var *trek_gaussian_nll_loss(trek_var *x, trek_var *target, trek_var *variance, const trek_gaussian_nll_opts *opts);

typedef struct trek_kl_div_opts {
    bool log_target;  /* target, too, are log probabilities */
    bool per_element; /* a mean over elements, not over rows (PyTorch's mean, not its batchmean) */
    trek_reduction reduction; /* default mean */
} trek_kl_div_opts;

/* batchmean: divided by the size of log_probabilities' dimension 0. An input without dimensions has a dtype as any other
 * (PyTorch: as a number). At a target of 0 the slope of t log t is taken as 0
 * (PyTorch: NaN). */
TREK_API trek_var *trek_kl_div(trek_var *log_probabilities, trek_var *target);
TREK_API trek_var *trek_kl_div_with(trek_var *log_probabilities, trek_var *target, const trek_kl_div_opts *opts);

/* -- of pairs and margins -- */
/* x y / (max(|x|, eps) max(|y|, eps)) along dim; shapes broadcast; a subgradient of 0 where a length is 0. */
TREK_API trek_var *trek_cosine_similarity(trek_var *x, trek_var *y, int dim, double eps);
/* The p-norm of x - y + eps over the last dimension; shapes broadcast. */
TREK_API trek_var *trek_pairwise_distance(trek_var *x, trek_var *y, double p, double eps, bool keepdim);

typedef struct trek_margin_opts {
    double margin; /* default: 0 of cosine_embedding and margin_ranking, 1 of the others; TREK_ZERO */
    double p;      /* default: 2 of triplet (its norm), 1 of multi_margin (1 or 2, ARGUMENT) */
    double eps;    /* of triplet: default 1e-6, TREK_ZERO */
    bool swap;     /* of triplet: the negative's distance from the positive, if that is smaller */
    trek_var *weight; /* of multi_margin: [C], default none; of the others none (ARGUMENT) */
    trek_reduction reduction; /* default mean */
} trek_margin_opts;

/* x, y [N, D] (or [D]), target [N] (or no dimensions) of 1 (alike) and -1. */
TREK_API trek_var *trek_cosine_embedding_loss(trek_var *x, trek_var *y, trek_var *target, const trek_margin_opts *opts);
/* max(0, margin - target (x - y)). */
TREK_API trek_var *trek_margin_ranking_loss(trek_var *x, trek_var *y, trek_var *target, const trek_margin_opts *opts);
/* x where target is 1, max(0, margin - x) where it is -1. */
TREK_API trek_var *trek_hinge_embedding_loss(trek_var *x, trek_var *target, const trek_margin_opts *opts);
/* max(0, margin + |anchor - positive| - |anchor - negative|), distances as pairwise_distance's; a margin of 0, too.
 * ARGUMENT: a negative margin. */
TREK_API trek_var *trek_triplet_margin_loss(trek_var *anchor, trek_var *positive, trek_var *negative,
                                            const trek_margin_opts *opts);
/* Of logits [N, C], labels [N] of an integer dtype: sum over the other classes c of max(0, margin - x[label] + x[c])^p / C. */
TREK_API trek_var *trek_multi_margin_loss(trek_var *logits, trek_var *labels, const trek_margin_opts *opts);
/* The mean over the last dimension of bce_with_logits; weight broadcasts to x. */
TREK_API trek_var *trek_multilabel_soft_margin_loss(trek_var *x, trek_var *target, const trek_loss_opts *opts);
/* Of x and target [N, C] (or [C]), target of an integer dtype: the row's classes, up to the first -1 (ARGUMENT: others beyond the
 * classes, for which a GPU is waited for). The sum over them, y, and the row's other classes c of max(0, 1 - x[y] + x[c]) / C. */
TREK_API trek_var *trek_multilabel_margin_loss(trek_var *x, trek_var *target, trek_reduction reduction);
/* InfoNCE (van den Oord et al. 2018): query and key [N, D]; row i of the one belongs to row i of the other, all other rows of
 * key are its negatives: cross entropy of the cosine similarities over temperature (> 0, ARGUMENT). Samples see each other: over
 * several ranks it is each rank's own loss. */
TREK_API trek_var *trek_info_nce(trek_var *query, trek_var *key, double temperature, trek_reduction reduction);

/* -- of sequences -- */
typedef struct trek_ctc_opts {
    int64_t blank;            /* its class; default 0 */
    bool zero_infinity;       /* a target that no path gives has a loss of 0 and gradients of 0, not infinity and NaN */
    trek_reduction reduction; /* default mean: of each row's loss divided by its target's length, 1 at least */
} trek_ctc_opts;

/* Minus the logarithm of the probability of the targets, over all ways to lay them in time with blanks between (Graves et al.
 * 2006). log_probs [T, N, C]; targets [N, S], or those of all rows one behind the other; input_lengths (at most T) and
 * target_lengths [N]; for one row [T, C], [S] and one length each; targets and lengths of integer dtypes. The mean is over rows.
 * Computed on the host in f64: log_probs of a GPU are moved there, and the gradient back. The gradient is that of the loss by
 * log_probs (PyTorch's has exp(log_probs) added, which is the same once it has gone through log_softmax); there is no second one
 * (UNSUPPORTED). ARGUMENT: a label that is no class or the blank (PyTorch computes something), lengths that do not fit. */
TREK_API trek_var *trek_ctc_loss(trek_var *log_probs, trek_var *targets, trek_var *input_lengths, trek_var *target_lengths,
                                 const trek_ctc_opts *opts);

/* -- for data parallelism -- */
/* What a mean loss was divided by, so that the mean over several batches is the sum of weight x loss over the sum of the
 * weights: of cross_entropy (nll_loss, linear_cross_entropy) the labels not ignored, or the weights of their classes
 * together; rows where labels are probabilities, of kl_div, ctc_loss, and of the losses of pairs and margins; the sum of the
 * weights where that is what the mean is divided by; of the other losses elements. 0: of nothing. NaN: not known: reductions sum
 * and none, and everything that is not itself the result of one of these losses (a loss times a number, too); NaN with an error
 * set: not to be had (MEMORY, DEVICE; STATE: labels were written to since). Where labels lie on a GPU, they are counted when this
 * is called, which waits for it. */
TREK_API double trek_loss_weight(const trek_var *loss);
/* States it for a loss of one's own, or another one: finite, >= 0 (ARGUMENT). */
TREK_API trek_status trek_loss_set_weight(trek_var *loss, double weight);

TREK_END

#endif
