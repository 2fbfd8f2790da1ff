/* SPDX-License-Identifier: Apache-2.0 */
/* Summaries of a module as torchinfo prints them: what each layer made of given inputs, its parameters and multiply-adds.
 *
 * The module (a graph's: trek_graph_module) runs once on the inputs in eval mode, without gradients, on the calling thread.
 * Modes, random numbers, tagged values and the states of graphs are afterwards what they were. */
#ifndef TREK_GRAPH_SUMMARY_H
#define TREK_GRAPH_SUMMARY_H

#include "nn/module.h"

TREK_BEGIN

typedef struct trek_summary_opts {
    int n_inputs;                /* 0: the module does not run, and only parameters are told */
    trek_var *const *inputs;     /* [n_inputs]: */
    const trek_shape *shapes;    /* or the shapes of ones to be made (integers: zeros), of */
    const trek_dtype *dtypes;    /* these dtypes; NULL: f32 */
    trek_device device;          /* where they are made; default: the device of the first parameter */
    int depth;                   /* of the table: levels below the module; default 3; TREK_OFF: all */
    bool paths;                  /* layers by their paths, "linear (encoder.0)", instead of numbers, "linear: 2-1" */
    bool input_shapes;           /* one more column */
} trek_summary_opts;

/* A table, a new string (trek_string_free): a line for each run of a layer, in order, below the modules that hold it; modules
 * that did not run are part of what is above them. Columns: shape of the first result, parameters ("--": none of its own
 * besides its children's; in parentheses: all frozen; "(recursive)": counted further up), multiply-adds, whether its
 * parameters are trained (True, Partial, False). Below them the totals of trek_module_measure. NULL and ARGUMENT, MEMORY, or
 * what the module reports. */
TREK_API char *trek_module_summary_with(trek_module *module, const trek_summary_opts *opts);

typedef struct trek_module_totals {
    int64_t params, trainable;   /* elements, shared ones once */
    /* torchinfo 1.8's number: for each run of a layer and each parameter that is its own, of n elements, with a first result
     * [N, C, ...]: called weight or bias: n N, in convolutions (classes with "conv" in their name) n N times the
     * places of an output channel; with weight or bias in its name (recurrent layers, attention's projections): n N C
     * (C: its second size, which is time); any other: nothing. So a linear layer counts N, not N T, rows of [N, T, features].
     * Where torchinfo counts a layer only if it has no children, here its own parameters count in any case: attention's. */
    int64_t mult_adds;
    int64_t input_bytes;         /* of all inputs */
    int64_t pass_bytes;          /* twice (for gradients) the first results of layers with parameters of their own */
    int64_t param_bytes;         /* of all parameters */
} trek_module_totals;
/* The totals alone. */
TREK_API trek_status trek_module_measure(trek_module *module, const trek_summary_opts *opts, trek_module_totals *totals);

TREK_END

#endif
