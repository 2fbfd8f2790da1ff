/* SPDX-License-Identifier: Apache-2.0 */
/* Budgets of memory: what the plan says against what the allocator counts; parts in proportion to what is left; ranks that keep
 * nothing, and ranks that compute nothing; what does not fit is refused with the numbers, and what exceeds a budget later fails;
 * measuring leaves nothing behind. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "distributed/checkpoint.h"
#include "distributed/memory_plan.h"
#include "distributed/stepper_internal.h"
#include "distributed/team/memory.h"
#include "distributed/trainer_ranks.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "optim/optimizers.h"
#include "tensor/pages.h"
#include "tensor/print.h"
#include "tensor/rank_context.h"
#include "tests/support/labelled.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { IN = 24, HIDDEN = 96, CLASSES = 5, SAMPLES = 96, BATCH = 32, WIDE = 256, RANKS = 4 };

static const int64_t ample[RANKS] = { 1 << 30, 1 << 30, 1 << 30, 1 << 30 };

/* --- a graph that trains ---------------------------------------------------------------------------------- */

/* Wide enough for gradients to be most of what a rank has, with little activations. */
static trek_graph *build_wide(trek_device device, void *arg)
{
    trek_module *layers[9];
    trek_seed(3);
    for (int k = 0; k < 9; k++)
        layers[k] = k % 2 ? trek_nn_gelu() : trek_nn_linear(k ? WIDE : IN, k == 8 ? CLASSES : WIDE, device);
    return trek_flow_build(trek_flow_from(trek_nn_sequential(layers, 9)));
}

/* Its second weight is large enough for the gradients of several grains to wait as products. */
static trek_graph *build_waiting(trek_device device, void *arg)
{
    trek_seed(3);
    trek_module *layers[] = { trek_nn_linear(IN, 512, device), trek_nn_batch_norm1d(512, device),
                              trek_nn_linear(512, 512, device),
                              trek_nn_gelu(), trek_nn_linear(512, CLASSES, device) };
    return trek_flow_build(trek_flow_from(trek_nn_sequential(layers, 5)));
}

static trek_graph *build(trek_device device, void *arg)
{
    trek_seed(3);
    trek_module *layers[] = { trek_nn_linear(IN, HIDDEN, device), trek_nn_batch_norm1d(HIDDEN, device), trek_nn_gelu(),
                              trek_nn_dropout(0.2), trek_nn_linear(HIDDEN, HIDDEN, device), trek_nn_gelu(),
                              trek_nn_linear(HIDDEN, CLASSES, device) };
    return trek_flow_build(trek_flow_from(trek_nn_sequential(layers, 7)));
}

/* How many bytes the loss of rank 1 asks for in addition; 0: none. */
static _Atomic int64_t greed;
/* And whether a hook of its backward does. */
static _Atomic bool greed_in_backward;

static trek_var *loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    if (greed > 0 && trek_rank_here.rank == 1) {
        trek_tensor *more = trek_tensor_empty(trek_dims(greed), TREK_U8, trek_cpu(0));
        if (!more)
            return NULL;
        trek_tensor_release(more);
    }
    return labelled_loss(graph, output, batch, NULL);
}

static trek_loader *make_loader(void)
{
    return trek_loader_new(labelled_rows(1, SAMPLES, IN, CLASSES),
                           &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true, .seed = 3 });
}

typedef struct plan_case {
    int ranks;
    bool grads, params;         /* gradients are divided, too, and parameters */
    bool wide, waiting;         /* the wide model, or the one whose gradients wait */
    int accumulate;
    int64_t bucket_bytes;       /* 0: 4096 */
    bool separate, whole, idle; /* whole: the state is not divided; idle: the last rank computes nothing */
    bool slower;                /* a rank with more memory gets fewer samples */
    const int64_t *budgets;
    int64_t grain;
    int optimizer;               /* 0 to OPTIMIZERS - 1 */
} plan_case;

enum { OPTIMIZERS = 5 };

static trek_optimizer_spec optimizer_of(int k)
{
    const trek_optimizer_spec specs[OPTIMIZERS] = {
        trek_adamw(&(trek_adam_opts){ .lr = 0.01 }), trek_with_state(trek_adamw(&(trek_adam_opts){ .lr = 0.01 }), TREK_U8),
        trek_lamb(&(trek_lamb_opts){ .lr = 0.01 }), trek_adafactor(&(trek_adafactor_opts){ .lr = 0.01 }),
        trek_with_state(trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }), TREK_BF16),
    };
    return specs[k];
}

typedef struct training {
    trek_graph *graph;
    trek_loader *loader;
} training;

static trek_status begin(const plan_case *c, training *t)
{
    static const double idle[] = { 3, 2, 1, 0 }, slower[] = { 8, 4, 2, 1 };
    const double *shares = c->idle ? idle + RANKS - c->ranks : c->slower ? slower + RANKS - c->ranks : NULL;
    trek_seed(7);
    trek_graph *(*build_replica)(trek_device, void *) = c->wide ? build_wide : c->waiting ? build_waiting : build;
    t->graph = build_replica(trek_cpu(0), NULL);
    t->loader = make_loader();
    assert_int_equal(trek_graph_set_loader(t->graph, t->loader, "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(t->graph, loss, NULL), TREK_OK);
    trek_trainer_opts opts = { .build_replica = build_replica, .ranks = c->ranks,
                               .share_params = c->separate ? TREK_OFF : 0,
                               .shard = c->whole ? TREK_SHARD_NONE : c->params ? TREK_SHARD_PARAMETERS
                               : c->grads ? TREK_SHARD_GRADIENTS : TREK_SHARD_STATE,
                               .memory_budget = c->budgets,
                               .n_memory_budget = c->budgets ? c->ranks : 0, .grain = c->grain,
                               .bucket_bytes = c->bucket_bytes ? c->bucket_bytes : 4096, .accumulate = c->accumulate,
                               .max_grad_norm = c->grain > 0 && c->optimizer % 2 == 0 ? 0.3 : 0,
                               .max_anchor = TREK_OFF, .balance = shares ? 0 : TREK_OFF, .allow_idle = c->idle,
                               .shares = shares, .n_shares = shares ? c->ranks : 0,
                               .optimizer = optimizer_of(c->optimizer) };
    return trek_trainer_setup(t->graph, &opts);
}

static void end(training *t)
{
    trek_graph_free(&t->graph);
    trek_loader_free(&t->loader);
}

static void train(const plan_case *c, elements *to)
{
    training t;
    if (begin(c, &t) != TREK_OK || labelled_epoch(t.graph, 0, 1) != TREK_OK || labelled_epoch(t.graph, 1, 1) != TREK_OK)
        fail_msg("%d ranks: %s", c->ranks, trek_error());
    elements_of_state(t.graph, to);
    end(&t);
}

static const trek_team_memory *memory_of(const training *t) { return trek_graph_ranks(t->graph)->team->memory; }

/* Rows of a plan with ample budgets: what each rank needs besides the state, and all of the state. */
static int64_t needs(const plan_case *c, int64_t *besides)
{
    training t;
    plan_case wide = *c;
    int64_t state = 0;
    wide.budgets = ample;
    assert_int_equal(begin(&wide, &t), TREK_OK);
    const trek_team_memory *memory = memory_of(&t);
    for (int k = 0; k < memory->n_rows; k++) {
        besides[k] = trek_memory_total(&memory->rows[k]) - memory->rows[k].state;
        state += memory->rows[k].state;
    }
    end(&t);
    return state;
}

/* --- the tests ---------------------------------------------------------------------------------------------- */

/* The peak that the allocator has counted while it trained is at most what was planned, and not much less. */
static void a_plan_says_what_is_used(void **state)
{
    if (!trek_memory_account_counts())
        skip();
    for (int k = 0; k < 15; k++) {
        plan_case c = { .ranks = 1 + k % 3, .separate = k & 1, .whole = k & 2, .grain = k > 11 ? 2 : k > 8 ? 7 : 0,
                        .waiting = k > 11, .budgets = ample };
        training t;
        assert_int_equal(begin(&c, &t), TREK_OK);
        assert_int_equal(labelled_epoch(t.graph, 0, 1), TREK_OK);
        const trek_team_memory *memory = memory_of(&t);
        assert_int_equal(memory->n_rows, c.separate ? c.ranks : 1);
        for (int r = 0; r < memory->n_rows; r++) {
            int64_t planned = trek_memory_total(&memory->rows[r]), peak = trek_memory_account_peak(memory->accounts[r]);
            assert_true(memory->rows[r].activations > 0);
            assert_true(memory->rows[r].grads >= (c.grain ? 5 : 1) * memory->rows[r].params); /* sums of grains have 64 bits */
            assert_true(memory->rows[r].samples == (c.grain ? c.grain : BATCH / c.ranks) ||
                        (!c.grain && memory->rows[r].samples == (BATCH + c.ranks - 1) / c.ranks));
            if (peak > planned || (c.separate && !c.grain && peak < planned - planned / 20))
                fail_msg("case %d, row %d: %" PRId64 " bytes were planned, and %" PRId64 " used", k, r, planned, peak);
        }
        end(&t);
    }
}

/* What ZeRO's second stage needs: parameters, parts of gradients and state, a bucket, and activations. */
static void divided_gradients_are_given_back(void **state)
{
    if (!trek_memory_account_counts())
        skip();
    for (int k = 0; k < 6; k++) {
        plan_case c = { .ranks = 2 + k % 3, .separate = true, .grads = true, .wide = true, .budgets = ample,
                        .accumulate = k > 2 ? 2 : 0, .bucket_bytes = 1 << 16 };
        training t;
        if (begin(&c, &t) != TREK_OK || labelled_epoch(t.graph, 0, 1) != TREK_OK)
            fail_msg("case %d: %s", k, trek_error());
        const trek_team_memory *memory = memory_of(&t);
        for (int r = 0; r < c.ranks; r++) {
            const trek_memory_row *row = &memory->rows[r];
            int64_t planned = trek_memory_total(row), peak = trek_memory_account_peak(memory->accounts[r]);
            int64_t activations = (BATCH / c.ranks + 1) * (IN + 8 * WIDE + CLASSES) * 4;
            if (llabs(row->grads - row->params / c.ranks) > row->params / 50)
                fail_msg("case %d, row %d: %" PRId64 " bytes of gradients, of %" PRId64, k, r, row->grads, row->params);
            if (row->activations > 3 * activations + (3 << 16) + WIDE * WIDE * 4)
                fail_msg("case %d, row %d: %" PRId64 " bytes of activations", k, r, row->activations);
            if (peak > planned + planned / 50 || peak < planned - planned / 50)
                fail_msg("case %d, row %d: %" PRId64 " bytes were planned, and %" PRId64 " used", k, r, planned, peak);
        }
        end(&t);
    }
}

/* What ZeRO's third stage needs: parts of parameters, too, and two buckets of them besides. */
static void divided_parameters_are_given_back(void **state)
{
    if (!trek_memory_account_counts())
        skip();
    for (int k = 0; k < 6; k++) {
        plan_case c = { .ranks = 2 + k % 3, .separate = true, .grads = true, .params = true, .wide = true, .budgets = ample,
                        .accumulate = k > 2 ? 2 : 0, .bucket_bytes = 1 << 16 };
        training t;
        if (begin(&c, &t) != TREK_OK || labelled_epoch(t.graph, 0, 1) != TREK_OK)
            fail_msg("case %d: %s", k, trek_error());
        const trek_team *team = trek_graph_ranks(t.graph)->team;
        int64_t whole = 4 * team->replicas[0].arena->parts[0].count;
        for (int r = 0; r < c.ranks; r++) {
            const trek_memory_row *row = &team->memory->rows[r];
            int64_t planned = trek_memory_total(row), peak = trek_memory_account_peak(team->memory->accounts[r]);
            int64_t activations = (BATCH / c.ranks + 1) * (IN + 8 * WIDE + CLASSES) * 4;
            if (llabs(row->params - whole / c.ranks) > whole / 50 || llabs(row->grads - whole / c.ranks) > whole / 50)
                fail_msg("case %d, row %d: %" PRId64 " bytes of parameters and %" PRId64 " of gradients, of %" PRId64, k, r,
                         row->params, row->grads, whole);
            /* one layer's weight is four buckets, of parameters and of gradients; those of the layer before may stay for them
             * (trek_pages_keep_spare) while the layer's product packs the weight, as it does without AVX-512 */
            if (row->activations > 3 * activations + (3 << 16) + 3 * WIDE * WIDE * 4 + (2 << 16))
                fail_msg("case %d, row %d: %" PRId64 " bytes of activations", k, r, row->activations);
            if (peak > planned + planned / 50 || peak < planned - planned / 50)
                fail_msg("case %d, row %d: %" PRId64 " bytes were planned, and %" PRId64 " used", k, r, planned, peak);
        }
        end(&t);
    }
}

/* Sums of grains lie only with those who keep them: a rank has a part of five numbers for each gradient, where it would have all
 * of five. */
static void sums_of_grains_are_divided(void **state)
{
    if (!trek_memory_account_counts())
        skip();
    for (int k = 0; k < 4; k++) {
        plan_case c = { .ranks = 2 + k, .separate = true, .grads = true, .wide = true, .budgets = k < 3 ? ample : NULL,
                        .grain = 7,
                        .accumulate = k % 2 ? 2 : 0, .bucket_bytes = 1 << 16 };
        training t;
        c.ranks = c.ranks > RANKS ? RANKS : c.ranks;
        if (begin(&c, &t) != TREK_OK || labelled_epoch(t.graph, 0, 1) != TREK_OK)
            fail_msg("case %d: %s", k, trek_error());
        const trek_team_memory *memory = memory_of(&t);
        for (int r = 0; r < c.ranks && c.budgets; r++) {
            const trek_memory_row *row = &memory->rows[r];
            int64_t planned = trek_memory_total(row), peak = trek_memory_account_peak(memory->accounts[r]);
            if (llabs(row->grads - 5 * row->params / c.ranks) > row->params / 10)
                fail_msg("case %d, row %d: %" PRId64 " bytes of sums, of %" PRId64, k, r, row->grads, row->params);
            if (peak > planned + planned / 50)
                fail_msg("case %d, row %d: %" PRId64 " bytes were planned, and %" PRId64 " used", k, r, planned, peak);
        }
        end(&t);
    }
}

/* Ranks on none of which the model fits whole, with more memory the slower they are: what is left of the budgets decides who
 * keeps how much. The bits are those of ranks that keep everything, and in grains those of one rank. */
static void parts_follow_what_is_left(void **state)
{
    static elements got, expected;
    int64_t besides[RANKS], budgets[RANKS];
    for (int k = 0; k < 12; k++) {
        plan_case c = { .ranks = 2 + k % 3, .separate = true, .grain = k > 2 ? 5 : 0, .slower = k & 1, .grads = k > 5,
                        .params = k > 8 };
        int64_t all = needs(&c, besides), kept = 0, sum = 0;
        for (int r = 0; r < c.ranks; r++)
            sum += 1 << r;
        for (int r = 0; r < c.ranks; r++)
            budgets[r] = besides[r] + (all << r) / sum + all / 20 + (c.grads ? 1 << 16 : 0); /* gradients are cut at pages */
        c.budgets = budgets;
        training t;
        if (begin(&c, &t) != TREK_OK)
            fail_msg("%d ranks: %s", c.ranks, trek_error());
        const trek_team_memory *memory = memory_of(&t);
        for (int r = 0; r < c.ranks; r++) {
            int64_t part = memory->rows[r].state, fair = (all << r) / sum;
            kept += part;
            assert_true(trek_memory_total(&memory->rows[r]) <= budgets[r]);
            if (c.grads) /* what is left is for both */
                continue;
            assert_true(besides[r] + all > budgets[r]);
            if (llabs(part - fair) > all / 20 + 2 * 2 * 4 * TREK_ARENA_SLOT)
                fail_msg("rank %d of %d keeps %" PRId64 " of %" PRId64 " bytes, not about %" PRId64, r, c.ranks, part, all, fair);
        }
        assert_true(kept == all || c.grads);
        if (labelled_epoch(t.graph, 0, 1) != TREK_OK || labelled_epoch(t.graph, 1, 1) != TREK_OK)
            fail_msg("%d ranks: %s", c.ranks, trek_error());
        for (int r = 0; r < c.ranks && memory->accounts; r++)
            assert_true(trek_memory_account_peak(memory->accounts[r]) <= budgets[r]);
        elements_of_state(t.graph, &got);
        end(&t);
        bool one = c.grain > 0;
        train(&(plan_case){ .ranks = one ? 1 : c.ranks, .separate = !one, .whole = true, .grain = c.grain,
                            .slower = c.slower && !one }, &expected);
        elements_expect(&got, &expected, "case %d", k);
    }
}

/* Rank 0 has no room for any state, and computes; the last rank has a share of 0, and keeps all of it. */
static void some_keep_and_some_compute(void **state)
{
    static elements got, expected;
    int64_t besides[RANKS], budgets[RANKS];
    for (int ranks = 2; ranks <= RANKS; ranks++) {
        plan_case c = { .ranks = ranks, .separate = true, .idle = true };
        int64_t all = needs(&c, besides);
        for (int r = 0; r < ranks; r++)
            budgets[r] = besides[r] + 64;
        budgets[ranks - 1] += 2 * all;
        c.budgets = budgets;
        training t;
        if (begin(&c, &t) != TREK_OK)
            fail_msg("%d ranks: %s", ranks, trek_error());
        const trek_memory_row *rows = memory_of(&t)->rows;
        for (int r = 0; r < ranks; r++)
            assert_int_equal(rows[r].state, r == ranks - 1 ? all : 0);
        assert_true(rows[0].samples > 0 || !trek_memory_account_counts());
        assert_int_equal(rows[ranks - 1].samples, 0);
        end(&t);
        train(&c, &got);
        train(&(plan_case){ .ranks = ranks, .separate = true, .whole = true, .idle = true }, &expected);
        assert_memory_equal(got.values, expected.values, (size_t)expected.n * sizeof *got.values);
    }
}

/* The message has the numbers of all ranks that have too little, and the graph trains afterwards, on its own device. */
static void what_does_not_fit_is_refused(void **state)
{
    int64_t besides[RANKS], budgets[RANKS];
    plan_case c = { .ranks = 2, .separate = true };
    int64_t all = needs(&c, besides);
    for (int k = 0; k < 3; k++) {
        training t;
        char text[80];
        budgets[0] = k == 0 ? besides[0] + all / 3 : k == 1 ? besides[0] / 2 : 1 << 30;
        budgets[1] = k == 0 ? besides[1] + all / 3 : k == 1 ? 1 << 30 : 1;
        c.budgets = budgets;
        assert_int_equal(begin(&c, &t), TREK_ERR_MEMORY);
        for (int r = 0; r < 2; r++) {
            snprintf(text, sizeof text, "%" PRId64 " for rank %d (cpu:%d), which needs", budgets[r], r, r);
            if ((strstr(trek_error(), text) != NULL) != (k == 0 || k == r + 1))
                fail_msg("case %d, rank %d: %s", k, r, trek_error());
        }
        assert_non_null(strstr(trek_error(), "trainer_setup: .memory_budget: "));
        trek_error_clear();
        assert_int_equal(trek_graph_world_size(t.graph), 1);
        assert_int_equal(trek_graph_set_optimizer(t.graph, trek_adamw(NULL)), TREK_OK);
        assert_int_equal(labelled_epoch(t.graph, 0, 1), TREK_OK);
        end(&t);
    }
}

/* A pass that would exceed its rank's budget fails in it, and training goes on when it needs less. */
static void budgets_are_enforced(void **state)
{
    int64_t budgets[RANKS] = { 8 << 20, 8 << 20 };
    if (!trek_memory_account_counts())
        skip();
    plan_case c = { .ranks = 2, .separate = true, .budgets = budgets };
    training t;
    assert_int_equal(begin(&c, &t), TREK_OK);
    assert_int_equal(labelled_epoch(t.graph, 0, 1), TREK_OK);
    greed = 4 << 20;
    assert_int_equal(labelled_epoch(t.graph, 1, 1), TREK_OK);
    greed = 8 << 20;
    assert_int_equal(labelled_epoch(t.graph, 2, 1), TREK_ERR_MEMORY);
    assert_non_null(strstr(trek_error(), "the budget is 8388608"));
    greed = 0;
    trek_error_clear();
    assert_int_equal(trek_graph_zero_grad(t.graph), TREK_OK);
    assert_int_equal(labelled_epoch(t.graph, 3, 1), TREK_OK);
    for (int r = 0; r < 2; r++)
        assert_true(trek_memory_account_peak(memory_of(&t)->accounts[r]) <= budgets[r]);
    end(&t);
}

/* Asks for more memory than there is, in a backward. */
static trek_var *ask(trek_var *var, trek_var *grad, void *arg)
{
    trek_tensor *more = greed_in_backward ? trek_tensor_empty(trek_dims(1 << 30), TREK_U8, trek_cpu(0)) : NULL;
    trek_tensor_release(more);
    return NULL;
}

static trek_status hook(const char *name, trek_var *var, void *arg)
{
    if (strcmp(name, arg) == 0)
        assert_true(trek_var_on_grad(var, ask, NULL) > 0);
    return TREK_OK;
}

/* A backward that fails when some gradients have been sent and others have not: the other ranks do not wait for it, nothing of
 * them is left, and training goes on as if the pass had not been. */
static void backward_that_fails_while_it_sends(void **state)
{
    static elements got, expected;
    int64_t budgets[RANKS] = { 16 << 20, 16 << 20, 16 << 20 };
    if (!trek_memory_account_counts())
        skip();
    for (int k = 0; k < 4; k++) {
        static const char *const names[] = { "0.2.weight", "0.6.weight" }; /* which is complete soon, and late */
        plan_case c = { .ranks = 3, .separate = true, .grads = true, .wide = true, .budgets = budgets, .grain = k < 2 ? 0 : 7 };
        for (int fails = 0; fails < 2; fails++) {
            training t;
            assert_int_equal(begin(&c, &t), TREK_OK);
            for (int r = k < 2 ? 1 : 0; r < (k < 2 ? 2 : 3); r++) /* any rank may get the first grain */
                assert_int_equal(trek_module_each_param(trek_graph_module(trek_graph_replica(t.graph, r)), hook,
                                                        (void *)(uintptr_t)names[k % 2]), TREK_OK);
            assert_int_equal(labelled_epoch(t.graph, 0, 1), TREK_OK);
            greed_in_backward = fails;
            if (fails) {
                assert_int_equal(labelled_epoch(t.graph, 1, 1), TREK_ERR_MEMORY);
                trek_error_clear();
                assert_int_equal(trek_graph_zero_grad(t.graph), TREK_OK);
            }
            greed_in_backward = false;
            assert_int_equal(labelled_epoch(t.graph, 2, 1), TREK_OK);
            elements_of_state(t.graph, fails ? &got : &expected);
            end(&t);
        }
        elements_expect(&got, &expected, "case %d", k);
    }
}

/* Running statistics, masks of dropout and parameters are those of a run whose set-up has measured nothing. */
static void measuring_leaves_nothing(void **state)
{
    static elements got, expected;
    for (int k = 0; k < 8; k++) {
        plan_case c = { .ranks = 1 + k % 3, .separate = k & 1, .grain = k & 2 ? 6 : 0, .whole = k & 4 };
        train(&c, &expected);
        c.budgets = ample;
        train(&c, &got);
        elements_expect(&got, &expected, "case %d", k);
    }
}

/* --- from one layout to another ------------------------------------------------------------------------------ */

/* Ranks, who has how much, and what is divided. Where budgets are tight, no rank could keep all of the state. */
static plan_case draw_layout(uint64_t *state, int optimizer, int64_t *budgets)
{
    plan_case c = { .ranks = 1 + (int)test_draw(state, RANKS), .separate = test_draw(state, 4) > 0,
                    .whole = test_draw(state, 5) == 0, .grain = 6, .optimizer = optimizer, .grads = test_draw(state, 2) };
    c.grads &= c.separate;
    c.params = c.grads && test_draw(state, 2);
    int64_t besides[RANKS], parts[RANKS], all = needs(&c, besides), sum = 0, most = 0;
    for (int r = 0; r < c.ranks; r++) {
        sum += parts[r] = 1 + (int64_t)test_draw(state, 4);
        most = r == 0 || (c.separate && besides[r] > most) ? besides[r] : most; /* whoever owns the largest parameter */
    }
    for (int r = 0; r < c.ranks; r++)
        budgets[r] = most + (c.whole || !c.separate ? all : all * parts[r] / sum + all / 2) + (c.grads ? 1 << 16 : 0);
    c.budgets = test_draw(state, 4) ? budgets : NULL;
    return c;
}

static void open_layout(uint64_t *state, int optimizer, training *t)
{
    int64_t budgets[RANKS];
    plan_case c = draw_layout(state, optimizer, budgets);
    if (begin(&c, t) != TREK_OK)
        fail_msg("%d ranks, optimizer %d: %s", c.ranks, optimizer, trek_error());
}

/* A checkpoint of any layout goes on on any other, with the bits of one rank that has never stopped. */
static void layouts_change(void **state)
{
    static elements got, expected;
    char path[] = "/tmp/trek-memory-plan-XXXXXX";
    close(mkstemp(path));
    uint64_t seed = 1;
    for (int k = 0; k < (test_short() ? 10 : 40); k++) {
        int optimizer = k % OPTIMIZERS;
        training t;
        train(&(plan_case){ .ranks = 1, .grain = 6, .optimizer = optimizer }, &expected);
        open_layout(&seed, optimizer, &t);
        if (labelled_epoch(t.graph, 0, 1) != TREK_OK || trek_checkpoint_save(t.graph, NULL, path) != TREK_OK)
            fail_msg("draw %d: %s", k, trek_error());
        end(&t);
        open_layout(&seed, optimizer, &t);
        if (trek_checkpoint_load(t.graph, NULL, path) != TREK_OK || labelled_epoch(t.graph, 1, 1) != TREK_OK)
            fail_msg("draw %d: %s", k, trek_error());
        elements_of_state(t.graph, &got);
        end(&t);
        elements_expect(&got, &expected, "draw %d, optimizer %d", k, optimizer);
    }
    unlink(path);
}

/* --- what it says ------------------------------------------------------------------------------------------- */

static void expect_text(trek_graph *graph, const char *const *parts, int n)
{
    char *text = trek_trainer_plan_text(graph);
    assert_non_null(text);
    for (int k = 0; k < n; k++)
        if (!strstr(text, parts[k]))
            fail_msg("%s is not in:\n%s", parts[k], text);
    trek_string_free(&text);
    assert_null(text);
}

static void texts(void **state)
{
    static const char *const planned[] = { "parameters", "activations", "peak", "0 (cpu:0)", "2 (cpu:2)", "in 3 parts: 33.3 %",
                                           "4096 bytes", "1048576.0", "at most 11 samples" };
    static const char *const together[] = { "0-1 (cpu:0)", "not measured", "whole wherever parameters are" };
    static const char *const alone[] = { "0 (cpu:0)", "?", "whole wherever parameters are" };
    training t;
    int64_t budgets[] = { 1 << 30, (1 << 30) + 1, 1 << 30 };
    assert_int_equal(begin(&(plan_case){ .ranks = 3, .separate = true, .budgets = budgets }, &t), TREK_OK);
    expect_text(t.graph, planned, trek_memory_account_counts() ? 9 : 8);
    end(&t);
    assert_int_equal(begin(&(plan_case){ .ranks = 2 }, &t), TREK_OK);
    expect_text(t.graph, together, 3);
    end(&t);
    assert_int_equal(begin(&(plan_case){ .ranks = 1 }, &t), TREK_OK);
    expect_text(t.graph, alone, 3);
    end(&t);
    trek_graph *plain = build(trek_cpu(0), NULL);
    REFUSED(trek_trainer_plan_text(NULL), TREK_ERR_ARGUMENT, "trainer_plan_text");
    REFUSED(trek_trainer_plan_text(plain), TREK_ERR_STATE, "trainer_plan_text: graph: it has no optimizer yet");
    trek_graph_free(&plain);
}

/* Whatever allocation fails, set-up says so, and the graph trains on its own device. */
static void set_up_without_memory(void **state)
{
    int failures = 0;
    trek_status status = TREK_ERR_MEMORY;
    for (int64_t at = 1; status != TREK_OK; at += test_short() ? 41 : 7) {
        training t = { .graph = build(trek_cpu(0), NULL), .loader = make_loader() };
        trek_graph_set_loader(t.graph, t.loader, "x");
        trek_graph_set_loss(t.graph, loss, NULL);
        test_memory.fail_count = 1 << 20; /* and all from there on */
        test_allocator_restart(at);
        status = trek_trainer_setup(t.graph, &(trek_trainer_opts){
            .build_replica = build, .ranks = 2, .share_params = TREK_OFF, .shard = TREK_SHARD_STATE, .memory_budget = ample,
            .n_memory_budget = 2, .max_anchor = TREK_OFF, .optimizer = trek_lamb(&(trek_lamb_opts){ .lr = 0.01 }) });
        test_allocator_restart(0);
        failures += status != TREK_OK;
        trek_error_clear();
        if (status != TREK_OK)
            assert_int_equal(trek_graph_set_optimizer(t.graph, optimizer_of(0)), TREK_OK);
        assert_int_equal(labelled_epoch(t.graph, 0, 1), TREK_OK);
        end(&t);
        trek_memory_release_cached(trek_cpu(0));
    }
    assert_true(failures > 3);
}

static void expect_refused(trek_trainer_opts opts, trek_status status, const char *text)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    opts.build_replica = build;
    opts.ranks = 2;
    FAILS(trek_trainer_setup(graph, &opts), status, text);
    trek_graph_free(&graph);
}

static void refused(void **state)
{
    int64_t budgets[] = { 1 << 20, 0, 1 << 20 };
    expect_refused((trek_trainer_opts){ .memory_budget = budgets, .n_memory_budget = 1 }, TREK_ERR_ARGUMENT,
                   ".n_memory_budget: 1; must be the number of this process's ranks, 2");
    expect_refused((trek_trainer_opts){ .memory_budget = budgets, .n_memory_budget = 2 }, TREK_ERR_ARGUMENT,
                   ".memory_budget: 0 for rank 1");
    expect_refused((trek_trainer_opts){ .memory_budget = budgets }, TREK_ERR_ARGUMENT, ".n_memory_budget: 0");
    expect_refused((trek_trainer_opts){ .n_memory_budget = 2 }, TREK_ERR_ARGUMENT, ".n_memory_budget: 2");
    budgets[1] = 1;
    expect_refused((trek_trainer_opts){ .memory_budget = budgets, .n_memory_budget = 2, .average = TREK_AVERAGE_PARAMETERS },
                   TREK_ERR_UNSUPPORTED, ".memory_budget: set together with .average");
}

int main(void)
{
    trek_pages_guard = true; /* whoever reads what a rank does not have is stopped */
    setenv("TREK_THREADS", "1", 1); /* room that is planned for other threads, and not needed, hides nothing */
    if (test_allocator_use() != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_says_what_is_used),
        cmocka_unit_test(divided_gradients_are_given_back), cmocka_unit_test(divided_parameters_are_given_back),
        cmocka_unit_test(sums_of_grains_are_divided),
        cmocka_unit_test(backward_that_fails_while_it_sends),
        cmocka_unit_test(parts_follow_what_is_left),
        cmocka_unit_test(some_keep_and_some_compute), cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(budgets_are_enforced), cmocka_unit_test(measuring_leaves_nothing), cmocka_unit_test(layouts_change),
        cmocka_unit_test(texts), cmocka_unit_test(set_up_without_memory),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
