/* SPDX-License-Identifier: Apache-2.0 */
/* The current state of a watched run, as metrics. */
#include "monitor/export.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "monitor/viewer/run_numbers.h"

static void add_label(trek_text *out, const char *key, const char *value, const char *before)
{
    trek_text_format(out, "%s%s=\"", before, key);
    for (; *value; value++)
        if (*value == '\n')
            trek_text_add(out, "\\n");
        else if (*value == '"' || *value == '\\')
            trek_text_format(out, "\\%c", *value);
        else
            trek_text_bytes(out, value, 1);
    trek_text_add(out, "\"");
}

static void add_value(trek_text *out, double value)
{
    char digits[40];
    trek_text_format(out, "} %s\n", isnan(value) ? "NaN" : isinf(value) ? (value > 0 ? "+Inf" : "-Inf")
                         : trek_text_number(value, digits));
}

static void add_type(trek_text *out, const char *name) { trek_text_format(out, "# TYPE %s gauge\n", name); }

static void add_gauge(trek_text *out, const char *run, const char *name, double value)
{
    if (isnan(value))
        return;
    add_type(out, name);
    trek_text_format(out, "%s{", name);
    add_label(out, "run", run, "");
    add_value(out, value);
}

static double known(int64_t value) { return value < 0 ? (double)NAN : (double)value; }

static void add_curves(trek_text *out, const char *run, const trek_run_state *s)
{
    add_type(out, "trek_scalar");
    for (int k = 0; k < s->n_series; k++) {
        trek_text_add(out, "trek_scalar{");
        add_label(out, "run", run, "");
        add_label(out, "name", s->series[k].name, ",");
        add_label(out, "at", s->series[k].at_epoch ? "epoch" : "step", ",");
        add_value(out, s->series[k].points[s->series[k].count - 1].value);
    }
}

static void add_ranks(trek_text *out, const char *run, const trek_run_state *s, const char *name, size_t at)
{
    add_type(out, name);
    for (int k = 0; k < s->n_ranks; k++) {
        double value;
        memcpy(&value, (const char *)&s->ranks[k] + at, sizeof value);
        if (isnan(value))
            continue;
        trek_text_format(out, "%s{", name);
        add_label(out, "run", run, "");
        trek_text_format(out, ",rank=\"%lld\"", (long long)s->ranks[k].rank);
        add_value(out, value);
    }
}

static void add_processes(trek_text *out, const char *run, const trek_run_state *s, const char *name, size_t at)
{
    add_type(out, name);
    for (int k = 0; k < s->n_processes; k++) {
        double value;
        memcpy(&value, (const char *)&s->processes[k] + at, sizeof value);
        if (isnan(value))
            continue;
        trek_text_format(out, "%s{", name);
        add_label(out, "run", run, "");
        trek_text_format(out, ",process=\"%d\"", s->processes[k].process);
        add_value(out, value);
    }
}

/* Adds the device of each rank and the device's name. */
static void add_rank_names(trek_text *out, const char *run, const trek_run_state *s)
{
    trek_text_add(out, "# TYPE trek_rank info\n");
    for (int k = 0; k < s->n_ranks; k++) {
        const trek_run_rank *r = &s->ranks[k];
        trek_text_add(out, "trek_rank_info{");
        add_label(out, "run", run, "");
        trek_text_format(out, ",rank=\"%lld\",process=\"%d\"", (long long)r->rank, r->process);
        add_label(out, "device", r->device ? r->device : "", ",");
        add_label(out, "device_name", r->name ? r->name : "", ",");
        add_value(out, 1);
    }
}

static void add_device(trek_text *out, const char *run, const trek_run_process *p, const trek_run_device *d, const char *name,
                       double value)
{
    if (isnan(value))
        return;
    trek_text_format(out, "%s{", name);
    add_label(out, "run", run, "");
    trek_text_format(out, ",process=\"%d\"", p->process);
    add_label(out, "device", d->device ? d->device : "", ",");
    if (strcmp(name, "trek_device_throttled") == 0)
        add_label(out, "reason", d->throttled, ",");
    add_value(out, value);
}

static double throttled(const trek_run_device *d) { return d->throttled ? strcmp(d->throttled, "no") != 0 : (double)NAN; }

static void add_devices(trek_text *out, const char *run, const trek_run_state *s)
{
    static const struct { const char *name; size_t at; } told[] = {
        { "trek_device_memory_bytes", offsetof(trek_run_device, memory_bytes) },
        { "trek_device_memory_total_bytes", offsetof(trek_run_device, memory_total_bytes) },
        { "trek_device_temperature_celsius", offsetof(trek_run_device, temperature_c) },
        { "trek_device_power_watts", offsetof(trek_run_device, power_w) },
        { "trek_device_utilization_percent", offsetof(trek_run_device, utilization_percent) },
        { "trek_device_throttled", 0 },
    };
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        add_type(out, told[i].name);
        for (int k = 0; k < s->n_processes; k++)
            for (int j = 0; j < s->processes[k].n_devices; j++) {
                const trek_run_device *d = &s->processes[k].devices[j];
                double value = throttled(d);
                if (told[i].at)
                    memcpy(&value, (const char *)d + told[i].at, sizeof value);
                add_device(out, run, &s->processes[k], d, told[i].name, value);
            }
    }
}

void trek_export_add_metrics(trek_text *out, const char *run, const trek_run_state *s)
{
    const char *slash = strrchr(run, '/'), *name = s->run ? s->run : slash ? slash + 1 : run;
    add_curves(out, name, s);
    add_gauge(out, name, "trek_step", known(s->step));
    add_gauge(out, name, "trek_epoch", known(s->epoch));
    add_gauge(out, name, "trek_batch", known(s->batch));
    add_gauge(out, name, "trek_eta_seconds", s->eta_s);
    add_gauge(out, name, "trek_running", s->status == TREK_RUN_RUNNING);
    add_ranks(out, name, s, "trek_rank_share", offsetof(trek_run_rank, share));
    add_ranks(out, name, s, "trek_rank_samples_per_second", offsetof(trek_run_rank, samples_per_s));
    add_ranks(out, name, s, "trek_rank_computing_seconds", offsetof(trek_run_rank, computing_s));
    add_ranks(out, name, s, "trek_rank_waiting_seconds", offsetof(trek_run_rank, waiting_s));
    add_ranks(out, name, s, "trek_rank_reducing_seconds", offsetof(trek_run_rank, reducing_s));
    add_processes(out, name, s, "trek_memory_bytes", offsetof(trek_run_process, memory_bytes));
    add_processes(out, name, s, "trek_cpu_percent", offsetof(trek_run_process, cpu_percent));
    add_processes(out, name, s, "trek_temperature_celsius", offsetof(trek_run_process, temperature_c));
    add_processes(out, name, s, "trek_power_watts", offsetof(trek_run_process, power_w));
    add_rank_names(out, name, s);
    add_devices(out, name, s);
    trek_text_add(out, "# EOF\n");
}

char *trek_export_open_metrics(const char *run)
{
    trek_text out = { 0 };
    trek_run_reader *r = trek_run_read("trek_export_open_metrics", run, NULL);
    if (!r)
        return NULL;
    trek_export_add_metrics(&out, run, trek_run_reader_state(r));
    trek_run_reader_free(&r);
    return trek_text_take(&out);
}
