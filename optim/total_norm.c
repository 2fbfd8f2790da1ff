/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of several tensors together. */
#include "autograd/ops.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "tensor/dtypes.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

static trek_var *wide(trek_var *x) { return trek_dtype_is_16bit(trek_var_dtype(x)) ? trek_cast(x, TREK_F32) : x; }

/* Returns the number of tensors that are not NULL, and the widest of their dtypes, or -1 with an error if one is not
 * floating. */
static int survey(trek_var *const *tensors, int count, trek_dtype *dtype)
{
    int n = 0;
    for (int k = 0; k < count; k++) {
        if (!tensors[k])
            continue;
        trek_dtype own = trek_var_dtype(tensors[k]);
        if (!trek_dtype_is_float(own)) {
            trek_fail(TREK_ERR_DTYPE, "total_norm: tensors: dtype %s; must be floating", trek_dtype_name(own));
            return -1;
        }
        *dtype = n++ ? trek_dtype_promote(*dtype, own) : own;
    }
    return n;
}

trek_var *trek_total_norm(trek_var *const *tensors, int count, double norm_type)
{
    trek_dtype dtype = TREK_F32;
    if (count < 0 || (count > 0 && !tensors))
        return trek_fail_null(TREK_ERR_ARGUMENT, "total_norm: tensors: NULL; they must be given");
    int n = survey(tensors, count, &dtype);
    if (n <= 0)
        return n < 0 ? NULL : trek_var_from(trek_tensor_zeros(trek_dims_none(), TREK_F32, trek_cpu(0)));
    trek_var **norms = trek_calloc((size_t)n, sizeof *norms);
    bool made = norms != NULL;
    for (int k = 0, at = 0; k < count && made; k++)
        if (tensors[k])
            made = (norms[at++] = trek_norm(wide(tensors[k]), norm_type, trek_dims_all(), false)) != NULL;
    trek_var *all = made ? trek_norm(trek_stack(norms, n, 0), norm_type, trek_dims_all(), false) : NULL;
    trek_free(norms);
    return all && trek_var_dtype(all) != dtype ? trek_cast(all, dtype) : all;
}
