/* SPDX-License-Identifier: Apache-2.0 */
/* A profile: the table's cells summed by op, by shapes or by module, sorted, and as text. */
#include "graph/timeline_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/graph_internal.h"
#include "tensor/intern.h"
#include "tensor/peak.h"

enum { DEFAULT_ROWS = 25, NAME_WIDTH = 60 };

typedef struct profile {
    trek_timeline_summary_opts opts;
    trek_timeline_row *rows;
    int count, capacity;
    uint32_t *places;         /* [n_places] indices of rows by their names, plus 1; 0: free */
    uint32_t n_places;
    int64_t self_ns, wall_ns; /* of all rows; from the first beginning to the last end */
    int64_t device_ns;        /* of all rows */
    bool any_on_device;
} profile;

static void clear_profile(profile *p)
{
    trek_free(p->rows);
    trek_free(p->places);
}

/* --- adding up ------------------------------------------------------------------------- */

static bool is_row(const trek_timeline_row *row, const trek_timeline_row *like)
{
    return row->name == like->name && row->shapes == like->shapes && row->kind == like->kind && row->backward == like->backward;
}

static trek_status make_places(profile *p)
{
    uint32_t n = p->n_places ? 2 * p->n_places : 256;
    uint32_t *places = trek_calloc(n, sizeof *places);
    if (!places)
        return TREK_ERR_MEMORY;
    trek_free(p->places);
    p->places = places;
    p->n_places = n;
    return TREK_OK;
}

static uint32_t *place_of(profile *p, const trek_timeline_row *like)
{
    uint64_t h = ((uintptr_t)like->name ^ (uintptr_t)like->shapes * 31 ^ (uint64_t)like->kind << 3 ^ like->backward) *
                 0x9e3779b97f4a7c15u;
    uint32_t at = (uint32_t)(h >> 32) & (p->n_places - 1);
    while (p->places[at] && !is_row(&p->rows[p->places[at] - 1], like))
        at = (at + 1) & (p->n_places - 1);
    return &p->places[at];
}

/* Returns the row for that key, an empty one if it is new. Returns NULL on failure (MEMORY). */
static trek_timeline_row *obtain(profile *p, trek_timeline_row like)
{
    if (2 * (uint32_t)(p->count + 1) > p->n_places) {
        if (make_places(p) != TREK_OK)
            return NULL;
        for (int k = 0; k < p->count; k++)
            *place_of(p, &p->rows[k]) = (uint32_t)k + 1;
    }
    uint32_t *place = place_of(p, &like);
    if (*place)
        return &p->rows[*place - 1];
    if (trek_array_grow(&p->rows, &p->capacity, p->count + 1, sizeof *p->rows) != TREK_OK)
        return NULL;
    p->rows[p->count] = like;
    *place = (uint32_t)++p->count;
    return &p->rows[p->count - 1];
}

static void add_calls(trek_timeline_row *row, const trek_timeline_cell *cell)
{
    if (!row->calls || cell->least_ns < row->least_ns)
        row->least_ns = cell->least_ns;
    if (cell->most_ns > row->most_ns)
        row->most_ns = cell->most_ns;
    row->calls += cell->calls;
}

/* Sums by op or by shapes. */
static trek_status add_by_name(profile *p, const trek_timeline_cell *cell)
{
    bool module = cell->key.kind == TREK_TRACE_MODULE;
    const char *shapes = p->opts.group == TREK_TIMELINE_GROUP_SHAPES ? trek_interned(cell->key.shapes) : "";
    uint32_t name = module ? trek_intern("(modules)", 9, TREK_INTERN_LIMIT) : cell->key.name;
    trek_timeline_row *row = obtain(p, (trek_timeline_row){ .name = trek_interned(name), .shapes = shapes, .result = "",
                                                            .kind = (trek_timeline_kind)cell->key.kind });
    if (!row)
        return TREK_ERR_MEMORY;
    add_calls(row, cell);
    row->on_device |= cell->on_device;
    row->device_ns += cell->device_ns;
    row->total_ns += module ? cell->self_ns : cell->total_ns; /* for modules only what no other row has */
    row->self_ns += cell->self_ns;
    row->flops += cell->flops + (module ? 0 : cell->inside_flops);
    row->bytes += cell->bytes + (module ? 0 : cell->inside_bytes);
    row->made_bytes += cell->made_bytes;
    return TREK_OK;
}

/* Adds to the row of a module and to those of all modules around it. */
static trek_status add_by_module(profile *p, const trek_timeline_cell *cell)
{
    const char *path = trek_interned(cell->key.path);
    size_t length = strlen(path), whole = length;
    bool backward = cell->key.backward;
    uint32_t kind = cell->key.kind;
    if (!length)
        path = "(outside modules)", whole = length = strlen(path);
    while (length > 0) {
        uint32_t number = trek_intern(path, length, TREK_INTERN_LIMIT);
        const char *name = number ? trek_interned(number) : trek_interned(cell->key.path);
        trek_timeline_row *row = obtain(p, (trek_timeline_row){ .name = name, .shapes = "", .result = "",
                                                                .kind = TREK_TIMELINE_KIND_MODULE,
                                                                .backward = backward });
        if (!row)
            return TREK_ERR_MEMORY;
        bool own = length == whole;
        if (own && kind == TREK_TRACE_MODULE) {
            add_calls(row, cell);
            row->result = cell->result ? trek_interned(cell->result) : row->result;
            row->result_bytes += cell->result_bytes;
        }
        else if (own && (backward ? kind == TREK_TRACE_NODE : !cell->key.path))
            row->calls += cell->calls;
        row->on_device |= cell->on_device;
        row->device_ns += cell->device_ns;
        row->total_ns += cell->self_ns;
        row->self_ns += own ? cell->self_ns : 0;
        row->flops += cell->flops;
        row->bytes += cell->bytes;
        row->made_bytes += cell->made_bytes;
        do /* to the next dot */
            length--;
        while (length > 0 && path[length] != '.');
    }
    return TREK_OK;
}

static trek_status fold(profile *p, const trek_timeline_table *table)
{
    trek_status status = TREK_OK;
    for (int64_t k = 0; k < table->slots && status == TREK_OK; k++) {
        const trek_timeline_cell *cell = &table->cells[k];
        if (!cell->calls || (p->opts.one_rank && cell->key.rank != p->opts.rank))
            continue;
        bool by_module = p->opts.group == TREK_TIMELINE_GROUP_MODULE && cell->key.kind != TREK_TRACE_SPAN;
        status = by_module ? add_by_module(p, cell) : add_by_name(p, cell);
        p->self_ns += cell->self_ns;
        p->device_ns += cell->device_ns;
        p->any_on_device |= cell->on_device;
    }
    for (int k = 0; k < p->count; k++)
        p->rows[k].share = p->self_ns > 0 ? (double)p->rows[k].self_ns / (double)p->self_ns : 0;
    return status;
}

/* --- sorting ---------------------------------------------------------------------------- */

static double rank_of(const trek_timeline_row *row, trek_timeline_sort sort)
{
    switch (sort) {
    case TREK_TIMELINE_SORT_TOTAL: return (double)row->total_ns;
    case TREK_TIMELINE_SORT_AVERAGE: return row->calls ? (double)row->total_ns / (double)row->calls : 0;
    case TREK_TIMELINE_SORT_CALLS: return (double)row->calls;
    case TREK_TIMELINE_SORT_FLOPS: return row->flops;
    case TREK_TIMELINE_SORT_BYTES: return row->bytes;
    case TREK_TIMELINE_SORT_NAME: return 0;
    case TREK_TIMELINE_SORT_DEVICE: return (double)row->device_ns;
    case TREK_TIMELINE_SORT_SELF: break;
    }
    return (double)row->self_ns;
}

typedef struct placed {
    double rank;
    trek_timeline_row row;
} placed;

static int compare(const void *x, const void *y)
{
    const placed *a = x, *b = y;
    if (a->rank != b->rank)
        return a->rank < b->rank ? 1 : -1;
    int order = strcmp(a->row.name, b->row.name);
    if (order == 0)
        order = (int)a->row.backward - (int)b->row.backward;
    return order ? order : strcmp(a->row.shapes, b->row.shapes);
}

static trek_status sort_rows(profile *p)
{
    placed *all = trek_calloc((size_t)p->count + 1, sizeof *all);
    if (!all)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < p->count; k++)
        all[k] = (placed){ rank_of(&p->rows[k], p->opts.sort), p->rows[k] };
    qsort(all, (size_t)p->count, sizeof *all, compare);
    for (int k = 0; k < p->count; k++)
        p->rows[k] = all[k].row;
    trek_free(all);
    return TREK_OK;
}

/* --- making one ---------------------------------------------------------------------------- */

static trek_status check(const char *function, const trek_timeline *timeline, const trek_timeline_summary_opts *opts)
{
    if (!timeline)
        return trek_fail_missing(function, "timeline");
    if (!timeline->ops)
        return trek_fail(TREK_ERR_STATE, "%s: timeline: it was made without .ops; it must be made with it", function);
    if ((unsigned)opts->group > TREK_TIMELINE_GROUP_MODULE)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .group: %d; must be a value of trek_timeline_group", function, (int)opts->group);
    if ((unsigned)opts->sort > TREK_TIMELINE_SORT_DEVICE)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .sort: %d; must be a value of trek_timeline_sort", function, (int)opts->sort);
    if (opts->rows < TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .rows: %lld; must be 0 or more", function, (long long)opts->rows);
    if (opts->one_rank && opts->rank < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: .rank: %d; must be 0 or more", function, opts->rank);
    return trek_error_status();
}

/* Copies the table in memory, so that threads that record only wait for that. */
static trek_status copy_table(trek_timeline *t, trek_timeline_table *copy)
{
    pthread_mutex_lock(&t->lock);
    trek_timeline_marks_read(&t->marks, true);
    *copy = t->table;
    copy->slots = 0;
    copy->cells = trek_alloc((size_t)(t->table.used + 1) * sizeof *copy->cells);
    for (int64_t k = 0; copy->cells && copy->slots < t->table.used; k++)
        if (t->table.cells[k].calls)
            copy->cells[copy->slots++] = t->table.cells[k];
    pthread_mutex_unlock(&t->lock);
    return copy->cells ? TREK_OK : TREK_ERR_MEMORY;
}

static trek_status make_profile(profile *p, const char *function, trek_timeline *timeline,
                                const trek_timeline_summary_opts *opts)
{
    *p = (profile){ 0 };
    if (opts)
        p->opts = *opts;
    trek_timeline_table table = { 0 };
    trek_status status = check(function, timeline, &p->opts);
    if (status == TREK_OK)
        status = copy_table(timeline, &table);
    if (status == TREK_OK)
        status = fold(p, &table);
    if (status == TREK_OK)
        status = sort_rows(p);
    p->wall_ns = table.last_ns - table.first_ns;
    trek_free(table.cells);
    if (status != TREK_OK)
        clear_profile(p);
    return status;
}

int64_t trek_timeline_averages(trek_timeline *timeline, const trek_timeline_summary_opts *opts, trek_timeline_row *rows,
                               int64_t capacity)
{
    profile p;
    if (capacity < 0 || (!rows && capacity > 0)) {
        if (capacity < 0)
            trek_fail(TREK_ERR_ARGUMENT, "timeline_averages: capacity: %lld rows; must be 0 or more", (long long)capacity);
        else
            trek_fail_missing("timeline_averages", "rows");
        return -1;
    }
    if (make_profile(&p, "timeline_averages", timeline, opts) != TREK_OK)
        return -1;
    for (int64_t k = 0; k < capacity && k < p.count; k++)
        rows[k] = p.rows[k];
    int64_t count = p.count;
    clear_profile(&p);
    return count;
}

/* --- as text ---------------------------------------------------------------------------------- */

/* Writes a value with that many decimals, without the locale; "-" if it is not known. */
static const char *fixed(double value, int decimals, char *text)
{
    static const int64_t scales[] = { 1, 10, 100, 1000 };
    if (!isfinite(value) || fabs(value) > 1e14)
        return strcpy(text, "-");
    int64_t scaled = llround(fabs(value) * (double)scales[decimals]);
    const char *sign = value < 0 && scaled ? "-" : "";
    if (decimals)
        snprintf(text, 32, "%s%lld.%0*lld", sign, (long long)(scaled / scales[decimals]), decimals,
                 (long long)(scaled % scales[decimals]));
    else
        snprintf(text, 32, "%s%lld", sign, (long long)scaled);
    return text;
}

static void add_fixed(trek_text *text, int width, double value, int decimals)
{
    char number[40];
    trek_text_format(text, "%*s", width, fixed(value, decimals, number));
}

/* Writes a rate, and its part of a peak if that was measured; nothing if nothing is counted. */
static void add_rate(trek_text *text, const trek_timeline_row *row, double amount, double peak)
{
    int64_t took = row->on_device ? row->device_ns : row->total_ns;
    double rate = amount > 0 && took > 0 ? amount / (double)took : (double)NAN; /* billions per second */
    add_fixed(text, 9, rate, 1);
    if (peak > 0)
        add_fixed(text, 8, 1e11 * rate / peak, 1);
}

static void add_head(trek_text *text, const profile *p, int width, const trek_peak *peak)
{
    static const char *const heads[] = { "op", "op", "module" };
    trek_text_format(text, "%-*s%10s%12s%12s%8s%12s%9s", width, heads[p->opts.group], "calls", "total ms", "self ms", "self %",
                     "average us", "GFLOP/s");
    int share = peak->flops > 0 ? 8 : 0;
    if (p->device_ns > 0)
        trek_text_format(text, "%12s", "device ms");
    trek_text_format(text, "%*s%9s%*s", share, share ? "% peak" : "", "GB/s", share, share ? "% copy" : "");
    trek_text_add(text, p->opts.group == TREK_TIMELINE_GROUP_SHAPES ? "  shapes\n" : "\n");
}

static void name_of(const trek_timeline_row *row, char *name, size_t size)
{
    snprintf(name, size, "%s%s", row->name, row->backward && row->kind == TREK_TIMELINE_KIND_MODULE ? " (backward)" : "");
}

static void add_row(trek_text *text, const profile *p, const trek_timeline_row *row, int width, const trek_peak *peak)
{
    char name[TREK_INTERN_LENGTH + 16];
    name_of(row, name, sizeof name);
    trek_text_format(text, "%-*s%10lld", width, name, (long long)row->calls);
    add_fixed(text, 12, (double)row->total_ns / 1e6, 3);
    add_fixed(text, 12, (double)row->self_ns / 1e6, 3);
    add_fixed(text, 8, 100 * row->share, 1);
    add_fixed(text, 12, row->calls ? (double)row->total_ns / 1e3 / (double)row->calls : (double)NAN, 1);
    if (p->device_ns > 0)
        add_fixed(text, 12, row->device_ns ? (double)row->device_ns / 1e6 : (double)NAN, 3);
    add_rate(text, row, row->flops, peak->flops);
    add_rate(text, row, row->bytes, peak->bytes);
    if (p->opts.group == TREK_TIMELINE_GROUP_SHAPES)
        trek_text_format(text, "  %s", row->shapes);
    trek_text_add(text, "\n");
}

static void add_foot(trek_text *text, const profile *p, int shown, const trek_peak *peak)
{
    char number[40];
    int64_t rest = 0;
    for (int k = shown; k < p->count; k++)
        rest += p->rows[k].self_ns;
    if (shown < p->count)
        trek_text_format(text, "and %d more, together %s ms of their own\n", p->count - shown,
                         fixed((double)rest / 1e6, 3, number));
    trek_text_format(text, "all: %s ms", fixed((double)p->self_ns / 1e6, 3, number));
    trek_text_format(text, ", in a time of %s ms\n", fixed((double)p->wall_ns / 1e6, 3, number));
    if (peak->flops > 0) {
        trek_text_format(text, "peak: %d threads, %s GFLOP/s", peak->threads, fixed(peak->flops / 1e9, 1, number));
        trek_text_format(text, " in f32, %s GB/s read and written in a copy\n", fixed(peak->bytes / 1e9, 1, number));
    }
    if (p->device_ns > 0)
        trek_text_format(text, "on devices: %s ms\n", fixed((double)p->device_ns / 1e6, 3, number));
    if (p->any_on_device)
        trek_text_add(text, "ops on a GPU: the time in which the host handed them over\n");
}

char *trek_timeline_summary(trek_timeline *timeline, const trek_timeline_summary_opts *opts)
{
    profile p;
    trek_peak peak = { 0 };
    trek_text text = { 0 };
    if (make_profile(&p, "timeline_summary", timeline, opts) != TREK_OK)
        return NULL;
    if (p.opts.peak && trek_measure_peak(&peak) != TREK_OK) {
        clear_profile(&p);
        return NULL;
    }
    int64_t rows = p.opts.rows == TREK_OFF ? p.count : p.opts.rows ? p.opts.rows : DEFAULT_ROWS;
    int shown = rows < p.count ? (int)rows : p.count, width = 20;
    for (int k = 0; k < shown; k++) {
        char name[TREK_INTERN_LENGTH + 16];
        name_of(&p.rows[k], name, sizeof name);
        int length = (int)strlen(name) + 1;
        width = length > width && length <= NAME_WIDTH ? length : width;
    }
    add_head(&text, &p, width, &peak);
    for (int k = 0; k < shown; k++)
        add_row(&text, &p, &p.rows[k], width, &peak);
    add_foot(&text, &p, shown, &peak);
    clear_profile(&p);
    return trek_text_take(&text);
}
