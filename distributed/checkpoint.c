/* SPDX-License-Identifier: Apache-2.0 */
/* Saving checkpoints: the first process of a job writes a file, or each writes a file of a set. In both cases the optimizer's
 * state, where it is divided, is read from the ranks and processes one tensor at a time. */
#include "distributed/checkpoint_internal.h"

#include <inttypes.h>
#include <string.h>

#include "distributed/checkpoint_set.h"
#include "distributed/job/agreement.h"
#include "distributed/pass/survivors.h"
#include "distributed/reduce/twice.h"
#include "distributed/stepper.h"
#include "nn/pointer_map.h"
#include "tensor/memory_account.h"
#include "tensor/try_internal.h"

typedef struct saving {
    trek_graph *graph;
    trek_step *s;            /* NULL: one device */
    const trek_job *job;
    trek_loader *loader;
    const char *path;
    bool set;
    trek_state_stream *stream; /* NULL: no optimizer */
    trek_state *state;       /* everything; NULL in processes that do not write */
    bool takes_part;         /* this process writes, or has pieces that others need */
    int *writer;             /* [entries] of a set: the process that writes each */
    int64_t number;          /* of a set: of this save */
} saving;

static trek_comm *comm_of(const saving *x) { return x->job->comm; }
static int process_of(const saving *x) { return x->job->process; }
static int processes_of(const saving *x) { return x->job->processes; }

/* Returns whether all processes have the same parameters: not if they are averaged from time to time, and not to the last bit if
 * some are updated by CPUs and others by GPUs. */
static bool are_equal(const saving *x) { return !x->s || (!trek_step_averages(x->s) && !trek_step_job(x->s)->mixed); }
static bool is_divided(const saving *x) { return x->s && trek_step_team(x->s)->sharers > 1; }

/* --- a set ------------------------------------------------------------------------------- */

/* Marks the buffers of the model, which may differ: those of the first process are saved. */
static trek_status mark_buffers(const saving *x, trek_pointer_map *buffers)
{
    const trek_replica *model = x->s ? trek_step_team(x->s)->replicas[0].model : NULL;
    trek_status status = TREK_OK;
    bool added;
    for (int k = 0; model && k < model->n_buffers && status == TREK_OK; k++)
        status = trek_pointer_map_add(buffers, trek_var_data(model->buffers[k]), k, &added);
    return status;
}

/* Notes which process has how much of a tensor. Only the first one writes what belongs to no parameter. */
static void note_kept(const saving *x, const trek_state_entry *entry, const trek_pointer_map *buffers, int64_t bytes,
                      int64_t *kept)
{
    bool own = strncmp(entry->name, TREK_STATE_OWN, strlen(TREK_STATE_OWN)) == 0;
    bool equal = entry->source || (!own && trek_pointer_map_get(buffers, entry->tensor) < 0);
    for (int p = 0; p < processes_of(x); p++)
        if (p > 0 && !(equal && are_equal(x)))
            kept[p] = -1;
        else
            kept[p] = entry->source ? trek_state_stream_kept(x->stream, entry->item, p) : bytes;
}

static trek_status divide(saving *x)
{
    int n = x->state->n_entries, processes = processes_of(x);
    trek_pointer_map buffers = { 0 };
    int64_t *bytes = trek_calloc((size_t)n + 1, sizeof *bytes);
    int64_t *kept = trek_calloc((size_t)n * (size_t)processes + 1, sizeof *kept);
    x->writer = trek_calloc((size_t)n + 1, sizeof *x->writer);
    trek_status status = bytes && kept && x->writer ? mark_buffers(x, &buffers) : TREK_ERR_MEMORY;
    for (int k = 0; k < n && status == TREK_OK; k++) {
        const trek_state_entry *entry = &x->state->entries[k];
        bytes[k] = trek_shape_numel(trek_state_entry_shape(entry)) * (int64_t)trek_dtype_size(trek_state_entry_dtype(entry));
        note_kept(x, entry, &buffers, bytes[k], kept + (int64_t)k * processes);
    }
    if (status == TREK_OK)
        status = trek_checkpoint_divide(&(trek_checkpoint_shares){ n, processes, bytes, kept }, x->writer);
    trek_pointer_map_clear(&buffers);
    trek_free(bytes);
    trek_free(kept);
    return status;
}

/* --- preparing ------------------------------------------------------------------------------ */

/* Decides who reads each tensor of the optimizer's state. */
static trek_status plan_stream(const saving *x)
{
    int *reader = trek_calloc((size_t)trek_state_stream_count(x->stream) + 1, sizeof *reader);
    if (!reader)
        return TREK_ERR_MEMORY;
    for (int k = 0; x->writer && k < x->state->n_entries; k++)
        if (x->state->entries[k].source)
            reader[x->state->entries[k].item] = x->writer[k];
    trek_status status = trek_state_stream_plan(x->stream, reader);
    trek_free(reader);
    return status;
}

static trek_status prepare(saving *x)
{
    trek_optimizer *optimizer = trek_graph_optimizer(x->graph);
    x->takes_part = process_of(x) == 0 || is_divided(x) || (x->set && are_equal(x));
    if (!x->takes_part)
        return TREK_OK;
    if (optimizer && !(x->stream = trek_state_stream_new(x->s, optimizer)))
        return trek_error_status();
    if (x->set || process_of(x) == 0)
        x->state = trek_checkpoint_collect(x->graph, x->loader, &(trek_checkpoint_content){ .stream = x->stream });
    if (!x->state && (x->set || process_of(x) == 0))
        return trek_error_status();
    if (x->set)
        TRY(divide(x));
    return x->stream ? plan_stream(x) : TREK_OK;
}

/* Writes what all processes must have in common: the kind of path, and what they divide. */
static void describe(const saving *x, trek_text *text)
{
    uint64_t key = 0;
    trek_text_format(text, "path\t%s\n", x->set ? "a set of files" : "a file");
    int n = x->set && x->state ? x->state->n_entries : 0, items = x->stream ? trek_state_stream_count(x->stream) : 0;
    if (!is_divided(x) && !(x->set && are_equal(x)))
        return;
    for (int k = 0; k < items; k++) {
        const trek_optimizer_item *item = trek_state_stream_item(x->stream, k);
        for (const char *c = item->name; *c; c++)
            key = trek_mix(key, (unsigned char)*c);
        key = trek_mix(key, (uint64_t)trek_shape_numel(item->shape) * TREK_DTYPE_COUNT + (uint64_t)item->dtype);
    }
    for (int k = 0; k < n; k++) {
        for (const char *c = x->state->entries[k].name; *c; c++)
            key = trek_mix(key, (unsigned char)*c);
        key = trek_mix(key, (uint64_t)x->writer[k]);
    }
    trek_text_format(text, "the state\t%d tensors of the optimizer, %d in all, sum %016" PRIx64 "\n", items, n, key);
}

/* All processes know after it that all can write, and the number of the set. */
static trek_status agree(saving *x, trek_status status)
{
    trek_comm *comm = comm_of(x);
    trek_text text = { 0 };
    int64_t numbers[TREK_MAX_RANKS] = { x->set && process_of(x) == 0 ? trek_checkpoint_set_next(x->path) : 0 };
    if (comm && status == TREK_OK)
        describe(x, &text);
    if (comm)
        status = trek_agree(comm, text.failed ? trek_error_status() : status, "checkpoint_save",
                            status == TREK_OK ? &text : NULL);
    trek_text_clear(&text);
    x->number = numbers[0];
    if (comm && x->set && status == TREK_OK) {
        status = trek_comm_gather_bytes(comm, &x->number, sizeof x->number, numbers);
        x->number = numbers[0];
    }
    return status;
}

/* --- writing -------------------------------------------------------------------------------- */

static trek_status write_own(const saving *x)
{
    if (!x->state)
        return TREK_OK;
    if (x->set)
        return trek_checkpoint_set_write(x->state, x->path, x->number, x->writer, process_of(x));
    return trek_state_write(x->state, x->path);
}

/* Removes the files of a save that has failed: the first process those of all, so that none is left when it returns, and each its
 * own, in case that the first one has died. */
static void remove_files(const saving *x, bool own)
{
    int n = x->state->n_entries;
    if (own)
        trek_checkpoint_set_remove(x->path, x->number, x->writer, n, process_of(x));
    for (int p = 0; p < processes_of(x) && process_of(x) == 0; p++)
        trek_checkpoint_set_remove(x->path, x->number, x->writer, n, p);
}

/* Puts the index in its place once all files are there, or removes them. */
static trek_status finish_set(const saving *x, trek_status status)
{
    bool replaced = false;
    if (status != TREK_OK) {
        if (x->state)
            remove_files(x, true);
        return status;
    }
    if (process_of(x) == 0)
        status = trek_checkpoint_set_finish(x->state, x->path, x->number, x->writer, &replaced);
    if (status != TREK_OK && !replaced)
        remove_files(x, false);
    else if (status == TREK_OK && process_of(x) == 0)
        trek_checkpoint_set_tidy(x->path, x->number);
    return trek_replica_agree(comm_of(x), status, "checkpoint_save");
}

/* Every process of the job comes here. */
static trek_status save(saving *x)
{
    bool works = trek_memory_account_work(false); /* what is collected is no part of a rank's budget */
    trek_status status = trek_error_status();
    if (status == TREK_OK)
        status = trek_twice_check(x->s, "checkpoint_save");
    if (status == TREK_OK)
        status = prepare(x);
    status = agree(x, status);
    if (status == TREK_OK) {
        status = write_own(x);
        trek_status ended = x->stream ? trek_state_stream_end(x->stream) : TREK_OK;
        status = trek_replica_agree(comm_of(x), status != TREK_OK ? status : ended, "checkpoint_save");
        if (x->set)
            status = finish_set(x, status);
    }
    trek_free(x->writer);
    trek_state_free(&x->state);
    trek_state_stream_free(&x->stream);
    trek_memory_account_work(works);
    return status;
}

static trek_status save_together(trek_graph *graph, trek_step *s, trek_loader *loader, const char *path)
{
    saving x = { .graph = graph, .s = s, .job = trek_graph_job(graph), .loader = loader, .path = path,
                 .set = trek_checkpoint_is_set(path) };
    trek_comm *comm = comm_of(&x);
    trek_comm_say(comm, "save");
    trek_status status = save(&x);
    if (status == TREK_OK)
        status = trek_survival_commit(x.job);
    trek_comm_say(comm, NULL);
    return status;
}

trek_status trek_checkpoint_save(trek_graph *graph, trek_loader *loader, const char *path)
{
    if (!graph || !path)
        return trek_fail_missing("checkpoint_save", graph ? "path" : "graph");
    trek_step *s = trek_graph_ranks(graph);
    trek_status status;
    do
        status = save_together(graph, s, trek_checkpoint_loader(graph, loader), path);
    while (status != TREK_OK && s && trek_survival_go_on(trek_step_job(s), &status)); /* another process is the first one then */
    return status == TREK_OK && s ? trek_survivors_after_commit(s) : status;
}
