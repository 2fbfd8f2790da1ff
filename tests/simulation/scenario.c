/* SPDX-License-Identifier: Apache-2.0 */
/* What scenarios share: how long a call took, who is still there, and who is to be named. */
#include "tests/simulation/scenario.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/comm/regroup.h"
#include "distributed/control/control.h"
#include "distributed/control/rendezvous_internal.h"
#include "distributed/control/supply.h"
#include "distributed/grains/grains.h"
#include "distributed/job/survival.h"
#include "distributed/reduce/twice.h"
#include "tensor/status_internal.h"

/* A job outlasts that its processes, or the network, stand still for so long. */
#define MILD_NS (2 * SIM_S)
/* Who leaves waits a second for the others to take note: the network must be there again by then. */
#define MILD_CUT_NS (500 * SIM_MS)

/* A newcomer gets a number that nobody has had. */
static void check_owner(const trek_member *member)
{
    int machine = 0, at = member->number - sim.began_with;
    if (at < 0 || at >= SIM_NUMBERS)
        return;
    sscanf(member->address, "10.0.0.%d", &machine);
    int owner = machine << 16 | member->port;
    if (sim.owners[at] && sim.owners[at] != owner)
        sim_fail("number %d of the job was given to two processes", member->number);
    sim.owners[at] = owner;
}

/* By its generation a group knows who comes late to another one: whoever enters a group has been in none that had it. */
trek_status __real_trek_rendezvous_enter(trek_rendezvous *rendezvous, int64_t generation, const trek_member *members, int n);
trek_status __wrap_trek_rendezvous_enter(trek_rendezvous *rendezvous, int64_t generation, const trek_member *members, int n);
trek_status __wrap_trek_rendezvous_enter(trek_rendezvous *rendezvous, int64_t generation, const trek_member *members, int n)
{
    for (int k = 0; k < n; k++)
        check_owner(&members[k]);
    if (trek_rendezvous_members(rendezvous) > 0 && generation <= rendezvous->generation)
        sim_fail("process %d comes from group %lld into group %lld", trek_rendezvous_member(rendezvous).number,
                 (long long)rendezvous->generation, (long long)generation);
    sim_process *self = sim_here();
    self->largest_group = n > self->largest_group ? n : self->largest_group;
    sim_faults_come_to(IS_TO_ENTER, self);
    return __real_trek_rendezvous_enter(rendezvous, generation, members, n);
}

/* Moments of the library's. */
trek_status __real_trek_control_gather(trek_control *control, const void *mine, size_t bytes, void *all, int64_t deadline_ns);
trek_status __wrap_trek_control_gather(trek_control *control, const void *mine, size_t bytes, void *all, int64_t deadline_ns);
trek_status __wrap_trek_control_gather(trek_control *control, const void *mine, size_t bytes, void *all, int64_t deadline_ns)
{
    sim_faults_come_to(GATHERS, sim_here());
    return __real_trek_control_gather(control, mine, bytes, all, deadline_ns);
}

int __real_trek_socket_begin(const char *address, int port);
int __wrap_trek_socket_begin(const char *address, int port);
int __wrap_trek_socket_begin(const char *address, int port)
{
    sim_faults_come_to(IS_ASKED, sim_here());
    return __real_trek_socket_begin(address, port);
}

trek_comm *__real_trek_regroup_meet(trek_regroup *regroup, const trek_comm *comm, int least);
trek_comm *__wrap_trek_regroup_meet(trek_regroup *regroup, const trek_comm *comm, int least);
trek_comm *__wrap_trek_regroup_meet(trek_regroup *regroup, const trek_comm *comm, int least)
{
    sim_faults_come_to(OTHERS_ARE_SOUGHT, sim_here());
    return __real_trek_regroup_meet(regroup, comm, least);
}

trek_status __real_trek_grain_exchange_read(trek_step *s, int rank);
trek_status __wrap_trek_grain_exchange_read(trek_step *s, int rank);
trek_status __wrap_trek_grain_exchange_read(trek_step *s, int rank)
{
    sim_faults_come_to(SUMS_ARE_EXCHANGED, sim_here());
    return __real_trek_grain_exchange_read(s, rank);
}

trek_status __real_trek_survival_commit(const trek_job *job);
trek_status __wrap_trek_survival_commit(const trek_job *job);
trek_status __wrap_trek_survival_commit(const trek_job *job)
{
    sim_faults_come_to(COMMITS, sim_here());
    return __real_trek_survival_commit(job);
}

trek_status __real_trek_supply_fetch(const trek_supply_fetching *fetching);
trek_status __wrap_trek_supply_fetch(const trek_supply_fetching *fetching);
trek_status __wrap_trek_supply_fetch(const trek_supply_fetching *fetching)
{
    sim_faults_come_to(STATE_IS_FETCHED, sim_here());
    return __real_trek_supply_fetch(fetching);
}

trek_status __real_trek_twice_gather(trek_step *s);
trek_status __wrap_trek_twice_gather(trek_step *s);
trek_status __wrap_trek_twice_gather(trek_step *s)
{
    sim_faults_come_to(PARAMS_ARE_GATHERED, sim_here());
    return __real_trek_twice_gather(s);
}

trek_status __real_trek_twice_redivide(trek_step *s);
trek_status __wrap_trek_twice_redivide(trek_step *s);
trek_status __wrap_trek_twice_redivide(trek_step *s)
{
    sim_faults_come_to(STATE_IS_DIVIDED, sim_here());
    return __real_trek_twice_redivide(s);
}

void outcome_take(outcome *to)
{
    to->status = trek_error_status();
    snprintf(to->message, sizeof to->message, "%s", trek_error());
    trek_error_clear();
}

void outcome_time(const char *what, int64_t since_ns, int64_t most_ns)
{
    const sim_process *process = sim_here();
    int64_t took = sim.now_ns - since_ns;
    if (!process->tainted && took > most_ns)
        sim_fail("process %d: %s took %.3f s, of at most %.3f s", process->number, what, (double)took * 1e-9,
                 (double)most_ns * 1e-9);
}

void scenario_settings(sim_random *random)
{
    static const int preempts[] = { 0, 2, 20, 100, 300 }, spurious[] = { 0, 0, 0, 2, 20 };
    static const int64_t rooms[] = { 16 << 10, 64 << 10, 256 << 10, 1 << 20 };
    sim_settings *s = &sim.settings;
    s->preempt = preempts[sim_below(random, 5)];
    s->spurious = spurious[sim_below(random, 5)];
    s->step_ns = sim_span(random, 200, 5000);
    s->latency_ns = sim_span(random, 20000, 20 * SIM_MS);
    s->jitter_ns = sim_span(random, 1000, 20 * SIM_MS);
    s->spikes = sim_chance(random, 300) ? 5 : 0;
    s->spike_ns = sim_span(random, SIM_MS, 500 * SIM_MS);
    s->splits = sim_chance(random, 500) ? 100 : 0;
    s->room = rooms[sim_below(random, 4)];
}

int scenario_processes(sim_random *random, int most)
{
    int n = 2 + (int)sim_below(random, 4);
    if (sim_chance(random, 30))
        n = (int)sim_span(random, 4, most);
    return n < 2 ? 2 : n > most ? most : n;
}

bool scenario_mild(void)
{
    int64_t away = 0;
    for (int k = 0; k < sim.n_faults; k++) {
        const sim_fault *fault = &sim.faults[k];
        if (!fault->done)
            continue;
        if (fault->kind == SIM_SUSPEND && sim.machines == 1)
            continue; /* all stand still, and go on where they were */
        if (fault->kind == SIM_KILL || fault->kind == SIM_POWER || fault->kind == SIM_FULL || fault->for_ns > MILD_NS)
            return false;
        if (fault->kind != SIM_STOP && fault->kind != SIM_SLOW && fault->for_ns > MILD_CUT_NS)
            return false;
        away += fault->for_ns;
    }
    return away < MILD_NS;
}

bool scenario_outlasts(int64_t deadline_ns)
{
    for (int k = 0; k < sim.n_faults; k++)
        if (sim.faults[k].done && sim.faults[k].kind == SIM_SUSPEND && 2 * sim.faults[k].for_ns > deadline_ns)
            return false;
    return true;
}

sim_process *scenario_process(int number)
{
    for (int p = sim.n_processes - 1; p >= 0; p--)
        if (sim.processes[p]->number == number)
            return sim.processes[p];
    return NULL;
}

bool scenario_survived(int number)
{
    const sim_process *process = scenario_process(number);
    return process && process->end != SIM_KILLED && !process->tainted;
}

static bool is_tainted(long number)
{
    for (int p = 0; p < sim.n_processes; p++)
        if (sim.processes[p]->number == number && sim.processes[p]->tainted)
            return true;
    return false;
}

bool scenario_nobody_opened(const char *message)
{
    bool away = false;
    for (int k = 0; k < sim.n_faults; k++)
        away |= sim.faults[k].done && sim.faults[k].for_ns > 5 * SIM_S;
    return away && strstr(message, " is not admitted at ");
}

bool scenario_zero_was_cut(void)
{
    bool cut = false;
    for (int k = 0; k < sim.n_faults; k++) {
        const sim_fault *fault = &sim.faults[k];
        bool between = fault->kind == SIM_CUT || fault->kind == SIM_CUT_ONE_WAY;
        cut |= fault->done && ((fault->kind == SIM_ISOLATE && fault->process == 0) ||
                               (between && (fault->process == 0 || fault->other == 0)));
    }
    return cut;
}

bool scenario_names_culprit(const char *message)
{
    const char *at = strstr(message, "process"), *rank = strstr(message, "rank");
    if (!at || (rank && rank < at))
        at = rank;
    while (at && *at) {
        bool begins = isdigit((unsigned char)*at) && !(at > message && (isalnum((unsigned char)at[-1]) || at[-1] == '.'));
        char *end = (char *)at + 1;
        if (begins && is_tainted(strtol(at, &end, 10)))
            return true;
        at = end;
    }
    /* process 0 says who is silent, and hears nobody as long as its machine is cut off */
    return scenario_zero_was_cut() && strstr(message, " has not been heard of for ");
}

sim_process *scenario_start(int number, int of, int machine, bool again, int (*run)(void *arg), void *arg)
{
    char text[16];
    bool newcomer = again && number >= of;
    sim_process *process = sim_process_begin(number, machine, run, arg);
    if (number == of && !newcomer)
        return process;
    snprintf(text, sizeof text, "%d", number);
    if (!newcomer)
        sim_process_set(process, "TREK_RANK", text);
    snprintf(text, sizeof text, "%d", of);
    if (!newcomer)
        sim_process_set(process, "TREK_WORLD_SIZE", text);
    sim_process_set(process, "TREK_ADDRESS", "10.0.0.1");
    sim_process_set(process, "TREK_PORT", "29500");
    sim_process_set(process, "TREK_TOKEN", "a secret of this job");
    if (again)
        sim_process_set(process, "TREK_JOIN", newcomer ? "new" : "1");
    return process;
}

static struct {
    int n, left;
    int64_t after_ns;
    void (*start)(int number);
} launcher;

static void look_for_dead(void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    for (int p = 0; p < launcher.n && launcher.left > 0; p++) {
        const sim_process *process = scenario_process(p);
        if (process->end != SIM_KILLED || sim.now_ns - process->ended_ns < launcher.after_ns)
            continue;
        launcher.left--;
        launcher.start(p);
        sim_faults_come_to(STARTED_AGAIN, scenario_process(p));
    }
    if (launcher.left > 0)
        sim_at(sim.now_ns + launcher.after_ns, look_for_dead, NULL, 0);
}

void scenario_launch(int n, int most, int64_t after_ns, void (*start)(int number))
{
    launcher.n = n;
    launcher.left = most;
    launcher.after_ns = after_ns;
    launcher.start = start;
    if (most > 0)
        sim_at(sim.now_ns + after_ns, look_for_dead, NULL, 0);
}

sim_fault *scenario_draw_moment(sim_random *random, int moment, int64_t turns, int n)
{
    sim_fault *fault = &sim.faults[sim.n_faults++];
    *fault = (sim_fault){ .kind = sim_chance(random, 750) ? SIM_KILL : SIM_STOP,
                          .process = (int)sim_below(random, n),
                          .follows = true, .moment = moment, .turns = (int)sim_below(random, turns),
                          .for_ns = sim_span(random, SIM_MS, 20 * SIM_S),
                          .at_step = (uint64_t)sim_span(random, 1, 300) };
    bool exchange = moment == COMMITS || moment == SUMS_ARE_EXCHANGED;
    if (exchange && sim_chance(random, 700))
        fault->process = SIM_WHO_COMES;
    if (exchange && sim.machines > 1 && sim_chance(random, 600))
        fault->at_send = 1 + (uint64_t)sim_below(random, 2 * n);
    if (!sim_chance(random, 400))
        return fault;
    bool sought = sim_chance(random, 500);
    sim.faults[sim.n_faults++] = (sim_fault){ .kind = SIM_KILL, .process = (int)sim_below(random, n), .follows = true,
                                              .moment = sought ? OTHERS_ARE_SOUGHT : 0, .turns = (int)sim_below(random, n),
                                              .at_step = (uint64_t)sim_span(random, 1, sought ? 2000 : 300) };
    return fault;
}

void scenario_leave(int number, int files, int threads)
{
    sim_here()->files_kept = files;
    sim_here()->threads_kept = threads;
    if (sim_process_left(sim_here())[0])
        sim_fail("process %d leaves behind: %s", number, sim_process_left(sim_here()));
}

void scenario_check_ended(void)
{
    for (int p = 0; p < sim.n_processes; p++) {
        const sim_process *process = sim.processes[p];
        char text[400] = "";
        size_t used = 0;
        if (process->end != SIM_ALIVE || process->stopped)
            continue;
        for (const sim_thread *t = process->threads; t && used < sizeof text - 40; t = t->next)
            if (t->state != SIM_ENDED)
                used += (size_t)snprintf(text + used, sizeof text - used, "%s%d (%s) in \"%s\"", used ? ", " : "", t->number,
                                         t->name[0] ? t->name : "-", t->waits_for ? t->waits_for : "");
        sim_trace("process %d has the threads %s", process->number, text);
        sim_fail("process %d has not ended after %.1f s: its threads are %s", process->number,
                 (double)(sim.now_ns - 1000 * SIM_S) * 1e-9, text);
    }
}
