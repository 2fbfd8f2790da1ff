/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of random sequences that are no ops: variables, gradients, scopes, hooks, functions of one's own, modules,
 * optimizers, schedules, state, DLPack. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/grad.h"
#include "autograd/leaf.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/state_modules.h"
#include "optim/clip.h"
#include "optim/groups.h"
#include "optim/schedules.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/dlpack.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/memory.h"
#include "tensor/print.h"
#include "tests/sequences/sequence.h"

/* --- variables ---------------------------------------------------------------------------- */

static outcome new_leaf(pool *p)
{
    trek_var *leaf = pool_leaf(p);
    outcome made = sequence_var(p, leaf);
    pool_leaf_made(p, leaf);
    trek_var_release(leaf);
    p->made = NULL; /* may have been released: it was not kept where it is large */
    return made;
}

static outcome drop(pool *p)
{
    pool_drop(p, pool_below(p, POOL_SLOTS));
    return OUTCOME_EITHER;
}

static outcome detach(pool *p) { return sequence_var(p, trek_var_detach(pool_var(p))); }
static outcome set_requires_grad(pool *p)
{
    trek_var *x = pool_var(p);
    pool_leaf_made(p, x);
    return sequence_status(trek_var_set_requires_grad(x, pool_chance(p, 70)));
}
static outcome set_grad(pool *p)
{
    trek_var *x = pool_var(p);
    return sequence_status(trek_var_set_grad(x, pool_chance(p, 30) ? NULL : pool_like(p, x)));
}
static outcome grad_of(pool *p)
{
    trek_var *x = pool_var(p);
    p->made = x ? trek_var_grad(x) : NULL;
    pool_keep(p, p->made);
    return OUTCOME_EITHER;
}
static outcome zero_grad(pool *p)
{
    trek_var *x = pool_var(p);
    if (x)
        trek_var_zero_grad(x);
    return OUTCOME_EITHER;
}
static outcome item(pool *p)
{
    trek_var *x = pool_var(p);
    p->number = x ? trek_var_item(x) : 0;
    return OUTCOME_EITHER;
}
static outcome size(pool *p)
{
    trek_var *x = pool_var(p);
    p->number = x ? (double)trek_var_size(x, pool_dim(p)) : 0;
    return OUTCOME_EITHER;
}

/* --- tensors -------------------------------------------------------------------------------- */

static outcome tensor_var(pool *p, trek_tensor *made)
{
    return sequence_var(p, made ? trek_var_from(made) : NULL);
}

static outcome to_host(pool *p)
{
    trek_var *x = pool_var(p);
    unsigned char bytes[8192];
    memset(bytes, 0, sizeof bytes);
    if (!x)
        return OUTCOME_EITHER;
    trek_dtype dtype = pool_dtype(p);
    size_t n = trek_dtype_size(dtype) * (size_t)trek_var_numel(x);
    return sequence_status(trek_tensor_to_host(trek_var_data(x), dtype, bytes, n > sizeof bytes || pool_chance(p, 10) ? 3 : n));
}

static outcome copy_from(pool *p)
{
    trek_var *x = pool_var(p), *y = pool_like(p, x);
    return x && y ? sequence_status(trek_tensor_copy_from(trek_var_data(x), trek_var_data(y))) : OUTCOME_EITHER;
}

static outcome tensor_view(pool *p)
{
    trek_var *x = pool_var(p);
    return tensor_var(p, trek_tensor_view(x ? trek_var_data(x) : NULL, pool_sizes(p, x)));
}

static outcome arange(pool *p)
{
    double start = pool_number(p), end = pool_number(p), step = pool_number(p);
    if (!(fabs((end - start) / step) < 1000)) /* a long one is no error, only slow */
        return OUTCOME_EITHER;
    return tensor_var(p, trek_tensor_arange(start, end, step, pool_dtype(p), pool_device(p)));
}
static outcome linspace(pool *p)
{
    return tensor_var(p, trek_tensor_linspace(pool_number(p), pool_number(p), pool_dim(p) % 1000, pool_dtype(p), pool_device(p)));
}
static outcome logspace(pool *p)
{
    return tensor_var(p, trek_tensor_logspace(pool_number(p), pool_number(p), pool_dim(p) % 1000, pool_number(p), pool_dtype(p),
                                              pool_device(p)));
}
static outcome eye(pool *p) { return tensor_var(p, trek_tensor_eye(pool_dim(p) % 40, pool_dtype(p), pool_device(p))); }
static outcome randperm(pool *p) { return tensor_var(p, trek_tensor_randperm(pool_dim(p) % 1000, pool_device(p))); }

static outcome dlpack(pool *p)
{
    trek_var *x = pool_var(p);
    void *managed = trek_tensor_to_dlpack(x ? trek_var_data(x) : NULL);
    return managed ? tensor_var(p, trek_tensor_from_dlpack(managed)) : OUTCOME_FAILED;
}

static outcome text_of(pool *p)
{
    trek_var *x = pool_var(p);
    char *text = trek_tensor_text(x ? trek_var_data(x) : NULL);
    p->number = text ? (double)strlen(text) : 0;
    outcome made = text ? OUTCOME_MADE : OUTCOME_FAILED;
    trek_string_free(&text);
    return made;
}

/* --- gradients -------------------------------------------------------------------------------- */

static trek_backward_opts backward_opts(pool *p)
{
    return (trek_backward_opts){ .retain_graph = pool_chance(p, 30), .create_graph = pool_chance(p, 25) };
}

/* A scalar of a variable, so that a backward pass has something to begin with. */
static trek_var *scalar_of(pool *p)
{
    trek_var *x = pool_var(p);
    return pool_chance(p, 70) ? trek_sum(x, trek_dims_all(), false) : x;
}

static outcome backward(pool *p) { return sequence_status(trek_backward(scalar_of(p))); }
static outcome backward_with(pool *p)
{
    trek_var *x = pool_var(p);
    trek_backward_opts opts = backward_opts(p);
    return sequence_status(trek_backward_with(x, pool_chance(p, 20) ? NULL : pool_like(p, x), pool_chance(p, 20) ? NULL : &opts));
}

static outcome grad(pool *p)
{
    trek_var *outputs[2], *inputs[POOL_LIST], *seeds[2], *grads[POOL_LIST] = { NULL };
    trek_backward_opts opts = backward_opts(p);
    int n = pool_below(p, 3), m = pool_below(p, POOL_LIST + 1);
    for (int k = 0; k < 2; k++) {
        outputs[k] = pool_chance(p, 50) ? scalar_of(p) : pool_var(p);
        seeds[k] = pool_chance(p, 30) ? NULL : pool_like(p, outputs[k]);
    }
    for (int k = 0; k < POOL_LIST; k++)
        inputs[k] = pool_var(p);
    trek_status status = trek_grad(outputs, n, inputs, m, pool_chance(p, 20) ? NULL : seeds, pool_chance(p, 20) ? NULL : &opts,
                                   pool_chance(p, 98) ? grads : NULL);
    for (int k = 0; k < POOL_LIST; k++)
        pool_keep(p, grads[k]);
    return sequence_status(status);
}

static outcome no_grad(pool *p)
{
    if (p->no_grad > 0 && pool_chance(p, 80)) {
        trek_no_grad_end();
        p->no_grad--;
    } else if (p->no_grad < 2) {
        trek_no_grad_begin();
        p->no_grad++;
    }
    return OUTCOME_EITHER;
}

static outcome autocast(pool *p)
{
    if (p->autocast > 0 && pool_chance(p, 80)) {
        trek_autocast_end();
        p->autocast--;
    } else if (p->autocast < 2) {
        trek_autocast_begin(pool_chance(p, 90) ? TREK_BF16 : pool_dtype(p));
        p->autocast++;
    }
    return OUTCOME_EITHER;
}

static trek_var *on_grad(trek_var *var, trek_var *given, void *arg)
{
    (void)var;
    uint64_t kind = (uint64_t)(uintptr_t)arg % 4;
    if (kind == 0)
        return trek_mul_scalar(given, 2);
    if (kind == 1)
        return trek_fail(TREK_ERR_CALLBACK, "a hook that fails"), NULL;
    return kind == 2 ? trek_sum(given, trek_dims_all(), false) : NULL; /* mostly of another shape */
}

static outcome hook(pool *p)
{
    trek_var *x = pool_var(p);
    int handle = trek_var_on_grad(x, pool_chance(p, 97) ? on_grad : NULL, (void *)(uintptr_t)pool_below(p, 12));
    if (handle > 0 && pool_chance(p, 50))
        trek_var_remove_hook(x, handle);
    if (x && pool_chance(p, 5))
        trek_var_remove_hook(x, pool_dim(p));
    return handle > 0 ? OUTCOME_MADE : OUTCOME_FAILED;
}

/* --- a function of one's own ------------------------------------------------------------------- */

static trek_status twice_forward(trek_function_context *context, trek_var *const *inputs, int n, trek_var **outputs,
                                 int n_outputs)
{
    const int *kind = trek_function_data(context);
    if (*kind == 1)
        return trek_fail(TREK_ERR_CALLBACK, "a forward that fails");
    for (int k = 0; k < n_outputs; k++)
        outputs[k] = *kind == 2 ? NULL : trek_mul_scalar(inputs[n > 0 ? k % n : 0], 2);
    return n > 0 ? trek_save_for_backward(context, inputs, n) : TREK_OK;
}

static trek_status twice_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **input_grads,
                                  int n_inputs)
{
    const int *kind = trek_function_data(context);
    for (int k = 0; k < n_inputs; k++)
        input_grads[k] = trek_needs_grad(context, k) && grads[k % n] ? trek_mul_scalar(grads[k % n], 2) : NULL;
    if (*kind == 3)
        input_grads[0] = trek_sum(trek_saved(context, 0), trek_dims_all(), false);
    return *kind == 4 ? trek_fail(TREK_ERR_CALLBACK, "a backward that fails") : trek_error_status();
}

static const trek_function twice = { .name = "twice", .forward = twice_forward, .backward = twice_backward, .free = free };

static outcome function(pool *p)
{
    int *kind = malloc(sizeof *kind), n = 1 + pool_below(p, 2), m = pool_below(p, 3);
    trek_var *inputs[2] = { pool_var(p), pool_var(p) }, *outputs[2] = { NULL };
    if (!kind)
        return OUTCOME_EITHER;
    *kind = pool_below(p, 14);
    trek_status status = trek_function_apply(&twice, kind, inputs, n, outputs, m);
    for (int k = 0; k < m; k++)
        pool_keep(p, outputs[k]);
    return sequence_status(status);
}

/* --- scopes --------------------------------------------------------------------------------------- */

static outcome scope_begin(pool *p)
{
    if (p->n_scopes == POOL_SCOPES)
        return OUTCOME_EITHER;
    trek_scope scope = trek_scope_begin();
    if (scope.depth)
        p->scopes[p->n_scopes++] = scope;
    return scope.depth ? OUTCOME_MADE : OUTCOME_FAILED;
}

static outcome scope_end(pool *p)
{
    if (p->n_scopes < 2)
        return OUTCOME_EITHER;
    int k = 1 + pool_below(p, p->n_scopes - 1); /* ends those inside, too */
    p->n_scopes = k;
    p->last_scope = p->scopes[k];
    return sequence_status(trek_scope_end(p->scopes[k]));
}

static outcome scope_end_keep(pool *p)
{
    if (p->n_scopes < 2)
        return OUTCOME_EITHER;
    trek_var *made = trek_exp(pool_var(p)); /* a result of this scope */
    p->last_scope = p->scopes[--p->n_scopes];
    return sequence_var(p, trek_scope_end_keep(p->last_scope, made));
}

/* Handles of no open scope. */
static outcome scope_bad(pool *p)
{
    trek_scope bad = pool_chance(p, 50) ? p->last_scope : (trek_scope){ (uint32_t)pool_next(p), (uint32_t)pool_next(p) };
    for (int k = 0; k < p->n_scopes; k++)
        if (bad.depth == p->scopes[k].depth && bad.serial == p->scopes[k].serial)
            return OUTCOME_EITHER;
    if (bad.depth == 0)
        return OUTCOME_EITHER;
    return pool_chance(p, 50) ? sequence_status(trek_scope_end(bad)) : trek_scope_end_keep(bad, NULL) ? OUTCOME_MADE
        : OUTCOME_FAILED;
}

/* --- modules ------------------------------------------------------------------------------------------ */

static trek_module *make_module(pool *p)
{
    trek_device device = pool_device(p);
    int64_t in = (int64_t)pool_dim(p) + 3, out = (int64_t)pool_dim(p) + 3;
    in = in > 64 ? 64 : in, out = out > 64 ? 64 : out;
    switch (pool_below(p, 19)) {
    case 0: return trek_nn_linear(in, out, device);
    case 1: return trek_nn_conv2d(in, out, 1 + pool_below(p, 3), device);
    case 2: return trek_nn_batch_norm1d(in, device);
    case 3: return trek_nn_batch_norm2d(in, device);
    case 4: return trek_nn_layer_norm(in, device);
    case 5: return trek_nn_rms_norm(in, device);
    case 6: return trek_nn_multihead_attention(in, 1 + pool_below(p, 3), device);
    case 7: return trek_nn_embedding(in, out, device);
    case 8: return trek_nn_dropout(pool_number(p));
    case 9: return trek_nn_relu();
    case 10: return trek_nn_softmax(pool_dim(p));
    case 11: return trek_nn_max_pool2d(pool_dim(p));
    case 12: return trek_nn_flatten();
    case 13: return trek_nn_sync_batch_norm(in, device);
    case 14: return trek_nn_leaky_relu(pool_number(p));
    case 15: return trek_nn_conv_transpose2d(in, out, 1 + pool_below(p, 3), device);
    case 16: return trek_nn_lstm(in, out, device);
    case 17:
        return trek_nn_gru_with(&(trek_gru_opts){ .in = in, .hidden = out, .layers = 2, .bidirectional = true,
                                                  .batch_first = true,
                                                  .dropout = 0.5, .device = device });
    default: {
        trek_module *two[2] = { trek_nn_linear(in, out, device), pool_chance(p, 90) ? trek_nn_gelu() : NULL };
        return trek_nn_sequential(two, 2);
    }
    }
}

static outcome module_new(pool *p)
{
    int slot = pool_below(p, POOL_MODULES);
    if (p->optimizer) /* its parameters may be this module's */
        return OUTCOME_EITHER;
    trek_module_free(&p->modules[slot]);
    p->modules[slot] = make_module(p);
    return p->modules[slot] ? OUTCOME_MADE : OUTCOME_FAILED;
}

static trek_module *a_module(pool *p) { return p->modules[pool_below(p, POOL_MODULES)]; }

static outcome module_forward(pool *p)
{
    trek_module *module = a_module(p);
    return module ? sequence_var(p, trek_forward(module, pool_var(p))) : OUTCOME_EITHER;
}

static outcome module_set(pool *p)
{
    trek_module *module = a_module(p);
    if (!module)
        return OUTCOME_EITHER;
    switch (pool_below(p, 5)) {
    case 0: return sequence_status((pool_chance(p, 50) ? trek_module_freeze : trek_module_thaw)(module));
    case 1: return sequence_status(trek_module_to(module, pool_device(p)));
    case 2: return sequence_status(trek_module_reset(module));
    case 3: {
        char *text = trek_module_summary(module);
        outcome made = text ? OUTCOME_MADE : OUTCOME_FAILED;
        trek_string_free(&text);
        return made;
    }
    default: return sequence_status(trek_module_train(module, pool_chance(p, 50)));
    }
}

/* Weights made of others and adapters, put there and taken away, of a module or a child of it. */
static outcome module_made(pool *p)
{
    static const char *const names[] = { "weight", "bias", "weight_ih_l0", "in_proj_weight", "none" };
    trek_module *module = a_module(p);
    if (!module)
        return OUTCOME_EITHER;
    if (module->own->n_children > 0 && pool_chance(p, 50))
        module = module->own->children[0].module;
    const char *name = names[pool_below(p, 5)];
    switch (pool_below(p, 8)) {
    case 0: return sequence_status(trek_weight_norm(module, name, pool_dim(p)));
    case 1: return sequence_status(trek_spectral_norm(module, name, &(trek_spectral_norm_opts){ .dim = pool_dim(p) }));
    case 2: return sequence_status(trek_parametrize(module, name, pool_chance(p, 50) ? trek_nn_tanh() : trek_nn_flatten(), NULL));
    case 3: return sequence_status(trek_parametrize_remove(module, name, pool_chance(p, 70)));
    case 4: return sequence_status(trek_lora_apply(module, &(trek_lora_opts){ .r = pool_dim(p), .lora_dropout = 0.1 }));
    case 5: return sequence_status(pool_chance(p, 50) ? trek_lora_merge(module) : trek_lora_unmerge(module));
    case 6: return sequence_status(trek_lora_remove(module, pool_chance(p, 50)));
    default: return sequence_var(p, trek_var_detach(trek_parametrized_weight(module, name)));
    }
}

static outcome state_round(pool *p)
{
    trek_module *module = a_module(p), *other = a_module(p);
    if (!module || !other)
        return OUTCOME_EITHER;
    trek_state *state = trek_state_of(module);
    outcome made = state ? sequence_status(trek_state_apply(state, other)) : OUTCOME_FAILED;
    trek_state_free(&state);
    return made;
}

static outcome state_file(pool *p)
{
    char path[128];
    snprintf(path, sizeof path, "%s/trek-sequence-%ld%s", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (long)getpid(),
             pool_chance(p, 5) ? "/none" : "");
    trek_module *module = a_module(p), *other = a_module(p);
    if (!module || !other)
        return OUTCOME_EITHER;
    trek_status status = trek_state_save(module, path);
    if (status == TREK_OK)
        status = trek_state_load(other, path, NULL);
    remove(path);
    return sequence_status(status);
}

/* --- optimizers and schedules --------------------------------------------------------------------------- */

static trek_optimizer_spec make_spec(pool *p)
{
    trek_adam_opts adam = { .lr = pool_chance(p, 80) ? 1e-2 : pool_number(p),
                            .weight_decay = pool_chance(p, 80) ? 0 : pool_number(p) };
    trek_sgd_opts sgd = { .lr = pool_chance(p, 80) ? 1e-2 : pool_number(p), .momentum = pool_chance(p, 50) ? 0 : pool_number(p),
                          .nesterov = pool_chance(p, 20) };
    int kind = pool_below(p, 25);
    if (kind == 0)
        return (trek_optimizer_spec){ .klass = NULL };
    return kind < 9 ? trek_adam(&adam) : kind < 17 ? trek_adamw(&adam) : trek_sgd(&sgd);
}

static outcome optimizer_new(pool *p)
{
    trek_module *module = a_module(p);
    trek_optimizer_free(&p->optimizer);
    trek_params_free(&p->params);
    if (!module)
        return OUTCOME_EITHER;
    p->params = trek_module_params(module);
    p->optimizer = trek_optimizer_new(make_spec(p), p->params);
    return p->optimizer ? OUTCOME_MADE : OUTCOME_FAILED;
}

static outcome optimizer_step(pool *p)
{
    if (!p->optimizer)
        return OUTCOME_EITHER;
    switch (pool_below(p, 6)) {
    case 0: return sequence_status(trek_optimizer_zero_grad(p->optimizer));
    case 1: return sequence_status(trek_optimizer_set_lr(p->optimizer, pool_number(p)));
    case 2: return sequence_status(trek_optimizer_set_group_lr(p->optimizer, pool_dim(p), pool_number(p)));
    case 3:
        p->number = trek_clip_grad_norm(p->params, pool_number(p));
        return OUTCOME_EITHER;
    case 4: return sequence_status(trek_clip_grad_value(p->params, pool_number(p)));
    default: return sequence_status(trek_optimizer_step(p->optimizer));
    }
}

static outcome optimizer_free(pool *p)
{
    trek_optimizer_free(&p->optimizer);
    trek_params_free(&p->params);
    return OUTCOME_EITHER;
}

static outcome scaler(pool *p)
{
    trek_grad_scaler_opts opts = { .init_scale = pool_chance(p, 80) ? 8 : pool_number(p),
                                   .growth_factor = pool_chance(p, 80) ? 2 : pool_number(p) };
    if (!p->scaler) {
        p->scaler = trek_grad_scaler_new(&opts);
        return p->scaler ? OUTCOME_MADE : OUTCOME_FAILED;
    }
    switch (pool_below(p, 4)) {
    case 0: return p->optimizer ? sequence_status(trek_grad_scaler_step(p->scaler, p->optimizer)) : OUTCOME_EITHER;
    case 1: return p->optimizer ? sequence_status(trek_grad_scaler_unscale(p->scaler, p->optimizer)) : OUTCOME_EITHER;
    case 2: return sequence_status(trek_grad_scaler_update(p->scaler));
    default: return sequence_var(p, trek_grad_scaler_scale(p->scaler, pool_var(p)));
    }
}

static outcome schedule(pool *p)
{
    trek_schedule made = { .kind = TREK_SCHEDULE_KIND_NONE };
    double lr = pool_number(p);
    int64_t total = pool_integer(p), milestones[3] = { pool_integer(p), pool_integer(p), pool_integer(p) };
    switch (pool_below(p, 9)) {
    case 0: made = trek_constant_lr(lr); break;
    case 1: made = trek_step_lr(lr, total, pool_number(p)); break;
    case 2: made = trek_multistep_lr(lr, pool_chance(p, 95) ? milestones : NULL, pool_below(p, 4), pool_number(p)); break;
    case 3: made = trek_cosine_lr(lr, total, pool_number(p)); break;
    case 4: made = trek_exponential_lr(lr, pool_number(p)); break;
    case 5: made = trek_polynomial_lr(lr, total, pool_number(p)); break;
    case 6: made = trek_inverse_sqrt_lr(lr, total); break;
    case 7: made = trek_onecycle_lr(lr, total, NULL); break;
    default: made = trek_cyclic_lr(lr, pool_number(p), NULL); break;
    }
    if (made.kind == TREK_SCHEDULE_KIND_NONE)
        return OUTCOME_FAILED;
    if (pool_chance(p, 30))
        made = trek_warmup_lr(pool_integer(p), made);
    p->number = trek_schedule_lr(&made, pool_integer(p));
    return OUTCOME_EITHER;
}

#define NAMED(name) { #name, name }
const sequence_call sequence_objects[] = {
    NAMED(new_leaf),
    NAMED(new_leaf),
    NAMED(new_leaf),
    NAMED(new_leaf),
    NAMED(drop),
    NAMED(detach),
    NAMED(set_requires_grad),
    NAMED(set_grad),
    NAMED(grad_of),
    NAMED(zero_grad),
    NAMED(item),
    NAMED(size),
    NAMED(to_host),
    NAMED(copy_from),
    NAMED(tensor_view),
    NAMED(arange),
    NAMED(linspace),
    NAMED(logspace),
    NAMED(eye),
    NAMED(randperm),
    NAMED(dlpack),
    NAMED(text_of),
    NAMED(backward),
    NAMED(backward),
    NAMED(backward_with),
    NAMED(backward_with),
    NAMED(grad),
    NAMED(grad),
    NAMED(no_grad),
    NAMED(autocast),
    NAMED(hook),
    NAMED(function),
    NAMED(scope_begin),
    NAMED(scope_end),
    NAMED(scope_end_keep),
    NAMED(scope_bad),
    NAMED(module_new),
    NAMED(module_made),
    NAMED(module_made),
    NAMED(module_forward),
    NAMED(module_forward),
    NAMED(module_set),
    NAMED(state_round),
    NAMED(state_file),
    NAMED(optimizer_new),
    NAMED(optimizer_step),
    NAMED(optimizer_step),
    NAMED(optimizer_free),
    NAMED(scaler),
    NAMED(schedule),
};
const int sequence_n_objects = (int)(sizeof sequence_objects / sizeof sequence_objects[0]);
