/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_NN_INIT_INTERNAL_H
#define TREK_NN_INIT_INTERNAL_H

#include "nn/init.h"

/* Returns new values for a parameter on the CPU, in f64 for f64 parameters and in f32 for all others. Returns NULL on
 * failure. */
trek_tensor *trek_init_normal_values(const trek_var *param, double mean, double deviation);
/* Returns whether this thread is between trek_init_skip_begin and its end, where nothing is drawn. */
bool trek_init_skips(void);
/* Overwrites the parameter and takes ownership of the values. NULL values mean that an error is already set. */
trek_status trek_init_write(trek_var *param, trek_tensor *values);

#endif
