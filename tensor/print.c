/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as text, in the way that NumPy prints arrays: columns of one width, at most eight digits, powers of ten if
 * values have very different sizes, up to 1000 elements in full and otherwise three at each edge. It does not use the
 * locale. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/print.h"

#include "tensor/op.h"

enum { WHOLE = 1000, EDGE = 3, DIGITS = 8, LINE = 75, NUMBER = 64 };

typedef struct printer {
    const double *values;      /* row-major */
    const int64_t *integers;   /* for integer dtypes: exact above 2^53 */
    trek_dtype dtype;
    int ndim;
    const int64_t *sizes;
    bool shortened, scientific;
    int decimals;              /* the most that any shown number has */
    int width;                 /* of the widest */
    int column;                /* of the current line */
    char *text;
    size_t length, capacity;
    bool failed;
} printer;

static void put(printer *p, const char *text)
{
    size_t n = strlen(text);
    if (p->failed)
        return;
    if (p->length + n + 1 > p->capacity) {
        size_t wanted = (p->length + n + 1) * 2 + 256;
        char *larger = trek_realloc(p->text, wanted);
        if (!larger) {
            p->failed = true;
            return;
        }
        p->text = larger;
        p->capacity = wanted;
    }
    memcpy(p->text + p->length, text, n + 1);
    p->length += n;
}

/* printf writes the locale's decimal point; this replaces it by a point. */
static void plain_point(char *text)
{
    for (char *c = text; *c; c++)
        if (*c == ',')
            *c = '.';
}

/* Returns whether the printed number differs from its neighbours of that dtype. */
static bool is_told(const printer *p, double value, const char *text)
{
    double back = strtod(text, NULL);
    if (p->dtype == TREK_F32)
        return (float)back == (float)value;
    if (p->dtype == TREK_F64)
        return back == value;
    return fabs(back - value) <= fabs(value) * (p->dtype == TREK_F16 ? 0x1p-12 : 0x1p-9);
}

/* Returns the fewest decimals that distinguish it, at most DIGITS (17 for a single number). */
static int decimals_of(const printer *p, double value)
{
    char text[400];
    int most = p->ndim == 0 ? 17 : DIGITS;
    for (int decimals = 0; decimals < most; decimals++) {
        snprintf(text, sizeof text, p->scientific ? "%.*e" : "%.*f", decimals, value);
        if (is_told(p, value, text))
            return decimals;
    }
    return most;
}

/* As NumPy: there is always a point; powers of ten have all decimals of the array, other numbers their own, followed
 * by spaces. */
static void format_float(const printer *p, double value, char *text)
{
    if (!isfinite(value)) {
        snprintf(text, NUMBER, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    int decimals = p->scientific ? p->decimals : decimals_of(p, value);
    if (p->ndim == 0 && decimals == 0)
        decimals = 1;
    snprintf(text, NUMBER, p->scientific ? "%#.*e" : "%#.*f", decimals, value);
    plain_point(text);
    for (size_t length = strlen(text); !p->scientific && decimals < p->decimals && length + 1 < NUMBER; decimals++) {
        text[length++] = ' ';
        text[length] = '\0';
    }
}

static void format_at(const printer *p, int64_t at, char *text)
{
    if (p->dtype == TREK_BOOL)
        snprintf(text, NUMBER, "%s", p->integers[at] ? "True" : "False");
    else if (p->integers)
        snprintf(text, NUMBER, "%lld", (long long)p->integers[at]);
    else
        format_float(p, p->values[at], text);
}

static bool is_shown(const printer *p, int64_t index, int64_t size)
{
    return !p->shortened || index < EDGE || index >= size - EDGE;
}

/* Calls fn for every element that will be shown. */
static void each_shown(printer *p, int dim, int64_t at, void (*fn)(printer *, int64_t))
{
    if (dim == p->ndim) {
        fn(p, at);
        return;
    }
    for (int64_t k = 0; k < p->sizes[dim]; k++)
        if (is_shown(p, k, p->sizes[dim]))
            each_shown(p, dim + 1, at * p->sizes[dim] + k, fn);
}

static void widen_decimals(printer *p, int64_t at)
{
    int decimals = isfinite(p->values[at]) ? decimals_of(p, p->values[at]) : 0;
    if (decimals > p->decimals)
        p->decimals = decimals;
}

static void widen_width(printer *p, int64_t at)
{
    char text[NUMBER];
    format_at(p, at, text);
    if ((int)strlen(text) > p->width)
        p->width = (int)strlen(text);
}

typedef struct range {
    double smallest, largest;
} range;

static range shown_range(const printer *p, int dim, int64_t at)
{
    range r = { INFINITY, 0 };
    if (dim == p->ndim) {
        double a = fabs(p->values[at]);
        if (a > 0 && isfinite(a))
            r.smallest = r.largest = a;
        return r;
    }
    for (int64_t k = 0; k < p->sizes[dim]; k++) {
        if (!is_shown(p, k, p->sizes[dim]))
            continue;
        range part = shown_range(p, dim + 1, at * p->sizes[dim] + k);
        r.smallest = part.smallest < r.smallest ? part.smallest : r.smallest;
        r.largest = part.largest > r.largest ? part.largest : r.largest;
    }
    return r;
}

static void choose_format(printer *p)
{
    if (!p->integers) {
        range r = shown_range(p, 0, 0);
        p->scientific = r.largest > 0 && (r.largest >= (p->ndim ? 1e8 : 1e16) || r.smallest < 1e-4 ||
                                          (p->ndim > 0 && r.largest / r.smallest > 1000));
        each_shown(p, 0, 0, widen_decimals);
    }
    each_shown(p, 0, 0, widen_width);
    if (p->dtype == TREK_BOOL && p->ndim > 0)
        p->width = 5;
}

/* Writes a word of the innermost dimension, on a new line if it would exceed the width. */
static void put_word(printer *p, const char *word, int dim, bool first)
{
    int limit = LINE - dim - 1, indent = dim + 1, length = (int)strlen(word);
    if (!first && p->column + 1 + length > limit) {
        put(p, "\n");
        for (int k = 0; k < indent; k++)
            put(p, " ");
        p->column = indent;
    } else if (!first) {
        put(p, " ");
        p->column++;
    }
    put(p, word);
    p->column += length;
}

static void element_text(const printer *p, int64_t at, char *padded)
{
    char text[NUMBER];
    format_at(p, at, text);
    snprintf(padded, 2 * NUMBER, "%*s", p->width, text);
}

static void put_row(printer *p, int dim, int64_t at)
{
    char word[2 * NUMBER];
    p->column = dim + 1;
    for (int64_t k = 0; k < p->sizes[dim]; k++) {
        if (is_shown(p, k, p->sizes[dim])) {
            element_text(p, at * p->sizes[dim] + k, word);
            put_word(p, word, dim, k == 0);
        } else {
            put_word(p, "...", dim, false);
            k = p->sizes[dim] - EDGE - 1;
        }
    }
}

static void put_dims(printer *p, int dim, int64_t at)
{
    if (p->ndim == 0) {
        char word[2 * NUMBER];
        element_text(p, 0, word);
        put(p, word);
        return;
    }
    put(p, "[");
    if (dim == p->ndim - 1)
        put_row(p, dim, at);
    for (int64_t k = 0; dim < p->ndim - 1 && k < p->sizes[dim]; k++) {
        for (int lines = dim + 1; k > 0 && lines < p->ndim; lines++)
            put(p, "\n");
        for (int indent = 0; k > 0 && indent <= dim; indent++)
            put(p, " ");
        if (is_shown(p, k, p->sizes[dim])) {
            put_dims(p, dim + 1, at * p->sizes[dim] + k);
        } else {
            put(p, "...");
            k = p->sizes[dim] - EDGE - 1;
        }
    }
    put(p, "]");
}

char *trek_tensor_text(const trek_tensor *tensor)
{
    if (!tensor)
        return trek_fail_missing("tensor_text", "tensor"), NULL;
    bool integer = !trek_dtype_is_float((trek_dtype)tensor->dtype);
    void *values = trek_alloc((size_t)tensor->numel * 8 + 1);
    if (!values)
        return NULL;
    printer p = { .ndim = tensor->ndim, .sizes = tensor->sizes, .shortened = tensor->numel > WHOLE,
                  .dtype = (trek_dtype)tensor->dtype };
    if (integer)
        p.integers = values;
    else
        p.values = values;
    if (trek_tensor_to_host(tensor, integer ? TREK_I64 : TREK_F64, values, (size_t)tensor->numel * 8) == TREK_OK) {
        if (tensor->numel > 0)
            choose_format(&p);
        if (tensor->numel > 0)
            put_dims(&p, 0, 0);
        else
            put(&p, "[]");
    }
    trek_free(values);
    if (!p.failed && p.text)
        return p.text;
    trek_free(p.text);
    return NULL;
}

void trek_string_free(char **text)
{
    if (!text)
        return;
    trek_free(*text);
    *text = NULL;
}

trek_status trek_tensor_print(const trek_tensor *tensor, FILE *stream)
{
    char *text = trek_tensor_text(tensor);
    if (!text)
        return trek_error_status();
    FILE *to = stream ? stream : stdout;
    bool fine = fputs(text, to) >= 0 && fputc('\n', to) != EOF;
    trek_free(text);
    return fine ? TREK_OK : trek_fail(TREK_ERR_IO, "tensor_print: file: it cannot be written");
}
