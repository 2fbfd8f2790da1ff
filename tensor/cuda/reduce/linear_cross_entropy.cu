/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of a classifier's last layer. One kernel reads a row of logits, computes its loss and writes the gradients
 * of the logits, in 16 bits over the logits themselves. For a sum or mean, forward computes the gradients and stores
 * what they give to x and weight; otherwise backward computes the logits again. Everything is added in order.
 *
 * Logits of 16-bit operands have 16 bits. All rows are computed at once if an eighth of the device's memory holds
 * them, otherwise as many rows as it holds; this depends only on shapes and devices, so that results do not depend on
 * free memory. Logits of wider operands, and those of TREK_CUDA_LOGITS=pieces, are f32 or f64 and computed for few
 * rows at a time; the gradients of many such pieces go through one product each for dx and dweight. Rows of logits
 * and of their gradients begin at multiples of 16 bytes, whatever the number of classes, because products and the
 * passes over them move 16 bytes at once. */
#include "tensor/cuda/products/blas.h"
#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/products/linear.h"
#include "tensor/cuda/reduce/logits.h"
#include "tensor/cuda/reduce/powers.cuh"

#define THREADS 256
#define ROW_THREADS 512 /* of a row, at most: with its logits in shared memory, two blocks fit on a multiprocessor */
#define BATCH 2         /* loads of a thread that are in flight at a time */
#define PIECE_BYTES ((int64_t)128 << 20) /* of logits: a product of few rows would wait for the weight */
#define BUFFER_BYTES ((int64_t)384 << 20) /* of their gradients, at most */
#define SMALL (1 << 18)                   /* logits that are computed at once */
#define KEPT_SHARE 8                      /* the part of the device's memory (one in 8) that logits of 16 bits may take */

/* What the rows' kernel reads and writes: logits of type L, operands and gradients of type T. */
template <typename L, typename T> struct rows_job {
    const L *logits;             /* [rows, classes], without the bias; rows are `apart` elements apart */
    T *grads;                    /* [rows, classes], may be the logits; NULL: not wanted */
    const T *bias;               /* NULL: none */
    int64_t bias_step, first, classes, apart, ignore;
    double smoothing, unit;
    trek_indices labels;
    trek_numbers grad, total;    /* of the loss; its weight. grad.x NULL: 1 */
    trek_numbers lse;            /* of all rows */
    double *losses, *counted;    /* of all rows; NULL: lse is already known */
    int reduction;
    bool held;                   /* a row's logits stay in shared memory from the sum to the gradients */
    trek_cuda_fault_record *faults;
    int op;
};

/* --- a row ----------------------------------------------------------------------------------- */

/* Returns the label of a row; -1: the row does not count. */
template <typename J> static __device__ __forceinline__ int64_t label_of(const J &job, int64_t row)
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

/* Returns the gradient of a row's loss. */
static __device__ __forceinline__ double slope_of(trek_numbers grad, trek_numbers total, int reduction, int64_t row)
{
    double g = grad.x ? grad.get(reduction == TREK_REDUCTION_NONE ? row : 0) : 1;
    if (!grad.x || reduction != TREK_REDUCTION_MEAN)
        return g;
    double denominator = total.get(0);
    return denominator != 0 ? g / denominator : 0;
}

/* A thread's part of a row: N classes at once by 16 bytes, every blockDim.x-th such vector. */
template <typename L, typename T> struct row_part {
    typedef typename trek_wide<L>::type W;
    typedef trek_powers<L> powers;
    static const int N = 16 / (int)sizeof(L);
    typedef trek_vector<L, N> vector;

    const rows_job<L, T> &job;
    const vector *logits;
    vector *held; /* NULL: not held */
    uint32_t vectors;
    W top, less, sum; /* the largest; for powers; their sum, of few numbers, whose rounding does not matter in the whole */
    double plain;     /* the sum of logits, for label smoothing */

    __device__ __forceinline__ row_part(const rows_job<L, T> &j)
        : job(j), logits((const vector *)(j.logits + blockIdx.x * j.apart)),
          held(j.held ? (vector *)trek_dynamic_shared() : NULL),
          vectors((uint32_t)((j.classes + N - 1) / N)), top(-(W)INFINITY), less(powers::less(top)), sum(0), plain(0)
    {
    }

    __device__ __forceinline__ W biased(W x, int64_t c) const
    {
        return job.bias ? x + trek_get(job.bias[c * job.bias_step]) : x;
    }
    __device__ __forceinline__ W logit(int64_t c) const { return biased(trek_get(((const L *)logits)[c]), c); }

    /* Returns the vector's numbers; those after the last class are -infinity. */
    __device__ __forceinline__ void open(const vector &v, uint32_t at, W x[N]) const
    {
#pragma unroll
        for (int e = 0; e < N; e++)
            x[e] = trek_get(v.x[e]);
        const int64_t c = (int64_t)at * N;
        if (!job.bias && c + N <= job.classes)
            return;
#pragma unroll
        for (int e = 0; e < N; e++)
            x[e] = c + e < job.classes ? biased(x[e], c + e) : -(W)INFINITY;
    }

    __device__ __forceinline__ void take(const vector &v, uint32_t at)
    {
        W x[N], most, added = 0;
        open(v, at, x);
        most = x[0];
#pragma unroll
        for (int e = 1; e < N; e++)
            most = fmax(most, x[e]);
        if (most > top) {
            W next = powers::less(most);
            sum *= powers::ratio(next - less);
            top = most;
            less = next;
        }
#pragma unroll
        for (int e = 0; e < N; e++)
            added += powers::of(x[e], less);
        sum += added;
        for (int e = 0; job.smoothing > 0 && e < N; e++)
            plain += (int64_t)at * N + e < job.classes ? (double)x[e] : 0;
    }

    /* Processes all of the row's vectors. */
    __device__ __forceinline__ void gather()
    {
        for (uint32_t at = threadIdx.x; at < vectors; at += BATCH * blockDim.x) {
            vector v[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; k++)
                if (at + k * blockDim.x < vectors)
                    v[k] = logits[at + k * blockDim.x];
#pragma unroll
            for (int k = 0; k < BATCH; k++)
                if (at + k * blockDim.x < vectors) {
                    take(v[k], at + k * blockDim.x);
                    if (held)
                        held[at + k * blockDim.x] = v[k];
                }
        }
    }

    /* Combines the results of the row's threads, for all of them. */
    __device__ __forceinline__ void join(double *shared, double *whole)
    {
        const int width = (int)blockDim.x;
        top = trek_team_max(top, width, (W *)shared);
        const W own = less;
        less = powers::less(top);
        *whole = trek_team_sum(sum != 0 ? (double)sum * (double)powers::ratio(less - own) : 0, width, shared);
        if (job.smoothing > 0)
            plain = trek_team_sum(plain, width, shared);
    }
};

/* The gradient of each logit of a row: slope e^(x - shift) - rest; for the label's logit: own. */
template <typename W> struct row_slopes {
    W less, slope, rest, own;
};

/* Run by one thread: computes the row's loss, if wanted, and what its gradients are made with: d = unit g ((1 - s) (p
 * - at label) + s / n (n p - 1)). */
template <typename L, typename T>
static __device__ __forceinline__ row_slopes<typename trek_wide<L>::type> end_row(const row_part<L, T> &part, int64_t row,
                                                                                  int64_t label, double sum)
{
    typedef typename trek_wide<L>::type W;
    const rows_job<L, T> &job = part.job;
    const bool sums = job.losses != NULL;
    const W less = sums ? part.less : trek_powers<L>::less((W)job.lse.get(row));
    const double shift = trek_powers<L>::shift(less), rest = sums ? log(sum) : 0, lse = sums ? shift + rest : job.lse.get(row);
    const double each = job.smoothing / (double)job.classes, x = label >= 0 ? (double)part.logit(label) : 0;
    if (sums) {
        double loss = label >= 0 ? shift - x + rest : 0;
        if (label >= 0 && job.smoothing > 0)
            loss = (1 - job.smoothing) * loss + each * ((double)job.classes * lse - part.plain);
        job.lse.put(row, lse);
        job.losses[row] = loss;
        job.counted[row] = label >= 0;
    }
    if (!job.grads || label < 0)
        return { 0, 0, 0, 0 };
    const double g = job.unit * slope_of(job.grad, job.total, job.reduction, row);
    const double own = exp(x - lse) - each - (1 - job.smoothing);
    return { less, (W)(sums ? g / sum : g * exp(shift - lse)), (W)(g * each), (W)(g * own) };
}

template <typename L, typename T>
static __device__ __forceinline__ void write_gradients(const row_part<L, T> &part, int64_t label,
                                                       const row_slopes<typename trek_wide<L>::type> &s)
{
    typedef typename trek_wide<L>::type W;
    typedef row_part<L, T> P;
    const int N = P::N;
    const rows_job<L, T> &job = part.job;
    T *grads = job.grads + blockIdx.x * job.apart;
    trek_vector<T, N> *to = (trek_vector<T, N> *)grads;
    const typename P::vector *from = part.held ? part.held : part.logits;
    if (label < 0) { /* for any logits */
        for (uint32_t at = threadIdx.x; at < part.vectors; at += blockDim.x)
            to[at] = trek_vector<T, N>();
        return;
    }
    for (uint32_t at = threadIdx.x; at < part.vectors; at += BATCH * blockDim.x) {
        typename P::vector v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (at + k * blockDim.x < part.vectors)
                v[k] = from[at + k * blockDim.x];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            W x[N];
            trek_vector<T, N> d;
            if (at + k * blockDim.x >= part.vectors)
                break;
            part.open(v[k], at + k * blockDim.x, x);
#pragma unroll
            for (int e = 0; e < N; e++)
                d.x[e] = trek_store<T>::of(trek_fma(s.slope, P::powers::of(x[e], s.less), -s.rest));
            to[at + k * blockDim.x] = d;
        }
    }
    if (label / N % blockDim.x == threadIdx.x) /* after its vector, by the same thread */
        grads[label] = trek_store<T>::of(s.own);
}

/* A block for each row: its log-sum-exp, its loss and whether it counts, then the gradients of its logits. */
template <typename L, typename T>
static __global__ void __launch_bounds__(ROW_THREADS, 2) rows_kernel(rows_job<L, T> job)
{
    typedef typename trek_wide<L>::type W;
    TREK_SHARED(double, shared, 32);
    TREK_SHARED(row_slopes<W>, slopes, 1);
    const int64_t row = job.first + blockIdx.x, label = label_of(job, row);
    row_part<L, T> part(job);
    double sum = 0;
    if (job.losses) {
        part.gather();
        part.join(shared, &sum);
    }
    if (threadIdx.x == 0)
        slopes[0] = end_row(part, row, label, sum);
    if (!job.grads)
        return;
    __syncthreads();
    write_gradients(part, label, slopes[0]);
}

/* --- sums ------------------------------------------------------------------------------------ */

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

/* Computes sums[c] (+)= the column's gradients, row after row. */
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

/* Computes to [rows, columns] (+)= from, contiguous, times the loss's gradient (1 if there is none) divided by unit,
 * in another dtype. */
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
    bool low; /* logits have type T, and their gradients replace them; otherwise they have type W */

    layer(const trek_op_call *c, trek_cuda_queue *q, int first_input, trek_dtype d)
        : call(c), queue(q), x(c->inputs[first_input]), weight(c->inputs[first_input + 1]), bias(c->inputs[first_input + 2]),
          labels(c->inputs[first_input + 3]), rows(x->sizes[0]), columns(x->sizes[1]), classes(weight->sizes[0]),
          apart((classes + 7) / 8 * 8), dtype(d),
          wide(d == TREK_F64 ? TREK_F64 : TREK_F32), low(sizeof(T) == 2 && trek_cuda_logits_kept())
    {
    }

    /* Returns how many rows of 16-bit logits are computed at once: parts of one size, whole tiles of the product. */
    int64_t kept() const
    {
        int64_t most = queue->device->info.memory / KEPT_SHARE / (apart * (int64_t)sizeof(T)) / 128 * 128;
        most = most < 128 ? 128 : most;
        int64_t parts = (rows + most - 1) / most, n = parts > 1 ? ((rows + parts - 1) / parts + 127) / 128 * 128 : rows;
        return n < rows ? n : rows;
    }
    /* Returns how many rows of logits are computed at once: whole tiles of the product. Small calls are one piece;
     * otherwise at most a sixteenth of the rows, because this also saves memory. */
    int64_t piece() const
    {
        if (low)
            return kept();
        if (rows * classes <= SMALL)
            return rows;
        int64_t n = PIECE_BYTES / ((apart + 1) * (int64_t)sizeof(W)) / 128 * 128, share = (rows + 15) / 16;
        n = n < 128 ? 128 : n;
        n = n < share ? n : share < 64 ? 64 : share;
        return n < rows ? n : rows;
    }
    /* Returns how many rows of gradients of logits go through one product: whole pieces, at most an eighth of the
     * rows if there are several. */
    int64_t buffer() const
    {
        if (low)
            return kept();
        int64_t one = piece(), n = BUFFER_BYTES / ((apart + 1) * (int64_t)sizeof(T)), share = (rows + 7) / 8;
        n = (n < share ? n : share) / (one ? one : 1) * one;
        return n < one ? one : n;
    }

    const char *row_of_x(int64_t row) const { return x->data + row * x->strides[0] * (int64_t)sizeof(T); }

    template <typename L> trek_status make_logits(int64_t first, int64_t n, L *logits) const
    {
        trek_cuda_gemm g = {};
        g.m = n, g.n = classes, g.k = columns;
        g.a = row_of_x(first), g.a_row = x->strides[0], g.a_col = x->strides[1];
        g.b = weight->data, g.b_row = weight->strides[1], g.b_col = weight->strides[0];
        g.c = logits, g.c_row = apart, g.c_col = 1;
        g.dtype = dtype, g.c_dtype = sizeof(L) == sizeof(T) ? dtype : wide;
        return trek_cuda_gemm_run(call, queue, &g);
    }
};

/* Where gradients are written; those of x and weight by rows and columns, the bias's sums in W. NULL: not wanted. */
struct places {
    void *dx, *dweight, *dbias;
    int64_t dx_row, dx_column, weight_row, weight_column;
    trek_dtype dx_dtype, weight_dtype;
};

/* Computes what the gradients of n rows give. dweight is added to that of earlier rows. */
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

/* What the rows' kernel reads and writes besides logits. */
struct row_numbers {
    trek_numbers grad, lse, total;
    double *losses; /* [2 rows], their losses, and whether they count; NULL: not wanted */
    double unit;
};

/* Computes losses, and gradients if there is space for them, of n rows whose logits are ready. */
template <typename L, typename T>
static trek_status run_rows(const layer<T> &l, const row_numbers &r, int64_t first, int64_t n, const L *logits, T *grads)
{
    const trek_cuda_device *device = l.queue->device;
    const int64_t bytes = l.apart * (int64_t)sizeof(L), room = device->max_shared / 2 - 2048; /* two blocks, with their own */
    rows_job<L, T> j = {};
    j.logits = logits;
    j.grads = grads;
    j.bias = l.bias ? (const T *)l.bias->data : nullptr;
    j.bias_step = l.bias ? l.bias->strides[0] : 0;
    j.first = first;
    j.classes = l.classes;
    j.apart = l.apart;
    j.ignore = l.call->attrs.i[0];
    j.smoothing = l.call->attrs.f[0];
    j.unit = r.unit;
    j.labels = { l.labels->data, l.labels->strides[0], l.labels->dtype };
    j.grad = r.grad, j.total = r.total, j.lse = r.lse;
    j.losses = r.losses;
    j.counted = r.losses ? r.losses + l.rows : nullptr;
    j.reduction = (int)l.call->attrs.i[1];
    j.held = r.losses && grads && bytes <= room;
    j.faults = device->faults_device;
    j.op = l.call->op->id;
    int threads = 32;
    while (threads < ROW_THREADS && threads * 2 * row_part<L, T>::N < l.classes)
        threads *= 2;
    return trek_launch(l.call, l.queue, trek_blocks(dim3((unsigned)n), dim3((unsigned)threads), j.held ? (size_t)bytes : 0),
                       rows_kernel<L, T>, j);
}

/* Computes the losses of rows [first, first + n), and the gradients of their logits if there is space for them, piece
 * by piece. Without separate space for logits, which then have the same width, these are where their gradients will
 * be. */
template <typename L, typename T>
static trek_status make_rows(const layer<T> &l, const row_numbers &r, int64_t first, int64_t n, int64_t piece, L *logits,
                             T *grads)
{
    for (int64_t at = 0; at < n; at += piece) {
        int64_t rows = n - at < piece ? n - at : piece;
        L *to = logits ? logits : (L *)(void *)(grads + at * l.apart);
        TRY(l.make_logits(first + at, rows, to));
        TRY(run_rows(l, r, first + at, rows, (const L *)to, grads ? grads + at * l.apart : (T *)nullptr));
    }
    return TREK_OK;
}

/* Processes all rows with logits of type L, and computes what their gradients give, if any is wanted. */
template <typename L, typename T> static trek_status rows_of(const layer<T> &l, const row_numbers &r, const places &to)
{
    const bool wanted = to.dx || to.dweight || to.dbias, in_place = wanted && sizeof(L) == sizeof(T);
    const int64_t piece = l.piece(), buffer = wanted ? l.buffer() : piece;
    trek_held logits, grads;
    if (wanted)
        TRY(grads.take(l.queue, (size_t)(buffer * l.apart) * sizeof(T)));
    if (!in_place)
        TRY(logits.take(l.queue, (size_t)(piece * l.apart) * sizeof(L)));
    for (int64_t first = 0; first < l.rows || first == 0; first += buffer) {
        int64_t n = l.rows - first < buffer ? l.rows - first : buffer;
        TRY(make_rows(l, r, first, n, piece, logits.as<L>(), wanted ? grads.as<T>() : (T *)nullptr));
        if (wanted)
            TRY(spread(l, to, first, n, (const T *)grads.as<T>()));
        if (l.rows == 0)
            break;
    }
    return TREK_OK;
}

template <typename T> static trek_status all_rows(const layer<T> &l, const row_numbers &r, const places &to)
{
    return l.low ? rows_of<T>(l, r, to) : rows_of<typename trek_wide<T>::type>(l, r, to);
}

/* One pass from sums to their destination. */
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

/* Writes the requested gradients into `kept`, one after the other. */
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

/* Sums of 16-bit gradients are computed in f32, the weight's in scratch memory if there are several. */
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
