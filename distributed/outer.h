/* SPDX-License-Identifier: Apache-2.0 */
/* Options of training with little communication, for processes that are far apart. Each process trains independently for many
 * steps. Then the mean of their parameters is not used directly but given to an outer optimizer. The pseudo-gradient is the
 * parameters of the last exchange minus the mean. SGD with Nesterov momentum makes a step with it, and all processes continue
 * from the result (DiLoCo, arXiv:2311.08105). The data that are sent can be compressed, and divided into fragments that are
 * sent one after the other. */
#ifndef TREK_DISTRIBUTED_OUTER_H
#define TREK_DISTRIBUTED_OUTER_H

#include "tensor/common.h"

TREK_BEGIN

/* Options of the outer optimizer, which must be equal on all processes. A value out of range is an error ARGUMENT that names
 * the field. */
typedef struct trek_outer_opts {
    /* The learning rate, > 0 and finite; default 0.7. With lr 1 and momentum TREK_ZERO the result is the mean itself, with 32
     * bits exactly. */
    double lr;
    double momentum; /* 0 <= momentum < 1; TREK_ZERO for 0, which needs no memory; default 0.9 */
    int nesterov;    /* Nesterov momentum; TREK_OFF: ordinary momentum; default: on if there is momentum */
    /* The bits in which a float is sent: 32 (default, exact), 16 (bf16), 8 or 4. With fewer than 32 pseudo-gradients are sent.
     * What rounding removes from them is kept and sent the next time. */
    int bits;
    int fragments;   /* in how many parts the parameters are sent, one part at a time; 1 to 65536, default 1 */
} trek_outer_opts;

TREK_END

#endif
