/* SPDX-License-Identifier: Apache-2.0 */
/* Tables in text files. The file is read once for the columns' names, and for their types unless they are given, and
 * once for the values, which go directly to their field. */
#include "data/csv.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "data/dataset_internal.h"
#include "data/unpack_internal.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/dlpack.h"
#include "tensor/dtypes.h"
#include "tensor/number_internal.h"

enum { PIECE = 1 << 16, MOST_COLUMNS = 1 << 20, MOST_ROW = 1 << 28 };

/* --- rows of cells ---------------------------------------------------------------------- */

typedef struct rows {
    trek_unpack file;
    char delimiter;
    char *text;            /* the row's cells, each followed by a 0 */
    size_t length, room;
    int *starts;           /* of cells */
    int n, capacity;
    int64_t line, first_line; /* the current line, and the line where the row began */
    enum { CELL_START, PLAIN, QUOTED, QUOTE_IN_QUOTED } state;
    bool quoted_row;       /* something in the row was quoted, so the row is not empty */
    int width;             /* the number of cells in each row; 0 if not known yet */
} rows;

static trek_status bad_row(const rows *r, const char *what)
{
    return trek_fail(TREK_ERR_FORMAT, "%s: line %" PRId64 ": %s", r->file.path, r->first_line, what);
}

static trek_status add_char(rows *r, char c)
{
    if (r->length == r->room) {
        size_t room = r->room ? 2 * r->room : 1024;
        char *text = room <= MOST_ROW ? trek_realloc(r->text, room) : NULL;
        if (!text)
            return room > MOST_ROW ? bad_row(r, "a row of more than 2^28 bytes") : TREK_ERR_MEMORY;
        r->text = text;
        r->room = room;
    }
    r->text[r->length++] = c;
    return TREK_OK;
}

static trek_status begin_cell(rows *r)
{
    if (r->n == MOST_COLUMNS)
        return bad_row(r, "more than 2^20 values");
    trek_status status = trek_array_grow(&r->starts, &r->capacity, r->n + 1, sizeof *r->starts);
    if (status == TREK_OK)
        r->starts[r->n++] = (int)r->length;
    r->state = CELL_START;
    return status;
}

/* The row is complete: checks whether it has values, and as many as the other rows. */
static trek_status row_check(rows *r, bool *empty)
{
    *empty = r->n == 1 && r->text[0] == 0 && !r->quoted_row;
    if (*empty || r->n == r->width || r->width == 0) {
        r->width = *empty ? r->width : r->n;
        return TREK_OK;
    }
    return trek_fail(TREK_ERR_FORMAT, "%s: line %" PRId64 ": %d values; the first row has %d", r->file.path, r->first_line, r->n,
                     r->width);
}

typedef trek_status (*row_fn)(rows *r, void *arg);

static trek_status end_row(rows *r, row_fn each, void *arg)
{
    bool empty = false;
    trek_status status = add_char(r, 0);
    if (status == TREK_OK && r->length >= 2 && r->text[r->length - 2] == '\r' && r->state == PLAIN) /* CRLF */
        r->text[r->length - 2] = 0;
    if (status == TREK_OK)
        status = row_check(r, &empty);
    if (status == TREK_OK && !empty)
        status = each(r, arg);
    r->length = 0;
    r->n = 0;
    r->quoted_row = false;
    r->first_line = r->line;
    return status == TREK_OK ? begin_cell(r) : status;
}

static trek_status take_char(rows *r, char c, row_fn each, void *arg)
{
    r->line += c == '\n';
    if (c == 0)
        return bad_row(r, "it contains a byte 0");
    if (r->state == QUOTED) {
        if (c == '"')
            r->state = QUOTE_IN_QUOTED;
        return c == '"' ? TREK_OK : add_char(r, c);
    }
    if (c == '"' && r->state != PLAIN) { /* the opening quote of a cell, or the second of two */
        trek_status status = r->state == QUOTE_IN_QUOTED ? add_char(r, c) : TREK_OK;
        r->state = QUOTED;
        r->quoted_row = true;
        return status;
    }
    if (c == '\n')
        return end_row(r, each, arg);
    if (c == r->delimiter) {
        trek_status status = add_char(r, 0);
        return status == TREK_OK ? begin_cell(r) : status;
    }
    if (r->state == QUOTE_IN_QUOTED)
        return c == '\r' ? TREK_OK : bad_row(r, "text follows a quoted value");
    r->state = PLAIN;
    return add_char(r, c);
}

/* Calls each(row) for all rows, until one fails or *stop is set. */
static trek_status read_rows(const char *path, char delimiter, row_fn each, void *arg, const bool *stop)
{
    rows r = { .delimiter = delimiter, .line = 1, .first_line = 1 };
    trek_status status = trek_unpack_open(&r.file, path);
    if (status != TREK_OK)
        return status;
    char *piece = trek_alloc(PIECE);
    size_t got = PIECE, skip = 3;
    status = piece ? begin_cell(&r) : TREK_ERR_MEMORY;
    while (status == TREK_OK && got == PIECE && !*stop) {
        status = trek_unpack_read(&r.file, (unsigned char *)piece, PIECE, &got);
        size_t at = skip && got >= 3 && memcmp(piece, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
        for (skip = 0; at < got && status == TREK_OK && !*stop; at++)
            status = take_char(&r, piece[at], each, arg);
    }
    if (status == TREK_OK && !*stop && r.state == QUOTED)
        status = bad_row(&r, "a quote that does not end");
    if (status == TREK_OK && !*stop && (r.length > 0 || r.n > 1 || r.quoted_row)) /* the last line has no line end */
        status = end_row(&r, each, arg);
    trek_unpack_close(&r.file);
    trek_free(piece);
    trek_free(r.text);
    trek_free(r.starts);
    return status;
}

static const char *cell(const rows *r, int column) { return r->text + r->starts[column]; }

/* --- numbers ------------------------------------------------------------------------------ */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool read_whole(const char *text, int64_t *value)
{
    bool negative = *text == '-';
    text += *text == '-' || *text == '+';
    uint64_t sum = 0, most = negative ? (uint64_t)1 << 63 : INT64_MAX;
    if (!is_digit(*text))
        return false;
    for (; is_digit(*text); text++) {
        uint64_t digit = (uint64_t)(*text - '0');
        if (sum > (most - digit) / 10)
            return false;
        sum = sum * 10 + digit;
    }
    *value = negative ? (int64_t)(0 - sum) : (int64_t)sum;
    return *text == 0;
}

/* Reads a number with few digits exactly (Clinger, "How to read floating point numbers accurately", 1990). */
static bool read_short(const char *text, double *value)
{
    static const double powers[] = { 1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15 };
    bool negative = *text == '-';
    text += *text == '-' || *text == '+';
    int64_t digits = 0;
    int n = 0, behind = -1;
    for (; n < 15 && (is_digit(*text) || (*text == '.' && behind < 0)); text++) {
        if (*text == '.') {
            behind = 0;
            continue;
        }
        digits = digits * 10 + (*text - '0');
        behind += behind >= 0;
        n++;
    }
    double size = (double)digits / powers[behind > 0 ? behind : 0];
    *value = negative ? -size : size;
    return *text == 0 && n > 0;
}

/* Reads decimal numbers only: strtod would also accept hexadecimal ones and the locale's decimal point. */
static bool read_number(const char *text, locale_t c, double *value)
{
    if (read_short(text, value))
        return true;
    const char *at = text + (*text == '-' || *text == '+');
    bool word = strcasecmp(at, "nan") == 0 || strcasecmp(at, "inf") == 0 || strcasecmp(at, "infinity") == 0;
    if (!word && (!(is_digit(*at) || (*at == '.' && is_digit(at[1]))) || strpbrk(at, "xXpP")))
        return false;
    char *end = NULL;
    *value = strtod_l(text, &end, c);
    return *end == 0;
}

/* --- fields --------------------------------------------------------------------------------- */

typedef struct field {
    trek_csv_field opts;    /* its texts belong to the caller, or are the names of columns */
    int *columns;
    int n;
    trek_dtype kept;        /* the dtype that values are kept in meanwhile: f32, f64 or i64 */
    char *data;             /* [rows, n] */
    int64_t capacity;       /* values */
    char **words;           /* owned */
    int n_words, words_capacity;
    int32_t *table;         /* [slots] hash table of positions in words; -1 for none */
    int slots;
} field;

typedef struct reading {
    const char *path, *missing;
    char delimiter;
    bool header, infer, stop;
    locale_t c;
    char **names;           /* of columns */
    int n_columns;
    unsigned char *seen;    /* [columns] while types are being determined: what has occurred */
    field *fields;
    int n_fields;
    int64_t rows;
    bool past_header;
} reading;

enum { SEEN_FRACTION = 1, SEEN_WORD = 2, SEEN_NOTHING = 4 };

static bool is_missing(const reading *in, const char *text) { return !*text || strcmp(text, in->missing) == 0; }

static uint32_t hash_of(const char *word)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *word; word++)
        hash = (hash ^ (unsigned char)*word) * 16777619u;
    return hash;
}

static int32_t *slot_of(const field *f, const char *word)
{
    for (uint32_t at = hash_of(word);; at++) {
        int32_t *slot = &f->table[at & (uint32_t)(f->slots - 1)];
        if (*slot < 0 || strcmp(f->words[*slot], word) == 0)
            return slot;
    }
}

static trek_status table_grow(field *f)
{
    int slots = f->slots ? 2 * f->slots : 64;
    int32_t *table = slots > 0 ? trek_realloc(f->table, (size_t)slots * sizeof *table) : NULL;
    if (!table)
        return trek_fail_after(TREK_ERR_MEMORY, "dataset_csv: too many words");
    memset(table, 0xff, (size_t)slots * sizeof *table);
    f->table = table;
    f->slots = slots;
    for (int k = 0; k < f->n_words; k++)
        *slot_of(f, f->words[k]) = k;
    return TREK_OK;
}

static trek_status add_word(field *f, const char *word)
{
    if (2 * (f->n_words + 1) > f->slots && table_grow(f) != TREK_OK)
        return TREK_ERR_MEMORY;
    char *copy = trek_array_grow(&f->words, &f->words_capacity, f->n_words + 1, sizeof *f->words) == TREK_OK ? trek_strdup(word)
        : NULL;
    if (!copy)
        return TREK_ERR_MEMORY;
    *slot_of(f, copy) = f->n_words;
    f->words[f->n_words++] = copy;
    return TREK_OK;
}

static trek_status bad_cell(const reading *in, const rows *r, int column, const char *what, const field *f)
{
    const char *text = cell(r, column);
    return trek_fail(TREK_ERR_FORMAT, "%s: line %" PRId64 ", column %s: \"%.60s\"%s %s%s", in->path, r->first_line,
                     in->names[column], text,
                     strlen(text) > 60 ? "..." : "", what, f->opts.category ? "" : trek_dtype_name(f->opts.dtype));
}

static trek_status category_value(const reading *in, const rows *r, field *f, int column, int64_t *value)
{
    const char *text = cell(r, column);
    if (f->slots == 0 && table_grow(f) != TREK_OK)
        return TREK_ERR_MEMORY;
    *value = *slot_of(f, text);
    if (*value >= 0)
        return TREK_OK;
    if (f->opts.words)
        return bad_cell(in, r, column, "is not one of the words", f);
    *value = f->n_words;
    return add_word(f, text);
}

static trek_status whole_value(const reading *in, const rows *r, const field *f, int column, int64_t *value)
{
    const char *text = cell(r, column);
    bool truth = f->opts.dtype == TREK_BOOL && (strcasecmp(text, "true") == 0 || strcasecmp(text, "false") == 0);
    if (truth)
        *value = strcasecmp(text, "true") == 0;
    else if (!read_whole(text, value))
        return bad_cell(in, r, column, "is not a whole number, but the field is of ", f);
    if (f->opts.dtype == TREK_I64 || (f->opts.dtype == TREK_BOOL ? *value == 0 || *value == 1
                                                               : trek_dtype_holds(f->opts.dtype, (double)*value)))
        return TREK_OK;
    return bad_cell(in, r, column, "is out of the range of ", f);
}

static trek_status missing_value(const reading *in, const rows *r, const field *f, int column, double *number)
{
    bool floats = !f->opts.category && trek_dtype_is_float(f->opts.dtype);
    if (!f->opts.fill && !floats && !f->opts.category)
        return bad_cell(in, r, column, "is missing from a field of ", f);
    *number = f->opts.fill ? f->opts.missing : floats ? NAN : -1;
    return TREK_OK;
}

/* Stores one value in its field. */
static trek_status put_value(const reading *in, const rows *r, field *f, int column, int64_t at)
{
    const char *text = cell(r, column);
    double number = 0;
    int64_t whole = 0;
    trek_status status = TREK_OK;
    if (is_missing(in, text)) {
        status = missing_value(in, r, f, column, &number);
        whole = f->kept == TREK_I64 && status == TREK_OK ? (int64_t)number : 0;
    } else if (f->opts.category) {
        status = category_value(in, r, f, column, &whole);
    } else if (f->kept == TREK_I64) {
        status = whole_value(in, r, f, column, &whole);
    } else if (!read_number(text, in->c, &number)) {
        status = bad_cell(in, r, column, "is not a number, but the field is of ", f);
    }
    if (f->kept == TREK_I64)
        ((int64_t *)(void *)f->data)[at] = whole;
    else if (f->kept == TREK_F64)
        ((double *)(void *)f->data)[at] = number;
    else
        ((float *)(void *)f->data)[at] = (float)number;
    return status;
}

static trek_status put_row(reading *in, const rows *r)
{
    for (int k = 0; k < in->n_fields; k++) {
        field *f = &in->fields[k];
        int64_t first = in->rows * f->n;
        if (first + f->n > f->capacity) {
            int64_t capacity = f->capacity ? 2 * f->capacity : 64 * (int64_t)f->n;
            char *data = trek_realloc(f->data, (size_t)capacity * trek_dtype_size(f->kept));
            if (!data)
                return TREK_ERR_MEMORY;
            f->data = data;
            f->capacity = capacity;
        }
        for (int c = 0; c < f->n; c++) {
            trek_status status = put_value(in, r, f, f->columns[c], first + c);
            if (status != TREK_OK)
                return status;
        }
    }
    in->rows++;
    return TREK_OK;
}

static trek_status values_row(rows *r, void *arg)
{
    reading *in = arg;
    if (!in->header || in->past_header)
        return put_row(in, r);
    in->past_header = true;
    return TREK_OK;
}

/* --- names and types of columns ------------------------------------------------------------- */

static trek_status name_columns(reading *in, const rows *r)
{
    in->names = trek_calloc((size_t)r->n, sizeof *in->names);
    in->seen = in->names ? trek_calloc((size_t)r->n, 1) : NULL;
    if (!in->seen)
        return TREK_ERR_MEMORY;
    for (in->n_columns = 0; in->n_columns < r->n; in->n_columns++) {
        int k = in->n_columns;
        in->names[k] = in->header && *cell(r, k) ? trek_strdup(cell(r, k)) : trek_format("%d", k);
        if (!in->names[k])
            return TREK_ERR_MEMORY;
    }
    return TREK_OK;
}

static trek_status names_row(rows *r, void *arg)
{
    reading *in = arg;
    bool is_header = !in->names && in->header;
    if (!in->names && name_columns(in, r) != TREK_OK)
        return TREK_ERR_MEMORY;
    in->stop = !in->infer;
    for (int k = 0; in->infer && !is_header && k < r->n; k++) {
        int64_t whole;
        double number;
        const char *text = cell(r, k);
        if (is_missing(in, text))
            in->seen[k] |= SEEN_NOTHING;
        else if (!read_whole(text, &whole))
            in->seen[k] |= read_number(text, in->c, &number) ? SEEN_FRACTION : SEEN_WORD;
    }
    return TREK_OK;
}

static int find_column(const reading *in, const char *name)
{
    char list[400] = "";
    size_t used = 0;
    for (int k = 0; k < in->n_columns; k++) {
        if (strcmp(in->names[k], name) == 0)
            return k;
        if (used + strlen(in->names[k]) + 8 < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, used ? ", %s" : "%s", in->names[k]);
    }
    trek_fail(TREK_ERR_ARGUMENT, "%s: there is no column \"%s\"; the columns are: %s", in->path, name, list);
    return -1;
}

/* Finds the field's columns and the dtype it is kept in. */
static trek_status field_begin(const reading *in, field *f)
{
    trek_csv_field *o = &f->opts;
    const char *const *columns = o->columns ? o->columns : &o->name;
    f->n = o->columns ? o->n_columns : 1;
    if (f->n < 1 || !columns[0] || trek_dtype_size(o->dtype) == 0 || (o->words && o->n_words < 0))
        return trek_fail(TREK_ERR_ARGUMENT, "dataset_csv: field %s: it has no column, or no dtype; it needs both",
                         o->name ? o->name : "?");
    f->columns = trek_calloc((size_t)f->n, sizeof *f->columns);
    if (!f->columns)
        return TREK_ERR_MEMORY;
    for (int c = 0; c < f->n; c++) {
        f->columns[c] = columns[c] ? find_column(in, columns[c]) : -1;
        if (f->columns[c] < 0)
            return columns[c] ? TREK_ERR_ARGUMENT : trek_fail_missing("dataset_csv", "column's name");
    }
    o->name = o->name ? o->name : columns[0];
    o->dtype = o->category ? TREK_I64 : o->dtype;
    f->kept = !trek_dtype_is_float(o->dtype) ? TREK_I64 : o->dtype == TREK_F64 ? TREK_F64 : TREK_F32;
    if (o->fill && !trek_dtype_holds(o->dtype, o->missing))
        return trek_fail(TREK_ERR_ARGUMENT, "dataset_csv: field %s: .missing: %g; must be a value that %s can hold", o->name,
                         o->missing, trek_dtype_name(o->dtype));
    if (o->fill && o->category && !o->words)
        return trek_fail(TREK_ERR_ARGUMENT, "dataset_csv: field %s: .fill: set for a category without .words, which it needs",
                         o->name);
    for (int k = 0; o->category && o->words && k < o->n_words; k++) {
        if (!o->words[k])
            return trek_fail_missing("dataset_csv", "word");
        if (f->slots > 0 && *slot_of(f, o->words[k]) >= 0)
            return trek_fail(TREK_ERR_ARGUMENT, "dataset_csv: field %s: .words: \"%s\" occurs twice; each must be there once",
                             o->name, o->words[k]);
        if (add_word(f, o->words[k]) != TREK_OK)
            return TREK_ERR_MEMORY;
    }
    return TREK_OK;
}

static trek_status fields_begin(reading *in, const trek_csv_opts *o)
{
    if (in->n_columns == 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: the file is empty", in->path);
    in->n_fields = in->infer ? in->n_columns : o->n_fields;
    in->fields = trek_calloc((size_t)in->n_fields, sizeof *in->fields);
    if (!in->fields)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < in->n_fields; k++) {
        field *f = &in->fields[k];
        if (!in->infer)
            f->opts = o->fields[k];
        else
            f->opts = (trek_csv_field){ .name = in->names[k], .category = (in->seen[k] & SEEN_WORD) != 0,
                                        .dtype = in->seen[k] == 0 ? TREK_I64 : TREK_F32 };
        trek_status status = field_begin(in, f);
        if (status != TREK_OK)
            return status;
    }
    return TREK_OK;
}

/* --- the dataset ------------------------------------------------------------------------------- */

typedef struct csv {
    trek_dataset base;
    trek_dataset *rows;
    char ***words;  /* [fields]; NULL for fields without categories */
    int *n_words;
} csv;

static int64_t csv_length(const trek_dataset *self) { return trek_dataset_length(((const csv *)self)->rows); }

static trek_status csv_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    return trek_dataset_fetch(((csv *)self)->rows, fetch, out);
}

static void words_free(char **words, int n)
{
    for (int k = 0; k < n; k++)
        trek_free(words[k]);
    trek_free(words);
}

static void csv_free(trek_dataset *self)
{
    csv *set = (csv *)self;
    for (int k = 0; set->words && set->n_words && k < set->base.n_fields; k++)
        words_free(set->words[k], set->n_words[k]);
    trek_free(set->words);
    trek_free(set->n_words);
    trek_dataset_free(&set->rows);
}

static const trek_dataset_class csv_class = {
    .name = "csv", .size = sizeof(csv), .length = csv_length, .get = csv_get, .free = csv_free,
};

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Sorts the words that were found, and renumbers the values. */
static trek_status sort_words(field *f, int64_t values)
{
    if (f->opts.words || f->n_words == 0)
        return TREK_OK;
    int64_t *to = trek_calloc((size_t)f->n_words, sizeof *to);
    char **sorted = to ? trek_calloc((size_t)f->n_words, sizeof *sorted) : NULL;
    if (!sorted) {
        trek_free(to);
        return TREK_ERR_MEMORY;
    }
    memcpy(sorted, f->words, (size_t)f->n_words * sizeof *sorted);
    qsort(sorted, (size_t)f->n_words, sizeof *sorted, by_bytes);
    for (int k = 0; k < f->n_words; k++)
        to[*slot_of(f, sorted[k])] = k;
    int64_t *data = (int64_t *)(void *)f->data;
    for (int64_t i = 0; i < values; i++)
        if (data[i] >= 0 && data[i] < f->n_words)
            data[i] = to[data[i]];
    trek_free(to);
    trek_free(f->words);
    f->words = sorted;
    return TREK_OK;
}

static void give_back(void *data, void *arg)
{
    (void)arg;
    trek_free(data);
}

static trek_tensor *field_tensor(field *f, int64_t n)
{
    trek_shape shape = f->opts.columns ? trek_dims(n, f->n) : trek_dims(n);
    shape.ndim = f->n == 1 ? 1 : shape.ndim;
    if (n == 0)
        return trek_tensor_empty(shape, f->opts.dtype, trek_cpu(0));
    trek_tensor *kept = trek_tensor_wrap(f->data, shape, f->kept, give_back, NULL);
    if (!kept)
        return NULL;
    f->data = NULL;
    trek_tensor *x = trek_tensor_cast(kept, f->opts.dtype);
    trek_tensor_release(kept);
    return x;
}

static trek_status csv_fill(csv *set, reading *in)
{
    int n = in->n_fields, made = 0;
    const char **names = trek_calloc((size_t)n, sizeof *names);
    trek_tensor **tensors = names ? trek_calloc((size_t)n, sizeof *tensors) : NULL;
    trek_status status = tensors ? TREK_OK : TREK_ERR_MEMORY;
    for (; made < n && status == TREK_OK; made++) {
        field *f = &in->fields[made];
        names[made] = f->opts.name;
        if (f->opts.category)
            status = sort_words(f, in->rows * f->n);
        tensors[made] = status == TREK_OK ? field_tensor(f, in->rows) : NULL;
        if (!tensors[made])
            status = trek_status_or(TREK_ERR_MEMORY);
    }
    if (status == TREK_OK)
        status = trek_dataset_set_fields(&set->base, names, n);
    if (status == TREK_OK)
        set->rows = trek_dataset_tensors(names, tensors, n);
    set->words = trek_calloc((size_t)n, sizeof *set->words);
    set->n_words = trek_calloc((size_t)n, sizeof *set->n_words);
    for (int k = 0; set->words && set->n_words && set->rows && k < n; k++) {
        set->words[k] = in->fields[k].words;
        set->n_words[k] = in->fields[k].n_words;
        in->fields[k].words = NULL;
        in->fields[k].n_words = 0;
    }
    for (int k = 0; k < made; k++)
        trek_tensor_release(tensors[k]);
    trek_free(tensors);
    trek_free(names);
    return status == TREK_OK && (!set->rows || !set->words || !set->n_words) ? trek_status_or(TREK_ERR_MEMORY) : status;
}

static void reading_free(reading *in)
{
    for (int k = 0; in->fields && k < in->n_fields; k++) {
        field *f = &in->fields[k];
        words_free(f->words, f->n_words);
        trek_free(f->table);
        trek_free(f->columns);
        trek_free(f->data);
    }
    trek_free(in->fields);
    for (int k = 0; k < in->n_columns; k++)
        trek_free(in->names[k]);
    trek_free(in->names);
    trek_free(in->seen);
    if (in->c)
        freelocale(in->c);
}

static trek_status read_table(reading *in, const trek_csv_opts *o)
{
    if (!in->c)
        return trek_fail(TREK_ERR_MEMORY, "dataset_csv: no memory for a locale");
    trek_status status = read_rows(in->path, in->delimiter, names_row, in, &in->stop);
    in->stop = false;
    if (status == TREK_OK)
        status = fields_begin(in, o);
    return status == TREK_OK ? read_rows(in->path, in->delimiter, values_row, in, &in->stop) : status;
}

trek_dataset *trek_dataset_csv(const char *path, const trek_csv_opts *opts)
{
    static const trek_csv_opts none;
    const trek_csv_opts *o = opts ? opts : &none;
    char delimiter = o->delimiter ? o->delimiter : ',';
    if (!path) {
        trek_fail_missing("dataset_csv", "path");
        return NULL;
    }
    if (delimiter == '"' || delimiter == '\n' || delimiter == '\r' || (o->fields && o->n_fields < 1))
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "dataset_csv: .n_fields: %d, .delimiter: '%c'; must be at least 1 field, and a delimiter other "
                              "than a quote or a line break",
                              o->n_fields, delimiter);
    reading in = { .path = path, .missing = o->missing ? o->missing : "NA", .delimiter = delimiter, .header = !o->no_header,
                   .infer = !o->fields, .c = newlocale(LC_ALL_MASK, "C", (locale_t)0) };
    trek_dataset *set = NULL;
    if (read_table(&in, o) == TREK_OK)
        set = trek_dataset_new(&csv_class);
    if (set && csv_fill((csv *)set, &in) != TREK_OK)
        trek_dataset_free(&set);
    reading_free(&in);
    return set;
}

const char *const *trek_csv_words(const trek_dataset *dataset, const char *field, int *n)
{
    const trek_dataset *root = trek_dataset_root(dataset);
    int k = dataset ? trek_dataset_field(dataset, field) : -1;
    if (!dataset)
        trek_fail_missing("csv_words", "dataset");
    const csv *set = root && root->klass == &csv_class ? (const csv *)root : NULL;
    if (k < 0 || !set || !set->words[k])
        return k < 0 ? NULL
                     : trek_fail_null(TREK_ERR_ARGUMENT, "csv_words: field: \"%s\" of %s is not a category", field,
                                      root->klass->name);
    if (n)
        *n = set->n_words[k];
    return (const char *const *)set->words[k];
}
