/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes and tapes, shared by the files of autograd/.
 *
 * A tape belongs to a thread and lists its nodes in order of creation. A node lives as long as a variable or a later
 * node refers to it. A node that dies on another thread is put on its tape's stack, and the owner removes it from the
 * list. */
#ifndef TREK_AUTOGRAD_TAPE_INTERNAL_H
#define TREK_AUTOGRAD_TAPE_INTERNAL_H

#include "autograd/var_internal.h"

typedef struct trek_tape {
    trek_node *last;              /* newest */
    int64_t count;
    uint64_t next_serial;
    _Atomic(trek_node *) strays;  /* died on other threads */
    struct trek_tape *next_orphan;
    struct trek_offload *offload; /* offload.c; NULL if never used */
    int n_offloaded;              /* storages that it manages */
    int walks;                    /* passes over it in progress */
} trek_tape;

typedef struct trek_partial trek_partial;

struct trek_node {
    atomic_int refs;
    bool freed;                   /* an earlier pass released what backward needs */
    bool held;                    /* one of the references belongs to the walk that it takes part in */
    bool whole;                   /* groups.c: its result is the same for all rows; */
    uint32_t group_id;            /* this look has found that */
    uint16_t n_saved;
    int n_inputs, n_outputs;
    uint32_t walk;                /* the walk it takes part in */
    uint32_t path;                /* the module that it was recorded in; 0 if nobody asked */
    const trek_op *op;            /* NULL for a user's function */
    trek_function_context *context;
    trek_tape *tape;
    trek_node *prev, *next;       /* order of creation; next also links the dead */
    uint64_t serial;
    trek_var *grad;               /* of output 0 */
    trek_partial *partial;        /* which part of grad is filled; NULL if all is (slice_grad.c) */
    trek_var **more_grads;        /* of outputs 1.. (functions, pairs) */
    trek_var **group_grads;       /* of output 0, for each group of rows, if it is `whole` (groups.c) */
    trek_hook *hooks;
    trek_attrs *attrs;            /* may be NULL */
    trek_saved_tensor *saved;
    trek_edge *edges;
    trek_var own;                 /* the variable of output 0 if the op was applied to variables, to save an allocation */
};

struct trek_function_context {
    const trek_function *function;
    void *data;
    trek_node *node;              /* set in backward */
    trek_tape *tape;
    int n_saved;
    bool create_graph;
    struct {
        trek_tensor *tensor;
        uint32_t version;
        bool offloads;            /* like trek_saved_tensor's */
        int input, output;        /* index, or -1 */
    } saved[16];
    trek_var *const *inputs;      /* during forward */
    int n_inputs;
    trek_var *pending[16];        /* saved variables, until forward has ended */
    uint32_t needs;               /* in backward: bits of inputs, the last bit for all from 31 on */
};

extern _Thread_local trek_tape *trek_tape_here;
trek_tape *trek_tape_get(void);   /* the calling thread's, made when first needed; NULL with MEMORY */

/* Makes a node at the end of the thread's tape, with one reference for the caller. Edges are filled in from the
 * inputs. */
trek_node *trek_node_new(const trek_op *op, trek_var *const *inputs, int n_inputs, int n_outputs, const trek_attrs *attrs,
                         int n_saved);
void trek_node_release(trek_node *node);
/* Releases saved tensors and edges. */
void trek_node_free_saved(trek_node *node);

/* Releases what it has saved, and the user's data. */
void trek_function_context_free(trek_function_context *context);

/* Runs a function node's backward in the current scope and sets grads[k] for its inputs. */
trek_status trek_function_backward(trek_node *node, bool create_graph, uint32_t needs, trek_var **grads);

static inline bool trek_recording(void) { return trek_grad_mode_here.no_grad_depth == 0; }

/* Sets the fields of a variable that differ from the defaults. */
static inline void trek_var_fill(trek_var *var, trek_tensor *data, trek_node *node, int output, bool requires_grad)
{
    atomic_init(&var->refs, 1);
    var->requires_grad = requires_grad;
    var->output = (uint8_t)output;
    var->data = data;
    var->node = node;
    var->leaf = NULL;
}

/* Makes a bare variable with one reference for the caller. It takes over data and node, which the caller may reclaim
 * after a failure. */
static inline trek_var *trek_var_make(trek_tensor *data, trek_node *node, int output, bool requires_grad)
{
    trek_var *var = (trek_var *)trek_block_alloc_fixed(sizeof *var);
    if (var)
        trek_var_fill(var, data, node, output, requires_grad);
    return var;
}

/* Makes the variable of output 0 for a node that has none yet. It is stored in the node, which it retains; it takes
 * over data and a reference to the node. */
static inline trek_var *trek_var_of_node(trek_tensor *data, trek_node *node)
{
    trek_var_fill(&node->own, data, node, 0, true);
    return &node->own;
}
static inline bool trek_var_is_in_node(const trek_var *var) { return var->node && var == &var->node->own; }

/* Returns whether nobody else uses a gradient's memory. */
static inline bool trek_grad_is_alone(const trek_var *var)
{
    const trek_tensor *t = var->data;
    return !var->requires_grad && atomic_load_explicit(&var->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->storage->refs, memory_order_acquire) == 1 && t->contiguous && !t->storage->parent &&
           !t->storage->release;
}

extern atomic_int trek_hooks_alive; /* hooks on leaves, of all threads: while there are any, walks count uses */

/* For a function that returns a variable: returns NULL with an error if one of these inputs is NULL. */
#define TREK_NEEDED(name, ...)                                                                                                   \
    do {                                                                                                                         \
        const void *needed_[] = { __VA_ARGS__ };                                                                                 \
        for (size_t k_ = 0; k_ < sizeof needed_ / sizeof needed_[0]; k_++)                                                       \
            if (!needed_[k_])                                                                                                    \
                return trek_fail_missing(name, "input"), NULL;                                                                \
    } while (0)

#endif
