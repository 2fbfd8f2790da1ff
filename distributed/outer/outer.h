/* SPDX-License-Identifier: Apache-2.0 */
/* The outer optimizer (DiLoCo, arXiv:2311.08105): steps of SGD with momentum from a center that all processes share, by
 * pseudo-gradients. Its formulas are those of trek_sgd, which are those of torch.optim.SGD. Internal.
 *
 * An update is of a range [begin, end), so that fragments may go one at a time; each element has its own history.
 * Used by one thread at a time. Ranges are within 0..count. */
#ifndef TREK_DISTRIBUTED_OUTER_OUTER_H
#define TREK_DISTRIBUTED_OUTER_OUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "distributed/outer.h"
#include "distributed/outer/exchange.h"

/* The options in numbers, nothing left to defaults. */
typedef struct trek_outer_rule {
    double lr, momentum;
    bool nesterov;
    int bits, fragments;
} trek_outer_rule;

/* opts NULL: all defaults. ARGUMENT, which begins with `function` and names the field; *rule is then not written. */
trek_status trek_outer_check(const trek_outer_opts *opts, const char *function, trek_outer_rule *rule);

typedef struct trek_outer {
    trek_outer_rule rule;
    int64_t count;
    float *center;   /* where the parameters are for all processes */
    float *momentum; /* NULL: none */
    float *error;    /* of this process's compression; NULL: it sends 32 bits */
    float *room;     /* for a range on its way; grows, and stays */
    int64_t room_count;
} trek_outer;

/* center (count) is copied; it is the same on all processes. NULL and MEMORY, ARGUMENT. */
trek_outer *trek_outer_new(const trek_outer_rule *rule, const float *center, int64_t count);
void trek_outer_free(trek_outer **outer);

/* center[begin, end) makes a step of the pseudo-gradient center - mean. mean has end - begin values. With lr 1 and no momentum
 * the center has the mean's bits. */
void trek_outer_step_to(trek_outer *outer, int64_t begin, int64_t end, const float *mean);
/* The same where the pseudo-gradient itself is at hand, end - begin values. */
void trek_outer_step(trek_outer *outer, int64_t begin, int64_t end, const float *gradient);

/* The whole of it: the mean of this range of all processes' parameters, with weights as trek_exchange_mean takes them, and the
 * step. params: this process's, end - begin values; they are only read. The new center is the same on all processes.
 * Where fewer than 32 bits travel, each sends center - params. Errors: those of trek_exchange_mean; center and momentum are
 * then as before. */
trek_status trek_outer_exchange(trek_outer *outer, trek_exchange *exchange, int64_t begin, int64_t end, const float *params,
                                double weight);
/* Room for ranges of so many elements. MEMORY. */
trek_status trek_outer_reserve(trek_outer *outer, int64_t count);

/* State, for checkpoints. "center" and "momentum" are alike on all processes, "error" is each process's own. */
typedef struct trek_outer_array {
    const char *name;
    float *values;   /* outer->count; the outer's own memory, which may be written, too */
} trek_outer_array;
enum { TREK_OUTER_ARRAYS = 3 };
/* Those that this one has; returns how many. */
int trek_outer_arrays(const trek_outer *outer, trek_outer_array *arrays);
/* Takes one of them from elsewhere. ARGUMENT: it has no such array, or another number of values. */
trek_status trek_outer_load(trek_outer *outer, const char *name, const float *values, int64_t count);

#endif
