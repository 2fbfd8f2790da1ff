/* SPDX-License-Identifier: Apache-2.0 */
/* Loading checkpoints has two halves: first everything that can fail, then the changes, which cannot fail. */
#include "distributed/checkpoint_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/loader_position.h"
#include "distributed/job/agreement.h"
#include "distributed/job/job_products.h"
#include "distributed/pass/division.h"
#include "distributed/pass/shares.h"
#include "distributed/policy/grain_size.h"
#include "distributed/reduce/reduce.h"
#include "distributed/stepper.h"
#include "distributed/team/load_state.h"
#include "distributed/team/step.h"
#include "graph/amp.h"
#include "graph/graph_loader_internal.h"
#include "tensor/try_internal.h"

static bool begins(const char *name, const char *prefix) { return strncmp(name, prefix, strlen(prefix)) == 0; }

/* --- loading: what the file says --------------------------------------------------------------- */

typedef struct restoring {
    trek_graph *graph;
    trek_step *s;           /* NULL: one device */
    trek_loader *loader;        /* NULL: no loader */
    const char *path;
    trek_state *file, *model;   /* everything in the file, or set of files; its parameters and buffers */
    trek_state_loading *loading;
    trek_optimizer_entry *entries; /* their names and tensors are borrowed from the file */
    int n_entries, n_rates;
    double *rates;
    trek_ranks_loading optimizer; /* their number */
    trek_plan *plan;            /* NULL if the file has no plan, or a plan for another number of ranks */
    int64_t run[RUN_NUMBERS], place[LOADER_NUMBERS];
    int64_t grain;              /* samples of a grain; 0: it was not trained in grains */
    bool plain;                 /* it comes from another process, without checksums */
    bool has_optimizer, has_loader, has_scaler;
    trek_grad_scaler_state scaler;
} restoring;

static trek_status fail_format(const restoring *r, const char *what)
{
    return trek_fail(TREK_ERR_FORMAT, "%s: %s", r->path, what);
}

/* Reads `n` numbers of the file. If they are absent and may be absent, *there becomes false. */
static trek_status read_numbers(const restoring *r, const char *name, trek_dtype dtype, int64_t n, void *values, bool *there)
{
    trek_tensor *tensor = trek_state_find(r->file, name);
    *there = tensor != NULL;
    if (!tensor)
        return trek_error_status();
    if (trek_tensor_dtype(tensor) != dtype || trek_tensor_shape(tensor).ndim != 1 || trek_tensor_numel(tensor) != n)
        return trek_fail(TREK_ERR_FORMAT, "%s: \"%s\": damaged; must be %" PRId64 " numbers of %s", r->path, name, n,
                         trek_dtype_name(dtype));
    return trek_tensor_to_host(tensor, dtype, values, (size_t)n * trek_dtype_size(dtype));
}

static trek_status read_rates(restoring *r)
{
    trek_tensor *tensor = trek_state_find(r->file, TREK_CHECKPOINT_RATES);
    r->has_optimizer = tensor != NULL;
    return tensor ? trek_optimizer_read_rates(tensor, r->path, &r->rates, &r->n_rates) : trek_error_status();
}

/* Reads the scaler's numbers and tries them on a scaler of its own. */
static trek_status read_scaler(restoring *r)
{
    double numbers[SCALER_NUMBERS];
    trek_status status = read_numbers(r, TREK_CHECKPOINT_SCALER, TREK_F64, SCALER_NUMBERS, numbers, &r->has_scaler);
    if (status != TREK_OK || !r->has_scaler)
        return status;
    for (int k = 3; k < SCALER_NUMBERS; k++)
        if (!(numbers[k] >= 0 && numbers[k] < 9e15))
            return fail_format(r, "the loss scaler's counts are out of range");
    r->scaler = (trek_grad_scaler_state){ numbers[0], numbers[1], numbers[2], (int64_t)numbers[3], (int64_t)numbers[4] };
    trek_grad_scaler *trial = trek_grad_scaler_new(NULL);
    status = trial ? trek_grad_scaler_load(trial, &r->scaler) : trek_error_status();
    trek_grad_scaler_free(&trial);
    return status;
}

static trek_status check_version(const restoring *r)
{
    const char *version = trek_state_metadata(r->file, TREK_STATE_CHECKPOINT);
    if (!version)
        return fail_format(r, "it is not a checkpoint of trek (trek_state_load reads other files)");
    if (strcmp(version, TREK_CHECKPOINT_VERSION) != 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: version %s of checkpoints is unknown; this library reads version %s", r->path,
                         version, TREK_CHECKPOINT_VERSION);
    if (!r->file->checked && !r->plain) /* damage to the checksum's text alone does not remove it (trek_safetensors_seal) */
        trek_log_message(TREK_LOG_LEVEL_WARNING,
                         "%s: the checkpoint has no checksum, because another program has written it: damage to it would stay "
                         "unnoticed", r->path);
    return TREK_OK;
}

/* Reads the size of grains, which a graph that has chosen one takes over. */
static trek_status read_grain(restoring *r)
{
    const char *text = trek_state_metadata(r->file, TREK_CHECKPOINT_GRAIN);
    char *end;
    r->grain = text ? strtoll(text, &end, 10) : 0;
    if (text && (*end || r->grain < 1))
        return fail_format(r, "the size of grains is no number of samples");
    if (r->s && r->s->grain > 0 && !r->s->grain_chosen && r->grain > 0 && r->grain != r->s->grain)
        trek_log_message(TREK_LOG_LEVEL_WARNING, "%s: it was trained in grains of %" PRId64 " samples; with .grain = %" PRId64
                                                 " the bits will differ", r->path, r->grain, r->s->grain);
    return TREK_OK;
}

static trek_status read_header(restoring *r)
{
    const char *plan = trek_state_metadata(r->file, TREK_CHECKPOINT_PLAN);
    bool there;
    trek_status status = check_version(r);
    if (status == TREK_OK)
        status = read_numbers(r, TREK_CHECKPOINT_RUN, TREK_I64, RUN_NUMBERS, r->run, &there);
    if (status == TREK_OK && (!there || r->run[RUN_STEPS] < 0 || r->run[RUN_RNG_STEP] < 0 || r->run[RUN_RNG_DRAW] < 0))
        status = fail_format(r, "the run's counts are missing, or negative");
    if (status == TREK_OK)
        status = read_numbers(r, TREK_CHECKPOINT_LOADER, TREK_I64, LOADER_NUMBERS, r->place, &r->has_loader);
    if (status == TREK_OK)
        status = read_rates(r);
    if (status == TREK_OK)
        status = read_scaler(r);
    if (status == TREK_OK)
        status = read_grain(r);
    if (status == TREK_OK && plan && !(r->plan = trek_plan_parse(plan)))
        status = trek_error_status();
    if (r->plan && (!r->s || !r->s->pace.workload || trek_plan_ranks(r->plan) != trek_ranks_sites(r->s)))
        trek_plan_free(&r->plan);
    return status;
}

/* Returns an entry of the optimizer's state. If the state is divided, it stays in its file, of which each rank reads its part. */
static trek_status add_entry(restoring *r, trek_state_entry *entry)
{
    trek_optimizer_entry *to = &r->entries[r->n_entries++];
    *to = (trek_optimizer_entry){ .name = entry->name + strlen(TREK_CHECKPOINT_OPTIMIZER), .stored = entry };
    if (!r->s || r->s->team->sharers == 1)
        to->tensor = trek_state_entry_keep(entry);
    return to->tensor || (r->s && r->s->team->sharers > 1) ? TREK_OK : trek_error_status();
}

/* Separates parameters and buffers from the optimizer's state. */
static trek_status divide(restoring *r)
{
    static const char *const known[] = { TREK_CHECKPOINT_RUN, TREK_CHECKPOINT_LOADER, TREK_CHECKPOINT_RATES,
                                         TREK_CHECKPOINT_SCALER, TREK_CHECKPOINT_MORE, TREK_CHECKPOINT_MOMENTUM,
                                         TREK_CHECKPOINT_EPOCH };
    r->model = trek_state_new();
    r->entries = trek_calloc((size_t)r->file->n_entries + 1, sizeof *r->entries);
    trek_status status = r->model && r->entries ? TREK_OK : trek_error_status();
    for (int k = 0; k < r->file->n_entries && status == TREK_OK; k++) {
        trek_state_entry *entry = &r->file->entries[k];
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known |= strcmp(entry->name, known[i]) == 0;
        if (begins(entry->name, TREK_CHECKPOINT_OPTIMIZER))
            status = add_entry(r, entry);
        else if (!begins(entry->name, TREK_STATE_OWN))
            status = trek_state_add_like(r->model, entry->name, entry, &(trek_state_change){ 0 });
        else if (!is_known)
            status = trek_fail(TREK_ERR_FORMAT, "%s: \"%s\": unknown entry", r->path, entry->name);
    }
    for (int k = 0; k < r->file->n_aliases && status == TREK_OK; k++)
        if (begins(r->file->aliases[k].name, TREK_STATE_OWN) ||
            begins(r->file->entries[r->file->aliases[k].entry].name, TREK_STATE_OWN))
            status = fail_format(r, "one of trek's own names is an alias");
        else
            status = trek_state_add_alias(r->model, r->file->aliases[k].name, r->file->entries[r->file->aliases[k].entry].name);
    return status;
}

/* --- loading: whether it fits -------------------------------------------------------------------- */

static trek_status check_loader(const restoring *r)
{
    if (!r->loader)
        return TREK_OK;
    if (!r->has_loader)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "%s: it was saved without a loader: its position in the data is unknown; load it without a loader",
                         r->path);
    const trek_batch_plan *plan = trek_loader_plan(r->loader);
    if (r->place[LOADER_SAMPLES] != plan->samples || r->place[LOADER_BATCH_SIZE] != plan->batch_size)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "%s: the loader gave %" PRId64 " samples in batches of %" PRId64 "; this one gives %" PRId64
                         " in batches of %" PRId64 ", and must give the same",
                         r->path, r->place[LOADER_SAMPLES], r->place[LOADER_BATCH_SIZE], plan->samples, plan->batch_size);
    if (r->place[LOADER_EPOCH] < 0 || r->place[LOADER_BATCH] < 0 || r->place[LOADER_BATCH] > plan->batches)
        return fail_format(r, "the loader's position is outside its epochs");
    return TREK_OK;
}

static trek_status check_optimizer(const restoring *r)
{
    trek_optimizer *optimizer = trek_graph_optimizer(r->graph);
    if (r->has_optimizer && !optimizer)
        return trek_fail(
            TREK_ERR_STATE,
            "%s: it holds the state of an optimizer, but the graph has no optimizer; call trek_graph_set_optimizer first",
            r->path);
    if (!optimizer)
        return r->n_entries == 0 ? TREK_OK : fail_format(r, "an optimizer's state without learning rates");
    if (!r->has_optimizer)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "%s: it was saved without an optimizer, but the graph has one; load it before trek_graph_set_optimizer",
                         r->path);
    if (r->n_rates != optimizer->n_groups)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: the optimizer has %d groups, the graph's %d; they must be equal", r->path,
                         r->n_rates, optimizer->n_groups);
    return TREK_OK;
}

/* Returns the bytes of an entry that ranks read in parts, or 0. */
static int64_t bytes_in_parts(const trek_optimizer_entry *entry)
{
    return entry->tensor ? 0 : trek_shape_numel(trek_state_entry_shape(entry->stored)) *
        (int64_t)trek_dtype_size(trek_state_entry_dtype(entry->stored));
}

/* Compares the checksums of what ranks read in parts. Each process does so for about as many bytes. */
static trek_status check_sums(const restoring *r)
{
    int processes = trek_graph_job(r->graph)->processes, process = trek_graph_job(r->graph)->process;
    int64_t all = 0, before = 0;
    trek_status status = TREK_OK;
    for (int k = 0; k < r->n_entries; k++)
        all += bytes_in_parts(&r->entries[k]);
    for (int k = 0; k < r->n_entries && status == TREK_OK; k++) {
        int64_t bytes = bytes_in_parts(&r->entries[k]);
        if (bytes > 0 && (int)((double)before / (double)all * processes) == process)
            status = trek_state_entry_check(r->entries[k].stored);
        before += bytes;
    }
    return status;
}

/* Does everything that can fail. Nothing changes before it has succeeded. */
static trek_status prepare(restoring *r)
{
    trek_state_report report = { 0 };
    trek_status status = read_header(r);
    if (status == TREK_OK)
        status = divide(r);
    if (status == TREK_OK)
        status = check_loader(r);
    if (status == TREK_OK)
        status = check_optimizer(r);
    const trek_state_load_opts how = { .allow_missing = r->plain && r->s && r->s->team->divides_params }; /* without_kept */
    if (status == TREK_OK && !(r->loading = trek_state_loading_new(r->model, trek_graph_module(r->graph), &how, &report)))
        status = trek_error_status();
    r->optimizer = (trek_ranks_loading){ .team = r->s ? r->s->team : NULL, .optimizer = trek_graph_optimizer(r->graph),
                                         .state = { r->entries, r->n_entries, r->n_rates, r->rates } };
    if (status == TREK_OK)
        status = trek_ranks_load_begin(&r->optimizer);
    return status == TREK_OK ? check_sums(r) : status;
}

/* --- loading: what changes -------------------------------------------------------------------------- */

static void take_counts(const restoring *r)
{
    r->graph->settings.steps = r->run[RUN_STEPS];
    if (r->s) {
        trek_ranks_reset(r->s);
        trek_step_merged(r->s);
    }
    trek_seed((uint64_t)r->run[RUN_SEED]);
    trek_rank_here.rng_step = (uint64_t)r->run[RUN_RNG_STEP];
    trek_rank_here.rng_draw = (uint64_t)r->run[RUN_RNG_DRAW];
}

/* Goes on with the plan of the checkpoint, unless the program has set a plan, which it then keeps following. */
static trek_status take_plan(const restoring *r)
{
    bool replays = trek_workload_replays(r->s->pace.workload);
    const trek_plan *plan = replays ? trek_workload_plan(r->s->pace.workload) : r->plan;
    trek_status status = plan ? trek_workload_take_plan(r->s->pace.workload, plan, replays, r->run[RUN_STEPS]) : TREK_OK;
    if (plan && status == TREK_OK)
        trek_division_publish(r->s);
    return status;
}

/* First does what needs memory or threads. */
static trek_status write_values(restoring *r)
{
    trek_grad_scaler *scaler = trek_graph_scaler(r->graph);
    if (r->s && r->s->pace.workload)
        TRY(take_plan(r));
    if (r->loader)
        TRY(trek_loader_seek(r->loader, r->place[LOADER_EPOCH], r->place[LOADER_BATCH]));
    if (scaler && r->has_scaler)
        TRY(trek_grad_scaler_load(scaler, &r->scaler));
    return trek_state_loading_commit(r->loading);
}

static trek_status commit(restoring *r)
{
    trek_status status = write_values(r);
    if (r->s && r->s->team->lent) /* a process that has failed keeps nobody waiting */
        status = trek_replica_agree(r->s->job.comm, status, "checkpoint_load");
    TRY(status);
    TRY(trek_graph_parameters_changed(r->graph));
    TRY(trek_ranks_load_commit(&r->optimizer));
    TRY(trek_graph_zero_grad(r->graph));
    TRY(trek_graph_reset_state(r->graph));
    if (r->s && r->s->grain_chosen && r->grain > 0)
        trek_grains_set_size(r->s, r->grain);
    take_counts(r);
    return TREK_OK;
}

static void end(restoring *r)
{
    trek_ranks_load_end(&r->optimizer);
    trek_free(r->rates);
    trek_free(r->entries);
    trek_plan_free(&r->plan);
    trek_state_loading_free(&r->loading);
    trek_state_free(&r->model);
    trek_state_free(&r->file);
}

trek_status trek_checkpoint_load(trek_graph *graph, trek_loader *loader, const char *path)
{
    bool found;
    return trek_checkpoint_load_more(graph, loader, path, NULL, 0, &found, NULL);
}

trek_status trek_checkpoint_load_more(trek_graph *graph, trek_loader *loader, const char *path, double *more, int n, bool *found,
                                      trek_state **read)
{
    *found = false;
    if (!graph || !path)
        return trek_fail_missing("checkpoint_load", graph ? "path" : "graph");
    trek_status status = trek_error_status();
    if (!trek_graph_stepper(graph))
        return trek_error_status();
    restoring r = { .graph = graph, .s = trek_graph_ranks(graph), .loader = trek_checkpoint_loader(graph, loader), .path = path };
    trek_comm *comm = trek_graph_job(graph)->comm;
    trek_comm_say(comm, "load");
    if (status == TREK_OK && !(r.file = trek_state_read_with(path, &(trek_state_read_opts){ .lazy = true })))
        status = trek_error_status();
    if (status == TREK_OK)
        status = prepare(&r);
    if (status == TREK_OK && n > 0)
        status = read_numbers(&r, TREK_CHECKPOINT_MORE, TREK_F64, n, more, found);
    status = trek_agree(comm, status, "checkpoint_load", NULL);
    if (status == TREK_OK)
        status = trek_job_products_resume(comm, trek_state_metadata(r.file, TREK_CHECKPOINT_PRODUCTS));
    if (status == TREK_OK)
        status = commit(&r);
    if (read && status == TREK_OK) {
        *read = r.file;
        r.file = NULL;
    }
    end(&r);
    trek_comm_say(comm, NULL);
    return status;
}

trek_status trek_checkpoint_read_plain(trek_graph *graph, int file, double *more, int n)
{
    char path[64];
    bool found = true;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    restoring r = { .graph = graph, .s = trek_graph_ranks(graph), .path = path, .plain = true };
    trek_status status = TREK_OK;
    if (!trek_graph_stepper(graph) || !(r.file = trek_state_read_with(path, &(trek_state_read_opts){ .map = true })))
        status = trek_error_status();
    if (status == TREK_OK)
        status = prepare(&r);
    if (status == TREK_OK && n > 0)
        status = read_numbers(&r, TREK_CHECKPOINT_MORE, TREK_F64, n, more, &found);
    if (status == TREK_OK && !found)
        status = fail_format(&r, "the numbers of the run are missing");
    if (status == TREK_OK)
        status = commit(&r);
    end(&r);
    return status;
}
