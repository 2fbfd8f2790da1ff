/* SPDX-License-Identifier: Apache-2.0 */
/* Grains that a rank runs in one forward and backward have the bits of grains that are passes of their own: models that are drawn
 * from row-wise layers, with any number of grains at a time, on any ranks. */
#include "autograd/ops.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/loader_position.h"
#include "distributed/grains/grains.h"
#include "distributed/stepper_internal.h"
#include "distributed/team/memory.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "graph/observe.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/kv_cache.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "optim/optimizers.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { SAMPLES = 60, FEATURES = 64, CLASSES = 7, TOKENS = 8, WORDS = 11, MOST = 700000 };

/* --- what is drawn --- */

static uint64_t drawn(uint64_t *state, uint64_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (*state >> 33) % below;
}

typedef enum grain_loss { CROSS_ENTROPY, WEIGHTED, MEAN, WITH_PARAMETER, LOSSES } grain_loss;

typedef struct training {
    uint64_t model;          /* the seed of its layers */
    int grain, batch, ranks, accumulate, steps;
    int at_once;             /* the most grains that run together; 0: none do */
    grain_loss loss;
    bool clipped, freezes, records, separate;
    bool drops;              /* the gradients of a pass in each step */
    bool embeds;             /* a model that begins with an embedding */
    bool attends;            /* a model of texts, with attention and parameters that are used several times */
    bool large;              /* one that has large parameters */
    trek_dtype autocast;
    bool wide;               /* a model whose activations need much more memory than its parameters */
    int64_t budget;          /* 0: none */
} training;

typedef struct outcome {
    float params[MOST];
    int n;
    double losses[64], recorded[64];
    int n_losses;
    int64_t together;        /* bytes that a grain needs, if any have run together */
    int64_t planned, peak, activations; /* with a budget */
} outcome;

static trek_module *through(trek_flow **flow, trek_module *m)
{
    *flow = *flow ? trek_flow_through(*flow, m) : trek_flow_from(m);
    return m;
}

static trek_module *draw_activation(uint64_t *state)
{
    switch (drawn(state, 6)) {
    case 0: return trek_nn_relu();
    case 1: return trek_nn_gelu();
    case 2: return trek_nn_tanh();
    case 3: return trek_nn_silu();
    case 4: return trek_nn_dropout(0.3);
    default: return trek_nn_identity();
    }
}

static trek_graph *build_wide(trek_device device)
{
    trek_flow *flow = NULL;
    trek_seed(11);
    for (int k = 0; k < 4; k++) {
        through(&flow, trek_nn_linear(FEATURES, 1024, device));
        through(&flow, trek_nn_gelu());
        through(&flow, trek_nn_linear(1024, k < 3 ? FEATURES : CLASSES, device));
    }
    return trek_flow_build(flow);
}

/* --- texts --- */

enum { MORE_PLACES = TOKENS + 3 };

/* Parameters that are repeated for all rows, cut into parts, cast, and used by several ops. */
typedef struct text {
    trek_module base;
    uint64_t kind;
    trek_module *blocks, *attention;
    trek_var *table, *places, *scale, *square;
} text;

static trek_var *text_forward(trek_module *self, trek_var *tokens)
{
    text *m = (text *)self;
    trek_var *places = m->kind & 1 ? trek_narrow(trek_mul_scalar(m->places, 2), 0, 1, TOKENS)
                                   : trek_embedding(trek_token_positions(tokens), m->places, -1);
    trek_var *x = trek_add(trek_embedding(tokens, m->table, -1), places);
    x = trek_forward(m->blocks, x);
    if (m->kind & 2)
        x = trek_mul(x, m->kind & 4 ? m->scale : trek_add_scalar(trek_square(m->scale), 1));
    if (m->attention) /* of other keys than queries, so that its weight is used in parts */
        x = trek_forward_many(m->attention, (trek_var *[]){ x, trek_tanh(x) }, 2);
    if (m->kind & 8)
        x = trek_sub(trek_matmul(x, m->square), trek_linear(x, trek_transpose(m->square, 0, 1), NULL));
    if (m->kind & 16)
        x = trek_add(x, trek_linear(trek_linear(x, m->square, NULL), m->square, NULL));
    return trek_flatten(trek_linear(x, m->kind & 32 ? m->table : trek_cast(m->table, trek_var_dtype(m->table)), NULL), 1, -1);
}

static const trek_module_class text_class = { .name = "text", .size = sizeof(text), .forward = text_forward, .rowwise = true };

static void param(trek_module *m, const char *name, size_t offset, trek_shape shape)
{
    trek_tensor *values = trek_tensor_randn(shape, TREK_F32, trek_cpu(0));
    for (int64_t i = 0; i < trek_tensor_numel(values); i++)
        ((float *)trek_tensor_data(values))[i] *= 0.2f;
    trek_module_param(m, name, offset, values);
}

static trek_graph *build_text(trek_device device, const training *of)
{
    uint64_t seed = of->model, *state = &seed;
    int64_t words = of->large ? 500 : drawn(state, 2) ? WORDS : 250; /* whose table has no slot */
    int64_t width = of->large ? 120 : drawn(state, 3) ? 24 : 72;
    trek_module *m = trek_module_new(&text_class);
    text *t = (text *)m;
    t->kind = drawn(state, 64);
    param(m, "table", offsetof(text, table), trek_dims(words, width));
    param(m, "places", offsetof(text, places), trek_dims(MORE_PLACES, width));
    if (t->kind & 2)
        param(m, "scale", offsetof(text, scale), drawn(state, 2) ? trek_dims(width) : trek_dims(1, TOKENS, 1));
    if (t->kind & 24)
        param(m, "square", offsetof(text, square), trek_dims(width, width));
    trek_module_add(m, "blocks", offsetof(text, blocks), trek_nn_transformer_encoder_with(&(trek_transformer_opts){
        .d_model = width, .heads = 1 + (int64_t)drawn(state, 3), .dim_feedforward = 2 * width,
            .layers = 1 + (int64_t)drawn(state, 2),
        .dropout = drawn(state, 2) ? 0.2 : TREK_ZERO, .causal = drawn(state, 2), .norm_first = drawn(state, 2),
        .activation = drawn(state, 2) ? TREK_ACTIVATION_GELU : TREK_ACTIVATION_RELU, .device = device }));
    if (drawn(state, 2))
        trek_module_add(m, "attention", offsetof(text, attention), trek_nn_multihead_attention_with(
            &(trek_multihead_attention_opts){ .embed_dim = width, .heads = 2, .add_bias_kv = drawn(state, 2),
                                              .causal = drawn(state, 2), .device = device }));
    trek_flow *flow = trek_flow_from(trek_module_check(m));
    return trek_flow_build(trek_flow_through(flow, trek_nn_linear(TOKENS * words, CLASSES, device)));
}

/* Images of 8 x 8 at first, or rows. */
static trek_graph *build(trek_device device, void *arg)
{
    if (((const training *)arg)->wide)
        return build_wide(device);
    if (((const training *)arg)->attends) {
        trek_seed(11);
        return build_text(device, arg);
    }
    uint64_t seed = ((const training *)arg)->model, *state = &seed;
    int64_t width = FEATURES;
    trek_flow *flow = NULL;
    trek_seed(11);
    bool pads = drawn(state, 2);
    if (((const training *)arg)->embeds) {
        through(&flow, trek_nn_embedding_with(&(trek_embedding_opts){ .num = WORDS, .dim = FEATURES / TOKENS,
                                                                      .padding_idx = pads ? 3 : 0, .device = device }));
        through(&flow, trek_nn_flatten());
    } else if (drawn(state, 3) == 0) {
        int64_t channels = 1 + (int64_t)drawn(state, 9);
        through(&flow, trek_nn_unflatten(1, trek_dims(1, 8, 8)));
        through(&flow, trek_nn_conv2d(1, channels, 3, device));
        through(&flow, draw_activation(state));
        if (drawn(state, 2))
            through(&flow, trek_nn_conv2d(channels, channels, 1, device));
        through(&flow, drawn(state, 2) ? trek_nn_max_pool2d(2) : trek_nn_avg_pool2d(2));
        through(&flow, trek_nn_flatten());
        width = channels * 9;
    }
    for (uint64_t layers = 1 + drawn(state, 3); layers > 0; layers--) {
        static const int64_t widths[] = { 5, 24, 48, 120, 256, 300 };
        int64_t next = widths[drawn(state, 6)];
        through(&flow, trek_nn_linear_with(&(trek_linear_opts){ .in = width, .out = next, .no_bias = drawn(state, 4) == 0,
                                                                .device = device }));
        width = next;
        if (drawn(state, 2))
            through(&flow, trek_nn_layer_norm(width, device));
        through(&flow, draw_activation(state));
        if (drawn(state, 3) == 0)
            flow = trek_flow_also(flow, trek_nn_linear(width, width, device));
    }
    through(&flow, trek_nn_linear(width, CLASSES, device));
    return trek_flow_build(flow);
}

static trek_dataset *make_dataset(void)
{
    static float x[SAMPLES * FEATURES];
    int64_t label[SAMPLES], tokens[SAMPLES * TOKENS];
    for (int i = 0; i < SAMPLES * FEATURES; i++)
        x[i] = test_number(1, (uint32_t)i) * (i / FEATURES % 5 == 0 ? 30 : 1);
    for (int i = 0; i < SAMPLES * TOKENS; i++)
        tokens[i] = (int64_t)((test_number(2, (uint32_t)i) + 1) * WORDS / 2);
    for (int i = 0; i < SAMPLES; i++)
        label[i] = i % 6 == 2 ? -100 : i % CLASSES;
    const char *names[] = { "x", "label", "tokens" };
    trek_tensor *tensors[] = { trek_tensor_from_data(x, trek_dims(SAMPLES, FEATURES), TREK_F32, trek_cpu(0)),
                               trek_tensor_from_data(label, trek_dims(SAMPLES), TREK_I64, trek_cpu(0)),
                               trek_tensor_from_data(tokens, trek_dims(SAMPLES, TOKENS), TREK_I64, trek_cpu(0)) };
    trek_dataset *dataset = trek_dataset_tensors(names, tensors, 3);
    for (int k = 0; k < 3; k++)
        trek_tensor_release(tensors[k]);
    return dataset;
}

/* --- training --- */

static trek_status first_param(const char *name, trek_var *param, void *arg)
{
    *(trek_var **)arg = param;
    return name ? TREK_ERR_STATE : TREK_OK; /* ends the walk */
}

static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    const training *t = arg;
    trek_var *labels = trek_batch_get(batch, "label"), *loss = NULL, *param = NULL;
    double first = (double)trek_batch_indices(batch)[0];
    if (t->records)
        trek_record_mean("mean", 0.7 * first / 3, (double)trek_batch_size(batch));
    if (t->loss == MEAN)
        return trek_mean(trek_square(output), trek_dims_all(), false);
    loss = trek_cross_entropy(output, labels);
    if (t->loss == WEIGHTED)
        trek_loss_set_weight(loss = trek_mul_scalar(loss, 1 + first), first / 7);
    if (t->loss == WITH_PARAMETER) { /* so that grains cannot run together */
        trek_module_each_param(trek_graph_module(graph), first_param, &param);
        trek_var *more = trek_mul_scalar(trek_mean(trek_square(param), trek_dims_all(), false), 0.1);
        trek_loss_set_weight(loss = trek_add(loss, more), (double)trek_batch_size(batch));
    }
    return loss;
}

static trek_status keep_values(const char *name, trek_var *var, void *arg)
{
    outcome *o = arg;
    int64_t n = trek_var_numel(var);
    assert_true(o->n + n <= MOST);
    memcpy(o->params + o->n, trek_tensor_data(trek_var_data(var)), (size_t)n * sizeof(float));
    o->n += (int)n;
    return TREK_OK;
}

static void prepare(const training *t, trek_graph *graph)
{
    trek_step *s = trek_graph_ranks(graph);
    for (int r = 0; r < t->ranks; r++) {
        trek_grain_sums *sums = &s->grains->sums[r];
        sums->slots.least_product = t->model % 2 ? 0 : sums->slots.least_product;
        if (t->at_once > 0)
            sums->slots.n = t->at_once;
        else
            sums->together.known = sums->together.alone = true;
    }
}

static trek_status first_path(const char *name, trek_var *param, void *arg)
{
    snprintf(arg, 32, "%.*s", (int)strcspn(name, "."), name);
    return param ? TREK_ERR_STATE : TREK_OK; /* ends the walk */
}

static void freeze_first(trek_graph *graph)
{
    char path[32];
    trek_module_each_param(trek_graph_module(graph), first_path, path);
    assert_int_equal(trek_graph_freeze(graph, path), TREK_OK);
}

static void step(const training *t, trek_graph *graph, trek_batch *batch, outcome *o)
{
    trek_var *mean = trek_graph_train_batch(graph, batch);
    if (mean && t->drops && trek_graph_zero_grad(graph) == TREK_OK)
        mean = trek_graph_train_batch(graph, batch);
    if (!mean)
        fail_msg("%s", trek_error());
    if (o->n_losses < 64)
        o->losses[o->n_losses++] = trek_var_item(mean);
    if (trek_graph_step(graph) != TREK_OK)
        fail_msg("%s", trek_error());
}

static void train(const training *t, outcome *o)
{
    trek_loader *loader = trek_loader_new(make_dataset(), &(trek_loader_opts){ .batch_size = t->batch });
    trek_graph *graph = build(trek_cpu(0), (void *)(uintptr_t)t);
    memset(o, 0, sizeof *o);
    if (!graph || trek_graph_set_loader(graph, loader, t->embeds || t->attends ? "tokens" : "x") != TREK_OK ||
        trek_graph_set_loss(graph, loss_of, (void *)(uintptr_t)t) != TREK_OK ||
        trek_trainer_setup(graph, &(trek_trainer_opts){
            .build_replica = build, .arg = (void *)(uintptr_t)t, .ranks = t->ranks, .grain = t->grain,
            .memory_budget = t->budget ? &t->budget : NULL, .n_memory_budget = t->budget ? 1 : 0,
            .accumulate = t->accumulate, .max_grad_norm = t->clipped ? 0.7 : 0, .share_params = t->separate ? TREK_OFF : 0,
            .amp = { .dtype = t->autocast, .scaling = t->autocast == TREK_F16 ? 1 : TREK_OFF,
                     .scaler = { .growth_interval = 2 } },
            .optimizer = trek_adamw(&(trek_adam_opts){ .lr = 0.01 }) }) != TREK_OK)
        fail_msg("%s", trek_error());
    prepare(t, graph);
    for (int64_t epoch = 0; trek_graph_steps(graph) < t->steps; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; (batch = trek_graph_next(graph));) {
            if (t->freezes && trek_graph_steps(graph) == 2)
                freeze_first(graph);
            step(t, graph, batch, o);
        }
        trek_graph_flush(graph);
        if (t->records && epoch < 64)
            o->recorded[epoch] = trek_trend_latest(trek_graph_trend(graph, "mean"));
    }
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), keep_values, o), TREK_OK);
    for (int r = 0; r < t->ranks; r++)
        o->together += trek_graph_ranks(graph)->grains->sums[r].together.bytes;
    if (t->budget) {
        const trek_team_memory *memory = trek_graph_ranks(graph)->team->memory;
        o->planned = trek_memory_total(&memory->rows[0]);
        o->activations = memory->rows[0].activations;
        o->peak = trek_memory_account_peak(memory->accounts[0]);
    }
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

/* --- cases --- */

static outcome apart, together;

static void expect_same(training t)
{
    training alone = t;
    alone.at_once = 0;
    alone.ranks = 1;
    train(&alone, &apart);
    train(&t, &together);
    assert_true(apart.n == together.n && apart.n > 0);
    for (int k = 0; k < apart.n; k++)
        if (memcmp(&apart.params[k], &together.params[k], sizeof(float)) != 0)
            fail_msg(
                "model %llu%s, %s, %d ranks, grains of %d in batches of %d, %d at once, accumulate %d, loss %d: parameter %d is "
                "%.9g, and %.9g in passes of their own",
                (unsigned long long)t.model, t.attends ? " of texts" : "", trek_dtype_name(t.autocast), t.ranks, t.grain, t.batch,
                t.at_once, t.accumulate, t.loss, k, (double)together.params[k],
                (double)apart.params[k]);
    assert_memory_equal(apart.losses, together.losses, sizeof apart.losses);
    assert_memory_equal(apart.recorded, together.recorded, sizeof apart.recorded);
    assert_int_equal(apart.together, 0);
    if (t.loss != WITH_PARAMETER && t.loss != WEIGHTED && together.together == 0) /* which have samples of weight 0 */
        fail_msg("model %llu%s, %s, %d ranks, grains of %d in batches of %d, %d at once: no grains have run together",
                 (unsigned long long)t.model, t.attends ? " of texts" : "", trek_dtype_name(t.autocast), t.ranks, t.grain,
                 t.batch,
                 t.at_once);
    else if (t.loss == WITH_PARAMETER)
        assert_int_equal(together.together, 0);
}

static void drawn_models_have_the_bits_of_single_grains(void **state)
{
    int n = test_short() ? 25 : 150;
    uint64_t seed = test_seed() * 1000003;
    for (int k = 0; k < n; k++) {
        training t = { .model = seed + (uint64_t)k, .steps = 4 };
        t.grain = 1 + (int)drawn(&seed, 9);
        t.batch = t.grain + (int)drawn(&seed, 30);
        t.batch = t.batch < SAMPLES ? t.batch : SAMPLES;
        t.ranks = 1 + (int)drawn(&seed, 3);
        t.accumulate = drawn(&seed, 4) == 0 ? 2 : 0;
        t.at_once = 2 + (int)drawn(&seed, 15);
        t.loss = (grain_loss)drawn(&seed, 3);
        t.clipped = drawn(&seed, 2);
        t.records = drawn(&seed, 3) == 0;
        t.separate = drawn(&seed, 2);
        t.embeds = drawn(&seed, 4) == 0;
        t.attends = drawn(&seed, 3) == 0;
        t.autocast = drawn(&seed, 3) ? TREK_F32 : drawn(&seed, 2) ? TREK_BF16 : TREK_F16;
        expect_same(t);
    }
}

/* Their gradients have no slots, and are computed as products, or kept for some of the grains. */
static void large_parameters_have_the_bits_of_single_grains(void **state)
{
    int n = test_short() ? 8 : 24;
    uint64_t seed = test_seed() * 1000033;
    for (int k = 0; k < n; k++) {
        training t = { .model = seed + (uint64_t)k, .attends = true, .large = true, .steps = 2, .batch = 20, .at_once = 16 };
        t.grain = 1 + k % 2;
        t.ranks = 1 + k % 3 / 2;
        t.accumulate = k % 4 == 3 ? 2 : 0;
        t.drops = t.clipped = k % 4 == 2; /* Adam alone sees no gradients that are twice as large */
        t.batch = t.drops ? 12 : t.batch;      /* then products wait until the step */
        t.autocast = k % 8 == 5 ? TREK_BF16 : TREK_F32;
        expect_same(t);
    }
}

static void a_loss_of_parameters_is_computed_for_each_grain(void **state)
{
    for (uint64_t model = 1; model < 5; model++)
        expect_same((training){ .model = model, .steps = 3, .grain = 3, .batch = 20, .ranks = 1 + (int)model % 2, .at_once = 16,
                                .loss = WITH_PARAMETER, .records = true });
}

static void frozen_parameters_do_not_change_that(void **state)
{
    for (uint64_t model = 1; model < 7; model++)
        expect_same((training){ .model = model, .steps = 5, .grain = 3, .batch = 20, .ranks = 1, .at_once = 4, .freezes = true });
}

/* The plan has the activations of one grain. Several run at once only if the budget has room for all that do. */
static void several_at_once_keep_to_the_budget(void **state)
{
    static outcome o;
    if (!trek_memory_account_counts())
        skip();
    training t = { .wide = true, .steps = 3, .grain = 4, .batch = SAMPLES, .ranks = 1, .at_once = 15, .budget = 1 << 30 };
    train(&t, &o);
    int64_t planned = o.planned, room = 2 * t.at_once * o.activations;
    assert_true(o.peak > planned + 4 * o.activations && o.together > 0);
    for (int k = 0; k <= 4; k++) {
        t.budget = planned + room * k / 4;
        train(&t, &o);
        assert_true(o.peak <= t.budget);
        assert_true(k == 4 ? o.together > 0 : o.peak <= planned);
    }
    expect_same(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_models_have_the_bits_of_single_grains),
        cmocka_unit_test(large_parameters_have_the_bits_of_single_grains),
        cmocka_unit_test(a_loss_of_parameters_is_computed_for_each_grain),
        cmocka_unit_test(frozen_parameters_do_not_change_that), cmocka_unit_test(several_at_once_keep_to_the_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
