/* SPDX-License-Identifier: Apache-2.0 */
/* Running a module: each forward in a scope of its own. */
#include <stdio.h>

#include "nn/module_internal.h"
#include "nn/walk.h"
#include "tensor/debug.h"
#include "tensor/status_internal.h"
#include "tensor/trace.h"

/* Whether the walk has come to `wanted`, which is then placed. */
static trek_status place_if_found(const char *path, trek_module *module, void *wanted)
{
    if (module != wanted)
        return TREK_OK;
    trek_error_place(module, path, module->klass->name);
    return TREK_ERR_STATE; /* ends the walk */
}

void trek_module_tell_place(trek_module *self, trek_module *part)
{
    const void *where = trek_error_where();
    trek_walk_modules(self, 0, place_if_found, where ? (void *)(uintptr_t)where : part);
}

/* The end of every forward: what the module made inside is dropped, its result goes to the caller's scope. */
static trek_var *finish(trek_module *module, trek_scope scope, bool clean, int frame, trek_var *result)
{
    if (frame)
        trek_trace_end_frame(frame);
    if (result)
        return trek_scope_end_keep(scope, result);
    trek_fail_after(TREK_ERR_CALLBACK, "%s: forward gave no result", module->klass->name);
    if (clean)
        trek_module_tell_place(module, module);
    return trek_scope_end_keep(scope, NULL);
}

static trek_var *refuse(const trek_module *module)
{
    const char *name = module->klass->name;
    if (module->upkeep->failed)
        trek_fail(TREK_ERR_STATE, "%s: something that was added to it could not be made, so it cannot run", name);
    else
        trek_fail(TREK_ERR_UNSUPPORTED, "%s: the class has no forward", name);
    return NULL;
}

/* Whether and under which name `module` is a child of `around`. */
static const char *child_name(const trek_module *around, const trek_module *module)
{
    for (int k = 0; around && k < around->n_children; k++)
        if (around->children[k].module == module)
            return around->children[k].name;
    return NULL;
}

typedef struct name_search {
    const trek_module *wanted;
    char name[256];
} name_search;

static trek_status note_name(const char *path, trek_module *module, void *arg)
{
    name_search *search = arg;
    if (module != search->wanted)
        return TREK_OK;
    snprintf(search->name, sizeof search->name, "%s", path);
    return TREK_ERR_STATE; /* ends the walk */
}

int trek_module_trace(trek_module *module)
{
    trek_module *around = (trek_module *)(uintptr_t)trek_trace_module_here();
    if (around == module)
        return 0;
    const char *name = child_name(around, module);
    name_search search = { .wanted = module };
    if (!name && around) { /* a child of a child, or none of its own */
        trek_walk_modules(around, 0, note_name, &search);
        name = *search.name ? search.name : NULL;
    }
    return trek_trace_begin_module(name ? name : module->klass->name, module);
}

trek_var *trek_forward(trek_module *module, trek_var *x)
{
    if (!module || !x) {
        trek_fail_missing("forward", module ? "input" : "module");
        return NULL;
    }
    if (trek_gone(module, "forward", "the module"))
        return NULL;
    const trek_module_class *klass = module->klass;
    if (module->upkeep->failed || (!klass->forward && !klass->forward_many))
        return refuse(module);
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return NULL;
    bool clean = trek_error_status() == TREK_OK;
    int frame = trek_trace_records() ? trek_module_trace(module) : 0;
    return finish(module, scope, clean, frame, klass->forward ? klass->forward(module, x) : klass->forward_many(module, &x, 1));
}

trek_var *trek_forward_many(trek_module *module, trek_var *const *inputs, int n)
{
    if (!module || !inputs) {
        trek_fail_missing("forward_many", module ? "inputs" : "module");
        return NULL;
    }
    if (trek_gone(module, "forward_many", "the module"))
        return NULL;
    const trek_module_class *klass = module->klass;
    if (n < 1)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: forward_many needs at least one input, not %d", klass->name, n);
    if (!inputs[0]) {
        trek_fail_missing("forward_many", "input 0");
        return NULL;
    }
    if (!klass->forward_many && n == 1)
        return trek_forward(module, inputs[0]);
    if (!klass->forward_many)
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "%s: takes one input, not %d", klass->name, n);
    if (module->upkeep->failed)
        return refuse(module);
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return NULL;
    bool clean = trek_error_status() == TREK_OK;
    int frame = trek_trace_records() ? trek_module_trace(module) : 0;
    return finish(module, scope, clean, frame, klass->forward_many(module, inputs, n));
}
