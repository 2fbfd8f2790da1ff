/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient clipping. Gradients that are adjacent in an arena are handled in one call, so that clipping a whole model
 * takes one reduction and one scaling. */
#include <math.h>

#include "autograd/var_internal.h"
#include "nn/params.h"
#include "optim/clip.h"
#include "optim/optimizer_internal.h"

double trek_clip_factor(double norm, double max_norm)
{
    if (!isfinite(norm))
        return 1.0;
    double factor = max_norm / (norm + 1e-6);
    return factor < 1.0 ? factor : 1.0;
}

/* Memory that one call of the backend covers. */
typedef struct clip_span {
    trek_device device;
    const trek_storage *home; /* the arena's buffer; NULL for a gradient of its own */
    trek_dtype dtype;
    char *data;
    int64_t count;
    double sum;               /* results of the walk */
    bool finite;
} clip_span;

typedef void (*span_fn)(clip_span *span, void *arg);

static void sum_span(clip_span *span, void *arg)
{
    clip_span *total = arg;
    double sum = 0.0;
    bool finite = true;
    trek_backends[span->device.type]->sum_squares(span->device, span->dtype, span->data, span->count, &sum, &finite);
    total->sum += sum;
    total->finite = total->finite && finite;
}

static void scale_span(clip_span *span, void *arg)
{
    trek_backends[span->device.type]->scale(span->device, span->dtype, span->data, span->count, *(const double *)arg);
}

static void clamp_span(clip_span *span, void *arg)
{
    trek_backends[span->device.type]->clamp_abs(span->device, span->dtype, span->data, span->count, *(const double *)arg);
}

static trek_tensor *grad_of(const trek_params *params, int k)
{
    const trek_var *var = trek_params_var(params, k);
    return var->leaf && var->leaf->grad ? var->leaf->grad->data : NULL;
}

/* A gradient with gaps, which the user may have set, is handled element by element. */
static void walk_strided(const trek_tensor *grad, int dim, char *data, clip_span *span, span_fn fn, void *arg)
{
    if (dim == grad->ndim) {
        span->data = data;
        span->count = 1;
        fn(span, arg);
        return;
    }
    int64_t step = grad->strides[dim] * (int64_t)trek_dtype_size((trek_dtype)grad->dtype);
    for (int64_t i = 0; i < grad->sizes[dim]; i++)
        walk_strided(grad, dim + 1, data + i * step, span, fn, arg);
}

/* A 16-bit gradient (of a parameter without an optimizer) is handled through an f32 copy. */
static trek_status walk_low(trek_tensor *grad, span_fn fn, void *arg, bool writes)
{
    trek_tensor *wide = trek_tensor_cast(grad, TREK_F32);
    if (!wide)
        return trek_error_status();
    clip_span span = { .device = grad->device, .dtype = TREK_F32, .data = wide->data, .count = grad->numel };
    fn(&span, arg);
    trek_status status = writes ? trek_tensor_copy_from(grad, wide) : TREK_OK;
    trek_tensor_release(wide);
    return status;
}

/* Calls fn for all gradients, from the last parameter to the first, because that is the arena's order. */
static trek_status walk(const trek_params *params, span_fn fn, void *arg, bool writes)
{
    clip_span span = { .count = 0 };
    trek_status status = TREK_OK;
    for (int k = trek_params_count(params) - 1; k >= 0 && status == TREK_OK; k--) {
        trek_tensor *grad = grad_of(params, k);
        if (!grad || grad->numel == 0)
            continue;
        if (trek_dtype_is_16bit((trek_dtype)grad->dtype)) {
            status = walk_low(grad, fn, arg, writes);
            continue;
        }
        trek_dtype dtype = (trek_dtype)grad->dtype;
        int64_t size = (int64_t)trek_dtype_size(dtype);
        const trek_storage *home = trek_params_var(params, k)->leaf->grad_in_arena ? grad->storage->parent : NULL;
        int64_t after = trek_arena_slot_end(span.count); /* padding is zero */
        if (span.count > 0 && home && home == span.home && dtype == span.dtype && grad->data == span.data + after * size) {
            span.count = after + grad->numel;
            continue;
        }
        if (span.count > 0)
            fn(&span, arg);
        span = (clip_span){ .device = grad->device, .home = home, .dtype = dtype, .data = grad->data,
                            .count = grad->numel };
        if (!grad->contiguous) {
            walk_strided(grad, 0, grad->data, &span, fn, arg);
            span.count = 0;
        }
    }
    if (span.count > 0 && status == TREK_OK)
        fn(&span, arg);
    return status;
}

static trek_status check(const trek_params *params, const char *function, double limit)
{
    if (!params)
        return trek_fail_missing(function, "params");
    trek_status status = trek_error_status();
    if (status != TREK_OK)
        return status;
    if (!(limit >= 0.0))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: limit: %g; must be at least 0", function, limit);
    return TREK_OK;
}

static void bump_all(const trek_params *params)
{
    for (int k = 0; k < trek_params_count(params); k++) {
        trek_tensor *grad = grad_of(params, k);
        if (grad)
            trek_tensor_bump(grad);
    }
}

double trek_clip_grad_norm(const trek_params *params, double max_norm)
{
    trek_status status = check(params, "clip_grad_norm", max_norm);
    if (status != TREK_OK)
        return NAN;
    clip_span total = { .finite = true };
    if (walk(params, sum_span, &total, false) != TREK_OK)
        return NAN;
    double norm = sqrt(total.sum);
    if (!total.finite && isfinite(norm))
        norm = INFINITY;
    double factor = trek_clip_factor(norm, max_norm);
    if (factor < 1.0) {
        status = walk(params, scale_span, &factor, true);
        bump_all(params);
    }
    return status == TREK_OK ? norm : (double)NAN;
}

trek_status trek_grads_scale(const trek_params *params, double factor)
{
    trek_status status = walk(params, scale_span, &factor, true);
    bump_all(params);
    return status;
}

trek_status trek_clip_grad_value(const trek_params *params, double max_value)
{
    trek_status status = check(params, "clip_grad_value", max_value);
    if (status != TREK_OK)
        return status;
    status = walk(params, clamp_span, &max_value, true);
    bump_all(params);
    return status;
}
