/* SPDX-License-Identifier: Apache-2.0 */
/* The values that sites average in the background, in host memory, one array for each site: parameters, and the optimizer's
 * states beside them. A site is a rank, or all of a process, whose ranks have the same values: they are read of the first one,
 * and taken in by all. Averages are of differences from what all ranks had in common last (the center), so that values which
 * nobody changed keep their bits. Internal. */
#ifndef TREK_DISTRIBUTED_BACKGROUND_VALUES_H
#define TREK_DISTRIBUTED_BACKGROUND_VALUES_H

#include "distributed/step/stepper_ranks.h"

/* A segment of the arena, or a part of one, of its parameter (state -1) or of a state. */
typedef struct trek_value_item {
    int segment, part, state;
    int64_t begin, count;    /* in the part */
    int64_t at;              /* in the arrays */
} trek_value_item;

typedef struct trek_values {
    trek_dtype dtype;        /* of the arrays: F64 if some parameter is, else F32 */
    int n_items, sites;      /* of this process */
    trek_value_item *items;  /* by fragments */
    int64_t n;               /* elements */
    int fragments;           /* each is averaged in a round of its own */
    int64_t *bounds;         /* [fragments + 1] elements */
    int *item_bounds;        /* [fragments + 1] */
    void *center, *delta;    /* center: `room`, or somebody else's memory */
    void *room;
    void **snapshots;        /* [sites] */
    bool states;
    int n_segments;
    int64_t *steps;          /* [segments] updates that the center's states stand for: the most of any site; */
    int64_t **snapshot_steps; /* [sites][segments] */
} trek_values;

/* What is averaged of replicas as they are now: parameters that are not frozen, and the states of their optimizers. MEMORY. */
trek_status trek_values_begin(trek_values *values, const ranks_stepper *s, int fragments, bool states);
/* The center is in this memory from here on, as it was. */
void trek_values_move_center(trek_values *values, void *memory);
void trek_values_free(trek_values *values);

static inline size_t trek_values_size(const trek_values *v) { return v->dtype == TREK_F64 ? 8 : 4; }
static inline void *trek_values_at(const trek_values *v, void *array, int64_t at)
{
    return (char *)array + (size_t)at * trek_values_size(v);
}

/* By a rank's thread, or the one that calls all ranks of a site. A fragment of the site's values as they are, to its snapshot. */
trek_status trek_values_read(const trek_values *values, const ranks_stepper *s, int site, int fragment);
/* The first site's snapshot, of all fragments, is what all have in common. */
void trek_values_center(const trek_values *values);
/* The center, and what the site has done since its snapshot; a value that is the snapshot's becomes the center's. */
trek_status trek_values_take(const trek_values *values, const ranks_stepper *s, int site, int fragment);
/* The whole center, whatever the site has. */
trek_status trek_values_take_all(const trek_values *values, const ranks_stepper *s, int site);

/* delta = sum over this process's sites of weights[r] * (snapshot of r - center), for those with a weight. */
void trek_values_difference(const trek_values *values, int fragment, const double *weights);
/* steps: the most of any of this process's sites that have a weight, and of the center. */
void trek_values_most_steps(const trek_values *values, int fragment, const double *weights);
/* center += delta. */
void trek_values_advance(const trek_values *values, int fragment);
/* A site's distance from the center, over the center's norm: of parameters. */
double trek_values_drift(const trek_values *values, int fragment, int site);

#endif
