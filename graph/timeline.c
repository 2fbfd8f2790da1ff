/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of entries with one mutex, and how entries come from the trace sink. */
#include "graph/timeline_internal.h"

#include <stdio.h>
#include <string.h>

#include "graph/graph_internal.h"
#include "tensor/intern.h"
#include "tensor/op_cost.h"
#include "tensor/ranges.h"
#include "tensor/rank_context.h"

enum { MOST_ROWS = 1 << 20 };

/* --- recording ---------------------------------------------------------------- */

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
    entry.thread = trek_trace_thread();
    entry.path = entry.path ? entry.path : "";
    entry.shapes = entry.shapes ? entry.shapes : "";
    pthread_mutex_lock(&t->lock);
    if (t->count == t->capacity) {
        t->first = (t->first + 1) % t->capacity;
        t->count--;
        t->dropped++;
    }
    t->ring[(t->first + t->count++) % t->capacity] = entry;
    pthread_mutex_unlock(&t->lock);
}

/* The sink is one constant object, and the timeline behind it is changed under a lock. So a thread that has just read
 * the sink's address never uses a timeline that was freed. */
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

/* --- frames: ops, modules, nodes, spans -------------------------------------------- */

static size_t add_number(char *text, size_t at, int64_t value)
{
    char digits[24];
    int n = 0;
    do
        digits[n++] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    while (n > 0)
        text[at++] = digits[--n];
    return at;
}

static size_t add_text(char *text, size_t at, const char *more)
{
    while (*more)
        text[at++] = *more++;
    return at;
}

/* Writes e.g. "f32[64, 784] ", without printf, because it happens for every op. */
static size_t add_shape(char *text, size_t at, const trek_tensor *t)
{
    at = add_text(text, at, trek_dtype_name((trek_dtype)t->dtype));
    at = add_text(text, at, "[");
    for (int d = 0; d < t->ndim; d++)
        at = add_number(text, add_text(text, at, d ? ", " : ""), t->sizes[d]);
    return add_text(text, at, "] ");
}

static double bytes_of(const trek_tensor *t)
{
    double bytes = (double)trek_dtype_size((trek_dtype)t->dtype);
    for (int d = 0; d < t->ndim; d++)
        bytes *= (double)t->sizes[d];
    return bytes;
}

/* Shapes that do not fit become "...". */
static uint32_t shapes_of(const trek_op_call *call)
{
    enum { SHAPE = TREK_MAX_DIMS * 22 + 16 };
    char text[TREK_INTERN_LENGTH + SHAPE];
    size_t at = 0;
    for (int k = 0; k < call->n_inputs + call->n_outputs; k++) {
        const trek_tensor *t = k < call->n_inputs ? call->inputs[k] : call->outputs[k - call->n_inputs];
        if (k == call->n_inputs)
            at = add_text(text, at, "-> ");
        if (at > TREK_INTERN_LENGTH - SHAPE && k < call->n_inputs) { /* of the inputs of cat only the first ones, and the
                                                                      * result */
            at = add_text(text, at, "... ");
            k = call->n_inputs - 1;
        } else if (t && at <= TREK_INTERN_LENGTH) {
            at = add_shape(text, at, t);
        }
    }
    uint32_t number = trek_intern(text, at ? at - 1 : 0, TREK_INTERN_FEW);
    return number || !at ? number : trek_timeline_other();
}

/* Returns the bytes that an op has newly made: no views, nothing that it wrote in place, and nothing of ops inside
 * another op, which is freed when that ends. */
static double made_bytes(const trek_op_call *call)
{
    double bytes = 0;
    for (int k = 0; k < call->n_outputs; k++) {
        const trek_tensor *out = call->outputs[k];
        bool fresh = out != NULL;
        for (int j = 0; j < call->n_inputs && fresh; j++)
            fresh = !call->inputs[j] || call->inputs[j]->storage != out->storage;
        bytes += fresh ? bytes_of(out) : 0;
    }
    return bytes;
}

static uint32_t result_of(const trek_tensor *result)
{
    char text[TREK_MAX_DIMS * 22 + 16];
    return trek_intern(text, add_shape(text, 0, result) - 1, TREK_INTERN_FEW);
}

static bool is_on_device(const trek_op_call *call)
{
    return call->outputs[0] && call->outputs[0]->device.type != TREK_CPU;
}

static uint32_t name_number(const char *name)
{
    uint32_t number = trek_intern(name, strlen(name), TREK_INTERN_FEW);
    return number || !*name ? number : trek_timeline_other();
}

/* Handles the end of a frame. The record gets its costs, for the frames around it. */
static void add_frame(trek_timeline *t, trek_trace_record *record)
{
    const trek_op_call *call = record->call;
    char backward[TREK_TIMELINE_NAME];
    const char *name = record->name;
    if (record->kind == TREK_TRACE_NODE) {
        snprintf(backward, sizeof backward, "%.*s backward", TREK_TIMELINE_NAME - 10, record->name);
        name = backward;
    }
    if (call)
        trek_op_cost(call, &record->flops, &record->bytes);
    trek_timeline_key key = { .kind = record->kind, .backward = record->backward, .path = record->path, .rank = record->rank,
                              .name = record->kind == TREK_TRACE_MODULE ? 0 : name_number(name),
                              .shapes = call ? shapes_of(call) : 0 };
    pthread_mutex_lock(&t->lock);
    trek_timeline_cell *cell =
        trek_timeline_table_add(&t->table, &key, record, record->on_device || (call && is_on_device(call)));
    if (call && !record->inside_op)
        cell->made_bytes += made_bytes(call);
    if (record->result) {
        cell->result = result_of(record->result);
        cell->result_bytes += bytes_of(record->result);
    }
    if (record->mark)
        trek_timeline_mark_end(&t->marks, record->mark, cell);
    pthread_mutex_unlock(&t->lock);
    add(t, name, (trek_timeline_entry){
        .is_span = true, .rank = record->rank, .start_ns = record->start_ns, .end_ns = record->end_ns, .detail = record->detail,
        .kind = (trek_timeline_kind)record->kind, .backward = record->backward, .path = trek_interned(record->path),
        .shapes = trek_interned(key.shapes), .self_ns = record->end_ns - record->start_ns - record->inside_ns,
        .flops = record->flops, .bytes = record->bytes });
}

static void sink_frame(trek_trace_record *record, void *arg)
{
    (void)arg;
    pthread_mutex_lock(&attached_lock);
    if (attached && attached->ops)
        add_frame(attached, record);
    pthread_mutex_unlock(&attached_lock);
}

static int sink_mark(trek_device device, void *arg)
{
    (void)arg;
    int mark = 0;
    pthread_mutex_lock(&attached_lock);
    if (attached && attached->devices) {
        pthread_mutex_lock(&attached->lock);
        mark = trek_timeline_mark_begin(&attached->marks, device);
        pthread_mutex_unlock(&attached->lock);
    }
    pthread_mutex_unlock(&attached_lock);
    return mark;
}

/* [ops][ranges] */
static const trek_trace_sink sinks[2][2] = {
    { { .span = sink_span, .event = sink_event },
      { .span = sink_span, .event = sink_event, .enter = trek_ranges_enter, .leave = trek_ranges_leave } },
    { { .frame = sink_frame, .event = sink_event, .mark = sink_mark },
      { .frame = sink_frame, .event = sink_event, .enter = trek_ranges_enter, .leave = trek_ranges_leave, .mark = sink_mark } },
};

/* Called with the lock held. */
static void attach(trek_timeline *timeline)
{
    attached = timeline;
    atomic_store(&trek_trace_now, &sinks[timeline->ops][timeline->ranges || trek_ranges_wanted()]);
    trek_trace_start_recording(timeline->ops);
}

trek_status trek_timeline_attach(trek_timeline *timeline)
{
    if (!timeline)
        return trek_fail_missing("timeline_attach", "timeline");
    pthread_mutex_lock(&attached_lock);
    attach(timeline);
    pthread_mutex_unlock(&attached_lock);
    return TREK_OK;
}

bool trek_timeline_borrow(trek_timeline *timeline)
{
    pthread_mutex_lock(&attached_lock);
    bool free = !attached;
    if (free)
        attach(timeline);
    pthread_mutex_unlock(&attached_lock);
    return free;
}

bool trek_timeline_return(trek_timeline *timeline)
{
    pthread_mutex_lock(&attached_lock);
    bool own = timeline && attached == timeline;
    if (own) {
        trek_trace_start_recording(false);
        atomic_store(&trek_trace_now, NULL);
        trek_ranges_start();
        attached = NULL;
    }
    pthread_mutex_unlock(&attached_lock);
    return own;
}

void trek_timeline_detach(trek_timeline *timeline) { trek_timeline_return(timeline); }

trek_timeline *trek_timeline_new(const trek_timeline_opts *opts)
{
    int64_t capacity = opts && opts->capacity ? opts->capacity : 65536;
    if (capacity < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "timeline_new: capacity: %lld; must be at least 1", (long long)capacity);
    int64_t rows = opts && opts->rows ? opts->rows : 16384;
    if (rows < 1 || rows > MOST_ROWS)
        return trek_fail_null(TREK_ERR_ARGUMENT, "timeline_new: .rows: %lld; must be 1 to %d", (long long)rows, MOST_ROWS);
    trek_timeline *t = trek_calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->capacity = capacity;
    t->ranges = opts && opts->nvtx && trek_ranges_available();
    t->ring = trek_calloc((size_t)capacity, sizeof *t->ring);
    t->ops = opts && opts->ops;
    t->devices = t->ops && opts->device_times;
    t->marks.free = t->marks.pending = -1;
    if (!t->ring || (t->ops && trek_timeline_table_init(&t->table, rows) != TREK_OK)) {
        trek_free(t->ring);
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
    trek_timeline_marks_free(&t->marks);
    trek_free(t->ring);
    trek_free(t->table.cells);
    trek_free(t);
}

trek_timeline_span trek_timeline_begin(trek_timeline *timeline)
{
    if (!timeline)
        return (trek_timeline_span){ 0 };
    return (trek_timeline_span){ timeline->ops && trek_trace_records() ? trek_trace_begin_span("") : trek_clock_ns() };
}

void trek_timeline_end(trek_timeline *timeline, const char *name, trek_timeline_span span)
{
    trek_trace_record record;
    if (!timeline)
        return;
    if (!timeline->ops || !trek_trace_take_span(span.start_ns, &record))
        record = (trek_trace_record){ .start_ns = span.start_ns, .end_ns = trek_clock_ns() };
    record.name = name ? name : "";
    record.rank = trek_rank_here.rank;
    if (timeline->ops)
        add_frame(timeline, &record);
    else
        add(timeline, name, (trek_timeline_entry){ .is_span = true, .rank = record.rank, .start_ns = record.start_ns,
                                                   .end_ns = record.end_ns });
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
    trek_timeline_marks_read(&timeline->marks, false);
    trek_timeline_table_clear(&timeline->table);
    pthread_mutex_unlock(&timeline->lock);
}
