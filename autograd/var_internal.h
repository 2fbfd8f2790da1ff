/* SPDX-License-Identifier: Apache-2.0 */
/* Variables, the tape, and what backward rules see. */
#ifndef TREK_AUTOGRAD_VAR_INTERNAL_H
#define TREK_AUTOGRAD_VAR_INTERNAL_H

#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/grad.h"
#include "autograd/leaf.h"
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
    double weight;            /* used without labels */
    trek_tensor *labels;      /* owned; counted on request, since they may be on a GPU; NULL if weight is used */
    trek_tensor *classes;     /* owned; weights of the classes, or NULL */
    uint32_t labels_version, classes_version;
    int64_t ignore;
} trek_loss_count;

void trek_loss_count_free(trek_loss_count *count); /* may be NULL */

/* What only parameters and losses have. */
typedef struct trek_leaf {
    trek_var *grad;           /* owned; may be NULL */
    bool grad_in_arena;       /* grad is a view of an arena: zeroed, never dropped */
    bool has_grad;            /* something was accumulated since the last zeroing; otherwise grad may be overwritten */
    bool fresh;               /* grad is a rule's result: it gets its own memory before the walk goes on */
    bool due;                 /* that walk gives it a gradient */
    bool shared;              /* several nodes of a tape with groups give it one (groups.c) */
    int pending;              /* and this many uses are still to come */
    uint32_t walk;            /* the walk that counted them */
    uint32_t watch;           /* the walk that watches it */
    int watch_index;          /* under this number */
    int next_handle;
    trek_hook *hooks;
    trek_loss_count *count;   /* owned; NULL if it is not a mean loss */
} trek_leaf;

struct trek_var {
    atomic_int refs;
    bool requires_grad;
    uint8_t output;           /* which output of node */
    trek_tensor *data;
    trek_node *node;          /* what made it (owned reference); NULL for a leaf */
    trek_leaf *leaf;          /* made when first needed */
};

void trek_var_destroy(trek_var *var); /* called when the last reference is gone */
/* trek_var_release for a variable that is not NULL. */
static inline void trek_var_drop(trek_var *var)
{
    if (trek_ref_drop(&var->refs))
        trek_var_destroy(var);
}

/* Where a gradient goes: the node that made the input, or the leaf itself. */
typedef struct trek_edge {
    trek_node *node;          /* owned reference; NULL for a leaf or without a gradient */
    trek_var *leaf;           /* owned reference; may be NULL */
    uint8_t output;
    uint8_t dtype,
        ndim; /* of the input as the caller gave it: its gradient is reduced and cast to this; TREK_DTYPE_COUNT if absent */
    int64_t sizes[TREK_MAX_DIMS];
} trek_edge;

typedef struct trek_saved_tensor {
    trek_tensor *tensor;      /* owned */
    uint32_t version;
    uint8_t is_output, index; /* which input or output of the op it was */
    bool offloads;            /* it may be in host memory: call trek_offload_bring before using it (offload_internal.h) */
} trek_saved_tensor;

/* --- what a backward rule sees ------------------------------------------- */

typedef struct trek_backward_call {
    trek_node *node;
    const trek_op *op;
    const trek_attrs *attrs;
    trek_var *grad;           /* gradient of output 0; never NULL in a rule with one output */
    trek_var **more_grads;    /* [k] gradient of output k > 0, or NULL (rows with TREK_OP_PAIR); NULL if there are none */
    int n_inputs;
    bool create_graph;        /* recording is on: use only differentiable ops */
    uint32_t needs;           /* bit k: input k needs a gradient */
    int group, groups;        /* the rule sees this one of the groups of rows; groups 0: all rows */
    trek_var **grads;         /* [n_inputs] to be filled in; borrowed results of ops in the rule's scope; NULL means zero */
    trek_var *saved;          /* [TREK_SAVED_VARS] the engine's: the variables for saved tensors */
    int n_saved;              /* their number so far; they end with the rule's scope */
} trek_backward_call;
enum { TREK_SAVED_VARS = 4 };

/* A rule fills b->grads[k] for inputs that need one, using public ops and trek_apply_* of internal rows. Gradients
 * may have the broadcast shape and the promoted dtype: the engine reduces and casts them to the input's own. */
typedef trek_status (*trek_backward_rule)(trek_backward_call *b);
/* The plain ops that a fused op equals: computes output 0 from the op's inputs, or, for a pair, output 1 if that
 * number says so. */
enum { TREK_COMPOSITE_OUTPUT = 11 }; /* in attrs.i */
typedef trek_var *(*trek_composite_rule)(const trek_op *op, const trek_attrs *attrs, trek_var *const *inputs, int n_inputs);

/* NULL means that no gradient flows. Not const, so that the op suite can insert a wrong rule and see its test fail. */
extern trek_backward_rule trek_backward_rules[TREK_OP_COUNT];
extern const trek_composite_rule trek_composite_rules[TREK_OP_COUNT];

static inline bool trek_rule_needs(const trek_backward_call *b, int k) { return b->needs >> k & 1; }
/* Return what the row's `saves` requested, or NULL if the input was absent. Borrowed, in the rule's scope. */
trek_var *trek_rule_input(trek_backward_call *b, int k);
trek_var *trek_rule_output(trek_backward_call *b, int k);
/* For rules of fused ops under create_graph: fills b->grads by differentiating the composite, which is recorded. */
trek_status trek_rule_composite(trek_backward_call *b);
/* Returns the shape of input k as the op's caller gave it. */
trek_shape trek_rule_shape(const trek_backward_call *b, int k);
/* Returns the gradient tensor of input k's leaf if the rule may accumulate into it directly (a contiguous leaf of the
 * same dtype and shape, in a first-order backward). *overwrite says that it holds nothing yet. After writing, the
 * rule leaves b->grads[k] NULL and calls trek_rule_sunk. Returns NULL if this is not possible. */
trek_tensor *trek_rule_sink(trek_backward_call *b, int k, bool *overwrite);
/* The same for input k that the rule knows to be 16-bit, if it is a leaf whose gradient an arena keeps in f32, or the
 * cast of an f32 leaf. The gradient is then not rounded to 16 bits on its way. */
trek_tensor *trek_rule_sink_wide(trek_backward_call *b, int k, bool *overwrite);
void trek_rule_sunk(trek_backward_call *b, int k);
/* Returns whether the walk's watcher takes over the gradient grad^T x of input k, which the rule then leaves NULL. */
bool trek_rule_takes_product(trek_backward_call *b, int k, trek_tensor *grad, trek_tensor *x);

/* --- applying ops to variables ------------------------------------------- */

/* Runs an op on variables and records it if necessary. The result (output 0) belongs to the current scope. */
trek_var *trek_apply(const trek_op *op, trek_var *const *inputs, int n_inputs, const trek_attrs *attrs);
/* The same, which also returns the tensors of outputs 1.. as constants in the scope (outs[0..n-1], n <=
 * TREK_MAX_OUTPUTS). */
trek_status trek_apply_many(const trek_op *op, trek_var *const *inputs, int n_inputs, const trek_attrs *attrs, trek_var **outs,
                            int n);

/* trek_apply_x runs row x on variables. Rows that are public have trek_x instead. */
#define TREK_OP(name, signature, ...) trek_var *trek_apply_##name(TREK_PARAMS_##signature(trek_var));
#define TREK_PUBLIC_OP(name, signature, ...)
#include "tensor/ops.def"
#undef TREK_OP

/* Makes a variable in the current scope that takes over the reference to tensor. */
trek_var *trek_var_wrap_scoped(trek_tensor *tensor, const char *op);

/* --- what a loss is the mean of (loss_weight.c); NULL in, NULL out; NULL and MEMORY --- */

/* Marks the loss as the mean of `weight` items. */
trek_var *trek_loss_mean_of(trek_var *loss, double weight);
/* Marks the loss as the mean over the labels that are not `ignore`, each weighted by its class (classes NULL: 1). */
trek_var *trek_loss_mean_of_labels(trek_var *loss, trek_var *labels, trek_var *classes, int64_t ignore);

/* --- used by graph/ and distributed/ -------------------------------------- */

/* Returns the leaf part, made when first needed, or NULL with MEMORY. */
trek_leaf *trek_var_leaf(trek_var *var);
/* Permanently puts the gradient of a leaf into `grad` (a tensor of its shape, which is retained). */
trek_status trek_var_place_grad(trek_var *var, trek_tensor *grad);

/* Several groups of rows, such as grains, whose backward is one walk: the first dimension of everything that the tape has
 * computed is divided into equal groups. Gradients of all rows are computed at once, those of leaves from each group by itself,
 * with the bits of a walk over that group alone (groups.c). */
typedef struct trek_backward_groups {
    int n;
    /* Called before and after leaf number k of the watch gets a gradient of a group. Between the calls its gradient is what
     * the walk over that group alone would write to. shared: it may get several of each group, which come when others have got
     * theirs, too. */
    trek_status (*begin)(int k, int group, bool shared, void *arg);
    void (*end)(int k, int group, bool shared, void *arg);
    void *arg;
} trek_backward_groups;
/* Returns whether such a walk from `root` is possible, with what rules of all its nodes do: its leaves, and what follows from
 * them alone, are used by ops of which that is known. *bytes becomes what the tape has saved for it, and what leaves that are
 * used several times need meanwhile. */
bool trek_backward_divides(const trek_var *root, int groups, int64_t *bytes);
/* Returns whether a walk from `root` would give a gradient to this leaf, and to no other. */
bool trek_backward_ends_at(const trek_var *root, const trek_var *leaf);

/* Backward over one graph's parameters: `complete(k, arg)` is called once for each of the leaves, as soon as nothing
 * further can reach it in this walk (at once for unused ones). */
typedef struct trek_backward_watch {
    trek_var *const *leaves;
    int n_leaves;
    bool only_these;          /* other leaves get no gradient */
    bool zeros;               /* the walk's root weighs nothing: leaves that it uses have a gradient, to which nothing is
                               * added, not even NaN */
    void (*complete)(int k, void *arg);
    /* May take over the gradient grad^T x of a leaf in an arena, F32 with two dimensions: it returns true, and adds the product
     * to the leaf's gradient when the walk has ended. Until then the leaf seems to have none. NULL: nobody does. */
    bool (*product)(int k, trek_tensor *grad, trek_tensor *x, void *arg);
    void *arg;
    const trek_backward_groups *groups; /* NULL: gradients of leaves are those of all rows */
} trek_backward_watch;
trek_status trek_backward_watched(trek_var *const *roots, trek_var *const *seeds, int n, const trek_backward_opts *opts,
                                  const trek_backward_watch *watch);

/* In a function's backward: returns whether the current walk keeps the tape (retain_graph). */
bool trek_backward_retains(void);
/* Returns whether it is trek_grad's, which leaves the gradients of leaves alone. */
bool trek_backward_captures(void);
/* In trek_grad's walk: return whether the gradient of this leaf is requested, and add to it. */
bool trek_backward_captures_leaf(const trek_var *leaf);
trek_status trek_backward_capture_leaf(trek_var *leaf, trek_var *grad);
/* Returns whether leaves get zeros (trek_backward_watch). */
bool trek_backward_gives_zeros(void);
/* Returns whether the current walk gives this leaf its gradient; false if it serves only other leaves. */
bool trek_backward_reaches(const trek_var *leaf);
/* Returns whether no node after this one uses the leaf. This is known only if leaves are counted
 * (trek_backward_watch.complete). */
bool trek_backward_passes_last(const trek_var *leaf);

/* The thread's recording state, which is passed on to the ranks. */
typedef struct trek_grad_mode {
    int no_grad_depth;
    uint8_t autocast;         /* trek_dtype: BF16 or F16; F32 means off. Ranks use it during their forward */
    trek_offload_opts offload; /* min_bytes 0 means none. Ranks use it during their forward */
} trek_grad_mode;
extern _Thread_local trek_grad_mode trek_grad_mode_here;

/* autocast.c: trek_apply_many with the inputs cast as the op's class requires; a loss's input is cast to f32. */
trek_status trek_autocast_apply(const trek_op *op, trek_var *const *inputs, int n_inputs, const trek_attrs *attrs,
                                trek_var **outs, int n);
trek_var *trek_autocast_full(trek_var *var);

#endif
