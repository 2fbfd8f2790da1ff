/* SPDX-License-Identifier: Apache-2.0 */
/* Follows a path of children, and reports where it ends too early. */
#include <stdio.h>
#include <string.h>

#include "graph/tree_internal.h"
#include "nn/module_internal.h"
#include "tensor/debug.h"

trek_module *trek_path_child(const trek_module *parent, const char *name, size_t size)
{
    for (int k = 0; k < parent->own->n_children; k++)
        if (strlen(parent->own->children[k].name) == size && memcmp(parent->own->children[k].name, name, size) == 0)
            return parent->own->children[k].module;
    return NULL;
}

/* Writes e.g. "it has encoder, head"; long lists are cut. */
static void list_children(const trek_module *module, char *text, size_t size)
{
    size_t length = (size_t)snprintf(text, size, module->own->n_children ? "it has " : "it has no children");
    for (int k = 0; k < module->own->n_children && length + 8 < size; k++) {
        const char *name = module->own->children[k].name;
        bool fits = length + strlen(name) + 8 < size;
        length += (size_t)snprintf(text + length, size - length, "%s%s", k ? ", " : "", fits ? name : "...");
        if (!fits)
            break;
    }
}

void trek_path_tell_where(const char *function, const char *path, const char *rest, const trek_module *module)
{
    char children[200];
    size_t before = rest > path ? (size_t)(rest - path) - 1 : 0, length = strcspn(rest, ".");
    list_children(module, children, sizeof children);
    if (!length)
        trek_fail(TREK_ERR_ARGUMENT, "%s: path: \"%s\" contains an empty name", function, path);
    else if (before)
        trek_fail(TREK_ERR_ARGUMENT, "%s: path: there is nothing at \"%s\": \"%.*s\" (%s) has no child \"%.*s\"; %s", function,
                  path, (int)before, path, module->own->klass->name, (int)length, rest, children);
    else
        trek_fail(TREK_ERR_ARGUMENT, "%s: path: there is nothing at \"%s\": the graph has no child \"%.*s\"; %s", function, path,
                  (int)length, rest, children);
}

bool trek_path_usable(const trek_graph *graph, const char *function)
{
    if (!graph)
        trek_fail_missing(function, "graph");
    return graph && !trek_gone(graph, function, "the graph");
}

trek_module *trek_graph_module_at(trek_graph *graph, const char *path, const char *function)
{
    if (!trek_path_usable(graph, function))
        return NULL;
    trek_module *module = &graph->base;
    const char *rest = path ? path : "";
    while (*rest) {
        size_t size = strcspn(rest, ".");
        trek_module *child = trek_path_child(module, rest, size);
        if (!child || (rest[size] == '.' && !rest[size + 1])) {
            trek_path_tell_where(function, path, child ? rest + size + 1 : rest, child ? child : module);
            return NULL;
        }
        module = child;
        rest += size + (rest[size] == '.');
    }
    return module;
}

trek_module *trek_graph_at(trek_graph *graph, const char *path) { return trek_graph_module_at(graph, path, "graph_at"); }
