/* SPDX-License-Identifier: Apache-2.0 */
/* Exports watched runs in the formats of other programs. A run is given by its folder (FOLDER/RUN) and may still be running. The
 * functions are in the plug-in libtrek-monitor (Debian: libtrek0.2-monitor) and fail with UNSUPPORTED without it. */
#ifndef TREK_MONITOR_EXPORT_H
#define TREK_MONITOR_EXPORT_H

#include "tensor/status.h"

TREK_BEGIN

/* Writes a table of all curves of a run to a CSV file (RFC 4180). On failure an earlier file stays.
 * - The table has a row for each step, in order.
 * - The columns are step, epoch, one for each curve of the whole run ("NAME (epoch)" for curves of epoch ends), and then the
 *   last reports of ranks and system at or before the step.
 * - Columns of a rank are "rank/K/share", .._samples_per_s, and the parts of its time in which it computed, waited and
 *   reduced. Columns of the system are "system/memory_bytes" and so on, "system/cuda:0/power_w". Those of further processes
 *   begin with "process-K/".
 * - If a curve has several values at one step, the last one is used. A cell is empty if it has no value. Numbers may be nan,
 *   inf and -inf.
 * - Errors: ARGUMENT if a pointer is NULL. IO if the folder does not exist or cannot be read, or the file cannot be written.
 *   MEMORY. */
TREK_API trek_status trek_export_csv(const char *run, const char *path);

/* Writes a run as an event file of TensorBoard. On failure an earlier file stays. TensorBoard expects "tfevents" in the file's
 * name, such as "boards/first/events.out.tfevents.1".
 * - The file has scalars under their names (those of epoch ends under "epoch/"), "rank/K/share", .._samples_per_s, and the
 *   parts of the time of rank K in which it computed, waited and reduced, "system/...", histograms (gradients under
 *   "gradient/"), and images. Texts, events and log lines are texts.
 * - It has the graph of process 0, with slashes instead of dots in names. Time and memory of its nodes are the metadata of a
 *   run, "step 5: the mean of 3".
 * - Data of further processes are under "process-K/". A record without a step has the last reported step.
 * - Errors: ARGUMENT, IO, MEMORY. */
TREK_API trek_status trek_export_tensorboard(const char *run, const char *path);

/* Writes a run to the file store of MLflow, the folder that `mlflow ui --backend-store-uri FOLDER` shows (newer versions need
 * MLFLOW_ALLOW_FILE_STORE=true). The folder is created if needed, but not its parents. The experiment has the program's name
 * and is created if needed. An earlier export of the run is replaced as a whole. On failure it stays.
 * - Metrics: all curves (those of epoch ends under "epoch/"), "rank/..." and "system/..." as in trek_export_csv, those of
 *   further processes under "process-K/".
 * - Parameters: the program's arguments, epochs, the number of parameters, processes, ranks and their devices.
 * - Tags: program, host, trek's version, status and error.
 * - Artifacts: images/NAME/STEP.png, graph.svg, and log.txt with log lines, events and texts. Histograms are left out, because
 *   MLflow has none.
 * - Characters that MLflow does not allow in names become "_". A second name of the same kind gets "_" after its first part.
 * - Errors: ARGUMENT if a pointer is NULL. IO if the folder is not a run or cannot be read, or the store cannot be written.
 *   MEMORY. */
TREK_API trek_status trek_export_mlflow(const char *run, const char *mlruns);

/* Returns the current state of a run as OpenMetrics 1.0 text for Prometheus. The caller frees it with trek_string_free. Values
 * that are not known are left out. The gauges are:
 * - trek_scalar (labels run, name, at: "step" or "epoch"), trek_step, trek_epoch, trek_batch, trek_eta_seconds and
 *   trek_running
 * - trek_rank_share, trek_rank_samples_per_second, and trek_rank_computing_seconds, _waiting_ and _reducing_ (of the last
 *   second)
 * - trek_memory_bytes, trek_cpu_percent, trek_temperature_celsius and trek_power_watts of the machine of a process
 * - trek_rank_info (labels device, device_name)
 * - trek_device_memory_bytes, _memory_total_bytes, _temperature_celsius, _power_watts, _utilization_percent and _throttled (0
 *   or 1, label reason) of GPUs
 *
 * Errors: ARGUMENT, IO, MEMORY; NULL is returned. */
TREK_API char *trek_export_open_metrics(const char *run);

TREK_END

#endif
