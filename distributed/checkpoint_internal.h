/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints with numbers of whoever writes them. Internal. */
#ifndef TREK_DISTRIBUTED_CHECKPOINT_INTERNAL_H
#define TREK_DISTRIBUTED_CHECKPOINT_INTERNAL_H

#include "distributed/checkpoint.h"
#include "nn/state.h"

/* A further tensor that whoever writes a snapshot may add, and reads itself. */
#define TREK_CHECKPOINT_MOMENTUM "trek:outer.momentum" /* of a run's outer optimizer: distributed/run/keep.c */
#define TREK_CHECKPOINT_EPOCH "trek:epoch" /* bytes: what a run has measured of an epoch that it stopped in */

/* What trek_checkpoint_save writes, with n further numbers ("trek:more"): tensors on the CPU that are nobody else's, so that
 * trek_state_write may be given them on another thread while training goes on. No collective: the process that writes calls
 * it, between steps. NULL and an error (MEMORY, ARGUMENT, of the device). */
trek_state *trek_checkpoint_snapshot(trek_graph *graph, trek_loader *loader, const double *more, int n);
/* trek_checkpoint_load, and those numbers; *found: the file has as many. read, unless NULL: what was read of it,
 * to be freed; NULL on failure. */
trek_status trek_checkpoint_load_more(trek_graph *graph, trek_loader *loader, const char *path, double *more, int n, bool *found,
                                      trek_state **read);
/* The state of this process, into an empty file that is open: nobody else takes part. name is for messages. */
trek_status trek_checkpoint_write(trek_graph *graph, trek_loader *loader, int file, const char *name, const double *more, int n);

#endif
