/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan moves to host memory so that it fits: with the bits of ranks that keep everything, within the budgets of the GPU
 * and of the host; moved or recomputed, whichever takes less time; nothing on a CPU. */
#include <inttypes.h>
#include <string.h>

#include "autograd/offload.h"
#include "distributed/pass/moving.h"
#include "distributed/stepper_internal.h"
#include "distributed/team/memory.h"
#include "distributed/trainer_ranks.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "nn/layers.h"
#include "nn/ways.h"
#include "optim/optimizers.h"
#include "tensor/devices.h"
#include "tensor/print.h"
#include "tests/support/labelled.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { IN = 8, WIDTH = 16, BLOCKS = 5, CLASSES = 3, SAMPLES = 96, BATCH = 32, RANKS = 2 };

static const int64_t ample[RANKS] = { 1 << 30, 1 << 30 };

/* Faster than any forward, and slower. */
static const double fast = 1e-9, slow = 1e9;

/* Blocks in one sequential; by_itself: each is a node of a flow. */
static trek_graph *build(trek_device device, void *by_itself)
{
    trek_module *layers[2 + 4 * BLOCKS];
    int n = 0;
    trek_seed(3);
    trek_flow *flow = trek_flow_from(trek_nn_linear(IN, WIDTH, device));
    for (int k = 0; k < BLOCKS; k++) {
        trek_module *block[] = { trek_nn_linear(WIDTH, 2 * WIDTH, device), trek_nn_gelu(), trek_nn_dropout(0.2),
                                 trek_nn_linear(2 * WIDTH, WIDTH, device) };
        if (*(const bool *)by_itself)
            flow = trek_flow_through(flow, trek_nn_sequential(block, 4));
        for (int j = 0; j < 4 && !*(const bool *)by_itself; j++)
            layers[n++] = block[j];
    }
    if (n > 0)
        flow = trek_flow_through(flow, trek_nn_sequential(layers, n));
    return trek_flow_build(trek_flow_through(flow, trek_nn_linear(WIDTH, CLASSES, device)));
}

typedef struct plan_case {
    bool by_itself, keeps;   /* keeps: nothing is recomputed or moved */
    int ranks;
    int64_t grain, host;     /* host: .host_budget */
    trek_shard shard;
    const int64_t *budgets;
} plan_case;

typedef struct training {
    trek_graph *graph;
    trek_loader *loader;
} training;

static trek_status begin(plan_case *c, training *t)
{
    trek_seed(7);
    t->graph = build(test_device(), &c->by_itself);
    t->loader = trek_loader_new(labelled_rows(1, SAMPLES, IN, CLASSES), &(trek_loader_opts){ .batch_size = BATCH, .seed = 3,
                                                                                         .shuffle = true });
    trek_graph_set_loader(t->graph, t->loader, "x");
    trek_graph_set_loss(t->graph, labelled_loss, NULL);
    return trek_trainer_setup(t->graph, &(trek_trainer_opts){
        .build_replica = build, .arg = &c->by_itself, .ranks = c->ranks, .share_params = TREK_OFF, .shard = c->shard,
        .memory_budget = c->budgets, .n_memory_budget = c->ranks, .activations = c->keeps ? 0 : TREK_AUTO,
        .host_budget = c->keeps ? 0 : c->host, .grain = c->grain, .max_anchor = TREK_OFF, .balance = TREK_OFF,
        .optimizer = trek_adamw(&(trek_adam_opts){ .lr = 0.01 }) });
}

static void end(training *t)
{
    trek_graph_free(&t->graph);
    trek_loader_free(&t->loader);
}

static const trek_team_memory *memory_of(const training *t) { return trek_graph_ranks(t->graph)->team->memory; }

/* Trains an epoch. What the GPU of the first rank needs besides is within the plan. */
static void train(training *t, elements *to)
{
    trek_device device = test_device();
    const trek_memory_row *row = &memory_of(t)->rows[0];
    trek_memory_reset_peak(device);
    int64_t before = trek_memory_usage(device).allocated, sent = trek_offload_usage().sent;
    if (labelled_epoch(t->graph, 0, 1) != TREK_OK)
        fail_msg("%s", trek_error());
    int64_t needed = trek_memory_usage(device).allocated_peak - before, passes = SAMPLES / BATCH;
    if (!test_on_cpu() && needed > row->activations + row->activations / 50 + 8192)
        fail_msg("%" PRId64 " bytes are needed, %" PRId64 " are planned", needed, row->activations);
    sent = trek_offload_usage().sent - sent;
    if (memory_of(t)->n_rows == 1 && row->samples == BATCH && sent != passes * row->host)
        fail_msg("%" PRId64 " bytes were moved in %" PRId64 " passes, %" PRId64 " are planned", sent, passes, row->host);
    elements_of_state(t->graph, to);
}

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
    train(&t, to);
    end(&t);
}

static int ranks_here(void)
{
    int n = test_on_cpu() ? RANKS : trek_device_count(TREK_CUDA);
    return n < RANKS ? n : RANKS;
}

static void expect_text(trek_graph *graph, const char *part, bool says)
{
    char *text = trek_trainer_plan_text(graph);
    assert_non_null(text);
    if ((strstr(text, part) != NULL) != says)
        fail_msg("%s is %s in:\n%s", part, says ? "not" : "", text);
    trek_string_free(&text);
}

/* Budgets of which the activations get less and less, another one for each rank, with links of any speed. */
static void budgets_decide(void **state)
{
    static elements got, expected;
    const double speeds[] = { fast, 0, slow };
    if (test_on_cpu())
        skip();
    for (int k = 0; k < 12; k++) {
        int64_t budgets[RANKS], moved = 0, recomputed = 0;
        trek_memory_row rows[RANKS];
        plan_case c = { .by_itself = k % 2, .ranks = 1 + k % ranks_here(), .grain = k % 5 == 4 ? 12 : 0, .budgets = budgets,
                        .shard = k % 3 == 1 ? TREK_SHARD_STATE : TREK_SHARD_NONE };
        trek_moving_slow = speeds[k % 3];
        keep_all(&c, rows, &expected);
        for (int r = 0; r < c.ranks; r++)
            budgets[r] = trek_memory_total(&rows[r]) - rows[r].activations * (int64_t)(8 + 4 * ((k + r) % 5)) / 100;
        training t;
        if (begin(&c, &t) != TREK_OK)
            fail_msg("case %d: %s", k, trek_error());
        for (int r = 0; r < c.ranks; r++) {
            const trek_memory_row *row = &memory_of(&t)->rows[r];
            if (trek_memory_total(row) > row->budget || row->host > row->host_budget || (row->moved > 0) != (row->host > 0))
                fail_msg("case %d, rank %d: %" PRId64 " segments moved, %" PRId64 " bytes", k, r, row->moved, row->host);
            moved += row->moved;
            recomputed += row->recomputed;
        }
        if (moved + recomputed == 0 || (k % 3 == 0 && recomputed > 0) || (k % 3 == 2 && moved > 0))
            fail_msg("case %d: %" PRId64 " segments recomputed, %" PRId64 " moved", k, recomputed, moved);
        expect_text(t.graph, "moved to host memory until backward: rank", moved > 0);
        train(&t, &got);
        end(&t);
        elements_expect(&got, &expected, "case %d", k);
    }
    trek_moving_slow = 0;
}

/* What the host has no room for is recomputed, or else refused with the numbers. */
static void host_budget_limits(void **state)
{
    static elements got, expected;
    if (test_on_cpu())
        skip();
    trek_moving_slow = fast;
    int both = 0;
    for (int by_itself = 0; by_itself < 2; by_itself++) {
        int64_t budget;
        trek_memory_row row;
        training t;
        plan_case c = { .by_itself = by_itself, .ranks = 1, .budgets = &budget };
        keep_all(&c, &row, &expected);
        budget = trek_memory_total(&row) - row.activations / 3;
        assert_int_equal(begin(&c, &t), TREK_OK);
        int64_t host = memory_of(&t)->rows[0].host;
        assert_true(host > 0 && memory_of(&t)->rows[0].host_budget > host && memory_of(&t)->rows[0].recomputed == 0);
        end(&t);
        for (int part = 3; part >= 0; part--) {
            c.host = part > 0 ? host * part / 4 : TREK_OFF;
            if (begin(&c, &t) != TREK_OK)
                fail_msg("%s", trek_error());
            row = memory_of(&t)->rows[0];
            if (row.host > c.host * (part > 0) || row.recomputed + row.moved == 0 || trek_memory_total(&row) > budget)
                fail_msg("part %d: %" PRId64 " of %" PRId64 " bytes, %" PRId64 " segments recomputed", part, row.host, c.host,
                         row.recomputed);
            both += row.moved > 0 && row.recomputed > 0;
            train(&t, &got);
            end(&t);
            elements_expect(&got, &expected, "part %d", part);
        }
        budget = trek_memory_total(&row) - row.activations * 98 / 100;
        c.host = 0;
        FAILS(begin(&c, &t), TREK_ERR_MEMORY, "recomputed");
        end(&t);
    }
    assert_true(both > 0);
    trek_moving_slow = 0;
}

/* On a CPU there is no other memory. */
static void nothing_is_moved_on_a_cpu(void **state)
{
    static elements expected;
    int64_t budget;
    trek_memory_row row;
    training t;
    if (!test_on_cpu() || !trek_memory_account_counts())
        skip();
    trek_moving_slow = fast;
    plan_case c = { .ranks = 1, .budgets = &budget };
    keep_all(&c, &row, &expected);
    budget = trek_memory_total(&row) - row.activations / 4;
    assert_int_equal(begin(&c, &t), TREK_OK);
    assert_true(memory_of(&t)->rows[0].recomputed > 0 && memory_of(&t)->rows[0].moved == 0);
    expect_text(t.graph, "moved to host memory", false);
    end(&t);
    trek_moving_slow = 0;
}

/* What is copied while the segment runs takes no time; backward takes twice as long as forward. */
static void what_is_waited_for(void **state)
{
    static const struct {
        trek_moving of;
        int64_t bytes, forward, ns;
    } cases[] = { { { 1, 1 }, 100, 100, 0 }, { { 2, 1 }, 100, 100, 100 }, { { 1, 3 }, 100, 100, 100 },
                  { { 3, 4 }, 100, 50, 550 } };
    for (int k = 0; k < 4; k++)
        assert_int_equal(trek_moving_ns(&cases[k].of, cases[k].bytes, cases[k].forward), cases[k].ns);
}

static void refused(void **state)
{
    training t;
    plan_case c = { .ranks = 1, .budgets = ample, .host = -2 };
    FAILS(begin(&c, &t), TREK_ERR_ARGUMENT, ".host_budget: -2; must be 0 or more, or TREK_OFF");
    FAILS(trek_trainer_setup(t.graph, &(trek_trainer_opts){ .host_budget = 5 }), TREK_ERR_ARGUMENT,
          ".host_budget: 5; must be 0 without .activations");
    end(&t);
}

int main(void)
{
    if (test_allocator_use() != TREK_OK)
        return 1;
    trek_way_min_bytes = 256;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(budgets_decide, clear_error), cmocka_unit_test_setup(host_budget_limits, clear_error),
        cmocka_unit_test_setup(nothing_is_moved_on_a_cpu, clear_error), cmocka_unit_test(what_is_waited_for),
        cmocka_unit_test_setup(refused, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
