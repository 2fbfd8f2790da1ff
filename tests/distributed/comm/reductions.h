/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks give to collectives, and what comes of it by plain loops: the same of every engine. */
#ifndef TREK_TESTS_COMM_REDUCTIONS_H
#define TREK_TESTS_COMM_REDUCTIONS_H

#include "distributed/comm/comm.h"

/* Elements [first, first + count) of a rank's values: whole numbers whose products of five f64 holds, and floats that round, so
 * that the order of a sum shows. */
trek_tensor *rank_values(trek_dtype dtype, int rank, int64_t first, int64_t count);
/* The same elements of the combination of all ranks' values in the order of the ranks, in the arithmetic of the dtype. */
trek_tensor *combined_values(trek_dtype dtype, trek_reduction op, int world, int64_t first, int64_t count);
bool op_fits(trek_dtype dtype, trek_reduction op);
/* Whether they have as many elements, and the same bits. */
bool same_bytes(const trek_tensor *a, const trek_tensor *b);

#endif
