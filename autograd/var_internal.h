/* SPDX-License-Identifier: Apache-2.0 */
/* Variables, the tape, and what backward rules see. */
#ifndef TREK_AUTOGRAD_VAR_INTERNAL_H
#define TREK_AUTOGRAD_VAR_INTERNAL_H

#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/offload.h"
#include "tensor/op.h"
#include "tensor/scope_internal.h"

typedef struct trek_node trek_node;

typedef struct trek_hook {
    trek_grad_hook fn;
    void *arg;
    int handle;
    int output;               /* of the node */
    struct trek_hook *next;
} trek_hook;

/* What a mean loss is the mean of (loss_weight.c). */
typedef struct trek_loss_count {
    double weight;            /* where there are no labels */
    trek_tensor *labels;      /* owned; to be counted when somebody asks, since they may lie on a GPU; NULL: weight says it */
    trek_tensor *classes;     /* owned; weights of the classes, or NULL */
    uint32_t labels_version, classes_version;
    int64_t ignore;
} trek_loss_count;

void trek_loss_count_free(trek_loss_count *count); /* may be NULL */

/* What a parameter or a loss has more than another variable. */
typedef struct trek_leaf {
    trek_var *grad;           /* owned; NULL: none */
    bool grad_in_arena;       /* grad is a view of an arena: zeroed, never dropped */
    bool has_grad;            /* something was accumulated since the last zero; else grad may be overwritten */
    bool fresh;               /* grad is what a rule gave: to be made its own memory before the walk goes on */
    bool due;                 /* that walk gives it a gradient, */
    int pending;              /* and has not passed so many uses */
    uint32_t walk;            /* the walk that counted them */
    uint32_t watch;           /* the walk that watches it, */
    int watch_index;          /* under this number */
    int next_handle;
    trek_hook *hooks;
    trek_loss_count *count;   /* owned; NULL: not a mean loss */
} trek_leaf;

struct trek_var {
    atomic_int refs;
    bool requires_grad;
    uint8_t output;           /* which output of node */
    trek_tensor *data;
    trek_node *node;          /* what made it (owned reference); NULL for a leaf */
    trek_leaf *leaf;          /* made at need */
};

void trek_var_destroy(trek_var *var); /* the last reference is gone */
/* trek_var_release of a variable that is not NULL. */
static inline void trek_var_drop(trek_var *var)
{
    if (trek_ref_drop(&var->refs))
        trek_var_destroy(var);
}

/* Where a gradient goes: the node that made the input, or the leaf itself. */
typedef struct trek_edge {
    trek_node *node;          /* owned reference; NULL: leaf, or no gradient */
    trek_var *leaf;           /* owned reference; NULL */
    uint8_t output;
    uint8_t dtype,
        ndim; /* of the input as the caller gave it: its gradient is reduced and cast to this; TREK_DTYPE_COUNT: absent */
    int64_t sizes[TREK_MAX_DIMS];
} trek_edge;

typedef struct trek_saved_tensor {
    trek_tensor *tensor;      /* owned */
    uint32_t version;
    uint8_t is_output, index; /* which input or output of the op it was */
    bool offloads;            /* it may be in host memory: trek_offload_bring before it is looked at (offload_internal.h) */
} trek_saved_tensor;

/* --- what a backward rule sees ------------------------------------------- */

typedef struct trek_backward_call {
    trek_node *node;
    const trek_op *op;
    const trek_attrs *attrs;
    trek_var *grad;           /* gradient of output 0; never NULL in a rule of one output */
    trek_var **more_grads;    /* [k]: gradient of output k > 0, or NULL (rows with TREK_OP_PAIR); NULL: none */
    int n_inputs;
    bool create_graph;        /* recording is on: use differentiable ops only */
    uint32_t needs;           /* bit k: input k needs a gradient */
    trek_var **grads;         /* [n_inputs] to be filled; borrowed results of ops in the rule's scope; NULL: zero */
    trek_var *saved;          /* [TREK_SAVED_VARS] the engine's: what rules see of saved tensors, */
    int n_saved;              /* so many so far; they end with the rule's scope */
} trek_backward_call;
enum { TREK_SAVED_VARS = 4 };

/* A rule fills b->grads[k] for inputs that need one, with public ops and
 * trek_apply_* of internal rows. Gradients may have the broadcast shape and the
 * promoted dtype: the engine reduces and casts them to the input's own. */
typedef trek_status (*trek_backward_rule)(trek_backward_call *b);
/* The plain ops that a fused op equals: output 0 from the op's inputs; of a pair, output 1 where that number says so. */
enum { TREK_COMPOSITE_OUTPUT = 11 }; /* in attrs.i */
typedef trek_var *(*trek_composite_rule)(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs);

/* NULL: no gradient flows. Not const, so that the op suite can put a wrong one in and see its test fail. */
extern trek_backward_rule trek_backward_rules[TREK_OP_COUNT];
extern const trek_composite_rule trek_composite_rules[TREK_OP_COUNT];

static inline bool trek_rule_needs(const trek_backward_call *b, int k) { return b->needs >> k & 1; }
/* What the row's `saves` asked for; NULL if the input was absent. Borrowed, in the rule's scope. */
trek_var *trek_rule_input(trek_backward_call *b, int k);
trek_var *trek_rule_output(trek_backward_call *b, int k);
/* For rules of fused ops under create_graph: fills b->grads by differentiating
 * the composite, which is recorded. */
trek_status trek_rule_composite(trek_backward_call *b);
/* Shape of input k as the op's caller gave it. */
trek_shape trek_rule_shape(const trek_backward_call *b, int k);
/* The gradient tensor of input k's leaf, if the rule may accumulate into it
 * directly (a contiguous leaf of the same dtype and shape, first-order backward);
 * *overwrite says that it holds nothing yet. After writing, the rule leaves
 * b->grads[k] NULL and calls trek_rule_sunk. NULL: not possible. */
trek_tensor *trek_rule_sink(trek_backward_call *b, int k, bool *overwrite);
/* The same where input k, which the rule knows to be 16-bit, is a leaf whose gradient an arena keeps in f32, or the cast of
 * an f32 leaf: the gradient is not rounded to 16 bits on its way then. */
trek_tensor *trek_rule_sink_wide(trek_backward_call *b, int k, bool *overwrite);
void trek_rule_sunk(trek_backward_call *b, int k);

/* --- applying ops to variables ------------------------------------------- */

/* Runs op on variables, records it if need be; result (output 0) belongs to the present scope. */
trek_var *trek_apply(const trek_op *op, trek_var *const *inputs, int n_inputs, const trek_attrs *attrs);
/* The same, giving the tensors of outputs 1.. as constants in the scope, too (outs[0..n-1], n <= TREK_MAX_OUTPUTS). */
trek_status trek_apply_many(const trek_op *op, trek_var *const *inputs, int n_inputs, const trek_attrs *attrs, trek_var **outs,
                            int n);

/* trek_apply_x: every row on variables, internal ones too; the public trek_x are these. */
#define TREK_OP(name, signature, ...) trek_var *trek_apply_##name(TREK_PARAMS_##signature(trek_var));
#include "tensor/ops.def"
#undef TREK_OP

/* A variable in the present scope that takes over the reference to tensor. */
trek_var *trek_var_wrap_scoped(trek_tensor *tensor, const char *op);

/* --- what a loss is the mean of (loss_weight.c); NULL in, NULL out; NULL and MEMORY --- */

/* loss, the mean of `weight` items. */
trek_var *trek_loss_mean_of(trek_var *loss, double weight);
/* loss, the mean over the labels that are not `ignore`, each as heavy as its class (classes NULL: 1). */
trek_var *trek_loss_mean_of_labels(trek_var *loss, trek_var *labels, trek_var *classes, int64_t ignore);

/* --- used by graph/ and distributed/ -------------------------------------- */

/* The leaf part, made at need; NULL and MEMORY. */
trek_leaf *trek_var_leaf(trek_var *var);
/* Puts the gradient of a leaf into `grad` (a tensor of its shape; retained) for good. */
trek_status trek_var_place_grad(trek_var *var, trek_tensor *grad);

/* Backward over one graph's parameters: `complete(k, arg)` is called once for each
 * of the leaves, as soon as nothing further can reach it in this walk (at once for unused ones). */
typedef struct trek_backward_watch {
    trek_var *const *leaves;
    int n_leaves;
    bool only_these;          /* other leaves get no gradient */
    bool zeros;               /* what is gone back from weighs nothing: leaves that it uses have a gradient, to which nothing is
                                 added, NaN neither */
    void (*complete)(int k, void *arg);
    void *arg;
} trek_backward_watch;
trek_status trek_backward_watched(trek_var *const *roots, trek_var *const *seeds, int n, const trek_backward_opts *opts,
                                  const trek_backward_watch *watch);

/* In a function's backward: whether the present walk keeps the tape (retain_graph). */
bool trek_backward_retains(void);
/* And whether it is trek_grad's: gradients of leaves are to be left alone. */
bool trek_backward_captures(void);
/* In trek_grad's walk: whether the gradient of this leaf is asked for, and adds to it. */
bool trek_backward_captures_leaf(const trek_var *leaf);
trek_status trek_backward_capture_leaf(trek_var *leaf, trek_var *grad);
/* And whether leaves get zeros (trek_backward_watch). */
bool trek_backward_gives_zeros(void);
/* Whether the present walk gives this leaf its gradient: false where it is for others only. */
bool trek_backward_reaches(const trek_var *leaf);
/* Whether no node after this one uses the leaf; known only where leaves are counted (trek_backward_watch.complete). */
bool trek_backward_passes_last(const trek_var *leaf);

/* Recording state of the thread, to be handed to the ranks. */
typedef struct trek_grad_mode {
    int no_grad_depth;
    uint8_t autocast;         /* trek_dtype: BF16 or F16; F32: off. Ranks begin it for the length of their forward */
    trek_offload_opts offload; /* min_bytes 0: none. Ranks have it for the length of their forward */
} trek_grad_mode;
extern _Thread_local trek_grad_mode trek_grad_mode_here;

/* autocast.c: trek_apply_many with the inputs cast as the op's class asks; a loss's input in f32. */
trek_status trek_autocast_apply(const trek_op *op, trek_var *const *inputs, int n_inputs, const trek_attrs *attrs,
                                trek_var **outs, int n);
trek_var *trek_autocast_full(trek_var *var);

#endif
