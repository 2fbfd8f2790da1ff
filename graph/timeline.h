/* SPDX-License-Identifier: Apache-2.0 */
/* Timeline: spans and events of a run in bounded memory, written as a Chrome
 * trace (chrome://tracing, Perfetto).
 *
 * While attached it hears what trek itself reports: "forward", "backward",
 * "optimizer", each gradient bucket, "loader wait", changes of the shares. A
 * program adds spans and events of its own. With `ops` it hears of every op,
 * module and backward, too, and sums them: a profile. When the memory is full, the
 * oldest entries are dropped and counted; the sums stay of everything. All
 * functions but free may be called from any thread. */
#ifndef TREK_GRAPH_TIMELINE_H
#define TREK_GRAPH_TIMELINE_H

#include "tensor/status.h"

TREK_BEGIN

typedef struct trek_timeline trek_timeline;

typedef struct trek_timeline_opts {
    int64_t capacity; /* entries held; default 65536 (about 11 MB), at least 1 */
    bool nvtx;        /* while attached, spans are ranges for NVIDIA's profilers, too, where the CUDA plug-in is there
                         (without a timeline: TREK_NVTX=1 in the environment) */
    bool ops;         /* while attached, ops, modules and backwards are recorded (less than a microsecond for each), of all
                         threads and ranks of the process */
    int64_t rows;     /* of the sums that `ops` keeps (ops by module, shapes, rank, direction); default 16384 (about 6 MB).
                         What comes when there are so many is summed without its shapes, when there are twice as many
                         without its module, both named "(other)" */
    bool device_times; /* with `ops`: ops on GPUs are measured there, too, by two events around each (some microseconds more of
                          the host's time), read when somebody asks, which waits for the GPU, or after some thousand ops.
                          Not inside captured steps */
} trek_timeline_opts;

/* opts may be NULL. NULL and ARGUMENT or MEMORY. */
TREK_API trek_timeline *trek_timeline_new(const trek_timeline_opts *opts);
/* Detaches it and frees it. */
TREK_API void trek_timeline_free(trek_timeline **timeline);

/* Makes it hear what trek reports. One timeline of the process at a time; attaching another takes its place. */
TREK_API trek_status trek_timeline_attach(trek_timeline *timeline);
/* Nothing happens unless it is the attached one. When it returns, no thread is writing for trek any more. */
TREK_API void trek_timeline_detach(trek_timeline *timeline);

/* A value: where a span began. */
typedef struct trek_timeline_span {
    int64_t start_ns;
} trek_timeline_span;

TREK_API trek_timeline_span trek_timeline_begin(trek_timeline *timeline); /* now */
/* Adds the span from begin to now, on the calling thread and its rank. The name
 * is copied, up to TREK_TIMELINE_NAME - 1 bytes. A NULL timeline: nothing. */
#define TREK_TIMELINE_NAME 48
TREK_API void trek_timeline_end(trek_timeline *timeline, const char *name, trek_timeline_span span);
/* Adds a point in time with a number. */
TREK_API void trek_timeline_event(trek_timeline *timeline, const char *name, double value);

typedef enum trek_timeline_kind {
    TREK_TIMELINE_PHASE,    /* what trek reports of a step, and a program's own spans and events */
    TREK_TIMELINE_OP,       /* an op: "linear" */
    TREK_TIMELINE_MODULE,   /* a module's forward, by its path: "gpt.blocks.0.attention" */
    TREK_TIMELINE_BACKWARD, /* what the backward pass does for an op: "linear backward" */
} trek_timeline_kind;

/* One entry, as a value. */
typedef struct trek_timeline_entry {
    char name[TREK_TIMELINE_NAME];
    bool is_span;
    int rank, thread;         /* threads are numbered as they first appear */
    int64_t start_ns, end_ns; /* of a monotonic clock; equal for an event */
    int64_t detail;           /* of spans that trek reports: what the name's document says (bytes, step) */
    double value;             /* of events */
    /* with opts.ops: */
    trek_timeline_kind kind;
    bool backward;            /* inside a backward pass: the path is that of the module whose forward recorded the op */
    const char *path;         /* names of the modules around it, joined by dots, the outermost by its class's name; "" outside.
                                 These texts live as long as the program; at most 32768 are kept, then "" stands */
    const char *shapes;       /* of an op: "f32[64, 784] f32[10, 784] -> f32[64, 10]" */
    int64_t self_ns;          /* without the ops, modules, backwards and spans inside it */
    double flops, bytes;      /* of an op: see trek_timeline_averages */
} trek_timeline_entry;

TREK_API int64_t trek_timeline_count(trek_timeline *timeline);   /* entries held now */
TREK_API int64_t trek_timeline_dropped(trek_timeline *timeline); /* entries that had to make room */
/* Entry k, the oldest being 0, in order of their ends; false if there is none. */
TREK_API bool trek_timeline_get(trek_timeline *timeline, int64_t k, trek_timeline_entry *entry);
TREK_API void trek_timeline_clear(trek_timeline *timeline);

/* --- profiles: timelines with ops --------------------------------------------------------- */

typedef enum trek_timeline_group {
    TREK_TIMELINE_BY_OP,     /* ops, backwards and phases by name; what modules do beside ops is "(modules)" */
    TREK_TIMELINE_BY_SHAPES, /* the same, ops by their shapes, too */
    TREK_TIMELINE_BY_MODULE, /* modules by path, forward and backward apart, with all inside them; phases by name */
} trek_timeline_group;

typedef enum trek_timeline_sort {
    TREK_TIMELINE_SORT_SELF, TREK_TIMELINE_SORT_TOTAL, TREK_TIMELINE_SORT_AVERAGE, TREK_TIMELINE_SORT_CALLS,
    TREK_TIMELINE_SORT_FLOPS, TREK_TIMELINE_SORT_BYTES, /* largest first */
    TREK_TIMELINE_SORT_NAME,
    TREK_TIMELINE_SORT_DEVICE, /* largest first */
} trek_timeline_sort;

typedef struct trek_timeline_summary_opts {
    trek_timeline_group group;
    trek_timeline_sort sort;
    int64_t rows;   /* of the text, or TREK_OFF: all; default 25 */
    bool one_rank;  /* only what `rank` did; default: all ranks of this process together */
    int rank;
    bool peak;      /* rates as shares of trek_measure_peak's, too, which measures for 0.3 s at its first call */
} trek_timeline_summary_opts;

/* One line of a profile. */
typedef struct trek_timeline_row {
    const char *name, *shapes; /* live as long as the program; shapes: "" but BY_SHAPES */
    trek_timeline_kind kind;
    bool backward;             /* BY_MODULE: what backward passes did for the module */
    bool on_device;            /* of a GPU: times are those that the host took to hand the work over */
    int64_t calls;             /* BY_MODULE, backward: of single ops' backwards */
    int64_t total_ns, self_ns; /* with and without what is inside it; over calls, threads and ranks */
    int64_t least_ns, most_ns; /* of one call; BY_MODULE: of a forward, 0 for backward */
    double share;              /* of all rows' self_ns, in [0, 1] */
    /* With what is inside it. An optimizer's step is an op by its class's name: no FLOPs, the bytes of one pass over parameters,
     * gradients and state. FLOPs are those of products (of matrices, convolutions, attention, recurrent layers, the loss of
     * a linear layer), 2 for a multiplication and its addition; other ops count none. Causal attention counts the pairs
     * that may see each other, its backward five products for each. Bytes are those of inputs and outputs, each
     * once; 0 for views. */
    double flops, bytes;
    int64_t device_ns; /* with opts.device_times: from where the GPU came to the work to its end, over calls and ranks. Where
                          the host is slower than the GPU, that is the host's time to hand it over. Of an op inside another
                          one that is measured 0: it is part of that one's */
    double made_bytes; /* of tensors that ops made anew, with what is inside the row: no views, nothing written in place, nothing
                          that lived inside one op only. Of a module's forward: the most that its activations can hold */
    const char *result;  /* BY_MODULE, of a forward: what its last call gave first, "f32[64, 10]"; else "" */
    double result_bytes; /* of those results, over calls; a view counts as what it shows */
} trek_timeline_row;

/* The first `room` rows of a profile since the timeline was made or cleared, sorted; returns how many there are in all
 * (rows may be NULL for a room of 0). opts may be NULL; opts->rows and peak play no part. -1 and ARGUMENT, MEMORY, or STATE where
 * the timeline was made without ops. May be called while it records. */
TREK_API int64_t trek_timeline_averages(trek_timeline *timeline, const trek_timeline_summary_opts *opts,
                                        trek_timeline_row *rows, int64_t room);
/* The same as a table, a new string (trek_string_free): calls, total, self and average time, self as a share of all,
 * GFLOP/s and GB/s of the total time, their shares of the peak; below it the sums. NULL and errors as above. */
TREK_API char *trek_timeline_summary(trek_timeline *timeline, const trek_timeline_summary_opts *opts);

/* Writes a Chrome trace (JSON object format; process = rank, times in
 * microseconds from the first entry) to a temporary file beside `path`, then renames it. IO,
 * MEMORY; an earlier file at `path` then stays. */
TREK_API trek_status trek_timeline_save(trek_timeline *timeline, const char *path);

TREK_END

#endif
