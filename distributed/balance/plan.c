/* SPDX-License-Identifier: Apache-2.0 */
/* The sequence of decisions in memory. Steps ascend; each decision has one value for each rank, in one of two arrays. */
#include "distributed/balance/plan.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "distributed/balance/plan_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

typedef struct entry {
    int64_t from, anchor;
    trek_plan_kind kind;
    void *values;             /* double[ranks] or int64_t[ranks] */
} entry;

struct trek_plan {
    int ranks, size, capacity;
    entry *entries;
};

trek_plan *trek_plan_new(int ranks)
{
    if (ranks < 1 || ranks > TREK_PLAN_MOST_RANKS)
        return trek_fail_null(TREK_ERR_ARGUMENT, "plan_new: ranks: %d; must be 1 to %d", ranks, TREK_PLAN_MOST_RANKS);
    trek_plan *plan = trek_calloc(1, sizeof *plan);
    if (plan)
        plan->ranks = ranks;
    return plan;
}

void trek_plan_free(trek_plan **plan)
{
    if (!plan || !*plan)
        return;
    for (int k = 0; k < (*plan)->size; k++)
        trek_free((*plan)->entries[k].values);
    trek_free((*plan)->entries);
    trek_free(*plan);
    *plan = NULL;
}

int trek_plan_ranks(const trek_plan *plan)
{
    if (plan)
        return plan->ranks;
    trek_fail_missing("plan_ranks", "plan");
    return -1;
}

int64_t trek_plan_size(const trek_plan *plan)
{
    if (plan)
        return plan->size;
    trek_fail_missing("plan_size", "plan");
    return -1;
}

const char *trek_plan_shares_fault(const double *shares, int ranks)
{
    double sum = 0;
    for (int r = 0; r < ranks; r++) {
        if (!(shares[r] >= 0 && shares[r] <= 1) || (shares[r] > 0 && shares[r] < DBL_MIN))
            return "shares: one is outside 0 .. 1; must be inside";
        sum += shares[r];
    }
    return fabs(sum - 1) < 1e-6 ? NULL : "shares that do not sum to 1";
}

const char *trek_plan_counts_fault(const int64_t *counts, int ranks, int64_t anchor)
{
    bool some = false;
    for (int r = 0; r < ranks; r++) {
        if (counts[r] < 0)
            return "counts: one is negative; must be 0 or more";
        some = some || counts[r] > 0;
    }
    return !some ? "counts: all are 0; at least one rank must have a batch" : anchor < 1 ? "anchor: below 1; must be 1 or more"
        : NULL;
}

static trek_status add(trek_plan *plan, const char *function, entry added, const void *values)
{
    const entry *last = plan->size > 0 ? &plan->entries[plan->size - 1] : NULL;
    if (added.from < 0 || (last && added.from < last->from))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: from: step %lld, after step %lld; steps must ascend and be 0 or more", function,
                         (long long)added.from, last ? (long long)last->from : 0);
    size_t bytes = (size_t)plan->ranks * 8;
    bool replace = last && last->from == added.from;
    trek_status status = replace ? TREK_OK : trek_array_grow(&plan->entries, &plan->capacity, plan->size + 1,
                                                             sizeof *plan->entries);
    added.values = status == TREK_OK ? trek_alloc(bytes) : NULL;
    if (!added.values)
        return TREK_ERR_MEMORY;
    memcpy(added.values, values, bytes);
    if (replace)
        trek_free(plan->entries[--plan->size].values);
    plan->entries[plan->size++] = added;
    return TREK_OK;
}

trek_status trek_plan_add_shares(trek_plan *plan, int64_t from, const double *shares)
{
    if (!plan || !shares)
        return trek_fail_missing("plan_add_shares", plan ? "shares" : "plan");
    const char *fault = trek_plan_shares_fault(shares, plan->ranks);
    if (fault)
        return trek_fail(TREK_ERR_ARGUMENT, "plan_add_shares: %s", fault);
    return add(plan, "plan_add_shares", (entry){ .from = from, .kind = TREK_PLAN_KIND_SHARES }, shares);
}

trek_status trek_plan_add_counts(trek_plan *plan, int64_t from, const int64_t *counts, int64_t anchor)
{
    if (!plan || !counts)
        return trek_fail_missing("plan_add_counts", plan ? "counts" : "plan");
    const char *fault = trek_plan_counts_fault(counts, plan->ranks, anchor);
    if (fault)
        return trek_fail(TREK_ERR_ARGUMENT, "plan_add_counts: %s", fault);
    return add(plan, "plan_add_counts", (entry){ .from = from, .kind = TREK_PLAN_KIND_COUNTS, .anchor = anchor }, counts);
}

trek_plan *trek_plan_copy(const trek_plan *plan)
{
    trek_plan *copy = trek_plan_new(plan->ranks);
    for (int k = 0; copy && k < plan->size; k++)
        if (add(copy, "plan_copy", plan->entries[k], plan->entries[k].values) != TREK_OK)
            trek_plan_free(&copy);
    return copy;
}

trek_status trek_plan_cut(trek_plan *plan, int64_t from)
{
    if (!plan)
        return trek_fail_missing("plan_cut", "plan");
    while (plan->size > 0 && plan->entries[plan->size - 1].from >= from)
        trek_free(plan->entries[--plan->size].values);
    return TREK_OK;
}

static void lend(const entry *e, trek_decision *decision)
{
    *decision = (trek_decision){ .from = e->from, .kind = e->kind, .anchor = e->anchor };
    if (e->kind == TREK_PLAN_KIND_SHARES)
        decision->shares = e->values;
    else
        decision->counts = e->values;
}

bool trek_plan_at(const trek_plan *plan, int64_t step, trek_decision *decision)
{
    if (!plan || !decision) {
        trek_fail_missing("plan_at", plan ? "decision" : "plan");
        return false;
    }
    int below = 0, above = plan->size; /* entries before `below` begin at `step` or earlier, those from `above` on begin later */
    while (below < above) {
        int middle = below + (above - below) / 2;
        if (plan->entries[middle].from <= step)
            below = middle + 1;
        else
            above = middle;
    }
    if (below == 0)
        return false;
    lend(&plan->entries[below - 1], decision);
    return true;
}

bool trek_plan_get(const trek_plan *plan, int64_t k, trek_decision *decision)
{
    if (!plan || !decision) {
        trek_fail_missing("plan_get", plan ? "decision" : "plan");
        return false;
    }
    if (k < 0 || k >= plan->size) {
        trek_fail(TREK_ERR_ARGUMENT, "plan_get: k: %lld; there are %d decisions", (long long)k, plan->size);
        return false;
    }
    lend(&plan->entries[k], decision);
    return true;
}
