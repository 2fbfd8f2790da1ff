/* SPDX-License-Identifier: Apache-2.0 */
/* Watched runs: a monitor writes the course of a training to a file, in lines that other programs read while it continues
 * (monitor/README.md).
 *
 *     trek_monitor *monitor = trek_monitor_new(&(trek_monitor_opts){ .folder = "runs", .epochs = 5 });
 *     trek_monitor_attach(monitor, graph);
 *     ... training ...
 *     trek_monitor_free(&monitor);
 *
 * With TREK_LOG_DIR=FOLDER in the environment a program is watched without any call: its first graph that makes a step, or the
 * graph of trek_trainer_run. (A program that is linked with libtrek.a has this if it calls a function of this header.)
 *
 * An attached graph is recorded without further calls:
 * - its drawing, with time and memory of its nodes
 * - loss, learning rate, norm of the gradients (if they are clipped) and samples per second, a few times per second
 * - the points of trek_graph_flush, or the metrics of an epoch of trek_trainer_run, and the progress
 * - every second what each rank does
 * - every other second memory, load, temperature and power, if the system gives them; for GPUs also utilization and whether
 *   their clocks are reduced (by libnvidia-ml, which is opened then)
 * - trek's log messages
 *
 * If something cannot be written, the log gets one warning, but the training gets no error. Nothing is kept in memory. Any
 * thread may call the functions, except trek_monitor_free. In a child of fork nothing is written. */
#ifndef TREK_MONITOR_MONITOR_H
#define TREK_MONITOR_MONITOR_H

#include "distributed/run.h"
#include "graph/graph.h"
#include "tensor/log.h"

TREK_BEGIN

/* A monitor. */
typedef struct trek_monitor trek_monitor;

/* Options of a monitor. */
typedef struct trek_monitor_opts {
    const char *folder; /* the folder of runs, created if needed; default: TREK_LOG_DIR, otherwise "runs" */
    /* The name of the run and its folder, of A-Z a-z 0-9 . _ - (others become _). Default: TREK_RUN_NAME, otherwise
     * PROGRAM-YYYYMMDD-HHMMSS, for several processes PROGRAM-job-NUMBER (Slurm's number or the launcher's process). */
    const char *name;
    int64_t epochs;     /* how many epochs will be trained; 0: not known (trek_trainer_run sets its own) */
    /* Also writes TensorBoard's event file for `tensorboard --logdir FOLDER`; monitor/export.h describes it, and what it needs.
     * TREK_TENSORBOARD=1 in the environment does this, too. Default false. */
    bool tensorboard;
    double interval_s;  /* least seconds between two points of a curve; TREK_ZERO: every step; default 0.25 */
    /* At most one of this number of steps is measured for the times and memory of the graph, and the third to the fifth step
     * always; default 128. TREK_OFF: none. */
    int profile_every;
} trek_monitor_opts;

/* Returns a new monitor. It creates the folder and this process's file in it, process-K.jsonl, or appends to an existing file.
 * `opts` may be NULL. The caller frees it with trek_monitor_free. A folder that cannot be created is only a warning in the
 * log.
 * Errors: ARGUMENT if the environment describes this process wrongly or the interval is negative. STATE if 16 monitors exist,
 * or in a child of fork. MEMORY. NULL is returned. */
TREK_API trek_monitor *trek_monitor_new(const trek_monitor_opts *opts);
/* Writes how the run has ended, frees the monitor and sets *monitor to NULL. The run has failed if a run of trek_trainer_run
 * has failed or the calling thread has an error. NULL is allowed. */
TREK_API void trek_monitor_free(trek_monitor **monitor);
/* Returns the path of the run's folder, borrowed. */
TREK_API const char *trek_monitor_path(const trek_monitor *monitor);

/* Attaches the graph: it is recorded from now on, instead of an earlier one. NULL detaches. The graph may be freed before the
 * monitor. */
TREK_API trek_status trek_monitor_attach(trek_monitor *monitor, trek_graph *graph);

/* --- records of the program. Names and texts are UTF-8; other bytes become "?". A step below 0 stands for the step of the
 * attached graph.
 * Errors: ARGUMENT if a pointer is NULL or a name is empty. */

/* Adds a point to a curve. The value may be any number, also NaN and infinite. */
TREK_API trek_status trek_monitor_scalar(trek_monitor *monitor, const char *name, int64_t step, double value);
/* Adds a point of one step to each of n curves. */
TREK_API trek_status trek_monitor_scalars(trek_monitor *monitor, int64_t step, const char *const *names, const double *values,
                                          int n);
/* Records a histogram of a tensor's elements: 64 bins of equal width from the smallest to the largest finite value, with their
 * mean and standard deviation (of the population). The tensor may have any shape, dtype and device. It synchronises with the
 * device. */
TREK_API trek_status trek_monitor_histogram(trek_monitor *monitor, const char *name, int64_t step, const trek_tensor *values);
/* Records histograms of all parameters of a module and of their gradients, if they have some. */
TREK_API trek_status trek_monitor_histograms(trek_monitor *monitor, int64_t step, trek_module *module);
/* Records an image as PNG. It synchronises with the device.
 * - Shapes: [height, width], [channels, height, width], or [n, channels, height, width]. The last is a grid, filled row by
 *   row, with as many columns as rows or one more. Two black (with 4 channels transparent) pixels separate its images.
 * - Channels: 1 grey, 3 RGB, 4 RGB and alpha.
 * - Dtypes: u8 from 0 to 255, bool, or floating from 0 to 1. Numbers outside are clipped, and NaN is 0. Strides may be any.
 * - Errors: ARGUMENT. SHAPE and DTYPE for other tensors, SHAPE for more than 2^26 pixels. UNSUPPORTED without libpng, which is
 *   opened at the first image. MEMORY. */
TREK_API trek_status trek_monitor_image(trek_monitor *monitor, const char *name, int64_t step, const trek_tensor *image);
/* Records a text under a name. */
TREK_API trek_status trek_monitor_text(trek_monitor *monitor, const char *name, int64_t step, const char *text);
/* Records a graph: its drawing (trek_graph_svg), its nodes with the shapes of their results, parameters, times and memory, and
 * its edges (monitor/README.md). The attached graph is recorded at its first step, again when some steps have been measured
 * (docs/watching.md says when), and at the end. Another graph has no times and memory. */
TREK_API trek_status trek_monitor_graph(trek_monitor *monitor, trek_graph *graph);
/* Records the metrics of an epoch. A run that is attached by TREK_LOG_DIR or trek_monitor_attach needs no call. */
TREK_API trek_status trek_monitor_epoch(trek_monitor *monitor, const trek_epoch_metrics *metrics);
/* Records an event, such as "checkpoint" with the text "written runs/3.safetensors". */
TREK_API trek_status trek_monitor_event(trek_monitor *monitor, const char *name, const char *text);
/* Records a line of the log. trek's own messages of TREK_LOG_LEVEL_INFO and more severe levels need no call. */
TREK_API trek_status trek_monitor_log(trek_monitor *monitor, trek_log_level level, const char *text);

TREK_END

#endif
