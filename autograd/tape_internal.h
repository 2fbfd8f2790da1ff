/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes and tapes, shared by the files of autograd/.
 *
 * A tape belongs to a thread and lists its nodes in order of creation. A node
 * lives as long as a variable or a later node refers to it. A node that dies on
 * another thread is put on its tape's stack and taken off the list by the owner. */
#ifndef TREK_AUTOGRAD_TAPE_INTERNAL_H
#define TREK_AUTOGRAD_TAPE_INTERNAL_H

#include "autograd/var_internal.h"

typedef struct trek_tape {
    trek_node *last;              /* newest */
    int64_t count;
    uint64_t next_serial;
    _Atomic(trek_node *) strays;  /* died on other threads */
    struct trek_tape *next_orphan;
    struct trek_offload *offload; /* offload.c; NULL: never used */
    int n_offloaded;              /* storages that it looks after */
    int walks;                    /* passes over it that are under way */
} trek_tape;

typedef struct trek_partial trek_partial;

struct trek_node {
    atomic_int refs;
    bool freed;                   /* an earlier pass let go of what backward needs */
    bool held;                    /* one of the references is that of the walk which it takes part in */
    uint16_t n_saved;
    int n_inputs, n_outputs;
    uint32_t walk;                /* the walk it takes part in */
    uint32_t path;                /* the module that it was recorded in; 0 where nobody asked */
    const trek_op *op;            /* NULL: function */
    trek_function_context *context;
    trek_tape *tape;
    trek_node *prev, *next;       /* order of creation; next also links the dead */
    uint64_t serial;
    trek_var *grad;               /* of output 0 */
    trek_partial *partial;        /* what of grad holds something; NULL: all (slice_grad.c) */
    trek_var **more_grads;        /* of outputs 1.. (functions, pairs) */
    trek_hook *hooks;
    trek_attrs *attrs;            /* NULL: none */
    trek_saved_tensor *saved;
    trek_edge *edges;
    trek_var own;                 /* the variable of output 0, where the op was applied to variables: no block of its own */
};

struct trek_function_context {
    const trek_function *function;
    void *data;
    trek_node *node;              /* in backward */
    trek_tape *tape;
    int n_saved;
    bool create_graph;
    struct {
        trek_tensor *tensor;
        uint32_t version;
        bool offloads;            /* as trek_saved_tensor's */
        int input, output;        /* index, or -1 */
    } saved[16];
    trek_var *const *inputs;      /* during forward */
    int n_inputs;
    trek_var *pending[16];        /* saved variables, until forward has ended */
    uint32_t needs;               /* in backward: bits of inputs, the last bit for all from 31 on */
};

extern _Thread_local trek_tape *trek_tape_here;
trek_tape *trek_tape_get(void);   /* the calling thread's, made at need; NULL and MEMORY */

/* A node at the end of the thread's tape, one reference for the caller. Edges
 * are filled from the inputs. */
trek_node *trek_node_new(const trek_op *op, trek_var *const *inputs, int n_inputs, int n_outputs, const trek_attrs *attrs,
                         int n_saved);
void trek_node_release(trek_node *node);
/* Lets go of saved tensors and edges. */
void trek_node_free_saved(trek_node *node);

/* Lets go of what it saved, and of the user's data. */
void trek_function_context_free(trek_function_context *context);

/* Runs a function node's backward in the present scope: grads[k] for its inputs. */
trek_status trek_function_backward(trek_node *node, bool create_graph, uint32_t needs, trek_var **grads);

static inline bool trek_recording(void) { return trek_grad_mode_here.no_grad_depth == 0; }

/* The parts of a variable that are not the same for all. */
static inline void trek_var_fill(trek_var *var, trek_tensor *data, trek_node *node, int output, bool requires_grad)
{
    atomic_init(&var->refs, 1);
    var->requires_grad = requires_grad;
    var->output = (uint8_t)output;
    var->data = data;
    var->node = node;
    var->leaf = NULL;
}

/* A bare variable, one reference for the caller; takes over data and node (both may be given back on failure by the caller). */
static inline trek_var *trek_var_make(trek_tensor *data, trek_node *node, int output, bool requires_grad)
{
    trek_var *var = (trek_var *)trek_block_alloc_fixed(sizeof *var);
    if (var)
        trek_var_fill(var, data, node, output, requires_grad);
    return var;
}

/* The variable of output 0 of a node that has none yet. It lies in the node, which it holds: takes over data and a reference to
 * the node. */
static inline trek_var *trek_var_of_node(trek_tensor *data, trek_node *node)
{
    trek_var_fill(&node->own, data, node, 0, true);
    return &node->own;
}
static inline bool trek_var_is_in_node(const trek_var *var) { return var->node && var == &var->node->own; }

/* Nobody else looks at the memory of a gradient. */
static inline bool trek_grad_is_alone(const trek_var *var)
{
    const trek_tensor *t = var->data;
    return !var->requires_grad && atomic_load_explicit(&var->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->storage->refs, memory_order_acquire) == 1 && t->contiguous && !t->storage->parent &&
           !t->storage->release;
}

extern atomic_int trek_hooks_alive; /* hooks on leaves, of all threads: while there are any, walks count uses */

/* For a function that returns a variable: ends it with NULL and an error, where one of these inputs is NULL. */
#define TREK_NEEDED(name, ...)                                                                                                   \
    do {                                                                                                                         \
        const void *needed_[] = { __VA_ARGS__ };                                                                                 \
        for (size_t k_ = 0; k_ < sizeof needed_ / sizeof needed_[0]; k_++)                                                       \
            if (!needed_[k_])                                                                                                    \
                return trek_fail_missing(name, "input"), NULL;                                                                \
    } while (0)

#endif
