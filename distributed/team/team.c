/* SPDX-License-Identifier: Apache-2.0 */
/* How a team is made and freed: replicas that are alike, arenas with rank 0's values, and the plans of what is joined
 * and reduced. */
#include "distributed/team/team.h"

#include <string.h>

#include "autograd/var_internal.h"
#include "data/loader_internal.h"
#include "distributed/comm/nccl.h"
#include "distributed/system/system.h"
#include "distributed/team/divided.h"
#include "distributed/team/memory.h"
#include "graph/tree.h"
#include "nn/text.h"

/* Describes what must be equal besides modules, parameters and buffers. Returns NULL on failure. */
char *trek_team_describe_graph(trek_graph *graph)
{
    const trek_graph_layout *l = &graph->layout;
    char hash[TREK_GRAPH_HASH_TEXT];
    trek_text text = { 0 };
    if (!trek_graph_hash(graph, hash, sizeof hash))
        return NULL;
    for (int k = 0; k < l->n_nodes; k++)
        trek_text_format(&text, "node %d\t%s\n", k, l->nodes[k].module ? l->nodes[k].module->own->klass->name : "merge");
    for (int k = 0; k < l->n_tags; k++)
        trek_text_format(&text, "tag %d\t\"%s\" of value %d\n", k, l->tags[k].name, l->tags[k].value);
    for (int k = 0; k < l->n_inputs; k++)
        trek_text_format(&text, "input %d\t\"%s\"\n", k, l->inputs[k].name);
    trek_text_format(&text, "the graph\t%d nodes, %d values, %d states\nthe graph's edges\thash %s\n", l->n_nodes, l->n_values,
                     l->n_states, hash);
    return trek_text_take(&text);
}

/* --- replicas and arenas ------------------------------------------------------------------ */

static trek_status list_rank(int rank, void *arg)
{
    trek_team *team = arg;
    rank_replica *own = &team->replicas[rank];
    own->model = trek_replica_new(trek_graph_module(own->graph));
    char *graph = own->model ? trek_team_describe_graph(own->graph) : NULL;
    trek_status status = trek_replica_compare(own->model, trek_ranks_comm(team->ranks, rank), graph,
                                              "trainer_setup: the ranks' replicas differ", graph ? TREK_OK : trek_error_status());
    trek_free(graph);
    return status;
}

trek_status trek_team_take_first(const trek_team *team, int rank, trek_status own)
{
    return trek_replica_take_first(team->replicas[rank].model, trek_ranks_comm(team->ranks, rank),
                                   (trek_replica_values){ .params = !team->shared && !team->replicas[rank].divided,
                                                          .buffers = true,
                                                          .on_host = team->on_host }, own);
}

/* Gradients go through the GPUs' library again and again, so they are registered. Without a library there is nothing
 * to do. */
static trek_status register_grads(trek_team *team, int rank)
{
    trek_arena *arena = team->replicas[rank].arena;
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK && !team->divides_grads; p++) /* pages move */
        status = trek_comm_nccl_register(trek_ranks_comm(team->ranks, rank), arena->parts[p].grads->data,
                                         (size_t)arena->parts[p].count * trek_dtype_size(arena->parts[p].wide));
    return status;
}

static void forget_grads(trek_team *team, int rank)
{
    const trek_arena *arena = team->replicas[rank].arena;
    for (int p = 0; arena && p < arena->n_parts; p++)
        trek_comm_nccl_forget(trek_ranks_comm(team->ranks, rank), arena->parts[p].grads->data);
}

static trek_status make_arena(trek_team *team, int rank)
{
    rank_replica *own = &team->replicas[rank];
    if (rank == 0)
        return TREK_OK;
    trek_params *params = trek_module_params(trek_graph_module(own->graph));
    if (!params)
        return trek_error_status();
    own->arena = team->shared ? trek_arena_new_sharing(params, team->replicas[0].arena)
        : team->divides_grads ? trek_arena_new_paged(params, team->sharers, team->page, team->divides_params, team->twice)
                              : trek_arena_new_in(params, team->sharers, NULL, NULL);
    trek_params_free(&params);
    return own->arena ? TREK_OK : trek_error_status();
}

/* Makes further ranks' arenas, on their threads, with rank 0's values. Rank 0's arena exists already. */
static trek_status move_rank(int rank, void *arg)
{
    trek_team *team = arg;
    trek_status status = trek_team_take_first(team, rank, make_arena(team, rank));
    return status == TREK_OK ? register_grads(team, rank) : status;
}

/* Makes the memory in which the gradients of the process are reduced with those of others. */
static trek_tensor *zeros_of_comm(void *comm, trek_shape shape, trek_dtype dtype, trek_device device)
{
    return trek_comm_zeros(comm, shape, dtype, device);
}

static trek_status move_params(trek_team *team, trek_comm *comm)
{
    trek_params *params = trek_module_params(trek_graph_module(team->graph));
    if (!params)
        return trek_error_status();
    team->replicas[0].arena = team->divides_grads
        ? trek_arena_new_paged(params, team->sharers, team->page, team->divides_params, team->twice)
        : team->twice                             ? trek_arena_new_twice(params, team->sharers, zeros_of_comm, comm)
                                                  : trek_arena_new_in(params, team->sharers, zeros_of_comm, comm);
    trek_params_free(&params);
    return team->replicas[0].arena ? trek_ranks_call(team->ranks, move_rank, team) : trek_error_status();
}

/* Plans tags of nested graphs, except tags that only concern the nested graph itself. */
static trek_status plan_nested(trek_team *team)
{
    const trek_graph *graph = team->graph;
    trek_team_outputs *o = &team->outputs;
    int most = 0;
    for (int g = 0; g < graph->n_below; g++)
        most += graph->below[g]->layout.n_tags;
    o->nested = trek_calloc((size_t)most, sizeof *o->nested);
    if (!o->nested)
        return trek_error_status();
    for (int g = 0; g < graph->n_below; g++)
        for (int k = 0; k < graph->below[g]->layout.n_tags; k++)
            if (graph->below[g]->layout.tags[k].name[0] != '_')
                o->nested[o->n_nested++] = (ranks_nested_tag){ g, k };
    o->n_nested_outputs = o->n_nested < TREK_MOST_JOINED_TAGS ? o->n_nested : TREK_MOST_JOINED_TAGS;
    return TREK_OK;
}

/* Plans the outputs that forward joins: the graph's output and tagged values. */
static trek_status plan_outputs(trek_team *team)
{
    const trek_graph_layout *l = &team->graph->layout;
    trek_team_outputs *o = &team->outputs;
    o->n_inputs = l->n_inputs;
    o->n_tags = l->n_tags;
    o->n_outputs = 1;
    o->tag_output = trek_calloc((size_t)o->n_tags, sizeof *o->tag_output);
    o->output_tag = trek_calloc((size_t)o->n_tags + 1, sizeof *o->output_tag);
    if (!o->tag_output || !o->output_tag)
        return trek_error_status();
    for (int k = 0; k < o->n_tags; k++) {
        int value = l->tags[k].value, found = value == l->output ? 0 : -1;
        for (int j = 0; j < k && found < 0; j++)
            if (l->tags[j].value == value && o->tag_output[j] >= 0)
                found = o->tag_output[j];
        bool is_input = false;
        for (int j = 0; j < o->n_inputs && found < 0 && !is_input; j++)
            if ((is_input = l->inputs[j].value == value))
                o->tag_output[k] = ~j;
        if (is_input)
            continue;
        if (found < 0) {
            found = o->n_outputs++;
            o->output_tag[found] = k;
        }
        o->tag_output[k] = found;
    }
    if (o->n_outputs > 64)
        return trek_fail(
            TREK_ERR_UNSUPPORTED,
            "trainer_setup: tags: more than 63; a graph over several ranks can have at most 63 tagged values besides its output");
    return plan_nested(team);
}

static int count_chunks(const trek_arena *arena)
{
    int64_t n = 0;
    for (int p = 0; p < arena->n_parts; p++)
        n += (arena->parts[p].count + TREK_CHUNK - 1) / TREK_CHUNK;
    return (int)n;
}

/* Plans chunks and buckets. */
static trek_status plan_reduce(trek_team *team)
{
    const trek_arena *arena = team->replicas[0].arena;
    size_t segments = (size_t)arena->n_segments, local_ranks = (size_t)team->local_ranks;
    for (int r = 0; r < team->local_ranks; r++)
        if (!(team->replicas[r].reducer = trek_reducer_of_arena(team->replicas[r].arena, team->bucket_bytes)))
            return trek_error_status();
    team->any = team->replicas[0].reducer->any;
    team->n_chunks = count_chunks(arena);
    team->chunks = trek_calloc((size_t)team->n_chunks, sizeof *team->chunks);
    team->sums = trek_calloc((size_t)team->n_chunks * (team->shared ? 1 : local_ranks), sizeof *team->sums);
    team->has = trek_calloc(segments * local_ranks, sizeof *team->has);
    if (!team->chunks || !team->sums || !team->has)
        return trek_error_status();
    int n = 0, segment = 0;
    for (int p = 0; p < arena->n_parts; p++)
        for (int64_t begin = 0; begin < arena->parts[p].count; begin += TREK_CHUNK) {
            int64_t end = begin + TREK_CHUNK < arena->parts[p].count ? begin + TREK_CHUNK : arena->parts[p].count;
            while (segment + 1 < arena->n_segments &&
                   (arena->segments[segment].part < p || arena->segments[segment + 1].offset <= begin) &&
                   arena->segments[segment + 1].part <= p)
                segment++;
            team->chunks[n++] = (trek_reduce_chunk){ p, segment, begin, end };
        }
    return TREK_OK;
}

static void note_kinds(trek_team *team)
{
    for (int r = 0; r < team->local_ranks; r++)
        team->kinds |= 1u << trek_ranks_device(team->ranks, r).type;
    team->on_host = team->kinds == 1u << TREK_CPU;
}

static trek_status make_watches(trek_team *team)
{
    size_t ranks = (size_t)team->local_ranks;
    const char *slowdown = trek_process_variable("TREK_SLOWDOWN");
    if (!(team->watches = trek_stopwatches_new(team->local_ranks)))
        return trek_error_status();
    if (!slowdown || !*slowdown)
        return TREK_OK;
    team->slowdowns = trek_calloc(ranks, sizeof *team->slowdowns);
    team->slowed_batches = trek_calloc(ranks, sizeof *team->slowed_batches);
    if (!team->slowdowns || !team->slowed_batches)
        return trek_error_status();
    return trek_slowdown_read(slowdown, team->slowdowns, team->local_ranks);
}

trek_status trek_team_begin(trek_team *team, trek_ranks *ranks, trek_graph **graphs, const trek_team_opts *opts)
{
    int local_ranks = trek_ranks_world_size(ranks);
    *team = (trek_team){ .graph = graphs[0], .ranks = ranks, .local_ranks = local_ranks, .shared = opts->shared,
                         .sharers = opts->sharers, .twice = opts->twice, .bucket_bytes = opts->bucket_bytes };
    team->replicas = trek_calloc((size_t)local_ranks, sizeof *team->replicas);
    if (!team->replicas) {
        for (int r = 1; r < local_ranks; r++)
            trek_graph_free(&graphs[r]);
        return trek_error_status();
    }
    note_kinds(team);
    team->divides_grads = opts->divides_grads;
    team->divides_params = opts->divides_params;
    team->page = opts->page;
    for (int r = 0; r < local_ranks; r++)
        team->replicas[r].graph = graphs[r];
    trek_status status = trek_ranks_call(ranks, list_rank, team);
    if (status == TREK_OK)
        status = plan_outputs(team);
    if (status == TREK_OK)
        status = move_params(team, opts->comm);
    if (status == TREK_OK)
        status = plan_reduce(team);
    if (status == TREK_OK)
        status = trek_team_memory_new(team, opts->budgets);
    if (status == TREK_OK) {
        team->memory->recomputes = opts->recomputes;
        team->memory->host_budget = opts->host_budget;
    }
    return status == TREK_OK ? make_watches(team) : status;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void forget_stash(rank_replica *replica)
{
    for (int p = 0; replica->stashed && p < replica->arena->n_parts; p++)
        trek_tensor_release(replica->stashed[p]);
    trek_free(replica->stashed);
    trek_free(replica->stashed_has);
    replica->stashed = NULL;
    replica->stashed_has = NULL;
}

/* Frees what a rank has made, on its thread. */
static trek_status free_rank(int rank, void *arg)
{
    trek_team *team = arg;
    rank_replica *own = &team->replicas[rank];
    if (team->memory && team->memory->accounts)
        trek_memory_account_leave();
    trek_optimizer_free(&own->optimizer);
    trek_reader_free(&own->reader);
    forget_stash(own);
    trek_free(own->trained);
    trek_grad_scaler_free(&own->scaler);
    trek_reducer_free(&own->reducer);
    trek_free(own->own_chunks);
    trek_free(own->own_sums);
    forget_grads(team, rank);
    trek_arena_free(&own->arena);
    trek_replica_release(own->model);
    if (rank > 0)
        trek_graph_free(&own->graph);
    trek_tape_size(); /* takes back what was freed on other threads */
    return TREK_OK;
}

void trek_team_end(trek_team *team)
{
    if (!trek_forked && team->replicas)
        trek_divided_end(team);
    if (!trek_forked && team->replicas)
        trek_ranks_call(team->ranks, free_rank, team);
    trek_free(team->outputs.tag_output);
    trek_free(team->outputs.output_tag);
    trek_free(team->outputs.nested);
    trek_free(team->chunks);
    trek_free(team->sums);
    trek_free(team->has);
    trek_free(team->replicas);
    trek_stopwatches_release(team->watches);
    trek_free(team->slowdowns);
    trek_free(team->slowed_batches);
    trek_team_memory_free(team);
    trek_ranks_free(&team->ranks);
}

bool trek_team_has_states(const trek_team *team)
{
    bool has = team->graph->layout.n_states > 0;
    for (int k = 0; k < team->graph->n_below; k++)
        has |= team->graph->below[k]->layout.n_states > 0;
    return has;
}
