/* SPDX-License-Identifier: Apache-2.0 */
/* What changes all values of a module: freezing, moving, resetting, copying, statistics. */
#ifndef TREK_NN_MODULE_VALUES_H
#define TREK_NN_MODULE_VALUES_H

#include "nn/module.h"

TREK_BEGIN

/* Moves parameters, their gradients and buffers to the device. The variables stay the same objects. On failure nothing has moved.
 * Errors: STATE if parameters live in an optimizer's arena (move the module before the optimizer is made); those of the
 * device. */
TREK_API trek_status trek_module_to(trek_module *module, trek_device device);

/* Freezes all parameters of the module and of the modules below it. A frozen parameter has requires_grad false: it gets no
 * gradient and no update. */
TREK_API trek_status trek_module_freeze(trek_module *module);

/* Makes all parameters of the module and of the modules below it trainable again. */
TREK_API trek_status trek_module_thaw(trek_module *module);

/* Gives all parameters of the module and of the modules below it new initial values, children before their parents. */
TREK_API trek_status trek_module_reset(trek_module *module);

/* Copies all parameters and buffers of `from` into `to`. Dtypes and devices may differ.
 * Errors: ARGUMENT if the names differ, SHAPE if shapes differ; nothing has changed then. */
TREK_API trek_status trek_module_copy(trek_module *to, trek_module *from);

/* Moves the floating parameters and buffers of `to` towards those of `from`: each becomes to + weight (from - to). Integer
 * buffers are copied. A target network uses a small weight, for example 0.005. Errors are those of trek_module_copy, and ARGUMENT
 * if the weight is not finite. */
TREK_API trek_status trek_module_lerp(trek_module *to, trek_module *from, double weight);

/* Resets the running statistics of all batch norms and makes them plain averages over all batches from now on; false gives each
 * layer its own momentum again. Use it after the weights were averaged. */
TREK_API trek_status trek_module_recount_statistics(trek_module *module, bool on);

TREK_END

#endif
