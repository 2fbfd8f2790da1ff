/* SPDX-License-Identifier: Apache-2.0 */
/* The outer optimizer (DiLoCo, arXiv:2311.08105): steps of SGD with momentum from a center that all processes share,
 * along pseudo-gradients. Its formulas are those of trek_sgd and torch.optim.SGD.
 *
 * An update is for a range [begin, end), so that fragments can be updated separately; each element has its own
 * history. One thread at a time may use it. Ranges must be within 0..count. */
#ifndef TREK_DISTRIBUTED_OUTER_OUTER_H
#define TREK_DISTRIBUTED_OUTER_OUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "distributed/outer.h"
#include "distributed/outer/exchange.h"

/* The options as numbers, with all defaults filled in. */
typedef struct trek_outer_rule {
    double lr, momentum;
    bool nesterov;
    int bits, fragments;
} trek_outer_rule;

/* Checks options and fills in defaults; opts NULL: all defaults. Fails with ARGUMENT; the message begins with
 * `function` and names the field, and *rule is not written. */
trek_status trek_outer_check(const trek_outer_opts *opts, const char *function, trek_outer_rule *rule);

typedef struct trek_outer {
    trek_outer_rule rule;
    int64_t count;
    float *center;   /* the parameters that all processes share */
    float *momentum; /* NULL: none */
    float *error;    /* of this process's compression; NULL: it sends 32 bits */
    float *room;     /* for a range that is being sent; it grows as needed */
    int64_t room_count;
} trek_outer;

/* Makes an outer optimizer. center (count) is copied; it must be the same on all processes. Returns NULL on failure
 * (MEMORY, ARGUMENT). */
trek_outer *trek_outer_new(const trek_outer_rule *rule, const float *center, int64_t count);
void trek_outer_free(trek_outer **outer);

/* Makes a step of center[begin, end) along the pseudo-gradient center - mean. mean has end - begin values. With lr 1
 * and no momentum the center gets the bits of the mean. */
void trek_outer_step_to(trek_outer *outer, int64_t begin, int64_t end, const float *mean);
/* Makes a step with the pseudo-gradient itself, which has end - begin values. */
void trek_outer_step(trek_outer *outer, int64_t begin, int64_t end, const float *gradient);

/* Exchanges and steps: computes the mean of this range over all processes' parameters, with weights as for
 * trek_exchange_mean, and makes the step. params are this process's, end - begin values, and are only read. The new
 * center is the same on all processes. If fewer than 32 bits are sent, each process sends center - params. Fails with
 * the errors of trek_exchange_mean; center and momentum are then unchanged. */
trek_status trek_outer_exchange(trek_outer *outer, trek_exchange *exchange, int64_t begin, int64_t end, const float *params,
                                double weight);
/* Reserves memory for ranges of `count` elements. Fails with MEMORY. */
trek_status trek_outer_reserve(trek_outer *outer, int64_t count);

/* State for checkpoints. "center" and "momentum" are the same on all processes; each process has its own "error". */
typedef struct trek_outer_array {
    const char *name;
    float *values;   /* outer->count values in the optimizer's own memory, which may be written, too */
} trek_outer_array;
enum { TREK_OUTER_ARRAYS = 3 };
/* Lists the arrays that this optimizer has, and returns their number. */
int trek_outer_arrays(const trek_outer *outer, trek_outer_array *arrays);
/* Sets one of the arrays. Fails with ARGUMENT if the optimizer has no such array, or if it has another number of
 * values. */
trek_status trek_outer_load(trek_outer *outer, const char *name, const float *values, int64_t count);

#endif
