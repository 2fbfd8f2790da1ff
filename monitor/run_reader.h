/* SPDX-License-Identifier: Apache-2.0 */
/* Reads watched runs: lists those of a folder, and follows the files of one. It opens nothing for writing, sees whole lines
 * only, and passes over what it does not know; so it may look while processes write, after they have ended or died. Memory is
 * bounded: of curves that are long every second point goes, of messages the oldest. Internal. */
#ifndef TREK_MONITOR_RUN_READER_H
#define TREK_MONITOR_RUN_READER_H

#include "monitor/run_record.h"

typedef enum trek_run_status {
    TREK_RUN_UNKNOWN,  /* nothing is there yet */
    TREK_RUN_RUNNING,
    TREK_RUN_DONE,
    TREK_RUN_FAILED,
    TREK_RUN_STOPPED,
    TREK_RUN_DIED,     /* its process is gone and has not said so */
    TREK_RUN_SILENT    /* on another machine, and nothing has come for 30 s */
} trek_run_status;
/* "unknown", "running", "done", "failed", "stopped", "died", "silent". */
const char *trek_run_status_text(trek_run_status status);

typedef struct trek_run_point {
    double time;
    int64_t step, epoch;             /* -1: not told */
    double value;
} trek_run_point;

/* A curve, oldest point first. */
typedef struct trek_run_series {
    char *name;
    bool at_epoch;                   /* of epochs' ends; one name may have both */
    trek_run_point *points;
    int count, capacity;
    int64_t seen, every;             /* all points that there were; of which each so many-th is kept (and the last) */
} trek_run_series;

/* What one process's file tells. */
typedef struct trek_run_process {
    int process;
    char *host;
    int64_t pid;
    double started, heard;           /* seconds since the epoch; heard: its last record's time */
    bool ended;
    trek_run_status status;          /* as of the last poll */
    char *error;
    double memory_bytes, memory_peak_bytes, cpu_percent, temperature_c, power_w; /* NaN: not told */
    trek_run_device *devices;
    int n_devices;
    trek_run_value *trek_bytes;
    int n_trek_bytes;
} trek_run_process;

/* A log line, an event, or a text. */
typedef struct trek_run_note {
    double time;
    int process;
    int64_t rank, step;              /* -1: not told */
    trek_run_kind kind;              /* LOG, EVENT or TEXT */
    char *name;                      /* of events and texts; of log lines the level */
    char *text;
} trek_run_note;

/* Where a run stands. Owned by the reader; valid until its next poll, feed or free. */
typedef struct trek_run_state {
    char *run, *program, *trek;      /* NULL: not told yet */
    char **arguments;
    int n_arguments;
    double started, heard;
    int64_t epochs, parameters;      /* -1: not told */
    trek_run_status status;
    const char *error;               /* of the process that has one; NULL: none */
    trek_run_process *processes;     /* in the order of their numbers */
    int n_processes;
    trek_run_rank *ranks;            /* in the order of their numbers */
    int n_ranks;
    int64_t anchor, window;
    bool windows;
    double drift;
    int64_t epoch, batch, batches, step; /* progress; -1: not told */
    double eta_s, seconds;
    trek_run_series *series;
    int n_series;
    trek_run_note *notes;            /* the last ones, oldest first */
    int n_notes;
    trek_run_record *histograms;     /* the last one of each name and "of" */
    int n_histograms;
    trek_run_record *images;         /* the last one of each name */
    int n_images;
    trek_run_record *graph;          /* the last one; NULL: none */
    int64_t lines, bad_lines;        /* whole ones; those that were no records */
} trek_run_state;

typedef struct trek_run_reader_opts {
    int most_points;                 /* of a curve; default 4096, at least 16; TREK_OFF: all */
    int most_notes;                  /* default 1000 */
    /* Called with each record, before it is taken in; may be NULL. Any status but OK ends the poll with it. */
    trek_status (*on_record)(const trek_run_record *record, void *arg);
    void *arg;
} trek_run_reader_opts;

typedef struct trek_run_reader trek_run_reader;
/* path: the run's folder, FOLDER/RUN, which need not be there yet. opts may be NULL. NULL: MEMORY, ARGUMENT. Used by one
 * thread at a time. */
trek_run_reader *trek_run_reader_new(const char *path, const trek_run_reader_opts *opts);
/* Reads what is new, at most some megabytes a file and call (*more, if given: there is more at once). A file or folder that is
 * not there is no error, nor is a line that is no record; links are not followed; IO: one cannot be read. */
trek_status trek_run_reader_poll(trek_run_reader *reader, bool *more);
/* The same of a folder that is open, wherever the reader's path leads by now. */
trek_status trek_run_reader_poll_in(trek_run_reader *reader, int folder, bool *more);
/* Polls until all that is there has been read. */
trek_status trek_run_reader_catch_up(trek_run_reader *reader);
const trek_run_state *trek_run_reader_state(const trek_run_reader *reader);
/* The curve; NULL: there is none. */
const trek_run_series *trek_run_reader_series(const trek_run_reader *reader, const char *name, bool at_epoch);
/* Bytes of a process's file, as a poll reads them: any part of lines. */
trek_status trek_run_reader_feed(trek_run_reader *reader, int process, const char *bytes, size_t count);
void trek_run_reader_free(trek_run_reader **reader); /* NULL: nothing */

/* A run of a folder. */
typedef struct trek_run_entry {
    char *name, *path;
    double modified;                 /* the newest of its files, seconds since the epoch */
    int files;
} trek_run_entry;
/* The runs of a folder, the one that was written to last first; n 0 and NULL: there are none. A folder that holds the files of
 * one run itself is that run. IO: it cannot be read, or is not there; MEMORY. */
trek_status trek_runs_list(const char *folder, trek_run_entry **runs, int *n);
void trek_runs_free(trek_run_entry **runs, int n);

#endif
