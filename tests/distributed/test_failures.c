/* SPDX-License-Identifier: Apache-2.0 */
/* Training jobs under trek-run in which one process fails the others, in every way and place: all others end by
 * themselves within seconds, with the right process named, parameters as the last complete step left them, and nothing
 * left behind. Processes that are slow, busy or asked to stop fail nobody. TREK_TEST_SEED: other random moments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "distributed/checkpoint.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/stop.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "tensor/status.h"
#include "tests/support/support.h"

enum {
    SAMPLES = 96,
    IN = 8,
    HIDDEN = 48,
    WIDE = 400,
    CLASSES = 4,
    BATCH = 24,
    STEPS = 12,
    LONGEST = 5000,
    PROCESSES = 3,
    AT_ONCE = 5,
    SCENARIOS = 64,
    FAILED = 10,
    OUTPUT = 1 << 15
};

typedef enum act { NOTHING, KILL, STOP, EXIT, COUNT, ERROR, SILENT, BUSY, TERM, TERM_ONE } act;
typedef enum mode {
    PER_RANK,
    GATHERED,
    WINDOWS,
    SYNC,
    LARGE,
    MODES
} mode; /* SYNC, LARGE: per rank; sums of the job within layers, or a reduction that takes its time */
typedef enum place { NOWHERE, JOIN, SETUP, FIRST, LOSS, BACKWARD, STEP, SAVE, IN_SAVE, EVALUATION, LEAVING, END, EARLY } place;
static const char *const act_names[] = { "nothing", "kill -9", "SIGSTOP", "exit(0)",        "other count",
                                         "error",   "silent",  "busy",    "SIGTERM to all", "SIGTERM to one" };
static const char *const place_names[] = { "nowhere", "join",    "setup",      "first step", "loss", "backward",     "in step",
                                           "save",    "in save", "evaluation", "exit",       "end",  "the beginning" };

static const char *const mode_names[] = { "per rank", "gathered", "windows", "synchronised batch norm", "large" };

/* What the processes of a job are told. delays: 1: pauses at random; 2: signals that interrupt what waits. */
typedef struct scenario {
    int gloo, processes, ranks, victim, act, place, mode, delays;
    uint32_t seed;
} scenario;

/* What a process leaves in the job's file, which all map. */
typedef struct record {
    int steps, failed, status, again, later, ended, pid;
    uint64_t hashes[LONGEST + 1], after;
    double ended_at;
    char error[1024];
} record;

typedef struct job_file {
    atomic_int training; /* processes that do */
    double acted_at;
    record of[PROCESSES];
} job_file;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_us(double us)
{
    double end = now() + us * 1e-6;
    for (double left; (left = end - now()) > 0;) /* signals may come */
        nanosleep(&(struct timespec){ .tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9) }, NULL);
}

static uint32_t random_number(uint32_t *state) { return (*state = *state * 1664525u + 1013904223u) >> 8; }

static job_file *map_job(const char *folder, bool make)
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

/* --- a process of a job ------------------------------------------------------------------------- */

static scenario my;
static int rank;
static job_file *job;
static record *own;
static trek_comm *comm;
static atomic_int acted;

static void at_exit_note(void) { own->ended_at = now(); }

/* What the victim does. OK: it goes on. */
static trek_status act_out(void)
{
    if (atomic_exchange(&acted, 1))
        return TREK_OK;
    if ((my.act == KILL || my.act == STOP) && my.place != STEP && my.place != IN_SAVE && my.place != JOIN && my.place != EARLY)
        pause_us(700000); /* so that the others have heard what it does */
    job->acted_at = now();
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
        trek_status status = trek_comm_all_reduce(comm, more, TREK_SUM);
        trek_tensor_release(more);
        return status;
    }
    case ERROR:
        return trek_fail(TREK_ERR_ARGUMENT, "it broke in process %d", rank);
    case BUSY:
        trek_comm_say(comm, "preprocess");
        pause_us(3.5e6);
        trek_comm_say(comm, NULL);
        break;
    case SILENT:
        pause_us(6e6);
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
    return outputs[0] ? TREK_OK : trek_status_get();
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

static trek_graph *build(trek_device device, void *arg)
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
    return trek_flow_build(trek_flow_from(trek_nn_sequential(7, modules)));
}

static trek_loader *loader_new(void)
{
    static float values[SAMPLES * IN];
    static int64_t labels[SAMPLES];
    for (int k = 0; k < SAMPLES * IN; k++)
        values[k] = test_number(9, (uint32_t)k);
    for (int k = 0; k < SAMPLES; k++)
        labels[k] = (k * 5 + 1) % CLASSES;
    const char *names[] = { "x", "label" };
    trek_tensor *tensors[] = { trek_tensor_from_data(values, trek_dims(SAMPLES, IN), TREK_F32, trek_cpu(0)),
                               trek_tensor_from_data(labels, trek_dims(SAMPLES), TREK_I64, trek_cpu(0)) };
    trek_loader *loader = trek_loader_new(trek_dataset_tensors(names, tensors, 2),
                                          &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true, .seed = 3, .device = test_device() });
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    return loader;
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

static uint64_t hash_of(trek_graph *graph)
{
    uint64_t hash = 14695981039346656037u;
    return trek_module_each_param(trek_graph_module(graph), hash_param, &hash) == TREK_OK ? hash : 0;
}

static trek_status set_up(trek_graph *graph, int ranks, trek_comm *among, double deadline)
{
    trek_device devices[2] = { test_device_of_rank(0), test_device_of_rank(1) };
    return trek_trainer_setup(
        graph, &(trek_trainer_opts){ .build_replica = build,
                                     .devices = devices,
                                     .ranks = ranks,
                                     .optimizer = trek_adam((trek_adam_opts){ .lr = 0.02 }),
                                     .max_grad_norm = 1,
                                     .bucket_bytes = my.mode == LARGE ? 65536 : 4096,
                                     .comm = among,
                                     .deadline_s = deadline,
                                     .max_anchor = my.mode == WINDOWS && among ? 2 : TREK_OFF,
                                     .anchor = 1 });
}

/* Notes the failure: what it leaves, and what comes of going on. */
static int fail_here(trek_graph *graph)
{
    own->status = (int)trek_status_get();
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
        trek_var *input = trek_to(trek_var_from(x[0]), test_device()), *label = trek_to(trek_var_from(x[1]), test_device());
        trek_var *loss = trek_cross_entropy(trek_graph_forward(graph, input), label);
        sum = loss ? trek_var_item(loss) : 0;
        status = trek_status_get();
    }
    trek_no_grad_end();
    trek_scope_end(scope);
    if (status == TREK_OK)
        status = trek_comm_all_reduce_scalar(comm, &sum, TREK_SUM);
    trek_comm_say(comm, NULL);
    return status == TREK_OK ? trek_graph_train(graph, true) : status;
}

static trek_status save(trek_graph *graph, trek_loader *loader, const char *folder)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder,
             my.place == SAVE && my.act == ERROR && rank == my.victim && own->steps == 8 ? "none/x" : "checkpoint");
    if (own->steps == 8) {
        trek_comm_say(comm, "save");
        trek_status status = my.act == ERROR ? TREK_OK : act_at(SAVE);
        if (my.act == ERROR && my.place == SAVE && rank == my.victim)
            job->acted_at = now();
        if (status != TREK_OK)
            return status;
        begin_thread(IN_SAVE);
    }
    return trek_checkpoint_save(graph, loader, path);
}

static trek_status make_pass(trek_graph *graph, trek_batch *batch)
{
    if (my.mode != GATHERED)
        return trek_graph_forward_batch(graph, batch) ? TREK_OK : trek_status_get();
    trek_var *y = trek_graph_forward(graph, trek_batch_get(batch, "x"));
    trek_var *loss = y ? loss_of(graph, y, batch, NULL) : NULL;
    return loss ? trek_graph_backward(graph, loss) : trek_status_get();
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
            if (status == TREK_OK)
                status = trek_graph_step(graph);
            else if (my.mode == GATHERED && my.act == ERROR)
                trek_graph_step(graph); /* goes on as if nothing were */
            if (status != TREK_OK)
                return status;
            own->hashes[own->steps + 1] = hash_of(graph);
            own->steps++;
            if (steps == STEPS && own->steps % 4 == 0)
                status = save(graph, loader, folder);
            if (status == TREK_OK && own->steps % 10 == 0)
                status = evaluate(graph, loader);
        }
        status = status == TREK_OK ? trek_status_get() : status;
        if (status != TREK_OK)
            return status;
    }
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
    if (my.act == COUNT && my.place == SETUP && rank == my.victim)
        job->acted_at = now();
    if (status == TREK_OK)
        status = trek_graph_set_loader(graph, loader, "x");
    if (status == TREK_OK && my.mode != GATHERED)
        status = trek_graph_set_loss(graph, loss_of, NULL);
    return status == TREK_OK ? set_up(graph, my.ranks, comm, deadline) : status;
}

static int take_part(const char *folder)
{
    int wider = my.place == SETUP && my.act == COUNT && rank == my.victim;
    double deadline = my.act == BUSY || my.act == SILENT ? 1.2 : my.place == JOIN || my.place == EARLY ? 5 : 20;
    begin_thread(EARLY);
    act_at(JOIN);
    comm = trek_comm_init(&(trek_comm_opts){ .engine = my.gloo ? "gloo" : "shared", .deadline_s = deadline });
    if (!comm)
        return fail_here(NULL);
    trek_seed(7);
    trek_graph *graph = build(test_device(), &wider);
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
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_comm_free(&comm);
    own->ended = 1;
    return code;
}

static int child(const char *text, const char *folder)
{
    alarm(45);
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

/* --- jobs, several at a time ------------------------------------------------------------------------ */

typedef struct running {
    const scenario *of;
    pid_t pid;
    bool signalled;
    double start, signal_at;
    char folder[64], text[OUTPUT];
    job_file *job;
    int code;
} running;

static const char *self, *launcher;
static char word[64];                                           /* in every process's command line */
/* Gloo adds in an order of its own. */
static uint64_t references[2][PROCESSES + 1][3][MODES][STEPS + 1]; /* [engine][processes][ranks][mode] */
static uint64_t long_reference[2][PROCESSES + 1][LONGEST + 1];

/* For sanitizers. */
static void add_option(const char *name, const char *option)
{
    char text[512];
    const char *before = getenv(name);
    snprintf(text, sizeof text, "%s%s%s", before ? before : "", before ? ":" : "", option);
    setenv(name, text, 1);
}

static void start(running *r, const scenario *s)
{
    char text[128], processes[16], path[128];
    memset(r, 0, sizeof *r);
    r->of = s;
    snprintf(r->folder, sizeof r->folder, "/tmp/trek-failures-XXXXXX");
    assert_non_null(mkdtemp(r->folder));
    r->job = map_job(r->folder, true);
    assert_non_null(r->job);
    snprintf(text, sizeof text, "%d,%d,%d,%d,%d,%d,%d,%d,%u", s->gloo, s->processes, s->ranks, s->victim, s->act, s->place,
             s->mode, s->delays, s->seed);
    snprintf(processes, sizeof processes, "%d", s->processes);
    snprintf(path, sizeof path, "%s/output", r->folder);
    r->start = now();
    fflush(NULL);
    r->pid = fork();
    if (r->pid != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int file = open(path, O_RDWR | O_CREAT | O_APPEND, 0600);
    dup2(file, 1);
    dup2(file, 2);
    setenv("TREK_TEST_CHILD", text, 1);
    setenv("TREK_TEST_FILE", r->folder, 1);
    setenv("TREK_THREADS", "1", 1);
    if (s->act == EXIT) { /* who exits in the middle leaves everything as it is */
        add_option("ASAN_OPTIONS", "detect_leaks=0");
        add_option("TSAN_OPTIONS", "report_thread_leaks=0");
    }
    /* those that have stopped are ended by the launcher, when the others have ended by themselves */
    execl(launcher, launcher, "-n", processes, "-g", s->act == STOP ? "2" : "15", self, word, (char *)NULL);
    _exit(127);
}

static void collect(running *r, int status)
{
    char path[128];
    r->pid = 0;
    r->code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    snprintf(path, sizeof path, "%s/output", r->folder);
    int file = open(path, O_RDONLY);
    ssize_t got = file >= 0 ? read(file, r->text, sizeof r->text - 1) : 0;
    r->text[got > 0 ? got : 0] = '\0';
    if (file >= 0)
        close(file);
}

/* SIGTERM at a random moment of the training. */
static void send_signal(running *r)
{
    const scenario *s = r->of;
    if ((s->act != TERM && s->act != TERM_ONE) || r->signalled || atomic_load(&r->job->training) < s->processes)
        return;
    uint32_t state = s->seed;
    if (r->signal_at == 0)
        r->signal_at = now() + random_number(&state) % 60000 * 1e-6;
    if (now() < r->signal_at)
        return;
    r->signalled = true;
    kill(s->act == TERM ? r->pid : r->job->of[s->victim].pid, SIGTERM);
}

static void clean(running *r)
{
    DIR *list = opendir(r->folder);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", r->folder, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    if (list)
        closedir(list);
    rmdir(r->folder);
    if (r->job)
        munmap(r->job, sizeof *r->job);
    r->job = NULL;
}

/* Runs them, a few at a time, and looks at each; returns how many went wrong. */
static int run_all(const scenario *list, int n, int at_once, bool (*look)(running *r))
{
    static running slots[AT_ONCE];
    int next = 0, wrong = 0, busy = 0;
    memset(slots, 0, sizeof slots);
    while (next < n || busy > 0) {
        for (int k = 0; k < at_once; k++) {
            running *r = &slots[k];
            int status;
            if (r->pid == 0 && next < n) {
                start(r, &list[next++]);
                busy++;
            }
            if (r->pid == 0)
                continue;
            send_signal(r);
            if (now() - r->start > 50)
                kill(r->pid, SIGKILL);
            if (waitpid(r->pid, &status, WNOHANG) != r->pid)
                continue;
            collect(r, status);
            busy--;
            if (!look(r)) {
                const scenario *s = r->of;
                wrong++;
                print_error("%s in %s: %s, %d processes of %d ranks, %s, victim %d, delays %d, seed %u; status %d after %.1f s; "
                            "it wrote:\n%s\n",
                            act_names[s->act], place_names[s->place], s->gloo ? "gloo" : "shared", s->processes, s->ranks,
                            mode_names[s->mode], s->victim, s->delays, s->seed, r->code, now() - r->start, r->text);
            }
            clean(r);
        }
        pause_us(2000);
    }
    return wrong;
}

static bool say_wrong(const running *r, int process, const char *what)
{
    const record *p = &r->job->of[process < 0 ? 0 : process];
    print_error("process %d: %s (steps %d, status %d, \"%s\")\n", process, what, p->steps, p->status, p->error);
    return false;
}

/* --- what is expected ------------------------------------------------------------------------------- */

/* Parameters after each step. Windows follow measured speeds: there it is what one process of this job had. */
static uint64_t *reference_of(const running *r)
{
    const scenario *s = r->of;
    if (s->mode == WINDOWS)
        return r->job->of[s->victim == 0].hashes;
    return s->act == TERM || s->act == TERM_ONE ? long_reference[s->gloo][s->processes]
        : references[s->gloo][s->processes][s->ranks][s->mode];
}

/* All went well: the same parameters in all processes after every step. */
static bool look_well(running *r)
{
    uint64_t *reference = reference_of(r);
    bool good = r->code == 0 ? true : say_wrong(r, -1, "the job failed");
    for (int p = 0; p < r->of->processes && good; p++) {
        const record *own_record = &r->job->of[p];
        if (!own_record->ended || own_record->steps != STEPS)
            return say_wrong(r, p, "did not end well");
        for (int k = 0; k <= STEPS; k++) {
            reference[k] = reference[k] ? reference[k] : own_record->hashes[k];
            if (own_record->hashes[k] == 0 || own_record->hashes[k] != reference[k])
                return say_wrong(r, p, "other parameters");
        }
    }
    return good;
}

/* "process 1" or "rank 1", also in a list. */
static bool names(const char *text, int process)
{
    char needle[32];
    static const char *const kinds[] = { "process %d", "rank %d", "ranks %d", "processes %d", ", %d", "processes 1, %d" };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        snprintf(needle, sizeof needle, kinds[k], process); /* NOLINT: a literal of the list */
        const char *at = strstr(text, needle);
        if (at && (at[strlen(needle)] < '0' || at[strlen(needle)] > '9'))
            return true;
    }
    return false;
}

/* The phase that the victim was in, as far as the others had time to hear of it. */
static const char *phase_of(const scenario *s)
{
    if (s->act != KILL && s->act != STOP)
        return s->act == ERROR && (s->place == LOSS || s->place == BACKWARD) ? "it broke in" : "";
    switch ((place)s->place) {
    case FIRST:
    case LOSS:
    case BACKWARD:
        return "backward";
    case SAVE:
        return "\"save\"";
    case EVALUATION:
        return "\"evaluate\"";
    default:
        return "";
    }
}

static bool check_survivor(running *r, int p)
{
    const scenario *s = r->of;
    const record *one = &r->job->of[p];
    if (!one->failed || !one->ended_at)
        return say_wrong(r, p, one->failed ? "did not end by itself" : "did not fail");
    if (one->status == TREK_OK || one->error[0] == '\0')
        return say_wrong(r, p, "no error");
    if (one->ended_at - r->job->acted_at > 10)
        return say_wrong(r, p, "took longer than 10 s");
    if (!names(one->error, s->victim))
        return say_wrong(r, p, "does not name the process");
    if (!strstr(one->error, phase_of(s)))
        return say_wrong(r, p, "does not name the phase");
    if (s->place == JOIN || s->place == SETUP || (s->place == EARLY && one->again == -1))
        return true;
    const uint64_t *reference = reference_of(r);
    if (one->after == 0 || one->after != one->hashes[one->steps] || one->after != reference[one->steps])
        return say_wrong(r, p, "parameters are not those of the last complete step");
    if (one->again == TREK_OK || one->later == TREK_OK)
        return say_wrong(r, p, "a step after the end was OK");
    return true;
}

/* Every process's last operation is in the output. */
static bool has_table(const running *r)
{
    const char *head = strstr(r->text, " processes has ended: ");
    bool good = head != NULL;
    for (int p = 0; p < r->of->processes && good; p++) {
        char needle[32];
        snprintf(needle, sizeof needle, "  process %d", p);
        good = strstr(head, needle) != NULL;
    }
    return good ? true : say_wrong(r, -1, "no table of the processes' last operations");
}

/* The checkpoint is a whole one, of a step after which there was one (or `steps`). */
static bool check_checkpoint(running *r, int steps)
{
    char path[128];
    snprintf(path, sizeof path, "%s/checkpoint", r->folder);
    my = (scenario){ .mode = r->of->mode, .victim = -1 };
    trek_graph *graph = build(test_device(), NULL);
    trek_loader *loader = loader_new();
    bool good = set_up(graph, 1, NULL, 0) == TREK_OK && trek_checkpoint_load(graph, loader, path) == TREK_OK;
    if (!good)
        print_error("%s\n", trek_error());
    trek_error_clear();
    int64_t done = good ? trek_graph_steps(graph) : -1;
    uint64_t hash = good ? hash_of(graph) : 0, expected = done >= 0 && done <= LONGEST ? reference_of(r)[done] : 1;
    good = good && (steps ? done == steps : done == 4 || done == 8 || done == 12) && (expected == 0 || hash == expected);
    if (steps && good)
        for (int p = 0; p < r->of->processes; p++)
            good = good && r->job->of[p].hashes[steps] == hash;
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    return good ? true : say_wrong(r, -1, "the checkpoint is not that of a step");
}

static bool look_failed(running *r)
{
    const scenario *s = r->of;
    bool good = true;
    for (int p = 0; p < s->processes && good; p++)
        if ((s->place == IN_SAVE || s->place == EARLY) && r->job->of[p].ended &&
            !r->job->of[p].failed) /* it came after the end */
            good = r->job->of[p].steps == STEPS || say_wrong(r, p, "did not fail");
        else if (p != s->victim || s->act == COUNT)
            good = check_survivor(r, p);
    if (good && (s->act == KILL ? r->code != 137 : r->code < FAILED || r->code >= FAILED + s->processes))
        good = say_wrong(r, -1, "trek-run ended with another status");
    /* an exit unloads a GPU's driver under the step, whose own error may reach the others first */
    bool by_error = s->act == ERROR || (s->act == EXIT && !test_on_cpu());
    if (good && s->place != JOIN && s->place != SETUP && s->place != EARLY && !by_error)
        good = has_table(r);
    if (good && (s->place == SAVE || s->place == IN_SAVE))
        good = check_checkpoint(r, 0);
    return good;
}

/* The victim has died at the very end: nobody needed it any more. */
static bool look_died_at_end(running *r)
{
    bool good = r->code == 137 ? true : say_wrong(r, -1, "trek-run ended with another status");
    for (int p = 0; p < r->of->processes && good; p++)
        good = p == r->of->victim || (r->job->of[p].ended && !r->job->of[p].failed) ? true : say_wrong(r, p, "did not end well");
    return good;
}

static bool look_stopped(running *r)
{
    int steps = r->job->of[0].steps;
    if (r->code != 0)
        return say_wrong(r, -1, "the job failed");
    for (int p = 0; p < r->of->processes; p++)
        if (!r->job->of[p].ended || r->job->of[p].steps != steps)
            return say_wrong(r, p, "stopped at another step");
    if (steps < 1 || steps >= LONGEST)
        return say_wrong(r, 0, "was not asked to stop in the middle");
    for (int k = 0; k <= steps; k++) {
        uint64_t *expected = &reference_of(r)[k];
        *expected = *expected ? *expected : r->job->of[0].hashes[k];
        if (*expected != r->job->of[0].hashes[k])
            return say_wrong(r, 0, "other parameters");
    }
    return check_checkpoint(r, steps);
}

/* --- the tests ---------------------------------------------------------------------------------------- */

static uint32_t seed;

static void run_expecting(const scenario *list, int n, bool (*look)(running *r))
{
    assert_int_equal(run_all(list, n, 3, look), 0);
}

/* Engines, processes, ranks and victims in turn. */
static scenario nth(int k, act what, place where)
{
    static char why[256];
    static int with_gloo = -1;
    if (with_gloo < 0 && !(with_gloo = trek_comm_gloo_there(why, sizeof why)))
        print_message("shared memory only: %s\n", why);
    scenario s = { .gloo = with_gloo & k & 1,
                   .processes = 2 + (k >> 1 & 1),
                   .ranks = 1 + (k % 7 >= 5),
                   .mode = k % MODES,
                   .act = what,
                   .place = where,
                   .seed = seed + (uint32_t)k * 7919u };
    s.victim = k / 3 % s.processes;
    return s;
}

static void test_undisturbed(void **state)
{
    scenario list[2 * 2 * 2 * MODES];
    int n = 0;
    (void)state;
    for (int processes = 2; processes <= 3; processes++)
        for (int ranks = 1; ranks <= 2; ranks++)
            for (int how = 0; how < MODES; how++)
                list[n++] = (scenario){ .processes = processes, .ranks = ranks, .mode = how, .victim = -1 };
    for (int k = 0, shared_ones = n; k < shared_ones; k++) {
        list[n] = list[k];
        list[n].gloo = nth(1, NOTHING, NOWHERE).gloo;
        n += list[n].gloo;
    }
    run_expecting(list, n, look_well);
}

static void test_delays(void **state)
{
    scenario list[12];
    (void)state;
    for (int k = 0; k < 12; k++) {
        list[k] = nth(k, NOTHING, NOWHERE);
        list[k].delays = 1 + (k & 2);
        list[k].victim = -1;
    }
    run_expecting(list, 12, look_well);
}

static void test_stopped_and_silent(void **state)
{
    static const place places[] = { JOIN, SETUP, FIRST, BACKWARD, STEP, SAVE, EVALUATION, LEAVING };
    scenario list[SCENARIOS];
    int n = 0;
    (void)state;
    for (size_t k = 0; k < sizeof places / sizeof *places; k++, n++)
        list[n] = nth(n, STOP, places[k]);
    list[n] = nth(n, SILENT, FIRST), n++;
    list[n] = nth(n, SILENT, BACKWARD), n++;
    assert_int_equal(run_all(list, n, AT_ONCE, look_failed), 0); /* they wait, most of the time */
}

static void test_killed(void **state)
{
    static const place places[] = { JOIN, SETUP, FIRST, LOSS, BACKWARD, SAVE, EVALUATION, LEAVING };
    scenario list[SCENARIOS];
    int n = 0;
    (void)state;
    for (size_t k = 0; k < sizeof places / sizeof *places; k++, n++)
        list[n] = nth(n + 1, KILL, places[k]);
    for (int k = 0; k < 12; k++, n++)
        list[n] = nth(n, KILL, STEP);
    for (int k = 0; k < 6; k++, n++)
        list[n] = nth(n, KILL, EARLY);
    for (int k = 0; k < 4; k++, n++) {
        list[n] = nth(n, KILL, IN_SAVE);
        list[n].victim = 0; /* which writes */
    }
    run_expecting(list, n, look_failed);
}

static void test_killed_at_end(void **state)
{
    (void)state;
    scenario list[3] = { nth(0, KILL, END), nth(1, KILL, END), nth(4, KILL, END) };
    run_expecting(list, 3, look_died_at_end);
}

static void test_left_and_broken(void **state)
{
    static const place left[] = { JOIN, SETUP, FIRST, LOSS, BACKWARD, STEP, STEP, STEP, SAVE, EVALUATION, LEAVING };
    static const place counts[] = { SETUP, FIRST, SAVE, EVALUATION, LEAVING };
    static const place broken[] = { SETUP, LOSS, LOSS, LOSS, BACKWARD, BACKWARD, BACKWARD, EVALUATION };
    scenario list[SCENARIOS];
    int n = 0;
    (void)state;
    for (size_t k = 0; k < sizeof left / sizeof *left; k++, n++)
        list[n] = nth(n + 2, EXIT, left[k]);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++, n++) {
        list[n] = nth(n, COUNT, counts[k]);
        list[n].ranks = 1; /* a wrong replica is found before the other processes are asked */
    }
    for (size_t k = 0; k < sizeof broken / sizeof *broken; k++, n++)
        list[n] = nth(n, ERROR, broken[k]);
    list[n] = nth(n, ERROR, SAVE);
    list[n++].victim = 0; /* which writes */
    run_expecting(list, n, look_failed);
}

static void test_busy(void **state)
{
    (void)state;
    scenario list[3] = { nth(0, BUSY, FIRST), nth(1, BUSY, LEAVING), nth(3, BUSY, SETUP) };
    run_expecting(list, 3, look_well);
}

static void test_asked_to_stop(void **state)
{
    scenario list[8];
    (void)state;
    for (int k = 0; k < 8; k++) {
        list[k] = nth(k, k & 4 ? TERM_ONE : TERM, NOWHERE);
        list[k].ranks = 1;
        list[k].mode = PER_RANK;
        list[k].delays = k & 1;
    }
    run_expecting(list, 8, look_stopped);
}

/* --- nothing is left behind --------------------------------------------------------------------------- */

static int count_running(void)
{
    DIR *dir = opendir("/proc");
    int count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[300], line[1024];
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        int pid = atoi(entry->d_name), fd = pid > 0 && pid != getpid() ? open(path, O_RDONLY) : -1;
        ssize_t length = fd >= 0 ? read(fd, line, sizeof line) : 0;
        if (fd >= 0)
            close(fd);
        count += length > 0 && memmem(line, (size_t)length, word, strlen(word)) != NULL;
    }
    if (dir)
        closedir(dir);
    return count;
}

/* Those of trek's user in /dev/shm, but not what an MPI job beside this test keeps there. */
static int list_shared(char names_of[][256], int most)
{
    DIR *dir = opendir("/dev/shm");
    int n = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && strncmp(entry->d_name, "vader_segment", 13) != 0 && n < most)
            snprintf(names_of[n++], 256, "%s", entry->d_name);
    if (dir)
        closedir(dir);
    return n;
}

static char shared_before[256][256];
static int shared_count;

static void test_nothing_left(void **state)
{
    static char after[256][256];
    (void)state;
    for (double end = now() + 2; count_running() > 0 && now() < end;)
        pause_us(20000);
    assert_int_equal(count_running(), 0);
    int n = list_shared(after, 256);
    for (int k = 0; k < n; k++) {
        bool was = false;
        for (int j = 0; j < shared_count && !was; j++)
            was = strcmp(after[k], shared_before[j]) == 0;
        if (!was)
            fail_msg("/dev/shm/%s was left behind", after[k]);
    }
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

int main(int count, char **words)
{
    static char path[4096];
    const char *build_folder = getenv("TREK_TEST_BUILD"), *text = getenv("TREK_TEST_CHILD"), *chosen = getenv("TREK_TEST_SEED");
    (void)count;
    self = words[0];
    if (text)
        return child(text, getenv("TREK_TEST_FILE"));
    seed = chosen ? (uint32_t)strtoul(chosen, NULL, 10) : 1;
    snprintf(word, sizeof word, "failures-of-%d", (int)getpid());
    snprintf(path, sizeof path, "%s/tools/trek-run", build_folder ? build_folder : ".");
    launcher = path;
    if (access(path, X_OK) != 0) {
        printf("%s is not there: TREK_TEST_BUILD tells the build's folder\n", path);
        return 77;
    }
    alarm(280);
    shared_count = list_shared(shared_before, 256);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_undisturbed),   cmocka_unit_test(test_delays),          cmocka_unit_test(test_killed),
        cmocka_unit_test(test_killed_at_end), cmocka_unit_test(test_left_and_broken), cmocka_unit_test(test_stopped_and_silent),
        cmocka_unit_test(test_busy),          cmocka_unit_test(test_asked_to_stop),   cmocka_unit_test(test_nothing_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
