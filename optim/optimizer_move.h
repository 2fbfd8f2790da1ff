/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer that continues over another arena: when training is set up again, for example on other ranks,
 * parameters move, and the optimizer's state is kept. */
#ifndef TREK_OPTIM_OPTIMIZER_MOVE_H
#define TREK_OPTIM_OPTIMIZER_MOVE_H

#include "nn/text.h"
#include "optim/arena.h"
#include "optim/optimizer.h"

/* Groups and their members, learning rates, moments and step counts, by the parameters' names. Moments are not
 * copied: they belong to the optimizer, which may be freed but must not make another step. */
typedef struct trek_optimizer_snapshot trek_optimizer_snapshot;
trek_optimizer_snapshot *trek_optimizer_snapshot_new(trek_optimizer *optimizer); /* NULL on failure */
void trek_optimizer_snapshot_free(trek_optimizer_snapshot **snapshot);           /* NULL is allowed */
/* Appends a text of everything on which two snapshots have to agree, without the values. */
void trek_optimizer_snapshot_describe(const trek_optimizer_snapshot *snapshot, trek_text *text);
/* Returns tensor k of the moments and master copies, borrowed, or NULL if there are no more. It may be written to. */
trek_tensor *trek_optimizer_snapshot_tensor(const trek_optimizer_snapshot *snapshot, int k);

/* Calls fn with every numeric option of a group by its name ("lr" with its current value, "momentum", ...), for
 * describing and comparing groups. */
struct trek_optimizer_group;
typedef void (*trek_option_fn)(const char *name, double value, void *arg);
void trek_optimizer_group_options(const struct trek_optimizer_group *group, trek_option_fn fn, void *arg);

/* What an optimizer is made from: options, or a snapshot of an earlier one. */
typedef struct trek_optimizer_source {
    const trek_optimizer_spec *spec;         /* NULL if it is made from: */
    const trek_optimizer_snapshot *snapshot;
} trek_optimizer_source;
/* Returns the options of its first group. */
trek_optimizer_spec trek_optimizer_source_spec(const trek_optimizer_source *source);
/* Makes an optimizer over an arena that the caller owns. With a snapshot, fails with ARGUMENT if the arena has other
 * parameters. */
trek_optimizer *trek_optimizer_make(const trek_optimizer_source *source, trek_arena *arena);

#endif
