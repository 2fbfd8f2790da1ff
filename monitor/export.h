/* SPDX-License-Identifier: Apache-2.0 */
/* Watched runs in the formats of other programs. Made from a run's folder (FOLDER/RUN), while it goes on or after its end. */
#ifndef TREK_MONITOR_EXPORT_H
#define TREK_MONITOR_EXPORT_H

#include "tensor/status.h"

TREK_BEGIN

/* Writes a table of all curves to the file `path`, whole or not at all: a row for each step, in order; columns step, epoch, one
 * for each curve of the whole run (those of epochs' ends: "NAME (epoch)"), then what ranks and system told, at the last step told
 * before: "rank/K/share", .._samples_per_s, and what part of its time it computed, waited and reduced, "system/memory_bytes" and
 * so on, "system/cuda:0/power_w" (of further processes under "process-K/"). Of several values of a curve at one step the last one
 * counts; empty: it has none there; nan, inf, -inf. Quoted as RFC 4180 says. ARGUMENT: a NULL; IO: a folder that is not there
 * or cannot be read, a file that cannot be written; MEMORY. */
TREK_API trek_status trek_export_csv(const char *run, const char *path);

/* Writes TensorBoard's event file, whole or not at all; path by TensorBoard's rule has "tfevents" in its last part, such as
 * "boards/first/events.out.tfevents.1". Scalars under their names (those of epochs' ends under "epoch/"), "rank/K/share",
 * .._samples_per_s, and what part of its time it computed, waited and reduced, "system/...", histograms (gradients under
 * "gradient/"), images, texts, events and log lines as texts; process 0's graph (dots in names are slashes), and time and memory
 * of its nodes as a run's metadata, "step 5: the mean of 3"; of further processes under "process-K/". What tells no step has the
 * last one told. ARGUMENT, IO, MEMORY. */
TREK_API trek_status trek_export_tensorboard(const char *run, const char *path);

/* Writes the run into MLflow's file store, the folder that `mlflow ui --backend-store-uri FOLDER` shows (its newer versions with
 * MLFLOW_ALLOW_FILE_STORE=true), made if need be; its last part alone. The experiment has the program's name and is made if need
 * be; the run replaces what was exported of it before, whole or not at all. Metrics: all curves (those of epochs' ends under
 * "epoch/"), "rank/..." and "system/..." as in trek_export_csv, of further processes under "process-K/". Parameters: the
 * program's arguments, epochs, the number of parameters, processes, ranks, their devices. Tags: program, host, trek's version,
 * status, error. Artifacts: images/NAME/STEP.png, graph.svg, log.txt of log lines, events and texts; histograms, which MLflow
 * lacks, are left out. Of a name what MLflow does not take becomes "_", a second one of the same kind gets "_" behind its first
 * part. ARGUMENT: a NULL; IO: a folder that is no run or cannot be read, a store that cannot be written; MEMORY. */
TREK_API trek_status trek_export_mlflow(const char *run, const char *mlruns);

/* The run as it stands, as OpenMetrics 1.0 text for Prometheus: gauges trek_scalar (labels run, name, at: "step" or "epoch"),
 * trek_step, trek_epoch, trek_batch, trek_eta_seconds, trek_running, trek_rank_share, trek_rank_samples_per_second,
 * trek_rank_computing_seconds, _waiting_ and _reducing_ (of the last second), trek_memory_bytes, trek_cpu_percent,
 * trek_temperature_celsius, trek_power_watts (of a process's machine), trek_rank_info (labels device, device_name),
 * trek_device_memory_bytes, _memory_total_bytes, _temperature_celsius, _power_watts, _utilization_percent and _throttled (0 or 1;
 * label reason) of GPUs. What is not known is left out. A new string (trek_string_free); NULL and ARGUMENT, IO, MEMORY. */
TREK_API char *trek_export_open_metrics(const char *run);

TREK_END

#endif
