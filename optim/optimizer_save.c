/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's state within a larger state, for checkpoints, and by itself. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "nn/state_internal.h"
#include "optim/optimizer_internal.h"
#include "tensor/memory_internal.h"

trek_status trek_optimizer_add_rates(trek_state *state, const trek_optimizer *optimizer, const char *name)
{
    double *rates = trek_calloc((size_t)optimizer->n_groups, sizeof *rates);
    if (!rates)
        return TREK_ERR_MEMORY;
    for (int g = 0; g < optimizer->n_groups; g++)
        rates[g] = trek_optimizer_group_lr(optimizer, g);
    trek_tensor *tensor = trek_tensor_from_data(rates, trek_dims(optimizer->n_groups), TREK_F64, trek_cpu(0));
    trek_status status = tensor ? trek_state_add(state, name, tensor) : trek_error_status();
    trek_tensor_release(tensor);
    trek_free(rates);
    return status;
}

static trek_status add_entry(trek_state *state, const trek_optimizer_entry *entry, const char *prefix, bool copies)
{
    char *name = trek_format("%s%s", prefix, entry->name);
    trek_tensor *own = NULL;
    if (copies && name)
        own = trek_tensor_device(entry->tensor).type == TREK_CPU ? trek_tensor_clone(entry->tensor)
            : trek_tensor_to(entry->tensor, trek_cpu(0));
    trek_status status = name && (own || !copies) ? TREK_OK : trek_error_status();
    if (status == TREK_OK)
        status = trek_state_add(state, name, copies ? own : entry->tensor);
    trek_tensor_release(own);
    trek_free(name);
    return status;
}

trek_status trek_optimizer_add_to(trek_state *state, trek_optimizer *optimizer, const char *rates, const char *prefix,
                                  bool copies)
{
    trek_optimizer_entry *entries = NULL;
    int n = 0;
    trek_status status = trek_optimizer_add_rates(state, optimizer, rates);
    if (status == TREK_OK)
        status = trek_optimizer_export(optimizer, &entries, &n);
    for (int k = 0; k < n && status == TREK_OK; k++)
        status = add_entry(state, &entries[k], prefix, copies);
    trek_optimizer_export_free(entries, n);
    return status;
}

trek_status trek_optimizer_read_rates(trek_tensor *tensor, const char *where, double **rates, int *n)
{
    int64_t count = trek_tensor_numel(tensor);
    if (count < 1 || count > INT32_MAX || trek_tensor_shape(tensor).ndim != 1 || trek_tensor_dtype(tensor) != TREK_F64)
        return trek_fail(TREK_ERR_FORMAT, "%s: learning rates are missing", where);
    *n = (int)count;
    *rates = trek_calloc((size_t)count, sizeof **rates);
    trek_status status = *rates ? trek_tensor_to_host(tensor, TREK_F64, *rates, (size_t)count * sizeof **rates) : TREK_ERR_MEMORY;
    for (int g = 0; g < *n && status == TREK_OK; g++)
        if (!((*rates)[g] >= 0 && isfinite((*rates)[g])))
            status = trek_fail(TREK_ERR_FORMAT, "%s: a learning rate is negative or not finite", where);
    return status;
}

trek_state *trek_optimizer_save(trek_optimizer *optimizer)
{
    if (!optimizer)
        return trek_fail_missing("optimizer_save", "optimizer"), NULL;
    bool gathers = optimizer->behind && optimizer->behind->gather;
    trek_status status = trek_error_status();
    if (gathers)
        status = optimizer->behind->gather(optimizer->behind_arg, status);
    trek_state *state = status == TREK_OK ? trek_state_new() : NULL;
    if (state && trek_optimizer_add_to(state, optimizer, TREK_OPTIMIZER_RATES, "", true) != TREK_OK)
        trek_state_free(&state);
    if (gathers)
        trek_optimizer_gather_end(optimizer);
    return state;
}

trek_status trek_optimizer_set_rates(trek_optimizer *optimizer, const trek_optimizer_loaded *state)
{
    trek_status status = TREK_OK;
    for (int g = 0; g < state->n_rates && status == TREK_OK; g++)
        status = trek_optimizer_set_group_lr(optimizer, g, state->rates[g]);
    return status;
}

/* Reads rates and entries from a state. The caller frees them even after a failure. */
static trek_status read_state(const trek_optimizer *optimizer, const trek_state *state, double **rates,
                              trek_optimizer_entry **entries, trek_optimizer_loaded *loaded)
{
    trek_tensor *tensor = trek_state_find(state, TREK_OPTIMIZER_RATES);
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    if (!tensor)
        return trek_fail(TREK_ERR_FORMAT,
                         "optimizer_load: state: \"" TREK_OPTIMIZER_RATES "\" is missing: it is not the state of an optimizer");
    if (!(*entries = trek_calloc((size_t)trek_state_count(state) + 1, sizeof **entries)))
        return TREK_ERR_MEMORY;
    trek_status status = trek_optimizer_read_rates(tensor, "optimizer_load", rates, &loaded->n_rates);
    if (status == TREK_OK && loaded->n_rates != optimizer->n_groups)
        status = trek_fail(TREK_ERR_FORMAT, "optimizer_load: state: it has %d groups, the optimizer %d; must be equal",
                           loaded->n_rates, optimizer->n_groups);
    for (int k = 0; k < trek_state_count(state) && status == TREK_OK; k++) {
        if (strcmp(trek_state_name(state, k), TREK_OPTIMIZER_RATES) == 0)
            continue;
        if ((tensor = trek_state_tensor(state, k)))
            (*entries)[loaded->n_entries++] = (trek_optimizer_entry){ .name = (char *)trek_state_name(state, k),
                                                                      .tensor = tensor };
        else
            status = trek_error_status();
    }
    loaded->entries = *entries;
    loaded->rates = *rates;
    return status;
}

static trek_status load_alone(trek_optimizer *optimizer, const trek_optimizer_loaded *state)
{
    trek_optimizer_import_plan *plan;
    trek_status status = trek_optimizer_import_begin(optimizer, state->entries, state->n_entries, &plan);
    trek_optimizer_import_end(optimizer, &plan, status == TREK_OK);
    return status == TREK_OK ? trek_optimizer_set_rates(optimizer, state) : status;
}

trek_status trek_optimizer_load(trek_optimizer *optimizer, const trek_state *state)
{
    if (!optimizer)
        return trek_fail_missing("optimizer_load", "optimizer");
    trek_status status = state ? trek_error_status() : trek_fail_missing("optimizer_load", "state");
    double *rates = NULL;
    trek_optimizer_entry *entries = NULL;
    trek_optimizer_loaded loaded = { 0 };
    if (status == TREK_OK)
        status = read_state(optimizer, state, &rates, &entries, &loaded);
    if (optimizer->behind && optimizer->behind->load)
        status = optimizer->behind->load(optimizer->behind_arg, status, &loaded);
    else if (status == TREK_OK)
        status = load_alone(optimizer, &loaded);
    trek_free(entries);
    trek_free(rates);
    return status;
}
