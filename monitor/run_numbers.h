/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine and the ranks tell, as curves with names; and what exports of runs have in common. Internal. */
#ifndef TREK_MONITOR_RUN_NUMBERS_H
#define TREK_MONITOR_RUN_NUMBERS_H

#include "monitor/run_reader.h"
#include "nn/text.h"

/* The numbers of a "system" or "ranks" record: "system/memory_bytes", "system/cuda:0/power_w", "rank/3/share"; of processes but
 * the first, what is the process's own begins with "process-K/". Those that are not told are passed over. */
void trek_run_numbers(const trek_run_record *record, void (*take)(const char *name, double value, void *arg), void *arg);

/* The step that each process's records have told so far, for those that tell none. */
typedef struct trek_run_steps {
    int64_t *steps;
    int n, capacity;
} trek_run_steps;
/* The record's step, taken note of; 0 where none was told. Without memory: the record's own. */
int64_t trek_run_step(trek_run_steps *steps, const trek_run_record *record);
void trek_run_steps_clear(trek_run_steps *steps);

/* Reads the whole run, record by record if on_record is given; NULL and ARGUMENT, IO (it holds no watched run), MEMORY. function:
 * for messages. */
trek_run_reader *trek_run_read(const char *function, const char *run, const trek_run_reader_opts *opts);
/* A run as it stands, as OpenMetrics text (monitor/export.h). run: its folder, or its name. */
void trek_export_add_metrics(trek_text *out, const char *run, const trek_run_state *state);
/* Writes the file whole or not at all. */
trek_status trek_run_write_file(const char *function, const char *path, const trek_text *text);

#endif
