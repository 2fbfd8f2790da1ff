/* SPDX-License-Identifier: Apache-2.0 */
/* SAM: sharpness-aware minimisation around any optimizer (Foret and others, 2021). Each step takes two gradients:
 *
 *     ... gradients of the loss;             trek_sam_first_step(sam);   // climbs to where the loss near by is worst
 *     ... gradients of the loss from there;  trek_sam_second_step(sam);  // goes back, and makes the optimizer's step
 *
 * Both leave gradients at zero. Every process of a job makes its own, between the sum of the gradients and the optimizer. With a
 * graph: on one device, or on ranks that share their parameters, with trek_graph_reduce before each, and trek_graph_optimizer. */
#ifndef TREK_OPTIM_SAM_H
#define TREK_OPTIM_SAM_H

#include "optim/optimizer.h"

TREK_BEGIN

typedef struct trek_sam_opts {
    double rho;              /* how far it climbs: the 2-norm; default 0.05, TREK_ZERO for 0 */
    bool adaptive;           /* by each element's size: ASAM (Kwon and others, 2021); a fitting rho is about 0.5 */
} trek_sam_opts;

typedef struct trek_sam trek_sam;

/* The optimizer stays the caller's, and must outlive it. opts may be NULL. */
TREK_API trek_sam *trek_sam_new(trek_optimizer *optimizer, const trek_sam_opts *opts);
TREK_API void trek_sam_free(trek_sam **sam); /* between the two steps: the parameters go back */
/* Gradients that are not finite: nothing moves, and the second step finds the parameters as they were. STATE after a first step.
 */
TREK_API trek_status trek_sam_first_step(trek_sam *sam);
/* STATE without a first step. */
TREK_API trek_status trek_sam_second_step(trek_sam *sam);

/* Copies on the CPU of what it and the optimizer know: trek_optimizer_save's, to which between the two steps "NAME.before" is
 * added, of each parameter what it was before the first (parameters themselves are then what was climbed to). The caller's. NULL:
 * MEMORY, or the device's error. */
TREK_API trek_state *trek_sam_save(trek_sam *sam);
/* Takes all of it over, into the optimizer, too; a state of trek_optimizer_save's serves as well. With the parameters as they
 * were when it was saved, which may be brought back before or after it, next steps have the bits that they would have had.
 * Parameters stay as they are: those from before a first step of now are forgotten. Options are not in it. Errors as of
 * trek_optimizer_load, and FORMAT where only some parameters have a "before", or another shape or dtype. Then nothing has
 * changed. */
TREK_API trek_status trek_sam_load(trek_sam *sam, const trek_state *state);

TREK_END

#endif
