/* SPDX-License-Identifier: Apache-2.0 */
/* What is not a number: in the samples of a grain, or in the result of an operator, of which the trace sink hears when it has
 * ended. The innermost operator ends first. Gradients of weights that grains compute later are computed at once. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "data/dataset_class.h"
#include "data/loader_internal.h"
#include "distributed/replay/replay_internal.h"
#include "tensor/intern.h"
#include "tensor/op.h"
#include "tensor/tensor_internal.h"
#include "tensor/trace.h"

static float wide(uint16_t half, trek_dtype dtype)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    if (dtype == TREK_F16) /* only whether it is a number */
        return (half & 0x7c00) == 0x7c00 && (half & 0x3ff) ? NAN : 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool is_nan(const trek_tensor *x, const char *at)
{
    double f64;
    float f32;
    uint16_t half;
    switch ((trek_dtype)x->dtype) {
    case TREK_F64:
        return memcpy(&f64, at, sizeof f64), isnan(f64);
    case TREK_F32:
        return memcpy(&f32, at, sizeof f32), isnan(f32);
    case TREK_BF16:
    case TREK_F16:
        return memcpy(&half, at, sizeof half), isnan(wide(half, (trek_dtype)x->dtype));
    default:
        return false;
    }
}

/* Returns the position in the first dimension of the first element that is not a number, or -1. */
static int64_t find_nan(const trek_tensor *x, int d, const char *data)
{
    if (d == x->ndim)
        return is_nan(x, data) ? 0 : -1;
    size_t size = trek_dtype_size((trek_dtype)x->dtype);
    for (int64_t k = 0; k < x->sizes[d]; k++)
        if (find_nan(x, d + 1, data + (ptrdiff_t)(k * x->strides[d]) * (ptrdiff_t)size) >= 0)
            return k;
    return -1;
}

static bool is_float(const trek_tensor *x)
{
    trek_dtype dtype = (trek_dtype)x->dtype;
    return x->device.type == TREK_CPU && (dtype == TREK_F64 || dtype == TREK_F32 || trek_dtype_is_16bit(dtype));
}

static void note(trek_replay *r, int64_t row, const char *what)
{
    replay_grain *grain = &r->grains[r->n_grains - 1];
    r->found.found = true;
    r->found.pass = grain->pass;
    r->found.grain = grain->number;
    r->found.row = row;
    snprintf(r->found.what, sizeof r->found.what, "%s", what);
}

/* Notes a result of an operator that is not a number. Returns whether it is none. */
static bool look(trek_replay *r, const trek_tensor *x, const char *name, uint32_t module, bool backward, bool by_rows)
{
    char what[160];
    int64_t row = x && is_float(x) ? find_nan(x, 0, x->data) : -1;
    const char *path = row >= 0 ? trek_interned(module) : NULL;
    if (row < 0)
        return false;
    snprintf(what, sizeof what, "%s%s%s (%s) gives a NaN", name, path && *path ? " in module " : "", path ? path : "",
             backward ? "backward" : "forward");
    note(r, by_rows && x->ndim > 0 && x->sizes[0] == r->grains[r->n_grains - 1].n ? row : -1, what);
    return true;
}

static void hear(trek_trace_record *record, void *arg)
{
    trek_replay *r = arg;
    if (r->found.found || record->kind != TREK_TRACE_OP || !record->call || r->n_grains == 0)
        return;
    const trek_op_call *call = record->call;
    if (call->op->flags & TREK_OP_VIEW) /* of something else, into which nobody may have written yet */
        return;
    for (int k = 0; k < call->n_outputs; k++)
        if (look(r, call->outputs[k], record->name, record->path, record->backward, true))
            return;
}

bool trek_replay_watches(const trek_replay *r) { return r->watching && !r->found.found; }

void trek_replay_see(trek_replay *r, const trek_tensor *x, const char *name)
{
    look(r, x, name, trek_trace_path_here(), true, false);
}

void trek_replay_watch(trek_replay *r, const trek_batch *grain)
{
    for (int k = 0; k < grain->dataset->n_fields && !r->found.found; k++) {
        const trek_tensor *x = grain->vars[k]->data;
        int64_t row = is_float(x) ? find_nan(x, 0, x->data) : -1;
        char what[160];
        snprintf(what, sizeof what, "the field \"%s\" of the dataset has a NaN", trek_dataset_field_name(grain->dataset, k));
        if (row >= 0)
            note(r, row, what);
    }
    if (r->watching)
        return;
    r->sink = (trek_trace_sink){ .frame = hear, .arg = r };
    r->before = atomic_load(&trek_trace_now);
    atomic_store(&trek_trace_now, &r->sink);
    trek_trace_start_recording(true);
    r->watching = true;
}

void trek_replay_watch_end(trek_replay *r)
{
    if (!r->watching)
        return;
    trek_trace_start_recording(r->before && r->before->frame);
    atomic_store(&trek_trace_now, r->before);
    r->watching = false;
}
