/* SPDX-License-Identifier: Apache-2.0 */
/* Cumulative sums along a dimension of any stride. Floats are summed in f64, integers in i64. Long lines are cut into
 * chunks: first their sums, then where each chunk begins, then the chunks themselves. */
#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/lines.cuh"

#define THREADS 256
#define ITEMS 4          /* neighbours that a thread has */
#define CHUNK 8192       /* the fewest elements */
#define MOST_CHUNKS 1024 /* of a line */

template <typename T> struct sum_type { typedef int64_t gathered, result; };
template <> struct sum_type<float> { typedef double gathered; typedef float result; };
template <> struct sum_type<double> { typedef double gathered; typedef double result; };
template <> struct sum_type<trek_bf16> { typedef double gathered; typedef trek_bf16 result; };
template <> struct sum_type<trek_f16> { typedef double gathered; typedef trek_f16 result; };

/* Returns the sum of the threads before this one; *total: of all. */
template <typename A> static __device__ __forceinline__ A scan_block(A mine, A *shared, A *total)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    A sum = mine;
    for (int delta = 1; delta < 32; delta *= 2) {
        A below = __shfl_up_sync(0xffffffffu, sum, (unsigned)delta);
        sum = lane >= delta ? below + sum : sum;
    }
    __syncthreads();
    if (lane == 31)
        shared[warp] = sum;
    __syncthreads();
    A offset = 0, all = 0;
    for (int w = 0; w < THREADS / 32; w++) {
        offset = w == warp ? all : offset;
        all += shared[w];
    }
    *total = all;
    A before = __shfl_up_sync(0xffffffffu, sum, 1u); /* not sum - mine, which is wrong after a NaN or infinity */
    return lane > 0 ? offset + before : offset;
}

/* A block for each chunk of a line whose elements are near each other. sums: only the chunk's sum is written there;
 * offsets: where chunks begin (NULL: at 0). */
template <typename T>
static __global__ void __launch_bounds__(THREADS) cumsum_blocks(typename sum_type<T>::result *out, const T *in, trek_lines l,
                                                                int64_t chunk,
                                                                typename sum_type<T>::gathered *sums,
                                                                const typename sum_type<T>::gathered *offsets)
{
    typedef typename sum_type<T>::gathered A;
    TREK_SHARED(A, shared, THREADS / 32);
    const trek_line line = trek_line_at(l, blockIdx.x);
    const int64_t place = (int64_t)blockIdx.x * gridDim.y + blockIdx.y;
    const int64_t begin = (int64_t)blockIdx.y * chunk, end = begin + chunk < l.n ? begin + chunk : l.n;
    A carry = offsets ? offsets[place] : (A)0;
    for (int64_t first = begin; first < end; first += THREADS * ITEMS) {
        A x[ITEMS], sum = 0, total;
        const int64_t at = first + (int64_t)threadIdx.x * ITEMS;
        for (int k = 0; k < ITEMS; k++) {
            x[k] = at + k < end ? (A)trek_get(in[line.at[1] + (at + k) * l.step[1]]) : (A)0;
            sum += x[k];
        }
        A before = carry + scan_block(sum, shared, &total);
        carry += total;
        for (int k = 0; k < ITEMS && !sums; k++) {
            before += x[k];
            if (at + k < end)
                out[line.at[0] + (at + k) * l.step[0]] = trek_store<typename sum_type<T>::result>::of(before);
        }
    }
    if (sums && threadIdx.x == 0)
        sums[place] = carry;
}

/* A thread for each chunk of a line, if neighbouring lines are adjacent. */
template <typename T>
static __global__ void cumsum_threads(typename sum_type<T>::result *out, const T *in, trek_lines l, int64_t chunk,
                                      typename sum_type<T>::gathered *sums, const typename sum_type<T>::gathered *offsets)
{
    typedef typename sum_type<T>::gathered A;
    const int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= l.lines)
        return;
    const trek_line line = trek_line_at(l, index);
    const int64_t place = index * gridDim.y + blockIdx.y;
    const int64_t begin = (int64_t)blockIdx.y * chunk, end = begin + chunk < l.n ? begin + chunk : l.n;
    A sum = offsets ? offsets[place] : (A)0;
    for (int64_t i = begin; i < end; i++) {
        sum += (A)trek_get(in[line.at[1] + i * l.step[1]]);
        if (!sums)
            out[line.at[0] + i * l.step[0]] = trek_store<typename sum_type<T>::result>::of(sum);
    }
    if (sums)
        sums[place] = sum;
}

/* For each line: replaces the chunks' sums by the sums of those before. */
template <typename A> static __global__ void cumsum_offsets(A *sums, int64_t lines, int64_t chunks)
{
    const int64_t line = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    A sum = 0;
    for (int64_t k = 0; line < lines && k < chunks; k++) {
        A here = sums[line * chunks + k];
        sums[line * chunks + k] = sum;
        sum += here;
    }
}

template <typename T> static trek_status run(const trek_op_call *call)
{
    typedef typename sum_type<T>::gathered A;
    typedef typename sum_type<T>::result R;
    const trek_tensor *tensors[2] = { call->outputs[0], call->inputs[0] };
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    if (tensors[0]->numel == 0)
        return TREK_OK;
    R *out = (R *)(void *)tensors[0]->data;
    const T *in = (const T *)(const void *)tensors[1]->data;
    trek_lines l = trek_lines_of(tensors, 2, (int)call->attrs.i[0]);
    bool blocks = l.layout.along && l.n >= 64 && l.lines <= 0x7fffffff;
    /* if lines are few, chunks with at least as many elements as are worth a launch */
    int64_t workers = blocks ? l.lines : (l.lines - 1) / THREADS + 1, smallest = blocks ? CHUNK : 512, chunks = 1024 / workers;
    chunks = chunks < l.n / smallest ? chunks : l.n / smallest;
    chunks = chunks < 1 ? 1 : chunks > MOST_CHUNKS ? MOST_CHUNKS : chunks;
    int64_t chunk = (l.n - 1) / chunks + 1;
    chunk = (chunk + THREADS * ITEMS - 1) / (THREADS * ITEMS) * (THREADS * ITEMS);
    chunks = (l.n - 1) / chunk + 1;
    trek_grid grid = blocks ? trek_blocks(dim3((unsigned)l.lines), dim3(THREADS)) : trek_loop(l.lines);
    grid.grid.y = (unsigned)chunks;
    void (*kernel)(R *, const T *, trek_lines, int64_t, A *, const A *) = blocks ? cumsum_blocks<T> : cumsum_threads<T>;
    trek_held held;
    if (chunks > 1) {
        TRY(held.take(queue, (size_t)(l.lines * chunks) * sizeof(A)));
        TRY(trek_launch(call, queue, grid, kernel, out, in, l, chunk, held.as<A>(), (const A *)NULL));
        TRY(trek_launch(call, queue, trek_loop(l.lines), cumsum_offsets<A>, held.as<A>(), l.lines, chunks));
    }
    return trek_launch(call, queue, grid, kernel, out, in, l, chunk, (A *)NULL, (const A *)held.as<A>());
}

extern "C" void trek_cuda_register_cumsum(trek_backend *b)
{
    trek_kernel *kernels = b->kernels[TREK_OP_cumsum];
    kernels[TREK_F32] = run<float>;
    kernels[TREK_F64] = run<double>;
    kernels[TREK_BF16] = run<trek_bf16>;
    kernels[TREK_F16] = run<trek_f16>;
    kernels[TREK_I64] = run<int64_t>;
    kernels[TREK_I32] = run<int32_t>;
    kernels[TREK_U8] = kernels[TREK_BOOL] = run<uint8_t>;
}
