/* SPDX-License-Identifier: Apache-2.0 */
/* SAM: sharpness-aware minimisation with any optimizer (Foret and others, 2021). Each step takes two gradients:
 *
 *     ... gradients of the loss;             trek_sam_first_step(sam);   // climbs to where the loss near by is worst
 *     ... gradients of the loss from there;  trek_sam_second_step(sam);  // goes back, and makes the optimizer's step
 *
 * Both calls leave the gradients at zero. Each process of a job makes its own SAM and calls it after the gradients are summed and
 * before the optimizer would step. With a graph on one device, or on ranks that share their parameters, call trek_graph_reduce
 * before each of the two and make the SAM of trek_graph_optimizer. */
#ifndef TREK_OPTIM_SAM_H
#define TREK_OPTIM_SAM_H

#include "nn/state.h"
#include "optim/optimizer.h"

TREK_BEGIN

/* Options of trek_sam_new. */
typedef struct trek_sam_opts {
    double rho;    /* 2-norm of the step to the worst point; default 0.05, TREK_ZERO for 0 */
    bool adaptive; /* scales the step by the size of each element: ASAM (Kwon and others, 2021), for which rho is about 0.5 */
} trek_sam_opts;

/* A SAM around an optimizer. */
typedef struct trek_sam trek_sam;

/* Returns a SAM around the optimizer, or NULL on failure. opts may be NULL. The caller owns it. The optimizer stays the caller's
 * and must outlive it. */
TREK_API trek_sam *trek_sam_new(trek_optimizer *optimizer, const trek_sam_opts *opts);

/* Frees the SAM. Between the two steps it brings the parameters back first. *sam may be NULL and is NULL afterwards. */
TREK_API void trek_sam_free(trek_sam **sam);

/* Moves the parameters to the nearby point where the loss is worst, by the gradients. If gradients are not finite nothing moves;
 * the second step then finds the parameters as they were.
 * Errors: STATE after a first step. */
TREK_API trek_status trek_sam_first_step(trek_sam *sam);

/* Moves the parameters back and makes the optimizer's step with the gradients of that point.
 * Errors: STATE without a first step. */
TREK_API trek_status trek_sam_second_step(trek_sam *sam);

/* Returns copies on the CPU of the state of the optimizer, as trek_optimizer_save, or NULL on failure. Between the two steps it
 * also contains "NAME.before" for each parameter, its value before the first step, because the parameters themselves then have
 * the values of the other point. The caller owns it.
 * Errors: MEMORY, and those of the device. */
TREK_API trek_state *trek_sam_save(trek_sam *sam);

/* Replaces the state of the SAM and of its optimizer by a saved one, which may also be of trek_optimizer_save. If the parameters
 * have the values that they had when it was saved, whether they are restored before or after this call, the next steps have the
 * same bits as without the interruption. Parameters are not changed. If a first step was made before, the values that it kept
 * for the second step are dropped. Options are not saved.
 * Errors: those of trek_optimizer_load, and FORMAT if only some parameters have a "before", or one of another shape or dtype.
 * Nothing has changed then. */
TREK_API trek_status trek_sam_load(trek_sam *sam, const trek_state *state);

TREK_END

#endif
