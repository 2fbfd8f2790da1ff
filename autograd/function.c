/* SPDX-License-Identifier: Apache-2.0 */
/* Users' own ops: a node with callbacks. */
#include "autograd/function.h"

#include "autograd/offload_internal.h"

enum { MAX_SAVED = 16, MAX_OUTPUTS = 64 };

void *trek_function_data(trek_function_context *context)
{
    return context ? context->data : (trek_fail_missing("function_data", "context"), NULL);
}

bool trek_needs_grad(trek_function_context *context, int k)
{
    if (!context)
        return trek_fail_missing("needs_grad", "context"), false;
    return k >= 0 && (context->needs >> (k < 31 ? k : 31) & 1);
}

trek_status trek_save_for_backward(trek_function_context *context, trek_var *const *vars, int n)
{
    if (!context || (!vars && n > 0))
        return trek_fail_missing("save_for_backward", context ? "list of variables" : "context");
    if (!context->inputs)
        return trek_fail(TREK_ERR_STATE, "save_for_backward: %s: called outside of forward; only forward may call it",
                         context->function->name);
    if (n < 0 || n > MAX_SAVED - context->n_saved)
        return trek_fail(TREK_ERR_ARGUMENT, "save_for_backward: %s: more than %d variables; must be fewer",
                         context->function->name, MAX_SAVED);
    for (int k = 0; k < n; k++) {
        if (!vars[k])
            return trek_fail_missing("save_for_backward", "variable");
        int s = context->n_saved++;
        context->pending[s] = vars[k];
        bool is_leaf = !vars[k]->node && vars[k]->requires_grad;
        context->saved[s].offloads = trek_offloads() && !is_leaf && context->tape &&
                                     trek_offload_note(context->tape, vars[k]->data, context->tape->next_serial + 1,
                                                       &trek_grad_mode_here.offload);
        context->saved[s].tensor = trek_tensor_retain(vars[k]->data);
        context->saved[s].version = vars[k]->data->storage->version;
        context->saved[s].input = context->saved[s].output = -1;
        for (int i = 0; i < context->n_inputs; i++)
            if (context->inputs[i] == vars[k])
                context->saved[s].input = i;
    }
    return TREK_OK;
}

trek_var *trek_saved(trek_function_context *context, int k)
{
    if (!context)
        return trek_fail_missing("saved", "context"), NULL;
    if (k < 0 || k >= context->n_saved)
        return trek_fail_null(TREK_ERR_ARGUMENT, "saved: %s: k: %d; there are %d", context->function->name, k, context->n_saved);
    trek_tensor *tensor = context->saved[k].tensor;
    if (tensor->storage->version != context->saved[k].version)
        return trek_fail_null(TREK_ERR_STATE,
                              "backward of %s: saved variable %d was overwritten after it was saved; write to a copy",
                              context->function->name, k);
    if (context->saved[k].offloads && trek_offload_bring(context->tape, tensor) != TREK_OK)
        return NULL;
    trek_node *node = context->node;
    int input = context->saved[k].input, output = context->saved[k].output;
    if (!node || !context->create_graph)
        return trek_var_constant(tensor);
    if (input >= 0 && node->edges[input].leaf)
        return node->edges[input].leaf;
    trek_node *from = input >= 0 ? node->edges[input].node : output >= 0 ? node : NULL;
    trek_var *var = trek_var_constant(tensor);
    if (!var || !from)
        return var;
    trek_ref_take(&from->refs);
    var->node = from;
    var->output = (uint8_t)(input >= 0 ? node->edges[input].output : output);
    var->requires_grad = true;
    return var;
}

trek_status trek_function_backward(trek_node *node, bool create_graph, uint32_t needs, trek_var **grads)
{
    trek_function_context *context = node->context;
    trek_var *out_grads[MAX_OUTPUTS];
    if (!context->function->backward)
        return trek_fail(TREK_ERR_UNSUPPORTED, "%s: backward: the function has none, and cannot be differentiated",
                         context->function->name);
    out_grads[0] = node->grad;
    for (int k = 1; k < node->n_outputs; k++)
        out_grads[k] = node->more_grads ? node->more_grads[k] : NULL;
    context->node = node;
    context->create_graph = create_graph;
    context->needs = needs;
    trek_status status = context->function->backward(context, out_grads, node->n_outputs, grads, node->n_inputs);
    context->node = NULL;
    if (status != TREK_OK)
        return trek_fail_after(status, "backward: that of %s failed", context->function->name);
    return trek_error_status();
}

/* --- forward ------------------------------------------------------------------------- */

/* Makes the outputs results of the node. An output that is an input, or that forward's own ops recorded, becomes a
 * variable of its own. */
static trek_status attach(trek_function_context *context, trek_node *node, trek_var **outputs, int n)
{
    for (int k = 0; k < n; k++) {
        trek_var *made = outputs[k];
        if (!made)
            return trek_fail(TREK_ERR_CALLBACK, "%s: forward: output %d is missing; it must write all", context->function->name,
                             k);
        trek_var *var = trek_var_make(trek_tensor_retain(made->data), NULL, k, false);
        if (!var) {
            trek_tensor_release(made->data);
            return trek_error_status();
        }
        if (trek_scope_push(var, context->function->name) != TREK_OK) {
            trek_var_release(var);
            return trek_error_status();
        }
        for (int s = 0; s < context->n_saved; s++)
            if (context->pending[s] == made)
                context->saved[s].output = k;
        if (node && trek_dtype_is_float((trek_dtype)made->data->dtype)) {
            trek_ref_take(&node->refs);
            var->node = node;
            var->requires_grad = true;
        }
        outputs[k] = var;
    }
    return TREK_OK;
}

static bool any_needs_grad(trek_var *const *inputs, int n)
{
    for (int k = 0; k < n; k++)
        if (inputs[k] && inputs[k]->requires_grad)
            return true;
    return false;
}

static trek_status run_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                               int n_outputs)
{
    context->inputs = inputs;
    context->n_inputs = n_inputs;
    for (int k = 0; k < n_outputs; k++)
        outputs[k] = NULL;
    trek_no_grad_begin();
    trek_status status = context->function->forward(context, inputs, n_inputs, outputs, n_outputs);
    trek_no_grad_end();
    context->inputs = NULL;
    if (status != TREK_OK)
        return trek_fail_after(status, "%s: forward: it failed", context->function->name);
    return trek_error_status();
}

/* Results move to the caller's scope one by one, so they are retained beyond the end of the inner scope. */
static trek_status leave_scope(trek_scope scope, trek_status status, trek_var **outputs, int n)
{
    for (int k = 0; status == TREK_OK && k < n; k++)
        trek_var_retain(outputs[k]);
    trek_scope_end(scope);
    for (int k = 0; status == TREK_OK && k < n; k++) {
        if (trek_scope_push(outputs[k], "function_apply") == TREK_OK)
            continue;
        status = trek_error_status();
        for (int rest = k; rest < n; rest++)
            trek_var_release(outputs[rest]);
    }
    for (int k = 0; status != TREK_OK && k < n; k++)
        outputs[k] = NULL;
    return status;
}

trek_status trek_function_apply(const trek_function *function, void *data, trek_var *const *inputs, int n_inputs,
                                trek_var **outputs,
                                int n_outputs)
{
    if (!function || !function->forward) {
        if (function && function->free && data)
            function->free(data);
        return trek_fail_missing("function_apply", function ? "forward" : "function");
    }
    trek_function_context *context = trek_calloc(1, sizeof *context);
    if (!context) {
        if (function->free && data)
            function->free(data);
        return trek_error_status();
    }
    context->function = function;
    context->data = data;
    context->tape = trek_offloads() ? trek_tape_get() : NULL;
    trek_status status = trek_error_status();
    if (status == TREK_OK && (n_inputs < 0 || (n_inputs > 0 && !inputs) || !outputs))
        status = n_inputs < 0 ? trek_fail(TREK_ERR_ARGUMENT, "%s: n_inputs: %d; must be at least 1", function->name, n_inputs)
                              : trek_fail_missing(function->name, outputs ? "inputs" : "outputs");
    for (int k = 0; status == TREK_OK && k < n_inputs; k++)
        status = inputs[k] ? TREK_OK : trek_fail_missing(function->name, "input");
    if (status == TREK_OK && (n_outputs < 1 || n_outputs > MAX_OUTPUTS))
        status = trek_fail(TREK_ERR_ARGUMENT, "%s: n_outputs: %d; must be 1 to %d", function->name, n_outputs, MAX_OUTPUTS);
    if (status == TREK_OK && trek_scopes.depth == 0)
        status = trek_fail(TREK_ERR_SCOPE, "%s: no scope is open", function->name);
    trek_scope scope = status == TREK_OK ? trek_scope_begin() : (trek_scope){ 0, 0 };
    if (!scope.depth) {
        trek_function_context_free(context);
        return trek_error_status();
    }
    status = run_forward(context, inputs, n_inputs, outputs, n_outputs);
    trek_node *node = NULL;
    bool record = status == TREK_OK && trek_recording() && any_needs_grad(inputs, n_inputs);
    if (record && !(node = trek_node_new(NULL, inputs, n_inputs, n_outputs, NULL, 0)))
        status = trek_error_status();
    if (status == TREK_OK)
        status = attach(context, node, outputs, n_outputs);
    if (node)
        node->context = context;
    if (node && trek_offload_has(node->tape))
        trek_offload_send(node->tape);
    status = leave_scope(scope, status, outputs, n_outputs);
    if (node)
        trek_node_release(node);
    else
        trek_function_context_free(context);
    return status;
}

trek_var *trek_function_apply_one(const trek_function *function, void *data, trek_var *const *inputs, int n_inputs)
{
    trek_var *out;
    return trek_function_apply(function, data, inputs, n_inputs, &out, 1) == TREK_OK ? out : NULL;
}
