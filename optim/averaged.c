/* SPDX-License-Identifier: Apache-2.0 */
/* Averages of weights. */
#include "optim/averaged.h"

#include <stdio.h>
#include <stdlib.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "nn/module_tree.h"
#include "nn/state_tensors.h"
#include "tensor/copies.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/memory_internal.h"
#include "tensor/option_internal.h"
#include "tensor/scope.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

typedef struct average_entry {
    char *name;
    trek_var *var;       /* retained; the module's */
    trek_tensor *value;  /* f32 if var is 16-bit */
    trek_tensor *own;    /* the module's own value while values are swapped */
    bool averages;       /* otherwise the latest value is copied */
} average_entry;

struct trek_averaged {
    average_entry *entries;
    int n, capacity;
    int64_t updates;
    double decay;
    bool exponential, buffers, swapped;
};

/* --- made and freed -------------------------------------------------------------- */

static trek_dtype wide_of(trek_dtype dtype) { return dtype == TREK_BF16 || dtype == TREK_F16 ? TREK_F32 : dtype; }

static trek_status add(trek_averaged *a, const char *name, trek_var *var, bool averages)
{
    trek_status status = trek_array_grow(&a->entries, &a->capacity, a->n + 1, sizeof *a->entries);
    if (status != TREK_OK)
        return status;
    average_entry e = { trek_strdup(name), NULL, trek_tensor_cast(trek_var_data(var), wide_of(trek_var_dtype(var))), NULL,
                        averages };
    trek_tensor *own = e.value ? trek_tensor_clone(e.value) : NULL; /* a cast to the same dtype may return the tensor itself */
    trek_tensor_release(e.value);
    e.value = own;
    if (!e.name || !e.value) {
        trek_free(e.name);
        trek_tensor_release(e.value);
        return trek_error_status();
    }
    e.var = trek_var_retain(var);
    a->entries[a->n++] = e;
    return TREK_OK;
}

static trek_status add_param(const char *name, trek_var *var, void *arg) { return add(arg, name, var, true); }

static trek_status add_buffer(const char *name, trek_var *var, void *arg)
{
    const trek_averaged *a = arg;
    return add(arg, name, var, a->buffers && trek_dtype_is_float(trek_var_dtype(var)));
}

trek_averaged *trek_averaged_new(trek_module *module, const trek_averaged_opts *opts)
{
    trek_averaged_opts o = opts ? *opts : (trek_averaged_opts){ 0 };
    double decay = trek_option(o.decay, 0);
    if (!module) {
        trek_fail_missing("averaged_new", "module");
        return NULL;
    }
    if (!(decay >= 0 && decay <= 1))
        return trek_fail_null(TREK_ERR_ARGUMENT, "averaged_new: decay: %g; must be inside [0, 1]", decay);
    trek_averaged *a = trek_calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->decay = decay;
    a->exponential = o.decay != 0;
    a->buffers = o.buffers;
    trek_status status = trek_module_each_param(module, add_param, a);
    if (status == TREK_OK)
        status = trek_module_each_buffer(module, add_buffer, a);
    if (status != TREK_OK)
        trek_averaged_free(&a);
    return a;
}

void trek_averaged_free(trek_averaged **address)
{
    trek_averaged *a = address ? *address : NULL;
    if (!a)
        return;
    *address = NULL;
    for (int k = 0; k < a->n; k++) {
        trek_free(a->entries[k].name);
        trek_var_release(a->entries[k].var);
        trek_tensor_release(a->entries[k].value);
        trek_tensor_release(a->entries[k].own);
    }
    trek_free(a->entries);
    trek_free(a);
}

/* --- what is done with them -------------------------------------------------------- */

static trek_status take_in(average_entry *e, double weight)
{
    if (!e->averages || weight == 1)
        return trek_tensor_copy_from(e->value, trek_var_data(e->var));
    trek_scope scope = trek_scope_begin();
    trek_var *average = trek_var_from(trek_tensor_retain(e->value));
    trek_var *value = trek_cast(trek_var_detach(e->var), trek_tensor_dtype(e->value));
    trek_var *sum = average && value ? trek_add(average, trek_mul_scalar(trek_sub(value, average), weight)) : NULL;
    trek_status status = sum ? trek_tensor_copy_from(e->value, trek_var_data(sum)) : trek_error_status();
    trek_scope_end(scope);
    return status;
}

trek_status trek_averaged_update(trek_averaged *a)
{
    if (!a)
        return trek_fail_missing("averaged_update", "averaged");
    if (a->swapped)
        return trek_fail(TREK_ERR_STATE, "averaged_update: the module holds the averages; call trek_averaged_swap first");
    double weight = a->updates == 0 ? 1 : a->exponential ? 1 - a->decay : 1 / (double)(a->updates + 1);
    trek_no_grad_begin();
    trek_status status = trek_error_status();
    for (int k = 0; k < a->n && status == TREK_OK; k++)
        status = take_in(&a->entries[k], weight);
    trek_no_grad_end();
    a->updates += status == TREK_OK;
    return status;
}

trek_status trek_averaged_swap(trek_averaged *a)
{
    if (!a)
        return trek_fail_missing("averaged_swap", "averaged");
    trek_tensor **kept = trek_calloc((size_t)a->n + 1, sizeof *kept);
    trek_status status = kept ? trek_error_status() : TREK_ERR_MEMORY;
    for (int k = 0; k < a->n && status == TREK_OK && !a->swapped; k++)
        if (!(kept[k] = trek_tensor_clone(trek_var_data(a->entries[k].var))))
            status = trek_error_status();
    for (int k = 0; k < a->n && status == TREK_OK; k++)
        status = trek_tensor_copy_from(trek_var_data(a->entries[k].var), a->swapped ? a->entries[k].own : a->entries[k].value);
    for (int k = 0; k < a->n && status == TREK_OK; k++) {
        trek_tensor *old = a->entries[k].own;
        a->entries[k].own = kept[k];
        kept[k] = old;
    }
    a->swapped ^= status == TREK_OK;
    for (int k = 0; kept && k < a->n; k++)
        trek_tensor_release(kept[k]);
    trek_free(kept);
    return status;
}

int64_t trek_averaged_updates(const trek_averaged *a) { return a ? a->updates : 0; }

/* --- state ---------------------------------------------------------------------------- */

static const char count_key[] = "averaged.updates";

trek_state *trek_averaged_state(trek_averaged *a)
{
    if (!a) {
        trek_fail_missing("averaged_state", "averaged");
        return NULL;
    }
    if (a->swapped)
        return trek_fail_null(TREK_ERR_STATE, "averaged_state: the module holds the averages; call trek_averaged_swap first");
    trek_state *state = trek_state_new();
    trek_status status = state ? TREK_OK : trek_error_status();
    for (int k = 0; k < a->n && status == TREK_OK; k++) {
        trek_tensor *here = trek_tensor_to(a->entries[k].value, trek_cpu(0)), *copy = here ? trek_tensor_clone(here) : NULL;
        status = copy ? trek_state_add(state, a->entries[k].name, copy) : trek_error_status();
        trek_tensor_release(here);
        trek_tensor_release(copy);
    }
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)a->updates);
    if (status == TREK_OK)
        status = trek_state_set_metadata(state, count_key, text);
    if (status != TREK_OK)
        trek_state_free(&state);
    return state;
}

static trek_status check_state(const trek_averaged *a, const trek_state *state)
{
    if (!trek_state_metadata(state, count_key))
        return trek_fail(TREK_ERR_ARGUMENT, "averaged_load: state: it is not the state of an average");
    for (int k = 0; k < a->n; k++) {
        const average_entry *e = &a->entries[k];
        const trek_tensor *value = trek_state_find(state, e->name);
        if (!value || !trek_shape_equal(trek_tensor_shape(value), trek_tensor_shape(e->value)))
            return trek_fail(TREK_ERR_ARGUMENT, "averaged_load: state: \"%s\" is %s", e->name,
                             value ? "of another shape than the parameter" : "missing");
    }
    return TREK_OK;
}

trek_status trek_averaged_load(trek_averaged *a, const trek_state *state)
{
    if (!a || !state)
        return trek_fail_missing("averaged_load", a ? "state" : "averaged");
    if (a->swapped)
        return trek_fail(TREK_ERR_STATE, "averaged_load: the module holds the averages; call trek_averaged_swap first");
    trek_status status = check_state(a, state);
    for (int k = 0; k < a->n && status == TREK_OK; k++)
        status = trek_tensor_copy_from(a->entries[k].value, trek_state_find(state, a->entries[k].name));
    if (status == TREK_OK)
        a->updates = strtoll(trek_state_metadata(state, count_key), NULL, 10);
    return status;
}
