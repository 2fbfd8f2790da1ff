/* SPDX-License-Identifier: Apache-2.0 */
/* Classes of optimizers: one constant struct says what SGD or Adam is, and this header says how to write another. A class says
 * which options it has, what it keeps for each element and how an element is updated. Groups, learning rates, clipping, loss
 * scaling, 16-bit parameters, arenas, ranks, captured steps and checkpoints follow from that. If the update of an element depends
 * on the rest of its parameter, the class says how a whole parameter is updated (`whole`). An example:
 *
 *     #include <trek/optim/update_element.h>
 *     #include <trek/trek.h>
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
 *         .options = { { "lr", 1e-4 }, { "momentum", 0.9, TREK_OPTION_RANGE_FRACTION }, { "weight_decay" } },
 *         .states = { { "exp_avg" } },
 *         .update = lion_update,
 *     };
 *     ... .optimizer = (trek_optimizer_spec){ .klass = &lion_class, { 3e-4 } } */
#ifndef TREK_OPTIM_OPTIMIZER_CLASS_H
#define TREK_OPTIM_OPTIMIZER_CLASS_H

#include "optim/optimizer.h"
#include "tensor/update_slice.h"

TREK_BEGIN

/* The values that an option may have. */
typedef enum trek_option_range {
    TREK_OPTION_RANGE_FROM_ZERO, /* finite and at least 0 */
    TREK_OPTION_RANGE_FRACTION,  /* at least 0 and below 1 */
    TREK_OPTION_RANGE_FINITE,    /* finite */
} trek_option_range;

/* An option of a class. */
typedef struct trek_optimizer_option {
    const char *name;        /* its name, for example "momentum" */
    double otherwise;        /* the default, which 0 in a spec stands for */
    trek_option_range range; /* the values it may have; another value fails with ARGUMENT */
    bool corrected;          /* gives kernels 1 - value^step as well: in correction[0] for the first such option, and so on */
} trek_optimizer_option;

/* What a class keeps a number for. All except TREK_STATE_EXTENT_ELEMENTS are for classes that update whole parameters, and cannot
 * be averaged over ranks. */
typedef enum trek_state_extent {
    TREK_STATE_EXTENT_ELEMENTS, /* each element */
    TREK_STATE_EXTENT_ROWS, /* each row: the parameter's shape with 1 as the last size. Parameters with fewer than two dimensions
                               have no such state */
    TREK_STATE_EXTENT_COLUMNS, /* each column: the shape with 1 as the last size but one. Parameters with fewer than two
                                  dimensions have no such state */
    TREK_STATE_EXTENT_VECTORS, /* each element of parameters with fewer than two dimensions. Other parameters have none */
} trek_state_extent;

/* Numbers that a class keeps for each parameter. They begin as 0 and have the dtype in which parameters are updated. If they are
 * kept in bf16 or 8 bits (trek_with_state), an update gets the rounded numbers. */
typedef struct trek_optimizer_state {
    /* For example "exp_avg", saved as "<parameter>.exp_avg". It has no dots and is not "step", "master" or "scale". */
    const char *name;
    int kept_with;            /* index of the option that must be above 0 for the state to be kept; 0 keeps it always */
    trek_state_extent extent; /* the elements, rows or columns that have a number */
    /* It is never below 0, and NaN only if gradients are NaN. 8 bits then represent it more finely. */
    bool positive;
} trek_optimizer_state;

/* A whole parameter, for classes whose update of an element depends on the other elements, for example on a norm or on a product
 * of matrices. */
typedef struct trek_update_whole {
    /* All elements of the parameter. Pointers of states that the parameter does not have are NULL; zero_grad and low are not
     * used. */
    const trek_update_slice *slice;
    trek_shape shape; /* shape of the parameter */
    /* Scratch memory of the size that the class requested, 64-byte aligned and uninitialised. */
    void *workspace;
} trek_update_whole;

/* What an optimizer does. It is constant and outlives the optimizers made from it. A class that breaks the rules below is refused
 * with ARGUMENT when an optimizer is made.
 *
 * `whole` is called for each parameter by one thread, which may use the rank's other threads. Ranks that share parameters update
 * some of them each. It neither fails nor allocates memory, and its results have the same bits for any number of threads. It is
 * for CPUs; on GPUs the kernel `gpu` does the same (tensor/cuda/optim/whole.cuh). Parameters of such a class are updated one by
 * one, and keeps_zeros is not used.
 *
 * Ranks that share the state own whole parameters. They get equal parts of the `work` and of the elements. */
struct trek_optimizer_class {
    /* For messages, for example "sgd"; the processes of a job compare it. */
    const char *name;
    /* The options, the first of which is "lr"; entries without a name are unused. */
    trek_optimizer_option options[TREK_UPDATE_OPTIONS];
    trek_optimizer_state states[TREK_UPDATE_STATES]; /* the states; entries without a name are unused */
    /* Index of the option that changes the sign of the gradients before everything; 0: the class has no such option. */
    int maximize;
    /* Updates depend on the number of updates that a parameter has had. Kernels get `step` and corrections, and parameters with
     * different numbers are updated in separate calls. */
    bool by_step;
    /* Checks options against each other, after the defaults were filled in, and returns TREK_OK or trek_fail. NULL accepts
     * all. */
    trek_status (*check)(const double *options);
    /* Returns true if an element that is 0 with gradient and states of 0 stays 0; parameters with only padding between them are
     * then updated together. NULL means false. */
    bool (*keeps_zeros)(const double *options);
    trek_update_fn update; /* Updates elements on the CPU; TREK_UPDATE_ELEMENT makes it */
    /* Updates one parameter on the CPU, instead of update; see above. */
    void (*whole)(trek_dtype dtype, const trek_update_whole *whole);
    /* Returns the bytes of scratch memory that whole needs. NULL: no memory. */
    size_t (*workspace)(trek_dtype dtype, trek_shape shape, const double *options);
    /* Returns the cost of updating a parameter, in any unit, for the distribution over ranks. NULL: the number of elements. */
    double (*work)(trek_shape shape, const double *options);
    /* Returns TREK_OK if a group with these options can have a parameter of that shape, otherwise trek_fail. It is called before
     * each step that updates other parameters than the last one. NULL accepts all. */
    trek_status (*check_shape)(const char *name, trek_shape shape, const double *options);
    /* Name of a kernel of libtrek-cuda, which is built from the same text if the file is listed in optim/meson.build. NULL:
     * parameters on a GPU are refused (UNSUPPORTED). */
    const char *gpu;
};

TREK_END

#endif
