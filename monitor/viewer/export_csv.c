/* SPDX-License-Identifier: Apache-2.0 */
/* A watched run as a table. */
#include "monitor/export.h"

#include <stdlib.h>
#include <string.h>

#include "monitor/viewer/run_numbers.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

typedef struct column {
    char *name;
    bool at_epoch, machine;          /* machine: from ranks and system, placed behind the curves */
    int place;
} column;

/* A point of a curve, and its position in the table. */
typedef struct cell {
    int64_t step, epoch, order;
    int column;
    double value;
} cell;

typedef struct table {
    column *columns;
    cell *cells;
    int n_columns, cap_columns, n_cells, cap_cells;
    trek_run_steps steps;
    int64_t step, epoch;             /* of the current record; the last epoch that was seen */
} table;

static void clear_table(table *t)
{
    for (int k = 0; k < t->n_columns; k++)
        trek_free(t->columns[k].name);
    trek_free(t->columns);
    trek_free(t->cells);
    trek_run_steps_clear(&t->steps);
}

/* Returns the column's number, or -1 with MEMORY. */
static int column_of(table *t, const char *name, bool at_epoch, bool machine)
{
    for (int k = 0; k < t->n_columns; k++)
        if (t->columns[k].at_epoch == at_epoch && t->columns[k].machine == machine && strcmp(t->columns[k].name, name) == 0)
            return k;
    char *own = trek_strdup(name);
    if (!own || trek_array_grow(&t->columns, &t->cap_columns, t->n_columns + 1, sizeof *t->columns) != TREK_OK) {
        trek_free(own);
        return -1;
    }
    t->columns[t->n_columns] = (column){ own, at_epoch, machine, 0 };
    return t->n_columns++;
}

static void add_cell(table *t, int column, int64_t epoch, double value)
{
    if (column < 0 || trek_array_grow(&t->cells, &t->cap_cells, t->n_cells + 1, sizeof *t->cells) != TREK_OK)
        return;
    t->cells[t->n_cells] = (cell){ t->step, epoch, t->n_cells, column, value };
    t->n_cells++;
}

static void take_number(const char *name, double value, void *arg)
{
    table *t = arg;
    add_cell(t, column_of(t, name, false, true), t->epoch, value);
}

static trek_status take(const trek_run_record *record, void *arg)
{
    table *t = arg;
    bool at_epoch = record->at && strcmp(record->at, "epoch") == 0;
    int64_t step = trek_run_step(&t->steps, record);
    t->epoch = record->epoch >= 0 ? record->epoch : t->epoch;
    t->step = record->kind == TREK_RUN_SCALARS ? record->step : step;
    for (int k = 0; record->kind == TREK_RUN_SCALARS && k < record->n_values; k++)
        add_cell(t, column_of(t, record->values[k].name, at_epoch, false), record->epoch, record->values[k].value);
    trek_run_numbers(record, take_number, t);
    return trek_error_status();
}

static int by_step(const void *a, const void *b)
{
    const cell *x = a, *y = b;
    return x->step != y->step ? (x->step < y->step ? -1 : 1) : x->order < y->order ? -1 : x->order > y->order;
}

static void add_quoted(trek_text *out, const char *text, const char *suffix)
{
    trek_text_add(out, ",\"");
    for (; *text; text++)
        trek_text_bytes(out, *text == '"' ? "\"\"" : text, *text == '"' ? 2 : 1);
    trek_text_add(out, suffix);
    trek_text_add(out, "\"");
}

/* Curves come first, then the values of ranks and system. */
static void add_titles(trek_text *out, table *t)
{
    int place = 0;
    trek_text_add(out, "step,epoch");
    for (int machine = 0; machine < 2; machine++)
        for (int k = 0; k < t->n_columns; k++) {
            if (t->columns[k].machine != (machine == 1))
                continue;
            t->columns[k].place = place++;
            add_quoted(out, t->columns[k].name, t->columns[k].at_epoch ? " (epoch)" : "");
        }
    trek_text_add(out, "\r\n");
}

/* The epoch is the last one that a curve has given. */
static void add_row(trek_text *out, const table *t, const cell *cells, int n, double *row, bool *filled)
{
    char digits[40];
    int64_t epoch = cells[n - 1].epoch;
    memset(filled, 0, (size_t)t->n_columns);
    for (int k = 0; k < n; k++) {
        const column *c = &t->columns[cells[k].column];
        row[c->place] = cells[k].value;
        filled[c->place] = true;
        epoch = c->machine ? epoch : cells[k].epoch;
    }
    trek_text_format(out, "%lld,%lld", (long long)cells[0].step, (long long)epoch);
    for (int k = 0; k < t->n_columns; k++) {
        trek_text_add(out, ",");
        if (filled[k])
            trek_text_add(out, trek_text_number(row[k], digits));
    }
    trek_text_add(out, "\r\n");
}

static trek_status add_table(trek_text *out, table *t)
{
    double *row = trek_calloc((size_t)t->n_columns + 1, sizeof *row);
    bool *filled = trek_calloc((size_t)t->n_columns + 1, sizeof *filled);
    add_titles(out, t);
    if (t->n_cells)
        qsort(t->cells, (size_t)t->n_cells, sizeof *t->cells, by_step);
    for (int k = 0, next; row && filled && k < t->n_cells; k = next) {
        for (next = k + 1; next < t->n_cells && t->cells[next].step == t->cells[k].step;)
            next++;
        add_row(out, t, t->cells + k, next - k, row, filled);
    }
    trek_free(row);
    trek_free(filled);
    return trek_error_status();
}

trek_status trek_export_csv(const char *run, const char *path)
{
    trek_text out = { 0 };
    table t = { 0 };
    if (!path)
        return trek_fail_missing("export_csv", "path");
    trek_run_reader *r = trek_run_read("export_csv", run, &(trek_run_reader_opts){ .most_points = 16, .on_record = take,
                                                                                        .arg = &t });
    trek_status status = r ? add_table(&out, &t) : trek_error_status();
    if (status == TREK_OK)
        status = trek_run_write_file("export_csv", path, &out);
    trek_text_clear(&out);
    clear_table(&t);
    trek_run_reader_free(&r);
    return status;
}
