/* SPDX-License-Identifier: Apache-2.0 */
/* Updates of whole parameters on a GPU, for classes whose elements depend on norms (lamb, lars) or products (muon,
 * adafactor). Everything that changes from step to step is read from the records (tensor/update.h), and data between
 * two passes is in the queue's memory. So nothing waits for the host, and a captured step can be replayed. */
#ifndef TREK_TENSOR_CUDA_OPTIM_WHOLE_CUH
#define TREK_TENSOR_CUDA_OPTIM_WHOLE_CUH

#include "tensor/cuda/optim/update_apply.cuh"

/* `function` is the class's update_apply, under the name that the class gives as `gpu`. */
#define TREK_GPU_WHOLE(name, function) static trek_cuda_update_entry name##_entry(#name, function, nullptr);

__host__ __device__ inline int64_t trek_tiles_of(int64_t count) { return (count + TREK_UPDATE_TILE - 1) / TREK_UPDATE_TILE; }

/* Returns the update of run r alone. */
inline trek_update trek_update_of_run(const trek_update *update, int32_t r)
{
    trek_update one = *update;
    one.first_tile = update->host_runs[r].first_tile;
    one.n_tiles = trek_tiles_of(update->host_runs[r].count);
    return one;
}

inline trek_grid trek_tile_blocks(const trek_update *u)
{
    return trek_blocks(dim3((unsigned)(u->n_tiles < 0x7fffffff ? u->n_tiles : 0x7fffffff)), dim3(TREK_UPDATE_THREADS));
}

/* --- one number for each parameter, from two sums over its elements -------------------------------------------------
 *
 * M says what: `rule` is what the first pass does to each element; `stored` of its states are loaded and stored; `zeroes`:
 * nobody reads gradients after it; sums(x, d, states, &first, &second) adds an element's parts, x and d being those before
 * the pass; number(slice, first, second) becomes correction[place] of the parameter's later slices. */

struct trek_two_sums {
    double first, second;
};

template <typename M, typename T>
__device__ __forceinline__ trek_two_sums trek_measure_tile(const trek_update_run &run, int64_t begin,
                                                           const trek_step_numbers<T> &s)
{
    trek_step_arrays<T> a = trek_arrays_of<T>(run);
    int64_t end = begin + TREK_UPDATE_TILE < run.count ? begin + TREK_UPDATE_TILE : run.count;
    trek_two_sums sums = { 0, 0 };
    for (int64_t i = begin + threadIdx.x; i < end && !s.skip; i += TREK_UPDATE_THREADS) {
        T x = a.param[i], d = trek_limited(s, a.grad[i]) * s.scale, own[TREK_UPDATE_STATES] = {}, moved = x;
#pragma unroll
        for (int k = 0; k < M::stored; k++)
            own[k] = a.state[k][i];
        M::rule::element(&moved, d, own, s.n, s.kept, s.variant);
        M::sums(x, d, own, &sums.first, &sums.second);
#pragma unroll
        for (int k = 0; k < M::stored; k++)
            a.state[k][i] = own[k];
    }
    if (M::zeroes && s.zero)
        trek_zero_range(a.grad, begin, end);
    return sums;
}

template <typename M> static __global__ void trek_measure_kernel(trek_update u, bool zero_grads, trek_two_sums *parts)
{
    TREK_SHARED(trek_step_numbers<float>, narrow, 1);
    TREK_SHARED(trek_step_numbers<double>, wide, 1);
    TREK_SHARED(double, joint, 32);
    for (int64_t tile = blockIdx.x; tile < u.n_tiles; tile += gridDim.x) {
        const trek_update_run &run = u.runs[u.tile_run[tile]];
        int64_t begin = (tile - run.first_tile) * TREK_UPDATE_TILE;
        if (threadIdx.x == 0) {
            if (run.dtype == TREK_F64)
                trek_fill_tile<typename M::rule>(u, run, zero_grads, &wide[0]);
            else
                trek_fill_tile<typename M::rule>(u, run, zero_grads, &narrow[0]);
        }
        __syncthreads();
        trek_two_sums own = run.dtype == TREK_F64 ? trek_measure_tile<M, double>(run, begin, wide[0])
                                                  : trek_measure_tile<M, float>(run, begin, narrow[0]);
        own.first = trek_team_sum(own.first, TREK_UPDATE_THREADS, joint);
        own.second = trek_team_sum(own.second, TREK_UPDATE_THREADS, joint);
        if (threadIdx.x == 0)
            parts[tile] = own;
        __syncthreads();
    }
}

/* One block for each run. */
template <typename M> static __global__ void trek_measured_kernel(trek_update u, const trek_two_sums *parts)
{
    TREK_SHARED(double, joint, 32);
    const trek_update_run &run = u.runs[blockIdx.x];
    trek_two_sums own = { 0, 0 };
    for (int64_t k = threadIdx.x, n = trek_tiles_of(run.count); k < n; k += TREK_UPDATE_THREADS) {
        own.first += parts[run.first_tile + k].first;
        own.second += parts[run.first_tile + k].second;
    }
    own.first = trek_team_sum(own.first, TREK_UPDATE_THREADS, joint);
    own.second = trek_team_sum(own.second, TREK_UPDATE_THREADS, joint);
    if (threadIdx.x == 0 && !u.state->skip) {
        trek_update_slice slice;
        trek_update_slice_of(&u, &run, false, &slice);
        u.segments[run.segment].correction[M::place] = M::number(slice, own.first, own.second);
    }
}

/* Runs the first pass, the numbers, and Last, which reads them: three launches for all parameters. */
template <typename M, typename Last>
static trek_status trek_measured_apply(trek_cuda_queue *queue, const trek_update *update, bool zero_grads)
{
    trek_cuda_scratch parts = { nullptr, nullptr };
    trek_status status = trek_cuda_scratch_take(queue, (size_t)update->n_tiles * sizeof(trek_two_sums), &parts);
    if (status == TREK_OK)
        status = trek_launch_plain("update_apply", queue, trek_tile_blocks(update), trek_measure_kernel<M>, *update, zero_grads,
                                   (trek_two_sums *)parts.data);
    if (status == TREK_OK)
        status = trek_launch_plain("update_apply", queue, trek_blocks(dim3((unsigned)update->n_runs), dim3(TREK_UPDATE_THREADS)),
                                   trek_measured_kernel<M>, *update, (const trek_two_sums *)parts.data);
    trek_cuda_scratch_give(queue, &parts);
    return status == TREK_OK ? trek_update_apply_by<Last>(queue, update, zero_grads && !M::zeroes) : status;
}

/* --- passes over one parameter ------------------------------------------------------------------------------------ */

/* Applies rule R to the elements of run r, with `room` as state number `slot`. The parameter keeps its values. */
template <typename R, typename T>
static __global__ void trek_room_kernel(trek_update u, int32_t r, int slot, T *room, bool zero_grads)
{
    TREK_SHARED(trek_step_numbers<T>, numbers, 1);
    trek_update_run run = u.runs[r];
    run.state[slot] = room;
    run.low = nullptr;
    if (threadIdx.x == 0)
        trek_fill_tile<R>(u, run, zero_grads, &numbers[0]);
    __syncthreads();
    for (int64_t tile = blockIdx.x; tile < u.n_tiles; tile += gridDim.x)
        trek_apply_tile<R, T>(run, tile * TREK_UPDATE_TILE, numbers[0]);
}

/* The last pass over a parameter: x keep + way factor. */
struct trek_whole_last {
    double keep, factor;
};

/* F returns a trek_whole_last for the slice of the run. The 16-bit parameter is updated as well, and gradients are
 * zeroed. */
template <typename T, typename F>
static __global__ void trek_last_kernel(trek_update u, int32_t r, const T *way, F last, bool zero_grads)
{
    TREK_SHARED(T, shared, 2);
    const trek_update_run &run = u.runs[r];
    trek_step_arrays<T> a = trek_arrays_of<T>(run);
    bool skip = u.state->skip != 0;
    if (threadIdx.x == 0) {
        trek_update_slice slice;
        trek_update_slice_of(&u, &run, zero_grads, &slice);
        trek_whole_last numbers = last(slice);
        shared[0] = (T)numbers.keep;
        shared[1] = (T)numbers.factor;
    }
    __syncthreads();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < run.count; i += (int64_t)gridDim.x * blockDim.x) {
        if (!skip) {
            T x = a.param[i] * shared[0] + way[i] * shared[1];
            a.param[i] = x;
            if (a.low)
                trek_store_low<1>(a.low + i, a.low_dtype, &x);
        }
        if (zero_grads)
            a.grad[i] = 0;
    }
}

template <typename T, typename F>
static trek_status trek_last_pass(trek_cuda_queue *queue, const trek_update *update, int32_t r, const T *way, F last,
                                  bool zero_grads)
{
    trek_grid grid = trek_loop(update->host_runs[r].count);
    grid.barriers = true;
    return trek_launch_plain("update_apply", queue, grid, trek_last_kernel<T, F>, *update, r, way, last, zero_grads);
}

inline trek_status trek_norm_into(trek_cuda_queue *queue, trek_dtype dtype, const void *data, int64_t count,
                                  trek_update_state *state)
{
    trek_update_span span = { data, count, dtype };
    return trek_cuda_norm_of(queue, &span, 1, state);
}

#endif
