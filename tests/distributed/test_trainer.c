/* SPDX-License-Identifier: Apache-2.0 */
/* trek_trainer_setup: what each option does, against the same set by the calls of a graph; which are refused, and that the
 * graph then trains as before; how replicas are made; what it tells. (That settings survive it is in test_settings, that
 * ranks are exact in test_exact and test_graph_loader.) */
#include <pthread.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "distributed/trainer_ranks.h"
#include "graph/amp.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "graph/timeline.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "optim/schedules.h"
#include "tensor/rank_context.h"
#include "tests/support/noted.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { IN = 4, OUT = 2, ROWS = 12, STEPS = 4, MOST = 64, WORLD = 3 };

/* --- a model, and steps with it ------------------------------------------------------------------ */

static trek_module *layer(int64_t in, int64_t out, trek_device device)
{
    return trek_nn_linear_with(&(trek_linear_opts){ .in = in, .out = out, .device = device, .dtype = TREK_F64 });
}

static trek_graph *build(trek_device device, void *arg)
{
    trek_flow *flow = trek_flow_from(layer(IN, 5, device));
    trek_flow_through(flow, trek_nn_tanh());
    trek_flow_through(flow, layer(5, OUT, device));
    return trek_flow_build(flow);
}

static trek_graph *built(void)
{
    trek_seed(3);
    trek_graph *graph = build(test_device(), NULL);
    assert_non_null(graph);
    return graph;
}

static trek_var *numbers(uint32_t stream, int64_t rows, int64_t columns)
{
    double list[ROWS * IN];
    for (int64_t k = 0; k < rows * columns; k++)
        list[k] = test_number(stream, (uint32_t)k);
    return trek_var_from(trek_tensor_from_data(list, trek_dims(rows, columns), TREK_F64, test_device()));
}

/* One pass over `rows` of the step's rows. */
static void pass(trek_graph *graph, int step, int64_t first, int64_t rows)
{
    trek_var *x = trek_narrow(numbers(2 * (uint32_t)step, ROWS, IN), 0, first, rows),
             *y = trek_narrow(numbers(2 * (uint32_t)step + 1, ROWS, OUT), 0, first, rows);
    if (trek_graph_backward(graph, trek_mse_loss(trek_graph_forward(graph, x), y)) != TREK_OK)
        fail_msg("pass of step %d: %s", step, trek_error());
}

static void make_step(trek_graph *graph, int step, int passes)
{
    trek_scope scope = trek_scope_begin();
    for (int k = 0; k < passes; k++) /* of unequal size */
        pass(graph, step, k ? 5 : 0, passes == 1 ? ROWS : k ? ROWS - 5 : 5);
    if (trek_graph_step(graph) != TREK_OK)
        fail_msg("step %d: %s", step, trek_error());
    trek_scope_end(scope);
}

typedef struct values {
    int n;
    double of[MOST];
} values;

static values read_graph(trek_graph *graph)
{
    values v = { .n = 0 };
    v.n = note_params(trek_graph_module(graph), v.of, MOST);
    assert_int_equal(v.n, IN * 5 + 5 + 5 * OUT + OUT);
    return v;
}

static double difference(const values *a, const values *b)
{
    double most = 0;
    for (int k = 0; k < a->n; k++)
        most = fmax(most, fabs(a->of[k] - b->of[k]));
    return most;
}

static trek_optimizer_spec adam(void) { return trek_adam(&(trek_adam_opts){ .lr = 0.02 }); }

static trek_trainer_opts options(int world)
{
    return (trek_trainer_opts){ .build_replica = build, .devices = test_devices(), .ranks = world, .optimizer = adam(),
                                .balance = TREK_OFF, .max_anchor = TREK_OFF };
}

static void set_up(trek_graph *graph, const trek_trainer_opts *opts)
{
    if (trek_trainer_setup(graph, opts) != TREK_OK)
        fail_msg("setup: %s", trek_error());
}

/* --- options of training: as the graph's own calls ------------------------------------------------ */

typedef struct course {
    const char *name;
    trek_trainer_opts opts;                /* added to options() */
    void (*same)(trek_graph *graph);       /* the same by calls */
    int passes;                            /* of the trained graph; the other always makes one of all rows */
} course;

static void same_nothing(trek_graph *graph) { (void)graph; }
static void same_sgd(trek_graph *graph)
{
    trek_graph_set_optimizer(graph, trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.5 }));
}
static void same_norm(trek_graph *graph) { trek_graph_set_clip(graph, 0.05, 0); }
static void same_value(trek_graph *graph) { trek_graph_set_clip(graph, 0, 0.01); }

static void same_schedule(trek_graph *graph)
{
    trek_schedule schedule = trek_step_lr(0.3, 1, 0.5);
    trek_graph_set_schedule(graph, &schedule);
}

static void same_scaling(trek_graph *graph)
{
    trek_graph_set_amp(graph, &(trek_amp_opts){ .scaling = 1, .scaler = { .init_scale = 8, .growth_interval = 2 } });
}

static values trained(const course *c, int world)
{
    trek_graph *graph = built();
    if (world == 0) {
        assert_int_equal(trek_graph_set_optimizer(graph, adam()), TREK_OK);
        c->same(graph);
    } else {
        trek_trainer_opts o = c->opts, basic = options(world);
        o.build_replica = basic.build_replica;
        o.devices = basic.devices;
        o.ranks = basic.ranks;
        o.optimizer = o.optimizer.klass ? o.optimizer : basic.optimizer;
        o.balance = o.balance ? o.balance : basic.balance;
        o.max_anchor = basic.max_anchor;
        set_up(graph, &o);
        memset(&o, 0xff, sizeof o); /* it was copied */
    }
    for (int step = 0; step < STEPS; step++)
        make_step(graph, step, world ? c->passes : 1);
    values v = read_graph(graph);
    assert_int_equal(trek_graph_steps(graph), STEPS);
    trek_graph_free(&graph);
    return v;
}

static void options_are_the_calls(void **state)
{
    const course courses[] = {
        { "nothing", { 0 }, same_nothing, 1 },
        { "optimizer", { .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.5 }) }, same_sgd, 1 },
        { "schedule", { .schedule = trek_step_lr(0.3, 1, 0.5) }, same_schedule, 1 },
        { "max_grad_norm", { .max_grad_norm = 0.05 }, same_norm, 1 },
        { "max_grad_value", { .max_grad_value = 0.01 }, same_value, 1 },
        { "amp", { .amp = { .scaling = 1, .scaler = { .init_scale = 8, .growth_interval = 2 } } }, same_scaling, 1 },
        { "accumulate", { .accumulate = 2, .max_grad_norm = 0.05 }, same_norm, 2 },
        { "share_params", { .share_params = TREK_OFF }, same_nothing, 1 },
        { "bucket_bytes", { .share_params = TREK_OFF, .bucket_bytes = 1 }, same_nothing, 1 },
        { "overlap off", { .share_params = TREK_OFF, .overlap = TREK_OFF }, same_nothing, 1 },
        { "overlap", { .share_params = TREK_OFF, .overlap = 1 }, same_nothing, 1 },
        { "speed_hint", { .speed_hint = { .slow_rank = 0, .ratio = 3 }, .balance = 1 }, same_nothing, 1 },
        { "deadline_s", { .deadline_s = TREK_OFF }, same_nothing, 1 },
    };
    values plain = trained(&courses[0], 0);
    for (size_t k = 0; k < sizeof courses / sizeof *courses; k++) {
        values expected = trained(&courses[k], 0);
        if (courses[k].same != same_nothing && courses[k].same != same_scaling)
            assert_true(difference(&expected, &plain) > 1e-4);
        for (int world = 1; world <= WORLD; world++) {
            values got = trained(&courses[k], world);
            if (!(difference(&got, &expected) < 1e-12))
                fail_msg("%s on %d ranks: off by %g", courses[k].name, world, difference(&got, &expected));
        }
    }
}

static void what_the_graph_then_says(void **state)
{
    for (int world = 1; world <= WORLD; world++) {
        trek_graph *graph = built();
        trek_trainer_opts opts = options(world);
        opts.amp = (trek_amp_opts){ .scaling = 1, .scaler = { .init_scale = 32 } };
        opts.schedule = trek_exponential_lr(0.5, 0.5);
        opts.timeline = trek_timeline_new(NULL);
        set_up(graph, &opts);
        assert_int_equal(trek_graph_world_size(graph), world);
        assert_float_equal(trek_graph_lr(graph), 0.02, 0);
        assert_true(trek_grad_scaler_value(trek_graph_scaler(graph)) == 32);
        make_step(graph, 0, 1);
        make_step(graph, 1, 1);
        assert_float_equal(trek_graph_lr(graph), 0.25, 0); /* of the step that was made */
        assert_int_equal(trek_graph_steps(graph), 2);
        assert_true(trek_timeline_count(opts.timeline) > 0); /* it was attached, and is the caller's */
        trek_graph_free(&graph);
        trek_timeline_free(&opts.timeline);
    }
}

/* TREK_OFF ends clipping that the graph had; 0 leaves it. */
static void clipping_is_left_or_ended(void **state)
{
    for (int world = 1; world <= 2; world++)
        for (int off = 0; off < 2; off++) {
            trek_graph *graph = built();
            trek_graph_set_clip(graph, 1e-3, 0);
            trek_trainer_opts opts = options(world);
            opts.max_grad_norm = off ? TREK_OFF : 0;
            set_up(graph, &opts);
            make_step(graph, 0, 1);
            assert_int_equal(isnan(trek_graph_grad_norm(graph)), off);
            trek_graph_free(&graph);
        }
}

/* --- replicas ---------------------------------------------------------------------------------------- */

typedef struct witness {
    int calls, at_a_time, most_at_a_time, wrong_devices;
    pthread_t threads[WORLD];
    pthread_mutex_t lock;
    double seed;
} witness;

static trek_graph *watched(trek_device device, void *arg)
{
    witness *w = arg;
    pthread_mutex_lock(&w->lock);
    int call = w->calls++;
    w->at_a_time++;
    w->most_at_a_time = w->at_a_time > w->most_at_a_time ? w->at_a_time : w->most_at_a_time;
    w->wrong_devices += !trek_device_equal(device, test_device_of_rank(trek_rank_here.rank));
    w->threads[call] = pthread_self();
    trek_seed(100 + (uint64_t)call); /* other values than rank 0's */
    pthread_mutex_unlock(&w->lock);
    trek_var_from(trek_tensor_ones(trek_dims(3), TREK_F32, device)); /* its scope is ended for it */
    trek_graph *graph = build(device, NULL);
    pthread_mutex_lock(&w->lock);
    w->at_a_time--;
    pthread_mutex_unlock(&w->lock);
    return graph;
}

static void replicas_are_made_once(void **state)
{
    for (int separate = 0; separate < 2; separate++) {
        witness w = { .lock = PTHREAD_MUTEX_INITIALIZER };
        trek_graph *graph = built();
        values first = read_graph(graph);
        trek_trainer_opts opts = options(WORLD);
        opts.build_replica = watched;
        opts.arg = &w;
        opts.share_params = separate ? TREK_OFF : 0;
        set_up(graph, &opts);
        assert_int_equal(w.calls, WORLD - 1);
        assert_int_equal(w.most_at_a_time, 1);
        assert_int_equal(w.wrong_devices, 0);
        assert_false(pthread_equal(w.threads[0], w.threads[1]) || pthread_equal(w.threads[0], pthread_self()));
        trek_var *mine = trek_module_find(trek_graph_module(graph), "0.weight");
        for (int r = 0; r < WORLD; r++) {
            trek_graph *replica = trek_graph_replica(graph, r);
            values other = read_graph(replica);
            assert_memory_equal(other.of, first.of, (size_t)first.n * sizeof(double)); /* rank 0's values */
            trek_var *its = trek_module_find(trek_graph_module(replica), "0.weight");
            if (test_on_cpu())
                assert_int_equal(trek_tensor_data(trek_var_data(its)) == trek_tensor_data(trek_var_data(mine)),
                                 r == 0 || !separate);
        }
        make_step(graph, 0, 1);
        trek_graph_free(&graph);
        assert_int_equal(trek_error_status(), TREK_OK);
    }
}

/* One rank needs no build_replica, and none is made. */
static void one_rank_makes_none(void **state)
{
    witness w = { .lock = PTHREAD_MUTEX_INITIALIZER };
    trek_graph *graph = built();
    set_up(graph, &(trek_trainer_opts){ .build_replica = watched, .arg = &w, .devices = test_devices(), .ranks = 1 });
    set_up(graph, &(trek_trainer_opts){ .devices = test_devices(), .ranks = 1, .optimizer = adam() });
    assert_int_equal(w.calls, 0);
    trek_trainer_workload workload;
    assert_int_equal(trek_trainer_describe(graph, &workload), TREK_OK);
    assert_true(workload.ranks == 1 && workload.local_ranks == 1 && workload.rank == 0 && !workload.windows &&
                workload.costly == -1);
    int64_t counts[1] = { -3 };
    assert_int_equal(trek_trainer_counts(graph, counts, 1), 0);
    assert_null(trek_trainer_plan(graph));
    assert_int_equal(trek_trainer_throughput(graph, &(double){ 0 }, 1), 0);
    assert_int_equal(trek_error_status(), TREK_OK);
    make_step(graph, 0, 1);
    trek_graph_free(&graph);
}

/* --- what is refused ---------------------------------------------------------------------------------- */

typedef struct refusal {
    const char *name;
    trek_trainer_opts opts;
    trek_status status;
    const char *says;
    bool of_many; /* has a meaning with several ranks only */
} refusal;

static trek_plan *plan_of(int ranks)
{
    trek_plan *plan = trek_plan_new(ranks);
    double shares[4];
    for (int r = 0; r < ranks; r++)
        shares[r] = 1.0 / ranks;
    assert_int_equal(trek_plan_add_shares(plan, 0, shares), TREK_OK);
    return plan;
}

#define OPTION(says, many, ...) { #__VA_ARGS__, { __VA_ARGS__ }, TREK_ERR_ARGUMENT, says, many }
static void wrong_options(void **state)
{
    trek_plan *plan = plan_of(4);
    const refusal refusals[] = {
        OPTION(".accumulate: -1", false, .accumulate = -1),
        OPTION("NaN", false, .max_grad_norm = NAN),
        OPTION("NaN", false, .max_grad_value = NAN),
        OPTION(".bucket_bytes: -1", false, .bucket_bytes = -1),
        OPTION(".overlap: 2", false, .overlap = 2),
        OPTION(".share_params: 1", false, .share_params = 1),
        OPTION(".share_params: -2", false, .share_params = -2),
        OPTION(".shard: 4", false, .shard = (trek_shard)4),
        OPTION("negative", false, .max_anchor = -2),
        OPTION("negative", false, .anchor = -1),
        OPTION("negative", false, .global_batch = -8),
        OPTION("negative", false, .max_batch_diff = -1),
        OPTION(".balance: 2", false, .balance = 2),
        OPTION(".balance: -2", false, .balance = -2),
        OPTION(".deadline_s: -2", false, .deadline_s = -2),
        OPTION(".deadline_s", false, .deadline_s = NAN),
        OPTION(".deadline_s", false, .deadline_s = INFINITY),
        OPTION("lr", false, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = -1 })),
        OPTION("beta1", false, .optimizer = trek_adam(&(trek_adam_opts){ .beta1 = 1 })),
        OPTION("nesterov", false, .optimizer = trek_sgd(&(trek_sgd_opts){ .nesterov = true })),
        OPTION(".dtype: f64", false, .amp = { .dtype = TREK_F64 }),
        OPTION(".scaling: 2", false, .amp = { .scaling = 2 }),
        OPTION("scale", false, .amp = { .scaling = 1, .scaler = { .init_scale = -1 } }),
        OPTION("backoff_factor", false, .amp = { .scaling = 1, .scaler = { .backoff_factor = 2 } }),
        OPTION("schedule", false, .schedule = { .kind = (trek_schedule_kind)99 }),
        OPTION(".min_share: -1", false, .min_share = -1),
        OPTION(".min_share:", false, .min_share = NAN),
        OPTION(".min_share: 1.5", false, .min_share = 1.5),
        OPTION(".overhead_target: 0.9", false, .overhead_target = 0.9),
        OPTION(".overhead_target:", false, .overhead_target = NAN),
        OPTION(".overhead_target: 0.001", false, .overhead_target = 0.001),
        OPTION(".speed_hint: rank 0 by 1e+07", false, .speed_hint = { .ratio = 1e7 }),
        OPTION(".speed_hint: rank 0 by 0.5", false, .speed_hint = { .ratio = 0.5 }),
        OPTION(".speed_hint: rank 0 by -3", false, .speed_hint = { .ratio = -3 }),
        OPTION(".speed_hint:", false, .speed_hint = { .ratio = NAN }),
        OPTION(".speed_hint: rank -1 by 2", false, .speed_hint = { .ratio = 2, .slow_rank = -1 }),
        OPTION("min_share: 0.6", true, .balance = 1, .min_share = 0.6),
        OPTION("slow_rank: 3; must be one of", true, .speed_hint = { .ratio = 2, .slow_rank = 3 }),
        OPTION("anchor: 2000000, .max_anchor: 5", true, .max_anchor = 5, .anchor = 2000000),
        OPTION("it is for 4 ranks; the job has", true, .plan = plan),
        { ".global_batch", { .global_batch = 8 }, TREK_ERR_STATE, "call trek_graph_set_loader first", false },
    };
    for (int world = 1; world <= WORLD; world++) {
        trek_graph *graph = built(), *calm = built();
        trek_trainer_opts good = options(world);
        set_up(graph, &good);
        set_up(calm, &good);
        make_step(graph, 0, 1);
        make_step(calm, 0, 1);
        for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
            const refusal *r = &refusals[k];
            if (r->of_many && world == 1)
                continue;
            trek_trainer_opts opts = r->opts;
            opts.build_replica = build;
            opts.devices = test_devices();
            opts.ranks = world;
            if (trek_trainer_setup(graph, &opts) != r->status || trek_error_status() != r->status ||
                !strstr(trek_error(), r->says))
                fail_msg("%s on %d ranks: \"%s\" instead of \"%s\"", r->name, world, trek_error(), r->says);
            trek_error_clear();
        }
        make_step(graph, 1, 1);
        make_step(calm, 1, 1);
        values got = read_graph(graph), expected = read_graph(calm); /* with the moments that it had */
        assert_true(difference(&got, &expected) < 1e-12);
        assert_int_equal(trek_graph_steps(graph), 2);
        trek_graph_free(&graph);
        trek_graph_free(&calm);
    }
    trek_plan_free(&plan);
}

/* With an error in the thread nothing is done; without a graph, or a place for the answer, nothing can be. */
static void wrong_calls(void **state)
{
    trek_graph *graph = built();
    trek_trainer_opts opts = options(2);
    trek_fail(TREK_ERR_FORMAT, "an earlier one");
    FAILS(trek_trainer_setup(graph, &opts), TREK_ERR_FORMAT, "an earlier one");
    assert_int_equal(trek_graph_world_size(graph), 1);
    opts.schedule = trek_constant_lr(-1); /* refused where it was made */
    FAILS(trek_trainer_setup(graph, &opts), TREK_ERR_ARGUMENT, "lr");
    trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .devices = test_devices() });
    expect_error(TREK_ERR_ARGUMENT, ".ranks does not say how many");
    trek_trainer_setup(NULL, &opts);
    expect_error(TREK_ERR_ARGUMENT, "graph");
    trek_trainer_workload workload;
    trek_trainer_describe(NULL, &workload);
    expect_error(TREK_ERR_ARGUMENT, "graph");
    trek_trainer_describe(graph, NULL);
    expect_error(TREK_ERR_ARGUMENT, "workload");
    assert_int_equal(trek_trainer_counts(NULL, NULL, 0), 0);
    assert_null(trek_trainer_plan(NULL));
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_graph_free(&graph);
}

/* One process: the mean of its loss is the loss. */
static void a_mean_of_one(void **state)
{
    trek_graph *graph = built();
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_full(trek_dims(4), 3, TREK_F64, trek_cpu(0))),
        *loss = trek_mean(x, trek_dims_all(), false);
    assert_true(trek_trainer_mean(graph, loss) == 3);
    assert_int_equal(trek_loss_set_weight(loss, 0), TREK_OK);
    assert_true(trek_trainer_mean(graph, loss) == 0); /* nothing counted */
    assert_true(isnan(trek_trainer_mean(graph, x)));
    expect_error(TREK_ERR_SHAPE, "");
    assert_true(isnan(trek_trainer_mean(NULL, loss)));
    expect_error(TREK_ERR_ARGUMENT, "graph");
    assert_true(isnan(trek_trainer_mean(graph, NULL)));
    expect_error(TREK_ERR_ARGUMENT, "loss");
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

/* --- unequal ranks --------------------------------------------------------------------------------------- */

static void expect_shares(trek_graph *graph, const double *expected)
{
    double shares[WORLD] = { -1, -1, -1 };
    assert_int_equal(trek_graph_shares(graph, shares, WORLD), WORLD);
    for (int r = 0; r < WORLD; r++)
        if (!(fabs(shares[r] - expected[r]) < 1e-9))
            fail_msg("rank %d has %.17g instead of %.17g", r, shares[r], expected[r]);
}

static void shares_at_first(void **state)
{
    trek_plan *plan = trek_plan_new(WORLD);
    trek_plan_add_shares(plan, 0, (double[]){ 0.5, 0.125, 0.375 });
    const struct { trek_trainer_opts opts; double shares[WORLD]; } cases[] = {
        { { .balance = 1 }, { 1 / 3., 1 / 3., 1 / 3. } },
        { { .balance = TREK_OFF, .speed_hint = { .slow_rank = 1, .ratio = 3 } }, { 1 / 3., 1 / 3., 1 / 3. } },
        { { .speed_hint = { .slow_rank = 1, .ratio = 3 } }, { 3 / 7., 1 / 7., 3 / 7. } },
        { { .speed_hint = { .slow_rank = 2, .ratio = 100 } }, { 0.475, 0.475, 0.05 } },
        { { .speed_hint = { .slow_rank = 2, .ratio = 100 }, .min_share = 0.2 }, { 0.4, 0.4, 0.2 } },
        { { .speed_hint = { .slow_rank = 2, .ratio = 100 }, .min_share = TREK_ZERO }, { 100 / 201., 100 / 201., 1 / 201. } },
        { { .plan = plan }, { 0.5, 0.125, 0.375 } },
        { { .plan = plan, .balance = 1, .speed_hint = { .slow_rank = 0, .ratio = 9 } }, { 0.5, 0.125, 0.375 } },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        trek_graph *graph = built(), *one = built();
        trek_trainer_opts opts = cases[k].opts, alone = options(1);
        opts.build_replica = build;
        opts.devices = test_devices();
        opts.ranks = WORLD;
        opts.optimizer = adam();
        opts.max_anchor = TREK_OFF;
        set_up(graph, &opts);
        set_up(one, &alone);
        expect_shares(graph, cases[k].shares);
        make_step(graph, 0, 1);
        make_step(one, 0, 1);
        values got = read_graph(graph), expected = read_graph(one);
        assert_true(difference(&got, &expected) < 1e-12); /* whatever the shares are */
        trek_plan *done = trek_trainer_plan(graph);
        assert_int_equal(trek_plan_ranks(done), WORLD);
        trek_decision d;
        assert_true(trek_plan_at(done, 0, &d) && d.kind == TREK_PLAN_KIND_SHARES &&
                    fabs(d.shares[1] - cases[k].shares[1]) < 1e-9);
        trek_plan_free(&done);
        trek_graph_free(&graph);
        trek_graph_free(&one);
    }
    trek_plan_free(&plan);
}

static void windows_at_first(void **state)
{
    const struct { trek_trainer_opts opts; int64_t anchor, counts[WORLD]; } cases[] = {
        { { .max_anchor = 50 }, 10, { 10, 10, 10 } },
        { { .max_anchor = 50, .anchor = 3 }, 3, { 3, 3, 3 } },
        { { .max_anchor = 4, .anchor = 4, .overhead_target = 0.5, .max_batch_diff = 2 }, 4, { 4, 4, 4 } },
        { { .max_anchor = 5, .anchor = 6 }, 5, { 5, 5, 5 } },
        { { .anchor = 4, .speed_hint = { .slow_rank = 1, .ratio = 2 } }, 4, { 8, 4, 8 } },
        { { .max_anchor = 9, .anchor = 2, .speed_hint = { .slow_rank = 0, .ratio = 3 } }, 2, { 2, 6, 6 } },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        trek_graph *graph = built();
        trek_trainer_opts opts = cases[k].opts;
        opts.build_replica = build;
        opts.devices = test_devices();
        opts.ranks = WORLD;
        set_up(graph, &opts);
        trek_trainer_workload workload;
        int64_t counts[WORLD + 1] = { 0, 0, 0, -9 }, sum = 0;
        assert_int_equal(trek_trainer_describe(graph, &workload), TREK_OK);
        assert_true(workload.ranks == WORLD && workload.local_ranks == WORLD && workload.rank == 0 && workload.windows);
        assert_int_equal(workload.anchor, cases[k].anchor);
        assert_int_equal(trek_trainer_counts(graph, counts, WORLD + 1), WORLD);
        for (int r = 0; r < WORLD; r++) {
            sum += counts[r];
            if (counts[r] != cases[k].counts[r])
                fail_msg("case %d: rank %d has %lld batches", (int)k, r, (long long)counts[r]);
        }
        assert_true(workload.window == sum && counts[WORLD] == -9);
        counts[1] = -9;
        assert_int_equal(trek_trainer_counts(graph, counts, 1), WORLD); /* no more than there is room for */
        assert_int_equal(counts[1], -9);
        trek_graph_free(&graph);
    }
}

/* Whole batches of the loader that come nearest, at least one. */
static void a_global_batch(void **state)
{
    static const struct { int64_t samples, window; } cases[] = { { 24, 6 }, { 25, 6 }, { 26, 7 }, { 1, 1 }, { 100, 25 } };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        trek_graph *graph = built();
        trek_loader *loader = trek_loader_new(trek_dataset_digits(120, 1), &(trek_loader_opts){ .batch_size = 4 });
        assert_int_equal(trek_graph_set_loader(graph, loader, "image"), TREK_OK);
        set_up(graph, &(trek_trainer_opts){
                          .build_replica = build, .devices = test_devices(), .ranks = WORLD, .global_batch = cases[k].samples });
        trek_trainer_workload workload;
        assert_int_equal(trek_trainer_describe(graph, &workload), TREK_OK);
        assert_true(workload.windows);
        assert_int_equal(workload.window, cases[k].window);
        trek_graph_free(&graph);
        trek_loader_free(&loader);
    }
}

/* --- what it says ------------------------------------------------------------------------------------------ */

static char line[512];
static int lines;

static void keep_line(trek_log_level level, const char *message, void *arg)
{
    if (level != TREK_LOG_LEVEL_INFO || strncmp(message, "trainer: ", 9) != 0)
        return;
    lines++;
    snprintf(line, sizeof line, "%s", message);
}

static trek_graph *with_batch_norm(trek_device device, void *arg)
{
    trek_flow *flow = trek_flow_from(layer(IN, 5, device));
    trek_flow_through(flow,
                      trek_nn_batch_norm1d_with(&(trek_batch_norm_opts){ .features = 5, .device = device, .dtype = TREK_F64 }));
    return trek_flow_build(flow);
}

static void the_line_in_the_log(void **state)
{
    if (!test_on_cpu())
        skip();
    const struct { int world; trek_build_fn build; trek_trainer_opts opts; const char *says[3];
    } cases[] = {
        { 1, build, { 0 }, { "trainer: one rank on cpu:0" } },
        { 2, build, { .max_anchor = TREK_OFF }, { "trainer: 2 CPU ranks with ", "one copy of the parameters", "; exact" } },
        { 3,
          build,
          { .share_params = TREK_OFF, .max_anchor = 8, .anchor = 4 },
          { "3 CPU ranks", "parameters of their own", "windows of 12 batches at first" } },
        { 2,
          with_batch_norm,
          { .max_anchor = TREK_OFF },
          { "exact but for the statistics", "batch_norm1d \"1\"", "(in training)" } },
    };
    trek_log_set(TREK_LOG_LEVEL_INFO, keep_line, NULL);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        lines = 0;
        trek_graph *graph = cases[k].build(test_device(), NULL);
        trek_trainer_opts opts = cases[k].opts;
        opts.build_replica = cases[k].build;
        opts.ranks = cases[k].world;
        set_up(graph, &opts);
        assert_int_equal(lines, 1);
        for (int part = 0; part < 3 && cases[k].says[part]; part++)
            if (!strstr(line, cases[k].says[part]))
                fail_msg("\"%s\" is not in \"%s\"", cases[k].says[part], line);
        trek_graph_free(&graph);
    }
    lines = 0; /* what fails says nothing but its error */
    trek_graph *graph = built();
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2 });
    expect_error(TREK_ERR_ARGUMENT, "build_replica");
    assert_int_equal(lines, 0);
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    trek_graph_free(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_the_calls), cmocka_unit_test(what_the_graph_then_says),
        cmocka_unit_test(clipping_is_left_or_ended), cmocka_unit_test(replicas_are_made_once),
        cmocka_unit_test(one_rank_makes_none), cmocka_unit_test(wrong_options), cmocka_unit_test(wrong_calls),
        cmocka_unit_test(a_mean_of_one), cmocka_unit_test(shares_at_first), cmocka_unit_test(windows_at_first),
        cmocka_unit_test(a_global_batch), cmocka_unit_test(the_line_in_the_log),
    };
    return cmocka_run_group_tests_name("trainer", tests, NULL, NULL);
}
