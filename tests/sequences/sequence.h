/* SPDX-License-Identifier: Apache-2.0 */
/* Random sequences of valid and invalid calls. A pool holds live variables of all dtypes, shapes and layouts; every
 * call draws its arguments from it, often such as do not fit, and what it gives goes back into it. Each call's numbers
 * follow from the seed, the block and the call's place alone, so that calls can be left out of a block. */
#ifndef TREK_TESTS_SEQUENCE_H
#define TREK_TESTS_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/lora.h"
#include "nn/parametrize.h"
#include "nn/state.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"
#include "optim/schedule.h"

enum { POOL_SLOTS = 24, POOL_SCOPES = 4, POOL_MODULES = 3, POOL_LIST = 4, POOL_LEAVES = 2000 };

typedef struct pool {
    uint64_t state;                 /* of the numbers that the present call draws */
    trek_var *slots[POOL_SLOTS];    /* retained; NULL: empty */
    trek_var *leaves[POOL_LEAVES];  /* all that ever needed a gradient: a gradient with a graph holds its leaf, as in PyTorch */
    int n_leaves;
    trek_scope scopes[POOL_SCOPES], last_scope; /* open ones, and one that has ended */
    int n_scopes, no_grad, autocast;
    trek_module *modules[POOL_MODULES];
    trek_optimizer *optimizer;
    trek_params *params;            /* the optimizer's, or none */
    trek_grad_scaler *scaler;
    trek_var *list[POOL_LIST], *parts[POOL_LIST]; /* what a call takes and gives besides */
    trek_conv_opts conv;            /* options that the present call points to */
    trek_conv_transpose_opts transposed;
    trek_pool_opts pooling;
    trek_attention_opts attention;
    trek_cross_entropy_opts entropy;
    int64_t out;                    /* sizes of what is made to fit the present call */
    trek_var *made;                 /* what it gave, if that is a variable */
    double number;                  /* or a number */
} pool;

/* What became of a call. */
typedef enum outcome { OUTCOME_MADE, OUTCOME_FAILED, OUTCOME_EITHER /* NULL without an error is an answer */ } outcome;

/* --- pool.c: what calls draw */
uint64_t pool_next(pool *p);
int pool_below(pool *p, int n);           /* 0 .. n - 1 */
bool pool_chance(pool *p, int percent);
trek_var *pool_var(pool *p);              /* any; sometimes NULL */
trek_var *pool_like(pool *p, trek_var *x); /* rather one of x's shape */
trek_var *pool_index(pool *p);            /* rather one of integers */
/* These are made to fit, in most cases: they belong to the present scope. */
trek_var *pool_mask(pool *p, trek_var *x);   /* bool, of x's shape */
trek_var *pool_labels(pool *p, trek_var *x); /* integers of x's leading sizes, below the last one */
trek_var *pool_matrix(pool *p, trek_var *x); /* [out, x's last size] */
trek_var *pool_row(pool *p, trek_var *x);    /* [x's last size]; or NULL */
trek_var *pool_channels(pool *p, trek_var *x); /* [x's size 1]; or NULL */
trek_var *pool_bias(pool *p);                /* [out]; or NULL */
trek_var *pool_image(pool *p);               /* [2, out, 5, 4] */
trek_var *pool_filter(pool *p);              /* [3, out, 2, 2] */
trek_var *pool_transposed_filter(pool *p);   /* [out, 3, 2, 2] */
trek_var *pool_filter_bias(pool *p);         /* [3]; or NULL */
int pool_normalized(pool *p);                /* how many dimensions a norm is over */
double pool_eps(pool *p);
trek_var *const *pool_list(pool *p);
double pool_number(pool *p);
int64_t pool_integer(pool *p);
int pool_dim(pool *p);
trek_shape pool_shape(pool *p);           /* of a new tensor */
trek_shape pool_sizes(pool *p, trek_var *x); /* a shape that x could take */
trek_shape pool_dims(pool *p);
trek_dtype pool_dtype(pool *p);
trek_device pool_device(pool *p);
const trek_conv_opts *pool_conv(pool *p);
const trek_conv_transpose_opts *pool_conv_transpose(pool *p);
const trek_pool_opts *pool_pooling(pool *p);
const trek_attention_opts *pool_attention(pool *p);
trek_reduction pool_reduction(pool *p); /* mostly one that losses take */
const trek_cross_entropy_opts *pool_entropy(pool *p);
trek_var *pool_leaf(pool *p);             /* a new variable: retained for the caller */
void pool_keep(pool *p, trek_var *var);   /* a borrowed result into some slot */
void pool_drop(pool *p, int slot);
void pool_leaf_made(pool *p, trek_var *var); /* may get gradients */
void pool_begin(pool *p, uint64_t seed);
void pool_end(pool *p);                   /* gives everything back */

/* --- ops.c, objects.c: the calls */
typedef struct sequence_call {
    const char *name;
    outcome (*run)(pool *p);
} sequence_call;
extern const sequence_call sequence_ops[], sequence_functions[], sequence_objects[];
extern const int sequence_n_ops, sequence_n_functions, sequence_n_objects;

/* OUTCOME_MADE with var as what was made, or FAILED. */
outcome sequence_var(pool *p, trek_var *var);
outcome sequence_status(trek_status status);

#endif
