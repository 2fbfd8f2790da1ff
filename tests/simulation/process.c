/* SPDX-License-Identifier: Apache-2.0 */
/* Births and deaths of simulated processes, and what system.h says of a process. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/simulation/simulation.h"

static sim_process outside = { .pid = 1, .number = -1 }; /* the test's own calls */

sim_process *sim_here(void) { return sim.running ? sim.running->process : &outside; }

/* --- ends --------------------------------------------------------------------------------------------------------- */

void sim_process_kill(sim_process *process, sim_end end)
{
    if (process->end != SIM_ALIVE)
        return;
    sim_trace("process %d %s", process->number, end == SIM_KILLED ? "is dead" : "has exited");
    sim_hash((uint64_t)process->number + 1000 * (uint64_t)end);
    process->end = end;
    process->ended_ns = sim.now_ns;
    sim_threads_drop(process);
    sim_network_close(process, sim.powerless[process->machine]);
    sim_memory_drop(process);
}

const char *sim_process_left(const sim_process *process)
{
    static char text[256];
    int threads = -1 - process->threads_kept, sockets = sim_sockets_open(process),
        files = sim_files_open(process) - process->files_kept, mapped = 0;
    for (const sim_thread *t = process->threads; t; t = t->next)
        threads++;
    for (const sim_mapping *m = process->mappings; m; m = m->next)
        mapped++;
    text[0] = '\0';
    if (threads > 0 || sockets || files > 0 || mapped || process->n_blocks)
        snprintf(text, sizeof text, "%d threads, %d sockets, %d files, %d mappings, %d blocks of memory", threads, sockets, files,
                 mapped, process->n_blocks);
    return text;
}

static void *process_main(void *arg)
{
    sim_process *process = arg;
    process->code = process->main(process->arg);
    for (int k = process->n_hooks - 1; k >= 0; k--)
        process->hooks[k]();
    sim_process_kill(process, SIM_EXITED);
    sim_point("never"); /* go on elsewhere */
    return NULL;
}

/* --- births --------------------------------------------------------------------------------------------------------- */

sim_process *sim_process_begin(int number, int machine, int (*main)(void *arg), void *arg)
{
    sim_process *process = sim.n_processes < SIM_PROCESSES ? calloc(1, sizeof *process) : NULL;
    if (!process)
        abort();
    process->pid = 100 + sim.n_processes;
    process->number = number;
    process->began_ns = sim.now_ns;
    process->machine = machine;
    process->main = main;
    process->arg = arg;
    process->blocks.next = process->blocks.before = &process->blocks;
    process->job = trek_job_here;
    sim.processes[sim.n_processes++] = process;
    sim_thread *thread = sim_thread_new(process, process_main, process);
    snprintf(thread->name, sizeof thread->name, "main");
    return process;
}

void sim_process_set(sim_process *process, const char *name, const char *value)
{
    if (process->n_variables == (int)(sizeof process->variables / sizeof process->variables[0]))
        abort();
    sim_variable *variable = &process->variables[process->n_variables++];
    snprintf(variable->name, sizeof variable->name, "%s", name);
    snprintf(variable->value, sizeof variable->value, "%s", value);
}

/* --- what it sees ------------------------------------------------------------------------------------------------------ */

int trek_process_id(void) { return sim_here()->pid; }
int trek_process_parent(void) { return 1; }

void trek_process_host(char *text, size_t size) { snprintf(text, size, "machine%d", sim_here()->machine); }
void trek_process_machine(char *text, size_t size) { snprintf(text, size, "simulated machine %d", sim_here()->machine); }

bool trek_process_is_limit(int error) { return error == EMFILE || error == EFBIG; }

char *trek_process_why(int error, char *text, size_t size)
{
    snprintf(text, size, "%s", strerror(error));
    return text;
}

bool trek_process_at_exit(void (*fn)(void))
{
    sim_process *process = sim_here();
    if (process->n_hooks == (int)(sizeof process->hooks / sizeof process->hooks[0]))
        return false;
    process->hooks[process->n_hooks++] = fn;
    return true;
}

/* As in the library nobody can foretell them, but of one seed they are the same. */
bool trek_process_random(void *bytes, size_t n)
{
    for (size_t k = 0; k < n; k++)
        ((unsigned char *)bytes)[k] = (unsigned char)sim_draw(&sim.nonces);
    return true;
}

const char *trek_process_variable(const char *name)
{
    const sim_process *process = sim_here();
    for (int k = 0; k < process->n_variables; k++)
        if (strcmp(process->variables[k].name, name) == 0)
            return process->variables[k].value;
    return NULL;
}

long trek_process_number(const char *name, long low, long high, long unset)
{
    const char *value = trek_process_variable(name);
    long number = value ? strtol(value, NULL, 10) : unset;
    return value && (number < low || number > high) ? unset : number;
}

int trek_process_file(int pid, int fd)
{
    const sim_process *here = sim_here();
    for (int p = 0; p < sim.n_processes; p++) {
        const sim_process *process = sim.processes[p];
        if (process->pid != pid || process->end != SIM_ALIVE || process->machine != here->machine)
            continue;
        for (size_t k = 0; k < sizeof process->files / sizeof process->files[0]; k++)
            if (process->files[k] == fd + 1) {
                char path[64]; /* anew, as by the system's own way */
                snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
                return open(path, O_RDWR | O_CLOEXEC);
            }
    }
    return -1;
}
