/* SPDX-License-Identifier: Apache-2.0 */
/* The losses that most models use, with their defaults, and the accuracy. The rules of autograd/losses.h, which includes this
 * header and has options and further losses, hold. */
#ifndef TREK_AUTOGRAD_BASIC_LOSSES_H
#define TREK_AUTOGRAD_BASIC_LOSSES_H

#include "autograd/var.h"

TREK_BEGIN

/* Computes the mean cross entropy of logits [N, C, ...] and labels. Details are those of trek_cross_entropy_with. */
TREK_API trek_var *trek_cross_entropy(trek_var *logits, trek_var *labels);
/* Computes the mean of (x - target)^2. */
TREK_API trek_var *trek_mse_loss(trek_var *x, trek_var *target);
/* Computes the mean binary cross entropy of sigmoid(x), precisely also for large |x|. */
TREK_API trek_var *trek_bce_with_logits(trek_var *x, trek_var *target);
/* Computes the share of rows of logits [N, C] whose largest logit is that of labels [N]: an f64 scalar, 0 if there are no rows.
 * It has no gradient. */
TREK_API trek_var *trek_accuracy(trek_var *logits, trek_var *labels);

TREK_END

#endif
