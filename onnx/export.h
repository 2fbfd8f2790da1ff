/* SPDX-License-Identifier: Apache-2.0 */
/* Models as ONNX files, for the runtimes that read them.
 *
 * The module runs in eval mode on the example inputs and on others of several sizes; what its ops were, and how their numbers
 * follow the inputs' sizes, is what is written. So anything exports whose ops ONNX has: layers, graphs, a program's own modules,
 * and the functions between them. docs/onnx.md lists the ops. What a program computes by itself from a value's numbers
 * (trek_var_item, loops over trek_tensor_data) is not seen, and refused where that shows. */
#ifndef TREK_ONNX_EXPORT_H
#define TREK_ONNX_EXPORT_H

#include "nn/module.h"

TREK_BEGIN

/* A dimension of an input whose size the file leaves open. */
typedef struct trek_onnx_dim {
    int input;                /* which input, from 0, */
    int dim;                  /* and which of its dimensions; negative: from the end */
    const char *name;         /* dimensions of one name are of one size ("batch", "sequence") */
    int64_t other;            /* a size besides the example's that the model can have; default: one more. The first one given for
                                 a name counts; a size of 1 is not tried where there is a larger one */
} trek_onnx_dim;

typedef struct trek_onnx_opts {
    int opset;                /* 17..21; default 17 */
    /* Default: dimension 0 of each input that has one is "batch", whatever `dims` says of other dimensions; an input which
     * `dims` gives a "batch" has it there alone. TREK_OFF: nothing is open but `dims`. */
    int batch;
    const trek_onnx_dim *dims; /* [n_dims] further open dimensions, up to 8 names in all */
    int n_dims;
    /* [inputs] default: a graph's names, a class's ("h0" of an LSTM), else "input", "input_1", ... An entry may be NULL. */
    const char *const *input_names;
    /* How many of the module's results, as trek_forward_results; default 1. */
    int n_results;
    /* [results] default: "output" and the class's names of further results, else "output_1", ... An entry may be NULL. */
    const char *const *output_names;
    /* Of a graph: tags whose values are outputs, too, under their names; ended by NULL. */
    const char *const *tags;
    /* Default: parameters go to a file of their own, path + ".data", where the model's would pass 1.8 GB (ONNX's limit is 2);
     * 1: in any case; TREK_OFF: never. */
    int external_data;
} trek_onnx_opts;

/* Writes the module as it computes in eval mode to an ONNX file at `path`, whole or not at all: an earlier file stays until the
 * new one is there. `inputs` are examples: their shapes and dtypes, and values that the model takes (indices within range);
 * entries after the first may be NULL where the class takes that (optional_inputs): left out. The module runs once as a warm-up,
 * once for each open dimension and twice besides, with other sizes and values (rows are repeated in another order, vectors of
 * integers go on with their last one, floating numbers x become 0.875 x + 0.0625), which it has to take; all that one run makes
 * is in memory at once.
 *
 * Parameters and buffers are initializers under their full names, tied ones once. Dtypes: f32, f64, f16, bf16, i64, i32, u8,
 * bool; which of them a runtime has for an op is its own. The module is as before afterwards: modes, tagged values, random
 * numbers. opts may be NULL.
 *
 * Errors: UNSUPPORTED, with the path of the module and the op, for what ONNX has no op for, values that depend on the inputs in a
 * way that no op shows, random numbers, graphs that carry a state from one forward to the next, sizes that follow an open one
 * otherwise than by sums and products, and where trek was built without protobuf-c; ARGUMENT for options out of range and
 * inputs that are not of the opts' dimensions; IO; MEMORY; what the module's forward says. */
TREK_API trek_status trek_onnx_export(trek_module *module, const char *path, trek_var *const *inputs, int n,
                                      const trek_onnx_opts *opts);

TREK_END

#endif
