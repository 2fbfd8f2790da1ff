/* SPDX-License-Identifier: Apache-2.0 */
/* How the passes of a step are weighed, and what their backward begins with. */
#include "graph/accumulate.h"

#include <math.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "graph/graph_internal.h"
#include "optim/scaler_internal.h"

double trek_accumulation_denominator(trek_accumulation *a, double planned)
{
    if (a->denominator == 0 && planned > 0)
        a->denominator = planned;
    return a->denominator;
}

double trek_accumulation_factor(const trek_accumulation *a)
{
    return a->denominator > 0 && a->weight > 0 ? a->denominator / a->weight : 1;
}

void trek_accumulation_settled(trek_accumulation *a)
{
    if (a->denominator > 0 && a->weight > 0)
        a->denominator = a->weight;
}

void trek_accumulation_clear(trek_accumulation *a) { a->denominator = a->weight = 0; }

int64_t trek_graph_input_rows(const trek_graph *graph, trek_var *const *inputs, int n)
{
    for (int k = 0; k < n; k++)
        if (inputs[k] && trek_var_ndim(inputs[k]) > 0 && !trek_graph_input_is_whole(graph, k))
            return trek_var_size(inputs[k], 0);
    return 0;
}

double trek_graph_loss_weight(const trek_graph *graph, trek_var *loss, double stated)
{
    if (stated >= 0)
        return stated;
    double weight = trek_loss_weight(loss);
    if (!isnan(weight) || trek_error_status() != TREK_OK)
        return weight;
    return graph->accumulation.rows >= 0 ? (double)graph->accumulation.rows : 1;
}

/* Casts the loss to f32 because the scale does not fit into f16. */
static bool widen(trek_var **loss)
{
    if (trek_dtype_is_16bit(trek_var_dtype(*loss)))
        *loss = trek_cast(*loss, TREK_F32);
    return *loss != NULL;
}

trek_status trek_graph_seed_by(trek_grad_scaler *scaler, trek_var *factor, trek_var **loss, trek_var **seed)
{
    *seed = NULL;
    if (!factor || !widen(loss))
        return trek_error_status();
    trek_dtype dtype = trek_var_dtype(*loss);
    trek_no_grad_begin();
    *seed = trek_reshape(trek_cast(factor, dtype), trek_var_shape(*loss));
    if (scaler && *seed)
        *seed = trek_mul(trek_cast(trek_scaler_seed(scaler, *loss), dtype), *seed);
    trek_no_grad_end();
    return *seed ? TREK_OK : trek_error_status();
}

trek_status trek_graph_seed(trek_grad_scaler *scaler, double factor, trek_var **loss, trek_var **seed)
{
    *seed = NULL;
    if (!scaler && factor == 1)
        return TREK_OK;
    if (!widen(loss))
        return trek_error_status();
    trek_no_grad_begin();
    if (scaler)
        *seed = trek_scaler_seed(scaler, *loss);
    if (scaler && factor != 1) /* in the loss's precision; the scale itself is exact in any */
        *seed = trek_mul_scalar(trek_cast(*seed, trek_var_dtype(*loss)), factor);
    if (!scaler)
        *seed = trek_var_from(trek_tensor_full(trek_var_shape(*loss), factor, trek_var_dtype(*loss), trek_var_device(*loss)));
    trek_no_grad_end();
    return *seed ? TREK_OK : trek_error_status();
}
