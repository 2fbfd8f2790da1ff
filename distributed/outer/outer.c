/* SPDX-License-Identifier: Apache-2.0 */
/* The outer optimizer: options, steps, state. */
#include "distributed/outer/outer.h"

#include <math.h>
#include <string.h>

#include "distributed/outer/compress.h"
#include "optim/optimizer_class.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

enum { MOST_FRAGMENTS = 65536 };

/* --- options ------------------------------------------------------------------------------------- */

static double number(double given, double otherwise) { return given == 0 ? otherwise : given == TREK_ZERO ? 0 : given; }

trek_status trek_outer_check(const trek_outer_opts *opts, const char *function, trek_outer_rule *rule)
{
    const trek_outer_opts o = opts ? *opts : (trek_outer_opts){ 0 };
    double lr = number(o.lr, 0.7), momentum = number(o.momentum, 0.9);
    int bits = o.bits == 0 ? 32 : o.bits, fragments = o.fragments == 0 ? 1 : o.fragments;
    if (!(lr > 0) || isinf(lr))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .outer: .lr: %g; must be above 0 and finite", function, lr);
    if (!(momentum >= 0 && momentum < 1))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .outer: .momentum: %g; must be at least 0 and below 1 (TREK_ZERO for 0)",
                         function, momentum);
    if (o.nesterov != 0 && o.nesterov != TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .outer: .nesterov: %d; must be 0 (on) or TREK_OFF", function, o.nesterov);
    if (!trek_compress_takes(bits))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .outer: .bits: %d; must be 32, 16, 8 or 4", function, bits);
    if (fragments < 1 || fragments > MOST_FRAGMENTS)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .outer: .fragments: %d; must be 1 to %d", function, fragments,
                         (int)MOST_FRAGMENTS);
    *rule = (trek_outer_rule){ .lr = lr, .momentum = momentum, .nesterov = momentum > 0 && o.nesterov != TREK_OFF, .bits = bits,
                               .fragments = fragments };
    return TREK_OK;
}

/* --- making -------------------------------------------------------------------------------------- */

trek_outer *trek_outer_new(const trek_outer_rule *rule, const float *center, int64_t count)
{
    if (count < 0 || (count > 0 && !center))
        return trek_fail_null(TREK_ERR_ARGUMENT, "outer_new: count: %lld parameters%s; must be 0 or more, and not NULL",
                              (long long)count, center ? "" : " at NULL");
    trek_outer *outer = trek_calloc(1, sizeof *outer);
    if (!outer)
        return NULL;
    outer->rule = *rule;
    outer->count = count;
    outer->center = trek_calloc((size_t)count, sizeof *center);
    outer->momentum = outer->center && rule->momentum > 0 ? trek_calloc((size_t)count, sizeof *center) : NULL;
    outer->error = outer->center && rule->bits < 32 ? trek_calloc((size_t)count, sizeof *center) : NULL;
    if (!outer->center || (rule->momentum > 0 && !outer->momentum) || (rule->bits < 32 && !outer->error)) {
        trek_outer_free(&outer);
        return NULL;
    }
    if (count > 0)
        memcpy(outer->center, center, (size_t)count * sizeof *center);
    return outer;
}

void trek_outer_free(trek_outer **address)
{
    trek_outer *outer = *address;
    *address = NULL;
    if (!outer)
        return;
    trek_free(outer->center);
    trek_free(outer->momentum);
    trek_free(outer->error);
    trek_free(outer->room);
    trek_free(outer);
}

trek_status trek_outer_reserve(trek_outer *outer, int64_t count)
{
    if (count <= outer->room_count)
        return TREK_OK;
    trek_free(outer->room);
    outer->room = trek_alloc((size_t)count * sizeof *outer->room);
    outer->room_count = outer->room ? count : 0;
    return outer->room ? TREK_OK : TREK_ERR_MEMORY;
}

/* --- steps --------------------------------------------------------------------------------------- */

/* Returns whether the center becomes the mean, whatever it was. */
static bool takes_mean(const trek_outer_rule *rule) { return rule->lr == 1 && rule->momentum == 0; }

/* A momentum of zeros is the same as one that was never written: 0 * momentum + gradient. */
void trek_outer_step(trek_outer *outer, int64_t begin, int64_t end, const float *gradient)
{
    const trek_outer_rule *rule = &outer->rule;
    trek_optimizer_spec sgd = trek_sgd(&(trek_sgd_opts){ .lr = rule->lr, .momentum = rule->momentum,
                                                         .nesterov = rule->nesterov });
    trek_update_slice slice = { .param = outer->center + begin, .grad = (void *)gradient, .count = end - begin,
                                .state = { outer->momentum ? outer->momentum + begin : NULL }, .kept = outer->momentum != NULL,
                                .grad_scale = 1 };
    memcpy(slice.options, sgd.options, sizeof slice.options);
    sgd.klass->update(TREK_F32, &slice, 0, slice.count); /* update only reads gradients, unless it must zero them */
}

void trek_outer_step_to(trek_outer *outer, int64_t begin, int64_t end, const float *mean)
{
    if (begin == end)
        return;
    if (takes_mean(&outer->rule)) {
        memcpy(outer->center + begin, mean, (size_t)(end - begin) * sizeof *mean);
        return;
    }
    float gradient[1024];
    for (int64_t at = begin, n; at < end; at += n, mean += n) {
        n = end - at < 1024 ? end - at : 1024;
        for (int64_t i = 0; i < n; i++)
            gradient[i] = outer->center[at + i] - mean[i];
        trek_outer_step(outer, at, at + n, gradient);
    }
}

trek_status trek_outer_exchange(trek_outer *outer, trek_exchange *exchange, int64_t begin, int64_t end, const float *params,
                                double weight)
{
    int64_t n = end - begin;
    int bits = trek_exchange_bits(exchange, n, outer->rule.bits);
    trek_status status = trek_outer_reserve(outer, n);
    if (status != TREK_OK)
        return trek_exchange_decline(exchange, status);
    float *room = outer->room;
    for (int64_t i = 0; i < n; i++)
        room[i] = bits < 32 ? outer->center[begin + i] - params[i] : params[i];
    status = trek_exchange_mean(exchange, room, outer->error ? outer->error + begin : NULL, n, bits, weight);
    if (status != TREK_OK)
        return status;
    if (bits < 32)
        trek_outer_step(outer, begin, end, room);
    else
        trek_outer_step_to(outer, begin, end, room);
    return TREK_OK;
}

/* --- state --------------------------------------------------------------------------------------- */

int trek_outer_arrays(const trek_outer *outer, trek_outer_array *arrays)
{
    const trek_outer_array all[TREK_OUTER_ARRAYS] = { { "center", outer->center }, { "momentum", outer->momentum },
                                                      { "error", outer->error } };
    int n = 0;
    for (int k = 0; k < TREK_OUTER_ARRAYS; k++)
        if (all[k].values)
            arrays[n++] = all[k];
    return n;
}

trek_status trek_outer_load(trek_outer *outer, const char *name, const float *values, int64_t count)
{
    trek_outer_array arrays[TREK_OUTER_ARRAYS];
    int n = trek_outer_arrays(outer, arrays);
    for (int k = 0; k < n; k++)
        if (strcmp(arrays[k].name, name) == 0 && count == outer->count) {
            if (count > 0)
                memcpy(arrays[k].values, values, (size_t)count * sizeof *values);
            return TREK_OK;
        }
    return trek_fail(TREK_ERR_ARGUMENT, "outer_load: state: there is no \"%s\" of %lld values", name, (long long)count);
}
