/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a job have to agree on, in plain loops of real processes: the model, every option and setter,
 * the data, and that a step has failed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "optim/optimizer.h"
#include "support/processes.h"
#include "support/support.h"

enum { ROWS = 6, IN = 4, HIDDEN = 5, STEPS = 6 };

static bool has(const part *me, const char *word) { return strstr(me->detail, word) != NULL; }

static int fail_part(const char *what)
{
    printf("%s %s: %s\n", what, trek_status_name(trek_status_get()), trek_error());
    return 1;
}

static trek_comm *join(const part *me)
{
    return trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                             .port = me->port, .token = "sesame", .deadline_s = 20 });
}

/* --- the model and its loop ------------------------------------------------------------------------------------------ */

static trek_graph *build(const part *me)
{
    trek_flow *flow = trek_flow_from(trek_nn_linear(IN, has(me, "wide") ? HIDDEN + 1 : HIDDEN, trek_cpu(0)));
    trek_flow_through(flow, has(me, "other-edges") ? trek_nn_gelu() : trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(has(me, "wide") ? HIDDEN + 1 : HIDDEN, 1, trek_cpu(0)));
    if (has(me, "longer"))
        trek_flow_through(flow, trek_nn_linear(1, 1, trek_cpu(0)));
    return trek_flow_build(flow);
}

static trek_var *numbers(const part *me, uint32_t stream, trek_shape shape)
{
    float values[64];
    for (int64_t i = 0; i < trek_shape_numel(shape); i++)
        values[i] = (float)test_number(stream * 10 + (uint32_t)me->process, (uint32_t)i);
    return trek_var_from(trek_tensor_from_data(values, shape, TREK_F32, trek_cpu(0)));
}

static trek_var *loss_of(const part *me, trek_graph *graph, int step, bool wrong_input, bool wrong_loss)
{
    trek_var *y = trek_graph_forward(graph, numbers(me, 1 + (uint32_t)step, trek_dims(ROWS, wrong_input ? IN + 1 : IN)));
    trek_var *squares = trek_square(trek_sub(y, numbers(me, 50 + (uint32_t)step, trek_dims(ROWS, 1))));
    return wrong_loss ? squares : trek_mean(squares, trek_dims_none(), false);
}

static trek_status add_up(const char *name, trek_var *param, void *arg)
{
    (void)name;
    float values[64];
    int64_t n = trek_var_numel(param);
    double *sum = arg;
    trek_status status = trek_tensor_to_host(param->data, TREK_F32, values, (size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        *sum = *sum * 1.01 + (double)values[i];
    return status;
}

static void print_params(trek_graph *graph, int steps)
{
    double sum = 0;
    trek_module_each_param(trek_graph_module(graph), add_up, &sum);
    printf("after %d steps %.17g\n", steps, sum);
}

/* --- a failed step ---------------------------------------------------------------------------------------------------- */

/* Process 1 fails in step 2 (and 3), and the loop clears what there is and goes on. */
static int play_recover(const part *me)
{
    trek_comm *comm = join(me);
    trek_graph *graph = build(me);
    trek_trainer_opts opts = { .optimizer = trek_sgd((trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }), .comm = comm };
    if (!comm || trek_trainer_setup(graph, &opts) != TREK_OK)
        return fail_part("setup");
    for (int step = 0; step < STEPS; step++) {
        bool fails = me->process == 1 && (step == 2 || (step == 3 && has(me, "twice")));
        trek_scope scope = trek_scope_begin();
        if (fails && has(me, "before"))
            trek_reshape(numbers(me, 1, trek_dims(3)), trek_dims(2));
        trek_var *loss = loss_of(me, graph, step, fails && has(me, "forward"), fails && has(me, "backward"));
        trek_graph_backward(graph, loss);
        if (fails && has(me, "between"))
            trek_reshape(numbers(me, 1, trek_dims(3)), trek_dims(2));
        if (!(has(me, "skip") && trek_status_get() != TREK_OK))
            trek_graph_step(graph);
        if (trek_status_get() != TREK_OK) {
            printf("step %d %s: %s\n", step, trek_status_name(trek_status_get()), trek_error());
            trek_error_clear();
            trek_graph_zero_grad(graph);
        }
        trek_scope_end(scope);
    }
    print_params(graph, (int)trek_graph_steps(graph));
    int code = trek_status_get() == TREK_OK ? 0 : fail_part("end");
    trek_graph_free(&graph);
    trek_comm_free(&comm);
    return code;
}

#define WANT(w, condition)                                      \
    do {                                                        \
        if (!(condition)) {                                     \
            processes_print(w);                                 \
            fail_msg("line %d: %s", __LINE__, #condition);      \
        }                                                       \
    } while (0)

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

static void test_recovery(void **state)
{
    (void)state;
    static world w;
    static const char *const ways[] = { "forward", "backward", "between", "before", "before,twice", "backward,twice", "backward,skip" };
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        bool twice = strstr(ways[k], "twice") != NULL;
        processes_start_all(&w, 3, "recover", ways[k], -1, NULL);
        processes_finish(&w, 40, -1);
        for (int p = 0; p < 3; p++) {
            char end[40];
            snprintf(end, sizeof end, "after %d steps", STEPS - 1 - twice);
            const char *last = strstr(w.text[p], "after "), *first = strstr(w.text[0], "after ");
            WANT(&w, w.code[p] == 0 && strstr(w.text[p], end) && first && strcmp(last, first) == 0);
            WANT(&w, count(w.text[p], "TREK_ERR") == 1 + twice);
            WANT(&w, p == 1 || count(w.text[p], ": process 1 failed: ") == 1 + twice);
        }
    }
}

static int play(const part *me)
{
    if (strcmp(me->role, "recover") == 0)
        return play_recover(me);
    return 9;
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    alarm(280);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recovery),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
