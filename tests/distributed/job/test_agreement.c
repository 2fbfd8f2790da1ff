/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a job have to agree on, in plain loops of real processes: the model, every option and setter,
 * the data, and that a step has failed. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "distributed/comm/comm.h"
#include "distributed/job/job_products.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/params.h"
#include "optim/groups.h"
#include "optim/optimizer.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { ROWS = 6, IN = 4, HIDDEN = 5, STEPS = 6 };

static bool has(const part *me, const char *word) { return strstr(me->detail, word) != NULL; }

static int fail_part(const char *what)
{
    printf("%s %s: %s\n", what, trek_status_name(trek_error_status()), trek_error());
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
    return wrong_loss ? squares : trek_mean(squares, trek_dims_all(), false);
}

static trek_status add_up(const char *name, trek_var *param, void *arg)
{
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
    trek_trainer_opts opts = { .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }), .comm = comm };
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
        if (!(has(me, "skip") && trek_error_status() != TREK_OK))
            trek_graph_step(graph);
        if (trek_error_status() != TREK_OK) {
            printf("step %d %s: %s\n", step, trek_status_name(trek_error_status()), trek_error());
            trek_error_clear();
            trek_graph_zero_grad(graph);
        }
        trek_scope_end(scope);
    }
    print_params(graph, (int)trek_graph_steps(graph));
    int code = trek_error_status() == TREK_OK ? 0 : fail_part("end");
    trek_graph_free(&graph);
    trek_comm_free(&comm);
    return code;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

static void test_recovery(void **state)
{
    static world w;
    static const char *const ways[] = { "forward", "backward", "between", "before", "before,twice", "backward,twice",
                                        "backward,skip" };
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        bool twice = strstr(ways[k], "twice") != NULL;
        processes_run_all(&w, 3, "recover", ways[k], -1, NULL);
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

/* --- a process that is told something else ----------------------------------------------------------------------------- */

static trek_loader *make_loader(const part *me)
{
    float values[64];
    int64_t n = has(me, "length") ? 15 : 16;
    for (int i = 0; i < 64; i++)
        values[i] = (float)test_number(has(me, "first-sample") ? 8 : 7, (uint32_t)i);
    trek_tensor *x = trek_tensor_from_data(values, trek_dims(n, has(me, "field") ? 2 : IN), TREK_F32, trek_cpu(0));
    trek_dataset *data = trek_dataset_tensors((const char *[]){ "x" }, &x, 1);
    trek_tensor_release(x);
    return trek_loader_new(data, &(trek_loader_opts){ .batch_size = has(me, "batch-size") ? 6 : 4, .shuffle = true,
                                                      .seed = has(me, "order") ? 2 : 1, .whole = has(me, "whole") });
}

static void change_later(const part *me, trek_graph *graph)
{
    if (has(me, "set-lr"))
        trek_graph_set_lr(graph, 0.5);
    if (has(me, "set-clip"))
        trek_graph_set_clip(graph, 1, 0);
    if (has(me, "set-schedule"))
        trek_graph_set_schedule(graph, &(trek_schedule[]){ trek_step_lr(0.05, 3, 0.5) }[0]);
    if (has(me, "freeze"))
        trek_module_freeze(trek_graph_at(graph, "0"));
    if (has(me, "set-optimizer"))
        trek_graph_set_optimizer(graph, trek_adam(&(trek_adam_opts){ .lr = 0.05 }));
    if (has(me, "set-seed"))
        trek_seed(77);
    if (has(me, "add-group")) {
        trek_params *params = trek_params_new();
        trek_params_add(params, "w", trek_module_find(trek_graph_module(graph), "0.weight"));
        trek_optimizer_add_group(trek_graph_optimizer(graph), params, trek_sgd(&(trek_sgd_opts){ .lr = 0.05 }));
        trek_params_free(&params);
    }
}

static trek_status step_over(const part *me, trek_graph *graph, trek_loader *loader, int step)
{
    trek_scope scope = trek_scope_begin();
    trek_var *loss;
    if (loader) {
        const trek_batch *batch = trek_loader_next(loader);
        loss = trek_mean(trek_square(trek_graph_forward(graph, trek_batch_get(batch, "x"))), trek_dims_all(), false);
    } else {
        loss = loss_of(me, graph, step, false, false);
    }
    trek_graph_backward(graph, loss);
    trek_status status = trek_graph_step(graph);
    trek_scope_end(scope);
    return status;
}

static trek_trainer_opts options_of(const part *me, trek_comm *comm)
{
    trek_trainer_opts o = { .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = has(me, "opt-lr") ? 0.1 : 0.05,
                                                                   .momentum = has(me, "opt-momentum") ? 0.5 : 0 }),
                                                                   .comm = comm };
    if (has(me, "opt-kind"))
        o.optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.05 });
    if (has(me, "opt-schedule"))
        o.schedule = trek_cosine_lr(0.05, 10, 0);
    o.max_grad_norm = has(me, "opt-clip") ? 1 : 0;
    o.accumulate = has(me, "opt-accumulate") ? 2 : 0;
    o.balance = has(me, "opt-balance") ? TREK_OFF : 0;
    o.bucket_bytes = has(me, "opt-bucket") ? 1 << 10 : 0;
    o.amp.dtype = has(me, "opt-amp") ? TREK_BF16 : TREK_F32;
    return o;
}

static int play_differ(const part *me)
{
    if (has(me, "opt-tiles") || has(me, "opt-fma"))
        setenv("TREK_F32_PRODUCTS", has(me, "opt-fma") ? "fma" : "tiles", 1);
    trek_comm *comm = join(me);
    if (has(me, "opt-seed"))
        trek_seed(99);
    if (has(me, "opt-precision"))
        trek_matmul_precision_set(TREK_MATMUL_PRECISION_HIGH);
    trek_graph *graph = build(me);
    if (has(me, "opt-frozen"))
        trek_module_freeze(trek_graph_at(graph, "0"));
    trek_trainer_opts opts = options_of(me, comm);
    trek_loader *loader = strstr(me->detail, "data") ? make_loader(me) : NULL;
    int code = 0;
    if (!comm || trek_trainer_setup(graph, &opts) != TREK_OK)
        code = fail_part("setup");
    if (has(me, "say-products"))
        printf("products %s\n", trek_job_products_name());
    if (!code && loader)
        trek_loader_start(loader, 0);
    for (int step = 0; step < 3 && !code; step++) {
        if (step == 1)
            change_later(me, graph);
        if (step_over(me, graph, loader, step) != TREK_OK)
            code = fail_part("step");
    }
    if (!code)
        print_params(graph, 3);
    trek_loader_free(&loader);
    trek_graph_free(&graph);
    trek_comm_free(&comm);
    return code;
}

typedef struct difference {
    const char *all, *odd, *message; /* details of most processes and of the odd one; what is said in all */
} difference;

static void check_differences(const difference *list, size_t n, int processes, int odd)
{
    static world w;
    for (size_t k = 0; k < n; k++) {
        processes_run_all(&w, processes, "differ", list[k].all, odd, list[k].odd);
        for (int p = 0; p < processes; p++)
            WANT(&w, w.code[p] == 1 && strstr(w.text[p], list[k].message));
    }
}

static void test_options(void **state)
{
    static const difference list[] = {
        { "", "opt-lr", "lr of the optimizer is 0.1 in process 2, 0.05 in all others" },
        { "", "opt-kind", "the optimizer is adam in process 2, sgd in all others" },
        { "", "opt-momentum", "momentum of the optimizer is 0.5 in process 2, 0 in all others" },
        { "", "opt-schedule", "the schedule is cosine in process 2, none in all others" },
        { "", "opt-clip", "max_grad_norm is 1 in process 2, 0 in all others" },
        { "", "opt-accumulate", "accumulate is 2 in process 2, 1 in all others" },
        { "", "opt-balance", ".balance is -1 in process 2, 0 in all others" },
        { "", "opt-bucket", ".bucket_bytes is 1024 in process 2, 0 in all others" },
        { "", "opt-precision", "the precision of products of f32 is high in process 2, highest in all others" },
        { "", "opt-amp", "autocast is bf16 in process 2, f32 in all others" },
        { "", "opt-seed", "the seed is 99 in process 2, " },
        { "", "opt-frozen", "parameter \"0.weight\" is frozen in process 2, trained in all others" },
    };
    check_differences(list, sizeof list / sizeof *list, 3, 2);
    check_differences(&(difference){ "", "opt-lr", "lr of the optimizer is 0.1 in process 0, 0.05 in all others" }, 1, 3, 0);
    check_differences(&(difference){ "", "opt-lr", "lr of the optimizer is 0.1 in process 1, 0.05 in process 0" }, 1, 2, 1);
}

/* All compute products of f32 in one way, whatever each of them would do alone. */
static void test_products(void **state)
{
    static world w;
    for (int all = 0; all < 2; all++) {
        processes_run_all(&w, 3, "differ", all ? "say-products,opt-tiles" : "say-products,opt-fma", 1,
                            "say-products,opt-tiles");
        for (int p = 0; p < 3; p++)
            WANT(&w, w.code[p] == 0 && strcmp(w.text[p], w.text[0]) == 0 &&
                     strstr(w.text[p], all ? "products tiles" : "products fma"));
    }
}

static void test_setters(void **state)
{
    static const difference list[] = {
        { "", "set-lr",
          "step: the settings of the processes differ: lr of the optimizer is 0.5 in process 1, 0.05 in all others" },
        { "", "set-clip", "max_grad_norm is 1 in process 1, 0 in all others" },
        { "", "set-schedule", "the schedule is step in process 1, none in all others" },
        { "", "set-optimizer", "the optimizer is adam in process 1, sgd in all others" },
        { "", "set-seed", "the seed is 77 in process 1" },
        { "", "freeze", "parameter \"0." },
        { "", "add-group", "the number of the optimizer's groups is 2 in process 1, 1 in all others" },
    };
    check_differences(list, sizeof list / sizeof *list, 3, 1);
}

static void test_data(void **state)
{
    static const difference list[] = {
        { "data", "data,length", "the length of the data (tensors) is 15 in process 2, 16 in all others" },
        { "data", "data,batch-size", "the loader's batch_size is 6 in process 2, 4 in all others" },
        { "data", "data,first-sample", "the first sample's \"x\" is hash " },
        { "data", "data,order", "the loader's order (sampler or seed) is hash " },
    };
    check_differences(list, sizeof list / sizeof *list, 3, 2);
}

static void test_models(void **state)
{
    static const difference list[] = {
        { "", "wide",
          "trainer_setup: the processes' graphs differ: parameter 0 is \"0.weight\" [6, 4] f32 in process 2, \"0.weight\" [5, 4] "
          "f32 in all others" },
        { "", "longer",
          "the processes' graphs differ: parameter 4 \"3.weight\" [1, 1] f32 in process 2, node 0 linear in all others" },
        { "", "other-edges", "node 1 is gelu in process 2, relu in all others" },
    };
    check_differences(list, sizeof list / sizeof *list, 3, 2);
}

/* What all processes set, and data of which each has its own by intent. */
static void test_alike(void **state)
{
    static world w;
    static const char *const details[] = { "opt-lr,opt-momentum,opt-schedule,opt-clip,opt-seed",
                                           "set-lr,set-clip,set-schedule,set-optimizer,freeze,set-seed",
                                           "add-group", "data,length,order" };
    for (size_t k = 0; k < 5; k++) {
        processes_run_all(&w, 3, "differ", k < 4 ? details[k] : "data,whole,order", k < 4 ? -1 : 1, "data,whole");
        for (int p = 0; p < 3; p++)
            WANT(&w, w.code[p] == 0 && strcmp(w.text[p], w.text[0]) == 0);
    }
}

/* --- processes that do not come ------------------------------------------------------------------------------------- */

/* By the environment of a launcher, as programs do: setup itself joins. */
static int play_come(const part *me)
{
    char number[16];
    int values[] = { me->process, me->processes, me->port };
    static const char *const names[] = { "TREK_RANK", "TREK_WORLD_SIZE", "TREK_PORT" };
    for (int k = 0; k < 3 && me->port; k++) {
        snprintf(number, sizeof number, "%d", values[k]);
        setenv(names[k], number, 1);
    }
    trek_graph *graph = build(me);
    trek_trainer_setup(graph, &(trek_trainer_opts){ .deadline_s = has(me, "long") ? 100 : 5,
                                                    .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }) });
    printf("came %s: %s\n", trek_status_name(trek_error_status()), trek_error());
    int code = trek_error_status() == TREK_OK ? 0 : 1;
    trek_graph_free(&graph);
    return code;
}

static void test_join_deadline(void **state)
{
    static world two, none;
    processes_init(&two, 3);
    processes_start(&two, 0, "come", "");
    processes_start(&two, 2, "come", "");
    processes_init(&none, 2);
    processes_start(&none, 1, "come", "");
    processes_finish(&two, -1);
    processes_finish(&none, -1);
    for (int p = 0; p < 3; p += 2)
        WANT(&two, two.code[p] == 1 && strstr(two.text[p], "came TREK_ERR_TIMEOUT: process 1 of 3 did not come to ") &&
                       strstr(two.text[p], " within 5 s; 0, 2 did"));
    WANT(&none,
         none.code[1] == 1 && strstr(none.text[1], "came TREK_ERR_TIMEOUT: comm_init: process 1 did not reach process 0 at "));
}

/* Under trek-run, which knows who has died: nobody waits for the deadline. */
static int play_under_launcher(const char *act)
{
    int rank = atoi(getenv("TREK_RANK")), victim = act[0] - '0';
    if (rank == victim && strstr(act, "kill"))
        raise(SIGKILL);
    if (rank == victim && strstr(act, "exit"))
        return 0;
    return play_come(&(part){ .detail = "long", .process = rank });
}

static const char *self_path;

static void launch(const char *act, char *text, size_t size, int *code)
{
    int out[2];
    const char *program = processes_built("tools/trek-run");
    assert_int_equal(pipe(out), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], 1);
        dup2(out[1], 2);
        setenv("TREK_TEST_UNDER", act, 1);
        execl(program, program, "-n", "3", "-g", "60", self_path, (char *)NULL);
        _exit(98);
    }
    close(out[1]);
    size_t used = 0;
    for (ssize_t got; used < size - 1 && (got = read(out[0], text + used, size - 1 - used)) > 0;)
        used += (size_t)got;
    text[used] = '\0';
    close(out[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void test_death_before_join(void **state)
{
    static char text[16384];
    static const struct {
        const char *act, *said;
        int code;
    } deaths[] = { { "1 kill", "process 1 was ended by signal 9 (Killed) before all had joined", 137 },
                   { "0 kill", "process 0 was ended by signal 9 (Killed) before all had joined", 137 },
                   { "2 exit", "process 2 ended with status 0 before all had joined", 1 } };
    for (size_t k = 0; k < sizeof deaths / sizeof *deaths; k++) {
        int code;
        launch(deaths[k].act, text, sizeof text, &code);
        if (code != deaths[k].code || count(text, "came TREK_ERR_PEER: ") != 2 || count(text, deaths[k].said) != 2)
            fail_msg("%s: status %d; it wrote:\n%s", deaths[k].act, code, text);
    }
}

static const processes_role roles[] = { { "come", play_come }, { "differ", play_differ }, { "recover", play_recover } };

int main(void)
{
    part me;
    if (processes_part(&me))
        return processes_play(&me, roles, sizeof roles / sizeof *roles);
    if (getenv("TREK_TEST_UNDER"))
        return play_under_launcher(getenv("TREK_TEST_UNDER"));
    static char path[4096];
    if (readlink("/proc/self/exe", path, sizeof path - 1) > 0)
        self_path = path;
    alarm(600);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join_deadline), cmocka_unit_test(test_recovery), cmocka_unit_test(test_models),
        cmocka_unit_test(test_options), cmocka_unit_test(test_products), cmocka_unit_test(test_setters),
        cmocka_unit_test(test_data), cmocka_unit_test(test_alike),
        cmocka_unit_test(test_death_before_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
