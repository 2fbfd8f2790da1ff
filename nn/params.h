/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of parameters that programs put together themselves. */
#ifndef TREK_NN_PARAMS_H
#define TREK_NN_PARAMS_H

#include "nn/module.h"

TREK_BEGIN

/* Returns an empty list, or NULL on failure. */
TREK_API trek_params *trek_params_new(void);

/* Adds a parameter, which is retained, to the end of the list. The name is copied; NULL gives a name made from its number
 * ("param0").
 * Errors: ARGUMENT if `param` is not a leaf or is in the list already. */
TREK_API trek_status trek_params_add(trek_params *params, const char *name, trek_var *param);

/* Returns the length of the list; 0 for NULL. */
TREK_API int trek_params_count(const trek_params *params);

/* Returns parameter k, borrowed; k counts from 0. Returns NULL with ARGUMENT if k is out of range. */
TREK_API trek_var *trek_params_var(const trek_params *params, int k);

/* Returns the name of parameter k; the list owns the text. Returns NULL with ARGUMENT if k is out of range. */
TREK_API const char *trek_params_name(const trek_params *params, int k);

/* Returns all elements of the parameters as one vector, in the order of the list (torch.nn.utils.parameters_to_vector). The
 * vector has the widest dtype of the parameters and belongs to the current scope; gradients flow through it to the parameters.
 * Errors: ARGUMENT if the list is empty; the parameters must be on one device. */
TREK_API trek_var *trek_parameters_to_vector(const trek_params *params);

/* Writes the elements of the vector into the parameters in place (torch.nn.utils.vector_to_parameters). Nothing is recorded. The
 * vector may have any floating dtype and be on any device.
 * Errors: SHAPE if it is not a vector with as many elements as all parameters together; nothing is written then. */
TREK_API trek_status trek_vector_to_parameters(trek_var *vector, const trek_params *params);

TREK_END

#endif
