/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of one machine that go on without those who die, and take in those who were started again, and newcomers:
 * comm/init.c, the shared engine, comm/regroup.c and the rendezvous points. A step is a sum over all and is complete when it has
 * come back; whoever is behind takes the newest state, as run/elastic.c does it. */
#include <stdio.h>
#include <string.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/comm/regroup.h"
#include "nn/module_internal.h"
#include "tests/simulation/scenario.h"

enum { PROGRAM = 4711, EPOCH = 4 };

/* What a process has to go on from. */
typedef struct state {
    int64_t step;
    uint64_t history; /* of what each step came to */
} state;

/* Of one process; one that is started again has another. */
typedef struct member {
    int number;
    bool again, done, alone; /* started again, or a newcomer; it has got to the end; it did not find the others any more */
    int64_t wait_ns, works_ns;
    int64_t admitted;   /* the step before which joiners were admitted last, from 1 on */
    int groups;         /* that it was in */
    int64_t stepped_ns; /* when its last complete step began */
    int64_t entered_ns; /* when it was in its first group; 0: never */
    state state;
    outcome failed;
} member;

static struct {
    int n, least, n_members, runs; /* runs: one after the other, in groups of their own */
    int64_t steps;
    double deadline_s;
    int newcomers; /* that come some time */
    bool full; /* nobody may come, since the job has as many ranks as it can have */
    bool tree; /* its gathers go through a tree, though it is small */
    member members[SIM_PROCESSES];
} job;

/* What member `number` gives in a step. */
typedef struct share {
    int64_t step, sum;
    int32_t count, mask;
} share;

static share share_of(int number, int64_t step)
{
    return (share){ .step = step, .sum = step * 1000 + number, .count = 1, .mask = 1 << number % 30 };
}

static trek_status sum(trek_comm *comm, int64_t numbers[4])
{
    return trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM, .dtype = TREK_I64,
                                                 .count = 4, .in = numbers, .out = numbers });
}

/* Makes calls of a group that has ended, as programs may. The second of them has the place of the last one that was complete. */
static void call_again(trek_comm *comm, int64_t numbers[4])
{
    trek_kept_error kept;
    trek_error_keep(&kept);
    for (int k = 0; k < 2; k++)
        if (sum(comm, numbers) == TREK_OK)
            sim_fail("process %d: a call of a group that has ended is complete", sim_here()->number);
    trek_error_clear();
    trek_error_put_back(&kept);
}

static trek_status do_step(trek_comm *comm, member *own)
{
    int64_t step = own->state.step + 1, numbers[4];
    share mine = share_of(own->number, step);
    numbers[0] = mine.step;
    numbers[1] = mine.sum;
    numbers[2] = mine.count;
    numbers[3] = mine.mask;
    int64_t since = sim.now_ns;
    trek_status status = sum(comm, numbers);
    if (status != TREK_OK) {
        if (step % 2)
            call_again(comm, numbers);
        return status;
    }
    if (numbers[2] != comm->world || numbers[0] != step * comm->world)
        sim_fail("process %d: in its step %lld %lld processes took part, of %d, with steps of %lld together", own->number,
                 (long long)step, (long long)numbers[2], comm->world, (long long)numbers[0]);
    uint64_t result = (uint64_t)numbers[1] * 31 + (uint64_t)numbers[3] + 1;
    own->stepped_ns = since;
    own->state.step = step;
    own->state.history = own->state.history * 1000003 + result;
    return TREK_OK;
}

/* All have the newest state of one of them. */
static trek_status take_newest(trek_comm *comm, member *own)
{
    state all[SIM_PROCESSES];
    trek_status status = trek_comm_gather_bytes(comm, &own->state, sizeof own->state, all);
    if (status != TREK_OK)
        return status;
    state newest = all[0];
    int64_t oldest = INT64_MAX;
    for (int r = 0; r < comm->world; r++) {
        newest = all[r].step > newest.step ? all[r] : newest;
        oldest = all[r].step >= 0 && all[r].step < oldest ? all[r].step : oldest;
    }
    if (newest.step >= 0 && newest.step > oldest + 1)
        sim_fail("process %d: survivors are at steps %lld and %lld", own->number, (long long)oldest, (long long)newest.step);
    for (int r = 0; r < comm->world; r++)
        if (all[r].step == newest.step && all[r].history != newest.history)
            sim_fail("process %d: survivors have gone through other steps", own->number);
    if (newest.step < 0)
        return trek_fail(TREK_ERR_STATE, "none of the remaining processes has a state");
    own->state = newest;
    return TREK_OK;
}

/* Those who die are known to be dead at once. */
static bool only_deaths(void)
{
    for (int k = 0; k < sim.n_faults; k++)
        if (sim.faults[k].done && sim.faults[k].kind != SIM_KILL)
            return false;
    return true;
}

/* The next group, until one has taken up the newest state. */
static trek_status meet(trek_regroup *regroup, trek_comm **comm, member *own)
{
    trek_status status;
    do {
        int64_t since = sim.now_ns;
        trek_error_clear();
        if (job.tree && own->number == sim.faults[0].process && sim.faults[0].follows)
            sim.faults[0].moment = GATHERS;
        trek_comm *next = trek_regroup_meet(regroup, *comm, job.least);
        outcome_time("meeting the others", since, only_deaths() ? 12 * SIM_S : (int64_t)(job.deadline_s * 1e9) * 2 + 20 * SIM_S);
        own->alone = next == NULL;
        if (own->alone)
            return trek_error_status();
        sim_trace("is in a group of %d now", next->world);
        own->groups++;
        trek_comm_free(comm);
        *comm = next;
        status = take_newest(*comm, own);
    } while (status != TREK_OK && trek_regroup_may(*comm));
    return status;
}

static trek_status admit(trek_regroup *regroup, trek_comm **comm, member *own)
{
    trek_status status = TREK_OK;
    bool closed = own->admitted == own->state.step + 1;
    for (int joiners = 1; status == TREK_OK && joiners > 0;) { /* those who have come ask, too */
        status = trek_regroup_invite(regroup, *comm,
                                     &(trek_regroup_door){ .closed = closed,
                                                           .ranks = job.full ? TREK_MAX_RANKS : (*comm)->world }, &joiners);
        if (status != TREK_OK || joiners == 0)
            continue;
        own->admitted = own->state.step + 1;
        status = meet(regroup, comm, own);
        closed = trek_regroup_lost(regroup)[0] || !trek_regroup_come(regroup)[0];
    }
    return status;
}

static trek_status one_step(trek_regroup *regroup, trek_comm **comm, member *own)
{
    if (own->state.step % EPOCH == 0) {
        int64_t before = own->state.step;
        trek_status status = admit(regroup, comm, own);
        if (status != TREK_OK || own->state.step != before)
            return status;
    }
    if (own->state.step >= job.steps)
        return TREK_OK;
    if (sim_chance(&sim.chance, 500))
        trek_sleep_ns(sim_below(&sim.chance, own->works_ns));
    int64_t since = sim.now_ns;
    trek_status status = do_step(*comm, own);
    outcome_time("a step", since, (int64_t)(job.deadline_s * 1e9) * 3 + 20 * SIM_S);
    return status;
}

static void train(trek_regroup *regroup, trek_comm **comm, member *own)
{
    trek_status status = own->again ? take_newest(*comm, own) : TREK_OK;
    for (;;) {
        if (status == TREK_OK && own->state.step >= job.steps)
            break;
        if (status == TREK_OK)
            status = one_step(regroup, comm, own);
        else if (!own->alone && trek_regroup_may(*comm))
            status = meet(regroup, comm, own);
        else
            break;
    }
    own->done = status == TREK_OK;
    if (status != TREK_OK)
        outcome_take(&own->failed);
}

static void run(member *own)
{
    trek_comm *comm = NULL;
    trek_regroup *regroup = NULL;
    own->done = false;
    own->state = (state){ .step = 0 };
    if (own->again) {
        own->state.step = -1;
        regroup = trek_regroup_join(PROGRAM, 1, &comm);
        if (comm)
            trek_comm_set_deadline(comm, job.deadline_s);
    } else {
        comm = trek_comm_init(&(trek_comm_opts){ .engine = "shared", .deadline_s = job.deadline_s });
        sim_faults_come_to(RENDEZVOUS_OPENS, sim_here());
        regroup = comm ? trek_regroup_new(comm, PROGRAM) : NULL;
    }
    own->groups += regroup != NULL;
    own->entered_ns = regroup && !own->entered_ns ? sim.now_ns : own->entered_ns;
    if (regroup)
        train(regroup, &comm, own);
    else
        outcome_take(&own->failed);
    sim_trace("ends at step %lld: %s", (long long)own->state.step, own->failed.message);
    if (job.runs > 1 && sim_chance(&sim.chance, 500))
        trek_sleep_ns(sim_below(&sim.chance, 4 * SIM_S));
    trek_regroup_free(&regroup);
    trek_comm_free(&comm);
}

static int process_main(void *arg)
{
    member *own = arg;
    trek_sleep_ns(own->wait_ns);
    for (int k = 0; k < job.runs && (k == 0 || own->done); k++)
        run(own);
    scenario_leave(own->number, 1, 0); /* the window is the process's as long as it lives */
    return own->done ? 0 : 1;
}

static void start(int number, bool again, int64_t wait_ns, int64_t works_ns)
{
    member *own = &job.members[job.n_members++];
    *own = (member){ .number = number, .again = again, .wait_ns = wait_ns, .works_ns = works_ns };
    sim_process *process = scenario_start(number, job.n, 0, again, process_main, own);
    if (job.tree)
        sim_process_set(process, "TREK_CONTROL_TREE_ABOVE", "2");
}

static void start_again(int number) { start(number, true, 0, job.members[number].works_ns); }

/* One stands still where the others know of its rendezvous already, and another one dies: they come to it. Or its own thread
 * alone does, just before it enters its first group, while that of its rendezvous goes on. */
static void draw_at_rendezvous(sim_random *random)
{
    sim_fault *fault = &sim.faults[sim.n_faults];
    sim_random apart = *random;
    sim.n_faults += 2;
    int process = (int)sim_below(random, job.n);
    fault[0] = (sim_fault){ .kind = SIM_STOP,
                            .process = process,
                            .follows = true, .moment = RENDEZVOUS_OPENS, .own = true,
                            .at_step = (uint64_t)sim_span(random, 10, 120),
                            .for_ns = sim_span(random, 300, 4000) * SIM_MS };
    fault[1] = (sim_fault){ .kind = SIM_KILL,
                            .process = (process + 1 + (int)sim_below(random, job.n - 1)) % job.n,
                            .follows = true,
                            .at_step = (uint64_t)sim_span(random, 1, 60) };
    if (sim_chance(&apart, 400)) {
        fault[0].kind = SIM_LINGER;
        fault[0].moment = IS_TO_ENTER;
    }
}

/* It stands still while it asks after a death who is missing, and before it knows, which takes a while. */
static void draw_at_question(sim_random *random, sim_fault *fault, int64_t within_ns)
{
    fault->own = false;
    fault->process = SIM_WHO_COMES;
    fault->moment = IS_ASKED;
    fault->turns = (int)sim_below(random, 8);
    fault->at_step = (uint64_t)sim_span(random, 1, 16);
    sim.faults[sim.n_faults++] = (sim_fault){ .kind = SIM_KILL, .process = (int)sim_below(random, job.n),
                                              .at_ns = sim_below(random, within_ns) };
    sim.settings.latency_ns = sim_span(random, 2 * SIM_MS, 20 * SIM_MS);
}

/* One dies, or stands still, while it looks for the others: at any moment, or between two of the messages by which the one to
 * which all come tells one after the other. */
static void draw_at_meet(sim_random *random, int64_t within_ns)
{
    sim_fault *fault = &sim.faults[sim.n_faults++];
    *fault = (sim_fault){ .kind = SIM_KILL, .process = (int)sim_below(random, job.n), .follows = true,
                          .moment = OTHERS_ARE_SOUGHT, .own = true };
    int64_t how = sim_below(random, 5);
    if (how == 0) {
        fault->at_step = (uint64_t)sim_span(random, 20, 250);
        return;
    }
    fault->process = (int)sim_below(random, 2);
    if (how == 1) {
        fault->at_send = 1 + (uint64_t)sim_below(random, 60);
        return;
    }
    fault->kind = SIM_STOP; /* about as long as the others wait before they take it for dead */
    fault->at_step = (uint64_t)sim_span(random, 20, 250);
    fault->for_ns = 4800 * SIM_MS + sim_below(random, 1500 * SIM_MS);
    if (sim_chance(random, 850))
        draw_at_question(random, fault, within_ns);
}

/* One dies, and in the next group the head of the tree's first branch before it has told its branch what all have gathered, and
 * then process 0. Of those who are left the first has not entered that group, but those of other branches have. */
static void draw_heads(sim_random *random)
{
    int first = (int)sim_below(random, job.n), top = first == 0, head = first <= 1 ? 2 : 1;
    sim_fault *fault = sim.faults;
    fault[0] = (sim_fault){ .kind = SIM_KILL, .process = head, .follows = true, .at_send = 1 + (uint64_t)sim_below(random, 5) };
    fault[1] = (sim_fault){ .kind = SIM_KILL, .process = top, .follows = true, .at_step = (uint64_t)sim_span(random, 1, 300) };
    fault[2] = (sim_fault){ .kind = SIM_KILL, .process = first, .at_ns = SIM_S + sim_below(random, 4 * SIM_S) };
    sim.n_faults = 3;
}

static void draw_faults(sim_random *random, int64_t within_ns)
{
    sim_fault_mix mix = { .most = 4,
                          .weights = { 9, 0, 3, 1, 0, 0, 0, 0, 1 },
                          .processes = job.n,
                          .machines = 1,
                          .within_ns = within_ns,
                          .steps = 4000,
                          .longest_ns = 20 * SIM_S };
    sim_faults_draw(random, &mix);
    if (job.n > 2 && sim_chance(random, 150))
        draw_at_rendezvous(random);
    if (job.n > 2 && sim_chance(random, 500))
        draw_at_meet(random, within_ns);
}

/* The machine stands still while all seek each other, for so long that they notice, and a newcomer that they have let in dies. */
static void draw_at_arrival(sim_random *random)
{
    sim_fault *fault = &sim.faults[sim.n_faults];
    sim.n_faults += 2;
    fault[0] = (sim_fault){ .kind = SIM_SUSPEND, .follows = true, .moment = OTHERS_ARE_SOUGHT,
                            .at_ns = sim_below(random, 60000), .for_ns = sim_span(random, 2600, 4800) * SIM_MS };
    fault[1] = (sim_fault){ .kind = SIM_KILL, .process = job.n + (int)sim_below(random, job.newcomers), .follows = true,
                            .at_ns = sim_below(random, 2 * SIM_S) };
}

/* Processes that were not in the job before, some of which die. */
static void draw_newcomers(sim_random *random, int64_t within_ns, int64_t works)
{
    job.full = sim_chance(random, 100);
    job.newcomers = 1 + (int)sim_below(random, 3);
    for (int k = 0; k < job.newcomers; k++)
        start(job.n + k, true, sim_below(random, within_ns), works);
    if (sim_chance(random, 400))
        sim.faults[sim.n_faults++] = (sim_fault){ .kind = SIM_KILL, .process = job.n + (int)sim_below(random, job.newcomers),
                                                  .at_ns = sim.now_ns + sim_below(random, within_ns) };
    if (sim.n_faults == 0 && sim_chance(random, 800))
        draw_at_arrival(random);
}

static void begin(sim_random *random)
{
    enum { TREE = 8 }; /* with so many, and when one has died, the first branch has two members */
    memset(&job, 0, sizeof job);
    sim_random apart = *random; /* the other schedules are what they are without this */
    job.tree = sim_chance(&apart, 50);
    scenario_settings(random);
    job.n = scenario_processes(random, 12);
    job.n = sim.began_with = job.tree ? TREE + (int)sim_below(random, 13 - TREE) : job.n;
    job.least = sim_chance(random, 700) ? 1 : 1 + (int)sim_below(random, job.n);
    job.steps = EPOCH * (1 + sim_below(random, 5));
    job.deadline_s = (double)sim_span(random, 6, 60);
    int restarts = sim_chance(random, 400) ? 1 + (int)sim_below(random, 3) : 0;
    sim.machines = 1;
    int64_t late = sim_span(random, 1, 2000) * SIM_MS, works = sim_span(random, 1, 1000) * SIM_MS;
    for (int p = 0; p < job.n; p++)
        start(p, false, sim_below(random, late), works);
    if (job.tree)
        draw_heads(random);
    else
        draw_faults(random, late + job.steps * works);
    if (!job.tree && sim.n_faults + 1 < SIM_FAULTS && sim_chance(&apart, 250))
        draw_newcomers(&apart, late + job.steps * works + SIM_S, works);
    job.runs = job.newcomers > 0 ? 1 : sim.n_faults == 0 && restarts == 0 ? 1 + (int)sim_below(random, 3) : 1;
    scenario_launch(job.n, restarts, 300 * SIM_MS, start_again);
    sim.bound_ns = sim.now_ns + 7200 * SIM_S;
}

/* How one that was started again may have come too late; or too early: the first group has not met, and never will. */
static bool came_too_late(const member *m)
{
    bool met = false;
    for (int k = 0; k < job.n; k++)
        met = met || job.members[k].groups > 0;
    bool over = strstr(m->failed.message, "a job that has just ended") || scenario_nobody_opened(m->failed.message);
    return m->again && m->groups == 0 && (m->failed.status == TREK_ERR_STATE || m->failed.status == TREK_ERR_TIMEOUT || over ||
                                          !met);
}

/* All that had made steps have died, and those who came in their place had not got a state from them yet. */
static bool has_nobody_with_state(const member *m)
{
    for (int k = 0; k < job.n_members; k++)
        if (sim.processes[k]->end != SIM_KILLED && job.members[k].state.step >= 0)
            return false;
    return m->again && strstr(m->failed.message, "none of the remaining processes has a state");
}

/* It waited for the next meeting when all was done: that is to be told at once. */
static void check_told(const member *m, const sim_process *process)
{
    int64_t quiet_since = process->began_ns + m->wait_ns, over = 0;
    for (int k = 0; k < job.n_members; k++) {
        const sim_process *other = sim.processes[k];
        if (other->end == SIM_KILLED && other->ended_ns > quiet_since)
            quiet_since = other->ended_ns;
        if (job.members[k].done && other->ended_ns > over)
            over = other->ended_ns;
        if (k < job.n && job.members[k].entered_ns > quiet_since) /* a job that is over at once tells nobody */
            quiet_since = job.members[k].entered_ns;
    }
    if (m->again && m->failed.status == TREK_ERR_TIMEOUT && only_deaths() && over > quiet_since + 3 * SIM_S / 2)
        sim_fail("process %d, started again, was not told that the job has ended, but %s", m->number, m->failed.message);
}

/* All that died had a rendezvous that everybody knew. */
static bool died_later(void)
{
    bool later = only_deaths();
    for (int k = 0; k < job.n_members; k++)
        later = later && (sim.processes[k]->end != SIM_KILLED || job.members[k].groups > 0);
    return later;
}

static bool died_while_joining(const member *m)
{
    return m->groups == 0 && !m->again && !died_later() &&
           (scenario_names_culprit(m->failed.message) || strstr(m->failed.message, "a job that has just ended"));
}

/* One that was away for long may have gone on by itself, where so few are enough. */
static bool one_was_away(void)
{
    bool away = false;
    for (int k = 0; k < sim.n_faults; k++)
        away = away || (sim.faults[k].done && sim.faults[k].kind == SIM_STOP && sim.faults[k].for_ns > 2 * SIM_S);
    return away;
}

/* Who stood still while the others went on, and ended, does not go on by itself. */
static void check_alone(const member *m)
{
    for (int k = 0; k < job.n_members; k++)
        if (job.members[k].done && sim.processes[k]->ended_ns < m->stepped_ns)
            sim_fail("process %d has made a step after process %d had got to the end", m->number, job.members[k].number);
}

/* Its machine was suspended, nothing else has happened to this process, and only newcomers have died, which were in no group with
 * it: it goes on with the others, where they were. */
static bool stood_with_others(const member *m, const sim_process *process)
{
    bool stood = scenario_outlasts((int64_t)(job.deadline_s * 1e9)) && process->largest_group <= job.n;
    for (int k = 0; k < sim.n_faults; k++)
        stood = stood && (!sim.faults[k].done || sim.faults[k].kind == SIM_SUSPEND || sim.faults[k].process != m->number);
    for (int k = 0; k < job.n_members; k++)
        stood = stood && (sim.processes[k]->end != SIM_KILLED || job.members[k].number >= job.n);
    return stood;
}

/* It stood still alone, for less than others wait before they take one for dead. */
static bool was_hardly_away(const member *m)
{
    int64_t away = 0;
    for (int k = 0; k < sim.n_faults; k++) {
        const sim_fault *fault = &sim.faults[k];
        if (fault->done && fault->kind == SIM_SUSPEND)
            return false;
        if (fault->done && fault->process == m->number)
            away += fault->kind == SIM_STOP ? fault->for_ns : SIM_S;
    }
    return away < SIM_S;
}

static void check(void)
{
    const member *last = NULL;
    scenario_check_ended();
    for (int k = 0; k < job.n_members; k++) {
        const member *m = &job.members[k];
        const sim_process *process = sim.processes[k];
        if (job.full && m->again && m->groups > 0)
            sim_fail("process %d was let in, although the job has no room", m->number);
        if (process->end == SIM_KILLED || (process->tainted && !scenario_mild() && !stood_with_others(m, process) &&
                                            !was_hardly_away(m)))
            continue;
        if (!m->done && !came_too_late(m) && !has_nobody_with_state(m) && !died_while_joining(m) &&
            !strstr(m->failed.message, ".min_processes is") &&
            !(one_was_away() && process->tainted &&
              (strstr(m->failed.message, "considered this one dead") || /* two who were away have met */
               strstr(m->failed.message, "remaining processes were suspended"))))
            sim_fail("process %d%s did not get to the end, but to step %lld: %s: %s", m->number,
                     m->again ? ", started again," : "", (long long)m->state.step, trek_status_name(m->failed.status),
                     m->failed.message);
        if (!m->done) {
            check_told(m, process);
            continue;
        }
        check_alone(m);
        if (last && (last->state.step != m->state.step || last->state.history != m->state.history))
            sim_fail("processes %d and %d have come to other ends", last->number, m->number);
        last = m;
    }
}

const scenario scenario_regroup = { "regroup", 350, begin, check };
