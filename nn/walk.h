/* SPDX-License-Identifier: Apache-2.0 */
/* Walks through a tree of modules, with full names. */
#ifndef TREK_NN_WALK_H
#define TREK_NN_WALK_H

#include "nn/module.h"
#include "nn/module_tree.h"

enum {
    TREK_WALK_EVERY_PATH = 1, /* visit a shared module (or variable) once for each path to it, not once in all */
    TREK_WALK_LEAVING = 2,    /* call fn after a module's children instead of before them */
    TREK_WALK_PARAMS = 4,     /* for trek_walk_entries: which entries */
    TREK_WALK_BUFFERS = 8,
};

/* Walks depth first, with children in order of registration. The root's path is "". A status other than TREK_OK ends
 * the walk and is returned. */
trek_status trek_walk_modules(trek_module *root, int flags, trek_module_fn fn, void *arg);

/* Visits parameters and buffers: each module's parameters first, then its buffers, then its children's. Shared
 * entries come after all entries that are a module's own, so that a variable's first name is its owner's. */
typedef trek_status (*trek_entry_fn)(const char *name, trek_var *var, bool is_buffer, void *arg);
trek_status trek_walk_entries(trek_module *root, int flags, trek_entry_fn fn, void *arg);

/* Called after a forward of `self` that failed with an error of its own. Puts the path to the origin in front of the
 * message: "block2.3 (conv2d): ...". The origin is `part` (self or a child), unless something inside it has reported
 * already. The modules around `self` report again, each with the path from itself. */
void trek_module_tell_place(trek_module *self, trek_module *part);

#endif
