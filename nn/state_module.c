/* SPDX-License-Identifier: Apache-2.0 */
/* Taking the state of a module, and loading a state into a module. */
#include <string.h>

#include "nn/module_internal.h"
#include "nn/pointer_map.h"
#include "nn/state_internal.h"
#include "nn/text.h"
#include "nn/walk.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"
#include "tensor/tensor_internal.h"

/* --- out of a module ------------------------------------------------------------ */

typedef struct gathering {
    trek_state *state;
    bool copies;
    trek_pointer_map seen;    /* variable -> entry */
    trek_names stored;        /* names that had tensors of their own in the file that the module's values came from */
    bool first;               /* the first pass has those names, the second all others */
} gathering;

/* Collects the names that a module of the tree remembers, as seen from the root. */
static trek_status note_stored(const char *path, trek_module *module, void *arg)
{
    trek_names *to = &((gathering *)arg)->stored;
    const trek_names *from = &module->own->stored;
    for (int k = 0; k < from->count; k++) {
        trek_status status = trek_array_grow(&to->list, &to->capacity, to->count + 1, sizeof *to->list);
        char *name = status == TREK_OK ? trek_format("%s%s%s", path, *path ? "." : "", from->list[k]) : NULL;
        if (!name)
            return TREK_ERR_MEMORY;
        to->list[to->count++] = name;
    }
    return TREK_OK;
}

static bool has_name(const trek_names *names, const char *name)
{
    for (int k = 0; k < names->count; k++)
        if (strcmp(names->list[k], name) == 0)
            return true;
    return false;
}

/* Returns an independent tensor on the CPU. */
static trek_tensor *host_copy(trek_tensor *tensor)
{
    return trek_tensor_device(tensor).type != TREK_CPU ? trek_tensor_to(tensor, trek_cpu(0)) : trek_tensor_clone(tensor);
}

static trek_status gather(const char *name, trek_var *var, bool is_buffer, void *arg)
{
    (void)is_buffer;
    gathering *g = arg;
    int entry = trek_pointer_map_get(&g->seen, var);
    if (g->stored.count > 0 && has_name(&g->stored, name) != g->first)
        return TREK_OK;
    if (entry >= 0 && !g->first)
        return trek_state_add_alias(g->state, name, g->state->entries[entry].name);
    bool added;
    trek_status status = trek_pointer_map_add(&g->seen, var, g->state->n_entries, &added);
    if (status != TREK_OK)
        return status;
    trek_tensor *data = trek_var_data(var), *tensor = g->copies ? host_copy(data) : trek_tensor_retain(data);
    if (!tensor)
        return trek_error_status();
    status = trek_state_add(g->state, name, tensor);
    trek_tensor_release(tensor);
    return status;
}

static trek_state *gather_module(trek_module *module, bool copies)
{
    static const int all = TREK_WALK_PARAMS | TREK_WALK_BUFFERS | TREK_WALK_EVERY_PATH;
    gathering g = { .state = trek_state_new(), .copies = copies };
    if (!g.state)
        return NULL;
    trek_status status = trek_walk_modules(module, 0, note_stored, &g);
    if (status == TREK_OK && g.stored.count > 0) {
        g.first = true;
        status = trek_walk_entries(module, all, gather, &g);
        g.first = false;
    }
    if (status == TREK_OK)
        status = trek_walk_entries(module, all, gather, &g);
    if (status != TREK_OK)
        trek_state_free(&g.state);
    trek_pointer_map_clear(&g.seen);
    trek_names_free(&g.stored);
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

trek_status trek_state_save_with(trek_module *module, const char *path, const trek_state_save_opts *opts)
{
    static const trek_state_save_opts defaults = { 0 };
    if (!module || !path)
        return trek_fail_missing("state_save", module ? "path" : "module");
    opts = opts ? opts : &defaults;
    trek_state *own = gather_module(module, false), *named = NULL;
    trek_status status = own ? TREK_OK : trek_error_status();
    if (own && opts->n_rules != 0) {
        named = trek_state_restore_names(own, opts->rules, opts->n_rules);
        status = named ? TREK_OK : trek_error_status();
    }
    const trek_state *state = named ? named : own;
    if (status == TREK_OK)
        status = opts->max_shard_bytes > 0 ? trek_state_write_shards(state, path, opts->max_shard_bytes)
                                           : trek_state_write(state, path);
    trek_state_free(&named);
    trek_state_free(&own);
    return status;
}

trek_status trek_state_save(trek_module *module, const char *path) { return trek_state_save_with(module, path, NULL); }

/* --- into a module: what fits what ------------------------------------------------ */

/* One parameter or buffer, and the tensor intended for it. */
typedef struct target {
    trek_var *var;            /* borrowed */
    char *name;               /* its first name */
    int entry;                /* of the state; -1 if there is none */
    int skipped;              /* if there is none: the tensor without a dtype; -1 for none */
    int names;                /* the number of its names in the module */
    bool aliased;             /* the state has one of them as an alias */
    trek_tensor *staged;      /* owned; in the variable's dtype and on its device */
} target;

struct trek_state_loading {
    const trek_state *state;
    trek_state_load_opts opts;
    target *targets;
    int n_targets, cap_targets;
    trek_pointer_map seen;    /* variable -> target */
    bool *used;               /* [n_entries] */
    bool *used_skipped;       /* [n_skipped] */
    int assigned;
    trek_module *module;
    trek_names stored; /* names with a tensor of their own and their variables, where variables have several names */
    int *stored_target, cap_stored_target;
    bool several; /* a variable with several names was found in the state */
};
typedef struct trek_state_loading matching;

/* Notes a name of the state that the module may have to remember. */
static trek_status note_name(matching *m, int k, int entry, const char *name)
{
    if (strcmp(m->state->entries[entry].name, name) != 0) {
        m->targets[k].aliased = true;
        return TREK_OK;
    }
    trek_status status = trek_array_grow(&m->stored.list, &m->stored.capacity, m->stored.count + 1, sizeof *m->stored.list);
    if (status == TREK_OK)
        status = trek_array_grow(&m->stored_target, &m->cap_stored_target, m->stored.count + 1, sizeof *m->stored_target);
    char *copy = status == TREK_OK ? trek_strdup(name) : NULL;
    if (!copy)
        return TREK_ERR_MEMORY;
    m->stored_target[m->stored.count] = k;
    m->stored.list[m->stored.count++] = copy;
    return TREK_OK;
}

/* Keeps only names that differ from how the module is saved anyway. Names of variables with a single name are
 * dropped, and so are those that the state itself declared to be one tensor. */
static void choose_names(matching *m)
{
    int n = 0;
    for (int k = 0; k < m->stored.count; k++) {
        const target *t = &m->targets[m->stored_target[k]];
        if (t->names > 1 && !t->aliased)
            m->stored.list[n++] = m->stored.list[k];
        else
            trek_free(m->stored.list[k]);
    }
    m->stored.count = n;
    for (int k = 0; k < m->n_targets; k++)
        m->several |= m->targets[k].names > 1 && m->targets[k].entry >= 0;
}

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
        m->targets[k] = (target){ .var = var, .name = copy, .entry = -1, .skipped = -1 };
    }
    m->targets[k].names++;
    int entry = trek_state_lookup(m->state, name);
    if (entry >= 0) {
        m->used[entry] = true;
        if (m->targets[k].entry < 0) /* a further name with a tensor of its own: the first one counts */
            m->targets[k].entry = entry;
        return note_name(m, k, entry, name);
    }
    int skipped = trek_state_lookup_skipped(m->state, name);
    if (skipped >= 0) {
        m->used_skipped[skipped] = true;
        m->targets[k].skipped = skipped;
    }
    return TREK_OK;
}

static bool fits(const matching *m, const target *t)
{
    const trek_state_entry *entry = &m->state->entries[t->entry];
    trek_dtype have = trek_state_entry_dtype(entry), want = trek_var_dtype(t->var);
    bool castable = m->opts.cast && have != TREK_BOOL && want != TREK_BOOL &&
        trek_dtype_is_float(have) == trek_dtype_is_float(want);
    return trek_shape_equal(trek_state_entry_shape(entry), trek_var_shape(t->var)) && (have == want || castable);
}

/* --- the report -------------------------------------------------------------------- */

/* A list of names inside a text, with a heading before the first name; it stops after the eighth. */
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
    const trek_state_entry *entry = &m->state->entries[t->entry];
    if (list_has_room(list))
        trek_text_format(&list->names, "%s (%s %s in the state, %s %s in the module)", t->name,
                         trek_dtype_name(trek_state_entry_dtype(entry)),
                         trek_shape_format(trek_state_entry_shape(entry), have, sizeof have),
                         trek_dtype_name(trek_var_dtype(t->var)), trek_shape_format(trek_var_shape(t->var), want, sizeof want));
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

static void list_skipped(name_list *list, const matching *m, int k)
{
    if (list_has_room(list))
        trek_text_format(&list->names, "%s (%s)", m->state->skipped[k].key, m->state->skipped[k].text);
}

static void copy_text(trek_text *text, trek_state_report *report)
{
    size_t length = text->length < sizeof report->text - 1 ? text->length : sizeof report->text - 1;
    if (!text->data)
        return;
    while (length < text->length && length > 0 && (text->data[length] & 0xC0) == 0x80)
        length--; /* not inside a character */
    memcpy(report->text, text->data, length);
    report->text[length] = 0;
    trek_text_clear(text);
}

/* Returns whether the name belongs to a checkpoint's training state, not to the model. */
static bool is_beside(const trek_state *state, const char *name)
{
    return strncmp(name, TREK_STATE_OWN, strlen(TREK_STATE_OWN)) == 0 && trek_state_metadata(state, TREK_STATE_CHECKPOINT);
}

/* Never fails: without memory the counts are right and the names are missing. */
static void make_report(const matching *m, trek_state_report *report)
{
    name_list missing = { 0 }, unexpected = { 0 }, differing = { 0 }, skipped = { 0 };
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
        if (!m->used[k] && !is_beside(m->state, m->state->entries[k].name) && list_has_room(&unexpected))
            trek_text_add(&unexpected.names, m->state->entries[k].name);
    for (int k = 0; k < m->state->n_skipped; k++)
        if (!m->used_skipped[k])
            list_skipped(&skipped, m, k);
    report->missing = missing.count;
    report->unexpected = unexpected.count;
    report->differing = differing.count;
    report->skipped = skipped.count;
    close_list(&text, &missing, "missing");
    close_list(&text, &unexpected, "unexpected");
    close_list(&text, &differing, "different");
    close_list(&text, &skipped, "skipped, of dtypes that trek does not have");
    copy_text(&text, report);
}

/* --- into a module: the copying ------------------------------------------------------ */

/* Converts and moves everything before the first tensor of the module is written. */
static trek_status stage(matching *m)
{
    for (int k = 0; k < m->n_targets; k++) {
        target *t = &m->targets[k];
        if (t->entry < 0)
            continue;
        trek_tensor *own = trek_state_entry_read(&m->state->entries[t->entry]);
        trek_tensor *cast = own ? trek_tensor_cast(own, trek_var_dtype(t->var)) : NULL;
        t->staged = cast ? trek_tensor_to(cast, trek_var_device(t->var)) : NULL;
        trek_tensor_release(cast);
        trek_tensor_release(own);
        if (!t->staged)
            return trek_error_status();
    }
    return TREK_OK;
}

/* Returns whether the variable's tensor can adopt the loaded memory instead of copying it: nothing else may have
 * views of the old memory, and no earlier target may use the new one. Less than a page is not worth it. */
static bool can_assign(const matching *m, int k)
{
    const trek_tensor *to = trek_var_data(m->targets[k].var), *from = m->targets[k].staged;
    if (!m->opts.assign || from->device.type != TREK_CPU || !from->contiguous || !to->contiguous ||
        from->storage->bytes < 4096 || from->storage == to->storage || to->storage->parent || to->storage->plain ||
        atomic_load_explicit(&to->storage->refs, memory_order_acquire) > 1)
        return false;
    for (int i = 0; i < k; i++)
        if (trek_var_data(m->targets[i].var)->storage == from->storage)
            return false;
    return true;
}

/* Everything that the tape saved of either counts as changed. */
static void assign(matching *m, int k)
{
    trek_tensor *to = trek_var_data(m->targets[k].var), *from = m->targets[k].staged;
    uint32_t version = to->storage->version > from->storage->version ? to->storage->version : from->storage->version;
    trek_tensor_rebind(to, from);
    to->storage->version = version + 1;
    m->assigned++;
}

trek_status trek_state_loading_commit(trek_state_loading *m)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < m->n_targets && status == TREK_OK; k++) {
        if (m->targets[k].staged && can_assign(m, k))
            assign(m, k);
        else if (m->targets[k].staged)
            status = trek_tensor_copy_from(trek_var_data(m->targets[k].var), m->targets[k].staged);
    }
    if (status == TREK_OK && m->several) {
        trek_names before = m->module->own->stored;
        m->module->own->stored = m->stored;
        m->stored = before;
    }
    return status;
}

/* Fails with ARGUMENT, or with UNSUPPORTED if the module needs a tensor that trek has no dtype for. Such a tensor
 * also counts as missing. */
static trek_status check_report(const matching *m, const trek_module *module, const trek_state_report *report)
{
    for (int k = 0; k < m->n_targets; k++)
        if (m->targets[k].entry < 0 && m->targets[k].skipped >= 0)
            return trek_fail(TREK_ERR_UNSUPPORTED, "state: %s has dtype %s, which trek does not have", m->targets[k].name,
                             m->state->skipped[m->targets[k].skipped].text);
    if (report->differing > 0 || (report->missing > 0 && !m->opts.allow_missing) ||
        (report->unexpected > 0 && !m->opts.allow_unexpected))
        return trek_fail(TREK_ERR_ARGUMENT, "state: it does not fit the %s: %s", trek_module_name(module), report->text);
    return TREK_OK;
}

static trek_status check_and_stage(matching *m, trek_module *module, trek_state_report *report)
{
    m->used = trek_calloc((size_t)m->state->n_entries + 1, sizeof *m->used);
    m->used_skipped = trek_calloc((size_t)m->state->n_skipped + 1, sizeof *m->used_skipped);
    if (!m->used || !m->used_skipped)
        return TREK_ERR_MEMORY;
    trek_status status =
        trek_walk_entries(module, TREK_WALK_PARAMS | TREK_WALK_BUFFERS | TREK_WALK_EVERY_PATH, match, m);
    if (status != TREK_OK)
        return status;
    choose_names(m);
    make_report(m, report);
    status = check_report(m, module, report);
    return status == TREK_OK ? stage(m) : status;
}

trek_state_loading *trek_state_loading_new(const trek_state *state, trek_module *module, const trek_state_load_opts *opts,
                                           trek_state_report *report)
{
    matching *m = trek_calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->state = state;
    m->module = module;
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
    trek_names_free(&m->stored);
    trek_free(m->stored_target);
    trek_free(m->targets);
    trek_free(m->used);
    trek_free(m->used_skipped);
    trek_pointer_map_clear(&m->seen);
    trek_free(m);
}

static bool has_part(const trek_module *module, const char *name, size_t length)
{
    bool found = false;
    for (int k = 0; k < module->own->n_children; k++)
        found |= strncmp(module->own->children[k].name, name, length) == 0 && !module->own->children[k].name[length];
    return found;
}

/* For a checkpoint: returns the length of the name, including its dot, of an outer module that this one does not
 * have, or 0 if there is none. */
static size_t around(const trek_state *state, const trek_module *module)
{
    const char *first = NULL;
    size_t length = 0;
    for (int k = 0; k < state->n_entries + state->n_aliases && trek_state_metadata(state, TREK_STATE_CHECKPOINT); k++) {
        const char *name = k < state->n_entries ? state->entries[k].name : state->aliases[k - state->n_entries].name;
        if (is_beside(state, name))
            continue;
        if (!first) {
            const char *dot = strchr(name, '.');
            first = name;
            length = dot ? (size_t)(dot - name) + 1 : 0;
        }
        if (length == 0 || strncmp(name, first, length) != 0)
            return 0;
    }
    return length > 0 && !has_part(module, first, length - 1) ? length : 0;
}

/* Returns a state without the outer module's name: `state` itself, another one, or NULL on failure. */
static const trek_state *look_inside(const trek_state *state, const trek_module *module)
{
    size_t length = around(state, module);
    if (length == 0)
        return state;
    const char *first = state->entries[0].name;
    for (int k = 0; is_beside(state, first); k++)
        first = state->entries[k].name;
    char *from = trek_format("%.*s**", (int)length, first);
    trek_state *inside = from ? trek_state_rename(state, &(trek_state_rule){ .from = from, .to = "**" }, 1) : NULL;
    trek_free(from);
    return inside;
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
    trek_state *named = opts && opts->n_rules != 0 ? trek_state_rename(state, opts->rules, opts->n_rules)
                                                   : (trek_state *)look_inside(state, module);
    if (!named)
        return trek_error_status();
    trek_state_loading *loading = trek_state_loading_new(named, module, opts, report);
    trek_status status = loading ? trek_state_loading_commit(loading) : trek_error_status();
    report->assigned = loading ? loading->assigned : 0;
    trek_state_loading_free(&loading);
    if (named != state)
        trek_state_free(&named);
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
    trek_state_read_opts how = { .lazy = true, .map = opts && opts->map, .verify = opts && opts->verify };
    trek_state *state = trek_state_read_with(path, &how); /* each tensor moves to the module without a second copy here */
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
