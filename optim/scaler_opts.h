/* SPDX-License-Identifier: Apache-2.0 */
/* Options of loss scaling: optim/scaler.h. */
#ifndef TREK_OPTIM_SCALER_OPTS_H
#define TREK_OPTIM_SCALER_OPTS_H

#include "tensor/common.h"

TREK_BEGIN

/* Options of trek_grad_scaler_new. */
typedef struct trek_grad_scaler_opts {
    double init_scale;       /* initial scale; default 65536 */
    double growth_factor;    /* factor by which the scale grows, above 1; default 2 */
    double backoff_factor;   /* factor by which the scale shrinks after an overflow, in (0, 1); default 0.5 */
    int64_t growth_interval; /* number of steps without overflow after which the scale grows; default 2000 */
    /* Turns scaling off: trek_grad_scaler_scale returns the loss, trek_grad_scaler_step is trek_optimizer_step. */
    bool no_scaling;
} trek_grad_scaler_opts;

TREK_END

#endif
