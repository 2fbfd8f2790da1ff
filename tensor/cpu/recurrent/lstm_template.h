/* SPDX-License-Identifier: Apache-2.0 */
/* The cells of an LSTM for one real type REAL, with suffix R(name). Included by lstm.c. */

/* Computes one row's step. kept: [5 hidden], at first the products of h; afterwards i, f, g, o and c. */
static inline void R(cell)(const recurrent *r, int64_t row, const REAL *gates, REAL *kept, REAL *y)
{
    const int64_t n = r->hidden;
    REAL *h = (REAL *)(void *)r->call->outputs[1]->data + row * n, *c = h + r->rows * n;
    TREK_INDEPENDENT
    for (int64_t j = 0; j < n; j++) {
        REAL i = R(trek_sigmoid)(gates[j] + kept[j]), f = R(trek_sigmoid)(gates[n + j] + kept[n + j]);
        REAL g = R(trek_tanh)(gates[2 * n + j] + kept[2 * n + j]), o = R(trek_sigmoid)(gates[3 * n + j] + kept[3 * n + j]);
        REAL cell = f * c[j] + i * g;
        kept[j] = i;
        kept[n + j] = f;
        kept[2 * n + j] = g;
        kept[3 * n + j] = o;
        kept[4 * n + j] = cell;
        c[j] = cell;
        h[j] = y[j] = o * R(trek_tanh)(cell);
    }
}

/* Computes one row's step backward: dh and dc are at first the gradients of its results. Afterwards dc is that of its
 * initial state, and dh is 0, to which the product is added. */
static inline void R(cell_backward)(const recurrent *r, int64_t row, int64_t t, const REAL *kept, REAL *dh)
{
    const trek_tensor *const *in = (const trek_tensor *const *)r->call->inputs;
    const int64_t n = r->hidden, at = t * r->rows + row;
    const REAL *grad = R(row_of)(r, in[2], at);
    const REAL *before = begins_at(r, row, t) ? R(row_of)(r, in[4], row)
                                              : (const REAL *)(const void *)in[1]->data + (before_of(r, row, t) * 5 + 4) * n;
    REAL *dc = dh + r->rows * n, *d = (REAL *)(void *)r->call->outputs[0]->data + at * 4 * n;
    TREK_INDEPENDENT
    for (int64_t j = 0; j < n; j++) {
        REAL i = kept[j], f = kept[n + j], g = kept[2 * n + j], o = kept[3 * n + j], cell = R(trek_tanh)(kept[4 * n + j]);
        REAL dy = grad[j] + dh[j], dcell = dc[j] + dy * o * (1 - cell * cell);
        d[j] = dcell * g * i * (1 - i);
        d[n + j] = dcell * before[j] * f * (1 - f);
        d[2 * n + j] = dcell * i * (1 - g * g);
        d[3 * n + j] = dy * cell * o * (1 - o);
        dc[j] = dcell * f;
        dh[j] = 0;
    }
}
