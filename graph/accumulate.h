/* SPDX-License-Identifier: Apache-2.0 */
/* How the passes of a step are combined. Without trek_trainer_opts.accumulate they add up. With it they are one large
 * batch, whatever device or rank makes them: gradients are kept as the sum of weight * gradient, divided by a
 * denominator that the first pass chooses, and the step multiplies them by denominator / (sum of weights). So nothing
 * need be known of later passes, and numbers keep the size of a gradient. */
#ifndef TREK_GRAPH_ACCUMULATE_H
#define TREK_GRAPH_ACCUMULATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct trek_accumulation {
    int passes;          /* of a step, as the program has set; at most 1: passes add up */
    double denominator;  /* 0: no pass has counted yet */
    double weight;       /* of the passes of all ranks and processes since the last step */
    int64_t rows;        /* of the last forward; -1: there was none */
} trek_accumulation;

static inline bool trek_accumulation_weighs(const trek_accumulation *a) { return a->passes > 1; }
/* Begins a pass of all ranks that counts. `planned` becomes the denominator if there is none. Returns the denominator. */
static inline double trek_accumulation_denominator(trek_accumulation *a, double planned)
{
    if (a->denominator == 0 && planned > 0)
        a->denominator = planned;
    return a->denominator;
}
/* Returns the factor that gradients must be multiplied by before they are used; 1 if passes add up. */
static inline double trek_accumulation_factor(const trek_accumulation *a)
{
    return a->denominator > 0 && a->weight > 0 ? a->denominator / a->weight : 1;
}
/* Notes that gradients were multiplied by the factor: further passes add to the mean. */
static inline void trek_accumulation_settled(trek_accumulation *a)
{
    if (a->denominator > 0 && a->weight > 0)
        a->denominator = a->weight;
}
/* Notes that no gradients are left. */
static inline void trek_accumulation_clear(trek_accumulation *a) { a->denominator = a->weight = 0; }

#endif
