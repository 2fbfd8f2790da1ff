/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints with numbers of whoever writes them. Internal. */
#ifndef TREK_DISTRIBUTED_CHECKPOINT_INTERNAL_H
#define TREK_DISTRIBUTED_CHECKPOINT_INTERNAL_H

#include "distributed/checkpoint.h"

/* trek_checkpoint_save and _load with n further numbers, "trek:more" in the file; *found: it has as many. */
trek_status trek_checkpoint_save_more(trek_graph *graph, trek_loader *loader, const char *path, const double *more, int n);
trek_status trek_checkpoint_load_more(trek_graph *graph, trek_loader *loader, const char *path, double *more, int n, bool *found);

#endif
