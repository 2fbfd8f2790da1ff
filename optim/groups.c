/* SPDX-License-Identifier: Apache-2.0 */
/* Making groups by kinds of parameters, and resetting an optimizer's state. */
#include <string.h>

#include "autograd/var_internal.h"
#include "nn/params.h"
#include "optim/optimizer_internal.h"

int trek_optimizer_vectors(trek_optimizer *optimizer, trek_optimizer_spec spec)
{
    if (!optimizer) {
        trek_fail_missing("optimizer_vectors", "optimizer");
        return -1;
    }
    trek_params *params = trek_params_new();
    trek_status status = params ? TREK_OK : trek_error_status();
    const trek_arena *arena = optimizer->arena;
    for (int k = 0; k < arena->n_segments && status == TREK_OK; k++)
        if (trek_var_ndim(arena->segments[k].param) < 2)
            status = trek_params_add(params, arena->segments[k].name, arena->segments[k].param);
    int group = status == TREK_OK ? trek_optimizer_add_group(optimizer, params, spec) : -1;
    trek_params_free(&params);
    return group;
}

/* The options each parameter is to have, and the first parameter with the same options. */
typedef struct wish {
    trek_optimizer_spec asked, spec;
    int group, first;
    bool stays;
} wish;

static bool same_options(const trek_optimizer_spec *a, const trek_optimizer_spec *b)
{
    bool same = true;
    for (int k = 0; k < TREK_UPDATE_OPTIONS; k++)
        same = same && a->options[k] == b->options[k];
    return same;
}

static trek_status ask(trek_optimizer *optimizer, trek_regroup_fn fn, void *arg, wish *wishes)
{
    const trek_arena *arena = optimizer->arena;
    for (int k = 0; k < arena->n_segments; k++) {
        const trek_arena_segment *segment = &arena->segments[k];
        const trek_optimizer_spec *own = &optimizer->groups[segment->group].spec;
        wish *w = &wishes[k];
        w->group = segment->group;
        w->asked = w->spec = fn(segment->name, segment->param, trek_optimizer_spec_again(own), arg);
        trek_status status = trek_optimizer_resolve(&w->spec);
        if (status == TREK_OK && w->spec.state_dtype != TREK_F32 && w->spec.state_dtype != own->state_dtype)
            status = trek_fail(TREK_ERR_ARGUMENT,
                               "optimizer_regroup: the optimizer keeps state in %s, but the group of '%s' in %s; must be equal",
                               trek_dtype_name(own->state_dtype), segment->name, trek_dtype_name(w->spec.state_dtype));
        if (status == TREK_OK && w->spec.klass != optimizer->klass)
            status =
                trek_fail(TREK_ERR_ARGUMENT, "optimizer_regroup: the optimizer is %s, but the group of '%s' is %s; must be equal",
                          optimizer->klass->name, segment->name, w->spec.klass->name);
        if (status != TREK_OK)
            return status;
        w->stays = same_options(&w->spec, own);
        for (w->first = 0; w->first < k; w->first++)
            if (!wishes[w->first].stays && wishes[w->first].group == w->group &&
                same_options(&wishes[w->first].spec, &w->spec))
                break;
    }
    return TREK_OK;
}

static trek_status make_group(trek_optimizer *optimizer, const wish *wishes, int first)
{
    const trek_arena *arena = optimizer->arena;
    trek_params *params = trek_params_new();
    trek_status status = params ? TREK_OK : trek_error_status();
    for (int k = first; k < arena->n_segments && status == TREK_OK; k++)
        if (!wishes[k].stays && wishes[k].first == first)
            status = trek_params_add(params, arena->segments[k].name, arena->segments[k].param);
    if (status == TREK_OK && trek_optimizer_add_group(optimizer, params, wishes[first].asked) < 0)
        status = trek_error_status();
    trek_params_free(&params);
    return status;
}

trek_status trek_optimizer_regroup(trek_optimizer *optimizer, trek_regroup_fn fn, void *arg)
{
    if (!optimizer || !fn)
        return trek_fail_missing("optimizer_regroup", optimizer ? "fn" : "optimizer");
    int n = optimizer->arena->n_segments;
    wish *wishes = trek_calloc((size_t)n + 1, sizeof *wishes);
    trek_status status = wishes ? ask(optimizer, fn, arg, wishes) : TREK_ERR_MEMORY;
    for (int k = 0; k < n && status == TREK_OK; k++)
        if (!wishes[k].stays && wishes[k].first == k)
            status = make_group(optimizer, wishes, k);
    trek_free(wishes);
    return status;
}

trek_status trek_optimizer_reset(trek_optimizer *optimizer)
{
    if (!optimizer)
        return trek_fail_missing("optimizer_reset", "optimizer");
    trek_status status = trek_optimizer_import(optimizer, NULL, 0);
    if (status == TREK_OK) {
        optimizer->resets++;
        optimizer->edits++;
    }
    return status;
}
