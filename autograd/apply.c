/* SPDX-License-Identifier: Apache-2.0 */
/* Applying ops to variables and recording them. */
#include "autograd/calls_internal.h"
#include "autograd/offload_internal.h"
#include "autograd/ops.h"
#include "autograd/tape_internal.h"
#include "tensor/backend.h"
#include "tensor/debug.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

enum { FEW = 8 };

trek_status trek_infer_same(trek_op_call *call);
trek_status trek_infer_broadcast(trek_op_call *call);

/* Returns which inputs and outputs the gradients of the required inputs need. */
static unsigned wanted_saves(const trek_op *op, trek_var *const *inputs, int n, const trek_op_call *call)
{
    unsigned wanted = 0;
    for (int k = 0; k < n; k++)
        if (inputs[k] && inputs[k]->requires_grad)
            wanted |= op->saves[k < TREK_MAX_SAVES ? k : TREK_MAX_SAVES - 1];
    if (op->id == TREK_OP_linear && call->attrs.i[0] == TREK_ACTIVATION_NONE)
        wanted &= ~(TREK_O(0) | TREK_O(1)); /* no derivative of an activation depends on the result */
    else if (op->id == TREK_OP_linear)
        wanted |= TREK_I(0) | TREK_I(1) | TREK_I(2); /* gradients of gradients need the values, also the bias's */
    if (op->id == TREK_OP_linear && call->attrs.i[0] == TREK_ACTIVATION_GELU)
        wanted &= ~TREK_O(0); /* the derivative follows from the pre-activation */
    if (op->id == TREK_OP_conv2d && call->attrs.i[7] == TREK_ACTIVATION_NONE)
        wanted &= ~TREK_O(0);
    return wanted;
}

static void save(trek_node *node, trek_tensor *t, int index, bool is_output)
{
    bool offloads = trek_offloads() && (is_output || !node->edges[index].leaf) &&
                    trek_offload_note(node->tape, t, node->serial, &trek_grad_mode_here.offload);
    trek_ref_take(&t->refs);
    node->saved[node->n_saved++] = (trek_saved_tensor){ .tensor = t, .version = t->storage->version, .is_output = is_output,
                                                        .index = (uint8_t)index, .offloads = offloads };
}

/* Returns the node of a call that has run, or NULL with MEMORY. */
static trek_node *record(const trek_op *op, trek_var *const *inputs, int n, const trek_attrs *attrs, trek_op_call *call)
{
    unsigned wanted = wanted_saves(op, inputs, n, call);
    int n_saved = 0;
    for (unsigned bits = wanted; bits; bits &= bits - 1)
        n_saved++;
    trek_node *node = trek_node_new(op, inputs, n, op->flags & TREK_OP_PAIR ? 2 : 1, attrs ? &call->attrs : NULL, n_saved);
    if (!node)
        return NULL;
    for (unsigned bits = wanted; bits; bits &= bits - 1) { /* bits as in TREK_I and TREK_O */
        int bit = __builtin_ctz(bits), k = bit & 7;
        trek_tensor *t = bit >= 8 ? call->outputs[k] : k < n ? call->inputs[k] : NULL;
        if (t)
            save(node, t, k, bit >= 8);
    }
    if (trek_offload_has(node->tape))
        trek_offload_send(node->tape);
    return node;
}

/* Returns the tensors of the inputs, in few[] or in a block of their own, or NULL on failure. */
static inline trek_tensor **unwrap(const trek_op *op, trek_var *const *inputs, int n, trek_tensor **few, bool *needs_grad)
{
    trek_tensor **tensors = few;
    if (n > FEW && !(tensors = trek_block_alloc((size_t)n * sizeof *tensors)))
        return NULL;
    bool needs = false, missing = false;
    for (int k = 0; k < n; k++) {
        if (inputs[k]) {
            tensors[k] = inputs[k]->data;
            needs |= inputs[k]->requires_grad;
        } else {
            tensors[k] = NULL;
            missing |= k >= FEW || (op->needed >> k & 1) || op->needed == 0 || trek_error_status() != TREK_OK;
        }
    }
    *needs_grad = needs;
    if (!missing)
        return tensors;
    trek_fail_missing(trek_op_called(op), "input");
    if (tensors != few)
        trek_block_free(tensors);
    return NULL;
}

/* Returns whether output k has a gradient. Output 1 of add_layer_norm, the sum of inputs 0 and 1, has one only if one
 * of these has. */
static inline bool is_taped(const trek_node *node, int k)
{
    if (!node || k >= node->n_outputs)
        return false;
    return k == 0 || node->op->id != TREK_OP_add_layer_norm || node->edges[0].node || node->edges[0].leaf ||
        node->edges[1].node || node->edges[1].leaf;
}

/* Makes the outputs' variables: output 0 (and 1 of a pair) with its place on the tape, the others as constants. */
static inline trek_status wrap_outputs(trek_op_call *call, trek_node *node, trek_var **outs, int n)
{
    for (int k = 0; k < n; k++) {
        if (!call->outputs[k]) {
            outs[k] = NULL;
            continue;
        }
        bool taped = is_taped(node, k);
        bool in_node = taped && k == 0 && !trek_debug; /* debugging keeps freed variables visible, each in its own block */
        trek_var *var = in_node ? trek_var_of_node(call->outputs[k], node)
                                : trek_var_make(call->outputs[k], taped ? node : NULL, k, taped);
        if (!var)
            return trek_error_status();
        call->outputs[k] = NULL;
        if (taped)
            trek_ref_take(&node->refs);
        if (trek_scope_push(var, call->op->name) != TREK_OK) {
            trek_var_release(var);
            return trek_error_status();
        }
        outs[k] = var;
    }
    return TREK_OK;
}

static inline trek_status run(const trek_op *op, trek_var *const *inputs, trek_tensor **tensors, int n, const trek_attrs *attrs,
                              bool needs_grad, trek_tensor *given, trek_var **outs, int n_outs)
{
    trek_op_call call;
    call.op = op;
    call.n_inputs = n;
    call.n_outputs = 0;
    call.inputs = tensors;
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++)
        call.outputs[k] = NULL;
    if (attrs)
        call.attrs = *attrs;
    else
        call.attrs.i[0] = 0; /* all that an op without numbers may read */
    if (given) {
        call.outputs[0] = given;
        call.n_outputs = 1;
    }
    trek_status status = trek_op_run(&call);
    if (status != TREK_OK)
        return status;
    trek_node *node = NULL;
    if (needs_grad && trek_recording() && trek_backward_rules[op->id] && (TREK_FLOATS >> call.outputs[0]->dtype & 1) &&
        !(node = record(op, inputs, n, attrs, &call)))
        status = trek_error_status();
    if (status == TREK_OK)
        status = wrap_outputs(&call, node, outs, n_outs);
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++)
        if (call.outputs[k])
            trek_tensor_drop(call.outputs[k]);
    if (node)
        trek_node_release(node);
    return status;
}

static trek_status fail_scope(const trek_op *op)
{
    return trek_fail(TREK_ERR_SCOPE, "%s: no scope is open; begin one with trek_scope_begin, or use a loader's loop",
                     trek_op_called(op));
}

/* With TREK_DEBUG=1: checks that neither the variables nor their tensors were freed. */
TREK_SELDOM static trek_status check_inputs_live(const trek_op *op, trek_var *const *inputs, int n)
{
    for (int k = 0; k < n; k++) {
        if (!inputs[k])
            continue;
        trek_status status = trek_debug_refuse(inputs[k], op->name, "input", k);
        if (status == TREK_OK)
            status = trek_debug_refuse(inputs[k]->data, op->name, "the tensor of input", k);
        if (status != TREK_OK)
            return status;
    }
    return TREK_OK;
}

trek_status trek_apply_many(const trek_op *op, trek_var *const *inputs, int n, const trek_attrs *attrs, trek_var **outs,
                            int n_outs)
{
    trek_tensor *few[FEW];
    bool needs_grad;
    if (trek_scopes.depth == 0)
        return fail_scope(op);
    if (trek_debug && check_inputs_live(op, inputs, n) != TREK_OK)
        return TREK_ERR_STATE;
    if (trek_grad_mode_here.autocast != TREK_F32 && (op->flags & TREK_OP_CASTS))
        return trek_autocast_apply(op, inputs, n, attrs, outs, n_outs);
    trek_tensor **tensors = unwrap(op, inputs, n, few, &needs_grad);
    if (!tensors)
        return trek_error_status();
    trek_status status = run(op, inputs, tensors, n, attrs, needs_grad, NULL, outs, n_outs);
    if (tensors != few)
        trek_block_free(tensors);
    return status;
}

trek_var *trek_apply_into(const trek_op *op, trek_var *const *inputs, int n, trek_tensor *given)
{
    trek_tensor *few[FEW], **tensors = few;
    trek_var *out;
    bool needs_grad = false;
    trek_status status = trek_scopes.depth == 0 ? fail_scope(op) : TREK_OK;
    if (status == TREK_OK && !(tensors = unwrap(op, inputs, n, few, &needs_grad)))
        status = trek_error_status();
    trek_ref_take(&given->refs);
    if (status == TREK_OK)
        status = run(op, inputs, tensors, n, NULL, needs_grad, given, &out, 1);
    if (status != TREK_OK)
        trek_tensor_release(given); /* the reference that the result would have had */
    trek_tensor_release(given);
    if (tensors && tensors != few)
        trek_block_free(tensors);
    return status == TREK_OK ? out : NULL;
}

/* trek_op_run for one or two inputs. For element-wise ops on floating inputs of equal dtype, device and shape that
 * are contiguous, as in most small ops, nothing has to be promoted or inferred: the result has the same properties. */
static inline trek_status run_lean(trek_op_call *call)
{
    const trek_op *op = call->op;
    const trek_tensor *x = call->inputs[0], *y = call->inputs[call->n_inputs - 1];
    if ((op->infer != trek_infer_broadcast && op->infer != trek_infer_same) || !(op->dtypes & TREK_FLOATS & 1u << x->dtype) ||
        !x->contiguous || trek_rank_watched())
        return trek_op_run(call);
    if (x != y && (y->dtype != x->dtype || !y->contiguous || y->device.type != x->device.type ||
                   y->device.index != x->device.index || !trek_same_sizes(x, y)))
        return trek_op_run(call);
    trek_kernel kernel = trek_backends[x->device.type]->kernels[op->id][x->dtype];
    if (!kernel)
        return trek_op_run(call);
    call->n_outputs = 1;
    call->outputs[0] = trek_tensor_make_like(x);
    if (!call->outputs[0])
        return trek_error_status();
    trek_status status = kernel(call);
    if (status != TREK_OK) {
        trek_tensor_drop(call->outputs[0]);
        call->outputs[0] = NULL;
    }
    return status;
}

/* The lean path of the usual op: one or two inputs, both present, and one output. */
static inline trek_var *apply_lean(const trek_op *op, trek_var *const *inputs, int n, const trek_attrs *attrs)
{
    trek_tensor *tensors[2];
    trek_op_call call;
    call.op = op;
    call.n_inputs = n;
    call.n_outputs = 0;
    call.inputs = tensors;
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++)
        call.outputs[k] = NULL;
    tensors[0] = inputs[0]->data;
    bool needs_grad = inputs[0]->requires_grad;
    if (n == 2) {
        tensors[1] = inputs[1]->data;
        needs_grad |= inputs[1]->requires_grad;
    }
    if (attrs)
        call.attrs = *attrs;
    else
        call.attrs.i[0] = 0;
    if (run_lean(&call) != TREK_OK)
        return NULL;
    trek_node *node = NULL;
    if (needs_grad && trek_recording() && trek_backward_rules[op->id] && (TREK_FLOATS >> call.outputs[0]->dtype & 1) &&
        !(node = record(op, inputs, n, attrs, &call))) {
        trek_tensor_drop(call.outputs[0]);
        return NULL;
    }
    trek_var *var = node ? trek_var_of_node(call.outputs[0], node) : trek_var_make(call.outputs[0], NULL, 0, false);
    if (var && trek_scope_push(var, op->name) == TREK_OK)
        return var;
    if (var) {
        trek_var_drop(var);
        return NULL;
    }
    trek_tensor_drop(call.outputs[0]);
    return NULL;
}

trek_var *trek_apply(const trek_op *op, trek_var *const *inputs, int n, const trek_attrs *attrs)
{
    if (trek_scopes.depth > 0 && (n == 1 || (n == 2 && inputs[1])) && inputs[0] && !(op->flags & TREK_OP_MANY) &&
        trek_grad_mode_here.autocast == TREK_F32 && trek_is_lean() && !trek_trace_records())
        return apply_lean(op, inputs, n, attrs);
    trek_var *out;
    return trek_apply_many(op, inputs, n, attrs, &out, 1) == TREK_OK ? out : NULL;
}

/* --- trek_x of public rows, trek_apply_x of the others ------------------------------------ */

/* Only ops with numbers keep them on the tape (a is NULL for the others). Fill ops write an existing tensor, and are
 * not for variables. */
#define APPLY(function, name, signature, flags)                                        \
    trek_var *function(TREK_PARAMS_##signature(trek_var))                              \
    {                                                                                  \
        trek_attrs attrs, *a = &attrs;                                                 \
        TREK_INPUTS_##signature(trek_var);                                             \
        TREK_ATTRS_##signature;                                                        \
        if ((flags) & TREK_OP_FILL)                                                    \
            return trek_fail_null(TREK_ERR_UNSUPPORTED, #name ": for tensors only");   \
        return trek_apply(&trek_ops[TREK_OP_##name], in, n_in, a);                     \
    }
#define TREK_OP(name, signature, infer, dtypes, flags, ...) APPLY(trek_apply_##name, name, signature, flags)
#define TREK_PUBLIC_OP(name, signature, infer, dtypes, flags, ...) APPLY(trek_##name, name, signature, flags)
#include "tensor/ops.def"
#undef TREK_OP
