/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at a run without waiting for it, and what it has left. */
#ifndef TREK_DISTRIBUTED_RUN_PROGRESS_H
#define TREK_DISTRIBUTED_RUN_PROGRESS_H

#include "distributed/run.h"
#include "nn/state.h"

TREK_BEGIN

/* Returns the values of a metric that is not one number (a confusion, the F1 of each class): f64 on the CPU, borrowed like the
 * rest of the metrics. Returns NULL without an error if the epoch has no such metric. */
TREK_API const trek_tensor *trek_metrics_values(const trek_epoch_metrics *metrics, const char *name);
/* Asks the run to stop after its current step, on all processes. Any thread of any process may call it. The last epoch is then
 * incomplete and has no metrics of what was trained since the last ones. After the last step of an epoch, the epoch ends first,
 * with its evaluation. */
TREK_API void trek_run_stop(trek_run *run);
/* Writes the metrics of the next epoch to *metrics and returns true if it has ended, otherwise returns false. It does not
 * wait. */
TREK_API bool trek_run_poll(trek_run *run, trek_epoch_metrics *metrics);

/* The progress of a run: trek_run_look. */
typedef struct trek_run_progress {
    bool running;         /* true until the run has ended */
    int64_t epoch;        /* number of the current epoch, from 0 */
    int64_t epochs;       /* number of all epochs; 0 if only .max_steps is given */
    int64_t batch;        /* how many batches of the epoch are finished */
    int64_t batches;      /* number of all batches of the epoch; -1 for a stream */
    int64_t samples;      /* samples that were trained since the run began */
    double samples_per_s; /* samples per second since the epoch began */
    double loss;          /* mean loss of the last step on this process; NaN if it is not available (also on a GPU) */
    int64_t steps;        /* steps that the run has made, with those before it was resumed */
    int64_t max_steps;    /* the step at which it ends; 0: when its epochs have ended */
} trek_run_progress;

/* Writes the progress of the run to *progress. It does not wait. */
TREK_API trek_status trek_run_look(trek_run *run, trek_run_progress *progress);
/* Loads the best epoch that a run has kept (.keep_best) from FOLDER/best.safetensors to a module, as trek_state_load does.
 * Errors: IO if the file does not exist. Otherwise as trek_state_load. */
TREK_API trek_status trek_run_load_best(trek_module *model, const char *folder);

TREK_END

#endif
