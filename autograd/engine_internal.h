/* SPDX-License-Identifier: Apache-2.0 */
/* A backward walk as its files see it: engine.c goes along the nodes, engine_leaves.c has what happens at leaves, and
 * engine_rules.c what rules see of it. */
#ifndef TREK_AUTOGRAD_ENGINE_INTERNAL_H
#define TREK_AUTOGRAD_ENGINE_INTERNAL_H

#include "autograd/tape_internal.h"
#include "tensor/debug.h"

typedef struct trek_walk {
    uint32_t id;
    const struct trek_walk *outer;   /* the walk in whose node it runs, or NULL */
    bool create_graph, retain;
    bool counting;              /* uses of leaves were counted */
    bool fresh;                 /* leaves got gradients that trek_walk_settle has to check */
    bool zeros;                 /* from trek_backward_watch, or from the walk in whose node this one runs */
    int64_t live;               /* nodes of the walk that are not done */
    trek_node *newest;
    const trek_backward_watch *watch;
    trek_var *const *inputs;    /* for trek_grad: gradients go to captured[] and nowhere else */
    trek_var **captured;        /* owned references */
    const trek_node *of; /* the walk serves this node's rule through its composite: it ends at older nodes, whose gradients
                          * belong to the outer walk; captured[] is passed on and need not be memory of its own */
    int n_inputs;
    int group;                  /* which one gives gradients to nodes without rows now, in a walk of groups */
    int made;                   /* results made from here on in the scope belong to the current gradient's node, and nobody
                                 * else uses them; INT_MAX if others may */
} trek_walk;

/* Returns a number for a walk. */
uint32_t trek_walk_new_id(void);

extern _Thread_local trek_walk *trek_walking; /* the innermost walk of this thread, or NULL */

/* Returns whether the walk gives gradients to this leaf. */
static inline bool trek_walk_reaches(const trek_walk *w, const trek_var *leaf)
{
    return !w->watch || !w->watch->only_these || (leaf->leaf && leaf->leaf->watch == w->id);
}

/* Returns a reference to a gradient. If the current node's work has made it last, this is the scope's own reference. */
static inline trek_var *trek_walk_take(trek_var *grad)
{
    int last = trek_scopes.count - 1;
    if (last >= trek_walking->made && trek_scopes.values[last] == grad && !trek_debug)
        trek_scopes.count = last;
    else
        trek_ref_take(&grad->refs);
    return grad;
}

/* Computes *slot += grad; slot owns its reference. */
trek_status trek_walk_add_more(trek_var **slot, trek_var *grad, bool create_graph); /* *slot is not NULL */
static inline trek_status trek_walk_add(trek_var **slot, trek_var *grad, bool create_graph)
{
    if (*slot)
        return trek_walk_add_more(slot, grad, create_graph);
    *slot = trek_walk_take(grad);
    return TREK_OK;
}

/* --- groups of rows (groups.c) --- */

/* Returns whether what the node has saved has rows. */
bool trek_group_divides(const trek_node *node, const trek_saved_tensor *saved);
/* Returns the rows of one of n groups, a constant of the scope, or NULL on failure. */
trek_var *trek_group_of(trek_tensor *x, int group, int n);
/* Returns whether the current walk has groups, and the node has a gradient for each. */
bool trek_group_is_whole(const trek_node *node);
/* Adds a gradient of the walk's group to those of a node without rows. */
trek_status trek_group_give(trek_walk *w, trek_node *node, trek_var *grad);
/* Drops the gradients that such a node has. */
void trek_group_drop(const trek_walk *w, trek_node *node);
/* Calls the rule in a walk that has groups, and passes on what each has for inputs without rows. */
trek_status trek_group_call_rule(trek_walk *w, trek_backward_call *b);
/* Calls the rule. */
trek_status trek_walk_call_rule(trek_backward_call *b);
/* Passes a gradient to an input. */
trek_status trek_walk_give_edge(trek_walk *w, trek_edge *edge, trek_var *grad);

/* --- leaves (engine_leaves.c) --- */

trek_status trek_walk_add_to_leaf(trek_var *var, trek_var *grad, bool create_graph);
/* Gradients for the caller get memory of their own. Rules pass on what they received, also as views and to several
 * inputs. Nothing is copied if the walk, which has released it, was its only other holder. */
trek_status trek_walk_make_own(trek_var **grad);
/* Does this for the gradient that a walk gave to a leaf; NULL is no leaf. */
trek_status trek_walk_settle(trek_var *var);
/* Runs the hooks on output `output` of a node (0 for a leaf). */
trek_status trek_walk_run_hooks(trek_hook *hooks, int output, trek_var *var, trek_var **grad);
/* Counts a use of a leaf, before the walk. */
trek_status trek_walk_count_use(const trek_walk *w, trek_var *var);
/* Notes that a node is done with its leaves: those without further uses are complete. */
trek_status trek_walk_pass_leaves(const trek_walk *w, const trek_node *node);

#endif
