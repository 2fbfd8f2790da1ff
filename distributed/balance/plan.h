/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: the decisions of a run about how much each rank does, and from which step on. A run that follows a recorded plan does
 * the same arithmetic, whatever its timing. Several threads may read a plan at once while no thread changes it. */
#ifndef TREK_DISTRIBUTED_BALANCE_PLAN_H
#define TREK_DISTRIBUTED_BALANCE_PLAN_H

#include "tensor/status.h"

TREK_BEGIN

/* A plan. */
typedef struct trek_plan trek_plan;

/* The kind of a decision. */
typedef enum trek_plan_kind {
    TREK_PLAN_KIND_SHARES, /* shares of each global batch: decisions of the balancer */
    TREK_PLAN_KIND_COUNTS  /* whole batches between two reductions: decisions of El Che */
} trek_plan_kind;

/* A decision that is read from a plan. `shares` or `counts`, according to its kind, points to the plan's own values, one for
 * each rank, which are valid until the plan is changed or freed. The other pointer is NULL. */
typedef struct trek_decision {
    int64_t from;          /* the first step for which it holds; with counts the first window */
    trek_plan_kind kind;   /* its kind */
    const double *shares;  /* the share of each rank, or NULL */
    const int64_t *counts; /* the number of batches of each rank, or NULL */
    int64_t anchor;        /* the anchor of the counts; 0 for shares */
} trek_decision;

/* Returns a new plan without decisions for 1 to 1048576 ranks. The caller frees it.
 * Errors: ARGUMENT, MEMORY; NULL is returned. */
TREK_API trek_plan *trek_plan_new(int ranks);
/* Frees the plan and sets *plan to NULL. */
TREK_API void trek_plan_free(trek_plan **plan);
/* Returns the number of ranks. If `plan` is NULL, it returns -1 and sets an error. */
TREK_API int trek_plan_ranks(const trek_plan *plan);
/* Returns the number of decisions. If `plan` is NULL, it returns -1 and sets an error. */
TREK_API int64_t trek_plan_size(const trek_plan *plan);

/* Adds a decision about shares that holds from step `from` (>= 0) on. The values are copied. It replaces a decision for the
 * same step. A step before that of the last decision is refused; see trek_plan_cut.
 * Errors: ARGUMENT if a share is outside of 0 .. 1 or subnormal, or if the sum is not 1. MEMORY. The plan does not change
 * then. */
TREK_API trek_status trek_plan_add_shares(trek_plan *plan, int64_t from, const double *shares);
/* Adds a decision about counts and their anchor as trek_plan_add_shares does.
 * Errors: ARGUMENT if a count is negative, if all are 0, or if the anchor is below 1. MEMORY. The plan does not change then. */
TREK_API trek_status trek_plan_add_counts(trek_plan *plan, int64_t from, const int64_t *counts, int64_t anchor);

/* Removes the decisions for step `from` and later, so that a run that resumes there decides again. */
TREK_API trek_status trek_plan_cut(trek_plan *plan, int64_t from);

/* Writes the decision that holds at a step to *decision and returns true: the last one for this step or an earlier one.
 * Returns false without an error if no such decision exists. It costs O(log size).
 * Errors: ARGUMENT if a pointer is NULL; false is returned. */
TREK_API bool trek_plan_at(const trek_plan *plan, int64_t step, trek_decision *decision);
/* Writes decision number k to *decision and returns true. Errors: ARGUMENT if k is not in 0 .. size - 1; false is returned. */
TREK_API bool trek_plan_get(const trek_plan *plan, int64_t k, trek_decision *decision);

/* Returns the plan as a text. The caller frees it with trek_string_free (tensor/print.h). The text does not depend on the
 * locale. Its first lines are "trek-plan 2" and "ranks N". Each decision has a line, "STEP shares S0 S1 ..." with hexadecimal
 * floats, which have all bits, or "STEP counts ANCHOR C0 C1 ...". The last line is "end SIZE xxh64 C", where C is the XXH64 of
 * the text before it in 16 hexadecimal digits.
 * Errors: MEMORY; NULL is returned. */
TREK_API char *trek_plan_text(const trek_plan *plan);
/* Returns the plan of a text, with the same bits. The caller frees it.
 * Errors: FORMAT, which names the line or says that the checksum is wrong. ARGUMENT, MEMORY. NULL is returned. */
TREK_API trek_plan *trek_plan_parse(const char *text);

/* Saves the text of the plan to a file, which is written next to `path`, synced and renamed. On failure an earlier file stays.
 * Errors: IO, MEMORY. */
TREK_API trek_status trek_plan_save(const trek_plan *plan, const char *path);
/* Loads a plan from a file. The caller frees it.
 * Errors: IO, MEMORY, ARGUMENT. FORMAT, with the path and the line. NULL is returned. */
TREK_API trek_plan *trek_plan_load(const char *path);

TREK_END

#endif
