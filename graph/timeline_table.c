/* SPDX-License-Identifier: Apache-2.0 */
/* What was recorded, summed at once for each op, module, shapes, rank and direction. The number of rows is limited.
 * When they are used up, new entries are distinguished less finely, so that the sums always contain everything. */
#include "graph/timeline_internal.h"

#include <string.h>

#include "graph/graph_internal.h"
#include "tensor/intern.h"

uint32_t trek_timeline_other(void) { return trek_intern("(other)", 7, TREK_INTERN_LIMIT); }

/* From `rows` rows on shapes are not distinguished, from twice as many on modules are not; there is one more row for
 * the rest. */
trek_status trek_timeline_table_init(trek_timeline_table *table, int64_t rows)
{
    table->rows = rows;
    table->slots = 3 * rows + 16;
    table->cells = trek_calloc((size_t)table->slots, sizeof *table->cells);
    return table->cells ? TREK_OK : TREK_ERR_MEMORY;
}

void trek_timeline_table_clear(trek_timeline_table *table)
{
    if (table->cells)
        memset(table->cells, 0, (size_t)table->slots * sizeof *table->cells);
    table->used = table->first_ns = table->last_ns = 0;
}

static uint64_t hash_of(const trek_timeline_key *key)
{
    uint64_t h = key->name * 0x9e3779b97f4a7c15u + key->path;
    h = (h ^ h >> 29) * 0xff51afd7ed558ccdu + key->shapes;
    h = (h ^ h >> 32) * 0xc4ceb9fe1a85ec53u + (uint64_t)(uint32_t)key->rank * 8 + key->kind * 2 + key->backward;
    return h ^ h >> 31;
}

/* Returns the key's cell, which is made if there are fewer than `limit`; otherwise NULL. */
static trek_timeline_cell *find(trek_timeline_table *table, const trek_timeline_key *key, int64_t limit)
{
    for (uint64_t at = hash_of(key) % (uint64_t)table->slots;; at = (at + 1) % (uint64_t)table->slots) {
        trek_timeline_cell *cell = &table->cells[at];
        if (cell->calls && memcmp(&cell->key, key, sizeof *key) == 0)
            return cell;
        if (cell->calls)
            continue;
        if (table->used >= limit)
            return NULL;
        table->used++;
        cell->key = *key;
        return cell;
    }
}

static trek_timeline_cell *obtain(trek_timeline_table *table, const trek_timeline_key *key)
{
    trek_timeline_key coarse = *key;
    trek_timeline_cell *cell = find(table, key, table->rows);
    if (cell)
        return cell;
    uint32_t other = trek_timeline_other();
    coarse.shapes = coarse.shapes ? other : 0;
    if ((cell = find(table, &coarse, 2 * table->rows)))
        return cell;
    coarse.path = coarse.path ? other : 0;
    if ((cell = find(table, &coarse, table->slots - 8)))
        return cell;
    coarse = (trek_timeline_key){ .kind = key->kind, .name = other }; /* there are only four kinds, so that there is room */
    return find(table, &coarse, table->slots - 1);
}

trek_timeline_cell *trek_timeline_table_add(trek_timeline_table *table, const trek_timeline_key *key,
                                            const trek_trace_record *record, bool on_device)
{
    trek_timeline_cell *cell = obtain(table, key);
    int64_t took = record->end_ns - record->start_ns;
    if (!table->first_ns || record->start_ns < table->first_ns)
        table->first_ns = record->start_ns;
    if (record->end_ns > table->last_ns)
        table->last_ns = record->end_ns;
    if (!cell->calls || took < cell->least_ns)
        cell->least_ns = took;
    if (took > cell->most_ns)
        cell->most_ns = took;
    cell->calls++;
    cell->on_device |= on_device;
    cell->total_ns += took;
    cell->self_ns += took - record->inside_ns;
    cell->flops += record->flops;
    cell->bytes += record->bytes;
    cell->inside_flops += record->inside_flops;
    cell->inside_bytes += record->inside_bytes;
    return cell;
}
