/* SPDX-License-Identifier: Apache-2.0 */
/* Muon on a GPU: matrix by matrix, as optim/muon.c does on the CPU. optimizer.cu.in compiles it after the class's
 * elements. */
#ifndef TREK_TENSOR_CUDA_OPTIM_MUON_CUH
#define TREK_TENSOR_CUDA_OPTIM_MUON_CUH

#include "tensor/cuda/optim/whole.cuh"
#include "tensor/cuda/products/blas.h"

/* Anonymous, because it is used only in this file. */
namespace {

/* A matrix in the queue's memory. */
struct muon_matrix {
    trek_dtype dtype;
    void *data;
    int64_t rows, cols, row, col; /* sizes and strides */
};

muon_matrix transposed(const muon_matrix &x) { return { x.dtype, x.data, x.cols, x.rows, x.col, x.row }; }

trek_status product(trek_cuda_queue *queue, const muon_matrix &to, const muon_matrix &a, const muon_matrix &b)
{
    trek_op op = {};
    op.name = "muon";
    trek_op_call call = {};
    call.op = &op;
    trek_cuda_gemm g = {};
    g.m = to.rows, g.n = to.cols, g.k = a.cols;
    g.a = a.data, g.b = b.data, g.c = to.data;
    g.a_row = a.row, g.a_col = a.col, g.b_row = b.row, g.b_col = b.col, g.c_row = to.row, g.c_col = to.col;
    g.dtype = g.c_dtype = to.dtype;
    return trek_cuda_gemm_run(&call, queue, &g);
}

/* Computes to = p x + q to. */
template <typename T> __global__ void combine_kernel(T *to, const T *x, T p, T q, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        to[i] = to[i] * q + x[i] * p;
}

template <typename T>
trek_status combine(trek_cuda_queue *queue, const muon_matrix &to, const muon_matrix &x, double p, double q)
{
    int64_t n = to.rows * to.cols;
    return trek_launch_plain("muon", queue, trek_loop(n), combine_kernel<T>, (T *)to.data, (const T *)x.data, (T)p, (T)q, n);
}

template <typename T> __global__ void shorten_kernel(T *x, int64_t n, const trek_update_state *norm, double eps)
{
    double length = sqrt(norm->sum_squares);
    T factor = (T)(1 / (length < eps ? eps : length));
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        x[i] *= factor;
}

/* Runs the quintic iteration towards the nearest orthogonal matrix. The result is in x; `other` may be written to. */
template <typename T>
trek_status newton_schulz(trek_cuda_queue *queue, const double *o, muon_matrix *x, muon_matrix other, const muon_matrix &gram,
                          const muon_matrix &square)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < (int)o[STEPS] && status == TREK_OK; k++) {
        status = product(queue, gram, *x, transposed(*x));
        if (status == TREK_OK)
            status = product(queue, square, gram, gram);
        if (status == TREK_OK)
            status = combine<T>(queue, square, gram, o[B], o[C]);
        if (status == TREK_OK)
            status = product(queue, other, square, *x);
        if (status == TREK_OK)
            status = combine<T>(queue, other, *x, o[A], 1);
        muon_matrix done = other;
        other = *x;
        *x = done;
    }
    return status;
}

struct muon_last {
    double adjusted;
    __device__ trek_whole_last operator()(const trek_update_slice &s) const
    {
        return { 1 - s.options[LR] * s.options[WEIGHT_DECAY], -s.options[LR] * adjusted };
    }
};

template <typename T> trek_status update_matrix(trek_cuda_queue *queue, const trek_update *update, int32_t r, bool zero_grads)
{
    const trek_update_run *run = &update->host_runs[r];
    const double *o = update->host_groups[run->group].options;
    int64_t few = run->rows < run->cols ? run->rows : run->cols;
    size_t all = ((size_t)run->count * sizeof(T) + 255) & ~(size_t)255,
        some = ((size_t)(few * few) * sizeof(T) + 255) & ~(size_t)255;
    trek_dtype dtype = (trek_dtype)run->dtype;
    trek_cuda_scratch room = { nullptr, nullptr };
    trek_status status = trek_cuda_scratch_take(queue, 2 * all + 2 * some + sizeof(trek_update_state), &room);
    if (status != TREK_OK)
        return status;
    char *at = (char *)room.data;
    trek_update_state *norm = (trek_update_state *)(at + 2 * all + 2 * some);
    muon_matrix x = { dtype, at, run->rows, run->cols, run->cols, 1 },
        other = { dtype, at + all, run->rows, run->cols, run->cols, 1 };
    muon_matrix gram = { dtype, at + 2 * all, few, few, few, 1 }, square = { dtype, at + 2 * all + some, few, few, few, 1 };
    if (run->rows > run->cols)
        x = transposed(x), other = transposed(other);
    trek_update one = trek_update_of_run(update, r);
    status = trek_launch_plain("update_apply", queue, trek_tile_blocks(&one), trek_room_kernel<muon_rule, T>, one, r, (int)WAY,
                               (T *)x.data, zero_grads);
    if (status == TREK_OK)
        status = trek_norm_into(queue, dtype, x.data, run->count, norm);
    if (status == TREK_OK)
        status = trek_launch_plain("muon", queue, trek_loop(run->count), shorten_kernel<T>, (T *)x.data, run->count,
                                   (const trek_update_state *)norm, o[EPS]);
    if (status == TREK_OK)
        status = newton_schulz<T>(queue, o, &x, other, gram, square);
    muon_last last = { muon_adjusted(o, (double)run->rows, (double)run->cols) };
    if (status == TREK_OK)
        status = trek_last_pass(queue, update, r, (const T *)x.data, last, false);
    trek_cuda_scratch_give(queue, &room);
    return status;
}

bool by_adam(const trek_update *update, int32_t r) { return update->host_groups[update->host_runs[r].group].options[ADAM] != 0; }

trek_status apply(trek_cuda_queue *queue, const trek_update *update, bool zero_grads)
{
    trek_status status = TREK_OK;
    for (int32_t r = 0; r < update->n_runs && status == TREK_OK;) {
        if (by_adam(update, r)) { /* neighbours are handled together */
            trek_update some = trek_update_of_run(update, r);
            for (r++; r < update->n_runs && by_adam(update, r); r++)
                some.n_tiles += trek_tiles_of(update->host_runs[r].count);
            status = trek_update_apply_by<muon_adamw_rule>(queue, &some, zero_grads);
            continue;
        }
        status = update->host_runs[r].dtype == TREK_F64 ? update_matrix<double>(queue, update, r, zero_grads)
                                                        : update_matrix<float>(queue, update, r, zero_grads);
        r++;
    }
    return status;
}

}

TREK_GPU_WHOLE(muon_whole, apply)

#endif
