/* SPDX-License-Identifier: Apache-2.0 */
/* The cells of a GRU for one real type REAL, with suffix R(name). Included by gru.c. */

/* Computes one row's step. kept: [4 hidden], at first the products of h; afterwards r, z, n and the products' part of
 * n. */
static inline void R(cell)(const recurrent *layer, int64_t row, const REAL *gates, REAL *kept, REAL *y)
{
    const int64_t size = layer->hidden;
    const REAL *bias = R(row_of)(layer, layer->call->inputs[2], 0);
    REAL *h = (REAL *)(void *)layer->call->outputs[1]->data + row * size;
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

/* Computes one row's step backward: dh is at first the gradient of its result, and afterwards what reaches h other
 * than through the product, which is added to it. */
static inline void R(cell_backward)(const recurrent *layer, int64_t row, int64_t t, const REAL *kept, REAL *dh)
{
    const trek_tensor *const *in = (const trek_tensor *const *)layer->call->inputs;
    trek_tensor *const *out = layer->call->outputs;
    const int64_t size = layer->hidden, at = t * layer->rows + row;
    const REAL *grad = R(row_of)(layer, in[3], at);
    const REAL *h = begins_at(layer, row, t) ? R(row_of)(layer, in[5], row)
                                             : (const REAL *)(const void *)in[2]->data + before_of(layer, row, t) * size;
    REAL *d_gates = (REAL *)(void *)out[0]->data + at * 3 * size, *d_product = (REAL *)(void *)out[1]->data + at * 3 * size;
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
