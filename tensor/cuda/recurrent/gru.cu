/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrence of a GRU, and its gradient. */
#include "tensor/cuda/recurrent/recurrent.cuh"

/* h is kept in the wide type between the steps, and in the dtype of the products (rounded). bias, kept NULL: none. */
template <typename T, typename W>
static __global__ void gru_cell_kernel(trek_step s, const T *gates, const T *bias, const W *products, W *h, T *rounded, T *y,
                                       W *kept)
{
    const int64_t n = s.hidden, count = s.rows * n;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / n, j = i % n, at = s.at(row);
        W v[4] = { 0, 0, 0, 0 }, result = 0;
        if (s.has(row)) {
            W x[3], p[3];
#pragma unroll
            for (int k = 0; k < 3; k++) {
                x[k] = trek_get(gates[(at * 3 + k) * n + j]);
                p[k] = products[(row * 3 + k) * n + j] + (bias ? trek_get(bias[k * n + j]) : (W)0);
            }
            v[0] = trek_gate(x[0] + p[0]);
            v[1] = trek_gate(x[1] + p[1]);
            v[2] = trek_squash(x[2] + v[0] * p[2]);
            v[3] = p[2];
            result = v[2] + v[1] * (h[i] - v[2]);
            h[i] = result;
            rounded[i] = trek_store<T>::of(result);
        }
        y[at * n + j] = trek_store<T>::of(result);
        for (int k = 0; kept && k < 4; k++)
            kept[(at * 4 + k) * n + j] = v[k];
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
    trek_dense gates, bias, h0, y, state, kept;
    trek_held h, products;
    TRY(gates.read(call, queue, call->inputs[0]));
    TRY(bias.read(call, queue, trek_input_of(call, 2)));
    TRY(h0.read(call, queue, trek_input_of(call, 3)));
    TRY(y.write(queue, call->outputs[0]));
    TRY(state.write(queue, call->outputs[1]));
    TRY(kept.write(queue, call->outputs[2]));
    TRY(h.take(queue, (size_t)n * sizeof(W)));
    TRY(products.take(queue, (size_t)(3 * n) * sizeof(W)));
    TRY(r.check_lengths());
    TRY(r.copy(state.as<T>(), (const T *)h0.as<T>()));
    TRY(r.copy(h.as<W>(), (const T *)h0.as<T>()));
    for (int64_t s = 0; s < r.step.steps && n > 0; s++) {
        TRY(r.forward(state.data, products.as<W>()));
        TRY(trek_launch(call, queue, trek_loop(n), gru_cell_kernel<T, W>, r.at(s), (const T *)gates.as<T>(),
                        (const T *)bias.as<T>(), (const W *)products.as<W>(), h.as<W>(), state.as<T>(), y.as<T>(),
                        call->attrs.i[1] ? kept.as<W>() : (W *)NULL));
    }
    TRY(y.finish(call, call->outputs[0]));
    TRY(state.finish(call, call->outputs[1]));
    return kept.finish(call, call->outputs[2]);
}

/* dh is at first the gradient of the step's result, and afterwards what reaches the earlier h other than through the
 * product. grad, h0 NULL: zeros. */
template <typename T, typename W>
static __global__ void gru_cell_backward_kernel(trek_step s, const T *grad, const W *kept, const T *y, const T *h0, W *dh,
                                                T *d_gates, T *d_product)
{
    const int64_t n = s.hidden, count = s.rows * n;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < count; e += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = e / n, j = e % n, at = s.at(row);
        W v[3] = { 0, 0, 0 }, last = 0;
        if (s.has(row)) {
            const W *k = kept + at * 4 * n + j;
            W r = k[0], z = k[n], g = k[2 * n];
            W h = s.begins(row) ? h0 ? trek_get(h0[e]) : (W)0 : trek_get(y[s.before(row) * n + j]);
            W dy = dh[e] + (grad ? trek_get(grad[at * n + j]) : (W)0);
            v[2] = dy * (1 - z) * (1 - g * g);
            v[0] = v[2] * k[3 * n] * r * (1 - r);
            v[1] = dy * (h - g) * z * (1 - z);
            last = v[2] * r;
            dh[e] = dy * z;
        }
#pragma unroll
        for (int k = 0; k < 3; k++) {
            d_gates[(at * 3 + k) * n + j] = trek_store<T>::of(v[k]);
            d_product[(at * 3 + k) * n + j] = trek_store<T>::of(k < 2 ? v[k] : last);
        }
    }
}

template <trek_dtype D> static trek_status backward(const trek_op_call *call)
{
    typedef typename trek_element<D>::type T;
    typedef typename trek_wide<T>::type W;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_recurrence r(call, queue, call->inputs[1], call->inputs[0], trek_input_of(call, 6));
    const int64_t n = r.elements();
    trek_dense kept, y, grad, grad_state, h0, d_gates, d_product, d_state;
    trek_held sums;
    TRY(kept.read(call, queue, call->inputs[1]));
    TRY(y.read(call, queue, call->inputs[2]));
    TRY(grad.read(call, queue, trek_input_of(call, 3)));
    TRY(grad_state.read(call, queue, trek_input_of(call, 4)));
    TRY(h0.read(call, queue, trek_input_of(call, 5)));
    TRY(d_gates.write(queue, call->outputs[0]));
    TRY(d_product.write(queue, call->outputs[1]));
    TRY(d_state.write(queue, call->outputs[2]));
    TRY(sums.take(queue, (size_t)n * sizeof(W)));
    W *dh = sums.as<W>();
    TRY(r.check_lengths());
    TRY(r.copy(dh, (const T *)grad_state.as<T>()));
    for (int64_t s = r.step.steps - 1; s >= 0 && n > 0; s--) {
        trek_step at = r.at(s);
        TRY(trek_launch(call, queue, trek_loop(n), gru_cell_backward_kernel<T, W>, at, (const T *)grad.as<T>(),
                        (const W *)kept.as<W>(), (const T *)y.as<T>(), (const T *)h0.as<T>(), dh, d_gates.as<T>(),
                        d_product.as<T>()));
        TRY(r.backward(d_product.as<T>() + at.t * 3 * n, dh));
    }
    TRY(r.copy(d_state.as<T>(), (const W *)dh));
    TRY(d_gates.finish(call, call->outputs[0]));
    TRY(d_product.finish(call, call->outputs[1]));
    return d_state.finish(call, call->outputs[2]);
}

template <trek_dtype D> static void enter(trek_backend *backend)
{
    backend->kernels[TREK_OP_gru][D] = forward<D>;
    backend->kernels[TREK_OP_gru_backward][D] = backward<D>;
}

extern "C" void trek_cuda_register_gru(trek_backend *backend)
{
    enter<TREK_F32>(backend);
    enter<TREK_F64>(backend);
    enter<TREK_BF16>(backend);
    enter<TREK_F16>(backend);
}
