/* SPDX-License-Identifier: Apache-2.0 */
/* A loop over a trainer without grains, on real processes that kill themselves: before and after every call in which they meet,
 * in spans, several of them, with several graphs. The others see no error, end with the same bits, and have what one process
 * computes from all samples, to rounding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/loader_position.h"
#include "distributed/arrivals.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/ddp.h"
#include "distributed/trainer.h"
#include "distributed/trainer_ranks.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "graph/observe.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "optim/optimizers.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tests/distributed/grains/arriving.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { SAMPLES = 53, IN = 6, HIDDEN = 9, GRAPHS = 2 };

/* --- what is trained ------------------------------------------------------------------------------------------ */

static bool says(const char *detail, const char *word) { return strstr(detail, word) != NULL; }

static trek_graph *build(trek_device device, void *arg)
{
    const char *detail = arg;
    trek_seed(11);
    trek_module *layers[6];
    int n = 0;
    layers[n++] = trek_nn_linear_with(&(trek_linear_opts){ .in = IN, .out = HIDDEN, .device = device, .dtype = TREK_F64 });
    if (says(detail, "meets"))
        layers[n++] = trek_nn_sync_batch_norm(HIDDEN, device);
    if (says(detail, "norm"))
        layers[n++] = trek_nn_batch_norm1d_with(&(trek_batch_norm_opts){ .features = HIDDEN, .device = device,
                                                                         .dtype = TREK_F64 });
    layers[n++] = trek_nn_tanh();
    if (says(detail, "drops"))
        layers[n++] = trek_nn_dropout(0.3);
    layers[n++] = trek_nn_linear_with(&(trek_linear_opts){ .in = HIDDEN, .out = 1, .device = device, .dtype = TREK_F64 });
    return trek_flow_build(trek_flow_from(trek_nn_sequential(layers, n)));
}

static trek_dataset *make_data(void)
{
    double x[SAMPLES * IN], y[SAMPLES];
    for (int i = 0; i < SAMPLES * IN; i++)
        x[i] = test_number(1, (uint32_t)i);
    for (int i = 0; i < SAMPLES; i++)
        y[i] = 4 * test_number(2, (uint32_t)i);
    const char *names[] = { "x", "y" };
    trek_tensor *tensors[] = { trek_tensor_from_data(x, trek_dims(SAMPLES, IN), TREK_F64, trek_cpu(0)),
                               trek_tensor_from_data(y, trek_dims(SAMPLES, 1), TREK_F64, trek_cpu(0)) };
    trek_dataset *dataset = trek_dataset_tensors(names, tensors, 2);
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    return dataset;
}

static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)arg;
    if (trek_module_is_training(trek_graph_module(graph)))
        trek_record_sum("samples", (double)trek_batch_size(batch));
    return trek_mean(trek_square(trek_sub(output, trek_batch_get(batch, "y"))), trek_dims_all(), false);
}

/* --- training ------------------------------------------------------------------------------------------------- */

typedef struct training {
    const char *detail;
    trek_comm *comm;
    bool elastic;            /* processes may die, and come */
    int graphs, passes, steps, ranks;
    trek_graph *graph[GRAPHS];
    trek_loader *loader;
    trek_module *wrapped;    /* which is trained in turn, too, by a wrapper; NULL: none is */
    trek_ddp *wrapper;
    double samples;          /* on which the first graph has been trained, as was recorded */
} training;

static trek_status set_up(training *t, int k)
{
    trek_device devices[GRAIN_RANKS];
    int64_t budgets[GRAIN_RANKS];
    bool planned = says(t->detail, "budgets") && t->elastic;
    for (int r = 0; r < t->ranks; r++)
        budgets[r] = (int64_t)(64 << 20) << (r + trek_comm_rank(t->comm)) % 3;
    grain_devices(t->comm, t->ranks, false, devices);
    t->graph[k] = build(devices[0], (void *)(uintptr_t)t->detail);
    trek_optimizer_spec spec = says(t->detail, "lamb") ? trek_lamb(&(trek_lamb_opts){ .lr = 0.02 })
        : k ? trek_adam(&(trek_adam_opts){ .lr = 0.02 })
        : trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 });
    trek_graph_set_loader(t->graph[k], t->loader, "x");
    trek_graph_set_loss(t->graph[k], loss_of, NULL);
    return trek_trainer_setup(t->graph[k], &(trek_trainer_opts){
        .build_replica = build, .arg = (void *)(uintptr_t)t->detail, .ranks = t->ranks, .devices = devices, .comm = t->comm,
        .optimizer = spec, .accumulate = t->passes > 1 && !says(t->detail, "adds") ? t->passes : 0,
        .share_params = says(t->detail, "separate") ? TREK_OFF : 0,
        .grain = k && says(t->detail, "grains") ? 3 : 0, .max_grad_norm = says(t->detail, "clipped") ? 0.5 : 0,
        .balance = TREK_OFF, .bucket_bytes = 256,
        .shard = says(t->detail, "sharded") && t->elastic ? TREK_SHARD_STATE : TREK_SHARD_NONE,
        .memory_budget = planned ? budgets : NULL, .n_memory_budget = planned ? t->ranks : 0,
        .activations = says(t->detail, "recomputes") && t->elastic ? TREK_AUTO : 0,
        .min_processes = t->elastic ? dying_number(t->detail, "least=", 1) : 0 });
}

/* Passes over the whole data that change nothing. */
static void evaluate(const training *t)
{
    trek_graph_train(t->graph[0], false);
    trek_graph_start(t->graph[0], 100);
    for (trek_batch *batch; (batch = trek_graph_next(t->graph[0]));)
        trek_graph_train_batch(t->graph[0], batch);
    trek_graph_train(t->graph[0], true);
}

static trek_status wrap(training *t)
{
    t->wrapped = trek_nn_linear(4, 3, trek_cpu(0));
    t->wrapper = trek_ddp_wrap_process(t->wrapped, t->comm, &(trek_ddp_opts){ .min_processes = 1 });
    return t->wrapper ? TREK_OK : trek_error_status();
}

static trek_status train_wrapped(const training *t)
{
    trek_scope scope = trek_scope_begin();
    trek_tensor *x = trek_tensor_full(trek_dims(2, 4), 0.25, TREK_F32, trek_cpu(0));
    trek_var *loss = trek_sum(trek_forward(t->wrapped, trek_var_from(x)), trek_dims_all(), false);
    trek_status status = trek_ddp_backward_weighted(t->wrapper, loss, 1);
    trek_scope_end(scope);
    return status == TREK_OK ? trek_ddp_sync_params(t->wrapper) : status;
}

/* Makes the steps of all graphs, whose passes may be woven: all make theirs before the first one makes its step. */
static trek_status step_all(training *t)
{
    trek_status status = t->wrapper ? train_wrapped(t) : TREK_OK;
    for (int k = t->graphs - 1; k >= 0 && status == TREK_OK; k--)
        status = trek_graph_step(t->graph[k]);
    if (status == TREK_OK)
        status = trek_graph_flush(t->graph[0]);
    t->samples += status == TREK_OK ? trek_graph_latest(t->graph[0], "samples") : 0;
    if (says(t->detail, "waits=") && t->elastic)
        arriving_wait(t->graph[0]);
    return status;
}

/* A forward and a backward of the program's own. */
static trek_status pass_of_its_own(trek_graph *graph, const char *detail)
{
    trek_batch *batch = trek_graph_next(graph);
    trek_var *output = says(detail, "backward") ? trek_graph_train_batch(graph, batch)
        : trek_graph_forward(graph, trek_batch_get(batch, "x"));
    return output ? trek_graph_backward(graph, output) : trek_error_status();
}

static trek_status train(training *t)
{
    int pass = 0;
    int64_t epoch = 0;
    bool joined = t->elastic && trek_trainer_joined(t->graph[0], NULL);
    if (joined)
        trek_loader_position(t->loader, &epoch, NULL);
    else
        trek_seed(23);
    for (; trek_graph_steps(t->graph[0]) < t->steps && trek_error_status() == TREK_OK; epoch++, joined = false) {
        if (!joined)
            trek_graph_start(t->graph[0], epoch);
        if (says(t->detail, "own"))
            return pass_of_its_own(t->graph[0], t->detail);
        for (trek_batch *batch; (batch = trek_graph_next(t->graph[0]));) {
            if (trek_graph_steps(t->graph[0]) == t->steps)
                continue;
            for (int k = 0; k < t->graphs; k++)
                if (!trek_graph_train_batch(t->graph[k], batch))
                    return trek_error_status();
            if (++pass % t->passes == 0 && step_all(t) != TREK_OK)
                return trek_error_status();
        }
        if (says(t->detail, "evaluates"))
            evaluate(t);
    }
    return trek_error_status();
}

typedef struct numbers {
    double params, tracked, samples;
    int world;
} numbers;

static trek_status add_up(const char *name, trek_var *var, void *arg)
{
    numbers *n = arg;
    double *values = test_read(trek_var_data(var));
    for (int64_t i = 0; i < trek_var_numel(var); i++)
        n->params = n->params * 1.0009765625 + values[i];
    free(values);
    return TREK_OK;
}

static trek_status find_tracked(const char *name, trek_var *var, void *arg)
{
    numbers *n = arg;
    if (strstr(name, "num_batches_tracked"))
        n->tracked = trek_var_item(var);
    return TREK_OK;
}

static trek_status train_all(const char *detail, trek_comm *comm, bool elastic, int ranks, numbers *n)
{
    training t = { .detail = detail, .comm = comm, .elastic = elastic, .graphs = says(detail, "pair") ? 2 : 1, .ranks = ranks,
                   .passes = dying_number(detail, "passes=", 1), .steps = dying_number(detail, "steps=", 4) };
    t.loader = trek_loader_new(make_data(), &(trek_loader_opts){ .batch_size = dying_number(detail, "batch=", 20),
                                                                .shuffle = true, .seed = 5, .whole = says(detail, "whole") });
    trek_status status = TREK_OK;
    for (int k = 0; k < t.graphs && status == TREK_OK; k++)
        status = set_up(&t, k);
    if (status == TREK_OK && comm && says(detail, "wrapper"))
        status = wrap(&t);
    if (comm)
        dying_count_calls();
    if (status == TREK_OK)
        status = train(&t);
    *n = (numbers){ .samples = t.samples, .world = status == TREK_OK ? trek_graph_world_size(t.graph[0]) : 0 };
    for (int k = 0; k < t.graphs && status == TREK_OK; k++) {
        trek_module_each_param(trek_graph_module(t.graph[k]), add_up, n);
        trek_module_each_buffer(trek_graph_module(t.graph[k]), find_tracked, n);
        n->world = trek_graph_world_size(t.graph[k]) == n->world ? n->world : -1;
    }
    trek_ddp_free(&t.wrapper);
    for (int k = 0; k < t.graphs; k++)
        trek_graph_free(&t.graph[k]);
    trek_loader_free(&t.loader);
    return status;
}

static int play(const part *me)
{
    numbers n;
    int ranks = dying_number(me->detail, "ranks=", 1) + (me->process == 0 && says(me->detail, "uneven"));
    bool arrives = says(me->detail, "waits=");
    trek_comm *comm = NULL;
    if (arrives ? !arriving_begin(me, &comm) : !(comm = dying_join(me, me->processes)))
        return 1;
    if (!arrives)
        dying_begin(me, comm);
    trek_status status = train_all(me->detail, comm, true, ranks, &n);
    arrives ? arriving_end() : dying_end();
    if (status == TREK_OK)
        printf("params %.17g samples %.17g tracked %.17g ranks %d calls %d.\n", n.params, n.samples, n.tracked, n.world,
               dying_calls());
    else
        printf("%s: %s\n", trek_status_name(status), trek_error());
    trek_error_clear();
    trek_comm_free(&comm);
    return status != TREK_OK;
}

/* --- what is expected ------------------------------------------------------------------------------------------- */

static void compare(const world *w, const char *detail, const numbers *got, const numbers *wanted, int dead)
{
    /* batch norm is over a rank's own rows, so what it gives depends on how many ranks there are */
    bool same = says(detail, "norm") || fabs(got->params - wanted->params) < 1e-9 * (1 + fabs(wanted->params));
    if (!same)
        FAIL_WORLD(w, "%s: parameters %.17g, not %.17g", detail, got->params, wanted->params);
    if (got->tracked != wanted->tracked)
        FAIL_WORLD(w, "%s: %g batches tracked, not %g", detail, got->tracked, wanted->tracked);
    if (says(detail, "waits=")) /* those that come have recorded less */
        return;
    double lost = dead * dying_number(detail, "batch=", 20) * dying_number(detail, "passes=", 1); /* at most, in a step of each */
    if (got->samples > wanted->samples || got->samples < wanted->samples - lost)
        FAIL_WORLD(w, "%s: %g samples recorded of %g", detail, got->samples, wanted->samples);
}

static bool is_death(const char *when)
{
    return when && (dying_word(when, "at=") || dying_word(when, "before=") || dying_word(when, "after="));
}

/* Runs n processes. deaths[p]: when process p dies; NULL: it does not. Returns how many calls process 0 has made in the first
 * group. left -1: whoever dies may live. */
static int expect(const char *detail, int n, const char *const *deaths, int left)
{
    static world w;
    numbers wanted, first = { 0 };
    int calls = 0, lives = 0, dead = 0;
    for (int p = 0; p < n; p++)
        dead += is_death(deaths[p]);
    assert_int_equal(train_all(detail, NULL, false, 1, &wanted), TREK_OK);
    dying_play(&w, detail, dying_roles(n, deaths));
    for (int p = 0; p < n; p++) {
        numbers got;
        int own = 0;
        if (is_death(deaths[p]) && (left >= 0 || w.code[p] == -9)) {
            WANT(&w, w.code[p] == -9);
            continue;
        }
        const char *said = strstr(w.text[p], "params ");
        if (!said || sscanf(said, "params %lf samples %lf tracked %lf ranks %d calls %d.", &got.params, &got.samples,
                            &got.tracked,
                   &got.world, &own) != 5 || w.code[p] != 0)
            FAIL_WORLD(&w, "%s: process %d (%s) ended with %d", detail, p, deaths[p] ? deaths[p] : "-", w.code[p]);
        compare(&w, detail, &got, &wanted, dead);
        WANT(&w, lives == 0 || (got.params == first.params && got.world == first.world));
        WANT(&w, left < 0 || got.world == left);
        first = got;
        lives++;
        calls = p == 0 ? own : calls;
    }
    return calls;
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void dies_before_or_after_any_call(const char *detail, int n, int ranks, int every)
{
    const char *nobody[4] = { 0 };
    int made = expect(detail, n, nobody, n * ranks);
    every = test_short() ? 2 * every + 1 : test_long() ? 1 : every;
    assert_true(made > 10);
    for (int k = 0; k < made; k++)
        for (int after = 0; after < 2; after++) {
            char when[32];
            const char *deaths[4] = { 0 };
            snprintf(when, sizeof when, "%s=%d", after ? "after" : "before", k);
            deaths[(k + after) % n] = when;
            if ((2 * k + after) % every == 0 && !(after && k == made - 1)) /* after the last one it is done */
                expect(detail, n, deaths, (n - 1) * ranks);
        }
}

static void one_of_three_dies_at_any_call(void **state) { dies_before_or_after_any_call("steps=2,clipped,drops", 3, 1, 2); }
static void one_of_two_dies_at_any_call(void **state) { dies_before_or_after_any_call("steps=2,norm", 2, 1, 3); }
static void one_of_four_dies_at_any_call(void **state) { dies_before_or_after_any_call("steps=2,passes=2,drops", 4, 1, 5); }

static void ranks_of_a_process_die_together(void **state)
{
    dies_before_or_after_any_call("steps=2,ranks=2,clipped", 3, 2, 5);
    dies_before_or_after_any_call("steps=2,ranks=2,separate,norm", 2, 2, 5);
}

static void several_graphs_go_on(void **state) { dies_before_or_after_any_call("steps=2,pair,drops", 3, 1, 3); }

static void graphs_in_grains_and_wrappers_go_on_together(void **state)
{
    dies_before_or_after_any_call("steps=2,pair,grains,drops", 3, 1, 6);
    dies_before_or_after_any_call("steps=2,wrapper", 3, 1, 5);
}

/* Process 0 dies before its next call, in which the others are, while process 1 has not learned yet that the last one has ended.
 */
static void another_is_behind(void **state)
{
    static const char *const details[] = { "steps=1,clipped,drops", "steps=1,pair", "steps=2,passes=2" };
    if (!test_on_cpu()) /* a call on a device ends for nobody before all have made it */
        skip();
    for (int d = 0; d < 3; d++) {
        const char *nobody[4] = { 0 };
        int made = expect(details[d], 4, nobody, 4), every = d < 2 || test_long() ? 1 : test_short() ? 9 : 4;
        for (int k = d % every; k < made - 1; k += every) {
            char dies[32], late[48];
            snprintf(dies, sizeof dies, "before=%d", k + 1);
            snprintf(late, sizeof late, "late=%d,of-process=0", k);
            expect(details[d], 4, (const char *[]){ dies, late, NULL, NULL }, 3);
        }
    }
}

/* Two at once, one after the other, one while the others find each other, and all but one. Some have no part of a batch. */
static void several_die(void **state)
{
    static const struct {
        const char *detail, *deaths[4];
        int left;
    } cases[] = {
        { "steps=3", { NULL, "at=sync:1", "at=sync:1", NULL }, 2 },
        { "steps=4,drops", { "at=backward:1", NULL, "at=optimizer:1", NULL }, 2 },
        { "steps=4", { NULL, "after=7", NULL, "at=regroup:0" }, 2 },
        { "steps=4,passes=3", { "at=regroup:0", "before=8", NULL, NULL }, 2 },
        { "steps=4,norm,evaluates", { NULL, "at=take_over:0", "after=12", NULL }, 2 },
        { "steps=6,clipped", { "at=sync:1", "at=sync:2", "at=sync:4", NULL }, 1 },
        { "steps=5,batch=3,passes=2,adds", { NULL, "at=reduce:1", NULL, NULL }, 3 },
        { "steps=5,batch=2,drops", { "at=sync:2", NULL, NULL, NULL }, 3 },
        { "steps=5,ranks=2,uneven", { NULL, "at=sync:2", NULL, NULL }, 7 },
        { "steps=4,pair", { "at=sync:1", NULL, "at=sync:4", NULL }, 2 },
        { "steps=4,pair,passes=2", { NULL, "at=regroup:0", "before=17", NULL }, 2 },
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++)
        expect(cases[k].detail, 4, cases[k].deaths, cases[k].left);
}

/* The optimizer's state is kept in parts, each by two processes. */
static void one_dies_with_a_part_of_the_state(void **state)
{
    dies_before_or_after_any_call("steps=3,sharded,clipped,drops", 3, 1, 5);
    if (test_on_cpu()) /* several GPUs of a process cannot have a part each */
        dies_before_or_after_any_call("steps=3,sharded,ranks=2,lamb", 3, 2, 9);
    dies_before_or_after_any_call("steps=3,sharded,norm", 2, 1, 7);
    expect("steps=4,sharded,budgets,drops", 3, (const char *[]){ NULL, "at=sync:1", NULL }, 2);
    expect("steps=4,budgets,recomputes", 3, (const char *[]){ NULL, NULL, "at=backward:2" }, 2);
    expect("steps=7,sharded,passes=2", 4, (const char *[]){ "at=sync:1", NULL, "at=sync:3", NULL }, 2);
}

/* One comes in the place of one that has died, or is new; one dies while another comes. */
static void processes_come(void **state)
{
    expect("steps=8,waits=4", 4, (const char *[]){ "at=sync:2", NULL, NULL, "as=0" }, 3);
    expect("steps=8,waits=4,drops,passes=2", 4, (const char *[]){ NULL, "at=sync:2", NULL, "as=1" }, 3);
    expect("steps=8,waits=3,norm,ranks=2,batch=18", 4, (const char *[]){ NULL, NULL, NULL, "as=new" }, 8);
    expect("steps=8,waits=3,of=2,clipped", 3, (const char *[]){ NULL, NULL, "as=new" }, 3);
    expect("steps=9,waits=5,sharded", 4, (const char *[]){ NULL, "at=sync:2", NULL, "as=1" }, 3);
    expect("steps=9,waits=4,again=6", 5, (const char *[]){ NULL, "at=sync:2", "at=sync:5", "as=1", "as=2,turn=1" }, 3);
    expect("steps=8,of=4,waits=4", 5, (const char *[]){ NULL, "at=sync:2", "at=give_state:0", NULL, "as=1" }, 3);
    expect("steps=8,of=4,waits=4,drops", 5, (const char *[]){ NULL, "at=sync:2", "at=arrival:0", NULL, "as=1" }, 3);
    expect("steps=8,of=4,waits=4", 5, (const char *[]){ NULL, "at=sync:2", NULL, NULL, "as=1,at=arrival:0" }, 3);
}

static void over_gloo_too(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why))
        skip();
    expect("steps=3,gloo,drops", 3, (const char *[]){ NULL, "before=9", NULL }, 2);
    expect("steps=3,gloo,clipped", 3, (const char *[]){ "after=4", NULL, NULL }, 2);
    expect("steps=4,gloo,passes=2", 3, (const char *[]){ NULL, NULL, "at=reduce:1" }, 2);
    expect("steps=4,gloo,pair", 3, (const char *[]){ NULL, "at=sync:3", NULL }, 2);
}

/* Moments and victims as they are drawn. TREK_TEST_DRAWS says how often. */
static void drawn_deaths_do_not_show(void **state)
{
    static const char *const spans[] = { "backward", "sync", "reduce", "optimizer", "reduce_processes", "take_over" };
    const char *set = getenv("TREK_TEST_DRAWS");
    for (int k = 0; k < (set ? atoi(set) : test_short() ? 3 : 10); k++) {
        uint64_t seed = test_seed() * 1000003 + (uint64_t)k + 7700;
        char detail[240], when[4][64];
        const char *deaths[4] = { 0 };
        int processes = 2 + (int)test_draw(&seed, 3), victims = 1 + (int)test_draw(&seed, (uint64_t)processes - 1);
        bool norm = test_draw(&seed, 4) == 0; /* of at least two rows on each rank */
        int batch = norm ? 18 : 2 + (int)test_draw(&seed, 24);
        snprintf(detail, sizeof detail, "batch=%d,steps=%d,passes=%d,ranks=%d%s%s%s%s%s", batch,
                 3 + (int)test_draw(&seed, 3), 1 + (int)test_draw(&seed, 2), 1 + (int)test_draw(&seed, 2),
                 test_draw(&seed, 2) ? ",clipped" : "", test_draw(&seed, 2) ? ",separate" : "",
                 test_draw(&seed, 2) ? ",drops" : "",
                 test_draw(&seed, 3) ? "" : ",pair", norm ? ",norm" : "");
        bool apart = says(detail, "separate") || (says(detail, "ranks=2") && !test_on_cpu());
        bool parts = victims == 1 && !apart && test_draw(&seed, 3) == 0;
        snprintf(detail + strlen(detail), sizeof detail - strlen(detail), "%s", parts ? ",sharded" : "");
        for (int v = 0; v < victims; v++) {
            if (test_draw(&seed, 2))
                snprintf(when[v], sizeof when[v], "%s=%d", test_draw(&seed, 2) ? "before" : "after", (int)test_draw(&seed, 30));
            else
                snprintf(when[v], sizeof when[v], "at=%s:%d", spans[test_draw(&seed, 6)], (int)test_draw(&seed, 3));
            deaths[v] = when[v];
        }
        for (int p = victims; p < processes; p++) {
            snprintf(when[p], sizeof when[p], "-");
            dying_draw_stop(&seed, when[p], sizeof when[p]);
            deaths[p] = when[p];
        }
        expect(detail, processes, deaths, -1);
    }
}

static void refused(const trek_trainer_opts *opts, const char *why)
{
    trek_graph *graph = build(trek_cpu(0), (void *)(uintptr_t) "");
    FAILS(trek_trainer_setup(graph, opts), TREK_ERR_UNSUPPORTED, why);
    trek_graph_free(&graph);
}

static void what_it_cannot_do_is_refused(void **state)
{
    static world w;
    static const struct {
        const char *detail, *why;
    } cases[] = {
        { "meets", "trainer_setup: .min_processes: set without .grain, with layers that use the samples of other ranks" },
        { "whole", "graph_train_batch: batch: its loader gives each process batches of its own; with .min_processes" },
        { "own,forward", "graph_forward: graph: it is trained with .min_processes, and a forward and backward" },
        { "own,backward", "graph_backward: graph: it is trained with .min_processes, and a forward and backward" },
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++) {
        dying_play(&w, cases[k].detail, dying_roles(2, (const char *[]){ NULL, NULL }));
        for (int p = 0; p < 2; p++)
            WANT(&w, w.code[p] == 1 && strstr(w.text[p], "TREK_ERR_UNSUPPORTED: ") && strstr(w.text[p], cases[k].why));
    }
    refused(&(trek_trainer_opts){ .min_processes = 1, .shard = TREK_SHARD_GRADIENTS },
            "trainer_setup: .min_processes: set together with .shard above TREK_SHARD_STATE, without .grain");
    refused(&(trek_trainer_opts){ .min_processes = 1, .overlap = 1 },
            "trainer_setup: .min_processes: set together with .overlap,");
    refused(&(trek_trainer_opts){ .min_processes = 1, .max_anchor = 3 },
            "trainer_setup: .min_processes: set together with .max_anchor,");
    refused(&(trek_trainer_opts){ .min_processes = 1, .global_batch = 64 },
            "trainer_setup: .min_processes: set together with .global_batch,");
    refused(&(trek_trainer_opts){ .min_processes = 1, .average = TREK_AVERAGE_PARAMETERS },
            "trainer_setup: .min_processes: set together with .average,");
    refused(&(trek_trainer_opts){ .min_processes = 1, .reduce_dtype = TREK_BF16 },
            "trainer_setup: .min_processes: set together with .reduce_dtype,");
}

static void too_few_are_left(void **state)
{
    static world w;
    dying_play(&w, "steps=3,least=3", dying_roles(3, (const char *[]){ NULL, "at=backward:1", NULL }));
    for (int p = 0; p < 3; p += 2)
        WANT(&w, w.code[p] == 1 && strstr(w.text[p], "TREK_ERR_PEER: ") && strstr(w.text[p], ".min_processes is 3"));
}

int main(void)
{
    static part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_it_cannot_do_is_refused, clear_error),
        cmocka_unit_test_setup(too_few_are_left, clear_error),
        cmocka_unit_test_setup(one_of_three_dies_at_any_call, clear_error),
        cmocka_unit_test_setup(one_of_two_dies_at_any_call, clear_error),
        cmocka_unit_test_setup(one_of_four_dies_at_any_call, clear_error),
        cmocka_unit_test_setup(ranks_of_a_process_die_together, clear_error),
        cmocka_unit_test_setup(several_graphs_go_on, clear_error),
        cmocka_unit_test_setup(graphs_in_grains_and_wrappers_go_on_together, clear_error),
        cmocka_unit_test_setup(another_is_behind, clear_error),
        cmocka_unit_test_setup(several_die, clear_error),
        cmocka_unit_test_setup(one_dies_with_a_part_of_the_state, clear_error),
        cmocka_unit_test_setup(processes_come, clear_error),
        cmocka_unit_test_setup(over_gloo_too, clear_error),
        cmocka_unit_test_setup(drawn_deaths_do_not_show, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
