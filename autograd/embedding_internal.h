/* SPDX-License-Identifier: Apache-2.0 */
/* What look-ups in tables share with the layers of them. Internal. */
#ifndef TREK_AUTOGRAD_EMBEDDING_INTERNAL_H
#define TREK_AUTOGRAD_EMBEDDING_INTERNAL_H

#include "autograd/embedding.h"

/* The row that a padding_idx of an option names, -1: none. ARGUMENT, naming the op or layer: a row outside. */
trek_status trek_padding_row(const char *name, int64_t given, int64_t rows, int64_t *row);
/* ARGUMENT unless the norms' numbers are ones. */
trek_status trek_check_max_norm(const char *name, double max_norm, double norm_type);

#endif
