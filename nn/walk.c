/* SPDX-License-Identifier: Apache-2.0 */
/* Walks through a tree of modules. They are iterative, so that deep trees need no deep stack. */
#include "nn/walk.h"

#include "nn/module_internal.h"
#include "nn/pointer_map.h"
#include "nn/text.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* Shared modules inside shared modules multiply the number of paths. More visits than this come from no real model. */
#define MAX_VISITS 4000000

typedef struct walk_frame {
    trek_module *module;
    int next_child;
    size_t path_length;
} walk_frame;

typedef struct walk {
    int flags, depth, capacity, visits;
    walk_frame *frames;
    trek_pointer_map seen;
    trek_text path;
    trek_module_fn fn;
    void *arg;
} walk;

static void path_cut(trek_text *path, size_t length)
{
    path->length = length;
    if (path->data)
        path->data[length] = 0;
}

static trek_status enter(walk *w, trek_module *module, const char *name)
{
    if (!(w->flags & TREK_WALK_EVERY_PATH)) {
        bool added;
        trek_status status = trek_pointer_map_add(&w->seen, module, 0, &added);
        if (status != TREK_OK || !added)
            return status;
    } else if (++w->visits > MAX_VISITS) {
        return trek_fail(TREK_ERR_STATE, "%s: too many paths: modules are shared too often",
                         w->frames[0].module->own->klass->name);
    }
    trek_status status = trek_array_grow(&w->frames, &w->capacity, w->depth + 1, sizeof *w->frames);
    if (status != TREK_OK)
        return status;
    if (w->path.length > 0 && *name) /* the module inside a wrapper has no name and is seen through */
        trek_text_add(&w->path, ".");
    trek_text_add(&w->path, name);
    if (w->path.failed)
        return TREK_ERR_MEMORY;
    w->frames[w->depth++] = (walk_frame){ module, 0, w->path.length };
    return w->flags & TREK_WALK_LEAVING ? TREK_OK : w->fn(w->path.data, module, w->arg);
}

/* One step: into the next child of the innermost module, or out of that module. */
static trek_status advance(walk *w)
{
    walk_frame *frame = &w->frames[w->depth - 1];
    path_cut(&w->path, frame->path_length);
    if (frame->next_child < frame->module->own->n_children) {
        trek_module_link *child = &frame->module->own->children[frame->next_child++];
        return enter(w, child->module, child->name);
    }
    trek_module *module = frame->module;
    w->depth--;
    return w->flags & TREK_WALK_LEAVING ? w->fn(w->path.data, module, w->arg) : TREK_OK;
}

trek_status trek_walk_modules(trek_module *root, int flags, trek_module_fn fn, void *arg)
{
    walk w = { .flags = flags, .fn = fn, .arg = arg };
    trek_status status = enter(&w, root, "");
    while (status == TREK_OK && w.depth > 0)
        status = advance(&w);
    trek_free(w.frames);
    trek_pointer_map_clear(&w.seen);
    trek_text_clear(&w.path);
    return status;
}

/* A parameter that its module shares with another. It is noted where the walk finds it and visited at the end. */
typedef struct shared_entry {
    char *name;
    trek_var *var;
} shared_entry;

typedef struct entry_walk {
    int flags, n_shared, cap_shared;
    shared_entry *shared;
    trek_pointer_map seen;
    trek_text name;
    trek_entry_fn fn;
    void *arg;
} entry_walk;

static trek_status visit(entry_walk *w, const char *name, trek_var *var, bool is_buffer)
{
    bool added = true;
    trek_status status = w->flags & TREK_WALK_EVERY_PATH ? TREK_OK : trek_pointer_map_add(&w->seen, var, 0, &added);
    return status == TREK_OK && added ? w->fn(name, var, is_buffer, w->arg) : status;
}

static trek_status visit_later(entry_walk *w, const char *name, trek_var *var)
{
    trek_status status = trek_array_grow(&w->shared, &w->cap_shared, w->n_shared + 1, sizeof *w->shared);
    char *copy = status == TREK_OK ? trek_strdup(name) : NULL;
    if (!copy)
        return TREK_ERR_MEMORY;
    w->shared[w->n_shared++] = (shared_entry){ copy, var };
    return TREK_OK;
}

static trek_status visit_entries(entry_walk *w, const char *path, const trek_module_entry *entries, int n, bool is_buffer)
{
    for (int k = 0; k < n; k++) {
        path_cut(&w->name, 0);
        trek_text_add(&w->name, path);
        trek_text_add(&w->name, *path ? "." : "");
        trek_text_add(&w->name, entries[k].name);
        if (w->name.failed)
            return TREK_ERR_MEMORY;
        trek_status status =
            entries[k].shared ? visit_later(w, w->name.data, entries[k].var) : visit(w, w->name.data, entries[k].var, is_buffer);
        if (status != TREK_OK)
            return status;
    }
    return TREK_OK;
}

static trek_status visit_module(const char *path, trek_module *module, void *arg)
{
    entry_walk *w = arg;
    trek_status status = TREK_OK;
    if (w->flags & TREK_WALK_PARAMS)
        status = visit_entries(w, path, module->own->params, module->own->n_params, false);
    if (status == TREK_OK && (w->flags & TREK_WALK_BUFFERS))
        status = visit_entries(w, path, module->own->buffers, module->own->n_buffers, true);
    return status;
}

trek_status trek_walk_entries(trek_module *root, int flags, trek_entry_fn fn, void *arg)
{
    entry_walk w = { .flags = flags, .fn = fn, .arg = arg };
    trek_status status = trek_walk_modules(root, flags & TREK_WALK_EVERY_PATH, visit_module, &w);
    for (int k = 0; k < w.n_shared && status == TREK_OK; k++)
        status = visit(&w, w.shared[k].name, w.shared[k].var, false);
    for (int k = 0; k < w.n_shared; k++)
        trek_free(w.shared[k].name);
    trek_free(w.shared);
    trek_pointer_map_clear(&w.seen);
    trek_text_clear(&w.name);
    return status;
}
