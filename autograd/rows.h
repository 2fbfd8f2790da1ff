/* SPDX-License-Identifier: Apache-2.0 */
/* Random ops in a part of a forward that works on some of the rows (tensor/row_map.h): done in the places that the rows have
 * among all of them. Internal. */
#ifndef TREK_AUTOGRAD_ROWS_H
#define TREK_AUTOGRAD_ROWS_H

#include "autograd/var.h"
#include "tensor/row_map.h"

/* The map that x's rows fall under; NULL: the op needs nothing. */
const trek_row_map *trek_rows_mapped(trek_var *x);
/* x's rows in their places among all; what stands in the others' has no meaning, and gets no gradient from pick. */
trek_var *trek_rows_spread(const trek_row_map *map, trek_var *x);
/* And back: those of the map. */
trek_var *trek_rows_pick(const trek_row_map *map, trek_var *y);

#endif
