/* SPDX-License-Identifier: Apache-2.0 */
/* Mixed precision of a graph: its autocast and its gradient scaler. */
#include "graph/graph_internal.h"
#include "optim/optimizer_internal.h"

trek_status trek_graph_set_amp(trek_graph *graph, const trek_amp_opts *opts)
{
    if (!graph)
        return trek_fail_missing("trek_graph_set_amp", "graph");
    trek_amp_opts o = opts ? *opts : (trek_amp_opts){ .scaling = TREK_OFF };
    if (o.dtype != TREK_F32 && !trek_dtype_is_16bit(o.dtype))
        return trek_fail(TREK_ERR_ARGUMENT, "trek_graph_set_amp: .dtype is %s, not bf16, f16 or (none) f32",
                         trek_dtype_name(o.dtype));
    if (o.scaling != 0 && o.scaling != 1 && o.scaling != TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "trek_graph_set_amp: .scaling is %d; it is 0, 1 or TREK_OFF", o.scaling);
    trek_grad_scaler *scaler = NULL;
    o.scaler.disabled = false;
    if ((o.scaling == 1 || (o.scaling == 0 && o.dtype == TREK_F16)) && !(scaler = trek_grad_scaler_new(&o.scaler)))
        return trek_error_status();
    trek_grad_scaler_free(&graph->scaler);
    graph->scaler = scaler;
    graph->autocast = o.dtype;
    return TREK_OK;
}

trek_grad_scaler *trek_graph_scaler(trek_graph *graph)
{
    if (!graph)
        trek_fail_missing("trek_graph_scaler", "graph");
    return graph ? graph->scaler : NULL;
}

int64_t trek_graph_skipped(trek_graph *graph)
{
    trek_optimizer *optimizer = trek_graph_optimizer(graph);
    trek_update_state state;
    if (!optimizer)
        return graph ? 0 : -1;
    return trek_optimizer_last_step(optimizer, &state) == TREK_OK ? state.skipped : -1;
}
