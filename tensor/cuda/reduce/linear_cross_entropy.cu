/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of a classifier's last layer, with the logits made for some rows at a
 * time. Of a sum or a mean, forward makes the gradients from them and keeps what they
 * give to x and weight; else backward makes the logits again. The gradients of many
 * such pieces go through one product each for dx and dweight. Everything is added up in order.
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

/* The gradient of a row's loss. */
static __device__ __forceinline__ double slope_of(trek_numbers grad, trek_numbers total, int reduction, int64_t row)
{
    double g = grad.x ? grad.get(reduction == TREK_REDUCTION_NONE ? row : 0) : 1;
    if (!grad.x || reduction != TREK_REDUCTION_MEAN)
        return g;
    double denominator = total.get(0);
    return denominator != 0 ? g / denominator : 0;
}

/* A block for each row: grads = unit g ((1 - s) (p - at label) + s / n (n p - 1)), which may take the place of the logits.
 * Without grad g is 1. */
template <typename T, typename O>
static __global__ void __launch_bounds__(THREADS)
    grad_rows_kernel(rows_job<T> job, trek_numbers grad, trek_numbers lse, trek_numbers total, int reduction, double unit,
                     O *grads)
{
    typedef typename trek_wide<T>::type W;
    int64_t row = blockIdx.x, label = label_of(job, job.first + row);
    double g = label < 0 ? 0 : unit * slope_of(grad, total, reduction, job.first + row);
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

/* to [rows, columns] (+)= from, contiguous, times the loss's gradient (1 where there is none) over unit, in another dtype. */
template <typename O, typename W>
static __global__ void scaled_kernel(const W *from, O *to, bool add, int64_t columns, int64_t row_step, int64_t column_step,
                                   int64_t n, trek_numbers grad, trek_numbers total, int reduction, double unit)
{
    const W slope = (W)(slope_of(grad, total, reduction, 0) / unit);
    const bool dense = column_step == 1 && row_step == columns;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t at = dense ? i : i / columns * row_step + i % columns * column_step;
        W x = from[i] * slope;
        to[at] = trek_store<O>::of(add ? x + trek_get(to[at]) : x);
    }
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

/* Where gradients go; those of x and weight by rows and columns, the bias's sums in W. NULL: not wanted. */
struct places {
    void *dx, *dweight, *dbias;
    int64_t dx_row, dx_column, weight_row, weight_column;
    trek_dtype dx_dtype, weight_dtype;
};

/* What the gradients of n rows give. dweight is added to what earlier ones gave. */
template <typename T>
static trek_status spread(const layer<T> &l, const places &to, int64_t first, int64_t n, const T *grads)
{
    typedef typename trek_wide<T>::type W;
    trek_cuda_gemm g = {};
    if (to.dx) {
        g.dtype = l.dtype;
        g.m = n, g.n = l.columns, g.k = l.classes;
        g.a = grads, g.a_row = l.apart, g.a_col = 1;
        g.b = l.weight->data, g.b_row = l.weight->strides[0], g.b_col = l.weight->strides[1];
        g.c = (char *)to.dx + first * to.dx_row * (int64_t)trek_item_size[to.dx_dtype], g.c_row = to.dx_row,
            g.c_col = to.dx_column;
        g.c_dtype = to.dx_dtype;
        TRY(trek_cuda_gemm_run(l.call, l.queue, &g));
    }
    if (to.dweight) {
        g = {};
        g.dtype = l.dtype;
        g.m = l.classes, g.n = l.columns, g.k = n;
        g.a = grads, g.a_row = 1, g.a_col = l.apart;
        g.b = l.row_of_x(first), g.b_row = l.x->strides[0], g.b_col = l.x->strides[1];
        g.c = to.dweight, g.c_row = to.weight_row, g.c_col = to.weight_column;
        g.c_dtype = to.weight_dtype;
        g.accumulate = first > 0;
        TRY(trek_cuda_gemm_run(l.call, l.queue, &g));
    }
    if (!to.dbias)
        return TREK_OK;
    return trek_launch(l.call, l.queue, trek_loop(l.classes), column_sums_kernel<T, W>, grads, n, l.classes, l.apart, first == 0,
                       (W *)to.dbias);
}

/* What the rows' passes read and write. */
struct row_numbers {
    trek_numbers grad, lse, total;
    double *losses; /* [2 rows], their losses, and whether they count; NULL: not wanted */
    double unit;
};

/* The losses of rows [first, first + n), and the gradients of their logits if there is room for them, piece by piece. Gradients
 * in f32 and f64 take the place of the logits. */
template <typename T>
static trek_status make_rows(const layer<T> &l, const row_numbers &r, int64_t first, int64_t n, int64_t piece,
                             typename trek_wide<T>::type *logits, T *grads)
{
    typedef typename trek_wide<T>::type W;
    for (int64_t at = 0; at < n; at += piece) {
        int64_t rows = n - at < piece ? n - at : piece;
        W *to = logits ? logits : (W *)(void *)(grads + at * l.apart);
        TRY(l.make_logits(first + at, rows, to));
        if (r.losses)
            TRY(trek_launch(l.call, l.queue, trek_blocks(dim3((unsigned)rows), dim3(THREADS)), loss_rows_kernel<T>,
                            l.job(first + at, to), (double *)r.lse.x, r.losses, r.losses + l.rows));
        if (grads)
            TRY(trek_launch(l.call, l.queue, trek_blocks(dim3((unsigned)rows), dim3(THREADS)), grad_rows_kernel<T, T>,
                            l.job(first + at, to), r.grad, r.lse, r.total, (int)l.call->attrs.i[1], r.unit,
                            grads + at * l.apart));
    }
    return TREK_OK;
}

/* All rows, and what their gradients give, if any is wanted. */
template <typename T> static trek_status all_rows(const layer<T> &l, const row_numbers &r, const places &to)
{
    typedef typename trek_wide<T>::type W;
    const bool wanted = to.dx || to.dweight || to.dbias, in_place = wanted && sizeof(T) != 2;
    const int64_t piece = l.piece(), buffer = wanted ? l.buffer() : piece;
    trek_held logits, grads;
    if (wanted)
        TRY(grads.take(l.queue, (size_t)(buffer * l.apart) * sizeof(T)));
    if (!in_place)
        TRY(logits.take(l.queue, (size_t)(piece * l.apart) * sizeof(W)));
    for (int64_t first = 0; first < l.rows || first == 0; first += buffer) {
        int64_t n = l.rows - first < buffer ? l.rows - first : buffer;
        TRY(make_rows(l, r, first, n, piece, in_place ? (W *)nullptr : logits.as<W>(), wanted ? grads.as<T>() : (T *)nullptr));
        if (wanted)
            TRY(spread(l, to, first, n, (const T *)grads.as<T>()));
        if (l.rows == 0)
            break;
    }
    return TREK_OK;
}

/* One pass from sums to where they belong. */
template <typename O, typename W, typename T>
static trek_status scale(const layer<T> &l, const W *from, trek_tensor *to, bool add, trek_numbers grad, double unit)
{
    const int last = to->ndim - 1;
    if (to->numel == 0)
        return TREK_OK;
    return trek_launch(l.call, l.queue, trek_loop(to->numel), scaled_kernel<O, W>, from, (O *)to->data, add, to->sizes[last],
                       last ? to->strides[0] : (int64_t)to->numel, to->strides[last], (int64_t)to->numel, grad,
                       trek_numbers_of(trek_input_of(l.call, 6)), (int)l.call->attrs.i[1], unit);
}

/* Gradients go into `kept`, those that are asked for one behind the other. */
template <typename T> static places places_in(const layer<T> &l, void *kept)
{
    typedef typename trek_wide<T>::type W;
    const int64_t wanted = l.call->attrs.i[2];
    W *next = (W *)kept;
    places to = {};
    to.dx_row = to.weight_row = l.columns;
    to.dx_column = to.weight_column = 1;
    to.dx_dtype = to.weight_dtype = l.wide;
    to.dx = wanted & TREK_HEAD_X ? next : nullptr;
    next += wanted & TREK_HEAD_X ? l.rows * l.columns : 0;
    to.dweight = wanted & TREK_HEAD_WEIGHT ? next : nullptr;
    next += wanted & TREK_HEAD_WEIGHT ? l.classes * l.columns : 0;
    to.dbias = wanted & TREK_HEAD_BIAS ? next : nullptr;
    return to;
}

template <trek_dtype D> static trek_status forward(const trek_op_call *call)
{
    typedef typename trek_element<D>::type T;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    layer<T> l(call, queue, 0, D);
    trek_held losses;
    trek_dense lse, kept;
    row_numbers r = {};
    places to = {};
    TRY(losses.take(queue, (size_t)l.rows * 2 * sizeof(double)));
    TRY(lse.write(queue, call->outputs[1]));
    r.lse = { lse.data, 1, TREK_F64 };
    r.losses = losses.as<double>();
    r.unit = TREK_HEAD_UNIT(D);
    if (call->attrs.i[2]) {
        TRY(kept.write(queue, call->outputs[3]));
        to = places_in(l, kept.data);
    }
    TRY(all_rows(l, r, to));
    TRY(trek_launch(call, queue, trek_blocks(dim3(1), dim3(THREADS)), totals_kernel, (const double *)r.losses,
                    (const double *)(r.losses + l.rows), l.rows, (int)call->attrs.i[1], trek_numbers_of(call->outputs[0]),
                    trek_numbers_of(call->outputs[2])));
    TRY(lse.finish(call, call->outputs[1]));
    return call->attrs.i[2] ? kept.finish(call, call->outputs[3]) : TREK_OK;
}

template <typename T> static trek_status from_kept(const layer<T> &l)
{
    typedef typename trek_wide<T>::type W;
    const trek_numbers grad = trek_numbers_of(l.call->inputs[0]);
    const double unit = TREK_HEAD_UNIT(l.dtype);
    trek_dense kept;
    TRY(kept.read(l.call, l.queue, l.call->inputs[7]));
    const W *next = kept.as<W>();
    for (int k = 0; k < 3; k++) {
        trek_tensor *to = l.call->outputs[k];
        const bool add = k == 1 && l.call->attrs.i[3];
        if (!(l.call->attrs.i[2] >> k & 1))
            continue;
        TRY(to->dtype == l.dtype ? scale<T>(l, next, to, add, grad, unit) : scale<W>(l, next, to, add, grad, unit));
        next += to->numel;
    }
    return TREK_OK;
}

/* Sums of 16-bit gradients are made in f32, the weight's in scratch memory where there are several. */
template <typename T> static trek_status again(const layer<T> &l)
{
    typedef typename trek_wide<T>::type W;
    const trek_op_call *call = l.call;
    trek_tensor *dx = call->outputs[0], *dweight = call->outputs[1], *dbias = l.bias ? call->outputs[2] : nullptr;
    const int64_t n_weight = l.classes * l.columns;
    const bool apart = sizeof(T) == 2 && l.buffer() < l.rows && dweight->dtype != TREK_F32;
    trek_held weight_sums, bias_sums;
    row_numbers r = { trek_numbers_of(call->inputs[0]), trek_numbers_of(call->inputs[5]), trek_numbers_of(call->inputs[6]),
                      nullptr, 1 };
    if (apart)
        TRY(weight_sums.take(l.queue, (size_t)n_weight * sizeof(W)));
    if (dbias)
        TRY(bias_sums.take(l.queue, (size_t)l.classes * sizeof(W)));
    places to = { dx->data, apart ? weight_sums.scratch.data : (void *)dweight->data, dbias ? bias_sums.scratch.data : nullptr,
                  dx->strides[0], dx->strides[1], apart ? l.columns : dweight->strides[0], apart ? 1 : dweight->strides[1],
                  (trek_dtype)dx->dtype, apart ? TREK_F32 : (trek_dtype)dweight->dtype };
    TRY(all_rows(l, r, to));
    if (apart)
        TRY(scale<T>(l, (const W *)to.dweight, dweight, false, trek_numbers_of(nullptr), 1));
    return dbias ? scale<T>(l, (const W *)to.dbias, dbias, false, trek_numbers_of(nullptr), 1) : TREK_OK;
}

template <trek_dtype D> static trek_status backward(const trek_op_call *call)
{
    typedef typename trek_element<D>::type T;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    layer<T> l(call, queue, 1, D);
    return trek_input_of(call, 7) ? from_kept(l) : again(l);
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
