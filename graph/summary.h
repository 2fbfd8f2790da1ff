/* SPDX-License-Identifier: Apache-2.0 */
/* Summaries of a module as torchinfo prints them: the shape of each layer's result, its parameters and multiply-adds.
 *
 * The module (trek_graph_module for a graph) runs once on the inputs in evaluation mode, without gradients, on the calling
 * thread. The run changes neither modes, random numbers, tagged values nor the states of graphs. */
#ifndef TREK_GRAPH_SUMMARY_H
#define TREK_GRAPH_SUMMARY_H

#include "nn/module.h"

TREK_BEGIN

/* Options of a summary. The inputs are given either by `inputs` or by `shapes`. */
typedef struct trek_summary_opts {
    int n_inputs;                /* number of inputs; default 0: the module does not run, only parameters are counted */
    trek_var *const *inputs;     /* the inputs, [n_inputs]; default NULL */
    const trek_shape *shapes;    /* shapes of inputs that are created, filled with 1 (integers with 0); default NULL */
    const trek_dtype *dtypes;    /* dtypes of inputs that are created; default NULL: f32 */
    trek_device device;          /* device of inputs that are created; default: the device of the first parameter */
    int depth;                   /* how many levels below the module the table shows (TREK_OFF: all); default 3 */
    bool paths;                  /* names layers by path, "linear (encoder.0)", instead of number, "linear: 2-1" */
    bool input_shapes;           /* adds a column with the shapes of the inputs */
} trek_summary_opts;

/* Returns a summary of the module as a table. It has one line for each run of a layer, in order, below the modules that contain
 * the layer. Modules that did not run belong to the module above them. The columns are:
 * - the shape of the first result
 * - the parameters: "--" if it has parameters of its children only, in parentheses if all are frozen, "(recursive)" if they were
 *   counted in a line above
 * - the multiply-adds
 * - whether the parameters are trained: True, Partial or False
 *
 * The totals of trek_module_measure follow. The caller frees the string with trek_string_free.
 * Errors: ARGUMENT, MEMORY. Errors of the module. NULL is returned. */
TREK_API char *trek_module_summary_with(trek_module *module, const trek_summary_opts *opts);

/* Totals of a module: trek_module_measure.
 *
 * The multiply-adds are counted as torchinfo 1.8 counts them. For each run of a layer with a first result [N, C, ...] and each
 * parameter of the layer itself, of n elements:
 * - A parameter named weight or bias counts n N. In convolutions (classes with "conv" in their name) it counts n N times the
 *   number of positions of an output channel.
 * - A parameter with weight or bias in its name (of recurrent layers and of the projections of attention) counts n N C, where C
 *   is the second size, which is time.
 * - Any other parameter counts 0.
 *
 * So a linear layer counts N rows of [N, T, features], not N T. torchinfo counts only layers without children; here the
 * parameters of the layer itself always count, as those of attention. */
typedef struct trek_module_totals {
    int64_t params;              /* elements of all parameters; shared ones count once */
    int64_t trainable;           /* elements of the parameters that are trained */
    int64_t mult_adds;           /* multiply-adds of one forward, as counted above */
    int64_t input_bytes;         /* bytes of all inputs */
    int64_t pass_bytes;          /* twice (for gradients) the bytes of the first results of layers with own parameters */
    int64_t param_bytes;         /* bytes of all parameters */
} trek_module_totals;
/* Computes the totals of a module. With inputs in `opts` the module runs once.
 * Errors: ARGUMENT, MEMORY. Errors of the module. */
TREK_API trek_status trek_module_measure(trek_module *module, const trek_summary_opts *opts, trek_module_totals *totals);

TREK_END

#endif
