/* SPDX-License-Identifier: Apache-2.0 */
/* Watched runs: what a program trains is written down, in lines that other programs read while it goes on (monitor/README.md).
 *
 *     trek_monitor *monitor = trek_monitor_new(&(trek_monitor_opts){ .folder = "runs", .epochs = 5 });
 *     trek_monitor_attach(monitor, graph);
 *     ... training ...
 *     trek_monitor_free(&monitor);
 *
 * With TREK_LOG_DIR=FOLDER in the environment a program is watched without a line of code: the first of its graphs that makes a
 * step, or the graph of trek_trainer_run. (A program that is linked with libtrek.a has that if it calls a function of this
 * header.)
 *
 * An attached graph tells by itself: its picture, with time and memory of its nodes; loss, learning rate, norm of gradients
 * (where it is clipped), samples per second, a few times a second; the points of trek_graph_flush, or an epoch's metrics of
 * trek_trainer_run; progress; each second what each rank does; every other second memory, load, temperature and power as far as
 * the system tells, of GPUs also utilization and whether their clocks are held back (by libnvidia-ml, which is opened then);
 * trek's log messages. What cannot be written is one warning, and never an error of the training. Nothing is kept in memory. All
 * functions but free may be called from any thread. In a child of fork nothing is written. */
#ifndef TREK_MONITOR_MONITOR_H
#define TREK_MONITOR_MONITOR_H

#include "distributed/run.h"
#include "graph/graph.h"

TREK_BEGIN

typedef struct trek_monitor trek_monitor;

typedef struct trek_monitor_opts {
    const char *folder;              /* of runs, made if need be; default: TREK_LOG_DIR, else "runs" */
    const char *name;                /* of the run, its folder in that one, of A-Z a-z 0-9 . _ - (others become _). Default:
                                        TREK_RUN_NAME, else PROGRAM-YYYYMMDD-HHMMSS; of a job of several processes without
                                        either PROGRAM-job-NUMBER, by Slurm's number of the job or the launcher's process */
    int64_t epochs;                  /* that will be trained, for progress; 0: not known (trek_trainer_run tells its own) */
    bool tensorboard;                /* writes TensorBoard's event file beside its own, too (monitor/export.h says what of it is
                                        where); the environment's TREK_TENSORBOARD=1 does so. `tensorboard --logdir FOLDER` */
    double interval_s;               /* least time between two points of a curve; default 0.25; TREK_ZERO: every step */
    int profile_every;               /* one step in so many is measured for the graph's times and memory, at most (the third to
                                        the fifth are at once); default 128; TREK_OFF: none */
} trek_monitor_opts;

/* Makes the folder and this process's file in it, process-K.jsonl, or adds to the one that is there. opts may be NULL. NULL:
 * MEMORY, ARGUMENT (the environment says wrongly which process this is, an interval < 0), STATE (16 monitors are there; in a
 * child of fork). A folder that cannot be made is a warning. */
TREK_API trek_monitor *trek_monitor_new(const trek_monitor_opts *opts);
/* Writes how it ended: failed where a run did (trek_trainer_run), or this thread has an error, else done. NULL: nothing. */
TREK_API void trek_monitor_free(trek_monitor **monitor);
/* The run's folder, borrowed. */
TREK_API const char *trek_monitor_path(const trek_monitor *monitor);

/* Hears this graph from here on, in the place of the one before; NULL: none. It may be freed before the monitor. */
TREK_API trek_status trek_monitor_attach(trek_monitor *monitor, trek_graph *graph);

/* All that follow: names and texts in UTF-8 (other bytes become ?); step < 0: the attached graph's. ARGUMENT: a NULL, or an empty
 * name. A point of a curve; any number, NaN and infinite ones too. */
TREK_API trek_status trek_monitor_scalar(trek_monitor *monitor, const char *name, int64_t step, double value);
/* n of them, of one step. */
TREK_API trek_status trek_monitor_scalars(trek_monitor *monitor, int64_t step, const char *const *names, const double *values,
                                          int n);
/* Counts of a tensor's values in 64 bins of equal width from the least to the greatest finite one, with their mean and standard
 * deviation (of the population); any shape and dtype but complex, any device, which is waited for. */
TREK_API trek_status trek_monitor_histogram(trek_monitor *monitor, const char *name, int64_t step, const trek_tensor *values);
/* Of all parameters of a module, and of the gradients that are there. */
TREK_API trek_status trek_monitor_histograms(trek_monitor *monitor, int64_t step, trek_module *module);
/* A picture, as PNG: [height, width], [channels, height, width] or [n, channels, height, width], which is a grid, row by row, of
 * as many columns as rows or one more, two black pixels apart (with 4 channels transparent ones). Channels: 1 gray, 3 RGB, 4 RGB
 * and alpha. u8 from 0 to 255, bool, or floating from 0 to 1 (beyond them and NaN: the nearer end, 0); any strides, any device,
 * which is waited for. ARGUMENT; SHAPE, DTYPE for others, and where the picture has more than 2^26 pixels; UNSUPPORTED without
 * libpng, which is opened at the first image; MEMORY. */
TREK_API trek_status trek_monitor_image(trek_monitor *monitor, const char *name, int64_t step, const trek_tensor *image);
TREK_API trek_status trek_monitor_text(trek_monitor *monitor, const char *name, int64_t step, const char *text);
/* The graph: its picture (trek_graph_svg), its nodes with their results' shapes, parameters, times and memory, and what leads
 * from which to which (monitor/README.md). An attached graph's is written at its first step, again when some steps have been
 * measured (docs/watching.md says when), and at its end. Another graph's has no figures. */
TREK_API trek_status trek_monitor_graph(trek_monitor *monitor, trek_graph *graph);
/* An epoch's metrics: of a run that is attached by TREK_LOG_DIR or trek_monitor_attach they are there already. */
TREK_API trek_status trek_monitor_epoch(trek_monitor *monitor, const trek_epoch_metrics *metrics);
/* Something that happened: "checkpoint", "written runs/3.safetensors". */
TREK_API trek_status trek_monitor_event(trek_monitor *monitor, const char *name, const char *text);
/* A line of the log. trek's own from TREK_LOG_INFO up are there already. */
TREK_API trek_status trek_monitor_log(trek_monitor *monitor, trek_log_level level, const char *text);

TREK_END

#endif
