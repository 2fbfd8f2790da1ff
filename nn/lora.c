/* SPDX-License-Identifier: Apache-2.0 */
/* Low-rank adapters of linear layers: attaching, merging and saving them. Their forward is in linear.c. */
#include "nn/lora.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/module_values.h"
#include "nn/parametrize.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "nn/text.h"
#include "nn/walk.h"
#include "tensor/debug.h"
#include "tensor/memory_internal.h"
#include "tensor/option_internal.h"

static const char prefix[] = "base_model.model.";

/* --- which layers ----------------------------------------------------------------------------- */

typedef struct layer_list {
    trek_linear_layer **layers;
    int n, capacity;
    bool adapted;             /* list the layers that have an adapter, not those that are to get one */
    const char *const *targets;
} layer_list;

static bool ends_in(const char *path, const char *name)
{
    size_t length = strlen(path), tail = strlen(name);
    return length >= tail && strcmp(path + length - tail, name) == 0 && (length == tail || path[length - tail - 1] == '.');
}

static bool is_target(const char *path, const char *const *targets)
{
    if (!targets)
        return !ends_in(path, "lora_A") && !ends_in(path, "lora_B");
    for (; *targets; targets++)
        if (ends_in(path, *targets))
            return true;
    return false;
}

static trek_status list_layer(const char *path, trek_module *module, void *arg)
{
    layer_list *l = arg;
    trek_linear_layer *m = (trek_linear_layer *)module;
    if (module->own->klass != &trek_linear_class || (l->adapted ? !m->lora : !is_target(path, l->targets)))
        return TREK_OK;
    trek_status status = trek_array_grow(&l->layers, &l->capacity, l->n + 1, sizeof(trek_linear_layer *));
    if (status == TREK_OK)
        l->layers[l->n++] = m;
    return status;
}

/* Lists the adapted layers of a module. It is an error if there are none. */
static trek_status list_adapted(const char *function, trek_module *module, layer_list *l)
{
    *l = (layer_list){ .adapted = true };
    if (!module)
        return trek_fail_missing(function, "module");
    if (trek_gone(module, function, "the module"))
        return TREK_ERR_STATE;
    trek_status status = trek_walk_modules(module, 0, list_layer, l);
    if (status == TREK_OK && l->n == 0)
        status = trek_fail(TREK_ERR_ARGUMENT, "%s: module: the %s has no adapters", function, module->own->klass->name);
    return status;
}

/* --- adding ------------------------------------------------------------------------------------- */

static trek_status check_options(const trek_lora_opts *o)
{
    char number[32];
    if (o->r < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "lora: .r: %" PRId64 "; must be at least 1", o->r);
    if (!isfinite(o->lora_alpha))
        return trek_fail(TREK_ERR_ARGUMENT, "lora: .lora_alpha: %s; must be finite", trek_layer_number(o->lora_alpha, number));
    double dropout = trek_option(o->lora_dropout, 0);
    if (!(dropout >= 0 && dropout <= 1))
        return trek_fail(TREK_ERR_ARGUMENT, "lora: .lora_dropout: %s; must be inside [0, 1]",
                         trek_layer_number(dropout, number));
    return TREK_OK;
}

/* Refuses a parameter that lives in an optimizer's arena. The walk covers the layer's own parameters, from whatever
 * the weight is computed. */
static trek_status see_arena(const char *name, trek_var *param, void *arg)
{
    (void)arg;
    if (!param->data->storage->parent)
        return TREK_OK;
    return trek_fail(TREK_ERR_STATE, "lora: \"%s\" lives in an optimizer's arena; make the optimizer after the adapters", name);
}

static trek_lora_adapter *adapter_new(const trek_linear_layer *m, const trek_lora_opts *o)
{
    const trek_var *weight = m->weight;
    trek_lora_adapter *lora = trek_calloc(1, sizeof *lora);
    if (!lora)
        return NULL;
    lora->r = o->r ? o->r : 8;
    lora->alpha = trek_option(o->lora_alpha, 8);
    lora->scale = lora->alpha / (o->use_rslora ? sqrt((double)lora->r) : (double)lora->r);
    lora->dropout = trek_option(o->lora_dropout, 0);
    lora->dtype = o->dtype == TREK_F32 && trek_var_dtype(weight) == TREK_F64 ? TREK_F64 : o->dtype;
    trek_linear_opts a = { .in = m->in, .out = lora->r, .no_bias = true, .dtype = lora->dtype,
                           .device = trek_var_device(weight) }, b = a;
    b.in = lora->r, b.out = m->out;
    lora->a = trek_nn_linear_with(&a);
    lora->b = lora->a ? trek_nn_linear_with(&b) : NULL;
    if (lora->b && trek_init_zeros(((const trek_linear_layer *)lora->b)->weight) == TREK_OK)
        return lora;
    trek_module_free(&lora->a);
    trek_module_free(&lora->b);
    trek_free(lora);
    return NULL;
}

static void drop_adapter(trek_linear_layer *m)
{
    trek_module_drop_child(&m->base, m->lora->a);
    trek_module_drop_child(&m->base, m->lora->b);
    trek_free(m->lora);
    m->lora = NULL;
    m->base.own->merged = false;
}

static trek_status add_adapter(trek_linear_layer *m, const trek_lora_opts *o)
{
    if (m->lora)
        return trek_fail(TREK_ERR_ARGUMENT, "lora: linear: it already has an adapter");
    trek_status status = trek_module_each_param(&m->base, see_arena, NULL);
    trek_lora_adapter *lora = status == TREK_OK ? adapter_new(m, o) : NULL;
    if (!lora)
        return trek_error_status();
    lora->a->own->training = lora->b->own->training = m->base.own->training;
    status = trek_module_try_add(&m->base, "lora_A", lora->a);
    if (status != TREK_OK) {
        trek_module_free(&lora->b);
    } else if ((status = trek_module_try_add(&m->base, "lora_B", lora->b)) != TREK_OK) {
        trek_module_drop_child(&m->base, lora->a);
    }
    if (status == TREK_OK)
        m->lora = lora;
    else
        trek_free(lora);
    return status;
}

/* Freezes everything except the adapters. */
static trek_status freeze_rest(trek_module *module)
{
    layer_list adapted = { .adapted = true };
    trek_status status = trek_walk_modules(module, 0, list_layer, &adapted);
    if (status == TREK_OK)
        status = trek_module_freeze(module);
    for (int k = 0; k < adapted.n && status == TREK_OK; k++) {
        status = trek_module_thaw(adapted.layers[k]->lora->a);
        if (status == TREK_OK)
            status = trek_module_thaw(adapted.layers[k]->lora->b);
    }
    trek_free(adapted.layers);
    return status;
}

static trek_status add_all(trek_module *module, const layer_list *l, const trek_lora_opts *o)
{
    trek_status status = TREK_OK;
    int n = 0;
    while (n < l->n && (status = add_adapter(l->layers[n], o)) == TREK_OK)
        n++;
    if (status == TREK_OK)
        status = freeze_rest(module);
    while (status != TREK_OK && n > 0)
        drop_adapter(l->layers[--n]);
    return status;
}

trek_status trek_lora(trek_module *linear, const trek_lora_opts *opts)
{
    trek_lora_opts o = opts ? *opts : (trek_lora_opts){ 0 };
    if (!linear)
        return trek_fail_missing("lora", "layer");
    if (trek_gone(linear, "lora", "the layer"))
        return TREK_ERR_STATE;
    if (linear->own->klass != &trek_linear_class)
        return trek_fail(TREK_ERR_ARGUMENT, "lora: linear: it is a %s; must be a linear layer", linear->own->klass->name);
    trek_linear_layer *one[] = { (trek_linear_layer *)linear };
    trek_status status = check_options(&o);
    return status == TREK_OK ? add_all(linear, &(layer_list){ .layers = one, .n = 1 }, &o) : status;
}

trek_status trek_lora_apply(trek_module *module, const trek_lora_opts *opts)
{
    trek_lora_opts o = opts ? *opts : (trek_lora_opts){ 0 };
    layer_list l = { .targets = o.target_modules };
    if (!module)
        return trek_fail_missing("lora_apply", "module");
    if (trek_gone(module, "lora_apply", "the module"))
        return TREK_ERR_STATE;
    trek_status status = check_options(&o);
    if (status == TREK_OK)
        status = trek_walk_modules(module, 0, list_layer, &l);
    if (status == TREK_OK && l.n == 0)
        status = trek_fail(TREK_ERR_ARGUMENT, "lora_apply: the %s has no linear layer%s%s", module->own->klass->name,
                           l.targets && *l.targets ? " whose name ends in " : l.targets ? " of no name" : "",
                           l.targets && *l.targets ? *l.targets : "");
    if (status == TREK_OK)
        status = add_all(module, &l, &o);
    trek_free(l.layers);
    return status;
}

/* --- merging --------------------------------------------------------------------------------------- */

/* Computes W + factor B A, in f32 or wider. */
static trek_status add_product(trek_linear_layer *m, double factor)
{
    trek_var *weight = m->weight, *a = ((trek_linear_layer *)m->lora->a)->weight, *b = ((trek_linear_layer *)m->lora->b)->weight;
    trek_dtype dtype = trek_var_dtype(weight) == TREK_F64 || m->lora->dtype == TREK_F64 ? TREK_F64 : TREK_F32;
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_autocast_begin(TREK_F32);
    trek_var *product = trek_mul_scalar(trek_matmul(trek_cast(b, dtype), trek_cast(a, dtype)), factor);
    trek_var *sum = product ? trek_add(trek_cast(trek_var_detach(weight), dtype), product) : NULL;
    trek_status status = sum ? trek_tensor_copy_from(trek_var_data(weight), trek_var_data(sum)) : trek_error_status();
    trek_autocast_end();
    trek_no_grad_end();
    trek_scope_end(scope);
    return status;
}

static trek_status set_merged(trek_linear_layer *m, bool merged)
{
    if (m->base.own->merged == merged)
        return TREK_OK;
    if (trek_is_parametrized(&m->base, "weight") || m->lora->a->own->parametrizations || m->lora->b->own->parametrizations)
        return trek_fail(TREK_ERR_STATE, "lora: a parametrised weight cannot be merged; fold it first");
    trek_status status = add_product(m, merged ? m->lora->scale : -m->lora->scale);
    if (status == TREK_OK)
        m->base.own->merged = merged;
    return status;
}

static trek_status set_all_merged(const char *function, trek_module *module, bool merged, bool drop)
{
    layer_list l;
    trek_status status = list_adapted(function, module, &l);
    for (int k = 0; k < l.n && status == TREK_OK; k++) {
        status = set_merged(l.layers[k], merged);
        if (status == TREK_OK && drop)
            drop_adapter(l.layers[k]);
    }
    trek_free(l.layers);
    return status;
}

trek_status trek_lora_merge(trek_module *module) { return set_all_merged("lora_merge", module, true, false); }
trek_status trek_lora_unmerge(trek_module *module) { return set_all_merged("lora_unmerge", module, false, false); }
trek_status trek_lora_remove(trek_module *module, bool merge) { return set_all_merged("lora_remove", module, merge, true); }

/* --- saving ------------------------------------------------------------------------------------------- */

typedef struct adapter_walk {
    trek_status (*each)(const char *name, trek_var *weight, void *arg);
    void *arg;
} adapter_walk;

/* Visits both weights of an adapted layer by their full names. */
static trek_status visit(const char *path, trek_module *module, void *arg)
{
    const adapter_walk *w = arg;
    const trek_linear_layer *m = (const trek_linear_layer *)module;
    trek_status status = TREK_OK;
    for (int k = 0; module->own->klass == &trek_linear_class && m->lora && k < 2 && status == TREK_OK; k++) {
        const trek_linear_layer *part = (const trek_linear_layer *)(k ? m->lora->b : m->lora->a);
        if (part->base.own->parametrizations)
            return trek_fail(TREK_ERR_STATE, "lora: \"%s\" has a parametrised weight; fold it first", path);
        char *name = trek_format("%s%s%s", path, *path ? "." : "", k ? "lora_B.weight" : "lora_A.weight");
        status = name ? w->each(name, part->weight, w->arg) : TREK_ERR_MEMORY;
        trek_free(name);
    }
    return status;
}

static trek_status each_weight(trek_module *module, trek_status (*each)(const char *, trek_var *, void *), void *arg)
{
    return trek_walk_modules(module, 0, visit, &(adapter_walk){ each, arg });
}

static trek_status gather(const char *name, trek_var *weight, void *state)
{
    char *full = trek_format("%s%s", prefix, name);
    trek_tensor *tensor = trek_tensor_device(trek_var_data(weight)).type == TREK_CPU
        ? trek_tensor_clone(trek_var_data(weight))
        : trek_tensor_to(trek_var_data(weight), trek_cpu(0));
    trek_status status = full && tensor ? trek_state_add(state, full, tensor) : trek_error_status();
    trek_tensor_release(tensor);
    trek_free(full);
    return status;
}

trek_state *trek_lora_state_of(trek_module *module)
{
    layer_list l;
    trek_state *state = list_adapted("lora_state_of", module, &l) == TREK_OK ? trek_state_new() : NULL;
    if (state && each_weight(module, gather, state) != TREK_OK)
        trek_state_free(&state);
    trek_free(l.layers);
    return state;
}

trek_status trek_lora_save(trek_module *module, const char *path)
{
    if (!path)
        return trek_fail_missing("lora_save", "path");
    trek_state *state = trek_lora_state_of(module);
    trek_status status = state ? trek_state_write(state, path) : trek_error_status();
    trek_state_free(&state);
    return status;
}

/* Expects an adapter's weight among the names of a state. */
static trek_status expect_entry(const char *name, trek_var *weight, void *state)
{
    (void)weight;
    return trek_state_find(state, name) ? TREK_OK
                                        : trek_fail(TREK_ERR_ARGUMENT, "lora_state_apply: state: it has no \"%s\"", name);
}

/* Adds the same tensors without their name prefixes. Fails with ARGUMENT if one is no adapter weight of the module. */
static trek_status strip(const trek_state *state, trek_module *module, trek_state *to)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < trek_state_count(state) && status == TREK_OK; k++) {
        const char *name = trek_state_name(state, k);
        if (strncmp(name, prefix, sizeof prefix - 1) == 0)
            name += sizeof prefix - 1;
        bool ours = (ends_in(name, "lora_A.weight") || ends_in(name, "lora_B.weight")) && trek_module_find(module, name);
        status = ours ? trek_state_add(to, name, trek_state_tensor(state, k))
                      : trek_fail(TREK_ERR_ARGUMENT, "lora_state_apply: state: the %s has no adapter \"%s\"",
                                  module->own->klass->name,
                                  name);
    }
    return status;
}

trek_status trek_lora_state_apply(const trek_state *state, trek_module *module)
{
    layer_list l;
    if (!state)
        return trek_fail_missing("lora_state_apply", "state");
    trek_status status = list_adapted("lora_state_apply", module, &l);
    for (int k = 0; k < l.n && status == TREK_OK; k++)
        if (l.layers[k]->base.own->merged)
            status =
                trek_fail(TREK_ERR_STATE, "lora_state_apply: a layer is merged with the adapter that it has; unmerge it first");
    trek_free(l.layers);
    trek_state *own = status == TREK_OK ? trek_state_new() : NULL;
    if (!own)
        return trek_error_status();
    status = strip(state, module, own);
    if (status == TREK_OK)
        status = each_weight(module, expect_entry, own);
    if (status == TREK_OK)
        status = trek_state_apply_with(own, module, &(trek_state_load_opts){ .allow_missing = true, .cast = true }, NULL);
    trek_state_free(&own);
    return status;
}

trek_status trek_lora_load(trek_module *module, const char *path)
{
    if (!module || !path)
        return trek_fail_missing("lora_load", module ? "path" : "module");
    trek_state *state = trek_state_read(path);
    trek_status status = state ? trek_lora_state_apply(state, module) : trek_error_status();
    trek_state_free(&state);
    return status;
}
