/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: layers and what is built of them.
 *
 * A module is a struct that begins with trek_module and a constant class. The
 * parent owns its children, also one that was added to several parents (it is
 * then shared, and walked once). Parameters, buffers, names ("up.weight"),
 * train/eval, freezing, moving and saving all follow from what was added. */
#ifndef TREK_NN_MODULE_H
#define TREK_NN_MODULE_H

#include "autograd/var.h"

TREK_BEGIN

typedef struct trek_module trek_module;

struct trek_rank_collectives;
typedef struct trek_module_class {
    const char *name;       /* "linear" */
    size_t size;            /* of the whole struct */
    /* The result belongs to the caller's scope (a scope of the module's own is open around the call). */
    trek_var *(*forward)(trek_module *self, trek_var *x);
    /* For modules with several inputs; n is what the caller passed. Either may be NULL. */
    trek_var *(*forward_many)(trek_module *self, trek_var *const *inputs, int n);
    void (*free)(trek_module *self);               /* what the module holds besides what was added; may be NULL */
    trek_status (*reset)(trek_module *self);       /* initialises the parameters anew (trek_seed); may be NULL */
    void (*describe)(const trek_module *self, char *text, size_t size); /* "784, 256"; may be NULL */
    /* graph wiring: names of the inputs that forward_many takes after the first, ended by NULL; may be NULL */
    const char *const *input_names;
    /* What data parallelism has to know. In training, what the layer makes of one sample depends on the other samples of its
     * batch, so that ranks, which have a part of it each, do not give a single device's numbers (batch norm): setup says so. */
    bool couples_samples;
    /* Its forward waits for the other ranks' in training (trek_nn_sync_batch_norm): every rank then runs it for every batch,
     * those without samples too, and nothing is sent while a rank may still wait. */
    bool meets_ranks;
    /* Of such a layer of the library's own: whom it meets from here on where the thread's rank context tells nobody; NULL:
     * nobody. */
    void (*meet)(trek_module *self, const struct trek_rank_collectives *ranks);
    /* For modules with several results: writes the first `count` of them, which belong to the caller's scope. A class without
     * forward and forward_many needs no more: these then give the first result. result_names: of all of them, the first included,
     * ended by NULL; without names there may be up to TREK_MOST_RESULTS. May be NULL. */
    trek_status (*forward_results)(trek_module *self, trek_var *const *inputs, int n, trek_var **results, int count);
    const char *const *result_names;
    /* Inputs after the first may be NULL: left out. A state that such a module reads in a flow (trek_flow_using) is NULL in the
     * first forward. */
    bool optional_inputs;
    /* Inputs after the first are for the first child (a loop's body, a switch's router): its class says how they are called, and
     * whether they may be left out. */
    bool hands_inputs_on;
} trek_module_class;
#define TREK_MOST_RESULTS 16 /* of a module */

/* A parameter's place in the tree. `var` is a leaf; its object stays the same for life. */
typedef struct trek_module_entry {
    char *name;
    trek_var *var;
    trek_var **place;         /* the struct's field, which forward reads; NULL: none. trek's own */
    bool shared;              /* another module's, which names it where that one is in the tree, too */
} trek_module_entry;

/* A module in a module, by its name there. */
typedef struct trek_module_child {
    char *name;
    trek_module *module;
} trek_module_child;

/* The head of every module. Fields are for reading; the functions below change them. */
struct trek_module {
    const trek_module_class *klass;
    bool training;            /* true at birth */
    int n_children, n_params, n_buffers;
    trek_module_child *children;
    trek_module_entry *params, *buffers;
    struct trek_module_upkeep *upkeep; /* trek's own */
};

/* Zeroed and begun; NULL and MEMORY. */
TREK_API trek_module *trek_module_new(const trek_module_class *klass);

/* Adds a child under `name` (no dots, unique in the parent: ARGUMENT) and writes
 * its address at byte `offset` of the parent (TREK_NO_FIELD: nowhere). Takes the
 * child over, also on failure, save for a child that holds the parent (ARGUMENT:
 * a cycle), which stays as it was. A NULL parent or child marks the parent as
 * failed and leaves the first error. Returns child, or NULL. */
#define TREK_NO_FIELD ((size_t)-1)
TREK_API trek_module *trek_module_add(trek_module *parent, const char *name, size_t offset, trek_module *child);
/* Makes a parameter (a leaf that requires a gradient) or a buffer of the tensor,
 * whose reference is taken over, also on failure; writes the trek_var * at `offset`. */
TREK_API trek_var *trek_module_param(trek_module *module, const char *name, size_t offset, trek_tensor *tensor);
TREK_API trek_var *trek_module_buffer(trek_module *module, const char *name, size_t offset, trek_tensor *tensor);
/* Makes another module's parameter one of this module, too (tied weights): one
 * variable, walked, counted and saved once, under its owner's name where that is in
 * the tree; this name is a further one. `param` is retained. */
TREK_API trek_var *trek_module_share_param(trek_module *module, const char *name, size_t offset, trek_var *param);
/* The end of a constructor: the module, or NULL after freeing it if any add failed. */
TREK_API trek_module *trek_module_check(trek_module *module);
/* Frees a module that no parent owns, its children too; STATE is set (and nothing done) if one does. */
TREK_API void trek_module_free(trek_module **module);

/* Runs the module in a scope of its own; the result belongs to the caller's scope. */
TREK_API trek_var *trek_forward(trek_module *module, trek_var *x);
TREK_API trek_var *trek_forward_many(trek_module *module, trek_var *const *inputs, int n);
/* The first `count` results of a module that has several (of any other: count 1), in the caller's scope; inputs after the first
 * may be NULL where the class says so (optional_inputs). On failure the results are NULL. ARGUMENT: it has fewer results. */
TREK_API trek_status trek_forward_results(trek_module *module, trek_var *const *inputs, int n, trek_var **results, int count);

/* Set the mode of the module and all below it. */
TREK_API trek_status trek_module_train(trek_module *module, bool training);
/* A frozen parameter (requires_grad false) gets no gradient and no update. */
TREK_API trek_status trek_module_freeze(trek_module *module, bool frozen);
/* Moves parameters, gradients and buffers; objects stay the same. All or none. STATE for
 * parameters that live in an optimizer's arena: move the module first. */
TREK_API trek_status trek_module_to(trek_module *module, trek_device device);
/* New initial values; children before their parents. */
TREK_API trek_status trek_module_reset(trek_module *module);

/* The values of another module that has the same names and shapes (ARGUMENT, SHAPE; then nothing has changed): parameters and
 * buffers. They may be of other dtypes and on another device. */
TREK_API trek_status trek_module_copy(trek_module *to, trek_module *from);
/* Part of the way there: to + weight (from - to), as a target network follows (weight 0.005); integer buffers are copied. */
TREK_API trek_status trek_module_lerp(trek_module *to, trek_module *from, double weight);
/* on: the running statistics of batch norms begin anew, and are plain averages of all batches from here; off: each has its own
 * momentum again. For weights that were averaged. */
TREK_API trek_status trek_module_recount_statistics(trek_module *module, bool on);

/* Each parameter / buffer / module once, depth first in order of registration,
 * by its full name (first path to it; shared parameters whose owner is not in the tree come last). fn's status other than TREK_OK
 * ends the walk and is returned. */
typedef trek_status (*trek_param_fn)(const char *name, trek_var *param, void *arg);
TREK_API trek_status trek_module_each_param(trek_module *module, trek_param_fn fn, void *arg);
TREK_API trek_status trek_module_each_buffer(trek_module *module, trek_param_fn fn, void *arg);
typedef trek_status (*trek_module_fn)(const char *name, trek_module *module, void *arg);
TREK_API trek_status trek_module_each(trek_module *module, trek_module_fn fn, void *arg);

TREK_API int64_t trek_module_param_count(trek_module *module);   /* elements; shared parameters once */
TREK_API const char *trek_module_name(const trek_module *module); /* the class's name */
/* A table of modules, shapes and parameter counts as a new string (trek_string_free). graph/summary.h: with what they make of
 * given inputs. */
TREK_API char *trek_module_summary(trek_module *module);
/* The parameter or buffer of that full name, borrowed; NULL without an error if there is none. */
TREK_API trek_var *trek_module_find(trek_module *module, const char *name);

/* An ordered list of parameters with names; what optimizers are made over. Owned by the caller. */
typedef struct trek_params trek_params;
TREK_API trek_params *trek_module_params(trek_module *module);
TREK_API trek_params *trek_params_new(void);
TREK_API trek_status trek_params_add(trek_params *params, const char *name, trek_var *param);
TREK_API int trek_params_count(const trek_params *params);
TREK_API trek_var *trek_params_var(const trek_params *params, int k);
TREK_API const char *trek_params_name(const trek_params *params, int k);
TREK_API void trek_params_free(trek_params **params);
/* As torch.nn.utils': all elements of the parameters, one after another in order of the list, as one vector (of their widest
 * dtype, on one device) in the present scope, through which gradients go to them. ARGUMENT: there are none. */
TREK_API trek_var *trek_parameters_to_vector(const trek_params *params);
/* And back: writes the vector's elements into the parameters, in place; nothing is recorded. It may be of any floating dtype, on
 * any device. SHAPE: it is no vector of as many elements as they have together; then nothing was written. */
TREK_API trek_status trek_vector_to_parameters(trek_var *vector, const trek_params *params);

TREK_END

#endif
