/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/viewer/event_internal.h"

#include <stdio.h>
#include <string.h>

#include "monitor/viewer/run_numbers.h"

/* --- checks --------------------------------------------------------------------------------------- */

uint32_t trek_crc32c(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
    }
    return ~crc;
}

/* Returns the masked form that files store, because a CRC of data that contains CRCs would mean little. */
static uint32_t masked(const void *data, size_t bytes)
{
    uint32_t crc = trek_crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* --- events ----------------------------------------------------------------------------------------- */

/* Event: wall_time 1, step 2, and file_version 3, graph_def 4, summary 5 or tagged_run_metadata 8. */
enum { VERSION = 3, GRAPH = 4, SUMMARY = 5, METADATA = 8 };

static void add_event(trek_text *out, double time, int64_t step, int field, trek_text *what)
{
    trek_text event = { 0 }, length = { 0 };
    trek_event_double(&event, 1, time);
    trek_event_whole(&event, 2, step);
    trek_event_message(&event, field, what);
    trek_event_little(&length, event.length, 8);
    if (!event.failed && !length.failed) {
        trek_text_bytes(out, length.data, 8);
        trek_event_little(out, masked(length.data, 8), 4);
        trek_text_bytes(out, event.data, event.length);
        trek_event_little(out, masked(event.data, event.length), 4);
    }
    out->failed |= event.failed || length.failed;
    trek_text_clear(&event);
    trek_text_clear(&length);
}

void trek_event_begin(trek_text *out, double time)
{
    trek_text version = { 0 };
    trek_text_add(&version, "brain.Event:2");
    add_event(out, time, 0, VERSION, &version);
}

/* Begins a Summary.Value with its tag. Values of process 0 have the plain name. */
static void begin_value(trek_text *value, const trek_run_record *r, const char *before, const char *name, const char *behind)
{
    char process[32] = "";
    trek_text tag = { 0 };
    if (r->process > 0)
        snprintf(process, sizeof process, "process-%d/", r->process);
    trek_text_format(&tag, "%s%s%s%s", process, before, name, behind);
    trek_event_message(value, 1, &tag);
}

static void add_scalar(trek_text *summary, const trek_run_record *r, const char *before, const char *name, double number)
{
    trek_text value = { 0 };
    begin_value(&value, r, before, name, "");
    trek_event_float(&value, 2, number);
    trek_event_message(summary, 1, &value);
}

static void add_scalars(trek_text *summary, const trek_run_record *r)
{
    bool at_epoch = r->at && strcmp(r->at, "epoch") == 0;
    for (int k = 0; k < r->n_values; k++)
        add_scalar(summary, r, at_epoch ? "epoch/" : "", r->values[k].name, r->values[k].value);
}

typedef struct adding {
    trek_text *summary;
    trek_run_record record;  /* treated as process 0's, because the names contain the process */
} adding;

static void add_number(const char *name, double number, void *arg)
{
    adding *to = arg;
    add_scalar(to->summary, &to->record, "", name, number);
}

static void add_numbers(trek_text *summary, const trek_run_record *r)
{
    adding to = { summary, *r };
    to.record.process = 0;
    trek_run_numbers(r, add_number, &to);
}

/* HistogramProto: min 1, max 2, num 3, sum 4, sum_squares 5, bucket_limit 6, bucket 7. */
static void add_histogram(trek_text *summary, const trek_run_record *r)
{
    trek_text histogram = { 0 }, value = { 0 };
    double n = 0;
    if (!r->name || r->n_edges != r->n_counts + 1)
        return;
    for (int k = 0; k < r->n_counts; k++)
        n += r->counts[k];
    trek_event_double(&histogram, 1, r->min);
    trek_event_double(&histogram, 2, r->max);
    trek_event_double(&histogram, 3, n);
    trek_event_double(&histogram, 4, n * r->mean);
    trek_event_double(&histogram, 5, n * (r->std * r->std + r->mean * r->mean));
    trek_event_packed(&histogram, 6, r->edges + 1, r->n_counts);
    trek_event_packed(&histogram, 7, r->counts, r->n_counts);
    begin_value(&value, r, r->of && strcmp(r->of, "gradient") == 0 ? "gradient/" : "", r->name, "");
    trek_event_message(&value, 5, &histogram);
    trek_event_message(summary, 1, &value);
}

/* Summary.Image: height 1, width 2, colorspace 3 (channels), encoded_image_string 4. */
static void add_image(trek_text *summary, const trek_run_record *r)
{
    static const int channels[7] = { 1, 0, 3, 3, 2, 0, 4 }; /* indexed by PNG's colour type */
    trek_text png = { 0 }, image = { 0 }, value = { 0 };
    if (r->name && r->png && trek_base64_decode(&png, r->png) && png.length > 25 && (unsigned char)png.data[25] < 7) {
        trek_event_whole(&image, 1, r->height);
        trek_event_whole(&image, 2, r->width);
        trek_event_whole(&image, 3, channels[(unsigned char)png.data[25]]);
        trek_event_message(&image, 4, &png);
        begin_value(&value, r, "", r->name, "");
        trek_event_message(&value, 4, &image);
        trek_event_message(summary, 1, &value);
    }
    trek_text_clear(&png);
}

/* A tensor of one string for the text plug-in: metadata 9 (plugin_data 1: plugin_name 1), tensor 8 (dtype 1,
 * tensor_shape 2: dim 2: size 1, string_val 8). The tags have the same suffix as PyTorch's. */
static void add_text(trek_text *summary, const trek_run_record *r, const char *before, const char *name, const char *words)
{
    enum { STRING = 7 };
    trek_text plugin = { 0 }, metadata = { 0 }, dim = { 0 }, shape = { 0 }, tensor = { 0 }, value = { 0 };
    if (!name || !words)
        return;
    begin_value(&value, r, before, name, "/text_summary");
    trek_event_string(&plugin, 1, "text");
    trek_event_message(&metadata, 1, &plugin);
    trek_event_message(&value, 9, &metadata);
    trek_event_whole(&tensor, 1, STRING);
    trek_event_whole(&dim, 1, 1);
    trek_event_message(&shape, 2, &dim);
    trek_event_message(&tensor, 2, &shape);
    trek_event_string(&tensor, 8, words);
    trek_event_message(&value, 8, &tensor);
    trek_event_message(summary, 1, &value);
}

static void add_end(trek_text *summary, const trek_run_record *r)
{
    add_text(summary, r, "", "end", r->error ? r->error : r->status);
}

/* TaggedRunMetadata: tag 1, run_metadata 2. */
static void add_graph(trek_text *out, const trek_run_record *r, int64_t step)
{
    trek_text graph = { 0 }, metadata = { 0 }, tagged = { 0 }, tag = { 0 };
    if (r->process > 0) /* all processes have the same graph */
        return;
    trek_event_graph(&graph, r);
    add_event(out, r->time, step, GRAPH, &graph);
    if (!(r->steps > 0))
        return;
    trek_text_format(&tag, "step %lld: the mean of %lld", (long long)step, (long long)r->steps);
    trek_event_message(&tagged, 1, &tag);
    trek_event_run_metadata(&metadata, r);
    trek_event_message(&tagged, 2, &metadata);
    add_event(out, r->time, step, METADATA, &tagged);
}

void trek_event_add(trek_text *out, const trek_run_record *r, int64_t step)
{
    trek_text summary = { 0 };
    switch (r->kind) {
    case TREK_RUN_SCALARS: add_scalars(&summary, r); break;
    case TREK_RUN_RANKS:
    case TREK_RUN_SYSTEM: add_numbers(&summary, r); break;
    case TREK_RUN_HISTOGRAM: add_histogram(&summary, r); break;
    case TREK_RUN_IMAGE: add_image(&summary, r); break;
    case TREK_RUN_TEXT: add_text(&summary, r, "", r->name, r->text); break;
    case TREK_RUN_LOG: add_text(&summary, r, "log/", r->level, r->text); break;
    case TREK_RUN_EVENT: add_text(&summary, r, "event/", r->name, r->text); break;
    case TREK_RUN_END: add_end(&summary, r); break;
    case TREK_RUN_GRAPH: add_graph(out, r, r->step >= 0 ? r->step : step); break;
    default: break;
    }
    out->failed |= summary.failed;
    if (summary.length > 0)
        add_event(out, r->time, r->step >= 0 ? r->step : step, SUMMARY, &summary);
    trek_text_clear(&summary);
}
