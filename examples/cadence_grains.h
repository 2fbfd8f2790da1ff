/* SPDX-License-Identifier: Apache-2.0 */
/* Grains, for cadence_sim: a step is a bag of grains, and ranks take them while it runs. How many a rank takes is decided by the
 * library (trek_handout_ahead, trek_handout_next); the ranks, the messages and the counter are simulated.
 *
 * A rank asks the counter for its next grains shortly before it has done those it has, so that the answer comes while it
 * computes. A slow rank that gets nothing has ended. The
 * counter answers one question after another. With a counter on each machine, ranks ask that one, through shared memory; it
 * asks the common counter for more when half of what it got is taken. */
#ifndef TREK_EXAMPLES_CADENCE_GRAINS_H
#define TREK_EXAMPLES_CADENCE_GRAINS_H

#include <stdlib.h>

#include "cadence_ranks.h"
#include "trek.h"

/* A counter, of the job or of a machine. */
typedef struct grain_counter {
    int64_t left;           /* grains that it can give */
    int64_t got;            /* of a machine: how many it was given last */
    double free_at;         /* ms, when it has answered those who asked before */
    bool asks;              /* of a machine: it has asked the common counter, */
    double answer_at;       /* whose answer comes then */
    int64_t answer;
} grain_counter;

typedef struct grain_step {
    simulation *s;
    int ranks, machines, by_machine; /* by_machine: ranks of a machine; 0: all ask the common counter */
    const double *speed;    /* [ranks] believed, grains a millisecond, */
    double *machine_speed, *machine_fastest; /* [machines] their sums and largest, */
    double all_speed, fastest; /* and those of all */
    double ask_before_ms;   /* how long an answer takes */
    grain_counter common, *local; /* [machines] */
    double *end_ms;         /* [ranks] when it has computed what it took so far */
    double *compute_ms;     /* [ranks] */
    int64_t *taken;         /* [ranks] */
    int *heap;              /* [ranks] those that will ask, the first one on top */
    double *ask_ms;         /* [ranks] -1: it does not ask */
    int asking;
    double waited_ms;       /* of all ranks, for answers */
    int64_t questions;      /* to the common counter */
    int victim;             /* dies in this step; -1: none does */
    double death_ms;
    bool dead;              /* and the others know it */
} grain_step;

/* --- who asks next --------------------------------------------------------------------- */

static inline void grains_swap(grain_step *g, int a, int b)
{
    int rank = g->heap[a];
    g->heap[a] = g->heap[b];
    g->heap[b] = rank;
}

static inline bool grains_before(const grain_step *g, int a, int b) { return g->ask_ms[g->heap[a]] < g->ask_ms[g->heap[b]]; }

static inline void grains_will_ask(grain_step *g, int rank, double ms)
{
    int at = g->asking++;
    g->ask_ms[rank] = ms;
    g->heap[at] = rank;
    for (; at > 0 && grains_before(g, at, (at - 1) / 2); at = (at - 1) / 2)
        grains_swap(g, at, (at - 1) / 2);
}

static inline int grains_next(grain_step *g)
{
    int rank = g->heap[0];
    g->heap[0] = g->heap[--g->asking];
    for (int at = 0, child; (child = 2 * at + 1) < g->asking; at = child) {
        child += child + 1 < g->asking && grains_before(g, child + 1, child);
        if (!grains_before(g, child, at))
            break;
        grains_swap(g, at, child);
    }
    return rank;
}

static inline bool grains_asks(const grain_step *g, int rank) { return g->ask_ms[rank] >= 0; }

/* --- a step ---------------------------------------------------------------------------- */

static inline double grain_ms(simulation *s, int rank, int64_t grains)
{
    double ms = (double)grains * (s->o->grain * s->pace[rank] + s->o->fixed_ms);
    double batches = (double)grains * s->o->grain / s->o->batch;
    return s->o->jitter > 0 ? ms * fmax(0.2, 1 + s->o->jitter / sqrt(batches) * normal(&s->random)) : ms;
}

/* The rank computes `grains` from `from_ms` on, and asks again in time. */
static inline void grains_compute(grain_step *g, int rank, int64_t grains, double from_ms)
{
    double ms = grain_ms(g->s, rank, grains);
    g->taken[rank] += grains;
    g->compute_ms[rank] += ms;
    g->end_ms[rank] = from_ms + ms;
    grains_will_ask(g, rank, fmax(from_ms, from_ms + ms - g->ask_before_ms));
}

/* Answers a question that is asked at `ms`. Returns when the answer is back. */
static inline double counter_answers(grain_counter *c, double ms, double latency_ms, double service_ms)
{
    double begin = fmax(ms + latency_ms, c->free_at);
    c->free_at = begin + service_ms;
    return c->free_at + latency_ms;
}

static inline double common_answers(grain_step *g, double ms)
{
    g->questions++;
    return counter_answers(&g->common, ms, g->s->o->latency_us * 1e-3, g->s->o->counter_us * 1e-3);
}

/* The counter of a machine asks for more, and takes what has come by `ms`. */
static inline void machine_looks(grain_step *g, int machine, double ms)
{
    grain_counter *c = &g->local[machine];
    if (c->asks && c->answer_at <= ms) {
        c->left += c->answer;
        c->got = c->answer;
        c->asks = false;
    }
    if (!c->asks && g->common.left > 0 && c->left <= c->got / 2) {
        c->answer_at = common_answers(g, ms);
        double part = g->machine_speed[machine] / g->all_speed;
        c->answer = trek_handout_next(g->common.left, part, part, 1);
        g->common.left -= c->answer;
        c->asks = true;
    }
}

/* Returns how many grains the rank gets, and when. */
static inline int64_t machine_gives(grain_step *g, int rank, double *ms)
{
    int machine = rank / g->by_machine;
    grain_counter *c = &g->local[machine];
    machine_looks(g, machine, *ms);
    if (c->left == 0 && c->asks) { /* the rank waits for the common counter */
        *ms = fmax(*ms, c->answer_at);
        machine_looks(g, machine, *ms);
    }
    if (c->left == 0)
        return 0;
    *ms = counter_answers(c, *ms, g->s->o->local_latency_us * 1e-3, 1e-4);
    double all = g->machine_speed[machine];
    int64_t n = trek_handout_next(c->left, g->speed[rank] / all, g->machine_fastest[machine] / all, 1);
    c->left -= n;
    machine_looks(g, machine, *ms);
    return n;
}

static inline void grains_serve(grain_step *g, int rank)
{
    double answer = g->ask_ms[rank];
    int64_t n;
    g->ask_ms[rank] = -1;
    if (rank == g->victim && (g->dead || answer >= g->death_ms))
        return;
    if (g->by_machine) {
        n = machine_gives(g, rank, &answer);
    } else {
        if (g->common.left == 0)
            return;
        answer = common_answers(g, answer);
        n = trek_handout_next(g->common.left, g->speed[rank] / g->all_speed, g->fastest / g->all_speed, 1);
        g->common.left -= n;
    }
    if (n == 0)
        return;
    g->waited_ms += fmax(0, answer - g->end_ms[rank]);
    grains_compute(g, rank, n, fmax(answer, g->end_ms[rank]));
}

/* At `ms` all know who is dead. Others take all grains that it had, and those who had nothing left to do ask again. */
static inline void grains_die(grain_step *g, double ms)
{
    g->dead = true;
    g->common.left += g->taken[g->victim];
    g->fastest = 0;
    for (int r = 0; r < g->ranks; r++)
        g->fastest = fmax(g->fastest, r == g->victim ? 0 : g->speed[r]);
    g->end_ms[g->victim] = 0;
    for (int r = 0; r < g->ranks; r++)
        if (r != g->victim && !grains_asks(g, r))
            grains_will_ask(g, r, fmax(ms, g->end_ms[r]));
}

static inline void grains_begin(grain_step *g, int64_t grains)
{
    g->common = (grain_counter){ .left = grains };
    g->waited_ms = g->all_speed = g->fastest = 0;
    g->ask_before_ms = 1e-3 * (g->by_machine ? 2 * g->s->o->local_latency_us + 0.1
                               : 2 * g->s->o->latency_us + g->s->o->counter_us);
    g->questions = g->asking = 0;
    g->dead = false;
    memset(g->local, 0, (size_t)g->machines * sizeof *g->local);
    for (int m = 0; m < g->machines; m++)
        g->machine_speed[m] = g->machine_fastest[m] = 0;
    for (int r = 0; r < g->ranks; r++) {
        g->all_speed += g->speed[r];
        g->fastest = fmax(g->fastest, g->speed[r]);
        int machine = g->by_machine ? r / g->by_machine : 0;
        g->machine_speed[machine] += g->speed[r];
        g->machine_fastest[machine] = fmax(g->machine_fastest[machine], g->speed[r]);
    }
    if (trek_handout_ahead(grains, g->s->o->ahead, g->speed, g->ranks, g->s->counts) != TREK_OK)
        return;
    for (int r = 0; r < g->ranks; r++) {
        g->end_ms[r] = g->compute_ms[r] = 0;
        g->ask_ms[r] = -1;
        g->taken[r] = 0;
        g->common.left -= g->s->counts[r];
        if (g->s->counts[r] > 0)
            grains_compute(g, r, g->s->counts[r], 0);
        else
            grains_will_ask(g, r, 0);
    }
}

/* Runs a step of `grains` and returns when all have ended. */
static inline double grains_run(grain_step *g, int64_t grains)
{
    double end = 0, known_ms = g->death_ms + g->s->o->detect_ms;
    bool dies = g->victim >= 0;
    grains_begin(g, grains);
    while (g->asking > 0 || dies) {
        if (dies && (g->asking == 0 || g->ask_ms[g->heap[0]] >= known_ms)) {
            grains_die(g, known_ms);
            dies = false;
        } else {
            grains_serve(g, grains_next(g));
        }
    }
    for (int r = 0; r < g->ranks; r++)
        end = fmax(end, g->end_ms[r]);
    return end;
}

static inline void grains_clear(grain_step *g)
{
    free(g->machine_speed);
    free(g->machine_fastest);
    free(g->local);
    free(g->end_ms);
    free(g->compute_ms);
    free(g->taken);
    free(g->heap);
    free(g->ask_ms);
}

static inline bool grains_make(grain_step *g, simulation *s, const double *speed, int by_machine)
{
    size_t n = (size_t)s->ranks;
    int machines = by_machine ? (s->ranks + by_machine - 1) / by_machine : 1;
    *g = (grain_step){ .s = s, .ranks = s->ranks, .machines = machines, .by_machine = by_machine, .speed = speed, .victim = -1,
                       .machine_speed = malloc((size_t)machines * sizeof(double)),
                       .machine_fastest = malloc((size_t)machines * sizeof(double)),
                       .local = malloc((size_t)machines * sizeof(grain_counter)), .end_ms = malloc(n * sizeof(double)),
                       .compute_ms = malloc(n * sizeof(double)), .taken = malloc(n * sizeof(int64_t)),
                       .heap = malloc(n * sizeof(int)), .ask_ms = malloc(n * sizeof(double)) };
    if (!g->machine_speed || !g->machine_fastest || !g->local || !g->end_ms || !g->compute_ms || !g->taken || !g->heap ||
        !g->ask_ms)
        trek_fail(TREK_ERR_MEMORY, "%d ranks do not fit", s->ranks);
    return trek_error_status() == TREK_OK;
}

#endif
