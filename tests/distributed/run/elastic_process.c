/* SPDX-License-Identifier: Apache-2.0 */
/* What a process of an elastic run trains, and when it dies, waits, or comes. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader_position.h"
#include "distributed/comm/comm_internal.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/comm/init_internal.h"
#include "distributed/run.h"
#include "distributed/run/run_internal.h"
#include "distributed/run_progress.h"
#include "distributed/stepper.h"
#include "graph/flow.h"
#include "graph/observe.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/state_tensors.h"
#include "tensor/devices.h"
#include "tensor/trace.h"
#include "tests/distributed/run/elastic.h"
#include "tests/support/left.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* --- what is trained --------------------------------------------------------------------------------------- */

static trek_dtype dtype = TREK_F64; /* of the parameters; f32, as an outer optimizer has them: then inputs are cast */
bool plain, mixed;

static void enter(const char *name);

static const part *mine;

trek_graph *build(trek_device device, void *arg)
{
    if (mine)
        printf("built.\n"); /* what follows is not what was tried before */
    (void)arg;
    enter("build");
    int hidden = mine && strstr(mine->detail, "other-model") ? HIDDEN + 1 : HIDDEN;
    trek_linear_opts first = { .in = IN, .out = hidden, .device = device, .dtype = dtype };
    trek_linear_opts last = { .in = hidden, .out = 1, .device = device, .dtype = dtype };
    trek_batch_norm_opts norm = { .features = hidden, .device = device, .dtype = dtype };
    trek_flow *flow = trek_flow_from(trek_nn_linear_with(&first));
    if (!plain)
        trek_flow_through(flow, trek_nn_batch_norm1d_with(&norm));
    trek_flow_through(flow, trek_nn_dropout(0.3));
    trek_flow_through(flow, trek_nn_linear_with(&last));
    return trek_flow_build(flow);
}

static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch)
{
    if (!output)
        output = trek_graph_forward(graph, trek_cast(trek_batch_get(batch, "x"), dtype));
    trek_var *error = trek_sub(output, trek_batch_get(batch, "target"));
    return trek_mean(trek_mul(error, error), trek_dims_all(), false);
}

double number_of_state(trek_state *state)
{
    double number = 0;
    for (int k = 0; k < trek_state_count(state); k++) {
        double *values = test_read(trek_state_tensor(state, k));
        for (int64_t i = 0; i < trek_tensor_numel(trek_state_tensor(state, k)); i++)
            number = number * 1.01 + values[i];
        free(values);
    }
    return number;
}

/* --- a process ------------------------------------------------------------------------------------------------ */

static trek_graph *first; /* rank 0's, which counts steps */
static bool spared;       /* what is told of a death means another one */

/* "at=reduce:3": whether it is that word's turn for the third time. Spaces are "_". */
static bool is_due(const char *name)
{
    static atomic_int times;
    char word[64];
    snprintf(word, sizeof word, "at=%s:", name);
    for (char *c = word; *c; c++)
        *c = *c == ' ' ? '_' : *c;
    const char *at = mine && !spared ? strstr(mine->detail, word) : NULL;
    return at && atomic_fetch_add(&times, 1) == atoi(at + strlen(word));
}

/* Files in the folder of "in=" tell processes of each other: "dead.1", "here.3". Written, and looked for. */
static char *name_sign(char *path, size_t size, const char *what, int number)
{
    const char *folder = strstr(mine->detail, "in=");
    snprintf(path, size, "%.*s/%s.%d", folder ? (int)strcspn(folder + 3, ",") : 0, folder ? folder + 3 : "", what, number);
    return path;
}

static void give_sign(const char *what, int number)
{
    char path[128];
    FILE *file = mine && strstr(mine->detail, "in=") ? fopen(name_sign(path, sizeof path, what, number), "w") : NULL;
    if (file)
        fclose(file);
}

static void await_sign(const char *what, int number)
{
    char path[128];
    name_sign(path, sizeof path, what, number);
    for (double since = 0; access(path, F_OK) != 0 && test_wait(&since);)
        continue;
}

static _Atomic(trek_run *) running;

/* Waits until the job knows of all that have come: they have joined, or the one that listens has counted them. */
static void await_counted(trek_graph *graph, int world)
{
    char path[128];
    name_sign(path, sizeof path, "counted", 0);
    for (double since = 0; access(path, F_OK) != 0 && test_wait(&since);) {
        trek_regroup *regroup = atomic_load(&running) ? trek_run_elastic_regroup(atomic_load(&running)) : NULL;
        if (trek_graph_world_size(graph) + (regroup ? trek_regroup_joiners(regroup, trek_graph_job(graph)->comm) : 0) >= world)
            give_sign("counted", 0);
    }
}

static void die(void)
{
    give_sign("dead", mine->process);
    if (strstr(mine->detail, "join"))
        give_sign("here", mine->process);
    kill(getpid(), SIGKILL);
}

static void enter(const char *name)
{
    if (is_due(name))
        die();
}

static void span(const char *name, int rank, int64_t start, int64_t end, int64_t detail, void *arg)
{
}

static void event(const char *name, int rank, int64_t at, double value, void *arg)
{
}

trek_var *train_step(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    if (mine) {
        char line[512];
        size_t used = (size_t)snprintf(line, sizeof line, "saw %lld %d", (long long)trek_graph_steps(first),
                                       trek_graph_world_size(first));
        for (int64_t k = 0; k < trek_batch_size(batch); k++)
            used += (size_t)snprintf(line + used, sizeof line - used, " %lld", (long long)trek_batch_indices(batch)[k]);
        printf("%s.\n", line);
        if (strstr(mine->detail, "bad-loss") && trek_graph_steps(first) == 5)
            return NULL;
        enter("loss");
    }
    trek_record_sum("count", (double)trek_batch_size(batch));
    return loss_of(graph, output, batch);
}

static trek_var *evaluate(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    enter("evaluation");
    return loss_of(graph, output, batch);
}

static trek_status on_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    first = graph;
    enter("epoch");
    if (mine && epoch == 2) /* "hold=34": until these are there; "until=3": or have ended */
        for (const char *at = strstr(mine->detail, "hold="); at && at[5] >= '0' && at[5] <= '9'; at++)
            await_sign("here", at[5] - '0');
    if (mine && epoch == 2 && strstr(mine->detail, "launched") && strstr(mine->detail, "hold="))
        await_counted(graph, mine->processes);
    if (mine && epoch == 2 && strstr(mine->detail, "all=")) /* "all=3": until the job has so many, with those that wait */
        await_counted(graph, atoi(strstr(mine->detail, "all=") + 4));
    if (mine && epoch == 2 && strstr(mine->detail, "until="))
        await_sign("over", atoi(strstr(mine->detail, "until=") + 6));
    return TREK_OK;
}

static trek_status on_metrics(const trek_epoch_metrics *metrics, void *arg)
{
    enter("metrics");
    return TREK_OK;
}

static trek_status on_checkpoint(trek_graph *graph, int64_t epoch, const char *path, void *arg)
{
    enter("checkpoint");
    return TREK_OK;
}

static void *die_later(void *arg)
{
    long us = atol(strstr(mine->detail, "us=") + 3);
    nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000 }, NULL);
    die();
    return NULL;
}

const trek_device *elastic_devices(int first, int ranks)
{
    static trek_device devices[PROCESSES * 2];
    for (int r = 0; r < ranks && !test_on_cpu(); r++)
        devices[r] = mixed && (first + r) % 2 ? trek_cpu(0) : trek_cuda((first + r) % trek_device_count(TREK_CUDA));
    return test_on_cpu() ? NULL : devices;
}

static trek_run_opts opts_of(const part *me, trek_dataset *data)
{
    trek_run_opts o = { .build_model = build, .train_step = train_step, .dataset = data, .evaluation = data,
                        .evaluate = evaluate, .input = "x", .optimizer = training_adam(), .batch_size = BATCH, .shuffle = true,
                        .epochs = EPOCHS, .seed = 5, .on_epoch = on_epoch, .on_metrics = on_metrics };
    const char *least = strstr(me->detail, "least="), *folder = strstr(me->detail, "save=");
    o.min_processes = least ? atoi(least + 6) : 1;
    o.trainer.ranks = strstr(me->detail, "two") ? 2 : 1;
    o.trainer.devices = elastic_devices(me->process * o.trainer.ranks, o.trainer.ranks);
    if (strstr(me->detail, "average"))
        o.trainer.average = TREK_AVERAGE_PARAMETERS;
    if (mixed && !strstr(me->detail, "cadence")) /* otherwise devices that differ run windows */
        o.trainer.max_anchor = TREK_OFF;
    if (strstr(me->detail, "cadence")) {
        o.policy = TREK_POLICY_CADENCE;
        o.batch_size = 4;
        o.trainer.anchor = o.trainer.max_anchor = 2;
    }
    if (strstr(me->detail, "host"))
        o.transport = TREK_TRANSPORT_HOST;
    if (strstr(me->detail, "outer")) {
        static const trek_outer_opts eight_bits = { .bits = 8 };
        dtype = TREK_F32;
        o.input = NULL;
        o.outer = &eight_bits;
    }
    if (folder) {
        o.checkpoint_folder = folder + 5; /* the last word */
        o.on_checkpoint = on_checkpoint;
    }
    return o;
}

static int number_in(const part *me, const char *name, int unset)
{
    const char *at = strstr(me->detail, name);
    return at ? atoi(at + strlen(name)) : unset;
}

/* As a launcher says it. "as=1,of=3": the process plays another one. */
static void set_environment(const part *me)
{
    char number[3][16];
    snprintf(number[0], sizeof number[0], "%d", number_in(me, "as=", me->process));
    snprintf(number[1], sizeof number[1], "%d", number_in(me, "of=", me->processes));
    snprintf(number[2], sizeof number[2], "%d", me->port);
    bool newcomer = strstr(me->detail, "join,new") != NULL;
    if (!newcomer)
        setenv("TREK_RANK", number[0], 1);
    if (!newcomer)
        setenv("TREK_WORLD_SIZE", number[1], 1);
    setenv("TREK_ADDRESS", "127.0.0.1", 1);
    setenv("TREK_PORT", number[2], 1);
    setenv("TREK_TOKEN", strstr(me->detail, "wrong-token") ? "mellon" : "sesame", 1);
    setenv("TREK_JOIN", newcomer ? "new" : strstr(me->detail, "join") ? "1" : "0", 1);
    setenv("TREK_JOIN_SECONDS", strstr(me->detail, "late") ? "1" : "10", 1);
}

/* A process that is started again, when the one whose number it has is dead (alive: another one). */
static void await_turn(const part *me)
{
    if (!strstr(me->detail, "join,new"))
        await_sign("dead", number_in(me, strstr(me->detail, "alive") ? "alive=" : "as=", 0));
    nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL); /* it is about to be */
    if (strstr(me->detail, "late"))
        await_sign("over", 0);
}

static int count_sockets(void)
{
    char path[64], target[64];
    int n = 0;
    for (int fd = 3; fd < 64; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target - 1);
        n += length > 6 && strncmp(target, "socket", 6) == 0;
    }
    return n;
}

/* It waits for the others: it has a rendezvous, and a connection to them. */
static void say_here(const part *me, trek_run *run)
{
    trek_run_progress now = { .running = true };
    for (int steady = 0; steady < 10 && now.running && trek_run_look(run, &now) == TREK_OK;) {
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
        steady = count_sockets() < 2 ? 0 : steady + 1;
    }
    give_sign("here", me->process);
    if (strstr(me->detail, "dies-waiting"))
        kill(getpid(), SIGKILL);
}

/* Takes the epochs of a run, or what kept it from beginning, and writes them down. Returns whether it got to the end. */
static bool follow(trek_run *run, bool joins)
{
    trek_epoch_metrics m;
    int epochs = 0;
    while (run && trek_run_next(run, &m)) {
        printf("epoch %d ranks %d steps %d samples %d count %g loss %g evaluation %.9g\n", (int)m.epoch, m.ranks, (int)m.steps,
               (int)m.samples, trek_metrics_get(&m, "count"), m.loss, m.evaluation_loss);
        epochs++;
    }
    trek_state *final = run ? trek_run_join(run) : NULL;
    bool good = final && (joins || epochs == EPOCHS);
    give_sign("over", mine->process);
    if (final)
        printf("final %d epochs number %.17g\n", epochs, number_of_state(final));
    else
        printf("%s: %s\n", trek_status_name(trek_error_status()), trek_error());
    trek_error_clear();
    trek_state_free(&final);
    return good;
}

/* The first group's engine. With "gave=7" a process dies when all have met for the eighth call on devices, before its own has
 * been given anything: the devices of the others wait for it. */
static trek_comm_engine counted;
static trek_status (*run_really)(trek_comm *comm, const trek_comm_call *call);

static trek_status run_counted(trek_comm *comm, const trek_comm_call *call)
{
    static int calls;
    trek_status status = run_really(comm, call);
    if (call->on_device && status == TREK_OK && calls++ == number_in(mine, "gave=", -1))
        die();
    return status;
}

static void count_calls(trek_comm *comm)
{
    counted = *comm->engine;
    run_really = counted.run;
    counted.run = run_counted;
    comm->engine = &counted;
}

static int play(const part *me)
{
    static const trek_trace_sink sink = { .span = span, .event = event, .enter = enter };
    mine = me;
    mixed = strstr(me->detail, "mixed") != NULL;
    plain = mixed || strstr(me->detail, "two") || strstr(me->detail, "cadence") || strstr(me->detail, "plain");
    int threads = left_threads() + left_by_engine(processes_engine());
    pthread_t killer;
    bool launched = strstr(me->detail, "launched") != NULL, again = getenv("TREK_JOIN") != NULL;
    bool joins = launched ? again : strstr(me->detail, "join") != NULL;
    int number = launched ? atoi(getenv("TREK_RANK")) : me->process;
    spared = launched && (again || number != number_in(me, "victim=", 1));
    if (launched && number == number_in(me, "slow=", -1)) /* when the one that dies has come */
        await_sign("dead", 0);
    if (launched && again && strstr(me->detail, "late"))
        await_sign("over", 0);
    enter("start");
    if (strstr(me->detail, "joined") && !spared) { /* dies when all have joined, and none knows where the others are */
        if (!trek_comm_init_of_left(NULL, 1))
            printf("%s\n", trek_error());
        die();
    }
    if (joins && !launched)
        await_turn(me);
    bool by_environment = joins || launched || strstr(me->detail, "env") != NULL;
    if (by_environment && !launched)
        set_environment(me);
    trek_comm *comm = by_environment ? (strstr(me->detail, "own-comm") ? trek_comm_init(NULL) : NULL)
        : trek_comm_init(&(trek_comm_opts){ .engine = processes_engine(), .rank = me->process,
                                                        .world_size = me->processes, .address = me->address, .port = me->port,
                                                        .token = "sesame", .deadline_s = 15 });
    trek_dataset *data = training_dataset();
    trek_run_opts o = opts_of(me, data);
    if (comm)
        count_calls(comm);
    o.trainer.comm = comm;
    atomic_store(&trek_trace_now, &sink);
    if (strstr(me->detail, "us=") && !spared && pthread_create(&killer, NULL, die_later, NULL) == 0)
        pthread_detach(killer);
    trek_run *run = comm || (by_environment && trek_error_status() == TREK_OK) ? trek_trainer_run(&o) : NULL;
    atomic_store(&running, run);
    if (joins && run)
        say_here(me, run);
    bool good = follow(run, joins);
    trek_dataset_free(&data);
    trek_comm_free(&comm);
    atomic_store(&trek_trace_now, NULL);
    if (test_on_cpu() && !strstr(me->detail, "us=") && left_threads_settle(threads) > threads)
        printf("threads are left\n");
    return good ? 0 : 1;
}

static bool engine_is_there(void)
{
    char why[256];
    if (strcmp(processes_engine(), "gloo") != 0 || trek_comm_gloo_there(why, sizeof why))
        return true;
    printf("skipped: %s\n", why);
    return false;
}

bool elastic_begins(int *status)
{
    part me;
    bool plays = processes_part(&me), begins = !plays && engine_is_there();
    *status = plays ? play(&me) : 77;
    return begins;
}

bool elastic_has_all(void) { return strcmp(processes_engine(), "gloo") != 0 || test_long(); }
