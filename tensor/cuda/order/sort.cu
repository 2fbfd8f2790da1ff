/* SPDX-License-Identifier: Apache-2.0 */
/* sort, topk, kthvalue: all lines of a part at once, by the words of their elements' keys and then by the line; each
 * is a stable radix sort of indices. Keys are those of tensor/cpu/order/sort.c. */
#include "tensor/cuda/moves/radix_sort.cuh"
#include "tensor/cuda/order/order.cuh"

#define PART (1 << 28) /* elements that are sorted together, unless a line has more */
#define MOST 0x7fffffff

namespace {

template <int BITS> __device__ __forceinline__ uint64_t float_key(uint64_t bits, uint64_t infinity)
{
    const uint64_t sign = (uint64_t)1 << (BITS - 1), all = ~(uint64_t)0 >> (64 - BITS), size = bits & ~sign;
    return size > infinity ? all : size == 0 ? sign : bits & sign ? ~bits & all : bits | sign;
}
__device__ __forceinline__ uint64_t key_of(float x) { return float_key<32>(trek_bits_of_f32(x), 0x7f800000u); }
__device__ __forceinline__ uint64_t key_of(trek_bf16 x) { return float_key<16>(x.bits, 0x7f80u); }
__device__ __forceinline__ uint64_t key_of(trek_f16 x) { return float_key<16>(x.bits, 0x7c00u); }
__device__ __forceinline__ uint64_t key_of(int32_t x) { return (uint32_t)x ^ 0x80000000u; }
__device__ __forceinline__ uint64_t key_of(int64_t x) { return (uint64_t)x ^ (uint64_t)1 << 63; }
__device__ __forceinline__ uint64_t key_of(uint8_t x) { return x; }
__device__ __forceinline__ uint64_t key_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return float_key<64>(bits, (uint64_t)0x7ff << 52);
}

/* Lines of x from `first` on, whose elements are numbered one line after the other. */
struct part {
    trek_places x;
    int64_t first, n, step;
    __device__ __forceinline__ int64_t offset(uint32_t element) const
    {
        int64_t line = element / n;
        return x.offset(first + line) + (element - line * n) * step;
    }
};

/* order NULL: in memory order. shift: of the word that is read. */
template <typename T>
__global__ void __launch_bounds__(256) keys_kernel(const T *x, part p, const uint32_t *order, uint32_t *keys, uint32_t *values,
                                                   uint32_t count, uint64_t flip, int shift)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    uint32_t element = order ? order[i] : i;
    keys[i] = (uint32_t)((key_of(x[p.offset(element)]) ^ flip) >> shift);
    values[i] = element;
}

__global__ void __launch_bounds__(256) line_keys_kernel(const uint32_t *values, uint32_t *keys, uint32_t count, int64_t n)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        keys[i] = (uint32_t)(values[i] / n);
}

/* Results: `take` of each line. */
struct results {
    trek_places values, places;
    int64_t values_step, places_step, take;
};

template <typename T>
__global__ void __launch_bounds__(256) take_kernel(T *values, int64_t *places, results r, const T *x, part p,
                                                   const uint32_t *order,
                                                   uint32_t count)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    int64_t line = i / r.take, j = i - line * r.take;
    uint32_t element = order[line * p.n + j];
    values[r.values.offset(p.first + line) + j * r.values_step] = x[p.offset(element)];
    places[r.places.offset(p.first + line) + j * r.places_step] = (int64_t)element - line * p.n;
}

/* A thread selects in a line: NaNs are its last elements. */
template <typename T>
__global__ void __launch_bounds__(256) choose_kernel(T *values, int64_t *places, results r, const T *x, part p,
                                                     const uint32_t *order,
                                                     uint32_t lines, int64_t k, int which)
{
    uint32_t line = blockIdx.x * blockDim.x + threadIdx.x;
    if (line >= lines)
        return;
    const uint32_t *own = order + line * p.n;
    int64_t numbers = p.n;
    if (which != TREK_ORDER_KTH)
        while (numbers > 0 && trek_get(x[p.offset(own[numbers - 1])]) != trek_get(x[p.offset(own[numbers - 1])]))
            numbers--;
    int64_t at = which == TREK_ORDER_KTH ? k - 1 : which == TREK_ORDER_MEDIAN && numbers < p.n ? numbers
               : numbers > 0 ? (numbers - 1) / 2 : 0;
    values[r.values.offset(p.first + line)] = x[p.offset(own[at])];
    places[r.places.offset(p.first + line)] = (int64_t)own[at] - (int64_t)line * p.n;
}

/* Computes the order of the elements of `lines` lines, in s->values. */
template <typename T>
trek_status order_part(const trek_op_call *call, trek_cuda_queue *queue, trek_sort *s, const T *x, const part &p, int64_t lines,
                       bool descending)
{
    const int bytes = (int)sizeof(T);
    const uint64_t flip = descending ? ~(uint64_t)0 >> (64 - 8 * bytes) : 0,
        limit = bytes >= 4 ? (uint64_t)1 << 32 : (uint64_t)1 << (8 * bytes);
    for (int shift = 0; shift < 8 * bytes; shift += 32) {
        TRY(trek_launch(call, queue, trek_loop(s->n), keys_kernel<T>, x, p,
                        shift ? (const uint32_t *)s->values : (const uint32_t *)NULL,
                        s->keys, s->values, s->n, flip, shift));
        TRY(trek_sort_pairs(call, queue, s, limit));
    }
    if (lines == 1)
        return TREK_OK;
    TRY(trek_launch(call, queue, trek_loop(s->n), line_keys_kernel, (const uint32_t *)s->values, s->keys, s->n, p.n));
    return trek_sort_pairs(call, queue, s, (uint64_t)lines);
}

template <typename T> trek_status run_sort(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *values = call->outputs[0], *places = call->outputs[1];
    const int op = call->op->id, dim = x->ndim > 0 ? (int)call->attrs.i[0] : -1;
    const int64_t n = x->ndim > 0 ? x->sizes[dim] : 1;
    if (values->numel == 0)
        return TREK_OK;
    if (n > MOST)
        return trek_op_fail(call, TREK_ERR_UNSUPPORTED, "a line of %lld elements", (long long)n);
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    const int64_t all = x->numel / n, most = PART / n > 0 ? PART / n : 1;
    results r = { trek_places_of(values, dim), trek_places_of(places, dim), dim < 0 ? 0 : values->strides[dim],
                  dim < 0 ? 0 : places->strides[dim], op == TREK_OP_topk && x->ndim > 0 ? call->attrs.i[1] : n };
    trek_held held;
    const size_t room = (size_t)((all < most ? all : most) * n);
    TRY(held.take(queue, 4 * room * sizeof(uint32_t)));
    for (int64_t first = 0; first < all; first += most) {
        const int64_t lines = all - first < most ? all - first : most;
        part p = { trek_places_of(x, dim), first, n, dim < 0 ? 0 : x->strides[dim] };
        uint32_t *words = held.as<uint32_t>();
        trek_sort s = { words, words + room, words + 2 * room, words + 3 * room, (uint32_t)(lines * n) };
        bool descending = op == TREK_OP_sort ? call->attrs.i[1] != 0 : op == TREK_OP_topk && call->attrs.i[2] != 0;
        TRY(order_part<T>(call, queue, &s, (const T *)x->data, p, lines, descending));
        if (op == TREK_OP_kthvalue)
            TRY(trek_launch(call, queue, trek_loop(lines), choose_kernel<T>, (T *)values->data, (int64_t *)places->data, r,
                            (const T *)x->data, p, (const uint32_t *)s.values, (uint32_t)lines, call->attrs.i[1],
                            (int)call->attrs.i[2]));
        else
            TRY(trek_launch(call, queue, trek_loop(lines * r.take), take_kernel<T>, (T *)values->data, (int64_t *)places->data, r,
                            (const T *)x->data, p, (const uint32_t *)s.values, (uint32_t)(lines * r.take)));
    }
    return TREK_OK;
}

} // namespace

extern "C" void trek_cuda_register_order_sort(trek_backend *b)
{
    TREK_ENTER_FLOATS(b, TREK_OP_sort, run_sort)
    TREK_ENTER_INTEGERS(b, TREK_OP_sort, run_sort)
    TREK_ENTER_BOOL(b, TREK_OP_sort, run_sort)
    TREK_ENTER_FLOATS(b, TREK_OP_topk, run_sort)
    TREK_ENTER_INTEGERS(b, TREK_OP_topk, run_sort)
    TREK_ENTER_BOOL(b, TREK_OP_topk, run_sort)
    TREK_ENTER_FLOATS(b, TREK_OP_kthvalue, run_sort)
    TREK_ENTER_INTEGERS(b, TREK_OP_kthvalue, run_sort)
}
