/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: what was decided in the course of a run on who does how much, and from
 * which step on. A run that follows a recorded plan does the same arithmetic, whatever
 * its timing. A lookup is safe from several threads while nobody adds. */
#ifndef TREK_DISTRIBUTED_BALANCE_PLAN_H
#define TREK_DISTRIBUTED_BALANCE_PLAN_H

#include "tensor/status.h"

TREK_BEGIN

typedef struct trek_plan trek_plan;

typedef enum trek_plan_kind {
    TREK_PLAN_SHARES,         /* of each global batch: the balancer's */
    TREK_PLAN_COUNTS          /* whole batches between two reductions: El Che's */
} trek_plan_kind;

/* A decision, as read: the pointer of its kind lends the plan's own values, one for each rank, until the
 * plan is changed or freed; the other is NULL. */
typedef struct trek_decision {
    int64_t from;             /* the first step (of step(): with counts, window) that it holds for */
    trek_plan_kind kind;
    const double *shares;
    const int64_t *counts;
    int64_t anchor;           /* of the counts; 0 for shares */
} trek_decision;

TREK_API trek_plan *trek_plan_new(int ranks);                  /* 1 to 1048576. NULL and ARGUMENT, MEMORY */
TREK_API void trek_plan_free(trek_plan **plan);                /* sets NULL */
TREK_API int trek_plan_ranks(const trek_plan *plan);           /* -1 and an error for NULL, as the next */
TREK_API int64_t trek_plan_size(const trek_plan *plan);        /* decisions */

/* Adds a decision that holds from step `from` (>= 0) on. One of the same step is replaced; one for an earlier step
 * than the last's is refused (see trek_plan_cut). Values are copied. Errors: ARGUMENT (shares out of 0 .. 1 or
 * that do not sum to 1; a share that is subnormal; negative counts or none above 0; an anchor below 1), MEMORY;
 * the plan is then as it was. */
TREK_API trek_status trek_plan_add_shares(trek_plan *plan, int64_t from, const double *shares);
TREK_API trek_status trek_plan_add_counts(trek_plan *plan, int64_t from, const int64_t *counts, int64_t anchor);

/* Forgets decisions for step `from` and later: a run that resumes there decides anew. */
TREK_API trek_status trek_plan_cut(trek_plan *plan, int64_t from);

/* The decision that holds at a step: the last one from that step or earlier. False if there is none (no error, unless
 * plan or decision is NULL). O(log size). */
TREK_API bool trek_plan_at(const trek_plan *plan, int64_t step, trek_decision *decision);
/* Decision number k, 0 .. size-1. False and ARGUMENT beyond. */
TREK_API bool trek_plan_get(const trek_plan *plan, int64_t k, trek_decision *decision);

/* The plan as text, for a file or a checkpoint's notes: a line "trek-plan 2", "ranks N", then a line
 * for each decision, "STEP shares S0 S1 ..." with shares as hexadecimal floats (all their bits) or "STEP counts ANCHOR
 * C0 C1 ...", and at last "end SIZE xxh64 C", C the XXH64 of the text up to there in 16 hexadecimal digits. No locale plays
 * a part. To be freed by trek_string_free (tensor/tensor.h). NULL and MEMORY. */
TREK_API char *trek_plan_text(const trek_plan *plan);
/* The reverse, bit for bit. A plan that was written by hand, or by an earlier version of trek, begins "trek-plan 1", ends
 * "end SIZE" and has no checksum. NULL and FORMAT, which names the line or says that the checksum does not match,
 * ARGUMENT, MEMORY. */
TREK_API trek_plan *trek_plan_parse(const char *text);

/* The same in a file, written beside `path`, synced and renamed: a failed save leaves what was there. Errors: IO,
 * MEMORY; loading: FORMAT too, with path and line. */
TREK_API trek_status trek_plan_save(const trek_plan *plan, const char *path);
TREK_API trek_plan *trek_plan_load(const char *path);

TREK_END

#endif
