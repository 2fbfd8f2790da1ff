/* SPDX-License-Identifier: Apache-2.0 */
/* A set whose metrics do not depend on the model, so that any division of it gives the same bits, and what they are. */
#ifndef TREK_TESTS_MEASURED_H
#define TREK_TESTS_MEASURED_H

#include "distributed/trainer.h"
#include "graph/graph_loader.h"
#include "graph/metric.h"

enum { MEASURES = 9, CONFUSION = 8 };

extern const char *const measured_names[MEASURES];
trek_dataset *measured_dataset(int64_t n);
trek_graph *measured_build(trek_device device, void *arg);
/* Of the whole set at once: [MEASURES], NaN for the confusion. */
void measured_whole(trek_dataset *dataset, double *values);
/* Updates all of them by a batch: metrics[MEASURES], of measured_new. */
trek_metric *measured_new(int k);
void measured_update(trek_metric *const *metrics, const trek_batch *batch);
/* A training function that records them, and "samples". */
trek_var *measured_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg);
/* Fails where a value is another one. */
void measured_compare(const char *what, int k, double value, const double *whole);

#endif
