/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of several machines that take the grains of a pass from process 0 (distributed/grains/counter.h), several ranks in
 * each of them, at unequal speeds. At the end of a pass they meet: each grain was taken once. Nobody outlives a death here, so
 * those who are left have an error, soon, which names the process that has failed. */
#include <stdio.h>
#include <string.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/grains/counter.h"
#include "tests/simulation/scenario.h"

enum { MOST_PASSES = 6, MOST_GRAINS = 64, MOST_PROCESSES = 12, MOST_LOCAL = 4, COUNTERS = 2 };
enum { GRAIN_IS_TAKEN = OWN_MOMENTS };

typedef struct member member;

typedef struct rank {
    member *of;
    trek_thread thread;
    outcome failed;
} rank;

struct member {
    int number, ranks;
    int64_t wait_ns, works_ns;
    trek_comm *comm;
    trek_grain_counter *counters[COUNTERS]; /* of several graphs; passes take turns */
    bool began;    /* its counters are made */
    bool stops;    /* one of its ranks has failed in this pass: the others take no more */
    int pass, n;   /* passes that are complete; grains that it has taken in this one */
    rank local[MOST_LOCAL];
    outcome failed;
};

/* A pass, which all divide in the same way. */
typedef struct pass {
    int grains;
    int64_t first[MOST_PROCESSES + 1];
    double speed[MOST_PROCESSES];
    bool taken[MOST_GRAINS];
} pass;

static struct {
    int n, passes, counters;
    double deadline_s;
    int failing, fails_at; /* fails in the midst of this pass; -1: nobody */
    bool leaves;           /* and leaves the others, or they all go on with the next pass */
    int skewed;            /* this process has had another subject before; -1: none */
    pass of[MOST_PASSES];
    member members[MOST_PROCESSES];
} job;

/* --- a process ------------------------------------------------------------------------------------------------------ */

static void note(member *own, int64_t number)
{
    pass *p = &job.of[own->pass];
    if (number < 0 || number >= p->grains) {
        sim_fail("process %d has taken grain %lld of %d", own->number, (long long)number, p->grains);
        return;
    }
    if (p->taken[number])
        sim_fail("grain %lld of pass %d was taken twice, the second time by process %d", (long long)number, own->pass,
                 own->number);
    p->taken[number] = true;
    own->n++;
}

static bool is_to_fail(const member *own) { return own->number == job.failing && own->pass == job.fails_at; }

/* Process 0 answers whatever it does itself. If it does not, the group ends. */
static trek_status take(member *own, int64_t *number)
{
    bool calm = !sim.disturbed;
    int64_t since = sim.now_ns;
    sim_faults_come_to(GRAIN_IS_TAKEN, sim_here());
    trek_status status = trek_grain_counter_take(own->counters[own->pass % job.counters], number);
    outcome_time("taking a grain", since, calm && !sim.disturbed && job.failing < 0 ? 3 * SIM_S : 15 * SIM_S);
    return status;
}

static void *rank_main(void *arg)
{
    rank *self = arg;
    member *own = self->of;
    int64_t number;
    while (!own->stops && take(own, &number) == TREK_OK && number >= 0) {
        note(own, number);
        int64_t next = trek_grain_counter_expect(own->counters[own->pass % job.counters]);
        if (next < -1 || next >= job.of[own->pass].grains || next == number)
            sim_fail("process %d expects grain %lld after grain %lld of %d", own->number, (long long)next, (long long)number,
                     job.of[own->pass].grains);
        own->stops |= is_to_fail(own) && sim_chance(&sim.chance, 300);
        if (sim_chance(&sim.chance, 700))
            trek_sleep_ns(sim_below(&sim.chance, own->works_ns));
    }
    if (trek_error_status() != TREK_OK)
        outcome_take(&self->failed);
    return NULL;
}

static trek_status run_ranks(member *own)
{
    for (int r = 0; r < own->ranks; r++)
        own->local[r].of = own;
    for (int r = 1; r < own->ranks; r++)
        trek_thread_begin(&own->local[r].thread, rank_main, &own->local[r]);
    rank_main(&own->local[0]);
    for (int r = 1; r < own->ranks; r++)
        trek_thread_join(own->local[r].thread);
    for (int r = 0; r < own->ranks; r++)
        if (own->local[r].failed.status != TREK_OK)
            return trek_fail(own->local[r].failed.status, "%s", own->local[r].failed.message);
    return TREK_OK;
}

static trek_status run_pass(member *own)
{
    const pass *p = &job.of[own->pass];
    trek_grain_counter *counter = own->counters[own->pass % job.counters];
    trek_grain_division division = { own->comm->calls, p->first, p->speed };
    own->n = 0;
    own->stops = false;
    trek_grain_counter_begin(counter, &division, own->ranks);
    trek_status status = run_ranks(own);
    if (status == TREK_OK && is_to_fail(own) && job.leaves) {
        sim_here()->tainted = true;
        return trek_fail(TREK_ERR_IO, "the data of the process's own is gone");
    }
    if (status == TREK_OK && sim_chance(&sim.chance, 200) && trek_grain_counter_left(counter) > p->grains)
        sim_fail("process %d hears of more grains than the pass has", own->number);
    double taken = is_to_fail(own) ? -2 * MOST_GRAINS : own->n; /* the pass is dropped if the sum is below zero */
    int64_t since = sim.now_ns;
    if (status == TREK_OK)
        status = trek_comm_all_reduce_scalar(own->comm, &taken, TREK_REDUCTION_SUM);
    outcome_time("the end of a pass", since, (int64_t)(job.deadline_s * 1e9) * 3 + 20 * SIM_S);
    if (status == TREK_OK && taken >= 0 && taken != p->grains)
        sim_fail("%g grains of pass %d were taken, which has %d", taken, own->pass, p->grains);
    return status;
}

/* Whether passes can be run. */
static bool begin_counters(member *own)
{
    trek_status status = TREK_OK;
    if (own->number == job.skewed)
        trek_control_subject(own->comm->control, trek_grain_ledger_answer, NULL);
    for (int k = 0; k < job.counters && status == TREK_OK; k++)
        status = trek_grain_counter_make(own->comm, &own->counters[k]);
    own->began = status == TREK_OK;
    for (int k = 0; k < job.counters && own->began; k++)
        if (!own->counters[k] != (job.skewed >= 0))
            sim_fail("process %d has %s counter", own->number, own->counters[k] ? "a" : "no");
    return own->began && job.skewed < 0;
}

static int process_main(void *arg)
{
    member *own = arg;
    trek_status status = TREK_OK;
    trek_sleep_ns(own->wait_ns);
    own->comm = trek_comm_init(&(trek_comm_opts){ .deadline_s = job.deadline_s });
    if (own->comm && begin_counters(own))
        for (; own->pass < job.passes && status == TREK_OK; own->pass += status == TREK_OK)
            status = run_pass(own);
    if (trek_error_status() != TREK_OK)
        outcome_take(&own->failed);
    sim_trace("ends after %d passes: %s", own->pass, own->failed.message);
    for (int k = 0; k < job.counters; k++)
        trek_grain_counter_free(&own->counters[k]);
    trek_comm_free(&own->comm);
    scenario_leave(own->number, 1, 1); /* the window is the process's as long as it lives, and so is the library's thread */
    return 0;
}

/* --- a job ---------------------------------------------------------------------------------------------------------- */

/* Ranges and speeds need not fit what the processes are like. */
static void draw_pass(sim_random *random, pass *p)
{
    int64_t weight[MOST_PROCESSES], sum = 0, at = 0;
    p->grains = (int)sim_below(random, MOST_GRAINS + 1);
    for (int k = 0; k < job.n; k++) {
        sum += weight[k] = sim_chance(random, 150) ? 0 : sim_span(random, 1, 16);
        p->speed[k] = (double)sim_span(random, 1, 64) * 1e-9;
    }
    for (int k = 0; k < job.n; k++) {
        p->first[k] = sum > 0 ? p->grains * at / sum : 0;
        at += weight[k];
    }
    p->first[job.n] = p->grains;
}

static void draw_faults(sim_random *random, int64_t within_ns)
{
    sim_fault_mix mix = { .most = 2,
                          .weights = { 4, 2, 4, 2, 1, 1, 1, 0, 1 },
                          .processes = job.n,
                          .machines = sim.machines,
                          .within_ns = within_ns,
                          .steps = 3000,
                          .longest_ns = 20 * SIM_S };
    sim_faults_draw(random, &mix);
    if (!sim_chance(random, 400))
        return;
    sim_fault *fault = scenario_draw_moment(random, GRAIN_IS_TAKEN, job.passes * MOST_GRAINS / 2, job.n);
    fault->process = sim_chance(random, 500) ? 0 : fault->process;
}

static void begin(sim_random *random)
{
    memset(&job, 0, sizeof job);
    scenario_settings(random);
    job.n = sim.began_with = scenario_processes(random, MOST_PROCESSES);
    job.passes = 1 + (int)sim_below(random, MOST_PASSES);
    job.counters = sim_chance(random, 200) ? COUNTERS : 1;
    job.failing = sim_chance(random, 200) ? (int)sim_below(random, job.n) : -1;
    job.fails_at = (int)sim_below(random, job.passes);
    job.leaves = sim_chance(random, 500);
    job.skewed = sim_chance(random, 50) ? (int)sim_below(random, job.n) : -1;
    sim.machines = sim_chance(random, 100) ? 1 : 2 + (int)sim_below(random, job.n - 1);
    int64_t late = sim_span(random, 1, 1000) * SIM_MS, works = sim_span(random, 1, 300) * SIM_MS;
    job.deadline_s = (double)sim_span(random, 6, 60) + 8e-9 * (double)works * MOST_GRAINS; /* one may have them all */
    bool tree = sim_chance(random, 300);
    for (int k = 0; k < job.passes; k++)
        draw_pass(random, &job.of[k]);
    for (int p = 0; p < job.n; p++) {
        job.members[p] = (member){ .number = p, .ranks = 1 + (int)sim_below(random, MOST_LOCAL),
                                   .wait_ns = sim_below(random, late), .works_ns = works * (1 + sim_below(random, 8)) };
        sim_process *process = scenario_start(p, job.n, p % sim.machines, false, process_main, &job.members[p]);
        if (tree) /* gathers then overtake questions, which go to process 0 directly */
            sim_process_set(process, "TREK_CONTROL_TREE_ABOVE", "2");
    }
    draw_faults(random, late + job.passes * 8 * works);
    sim.bound_ns = sim.now_ns + 3600 * SIM_S;
}

static void check(void)
{
    int least = job.passes, most = 0, passes = job.skewed < 0 ? job.passes : 0;
    bool must = !(job.failing >= 0 && job.leaves) && scenario_mild() && scenario_outlasts((int64_t)(job.deadline_s * 1e9));
    scenario_check_ended();
    for (int p = 0; p < job.n; p++) {
        const member *m = &job.members[p];
        bool done = m->began && m->pass == passes;
        if (must && !done)
            sim_fail("process %d did not get to the end although nothing was wrong: %s", p, m->failed.message);
        if (!scenario_survived(p) || !m->began)
            continue;
        if (!done && !scenario_names_culprit(m->failed.message))
            sim_fail("process %d names nobody who failed: %s: %s", p, trek_status_name(m->failed.status), m->failed.message);
        least = m->pass < least ? m->pass : least;
        most = m->pass > most ? m->pass : most;
    }
    if (most > least + 1)
        sim_fail("one survivor has made %d passes, another one %d", most, least);
}

const scenario scenario_counter = { "counter", 40, begin, check };
