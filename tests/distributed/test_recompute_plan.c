/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan recomputes so that it fits: the bits of ranks that keep everything, within the budgets, on ranks that choose
 * differently; nothing where all fits; what is refused. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "distributed/stepper_internal.h"
#include "distributed/team/memory.h"
#include "distributed/trainer_ranks.h"
#include "graph/amp.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/recompute.h"
#include "nn/recompute_internal.h"
#include "optim/optimizers.h"
#include "tensor/pages.h"
#include "tensor/print.h"
#include "tests/support/labelled.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { IN = 12, WIDTH = 32, BLOCKS = 4, CLASSES = 5, SAMPLES = 384, BATCH = 128, RANKS = 4, MODELS = 3 };

static const int64_t ample[RANKS] = { 1 << 30, 1 << 30, 1 << 30, 1 << 30 };

/* --- what is trained ---------------------------------------------------------------------------------------- */

static trek_module *block(trek_device device)
{
    return trek_nn_sequential((trek_module *[]){ trek_nn_layer_norm(WIDTH, device),
                                                 trek_nn_linear(WIDTH, 2 * WIDTH, device), trek_nn_gelu(), trek_nn_dropout(0.2),
                                                 trek_nn_batch_norm1d(2 * WIDTH, device),
                                                 trek_nn_linear(2 * WIDTH, WIDTH, device), trek_nn_tanh() }, 7);
}

/* 0: nodes of a flow; 1: one sequential of sequentials; 2: all layers in one sequential. */
static trek_graph *build(trek_device device, void *arg)
{
    int model = *(const int *)arg, n = 0;
    trek_module *layers[2 + 7 * BLOCKS];
    trek_seed(3);
    if (model == 0) {
        trek_flow *flow = trek_flow_from(trek_nn_linear(IN, WIDTH, device));
        for (int k = 0; k < BLOCKS; k++)
            flow = trek_flow_through(flow, block(device));
        return trek_flow_build(trek_flow_through(flow, trek_nn_linear(WIDTH, CLASSES, device)));
    }
    layers[n++] = trek_nn_linear(IN, WIDTH, device);
    for (int k = 0; k < BLOCKS && model == 1; k++)
        layers[n++] = block(device);
    for (int k = 0; k < BLOCKS && model == 2; k++) {
        layers[n++] = trek_nn_layer_norm(WIDTH, device);
        layers[n++] = trek_nn_linear(WIDTH, 2 * WIDTH, device);
        layers[n++] = trek_nn_gelu();
        layers[n++] = trek_nn_dropout(0.2);
        layers[n++] = trek_nn_linear(2 * WIDTH, WIDTH, device);
        layers[n++] = trek_nn_relu();
    }
    layers[n++] = trek_nn_linear(WIDTH, CLASSES, device);
    return trek_flow_build(trek_flow_from(trek_nn_sequential(layers, n)));
}

static trek_loader *make_loader(void)
{
    return trek_loader_new(labelled_rows(1, SAMPLES, IN, CLASSES),
                           &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true, .seed = 3 });
}

typedef struct plan_case {
    int model, ranks, accumulate;
    bool separate, low;       /* low: under autocast */
    trek_shard shard;
    int64_t grain;
    const int64_t *budgets;
    bool keeps;               /* nothing is recomputed */
} plan_case;

typedef struct training {
    trek_graph *graph;
    trek_loader *loader;
} training;

static trek_status begin(plan_case *c, training *t)
{
    trek_seed(7);
    t->graph = build(trek_cpu(0), &c->model);
    t->loader = make_loader();
    assert_int_equal(trek_graph_set_loader(t->graph, t->loader, "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(t->graph, labelled_loss, NULL), TREK_OK);
    return trek_trainer_setup(t->graph, &(trek_trainer_opts){
        .build_replica = build, .arg = &c->model, .ranks = c->ranks, .share_params = c->separate ? TREK_OFF : 0,
            .shard = c->shard,
        .memory_budget = c->budgets, .n_memory_budget = c->budgets ? c->ranks : 0, .activations = c->keeps ? 0 : TREK_AUTO,
        .grain = c->grain, .accumulate = c->accumulate, .bucket_bytes = 4096, .max_anchor = TREK_OFF, .balance = TREK_OFF,
        .amp = { .dtype = c->low ? TREK_BF16 : TREK_F32 }, .optimizer = trek_adamw(&(trek_adam_opts){ .lr = 0.01 }) });
}

static void end(training *t)
{
    trek_graph_free(&t->graph);
    trek_loader_free(&t->loader);
}

static const trek_team_memory *memory_of(const training *t) { return trek_graph_ranks(t->graph)->team->memory; }

/* Rows of a plan in which everything is kept, and the numbers that it trains to. */
static void keep_all(const plan_case *c, trek_memory_row *rows, elements *to)
{
    training t;
    plan_case wide = *c;
    wide.budgets = ample;
    wide.keeps = true;
    if (begin(&wide, &t) != TREK_OK)
        fail_msg("%s", trek_error());
    memcpy(rows, memory_of(&t)->rows, (size_t)memory_of(&t)->n_rows * sizeof *rows);
    if (labelled_epoch(t.graph, 0, 1) != TREK_OK || labelled_epoch(t.graph, 1, 1) != TREK_OK)
        fail_msg("%s", trek_error());
    elements_of_state(t.graph, to);
    end(&t);
}

static void expect_text(trek_graph *graph, const char *part, bool says)
{
    char *text = trek_trainer_plan_text(graph);
    assert_non_null(text);
    if ((strstr(text, part) != NULL) != says)
        fail_msg("%s is %s in:\n%s", part, says ? "not" : "", text);
    trek_string_free(&text);
}

/* --- the tests ---------------------------------------------------------------------------------------------- */

/* Budgets of which the activations get less and less: what they save is recomputed, and what is left is within them, as the
 * allocator counts. The budget of each rank is another one, so that ranks choose differently. */
static void budgets_decide(void **state)
{
    static elements got, expected;
    static const trek_shard shards[] = { TREK_SHARD_NONE, TREK_SHARD_STATE, TREK_SHARD_GRADIENTS, TREK_SHARD_PARAMETERS };
    if (!trek_memory_account_counts())
        skip();
    for (int k = 0; k < (test_short() ? 12 : 48); k++) {
        int64_t budgets[RANKS];
        trek_memory_row rows[RANKS];
        plan_case c = { .model = k % MODELS, .ranks = 1 + k % 3, .separate = k % 4 > 0, .shard = shards[k % 4], .low = k % 5 == 1,
                        .grain = k % 7 == 3 ? 48 : 0, .accumulate = k % 6 == 5 ? 2 : 0, .budgets = budgets };
        keep_all(&c, rows, &expected);
        int n_rows = c.separate ? c.ranks : 1;
        for (int r = 0; r < c.ranks; r++) {
            const trek_memory_row *row = &rows[c.separate ? r : 0];
            int64_t left = row->activations * (100 - 8 * ((k + r) % 4)) / 100; /* 100, 92, 84 and 76 % */
            budgets[r] = trek_memory_total(row) - row->activations + left + (c.shard >= TREK_SHARD_GRADIENTS ? 1 << 14 : 0);
            budgets[r] = c.separate ? budgets[r] : budgets[r] / c.ranks + 1;
        }
        training t;
        if (begin(&c, &t) != TREK_OK || labelled_epoch(t.graph, 0, 1) != TREK_OK || labelled_epoch(t.graph, 1, 1) != TREK_OK)
            fail_msg("case %d: %s", k, trek_error());
        int64_t recomputed = 0;
        for (int r = 0; r < n_rows; r++) {
            const trek_memory_row *row = &memory_of(&t)->rows[r];
            assert_true(trek_memory_total(row) <= row->budget);
            assert_true(trek_memory_account_peak(memory_of(&t)->accounts[r]) <= row->budget);
            assert_true((row->recomputed > 0) == (row->saved > 0));
            recomputed += row->recomputed;
            if (c.shard == TREK_SHARD_NONE && (row->recomputed > 0) != (row->budget < trek_memory_total(&rows[r])))
                fail_msg("case %d, row %d: %" PRId64 " segments", k, r, row->recomputed);
        }
        expect_text(t.graph, "recomputed in backward: rank", recomputed > 0);
        elements_of_state(t.graph, &got);
        end(&t);
        elements_expect(&got, &expected, "case %d", k);
    }
}

/* The least that recomputation can do is refused with the numbers, and without it much less is. */
static void what_does_not_fit_is_refused(void **state)
{
    trek_memory_row rows[RANKS];
    static elements expected;
    int64_t budgets[RANKS];
    if (!trek_memory_account_counts())
        skip();
    for (int model = 0; model < MODELS; model++) {
        training t;
        plan_case c = { .model = model, .ranks = 2, .separate = true, .budgets = budgets };
        keep_all(&c, rows, &expected);
        budgets[0] = trek_memory_total(&rows[0]) - rows[0].activations / 4;
        budgets[1] = 1 << 30;
        assert_int_equal(begin(&c, &t), TREK_OK);
        expect_text(t.graph, "recomputed in backward: rank 0", true);
        expect_text(t.graph, "recomputed in backward: rank 1", false);
        end(&t);
        c.keeps = true;
        FAILS(begin(&c, &t), TREK_ERR_MEMORY, ".memory_budget");
        end(&t);
        c.keeps = false;
        budgets[0] = trek_memory_total(&rows[0]) - rows[0].activations * 95 / 100;
        FAILS(begin(&c, &t), TREK_ERR_MEMORY, "with everything recomputed that can be");
        assert_int_equal(trek_graph_set_optimizer(t.graph, trek_adamw(NULL)), TREK_OK);
        assert_int_equal(labelled_epoch(t.graph, 0, 1), TREK_OK); /* on its own device */
        end(&t);
    }
}

static void nothing_where_all_fits(void **state)
{
    static elements got, expected;
    trek_memory_row rows[RANKS];
    for (int k = 0; k < 3; k++) {
        plan_case c = { .model = k, .ranks = 1 + k, .separate = k > 0, .budgets = k == 1 ? NULL : ample };
        training t;
        keep_all(&c, rows, &expected);
        assert_int_equal(begin(&c, &t), TREK_OK);
        expect_text(t.graph, "recomputed in backward: nothing", true);
        assert_int_equal(labelled_epoch(t.graph, 0, 1), TREK_OK);
        assert_int_equal(labelled_epoch(t.graph, 1, 1), TREK_OK);
        elements_of_state(t.graph, &got);
        end(&t);
        elements_expect(&got, &expected, "model %d", k);
    }
}

/* Segments are named by their paths, and a set-up without the option keeps everything again. */
static void names(void **state)
{
    static const char *const parts[MODELS] = { "segment", " (0.", "-" };
    trek_memory_row rows[RANKS];
    static elements expected;
    int64_t budgets[1];
    if (!trek_memory_account_counts())
        skip();
    for (int model = 0; model < MODELS; model++) {
        training t;
        plan_case c = { .model = model, .ranks = 1, .budgets = budgets };
        keep_all(&c, rows, &expected);
        budgets[0] = trek_memory_total(&rows[0]) - rows[0].activations / 3;
        assert_int_equal(begin(&c, &t), TREK_OK);
        expect_text(t.graph, parts[model], true);
        expect_text(t.graph, "% more time for forward and backward", true);
        SUCCEEDS(trek_trainer_setup(t.graph, &(trek_trainer_opts){ .build_replica = build, .arg = &c.model, .ranks = 1,
                                                                   .memory_budget = ample, .n_memory_budget = 1 }));
        assert_int_equal(memory_of(&t)->rows[0].activations, rows[0].activations);
        end(&t);
    }
}

/* --- modules that cannot be recomputed ------------------------------------------------------------------------ */

/* Multiplies by a variable that is none of its parameters. */
typedef struct outsider {
    trek_module base;
    trek_module *inner;
} outsider;

static trek_var *stolen;

static trek_var *outsider_forward(trek_module *self, trek_var *x)
{
    trek_var *y = trek_forward(((outsider *)self)->inner, x);
    return trek_mul(y, trek_mean(stolen, trek_dims_all(), false));
}

static const trek_module_class outsider_class = { .name = "outsider", .size = sizeof(outsider), .forward = outsider_forward };

static trek_graph *build_outsider(trek_device device, void *arg)
{
    trek_seed(3);
    outsider *one = (outsider *)trek_module_new(&outsider_class);
    trek_module_add(&one->base, "inner", offsetof(outsider, inner), block(device));
    trek_module *first = trek_nn_linear(IN, WIDTH, device);
    stolen = trek_module_find(first, "weight");
    trek_module *layers[] = { first, &one->base, trek_nn_linear(WIDTH, CLASSES, device) };
    return trek_flow_build(trek_flow_from(trek_nn_sequential(layers, 3)));
}

static trek_status set_up_outsider(training *t, int64_t budget, bool recomputes)
{
    t->graph = build_outsider(trek_cpu(0), NULL);
    t->loader = make_loader();
    trek_graph_set_loader(t->graph, t->loader, "x");
    trek_graph_set_loss(t->graph, labelled_loss, NULL);
    return trek_trainer_setup(t->graph, &(trek_trainer_opts){ .ranks = 1, .memory_budget = &budget, .n_memory_budget = 1,
                                                              .activations = recomputes ? TREK_AUTO : 0,
                                                              .optimizer = trek_sgd(NULL) });
}

/* Its gradient would be lost, which set-up notices: it keeps everything. */
static void lost_gradients_are_noticed(void **state)
{
    training t;
    if (!trek_memory_account_counts())
        skip();
    assert_int_equal(set_up_outsider(&t, 1 << 30, false), TREK_OK);
    trek_memory_row row = memory_of(&t)->rows[0];
    end(&t);
    FAILS(set_up_outsider(&t, trek_memory_total(&row) - row.activations / 5, true), TREK_ERR_MEMORY, ".memory_budget");
    end(&t);
    assert_int_equal(set_up_outsider(&t, trek_memory_total(&row), true), TREK_OK);
    end(&t);
}

static void expect_refused(trek_trainer_opts opts, bool loader, trek_status status, const char *text)
{
    training t = { .loader = make_loader() };
    int model = 1;
    t.graph = build(trek_cpu(0), &model);
    if (loader) {
        trek_graph_set_loader(t.graph, t.loader, "x");
        trek_graph_set_loss(t.graph, labelled_loss, NULL);
    }
    opts.build_replica = build;
    opts.arg = &model;
    opts.ranks = 2;
    FAILS(trek_trainer_setup(t.graph, &opts), status, text);
    end(&t);
}

static void refused(void **state)
{
    expect_refused((trek_trainer_opts){ .activations = 1 }, true, TREK_ERR_ARGUMENT, ".activations: 1; must be 0 or TREK_AUTO");
    expect_refused((trek_trainer_opts){ .activations = TREK_AUTO }, false, TREK_ERR_STATE,
                   ".activations: TREK_AUTO, which measures training");
    expect_refused((trek_trainer_opts){ .activations = TREK_AUTO, .average = TREK_AVERAGE_PARAMETERS }, true,
                   TREK_ERR_UNSUPPORTED, ".activations: set together with .average");
}

int main(void)
{
    trek_pages_guard = true;
    if (test_allocator_use() != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(budgets_decide, clear_error), cmocka_unit_test_setup(what_does_not_fit_is_refused, clear_error),
        cmocka_unit_test_setup(nothing_where_all_fits, clear_error), cmocka_unit_test_setup(names, clear_error),
        cmocka_unit_test_setup(lost_gradients_are_noticed, clear_error),
        cmocka_unit_test_setup(refused, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
