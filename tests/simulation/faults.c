/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong in a schedule: drawn before it begins, so that each fault can be left out of a replay. */
#include <stdio.h>
#include <string.h>

#include "tests/simulation/simulation.h"

static const char *const names[SIM_FAULT_KINDS] = { "kill",        "power",   "stop", "slow",   "cut",
                                                    "cut one way", "isolate", "full", "suspend",
                                                    "linger" };

static bool is_of_machine(sim_fault_kind kind)
{
    return kind == SIM_POWER || kind == SIM_CUT || kind == SIM_CUT_ONE_WAY || kind == SIM_ISOLATE || kind == SIM_SUSPEND;
}

char *sim_fault_text(const sim_fault *fault, char *text, size_t size)
{
    char when[64], length[64] = "";
    if (fault->at_send)
        snprintf(when, sizeof when, "%s %llu", fault->follows ? "after sends" : "at its send",
                 (unsigned long long)fault->at_send);
    else if (fault->at_step)
        snprintf(when, sizeof when, "%s %llu", fault->follows ? "after steps" : "at its step",
                 (unsigned long long)fault->at_step);
    else
        snprintf(when, sizeof when, "at %.3f ms", (double)fault->at_ns * 1e-6);
    if (fault->for_ns == SIM_NEVER)
        snprintf(length, sizeof length, ", for ever");
    else if (fault->kind != SIM_KILL && fault->kind != SIM_POWER)
        snprintf(length, sizeof length, ", for %.3f ms", (double)fault->for_ns * 1e-6);
    bool between = fault->kind == SIM_CUT || fault->kind == SIM_CUT_ONE_WAY;
    char other[32] = "";
    if (between)
        snprintf(other, sizeof other, " and %d", fault->other);
    bool of_machine = is_of_machine(fault->kind);
    snprintf(text, size, "%s %s %d%s %s%s", names[fault->kind], of_machine ? "machine" : "process", fault->process, other, when,
             length);
    return text;
}

/* --- drawing ------------------------------------------------------------------------------------------------------ */

static sim_fault_kind draw_kind(sim_random *random, const int *weights)
{
    int sum = 0, kind = 0;
    for (int k = 0; k < SIM_FAULT_KINDS; k++)
        sum += weights[k];
    int64_t at = sim_below(random, sum);
    while (at >= weights[kind])
        at -= weights[kind++];
    return (sim_fault_kind)kind;
}

static bool can_come_by_steps(sim_fault_kind kind) { return kind == SIM_KILL || kind == SIM_STOP || kind == SIM_POWER; }

static sim_fault draw_one(sim_random *random, const sim_fault_mix *mix)
{
    sim_fault fault = { .kind = draw_kind(random, mix->weights) };
    bool machine = is_of_machine(fault.kind);
    int n = machine ? mix->machines : mix->processes;
    fault.process = (int)sim_below(random, n);
    fault.other = n > 1 ? (fault.process + 1 + (int)sim_below(random, n - 1)) % n : fault.process;
    fault.at_ns = sim_below(random, mix->within_ns);
    if (can_come_by_steps(fault.kind) && sim_chance(random, 500))
        fault.at_step = 1 + (uint64_t)sim_below(random, (int64_t)mix->steps);
    fault.for_ns = sim_span(random, SIM_MS, mix->longest_ns);
    if (fault.kind == SIM_STOP && sim_chance(random, 300)) /* about as long as others wait before they take one for dead */
        fault.for_ns = 4800 * SIM_MS + sim_below(random, 800 * SIM_MS);
    if (fault.kind != SIM_STOP && fault.kind != SIM_SUSPEND && fault.kind != SIM_FULL && sim_chance(random, 300))
        fault.for_ns = SIM_NEVER;
    return fault;
}

/* The one behind who has failed, whom the others look for next: about as long as they wait. */
static void stop_next(sim_random *random, sim_fault *fault, int processes)
{
    fault->kind = SIM_STOP;
    fault->process = (fault[-1].process + 1) % processes;
    fault->for_ns = 4800 * SIM_MS + sim_below(random, 800 * SIM_MS);
}

void sim_faults_draw(sim_random *random, const sim_fault_mix *mix)
{
    int n = (int)sim_below(random, mix->most + 1);
    for (int k = 0; k < n && k < SIM_FAULTS; k++) {
        sim_fault *fault = &sim.faults[sim.n_faults++];
        *fault = draw_one(random, mix);
        if (k == 0 || !sim_chance(random, 600))
            continue;
        bool steps = can_come_by_steps(fault->kind) && sim_chance(random, 600);
        fault->follows = steps; /* while those who are left are about to go on */
        fault->at_step = steps ? (uint64_t)sim_span(random, 1, 1000) : 0;
        fault->at_ns = fault[-1].at_ns + sim_span(random, 10000, 600 * SIM_MS);
        if (!is_of_machine(fault[-1].kind) && mix->weights[SIM_STOP] && sim_chance(random, 150))
            stop_next(random, fault, mix->processes);
    }
}

/* --- happening ------------------------------------------------------------------------------------------------------- */

static sim_process *latest_of(int number)
{
    for (int p = sim.n_processes - 1; p >= 0; p--)
        if (sim.processes[p]->number == number)
            return sim.processes[p];
    return NULL;
}

static void comes(void *arg, uint64_t number);

/* One that follows comes by what its process does from here on, or by the time. */
static void let(sim_fault *fault)
{
    bool timed = fault->at_send == 0 && fault->at_step == 0;
    const sim_process *process = timed ? NULL : latest_of(fault->process);
    if (!fault->follows || fault->moment || !(timed || process))
        return;
    fault->follows = false;
    if (fault->at_send)
        fault->at_send += process->sends;
    else if (fault->at_step)
        fault->at_step += process->steps;
    if (!timed)
        return;
    fault->at_ns += sim.now_ns - 1000 * SIM_S;
    if (!(sim.left_out >> (fault - sim.faults) & 1))
        sim_at(1000 * SIM_S + fault->at_ns, comes, fault, 0);
}

static void happen(sim_fault *fault, sim_process *process);

/* Who lingers does so at the moment itself. */
void sim_faults_come_to(int moment, sim_process *who)
{
    for (int k = 0; k < sim.n_faults && who->number < sim.began_with; k++) {
        sim_fault *fault = &sim.faults[k];
        if (fault->moment != moment || (fault->own && fault->process != who->number) || fault->turns-- > 0)
            continue;
        fault->moment = 0;
        if (fault->process == SIM_WHO_COMES) {
            fault->process = is_of_machine(fault->kind) ? who->machine : who->number;
            fault->other = (fault->process + fault->other) % sim.machines;
        }
        if (fault->kind != SIM_LINGER) {
            let(fault);
            continue;
        }
        fault->follows = false;
        if (!(sim.left_out >> k & 1))
            happen(fault, who);
    }
}

static void taint_machine(int machine)
{
    for (int p = 0; p < sim.n_processes; p++)
        if (sim.processes[p]->machine == machine)
            sim.processes[p]->tainted = true;
}

static void cut(int from, int to, int64_t until)
{
    if (from != to && until > sim.cut_until[from][to])
        sim.cut_until[from][to] = until;
}

static void continue_process(void *arg, uint64_t number)
{
    sim_process *process = arg;
    (void)number;
    if (process->end != SIM_ALIVE || sim.now_ns < process->stopped_until)
        return;
    sim_trace("process %d goes on", process->number);
    sim_let_go(process);
}

static void stop_process(sim_process *process, int64_t for_ns)
{
    if (process->stopped_until < sim.now_ns + for_ns)
        process->stopped_until = sim.now_ns + for_ns;
    sim_hold(process);
    sim_at(process->stopped_until, continue_process, process, 0);
}

static void cut_power(int machine)
{
    sim.powerless[machine] = true;
    for (int p = 0; p < sim.n_processes; p++)
        if (sim.processes[p]->machine == machine)
            sim_process_kill(sim.processes[p], SIM_KILLED);
}

static void happen(sim_fault *fault, sim_process *process)
{
    char text[200];
    int64_t until = fault->for_ns == SIM_NEVER ? SIM_NEVER : sim.now_ns + fault->for_ns;
    bool machine = is_of_machine(fault->kind);
    fault->done = true;
    if (fault + 1 < sim.faults + sim.n_faults)
        let(fault + 1);
    if (!machine && fault->kind != SIM_FULL && (!process || process->end != SIM_ALIVE))
        return;
    sim.disturbed = true;
    sim_trace("FAULT: %s", sim_fault_text(fault, text, sizeof text));
    if (machine) {
        taint_machine(fault->process);
        if (fault->kind == SIM_CUT || fault->kind == SIM_CUT_ONE_WAY)
            taint_machine(fault->other);
    } else if (process && fault->kind != SIM_LINGER) { /* which nobody may notice */
        process->tainted = true;
    }
    switch (fault->kind) {
    case SIM_KILL:
        sim_process_kill(process, SIM_KILLED);
        break;
    case SIM_POWER:
        cut_power(fault->process);
        break;
    case SIM_STOP:
        stop_process(process, fault->for_ns);
        break;
    case SIM_SLOW:
        process->slow = 20;
        process->slow_ns = fault->for_ns == SIM_NEVER ? 20 * SIM_MS : fault->for_ns / 100 + 1;
        break;
    case SIM_CUT:
        cut(fault->other, fault->process, until);
        cut(fault->process, fault->other, until);
        break;
    case SIM_CUT_ONE_WAY:
        cut(fault->process, fault->other, until);
        break;
    case SIM_ISOLATE:
        for (int m = 0; m < sim.machines; m++) {
            cut(m, fault->process, until);
            cut(fault->process, m, until);
        }
        break;
    case SIM_SUSPEND:
        for (int p = 0; p < sim.n_processes; p++)
            if (sim.processes[p]->machine == fault->process && sim.processes[p]->end == SIM_ALIVE)
                stop_process(sim.processes[p], fault->for_ns);
        break;
    case SIM_LINGER:
        if (process && sim.running && process == sim.running->process)
            sim_wait(until, "nothing: it lingers");
        break;
    case SIM_FULL:
        sim.disk_full_until = until;
        break;
    case SIM_FAULT_KINDS:
        break;
    }
}

static void comes(void *arg, uint64_t number)
{
    sim_fault *fault = arg;
    (void)number;
    happen(fault, latest_of(fault->process));
}

void sim_faults_arm(void)
{
    for (int k = 0; k < sim.n_faults; k++)
        if (!(sim.left_out >> k & 1) && !sim.faults[k].follows && sim.faults[k].at_step == 0 && sim.faults[k].at_send == 0)
            sim_at(sim.now_ns + sim.faults[k].at_ns, comes, &sim.faults[k], 0);
}

void sim_faults_look(sim_process *process)
{
    for (int k = 0; k < sim.n_faults; k++) {
        sim_fault *fault = &sim.faults[k];
        bool due = fault->at_send ? fault->at_send <= process->sends : fault->at_step != 0 && fault->at_step <= process->steps;
        if (due && !fault->done && !fault->follows && fault->process == process->number && !(sim.left_out >> k & 1))
            happen(fault, process);
    }
    if (process->end != SIM_ALIVE)
        sim_wait(SIM_NEVER, "nothing: it is dead"); /* and never comes back */
}
