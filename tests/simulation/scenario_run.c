/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of the library's own loop: a tiny model, the real trainer, and processes that die, stand still and come again. Whoever is
 * there at the end has the parameters of one process that has made the same steps; these are computed here, in plain C. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader_position.h"
#include "data/sampler.h"
#include "distributed/run.h"
#include "graph/constants.h"
#include "graph/flow.h"
#include "graph/observe.h"
#include "nn/module.h"
#include "nn/module_internal.h"
#include "nn/safetensors.h"
#include "tensor/log.h"
#include "tests/simulation/scenario.h"

enum { IN = 3, MOST_SAMPLES = 48, MOST_EPOCHS = 4, PARAMS = IN + 1, SEED = 5 };
static const double RATE = 0.1, MOMENTUM = 0.5;

/* How the processes train together; of the first alone one knows the parameters beforehand, and in grains, where one more
 * process, which trains alone, has the bits of all. */
typedef enum mode { EXACT, WINDOWS, AVERAGES, BACKGROUND, BACKGROUND_ASYNC, MODES, GRAINS } mode;

/* Of one process; one that is started again has another. */
typedef struct member {
    int number;
    bool again, done; /* started again, or a newcomer; it has got to the end */
    bool built, begun; /* it belongs to a group, and has built its model; its loop has begun */
    int64_t wait_ns, works_ns;
    int64_t since_ns; /* it was last heard of at work */
    int64_t epoch;    /* that it is in */
    int n_epochs;     /* that it was told of */
    int64_t first_epoch;
    struct told {
        int64_t samples, steps;
        int ranks;
        double loss, count;
    } told[MOST_EPOCHS];
    double params[PARAMS];
    outcome failed;
} member;

static struct {
    mode mode;
    int n, least, n_members, newcomers, samples, batch, grain;
    int64_t epochs;
    bool sharded;            /* in grains: the optimizer's state is divided, and each part of it kept by two processes */
    double deadline_s;
    bool fails; /* the training function of process `failing`, in its step `failing_step` */
    int failing, failing_step;
    bool has_failed;
    bool saves, full; /* checkpoints; a full disk comes */
    int keep_last;
    uint8_t seen[MOST_EPOCHS][MOST_SAMPLES]; /* how often a sample was trained on, by anybody */
    member members[SIM_PROCESSES]; /* number n trains alone, in grains; higher ones are newcomers */
} job;

/* A model is built, an epoch begins, a batch is trained on, an epoch's metrics are there. */
enum { BUILDS = OWN_MOMENTS, EPOCH_BEGINS, BATCH_COMES, METRICS_COME };

/* --- what is trained ----------------------------------------------------------------------------------------------------- */

static double number_of(int k) { return (double)((k * 7919 + 13) % 97) / 97.0 - 0.5; }
static double x_of(int sample, int k) { return number_of(sample * IN + k); }
static double target_of(int sample) { return number_of(1000 + sample); }
static double first_of(int param) { return number_of(5000 + param); }

typedef struct net {
    trek_module base;
    trek_var *weight, *bias;
} net;

static trek_var *net_forward(trek_module *self, trek_var *x)
{
    net *m = (net *)self;
    return trek_linear(x, m->weight, m->bias);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

static trek_graph *build(trek_device device, void *arg)
{
    double values[PARAMS];
    ((member *)arg)->built = true;
    sim_faults_come_to(BUILDS, sim_here());
    for (int k = 0; k < PARAMS; k++)
        values[k] = first_of(k);
    trek_module *m = trek_module_new(&net_class);
    trek_module_param(m, "weight", offsetof(net, weight), trek_tensor_from_data(values, trek_dims(1, IN), TREK_F64, device));
    trek_module_param(m, "bias", offsetof(net, bias), trek_tensor_from_data(values + IN, trek_dims(1), TREK_F64, device));
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

static trek_dataset *make_data(void)
{
    double x[MOST_SAMPLES * IN], target[MOST_SAMPLES];
    for (int i = 0; i < job.samples; i++) {
        for (int k = 0; k < IN; k++)
            x[i * IN + k] = x_of(i, k);
        target[i] = target_of(i);
    }
    const char *names[] = { "x", "target" };
    trek_tensor *tensors[] = { trek_tensor_from_data(x, trek_dims(job.samples, IN), TREK_F64, trek_cpu(0)),
                               trek_tensor_from_data(target, trek_dims(job.samples, 1), TREK_F64, trek_cpu(0)) };
    trek_dataset *data = trek_dataset_tensors(names, tensors, 2);
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    return data;
}

/* --- checkpoints ----------------------------------------------------------------------------------------------------------- */

static const char *folder(void)
{
    static char path[64];
    struct stat there;
    if (!path[0])
        snprintf(path, sizeof path, "%s/trek-simulation-%ld", stat("/dev/shm", &there) == 0 ? "/dev/shm" : "/tmp",
                 (long)getpid());
    return path;
}

/* Calls fn with the path of each file in it. */
static void each_file(void (*fn)(const char *path))
{
    char path[512];
    DIR *list = opendir(folder());
    for (struct dirent *entry; list && (entry = readdir(list));) {
        snprintf(path, sizeof path, "%s/%s", folder(), entry->d_name);
        if (entry->d_name[0] != '.')
            fn(path);
    }
    if (list)
        closedir(list);
}

static void remove_file(const char *path) { unlink(path); }

static void remove_folder(void)
{
    each_file(remove_file);
    rmdir(folder());
}

/* --- the same by one process ------------------------------------------------------------------------------------------------ */

static void step_of_one(double *params, double *speed, const int64_t *samples, int64_t n)
{
    double grad[PARAMS] = { 0 };
    for (int64_t s = 0; s < n; s++) {
        int i = (int)samples[s];
        double error = params[IN] - target_of(i);
        for (int k = 0; k < IN; k++)
            error += params[k] * x_of(i, k);
        for (int k = 0; k < PARAMS; k++)
            grad[k] += 2 * error * (k < IN ? x_of(i, k) : 1) / (double)n;
    }
    for (int k = 0; k < PARAMS; k++) {
        speed[k] = MOMENTUM * speed[k] + grad[k];
        params[k] -= RATE * speed[k];
    }
}

/* What a run of so many epochs comes to. */
static const double *of_one(int samples, int batch, int64_t epochs)
{
    static struct known {
        bool there;
        double params[PARAMS];
    } known[MOST_SAMPLES + 1][32][MOST_EPOCHS + 1];
    struct known *to = &known[samples][batch][epochs];
    if (to->there)
        return to->params;
    int64_t order[MOST_SAMPLES];
    double speed[PARAMS] = { 0 };
    for (int k = 0; k < PARAMS; k++)
        to->params[k] = first_of(k);
    trek_sampler *sampler = trek_sampler_random(samples, SEED);
    for (int64_t epoch = 0; epoch < epochs; epoch++) {
        if (sampler->klass->at(sampler, epoch, 0, samples, order) != TREK_OK)
            abort();
        for (int at = 0; at < samples; at += batch)
            step_of_one(to->params, speed, order + at, at + batch < samples ? batch : samples - at);
    }
    trek_sampler_free(&sampler);
    to->there = true;
    return to->params;
}

/* --- a process ---------------------------------------------------------------------------------------------------------------
 */

/* Longer than others wait for it. */
static bool was_away(const sim_fault *fault)
{
    return fault->done && fault->kind != SIM_KILL && fault->kind != SIM_POWER && fault->for_ns > 2 * SIM_S;
}

/* Two machines do not reach each other, though all others reach both: data cannot be exchanged. */
static bool two_are_cut(void)
{
    bool cut = false;
    for (int k = 0; k < sim.n_faults; k++)
        cut = cut || (was_away(&sim.faults[k]) && (sim.faults[k].kind == SIM_CUT || sim.faults[k].kind == SIM_CUT_ONE_WAY));
    return cut;
}

/* Since it was last at work it has waited for others, for no longer than that takes. */
static void is_at_work(member *own, const char *what)
{
    int64_t rounds = sim.n_faults + job.newcomers + 1 + (two_are_cut() ? job.n : 0); /* of looking for each other */
    outcome_time(what, own->since_ns, rounds * ((int64_t)(job.deadline_s * 1e9) * 2 + 60 * SIM_S));
    own->since_ns = sim.now_ns;
}

static trek_var *train_step(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    member *own = arg;
    (void)graph;
    is_at_work(own, "waiting before a batch");
    sim_faults_come_to(BATCH_COMES, sim_here());
    if (sim_chance(&sim.chance, 500))
        trek_sleep_ns(sim_below(&sim.chance, own->works_ns));
    own->since_ns = sim.now_ns;
    if (job.fails && own->number == job.failing && job.failing_step-- == 0) {
        job.has_failed = true;
        sim_here()->tainted = true;
        trek_fail(TREK_ERR_IO, "the data of the process's own is gone");
        return NULL;
    }
    for (int64_t k = 0; k < trek_batch_size(batch) && own->number != job.n; k++)
        job.seen[own->epoch][trek_batch_indices(batch)[k]]++;
    trek_record_sum("count", (double)trek_batch_size(batch));
    trek_var *error = trek_sub(output, trek_batch_get(batch, "target"));
    return trek_mean(trek_mul(error, error), trek_dims_all(), false);
}

static trek_status on_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    member *own = arg;
    (void)graph;
    own->begun = true;
    own->epoch = epoch;
    is_at_work(own, "waiting before an epoch");
    sim_faults_come_to(EPOCH_BEGINS, sim_here());
    return TREK_OK;
}

static trek_status on_metrics(const trek_epoch_metrics *metrics, void *arg)
{
    (void)metrics;
    is_at_work(arg, "waiting for metrics");
    sim_faults_come_to(METRICS_COME, sim_here());
    return TREK_OK;
}

static trek_run_opts opts_of(trek_dataset *data, member *own)
{
    trek_run_opts o = { .build_model = build,
                        .train_step = train_step,
                        .dataset = data,
                        .input = "x",
                        .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = RATE, .momentum = MOMENTUM }),
                        .batch_size = job.batch, .shuffle = true,
                        .epochs = job.epochs,
                        .seed = SEED,
                        .prefetch = TREK_ZERO,
                        .min_processes = job.least,
                        .on_epoch = on_epoch,
                        .on_metrics = on_metrics,
                        .arg = own };
    if (own->number == job.n) /* it trains alone */
        o.min_processes = 0;
    else if (job.saves) {
        o.checkpoint_folder = folder();
        o.keep_last = job.keep_last;
        o.keep_best = own->works_ns % 2 == 0;
    }
    o.trainer.deadline_s = job.deadline_s;
    o.trainer.balance = TREK_OFF;
    o.trainer.grain = job.grain;
    o.trainer.shard = job.sharded && own->number != job.n ? TREK_SHARD_STATE : TREK_SHARD_NONE;
    if (job.mode == WINDOWS) {
        o.policy = TREK_POLICY_CADENCE;
        o.trainer.anchor = o.trainer.max_anchor = 2;
    }
    if (job.mode == AVERAGES)
        o.trainer.average = TREK_AVERAGE_PARAMETERS;
    if (job.mode == BACKGROUND || job.mode == BACKGROUND_ASYNC)
        o.transport = TREK_TRANSPORT_HOST;
    if (job.mode == BACKGROUND_ASYNC)
        o.policy = TREK_POLICY_ASYNC;
    return o;
}

static void take_epochs(member *own, trek_run *run)
{
    trek_epoch_metrics m;
    while (trek_run_next(run, &m)) {
        if (own->n_epochs == 0)
            own->first_epoch = m.epoch;
        if (m.epoch != own->first_epoch + own->n_epochs || m.epoch >= job.epochs)
            sim_fail("process %d is told of epoch %lld after %d epochs from %lld on", own->number, (long long)m.epoch,
                     own->n_epochs, (long long)own->first_epoch);
        else
            own->told[m.epoch] = (struct told){ m.samples, m.steps, m.ranks, m.loss, trek_metrics_get(&m, "count") };
        own->n_epochs++;
    }
}

static void params_of(const trek_state *state, double *params)
{
    trek_tensor_to_host(trek_state_tensor(state, 0), TREK_F64, params, IN * sizeof(double));
    trek_tensor_to_host(trek_state_tensor(state, 1), TREK_F64, params + IN, sizeof(double));
}

static void take_params(member *own, const trek_state *state) { params_of(state, own->params); }

static int process_main(void *arg)
{
    member *own = arg;
    trek_sleep_ns(own->wait_ns);
    own->since_ns = sim.now_ns;
    trek_dataset *data = make_data();
    trek_run_opts o = opts_of(data, own);
    trek_run *run = trek_trainer_run(&o);
    if (run)
        take_epochs(own, run);
    trek_state *state = run ? trek_run_join(run) : NULL;
    is_at_work(own, "the run's end");
    own->done = state != NULL;
    if (state)
        take_params(own, state);
    else
        outcome_take(&own->failed);
    sim_trace("ends after %d epochs: %s: %s", own->n_epochs, trek_status_name(own->failed.status), own->failed.message);
    trek_state_free(&state);
    trek_dataset_free(&data);
    scenario_leave(own->number, 1, 1); /* the window is the process's as long as it lives, and so is the library's thread */
    return own->done ? 0 : 1;
}

static void start(int number, bool again, int64_t wait_ns, int64_t works_ns)
{
    member *own = &job.members[job.n_members++];
    *own = (member){ .number = number, .again = again, .wait_ns = wait_ns, .works_ns = works_ns };
    scenario_start(number, job.n, number > job.n ? sim.machines - 1 : number % sim.machines, again, process_main, own);
}

static void start_again(int number) { start(number, true, 0, job.members[number].works_ns); }

static void draw_moment(sim_random *random)
{
    static const int moments[] = { BUILDS, EPOCH_BEGINS, BATCH_COMES, METRICS_COME, OTHERS_ARE_SOUGHT, COMMITS };
    int moment = moments[sim_below(random, job.mode == GRAINS ? 6 : 5)];
    bool once = moment == BUILDS || moment == OTHERS_ARE_SOUGHT;
    int64_t batches = moment == BATCH_COMES || moment == COMMITS ? job.samples / job.batch : 1;
    scenario_draw_moment(random, moment, job.n * batches * (once ? 1 : job.epochs), job.n);
}

/* One that is started again reaches those who let it in, and one machine no more. */
static void draw_cut(sim_random *random)
{
    sim.faults[sim.n_faults++] = (sim_fault){ .kind = SIM_CUT, .process = SIM_WHO_COMES, .follows = true, .moment = STARTED_AGAIN,
                                              .other = 1 + (int)sim_below(random, sim.machines - 1),
                                              .at_ns = sim_span(random, 1000, 500 * SIM_MS), .for_ns = SIM_NEVER };
}

/* Processes that were not in the job before come to it while it trains, and some of them die. */
static void draw_newcomers(sim_random *random, int64_t within_ns, int64_t works)
{
    job.newcomers = 1 + (int)sim_below(random, 3);
    for (int k = 0; k < job.newcomers; k++)
        start(job.n + 1 + k, true, sim_below(random, within_ns), works);
    if (sim_chance(random, 300))
        sim.faults[sim.n_faults++] = (sim_fault){ .kind = SIM_KILL, .process = job.n + 1 + (int)sim_below(random, job.newcomers),
                                                  .at_ns = sim.now_ns + sim_below(random, within_ns) };
}

static void begin(sim_random *random)
{
    static const int batches[] = { 4, 6, 8, 16 };
    remove_folder();
    memset(&job, 0, sizeof job);
    scenario_settings(random);
    job.saves = sim_chance(random, 300);
    job.full = sim_chance(random, 100);
    job.keep_last = sim_chance(random, 200) ? TREK_OFF : (int)sim_below(random, 3);
    job.mode = sim_chance(random, 500) ? EXACT : (mode)sim_below(random, MODES);
    job.n = sim.began_with = scenario_processes(random, 16);
    job.least = sim_chance(random, 700) ? 1 : (int)sim_below(random, job.n + 1);
    sim_random own = { random->state ^ 0x677261696e }; /* so that the other draws are those of a run without grains */
    if (job.mode == EXACT && job.n <= 8 && sim_chance(&own, 500)) {
        job.mode = GRAINS;
        job.grain = 1 + (int)sim_below(&own, 4);
        job.sharded = job.least > 0 && sim_chance(&own, 500);
    }
    job.samples = 12 + (int)sim_below(random, MOST_SAMPLES - 11);
    job.batch = batches[sim_below(random, 4)];
    job.epochs = 1 + sim_below(random, MOST_EPOCHS);
    job.deadline_s = (double)sim_span(random, 6, 60);
    int restarts = job.least && sim_chance(random, 400) ? 1 + (int)sim_below(random, 3) : 0;
    job.fails = sim_chance(random, 40);
    job.failing = (int)sim_below(random, job.n);
    job.failing_step = (int)sim_below(random, 12);
    sim.machines = sim_chance(random, 500) ? 1 : 2 + (int)sim_below(random, job.n - 1);
    bool one = sim.machines == 1;
    int64_t late = sim_span(random, 1, sim_chance(random, 800) ? 50 : 2000) * SIM_MS, works = sim_span(random, 2, 1000) * SIM_MS;
    for (int p = 0; p < job.n; p++)
        start(p, false, sim_below(random, late), works);
    if (job.mode == GRAINS)
        start(job.n, false, 0, works);
    sim_fault_mix mix = { .most = 4,
                          .weights = { 9, one ? 0 : 3, 3, 1, one ? 0 : 2, one ? 0 : 1, one ? 0 : 1, job.full ? 4 : 0, 1 },
                          .processes = job.n,
                          .machines = sim.machines,
                          .within_ns = late + job.epochs * (job.samples / job.batch + 1) * works,
                          .steps = 400 + 60 * (uint64_t)(job.epochs * (job.samples / job.batch + 1)),
                          .longest_ns = 20 * SIM_S };
    sim_faults_draw(random, &mix);
    if (sim_chance(random, 500))
        draw_moment(random);
    scenario_launch(job.n, restarts, 300 * SIM_MS, start_again);
    if (restarts && sim.machines > 2 && sim_chance(random, 300))
        draw_cut(random);
    if (job.mode == GRAINS && job.least > 0 && sim_chance(&own, 300))
        draw_newcomers(&own, mix.within_ns, works);
    sim.bound_ns = sim.now_ns + 7200 * SIM_S;
}

/* --- what must be true ----------------------------------------------------------------------------------------------------- */

static void check_params(const member *m, const member *other)
{
    bool known = job.mode == EXACT || job.mode == GRAINS;
    const double *expected = known ? of_one(job.samples, job.batch, job.epochs) : other->params;
    const member *alone = &job.members[job.n];
    if (job.mode == GRAINS && alone->done && memcmp(m->params, alone->params, sizeof m->params) != 0)
        sim_fail("process %d: parameters are %.17g ... %.17g instead of %.17g ... %.17g", m->number, m->params[0], m->params[IN],
                 alone->params[0], alone->params[IN]);
    for (int k = 0; k < PARAMS; k++)
        if (!(fabs(m->params[k] - expected[k]) <= 1e-12))
            sim_fail("process %d: parameter %d is %.17g instead of %.17g", m->number, k, m->params[k], expected[k]);
}

static void check_epochs(const member *m)
{
    int64_t steps = (job.samples + job.batch - 1) / job.batch;
    if (m->n_epochs == 0 && m->again)
        return; /* it has come after the last one */
    for (int64_t epoch = m->first_epoch; job.mode == GRAINS && epoch < job.epochs; epoch++)
        if (m->told[epoch].steps != steps)
            sim_fail("process %d was told of %lld steps in epoch %lld, which has %lld", m->number,
                     (long long)m->told[epoch].steps, (long long)epoch, (long long)steps);
    if (m->first_epoch + m->n_epochs != job.epochs || (!m->again && m->first_epoch != 0))
        sim_fail("process %d was told of %d epochs from %lld on, of %lld", m->number, m->n_epochs, (long long)m->first_epoch,
                 (long long)job.epochs);
}

/* Each sample of each epoch was trained on; once, where no step was dropped. */
static void check_samples(void)
{
    for (int64_t epoch = 0; epoch < job.epochs; epoch++)
        for (int i = 0; i < job.samples; i++)
            if (job.seen[epoch][i] == 0 || (job.seen[epoch][i] > 1 && !sim.disturbed && !job.has_failed))
                sim_fail("sample %d was trained on %d times in epoch %lld", i, job.seen[epoch][i], (long long)epoch);
}

static bool was_full(void)
{
    bool full = false;
    for (int k = 0; k < sim.n_faults; k++)
        full = full || (sim.faults[k].done && sim.faults[k].kind == SIM_FULL);
    return full;
}

static double newest_params[PARAMS];
static int64_t newest_step;

static void check_file(const char *path)
{
    long long step = 0;
    const char *name = strrchr(path, '/') + 1;
    bool killed = false;
    for (int p = 0; p < sim.n_processes; p++)
        killed = killed || sim.processes[p]->end == SIM_KILLED;
    if (strstr(name, ".tmp-")) { /* whoever is killed leaves it to the next save */
        if (!killed)
            sim_fail("%s is left behind", name);
        return;
    }
    trek_state *state = trek_state_read(path);
    if (!state)
        sim_fail("%s is damaged: %s", name, trek_error());
    trek_error_clear();
    if (state && sscanf(name, "step-%lld", &step) == 1 && step >= newest_step) {
        newest_step = step;
        params_of(state, newest_params);
    }
    trek_state_free(&state);
}

/* What has its name is whole, whoever has died; and the end is written, where all is well. */
static void check_files(bool written)
{
    newest_step = -1;
    each_file(check_file);
    const double *expected = of_one(job.samples, job.batch, job.epochs);
    if (!written || (job.mode != EXACT && job.mode != GRAINS))
        return;
    if (newest_step < 0)
        sim_fail("the run has ended, and has written no checkpoint");
    for (int k = 0; k < PARAMS && newest_step >= 0; k++)
        if (!(fabs(newest_params[k] - expected[k]) <= 1e-12))
            sim_fail("the last checkpoint is of another step: parameter %d is %.17g instead of %.17g", k, newest_params[k],
                     expected[k]);
}

/* Somebody has begun to train. */
static bool has_begun(void)
{
    bool begun = false;
    for (int k = 0; k < job.n_members; k++)
        begun = begun || job.members[k].begun;
    return begun;
}

/* Of the first group, all of whose members can go on without the others from before they build. */
static int left_of_first(void)
{
    int n = 0;
    for (int p = 0; p < job.n; p++)
        n += job.members[p].built && sim.processes[p]->end != SIM_KILLED && !sim.processes[p]->tainted;
    return n;
}

/* In a group that was formed anew processes are numbered by it. */
static bool names_one(const char *message)
{
    bool anew = false;
    for (int p = 0; p < job.n; p++)
        anew = anew || (sim.processes[p]->tainted && has_begun());
    return scenario_names_culprit(message) || (anew && strstr(message, "process"));
}

/* One that was started again, or a newcomer, may have come too late, or too early: the first group has not met. */
static bool came_too_late(const member *m)
{
    bool late = m->failed.status == TREK_ERR_STATE || m->failed.status == TREK_ERR_TIMEOUT || !has_begun() ||
        strstr(m->failed.message, "a job that has just ended") || scenario_nobody_opened(m->failed.message);
    return m->again && !m->begun && late;
}

/* All that died had told their rendezvous points to all others; nothing else has happened. */
static bool died_built(void)
{
    bool built = job.least > 0;
    for (int k = 0; k < sim.n_faults; k++)
        built = built && (!sim.faults[k].done || sim.faults[k].kind == SIM_KILL);
    for (int k = 0; k < job.n_members; k++)
        built = built && (sim.processes[k]->end != SIM_KILLED || job.members[k].built);
    return built;
}

/* Whether a part of a divided state may be lost with both processes that kept it. One may have ended with an error. */
static bool may_be_lost(void)
{
    int n = 0;
    for (int k = 0; k < job.n_members; k++)
        n += job.members[k].number != job.n && (sim.processes[k]->end == SIM_KILLED || sim.processes[k]->tainted ||
                                                job.members[k].failed.status != TREK_OK);
    return job.sharded && n > 1;
}

/* Whether this process was allowed not to get to the end. */
static bool may_fail(const member *m)
{
    const char *said = m->failed.message;
    if (may_be_lost() && (strstr(said, "no other copy; load a checkpoint") ||
                          (m->again && strstr(said, "cannot give its state"))))
        return true;
    if (job.has_failed)
        return m->number == job.failing || m->again || names_one(said);
    if (came_too_late(m))
        return true;
    if (was_full())
        return m->failed.status == TREK_ERR_IO || m->failed.status == TREK_ERR_MEMORY || names_one(said) ||
               strstr(said, "process") || strstr(said, "rank");
    if (!m->built || job.least == 0) /* it looked for the others' rendezvous points, or needs all of them */
        return !died_built() &&
               (scenario_names_culprit(said) || strstr(said, "a job that has just ended") ||
                (strstr(said, "did not reach process 0") && scenario_process(0)->tainted));
    if (two_are_cut())
        return names_one(said);
    return left_of_first() < job.least && strstr(said, ".min_processes is") && names_one(said);
}

/* Where the network fell in two, each part may have gone on by itself, if so few are enough; who stood still does not. */
static bool may_be_apart(void)
{
    bool apart = false;
    for (int k = 0; k < sim.n_faults; k++)
        apart = apart || (was_away(&sim.faults[k]) && sim.faults[k].kind != SIM_STOP && sim.faults[k].kind != SIM_SUSPEND);
    return apart && 2 * job.least <= job.n;
}

static void check(void)
{
    const member *last = NULL;
    scenario_check_ended();
    for (int k = 0; k < job.n_members; k++) {
        const member *m = &job.members[k];
        const sim_process *process = sim.processes[k];
        if (process->end == SIM_KILLED || (process->tainted && !scenario_mild()))
            continue;
        if (m->number == job.n && !m->done)
            sim_fail("the process that trains alone did not get to the end: %s", m->failed.message);
        if (m->number == job.n)
            continue;
        if (!m->done && !may_fail(m))
            sim_fail("process %d%s did not get to the end: %s: %s", m->number, m->again ? ", started again," : "",
                     trek_status_name(m->failed.status), m->failed.message);
        if (!m->done)
            continue;
        if (job.mode == EXACT || job.mode == GRAINS || !may_be_apart())
            check_params(m, last ? last : m);
        check_epochs(m);
        last = m;
    }
    if (last)
        check_samples();
    if (job.saves)
        check_files(last && !was_full());
    remove_folder();
}

const scenario scenario_run = { "run", 100, begin, check };
