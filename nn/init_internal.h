/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_NN_INIT_INTERNAL_H
#define TREK_NN_INIT_INTERNAL_H

#include "nn/init.h"

/* New values for a parameter, on the CPU, f64 for f64 and f32 for all else; NULL with an error. */
trek_tensor *trek_init_normal_values(const trek_var *param, double mean, double deviation);
/* Whether this thread is between trek_init_skip_begin and its end: nothing is to be drawn. */
bool trek_init_skips(void);
/* Overwrites the parameter; takes the values over (NULL: the error is there already). */
trek_status trek_init_write(trek_var *param, trek_tensor *values);

#endif
