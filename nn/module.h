/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: layers, and models that are built from layers.
 *
 * A module is a struct whose first member is a trek_module. A constant class says what the module does. The parent owns its
 * children. A child that was added to several parents is shared: it belongs to all of them and every walk visits it once. The
 * parameters, buffers and children that were added determine the names ("up.weight") and what train and eval mode, freezing,
 * moving and saving act on.
 *
 * Errors that every function here can report: ARGUMENT if a required argument is NULL, MEMORY if memory runs out. */
#ifndef TREK_NN_MODULE_H
#define TREK_NN_MODULE_H

#include "autograd/var.h"

TREK_BEGIN

/* A layer or a model. */
typedef struct trek_module trek_module;

/* How ranks exchange data; for trek's own use. */
struct trek_rank_collectives;

/* Describes one kind of module: its size, its name and its functions. The struct is constant and outlives its modules. */
typedef struct trek_module_class {
    const char *name; /* the name of the kind, for example "linear" */
    size_t size;      /* bytes of the whole struct, the trek_module at its beginning included */
    /* Computes the result from one input. trek opens a scope around the call; the result is moved to the caller's scope. May be
     * NULL if forward_many or forward_results is given. */
    trek_var *(*forward)(trek_module *self, trek_var *x);
    /* Computes the result from n inputs, where n is the number that the caller passed. May be NULL if the module has one input or
     * if forward_results is given. */
    trek_var *(*forward_many)(trek_module *self, trek_var *const *inputs, int n);
    /* Frees what the module holds besides its parameters, buffers and children. May be NULL. */
    void (*free)(trek_module *self);
    /* Gives the parameters new initial values, drawn from the thread's generator (trek_seed). May be NULL. */
    trek_status (*reset)(trek_module *self);
    /* Writes the module's settings as text, for example "784, 256". May be NULL. */
    void (*describe)(const trek_module *self, char *text, size_t size);
    /* Names of the inputs after the first, ended by NULL, by which graphs connect them. May be NULL. */
    const char *const *input_names;
    /* True if, in training, the result for one sample depends on the other samples of its batch (batch norm). Ranks that each
     * have a part of the batch then compute other numbers than a single device; setup warns of this. */
    bool couples_samples;
    /* True if forward waits in training for the forward of the other ranks (trek_nn_sync_batch_norm). Every rank then runs the
     * module for every batch, also a rank without samples, and sends nothing while another rank may still wait. */
    bool meets_ranks;
    /* Sets the ranks that the module exchanges data with if the thread's rank context names none; NULL stands for no ranks. For
     * trek's own modules with meets_ranks. */
    void (*meet)(trek_module *self, const struct trek_rank_collectives *ranks);
    /* Computes the first `count` results of a module that has several; they are moved to the caller's scope. A class that has it
     * needs neither forward nor forward_many: calls for one result then get the first. May be NULL. */
    trek_status (*forward_results)(trek_module *self, trek_var *const *inputs, int n, trek_var **results, int count);
    /* Names of all results, the first included, ended by NULL. Without names the module may have up to TREK_MOST_RESULTS. May be
     * NULL. */
    const char *const *result_names;
    /* True if inputs after the first may be NULL, which means left out. A state that such a module reads in a flow
     * (trek_flow_using) is left out (NULL) at the first forward. */
    bool optional_inputs;
    /* True if the inputs after the first are passed on to the first child, for example a loop's body or a switch's router. The
     * class of that child then gives their names and says whether they may be left out. */
    bool hands_inputs_on;
} trek_module_class;

/* The largest number of results that a module without result_names may have. */
#define TREK_MOST_RESULTS 16

/* A parameter or buffer of a module. */
typedef struct trek_module_entry {
    char *name;       /* its name in this module */
    trek_var *var;    /* a leaf; it stays the same object as long as the module lives */
    trek_var **place; /* the field of the struct that forward reads; NULL if it has no field. For trek's own use */
    bool shared;      /* true for another module's parameter, which has its name there if that module is in the tree */
} trek_module_entry;

/* A child of a module. */
typedef struct trek_module_child {
    char *name;          /* its name in its parent */
    trek_module *module; /* the child */
} trek_module_child;

/* The first member of every module's struct. Programs may read the fields; the functions below change them. */
struct trek_module {
    const trek_module_class *klass;    /* the kind of module */
    bool training;                     /* true in training mode, false in eval mode; a new module is in training mode */
    int n_children;                    /* length of children */
    int n_params;                      /* length of params */
    int n_buffers;                     /* length of buffers */
    trek_module_child *children;       /* in order of their addition */
    trek_module_entry *params;         /* in order of their addition */
    trek_module_entry *buffers;        /* in order of their addition */
    struct trek_module_upkeep *upkeep; /* for trek's own use */
};

/* Returns a new module of the class, in training mode, with the rest of its struct set to zero. The caller owns it. Returns NULL
 * on failure; ARGUMENT if the class has no name or its size is smaller than a trek_module. */
TREK_API trek_module *trek_module_new(const trek_module_class *klass);

/* The offset that stands for "no field" in the functions below. */
#define TREK_NO_FIELD ((size_t)-1)

/* Adds a child under `name` and returns it, or NULL on failure. offset: the byte in the parent's struct at which the child's
 * address is written; TREK_NO_FIELD writes it nowhere.
 * Ownership: the parent takes the child over. On failure the child is freed, unless another module owns it or it contains the
 * parent.
 * Errors: ARGUMENT if the name is empty, contains a dot or is taken, if the offset is not that of a pointer field, or if the
 * child contains the parent. Every failure, a NULL child included, marks the parent as failed (trek_module_check). */
TREK_API trek_module *trek_module_add(trek_module *parent, const char *name, size_t offset, trek_module *child);

/* Adds a parameter, which is a leaf that requires a gradient, made from the tensor. Returns it borrowed, or NULL on failure.
 * Ownership: the reference to the tensor is taken over, also on failure. The offset and the errors are those of trek_module_add;
 * the trek_var * is written at the offset. */
TREK_API trek_var *trek_module_param(trek_module *module, const char *name, size_t offset, trek_tensor *tensor);

/* Adds a buffer, which is a leaf that requires no gradient, made from the tensor. The rest is as in trek_module_param. */
TREK_API trek_var *trek_module_buffer(trek_module *module, const char *name, size_t offset, trek_tensor *tensor);

/* Adds a parameter of another module to this module as well (tied weights) and returns it borrowed, or NULL on failure. The two
 * names stand for one variable. It is visited, counted and saved once, under the name that it has in its owner if the owner is in
 * the tree.
 * Ownership: `param` is retained. The offset is as in trek_module_add.
 * Errors: ARGUMENT as in trek_module_add, and if `param` is not a leaf. */
TREK_API trek_var *trek_module_share_param(trek_module *module, const char *name, size_t offset, trek_var *param);

/* Ends a constructor: returns the module, or frees it and returns NULL if adding anything to it has failed. */
TREK_API trek_module *trek_module_check(trek_module *module);

/* Frees a module that has no parent, and the children that no other module owns. *module may be NULL and is NULL afterwards. If a
 * parent owns the module, nothing is freed and the error is STATE. */
TREK_API void trek_module_free(trek_module **module);

/* Runs the module on one input and returns its result, or NULL on failure. The module runs in a scope of its own; the result
 * belongs to the caller's scope.
 * Errors: what the module reports; UNSUPPORTED if its class has no forward. */
TREK_API trek_var *trek_forward(trek_module *module, trek_var *x);

/* Runs the module on n inputs and returns its result. Inputs after the first may be NULL if the class allows it
 * (optional_inputs). The rest is as in trek_forward. */
TREK_API trek_var *trek_forward_many(trek_module *module, trek_var *const *inputs, int n);

/* Runs the module on n inputs and writes its first `count` results. A module that has one result accepts count 1. Inputs and
 * ownership are as in trek_forward_many. On failure all results are NULL; ARGUMENT if the module has fewer results. */
TREK_API trek_status trek_forward_results(trek_module *module, trek_var *const *inputs, int n, trek_var **results, int count);

/* Sets the module and all modules below it to training mode, or to eval mode if `training` is false. */
TREK_API trek_status trek_module_train(trek_module *module, bool training);

/* Freezes all parameters of the module and of the modules below it. A frozen parameter has requires_grad false: it gets no
 * gradient and no update. */
TREK_API trek_status trek_module_freeze(trek_module *module);
/* Makes all parameters of the module and of the modules below it trainable again. */
TREK_API trek_status trek_module_thaw(trek_module *module);

/* Moves parameters, their gradients and buffers to the device. The variables stay the same objects. On failure nothing has moved.
 * Errors: STATE if parameters live in an optimizer's arena (move the module before the optimizer is made); those of the
 * device. */
TREK_API trek_status trek_module_to(trek_module *module, trek_device device);

/* Gives all parameters of the module and of the modules below it new initial values, children before their parents. */
TREK_API trek_status trek_module_reset(trek_module *module);

/* Copies all parameters and buffers of `from` into `to`. Dtypes and devices may differ.
 * Errors: ARGUMENT if the names differ, SHAPE if shapes differ; nothing has changed then. */
TREK_API trek_status trek_module_copy(trek_module *to, trek_module *from);

/* Moves the floating parameters and buffers of `to` towards those of `from`: each becomes to + weight (from - to). Integer
 * buffers are copied. A target network uses a small weight, for example 0.005. Errors are those of trek_module_copy, and ARGUMENT
 * if the weight is not finite. */
TREK_API trek_status trek_module_lerp(trek_module *to, trek_module *from, double weight);

/* Resets the running statistics of all batch norms and makes them plain averages over all batches from now on; false gives each
 * layer its own momentum again. Use it after the weights were averaged. */
TREK_API trek_status trek_module_recount_statistics(trek_module *module, bool on);

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

/* Returns the number of elements of all parameters; a shared parameter counts once. Returns 0 on failure. */
TREK_API int64_t trek_module_param_count(trek_module *module);

/* Returns the name of the module's class, or "(none)" if the module is NULL. */
TREK_API const char *trek_module_name(const trek_module *module);

/* Returns a table of the modules with shapes and parameter counts as a new string, which trek_string_free frees. Returns NULL on
 * failure. graph/summary.h has a table that also shows the shapes of results for given inputs. */
TREK_API char *trek_module_summary(trek_module *module);

/* Returns the parameter or buffer with this full name, borrowed. Returns NULL without an error if nothing has this name. */
TREK_API trek_var *trek_module_find(trek_module *module, const char *name);

/* An ordered list of parameters with their names, for which optimizers are made. The caller owns it. */
typedef struct trek_params trek_params;

/* Returns a list of all parameters of the module, in the order of trek_module_each_param. NULL on failure. */
TREK_API trek_params *trek_module_params(trek_module *module);

/* Returns an empty list, or NULL on failure. */
TREK_API trek_params *trek_params_new(void);

/* Adds a parameter, which is retained, to the end of the list. The name is copied; NULL gives a name made from its number
 * ("param0").
 * Errors: ARGUMENT if `param` is not a leaf or is in the list already. */
TREK_API trek_status trek_params_add(trek_params *params, const char *name, trek_var *param);

/* Returns the length of the list; 0 for NULL. */
TREK_API int trek_params_count(const trek_params *params);

/* Returns parameter k, borrowed; k counts from 0. Returns NULL with ARGUMENT if k is out of range. */
TREK_API trek_var *trek_params_var(const trek_params *params, int k);

/* Returns the name of parameter k; the list owns the text. Returns NULL with ARGUMENT if k is out of range. */
TREK_API const char *trek_params_name(const trek_params *params, int k);

/* Frees the list and releases its parameters. *params may be NULL and is NULL afterwards. */
TREK_API void trek_params_free(trek_params **params);

/* Returns all elements of the parameters as one vector, in the order of the list (torch.nn.utils.parameters_to_vector). The
 * vector has the widest dtype of the parameters and belongs to the current scope; gradients flow through it to the parameters.
 * Errors: ARGUMENT if the list is empty; the parameters must be on one device. */
TREK_API trek_var *trek_parameters_to_vector(const trek_params *params);

/* Writes the elements of the vector into the parameters in place (torch.nn.utils.vector_to_parameters). Nothing is recorded. The
 * vector may have any floating dtype and be on any device.
 * Errors: SHAPE if it is not a vector with as many elements as all parameters together; nothing is written then. */
TREK_API trek_status trek_vector_to_parameters(trek_var *vector, const trek_params *params);

TREK_END

#endif
