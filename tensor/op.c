/* SPDX-License-Identifier: Apache-2.0 */
/* The op table, and the way of a call: promotion, shape rule, dispatch. */
#include "tensor/op.h"
#include "tensor/pages.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tensor/backend.h"
#include "tensor/debug.h"
#include "tensor/number_internal.h"
#include "tensor/op_caller_internal.h"
#include "tensor/rank_context.h"
#include "tensor/trace.h"

#define TREK_OP(name, signature, infer, ...) trek_status trek_infer_##infer(trek_op_call *call);
#include "tensor/ops.def"
#undef TREK_OP

const trek_op trek_ops[TREK_OP_COUNT] = {
#define TREK_OP(name_, signature, infer_, dtypes_, flags_, promote_, key_, needed_, backward, saves_, composite)                 \
    [TREK_OP_##name_] = { .name = #name_,                                                                                        \
                          .id = TREK_OP_##name_,                                                                                 \
                          .infer = trek_infer_##infer_,                                                                          \
                          .dtypes = dtypes_,                                                                                     \
                          .flags = flags_,                                                                                       \
                          .promote = promote_,                                                                                   \
                          .key = key_,                                                                                           \
                          .needed = needed_,                                                                                     \
                          .saves = saves_ },
#include "tensor/ops.def"
#undef TREK_OP
};

_Thread_local const char *trek_op_caller;

const char *trek_op_called(const trek_op *op) { return trek_op_caller ? trek_op_caller : op->name; }

trek_status trek_op_fail(const trek_op_call *call, trek_status status, const char *format, ...)
{
    char message[TREK_ERROR_SIZE - 64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return trek_fail(status, "%s: %s", trek_op_called(call->op), message);
}

trek_status trek_op_output(trek_op_call *call, int k, int ndim, const int64_t *sizes, trek_dtype dtype)
{
    if (k >= call->n_outputs)
        call->n_outputs = k + 1;
    trek_tensor *given = call->outputs[k];
    if (!given) {
        trek_device device = call->n_inputs > 0 ? call->inputs[0]->device : trek_cpu(0);
        call->outputs[k] = trek_tensor_make(ndim, sizes, dtype, device);
        return call->outputs[k] ? TREK_OK : trek_error_status();
    }
    bool fits = given->ndim == ndim && given->dtype == dtype;
    for (int d = 0; fits && d < ndim; d++)
        fits = given->sizes[d] == sizes[d];
    if (fits)
        return TREK_OK;
    char a[TREK_SHAPE_TEXT], b[TREK_SHAPE_TEXT];
    return trek_op_fail(call, given->dtype == dtype ? TREK_ERR_SHAPE : TREK_ERR_DTYPE,
                        "output: the result, %s %s, does not fit into %s %s",
                        trek_dtype_name(dtype), trek_shape_format(trek_shape_make(sizes, ndim), a, sizeof a),
                        trek_dtype_name((trek_dtype)given->dtype), trek_tensor_shape_text(given, b));
}

/* --- promotion ------------------------------------------------------------------ */

static int scalars_of(const trek_op *op) { return op->id == TREK_OP_clamp ? 2 : 1; }

trek_dtype trek_op_common_dtype(trek_tensor *const *inputs, int count)
{
    static const int kind[TREK_DTYPE_COUNT] = { [TREK_BOOL] = 0, [TREK_U8] = 1,  [TREK_I32] = 1,  [TREK_I64] = 1,
                                                [TREK_F16] = 2,  [TREK_BF16] = 2, [TREK_F32] = 2, [TREK_F64] = 2 };
    trek_dtype among[2] = { TREK_DTYPE_COUNT, TREK_DTYPE_COUNT }; /* of inputs without dimensions, and of inputs with
                                                                   * dimensions */
    for (int k = 0; k < count; k++) {
        trek_dtype *common = inputs[k] ? &among[inputs[k]->ndim > 0] : NULL;
        if (common)
            *common = trek_dtype_promote(*common, (trek_dtype)inputs[k]->dtype);
    }
    if (among[0] == TREK_DTYPE_COUNT || among[1] == TREK_DTYPE_COUNT)
        return among[among[0] == TREK_DTYPE_COUNT];
    return among[kind[among[0]] > kind[among[1]] ? 0 : 1];
}

/* Returns the common dtype of the promoting inputs and the number. */
static trek_dtype common_dtype(const trek_op_call *call)
{
    const trek_op *op = call->op;
    trek_tensor *promoting[8] = { 0 };
    for (int k = 0; k < call->n_inputs && k < 8; k++)
        promoting[k] = op->promote >> k & 1 ? call->inputs[k] : NULL;
    trek_dtype common = trek_op_common_dtype(promoting, 8);
    if (common == TREK_DTYPE_COUNT)
        return common;
    if ((op->flags & TREK_OP_INT_TO_FLOAT) && !trek_dtype_is_float(common))
        return TREK_F32;
    if ((op->flags & TREK_OP_SCALAR) && !trek_dtype_is_float(common)) {
        for (int k = 0; k < scalars_of(op); k++)
            if (call->attrs.f[k] != rint(call->attrs.f[k]) || !isfinite(call->attrs.f[k]))
                return TREK_F32;
        return common == TREK_BOOL ? TREK_I64 : common;
    }
    return common;
}

/* --- the way of a call -------------------------------------------------------------- */

static trek_status fail_missing_input(const trek_op_call *call)
{
    return trek_fail_missing(trek_op_called(call->op), "input");
}

static trek_status fail_devices(const trek_op_call *call, int k)
{
    char a[16], b[16];
    return trek_op_fail(call, TREK_ERR_DEVICE, "inputs: they are on different devices: %s and %s; must be on one",
                        trek_device_name(call->inputs[0]->device, a, sizeof a),
                        trek_device_name(call->inputs[k]->device, b, sizeof b));
}

/* Returns which of the promoting inputs is the first whose dtype differs from that of the first of them. */
static trek_status fail_mixed(const trek_op_call *call)
{
    const trek_tensor *first = NULL, *other = NULL;
    for (int k = 0; k < call->n_inputs && !other; k++) {
        const trek_tensor *t = (call->op->promote >> k & 1) ? call->inputs[k] : NULL;
        if (t && first && t->dtype != first->dtype)
            other = t;
        first = first ? first : t;
    }
    return trek_op_fail(call, TREK_ERR_DTYPE, "inputs: dtypes %s and %s; must be equal, cast one of them",
                        trek_dtype_name((trek_dtype)first->dtype), trek_dtype_name((trek_dtype)other->dtype));
}

/* What must be done to inputs before an op gets them. */
enum { PROMOTE = 1, BRING_HOME = 2 };

/* Checks in one pass that no required input is missing and all are on one device, and whether some must be cast. CPUs
 * share their memory, so that inputs on several of them only have to be relabelled. */
static inline trek_status check_inputs(trek_op_call *call, unsigned *adapt)
{
    const trek_op *op = call->op;
    trek_tensor **in = call->inputs;
    int first = -1;
    bool mixed = false, abroad = false;
    for (int k = 0; k < call->n_inputs; k++) {
        if (!in[k]) {
            if (k >= TREK_MAX_FIXED_INPUTS || (op->needed >> k & 1) || call->n_inputs > TREK_MAX_FIXED_INPUTS)
                return fail_missing_input(call);
            continue;
        }
        if (in[k]->device.type != in[0]->device.type || in[k]->device.index != in[0]->device.index) {
            if (in[k]->device.type != TREK_CPU || in[0]->device.type != TREK_CPU)
                return fail_devices(call, k);
            abroad = true;
        }
        if (k < TREK_MAX_FIXED_INPUTS && (op->promote >> k & 1)) {
            mixed |= first >= 0 && in[k]->dtype != first;
            first = in[k]->dtype;
        }
    }
    if (mixed && (op->flags & TREK_OP_ALIKE))
        return fail_mixed(call);
    if (call->n_inputs == 0 && !(op->flags & TREK_OP_FILL))
        return trek_op_fail(call, TREK_ERR_ARGUMENT, "inputs: 0 inputs; must be at least 1");
    if ((op->flags & TREK_OP_FILL) && !call->outputs[0])
        return trek_fail_missing(op->name, "tensor to fill");
    bool promote = mixed || (first >= 0 && (op->flags & (TREK_OP_INT_TO_FLOAT | TREK_OP_SCALAR)) && !(TREK_FLOATS >> first & 1));
    *adapt = (promote ? PROMOTE : 0u) | (abroad ? BRING_HOME : 0u);
    return TREK_OK;
}

/* Element-wise over contiguous inputs of one shape, with a result of their dtype: the shape rule only copies the
 * first input's shape. Returns true if that was done. */
static inline bool infer_alike(trek_op_call *call)
{
    trek_infer_fn infer = call->op->infer;
    if (call->n_inputs == 0)
        return false;
    trek_tensor *x = call->inputs[0];
    if ((infer != trek_infer_broadcast && infer != trek_infer_same && infer != trek_infer_same_dense) || call->outputs[0] ||
        !x->contiguous)
        return false;
    if (call->n_inputs == 2 && !(call->inputs[1]->contiguous && trek_same_sizes(x, call->inputs[1])))
        return false;
    call->n_outputs = 1;
    return call->n_inputs <= 2 && (call->outputs[0] = trek_tensor_make_like(x));
}

/* Shows a watcher what the call reads, and which results were given. */
static void show(const trek_op_call *call, const trek_rank_watch *watch)
{
    for (int k = 0; k < call->n_inputs; k++)
        if (call->inputs[k])
            watch->see(call->inputs[k], false, watch->arg);
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++)
        if (call->outputs[k])
            watch->see(call->outputs[k], true, watch->arg);
}

static inline trek_dtype key_dtype(const trek_op_call *call)
{
    return (trek_dtype)(call->op->key >= 0 ? call->inputs[call->op->key] : call->outputs[0])->dtype;
}

/* Runs shape rule and kernel. */
static inline trek_status carry_out(trek_op_call *call)
{
    const trek_op *op = call->op;
    trek_dtype dtype = key_dtype(call);
    if (!infer_alike(call)) {
        trek_status status = op->infer(call);
        if (status != TREK_OK || (op->flags & TREK_OP_VIEW))
            return status;
    }
    trek_kernel kernel = trek_backends[call->outputs[0]->device.type]->kernels[op->id][dtype];
    if (kernel)
        return kernel(call);
    return trek_op_fail(call, TREK_ERR_UNSUPPORTED, "%s on %s: there is no kernel", trek_dtype_name(dtype),
                        trek_backends[call->outputs[0]->device.type]->name);
}

TREK_SELDOM static trek_status carry_out_watched(trek_op_call *call, const trek_rank_watch *watch)
{
    if (watch->see)
        show(call, watch);
    return watch->around ? watch->around(call, carry_out, watch->arg) : carry_out(call);
}

static inline trek_status dispatch(trek_op_call *call)
{
    const trek_op *op = call->op;
    trek_dtype dtype = key_dtype(call);
    if (!(op->dtypes >> dtype & 1))
        return trek_op_fail(call, TREK_ERR_DTYPE, "dtype %s is not supported", trek_dtype_name(dtype));
    if (call->n_inputs > 0 && call->inputs[0]->device.type != TREK_CPU)
        trek_rank_here.op = op->name;
    const trek_rank_watch *watch = trek_rank_watched();
    return watch ? carry_out_watched(call, watch) : carry_out(call);
}

/* Returns where a result of inputs on several CPUs belongs: to the given output; otherwise to the calling rank, if
 * one of them is the rank's; otherwise to the first input. */
static trek_device home_of(const trek_op_call *call)
{
    if (call->outputs[0])
        return call->outputs[0]->device;
    trek_device own = trek_rank_here.device;
    for (int k = 0; k < call->n_inputs && own.type == TREK_CPU; k++)
        if (call->inputs[k] && call->inputs[k]->device.index == own.index)
            return own;
    return call->inputs[0]->device;
}

static trek_status dispatch_promoted(trek_op_call *call);

/* Runs the op as on one CPU: its inputs are replaced by views on that CPU meanwhile. */
static trek_status dispatch_home(trek_op_call *call, bool promote)
{
    trek_tensor **given = call->inputs, *few[TREK_MAX_FIXED_INPUTS] = { NULL }, **here = few;
    if (call->n_inputs > TREK_MAX_FIXED_INPUTS && !(here = trek_calloc((size_t)call->n_inputs, sizeof *here)))
        return TREK_ERR_MEMORY;
    trek_device home = home_of(call);
    trek_status status = TREK_OK;
    for (int k = 0; k < call->n_inputs && status == TREK_OK; k++)
        if (given[k] && !(here[k] = trek_tensor_to(given[k], home)))
            status = trek_error_status();
    call->inputs = here;
    if (status == TREK_OK)
        status = promote ? dispatch_promoted(call) : dispatch(call);
    call->inputs = given;
    for (int k = 0; k < call->n_inputs; k++)
        trek_tensor_release(here[k]);
    if (here != few)
        trek_free(here);
    return status;
}

/* Numbers combined with integers must be within the largest integers; an exponent must fit its base's dtype and must
 * not be negative. */
static trek_status check_scalars(const trek_op_call *call, trek_dtype common)
{
    if (!(call->op->flags & TREK_OP_SCALAR) || trek_dtype_is_float(common))
        return TREK_OK;
    bool power = call->op->id == TREK_OP_pow_scalar;
    for (int k = 0; k < scalars_of(call->op); k++)
        if (!trek_dtype_holds(power && call->attrs.f[k] > 0 ? common : TREK_I64, call->attrs.f[k]))
            return trek_op_fail(call, TREK_ERR_ARGUMENT, "scalar: %g; %s cannot hold it", call->attrs.f[k],
                                trek_dtype_name(common));
    if (power && call->attrs.f[0] < 0)
        return trek_op_fail(call, TREK_ERR_ARGUMENT,
                            "exponent: %s to the power of %g is not an integer; cast it to a floating dtype",
                            trek_dtype_name(common), call->attrs.f[0]);
    return TREK_OK;
}

/* Runs dispatch with the promoting inputs cast. */
static trek_status dispatch_promoted(trek_op_call *call)
{
    trek_dtype common = common_dtype(call);
    trek_tensor **given = call->inputs, *cast[TREK_MAX_FIXED_INPUTS] = { NULL };
    trek_status status = check_scalars(call, common);
    for (int k = 0; k < call->n_inputs && status == TREK_OK; k++) {
        if ((call->op->promote >> k & 1) && given[k])
            cast[k] = trek_tensor_cast(given[k], common);
        else
            cast[k] = trek_tensor_retain(given[k]);
        if (given[k] && !cast[k])
            status = trek_error_status();
    }
    call->inputs = cast;
    if (status == TREK_OK)
        status = dispatch(call);
    call->inputs = given;
    for (int k = 0; k < call->n_inputs; k++)
        trek_tensor_release(cast[k]);
    return status;
}

/* Releases outputs that were made and not given. */
static void drop_outputs(trek_op_call *call, trek_tensor *const *given)
{
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++) {
        if (call->outputs[k] != given[k])
            trek_tensor_release(call->outputs[k]);
        call->outputs[k] = given[k];
    }
}

/* TREK_DEBUG=1: checks that no tensor of the call was freed. */
TREK_SELDOM static trek_status check_live(const trek_op_call *call)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < call->n_inputs && status == TREK_OK; k++)
        if (call->inputs[k])
            status = trek_debug_refuse(call->inputs[k], call->op->name, "input", k);
    for (int k = 0; k < TREK_MAX_OUTPUTS && status == TREK_OK; k++)
        if (call->outputs[k])
            status = trek_debug_refuse(call->outputs[k], call->op->name, "output", k);
    return status;
}

static inline trek_status run_op(trek_op_call *call)
{
    unsigned adapt = 0;
    trek_status status = check_inputs(call, &adapt);
    if (status != TREK_OK)
        return status;
    if (!adapt && !call->outputs[0] && call->n_outputs == 0) { /* no output was given */
        status = dispatch(call);
        if (status != TREK_OK)
            drop_outputs(call, (trek_tensor *const[TREK_MAX_OUTPUTS]){ NULL });
        return status;
    }
    trek_tensor *given[TREK_MAX_OUTPUTS];
    memcpy(given, call->outputs, sizeof given);
    if (adapt & BRING_HOME)
        status = dispatch_home(call, adapt & PROMOTE);
    else
        status = adapt ? dispatch_promoted(call) : dispatch(call);
    if (status != TREK_OK)
        drop_outputs(call, given);
    return status;
}

/* Returns the device of the inputs or outputs; the CPU if there are none. */
static trek_device device_of(const trek_op_call *call)
{
    for (int k = 0; k < call->n_inputs; k++)
        if (call->inputs[k] && call->inputs[k]->device.type != TREK_CPU)
            return call->inputs[k]->device;
    return trek_cpu(0);
}

/* Runs the op with what pages have given back. */
static trek_status run_present(trek_op_call *call)
{
    if (!atomic_load_explicit(&trek_pages_kept, memory_order_relaxed))
        return run_op(call);
    trek_pages_op asked;
    trek_status status = trek_pages_begin_op(&asked, call);
    if (status == TREK_OK)
        status = run_op(call);
    trek_pages_end_op(&asked);
    return status;
}

TREK_SELDOM static trek_status run_looked_at(trek_op_call *call)
{
    if (trek_forked)
        return trek_fail_forked();
    if (trek_debug && check_live(call) != TREK_OK)
        return TREK_ERR_STATE;
    int frame = trek_trace_records() ? trek_trace_begin_op(call->op->name) : 0;
    if (frame)
        trek_trace_mark(frame, device_of(call));
    trek_status status = run_present(call);
    if (frame)
        trek_trace_end_op(frame, status == TREK_OK ? call : NULL);
    return status;
}

trek_status trek_op_run(trek_op_call *call)
{
    return !trek_is_lean() || trek_trace_records() ? run_looked_at(call) : run_op(call);
}

trek_tensor *trek_op_run_first(trek_op_call *call)
{
    if (trek_op_run(call) != TREK_OK)
        return NULL;
    for (int k = 1; k < TREK_MAX_OUTPUTS; k++)
        trek_tensor_release(call->outputs[k]);
    return call->outputs[0];
}

/* --- trek_tensor_x of some rows --------------------------------------------------------- */

void trek_attrs_reduce(trek_attrs *a, const trek_dims_list *dims, bool keepdim)
{
    trek_attrs_shape(a, dims);
    a->i[0] = dims->ndim == trek_dims_all().ndim ? 0 : dims->ndim;
    a->i[9] = keepdim;
}

void trek_attrs_shape(trek_attrs *a, const trek_shape *shape)
{
    a->i[0] = shape->ndim;
    memcpy(&a->i[1], shape->sizes, sizeof shape->sizes);
}

/* Rows that fill have their output as the first parameter. */
static trek_tensor *run_row(trek_op_call *call, int id, trek_tensor **in, int n)
{
    call->op = &trek_ops[id];
    call->inputs = in;
    if (call->op->flags & TREK_OP_FILL) {
        call->outputs[0] = trek_tensor_retain(in[0]);
        call->n_outputs = 1;
        trek_tensor *filled = trek_op_run_first(call);
        if (!filled)
            trek_tensor_release(in[0]);
        return filled;
    }
    call->n_inputs = n;
    return trek_op_run_first(call);
}

#define TREK_DEFINE_CALL(name, signature)                                                                                        \
    trek_tensor *trek_tensor_##name(TREK_PARAMS_##signature(trek_tensor))                                                        \
    {                                                                                                                            \
        trek_op_call call = { 0 };                                                                                               \
        trek_attrs *a = &call.attrs;                                                                                             \
        TREK_INPUTS_##signature(trek_tensor);                                                                                    \
        TREK_ATTRS_##signature;                                                                                                  \
        (void)a;                                                                                                                 \
        return run_row(&call, TREK_OP_##name, in, n_in);                                                                         \
    }
TREK_TENSOR_CALLS(TREK_DEFINE_CALL)
#undef TREK_DEFINE_CALL
