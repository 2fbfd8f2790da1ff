/* SPDX-License-Identifier: Apache-2.0 */
/* What records contribute to a run's state. */
#ifndef TREK_MONITOR_RUN_STATE_H
#define TREK_MONITOR_RUN_STATE_H

#include "monitor/viewer/run_reader.h"

typedef struct run_state {
    trek_run_state seen;             /* shown to readers */
    int most_points, most_notes;     /* points 0: all */
    int cap_processes, cap_ranks, cap_series, cap_notes, cap_histograms, cap_images;
} run_state;

void trek_run_state_begin(run_state *state);
void trek_run_state_clear(run_state *state);
/* Takes in a record. Whatever is kept is moved out of it. */
trek_status trek_run_state_take(run_state *state, trek_run_record *record);
/* Determines the status of each process, and so of the run, at this time (seconds since the Unix epoch). */
void trek_run_state_judge(run_state *state, double now);
/* Returns the process's entry, made if necessary, or NULL with MEMORY. */
trek_run_process *trek_run_state_process(run_state *state, int process);

#endif
