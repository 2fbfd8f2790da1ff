/* SPDX-License-Identifier: Apache-2.0 */
/* Mixed precision of a graph: its autocast and its gradient scaler. */
#include "graph/amp.h"
#include "graph/amp_opts.h"
#include "graph/graph_internal.h"
#include "nn/fp8_internal.h"
#include "optim/optimizer_internal.h"

static trek_status check(const trek_amp_opts *o)
{
    if (o->dtype != TREK_F32 && !trek_dtype_is_16bit(o->dtype))
        return trek_fail(TREK_ERR_ARGUMENT, "graph_set_amp: .dtype: %s; must be bf16, f16 or f32 (f32 turns it off)",
                         trek_dtype_name(o->dtype));
    if (o->scaling != 0 && o->scaling != 1 && o->scaling != TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "graph_set_amp: .scaling: %d; must be 0, 1 or TREK_OFF", o->scaling);
    if (o->products != TREK_AMP_PRODUCTS_DEFAULT && o->products != TREK_AMP_PRODUCTS_FP8)
        return trek_fail(TREK_ERR_ARGUMENT, "graph_set_amp: .products: %d; must be a value of trek_amp_products",
                         (int)o->products);
    if (o->products == TREK_AMP_PRODUCTS_FP8 && o->dtype == TREK_F16)
        return trek_fail(TREK_ERR_ARGUMENT, "graph_set_amp: .products: 8-bit products together with .dtype f16; they need bf16");
    return o->products == TREK_AMP_PRODUCTS_FP8 ? trek_fp8_check(&o->fp8) : TREK_OK;
}

/* The layers of a graph with a trainer keep the products that its ranks have. */
static trek_status set_products(trek_graph *graph, const trek_amp_opts *o)
{
    const trek_stepper *stepper = graph->stepper;
    bool shared = stepper && stepper->klass->replica, fp8 = o->products == TREK_AMP_PRODUCTS_FP8;
    trek_status status = TREK_OK;
    if (fp8 && shared && !trek_fp8_enabled(&graph->base, &o->fp8))
        return trek_error_status() != TREK_OK
                   ? trek_error_status()
                   : trek_fail(TREK_ERR_STATE, "graph_set_amp: .products: 8-bit products, but trek_trainer_setup was called "
                                               "before; choose them before it, or in its options");
    bool ends = !fp8 && graph->fp8 && o->dtype != TREK_F32;
    if (ends && shared)
        return trek_fail(TREK_ERR_STATE,
                         "graph_set_amp: .products: a trainer already has the graph with 8-bit products; they cannot change");
    if (fp8)
        status = trek_fp8_enable(&graph->base, &o->fp8);
    else if (ends)
        status = trek_fp8_disable(&graph->base);
    if (status == TREK_OK && (fp8 || ends)) {
        graph->fp8 = fp8;
        graph->fp8_opts = o->fp8;
    }
    return status;
}

trek_status trek_graph_set_amp(trek_graph *graph, const trek_amp_opts *opts)
{
    if (!graph)
        return trek_fail_missing("graph_set_amp", "graph");
    trek_amp_opts o = opts ? *opts : (trek_amp_opts){ .scaling = TREK_OFF };
    trek_status status = check(&o);
    if (status != TREK_OK)
        return status;
    trek_grad_scaler *scaler = NULL;
    o.scaler.no_scaling = false;
    if ((o.scaling == 1 || (o.scaling == 0 && o.dtype == TREK_F16)) && !(scaler = trek_grad_scaler_new(&o.scaler)))
        return trek_error_status();
    if ((status = set_products(graph, &o)) != TREK_OK) {
        trek_grad_scaler_free(&scaler);
        return status;
    }
    trek_grad_scaler_free(&graph->scaler);
    graph->scaler = scaler;
    graph->autocast = o.products == TREK_AMP_PRODUCTS_FP8 ? TREK_BF16 : o.dtype;
    return TREK_OK;
}

trek_grad_scaler *trek_graph_scaler(trek_graph *graph)
{
    if (!graph)
        trek_fail_missing("graph_scaler", "graph");
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
