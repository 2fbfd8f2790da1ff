/* SPDX-License-Identifier: Apache-2.0 */
/* What a process of a job does: it trains, and fails as it was told to. */
#include "data/dataset_class.h"
#include "data/loader_position.h"
#include "graph/graph_loader.h"
#include "graph/passes.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "optim/optimizers.h"
#include "tensor/devices.h"
#include "tensor/log.h"
#include "tests/distributed/failures.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "distributed/checkpoint.h"
#include "distributed/comm/comm_internal.h"
#include "distributed/control/control.h"
#include "distributed/stop.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "tensor/status.h"
#include "tensor/trace.h"
#include "tests/support/labelled.h"
#include "tests/support/support.h"

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void pause_us(double us)
{
    struct timespec left = { .tv_sec = (time_t)(us * 1e-6), .tv_nsec = (long)fmod(us * 1e3, 1e9) };
    while (nanosleep(&left, &left) != 0) /* signals may come */
        ;
}

uint32_t random_number(uint32_t *state) { return (*state = *state * 1664525u + 1013904223u) >> 8; }

job_file *map_job(const char *folder, bool make)
{
    char path[512];
    snprintf(path, sizeof path, "%s/job", folder);
    int file = open(path, make ? O_RDWR | O_CREAT : O_RDWR, 0600);
    if (file < 0 || (make && ftruncate(file, sizeof(job_file)) != 0))
        return NULL;
    job_file *job = mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return job == MAP_FAILED ? NULL : job;
}

scenario my;
static int rank;
job_file *job;
static record *own;
static trek_comm *comm;
static atomic_int acted;
static void at_exit_note(void) { own->ended_at = now(); }

/* The phase in which the victim dies or stops; NULL: the others need not know it. */
static const char *phase_to_hear(void)
{
    switch (my.act == KILL || my.act == STOP ? my.place : NOWHERE) {
    case FIRST:
    case LOSS:
    case BACKWARD:
        return "backward";
    case SAVE:
        return "save";
    case EVALUATION:
        return "evaluate";
    default:
        return NULL;
    }
}

/* Notes, beside whatever the process waits for, that it has heard of that: by the second report that comes while the victim
 * waits, as the first may have been on its way. */
static void *hear(void *arg)
{
    char phase[32];
    int64_t silent, since, last = 0;
    int reports = 0;
    for (; reports < 2 && !trek_comm_ended(comm); pause_us(2000)) { /* "forward and backward" is that, too */
        if (!atomic_load(&job->waits))
            continue;
        trek_control_peer(comm->control, my.victim, phase, sizeof phase, &silent, &since);
        int64_t at = trek_clock_ns() - silent;
        reports += last && at > last + 100000000 && strstr(phase, phase_to_hear());
        last = !last || at > last + 100000000 ? at : last;
    }
    atomic_fetch_add(&job->heard, 1);
    return arg;
}

/* What the victim does. OK: it goes on. */
static trek_status act_out(void)
{
    if (atomic_exchange(&acted, 1))
        return TREK_OK;
    atomic_store(&job->waits, 1);
    while (phase_to_hear() && atomic_load(&job->heard) < my.processes - 1)
        pause_us(2000);
    switch ((act)my.act) {
    case KILL:
        kill(getpid(), SIGKILL);
        break;
    case STOP:
        kill(getpid(), SIGSTOP);
        break;
    case EXIT:
        exit(0);
    case COUNT: {
        trek_tensor *more = trek_tensor_zeros(trek_dims(7), TREK_F32, trek_cpu(0));
        trek_status status = trek_comm_all_reduce(comm, more, TREK_REDUCTION_SUM);
        trek_tensor_release(more);
        return status;
    }
    case ERROR:
        return trek_fail(TREK_ERR_ARGUMENT, "it broke in process %d", rank);
    case BUSY:
        trek_comm_say(comm, "preprocess");
        pause_us(1.5e6 * DEADLINE_S);
        trek_comm_say(comm, NULL);
        break;
    case SILENT:
        while (!trek_comm_ended(comm))
            pause_us(10000);
        break;
    default:
        break;
    }
    return TREK_OK;
}

static trek_status act_at(place where) { return (int)where == my.place && rank == my.victim ? act_out() : TREK_OK; }

static void delay(uint32_t more)
{
    static _Thread_local uint32_t state;
    if (!(my.delays & 1))
        return;
    state = state ? state : my.seed * 2654435761u + (uint32_t)rank * 97u + more;
    uint32_t draw = random_number(&state);
    if (draw % 3 == 0)
        pause_us(draw % 2000);
}

/* Identity, whose backward is where a process fails. */
static trek_status trap_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                int n_outputs)
{
    (void)context, (void)n_inputs, (void)n_outputs;
    delay(1);
    outputs[0] = trek_mul_scalar(inputs[0], 1);
    return outputs[0] ? TREK_OK : trek_error_status();
}

static trek_status trap_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                 int n_inputs)
{
    (void)context, (void)n_grads, (void)n_inputs;
    delay(2);
    trek_status status = own && own->steps >= 3 ? act_at(BACKWARD) : TREK_OK;
    input_grads[0] = grads[0];
    return status;
}

static const trek_function trap_function = { .name = "trap", .forward = trap_forward, .backward = trap_backward };

static trek_var *module_forward(trek_module *self, trek_var *x)
{
    (void)self;
    return trek_function_apply_one(&trap_function, NULL, &x, 1);
}

static const trek_module_class trap_class = { .name = "trap", .size = sizeof(trek_module), .forward = module_forward };

/* Each rank of all processes has a GPU, if there are so many: then their library joins them. */
static trek_device device_of(int local)
{
    bool each = !test_on_cpu() && my.processes * my.ranks <= trek_device_count(TREK_CUDA);
    return each ? trek_cuda(rank * my.ranks + local) : test_device_of_rank(local);
}

trek_graph *build(trek_device device, void *arg)
{
    int64_t hidden = (my.mode == LARGE ? WIDE : HIDDEN) + (arg ? *(int *)arg : 0);
    trek_module *norm = my.mode == SYNC ? trek_nn_sync_batch_norm(hidden, device) : trek_nn_batch_norm1d(hidden, device);
    trek_module *modules[] = { trek_nn_linear(IN, hidden, device),
                               norm,
                               trek_nn_gelu(),
                               trek_nn_linear(hidden, hidden, device),
                               trek_module_new(&trap_class),
                               trek_nn_dropout(0.2),
                               trek_nn_linear(hidden, CLASSES, device) };
    return trek_flow_build(trek_flow_from(trek_nn_sequential(modules, 7)));
}

trek_loader *loader_new(void)
{
    return trek_loader_new(labelled_rows(9, SAMPLES, IN, CLASSES),
                           &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true, .seed = 3, .device = device_of(0) });
}

static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    delay(3);
    if (own->steps >= 3 && act_at(LOSS) != TREK_OK)
        return NULL;
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

static trek_status hash_param(const char *name, trek_var *param, void *arg)
{
    static float values[(WIDE + 1) * (WIDE + 1)];
    uint64_t *hash = arg;
    (void)name;
    size_t bytes = (size_t)trek_var_numel(param) * sizeof(float);
    trek_status status = trek_tensor_to_host(trek_var_data(param), TREK_F32, values, bytes);
    for (size_t k = 0; k < bytes && status == TREK_OK; k++)
        *hash = (*hash ^ ((unsigned char *)values)[k]) * 1099511628211u;
    return status;
}

uint64_t hash_of(trek_graph *graph)
{
    uint64_t hash = 14695981039346656037u;
    return trek_module_each_param(trek_graph_module(graph), hash_param, &hash) == TREK_OK ? hash : 0;
}

trek_status set_up(trek_graph *graph, int ranks, trek_comm *among, double deadline)
{
    trek_device devices[2] = { device_of(0), device_of(1) };
    return trek_trainer_setup(graph,
                              &(trek_trainer_opts){ .build_replica = build,
                                                    .devices = devices,
                                                    .ranks = ranks,
                                                    .optimizer = my.mode == OWNERS ? trek_lamb(&(trek_lamb_opts){ .lr = 0.02 })
                                                                                   : trek_adam(&(trek_adam_opts){ .lr = 0.02 }),
                                                    .max_grad_norm = 1,
                                                    .bucket_bytes = my.mode == LARGE ? 65536 : 4096,
                                                    .comm = among,
                                                    .shard = my.mode >= PARTS ? TREK_SHARD_STATE : TREK_SHARD_NONE,
                                                    .deadline_s = deadline,
                                                    .max_anchor = my.mode == WINDOWS && among ? 2 : TREK_OFF,
                                                    .anchor = 1 });
}

/* Notes the failure: what it leaves, and what comes of going on. */
static int fail_here(trek_graph *graph)
{
    own->status = (int)trek_error_status();
    snprintf(own->error, sizeof own->error, "%s", trek_error());
    own->failed = 1;
    own->again = own->later = -1;
    if (graph) {
        own->again = (int)trek_graph_step(graph);
        trek_error_clear();
        own->after = hash_of(graph);
        if (my.act != ERROR && my.place != SETUP) { /* an error that a process told of has not ended the group */
            own->later = (int)trek_graph_step(graph);
            trek_error_clear();
            own->after = own->after == hash_of(graph) ? own->after : 0;
        }
    }
    return FAILED + rank;
}

static void *act_later(void *arg)
{
    uint32_t state = my.seed;
    int after = (int)(random_number(&state) % (STEPS - 2));
    while (my.place != EARLY && atomic_load(&job->training) < my.processes) /* one may still be waiting for the first values */
        pause_us(50);
    while (my.place == STEP && *(volatile int *)&own->steps < after)
        pause_us(50);
    pause_us(random_number(&state) % (my.place == EARLY ? 15000 : 1500));
    act_out();
    return arg;
}

static void begin_thread(place where)
{
    pthread_t thread;
    if ((int)where == my.place && rank == my.victim && pthread_create(&thread, NULL, act_later, NULL) == 0)
        pthread_detach(thread);
}

/* The victim's thread may be late, on a busy machine: its process does not get to the end before it has acted. */
static void wait_for_act(void)
{
    bool by_thread = my.place == STEP || my.place == IN_SAVE || my.place == EARLY;
    while (by_thread && (my.act == KILL || my.act == EXIT) && rank == my.victim)
        pause_us(1000);
}

static trek_status evaluate(trek_graph *graph, trek_loader *loader)
{
    double sum = 0;
    trek_comm_say(comm, "evaluate");
    trek_status status = act_at(EVALUATION);
    if (status == TREK_OK)
        status = trek_graph_train(graph, false);
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_tensor *x[2];
    int64_t indices[BATCH];
    for (int k = 0; k < BATCH; k++)
        indices[k] = k * trek_comm_world_size(comm) % SAMPLES;
    if (status == TREK_OK)
        status = trek_dataset_get(trek_loader_dataset(loader), indices, BATCH, x);
    if (status == TREK_OK) {
        trek_var *input = trek_to(trek_var_from(x[0]), device_of(0)), *label = trek_to(trek_var_from(x[1]), device_of(0));
        trek_var *loss = trek_cross_entropy(trek_graph_forward(graph, input), label);
        sum = loss ? trek_var_item(loss) : 0;
        status = trek_error_status();
    }
    trek_no_grad_end();
    trek_scope_end(scope);
    if (status == TREK_OK)
        status = trek_comm_all_reduce_scalar(comm, &sum, TREK_REDUCTION_SUM);
    trek_comm_say(comm, NULL);
    return status == TREK_OK ? trek_graph_train(graph, true) : status;
}

const char *checkpoint_of(const scenario *s) { return s->seed % 2 ? "checkpoint.index.json" : "checkpoint"; }

static trek_status save(trek_graph *graph, trek_loader *loader, const char *folder)
{
    char path[512];
    bool fails = my.place == SAVE && my.act == ERROR && rank == my.victim && own->steps == 8;
    snprintf(path, sizeof path, "%s/%s%s", folder, fails ? "none/" : "", checkpoint_of(&my));
    if (own->steps == 8) {
        trek_comm_say(comm, "save");
        trek_status status = my.act == ERROR ? TREK_OK : act_at(SAVE);
        if (status != TREK_OK)
            return status;
        begin_thread(IN_SAVE);
    }
    return trek_checkpoint_save(graph, loader, path);
}

static trek_status make_pass(trek_graph *graph, trek_batch *batch)
{
    if (my.mode != GATHERED)
        return trek_graph_train_batch(graph, batch) ? TREK_OK : trek_error_status();
    trek_var *y = trek_graph_forward(graph, trek_batch_get(batch, "x"));
    trek_var *loss = y ? loss_of(graph, y, batch, NULL) : NULL;
    return loss ? trek_graph_backward(graph, loss) : trek_error_status();
}

enum { CALLS = 8 };

static trek_status make_call(int which, trek_graph *graph, trek_loader *loader, trek_batch *batch, const char *folder)
{
    double number = 1;
    switch (which) {
    case 0:
        return make_pass(graph, batch);
    case 1:
        return trek_graph_step(graph);
    case 2:
        return trek_graph_zero_grad(graph);
    case 3:
        return trek_comm_barrier(comm);
    case 4:
        return trek_comm_all_reduce_scalar(comm, &number, TREK_REDUCTION_MAX);
    case 5:
        return trek_comm_all_reduce(comm, NULL, TREK_REDUCTION_SUM); /* its own mistake is told to nobody either */
    case 6:
        return evaluate(graph, loader);
    default:
        return save(graph, loader, folder);
    }
}

/* How many of its calls were not refused, plus 1: it has got to the end. */
static int count_served(trek_graph *graph, trek_loader *loader, trek_batch *batch, const char *folder)
{
    int served = 0;
    for (int which = 0; which < CALLS; which++) {
        trek_error_clear();
        trek_status status = make_call(which, graph, loader, batch, folder);
        if (status == TREK_ERR_STATE || (which == 5 && status == TREK_ERR_ARGUMENT))
            continue;
        fprintf(stderr, "a forked child's call %d: %s: %s\n", which, trek_status_name(status), trek_error());
        served++;
    }
    trek_comm_abort(comm, "a child");
    return served + 1;
}

/* A child of the victim lives for a while, and ends as any program does. */
static trek_status fork_child(trek_graph *graph, trek_loader *loader, trek_batch *batch, const char *folder)
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(100);
        int served = count_served(graph, loader, batch, folder);
        trek_graph_free(&graph);
        trek_comm_free(&comm);
        exit(served);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 1
               ? TREK_OK
               : trek_fail(TREK_ERR_CALLBACK, "the child of process %d ended with %x", rank, (unsigned)status);
}

static trek_status train(trek_graph *graph, trek_loader *loader, const char *folder)
{
    int steps = my.act == TERM || my.act == TERM_ONE ? LONGEST : STEPS;
    trek_status status = TREK_OK;
    own->hashes[0] = hash_of(graph);
    atomic_fetch_add(&job->training, 1);
    begin_thread(STEP);
    for (int64_t epoch = 0; own->steps < steps && !trek_stop_requested(); epoch++) {
        status = trek_graph_start(graph, epoch);
        for (trek_batch *batch;
             status == TREK_OK && own->steps < steps && !trek_stop_requested() && (batch = trek_graph_next(graph));) {
            status = make_pass(graph, batch);
            delay(4);
            if (status == TREK_OK && own->steps == 0)
                status = act_at(FIRST);
            if (status == TREK_OK && my.act == FORK && own->steps == 3 && rank == my.victim)
                status = fork_child(graph, loader, batch, folder);
            if (status == TREK_OK)
                status = trek_graph_step(graph);
            else if (my.mode == GATHERED && my.act == ERROR)
                trek_graph_step(graph); /* goes on as if nothing were */
            if (status != TREK_OK)
                return status;
            own->hashes[own->steps + 1] = hash_of(graph);
            own->steps++;
            if (own->steps > LONGEST - 1000)
                pause_us(20000); /* whoever is to ask it to stop is late */
            if (steps == STEPS && own->steps % 4 == 0)
                status = save(graph, loader, folder);
            if (status == TREK_OK && own->steps % 10 == 0)
                status = evaluate(graph, loader);
        }
        status = status == TREK_OK ? trek_error_status() : status;
        if (status != TREK_OK)
            return status;
    }
    wait_for_act();
    return steps == STEPS ? TREK_OK : save(graph, loader, folder);
}

static void on_term(int signal)
{
    (void)signal;
    trek_request_stop();
}

static void on_timer(int signal) { (void)signal; }

/* Signals again and again, in any thread, that interrupt what waits. */
static void begin_signals(void)
{
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2 };
    struct itimerspec every = { .it_value.tv_nsec = 300000, .it_interval.tv_nsec = 300000 };
    sigaction(SIGUSR2, &(struct sigaction){ .sa_handler = on_timer }, NULL);
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &every, NULL) != 0)
        _exit(4);
}

static trek_status begin(trek_graph *graph, trek_loader *loader, double deadline)
{
    trek_status status = my.act == COUNT ? TREK_OK : act_at(SETUP);
    if (status == TREK_OK)
        status = trek_graph_set_loader(graph, loader, "x");
    if (status == TREK_OK && my.mode != GATHERED)
        status = trek_graph_set_loss(graph, loss_of, NULL);
    return status == TREK_OK ? set_up(graph, my.ranks, comm, deadline) : status;
}

static int take_part(const char *folder)
{
    int wider = my.place == SETUP && my.act == COUNT && rank == my.victim;
    double deadline = my.act == BUSY || my.act == SILENT ? DEADLINE_S : my.place == JOIN && my.act == STOP ? 10 : 60;
    begin_thread(EARLY);
    act_at(JOIN);
    comm = trek_comm_init(&(trek_comm_opts){ .engine = my.gloo ? "gloo" : "shared", .deadline_s = deadline });
    if (!comm)
        return fail_here(NULL);
    trek_seed(7);
    pthread_t listener;
    bool listens = rank != my.victim && phase_to_hear() && pthread_create(&listener, NULL, hear, NULL) == 0;
    trek_graph *graph = build(device_of(0), &wider);
    trek_loader *loader = loader_new();
    trek_status status = begin(graph, loader, deadline);
    bool begun = status == TREK_OK;
    if (begun)
        status = train(graph, loader, folder);
    if (status == TREK_OK)
        status = act_at(LEAVING);
    if (status == TREK_OK && my.act != TERM && my.act != TERM_ONE)
        status = trek_comm_barrier(comm);
    int code = status == TREK_OK ? 0 : fail_here(begun ? graph : NULL);
    if (code == 0)
        act_at(END);
    if (listens)
        pthread_join(listener, NULL);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_comm_free(&comm);
    own->ended = 1;
    return code;
}

int child(const char *text, const char *folder)
{
    alarm(140);
    rank = atoi(getenv("TREK_RANK"));
    if (sscanf(text, "%d,%d,%d,%d,%d,%d,%d,%d,%u", &my.gloo, &my.processes, &my.ranks, &my.victim, &my.act, &my.place, &my.mode,
               &my.delays, &my.seed) != 9 ||
        !(job = map_job(folder, false)))
        return 2;
    own = &job->of[rank];
    own->pid = getpid();
    atexit(at_exit_note);
    if (my.act == TERM || my.act == TERM_ONE)
        signal(SIGTERM, on_term);
    if (my.delays & 2)
        begin_signals();
    return take_part(folder);
}
