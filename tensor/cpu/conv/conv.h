/* SPDX-License-Identifier: Apache-2.0 */
/* The geometry of a convolution, and the methods to compute it. */
#ifndef TREK_TENSOR_CPU_CONV_CONV_H
#define TREK_TENSOR_CPU_CONV_CONV_H

#include "tensor/cpu/kernels.h"

/* x [images, channels, height, width], weight [filters, channels / groups, kernel_h, kernel_w],
 * y [images, filters, out_h, out_w]; all contiguous. */
/* Compared byte by byte (onednn_entry.c), so that it must have no padding. */
typedef struct trek_conv {
    trek_dtype dtype, result;       /* of both operands, and of the result: F32 or F64, also for a bias; for operands of BF16
                                     * (if their products are fast) the result is F32 or BF16, and dweight and a bias are F32 */
    int64_t images, channels, height, width, filters, kernel_h, kernel_w, out_h, out_w;
    int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups;
    int64_t group_channels, group_filters; /* channels and filters of one group */
} trek_conv;

/* Adds `parts` arrays of `count` elements in order, so that partial sums do not depend on the threads. */
static inline void trek_conv_sum_partials(trek_dtype dtype, void *to, const void *partials, int64_t parts, int64_t count)
{
    for (int64_t part = 0; part < parts; part++) {
        if (dtype == TREK_F64)
            for (int64_t i = 0; i < count; i++)
                ((double *)to)[i] = (part ? ((double *)to)[i] : 0) + ((const double *)partials)[part * count + i];
        else
            for (int64_t i = 0; i < count; i++)
                ((float *)to)[i] = (part ? ((float *)to)[i] : 0) + ((const float *)partials)[part * count + i];
    }
}

/* Adds each channel's bias to its plane of `places` elements. */
static inline void trek_conv_add_bias(trek_dtype dtype, int64_t channels, int64_t places, const void *bias, void *planes)
{
    for (int64_t channel = 0; channel < channels; channel++)
        for (int64_t i = channel * places; i < (channel + 1) * places; i++)
            if (dtype == TREK_F64)
                ((double *)planes)[i] += ((const double *)bias)[channel];
            else
                ((float *)planes)[i] += ((const float *)bias)[channel];
}

/* Shifts pixels against each other instead of copying them into columns. For stride 1 and small images or few
 * channels. */
bool TREK_ISA_NAME(trek_conv_direct_suits)(const trek_conv *c);
bool TREK_ISA_NAME(trek_conv_direct_weight_grad_suits)(const trek_conv *c);
trek_status TREK_ISA_NAME(trek_conv_direct)(const trek_conv *c, const void *x, const void *weight, const void *bias, void *y);
trek_status TREK_ISA_NAME(trek_conv_direct_weight_grad)(const trek_conv *c, const void *dy, const void *x, void *dweight);
/* Returns the convolution of dy whose result is dx; false if there is none (padding larger than the kernel). */
bool TREK_ISA_NAME(trek_conv_transposed)(const trek_conv *c, trek_conv *transposed);
/* Computes its weights: channels and filters exchanged, kernels rotated by 180 degrees. */
void TREK_ISA_NAME(trek_conv_turn_weight)(const trek_conv *c, const void *weight, void *turned);

/* Processes one image in each lane of a vector. For small images and few channels. */
bool TREK_ISA_NAME(trek_conv_batch_suits)(const trek_conv *c);
bool TREK_ISA_NAME(trek_conv_batch_weight_grad_suits)(const trek_conv *c);
trek_status TREK_ISA_NAME(trek_conv_batch)(const trek_conv *c, const void *x, const void *weight, const void *bias, void *y);
trek_status TREK_ISA_NAME(trek_conv_batch_weight_grad)(const trek_conv *c, const void *dy, const void *x, void *dweight);

/* Uses columns (im2col) and matrix products. For any convolution. */
trek_status TREK_ISA_NAME(trek_conv_columns)(const trek_conv *c, const void *x, const void *weight, const void *bias, void *y);
/* bias [channels], or NULL, is added to dx, for a transposed convolution. */
trek_status TREK_ISA_NAME(trek_conv_columns_input_grad)(const trek_conv *c, const void *dy, const void *weight, const void *bias,
                                                        void *dx);
trek_status TREK_ISA_NAME(trek_conv_columns_weight_grad)(const trek_conv *c, const void *dy, const void *x, void *dweight);
/* Copies one image [channels, height, width] to [channels * kernel_h * kernel_w, out_h * out_w]; and the transpose,
 * which adds. */
void TREK_ISA_NAME(trek_conv_unfold)(const trek_conv *c, int64_t channels, const void *image, void *columns);
void TREK_ISA_NAME(trek_conv_fold)(const trek_conv *c, int64_t channels, const void *columns, void *image);

#endif
