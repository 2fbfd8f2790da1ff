/* SPDX-License-Identifier: Apache-2.0 */
/* State from a module and into it. */
#include <string.h>

#include "nn/pointer_map.h"
#include "nn/state_internal.h"
#include "nn/text.h"
#include "nn/walk.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* --- out of a module ------------------------------------------------------------ */

typedef struct gathering {
    trek_state *state;
    bool copies;
    trek_pointer_map seen;    /* variable -> entry */
} gathering;

/* On the CPU, independent of the original if that is asked for. */
static trek_tensor *host_tensor(trek_tensor *tensor, bool copy)
{
    if (trek_tensor_device(tensor).type != TREK_CPU)
        return trek_tensor_to(tensor, trek_cpu(0));
    return copy ? trek_tensor_clone(tensor) : trek_tensor_retain(tensor);
}

static trek_status gather(const char *name, trek_var *var, bool is_buffer, void *arg)
{
    (void)is_buffer;
    gathering *g = arg;
    int entry = trek_pointer_map_get(&g->seen, var);
    if (entry >= 0)
        return trek_state_add_alias(g->state, name, g->state->entries[entry].name);
    bool added;
    trek_status status = trek_pointer_map_add(&g->seen, var, g->state->n_entries, &added);
    if (status != TREK_OK)
        return status;
    trek_tensor *tensor = host_tensor(trek_var_data(var), g->copies);
    if (!tensor)
        return trek_error_status();
    status = trek_state_add(g->state, name, tensor);
    trek_tensor_release(tensor);
    return status;
}

static trek_state *gather_module(trek_module *module, bool copies)
{
    gathering g = { .state = trek_state_new(), .copies = copies };
    if (!g.state)
        return NULL;
    if (trek_walk_entries(module, TREK_WALK_PARAMS | TREK_WALK_BUFFERS | TREK_WALK_EVERY_PATH, gather, &g) != TREK_OK)
        trek_state_free(&g.state);
    trek_pointer_map_clear(&g.seen);
    return g.state;
}

trek_state *trek_state_of(trek_module *module)
{
    if (!module) {
        trek_fail_missing("state_of", "module");
        return NULL;
    }
    return gather_module(module, true);
}

trek_state *trek_state_borrow(trek_module *module) { return gather_module(module, false); }

trek_status trek_state_save(trek_module *module, const char *path)
{
    if (!module || !path)
        return trek_fail_missing("state_save", module ? "path" : "module");
    trek_state *state = gather_module(module, false);
    if (!state)
        return trek_error_status();
    trek_status status = trek_state_write(state, path);
    trek_state_free(&state);
    return status;
}

/* --- into a module: what fits what ------------------------------------------------ */

/* One parameter or buffer and the tensor that is meant for it. */
typedef struct target {
    trek_var *var;            /* borrowed */
    char *name;               /* its first name */
    int entry;                /* of the state; -1: none */
    trek_tensor *staged;      /* owned; in the variable's dtype, on its device */
} target;

struct trek_state_loading {
    const trek_state *state;
    trek_state_load_opts opts;
    target *targets;
    int n_targets, cap_targets;
    trek_pointer_map seen;    /* variable -> target */
    bool *used;               /* [n_entries] */
};
typedef struct trek_state_loading matching;

static trek_status match(const char *name, trek_var *var, bool is_buffer, void *arg)
{
    (void)is_buffer;
    matching *m = arg;
    int k = trek_pointer_map_get(&m->seen, var);
    if (k < 0) {
        bool added;
        trek_status status = trek_array_grow(&m->targets, &m->cap_targets, m->n_targets + 1, sizeof *m->targets);
        if (status == TREK_OK)
            status = trek_pointer_map_add(&m->seen, var, m->n_targets, &added);
        if (status != TREK_OK)
            return status;
        char *copy = trek_strdup(name);
        if (!copy)
            return TREK_ERR_MEMORY;
        k = m->n_targets++;
        m->targets[k] = (target){ var, copy, -1, NULL };
    }
    int entry = trek_state_lookup(m->state, name);
    if (entry >= 0) {
        m->used[entry] = true;
        if (m->targets[k].entry < 0) /* a further name that has a tensor of its own: the first one counts */
            m->targets[k].entry = entry;
    }
    return TREK_OK;
}

static bool fits(const matching *m, const target *t)
{
    const trek_tensor *tensor = m->state->entries[t->entry].tensor;
    trek_dtype have = trek_tensor_dtype(tensor), want = trek_var_dtype(t->var);
    bool castable = m->opts.cast && have != TREK_BOOL && want != TREK_BOOL &&
        trek_dtype_is_float(have) == trek_dtype_is_float(want);
    return trek_shape_equal(trek_tensor_shape(tensor), trek_var_shape(t->var)) && (have == want || castable);
}

/* --- the report -------------------------------------------------------------------- */

/* A list of names inside a text: a heading before the first, and an end after the eighth. */
typedef struct name_list {
    trek_text names;
    int count;
} name_list;

static bool list_has_room(name_list *list)
{
    if (list->count++ >= 8)
        return false;
    trek_text_add(&list->names, list->names.length ? ", " : "");
    return true;
}

static void list_difference(name_list *list, const matching *m, const target *t)
{
    char have[TREK_SHAPE_TEXT], want[TREK_SHAPE_TEXT];
    const trek_tensor *tensor = m->state->entries[t->entry].tensor;
    if (list_has_room(list))
        trek_text_format(&list->names, "%s (%s %s in the state, %s %s in the module)", t->name,
                         trek_dtype_name(trek_tensor_dtype(tensor)), trek_shape_text(trek_tensor_shape(tensor), have),
                         trek_dtype_name(trek_var_dtype(t->var)), trek_shape_text(trek_var_shape(t->var), want));
}

static void close_list(trek_text *text, name_list *list, const char *what)
{
    if (list->count > 0)
        trek_text_format(text, "%s%d %s: %s", text->length ? "; " : "", list->count, what,
                         list->names.data ? list->names.data : "");
    if (list->count > 8)
        trek_text_format(text, " and %d more", list->count - 8);
    trek_text_clear(&list->names);
}

/* Never fails: without memory the counts are right and the names are missing. */
static void make_report(const matching *m, trek_state_report *report)
{
    name_list missing = { 0 }, unexpected = { 0 }, differing = { 0 };
    trek_text text = { 0 };
    for (int k = 0; k < m->n_targets; k++) {
        const target *t = &m->targets[k];
        if (t->entry >= 0)
            report->loaded++;
        if (t->entry < 0 && list_has_room(&missing))
            trek_text_add(&missing.names, t->name);
        else if (t->entry >= 0 && !fits(m, t))
            list_difference(&differing, m, t);
    }
    for (int k = 0; k < m->state->n_entries; k++)
        if (!m->used[k] && list_has_room(&unexpected))
            trek_text_add(&unexpected.names, m->state->entries[k].name);
    report->missing = missing.count;
    report->unexpected = unexpected.count;
    report->differing = differing.count;
    close_list(&text, &missing, "missing");
    close_list(&text, &unexpected, "unexpected");
    close_list(&text, &differing, "different");
    if (text.data) {
        size_t length = text.length < sizeof report->text - 1 ? text.length : sizeof report->text - 1;
        while (length < text.length && length > 0 && (text.data[length] & 0xC0) == 0x80)
            length--; /* not inside a character */
        memcpy(report->text, text.data, length);
        report->text[length] = 0;
    }
    trek_text_clear(&text);
}

/* --- into a module: the copying ------------------------------------------------------ */

/* Converts and moves everything before the first tensor of the module is written. */
static trek_status stage(matching *m)
{
    for (int k = 0; k < m->n_targets; k++) {
        target *t = &m->targets[k];
        if (t->entry < 0)
            continue;
        trek_tensor *cast = trek_tensor_cast(m->state->entries[t->entry].tensor, trek_var_dtype(t->var));
        t->staged = cast ? trek_tensor_to(cast, trek_var_device(t->var)) : NULL;
        trek_tensor_release(cast);
        if (!t->staged)
            return trek_error_status();
    }
    return TREK_OK;
}

trek_status trek_state_loading_commit(trek_state_loading *m)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < m->n_targets && status == TREK_OK; k++)
        if (m->targets[k].staged)
            status = trek_tensor_copy_from(trek_var_data(m->targets[k].var), m->targets[k].staged);
    return status;
}

static trek_status check_and_stage(matching *m, trek_module *module, trek_state_report *report)
{
    m->used = trek_calloc((size_t)m->state->n_entries + 1, sizeof *m->used);
    if (!m->used)
        return TREK_ERR_MEMORY;
    trek_status status =
        trek_walk_entries(module, TREK_WALK_PARAMS | TREK_WALK_BUFFERS | TREK_WALK_EVERY_PATH, match, m);
    if (status != TREK_OK)
        return status;
    make_report(m, report);
    if (report->differing > 0 || (report->missing > 0 && !m->opts.allow_missing) ||
        (report->unexpected > 0 && !m->opts.allow_unexpected))
        return trek_fail(TREK_ERR_ARGUMENT, "state does not fit the %s: %s", trek_module_name(module), report->text);
    return stage(m);
}

trek_state_loading *trek_state_loading_new(const trek_state *state, trek_module *module, const trek_state_load_opts *opts,
                                           trek_state_report *report)
{
    matching *m = trek_calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->state = state;
    if (opts)
        m->opts = *opts;
    if (check_and_stage(m, module, report) != TREK_OK)
        trek_state_loading_free(&m);
    return m;
}

void trek_state_loading_free(trek_state_loading **loading)
{
    matching *m = *loading;
    *loading = NULL;
    for (int k = 0; m && k < m->n_targets; k++) {
        trek_free(m->targets[k].name);
        trek_tensor_release(m->targets[k].staged);
    }
    if (!m)
        return;
    trek_free(m->targets);
    trek_free(m->used);
    trek_pointer_map_clear(&m->seen);
    trek_free(m);
}

trek_status trek_state_apply_with(const trek_state *state, trek_module *module, const trek_state_load_opts *opts,
                                  trek_state_report *report)
{
    trek_state_report own;
    if (!report)
        report = &own;
    *report = (trek_state_report){ 0 };
    if (!state || !module)
        return trek_fail_missing("state_apply", state ? "module" : "state");
    trek_state_loading *loading = trek_state_loading_new(state, module, opts, report);
    trek_status status = loading ? trek_state_loading_commit(loading) : trek_error_status();
    trek_state_loading_free(&loading);
    return status;
}

trek_status trek_state_apply(const trek_state *state, trek_module *module)
{
    return trek_state_apply_with(state, module, NULL, NULL);
}

trek_status trek_state_load_with(trek_module *module, const char *path, const trek_state_load_opts *opts,
                                 trek_state_report *report)
{
    if (report)
        *report = (trek_state_report){ 0 };
    if (!module || !path)
        return trek_fail_missing("state_load", module ? "path" : "module");
    trek_state *state = trek_state_read(path);
    if (!state)
        return trek_error_status();
    trek_status status = trek_state_apply_with(state, module, opts, report);
    trek_state_free(&state);
    return status;
}

trek_status trek_state_load(trek_module *module, const char *path, trek_state_report *report)
{
    return trek_state_load_with(module, path, NULL, report);
}
