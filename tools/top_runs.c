/* SPDX-License-Identifier: Apache-2.0 */
/* Finding runs: in named folders, in TREK_LOG_DIR, and those that processes of this machine have registered. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "monitor/registry.h"
#include "tools/top.h"

enum { MOST_RUNS = 500 };

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static void free_run(top_run *r)
{
    trek_run_reader_free(&r->reader);
    free(r->name);
    free(r->path);
}

/* Notes that a run exists. Returns false without memory or if there are too many. */
static bool add_run(top *t, const char *path)
{
    char real[PATH_MAX];
    if (!realpath(path, real))
        return true;
    for (int k = 0; k < t->n; k++)
        if (strcmp(t->runs[k].path, real) == 0)
            return t->runs[k].listed = true;
    if (t->n == MOST_RUNS)
        return false;
    if (t->n == t->capacity) {
        top_run *more = realloc(t->runs, sizeof *more * (size_t)(t->capacity * 2 + 8));
        if (!more)
            return false;
        t->runs = more;
        t->capacity = t->capacity * 2 + 8;
    }
    top_run r = { .name = strdup(base_name(real)), .path = strdup(real), .listed = true };
    r.reader = r.name && r.path ? trek_run_reader_new(real, NULL) : NULL;
    if (!r.reader) {
        free_run(&r);
        return false;
    }
    t->runs[t->n++] = r;
    return true;
}

static bool add_folder(top *t, const char *folder)
{
    trek_run_entry *entries;
    int n;
    if (trek_runs_list(folder, &entries, &n) != TREK_OK)
        return false;
    for (int k = 0; k < n && add_run(t, entries[k].path); k++)
        ;
    trek_runs_free(&entries, n);
    return true;
}

static void add_told(void *t, const char *folder) { add_run(t, folder); }

/* Adds the runs that processes have registered. If the registry cannot be used, it says so once. */
static void add_running(top *t)
{
    static bool said;
    char why[400];
    trek_registry_list(add_told, t, why, sizeof why);
    if (why[0] && !said)
        fprintf(stderr, "trek-top: %s\n", why);
    said = said || why[0];
}

static void leave_out_gone(top *t)
{
    int kept = 0;
    for (int k = 0; k < t->n; k++)
        if (t->runs[k].listed)
            t->runs[kept++] = t->runs[k];
        else
            free_run(&t->runs[k]);
    t->n = kept;
}

double top_latest(const top_run *run, const char *name)
{
    const trek_run_series *s = trek_run_reader_series(run->reader, name, false);
    if (!s || s->count == 0)
        s = trek_run_reader_series(run->reader, name, true);
    return s && s->count ? s->points[s->count - 1].value : (double)NAN;
}

/* --- order ---------------------------------------------------------------------------------------- */

static top_order order_now;

const char *top_order_text(top_order order)
{
    static const char *const texts[] = { "newest", "name", "status", "loss" };
    return texts[order];
}

static double key_of(const top_run *r)
{
    const trek_run_state *s = trek_run_reader_state(r->reader);
    double loss = top_latest(r, "loss");
    switch (order_now) {
    case TOP_BY_STATUS:
        return s->status == TREK_RUN_RUNNING ? -1 : (double)s->status;
    case TOP_BY_LOSS:
        return isnan(loss) ? (double)INFINITY : loss;
    case TOP_BY_NAME:
        return 0;
    default:
        return s->started > 0 ? -s->started : (double)INFINITY;
    }
}

static int compare(const void *a, const void *b)
{
    double x = key_of(a), y = key_of(b);
    return x < y ? -1 : x > y ? 1 : strcmp(((const top_run *)a)->name, ((const top_run *)b)->name);
}

void top_poll(top *t)
{
    for (int k = 0; k < t->n; k++)
        if (trek_run_reader_catch_up(t->runs[k].reader) != TREK_OK)
            trek_error_clear(); /* what could be read is shown */
    order_now = t->order;
    if (t->n)
        qsort(t->runs, (size_t)t->n, sizeof *t->runs, compare);
}

bool top_look(top *t, char *why)
{
    const char *folder = getenv("TREK_LOG_DIR");
    bool well = true;
    for (int k = 0; k < t->n; k++)
        t->runs[k].listed = false;
    for (int k = 0; t->folders[k]; k++)
        if (!add_folder(t, t->folders[k])) {
            snprintf(why, 256, "%.250s", trek_error());
            trek_error_clear();
            well = false;
        }
    if (!t->folders[0]) {
        if (folder && *folder && !add_folder(t, folder))
            trek_error_clear(); /* no run has made the folder yet */
        add_running(t);
    }
    leave_out_gone(t);
    top_poll(t);
    return well;
}

void top_clear(top *t)
{
    for (int k = 0; k < t->n; k++)
        free_run(&t->runs[k]);
    free(t->runs);
    t->runs = NULL;
    t->n = t->capacity = 0;
}
