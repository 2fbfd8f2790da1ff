/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of recurrent layers: sizes, lengths, the product of a step, states, and the order of all this. A step
 * consists of a product and a kernel over the elements of the state; 16-bit products accumulate in f32. A layer is a
 * type Layer<T, W> of dtype T and wide type W (lstm.cu, gru.cu) with
 *   GATES, KEPT      numbers of each element in the sequence, and those kept for the gradient
 *   PARTS            tensors of the state; h is the first
 *   BIAS             the input of forward that is a bias of the product; 0: none
 *   INITIAL, WIDE    inputs of forward: the initial h, and what is kept in the wide type between the steps
 *   HAS_Y            backward gets the results as input 2, and gives the product's gradient as output 1
 *   forward          computes an element's step: its result, and what is kept of it in v [KEPT]
 *   backward         computes an element's step backward: the gradients of its gates in v, and behind them that of
 *                    the product's last gate where HAS_Y is set */
#ifndef TREK_TENSOR_CUDA_RECURRENT_CUH
#define TREK_TENSOR_CUDA_RECURRENT_CUH

#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/products/blas.h"


__device__ __forceinline__ float trek_gate(float x)
{
    float e = expf(-fabsf(x)); /* never overflows */
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}
__device__ __forceinline__ double trek_gate(double x)
{
    double e = exp(-fabs(x));
    return (x < 0 ? e : 1.0) / (1.0 + e);
}
__device__ __forceinline__ float trek_squash(float x) { return tanhf(x); }
__device__ __forceinline__ double trek_squash(double x) { return tanh(x); }

/* The element of the state that a thread handles in the step at time t. */
struct trek_step {
    int64_t t, steps, rows, hidden;
    bool reverse;
    trek_indices lengths; /* x is NULL if all rows have all steps */
    __device__ __forceinline__ bool has(int64_t row) const { return !lengths.x || t < lengths[row]; }
    __device__ __forceinline__ bool begins(int64_t row) const
    {
        return reverse ? t == (lengths.x ? lengths[row] : steps) - 1 : t == 0;
    }
    __device__ __forceinline__ int64_t at(int64_t row) const { return t * rows + row; }
    __device__ __forceinline__ int64_t before(int64_t row) const { return (reverse ? t + 1 : t - 1) * rows + row; }
};

/* Copies `from` (NULL: zeros) to `to` in another dtype. */
template <typename O, typename T> static __global__ void recurrent_copy_kernel(O *to, const T *from, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        to[i] = from ? trek_store<O>::of(trek_get(from[i])) : trek_store<O>::of(0.0f);
}

static __global__ void recurrent_lengths_kernel(trek_indices lengths, int64_t rows, int64_t steps, trek_cuda_fault_record *faults,
                                                int op)
{
    for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += (int64_t)gridDim.x * blockDim.x)
        if (lengths[row] < 0 || lengths[row] > steps)
            trek_note_fault(faults, op, TREK_CUDA_FAULT_LENGTH, lengths[row], row, steps);
}

struct trek_recurrence {
    const trek_op_call *call;
    trek_cuda_queue *queue;
    const trek_tensor *weight;
    trek_step step; /* without its time */
    trek_dtype dtype, wide;

    trek_recurrence(const trek_op_call *c, trek_cuda_queue *q, const trek_tensor *sequence, const trek_tensor *w,
                    const trek_tensor *lengths)
        : call(c), queue(q), weight(w), dtype((trek_dtype)w->dtype), wide(w->dtype == TREK_F64 ? TREK_F64 : TREK_F32)
    {
        step = { 0, sequence->sizes[0], sequence->sizes[1], w->sizes[1], c->attrs.i[0] != 0, { NULL, 0, TREK_I64 } };
        if (lengths)
            step.lengths = { lengths->data, lengths->strides[0], lengths->dtype };
    }

    int64_t elements() const { return step.rows * step.hidden; }

    trek_status check_lengths() const
    {
        if (!step.lengths.x || step.rows == 0)
            return TREK_OK;
        return trek_launch(call, queue, trek_loop(step.rows), recurrent_lengths_kernel, step.lengths, step.rows, step.steps,
                           queue->device->faults_device, (int)call->op->id);
    }

    /* Returns the s-th step in forward order. */
    trek_step at(int64_t s) const
    {
        trek_step one = step;
        one.t = step.reverse ? step.steps - 1 - s : s;
        return one;
    }

    template <typename O, typename T> trek_status copy(O *to, const T *from) const
    {
        if (elements() == 0)
            return TREK_OK;
        return trek_launch(call, queue, trek_loop(elements()), recurrent_copy_kernel<O, T>, to, from, elements());
    }

    /* c [rows, gates hidden] = h weight^T */
    trek_status forward(const void *h, void *c) const
    {
        trek_cuda_gemm g = {};
        g.m = step.rows, g.n = weight->sizes[0], g.k = step.hidden;
        g.a = h, g.a_row = step.hidden, g.a_col = 1;
        g.b = weight->data, g.b_row = weight->strides[1], g.b_col = weight->strides[0];
        g.c = c, g.c_row = g.n, g.c_col = 1;
        g.dtype = dtype, g.c_dtype = wide;
        return trek_cuda_gemm_run(call, queue, &g);
    }

    /* dh [rows, hidden] += d weight */
    trek_status backward(const void *d, void *dh) const
    {
        trek_cuda_gemm g = {};
        g.m = step.rows, g.n = step.hidden, g.k = weight->sizes[0];
        g.a = d, g.a_row = g.k, g.a_col = 1;
        g.b = weight->data, g.b_row = weight->strides[0], g.b_col = weight->strides[1];
        g.c = dh, g.c_row = step.hidden, g.c_col = 1;
        g.dtype = dtype, g.c_dtype = wide;
        g.accumulate = true;
        return trek_cuda_gemm_run(call, queue, &g);
    }
};

template <typename T, typename W> struct trek_forward_step {
    const T *gates, *bias; /* bias, kept NULL: none */
    const W *products;     /* of h */
    W *wide;               /* what is kept in the wide type between the steps */
    T *h, *y;              /* h has the dtype of the products */
    W *kept;
};

template <typename Layer, typename T, typename W>
static __global__ void recurrent_forward_kernel(trek_step s, trek_forward_step<T, W> a)
{
    const int64_t n = s.hidden, count = s.rows * n;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / n, j = i % n, at = s.at(row);
        W v[Layer::KEPT], result = 0;
#pragma unroll
        for (int k = 0; k < Layer::KEPT; k++)
            v[k] = 0;
        if (s.has(row))
            result = Layer::forward(s, a, row, j, v);
        a.y[at * n + j] = trek_store<T>::of(result);
        for (int k = 0; a.kept && k < Layer::KEPT; k++)
            a.kept[(at * Layer::KEPT + k) * n + j] = v[k];
    }
}

template <typename T, typename W> struct trek_backward_step {
    const T *grad;         /* NULL: zeros */
    const W *kept;
    const T *y, *initial;  /* y: of layers with HAS_Y; initial NULL: zeros */
    /* At first the gradients of the step's results, afterwards those of its initial state, without what the product
     * adds to dh. */
    W *dh, *dc;
    T *d_gates, *d_product; /* one tensor, unless the layer has HAS_Y */
};

template <typename Layer, typename T, typename W>
static __global__ void recurrent_backward_kernel(trek_step s, trek_backward_step<T, W> a)
{
    const int64_t n = s.hidden, count = s.rows * n;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / n, j = i % n, at = s.at(row);
        W v[Layer::GATES + 1];
#pragma unroll
        for (int k = 0; k <= Layer::GATES; k++)
            v[k] = 0;
        if (s.has(row))
            Layer::backward(s, a, row, j, v);
#pragma unroll
        for (int k = 0; k < Layer::GATES; k++) {
            a.d_gates[(at * Layer::GATES + k) * n + j] = trek_store<T>::of(v[k]);
            if (Layer::HAS_Y)
                a.d_product[(at * Layer::GATES + k) * n + j] = trek_store<T>::of(v[k < Layer::GATES - 1 ? k : k + 1]);
        }
    }
}

template <template <typename, typename> class Layer, trek_dtype D> static trek_status recurrent_forward(const trek_op_call *call)
{
    typedef typename trek_element<D>::type T;
    typedef typename trek_wide<T>::type W;
    typedef Layer<T, W> layer;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_recurrence r(call, queue, call->inputs[0], call->inputs[1], trek_input_of(call, 4));
    const int64_t n = r.elements();
    trek_dense gates, bias, h0, wide0, y, state, kept;
    trek_held wide, products;
    TRY(gates.read(call, queue, call->inputs[0]));
    TRY(bias.read(call, queue, layer::BIAS != 0 ? trek_input_of(call, layer::BIAS) : NULL));
    TRY(h0.read(call, queue, trek_input_of(call, layer::INITIAL)));
    TRY(wide0.read(call, queue, trek_input_of(call, layer::WIDE)));
    TRY(y.write(queue, call->outputs[0]));
    TRY(state.write(queue, call->outputs[1]));
    TRY(kept.write(queue, call->outputs[2]));
    TRY(wide.take(queue, (size_t)n * sizeof(W)));
    TRY(products.take(queue, (size_t)(layer::GATES * n) * sizeof(W)));
    TRY(r.check_lengths());
    TRY(r.copy(state.as<T>(), (const T *)h0.as<T>()));
    TRY(r.copy(wide.as<W>(), (const T *)wide0.as<T>()));
    trek_forward_step<T, W> step = { gates.as<T>(), bias.as<T>(), products.as<W>(), wide.as<W>(), state.as<T>(), y.as<T>(),
                                     call->attrs.i[1] ? kept.as<W>() : (W *)NULL };
    for (int64_t s = 0; s < r.step.steps && n > 0; s++) {
        TRY(r.forward(state.data, products.as<W>()));
        TRY(trek_launch(call, queue, trek_loop(n), recurrent_forward_kernel<layer, T, W>, r.at(s), step));
    }
    if (layer::PARTS > 1)
        TRY(r.copy(state.as<T>() + n, (const W *)wide.as<W>()));
    TRY(y.finish(call, call->outputs[0]));
    TRY(state.finish(call, call->outputs[1]));
    return kept.finish(call, call->outputs[2]);
}

template <template <typename, typename> class Layer, trek_dtype D> static trek_status recurrent_backward(const trek_op_call *call)
{
    typedef typename trek_element<D>::type T;
    typedef typename trek_wide<T>::type W;
    typedef Layer<T, W> layer;
    enum { GRAD = 2 + layer::HAS_Y, STATE = 1 + layer::HAS_Y }; /* the input and the output behind those of y */
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_recurrence r(call, queue, call->inputs[1], call->inputs[0], trek_input_of(call, GRAD + 3));
    const int64_t n = r.elements();
    trek_dense kept, y, grad, grad_state, initial, d_gates, d_product, d_state;
    trek_held sums;
    TRY(kept.read(call, queue, call->inputs[1]));
    TRY(y.read(call, queue, layer::HAS_Y ? trek_input_of(call, 2) : NULL));
    TRY(grad.read(call, queue, trek_input_of(call, GRAD)));
    TRY(grad_state.read(call, queue, trek_input_of(call, GRAD + 1)));
    TRY(initial.read(call, queue, trek_input_of(call, GRAD + 2)));
    TRY(d_gates.write(queue, call->outputs[0]));
    if (layer::HAS_Y)
        TRY(d_product.write(queue, call->outputs[1]));
    TRY(d_state.write(queue, call->outputs[STATE]));
    TRY(sums.take(queue, (size_t)(layer::PARTS * n) * sizeof(W)));
    const T *given = grad_state.as<T>();
    W *dh = sums.as<W>();
    trek_backward_step<T, W> step = { grad.as<T>(), kept.as<W>(), y.as<T>(), initial.as<T>(), dh,
                                      dh ? dh + (layer::PARTS - 1) * n : dh,
                                      d_gates.as<T>(), layer::HAS_Y ? d_product.as<T>() : d_gates.as<T>() };
    TRY(r.check_lengths());
    for (int k = 0; k < layer::PARTS; k++)
        TRY(r.copy(dh ? dh + k * n : dh, given ? given + k * n : given));
    for (int64_t s = r.step.steps - 1; s >= 0 && n > 0; s--) {
        trek_step at = r.at(s);
        TRY(trek_launch(call, queue, trek_loop(n), recurrent_backward_kernel<layer, T, W>, at, step));
        TRY(r.backward(step.d_product + at.t * layer::GATES * n, dh));
    }
    for (int k = 0; k < layer::PARTS; k++)
        TRY(r.copy(d_state.as<T>() + k * n, (const W *)(dh ? dh + k * n : dh)));
    TRY(d_gates.finish(call, call->outputs[0]));
    if (layer::HAS_Y)
        TRY(d_product.finish(call, call->outputs[1]));
    return d_state.finish(call, call->outputs[STATE]);
}

template <template <typename, typename> class Layer, trek_dtype D>
static void recurrent_enter(trek_backend *backend, int forward, int backward)
{
    backend->kernels[forward][D] = recurrent_forward<Layer, D>;
    backend->kernels[backward][D] = recurrent_backward<Layer, D>;
}

template <template <typename, typename> class Layer>
static void recurrent_register(trek_backend *backend, int forward, int backward)
{
    recurrent_enter<Layer, TREK_F32>(backend, forward, backward);
    recurrent_enter<Layer, TREK_F64>(backend, forward, backward);
    recurrent_enter<Layer, TREK_BF16>(backend, forward, backward);
    recurrent_enter<Layer, TREK_F16>(backend, forward, backward);
}

#endif
