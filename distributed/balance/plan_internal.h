/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_DISTRIBUTED_BALANCE_PLAN_INTERNAL_H
#define TREK_DISTRIBUTED_BALANCE_PLAN_INTERNAL_H

#include "distributed/balance/plan.h"

enum { TREK_PLAN_MOST_RANKS = 1 << 20 };

trek_plan *trek_plan_copy(const trek_plan *plan); /* returns NULL on failure (MEMORY) */

/* Return what is wrong with the values of a decision, or NULL. */
const char *trek_plan_shares_fault(const double *shares, int ranks);
const char *trek_plan_counts_fault(const int64_t *counts, int ranks, int64_t anchor);

/* Parses `length` bytes as trek_plan_parse does. Error messages contain `name` and the line. */
trek_plan *trek_plan_parse_named(const char *text, size_t length, const char *name);

#endif
