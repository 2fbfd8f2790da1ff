/* SPDX-License-Identifier: Apache-2.0 */
/* One line of a watched run's file, read. The kinds and their fields: monitor/README.md. Internal. */
#ifndef TREK_MONITOR_RUN_RECORD_H
#define TREK_MONITOR_RUN_RECORD_H

#include "tensor/status.h"

typedef enum trek_run_kind {
    TREK_RUN_OTHER,          /* of a later version: passed over */
    TREK_RUN_RUN,
    TREK_RUN_SCALARS,
    TREK_RUN_PROGRESS,
    TREK_RUN_RANKS,
    TREK_RUN_SYSTEM,
    TREK_RUN_HISTOGRAM,
    TREK_RUN_TEXT,
    TREK_RUN_IMAGE,
    TREK_RUN_GRAPH,
    TREK_RUN_LOG,
    TREK_RUN_EVENT,
    TREK_RUN_END
} trek_run_kind;

typedef struct trek_run_value {
    char *name;
    double value;
} trek_run_value;

typedef struct trek_run_rank {
    int64_t rank;
    int process;                     /* whose file told of it */
    double time;                     /* when it was told of last */
    char *device, *name;             /* of "run"; may be NULL */
    double computing_s, waiting_s, reducing_s, interval_s, share, samples_per_s; /* of "ranks"; NaN: not told */
    int64_t samples, steps;
    char *state;                     /* computing, waiting, reducing, idle, lost; NULL: not told */
} trek_run_rank;

typedef struct trek_run_device {
    char *device;
    double memory_bytes, memory_total_bytes, temperature_c, power_w, utilization_percent; /* NaN: the system does not tell */
    char *throttled;                 /* no, power, heat, hardware; NULL: not told */
} trek_run_device;

/* A node of a graph; figures are for a step. */
typedef struct trek_run_node {
    char *name;
    char *kind, *op, *details, *shape; /* kind: input, output, module, group, merge; shape: "f32[64, 10]"; NULL: not told */
    int64_t parameters;              /* -1: none of its kind */
    double calls, time_ms, forward_ms, backward_ms, mult_adds, bytes, output_bytes; /* NaN: not measured */
} trek_run_node;

typedef struct trek_run_link {
    char *from, *to, *label;         /* names of nodes; label: of the input, "state", or NULL */
    int64_t port;
} trek_run_link;

/* What a line says. Numbers that it lacks are NaN, -1 for whole ones; strings NULL. */
typedef struct trek_run_record {
    trek_run_kind kind;
    double time;
    int process;                     /* the file's */
    int64_t step, epoch;
    char *at;                        /* "epoch": a point of an epoch's end */
    char *name, *text;
    /* run */
    char *run, *program, *host, *trek;
    int64_t version, pid, process_number, processes, parameters;
    double started;
    char **arguments;
    int n_arguments;
    /* scalars */
    trek_run_value *values;
    int n_values;
    /* progress */
    int64_t epochs, batch, batches;
    double eta_s, seconds;
    /* run, ranks */
    trek_run_rank *ranks;
    int n_ranks;
    int64_t anchor, window;
    bool windows;
    double drift;
    /* system */
    double memory_bytes, memory_peak_bytes, cpu_percent, temperature_c, power_w;
    trek_run_value *trek_bytes;      /* by device */
    int n_trek_bytes;
    trek_run_device *devices;
    int n_devices;
    /* histogram: n_counts + 1 edges */
    char *of;
    double *edges, *counts;
    int n_edges, n_counts;
    double min, max, mean, std;
    int64_t nonfinite;
    /* image */
    int64_t width, height;
    char *png;                       /* base64 */
    /* graph */
    char *svg;
    trek_run_node *nodes;
    int n_nodes;
    trek_run_link *links;
    int n_links;
    int64_t steps;                   /* that were measured */
    /* log, end */
    char *level, *status, *error;
    int64_t rank;
} trek_run_record;

/* Reads a line, without its end. ERR_FORMAT: it is no record; MEMORY. On failure there is nothing to clear. */
trek_status trek_run_record_read(trek_run_record *record, const char *line, size_t length);
void trek_run_record_clear(trek_run_record *record);

#endif
