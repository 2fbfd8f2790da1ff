/* SPDX-License-Identifier: Apache-2.0 */
/* trek_graph_forward over ranks. The batch is divided by their shares and run by the split forward. If a process has
 * one rank, that rank runs it on the caller's own tape. */
#include <stdio.h>

#include "autograd/var_internal.h"
#include "data/batch_here.h"
#include "distributed/grains/grains.h"
#include "distributed/pass/gathered.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/redo.h"
#include "distributed/pass/shares.h"
#include "distributed/pass/split_forward.h"
#include "distributed/team/step.h"
#include "graph/batch_run.h"
#include "graph/graph_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* Finds where the process's rows are in the batch: as the loader says, otherwise at rows that no other process has. */
static void place_of(const trek_step *s, int64_t rows, int64_t *first, int64_t *global)
{
    bool is_batch = trek_batch_here()->rows == rows;
    *first = is_batch ? trek_batch_here()->first : (int64_t)s->job.process << 40;
    *global = is_batch ? trek_batch_here()->global : rows;
}

/* --- a single rank -------------------------------------------------------------------- */

typedef struct route_call {
    trek_var *const *inputs;
    int n;
    trek_var *y;
} route_call;

static trek_status run_route(trek_step *s, void *arg)
{
    route_call *c = arg;
    trek_graph_forget_nested_tags(s->team->graph);
    c->y = trek_graph_run_route(s->team->graph, c->inputs, c->n);
    return c->y ? TREK_OK : trek_error_status();
}

static trek_var *forward_alone(trek_step *s, trek_var *const *inputs, int n)
{
    route_call c = { inputs, n, NULL };
    int64_t start = trek_trace_enter("forward"), rows = trek_graph_input_rows(s->team->graph, inputs, n);
    trek_rank_context before = trek_rank_here;
    place_of(s, rows, &trek_rank_here.first_sample, &trek_rank_here.global_rows);
    trek_rank_here.rows = rows;
    trek_status status = trek_ranks_alone(s, trek_team_is_training(s->team) ? rows : 0, false, run_route, &c);
    trek_rank_here.first_sample = before.first_sample;
    trek_rank_here.rows = before.rows;
    trek_rank_here.global_rows = before.global_rows;
    s->team->graph->accumulation.rows = rows;
    if (status == TREK_OK && trek_team_is_training(s->team))
        s->team->replicas[0].samples += rows;
    trek_trace_end("forward", start, rows);
    if (status == TREK_OK && trek_trace_counts())
        trek_trace_samples(rows);
    return status == TREK_OK ? c.y : NULL;
}

/* --- several ranks ---------------------------------------------------------------------- */

typedef struct graph_call {
    trek_step *s;
    bool reset;               /* rank 0's states were reset */
} graph_call;

static trek_replica *replica_of(int rank, void *arg) { return ((graph_call *)arg)->s->team->replicas[rank].model; }

static void begin_rank(int rank, void *arg)
{
    const graph_call *c = arg;
    trek_graph_clear_traces(c->s->team->replicas[rank].graph);
    if (c->reset && rank > 0)
        trek_graph_reset_state(c->s->team->replicas[rank].graph);
    trek_graph_forget_nested_tags(c->s->team->replicas[rank].graph);
}

static trek_status run_graph(int rank, trek_var *const *inputs, trek_var **outputs, void *arg)
{
    const graph_call *c = arg;
    trek_graph *graph = c->s->team->replicas[rank].graph;
    if (!(outputs[0] = trek_graph_run_route(graph, inputs, c->s->team->outputs.n_inputs)))
        return trek_error_status();
    for (int k = 1; k < c->s->team->outputs.n_outputs; k++)
        outputs[k] = trek_graph_tag_value(graph, c->s->team->outputs.output_tag[k]);
    for (int k = 0; k < c->s->team->outputs.n_nested_outputs; k++)
        outputs[c->s->team->outputs.n_outputs + k] = trek_graph_tag_value(graph->below[c->s->team->outputs.nested[k].below],
                                                                          c->s->team->outputs.nested[k].tag);
    return TREK_OK;
}

static void describe_output(int k, char *text, size_t size, void *arg)
{
    const trek_step *s = ((graph_call *)arg)->s;
    if (k == 0)
        snprintf(text, size, "graph: the output");
    else
        snprintf(text, size, "graph: tag \"%s\"", trek_graph_tag_name(s->team->graph, s->team->outputs.output_tag[k]));
}

/* Determines which inputs are divided, and how many rows they have. */
static trek_status find_rows(const trek_step *s, trek_var *const *inputs, bool *split, int64_t *rows)
{
    int first = -1;
    for (int k = 0; k < s->team->outputs.n_inputs; k++) {
        const trek_tensor *x = inputs[k]->data;
        split[k] = x->ndim > 0 && !trek_graph_input_is_whole(s->team->graph, k);
        if (!split[k])
            continue;
        if (first < 0) {
            first = k;
            *rows = x->sizes[0];
        } else if (x->sizes[0] != *rows) {
            char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
            return trek_fail(TREK_ERR_SHAPE,
                             "graph: inputs: \"%s\" %s and \"%s\" %s have different numbers of rows and cannot be split over %d "
                             "ranks; trek_graph_replicate_input gives an input whole to every rank",
                             trek_graph_input_name(s->team->graph, first), trek_tensor_shape_text(inputs[first]->data, a),
                             trek_graph_input_name(s->team->graph, k), trek_tensor_shape_text(x, b), s->team->local_ranks);
        }
    }
    return TREK_OK;
}

static trek_status run_split(trek_step *s, trek_var *const *inputs, const bool *split, int64_t rows, trek_var **outputs)
{
    graph_call c = { s, trek_graph_states_are_reset(s->team->graph) };
    int64_t counts[TREK_MAX_RANKS];
    trek_split_part parts[TREK_MAX_RANKS];
    trek_status status = trek_ranks_split(s, rows, counts);
    if (status != TREK_OK)
        return status;
    for (int r = 0; r < s->team->local_ranks; r++)
        parts[r] = (trek_split_part){ .runs = counts[r] > 0 || (r == 0 && rows == 0), .rows = counts[r] };
    trek_split_call call = { .ranks = s->team->ranks, .replica = replica_of, .run = run_graph, .begin = begin_rank,
                             .describe = describe_output, .arg = &c,
                             .n_inputs = s->team->outputs.n_inputs,
                             .n_outputs = s->team->outputs.n_outputs + s->team->outputs.n_nested_outputs,
                             .n_loose = s->team->outputs.n_nested_outputs, .inputs = inputs, .split = split, .parts = parts,
                             .keeps_rows = true, .scale = 1, .tape_leaf = s->overlap.tape_leaf, .comm = s->job.comm,
                             .watches = s->team->watches,
                             .counts = trek_team_is_training(s->team) };
    place_of(s, rows, &call.first, &call.global);
    s->team->graph->accumulation.rows = rows;
    status = trek_split_forward(&call, outputs);
    for (int r = 0; r < s->team->local_ranks && status == TREK_OK; r++)
        s->team->replicas[r].samples += call.counts ? counts[r] : 0;
    return status;
}

/* Replaces rank 0's own part of tagged values by the joined values. */
static void put_tags(trek_step *s, trek_var *const *inputs, trek_var *const *outputs)
{
    for (int k = 0; k < s->team->outputs.n_tags; k++)
        trek_graph_put_tag(s->team->graph, k, s->team->outputs.tag_output[k] >= 0 ? outputs[s->team->outputs.tag_output[k]]
                           : inputs[~s->team->outputs.tag_output[k]]);
}

/* Does the same for the tags of nested graphs: a value that only some ranks have, or that could not be joined, is
 * removed. */
static trek_status put_nested_tags(trek_step *s, trek_var *const *outputs)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < s->team->outputs.n_nested && status == TREK_OK; k++) {
        const ranks_nested_tag *at = &s->team->outputs.nested[k];
        bool has = false;
        for (int r = 0; r < s->team->local_ranks; r++)
            has |= trek_graph_tag_value(s->team->replicas[r].graph->below[at->below], at->tag) != NULL;
        trek_graph *owner = s->team->graph->below[at->below];
        trek_var *joined = k < s->team->outputs.n_nested_outputs ? outputs[s->team->outputs.n_outputs + k] : NULL;
        if (joined || !has)
            trek_graph_put_tag(owner, at->tag, joined);
        else
            status = trek_graph_unjoin_tag(owner, at->tag);
    }
    return status;
}

static trek_var *forward_split(trek_step *s, trek_var *const *inputs)
{
    trek_var *outputs[TREK_SPLIT_MOST_OUTPUTS] = { NULL };
    bool few[64] = { false }, *split = s->team->outputs.n_inputs <= 64 ? few
        : trek_calloc((size_t)s->team->outputs.n_inputs, sizeof *split);
    int64_t rows = 0;
    trek_status status = split ? find_rows(s, inputs, split, &rows) : trek_error_status();
    if (status == TREK_OK)
        status = run_split(s, inputs, split, rows, outputs);
    if (split != few)
        trek_free(split);
    if (status != TREK_OK)
        return NULL;
    put_tags(s, inputs, outputs);
    return put_nested_tags(s, outputs) == TREK_OK ? outputs[0] : NULL;
}

/* --- the call ------------------------------------------------------------------------------- */

static bool nothing_to_split(const trek_step *s, trek_var *const *inputs)
{
    for (int k = 0; k < s->team->outputs.n_inputs; k++)
        if (inputs[k]->data->ndim > 0 && !trek_graph_input_is_whole(s->team->graph, k))
            return false;
    return true;
}

trek_var *trek_ranks_forward(trek_step *s, trek_var *const *inputs, int n)
{
    if (n != s->team->outputs.n_inputs)
        return trek_fail_null(TREK_ERR_ARGUMENT, "graph: inputs: %d; the graph takes %d", n, s->team->outputs.n_inputs);
    for (int k = 0; k < n; k++)
        if (!inputs[k])
            return trek_fail_missing("graph_forward", trek_graph_input_name(s->team->graph, k)), NULL;
    if (trek_scopes.depth == 0)
        return trek_fail_null(TREK_ERR_SCOPE,
                              "graph_forward: no scope is open; begin one with trek_scope_begin, or use a loader's loop");
    /* Within a rank's run, e.g. in the function of trek_graph_set_loss, it is that rank's own forward. */
    if (nothing_to_split(s, inputs) || trek_ranks_rank_here(s->team->ranks) >= 0) {
        trek_graph_forget_nested_tags(s->team->graph);
        return trek_graph_run_route(s->team->graph, inputs, n);
    }
    if (trek_team_is_training(s->team) && trek_grad_enabled() && (s->grains || trek_redoes(s)))
        return s->grains ? trek_grains_refuse("graph_forward") : trek_redo_refuse("graph_forward"), NULL;
    trek_job_say(&s->job, "forward", false);
    trek_ranks_note_wait(s, trek_team_is_training(s->team) && trek_grad_enabled());
    trek_team_follow_flags(s->team);
    return s->team->local_ranks == 1 ? forward_alone(s, inputs, n) : forward_split(s, inputs);
}
