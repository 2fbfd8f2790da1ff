/* SPDX-License-Identifier: Apache-2.0 */
/* What trek keeps for each module. */
#ifndef TREK_NN_MODULE_INTERNAL_H
#define TREK_NN_MODULE_INTERNAL_H

#include "nn/module.h"

typedef struct trek_names {
    char **list;
    int count, capacity;
} trek_names;
void trek_names_free(trek_names *names);

/* A parameter or buffer of a module. */
typedef struct trek_module_entry {
    char *name;       /* its name in this module */
    trek_var *var;    /* a leaf; it stays the same object as long as the module lives */
    trek_var **place; /* the field of the struct that forward reads; NULL if it has no field */
    bool shared;      /* true for another module's parameter, which has its name there if that module is in the tree */
} trek_module_entry;

/* A child of a module. */
typedef struct trek_module_link {
    char *name;          /* its name in its parent */
    trek_module *module; /* the child */
} trek_module_link;

/* Children of a sequential that are run in a way of their own together (ways.h). */
typedef struct trek_module_stretch {
    int first, n;
    trek_module *module; /* a sequential of these children, which is not in the tree; owned */
} trek_module_stretch;

/* Runs a module in its own way. */
typedef trek_var *(*trek_module_runner)(trek_module *module, trek_var *const *inputs, int n);

/* Lies behind the module's struct in the same allocation. */
struct trek_module_own {
    const trek_module_class *klass; /* the kind of module */
    bool training;                  /* true in training mode, false in eval mode */
    int n_children, n_params, n_buffers;
    trek_module_link *children; /* in order of their addition, as params and buffers */
    trek_module_entry *params;
    trek_module_entry *buffers;
    bool failed;             /* an add failed; trek_module_check reports it */
    int owners;              /* the number of parents and graphs that own the module */
    int cap_children, cap_params, cap_buffers;
    trek_module *next;       /* the next of the modules that trek_module_free has yet to free */
    trek_module *parametrizations; /* the child with the originals of the weights; NULL if they are parameters */
    bool merged;             /* the adapter's product is already part of the weight */
    trek_names stored;       /* of parameters with several names: those that had their own tensor in the last file loaded */
    struct trek_fp8_layer *fp8; /* 8-bit products (fp8_internal.h); owned, NULL if there are none */
    trek_module_runner instead; /* runs the module, and may call trek_module_run_itself; NULL: that runs it */
    trek_module_stretch *stretches; /* of a sequential, in order; owned, NULL if there are none */
    int n_stretches;
};

/* Remove a parameter, and insert one as the k-th (or the last) and into its field. */
void trek_module_drop_param(trek_module *module, int k);
trek_status trek_module_insert_param(trek_module *module, int k, const char *name, trek_var *var, trek_var **place, bool shared);
/* Like trek_module_buffer, but a failure leaves the module usable and returns NULL. */
trek_var *trek_module_try_buffer(trek_module *module, const char *name, trek_tensor *tensor);
void trek_module_drop_buffer(trek_module *module, int k);
/* Frees what a sequential has of its children's stretches. */
void trek_module_drop_stretches(trek_module *module);
/* Removes a child, and frees it if it has no other owner. */
void trek_module_drop_child(trek_module *parent, trek_module *child);
/* Like trek_module_add, but a failure leaves the parent unchanged. */
trek_status trek_module_try_add(trek_module *parent, const char *name, trek_module *child);

/* Called around a forward that reads the module's fields. The first makes the parametrised weights and puts them into
 * the fields; the second, also after a failure, puts the originals back. Other threads wait in between. Modules
 * without parametrizations are not affected. */
trek_status trek_weights_make(trek_module *module);
void trek_weights_drop(trek_module *module);
/* Runs the class's reset, which writes the weights, and then updates the originals they are made from. */
trek_status trek_weights_reset(trek_module *module);

/* Gives a replica the modes of the first module. Fields are written only where they differ. */
static inline void trek_module_follow(trek_module *replica, const trek_module *first)
{
    if (replica->own->training != first->own->training)
        replica->own->training = first->own->training;
    if (replica->own->merged != first->own->merged)
        replica->own->merged = first->own->merged;
}

/* While trek_trace_records(): begins the frame of a module's forward under its path in the enclosing module, and
 * returns the frame for trek_trace_end_module. Returns 0 if it is that module itself. */
int trek_module_trace(trek_module *module);

static inline bool trek_module_takes_many(const trek_module *module)
{
    return module->own->klass->forward_many || module->own->klass->forward_results;
}

static inline bool trek_module_runs(const trek_module *module)
{
    return module->own->klass->forward || trek_module_takes_many(module);
}

/* Runs the class's own forward for this number of inputs. Several inputs require trek_module_takes_many. Results
 * belong to the current scope. */
trek_var *trek_module_run(trek_module *module, trek_var *const *inputs, int n);
/* The same, whatever the module's `instead`. */
trek_var *trek_module_run_itself(trek_module *module, trek_var *const *inputs, int n);
/* The same for `count` results, which are NULL on failure. */
trek_status trek_module_run_results(trek_module *module, trek_var *const *inputs, int n, trek_var **results, int count);

#endif
