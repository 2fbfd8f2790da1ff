/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of a classifier's last layer, with the logits made for some rows at a
 * time. Backward makes the logits again; the gradients of many such pieces go
 * through one product each for dx and dweight. Everything is added up in order.
 * Rows of logits and of their gradients begin at multiples of 16 bytes, whatever the
 * number of classes: products and the passes over them move 16 bytes at once. */
#include "tensor/cuda/products/blas.h"
#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/products/linear.h"

#define THREADS 256
#define PIECE_BYTES ((int64_t)128 << 20) /* of logits: a product of few rows would wait for the weight */
#define BUFFER_BYTES ((int64_t)384 << 20) /* of their gradients, at most */
#define SMALL (1 << 18)                   /* logits that are made at once */
#define TRY(call) do { trek_status status_ = (call); if (status_ != TREK_OK) return status_; } while (0)

template <typename T> struct rows_job {
    typedef typename trek_wide<T>::type W;
    const W *logits;             /* [rows, classes], without the bias; rows are `apart` elements apart */
    const T *bias;               /* NULL: none */
    int64_t bias_step, first, classes, apart, ignore;
    double smoothing;
    trek_indices labels;
    trek_cuda_fault_record *faults;
    int op;
};

/* The label of a row; -1: the row does not count. */
template <typename T> static __device__ __forceinline__ int64_t label_of(const rows_job<T> &job, int64_t row)
{
    int64_t label = job.labels[row];
    if (label == job.ignore)
        return -1;
    if (label >= 0 && label < job.classes)
        return label;
    if (threadIdx.x == 0)
        trek_note_fault(job.faults, job.op, TREK_CUDA_FAULT_LABEL, label, row, job.classes);
    return -1;
}

template <typename T>
static __device__ __forceinline__ typename trek_wide<T>::type logit_of(const rows_job<T> &job, int64_t row, int64_t c)
{
    typename trek_wide<T>::type x = job.logits[row * job.apart + c];
    return job.bias ? x + trek_get(job.bias[c * job.bias_step]) : x;
}

static __device__ __forceinline__ float e_to(float x) { return expf(x); }
static __device__ __forceinline__ double e_to(double x) { return exp(x); }

/* The logits of N classes from c on, by loads of 16 bytes; what lies behind the last class is -infinity. */
template <int N, typename T>
static __device__ __forceinline__ void load_logits(const rows_job<T> &job, int64_t row, int64_t c,
                                                   typename trek_wide<T>::type x[N])
{
    typedef typename trek_wide<T>::type W;
    const int PER = 16 / (int)sizeof(W);
    const trek_vector<W, PER> *from = (const trek_vector<W, PER> *)(job.logits + row * job.apart + c);
#pragma unroll
    for (int k = 0; k < N / PER; k++) {
        trek_vector<W, PER> v = from[k];
#pragma unroll
        for (int e = 0; e < PER; e++)
            x[k * PER + e] = v.x[e];
    }
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (c + e >= job.classes)
            x[e] = -(W)INFINITY;
        else if (job.bias)
            x[e] += trek_get(job.bias[(c + e) * job.bias_step]);
    }
}

/* --- forward ------------------------------------------------------------------------------- */

template <typename W> struct row_state {
    W top;
    double sum, plain; /* of e^(x - top); of x */
};

template <typename W> static __device__ __forceinline__ void join(row_state<W> *a, const row_state<W> &b)
{
    W top = b.top > a->top ? b.top : a->top, shift = top > -(W)INFINITY ? top : (W)0;
    a->sum = (a->sum != 0 ? a->sum * (double)e_to(a->top - shift) : 0) + (b.sum != 0 ? b.sum * (double)e_to(b.top - shift) : 0);
    a->top = top;
    a->plain += b.plain;
}

#define AT_ONCE 8 /* classes of a thread */

/* A block for each row: its log-sum-exp, its loss, and whether it counts. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    loss_rows_kernel(rows_job<T> job, double *lse, double *losses, double *counted)
{
    typedef typename trek_wide<T>::type W;
    TREK_SHARED(row_state<W>, states, THREADS);
    int64_t row = blockIdx.x;
    row_state<W> s = { -(W)INFINITY, 0, 0 };
    for (int64_t c = threadIdx.x * AT_ONCE; c < job.classes; c += THREADS * AT_ONCE) {
        W x[AT_ONCE], top = s.top, sum = 0, plain = 0; /* sums of few: their rounding is not seen in the whole */
        load_logits<AT_ONCE>(job, row, c, x);
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++)
            top = x[e] > top ? x[e] : top;
        if (top > s.top) {
            s.sum = s.sum != 0 ? s.sum * (double)e_to(s.top - top) : 0;
            s.top = top;
        }
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++)
            sum += x[e] == top ? (top > -(W)INFINITY ? (W)1 : (W)0) : e_to(x[e] - top);
        s.sum += (double)sum;
        if (job.smoothing > 0) {
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++)
                plain += c + e < job.classes ? x[e] : (W)0;
            s.plain += (double)plain;
        }
    }
    states[threadIdx.x] = s;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            join(&states[threadIdx.x], states[threadIdx.x + half]);
    }
    if (threadIdx.x != 0)
        return;
    s = states[0];
    double top = (double)(s.top > -(W)INFINITY ? s.top : (W)0), rest = log(s.sum), logsumexp = top + rest, loss = 0;
    int64_t label = label_of(job, job.first + row);
    if (label >= 0) {
        loss = top - (double)logit_of(job, row, label) + rest;
        if (job.smoothing > 0)
            loss = (1 - job.smoothing) * loss + job.smoothing / (double)job.classes * ((double)job.classes * logsumexp - s.plain);
    }
    lse[job.first + row] = logsumexp;
    losses[job.first + row] = loss;
    counted[job.first + row] = label >= 0;
}

/* One block: the sums of all rows, in a fixed order. */
static __global__ void __launch_bounds__(THREADS)
    totals_kernel(const double *losses, const double *counted, int64_t rows, int reduction, trek_numbers loss, trek_numbers total)
{
    TREK_SHARED(double, sums, 2 * THREADS);
    double sum = 0, count = 0;
    for (int64_t i = threadIdx.x; i < rows; i += THREADS) {
        sum += losses[i];
        count += counted[i];
        if (reduction == TREK_REDUCTION_NONE)
            loss.put(i, losses[i]);
    }
    sums[threadIdx.x] = sum;
    sums[THREADS + threadIdx.x] = count;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
            sums[THREADS + threadIdx.x] += sums[THREADS + threadIdx.x + half];
        }
    }
    if (threadIdx.x != 0)
        return;
    total.put(0, sums[THREADS]);
    if (reduction != TREK_REDUCTION_NONE)
        loss.put(0, reduction == TREK_REDUCTION_SUM ? sums[0] : sums[THREADS] > 0 ? sums[0] / sums[THREADS] : 0);
}

/* --- backward --------------------------------------------------------------------------------- */

/* A block for each row: grads = g ((1 - s) (p - at label) + s / n (n p - 1)), which may take the place of the logits. */
template <typename T, typename O>
static __global__ void __launch_bounds__(THREADS)
    grad_rows_kernel(rows_job<T> job, trek_numbers grad, trek_numbers lse, trek_numbers total, int reduction, O *grads)
{
    typedef typename trek_wide<T>::type W;
    int64_t row = blockIdx.x, label = label_of(job, job.first + row);
    double g = label < 0 ? 0 : grad.get(reduction == TREK_REDUCTION_NONE ? job.first + row : 0);
    if (label >= 0 && reduction == TREK_REDUCTION_MEAN) {
        double denominator = total.get(0);
        g = denominator != 0 ? g / denominator : 0;
    }
    double each = job.smoothing / (double)job.classes;
    double logsumexp = label < 0 ? 0 : lse.get(job.first + row);
    W shift = (W)logsumexp, low = shift - shift == 0 ? (W)(logsumexp - (double)shift) : (W)0; /* what shift lacks */
    W slope = (W)g, own = (W)(g * (1 - job.smoothing)),
      rest = (W)(g * each);
    const int N = 16 / (int)sizeof(O);
    for (int64_t c = threadIdx.x * N; c < job.classes; c += THREADS * N) {
        W x[N];
        trek_vector<O, N> to;
        load_logits<N>(job, row, c, x);
#pragma unroll
        for (int e = 0; e < N; e++) {
            W d = label < 0 ? (W)0 : slope * e_to(x[e] - shift - low) - rest;
            to.x[e] = trek_store<O>::of(c + e == label ? d - own : d);
        }
        *(trek_vector<O, N> *)(grads + row * job.apart + c) = to;
    }
}

/* sums[c] (+)= the column's gradients, row after row. */
template <typename T, typename W>
static __global__ void column_sums_kernel(const T *grads, int64_t rows, int64_t classes, int64_t apart, bool first, W *sums)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= classes)
        return;
    W sum = first ? (W)0 : sums[c];
    for (int64_t row = 0; row < rows; row++)
        sum += trek_get(grads[row * apart + c]);
    sums[c] = sum;
}

/* to [rows, columns] = from, contiguous, as another dtype. */
template <typename T, typename W>
static __global__ void narrow_kernel(const W *from, T *to, int64_t columns, int64_t row_step, int64_t column_step, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        to[i / columns * row_step + i % columns * column_step] = trek_store<T>::of(from[i]);
}

/* --- calls --------------------------------------------------------------------------------------- */

template <typename T> struct layer {
    typedef typename trek_wide<T>::type W;
    const trek_op_call *call;
    trek_cuda_queue *queue;
    const trek_tensor *x, *weight, *bias, *labels;
    int64_t rows, columns, classes, apart; /* apart: from one row of logits, or of their gradients, to the next */
    trek_dtype dtype, wide;

    layer(const trek_op_call *c, trek_cuda_queue *q, int first_input, trek_dtype d)
        : call(c), queue(q), x(c->inputs[first_input]), weight(c->inputs[first_input + 1]), bias(c->inputs[first_input + 2]),
          labels(c->inputs[first_input + 3]), rows(x->sizes[0]), columns(x->sizes[1]), classes(weight->sizes[0]),
          apart((classes + 7) / 8 * 8), dtype(d),
          wide(d == TREK_F64 ? TREK_F64 : TREK_F32)
    {
    }

    /* Rows whose logits are made at once: whole tiles of the product. Small calls at once, else a sixteenth of the rows
     * at most: it is for the memory, too. */
    int64_t piece() const
    {
        if (rows * classes <= SMALL)
            return rows;
        int64_t n = PIECE_BYTES / ((apart + 1) * (int64_t)sizeof(W)) / 128 * 128, share = (rows + 15) / 16;
        n = n < 128 ? 128 : n;
        n = n < share ? n : share < 64 ? 64 : share;
        return n < rows ? n : rows;
    }
    /* Rows whose gradients of logits go through one product: whole pieces, an eighth of the rows at most. */
    int64_t buffer() const
    {
        int64_t one = piece(), n = BUFFER_BYTES / ((apart + 1) * (int64_t)sizeof(T)), share = (rows + 7) / 8;
        n = (n < share ? n : share) / (one ? one : 1) * one;
        return n < one ? one : n;
    }

    const char *row_of_x(int64_t row) const { return x->data + row * x->strides[0] * (int64_t)sizeof(T); }

    trek_status make_logits(int64_t first, int64_t n, W *logits) const
    {
        trek_cuda_gemm g = {};
        g.m = n, g.n = classes, g.k = columns;
        g.a = row_of_x(first), g.a_row = x->strides[0], g.a_col = x->strides[1];
        g.b = weight->data, g.b_row = weight->strides[1], g.b_col = weight->strides[0];
        g.c = logits, g.c_row = apart, g.c_col = 1;
        g.dtype = dtype, g.c_dtype = wide;
        return trek_cuda_gemm_run(call, queue, &g);
    }

    rows_job<T> job(int64_t first, const W *logits) const
    {
        rows_job<T> j = {};
        j.logits = logits;
        j.bias = bias ? (const T *)bias->data : nullptr;
        j.bias_step = bias ? bias->strides[0] : 0;
        j.first = first;
        j.classes = classes;
        j.apart = apart;
        j.ignore = call->attrs.i[0];
        j.smoothing = call->attrs.f[0];
        j.labels = { labels->data, labels->strides[0], labels->dtype };
        j.faults = queue->device->faults_device;
        j.op = call->op->id;
        return j;
    }
};

template <trek_dtype D> static trek_status forward(const trek_op_call *call)
{
    typedef typename trek_element<D>::type T;
    typedef typename trek_wide<T>::type W;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    layer<T> l(call, queue, 0, D);
    trek_held logits, losses;
    trek_dense lse;
    int64_t piece = l.piece();
    TRY(losses.take(queue, (size_t)l.rows * 2 * sizeof(double)));
    TRY(logits.take(queue, (size_t)(piece * l.apart) * sizeof(W)));
    TRY(lse.write(queue, call->outputs[1]));
    double *each = losses.as<double>();
    for (int64_t first = 0; first < l.rows; first += piece) {
        int64_t n = l.rows - first < piece ? l.rows - first : piece;
        TRY(l.make_logits(first, n, logits.as<W>()));
        TRY(trek_launch(call, queue, trek_blocks(dim3((unsigned)n), dim3(THREADS)), loss_rows_kernel<T>,
                        l.job(first, logits.as<W>()), lse.as<double>(), each, each + l.rows));
    }
    TRY(trek_launch(call, queue, trek_blocks(dim3(1), dim3(THREADS)), totals_kernel, (const double *)each,
                    (const double *)(each + l.rows), l.rows, (int)call->attrs.i[1], trek_numbers_of(call->outputs[0]),
                    trek_numbers_of(call->outputs[2])));
    return lse.finish(call, call->outputs[1]);
}

/* dx and dweight of the gradients of n rows. dweight goes to `sums` (of dtype sums_dtype), which it may add to. */
template <typename T>
static trek_status spread(const layer<T> &l, int64_t first, int64_t n, const T *grads, void *sums, trek_dtype sums_dtype,
                          int64_t sums_row, int64_t sums_column)
{
    trek_tensor *dx = l.call->outputs[0];
    trek_cuda_gemm g = {};
    g.dtype = l.dtype;
    g.m = n, g.n = l.columns, g.k = l.classes;
    g.a = grads, g.a_row = l.apart, g.a_col = 1;
    g.b = l.weight->data, g.b_row = l.weight->strides[0], g.b_col = l.weight->strides[1];
    g.c = dx->data + first * dx->strides[0] * (int64_t)trek_item_size[dx->dtype], g.c_row = dx->strides[0],
    g.c_col = dx->strides[1];
    g.c_dtype = (trek_dtype)dx->dtype;
    TRY(trek_cuda_gemm_run(l.call, l.queue, &g));
    g = {};
    g.dtype = l.dtype;
    g.m = l.classes, g.n = l.columns, g.k = n;
    g.a = grads, g.a_row = 1, g.a_col = l.apart;
    g.b = l.row_of_x(first), g.b_row = l.x->strides[0], g.b_col = l.x->strides[1];
    g.c = sums, g.c_row = sums_row, g.c_col = sums_column;
    g.c_dtype = sums_dtype;
    g.accumulate = first > 0;
    return trek_cuda_gemm_run(l.call, l.queue, &g);
}

/* The gradients of the logits of rows [first, first + n), piece by piece. f32 and f64 take the place of the logits. */
template <typename T>
static trek_status make_gradients(const layer<T> &l, int64_t first, int64_t n, int64_t piece, typename trek_wide<T>::type *logits,
                                  T *grads)
{
    typedef typename trek_wide<T>::type W;
    const trek_op_call *call = l.call;
    for (int64_t at = 0; at < n; at += piece) {
        int64_t rows = n - at < piece ? n - at : piece;
        W *to = logits ? logits : (W *)(void *)(grads + at * l.apart);
        TRY(l.make_logits(first + at, rows, to));
        TRY(trek_launch(call, l.queue, trek_blocks(dim3((unsigned)rows), dim3(THREADS)), grad_rows_kernel<T, T>,
                        l.job(first + at, to), trek_numbers_of(call->inputs[0]), trek_numbers_of(call->inputs[5]),
                        trek_numbers_of(call->inputs[6]), (int)call->attrs.i[1], grads + at * l.apart));
    }
    return TREK_OK;
}

template <trek_dtype D> static trek_status backward(const trek_op_call *call)
{
    typedef typename trek_element<D>::type T;
    typedef typename trek_wide<T>::type W;
    const bool half = sizeof(T) == 2;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    layer<T> l(call, queue, 1, D);
    trek_tensor *dweight = call->outputs[1], *dbias = l.bias ? call->outputs[2] : nullptr;
    int64_t piece = l.piece(), buffer = l.buffer(), n_weight = l.classes * l.columns;
    bool sums_apart = half && buffer < l.rows && dweight->dtype != TREK_F32;
    trek_held logits, grads, weight_sums, bias_sums;
    TRY(grads.take(queue, (size_t)(buffer * l.apart) * sizeof(T)));
    if (half)
        TRY(logits.take(queue, (size_t)(piece * l.apart) * sizeof(W)));
    if (sums_apart)
        TRY(weight_sums.take(queue, (size_t)n_weight * sizeof(W)));
    if (dbias)
        TRY(bias_sums.take(queue, (size_t)l.classes * sizeof(W)));
    void *sums = sums_apart ? weight_sums.scratch.data : (void *)dweight->data;
    trek_dtype sums_dtype = sums_apart ? TREK_F32 : (trek_dtype)dweight->dtype;
    int64_t sums_row = sums_apart ? l.columns : dweight->strides[0], sums_column = sums_apart ? 1 : dweight->strides[1];
    for (int64_t first = 0; first < l.rows || first == 0; first += buffer) {
        int64_t n = l.rows - first < buffer ? l.rows - first : buffer;
        TRY(make_gradients(l, first, n, piece, half ? logits.as<W>() : (W *)nullptr, grads.as<T>()));
        TRY(spread(l, first, n, (const T *)grads.as<T>(), sums, sums_dtype, sums_row, sums_column));
        if (dbias)
            TRY(trek_launch(call, queue, trek_loop(l.classes), column_sums_kernel<T, W>, (const T *)grads.as<T>(), n, l.classes,
                            l.apart, first == 0, bias_sums.as<W>()));
        if (l.rows == 0)
            break;
    }
    if (sums_apart && n_weight)
        TRY(trek_launch(call, queue, trek_loop(n_weight), narrow_kernel<T, W>, (const W *)weight_sums.as<W>(), (T *)dweight->data,
                        l.columns, dweight->strides[0], dweight->strides[1], n_weight));
    if (dbias && l.classes)
        TRY(trek_launch(call, queue, trek_loop(l.classes), narrow_kernel<T, W>, (const W *)bias_sums.as<W>(), (T *)dbias->data,
                        l.classes, (int64_t)0, dbias->strides[0], l.classes));
    return TREK_OK;
}

template <trek_dtype D> static void enter(trek_backend *backend)
{
    backend->kernels[TREK_OP_linear_cross_entropy][D] = forward<D>;
    backend->kernels[TREK_OP_linear_cross_entropy_backward][D] = backward<D>;
}

extern "C" void trek_cuda_register_linear_cross_entropy(trek_backend *backend)
{
    enter<TREK_F32>(backend);
    enter<TREK_F64>(backend);
    enter<TREK_BF16>(backend);
    enter<TREK_F16>(backend);
}
