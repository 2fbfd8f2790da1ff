/* SPDX-License-Identifier: Apache-2.0 */
/* Converting parameters to one vector and back. */
#include <inttypes.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "nn/module.h"
#include "nn/params.h"
#include "tensor/copies.h"
#include "tensor/dtypes.h"
#include "tensor/memory_internal.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

trek_var *trek_parameters_to_vector(const trek_params *params)
{
    int n = trek_params_count(params);
    if (!params)
        return trek_fail_missing("parameters_to_vector", "list"), NULL;
    if (n == 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "parameters_to_vector: params: the list is empty; must have at least one");
    trek_var **flat = trek_calloc((size_t)n, sizeof *flat);
    bool made = flat != NULL;
    for (int k = 0; k < n && made; k++) {
        trek_var *param = trek_params_var(params, k);
        made = (flat[k] = trek_reshape(param, trek_dims(trek_var_numel(param)))) != NULL;
    }
    trek_var *vector = made ? trek_cat(flat, n, 0) : NULL;
    trek_free(flat);
    return vector;
}

static trek_status check(const trek_var *vector, const trek_params *params)
{
    char text[TREK_SHAPE_TEXT];
    int64_t total = 0;
    for (int k = 0; k < trek_params_count(params); k++)
        total += trek_var_numel(trek_params_var(params, k));
    if (trek_var_ndim(vector) != 1 || trek_var_size(vector, 0) != total)
        return trek_fail(TREK_ERR_SHAPE, "vector_to_parameters: vector: %s; must be [%" PRId64 "]",
                         trek_shape_format(trek_var_shape(vector), text, sizeof text), total);
    if (!trek_dtype_is_float(trek_var_dtype(vector)))
        return trek_fail(TREK_ERR_DTYPE, "vector_to_parameters: vector: dtype %s; must be floating",
                         trek_dtype_name(trek_var_dtype(vector)));
    return TREK_OK;
}

trek_status trek_vector_to_parameters(trek_var *vector, const trek_params *params)
{
    if (!vector || !params)
        return trek_fail_missing("vector_to_parameters", vector ? "list" : "vector");
    trek_status status = check(vector, params);
    if (status != TREK_OK)
        return status;
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    int n = trek_params_count(params);
    trek_var **parts = trek_calloc((size_t)n + 1, sizeof *parts);
    int64_t first = 0;
    status = parts ? TREK_OK : TREK_ERR_MEMORY;
    for (int k = 0; k < n && status == TREK_OK; k++) { /* checks all of them before the first is written */
        trek_var *param = trek_params_var(params, k);
        trek_var *part = trek_narrow(vector, 0, first, trek_var_numel(param));
        trek_tensor *cast = part ? trek_tensor_cast(trek_var_data(part), trek_var_dtype(param)) : NULL;
        trek_tensor *here = cast ? trek_tensor_to(cast, trek_var_device(param)) : NULL;
        trek_tensor_release(cast);
        parts[k] = here ? trek_reshape(trek_var_from(here), trek_var_shape(param)) : NULL;
        status = parts[k] ? TREK_OK : trek_error_status();
        first += trek_var_numel(param);
    }
    for (int k = 0; k < n && status == TREK_OK; k++)
        status = trek_tensor_copy_from(trek_var_data(trek_params_var(params, k)), trek_var_data(parts[k]));
    trek_free(parts);
    trek_no_grad_end();
    trek_scope_end(scope);
    return status;
}
