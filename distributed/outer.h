/* SPDX-License-Identifier: Apache-2.0 */
/* Options of low communication, for processes far apart: each trains by itself for many steps; then the mean of their
 * parameters is not taken as it is, but given to an outer optimizer. The pseudo-gradient is where the parameters were at the last
 * time minus the mean; SGD with Nesterov momentum makes a step of it, after which all begin anew (DiLoCo, arXiv:2311.08105). What
 * travels can be compressed, and go in fragments, one after the other. */
#ifndef TREK_DISTRIBUTED_OUTER_H
#define TREK_DISTRIBUTED_OUTER_H

#include "tensor/common.h"

TREK_BEGIN

/* The same on all processes. What is out of range is an error ARGUMENT that names the field. */
typedef struct trek_outer_opts {
    double lr;          /* > 0, finite; default 0.7. With lr 1 and momentum TREK_ZERO the mean itself is taken,
                           which in 32 bits it is to the bit */
    double momentum;    /* 0 <= momentum < 1; default 0.9; TREK_ZERO for 0: none, and no memory for it */
    int nesterov;       /* default: Nesterov's, if there is momentum; TREK_OFF: ordinary momentum */
    int bits;           /* in which a float travels: 32 (default; exact), 16 (bf16), 8 or 4. With fewer than 32 it is
                           pseudo-gradients that travel; what rounding takes from them is kept, and sent the next time */
    int fragments;      /* the parameters travel in so many parts, one at a time; 1..65536, default 1 */
} trek_outer_opts;

TREK_END

#endif
