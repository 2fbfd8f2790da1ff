/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronised batch normalisation: batch norm over the rows of all ranks. Each rank computes the statistics of its
 * own rows, and the ranks sum them through trek_rank_here.collectives, or otherwise through the ranks the layer is
 * bound to. All numbers per channel are f64 on the host. */
#include <math.h>

#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/batch_norm_internal.h"
#include "nn/module_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"

/* The values of one forward, owned by the tape. */
typedef struct sync_call {
    trek_batch_norm_layer *layer; /* valid during forward */
    const trek_rank_collectives *ranks; /* the layer's own, retained; NULL if the thread's rank context has them */
    int64_t channels;
    double eps;
    double total;             /* the number of values per channel over all ranks */
    double *mean, *variance, *rstd; /* [C] over all ranks, after the exchange */
    double *first, *second;   /* [C] this rank's mean and squared deviations; scratch in backward */
    double *sums;             /* [1 + 2 C] what is exchanged */
    double values[];          /* the memory of all these */
} sync_call;

static sync_call *call_new(trek_batch_norm_layer *layer)
{
    int64_t n = layer->features;
    sync_call *call = trek_calloc(1, sizeof *call + (size_t)(1 + 7 * n) * sizeof(double));
    if (!call)
        return NULL;
    double *at = call->values;
    call->layer = layer;
    call->channels = n;
    call->eps = layer->eps;
    call->mean = at, call->variance = at + n, call->rstd = at + 2 * n;
    call->first = at + 3 * n, call->second = at + 4 * n, call->sums = at + 5 * n;
    return call;
}

static void hold(const trek_rank_collectives *ranks, int more)
{
    if (ranks && ranks->hold)
        ranks->hold(ranks, more);
}

static void call_free(void *data)
{
    hold(((sync_call *)data)->ranks, -1);
    trek_free(data);
}

/* Sums over the ranks `own`, or over those of the thread's rank context if that is NULL. */
static trek_status exchange_over(const trek_rank_collectives *own, double *values, int64_t count)
{
    const trek_rank_collectives *ranks = own ? own : trek_rank_here.collectives;
    if (!ranks)
        return trek_fail(TREK_ERR_STATE, "sync_batch_norm: the forward was split over ranks, but its backward is not");
    return ranks->sum(values, count, ranks->arg);
}

static trek_status exchange(const sync_call *call, double *values, int64_t count)
{
    return exchange_over(call->ranks, values, count);
}

static trek_status to_host(const trek_var *var, double *values, int64_t n)
{
    return var ? trek_tensor_to_host(var->data, TREK_F64, values, (size_t)n * sizeof *values) : trek_error_status();
}

/* Returns f64 numbers per channel on x's device, in the current scope. */
static trek_var *channels_of(const sync_call *call, const double *values, const trek_var *x)
{
    trek_tensor *tensor = trek_tensor_from_data(values, trek_dims(call->channels), TREK_F64, trek_var_device(x));
    return tensor ? trek_var_from(tensor) : NULL;
}

static trek_var *filled(const sync_call *call, double value, const trek_var *x)
{
    trek_tensor *tensor = trek_tensor_full(trek_dims(call->channels), value, TREK_F64, trek_var_device(x));
    return tensor ? trek_var_from(tensor) : NULL;
}

/* --- forward ------------------------------------------------------------------------------- */

/* Computes the mean and squared deviations of this rank's values. The batch norm kernel returns them in f64 through
 * f64 running statistics that are replaced entirely; the variance it writes there is unbiased. */
static trek_status own_statistics(sync_call *call, trek_var *x, int64_t count)
{
    if (count == 0)
        return TREK_OK;
    if (count == 1)
        return to_host(x, call->first, call->channels);
    trek_var *mean = filled(call, 0, x), *variance = filled(call, 0, x);
    if (!mean || !variance || !trek_batch_norm(x, mean, variance, NULL, NULL, true, 1, call->layer->eps))
        return trek_error_status();
    trek_status status = to_host(mean, call->first, call->channels);
    if (status == TREK_OK)
        status = to_host(variance, call->second, call->channels);
    for (int64_t c = 0; c < call->channels; c++)
        call->second[c] *= (double)(count - 1);
    return status;
}

/* Computes the mean over all ranks first, then the squared deviations from it. */
static trek_status merge_statistics(sync_call *call, int64_t count)
{
    int64_t n = call->channels;
    double *sums = call->sums;
    sums[0] = (double)count;
    for (int64_t c = 0; c < n; c++)
        sums[1 + c] = (double)count * call->first[c];
    trek_status status = exchange(call, sums, 1 + n);
    if (status != TREK_OK)
        return status;
    call->total = sums[0];
    for (int64_t c = 0; c < n; c++)
        call->mean[c] = call->total > 0 ? sums[1 + c] / call->total : 0;
    for (int64_t c = 0; c < n; c++) {
        double shift = call->first[c] - call->mean[c];
        sums[c] = count > 0 ? call->second[c] + (double)count * shift * shift : 0;
    }
    status = exchange(call, sums, n);
    for (int64_t c = 0; c < n && status == TREK_OK; c++) {
        call->variance[c] = call->total > 0 ? sums[c] / call->total : 0;
        double spread = call->variance[c] + call->layer->eps;
        call->rstd[c] = spread == 0 ? 0 : 1 / sqrt(spread); /* all values alike: 0, as in PyTorch */
    }
    return status;
}

/* Computes running = (1 - momentum) running + momentum now. */
static trek_status follow(sync_call *call, trek_var *running, const double *now, double scale, double momentum)
{
    double *values = call->sums;
    trek_status status = to_host(running, values, call->channels);
    if (status != TREK_OK)
        return status;
    for (int64_t c = 0; c < call->channels; c++)
        values[c] = (1 - momentum) * values[c] + momentum * scale * now[c];
    trek_var *next = channels_of(call, values, running);
    return next ? trek_tensor_copy_from(running->data, next->data) : trek_error_status();
}

static trek_status update_running(sync_call *call)
{
    trek_batch_norm_layer *m = call->layer;
    double momentum;
    trek_status status = trek_batch_norm_layer_count(m, &momentum);
    if (status != TREK_OK || !m->running_mean || call->total == 0)
        return status;
    status = follow(call, m->running_mean, call->mean, 1, momentum);
    return status == TREK_OK ? follow(call, m->running_var, call->variance, call->total / (call->total - 1), momentum) : status;
}

/* The inputs are x, then weight and bias if present. The output is y. */
static trek_status sync_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                int n_outputs)
{
    (void)n_outputs;
    sync_call *call = trek_function_data(context);
    trek_var *x = inputs[0], *weight = n_inputs > 1 ? inputs[1] : NULL, *bias = n_inputs > 1 ? inputs[2] : NULL;
    int64_t count = trek_var_numel(x) / call->channels;
    trek_status status = own_statistics(call, x, count);
    if (status == TREK_OK)
        status = merge_statistics(call, count);
    if (status != TREK_OK)
        return status;
    if (call->total == 1)
        return trek_fail(TREK_ERR_SHAPE,
                         "sync_batch_norm: input: all ranks together have 1 value for each channel; training needs more");
    trek_var *mean = channels_of(call, call->mean, x), *variance = channels_of(call, call->variance, x);
    outputs[0] = trek_batch_norm(x, mean, variance, weight, bias, false, 0, call->layer->eps);
    trek_dtype dtype = trek_var_dtype(x) == TREK_F64 ? TREK_F64 : TREK_F32; /* the dtype that the backward kernel expects */
    trek_var *saved[4] = { x, trek_cast(mean, dtype), trek_cast(channels_of(call, call->rstd, x), dtype), weight };
    if (!outputs[0] || !saved[1] || !saved[2])
        return trek_error_status();
    status = trek_save_for_backward(context, saved, weight ? 4 : 3);
    return status == TREK_OK ? update_running(call) : status;
}

/* --- a sum over ranks as an op ---------------------------------------------------------------- */

/* Each rank gives numbers, and all get their sum. The gradient that one rank's numbers get is the sum of the gradients
 * that arrive at the result on all ranks, so the backward is the same op. Its data are the ranks, as sync_call has
 * them. */
typedef struct rank_sum {
    const trek_rank_collectives *ranks;
} rank_sum;

static void rank_sum_free(void *data)
{
    hold(((rank_sum *)data)->ranks, -1);
    trek_free(data);
}

static trek_status rank_sum_forward(trek_function_context *context, trek_var *const *inputs, int n_inputs, trek_var **outputs,
                                    int n_outputs)
{
    (void)n_inputs, (void)n_outputs;
    const rank_sum *sum = trek_function_data(context);
    int64_t n = trek_var_numel(inputs[0]);
    double *values = trek_calloc((size_t)n + 1, sizeof *values);
    trek_status status = values ? to_host(inputs[0], values, n) : trek_error_status();
    if (status == TREK_OK)
        status = exchange_over(sum->ranks, values, n);
    trek_tensor *made = status != TREK_OK ? NULL
        : trek_tensor_from_data(values, trek_var_shape(inputs[0]), TREK_F64, trek_var_device(inputs[0]));
    outputs[0] = made ? trek_cast(trek_var_from(made), trek_var_dtype(inputs[0])) : NULL;
    trek_free(values);
    return trek_error_status();
}

static trek_var *sum_over(const trek_rank_collectives *ranks, trek_var *numbers);

static trek_status rank_sum_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                     int n_inputs)
{
    (void)n_grads, (void)n_inputs;
    input_grads[0] = sum_over(((rank_sum *)trek_function_data(context))->ranks, grads[0]);
    return trek_error_status();
}

static const trek_function rank_sum_function = { "sum_over_ranks", rank_sum_forward, rank_sum_backward, rank_sum_free };

static trek_var *sum_over(const trek_rank_collectives *ranks, trek_var *numbers)
{
    rank_sum *sum = numbers ? trek_calloc(1, sizeof *sum) : NULL;
    if (!sum)
        return NULL;
    hold(sum->ranks = ranks, 1);
    return trek_function_apply_one(&rank_sum_function, sum, &numbers, 1);
}

/* --- backward that is recorded ------------------------------------------------------------------ */

/* Returns x in the dtype in which sums are made. */
static trek_var *widened(trek_var *x)
{
    return trek_var_dtype(x) == TREK_F64 ? x : trek_cast(x, TREK_F32);
}

/* 1 / sqrt(variance + eps); 0 where that would be 1 / 0, as in forward. */
static trek_var *rstd_of(trek_var *variance, double eps)
{
    if (eps != 0)
        return trek_rsqrt(trek_add_scalar(variance, eps));
    trek_var *flat = trek_eq_scalar(variance, 0);
    return trek_masked_fill(trek_rsqrt(trek_masked_fill(variance, flat, 1)), flat, 0);
}

/* The formula of sync_backward in plain ops, which are recorded, with the statistics as functions of x. All ranks make
 * the same sums in the same order, here and in the gradients of this. */
static trek_status recorded_backward(trek_function_context *context, trek_var *dy, int n_inputs, trek_var **input_grads)
{
    const sync_call *call = trek_function_data(context);
    trek_var *x = trek_saved(context, 0), *weight = n_inputs > 1 ? trek_saved(context, 3) : NULL;
    if (!x || !dy || (n_inputs > 1 && !weight))
        return trek_error_status();
    trek_shape channels = { .ndim = trek_var_ndim(x) };
    trek_dims_list others = { 0 };
    for (int d = 0; d < channels.ndim; d++) {
        channels.sizes[d] = d == 1 ? call->channels : 1;
        if (d != 1)
            others.sizes[others.ndim++] = d;
    }
    double share = call->total > 0 ? 1 / call->total : 0;
    trek_var *wide = widened(x), *seed = widened(dy);
    trek_var *mean = trek_mul_scalar(sum_over(call->ranks, trek_sum(wide, others, false)), share);
    trek_var *centred = trek_sub(wide, trek_reshape(mean, channels));
    trek_var *variance = trek_mul_scalar(sum_over(call->ranks, trek_sum(trek_square(centred), others, false)), share);
    trek_var *rstd = rstd_of(variance, call->eps), *normal = trek_mul(centred, trek_reshape(rstd, channels));
    trek_var *of_bias = trek_sum(seed, others, false), *of_weight = trek_sum(trek_mul(seed, normal), others, false);
    if (weight) {
        input_grads[1] = of_weight;
        input_grads[2] = of_bias;
    }
    if (!trek_needs_grad(context, 0))
        return trek_error_status();
    trek_var *sums = sum_over(call->ranks, trek_cat((trek_var *[]){ of_bias, of_weight }, 2, 0));
    trek_var *through_mean = trek_reshape(trek_mul_scalar(trek_narrow(sums, 0, 0, call->channels), share), channels);
    trek_var *through_spread = trek_reshape(trek_mul_scalar(trek_narrow(sums, 0, call->channels, call->channels), share),
                                            channels);
    trek_var *dx = trek_sub(trek_sub(seed, through_mean), trek_mul(normal, through_spread));
    trek_var *scale = weight ? trek_mul(rstd, widened(weight)) : rstd;
    input_grads[0] = trek_mul(dx, trek_reshape(scale, channels));
    return trek_error_status();
}

/* --- backward ------------------------------------------------------------------------------- */

/* Returns the part of dx that goes through the statistics, shift + (x - mean) slope, computed by the batch norm
 * kernel. */
static trek_var *through_statistics(sync_call *call, trek_var *x, trek_var *mean, const trek_var *weight)
{
    int64_t n = call->channels;
    double *shift = call->first, *slope = call->second;
    if (to_host(weight, shift, n) != TREK_OK || exchange(call, call->sums, 2 * n) != TREK_OK)
        return NULL;
    for (int64_t c = 0; c < n; c++) {
        double scale = call->total > 0 ? shift[c] * call->rstd[c] / call->total : 0;
        shift[c] = scale * call->sums[c];
        slope[c] = scale * call->sums[n + c] * call->rstd[c];
    }
    trek_var *shifts = channels_of(call, shift, x), *slopes = channels_of(call, slope, x), *one = filled(call, 1, x);
    return shifts && slopes && one ? trek_batch_norm(x, mean, one, slopes, shifts, false, 0, 0) : NULL;
}

/* dx = w rstd (dy - sum(dy) / N - (x - mean) rstd sum(dy xhat) / N), with sums over all ranks. This rank's own sums
 * are the gradients of bias and weight. */
static trek_status sync_backward(trek_function_context *context, trek_var *const *grads, int n_grads, trek_var **input_grads,
                                 int n_inputs)
{
    (void)n_grads;
    sync_call *call = trek_function_data(context);
    int64_t n = call->channels;
    if (trek_grad_enabled())
        return recorded_backward(context, grads[0], n_inputs, input_grads);
    trek_var *x = trek_saved(context, 0), *mean = trek_saved(context, 1), *rstd = trek_saved(context, 2);
    trek_var *weight = n_inputs > 1 ? trek_saved(context, 3) : NULL,
        *wide = weight ? trek_cast(weight, TREK_F64) : filled(call, 1, x);
    if (!x || !mean || !rstd || !wide || !grads[0])
        return trek_error_status();
    trek_var *in[5] = { grads[0], x, mean, rstd, wide }, *outs[3] = { NULL }; /* outs: w rstd dy, sum(dy xhat), sum(dy) */
    trek_attrs numbers = { 0 }; /* not training: leaves out the part that goes through the statistics */
    trek_status status = trek_apply_many(&trek_ops[TREK_OP_batch_norm_backward], in, 5, &numbers, outs, 3);
    if (status == TREK_OK && n_inputs > 1) {
        input_grads[1] = trek_cast(outs[1], trek_var_dtype(weight));
        input_grads[2] = trek_cast(outs[2], trek_var_dtype(weight));
    }
    if (status != TREK_OK || !trek_needs_grad(context, 0))
        return status;
    status = to_host(outs[2], call->sums, n);
    if (status == TREK_OK)
        status = to_host(outs[1], call->sums + n, n);
    trek_var *other = status == TREK_OK ? through_statistics(call, x, mean, wide) : NULL;
    if (!other)
        return status != TREK_OK ? status : trek_error_status();
    input_grads[0] = trek_sub(outs[0], other);
    return trek_error_status();
}

static const trek_function sync_function = { "sync_batch_norm", sync_forward, sync_backward, call_free };

/* --- the layer --------------------------------------------------------------------------------- */

static trek_var *sync_batch_norm_forward(trek_module *self, trek_var *x)
{
    trek_batch_norm_layer *m = (trek_batch_norm_layer *)self;
    char text[TREK_SHAPE_TEXT];
    if (trek_var_ndim(x) < 2 || trek_var_size(x, 1) != m->features)
        return trek_fail_null(TREK_ERR_SHAPE, "sync_batch_norm: input: %s; must be [N, %lld, ...]",
                              trek_shape_format(trek_var_shape(x), text, sizeof text), (long long)m->features);
    const trek_rank_collectives *own = trek_rank_here.collectives ? NULL : m->ranks;
    if (!m->base.own->training || (!own && !trek_rank_here.collectives))
        return trek_batch_norm_layer_normalize(m, x);
    sync_call *call = call_new(m);
    if (call)
        hold(call->ranks = own, 1);
    trek_var *inputs[3] = { x, m->weight, m->bias };
    return call ? trek_function_apply_one(&sync_function, call, inputs, m->weight ? 3 : 1) : NULL;
}

static void meet(trek_module *module, const trek_rank_collectives *ranks)
{
    trek_batch_norm_layer *m = (trek_batch_norm_layer *)module;
    hold(ranks, 1);
    hold(m->ranks, -1);
    m->ranks = ranks;
}

static void sync_batch_norm_free(trek_module *self) { meet(self, NULL); }

const trek_module_class trek_sync_batch_norm_class = {
    .name = "sync_batch_norm",
    .size = sizeof(trek_batch_norm_layer),
    .forward = sync_batch_norm_forward,
    .free = sync_batch_norm_free,
    .reset = trek_batch_norm_layer_reset,
    .describe = trek_batch_norm_layer_describe,
    .meets_ranks = true,
    .meet = meet,
};

trek_module *trek_nn_sync_batch_norm_with(const trek_batch_norm_opts *opts)
{
    return trek_batch_norm_layer_new(&trek_sync_batch_norm_class, opts);
}

trek_module *trek_nn_sync_batch_norm(int64_t features, trek_device device)
{
    return trek_nn_sync_batch_norm_with(&(trek_batch_norm_opts){ .features = features, .device = device });
}
