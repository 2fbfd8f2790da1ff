/* SPDX-License-Identifier: Apache-2.0 */
/* A parsed line of a watched run's file. monitor/README.md describes the kinds and their fields. */
#ifndef TREK_MONITOR_RUN_RECORD_H
#define TREK_MONITOR_RUN_RECORD_H

#include "tensor/status.h"

typedef enum trek_run_kind {
    TREK_RUN_OTHER,          /* from a later version: skipped */
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
    int process;                     /* the process whose file reported it */
    double time;                     /* when it was last reported */
    char *device, *name;             /* from "run"; may be NULL */
    double computing_s, waiting_s, reducing_s, interval_s, share, samples_per_s; /* from "ranks"; NaN if unknown */
    int64_t samples, steps;
    char *state;                     /* computing, waiting, reducing, idle, lost; NULL if unknown */
} trek_run_rank;

typedef struct trek_run_device {
    char *device;
    double memory_bytes, memory_total_bytes, temperature_c, power_w, utilization_percent; /* NaN if not reported */
    char *throttled;                 /* no, power, heat, hardware; NULL if unknown */
} trek_run_device;

/* A node of a graph; the figures are per step. */
typedef struct trek_run_node {
    char *name;
    char *kind, *op, *details, *shape; /* kind: input, output, module, group, merge; shape: "f32[64, 10]"; NULL if unknown */
    int64_t parameters;              /* -1 if it has none */
    double calls, time_ms, forward_ms, backward_ms, mult_adds, bytes, output_bytes; /* NaN if not measured */
} trek_run_node;

typedef struct trek_run_link {
    char *from, *to, *label;         /* names of nodes; label: of the input, "state", or NULL */
    int64_t port;
} trek_run_link;

/* The content of a line. Missing numbers are NaN, or -1 for whole ones; missing strings are NULL. */
typedef struct trek_run_record {
    trek_run_kind kind;
    double time;
    int process;                     /* the file's */
    int64_t step, epoch;
    char *at;                        /* "epoch": a point at an epoch's end */
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

/* Parses a line without its end. Fails with ERR_FORMAT if it is no record, or with MEMORY. After a failure there is
 * nothing to clear. */
trek_status trek_run_record_read(trek_run_record *record, const char *line, size_t length);
void trek_run_record_clear(trek_run_record *record);

#endif
