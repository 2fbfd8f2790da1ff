/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps on a GPU: from records in device memory (tensor/update.h), and
 * over single slices. The formulas and their order are those of tensor/cpu/optim/arena.c. */
#include <float.h>

#include "tensor/cuda/products/blas.h"
#include "tensor/cuda/device.cuh"

#define THREADS 256
#define NORM_BLOCKS 1024     /* partial sums at most */
#define NORM_CHUNK 16384     /* elements of a block at least */
#define SOURCES 128          /* arrays that one launch adds up */

static trek_op_call call_of(const trek_op *op)
{
    trek_op_call call = {};
    call.op = op;
    return call;
}

/* Launches that no op stands behind: the name is for errors. */
template <typename... P, typename... A>
static trek_status launch(const char *name, trek_cuda_queue *queue, trek_grid grid, void (*kernel)(P...), A... arguments)
{
    trek_op op = {};
    op.name = name;
    trek_op_call call = call_of(&op);
    return trek_launch(&call, queue, grid, kernel, arguments...);
}

/* --- numbers --------------------------------------------------------------------------------- */

static __global__ void numbers_kernel(trek_update update, trek_update_numbers numbers)
{
    int k = (int)threadIdx.x;
    if (k == 0) {
        update.state->factor = numbers.factor;
        update.state->max_norm = numbers.max_norm;
        update.state->max_value = numbers.max_value;
        update.state->rng_step = numbers.rng_step;
    }
    if (k < numbers.n_lrs)
        update.lr[numbers.first_lr + k] = numbers.lr[k];
}

static trek_status update_numbers(trek_device device, const trek_update *update, const trek_update_numbers *numbers)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    return queue ? launch("update_numbers", queue, trek_loop(TREK_UPDATE_LRS), numbers_kernel, *update, *numbers)
                 : trek_status_get();
}

/* --- norm: blocks of a fixed size, added up in a fixed order ------------------------------------- */

struct norm_spans {
    trek_update_span span[TREK_UPDATE_SPANS];
    int64_t first_block[TREK_UPDATE_SPANS + 1]; /* a span's blocks; each has `chunk` elements */
    int n;
    int64_t chunk;
};

struct norm_part {
    double sum;
    long long finite;
};

/* The sum over a block's threads, in thread 0; the order is that of a tree, always the same. */
__device__ __forceinline__ void add_up(double *sums, int *flags)
{
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
            flags[threadIdx.x] &= flags[threadIdx.x + half];
        }
    }
    __syncthreads();
}

template <typename T, int width>
__device__ __forceinline__ void squares_of(const T *x, int64_t begin, int64_t end, double *sum, bool *finite)
{
    typedef trek_vector<T, width> vector;
    for (int64_t i = begin + (int64_t)threadIdx.x * width; i < end; i += THREADS * width) {
        if (i + width <= end) {
            vector v = *(const vector *)(x + i);
#pragma unroll
            for (int k = 0; k < width; k++) {
                *sum += (double)v.x[k] * (double)v.x[k];
                *finite = *finite && v.x[k] - v.x[k] == 0;
            }
            continue;
        }
        for (int64_t k = i; k < end; k++) {
            *sum += (double)x[k] * (double)x[k];
            *finite = *finite && x[k] - x[k] == 0;
        }
    }
}

static __global__ void norm_parts_kernel(norm_spans s, norm_part *parts)
{
    TREK_SHARED(double, sums, THREADS);
    TREK_SHARED(int, flags, THREADS);
    int k = 0;
    while (k + 1 < s.n && (int64_t)blockIdx.x >= s.first_block[k + 1])
        k++;
    trek_update_span span = s.span[k];
    int64_t begin = ((int64_t)blockIdx.x - s.first_block[k]) * s.chunk,
            end = begin + s.chunk < span.count ? begin + s.chunk : span.count;
    bool aligned = ((uintptr_t)span.data & 15) == 0, finite = true;
    double sum = 0;
    if (span.dtype == TREK_F64)
        aligned ? squares_of<double, 2>((const double *)span.data, begin, end, &sum, &finite)
                : squares_of<double, 1>((const double *)span.data, begin, end, &sum, &finite);
    else
        aligned ? squares_of<float, 4>((const float *)span.data, begin, end, &sum, &finite)
                : squares_of<float, 1>((const float *)span.data, begin, end, &sum, &finite);
    sums[threadIdx.x] = sum;
    flags[threadIdx.x] = finite;
    add_up(sums, flags);
    if (threadIdx.x == 0) {
        parts[blockIdx.x].sum = sums[0];
        parts[blockIdx.x].finite = flags[0];
    }
}

static __global__ void norm_kernel(const norm_part *parts, int64_t n, trek_update_state *state)
{
    TREK_SHARED(double, sums, THREADS);
    TREK_SHARED(int, flags, THREADS);
    double sum = 0;
    int finite = 1;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        sum += parts[i].sum;
        finite &= parts[i].finite != 0;
    }
    sums[threadIdx.x] = sum;
    flags[threadIdx.x] = finite;
    add_up(sums, flags);
    if (threadIdx.x == 0) {
        state->sum_squares = sums[0];
        state->finite = flags[0];
    }
}

static trek_status norm_of(trek_cuda_queue *queue, const trek_update_span *spans, int n, trek_update_state *state)
{
    norm_spans s = {};
    int64_t total = 0;
    for (int k = 0; k < n; k++)
        total += spans[k].count;
    s.chunk = (total / NORM_BLOCKS / NORM_CHUNK + 1) * NORM_CHUNK;
    for (int k = 0; k < n; k++) {
        if (spans[k].count == 0)
            continue;
        s.span[s.n] = spans[k];
        s.first_block[s.n + 1] = s.first_block[s.n] + (spans[k].count + s.chunk - 1) / s.chunk;
        s.n++;
    }
    int64_t blocks = s.first_block[s.n];
    trek_cuda_scratch parts = { nullptr, nullptr };
    trek_status status = trek_cuda_scratch_take(queue, (size_t)blocks * sizeof(norm_part), &parts);
    if (status == TREK_OK && blocks)
        status = launch("update_norm", queue, trek_blocks(dim3((unsigned)blocks), dim3(THREADS)), norm_parts_kernel, s,
                        (norm_part *)parts.data);
    if (status == TREK_OK)
        status = launch("update_norm", queue, trek_blocks(dim3(1), dim3(THREADS)), norm_kernel, (const norm_part *)parts.data,
                        blocks, state);
    trek_cuda_scratch_give(queue, &parts);
    return status;
}

static trek_status update_norm(trek_device device, const trek_update *update, const trek_update_span *spans, int n)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    return queue ? norm_of(queue, spans, n, update->state) : trek_status_get();
}

/* --- decisions -------------------------------------------------------------------------------------- */

static __global__ void decide_kernel(trek_update update, bool measured)
{
    if (threadIdx.x == 0)
        trek_update_decide_state(update.state, update.scaler, measured);
    __syncthreads();
    for (int32_t k = (int32_t)threadIdx.x; k < update.n_segments; k += (int32_t)blockDim.x)
        trek_update_decide_segment(&update, k);
}

static trek_status update_decide(trek_device device, const trek_update *update, bool measured)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue)
        return trek_status_get();
    return launch("update_decide", queue, trek_blocks(dim3(1), dim3(THREADS)), decide_kernel, *update, measured);
}

static __global__ void scaler_kernel(trek_update_scaler *scaler) { trek_update_scaler_adapt(scaler); }

static trek_status update_scaler(trek_device device, trek_update_scaler *scaler)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue)
        return trek_status_get();
    trek_grid one = { dim3(1), dim3(1), 0, false };
    return launch("update_scaler", queue, one, scaler_kernel, scaler);
}

/* --- the arithmetic of a step --------------------------------------------------------------------------- */

template <typename T> struct least_normal;
template <> struct least_normal<float> { static __device__ __forceinline__ float value() { return FLT_MIN; } };
template <> struct least_normal<double> { static __device__ __forceinline__ double value() { return DBL_MIN; } };

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }

/* What is the same for all elements of a parameter. */
template <typename T> struct step_numbers {
    T scale, limit; /* of the gradient; limit <= 0: none */
    T decay, keep;  /* coupled decay; what the parameter is multiplied by */
    T weight, other, beta2, rest2, step, correction, eps, tiny; /* Adam */
    T momentum, rest;                                           /* SGD */
    bool adam, from_end, has_buffer, first, nesterov, zero, skip;
};

template <typename T>
__device__ __forceinline__ void adam_numbers(step_numbers<T> *s, double lr, double beta1, double beta2, double eps, double decay,
                                             double bias1, double bias2, bool decoupled)
{
    s->adam = true;
    s->decay = (T)(decoupled ? 0 : decay);
    s->keep = (T)(decoupled ? 1 - lr * decay : 1);
    s->weight = (T)(1 - beta1);
    s->other = (T)beta1;
    s->beta2 = (T)beta2;
    s->rest2 = (T)(1 - beta2);
    s->step = (T)(-(lr / bias1));
    s->correction = (T)(1 / sqrt(bias2));
    s->eps = (T)eps;
    s->tiny = s->eps > 0 ? least_normal<T>::value() : (T)0;
    s->from_end = beta1 <= 0.5; /* as lerp does, which keeps it exact at both ends */
}

template <typename T>
__device__ __forceinline__ void sgd_numbers(step_numbers<T> *s, double lr, double momentum, double dampening, double decay,
                                            bool nesterov, bool first)
{
    s->adam = false;
    s->decay = (T)decay;
    s->momentum = (T)momentum;
    s->rest = (T)(1 - dampening);
    s->step = (T)-lr;
    s->tiny = least_normal<T>::value();
    s->nesterov = nesterov;
    s->first = first;
}

template <typename T> __device__ __forceinline__ T limited(const step_numbers<T> &s, T g)
{
    if (!(s.limit > 0))
        return g;
    T low = g < -s.limit ? -s.limit : g;
    return low > s.limit ? s.limit : low; /* NaN passes */
}

/* One element: p and the states m, v (Adam), m (SGD's buffer) are replaced. */
template <typename T> __device__ __forceinline__ void step_element(const step_numbers<T> &s, T *p, T g, T *m, T *v)
{
    T x = *p, d = limited(s, g) * s.scale;
    d = s.decay != 0 ? d + s.decay * x : d;
    if (s.adam) {
        x = x * s.keep;
        T mean = s.from_end ? d - (d - *m) * s.other : *m + s.weight * (d - *m);
        T square = *v * s.beta2 + s.rest2 * d * d;
        mean *= (T)(magnitude(mean) >= s.tiny); /* NaN stays NaN */
        square *= (T)(square >= s.tiny);
        *p = x + s.step * mean / (root(square) * s.correction + s.eps);
        *m = mean;
        *v = square;
        return;
    }
    if (s.has_buffer) {
        T moving = s.first ? d : *m * s.momentum + s.rest * d;
        moving *= (T)(magnitude(moving) >= s.tiny);
        d = s.nesterov ? d + s.momentum * moving : moving;
        *m = moving;
    }
    *p = x + s.step * d;
}

/* Elements of one parameter. */
template <typename T> struct step_arrays {
    T *param, *grad, *state[2];
    uint16_t *low;
    int low_dtype;
};

template <int width> __device__ __forceinline__ void store_low(uint16_t *to, int dtype, const float *x)
{
    trek_vector<uint16_t, width> v;
#pragma unroll
    for (int k = 0; k < width; k++)
        v.x[k] = dtype == TREK_BF16 ? trek_to_bf16(x[k]).bits : trek_to_f16(x[k]).bits;
    *(trek_vector<uint16_t, width> *)to = v;
}
template <int width> __device__ __forceinline__ void store_low(uint16_t *, int, const double *) {}

/* The `width` elements from `begin`, at once, or singly where `end` comes first. */
template <typename T, int width>
__device__ __forceinline__ void step_range(const step_numbers<T> &s, const step_arrays<T> &a, int64_t begin, int64_t end)
{
    typedef trek_vector<T, width> vector;
    bool buffer = s.adam || s.has_buffer;
    int64_t i = begin;
    if constexpr (width > 1)
        if (i + width > end) {
            for (; i < end; i++)
                step_range<T, 1>(s, a, i, i + 1);
            return;
        }
    vector g = *(const vector *)(a.grad + i), p = *(const vector *)(a.param + i), m = {}, v = {};
    if (buffer)
        m = *(const vector *)(a.state[0] + i);
    if (s.adam)
        v = *(const vector *)(a.state[1] + i);
#pragma unroll
    for (int k = 0; k < width; k++)
        step_element(s, &p.x[k], g.x[k], &m.x[k], &v.x[k]);
    *(vector *)(a.param + i) = p;
    if (buffer)
        *(vector *)(a.state[0] + i) = m;
    if (s.adam)
        *(vector *)(a.state[1] + i) = v;
    if (a.low)
        store_low<width>(a.low + i, a.low_dtype, p.x);
    if (s.zero)
        *(vector *)(a.grad + i) = vector{};
}

template <typename T> __device__ __forceinline__ void zero_range(T *grad, int64_t begin, int64_t end)
{
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS)
        grad[i] = 0;
}

/* --- a whole step, in one launch: a block for each tile ---------------------------------------------------- */

template <typename T>
__device__ __forceinline__ void fill_numbers(const trek_update &u, const trek_update_run &run, bool zero, step_numbers<T> *s)
{
    const trek_update_state *state = u.state;
    const trek_update_group *group = &u.groups[run.group];
    const trek_update_segment *segment = &u.segments[run.segment];
    s->skip = state->skip != 0;
    s->zero = zero;
    s->scale = (T)(group->maximize ? -state->grad_scale : state->grad_scale);
    s->limit = (T)state->value_limit;
    s->has_buffer = false;
    if (group->kind == TREK_UPDATE_SGD) {
        sgd_numbers(s, u.lr[run.group], group->momentum, group->dampening, group->weight_decay, group->nesterov != 0,
                    segment->first != 0);
        s->has_buffer = group->momentum > 0;
    } else {
        adam_numbers(s, u.lr[run.group], group->beta1, group->beta2, group->eps, group->weight_decay, segment->bias1,
                     segment->bias2, group->kind == TREK_UPDATE_ADAMW);
    }
}

template <typename T>
__device__ __forceinline__ void apply_tile(const trek_update_run &run, int64_t tile, const step_numbers<T> &s)
{
    const int width = 16 / (int)sizeof(T);
    step_arrays<T> a = {
        (T *)run.param, (T *)run.grad, { (T *)run.state[0], (T *)run.state[1] }, (uint16_t *)run.low, run.low_dtype
    };
    int64_t begin = (tile - run.first_tile) * TREK_UPDATE_TILE,
            end = begin + TREK_UPDATE_TILE < run.count ? begin + TREK_UPDATE_TILE : run.count;
    if (s.skip) {
        if (s.zero)
            zero_range(a.grad, begin, end);
        return;
    }
    uintptr_t addresses = (uintptr_t)run.param | (uintptr_t)run.grad | (uintptr_t)run.state[0] | (uintptr_t)run.state[1];
    bool aligned = (addresses & 15) == 0 && ((uintptr_t)run.low & 7) == 0;
    int64_t step = THREADS * width;
    if (aligned)
        for (int64_t i = begin + (int64_t)threadIdx.x * width; i < end; i += step)
            step_range<T, width>(s, a, i, i + width < end ? i + width : end);
    else
        for (int64_t i = begin + threadIdx.x; i < end; i += THREADS)
            step_range<T, 1>(s, a, i, i + 1);
}

/* Whole tiles of aligned f32, which nearly all are: everything is asked for before the numbers of the step are known. */
struct loaded_tile {
    static const int vectors = TREK_UPDATE_TILE / (4 * THREADS);
    trek_vector<float, 4> p[vectors], g[vectors], m[vectors], v[vectors];
};

__device__ __forceinline__ bool loads_early(const trek_update_run &run, int64_t begin)
{
    uintptr_t addresses = (uintptr_t)run.param | (uintptr_t)run.grad | (uintptr_t)run.state[0] | (uintptr_t)run.state[1];
    return run.dtype == TREK_F32 && (addresses & 15) == 0 && ((uintptr_t)run.low & 7) == 0 &&
           begin + TREK_UPDATE_TILE <= run.count;
}

__device__ __forceinline__ void load_tile(const trek_update_run &run, int64_t begin, loaded_tile *t)
{
#pragma unroll
    for (int k = 0; k < loaded_tile::vectors; k++) {
        int64_t i = begin + ((int64_t)k * THREADS + threadIdx.x) * 4;
        t->g[k] = *(const trek_vector<float, 4> *)((const float *)run.grad + i);
        t->p[k] = *(const trek_vector<float, 4> *)((const float *)run.param + i);
        t->m[k] = t->v[k] = trek_vector<float, 4>{};
        if (run.state[0])
            t->m[k] = *(const trek_vector<float, 4> *)((const float *)run.state[0] + i);
        if (run.state[1])
            t->v[k] = *(const trek_vector<float, 4> *)((const float *)run.state[1] + i);
    }
}

__device__ __forceinline__ void step_tile(const trek_update_run &run, int64_t begin, const step_numbers<float> &s, loaded_tile *t)
{
#pragma unroll
    for (int k = 0; k < loaded_tile::vectors; k++) {
        int64_t i = begin + ((int64_t)k * THREADS + threadIdx.x) * 4;
        if (s.zero)
            *(trek_vector<float, 4> *)((float *)run.grad + i) = trek_vector<float, 4>{};
        if (s.skip)
            continue;
#pragma unroll
        for (int e = 0; e < 4; e++)
            step_element(s, &t->p[k].x[e], t->g[k].x[e], &t->m[k].x[e], &t->v[k].x[e]);
        *(trek_vector<float, 4> *)((float *)run.param + i) = t->p[k];
        if (s.adam || s.has_buffer)
            *(trek_vector<float, 4> *)((float *)run.state[0] + i) = t->m[k];
        if (s.adam)
            *(trek_vector<float, 4> *)((float *)run.state[1] + i) = t->v[k];
        if (run.low)
            store_low<4>((uint16_t *)run.low + i, run.low_dtype, t->p[k].x);
    }
}

static __global__ void __launch_bounds__(THREADS, 2) apply_kernel(trek_update u, bool zero_grads)
{
    TREK_SHARED(step_numbers<float>, narrow, 1);
    TREK_SHARED(step_numbers<double>, wide, 1);
    for (int64_t tile = blockIdx.x; tile < u.n_tiles; tile += gridDim.x) {
        const trek_update_run &run = u.runs[u.tile_run[tile]];
        int64_t begin = (tile - run.first_tile) * TREK_UPDATE_TILE;
        bool early = loads_early(run, begin);
        loaded_tile t;
        if (early)
            load_tile(run, begin, &t);
        if (threadIdx.x == 0) {
            if (run.dtype == TREK_F64)
                fill_numbers(u, run, zero_grads, &wide[0]);
            else
                fill_numbers(u, run, zero_grads, &narrow[0]);
        }
        __syncthreads();
        if (early)
            step_tile(run, begin, narrow[0], &t);
        else if (run.dtype == TREK_F64)
            apply_tile<double>(run, tile, wide[0]);
        else
            apply_tile<float>(run, tile, narrow[0]);
        __syncthreads();
    }
}

static trek_status update_apply(trek_device device, const trek_update *update, bool zero_grads)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue)
        return trek_status_get();
    if (update->n_tiles == 0)
        return TREK_OK;
    int64_t blocks = update->n_tiles < 0x7fffffff ? update->n_tiles : 0x7fffffff;
    return launch("update_apply", queue, trek_blocks(dim3((unsigned)blocks), dim3(THREADS)), apply_kernel, *update, zero_grads);
}

/* --- slices: on the device where the calling thread is at home -------------------------------------------------- */

static trek_cuda_queue *queue_of_place(void)
{
    trek_device here = trek_cuda_host->place()->device;
    return trek_cuda_queue_here(here.type == TREK_CUDA ? here.index : 0);
}

template <typename T> static __global__ void adam_kernel(trek_adam_slice slice)
{
    step_numbers<T> s = {};
    adam_numbers(&s, slice.lr, slice.beta1, slice.beta2, slice.eps, slice.weight_decay, slice.bias1, slice.bias2,
                 slice.decoupled);
    s.scale = (T)(slice.maximize ? -slice.grad_scale : slice.grad_scale);
    s.zero = slice.zero_grad;
    step_arrays<T> a = {
        (T *)slice.param, (T *)slice.grad, { (T *)slice.m, (T *)slice.v }, (uint16_t *)slice.low, (int)slice.low_dtype
    };
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < slice.count; i += (int64_t)gridDim.x * blockDim.x)
        step_range<T, 1>(s, a, i, i + 1);
}

template <typename T> static __global__ void sgd_kernel(trek_sgd_slice slice)
{
    step_numbers<T> s = {};
    sgd_numbers(&s, slice.lr, slice.momentum, slice.dampening, slice.weight_decay, slice.nesterov, slice.first);
    s.has_buffer = slice.momentum_buffer != nullptr;
    s.scale = (T)(slice.maximize ? -slice.grad_scale : slice.grad_scale);
    s.zero = slice.zero_grad;
    step_arrays<T> a = { (T *)slice.param, (T *)slice.grad, { (T *)slice.momentum_buffer, nullptr }, (uint16_t *)slice.low,
                         (int)slice.low_dtype };
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < slice.count; i += (int64_t)gridDim.x * blockDim.x)
        step_range<T, 1>(s, a, i, i + 1);
}

static void adam(trek_dtype dtype, const trek_adam_slice *slice)
{
    trek_cuda_queue *queue = slice->count ? queue_of_place() : nullptr;
    if (queue)
        launch("adam", queue, trek_loop(slice->count), dtype == TREK_F64 ? adam_kernel<double> : adam_kernel<float>, *slice);
}

static void sgd(trek_dtype dtype, const trek_sgd_slice *slice)
{
    trek_cuda_queue *queue = slice->count ? queue_of_place() : nullptr;
    if (queue)
        launch("sgd", queue, trek_loop(slice->count), dtype == TREK_F64 ? sgd_kernel<double> : sgd_kernel<float>, *slice);
}

/* Waits for the result. On an error, which is the calling thread's, the sum is NaN and not finite. */
static void sum_squares(trek_dtype dtype, const void *data, int64_t count, double *sum, bool *finite)
{
    trek_cuda_queue *queue = queue_of_place();
    trek_update_span span = { data, count, dtype };
    trek_update_state state = {};
    trek_cuda_scratch result = { nullptr, nullptr };
    *sum = (double)NAN;
    *finite = false;
    if (!queue || trek_cuda_scratch_take(queue, sizeof state, &result) != TREK_OK)
        return;
    trek_device device = { TREK_CUDA, queue->device->index }, host = { TREK_CPU, 0 };
    trek_status status = norm_of(queue, &span, 1, (trek_update_state *)result.data);
    if (status == TREK_OK)
        status = trek_cuda_copy_bytes(&state, host, result.data, device, sizeof state, nullptr);
    if (status == TREK_OK) {
        *sum = state.sum_squares;
        *finite = state.finite != 0;
    }
    trek_cuda_scratch_give(queue, &result);
}

struct sources {
    const void *from[SOURCES];
    int n;
};

/* carry: the sum of the sources before; NULL: these are the first. */
template <typename T> static __global__ void sum_arrays_kernel(T *to, const T *carry, sources s, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        T sum = carry ? carry[i] : ((const T *)s.from[0])[i];
        for (int k = carry ? 0 : 1; k < s.n; k++)
            sum += ((const T *)s.from[k])[i];
        to[i] = sum;
    }
}

template <typename T>
static trek_status sum_arrays_of(trek_cuda_queue *queue, T *to, const void *const *from, int n, int64_t count)
{
    trek_cuda_scratch carry = { nullptr, nullptr };
    trek_status status = n > SOURCES ? trek_cuda_scratch_take(queue, (size_t)count * sizeof(T), &carry) : TREK_OK;
    for (int first = 0; first < n && status == TREK_OK; first += SOURCES) {
        sources s = {};
        s.n = n - first < SOURCES ? n - first : SOURCES;
        for (int k = 0; k < s.n; k++)
            s.from[k] = from[first + k];
        bool last = first + s.n == n;
        status = launch("sum_arrays", queue, trek_loop(count), sum_arrays_kernel<T>, last ? to : (T *)carry.data,
                        first ? (const T *)carry.data : (const T *)nullptr, s, count);
    }
    trek_cuda_scratch_give(queue, &carry);
    return status;
}

static void sum_arrays(trek_dtype dtype, void *to, const void *const *from, int n, int64_t count)
{
    trek_cuda_queue *queue = n > 0 && count > 0 ? queue_of_place() : nullptr;
    if (!queue)
        return;
    if (dtype == TREK_F64)
        sum_arrays_of<double>(queue, (double *)to, from, n, count);
    else
        sum_arrays_of<float>(queue, (float *)to, from, n, count);
}

template <typename T> static __global__ void scale_kernel(T *x, int64_t n, T factor)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        x[i] *= factor;
}

template <typename T> static __global__ void clamp_kernel(T *x, int64_t n, T limit)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        T low = x[i] < -limit ? -limit : x[i];
        x[i] = low > limit ? limit : low;
    }
}

static void scale(trek_dtype dtype, void *data, int64_t count, double factor)
{
    trek_cuda_queue *queue = count ? queue_of_place() : nullptr;
    if (queue && dtype == TREK_F64)
        launch("scale", queue, trek_loop(count), scale_kernel<double>, (double *)data, count, factor);
    else if (queue)
        launch("scale", queue, trek_loop(count), scale_kernel<float>, (float *)data, count, (float)factor);
}

static void clamp_abs(trek_dtype dtype, void *data, int64_t count, double limit)
{
    trek_cuda_queue *queue = count ? queue_of_place() : nullptr;
    if (queue && dtype == TREK_F64)
        launch("clamp_abs", queue, trek_loop(count), clamp_kernel<double>, (double *)data, count, limit);
    else if (queue)
        launch("clamp_abs", queue, trek_loop(count), clamp_kernel<float>, (float *)data, count, (float)limit);
}

extern "C" void trek_cuda_register_update(trek_backend *backend)
{
    backend->update_numbers = update_numbers;
    backend->update_norm = update_norm;
    backend->update_decide = update_decide;
    backend->update_apply = update_apply;
    backend->update_scaler = update_scaler;
    backend->adam = adam;
    backend->sgd = sgd;
    backend->sum_squares = sum_squares;
    backend->sum_arrays = sum_arrays;
    backend->scale = scale;
    backend->clamp_abs = clamp_abs;
}
