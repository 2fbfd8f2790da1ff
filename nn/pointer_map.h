/* SPDX-License-Identifier: Apache-2.0 */
/* A small hash map from addresses to numbers: what a walk has seen already. Internal. */
#ifndef TREK_NN_POINTER_MAP_H
#define TREK_NN_POINTER_MAP_H

#include "tensor/status.h"

typedef struct trek_pointer_map {
    int count, capacity;      /* capacity: 0 or a power of two */
    const void **keys;        /* NULL: free */
    int *values;
} trek_pointer_map;

/* Zero a map to make it; frees what it holds. */
void trek_pointer_map_clear(trek_pointer_map *map);
/* The number of key, or -1. */
int trek_pointer_map_get(const trek_pointer_map *map, const void *key);
/* Adds key (not NULL), unless it is there; *added says which. MEMORY. */
trek_status trek_pointer_map_add(trek_pointer_map *map, const void *key, int value, bool *added);

#endif
