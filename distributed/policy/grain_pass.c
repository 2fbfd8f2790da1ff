/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/policy/grain_together.h"

#include "autograd/ops.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/policy/grain_capture.h"
#include "distributed/pass/shares.h"
#include "distributed/team/observations.h"
#include "distributed/team/step.h"
#include "graph/observe_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

/* --- a grain ------------------------------------------------------------------------------ */

/* parts: of n grains that run together, whose samples are those of `grain`; NULL: it is a grain by itself. */
static trek_status run_grain(trek_grain_call *c, int rank, int64_t number, const trek_batch *grain, const trek_batch *parts,
                             int64_t n)
{
    trek_step *s = c->s;
    trek_stopwatch *watch = &s->team->watches->of[rank];
    int64_t start = trek_trace_enter("grain");
    bool timed = c->pass->backward && !c->audited;
    trek_grain_set_place(c, grain, number);
    trek_status status = timed ? trek_stopwatch_start(watch, trek_ranks_device(s->team->ranks, rank)) : TREK_OK;
    if (status == TREK_OK)
        status = parts ? trek_grains_train_together(c, rank, number, grain, parts, (int)n)
            : trek_grain_is_captured(c, number, grain) ? trek_grain_train_captured(c, rank, number, grain)
                                                       : trek_grain_train(c, rank, number, grain);
    if (status == TREK_OK && timed)
        status = trek_slowed(s, rank, watch, true);
    if (status == TREK_OK && timed)
        status = trek_stopwatch_stop(watch, grain->n);
    if (trek_rank_here.rng_draw > c->rng_draw[rank])
        c->rng_draw[rank] = trek_rank_here.rng_draw;
    c->rows[rank] += grain->n;
    trek_grain_set_place(c, NULL, 0);
    trek_trace_end("grain", start, number);
    return status;
}

/* Gives the fields of a grain on a GPU addresses like those of samples that are read for it. The grain may lie anywhere in the
 * batch that a process has read, and libraries choose their kernels by the alignment. */
static trek_status align(trek_batch *grain)
{
    for (int k = 0; k < grain->dataset->n_fields; k++) {
        trek_tensor *x = grain->vars[k]->data;
        if (x->device.type == TREK_CPU || (uintptr_t)x->data % 256 == 0)
            continue;
        trek_tensor *copy = trek_tensor_clone(x);
        trek_var *var = copy ? trek_var_new(copy, false) : NULL;
        trek_tensor_release(copy);
        if (!var)
            return trek_error_status();
        trek_var_release(grain->vars[k]);
        grain->vars[k] = var;
    }
    return TREK_OK;
}

/* Finds the samples of a grain in the batch. Returns whether the process has read them with its part. */
static bool find_samples(const trek_grain_call *c, int64_t number, int64_t *first, int64_t *rows)
{
    int64_t size = c->s->grains->size, left = c->pass->rows - number * size;
    const trek_batch *have = c->batch;
    *first = number * size;
    *rows = size < left ? size : left;
    return have && *first >= have->first && *first + *rows <= have->first + have->n;
}

/* Has the samples of the grain after the present one read meanwhile, if they belong to another process's part. */
static trek_status expect_next(trek_grain_call *c, int rank)
{
    const trek_step_pass *pass = c->pass;
    int64_t number = c->coming && pass->loader ? c->coming(c, rank) : -1, first, rows;
    if (number < 0 || find_samples(c, number, &first, &rows))
        return TREK_OK;
    trek_reader *reader = trek_ranks_reader(c->s, rank, pass->loader);
    return reader ? trek_reader_expect_rows(reader, pass->epoch, pass->batch, first, rows) : trek_error_status();
}

/* Runs a grain with the samples that the process has, or reads them. */
static trek_status read_and_run(trek_grain_call *c, int rank, int64_t number)
{
    const trek_step_pass *pass = c->pass;
    int64_t first, rows;
    trek_status status;
    if (find_samples(c, number, &first, &rows)) {
        trek_var *vars[64];
        trek_batch grain;
        status = trek_batch_part(c->batch, first - c->batch->first, rows, trek_ranks_device(c->s->team->ranks, rank), vars,
                                 &grain);
        if (status != TREK_OK)
            return status;
        status = trek_grain_is_captured(c, number, &grain) ? TREK_OK : align(&grain); /* its samples are copied anyway */
        if (status == TREK_OK)
            status = expect_next(c, rank);
        if (status == TREK_OK)
            status = run_grain(c, rank, number, &grain, NULL, 1);
        trek_batch_part_release(&grain);
        return status;
    }
    if (!pass->loader)
        return trek_fail(TREK_ERR_STATE, "graph_step: the loader has ended, so the samples of grain %lld cannot be read again",
                         (long long)number);
    trek_reader *reader = trek_ranks_reader(c->s, rank, pass->loader);
    trek_batch *grain = reader ? trek_reader_rows(reader, pass->epoch, pass->batch, first, rows) : NULL;
    if (!grain)
        return trek_error_status();
    status = expect_next(c, rank);
    if (status == TREK_OK)
        status = run_grain(c, rank, number, grain, NULL, 1);
    trek_reader_end_batch(reader);
    return status;
}

/* Runs n grains together, whose samples the process has. */
static trek_status run_together(trek_grain_call *c, int rank, int64_t number, int64_t n)
{
    trek_device device = trek_ranks_device(c->s->team->ranks, rank);
    trek_var *vars[TREK_BINNED_TERMS + 1][64];
    trek_batch parts[TREK_BINNED_TERMS], all;
    int64_t first, rows, made = 0;
    find_samples(c, number, &first, &rows);
    trek_status status = trek_batch_part(c->batch, first - c->batch->first, n * rows, device, vars[n], &all);
    if (status != TREK_OK)
        return status;
    for (; made < n && status == TREK_OK; made += status == TREK_OK)
        status = trek_batch_part(c->batch, first + made * rows - c->batch->first, rows, device, vars[made], &parts[made]);
    if (status == TREK_OK)
        status = expect_next(c, rank);
    if (status == TREK_OK)
        status = run_grain(c, rank, number, &all, parts, n);
    while (made > 0)
        trek_batch_part_release(&parts[--made]);
    trek_batch_part_release(&all);
    return status;
}

/* Returns how many of the grains from this one on run together, 0 if it has to run by itself. */
static int64_t together_from(const trek_grain_call *c, int rank, int64_t number, int64_t end)
{
    int64_t most = trek_grains_most_together(c, rank), n = 0, first, rows;
    while (n < most && number + n < end && find_samples(c, number + n, &first, &rows) && rows == c->s->grains->size &&
           !trek_grain_shows(c, number + n))
        n++;
    return n;
}

/* --- a rank --------------------------------------------------------------------------------- */

/* Runs the grains that a rank has taken. */
static trek_status run_taken(trek_grain_call *c, int rank, int64_t number, int64_t n)
{
    trek_status status = TREK_OK;
    for (int64_t end = number + n, some; number < end && status == TREK_OK; number += some ? some : 1) {
        some = together_from(c, rank, number, end);
        status = some ? run_together(c, rank, number, some) : read_and_run(c, rank, number);
    }
    return status;
}

static trek_status run_grains(trek_grain_call *c, int rank)
{
    int64_t number, n = 0;
    trek_grain_sums *sums = &c->s->grains->sums[rank];
    trek_arena *arena = c->s->team->replicas[rank].arena;
    trek_status status = TREK_OK;
    trek_grain_sums_open(sums, arena);
    while (status == TREK_OK && !atomic_load_explicit(&c->failed, memory_order_relaxed) &&
           (number = c->next(c, rank, trek_grains_most_together(c, rank), &n)) >= 0) {
        status = run_taken(c, rank, number, n);
        trek_job_say(&c->s->job, c->pass->backward ? "forward and backward" : "forward", false);
    }
    trek_grain_sums_close(sums, arena, trek_grain_sums_alone(c->s));
    status = status == TREK_OK ? trek_error_status() : status;
    if (status != TREK_OK)
        atomic_store_explicit(&c->failed, true, memory_order_relaxed);
    return status;
}

/* Runs a rank's grains in a scope, with the caller's modes. */
static trek_status run_rank(int rank, void *arg)
{
    trek_grain_call *c = arg;
    trek_graph_clear_traces(c->s->team->replicas[rank].graph);
    trek_grad_mode mode = trek_grad_mode_here;
    trek_grad_mode_here.no_grad_depth = c->pass->no_grad_depth;
    trek_grad_mode_here.offload = c->pass->offload;
    trek_rank_here.rng_step = c->pass->rng_step;
    trek_scope scope = trek_scope_begin();
    trek_status status = scope.depth ? run_grains(c, rank) : trek_error_status();
    trek_scope_end(scope);
    trek_grad_mode_here = mode;
    return status;
}

/* --- the caller's side ------------------------------------------------------------------------ */

trek_status trek_grain_call_begin(trek_grain_call *c)
{
    size_t n = (size_t)trek_grains_count(c->s->grains, c->pass->rows);
    c->sums = trek_calloc(n, sizeof *c->sums);
    c->recorded = trek_calloc(n, sizeof *c->recorded);
    c->kept = c->s->team->on_host ? NULL : trek_calloc(n, sizeof *c->kept);
    for (int r = 0; r < c->s->team->local_ranks; r++)
        c->rng_draw[r] = c->pass->rng_draw;
    return c->sums && c->recorded && (c->kept || c->s->team->on_host) ? TREK_OK : trek_status_or(TREK_ERR_MEMORY);
}

/* Brings the losses of grains that GPUs have run to the host. */
static trek_status fetch_losses(trek_grain_call *c)
{
    int64_t n = trek_grains_count(c->s->grains, c->pass->rows);
    for (int64_t k = 0; k < n; k++) {
        trek_pass_sum *sum = &c->sums[k];
        double weight = sum->weight_on_device ? trek_tensor_item(sum->weight_on_device) : 1;
        sum->weight += sum->weight_on_device ? weight : 0;
        if (sum->on_device && weight != 0)
            sum->loss += trek_tensor_item(sum->on_device);
        trek_tensor_release(sum->on_device);
        trek_tensor_release(sum->weight_on_device);
        sum->on_device = sum->weight_on_device = NULL;
    }
    return trek_error_status();
}

/* And what belongs to their records, those from `first` on. The ranks' work on GPUs may still go on. */
static trek_status fetch(trek_grain_call *c, int64_t first)
{
    trek_grains *g = c->s->grains;
    trek_status status = fetch_losses(c);
    for (int64_t k = first; k < g->n_records && status == TREK_OK; k++) {
        trek_grain_record *record = trek_grains_record(g, k);
        record->loss = c->sums[record->number].loss;
        record->weight = c->sums[record->number].weight;
        if (c->kept[record->number])
            status = trek_grains_fetch_buffers(g, c->kept[record->number], (char *)record);
        trek_tensor_release(c->kept[record->number]);
        c->kept[record->number] = NULL;
    }
    return status;
}

trek_status trek_grain_call_run(trek_grain_call *c)
{
    trek_step *s = c->s;
    trek_text before = trek_observations_take(s->team->graph);
    int64_t first = s->grains->n_records;
    uint64_t rng_step = trek_rank_here.rng_step; /* that of a pass which is made again is another one where graphs take turns */
    trek_status status = trek_ranks_call(s->team->ranks, run_rank, c), given = TREK_OK;
    trek_rank_here.rng_step = rng_step;
    if (status == TREK_OK && !s->team->on_host)
        status = fetch(c, first);
    if (before.failed)
        given = TREK_ERR_MEMORY;
    else if (before.length > 0)
        given = trek_observations_unpack(s->team->graph, before.data, (int64_t)before.length);
    trek_text_clear(&before);
    for (int r = 0; r < s->team->local_ranks && c->pass->training; r++)
        trek_grains_put_buffers(s->grains, s->team->replicas[r].model, s->grains->first_buffers);
    return status == TREK_OK ? given : status;
}

trek_status trek_grain_call_give_recorded(trek_grain_call *c)
{
    int64_t n = trek_grains_count(c->s->grains, c->pass->rows);
    trek_status status = TREK_OK;
    for (int64_t k = 0; k < n && status == TREK_OK; k++) {
        const trek_text *text = &c->recorded[k];
        if (text->failed)
            status = TREK_ERR_MEMORY;
        else if (text->length > 0)
            status = trek_observations_unpack(c->s->team->graph, text->data, (int64_t)text->length);
    }
    return status;
}

void trek_grain_call_end(trek_grain_call *c)
{
    int64_t n = trek_grains_count(c->s->grains, c->pass->rows);
    for (int64_t k = 0; c->sums && k < n; k++)
        trek_pass_sum_clear(&c->sums[k]);
    for (int64_t k = 0; c->recorded && k < n; k++)
        trek_text_clear(&c->recorded[k]);
    for (int64_t k = 0; c->kept && k < n; k++)
        trek_tensor_release(c->kept[k]);
    trek_free(c->sums);
    trek_free(c->recorded);
    trek_free(c->kept);
    c->kept = NULL;
    c->sums = NULL;
    c->recorded = NULL;
}

/* --- grains of a list ---------------------------------------------------------------------------- */

typedef struct grain_list {
    const int64_t *numbers;
    int64_t n;
    _Atomic int64_t next;
} grain_list;

static int64_t next_of_list(trek_grain_call *c, int rank, int64_t most, int64_t *n)
{
    (void)rank, (void)most;
    *n = 1;
    grain_list *list = c->source;
    int64_t k = atomic_fetch_add_explicit(&list->next, 1, memory_order_relaxed);
    return k < list->n ? list->numbers[k] : -1;
}

/* Before the rank comes again, each other one takes a grain. */
static int64_t coming_of_list(trek_grain_call *c, int rank)
{
    (void)rank;
    const grain_list *list = c->source;
    int64_t k = atomic_load_explicit(&list->next, memory_order_relaxed) + c->s->team->local_ranks - 1;
    return k < list->n ? list->numbers[k] : -1;
}

trek_status trek_grain_call_run_list(trek_grain_call *c, const int64_t *numbers, int64_t n)
{
    grain_list list = { .numbers = numbers, .n = n };
    c->next = next_of_list;
    c->coming = coming_of_list;
    c->source = &list;
    trek_status status = trek_grains_reserve(c->s->grains, n);
    return status == TREK_OK ? trek_grain_call_run(c) : status;
}

static trek_status check_list(const trek_grains *g, int64_t pass, const int64_t *numbers, int64_t n)
{
    if (pass < 0 || pass >= g->passes.n)
        return trek_fail(TREK_ERR_STATE, "grains_run: pass: %lld; the step has %lld", (long long)pass, (long long)g->passes.n);
    int64_t most = trek_grains_count(g, g->passes.of[pass].rows);
    for (int64_t k = 0; k < n; k++)
        if (numbers[k] < 0 || numbers[k] >= most)
            return trek_fail(TREK_ERR_ARGUMENT, "grains_run: numbers: %lld; must be 0 to %lld", (long long)numbers[k],
                             (long long)most - 1);
    return TREK_OK;
}

trek_status trek_grains_run(trek_step *s, int64_t pass, const int64_t *numbers, int64_t n)
{
    trek_grains *g = s->grains;
    trek_status status = check_list(g, pass, numbers, n);
    if (status != TREK_OK)
        return status;
    trek_grain_call c = { .s = s, .pass = &g->passes.of[pass], .pass_number = pass };
    uint64_t rng_draw = trek_rank_here.rng_draw;
    status = trek_grain_call_begin(&c);
    if (status == TREK_OK)
        status = trek_grain_call_run_list(&c, numbers, n);
    trek_rank_here.rng_draw = rng_draw;
    for (int r = 0; r < s->team->local_ranks && status == TREK_OK; r++) {
        s->team->replicas[r].samples += c.pass->training ? c.rows[r] : 0;
        s->team->replicas[r].measured_rows += c.rows[r];
    }
    g->broken |= status != TREK_OK;
    trek_grain_call_end(&c);
    return status;
}
