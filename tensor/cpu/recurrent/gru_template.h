/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a GRU for one real type REAL, with suffix R(name). Included by gru.c. */

/* Computes one row's step. kept: [4 hidden], at first the products of h; afterwards r, z, n and the products' part of
 * n. */
static void R(gru_cell)(int64_t size, const REAL *gates, const REAL *bias, REAL *kept, REAL *h, REAL *y)
{
    TREK_INDEPENDENT
    for (int64_t j = 0; j < size; j++) {
        REAL r = R(trek_sigmoid)(gates[j] + (kept[j] + bias[j]));
        REAL z = R(trek_sigmoid)(gates[size + j] + (kept[size + j] + bias[size + j]));
        REAL product = kept[2 * size + j] + bias[2 * size + j], n = R(trek_tanh)(gates[2 * size + j] + r * product);
        kept[j] = r;
        kept[size + j] = z;
        kept[2 * size + j] = n;
        kept[3 * size + j] = product;
        h[j] = y[j] = n + z * (h[j] - n);
    }
}

/* Computes rows [begin, end) for all steps. The state's output contains the current h. */
static void R(gru_forward_rows)(void *arg, int64_t begin, int64_t end)
{
    recurrent *r = arg;
    trek_tensor *const *out = r->call->outputs;
    const trek_tensor *given = r->call->inputs[2];
    const int64_t n = r->hidden, rows = r->rows;
    const bool keep = r->call->attrs.i[1];
    const REAL *gates = (const REAL *)(const void *)r->call->inputs[0]->data;
    const REAL *bias = given ? (const REAL *)(const void *)given->data : r->zeros;
    REAL *h = (REAL *)(void *)out[1]->data, *y = (REAL *)(void *)out[0]->data;
    for (int64_t s = 0; s < r->steps; s++) {
        int64_t t = time_of(r, s);
        REAL *kept = keep ? (REAL *)(void *)out[2]->data + t * rows * 4 * n : r->spare;
        if (any_has_step(r, begin, end, t))
            TREK_ISA_NAME(trek_recurrent_product)(r, begin, end, h + begin * n, n, kept + begin * 4 * n, 4 * n);
        for (int64_t row = begin; row < end; row++) {
            REAL *to = y + (t * rows + row) * n;
            if (has_step(r, row, t)) {
                R(gru_cell)(n, gates + (t * rows + row) * 3 * n, bias, kept + row * 4 * n, h + row * n, to);
                continue;
            }
            memset(to, 0, (size_t)n * sizeof *to);
            memset(kept + row * 4 * n, 0, (size_t)(4 * n) * sizeof *kept);
        }
    }
}

/* Computes one row's step backward: dh is at first the gradient of its result, and afterwards what reaches h other
 * than through the product, which is added to it. */
static void R(gru_cell_backward)(int64_t size, const REAL *grad, const REAL *kept, const REAL *h, REAL *dh, REAL *d_gates,
                                 REAL *d_product)
{
    TREK_INDEPENDENT
    for (int64_t j = 0; j < size; j++) {
        REAL r = kept[j], z = kept[size + j], n = kept[2 * size + j], product = kept[3 * size + j];
        REAL dy = grad[j] + dh[j], dn = dy * (1 - z) * (1 - n * n);
        REAL dr = dn * product * r * (1 - r), dz = dy * (h[j] - n) * z * (1 - z);
        d_gates[j] = d_product[j] = dr;
        d_gates[size + j] = d_product[size + j] = dz;
        d_gates[2 * size + j] = dn;
        d_product[2 * size + j] = dn * r;
        dh[j] = dy * z;
    }
}

static void R(gru_backward_rows)(void *arg, int64_t begin, int64_t end)
{
    recurrent *r = arg;
    const trek_tensor *grad = r->call->inputs[3], *h0 = r->call->inputs[5];
    const int64_t n = r->hidden, rows = r->rows;
    const REAL *kept = (const REAL *)(const void *)r->call->inputs[1]->data;
    const REAL *y = (const REAL *)(const void *)r->call->inputs[2]->data;
    REAL *d_gates = (REAL *)(void *)r->call->outputs[0]->data, *d_product = (REAL *)(void *)r->call->outputs[1]->data;
    REAL *dh = (REAL *)(void *)r->call->outputs[2]->data;
    for (int64_t s = r->steps - 1; s >= 0; s--) {
        int64_t t = time_of(r, s), before = r->reverse ? t + 1 : t - 1;
        for (int64_t row = begin; row < end; row++) {
            int64_t at = t * rows + row;
            if (!has_step(r, row, t)) {
                memset(d_gates + at * 3 * n, 0, (size_t)(3 * n) * sizeof *d_gates);
                memset(d_product + at * 3 * n, 0, (size_t)(3 * n) * sizeof *d_product);
                continue;
            }
            const REAL *h = begins_at(r, row, t) ? h0 ? (const REAL *)(const void *)h0->data + row * n : r->zeros
                                                 : y + (before * rows + row) * n;
            R(gru_cell_backward)(n, grad ? (const REAL *)(const void *)grad->data + at * n : r->zeros, kept + at * 4 * n, h,
                                 dh + row * n, d_gates + at * 3 * n, d_product + at * 3 * n);
        }
        if (any_has_step(r, begin, end, t))
            TREK_ISA_NAME(trek_recurrent_product)(r, begin, end, d_product + (t * rows + begin) * 3 * n, 3 * n, dh + begin * n,
                                                  n);
    }
}
