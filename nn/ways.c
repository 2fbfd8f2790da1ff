/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/ways.h"

#include "autograd/offload.h"
#include "autograd/var_internal.h"
#include "nn/layers_internal.h"
#include "nn/module_internal.h"
#include "nn/recompute_internal.h"
#include "nn/walk.h"
#include "tensor/memory_internal.h"

int64_t trek_way_min_bytes = 1 << 20;

static trek_var *run_moved(trek_module *module, trek_var *const *inputs, int n)
{
    if (!module->own->training || !trek_grad_enabled())
        return trek_module_run_itself(module, inputs, n);
    trek_offload_begin(&(trek_offload_opts){ .min_bytes = trek_way_min_bytes, .ahead = TREK_WAY_AHEAD });
    trek_var *y = trek_module_run_itself(module, inputs, n);
    trek_offload_end();
    return y;
}

void trek_module_set_way(trek_module *module, trek_module_way way)
{
    module->own->instead = way == TREK_WAY_RECOMPUTE ? trek_module_run_recomputed : way == TREK_WAY_MOVE ? run_moved : NULL;
}

/* Children keep their names, which errors and traces tell. */
static trek_module *make_stretch(const trek_module *sequential, int first, int n)
{
    trek_module *module = trek_module_new(&trek_sequential_class);
    for (int k = first; module && k < first + n; k++)
        trek_module_add(module, sequential->own->children[k].name, TREK_NO_FIELD, sequential->own->children[k].module);
    return trek_module_check(module);
}

trek_status trek_sequential_set_way(trek_module *sequential, int first, int n, trek_module_way way)
{
    int capacity = sequential->own->n_stretches, count = capacity;
    trek_module *module = make_stretch(sequential, first, n);
    if (!module)
        return trek_error_status();
    if (trek_array_grow(&sequential->own->stretches, &capacity, count + 1, sizeof *sequential->own->stretches) != TREK_OK) {
        trek_module_free(&module);
        return trek_error_status();
    }
    trek_module_set_way(module, way);
    sequential->own->stretches[sequential->own->n_stretches++] = (trek_module_stretch){ first, n, module };
    return TREK_OK;
}

static trek_status forget(const char *name, trek_module *module, void *arg)
{
    (void)name, (void)arg;
    if (module->own->instead == trek_module_run_recomputed || module->own->instead == run_moved)
        module->own->instead = NULL;
    trek_module_drop_stretches(module);
    return TREK_OK;
}

trek_status trek_ways_forget(trek_module *module) { return trek_module_each(module, forget, NULL); }
