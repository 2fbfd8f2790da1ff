/* SPDX-License-Identifier: Apache-2.0 */
/* Ordered lists of parameters. */
#include "autograd/leaf.h"
#include "nn/module.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/params.h"
#include "nn/pointer_map.h"
#include "tensor/debug.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

struct trek_params {
    trek_module_entry *entries;
    int count, capacity;
    trek_pointer_map seen;
};

trek_params *trek_params_new(void) { return trek_calloc(1, sizeof(trek_params)); }

trek_status trek_params_add(trek_params *params, const char *name, trek_var *param)
{
    if (!params || !param)
        return trek_fail_missing("params_add", params ? "parameter" : "list");
    if (!trek_var_is_leaf(param))
        return trek_fail(TREK_ERR_ARGUMENT, "params_add: \"%s\" is the result of an op; must be a parameter", name ? name : "");
    int seen = trek_pointer_map_get(&params->seen, param);
    if (seen >= 0)
        return trek_fail(TREK_ERR_ARGUMENT, "params_add: \"%s\" is already in the list, as \"%s\"", name ? name : "",
                         params->entries[seen].name);
    trek_status status = trek_array_grow(&params->entries, &params->capacity, params->count + 1, sizeof *params->entries);
    if (status != TREK_OK)
        return status;
    char *copy = name ? trek_strdup(name) : trek_format("param%d", params->count);
    if (!copy)
        return TREK_ERR_MEMORY;
    bool added;
    status = trek_pointer_map_add(&params->seen, param, params->count, &added);
    if (status != TREK_OK) {
        trek_free(copy);
        return status;
    }
    params->entries[params->count++] = (trek_module_entry){ copy, trek_var_retain(param), NULL, false };
    return TREK_OK;
}

static trek_status add_one(const char *name, trek_var *param, void *params) { return trek_params_add(params, name, param); }

trek_params *trek_module_params(trek_module *module)
{
    if (!module) {
        trek_fail_missing("module_params", "module");
        return NULL;
    }
    if (trek_gone(module, "module_params", "the module"))
        return NULL;
    trek_params *params = trek_params_new();
    if (params && trek_module_each_param(module, add_one, params) != TREK_OK)
        trek_params_free(&params);
    return params;
}

int trek_params_count(const trek_params *params) { return params ? params->count : 0; }

static const trek_module_entry *entry_at(const trek_params *params, int k, const char *function)
{
    if (!params) {
        trek_fail_missing(function, "list");
        return NULL;
    }
    if (k < 0 || k >= params->count)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: k: %d; must be below %d", function, k, params->count);
    return &params->entries[k];
}

trek_var *trek_params_var(const trek_params *params, int k)
{
    const trek_module_entry *entry = entry_at(params, k, "params_var");
    return entry ? entry->var : NULL;
}

const char *trek_params_name(const trek_params *params, int k)
{
    const trek_module_entry *entry = entry_at(params, k, "params_name");
    return entry ? entry->name : NULL;
}

void trek_params_free(trek_params **params)
{
    if (!params || !*params)
        return;
    trek_params *list = *params;
    *params = NULL;
    for (int k = 0; k < list->count; k++) {
        trek_var_release(list->entries[k].var);
        trek_free(list->entries[k].name);
    }
    trek_free(list->entries);
    trek_pointer_map_clear(&list->seen);
    trek_free(list);
}
