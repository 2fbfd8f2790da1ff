/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a trainer that are wrong for any ranks. */
#include "distributed/trainer_internal.h"

#include <math.h>

#include "distributed/balance/workload.h"
#include "optim/optimizer_internal.h"
#include "tensor/dtypes.h"
#include "tensor/status_internal.h"
#include "tensor/try_internal.h"

static trek_status check_average(const trek_trainer_opts *o)
{
    if (o->average != TREK_AVERAGE_GRADIENTS && o->average != TREK_AVERAGE_PARAMETERS)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .average: %d; must be a value of trek_average", (int)o->average);
    if (o->divergence_threshold != TREK_OFF && !(o->divergence_threshold >= 0))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .divergence_threshold: %g; must be TREK_OFF, 0 (the default) or more",
                         o->divergence_threshold);
    if (o->average == TREK_AVERAGE_PARAMETERS && o->accumulate > 1)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "trainer_setup: .accumulate: set together with .average of parameters; it accumulates gradients");
    if (o->average == TREK_AVERAGE_PARAMETERS && o->shard != TREK_SHARD_NONE)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .shard: set together with .average of parameters; with it "
                                            "each rank updates a part, without it all of its own");
    return TREK_OK;
}

/* Checks options for unequal ranks that are wrong for any number of ranks, even if they are not used. */
static trek_status check_unequal(const trek_trainer_opts *o)
{
    const trek_speed_hint *hint = &o->speed_hint;
    if (o->max_anchor < TREK_OFF || o->anchor < 0 || o->global_batch < 0 || o->max_batch_diff < 0)
        return trek_fail(
            TREK_ERR_ARGUMENT,
            "trainer_setup: .max_anchor, .anchor, .max_batch_diff, .global_batch: one is negative; must be 0 or more");
    if (o->balance != 0 && o->balance != 1 && o->balance != TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .balance: %d; must be 0, 1 or TREK_OFF", o->balance);
    if (o->min_share != TREK_ZERO && !(o->min_share >= 0 && o->min_share <= 1))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .min_share: %g; must be 0 to 1 / ranks", o->min_share);
    if (o->overhead_target != 0 && !(o->overhead_target >= 0.01 && o->overhead_target <= 0.5))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .overhead_target: %g; must be 0.01 to 0.50", o->overhead_target);
    if (hint->ratio != 0 && !(hint->ratio >= 1 && hint->ratio <= 1e6 && hint->slow_rank >= 0))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "trainer_setup: .speed_hint: rank %d by %g; must be a rank, and a ratio of 1 to 1000000",
                         hint->slow_rank, hint->ratio);
    return TREK_OK;
}

/* Checks fixed shares, and that no other option would change them. */
static trek_status check_shares(const trek_trainer_opts *o)
{
    if (!o->shares && o->n_shares == 0)
        return TREK_OK;
    if (!o->shares || o->n_shares < 1 || o->n_shares > TREK_MAX_RANKS)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .n_shares: %d; must be %s", o->n_shares,
                         o->shares ? "1 to 1024" : "0 without .shares");
    const char *other = o->balance == 1 ? "balance" : o->plan ? "plan" : o->speed_hint.ratio != 0 ? "speed_hint"
        : o->min_share != 0 ? "min_share" : o->overhead_target != 0 ? "overhead_target"
        : o->max_batch_diff != 0 ? "max_batch_diff" : NULL;
    if (other)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .%s: set together with .shares, which are fixed", other);
    return trek_workload_check_shares(o->shares, o->n_shares, o->allow_idle);
}

/* Checks that no option contradicts grains. */
static trek_status check_grain(const trek_trainer_opts *o)
{
    if (o->grain < 0 && o->grain != TREK_GRAIN)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .grain: %lld; must be TREK_GRAIN, or 0 or more", (long long)o->grain);
    if (!(o->audit >= 0 && o->audit <= 1))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .audit: %g; must be 0 to 1", o->audit);
    if (o->audit > 0 && o->grain == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .audit: %g, without .grain; only grains are computed again",
                         o->audit);
    if (o->audit_removes && !(o->audit > 0))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .audit_removes: set, without .audit, which finds who is wrong");
    if (o->digests && o->grain == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .digests: %s, without .grain; only steps in grains have digests",
                         o->digests);
    const char *other = o->average == TREK_AVERAGE_PARAMETERS ? "average" : o->max_anchor > 0 ? "max_anchor"
        : o->global_batch > 0 ? "global_batch" : o->overlap == 1 ? "overlap" : NULL;
    if (o->grain != 0 && other)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .%s: set together with .grain; they cannot be combined", other);
    return TREK_OK;
}

/* Checks that no option contradicts min_processes. */
static trek_status check_min_processes(const trek_trainer_opts *o)
{
    if (o->min_processes < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .min_processes: %d; must be 0 or more", o->min_processes);
    if (o->min_processes == 0)
        return TREK_OK;
    const char *needs = o->grain != 0 ? NULL : o->shard > TREK_SHARD_STATE ? "shard" : o->overlap == 1 ? "overlap"
        : o->average == TREK_AVERAGE_PARAMETERS ? "average" : o->max_anchor > 0 ? "max_anchor"
        : o->global_batch > 0 ? "global_batch" : o->reduce_dtype != TREK_F32 ? "reduce_dtype" : NULL;
    if (needs)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "trainer_setup: .min_processes: set together with .%s%s, without .grain; they cannot "
                         "be combined%s",
                         needs, o->shard > TREK_SHARD_STATE ? " above TREK_SHARD_STATE" : "",
                         o->shard > TREK_SHARD_STATE ? ", but in grains they can (TREK_GRAIN chooses a size)" : "");
    const char *other = o->shares ? "shares" : o->plan ? "plan" : o->speed_hint.ratio != 0 ? "speed_hint" : NULL;
    if (other)
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "trainer_setup: .min_processes: set together with .%s, which is for a fixed number "
                         "of ranks",
                         other);
    return TREK_OK;
}

static trek_status check_budgets(const trek_trainer_opts *o)
{
    if (o->n_memory_budget < 0 || o->n_memory_budget > TREK_MAX_RANKS || (o->memory_budget == NULL) != (o->n_memory_budget == 0))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .n_memory_budget: %d; must be %s", o->n_memory_budget,
                         o->memory_budget ? "the number of this process's ranks" : "0 without .memory_budget");
    for (int r = 0; r < o->n_memory_budget; r++)
        if (o->memory_budget[r] < 1)
            return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .memory_budget: %lld for rank %d; must be above 0",
                             (long long)o->memory_budget[r], r);
    if (o->memory_budget && o->average == TREK_AVERAGE_PARAMETERS)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .memory_budget: set together with .average of parameters, whose "
                                               "rounds keep copies that the plan does not know");
    return TREK_OK;
}

static trek_status check_reduce_dtype(const trek_trainer_opts *o)
{
    if (o->reduce_dtype != TREK_F32 && o->reduce_dtype != TREK_BF16)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .reduce_dtype: %s; must be f32 or bf16",
                         trek_dtype_name(o->reduce_dtype));
    const char *other = o->grain != 0 ? "grain, whose sums are exact" : o->average == TREK_AVERAGE_PARAMETERS
        ? "average of parameters, which sends no gradients" : NULL;
    if (o->reduce_dtype != TREK_F32 && other)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .reduce_dtype: bf16, together with .%s", other);
    return TREK_OK;
}

static trek_status check_activations(const trek_trainer_opts *o)
{
    if (o->activations != 0 && o->activations != TREK_AUTO)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .activations: %d; must be 0 or TREK_AUTO", o->activations);
    if (o->host_budget < TREK_OFF || (o->host_budget != 0 && o->activations == 0))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .host_budget: %lld; must be %s", (long long)o->host_budget,
                         o->activations == 0 ? "0 without .activations" : "0 or more, or TREK_OFF");
    if (o->activations != 0 && o->average == TREK_AVERAGE_PARAMETERS)
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .activations: set together with .average of parameters, whose "
                                               "rounds keep copies that the plan does not know");
    return TREK_OK;
}

trek_status trek_trainer_check(const trek_trainer_opts *o)
{
    if (o->accumulate < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .accumulate: %d; must be 0 or more", o->accumulate);
    if (isnan(o->max_grad_norm) || isnan(o->max_grad_value))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .max_grad_norm, .max_grad_value: one is NaN; must be numbers");
    if (o->bucket_bytes < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .bucket_bytes: %lld; must be 0 or more", (long long)o->bucket_bytes);
    if (o->overlap != 0 && o->overlap != 1 && o->overlap != TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .overlap: %d; must be 0 (where it helps), 1 or TREK_OFF", o->overlap);
    if (o->share_params != 0 && o->share_params != TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .share_params: %d; must be 0 or TREK_OFF", o->share_params);
    if (o->deadline_s != TREK_OFF && !(o->deadline_s >= 0 && o->deadline_s <= 1e9))
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .deadline_s: %g; must be TREK_OFF, or 0 (the default) to 10^9",
                         o->deadline_s);
    if ((int)o->shard < TREK_SHARD_NONE || o->shard > TREK_SHARD_PARAMETERS)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .shard: %d; must be a value of trek_shard", (int)o->shard);
    TRY(check_budgets(o));
    TRY(check_activations(o));
    TRY(check_reduce_dtype(o));
    TRY(check_unequal(o));
    TRY(check_average(o));
    TRY(check_grain(o));
    TRY(check_min_processes(o));
    TRY(check_shares(o));
    return o->optimizer.klass ? trek_optimizer_spec_check(&o->optimizer) : TREK_OK;
}
