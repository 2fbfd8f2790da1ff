/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy of logits and labels, with class weights, label smoothing (Szegedy and others 2016) and ignored rows,
 * and its gradient: each reads the logits once. The rows' losses are added in fixed blocks, in order. */
#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/reduce/powers.cuh"
#include "tensor/op_opts.h"

#define THREADS 256
#define ROW_BLOCKS 64 /* the most blocks that add losses */

template <typename T> struct loss_call {
    typedef typename trek_wide<T>::type W;
    const T *logits;
    trek_indices labels;
    trek_numbers weight; /* of the classes; none: 1 each */
    int64_t rows, n, ignore;
    double smoothing;
    trek_cuda_fault_record *faults;
    int op;
};

/* Returns the label of a row; -1: the row does not count. */
template <typename T> static __device__ __forceinline__ int64_t label_of(const loss_call<T> &a, int64_t row, bool note)
{
    int64_t label = a.labels[row];
    if (label == a.ignore)
        return -1;
    if (label >= 0 && label < a.n)
        return label;
    if (note)
        trek_note_fault(a.faults, a.op, TREK_CUDA_FAULT_LABEL, label, row, a.n);
    return -1;
}

/* --- forward ------------------------------------------------------------------------------ */

/* top: the largest number so far; less: for powers; sum: of e^(x - shift), including NaN; weighted: of weight x;
 * weights: of weight. */
template <typename W> struct row_sums {
    W top, less, sum;
    double weighted, weights;
};
template <typename T> struct row_join {
    typedef typename trek_wide<T>::type W;
    __device__ __forceinline__ void operator()(row_sums<W> &a, const row_sums<W> &b) const
    {
        if (b.top > a.top) {
            a.sum = (a.sum != 0 ? a.sum * trek_powers<T>::ratio(b.less - a.less) : 0) + b.sum;
            a.top = b.top;
            a.less = b.less;
        } else if (b.sum != 0) {
            a.sum += b.sum * trek_powers<T>::ratio(a.less - b.less);
        }
        a.weighted += b.weighted;
        a.weights += b.weights;
    }
};

/* Adds V logits, with one maximum for all of them. */
template <typename T, int V>
static __device__ __forceinline__ void take_vector(row_sums<typename trek_wide<T>::type> &s, const trek_vector<T, V> &x)
{
    typedef typename trek_wide<T>::type W;
    W top, v[V], sum = 0;
#pragma unroll
    for (int k = 0; k < V; k++) {
        v[k] = trek_get(x.x[k]);
        top = k > 0 ? fmax(top, v[k]) : v[k];
    }
    if (top > s.top) {
        const W less = trek_powers<T>::less(top);
        s.sum *= trek_powers<T>::ratio(less - s.less);
        s.top = top;
        s.less = less;
    }
#pragma unroll
    for (int k = 0; k < V; k++)
        sum += trek_powers<T>::of(v[k], s.less);
    s.sum += sum;
}

/* losses[row] = the weighted loss, counted[row] = the row's weight (both may be NULL). */
template <typename T, int V>
static __global__ void __launch_bounds__(THREADS) loss_kernel(loss_call<T> a, trek_block_layout layout,
                                                              double *lse,
                                                              double *losses, double *counted)
{
    typedef typename trek_wide<T>::type W;
    TREK_SHARED(row_sums<W>, shared, THREADS);
    const int r = trek_block_r(layout), step = 1 << layout.log_r;
    const int64_t row = ((int64_t)blockIdx.x << layout.log_c) + trek_block_c(layout), n = a.n / V;
    const trek_vector<T, V> *x = reinterpret_cast<const trek_vector<T, V> *>(a.logits + row * a.n);
    const bool inside = row < a.rows, smooth = a.smoothing > 0;
    row_sums<W> s;
    s.top = -INFINITY;
    s.less = trek_powers<T>::less(s.top);
    s.sum = 0;
    s.weighted = s.weights = 0;
    for (int64_t j = r; inside && j < n; j += step) {
        trek_vector<T, V> v = x[j];
        take_vector<T, V>(s, v);
        for (int k = 0; smooth && k < V; k++) {
            double w = a.weight.x ? a.weight.get(j * V + k) : 1;
            s.weighted += w * (double)trek_get(v.x[k]);
            s.weights += w;
        }
    }
    trek_block_reduce(s, layout, shared, row_join<T>());
    if (r != 0 || !inside)
        return;
    double shift = trek_powers<T>::shift(s.less), rest = log((double)s.sum), logsumexp = shift + rest, loss = 0, own = 0;
    int64_t label = label_of(a, row, true);
    lse[row] = logsumexp;
    if (label >= 0) {
        own = a.weight.x ? a.weight.get(label) : 1;
        loss = own * (shift - (double)trek_get(a.logits[row * a.n + label]) + rest);
        if (smooth)
            loss = (1 - a.smoothing) * loss + a.smoothing / (double)a.n * (logsumexp * s.weights - s.weighted);
    }
    losses[row] = loss;
    counted[row] = own;
}

struct two_sums {
    double loss, weight;
};
struct two_join {
    __device__ __forceinline__ void operator()(two_sums &a, const two_sums &b) const
    {
        a.loss += b.loss;
        a.weight += b.weight;
    }
};

/* Adds a block's part; the last step (to NULL) writes the results. */
static __global__ void __launch_bounds__(THREADS) total_kernel(const double *losses, const double *counted, int64_t n,
                                                               int64_t each,
                                                               double *to, double *to_counted, trek_numbers loss,
                                                               trek_numbers total, int reduction)
{
    TREK_SHARED(two_sums, shared, THREADS);
    const trek_block_layout layout = { 8, 0, true };
    const int64_t begin = (int64_t)blockIdx.x * each, end = begin + each < n ? begin + each : n;
    two_sums s = { 0, 0 };
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        s.loss += losses[i];
        s.weight += counted[i];
    }
    trek_block_reduce(s, layout, shared, two_join());
    if (threadIdx.x != 0)
        return;
    if (to) {
        to[blockIdx.x] = s.loss;
        to_counted[blockIdx.x] = s.weight;
        return;
    }
    total.put(0, s.weight);
    if (reduction != TREK_REDUCTION_NONE)
        loss.put(0, reduction == TREK_REDUCTION_SUM ? s.loss : s.weight != 0 ? s.loss / s.weight : 0);
}

static __global__ void each_loss_kernel(const double *losses, int64_t n, trek_numbers to)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        to.put(i, losses[i]);
}

static trek_status add_up(const trek_op_call *call, trek_cuda_queue *queue, double *losses, double *counted, int64_t rows)
{
    int reduction = (int)call->attrs.i[1];
    trek_numbers loss = trek_numbers_of(call->outputs[0]), total = trek_numbers_of(call->outputs[2]);
    if (reduction == TREK_REDUCTION_NONE && rows > 0)
        TRY(trek_launch(call, queue, trek_loop(rows), each_loss_kernel, (const double *)losses, rows, loss));
    int64_t blocks = rows / 2048 + 1, each = (rows + blocks - 1) / blocks;
    trek_held partials;
    if (blocks > 1) {
        blocks = blocks < ROW_BLOCKS ? blocks : ROW_BLOCKS;
        each = (rows + blocks - 1) / blocks;
        TRY(partials.take(queue, (size_t)blocks * 2 * sizeof(double)));
        double *to = partials.as<double>();
        TRY(trek_launch(call, queue, trek_blocks(dim3((unsigned)blocks), dim3(THREADS)), total_kernel, (const double *)losses,
                        (const double *)counted, rows, each, to, to + blocks, loss, total, reduction));
        losses = to;
        counted = to + blocks;
        rows = each = blocks;
    }
    return trek_launch(call, queue, trek_blocks(dim3(1), dim3(THREADS)), total_kernel, (const double *)losses,
                       (const double *)counted,
                       rows, each, (double *)NULL, (double *)NULL, loss, total, reduction);
}

/* Plans threads for rows of n vectors. */
static trek_block_layout lay_rows(int64_t n, int each)
{
    trek_block_layout l = { trek_log2_up((n + each - 1) / each), 0, true };
    l.log_r = l.log_r < 8 ? l.log_r : 8;
    l.log_c = 8 - l.log_r;
    return l;
}

template <typename T>
static loss_call<T> call_of(const trek_op_call *call, trek_cuda_queue *queue, const void *logits, const trek_tensor *shape,
                            const trek_tensor *labels, const trek_tensor *weight)
{
    loss_call<T> a;
    a.logits = (const T *)logits;
    a.labels = { labels->data, labels->strides[0], labels->dtype };
    a.weight = trek_numbers_of(weight);
    a.rows = shape->sizes[0];
    a.n = shape->sizes[1];
    a.ignore = call->attrs.i[0];
    a.smoothing = call->attrs.f[0];
    a.faults = queue->device->faults_device;
    a.op = call->op->id;
    return a;
}

template <typename T> static trek_status forward(const trek_op_call *call)
{
    const int V = 16 / (int)sizeof(T);
    const trek_tensor *logits = call->inputs[0];
    const int64_t rows = logits->sizes[0];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    trek_dense in, lse;
    trek_held losses;
    TRY(in.read(call, queue, logits));
    TRY(lse.write(queue, call->outputs[1]));
    TRY(losses.take(queue, (size_t)rows * 2 * sizeof(double)));
    double *each = losses.as<double>();
    if (rows > 0) {
        loss_call<T> a = call_of<T>(call, queue, in.data, logits, call->inputs[1], trek_input_of(call, 2));
        bool vector = trek_is_aligned(in.data, 16) && a.n % V == 0;
        trek_block_layout layout = lay_rows(vector ? a.n / V : a.n, 4);
        trek_grid grid = trek_blocks(dim3((unsigned)((rows - 1) / ((int64_t)1 << layout.log_c) + 1)), dim3(THREADS));
        TRY(trek_launch(call, queue, grid, vector ? loss_kernel<T, V> : loss_kernel<T, 1>, a, layout, lse.as<double>(), each,
                        each + rows));
    }
    TRY(add_up(call, queue, each, each + rows, rows));
    return lse.finish(call, call->outputs[1]);
}

/* --- backward --------------------------------------------------------------------------------- */

/* Computes dx = g (own (p - at label) (1 - s) + s / n (p W - w)), where own is the label's weight and W the sum of
 * all (in weights). */
template <typename T, int V>
static __global__ void __launch_bounds__(THREADS) loss_grad_kernel(loss_call<T> a, trek_block_layout layout, T *to,
                                                                   trek_numbers grad,
                                                                   trek_numbers lse, trek_numbers total, const double *weights,
                                                                   int reduction)
{
    typedef typename trek_wide<T>::type W;
    typedef trek_vector<T, V> piece;
    const int step = 1 << layout.log_r;
    const int64_t row = ((int64_t)blockIdx.x << layout.log_c) + trek_block_c(layout), n = a.n / V;
    if (row >= a.rows)
        return;
    const int64_t label = label_of(a, row, trek_block_r(layout) == 0);
    const piece *x = reinterpret_cast<const piece *>(a.logits + row * a.n);
    piece *dx = reinterpret_cast<piece *>(to + row * a.n);
    double g = label < 0 ? 0 : grad.get(reduction == TREK_REDUCTION_NONE ? row : 0), each = a.smoothing / (double)a.n;
    if (label >= 0 && reduction == TREK_REDUCTION_MEAN) {
        double denominator = total.get(0);
        g = denominator != 0 ? g / denominator : 0;
    }
    const double own = label >= 0 && a.weight.x ? a.weight.get(label) : 1;
    /* e^(x - logsumexp) is e^(x - shift) times a factor for what the shift lacks */
    const double logsumexp = label < 0 ? 0 : lse.get(row);
    const W less = trek_powers<T>::less((W)logsumexp);
    const double lacks = trek_powers<T>::shift(less) - logsumexp; /* infinite, or NaN, if logsumexp is */
    const W slope = (W)(g * ((1 - a.smoothing) * own + each * (weights ? *weights : (double)a.n)) *
                        (fabs(lacks) < 1e-3 ? 1 + lacks + lacks * lacks / 2 : exp(lacks)));
    const W at_label = (W)(g * (1 - a.smoothing) * own), at_all = (W)(g * each);
    for (int64_t j = trek_block_r(layout); j < n; j += step) {
        piece v = x[j], result;
        if (label < 0) {
            dx[j] = piece();
            continue;
        }
        W d[V];
#pragma unroll
        for (int k = 0; k < V; k++)
            d[k] = trek_fma(slope, trek_powers<T>::of(trek_get(v.x[k]), less), weights ? (W)0 : -at_all);
        if (weights) {
#pragma unroll
            for (int k = 0; k < V; k++)
                d[k] -= at_all * (W)a.weight.get(j * V + k);
        }
        if (label / V == j) {
#pragma unroll
            for (int k = 0; k < V; k++)
                d[k] -= label % V == k ? at_label : (W)0;
        }
#pragma unroll
        for (int k = 0; k < V; k++)
            result.x[k] = trek_store<T>::of(d[k]);
        dx[j] = result;
    }
}

static __global__ void __launch_bounds__(THREADS) weight_sum_kernel(trek_numbers weight, int64_t n, double *to)
{
    TREK_SHARED(double, shared, 32);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum += weight.get(i);
    sum = trek_team_sum(sum, THREADS, shared);
    if (threadIdx.x == 0)
        *to = sum;
}

template <typename T> static trek_status backward(const trek_op_call *call)
{
    const int V = 16 / (int)sizeof(T);
    const trek_tensor *logits = call->inputs[1], *weight = call->inputs[3];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    if (logits->numel == 0)
        return TREK_OK;
    trek_dense in, dx;
    trek_held sum;
    TRY(in.read(call, queue, logits));
    TRY(dx.write(queue, call->outputs[0]));
    loss_call<T> a = call_of<T>(call, queue, in.data, logits, call->inputs[2], weight);
    if (weight && a.smoothing > 0) {
        TRY(sum.take(queue, sizeof(double)));
        TRY(trek_launch(call, queue, trek_blocks(dim3(1), dim3(THREADS)), weight_sum_kernel, a.weight, a.n, sum.as<double>()));
    }
    bool vector = trek_is_aligned(in.data, 16) && trek_is_aligned(dx.data, 16) && a.n % V == 0;
    trek_grid grid;
    trek_block_layout layout = lay_rows(vector ? a.n / V : a.n, 2);
    grid.grid = dim3((unsigned)((a.rows - 1) / ((int64_t)1 << layout.log_c) + 1));
    grid.block = dim3(THREADS);
    grid.shared = 0;
    grid.barriers = false;
    TRY(trek_launch(call, queue, grid, vector ? loss_grad_kernel<T, V> : loss_grad_kernel<T, 1>, a, layout, dx.as<T>(),
                    trek_numbers_of(call->inputs[0]), trek_numbers_of(call->inputs[4]), trek_numbers_of(call->inputs[5]),
                    (const double *)sum.as<double>(), (int)call->attrs.i[1]));
    return dx.finish(call, call->outputs[0]);
}

template <typename T> static void enter(trek_backend *b, trek_dtype dtype)
{
    b->kernels[TREK_OP_cross_entropy][dtype] = forward<T>;
    b->kernels[TREK_OP_cross_entropy_backward][dtype] = backward<T>;
}

extern "C" void trek_cuda_register_cross_entropy(trek_backend *b)
{
    enter<float>(b, TREK_F32);
    enter<double>(b, TREK_F64);
    enter<trek_bf16>(b, TREK_BF16);
    enter<trek_f16>(b, TREK_F16);
}
