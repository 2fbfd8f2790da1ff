/* SPDX-License-Identifier: Apache-2.0 */
/* Progress line: how far training is, the loss, how fast it goes, and how long it will take.
 * On a terminal a line that is rewritten at most 10 times a second, with a second one for the ranks where they are told of:
 *
 *     epoch 2/5 |██████▌       |   46%  184/400  loss 0.3127  12.4k samples/s  41.2s  ETA 1m 32s
 *     ranks  0 31% 3.9k/s  1 23% 2.8k/s  2 23% 2.9k/s waiting  3 23% 2.8k/s
 *
 * Elsewhere, and on a terminal with TERM=dumb, one line an epoch. The bar is of blocks where the locale (LC_ALL, LC_CTYPE, LANG)
 * has UTF-8, else of ASCII. Colours on terminals alone: NO_COLOR forbids them, CLICOLOR_FORCE and FORCE_COLOR demand them. A
 * terminal that is made narrower or wider is followed; what does not fit is left out. Messages of trek's log appear above the
 * line. In a job of several processes only process 0 prints. For one thread. */
#ifndef TREK_MONITOR_PROGRESS_H
#define TREK_MONITOR_PROGRESS_H

#include "distributed/run.h"

TREK_BEGIN

typedef struct trek_progress trek_progress;

typedef struct trek_progress_opts {
    int64_t epochs;      /* at least 1 */
    int64_t batches;     /* of an epoch; 0: not known */
    void *stream;        /* a FILE *; default stderr. Stays the caller's */
    int terminal;        /* default: ask the stream; 1: as on a terminal, TREK_OFF: never */
    int64_t batch_size;  /* samples of a batch, of all ranks together: speed is told in samples/s; 0: in batches/s */
    int width;           /* columns; default: ask the terminal, each time */
    int colour;          /* default: as said above; 1: yes, TREK_OFF: no */
    bool all_processes;  /* other processes than 0 print, too */
    const char *unit;    /* what an epoch is called, which lasts; default "epoch" */
} trek_progress_opts;

/* NULL and ARGUMENT or MEMORY. */
TREK_API trek_progress *trek_progress_new(int64_t epochs, int64_t batches);
TREK_API trek_progress *trek_progress_new_with(const trek_progress_opts *opts);
/* `batch` batches of epoch `epoch` (counted from 0) are done; loss: of the last
 * one (NaN: not shown). A NULL progress: nothing, as below. */
TREK_API void trek_progress_update(trek_progress *progress, int64_t epoch, int64_t batch, double loss);
/* The epoch is done: prints its line, with the mean of its losses and `metric`
 * under its name (NULL: none). */
TREK_API void trek_progress_epoch(trek_progress *progress, int64_t epoch, const char *name, double metric);

/* A rank, as the second line shows it. */
typedef struct trek_progress_rank {
    int64_t rank;
    double share;          /* of the samples, 0 to 1; NaN: not shown */
    double samples_per_s;  /* NaN: not shown */
    const char *state;     /* "computing" (not shown), "waiting", "reducing", "idle", "lost", ...; NULL: not known. Copied */
} trek_progress_rank;
/* What the ranks do: shown from the next update on. Ranks that do not fit into the line are summed up: shares and speeds from the
 * smallest to the largest, the slowest by its number, and how many are in which state. n 0: no second line. ARGUMENT, MEMORY. */
TREK_API trek_status trek_progress_ranks(trek_progress *progress, int n, const trek_progress_rank *ranks);

/* A line above the progress, as by fprintf to its stream, with a line's end added. */
TREK_API void trek_progress_print(trek_progress *progress, const char *format, ...) TREK_PRINTF(2, 3);

/* Seconds that the rest will take when `batch` batches of epoch `epoch` are done: by the speed of late (of about the last 20 s)
 * of batches, and the time that ends of epochs took (evaluation). Before batches have been told of, and without opts.batches,
 * by the time since it was made, or the first epoch that it was told of, and how much of the epochs is done. NaN where nothing is
 * done, or for a NULL progress. */
TREK_API double trek_progress_eta(const trek_progress *progress, int64_t epoch, int64_t batch);
/* Ends the line and frees. */
TREK_API void trek_progress_free(trek_progress **progress);

/* For runs: a trek_metrics_fn whose arg is a trek_progress. Prints the epoch's line with loss, evaluation_loss, recorded scalars
 * and speed, and tells of the ranks. Where .arg is another's, one's own .on_metrics calls it. NULL for progress: process 0 prints
 * the line to stderr, without how many epochs there are. Always OK:
 *
 *     trek_fit(model, &(trek_run_opts){ ..., .on_metrics = trek_progress_metrics, .arg = progress }); */
TREK_API trek_status trek_progress_metrics(const trek_epoch_metrics *metrics, void *progress);

/* Shows a run until it has ended, in place of a loop of trek_run_next; trek_run_join then tells how it went:
 *
 *     trek_run *run = trek_trainer_run(&opts);
 *     trek_progress_follow(run, NULL);
 *     trek_state *trained = trek_run_join(run);
 *
 * opts: of what is printed (NULL: the default); .epochs and .batches are the run's. ARGUMENT for a NULL run; MEMORY, where
 * nothing is shown and the run goes on. */
TREK_API trek_status trek_progress_follow(trek_run *run, const trek_progress_opts *opts);

/* Writes e.g. "420ms", "1.2s", "4m 32s", "3h 12m" to text (at least 32 bytes); returns text. */
TREK_API char *trek_duration_text(double seconds, char *text);

TREK_END

#endif
