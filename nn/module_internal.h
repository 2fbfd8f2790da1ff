/* SPDX-License-Identifier: Apache-2.0 */
/* What trek keeps with a module besides what its header shows. Internal. */
#ifndef TREK_NN_MODULE_INTERNAL_H
#define TREK_NN_MODULE_INTERNAL_H

#include "nn/module.h"

typedef struct trek_names {
    char **list;
    int count, capacity;
} trek_names;
void trek_names_free(trek_names *names);

/* Lies behind the module, in the same block. */
struct trek_module_upkeep {
    bool failed;             /* an add failed; trek_module_check reports it */
    int owners;              /* parents and graphs that hold the module */
    int cap_children, cap_params, cap_buffers;
    trek_module *next;       /* of those that trek_module_free has yet to free */
    trek_module *parametrizations; /* the child that has what its weights are made of; NULL: they are parameters */
    bool merged;             /* an adapter's product is in the weight already */
    trek_names stored;       /* of parameters with several names: those that had a tensor of their own in the file loaded last */
    struct trek_fp8_layer *fp8; /* fp8_internal.h: its products may be of 8-bit numbers; owned, NULL: they are not */
};

/* Takes a parameter out, and puts one in as the k-th (or the last) and into its field. */
void trek_module_drop_param(trek_module *module, int k);
trek_status trek_module_insert_param(trek_module *module, int k, const char *name, trek_var *var, trek_var **place, bool shared);
/* trek_module_buffer of a module that stays sound where it fails; NULL then. */
trek_var *trek_module_try_buffer(trek_module *module, const char *name, trek_tensor *tensor);
void trek_module_drop_buffer(trek_module *module, int k);
/* Takes a child out, and frees it if nobody else has it. */
void trek_module_drop_child(trek_module *parent, trek_module *child);
/* trek_module_add that leaves a parent as it was where it fails. */
trek_status trek_module_try_add(trek_module *parent, const char *name, trek_module *child);

/* Around a forward that reads the module's fields: makes its parametrised weights and puts them there; afterwards, also after a
 * failure, the fields hold an original again. Other threads wait in between. Nothing of a module without parametrizations. */
trek_status trek_weights_make(trek_module *module);
void trek_weights_drop(trek_module *module);
/* The class's reset, which writes weights, and then what they are made of. */
trek_status trek_weights_reset(trek_module *module);

/* A replica's modes, after those of the first. Written only where they differ. */
static inline void trek_module_follow(trek_module *own, const trek_module *first)
{
    if (own->training != first->training)
        own->training = first->training;
    if (own->upkeep->merged != first->upkeep->merged)
        own->upkeep->merged = first->upkeep->merged;
}

/* While trek_trace_records(): begins the frame of a module's forward, under its path in the module around it; 0: it is
 * that module itself. For trek_trace_end_module. */
int trek_module_trace(trek_module *module);

static inline bool trek_module_takes_many(const trek_module *module)
{
    return module->klass->forward_many || module->klass->forward_results;
}

static inline bool trek_module_runs(const trek_module *module)
{
    return module->klass->forward || trek_module_takes_many(module);
}

/* The class's own forward, whichever it has for so many inputs; several inputs: trek_module_takes_many. Results belong to the
 * present scope. */
trek_var *trek_module_run(trek_module *module, trek_var *const *inputs, int n);
/* The same for `count` results; NULL results where it fails. */
trek_status trek_module_run_results(trek_module *module, trek_var *const *inputs, int n, trek_var **results, int count);

#endif
