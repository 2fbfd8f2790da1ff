/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to train, and one training: by a loop that is written out, or by the library's. */
#define _POSIX_C_SOURCE 200809L /* NOLINT(bugprone-reserved-identifier): it is for this */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

enum { EVAL_BATCH = 250 };

static const trek_outer_opts eight_bits = { .bits = 8 };

/* Each further way is one more row. */
const mode modes[] = {
    { "solo", "one rank, the loop written out", .one_rank = true, .by_hand = true },
    { "solo-run", "one rank, `trek_trainer_run`", .one_rank = true },
    { "solo-grains", "the same in grains", .one_rank = true, .grains = true },
    { "setup", "ranks share each batch, the loop written out over `trek_trainer_setup`", .by_hand = true },
    { "windows", "the same with windows: ranks run whole batches and reduce their gradients after a window", .by_hand = true,
      .opts = { .policy = TREK_POLICY_CADENCE } },
    { "sync", "`trek_trainer_run` with `TREK_POLICY_SYNC`", .opts = { .policy = TREK_POLICY_SYNC } },
    { "grains", "the same in grains: the bits of `solo-grains`, on any number of ranks", .grains = true },
    { "cadence", "`trek_trainer_run` with `TREK_POLICY_CADENCE`: windows", .opts = { .policy = TREK_POLICY_CADENCE } },
    { "cadence-params", "the same, ranks make steps of their own and average parameters after a window",
      .opts = { .policy = TREK_POLICY_CADENCE, .trainer = { .average = TREK_AVERAGE_PARAMETERS } } },
    { "sync-host", "ranks make a step of their own for each batch; parameters are averaged in the background",
      .opts = { .policy = TREK_POLICY_SYNC, .transport = TREK_TRANSPORT_HOST } },
    { "cadence-host", "as `cadence-params`, averaged in the background: nobody waits",
      .opts = { .policy = TREK_POLICY_CADENCE, .transport = TREK_TRANSPORT_HOST } },
    { "async", "the same, averages are taken in as they come",
      .opts = { .policy = TREK_POLICY_ASYNC, .transport = TREK_TRANSPORT_HOST } },
    { "outer", "as `cadence-host`, with an outer optimizer (0.7, Nesterov momentum 0.9) and 8 bits between processes",
      .opts = { .policy = TREK_POLICY_CADENCE, .transport = TREK_TRANSPORT_HOST, .outer = &eight_bits } },
};
const int n_modes = (int)(sizeof modes / sizeof *modes);

int bench_epochs(const bench *b, const workload *w) { return b->epochs ? b->epochs : w->epochs; }
int bench_batch(const bench *b, const workload *w) { return b->batch_size ? b->batch_size : w->batch_size; }

int bench_grain(const bench *b, const workload *w)
{
    int sixteenth = bench_batch(b, w) / 16;
    return b->grain ? b->grain : sixteenth ? sixteenth : 1;
}

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* FNV-1a over names and bytes. */
static uint64_t checksum(const trek_state *state)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int k = 0; k < trek_state_count(state); k++) {
        trek_tensor *t = trek_state_tensor(state, k);
        const unsigned char *bytes = trek_tensor_data(t);
        for (int64_t i = 0; i < trek_tensor_numel(t) * (int64_t)trek_dtype_size(trek_tensor_dtype(t)); i++)
            h = (h ^ bytes[i]) * 0x100000001b3u;
    }
    return h;
}

/* --- options ------------------------------------------------------------------------------------ */

/* Updates in all, for the schedule: of gradients of windows one for each window. */
static int64_t count_steps(const bench *b, const mode *m, int64_t batches, int64_t epochs)
{
    double slowest = 1, window = 0;
    if (m->opts.policy == TREK_POLICY_SYNC || m->opts.trainer.average == TREK_AVERAGE_PARAMETERS ||
        m->opts.transport == TREK_TRANSPORT_HOST || m->one_rank)
        return batches * epochs;
    for (int k = 0; k < b->ranks; k++)
        slowest = fmax(slowest, b->factors[k]);
    for (int k = 0; k < b->ranks; k++)
        window += b->windows * slowest / b->factors[k];
    return (int64_t)ceil((double)batches / window) * epochs;
}

/* The loss of a batch in an evaluation. arg: the workload. */
static trek_var *evaluate_batch(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    const workload *w = arg;
    if (w->accuracy)
        trek_record_scalar("accuracy", trek_accuracy(output, trek_batch_get(batch, "label")));
    return w->loss(graph, output, batch, NULL);
}

/* The options of a training, for both forms of the loop. */
static trek_run_opts options_of(const bench *b, const workload *w, const mode *m, const workload_data *data, int seed)
{
    trek_run_opts o = m->opts;
    double lr = b->lr > 0 ? b->lr : w->lr;
    bool uneven = false;
    o.build_model = w->build;
    o.train_step = w->loss;
    o.arg = (void *)(uintptr_t)w; /* read only */
    o.input = w->field;
    o.dataset = data->train;
    o.epochs = bench_epochs(b, w);
    o.batch_size = bench_batch(b, w);
    o.drop_last = o.shuffle = true;
    o.seed = (uint64_t)seed;
    o.evaluation = data->test;
    o.evaluation_batch = EVAL_BATCH;
    o.evaluate_every = o.epochs;
    o.evaluate = evaluate_batch;
    o.optimizer = w->optimizer(lr);
    if (w->schedule)
        o.schedule = w->schedule(lr, count_steps(b, m, trek_dataset_length(data->train) / o.batch_size, o.epochs));
    o.lr_scale = b->lr_scale;
    o.trainer.ranks = m->one_rank ? 1 : b->ranks;
    o.trainer.grain = m->grains ? bench_grain(b, w) : 0;
    if (o.policy != TREK_POLICY_SYNC && !m->one_rank)
        o.trainer.anchor = o.trainer.max_anchor = b->windows;
    for (int k = 0; k < b->ranks && !m->one_rank; k++)
        uneven |= b->factors[k] != b->factors[0] || b->most[k] > b->factors[k];
    uneven |= b->processes > 1 && b->slow; /* other processes may have other factors */
    o.trainer.balance = uneven ? 1 : 0;
    return o;
}

/* --- the loop written out ------------------------------------------------------------------------- */

static void train_epoch(trek_graph *graph, int64_t epoch, outcome *r)
{
    double sum = 0, seen = 0, begin = now();
    trek_graph_start(graph, epoch);
    for (trek_batch *batch; (batch = trek_graph_next(graph)); trek_graph_step(graph)) {
        double size = (double)trek_batch_size(batch);
        trek_var *loss = trek_graph_train_batch(graph, batch);
        sum += loss ? trek_var_item(loss) * size : 0;
        seen += size;
        r->averages += trek_graph_world_size(graph) > 1;
    }
    r->seconds += now() - begin;
    r->samples += seen;
    r->loss = seen > 0 ? sum / seen : (double)NAN;
}

static void evaluate(const workload *w, trek_graph *graph, trek_loader *test, outcome *r)
{
    double loss = 0, right = 0, seen = 0;
    trek_graph_train(graph, false);
    trek_no_grad_begin();
    trek_loader_start(test, 0);
    for (trek_batch *batch; (batch = trek_loader_next(test)); ) {
        trek_var *output = trek_graph_forward(graph, trek_batch_get(batch, w->field));
        double size = (double)trek_batch_size(batch);
        loss += size * trek_var_item(w->loss(graph, output, batch, NULL));
        right += w->accuracy ? size * trek_var_item(trek_accuracy(output, trek_batch_get(batch, "label"))) : (double)NAN;
        seen += size;
    }
    trek_no_grad_end();
    r->test_loss = loss / seen;
    r->accuracy = right / seen;
}

static void train_by_hand(const workload *w, const trek_run_opts *o, outcome *r)
{
    trek_seed(o->seed);
    trek_graph *graph = w->build(trek_device_default(), NULL);
    trek_loader *loader = trek_loader_new(trek_dataset_retain(o->dataset), &(trek_loader_opts){
        .batch_size = o->batch_size, .shuffle = true, .seed = o->seed, .drop_last = o->drop_last
    });
    trek_loader *test = trek_loader_new(trek_dataset_retain(o->evaluation), &(trek_loader_opts){ .batch_size = EVAL_BATCH });
    trek_trainer_opts t = o->trainer;
    t.build_replica = w->build;
    t.optimizer = o->optimizer;
    t.schedule = o->schedule;
    t.max_anchor = t.max_anchor ? t.max_anchor : TREK_OFF;
    trek_graph_set_loader(graph, loader, w->field);
    trek_graph_set_loss(graph, w->loss, NULL);
    trek_trainer_setup(graph, &t);
    for (int epoch = 0; epoch < o->epochs && trek_error_status() == TREK_OK; epoch++)
        train_epoch(graph, epoch, r);
    r->steps = graph ? trek_graph_steps(graph) : 0;
    trek_state *final = trek_error_status() == TREK_OK ? trek_state_of(trek_graph_module(graph)) : NULL;
    if (final) {
        r->bits = checksum(final);
        evaluate(w, graph, test, r);
    }
    trek_state_free(&final);
    trek_graph_free(&graph);
    trek_loader_free(&test);
    trek_loader_free(&loader);
}

/* --- the library's loop ---------------------------------------------------------------------------- */

static void take_metrics(const trek_epoch_metrics *m, outcome *r)
{
    double waiting = 0, own = 0;
    for (int k = 0; k < m->ranks; k++) {
        waiting += m->per_rank[k].waiting_s / m->seconds / m->ranks;
        own += m->per_rank[k].samples_per_s;
    }
    double part = m->seconds / (r->seconds + m->seconds); /* means over time */
    r->waiting += (waiting - r->waiting) * part;
    r->own_rate += (own - r->own_rate) * part;
    r->loss = m->loss;
    r->test_loss = m->evaluation_loss;
    r->accuracy = trek_metrics_get(m, "evaluation.accuracy");
    r->seconds += m->seconds;
    r->samples += (double)m->samples;
    r->steps += m->steps;
    r->averages += m->averages;
    r->bytes_sent += m->bytes_sent;
}

static void train_by_run(const trek_run_opts *o, outcome *r)
{
    trek_run *run = trek_trainer_run(o);
    if (!run)
        return;
    for (trek_epoch_metrics m; trek_run_next(run, &m); )
        take_metrics(&m, r);
    trek_state *final = trek_run_join(run);
    r->bits = final ? checksum(final) : 0;
    trek_state_free(&final);
}

/* What trek reads when ranks are set up: "1s,2.5~5s", ranks that sleep as if they waited for a slower device. */
static void slow_ranks(const bench *b)
{
    char text[MOST_RANKS * 64] = "";
    for (int k = 0; k < b->ranks; k++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%g", k ? "," : "", b->factors[k]);
        if (b->most[k] > b->factors[k])
            snprintf(text + strlen(text), sizeof text - strlen(text), "~%g", b->most[k]);
        strcat(text, "s");
    }
    setenv("TREK_SLOWDOWN", text, 1);
}

bool bench_train(const bench *b, const workload *w, const mode *m, int seed, outcome *result, const char **source)
{
    *result = (outcome){ .accuracy = NAN };
    workload_data data = workload_open(w->data, b->data, b->samples);
    *source = data.source;
    if (data.train && data.test) {
        trek_run_opts o = options_of(b, w, m, &data, seed);
        if (m->one_rank)
            unsetenv("TREK_SLOWDOWN");
        else
            slow_ranks(b);
        if (m->by_hand)
            train_by_hand(w, &o, result);
        else
            train_by_run(&o, result);
    }
    trek_dataset_free(&data.train);
    trek_dataset_free(&data.test);
    return trek_error_status() == TREK_OK;
}
