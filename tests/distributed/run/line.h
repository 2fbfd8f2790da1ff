/* SPDX-License-Identifier: Apache-2.0 */
/* A model whose optimum is known: a sum of weighted features, fitted to squares. */
#ifndef TREK_TESTS_LINE_H
#define TREK_TESTS_LINE_H

#include "distributed/run.h"

enum { FEATURES = 3, ROWS = 41, BATCH = 4, BATCHES = (ROWS + BATCH - 1) / BATCH };

extern const double line_start[FEATURES], line_aim[FEATURES];
extern trek_dtype line_dtype; /* of parameters and samples; F64 at first */

double line_feature(int row, int k);
/* noise: then no weights fit all; else line_aim does. */
double line_target(int row, bool noise);
/* Fields "x", "y", "row". */
trek_dataset *line_dataset(bool noise);
trek_graph *line_build(trek_device device, void *arg);
trek_var *line_squares(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg);

#endif
