/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers that multiply operands of 8 bits (fp8), as NVIDIA's TransformerEngine does. Under bf16 autocast, inputs and
 * weights are rounded to E4M3 and gradients of results to E5M2 (Micikevicius et al., "FP8 Formats for Deep Learning", 2022).
 * Products are summed in f32, results are bf16, and gradients of f32 weights are f32. Everything else is as under bf16 autocast.
 *
 *     trek_graph_set_amp(graph, &(trek_amp_opts){ .products = TREK_AMP_PRODUCTS_FP8 });
 *
 * Which products: those of linear layers and of the projections of multi-head attention whose sizes are multiples of 16, for f32
 * or bf16 inputs of at least one row. Others stay in bf16. To keep one layer in bf16, use .amp with bf16 and call trek_fp8_enable
 * for the other parts of the model.
 *
 * Scales: each tensor has one scale. Scales are powers of two, so that they cause no rounding (those of TransformerEngine are
 * not, by default). Scaling is delayed, as its DelayedScaling: the scale follows from the largest magnitude of the last `history`
 * steps without the current one. It is 2^floor(log2(the format's largest number / magnitude)) / 2^margin. A number that is larger
 * than in all these steps may saturate: it becomes the format's largest number. Infinities and NaN become NaN and do not change
 * scales. In eval mode the scales of inputs stay as they are (without any history, a tensor's own magnitude counts); weights use
 * their own magnitude. Magnitudes and scales are on the device, and nothing synchronises with it: steps can be captured.
 *
 * First steps: a layer multiplies bf16 operands and records magnitudes until it has seen an input and, if its parameters learn, a
 * gradient that is not 0. Until then each step synchronises with the device once. A step that is captured before then uses its
 * tensors' own magnitudes.
 *
 * State: the magnitudes are a buffer of the layer, "fp8_amax" (i32, the bits of f32 numbers; [input, weight, gradient], [current
 * step, earlier steps]). It is saved, loaded and moved with the layer. Ranks use their maximum at each step, so that the steps of
 * several ranks equal those of one device up to rounding, the first included. Load a state file from elsewhere before
 * trek_fp8_enable, or with .allow_missing; trek_fp8_disable removes the buffers.
 *
 * GPUs: from compute capability 8.9 on (Ada, Hopper, Blackwell) cuBLASLt multiplies the codes. On other devices the same numbers,
 * up to the order of summation, come from products of bf16, which holds every code: exact, but not faster.
 *
 * Limits: gradients of gradients fail with UNSUPPORTED. Exported models (onnx/export.h) contain bf16 products. */
#ifndef TREK_NN_FP8_H
#define TREK_NN_FP8_H

#include "nn/fp8_opts.h"
#include "nn/module.h"

TREK_BEGIN

/* Makes the linear layers of the module and of the modules below it multiply operands of 8 bits wherever bf16 autocast is on.
 * Call it equally for every replica before the trainer is set up, that is, in the function that builds the replicas, or use .amp.
 * Layers that have it already keep their magnitudes if the options are equal. opts may be NULL.
 * Errors: ARGUMENT if an option is out of range or no layer is suitable. STATE if a layer has it with another history. MEMORY. On
 * failure nothing has changed. */
TREK_API trek_status trek_fp8_enable(trek_module *module, const trek_fp8_opts *opts);

/* Makes the layers multiply bf16 operands again and removes the magnitudes. Layers without fp8 stay as they are. Do not call it
 * while a trainer has the module. */
TREK_API trek_status trek_fp8_disable(trek_module *module);

TREK_END

#endif
