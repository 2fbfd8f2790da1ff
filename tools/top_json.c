/* SPDX-License-Identifier: Apache-2.0 */
/* Runs as JSON, for scripts. */
#include <math.h>

#include "graph/graph_internal.h"
#include "tools/top.h"

static void add_string(trek_text *text, const char *name, const char *value)
{
    trek_text_format(text, "\"%s\":", name);
    if (!value) {
        trek_text_add(text, "null");
        return;
    }
    trek_text_add(text, "\"");
    trek_text_add_escaped(text, value);
    trek_text_add(text, "\"");
}

static void add_number(trek_text *text, const char *name, double value)
{
    char number[40];
    trek_text_format(text, ",\"%s\":%s", name, isfinite(value) ? trek_text_number(value, number) : "null");
}

static void add_integer(trek_text *text, const char *name, int64_t value)
{
    if (value < 0)
        trek_text_format(text, ",\"%s\":null", name);
    else
        trek_text_format(text, ",\"%s\":%lld", name, (long long)value);
}

static void add_rank(trek_text *text, const trek_run_rank *r)
{
    trek_text_format(text, "{\"rank\":%lld,", (long long)r->rank);
    add_string(text, "device", r->device);
    trek_text_add(text, ",");
    add_string(text, "name", r->name);
    trek_text_add(text, ",");
    add_string(text, "state", r->state);
    add_number(text, "share", r->share);
    add_number(text, "samples_per_s", r->samples_per_s);
    add_number(text, "computing_s", r->computing_s);
    add_number(text, "waiting_s", r->waiting_s);
    add_number(text, "reducing_s", r->reducing_s);
    trek_text_add(text, "}");
}

static void add_device(trek_text *text, const trek_run_device *d)
{
    trek_text_add(text, "{");
    add_string(text, "device", d->device);
    add_number(text, "memory_bytes", d->memory_bytes);
    add_number(text, "memory_total_bytes", d->memory_total_bytes);
    add_number(text, "utilization_percent", d->utilization_percent);
    add_number(text, "temperature_c", d->temperature_c);
    add_number(text, "power_w", d->power_w);
    trek_text_add(text, ",");
    add_string(text, "throttled", d->throttled);
    trek_text_add(text, "}");
}

static void add_process(trek_text *text, const trek_run_process *p)
{
    trek_text_format(text, "{\"process\":%d,\"pid\":%lld,", p->process, (long long)p->pid);
    add_string(text, "host", p->host);
    trek_text_format(text, ",\"status\":\"%s\"", trek_run_status_text(p->status));
    add_number(text, "memory_bytes", p->memory_bytes);
    add_number(text, "cpu_percent", p->cpu_percent);
    add_number(text, "temperature_c", p->temperature_c);
    add_number(text, "power_w", p->power_w);
    trek_text_add(text, ",\"devices\":[");
    for (int k = 0; k < p->n_devices; k++) {
        trek_text_add(text, k ? "," : "");
        add_device(text, &p->devices[k]);
    }
    trek_text_add(text, "]}");
}

static void add_values(trek_text *text, const trek_run_state *s)
{
    bool first = true;
    trek_text_add(text, ",\"values\":{");
    for (int pass = 0; pass < 2; pass++) /* those of epochs' ends have their own names */
        for (int k = 0; k < s->n_series; k++) {
            const trek_run_series *curve = &s->series[k];
            char number[40];
            if (curve->count == 0 || curve->at_epoch != (pass == 1))
                continue;
            double value = curve->points[curve->count - 1].value;
            trek_text_add(text, first ? "\"" : ",\"");
            trek_text_add_escaped(text, curve->name);
            trek_text_format(text, "%s\":%s", pass ? "@epoch" : "", isfinite(value) ? trek_text_number(value, number) : "null");
            first = false;
        }
    trek_text_add(text, "}");
}

static void add_run(trek_text *text, const top_run *run)
{
    const trek_run_state *s = trek_run_reader_state(run->reader);
    trek_text_add(text, "{");
    add_string(text, "name", run->name);
    trek_text_add(text, ",");
    add_string(text, "path", run->path);
    trek_text_format(text, ",\"status\":\"%s\",", trek_run_status_text(s->status));
    add_string(text, "error", s->error);
    trek_text_add(text, ",");
    add_string(text, "program", s->program);
    add_number(text, "started", s->started);
    add_integer(text, "epoch", s->epoch);
    add_integer(text, "epochs", s->epochs);
    add_integer(text, "batch", s->batch);
    add_integer(text, "batches", s->batches);
    add_integer(text, "step", s->step);
    add_number(text, "eta_s", s->eta_s);
    add_values(text, s);
    trek_text_add(text, ",\"ranks\":[");
    for (int k = 0; k < s->n_ranks; k++) {
        trek_text_add(text, k ? "," : "");
        add_rank(text, &s->ranks[k]);
    }
    trek_text_add(text, "],\"processes\":[");
    for (int k = 0; k < s->n_processes; k++) {
        trek_text_add(text, k ? "," : "");
        add_process(text, &s->processes[k]);
    }
    trek_text_add(text, "]}");
}

void top_add_json(trek_text *text, const top *t)
{
    trek_text_add(text, "[");
    for (int k = 0; k < t->n; k++) {
        trek_text_add(text, k ? ",\n " : "");
        add_run(text, &t->runs[k]);
    }
    trek_text_add(text, "]\n");
}
