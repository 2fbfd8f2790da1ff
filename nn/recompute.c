/* SPDX-License-Identifier: Apache-2.0 */
/* A module as a single node of the tape, whose backward runs the module again. */
#include "nn/recompute_internal.h"

#include <string.h>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/var_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/params.h"
#include "nn/walk.h"
#include "tensor/memory_internal.h"
#include "tensor/row_map.h"
#include "tensor/scope_internal.h"
#include "tensor/status_internal.h"

enum { MOST_INPUTS = 16 };

/* --- buffers, which a second run would update again --------------------------------------------- */

typedef struct kept_buffers {
    int n, capacity;
    trek_tensor **tensors, **copies;
} kept_buffers;

/* What the second run needs. */
typedef struct rerun {
    trek_module *module;
    int n_inputs;            /* the module's inputs only; its parameters follow them */
    bool training;
    trek_dtype autocast;
    trek_rank_context rank;  /* the draws, and the position of the rows in the batch */
    kept_buffers vectors;    /* of spectral norms, as the first run used them */
} rerun;

static trek_status keep_buffer(const char *name, trek_var *buffer, void *arg)
{
    (void)name;
    kept_buffers *k = arg;
    int capacity = k->capacity;
    if (trek_array_grow(&k->tensors, &k->capacity, k->n + 1, sizeof *k->tensors) != TREK_OK ||
        trek_array_grow(&k->copies, &capacity, k->n + 1, sizeof *k->copies) != TREK_OK)
        return TREK_ERR_MEMORY;
    trek_tensor *copy = trek_tensor_clone(trek_var_data(buffer));
    if (!copy)
        return trek_error_status();
    k->tensors[k->n] = trek_var_data(buffer);
    k->copies[k->n++] = copy;
    return TREK_OK;
}

static trek_status write_kept(const kept_buffers *k)
{
    trek_status status = TREK_OK;
    for (int i = 0; i < k->n; i++) {
        trek_status copied = trek_tensor_copy_from(k->tensors[i], k->copies[i]);
        status = status == TREK_OK ? copied : status;
    }
    return status;
}

static void drop_kept(kept_buffers *k)
{
    for (int i = 0; i < k->n; i++)
        trek_tensor_release(k->copies[i]);
    trek_free(k->tensors);
    trek_free(k->copies);
    *k = (kept_buffers){ 0 };
}

/* Spectral norms divide by the values from the vectors of the first run and do not iterate further; see
 * spectral_norm.c. */
static trek_status keep_vectors(const char *name, trek_module *module, void *kept)
{
    trek_status status = TREK_OK;
    for (int k = 0; module->own->klass == &trek_spectral_norm_class && k < module->own->n_buffers && status == TREK_OK; k++)
        status = keep_buffer(name, module->own->buffers[k].var, kept);
    return status;
}

static trek_status set_iterating(const char *name, trek_module *module, void *on)
{
    (void)name;
    if (module->own->klass == &trek_spectral_norm_class)
        module->own->training = *(const bool *)on;
    return TREK_OK;
}

static void free_rerun(void *data)
{
    drop_kept(&((rerun *)data)->vectors);
    trek_row_map_release(((rerun *)data)->rank.row_map);
    trek_free(data);
}

/* --- the function --------------------------------------------------------------------------------- */

static trek_status first_run(trek_function_context *context, trek_var *const *inputs, int n, trek_var **outputs, int n_outputs)
{
    (void)n, (void)n_outputs;
    rerun *r = trek_function_data(context);
    trek_runs_again++;
    outputs[0] = trek_module_run_itself(r->module, inputs, r->n_inputs);
    trek_runs_again--;
    if (!outputs[0])
        return trek_fail_after(TREK_ERR_CALLBACK, "%s: forward: no result; it must return one", r->module->own->klass->name);
    trek_status status = r->training ? trek_module_each(r->module, keep_vectors, &r->vectors) : TREK_OK;
    return status != TREK_OK ? status : trek_save_for_backward(context, inputs, r->n_inputs);
}

/* Returns the module's result with a tape of its own behind it, starting at leaves that stand for the inputs. */
static trek_var *run_again(rerun *r, trek_var *const *leaves)
{
    trek_rank_context here = trek_rank_here;
    bool training = r->module->own->training;
    kept_buffers buffers = { 0 };
    trek_status status = trek_module_each_buffer(r->module, keep_buffer, &buffers);
    trek_rank_here.rng_step = r->rank.rng_step;
    trek_rank_here.rng_draw = r->rank.rng_draw;
    trek_rank_here.rng_stream = r->rank.rng_stream;
    trek_rank_here.row_map = r->rank.row_map;
    trek_rank_here.rows = r->rank.rows;
    trek_rank_here.first_sample = r->rank.first_sample;
    trek_autocast_begin(r->autocast);
    if (training != r->training)
        status =
            trek_fail(TREK_ERR_STATE, "%s: its mode (train or eval) has changed between forward and backward; it must not change",
                      r->module->own->klass->name);
    if (status == TREK_OK)
        status = write_kept(&r->vectors);
    bool off = false;
    if (r->vectors.n > 0)
        trek_module_each(r->module, set_iterating, &off);
    trek_var *y = status == TREK_OK ? trek_module_run_itself(r->module, leaves, r->n_inputs) : NULL;
    if (r->vectors.n > 0)
        trek_module_each(r->module, set_iterating, &training);
    trek_autocast_end();
    trek_rank_here = here;
    status = write_kept(&buffers);
    drop_kept(&buffers);
    return status == TREK_OK ? y : NULL;
}

/* Gives gradients to the leaves themselves, as the first run would have. So those of parameters are added in the same order, and
 * without being rounded to 16 bits in between. grads[] are those of the inputs. */
static trek_status add_to_leaves(trek_var *y, trek_var *cotangent, trek_var *const *list, int count, trek_var *const *leaves,
                                 trek_var **grads, int n_inputs)
{
    const trek_backward_watch watch = { .leaves = list, .n_leaves = count, .only_these = true };
    trek_status status = trek_backward_watched(&y, &cotangent, 1, NULL, &watch);
    for (int k = 0; k < n_inputs && status == TREK_OK; k++) {
        grads[k] = trek_var_grad(leaves[k]);
        if (grads[k] && trek_scope_push(trek_var_retain(grads[k]), "forward_recomputed") != TREK_OK) {
            trek_var_release(grads[k]);
            status = trek_error_status();
        }
    }
    return status;
}

static trek_status differentiate(const rerun *r, trek_var *y, trek_var *cotangent, trek_var *const *leaves, const bool *wanted,
                                 trek_var **grads, int n)
{
    trek_var **list = trek_calloc((size_t)(2 * n), sizeof *list), **found = list + n;
    if (!list)
        return TREK_ERR_MEMORY;
    int count = 0;
    trek_status status = TREK_OK;
    for (int k = 0; k < n; k++)
        if (wanted[k])
            list[count++] = leaves[k];
    if (count > 0 && trek_var_requires_grad(y) && !trek_backward_captures())
        status = add_to_leaves(y, cotangent, list, count, leaves, grads, r->n_inputs);
    else if (count > 0 && trek_var_requires_grad(y))
        status = trek_grad(&y, 1, list, count, &cotangent, NULL, found);
    for (int k = 0, j = 0; k < n && status == TREK_OK && trek_backward_captures(); k++)
        grads[k] = wanted[k] ? found[j++] : NULL;
    trek_free(list);
    return status;
}

/* Makes leaves for the inputs; the parameters are leaves already. The caller releases the first n_inputs. */
static trek_status make_leaves(trek_function_context *context, const rerun *r, const trek_params *params, trek_var **leaves,
                               bool *wanted, int n)
{
    for (int k = 0; k < n; k++) {
        wanted[k] = trek_needs_grad(context, k);
        if (k >= r->n_inputs) {
            leaves[k] = trek_params_var(params, k - r->n_inputs);
            wanted[k] = trek_var_requires_grad(leaves[k]) && trek_backward_reaches(leaves[k]);
            continue;
        }
        trek_var *saved = trek_saved(context, k);
        leaves[k] = saved ? trek_var_new(trek_var_data(saved), wanted[k]) : NULL;
        if (!leaves[k])
            return trek_error_status();
    }
    return TREK_OK;
}

static trek_status second_run(trek_function_context *context, trek_var *const *cotangents, int n_cotangents, trek_var **grads,
                              int n)
{
    (void)n_cotangents;
    rerun *r = trek_function_data(context);
    if (trek_grad_enabled())
        return trek_fail(TREK_ERR_UNSUPPORTED, "forward_recomputed: %s: gradients of gradients are not possible",
                         r->module->own->klass->name);
    trek_params *params = trek_module_params(r->module);
    trek_var **leaves = params ? trek_calloc((size_t)n, sizeof *leaves) : NULL;
    bool *wanted = leaves ? trek_calloc((size_t)n, sizeof *wanted) : NULL;
    trek_status status = wanted ? make_leaves(context, r, params, leaves, wanted, n) : trek_error_status();
    if (status == TREK_OK) {
        trek_grad_mode mode = trek_grad_mode_here;
        trek_grad_mode_here = (trek_grad_mode){ .autocast = TREK_F32 }; /* recorded, although inside a backward */
        trek_var *y = run_again(r, leaves);
        trek_grad_mode_here = mode;
        status = y ? differentiate(r, y, cotangents[0], leaves, wanted, grads, n) : trek_error_status();
    }
    for (int k = 0; leaves && k < r->n_inputs; k++)
        trek_var_release(leaves[k]);
    trek_free(wanted);
    trek_free(leaves);
    trek_params_free(&params);
    return status;
}

static const trek_function recomputed = { .name = "recomputed", .forward = first_run, .backward = second_run,
                                          .free = free_rerun };

/* --- the call --------------------------------------------------------------------------------------- */

static trek_status refuse_meeting(const char *name, trek_module *module, void *arg)
{
    (void)arg;
    if (!module->own->klass->meets_ranks)
        return TREK_OK;
    return trek_fail(TREK_ERR_UNSUPPORTED, "forward_recomputed: \"%s\" (%s) meets other ranks, which do not run it twice", name,
                     module->own->klass->name);
}

static trek_var *apply(trek_module *module, trek_var *const *inputs, int n, const trek_params *params)
{
    int count = n + trek_params_count(params);
    trek_var **all = trek_calloc((size_t)count, sizeof *all);
    rerun *r = all ? trek_calloc(1, sizeof *r) : NULL;
    if (!r) {
        trek_free(all);
        return NULL;
    }
    *r = (rerun){ .module = module, .n_inputs = n, .training = module->own->training, .autocast = trek_autocast_dtype(),
                  .rank = trek_rank_here };
    trek_row_map_retain(r->rank.row_map);
    memcpy(all, inputs, (size_t)n * sizeof *all);
    for (int k = n; k < count; k++)
        all[k] = trek_params_var(params, k - n);
    trek_var *y = trek_function_apply_one(&recomputed, r, all, count);
    trek_free(all);
    return y;
}

trek_var *trek_forward_recomputed(trek_module *module, trek_var *const *inputs, int n)
{
    if (!module || !inputs || n < 1 || !trek_grad_enabled())
        return trek_forward_many(module, inputs, n);
    for (int k = 0; k < n; k++)
        if (!inputs[k])
            return trek_fail_missing("forward_recomputed", "input"), NULL;
    if (n > MOST_INPUTS)
        return trek_fail_null(TREK_ERR_ARGUMENT, "forward_recomputed: inputs: %d; must be at most %d", n, MOST_INPUTS);
    if (n > 1 && !trek_module_takes_many(module))
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "%s: inputs: %d; it takes one", module->own->klass->name, n);
    if (trek_module_each(module, refuse_meeting, NULL) != TREK_OK)
        return NULL;
    trek_params *params = trek_module_params(module);
    trek_var *y = params ? apply(module, inputs, n, params) : NULL;
    trek_params_free(&params);
    return y;
}

/* --- the layer ------------------------------------------------------------------------------------------ */

typedef struct recompute_layer {
    trek_module base;
    trek_module *module;
} recompute_layer;

static trek_var *recompute_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    trek_module *module = ((recompute_layer *)self)->module;
    return self->own->training ? trek_forward_recomputed(module, inputs, n) : trek_forward_many(module, inputs, n);
}

static trek_var *recompute_forward(trek_module *self, trek_var *x) { return recompute_forward_many(self, &x, 1); }

static const trek_module_class recompute_class = { .name = "recompute", .size = sizeof(recompute_layer),
                                                   .forward = recompute_forward, .forward_many = recompute_forward_many };

trek_module *trek_nn_recompute(trek_module *module)
{
    trek_module *layer = module ? trek_module_new(&recompute_class) : NULL;
    if (!layer) {
        if (module)
            trek_module_free(&module);
        return NULL;
    }
    trek_module_add(layer, "module", offsetof(recompute_layer, module), module);
    return trek_module_check(layer);
}

/* --- modules of a tree that stays as it is (ways.h) ---------------------------------------------------------- */

trek_var *trek_module_run_recomputed(trek_module *module, trek_var *const *inputs, int n)
{
    bool whole = module->own->training && trek_grad_enabled() && n <= MOST_INPUTS;
    for (int k = 0; k < n; k++)
        whole &= inputs[k] != NULL;
    if (!whole)
        return trek_module_run_itself(module, inputs, n);
    trek_params *params = trek_module_params(module);
    trek_var *y = params ? apply(module, inputs, n, params) : NULL;
    trek_params_free(&params);
    return y;
}

static trek_status note_meeting(const char *name, trek_module *module, void *meets)
{
    (void)name;
    *(bool *)meets |= module->own->klass->meets_ranks;
    return TREK_OK;
}

bool trek_module_may_recompute(trek_module *module, trek_var *const *inputs, int n)
{
    bool meets = false;
    if (n > MOST_INPUTS || module->own->klass == &recompute_class || module->own->klass->forward_results)
        return false;
    for (int k = 0; k < n; k++)
        if (!inputs[k])
            return false;
    return trek_module_each(module, note_meeting, &meets) == TREK_OK && !meets;
}
