/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a recurrent layer for one real type REAL, with suffix R(name). Included by the layer's file after its
 * two cells, R(cell) and R(cell_backward), with GATES, KEPT, and in backward the outputs from 0 to D_PRODUCT that have
 * gradients of gates, of which the last is that of the product; the next output is that of the state. */

/* Computes rows [begin, end) for all steps. The state's output contains the current state, h first. */
static void R(forward_rows)(void *arg, int64_t begin, int64_t end)
{
    recurrent *r = arg;
    trek_tensor *const *out = r->call->outputs;
    const int64_t n = r->hidden, rows = r->rows;
    const bool keep = r->call->attrs.i[1];
    const REAL *gates = (const REAL *)(const void *)r->call->inputs[0]->data;
    REAL *h = (REAL *)(void *)out[1]->data, *y = (REAL *)(void *)out[0]->data;
    for (int64_t s = 0; s < r->steps; s++) {
        int64_t t = time_of(r, s);
        REAL *kept = keep ? (REAL *)(void *)out[2]->data + t * rows * KEPT * n : r->spare;
        if (any_has_step(r, begin, end, t))
            TREK_ISA_NAME(trek_recurrent_product)(r, begin, end, h + begin * n, n, kept + begin * KEPT * n, KEPT * n);
        for (int64_t row = begin; row < end; row++) {
            REAL *to = y + (t * rows + row) * n;
            if (has_step(r, row, t)) {
                R(cell)(r, row, gates + (t * rows + row) * GATES * n, kept + row * KEPT * n, to);
                continue;
            }
            memset(to, 0, (size_t)n * sizeof *to);
            memset(kept + row * KEPT * n, 0, (size_t)(KEPT * n) * sizeof *kept);
        }
    }
}

static void R(backward_rows)(void *arg, int64_t begin, int64_t end)
{
    recurrent *r = arg;
    const int64_t n = r->hidden, rows = r->rows;
    const REAL *kept = (const REAL *)(const void *)r->call->inputs[1]->data;
    REAL *d[D_PRODUCT + 1], *dh = (REAL *)(void *)r->call->outputs[D_PRODUCT + 1]->data;
    for (int k = 0; k <= D_PRODUCT; k++)
        d[k] = (REAL *)(void *)r->call->outputs[k]->data;
    for (int64_t s = r->steps - 1; s >= 0; s--) {
        int64_t t = time_of(r, s);
        for (int64_t row = begin; row < end; row++) {
            int64_t at = t * rows + row;
            if (has_step(r, row, t)) {
                R(cell_backward)(r, row, t, kept + at * KEPT * n, dh + row * n);
                continue;
            }
            for (int k = 0; k <= D_PRODUCT; k++)
                memset(d[k] + at * GATES * n, 0, (size_t)(GATES * n) * sizeof *d[k]);
        }
        if (any_has_step(r, begin, end, t))
            TREK_ISA_NAME(trek_recurrent_product)(r, begin, end, d[D_PRODUCT] + (t * rows + begin) * GATES * n, GATES * n,
                                                  dh + begin * n, n);
    }
}
