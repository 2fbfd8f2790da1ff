/* SPDX-License-Identifier: Apache-2.0 */
/* Losses whose weight only their device knows, where nothing may wait for it. */
#include "autograd/losses_internal.h"
#include "autograd/ops.h"
#include "graph/batch_run.h"
#include "graph/graph_loader_internal.h"

trek_var *trek_graph_count_there(const trek_batch_run *run, trek_var *loss)
{
    bool wide = trek_var_dtype(loss) == TREK_F32 || trek_var_dtype(loss) == TREK_F64; /* which the weight fits into */
    return wide && !run->graph_loader->measures ? trek_loss_counted(loss) : NULL;
}

trek_status trek_graph_add_up_there(trek_pass_sum *sum, trek_var *loss, trek_var *weight)
{
    trek_no_grad_begin();
    trek_var *part = trek_mul(loss, trek_cast(weight, trek_var_dtype(loss)));
    trek_no_grad_end();
    if (!part)
        return trek_error_status();
    sum->on_device = trek_tensor_retain(part->data);
    sum->weight_on_device = trek_tensor_retain(weight->data);
    return TREK_OK;
}

trek_var *trek_graph_factor_there(trek_var *weight, double denominator)
{
    trek_no_grad_begin();
    trek_tensor *by = trek_tensor_full(trek_dims_none(), denominator, TREK_F64, trek_var_device(weight));
    trek_var *factor = by ? trek_div(weight, trek_var_from(by)) : NULL;
    trek_no_grad_end();
    return factor;
}
