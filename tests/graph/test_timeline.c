/* SPDX-License-Identifier: Apache-2.0 */
/* graph/timeline: bounded memory, the trace sink, threads, and the Chrome trace as JSON. */
#include <ctype.h>
#include <locale.h>
#include <pthread.h>
#include <unistd.h>

#include "graph/graph_internal.h"
#include "graph/timeline.h"
#include "tensor/backend.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"
#include "tests/support/refused.h"

/* --- a strict reader of JSON: only whether it is --------------------------------- */

static const char *skip_space(const char *c) { return c + strspn(c, " \t\r\n"); }

static const char *json_value(const char *c);

static const char *json_string(const char *c)
{
    if (!c || *c++ != '"')
        return NULL;
    for (; *c != '"'; c++) {
        if ((unsigned char)*c < 0x20)
            return NULL;
        if (*c == '\\') {
            c++;
            if (*c == 'u') {
                for (int k = 0; k < 4; k++)
                    if (!isxdigit((unsigned char)*++c))
                        return NULL;
            } else if (!*c || !strchr("\"\\/bfnrt", *c)) {
                return NULL;
            }
        }
    }
    return c + 1;
}

static const char *json_number(const char *c)
{
    c += *c == '-';
    size_t whole = strspn(c, "0123456789");
    if (!whole || (c[0] == '0' && whole > 1))
        return NULL;
    c += whole;
    if (*c == '.') {
        size_t part = strspn(++c, "0123456789");
        if (!part)
            return NULL;
        c += part;
    }
    if (*c == 'e' || *c == 'E') {
        c++;
        c += *c == '+' || *c == '-';
        size_t power = strspn(c, "0123456789");
        return power ? c + power : NULL;
    }
    return c;
}

static const char *json_members(const char *c, char close)
{
    c = skip_space(c + 1);
    if (*c == close)
        return c + 1;
    for (;;) {
        if (close == '}') {
            c = json_string(skip_space(c));
            if (!c || *(c = skip_space(c)) != ':')
                return NULL;
            c++;
        }
        c = json_value(c);
        if (!c)
            return NULL;
        c = skip_space(c);
        if (*c == close)
            return c + 1;
        if (*c++ != ',')
            return NULL;
    }
}

static const char *json_value(const char *c)
{
    c = skip_space(c);
    if (*c == '{')
        return json_members(c, '}');
    if (*c == '[')
        return json_members(c, ']');
    if (*c == '"')
        return json_string(c);
    if (strncmp(c, "null", 4) == 0)
        return c + 4;
    return json_number(c);
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    char *data = calloc(1, 1 << 20);
    size_t size = fread(data, 1, (1 << 20) - 1, file);
    data[size] = 0;
    fclose(file);
    return data;
}

static int count_of(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        n++;
    return n;
}

static char folder[] = "/tmp/trek-timeline-XXXXXX";
static char path[64];

static int make_folder(void **state)
{
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/trace.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    unlink(path);
    return rmdir(folder);
}

/* --- timeline ---------------------------------------------------------------------- */

static void spans_and_events(void **state)
{
    trek_timeline *t = trek_timeline_new(NULL);
    trek_timeline_span outer = trek_timeline_begin(t), inner = trek_timeline_begin(t);
    trek_timeline_end(t, "inner", inner);
    trek_timeline_end(t, "outer", outer);
    trek_timeline_event(t, "shares", 0.25);
    assert_int_equal(trek_timeline_count(t), 3);
    trek_timeline_entry a, b, c;
    assert_true(trek_timeline_get(t, 0, &a) && trek_timeline_get(t, 1, &b) && trek_timeline_get(t, 2, &c));
    assert_false(trek_timeline_get(t, 3, &c) || trek_timeline_get(t, -1, &c));
    assert_string_equal(a.name, "inner");
    assert_true(a.is_span && b.is_span && !c.is_span);
    assert_true(b.start_ns <= a.start_ns && a.start_ns <= a.end_ns && a.end_ns <= b.end_ns && b.end_ns <= c.start_ns);
    assert_float_equal(c.value, 0.25, 0);
    assert_int_equal(c.start_ns, c.end_ns);
    assert_int_equal(a.thread, c.thread);
    trek_timeline_clear(t);
    assert_int_equal(trek_timeline_count(t), 0);
    trek_timeline_free(&t);
    assert_null(t);
    /* Without a timeline nothing happens. */
    trek_timeline_end(NULL, "x", trek_timeline_begin(NULL));
    trek_timeline_event(NULL, "x", 1);
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void bounded(void **state)
{
    REFUSED(trek_timeline_new(&(trek_timeline_opts){ .capacity = -5 }), TREK_ERR_ARGUMENT, "");
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .capacity = 10 });
    for (int k = 0; k < 25; k++)
        trek_timeline_event(t, "k", k);
    assert_int_equal(trek_timeline_count(t), 10);
    assert_int_equal(trek_timeline_dropped(t), 15);
    for (int k = 0; k < 10; k++) {
        trek_timeline_entry entry;
        assert_true(trek_timeline_get(t, k, &entry));
        assert_float_equal(entry.value, 15 + k, 0);
    }
    trek_timeline_free(&t);
}

static void names(void **state)
{
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .capacity = 4 });
    char longer[200], cut[200];
    memset(longer, 'n', sizeof longer);
    longer[sizeof longer - 1] = 0;
    trek_timeline_event(t, longer, 0);
    snprintf(cut, sizeof cut, "%.*s\xc3\xa9\xc3\xa9", TREK_TIMELINE_NAME - 2, longer); /* the limit falls inside an e acute */
    trek_timeline_event(t, cut, 0);
    trek_timeline_entry entry;
    trek_timeline_get(t, 0, &entry);
    assert_int_equal(strlen(entry.name), TREK_TIMELINE_NAME - 1);
    trek_timeline_get(t, 1, &entry);
    assert_int_equal(strlen(entry.name), TREK_TIMELINE_NAME - 2);
    trek_timeline_free(&t);
}

static void sink(void **state)
{
    trek_timeline *first = trek_timeline_new(NULL), *second = trek_timeline_new(NULL);
    assert_int_equal(trek_trace_enter("forward"), 0);
    assert_int_equal(trek_timeline_attach(first), TREK_OK);
    int64_t start = trek_trace_enter("forward");
    assert_true(start > 0);
    trek_rank_here.rank = 3;
    trek_trace_end("forward", start, 42);
    trek_trace_event("anchor", 12);
    trek_rank_here.rank = 0;
    trek_timeline_entry entry;
    assert_true(trek_timeline_get(first, 0, &entry));
    assert_string_equal(entry.name, "forward");
    assert_true(entry.is_span && entry.rank == 3 && entry.detail == 42 && entry.start_ns == start && entry.end_ns >= start);
    assert_true(trek_timeline_get(first, 1, &entry));
    assert_true(!entry.is_span && entry.value == 12);
    assert_int_equal(trek_timeline_attach(second), TREK_OK);
    trek_timeline_detach(first); /* not the attached one any more: nothing happens */
    trek_trace_event("x", 1);
    assert_int_equal(trek_timeline_count(first), 2);
    assert_int_equal(trek_timeline_count(second), 1);
    trek_timeline_free(&second); /* detaches */
    assert_int_equal(trek_trace_enter("forward"), 0);
    trek_trace_event("x", 1);
    trek_timeline_free(&first);
    FAILS(trek_timeline_attach(NULL), TREK_ERR_ARGUMENT, "");
}

/* --- ranges for profilers ------------------------------------------------------------------ */

static char ranges[256]; /* "forward( bucket( ) )" */

static void range_begin(const char *name)
{
    strcat(ranges, name);
    strcat(ranges, "( ");
}

static void range_end(void) { strcat(ranges, ") "); }

static void nvtx_ranges(void **state)
{
    static trek_backend backend = { .range_begin = range_begin, .range_end = range_end };
    trek_backend_find(TREK_CUDA, NULL, 0);
    const trek_backend *real = trek_backends[TREK_CUDA];
    trek_backends[TREK_CUDA] = &backend;
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .nvtx = true }), *plain = trek_timeline_new(NULL);
    trek_timeline_attach(t);
    int64_t outer = trek_trace_enter("forward"), inner = trek_trace_enter("bucket");
    trek_trace_end("bucket", inner, 0);
    trek_trace_enter("lost"); /* something failed: it is never ended */
    trek_trace_end("forward", outer, 0);
    assert_string_equal(ranges, "forward( bucket( ) lost( ) ) ");
    trek_trace_end("never begun", outer, 0);
    assert_string_equal(ranges, "forward( bucket( ) lost( ) ) ");
    assert_int_equal(trek_timeline_count(t), 3);
    ranges[0] = 0;
    trek_timeline_attach(plain);
    trek_trace_end("reduce", trek_trace_enter("reduce"), 0);
    assert_string_equal(ranges, "");
    setenv("TREK_NVTX", "1", 1);
    trek_timeline_detach(plain); /* from here on the environment's wish alone */
    trek_trace_end("reduce", trek_trace_enter("reduce"), 0);
    trek_trace_event("anchor", 1);
    assert_string_equal(ranges, "reduce( ) ");
    unsetenv("TREK_NVTX");
    trek_timeline_attach(plain);
    trek_timeline_detach(plain);
    assert_int_equal(trek_trace_enter("forward"), 0);
    trek_timeline_free(&t);
    trek_timeline_free(&plain);
    trek_backends[TREK_CUDA] = real;
}

enum { THREADS = 4, EACH = 2000 };

static void *report(void *arg)
{
    trek_rank_here.rank = (int)(intptr_t)arg;
    for (int k = 0; k < EACH; k++) {
        int64_t start = trek_trace_enter("work");
        if (start)
            trek_trace_end("work", start, k);
        trek_trace_event("tick", k);
    }
    return NULL;
}

static void threads(void **state)
{
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .capacity = THREADS * EACH });
    trek_timeline_attach(t);
    pthread_t ids[THREADS];
    for (int k = 0; k < THREADS; k++)
        assert_int_equal(pthread_create(&ids[k], NULL, report, (void *)(intptr_t)k), 0);
    assert_int_equal(trek_timeline_save(t, path), TREK_OK); /* while they write */
    for (int k = 0; k < THREADS; k++)
        pthread_join(ids[k], NULL);
    assert_int_equal(trek_timeline_count(t), THREADS * EACH);
    assert_int_equal(trek_timeline_dropped(t), THREADS * EACH);
    int thread_of_rank[THREADS] = { -1, -1, -1, -1 };
    for (int k = 0; k < THREADS * EACH; k++) {
        trek_timeline_entry entry;
        trek_timeline_get(t, k, &entry);
        assert_in_range(entry.rank, 0, THREADS - 1);
        if (thread_of_rank[entry.rank] < 0)
            thread_of_rank[entry.rank] = entry.thread;
        assert_int_equal(thread_of_rank[entry.rank], entry.thread);
    }
    /* Freed while they report: nobody meets a timeline that is gone. */
    for (int k = 0; k < THREADS; k++)
        assert_int_equal(pthread_create(&ids[k], NULL, report, (void *)(intptr_t)k), 0);
    trek_timeline_free(&t);
    for (int k = 0; k < THREADS; k++)
        pthread_join(ids[k], NULL);
}

static void chrome_trace(void **state)
{
    setlocale(LC_ALL, "de_DE.UTF-8"); /* where it is installed, the decimal point is a comma */
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .capacity = 5 });
    for (int k = 0; k < 4; k++)
        trek_timeline_event(t, "old", 0);
    trek_rank_here.rank = 1;
    trek_timeline_end(t, "quote\" back\\slash\nline\x01", (trek_timeline_span){ 1 });
    trek_rank_here.rank = 0;
    trek_timeline_event(t, "half", 0.5);
    trek_timeline_event(t, "nan", (double)NAN);
    assert_int_equal(trek_timeline_save(t, path), TREK_OK);
    setlocale(LC_ALL, "C");
    char *text = read_file(path);
    assert_non_null(text);
    const char *rest = json_value(text);
    assert_non_null(rest);
    assert_int_equal(*skip_space(rest), 0);
    assert_int_equal(count_of(text, "\"ph\":\"X\""), 1);
    assert_int_equal(count_of(text, "\"ph\":\"i\""), 4);
    assert_int_equal(count_of(text, "\"process_name\""), 2);
    assert_non_null(strstr(text, "\"dropped\":2"));
    assert_non_null(strstr(text, "{\"name\":\"quote\\\" back\\\\slash\\nline\\u0001\",\"ph\":\"X\",\"pid\":1,"));
    assert_non_null(strstr(text, "\"value\":0.5}"));
    assert_non_null(strstr(text, "\"value\":null}"));
    free(text);
    /* Nothing to write is a trace, too; it takes the place of the old file. */
    trek_timeline_clear(t);
    assert_int_equal(trek_timeline_save(t, path), TREK_OK);
    text = read_file(path);
    assert_non_null(json_value(text));
    assert_int_equal(count_of(text, "\"ph\":\"i\""), 0);
    free(text);
    /* What cannot be written is said, and leaves nothing behind. */
    FAILS(trek_timeline_save(t, "/nowhere/at/all.json"), TREK_ERR_IO, "/nowhere/at/all.json");
    assert_int_equal(trek_timeline_save(t, folder), TREK_ERR_IO); /* a folder stands in its place */
    trek_error_clear();
    trek_timeline_free(&t);
}

static void numbers(void **state)
{
    static const struct {
        double value;
        int digits;
        const char *text;
    } cases[] = { { 0.5, 17, "0.5" },       { -3, 5, "-3" },      { 1e-7, 5, "1e-07" }, { 123456, 5, "1.2346e+05" },
                  { INFINITY, 5, "null" },  { 1e300, 17, "1.0000000000000001e+300" } };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char text[40];
        assert_string_equal(trek_number_text(cases[k].value, cases[k].digits, text), cases[k].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_and_events), cmocka_unit_test(bounded), cmocka_unit_test(names), cmocka_unit_test(sink),
        cmocka_unit_test(nvtx_ranges), cmocka_unit_test(threads), cmocka_unit_test(chrome_trace), cmocka_unit_test(numbers),
    };
    return cmocka_run_group_tests_name("timeline", tests, make_folder, remove_folder);
}
