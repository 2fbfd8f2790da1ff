/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of element-wise kernels. A functor computes one element of the result from one of each input; three
 * kernels provide the elements: `flat` for contiguous operands (16-byte accesses, several in flight), `rows` for
 * operands that repeat along dimensions but are contiguous or constant along the innermost one, and `strided` for
 * everything else, which determines dtypes at run time.
 *
 * Each kernel adds a tenth of a second to building the plug-in: `flat` exists for the types that training computes in
 * (trek_has_vectors), and `rows` for the arithmetic and selection that broadcast in models (add, sub, mul, div,
 * where).
 *
 * A functor has operator() on the working types of its inputs, and `weight`, which tells how many vectors one thread
 * should hold: TREK_LIGHT or TREK_HEAVY; with TREK_RARE only `strided` serves it. It must work in place: element i of
 * the result depends on element i of the inputs. */
#ifndef TREK_TENSOR_CUDA_ELEMENTWISE_ELEMENTWISE_CUH
#define TREK_TENSOR_CUDA_ELEMENTWISE_ELEMENTWISE_CUH

#include <limits>
#include <type_traits>

#include "tensor/channels_last.h"
#include "tensor/cuda/layout.cuh"

enum { TREK_LIGHT, TREK_HEAVY, TREK_RARE };

struct trek_none {};

/* The type in which elements of T are computed: like trek_wide, with small integers in 32 bits. */
template <typename T> struct trek_work { typedef typename trek_wide<T>::type type; };
template <> struct trek_work<uint8_t> { typedef int32_t type; };

/* Tells whether F on elements of T, or on their bits, has vector kernels: f64 and whole numbers are handled one by
 * one. */
template <typename T> inline constexpr bool trek_is_trained = false;
template <> inline constexpr bool trek_is_trained<float> = true;
template <> inline constexpr bool trek_is_trained<trek_bf16> = true;
template <> inline constexpr bool trek_is_trained<trek_f16> = true;
template <> inline constexpr bool trek_is_trained<uint32_t> = true;
template <> inline constexpr bool trek_is_trained<uint16_t> = true;
template <typename F, typename T> constexpr bool trek_has_vectors = F::weight != TREK_RARE && trek_is_trained<T>;

/* --- vectors ------------------------------------------------------------------------ */

constexpr int trek_larger(int a, int b) { return a > b ? a : b; }

/* Elements handled together: 16 bytes of the widest operand, or fewer if each needs much code. */
template <typename F, typename O, typename A, typename B, typename C> struct trek_span {
    static constexpr int widest =
        trek_larger(trek_larger((int)sizeof(O), (int)sizeof(A)), trek_larger((int)sizeof(B), (int)sizeof(C)));
    static constexpr int inputs = std::is_same<A, trek_none>::value ? 0
                                : std::is_same<B, trek_none>::value ? 1
                                : std::is_same<C, trek_none>::value ? 2 : 3;
    static constexpr int all = 16 / widest;
    static constexpr int size = F::weight == TREK_HEAVY && all > 4 ? 4 : all;
    /* vectors of one thread: about four loads in flight */
    static constexpr int unroll = F::weight == TREK_HEAVY ? 1 : inputs <= 1 ? 4 : 2;
};

/* A vector between its load and its use, in whole words: taking it apart at once would wait for it at once. */
template <int bytes> struct trek_words {
    typedef typename std::conditional<bytes == 2, uint16_t, uint8_t>::type short_word;
    typedef typename std::conditional<bytes >= 4, uint32_t, short_word>::type word;
    alignas(bytes) word w[bytes >= 4 ? bytes / 4 : 1];
};
template <typename T, int V> struct trek_loaded : trek_words<(int)sizeof(trek_vector<T, V>)> {
    __device__ __forceinline__ void load(const T *from) { *this = *(const trek_loaded *)from; }
    /* Loads the single element as the first one. */
    __device__ __forceinline__ void load_one(const T *from)
    {
        const T value = *from;
        if constexpr (sizeof(T) == 1) {
            uint8_t bits;
            memcpy(&bits, &value, 1);
            this->w[0] = bits;
        } else if constexpr (sizeof(T) == 2) {
            uint16_t bits;
            memcpy(&bits, &value, 2);
            this->w[0] = bits;
        } else {
            memcpy(this->w, &value, sizeof(T));
        }
    }
    __device__ __forceinline__ trek_vector<T, V> get() const
    {
        trek_vector<T, V> x;
        memcpy(&x, this->w, sizeof x);
        return x;
    }
};

template <int inputs, typename O, typename F, typename A, typename B, typename C>
__device__ __forceinline__ O trek_apply(const F &f, const A &a, const B &b, const C &c)
{
    (void)a, (void)b, (void)c;
    if constexpr (inputs == 0)
        return trek_store<O>::of(f());
    else if constexpr (inputs == 1)
        return trek_store<O>::of(f(trek_get(a)));
    else if constexpr (inputs == 2)
        return trek_store<O>::of(f(trek_get(a), trek_get(b)));
    else
        return trek_store<O>::of(f(trek_get(a), trek_get(b), trek_get(c)));
}

template <typename F, typename O, typename A, typename B, typename C>
__global__ void __launch_bounds__(256) trek_flat_kernel(F f, O *to, const A *a, const B *b, const C *c, int64_t n, int per_thread)
{
    typedef trek_span<F, O, A, B, C> span;
    constexpr int V = span::size, U = span::unroll, inputs = span::inputs;
    int64_t vectors = n / V, first = (int64_t)blockIdx.x * blockDim.x * per_thread + threadIdx.x;
    trek_loaded<A, V> x[U];
    trek_loaded<B, V> y[U];
    trek_loaded<C, V> z[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t i = first + (int64_t)u * blockDim.x;
        if (u >= per_thread || i >= vectors)
            continue;
        if constexpr (inputs > 0)
            x[u].load(a + i * V);
        if constexpr (inputs > 1)
            y[u].load(b + i * V);
        if constexpr (inputs > 2)
            z[u].load(c + i * V);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t i = first + (int64_t)u * blockDim.x;
        if (u >= per_thread || i >= vectors)
            continue;
        trek_vector<A, V> xs = x[u].get();
        trek_vector<B, V> ys = y[u].get();
        trek_vector<C, V> zs = z[u].get();
        trek_vector<O, V> result;
#pragma unroll
        for (int v = 0; v < V; v++)
            result.x[v] = trek_apply<inputs, O>(f, xs.x[v], ys.x[v], zs.x[v]);
        ((trek_vector<O, V> *)to)[i] = result;
    }
    int64_t rest = vectors * V + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && rest < n) {
        A last_a = A();
        B last_b = B();
        C last_c = C();
        if constexpr (inputs > 0)
            last_a = a[rest];
        if constexpr (inputs > 1)
            last_b = b[rest];
        if constexpr (inputs > 2)
            last_c = c[rest];
        to[rest] = trek_apply<inputs, O>(f, last_a, last_b, last_c);
    }
}

/* The layout counts vectors along its innermost dimension. Bit k of `repeats` says that input k is constant along it. */
template <typename F, typename O, typename A, typename B, typename C>
__global__ void __launch_bounds__(256) trek_rows_kernel(F f, O *to, const A *a, const B *b, const C *c, trek_layout<4> l,
                                                        uint32_t vectors, unsigned repeats)
{
    typedef trek_span<F, O, A, B, C> span;
    constexpr int V = span::size, U = span::unroll, inputs = span::inputs;
    trek_loaded<A, V> x[U];
    trek_loaded<B, V> y[U];
    trek_loaded<C, V> z[U];
    bool one_x = repeats & 1, one_y = repeats >> 1 & 1, one_z = repeats >> 2 & 1;
    int32_t at[U][4];
    uint32_t first = blockIdx.x * blockDim.x * U + threadIdx.x;
#pragma unroll
    for (int u = 0; u < U; u++) {
        uint32_t i = first + (uint32_t)u * blockDim.x;
        if (i >= vectors)
            continue;
        l.offsets(i, at[u]);
        if constexpr (inputs > 0)
            one_x ? x[u].load_one(a + at[u][1]) : x[u].load(a + at[u][1]);
        if constexpr (inputs > 1)
            one_y ? y[u].load_one(b + at[u][2]) : y[u].load(b + at[u][2]);
        if constexpr (inputs > 2)
            one_z ? z[u].load_one(c + at[u][3]) : z[u].load(c + at[u][3]);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (first + (uint32_t)u * blockDim.x >= vectors)
            continue;
        trek_vector<A, V> xs = x[u].get();
        trek_vector<B, V> ys = y[u].get();
        trek_vector<C, V> zs = z[u].get();
        trek_vector<O, V> result;
#pragma unroll
        for (int v = 0; v < V; v++)
            result.x[v] = trek_apply<inputs, O>(f, xs.x[one_x ? 0 : v], ys.x[one_y ? 0 : v], zs.x[one_z ? 0 : v]);
        *(trek_vector<O, V> *)(to + at[u][0]) = result;
    }
}

/* --- elements of any stride, their dtype found at run time ----------------------------- */

/* An operand whose elements are computed in W. */
template <typename W> struct trek_operand {
    char *data;
    int dtype;
    __device__ __forceinline__ W get(int32_t at) const { return ((const W *)data)[at]; }
    __device__ __forceinline__ void put(int32_t at, W x) const { ((W *)data)[at] = x; }
};
template <> __device__ __forceinline__ float trek_operand<float>::get(int32_t at) const
{
    if (dtype == TREK_F32)
        return ((const float *)data)[at];
    return dtype == TREK_BF16 ? trek_get(((const trek_bf16 *)data)[at]) : trek_get(((const trek_f16 *)data)[at]);
}
template <> __device__ __forceinline__ void trek_operand<float>::put(int32_t at, float x) const
{
    if (dtype == TREK_F32)
        ((float *)data)[at] = x;
    else if (dtype == TREK_BF16)
        ((trek_bf16 *)data)[at] = trek_to_bf16(x);
    else
        ((trek_f16 *)data)[at] = trek_to_f16(x);
}
template <> __device__ __forceinline__ int32_t trek_operand<int32_t>::get(int32_t at) const
{
    return dtype == TREK_I32 ? ((const int32_t *)data)[at] : ((const uint8_t *)data)[at];
}
template <> __device__ __forceinline__ void trek_operand<int32_t>::put(int32_t at, int32_t x) const
{
    if (dtype == TREK_I32)
        ((int32_t *)data)[at] = x;
    else
        ((uint8_t *)data)[at] = (uint8_t)x;
}
template <> __device__ __forceinline__ void trek_operand<bool>::put(int32_t at, bool x) const { ((uint8_t *)data)[at] = x; }

/* R, A, B, C are the types in which the result and the inputs are computed. */
template <int inputs, typename F, typename R, typename A, typename B, typename C>
__global__ void __launch_bounds__(256) trek_strided_kernel(F f, trek_operand<R> to, trek_operand<A> a, trek_operand<B> b,
                                                           trek_operand<C> c, trek_layout<inputs + 1> l, uint32_t n)
{
#pragma unroll 1
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int32_t at[inputs + 1];
        l.offsets(i, at);
        if constexpr (inputs == 0)
            to.put(at[0], f());
        else if constexpr (inputs == 1)
            to.put(at[0], f(a.get(at[1])));
        else if constexpr (inputs == 2)
            to.put(at[0], f(a.get(at[1]), b.get(at[2])));
        else
            to.put(at[0], f(a.get(at[1]), b.get(at[2]), c.get(at[3])));
    }
}

/* --- launches ------------------------------------------------------------------------------ */

/* Returns whether all operands are contiguous, or all are channels last, of one size, and aligned. */
inline bool trek_call_flat(const trek_op_call *call, int inputs)
{
    const trek_tensor *out = call->outputs[0];
    bool last = trek_lies_channels_last(out), flat = (out->contiguous || last) && trek_aligned(out->data);
    for (int k = 0; k < inputs; k++) {
        const trek_tensor *t = call->inputs[k];
        flat = flat && (last ? trek_lies_channels_last(t) : t->contiguous) && t->numel == out->numel && trek_aligned(t->data);
    }
    return flat;
}

/* Returns threads for n vectors, with up to `most` for each thread if every multiprocessor still has enough blocks. */
inline trek_grid trek_flat_grid(const trek_cuda_queue *queue, int64_t vectors, int most, int *per_thread)
{
    *per_thread = vectors > (int64_t)queue->device->info.multiprocessors * 2048 ? most : 1;
    return trek_loop((vectors + *per_thread - 1) / *per_thread);
}

template <typename F, typename O, typename A = trek_none, typename B = trek_none, typename C = trek_none>
trek_status trek_map_flat(const trek_op_call *call, trek_cuda_queue *queue, const F &f, O *to, const A *a = nullptr,
                          const B *b = nullptr, const C *c = nullptr, int64_t n = -1)
{
    typedef trek_span<F, O, A, B, C> span;
    int per_thread;
    n = n < 0 ? call->outputs[0]->numel : n;
    trek_grid grid = trek_flat_grid(queue, (n + span::size - 1) / span::size, span::unroll, &per_thread);
    return trek_launch(call, queue, grid, trek_flat_kernel<F, O, A, B, C>, f, to, a, b, c, n, per_thread);
}

/* Returns whether vectors of `size` elements fit the innermost dimension and every operand's alignment, and which
 * inputs repeat. */
inline bool trek_plan_has_rows(const trek_plan *p, char *const *data, const int *bytes, int size, unsigned *repeats)
{
    if (p->sizes[0] % size != 0 || p->strides[0][0] != 1)
        return false;
    *repeats = 0;
    for (int k = 0; k < p->operands; k++) {
        if (p->strides[k][0] == 0) {
            *repeats |= 1u << (k - 1);
            continue;
        }
        bool fine = p->strides[k][0] == 1 && p->base[k] % size == 0 && trek_aligned(data[k], (size_t)(bytes[k] * size));
        for (int d = 1; fine && d < p->ndim; d++)
            fine = p->strides[k][d] % size == 0;
        if (!fine)
            return false;
    }
    return true;
}

/* Counts the innermost dimension in vectors. */
inline trek_layout<4> trek_row_layout(trek_plan p, int size)
{
    p.sizes[0] /= size;
    for (int k = 0; k < p.operands; k++)
        p.strides[k][0] *= size;
    return trek_layout_of<4>(p);
}

inline trek_plan trek_plan_of_call(const trek_op_call *call, int inputs)
{
    trek_plan p = trek_plan_begin(call->outputs[0]);
    for (int k = 0; k < inputs; k++)
        trek_plan_add(&p, call->inputs[k]);
    trek_plan_finish(&p, !call->outputs[0]->contiguous);
    return p;
}

inline trek_grid trek_strided_grid(int64_t n) { return trek_loop(n, 1 << 22); }

template <typename W> trek_operand<W> trek_operand_of(const trek_tensor *t, int64_t base)
{
    return { t->data + base * (int64_t)trek_item_size[t->dtype], t->dtype };
}

template <typename R, typename F, typename A>
trek_status trek_map_strided1(const trek_op_call *call, trek_cuda_queue *queue, const F &f, const trek_plan &p)
{
    int64_t n = trek_plan_numel(&p);
    return trek_launch(call, queue, trek_strided_grid(n), trek_strided_kernel<1, F, R, A, trek_none, trek_none>, f,
                       trek_operand_of<R>(call->outputs[0], p.base[0]), trek_operand_of<A>(call->inputs[0], p.base[1]),
                       trek_operand<trek_none>(), trek_operand<trek_none>(), trek_layout_of<2>(p), (uint32_t)n);
}

/* One input of T, result O. W is the type that f takes. */
template <typename O, typename T, typename F> trek_status trek_map1(const trek_op_call *call, const F &f)
{
    typedef typename trek_work<T>::type W;
    typedef decltype(f(W())) R;
    trek_tensor *out = call->outputs[0], *in = call->inputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if constexpr (trek_has_vectors<F, T>)
        if (trek_call_flat(call, 1))
            return trek_map_flat(call, queue, f, (O *)out->data, (const T *)in->data);
    return trek_plan_run(trek_plan_of_call(call, 1),
                         [&](const trek_plan &p) { return trek_map_strided1<R, F, W>(call, queue, f, p); });
}

template <typename R, typename F, typename W>
trek_status trek_map_strided2(const trek_op_call *call, trek_cuda_queue *queue, const F &f, const trek_plan &p)
{
    int64_t n = trek_plan_numel(&p);
    return trek_launch(call, queue, trek_strided_grid(n), trek_strided_kernel<2, F, R, W, W, trek_none>, f,
                       trek_operand_of<R>(call->outputs[0], p.base[0]), trek_operand_of<W>(call->inputs[0], p.base[1]),
                       trek_operand_of<W>(call->inputs[1], p.base[2]), trek_operand<trek_none>(), trek_layout_of<3>(p),
                       (uint32_t)n);
}

template <typename O, typename T, bool rows, typename F>
trek_status trek_map_part2(const trek_op_call *call, trek_cuda_queue *queue, const F &f, const trek_plan &p)
{
    typedef typename trek_work<T>::type W;
    typedef decltype(f(W(), W())) R;
    if constexpr (!rows || !trek_has_vectors<F, T>) {
        return trek_map_strided2<R, F, W>(call, queue, f, p);
    } else {
        typedef trek_span<F, O, T, T, trek_none> span;
        char *data[3] = { call->outputs[0]->data, call->inputs[0]->data, call->inputs[1]->data };
        int bytes[3] = { (int)sizeof(O), (int)sizeof(T), (int)sizeof(T) };
        unsigned repeats;
        if (!trek_plan_has_rows(&p, data, bytes, span::size, &repeats))
            return trek_map_strided2<R, F, W>(call, queue, f, p);
        int64_t vectors = trek_plan_numel(&p) / span::size;
        return trek_launch(call, queue, trek_loop((vectors + span::unroll - 1) / span::unroll),
                           trek_rows_kernel<F, O, T, T, trek_none>, f, (O *)data[0] + p.base[0],
                           (const T *)data[1] + p.base[1], (const T *)data[2] + p.base[2],
                           (const trek_none *)nullptr, trek_row_layout(p, span::size), (uint32_t)vectors, repeats);
    }
}

/* Two inputs of T, result O. With `rows`, broadcasts get a kernel of their own. */
template <typename O, typename T, bool rows = false, typename F> trek_status trek_map2(const trek_op_call *call, const F &f)
{
    trek_tensor *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if constexpr (trek_has_vectors<F, T>)
        if (trek_call_flat(call, 2))
            return trek_map_flat(call, queue, f, (O *)out->data, (const T *)call->inputs[0]->data,
                                 (const T *)call->inputs[1]->data);
    return trek_plan_run(trek_plan_of_call(call, 2),
                         [&](const trek_plan &p) { return trek_map_part2<O, T, rows>(call, queue, f, p); });
}

/* Three inputs of T, and a result of it. */
template <typename T, typename F> trek_status trek_map3(const trek_op_call *call, const F &f)
{
    typedef typename trek_work<T>::type W;
    trek_tensor **in = call->inputs, *out = call->outputs[0];
    if (out->numel == 0)
        return TREK_OK;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if constexpr (trek_has_vectors<F, T>)
        if (trek_call_flat(call, 3))
            return trek_map_flat(call, queue, f, (T *)out->data, (const T *)in[0]->data, (const T *)in[1]->data,
                                 (const T *)in[2]->data);
    return trek_plan_run(trek_plan_of_call(call, 3), [&](const trek_plan &p) {
        int64_t n = trek_plan_numel(&p);
        return trek_launch(call, queue, trek_strided_grid(n), trek_strided_kernel<3, F, W, W, W, W>, f,
                           trek_operand_of<W>(out, p.base[0]), trek_operand_of<W>(in[0], p.base[1]),
                           trek_operand_of<W>(in[1], p.base[2]), trek_operand_of<W>(in[2], p.base[3]), trek_layout_of<4>(p),
                           (uint32_t)n);
    });
}

/* --- numbers and whole numbers ----------------------------------------------------------------- */

/* Rounds towards zero, limited to the representable integers; NaN becomes 0. */
__device__ __host__ __forceinline__ int64_t trek_i64_from_f64(double x)
{
    int64_t inside = x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : 0;
    return x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : inside;
}

/* Returns a call's number in the type in which elements of T are computed. */
template <typename T> inline typename trek_work<T>::type trek_number(double v)
{
    typedef typename trek_work<T>::type W;
    if constexpr (std::is_floating_point<W>::value)
        return (W)v;
    else if constexpr (sizeof(T) == 1)
        return (W)(uint8_t)trek_i64_from_f64(v);
    else
        return (W)trek_i64_from_f64(v);
}

/* Integers wrap around. */
template <typename W> __device__ __forceinline__ W trek_wrap_add(W x, W y)
{
    if constexpr (std::is_integral<W>::value)
        return (W)((typename std::make_unsigned<W>::type)x + (typename std::make_unsigned<W>::type)y);
    else
        return x + y;
}
template <typename W> __device__ __forceinline__ W trek_wrap_sub(W x, W y)
{
    if constexpr (std::is_integral<W>::value)
        return (W)((typename std::make_unsigned<W>::type)x - (typename std::make_unsigned<W>::type)y);
    else
        return x - y;
}
template <typename W> __device__ __forceinline__ W trek_wrap_mul(W x, W y)
{
    if constexpr (std::is_integral<W>::value)
        return (W)((typename std::make_unsigned<W>::type)x * (typename std::make_unsigned<W>::type)y);
    else
        return x * y;
}

/* Wraps around. With a negative exponent, returns the exact result rounded towards zero: 1, -1 or 0. */
__device__ __forceinline__ int64_t trek_power_integer(int64_t base, int64_t exponent)
{
    if (exponent < 0)
        return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
    uint64_t result = 1, factor = (uint64_t)base;
    for (; exponent > 0; exponent >>= 1, factor *= factor)
        if (exponent & 1)
            result *= factor;
    return (int64_t)result;
}

/* --- entries of the table ------------------------------------------------------------------------ */

/* id is TREK_OP_x; kernel is a template over the element type */
#define TREK_ENTER(b, id, DTYPE, kernel) (b)->kernels[id][TREK_##DTYPE] = kernel;
#define TREK_ENTER_FLOATS(b, id, kernel)                                                               \
    TREK_ENTER(b, id, F32, kernel<float>)                                                              \
    TREK_ENTER(b, id, F64, kernel<double>)                                                             \
    TREK_ENTER(b, id, BF16, kernel<trek_bf16>)                                                         \
    TREK_ENTER(b, id, F16, kernel<trek_f16>)
#define TREK_ENTER_INTEGERS(b, id, kernel)                                                             \
    TREK_ENTER(b, id, I64, kernel<int64_t>)                                                            \
    TREK_ENTER(b, id, I32, kernel<int32_t>)                                                            \
    TREK_ENTER(b, id, U8, kernel<uint8_t>)
/* bools are bytes of 0 and 1 */
#define TREK_ENTER_BOOL(b, id, kernel) TREK_ENTER(b, id, BOOL, kernel<uint8_t>)
/* by the size of elements, which are moved as bits */
#define TREK_ENTER_BITS(b, id, kernel)                                                                 \
    TREK_ENTER(b, id, F32, kernel<uint32_t>)                                                           \
    TREK_ENTER(b, id, F64, kernel<uint64_t>)                                                           \
    TREK_ENTER(b, id, BF16, kernel<uint16_t>)                                                          \
    TREK_ENTER(b, id, F16, kernel<uint16_t>)                                                           \
    TREK_ENTER(b, id, I64, kernel<uint64_t>)                                                           \
    TREK_ENTER(b, id, I32, kernel<uint32_t>)                                                           \
    TREK_ENTER(b, id, U8, kernel<uint8_t>)                                                             \
    TREK_ENTER(b, id, BOOL, kernel<uint8_t>)

#endif
