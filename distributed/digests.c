/* SPDX-License-Identifier: Apache-2.0 */
/* The digests of steps, as users ask for them. */
#include "distributed/digests.h"

#include <inttypes.h>

#include "distributed/grains/digests.h"
#include "distributed/stepper.h"
#include "distributed/team/step.h"

trek_status trek_trainer_digest(const trek_graph *graph, int64_t step, trek_step_digest *digest)
{
    if (!graph || !digest)
        return trek_fail_missing("trainer_digest", graph ? "digest" : "graph");
    const trek_step *s = trek_graph_ranks(graph);
    if (!s || !s->grains)
        return trek_fail(TREK_ERR_STATE, "trainer_digest: graph: it is not trained in grains; set .grain in trek_trainer_setup");
    if (!trek_digests_find(s, step, digest))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "trainer_digest: step: %" PRId64 "; must be one of the last %d steps since trek_trainer_setup", step,
                         TREK_DIGESTS_KEPT);
    return TREK_OK;
}

trek_status trek_trainer_audit(const trek_graph *graph, trek_audit_report *report)
{
    if (!graph || !report)
        return trek_fail_missing("trainer_audit", graph ? "report" : "graph");
    const trek_step *s = trek_graph_ranks(graph);
    if (!s || !s->grains)
        return trek_fail(TREK_ERR_STATE, "trainer_audit: graph: it is not trained in grains; set .grain in trek_trainer_setup");
    *report = s->grains->audit_report;
    return TREK_OK;
}
