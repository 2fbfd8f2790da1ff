/* SPDX-License-Identifier: Apache-2.0 */
/* Reads watched runs: lists those of a folder, and follows the files of one. It opens nothing for writing, sees only
 * whole lines and skips what it does not know, so it may read while processes write, and after they have ended or
 * died. Memory is bounded: long curves lose every second point, and the oldest messages are dropped. */
#ifndef TREK_MONITOR_RUN_READER_H
#define TREK_MONITOR_RUN_READER_H

#include "monitor/viewer/run_record.h"

typedef enum trek_run_status {
    TREK_RUN_UNKNOWN,  /* there is nothing yet */
    TREK_RUN_RUNNING,
    TREK_RUN_DONE,
    TREK_RUN_FAILED,
    TREK_RUN_STOPPED,
    TREK_RUN_DIED,     /* its process is gone without having reported an end */
    TREK_RUN_SILENT    /* on another machine, and silent for 30 s */
} trek_run_status;
/* Returns "unknown", "running", "done", "failed", "stopped", "died" or "silent". */
const char *trek_run_status_text(trek_run_status status);

typedef struct trek_run_point {
    double time;
    int64_t step, epoch;             /* -1 if unknown */
    double value;
} trek_run_point;

/* A curve, oldest point first. */
typedef struct trek_run_series {
    char *name;
    bool at_epoch;                   /* of the ends of epochs; one name may have both kinds */
    trek_run_point *points;
    int count, capacity;
    int64_t seen, every;             /* the number of points so far; one in `every` is kept (and the last) */
} trek_run_series;

/* The content of one process's file. */
typedef struct trek_run_process {
    int process;
    char *host;
    int64_t pid;
    double started, heard;           /* seconds since the Unix epoch; heard: its last record's time */
    bool ended;
    trek_run_status status;          /* as of the last poll */
    char *error;
    double memory_bytes, memory_peak_bytes, cpu_percent, temperature_c, power_w; /* NaN if unknown */
    trek_run_device *devices;
    int n_devices;
    trek_run_value *trek_bytes;
    int n_trek_bytes;
} trek_run_process;

/* A log line, an event, or a text. */
typedef struct trek_run_note {
    double time;
    int process;
    int64_t rank, step;              /* -1 if unknown */
    trek_run_kind kind;              /* LOG, EVENT or TEXT */
    char *name;                      /* of events and texts; of log lines the level */
    char *text;
} trek_run_note;

/* The state of a run. Owned by the reader, and valid until its next poll, feed or free. */
typedef struct trek_run_state {
    char *run, *program, *trek;      /* NULL if unknown so far */
    char **arguments;
    int n_arguments;
    double started, heard;
    int64_t epochs, parameters;      /* -1 if unknown */
    trek_run_status status;
    const char *error;               /* of the process that has one; NULL if there is none */
    trek_run_process *processes;     /* sorted by their numbers */
    int n_processes;
    trek_run_rank *ranks;            /* sorted by their numbers */
    int n_ranks;
    int64_t anchor, window;
    bool windows;
    double drift;
    int64_t epoch, batch, batches, step; /* progress; -1 if unknown */
    double eta_s, seconds;
    trek_run_series *series;
    int n_series;
    trek_run_note *notes;            /* the last ones, oldest first */
    int n_notes;
    trek_run_record *histograms;     /* the last one of each name and "of" */
    int n_histograms;
    trek_run_record *images;         /* the last one of each name */
    int n_images;
    trek_run_record *graph;          /* the last one; NULL if there is none */
    int64_t lines, bad_lines;        /* whole lines; those that were no records */
} trek_run_state;

typedef struct trek_run_reader_opts {
    int most_points;                 /* of a curve; default 4096, at least 16; TREK_OFF: all */
    int most_notes;                  /* default 1000 */
    /* Called with each record before it is taken in; may be NULL. Any status other than OK ends the poll with that
     * status. */
    trek_status (*on_record)(const trek_run_record *record, void *arg);
    void *arg;
} trek_run_reader_opts;

typedef struct trek_run_reader trek_run_reader;
/* `path` is the run's folder, FOLDER/RUN, which need not exist yet. `opts` may be NULL. Returns NULL with MEMORY or
 * ARGUMENT. A reader is used by one thread at a time. */
trek_run_reader *trek_run_reader_new(const char *path, const trek_run_reader_opts *opts);
/* Reads what is new, at most some megabytes for each file and call (*more, if given, says that there is more). A
 * missing file or folder is no error, nor is a line that is no record. Links are not followed. Fails with IO if a
 * file cannot be read. */
trek_status trek_run_reader_poll(trek_run_reader *reader, bool *more);
/* The same for an open folder, wherever the reader's path may lead by now. */
trek_status trek_run_reader_poll_in(trek_run_reader *reader, int folder, bool *more);
/* Polls until everything available has been read. */
trek_status trek_run_reader_catch_up(trek_run_reader *reader);
const trek_run_state *trek_run_reader_state(const trek_run_reader *reader);
/* Returns the curve, or NULL if there is none. */
const trek_run_series *trek_run_reader_series(const trek_run_reader *reader, const char *name, bool at_epoch);
/* Takes in bytes of a process's file, as a poll reads them; they may end anywhere in a line. */
trek_status trek_run_reader_feed(trek_run_reader *reader, int process, const char *bytes, size_t count);
void trek_run_reader_free(trek_run_reader **reader); /* NULL is allowed */

/* A run of a folder. */
typedef struct trek_run_entry {
    char *name, *path;
    double modified;                 /* of the newest of its files, in seconds since the Unix epoch */
    int files;
} trek_run_entry;
/* Lists the runs of a folder, the most recently written one first; n is 0 and the list NULL if there are none. A
 * folder that itself contains the files of a run is that run. Fails with IO if the folder cannot be read or does not
 * exist, or with MEMORY. */
trek_status trek_runs_list(const char *folder, trek_run_entry **runs, int *n);
void trek_runs_free(trek_run_entry **runs, int n);

#endif
