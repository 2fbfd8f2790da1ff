/* SPDX-License-Identifier: Apache-2.0 */
/* How a process's samples are divided among its ranks, and what a step reports to the code that decides that. */
#ifndef TREK_DISTRIBUTED_PASS_SHARES_H
#define TREK_DISTRIBUTED_PASS_SHARES_H

#include "distributed/balance/stopwatch.h"
#include "tensor/status.h"

typedef struct trek_step trek_step;

/* What the replicas' drift does to the anchor of windows. */
typedef enum trek_drift_verdict { TREK_DRIFT_STABLE, TREK_DRIFT_STAYS, TREK_DRIFT_SHRINKS } trek_drift_verdict;

/* Begins measuring, when the ranks of the job are known. The caller makes the workload. Fails with MEMORY. */
trek_status trek_pace_begin(trek_step *s);
void trek_pace_end(trek_step *s);

/* Return how many shares or counts the workload has: of ranks, or of processes. */
int trek_ranks_sites(const trek_step *s);
int trek_ranks_first_site(const trek_step *s);
int trek_ranks_local_sites(const trek_step *s);
int trek_ranks_sites_of(const trek_step *s, int process);

/* Divides a process's n samples among its ranks, by their shares. */
trek_status trek_ranks_split(const trek_step *s, int64_t n, int64_t *counts);
/* Keeps the calling rank busy if it is slowed down, while its stopwatch runs. ends: the batch ends. */
trek_status trek_slowed(const trek_step *s, int rank, trek_stopwatch *watch, bool ends);
/* Called before a pass, after the caller's thread has waited for the batch; trains: to train on it. */
void trek_ranks_note_wait(trek_step *s, bool trains);
/* Turn times into shares or counts of later steps: those that s->pace has, after step number `step`; and those of this step.
 * communication_ms: what the anchor of windows must outweigh; 0: not measured. */
trek_status trek_pace_report(trek_step *s, int64_t step, bool windowed, double communication_ms, trek_drift_verdict drift,
                             bool *changed);
trek_status trek_ranks_update_workload(trek_step *s, trek_drift_verdict drift);

#endif
