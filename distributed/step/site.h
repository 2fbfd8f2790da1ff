/* SPDX-License-Identifier: Apache-2.0 */
/* A process's ranks as one unit of an average. */
#ifndef TREK_DISTRIBUTED_STEP_SITE_H
#define TREK_DISTRIBUTED_STEP_SITE_H

#include "distributed/step/step.h"

/* Makes the site of a step that is complete except for its workload, which it makes, too. */
trek_status trek_site_make(trek_step *s, const trek_workload_opts *opts);
void trek_site_end(trek_step *s);
/* Trains on a batch as trek_ranks_train_batch or, if parameters are averaged in the background, with the ranks that
 * train together. */
trek_var *trek_site_train_batch(trek_step *s, const struct trek_batch *batch);

#endif
