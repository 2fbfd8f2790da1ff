/* SPDX-License-Identifier: Apache-2.0 */
/* Adafactor on a GPU: parameter by parameter, as optim/adafactor.c does on the CPU. optimizer.cu.in compiles it after
 * that file. */
#ifndef TREK_TENSOR_CUDA_OPTIM_ADAFACTOR_CUH
#define TREK_TENSOR_CUDA_OPTIM_ADAFACTOR_CUH

#include "tensor/cuda/optim/whole.cuh"

namespace {

enum { THREADS = 256, CHUNK = 128 /* rows that one thread adds up */ };

/* One parameter: `count` matrices one after the other; vectors have none. The queue's memory holds the averages'
 * means [count], the columns' sums by chunks, the direction, and what norms are measured into. */
struct factors {
    trek_update u;
    int32_t r;
    int64_t count, rows, cols, chunks;
    double *means, *parts;
    void *way;
    trek_update_state *param_norm, *way_norm;
};

/* What all elements of a step have in common. */
template <typename T> struct now_of {
    double weight, scale, floor;
    T limit;
    bool skip;
    trek_update_slice slice;
};

template <typename T> __device__ void read_now(const factors &f, now_of<T> *now)
{
    trek_update_slice *s = &now->slice;
    trek_update_slice_of(&f.u, &f.u.runs[f.r], false, s);
    now->weight = pow((double)s->step, s->options[BETA2_DECAY]);
    now->scale = s->grad_scale;
    now->floor = s->options[EPS1] > 0 ? s->options[EPS1] : sizeof(T) == 8 ? DBL_EPSILON : FLT_EPSILON;
    now->limit = (T)s->value_limit;
    now->skip = f.u.state->skip != 0;
}

template <typename T> __device__ __forceinline__ T limited(T g, T limit)
{
    T low = g < -limit ? -limit : g;
    return !(limit > 0) ? g : low > limit ? limit : low; /* NaN passes */
}

/* `width` threads for each row: the average of its mean square. */
template <typename T> __global__ void rows_kernel(factors f, int width)
{
    TREK_SHARED(now_of<T>, shared, 1);
    if (threadIdx.x == 0)
        read_now(f, &shared[0]);
    __syncthreads();
    const now_of<T> &now = shared[0];
    int each = THREADS / width, lane = (int)threadIdx.x % width;
    const T *g = (const T *)now.slice.grad;
    T *average = (T *)now.slice.state[ROWS];
    for (int64_t first = (int64_t)blockIdx.x * each; first < f.count * f.rows; first += (int64_t)gridDim.x * each) {
        int64_t row = first + (int)threadIdx.x / width;
        double sum = 0;
        for (int64_t j = lane; row < f.count * f.rows && j < f.cols; j += width) {
            double own = (double)limited(g[row * f.cols + j], now.limit);
            sum += own * own;
        }
        sum = trek_team_sum(sum, width, (double *)nullptr);
        if (lane == 0 && row < f.count * f.rows && !now.skip)
            average[row] = (T)adafactor_lerp(average[row], sum * now.scale * now.scale / (double)f.cols, now.weight);
    }
}

template <typename T> __device__ __forceinline__ void average_column(const factors &f, const now_of<T> &now, int64_t k,
                                                                     double sum)
{
    T *average = (T *)now.slice.state[COLUMNS];
    if (!now.skip)
        average[k] = (T)adafactor_lerp(average[k], sum * now.scale * now.scale / (double)f.rows, now.weight);
}

/* One thread for each column of each chunk of rows; with a single chunk, it has the whole column. */
template <typename T> __global__ void columns_kernel(factors f)
{
    TREK_SHARED(now_of<T>, shared, 1);
    if (threadIdx.x == 0)
        read_now(f, &shared[0]);
    __syncthreads();
    const now_of<T> &now = shared[0];
    const T *g = (const T *)now.slice.grad;
    int64_t n = f.count * f.chunks * f.cols;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t j = i % f.cols, chunk = i / f.cols % f.chunks, at = i / f.cols / f.chunks, row = chunk * CHUNK;
        int64_t end = row + CHUNK < f.rows ? row + CHUNK : f.rows;
        double sum = 0;
        for (; row < end; row++) {
            double own = (double)limited(g[(at * f.rows + row) * f.cols + j], now.limit);
            sum += own * own;
        }
        if (f.chunks > 1)
            f.parts[i] = sum;
        else
            average_column(f, now, i, sum);
    }
}

template <typename T> __global__ void chunks_kernel(factors f)
{
    TREK_SHARED(now_of<T>, shared, 1);
    if (threadIdx.x == 0)
        read_now(f, &shared[0]);
    __syncthreads();
    for (int64_t k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; k < f.count * f.cols; k += (int64_t)gridDim.x * blockDim.x) {
        int64_t at = k / f.cols, j = k % f.cols;
        double sum = 0;
        for (int64_t chunk = 0; chunk < f.chunks; chunk++)
            sum += f.parts[(at * f.chunks + chunk) * f.cols + j];
        average_column(f, shared[0], k, sum);
    }
}

/* `width` threads for each matrix: the mean of its rows' averages. */
template <typename T> __global__ void means_kernel(factors f, int width)
{
    TREK_SHARED(double, joint, 32);
    int each = THREADS / width, lane = (int)threadIdx.x % width;
    const T *average = (const T *)f.u.runs[f.r].state[ROWS];
    for (int64_t first = (int64_t)blockIdx.x * each; first < f.count; first += (int64_t)gridDim.x * each) {
        int64_t at = first + (int)threadIdx.x / width;
        double sum = 0;
        for (int64_t k = lane; at < f.count && k < f.rows; k += width)
            sum += (double)average[at * f.rows + k];
        sum = trek_team_sum(sum, width, joint);
        if (lane == 0 && at < f.count)
            f.means[at] = sum / (double)f.rows;
    }
}

/* Divides the gradient by the root of rows times columns over the rows' mean. */
template <typename T> __global__ void ways_kernel(factors f)
{
    TREK_SHARED(now_of<T>, shared, 1);
    if (threadIdx.x == 0)
        read_now(f, &shared[0]);
    __syncthreads();
    const now_of<T> &now = shared[0];
    const T scale = (T)now.scale, least = (T)(now.floor * now.floor);
    const T *g = (const T *)now.slice.grad, *rows = (const T *)now.slice.state[ROWS],
        *columns = (const T *)now.slice.state[COLUMNS];
    T *way = (T *)f.way;
    int64_t n = f.count * f.rows * f.cols;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / f.cols, at = row / f.rows;
        double mean = f.means[at];
        T square = (T)((double)rows[row] / (mean < now.floor ? now.floor : mean)) * columns[at * f.cols + i % f.cols];
        way[i] = limited(g[i], now.limit) * scale / trek_root(square < least ? least : square);
    }
}

/* Vectors keep a square for each element. */
template <typename T> __global__ void vector_kernel(factors f)
{
    TREK_SHARED(now_of<T>, shared, 1);
    if (threadIdx.x == 0)
        read_now(f, &shared[0]);
    __syncthreads();
    const now_of<T> &now = shared[0];
    const T scale = (T)now.scale, least = (T)(now.floor * now.floor), weight = (T)now.weight, rest = (T)(1 - now.weight);
    T *average = (T *)now.slice.state[SQUARE], *way = (T *)f.way;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < now.slice.count; i += (int64_t)gridDim.x * blockDim.x) {
        T g = limited(((const T *)now.slice.grad)[i], now.limit) * scale, fresh = g * g, old = average[i];
        T square = weight < (T)0.5 ? old + weight * (fresh - old) : fresh - (fresh - old) * rest;
        if (!now.skip)
            average[i] = square;
        way[i] = g / trek_root(square < least ? least : square);
    }
}

struct adafactor_last {
    const trek_update_state *param, *way;
    __device__ trek_whole_last operator()(const trek_update_slice &s) const
    {
        return { 1 - s.options[LR] * s.options[WEIGHT_DECAY],
                 adafactor_factor(s.options, (double)s.step, (double)s.count, sqrt(param->sum_squares), sqrt(way->sum_squares)) };
    }
};

/* The threads share what all of them need. */
trek_grid meeting(int64_t n)
{
    trek_grid grid = trek_loop(n);
    grid.barriers = true;
    return grid;
}

trek_grid teams(int64_t n, int width)
{
    int64_t blocks = (n * width + THREADS - 1) / THREADS;
    return trek_blocks(dim3((unsigned)(blocks < 0x7fffffff ? blocks : 0x7fffffff)), dim3(THREADS));
}

template <typename T> trek_status matrices(trek_cuda_queue *queue, const factors &f)
{
    int across = f.cols < 32 ? 1 << trek_log2_up(f.cols) : 32, down = f.rows <= 32 ? 1 << trek_log2_up(f.rows) : THREADS;
    trek_status status = trek_launch_plain("adafactor", queue, teams(f.count * f.rows, across), rows_kernel<T>, f, across);
    if (status == TREK_OK)
        status = trek_launch_plain("adafactor", queue, meeting(f.count * f.chunks * f.cols), columns_kernel<T>, f);
    if (status == TREK_OK && f.chunks > 1)
        status = trek_launch_plain("adafactor", queue, meeting(f.count * f.cols), chunks_kernel<T>, f);
    if (status == TREK_OK)
        status = trek_launch_plain("adafactor", queue, teams(f.count, down), means_kernel<T>, f, down);
    return status == TREK_OK ? trek_launch_plain("adafactor", queue, meeting(f.count * f.rows * f.cols), ways_kernel<T>, f)
        : status;
}

size_t padded(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

template <typename T> trek_status update_one(trek_cuda_queue *queue, const trek_update *update, int32_t r, bool zero_grads)
{
    const trek_update_run *run = &update->host_runs[r];
    factors f = { *update, r, 0, run->rows, run->cols, 1, nullptr, nullptr, nullptr, nullptr, nullptr };
    if (run->rows > 0) {
        f.count = run->count / (run->rows * run->cols);
        f.chunks = (run->rows + CHUNK - 1) / CHUNK;
    }
    size_t means = padded((size_t)f.count * sizeof(double)), norms = padded(2 * sizeof(trek_update_state));
    size_t parts = f.chunks > 1 ? padded((size_t)(f.count * f.chunks * f.cols) * sizeof(double)) : 0;
    trek_cuda_scratch room = { nullptr, nullptr };
    trek_status status = trek_cuda_scratch_take(queue, means + parts + norms + (size_t)run->count * sizeof(T), &room);
    if (status != TREK_OK)
        return status;
    char *at = (char *)room.data;
    f.means = (double *)at;
    f.parts = (double *)(at + means);
    f.param_norm = (trek_update_state *)(at + means + parts);
    f.way_norm = f.param_norm + 1;
    f.way = at + means + parts + norms;
    status = trek_norm_into(queue, (trek_dtype)run->dtype, run->param, run->count, f.param_norm);
    if (status == TREK_OK)
        status = f.count ? matrices<T>(queue, f)
                         : trek_launch_plain("adafactor", queue, meeting(run->count), vector_kernel<T>, f);
    if (status == TREK_OK)
        status = trek_norm_into(queue, (trek_dtype)run->dtype, f.way, run->count, f.way_norm);
    adafactor_last last = { f.param_norm, f.way_norm };
    if (status == TREK_OK)
        status = trek_last_pass(queue, update, r, (const T *)f.way, last, zero_grads);
    trek_cuda_scratch_give(queue, &room);
    return status;
}

trek_status apply(trek_cuda_queue *queue, const trek_update *update, bool zero_grads)
{
    trek_status status = TREK_OK;
    for (int32_t r = 0; r < update->n_runs && status == TREK_OK; r++)
        status = update->host_runs[r].dtype == TREK_F64 ? update_one<double>(queue, update, r, zero_grads)
                                                        : update_one<float>(queue, update, r, zero_grads);
    return status;
}

}

TREK_GPU_WHOLE(adafactor_whole, apply)

#endif
