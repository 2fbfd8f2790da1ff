/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel alone: all join, gather a few times, and leave; and again, at the same address, as often as the job does.
 */
#include <stdio.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "tensor/memory_internal.h"
#include "tests/simulation/scenario.h"

enum { IS_ABOUT_TO_LEAVE = OWN_MOMENTS }; /* process 0, after the last round */

typedef struct part {
    bool came, joined; /* joined: trek_control_join has succeeded */
    int stays;         /* for so many rounds */
    bool exits;        /* without leaving */
    int rounds;        /* that succeeded, of all groups */
    int64_t wait_ns;   /* before it joins */
    int64_t works_ns;  /* between two rounds, at most */
    int64_t lingers_ns; /* before it leaves a group, at most */
    int64_t came_ns;    /* when it last began to join */
    outcome joining, gathering;
} part;

static struct {
    int n, groups, rounds, flat; /* rounds: of a group */
    double join_s;
    int64_t deadline_ns;
    int words;            /* of a process's part */
    bool quits;   /* one leaves before the others */
    bool patient; /* who is killed is started again, and waited for as long as all are joining */
    bool begun;   /* somebody has joined, who may have been killed since */
    part parts[SIM_PROCESSES];
} job;

/* What process p gives in a round. */
static uint32_t word_of(int p, int round, int k) { return (uint32_t)(p * 1000003 + round * 10007 + k * 101 + 7); }

static void gather_round(trek_control *control, part *own, int self, int round, uint32_t *mine, uint32_t *all)
{
    for (int k = 0; k < job.words; k++)
        mine[k] = word_of(self, round, k);
    bool calm = !sim.disturbed;
    int64_t since = sim.now_ns, most = job.deadline_ns ? 3 * job.deadline_ns + 20 * SIM_S : SIM_NEVER / 2;
    trek_status status = trek_control_gather(control, mine, (size_t)job.words * sizeof *mine, all, job.deadline_ns);
    if (calm && !sim.disturbed && job.n <= 16) /* nobody is late for longer than it works */
        most = own->works_ns + 6 * SIM_S;
    outcome_time("a gather", since, most);
    if (status != TREK_OK) {
        outcome_take(&own->gathering);
        return;
    }
    for (int p = 0; p < job.n; p++)
        for (int k = 0; k < job.words; k++)
            if (all[p * job.words + k] != word_of(p, round, k))
                sim_fail("process %d: a gather has brought a wrong part of process %d", self, p);
    own->rounds++;
    if (self == 0 && own->rounds == job.groups * job.rounds)
        sim_faults_come_to(IS_ABOUT_TO_LEAVE, sim_here());
}

static void work(trek_control *control, part *own, int self)
{
    uint32_t *mine = trek_alloc((size_t)job.words * sizeof *mine), *all = trek_alloc((size_t)(job.n * job.words) * sizeof *all);
    for (int round = 0; round < own->stays && own->gathering.status == TREK_OK; round++) {
        if (sim_chance(&sim.chance, 300)) {
            trek_control_say(control, "working", NULL);
            trek_sleep_ns(sim_below(&sim.chance, own->works_ns));
        }
        gather_round(control, own, self, round, mine, all);
    }
    trek_free(mine);
    trek_free(all);
}

/* For good. */
static bool nobody_died(void *arg, char *text, size_t size)
{
    (void)arg, (void)text, (void)size;
    return false;
}

/* Joins a group of the job, works in it and leaves it. Whether there may be another one. */
static bool be_in_a_group(part *own, int self)
{
    trek_control_opts opts = { .process = self,
                               .processes = job.n,
                               .address = "10.0.0.1",
                               .port = 29500,
                               .token = "secret",
                               .join_s = job.join_s,
                               .flat = job.flat,
                               .patient = job.patient,
                               .died = job.patient ? nobody_died : NULL };
    int64_t since = own->came_ns = sim.now_ns;
    own->joined = false;
    trek_control *control = trek_control_join(&opts);
    outcome_time("joining", since, (int64_t)(job.join_s * 1e9) + 15 * SIM_S);
    if (!control) {
        outcome_take(&own->joining);
        return false;
    }
    own->joined = job.begun = true;
    work(control, own, self);
    sim_here()->tainted |= own->stays < job.rounds; /* the others will miss it */
    if (own->exits)
        return false;
    if (own->lingers_ns && sim_chance(&sim.chance, 500))
        trek_sleep_ns(sim_below(&sim.chance, own->lingers_ns));
    since = sim.now_ns;
    trek_control_free(&control);
    outcome_time("leaving", since, 4 * SIM_S);
    return own->gathering.status == TREK_OK;
}

static int process_main(void *arg)
{
    int self = (int)(intptr_t)arg;
    part *own = &job.parts[self];
    trek_sleep_ns(own->wait_ns);
    own->came = true;
    for (int group = 0; group < job.groups && be_in_a_group(own, self); group++)
        ;
    if (!own->exits && sim_process_left(sim_here())[0])
        sim_fail("process %d leaves behind: %s", self, sim_process_left(sim_here()));
    return 0;
}

/* The launcher. */
static void look_for_dead(void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    for (int p = 0; p < job.n; p++) {
        const sim_process *process = scenario_process(p);
        if (process->end != SIM_KILLED || sim.now_ns - process->ended_ns < 20 * SIM_MS)
            continue;
        job.parts[p].wait_ns = 0;
        sim_process_begin(p, p % sim.machines, process_main, (void *)(intptr_t)p)->tainted = true;
    }
    if (sim.now_ns < 1000 * SIM_S + (int64_t)(job.join_s * 1e9))
        sim_at(sim.now_ns + 30 * SIM_MS, look_for_dead, NULL, 0);
}

/* Some are killed while all are joining, and come again. */
static void draw_deaths(sim_random *random, int64_t late)
{
    sim_fault_mix mix = { .most = 4,
                          .weights = { 1 },
                          .processes = job.n,
                          .machines = sim.machines,
                          .within_ns = late + 100 * SIM_MS,
                          .steps = 300,
                          .longest_ns = SIM_S };
    sim_faults_draw(random, &mix);
    sim_at(sim.now_ns + 30 * SIM_MS, look_for_dead, NULL, 0);
    sim.bound_ns = sim.now_ns + 3600 * SIM_S;
}

/* Process 0 stands still until others' parts, and the end of its deadline, wait for it together. */
static void draw_at_gather(sim_random *random)
{
    sim.faults[sim.n_faults++] = (sim_fault){ .kind = SIM_STOP, .process = 0, .follows = true, .moment = GATHERS, .own = true,
                                              .turns = (int)sim_below(random, job.rounds),
                                              .at_step = (uint64_t)sim_span(random, 1, 60),
                                              .for_ns = job.deadline_ns + sim_below(random, 900 * SIM_MS) };
}

static void begin(sim_random *random)
{
    memset(&job, 0, sizeof job);
    scenario_settings(random);
    job.n = sim.began_with = scenario_processes(random, 64);
    job.groups = sim_chance(random, 300) ? 2 + (int)sim_below(random, 3) : 1;
    job.rounds = 1 + (int)sim_below(random, 8);
    job.join_s = (double)sim_span(random, 5, 60);
    job.deadline_ns = sim_chance(random, 200) ? 0 : sim_span(random, 1, 40) * SIM_S;
    job.words = 1 + (int)sim_span(random, 1, job.n > 8 ? 16 : 1000);
    job.flat = sim_chance(random, 350) ? 2 : 0;
    sim.machines = sim_chance(random, 300) ? 1 : 1 + (int)sim_below(random, job.n);
    int64_t late = sim_span(random, 1, (int64_t)(job.join_s * 250)) * SIM_MS;
    int64_t lingers = job.groups > 1 ? sim_span(random, 1, (int64_t)(job.join_s * 250)) * SIM_MS : 0;
    int64_t works = sim_span(random, 1, job.deadline_ns ? job.deadline_ns / SIM_MS / 4 : 2000) * SIM_MS;
    for (int p = 0; p < job.n; p++) {
        job.parts[p].wait_ns = sim_below(random, late);
        job.parts[p].works_ns = works;
        job.parts[p].stays = job.rounds;
        job.parts[p].lingers_ns = lingers;
        sim_process_begin(p, p % sim.machines, process_main, (void *)(intptr_t)p);
    }
    job.patient = job.groups == 1 && job.n < 12 && sim_chance(random, 200);
    if (job.patient) {
        draw_deaths(random, late);
        return;
    }
    if (job.groups == 1 && sim_chance(random, 150)) {
        part *early = &job.parts[sim_below(random, job.n)];
        early->stays = (int)sim_below(random, job.rounds);
        early->exits = sim_chance(random, 500);
        job.quits = true;
    }
    sim_fault_mix mix = { .most = 3,
                          .weights = { 6, 4, 6, 3, 3, 1, 1, 0, 2 },
                          .processes = job.n,
                          .machines = sim.machines,
                          .within_ns = (late + 2 * works + lingers) * job.groups,
                          .steps = 2000,
                          .longest_ns = 20 * SIM_S };
    sim_faults_draw(random, &mix);
    if (job.deadline_ns && job.deadline_ns <= 4 * SIM_S && sim_chance(random, 500))
        draw_at_gather(random);
    if (job.flat == 2 && job.n >= 4 && sim.machines > 1 && sim_chance(random, 300)) { /* one in the midst of the tree */
        sim.faults[sim.n_faults++] = (sim_fault){ .kind = SIM_POWER, .process = 1, .follows = true, .moment = IS_ABOUT_TO_LEAVE,
                                                  .at_step = (uint64_t)sim_span(random, 1, 200), .for_ns = SIM_NEVER };
    }
    sim.bound_ns = sim.now_ns + 3600 * SIM_S;
}

/* Who comes later than two seconds after a death finds nobody any more. */
static void zero_has_gone(int p)
{
    const sim_process *zero = scenario_process(0);
    for (int k = 1; k < job.n && !zero->tainted; k++) {
        const sim_process *dead = scenario_process(k);
        bool heard = zero->end == SIM_ALIVE || dead->ended_ns < zero->ended_ns;
        if (heard && dead->end == SIM_KILLED && !sim.powerless[dead->machine] && job.parts[k].came &&
            job.parts[p].came_ns < dead->ended_ns + SIM_S)
            sim_fail("process %d came within a second of the death of process %d, and was told nothing", p, k);
    }
    if (!zero->tainted && (zero->end == SIM_ALIVE || zero->ended_ns > scenario_process(p)->ended_ns))
        sim_fail("process %d did not reach process 0, which was there", p);
}

/* Nobody gives up as long as all are joining. */
static void check_patience(void)
{
    for (int p = 0; p < job.n && !job.begun; p++)
        if (scenario_process(p)->end != SIM_KILLED)
            sim_fail("process %d gave up: %s", p, job.parts[p].joining.message);
}

/* Process 0 says who is late, and hears nobody as long as its machine is cut off. Within the silence that it waits for before it
 * takes a link for dead it cannot tell that from a process that does not come. */
static bool late_by_a_cut(const char *message)
{
    return scenario_zero_was_cut() && job.deadline_ns <= TREK_CONTROL_SILENCE_NS && strstr(message, " did not come within ");
}

/* In a tree process 0 says why a connection has ended, within TREK_CONTROL_TORN_NS. If it stands still, a process below one that
 * has given up for that reason knows the other end alone. */
static bool torn_without_zero(const char *message)
{
    bool away = false;
    for (int k = 0; k < sim.n_faults; k++)
        away |= sim.faults[k].done && sim.faults[k].kind == SIM_STOP && sim.faults[k].process == 0 &&
                sim.faults[k].for_ns > TREK_CONTROL_TORN_NS / 2;
    return away && strstr(message, ", which gathers use, is lost");
}

static void check_errors(const part *own, int p)
{
    const outcome *failed = own->joined ? &own->gathering : &own->joining;
    if (failed->status == TREK_OK)
        sim_fail("process %d has failed without an error", p);
    else if (strstr(failed->message, "did not reach process 0") || strstr(failed->message, "a job that has just ended"))
        zero_has_gone(p);
    else if (!scenario_names_culprit(failed->message) && !late_by_a_cut(failed->message) && !torn_without_zero(failed->message))
        sim_fail("process %d names nobody who failed: %s: %s", p, trek_status_name(failed->status), failed->message);
}

static void check(void)
{
    int all = job.groups * job.rounds, least = all, most = 0;
    scenario_check_ended();
    if (job.patient) {
        check_patience();
        return;
    }
    bool must = !job.quits && scenario_mild() && scenario_outlasts((int64_t)(job.join_s * 1e9)) &&
                (job.deadline_ns == 0 || (job.deadline_ns >= 10 * SIM_S && scenario_outlasts(job.deadline_ns)));
    for (int p = 0; p < job.n; p++) {
        const part *own = &job.parts[p];
        bool done = own->rounds == all;
        if (must && !done)
            sim_fail("process %d did not get to the end although nothing was wrong: %s", p,
                     own->joined ? own->gathering.message : own->joining.message);
        if (!scenario_survived(p))
            continue;
        if (!done && (sim.disturbed || job.quits))
            check_errors(own, p);
        least = own->rounds < least ? own->rounds : least;
        most = own->rounds > most ? own->rounds : most;
    }
    if (most > least + 1)
        sim_fail("one survivor has seen %d rounds, another one %d", most, least);
}

const scenario scenario_control = { "control", 420, begin, check };
