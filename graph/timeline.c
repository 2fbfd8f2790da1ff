/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of entries behind one mutex (spans are a few per step), and its Chrome trace. */
#include "graph/timeline.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "graph/graph_internal.h"
#include "nn/replace_file.h"
#include "tensor/ranges.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

struct trek_timeline {
    pthread_mutex_t lock;
    trek_timeline_entry *ring;
    int64_t capacity, first, count, dropped;
    bool ranges;
};

/* --- recording ---------------------------------------------------------------- */

static int thread_number(void)
{
    static atomic_int threads;
    static _Thread_local int number = -1;
    if (number < 0)
        number = atomic_fetch_add(&threads, 1);
    return number;
}

static void copy_name(char *to, const char *name)
{
    size_t size = strlen(name);
    if (size > TREK_TIMELINE_NAME - 1) {
        size = TREK_TIMELINE_NAME - 1;
        while (size && ((unsigned char)name[size] & 0xc0) == 0x80)
            size--; /* not in the middle of a UTF-8 sequence */
    }
    memcpy(to, name, size);
    to[size] = 0;
}

static void add(trek_timeline *t, const char *name, trek_timeline_entry entry)
{
    copy_name(entry.name, name ? name : "");
    entry.thread = thread_number();
    pthread_mutex_lock(&t->lock);
    if (t->count == t->capacity) {
        t->first = (t->first + 1) % t->capacity;
        t->count--;
        t->dropped++;
    }
    t->ring[(t->first + t->count++) % t->capacity] = entry;
    pthread_mutex_unlock(&t->lock);
}

/* The sink is one constant object and the timeline behind it is changed under a
 * lock: a thread that has just read the sink's address never meets a timeline
 * that is gone. */
static pthread_mutex_t attached_lock = PTHREAD_MUTEX_INITIALIZER;
static trek_timeline *attached;

static void sink_entry(const char *name, trek_timeline_entry entry)
{
    pthread_mutex_lock(&attached_lock);
    if (attached)
        add(attached, name, entry);
    pthread_mutex_unlock(&attached_lock);
}

static void sink_span(const char *name, int rank, int64_t start_ns, int64_t end_ns, int64_t detail, void *arg)
{
    (void)arg;
    sink_entry(name, (trek_timeline_entry){ .is_span = true, .rank = rank, .start_ns = start_ns, .end_ns = end_ns,
                                            .detail = detail });
}

static void sink_event(const char *name, int rank, int64_t at_ns, double value, void *arg)
{
    (void)arg;
    sink_entry(name, (trek_timeline_entry){ .rank = rank, .start_ns = at_ns, .end_ns = at_ns, .value = value });
}

static const trek_trace_sink sink = { .span = sink_span, .event = sink_event };
static const trek_trace_sink sink_with_ranges = { .span = sink_span, .event = sink_event, .enter = trek_ranges_enter,
                                                  .leave = trek_ranges_leave };

trek_status trek_timeline_attach(trek_timeline *timeline)
{
    if (!timeline)
        return trek_fail_missing("trek_timeline_attach", "timeline");
    pthread_mutex_lock(&attached_lock);
    attached = timeline;
    atomic_store(&trek_trace, timeline->ranges || trek_ranges_wanted() ? &sink_with_ranges : &sink);
    pthread_mutex_unlock(&attached_lock);
    return TREK_OK;
}

void trek_timeline_detach(trek_timeline *timeline)
{
    pthread_mutex_lock(&attached_lock);
    if (timeline && attached == timeline) {
        atomic_store(&trek_trace, NULL);
        trek_ranges_start();
        attached = NULL;
    }
    pthread_mutex_unlock(&attached_lock);
}

trek_timeline *trek_timeline_new(const trek_timeline_opts *opts)
{
    int64_t capacity = opts && opts->capacity ? opts->capacity : 65536;
    if (capacity < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "timeline: the capacity must be at least 1");
    trek_timeline *t = trek_calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->capacity = capacity;
    t->ranges = opts && opts->nvtx && trek_ranges_available();
    t->ring = trek_calloc((size_t)capacity, sizeof *t->ring);
    if (!t->ring) {
        trek_free(t);
        return NULL;
    }
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void trek_timeline_free(trek_timeline **timeline)
{
    if (!timeline || !*timeline)
        return;
    trek_timeline *t = *timeline;
    *timeline = NULL;
    trek_timeline_detach(t);
    pthread_mutex_destroy(&t->lock);
    trek_free(t->ring);
    trek_free(t);
}

trek_timeline_span trek_timeline_begin(trek_timeline *timeline)
{
    return (trek_timeline_span){ timeline ? trek_clock_ns() : 0 };
}

void trek_timeline_end(trek_timeline *timeline, const char *name, trek_timeline_span span)
{
    if (timeline)
        add(timeline, name, (trek_timeline_entry){ .is_span = true, .rank = trek_rank_here.rank, .start_ns = span.start_ns,
                                                   .end_ns = trek_clock_ns() });
}

void trek_timeline_event(trek_timeline *timeline, const char *name, double value)
{
    if (!timeline)
        return;
    int64_t now = trek_clock_ns();
    add(timeline, name, (trek_timeline_entry){ .rank = trek_rank_here.rank, .start_ns = now, .end_ns = now, .value = value });
}

/* --- reading -------------------------------------------------------------------- */

int64_t trek_timeline_count(trek_timeline *timeline)
{
    if (!timeline)
        return 0;
    pthread_mutex_lock(&timeline->lock);
    int64_t count = timeline->count;
    pthread_mutex_unlock(&timeline->lock);
    return count;
}

int64_t trek_timeline_dropped(trek_timeline *timeline)
{
    if (!timeline)
        return 0;
    pthread_mutex_lock(&timeline->lock);
    int64_t dropped = timeline->dropped;
    pthread_mutex_unlock(&timeline->lock);
    return dropped;
}

bool trek_timeline_get(trek_timeline *timeline, int64_t k, trek_timeline_entry *entry)
{
    if (!timeline || !entry)
        return false;
    pthread_mutex_lock(&timeline->lock);
    bool found = k >= 0 && k < timeline->count;
    if (found)
        *entry = timeline->ring[(timeline->first + k) % timeline->capacity];
    pthread_mutex_unlock(&timeline->lock);
    return found;
}

void trek_timeline_clear(trek_timeline *timeline)
{
    if (!timeline)
        return;
    pthread_mutex_lock(&timeline->lock);
    timeline->first = timeline->count = timeline->dropped = 0;
    pthread_mutex_unlock(&timeline->lock);
}

/* --- the Chrome trace ------------------------------------------------------------- */

/* A copy of the entries, so that nobody waits for the disk. NULL and MEMORY. */
static trek_timeline_entry *snapshot(trek_timeline *t, int64_t *count, int64_t *dropped)
{
    trek_timeline_entry *copy = trek_alloc((size_t)t->capacity * sizeof *copy);
    if (!copy)
        return NULL;
    pthread_mutex_lock(&t->lock);
    for (int64_t k = 0; k < t->count; k++)
        copy[k] = t->ring[(t->first + k) % t->capacity];
    *count = t->count;
    *dropped = t->dropped;
    pthread_mutex_unlock(&t->lock);
    return copy;
}

/* Nanoseconds as microseconds with three decimals. */
static void write_time(trek_text *text, const char *key, int64_t ns)
{
    trek_text_format(text, ",\"%s\":%lld.%03d", key, (long long)(ns / 1000), (int)(ns % 1000));
}

static void write_entry(trek_text *text, const trek_timeline_entry *entry, int64_t origin)
{
    char number[40];
    trek_text_add(text, ",\n{\"name\":\"");
    trek_text_add_escaped(text, entry->name);
    trek_text_format(text, "\",\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", entry->is_span ? "X" : "i", entry->rank, entry->thread);
    write_time(text, "ts", entry->start_ns - origin);
    if (entry->is_span) {
        write_time(text, "dur", entry->end_ns - entry->start_ns);
        trek_text_format(text, ",\"args\":{\"detail\":%lld}}", (long long)entry->detail);
    } else {
        trek_text_format(text, ",\"s\":\"t\",\"args\":{\"value\":%s}}", trek_number_text(entry->value, 17, number));
    }
}

/* A name for each rank's process; the comma that write_entry begins with needs a first element, too. */
static void write_processes(trek_text *text, const trek_timeline_entry *entries, int64_t count)
{
    trek_text_add(text, "{\"name\":\"trek\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"args\":{}}");
    int last = -1;
    for (;;) {
        int next = -1; /* the least rank above last */
        for (int64_t k = 0; k < count; k++)
            if (entries[k].rank > last && (next < 0 || entries[k].rank < next))
                next = entries[k].rank;
        if (next < 0)
            return;
        trek_text_format(text, ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,", next);
        trek_text_format(text, "\"args\":{\"name\":\"rank %d\"}}", next);
        last = next;
    }
}

static trek_status put_text(FILE *file, trek_text *text)
{
    bool written = !text->failed && fwrite(text->data, 1, text->length, file) == text->length;
    text->length = 0;
    return text->failed ? TREK_ERR_MEMORY : written ? TREK_OK : TREK_ERR_IO;
}

static trek_status write_trace(FILE *file, const trek_timeline_entry *entries, int64_t count, int64_t dropped)
{
    trek_text text = { 0 };
    int64_t origin = count ? entries[0].start_ns : 0;
    for (int64_t k = 1; k < count; k++)
        origin = entries[k].start_ns < origin ? entries[k].start_ns : origin;
    trek_text_format(&text, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped\":%lld},\n", (long long)dropped);
    trek_text_add(&text, "\"traceEvents\":[\n");
    write_processes(&text, entries, count);
    trek_status status = TREK_OK;
    for (int64_t k = 0; k < count && status == TREK_OK; k++) {
        write_entry(&text, &entries[k], origin);
        if (text.length > 1 << 16)
            status = put_text(file, &text);
    }
    trek_text_add(&text, "\n]}\n");
    if (status == TREK_OK)
        status = put_text(file, &text);
    trek_text_clear(&text);
    return status;
}

static trek_status write_entries(int descriptor, const char *path, const trek_timeline_entry *entries, int64_t count,
                                 int64_t dropped)
{
    int copy = dup(descriptor); /* which fclose closes */
    FILE *file = copy >= 0 ? fdopen(copy, "w") : NULL;
    if (!file) {
        trek_status status = trek_fail(TREK_ERR_IO, "trek_timeline_save: cannot write %s: %s", path, strerror(errno));
        if (copy >= 0)
            close(copy);
        return status;
    }
    trek_status status = write_trace(file, entries, count, dropped);
    int error = errno;
    if (fclose(file) != 0 && status == TREK_OK) {
        status = TREK_ERR_IO;
        error = errno;
    }
    return status == TREK_ERR_IO ? trek_fail(status, "trek_timeline_save: cannot write %s: %s", path, strerror(error)) : status;
}

trek_status trek_timeline_save(trek_timeline *timeline, const char *path)
{
    trek_file_replacement replacement;
    if (!timeline || !path)
        return trek_fail_missing("trek_timeline_save", timeline ? "path" : "timeline");
    int64_t count, dropped;
    trek_timeline_entry *entries = snapshot(timeline, &count, &dropped);
    trek_status status = entries ? trek_replace_begin(&replacement, path) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = trek_replace_end(&replacement, write_entries(replacement.file, path, entries, count, dropped));
    trek_free(entries);
    return status;
}
