/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm (Ioffe and Szegedy 2015) and group norm (Wu and He 2018), forward and backward. Sums are computed in f64
 * by the reductions of reduce.cuh, in their fixed order; weights and running statistics may have any floating dtype. */
#include "tensor/channels_last.h"
#include "tensor/cuda/dense.cuh"
#include "tensor/cuda/reduce/reduce.cuh"
#include "tensor/cuda/storage.h"

/* --- what is computed for a channel ------------------------------------------------------ */

struct batch_statistics {
    double mean, variance;
};

template <typename T> struct batch_statistics_op : trek_reduce_input<T> {
    typedef trek_moments partial;
    batch_statistics *out;
    __device__ __forceinline__ partial start(int64_t, bool) const { return trek_moments{ 0, 0, 0, 0 }; }
    __device__ __forceinline__ void step(partial &a, T x, int64_t) const { a.add((double)trek_get(x)); }
    __device__ __forceinline__ void join(partial &a, const partial &b) const { a.join(b); }
    __device__ __forceinline__ void store(int64_t at, partial a) const
    {
        a.centre();
        out[at].mean = a.n > 0 ? a.shift : 0;
        out[at].variance = a.n > 0 ? (a.squares < 0 ? 0 : a.squares / a.n) : 0;
    }
};

/* Sums of dy, and of dy (x - mean). */
struct batch_sums {
    double sum, product;
};
struct batch_partial {
    double sum, product, mean;
};

template <typename T> struct batch_pair {
    T x, dy;
};

template <typename T> struct batch_sums_op {
    typedef batch_pair<T> element;
    typedef batch_partial partial;
    const T *x, *dy;
    const void *mean;
    int mean_dtype;
    int64_t per; /* channels that share a mean */
    batch_sums *out;
    template <int V> __device__ __forceinline__ trek_vector<element, V> load(int64_t offset) const
    {
        trek_vector<T, V> a = reinterpret_cast<const trek_vector<T, V> *>(x)[offset];
        trek_vector<T, V> b = reinterpret_cast<const trek_vector<T, V> *>(dy)[offset];
        trek_vector<element, V> both;
#pragma unroll
        for (int k = 0; k < V; k++) {
            both.x[k].x = a.x[k];
            both.x[k].dy = b.x[k];
        }
        return both;
    }
    bool aligned(int v) const { return ((uintptr_t)x | (uintptr_t)dy) % (sizeof(T) * (size_t)v) == 0; }
    __device__ __forceinline__ partial start(int64_t channel, bool inside) const
    {
        partial a;
        a.sum = a.product = 0;
        a.mean = inside ? trek_load_float(mean, mean_dtype, channel / per) : 0;
        return a;
    }
    __device__ __forceinline__ void step(partial &a, element e, int64_t) const
    {
        double g = (double)trek_get(e.dy);
        a.sum += g;
        a.product = fma(g, (double)trek_get(e.x) - a.mean, a.product);
    }
    __device__ __forceinline__ void join(partial &a, const partial &b) const
    {
        a.sum += b.sum;
        a.product += b.product;
    }
    __device__ __forceinline__ void store(int64_t at, partial a) const
    {
        out[at].sum = a.sum;
        out[at].product = a.product;
    }
};

/* --- numbers of the channels ----------------------------------------------------------------- */

/* What an element needs of its channel: forward y = (x - mean) scale + shift; backward dx = dy scale - shift - (x -
 * mean) slope. */
template <typename W> struct alignas(sizeof(W) * 4) channel_numbers {
    W mean, scale, shift, slope;
};

template <typename W>
static __global__ void prepare_forward(channel_numbers<W> *to, const batch_statistics *now, trek_numbers weight,
                                       trek_numbers bias,
                                       trek_numbers running_mean, trek_numbers running_var, trek_numbers mean, trek_numbers rstd,
                                       int64_t channels, double count, double momentum, double eps)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels)
        return;
    batch_statistics s;
    if (now) {
        s = now[c];
        if (running_mean.x && count > 0) {
            running_mean.put(c, (1 - momentum) * running_mean.get(c) + momentum * s.mean);
            running_var.put(c, (1 - momentum) * running_var.get(c) + momentum * (s.variance * (count / (count - 1))));
        }
    } else {
        s.mean = running_mean.get(c);
        s.variance = running_var.get(c);
    }
    double deviation = now && s.variance + eps == 0 ? 0 : 1 / sqrt(s.variance + eps); /* all elements are equal: 0, as in
                                                                                       * PyTorch */
    mean.put(c, s.mean);
    rstd.put(c, deviation);
    channel_numbers<W> n;
    n.mean = (W)s.mean;
    n.scale = (W)(deviation * (weight.x ? weight.get(c) : 1));
    n.shift = (W)(bias.x ? bias.get(c) : 0);
    n.slope = 0;
    to[c] = n;
}

template <typename W>
static __global__ void prepare_backward(channel_numbers<W> *to, const batch_sums *sums, trek_numbers mean, trek_numbers rstd,
                                        trek_numbers weight, trek_numbers dweight, trek_numbers dbias, int64_t channels,
                                        double count, bool training)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels)
        return;
    const double deviation = rstd.get(c), scale = deviation * (weight.x ? weight.get(c) : 1);
    const bool through = training && count > 0; /* the gradient also goes through the statistics */
    if (dweight.x)
        dweight.put(c, sums[c].product * deviation);
    if (dbias.x)
        dbias.put(c, sums[c].sum);
    channel_numbers<W> n;
    n.mean = (W)mean.get(c);
    n.scale = (W)scale;
    n.shift = through ? (W)(scale * sums[c].sum / count) : (W)0;
    n.slope = through ? (W)(scale * deviation * deviation * sums[c].product / count) : (W)0;
    to[c] = n;
}

/* --- all elements ------------------------------------------------------------------------------ */

/* V neighbours of one channel, or one position of V channels (last); dy NULL: forward. */
template <typename T, int V>
static __global__ void apply_kernel(T *to, const T *x, const T *dy, const channel_numbers<typename trek_wide<T>::type> *numbers,
                                    int64_t count, trek_quotient pixels, trek_quotient channels, bool last, bool wide)
{
    typedef typename trek_wide<T>::type W;
    typedef trek_vector<T, V> piece;
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
        uint32_t c;
        if (wide) {
            c = (uint32_t)(i / pixels.by % channels.by);
        } else {
            uint32_t row = pixels((uint32_t)i);
            c = row - channels(row) * channels.by;
        }
        c = last ? c * V : c;
        channel_numbers<W> n = numbers[c];
        piece a = reinterpret_cast<const piece *>(x)[i], b = dy ? reinterpret_cast<const piece *>(dy)[i] : a, result;
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (k > 0 && last)
                n = numbers[c + (uint32_t)k];
            W d = trek_get(a.x[k]) - n.mean;
            W by_x = n.slope == 0 ? (W)0 : d * n.slope; /* in evaluation x may be infinite */
            W y = dy ? trek_get(b.x[k]) * n.scale - n.shift - by_x : d * n.scale + n.shift;
            result.x[k] = trek_store<T>::of(y);
        }
        reinterpret_cast<piece *>(to)[i] = result;
    }
}

struct batch_sizes {
    int64_t channels, pixels, numel;
    double count; /* elements of a channel */
    bool last;    /* all operands are stored channels last */
};

static batch_sizes sizes_of(const trek_tensor *x)
{
    batch_sizes s = { x->sizes[1], 1, x->numel, (double)x->sizes[0], false };
    for (int d = 2; d < x->ndim; d++) {
        s.pixels *= x->sizes[d];
        s.count *= (double)x->sizes[d];
    }
    return s;
}

template <typename T>
static trek_status apply(const trek_op_call *call, trek_cuda_queue *queue, T *to, const T *x, const T *dy, const void *numbers,
                         const batch_sizes &s)
{
    typedef typename trek_wide<T>::type W;
    const int V = 16 / (int)sizeof(T);
    if (s.numel == 0)
        return TREK_OK;
    int64_t pixels = s.last ? 1 : s.pixels, channels = s.channels;
    bool vector = (s.last ? channels : pixels) % V == 0 && ((uintptr_t)to | (uintptr_t)x | (uintptr_t)dy) % 16 == 0;
    int64_t count = vector ? s.numel / V : s.numel;
    (s.last ? channels : pixels) /= vector ? V : 1;
    return trek_launch(call, queue, trek_loop(count, 1 << 22), vector ? apply_kernel<T, V> : apply_kernel<T, 1>, to, x, dy,
                       (const channel_numbers<W> *)numbers, count, trek_quotient_of(pixels),
                       trek_quotient_of(channels), s.last, count > 0x7fffffff);
}

/* Reduces dense x over all dimensions except channels, into an array of them. */
template <typename Op>
static trek_status gather(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *x, bool last, const Op &op)
{
    trek_tensor dense = *x;
    int64_t out_strides[TREK_MAX_DIMS] = { 0 }, stride = 1;
    for (int d = x->ndim - 1; d >= 0; stride *= x->sizes[d--])
        dense.strides[d] = stride;
    if (last)
        trek_channels_last_strides(x->sizes, dense.strides);
    out_strides[1] = 1;
    trek_reduce_walk w;
    trek_reduce_dims(&w, &dense, ~(uint64_t)2, out_strides, false);
    return trek_reduce_run<Op, sizeof(typename Op::element) >= 8 ? 2 : 4>(call, queue, op, &w);
}

/* Reads data that are channels last in place, because they are dense. */
static trek_status read_dense(trek_dense *d, const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *t, bool last)
{
    if (!last)
        return d->read(call, queue, t);
    d->data = t->data;
    return TREK_OK;
}
static trek_status write_dense(trek_dense *d, trek_cuda_queue *queue, trek_tensor *t, bool last)
{
    if (!last)
        return d->write(queue, t);
    d->data = t->data;
    return TREK_OK;
}

template <typename T> static trek_status forward(const trek_op_call *call)
{
    typedef typename trek_wide<T>::type W;
    const trek_tensor *x = call->inputs[0], *weight = trek_input_of(call, 1), *bias = trek_input_of(call, 2);
    trek_tensor *running[2] = { (trek_tensor *)trek_input_of(call, 3), (trek_tensor *)trek_input_of(call, 4) };
    const bool training = call->attrs.i[0] != 0;
    batch_sizes s = sizes_of(x);
    s.last = trek_lies_channels_last(x) && trek_lies_channels_last(call->outputs[0]);
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    if (s.channels == 0)
        return TREK_OK;
    trek_dense in, y;
    trek_held statistics, numbers;
    TRY(read_dense(&in, call, queue, x, s.last));
    TRY(write_dense(&y, queue, call->outputs[0], s.last));
    TRY(statistics.take(queue, (size_t)s.channels * sizeof(batch_statistics)));
    TRY(numbers.take(queue, (size_t)s.channels * sizeof(channel_numbers<W>)));
    if (training) {
        batch_statistics_op<T> op;
        op.x = in.as<T>();
        op.out = statistics.as<batch_statistics>();
        TRY(gather(call, queue, x, s.last, op));
    }
    TRY(trek_launch(call, queue, trek_loop(s.channels), prepare_forward<W>, numbers.as<channel_numbers<W>>(),
                    training ? (const batch_statistics *)statistics.as<batch_statistics>() : NULL, trek_numbers_of(weight),
                    trek_numbers_of(bias), trek_numbers_of(running[0]), trek_numbers_of(running[1]),
                    trek_numbers_of(call->outputs[1]), trek_numbers_of(call->outputs[2]), s.channels,
                    s.count, call->attrs.f[0], call->attrs.f[1]));
    if (training && running[0] && s.numel > 0) {
        trek_cuda_bump(running[0]);
        trek_cuda_bump(running[1]);
    }
    TRY(apply<T>(call, queue, y.as<T>(), in.as<T>(), NULL, numbers.scratch.data, s));
    return y.finish(call, call->outputs[0]);
}

template <typename T> static trek_status backward(const trek_op_call *call)
{
    typedef typename trek_wide<T>::type W;
    const trek_tensor *x = call->inputs[1], *mean = call->inputs[2], *rstd = call->inputs[3], *weight = trek_input_of(call, 4);
    batch_sizes s = sizes_of(x);
    s.last = trek_lies_channels_last(x) && trek_lies_channels_last(call->inputs[0]) && trek_lies_channels_last(call->outputs[0]);
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    if (s.channels == 0)
        return TREK_OK;
    trek_dense grad, in, dx, centre;
    trek_held sums, numbers;
    TRY(read_dense(&grad, call, queue, call->inputs[0], s.last));
    TRY(read_dense(&in, call, queue, x, s.last));
    TRY(centre.read(call, queue, mean));
    TRY(write_dense(&dx, queue, call->outputs[0], s.last));
    TRY(sums.take(queue, (size_t)s.channels * sizeof(batch_sums)));
    TRY(numbers.take(queue, (size_t)s.channels * sizeof(channel_numbers<W>)));
    batch_sums_op<T> op;
    op.x = in.as<T>();
    op.dy = grad.as<T>();
    op.mean = centre.data;
    op.mean_dtype = mean->dtype;
    op.per = 1;
    op.out = sums.as<batch_sums>();
    TRY(gather(call, queue, x, s.last, op));
    TRY(trek_launch(call, queue, trek_loop(s.channels), prepare_backward<W>, numbers.as<channel_numbers<W>>(),
                    (const batch_sums *)sums.as<batch_sums>(), trek_numbers_of(mean), trek_numbers_of(rstd),
                    trek_numbers_of(weight), trek_numbers_of(weight ? call->outputs[1] : NULL),
                    trek_numbers_of(call->outputs[2]), s.channels, s.count,
                    call->attrs.i[0] != 0));
    TRY(apply<T>(call, queue, dx.as<T>(), in.as<T>(), grad.as<T>(), numbers.scratch.data, s));
    return dx.finish(call, call->outputs[0]);
}

/* --- groups: the channels of all samples are those of one image; `per` of them have common statistics --- */

struct group_sizes {
    int64_t samples, channels, per, groups; /* groups: of all samples */
};

template <typename W>
static __global__ void prepare_group_forward(channel_numbers<W> *to, const batch_statistics *now, trek_numbers weight,
                                             trek_numbers bias, trek_numbers mean, trek_numbers rstd, group_sizes s, double eps)
{
    int64_t g = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (g >= s.groups)
        return;
    const batch_statistics *own = now + g * s.per;
    double centre = 0, variance = 0;
    for (int64_t k = 0; k < s.per; k++)
        centre += own[k].mean / (double)s.per;
    for (int64_t k = 0; k < s.per; k++)
        variance += (own[k].variance + (own[k].mean - centre) * (own[k].mean - centre)) / (double)s.per;
    double deviation = 1 / sqrt(variance + eps);
    mean.put(g, centre);
    rstd.put(g, deviation);
    for (int64_t k = 0; k < s.per; k++) {
        int64_t c = (g * s.per + k) % s.channels;
        channel_numbers<W> n;
        n.mean = (W)centre;
        n.scale = (W)(deviation * (weight.x ? weight.get(c) : 1));
        n.shift = (W)(bias.x ? bias.get(c) : 0);
        n.slope = 0;
        to[g * s.per + k] = n;
    }
}

template <typename W>
static __global__ void prepare_group_backward(channel_numbers<W> *to, const batch_sums *sums, trek_numbers mean,
                                              trek_numbers rstd,
                                              trek_numbers weight, group_sizes s, double count)
{
    int64_t g = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (g >= s.groups)
        return;
    const double deviation = rstd.get(g);
    double sum = 0, product = 0;
    for (int64_t k = 0; k < s.per; k++) {
        double w = weight.x ? weight.get((g * s.per + k) % s.channels) : 1;
        sum += w * sums[g * s.per + k].sum;
        product += w * sums[g * s.per + k].product;
    }
    for (int64_t k = 0; k < s.per; k++) {
        double w = weight.x ? weight.get((g * s.per + k) % s.channels) : 1;
        channel_numbers<W> n;
        n.mean = (W)mean.get(g);
        n.scale = (W)(w * deviation);
        n.shift = count > 0 ? (W)(deviation * sum / count) : (W)0;
        n.slope = count > 0 ? (W)(deviation * deviation * deviation * product / count) : (W)0;
        to[g * s.per + k] = n;
    }
}

/* Gradients of weight and bias, over the samples. */
static __global__ void group_parameters(const batch_sums *sums, trek_numbers rstd, trek_numbers dweight, trek_numbers dbias,
                                        group_sizes s)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= s.channels)
        return;
    double weight = 0, bias = 0;
    for (int64_t i = 0; i < s.samples; i++) {
        weight += sums[i * s.channels + c].product * rstd.get((i * s.channels + c) / s.per);
        bias += sums[i * s.channels + c].sum;
    }
    if (dweight.x)
        dweight.put(c, weight);
    if (dbias.x)
        dbias.put(c, bias);
}

/* x as [1, N C, pixels] */
static trek_tensor as_one_image(const trek_tensor *x)
{
    trek_tensor one = *x;
    one.sizes[0] = 1;
    one.sizes[1] = x->sizes[0] * x->sizes[1];
    return one;
}

static group_sizes groups_of(const trek_op_call *call, const trek_tensor *x)
{
    group_sizes s = { x->sizes[0], x->sizes[1], x->sizes[1] / call->attrs.i[0], 0 };
    s.groups = s.per > 0 ? s.samples * call->attrs.i[0] : 0;
    return s;
}

template <typename T> static trek_status group_forward(const trek_op_call *call)
{
    typedef typename trek_wide<T>::type W;
    const trek_tensor *x = call->inputs[0], *weight = trek_input_of(call, 1), *bias = trek_input_of(call, 2),
        one = as_one_image(x);
    const batch_sizes s = sizes_of(&one);
    const group_sizes groups = groups_of(call, x);
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    if (groups.groups == 0)
        return TREK_OK;
    trek_dense in, y;
    trek_held statistics, numbers;
    TRY(in.read(call, queue, x));
    TRY(y.write(queue, call->outputs[0]));
    TRY(statistics.take(queue, (size_t)s.channels * sizeof(batch_statistics)));
    TRY(numbers.take(queue, (size_t)s.channels * sizeof(channel_numbers<W>)));
    batch_statistics_op<T> op;
    op.x = in.as<T>();
    op.out = statistics.as<batch_statistics>();
    TRY(gather(call, queue, &one, false, op));
    TRY(trek_launch(call, queue, trek_loop(groups.groups), prepare_group_forward<W>, numbers.as<channel_numbers<W>>(),
                    (const batch_statistics *)statistics.as<batch_statistics>(), trek_numbers_of(weight), trek_numbers_of(bias),
                    trek_numbers_of(call->outputs[1]), trek_numbers_of(call->outputs[2]), groups, call->attrs.f[0]));
    TRY(apply<T>(call, queue, y.as<T>(), in.as<T>(), NULL, numbers.scratch.data, s));
    return y.finish(call, call->outputs[0]);
}

template <typename T> static trek_status group_backward(const trek_op_call *call)
{
    typedef typename trek_wide<T>::type W;
    const trek_tensor *x = call->inputs[1], *mean = call->inputs[2], *rstd = call->inputs[3], *weight = trek_input_of(call, 4);
    const trek_tensor one = as_one_image(x);
    const batch_sizes s = sizes_of(&one);
    const group_sizes groups = groups_of(call, x);
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return TREK_ERR_DEVICE;
    if (groups.channels == 0)
        return TREK_OK;
    trek_dense grad, in, dx, centre;
    trek_held sums, numbers;
    TRY(sums.take(queue, (size_t)(s.channels + 1) * sizeof(batch_sums)));
    if (groups.groups > 0) {
        TRY(grad.read(call, queue, call->inputs[0]));
        TRY(in.read(call, queue, x));
        TRY(centre.read(call, queue, mean));
        TRY(dx.write(queue, call->outputs[0]));
        TRY(numbers.take(queue, (size_t)s.channels * sizeof(channel_numbers<W>)));
        batch_sums_op<T> op;
        op.x = in.as<T>();
        op.dy = grad.as<T>();
        op.mean = centre.data;
        op.mean_dtype = mean->dtype;
        op.per = groups.per;
        op.out = sums.as<batch_sums>();
        TRY(gather(call, queue, &one, false, op));
        TRY(trek_launch(call, queue, trek_loop(groups.groups), prepare_group_backward<W>, numbers.as<channel_numbers<W>>(),
                        (const batch_sums *)sums.as<batch_sums>(), trek_numbers_of(mean), trek_numbers_of(rstd),
                        trek_numbers_of(weight), groups, (double)groups.per * (double)s.pixels));
        TRY(apply<T>(call, queue, dx.as<T>(), in.as<T>(), grad.as<T>(), numbers.scratch.data, s));
    }
    TRY(trek_launch(call, queue, trek_loop(groups.channels), group_parameters, (const batch_sums *)sums.as<batch_sums>(),
                    trek_numbers_of(rstd), trek_numbers_of(weight ? call->outputs[1] : NULL), trek_numbers_of(call->outputs[2]),
                    groups));
    return groups.groups > 0 ? dx.finish(call, call->outputs[0]) : TREK_OK;
}

template <typename T> static void enter(trek_backend *b, trek_dtype dtype)
{
    b->kernels[TREK_OP_batch_norm][dtype] = forward<T>;
    b->kernels[TREK_OP_batch_norm_backward][dtype] = backward<T>;
    b->kernels[TREK_OP_group_norm][dtype] = group_forward<T>;
    b->kernels[TREK_OP_group_norm_backward][dtype] = group_backward<T>;
}

extern "C" void trek_cuda_register_batch_norm(trek_backend *b)
{
    enter<float>(b, TREK_F32);
    enter<double>(b, TREK_F64);
    enter<trek_bf16>(b, TREK_BF16);
    enter<trek_f16>(b, TREK_F16);
}
