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
    /* True if trek may give forward several grains at once (.grain): each row of the result follows from the same row of the
     * input, by ops that treat rows alike, and rows are the first dimension of everything that forward computes from the input.
     * All children must be row-wise, too, and forward records nothing. */
    bool rowwise;
} trek_module_class;

/* The first member of every module's struct. What it holds belongs to trek: read and change it with functions only. */
struct trek_module {
    struct trek_module_own *own; /* for trek's own use */
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

/* Sets the module and all modules below it to training mode, or to eval mode if `training` is false. */
TREK_API trek_status trek_module_train(trek_module *module, bool training);

/* Returns whether the module is in training mode, as a new module is. Returns false if the module is NULL. */
TREK_API bool trek_module_is_training(const trek_module *module);

/* Returns the number of elements of all parameters; a shared parameter counts once. Returns 0 on failure. */
TREK_API int64_t trek_module_param_count(trek_module *module);

/* An ordered list of parameters with their names, for which optimizers are made. The caller owns it. */
typedef struct trek_params trek_params;

/* Returns a list of all parameters of the module, in the order of trek_module_each_param. NULL on failure. */
TREK_API trek_params *trek_module_params(trek_module *module);

/* Frees the list and releases its parameters. *params may be NULL and is NULL afterwards. */
TREK_API void trek_params_free(trek_params **params);

TREK_END

#endif
