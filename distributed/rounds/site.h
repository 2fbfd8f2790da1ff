/* SPDX-License-Identifier: Apache-2.0 */
/* A process's ranks as one unit of an average. */
#ifndef TREK_DISTRIBUTED_BACKGROUND_SITE_H
#define TREK_DISTRIBUTED_BACKGROUND_SITE_H

#include "distributed/team/team.h"

typedef struct trek_step trek_step;

/* Makes the site of a step that is complete except for its workload, which it makes, too. */
trek_status trek_site_make(trek_step *s, const trek_workload_opts *opts);
void trek_site_end(trek_step *s);
/* Trains on a window in rounds, with all ranks of the process as one site. Returns NaN instead of the mean loss, which is among
 * what the ranks have observed; NULL on failure. */
trek_var *trek_site_train(trek_step *s, const struct trek_batch *window);

#endif
