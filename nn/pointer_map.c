/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing with linear probing, at most half full. */
#include "nn/pointer_map.h"

#include "tensor/memory_internal.h"

static uint32_t slot_of(const trek_pointer_map *map, const void *key)
{
    uint64_t h = (uint64_t)(uintptr_t)key * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t mask = (uint32_t)map->capacity - 1, slot = (uint32_t)(h >> 32) & mask;
    while (map->keys[slot] && map->keys[slot] != key)
        slot = (slot + 1) & mask;
    return slot;
}

void trek_pointer_map_clear(trek_pointer_map *map)
{
    trek_free(map->keys);
    trek_free(map->values);
    *map = (trek_pointer_map){ 0 };
}

int trek_pointer_map_get(const trek_pointer_map *map, const void *key)
{
    if (map->capacity == 0)
        return -1;
    uint32_t slot = slot_of(map, key);
    return map->keys[slot] ? map->values[slot] : -1;
}

static trek_status grow(trek_pointer_map *map)
{
    trek_pointer_map bigger = { .count = map->count, .capacity = map->capacity ? 2 * map->capacity : 32 };
    bigger.keys = trek_calloc((size_t)bigger.capacity, sizeof *bigger.keys);
    bigger.values = trek_calloc((size_t)bigger.capacity, sizeof *bigger.values);
    if (!bigger.keys || !bigger.values) {
        trek_pointer_map_clear(&bigger);
        return TREK_ERR_MEMORY;
    }
    for (int k = 0; k < map->capacity; k++) {
        if (!map->keys[k])
            continue;
        uint32_t slot = slot_of(&bigger, map->keys[k]);
        bigger.keys[slot] = map->keys[k];
        bigger.values[slot] = map->values[k];
    }
    trek_pointer_map_clear(map);
    *map = bigger;
    return TREK_OK;
}

trek_status trek_pointer_map_add(trek_pointer_map *map, const void *key, int value, bool *added)
{
    *added = false;
    if (2 * (map->count + 1) > map->capacity) {
        trek_status status = grow(map);
        if (status != TREK_OK)
            return status;
    }
    uint32_t slot = slot_of(map, key);
    if (map->keys[slot])
        return TREK_OK;
    map->keys[slot] = key;
    map->values[slot] = value;
    map->count++;
    *added = true;
    return TREK_OK;
}
