/* SPDX-License-Identifier: Apache-2.0 */
/* Random ops in a part of a forward that works on some of the rows (tensor/row_map.h). They are computed at the
 * positions that the rows have among all of them. */
#ifndef TREK_AUTOGRAD_ROWS_H
#define TREK_AUTOGRAD_ROWS_H

#include "autograd/var.h"
#include "tensor/row_map.h"

/* Returns the map that applies to x's rows, or NULL if the op needs nothing. */
const trek_row_map *trek_rows_mapped(trek_var *x);
/* Places x's rows at their positions among all rows. The content of the other rows has no meaning, and gets no
 * gradient through trek_rows_pick. */
trek_var *trek_rows_spread(const trek_row_map *map, trek_var *x);
/* The reverse: selects the rows of the map. */
trek_var *trek_rows_pick(const trek_row_map *map, trek_var *y);

#endif
