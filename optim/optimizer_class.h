/* SPDX-License-Identifier: Apache-2.0 */
/* Classes of optimizers: what sgd or adam is, in one constant struct, and how to write another. A class says which options it
 * has, what it keeps of each element, and how an element is updated; groups, learning rates, clipping, loss scaling, 16-bit
 * parameters, arenas, ranks, captured steps and checkpoints follow from that. Where an element's update depends on the rest of
 * its parameter, a class says how a whole parameter is updated (`whole`). For one of your own:
 *
 *     enum { LR, MOMENTUM, DECAY };      // options
 *     enum { STEP, KEEP, BETA, REST };   // numbers that are the same for all elements
 *     TREK_UPDATE_NUMBERS(lion)
 *     {
 *         n[STEP] = -s->options[LR], n[KEEP] = 1 - s->options[LR] * s->options[DECAY];
 *         n[BETA] = s->options[MOMENTUM], n[REST] = 1 - s->options[MOMENTUM];
 *         return 0;
 *     }
 *     TREK_UPDATE_ELEMENT(lion, 1, 1, 1, {
 *         T moving = n[BETA] * s[0] + n[REST] * d;
 *         *x = *x * n[KEEP] + n[STEP] * (T)((moving > 0) - (moving < 0));
 *         s[0] = moving;
 *     })
 *     static const trek_optimizer_class lion_class = {
 *         .name = "lion",
 *         .options = { { "lr", 1e-4 }, { "momentum", 0.9, TREK_RANGE_FRACTION }, { "weight_decay" } },
 *         .states = { { "exp_avg" } },
 *         .update = lion_update,
 *     };
 *     ... .optimizer = (trek_optimizer_spec){ .klass = &lion_class, { 3e-4 } } */
#ifndef TREK_OPTIM_OPTIMIZER_CLASS_H
#define TREK_OPTIM_OPTIMIZER_CLASS_H

#include "optim/optimizer.h"
#include "optim/update_element.h"

TREK_BEGIN

typedef enum trek_option_range {
    TREK_RANGE_FROM_ZERO, /* finite and at least 0 */
    TREK_RANGE_FRACTION,  /* at least 0, below 1 */
    TREK_RANGE_FINITE,
} trek_option_range;

typedef struct trek_optimizer_option {
    const char *name;        /* "momentum" */
    double otherwise;        /* what 0 in a spec stands for */
    trek_option_range range; /* others: ARGUMENT, by name */
    bool corrected;          /* kernels get 1 - value^step, too: the first such option in correction[0], and so on */
} trek_optimizer_option;

/* What there is a number for. All but ELEMENTS are for classes of whole parameters, and cannot be averaged over ranks. */
typedef enum trek_state_extent {
    TREK_STATE_ELEMENTS, /* each element */
    TREK_STATE_ROWS,     /* each row: the parameter's shape with 1 as the last size. With fewer than two dimensions: none */
    TREK_STATE_COLUMNS,  /* each column: with 1 as the last size but one. With fewer than two dimensions: none */
    TREK_STATE_VECTORS,  /* each element of parameters with fewer than two dimensions; of others: none */
} trek_state_extent;

/* Numbers for each parameter, 0 at first, of the dtype in which parameters are updated. Where they are kept in bf16 or
 * 8 bits (trek_with_state), an update finds what was rounded. */
typedef struct trek_optimizer_state {
    const char *name; /* "exp_avg": checkpoints have "<parameter>.exp_avg". No dots, not "step", "master" or "scale" */
    int kept_with;    /* the option above 0 with which it is kept; 0: always */
    trek_state_extent extent;
    bool positive;    /* it is never below 0, nor NaN but for gradients that are: 8 bits show it more finely */
} trek_optimizer_state;

/* A whole parameter, for classes whose update of an element depends on the others: on a norm, or a product of matrices. */
typedef struct trek_update_whole {
    const trek_update_slice
        *slice; /* all its elements; states without extent here are NULL. zero_grad and low are not its business */
    trek_shape shape;
    void *room;                     /* the bytes that the class asked for, in any state; 64-byte aligned */
} trek_update_whole;

/* Constant, and there as long as optimizers of it are. A class that breaks these rules is refused with ARGUMENT when an
 * optimizer is made. */
struct trek_optimizer_class {
    const char *name; /* "sgd", for messages; processes of one job compare it */
    trek_optimizer_option options[TREK_UPDATE_OPTIONS]; /* the first is "lr"; those without a name are none */
    trek_optimizer_state states[TREK_UPDATE_STATES];
    int maximize;     /* the option with which gradients change their sign before all else; 0: none */
    /* Updates depend on how many a parameter has had: kernels get `step` and corrections, and parameters with different counts
     * in separate calls. */
    bool by_step;
    /* What options must be to each other, after the defaults; TREK_OK, or trek_fail. NULL: anything goes. */
    trek_status (*check)(const double *options);
    /* Whether an element that is 0, with gradient and states of 0, stays so. NULL: not known, and each parameter is
     * updated by a call of its own: those between which only padding lies could else be updated together. */
    bool (*keeps_zeros)(const double *options);
    /* On the CPU, from TREK_UPDATE_ELEMENT or written out. */
    trek_update_fn update;
    /* Instead of it: updates one parameter. Called for each by one thread, which may use the rank's others; ranks that share
     * parameters update some each. It neither fails nor allocates, and gives the same bits whatever the number of threads.
     * For CPUs; on GPUs the kernel `gpu` does the same. Parameters of such a class are always updated one by one: keeps_zeros
     * means nothing. */
    void (*whole)(trek_dtype dtype, const trek_update_whole *whole);
    size_t (*room)(trek_dtype dtype, trek_shape shape, const double *options); /* bytes that whole needs; NULL: none */
    /* What it costs, in any unit: sharers of the state, who own whole parameters, are to have as much of it as each other, and
     * as many elements. NULL: it goes by these. */
    double (*work)(trek_shape shape, const double *options);
    /* Whether a group of these options can have a parameter of that shape: TREK_OK, or trek_fail. Asked before each step that
     * updates others than the last one did. NULL: any. */
    trek_status (*check_shape)(const char *name, trek_shape shape, const double *options);
    /* On GPUs: the name of a kernel of libtrek-cuda, which is built from the same text where the file is listed in
     * optim/meson.build (whole parameters: tensor/cuda/optim/whole.cuh).
     * NULL: optimizers over parameters on a GPU are refused (UNSUPPORTED). */
    const char *gpu;
};

TREK_END

#endif
