/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps on a GPU: from records in device memory (tensor/update.h), and over single slices. The classes
 * define what is done to an element (optim/); their files are compiled with update_apply.cuh. */
#include "tensor/cuda/products/blas.h"
#include "tensor/cuda/optim/update_apply.cuh"

#define THREADS TREK_UPDATE_THREADS
#define SOURCES 128          /* arrays that one launch adds */

template <typename... P, typename... A>
static trek_status launch(const char *name, trek_cuda_queue *queue, trek_grid grid, void (*kernel)(P...), A... arguments)
{
    return trek_launch_plain(name, queue, grid, kernel, arguments...);
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
                 : trek_error_status();
}

/* --- norm: blocks of a fixed size, added in a fixed order --------------------------------------------- */

struct norm_spans {
    trek_update_span span[TREK_UPDATE_SPANS];
    int64_t first_block[TREK_UPDATE_SPANS + 1]; /* a span's blocks; each has `chunk` elements */
    int n;
    int64_t chunk;
};

/* Computes the sum over a block's threads, in thread 0, always in the order of the same tree. */
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

/* parts: [2 blocks] a sum, and 1 if some number is inf or NaN. */
static __global__ void norm_parts_kernel(norm_spans s, double *parts)
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
        parts[2 * (int64_t)blockIdx.x] = sums[0];
        parts[2 * (int64_t)blockIdx.x + 1] = flags[0] ? 0 : 1;
    }
}

static __global__ void norm_kernel(const double *parts, int64_t n, trek_update_state *state)
{
    TREK_SHARED(double, sums, THREADS);
    TREK_SHARED(int, flags, THREADS);
    double sum = 0;
    int finite = 1;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        sum += parts[2 * i];
        finite &= parts[2 * i + 1] == 0;
    }
    sums[threadIdx.x] = sum;
    flags[threadIdx.x] = finite;
    add_up(sums, flags);
    if (threadIdx.x == 0) {
        state->sum_squares = sums[0];
        state->finite = flags[0];
    }
}

/* Measures spans in chunks, one after the other. */
static trek_status norm_parts_of(trek_cuda_queue *queue, const trek_update_span *spans, int64_t n, int64_t chunk, double *parts)
{
    trek_status status = TREK_OK;
    for (int64_t k = 0; k < n && status == TREK_OK;) {
        norm_spans s = {};
        s.chunk = chunk;
        for (; k < n && s.n < TREK_UPDATE_SPANS; k++) {
            s.span[s.n] = spans[k];
            s.first_block[s.n + 1] = s.first_block[s.n] + (spans[k].count + chunk - 1) / chunk;
            s.n += spans[k].count > 0;
        }
        if (s.n > 0)
            status = launch("update_norm", queue, trek_blocks(dim3((unsigned)s.first_block[s.n]), dim3(THREADS)),
                            norm_parts_kernel, s, parts);
        parts += 2 * s.first_block[s.n];
    }
    return status;
}

static trek_status norm_join_of(trek_cuda_queue *queue, const double *parts, int64_t n, trek_update_state *state)
{
    return launch("update_norm", queue, trek_blocks(dim3(1), dim3(THREADS)), norm_kernel, parts, n, state);
}

trek_status trek_cuda_norm_of(trek_cuda_queue *queue, const trek_update_span *spans, int n, trek_update_state *state)
{
    int64_t total = 0, blocks = 0;
    for (int k = 0; k < n; k++)
        total += spans[k].count;
    int64_t chunk = trek_update_norm_chunk(total);
    for (int k = 0; k < n; k++)
        blocks += (spans[k].count + chunk - 1) / chunk;
    trek_cuda_scratch parts = { nullptr, nullptr };
    trek_status status = trek_cuda_scratch_take(queue, (size_t)blocks * 2 * sizeof(double), &parts);
    if (status == TREK_OK)
        status = norm_parts_of(queue, spans, n, chunk, (double *)parts.data);
    if (status == TREK_OK)
        status = norm_join_of(queue, (const double *)parts.data, blocks, state);
    trek_cuda_scratch_give(queue, &parts);
    return status;
}

static trek_status norm_parts(trek_device device, const trek_update_span *spans, int64_t n, double *parts)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    return queue ? norm_parts_of(queue, spans, n, INT64_MAX / 2, parts) : trek_error_status();
}

static trek_status norm_join(trek_device device, const double *parts, int64_t n, trek_update_state *state)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    return queue ? norm_join_of(queue, parts, n, state) : trek_error_status();
}

static trek_status update_norm(trek_device device, const trek_update *update, const trek_update_span *spans, int n)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    return queue ? trek_cuda_norm_of(queue, spans, n, update->state) : trek_error_status();
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
        return trek_error_status();
    return launch("update_decide", queue, trek_blocks(dim3(1), dim3(THREADS)), decide_kernel, *update, measured);
}

static __global__ void scaler_kernel(trek_update_scaler *scaler) { trek_update_scaler_adapt(scaler); }

static trek_status update_scaler(trek_device device, trek_update_scaler *scaler)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue)
        return trek_error_status();
    trek_grid one = { dim3(1), dim3(1), 0, false };
    return launch("update_scaler", queue, one, scaler_kernel, scaler);
}

/* --- updates, by the kernels of the classes (update_apply.cuh) ------------------------------------------- */

trek_cuda_update *trek_cuda_updates;

static const trek_cuda_update *update_at(int number)
{
    const trek_cuda_update *update = trek_cuda_updates;
    for (; update && number > 0; number--)
        update = update->next;
    return update;
}

static int update_kernel(const char *name)
{
    int number = 0;
    for (const trek_cuda_update *update = trek_cuda_updates; update; update = update->next, number++)
        if (strcmp(update->name, name) == 0)
            return number;
    return -1;
}

static trek_status update_apply(trek_device device, const trek_update *update, bool zero_grads)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    if (!queue)
        return trek_error_status();
    if (update->n_tiles == 0)
        return TREK_OK;
    return update_at(update->kernel.device)->apply(queue, update, zero_grads);
}

/* --- slices ------------------------------------------------------------------------------------------------ */

static void update_slice(trek_device device, const trek_update_kernel *kernel, trek_dtype dtype, const trek_update_slice *slice)
{
    trek_cuda_queue *queue = slice->count ? trek_cuda_queue_here(device.index) : nullptr;
    if (queue)
        update_at(kernel->device)->slice(queue, dtype, slice);
}

/* Waits for the result. After an error, which is set in the calling thread, the sum is NaN and not finite. */
static void sum_squares(trek_device device, trek_dtype dtype, const void *data, int64_t count, double *sum, bool *finite)
{
    trek_cuda_queue *queue = trek_cuda_queue_here(device.index);
    trek_update_span span = { data, count, dtype };
    trek_update_state state = {};
    trek_cuda_scratch result = { nullptr, nullptr };
    *sum = (double)NAN;
    *finite = false;
    if (!queue || trek_cuda_scratch_take(queue, sizeof state, &result) != TREK_OK)
        return;
    trek_device host = { TREK_CPU, 0 };
    trek_status status = trek_cuda_norm_of(queue, &span, 1, (trek_update_state *)result.data);
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

static void sum_arrays(trek_device device, trek_dtype dtype, void *to, const void *const *from, int n, int64_t count)
{
    trek_cuda_queue *queue = n > 0 && count > 0 ? trek_cuda_queue_here(device.index) : nullptr;
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

static void scale(trek_device device, trek_dtype dtype, void *data, int64_t count, double factor)
{
    trek_cuda_queue *queue = count ? trek_cuda_queue_here(device.index) : nullptr;
    if (queue && dtype == TREK_F64)
        launch("scale", queue, trek_loop(count), scale_kernel<double>, (double *)data, count, factor);
    else if (queue)
        launch("scale", queue, trek_loop(count), scale_kernel<float>, (float *)data, count, (float)factor);
}

static void clamp_abs(trek_device device, trek_dtype dtype, void *data, int64_t count, double limit)
{
    trek_cuda_queue *queue = count ? trek_cuda_queue_here(device.index) : nullptr;
    if (queue && dtype == TREK_F64)
        launch("clamp_abs", queue, trek_loop(count), clamp_kernel<double>, (double *)data, count, limit);
    else if (queue)
        launch("clamp_abs", queue, trek_loop(count), clamp_kernel<float>, (float *)data, count, (float)limit);
}

extern "C" void trek_cuda_register_update(trek_backend *backend)
{
    backend->update_numbers = update_numbers;
    backend->update_norm = update_norm;
    backend->norm_parts = norm_parts;
    backend->norm_join = norm_join;
    backend->update_decide = update_decide;
    backend->update_apply = update_apply;
    backend->update_scaler = update_scaler;
    backend->update_kernel = update_kernel;
    backend->update_slice = update_slice;
    backend->sum_squares = sum_squares;
    backend->sum_arrays = sum_arrays;
    backend->scale = scale;
    backend->clamp_abs = clamp_abs;
}
