/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence of an LSTM, and its gradient. */
#include "tensor/cuda/recurrent/recurrent.cuh"

/* c is kept in the wide type between the steps. */
template <typename T, typename W> struct lstm_layer {
    enum { GATES = 4, KEPT = 5, PARTS = 2, BIAS = 0, INITIAL = 2, WIDE = 3, HAS_Y = 0 };

    static __device__ __forceinline__ W forward(const trek_step &s, const trek_forward_step<T, W> &a, int64_t row, int64_t j,
                                                W *v)
    {
        const int64_t n = s.hidden, at = s.at(row), i = row * n + j;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            W x = trek_get(a.gates[(at * 4 + k) * n + j]) + a.products[(row * 4 + k) * n + j];
            v[k] = k == 2 ? trek_squash(x) : trek_gate(x);
        }
        v[4] = v[1] * a.wide[i] + v[0] * v[2];
        W result = v[3] * trek_squash(v[4]);
        a.wide[i] = v[4];
        a.h[i] = trek_store<T>::of(result);
        return result;
    }

    /* Afterwards dh is 0. */
    static __device__ __forceinline__ void backward(const trek_step &s, const trek_backward_step<T, W> &a, int64_t row, int64_t j,
                                                    W *v)
    {
        const int64_t n = s.hidden, at = s.at(row), e = row * n + j;
        const W *k = a.kept + at * 5 * n + j;
        W i = k[0], f = k[n], g = k[2 * n], o = k[3 * n], cell = trek_squash(k[4 * n]);
        W c = s.begins(row) ? a.initial ? trek_get(a.initial[e]) : (W)0 : a.kept[(s.before(row) * 5 + 4) * n + j];
        W dy = a.dh[e] + (a.grad ? trek_get(a.grad[at * n + j]) : (W)0), dcell = a.dc[e] + dy * o * (1 - cell * cell);
        v[0] = dcell * g * i * (1 - i);
        v[1] = dcell * c * f * (1 - f);
        v[2] = dcell * i * (1 - g * g);
        v[3] = dy * cell * o * (1 - o);
        a.dc[e] = dcell * f;
        a.dh[e] = 0;
    }
};

extern "C" void trek_cuda_register_lstm(trek_backend *backend)
{
    recurrent_register<lstm_layer>(backend, TREK_OP_lstm, TREK_OP_lstm_backward);
}
