/* SPDX-License-Identifier: Apache-2.0 */
/* A knapsack: each rank takes one of its levels, which gives room and costs speed. The cheapest bytes are taken first; levels
 * that have become unnecessary are given back at the end. */
#include "distributed/balance/rooms.h"

#include "tensor/memory_internal.h"

/* Parts are cut at whole units of an arena, and what is divided is estimated. */
#define MARGIN 1.01

trek_status trek_room_levels_of(const trek_forward_line *line, trek_room_levels *levels)
{
    int64_t most = 0, least = 0;
    bool found, *recomputed = trek_calloc((size_t)line->n + 1, sizeof *recomputed);
    trek_status status = recomputed ? trek_recomputing_least(line, &least) : TREK_ERR_MEMORY;
    for (int p = 0; p < line->n_points; p++)
        most = line->held[p] > most ? line->held[p] : most;
    for (int k = 0; k <= TREK_ROOM_LEVELS && status == TREK_OK; k++) {
        levels->bytes[k] = most - (int64_t)((double)(most - least) * k / TREK_ROOM_LEVELS);
        status = trek_recomputing_choose(line, levels->bytes[k], recomputed, &levels->ns[k], &found);
    }
    trek_free(recomputed);
    return status;
}

static double room_at(const trek_room *of, int level)
{
    int64_t room = of->left - of->levels.bytes[level];
    return room > 0 ? (double)room : 0;
}

static double speed_at(const trek_room *of, int level)
{
    return of->pass_ns > 0 ? of->samples / (of->pass_ns + (double)of->levels.ns[level]) : 0;
}

/* Returns the first level at which a rank's activations fit; the last one if they do not fit at any. */
static int first_level(const trek_room *of)
{
    int k = 0;
    while (k < TREK_ROOM_LEVELS && of->left < of->levels.bytes[k])
        k++;
    return k;
}

/* A rank that goes to another level. */
typedef struct move {
    int rank, level;
    double room, loss;       /* more bytes, less speed */
} move;

/* Finds the move with the cheapest bytes, and the cheapest one that brings `missing` bytes. rank -1: there is none. */
static void find_moves(const trek_room *of, int n, const int *levels, double missing, move *cheap, move *enough)
{
    *cheap = *enough = (move){ .rank = -1 };
    for (int r = 0; r < n; r++)
        for (int k = levels[r] + 1; k <= TREK_ROOM_LEVELS; k++) {
            move m = { r, k, room_at(&of[r], k) - room_at(&of[r], levels[r]), speed_at(&of[r], levels[r]) - speed_at(&of[r], k) };
            if (m.room <= 0)
                continue;
            if (cheap->rank < 0 || m.loss * cheap->room < cheap->loss * m.room)
                *cheap = m;
            if (m.room >= missing && (enough->rank < 0 || m.loss < enough->loss))
                *enough = m;
        }
}

/* Lets ranks recompute less as long as there is room, first where it brings most. */
static void give_back(const trek_room *of, int n, int *levels, double spare)
{
    for (move best = { .rank = 0 }; best.rank >= 0;) {
        best = (move){ .rank = -1 };
        for (int r = 0; r < n; r++)
            for (int k = first_level(&of[r]); k < levels[r]; k++) {
                move m = { r, k, room_at(&of[r], levels[r]) - room_at(&of[r], k),
                           speed_at(&of[r], k) - speed_at(&of[r], levels[r]) };
                if (m.room <= spare && m.loss > best.loss)
                    best = m;
            }
        if (best.rank >= 0) {
            levels[best.rank] = best.level;
            spare -= best.room;
        }
    }
}

trek_status trek_rooms_find(const trek_room *of, int n, double bytes, double *rooms)
{
    int *levels = trek_calloc((size_t)n + 1, sizeof *levels);
    double missing = bytes * MARGIN;
    move cheap = { .rank = 0 }, enough;
    if (!levels)
        return TREK_ERR_MEMORY;
    for (int r = 0; r < n; r++) {
        levels[r] = first_level(&of[r]);
        missing -= room_at(&of[r], levels[r]);
    }
    while (missing > 0 && cheap.rank >= 0) {
        find_moves(of, n, levels, missing, &cheap, &enough);
        if (enough.rank >= 0 && enough.loss <= cheap.loss)
            cheap = enough;
        if (cheap.rank >= 0) {
            levels[cheap.rank] = cheap.level;
            missing -= cheap.room;
        }
    }
    if (missing < 0)
        give_back(of, n, levels, -missing);
    for (int r = 0; r < n; r++)
        rooms[r] = room_at(&of[r], levels[r]);
    trek_free(levels);
    return TREK_OK;
}
