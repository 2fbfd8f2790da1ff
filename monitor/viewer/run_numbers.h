/* SPDX-License-Identifier: Apache-2.0 */
/* The values of the machine and the ranks as named curves, and what exports of runs have in common. */
#ifndef TREK_MONITOR_RUN_NUMBERS_H
#define TREK_MONITOR_RUN_NUMBERS_H

#include "monitor/viewer/run_reader.h"
#include "nn/text.h"

/* Calls `take` for the numbers of a "system" or "ranks" record: "system/memory_bytes", "system/cuda:0/power_w",
 * "rank/3/share". For processes other than the first, the process's own values begin with "process-K/". Unknown
 * values are skipped. */
void trek_run_numbers(const trek_run_record *record, void (*take)(const char *name, double value, void *arg), void *arg);

/* The last step in each process's records, for records without one. */
typedef struct trek_run_steps {
    int64_t *steps;
    int n, capacity;
} trek_run_steps;
/* Returns the record's step and remembers it; 0 if none is known. Without memory it is the record's own. */
int64_t trek_run_step(trek_run_steps *steps, const trek_run_record *record);
void trek_run_steps_clear(trek_run_steps *steps);

/* Reads the whole run, record by record if on_record is given. Returns NULL with ARGUMENT, IO (it is no watched run)
 * or MEMORY. `function` is for messages. */
trek_run_reader *trek_run_read(const char *function, const char *run, const trek_run_reader_opts *opts);
/* Appends the current state of a run as OpenMetrics text (monitor/export.h). `run` is its folder or its name. */
void trek_export_add_metrics(trek_text *out, const char *run, const trek_run_state *state);
/* Writes the file whole or not at all. */
trek_status trek_run_write_file(const char *function, const char *path, const trek_text *text);

#endif
