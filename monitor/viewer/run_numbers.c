/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/viewer/run_numbers.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nn/replace_file.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

typedef struct taking {
    void (*take)(const char *name, double value, void *arg);
    void *arg;
    char before[64];          /* "process-K/" or nothing */
} taking;

static void give(const taking *t, const char *group, const char *of, const char *name, double value)
{
    char whole[512];
    if (isnan(value))
        return;
    snprintf(whole, sizeof whole, "%s%.300s%s%s", group, of, *of ? "/" : "", name);
    t->take(whole, value, t->arg);
}

static void give_system(const taking *t, const trek_run_record *r)
{
    char group[80];
    snprintf(group, sizeof group, "%ssystem/", t->before);
    give(t, group, "", "memory_bytes", r->memory_bytes);
    give(t, group, "", "memory_peak_bytes", r->memory_peak_bytes);
    give(t, group, "", "cpu_percent", r->cpu_percent);
    give(t, group, "", "temperature_c", r->temperature_c);
    give(t, group, "", "power_w", r->power_w);
    for (int k = 0; k < r->n_trek_bytes; k++)
        give(t, group, r->trek_bytes[k].name, "trek_bytes", r->trek_bytes[k].value);
    for (int k = 0; k < r->n_devices; k++) {
        const trek_run_device *d = &r->devices[k];
        const char *name = d->device ? d->device : "device";
        give(t, group, name, "memory_bytes", d->memory_bytes);
        give(t, group, name, "memory_total_bytes", d->memory_total_bytes);
        give(t, group, name, "temperature_c", d->temperature_c);
        give(t, group, name, "power_w", d->power_w);
        give(t, group, name, "utilization_percent", d->utilization_percent);
        give(t, group, name, "throttled", d->throttled ? strcmp(d->throttled, "no") != 0 : (double)NAN);
    }
}

/* Ranks are numbered across the whole job. */
static void give_ranks(const taking *t, const trek_run_record *r)
{
    for (int k = 0; k < r->n_ranks; k++) {
        const trek_run_rank *rank = &r->ranks[k];
        char group[48];
        snprintf(group, sizeof group, "rank/%lld/", (long long)rank->rank);
        give(t, group, "", "share", rank->share);
        give(t, group, "", "samples_per_s", rank->samples_per_s);
        give(t, group, "", "computing", rank->computing_s / rank->interval_s);
        give(t, group, "", "waiting", rank->waiting_s / rank->interval_s);
        give(t, group, "", "reducing", rank->reducing_s / rank->interval_s);
    }
    give(t, "rank/", "", "drift", r->drift);
}

void trek_run_numbers(const trek_run_record *record, void (*take)(const char *, double, void *), void *arg)
{
    taking t = { take, arg, "" };
    if (record->process > 0)
        snprintf(t.before, sizeof t.before, "process-%d/", record->process);
    if (record->kind == TREK_RUN_SYSTEM)
        give_system(&t, record);
    else if (record->kind == TREK_RUN_RANKS)
        give_ranks(&t, record);
}

int64_t trek_run_step(trek_run_steps *s, const trek_run_record *record)
{
    int64_t told = record->step;
    for (int k = 0; record->kind == TREK_RUN_RANKS && k < record->n_ranks; k++)
        told = record->ranks[k].steps > told ? record->ranks[k].steps : told;
    if (record->process < 0 || trek_array_grow(&s->steps, &s->capacity, record->process + 1, sizeof *s->steps) != TREK_OK)
        return told > 0 ? told : 0;
    for (; s->n <= record->process; s->n++)
        s->steps[s->n] = 0;
    int64_t *last = &s->steps[record->process];
    *last = told > *last ? told : *last;
    return told >= 0 ? told : *last;
}

void trek_run_steps_clear(trek_run_steps *s)
{
    trek_free(s->steps);
    *s = (trek_run_steps){ 0 };
}

trek_run_reader *trek_run_read(const char *function, const char *run, const trek_run_reader_opts *opts)
{
    if (!run) {
        trek_fail_missing(function, "run");
        return NULL;
    }
    trek_run_reader *r = trek_run_reader_new(run, opts);
    trek_status status = r ? trek_run_reader_catch_up(r) : trek_error_status();
    if (status == TREK_OK && trek_run_reader_state(r)->n_processes == 0)
        status = trek_fail(TREK_ERR_IO, "%s: run: %s does not contain a watched run", function, run);
    if (status != TREK_OK)
        trek_run_reader_free(&r);
    return r;
}

trek_status trek_run_write_file(const char *function, const char *path, const trek_text *text)
{
    trek_file_replacement file;
    trek_status status = text->failed ? TREK_ERR_MEMORY : trek_replace_begin(&file, path);
    if (status != TREK_OK)
        return status;
    for (size_t done = 0; done < text->length && status == TREK_OK;) {
        ssize_t written = write(file.file, text->data + done, text->length - done);
        if (written > 0)
            done += (size_t)written;
        else if (errno != EINTR)
            status = trek_fail(TREK_ERR_IO, "%s: %s: %s", function, path, strerror(errno));
    }
    return trek_replace_end(&file, status);
}
