/* SPDX-License-Identifier: Apache-2.0 */
/* A small hash map from addresses to numbers. Walks use it to remember what they have seen. */
#ifndef TREK_NN_POINTER_MAP_H
#define TREK_NN_POINTER_MAP_H

#include "tensor/status.h"

typedef struct trek_pointer_map {
    int count, capacity;      /* capacity is 0 or a power of two */
    const void **keys;        /* NULL if free */
    int *values;
} trek_pointer_map;

/* Frees what the map holds. A map is made by setting it to zero. */
void trek_pointer_map_clear(trek_pointer_map *map);
/* Returns the number of a key, or -1. */
int trek_pointer_map_get(const trek_pointer_map *map, const void *key);
/* Adds a key, which is not NULL, unless it is present; *added says whether it was added. Fails with MEMORY. */
trek_status trek_pointer_map_add(trek_pointer_map *map, const void *key, int value, bool *added);

#endif
