/* SPDX-License-Identifier: Apache-2.0 */
/* Reporting to the trace sink, and the stacks of frames. */
#include "tensor/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tensor/intern.h"
#include "tensor/rank_context.h"
#include "tensor/thread_end.h"

_Atomic(const trek_trace_sink *) trek_trace_now;
_Atomic(const trek_trace_watch *) trek_trace_watcher;
atomic_bool trek_trace_recording;
static atomic_uint recording_number; /* counts recordings that have begun */

enum { MOST_SPANS = 1024 }; /* the deepest nesting of spans; deeper ones are reported without what is inside them */

/* An unfinished record, and the module that runs in it. */
typedef struct frame {
    trek_trace_record record;
    const void *module;
} frame;

/* Of the calling thread; NULL: it has recorded nothing yet. */
static _Thread_local struct stack {
    frame *frames;
    int depth, room, thread;
    unsigned recording;
} *stack_here;

static void stack_end(void)
{
    free(stack_here->frames);
    free(stack_here);
    stack_here = NULL;
}

int64_t trek_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* --- the stack ----------------------------------------------------------------------- */

/* Returns NULL without memory: the profile then has gaps, but nothing fails. */
static struct stack *stack_of_thread(void)
{
    static atomic_int threads;
    if (stack_here || !(stack_here = calloc(1, sizeof *stack_here)))
        return stack_here;
    stack_here->thread = atomic_fetch_add(&threads, 1);
    trek_thread_at_end(TREK_THREAD_TRACE, stack_end);
    return stack_here;
}

int trek_trace_thread(void)
{
    const struct stack *s = stack_of_thread();
    return s ? s->thread : 0;
}

/* Returns the thread's stack with space for one more frame, or NULL. */
static struct stack *stack_with_room(void)
{
    struct stack *s = stack_of_thread();
    if (!s)
        return NULL;
    unsigned recording = atomic_load_explicit(&recording_number, memory_order_relaxed);
    if (s->recording != recording)
        s->depth = 0;
    s->recording = recording;
    if (s->depth < s->room)
        return s;
    int room = s->room ? 2 * s->room : 32;
    frame *frames = realloc(s->frames, (size_t)room * sizeof *frames);
    if (!frames)
        return NULL;
    s->frames = frames;
    s->room = room;
    return s;
}

/* Pushes a frame inside the innermost one, of the same module unless the caller changes that. Returns its number,
 * from 1; 0: none. */
static int push(trek_trace_kind kind, const char *name)
{
    struct stack *s = stack_with_room();
    if (!s)
        return 0;
    const frame *around = s->depth ? &s->frames[s->depth - 1] : NULL;
    s->frames[s->depth] = (frame){ .record = { .kind = kind, .name = name, .path = around ? around->record.path : 0,
                                               .backward = around && around->record.backward,
                                               .inside_op = around && (around->record.kind == TREK_TRACE_OP ||
                                                                       around->record.inside_op) },
                                   .module = around ? around->module : NULL };
    return ++s->depth;
}

static void enter(const char *name)
{
    const trek_trace_sink *sink = atomic_load_explicit(&trek_trace_now, memory_order_acquire);
    if (sink && sink->enter)
        sink->enter(name);
}

/* As late as possible, because what comes before belongs to the frame around it. */
static int begun(int frame)
{
    if (frame)
        stack_here->frames[frame - 1].record.start_ns = trek_clock_ns();
    return frame;
}

/* Removes frame number k and all above it from the stack. */
static bool pop(int k, trek_trace_record *record)
{
    struct stack *s = stack_here;
    if (k < 1 || !s || k > s->depth || s->recording != atomic_load_explicit(&recording_number, memory_order_relaxed))
        return false;
    *record = s->frames[k - 1].record;
    s->depth = k - 1;
    return true;
}

/* Adds a frame that has ended to the frame around it. */
static void count_inside(const trek_trace_record *record)
{
    struct stack *s = stack_here;
    if (!s || !s->depth)
        return;
    trek_trace_record *around = &s->frames[s->depth - 1].record;
    around->inside_ns += record->end_ns - record->start_ns;
    around->inside_flops += record->flops + record->inside_flops;
    around->inside_bytes += record->bytes + record->inside_bytes;
}

static void tell(trek_trace_record *record)
{
    const trek_trace_sink *sink = atomic_load_explicit(&trek_trace_now, memory_order_acquire);
    record->rank = trek_rank_here.rank;
    if (sink && sink->leave)
        sink->leave(record->name);
    if (sink && sink->frame)
        sink->frame(record, sink->arg);
    count_inside(record);
}

/* --- ops, modules, nodes -------------------------------------------------------------- */

int trek_trace_begin_op(const char *name)
{
    enter(name);
    return begun(push(TREK_TRACE_OP, name));
}

void trek_trace_mark(int frame, trek_device device)
{
    const trek_trace_sink *sink = atomic_load_explicit(&trek_trace_now, memory_order_acquire);
    if (!sink || !sink->mark || device.type == TREK_CPU)
        return;
    for (int k = 0; k < frame; k++)
        if (stack_here->frames[k].record.mark)
            return;
    stack_here->frames[frame - 1].record.mark = sink->mark(device, sink->arg);
}

static void end(int frame, const struct trek_op_call *call, const struct trek_tensor *result, double bytes, bool on_device)
{
    int64_t now = trek_clock_ns();
    trek_trace_record record;
    if (!pop(frame, &record))
        return;
    record.end_ns = now;
    record.call = call;
    record.result = result;
    record.bytes = bytes;
    record.on_device = on_device;
    tell(&record);
}

void trek_trace_end_op(int frame, const struct trek_op_call *call) { end(frame, call, NULL, 0, false); }
void trek_trace_end_pass(int frame, double bytes, bool on_device) { end(frame, NULL, NULL, bytes, on_device); }

void trek_trace_end_module(int frame, const struct trek_tensor *result) { end(frame, NULL, result, 0, false); }

void trek_trace_end_frame(int frame) { end(frame, NULL, NULL, 0, false); }

/* Returns e.g. "gpt.blocks.0". If no text is left for it, a module counts as the one around it. */
static uint32_t path_inside(uint32_t around, const char *name)
{
    char path[TREK_INTERN_LENGTH];
    if (!*name) /* a wrapper has the path of what it wraps */
        return around;
    int length = snprintf(path, sizeof path, "%s%s%s", trek_interned(around), around ? "." : "", name);
    if (length >= (int)sizeof path)
        return around;
    uint32_t number = trek_intern(path, (size_t)length, TREK_INTERN_LIMIT);
    return number ? number : around;
}

int trek_trace_begin_module(const char *name, const void *module)
{
    uint32_t path = path_inside(trek_trace_path_here(), name);
    const char *shown = trek_interned(path);
    enter(shown);
    int k = push(TREK_TRACE_MODULE, shown);
    if (k) {
        stack_here->frames[k - 1].record.path = path;
        stack_here->frames[k - 1].module = module;
    }
    return begun(k);
}

int trek_trace_begin_node(const char *name, uint32_t path)
{
    enter(name);
    int k = push(TREK_TRACE_NODE, name);
    if (k) {
        stack_here->frames[k - 1].record.path = path;
        stack_here->frames[k - 1].record.backward = true;
    }
    return begun(k);
}

static const frame *innermost(void)
{
    const struct stack *s = stack_here;
    bool present = s && s->depth && s->recording == atomic_load_explicit(&recording_number, memory_order_relaxed);
    return present ? &s->frames[s->depth - 1] : NULL;
}

const void *trek_trace_module_here(void)
{
    const frame *f = innermost();
    return f ? f->module : NULL;
}

uint32_t trek_trace_path_here(void)
{
    const frame *f = innermost();
    return f ? f->record.path : 0;
}

void trek_trace_start_recording(bool on)
{
    atomic_fetch_add(&recording_number, 1);
    atomic_store(&trek_trace_recording, on);
}

/* --- spans ------------------------------------------------------------------------------ */

int64_t trek_trace_begin_span(const char *name)
{
    bool many = stack_here && stack_here->depth >= MOST_SPANS; /* for programs that never end their spans */
    int k = many ? 0 : begun(push(TREK_TRACE_SPAN, name));
    return k ? stack_here->frames[k - 1].record.start_ns : trek_clock_ns();
}

bool trek_trace_take_span(int64_t start_ns, trek_trace_record *record)
{
    int64_t now = trek_clock_ns();
    for (int k = stack_here ? stack_here->depth : 0; k > 0; k--) {
        const trek_trace_record *r = &stack_here->frames[k - 1].record;
        if (r->start_ns != start_ns || r->kind != TREK_TRACE_SPAN)
            continue;
        if (!pop(k, record))
            return false;
        record->end_ns = now;
        count_inside(record);
        return true;
    }
    return false;
}

int64_t trek_trace_entered(const char *name)
{
    const trek_trace_watch *watch = atomic_load_explicit(&trek_trace_watcher, memory_order_acquire);
    enter(name);
    if (watch && watch->enter)
        watch->enter(name);
    return trek_trace_records() ? trek_trace_begin_span(name) : trek_clock_ns();
}

void trek_trace_end(const char *name, int64_t start_ns, int64_t detail)
{
    const trek_trace_sink *sink = atomic_load_explicit(&trek_trace_now, memory_order_acquire);
    const trek_trace_watch *watch = atomic_load_explicit(&trek_trace_watcher, memory_order_acquire);
    if (watch && watch->leave && start_ns)
        watch->leave(name, start_ns, trek_clock_ns());
    if (!sink || !start_ns)
        return;
    if (sink->leave)
        sink->leave(name);
    trek_trace_record record;
    int rank = trek_rank_here.rank;
    if (!sink->frame || !trek_trace_take_span(start_ns, &record))
        record = (trek_trace_record){ .start_ns = start_ns, .end_ns = trek_clock_ns() };
    record.kind = TREK_TRACE_SPAN;
    record.name = name;
    record.rank = rank;
    record.detail = detail;
    if (sink->frame)
        sink->frame(&record, sink->arg);
    else if (sink->span)
        sink->span(name, rank, record.start_ns, record.end_ns, detail, sink->arg);
}

void trek_trace_samples(int64_t n)
{
    const trek_trace_watch *watch = atomic_load_explicit(&trek_trace_watcher, memory_order_acquire);
    if (watch)
        watch->samples(n);
}

void trek_trace_event(const char *name, double value)
{
    const trek_trace_sink *sink = atomic_load_explicit(&trek_trace_now, memory_order_acquire);
    if (sink && sink->event)
        sink->event(name, trek_rank_here.rank, trek_clock_ns(), value, sink->arg);
}
