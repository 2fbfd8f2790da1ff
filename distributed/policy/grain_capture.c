/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/policy/grain_capture.h"

#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/grains/digests.h"
#include "distributed/policy/grain_alone.h"
#include "distributed/reduce/reduce.h"
#include "distributed/team/observations.h"
#include "distributed/team/step.h"
#include "graph/capture_internal.h"
#include "graph/observe_internal.h"
#include "tensor/backend.h"
#include "optim/optimizer_internal.h"
#include "tensor/rank_context.h"
#include "tensor/status_internal.h"

/* Passes have records of their own if their batches differ in size, since samples then have other weights in the gradient, or if
 * another number of random numbers was drawn before them in the step. */
enum { PASSES = 4 };

/* What a run of a grain gives besides its work on the device; it is the same in all replays. */
typedef struct grain_gives {
    double weight;           /* of its loss */
    bool *had;               /* [segments] which parameters have a gradient */
} grain_gives;

typedef struct pass_kind {
    struct trek_grain_recorder *recorder;
    double denominator;
    int64_t rows;            /* of the batch of all processes */
    uint64_t rng_draw;
    int64_t used;
} pass_kind;

typedef struct trek_grain_recorder {
    trek_stepper base;       /* of which captures use `capture` */
    struct trek_captures *captures;
    pass_kind passes[PASSES];
    const pass_kind *pass;   /* of the present run */
    trek_grain_call *call;   /* of the present run, as the next ones */
    int rank;
    int64_t number;
    const trek_batch *grain;
    grain_gives gives;
    int64_t runs, replays;   /* of the step */
    int64_t uses;            /* of its life */
} trek_grain_recorder;

/* The recorded work of a grain. */
typedef struct grain_record {
    trek_captured_step base;
    trek_grain_recorder *recorder;
    const trek_backend *backend;
    trek_capture *capture;
    grain_gives gives;
} grain_record;

static const rank_replica *replica_of(const trek_grain_recorder *r) { return &r->call->s->team->replicas[r->rank]; }

static size_t bytes_of_had(const trek_grain_recorder *r)
{
    return (size_t)replica_of(r)->arena->n_segments * sizeof *r->gives.had;
}

/* --- what captures need of a stepper ------------------------------------------------------------ */

static uint64_t signature(const trek_stepper *self)
{
    const trek_grain_recorder *r = (const trek_grain_recorder *)(const void *)self;
    const rank_replica *own = replica_of(r);
    uint64_t key = trek_step_signature(own->graph, own->model->params, own->model->n_params, NULL);
    key = trek_mix(key, (uint64_t)(uintptr_t)trek_ranks_scaler(r->call->s, r->rank));
    key = trek_mix_double(key, r->pass->denominator);
    key = trek_mix(key, r->pass->rng_draw);
    return trek_mix(key, (uint64_t)r->pass->rows);
}

/* Places of random numbers follow from the number of the grain that runs, in proportion: they are recorded for number 1. */
static void set_place_of_first(const trek_grain_recorder *r)
{
    trek_rank_here.first_sample = r->call->s->grains->size;
    trek_rank_here.grain = 2;
}

static void set_place(const trek_grain_recorder *r)
{
    trek_rank_here.first_sample = r->grain->first;
    trek_rank_here.grain = r->number + 1;
}

static trek_status begin(trek_stepper *self, trek_device device)
{
    set_place_of_first((trek_grain_recorder *)(void *)self);
    return trek_backends[device.type]->capture_begin(device);
}

static trek_status replay(trek_captured_step *self, uint64_t rng_step)
{
    grain_record *record = (grain_record *)(void *)self;
    trek_grain_recorder *r = record->recorder;
    r->gives.weight = record->gives.weight;
    memcpy(r->gives.had, record->gives.had, bytes_of_had(r));
    return record->backend->capture_replay(record->capture, rng_step);
}

static void free_record(trek_captured_step *self)
{
    grain_record *record = (grain_record *)(void *)self;
    record->backend->capture_free(record->capture);
    trek_free(record->gives.had);
    trek_free(record);
}

static grain_record *new_record(trek_grain_recorder *r, trek_device device)
{
    grain_record *record = trek_calloc(1, sizeof *record);
    if (!record)
        return NULL;
    *record = (grain_record){ .base = { replay, free_record }, .recorder = r, .backend = trek_backends[device.type],
                              .gives = { r->gives.weight, trek_calloc(bytes_of_had(r) + 1, 1) } };
    if (record->gives.had) {
        memcpy(record->gives.had, r->gives.had, bytes_of_had(r));
        return record;
    }
    trek_free(record);
    return NULL;
}

static trek_status end(trek_stepper *self, trek_device device, trek_captured_step **result)
{
    trek_grain_recorder *r = (trek_grain_recorder *)(void *)self;
    set_place(r);
    grain_record *record = result ? new_record(r, device) : NULL;
    trek_status status = result && !record ? trek_error_status() : TREK_OK;
    trek_status ended = trek_backends[device.type]->capture_end(device, record ? &record->capture : NULL);
    status = status == TREK_OK ? ended : status;
    if (record && status == TREK_OK) {
        *result = &record->base;
    } else if (record) {
        trek_free(record->gives.had);
        trek_free(record);
    }
    return status;
}

/* What only steps need is never called: a grain makes none. */
static const struct trek_stepper_capture recorder_capture = { .signature = signature, .begin = begin, .end = end };
static const trek_stepper_class recorder_class = { .name = "grain", .capture = &recorder_capture };

/* --- a grain -------------------------------------------------------------------------------------- */

static void note_gradients(const trek_grain_recorder *r)
{
    const trek_arena *arena = replica_of(r)->arena;
    for (int k = 0; k < arena->n_segments; k++)
        r->gives.had[k] = arena->segments[k].param->leaf->has_grad;
}

static trek_status find_observations(trek_graph *graph, void *arg)
{
    bool *any = arg;
    for (int k = 0; k < graph->n_observations; k++)
        *any |= graph->observations[k].seen;
    return TREK_OK;
}

/* The results of a run: the loss times its weight, and the weight, if the host knows it only after the pass. */
enum { LOSS, WEIGHT };

static trek_status put(struct trek_captures *captures, int k, trek_tensor *value)
{
    trek_var *var = value ? trek_var_from(trek_tensor_retain(value)) : NULL;
    return var ? trek_captures_put(captures, k, var) : value ? trek_error_status() : TREK_OK;
}

/* Returns a copy of a result, which the next run would overwrite; NULL: there is none, or an error. */
static trek_tensor *result_of(const trek_grain_recorder *r, int k)
{
    const trek_var *var = trek_captures_output(r->captures, k);
    return var ? trek_tensor_clone(var->data) : NULL;
}

/* Forward, loss and backward of the samples that were given, and the addition to the sums. */
static trek_status run(trek_graph *graph, void *arg)
{
    trek_grain_recorder *r = ((const pass_kind *)arg)->recorder;
    const rank_replica *own = replica_of(r);
    trek_batch_run how = trek_grain_batch_run(r->call, r->rank);
    trek_pass_sum sum = { 0 };
    trek_var *vars[64], *counted = NULL;
    trek_batch grain = *r->grain;
    for (int k = 0; k < grain.dataset->n_fields; k++)
        vars[k] = trek_captures_input(r->captures, k);
    grain.vars = vars;
    how.counted = &counted;
    trek_status status = trek_graph_run_batch(graph, &grain, &how, &sum);
    bool records = false;
    trek_graph_each(graph, find_observations, &records);
    if (records && trek_rank_watched() && trek_rank_watched()->refuse)
        trek_rank_watched()->refuse("values are recorded for each grain (trek_record_mean and others)", trek_rank_watched()->arg);
    note_gradients(r);
    r->gives.weight = sum.weight;
    if (status == TREK_OK)
        trek_grain_sums_add(&r->call->s->grains->sums[r->rank], own->arena);
    if (status == TREK_OK)
        status = put(r->captures, LOSS, sum.on_device);
    if (status == TREK_OK)
        status = put(r->captures, WEIGHT, sum.weight_on_device);
    trek_pass_sum_clear(&sum);
    return status == TREK_OK ? trek_error_status() : status;
}

/* Returns that of the pass, or puts it in the place of the one that was not used for the longest time. */
static pass_kind *kind_of(trek_grain_recorder *r, const trek_step_pass *pass)
{
    pass_kind *oldest = &r->passes[0];
    for (int k = 0; k < PASSES; k++) {
        pass_kind *kind = &r->passes[k];
        if (kind->used > 0 && kind->denominator == pass->denominator && kind->rows == pass->rows &&
            kind->rng_draw == pass->rng_draw)
            return kind;
        oldest = kind->used < oldest->used ? kind : oldest;
    }
    *oldest = (pass_kind){ .recorder = r, .denominator = pass->denominator, .rows = pass->rows, .rng_draw = pass->rng_draw };
    return oldest;
}

static trek_grain_recorder *new_recorder(const trek_arena *arena, int rank)
{
    trek_grain_recorder *r = trek_calloc(1, sizeof *r);
    if (!r)
        return NULL;
    *r = (trek_grain_recorder){ .base = { .klass = &recorder_class }, .rank = rank,
                                .gives.had = trek_calloc((size_t)arena->n_segments + 1, sizeof *r->gives.had) };
    r->captures = trek_captures_new(&r->base);
    if (r->captures && r->gives.had)
        return r;
    trek_captures_free(&r->captures);
    trek_free(r->gives.had);
    trek_free(r);
    return NULL;
}

/* Adds what the host knows of a grain that has run. */
static trek_status finish(const trek_grain_recorder *r)
{
    trek_grain_call *c = r->call;
    const rank_replica *own = replica_of(r);
    trek_grain_sums *sums = &c->s->grains->sums[r->rank];
    trek_pass_sum *sum = &c->sums[r->number];
    for (int k = 0; k < own->arena->n_segments; k++)
        sums->slots.places[k].had |= r->gives.had[k];
    sum->weight = r->gives.weight;
    sum->rows = r->grain->n;
    sum->on_device = result_of(r, LOSS);
    sum->weight_on_device = result_of(r, WEIGHT);
    trek_status status = trek_observations_read(own->graph);
    c->recorded[r->number] = trek_observations_take(own->graph);
    if (status == TREK_OK)
        trek_grain_keep(c, r->rank, r->number, r->grain, (trek_digest){ { 0, 0 } });
    return status == TREK_OK ? trek_error_status() : status;
}

bool trek_grain_is_captured(const trek_grain_call *c, int64_t number, const trek_batch *grain)
{
    const trek_step *s = c->s;
    return c->captures && c->pass->backward && !trek_grain_shows(c, number) && !s->grains->digests->replay &&
        grain->first == number * s->grains->size;
}

trek_status trek_grain_train_captured(trek_grain_call *c, int rank, int64_t number, const trek_batch *grain)
{
    trek_grains *g = c->s->grains;
    const rank_replica *own = &c->s->team->replicas[rank];
    trek_grain_recorder *r = g->recorders[rank] ? g->recorders[rank] : (g->recorders[rank] = new_recorder(own->arena, rank));
    if (!r)
        return trek_error_status();
    r->call = c;
    r->number = number;
    r->grain = grain;
    pass_kind *kind = kind_of(r, c->pass);
    r->pass = kind;
    kind->used = ++r->uses;
    for (int k = 0; k < grain->dataset->n_fields; k++)
        trek_captures_give(r->captures, k, grain->vars[k]);
    if (c->pass->training)
        trek_grains_put_buffers(g, own->model, g->first_buffers);
    int64_t before = trek_captures_replays(r->captures);
    trek_status status = trek_captures_run(own->graph, r->captures, run, kind);
    r->runs++;
    r->replays += trek_captures_replays(r->captures) - before;
    status = status == TREK_OK ? finish(r) : status;
    r->call = NULL;
    r->grain = NULL;
    return status;
}

/* --- parts of a step ---------------------------------------------------------------------------------- */

static const char *obstacle(const trek_step *s)
{
    if (s->team->graph->fp8)
        return "products have 8 bits, whose scales the host keeps in the order of grains";
    return s->team->divides_grads ? "gradients are divided while a grain runs (TREK_SHARD_GRADIENTS)" : NULL;
}

static const char *outcome(trek_step *s, bool *replayed)
{
    const trek_grains *g = s->grains;
    const char *problem = NULL;
    int64_t runs = 0, replays = 0;
    for (int r = 0; r < s->team->local_ranks; r++) {
        trek_grain_recorder *recorder = g->recorders[r];
        if (!recorder)
            continue;
        const char *own = trek_captures_problem(recorder->captures);
        problem = *own && !problem ? own : problem;
        runs += recorder->runs;
        replays += recorder->replays;
        recorder->runs = recorder->replays = 0;
    }
    *replayed = runs > 0 && replays == runs;
    return problem;
}

static trek_status forget_rank(int rank, void *arg)
{
    trek_grains *g = ((const trek_step *)arg)->grains;
    trek_grain_recorder *r = g->recorders[rank];
    g->recorders[rank] = NULL;
    if (!r)
        return TREK_OK;
    trek_captures_free(&r->captures);
    trek_free(r->gives.had);
    trek_free(r);
    return TREK_OK;
}

static void forget(trek_step *s)
{
    const trek_grains *g = s->grains;
    bool any = false;
    for (int r = 0; g && g->recorders && r < s->team->local_ranks; r++)
        any |= g->recorders[r] != NULL;
    if (any && !trek_forked)
        trek_ranks_call(s->team->ranks, forget_rank, s);
}

const trek_step_parts trek_grain_parts = { .obstacle = obstacle, .outcome = outcome, .forget = forget };
