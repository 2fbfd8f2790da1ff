/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a timeline as a Chrome trace. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "graph/graph_internal.h"
#include "graph/timeline_internal.h"
#include "nn/replace_file.h"

trek_timeline_entry *trek_timeline_snapshot(trek_timeline *t, int64_t *count, int64_t *dropped)
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

/* Writes nanoseconds as microseconds with three decimals. */
static void write_time(trek_text *text, const char *key, int64_t ns)
{
    trek_text_format(text, ",\"%s\":%lld.%03d", key, (long long)(ns / 1000), (int)(ns % 1000));
}

static void write_frame(trek_text *text, const trek_timeline_entry *entry)
{
    static const char *const categories[] = { "phase", "op", "module", "backward" };
    char number[40];
    trek_text_format(text, ",\"cat\":\"%s\",\"args\":{\"module\":\"", categories[entry->kind]);
    trek_text_add_escaped(text, entry->path);
    trek_text_format(text, "\",\"pass\":\"%s\"", entry->backward ? "backward" : "forward");
    if (entry->kind == TREK_TIMELINE_KIND_OP) {
        trek_text_format(text, ",\"shapes\":\"%s\"", entry->shapes);
        trek_text_format(text, ",\"flops\":%s", trek_number_text(entry->flops, 15, number));
        trek_text_format(text, ",\"bytes\":%s", trek_number_text(entry->bytes, 15, number));
    }
    trek_text_add(text, "}}");
}

static void write_entry(trek_text *text, const trek_timeline_entry *entry, int64_t origin)
{
    char number[40];
    trek_text_add(text, ",\n{\"name\":\"");
    trek_text_add_escaped(text, entry->name);
    trek_text_format(text, "\",\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", entry->is_span ? "X" : "i", entry->rank, entry->thread);
    write_time(text, "ts", entry->start_ns - origin);
    if (entry->is_span && entry->kind != TREK_TIMELINE_KIND_PHASE) {
        write_time(text, "dur", entry->end_ns - entry->start_ns);
        write_frame(text, entry);
    } else if (entry->is_span) {
        write_time(text, "dur", entry->end_ns - entry->start_ns);
        trek_text_format(text, ",\"args\":{\"detail\":%lld}}", (long long)entry->detail);
    } else {
        trek_text_format(text, ",\"s\":\"t\",\"args\":{\"value\":%s}}", trek_number_text(entry->value, 17, number));
    }
}

/* Writes a name for each rank's process. It is also the first element that the comma at the beginning of write_entry
 * needs. */
static void write_processes(trek_text *text, const trek_timeline_entry *entries, int64_t count)
{
    trek_text_add(text, "{\"name\":\"trek\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"args\":{}}");
    int last = -1;
    for (;;) {
        int next = -1; /* the smallest rank above `last` */
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
        trek_status status = trek_fail(TREK_ERR_IO, "timeline_save: path: cannot write %s: %s", path, strerror(errno));
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
    return status == TREK_ERR_IO ? trek_fail(status, "timeline_save: path: cannot write %s: %s", path, strerror(error)) : status;
}

trek_status trek_timeline_save(trek_timeline *timeline, const char *path)
{
    trek_file_replacement replacement;
    if (!timeline || !path)
        return trek_fail_missing("timeline_save", timeline ? "path" : "timeline");
    int64_t count, dropped;
    trek_timeline_entry *entries = trek_timeline_snapshot(timeline, &count, &dropped);
    trek_status status = entries ? trek_replace_begin(&replacement, path) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = trek_replace_end(&replacement, write_entries(replacement.file, path, entries, count, dropped));
    trek_free(entries);
    return status;
}
