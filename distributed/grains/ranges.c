/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/grains/ranges.h"

#include <stdbool.h>

/* A word: the serial number of a pass, and what is left of a range in it. */
typedef struct grain_range {
    uint32_t serial;
    int64_t first, end;
} grain_range;

static uint64_t pack(grain_range r) { return (uint64_t)r.serial << 32 | (uint64_t)r.first << 16 | (uint64_t)r.end; }

static grain_range unpack(uint64_t word)
{
    return (grain_range){ (uint32_t)(word >> 32), (int64_t)(word >> 16 & 0xffff), (int64_t)(word & 0xffff) };
}

/* Reads a word of this pass. One that is still of an earlier pass means that nobody has taken anything. */
static grain_range read(const trek_grain_ranges *g, int process, uint64_t *word)
{
    *word = atomic_load_explicit(&g->words[process], memory_order_relaxed);
    grain_range r = unpack(*word);
    return r.serial == g->serial ? r : (grain_range){ g->serial, g->first[process], g->first[process + 1] };
}

static bool change(const trek_grain_ranges *g, int process, uint64_t from, grain_range to)
{
    return atomic_compare_exchange_strong_explicit(&g->words[process], &from, pack(to), memory_order_relaxed,
                                                   memory_order_relaxed);
}

int64_t trek_grain_ranges_left(const trek_grain_ranges *g)
{
    int64_t left = 0;
    uint64_t word;
    for (int p = 0; p < g->processes; p++) {
        grain_range r = read(g, p, &word);
        left += r.end - r.first;
    }
    return left;
}

static double speed_of(const trek_grain_ranges *g, int process) { return g->speed[process] > 0 ? g->speed[process] : 1e-9; }

/* Returns the process whose range would last longest, other than `except`, or -1 if all are empty. */
static int richest(const trek_grain_ranges *g, int except)
{
    double longest = 0;
    int found = -1;
    uint64_t word;
    for (int p = 0; p < g->processes; p++) {
        grain_range r = read(g, p, &word);
        double lasts = (double)(r.end - r.first) / speed_of(g, p);
        if (p != except && r.first < r.end && lasts > longest) {
            longest = lasts;
            found = p;
        }
    }
    return found;
}

int64_t trek_grain_ranges_take(const trek_grain_ranges *g, int64_t most, int64_t *n)
{
    uint64_t word;
    for (;;) {
        grain_range own = read(g, g->process, &word);
        if (own.first < own.end) {
            *n = own.end - own.first < most ? own.end - own.first : most;
            if (change(g, g->process, word, (grain_range){ own.serial, own.first + *n, own.end }))
                return own.first;
            continue;
        }
        *n = 1;
        int other = richest(g, g->process);
        if (other < 0)
            return -1;
        grain_range of = read(g, other, &word);
        if (of.first < of.end && change(g, other, word, (grain_range){ of.serial, of.first, of.end - 1 }))
            return of.end - 1;
    }
}

/* Before the rank comes again, each other one of its process takes a grain. */
int64_t trek_grain_ranges_expect(const trek_grain_ranges *g, int ranks)
{
    uint64_t word;
    grain_range own = read(g, g->process, &word);
    int64_t left = own.end - own.first;
    int other = left < ranks ? richest(g, g->process) : -1;
    if (other < 0)
        return -1;
    grain_range of = read(g, other, &word);
    int64_t number = of.end - ranks + left;
    double meanwhile = speed_of(g, other) * ranks / speed_of(g, g->process); /* grains of the other process */
    return (double)(number - of.first) >= 1 + meanwhile ? number : -1;
}
