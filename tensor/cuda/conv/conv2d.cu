/* SPDX-License-Identifier: Apache-2.0 */
/* conv2d and its gradients: by cuDNN, otherwise as products whose operands are read from the images in place
 * (implicit matrices), in a fixed order. Also unfold and fold. */
#include "tensor/channels_last.h"
#include "tensor/cuda/products/blas.h"
#include "tensor/cuda/conv/cudnn.h"
#include "tensor/cuda/conv/dnn.h"
#include "tensor/cuda/paths.h"
#include "tensor/cuda/products/linear.h"
#include "tensor/cuda/products/tile.cuh"

#define SPLIT_LEAST 512   /* the fewest terms of a part of a split sum */
#define SPLIT_BLOCKS 512  /* the number of blocks aimed for */

/* x [N, C, H, W], weight [F, C / groups, kh, kw], y [N, F, OH, OW]; strides in elements. */
struct conv {
    int64_t images, channels, height, width, filters, out_h, out_w, groups, group_channels, group_filters;
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int64_t x[4], weight[4], y[4];
};

static conv geometry(const trek_op_call *call, const trek_tensor *x, const trek_tensor *weight, const trek_tensor *y)
{
    const int64_t *a = call->attrs.i;
    conv c = {};
    c.images = x->sizes[0], c.channels = x->sizes[1], c.height = x->sizes[2], c.width = x->sizes[3];
    c.filters = weight->sizes[0], c.kernel_h = (int)weight->sizes[2], c.kernel_w = (int)weight->sizes[3];
    c.out_h = y->sizes[2], c.out_w = y->sizes[3];
    c.stride_h = (int)a[0], c.stride_w = (int)a[1], c.pad_h = (int)a[2], c.pad_w = (int)a[3];
    c.dilation_h = (int)a[4], c.dilation_w = (int)a[5];
    c.groups = a[6];
    c.group_channels = c.channels / c.groups;
    c.group_filters = c.filters / c.groups;
    for (int d = 0; d < 4; d++) {
        c.x[d] = x->strides[d];
        c.weight[d] = weight->strides[d];
        c.y[d] = y->strides[d];
    }
    return c;
}

/* --- operands ----------------------------------------------------------------------------- */

/* Position p of a sum over channels (or filters) and the kernel's positions. */
struct tap {
    int64_t plane;
    int v, u;
    __device__ __forceinline__ tap(const conv &c, int64_t p)
    {
        uint32_t q = (uint32_t)p, row = q / (uint32_t)c.kernel_w;
        u = (int)(q - row * (uint32_t)c.kernel_w);
        plane = row / (uint32_t)c.kernel_h;
        v = (int)(row % (uint32_t)c.kernel_h);
    }
};

/* Position i of a batch of planes of rows x columns. */
struct pixel {
    int64_t image;
    int row, column;
    __device__ __forceinline__ pixel(int64_t i, int64_t rows, int64_t columns)
    {
        int64_t size = rows * columns;
        image = i < 0x7fffffff ? (int64_t)((uint32_t)i / (uint32_t)size) : i / size;
        uint32_t rest = (uint32_t)(i - image * size);
        row = (int)(rest / (uint32_t)columns);
        column = (int)(rest % (uint32_t)columns);
    }
};

/* Rows: filters of a group; p: taps. For the input's gradient rows are channels, and p runs over filters. */
template <typename T, typename W, bool of_input> struct weight_lines {
    typedef const T *place;
    const conv &c;
    const T *data;
    static const bool along_p = true;
    __device__ __forceinline__ place at(int64_t row) const { return data + row * c.weight[of_input ? 1 : 0]; }
    __device__ __forceinline__ W load(place line, int64_t p) const
    {
        tap t(c, p);
        return (W)trek_get(line[t.plane * c.weight[of_input ? 0 : 1] + t.v * c.weight[2] + t.u * c.weight[3]]);
    }
};

struct window {
    const void *image;
    int64_t top, left;
};

/* Columns: positions of y; p: taps. */
template <typename T, typename W> struct window_lines {
    typedef window place;
    const conv &c;
    const T *data;
    static const bool along_p = false;
    __device__ __forceinline__ place at(int64_t column) const
    {
        pixel o(column, c.out_h, c.out_w);
        window w = { data + o.image * c.x[0], (int64_t)o.row * c.stride_h - c.pad_h, (int64_t)o.column * c.stride_w - c.pad_w };
        return w;
    }
    __device__ __forceinline__ W load(const place &w, int64_t p) const
    {
        tap t(c, p);
        int64_t row = w.top + (int64_t)t.v * c.dilation_h, column = w.left + (int64_t)t.u * c.dilation_w;
        bool inside = row >= 0 && row < c.height && column >= 0 && column < c.width;
        return inside ? (W)trek_get(((const T *)w.image)[t.plane * c.x[1] + row * c.x[2] + column * c.x[3]]) : (W)0;
    }
};

/* Columns: pixels of x; p: filters and the kernel's positions: the elements of dy to which the pixel contributed. */
template <typename T, typename W> struct source_lines {
    typedef window place;
    const conv &c;
    const T *data;
    static const bool along_p = false;
    __device__ __forceinline__ place at(int64_t column) const
    {
        pixel i(column, c.height, c.width);
        window w = { data + i.image * c.y[0], (int64_t)i.row + c.pad_h, (int64_t)i.column + c.pad_w };
        return w;
    }
    __device__ __forceinline__ W load(const place &w, int64_t p) const
    {
        tap t(c, p);
        int64_t row = w.top - (int64_t)t.v * c.dilation_h, column = w.left - (int64_t)t.u * c.dilation_w;
        if (row < 0 || column < 0)
            return (W)0;
        int64_t out_row = row / c.stride_h, out_column = column / c.stride_w;
        bool hit = out_row * c.stride_h == row && out_column * c.stride_w == column && out_row < c.out_h && out_column < c.out_w;
        return hit ? (W)trek_get(((const T *)w.image)[t.plane * c.y[1] + out_row * c.y[2] + out_column * c.y[3]]) : (W)0;
    }
};

/* Rows: filters; p: positions of dy in all images. */
template <typename T, typename W> struct gradient_lines {
    typedef const T *place;
    const conv &c;
    const T *data;
    static const bool along_p = true;
    __device__ __forceinline__ place at(int64_t row) const { return data + row * c.y[1]; }
    __device__ __forceinline__ W load(place line, int64_t p) const
    {
        pixel o(p, c.out_h, c.out_w);
        return (W)trek_get(line[o.image * c.y[0] + o.row * c.y[2] + o.column * c.y[3]]);
    }
};

/* Columns: taps; p: positions of y in all images, with the pixel that the tap reads there. */
template <typename T, typename W> struct tap_lines {
    typedef window place;
    const conv &c;
    const T *data;
    static const bool along_p = true;
    __device__ __forceinline__ place at(int64_t column) const
    {
        tap t(c, column);
        window w = { data + t.plane * c.x[1], (int64_t)t.v * c.dilation_h - c.pad_h, (int64_t)t.u * c.dilation_w - c.pad_w };
        return w;
    }
    __device__ __forceinline__ W load(const place &w, int64_t p) const
    {
        pixel o(p, c.out_h, c.out_w);
        int64_t row = (int64_t)o.row * c.stride_h + w.top, column = (int64_t)o.column * c.stride_w + w.left;
        bool inside = row >= 0 && row < c.height && column >= 0 && column < c.width;
        return inside ? (W)trek_get(((const T *)w.image)[o.image * c.x[0] + row * c.x[2] + column * c.x[3]]) : (W)0;
    }
};

/* --- kernels ---------------------------------------------------------------------------------- */

template <typename T, typename O, typename W> struct image_store {
    O *data;
    const T *bias;
    int64_t bias_step, rows, columns, image_step, plane_step, row_step, column_step;
    bool relu;
    __device__ __forceinline__ void operator()(int64_t plane, int64_t place, W sum) const
    {
        pixel o(place, rows, columns);
        if (bias)
            sum += (W)trek_get(bias[plane * bias_step]);
        sum = relu && sum < 0 ? (W)0 : sum;
        data[o.image * image_step + plane * plane_step + o.row * row_step + o.column * column_step] = trek_store<O>::of(sum);
    }
};

template <typename T>
static __global__ void __launch_bounds__(TREK_TILE_THREADS)
    forward_kernel(conv c, const T *x, const T *weight, const T *bias, int64_t bias_step, bool relu, T *y)
{
    typedef typename trek_wide<T>::type W;
    int64_t n = c.images * c.out_h * c.out_w, tiles = (n + TREK_TILE - 1) / TREK_TILE;
    int64_t row0 = (int64_t)blockIdx.x / tiles * TREK_TILE, column0 = (int64_t)blockIdx.x % tiles * TREK_TILE;
    for (int64_t g = blockIdx.y; g < c.groups; g += gridDim.y) {
        int64_t filter = g * c.group_filters;
        weight_lines<T, W, false> a = { c, weight + filter * c.weight[0] };
        window_lines<T, W> b = { c, x + g * c.group_channels * c.x[1] };
        image_store<T, T, W> store = { y + filter * c.y[1],
                                       bias ? bias + filter * bias_step : nullptr,
                                       bias_step,
                                       c.out_h,
                                       c.out_w,
                                       c.y[0],
                                       c.y[1],
                                       c.y[2],
                                       c.y[3],
                                       relu };
        trek_tile_product<W>(a, b, store, row0, column0, c.group_filters, n, (int64_t)0,
                             c.group_channels * c.kernel_h * c.kernel_w);
    }
}

template <typename T, typename O>
static __global__ void __launch_bounds__(TREK_TILE_THREADS) input_grad_kernel(conv c, const T *dy, const T *weight, const T *bias,
                                                                              int64_t bias_step, O *dx)
{
    typedef typename trek_wide<T>::type W;
    int64_t n = c.images * c.height * c.width, tiles = (n + TREK_TILE - 1) / TREK_TILE;
    int64_t row0 = (int64_t)blockIdx.x / tiles * TREK_TILE, column0 = (int64_t)blockIdx.x % tiles * TREK_TILE;
    for (int64_t g = blockIdx.y; g < c.groups; g += gridDim.y) {
        int64_t filter = g * c.group_filters, channel = g * c.group_channels;
        weight_lines<T, W, true> a = { c, weight + filter * c.weight[0] };
        source_lines<T, W> b = { c, dy + filter * c.y[1] };
        image_store<T, O, W> store = { dx + channel * c.x[1],
                                       bias ? bias + channel * bias_step : nullptr,
                                       bias_step,
                                       c.height,
                                       c.width,
                                       c.x[0],
                                       c.x[1],
                                       c.x[2],
                                       c.x[3],
                                       false };
        trek_tile_product<W>(a, b, store, row0, column0, c.group_channels, n, (int64_t)0,
                             c.group_filters * c.kernel_h * c.kernel_w);
    }
}

/* Partial sums [part][filter][tap]. */
template <typename W> struct part_store {
    W *data;
    int64_t taps;
    __device__ __forceinline__ void operator()(int64_t row, int64_t column, W sum) const { data[row * taps + column] = sum; }
};

template <typename T, typename W>
static __global__ void __launch_bounds__(TREK_TILE_THREADS)
    weight_grad_kernel(conv c, const T *dy, const T *x, W *parts, int64_t n_parts, int64_t part)
{
    int64_t taps = c.group_channels * c.kernel_h * c.kernel_w, tiles = (taps + TREK_TILE - 1) / TREK_TILE;
    int64_t row0 = (int64_t)blockIdx.x / tiles * TREK_TILE, column0 = (int64_t)blockIdx.x % tiles * TREK_TILE;
    int64_t terms = c.images * c.out_h * c.out_w;
    for (int64_t i = blockIdx.y; i < c.groups * n_parts; i += gridDim.y) {
        int64_t g = i / n_parts, k = i % n_parts, begin = k * part, end = begin + part < terms ? begin + part : terms;
        int64_t filter = g * c.group_filters;
        gradient_lines<T, W> a = { c, dy + filter * c.y[1] };
        tap_lines<T, W> b = { c, x + g * c.group_channels * c.x[1] };
        part_store<W> store = { parts + (k * c.filters + filter) * taps, taps };
        trek_tile_product<W>(a, b, store, row0, column0, c.group_filters, taps, begin, end);
    }
}

template <typename O, typename W> static __global__ void add_parts_kernel(conv c, const W *parts, int64_t n_parts, O *dweight)
{
    int64_t taps = c.group_channels * c.kernel_h * c.kernel_w, n = c.filters * taps;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        W sum = 0;
        for (int64_t k = 0; k < n_parts; k++)
            sum += parts[k * n + i];
        tap t(c, i % taps);
        dweight[i / taps * c.weight[0] + t.plane * c.weight[1] + t.v * c.weight[2] + t.u * c.weight[3]] = trek_store<O>::of(sum);
    }
}

/* --- calls -------------------------------------------------------------------------------------- */

template <typename T> static trek_status forward(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *bias,
                                                 bool relu)
{
    const trek_tensor *x = call->inputs[0], *weight = call->inputs[1], *y = call->outputs[0];
    conv c = geometry(call, x, weight, y);
    trek_grid grid = trek_tile_grid(c.group_filters, c.images * c.out_h * c.out_w, c.groups);
    return trek_launch(call, queue, grid, forward_kernel<T>, c, (const T *)x->data, (const T *)weight->data,
                       (const T *)(bias ? bias->data : nullptr), bias ? bias->strides[0] : (int64_t)0, relu,
                       (T *)y->data);
}

template <typename T, typename O>
static trek_status input_grad(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *bias)
{
    const trek_tensor *dy = call->inputs[0], *weight = call->inputs[1], *dx = call->outputs[0];
    conv c = geometry(call, dx, weight, dy);
    trek_grid grid = trek_tile_grid(c.group_channels, c.images * c.height * c.width, c.groups);
    return trek_launch(call, queue, grid, input_grad_kernel<T, O>, c, (const T *)dy->data, (const T *)weight->data,
                       (const T *)(bias ? bias->data : nullptr), bias ? bias->strides[0] : (int64_t)0, (O *)dx->data);
}

/* The sum over all positions is long and has few results, so it is split into parts, which are added in order. */
template <typename T, typename O> static trek_status weight_grad(const trek_op_call *call, trek_cuda_queue *queue)
{
    typedef typename trek_wide<T>::type W;
    const trek_tensor *dy = call->inputs[0], *x = call->inputs[1], *dweight = call->outputs[0];
    conv c = geometry(call, x, dweight, dy);
    int64_t taps = c.group_channels * c.kernel_h * c.kernel_w, terms = c.images * c.out_h * c.out_w;
    int64_t tiles = ((taps + TREK_TILE - 1) / TREK_TILE) * ((c.group_filters + TREK_TILE - 1) / TREK_TILE) * c.groups;
    int64_t n_parts = SPLIT_BLOCKS / tiles < terms / SPLIT_LEAST ? SPLIT_BLOCKS / tiles : terms / SPLIT_LEAST;
    n_parts = n_parts < 1 ? 1 : n_parts;
    int64_t part = (terms + n_parts - 1) / n_parts;
    part = (part + TREK_TILE_DEPTH - 1) / TREK_TILE_DEPTH * TREK_TILE_DEPTH;
    n_parts = terms ? (terms + part - 1) / part : 1;
    trek_cuda_scratch parts = { nullptr, nullptr };
    trek_status status = trek_cuda_scratch_take(queue, (size_t)(n_parts * c.filters * taps) * sizeof(W), &parts);
    if (status == TREK_OK)
        status = trek_launch(call, queue, trek_tile_grid(c.group_filters, taps, c.groups * n_parts), weight_grad_kernel<T, W>, c,
                             (const T *)dy->data, (const T *)x->data, (W *)parts.data, n_parts, part);
    if (status == TREK_OK)
        status = trek_launch(call, queue, trek_loop(c.filters * taps), add_parts_kernel<O, W>, c, (const W *)parts.data, n_parts,
                             (O *)dweight->data);
    trek_cuda_scratch_give(queue, &parts);
    return status;
}

/* bias NULL: none. */
template <typename T>
static __global__ void add_bias_kernel(T *y, const T *bias, int64_t bias_step, int64_t planes, int64_t size, int64_t n, bool relu)
{
    typedef typename trek_wide<T>::type W;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        W sum = trek_get(y[i]);
        if (bias)
            sum += trek_get(bias[i / size % planes * bias_step]);
        y[i] = trek_store<T>::of(relu && sum < 0 ? (W)0 : sum);
    }
}

template <typename T>
static trek_status add_bias(const trek_op_call *call, trek_cuda_queue *queue, const trek_tensor *bias, bool relu)
{
    const trek_tensor *y = call->outputs[0];
    return trek_launch(call, queue, trek_loop(y->numel), add_bias_kernel<T>, (T *)y->data,
                       (const T *)(bias ? bias->data : nullptr), bias ? bias->strides[0] : (int64_t)0, y->sizes[1],
                       y->sizes[2] * y->sizes[3], y->numel, relu);
}

/* --- the choice of a way: each is asked in turn ----------------------------------------------------- */

/* What a call computes: x, weight and y of the convolution, one of which is the result; and the ways that may be used. */
struct asked {
    const trek_tensor *x, *weight, *y;
    trek_cuda_path graph, single, own;
};

static asked asked_of(const trek_op_call *call, const trek_tensor *x, const trek_tensor *weight, const trek_tensor *y)
{
    trek_cuda_path_begin();
    if (call->op->id == TREK_OP_conv2d)
        return { x, weight, y, TREK_CUDA_PATH_CONV2D_CUDNN, TREK_CUDA_PATH_CONV2D_CUDNN_CALL, TREK_CUDA_PATH_CONV2D_OWN };
    if (call->op->id == TREK_OP_conv_transpose2d)
        return { x, weight, y, TREK_CUDA_PATH_CONV_TRANSPOSE2D_CUDNN, TREK_CUDA_PATH_CONV_TRANSPOSE2D_CUDNN_CALL,
                 TREK_CUDA_PATH_CONV_TRANSPOSE2D_OWN };
    return { x, weight, y, TREK_CUDA_PATH_CONV2D_BACKWARD_CUDNN, TREK_CUDA_PATH_CONV2D_BACKWARD_CUDNN_CALL,
             TREK_CUDA_PATH_CONV2D_BACKWARD_OWN };
}

/* Counts what a way has answered, and returns it. */
static trek_status counted(const trek_op_call *call, const trek_cuda_queue *queue, const asked &a, trek_cuda_path path,
                           trek_status status)
{
    const int64_t *x = a.x->sizes, *w = a.weight->sizes;
    const trek_cuda_path_shape shape = { "images channels height width filters group_channels kernel_h kernel_w stride "
                                         "channels_last of_weight", (trek_dtype)a.x->dtype,
                                         { x[0], x[1], x[2], x[3], w[0], w[1], w[2], w[3], call->attrs.i[0],
                                           trek_lies_channels_last(a.x), call->op->id == TREK_OP_conv2d_weight_grad } };
    if (status == TREK_ERR_UNSUPPORTED && path != a.own)
        trek_cuda_path_refused(queue, path);
    else if (status == TREK_OK)
        trek_cuda_path_served(queue, path, &shape);
    return status;
}

/* Uses cuDNN's calls for single convolutions, which do not add a bias; what is added after them must be row-major. */
static trek_status by_single(const trek_op_call *call, trek_cuda_queue *queue, trek_cuda_conv_kind kind, const asked &a,
                             bool fits)
{
    trek_status status = fits ? trek_cuda_cudnn_conv(call, queue, kind, a.x, a.weight, a.y)
                              : trek_cuda_refuse("a bias or an activation of a result that is not contiguous");
    return counted(call, queue, a, a.single, status);
}

template <typename T> static trek_status conv2d(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *weight = call->inputs[1], *y = call->outputs[0];
    const trek_tensor *bias = call->n_inputs > 2 ? call->inputs[2] : nullptr;
    const bool relu = call->attrs.i[7] == TREK_ACTIVATION_RELU;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (y->numel == 0)
        return TREK_OK;
    const asked a = asked_of(call, x, weight, y);
    trek_status status =
        counted(call, queue, a, a.graph, trek_cuda_dnn_conv(call, queue, TREK_CUDA_CONV_FORWARD, x, weight, bias, relu, y));
    if (status != TREK_ERR_UNSUPPORTED)
        return status;
    status = by_single(call, queue, TREK_CUDA_CONV_FORWARD, a, (!bias && !relu) || y->contiguous);
    if (status == TREK_ERR_UNSUPPORTED)
        return counted(call, queue, a, a.own, forward<T>(call, queue, bias, relu));
    return status == TREK_OK && (bias || relu) ? add_bias<T>(call, queue, bias, relu) : status;
}

/* Computes a gradient by cuDNN. */
static trek_status gradient(const trek_op_call *call, trek_cuda_queue *queue, trek_cuda_conv_kind kind, const asked &a)
{
    trek_status status =
        counted(call, queue, a, a.graph, trek_cuda_dnn_conv(call, queue, kind, a.x, a.weight, nullptr, false, a.y));
    return status == TREK_ERR_UNSUPPORTED ? by_single(call, queue, kind, a, true) : status;
}

/* Computes the input's gradient, or a transposed convolution, whose bias is added. */
template <typename T> static trek_status conv2d_input_grad(const trek_op_call *call)
{
    const trek_tensor *dx = call->outputs[0], *bias = call->n_inputs > 2 ? call->inputs[2] : nullptr;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (dx->numel == 0)
        return TREK_OK;
    trek_status status = TREK_ERR_UNSUPPORTED;
    const bool last = trek_lies_channels_last(dx);
    const asked a = asked_of(call, dx, call->inputs[1], call->inputs[0]);
    if (bias && !dx->contiguous && !last)
        status = counted(call, queue, a, a.graph,
                         trek_cuda_refuse("a bias of a result that lies neither row by row nor channels last"));
    else if (call->inputs[0]->numel && call->inputs[1]->numel)
        status = gradient(call, queue, TREK_CUDA_CONV_INPUT_GRAD, a);
    if (status == TREK_OK && bias && last)
        return trek_cuda_add_bias(call, queue, (trek_dtype)dx->dtype, dx->data, dx->numel / dx->sizes[1], dx->sizes[1],
                                  dx->sizes[1], 1, bias->data, bias->strides[0], TREK_ACTIVATION_NONE);
    if (status == TREK_OK && bias)
        return add_bias<T>(call, queue, bias, false);
    if (status != TREK_ERR_UNSUPPORTED)
        return status;
    return counted(call, queue, a, a.own, dx->dtype == call->inputs[0]->dtype ? input_grad<T, T>(call, queue, bias)
                                                                              : input_grad<T, float>(call, queue, bias));
}

template <typename T> static trek_status conv2d_weight_grad(const trek_op_call *call)
{
    const trek_tensor *dweight = call->outputs[0];
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (dweight->numel == 0)
        return TREK_OK;
    trek_status status = TREK_ERR_UNSUPPORTED;
    const asked a = asked_of(call, call->inputs[1], dweight, call->inputs[0]);
    if (call->inputs[0]->numel && call->inputs[1]->numel)
        status = gradient(call, queue, TREK_CUDA_CONV_WEIGHT_GRAD, a);
    if (status != TREK_ERR_UNSUPPORTED)
        return status;
    return counted(call, queue, a, a.own, dweight->dtype == call->inputs[0]->dtype ? weight_grad<T, T>(call, queue)
                                                                                   : weight_grad<T, float>(call, queue));
}

/* --- unfold and fold ------------------------------------------------------------------------------- */

/* The image [N, C, H, W] and its columns [N, C kh kw, OH OW]. */
struct windows {
    int64_t images, channels, height, width, out_h, out_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, kernel_h,
        kernel_w;
    int64_t image[4], columns[3];
};

template <typename T> static __global__ void unfold_kernel(windows w, const T *x, T *y, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t places = w.out_h * w.out_w, place = i % places, row = i / places, rows = w.channels * w.kernel_h * w.kernel_w;
        int64_t image = row / rows, line = row % rows, u = line % w.kernel_w, v = line / w.kernel_w % w.kernel_h;
        int64_t channel = line / (w.kernel_w * w.kernel_h);
        int64_t h = place / w.out_w * w.stride_h - w.pad_h + v * w.dilation_h,
                at = place % w.out_w * w.stride_w - w.pad_w + u * w.dilation_w;
        bool inside = h >= 0 && h < w.height && at >= 0 && at < w.width;
        T value =
            inside ? x[image * w.image[0] + channel * w.image[1] + h * w.image[2] + at * w.image[3]] : trek_store<T>::of(0.0f);
        y[image * w.columns[0] + line * w.columns[1] + place * w.columns[2]] = value;
    }
}

/* A pixel sums its contributions in the order of the kernel's positions. */
template <typename T> static __global__ void fold_kernel(windows w, const T *x, T *y, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t column = i % w.width, row = i / w.width % w.height, plane = i / (w.width * w.height);
        int64_t image = plane / w.channels, channel = plane % w.channels;
        typename trek_wide<T>::type sum = 0;
        for (int64_t v = 0; v < w.kernel_h; v++) {
            int64_t h = row + w.pad_h - v * w.dilation_h;
            if (h < 0 || h % w.stride_h || h / w.stride_h >= w.out_h)
                continue;
            for (int64_t u = 0; u < w.kernel_w; u++) {
                int64_t at = column + w.pad_w - u * w.dilation_w;
                if (at < 0 || at % w.stride_w || at / w.stride_w >= w.out_w)
                    continue;
                int64_t line = (channel * w.kernel_h + v) * w.kernel_w + u, place = h / w.stride_h * w.out_w + at / w.stride_w;
                sum += trek_get(x[image * w.columns[0] + line * w.columns[1] + place * w.columns[2]]);
            }
        }
        y[image * w.image[0] + channel * w.image[1] + row * w.image[2] + column * w.image[3]] = trek_store<T>::of(sum);
    }
}

template <typename T> static trek_status unfold_or_fold(const trek_op_call *call)
{
    bool fold = call->op->id == TREK_OP_fold;
    const trek_tensor *x = call->inputs[0], *y = call->outputs[0], *image = fold ? y : x, *columns = fold ? x : y;
    const int64_t *a = call->attrs.i;
    trek_cuda_queue *queue = trek_queue_of(call);
    if (!queue)
        return trek_error_status();
    if (y->numel == 0)
        return TREK_OK;
    windows w = {};
    w.images = image->sizes[0], w.channels = image->sizes[1], w.height = image->sizes[2], w.width = image->sizes[3];
    w.stride_h = a[0], w.stride_w = a[1], w.pad_h = a[2], w.pad_w = a[3], w.dilation_h = a[4], w.dilation_w = a[5];
    w.kernel_h = a[7], w.kernel_w = a[8];
    w.out_h = (w.height + 2 * w.pad_h - w.dilation_h * (w.kernel_h - 1) - 1) / w.stride_h + 1;
    w.out_w = (w.width + 2 * w.pad_w - w.dilation_w * (w.kernel_w - 1) - 1) / w.stride_w + 1;
    for (int d = 0; d < 4; d++)
        w.image[d] = image->strides[d];
    for (int d = 0; d < 3; d++)
        w.columns[d] = columns->strides[d];
    return trek_launch(call, queue, trek_loop(y->numel), fold ? fold_kernel<T> : unfold_kernel<T>, w, (const T *)x->data,
                       (T *)y->data, y->numel);
}

template <trek_dtype D> static void enter(trek_backend *backend)
{
    typedef typename trek_element<D>::type T;
    backend->kernels[TREK_OP_conv2d][D] = conv2d<T>;
    backend->kernels[TREK_OP_conv_transpose2d][D] = conv2d_input_grad<T>;
    backend->kernels[TREK_OP_conv2d_input_grad][D] = conv2d_input_grad<T>;
    backend->kernels[TREK_OP_conv2d_weight_grad][D] = conv2d_weight_grad<T>;
    backend->kernels[TREK_OP_unfold][D] = unfold_or_fold<T>;
    backend->kernels[TREK_OP_fold][D] = unfold_or_fold<T>;
}

extern "C" void trek_cuda_register_conv2d(trek_backend *backend)
{
    enter<TREK_F32>(backend);
    enter<TREK_F64>(backend);
    enter<TREK_BF16>(backend);
    enter<TREK_F16>(backend);
}
