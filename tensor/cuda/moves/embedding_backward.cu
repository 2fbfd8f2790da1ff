/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of gradients into the rows of a table, in the order of their positions. The positions are sorted by row. Then
 * runs of one row are added within pieces of fixed length, and rows whose runs cross pieces are added from the
 * pieces' sums. */
#include "tensor/cuda/moves/radix_sort.cuh"

#define PIECE 32
#define THREADS 256

/* key: the row, or `rows` for an index outside or a position in no bag. */
static __global__ void embedding_keys(trek_indices indices, const int64_t *bags, int64_t n_bags, uint32_t n, int64_t rows,
                                      uint32_t *keys, uint32_t *places, trek_cuda_fault_record *faults, int op)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int64_t index = indices[i];
    bool inside = index >= 0 && index < rows;
    if (!inside)
        trek_note_fault(faults, op, TREK_CUDA_FAULT_INDEX, index, i, rows);
    bool somewhere = !bags || (bags[i] >= 0 && bags[i] < n_bags);
    keys[i] = (uint32_t)(inside && somewhere ? index : rows);
    places[i] = i;
}

/* starts[row]: the first of the sorted keys that is not below row. */
static __global__ void embedding_starts(const uint32_t *keys, uint32_t n, uint32_t rows, uint32_t *starts)
{
    uint32_t row = blockIdx.x * blockDim.x + threadIdx.x, low = 0, high = n;
    if (row > rows)
        return;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (keys[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    starts[row] = low;
}

template <typename T> struct gradient_sums {
    typedef typename trek_wide<T>::type W;
    const T *grad;
    void *out;
    bool out_wide; /* f32 for 16-bit gradients */
    const uint32_t *keys, *places, *starts;
    W *partials;   /* [pieces][2][columns]: of the run that began before, of the run that continues after */
    uint32_t n, rows;
    int64_t padding, columns;
    const int64_t *bags; /* the gradient's row of each position; NULL: its own */
    const W *factors;    /* of each position; NULL: 1 */
    __device__ __forceinline__ int64_t source(uint32_t place) const { return bags ? bags[place] : (int64_t)place; }
    __device__ __forceinline__ W factor(uint32_t place) const { return factors ? factors[place] : (W)1; }
};

template <typename T, int V>
static __device__ __forceinline__ void write_row(const gradient_sums<T> &a, int64_t row, int64_t column,
                                                 const typename trek_wide<T>::type *sum)
{
    if (a.out_wide) {
        float *to = (float *)a.out + row * a.columns + column;
#pragma unroll
        for (int k = 0; k < V; k++)
            to[k] = (float)sum[k];
        return;
    }
    trek_vector<T, V> result;
#pragma unroll
    for (int k = 0; k < V; k++)
        result.x[k] = trek_store<T>::of(sum[k]);
    *reinterpret_cast<trek_vector<T, V> *>((T *)a.out + row * a.columns + column) = result;
}

/* Ends a run: it is complete, or is a part in this piece. */
template <typename T, int V>
static __device__ __forceinline__ void end_run(const gradient_sums<T> &a, uint32_t piece, bool from_before, bool goes_on,
                                               uint32_t key,
                                               int64_t column, const typename trek_wide<T>::type *sum)
{
    if (!from_before && !goes_on) {
        if (key < a.rows && (int64_t)key != a.padding)
            write_row<T, V>(a, key, column, sum);
        return;
    }
    typename trek_wide<T>::type *to = a.partials + ((int64_t)piece * 2 + (from_before ? 0 : 1)) * a.columns + column;
#pragma unroll
    for (int k = 0; k < V; k++)
        to[k] = sum[k];
}

/* A block has a piece of the sorted positions; threads run along the columns. */
template <typename T, int V> static __global__ void __launch_bounds__(THREADS) embedding_runs(gradient_sums<T> a)
{
    typedef typename trek_wide<T>::type W;
    const uint32_t begin = blockIdx.x * PIECE, end = begin + PIECE < a.n ? begin + PIECE : a.n;
    const bool before = begin > 0 && a.keys[begin - 1] == a.keys[begin], behind = end < a.n && a.keys[end] == a.keys[end - 1];
    for (int64_t column = (int64_t)threadIdx.x * V; column < a.columns; column += (int64_t)blockDim.x * V) {
        W sum[V];
        uint32_t key = a.keys[begin];
        bool first = true;
        for (int k = 0; k < V; k++)
            sum[k] = 0;
        for (uint32_t at = begin; at < end; at += 4) {
            trek_vector<T, V> g[4];
            W factor[4];
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (at + u < end && a.keys[at + u] < a.rows) {
                    uint32_t place = a.places[at + u];
                    g[u] = *reinterpret_cast<const trek_vector<T, V> *>(a.grad + a.source(place) * a.columns + column);
                    factor[u] = a.factor(place);
                }
#pragma unroll
            for (int u = 0; u < 4; u++) {
                if (at + u >= end)
                    break;
                uint32_t here = a.keys[at + u];
                if (here != key) {
                    end_run<T, V>(a, blockIdx.x, first && before, false, key, column, sum);
                    first = false;
                    key = here;
                    for (int k = 0; k < V; k++)
                        sum[k] = 0;
                }
#pragma unroll
                for (int k = 0; k < V; k++)
                    sum[k] += here < a.rows ? factor[u] * trek_get(g[u].x[k]) : (W)0; /* the last run is discarded */
            }
        }
        end_run<T, V>(a, blockIdx.x, first && before, behind, key, column, sum);
    }
}

/* A block for each row writes zeros, or the sum of its pieces, or nothing if the row is complete. */
template <typename T, int V> static __global__ void __launch_bounds__(THREADS) embedding_rows(gradient_sums<T> a)
{
    typedef typename trek_wide<T>::type W;
    const uint32_t row = blockIdx.x, begin = a.n > 0 ? a.starts[row] : 0, end = a.n > 0 ? a.starts[row + 1] : 0;
    const bool zero = begin == end || (int64_t)row == a.padding;
    const uint32_t first = begin / PIECE, last = zero ? 0 : (end - 1) / PIECE;
    if (!zero && first == last)
        return;
    for (int64_t column = (int64_t)threadIdx.x * V; column < a.columns; column += (int64_t)blockDim.x * V) {
        W sum[V];
        for (int k = 0; k < V; k++)
            sum[k] = zero ? (W)0 : a.partials[((int64_t)first * 2 + 1) * a.columns + column + k];
        for (uint32_t piece = first + 1; !zero && piece <= last; piece++)
#pragma unroll
            for (int k = 0; k < V; k++)
                sum[k] += a.partials[(int64_t)piece * 2 * a.columns + column + k];
        write_row<T, V>(a, row, column, sum);
    }
}

/* Sorts positions by row. numbers: 4 n, and rows + 1 for the starts. */
static trek_status sort_places(const trek_op_call *call, trek_cuda_queue *queue, const trek_indices &indices,
                               const int64_t *bags, uint32_t n, uint32_t rows, uint32_t *numbers, trek_sort *s)
{
    *s = { numbers, numbers + n, numbers + 2 * (size_t)n, numbers + 3 * (size_t)n, n };
    uint32_t *starts = numbers + 4 * (size_t)n;
    TRY(trek_launch(call, queue, trek_loop(n), embedding_keys, indices, bags, call->inputs[0]->sizes[0], n, (int64_t)rows,
                    s->keys, s->values, queue->device->faults_device, call->op->id));
    TRY(trek_sort_pairs(call, queue, s, (uint64_t)rows + 1));
    return trek_launch(call, queue, trek_loop((int64_t)rows + 1), embedding_starts, (const uint32_t *)s->keys, n, rows, starts);
}

template <typename T> static trek_status backward(const trek_op_call *call)
{
    typedef typename trek_wide<T>::type W;
    const int V = 16 / (int)sizeof(T);
    const trek_tensor *grad = call->inputs[0], *indices = call->inputs[1];
    trek_tensor *dweight = call->outputs[0];
    const int64_t n = indices->numel, rows = dweight->sizes[0], columns = dweight->sizes[1];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    if (n > 0x7fffffff || rows >= 0x7fffffff)
        return trek_op_fail(call, TREK_ERR_UNSUPPORTED, "%lld indices, %lld rows: more than 2^31 - 1", (long long)n,
                            (long long)rows);
    trek_dense dy, places, bags, factors, out;
    trek_held numbers, partials;
    TRY(dy.read(call, queue, grad));
    TRY(places.read(call, queue, indices));
    TRY(bags.read(call, queue, trek_input_of(call, 2)));
    TRY(factors.read(call, queue, trek_input_of(call, 3)));
    TRY(out.write(queue, dweight));
    const uint32_t pieces = n > 0 ? (uint32_t)((n - 1) / PIECE + 1) : 0;
    gradient_sums<T> a = { dy.as<T>(), out.data, dweight->dtype == TREK_F32 && sizeof(T) == 2, NULL, NULL, NULL, NULL,
                           (uint32_t)n,
                           (uint32_t)rows, call->attrs.i[0], columns, bags.as<int64_t>(), factors.as<W>() };
    if (n > 0) {
        trek_sort s;
        TRY(numbers.take(queue, ((size_t)n * 4 + (size_t)rows + 1) * sizeof(uint32_t)));
        TRY(sort_places(call, queue, { places.data, 1, indices->dtype }, a.bags, (uint32_t)n, (uint32_t)rows,
                        numbers.as<uint32_t>(), &s));
        a.keys = s.keys;
        a.places = s.values;
        a.starts = numbers.as<uint32_t>() + 4 * (size_t)n;
    }
    if (dweight->numel == 0)
        return TREK_OK;
    bool vector = columns % V == 0 && trek_is_aligned(dy.data, 16) && trek_is_aligned(out.data, 16);
    int64_t across = vector ? columns / V : columns;
    dim3 threads((unsigned)(across >= THREADS ? THREADS : (across + 31) / 32 * 32));
    trek_grid grid = { dim3(pieces), threads, 0, false };
    if (n > 0) {
        TRY(partials.take(queue, (size_t)pieces * 2 * (size_t)columns * sizeof(W)));
        a.partials = partials.as<W>();
        TRY(trek_launch(call, queue, grid, vector ? embedding_runs<T, V> : embedding_runs<T, 1>, a));
    }
    grid.grid = dim3((unsigned)rows);
    TRY(trek_launch(call, queue, grid, vector ? embedding_rows<T, V> : embedding_rows<T, 1>, a));
    return out.finish(call, dweight);
}

extern "C" void trek_cuda_register_embedding_backward(trek_backend *b)
{
    b->kernels[TREK_OP_embedding_backward][TREK_F32] = backward<float>;
    b->kernels[TREK_OP_embedding_backward][TREK_F64] = backward<double>;
    b->kernels[TREK_OP_embedding_backward][TREK_BF16] = backward<trek_bf16>;
    b->kernels[TREK_OP_embedding_backward][TREK_F16] = backward<trek_f16>;
}
