/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as results (trek_grad) through a forward that is split over the ranks of a process, of the first, second and
 * third order, against one rank: for rows that are divided, for inputs that every rank has as a whole, and for
 * parameters. */
#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "distributed/ddp.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/copies.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { IN = 4, HIDDEN = 5, MOST = 64, MOST_PARAMS = 4 };

/* --- a model: y = tanh(norm(x w)) v, [rows, 2]; w is an input that is not divided ------------------------------------- */

typedef struct net {
    trek_module base;
    trek_var *v, *gain;
    trek_module *norm; /* NULL: none */
} net;

static const char *const inputs[] = { "w", NULL };

static trek_tensor *numbers(uint32_t stream, trek_shape shape)
{
    trek_tensor *single = test_tensor(stream, shape, 1), *result = trek_tensor_cast(single, TREK_F64);
    trek_tensor_release(single);
    return result;
}

static trek_var *net_forward(trek_module *self, trek_var *const *x, int n)
{
    const net *m = (const net *)self;
    trek_var *h = trek_mul(trek_matmul(x[0], x[1]), m->gain);
    if (m->norm)
        h = trek_forward(m->norm, h);
    return trek_matmul(trek_tanh(h), m->v);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward_many = net_forward,
                                             .input_names = inputs };

static trek_graph *build(trek_device device, void *arg)
{
    trek_module *m = trek_module_new(&net_class);
    trek_module_param(m, "v", offsetof(net, v), numbers(1, trek_dims(HIDDEN, 2)));
    trek_module_param(m, "gain", offsetof(net, gain), numbers(2, trek_dims(HIDDEN)));
    if (*(bool *)arg)
        trek_module_add(m, "norm", offsetof(net, norm), trek_nn_sync_batch_norm_with(
            &(trek_batch_norm_opts){ .features = HIDDEN, .dtype = TREK_F64 }));
    trek_flow *flow = trek_flow_new();
    trek_flow_input(flow, "w");
    trek_flow_through(flow, trek_module_check(m));
    trek_flow_using(flow, "w");
    return trek_flow_build(flow);
}

static trek_graph *on_ranks(int ranks, bool *with_norm)
{
    trek_graph *graph = build(trek_cpu(0), with_norm);
    assert_non_null(graph);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .arg = with_norm, .ranks = ranks,
        .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }) }), TREK_OK);
    assert_int_equal(trek_graph_replicate_input(graph, "w"), TREK_OK);
    return graph;
}

/* --- what is compared --------------------------------------------------------------------------------------------------- */

/* Values of a computation, in order. */
typedef struct found {
    double at[4 * MOST];
    int n;
} found;

static void note(found *f, trek_var *var)
{
    assert_int_equal(trek_error_status(), TREK_OK);
    assert_non_null(var);
    int n = (int)trek_var_numel(var);
    assert_true(f->n + n <= 4 * MOST);
    trek_tensor_to_host(trek_var_data(var), TREK_F64, f->at + f->n, (size_t)n * sizeof(double));
    f->n += n;
}

typedef struct setting {
    trek_graph *graph;
    trek_var *x, *w, *params[MOST_PARAMS];
    int n_params;
} setting;

static trek_status list_param(const char *name, trek_var *param, void *arg)
{
    setting *s = arg;
    assert_true(s->n_params < MOST_PARAMS);
    s->params[s->n_params++] = param;
    return TREK_OK;
}

static trek_var *forward(const setting *s, trek_var *x, trek_var *w)
{
    return trek_graph_forward_many(s->graph, (trek_var *[]){ x, w }, 2);
}

static trek_var *mean_square(trek_var *x) { return trek_mean(trek_square(x), trek_dims_all(), false); }
static trek_var *sum_square(trek_var *x) { return trek_sum(trek_square(x), trek_dims_all(), false); }

static trek_var *grad_of(trek_var *loss, trek_var *of)
{
    trek_var *g = NULL;
    assert_int_equal(trek_grad(&loss, 1, &of, 1, NULL, &(trek_backward_opts){ .create_graph = true }, &g), TREK_OK);
    assert_non_null(g);
    return g;
}

static void note_all(const setting *s, found *f)
{
    note(f, trek_var_grad(s->x));
    note(f, trek_var_grad(s->w));
    assert_int_equal(trek_graph_reduce(s->graph), TREK_OK);
    for (int k = 0; k < s->n_params; k++)
        note(f, trek_var_grad(s->params[k]));
}

/* --- computations --------------------------------------------------------------------------------------------------------- */

/* The gradient of the input is penalised, as in WGAN-GP; what feeds the graph has a history, too. */
static void penalty(const setting *s, found *f)
{
    trek_var *inner = trek_mul_scalar(trek_sin(s->x), 1.5), *y = forward(s, inner, s->w);
    trek_var *g = grad_of(mean_square(y), inner);
    note(f, g);
    trek_backward(trek_add(trek_sum(trek_tanh(y), trek_dims_all(), false), trek_mul_scalar(sum_square(g), 3)));
    note_all(s, f);
}

/* The penalty alone: the first node's outputs are not part of the loss. */
static void penalty_alone(const setting *s, found *f)
{
    trek_var *g = grad_of(mean_square(forward(s, s->x, s->w)), s->x);
    trek_backward(sum_square(g));
    note_all(s, f);
}

/* A step in w, and the loss behind it, as in MAML; the forward runs twice. */
static void inner_step(const setting *s, found *f)
{
    trek_var *g = grad_of(mean_square(forward(s, s->x, s->w)), s->w);
    trek_var *next = trek_sub(s->w, trek_mul_scalar(g, 0.7));
    trek_backward(mean_square(forward(s, s->x, next)));
    note_all(s, f);
}

/* Gradients of gradients of gradients, of rows and whole inputs. */
static void third_order(const setting *s, found *f)
{
    trek_var *g = grad_of(mean_square(forward(s, s->x, s->w)), s->x);
    trek_var *h = grad_of(sum_square(g), s->w);
    note(f, h);
    trek_backward(sum_square(trek_sin(h)));
    note_all(s, f);
}

/* Parameters: their gradients are results, and have a history; nothing is added to the leaves by trek_grad. */
static void of_parameters(const setting *s, found *f)
{
    trek_var *const *params = s->params, *grads[MOST_PARAMS], *loss = mean_square(forward(s, s->x, s->w));
    int n = s->n_params;
    assert_int_equal(trek_grad(&loss, 1, params, n, NULL, &(trek_backward_opts){ .retain_graph = true }, grads), TREK_OK);
    for (int k = 0; k < n; k++) {
        note(f, grads[k]);
        assert_null(trek_var_grad(params[k]));
        assert_false(trek_var_requires_grad(grads[k]));
    }
    assert_int_equal(trek_grad(&loss, 1, params, n, NULL, &(trek_backward_opts){ .create_graph = true }, grads), TREK_OK);
    trek_var *penalty = sum_square(grads[0]);
    for (int k = 1; k < n; k++)
        penalty = trek_add(penalty, sum_square(grads[k]));
    trek_backward(trek_add(penalty, loss));
    note_all(s, f);
}

static const struct {
    const char *name;
    void (*run)(const setting *s, found *f);
} computations[] = { { "penalty", penalty }, { "penalty alone", penalty_alone }, { "inner step", inner_step },
                     { "third order", third_order }, { "parameters", of_parameters } };

/* --- tests ---------------------------------------------------------------------------------------------------------------- */

static void run_on(int ranks, int64_t rows, bool with_norm, int which, found *f)
{
    setting s = { .graph = on_ranks(ranks, &with_norm) };
    assert_int_equal(trek_module_each_param(trek_graph_module(s.graph), list_param, &s), TREK_OK);
    assert_int_equal(s.n_params, with_norm ? 4 : 2);
    trek_scope scope = trek_scope_begin();
    trek_tensor *x = numbers(3, trek_dims(rows, IN)), *w = numbers(4, trek_dims(IN, HIDDEN));
    s.x = trek_var_new(x, true);
    s.w = trek_var_new(w, true);
    trek_tensor_release(x);
    trek_tensor_release(w);
    computations[which].run(&s, f);
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_var_release(s.x);
    trek_var_release(s.w);
    trek_scope_end(scope);
    assert_int_equal(trek_graph_step(s.graph), TREK_OK);
    trek_graph_free(&s.graph);
    assert_int_equal(trek_tape_size(), 0);
}

/* Divided evenly, unevenly, and with ranks that have no rows. */
static void compare_ranks(bool with_norm, double tolerance)
{
    static const int64_t rows[] = { 6, 7, 2 };
    for (size_t which = 0; which < sizeof computations / sizeof *computations; which++)
        for (int k = 0; k < 3; k++)
            for (int ranks = 2; ranks <= 3; ranks++) {
                found one = { .n = 0 }, many = { .n = 0 };
                run_on(1, rows[k], with_norm, (int)which, &one);
                run_on(ranks, rows[k], with_norm, (int)which, &many);
                assert_int_equal(one.n, many.n);
                for (int i = 0; i < one.n; i++)
                    if (!(fabs(one.at[i] - many.at[i]) <= tolerance * (1 + fabs(one.at[i]))))
                        fail_msg("%s, %d rows: number %d of %d: %.17g on one rank, %.17g on %d", computations[which].name,
                                 (int)rows[k], i, one.n, one.at[i], many.at[i], ranks);
            }
}

static void test_ranks_agree_with_one(void **state) { compare_ranks(false, 1e-12); }
/* With synchronised batch norm: sums over the ranks in the forward, of which each gradient makes others. */
static void test_sums_over_ranks(void **state) { compare_ranks(true, 1e-10); }

/* --- wrapped models: replicas get n times their share of a gradient, and results may be means over the rows ------------- */

enum { REPLICAS = 3 };
typedef enum form { ROWS, MEAN, OWN_INPUTS, FORMS } form; /* what a wrapped model returns; or each replica has its own input */

typedef struct wrapped {
    trek_module base;
    trek_var *w, *v;
    bool mean;
} wrapped;

static trek_var *wrapped_forward(trek_module *self, trek_var *x)
{
    const wrapped *m = (const wrapped *)self;
    trek_var *y = trek_matmul(trek_tanh(trek_matmul(x, m->w)), m->v);
    return m->mean ? trek_mean(trek_square(y), trek_dims_all(), false) : y;
}

static const trek_module_class wrapped_class = { .name = "wrapped", .size = sizeof(wrapped), .forward = wrapped_forward };

static trek_module *wrapped_new(form form)
{
    trek_module *m = trek_module_new(&wrapped_class);
    ((wrapped *)m)->mean = form == MEAN;
    trek_module_param(m, "w", offsetof(wrapped, w), numbers(5, trek_dims(IN, HIDDEN)));
    trek_module_param(m, "v", offsetof(wrapped, v), numbers(6, trek_dims(HIDDEN, 2)));
    return trek_module_check(m);
}

/* Parts of x for replicas that have their own input. */
static trek_var *forward_wrapped(trek_ddp *ddp, trek_module *model, trek_var *x, form form)
{
    if (!ddp)
        return trek_forward(model, x);
    trek_var *parts[REPLICAS] = { trek_narrow(x, 0, 0, 3), trek_narrow(x, 0, 3, 1), trek_narrow(x, 0, 4, 3) };
    return form == OWN_INPUTS ? trek_ddp_forward(ddp, parts) : trek_forward(trek_ddp_module(ddp), x);
}

static void penalise_wrapped(bool replicated, form form, int order, found *f)
{
    trek_module *models[REPLICAS], *model;
    for (int r = 0; r < REPLICAS; r++)
        models[r] = r == 0 || replicated ? wrapped_new(form) : NULL;
    trek_ddp *ddp = replicated ? trek_ddp_wrap(models, REPLICAS, NULL) : NULL;
    assert_true(!replicated || ddp);
    model = replicated ? trek_ddp_replica_module(ddp, 0) : models[0];
    trek_scope scope = trek_scope_begin();
    trek_tensor *data = numbers(7, trek_dims(7, IN));
    trek_var *x = trek_var_new(data, true), *y = forward_wrapped(ddp, model, x, form), *loss = sum_square(y);
    trek_tensor_release(data);
    for (int k = 0; k < order; k++) {
        trek_var *g = grad_of(loss, x);
        note(f, g);
        loss = trek_add(sum_square(g), trek_sum(trek_tanh(y), trek_dims_all(), false));
    }
    assert_int_equal(trek_backward(loss), TREK_OK);
    assert_int_equal(ddp ? trek_ddp_reduce_gradients(ddp) : TREK_OK, TREK_OK);
    note(f, trek_var_grad(x));
    note(f, trek_var_grad(((wrapped *)model)->w));
    note(f, trek_var_grad(((wrapped *)model)->v));
    trek_var_release(x);
    trek_scope_end(scope);
    if (ddp)
        trek_ddp_free(&ddp);
    else
        trek_module_free(&models[0]);
}

static void test_wrapped_models(void **state)
{
    for (int form = 0; form < FORMS; form++)
        for (int order = 1; order <= 2; order++) {
            found one = { .n = 0 }, three = { .n = 0 };
            penalise_wrapped(false, form, order, &one);
            penalise_wrapped(true, form, order, &three);
            assert_int_equal(one.n, three.n);
            for (int i = 0; i < one.n; i++)
                if (fabs(one.at[i] - three.at[i]) > 1e-11 * (1 + fabs(one.at[i])))
                    fail_msg("form %d, order %d: number %d of %d: %.17g by one model, %.17g by three", form, order, i, one.n,
                             one.at[i], three.at[i]);
        }
}

static void test_refused(void **state)
{
    bool with_norm = false;
    trek_graph *graph = on_ranks(2, &with_norm);
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(numbers(3, trek_dims(4, IN))), *w = trek_var_from(numbers(4, trek_dims(IN, HIDDEN)));
    trek_var *loss = mean_square(trek_graph_forward_many(graph, (trek_var *[]){ x, w }, 2));
    trek_backward_with(loss, NULL, &(trek_backward_opts){ .create_graph = true });
    assert_int_equal(trek_error_status(), TREK_ERR_UNSUPPORTED);
    assert_non_null(strstr(trek_error(), "use trek_grad"));
    trek_error_clear();
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

int main(void)
{
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_ranks_agree_with_one), cmocka_unit_test(test_sums_over_ranks),
                                        cmocka_unit_test(test_wrapped_models),
                                        cmocka_unit_test(test_refused) };
    return cmocka_run_group_tests_name("split_grad", tests, NULL, NULL);
}
