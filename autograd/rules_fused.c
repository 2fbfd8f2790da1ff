/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives of attention and of the norms of transformers. */
#include "autograd/rules_internal.h"

trek_status trek_rule_rms_norm(trek_backward_call *b)
{
    if (b->create_graph)
        return trek_rule_composite(b);
    trek_var *in[4] = { b->grad, trek_rule_input(b, 0), trek_rule_output(b, 1), trek_rule_input(b, 1) };
    return trek_apply_many(&trek_ops[TREK_OP_rms_norm_backward], in, 4, b->attrs, b->grads, 2);
}

/* The mask is a constant. */
trek_status trek_rule_attention(trek_backward_call *b)
{
    if (b->create_graph)
        return trek_rule_composite(b);
    trek_var *in[7] = { b->grad, trek_rule_input(b, 0), trek_rule_input(b, 1), trek_rule_input(b, 2), trek_rule_output(b, 0),
                        trek_rule_output(b, 1), trek_rule_input(b, 3) };
    return trek_apply_many(&trek_ops[TREK_OP_attention_backward], in, 7, b->attrs, b->grads, 3);
}
