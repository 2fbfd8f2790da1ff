/* SPDX-License-Identifier: Apache-2.0 */
/* Paths: to modules, and to what nested graphs have besides. */
#include "graph/tree.h"
#include "nn/module_internal.h"

#include <string.h>

#include "autograd/leaf.h"
#include "graph/graph_loader_internal.h"
#include "graph/observe_internal.h"
#include "graph/tree_internal.h"
#include "nn/module_tree.h"
#include "nn/params.h"

/* --- what a path names ---------------------------------------------------------- */

/* Finds the graph that the name at the end of a path belongs to, and the name: each component but the last is a child. */
static trek_graph *owner_of(trek_graph *graph, const char *path, const char **name, const char *function)
{
    if (!trek_path_usable(graph, function))
        return NULL;
    if (!path || !*path)
        return trek_fail_missing(function, "path"), NULL;
    trek_module *module = &graph->base;
    const char *rest = path;
    for (;;) {
        size_t size = strcspn(rest, ".");
        trek_module *child = rest[size] ? trek_path_child(module, rest, size) : NULL;
        if (!child)
            break;
        module = child;
        rest += size + 1;
    }
    trek_graph *owner = trek_graph_of(module);
    if (!*rest || !owner) {
        trek_path_tell_where(function, path, rest, module);
        return NULL;
    }
    *name = rest;
    return owner;
}

/* Returns whether no path leads to a nested graph's tag. */
static bool hidden(const trek_graph *graph, const trek_graph *owner, const char *name)
{
    return owner != graph && name[0] == '_';
}

static int tag_of(const trek_graph *graph, const char *name, size_t size)
{
    const trek_graph_layout *l = &graph->layout;
    for (int k = 0; k < l->n_tags; k++)
        if (strlen(l->tags[k].name) == size && memcmp(l->tags[k].name, name, size) == 0)
            return k;
    return -1;
}

/* Returns whether a child hides a tag of the same name; it does not if the tag names the child's own value. */
static bool beaten(const trek_graph *owner, const char *name, int tag)
{
    const trek_module *child = trek_path_child(&owner->base, name, strlen(name));
    int node = trek_graph_layout_producer(&owner->layout, owner->layout.tags[tag].value);
    return child && (node < 0 || owner->layout.nodes[node].module != child);
}

trek_path_kind trek_graph_path_kind(trek_graph *graph, const char *path)
{
    if (!trek_path_usable(graph, "graph_path_kind"))
        return TREK_PATH_KIND_NONE;
    if (!path || !*path)
        return TREK_PATH_KIND_MODULE;
    const char *name = NULL;
    trek_graph *owner = owner_of(graph, path, &name, "graph_path_kind");
    if (owner && !trek_path_child(&owner->base, name, strlen(name)) && !hidden(graph, owner, name) &&
        tag_of(owner, name, strlen(name)) >= 0)
        return TREK_PATH_KIND_TAG;
    if (!owner)
        trek_error_clear();
    return trek_graph_module_at(graph, path, "graph_path_kind") ? TREK_PATH_KIND_MODULE : TREK_PATH_KIND_NONE;
}

int trek_graph_child_count(trek_graph *graph, const char *path)
{
    const trek_module *module = trek_graph_module_at(graph, path, "graph_child_count");
    return module ? module->own->n_children : -1;
}

const char *trek_graph_child_name(trek_graph *graph, const char *path, int k)
{
    const trek_module *module = trek_graph_module_at(graph, path, "graph_child_name");
    return module && k >= 0 && k < module->own->n_children ? module->own->children[k].name : NULL;
}

/* --- parameters and modes ------------------------------------------------------- */

typedef struct prefixed {
    trek_params *params;
    const char *prefix;
} prefixed;

static trek_status add_prefixed(const char *name, trek_var *param, void *arg)
{
    const prefixed *p = arg;
    char *whole = trek_format("%s.%s", p->prefix, name);
    trek_status status = whole ? trek_params_add(p->params, whole, param) : TREK_ERR_MEMORY;
    trek_free(whole);
    return status;
}

trek_params *trek_graph_params_at(trek_graph *graph, const char *path)
{
    trek_module *module = trek_graph_module_at(graph, path, "graph_params_at");
    if (!module || module == &graph->base)
        return module ? trek_module_params(module) : NULL;
    prefixed p = { trek_params_new(), path };
    if (p.params && trek_module_each_param(module, add_prefixed, &p) != TREK_OK)
        trek_params_free(&p.params);
    return p.params;
}

typedef struct frozen_count {
    int64_t all, frozen;
} frozen_count;

static trek_status count_frozen(const char *name, trek_var *param, void *arg)
{
    (void)name;
    frozen_count *count = arg;
    count->all++;
    count->frozen += !trek_var_requires_grad(param);
    return TREK_OK;
}

static bool all_frozen(trek_module *module)
{
    frozen_count count = { 0, 0 };
    return trek_module_each_param(module, count_frozen, &count) == TREK_OK && count.all > 0 && count.all == count.frozen;
}

bool trek_graph_is_frozen(trek_graph *graph, const char *path)
{
    trek_module *module = trek_graph_module_at(graph, path, "graph_is_frozen");
    return module && all_frozen(module);
}

static trek_status add_line(const char *path, trek_module *module, void *arg)
{
    trek_text *text = arg;
    const char *name = strrchr(path, '.') ? strrchr(path, '.') + 1 : path;
    for (const char *c = path; *c; c++)
        if (*c == '.')
            trek_text_add(text, "  ");
    trek_text_format(text, "%s%s: %s, %lld", *path ? "  " : "", *path ? name : "(here)", module->own->klass->name,
                     (long long)trek_module_param_count(module));
    if (all_frozen(module))
        trek_text_add(text, ", frozen");
    const trek_graph *graph = trek_graph_of(module);
    for (int k = 0, shown = 0; graph && k < graph->layout.n_tags; k++)
        if (!*path || graph->layout.tags[k].name[0] != '_')
            trek_text_format(text, "%s#%s", shown++ ? " " : "  ", graph->layout.tags[k].name);
    trek_text_add(text, "\n");
    return trek_error_status();
}

char *trek_graph_tree(trek_graph *graph, const char *path)
{
    trek_module *module = trek_graph_module_at(graph, path, "graph_tree");
    trek_text text = { 0 };
    if (!module || trek_module_each(module, add_line, &text) != TREK_OK) {
        trek_text_clear(&text);
        return NULL;
    }
    return trek_text_take(&text);
}

/* --- tags -------------------------------------------------------------------------- */

/* Finds the graph and tag that the path names; -1 on failure. */
static int tag_at(trek_graph *graph, const char *path, trek_graph **owner, const char *function)
{
    const char *name = NULL;
    *owner = owner_of(graph, path, &name, function);
    if (!*owner)
        return -1;
    int tag = hidden(graph, *owner, name) ? -1 : tag_of(*owner, name, strlen(name));
    if (tag >= 0 && beaten(*owner, name, tag)) {
        trek_fail(TREK_ERR_ARGUMENT, "%s: path: \"%s\" is a module, and the tag of that name belongs to another module's value",
                  function, path);
        return -1;
    }
    if (tag < 0)
        trek_fail(TREK_ERR_ARGUMENT, "%s: path: nothing is tagged \"%s\"%s", function, path,
                  trek_path_child(&(*owner)->base, name, strlen(name)) ? "; it is a module" : "");
    return tag;
}

trek_var *trek_graph_tagged_at(trek_graph *graph, const char *path)
{
    trek_graph *owner;
    int tag = tag_at(graph, path, &owner, "graph_tagged_at");
    return tag < 0 ? NULL : trek_graph_tag_given(owner, tag, path, "graph_tagged_at");
}

/* --- observed scalars ------------------------------------------------------------------ */

/* Records in a graph that may be a part of the one whose training function runs here. */
static trek_status record(const trek_graph *graph, trek_graph *owner, const char *name, double value)
{
    if (!trek_recording_of(graph))
        return trek_graph_record(owner, name, value);
    double rows = trek_recording_here.rows;
    return rows > 0 ? trek_observation_add(owner, name, false, value * rows, rows) : trek_error_status();
}

/* Checks a name under which a nested graph's scalar is recorded, so that its paths remain valid. */
static bool nameable(const char *path, const char *name)
{
    if (*name && !strpbrk(name, "\t\n\r") && strncmp(name, TREK_MEASURED, sizeof TREK_MEASURED - 1) != 0)
        return true;
    trek_fail(TREK_ERR_ARGUMENT,
              "graph_record_at: path: \"%s\"; the name must not be empty, contain a tab or a line break, or begin with \"%s\"",
              path, TREK_MEASURED);
    return false;
}

trek_status trek_graph_record_at(trek_graph *graph, const char *path, double value)
{
    const char *name = NULL;
    trek_graph *owner = owner_of(graph, path, &name, "graph_record_at");
    return owner && nameable(path, name) ? record(graph, owner, name, value) : trek_error_status();
}

/* Gets the tag's value as a number that may be recorded. */
static trek_status number_of(trek_graph *graph, trek_graph *owner, int tag, const char *path, trek_reduction reduction,
                             double *number)
{
    static const char function[] = "graph_collect_at";
    if (reduction != TREK_REDUCTION_MEAN && trek_recording_of(graph))
        return trek_fail(TREK_ERR_UNSUPPORTED,
                         "%s: path: \"%s\" is one rank's part here; only a mean can be taken over all ranks", function, path);
    trek_var *value = trek_graph_tag_given(owner, tag, path, function);
    if (value)
        return trek_collect_number(value, reduction, number);
    return trek_error_status() != TREK_OK
               ? trek_error_status()
               : trek_fail(TREK_ERR_STATE, "%s: path: \"%s\" has no value before the first forward", function, path);
}

trek_status trek_graph_collect_at(trek_graph *graph, const char *path, trek_reduction reduction)
{
    trek_graph *owner;
    double number = 0;
    int tag = tag_at(graph, path, &owner, "graph_collect_at");
    trek_status status = tag < 0 ? trek_error_status() : number_of(graph, owner, tag, path, reduction, &number);
    return status == TREK_OK ? record(graph, owner, owner->layout.tags[tag].name, number) : status;
}

/* Returns the tag of the group's member k, or -1. name: of the group, in its graph. */
static int member_tag(const trek_graph *owner, const char *name, int k)
{
    char *member = trek_format("%s_%d", name, k);
    int tag = member ? tag_of(owner, member, strlen(member)) : -1;
    trek_free(member);
    return tag;
}

trek_status trek_graph_collect_group(trek_graph *graph, const char *path, trek_reduction reduction)
{
    const char *name = NULL;
    trek_graph *owner = owner_of(graph, path, &name, "graph_collect_group");
    int n = 0;
    while (owner && !hidden(graph, owner, name) && member_tag(owner, name, n) >= 0)
        n++;
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    if (!n)
        return trek_fail(TREK_ERR_ARGUMENT, "graph_collect_group: path: nothing is tagged \"%s_0\"", path);
    double *numbers = trek_alloc((size_t)n * sizeof *numbers);
    trek_status status = numbers ? TREK_OK : TREK_ERR_MEMORY;
    for (int k = 0; k < n && status == TREK_OK; k++)
        status = number_of(graph, owner, member_tag(owner, name, k), path, reduction, &numbers[k]);
    for (int k = 0; k < n && status == TREK_OK; k++)
        status = record(graph, owner, owner->layout.tags[member_tag(owner, name, k)].name, numbers[k]);
    trek_free(numbers);
    return status;
}

const trek_trend *trek_graph_trend_at(trek_graph *graph, const char *path)
{
    const char *name = NULL;
    trek_graph *owner = owner_of(graph, path, &name, "graph_trend_at");
    const trek_observation *o = owner ? trek_observation_find(owner, name) : NULL;
    return o ? o->trend : NULL;
}

int trek_graph_trend_group(trek_graph *graph, const char *path, const trek_trend **trends, int capacity)
{
    const char *name = NULL;
    trek_graph *owner = owner_of(graph, path, &name, "graph_trend_group");
    if (!owner)
        return -1;
    bool tags = member_tag(owner, name, 0) >= 0;
    for (int k = 0;; k++) {
        char *member = trek_format("%s_%d", name, k);
        if (!member)
            return -1;
        const trek_observation *o = trek_observation_find(owner, member);
        bool there = tags ? tag_of(owner, member, strlen(member)) >= 0 : o != NULL;
        trek_free(member);
        if (!there)
            return k;
        if (trends && k < capacity)
            trends[k] = o ? o->trend : NULL;
    }
}

trek_status trek_graph_reset_trend(trek_graph *graph, const char *path)
{
    const char *name = NULL;
    trek_graph *owner = owner_of(graph, path, &name, "graph_reset_trend");
    if (!owner)
        return trek_error_status();
    trek_observation *o = trek_observation_find(owner, name);
    if (!o)
        return trek_fail(TREK_ERR_ARGUMENT, "graph_reset_trend: path: nothing was recorded as \"%s\"", path);
    trek_trend_reset(o->trend);
    return TREK_OK;
}

static trek_status reset_all(trek_graph *graph, void *arg)
{
    (void)arg;
    for (int k = 0; k < graph->n_observations; k++)
        trek_trend_reset(graph->observations[k].trend);
    return TREK_OK;
}

trek_status trek_graph_reset_trends(trek_graph *graph)
{
    return trek_path_usable(graph, "graph_reset_trends") ? trek_graph_each(graph, reset_all, NULL) : trek_error_status();
}

/* --- all of them -------------------------------------------------------------------------- */

typedef struct metric_walk {
    trek_metric_fn fn;
    void *arg;
} metric_walk;

static trek_status tell_graph(const char *path, trek_module *module, void *arg)
{
    const metric_walk *walk = arg;
    const trek_graph *graph = trek_graph_of(module);
    trek_status status = TREK_OK;
    for (int k = 0; graph && k < graph->n_observations && status == TREK_OK; k++) {
        const trek_observation *o = &graph->observations[k];
        bool shown = strncmp(o->name, TREK_MEASURED, sizeof TREK_MEASURED - 1) != 0 && !(*path && o->name[0] == '_');
        if (!shown || !trek_trend_count(o->trend))
            continue;
        char *name = trek_format("%s%s%s", path, *path ? "." : "", o->name);
        status = name ? walk->fn(name, trek_trend_latest(o->trend), o->trend, walk->arg) : TREK_ERR_MEMORY;
        trek_free(name);
    }
    return status;
}

trek_status trek_graph_each_metric(trek_graph *graph, trek_metric_fn fn, void *arg)
{
    if (!trek_path_usable(graph, "graph_each_metric"))
        return trek_error_status();
    metric_walk walk = { fn, arg };
    return fn ? trek_module_each(&graph->base, tell_graph, &walk) : trek_fail_missing("graph_each_metric", "function");
}
