/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer that goes on over another arena: when training is set up again, on
 * other ranks, parameters move, and what was learnt of them stays. Internal. */
#ifndef TREK_OPTIM_OPTIMIZER_MOVE_H
#define TREK_OPTIM_OPTIMIZER_MOVE_H

#include "nn/text.h"
#include "optim/arena.h"
#include "optim/optimizer.h"

/* Groups and their members, learning rates, moments and step counts, by the parameters' names. Moments are not copied:
 * they are the optimizer's, which may be freed (and must not make a step). */
typedef struct trek_optimizer_snapshot trek_optimizer_snapshot;
trek_optimizer_snapshot *trek_optimizer_snapshot_new(trek_optimizer *optimizer); /* NULL and an error */
void trek_optimizer_snapshot_free(trek_optimizer_snapshot **snapshot);           /* NULL is fine */
/* Adds what two snapshots have to agree on, though not the values, as text. */
void trek_optimizer_snapshot_describe(const trek_optimizer_snapshot *snapshot, trek_text *text);
/* Tensor k of moments and master copies; NULL: there are no more. Borrowed; to be written to at need. */
trek_tensor *trek_optimizer_snapshot_tensor(const trek_optimizer_snapshot *snapshot, int k);

/* Every number among a group's options, by its name ("lr", as it is now, "momentum", ...): what describes and compares them. */
struct trek_optimizer_group;
typedef void (*trek_option_fn)(const char *name, double value, void *arg);
void trek_optimizer_group_options(const struct trek_optimizer_group *group, trek_option_fn fn, void *arg);

/* What an optimizer is made from: options, or one that there was. */
typedef struct trek_optimizer_source {
    const trek_optimizer_spec *spec;         /* NULL: */
    const trek_optimizer_snapshot *snapshot;
} trek_optimizer_source;
/* The options of its first group. */
trek_optimizer_spec trek_optimizer_source_spec(const trek_optimizer_source *source);
/* Over an arena that the caller keeps. Of a snapshot: ARGUMENT for an arena of other parameters. */
trek_optimizer *trek_optimizer_make(const trek_optimizer_source *source, trek_arena *arena);

#endif
