/* SPDX-License-Identifier: Apache-2.0 */
/* The description of runs. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wchar.h>
#include <wctype.h>

#include "graph/graph_internal.h"
#include "monitor/progress_internal.h"
#include "tools/top.h"

enum { SPARK = 24, LANE = 20, SHOWN_NOTES = 8 };

/* --- lines ---------------------------------------------------------------------------------------- */

static void end_line(top_lines *lines, top_style style)
{
    if (lines->n == lines->capacity) {
        unsigned char *more = realloc(lines->styles, (size_t)lines->capacity * 2 + 64);
        if (!more)
            return;
        lines->styles = more;
        lines->capacity = lines->capacity * 2 + 64;
    }
    trek_text_add(&lines->text, "\n");
    lines->styles[lines->n++] = (unsigned char)style;
}

void top_lines_clear(top_lines *lines)
{
    trek_text_clear(&lines->text);
    free(lines->styles);
    *lines = (top_lines){ 0 };
}

/* Files may contain anything, so only what the terminal can show as one character is passed on. */
static void add_clean(trek_text *text, const top *t, const char *from)
{
    locale_t before = t->charset.locale ? uselocale(t->charset.locale) : (locale_t)0;
    mbstate_t state = { 0 };
    while (from && *from) {
        wchar_t wide = 0;
        size_t bytes = mbrtowc(&wide, from, strlen(from), &state);
        bool shown = bytes > 0 && bytes < (size_t)-2 && iswprint((wint_t)wide);
        if (bytes == 0 || bytes >= (size_t)-2) {
            bytes = 1;
            state = (mbstate_t){ 0 };
        }
        trek_text_bytes(text, shown ? from : "?", shown ? bytes : 1);
        from += bytes;
    }
    if (t->charset.locale)
        uselocale(before);
}

/* Adds a value in this many columns, truncated or padded. */
static void add_column(trek_text *text, const top *t, const char *value, int columns)
{
    trek_text clean = { 0 };
    add_clean(&clean, t, value);
    const char *data = clean.data ? clean.data : "";
    size_t fits = trek_terminal_fit(&t->charset, data, clean.length, columns);
    int taken = trek_terminal_columns(&t->charset, data, fits);
    trek_text_bytes(text, data, fits);
    trek_text_format(text, "%*s", columns - taken, "");
    trek_text_clear(&clean);
}

static const char *number(double value, char *buffer)
{
    return isnan(value) ? "-" : isinf(value) ? (value > 0 ? "inf" : "-inf") : trek_number_text(value, 5, buffer);
}

static const char *speed(double value, char *buffer) { return isnan(value) ? "-" : trek_speed_text(value, buffer); }

static const char *bytes_text(double bytes, char *buffer)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    char figure[40];
    int unit = 0;
    for (; bytes >= 1023.5 && unit < 4; unit++)
        bytes /= 1024;
    snprintf(buffer, 64, "%s %s", trek_number_text(bytes, 4, figure), units[unit]);
    return buffer;
}

/* --- pictures ------------------------------------------------------------------------------------- */

/* Draws the curve's last points, between their minimum and maximum. */
static void add_spark(trek_text *text, const top *t, const trek_run_series *s)
{
    static const char *const blocks[] = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
    static const char ascii[] = "_.,-=+*#";
    double least = (double)INFINITY, most = -(double)INFINITY;
    int count = s ? s->count : 0, cells = count < SPARK ? count : SPARK;
    for (int k = 0; k < count; k++)
        if (isfinite(s->points[k].value)) {
            least = fmin(least, s->points[k].value);
            most = fmax(most, s->points[k].value);
        }
    for (int k = 0; k < cells; k++) {
        double sum = 0;
        int from = (int)((int64_t)k * count / cells), to = (int)((int64_t)(k + 1) * count / cells);
        for (int j = from; j < to; j++)
            sum += s->points[j].value;
        double mean = sum / (to - from);
        int level = most > least ? (int)((mean - least) / (most - least) * 7 + 0.5) : 3;
        if (!isfinite(mean))
            trek_text_add(text, "!");
        else if (t->charset.utf8)
            trek_text_add(text, blocks[level]);
        else
            trek_text_bytes(text, ascii + level, 1);
    }
}

/* Draws computing, waiting and reducing as parts of the last interval. */
static void add_lane(trek_text *text, const top *t, const trek_run_rank *r)
{
    double times[] = { r->computing_s, r->reducing_s, r->waiting_s }, all = 0, done = 0;
    for (int k = 0; k < 3; k++)
        all += times[k] = times[k] > 0 ? times[k] : 0;
    all = r->interval_s > all ? r->interval_s : all;
    static const char *const blocks[] = { "█", "▓", "░" }, *const ascii[] = { "#", "+", "." };
    trek_text_add(text, "[");
    int cells = 0;
    for (int k = 0; k < 3 && all > 0; k++) {
        done += times[k];
        for (; cells < (int)(done / all * LANE + 0.5); cells++)
            trek_text_add(text, t->charset.utf8 ? blocks[k] : ascii[k]);
    }
    trek_text_format(text, "%*s]", LANE - cells, "");
}

/* --- a run ---------------------------------------------------------------------------------------- */

top_style top_style_of(trek_run_status status)
{
    switch (status) {
    case TREK_RUN_RUNNING:
        return TOP_GOOD;
    case TREK_RUN_FAILED:
    case TREK_RUN_DIED:
        return TOP_BAD;
    case TREK_RUN_STOPPED:
    case TREK_RUN_SILENT:
        return TOP_WARNING;
    default:
        return TOP_PLAIN;
    }
}

void top_add_titles(top_lines *lines, const top *t)
{
    (void)t;
    trek_text_format(&lines->text, "%-24s %-8s %-9s %5s %10s %10s %10s %8s  %s", "RUN", "STATUS", "EPOCH", "DONE", "LOSS", "LR",
                     "SAMPLES/S", "ETA", "LOSS SO FAR");
    end_line(lines, TOP_TITLE);
}

/* Returns the fraction of all epochs that is done, or NaN if unknown. */
static double done_of(const trek_run_state *s)
{
    if (s->status == TREK_RUN_DONE)
        return 1;
    if (s->epochs <= 0 || s->epoch < 0)
        return (double)NAN;
    double part = s->batches > 0 && s->batch >= 0 ? (double)s->batch / (double)s->batches : 0;
    double done = ((double)s->epoch + part) / (double)s->epochs;
    return done > 1 ? 1 : done;
}

static const trek_run_series *loss_of(const top_run *run)
{
    const trek_run_series *s = trek_run_reader_series(run->reader, "loss", false);
    return s && s->count ? s : trek_run_reader_series(run->reader, "loss", true);
}

/* Returns the job's "samples_per_s", or the sum of its ranks'. */
static double speed_of(const top_run *run)
{
    const trek_run_state *s = trek_run_reader_state(run->reader);
    double told = top_latest(run, "samples_per_s"), sum = 0;
    bool any = false;
    for (int k = 0; k < s->n_ranks; k++)
        if (!isnan(s->ranks[k].samples_per_s)) {
            sum += s->ranks[k].samples_per_s;
            any = true;
        }
    return !isnan(told) ? told : any ? sum : (double)NAN;
}

void top_add_run(top_lines *lines, const top *t, const top_run *run)
{
    const trek_run_state *s = trek_run_reader_state(run->reader);
    char epoch[48] = "-", done[16] = "-", a[64], b[64], c[64], eta[32] = "-";
    if (s->epoch >= 0 && s->epochs > 0)
        snprintf(epoch, sizeof epoch, "%lld/%lld", (long long)(s->epoch + 1 < s->epochs ? s->epoch + 1 : s->epochs),
                 (long long)s->epochs);
    else if (s->epoch >= 0)
        snprintf(epoch, sizeof epoch, "%lld", (long long)(s->epoch + 1));
    double part = done_of(s);
    if (!isnan(part))
        snprintf(done, sizeof done, "%d%%", (int)(part * 100));
    if (s->status == TREK_RUN_RUNNING && s->eta_s >= 0)
        trek_duration_format(s->eta_s, eta, sizeof eta);
    add_column(&lines->text, t, run->name, 24);
    trek_text_format(&lines->text, " %-8s %-9s %5s %10s %10s %10s %8s  ", trek_run_status_text(s->status), epoch, done,
                     number(top_latest(run, "loss"), a), number(top_latest(run, "lr"), b), speed(speed_of(run), c), eta);
    add_spark(&lines->text, t, loss_of(run));
    end_line(lines, top_style_of(s->status));
}

static void add_rank(top_lines *lines, const top *t, const trek_run_rank *r)
{
    char a[64], share[16] = "-";
    if (!isnan(r->share))
        snprintf(share, sizeof share, "%d%%", (int)(r->share * 100 + 0.5));
    trek_text_format(&lines->text, "  rank %-4lld ", (long long)r->rank);
    add_column(&lines->text, t, r->device ? r->device : "-", 8);
    trek_text_add(&lines->text, " ");
    add_lane(&lines->text, t, r);
    trek_text_format(&lines->text, " %4s %8s/s  ", share, speed(r->samples_per_s, a));
    add_clean(&lines->text, t, r->state ? r->state : "-");
    if (r->name) {
        trek_text_add(&lines->text, "  ");
        add_clean(&lines->text, t, r->name);
    }
    end_line(lines, r->state && strcmp(r->state, "lost") == 0 ? TOP_BAD : TOP_PLAIN);
}

static void add_watts(trek_text *text, double temperature, double power)
{
    char a[40];
    if (!isnan(temperature))
        trek_text_format(text, "  %s C", trek_number_text(temperature, 3, a));
    if (!isnan(power))
        trek_text_format(text, "  %s W", trek_number_text(power, 3, a));
}

static void add_process(top_lines *lines, const top *t, const trek_run_process *p)
{
    char a[64], b[64];
    trek_text_format(&lines->text, "  process %d  ", p->process);
    add_clean(&lines->text, t, p->host ? p->host : "-");
    trek_text_format(&lines->text, " pid %lld  %s", (long long)p->pid, trek_run_status_text(p->status));
    if (!isnan(p->memory_bytes))
        trek_text_format(&lines->text, "  memory %s", bytes_text(p->memory_bytes, a));
    if (!isnan(p->memory_peak_bytes))
        trek_text_format(&lines->text, " (at most %s)", bytes_text(p->memory_peak_bytes, a));
    if (!isnan(p->cpu_percent))
        trek_text_format(&lines->text, "  CPU %s%%", trek_number_text(p->cpu_percent, 4, a));
    add_watts(&lines->text, p->temperature_c, p->power_w);
    end_line(lines, top_style_of(p->status) == TOP_BAD ? TOP_BAD : TOP_DIM);
    for (int k = 0; k < p->n_devices; k++) {
        const trek_run_device *d = &p->devices[k];
        trek_text_add(&lines->text, "    ");
        add_clean(&lines->text, t, d->device ? d->device : "-");
        if (!isnan(d->memory_bytes))
            trek_text_format(&lines->text, "  memory %s", bytes_text(d->memory_bytes, a));
        if (!isnan(d->memory_total_bytes))
            trek_text_format(&lines->text, " of %s", bytes_text(d->memory_total_bytes, b));
        if (!isnan(d->utilization_percent))
            trek_text_format(&lines->text, "  %s%%", trek_number_text(d->utilization_percent, 3, a));
        add_watts(&lines->text, d->temperature_c, d->power_w);
        bool slow = d->throttled && strcmp(d->throttled, "no") != 0;
        if (slow) {
            trek_text_add(&lines->text, "  slowed down: ");
            add_clean(&lines->text, t, d->throttled);
        }
        end_line(lines, slow ? TOP_WARNING : TOP_DIM);
    }
}

static void add_note(top_lines *lines, const top *t, const trek_run_note *note)
{
    char clock[32] = "";
    time_t seconds = (time_t)note->time;
    struct tm local;
    if (localtime_r(&seconds, &local))
        strftime(clock, sizeof clock, "%H:%M:%S", &local);
    bool error = note->name && strcmp(note->name, "error") == 0, warning = note->name && strcmp(note->name, "warning") == 0;
    trek_text_format(&lines->text, "  %s ", clock);
    add_clean(&lines->text, t, note->name);
    trek_text_add(&lines->text, ": ");
    add_clean(&lines->text, t, note->text);
    end_line(lines, error ? TOP_BAD : warning ? TOP_WARNING : TOP_PLAIN);
}

/* Adds curves other than the loss, by their latest value. */
static void add_values(top_lines *lines, const top *t, const trek_run_state *s)
{
    char a[64];
    for (int k = 0; k < s->n_series; k++) {
        const trek_run_series *curve = &s->series[k];
        if (curve->count == 0)
            continue;
        trek_text_add(&lines->text, "  ");
        add_column(&lines->text, t, curve->name, 24);
        trek_text_format(&lines->text, " %10s %-9s ", number(curve->points[curve->count - 1].value, a),
                         curve->at_epoch ? "epochs" : "steps");
        add_spark(&lines->text, t, curve);
        end_line(lines, TOP_PLAIN);
    }
}

void top_add_details(top_lines *lines, const top *t, const top_run *run)
{
    const trek_run_state *s = trek_run_reader_state(run->reader);
    char a[64];
    add_clean(&lines->text, t, run->name);
    trek_text_add(&lines->text, "  ");
    add_clean(&lines->text, t, s->program ? s->program : "");
    for (int k = 0; k < s->n_arguments; k++) {
        trek_text_add(&lines->text, " ");
        add_clean(&lines->text, t, s->arguments[k]);
    }
    end_line(lines, TOP_TITLE);
    trek_text_format(&lines->text, "  %s  step %lld", trek_run_status_text(s->status), (long long)(s->step < 0 ? 0 : s->step));
    if (s->batches > 0)
        trek_text_format(&lines->text, "  batch %lld/%lld", (long long)s->batch, (long long)s->batches);
    if (s->parameters >= 0)
        trek_text_format(&lines->text, "  %s parameters", trek_speed_text((double)s->parameters, a));
    if (s->anchor > 0)
        trek_text_format(&lines->text, "  anchor %lld", (long long)s->anchor);
    if (s->drift > 0)
        trek_text_format(&lines->text, "  drift %s", trek_number_text(s->drift, 3, a));
    end_line(lines, top_style_of(s->status));
    if (s->error) {
        trek_text_add(&lines->text, "  ");
        add_clean(&lines->text, t, s->error);
        end_line(lines, TOP_BAD);
    }
    add_values(lines, t, s);
    for (int k = 0; k < s->n_ranks; k++)
        add_rank(lines, t, &s->ranks[k]);
    for (int k = 0; k < s->n_processes; k++)
        add_process(lines, t, &s->processes[k]);
    for (int k = s->n_notes > SHOWN_NOTES ? s->n_notes - SHOWN_NOTES : 0; k < s->n_notes; k++)
        add_note(lines, t, &s->notes[k]);
}
