/* SPDX-License-Identifier: Apache-2.0 */
/* The progress line shows how far training is, the loss, the speed and the remaining time. On a terminal it is a line that is
 * rewritten at most 10 times per second. If ranks are reported, a second line shows them:
 *
 *     epoch 2/5 |██████▌       |   46%  184/400  loss 0.3127  12.4k samples/s  41.2s  ETA 1m 32s
 *     ranks  0 31% 3.9k/s  1 23% 2.8k/s  2 23% 2.9k/s waiting  3 23% 2.8k/s
 *
 * Otherwise, and on a terminal with TERM=dumb, it is one line for each epoch. The bar consists of blocks if the locale
 * (LC_ALL, LC_CTYPE, LANG) has UTF-8, otherwise of ASCII. Only terminals get colours. NO_COLOR forbids them, CLICOLOR_FORCE
 * and FORCE_COLOR force them. The line follows a change of the terminal's width, and what does not fit is left out. Messages
 * of trek's log are printed above the line. In a job of several processes only process 0 prints. A progress line may be used
 * by one thread only. */
#ifndef TREK_MONITOR_PROGRESS_H
#define TREK_MONITOR_PROGRESS_H

#include <stdio.h>

#include "distributed/run.h"

TREK_BEGIN

/* A progress line. In the functions below NULL is allowed and does nothing. */
typedef struct trek_progress trek_progress;

/* Options of a progress line. */
typedef struct trek_progress_opts {
    int64_t epochs;     /* number of epochs, at least 1; required */
    int64_t batches;    /* number of batches of an epoch; default 0: not known */
    FILE *stream;       /* where the line is written; the caller closes it; default stderr */
    int terminal;       /* 1: treat the stream as a terminal, TREK_OFF: never; default: find out */
    int64_t batch_size; /* samples of a batch of all ranks, for a speed in samples/s; default 0: batches/s */
    int width;          /* number of columns; default: that of the terminal, asked each time */
    int colour;         /* 1: colours, TREK_OFF: no colours; default: as described above */
    bool all_processes; /* other processes than 0 print, too; default false */
    const char *unit;   /* the word for an epoch, a string that stays valid; default "epoch" */
} trek_progress_opts;

/* Returns a new progress line on stderr with default options. The caller frees it. Errors: ARGUMENT, MEMORY; NULL is returned. */
TREK_API trek_progress *trek_progress_new(int64_t epochs, int64_t batches);
/* Returns a new progress line. The caller frees it. Errors: ARGUMENT, MEMORY; NULL is returned. */
TREK_API trek_progress *trek_progress_new_with(const trek_progress_opts *opts);
/* Shows that `batch` batches of epoch `epoch`, counted from 0, are finished. `loss` is that of the last batch; NaN is not
 * shown. */
TREK_API void trek_progress_update(trek_progress *progress, int64_t epoch, int64_t batch, double loss);
/* Prints the line of an epoch that has ended, with the mean of its losses and a metric with its name. NULL for `name` means no
 * metric. */
TREK_API void trek_progress_epoch(trek_progress *progress, int64_t epoch, const char *name, double metric);

/* A rank in the second line. */
typedef struct trek_progress_rank {
    int64_t rank;         /* the number of the rank */
    double share;         /* its part of the samples, 0 to 1; NaN is not shown */
    double samples_per_s; /* its speed; NaN is not shown */
    const char *state;    /* "computing" (not shown), "waiting", "reducing", "idle", "lost", ...; NULL: not known; copied */
} trek_progress_rank;
/* Sets the ranks that are shown from the next update on. Ranks that do not fit in the line are summarised: smallest and
 * largest share and speed, the number of the slowest, and how many are in each state. n = 0 removes the second line.
 * Errors: ARGUMENT, MEMORY. */
TREK_API trek_status trek_progress_ranks(trek_progress *progress, const trek_progress_rank *ranks, int n);

/* Prints a line above the progress line, as fprintf does to its stream, and ends the line. */
TREK_API void trek_progress_print(trek_progress *progress, const char *format, ...) TREK_PRINTF(2, 3);

/* Returns the estimated remaining seconds when `batch` batches of epoch `epoch` are finished. The estimate uses the recent
 * speed of batches (of about the last 20 s) and the time that ends of epochs took (evaluation). Before batches are reported,
 * and without opts.batches, it uses the time since the line was made, or since the first reported epoch, and the part of the
 * epochs that is finished. Returns NaN if nothing is finished or `progress` is NULL. */
TREK_API double trek_progress_eta(const trek_progress *progress, int64_t epoch, int64_t batch);
/* Ends the line, frees it and sets *progress to NULL. */
TREK_API void trek_progress_free(trek_progress **progress);

/* Prints the line of an epoch of a run, with loss, evaluation_loss, recorded scalars and speed, and shows the ranks. It is a
 * trek_metrics_fn whose `arg` is a trek_progress. If .arg of the run is something else, call this function
 * from an .on_metrics of your own. If `progress` is NULL, process 0 prints the line to stderr, without the number of epochs. It
 * always returns TREK_OK.
 *
 *     trek_fit(model, &(trek_run_opts){ ..., .on_metrics = trek_progress_metrics, .arg = progress }); */
TREK_API trek_status trek_progress_metrics(const trek_epoch_metrics *metrics, void *progress);

/* Shows the progress of a run until the run has ended, instead of a loop of trek_run_next. trek_run_join then returns the
 * result:
 *
 *     trek_run *run = trek_trainer_run(&opts);
 *     trek_progress_follow(run, NULL);
 *     trek_state *trained = trek_run_join(run);
 *
 * `opts` are those of the progress line (NULL: the default); .epochs and .batches are set by the run.
 * Errors: ARGUMENT if `run` is NULL. MEMORY; nothing is shown then, and the run continues. */
TREK_API trek_status trek_progress_follow(trek_run *run, const trek_progress_opts *opts);

/* The number of bytes that holds the text of any duration. */
#define TREK_DURATION_TEXT 32
/* Writes a duration, such as "420ms", "1.2s", "4m 32s" or "3h 12m", to `text` and returns `text`. What does not fit into
 * `capacity` bytes, the ending zero included, is cut off; TREK_DURATION_TEXT bytes are enough. */
TREK_API char *trek_duration_format(double seconds, char *text, size_t capacity);

TREK_END

#endif
