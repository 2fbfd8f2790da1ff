/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing lines of a watched run's file. A table tells what each field is and where it goes; unknown fields are
 * skipped. */
#include "monitor/viewer/run_record.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "nn/json.h"
#include "tensor/memory_internal.h"

enum { MOST_ITEMS = 1 << 16 }; /* of a list in a record */

typedef enum field_sort { WORD, NUMBER, WHOLE, TRUTH, LIST_OF_NUMBERS, LIST_OF_WORDS, PAIRS, OBJECTS } field_sort;

/* A field of a struct. For lists: where the count is, and for objects the fields of one. */
typedef struct field {
    const char *key;
    field_sort sort;
    size_t at, count_at;
    const struct table *inside;
} field;

typedef struct table {
    const field *fields;
    int n;
    size_t size;
} table;

static const field rank_fields[] = {
    { "rank", WHOLE, offsetof(trek_run_rank, rank), 0, NULL },
    { "device", WORD, offsetof(trek_run_rank, device), 0, NULL },
    { "name", WORD, offsetof(trek_run_rank, name), 0, NULL },
    { "computing_s", NUMBER, offsetof(trek_run_rank, computing_s), 0, NULL },
    { "waiting_s", NUMBER, offsetof(trek_run_rank, waiting_s), 0, NULL },
    { "reducing_s", NUMBER, offsetof(trek_run_rank, reducing_s), 0, NULL },
    { "interval_s", NUMBER, offsetof(trek_run_rank, interval_s), 0, NULL },
    { "share", NUMBER, offsetof(trek_run_rank, share), 0, NULL },
    { "samples_per_s", NUMBER, offsetof(trek_run_rank, samples_per_s), 0, NULL },
    { "samples", WHOLE, offsetof(trek_run_rank, samples), 0, NULL },
    { "steps", WHOLE, offsetof(trek_run_rank, steps), 0, NULL },
    { "state", WORD, offsetof(trek_run_rank, state), 0, NULL },
};
static const table rank_table = { rank_fields, sizeof rank_fields / sizeof *rank_fields, sizeof(trek_run_rank) };

static const field device_fields[] = {
    { "device", WORD, offsetof(trek_run_device, device), 0, NULL },
    { "memory_bytes", NUMBER, offsetof(trek_run_device, memory_bytes), 0, NULL },
    { "memory_total_bytes", NUMBER, offsetof(trek_run_device, memory_total_bytes), 0, NULL },
    { "temperature_c", NUMBER, offsetof(trek_run_device, temperature_c), 0, NULL },
    { "power_w", NUMBER, offsetof(trek_run_device, power_w), 0, NULL },
    { "utilization_percent", NUMBER, offsetof(trek_run_device, utilization_percent), 0, NULL },
    { "throttled", WORD, offsetof(trek_run_device, throttled), 0, NULL },
};
static const table device_table = { device_fields, sizeof device_fields / sizeof *device_fields, sizeof(trek_run_device) };

static const field node_fields[] = {
    { "name", WORD, offsetof(trek_run_node, name), 0, NULL },
    { "kind", WORD, offsetof(trek_run_node, kind), 0, NULL },
    { "op", WORD, offsetof(trek_run_node, op), 0, NULL },
    { "details", WORD, offsetof(trek_run_node, details), 0, NULL },
    { "shape", WORD, offsetof(trek_run_node, shape), 0, NULL },
    { "parameters", WHOLE, offsetof(trek_run_node, parameters), 0, NULL },
    { "calls", NUMBER, offsetof(trek_run_node, calls), 0, NULL },
    { "forward_ms", NUMBER, offsetof(trek_run_node, forward_ms), 0, NULL },
    { "backward_ms", NUMBER, offsetof(trek_run_node, backward_ms), 0, NULL },
    { "mult_adds", NUMBER, offsetof(trek_run_node, mult_adds), 0, NULL },
    { "output_bytes", NUMBER, offsetof(trek_run_node, output_bytes), 0, NULL },
    { "time_ms", NUMBER, offsetof(trek_run_node, time_ms), 0, NULL },
    { "bytes", NUMBER, offsetof(trek_run_node, bytes), 0, NULL },
};
static const table node_table = { node_fields, sizeof node_fields / sizeof *node_fields, sizeof(trek_run_node) };

static const field link_fields[] = {
    { "from", WORD, offsetof(trek_run_link, from), 0, NULL },
    { "to", WORD, offsetof(trek_run_link, to), 0, NULL },
    { "label", WORD, offsetof(trek_run_link, label), 0, NULL },
    { "port", WHOLE, offsetof(trek_run_link, port), 0, NULL },
};
static const table link_table = { link_fields, sizeof link_fields / sizeof *link_fields, sizeof(trek_run_link) };

#define OF(member) offsetof(trek_run_record, member)
static const field record_fields[] = {
    { "time", NUMBER, OF(time), 0, NULL },
    { "step", WHOLE, OF(step), 0, NULL },
    { "epoch", WHOLE, OF(epoch), 0, NULL },
    { "at", WORD, OF(at), 0, NULL },
    { "name", WORD, OF(name), 0, NULL },
    { "text", WORD, OF(text), 0, NULL },
    { "run", WORD, OF(run), 0, NULL },
    { "program", WORD, OF(program), 0, NULL },
    { "host", WORD, OF(host), 0, NULL },
    { "trek", WORD, OF(trek), 0, NULL },
    { "version", WHOLE, OF(version), 0, NULL },
    { "pid", WHOLE, OF(pid), 0, NULL },
    { "process", WHOLE, OF(process_number), 0, NULL },
    { "processes", WHOLE, OF(processes), 0, NULL },
    { "parameters", WHOLE, OF(parameters), 0, NULL },
    { "started", NUMBER, OF(started), 0, NULL },
    { "arguments", LIST_OF_WORDS, OF(arguments), OF(n_arguments), NULL },
    { "values", PAIRS, OF(values), OF(n_values), NULL },
    { "epochs", WHOLE, OF(epochs), 0, NULL },
    { "batch", WHOLE, OF(batch), 0, NULL },
    { "batches", WHOLE, OF(batches), 0, NULL },
    { "eta_s", NUMBER, OF(eta_s), 0, NULL },
    { "seconds", NUMBER, OF(seconds), 0, NULL },
    { "ranks", OBJECTS, OF(ranks), OF(n_ranks), &rank_table },
    { "anchor", WHOLE, OF(anchor), 0, NULL },
    { "window", WHOLE, OF(window), 0, NULL },
    { "windows", TRUTH, OF(windows), 0, NULL },
    { "drift", NUMBER, OF(drift), 0, NULL },
    { "memory_bytes", NUMBER, OF(memory_bytes), 0, NULL },
    { "memory_peak_bytes", NUMBER, OF(memory_peak_bytes), 0, NULL },
    { "cpu_percent", NUMBER, OF(cpu_percent), 0, NULL },
    { "temperature_c", NUMBER, OF(temperature_c), 0, NULL },
    { "power_w", NUMBER, OF(power_w), 0, NULL },
    { "trek_bytes", PAIRS, OF(trek_bytes), OF(n_trek_bytes), NULL },
    { "devices", OBJECTS, OF(devices), OF(n_devices), &device_table },
    { "of", WORD, OF(of), 0, NULL },
    { "edges", LIST_OF_NUMBERS, OF(edges), OF(n_edges), NULL },
    { "counts", LIST_OF_NUMBERS, OF(counts), OF(n_counts), NULL },
    { "min", NUMBER, OF(min), 0, NULL },
    { "max", NUMBER, OF(max), 0, NULL },
    { "mean", NUMBER, OF(mean), 0, NULL },
    { "std", NUMBER, OF(std), 0, NULL },
    { "nonfinite", WHOLE, OF(nonfinite), 0, NULL },
    { "width", WHOLE, OF(width), 0, NULL },
    { "height", WHOLE, OF(height), 0, NULL },
    { "png", WORD, OF(png), 0, NULL },
    { "svg", WORD, OF(svg), 0, NULL },
    { "nodes", OBJECTS, OF(nodes), OF(n_nodes), &node_table },
    { "links", OBJECTS, OF(links), OF(n_links), &link_table },
    { "steps", WHOLE, OF(steps), 0, NULL },
    { "level", WORD, OF(level), 0, NULL },
    { "status", WORD, OF(status), 0, NULL },
    { "error", WORD, OF(error), 0, NULL },
    { "rank", WHOLE, OF(rank), 0, NULL },
};
static const table record_table = { record_fields, sizeof record_fields / sizeof *record_fields, sizeof(trek_run_record) };

static const char *const kinds[] = { "", "run", "scalars", "progress", "ranks", "system", "histogram", "text",
    "image", "graph", "log", "event", "end" };

/* --- what is not told, and clearing ----------------------------------------------------------- */

static void *place(void *of, size_t at) { return (char *)of + at; }

static void prepare(void *object, const table *t)
{
    memset(object, 0, t->size);
    for (int k = 0; k < t->n; k++)
        if (t->fields[k].sort == NUMBER)
            *(double *)place(object, t->fields[k].at) = (double)NAN;
        else if (t->fields[k].sort == WHOLE)
            *(int64_t *)place(object, t->fields[k].at) = -1;
}

static void clear(void *object, const table *t);

static void clear_field(void *object, const field *f)
{
    void *list;
    memcpy(&list, place(object, f->at), sizeof list);
    int n = f->count_at ? *(int *)place(object, f->count_at) : 0;
    for (int k = 0; k < n && f->sort != LIST_OF_NUMBERS; k++)
        if (f->sort == OBJECTS)
            clear((char *)list + (size_t)k * f->inside->size, f->inside);
        else
            trek_free(f->sort == PAIRS ? ((trek_run_value *)list)[k].name : ((char **)list)[k]);
    trek_free(list);
}

static void clear(void *object, const table *t)
{
    for (int k = 0; k < t->n; k++)
        if (t->fields[k].sort != NUMBER && t->fields[k].sort != WHOLE && t->fields[k].sort != TRUTH)
            clear_field(object, &t->fields[k]);
}

void trek_run_record_clear(trek_run_record *record)
{
    clear(record, &record_table);
    prepare(record, &record_table);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Reads a number; "NaN", "Infinity" and "-Infinity", which JSON lacks; or null, which means NaN. */
static bool read_number(trek_json *json, double *value)
{
    bool whole;
    int64_t integer;
    char first = trek_json_peek(json), *word;
    if (first == 'n') {
        int literal;
        *value = (double)NAN;
        return trek_json_literal(json, &literal);
    }
    if (first != '"')
        return trek_json_number(json, value, &whole, &integer);
    if (!trek_json_string_new(json, &word))
        return false;
    const char *digits = word + (*word == '-');
    *value = strcmp(digits, "Infinity") == 0 ? (*word == '-' ? -(double)INFINITY : (double)INFINITY) : (double)NAN;
    trek_free(word);
    return true;
}

static bool read_whole(trek_json *json, int64_t *value)
{
    double number;
    bool whole;
    if (trek_json_peek(json) == 'n' || trek_json_peek(json) == '"')
        return read_number(json, &number);
    if (!trek_json_number(json, &number, &whole, value))
        return false;
    if (!whole) /* written by another language: 3.0 */
        *value = number >= -9e18 && number <= 9e18 ? (int64_t)number : -1;
    return true;
}

static bool read_object(trek_json *json, void *object, const table *t);

/* Reads one item of a list into its place. It is counted before it is read, so that clearing after a failure includes
 * it. */
static bool read_item(trek_json *json, const field *f, void *list, int *count)
{
    char *key = NULL;
    switch (f->sort) {
    case LIST_OF_NUMBERS: return read_number(json, &((double *)list)[(*count)++]);
    case LIST_OF_WORDS: return trek_json_string_new(json, &((char **)list)[*count]) && ++*count;
    case PAIRS:
        if (!trek_json_key_new(json, &key))
            return false;
        ((trek_run_value *)list)[(*count)++].name = key;
        return read_number(json, &((trek_run_value *)list)[*count - 1].value);
    default: {
        void *object = (char *)list + (size_t)(*count)++ * f->inside->size;
        prepare(object, f->inside);
        return read_object(json, object, f->inside);
    }
    }
}

static bool read_list(trek_json *json, void *object, const field *f)
{
    int *count = place(object, f->count_at), capacity = 0;
    size_t size = f->sort == OBJECTS ? f->inside->size : f->sort == LIST_OF_NUMBERS ? sizeof(double)
        : f->sort == PAIRS                                                           ? sizeof(trek_run_value)
                                                                                     : sizeof(char *);
    char close = f->sort == PAIRS ? '}' : ']';
    bool more;
    if (!trek_json_expect(json, f->sort == PAIRS ? '{' : '[') || !trek_json_first(json, close, &more))
        return false;
    while (more) {
        void *list;
        if (*count >= MOST_ITEMS)
            return trek_json_fail(json, "too many items");
        if (trek_array_grow(place(object, f->at), &capacity, *count + 1, size) != TREK_OK)
            return false;
        memcpy(&list, place(object, f->at), sizeof list);
        if (!read_item(json, f, list, count) || !trek_json_next(json, close, &more))
            return false;
    }
    return true;
}

static bool read_field(trek_json *json, void *object, const field *f)
{
    int literal;
    void *at = place(object, f->at);
    char first = trek_json_peek(json);
    switch (f->sort) {
    case NUMBER: return read_number(json, at);
    case WHOLE: return read_whole(json, at);
    case TRUTH:
        if (!trek_json_literal(json, &literal))
            return false;
        *(bool *)at = literal == 1;
        return true;
    case WORD: return first == 'n' ? trek_json_literal(json, &literal) : trek_json_string_new(json, at);
    default: return first == 'n' ? trek_json_literal(json, &literal) : read_list(json, object, f);
    }
}

static const field *find(const table *t, const char *key)
{
    for (int k = 0; k < t->n; k++)
        if (strcmp(t->fields[k].key, key) == 0)
            return &t->fields[k];
    return NULL;
}

static bool read_kind(trek_json *json, trek_run_kind *kind)
{
    char *word;
    if (!trek_json_string_new(json, &word))
        return false;
    for (int k = 1; k <= TREK_RUN_END; k++)
        if (strcmp(word, kinds[k]) == 0)
            *kind = (trek_run_kind)k;
    trek_free(word);
    return true;
}

/* A repeated key keeps its first value, so that what that holds is not lost. */
static bool read_object(trek_json *json, void *object, const table *t)
{
    bool more;
    uint64_t seen = 0;
    if (!trek_json_expect(json, '{') || !trek_json_first(json, '}', &more))
        return false;
    while (more) {
        char *key;
        if (!trek_json_key_new(json, &key))
            return false;
        const field *f = find(t, key);
        bool kind = t == &record_table && strcmp(key, "kind") == 0;
        trek_free(key);
        uint64_t bit = f ? UINT64_C(1) << (f - t->fields) : 0;
        bool good = kind ? read_kind(json, &((trek_run_record *)object)->kind)
            : f && !(seen & bit) ? read_field(json, object, f)
                                 : trek_json_skip(json);
        seen |= bit;
        if (!good || !trek_json_next(json, '}', &more))
            return false;
    }
    return true;
}

_Static_assert(sizeof record_fields / sizeof *record_fields <= 64, "a bit for each field");

trek_status trek_run_record_read(trek_run_record *record, const char *line, size_t length)
{
    trek_json json = { line, line, line + length, "a run's record" };
    prepare(record, &record_table);
    bool good = read_object(&json, record, &record_table);
    if (good && trek_json_peek(&json) != 0)
        good = trek_json_fail(&json, "more than a record");
    if (good && record->kind == TREK_RUN_HISTOGRAM && record->n_edges != record->n_counts + 1)
        good = trek_json_fail(&json, "a histogram has an edge more than counts");
    if (good)
        return TREK_OK;
    trek_run_record_clear(record);
    return trek_error_status();
}
