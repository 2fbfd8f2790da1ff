/* SPDX-License-Identifier: Apache-2.0 */
/* A pass over ranks: its memory, what its files share, and its node on the caller's tape. */
#include "distributed/pass/split_pass.h"

#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/team/rank_sums.h"
#include "tensor/memory_internal.h"

/* --- life ----------------------------------------------------------------------- */

/* Gives out parts of a block one after the other. With memory NULL it only counts the bytes that the block will need. */
typedef struct carver {
    char *memory;
    size_t used;
} carver;

static void *carve(carver *c, int count, size_t size)
{
    void *at = c->memory ? c->memory + c->used : NULL;
    c->used += ((size_t)count * size + 15) & ~(size_t)15;
    return at;
}

static void carve_side(trek_split_side *of, carver *c, const trek_split_pass *p)
{
    of->leaves = carve(c, p->n_sources, sizeof(trek_var *));
    of->outputs = carve(c, p->n_outputs, sizeof(trek_var *));
    of->of_leaf = carve(c, p->n_sources, sizeof(trek_split_span));
    of->of_output = carve(c, p->n_outputs, sizeof(trek_split_span));
    of->roots = carve(c, p->n_outputs, sizeof(trek_var *));
    of->seeds = carve(c, p->n_outputs, sizeof(trek_var *));
    of->watched = carve(c, p->n_sources + p->n_params, sizeof(trek_var *));
}

/* Sets the arrays of p, which has the counts. */
static void carve_pass(trek_split_pass *p, carver *c)
{
    trek_split_side none;
    carve(c, 1, sizeof *p);
    p->of = carve(c, p->local_ranks, sizeof *p->of);
    p->sources = carve(c, p->n_sources, sizeof *p->sources);
    p->leaf = carve(c, p->n_sources, sizeof *p->leaf);
    p->output = carve(c, p->n_outputs, sizeof *p->output);
    p->recorded = carve(c, p->n_outputs, sizeof *p->recorded);
    p->reached = carve(c, p->n_params, sizeof *p->reached);
    p->joined = carve(c, p->n_outputs, sizeof *p->joined);
    for (int r = 0; r < p->local_ranks; r++)
        carve_side(p->of ? &p->of[r] : &none, c, p);
}

trek_split_pass *trek_split_pass_new(trek_ranks *ranks, int n_sources, int n_outputs, trek_replica *const *replicas)
{
    trek_split_pass like = { .refs = 1, .local_ranks = trek_ranks_world_size(ranks), .n_sources = n_sources,
                             .n_outputs = n_outputs, .n_params = replicas[0]->n_params };
    carver measure = { NULL, 0 };
    carve_pass(&like, &measure);
    carver fill = { trek_calloc(1, measure.used), 0 };
    if (!fill.memory)
        return NULL;
    carve_pass(&like, &fill);
    trek_split_pass *p = (trek_split_pass *)(void *)fill.memory;
    *p = like;
    p->ranks = trek_ranks_retain(ranks);
    for (int r = 0; r < p->local_ranks; r++)
        p->of[r].replica = trek_replica_retain(replicas[r]);
    return p;
}

void trek_split_pass_release(void *pass)
{
    trek_split_pass *p = pass;
    if (--p->refs > 0)
        return;
    for (int r = 0; r < p->local_ranks; r++) {
        for (int k = 0; k < p->n_sources; k++)
            trek_var_release(p->of[r].leaves[k]);
        for (int k = 0; k < p->n_outputs; k++)
            trek_var_release(p->of[r].outputs[k]);
        trek_replica_release(p->of[r].replica);
    }
    for (int k = 0; k < p->n_outputs; k++)
        trek_tensor_release(p->joined[k]);
    for (int k = 0; k < p->n_sources; k++)
        trek_var_release(p->sources[k]);
    trek_stopwatches_release(p->watches);
    trek_var_release(p->tape_leaf);
    trek_ranks *ranks = p->ranks;
    trek_free(p);
    trek_ranks_free(&ranks);
}

/* --- rows, runs ------------------------------------------------------------------- */

/* Returns rows [first, first + rows) of x in place, as a new reference. */
static trek_tensor *view_rows(trek_tensor *x, int64_t first, int64_t rows)
{
    int64_t sizes[TREK_MAX_DIMS];
    memcpy(sizes, x->sizes, sizeof sizes);
    sizes[0] = rows;
    char *data = x->data + first * x->strides[0] * (int64_t)trek_dtype_size((trek_dtype)x->dtype);
    return trek_tensor_make_view(x, data, x->ndim, sizes, x->strides);
}

trek_tensor *trek_split_rows(trek_tensor *x, int64_t first, int64_t rows, trek_device device)
{
    trek_tensor *view = view_rows(x, first, rows);
    trek_tensor *there = view ? trek_tensor_to(view, device) : NULL;
    trek_tensor_release(view);
    return there;
}

trek_status trek_split_run(const trek_split_pass *p, trek_rank_fn fn, void *arg, bool goes_back)
{
    bool runs[TREK_MAX_RANKS];
    for (int r = 0; r < p->local_ranks; r++)
        runs[r] = p->of[r].runs;
    trek_rank_sums *sums = trek_ranks_sums(p->ranks);
    if (trek_ranks_rank_here(p->ranks) < 0) { /* otherwise they are in use, and the run is refused */
        trek_rank_sums_set_deadline(sums, trek_ranks_comm(p->ranks, 0)->deadline_ns);
        trek_rank_sums_begin(sums, runs, p->interprocess);
        if (goes_back)
            trek_rank_sums_goes_back(sums);
    }
    return trek_ranks_call(p->ranks, fn, arg);
}

trek_status trek_split_put_rows(trek_tensor *whole, int64_t first, trek_tensor *part)
{
    size_t size = trek_dtype_size((trek_dtype)part->dtype);
    if (part->contiguous && whole->contiguous && part->dtype == whole->dtype && trek_tensor_data(part) &&
        trek_tensor_data(whole)) {
        memcpy(whole->data + first * whole->strides[0] * (int64_t)size, part->data, (size_t)part->numel * size);
        return TREK_OK;
    }
    trek_tensor *view = view_rows(whole, first, part->sizes[0]);
    trek_status status = view ? trek_tensor_copy_from(view, part) : trek_error_status();
    trek_tensor_release(view);
    return status;
}

/* --- the node ---------------------------------------------------------------------- */

/* The ranks have already run: their joined outputs become the node's. */
trek_status trek_split_outputs(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                               int n_outputs)
{
    (void)inputs, (void)n_inputs, (void)n_outputs;
    trek_split_pass *p = trek_function_data(context);
    int place = 0;
    for (int k = 0; k < p->n_outputs; k++) {
        if (!p->recorded[k])
            continue;
        outputs[place] = trek_var_from(p->joined[k]);
        p->joined[k] = NULL;
        if (!outputs[place++])
            return trek_error_status();
    }
    return TREK_OK;
}

/* Writes the node's results to the places of the recorded outputs, which are marked. */
static void place_results(trek_var *const *results, const bool *recorded, int n_outputs, trek_var **outputs)
{
    for (int k = 0, place = 0; k < n_outputs; k++)
        if (recorded[k])
            outputs[k] = results[place++];
}

trek_status trek_split_record(trek_split_pass *p, trek_var **outputs)
{
    int n = 0, n_recorded = 0, n_outputs = p->n_outputs;
    trek_var **list = trek_calloc((size_t)p->n_sources + 1 + (size_t)n_outputs, sizeof *list);
    bool *recorded = list ? trek_calloc((size_t)n_outputs, sizeof *recorded) : NULL; /* the call may free the pass */
    if (!recorded) {
        trek_free(list);
        trek_split_pass_release(p);
        return trek_error_status();
    }
    for (int k = 0; k < p->n_sources; k++)
        if (p->sources[k])
            list[n++] = p->sources[k];
    list[n++] = p->tape_leaf;
    for (int k = 0; k < n_outputs; k++)
        n_recorded += recorded[k] = p->recorded[k];
    trek_status status = trek_function_apply(p->function, p, list, n, list + n, n_recorded);
    if (status == TREK_OK)
        place_results(list + n, recorded, n_outputs, outputs);
    trek_free(list);
    trek_free(recorded);
    return status;
}
