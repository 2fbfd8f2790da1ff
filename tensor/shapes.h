/* SPDX-License-Identifier: Apache-2.0 */
/* What a shape holds: its number of elements, its text, and whether another one is equal. */
#ifndef TREK_TENSOR_SHAPES_H
#define TREK_TENSOR_SHAPES_H

#include "tensor/types.h"

TREK_BEGIN

/* Returns the number of elements: the product of the sizes, or INT64_MAX if that is too large. */
TREK_API int64_t trek_shape_numel(trek_shape shape);
/* Returns true if both shapes have the same number of dimensions and the same sizes. */
TREK_API bool trek_shape_equal(trek_shape a, trek_shape b);
/* The number of bytes that holds the text of any shape. */
#define TREK_SHAPE_TEXT 192

/* Writes a shape, such as "[64, 784]", to `text` and returns `text`. What does not fit into `capacity` bytes, the ending zero
 * included, is cut off; TREK_SHAPE_TEXT bytes are enough. */
TREK_API char *trek_shape_format(trek_shape shape, char *text, size_t capacity);

TREK_END

#endif
