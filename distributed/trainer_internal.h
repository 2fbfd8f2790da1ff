/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a trainer as whoever starts it later wants to know them right. Internal. */
#ifndef TREK_DISTRIBUTED_TRAINER_INTERNAL_H
#define TREK_DISTRIBUTED_TRAINER_INTERNAL_H

#include "distributed/trainer.h"

/* ARGUMENT: which of them is wrong, whatever ranks there are. */
trek_status trek_trainer_check(const trek_trainer_opts *opts);
/* trek_trainer_setup; sites: where parameters are averaged between processes, the ranks of each make their steps together
 * (step/site.c). */
trek_status trek_trainer_setup_sites(trek_graph *graph, const trek_trainer_opts *opts, bool sites);

#endif
