/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of several processes that lose some of them, and get some back: whoever dies or comes, every sample is seen once, and all
 * end with the bits of a run that was resumed on so many ranks at that step. Deaths and returns at any moment are simulated
 * (tests/simulation/scenario_run.c). */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader_position.h"
#include "distributed/checkpoint.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/comm/init_internal.h"
#include "distributed/run.h"
#include "distributed/run/run_internal.h"
#include "distributed/run_progress.h"
#include "graph/flow.h"
#include "graph/observe.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "tensor/trace.h"
#include "tests/support/left.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/training.h"
#include "tests/support/unit.h"

enum { EPOCHS = 5, BATCH = 16, STEPS = (SAMPLES + BATCH - 1) / BATCH };

/* --- what is trained --------------------------------------------------------------------------------------- */

static trek_dtype dtype = TREK_F64; /* of the parameters; f32, as an outer optimizer has them: then inputs are cast */
static bool plain; /* without batch norm, whose ranks see their own parts: those of two processes of two are not those of four */

static void enter(const char *name);

static const part *mine;

static trek_graph *build(trek_device device, void *arg)
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

static double number_of_state(trek_state *state)
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

/* Waits until the job knows of a process that has come: it has joined, or somebody has counted it. */
static void await_counted(trek_graph *graph, int world)
{
    char path[128];
    name_sign(path, sizeof path, "counted", 0);
    for (double since = 0; access(path, F_OK) != 0 && trek_graph_world_size(graph) < world && test_wait(&since);) {
        trek_regroup *regroup = atomic_load(&running) ? trek_run_elastic_regroup(atomic_load(&running)) : NULL;
        if (regroup && trek_regroup_joiners(regroup) > 0)
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

static trek_var *train_step(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
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

static trek_run_opts opts_of(const part *me, trek_dataset *data)
{
    trek_run_opts o = { .build_model = build, .train_step = train_step, .dataset = data, .evaluation = data,
                        .evaluate = evaluate, .input = "x", .optimizer = training_adam(), .batch_size = BATCH, .shuffle = true,
                        .epochs = EPOCHS, .seed = 5, .on_epoch = on_epoch, .on_metrics = on_metrics };
    const char *least = strstr(me->detail, "least="), *folder = strstr(me->detail, "save=");
    o.min_processes = least ? atoi(least + 6) : 1;
    o.trainer.ranks = strstr(me->detail, "two") ? 2 : 1;
    if (strstr(me->detail, "average"))
        o.trainer.average = TREK_AVERAGE_PARAMETERS;
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

static int play(const part *me)
{
    static const trek_trace_sink sink = { .span = span, .event = event, .enter = enter };
    mine = me;
    plain = strstr(me->detail, "two") || strstr(me->detail, "cadence");
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
    o.trainer.comm = comm;
    atomic_store(&trek_trace_now, &sink);
    if (strstr(me->detail, "us=") && !spared && pthread_create(&killer, NULL, die_later, NULL) == 0)
        pthread_detach(killer);
    trek_run *run = comm || (by_environment && trek_error_status() == TREK_OK) ? trek_trainer_run(&o) : NULL;
    atomic_store(&running, run);
    if (joins && run)
        say_here(me, run);
    trek_epoch_metrics m;
    int epochs = 0;
    while (run && trek_run_next(run, &m)) {
        printf("epoch %d ranks %d steps %d samples %d count %g loss %g evaluation %.9g\n", (int)m.epoch, m.ranks, (int)m.steps,
               (int)m.samples, trek_metrics_get(&m, "count"), m.loss, m.evaluation_loss);
        epochs++;
    }
    trek_state *final = run ? trek_run_join(run) : NULL;
    bool good = final && (joins || epochs == EPOCHS);
    give_sign("over", me->process);
    if (final)
        printf("final %d epochs number %.17g\n", epochs, number_of_state(final));
    else
        printf("%s: %s\n", trek_status_name(trek_error_status()), trek_error());
    trek_error_clear();
    trek_state_free(&final);
    trek_dataset_free(&data);
    trek_comm_free(&comm);
    atomic_store(&trek_trace_now, NULL);
    if (!strstr(me->detail, "us=") && left_threads_settle(threads) > threads)
        printf("threads are left\n");
    return good ? 0 : 1;
}

/* --- what is expected ----------------------------------------------------------------------------------------------- */

/* How the ranks of a job went: `ranks[s]` made step s, and its samples. */
typedef struct history {
    int ranks[EPOCHS * STEPS];
    int seen[EPOCHS * STEPS][SAMPLES];
    int built[EPOCHS * STEPS]; /* by which of its models a process tried it last */
} history;

/* One line of a rank, of a step that so many ranks tried. What its process tried with the model before was dropped. */
static void take_line(history *own, const char *line, int built, int *last)
{
    int step, ranks, used;
    if (sscanf(line, "saw %d %d%n", &step, &ranks, &used) != 2 || step < 0 || step >= EPOCHS * STEPS)
        return;
    long samples[SAMPLES];
    int n = 0;
    char *end;
    for (const char *at = line + used; *at == ' ' && n < SAMPLES; at = end)
        samples[n++] = strtol(at, &end, 10);
    if (own->built[step] != built)
        memset(own->seen[step], 0, sizeof own->seen[step]);
    own->built[step] = built;
    for (int k = 0; k < n; k++)
        own->seen[step][samples[k] % SAMPLES] = 1;
    own->ranks[step] = ranks;
    *last = step;
}

/* What a process saw of a step, into what all saw. More ranks than the fewest: that try was dropped. A process that wrote nothing
 * later may have died in the step: it is unsure whether that was tried again, by as many where a joiner has come. Then others
 * have seen its samples. */
static void merge_step(history *all, const history *own, int step, bool sure)
{
    if (own->ranks[step] == 0)
        return;
    if (all->ranks[step] == 0 || (sure && own->ranks[step] < all->ranks[step])) {
        all->ranks[step] = own->ranks[step];
        memset(all->seen[step], 0, sizeof all->seen[step]);
    }
    for (int i = 0; i < SAMPLES && own->ranks[step] == all->ranks[step]; i++)
        all->seen[step][i] += own->seen[step][i] && (sure || all->seen[step][i] == 0);
}

static history read_history(const world *w)
{
    static history own[PROCESSES];
    int last[PROCESSES];
    history all = { .ranks = { 0 } };
    for (int p = 0; p < w->n; p++) {
        memset(&own[p], 0, sizeof own[p]);
        last[p] = -1;
        int built = 0;
        for (const char *at = w->text[p], *end; (end = strchr(at, '\n')); at = end + 1) { /* those that were written whole */
            built += strncmp(at, "built.", 6) == 0;
            if (strncmp(at, "saw ", 4) == 0 && end[-1] == '.')
                take_line(&own[p], at, built, &last[p]);
        }
        if (strstr(w->text[p], "final "))
            last[p] = EPOCHS * STEPS;
    }
    for (int unsure = 0; unsure < 2; unsure++)
        for (int p = 0; p < w->n; p++)
            for (int step = 0; step < EPOCHS * STEPS; step++)
                if ((step >= last[p]) == unsure)
                    merge_step(&all, &own[p], step, !unsure);
    return all;
}

/* A step that as many tried again, a joiner in the place of one that had died, is read once, whoever had which samples; a line
 * that was cut is not. */
static void test_tries(void **state)
{
    static world w = { .n = 4, .text = { "built.\nsaw 0 3 1 2.\nbuilt.\nsaw 0 3 1 2.\nsaw 1 3 7.\n",
                                         "built.\nsaw 0 3 5 6.\nbuilt.\nsaw 0 3 3 4.\nsaw 1 3 8.\n",
                                         "built.\nsaw 0 3 3 4.\n", "built.\nsaw 0 3 5 6.\nsaw 1 3 9" } };
    history h = read_history(&w);
    assert_true(h.ranks[0] == 3 && h.ranks[1] == 3);
    for (int sample = 1; sample < 10; sample++)
        assert_int_equal(h.seen[sample > 6][sample], sample < 9);
}

static bool all_seen_once(const history *h)
{
    bool good = true;
    for (int e = 0; e < EPOCHS; e++)
        for (int i = 0; i < SAMPLES; i++) {
            int times = 0;
            for (int s = e * STEPS; s < (e + 1) * STEPS; s++)
                times += h->seen[s][i];
            if (times != 1 && good)
                fprintf(stderr, "ERROR: sample %d was seen %d times in epoch %d\n", i, times, e);
            good = good && times == 1;
        }
    return good;
}

static trek_graph *set_up(int ranks, trek_loader *loader, bool averages)
{
    trek_seed(5);
    trek_graph *graph = build(trek_cpu(0), NULL);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = build, .ranks = ranks, .optimizer = training_adam(), .max_anchor = TREK_OFF,
        .average = averages ? TREK_AVERAGE_PARAMETERS : TREK_AVERAGE_GRADIENTS }), TREK_OK);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, train_step, NULL);
    trek_graph_train(graph, true);
    return graph;
}

/* One process with as many ranks as there were processes, which saves and is resumed on fewer where they became fewer. */
static double number_of(const history *h, bool averages)
{
    char path[] = "/tmp/trek-elastic-XXXXXX";
    trek_dataset *data = training_dataset();
    int file = mkstemp(path), ranks = h->ranks[0];
    trek_loader *loader = trek_loader_new(trek_dataset_retain(data), &(trek_loader_opts){ .batch_size = BATCH, .shuffle = true,
                                                                                         .seed = 5, .device = trek_cpu(0) });
    trek_graph *graph = set_up(ranks, loader, averages);
    for (int step = 0; step < EPOCHS * STEPS; step++) {
        if (step % STEPS == 0)
            trek_graph_start(graph, step / STEPS);
        if (h->ranks[step] != ranks) {
            ranks = h->ranks[step];
            assert_int_equal(trek_checkpoint_save(graph, loader, path), TREK_OK);
            trek_graph_free(&graph);
            graph = set_up(ranks, loader, averages);
            assert_int_equal(trek_checkpoint_load(graph, loader, path), TREK_OK);
        }
        trek_batch *batch = trek_graph_next(graph);
        assert_non_null(batch);
        assert_non_null(trek_graph_train_batch(graph, batch));
        assert_int_equal(trek_graph_step(graph), TREK_OK);
    }
    trek_state *state = trek_state_of(trek_graph_module(graph));
    double number = number_of_state(state);
    trek_state_free(&state);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_dataset_free(&data);
    close(file);
    unlink(path);
    return number;
}

static bool has_died(const world *w, int p) { return w->code[p] == -SIGKILL && !strstr(w->text[p], "final "); }

/* From this one on processes are joiners, which lack some epochs, or were not let in. */
static int arrivals_from = PROCESSES;

static bool has_gone(const world *w, int p)
{
    return has_died(w, p) || (p >= arrivals_from && w->code[p] == 1 && strstr(w->text[p], "TREK_ERR_"));
}

/* What a process ended with, NaN: not well. */
static double result_of(const world *w, int p)
{
    const char *final = strstr(w->text[p], "final ");
    int epochs;
    double number;
    bool good = final && sscanf(final, "final %d epochs number %lf", &epochs, &number) == 2 &&
                (p < arrivals_from ? epochs == EPOCHS : epochs > 0 && epochs <= EPOCHS);
    return good ? number : NAN;
}

/* Whether a process has ended with what it should, and with the bits of the others. Gloo's rings add in an order of their own,
 * which batch norm's layers make more of. */
static bool is_result(double got, double number, double others)
{
    bool gloo = strcmp(processes_engine(), "gloo") == 0;
    bool near = gloo || plain ? fabs(got - number) < (gloo ? 1e-6 * fabs(number) : 1e-9) : got == number;
    return near && (plain || isnan(others) || got == others);
}

static bool is_good(const world *w, int left, bool averages)
{
    history h = read_history(w);
    bool good = all_seen_once(&h);
    double number = good ? number_of(&h, averages) : NAN, others = NAN;
    int lived = 0;
    for (int p = 0; p < w->n; p++) {
        if (has_gone(w, p))
            continue;
        lived++;
        double got = result_of(w, p);
        bool same = is_result(got, number, others);
        others = got;
        if (!same)
            fprintf(stderr, "ERROR: process %d has %.17g instead of %.17g\n", p, got, number);
        good = good && same && (w->code[p] == 0 || w->code[p] == -SIGKILL) && !strstr(w->text[p], "are left\n");
    }
    if (!good || lived != left)
        fprintf(stderr, "ERROR: %d of %d processes were to be left, %d are\n", left, w->n, lived);
    return good && lived == left;
}

static void assert_good(const world *w, int left)
{
    WANT(w, is_good(w, left, false));
}

/* --- the tests --------------------------------------------------------------------------------------------------------- */

/* Nobody dies. */
static void test_none(void **state)
{
    static world w;
    static const char *const details[PROCESSES] = { NULL };
    processes_run_each(&w, 3, "elastic", details);
    assert_good(&w, 3);
}

/* In each phase, now one and now another. */
static void test_one(void **state)
{
    static world w;
    static const char *const moments[] = { "at=build:0",        "at=epoch:0",      "at=loss:0",
                                           "at=loss:10",        "at=forward:9",    "at=backward:6",
                                           "at=sync:8",         "at=reduce:7",     "at=reduce_processes:11",
                                           "at=buffers:12",     "at=optimizer:5",  "at=optimizer:7",
                                           "at=loader_wait:13", "at=evaluation:2", "at=metrics:0",
                                           "at=metrics:2",      "at=epoch:1",      "at=loss:15" };
    for (int k = 0; k < (int)(sizeof moments / sizeof *moments); k++) {
        const char *details[PROCESSES] = { NULL };
        details[k % 3] = moments[k];
        processes_run_each(&w, 3, "elastic", details);
        if (!has_died(&w, k % 3))
            fprintf(stderr, "%s: process %d has not died\n", moments[k], k % 3);
        assert_good(&w, 2);
    }
}

static void test_saving(void **state)
{
    static world w;
    char folder[] = "/tmp/trek-elastic-XXXXXX", detail[96], victim[96];
    assert_non_null(mkdtemp(folder));
    snprintf(detail, sizeof detail, "save=%s", folder);
    for (int k = 0; k < 2; k++) {
        const char *details[PROCESSES] = { victim, detail, detail };
        snprintf(victim, sizeof victim, "at=checkpoint:%d,save=%s", k, folder);
        processes_run_each(&w, 3, "elastic", details);
        assert_good(&w, 2);
    }
    assert_int_equal(test_remove(folder), 0);
}

static void test_several(void **state)
{
    static world w;
    static const struct {
        const char *details[4];
        int left;
    } rows[] = {
        { { "at=build:0", NULL, "at=build:0", NULL }, 2 },
        { { NULL, "at=build:0", "at=build:1", NULL }, 2 },
        { { "at=loss:5", NULL, "at=loss:5", NULL }, 2 },
        { { NULL, "at=backward:5", "at=reduce:5", NULL }, 2 },
        { { "at=loss:3", "at=loss:9", NULL, NULL }, 2 },
        { { NULL, NULL, "at=optimizer:4", "at=sync:14" }, 2 },
        { { "at=loss:5", "at=build:1", NULL, NULL }, 2 },
        { { "at=build:1", NULL, "at=loss:5", NULL }, 2 },
        { { "at=build:1", "at=build:1", NULL, "at=loss:5" }, 1 },
        { { NULL, "at=epoch:2", "at=buffers:1", NULL }, 2 },
        { { "at=epoch:1", "at=metrics:1", "at=loss:17", NULL }, 1 },
        { { "at=loss:2", "at=loss:2", "at=loss:2", NULL }, 1 },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        processes_run_each(&w, 4, "elastic", rows[k].details);
        assert_good(&w, rows[k].left);
    }
}

/* Two ranks in each process: to rounding, as the ranks of one process. */
static void test_ranks(void **state)
{
    plain = true;
    static world w;
    static const char *const details[] = { "two", "two,at=reduce:9", "two" }, *const none[] = { "two", "two", "two" };
    processes_run_each(&w, 3, "elastic", none);
    assert_good(&w, 3);
    processes_run_each(&w, 3, "elastic", details);
    assert_good(&w, 2);
    plain = false;
}

/* The run finds its processes itself. */
static void test_environment(void **state)
{
    static world w;
    static const char *const details[] = { "env,at=loss:3", "env", "env" };
    processes_run_each(&w, 3, "elastic", details);
    assert_good(&w, 2);
}

/* Windows: the samples of a window that was not complete are trained on by the others. */
static void test_windows(void **state)
{
    static world w;
    for (int victim = 0; victim < 3; victim++) {
        const char *details[PROCESSES] = { "cadence", "cadence", "cadence" };
        details[victim] = victim == 1 ? "cadence,at=loss:5" : "cadence,at=reduce:3"; /* it comes to so many however slow it is */
        double number = NAN;
        processes_run_each(&w, 3, "elastic", details);
        for (int p = 0; p < 3; p++) {
            const char *final = strstr(w.text[p], "final 5 epochs number "), *last = strstr(w.text[p], "epoch 4 ranks 2 ");
            if (p == victim)
                continue;
            double got = final ? strtod(final + strlen("final 5 epochs number "), NULL) : NAN;
            number = isnan(number) ? got : number;
            WANT(&w, final && last && got == number && strstr(last, "samples 61 count 61 "));
        }
    }
}

/* From the last average on. */
static void test_averages(void **state)
{
    static world w;
    for (int k = 0; k < 4; k++) {
        const char *details[PROCESSES] = { "average", "average", "average" };
        details[k % 3] = k == 0 ? "average,at=average:6" : k == 1 ? "average,at=loss:9" : k == 2 ? "average,at=bucket:30"
            : "average,at=loss:8";
        processes_run_each(&w, 3, "elastic", details);
        WANT(&w, is_good(&w, 2, true));
    }
}

/* Metrics of the epoch: what those who are left have seen of it. */
static void test_metrics(void **state)
{
    static world w;
    static const char *const details[] = { NULL, "at=loss:6", NULL };
    processes_run_each(&w, 3, "elastic", details);
    assert_good(&w, 2);
    for (int p = 0; p < 3; p += 2) {
        int ranks, steps, samples;
        double count;
        const char *first = strstr(w.text[p], "epoch 0 "), *second = strstr(w.text[p], "epoch 1 "),
                   *third = strstr(w.text[p], "epoch 2 ");
        assert_true(first && second && third);
        assert_int_equal(sscanf(first, "epoch 0 ranks %d steps %d samples %d count %lf", &ranks, &steps, &samples, &count), 4);
        assert_true(ranks == 3 && steps == STEPS && samples == SAMPLES && count == SAMPLES);
        assert_int_equal(sscanf(second, "epoch 1 ranks %d steps %d samples %d count %lf", &ranks, &steps, &samples, &count), 4);
        assert_true(ranks == 2 && steps == STEPS && samples < SAMPLES && samples >= SAMPLES / 2 && count == samples);
        assert_int_equal(sscanf(third, "epoch 2 ranks %d steps %d samples %d count %lf", &ranks, &steps, &samples, &count), 4);
        assert_true(ranks == 2 && steps == STEPS && samples == SAMPLES && count == SAMPLES);
    }
}

/* Too few are left, or it is the program that fails: an error on all, soon. */
static void test_ends(void **state)
{
    static world w;
    static const struct { const char *victim, *others, *text; } rows[] = {
        { "least=3,at=loss:5", "least=3", ".min_processes is 3" }, { "least=0,at=loss:5", "least=0", "died" },
        { "bad-loss", "-", "returned NULL" },                      { "least=4", "least=4", ".min_processes: 4; must be 1 to 3" },
        { "least=2", "least=1", ".min_processes is" },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const char *details[] = { rows[k].others, rows[k].victim, rows[k].others };
        processes_run_each(&w, 3, "elastic", details);
        for (int p = 0; p < 3; p++) {
            WANT(&w, has_died(&w, p) || (w.code[p] == 1 && strstr(w.text[p], rows[k].text) && !strstr(w.text[p], "are left\n")));
        }
    }
}

/* --- coming again ------------------------------------------------------------------------------------------------------ */

/* Of n processes and joiners behind them, in a folder of their own; details[p] NULL: an ordinary one. */
static void run_again(world *w, int n, int joiners, const char *common, const char *const *details)
{
    char folder[] = "/tmp/trek-elastic-XXXXXX", text[PROCESSES][200];
    assert_non_null(mkdtemp(folder));
    processes_init(w, n + joiners);
    for (int p = 0; p < n + joiners; p++) {
        snprintf(text[p], sizeof text[p], "%s%s%sof=%d,in=%s", details[p] ? details[p] : "", details[p] ? "," : "", common, n,
                 folder);
    }
    arrivals_from = n;
    for (int p = 0; p < n + joiners; p++) {
        int all = w->n;
        w->n = p < n ? n : all; /* what a process is told */
        processes_start(w, p, "elastic", text[p]);
        w->n = all;
    }
    processes_finish(w, -1);
    assert_int_equal(test_remove(folder), 0);
}

static void assert_again(world *w, int n, int joiners, const char *common, const char *const *details, int left, bool averages)
{
    run_again(w, n, joiners, common, details);
    WANT(w, is_good(w, left, averages));
    arrivals_from = PROCESSES;
}

/* Whoever it is that died, and comes again two epochs later. */
static void test_again(void **state)
{
    static world w;
    static const char *const rows[][5] = {
        { NULL, "at=loss:5", NULL, "join,as=1" },
        { "at=loss:5", NULL, NULL, "join,as=0" },
        { NULL, NULL, "at=epoch:1", "join,as=2" },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        assert_again(&w, 3, 1, "hold=3,", rows[k], 3, false);
}

/* Two at once; and one that others have gone on without to the last. */
static void test_again_several(void **state)
{
    static world w;
    static const char *const two[] = { "at=loss:5", NULL, "at=reduce:5", "join,as=2", "join,as=0" };
    assert_again(&w, 3, 2, "hold=34,", two, 3, false);
    static const char *const one[] = { "at=loss:5", NULL, "join,as=0" };
    assert_again(&w, 2, 1, "hold=2,", one, 2, false);
}

/* Processes that were not in the run before: beside others that live, that have died, and that come again. */
static void test_newcomers(void **state)
{
    static world w;
    static const char *const one[] = { NULL, NULL, "join,new" };
    assert_again(&w, 2, 1, "hold=2,", one, 3, false);
    static const char *const two[] = { NULL, NULL, "join,new", "join,new" };
    assert_again(&w, 2, 2, "hold=23,", two, 4, false);
    static const char *const three[] = { NULL, "at=loss:5", NULL, "join,as=1", "join,new" };
    assert_again(&w, 3, 2, "hold=34,", three, 4, false);
    static const char *const dies[] = { NULL, "at=epoch:4", "join,new", "join,new,at=epoch:1" };
    assert_again(&w, 2, 2, "hold=23,", dies, 2, false);
}

static void test_again_averages(void **state)
{
    static world w;
    static const char *const details[] = { NULL, "at=loss:5", NULL, "join,as=1" };
    assert_again(&w, 3, 1, "average,hold=3,", details, 3, true);
}

/* A joiner that dies while it waits, or as soon as it is in the group; others that die when one comes. */
static void test_again_deaths(void **state)
{
    static world w;
    static const struct { const char *details[5]; int left; } rows[] = {
        { { NULL, "at=loss:5", NULL, "join,dies-waiting,as=1" }, 2 },
        { { NULL, "at=loss:5", NULL, "join,at=build:0,as=1" }, 2 },
        { { NULL, "at=loss:5", NULL, "join,at=build:1,as=1" }, 2 },
        { { NULL, "at=loss:5", NULL, "join,at=epoch:0,as=1" }, 2 },
        { { "at=build:2", "at=loss:5", NULL, "join,as=1" }, 2 },
        { { NULL, "at=loss:5", "at=build:2", "join,as=1" }, 2 },
        { { "at=epoch:4", "at=loss:5", NULL, "join,as=1" }, 2 },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        assert_again(&w, 3, 1, "hold=3,", rows[k].details, rows[k].left, false);
}

/* Who cannot join is told why, and the others do not care. */
static void test_again_refused(void **state)
{
    static world w;
    static const struct {
        const char *common, *joiner, *text;
    } rows[] = {
        { "until=3,", "join,wrong-token,as=1", "TREK_TOKEN" },
        { "until=3,", "join,least=2,as=1", "process 1 cannot join the job: its model, its options" },
        { "until=3,", "join,other-model,as=1", "process 1 cannot join the job: its model, its options" },
        { "until=3,", "join,new,other-model", "this process cannot join the job: its model, its options" },
        { "until=3,", "join,new,wrong-token", "TREK_TOKEN" },
        { "until=3,", "join,least=0,as=1", ".min_processes is 0" },
        { "until=3,", "join,of=4,as=1", "process 1 of 4 cannot join the job, which has 3" },
        { "", "join,late,as=1", "no process of the job accepts joining processes" },
        { "hold=3,", "join,alive=1,as=0", "is alive" },
        { "until=3,", "join,own-comm,as=1", "TREK_JOIN is set" },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const char *details[] = { NULL, "at=loss:5", NULL, rows[k].joiner };
        run_again(&w, 3, 1, rows[k].common, details);
        bool good = w.code[3] == 1 && strstr(w.text[3], rows[k].text) && !strstr(w.text[3], "are left\n");
        w.n = 3;
        good = good && is_good(&w, 2, false);
        w.n = 4;
        WANT(&w, good);
    }
    arrivals_from = PROCESSES;
}

/* Averages in the background, also an outer optimizer's, whose momentum a joiner is to have: all have the same in the end, of
 * as many ranks as in the beginning. */
static void test_again_host(void **state)
{
    static world w;
    static const char *const details[] = { "at=loss:2", NULL, NULL, "join,as=0" };
    for (int k = 0; k < 2; k++) {
        run_again(&w, 3, 1, k ? "host,outer,hold=3," : "host,hold=3,", details);
        for (int p = 1; p < 4; p++) {
            WANT(&w, result_of(&w, p) == result_of(&w, 1) && !strstr(w.text[p], "samples 0 ") &&
                 strstr(w.text[p], "epoch 4 ranks 3 ") && w.code[p] == 0);
        }
    }
    arrivals_from = PROCESSES;
}

/* One that dies under trek-run, by its own doing, at `at`. */
typedef struct launched {
    const char *detail;
    int restarts, left; /* so many get to the end */
} launched;

static void run_launched(const launched *row)
{
    char folder[] = "/tmp/trek-elastic-XXXXXX", command[1024], own[256], text[OUTPUT] = "", numbers[3][64];
    const char *at = text;
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    assert_true(length > 0 && mkdtemp(folder));
    own[length] = '\0';
    snprintf(command, sizeof command,
             "TREK_TEST_ROLE=elastic TREK_TEST_PART='0 3 0 127.0.0.1 launched,%s,in=%s' %s -n 3 -m 1 "
             "--restarts %d %s 2>&1",
             row->detail, folder, processes_built("tools/trek-run"), row->restarts, own);
    FILE *output = popen(command, "r");
    assert_non_null(output);
    text[fread(text, 1, sizeof text - 1, output)] = '\0';
    int status = pclose(output), n = 0;
    bool good = status == 0;
    good = good && (row->restarts == 0 || strstr(text, "it is started again (1 of 1)"));
    for (; good && n < 3 && (at = strstr(at, "epochs number ")); n++, at++)
        good = sscanf(at, "epochs number %63s", numbers[n]) == 1 && strcmp(numbers[n], numbers[0]) == 0;
    good = good && n == row->left && !strstr(text, "another program");
    if (!good)
        fprintf(stderr, "%s: %d\n%s\n", row->detail, n, text);
    assert_true(good);
    assert_int_equal(test_remove(folder), 0);
}

/* trek-run starts it again, or does not: in each phase of starting, and when there is nobody left to join. */
static void test_again_launched(void **state)
{
    static const launched rows[] = {
        { "at=loss:5,hold=0", 1, 3 },
        { "at=start:0,hold=0", 1, 3 },
        { "victim=0,at=start:0,hold=0", 1, 3 },
        { "at=start:0", 0, 2 },
        { "victim=0,at=start:0", 0, 2 },
        { "us=300000,slow=2", 0, 2 },
        { "victim=0,us=300000,slow=2,hold=0", 1, 3 },
        { "us=300000,slow=2,hold=0", 1, 3 },
        { "joined", 0, 2 },
        { "victim=0,joined", 0, 2 },
        { "joined,hold=0", 1, 3 },
        { "at=build:0,hold=0", 1, 3 },
        { "victim=0,at=build:0", 0, 2 },
        { "at=epoch:4,late", 1, 2 },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        run_launched(&rows[k]);
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    char why[256];
    if (strcmp(processes_engine(), "gloo") == 0 && !trek_comm_gloo_there(why, sizeof why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const struct CMUnitTest engine[] = { /* who comes and goes when, in the others, is the same for every engine */
        cmocka_unit_test(test_none),  cmocka_unit_test(test_one),     cmocka_unit_test(test_several),
        cmocka_unit_test(test_ranks), cmocka_unit_test(test_metrics), cmocka_unit_test(test_windows),
        cmocka_unit_test(test_again), cmocka_unit_test(test_again_several),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none),     cmocka_unit_test(test_one),   cmocka_unit_test(test_saving),
        cmocka_unit_test(test_several),  cmocka_unit_test(test_ranks), cmocka_unit_test(test_averages),
        cmocka_unit_test(test_metrics), cmocka_unit_test(test_environment), cmocka_unit_test(test_windows),
        cmocka_unit_test(test_ends),  cmocka_unit_test(test_again), cmocka_unit_test(test_again_several),
        cmocka_unit_test(test_newcomers), cmocka_unit_test(test_again_averages), cmocka_unit_test(test_again_deaths),
        cmocka_unit_test(test_again_refused),
        cmocka_unit_test(test_again_host), cmocka_unit_test(test_again_launched), cmocka_unit_test(test_tries),
    };
    bool all = strcmp(processes_engine(), "gloo") != 0 || test_long();
    return all ? cmocka_run_group_tests(tests, NULL, NULL) : cmocka_run_group_tests(engine, NULL, NULL);
}
