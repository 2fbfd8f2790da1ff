/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that samples once a second what ranks do, and every other time also the system's values. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "monitor/monitor_internal.h"
#include "tensor/thread_start.h"
#include "tensor/trace.h"

/* --- ranks -------------------------------------------------------------------------------------- */

static const char *state_of(const trek_monitor_lane *now, const trek_monitor_lane *d)
{
    static const char *const names[] = { "idle", "computing", "waiting", "reducing" };
    if (now->now)
        return names[now->now];
    int64_t most = d->computing_ns > d->reducing_ns ? d->computing_ns : d->reducing_ns;
    most = most > d->waiting_ns ? most : d->waiting_ns;
    return most == 0 ? names[0] : most == d->computing_ns ? names[1] : most == d->waiting_ns ? names[2] : names[3];
}

static double seconds_of(int64_t ns) { return (double)ns * 1e-9; }

/* Time that is neither computing nor reducing counts as waiting, as in trek_rank_metrics. */
static void add_rank(trek_monitor *m, trek_text *line, int k, trek_monitor_lane *before, double interval)
{
    trek_monitor_lane now = trek_monitor_lane_read(k), d = now;
    d.computing_ns -= before->computing_ns;
    d.waiting_ns -= before->waiting_ns;
    d.reducing_ns -= before->reducing_ns;
    d.samples -= before->samples;
    *before = now;
    const char *state = state_of(&now, &d);
    double rest = interval - seconds_of(d.computing_ns) - seconds_of(d.reducing_ns);
    double waiting = strcmp(state, "idle") == 0 ? 0 : rest > 0 ? rest : 0;
    trek_text_format(line, "%s{\"rank\":%d", k ? "," : "", m->first_rank + k);
    trek_monitor_number(line, "computing_s", seconds_of(d.computing_ns));
    trek_monitor_number(line, "waiting_s", waiting);
    trek_monitor_number(line, "reducing_s", seconds_of(d.reducing_ns));
    trek_monitor_number(line, "interval_s", interval);
    trek_monitor_number(line, "share", m->shares ? m->shares[k] : (double)NAN);
    trek_monitor_number(line, "samples_per_s", interval > 0 ? (double)d.samples / interval : 0);
    trek_monitor_whole(line, "samples", now.samples);
    int64_t step = m->step;
    trek_monitor_whole(line, "steps", step < 0 ? 0 : step);
    trek_monitor_word(line, "state", state);
    trek_text_add(line, "}");
}

static void write_ranks(trek_monitor *m, trek_monitor_lane *before)
{
    trek_text line = { 0 };
    int64_t now = trek_clock_ns();
    pthread_mutex_lock(&m->lock);
    double interval = seconds_of(now - m->sampled_ns);
    bool known = m->ranked;
    m->sampled_ns = now;
    if (known) {
        trek_monitor_begin(&line, "ranks");
        trek_text_add(&line, ",\"ranks\":[");
        for (int k = 0; k < m->local_ranks && k < TREK_MONITOR_LANES; k++)
            add_rank(m, &line, k, &before[k], interval);
        trek_text_format(&line, "],\"windows\":%s", m->windows ? "true" : "false");
        if (m->windows) {
            trek_monitor_whole(&line, "anchor", m->anchor);
            trek_monitor_whole(&line, "window", m->window);
        }
        if (!isnan(m->drift))
            trek_monitor_number(&line, "drift", m->drift);
    }
    pthread_mutex_unlock(&m->lock);
    if (known)
        trek_monitor_write(m, &line);
}

/* If steps have become long they are no longer skipped, and what happens between steps is seen. */
static void hurry(trek_monitor *m)
{
    int64_t step = m->step;
    if (m->left > 2)
        m->left = 2;
    if (step == m->seen_step)
        trek_monitor_lanes_wake();
    m->seen_step = step;
}

/* --- the system --------------------------------------------------------------------------------- */

/* Returns the first number in a file, or NaN if there is none. */
static double number_in(const char *path)
{
    double value;
    FILE *file = fopen(path, "re");
    bool read = file && fscanf(file, "%lf", &value) == 1;
    if (file)
        fclose(file);
    return read ? value : (double)NAN;
}

/* Parses "VmRSS: 123 kB". */
static double memory_in_status(const char *name)
{
    char line[256];
    double kib = (double)NAN;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            sscanf(line + strlen(name), ": %lf", &kib);
    if (file)
        fclose(file);
    return kib * 1024;
}

/* Returns the temperature of the processor's hottest sensor, found by its driver's name. */
static double temperature(void)
{
    static const char *const drivers[] = { "coretemp", "k10temp", "zenpower", "cpu_thermal" };
    double hottest = (double)NAN;
    DIR *folder = opendir("/sys/class/hwmon");
    for (struct dirent *d; folder && (d = readdir(folder));) {
        char path[400], driver[64] = "";
        snprintf(path, sizeof path, "/sys/class/hwmon/%s/name", d->d_name);
        FILE *file = d->d_name[0] != '.' ? fopen(path, "re") : NULL;
        bool named = file && fscanf(file, "%63s", driver) == 1, ours = false;
        if (file)
            fclose(file);
        for (size_t k = 0; named && k < sizeof drivers / sizeof *drivers; k++)
            ours |= strcmp(driver, drivers[k]) == 0;
        for (int k = 1; ours && k <= 16; k++) {
            snprintf(path, sizeof path, "/sys/class/hwmon/%s/temp%d_input", d->d_name, k);
            double degrees = number_in(path) / 1000;
            hottest = isnan(hottest) || degrees > hottest ? degrees : hottest;
        }
    }
    if (folder)
        closedir(folder);
    return hottest;
}

/* Returns the joules of all packages since some moment. The counters overflow, and may be readable only by root. */
static double energy(void)
{
    double sum = (double)NAN;
    for (int k = 0; k < 8; k++) {
        char path[80];
        snprintf(path, sizeof path, "/sys/class/powercap/intel-rapl:%d/energy_uj", k);
        double joules = number_in(path) * 1e-6;
        if (!isnan(joules))
            sum = isnan(sum) ? joules : sum + joules;
    }
    return sum;
}

typedef struct usage {
    double joules, cpu_s;
    int64_t at_ns;
} usage;

static usage use_now(void)
{
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    return (usage){ energy(), (double)cpu.tv_sec + (double)cpu.tv_nsec * 1e-9, trek_clock_ns() };
}

static void write_system(trek_monitor *m, usage *before)
{
    trek_text line = { 0 };
    usage now = use_now();
    double seconds = (double)(now.at_ns - before->at_ns) * 1e-9;
    trek_monitor_begin(&line, "system");
    trek_monitor_known(&line, "memory_bytes", memory_in_status("VmRSS"));
    trek_monitor_known(&line, "memory_peak_bytes", memory_in_status("VmHWM"));
    trek_monitor_known(&line, "cpu_percent", seconds > 0 ? 100 * (now.cpu_s - before->cpu_s) / seconds : (double)NAN);
    trek_monitor_add_devices(&line, m);
    trek_monitor_known(&line, "temperature_c", temperature());
    if (now.joules >= before->joules && seconds > 0)
        trek_monitor_known(&line, "power_w", (now.joules - before->joules) / seconds);
    *before = now;
    trek_monitor_write(m, &line);
}

/* --- the thread --------------------------------------------------------------------------------- */

static bool wait_until_next(trek_monitor *m, struct timespec *next)
{
    pthread_mutex_lock(&m->lock);
    next->tv_sec++;
    while (!m->ends && pthread_cond_timedwait(&m->ending, &m->lock, next) == 0)
        ;
    bool on = !m->ends;
    pthread_mutex_unlock(&m->lock);
    return on;
}

static void *sample(void *arg)
{
    trek_monitor *m = arg;
    struct timespec next;
    usage before = use_now();
    clock_gettime(CLOCK_MONOTONIC, &next); /* of m->ending */
    for (int n = 1; wait_until_next(m, &next); n++) {
        write_ranks(m, m->sampled);
        hurry(m);
        if (n % 2 == 0)
            write_system(m, &before);
    }
    write_ranks(m, m->sampled);
    write_system(m, &before);
    trek_error_clear();
    return NULL;
}

void trek_monitor_sampler_start(trek_monitor *m)
{
    m->sampled_ns = trek_clock_ns();
    m->sampled = trek_calloc(TREK_MONITOR_LANES, sizeof *m->sampled);
    for (int k = 0; m->sampled && k < TREK_MONITOR_LANES; k++) /* here: the thread may begin when the run has trained */
        m->sampled[k] = trek_monitor_lane_read(k);
    m->sampling = m->sampled && trek_thread_start(&m->sampler, sample, m) == 0;
    if (!m->sampling) {
        trek_free(m->sampled);
        m->sampled = NULL;
        trek_log_message(TREK_LOG_LEVEL_WARNING, "the watched run has no thread that observes ranks and the system");
    }
}

void trek_monitor_sampler_stop(trek_monitor *m)
{
    if (!m->sampling)
        return;
    pthread_mutex_lock(&m->lock);
    m->ends = true;
    pthread_cond_signal(&m->ending);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->sampler, NULL);
    m->sampling = false;
    trek_free(m->sampled);
    m->sampled = NULL;
}
