/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks and the network that cadence_sim simulates. */
#ifndef TREK_EXAMPLES_CADENCE_RANKS_H
#define TREK_EXAMPLES_CADENCE_RANKS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MOST_RANKS = 65536 };

typedef struct options {
    int from, to, ranks;                    /* numbers of ranks: doubled from one to the other, or one */
    int batch, machine, windows, anchor;
    uint64_t seed;
    const char *speeds, *network;
    double ratio, slow_share, sigma, jitter;
    double slow_ranks, slow_factor;         /* the slow-down in mid-run */
    double batch_ms, fixed_ms;
    double gradient_mib, latency_us, bandwidth_gb, local_latency_us, local_bandwidth_gb;
    double overhead, global;
    int grain;                              /* samples of a grain */
    double ahead, counter_us, detect_ms;    /* of grains, and of deaths */
    double regroup_ms, state_mib, mean_hours; /* finding each other; what one that comes gets; between two deaths of a rank */
    bool plot, grains;
} options;

/* One number of ranks. */
typedef struct simulation {
    const options *o;
    int ranks;
    double *pace;                           /* ms a sample, at present */
    double *ms;                             /* what is reported */
    int64_t *counts;                        /* batches or samples */
    double *shares;
    double communication_ms;
    uint64_t random;
} simulation;

/* --- random numbers -------------------------------------------------------------------- */

static inline uint64_t next_random(uint64_t *state) /* splitmix64, by Sebastiano Vigna, public domain */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline double uniform(uint64_t *state) { return ((double)(next_random(state) >> 11) + 0.5) * 0x1p-53; }

static inline double normal(uint64_t *state) /* Box and Muller */
{
    double u = uniform(state), v = uniform(state);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* --- ranks and network ----------------------------------------------------------------- */

/* How many times as long as the fastest kind of rank this one takes. */
static inline double slowness(simulation *s, const char *speeds, int rank)
{
    const options *o = s->o;
    if (strcmp(speeds, "two") == 0) /* the distance of slow ranks */
        return floor((rank + 1) * o->slow_share) > floor(rank * o->slow_share) ? o->ratio : 1;
    if (strcmp(speeds, "lognormal") == 0)
        return exp(o->sigma * normal(&s->random));
    if (strcmp(speeds, "uniform") == 0)
        return 1 + (o->ratio - 1) * uniform(&s->random);
    return 1;
}

/* Reduces `times` the gradient. */
static inline double network_ms(const options *o, int ranks, double times)
{
    double bytes = times * o->gradient_mib * 1048576, latency = o->latency_us * 1e-3, per_ms = o->bandwidth_gb * 1e6;
    if (ranks < 2)
        return 0;
    if (strcmp(o->network, "ring") == 0)
        return 2 * (ranks - 1) * latency + 2.0 * (ranks - 1) / ranks * bytes / per_ms;
    if (strcmp(o->network, "tree") == 0) /* in pieces, up and down at once */
        return 2 * ceil(log2(ranks)) * latency + 2 * bytes / per_ms;
    int inside = ranks < o->machine ? ranks : o->machine, machines = (ranks + inside - 1) / inside;
    double local =
        2 * (inside - 1) * o->local_latency_us * 1e-3 + 2.0 * (inside - 1) / inside * bytes / (o->local_bandwidth_gb * 1e6);
    return local + 2 * (machines - 1) * latency + 2.0 * (machines - 1) / machines * bytes / per_ms;
}

static inline void set_speeds(simulation *s, const char *speeds)
{
    s->random = s->o->seed;
    for (int r = 0; r < s->ranks; r++)
        s->pace[r] = slowness(s, speeds, r) * s->o->batch_ms / s->o->batch;
}

/* From mid-run on the first ranks are slower. */
static inline void slow_down(simulation *s)
{
    for (int r = 0; r < s->ranks && r < (int)ceil(s->o->slow_ranks * s->ranks); r++)
        s->pace[r] *= s->o->slow_factor;
}

/* `batches` batches of `samples` each; jitter is independent from batch to batch. */
static inline double work_ms(simulation *s, int rank, double batches, double samples)
{
    if (batches <= 0 || samples <= 0)
        return 0;
    double ms = batches * (samples * s->pace[rank] + s->o->fixed_ms);
    return s->o->jitter > 0 ? ms * fmax(0.2, 1 + s->o->jitter / sqrt(batches) * normal(&s->random)) : ms;
}

/* Samples a millisecond of all ranks, each by itself. */
static inline double ideal_rate(const simulation *s)
{
    double sum = 0;
    for (int r = 0; r < s->ranks; r++)
        sum += s->o->batch / (s->o->batch * s->pace[r] + s->o->fixed_ms);
    return sum;
}

#endif
