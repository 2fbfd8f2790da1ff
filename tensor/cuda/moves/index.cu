/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that find positions by an index tensor. Selecting is gathering with an index that is constant along all
 * other dimensions. Additions follow the order of the index, as on the CPU, so that sums of floats are always the
 * same. */
#include "tensor/cuda/moves/copying.cuh"
#include "tensor/cuda/elementwise/elementwise.cuh"

namespace {

#define UNROLL 4
#define CHUNK 256    /* indices that a block orders at once */
#define FEW 64       /* indices that one thread may process */
#define ENOUGH 4096  /* threads that keep a device busy even if each processes a line */

/* An index tensor, and what is reported about an index out of range. */
struct index_reader {
    const char *data;
    int dtype;
    int64_t bound;
    trek_cuda_fault_record *faults;
    int op;

    /* Returns -1 if it is out of range. place: row-major, for the message. */
    __device__ __forceinline__ int64_t at(int64_t offset, int64_t place) const
    {
        int64_t value = dtype == TREK_I64 ? ((const int64_t *)data)[offset]
                      : dtype == TREK_I32 ? ((const int32_t *)data)[offset] : ((const uint8_t *)data)[offset];
        if (value >= 0 && value < bound)
            return value;
        trek_note_fault(faults, op, TREK_CUDA_FAULT_INDEX, value, place, bound);
        return -1;
    }
};

index_reader reader_of(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *index, int64_t bound)
{
    return { index->data, index->dtype, bound, queue->device->faults_device, call->op->id };
}

/* Row-major strides of a tensor's sizes. */
void place_strides(const trek_tensor *t, int64_t *strides)
{
    int64_t stride = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= t->sizes[d];
    }
}

/* --- gather, index_select --------------------------------------------------------------- */

/* Operands: out, x (without the dimension), index, position of the index. */
template <typename T>
__global__ void __launch_bounds__(256) gather_kernel(T *to, const T *from, index_reader index, int64_t step, trek_layout<4> l,
                                                     int64_t index_base, int64_t place_base, uint32_t n)
{
    T x[UNROLL];
    int32_t at[UNROLL][4];
    uint32_t first = blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        uint32_t i = first + (uint32_t)u * blockDim.x;
        if (i >= n)
            continue;
        l.offsets(i, at[u]);
        int64_t place = index.at(index_base + at[u][2], place_base + at[u][3]);
        x[u] = place < 0 ? T() : from[at[u][1] + place * step];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (first + (uint32_t)u * blockDim.x < n)
            to[at[u][0]] = x[u];
}

trek_status gather_part(const trek_op_call *call, trek_cuda_queue *queue, trek_plan p, int64_t step)
{
    const trek_tensor *x = call->inputs[0], *out = call->outputs[0];
    const char *data[4] = { out->data, x->data, nullptr, nullptr };
    int unit = trek_plan_widen(&p, 3, data, trek_item_size[x->dtype], &step);
    index_reader index = reader_of(call, queue, call->inputs[1], x->ndim > 0 ? x->sizes[call->attrs.i[0]] : 1);
    int64_t n = trek_plan_numel(&p);
    return trek_by_width(unit, [&](auto *type) {
        typedef typename std::remove_pointer<decltype(type)>::type T;
        return trek_launch(call, queue, trek_loop((n + UNROLL - 1) / UNROLL), gather_kernel<T>, (T *)out->data + p.base[0],
                           (const T *)x->data + p.base[1], index, step, trek_layout_of<4>(p), p.base[2], p.base[3], (uint32_t)n);
    });
}

/* Returns the strides of t without dimension dim. */
int64_t without_dim(const trek_tensor *t, int dim, int64_t *strides)
{
    for (int d = 0; d < t->ndim; d++)
        strides[d] = d == dim ? 0 : t->strides[d];
    return t->ndim > 0 ? t->strides[dim] : 0;
}

/* Returns the index's strides and positions in a space of ndim dimensions: its own, or (1-D) only along dim. */
void index_strides(const trek_tensor *index, bool whole, int dim, int ndim, int64_t *strides, int64_t *places)
{
    for (int d = 0; d < ndim; d++) {
        strides[d] = whole ? index->strides[d] : d == dim && index->ndim > 0 ? index->strides[0] : 0;
        places[d] = d == dim;
    }
    if (whole)
        place_strides(index, places);
}

trek_status gather_through(const trek_op_call *call, bool whole)
{
    const trek_tensor *x = call->inputs[0], *index = call->inputs[1], *out = call->outputs[0];
    if (out->numel == 0 && index->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (out->numel == 0)
        return TREK_OK;
    int dim = (int)call->attrs.i[0];
    int64_t strides[TREK_MAX_DIMS], places[TREK_MAX_DIMS];
    trek_plan p = trek_plan_begin(out);
    int64_t step = without_dim(x, dim, strides);
    trek_plan_add_strides(&p, strides);
    index_strides(index, whole, dim, out->ndim, strides, places);
    trek_plan_add_strides(&p, strides);
    trek_plan_add_strides(&p, places);
    trek_plan_finish(&p, !out->contiguous);
    return trek_plan_run(p, [&](const trek_plan &part) { return gather_part(call, queue, part, step); });
}

trek_status run_gather(const trek_op_call *call) { return gather_through(call, true); }
trek_status run_index_select(const trek_op_call *call) { return gather_through(call, false); }

/* --- sums in the order of the index ---------------------------------------------------------- */

/* The type of sums and products: 16-bit ones are computed in f32 and rounded once, as on the CPU. */
template <typename T> struct running {
    typedef T type;
    __device__ __forceinline__ static T load(T x) { return x; }
    __device__ __forceinline__ static T store(T x) { return x; }
};
template <typename T> struct running_half {
    typedef float type;
    __device__ __forceinline__ static float load(T x) { return trek_get(x); }
    __device__ __forceinline__ static T store(float x) { return trek_store<T>::of(x); }
};
template <> struct running<trek_bf16> : running_half<trek_bf16> {};
template <> struct running<trek_f16> : running_half<trek_f16> {};

/* What an element becomes, given one of the source. wide: the same in f32. */
template <typename T> struct sum_of {
    typedef sum_of<float> wide;
    __device__ __forceinline__ static T of(T x, T y) { return trek_store<T>::of(trek_wrap_add(trek_get(x), trek_get(y))); }
};
template <> struct sum_of<uint8_t> {
    __device__ __forceinline__ static uint8_t of(uint8_t x, uint8_t y) { return (uint8_t)(x + y); }
};
template <> struct sum_of<bool> {
    __device__ __forceinline__ static bool of(bool x, bool y) { return x | y; }
};
template <typename T> struct last_of {
    __device__ __forceinline__ static T of(T, T y) { return y; }
};
template <typename T> struct product_of {
    typedef product_of<float> wide;
    __device__ __forceinline__ static T of(T x, T y) { return trek_store<T>::of(trek_wrap_mul(trek_get(x), trek_get(y))); }
};
template <> struct product_of<uint8_t> {
    __device__ __forceinline__ static uint8_t of(uint8_t x, uint8_t y) { return (uint8_t)(x * y); }
};
template <> struct product_of<bool> {
    __device__ __forceinline__ static bool of(bool x, bool y) { return x & y; }
};
/* A NaN wins. */
template <typename T> struct largest_of {
    __device__ __forceinline__ static T of(T x, T y) { return trek_get(x) >= trek_get(y) || trek_get(x) != trek_get(x) ? x : y; }
};
template <typename T> struct smallest_of {
    __device__ __forceinline__ static T of(T x, T y) { return trek_get(x) <= trek_get(y) || trek_get(x) != trek_get(x) ? x : y; }
};

/* What is the same along all lines: the index's dimension. */
struct along_dim {
    int64_t n, out, source, index, place; /* how many; strides */
};

/* The index's space without the dimension: operands out, source, index, position. */
struct lines {
    trek_layout<4> layout;
    uint32_t n;
};

/* One thread processes a line. */
template <typename T, typename C>
__global__ void __launch_bounds__(256) add_lines_kernel(T *to, const T *source, index_reader index, along_dim d, lines l)
{
    uint32_t line = blockIdx.x * blockDim.x + threadIdx.x;
    if (line >= l.n)
        return;
    int32_t at[4];
    l.layout.offsets(line, at);
    for (int64_t j = 0; j < d.n; j++) {
        int64_t place = index.at(at[2] + j * d.index, at[3] + j * d.place);
        if (place < 0)
            continue;
        T *x = to + at[0] + place * d.out;
        *x = C::of(*x, source[at[1] + j * d.source]);
    }
}

/* Returns whether thread `me` has a position that no thread before it has. */
__device__ __forceinline__ bool leads(const int64_t *places, int me)
{
    const int64_t place = places[me];
    bool first = place >= 0;
    for (int k = 0; first && k < me; k++)
        first = places[k] != place;
    return first;
}

/* One block processes a line, CHUNK indices at a time: of equal indices the first thread adds all, in order. */
template <typename T, typename C>
__global__ void __launch_bounds__(CHUNK) add_long_lines_kernel(T *to, const T *source, index_reader index, along_dim d, lines l)
{
    TREK_SHARED(int64_t, places, CHUNK);
    TREK_SHARED(T, values, CHUNK);
    int me = (int)threadIdx.x;
    for (uint32_t line = blockIdx.x; line < l.n; line += gridDim.x) {
        int32_t at[4];
        l.layout.offsets(line, at);
        for (int64_t begin = 0; begin < d.n; begin += CHUNK) {
            int64_t j = begin + me;
            int64_t place = j < d.n ? index.at(at[2] + j * d.index, at[3] + j * d.place) : -1;
            places[me] = place;
            values[me] = place >= 0 ? source[at[1] + j * d.source] : T();
            __syncthreads();
            if (leads(places, me)) {
                T sum = to[at[0] + place * d.out];
                for (int k = me; k < CHUNK; k++)
                    if (places[k] == place)
                        sum = C::of(sum, values[k]);
                to[at[0] + place * d.out] = sum;
            }
            __syncthreads();
        }
    }
}

/* For 16-bit elements: those at the positions of the index are converted to f32, added to, and rounded; wide has
 * space for each position of each line. */
template <typename T, typename C>
__global__ void __launch_bounds__(256) add_wide_lines_kernel(T *to, const T *source, index_reader index, along_dim d, lines l,
                                                             float *wide)
{
    uint32_t line = blockIdx.x * blockDim.x + threadIdx.x;
    if (line >= l.n)
        return;
    int32_t at[4];
    l.layout.offsets(line, at);
    for (int pass = 0; pass < 3; pass++)
        for (int64_t j = 0; j < d.n; j++) {
            int64_t place = index.at(at[2] + j * d.index, at[3] + j * d.place);
            if (place < 0)
                continue;
            T *x = to + at[0] + place * d.out;
            float *sum = wide + place * l.n + line;
            if (pass == 0)
                *sum = trek_get(*x);
            else if (pass == 1)
                *sum = C::of(*sum, trek_get(source[at[1] + j * d.source]));
            else
                *x = trek_store<T>::of(*sum);
        }
}

template <typename T, typename C>
__global__ void __launch_bounds__(CHUNK) add_wide_long_lines_kernel(T *to, const T *source, index_reader index, along_dim d,
                                                                    lines l, float *wide)
{
    TREK_SHARED(int64_t, places, CHUNK);
    TREK_SHARED(float, values, CHUNK);
    int me = (int)threadIdx.x;
    for (uint32_t line = blockIdx.x; line < l.n; line += gridDim.x) {
        int32_t at[4];
        l.layout.offsets(line, at);
        float *sums = wide + line * index.bound;
        for (int64_t j = me; j < d.n; j += CHUNK) {
            int64_t place = index.at(at[2] + j * d.index, at[3] + j * d.place);
            if (place >= 0)
                sums[place] = trek_get(to[at[0] + place * d.out]);
        }
        __syncthreads();
        for (int64_t begin = 0; begin < d.n; begin += CHUNK) {
            int64_t j = begin + me;
            int64_t place = j < d.n ? index.at(at[2] + j * d.index, at[3] + j * d.place) : -1;
            places[me] = place;
            values[me] = place >= 0 ? trek_get(source[at[1] + j * d.source]) : 0.0f;
            __syncthreads();
            for (int k = leads(places, me) ? me : CHUNK; k < CHUNK; k++)
                if (places[k] == place)
                    sums[place] = C::of(sums[place], values[k]);
            __syncthreads();
        }
        for (int64_t j = me; j < d.n; j += CHUNK) {
            int64_t place = index.at(at[2] + j * d.index, at[3] + j * d.place);
            if (place >= 0)
                to[at[0] + place * d.out] = trek_store<T>::of(sums[place]);
        }
        __syncthreads();
    }
}

/* --- one index for all lines: its entries are first sorted by position, in their order ---------------- */

__global__ void __launch_bounds__(256) clear_kernel(int32_t *counts, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        counts[i] = 0;
}

/* One block. ranks[j]: how many entries before j have the same position (-1: out of range); counts: how many each
 * position has. */
__global__ void __launch_bounds__(CHUNK) rank_kernel(index_reader index, along_dim d, int32_t *counts, int32_t *ranks)
{
    TREK_SHARED(int32_t, places, CHUNK);
    int me = (int)threadIdx.x;
    for (int64_t begin = 0; begin < d.n; begin += CHUNK) {
        int64_t j = begin + me;
        int32_t place = j < d.n ? (int32_t)index.at(j * d.index, j * d.place) : -1;
        int32_t known = place >= 0 ? counts[place] : 0;
        places[me] = place;
        __syncthreads();
        int32_t before = 0, all = 0;
        for (int k = 0; k < CHUNK; k++) {
            int32_t same = places[k] == place;
            before += k < me ? same : 0;
            all += same;
        }
        if (j < d.n)
            ranks[j] = place < 0 ? -1 : known + before;
        if (place >= 0 && before == all - 1) /* the last of its position */
            counts[place] = known + all;
        __syncthreads();
    }
}

/* One block. starts[b] = the sum of counts before b, of `bins`, and one more at the end. */
__global__ void __launch_bounds__(1024) starts_kernel(const int32_t *counts, int32_t *starts, int64_t bins)
{
    TREK_SHARED(int32_t, sums, 1024);
    int me = (int)threadIdx.x;
    int32_t carried = 0;
    for (int64_t begin = 0; begin < bins; begin += 1024) {
        int32_t own = begin + me < bins ? counts[begin + me] : 0;
        sums[me] = own;
        __syncthreads();
        for (int reach = 1; reach < 1024; reach *= 2) {
            int32_t other = me >= reach ? sums[me - reach] : 0;
            __syncthreads();
            sums[me] += other;
            __syncthreads();
        }
        if (begin + me < bins)
            starts[begin + me] = carried + sums[me] - own;
        carried += sums[1023];
        __syncthreads();
    }
    if (me == 0)
        starts[bins] = carried;
}

__global__ void __launch_bounds__(256) order_kernel(index_reader index, along_dim d, const int32_t *starts,
                                                    const int32_t *ranks, int32_t *order)
{
    for (int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; j < d.n; j += (int64_t)gridDim.x * blockDim.x)
        if (ranks[j] >= 0)
            order[starts[index.at(j * d.index, j * d.place)] + ranks[j]] = (int32_t)j;
}

/* A block adds all entries of one position, for 256 lines; blocks of the grid's second dimension divide the lines. */
template <typename T>
__global__ void __launch_bounds__(256) add_sorted_kernel(T *to, const T *source, const int32_t *starts, const int32_t *order,
                                                         along_dim d, lines l)
{
    int64_t place = blockIdx.x;
    int32_t begin = starts[place], end = starts[place + 1];
    if (begin == end)
        return;
    for (uint32_t line = blockIdx.y * blockDim.x + threadIdx.x; line < l.n; line += gridDim.y * blockDim.x) {
        int32_t at[4];
        l.layout.offsets(line, at);
        T *x = to + at[0] + place * d.out;
        typedef running<T> R;
        typename R::type sum = R::load(*x);
        for (int32_t k = begin; k < end; k++)
            sum = sum_of<typename R::type>::of(sum, R::load(source[at[1] + order[k] * d.source]));
        *x = R::store(sum);
    }
}

template <typename T>
trek_status add_sorted(const trek_op_call *call, trek_cuda_queue *queue, T *to, const T *source, const index_reader &index,
                              const along_dim &d, const lines &l)
{
    trek_cuda_scratch scratch;
    trek_status status = trek_cuda_scratch_take(queue, (size_t)(2 * index.bound + 1 + 2 * d.n) * sizeof(int32_t), &scratch);
    if (status != TREK_OK)
        return status;
    int32_t *counts = (int32_t *)scratch.data, *starts = counts + index.bound;
    int32_t *ranks = starts + index.bound + 1, *order = ranks + d.n;
    unsigned parts = (l.n + 255) / 256;
    status = trek_launch(call, queue, trek_loop(index.bound, 65536), clear_kernel, counts, index.bound);
    if (status == TREK_OK)
        status = trek_launch(call, queue, trek_blocks(dim3(1), dim3(CHUNK)), rank_kernel, index, d, counts, ranks);
    if (status == TREK_OK)
        status = trek_launch(call, queue, trek_blocks(dim3(1), dim3(1024)), starts_kernel, (const int32_t *)counts, starts,
                             index.bound);
    if (status == TREK_OK)
        status = trek_launch(call, queue, trek_loop(d.n, 65536), order_kernel, index, d, (const int32_t *)starts,
                             (const int32_t *)ranks, order);
    trek_grid grid = trek_loop(256);
    grid.grid = dim3((unsigned)index.bound, parts < 65535 ? parts : 65535);
    if (status == TREK_OK)
        status = trek_launch(call, queue, grid, add_sorted_kernel<T>, to, source, (const int32_t *)starts,
                             (const int32_t *)order, d, l);
    trek_cuda_scratch_give(queue, &scratch);
    return status;
}

/* --- index_add, scatter_add: out = x, then out[index] += source ------------------------------------- */

template <typename T, typename C>
trek_status add_wide(const trek_op_call *call, trek_cuda_queue *queue, T *to, const T *source, const index_reader &index,
                     const along_dim &d, const lines &l)
{
    trek_cuda_scratch scratch;
    trek_status status = trek_cuda_scratch_take(queue, (size_t)index.bound * l.n * sizeof(float), &scratch);
    if (status != TREK_OK)
        return status;
    float *wide = (float *)scratch.data;
    if (d.n > FEW && l.n < ENOUGH)
        status = trek_launch(call, queue, trek_blocks(dim3(l.n), dim3(CHUNK)), add_wide_long_lines_kernel<T, C>, to, source,
                             index, d, l, wide);
    else
        status = trek_launch(call, queue, trek_loop(l.n), add_wide_lines_kernel<T, C>, to, source, index, d, l, wide);
    trek_cuda_scratch_give(queue, &scratch);
    return status;
}

template <typename T, typename C>
trek_status add_through_plan(const trek_op_call *call, trek_cuda_queue *queue, const trek_plan &p, const along_dim &d, bool whole)
{
    const trek_tensor *out = call->outputs[0], *source = call->inputs[2];
    int64_t bound = out->ndim > 0 ? out->sizes[call->attrs.i[0]] : 1, n = trek_plan_numel(&p);
    index_reader index = reader_of(call, queue, call->inputs[1], bound);
    index.data += p.base[2] * trek_item_size[call->inputs[1]->dtype];
    lines l = { trek_layout_of<4>(p), (uint32_t)n };
    T *to = (T *)out->data + p.base[0];
    const T *from = (const T *)source->data + p.base[1];
    if constexpr (std::is_same<C, sum_of<T>>::value)
        if (!whole && d.n > FEW && d.n < INT32_MAX && bound < INT32_MAX)
            return add_sorted<T>(call, queue, to, from, index, d, l);
    if constexpr (!std::is_same<typename running<T>::type, T>::value &&
                  (std::is_same<C, sum_of<T>>::value || std::is_same<C, product_of<T>>::value))
        if (d.n > 1)
            return add_wide<T, typename C::wide>(call, queue, to, from, index, d, l);
    if (d.n > FEW && n < ENOUGH)
        return trek_launch(call, queue, trek_blocks(dim3((unsigned)n), dim3(CHUNK)), add_long_lines_kernel<T, C>, to, from, index,
                           d, l);
    return trek_launch(call, queue, trek_loop(n), add_lines_kernel<T, C>, to, from, index, d, l);
}

template <typename T, typename C> trek_status add_through(const trek_op_call *call, bool whole)
{
    const trek_tensor *index = call->inputs[1], *source = call->inputs[2], *out = call->outputs[0];
    if (out->numel == 0 && index->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    trek_status status = trek_cuda_copy_tensor(call, queue, out, call->inputs[0]);
    if (status != TREK_OK || index->numel == 0 || source->numel == 0 || out->numel == 0)
        return status;
    int dim = (int)call->attrs.i[0], ndim = out->ndim;
    int64_t strides[4][TREK_MAX_DIMS] = {};
    along_dim d = { 1, 0, 0, 0, 1 };
    trek_plan p;
    p.operands = 0;
    p.ndim = ndim;
    index_strides(index, whole, dim, ndim, strides[2], strides[3]);
    for (int k = 0; k < ndim; k++) {
        int64_t size = whole ? index->sizes[k] : source->sizes[k];
        p.sizes[ndim - 1 - k] = k == dim ? 1 : size;
        strides[0][k] = out->strides[k];
        strides[1][k] = source->strides[k];
        if (k == dim)
            d = { size, out->strides[k], source->strides[k], strides[2][k], strides[3][k] };
    }
    for (int k = 0; k < 4; k++)
        trek_plan_add_strides(&p, strides[k]);
    trek_plan_finish(&p, false);
    return trek_plan_run(p, [&](const trek_plan &part) { return add_through_plan<T, C>(call, queue, part, d, whole); });
}

template <typename T> trek_status run_scatter_add(const trek_op_call *call) { return add_through<T, sum_of<T>>(call, true); }
template <typename T> trek_status run_index_add(const trek_op_call *call) { return add_through<T, sum_of<T>>(call, false); }
template <typename T> trek_status run_scatter(const trek_op_call *call) { return add_through<T, last_of<T>>(call, true); }
template <typename T> trek_status run_scatter_reduce(const trek_op_call *call)
{
    switch (call->attrs.i[1]) {
    case TREK_SCATTER_PROD: return add_through<T, product_of<T>>(call, true);
    case TREK_SCATTER_AMAX: return add_through<T, largest_of<T>>(call, true);
    default: return add_through<T, smallest_of<T>>(call, true);
    }
}

/* --- one_hot ------------------------------------------------------------------------------------------ */

/* Operands: out, index, position of the index, class (the last two have no data). */
__global__ void __launch_bounds__(256) one_hot_kernel(int64_t *to, index_reader index, trek_layout<4> l, int64_t place_base,
                                                      int64_t class_base, uint32_t n)
{
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int32_t at[4];
        l.offsets(i, at);
        to[at[0]] = index.at(at[1], place_base + at[2]) == class_base + at[3];
    }
}

/* i[0] is the number of classes; out is i64 [..., classes]. */
trek_status run_one_hot(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    int64_t strides[TREK_MAX_DIMS] = { 0 }, places[TREK_MAX_DIMS] = { 0 }, classes[TREK_MAX_DIMS] = { 0 };
    memcpy(strides, x->strides, sizeof strides[0] * x->ndim);
    place_strides(x, places);
    classes[x->ndim] = 1;
    trek_plan p = trek_plan_begin(out);
    trek_plan_add_strides(&p, strides);
    trek_plan_add_strides(&p, places);
    trek_plan_add_strides(&p, classes);
    trek_plan_finish(&p, !out->contiguous);
    return trek_plan_run(p, [&](const trek_plan &part) {
        index_reader index = reader_of(call, queue, x, call->attrs.i[0]);
        index.data += part.base[1] * trek_item_size[x->dtype];
        int64_t n = trek_plan_numel(&part);
        return trek_launch(call, queue, trek_strided_grid(n), one_hot_kernel, (int64_t *)out->data + part.base[0], index,
                           trek_layout_of<4>(part), part.base[2], part.base[3], (uint32_t)n);
    });
}

} // namespace

extern "C" void trek_cuda_register_index(trek_backend *b)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        b->kernels[TREK_OP_gather][d] = run_gather;
        b->kernels[TREK_OP_index_select][d] = run_index_select;
    }
    TREK_ENTER_FLOATS(b, TREK_OP_scatter_add, run_scatter_add)
    TREK_ENTER_INTEGERS(b, TREK_OP_scatter_add, run_scatter_add)
    TREK_ENTER(b, TREK_OP_scatter_add, BOOL, run_scatter_add<bool>)
    TREK_ENTER_FLOATS(b, TREK_OP_index_add, run_index_add)
    TREK_ENTER_INTEGERS(b, TREK_OP_index_add, run_index_add)
    TREK_ENTER(b, TREK_OP_index_add, BOOL, run_index_add<bool>)
    TREK_ENTER_BITS(b, TREK_OP_scatter, run_scatter)
    TREK_ENTER_FLOATS(b, TREK_OP_scatter_reduce, run_scatter_reduce)
    TREK_ENTER_INTEGERS(b, TREK_OP_scatter_reduce, run_scatter_reduce)
    TREK_ENTER(b, TREK_OP_scatter_reduce, BOOL, run_scatter_reduce<bool>)
    b->kernels[TREK_OP_one_hot][TREK_I64] = run_one_hot;
    b->kernels[TREK_OP_one_hot][TREK_I32] = run_one_hot;
    b->kernels[TREK_OP_one_hot][TREK_U8] = run_one_hot;
}
