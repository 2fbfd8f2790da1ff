/* SPDX-License-Identifier: Apache-2.0 */
/* Max pooling of adjacent windows of 2 x 2 for one real type. This is the common case, in which branches that depend
 * on the data would cost more than everything else. Included by pool2d.c. */
#include "tensor/cpu/vector.h"

/* Computes one row of the output. `upper` and `lower` are rows of the input, `place` is the index of upper[0]. */
static void TREK_R(max_row_2x2)(const T *upper, const T *lower, int64_t width, int64_t place, int64_t count, T *y, int64_t *index)
{
    typedef TREK_R(trek_indices) I;
    I even, odd, offset, below = (I){ 0 } + (int32_t)width;
    for (int l = 0; l < W; l++) {
        even[l] = 2 * l;
        odd[l] = 2 * l + 1;
        offset[l] = 2 * l;
    }
    for (int64_t c = 0; c < count; c += W) {
        int n = count - c < W ? (int)(count - c) : W;
        trek_lanes first = TREK_R(lanes)(2 * n < W ? 2 * n : W), second = TREK_R(lanes)(2 * n > W ? 2 * n - W : 0);
        V a = TREK_R(load_part)(upper + 2 * c, first), b = TREK_R(load_part)(upper + 2 * c + W, second);
        V best = TREK_R(pick)(a, b, even), next = TREK_R(pick)(a, b, odd);
        I better = (next > best) | (next != next), at = better & 1;
        best = (V)(((I)next & better) | ((I)best & ~better));
        a = TREK_R(load_part)(lower + 2 * c, first), b = TREK_R(load_part)(lower + 2 * c + W, second);
        next = TREK_R(pick)(a, b, even);
        better = (next > best) | (next != next);
        at = (below & better) | (at & ~better);
        best = (V)(((I)next & better) | ((I)best & ~better));
        next = TREK_R(pick)(a, b, odd);
        better = (next > best) | (next != next);
        at = ((below + 1) & better) | (at & ~better);
        best = (V)(((I)next & better) | ((I)best & ~better));
        TREK_R(store_part)(y + c, TREK_R(lanes)(n), best);
        at += offset;
        for (int l = 0; l < n; l++)
            index[c + l] = place + 2 * c + at[l];
    }
}

/* The plane's width must fit into 31 bits. */
static void TREK_R(max_plane_2x2)(const pool_job *job, const T *x, T *y, int64_t *index)
{
    const int64_t width = job->width;
    for (int64_t row = 0; row < job->out_h; row++)
        TREK_R(max_row_2x2)(x + 2 * row * width, x + (2 * row + 1) * width, width, 2 * row * width, job->out_w,
                            y + row * job->out_w, index + row * job->out_w);
}
