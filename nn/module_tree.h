/* SPDX-License-Identifier: Apache-2.0 */
/* The modules below a module, with their parameters, buffers and names. */
#ifndef TREK_NN_MODULE_TREE_H
#define TREK_NN_MODULE_TREE_H

#include "nn/module.h"

TREK_BEGIN

/* Adds a parameter of another module to this module as well (tied weights) and returns it borrowed, or NULL on failure. The two
 * names stand for one variable. It is visited, counted and saved once, under the name that it has in its owner if the owner is in
 * the tree.
 * Ownership: `param` is retained. The offset is as in trek_module_add.
 * Errors: ARGUMENT as in trek_module_add, and if `param` is not a leaf. */
TREK_API trek_var *trek_module_share_param(trek_module *module, const char *name, size_t offset, trek_var *param);

/* Runs the module on n inputs and writes its first `count` results. A module that has one result accepts count 1. Inputs and
 * ownership are as in trek_forward_many. On failure all results are NULL; ARGUMENT if the module has fewer results. */
TREK_API trek_status trek_forward_results(trek_module *module, trek_var *const *inputs, int n, trek_var **results, int count);

/* The largest number of results that a module without result_names may have. */
#define TREK_MOST_RESULTS 16

/* Is called for a parameter or a buffer with its full name. A status other than TREK_OK ends the walk. */
typedef trek_status (*trek_param_fn)(const char *name, trek_var *param, void *arg);

/* Calls fn for each parameter of the module and of the modules below it, once and depth first, in order of their addition. The
 * name is that of the first path to the parameter. Shared parameters whose owner is not in the tree come last. Returns the status
 * of fn that ended the walk, or TREK_OK. */
TREK_API trek_status trek_module_each_param(trek_module *module, trek_param_fn fn, void *arg);

/* Calls fn for each buffer, as trek_module_each_param does for each parameter. */
TREK_API trek_status trek_module_each_buffer(trek_module *module, trek_param_fn fn, void *arg);

/* Is called for a module with its full name. A status other than TREK_OK ends the walk. */
typedef trek_status (*trek_module_fn)(const char *name, trek_module *module, void *arg);

/* Calls fn for the module and each module below it, once and depth first, in order of their addition. Returns the status of fn
 * that ended the walk, or TREK_OK. */
TREK_API trek_status trek_module_each(trek_module *module, trek_module_fn fn, void *arg);

/* Returns the module's class, by which a program knows its own kinds of modules, or NULL if the module is NULL. */
TREK_API const trek_module_class *trek_module_class_of(const trek_module *module);

/* Returns the number of the module's direct children; 0 for NULL. */
TREK_API int trek_module_child_count(const trek_module *module);

/* Returns direct child k, borrowed; k counts from 0, in order of addition. Returns NULL with ARGUMENT if k is out of range. */
TREK_API trek_module *trek_module_child(const trek_module *module, int k);

/* Returns the name of direct child k in this module; the module owns the text. Returns NULL with ARGUMENT if k is out of
 * range. */
TREK_API const char *trek_module_child_name(const trek_module *module, int k);

/* Returns the name of the module's class, or "(none)" if the module is NULL. */
TREK_API const char *trek_module_name(const trek_module *module);

/* Returns a table of the modules with shapes and parameter counts as a new string, which trek_string_free frees. Returns NULL on
 * failure. graph/summary.h has a table that also shows the shapes of results for given inputs. */
TREK_API char *trek_module_summary(trek_module *module);

/* Returns the parameter or buffer with this full name, borrowed. Returns NULL without an error if nothing has this name. */
TREK_API trek_var *trek_module_find(trek_module *module, const char *name);

TREK_END

#endif
