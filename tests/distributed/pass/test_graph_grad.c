/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as results over several processes (trek_graph_grad), of the first to third order, against one process with one
 * rank: 1 to 3 ranks in each of 2 processes, with and without synchronised batch norm, even, uneven and empty parts. */
#include <stdlib.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/passes.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/copies.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { IN = 3, HIDDEN = 4, OUT = 2, ROWS = 8, MOST_PARAMS = 5, MOST = 4096, PROCESSES_HERE = 2 };

/* --- a model: y = tanh(norm(x w)) v; u is a parameter that nothing uses --------------------------------------------------- */

typedef struct net {
    trek_module base;
    trek_var *w, *v, *u;
    trek_module *norm; /* NULL: none */
} net;

static trek_tensor *numbers(uint32_t stream, trek_shape shape)
{
    trek_tensor *single = test_tensor(stream, shape, 1), *result = trek_tensor_cast(single, TREK_F64);
    trek_tensor_release(single);
    return result;
}

static trek_var *net_forward(trek_module *self, trek_var *x)
{
    const net *m = (const net *)self;
    trek_var *h = trek_matmul(x, m->w);
    return trek_matmul(trek_tanh(m->norm ? trek_forward(m->norm, h) : h), m->v);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

static trek_graph *build(trek_device device, void *arg)
{
    trek_module *m = trek_module_new(&net_class);
    trek_module_param(m, "w", offsetof(net, w), numbers(1, trek_dims(IN, HIDDEN)));
    trek_module_param(m, "v", offsetof(net, v), numbers(2, trek_dims(HIDDEN, OUT)));
    trek_module_param(m, "u", offsetof(net, u), numbers(3, trek_dims(3)));
    if (*(const bool *)arg)
        trek_module_add(m, "norm", offsetof(net, norm), trek_nn_sync_batch_norm_with(
            &(trek_batch_norm_opts){ .features = HIDDEN, .dtype = TREK_F64 }));
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

/* --- what is computed ---------------------------------------------------------------------------------------------------- */

typedef struct setting {
    trek_graph *graph;
    trek_var *x;
    trek_var *params[MOST_PARAMS];
    int n_params;
    double *at; /* what was found, in order */
    int n;
} setting;

static void note(setting *s, const trek_var *var)
{
    if (trek_error_status() != TREK_OK)
        fail_msg("%s", trek_error());
    int n = var ? (int)trek_var_numel(var) : 0;
    assert_true(s->n + n + 1 <= MOST);
    s->at[s->n++] = n;
    if (n > 0)
        trek_tensor_to_host(trek_var_data(var), TREK_F64, s->at + s->n, (size_t)n * sizeof(double));
    s->n += n;
}

static trek_var *square_of(trek_var *x) { return trek_sum(trek_square(x), trek_dims_all(), false); }

/* The mean over this process's rows. */
static trek_var *loss_of(const setting *s, trek_var *x)
{
    return trek_mean(trek_square(trek_add_scalar(trek_graph_forward(s->graph, x), 0.3)), trek_dims_all(), false);
}

static void gradients(setting *s, trek_var *loss, bool recorded, trek_var **grads)
{
    if (trek_graph_grad(s->graph, loss, s->params, s->n_params, &(trek_backward_opts){ .create_graph = recorded }, grads) !=
        TREK_OK)
        fail_msg("%s", trek_error());
}

static void backward(setting *s, trek_var *loss)
{
    if (trek_graph_backward(s->graph, loss) != TREK_OK || trek_graph_reduce(s->graph) != TREK_OK)
        fail_msg("%s", trek_error());
    for (int k = 0; k < s->n_params; k++)
        note(s, trek_var_grad(s->params[k]));
    SUCCEEDS(trek_graph_zero_grad(s->graph));
    trek_var_zero_grad(s->x);
}

static void first_order(setting *s)
{
    trek_var *grads[MOST_PARAMS];
    gradients(s, loss_of(s, s->x), false, grads);
    for (int k = 0; k < s->n_params; k++) {
        note(s, grads[k]);
        assert_true(!grads[k] || !trek_var_requires_grad(grads[k]));
    }
}

/* The squared norm of the gradient is part of the loss. */
static void penalty(setting *s)
{
    trek_var *grads[MOST_PARAMS], *loss = loss_of(s, s->x), *sum = loss;
    gradients(s, loss, true, grads);
    for (int k = 0; k < s->n_params; k++)
        if (grads[k])
            sum = trek_add(sum, trek_mul_scalar(square_of(grads[k]), 0.5 + k));
    backward(s, sum);
}

/* A product of the matrix of second derivatives with a vector, and a loss that uses it. */
static void third_order(setting *s)
{
    trek_var *grads[MOST_PARAMS], *products[MOST_PARAMS], *loss = loss_of(s, s->x), *along = NULL;
    gradients(s, loss, true, grads);
    for (int k = 0; k < s->n_params; k++)
        if (grads[k]) {
            trek_var *direction = trek_var_from(numbers(20 + (uint32_t)k, trek_var_shape(s->params[k])));
            trek_var *part = trek_sum(trek_mul(grads[k], direction), trek_dims_all(), false);
            along = along ? trek_add(along, part) : part;
        }
    gradients(s, along, true, products);
    trek_var *sum = loss_of(s, s->x);
    for (int k = 0; k < s->n_params; k++) {
        note(s, products[k]);
        if (products[k])
            sum = trek_add(sum, square_of(trek_sin(products[k])));
    }
    backward(s, sum);
}

/* Gradients of the rows are this process's; the mean of their squares is part of the loss. */
static void of_rows(setting *s)
{
    trek_var *g = NULL, *loss = loss_of(s, s->x);
    SUCCEEDS(trek_graph_grad(s->graph, loss, &s->x, 1, &(trek_backward_opts){ .create_graph = true }, &g));
    trek_var *sum = loss_of(s, s->x);
    if (g) /* a process without rows has none */
        sum = trek_add(sum, trek_mean(trek_square(trek_mul_scalar(g, ROWS)), trek_dims_all(), false));
    backward(s, sum);
}

static void (*const computations[])(setting *s) = { first_order, penalty, third_order, of_rows };
enum { COMPUTATIONS = sizeof computations / sizeof *computations };

static trek_status list_param(const char *name, trek_var *param, void *arg)
{
    setting *s = arg;
    assert_true(s->n_params < MOST_PARAMS);
    s->params[s->n_params++] = param;
    return TREK_OK;
}

/* Computes all of it on rows [first, first + rows). Returns how many numbers there are. */
static int compute(int ranks, bool norm, int64_t first, int64_t rows, double *at)
{
    setting s = { .graph = build(trek_cpu(0), &norm), .at = at };
    SUCCEEDS(trek_trainer_setup(s.graph, &(trek_trainer_opts){ .build_replica = build, .arg = &norm, .ranks = ranks,
        .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }), .overlap = 1, .bucket_bytes = 64 }));
        /* sends while backward runs */
    SUCCEEDS(trek_module_each_param(trek_graph_module(s.graph), list_param, &s));
    for (int k = 0; k < COMPUTATIONS; k++) {
        trek_scope scope = trek_scope_begin();
        trek_tensor *all = numbers(4, trek_dims(ROWS, IN));
        s.x = trek_var_new(trek_var_data(trek_clone(trek_narrow(trek_var_from(all), 0, first, rows))), true);
        computations[k](&s);
        trek_var_release(s.x);
        trek_scope_end(scope);
    }
    SUCCEEDS(trek_graph_step(s.graph));
    trek_graph_free(&s.graph);
    assert_int_equal(trek_tape_size(), 0);
    return s.n;
}

/* --- processes ------------------------------------------------------------------------------------------------------------- */

/* A process of a job: RANKS:NORM:ROWS OF THE FIRST:PATH. */
static int play(const part *p)
{
    static double at[MOST];
    int ranks, norm, split;
    char path[128], number[16];
    if (sscanf(p->detail, "%d:%d:%d:%127s", &ranks, &norm, &split, path) != 4)
        return 2;
    snprintf(number, sizeof number, "%d", p->process);
    setenv("TREK_RANK", number, 1);
    snprintf(number, sizeof number, "%d", p->processes);
    setenv("TREK_WORLD_SIZE", number, 1);
    setenv("TREK_LOCAL_WORLD_SIZE", number, 1);
    snprintf(number, sizeof number, "%d", p->port);
    setenv("TREK_PORT", number, 1);
    setenv("TREK_ADDRESS", p->address, 1);
    int n = compute(ranks, norm, p->process == 0 ? 0 : split, p->process == 0 ? split : ROWS - split, at);
    snprintf(number, sizeof number, ".%d", p->process);
    strncat(path, number, sizeof path - strlen(path) - 1);
    FILE *file = fopen(path, "wb");
    bool wrote = file && fwrite(at, sizeof *at, (size_t)n, file) == (size_t)n;
    return file && fclose(file) == 0 && wrote ? 0 : 1;
}

static void compare(const char *path, int process, const double *one, int n_one, const char *what)
{
    static double many[MOST];
    char name[160];
    snprintf(name, sizeof name, "%s.%d", path, process);
    FILE *file = fopen(name, "rb");
    assert_non_null(file);
    int n = (int)fread(many, sizeof *many, MOST, file);
    fclose(file);
    unlink(name);
    assert_int_equal(n, n_one);
    for (int i = 0; i < n; i++)
        if (!(fabs(one[i] - many[i]) <= 1e-10 * (1 + fabs(one[i]))))
            fail_msg("%s: process %d: number %d of %d: %.17g, on one rank %.17g", what, process, i, n, many[i], one[i]);
}

static void test_processes_agree_with_one(void **state)
{
    static const int splits[] = { 4, 5, 7, 8 };
    static double one[MOST];
    static world w;
    for (int norm = 0; norm < 2; norm++) {
        int n = compute(1, norm, 0, ROWS, one);
        for (int ranks = 1; ranks <= 3; ranks++)
            for (int k = 0; k < 4; k++) {
                char path[] = "/dev/shm/trek-grad-XXXXXX", detail[128], what[64];
                int folder = mkstemp(path);
                assert_true(folder >= 0);
                close(folder);
                snprintf(detail, sizeof detail, "%d:%d:%d:%s", ranks, norm, splits[k], path);
                snprintf(what, sizeof what, "%d ranks, norm %d, %d of %d rows", ranks, norm, splits[k], ROWS);
                processes_run_all(&w, PROCESSES_HERE, "grad", detail, -1, NULL);
                unlink(path);
                for (int p = 0; p < PROCESSES_HERE; p++)
                    if (w.code[p] != 0)
                        fail_msg("%s: process %d: %d: %.2000s", what, p, w.code[p], w.text[p]);
                for (int p = 0; p < PROCESSES_HERE; p++)
                    compare(path, p, one, n, what);
            }
    }
}

/* --- one process ------------------------------------------------------------------------------------------------------------ */

static void test_ranks_agree_with_one(void **state)
{
    static double one[MOST], many[MOST];
    for (int norm = 0; norm < 2; norm++)
        for (int ranks = 2; ranks <= 3; ranks++) {
            int n = compute(1, norm, 0, ROWS, one);
            assert_int_equal(compute(ranks, norm, 0, ROWS, many), n);
            for (int i = 0; i < n; i++)
                if (!(fabs(one[i] - many[i]) <= 1e-10 * (1 + fabs(one[i]))))
                    fail_msg("%d ranks, norm %d: number %d of %d: %.17g, on one %.17g", ranks, norm, i, n, many[i], one[i]);
        }
}

static void test_refused(void **state)
{
    bool norm = false;
    trek_var *grad;
    trek_graph *graph = build(trek_cpu(0), &norm);
    trek_scope scope = trek_scope_begin();
    trek_var *loss = trek_var_from(numbers(1, trek_dims_none()));
    FAILS(trek_graph_grad(NULL, loss, &loss, 1, NULL, &grad), TREK_ERR_ARGUMENT, "graph_grad");
    FAILS(trek_graph_grad(graph, NULL, &loss, 1, NULL, &grad), TREK_ERR_ARGUMENT, "graph_grad");
    FAILS(trek_graph_grad(graph, loss, NULL, 1, NULL, &grad), TREK_ERR_ARGUMENT, "grad");
    trek_scope_end(scope);
    trek_graph_free(&graph);
}

int main(void)
{
    part p;
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    if (processes_part(&p))
        return play(&p);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_processes_agree_with_one),
                                        cmocka_unit_test(test_ranks_agree_with_one), cmocka_unit_test(test_refused) };
    return cmocka_run_group_tests_name("graph_grad", tests, NULL, NULL);
}
