/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence of a GRU, and its gradient. */
#include "tensor/cuda/recurrent/recurrent.cuh"

/* h is kept in the wide type between the steps, and in the dtype of the products. */
template <typename T, typename W> struct gru_layer {
    enum { GATES = 3, KEPT = 4, PARTS = 1, BIAS = 2, INITIAL = 3, WIDE = 3, HAS_Y = 1 };

    static __device__ __forceinline__ W forward(const trek_step &s, const trek_forward_step<T, W> &a, int64_t row, int64_t j,
                                                W *v)
    {
        const int64_t n = s.hidden, at = s.at(row), i = row * n + j;
        W x[3], p[3];
#pragma unroll
        for (int k = 0; k < 3; k++) {
            x[k] = trek_get(a.gates[(at * 3 + k) * n + j]);
            p[k] = a.products[(row * 3 + k) * n + j] + (a.bias ? trek_get(a.bias[k * n + j]) : (W)0);
        }
        v[0] = trek_gate(x[0] + p[0]);
        v[1] = trek_gate(x[1] + p[1]);
        v[2] = trek_squash(x[2] + v[0] * p[2]);
        v[3] = p[2];
        W result = v[2] + v[1] * (a.wide[i] - v[2]);
        a.wide[i] = result;
        a.h[i] = trek_store<T>::of(result);
        return result;
    }

    /* Afterwards dh is what reaches the earlier h other than through the product. */
    static __device__ __forceinline__ void backward(const trek_step &s, const trek_backward_step<T, W> &a, int64_t row, int64_t j,
                                                    W *v)
    {
        const int64_t n = s.hidden, at = s.at(row), e = row * n + j;
        const W *k = a.kept + at * 4 * n + j;
        W r = k[0], z = k[n], g = k[2 * n];
        W h = s.begins(row) ? a.initial ? trek_get(a.initial[e]) : (W)0 : trek_get(a.y[s.before(row) * n + j]);
        W dy = a.dh[e] + (a.grad ? trek_get(a.grad[at * n + j]) : (W)0);
        v[2] = dy * (1 - z) * (1 - g * g);
        v[0] = v[2] * k[3 * n] * r * (1 - r);
        v[1] = dy * (h - g) * z * (1 - z);
        v[3] = v[2] * r;
        a.dh[e] = dy * z;
    }
};

extern "C" void trek_cuda_register_gru(trek_backend *backend)
{
    recurrent_register<gru_layer>(backend, TREK_OP_gru, TREK_OP_gru_backward);
}
