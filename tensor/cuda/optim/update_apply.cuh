/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer's update on a GPU, built from what its class defines for one element (optim/update_element.h): a whole
 * step from records in device memory (tensor/update.h), and single slices. optimizer.cu.in compiles the file of a
 * class after this one and adds its kernels to a list when the plug-in is loaded. */
#ifndef TREK_TENSOR_CUDA_OPTIM_UPDATE_APPLY_CUH
#define TREK_TENSOR_CUDA_OPTIM_UPDATE_APPLY_CUH

#include <float.h>

#include "tensor/cuda/block.cuh"
#include "tensor/cuda/moves/random.cuh"
#include "tensor/state_code.h"
#include "tensor/state_round.h"

#define TREK_UPDATE_THREADS 256

/* Launches that belong to no op; the name is for errors. */
template <typename... P, typename... A>
inline trek_status trek_launch_plain(const char *name, trek_cuda_queue *queue, trek_grid grid, void (*kernel)(P...),
                                     A... arguments)
{
    trek_op op = {};
    op.name = name;
    trek_op_call call = {};
    call.op = &op;
    return trek_launch(&call, queue, grid, kernel, arguments...);
}

/* One class's kernels. */
struct trek_cuda_update {
    const char *name;
    trek_status (*apply)(trek_cuda_queue *queue, const trek_update *update, bool zero_grads);
    /* NULL for a class of whole parameters, which only `apply` updates. */
    void (*slice)(trek_cuda_queue *queue, trek_dtype dtype, const trek_update_slice *slice);
    trek_cuda_update *next;
};
/* update.cu */
extern trek_cuda_update *trek_cuda_updates;
/* Computes sum_squares and finite of a state in device memory from n spans, in blocks of a fixed size and added up in
 * a fixed order. */
trek_status trek_cuda_norm_of(trek_cuda_queue *queue, const trek_update_span *spans, int n, trek_update_state *state);

struct trek_cuda_update_entry {
    trek_cuda_update update;
    trek_cuda_update_entry(const char *name, trek_status (*apply)(trek_cuda_queue *, const trek_update *, bool),
                           void (*slice)(trek_cuda_queue *, trek_dtype, const trek_update_slice *))
        : update{ name, apply, slice, trek_cuda_updates }
    {
        trek_cuda_updates = &update;
    }
};

/* --- for the texts of elements ---------------------------------------------------------------------------- */

/* trek_root is block.cuh's */
__device__ __forceinline__ float trek_magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double trek_magnitude(double x) { return fabs(x); }

#define TREK_GPU_NUMBERS(name) __device__ static inline int name##_numbers(const trek_update_slice *s, double *n)
#define TREK_GPU_ELEMENT(name, count, always, ...)                                                                \
    struct name##_rule {                                                                                          \
        static const int states = count;                                                                          \
        static const uint32_t always_kept = always;                                                               \
        static __device__ __forceinline__ int numbers(const trek_update_slice *s, double *n) { return name##_numbers(s, n); } \
        template <typename T>                                                                                     \
        static __device__ __forceinline__ void element(T *x, T d, T *s, const T *n, uint32_t kept, int variant)   \
        {                                                                                                         \
            (void)x, (void)d, (void)s, (void)n, (void)kept, (void)variant;                                        \
            __VA_ARGS__                                                                                           \
        }                                                                                                         \
    };                                                                                                            \
    static trek_cuda_update_entry name##_entry(#name, trek_update_apply_by<name##_rule>, trek_update_slice_by<name##_rule>);

/* --- the arithmetic of a step --------------------------------------------------------------------------- */

/* What all elements of a parameter have in common. */
template <typename T> struct trek_step_numbers {
    T scale, limit; /* of the gradient; limit <= 0 means none */
    T n[TREK_UPDATE_NUMBERS_MOST];
    uint32_t kept;
    uint32_t step; /* the step whose bf16 states are rounded */
    int variant;
    bool zero, skip;
};

template <typename R, typename T>
__device__ __forceinline__ void trek_fill_step(const trek_update_slice &slice, bool skip, trek_step_numbers<T> *s)
{
    double wide[TREK_UPDATE_NUMBERS_MOST] = {};
    s->variant = R::numbers(&slice, wide);
#pragma unroll
    for (int k = 0; k < TREK_UPDATE_NUMBERS_MOST; k++)
        s->n[k] = (T)wide[k];
    s->scale = (T)slice.grad_scale;
    s->limit = (T)slice.value_limit;
    s->kept = slice.kept | R::always_kept;
    s->step = (uint32_t)slice.step;
    s->zero = slice.zero_grad;
    s->skip = skip;
}

template <typename T> __device__ __forceinline__ T trek_limited(const trek_step_numbers<T> &s, T g)
{
    if (!(s.limit > 0))
        return g;
    T low = g < -s.limit ? -s.limit : g;
    return low > s.limit ? s.limit : low; /* NaN passes */
}

/* Updates one element: p and its states are replaced. */
template <typename R, typename T>
__device__ __forceinline__ void trek_step_element(const trek_step_numbers<T> &s, T *p, T g, T *states)
{
    R::element(p, trek_limited(s, g) * s.scale, states, s.n, s.kept, s.variant);
}

/* Elements of one parameter. */
template <typename T> struct trek_step_arrays {
    T *param, *grad, *state[TREK_UPDATE_STATES];
    uint16_t *low;
    int low_dtype;
    bool low_state; /* state is bf16, whatever the pointers' type */
    int64_t first;  /* position of element 0 */
};

template <typename T> __device__ __forceinline__ trek_step_arrays<T> trek_arrays_of(const trek_update_slice &s)
{
    return { (T *)s.param, (T *)s.grad, { (T *)s.state[0], (T *)s.state[1], (T *)s.state[2] }, (uint16_t *)s.low,
             (int)s.low_dtype, s.state_dtype == TREK_BF16, s.first };
}

template <int width> __device__ __forceinline__ void trek_store_low(uint16_t *to, int dtype, const float *x)
{
    trek_vector<uint16_t, width> v;
#pragma unroll
    for (int k = 0; k < width; k++)
        v.x[k] = dtype == TREK_BF16 ? trek_to_bf16(x[k]).bits : trek_to_f16(x[k]).bits;
    *(trek_vector<uint16_t, width> *)to = v;
}
template <int width> __device__ __forceinline__ void trek_store_low(uint16_t *, int, const double *) {}

/* States in bf16 (tensor/state_round.h). `words` of a draw belong to 1 or 4 elements from `place` on, which is a
 * multiple of that number. */
template <int width> __device__ __forceinline__ trek_vector<float, width> trek_load_state(const void *from, int64_t i)
{
    trek_vector<uint16_t, width> low = *(const trek_vector<uint16_t, width> *)((const uint16_t *)from + i);
    trek_vector<float, width> x;
#pragma unroll
    for (int e = 0; e < width; e++)
        x.x[e] = trek_get(trek_bf16{ low.x[e] });
    return x;
}

/* Not inlined, because a kernel uses it in a dozen places. */
static __device__ __attribute__((noinline)) trek_vector<uint32_t, 4> trek_chances_of(uint64_t block, uint32_t draw, uint32_t step)
{
    trek_vector<uint32_t, 4> words;
    trek_cuda_philox(TREK_STATE_SEED, block, draw, step, words.x);
    return words;
}

template <int width> __device__ __forceinline__ void trek_draw_chances(int64_t place, uint32_t draw, uint32_t step,
                                                                       uint32_t *words)
{
    trek_vector<uint32_t, 4> block = trek_chances_of((uint64_t)place / 4, draw, step);
#pragma unroll
    for (int e = 0; e < width; e++)
        words[e] = block.x[e];
#pragma unroll
    for (int e = 1; e < 4 && width == 1; e++)
        words[0] = (place & 3) == e ? block.x[e] : words[0];
}

template <int width>
__device__ __forceinline__ void trek_store_state(void *to, int64_t i, const trek_vector<float, width> &x, const uint32_t *words,
                                                 int shift)
{
    trek_vector<uint16_t, width> low;
#pragma unroll
    for (int e = 0; e < width; e++)
        low.x[e] = trek_state_round(trek_bits_of_f32(x.x[e]), words[e] >> shift);
    *(trek_vector<uint16_t, width> *)((uint16_t *)to + i) = low;
}

/* The `width` elements of vectors, and their new values. */
template <typename R, typename T, int width> struct trek_step_piece {
    typedef trek_vector<T, width> vector;
    vector p, g, states[R::states > 0 ? R::states : 1];

    __device__ __forceinline__ void step(const trek_step_numbers<T> &s)
    {
#pragma unroll
        for (int e = 0; e < width; e++) {
            T own[TREK_UPDATE_STATES] = {};
#pragma unroll
            for (int k = 0; k < R::states; k++)
                own[k] = states[k].x[e];
            trek_step_element<R>(s, &p.x[e], g.x[e], own);
#pragma unroll
            for (int k = 0; k < R::states; k++)
                states[k].x[e] = own[k];
        }
    }

    __device__ __forceinline__ void load_states(uint32_t kept, const trek_step_arrays<T> &a, int64_t i)
    {
        if constexpr (sizeof(T) == sizeof(float))
            if (a.low_state) {
#pragma unroll
                for (int k = 0; k < R::states; k++)
                    if (kept >> k & 1)
                        states[k] = trek_load_state<width>(a.state[k], i);
                return;
            }
#pragma unroll
        for (int k = 0; k < R::states; k++)
            if (kept >> k & 1)
                states[k] = *(const vector *)(a.state[k] + i);
    }

    __device__ __forceinline__ void store_states(const trek_step_numbers<T> &s, const trek_step_arrays<T> &a, int64_t i) const
    {
        if constexpr (sizeof(T) == sizeof(float))
            if (a.low_state) {
                uint32_t words[width];
#pragma unroll
                for (int k = 0; k < R::states; k++) {
                    if (k % 2 == 0 && (s.kept >> k & 3))
                        trek_draw_chances<width>(a.first + i, (uint32_t)k / 2, s.step, words);
                    if (s.kept >> k & 1)
                        trek_store_state<width>(a.state[k], i, states[k], words, k % 2 * 16);
                }
                return;
            }
#pragma unroll
        for (int k = 0; k < R::states; k++)
            if (s.kept >> k & 1)
                *(vector *)(a.state[k] + i) = states[k];
    }

    __device__ __forceinline__ void store(const trek_step_numbers<T> &s, const trek_step_arrays<T> &a, int64_t i) const
    {
        *(vector *)(a.param + i) = p;
        store_states(s, a, i);
        if (a.low)
            trek_store_low<width>(a.low + i, a.low_dtype, p.x);
    }
};

/* Updates the `width` elements from `begin` on: at once, or one by one if `end` comes first or arrays are not aligned. */
template <typename R, typename T, int width>
__device__ __forceinline__ void trek_step_range(const trek_step_numbers<T> &s, const trek_step_arrays<T> &a, int64_t begin,
                                                int64_t end, bool aligned)
{
    typedef trek_vector<T, width> vector;
    int64_t i = begin;
    if constexpr (width > 1)
        if (!aligned || i + width > end) {
            end = i + width < end ? i + width : end;
#pragma unroll 1
            for (; i < end; i++)
                trek_step_range<R, T, 1>(s, a, i, end, aligned);
            return;
        }
    trek_step_piece<R, T, width> piece = {};
    piece.g = *(const vector *)(a.grad + i);
    piece.p = *(const vector *)(a.param + i);
    piece.load_states(s.kept, a, i);
    piece.step(s);
    piece.store(s, a, i);
    if (s.zero)
        *(vector *)(a.grad + i) = vector{};
}

template <typename T> __device__ __forceinline__ void trek_zero_range(T *grad, int64_t begin, int64_t end)
{
    for (int64_t i = begin + threadIdx.x; i < end; i += TREK_UPDATE_THREADS)
        grad[i] = 0;
}

/* --- a whole step, in one launch: a block for each tile ---------------------------------------------------- */

template <typename R, typename T>
__device__ __forceinline__ void trek_fill_tile(const trek_update &u, const trek_update_run &run, bool zero,
                                               trek_step_numbers<T> *s)
{
    trek_update_slice slice;
    trek_update_slice_of(&u, &run, zero, &slice);
    trek_fill_step<R>(slice, u.state->skip != 0, s);
}

__device__ __forceinline__ bool trek_run_is_aligned(const trek_update_run &run)
{
    uintptr_t addresses = (uintptr_t)run.param | (uintptr_t)run.grad;
#pragma unroll
    for (int k = 0; k < TREK_UPDATE_STATES; k++)
        addresses |= (uintptr_t)run.state[k];
    return (addresses & 15) == 0 && ((uintptr_t)run.low & 7) == 0 && (run.first & 3) == 0;
}

template <typename T> __device__ __forceinline__ trek_step_arrays<T> trek_arrays_of(const trek_update_run &run)
{
    return { (T *)run.param, (T *)run.grad, { (T *)run.state[0], (T *)run.state[1], (T *)run.state[2] }, (uint16_t *)run.low,
             run.low_dtype, run.state_dtype == TREK_BF16, run.first };
}

template <typename R, typename T>
__device__ __forceinline__ void trek_apply_tile(const trek_update_run &run, int64_t begin, const trek_step_numbers<T> &s)
{
    const int width = sizeof(T) == sizeof(float) ? 4 : 1; /* f64 is rare, and vector code would be as long as everything else */
    trek_step_arrays<T> a = trek_arrays_of<T>(run);
    int64_t end = begin + TREK_UPDATE_TILE < run.count ? begin + TREK_UPDATE_TILE : run.count;
    if (s.skip) {
        if (s.zero)
            trek_zero_range(a.grad, begin, end);
        return;
    }
    const bool aligned = trek_run_is_aligned(run);
#pragma unroll 1
    for (int64_t i = begin + (int64_t)threadIdx.x * width; i < end; i += TREK_UPDATE_THREADS * width)
        trek_step_range<R, T, width>(s, a, i, end, aligned);
}

/* Whole tiles of aligned f32, which nearly all tiles are: everything is loaded before the numbers of the step are
 * known. */
template <typename R> struct trek_loaded_tile {
    typedef trek_vector<float, 4> vector;
    static const int vectors = TREK_UPDATE_TILE / (4 * TREK_UPDATE_THREADS);
    trek_step_piece<R, float, 4> pieces[vectors];

    __device__ __forceinline__ static int64_t place(int64_t begin, int k)
    {
        return begin + ((int64_t)k * TREK_UPDATE_THREADS + threadIdx.x) * 4;
    }

    __device__ __forceinline__ void load(const trek_update_run &run, int64_t begin)
    {
        uint32_t there = 0;
#pragma unroll
        for (int state = 0; state < R::states; state++)
            there |= run.state[state] ? 1u << state : 0;
        trek_step_arrays<float> a = trek_arrays_of<float>(run);
#pragma unroll
        for (int k = 0; k < vectors; k++) {
            int64_t i = place(begin, k);
            pieces[k].g = *(const vector *)(a.grad + i);
            pieces[k].p = *(const vector *)(a.param + i);
#pragma unroll
            for (int state = 0; state < R::states; state++)
                pieces[k].states[state] = vector{};
            pieces[k].load_states(there, a, i);
        }
    }

    __device__ __forceinline__ void step(const trek_update_run &run, int64_t begin, const trek_step_numbers<float> &s)
    {
        trek_step_arrays<float> a = trek_arrays_of<float>(run);
#pragma unroll
        for (int k = 0; k < vectors; k++) {
            int64_t i = place(begin, k);
            if (s.zero)
                *(vector *)(a.grad + i) = vector{};
            if (s.skip)
                continue;
            pieces[k].step(s);
            pieces[k].store(s, a, i);
        }
    }
};

template <typename R> static __global__ void __launch_bounds__(TREK_UPDATE_THREADS, 2) trek_apply_kernel(trek_update u,
                                                                                                         bool zero_grads)
{
    TREK_SHARED(trek_step_numbers<float>, narrow, 1);
    TREK_SHARED(trek_step_numbers<double>, wide, 1);
    for (int64_t tile = u.first_tile + blockIdx.x; tile < u.first_tile + u.n_tiles; tile += gridDim.x) {
        const trek_update_run &run = u.runs[u.tile_run[tile]];
        int64_t begin = (tile - run.first_tile) * TREK_UPDATE_TILE;
        bool early = run.dtype == TREK_F32 && begin + TREK_UPDATE_TILE <= run.count && trek_run_is_aligned(run);
        trek_loaded_tile<R> loaded;
        if (early)
            loaded.load(run, begin);
        if (threadIdx.x == 0) {
            if (run.dtype == TREK_F64)
                trek_fill_tile<R>(u, run, zero_grads, &wide[0]);
            else
                trek_fill_tile<R>(u, run, zero_grads, &narrow[0]);
        }
        __syncthreads();
        if (early)
            loaded.step(run, begin, narrow[0]);
        else if (run.dtype == TREK_F64)
            trek_apply_tile<R, double>(run, begin, wide[0]);
        else
            trek_apply_tile<R, float>(run, begin, narrow[0]);
        __syncthreads();
    }
}

/* --- states in u8 (tensor/state_code.h): a warp for each block of elements ------------------------------------ */

/* Returns where a thread's piece of a block begins. Neighbouring threads have neighbouring pieces. */
#define TREK_CODED_PIECES (TREK_CODE_BLOCK / (32 * 4))
__device__ __forceinline__ int trek_coded_place(int piece) { return (piece * 32 + ((int)threadIdx.x & 31)) * 4; }

/* Decodes one state of a thread's elements, of which n are present in each piece. The block's scale is the same in
 * all threads. */
__device__ __forceinline__ void trek_decode_state(const uint8_t *codes, float scale, const int *n, int wide,
                                                  trek_vector<float, 4> *x)
{
#pragma unroll
    for (int k = 0; k < TREK_CODED_PIECES; k++) {
        trek_vector<uint8_t, 4> code = {};
        const uint8_t *from = codes + trek_coded_place(k);
        if (n[k] == 4)
            code = *(const trek_vector<uint8_t, 4> *)from;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (n[k] < 4 && e < n[k])
                code.x[e] = from[e];
            x[k].x[e] = trek_code_number(code.x[e], wide) * scale;
        }
    }
}

__device__ __forceinline__ void trek_encode_state(uint8_t *codes, float *scale, const int *n, int wide,
                                                  const trek_vector<float, 4> *x)
{
    uint32_t key = 0;
#pragma unroll
    for (int k = 0; k < TREK_CODED_PIECES; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t own = e < n[k] ? trek_code_key(wide && x[k].x[e] < 0 ? 0 : x[k].x[e]) : 0;
            key = own > key ? own : key;
        }
    float most = trek_code_scale(trek_team_reduce(key, 32, (uint32_t *)nullptr, 0u, trek_maxes()));
    float inverse = trek_code_inverse(most);
#pragma unroll
    for (int k = 0; k < TREK_CODED_PIECES; k++) {
        trek_vector<uint8_t, 4> code;
        uint8_t *to = codes + trek_coded_place(k);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            code.x[e] = (uint8_t)trek_code_of(x[k].x[e] * inverse, wide);
            if (n[k] < 4 && e < n[k])
                to[e] = code.x[e];
        }
        if (n[k] == 4)
            *(trek_vector<uint8_t, 4> *)to = code;
    }
    if ((threadIdx.x & 31) == 0)
        *scale = most;
}

/* Load a thread's piece of parameters or gradients: 4 elements at a 16-byte address at once, fewer ones one by one. */
__device__ __forceinline__ trek_vector<float, 4> trek_load_some(const float *from, int n, bool aligned)
{
    trek_vector<float, 4> x = {};
    if (n == 4 && aligned)
        return *(const trek_vector<float, 4> *)from;
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (e < n)
            x.x[e] = from[e];
    return x;
}
__device__ __forceinline__ void trek_store_some(float *to, const trek_vector<float, 4> &x, int n, bool aligned)
{
    if (n == 4 && aligned) {
        *(trek_vector<float, 4> *)to = x;
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (e < n)
            to[e] = x.x[e];
}

/* Updates the block that begins at `begin`, with the threads of a warp. */
template <typename R>
__device__ __forceinline__ void trek_step_coded(const trek_step_numbers<float> &s, const trek_step_arrays<float> &a,
                                                float *const *scale, uint32_t positive, int64_t begin, int64_t count)
{
    trek_step_piece<R, float, 4> pieces[TREK_CODED_PIECES] = {};
    trek_vector<float, 4> states[TREK_CODED_PIECES];
    int n[TREK_CODED_PIECES];
    bool aligned = (((uintptr_t)a.param | (uintptr_t)a.grad) & 15) == 0; /* codes and 16-bit parameters are aligned, as blocks
                                                                          * are */
#pragma unroll
    for (int k = 0; k < TREK_CODED_PIECES; k++) {
        int64_t left = count - begin - trek_coded_place(k);
        n[k] = left >= 4 ? 4 : left > 0 ? (int)left : 0;
        pieces[k].g = trek_load_some(a.grad + begin + trek_coded_place(k), n[k], aligned);
        pieces[k].p = trek_load_some(a.param + begin + trek_coded_place(k), n[k], aligned);
    }
#pragma unroll
    for (int state = 0; state < R::states; state++) {
        if (!(s.kept >> state & 1))
            continue;
        trek_decode_state((const uint8_t *)a.state[state] + begin, scale[state][begin / TREK_CODE_BLOCK], n,
                          (int)(positive >> state & 1), states);
#pragma unroll
        for (int k = 0; k < TREK_CODED_PIECES; k++)
            pieces[k].states[state] = states[k];
    }
    __syncwarp(); /* scales have been read */
#pragma unroll
    for (int k = 0; k < TREK_CODED_PIECES; k++) {
        int64_t at = begin + trek_coded_place(k);
        pieces[k].step(s);
        trek_store_some(a.param + at, pieces[k].p, n[k], aligned);
        if (a.low && n[k] == 4)
            trek_store_low<4>(a.low + at, a.low_dtype, pieces[k].p.x);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (a.low && n[k] < 4 && e < n[k])
                trek_store_low<1>(a.low + at + e, a.low_dtype, &pieces[k].p.x[e]);
        if (s.zero)
            trek_store_some(a.grad + at, trek_vector<float, 4>{}, n[k], aligned);
    }
#pragma unroll
    for (int state = 0; state < R::states; state++) {
        if (!(s.kept >> state & 1))
            continue;
#pragma unroll
        for (int k = 0; k < TREK_CODED_PIECES; k++)
            states[k] = pieces[k].states[state];
        trek_encode_state((uint8_t *)a.state[state] + begin, &scale[state][begin / TREK_CODE_BLOCK], n,
                          (int)(positive >> state & 1), states);
    }
}

/* A tile of a run whose state is in u8. */
template <typename R>
__device__ __forceinline__ void trek_apply_coded_tile(const trek_update_run &run, uint32_t positive, int64_t begin,
                                                      const trek_step_numbers<float> &s)
{
    trek_step_arrays<float> a = trek_arrays_of<float>(run);
    int64_t end = begin + TREK_UPDATE_TILE < run.count ? begin + TREK_UPDATE_TILE : run.count;
    if (s.skip) {
        if (s.zero)
            trek_zero_range(a.grad, begin, end);
        return;
    }
    for (int64_t at = begin + (int64_t)(threadIdx.x >> 5) * TREK_CODE_BLOCK; at < end;
         at += TREK_UPDATE_THREADS / 32 * TREK_CODE_BLOCK)
        trek_step_coded<R>(s, a, run.scale, positive, at, run.count);
}

/* Like trek_apply_kernel, for an optimizer whose state is in u8. It is separate so that the others keep their
 * registers. */
template <typename R> static __global__ void __launch_bounds__(TREK_UPDATE_THREADS, 2) trek_apply_coded_kernel(trek_update u,
                                                                                                               bool zero_grads)
{
    TREK_SHARED(trek_step_numbers<float>, narrow, 1);
    TREK_SHARED(trek_step_numbers<double>, wide, 1);
    for (int64_t tile = u.first_tile + blockIdx.x; tile < u.first_tile + u.n_tiles; tile += gridDim.x) {
        const trek_update_run &run = u.runs[u.tile_run[tile]];
        int64_t begin = (tile - run.first_tile) * TREK_UPDATE_TILE;
        if (threadIdx.x == 0) {
            if (run.dtype == TREK_F64)
                trek_fill_tile<R>(u, run, zero_grads, &wide[0]);
            else
                trek_fill_tile<R>(u, run, zero_grads, &narrow[0]);
        }
        __syncthreads();
        if (run.dtype == TREK_F64)
            trek_apply_tile<R, double>(run, begin, wide[0]);
        else
            trek_apply_coded_tile<R>(run, u.groups[run.group].positive, begin, narrow[0]);
        __syncthreads();
    }
}

template <typename R> static trek_status trek_update_apply_by(trek_cuda_queue *queue, const trek_update *update, bool zero_grads)
{
    int64_t blocks = update->n_tiles < 0x7fffffff ? update->n_tiles : 0x7fffffff;
    return trek_launch_plain("update_apply", queue, trek_blocks(dim3((unsigned)blocks), dim3(TREK_UPDATE_THREADS)),
                             update->coded ? trek_apply_coded_kernel<R> : trek_apply_kernel<R>, *update, zero_grads);
}

/* --- slices ----------------------------------------------------------------------------------------------- */

template <typename R> static __global__ void trek_slice_coded_kernel(trek_update_slice slice)
{
    trek_step_numbers<float> s = {};
    trek_fill_step<R>(slice, false, &s);
    trek_step_arrays<float> a = trek_arrays_of<float>(slice);
    int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32), warp = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (int64_t at = warp * TREK_CODE_BLOCK; at < slice.count; at += warps * TREK_CODE_BLOCK)
        trek_step_coded<R>(s, a, slice.scale, slice.positive, at, slice.count);
}

template <typename R, typename T> static __global__ void trek_slice_kernel(trek_update_slice slice)
{
    trek_step_numbers<T> s = {};
    trek_fill_step<R>(slice, false, &s);
    trek_step_arrays<T> a = trek_arrays_of<T>(slice);
#pragma unroll 1
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < slice.count; i += (int64_t)gridDim.x * blockDim.x)
        trek_step_range<R, T, 1>(s, a, i, slice.count, true);
}

template <typename R> static void trek_update_slice_by(trek_cuda_queue *queue, trek_dtype dtype, const trek_update_slice *slice)
{
    int64_t blocks = (slice->count + TREK_UPDATE_TILE - 1) / TREK_UPDATE_TILE;
    if (slice->state_dtype == TREK_U8)
        trek_launch_plain("update_slice", queue,
                          trek_blocks(dim3((unsigned)(blocks < 65535 ? blocks : 65535)), dim3(TREK_UPDATE_THREADS)),
                          trek_slice_coded_kernel<R>, *slice);
    else
        trek_launch_plain("update_slice", queue, trek_loop(slice->count),
                          dtype == TREK_F64 ? trek_slice_kernel<R, double> : trek_slice_kernel<R, float>, *slice);
}

#endif
