/* SPDX-License-Identifier: Apache-2.0 */
/* The values that sites average in the background: parameters, and optimizer states if these are averaged too. They
 * are in host memory, one array for each site. A site is a rank, or all ranks of a process; such ranks have the same
 * values, so the values are read from the first and taken in by all. What is averaged are differences from the values
 * that all ranks had in common last (the center). So values that nobody has changed keep their bits. */
#ifndef TREK_DISTRIBUTED_BACKGROUND_SITE_VALUES_H
#define TREK_DISTRIBUTED_BACKGROUND_SITE_VALUES_H

#include "distributed/team/team.h"

/* A segment of the arena or a part of a segment: of its parameter (state -1) or of one of its states. */
typedef struct trek_value_item {
    int segment, part, state;
    int64_t begin, count;    /* within the part */
    int64_t at;              /* offset in the arrays */
} trek_value_item;

typedef struct trek_values {
    trek_dtype dtype;        /* of the arrays: F64 if some parameter is F64, otherwise F32 */
    int n_items, sites;      /* of this process: one for each rank, or one for all */
    trek_value_item *items;  /* ordered by fragment */
    int64_t n;               /* elements */
    int fragments;           /* each is averaged in its own round */
    int64_t *bounds;         /* [fragments + 1] elements */
    int *item_bounds;        /* [fragments + 1] */
    void *center, *delta;    /* center: `room`, or memory of the caller */
    void *room;
    void **snapshots;        /* [sites] */
    bool states;
    int n_segments;
    int64_t *steps;          /* [segments] how many updates the center's states have had: the most of any site; */
    int64_t **snapshot_steps; /* [sites][segments] the same for the snapshots */
} trek_values;

/* Chooses what is averaged of the replicas: the parameters that are not frozen and, if states is true, their
 * optimizer states. Fails with MEMORY. */
trek_status trek_values_begin(trek_values *values, const trek_team *team, int sites, int fragments, bool states);
/* Moves the center, with its values, into the given memory. */
void trek_values_move_center(trek_values *values, void *memory);
void trek_values_free(trek_values *values);

static inline size_t trek_values_size(const trek_values *v) { return v->dtype == TREK_F64 ? 8 : 4; }
static inline void *trek_values_at(const trek_values *v, void *array, int64_t at)
{
    return (char *)array + (size_t)at * trek_values_size(v);
}

/* Copies a fragment of the site's current values to its snapshot. Called by a rank's thread, or by the thread that
 * calls all ranks of a site. */
trek_status trek_values_read(const trek_values *values, const trek_team *team, int site, int fragment);
/* Makes the first site's snapshot of all fragments the center. */
void trek_values_center(const trek_values *values);
/* Sets the site to the center plus what it has trained since its snapshot. A value that has not changed since the
 * snapshot becomes the center's value. */
trek_status trek_values_take(const trek_values *values, const trek_team *team, int site, int fragment);
/* Sets the site to the center and discards what the site has. */
trek_status trek_values_take_all(const trek_values *values, const trek_team *team, int site);

/* Computes delta, the sum of weights[r] * (snapshot of r - center) over this process's sites with a weight above 0. */
void trek_values_difference(const trek_values *values, int fragment, const double *weights);
/* Sets steps to the largest count of the center and of this process's sites with a weight above 0. */
void trek_values_most_steps(const trek_values *values, int fragment, const double *weights);
/* Adds delta to the center. */
void trek_values_advance(const trek_values *values, int fragment);
/* Returns the distance of a site's parameters from the center's, divided by the norm of the center's. */
double trek_values_drift(const trek_values *values, int fragment, int site);

#endif
