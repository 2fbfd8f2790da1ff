/* SPDX-License-Identifier: Apache-2.0 */
/* Adds columns into images, for one real type. Included by conv_columns.c. */
#include "tensor/cpu/vector.h"

static void TREK_R(fold)(const trek_conv *c, int64_t channels, const T *columns, T *image)
{
    for (int64_t channel = 0; channel < channels; channel++, image += c->height * c->width)
        for (int64_t ky = 0; ky < c->kernel_h; ky++)
            for (int64_t kx = 0; kx < c->kernel_w; kx++) {
                int64_t shift = kx * c->dilation_w - c->pad_w, begin, end;
                inside(c->width, c->out_w, c->stride_w, shift, &begin, &end);
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
