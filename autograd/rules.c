/* SPDX-License-Identifier: Apache-2.0 */
/* The columns "backward" and "composite" of the op table. */
#include "autograd/rules_internal.h"

#define TREK_OP(name, signature, infer, dtypes, flags, promote, key, needed, backward, saves, composite) \
    trek_var *trek_composite_rule_##composite(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs);
#include "tensor/ops.def"
#undef TREK_OP

#define trek_rule_none NULL
#define trek_composite_rule_none NULL

trek_backward_rule trek_backward_rules[TREK_OP_COUNT] = {
#define TREK_OP(name, signature, infer, dtypes, flags, promote, key, needed, backward, saves, composite) \
    [TREK_OP_##name] = trek_rule_##backward,
#include "tensor/ops.def"
#undef TREK_OP
};

const trek_composite_rule trek_composite_rules[TREK_OP_COUNT] = {
#define TREK_OP(name, signature, infer, dtypes, flags, promote, key, needed, backward, saves, composite) \
    [TREK_OP_##name] = trek_composite_rule_##composite,
#include "tensor/ops.def"
#undef TREK_OP
};

trek_var *trek_rule_zeros(const trek_backward_call *b, trek_shape shape)
{
    trek_tensor *zeros = trek_tensor_zeros(shape, (trek_dtype)b->grad->data->dtype, b->grad->data->device);
    return zeros ? trek_var_from(zeros) : NULL;
}
