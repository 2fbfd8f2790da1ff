/* SPDX-License-Identifier: Apache-2.0 */
/* References of 8-bit products. */
#include <math.h>
#include <string.h>

#include "tensor/fp8.h"
#include "tests/ops/suite.h"
#include "tests/support/fp8.h"

#define REFERENCE(name) int reference_##name(const op_array *const *in, int n, const trek_attrs *a, op_array *out)

static double as_f32(double bits)
{
    uint32_t word = (uint32_t)bits;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

REFERENCE(fp8_quantise)
{
    const op_array *x = in[0], *record = n > 1 ? in[1] : NULL;
    bool wide = a->i[0] == TREK_E5M2;
    int64_t columns = x->sizes[x->ndim - 1], rows = columns ? x->numel / columns : 0, one = 1;
    double magnitude = 0;
    for (int d = 0; !columns && d < x->ndim - 1; d++)
        rows = (d ? rows : 1) * x->sizes[d];
    for (int64_t k = a->i[2] & TREK_FP8_FROZEN ? 0 : 1; record && k < record->sizes[1]; k++)
        magnitude = fmax(magnitude, as_f32(record->v[a->i[1] * record->sizes[1] + k]));
    for (int64_t i = 0; magnitude == 0 && i < x->numel; i++)
        if (!isfinite(x->v[i]))
            magnitude = NAN;
    for (int64_t i = 0, known = magnitude != 0; !known && i < x->numel; i++)
        magnitude = fmax(magnitude, fabs(x->v[i]));
    double scale = test_fp8_scale(wide, magnitude, (int)a->i[3]);
    array_make(&out[0], TREK_U8, 2, (const int64_t[2]){ rows, columns });
    memset(&out[1], 0, sizeof out[1]);
    if (a->i[2] & TREK_FP8_TURNED)
        array_make(&out[1], TREK_U8, 2, (const int64_t[2]){ columns, rows });
    array_make(&out[2], TREK_F32, 1, &one);
    out[2].v[0] = 1 / scale;
    for (int64_t i = 0; i < x->numel; i++) {
        out[0].v[i] = test_fp8_nearest(wide, isfinite(x->v[i]) ? fmax(-1e9, fmin(1e9, x->v[i] * scale)) : x->v[i]);
        if (out[1].v)
            out[1].v[i % columns * rows + i / columns] = out[0].v[i];
    }
    return 3;
}

REFERENCE(fp8_product)
{
    const op_array *x = in[0], *y = in[1], *bias = n > 4 ? in[4] : NULL;
    int64_t rows = x->sizes[0], columns = y->sizes[0], k = x->sizes[1];
    bool x_wide = a->i[0] == TREK_E5M2, y_wide = a->i[1] == TREK_E5M2;
    array_make(&out[0], (trek_dtype)a->i[2], 2, (const int64_t[2]){ rows, columns });
    array_scaled(&out[0]);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            int64_t at = r * columns + c;
            for (int64_t i = 0; i < k; i++) {
                double term = test_fp8_number(x_wide, (int)x->v[r * k + i]) * test_fp8_number(y_wide, (int)y->v[c * k + i]) *
                    in[2]->v[0] * in[3]->v[0];
                out[0].v[at] += term;
                out[0].scale[at] += fabs(term);
            }
            out[0].v[at] += bias ? bias->v[c] : 0;
            out[0].scale[at] += bias ? fabs(bias->v[c]) : 0;
        }
    return 1;
}
