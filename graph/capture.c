/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps: a few ordinary runs, one that is recorded, then replays.
 *
 * A record is valid as long as its signature: the addresses, modes and switches that the recorded work depends on,
 * which are compared before each replay. What the recorded run used from outside is retained, so that its memory
 * stays valid. The recorded run changes the host's state (counts, versions) as any run does, but its device work is
 * only done by the first replay. If recording fails, the host's state is restored and the function is called once
 * more. */
#include "graph/capture.h"

#include "autograd/var_internal.h"
#include "graph/capture_runs.h"
#include "optim/optimizer_internal.h"
#include "tensor/backend.h"
#include "tensor/random_internal.h"

/* --- whether and why not ------------------------------------------------------------ */

static trek_status count_states(trek_graph *graph, void *arg)
{
    *(int *)arg += graph->layout.n_states;
    return TREK_OK;
}

/* Returns NULL if steps can be recorded, as far as this can be known in advance. */
static const char *obstacle(trek_graph *graph, const struct trek_captures *c)
{
    const trek_backend *backend = trek_backends[c->device.type];
    const struct trek_stepper_capture *capture = trek_captures_table(graph, c);
    if (!c->stepper && !trek_captures_has_parts(graph, c) && trek_accumulation_weighs(&graph->accumulation))
        return ".accumulate weighs the passes of a step, which the host has to know";
    if (!backend->capture_begin)
        return "the device is a CPU";
    int states = 0;
    trek_graph_each(graph, count_states, &states);
    if (states)
        return "the graph carries values from one forward to the next";
    return capture->obstacle ? capture->obstacle(trek_captures_stepper(graph, c)) : NULL;
}

/* --- how a step is made ------------------------------------------------------------------ */

/* Inputs of other sizes have another digest. */
static uint64_t digest_of_inputs(const struct trek_captures *c)
{
    uint64_t digest = 1;
    for (int k = 0; k < TREK_CAPTURE_VALUES; k++) {
        const trek_tensor *x = c->values[k] ? c->values[k]->data : NULL;
        digest = trek_mix(digest, x ? (uint64_t)x->ndim << 8 | (uint64_t)x->dtype : UINT64_MAX);
        for (int d = 0; x && d < x->ndim; d++)
            digest = trek_mix(digest, (uint64_t)x->sizes[d]);
    }
    return digest;
}

/* Returns what the process wishes for its vote. A record that is no longer valid is dropped here. */
static int64_t wish_of(trek_graph *graph, const struct trek_captures *c, trek_capture_record *r)
{
    if (r->recording && (r->signature != trek_captures_signature(graph, c) || !pthread_equal(r->thread, pthread_self()))) {
        trek_capture_record_drop(r);
        r->runs_left = TREK_CAPTURE_LATER_RUNS; /* consequences of the change are computed in an ordinary run */
    }
    if (!r->recording && r->runs_left == 0 && r->signature != trek_captures_signature(graph, c))
        r->runs_left = TREK_CAPTURE_LATER_RUNS; /* what the last run has touched says nothing of this one */
    if (!r->recording)
        return r->runs_left > 0 ? -1 : 0;
    /* if this step had drawn other numbers before, its random numbers would differ */
    return trek_rank_here.rng_draw == r->first_draw ? r->number : -1;
}

static trek_status agree(trek_graph *graph, const struct trek_captures *c, trek_step_fn fn, const void *arg,
                         trek_capture_verdict *verdict)
{
    const struct trek_stepper_capture *capture = trek_captures_table(graph, c);
    trek_capture_vote vote = { .inputs = digest_of_inputs(c) };
    for (int k = 0; k < c->n_records; k++)
        if (trek_capture_record_matches(c->records[k], c, fn, arg))
            vote.wishes[vote.n++] = (trek_capture_wish){ c->records[k]->team, wish_of(graph, c, c->records[k]) };
    if (capture->agree)
        return capture->agree(trek_captures_stepper(graph, c), &vote, verdict);
    *verdict = trek_capture_decide(&vote, 1);
    return TREK_OK;
}

/* The stepper records parts of the step, while the function is called. */
static trek_status call_in_parts(trek_graph *graph, struct trek_captures *c, trek_capture_record *r)
{
    const struct trek_stepper_capture *capture = trek_captures_table(graph, c);
    bool replayed = false;
    trek_captures_free_values(r->outputs);
    c->in_parts = true;
    trek_status status = trek_captures_call(graph, c, r);
    c->in_parts = false;
    const char *reason = capture->parts(trek_captures_stepper(graph, c), &replayed);
    if (reason)
        trek_captures_give_up(c, reason);
    c->replays += status == TREK_OK && replayed;
    trek_captures_show_outputs(c, r);
    return status;
}

static trek_status make_step(trek_graph *graph, struct trek_captures *c, trek_capture_record *r, trek_capture_way way)
{
    if (c->problem[0])
        return trek_captures_run_plainly(graph, c, r);
    if (way == TREK_CAPTURE_REPLAY)
        return trek_captures_replay(graph, c, r);
    if (way == TREK_CAPTURE_CALL)
        return r->recording ? trek_captures_run_beside(graph, c, r) : trek_captures_run_plainly(graph, c, r);
    trek_capture_record_drop_work(r);
    return trek_captures_record(graph, c, r);
}

/* Abandons the step; the error is set. */
static trek_status abandon(const trek_graph *graph, const struct trek_captures *c, trek_capture_way way)
{
    trek_stepper *stepper = trek_captures_stepper(graph, c);
    trek_status status = trek_error_status();
    if (stepper && stepper->klass->capture->abandon)
        stepper->klass->capture->abandon(stepper, status, way == TREK_CAPTURE_REPLAY);
    return status;
}

trek_status trek_captures_run(trek_graph *graph, struct trek_captures *c, trek_step_fn step, void *arg)
{
    if (!c->planned && trek_captures_plan(graph, c) != TREK_OK)
        return abandon(graph, c, TREK_CAPTURE_CALL);
    const char *reason = c->problem[0] ? NULL : obstacle(graph, c);
    if (reason)
        trek_captures_give_up(c, reason);
    bool parts = !c->problem[0] && trek_captures_has_parts(graph, c);
    trek_capture_verdict verdict = { .way = TREK_CAPTURE_CALL };
    if (!c->problem[0] && !parts && agree(graph, c, step, arg, &verdict) != TREK_OK)
        return trek_error_status();
    if (verdict.why[0])
        trek_captures_give_up(c, verdict.why);
    trek_capture_record *r = trek_captures_find_record(c, step, arg, verdict.team);
    if (!r || trek_captures_bring_inputs(c, r) != TREK_OK)
        return abandon(graph, c, verdict.way);
    r->used = ++c->calls;
    return parts ? call_in_parts(graph, c, r) : make_step(graph, c, r, verdict.way);
}

trek_status trek_graph_capture(trek_graph *graph, trek_step_fn step, void *arg)
{
    struct trek_captures *c = trek_captures_of(graph, "graph_capture");
    if (!c || !step)
        return c ? trek_fail_missing("graph_capture", "step function") : trek_error_status();
    if (c->present) {
        trek_status status = trek_error_status();
        return status != TREK_OK ? status
                                 : trek_fail(TREK_ERR_STATE, "graph_capture: called from inside a step function of the same "
                                                             "graph; call it outside of step functions");
    }
    if (trek_error_status() != TREK_OK || !trek_graph_stepper(graph))
        return abandon(graph, c, TREK_CAPTURE_CALL);
    return trek_captures_run(graph, c, step, arg);
}
