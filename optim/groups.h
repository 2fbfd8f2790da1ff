/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of parameters with options of their own. */
#ifndef TREK_OPTIM_GROUPS_H
#define TREK_OPTIM_GROUPS_H

#include "optim/optimizer.h"

TREK_BEGIN

/* Returns the learning rate of group 0, or NaN on failure. */
TREK_API double trek_optimizer_lr(const trek_optimizer *optimizer);

/* Sets the learning rate of one group.
 * Errors: ARGUMENT if the optimizer has no group with this index. */
TREK_API trek_status trek_optimizer_set_group_lr(trek_optimizer *optimizer, int group, double lr);

/* Returns the learning rate of one group, or NaN on failure.
 * Errors: ARGUMENT if the optimizer has no group with this index. */
TREK_API double trek_optimizer_group_lr(const trek_optimizer *optimizer, int group);

/* Moves the listed parameters, which are the optimizer's already, into a new group with its own options. Returns the index of the
 * group, or -1 on failure.
 * Errors: ARGUMENT if the spec is of another class or state dtype, an option is out of range, or a parameter is not one of the
 * optimizer's. */
TREK_API int trek_optimizer_add_group(trek_optimizer *optimizer, const trek_params *params, trek_optimizer_spec spec);

/* Moves all parameters with fewer than two dimensions (biases and the scales of norms) into a new group. Returns the index of the
 * group, or -1 on failure. Weight decay, LARS and Muon are not meant for such parameters.
 * Example: trek_optimizer_vectors(optimizer, trek_adamw(&(trek_adam_opts){ .lr = 3e-4, .weight_decay = TREK_ZERO })). */
TREK_API int trek_optimizer_vectors(trek_optimizer *optimizer, trek_optimizer_spec spec);

/* Returns the new spec of a parameter, given its current spec `now`. */
typedef trek_optimizer_spec (*trek_regroup_fn)(const char *name, trek_var *param, trek_optimizer_spec now, void *arg);

/* Calls fn for each parameter; the parameters of one group for which fn returns the same new spec form a new group. For learning
 * rates by layer, return `now` with now.options[0] multiplied by decay^(layers above). On failure nothing has changed, except
 * when memory runs out. */
TREK_API trek_status trek_optimizer_regroup(trek_optimizer *optimizer, trek_regroup_fn fn, void *arg);

TREK_END

#endif
