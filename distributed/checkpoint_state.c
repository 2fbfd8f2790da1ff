/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint has. */
#include "distributed/balance/workload.h"
#include "distributed/checkpoint_internal.h"

#include <inttypes.h>
#include <string.h>

#include "data/loader_position.h"
#include "distributed/job/job_products.h"
#include "distributed/stepper.h"
#include "graph/amp.h"
#include "graph/graph_loader_internal.h"
#include "nn/safetensors.h"
#include "tensor/pages.h"
#include "tensor/print.h"
#include "tensor/random_internal.h"

static bool begins(const char *name, const char *prefix) { return strncmp(name, prefix, strlen(prefix)) == 0; }

static trek_status add_numbers(trek_state *state, const char *name, const void *values, int64_t n, trek_dtype dtype)
{
    trek_tensor *tensor = trek_tensor_from_data(values, trek_dims(n), dtype, trek_cpu(0));
    trek_status status = tensor ? trek_state_add(state, name, tensor) : trek_error_status();
    trek_tensor_release(tensor);
    return status;
}

static trek_status add_run(trek_state *state, trek_graph *graph, const trek_loader *loader)
{
    int64_t run[RUN_NUMBERS] = { trek_graph_steps(graph), (int64_t)trek_rng_seed(), (int64_t)trek_rank_here.rng_step,
                                 (int64_t)trek_rank_here.rng_draw };
    trek_status status = add_numbers(state, TREK_CHECKPOINT_RUN, run, RUN_NUMBERS, TREK_I64);
    if (!loader || status != TREK_OK)
        return status;
    const trek_batch_plan *plan = trek_loader_plan(loader);
    int64_t place[LOADER_NUMBERS] = { 0, 0, plan->samples, plan->batch_size };
    trek_loader_position(loader, &place[LOADER_EPOCH], &place[LOADER_BATCH]);
    if (trek_loader_stream_ended(loader)) { /* nobody else knows how many batches it has */
        place[LOADER_EPOCH]++;
        place[LOADER_BATCH] = 0;
    }
    return add_numbers(state, TREK_CHECKPOINT_LOADER, place, LOADER_NUMBERS, TREK_I64);
}

static trek_status add_scaler(trek_state *state, trek_grad_scaler *scaler)
{
    trek_grad_scaler_state now;
    trek_status status = scaler ? trek_grad_scaler_save(scaler, &now) : TREK_OK;
    if (!scaler || status != TREK_OK)
        return status;
    double numbers[SCALER_NUMBERS] = { now.scale, now.growth_factor, now.backoff_factor, (double)now.growth_interval,
                                       (double)now.growth_tracker };
    return add_numbers(state, TREK_CHECKPOINT_SCALER, numbers, SCALER_NUMBERS, TREK_F64);
}

static trek_status add_plan(trek_state *state, const trek_step *s)
{
    if (!s || !trek_step_workload(s))
        return TREK_OK;
    char *text = trek_plan_text(trek_workload_plan(trek_step_workload(s)));
    trek_status status = text ? trek_state_set_metadata(state, TREK_CHECKPOINT_PLAN, text) : trek_error_status();
    trek_string_free(&text);
    return status;
}

static trek_status add_grain(trek_state *state, const trek_step *s)
{
    char text[32];
    if (!s || trek_step_grain(s) == 0)
        return TREK_OK;
    snprintf(text, sizeof text, "%" PRId64, trek_step_grain(s));
    return trek_state_set_metadata(state, TREK_CHECKPOINT_GRAIN, text);
}

static trek_status check_names(const trek_state *state)
{
    for (int k = 0; k < state->n_entries; k++)
        if (begins(state->entries[k].name, TREK_STATE_OWN))
            return trek_fail(TREK_ERR_ARGUMENT,
                             "checkpoint_save: state: the name \"%s\" has the beginning of trek's own names; choose another",
                             state->entries[k].name);
    return TREK_OK;
}

trek_loader *trek_checkpoint_loader(const trek_graph *graph, trek_loader *given)
{
    return given || !graph->graph_loader ? given : graph->graph_loader->loader;
}

static trek_status add_optimizer(trek_state *state, trek_optimizer *optimizer, const trek_checkpoint_content *content)
{
    trek_state_stream *stream = content->stream;
    bool apart = content->plain && optimizer->arena->twice; /* one that comes gets a part of it (reduce/twice.h) */
    if (!stream && apart)
        return trek_optimizer_add_rates(state, optimizer, TREK_CHECKPOINT_RATES);
    if (!stream)
        return trek_optimizer_add_to(state, optimizer, TREK_CHECKPOINT_RATES, TREK_CHECKPOINT_OPTIMIZER, content->copies);
    trek_status status = trek_optimizer_add_rates(state, optimizer, TREK_CHECKPOINT_RATES);
    for (int k = 0; k < trek_state_stream_count(stream) && status == TREK_OK; k++) {
        char *name = trek_format(TREK_CHECKPOINT_OPTIMIZER "%s", trek_state_stream_item(stream, k)->name);
        status = name ? trek_state_stream_add(stream, k, name, state) : TREK_ERR_MEMORY;
        trek_free(name);
    }
    return status;
}

/* Returns the entries of a state whose tensors this process has, with their aliases. Parameters that are divided among processes
 * are left out: one that comes gets its part of them (reduce/twice.h). */
static trek_state *without_kept(trek_state *all)
{
    trek_state *some = trek_state_new();
    trek_status status = some ? TREK_OK : trek_error_status();
    for (int k = 0; k < all->n_entries && status == TREK_OK; k++)
        if (!trek_tensor_is_kept(all->entries[k].tensor))
            status = trek_state_add_like(some, all->entries[k].name, &all->entries[k], &(trek_state_change){ 0 });
    for (int k = 0; k < all->n_aliases && status == TREK_OK; k++)
        if (!trek_tensor_is_kept(all->entries[all->aliases[k].entry].tensor))
            status = trek_state_add_alias(some, all->aliases[k].name, all->entries[all->aliases[k].entry].name);
    if (status != TREK_OK)
        trek_state_free(&some);
    trek_state_free(&all);
    return some;
}

static trek_state *collect_model(trek_module *module, const trek_checkpoint_content *content)
{
    trek_state *state = content->copies ? trek_state_of(module) : trek_state_borrow(module);
    return state && content->plain ? without_kept(state) : state;
}

trek_state *trek_checkpoint_collect(trek_graph *graph, trek_loader *loader, const trek_checkpoint_content *content)
{
    trek_optimizer *optimizer = trek_graph_optimizer(graph);
    trek_state *state = collect_model(trek_graph_module(graph), content);
    trek_status status = state ? check_names(state) : trek_error_status();
    if (status == TREK_OK)
        status = trek_state_set_metadata(state, TREK_STATE_CHECKPOINT, TREK_CHECKPOINT_VERSION);
    if (status == TREK_OK)
        status = trek_state_set_metadata(state, TREK_CHECKPOINT_PRODUCTS, trek_job_products_name());
    if (status == TREK_OK)
        status = add_run(state, graph, loader);
    if (status == TREK_OK)
        status = optimizer ? add_optimizer(state, optimizer, content) : TREK_OK;
    if (status == TREK_OK)
        status = add_scaler(state, trek_graph_scaler(graph));
    if (status == TREK_OK && !content->plain)
        status = add_plan(state, trek_graph_ranks(graph));
    if (status == TREK_OK)
        status = add_grain(state, trek_graph_ranks(graph));
    if (status == TREK_OK && content->n > 0)
        status = add_numbers(state, TREK_CHECKPOINT_MORE, content->more, content->n, TREK_F64);
    if (status != TREK_OK)
        trek_state_free(&state);
    return state;
}

trek_state *trek_checkpoint_snapshot(trek_graph *graph, trek_loader *loader, const double *more, int n)
{
    trek_checkpoint_content content = { .copies = true, .more = more, .n = n };
    return trek_error_status() == TREK_OK ? trek_checkpoint_collect(graph, trek_checkpoint_loader(graph, loader), &content)
        : NULL;
}

trek_status trek_checkpoint_write(trek_graph *graph, trek_loader *loader, int file, const char *name, const double *more, int n)
{
    trek_checkpoint_content content = { .more = more, .n = n };
    trek_state *state = trek_checkpoint_collect(graph, trek_checkpoint_loader(graph, loader), &content);
    trek_status status = state ? trek_state_write_file(state, file, name) : trek_error_status();
    trek_state_free(&state);
    return status;
}

trek_state *trek_checkpoint_collect_plain(trek_graph *graph, const double *more, int n)
{
    return trek_checkpoint_collect(graph, NULL, &(trek_checkpoint_content){ .plain = true, .more = more, .n = n });
}
