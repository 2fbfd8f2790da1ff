/* SPDX-License-Identifier: Apache-2.0 */
/* A program's own loop that trains in grains, or without (pass/redo.h), and goes on when processes die in the middle of a step
 * (job/survival.h); some of them are started again, and come back (pass/arrivals.h). Some programs train several graphs in turn.
 * One more process, which no fault touches, trains alone. All that get to the end have its bits, without grains to rounding: a
 * step happened in all of them or in none, and each sample was counted once. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/ops.h"
#include "data/dataset.h"
#include "data/loader_position.h"
#include "distributed/arrivals.h"
#include "distributed/digests.h"
#include "distributed/reduce/twice.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "nn/module_internal.h"
#include "optim/optimizers.h"
#include "tensor/log.h"
#include "tests/simulation/scenario.h"

enum { IN = 3, PARAMS = IN + 1, MOST_SAMPLES = 40, MOST_STEPS = 32, GRAPHS = 3 };

/* Of one process; one that is started again has another. */
typedef struct member {
    int number;
    bool again;              /* it was started again, or is a newcomer */
    bool built, done;        /* trek_trainer_setup has succeeded; it has got to the end */
    int64_t wait_ns, works_ns, since_ns;
    int64_t steps;           /* of the graph, complete ones */
    int ranks;               /* in the job, at the end */
    uint64_t digest[GRAPHS][MOST_STEPS]; /* of each step that it has made; 0: it has not, or it has come later */
    double params[GRAPHS][PARAMS];
    outcome failed;
} member;

static struct {
    int n, machines, least, n_members, restarts, newcomers, samples, batch, accumulate;
    int grain;               /* 0: no grains */
    int graphs;              /* which each process trains in turn */
    bool woven;              /* all of them have passes when one makes its step */
    int64_t epochs;
    bool sharded;            /* the optimizer's state is divided, and each part of it kept by two processes */
    double deadline_s, audit;
    member members[SIM_PROCESSES + 1]; /* number n trains alone; higher ones are newcomers; the further ones were started again */
} job;

enum { GRAIN_RUNS = OWN_MOMENTS, PASS_ENDS, STEP_ENDS };

/* --- what is trained ------------------------------------------------------------------------------------------ */

static double number_of(int k) { return (double)((k * 7919 + 13) % 97) / 97.0 - 0.5; }

typedef struct net {
    trek_module base;
    trek_var *weight, *bias;
} net;

/* Some grains give the bias no gradient. Without grains it would depend on who has which samples. */
static trek_var *net_forward(trek_module *self, trek_var *x)
{
    const net *m = (const net *)self;
    const double *values = (const double *)(const void *)trek_var_data(x)->data;
    return trek_linear(x, m->weight, job.grain > 0 && values[0] < 0 ? NULL : m->bias);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

static trek_graph *build(int graph)
{
    trek_device device = trek_cpu(0);
    double values[PARAMS];
    for (int k = 0; k < PARAMS; k++)
        values[k] = number_of(5000 + graph * PARAMS + k);
    trek_module *m = trek_module_new(&net_class);
    trek_module_param(m, "weight", offsetof(net, weight), trek_tensor_from_data(values, trek_dims(1, IN), TREK_F64, device));
    trek_module_param(m, "bias", offsetof(net, bias), trek_tensor_from_data(values + IN, trek_dims(1), TREK_F64, device));
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

static trek_dataset *make_data(void)
{
    double x[MOST_SAMPLES * IN], target[MOST_SAMPLES];
    for (int k = 0; k < job.samples * IN; k++)
        x[k] = number_of(k);
    for (int i = 0; i < job.samples; i++)
        target[i] = number_of(1000 + i);
    const char *names[] = { "x", "target" };
    trek_tensor *tensors[] = { trek_tensor_from_data(x, trek_dims(job.samples, IN), TREK_F64, trek_cpu(0)),
                               trek_tensor_from_data(target, trek_dims(job.samples, 1), TREK_F64, trek_cpu(0)) };
    trek_dataset *data = trek_dataset_tensors(names, tensors, 2);
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    return data;
}

static trek_var *loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    member *own = arg;
    (void)graph;
    sim_faults_come_to(GRAIN_RUNS, sim_here());
    if (sim_chance(&sim.chance, 300))
        trek_sleep_ns(sim_below(&sim.chance, own->works_ns));
    trek_var *error = trek_sub(output, trek_batch_get(batch, "target"));
    return trek_mean(trek_mul(error, error), trek_dims_all(), false);
}

/* --- a process -------------------------------------------------------------------------------------------------- */

/* Besides its own grains, and those that died with others (without grains all batches of a step), it has waited for no longer
 * than finding the others takes. */
static void is_at_work(member *own, const char *what)
{
    int64_t grains = job.grain > 0 ? (job.samples + job.grain - 1) / job.grain : job.samples;
    outcome_time(what, own->since_ns,
                 (sim.n_faults + job.restarts + job.newcomers + 1) * ((int64_t)(job.deadline_s * 1e9) * 2 + 60 * SIM_S) +
                     3 * grains * own->works_ns);
    own->since_ns = sim.now_ns;
}

/* What a step has left behind is the same in all processes. */
static void note_step(member *own, trek_graph *graph, uint64_t *digests)
{
    trek_step_digest digest;
    own->steps = trek_graph_steps(graph);
    if (job.grain > 0 && (trek_trainer_digest(graph, own->steps, &digest) != TREK_OK || own->steps >= MOST_STEPS)) {
        sim_fail("process %d: step %lld has no digest: %s", own->number, (long long)own->steps, trek_error());
        return;
    }
    for (size_t k = 0; k < sizeof digest && job.grain > 0; k++)
        digests[own->steps] = (digests[own->steps] ^ ((unsigned char *)&digest)[k]) * 0x100000001b3u + 1;
}

static bool make_pass(member *own, trek_graph *graph, trek_batch *batch)
{
    if (!trek_graph_train_batch(graph, batch))
        return false;
    sim_faults_come_to(PASS_ENDS, sim_here());
    is_at_work(own, "a pass");
    return true;
}

static bool make_step(member *own, trek_graph *const *graphs, int k)
{
    if (trek_graph_step(graphs[k]) != TREK_OK)
        return false;
    sim_faults_come_to(STEP_ENDS, sim_here());
    is_at_work(own, "a step");
    note_step(own, graphs[k], own->digest[k]);
    return true;
}

/* One pass of each graph, and then one step, or each graph's step after its pass. */
static bool train_on(member *own, trek_graph *const *graphs, trek_batch *batch, bool steps)
{
    bool good = true;
    for (int k = 0; k < job.graphs && good; k++) {
        good = make_pass(own, graphs[k], batch);
        if (good && steps && !job.woven)
            good = make_step(own, graphs, k);
    }
    for (int k = job.graphs - 1; k >= 0 && good && steps && job.woven; k--)
        good = make_step(own, graphs, k);
    return good;
}

static trek_status train_epoch(member *own, trek_graph *const *graphs)
{
    int pass = 0, passes = job.accumulate > 1 ? job.accumulate : 1;
    for (trek_batch *batch; (batch = trek_graph_next(graphs[0]));) {
        pass = (pass + 1) % passes;
        if (!train_on(own, graphs, batch, pass == 0))
            break;
    }
    for (int k = 0; k < job.graphs && pass > 0 && trek_error_status() == TREK_OK; k++)
        trek_graph_zero_grad(graphs[k]);
    return trek_error_status();
}

static trek_status set_up(member *own, trek_graph *const *graphs, trek_loader *loader)
{
    trek_trainer_opts opts = { .grain = job.grain, .min_processes = own->number != job.n ? job.least : 0,
                               .accumulate = job.accumulate, .deadline_s = job.deadline_s, .balance = TREK_OFF,
                               .audit = job.audit, .shard = job.sharded ? TREK_SHARD_STATE : TREK_SHARD_NONE,
                               .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.5 }) };
    for (int k = 0; k < job.graphs && trek_error_status() == TREK_OK; k++) {
        trek_graph_set_loader(graphs[k], loader, "x");
        trek_graph_set_loss(graphs[k], loss, own);
        trek_trainer_setup(graphs[k], &opts);
    }
    return trek_error_status();
}

static trek_status train(member *own, trek_graph *const *graphs)
{
    trek_graph *graph = graphs[0];
    trek_loader *loader = trek_loader_new(make_data(), &(trek_loader_opts){ .batch_size = job.batch, .shuffle = true, .seed = 5,
                                                                           .prefetch = TREK_ZERO });
    trek_status status = set_up(own, graphs, loader);
    own->built = status == TREK_OK;
    own->since_ns = sim.now_ns;
    own->steps = trek_graph_steps(graph); /* one that comes may find that the last step has been made */
    int64_t epoch = 0;
    bool joined = trek_trainer_joined(graph, NULL);
    if (joined)
        trek_loader_position(loader, &epoch, NULL);
    if (own->built && joined != own->again)
        sim_fail("process %d has %s", own->number, joined ? "joined, and was not started again" : "not joined");
    for (; epoch < job.epochs && status == TREK_OK; epoch++, joined = false) {
        if (!joined)
            trek_graph_start(graph, epoch);
        status = train_epoch(own, graphs);
    }
    own->ranks = trek_graph_world_size(graph);
    for (int k = 0; k < job.graphs && status == TREK_OK; k++)
        if (trek_graph_world_size(graphs[k]) != own->ranks)
            sim_fail("process %d: graph %d has %d ranks, and the first one %d", own->number, k, trek_graph_world_size(graphs[k]),
                     own->ranks);
    trek_audit_report audit = { 0 };
    if (own->built && job.grain > 0 && trek_trainer_audit(graph, &audit) == TREK_OK && audit.differences > 0)
        sim_fail("process %d: an audit has found a difference in step %lld, grain %lld", own->number, (long long)audit.step,
                 (long long)audit.grain);
    for (int k = 0; k < job.graphs; k++)
        trek_graph_set_loader(graphs[k], NULL, NULL);
    trek_loader_free(&loader);
    return status;
}

static void take_params(trek_graph *graph, double *params)
{
    const net *m = (const net *)(const void *)trek_graph_module(graph)->own->children[0].module;
    trek_tensor_to_host(trek_var_data(m->weight), TREK_F64, params, IN * sizeof(double));
    trek_tensor_to_host(trek_var_data(m->bias), TREK_F64, params + IN, sizeof(double));
}

/* On a thread of its own, with which goes what the library keeps for a thread. */
static void *train_all(void *arg)
{
    member *own = arg;
    trek_graph *graphs[GRAPHS] = { NULL };
    for (int k = 0; k < job.graphs; k++)
        graphs[k] = build(k);
    own->done = trek_error_status() == TREK_OK && train(own, graphs) == TREK_OK;
    for (int k = 0; k < job.graphs && own->done; k++)
        take_params(graphs[k], own->params[k]);
    if (!own->done)
        outcome_take(&own->failed);
    sim_trace("ends after %lld steps: %s", (long long)own->steps, own->failed.message);
    for (int k = 0; k < job.graphs; k++)
        trek_graph_free(&graphs[k]);
    return NULL;
}

static int process_main(void *arg)
{
    member *own = arg;
    trek_thread thread;
    trek_sleep_ns(own->wait_ns);
    if (trek_thread_begin(&thread, train_all, own) == 0)
        trek_thread_join(thread);
    scenario_leave(own->number, 1, 1); /* the window is the process's as long as it lives, and so is the library's thread */
    return own->done ? 0 : 1;
}

static void start(int number, bool again, int64_t wait_ns, int64_t works_ns)
{
    member *own = &job.members[job.n_members++];
    *own = (member){ .number = number, .again = again, .wait_ns = wait_ns, .works_ns = works_ns };
    int machine = number > job.n ? sim.machines - 1 : number % job.machines;
    scenario_start(number, job.n, machine, again, process_main, own);
}

static void start_again(int number) { start(number, true, 0, job.members[number].works_ns); }

/* Of a process. */
static int64_t passes(void) { return (job.samples + job.batch - 1) / job.batch * job.epochs; }

/* Of a process: of a pass, of a step, and of a divided state. */
static int64_t commits(void)
{
    int64_t steps = passes() / job.epochs / (job.accumulate > 1 ? job.accumulate : 1) * job.epochs;
    return job.graphs * (passes() + steps * (job.sharded ? 2 : 1) + 1) - 1;
}

/* Around a state that is divided: to divide it again takes a death before that. */
static void draw_moment(sim_random *random)
{
    static const int moments[] = { GRAIN_RUNS,         PASS_ENDS, STEP_ENDS,           SUMS_ARE_EXCHANGED,
                                   SUMS_ARE_EXCHANGED, COMMITS,   PARAMS_ARE_GATHERED, STATE_IS_DIVIDED };
    int moment = moments[sim_below(random, job.sharded ? 8 : 6)];
    int64_t turns = job.n * (moment == COMMITS ? commits() : job.graphs * passes());
    scenario_draw_moment(random, moment, moment == STATE_IS_DIVIDED ? job.n : turns, job.n);
}

/* One dies in the last commit, between two that it tells. Another one may have left already; without both too few are left. */
static void draw_last_commit(sim_random *random)
{
    job.least = job.n - 1;
    sim.n_faults = 1;
    sim.faults[0] = (sim_fault){ .kind = SIM_KILL, .process = SIM_WHO_COMES, .follows = true, .moment = COMMITS,
                                 .turns = (int)(job.n * commits() - 1 - sim_below(random, job.n)),
                                 .at_send = 1 + (uint64_t)sim_below(random, 2 * job.n) };
}

/* Processes that were not in the job before, on its last machine or on another one, some of which die. */
static void draw_newcomers(sim_random *random, int64_t within_ns, int64_t works)
{
    sim.machines += sim.machines == 1 && sim_chance(random, 500);
    job.newcomers = 1 + (int)sim_below(random, 3);
    for (int k = 0; k < job.newcomers; k++)
        start(job.n + 1 + k, true, sim_below(random, within_ns), works);
    if (sim_chance(random, 400))
        sim.faults[sim.n_faults++] = (sim_fault){ .kind = SIM_KILL, .process = job.n + 1 + (int)sim_below(random, job.newcomers),
                                                  .at_ns = sim.now_ns + sim_below(random, within_ns) };
}

static void begin_either(sim_random *random, bool in_grains)
{
    sim_random apart = *random, graphs = apart; /* the other schedules are what they are without newcomers, or several graphs */
    static const int batches[] = { 4, 6, 8, 16 };
    memset(&job, 0, sizeof job);
    scenario_settings(random);
    job.n = sim.began_with = scenario_processes(random, 10);
    job.least = sim_chance(random, 800) ? 1 : 1 + (int)sim_below(random, job.n);
    job.samples = 12 + (int)sim_below(random, MOST_SAMPLES - 11);
    job.batch = batches[sim_below(random, 4)];
    job.grain = 1 + (int)sim_below(random, 4);
    job.accumulate = sim_chance(random, 300) ? 2 : 0;
    job.epochs = 1 + sim_below(random, 3);
    job.deadline_s = (double)sim_span(random, 6, 60);
    job.machines = sim.machines = sim_chance(random, 500) ? 1 : 2;
    int64_t late = sim_span(random, 1, 50) * SIM_MS, works = sim_span(random, 2, 300) * SIM_MS;
    for (int p = 0; p <= job.n; p++)
        start(p, false, sim_below(random, late), works);
    sim_fault_mix mix = { .most = 3,
                          .weights = { 9, 0, 2, 1, 0, 0, 0, 0, 0 },
                          .processes = job.n,
                          .machines = sim.machines,
                          .within_ns = late + passes() * works,
                          .steps = 300 + 80 * (uint64_t)passes(),
                          .longest_ns = 20 * SIM_S };
    sim_faults_draw(random, &mix);
    bool comes = sim_chance(&apart, 250);
    job.graphs = sim_chance(&graphs, 500) && !comes ? 2 + (int)sim_below(&graphs, GRAPHS - 1) : 1;
    job.woven = sim_chance(&graphs, 500);
    job.sharded = sim_chance(random, 500);
    job.audit = sim_chance(random, 200) && in_grains ? 0.5 : 0;
    job.grain = in_grains ? job.grain : 0;
    if (job.n > 2 && sim.machines > 1 && sim_chance(random, 150))
        draw_last_commit(random);
    else if (sim_chance(random, 600))
        draw_moment(random);
    if (comes)
        draw_newcomers(&apart, late + passes() * works + SIM_S, works);
    sim.bound_ns = sim.now_ns + 7200 * SIM_S;
    job.restarts = sim_chance(random, 500) ? 1 + (int)sim_below(random, 3) : 0;
    if ((job.newcomers || job.restarts) && sim_chance(&apart, 250)) /* those that send it may die, or stand still */
        scenario_draw_moment(&apart, STATE_IS_FETCHED, 2, job.n);
    scenario_launch(job.n, job.restarts, 100 * SIM_MS, start_again);
}

static void begin(sim_random *random) { begin_either(random, true); }
static void begin_plain(sim_random *random) { begin_either(random, false); }

/* --- what must be true -------------------------------------------------------------------------------------------- */

/* All that died had told their rendezvous points to all others; nothing else has happened. */
static bool died_built(void)
{
    bool built = true;
    for (int k = 0; k < sim.n_faults; k++)
        built = built && (!sim.faults[k].done || sim.faults[k].kind == SIM_KILL);
    for (int k = 0; k < job.n_members; k++)
        built = built && (sim.processes[k]->end != SIM_KILLED || job.members[k].built || job.members[k].again);
    return built;
}

/* Of the processes with which the job began. built: and have set up. */
static int left(bool built)
{
    int n = 0;
    for (int p = 0; p < job.n; p++)
        n += (job.members[p].built || !built) && sim.processes[p]->end != SIM_KILLED && !sim.processes[p]->tainted;
    return n;
}

/* Whether the processes with which the job began have made their group. */
static bool has_begun(void)
{
    bool begun = true;
    for (int p = 0; p < job.n; p++)
        begun = begun && job.members[p].built;
    return begun;
}

/* Whether a part of a divided state may be lost with both processes that kept it. One may have ended with an error. */
static bool may_be_lost(void)
{
    int n = 0;
    for (int k = 0; k < job.n_members; k++)
        n += job.members[k].number < job.n && (sim.processes[k]->end == SIM_KILLED || sim.processes[k]->tainted ||
                                               job.members[k].failed.status != TREK_OK);
    return job.sharded && n > 1;
}

/* Whether this process was allowed not to get to the end. */
static bool may_fail(const member *m)
{
    const char *said = m->failed.message;
    if (m->again && !m->built && may_be_lost() && strstr(said, "cannot give its state"))
        return true;
    if (m->again && !m->built) /* it came too early, or too late, or found only others that have no state */
        return m->failed.status == TREK_ERR_STATE || m->failed.status == TREK_ERR_TIMEOUT || left(true) < job.least ||
               strstr(said, "a job that has just ended") || scenario_nobody_opened(said) || !has_begun();
    if (!m->built && left(false) < job.least && strstr(said, ".min_processes is")) /* in the set-up of a further graph */
        return true;
    if (!m->built)
        return !died_built() && (scenario_names_culprit(said) || strstr(said, "process"));
    if (strstr(said, "no other copy; load a checkpoint"))
        return may_be_lost();
    return left(true) < job.least && strstr(said, ".min_processes is");
}

static void compare_steps(int process, int graph, const uint64_t *digests, const uint64_t *alone)
{
    for (int k = 0; k < MOST_STEPS; k++)
        if (digests[k] && alone[k] && digests[k] != alone[k])
            sim_fail("process %d: step %d of graph %d has left something else than in a process that trains alone", process, k,
                     graph);
}

static bool has_its_params(const member *m, const member *alone)
{
    if (job.grain > 0)
        return memcmp(m->params, alone->params, sizeof m->params) == 0;
    bool same = true;
    for (int k = 0; k < job.graphs; k++)
        for (int i = 0; i < PARAMS; i++)
            same = same && fabs(m->params[k][i] - alone->params[k][i]) < 1e-9;
    return same;
}

static void check(void)
{
    const member *alone = &job.members[job.n];
    scenario_check_ended();
    if (!alone->done)
        sim_fail("the process that trains alone did not get to the end: %s", alone->failed.message);
    for (int k = 0; k < job.n_members; k++) {
        const member *m = &job.members[k];
        const sim_process *process = sim.processes[k];
        int p = m->number;
        if (p == job.n)
            continue;
        if (process->end == SIM_KILLED || (process->tainted && !scenario_mild() && !m->done))
            continue;
        if (!m->done && !may_fail(m))
            sim_fail("process %d did not get to the end: after %lld steps: %s: %s", p, (long long)m->steps,
                     trek_status_name(m->failed.status), m->failed.message);
        for (int k = 0; k < GRAPHS; k++)
            compare_steps(p, k, m->digest[k], alone->digest[k]);
        if (m->done && !has_its_params(m, alone))
            sim_fail("process %d: parameters are %.17g ... %.17g instead of %.17g ... %.17g", p, m->params[0][0],
                     m->params[0][IN],
                     alone->params[0][0], alone->params[0][IN]);
        if (m->done && m->steps != alone->steps)
            sim_fail("process %d has made %lld steps of %lld", p, (long long)m->steps, (long long)alone->steps);
    }
}

const scenario scenario_grains = { "grains", 90, begin, check };
const scenario scenario_loops = { "loops", 40, begin_plain, check };
