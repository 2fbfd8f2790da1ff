/* SPDX-License-Identifier: Apache-2.0 */
/* Makes columns of images, for elements of type TREK_WORD. Included by conv_columns.c. */
static void TREK_UNFOLD(const trek_conv *c, int64_t channels, const TREK_WORD *image, TREK_WORD *columns)
{
    enum { PIECE = 64 / sizeof(TREK_WORD) };
    const int64_t plane = c->height * c->width;
    const TREK_WORD *last = columns + channels * c->kernel_h * c->kernel_w * c->out_h * c->out_w;
    for (int64_t channel = 0; channel < channels; channel++, image += plane)
        for (int64_t ky = 0; ky < c->kernel_h; ky++)
            for (int64_t kx = 0; kx < c->kernel_w; kx++) {
                int64_t shift = kx * c->dilation_w - c->pad_w, begin, end;
                inside(c->width, c->out_w, c->stride_w, shift, &begin, &end);
                bool whole = c->stride_w == 1 && begin == 0 && end == c->out_w && c->out_w <= PIECE;
                for (int64_t y = 0; y < c->out_h; y++, columns += c->out_w) {
                    int64_t row = y * c->stride_h + ky * c->dilation_h - c->pad_h;
                    if (row < 0 || row >= c->height) {
                        memset(columns, 0, (size_t)c->out_w * sizeof(TREK_WORD));
                        continue;
                    }
                    const TREK_WORD *from = image + row * c->width + shift;
                    /* A short row is copied as a vector. What is written beyond it is written again, with the next row. */
                    if (whole && (row * c->width + shift + PIECE) <= plane && columns + PIECE <= last) {
                        memcpy(columns, from, PIECE * sizeof(TREK_WORD));
                        continue;
                    }
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

