/* SPDX-License-Identifier: Apache-2.0 */
/* Export of models as ONNX files, for the runtimes that read them.
 *
 * The module runs in evaluation mode on the example inputs and on others of several sizes. The file contains the ops that ran,
 * and their attributes as formulas of the sizes of the inputs. So everything can be exported whose ops ONNX has: layers, graphs,
 * modules of the program, and the functions between them. docs/onnx.md lists the ops. Values that the program computes itself
 * from the numbers of a variable (trek_var_item, loops over trek_tensor_data) cannot be seen. The export fails if it can
 * detect that. */
#ifndef TREK_ONNX_EXPORT_H
#define TREK_ONNX_EXPORT_H

#include "nn/module.h"

TREK_BEGIN

/* A dimension of an input whose size is open in the file. */
typedef struct trek_onnx_dim {
    int input;        /* the index of the input, from 0 */
    int dim;          /* the dimension; negative: from the last */
    const char *name; /* its name, such as "batch" or "sequence"; dimensions of one name have one size */
    /* A second size that the model supports, other than that of the example; default: one more. The first one given for a name is
     * used. A size of 1 is not tried if there is a larger one. */
    int64_t other;
} trek_onnx_dim;

/* Options of the export. */
typedef struct trek_onnx_opts {
    int opset;                       /* the version of ONNX's operators, 17 to 21; default 17 */
    /* Default: dimension 0 of each input that has one is open as "batch", whatever `dims` says about its other dimensions. If
     * `dims` gives an input a "batch", the input has it only there. TREK_OFF: only `dims` are open. */
    int batch;
    const trek_onnx_dim *dims;       /* further open dimensions, [n_dims], with at most 8 names in all */
    int n_dims;                      /* number of `dims` */
    /* Names of the inputs, [inputs]; an entry may be NULL. Default: those of a graph or of the module's class ("h0" of an LSTM),
     * otherwise "input", "input_1", ... */
    const char *const *input_names;
    int n_results;                   /* how many results the module has, as in trek_forward_results; default 1 */
    /* Names of the results, [results]; an entry may be NULL. Default: "output" and the names of the class for further results,
     * otherwise "output_1", ... */
    const char *const *output_names;
    const char *const *tags;         /* for a graph: tags whose values are outputs, too, ended by NULL; default NULL */
    /* Whether parameters are written to a separate file, path + ".data": 1: always; TREK_OFF: never; default: only if the model's
     * file would be larger than 1.8 GB (the limit of ONNX is 2 GB). */
    int external_data;
} trek_onnx_opts;

/* Writes the module, as it computes in evaluation mode, to an ONNX file. On failure an earlier file at `path` stays. `opts`
 * may be NULL.
 * - `inputs` are n examples with the shapes, dtypes and valid values of the model's inputs (indices in range). Entries after
 *   the first may be NULL, which leaves the input out, if the module's class allows it (optional_inputs).
 * - The module runs once for warming up, once for each open dimension, and twice more, with other sizes and values, which it
 *   must accept: rows are repeated in another order, vectors of integers continue with their last value, floating numbers x
 *   become 0.875 x + 0.0625. All results of one run are in memory at the same time.
 * - Parameters and buffers are initializers with their full names, tied ones once.
 * - Dtypes: f32, f64, f16, bf16, i64, i32, u8 and bool. A runtime need not support all of them for each op.
 * - The module does not change: modes, tagged values and random numbers are as before.
 * - Errors: UNSUPPORTED, with the path of the module and the op, if ONNX has no such op, if values depend on the inputs in a
 *   way that no op shows, for random numbers, for graphs with states, if sizes follow from an open size in another way than by
 *   sums and products, and if trek was built without protobuf-c. ARGUMENT if an option is out of range or the inputs do not
 *   fit the options. IO, MEMORY. Errors of the module. */
TREK_API trek_status trek_onnx_export(trek_module *module, const char *path, trek_var *const *inputs, int n,
                                      const trek_onnx_opts *opts);

TREK_END

#endif
