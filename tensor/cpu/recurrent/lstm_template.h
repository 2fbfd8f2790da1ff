/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of an LSTM for one real type REAL, with suffix R(name). Included by lstm.c. */

/* Computes one row's step. kept: [5 hidden], at first the products of h; afterwards i, f, g, o and c. */
static void R(lstm_cell)(int64_t n, const REAL *gates, REAL *kept, REAL *c, REAL *h, REAL *y)
{
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

/* Computes rows [begin, end) for all steps. The state's output contains the current h and c. */
static void R(lstm_forward_rows)(void *arg, int64_t begin, int64_t end)
{
    recurrent *r = arg;
    trek_tensor *const *out = r->call->outputs;
    const int64_t n = r->hidden, rows = r->rows;
    const bool keep = r->call->attrs.i[1];
    const REAL *gates = (const REAL *)(const void *)r->call->inputs[0]->data;
    REAL *h = (REAL *)(void *)out[1]->data, *c = h + rows * n, *y = (REAL *)(void *)out[0]->data;
    for (int64_t s = 0; s < r->steps; s++) {
        int64_t t = time_of(r, s);
        REAL *kept = keep ? (REAL *)(void *)out[2]->data + t * rows * 5 * n : r->spare;
        if (any_has_step(r, begin, end, t))
            TREK_ISA_NAME(trek_recurrent_product)(r, begin, end, h + begin * n, n, kept + begin * 5 * n, 5 * n);
        for (int64_t row = begin; row < end; row++) {
            REAL *to = y + (t * rows + row) * n;
            if (has_step(r, row, t)) {
                R(lstm_cell)(n, gates + (t * rows + row) * 4 * n, kept + row * 5 * n, c + row * n, h + row * n, to);
                continue;
            }
            memset(to, 0, (size_t)n * sizeof *to);
            memset(kept + row * 5 * n, 0, (size_t)(5 * n) * sizeof *kept);
        }
    }
}

/* Computes one row's step backward: dh and dc are at first the gradients of its results. Afterwards dc is that of its
 * initial state, and dh is 0, to which the product is added. */
static void R(lstm_cell_backward)(int64_t n, const REAL *grad, const REAL *kept, const REAL *before, REAL *dh, REAL *dc, REAL *d)
{
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

static void R(lstm_backward_rows)(void *arg, int64_t begin, int64_t end)
{
    recurrent *r = arg;
    const trek_tensor *grad = r->call->inputs[2], *c0 = r->call->inputs[4];
    const int64_t n = r->hidden, rows = r->rows;
    const REAL *kept = (const REAL *)(const void *)r->call->inputs[1]->data;
    REAL *d = (REAL *)(void *)r->call->outputs[0]->data, *dh = (REAL *)(void *)r->call->outputs[1]->data, *dc = dh + rows * n;
    for (int64_t s = r->steps - 1; s >= 0; s--) {
        int64_t t = time_of(r, s), before = r->reverse ? t + 1 : t - 1;
        for (int64_t row = begin; row < end; row++) {
            int64_t at = t * rows + row;
            if (!has_step(r, row, t)) {
                memset(d + at * 4 * n, 0, (size_t)(4 * n) * sizeof *d);
                continue;
            }
            const REAL *c = begins_at(r, row, t) ? c0 ? (const REAL *)(const void *)c0->data + row * n : r->zeros
                                                 : kept + ((before * rows + row) * 5 + 4) * n;
            R(lstm_cell_backward)(n, grad ? (const REAL *)(const void *)grad->data + at * n : r->zeros, kept + at * 5 * n, c,
                                  dh + row * n, dc + row * n, d + at * 4 * n);
        }
        if (any_has_step(r, begin, end, t))
            TREK_ISA_NAME(trek_recurrent_product)(r, begin, end, d + (t * rows + begin) * 4 * n, 4 * n, dh + begin * n, n);
    }
}
