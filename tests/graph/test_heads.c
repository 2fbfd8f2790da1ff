/* SPDX-License-Identifier: Apache-2.0 */
/* Task heads: structs around a graph with methods of their own (a loss, a prediction),
 * with several inputs, trained through trek_trainer_setup on N ranks. What the program
 * calls are the head's methods; the result is that of one device. */
#include <stdatomic.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/copies.h"
#include "tensor/rank_context.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { LEFT = 5, RIGHT = 3, HIDDEN = 8, CLASSES = 4, ROWS = 11, STEPS = 5, MAX_VALUES = 512, MAX_WORLD = 4 };

/* --- a module with two inputs, which counts who runs it ------------------------------------------- */

static atomic_int runs[MAX_WORLD], training[MAX_WORLD];

typedef struct join {
    trek_module base;
    trek_var *weight;
} join;

static const char *const join_inputs[] = { "right", NULL };

static trek_var *join_many(trek_module *self, trek_var *const *inputs, int n)
{
    int rank = trek_rank_here.rank;
    atomic_fetch_add(&runs[rank], 1);
    atomic_store(&training[rank], trek_module_is_training(self));
    return trek_tanh(trek_add(inputs[0], trek_linear(inputs[1], ((join *)self)->weight, NULL)));
}

static const trek_module_class join_class = {
    .name = "join", .size = sizeof(join), .forward_many = join_many, .input_names = join_inputs
};

static trek_module *join_new(trek_device device)
{
    trek_module *m = trek_module_new(&join_class);
    trek_tensor *here = test_tensor(3, trek_dims(HIDDEN, RIGHT), 0.5);
    trek_module_param(m, "weight", offsetof(join, weight), trek_tensor_to(here, device));
    trek_tensor_release(here);
    return trek_module_check(m);
}

/* --- the graph in it: left -> encoder, joined with right -> logits ------------------------------------ */

static trek_graph *build(trek_device device, void *arg)
{
    trek_flow *flow = trek_flow_from(trek_nn_linear(LEFT, HIDDEN, device));
    trek_flow_label(flow, "encoder");
    trek_flow_through(flow, trek_nn_dropout(0.2));
    trek_flow_input(flow, "right");
    trek_flow_through(flow, join_new(device));
    trek_flow_label(flow, "joint");
    trek_flow_using(flow, "right");
    trek_flow_tag(flow, "features");
    trek_flow_through(flow, trek_nn_linear(HIDDEN, CLASSES, device));
    trek_flow_label(flow, "head");
    return trek_flow_build(flow);
}

/* --- the head: a struct of the program's around it ------------------------------------------------------- */

typedef enum how { BY_GRAPH, BY_MODULE } how;

typedef struct classifier {
    trek_graph *graph;
    how how;              /* how its methods run the graph */
    double penalty;       /* on the size of features */
} classifier;

static trek_var *classifier_logits(classifier *c, trek_var *left, trek_var *right)
{
    trek_var *inputs[] = { left, right };
    return c->how == BY_GRAPH ? trek_graph_forward_many(c->graph, inputs, 2)
                              : trek_forward_many(trek_graph_module(c->graph), inputs, 2);
}

static trek_var *classifier_compute_loss(classifier *c, trek_var *left, trek_var *right, trek_var *labels)
{
    trek_var *loss = trek_cross_entropy(classifier_logits(c, left, right), labels);
    trek_var *features = trek_graph_tagged(c->graph, "features");
    trek_var *decay =
        trek_mean(trek_square(trek_module_find(trek_graph_module(c->graph), "head.weight")), trek_dims_all(), false);
    loss = trek_add(loss, trek_mul_scalar(trek_mean(trek_square(features), trek_dims_all(), false), c->penalty));
    return trek_add(loss, trek_mul_scalar(decay, c->penalty)); /* of a parameter itself: counts once, not once a rank */
}

/* The most likely class of each row. Leaves the mode as it was. */
static trek_var *classifier_predict(classifier *c, trek_var *left, trek_var *right)
{
    trek_graph_train(c->graph, false);
    trek_no_grad_begin();
    trek_var *best = trek_argmax(classifier_logits(c, left, right), trek_dims(1), false);
    trek_no_grad_end();
    trek_graph_train(c->graph, true);
    return best;
}

/* --- training it -------------------------------------------------------------------------------------------- */

static trek_var *field(uint32_t stream, int64_t n, int64_t width)
{
    return trek_var_from(test_tensor(stream, trek_dims(n, width), 1));
}

static trek_var *labels_of(uint32_t stream, int64_t n)
{
    int64_t values[64];
    for (int64_t i = 0; i < n; i++)
        values[i] = (int64_t)(CLASSES * (0.5 + 0.5 * (double)test_number(stream, (uint32_t)i)));
    return trek_var_from(trek_tensor_from_data(values, trek_dims(n), TREK_I64, test_device()));
}

typedef struct outcome {
    int n;
    double values[MAX_VALUES];
    double predicted[ROWS];
    double losses[STEPS];
    int runs[MAX_WORLD];
} outcome;

static trek_status see_value(const char *name, trek_var *param, void *arg)
{
    outcome *o = arg;
    double *values = test_read(trek_var_data(param));
    for (int64_t i = 0; i < trek_var_numel(param); i++)
        o->values[o->n++] = values[i];
    free(values);
    return TREK_OK;
}

static void run(outcome *o, int world, int share, how how, bool fine_tune)
{
    memset(o, 0, sizeof *o);
    trek_seed(7);
    trek_rank_here.rng_step = trek_rank_here.rng_draw = 0;
    classifier c = { .graph = build(test_device(), NULL), .how = how, .penalty = 0.1 };
    assert_non_null(c.graph);
    assert_int_equal(trek_trainer_setup(c.graph, &(trek_trainer_opts){ .build_replica = build,
                                                                       .devices = test_devices(), .ranks = world,
                                                                       .share_params = share,
                                                                       .optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.02 }) }),
                     TREK_OK);
    if (fine_tune)
        trek_graph_freeze(c.graph, "encoder");
    for (int r = 0; r < MAX_WORLD; r++)
        atomic_store(&runs[r], 0);
    for (int s = 0; s < STEPS; s++) {
        if (s == 3)
            trek_graph_thaw(c.graph, "encoder");
        int64_t n = s == 4 ? 2 : ROWS; /* a short batch: fewer rows than some worlds have ranks */
        trek_scope scope = trek_scope_begin();
        trek_var *loss = classifier_compute_loss(&c, field(10 * (uint32_t)s, n, LEFT), field(10 * (uint32_t)s + 1, n, RIGHT),
                                                 labels_of(10 * (uint32_t)s + 2, n));
        o->losses[s] = trek_var_item(loss);
        trek_graph_backward(c.graph, loss);
        trek_graph_step(c.graph);
        trek_scope_end(scope);
    }
    for (int r = 0; r < MAX_WORLD; r++)
        o->runs[r] = atomic_load(&runs[r]);
    trek_scope scope = trek_scope_begin();
    trek_var *best = classifier_predict(&c, field(90, ROWS, LEFT), field(91, ROWS, RIGHT));
    assert_non_null(best);
    double *predicted = test_read(trek_var_data(best));
    memcpy(o->predicted, predicted, sizeof o->predicted);
    free(predicted);
    for (int r = 0; r < world; r++)
        assert_int_equal(atomic_load(&training[r]), 0); /* eval reached every rank that predicted */
    trek_scope_end(scope);
    trek_module_each_param(trek_graph_module(c.graph), see_value, o);
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_graph_free(&c.graph);
}

static void expect_same(const outcome *a, const outcome *b)
{
    assert_int_equal(a->n, b->n);
    for (int k = 0; k < a->n; k++)
        assert_true(fabs(a->values[k] - b->values[k]) <= 2e-5 * (1 + fabs(b->values[k])));
    for (int k = 0; k < ROWS; k++)
        assert_true(a->predicted[k] == b->predicted[k]);
    for (int k = 0; k < STEPS; k++)
        assert_true(fabs(a->losses[k] - b->losses[k]) <= 1e-5);
}

static void methods_train_as_on_one_device(how how)
{
    static outcome one, many;
    for (int fine_tune = 0; fine_tune < 2; fine_tune++) {
        run(&one, 1, 0, how, fine_tune);
        for (int world = 2; world <= 3; world++)
            for (int share = 0; share < 2; share++) {
                run(&many, world, share ? TREK_OFF : 0, how, fine_tune);
                expect_same(&many, &one);
                for (int r = 0; r < world; r++) /* every rank did its part of each step; of the short batch where it had rows */
                    assert_int_equal(many.runs[r], r < 2 ? STEPS : STEPS - 1);
            }
    }
}

static void methods_that_run_the_graph(void **state)
{
    methods_train_as_on_one_device(BY_GRAPH);
}

static void methods_that_run_the_graphs_module(void **state)
{
    methods_train_as_on_one_device(BY_MODULE);
}

/* --- a head that is a module itself, with the graph below it --------------------------------------------------- */

typedef struct regressor {
    trek_module base;
    trek_module *body, *out;
} regressor;

static trek_var *regressor_many(trek_module *self, trek_var *const *inputs, int n)
{
    regressor *m = (regressor *)self;
    return trek_forward(m->out, trek_forward_many(m->body, inputs, n));
}

static const trek_module_class regressor_class = { .name = "regressor", .size = sizeof(regressor), .forward_many = regressor_many,
                                                   .input_names = join_inputs };

static trek_module *regressor_new(trek_device device)
{
    trek_module *m = trek_module_new(&regressor_class);
    trek_module_add(m, "body", offsetof(regressor, body), trek_graph_module(build(device, NULL)));
    trek_module_add(m, "out", offsetof(regressor, out), trek_nn_linear(CLASSES, 1, device));
    return trek_module_check(m);
}

/* The whole head in a graph of its own: what the trainer is given. */
static trek_graph *build_regressor(trek_device device, void *arg)
{
    trek_flow *flow = trek_flow_new();
    trek_flow_input(flow, "right");
    trek_flow_through(flow, regressor_new(device));
    trek_flow_label(flow, "regressor");
    trek_flow_using(flow, "right");
    return trek_flow_build(flow);
}

/* Fitted with the graph, then scored by the head's own forward on one rank: parameters are those of all. */
static double regressor_score(trek_graph *graph, int64_t n)
{
    trek_module *head = trek_graph_at(graph, "regressor");
    trek_module_train(head, false);
    trek_no_grad_begin();
    trek_var *y = trek_forward_many(head, (trek_var *[]){ field(90, n, LEFT), field(91, n, RIGHT) }, 2);
    double score = trek_var_item(trek_mse_loss(y, field(92, n, 1)));
    trek_no_grad_end();
    trek_module_train(head, true);
    return score;
}

static double run_regressor(int world)
{
    trek_seed(7);
    trek_rank_here.rng_step = trek_rank_here.rng_draw = 0;
    trek_graph *graph = build_regressor(test_device(), NULL);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build_regressor,
                                                                     .devices = test_devices(), .ranks = world,
                                                                     .optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.02 }) }),
                     TREK_OK);
    trek_scope scope = trek_scope_begin();
    for (uint32_t s = 0; s < STEPS; s++) {
        trek_var *y =
            trek_graph_forward_many(graph, (trek_var *[]){ field(10 * s, ROWS, LEFT), field(10 * s + 1, ROWS, RIGHT) }, 2);
        trek_graph_backward(graph, trek_mse_loss(y, field(10 * s + 2, ROWS, 1)));
        trek_graph_step(graph);
    }
    double score = regressor_score(graph, ROWS);
    trek_scope_end(scope);
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_graph_free(&graph);
    return score;
}

static void heads_that_are_modules(void **state)
{
    double one = run_regressor(1);
    for (int world = 2; world <= 3; world++)
        assert_true(fabs(run_regressor(world) - one) <= 1e-5 * (1 + one));
}

/* --- what does not fit ---------------------------------------------------------------------------------------------- */

static void inputs_that_do_not_fit(void **state)
{
    classifier c = { .graph = build(test_device(), NULL) };
    assert_int_equal(trek_trainer_setup(c.graph, &(trek_trainer_opts){ .build_replica = build,
                                                                       .devices = test_devices(), .ranks = 2,
                                                                       .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }) }),
                     TREK_OK);
    for (int how = BY_GRAPH; how <= BY_MODULE; how++) {
        c.how = (enum how)how;
        trek_scope scope = trek_scope_begin();
        assert_null(classifier_logits(&c, field(1, 4, LEFT), field(2, 3, RIGHT)));
        assert_non_null(strstr(trek_error(), "different numbers of rows"));
        trek_error_clear();
        trek_var *x = field(1, 4, LEFT);
        REFUSED(how == BY_GRAPH ? trek_graph_forward(c.graph, x) : trek_forward(trek_graph_module(c.graph), x),
                TREK_ERR_ARGUMENT, "");
        trek_scope_end(scope);
    }
    trek_graph_free(&c.graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(methods_that_run_the_graph), cmocka_unit_test(methods_that_run_the_graphs_module),
        cmocka_unit_test(heads_that_are_modules), cmocka_unit_test(inputs_that_do_not_fit),
    };
    alarm(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
