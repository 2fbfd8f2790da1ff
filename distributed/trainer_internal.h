/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a trainer's options for code that starts it later. */
#ifndef TREK_DISTRIBUTED_TRAINER_INTERNAL_H
#define TREK_DISTRIBUTED_TRAINER_INTERNAL_H

#include "distributed/trainer.h"

/* Fails with ARGUMENT, which names the option, if an option is wrong for any ranks. */
trek_status trek_trainer_check(const trek_trainer_opts *opts);
/* Sets up as trek_trainer_setup does. sites: if parameters are averaged between processes, the ranks of each process
 * make their steps together (rounds/site.c). */
trek_status trek_trainer_setup_sites(trek_graph *graph, const trek_trainer_opts *opts, bool sites);

#endif
