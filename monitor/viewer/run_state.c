/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a watched run, updated record by record. */
#include "monitor/viewer/run_state.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tensor/memory_internal.h"

enum { MOST_NAMES = 8192, MOST_RANKS = 1 << 16, SILENT_S = 30 };

void trek_run_state_begin(run_state *state)
{
    trek_run_state *s = &state->seen;
    *s = (trek_run_state){ .epochs = -1, .parameters = -1, .epoch = -1, .batch = -1, .batches = -1, .step = -1, .anchor = -1,
        .window = -1, .drift = (double)NAN, .eta_s = (double)NAN, .seconds = (double)NAN };
}

static void clear_rank(trek_run_rank *r)
{
    trek_free(r->device);
    trek_free(r->name);
    trek_free(r->state);
}

static void clear_note(trek_run_note *n)
{
    trek_free(n->name);
    trek_free(n->text);
}

static void clear_devices(trek_run_process *p)
{
    for (int k = 0; k < p->n_devices; k++) {
        trek_free(p->devices[k].device);
        trek_free(p->devices[k].throttled);
    }
    for (int k = 0; k < p->n_trek_bytes; k++)
        trek_free(p->trek_bytes[k].name);
    trek_free(p->devices);
    trek_free(p->trek_bytes);
    p->devices = NULL;
    p->trek_bytes = NULL;
    p->n_devices = p->n_trek_bytes = 0;
}

static void clear_words(char ***words, int *n)
{
    for (int k = 0; k < *n; k++)
        trek_free((*words)[k]);
    trek_free(*words);
    *words = NULL;
    *n = 0;
}

static void clear_records(trek_run_record *records, int n)
{
    for (int k = 0; k < n; k++)
        trek_run_record_clear(&records[k]);
    trek_free(records);
}

void trek_run_state_clear(run_state *state)
{
    trek_run_state *s = &state->seen;
    for (int k = 0; k < s->n_processes; k++) {
        clear_devices(&s->processes[k]);
        trek_free(s->processes[k].host);
        trek_free(s->processes[k].error);
    }
    for (int k = 0; k < s->n_ranks; k++)
        clear_rank(&s->ranks[k]);
    for (int k = 0; k < s->n_series; k++) {
        trek_free(s->series[k].name);
        trek_free(s->series[k].points);
    }
    for (int k = 0; k < s->n_notes; k++)
        clear_note(&s->notes[k]);
    clear_words(&s->arguments, &s->n_arguments);
    clear_records(s->histograms, s->n_histograms);
    clear_records(s->images, s->n_images);
    clear_records(s->graph, s->graph ? 1 : 0);
    trek_free(s->processes);
    trek_free(s->ranks);
    trek_free(s->series);
    trek_free(s->notes);
    trek_free(s->run);
    trek_free(s->program);
    trek_free(s->trek);
    *state = (run_state){ .most_points = state->most_points, .most_notes = state->most_notes };
    trek_run_state_begin(state);
}

/* --- moving strings out of a record ------------------------------------------------------------ */

/* An earlier value stays if the record has no new one. */
static void take_word(char **to, char **from)
{
    if (!*from)
        return;
    trek_free(*to);
    *to = *from;
    *from = NULL;
}

static void take_number(double *to, double from)
{
    if (!isnan(from))
        *to = from;
}

static void take_whole(int64_t *to, int64_t from)
{
    if (from >= 0)
        *to = from;
}

/* --- processes and ranks ----------------------------------------------------------------------- */

/* Inserts a new item into a list at its position. */
static void *insert(void *array, int *capacity, int *n, int at, size_t size)
{
    char *items;
    if (trek_array_grow(array, capacity, *n + 1, size) != TREK_OK)
        return NULL;
    memcpy(&items, array, sizeof items);
    memmove(items + (size_t)(at + 1) * size, items + (size_t)at * size, (size_t)(*n - at) * size);
    memset(items + (size_t)at * size, 0, size);
    ++*n;
    return items + (size_t)at * size;
}

trek_run_process *trek_run_state_process(run_state *state, int process)
{
    trek_run_state *s = &state->seen;
    int at = 0;
    while (at < s->n_processes && s->processes[at].process < process)
        at++;
    if (at < s->n_processes && s->processes[at].process == process)
        return &s->processes[at];
    trek_run_process *made = insert(&s->processes, &state->cap_processes, &s->n_processes, at, sizeof *made);
    if (made)
        *made = (trek_run_process){ .process = process, .pid = -1, .memory_bytes = (double)NAN, .memory_peak_bytes = (double)NAN,
            .cpu_percent = (double)NAN, .temperature_c = (double)NAN, .power_w = (double)NAN };
    return made;
}

static trek_run_rank *rank_of(run_state *state, int64_t rank)
{
    trek_run_state *s = &state->seen;
    int at = 0;
    while (at < s->n_ranks && s->ranks[at].rank < rank)
        at++;
    if (at < s->n_ranks && s->ranks[at].rank == rank)
        return &s->ranks[at];
    if (s->n_ranks >= MOST_RANKS)
        return NULL;
    trek_run_rank *made = insert(&s->ranks, &state->cap_ranks, &s->n_ranks, at, sizeof *made);
    if (made)
        *made = (trek_run_rank){ .rank = rank, .samples = -1, .steps = -1, .computing_s = (double)NAN, .waiting_s = (double)NAN,
            .reducing_s = (double)NAN, .interval_s = (double)NAN, .share = (double)NAN, .samples_per_s = (double)NAN };
    return made;
}

static trek_status take_rank(run_state *state, trek_run_rank *from, const trek_run_record *record)
{
    trek_run_rank *to = from->rank < 0 ? NULL : rank_of(state, from->rank);
    if (!to)
        return trek_error_status();
    to->process = record->process;
    to->time = record->time;
    take_word(&to->device, &from->device);
    take_word(&to->name, &from->name);
    take_word(&to->state, &from->state);
    take_number(&to->computing_s, from->computing_s);
    take_number(&to->waiting_s, from->waiting_s);
    take_number(&to->reducing_s, from->reducing_s);
    take_number(&to->interval_s, from->interval_s);
    take_number(&to->share, from->share);
    take_number(&to->samples_per_s, from->samples_per_s);
    take_whole(&to->samples, from->samples);
    take_whole(&to->steps, from->steps);
    return TREK_OK;
}

static trek_status take_ranks(run_state *state, trek_run_record *record)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < record->n_ranks && status == TREK_OK; k++)
        status = take_rank(state, &record->ranks[k], record);
    if (record->kind == TREK_RUN_RUN)
        return status;
    take_whole(&state->seen.anchor, record->anchor);
    take_whole(&state->seen.window, record->window);
    take_number(&state->seen.drift, record->drift);
    state->seen.windows |= record->windows;
    return status;
}

/* A process that describes itself again either goes on or was restarted. */
static trek_status take_run(run_state *state, trek_run_process *p, trek_run_record *record)
{
    trek_run_state *s = &state->seen;
    take_word(&s->run, &record->run);
    take_word(&s->program, &record->program);
    take_word(&s->trek, &record->trek);
    take_word(&p->host, &record->host);
    take_number(&p->started, record->started);
    if (!isnan(record->started) && (s->started == 0 || record->started < s->started))
        s->started = record->started;
    take_whole(&p->pid, record->pid);
    take_whole(&s->epochs, record->epochs);
    take_whole(&s->parameters, record->parameters);
    if (record->n_arguments) {
        clear_words(&s->arguments, &s->n_arguments);
        s->arguments = record->arguments;
        s->n_arguments = record->n_arguments;
        record->arguments = NULL;
        record->n_arguments = 0;
    }
    p->ended = false;
    trek_free(p->error);
    p->error = NULL;
    return take_ranks(state, record);
}

static trek_status take_system(trek_run_process *p, trek_run_record *record)
{
    take_number(&p->memory_bytes, record->memory_bytes);
    take_number(&p->memory_peak_bytes, record->memory_peak_bytes);
    take_number(&p->cpu_percent, record->cpu_percent);
    take_number(&p->temperature_c, record->temperature_c);
    take_number(&p->power_w, record->power_w);
    clear_devices(p);
    p->devices = record->devices;
    p->n_devices = record->n_devices;
    p->trek_bytes = record->trek_bytes;
    p->n_trek_bytes = record->n_trek_bytes;
    record->devices = NULL;
    record->trek_bytes = NULL;
    record->n_devices = record->n_trek_bytes = 0;
    return TREK_OK;
}

/* --- curves ------------------------------------------------------------------------------------ */

static trek_run_series *series_of(run_state *state, trek_run_value *value, bool at_epoch)
{
    trek_run_state *s = &state->seen;
    for (int k = 0; k < s->n_series; k++)
        if (s->series[k].at_epoch == at_epoch && strcmp(s->series[k].name, value->name) == 0)
            return &s->series[k];
    if (s->n_series >= MOST_NAMES)
        return NULL;
    trek_run_series *made = insert(&s->series, &state->cap_series, &s->n_series, s->n_series, sizeof *made);
    if (made) {
        *made = (trek_run_series){ .name = value->name, .at_epoch = at_epoch, .every = 1 };
        value->name = NULL;
    }
    return made;
}

/* Drops every second point if there are too many. The last one is always the newest. */
static void thin(trek_run_series *s)
{
    int kept = 0;
    for (int k = 0; k < s->count; k += 2)
        s->points[kept++] = s->points[k];
    s->count = kept;
    s->every *= 2;
}

static trek_status add_point(run_state *state, trek_run_series *s, trek_run_point point)
{
    if (s->count && (s->seen - 1) % s->every != 0)
        s->count--; /* the last one was kept only as the newest */
    if (state->most_points && s->count >= state->most_points)
        thin(s);
    if (trek_array_grow(&s->points, &s->capacity, s->count + 1, sizeof *s->points) != TREK_OK)
        return TREK_ERR_MEMORY;
    s->points[s->count++] = point;
    s->seen++;
    return TREK_OK;
}

static trek_status take_scalars(run_state *state, trek_run_record *record)
{
    trek_status status = TREK_OK;
    bool at_epoch = record->at && strcmp(record->at, "epoch") == 0;
    for (int k = 0; k < record->n_values && status == TREK_OK; k++) {
        trek_run_series *s = series_of(state, &record->values[k], at_epoch);
        trek_run_point point = { record->time, record->step, record->epoch, record->values[k].value };
        status = s ? add_point(state, s, point) : trek_error_status();
    }
    take_whole(&state->seen.step, record->step);
    return status;
}

/* --- what else a record may be ----------------------------------------------------------------- */

static trek_status take_progress(trek_run_state *s, const trek_run_record *record)
{
    take_whole(&s->epoch, record->epoch);
    take_whole(&s->epochs, record->epochs);
    take_whole(&s->batch, record->batch);
    take_whole(&s->batches, record->batches);
    take_whole(&s->step, record->step);
    s->eta_s = record->eta_s;
    take_number(&s->seconds, record->seconds);
    return TREK_OK;
}

static trek_status take_note(run_state *state, trek_run_record *record)
{
    trek_run_state *s = &state->seen;
    if (s->n_notes >= state->most_notes) {
        clear_note(&s->notes[0]);
        memmove(s->notes, s->notes + 1, (size_t)(s->n_notes - 1) * sizeof *s->notes);
        s->n_notes--;
    }
    if (trek_array_grow(&s->notes, &state->cap_notes, s->n_notes + 1, sizeof *s->notes) != TREK_OK)
        return TREK_ERR_MEMORY;
    trek_run_note *note = &s->notes[s->n_notes++];
    *note = (trek_run_note){ .time = record->time, .process = record->process, .rank = record->rank, .step = record->step,
        .kind = record->kind };
    take_word(&note->name, record->kind == TREK_RUN_LOG ? &record->level : &record->name);
    take_word(&note->text, &record->text);
    return TREK_OK;
}

static bool same(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

/* Replaces the one with the same name. */
static trek_status keep(trek_run_record **records, int *n, int *capacity, trek_run_record *record)
{
    int at = 0;
    while (at < *n && !(same((*records)[at].name, record->name) && same((*records)[at].of, record->of)))
        at++;
    if (at >= MOST_NAMES || trek_array_grow(records, capacity, at + 1, sizeof **records) != TREK_OK)
        return trek_error_status();
    if (at < *n)
        trek_run_record_clear(&(*records)[at]);
    else
        ++*n;
    (*records)[at] = *record;
    memset(record, 0, sizeof *record);
    return TREK_OK;
}

static trek_status keep_graph(trek_run_state *s, trek_run_record *record)
{
    if (!s->graph && !(s->graph = trek_calloc(1, sizeof *s->graph)))
        return TREK_ERR_MEMORY;
    trek_run_record_clear(s->graph);
    *s->graph = *record;
    memset(record, 0, sizeof *record);
    return TREK_OK;
}

static trek_status take_end(trek_run_process *p, trek_run_record *record)
{
    p->ended = true;
    p->status = same(record->status, "done") ? TREK_RUN_DONE : same(record->status, "stopped") ? TREK_RUN_STOPPED
        : TREK_RUN_FAILED;
    take_word(&p->error, &record->error);
    return TREK_OK;
}

trek_status trek_run_state_take(run_state *state, trek_run_record *record)
{
    trek_run_state *s = &state->seen;
    trek_run_process *p = trek_run_state_process(state, record->process);
    if (!p)
        return TREK_ERR_MEMORY;
    if (record->time > p->heard)
        p->heard = record->time;
    if (record->time > s->heard)
        s->heard = record->time;
    switch (record->kind) {
    case TREK_RUN_RUN: return take_run(state, p, record);
    case TREK_RUN_SCALARS: return take_scalars(state, record);
    case TREK_RUN_PROGRESS: return take_progress(s, record);
    case TREK_RUN_RANKS: return take_ranks(state, record);
    case TREK_RUN_SYSTEM: return take_system(p, record);
    case TREK_RUN_HISTOGRAM: return keep(&s->histograms, &s->n_histograms, &state->cap_histograms, record);
    case TREK_RUN_IMAGE: return keep(&s->images, &s->n_images, &state->cap_images, record);
    case TREK_RUN_GRAPH: return keep_graph(s, record);
    case TREK_RUN_TEXT:
    case TREK_RUN_LOG:
    case TREK_RUN_EVENT: return take_note(state, record);
    case TREK_RUN_END: return take_end(p, record);
    case TREK_RUN_OTHER: break;
    }
    return TREK_OK;
}

/* --- alive or not ------------------------------------------------------------------------------ */

/* Returns when the system's process with that number began, in seconds since the Unix epoch, or 0 if unknown. */
static double began(int64_t pid)
{
    char path[64], line[1024] = "";
    double up = 0;
    unsigned long long ticks = 0;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "r");
    const char *rest = file && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    if (file)
        fclose(file);
    if (!rest || sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                        &ticks) != 1)
        return 0;
    file = fopen("/proc/uptime", "r");
    bool read = file && fscanf(file, "%lf", &up) == 1;
    if (file)
        fclose(file);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return read ? (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - up + (double)ticks / (double)sysconf(_SC_CLK_TCK) : 0;
}

/* If another process has the number by now, this one is gone. */
static bool lives(const trek_run_process *p)
{
    if (p->pid <= 0 || p->pid > INT32_MAX || (kill((pid_t)p->pid, 0) != 0 && errno == ESRCH))
        return false;
    return p->started <= 0 || began(p->pid) < p->started + 5;
}

static trek_run_status judge(const trek_run_process *p, const char *host, double now)
{
    if (p->ended)
        return p->status;
    if (!p->host || p->pid < 0)
        return TREK_RUN_UNKNOWN;
    if (strcmp(p->host, host) == 0)
        return lives(p) ? TREK_RUN_RUNNING : TREK_RUN_DIED;
    return now - p->heard > SILENT_S ? TREK_RUN_SILENT : TREK_RUN_RUNNING;
}

void trek_run_state_judge(run_state *state, double now)
{
    /* While one process runs, the run is running; afterwards the worst status counts. A job may have gone on without
     * a process that died. */
    static const trek_run_status order[] = { TREK_RUN_RUNNING, TREK_RUN_FAILED, TREK_RUN_STOPPED, TREK_RUN_DONE, TREK_RUN_DIED,
        TREK_RUN_SILENT };
    trek_run_state *s = &state->seen;
    char host[256] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = 0;
    s->error = NULL;
    for (int k = 0; k < s->n_processes; k++) {
        s->processes[k].status = judge(&s->processes[k], host, now);
        if (!s->error && s->processes[k].error)
            s->error = s->processes[k].error;
    }
    s->status = TREK_RUN_UNKNOWN;
    for (size_t o = 0; o < sizeof order / sizeof *order && s->status == TREK_RUN_UNKNOWN; o++)
        for (int k = 0; k < s->n_processes; k++)
            if (s->processes[k].status == order[o])
                s->status = order[o];
}

const char *trek_run_status_text(trek_run_status status)
{
    static const char *const texts[] = { "unknown", "running", "done", "failed", "stopped", "died", "silent" };
    return status >= TREK_RUN_UNKNOWN && status <= TREK_RUN_SILENT ? texts[status] : texts[0];
}
