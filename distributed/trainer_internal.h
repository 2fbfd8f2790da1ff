/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a trainer's options for code that starts it later. */
#ifndef TREK_DISTRIBUTED_TRAINER_INTERNAL_H
#define TREK_DISTRIBUTED_TRAINER_INTERNAL_H

#include "distributed/comm/regroup.h"
#include "distributed/trainer.h"

/* Fails with ARGUMENT, which names the option, if an option is wrong for any ranks. */
trek_status trek_trainer_check(const trek_trainer_opts *opts);
/* Sets up as trek_trainer_setup does, for a run. sites: if parameters are averaged between processes, the ranks of each process
 * make their steps together (rounds/site.c). regroup is what the run has for going on without processes that die; with
 * .min_processes, its trainer uses it, too. NULL: it has none. */
trek_status trek_trainer_setup_run(trek_graph *graph, const trek_trainer_opts *opts, bool sites, trek_regroup *regroup);

#endif
