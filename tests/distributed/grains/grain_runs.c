/* SPDX-License-Identifier: Apache-2.0 */
/* Six small models, trained in grains or without. */
#include "tests/distributed/grains/grain_runs.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "data/dataset.h"
#include "data/loader_position.h"
#include "distributed/arrivals.h"
#include "distributed/digests.h"
#include "distributed/grains/counter.h"
#include "distributed/grains/grains.h"
#include "distributed/policy/grain_pass.h"
#include "distributed/stepper_internal.h"
#include "graph/capture.h"
#include "graph/flow.h"
#include "graph/graph_internal.h"
#include "graph/graph_loader.h"
#include "graph/graph_loader_internal.h"
#include "graph/observe.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/recompute.h"
#include "nn/transformer.h"
#include "optim/optimizer_internal.h"
#include "optim/optimizers.h"
#include "optim/schedules.h"
#include "tensor/backend.h"
#include "tensor/pages.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { SAMPLES = 53, FEATURES = 64, TOKENS = 6, WORDS = 11, WIDTH = 16, CLASSES = 5 };

const char *const grain_models[MODELS] = { "mlp", "conv and batch norm", "gpt", "lstm", "tied embedding",
                                           "dropout and recomputation" };

/* --- models --- */

bool grain_noise = true;

typedef struct net {
    trek_module base;
    int kind;
    trek_module *a, *b, *c, *d;
    trek_var *table, *places, *unused;
} net;

static trek_var *tokens_of(net *m, trek_var *x) { return trek_embedding(x, m->table, -1); }

static trek_var *net_forward(trek_module *self, trek_var *x)
{
    net *m = (net *)self;
    int64_t n = trek_var_size(x, 0);
    trek_var *h;
    switch (m->kind) {
    case MLP:
        h = trek_add(trek_forward(m->a, x), trek_forward(m->a, trek_relu(x))); /* a weight that is used twice */
        return trek_forward(m->c, trek_gelu(trek_forward(m->b, trek_tanh(h))));
    case CONV_AND_BATCH_NORM:
        h = trek_forward(m->a, trek_reshape(x, trek_dims(n, 1, 8, 8)));
        h = trek_relu(trek_forward(m->b, h));
        return trek_forward(m->c, trek_flatten(h, 1, -1));
    case GPT:
        h = trek_add(tokens_of(m, x), m->places);
        h = trek_forward(m->a, h);
        return trek_reshape(trek_forward(m->b, h), trek_dims(n * TOKENS, WORDS));
    case LSTM:
        h = trek_forward(m->a, trek_reshape(x, trek_dims(n, 8, 8)));
        return trek_forward(m->b, trek_select(h, 1, 7));
    case TIED_EMBEDDING:
        h = trek_tanh(trek_forward(m->a, tokens_of(m, x)));
        return trek_reshape(trek_linear(h, m->table, NULL), trek_dims(n * TOKENS, WORDS));
    case MIXED:
        h = trek_cast(trek_linear(trek_cast(x, TREK_BF16), m->table, NULL), TREK_F32);
        return trek_linear(trek_tanh(h), m->places, NULL);
    default:
        h = trek_forward(m->a, trek_forward(m->d, x));
        if (trek_module_is_training(self) && grain_noise) /* numbers that belong to no sample */
            h = trek_mul(h, trek_forward(m->d, trek_var_from(trek_tensor_full(trek_dims(1, 24), 1, TREK_F32,
                                                                              trek_var_device(h)))));
        return trek_forward(m->c, trek_forward(m->b, h));
    }
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward, .rowwise = true };

static trek_tensor *numbers(uint32_t stream, trek_shape shape, trek_device device)
{
    float values[2048];
    int64_t n = trek_shape_numel(shape);
    for (int64_t i = 0; i < n; i++)
        values[i] = 0.4f * test_number(stream, (uint32_t)i);
    return trek_tensor_from_data(values, shape, TREK_F32, device);
}

static void add(trek_module *m, const char *name, size_t offset, trek_module *child) { trek_module_add(m, name, offset, child); }

static void fill(trek_module *m, int kind, trek_device device)
{
    size_t a = offsetof(net, a), b = offsetof(net, b), c = offsetof(net, c), d = offsetof(net, d);
    switch (kind) {
    case MLP:
        add(m, "a", a, trek_nn_linear(FEATURES, 48, device)); /* its gradients wait as products, in grains of up to 3 samples */
        add(m, "b", b, trek_nn_linear(48, 20, device));
        add(m, "c", c, trek_nn_linear(20, CLASSES, device));
        trek_module_param(m, "unused", offsetof(net, unused), numbers(3, trek_dims(7), device));
        break;
    case CONV_AND_BATCH_NORM:
        add(m, "a", a, trek_nn_conv2d(1, 4, 3, device));
        add(m, "b", b, trek_nn_batch_norm2d(4, device));
        add(m, "c", c, trek_nn_linear(4 * 36, CLASSES, device));
        break;
    case GPT:
        trek_module_param(m, "table", offsetof(net, table), numbers(4, trek_dims(WORDS, WIDTH), device));
        trek_module_param(m, "places", offsetof(net, places), numbers(5, trek_dims(TOKENS, WIDTH), device));
        add(m, "a", a, trek_nn_transformer_encoder_layer_with(&(trek_transformer_opts){
            .d_model = WIDTH, .heads = 2, .dim_feedforward = 24, .dropout = 0.2, .causal = true, .norm_first = true,
            .activation = TREK_ACTIVATION_GELU, .device = device }));
        add(m, "b", b, trek_nn_linear(WIDTH, WORDS, device));
        break;
    case LSTM:
        add(m, "a", a, trek_nn_lstm_with(&(trek_lstm_opts){ .in = 8, .hidden = 12, .layers = 2, .batch_first = true,
                                                            .dropout = 0.2, .device = device }));
        add(m, "b", b, trek_nn_linear(12, CLASSES, device));
        break;
    case TIED_EMBEDDING:
        trek_module_param(m, "table", offsetof(net, table), numbers(6, trek_dims(WORDS, WIDTH), device));
        add(m, "a", a, trek_nn_linear(WIDTH, WIDTH, device));
        break;
    case MIXED: {
        trek_tensor *wide = numbers(7, trek_dims(24, FEATURES), device);
        trek_module_param(m, "table", offsetof(net, table), trek_tensor_cast(wide, TREK_BF16));
        trek_module_param(m, "places", offsetof(net, places), numbers(8, trek_dims(CLASSES, 24), device));
        trek_tensor_release(wide);
        break;
    }
    default: {
        trek_module *inner[] = { trek_nn_linear(24, 24, device), trek_nn_gelu(), trek_nn_dropout(0.3) };
        add(m, "d", d, trek_nn_dropout(0.2));
        add(m, "a", a, trek_nn_linear(FEATURES, 24, device));
        add(m, "b", b, trek_nn_recompute(trek_nn_sequential(inner, 3)));
        add(m, "c", c, trek_nn_linear(24, CLASSES, device));
    }
    }
}

static bool takes_all(void) { return !test_short_on_device() || test_long(); }

bool grain_takes(int k) { return k % 3 == 0 || takes_all(); }

trek_graph *grain_build(trek_device device, void *arg)
{
    trek_module *m = trek_module_new(&net_class);
    if (!m)
        return NULL;
    ((net *)m)->kind = *(const int *)arg;
    trek_seed(11);
    fill(m, *(const int *)arg, device);
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

static bool reads_tokens(int model) { return model == GPT || model == TIED_EMBEDDING; }

/* --- data --- */

struct trek_dataset *grain_dataset(void)
{
    static float x[SAMPLES * FEATURES];
    int64_t t[SAMPLES * TOKENS], next[SAMPLES * TOKENS], label[SAMPLES];
    for (int i = 0; i < SAMPLES * FEATURES; i++)
        x[i] = test_number(1, (uint32_t)i) * (i / FEATURES % 5 == 0 ? 30 : 1);
    for (int i = 0; i < SAMPLES * TOKENS; i++) {
        t[i] = (int64_t)((test_number(2, (uint32_t)i) + 1) * WORDS / 2);
        next[i] = i / TOKENS % 7 == 0 && i % 2 ? -100 : (t[i] * 3 + 1) % WORDS;
    }
    for (int i = 0; i < SAMPLES; i++)
        label[i] = i % 6 == 2 ? -100 : i % CLASSES; /* grains weigh differently */
    const char *names[] = { "x", "tokens", "next", "label" };
    trek_tensor *tensors[] = { trek_tensor_from_data(x, trek_dims(SAMPLES, FEATURES), TREK_F32, trek_cpu(0)),
                               trek_tensor_from_data(t, trek_dims(SAMPLES, TOKENS), TREK_I64, trek_cpu(0)),
                               trek_tensor_from_data(next, trek_dims(SAMPLES, TOKENS), TREK_I64, trek_cpu(0)),
                               trek_tensor_from_data(label, trek_dims(SAMPLES), TREK_I64, trek_cpu(0)) };
    trek_dataset *dataset = trek_dataset_tensors(names, tensors, 4);
    for (int k = 0; k < 4; k++)
        trek_tensor_release(tensors[k]);
    return dataset;
}

static int64_t step_now; /* which the ranks read */

/* Returns whether all grains of this pass have been taken (grains/ranges.c), or given out by process 0 (grains/counter.c). The
 * calling process has taken one. */
static bool none_is_left(trek_graph *graph, trek_comm *comm)
{
    trek_grain_counter *counter = trek_graph_ranks(graph)->grains->counter;
    if (counter)
        return trek_grain_counter_left(counter) <= 0;
    _Atomic uint64_t *words = trek_graph_ranks(graph)->grains->words.words;
    uint64_t own = atomic_load(&words[trek_comm_rank(comm)]);
    for (int p = 0; p < trek_comm_world_size(comm); p++) {
        uint64_t word = atomic_load(&words[p]);
        if (word >> 32 != own >> 32 || (word >> 16 & 0xffff) != (word & 0xffff))
            return false;
    }
    return true;
}

/* Takes more or less time, in another way in each process. */
static void dawdle(const grain_run *run, trek_graph *graph)
{
    static _Atomic uint64_t state;
    if (run->holds && trek_comm_rank(run->comm) == run->holds - 1)
        while (!none_is_left(graph, run->comm))
            sched_yield();
    uint64_t seed = atomic_fetch_add(&state, 1) * 977 + (uint64_t)getpid();
    if (run->slow)
        usleep((useconds_t)test_draw(&seed, 600));
}

/* Numbers whose sums depend on their order. */
static void record(const trek_batch *batch)
{
    double number = (double)trek_batch_indices(batch)[0] / 3;
    trek_record_sum("sum", number);
    trek_record_mean("mean", 0.7 * number, (double)trek_batch_size(batch));
}

static trek_var *loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    const grain_run *run = arg;
    if (trek_module_is_training(trek_graph_module(graph)))
        dawdle(run, graph);
    if (trek_module_is_training(trek_graph_module(graph)) && !run->silent)
        record(batch);
    trek_var *labels = trek_batch_get(batch, reads_tokens(run->model) ? "next" : "label");
    if (run->grain && !test_on_cpu() && (uintptr_t)labels->data->data % 256 != 0)
        return trek_fail_null(TREK_ERR_CALLBACK, "the labels of a grain lie at %p", (void *)labels->data->data);
    trek_var *mean = trek_cross_entropy(output, reads_tokens(run->model) ? trek_reshape(labels, trek_dims(-1)) : labels);
    bool overflows = run->overflow && step_now + 1 == run->overflow && trek_module_is_training(trek_graph_module(graph));
    for (int64_t k = 0; k < trek_batch_size(batch) && overflows; k++)
        if (trek_batch_indices(batch)[k] == 30)
            return trek_mul_scalar(mean, INFINITY);
    return mean;
}

/* --- training --- */

#define EMPTY UINT64_C(0xcbf29ce484222325)

static uint64_t mix(uint64_t digest, const void *bytes, size_t n)
{
    for (size_t k = 0; k < n; k++)
        digest = (digest ^ ((const unsigned char *)bytes)[k]) * UINT64_C(0x100000001b3);
    return digest;
}

static uint64_t mix_tensor(uint64_t digest, const trek_tensor *x)
{
    trek_tensor *own = trek_tensor_readable((trek_tensor *)(uintptr_t)x), *here = trek_tensor_to(own, trek_cpu(0));
    trek_tensor_release(own);
    digest = here ? mix(digest, trek_tensor_data(here),
                        (size_t)trek_tensor_numel(here) * trek_dtype_size(trek_tensor_dtype(here)))
                  : digest;
    trek_tensor_release(here);
    return digest;
}

static trek_status add_values(const char *name, trek_var *var, void *arg)
{
    grain_result *r = arg;
    r->digest = mix_tensor(r->digest, trek_var_data(var));
    double *values = test_read(trek_var_data(var));
    for (int64_t i = 0; values && i < trek_var_numel(var) && r->n < GRAIN_MOST; i++)
        r->params[r->n++] = values[i];
    free(values);
    return TREK_OK;
}

bool grain_add_state(const grain_run *run, trek_graph *graph, grain_result *r)
{
    trek_optimizer_entry *entries;
    int n;
    if (trek_module_each_param(trek_graph_module(graph), add_values, r) != TREK_OK ||
        trek_module_each_buffer(trek_graph_module(graph), add_values, r) != TREK_OK)
        return false;
    if (run->sharded)
        return true;
    if (trek_optimizer_export(trek_graph_optimizer(graph), &entries, &n) != TREK_OK)
        return false;
    for (int k = 0; k < n; k++)
        r->digest = mix_tensor(r->digest, entries[k].tensor);
    trek_optimizer_export_free(entries, n);
    return true;
}

static trek_optimizer_spec optimizer_of(int k)
{
    const trek_optimizer_spec specs[] = { trek_adamw(&(trek_adam_opts){ .lr = 0.01 }),
                                          trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }),
                                          trek_lamb(&(trek_lamb_opts){ .lr = 0.01 }),
                                          trek_with_state(trek_adam(&(trek_adam_opts){ .lr = 0.01 }), TREK_BF16),
                                          trek_adafactor(&(trek_adafactor_opts){ .lr = 0.01 }),
                                          trek_with_state(trek_adam(&(trek_adam_opts){ .lr = 0.01 }), TREK_U8),
                                          trek_muon(&(trek_muon_opts){ .lr = 0.01 }) };
    return specs[k];
}

const trek_device *grain_devices_from(int first, int ranks, trek_device *devices)
{
    for (int r = 0; r < ranks && !test_on_cpu(); r++)
        devices[r] = trek_cuda((first + r) % trek_device_count(TREK_CUDA));
    return test_on_cpu() ? NULL : devices;
}

const trek_device *grain_devices(trek_comm *comm, int ranks, bool one, trek_device *devices)
{
    for (int r = 0; r < GRAIN_RANKS; r++)
        devices[r] = test_device();
    return grain_devices_from(comm ? trek_comm_rank(comm) * ranks : 0, one ? 0 : GRAIN_RANKS, devices);
}

void grain_flip(trek_device device, void *address, unsigned char bits)
{
    unsigned char byte;
    const trek_backend *backend = trek_backend_get(device.type);
    assert_int_equal(backend->copy_bytes(&byte, trek_cpu(0), address, device, 1, NULL), TREK_OK);
    byte ^= bits;
    assert_int_equal(backend->copy_bytes(address, device, &byte, trek_cpu(0), 1, NULL), TREK_OK);
}

trek_graph *grain_set_up(const grain_run *run, trek_loader *loader)
{
    trek_device room[GRAIN_RANKS];
    const trek_device *devices = grain_devices(run->comm, run->ranks, run->one_device, room);
    if (!run->comm && run->place > 0)
        grain_devices_from(run->place * run->ranks, run->ranks, room);
    trek_graph *graph = grain_build(room[0], (void *)(uintptr_t)&run->model);
    int64_t budgets[64]; /* which differ, where state is divided */
    bool many = run->ranks > 1 || run->comm || run->min_processes > 0;
    int divided = run->separate ? run->divided : 0;
    bool by_budgets = run->sharded && (run->batch % 2 || run->budget) && many;
    for (int r = 0; r < run->ranks && r < 64; r++)
        budgets[r] = run->budget ? run->budget : (int64_t)(64 << 20) << (r + trek_comm_rank(run->comm)) % 4;
    trek_trainer_opts opts = { .build_replica = grain_build, .arg = (void *)(uintptr_t)&run->model, .ranks = run->ranks,
                               .devices = devices,
                               .grain = run->grain, .share_params = run->separate ? TREK_OFF : 0,
                               .accumulate = run->accumulate, .shard = !run->sharded || !many ? TREK_SHARD_NONE
                               : (trek_shard)(TREK_SHARD_STATE + divided), .bucket_bytes = divided ? 2048 : 0,
                               .memory_budget = by_budgets ? budgets : NULL, .n_memory_budget = by_budgets ? run->ranks : 0,
                               .max_grad_norm = run->clipped ? 0.7 : 0,
                               .optimizer = optimizer_of(run->optimizer), .shares = run->shares, .n_shares = run->n_shares,
                               .comm = run->comm, .min_processes = run->min_processes, .max_anchor = TREK_OFF,
                               .balance = run->shares ? 0 : TREK_OFF,
                               .schedule = trek_cosine_lr(0.01, run->steps, 0.001),
                               .amp = { .dtype = run->autocast, .scaling = run->scaled ? 1 : TREK_OFF,
                                        .scaler = { .growth_interval = 2 } } };
    if (run->autocast == TREK_F32 && !run->scaled)
        opts.amp = (trek_amp_opts){ 0 };
    if (run->fp8)
        opts.amp = (trek_amp_opts){ .products = TREK_AMP_PRODUCTS_FP8, .fp8 = { .history = 3 } };
    if (trek_graph_set_loader(graph, loader, reads_tokens(run->model) ? "tokens" : "x") == TREK_OK &&
        trek_graph_set_loss(graph, loss, (void *)(uintptr_t)run) == TREK_OK && trek_trainer_setup(graph, &opts) == TREK_OK) {
        trek_step *s = trek_graph_ranks(graph);
        if (s && s->grains && run->piece)
            s->grains->piece = run->piece * TREK_BINNED_BLOCK;
        for (int r = 0; s && s->grains && r < s->team->local_ranks; r++)
            s->grains->sums[r].slots.least_product = 0;
        return graph;
    }
    trek_graph_free(&graph);
    return NULL;
}

/* The mean loss of an epoch without gradients. */
static bool evaluate(trek_graph *graph, grain_result *r)
{
    trek_graph_train(graph, false);
    trek_graph_start(graph, 100);
    for (trek_batch *batch; (batch = trek_graph_next(graph));) {
        trek_var *mean = trek_graph_train_batch(graph, batch);
        double value = mean ? trek_var_item(mean) : 0;
        if (r->n_losses < 64)
            r->losses[r->n_losses++] = value;
    }
    return trek_graph_train(graph, true) == TREK_OK;
}

/* All grains of the step again, in another order and in two calls, by one process alone: whoever runs a grain, and when, gives
 * the same. */
static bool run_again(const grain_run *run, trek_graph *graph)
{
    trek_step *s = trek_graph_ranks(graph);
    trek_grains *g = s->grains;
    for (int r = 0; r < s->team->local_ranks; r++)
        trek_grain_sums_clear(&g->sums[r]);
    g->n_records = 0;
    if (g->lent && trek_comm_barrier(s->job.comm) != TREK_OK) /* the sums of all processes are empty */
        return false;
    for (int64_t k = g->passes.n - 1; k >= 0 && s->job.process == run->again - 1; k--) {
        int64_t numbers[64], n = trek_grains_count(g, g->passes.of[k].rows), half = n / 3;
        for (int64_t i = 0; i < n; i++)
            numbers[(i * 37 + 5) % n] = n - 1 - i; /* 37 is no divisor of so few */
        if (trek_grains_run(s, k, numbers, half) != TREK_OK || trek_grains_run(s, k, numbers + half, n - half) != TREK_OK)
            return false;
    }
    return true;
}

typedef struct captured_pass {
    trek_batch *batch;
    double mean;
} captured_pass;

static trek_status make_pass(trek_graph *graph, void *arg)
{
    captured_pass *pass = arg;
    trek_var *mean = trek_graph_train_batch(graph, pass->batch);
    pass->mean = mean ? trek_var_item(mean) : 0;
    return trek_error_status();
}

/* Returns the mean loss of a batch on which the graph has been trained; 0 with an error. */
static double train_batch(const grain_run *run, trek_graph *graph, trek_batch *batch)
{
    captured_pass pass = { .batch = batch };
    run->captured ? trek_graph_capture(graph, make_pass, &pass) : make_pass(graph, &pass);
    return pass.mean;
}

/* Halves the parameters, which programs may write between two steps. */
static bool write_params(trek_graph *graph)
{
    const trek_replica *model = trek_graph_ranks(graph)->team->replicas[0].model;
    trek_status status = TREK_OK;
    for (int k = 0; k < model->n_params && status == TREK_OK; k++) {
        trek_tensor *value = model->params[k]->data, *half = trek_tensor_mul_scalar(value, 0.5);
        status = half ? trek_tensor_copy_from(value, half) : trek_error_status();
        trek_tensor_release(half);
    }
    return status == TREK_OK && trek_graph_parameters_changed(graph) == TREK_OK;
}

static bool train_epochs(const grain_run *run, trek_graph *graph, grain_result *r)
{
    int pass = 0, passes = run->accumulate > 1 ? run->accumulate : 1;
    int64_t epoch = 0;
    bool joined = run->min_processes > 0 && trek_trainer_joined(graph, NULL);
    if (joined)
        trek_loader_position(graph->graph_loader->loader, &epoch, NULL);
    r->joined = joined ? trek_graph_steps(graph) : 0;
    if (joined && run->on_joined)
        run->on_joined(graph);
    for (; trek_graph_steps(graph) < run->steps && trek_error_status() == TREK_OK; epoch++, joined = false) {
        if (!joined)
            trek_graph_start(graph, epoch);
        for (trek_batch *batch; (batch = trek_graph_next(graph));) {
            if (trek_graph_steps(graph) >= run->steps)
                continue;
            step_now = trek_graph_steps(graph);
            if (run->freezes && pass == 0)
                (step_now % 2 ? trek_graph_freeze : trek_graph_thaw)(graph, "0.a");
            double value = train_batch(run, graph, batch);
            if (r->n_losses < 64)
                r->losses[r->n_losses++] = value;
            r->digest = mix(r->digest, &value, sizeof value);
            if (++pass < passes)
                continue;
            pass = 0;
            int64_t grains = run->grain ? trek_graph_ranks(graph)->grains->n_records : 0;
            r->most_grains = grains > r->most_grains ? grains : r->most_grains;
            if (run->again && !run_again(run, graph))
                return false;
            if (trek_graph_step(graph) != TREK_OK) {
                if (run->on_failed)
                    run->on_failed(graph);
                return false;
            }
            double norm = trek_graph_grad_norm(graph);
            r->digest = isnan(norm) ? r->digest : mix(r->digest, &norm, sizeof norm);
            trek_step_digest digest = { .weight = 0 };
            if (run->grain != 0 && trek_trainer_digest(graph, trek_graph_steps(graph), &digest) != TREK_OK)
                return false;
            r->digest = mix(run->last_only ? EMPTY : r->digest, &digest, sizeof digest);
            if (run->writes && step_now == 1 && !write_params(graph))
                return false;
            if (run->after_step)
                run->after_step(graph);
        }
        if (run->on_epoch)
            run->on_epoch(graph);
        if (run->evaluates && trek_error_status() == TREK_OK && !evaluate(graph, r))
            return false;
    }
    double recorded[2] = { 0 };
    r->replays = trek_graph_replays(graph);
    snprintf(r->problem, sizeof r->problem, "%s", trek_graph_capture_problem(graph));
    if (trek_graph_flush(graph) == TREK_OK && !run->unrecorded && !run->silent) {
        recorded[0] = trek_graph_latest(graph, "sum");
        recorded[1] = trek_graph_latest(graph, "mean");
    }
    r->digest = mix(r->digest, recorded, sizeof recorded);
    return trek_error_status() == TREK_OK;
}

/* For the fake device: every kind of step once, and no 16-bit attention, whose tiles take longer than all the rest. */
static void make_short(grain_run *run)
{
    int most = run->fp8 ? 5 : run->overflow ? run->overflow + 1 : 3;
    run->steps = run->steps < most || run->whole ? run->steps : most;
    if (run->model == GPT && (run->fp8 || run->autocast == TREK_BF16))
        run->model = TIED_EMBEDDING;
}

bool grain_train(const grain_run *wanted, grain_result *result)
{
    grain_run own = *wanted;
    const grain_run *run = &own;
    if (!takes_all())
        make_short(&own);
    *result = (grain_result){ .digest = EMPTY };
    trek_seed(17);
    trek_loader *loader = trek_loader_new(grain_dataset(), &(trek_loader_opts){ .batch_size = run->batch, .shuffle = true,
                                                                               .seed = 5 });
    trek_graph *graph = loader ? grain_set_up(run, loader) : NULL;
    if (!(run->min_processes > 0 && graph && trek_trainer_joined(graph, NULL))) /* otherwise it has the numbers of the others */
        trek_seed(23);
    result->grain = graph && run->grain ? trek_graph_ranks(graph)->grain : 0;
    bool done = graph && train_epochs(run, graph, result) && grain_add_state(run, graph, result);
    result->world = graph ? trek_graph_world_size(graph) : 0;
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    return done;
}

/* --- drawn at random --- */

grain_run grain_draw(uint64_t *state, int ranks)
{
    grain_run run = { .model = (int)test_draw(state, MODELS), .ranks = 1 + (int)test_draw(state, (uint64_t)ranks),
                      .batch = 2 + (int)test_draw(state, 30), .steps = 3 + (int)test_draw(state, 4),
                      .optimizer = (int)test_draw(state, 4) };
    run.grain = 1 + (int)test_draw(state, (uint64_t)run.batch);
    run.separate = test_draw(state, 2);
    run.sharded = test_draw(state, 4) == 0;
    run.clipped = test_draw(state, 2);
    run.evaluates = test_draw(state, 4) == 0;
    run.freezes = run.model == MLP && test_draw(state, 2);
    run.accumulate = test_draw(state, 3) ? 0 : 2 + (int)test_draw(state, 2);
    run.autocast = test_draw(state, 3) ? TREK_F32 : TREK_BF16;
    run.scaled = test_draw(state, 4) == 0;
    run.overflow = run.scaled ? 1 + (int)test_draw(state, (uint64_t)run.steps) : 0;
    run.slow = test_draw(state, 2);
    run.piece = test_draw(state, 2) ? 0 : 1 + (int)test_draw(state, 9);
    run.divided = (int)test_draw(state, 3);
    return run;
}
