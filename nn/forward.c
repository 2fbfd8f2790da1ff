/* SPDX-License-Identifier: Apache-2.0 */
/* Running a module: each forward in a scope of its own. */
#include "nn/module.h"
#include "tensor/debug.h"
#include "tensor/status_internal.h"

/* The end of every forward: what the module made inside is dropped, its result goes to the caller's scope. */
static trek_var *finish(const trek_module *module, trek_scope scope, trek_var *result)
{
    if (!result && trek_status_get() == TREK_OK)
        trek_fail(TREK_ERR_CALLBACK, "%s: forward gave no result", module->klass->name);
    return trek_scope_end_keep(scope, result);
}

static trek_var *refuse(const trek_module *module)
{
    const char *name = module->klass->name;
    if (module->failed)
        trek_fail(TREK_ERR_STATE, "%s: something that was added to it could not be made, so it cannot run", name);
    else
        trek_fail(TREK_ERR_UNSUPPORTED, "%s: the class has no forward", name);
    return NULL;
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
    if (module->failed || (!klass->forward && !klass->forward_many))
        return refuse(module);
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return NULL;
    return finish(module, scope, klass->forward ? klass->forward(module, x) : klass->forward_many(module, &x, 1));
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
    if (module->failed)
        return refuse(module);
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return NULL;
    return finish(module, scope, klass->forward_many(module, inputs, n));
}
