/* SPDX-License-Identifier: Apache-2.0 */
/* The progress's object, and the texts of its lines. */
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
    int64_t first_epoch;                 /* that it was told of; -1: none yet */
    int64_t epoch, batch;                /* the epoch that losses are summed for, and its batches that are done */
    double loss_sum;
    int64_t losses;
    int64_t mark_ns, mark_batch;         /* up to where speed has been measured */
    double batches_s, batches_n;         /* seconds and batches, those of late weighing more; 0: not measured */
    double overhead_s;                   /* of an epoch, beside its batches */
    int64_t overheads;
    trek_shown_rank *ranks;
    int n_ranks;
    /* What stands on the terminal. Under the lock of the screen. */
    char *block;                         /* its lines, "\n" between them; NULL: nothing */
    int lines, columns[2];
    struct trek_progress *next;          /* of all that rewrite lines */
};

/* An epoch, as its line tells of it. */
typedef struct trek_epoch_line {
    int64_t epoch;
    double loss;                         /* NaN: none, unless has_loss */
    bool has_loss;
    int n;
    const trek_epoch_scalar *metrics;
    double samples_per_s;                /* 0: not told */
    double seconds;
} trek_epoch_line;

/* The line (or two) while an epoch is under way, as wide as may be; columns of each; how many there are. */
int trek_progress_live(const trek_progress *progress, int64_t now, double loss, int width, trek_text *text, int columns[2]);
void trek_progress_epoch_text(const trek_progress *progress, int64_t now, const trek_epoch_line *line, trek_text *text);
/* Prints an epoch's line, and makes ready for the next epoch. */
void trek_progress_end_epoch(trek_progress *progress, const trek_epoch_line *line);
/* Seconds; NaN: not known. */
double trek_progress_remaining(const trek_progress *progress, int64_t epoch, int64_t batch, int64_t now);
/* "9.5", "812", "12.4k", "1.3M"; buffer: at least 40 bytes; returned. */
char *trek_speed_text(double speed, char *buffer);
/* Whether this is process 0 of its job, or of none. */
bool trek_progress_is_first(void);

/* Tests: another clock, from which the progress begins. */
void trek_progress_set_clock(trek_progress *progress, int64_t (*clock)(void));

#endif
