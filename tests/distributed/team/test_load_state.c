/* SPDX-License-Identifier: Apache-2.0 */
/* trek_optimizer_load of a graph's optimizer: all ranks of the process take the state over, each all of it or its part, and in
 * a job all processes, or none; the next steps have the bits of the run that the state is of. */
#include <unistd.h>

#include "autograd/ops.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "nn/params.h"
#include "nn/state.h"
#include "optim/optimizers.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { IN = 9, HIDDEN = 37, OUT = 5, ROWS = 12, BEFORE = 3, AFTER = 3, PARAMS = 4 };

/* --- the model: two matrices, a vector that is frozen, one that is never used ------------------------------- */

typedef struct net {
    trek_module base;
    trek_var *w1, *frozen, *w2, *unused;
} net;

static trek_var *net_forward(trek_module *self, trek_var *x)
{
    net *m = (net *)self;
    return trek_linear(trek_tanh(trek_linear(x, m->w1, m->frozen)), m->w2, NULL);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

typedef struct run {
    int ranks;
    bool sharded, groups;
    trek_dtype dtype;
    trek_optimizer_spec spec;
    trek_comm *comm;
} run;

static void add(trek_module *m, const char *name, size_t offset, uint32_t stream, trek_shape shape, trek_dtype dtype,
                trek_device device)
{
    trek_tensor *values = test_tensor(stream, shape, 0.4), *low = trek_tensor_cast(values, dtype);
    trek_module_param(m, name, offset, trek_tensor_to(low, device));
    trek_tensor_release(values);
    trek_tensor_release(low);
}

static trek_graph *build(trek_device device, void *arg)
{
    const run *c = arg;
    trek_module *m = trek_module_new(&net_class);
    add(m, "w1", offsetof(net, w1), 1, trek_dims(HIDDEN, IN), c->dtype, device);
    add(m, "frozen", offsetof(net, frozen), 2, trek_dims(HIDDEN), c->dtype, device);
    add(m, "w2", offsetof(net, w2), 3, trek_dims(OUT, HIDDEN), c->dtype, device);
    add(m, "unused", offsetof(net, unused), 4, trek_dims(700), c->dtype, device);
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

static trek_graph *begin(run *c)
{
    trek_graph *graph = build(test_device_of_rank(0), c);
    assert_non_null(graph);
    SUCCEEDS(trek_trainer_setup(graph, &(trek_trainer_opts){
                 .build_replica = build, .arg = c, .devices = test_devices(), .ranks = c->ranks, .share_params = TREK_OFF,
                 .comm = c->comm, .shard = c->sharded ? TREK_SHARD_STATE : TREK_SHARD_NONE, .bucket_bytes = 2048,
                 .optimizer = c->spec }));
    trek_var_set_requires_grad(((net *)trek_graph_at(graph, "0"))->frozen, false);
    trek_optimizer_spec other = c->spec;
    other.options[0] *= 0.5;
    trek_params *list = trek_params_new();
    trek_params_add(list, "w2", ((net *)trek_graph_at(graph, "0"))->w2);
    if (c->groups && trek_optimizer_add_group(trek_graph_optimizer(graph), list, other) < 0)
        fail_msg("%s", trek_error());
    trek_params_free(&list);
    return graph;
}

static trek_var *rows(uint32_t stream, int64_t width, trek_dtype dtype)
{
    trek_tensor *values = test_tensor(stream, trek_dims(ROWS, width), 1);
    return trek_cast(trek_var_from(values), dtype);
}

static void make_steps(const run *c, trek_graph *graph, int from, int to)
{
    for (int k = from; k < to; k++) {
        trek_scope scope = trek_scope_begin();
        trek_var *y = trek_graph_forward(graph, rows(20 + 2 * (uint32_t)k, IN, c->dtype));
        trek_var *error = trek_sub(trek_cast(y, TREK_F32), rows(21 + 2 * (uint32_t)k, OUT, TREK_F32));
        if (trek_graph_backward(graph, trek_mean(trek_square(error), trek_dims_all(), false)) != TREK_OK ||
            trek_graph_step(graph) != TREK_OK)
            fail_msg("step %d: %s", k, trek_error());
        trek_scope_end(scope);
    }
}

static trek_var **vars_of(trek_graph *graph, int rank, trek_var *vars[PARAMS])
{
    const net *m = (const net *)trek_graph_at(rank ? trek_graph_replica(graph, rank) : graph, "0");
    vars[0] = m->w1, vars[1] = m->frozen, vars[2] = m->w2, vars[3] = m->unused;
    return vars;
}

static void take_values(trek_graph *to, trek_tensor *const *values)
{
    trek_var *vars[PARAMS];
    vars_of(to, 0, vars);
    for (int p = 0; p < PARAMS; p++)
        assert_int_equal(trek_tensor_copy_from(trek_var_data(vars[p]), values[p]), TREK_OK);
    assert_int_equal(trek_graph_parameters_changed(to), TREK_OK);
}

static void copy_values(trek_graph *from, trek_tensor **values)
{
    trek_var *vars[PARAMS];
    vars_of(from, 0, vars);
    for (int p = 0; p < PARAMS; p++)
        assert_non_null(values[p] = trek_tensor_clone(trek_var_data(vars[p])));
}

static void drop_values(trek_tensor **values)
{
    for (int p = 0; p < PARAMS; p++)
        trek_tensor_release(values[p]);
}

/* All ranks, to the bit. */
static void expect_values(const run *c, trek_graph *graph, trek_tensor *const *values, const char *what)
{
    trek_var *vars[PARAMS];
    for (int r = 0; r < c->ranks; r++) {
        vars_of(graph, r, vars);
        for (int p = 0; p < PARAMS; p++) {
            trek_tensor *here = trek_tensor_to(trek_var_data(vars[p]), trek_tensor_device(values[p]));
            if (!test_same_bits(here, values[p]))
                fail_msg("%s: %d ranks, sharded %d, %s state of %s: parameter %d of rank %d", what, c->ranks, c->sharded,
                         trek_dtype_name(c->spec.state_dtype), c->spec.klass->name, p, r);
            trek_tensor_release(here);
        }
    }
}

/* A state of the run that *c is, what parameters were then, and what became of them. lr: from then on; 0: as it was. */
static trek_state *make_state(run *c, double lr, trek_tensor **then, trek_tensor **later)
{
    trek_graph *graph = begin(c);
    make_steps(c, graph, 0, BEFORE);
    if (lr > 0)
        assert_int_equal(trek_optimizer_set_lr(trek_graph_optimizer(graph), lr), TREK_OK);
    trek_state *state = trek_optimizer_save(trek_graph_optimizer(graph));
    assert_non_null(state);
    copy_values(graph, then);
    make_steps(c, graph, BEFORE, BEFORE + AFTER);
    copy_values(graph, later);
    trek_graph_free(&graph);
    return state;
}

static trek_optimizer_spec draw_spec(int k)
{
    const trek_optimizer_spec specs[] = {
        trek_adamw(&(trek_adam_opts){ .lr = 0.01 }), trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }),
        trek_with_state(trek_adam(&(trek_adam_opts){ .lr = 0.01, .amsgrad = true }), TREK_BF16),
        trek_rmsprop(&(trek_rmsprop_opts){ .lr = 0.003, .momentum = 0.9 }),
        trek_muon(&(trek_muon_opts){ .lr = 0.01, .adam = true }), trek_muon(&(trek_muon_opts){ .lr = 0.01 }),
        trek_lamb(&(trek_lamb_opts){ .lr = 0.01 }), trek_adafactor(&(trek_adafactor_opts){ .lr = 0.01 }),
        trek_lars(&(trek_lars_opts){ .lr = 0.1, .trust_coefficient = 0.1, .momentum = 0.9 }),
    };
    return specs[k % 9];
}

static trek_state *state_with(const trek_state *from, const char *leave, const char *other)
{
    trek_state *to = trek_state_new();
    for (int k = 0; k < trek_state_count(from); k++) {
        const char *name = trek_state_name(from, k);
        trek_tensor *tensor = trek_tensor_retain(trek_state_tensor(from, k));
        if (other && strcmp(name, other) == 0) {
            trek_tensor *twice = trek_tensor_add(tensor, tensor);
            trek_tensor_release(tensor);
            tensor = twice;
        }
        if (!leave || strcmp(name, leave) != 0)
            assert_int_equal(trek_state_add(to, name, tensor), TREK_OK);
        trek_tensor_release(tensor);
    }
    return to;
}

/* --- ranks of one process --------------------------------------------------------------------------------------- */

static void reaches_all_ranks(void **state)
{
    for (int k = 0; k < (test_short() || test_short_on_device() ? 18 : 36); k++) {
        run c = { .ranks = 1 + k % 4, .groups = k / 2 & 1, .dtype = k / 3 % 3 == 1 ? TREK_BF16 : TREK_F32, .spec = draw_spec(k) };
        trek_tensor *then[PARAMS], *later[PARAMS];
        trek_state *saved = make_state(&c, k % 2 ? 0.007 : 0, then, later);
        for (int sharded = 0; sharded < 2; sharded++) {
            c.sharded = sharded;
            trek_graph *graph = begin(&c);
            make_steps(&c, graph, 7, 7 + k % 3); /* what they had is forgotten */
            take_values(graph, then);
            SUCCEEDS(trek_optimizer_load(trek_graph_optimizer(graph), saved));
            make_steps(&c, graph, BEFORE, BEFORE + AFTER);
            expect_values(&c, graph, later, "loaded");
            trek_graph_free(&graph);
        }
        trek_state_free(&saved);
        drop_values(then);
        drop_values(later);
    }
}

static void what_does_not_fit_changes_no_rank(void **state)
{
    for (int sharded = 0; sharded < 2; sharded++) {
        run c = { .ranks = 3, .groups = true, .dtype = TREK_F32, .spec = draw_spec(0), .sharded = false };
        trek_tensor *then[PARAMS], *later[PARAMS];
        trek_state *saved = make_state(&c, 0, then, later), *bad = state_with(saved, "0.w1.exp_avg", NULL);
        c.sharded = sharded;
        trek_graph *graph = begin(&c);
        make_steps(&c, graph, 0, BEFORE);
        FAILS(trek_optimizer_load(trek_graph_optimizer(graph), bad), TREK_ERR_FORMAT, "parameter '0.w1': a part");
        make_steps(&c, graph, BEFORE, BEFORE + AFTER);
        expect_values(&c, graph, later, "refused");
        trek_graph_free(&graph);
        trek_state_free(&saved);
        trek_state_free(&bad);
        drop_values(then);
        drop_values(later);
    }
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

static int play(const part *me)
{
    bool breaks = strstr(me->detail, "broken") && me->process == 1, differs = strstr(me->detail, "other") && me->process == 1;
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                                        .port = me->port, .token = "sesame", .deadline_s = 20 });
    if (!comm)
        return 3;
    run c = { .ranks = 1, .groups = true, .dtype = TREK_F32, .comm = comm, .spec = draw_spec(atoi(me->detail)) };
    trek_tensor *then[PARAMS], *later[PARAMS];
    trek_state *saved = make_state(&c, 0, then, later),
        *own = state_with(saved, breaks ? "lr" : NULL, differs ? "0.w2.step" : NULL);
    bool refused = strstr(me->detail, "broken") || strstr(me->detail, "other");
    c.sharded = strstr(me->detail, "parts") != NULL;
    trek_graph *graph = begin(&c);
    make_steps(&c, graph, refused ? 0 : 7, refused ? BEFORE : 8);
    take_values(graph, then);
    trek_status status = trek_optimizer_load(trek_graph_optimizer(graph), own);
    printf("%s: %s\n", trek_status_name(status), trek_error());
    trek_error_clear();
    make_steps(&c, graph, BEFORE, BEFORE + AFTER);
    expect_values(&c, graph, later, "in a process");
    printf("the same\n");
    trek_graph_free(&graph);
    trek_state_free(&saved);
    trek_state_free(&own);
    drop_values(then);
    drop_values(later);
    trek_comm_free(&comm);
    return 0;
}

static void expect_world(int n, const char *detail, const char *const *says)
{
    static world w;
    processes_run_all(&w, n, "load", detail, -1, NULL);
    for (int p = 0; p < n; p++)
        if (w.code[p] != 0 || !strstr(w.text[p], says[p > 1 ? 0 : p]) || !strstr(w.text[p], "the same"))
            FAIL_WORLD(&w, "%s: process %d", detail, p);
}

static void all_processes_or_none(void **state)
{
    static const char *const good[] = { "TREK_OK", "TREK_OK" };
    static const char *const broken[] = { "TREK_ERR_PEER", "TREK_ERR_FORMAT" };
    static const char *const other[] = { "the state is", "the state is" };
    char detail[32];
    for (int k = 0; k < 9; k++) {
        snprintf(detail, sizeof detail, "%d,%s", k, k & 1 || k > 4 ? "parts" : "whole");
        expect_world(2 + k % 2, detail, good);
        if (k > 3)
            continue;
        snprintf(detail, sizeof detail, "%d,%s,parts", k, k & 2 ? "broken" : "other");
        expect_world(3, detail, k & 2 ? broken : other);
    }
}

int main(void)
{
    part me;
    setenv("TREK_FAKE_GPUS", "4", 0);
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = { cmocka_unit_test(reaches_all_ranks), cmocka_unit_test(what_does_not_fit_changes_no_rank),
                                        cmocka_unit_test(all_processes_or_none) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
