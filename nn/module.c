/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of modules: making, adding, owning and freeing. */
#include "nn/module.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "autograd/leaf.h"
#include "nn/module_internal.h"
#include "nn/walk.h"
#include "tensor/debug.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

trek_module *trek_module_new(const trek_module_class *klass)
{
    if (!klass || !klass->name || klass->size < sizeof(trek_module))
        return trek_fail_null(
            TREK_ERR_ARGUMENT,
            "module_new: class: incomplete; it must have a name and the size of a struct that begins with trek_module");
    size_t size = (klass->size + _Alignof(max_align_t) - 1) / _Alignof(max_align_t) * _Alignof(max_align_t);
    trek_module *module = trek_calloc(1, size + sizeof *module->own);
    if (!module)
        return NULL;
    module->own = (struct trek_module_own *)((char *)module + size);
    module->own->klass = klass;
    module->own->training = true;
    return module;
}

/* --- adding ------------------------------------------------------------- */

static bool name_taken(const trek_module *module, const char *name)
{
    for (int k = 0; k < module->own->n_children; k++)
        if (strcmp(module->own->children[k].name, name) == 0)
            return true;
    for (int k = 0; k < module->own->n_params; k++)
        if (strcmp(module->own->params[k].name, name) == 0)
            return true;
    for (int k = 0; k < module->own->n_buffers; k++)
        if (strcmp(module->own->buffers[k].name, name) == 0)
            return true;
    return false;
}

/* Checks that every add makes: the name, and that the field lies inside the struct behind its head. */
static trek_status check_place(const trek_module *module, const char *name, size_t offset)
{
    const char *type = module->own->klass->name;
    if (!name || !*name || strchr(name, '.'))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: name: \"%s\"; must not be empty or contain a dot", type, name ? name : "");
    if (name_taken(module, name))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: name: \"%s\" is in use already", type, name);
    if (offset != TREK_NO_FIELD && (offset < sizeof(trek_module) || offset > module->own->klass->size - sizeof(void *) ||
                                    offset % _Alignof(void *) != 0))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: offset: %zu of \"%s\"; must be that of a pointer field of the struct", type,
                         offset, name);
    return TREK_OK;
}

static void write_field(trek_module *module, size_t offset, void *value)
{
    if (offset != TREK_NO_FIELD)
        memcpy((char *)module + offset, &value, sizeof value);
}

static trek_status is_parent(const char *name, trek_module *module, void *parent)
{
    (void)name;
    return module == parent ? TREK_ERR_ARGUMENT : TREK_OK;
}

static trek_status append_child(trek_module *parent, const char *name, trek_module *child)
{
    trek_status status =
        trek_array_grow(&parent->own->children, &parent->own->cap_children, parent->own->n_children + 1,
                        sizeof *parent->own->children);
    if (status != TREK_OK)
        return status;
    char *copy = trek_strdup(name);
    if (!copy)
        return TREK_ERR_MEMORY;
    parent->own->children[parent->own->n_children++] = (trek_module_link){ copy, child };
    child->own->owners++;
    return TREK_OK;
}

/* Reports which part of which module is NULL. */
static void fail_missing_part(const char *function, const trek_module *module, const char *what, const char *name)
{
    char text[200];
    snprintf(text, sizeof text, "%s \"%.64s\" of the %.64s", what, name ? name : "", module ? module->own->klass->name : "");
    trek_fail_missing(function, module ? text : "module");
}

/* Frees a child that could not be added, unless it has another owner. */
static trek_module *drop_child(trek_module *parent, trek_module *child)
{
    if (parent)
        parent->own->failed = true;
    if (child && child->own->owners == 0)
        trek_module_free(&child);
    return NULL;
}

trek_module *trek_module_add(trek_module *parent, const char *name, size_t offset, trek_module *child)
{
    if (!parent || !child) {
        fail_missing_part("module_add", parent, "child", name);
        return drop_child(parent, child);
    }
    if (trek_gone(parent, "module_add", "the parent"))
        return NULL;
    if (trek_gone(child, "module_add", "the child"))
        return drop_child(parent, NULL);
    /* Only a module with an owner can lie below its own child. */
    if (child == parent || (parent->own->owners > 0 && child->own->n_children > 0)) {
        trek_status status = trek_walk_modules(child, 0, is_parent, parent);
        if (status != TREK_OK) {
            parent->own->failed = true;
            if (status == TREK_ERR_ARGUMENT)
                trek_fail(status, "%s: child: adding \"%s\" would make the module its own descendant", parent->own->klass->name,
                          name ? name : "");
            return NULL;
        }
    }
    if (check_place(parent, name, offset) != TREK_OK || append_child(parent, name, child) != TREK_OK)
        return drop_child(parent, child);
    if (child->own->failed)
        parent->own->failed = true;
    write_field(parent, offset, child);
    return child;
}

static trek_var *append_entry(trek_module *module, const char *name, size_t offset, trek_var *var, bool is_buffer)
{
    trek_module_entry **entries = is_buffer ? &module->own->buffers : &module->own->params;
    int *count = is_buffer ? &module->own->n_buffers : &module->own->n_params;
    int *capacity = is_buffer ? &module->own->cap_buffers : &module->own->cap_params;
    if (trek_array_grow(entries, capacity, *count + 1, sizeof **entries) != TREK_OK)
        return NULL;
    char *copy = trek_strdup(name);
    if (!copy)
        return NULL;
    trek_var **place = offset != TREK_NO_FIELD ? (trek_var **)(void *)((char *)module + offset) : NULL;
    (*entries)[(*count)++] = (trek_module_entry){ copy, trek_var_retain(var), place, false };
    write_field(module, offset, var);
    return var;
}

static trek_var *add_tensor(trek_module *module, const char *name, size_t offset, trek_tensor *tensor, bool is_buffer)
{
    trek_var *added = NULL;
    if (!module || !tensor) {
        fail_missing_part(is_buffer ? "module_buffer" : "module_param", module, "tensor", name);
    } else if (trek_gone(module, is_buffer ? "module_buffer" : "module_param", "the module")) {
        module = NULL;
    } else if (check_place(module, name, offset) == TREK_OK) {
        trek_var *var = trek_var_new(tensor, !is_buffer);
        if (var) {
            added = append_entry(module, name, offset, var, is_buffer);
            trek_var_release(var);
        }
    }
    trek_tensor_release(tensor);
    if (module && !added)
        module->own->failed = true;
    return added;
}

trek_var *trek_module_param(trek_module *module, const char *name, size_t offset, trek_tensor *tensor)
{
    return add_tensor(module, name, offset, tensor, false);
}

trek_var *trek_module_buffer(trek_module *module, const char *name, size_t offset, trek_tensor *tensor)
{
    return add_tensor(module, name, offset, tensor, true);
}

trek_var *trek_module_share_param(trek_module *module, const char *name, size_t offset, trek_var *param)
{
    trek_var *added = NULL;
    if (!module || !param)
        fail_missing_part("module_share_param", module, "parameter", name);
    else if (trek_gone(module, "module_share_param", "the module"))
        return NULL;
    else if (!trek_var_is_leaf(param))
        trek_fail(TREK_ERR_ARGUMENT, "%s: \"%s\": it is the result of an op; a parameter must be a leaf",
                  module->own->klass->name,
                  name ? name : "");
    else if (check_place(module, name, offset) == TREK_OK)
        added = append_entry(module, name, offset, param, false);
    if (added)
        module->own->params[module->own->n_params - 1].shared = true;
    if (module && !added)
        module->own->failed = true;
    return added;
}

/* --- taking out ----------------------------------------------------------- */

void trek_module_drop_param(trek_module *module, int k)
{
    trek_var_release(module->own->params[k].var);
    trek_free(module->own->params[k].name);
    memmove(module->own->params + k, module->own->params + k + 1,
            (size_t)(--module->own->n_params - k) * sizeof *module->own->params);
}

trek_var *trek_module_try_buffer(trek_module *module, const char *name, trek_tensor *tensor)
{
    bool failed = module->own->failed;
    trek_var *added = trek_module_buffer(module, name, TREK_NO_FIELD, tensor);
    module->own->failed = failed;
    return added;
}

void trek_module_drop_buffer(trek_module *module, int k)
{
    trek_var_release(module->own->buffers[k].var);
    trek_free(module->own->buffers[k].name);
    memmove(module->own->buffers + k, module->own->buffers + k + 1,
            (size_t)(--module->own->n_buffers - k) * sizeof *module->own->buffers);
}

trek_status trek_module_insert_param(trek_module *module, int k, const char *name, trek_var *var, trek_var **place, bool shared)
{
    if (!append_entry(module, name, TREK_NO_FIELD, var, false))
        return trek_error_status();
    trek_module_entry entry = module->own->params[module->own->n_params - 1];
    k = k < module->own->n_params ? k : module->own->n_params - 1;
    memmove(module->own->params + k + 1, module->own->params + k, (size_t)(module->own->n_params - 1 - k) * sizeof entry);
    module->own->params[k] = entry;
    module->own->params[k].place = place;
    module->own->params[k].shared = shared;
    if (place)
        *place = var;
    return TREK_OK;
}

void trek_module_drop_stretches(trek_module *module)
{
    for (int k = 0; k < module->own->n_stretches; k++)
        trek_module_free(&module->own->stretches[k].module);
    trek_free(module->own->stretches);
    module->own->stretches = NULL;
    module->own->n_stretches = 0;
}

void trek_module_drop_child(trek_module *parent, trek_module *child)
{
    trek_module_drop_stretches(parent);
    int k = 0;
    while (parent->own->children[k].module != child)
        k++;
    trek_free(parent->own->children[k].name);
    memmove(parent->own->children + k, parent->own->children + k + 1,
            (size_t)(--parent->own->n_children - k) * sizeof *parent->own->children);
    if (--child->own->owners == 0)
        trek_module_free(&child);
}

trek_status trek_module_try_add(trek_module *parent, const char *name, trek_module *child)
{
    bool failed = parent->own->failed;
    trek_status status = trek_module_add(parent, name, TREK_NO_FIELD, child) ? TREK_OK : trek_error_status();
    parent->own->failed = failed;
    return status;
}

trek_module *trek_module_check(trek_module *module)
{
    if (!module || trek_gone(module, "module_check", "the module"))
        return NULL;
    if (!module->own->failed)
        return module;
    if (trek_error_status() == TREK_OK)
        trek_fail(TREK_ERR_STATE, "%s: incomplete: a module that was added to it could not be made", module->own->klass->name);
    if (module->own->owners == 0)
        trek_module_free(&module);
    return NULL;
}

/* --- freeing ------------------------------------------------------------ */

void trek_names_free(trek_names *names)
{
    for (int k = 0; k < names->count; k++)
        trek_free(names->list[k]);
    trek_free(names->list);
    *names = (trek_names){ 0 };
}

static void free_entries(trek_module_entry *entries, int n)
{
    for (int k = 0; k < n; k++) {
        trek_var_release(entries[k].var);
        trek_free(entries[k].name);
    }
    trek_free(entries);
}

/* Modules to be freed are linked through `next`, which nobody reads any more. So freeing allocates nothing, and deep
 * trees need no deep stack. */
void trek_module_free(trek_module **module)
{
    if (!module || !*module || trek_gone(*module, "module_free", "the module"))
        return;
    if ((*module)->own->owners > 0) {
        trek_fail(TREK_ERR_STATE, "module_free: module: the %s belongs to another module or graph, which frees it",
                  (*module)->own->klass->name);
        return;
    }
    trek_module *next = *module;
    *module = NULL;
    next->own->next = NULL;
    while (next) {
        trek_module *self = next;
        next = self->own->next;
        if (self->own->klass->free)
            self->own->klass->free(self);
        trek_module_drop_stretches(self);
        for (int k = 0; k < self->own->n_children; k++) {
            trek_module *child = self->own->children[k].module;
            trek_free(self->own->children[k].name);
            if (--child->own->owners == 0) {
                child->own->next = next;
                next = child;
            }
        }
        trek_free(self->own->children);
        free_entries(self->own->params, self->own->n_params);
        free_entries(self->own->buffers, self->own->n_buffers);
        trek_free(self->own->fp8);
        trek_names_free(&self->own->stored);
        if (trek_debug)
            trek_debug_ended(self, "module", self->own->klass->name);
        trek_free(self);
    }
}

const char *trek_module_name(const trek_module *module)
{
    return module && !trek_gone(module, "module_name", "the module") ? module->own->klass->name : "(none)";
}

const trek_module_class *trek_module_class_of(const trek_module *module)
{
    return module && !trek_gone(module, "module_class_of", "the module") ? module->own->klass : NULL;
}

bool trek_module_is_training(const trek_module *module)
{
    return module && !trek_gone(module, "module_is_training", "the module") && module->own->training;
}

int trek_module_child_count(const trek_module *module)
{
    return module && !trek_gone(module, "module_child_count", "the module") ? module->own->n_children : 0;
}

static const trek_module_link *child_at(const trek_module *module, int k, const char *function)
{
    if (!module)
        trek_fail_missing(function, "module");
    if (!module || trek_gone(module, function, "the module"))
        return NULL;
    if (k >= 0 && k < module->own->n_children)
        return &module->own->children[k];
    trek_fail(TREK_ERR_ARGUMENT, "%s: k: %d; the module has %d children, numbered from 0", function, k, module->own->n_children);
    return NULL;
}

trek_module *trek_module_child(const trek_module *module, int k)
{
    const trek_module_link *child = child_at(module, k, "module_child");
    return child ? child->module : NULL;
}

const char *trek_module_child_name(const trek_module *module, int k)
{
    const trek_module_link *child = child_at(module, k, "module_child_name");
    return child ? child->name : NULL;
}
