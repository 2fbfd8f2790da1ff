/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence of an LSTM, and its gradient. */
#include "tensor/cuda/recurrent/recurrent.cuh"

/* c is kept in the wide type between the steps; h has the dtype of the products. kept NULL: not needed. */
template <typename T, typename W>
static __global__ void lstm_cell_kernel(trek_step s, const T *gates, const W *products, W *c, T *h, T *y, W *kept)
{
    const int64_t n = s.hidden, count = s.rows * n;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / n, j = i % n, at = s.at(row);
        W v[5] = { 0, 0, 0, 0, 0 }, result = 0;
        if (s.has(row)) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                W x = trek_get(gates[(at * 4 + k) * n + j]) + products[(row * 4 + k) * n + j];
                v[k] = k == 2 ? trek_squash(x) : trek_gate(x);
            }
            v[4] = v[1] * c[i] + v[0] * v[2];
            result = v[3] * trek_squash(v[4]);
            c[i] = v[4];
            h[i] = trek_store<T>::of(result);
        }
        y[at * n + j] = trek_store<T>::of(result);
        for (int k = 0; kept && k < 5; k++)
            kept[(at * 5 + k) * n + j] = v[k];
    }
}

template <trek_dtype D> static trek_status forward(const trek_op_call *call)
{
    typedef typename trek_element<D>::type T;
    typedef typename trek_wide<T>::type W;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_recurrence r(call, queue, call->inputs[0], call->inputs[1], trek_input_of(call, 4));
    const int64_t n = r.elements();
    trek_dense gates, h0, c0, y, state, kept;
    trek_held c, products;
    TRY(gates.read(call, queue, call->inputs[0]));
    TRY(h0.read(call, queue, trek_input_of(call, 2)));
    TRY(c0.read(call, queue, trek_input_of(call, 3)));
    TRY(y.write(queue, call->outputs[0]));
    TRY(state.write(queue, call->outputs[1]));
    TRY(kept.write(queue, call->outputs[2]));
    TRY(c.take(queue, (size_t)n * sizeof(W)));
    TRY(products.take(queue, (size_t)(4 * n) * sizeof(W)));
    TRY(r.check_lengths());
    TRY(r.copy(state.as<T>(), (const T *)h0.as<T>()));
    TRY(r.copy(c.as<W>(), (const T *)c0.as<T>()));
    for (int64_t s = 0; s < r.step.steps && n > 0; s++) {
        TRY(r.forward(state.data, products.as<W>()));
        TRY(trek_launch(call, queue, trek_loop(n), lstm_cell_kernel<T, W>, r.at(s), (const T *)gates.as<T>(),
                        (const W *)products.as<W>(), c.as<W>(), state.as<T>(), y.as<T>(),
                        call->attrs.i[1] ? kept.as<W>() : (W *)NULL));
    }
    TRY(r.copy(state.as<T>() + n, (const W *)c.as<W>()));
    TRY(y.finish(call, call->outputs[0]));
    TRY(state.finish(call, call->outputs[1]));
    return kept.finish(call, call->outputs[2]);
}

/* dh and dc are at first the gradients of the step's results; afterwards dc is that of its initial state, and dh is
 * 0. grad NULL: zeros. */
template <typename T, typename W>
static __global__ void lstm_cell_backward_kernel(trek_step s, const T *grad, const W *kept, const T *c0, W *dh, W *dc, T *d)
{
    const int64_t n = s.hidden, count = s.rows * n;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < count; e += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = e / n, j = e % n, at = s.at(row);
        W v[4] = { 0, 0, 0, 0 };
        if (s.has(row)) {
            const W *k = kept + at * 5 * n + j;
            W i = k[0], f = k[n], g = k[2 * n], o = k[3 * n], cell = trek_squash(k[4 * n]);
            W c = s.begins(row) ? c0 ? trek_get(c0[e]) : (W)0 : kept[(s.before(row) * 5 + 4) * n + j];
            W dy = dh[e] + (grad ? trek_get(grad[at * n + j]) : (W)0), dcell = dc[e] + dy * o * (1 - cell * cell);
            v[0] = dcell * g * i * (1 - i);
            v[1] = dcell * c * f * (1 - f);
            v[2] = dcell * i * (1 - g * g);
            v[3] = dy * cell * o * (1 - o);
            dc[e] = dcell * f;
            dh[e] = 0;
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            d[(at * 4 + k) * n + j] = trek_store<T>::of(v[k]);
    }
}

template <trek_dtype D> static trek_status backward(const trek_op_call *call)
{
    typedef typename trek_element<D>::type T;
    typedef typename trek_wide<T>::type W;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_recurrence r(call, queue, call->inputs[1], call->inputs[0], trek_input_of(call, 5));
    const int64_t n = r.elements();
    trek_dense kept, grad, grad_state, c0, d, state;
    trek_held sums;
    TRY(kept.read(call, queue, call->inputs[1]));
    TRY(grad.read(call, queue, trek_input_of(call, 2)));
    TRY(grad_state.read(call, queue, trek_input_of(call, 3)));
    TRY(c0.read(call, queue, trek_input_of(call, 4)));
    TRY(d.write(queue, call->outputs[0]));
    TRY(state.write(queue, call->outputs[1]));
    TRY(sums.take(queue, (size_t)(2 * n) * sizeof(W)));
    W *dh = sums.as<W>(), *dc = dh ? dh + n : NULL;
    const T *given = grad_state.as<T>();
    TRY(r.check_lengths());
    TRY(r.copy(dh, given));
    TRY(r.copy(dc, given ? given + n : given));
    for (int64_t s = r.step.steps - 1; s >= 0 && n > 0; s--) {
        trek_step at = r.at(s);
        TRY(trek_launch(call, queue, trek_loop(n), lstm_cell_backward_kernel<T, W>, at, (const T *)grad.as<T>(),
                        (const W *)kept.as<W>(), (const T *)c0.as<T>(), dh, dc, d.as<T>()));
        TRY(r.backward(d.as<T>() + at.t * 4 * n, dh));
    }
    TRY(r.copy(state.as<T>(), (const W *)dh));
    TRY(r.copy(state.as<T>() + n, (const W *)dc));
    TRY(d.finish(call, call->outputs[0]));
    return state.finish(call, call->outputs[1]);
}

template <trek_dtype D> static void enter(trek_backend *backend)
{
    backend->kernels[TREK_OP_lstm][D] = forward<D>;
    backend->kernels[TREK_OP_lstm_backward][D] = backward<D>;
}

extern "C" void trek_cuda_register_lstm(trek_backend *backend)
{
    enter<TREK_F32>(backend);
    enter<TREK_F64>(backend);
    enter<TREK_BF16>(backend);
    enter<TREK_F16>(backend);
}
