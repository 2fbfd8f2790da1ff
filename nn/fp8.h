/* SPDX-License-Identifier: Apache-2.0 */
/* Products of linear layers with operands of 8 bits (fp8), as NVIDIA's TransformerEngine has them: under autocast in bf16, input
 * and weight are rounded to E4M3 and the gradient of the result to E5M2 (Micikevicius et al., "FP8 Formats for Deep Learning",
 * 2022); products are summed in f32, results are bf16, gradients of f32 weights f32. Everything else is as bf16 autocast has it.
 *
 *     trek_graph_set_amp(graph, &(trek_amp_opts){ .products = TREK_FP8 });
 *
 * Which products: those of linear layers, and the projections of multi-head attention, whose sizes are multiples of 16, for f32
 * or bf16 inputs of at least one row; others stay in bf16. A layer that is to stay in bf16 is left out by calling
 * trek_fp8_enable for the parts that are not, and .amp with bf16.
 *
 * Scales, one a tensor, are powers of two, so that they round nothing (TransformerEngine's are not, by default). Delayed scaling,
 * its DelayedScaling: the scale follows from the largest magnitude of the last `history` steps, the present one not among
 * them: 2^floor(log2(format's largest number / magnitude)) / 2^margin. What is larger than all steps before may saturate: it
 * becomes the format's largest number. Infinities and NaN become NaN, and change no scale. In eval mode the scales of inputs stay
 * as they are (while nothing is known, a tensor's own magnitude); the weight has its own. Magnitudes and scales live on the
 * device, and nothing waits for them: captured steps work.
 *
 * While nothing is known, in the first step of training, products are of bf16 operands, of which, and of the gradients, the
 * magnitudes are taken down; a layer stays so until it has seen an input and, where its parameters learn, a gradient that is not
 * 0. So long the device is waited for once a step, to look. A step that is captured before then goes by its tensors' own
 * magnitudes.
 *
 * Magnitudes are a buffer of the layer, "fp8_amax" (i32: the bits of f32 numbers; [input, weight, gradient], [present step, past
 * ones]): saved, loaded and moved with it, and over ranks the maximum, at each step. So the steps of several ranks are one
 * device's to rounding, the first, too. A state file from elsewhere is loaded before the layers are told (or with
 * .allow_missing); trek_fp8_disable takes the buffers out again.
 *
 * On GPUs from compute capability 8.9 on (Ada, Hopper, Blackwell) cuBLASLt multiplies the codes; elsewhere the same numbers, up
 * to the order of sums, come from products of bf16, which holds every code: exact, and no faster. Gradients of gradients:
 * UNSUPPORTED. Exported models (onnx/export.h) have the layers' products in bf16. */
#ifndef TREK_NN_FP8_H
#define TREK_NN_FP8_H

#include "nn/module.h"

TREK_BEGIN

typedef struct trek_fp8_opts {
    int64_t history;          /* steps that scales look back on; default 16, at most 65536; TREK_OFF: each tensor's own magnitude,
                                 found by reading it once more, and no buffers */
    int margin;               /* scales are divided by 2^margin, at most 64 either way; default 0 */
} trek_fp8_opts;

/* From now on the products of the linear layers of the module (and what is below it) are of 8 bits where bf16 autocast is on.
 * On every replica alike, before the trainer is set up: in the function that builds them, or by .amp. Layers that have it
 * already keep their magnitudes if the options are the same. opts may be NULL. ARGUMENT: options out of range, no layer that
 * could; STATE: a layer has it with another history; MEMORY. Then nothing has changed. */
TREK_API trek_status trek_fp8_enable(trek_module *module, const trek_fp8_opts *opts);
/* And no more: magnitudes are forgotten. Not while a trainer has the module. Layers without it stay as they are. */
TREK_API trek_status trek_fp8_disable(trek_module *module);

TREK_END

#endif
