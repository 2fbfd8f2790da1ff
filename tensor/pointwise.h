/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of element-wise functions, for their kernels, their derivatives and their ONNX nodes. */
#ifndef TREK_TENSOR_POINTWISE_H
#define TREK_TENSOR_POINTWISE_H

#define TREK_SELU_SCALE 1.0507009873554804934193349852946
#define TREK_SELU_ALPHA 1.6732632423543772848170429916717

#endif
