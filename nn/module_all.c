/* SPDX-License-Identifier: Apache-2.0 */
/* What applies to a module and everything below it: mode, freezing, moving, resetting, counting and finding. */
#include <string.h>

#include "autograd/var_internal.h"
#include "nn/module_internal.h"
#include "nn/module_values.h"
#include "nn/walk.h"
#include "tensor/backend.h"
#include "tensor/debug.h"

/* --- walks for users ------------------------------------------------------ */

typedef struct user_walk {
    trek_param_fn fn;
    void *arg;
} user_walk;

static trek_status call_user(const char *name, trek_var *var, bool is_buffer, void *arg)
{
    (void)is_buffer;
    const user_walk *user = arg;
    return user->fn(name, var, user->arg);
}

static trek_status each_entry(trek_module *module, int which, trek_param_fn fn, void *arg, const char *function)
{
    if (!module || !fn)
        return trek_fail_missing(function, module ? "function" : "module");
    if (trek_gone(module, function, "the module"))
        return TREK_ERR_STATE;
    user_walk user = { fn, arg };
    return trek_walk_entries(module, which, call_user, &user);
}

trek_status trek_module_each_param(trek_module *module, trek_param_fn fn, void *arg)
{
    return each_entry(module, TREK_WALK_PARAMS, fn, arg, "module_each_param");
}

trek_status trek_module_each_buffer(trek_module *module, trek_param_fn fn, void *arg)
{
    return each_entry(module, TREK_WALK_BUFFERS, fn, arg, "module_each_buffer");
}

trek_status trek_module_each(trek_module *module, trek_module_fn fn, void *arg)
{
    if (!module || !fn)
        return trek_fail_missing("module_each", module ? "function" : "module");
    if (trek_gone(module, "module_each", "the module"))
        return TREK_ERR_STATE;
    return trek_walk_modules(module, 0, fn, arg);
}

/* --- mode ----------------------------------------------------------------- */

static trek_status set_training(const char *name, trek_module *module, void *training)
{
    (void)name;
    module->own->training = *(bool *)training;
    return TREK_OK;
}

trek_status trek_module_train(trek_module *module, bool training)
{
    if (!module)
        return trek_fail_missing("module_train", "module");
    if (trek_gone(module, "module_train", "the module"))
        return TREK_ERR_STATE;
    if (module->own->n_children == 0) { /* most modules are leaves and need neither a walk nor memory */
        module->own->training = training;
        return TREK_OK;
    }
    return trek_walk_modules(module, 0, set_training, &training);
}

static trek_status set_frozen(const char *name, trek_var *param, bool is_buffer, void *frozen)
{
    (void)name, (void)is_buffer;
    return trek_var_set_requires_grad(param, !*(bool *)frozen);
}

static trek_status freeze(const char *function, trek_module *module, bool frozen)
{
    if (!module)
        return trek_fail_missing(function, "module");
    if (trek_gone(module, function, "the module"))
        return TREK_ERR_STATE;
    return trek_walk_entries(module, TREK_WALK_PARAMS, set_frozen, &frozen);
}

trek_status trek_module_freeze(trek_module *module) { return freeze("module_freeze", module, true); }

trek_status trek_module_thaw(trek_module *module) { return freeze("module_thaw", module, false); }

static trek_status reset_one(const char *name, trek_module *module, void *arg)
{
    (void)name, (void)arg;
    return module->own->klass->reset ? trek_weights_reset(module) : TREK_OK;
}

trek_status trek_module_reset(trek_module *module)
{
    if (!module)
        return trek_fail_missing("module_reset", "module");
    if (trek_gone(module, "module_reset", "the module"))
        return TREK_ERR_STATE;
    return trek_walk_modules(module, TREK_WALK_LEAVING, reset_one, NULL);
}

/* --- moving --------------------------------------------------------------- */

typedef struct moved_tensor {
    trek_tensor *from, *to; /* from: borrowed; to: owned */
} moved_tensor;

typedef struct move {
    trek_device device;
    moved_tensor *tensors;
    int count, capacity;
} move;

static trek_status move_tensor(move *m, const char *name, trek_tensor *tensor)
{
    if (trek_device_equal(tensor->device, m->device))
        return TREK_OK;
    if (tensor->storage->parent)
        return trek_fail(TREK_ERR_STATE,
                         "module_to: \"%s\" lives in an optimizer's arena; move the module before the optimizer is made", name);
    trek_status status = trek_array_grow(&m->tensors, &m->capacity, m->count + 1, sizeof *m->tensors);
    if (status != TREK_OK)
        return status;
    trek_tensor *to = trek_tensor_to(tensor, m->device);
    if (!to)
        return trek_error_status();
    m->tensors[m->count++] = (moved_tensor){ tensor, to };
    return TREK_OK;
}

static trek_status move_entry(const char *name, trek_var *var, bool is_buffer, void *arg)
{
    (void)is_buffer;
    trek_var *grad = trek_var_grad(var);
    trek_status status = move_tensor(arg, name, trek_var_data(var));
    if (status == TREK_OK && grad)
        status = move_tensor(arg, name, trek_var_data(grad));
    return status;
}

/* All copies are made before the first tensor changes, so a failure leaves the module as it was. */
trek_status trek_module_to(trek_module *module, trek_device device)
{
    if (!module)
        return trek_fail_missing("module_to", "module");
    if (trek_gone(module, "module_to", "the module"))
        return TREK_ERR_STATE;
    move m = { .device = trek_device_resolve(device) };
    trek_status status = trek_walk_entries(module, TREK_WALK_PARAMS | TREK_WALK_BUFFERS, move_entry, &m);
    for (int k = 0; k < m.count; k++) {
        if (status == TREK_OK)
            trek_tensor_rebind(m.tensors[k].from, m.tensors[k].to);
        trek_tensor_release(m.tensors[k].to);
    }
    trek_free(m.tensors);
    return status;
}

/* --- counting and finding ------------------------------------------------- */

static trek_status count_elements(const char *name, trek_var *param, bool is_buffer, void *total)
{
    (void)name, (void)is_buffer;
    *(int64_t *)total += trek_var_numel(param);
    return TREK_OK;
}

int64_t trek_module_param_count(trek_module *module)
{
    int64_t total = 0;
    if (!module) {
        trek_fail_missing("module_param_count", "module");
        return 0;
    }
    return trek_walk_entries(module, TREK_WALK_PARAMS, count_elements, &total) == TREK_OK ? total : 0;
}

static trek_var *find_entry(const trek_module_entry *entries, int n, const char *name)
{
    for (int k = 0; k < n; k++)
        if (strcmp(entries[k].name, name) == 0)
            return entries[k].var;
    return NULL;
}

/* A wrapper's only child has no name and stands for the wrapper (distributed/ddp.c). */
static trek_module *see_through(trek_module *module)
{
    while (module && module->own->n_children == 1 && !*module->own->children[0].name)
        module = module->own->children[0].module;
    return module;
}

static trek_module *find_child(const trek_module *module, const char *name, size_t length)
{
    for (int k = 0; k < module->own->n_children; k++) {
        const char *child = module->own->children[k].name;
        if (strncmp(child, name, length) == 0 && child[length] == 0)
            return module->own->children[k].module;
    }
    return NULL;
}

trek_var *trek_module_find(trek_module *module, const char *name)
{
    if (!module || !name) {
        trek_fail_missing("module_find", module ? "name" : "module");
        return NULL;
    }
    const char *whole = name;
    module = see_through(module);
    for (const char *dot; module && (dot = strchr(name, '.')); name = dot + 1)
        module = see_through(find_child(module, name, (size_t)(dot - name)));
    trek_var *found = module ? find_entry(module->own->params, module->own->n_params, name) : NULL;
    if (module && !found)
        found = find_entry(module->own->buffers, module->own->n_buffers, name);
    trek_note_search("module_find", found ? NULL : whole);
    return found;
}
