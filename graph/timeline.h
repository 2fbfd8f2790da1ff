/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline records spans and events of a run in a limited amount of memory and saves them as a Chrome trace (chrome://tracing,
 * Perfetto).
 *
 * While it is attached it records what trek reports: "forward", "backward", "optimizer", each bucket of gradients, "loader
 * wait", and changes of the shares. The program can add its own spans and events. With the option `ops` it also records every
 * op, module and backward, and sums them to a profile. When the memory is full, the oldest entries are dropped and counted; the
 * sums still include them. Any thread may call the functions, except trek_timeline_free. */
#ifndef TREK_GRAPH_TIMELINE_H
#define TREK_GRAPH_TIMELINE_H

#include "tensor/status.h"

TREK_BEGIN

/* A timeline. */
typedef struct trek_timeline trek_timeline;

/* Options of a timeline. */
typedef struct trek_timeline_opts {
    int64_t capacity; /* how many entries are kept, at least 1; default 65536 (about 11 MB) */
    /* While the timeline is attached, spans are also ranges for NVIDIA's profilers, if the CUDA plug-in is available. Default
     * false. Without a timeline TREK_NVTX=1 in the environment does this. */
    bool nvtx;
    /* While the timeline is attached, ops, modules and backwards of all threads and ranks of the process are recorded. Each of
     * them costs less than a microsecond. Default false. */
    bool ops;
    /* How many rows of sums `ops` keeps, one for each op, module, shapes, rank and direction; default 16384 (about 6 MB). Above
     * this number ops are summed without their shapes, above twice the number also without their module, as "(other)". */
    int64_t rows;
    /* With `ops`, ops on GPUs are also measured on the GPU, by two events for each op, which costs some microseconds of the
     * host. The events are read after some thousand ops or when a function needs them, and that function synchronises with the
     * GPU. Not inside captured steps. Default false. */
    bool device_times;
} trek_timeline_opts;

/* Returns a new timeline, which is not attached. `opts` may be NULL. The caller frees it with trek_timeline_free.
 * Errors: ARGUMENT, MEMORY; NULL is returned. */
TREK_API trek_timeline *trek_timeline_new(const trek_timeline_opts *opts);
/* Detaches the timeline, frees it and sets *timeline to NULL. */
TREK_API void trek_timeline_free(trek_timeline **timeline);

/* Attaches the timeline: it records what trek reports from now on. Only one timeline of a process is attached at a time.
 * Attaching another one detaches it. */
TREK_API trek_status trek_timeline_attach(trek_timeline *timeline);
/* Detaches the timeline if it is the attached one. When the function returns, no thread of trek writes to the timeline any
 * more. */
TREK_API void trek_timeline_detach(trek_timeline *timeline);

/* The beginning of a span. */
typedef struct trek_timeline_span {
    int64_t start_ns; /* nanoseconds of a monotonic clock */
} trek_timeline_span;

/* Returns a span that begins now; trek_timeline_end adds it to the timeline. A NULL timeline is allowed. */
TREK_API trek_timeline_span trek_timeline_begin(trek_timeline *timeline);
/* The size of the name of an entry in bytes, its terminating 0 included. */
#define TREK_TIMELINE_NAME 48
/* Adds the span from its beginning to now to the timeline, for the calling thread and its rank. The name is copied, up to
 * TREK_TIMELINE_NAME - 1 bytes. It does nothing if `timeline` is NULL. */
TREK_API void trek_timeline_end(trek_timeline *timeline, const char *name, trek_timeline_span span);
/* Adds an event to the timeline: a point in time with a number. The name is copied as in trek_timeline_end. */
TREK_API void trek_timeline_event(trek_timeline *timeline, const char *name, double value);

/* What an entry or a row is about. */
typedef enum trek_timeline_kind {
    TREK_TIMELINE_KIND_PHASE,    /* a part of a step that trek reports, or a span or event of the program */
    TREK_TIMELINE_KIND_OP,       /* an op: "linear" */
    TREK_TIMELINE_KIND_MODULE,   /* the forward of a module, named by its path: "gpt.blocks.0.attention" */
    TREK_TIMELINE_KIND_BACKWARD, /* the backward of an op: "linear backward" */
} trek_timeline_kind;

/* One entry of a timeline: a span or an event. The fields from `kind` on are set only with the option `ops`. */
typedef struct trek_timeline_entry {
    char name[TREK_TIMELINE_NAME]; /* the name of the span or event */
    bool is_span;                  /* true for a span, false for an event */
    int rank;                      /* the rank of the thread */
    int thread;                    /* the number of the thread; threads are numbered in the order in which they appear */
    int64_t start_ns;              /* the beginning in nanoseconds of a monotonic clock */
    int64_t end_ns;                /* the end; for an event it is equal to start_ns */
    int64_t detail;                /* for spans of trek: a number that the document of the name explains (bytes, step) */
    double value;                  /* for events: the number */
    trek_timeline_kind kind;       /* what the entry is about */
    bool backward;                 /* in a backward pass; `path` is that of the module whose forward recorded the op */
    /* The names of the modules around it, joined by dots, where the outermost has the name of its class. It is "" outside of
     * modules, and also after 32768 different paths. The string is never freed. */
    const char *path;
    const char *shapes;            /* for an op: "f32[64, 784] f32[10, 784] -> f32[64, 10]"; the string is never freed */
    int64_t self_ns;               /* the time without the ops, modules, backwards and spans inside it */
    double flops;                  /* for an op: its floating-point operations, see trek_timeline_row */
    double bytes;                  /* for an op: the bytes of its inputs and outputs, see trek_timeline_row */
} trek_timeline_entry;

/* Returns how many entries the timeline holds now. */
TREK_API int64_t trek_timeline_count(trek_timeline *timeline);
/* Returns how many entries were dropped because the memory was full. */
TREK_API int64_t trek_timeline_dropped(trek_timeline *timeline);
/* Writes entry k to *entry and returns true, or returns false if k is out of range. Entries are in the order of their ends, and
 * entry 0 is the oldest. */
TREK_API bool trek_timeline_get(trek_timeline *timeline, int64_t k, trek_timeline_entry *entry);
/* Removes all entries and sums from the timeline. */
TREK_API void trek_timeline_clear(trek_timeline *timeline);

/* --- profiles: timelines with ops --------------------------------------------------------- */

/* How a profile groups what was recorded. */
typedef enum trek_timeline_group {
    TREK_TIMELINE_GROUP_OP,     /* ops, backwards and phases by name; the work of modules outside of ops is "(modules)" */
    TREK_TIMELINE_GROUP_SHAPES, /* as TREK_TIMELINE_GROUP_OP, and ops also by their shapes */
    /* Modules by path, with a row for forward and a row for backward, which include everything inside them. Phases by name. */
    TREK_TIMELINE_GROUP_MODULE,
} trek_timeline_group;

/* The column by which the rows of a profile are sorted: largest first, names in alphabetical order. */
typedef enum trek_timeline_sort {
    TREK_TIMELINE_SORT_SELF, TREK_TIMELINE_SORT_TOTAL, TREK_TIMELINE_SORT_AVERAGE, TREK_TIMELINE_SORT_CALLS,
    TREK_TIMELINE_SORT_FLOPS, TREK_TIMELINE_SORT_BYTES,
    TREK_TIMELINE_SORT_NAME,
    TREK_TIMELINE_SORT_DEVICE,
} trek_timeline_sort;

/* Options of a profile. */
typedef struct trek_timeline_summary_opts {
    trek_timeline_group group; /* how the rows are grouped; default TREK_TIMELINE_GROUP_OP */
    trek_timeline_sort sort;   /* the column that sorts the rows; default TREK_TIMELINE_SORT_SELF */
    int64_t rows;              /* rows of the text (TREK_OFF: all); default 25 */
    bool one_rank;             /* only the work of `rank`; default false: all ranks of this process together */
    int rank;                  /* the rank for one_rank */
    bool peak;                 /* rates also as shares of trek_measure_peak, whose first call takes 0.3 s; default false */
} trek_timeline_summary_opts;

/* One row of a profile.
 *
 * FLOPs are the floating-point operations of products: of matrices, convolutions, attention, recurrent layers, and the loss of a
 * linear layer. A multiplication with its addition counts 2. Other ops count 0. Causal attention counts only the pairs that can
 * see each other, and its backward counts five products for each of them. Bytes are those of inputs and outputs, each once, and
 * 0 for views. The step of an optimizer is an op with the name of its class: it counts 0 FLOPs, and the bytes of one pass over
 * parameters, gradients and state. */
typedef struct trek_timeline_row {
    const char *name;        /* the name of the op, module or phase; never freed */
    const char *shapes;      /* with TREK_TIMELINE_GROUP_SHAPES the shapes of the op, otherwise ""; never freed */
    trek_timeline_kind kind; /* what the row is about */
    bool backward;           /* by module: the row has the backward passes of the module */
    bool on_device;          /* the work ran on a GPU; the times are those of the host for launching it */
    int64_t calls;           /* number of calls; by module and for backward the number of backwards of single ops */
    int64_t total_ns;        /* time of all calls, threads and ranks, with everything inside them */
    int64_t self_ns;         /* the part of total_ns that is not inside other rows */
    int64_t least_ns;        /* time of the shortest call; by module of the shortest forward, 0 for backward */
    int64_t most_ns;         /* time of the longest call; by module of the longest forward, 0 for backward */
    double share;            /* self_ns divided by the self_ns of all rows, in [0, 1] */
    double flops;            /* FLOPs, including everything inside */
    double bytes;            /* bytes of inputs and outputs, including everything inside */
    /* With trek_timeline_opts.device_times: the time on the GPU from the beginning of the work to its end, over calls and ranks.
     * If the host is slower than the GPU, it is the host's time for launching. It is 0 for an op inside another measured op. */
    int64_t device_ns;
    /* Bytes of the tensors that ops created, including everything inside. Views, tensors written in place and tensors inside one
     * op do not count. For the forward of a module it is the most that its activations can hold. */
    double made_bytes;
    const char *result;      /* by module, for forward: the first result of the last call, "f32[64, 10]"; otherwise "" */
    double result_bytes;     /* bytes of those results over all calls; a view counts as its elements */
} trek_timeline_row;

/* Writes the first rows of the sorted profile to `rows`, at most `capacity` of them, and returns how many rows the profile has.
 * It covers the time since the timeline was created or cleared. `opts` may be NULL; opts->rows and opts->peak are ignored. `rows`
 * may be NULL if `capacity` is 0. It may be called while the timeline records.
 * Errors: ARGUMENT, MEMORY. STATE if the timeline does not record ops. -1 is returned. */
TREK_API int64_t trek_timeline_averages(trek_timeline *timeline, const trek_timeline_summary_opts *opts,
                                        trek_timeline_row *rows, int64_t capacity);
/* Returns the profile as a table: calls, total time, self time and average time, the share of the self time, GFLOP/s and GB/s of
 * the total time, and their shares of the peak. The sums follow below. The caller frees the string with trek_string_free.
 * Errors: as trek_timeline_averages; NULL is returned. */
TREK_API char *trek_timeline_summary(trek_timeline *timeline, const trek_timeline_summary_opts *opts);

/* Saves the timeline as a Chrome trace in the JSON object format. The processes of the trace are the ranks, and times are
 * microseconds since the first entry. It writes a temporary file next to `path` and renames it.
 * Errors: IO, MEMORY; an earlier file at `path` then stays. */
TREK_API trek_status trek_timeline_save(trek_timeline *timeline, const char *path);

TREK_END

#endif
