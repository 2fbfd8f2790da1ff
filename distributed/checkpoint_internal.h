/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints with further numbers of the caller. */
#ifndef TREK_DISTRIBUTED_CHECKPOINT_INTERNAL_H
#define TREK_DISTRIBUTED_CHECKPOINT_INTERNAL_H

#include "distributed/checkpoint.h"
#include "distributed/reduce/state_stream.h"
#include "nn/state_internal.h"

/* Names and texts of what a checkpoint has besides the model. */
#define TREK_CHECKPOINT_OPTIMIZER TREK_STATE_OWN "optimizer." /* and the name of its state */
#define TREK_CHECKPOINT_RATES TREK_STATE_OWN "lr"
#define TREK_CHECKPOINT_RUN TREK_STATE_OWN "run"
#define TREK_CHECKPOINT_LOADER TREK_STATE_OWN "loader"
#define TREK_CHECKPOINT_SCALER TREK_STATE_OWN "scaler"
#define TREK_CHECKPOINT_MORE TREK_STATE_OWN "more"
#define TREK_CHECKPOINT_VERSION "2" /* the text TREK_STATE_CHECKPOINT */
#define TREK_CHECKPOINT_PLAN "trek.plan"
#define TREK_CHECKPOINT_GRAIN "trek.grain" /* samples of a grain */
#define TREK_CHECKPOINT_PRODUCTS "trek.products" /* how products of f32 are computed */
enum { RUN_STEPS, RUN_SEED, RUN_RNG_STEP, RUN_RNG_DRAW, RUN_NUMBERS }; /* of TREK_CHECKPOINT_RUN */
enum { LOADER_EPOCH, LOADER_BATCH, LOADER_SAMPLES, LOADER_BATCH_SIZE, LOADER_NUMBERS };
enum { SCALER_NUMBERS = 5 };

/* Names of further tensors that the writer of a snapshot may add, and reads itself. */
#define TREK_CHECKPOINT_MOMENTUM "trek:outer.momentum" /* of a run's outer optimizer: distributed/run/keep.c */
#define TREK_CHECKPOINT_EPOCH "trek:epoch" /* bytes: what a run has measured of the epoch in which it stopped */

/* Returns the loader of a checkpoint: the given one, or that of the graph; NULL: there is none. */
trek_loader *trek_checkpoint_loader(const trek_graph *graph, trek_loader *given);
/* Returns what a checkpoint has. The optimizer's state stays in a stream of it, unless stream is NULL: then it is the gathered
 * one. copies: the tensors are on the CPU and belong to nobody else; otherwise they must be written before the graph changes.
 * more: n further numbers. plain: without the plan of shares. Returns NULL on failure. */
typedef struct trek_checkpoint_content {
    trek_state_stream *stream;
    bool copies, plain;
    const double *more;
    int n;
} trek_checkpoint_content;
trek_state *trek_checkpoint_collect(trek_graph *graph, trek_loader *loader, const trek_checkpoint_content *content);

/* Returns what trek_checkpoint_save writes, with n further numbers ("trek:more"). The tensors are on the CPU and
 * belong to nobody else, so that another thread may pass them to trek_state_write while training goes on. It is not a
 * collective: the process that writes calls it, between steps. Returns NULL on failure (MEMORY, ARGUMENT, or errors
 * of the device). */
trek_state *trek_checkpoint_snapshot(trek_graph *graph, trek_loader *loader, const double *more, int n);
/* Loads as trek_checkpoint_load does, with those numbers. *found says whether the file has as many. read, if not
 * NULL, gets the state that was read, to be freed by the caller; NULL on failure. */
trek_status trek_checkpoint_load_more(trek_graph *graph, trek_loader *loader, const char *path, double *more, int n, bool *found,
                                      trek_state **read);
/* Writes the state of this process into an open, empty file. No other process takes part. Messages contain `name`. */
trek_status trek_checkpoint_write(trek_graph *graph, trek_loader *loader, int file, const char *name, const double *more, int n);
/* Returns what it would write without the loader's position and the plan of shares, which a process that joins a job gets in
 * other ways; the tensors are those of the graph, where they can be. And its reading from an open file, which is no collective
 * either, and does not look for checksums. The parameters of further ranks of this process follow. */
trek_state *trek_checkpoint_collect_plain(trek_graph *graph, const double *more, int n);
trek_status trek_checkpoint_read_plain(trek_graph *graph, int file, double *more, int n);

#endif
