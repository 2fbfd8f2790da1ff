/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that keep and update a part of the optimizer's state each, against ranks that keep all of it: the same bits, or to
 * rounding where the norm of gradients counts, whatever optimizer, options and dtype; against one device; what is kept; what
 * fails in one rank; what is refused. (Processes are in test_job, checkpoints in test_checkpoint.) */
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/checkpoint.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "graph/amp.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "optim/optimizers.h"
#include "optim/scaler.h"
#include "tensor/pages.h"
#include "tests/support/noted.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { IN = 9, HIDDEN = 37, OUT = 5, ROWS = 13, STEPS = 5, MOST = 8192 };

/* --- a run ------------------------------------------------------------------------------------------------------------ */

typedef enum kind { MOMENTUM, ADAM, ADAMW, RMSPROP, LION, NADAM, ADAGRAD, ELEMENTS, LAMB = ELEMENTS, LARS, ADAFACTOR, MUON, KINDS,
                    PLAIN = KINDS } kind;

typedef struct run {
    int ranks;
    bool mild;               /* with scaled: no step overflows, which would depend on the order of sums */
    bool grads, params;      /* with sharded: gradients are divided, too, and parameters */
    bool sharded, norm, value, scaled, groups, reduces;
    trek_dtype dtype, state;
    kind optimizer;
    int accumulate;
    int64_t bucket_bytes;
    bool unequal, apart;     /* apart: on GPUs of their own, where there are so many */
    bool few;                /* two parameters, of which one has no elements */
    int budgets;             /* of memory, where the state is divided: 1 to 4, which differ; 0: none */
} run;

/* --- the model: odd sizes, one parameter that is never used, one that only some ranks' rows reach ------------------- */

typedef struct net {
    trek_module base;
    trek_var *w1, *b1, *unused, *branch, *frozen, *nothing, *w2, *w3, *scale;
} net;

static trek_var *net_forward(trek_module *self, trek_var *x)
{
    net *m = (net *)self;
    trek_var *h = trek_add(trek_tanh(trek_linear(x, m->w1, m->b1)), m->frozen);
    if (test_any_marked(x))
        h = trek_add(h, trek_mul(trek_cast(trek_gt_scalar(trek_narrow(x, 1, 0, 1), 1.5), trek_var_dtype(x)), m->branch));
    h = trek_gelu(trek_linear(h, m->w2, NULL));
    return trek_mul(trek_linear(h, m->w3, NULL), m->scale);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

static void add(trek_module *m, const char *name, size_t offset, uint32_t stream, trek_shape shape, trek_dtype dtype,
                trek_device device)
{
    int64_t n = trek_shape_numel(shape);
    float *values = malloc((size_t)(n + 1) * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = 0.4f * test_number(stream, (uint32_t)i);
    trek_tensor *whole = trek_tensor_from_data(values, shape, TREK_F32, device), *own = trek_tensor_cast(whole, dtype);
    free(values);
    trek_tensor_release(whole);
    trek_module_param(m, name, offset, own);
}

/* Fewer parameters than ranks: one with all elements. */
static trek_var *few_forward(trek_module *self, trek_var *x) { return trek_linear(x, ((net *)self)->w1, NULL); }

static const trek_module_class few_class = { .name = "few", .size = sizeof(net), .forward = few_forward };

static trek_graph *build(trek_device device, void *arg)
{
    const run *c = arg;
    trek_dtype dtype = c->dtype, last = dtype == TREK_BF16 ? TREK_F32 : dtype; /* two parts of the arena */
    trek_module *m = trek_module_new(c->few ? &few_class : &net_class);
    if (c->few) {
        add(m, "w1", offsetof(net, w1), 1, trek_dims(OUT, IN), dtype, device);
        add(m, "nothing", offsetof(net, nothing), 6, trek_dims(0, 3), dtype, device);
        return trek_flow_build(trek_flow_from(trek_module_check(m)));
    }
    add(m, "w1", offsetof(net, w1), 1, trek_dims(HIDDEN, IN), dtype, device);
    add(m, "b1", offsetof(net, b1), 2, trek_dims(HIDDEN), dtype, device);
    add(m, "unused", offsetof(net, unused), 3, trek_dims(3, 100), dtype, device);
    add(m, "branch", offsetof(net, branch), 4, trek_dims(HIDDEN), dtype, device);
    add(m, "frozen", offsetof(net, frozen), 5, trek_dims(HIDDEN), dtype, device);
    add(m, "nothing", offsetof(net, nothing), 6, trek_dims(0, 3), dtype, device);
    add(m, "w2", offsetof(net, w2), 7, trek_dims(HIDDEN, HIDDEN), dtype, device);
    add(m, "w3", offsetof(net, w3), 8, trek_dims(OUT, HIDDEN), dtype, device);
    add(m, "scale", offsetof(net, scale), 9, trek_dims(OUT), last, device);
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

typedef struct result {
    int n;
    double values[MOST];
    double norm, scale;
} result;

static const trek_device *devices_of(const run *c)
{
    static const trek_device gpus[] = { { TREK_CUDA, 0 }, { TREK_CUDA, 1 }, { TREK_CUDA, 2 }, { TREK_CUDA, 3 } };
    return c->apart && !test_on_cpu() && trek_device_count(TREK_CUDA) >= 4 ? gpus : test_devices();
}

static trek_optimizer_spec optimizer_of(const run *c)
{
    trek_optimizer_spec specs[KINDS + 1] = {
        [PLAIN] = trek_sgd(&(trek_sgd_opts){ .lr = 0.05 }),
        [MOMENTUM] = trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true }),
        [ADAM] = trek_adam(&(trek_adam_opts){ .lr = 0.01, .amsgrad = true }),
        [ADAMW] = trek_adamw(&(trek_adam_opts){ .lr = 0.01 }),
        [RMSPROP] = trek_rmsprop(&(trek_rmsprop_opts){ .lr = 0.003, .momentum = 0.9, .centered = true }),
        [LION] = trek_lion(&(trek_lion_opts){ .lr = 0.002, .weight_decay = 0.1 }),
        [NADAM] = trek_nadam(&(trek_nadam_opts){ .lr = 0.01 }),
        [ADAGRAD] = trek_adagrad(&(trek_adagrad_opts){ .lr = 0.02 }),
        [LAMB] = trek_lamb(&(trek_lamb_opts){ .lr = 0.01, .weight_decay = 0.01 }),
        [LARS] = trek_lars(&(trek_lars_opts){ .lr = 0.1, .trust_coefficient = 0.1, .momentum = 0.9, .weight_decay = 0.01 }),
        [ADAFACTOR] = trek_adafactor(&(trek_adafactor_opts){ .lr = 0.02 }),
        [MUON] = trek_muon(&(trek_muon_opts){ .lr = 0.01 }),
    };
    bool whole = c->optimizer >= ELEMENTS && c->optimizer < KINDS; /* whose state is kept in full */
    return trek_with_state(specs[c->optimizer], whole ? TREK_F32 : c->state);
}

/* Each is larger than everything that the model needs, which little is left of in the smallest. */
static const int64_t budgets[4][4] = { { 64 << 20, 1 << 20, 200 << 20, 24 << 20 },
                                       { 1 << 19, 1 << 30, 1 << 19, 1 << 19 },
                                       { 5 << 20, 6 << 20, 7 << 20, 8 << 20 },
                                       { 100 << 20, 100 << 20, 100 << 20, 100 << 20 } };

static const int64_t *budgets_of(const run *c) { return c->sharded && c->budgets ? budgets[c->budgets - 1] : NULL; }

static trek_shard shard_of(const run *c)
{
    return !c->sharded ? TREK_SHARD_NONE : c->params ? TREK_SHARD_PARAMETERS : c->grads ? TREK_SHARD_GRADIENTS : TREK_SHARD_STATE;
}

static trek_status try_setup(const run *c, trek_graph *graph)
{
    static const double uneven[] = { 3, 1, 2, 5 };
    run own = *c;
    trek_trainer_opts opts = { .build_replica = build, .arg = &own, .devices = devices_of(c), .ranks = c->ranks,
                               .share_params = TREK_OFF, .shard = shard_of(c),
                               .bucket_bytes = c->bucket_bytes,
                               .memory_budget = budgets_of(c), .n_memory_budget = budgets_of(c) ? c->ranks : 0,
                               .optimizer = optimizer_of(c), .max_grad_norm = c->norm ? 0.2 : 0,
                               .max_grad_value = c->value ? 0.01 : 0, .accumulate = c->accumulate,
                               .shares = c->unequal ? uneven : NULL, .n_shares = c->unequal ? c->ranks : 0,
                               .max_anchor = TREK_OFF, .schedule = trek_cosine_lr(0.01, 2 * STEPS, 0.001) };
    if (c->scaled) /* the first steps overflow */
        opts.amp = (trek_amp_opts){ .scaling = 1,
                                    .scaler = { .init_scale = c->mild ? 0x1p20 : c->optimizer == ADAFACTOR ? 0x1p40 : 0x1p127,
                                                .backoff_factor = 0x1p-60, .growth_interval = 2 } };
    return trek_trainer_setup(graph, &opts);
}

/* Muon's go by AdamW, as they must. */
static void add_vectors(trek_graph *graph, kind optimizer)
{
    trek_optimizer_spec spec = optimizer == MUON ? trek_muon(&(trek_muon_opts){ .lr = 0.01, .adam = true })
                                                 : optimizer_of(&(run){ .optimizer = optimizer });
    if (trek_optimizer_vectors(trek_graph_optimizer(graph), spec) < 0)
        fail_msg("%s", trek_error());
}

static trek_graph *begin(const run *c)
{
    run own = *c;
    trek_graph *graph = build(devices_of(c)[0], &own);
    assert_non_null(graph);
    SUCCEEDS(try_setup(c, graph));
    if (!c->few)
        trek_var_set_requires_grad(((net *)trek_graph_at(graph, "0"))->frozen, false);
    if (c->groups || c->optimizer == MUON)
        add_vectors(graph, c->optimizer);
    return graph;
}

static trek_var *rows(uint32_t stream, int64_t width, trek_dtype dtype)
{
    float list[ROWS * IN];
    for (int i = 0; i < ROWS * width; i++)
        list[i] = i % (5 * IN) == 4 * IN ? 2 : test_number(stream, (uint32_t)i); /* every fifth row is marked */
    return trek_cast(trek_var_from(trek_tensor_from_data(list, trek_dims(ROWS, width), TREK_F32, test_device_of_rank(0))), dtype);
}

static trek_status pass(const run *c, trek_graph *graph, uint32_t stream)
{
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_graph_forward(graph, rows(2 * stream, IN, c->dtype));
    trek_var *error = trek_sub(trek_cast(y, TREK_F32), rows(2 * stream + 1, OUT, TREK_F32));
    trek_status status = trek_graph_backward(graph, trek_mean(trek_square(error), trek_dims_all(), false));
    trek_scope_end(scope);
    return status;
}

static trek_status make_step(const run *c, trek_graph *graph, uint32_t s)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < (c->accumulate ? c->accumulate : 1) && status == TREK_OK; k++)
        status = pass(c, graph, 10 * s + (uint32_t)k);
    if (c->reduces && status == TREK_OK)
        status = trek_graph_reduce(graph);
    return status == TREK_OK ? trek_graph_step(graph) : status;
}

static void look(trek_graph *graph, const run *c, result *to)
{
    static result other;
    memset(to, 0, sizeof *to);
    to->n = note_params(trek_graph_module(graph), to->values, MOST);
    for (int r = 1; r < c->ranks; r++) { /* all ranks alike, to the bit */
        note_params(trek_graph_module(trek_graph_replica(graph, r)), other.values, MOST);
        assert_memory_equal(to->values, other.values, (size_t)to->n * sizeof *to->values);
    }
    to->norm = trek_graph_grad_norm(graph);
    to->scale = c->scaled ? trek_grad_scaler_value(trek_graph_scaler(graph)) : 0;
}

static void train(const run *c, result *to)
{
    trek_graph *graph = begin(c);
    assert_true(c->ranks == 1 || trek_graph_ranks(graph)->team->sharers == (c->sharded ? c->ranks : 1));
    assert_true(devices_of(c) == test_devices() || trek_graph_ranks(graph)->overlap.possible);
        /* through NCCL, while backward goes on */
    for (uint32_t s = 0; s < STEPS; s++)
        if (make_step(c, graph, s) != TREK_OK)
            fail_msg("step %d: %s", (int)s, trek_error());
    look(graph, c, to);
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_graph_free(&graph);
}

static void describe(const run *c, char *text, size_t size)
{
    snprintf(text, size, "ranks %d %s optimizer %d accumulate %d buckets %d%s%s%s%s%s%s%s", c->ranks, trek_dtype_name(c->dtype),
             (int)c->optimizer, c->accumulate, (int)c->bucket_bytes, c->norm ? " norm" : "", c->value ? " value" : "",
             c->scaled ? " scaled" : "", c->state ? " state in fewer bits" : "", c->groups ? " groups" : "",
             c->unequal ? " unequal" : c->few ? " few" : "",
             c->reduces ? " reduces" : c->params ? " parameters in parts" : c->grads ? " gradients in parts" : "");
    if (c->budgets)
        snprintf(text + strlen(text), size - strlen(text), " budgets %d", c->budgets);
}

static void compare(const result *got, const result *expected, double tolerance, const run *c)
{
    char text[200];
    describe(c, text, sizeof text);
    assert_int_equal(got->n, expected->n);
    for (int k = 0; k < got->n; k++)
        if (!(fabs(got->values[k] - expected->values[k]) <= tolerance * (1 + fabs(expected->values[k]))))
            fail_msg("%s: number %d is %.17g instead of %.17g", text, k, got->values[k], expected->values[k]);
    assert_true(got->scale == expected->scale);
    if (c->norm)
        assert_true(fabs(got->norm - expected->norm) <= (tolerance > 0 ? tolerance : 1e-12) * expected->norm);
}

/* --- the tests ----------------------------------------------------------------------------------------------------------- */

static void same_as_unsharded(void **state)
{
    static result got, expected;
    static const trek_dtype dtypes[] = { TREK_F32, TREK_BF16, TREK_F64, TREK_F32, TREK_F16 };
    static const trek_dtype states[] = { TREK_BF16, TREK_U8, TREK_F32, TREK_U8 };
    int draws = test_short_on_device() ? 8 : test_short() ? 22 : 66;
    for (int k = 0; k < draws; k++) {
        uint32_t h = test_hash((uint32_t)k);
        run c = { .ranks = 2 + k % 3, .dtype = dtypes[k % 5],
                  .optimizer = (kind)(k & 1 ? (k / 2) % ELEMENTS : ELEMENTS + (k / 2) % (KINDS - ELEMENTS)), .norm = h & 1,
                  .value = h >> 1 & 1,
                  .scaled = (h >> 2 & 3) == 0, .state = states[h >> 4 & 3], .groups = h >> 6 & 1, .unequal = h >> 7 & 1,
                  .accumulate = (int)(h >> 8 & 3), .bucket_bytes = 512 << (h >> 10 & 7), .reduces = (h >> 13 & 3) == 0,
                  .apart = h >> 15 & 1, .few = (h >> 16 & 7) == 0,
                  .budgets = h >> 19 & 1 ? 1 + (int)(h >> 20 & 3) : 0 };
        train(&c, &expected);
        c.sharded = true;
        train(&c, &got);
        compare(&got, &expected, c.norm ? (trek_dtype_is_16bit(c.dtype) ? 0x1p-7 : 1e-6) : 0, &c);
    }
}

static void same_as_one_device(void **state)
{
    static result got, expected;
    for (int k = 0; k < 8; k++) {
        run c = { .ranks = 1, .dtype = TREK_F64, .optimizer = k == 3 ? MOMENTUM : k > 3 ? (kind)(ELEMENTS + k - 4) : (kind)k,
                  .norm = k == 1, .accumulate = k % 4, .bucket_bytes = 3000 };
        train(&c, &expected);
        c.sharded = true;
        c.budgets = k % 3;
        bool few = test_short_on_device(); /* where kernels are slow: each class on one number of ranks */
        for (c.ranks = few ? 2 + k % 3 : 1; c.ranks <= (few ? 2 + k % 3 : 4); c.ranks++) {
            train(&c, &got);
            compare(&got, &expected, 2e-6, &c); /* the loss is f32's */
        }
    }
}

/* Gradients that are reduced in each pass have the same bits if a step has one pass; so have parameters in parts. */
static void divided_gradients(void **state)
{
    static result got, expected;
    static const trek_dtype dtypes[] = { TREK_F32, TREK_BF16, TREK_F64, TREK_F32, TREK_F16 };
    for (int k = 0; k < (test_short_on_device() ? 16 : test_short() ? 24 : 96); k++) {
        uint32_t h = test_hash((uint32_t)(k + 1000));
        run c = { .ranks = 2 + (int)(h >> 22) % (test_on_cpu() ? 6 : 3), .apart = !test_on_cpu() && (h >> 15 & 1),
                  .dtype = dtypes[k % 5],
                  .optimizer = (kind)(k & 1 ? (k / 2) % ELEMENTS : ELEMENTS + (k / 2) % (KINDS - ELEMENTS)), .norm = h & 1,
                  .value = h >> 1 & 1, .scaled = (h >> 2 & 3) == 0, .groups = h >> 6 & 1, .accumulate = (int)(h >> 8 & 3),
                  .bucket_bytes = 512 << (h >> 10 & 15), .few = (h >> 16 & 7) == 0, .grads = true,
                  .mild = (h >> 8 & 3) > 1 };
        c.params = k / 2 % 2;
        c.unequal = c.ranks <= 4 && (h >> 7 & 1);
        c.budgets = c.ranks <= 4 && (h >> 19 & 1) ? 1 + (int)(h >> 20 & 3) : 0;
        train(&c, &expected);
        c.sharded = true;
        trek_pages_guard = test_on_cpu() || k % 4 < 2; /* without, a GPU's memory is used again without waiting */
        train(&c, &got);
        trek_pages_guard = true;
        bool same = !c.norm && c.accumulate < 2;
        compare(&got, &expected, same ? 0 : trek_dtype_is_16bit(c.dtype) ? 0x1p-7 : c.accumulate < 2 ? 1e-6 : 1e-5, &c);
    }
}

/* A graph that is set up anew goes on: its state comes together, and is divided among other ranks. */
static void set_up_again(void **state)
{
    static result got, expected;
    for (int k = 0; k < 8; k++) {
        run c = { .ranks = 2, .dtype = k & 1 ? TREK_BF16 : TREK_F32, .state = k & 2 ? TREK_U8 : TREK_F32,
                  .optimizer = k < 4 ? ADAMW : (kind)(ELEMENTS + k - 4), .budgets = 1 + k % 3,
                  .bucket_bytes = 2048, .sharded = false };
        for (int way = 0; way < 5; way++) { /* without parts, in parts, from parts to none and back, and to more parts */
            if ((way == 1 || (way >= 3 && (k + way) % 4)) && test_short_on_device())
                continue;
            trek_graph *graph = begin(&c);
            for (uint32_t s = 0; s < STEPS; s++) {
                c.sharded = way == 1 || (way >= 2 && s % 2 == 0);
                c.grads = way >= 3;
                c.params = way == 4;
                run own = c;
                if (trek_trainer_setup(graph, &(trek_trainer_opts){
                        .build_replica = build, .arg = &own, .devices = test_devices(), .ranks = 2, .share_params = TREK_OFF,
                        .memory_budget = s % 3 ? budgets_of(&c) : NULL, .n_memory_budget = s % 3 && budgets_of(&c) ? 2 : 0,
                        .bucket_bytes = s % 2 ? 1024 : 4096, .shard = shard_of(&c),
                        .max_anchor = TREK_OFF }) != TREK_OK ||
                    make_step(&c, graph, s) != TREK_OK)
                    fail_msg("way %d, step %d: %s", way, (int)s, trek_error());
            }
            look(graph, &c, way ? &got : &expected);
            trek_graph_free(&graph);
            if (way)
                compare(&got, &expected, 0, &c);
        }
    }
}

/* Bytes that a step's first use of an optimizer has made. */
static int64_t state_bytes(const run *c)
{
    trek_device device = test_device_of_rank(0);
    int64_t bytes = 0;
    trek_graph *graph = begin(c);
    for (int k = 0; k < 2; k++) {
        trek_graph_set_optimizer(graph, k ? trek_adam(&(trek_adam_opts){ .lr = 0.01 })
                                 : trek_sgd(&(trek_sgd_opts){ .lr = 0.01 }));
        bytes = trek_memory_usage(device).allocated - bytes;
    }
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_graph_free(&graph);
    return bytes;
}

/* All test ranks' devices count together: N ranks have one state instead of N. */
static void memory(void **state)
{
    for (int ranks = 2; ranks <= 4; ranks++) {
        run c = { .ranks = ranks, .dtype = TREK_F32, .optimizer = MOMENTUM, .bucket_bytes = 1 << 20 };
        int64_t all = state_bytes(&c);
        c.sharded = true;
        int64_t parts = state_bytes(&c), one = all / ranks;
        int64_t padding = 2 * 4 * (int64_t)(ranks * TREK_ARENA_SLOT) + ranks * 4096; /* and what allocations are rounded to */
        if (!(all > ranks * (int64_t)(2 * 4 * HIDDEN * HIDDEN) && parts <= one + padding))
            fail_msg("%d ranks keep %lld bytes, and in parts %lld", ranks, (long long)all, (long long)parts);
    }
    run c = { .ranks = 3, .dtype = TREK_BF16, .optimizer = MOMENTUM, .bucket_bytes = 2048, .sharded = true };
    trek_graph *graph = begin(&c);
    int64_t masters = 0;
    for (int r = 0; r < 3; r++)
        masters += trek_graph_ranks(graph)->team->replicas[r].arena->parts[1].master->numel;
    assert_int_equal(masters, trek_graph_ranks(graph)->team->replicas[0].arena->parts[1].count);
    trek_graph_free(&graph);
}

/* That a rank keeps: of a state, or (TREK_UPDATE_STATES) of masters. */
static int64_t numbers_of(const trek_optimizer *optimizer, int s, int part)
{
    const trek_tensor *kept = trek_optimizer_own(optimizer, s < TREK_UPDATE_STATES ? s : TREK_OWN_MASTERS, part);
    return kept ? kept->numel : 0;
}

/* Of classes that update whole parameters: one rank has all of each, the others none of it, and nobody nearly all. */
static void whole_memory(void **state)
{
    for (int k = ELEMENTS; k < KINDS; k++) {
        run c = { .ranks = 3, .dtype = TREK_BF16, .optimizer = (kind)k, .bucket_bytes = 2048, .sharded = true };
        trek_graph *graph = begin(&c), *undivided;
        assert_int_equal(make_step(&c, graph, 0), TREK_OK);
        c.sharded = false;
        undivided = begin(&c);
        const trek_optimizer *one = trek_graph_ranks(undivided)->team->replicas[0].optimizer;
        for (int p = 0; p < one->arena->n_parts; p++)
            for (int s = 0; s <= TREK_UPDATE_STATES; s++) {
                int64_t kept = 0;
                for (int r = 0; r < 3; r++)
                    kept += numbers_of(trek_graph_ranks(graph)->team->replicas[r].optimizer, s, p);
                assert_int_equal(kept, numbers_of(one, s, p)); /* each number once */
            }
        int64_t elements[3] = { 0 };
        for (int q = 0; q < one->arena->n_segments; q++)
            elements[trek_graph_ranks(graph)->team->replicas[0].arena->owner[q]] += one->arena->segments[q].count;
        for (int r = 0; r < 3; r++)
            if (elements[r] == 0 || elements[r] > HIDDEN * HIDDEN) /* w2 alone, which is more than half of all */
                fail_msg("optimizer %d: rank %d has %lld elements", k, r, (long long)elements[r]);
        trek_graph_free(&graph);
        trek_graph_free(&undivided);
    }
}

/* One optimizer after another: what is cut within parameters becomes cut between them, and back; masters stay what they were,
 * and so do gradients that were reduced, or sent, before. */
static void optimizers_change(void **state)
{
    static result got, expected;
    static const kind order[] = { ADAM, LAMB, MUON, LION, ADAFACTOR, LARS, MOMENTUM };
    for (int k = 0; k < (test_short_on_device() ? 3 : 6); k++) {
        run c = { .ranks = 2 + k % 3, .dtype = k % 3 == 0 ? TREK_BF16 : k % 3 == 1 ? TREK_F32 : TREK_F16, .optimizer = ADAM,
                  .bucket_bytes = 2048, .reduces = k >= 3, .apart = k & 1, .accumulate = 2, .budgets = k % 4 };
        for (int sharded = 0; sharded < 4; sharded++) {
            c.sharded = sharded;
            c.grads = sharded >= 2;
            c.params = sharded == 3;
            c.optimizer = order[0];
            trek_graph *graph = begin(&c);
            for (uint32_t s = 0; s < sizeof order / sizeof *order; s++) {
                assert_int_equal(pass(&c, graph, 2 * s), TREK_OK); /* of two passes one is before the change */
                if (c.reduces && !c.grads)
                    assert_int_equal(trek_graph_reduce(graph), TREK_OK);
                c.optimizer = order[s];
                if (s > 0 && trek_graph_set_optimizer(graph, optimizer_of(&c)) != TREK_OK)
                    fail_msg("%s", trek_error());
                bool owners = trek_graph_ranks(graph)->team->replicas[0].arena->owner;
                assert_true(owners == (sharded && order[s] >= ELEMENTS));
                if (order[s] == MUON)
                    add_vectors(graph, MUON);
                assert_int_equal(pass(&c, graph, 2 * s + 1), TREK_OK);
                assert_int_equal(trek_graph_step(graph), TREK_OK);
            }
            look(graph, &c, sharded ? &got : &expected);
            trek_graph_free(&graph);
            if (sharded) /* passes of divided gradients are added in another order */
                compare(&got, &expected, !c.grads ? 0 : c.dtype == TREK_F32 ? 1e-5 : 0x1p-7, &c);
        }
    }
}

/* Whatever allocation fails when cuts are to lie elsewhere: the optimizer that there was goes on, where its state is. */
static void change_that_fails(void **state)
{
    static result got, expected;
    if (!test_on_cpu())
        skip();
    run c = { .ranks = 3, .dtype = TREK_BF16, .optimizer = MOMENTUM, .bucket_bytes = 2048 };
    train(&c, &expected);
    c.sharded = c.grads = c.params = true;
    trek_graph *graph = begin(&c);
    assert_int_equal(make_step(&c, graph, 0), TREK_OK);
    trek_optimizer *optimizer = trek_graph_optimizer(graph);
    int failures = 0;
    trek_status status = TREK_ERR_MEMORY;
    for (int64_t at = 1; status != TREK_OK; at++) {
        test_memory.fail_count = 1 << 20; /* and all from there on */
        test_allocator_restart(at);
        status = trek_graph_set_optimizer(graph, trek_lamb(&(trek_lamb_opts){ .lr = 0.01 }));
        test_allocator_restart(0);
        failures += status != TREK_OK;
        if (status == TREK_OK)
            break;
        assert_ptr_equal(trek_graph_optimizer(graph), optimizer);
        assert_null(trek_graph_ranks(graph)->team->replicas[at % 3].arena->owner);
        trek_error_clear();
        if (failures < STEPS && make_step(&c, graph, (uint32_t)failures) != TREK_OK)
            fail_msg("%s", trek_error());
        if (failures == STEPS - 1) {
            look(graph, &c, &got);
            compare(&got, &expected, 0, &c);
        }
    }
    assert_true(failures > STEPS && trek_graph_ranks(graph)->team->replicas[0].arena->owner);
    trek_graph_free(&graph);
}

/* A rank that cannot come to its step: all learn of it, nothing has changed, and they go on. */
static void failing_rank(void **state)
{
    static result before, after, got, expected;
    for (int sharded = 0; sharded < 4; sharded++) {
        run c = { .ranks = 3, .dtype = TREK_F32, .optimizer = ADAM, .bucket_bytes = 2048, .norm = true, .sharded = sharded,
                  .grads = sharded >= 2, .params = sharded == 3 };
        trek_graph *graph = begin(&c);
        assert_int_equal(make_step(&c, graph, 0), TREK_OK);
        look(graph, &c, &before);
        if (sharded) {
            trek_var *moved = ((net *)trek_graph_at(trek_graph_replica(graph, 2), "0"))->w2;
            trek_var *grad = moved->leaf->grad;
            moved->leaf->grad_in_arena = false; /* as if it lived elsewhere now */
            assert_int_not_equal(make_step(&c, graph, 1), TREK_OK);
            assert_non_null(strstr(trek_error(), "w2"));
            trek_error_clear();
            assert_ptr_equal(moved->leaf->grad, grad);
            moved->leaf->grad_in_arena = true;
            look(graph, &c, &after);
            assert_memory_equal(before.values, after.values, (size_t)before.n * sizeof *before.values);
            assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
        }
        assert_int_equal(make_step(&c, graph, 1), TREK_OK);
        look(graph, &c, sharded ? &got : &expected);
        if (sharded)
            compare(&got, &expected, 1e-6, &c);
        trek_graph_free(&graph);
    }
}

/* A group that brings a state with it: further ranks have it, too, when all gather theirs. */
static void group_before_saving(void **state)
{
    run c = { .ranks = 3, .dtype = TREK_F32, .optimizer = PLAIN, .bucket_bytes = 2048, .sharded = true };
    trek_graph *graph = begin(&c);
    assert_int_equal(make_step(&c, graph, 0), TREK_OK);
    assert_int_equal(trek_optimizer_vectors(trek_graph_optimizer(graph), optimizer_of(&(run){ .optimizer = MOMENTUM })), 1);
    char path[] = "/tmp/trek-sharded-XXXXXX";
    close(mkstemp(path));
    SUCCEEDS(trek_checkpoint_save(graph, NULL, path));
    unlink(path);
    assert_int_equal(make_step(&c, graph, 1), TREK_OK);
    trek_graph_free(&graph);
}

static void expect_refused(const run *c, trek_optimizer_spec spec, trek_average average, trek_status status, const char *text)
{
    run own = *c;
    trek_graph *graph = build(test_device_of_rank(0), &own);
    trek_status got = trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = build, .arg = &own, .devices = test_devices(), .ranks = c->ranks, .share_params = TREK_OFF,
        .shard = TREK_SHARD_STATE, .optimizer = spec, .average = average });
    if (got != status || !strstr(trek_error(), text))
        fail_msg("%s: %s", trek_status_name(got), trek_error());
    trek_error_clear();
    trek_graph_free(&graph);
}

static void refused(void **state)
{
    run c = { .ranks = 2, .dtype = TREK_F32, .optimizer = ADAM, .sharded = true };
    expect_refused(&c, optimizer_of(&c), TREK_AVERAGE_PARAMETERS, TREK_ERR_ARGUMENT, ".shard");
    trek_graph *graph = begin(&c);
    assert_int_equal(make_step(&c, graph, 0), TREK_OK);
    trek_optimizer *optimizer = trek_graph_optimizer(graph);
    trek_optimizer_spec bad = trek_with_state(trek_lamb(NULL), TREK_U8);
    FAILS(trek_graph_set_optimizer(graph, bad), TREK_ERR_UNSUPPORTED, "");
    assert_ptr_equal(trek_graph_optimizer(graph), optimizer);
    assert_null(trek_optimizer_save(optimizer)); /* a part of it would be no state */
    expect_error(TREK_ERR_STATE, "trek_checkpoint_save");
    FAILS(trek_optimizer_step(optimizer), TREK_ERR_STATE, "");
    assert_int_equal(make_step(&c, graph, 1), TREK_OK);
    trek_graph_free(&graph);
}

static void refuse_divided(const trek_trainer_opts *opts, const char *text)
{
    run c = { .dtype = TREK_F32 };
    for (int k = 0; k < 2; k++) {
        char whole[200];
        trek_graph *graph = build(trek_cpu(0), &c);
        trek_trainer_opts all = *opts;
        all.build_replica = build;
        all.arg = &c;
        all.shard = k ? TREK_SHARD_PARAMETERS : TREK_SHARD_GRADIENTS;
        all.optimizer = optimizer_of(&c);
        snprintf(whole, sizeof whole, ".shard: %s, with %s", k ? "TREK_SHARD_PARAMETERS" : "TREK_SHARD_GRADIENTS", text);
        FAILS(trek_trainer_setup(graph, &all), TREK_ERR_UNSUPPORTED, whole);
        trek_graph_free(&graph);
    }
}

/* And on GPUs: a driver that has no pages. */
static void refused_on_gpus(void **state)
{
    run c = { .ranks = 2, .dtype = TREK_F32, .optimizer = ADAM, .sharded = true, .grads = true };
    void (*fail_calls)(const char *) = NULL;
    void *found = test_fake("trek_fake_fail");
    if (test_on_cpu() || !found)
        skip();
    memcpy(&fail_calls, &found, sizeof found);
    fail_calls("cuMemGetAllocationGranularity:1+");
    trek_graph *graph = build(test_device_of_rank(0), &c);
    FAILS(try_setup(&c, graph), TREK_ERR_UNSUPPORTED, "whose memory cannot be given back in pieces: the device has no virtual");
    fail_calls(NULL);
    SUCCEEDS(try_setup(&c, graph));
    trek_graph_free(&graph);
}

/* What divided gradients do not work with. */
static void refused_divided(void **state)
{
    if (!test_on_cpu())
        skip();
    refuse_divided(&(trek_trainer_opts){ .ranks = 2 }, "ranks that share their parameters");
    refuse_divided(&(trek_trainer_opts){ .ranks = 2, .share_params = TREK_OFF, .max_anchor = 3 }, "windows");
    refuse_divided(&(trek_trainer_opts){ .ranks = 2, .share_params = TREK_OFF, .grain = 2, .audit = 0.5 }, "audits of grains");
    refuse_divided(&(trek_trainer_opts){ .ranks = 2, .share_params = TREK_OFF, .grain = 2, .digests = "/tmp/trek-none" },
                   "a file of digests");
    run c = { .ranks = 3, .dtype = TREK_F32, .optimizer = ADAM, .sharded = true, .grads = true };
    trek_graph *graph = begin(&c);
    assert_int_equal(pass(&c, graph, 0), TREK_OK);
    FAILS(trek_graph_reduce(graph), TREK_ERR_UNSUPPORTED, "divided");
    assert_int_equal(trek_graph_step(graph), TREK_OK); /* with the gradients of the pass */
    trek_graph_free(&graph);
    c.ranks = 1; /* a single rank divides nothing */
    graph = begin(&c);
    assert_int_equal(make_step(&c, graph, 0), TREK_OK);
    assert_int_equal(trek_graph_reduce(graph), TREK_OK);
    trek_graph_free(&graph);
}

int main(void)
{
    setenv("TREK_FAKE_GPUS", "4", 0);
    setenv("TREK_CACHE", "off", 1); /* so that each allocation can fail */
    trek_pages_guard = true; /* whoever reads what a rank does not have is stopped */
    if (test_allocator_use() != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_unsharded), cmocka_unit_test(divided_gradients), cmocka_unit_test(same_as_one_device),
            cmocka_unit_test(set_up_again),
        cmocka_unit_test(memory), cmocka_unit_test(whole_memory), cmocka_unit_test(optimizers_change),
        cmocka_unit_test(change_that_fails), cmocka_unit_test(failing_rank), cmocka_unit_test(group_before_saving),
        cmocka_unit_test(refused), cmocka_unit_test(refused_divided), cmocka_unit_test(refused_on_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
