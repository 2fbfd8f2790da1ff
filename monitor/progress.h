/* SPDX-License-Identifier: Apache-2.0 */
/* Progress line: how far training is, the loss, and how long it will take.
 * On a terminal one line that is rewritten at most 10 times a second; elsewhere
 * one line an epoch. For one thread. */
#ifndef TREK_MONITOR_PROGRESS_H
#define TREK_MONITOR_PROGRESS_H

#include "tensor/status.h"

TREK_BEGIN

typedef struct trek_progress trek_progress;

typedef struct trek_progress_opts {
    int64_t epochs;   /* at least 1 */
    int64_t batches;  /* of an epoch; 0: not known */
    void *stream;     /* a FILE *; default stderr. Stays the caller's */
    int terminal;     /* default: ask the stream; 1: as on a terminal, TREK_OFF: never */
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
/* Ends the line and frees. */
TREK_API void trek_progress_free(trek_progress **progress);

/* Writes e.g. "420ms", "1.2s", "4m 32s", "3h 12m" to text (at least 32 bytes); returns text. */
TREK_API char *trek_duration_text(double seconds, char *text);

TREK_END

#endif
