/* SPDX-License-Identifier: Apache-2.0 */
/* searchsorted and nonzero. */
#include "tensor/cuda/order/order.cuh"

namespace {

/* --- searchsorted --------------------------------------------------------------------------- */

struct sorted_lines {
    trek_places lines; /* without their own dimension; empty for one line */
    int64_t n, step, each; /* each: values of a line */
    bool right;
};

template <typename T>
__global__ void __launch_bounds__(256) search_kernel(int64_t *to, trek_places to_places, const T *x, trek_places x_places,
                                                     const T *sorted, sorted_lines s, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    const auto wanted = trek_get(x[x_places.offset(i)]);
    const T *line = sorted + (s.lines.ndim > 0 ? s.lines.offset(i / s.each) : 0);
    int64_t low = 0, high = s.n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const auto here = trek_get(line[middle * s.step]);
        if (s.right ? here > wanted : here >= wanted)
            high = middle;
        else
            low = middle + 1;
    }
    to[to_places.offset(i)] = low;
}

template <typename T> trek_status run_searchsorted(const trek_op_call *call)
{
    const trek_tensor *lines = call->inputs[0], *x = call->inputs[1], *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    sorted_lines s = { trek_places_of(lines, lines->ndim - 1), lines->sizes[lines->ndim - 1], lines->strides[lines->ndim - 1],
                       x->ndim > 0 ? x->sizes[x->ndim - 1] : 1, call->attrs.i[0] != 0 };
    return trek_launch(call, queue, trek_loop(out->numel), search_kernel<T>, (int64_t *)out->data, trek_places_of(out),
                       (const T *)x->data, trek_places_of(x), (const T *)lines->data, s, out->numel);
}

/* --- nonzero: a thread counts a chunk, one block finds where each begins, a thread writes a chunk ---- */

#define CHUNK 64

template <typename T>
__global__ void __launch_bounds__(256) count_kernel(const T *x, trek_places p, int64_t count, int64_t *counts)
{
    int64_t chunk = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, found = 0;
    if (chunk * CHUNK >= count)
        return;
    for (int64_t i = chunk * CHUNK; i < count && i < (chunk + 1) * CHUNK; i++)
        found += trek_get(x[p.offset(i)]) != 0;
    counts[chunk] = found;
}

/* One block. Replaces each number by the sum of those before it. */
__global__ void __launch_bounds__(1024) starts_kernel(int64_t *counts, int64_t chunks)
{
    TREK_SHARED(int64_t, sums, 1024);
    const int me = (int)threadIdx.x;
    const int64_t each = (chunks + 1023) / 1024, begin = me * each, end = begin + each < chunks ? begin + each : chunks;
    int64_t mine = 0;
    for (int64_t i = begin; i < end; i++)
        mine += counts[i];
    sums[me] = mine;
    __syncthreads();
    int64_t before = 0;
    for (int k = 0; k < me; k++)
        before += sums[k];
    for (int64_t i = begin; i < end; i++) {
        int64_t here = counts[i];
        counts[i] = before;
        before += here;
    }
}

template <typename T>
__global__ void __launch_bounds__(256) write_kernel(const T *x, trek_places p, int64_t count, const int64_t *starts, int64_t *to,
                                                    int64_t row, int64_t column)
{
    int64_t chunk = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (chunk * CHUNK >= count)
        return;
    int64_t at = starts[chunk];
    for (int64_t i = chunk * CHUNK; i < count && i < (chunk + 1) * CHUNK; i++) {
        if (!(trek_get(x[p.offset(i)]) != 0))
            continue;
        int64_t place = i;
        for (int d = p.ndim - 1; d >= 0; d--) {
            to[at * row + d * column] = place % p.sizes[d];
            place /= p.sizes[d];
        }
        at++;
    }
}

template <typename T> trek_status run_nonzero(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    const int64_t chunks = (x->numel - 1) / CHUNK + 1;
    trek_held held;
    TRY(held.take(queue, (size_t)chunks * sizeof(int64_t)));
    int64_t *counts = held.as<int64_t>();
    TRY(trek_launch(call, queue, trek_loop(chunks), count_kernel<T>, (const T *)x->data, trek_places_of(x), x->numel, counts));
    TRY(trek_launch(call, queue, trek_blocks(dim3(1), dim3(1024)), starts_kernel, counts, chunks));
    return trek_launch(call, queue, trek_loop(chunks), write_kernel<T>, (const T *)x->data, trek_places_of(x), x->numel,
                       (const int64_t *)counts, (int64_t *)out->data, out->strides[0], out->strides[1]);
}

} // namespace

extern "C" void trek_cuda_register_search(trek_backend *b)
{
    TREK_ENTER_FLOATS(b, TREK_OP_searchsorted, run_searchsorted)
    TREK_ENTER_INTEGERS(b, TREK_OP_searchsorted, run_searchsorted)
    TREK_ENTER_FLOATS(b, TREK_OP_nonzero, run_nonzero)
    TREK_ENTER_INTEGERS(b, TREK_OP_nonzero, run_nonzero)
    TREK_ENTER_BOOL(b, TREK_OP_nonzero, run_nonzero)
}
