/* SPDX-License-Identifier: Apache-2.0 */
/* The progress object, and the texts of its lines. */
#ifndef TREK_MONITOR_PROGRESS_INTERNAL_H
#define TREK_MONITOR_PROGRESS_INTERNAL_H

#include <stdio.h>

#include "monitor/progress.h"
#include "monitor/terminal.h"
#include "nn/text.h"

/* A rank of which a copy is kept. */
typedef struct trek_shown_rank {
    int64_t rank;
    double share, samples_per_s;
    char state[16];
} trek_shown_rank;

struct trek_progress {
    trek_progress_opts opts;
    FILE *stream;
    bool quiet, terminal, colour;
    trek_charset charset;
    int64_t (*clock)(void);              /* nanoseconds */
    int64_t start_ns, epoch_start_ns, shown_ns, updated_ns;
    int64_t first_epoch;                 /* that was reported to it; -1 if there is none yet */
    int64_t epoch, batch;                /* the epoch whose losses are summed, and its finished batches */
    double loss_sum;
    int64_t losses;
    int64_t mark_ns, mark_batch;         /* the point up to which speed has been measured */
    double batches_s, batches_n;         /* seconds and batches, recent ones weighing more; 0 if not measured */
    double overhead_s;                   /* of an epoch, outside its batches */
    int64_t overheads;
    trek_shown_rank *ranks;
    int n_ranks;
    /* What is shown on the terminal. Guarded by the lock of the screen. */
    char *block;                         /* its lines, separated by "\n"; NULL for nothing */
    int lines, columns[2];
    struct trek_progress *next;          /* the list of all that rewrite lines */
};

/* An epoch, as its line describes it. */
typedef struct trek_epoch_line {
    int64_t epoch;
    double loss;                         /* NaN if there is none, unless has_loss */
    bool has_loss;
    int n;
    const trek_epoch_scalar *metrics;
    double samples_per_s;                /* 0 if unknown */
    double seconds;
} trek_epoch_line;

/* Writes the line (or two) of an epoch in progress, at most `width` wide, and the columns of each. Returns the number
 * of lines. */
int trek_progress_live(const trek_progress *progress, int64_t now, double loss, int width, trek_text *text, int columns[2]);
void trek_progress_epoch_text(const trek_progress *progress, int64_t now, const trek_epoch_line *line, trek_text *text);
/* Prints an epoch's line, and prepares for the next epoch. */
void trek_progress_end_epoch(trek_progress *progress, const trek_epoch_line *line);
/* Returns seconds, or NaN if unknown. */
double trek_progress_remaining(const trek_progress *progress, int64_t epoch, int64_t batch, int64_t now);
/* Writes "9.5", "812", "12.4k", "1.3M". `buffer` has at least 40 bytes and is returned. */
char *trek_speed_text(double speed, char *buffer);
/* Returns whether this is process 0 of its job, or belongs to no job. */
bool trek_progress_is_first(void);

/* For tests: sets another clock, from which the progress begins. */
void trek_progress_set_clock(trek_progress *progress, int64_t (*clock)(void));

#endif
