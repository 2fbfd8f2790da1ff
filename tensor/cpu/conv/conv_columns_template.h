/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution by columns for one real type. Included by conv_columns.c. */
#include "tensor/cpu/vector.h"

/* Places [*begin, *end) of the output whose input `place * stride + shift` lies in [0, size). */
static void TREK_R(inside)(int64_t size, int64_t places, int64_t stride, int64_t shift, int64_t *begin, int64_t *end)
{
    *begin = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *end = size - shift <= 0 ? 0 : (size - shift + stride - 1) / stride;
    *end = *end > places ? places : *end;
    *begin = *begin > *end ? *end : *begin;
}

static void TREK_R(unfold)(const trek_conv *c, int64_t channels, const T *image, T *columns)
{
    for (int64_t channel = 0; channel < channels; channel++, image += c->height * c->width)
        for (int64_t ky = 0; ky < c->kernel_h; ky++)
            for (int64_t kx = 0; kx < c->kernel_w; kx++) {
                int64_t shift = kx * c->dilation_w - c->pad_w, begin, end;
                TREK_R(inside)(c->width, c->out_w, c->stride_w, shift, &begin, &end);
                for (int64_t y = 0; y < c->out_h; y++, columns += c->out_w) {
                    int64_t row = y * c->stride_h + ky * c->dilation_h - c->pad_h;
                    if (row < 0 || row >= c->height) {
                        memset(columns, 0, (size_t)c->out_w * sizeof(T));
                        continue;
                    }
                    const T *from = image + row * c->width + shift;
                    for (int64_t x = 0; x < begin; x++)
                        columns[x] = 0;
                    if (c->stride_w == 1)
                        for (int64_t x = begin; x < end; x++)
                            columns[x] = from[x];
                    else
                        for (int64_t x = begin; x < end; x++)
                            columns[x] = from[x * c->stride_w];
                    for (int64_t x = end; x < c->out_w; x++)
                        columns[x] = 0;
                }
            }
}

static void TREK_R(fold)(const trek_conv *c, int64_t channels, const T *columns, T *image)
{
    for (int64_t channel = 0; channel < channels; channel++, image += c->height * c->width)
        for (int64_t ky = 0; ky < c->kernel_h; ky++)
            for (int64_t kx = 0; kx < c->kernel_w; kx++) {
                int64_t shift = kx * c->dilation_w - c->pad_w, begin, end;
                TREK_R(inside)(c->width, c->out_w, c->stride_w, shift, &begin, &end);
                for (int64_t y = 0; y < c->out_h; y++, columns += c->out_w) {
                    int64_t row = y * c->stride_h + ky * c->dilation_h - c->pad_h;
                    if (row < 0 || row >= c->height)
                        continue;
                    T *to = image + row * c->width + shift;
                    if (c->stride_w == 1)
                        for (int64_t x = begin; x < end; x++)
                            to[x] += columns[x];
                    else
                        for (int64_t x = begin; x < end; x++)
                            to[x * c->stride_w] += columns[x];
                }
            }
}
