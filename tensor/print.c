/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as text, the way NumPy prints arrays: columns of one width, eight
 * digits at most, powers of ten where values spread over many, 1000 elements
 * whole and three at each edge beyond. No locale is asked. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/op.h"

enum { WHOLE = 1000, EDGE = 3, DIGITS = 8, NUMBER = 40 };

typedef struct printer {
    const double *values;      /* row-major */
    const int64_t *integers;   /* for integer dtypes: exact beyond 2^53 */
    int ndim;
    const int64_t *sizes;
    bool shortened, boolean, scientific;
    int decimals, width;
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

/* printf writes the locale's decimal point; ours is a point. */
static void plain_point(char *text)
{
    for (char *c = text; *c; c++)
        if (*c == ',')
            *c = '.';
}

/* A finite value as NumPy writes it: zeros at the end of the decimals become spaces, the point stays. */
static void format_float(const printer *p, double value, char *text)
{
    if (isnan(value) || isinf(value)) {
        snprintf(text, NUMBER, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    snprintf(text, NUMBER, p->scientific ? "%.*e" : "%.*f", p->decimals, value);
    plain_point(text);
    if (p->decimals == 0 && !p->scientific)
        strcat(text, ".");
}

static void format_at(const printer *p, int64_t at, char *text)
{
    if (p->boolean)
        snprintf(text, NUMBER, "%s", p->integers[at] ? "True" : "False");
    else if (p->integers)
        snprintf(text, NUMBER, "%lld", (long long)p->integers[at]);
    else
        format_float(p, p->values[at], text);
}

static bool is_shown(const printer *p, int64_t index, int64_t size) { return !p->shortened || index < EDGE || index >= size - EDGE; }

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

/* How many decimals the value needs, up to eight, to be told from its neighbours. */
static void widen_decimals(printer *p, int64_t at)
{
    double value = p->values[at];
    char text[NUMBER];
    if (!isfinite(value))
        return;
    for (int decimals = p->decimals; decimals < DIGITS; decimals++) {
        snprintf(text, sizeof text, p->scientific ? "%.*e" : "%.*f", decimals, value);
        plain_point(text);
        char *end;
        double back = strtod(text, &end); /* in a locale with a comma this stops at the point: then eight decimals are shown */
        double tolerance = p->scientific ? fabs(value) * 5e-9 : 5e-9;
        if (*end == '\0' && fabs(back - value) <= tolerance)
            return;
        p->decimals = decimals + 1;
    }
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
        p->scientific = r.largest >= 1e8 || r.smallest < 1e-4 || (r.largest > 0 && r.largest / r.smallest > 1e3 && r.smallest < 1e-4);
        each_shown(p, 0, 0, widen_decimals);
    }
    each_shown(p, 0, 0, widen_width);
}

static void put_element(printer *p, int64_t at)
{
    char text[NUMBER], padded[2 * NUMBER];
    format_at(p, at, text);
    snprintf(padded, sizeof padded, "%*s", p->width, text);
    put(p, padded);
}

static void put_dims(printer *p, int dim, int64_t at)
{
    if (dim == p->ndim) {
        put_element(p, at);
        return;
    }
    put(p, "[");
    for (int64_t k = 0; k < p->sizes[dim]; k++) {
        bool last_dim = dim == p->ndim - 1;
        if (k > 0) {
            put(p, last_dim ? " " : "\n");
            for (int lines = dim + 2; !last_dim && lines < p->ndim; lines++)
                put(p, "\n");
            for (int indent = 0; !last_dim && indent <= dim; indent++)
                put(p, " ");
        }
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
    printer p = { .ndim = tensor->ndim, .sizes = tensor->sizes, .shortened = tensor->numel > WHOLE, .boolean = tensor->dtype == TREK_BOOL };
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

void trek_string_free(char *text) { trek_free(text); }

trek_status trek_tensor_print(const trek_tensor *tensor, void *stream)
{
    char *text = trek_tensor_text(tensor);
    if (!text)
        return trek_status_get();
    FILE *to = stream ? stream : stdout;
    bool fine = fputs(text, to) >= 0 && fputc('\n', to) != EOF;
    trek_free(text);
    return fine ? TREK_OK : trek_fail(TREK_ERR_IO, "tensor_print: writing failed");
}
