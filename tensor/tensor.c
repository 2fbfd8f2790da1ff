/* SPDX-License-Identifier: Apache-2.0 */
/* Making, copying and reading tensors. */
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

#include "tensor/backend.h"
#include "tensor/debug.h"
#include "tensor/op.h"
#include "tensor/pages.h"
#include "tensor/random_internal.h"
#include "tensor/row_map.h"

trek_status trek_check_creation(const char *what, trek_shape shape, trek_dtype dtype)
{
    char text[TREK_SHAPE_TEXT];
    if (shape.ndim < 0 || shape.ndim > TREK_MAX_DIMS)
        return trek_fail(TREK_ERR_SHAPE, "%s: shape: %d dimensions; must be at most %d", what, shape.ndim, TREK_MAX_DIMS);
    for (int d = 0; d < shape.ndim; d++)
        if (shape.sizes[d] < 0)
            return trek_fail(TREK_ERR_SHAPE, "%s: shape: %s; sizes must not be negative", what,
                             trek_shape_format(shape, text, sizeof text));
    if (trek_dtype_size(dtype) == 0)
        return trek_fail(TREK_ERR_DTYPE, "%s: dtype: %d; must be a value of trek_dtype", what, (int)dtype);
    return TREK_OK;
}

static trek_tensor *make(const char *what, trek_shape shape, trek_dtype dtype, trek_device device)
{
    if (trek_forked)
        return trek_fail_forked(), NULL;
    if (trek_check_creation(what, shape, dtype) != TREK_OK)
        return NULL;
    device = trek_device_resolve(device);
    if (device.type == TREK_DEVICE_UNSET || (unsigned)device.type >= TREK_DEVICE_TYPE_COUNT || device.index < 0)
        return trek_fail_null(TREK_ERR_DEVICE, "%s: device: it does not exist (type %d, index %d)", what, (int)device.type,
                              device.index);
    return trek_tensor_make(shape.ndim, shape.sizes, dtype, device);
}

trek_tensor *trek_tensor_empty(trek_shape shape, trek_dtype dtype, trek_device device)
{
    return make("tensor_empty", shape, dtype, device);
}

/* Runs a fill op on t. Returns t, or NULL after releasing it. */
static trek_tensor *filled(trek_tensor *t, int op, const trek_attrs *attrs)
{
    if (!t)
        return NULL;
    trek_op_call call = { .op = &trek_ops[op], .n_outputs = 1, .outputs = { t }, .attrs = *attrs };
    if (trek_op_run(&call) == TREK_OK)
        return t;
    trek_tensor_release(t);
    return NULL;
}

trek_tensor *trek_tensor_full(trek_shape shape, double value, trek_dtype dtype, trek_device device)
{
    trek_attrs attrs = { .f = { value } };
    return filled(make("tensor_full", shape, dtype, device), TREK_OP_fill, &attrs);
}

trek_tensor *trek_tensor_zeros(trek_shape shape, trek_dtype dtype, trek_device device)
{
    trek_attrs attrs = { .f = { 0 } };
    return filled(make("tensor_zeros", shape, dtype, device), TREK_OP_fill, &attrs);
}

trek_tensor *trek_tensor_ones(trek_shape shape, trek_dtype dtype, trek_device device)
{
    trek_attrs attrs = { .f = { 1 } };
    return filled(make("tensor_ones", shape, dtype, device), TREK_OP_fill, &attrs);
}

/* Converts and moves a tensor that was made on the host in f64. */
static trek_tensor *finish(trek_tensor *host, trek_dtype dtype, trek_device device)
{
    if (!host)
        return NULL;
    trek_tensor *cast = trek_tensor_cast(host, dtype);
    trek_tensor_release(host);
    if (!cast)
        return NULL;
    trek_tensor *moved = trek_tensor_to(cast, device);
    trek_tensor_release(cast);
    return moved;
}

static bool whole(trek_dtype dtype) { return !trek_dtype_is_float(dtype) && dtype != TREK_BOOL; }

trek_tensor *trek_tensor_arange(double start, double end, double step, trek_dtype dtype, trek_device device)
{
    double count = ceil((end - start) / step);
    if (step == 0 || !isfinite(count) || count > 0x1p53 || (end - start) / step < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT,
                              "tensor_arange: from %g to %g in steps of %g; the step must lead from start to end", start, end,
                              step);
    if (whole(dtype)) { /* the number of elements is computed with integers, as in PyTorch and NumPy */
        start = trunc(start);
        step = trunc(step);
    }
    trek_tensor *t = make("tensor_arange", trek_dims(count > 0 ? (int64_t)count : 0), TREK_F64, trek_cpu(0));
    for (int64_t k = 0; t && k < t->numel; k++)
        ((double *)t->data)[k] = start + (double)k * step;
    return finish(t, dtype, device);
}

/* Makes `count` numbers from start to end, in f64 on the host. */
static trek_tensor *line(const char *name, double start, double end, int64_t count, trek_dtype dtype)
{
    trek_tensor *t = make(name, trek_dims(count), TREK_F64, trek_cpu(0));
    if (whole(dtype)) {
        start = trunc(start);
        end = trunc(end);
    }
    for (int64_t k = 0; t && k < count; k++) { /* from both ends, so that both are exact */
        double step = count > 1 ? (end - start) / (double)(count - 1) : 0;
        ((double *)t->data)[k] = k < (count + 1) / 2 ? start + (double)k * step : end - (double)(count - 1 - k) * step;
    }
    return t;
}

trek_tensor *trek_tensor_linspace(double start, double end, int64_t count, trek_dtype dtype, trek_device device)
{
    return finish(line("tensor_linspace", start, end, count, dtype), dtype, device);
}

trek_tensor *trek_tensor_logspace(double start, double end, int64_t count, double base, trek_dtype dtype, trek_device device)
{
    trek_tensor *t = line("tensor_logspace", start, end, count, dtype);
    for (int64_t k = 0; t && k < count; k++)
        ((double *)t->data)[k] = pow(base, ((double *)t->data)[k]);
    return finish(t, dtype, device);
}

trek_tensor *trek_tensor_eye(int64_t n, trek_dtype dtype, trek_device device)
{
    trek_tensor *t = trek_tensor_zeros(trek_dims(n, n), dtype, trek_cpu(0)), *one = NULL;
    if (t && !(one = trek_tensor_ones(trek_dims(1), dtype, trek_cpu(0)))) {
        trek_tensor_release(t);
        return NULL;
    }
    const size_t size = t ? trek_dtype_size(dtype) : 0;
    for (int64_t k = 0; t && k < n; k++)
        memcpy((char *)t->data + (size_t)(k * (n + 1)) * size, one->data, size);
    trek_tensor_release(one);
    return finish(t, dtype, device);
}

/* For selected rows of the thread's: each row, or run of neighbouring rows, is filled by its position. */
static trek_tensor *filled_rows(trek_tensor *t, int op, trek_attrs *attrs)
{
    int64_t rows = t->sizes[0], row = t->numel / rows, strides[TREK_MAX_DIMS] = { row, 1 };
    for (int64_t k = 0, n; k < rows; k += n) {
        int64_t place = trek_row_place(rows, k);
        for (n = 1; k + n < rows && trek_row_place(rows, k + n) == place + n;)
            n++;
        char *data = (char *)t->data + (size_t)(k * row) * trek_dtype_size((trek_dtype)t->dtype);
        trek_tensor *some = trek_tensor_make_view(t, data, 2, (int64_t[]){ n, row }, strides);
        attrs->i[3] = place * row;
        some = some ? filled(some, op, attrs) : NULL;
        if (!some) {
            trek_tensor_release(t);
            return NULL;
        }
        trek_tensor_release(some);
    }
    return t;
}

static trek_tensor *random(trek_tensor *t, int op, double first, double second)
{
    if (!t)
        return NULL;
    trek_attrs attrs;
    trek_rng_attrs(t, &attrs);
    attrs.f[0] = first;
    attrs.f[1] = second;
    const trek_row_map *map = t->ndim > 0 && t->numel > 0 ? trek_row_map_for(t->sizes[0]) : NULL;
    return map ? filled_rows(t, op, &attrs) : filled(t, op, &attrs);
}

trek_tensor *trek_tensor_rand(trek_shape shape, trek_dtype dtype, trek_device device)
{
    return random(make("tensor_rand", shape, dtype, device), TREK_OP_uniform, 0, 1);
}

trek_tensor *trek_tensor_randn(trek_shape shape, trek_dtype dtype, trek_device device)
{
    return random(make("tensor_randn", shape, dtype, device), TREK_OP_normal, 0, 1);
}

trek_tensor *trek_tensor_randint(int64_t low, int64_t high, trek_shape shape, trek_dtype dtype, trek_device device)
{
    if (low >= high)
        return trek_fail_null(TREK_ERR_ARGUMENT, "tensor_randint: low and high: there is no integer in [%lld, %lld)",
                              (long long)low, (long long)high);
    return random(make("tensor_randint", shape, dtype, device), TREK_OP_random_integers, (double)low, (double)high);
}

trek_tensor *trek_tensor_randperm(int64_t n, trek_device device)
{
    trek_tensor *t = make("tensor_randperm", trek_dims(n), TREK_I64, trek_cpu(0));
    if (!t)
        return NULL;
    trek_rng_draw draw = trek_rng_next(t);
    int64_t *p = (int64_t *)t->data;
    for (int64_t k = 0; k < n; k++)
        p[k] = k;
    for (int64_t k = n - 1; k > 0; k--) { /* Fisher and Yates; the bias of the remainder is below 2^-40 for n < 2^24 */
        uint32_t bits[4];
        trek_philox(draw.seed, (uint64_t)k, draw.draw, draw.step, bits);
        int64_t other = (int64_t)((((uint64_t)bits[0] << 32) | bits[1]) % (uint64_t)(k + 1));
        int64_t swap = p[k];
        p[k] = p[other];
        p[other] = swap;
    }
    return finish(t, TREK_I64, device);
}

trek_tensor *trek_tensor_from_data(const void *data, trek_shape shape, trek_dtype dtype, trek_device device)
{
    trek_tensor *t = make("tensor_from_data", shape, dtype, device);
    if (!t || t->numel == 0)
        return t;
    size_t bytes = (size_t)t->numel * trek_dtype_size(dtype);
    trek_status status = data ? trek_backends[t->device.type]->copy_bytes(t->data, t->device, data, trek_cpu(0), bytes, NULL)
                              : trek_fail(TREK_ERR_ARGUMENT, "tensor_from_data: data: NULL; it must be given");
    if (status == TREK_OK)
        return t;
    trek_tensor_release(t);
    return NULL;
}

/* --- looking ------------------------------------------------------------------ */

char *trek_tensor_shape_text(const trek_tensor *t, char *text)
{
    return trek_shape_format(trek_shape_make(t->sizes, t->ndim), text, TREK_SHAPE_TEXT);
}

trek_shape trek_tensor_shape(const trek_tensor *t)
{
    return t ? trek_shape_make(t->sizes, t->ndim) : (trek_shape){ 0 };
}

trek_shape trek_tensor_strides(const trek_tensor *t)
{
    return t ? trek_shape_make(t->strides, t->ndim) : (trek_shape){ 0 };
}

trek_dtype trek_tensor_dtype(const trek_tensor *t) { return t ? (trek_dtype)t->dtype : TREK_DTYPE_COUNT; }
trek_device trek_tensor_device(const trek_tensor *t) { return t ? t->device : trek_cpu(0); }
int64_t trek_tensor_numel(const trek_tensor *t) { return t ? t->numel : 0; }
bool trek_tensor_is_contiguous(const trek_tensor *t) { return t && t->contiguous; }

void *trek_tensor_data(const trek_tensor *t)
{
    const trek_backend *backend = t && !trek_gone(t, "tensor_data", "the tensor") ? trek_backends[t->device.type] : NULL;
    if (backend && trek_tensor_is_kept(t))
        return trek_fail_null(TREK_ERR_STATE,
                              "tensor_data: tensor: it is divided over ranks (TREK_SHARD_PARAMETERS), so its memory "
                              "comes and goes; copy it, for example with trek_tensor_to_host");
    return backend && backend->host_accessible ? t->data : NULL;
}

trek_status trek_tensor_to_host(const trek_tensor *tensor, trek_dtype dtype, void *data, size_t bytes)
{
    if (!tensor || (!data && bytes))
        return trek_fail_missing("tensor_to_host", tensor ? "data" : "tensor");
    if (trek_gone(tensor, "tensor_to_host", "the tensor"))
        return TREK_ERR_STATE;
    if ((size_t)tensor->numel * trek_dtype_size(dtype) != bytes)
        return trek_fail(TREK_ERR_ARGUMENT, "tensor_to_host: bytes: %lld elements of %s are not %zu bytes",
                         (long long)tensor->numel, trek_dtype_name(dtype), bytes);
    trek_tensor *cast = trek_tensor_cast((trek_tensor *)tensor, dtype);
    trek_tensor *flat = cast ? trek_tensor_readable(cast) : NULL;
    trek_status status = trek_error_status();
    if (flat) {
        const trek_backend *backend = trek_backends[flat->device.type];
        status = bytes ? backend->copy_bytes(data, trek_cpu(0), flat->data, flat->device, bytes, NULL) : TREK_OK;
    }
    trek_tensor_release(flat);
    trek_tensor_release(cast);
    if (!flat && trek_tensor_is_kept(tensor)) /* its keeper has said why */
        return trek_error_status();
    return flat ? status : trek_fail(TREK_ERR_MEMORY, "tensor_to_host: out of memory: no copy could be made");
}

double trek_tensor_item(const trek_tensor *tensor)
{
    double value = NAN;
    if (!tensor)
        return trek_fail_missing("tensor_item", "tensor"), value;
    if (trek_gone(tensor, "tensor_item", "the tensor"))
        return value;
    if (tensor->numel != 1) {
        char text[TREK_SHAPE_TEXT];
        return trek_fail(TREK_ERR_SHAPE, "tensor_item: tensor: %s; must have one element", trek_tensor_shape_text(tensor, text)),
               value;
    }
    bool plain = tensor->device.type == TREK_CPU && !trek_tensor_is_kept(tensor);
    if (plain && tensor->dtype == TREK_F32)
        return *(const float *)(const void *)tensor->data;
    if (plain && tensor->dtype == TREK_I64)
        return (double)*(const int64_t *)(const void *)tensor->data;
    return trek_tensor_to_host(tensor, TREK_F64, &value, sizeof value) == TREK_OK ? value : NAN;
}

/* --- copying -------------------------------------------------------------------- */

trek_tensor *trek_tensor_clone(trek_tensor *tensor) { return trek_tensor_copy(tensor); }

trek_tensor *trek_tensor_contiguous(trek_tensor *tensor)
{
    return tensor && tensor->contiguous ? trek_tensor_retain(tensor) : trek_tensor_copy(tensor);
}

trek_tensor *trek_tensor_cast(trek_tensor *tensor, trek_dtype dtype)
{
    return tensor && tensor->dtype == dtype ? trek_tensor_retain(tensor) : trek_tensor_convert(tensor, dtype);
}

trek_tensor *trek_tensor_to(trek_tensor *tensor, trek_device device)
{
    if (!tensor)
        return trek_fail_missing("tensor_to", "tensor"), NULL;
    if (trek_gone(tensor, "tensor_to", "the tensor"))
        return NULL;
    device = trek_device_resolve(device);
    if (trek_device_equal(tensor->device, device))
        return trek_tensor_retain(tensor);
    if (tensor->device.type == TREK_CPU && device.type == TREK_CPU && device.index >= 0) {
        /* cpu:k are homes of ranks: moving between them shares memory */
        trek_tensor *same = trek_tensor_make_view(tensor, tensor->data, tensor->ndim, tensor->sizes, tensor->strides);
        if (same)
            same->device = device;
        return same;
    }
    trek_tensor *moved = make("tensor_to", trek_tensor_shape(tensor), (trek_dtype)tensor->dtype, device);
    if (moved && trek_tensor_copy_from(moved, tensor) != TREK_OK) {
        trek_tensor_release(moved);
        return NULL;
    }
    return moved;
}

/* Same device type: the convert kernel writes any strides. The source is treated as on the other's device (cpu:k
 * share memory) without making a view: loading relies on copies on CPUs not failing for lack of memory. */
static trek_status copy_within(trek_tensor *to, trek_tensor *from)
{
    trek_tensor there, *seen = from;
    if (!trek_device_equal(from->device, to->device)) {
        const size_t refs = offsetof(trek_tensor, dtype); /* other threads count references meanwhile, and that field is not
                                                           * read */
        atomic_init(&there.refs, 1);
        memcpy((char *)&there + refs, (const char *)from + refs, sizeof there - refs);
        there.device = to->device;
        seen = &there;
    }
    trek_op_call call = { .op = &trek_ops[TREK_OP_convert], .n_inputs = 1, .inputs = &seen, .n_outputs = 1, .outputs = { to } };
    call.attrs.i[0] = to->dtype;
    return trek_op_run(&call);
}

/* Copies through contiguous copies of the source's dtype on both sides. */
static trek_status copy_across(trek_tensor *to, trek_tensor *from)
{
    trek_tensor *flat = trek_tensor_readable(from);
    trek_tensor *landed = flat ? trek_tensor_make(from->ndim, from->sizes, (trek_dtype)from->dtype, to->device) : NULL;
    trek_status status = landed ? TREK_OK : trek_error_status();
    if (landed) {
        const trek_backend *backend = trek_backends[to->device.type == TREK_CPU ? from->device.type : to->device.type];
        size_t bytes = (size_t)flat->numel * trek_dtype_size((trek_dtype)flat->dtype);
        status = backend->copy_bytes(landed->data, landed->device, flat->data, flat->device, bytes, NULL);
    }
    if (status == TREK_OK)
        status = copy_within(to, landed);
    trek_tensor_release(landed);
    trek_tensor_release(flat);
    return status;
}

trek_status trek_tensor_copy_from(trek_tensor *tensor, const trek_tensor *source)
{
    if (!tensor || !source)
        return trek_fail_missing("tensor_copy_from", tensor ? "source" : "tensor");
    if (trek_gone(tensor, "tensor_copy_from", "the tensor") || trek_gone(source, "tensor_copy_from", "the source"))
        return TREK_ERR_STATE;
    if (!trek_same_sizes(tensor, source)) {
        char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
        return trek_fail(TREK_ERR_SHAPE, "tensor_copy_from: source: %s cannot be copied into %s",
                         trek_tensor_shape_text(source, a), trek_tensor_shape_text(tensor, b));
    }
    if (trek_check_overwrite("tensor_copy_from", tensor, source) != TREK_OK)
        return trek_error_status();
    bool within = tensor->device.type == source->device.type &&
                  (tensor->device.type == TREK_CPU || tensor->device.index == source->device.index);
    trek_status status = within ? copy_within(tensor, (trek_tensor *)source) : copy_across(tensor, (trek_tensor *)source);
    if (status == TREK_OK)
        trek_tensor_bump(tensor);
    return status;
}
