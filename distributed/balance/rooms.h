/* SPDX-License-Identifier: Apache-2.0 */
/* How much of what is divided among ranks each of them can keep. What a rank keeps besides are the activations of a pass. If
 * there is not room for both, ranks recompute activations in backward (recomputing.h), which costs time. It is chosen who does,
 * and how much, so that all together lose the least: a slow rank with much memory recomputes before a fast one does. */
#ifndef TREK_DISTRIBUTED_BALANCE_ROOMS_H
#define TREK_DISTRIBUTED_BALANCE_ROOMS_H

#include "distributed/balance/recomputing.h"

/* From nothing that is recomputed, level 0, to the least memory. */
enum { TREK_ROOM_LEVELS = 8 };

typedef struct trek_room_levels {
    int64_t bytes[TREK_ROOM_LEVELS + 1]; /* of activations; they do not ascend */
    int64_t ns[TREK_ROOM_LEVELS + 1];    /* that recomputing takes */
} trek_room_levels;

/* What ranks that keep things together have. */
typedef struct trek_room {
    int64_t left;            /* bytes for activations and for a part of what is divided */
    trek_room_levels levels; /* those with the same bytes as another one count once */
    double samples, pass_ns; /* of a forward and backward in which nothing is recomputed; 0: not known, or it computes nothing */
} trek_room;

/* Writes what recomputing within a forward can save. Fails with MEMORY. */
trek_status trek_room_levels_of(const trek_forward_line *line, trek_room_levels *levels);
/* Writes to rooms[n] how many bytes each of n can keep, at least `bytes` in all where that is possible, with the least loss of
 * samples in a second. Where it is not, they are what is left if all recompute as much as they can. The result depends on the
 * arguments only. Fails with MEMORY. */
trek_status trek_rooms_find(const trek_room *of, int n, double bytes, double *rooms);

#endif
