/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps over processes with a GPU each against the same steps called one by one, bit for bit, in every process: they
 * all call, record or replay, whatever their batches, options and failures are. On CPUs nothing is recorded. */
#include <signal.h>
#include <unistd.h>

#include "autograd/function.h"
#include "autograd/losses.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "data/loader.h"
#include "distributed/balance/plan.h"
#include "distributed/comm/comm_internal.h"
#include "distributed/stop.h"
#include "distributed/trainer.h"
#include "graph/amp.h"
#include "graph/capture.h"
#include "graph/flow.h"
#include "graph/settings.h"
#include "graph/stepper.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "optim/scaler.h"
#include "tensor/backend.h"
#include "tensor/rank_context.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { FEATURES = 12, HIDDEN = 40, CLASSES = 5, STEPS = 18, MOST_ROWS = 16, FIRST = 4, AT = 9 };

/* --- what a process does ------------------------------------------------------------------------- */

static part me;
static trek_comm *comm;

static bool is(const char *what) { return strstr(me.detail, what) != NULL; }
static bool victim(const char *what) { return me.process == 1 && is(what); }
static bool capturing(void)
{
    const trek_backend *backend = trek_backends[test_device().type];
    return backend->capturing && backend->capturing();
}

typedef struct fake {
    void (*fails)(const char *specification);
    void (*hold)(int device);
    long (*calls)(const char *function);
} fake;

static fake find_fake(void)
{
    fake f = { 0 };
    void *addresses[3] = { test_fake("trek_fake_fail"), test_fake("trek_fake_hold"), test_fake("trek_fake_calls") };
    if (test_on_cpu() || !addresses[0])
        return f;
    memcpy(&f.fails, &addresses[0], sizeof f.fails);
    memcpy(&f.hold, &addresses[1], sizeof f.hold);
    memcpy(&f.calls, &addresses[2], sizeof f.calls);
    return f;
}

/* A layer that process 1 fails in, while it is recorded. */
static trek_status same_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                int n_outputs)
{
    if (victim("forward_fails") && capturing())
        return trek_fail(TREK_ERR_CALLBACK, "it was told to fail");
    outputs[0] = trek_mul_scalar(inputs[0], 1);
    return trek_error_status();
}

static trek_status same_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                 int n_inputs)
{
    if (victim("backward_fails") && capturing())
        return trek_fail(TREK_ERR_CALLBACK, "it was told to fail");
    input_grads[0] = trek_mul_scalar(grads[0], 1);
    return trek_error_status();
}

static const trek_function same = { "same", same_forward, same_backward, NULL };

static trek_var *forward_same(trek_module *self, trek_var *x)
{
    return trek_function_apply_one(&same, NULL, &x, 1);
}

static const trek_module_class same_class = { .name = "same", .size = sizeof(trek_module), .forward = forward_same };

static trek_device device_here(void) { return test_on_cpu() ? trek_cpu(0) : trek_cuda(me.process); }
static trek_dtype dtype_here(void) { return is("bf16") ? TREK_BF16 : TREK_F32; }

static trek_graph *build(trek_device device, void *arg)
{
    trek_dtype dtype = dtype_here();
    trek_linear_opts first = { .in = FEATURES, .out = HIDDEN, .device = device, .dtype = dtype };
    trek_linear_opts middle = { .in = HIDDEN, .out = HIDDEN, .device = device, .dtype = dtype };
    trek_linear_opts last = { .in = HIDDEN, .out = CLASSES, .device = device, .dtype = dtype };
    trek_flow *flow = trek_flow_from(trek_nn_linear_with(&first));
    if (is("norm"))
        flow = trek_flow_through(flow, trek_nn_batch_norm1d_with(&(trek_batch_norm_opts){ .features = HIDDEN, .device = device,
                                                                                          .dtype = dtype }));
    flow = trek_flow_through(flow, trek_nn_relu());
    flow = trek_flow_through(flow, trek_nn_dropout(0.3));
    flow = trek_flow_through(flow, trek_nn_linear_with(&middle));
    flow = trek_flow_through(flow, trek_module_new(&same_class));
    flow = trek_flow_through(flow, trek_nn_relu());
    return trek_flow_build(trek_flow_through(flow, trek_nn_linear_with(&last)));
}

static trek_status set_up(trek_graph *graph)
{
    trek_device devices[2] = { device_here(), trek_cuda(2) };
    trek_plan *plan = is("planned") ? trek_plan_new(me.processes) : NULL;
    for (int from = 0; plan && from < STEPS; from += AT)
        trek_plan_add_shares(plan, from, from ? (const double[]){ 0.5, 0.25, 0.25 } : (const double[]){ 0.25, 0.5, 0.25 });
    int ranks = is("two_each") && me.process == 0 ? 2 : 1;
    trek_trainer_opts opts = { .build_replica = build, .devices = devices, .ranks = ranks, .plan = plan, .balance = TREK_OFF,
                               .max_anchor = TREK_OFF, .bucket_bytes = 1500, .max_grad_norm = is("sharded") ? 0 : 0.4,
                               .comm = comm,
                               .shard = is("sharded") ? TREK_SHARD_STATE : TREK_SHARD_NONE,
                               .optimizer = trek_adamw(&(trek_adam_opts){ .lr = 0.05 }),
                               .amp = { .scaling = is("scaled"), .scaler = { .init_scale = 1024, .growth_interval = 4 } } };
    trek_status status = trek_trainer_setup(graph, &opts);
    trek_plan_free(&plan);
    trek_schedule schedule = trek_cosine_lr(0.05, STEPS, 1e-4);
    return status == TREK_OK ? trek_graph_set_schedule(graph, &schedule) : status;
}

static trek_graph *new_trained(void)
{
    trek_seed(41);
    trek_graph *graph = build(device_here(), NULL);
    if (!graph || set_up(graph) != TREK_OK) {
        fprintf(stderr, "%s\n", trek_error());
        exit(3);
    }
    return graph;
}

/* Rows of step k: unequal shards; smaller last batches, of one process or of all; none. */
static int rows_of(int k)
{
    static const int unequal[] = { 13, 6, 9 };
    int rows = is("unequal") ? unequal[me.process] : 8;
    if (is("shapes") && k % 5 == 4 && me.process == me.processes - 1)
        rows = 3;
    if (is("shapes") && k >= 11 && k <= 13)
        rows = 5 + me.process;
    if (is("none") && (me.process == 1) == (k % 4 != 3))
        rows = 0;
    return is("nobody") && k >= 7 && k <= 12 ? 0 : rows;
}

typedef struct job {
    trek_var *x, *y;           /* for a run without capture; NULL: the captured inputs */
    trek_var *loss;            /* of a run without capture, retained */
    int calls;
} job;

static trek_status one_step(trek_graph *graph, void *arg)
{
    job *j = arg;
    j->calls++;
    trek_var *x = j->x ? j->x : trek_graph_captured_input(graph, 0), *y = j->y ? j->y : trek_graph_captured_input(graph, 1);
    trek_var *out = trek_graph_forward(graph, x);
    if (victim("early") && capturing()) /* the others are on their way to the pass */
        return trek_fail(TREK_ERR_CALLBACK, "it was told to fail");
    trek_var *loss = trek_cross_entropy(trek_cast(out, TREK_F32), y);
    if (is("stated") && loss)
        trek_loss_set_weight(loss, 1 + me.process);
    if (j->x) {
        trek_var_release(j->loss);
        j->loss = loss ? trek_var_retain(trek_var_detach(loss)) : NULL;
    } else {
        trek_graph_capture_output(graph, 0, loss);
    }
    trek_graph_backward(graph, loss);
    trek_status status = trek_graph_step(graph);
    return victim("late") && capturing() ? trek_fail(TREK_ERR_CALLBACK, "it was told to fail") : status;
}

/* Where no label of a process counts, and where none of any does. */
static bool all_ignored(int k) { return is("ignored") && ((k == AT + 1 && me.process == 1) || k == AT + 3); }

/* --- batches ---------------------------------------------------------------------------------------- */

static trek_loader *loader; /* of batches that the processes divide; NULL: each makes its own */

static void start_loading(void)
{
    enum { SAMPLES = 44, BATCH = 16 };
    float data[SAMPLES * FEATURES];
    int64_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES * FEATURES; i++)
        data[i] = test_number(7, (uint32_t)i);
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = i % CLASSES;
    const char *names[] = { "x", "y" };
    trek_tensor *tensors[] = { trek_tensor_from_data(data, trek_dims(SAMPLES, FEATURES), TREK_F32, trek_cpu(0)),
                               trek_tensor_from_data(labels, trek_dims(SAMPLES), TREK_I64, trek_cpu(0)) };
    trek_loader_opts opts = { .batch_size = BATCH, .shuffle = true, .seed = 3, .device = device_here() };
    loader = trek_loader_new(trek_dataset_tensors(names, tensors, 2), &opts);
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    trek_loader_start(loader, 0);
}

static void load_batch(int k, trek_var **x, trek_var **y)
{
    const trek_batch *batch = trek_loader_next(loader);
    if (!batch) { /* the epoch is over */
        trek_loader_start(loader, k);
        batch = trek_loader_next(loader);
    }
    *x = batch ? trek_batch_get(batch, "x") : NULL;
    *y = batch ? trek_batch_get(batch, "y") : NULL;
}

static void make_batch(int k, trek_var **x, trek_var **y)
{
    if (loader) {
        load_batch(k, x, y);
        return;
    }
    float data[MOST_ROWS * FEATURES];
    int64_t labels[MOST_ROWS];
    int rows = rows_of(k);
    for (int i = 0; i < rows * FEATURES; i++)
        data[i] = 2 * test_number(100u + (uint32_t)k + 1000u * (uint32_t)me.process, (uint32_t)i);
    if (is("overflow") && k == STEPS - 5 && me.process == 0)
        data[3] = INFINITY;
    for (int i = 0; i < rows; i++)
        labels[i] = (is("ignored") && (i + k + me.process) % 3 == 0) || all_ignored(k) ? -100 : (i * 7 + k) % CLASSES;
    *x = trek_cast(trek_var_from(trek_tensor_from_data(data, trek_dims(rows, FEATURES), TREK_F32, device_here())), dtype_here());
    *y = trek_var_from(trek_tensor_from_data(labels, trek_dims(rows), TREK_I64, device_here()));
}

typedef struct trace {
    float loss[STEPS];
    double lr[STEPS], norm[STEPS], scale[STEPS];
    uint64_t exchanges[STEPS]; /* of this process with the others */
    long asked;                /* calls of the driver and of NCCL in step AT, where they are counted */
} trace;

/* What the driver and NCCL have been asked for since counting began. */
static long count_calls(const fake *f)
{
    static const char *const functions[] = { "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaEventRecord",
                                             "cudaStreamWaitEvent", "cudaEventQuery", "ncclAllReduce", "cudaGraphLaunch" };
    long sum = 0;
    for (size_t k = 0; k < sizeof functions / sizeof *functions; k++)
        sum += f->calls(functions[k]);
    return sum;
}

/* What happens between two steps. */
static void between(trek_graph *graph, int k, bool captured)
{
    fake f = find_fake();
    if (k == AT && is("left"))
        trek_loader_free(&loader);
    if (k == AT && is("reset_all") && captured)
        trek_graph_capture_reset(graph);
    if (k == AT && victim("reset_one") && captured)
        trek_graph_capture_reset(graph);
    if (k == AT && is("set_up_again") && set_up(graph) != TREK_OK)
        exit(4);
    if ((k == AT || k == AT + 3) && is("frozen"))
        (k == AT ? trek_graph_freeze : trek_graph_thaw)(graph, "0");
    if (k == AT && victim("stops"))
        trek_request_stop();
    if (k == FIRST - 1 && captured && f.fails) /* before it is recorded */
        f.fails(victim("begin_fails") ? "cudaStreamBeginCapture:1" : victim("made_fails") ? "cudaGraphInstantiate:1"
                : victim("given_fails") ? "cudaStreamWaitEvent:1" : victim("sent_fails") ? "cudaStreamWaitEvent:3" : NULL);
    if (k == FIRST && f.fails)
        f.fails(NULL);
    if (k == AT && victim("dies_before"))
        raise(SIGKILL);
    while (k == AT && captured && victim("lags") && !trek_comm_ended(comm))
        usleep(10000);
    if (k == AT && captured && victim("set_otherwise"))
        trek_graph_set_clip(graph, 0.1, 0);
    if (k == AT && captured && (victim("dies_inside") || victim("holds")))
        f.hold(device_here().index); /* it has voted, and given the replay to its device */
    if (k == AT && captured && victim("launch_fails"))
        f.fails("cudaGraphLaunch:1");
    if (k == AT && captured && victim("numbers_fail")) {
        trek_device_sync(device_here());
        f.fails("cudaLaunchKernel:3");
    }
}

static trek_status call_step(trek_graph *graph, bool captured, trek_var *x, trek_var *y, job *j)
{
    if (!captured || victim("off")) {
        j->x = x;
        j->y = y;
        return one_step(graph, j);
    }
    if (trek_graph_capture_input(graph, 0, x) != TREK_OK || trek_graph_capture_input(graph, 1, y) != TREK_OK)
        return trek_error_status();
    return trek_graph_capture(graph, one_step, j);
}

/* Ends the process where a step fails, having said why. */
static void give_up(int k)
{
    printf("step %d: %s: %s\n", k, trek_status_name(trek_error_status()), trek_error());
    if (victim("launch_fails") || victim("numbers_fail"))
        processes_await_go(); /* that it leaves is not what the others learn it by */
    _exit(7);
}

/* In the middle of a replay, in which process 1's device does nothing. */
static void leave(trek_graph *graph)
{
    if (me.process == 1)
        processes_await_go();
    else
        trek_graph_free(&graph);
    printf("process 1 was waited for long enough\n");
    _exit(7);
}

static void train(trek_graph *graph, bool captured, trace *t, job *j)
{
    for (int k = 0; k < STEPS; k++) {
        between(graph, k, captured);
        trek_scope scope = { 0 };
        trek_var *x, *y;
        if (!loader) /* which has its own */
            scope = trek_scope_begin();
        make_batch(k, &x, &y);
        uint64_t before = comm->calls;
        fake f = find_fake();
        bool counts = k == AT && is("counted") && f.fails;
        if (counts)
            f.fails("none:1");
        trek_status status = call_step(graph, captured, x, y, j);
        if (captured && k == AT && victim("dies_inside"))
            raise(SIGKILL);
        if (captured && k == AT && is("holds"))
            leave(graph);
        if (status != TREK_OK)
            give_up(k);
        t->exchanges[k] = comm->calls - before;
        t->asked = counts ? count_calls(&f) : t->asked;
        trek_var *loss = captured && !j->x ? trek_graph_captured_output(graph, 0) : j->loss;
        if (!loss || trek_tensor_to_host(trek_var_data(loss), TREK_F32, &t->loss[k], sizeof(float)) != TREK_OK)
            give_up(k);
        t->lr[k] = trek_graph_lr(graph);
        t->norm[k] = trek_graph_grad_norm(graph);
        t->scale[k] = is("scaled") ? trek_grad_scaler_value(trek_graph_scaler(graph)) : 1;
        if (!loader)
            trek_scope_end(scope);
        if (is("stops") && trek_stop_requested() != (k >= AT)) {
            printf("step %d: the stop is not agreed on\n", k);
            exit(5);
        }
    }
    trek_stop_clear();
    trek_loader_free(&loader);
}

static trek_status list_value(const char *name, trek_var *var, void *arg)
{
    trek_var ***next = arg;
    *(*next)++ = var;
    return TREK_OK;
}

static int values_of(trek_graph *graph, trek_var **list)
{
    trek_var **next = list;
    trek_module_each_param(trek_graph_module(graph), list_value, &next);
    trek_module_each_buffer(trek_graph_module(graph), list_value, &next);
    return (int)(next - list);
}

static uint64_t hash_of(trek_graph *graph)
{
    trek_var *list[32];
    uint64_t hash = 1469598103934665603u;
    for (int k = 0, n = values_of(graph, list); k < n; k++) {
        trek_tensor *x = trek_tensor_to(trek_var_data(list[k]), trek_cpu(0));
        const char *bytes = x->data;
        for (int64_t i = 0; i < x->numel * (int64_t)trek_dtype_size((trek_dtype)x->dtype); i++)
            hash = (hash ^ (unsigned char)bytes[i]) * 1099511628211u;
        trek_tensor_release(x);
    }
    return hash;
}

static bool same_number(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static bool same_traces(const trace *a, const trace *b)
{
    for (int k = 0; k < STEPS; k++)
        if (!same_number((double)a->loss[k], (double)b->loss[k]) || !same_number(a->lr[k], b->lr[k]) ||
            !same_number(a->norm[k], b->norm[k]) || !same_number(a->scale[k], b->scale[k])) {
            printf("step %d: losses %.9g, %.9g, rates %.17g, %.17g, norms %.17g, %.17g, scales %g, %g\n", k, (double)a->loss[k],
                   (double)b->loss[k], a->lr[k], b->lr[k], a->norm[k], b->norm[k], a->scale[k], b->scale[k]);
            return false;
        }
    return true;
}

static void silent(trek_log_level level, const char *message, void *arg) { (void)level, (void)message, (void)arg; }

static int play(void)
{
    static trace t[2];
    trek_graph *graphs[2];
    job jobs[2] = { { 0 }, { 0 } };
    trek_log_set(TREK_LOG_LEVEL_WARNING, silent, NULL);
    comm = trek_comm_init(&(trek_comm_opts){ .rank = me.process,
                                             .world_size = me.processes,
                                             .address = me.address,
                                             .port = me.port,
                                             .deadline_s = is("lags") || is("holds") ? 3 : 60 });
    if (!comm)
        return 2;
    for (int g = 0; g < 2; g++) {
        graphs[g] = new_trained();
        if (is("loaded") || is("left"))
            start_loading();
        train(graphs[g], g, &t[g], &jobs[g]);
    }
    if (!same_traces(&t[0], &t[1]))
        return 8;
    printf("replays %lld calls %d hashes %016llx %016llx exchanges %llu %llu asked %ld %ld problem %s.\n",
           (long long)trek_graph_replays(graphs[1]), jobs[1].calls, (unsigned long long)hash_of(graphs[0]),
           (unsigned long long)hash_of(graphs[1]), (unsigned long long)t[0].exchanges[AT],
           (unsigned long long)t[1].exchanges[AT], t[0].asked, t[1].asked, trek_graph_capture_problem(graphs[1]));
    for (int g = 0; g < 2; g++) {
        trek_var_release(jobs[g].loss);
        trek_graph_free(&graphs[g]);
    }
    trek_comm_free(&comm);
    return trek_error_status() == TREK_OK && trek_tape_size() == 0 ? 0 : 9;
}

/* --- what is expected of all ---------------------------------------------------------------------- */

typedef struct result {
    long long replays;
    int calls;
    unsigned long long called, captured, exchanges[2];
    long asked[2];
    char problem[200];
} result;

static world w;

static int processes_there(void)
{
    int n = test_on_cpu() ? 3 : trek_device_count(TREK_CUDA);
    return n < 3 ? n : 3;
}

/* All end well, with the bits of called steps, and alike. */
static void run(int processes, const char *detail, result *first)
{
    print_message("%d processes: %s\n", processes, detail);
    processes_run_all(&w, processes, "train", detail, -1, NULL);
    for (int p = 0; p < processes; p++) {
        result own;
        const char *line = strstr(w.text[p], "replays ");
        memset(&own, 0, sizeof own);
        WANT(&w, w.code[p] == 0 && line);
        WANT(&w, sscanf(line, "replays %lld calls %d hashes %llx %llx exchanges %llu %llu asked %ld %ld problem %199[^.]",
                    &own.replays, &own.calls,
                    &own.called, &own.captured, &own.exchanges[0], &own.exchanges[1], &own.asked[0], &own.asked[1],
                    own.problem) >= 8);
        WANT(&w, own.called == own.captured);
        if (p == 0)
            *first = own;
        WANT(&w, own.captured == first->captured);
        bool off = p == 1 && strstr(detail, "off");
        WANT(&w, off || own.replays == first->replays);
        WANT(&w, own.replays == 0 || own.calls == first->calls || strstr(detail, "reset_one"));
    }
}

/* So many replays, on GPUs; then without a problem. */
static void expect(int processes, const char *detail, int replays, int calls)
{
    result r;
    run(processes, detail, &r);
    if (test_on_cpu()) {
        assert_int_equal(r.replays, 0);
        return;
    }
    if (r.replays != replays || (calls && r.calls != calls) || r.problem[0])
        fail_msg("%s: %lld replays instead of %d, %d calls instead of %d: %s", detail, r.replays, replays, r.calls, calls,
                 r.problem);
}

static void test_as_called(void **state)
{
    static const char *const kinds[] = { "plain", "unequal", "norm,unequal", "bf16,unequal", "scaled,overflow,unequal",
                                         "ignored,unequal", "stated,unequal" };
    for (int n = 2; n <= processes_there(); n++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            expect(n, kinds[k], STEPS - FIRST, FIRST);
}

/* A last batch that is short in one process, and others that are of other sizes in each; every combination has its record. */
static void test_shapes(void **state)
{
    /* 18 steps: those of one short batch are 4, 9, 14; of others 11, 12, 13. 12 are whole; the first four are calls. */
    for (int n = 2; n <= processes_there(); n++)
        expect(n, "shapes,unequal", 8 + 1 + 1, 4 + 2 + 2);
    /* Batches of the loader, and then own ones of the same size, whose rows lie elsewhere: other random numbers. 4 replays,
     * and 7. */
    expect(2, "left", 2 + 1 + 7, 0);
    /* Batches of 16, 16 and 12 that they divide: whole ones are called four times, others twice. */
    for (int n = 2; n <= processes_there(); n++)
        expect(n, "loaded", 8 + 4, 4 + 2);
}

/* A process without rows, and then all of them. */
static void test_no_rows(void **state)
{
    for (int n = 2; n <= processes_there(); n++) {
        /* rows of the one: 14 steps without, of which the first 4 are calls (number 3 comes between); 4 the other way */
        expect(n, "none", 10 + 2, 4 + 2);
        expect(n, "nobody", STEPS - FIRST - 2, FIRST + 2);
    }
}

/* Other shares from a step on: it is recorded anew. */
static void test_plan(void **state)
{
    if (processes_there() < 3)
        skip();
    expect(3, "planned", AT - FIRST + STEPS - AT - 2, FIRST + 2);
    /* and batches are of other sizes: 3 replays before, 5 after */
    expect(3, "planned,loaded", 3 + 5, 3 + 1 + 2 + 4);
}

/* Records go where all let them go, where one does, where the graph is set up anew, and where parameters are frozen. */
static void test_changes(void **state)
{
    for (int n = 2; n <= processes_there(); n++) {
        expect(n, "reset_all", AT - FIRST + STEPS - AT - FIRST, 2 * FIRST);
        expect(n, "reset_one", AT - FIRST + STEPS - AT - FIRST, 0);
        expect(n, "set_up_again", AT - FIRST + STEPS - AT - FIRST, 2 * FIRST);
        expect(n, "frozen", AT - FIRST + 1 + STEPS - AT - 3 - 2, FIRST + 4);
        expect(n, "stops", STEPS - FIRST, FIRST);
    }
}

static bool has_fake(void) { return !test_on_cpu() && test_fake("trek_fake_fail"); }

/* One process does not record, or cannot: all call, with the same bits, and know whose fault it is. */
static void test_not_recorded(void **state)
{
    static const char *const kinds[][2] = { { "off", "process 1 does not record its steps" },
                                            { "forward_fails", "it was told to fail" },
                                            { "backward_fails", "it was told to fail" },
                                            { "early", "it was told to fail" },
                                            { "late", "it was told to fail" },
                                            { "begin_fails", "cudaStreamBeginCapture" },
                                            { "made_fails", "cudaGraphInstantiate" },
                                            { "given_fails", "cudaStreamWaitEvent" },
                                            { "sent_fails", "cudaStreamWaitEvent" },
                                            { "two_each", "several processes with several ranks each train the graph" },
                                            { "sharded", "the ranks keep the optimizer's state in parts" } };
    if (!has_fake())
        skip();
    for (int n = 2; n <= processes_there(); n++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            result r;
            if (n == 3 && strcmp(kinds[k][0], "two_each") == 0)
                continue; /* there are three GPUs */
            if (processes_there() < 3 && strcmp(kinds[k][0], "two_each") == 0)
                continue;
            run(n, kinds[k][0], &r);
            if (r.replays != 0 || !strstr(r.problem, kinds[k][1]))
                fail_msg("%s: %lld replays: %s", kinds[k][0], r.replays, r.problem);
        }
}

/* One process dies, or its device does not take its part: the others fail in time, and none waits for ever. */
static void test_failures(void **state)
{
    static const char *const kinds[] = { "dies_before", "dies_inside", "launch_fails", "numbers_fail", "holds", "lags",
                                         "set_otherwise" };
    if (!has_fake())
        skip();
    for (int n = 2; n <= processes_there(); n++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            if (n == 3 && k != 1 && k != 2 && k != 4) /* some take their time */
                continue;
            processes_start_all(&w, n, "train", kinds[k], -1, NULL);
            processes_finish(&w, 1); /* as long as process 1 stays */
            processes_go(&w, 1);
            processes_finish(&w, -1);
            for (int p = 0; p < n; p++)
                WANT(&w, w.code[p] == (p == 1 && k < 2 ? -SIGKILL : 7));
            for (int p = 0; p < n; p += 2)
                WANT(&w, strstr(w.text[p], "process 1") || strstr(w.text[p], "rank 1"));
        }
}

/* A replay is one exchange with the others; a called step has those of its pass, its end, its gradients and each bucket. */
static void test_exchanges(void **state)
{
    result r;
    if (!has_fake())
        skip();
    run(2, "unequal,counted", &r);
    print_message("exchanges with other processes: %llu in a called step, %llu in a replayed one\n", r.exchanges[0],
                  r.exchanges[1]);
    print_message("calls of the driver and of NCCL: %ld in a called step, %ld in a replayed one\n", r.asked[0], r.asked[1]);
    assert_true(r.asked[1] > 0 && 4 * r.asked[1] < r.asked[0]);
    assert_int_equal(r.exchanges[1], 1);
    assert_true(r.exchanges[0] > 5);
}

/* --- what is made of votes ------------------------------------------------------------------------- */

static trek_capture_vote vote_of(uint64_t inputs, uint64_t team, int64_t number)
{
    return (trek_capture_vote){ .inputs = inputs, .n = 1, .wishes = { { team, number } } };
}

static void test_votes(void **state)
{
    trek_capture_vote votes[3] = { { .inputs = 5 }, { .inputs = 6 }, { .inputs = 7 } };
    trek_capture_verdict empty = trek_capture_decide(votes, 3);
    uint64_t team = empty.team;
    assert_int_equal(empty.way, TREK_CAPTURE_CALL);
    static const struct {
        int64_t numbers[3];
        trek_capture_way way;
    } cases[] = { { { 4, 4, 4 }, TREK_CAPTURE_REPLAY }, { { 4, 4, 3 }, TREK_CAPTURE_RECORD },
                  { { 0, 0, 0 }, TREK_CAPTURE_RECORD },
                  { { 0, 4, 4 }, TREK_CAPTURE_RECORD }, { { 4, 4, -1 }, TREK_CAPTURE_CALL },
                  { { -1, 0, 0 }, TREK_CAPTURE_CALL } };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (int p = 0; p < 3; p++)
            votes[p] = vote_of(5 + (uint64_t)p, team, cases[k].numbers[p]);
        assert_int_equal(trek_capture_decide(votes, 3).way, cases[k].way);
        votes[2].inputs++; /* a batch of another size elsewhere: nobody has a record for it */
        assert_int_equal(trek_capture_decide(votes, 3).way, TREK_CAPTURE_CALL);
        assert_true(trek_capture_decide(votes, 3).team != team);
    }
    votes[0] = vote_of(5, 5, 4); /* alone */
    votes[0].wishes[0].team = trek_capture_decide(votes, 1).team;
    assert_int_equal(trek_capture_decide(votes, 1).way, TREK_CAPTURE_REPLAY);
}

int main(void)
{
    if (processes_part(&me))
        return play();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_votes), cmocka_unit_test(test_as_called), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_no_rows), cmocka_unit_test(test_plan), cmocka_unit_test(test_changes),
        cmocka_unit_test(test_not_recorded), cmocka_unit_test(test_failures), cmocka_unit_test(test_exchanges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
