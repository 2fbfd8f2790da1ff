/* SPDX-License-Identifier: Apache-2.0 */
/* Going through a tree of modules, with full names. Internal. */
#ifndef TREK_NN_WALK_H
#define TREK_NN_WALK_H

#include "nn/module.h"

enum {
    TREK_WALK_EVERY_PATH = 1, /* a shared module (or variable) once for each path to it, not once in all */
    TREK_WALK_LEAVING = 2,    /* call fn after a module's children instead of before them */
    TREK_WALK_PARAMS = 4,     /* for trek_walk_entries: which entries */
    TREK_WALK_BUFFERS = 8,
};

/* Depth first, children in order of registration; the root's path is "". A
 * status other than TREK_OK ends the walk and is returned. */
trek_status trek_walk_modules(trek_module *root, int flags, trek_module_fn fn, void *arg);

/* Parameters and buffers, each module's parameters before its buffers before its children's; what modules share of others comes
 * after all that are their modules' own, so that a variable's first name is its owner's. */
typedef trek_status (*trek_entry_fn)(const char *name, trek_var *var, bool is_buffer, void *arg);
trek_status trek_walk_entries(trek_module *root, int flags, trek_entry_fn fn, void *arg);

/* After a forward of `self` that failed by an error of its own: puts the path of where it arose in front of the message:
 * "block2.3 (conv2d): ...". That is `part` (self or a child), if nothing inside it has told already; the modules around
 * self tell again, each with the path from itself. */
void trek_module_tell_place(trek_module *self, trek_module *part);

#endif
