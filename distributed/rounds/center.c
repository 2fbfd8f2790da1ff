/* SPDX-License-Identifier: Apache-2.0 */
/* The two ways to use a mean: as it is, and by an outer optimizer. */
#include "distributed/rounds/center.h"

#include <string.h>

#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

typedef struct trek_center_kind {
    bool states;             /* the optimizers' states are averaged, too */
    trek_status (*begin)(trek_center *c); /* when the center has its first values; NULL: nothing is to be done */
    trek_status (*move)(trek_center *c, int fragment, double samples);
} trek_center_kind;

/* --- the mean as it is ------------------------------------------------------------------------------ */

static void note_sent(trek_center *c, int64_t bytes) { c->bytes_sent += trek_job_is_alone(c->job) ? 0 : bytes; }

/* Sets the update count of the center's states to the largest count of any site. */
static trek_status agree_on_steps(trek_center *c, int fragment)
{
    trek_values *v = &c->values;
    trek_values_most_steps(v, fragment, c->weights);
    note_sent(c, v->n_segments * (int64_t)sizeof *v->steps);
    return trek_job_reduce(c->job, v->steps, v->n_segments, TREK_I64, TREK_REDUCTION_MAX);
}

/* The delta of this process becomes the delta of all, and the center advances by it. */
static trek_status move_to_mean(trek_center *c, int fragment, double samples)
{
    (void)samples;
    trek_values *v = &c->values;
    int64_t at = v->bounds[fragment], n = v->bounds[fragment + 1] - at;
    void *delta = trek_values_at(v, v->delta, at);
    trek_status status = TREK_OK;
    trek_values_difference(v, fragment, c->weights);
    if (n > 0)
        status = trek_job_reduce(c->job, delta, n, v->dtype, TREK_REDUCTION_SUM);
    note_sent(c, n * (int64_t)trek_values_size(v));
    if (status == TREK_OK)
        trek_values_advance(v, fragment);
    return status == TREK_OK ? agree_on_steps(c, fragment) : status;
}

static const trek_center_kind takes_mean = { .states = true, .move = move_to_mean };

/* --- an outer optimizer ------------------------------------------------------------------------------- */

/* Gives the center and the saved momentum to the outer optimizer, if the momentum has as many values as the
 * parameters. */
static trek_status begin_outer(trek_center *c)
{
    trek_values *v = &c->values;
    if (v->dtype != TREK_F32)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "trainer_run: .outer: some parameters are in f64; they must be in f32 or 16 bits");
    if (c->outer && c->outer->count != v->n) {
        trek_log_message(TREK_LOG_LEVEL_WARNING,
                         "the frozen parameters are not the same as before: the outer optimizer's momentum starts again from 0");
        trek_outer_free(&c->outer);
    }
    if (!c->outer && !(c->outer = trek_outer_new(&c->rule, v->center, v->n)))
        return trek_error_status();
    if (c->momentum && c->outer->momentum && c->momentum_count == v->n)
        trek_outer_load(c->outer, "momentum", c->momentum, v->n);
    trek_free(c->momentum);
    c->momentum = NULL;
    trek_values_move_center(v, c->outer->center);
    return TREK_OK;
}

/* Lets the outer optimizer make a step, given the mean of this process's sites. */
static trek_status move_outer(trek_center *c, int fragment, double samples)
{
    trek_values *v = &c->values;
    int64_t at = v->bounds[fragment], end = v->bounds[fragment + 1], sent = c->exchange.sent;
    double own = 0;
    for (int r = 0; r < v->sites; r++)
        own += c->weights[r] * samples;
    for (int r = 0; r < v->sites; r++)
        c->weights[r] = own > 0 ? c->weights[r] * samples / own : 0;
    trek_values_difference(v, fragment, c->weights);
    float *mean = trek_values_at(v, v->delta, at);
    for (int64_t i = 0; i < end - at; i++)
        mean[i] += c->outer->center[at + i];
    trek_status status = trek_outer_exchange(c->outer, &c->exchange, at, end, mean, own);
    c->bytes_sent += c->exchange.sent - sent;
    return status;
}

static const trek_center_kind steps_outer = { .begin = begin_outer, .move = move_outer };

const float *trek_center_momentum(const trek_center *c, int64_t *n)
{
    *n = c->outer ? c->outer->count : c->momentum_count;
    return c->outer ? c->outer->momentum : c->momentum;
}

trek_status trek_center_take_momentum(trek_center *c, const float *values, int64_t n)
{
    trek_free(c->momentum);
    c->momentum = trek_alloc((size_t)n * sizeof *values + 1);
    c->momentum_count = n;
    if (!c->momentum)
        return trek_error_status();
    memcpy(c->momentum, values, (size_t)n * sizeof *values);
    return TREK_OK;
}

/* --- life ----------------------------------------------------------------------------------------------- */

trek_status trek_center_init(trek_center *c, const trek_job *job, int sites, const trek_outer_rule *rule)
{
    *c = (trek_center){ .kind = rule ? &steps_outer : &takes_mean, .job = job, .sites = sites, .rule = { .fragments = 1 } };
    c->weights = trek_calloc((size_t)sites, sizeof *c->weights);
    if (rule) {
        c->rule = *rule;
        trek_exchange_init(&c->exchange, job->comm);
    }
    return trek_error_status();
}

void trek_center_clear(trek_center *c)
{
    trek_values_free(&c->values);
    trek_outer_free(&c->outer);
    trek_exchange_clear(&c->exchange);
    trek_free(c->momentum);
    trek_free(c->weights);
    *c = (trek_center){ 0 };
}

trek_status trek_center_begin(trek_center *c, const trek_team *team)
{
    trek_values *v = &c->values;
    trek_status status = trek_values_begin(v, team, c->sites, c->rule.fragments, c->kind->states);
    for (int f = 0; f < v->fragments && status == TREK_OK; f++)
        status = trek_values_read(v, team, 0, f);
    if (status != TREK_OK)
        return status;
    trek_values_center(v);
    return c->kind->begin ? c->kind->begin(c) : TREK_OK;
}

void trek_center_end(trek_center *c) { trek_values_free(&c->values); }

trek_status trek_center_move(trek_center *c, int fragment, double samples) { return c->kind->move(c, fragment, samples); }
