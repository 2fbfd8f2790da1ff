/* SPDX-License-Identifier: Apache-2.0 */
/* Running a module: each forward has a scope of its own. */
#include <stdio.h>

#include "nn/module_internal.h"
#include "nn/walk.h"
#include "nn/watch.h"
#include "tensor/debug.h"
#include "tensor/scope_internal.h"
#include "tensor/status_internal.h"
#include "tensor/trace.h"

_Thread_local int trek_runs_again; /* recompute.c counts in it; layers look at it */

/* Checks whether the walk has reached `wanted`, and records its path in the error message if so. */
static trek_status place_if_found(const char *path, trek_module *module, void *wanted)
{
    if (module != wanted)
        return TREK_OK;
    trek_error_place(module, path, module->own->klass->name);
    return TREK_ERR_STATE; /* ends the walk */
}

void trek_module_tell_place(trek_module *self, trek_module *part)
{
    const void *where = trek_error_where();
    trek_walk_modules(self, 0, place_if_found, where ? (void *)(uintptr_t)where : part);
}

/* The end of every forward: values made inside are dropped, and the result moves to the caller's scope. */
static trek_var *finish(trek_module *module, trek_scope scope, bool clean, int frame, trek_var *result)
{
    if (frame)
        trek_trace_end_module(frame, result ? trek_var_data(result) : NULL);
    if (result)
        return trek_scope_end_keep(scope, result);
    trek_fail_after(TREK_ERR_CALLBACK, "%s: forward: no result; it must return one", module->own->klass->name);
    if (clean)
        trek_module_tell_place(module, module);
    return trek_scope_end_keep(scope, NULL);
}

static void refuse(const trek_module *module)
{
    const char *name = module->own->klass->name;
    if (module->own->failed)
        trek_fail(TREK_ERR_STATE, "%s: incomplete: a module that was added to it could not be made, so it cannot run", name);
    else
        trek_fail(TREK_ERR_UNSUPPORTED, "%s: the class has no forward", name);
}

/* Returns the name under which `module` is a child of `around`, or NULL if it is no child. */
static const char *child_name(const trek_module *around, const trek_module *module)
{
    for (int k = 0; around && k < around->own->n_children; k++)
        if (around->own->children[k].module == module)
            return around->own->children[k].name;
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
    if (!name && around) { /* a grandchild, or a module that is not registered */
        trek_walk_modules(around, 0, note_name, &search);
        name = *search.name ? search.name : NULL;
    }
    return trek_trace_begin_module(name ? name : module->own->klass->name, module);
}

static trek_status run_results(trek_module *module, trek_var *const *inputs, int n, trek_var **results, int count)
{
    const trek_module_class *klass = module->own->klass;
    for (int k = 0; k < count; k++)
        results[k] = NULL;
    trek_status status = trek_weights_make(module);
    if (status == TREK_OK)
        status = klass->forward_results(module, inputs, n, results, count);
    trek_weights_drop(module);
    for (int k = 0; k < count && status == TREK_OK; k++)
        if (!results[k])
            status = trek_fail_after(TREK_ERR_CALLBACK, "%s: forward: no result %d; it must return all", klass->name, k);
    for (int k = 0; k < count && status != TREK_OK; k++)
        results[k] = NULL;
    return status;
}

trek_status trek_module_run_results(trek_module *module, trek_var *const *inputs, int n, trek_var **results, int count)
{
    if (!trek_module_watched())
        return run_results(module, inputs, n, results, count);
    const trek_module_watch *watch = trek_module_watch_here();
    watch->begin(module, inputs, n, watch->arg);
    trek_status status = run_results(module, inputs, n, results, count);
    watch->end(module, results[0], watch->arg);
    return status;
}

/* Runs a module whose weights are in place. */
static trek_var *run_class(trek_module *module, trek_var *const *inputs, int n)
{
    const trek_module_class *klass = module->own->klass;
    if (n == 1 && klass->forward)
        return klass->forward(module, inputs[0]);
    if (klass->forward_many)
        return klass->forward_many(module, inputs, n);
    trek_var *result;
    return run_results(module, inputs, n, &result, 1) == TREK_OK ? result : NULL;
}

static trek_var *run(trek_module *module, trek_var *const *inputs, int n)
{
    const trek_module_class *klass = module->own->klass;
    if (!module->own->parametrizations || (!klass->forward_many && !(n == 1 && klass->forward)))
        return run_class(module, inputs, n);
    trek_var *y = trek_weights_make(module) == TREK_OK ? run_class(module, inputs, n) : NULL;
    trek_weights_drop(module);
    return y;
}

trek_var *trek_module_run_itself(trek_module *module, trek_var *const *inputs, int n)
{
    if (!trek_module_watched())
        return run(module, inputs, n);
    const trek_module_watch *watch = trek_module_watch_here();
    watch->begin(module, inputs, n, watch->arg);
    trek_var *y = run(module, inputs, n);
    watch->end(module, y, watch->arg);
    return y;
}

trek_var *trek_module_run(trek_module *module, trek_var *const *inputs, int n)
{
    if (__builtin_expect(module->own->instead != NULL, 0))
        return module->own->instead(module, inputs, n);
    return trek_module_run_itself(module, inputs, n);
}

/* Returns whether the module can be run with these inputs; if not, the error is set. */
static bool ready(const char *function, trek_module *module, trek_var *const *inputs, int n)
{
    if (!module || !inputs) {
        trek_fail_missing(function, module ? "inputs" : "module");
        return false;
    }
    if (trek_gone(module, function, "the module"))
        return false;
    const char *name = module->own->klass->name;
    if (n < 1)
        trek_fail(TREK_ERR_ARGUMENT, "%s: %s: inputs: %d; must be at least 1", name, function, n);
    else if (!inputs[0])
        trek_fail_missing(function, n == 1 ? "input" : "input 0");
    else if (module->own->failed || !trek_module_runs(module))
        refuse(module);
    else if (n > 1 && !trek_module_takes_many(module))
        trek_fail(TREK_ERR_UNSUPPORTED, "%s: inputs: %d; it takes one", name, n);
    else
        return true;
    return false;
}

static trek_var *forward(const char *function, trek_module *module, trek_var *const *inputs, int n)
{
    if (!ready(function, module, inputs, n))
        return NULL;
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return NULL;
    bool clean = trek_error_status() == TREK_OK;
    int frame = trek_trace_records() ? trek_module_trace(module) : 0;
    return finish(module, scope, clean, frame, trek_module_run(module, inputs, n));
}

trek_var *trek_forward(trek_module *module, trek_var *x) { return forward("forward", module, &x, 1); }

trek_var *trek_forward_many(trek_module *module, trek_var *const *inputs, int n)
{
    return forward("forward_many", module, inputs, n);
}

/* Ends the scope. The results move to the caller's scope, or none does on failure. */
static trek_status hand_over(const char *name, trek_scope scope, trek_var **results, int count)
{
    for (int k = 0; k < count; k++)
        trek_var_retain(results[k]);
    trek_scope_end(scope);
    int pushed = 0;
    while (trek_scopes.depth > 0 && pushed < count && trek_scope_push(results[pushed], name) == TREK_OK)
        pushed++;
    if (trek_scopes.depth == 0 || pushed == count)
        return TREK_OK;
    for (int k = 0; k < count; k++) {
        if (k >= pushed)
            trek_var_release(results[k]);
        results[k] = NULL;
    }
    return trek_error_status();
}

static int result_count(const trek_module_class *klass)
{
    int count = 0;
    while (klass->result_names && klass->result_names[count])
        count++;
    return !klass->forward_results ? 1 : klass->result_names ? count : TREK_MOST_RESULTS;
}

trek_status trek_forward_results(trek_module *module, trek_var *const *inputs, int n, trek_var **results, int count)
{
    for (int k = 0; results && k < count; k++)
        results[k] = NULL;
    if (!results)
        return trek_fail_missing("forward_results", "results");
    if (!ready("forward_results", module, inputs, n))
        return trek_error_status();
    const trek_module_class *klass = module->own->klass;
    int most = result_count(klass);
    if (count < 1 || count > most)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: results: %d; it has %d", klass->name, count, most);
    if (!klass->forward_results)
        return (*results = forward("forward_results", module, inputs, n)) ? TREK_OK : trek_error_status();
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return trek_error_status();
    bool clean = trek_error_status() == TREK_OK;
    int frame = trek_trace_records() ? trek_module_trace(module) : 0;
    trek_status status = trek_module_run_results(module, inputs, n, results, count);
    if (frame)
        trek_trace_end_module(frame, status == TREK_OK ? trek_var_data(results[0]) : NULL);
    if (status == TREK_OK)
        return hand_over(klass->name, scope, results, count);
    if (clean)
        trek_module_tell_place(module, module);
    trek_scope_end(scope);
    return status;
}
