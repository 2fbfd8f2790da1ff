/* SPDX-License-Identifier: Apache-2.0 */
/* Limits for elements of gradients, and joint norms. */
#ifndef TREK_OPTIM_CLIP_H
#define TREK_OPTIM_CLIP_H

#include "nn/module.h"

TREK_BEGIN

/* Limits each element of all gradients to [-max_value, max_value].
 * Errors: ARGUMENT if max_value is negative or NaN. */
TREK_API trek_status trek_clip_grad_value(const trek_params *params, double max_value);

/* Returns the p-norm of the p-norms of `count` floating tensors, for example gradients or parameters, as
 * torch.nn.utils.get_total_norm. For p > 0 this is the norm of all their elements together; p may be infinite. NULL tensors are
 * ignored.
 * Shapes: a scalar that belongs to the current scope, with gradients.
 * Dtypes: the widest dtype of the tensors; 16-bit tensors are summed in f32. Without any tensor the result is 0 (f32, on cpu:0).
 * Errors: DTYPE if a tensor is not floating. The tensors must be on one device. */
TREK_API trek_var *trek_total_norm(trek_var *const *tensors, int count, double norm_type);

TREK_END

#endif
