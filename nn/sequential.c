/* SPDX-License-Identifier: Apache-2.0 */
/* Modules run one after the other. */
#include <stdio.h>

#include "autograd/ops.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/walk.h"
#include "nn/watch.h"
#include "tensor/debug.h"
#include "tensor/status_internal.h"
#include "tensor/trace.h"

/* Returns the stretch that begins with child k, unless children have been replaced since it was made; NULL: none. */
static const trek_module_stretch *stretch_at(const trek_module *self, int k)
{
    for (int s = 0; s < self->own->n_stretches; s++) {
        const trek_module_stretch *stretch = &self->own->stretches[s];
        bool same = stretch->first == k && k + stretch->n <= self->own->n_children;
        for (int j = 0; same && j < stretch->n; j++)
            same = stretch->module->own->children[j].module == self->own->children[k + j].module;
        if (same)
            return stretch;
    }
    return NULL;
}

/* Runs children[k], together with the next child if the two fuse, or with its stretch. *k moves past what ran. */
static trek_var *run_next(const trek_module *self, int *k, trek_var *x)
{
    const trek_module_link *children = self->own->children;
    bool stretches = self->own->n_stretches > 0 && self->own->training && !trek_module_unfuses();
    const trek_module_stretch *stretch = stretches ? stretch_at(self, *k) : NULL;
    int n = self->own->n_children;
    if (stretch) {
        *k += stretch->n;
        return trek_forward(stretch->module, x);
    }
    trek_module *first = children[(*k)++].module;
    trek_activation activation = TREK_ACTIVATION_NONE;
    if (*k < n && !trek_module_unfuses())
        activation = trek_layer_fuses(first, children[*k].module);
    if (activation == TREK_ACTIVATION_NONE)
        return trek_forward(first, x);
    ++*k;
    bool clean = trek_error_status() == TREK_OK;
    int frame = trek_trace_records() ? trek_module_trace(first) : 0;
    trek_var *y = trek_layer_run_fused(first, x, activation);
    if (frame)
        trek_trace_end_module(frame, y ? trek_var_data(y) : NULL);
    if (!y && clean)
        trek_module_tell_place(first, first);
    return y;
}

/* Value k lives in a scope of its own that ends when value k + 1 exists. The scopes are nested with the first value
 * in the innermost one, and ending that moves the next value one scope outward. So only two values are alive at any
 * time (and one more for every INLINE_SCOPES modules). */
static trek_var *sequential_forward(trek_module *self, trek_var *x)
{
    enum { INLINE_SCOPES = 16 };
    trek_scope scopes[INLINE_SCOPES];
    int n = self->own->n_children;
    for (int k = 0; k < n && x;) {
        int opened = 0, closed = 0;
        while (opened < INLINE_SCOPES && opened < n - k) {
            scopes[opened] = trek_scope_begin();
            if (scopes[opened].depth == 0)
                break;
            opened++;
        }
        if (opened == 0)
            return NULL;
        for (; closed < opened && k < n && x; closed++)
            x = trek_scope_end_keep(scopes[opened - 1 - closed], run_next(self, &k, x));
        if (closed < opened) /* fusing or failing took fewer steps than there are children: end the rest */
            x = trek_scope_end_keep(scopes[0], x);
    }
    return x;
}

static void sequential_describe(const trek_module *self, char *text, size_t size)
{
    snprintf(text, size, "%d", self->own->n_children);
}

const trek_module_class trek_sequential_class = {
    .name = "sequential",
    .size = sizeof(trek_module),
    .forward = sequential_forward,
    .rowwise = true,
    .describe = sequential_describe,
};

static trek_status append(trek_module *sequential, trek_module *module)
{
    char name[16];
    snprintf(name, sizeof name, "%d", sequential->own->n_children);
    return trek_module_add(sequential, name, TREK_NO_FIELD, module) ? TREK_OK : trek_error_status();
}

static bool is_there(const trek_module *module) { return module && !trek_gone(module, "sequential", "a module"); }

/* Every module is retained while it is added, so that one listed twice is freed only once, whatever fails. */
trek_module *trek_nn_sequential(trek_module *const *modules, int n)
{
    if (n < 0 || (n > 0 && !modules))
        return trek_fail_null(TREK_ERR_ARGUMENT, "sequential: n: %d; must be 0 or more, with as many modules", n);
    trek_module *sequential = trek_module_new(&trek_sequential_class);
    for (int k = 0; k < n; k++)
        if (is_there(modules[k]))
            modules[k]->own->owners++;
    for (int k = 0; k < n && sequential; k++)
        append(sequential, modules[k]);
    sequential = trek_module_check(sequential);
    for (int k = 0; k < n; k++) {
        trek_module *module = modules[k];
        if (is_there(module) && --module->own->owners == 0)
            trek_module_free(&module);
    }
    return sequential;
}

trek_status trek_nn_sequential_add(trek_module *sequential, trek_module *module)
{
    if (sequential && sequential->own->klass != &trek_sequential_class) {
        if (is_there(module) && module->own->owners == 0 && module != sequential)
            trek_module_free(&module);
        return trek_fail(TREK_ERR_ARGUMENT, "sequential_add: module: it is a %s; must be a sequential",
                         sequential->own->klass->name);
    }
    if (!sequential) {
        trek_module_add(NULL, NULL, TREK_NO_FIELD, module);
        return trek_error_status();
    }
    return append(sequential, module);
}
