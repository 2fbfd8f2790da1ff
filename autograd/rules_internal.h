/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers that backward rules share. */
#ifndef TREK_AUTOGRAD_RULES_INTERNAL_H
#define TREK_AUTOGRAD_RULES_INTERNAL_H

#include "autograd/ops.h"
#include "autograd/var_internal.h"


/* Every rule that the op table names. */
#define TREK_OP(name, signature, infer, dtypes, flags, promote, key, needed, backward, ...) \
    trek_status trek_rule_##backward(trek_backward_call *b);
#include "tensor/ops.def"
#undef TREK_OP

/* Sets the only input's gradient; NULL is a failure. */
static inline trek_status trek_rule_give(trek_backward_call *b, trek_var *grad)
{
    b->grads[0] = grad;
    return grad ? TREK_OK : trek_error_status();
}

/* Sets input k's gradient; NULL is a failure. */
static inline trek_status trek_rule_give_to(trek_backward_call *b, int k, trek_var *grad)
{
    b->grads[k] = grad;
    return grad ? TREK_OK : trek_error_status();
}

/* Returns 16-bit x as f32: a composite computes in f32 where its fused op does, and rounds its result. */
static inline trek_var *trek_rule_wide(trek_var *x)
{
    return x && trek_dtype_is_16bit(trek_var_dtype(x)) ? trek_cast(x, TREK_F32) : x;
}

/* Returns the result in the dtype of `like`. */
static inline trek_var *trek_rule_rounded(trek_var *y, const trek_var *like)
{
    return y && like ? trek_cast(y, trek_var_dtype(like)) : NULL;
}

/* Returns v in the dtype that a formula of several steps is computed in: the gradient's dtype, or f32 for 16-bit
 * ones. The result is rounded once, when the engine casts it to the input's dtype. Returns NULL for NULL. */
static inline trek_var *trek_rule_full(const trek_backward_call *b, trek_var *v)
{
    trek_dtype dtype = (trek_dtype)b->grad->data->dtype;
    return v ? trek_cast(v, trek_dtype_is_16bit(dtype) ? TREK_F32 : dtype) : NULL;
}

/* Writes grad^T x [out, in] (from rows [n, out] and [n, in]) into place, or adds it to place. */
trek_status trek_rule_weight_into(trek_tensor *place, trek_tensor *grad, trek_tensor *x, bool overwrite);

/* Returns zeros of that shape, in the rule's scope. */
trek_var *trek_rule_zeros(const trek_backward_call *b, trek_shape shape);

#endif
