/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a round, and the guard that looks at the drift. */
#include "distributed/rounds/round.h"

#include <math.h>
#include <string.h>

#include "distributed/rounds/averaging.h"
#include "distributed/team/step.h"

/* Judges how far sites have moved apart lately, and what windows must do about it. */
static trek_drift_verdict judge(trek_averaging *averaging, double drift)
{
    double *drifts = averaging->drifts;
    memmove(drifts, drifts + 1, sizeof averaging->drifts - sizeof *drifts);
    drifts[TREK_DRIFTS - 1] = drift;
    bool rising = drifts[0] > 0, far = drift > averaging->divergence_threshold || isnan(drift);
    for (int k = 1; k < TREK_DRIFTS; k++)
        rising = rising && (drifts[k] > drifts[k - 1] || isnan(drifts[k]));
    if (averaging->divergence_threshold < 0 || !(rising || far))
        return TREK_DRIFT_STABLE;
    return rising && far ? TREK_DRIFT_SHRINKS : TREK_DRIFT_STAYS;
}

trek_status trek_round_make(trek_step *s, const trek_round_kind *kind, void *arg)
{
    trek_round_report round = { 0 };
    trek_status status = kind->gather(arg, &round);
    if (status != TREK_OK || !(round.samples > 0))
        return status;
    status = kind->mean(arg, &round);
    s->drift = round.drift;
    return status == TREK_OK ? kind->divide(arg, &round, judge(s->averaging, round.drift)) : status;
}
