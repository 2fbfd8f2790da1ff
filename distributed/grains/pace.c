/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/grains/pace.h"

#include "distributed/balance/handout.h"

/* The words of a rank: how many nanoseconds a whole grain takes it (0: not known), when it began the present
 * grains, how many these are, and the serial number of the pass in which it did something last, with what it does. They are read
 * one by one; a mixture misleads nobody for longer than a look. */
enum { EACH, BEGAN, COUNT, STATE };
enum { IDLE = 1, RUNNING = 2 };

#define LONGEST_PAUSE 2000000
#define SHORTEST_PAUSE 20000
#define FORGET (15.0 / 16) /* of the time of a rank that has run nothing, with each pass */

static _Atomic uint64_t *word(const trek_grain_pace *pace, int rank, int which)
{
    return &pace->words[rank * TREK_GRAIN_PACE_WORDS + which];
}

static uint64_t get(const trek_grain_pace *pace, int rank, int which)
{
    return atomic_load_explicit(word(pace, rank, which), memory_order_relaxed);
}

static void set(const trek_grain_pace *pace, int rank, int which, uint64_t value)
{
    atomic_store_explicit(word(pace, rank, which), value, memory_order_relaxed);
}

static uint64_t state_of(uint32_t serial, int state) { return (uint64_t)serial << 2 | (uint64_t)state; }

void trek_grain_pace_begin(trek_grain_pace *pace, uint32_t serial, int first, int n, int64_t now_ns)
{
    pace->start_ns = now_ns;
    for (int r = first; r < first + n; r++) {
        uint64_t each = get(pace, r, EACH);
        if (each > 1 && get(pace, r, STATE) >> 2 != pace->serial)
            set(pace, r, EACH, (uint64_t)((double)each * FORGET));
    }
    pace->serial = serial;
}

/* Returns when a rank will be ready for its next grain. One that is late, or has not come yet, may need as long again. */
static double ready_at(const trek_grain_pace *pace, int rank, double each, double now)
{
    uint64_t state = get(pace, rank, STATE);
    if (state == state_of(pace->serial, IDLE))
        return now;
    if (state != state_of(pace->serial, RUNNING))
        return now + (now - (double)pace->start_ns);
    double end = (double)(int64_t)get(pace, rank, BEGAN) + each * (double)get(pace, rank, COUNT);
    return end > now ? end : now + (now - end);
}

bool trek_grain_pace_takes(const trek_grain_pace *pace, int rank, int64_t left, int64_t now_ns)
{
    double own = (double)get(pace, rank, EACH), now = (double)now_ns, others = 0;
    for (int r = 0; r < pace->ranks && own > 0; r++) {
        double each = r == rank ? 0 : (double)get(pace, r, EACH);
        if (r != rank)
            others += trek_handout_before(ready_at(pace, r, each > 0 ? each : own, now), each > 0 ? each : own, now + own);
    }
    return others < (double)left;
}

int64_t trek_grain_pace_most(const trek_grain_pace *pace, int rank, int64_t left)
{
    double own = (double)get(pace, rank, EACH), speeds = 0;
    if (pace->ranks == 1)
        return left > 1 ? left : 1;
    for (int r = 0; r < pace->ranks; r++) {
        double each = (double)get(pace, r, EACH);
        if (each == 0)
            return 1;
        speeds += own / each;
    }
    int64_t most = (int64_t)((double)left / (2 * speeds));
    return most > 1 ? most : 1;
}

void trek_grain_pace_start(const trek_grain_pace *pace, int rank, int64_t n, int64_t now_ns)
{
    set(pace, rank, BEGAN, (uint64_t)now_ns);
    set(pace, rank, COUNT, (uint64_t)n);
    set(pace, rank, STATE, state_of(pace->serial, RUNNING));
}

void trek_grain_pace_stop(const trek_grain_pace *pace, int rank, double part, int64_t now_ns)
{
    uint64_t each = get(pace, rank, EACH);
    double took = part > 0 ? (double)(now_ns - (int64_t)get(pace, rank, BEGAN)) / part : 0;
    if (part > 0)
        set(pace, rank, EACH, (uint64_t)(each > 0 ? ((double)each + took) / 2 : took) | 1);
    set(pace, rank, STATE, state_of(pace->serial, IDLE));
}

int64_t trek_grain_pace_pause(const trek_grain_pace *pace)
{
    uint64_t pause = 2 * LONGEST_PAUSE;
    for (int r = 0; r < pace->ranks; r++) {
        uint64_t each = get(pace, r, EACH);
        pause = each > 0 && each < pause ? each : pause;
    }
    pause /= 2;
    return pause < SHORTEST_PAUSE ? SHORTEST_PAUSE : (int64_t)pause;
}
