/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper over CPU ranks: its making, its end, and the calls that only have
 * to reach every replica. Train and freeze flags change rank 0's modules; the
 * others follow at the start of the next forward. */
#include "distributed/step/stepper_ranks.h"

#include <math.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "data/loader_internal.h"
#include "distributed/comm/nccl.h"
#include "distributed/step/overlap.h"
#include "distributed/step/job_sync.h"
#include "graph/graph_internal.h"

/* --- listing a replica's parts ----------------------------------------------------- */

typedef struct listing {
    trek_replica *replica;
    char **param_names, **buffer_names; /* NULL: not wanted */
    bool counting;
} listing;

static trek_status list_module(const char *name, trek_module *module, void *arg)
{
    (void)name;
    listing *l = arg;
    if (!l->counting)
        l->replica->modules[l->replica->n_modules] = module;
    l->replica->n_modules++;
    return TREK_OK;
}

static trek_status list_param(const char *name, trek_var *param, void *arg)
{
    listing *l = arg;
    int k = l->replica->n_params++;
    if (l->counting)
        return TREK_OK;
    l->replica->params[k] = param;
    if (l->param_names && !(l->param_names[k] = trek_strdup(name)))
        return TREK_ERR_MEMORY;
    return TREK_OK;
}

static trek_status list_buffer(const char *name, trek_var *buffer, void *arg)
{
    listing *l = arg;
    int k = l->replica->n_buffers++;
    if (l->counting)
        return TREK_OK;
    l->replica->buffers[k] = buffer;
    if (l->buffer_names && !(l->buffer_names[k] = trek_strdup(name)))
        return TREK_ERR_MEMORY;
    return TREK_OK;
}

static trek_status walk(listing *l)
{
    trek_replica *r = l->replica;
    trek_module *module = trek_graph_module(r->graph);
    r->n_modules = r->n_params = r->n_buffers = 0;
    trek_status status = trek_module_each(module, list_module, l);
    if (status == TREK_OK)
        status = trek_module_each_param(module, list_param, l);
    if (status == TREK_OK)
        status = trek_module_each_buffer(module, list_buffer, l);
    return status;
}

static trek_status list_parts(ranks_stepper *s, int rank)
{
    trek_replica *r = &s->replicas[rank];
    listing l = { .replica = r, .counting = true };
    trek_status status = walk(&l);
    if (status != TREK_OK)
        return status;
    r->modules = trek_calloc((size_t)r->n_modules, sizeof *r->modules);
    r->params = trek_calloc((size_t)r->n_params, sizeof *r->params);
    r->buffers = trek_calloc((size_t)r->n_buffers, sizeof *r->buffers);
    if (!r->modules || !r->params || !r->buffers)
        return trek_status_get();
    if (rank == 0) {
        s->param_names = trek_calloc((size_t)r->n_params, sizeof *s->param_names);
        s->buffer_names = trek_calloc((size_t)r->n_buffers, sizeof *s->buffer_names);
        if (!s->param_names || !s->buffer_names)
            return trek_status_get();
    }
    l = (listing){ .replica = r, .param_names = rank == 0 ? s->param_names : NULL, .buffer_names = rank == 0 ? s->buffer_names : NULL };
    return walk(&l);
}

/* --- comparing with rank 0 ------------------------------------------------------------ */

static trek_status compare_one(const char *what, const char *name, const trek_var *first, const char *own_name, const trek_var *own)
{
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    if (strcmp(name, own_name) == 0 && trek_same_sizes(first->data, own->data) && first->data->dtype == own->data->dtype)
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "the replica differs from rank 0's graph: %s \"%s\" %s %s instead of \"%s\" %s %s", what,
                     own_name, trek_tensor_shape_text(own->data, a), trek_dtype_name((trek_dtype)own->data->dtype), name,
                     trek_tensor_shape_text(first->data, b), trek_dtype_name((trek_dtype)first->data->dtype));
}

typedef struct comparison {
    ranks_stepper *s;
    int param, buffer;
} comparison;

static trek_status compare_param(const char *name, trek_var *param, void *arg)
{
    comparison *c = arg;
    int k = c->param++;
    return compare_one("parameter", c->s->param_names[k], c->s->replicas[0].params[k], name, param);
}

static trek_status compare_buffer(const char *name, trek_var *buffer, void *arg)
{
    comparison *c = arg;
    int k = c->buffer++;
    return compare_one("buffer", c->s->buffer_names[k], c->s->replicas[0].buffers[k], name, buffer);
}

static trek_status compare_replica(ranks_stepper *s, int rank)
{
    const trek_replica *first = &s->replicas[0], *own = &s->replicas[rank];
    if (own->n_params != first->n_params || own->n_buffers != first->n_buffers || own->n_modules != first->n_modules)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "the replica differs from rank 0's graph: %d modules, %d parameters, %d buffers instead of %d, %d, %d",
                         own->n_modules, own->n_params, own->n_buffers, first->n_modules, first->n_params, first->n_buffers);
    comparison c = { .s = s };
    trek_status status = trek_module_each_param(trek_graph_module(own->graph), compare_param, &c);
    if (status == TREK_OK)
        status = trek_module_each_buffer(trek_graph_module(own->graph), compare_buffer, &c);
    if (status != TREK_OK)
        return status;
    char a[TREK_GRAPH_HASH_TEXT], b[TREK_GRAPH_HASH_TEXT];
    if (!trek_graph_hash(first->graph, a) || !trek_graph_hash(own->graph, b))
        return trek_status_get();
    if (strcmp(a, b) != 0)
        return trek_fail(TREK_ERR_ARGUMENT, "the replica differs from rank 0's graph in its nodes, edges, tags or inputs");
    return TREK_OK;
}

/* --- making ------------------------------------------------------------------------------- */

static trek_status check_rank(int rank, void *arg)
{
    ranks_stepper *s = arg;
    if (rank == 0)
        return TREK_OK;
    trek_status status = list_parts(s, rank);
    return status == TREK_OK ? compare_replica(s, rank) : status;
}

static trek_status copy_from_first(ranks_stepper *s, int rank, bool params)
{
    trek_status status = TREK_OK;
    trek_replica *own = &s->replicas[rank], *first = &s->replicas[0];
    for (int k = 0; params && k < own->n_params && status == TREK_OK; k++)
        status = trek_tensor_copy_from(own->params[k]->data, first->params[k]->data);
    for (int k = 0; k < own->n_buffers && status == TREK_OK; k++)
        status = trek_tensor_copy_from(own->buffers[k]->data, first->buffers[k]->data);
    return status;
}

/* Gradients are what goes through the GPUs' library again and again; without one there is nothing to do. */
static trek_status register_grads(ranks_stepper *s, int rank)
{
    trek_arena *arena = s->replicas[rank].arena;
    trek_status status = TREK_OK;
    for (int p = 0; p < arena->n_parts && status == TREK_OK; p++)
        status = trek_comm_nccl_register(trek_ranks_comm(s->ranks, rank), arena->parts[p].grads->data,
                                         (size_t)arena->parts[p].count * trek_dtype_size(arena->parts[p].wide));
    return status;
}

static void forget_grads(ranks_stepper *s, int rank)
{
    const trek_arena *arena = s->replicas[rank].arena;
    for (int p = 0; arena && p < arena->n_parts; p++)
        trek_comm_nccl_forget(trek_ranks_comm(s->ranks, rank), arena->parts[p].grads->data);
}

/* Further ranks' arenas, on their threads; rank 0's is there. Values are rank 0's. */
static trek_status move_rank(int rank, void *arg)
{
    ranks_stepper *s = arg;
    trek_replica *own = &s->replicas[rank];
    if (rank == 0)
        return register_grads(s, rank);
    trek_params *params = trek_module_params(trek_graph_module(own->graph));
    if (!params)
        return trek_status_get();
    own->arena = s->shared ? trek_arena_new_sharing(params, s->replicas[0].arena) : trek_arena_new(params);
    trek_params_free(&params);
    trek_status status = own->arena ? copy_from_first(s, rank, !s->shared) : trek_status_get();
    return status == TREK_OK ? register_grads(s, rank) : status;
}

static trek_status move_params(ranks_stepper *s)
{
    trek_params *params = trek_module_params(trek_graph_module(s->replicas[0].graph));
    if (!params)
        return trek_status_get();
    s->replicas[0].arena = trek_arena_new(params);
    trek_params_free(&params);
    return s->replicas[0].arena ? trek_ranks_run(s->ranks, move_rank, s) : trek_status_get();
}

/* Outputs that forward joins: the graph's, and what is tagged besides it. */
static trek_status plan_outputs(ranks_stepper *s)
{
    const trek_graph_layout *l = &s->replicas[0].graph->layout;
    s->n_inputs = l->n_inputs;
    s->n_tags = l->n_tags;
    s->n_outputs = 1;
    s->tag_output = trek_calloc((size_t)s->n_tags, sizeof *s->tag_output);
    s->output_tag = trek_calloc((size_t)s->n_tags + 1, sizeof *s->output_tag);
    if (!s->tag_output || !s->output_tag)
        return trek_status_get();
    for (int k = 0; k < s->n_tags; k++) {
        int value = l->tags[k].value, found = value == l->output ? 0 : -1;
        for (int j = 0; j < k && found < 0; j++)
            if (l->tags[j].value == value && s->tag_output[j] >= 0)
                found = s->tag_output[j];
        bool is_input = false;
        for (int j = 0; j < s->n_inputs && found < 0 && !is_input; j++)
            if ((is_input = l->inputs[j].value == value))
                s->tag_output[k] = ~j;
        if (is_input)
            continue;
        if (found < 0) {
            found = s->n_outputs++;
            s->output_tag[found] = k;
        }
        s->tag_output[k] = found;
    }
    if (s->n_outputs > 64)
        return trek_fail(TREK_ERR_UNSUPPORTED, "a graph over several ranks can have at most 63 tagged values besides its output");
    return TREK_OK;
}

static trek_status make_rest(ranks_stepper *s)
{
    const trek_replica *first = &s->replicas[0];
    s->training = trek_calloc((size_t)first->n_modules, sizeof *s->training);
    s->requires_grad = trek_calloc((size_t)first->n_params, sizeof *s->requires_grad);
    s->buffer_plans = trek_calloc((size_t)first->n_buffers, sizeof *s->buffer_plans);
    trek_tensor *zero = trek_tensor_zeros(trek_dims_none(), TREK_F32, trek_ranks_device(s->ranks, 0));
    s->anchor = zero ? trek_var_new(zero, true) : NULL;
    trek_tensor_release(zero);
    if (!s->training || !s->requires_grad || !s->buffer_plans || !s->anchor)
        return trek_status_get();
    trek_ranks_plan_buffers(s);
    trek_ranks_note_flags(s);
    s->flags++; /* replicas take them over at the first forward */
    return trek_ranks_plan_reduce(s);
}

static trek_status copy_rank(int rank, void *arg)
{
    ranks_stepper *s = arg;
    if (rank == 0)
        return TREK_OK;
    for (int k = 0; s->shared && k < s->replicas[rank].n_params; k++)
        trek_tensor_bump(s->replicas[rank].params[k]->data); /* the memory is rank 0's */
    trek_status status = copy_from_first(s, rank, !s->shared);
    return status == TREK_OK ? trek_ranks_follow_teachers(s, rank) : status;
}

/* The other processes of the job: the same graph, process 0's values. */
static trek_status join_processes(ranks_stepper *s, const trek_ranks_opts *opts)
{
    if (!opts->comm)
        return TREK_OK;
    trek_status status = trek_rounds_begin(s, opts->comm);
    if (status == TREK_OK)
        status = trek_rounds_copy_first(s);
    if (status == TREK_OK)
        status = trek_overlap_plan(s);
    return status == TREK_OK ? trek_ranks_run(s->ranks, copy_rank, s) : status;
}

static trek_status make_pace(ranks_stepper *s, const trek_ranks_opts *opts)
{
    s->watches = trek_stopwatches_new(s->world);
    s->ms = trek_calloc((size_t)s->total, sizeof *s->ms);
    s->units = trek_calloc((size_t)s->total, sizeof *s->units);
    s->pace = trek_pace_new(s->total, opts->pace);
    if (opts->slowdowns) {
        trek_slowdown *slowdowns = trek_calloc((size_t)s->world, sizeof *slowdowns);
        s->slowed_batches = trek_calloc((size_t)s->world, sizeof *s->slowed_batches);
        if (slowdowns)
            memcpy(slowdowns, opts->slowdowns, (size_t)s->world * sizeof *slowdowns);
        s->slowdowns = slowdowns;
        if (!slowdowns || !s->slowed_batches)
            return trek_status_get();
    }
    if (!s->watches || !s->ms || !s->units || !s->pace)
        return trek_status_get();
    trek_rounds_publish(s);
    return TREK_OK;
}

static void note_kinds(ranks_stepper *s)
{
    for (int r = 0; r < s->world; r++)
        s->kinds |= 1u << trek_ranks_device(s->ranks, r).type;
    s->on_host = s->kinds == 1u << TREK_CPU;
    s->mixed = (s->kinds & (s->kinds - 1)) != 0;
}

static void free_ranks(trek_stepper *stepper);
static const trek_stepper_class ranks_class;

trek_stepper *trek_stepper_ranks_new(trek_ranks *ranks, trek_graph **graphs, const trek_ranks_opts *opts)
{
    int world = trek_ranks_world_size(ranks);
    ranks_stepper *s = trek_calloc(1, sizeof *s);
    trek_replica *replicas = trek_calloc((size_t)world, sizeof *replicas);
    if (!s || !replicas) {
        trek_comm *comm = opts->comm;
        if (opts->owns_comm)
            trek_comm_free(&comm);
        trek_free(s);
        trek_free(replicas);
        for (int r = 1; r < world; r++)
            trek_graph_free(&graphs[r]);
        trek_ranks_free(&ranks);
        return NULL;
    }
    s->base = (trek_stepper){ &ranks_class, graphs[0] };
    s->ranks = ranks;
    s->world = world;
    s->replicas = replicas;
    s->shared = opts->shared;
    note_kinds(s);
    s->bucket_bytes = opts->bucket_bytes;
    s->grad_norm = NAN;
    s->comm = opts->comm;
    s->owns_comm = opts->owns_comm;
    s->factor = 1;
    s->processes = 1;
    s->total = world;
    for (int r = 0; r < world; r++)
        replicas[r].graph = graphs[r];
    trek_status status = list_parts(s, 0);
    if (status == TREK_OK)
        status = trek_ranks_run(ranks, check_rank, s);
    if (status == TREK_OK)
        status = plan_outputs(s);
    if (status == TREK_OK)
        status = move_params(s);
    if (status == TREK_OK)
        status = make_rest(s);
    if (status == TREK_OK)
        status = join_processes(s, opts);
    if (status == TREK_OK)
        status = trek_ranks_constants(&s->base);
    if (status == TREK_OK)
        status = make_pace(s, opts);
    if (status == TREK_OK)
        return &s->base;
    free_ranks(&s->base);
    return NULL;
}

/* --- the end ---------------------------------------------------------------------------------- */

/* What a rank made ends on its thread. */
static trek_status free_rank(int rank, void *arg)
{
    ranks_stepper *s = arg;
    trek_replica *own = &s->replicas[rank];
    trek_optimizer_free(&own->optimizer);
    trek_reader_free(&own->reader);
    trek_ranks_forget_aside(own);
    trek_grad_scaler_free(&own->scaler);
    forget_grads(s, rank);
    trek_arena_free(&own->arena);
    if (rank > 0)
        trek_graph_free(&own->graph);
    trek_free(own->modules);
    trek_free(own->params);
    for (int k = 0; own->staged && k < own->n_buffers; k++)
        trek_tensor_release(own->staged[k]);
    trek_free(own->staged);
    trek_free(own->buffers);
    trek_tape_size(); /* takes back what died on other threads */
    return TREK_OK;
}

static void free_ranks(trek_stepper *stepper)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    int n_params = s->replicas[0].n_params, n_buffers = s->replicas[0].n_buffers;
    for (int k = 0; s->param_names && k < n_params; k++)
        trek_free(s->param_names[k]);
    for (int k = 0; s->buffer_names && k < n_buffers; k++)
        trek_free(s->buffer_names[k]);
    if (!trek_forked)
        trek_ranks_run(s->ranks, free_rank, s);
    trek_free(s->param_names);
    trek_free(s->buffer_names);
    trek_free(s->buffer_plans);
    trek_free(s->training);
    trek_free(s->requires_grad);
    trek_free(s->tag_output);
    trek_free(s->output_tag);
    trek_var_release(s->anchor);
    trek_free(s->chunks);
    trek_free(s->sums);
    trek_free(s->has);
    trek_free(s->any);
    trek_free(s->replicas);
    trek_stopwatches_release(s->watches);
    trek_stopwatch_clear(&s->reduce_watch);
    trek_pace_free(&s->pace);
    trek_free(s->ms);
    trek_free(s->units);
    trek_free((void *)(uintptr_t)s->slowdowns);
    trek_free(s->slowed_batches);
    trek_overlap_free(s);
    trek_rounds_end(s);
    trek_ranks_free(&s->ranks);
    trek_free(s);
}

/* --- calls that reach every replica ----------------------------------------------------------- */

static trek_status zero_rank(int rank, void *arg)
{
    trek_arena_zero_grads(((ranks_stepper *)arg)->replicas[rank].arena);
    return TREK_OK;
}

trek_status trek_ranks_zero(ranks_stepper *s) { return trek_ranks_run(s->ranks, zero_rank, s); }

static trek_status zero_grad(trek_stepper *stepper)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    trek_status status = trek_status_get();
    if (status == TREK_OK && s->sent) /* the engine still reads and writes them */
        status = trek_comm_finish(s->comm);
    if (status == TREK_OK)
        status = trek_ranks_zero(s);
    if (status != TREK_OK)
        return status;
    s->sent = s->holds_sum = false;
    s->passes = s->passes_sent = 0;
    s->factor = 1;
    trek_accumulation_clear(&stepper->graph->accumulation);
    return TREK_OK;
}

static trek_status train(trek_stepper *stepper, bool training)
{
    return trek_module_train(trek_graph_module(stepper->graph), training);
}

static trek_status freeze(trek_stepper *stepper, const char *path, bool frozen)
{
    trek_module *module = trek_graph_at(stepper->graph, path);
    return module ? trek_module_freeze(module, frozen) : trek_status_get();
}

static trek_status parameters_changed(trek_stepper *stepper)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    trek_status status = trek_constants_move(stepper->graph);
    return status == TREK_OK ? trek_ranks_run(s->ranks, copy_rank, s) : status;
}

typedef struct optimizer_call {
    ranks_stepper *s;
    const trek_optimizer_source *source;
    trek_optimizer **made;
} optimizer_call;

static trek_status make_optimizer(int rank, void *arg)
{
    const optimizer_call *c = arg;
    if (rank > 0 && c->s->shared)
        return TREK_OK;
    c->made[rank] = trek_optimizer_make(c->source, c->s->replicas[rank].arena);
    return c->made[rank] ? TREK_OK : trek_status_get();
}

/* All ranks' or none. */
static trek_status set_optimizer(trek_stepper *stepper, const trek_optimizer_source *source)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    if (s->replicas[0].n_params == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trek_graph_set_optimizer: the graph has no parameters");
    trek_optimizer **made = trek_calloc((size_t)s->world, sizeof *made);
    if (!made)
        return trek_status_get();
    trek_status status = trek_ranks_run(s->ranks, make_optimizer, &(optimizer_call){ s, source, made });
    for (int r = 0; r < s->world; r++) {
        trek_optimizer *old = s->replicas[r].optimizer;
        if (status == TREK_OK)
            s->replicas[r].optimizer = made[r];
        else
            old = made[r];
        trek_optimizer_free(&old);
    }
    trek_free(made);
    return status;
}

static trek_status set_lr(trek_stepper *stepper, double lr)
{
    ranks_stepper *s = (ranks_stepper *)stepper;
    if (!s->replicas[0].optimizer)
        return trek_fail(TREK_ERR_STATE, "trek_graph_set_lr: the graph has no optimizer");
    trek_status status = TREK_OK; /* the first rank's refusal comes before any change */
    for (int r = 0; r < s->world && status == TREK_OK; r++)
        if (s->replicas[r].optimizer)
            status = trek_optimizer_set_lr(s->replicas[r].optimizer, lr);
    return status;
}

static int world_size(const trek_stepper *stepper) { return ((const ranks_stepper *)stepper)->total; }

static int shares(const trek_stepper *stepper, double *list, int capacity)
{
    const ranks_stepper *s = (const ranks_stepper *)stepper;
    for (int r = 0; r < s->total && r < capacity; r++)
        list[r] = trek_pace_shares(s->pace)[r];
    return s->total;
}

static double lr(const trek_stepper *stepper)
{
    const ranks_stepper *s = (const ranks_stepper *)stepper;
    return s->replicas[0].optimizer ? trek_optimizer_lr(s->replicas[0].optimizer) : (double)NAN;
}

/* Where ranks decide for themselves, all decide the same: rank 0 is asked. */
static double grad_norm(const trek_stepper *stepper)
{
    const ranks_stepper *s = (const ranks_stepper *)stepper;
    const trek_replica *first = &s->replicas[0];
    return first->optimizer && !s->on_host ? trek_optimizer_grad_norm(first->optimizer) : s->grad_norm;
}
static trek_optimizer *optimizer_of(trek_stepper *stepper) { return ((ranks_stepper *)stepper)->replicas[0].optimizer; }

static const trek_stepper_class ranks_class = {
    .name = "ranks", .free = free_ranks, .forward = trek_ranks_forward, .backward = trek_ranks_backward,
    .reduce = trek_ranks_reduce, .step = trek_ranks_step, .zero_grad = zero_grad, .train = train, .freeze = freeze,
    .parameters_changed = parameters_changed, .set_optimizer = set_optimizer,
    .set_lr = set_lr, .world_size = world_size, .shares = shares, .lr = lr, .grad_norm = grad_norm, .optimizer = optimizer_of,
    .constants = trek_ranks_constants, .pass = trek_ranks_pass, .window = trek_ranks_window,
};

trek_graph *trek_graph_replica(trek_graph *graph, int rank)
{
    ranks_stepper *s = graph ? (ranks_stepper *)graph->stepper : NULL;
    if (!s || s->base.klass != &ranks_class || rank < 0 || rank >= s->world)
        return NULL;
    return s->replicas[rank].graph;
}
