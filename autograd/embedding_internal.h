/* SPDX-License-Identifier: Apache-2.0 */
/* What table look-ups share with their layers. */
#ifndef TREK_AUTOGRAD_EMBEDDING_INTERNAL_H
#define TREK_AUTOGRAD_EMBEDDING_INTERNAL_H

#include "autograd/embedding.h"

/* Resolves the row of an option's padding_idx, which is -1 for none. Fails with ARGUMENT, naming the op or layer, if
 * the row is outside. */
trek_status trek_padding_row(const char *name, int64_t given, int64_t rows, int64_t *row);
/* Fails with ARGUMENT unless max_norm and norm_type are valid. */
trek_status trek_check_max_norm(const char *name, double max_norm, double norm_type);

#endif
