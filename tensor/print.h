/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a tensor, and strings that the caller frees. */
#ifndef TREK_TENSOR_PRINT_H
#define TREK_TENSOR_PRINT_H

#include <stdio.h>

#include "tensor/tensor.h"

TREK_BEGIN

/* Prints the tensor in NumPy's form to `stream` (NULL stands for stdout). A tensor of more than 1000
 * elements is shortened to 3 elements at each edge.
 * Errors: IO, MEMORY. */
TREK_API trek_status trek_tensor_print(const trek_tensor *tensor, FILE *stream);
/* Returns the text that trek_tensor_print prints as a new string. The caller frees it with trek_string_free. */
TREK_API char *trek_tensor_text(const trek_tensor *tensor);
/* Frees a string that a function of trek returned to the caller, and sets *text to NULL. `text` and *text may be NULL. */
TREK_API void trek_string_free(char **text);

TREK_END

#endif
