/* SPDX-License-Identifier: Apache-2.0 */
/* Dynamic loss scaling: the scale is a number in the device's memory, which the device's own kernels read and change. */
#include "optim/scaler_internal.h"

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"

static atomic_uint_fast64_t serials;

static trek_status check(const trek_update_scaler *s)
{
    if (!(s->scale > 0) || !isfinite(s->scale))
        return trek_fail(TREK_ERR_ARGUMENT, "grad_scaler: scale: %g; must be finite and above 0", (double)s->scale);
    if (!(s->growth_factor > 1) || !isfinite(s->growth_factor))
        return trek_fail(TREK_ERR_ARGUMENT, "grad_scaler: growth_factor: %g; must be finite and above 1", s->growth_factor);
    if (!(s->backoff_factor > 0 && s->backoff_factor < 1))
        return trek_fail(TREK_ERR_ARGUMENT, "grad_scaler: backoff_factor: %g; must be inside (0, 1)", s->backoff_factor);
    if (s->growth_interval < 1 || s->growth_tracker < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "grad_scaler: growth_interval: %lld, growth_tracker: %lld; must be at least 1 and 0",
                         (long long)s->growth_interval, (long long)s->growth_tracker);
    return TREK_OK;
}

trek_grad_scaler *trek_grad_scaler_new(const trek_grad_scaler_opts *opts)
{
    trek_grad_scaler_opts o = opts ? *opts : (trek_grad_scaler_opts){ .no_scaling = false };
    trek_update_scaler values = { .scale = (float)(o.init_scale != 0 ? o.init_scale : 65536),
                                  .growth_factor = o.growth_factor != 0 ? o.growth_factor : 2,
                                  .backoff_factor = o.backoff_factor != 0 ? o.backoff_factor : 0.5,
                                  .growth_interval = o.growth_interval != 0 ? o.growth_interval : 2000 };
    if (check(&values) != TREK_OK)
        return NULL;
    trek_grad_scaler *scaler = trek_calloc(1, sizeof *scaler);
    if (!scaler)
        return NULL;
    scaler->no_scaling = o.no_scaling;
    scaler->serial = atomic_fetch_add(&serials, 1) + 1;
    scaler->values = values;
    return scaler;
}

void trek_grad_scaler_free(trek_grad_scaler **address)
{
    if (!address || !*address)
        return;
    trek_grad_scaler *scaler = *address;
    *address = NULL;
    trek_tensor_release(scaler->scale);
    trek_tensor_release(scaler->record);
    trek_free(scaler);
}

/* --- the record -------------------------------------------------------------- */

trek_status trek_scaler_write(trek_grad_scaler *scaler)
{
    const trek_tensor *record = scaler->record;
    return trek_backends[record->device.type]->copy_bytes(record->data, record->device, &scaler->values, trek_cpu(0),
                                                          sizeof scaler->values, NULL);
}

trek_status trek_scaler_read(trek_grad_scaler *scaler)
{
    const trek_tensor *record = scaler->record;
    if (!record)
        return TREK_OK;
    return trek_backends[record->device.type]->copy_bytes(&scaler->values, trek_cpu(0), record->data, record->device,
                                                          sizeof scaler->values, NULL);
}

static trek_status make_record(trek_grad_scaler *scaler, trek_device device)
{
    int64_t bytes = sizeof scaler->values;
    scaler->record = trek_tensor_zeros(trek_shape_make(&bytes, 1), TREK_U8, device);
    if (scaler->record)
        scaler->scale = trek_tensor_make_part(scaler->record, offsetof(trek_update_scaler, scale), trek_dims_none(), TREK_F32);
    if (scaler->scale && trek_scaler_write(scaler) == TREK_OK)
        return TREK_OK;
    trek_tensor_release(scaler->scale);
    trek_tensor_release(scaler->record);
    scaler->scale = scaler->record = NULL;
    return trek_error_status();
}

trek_update_scaler *trek_scaler_record(trek_grad_scaler *scaler, trek_device device)
{
    if (!scaler->record && make_record(scaler, device) != TREK_OK)
        return NULL;
    char a[16], b[16];
    if (scaler->record->device.type == device.type && (device.type == TREK_CPU || device.index == scaler->record->device.index))
        return (trek_update_scaler *)(void *)scaler->record->data;
    trek_fail(TREK_ERR_DEVICE, "grad_scaler: it was used on %s before, and now on %s; must be one device",
              trek_device_name(scaler->record->device, a, sizeof a),
              trek_device_name(device, b, sizeof b));
    return NULL;
}

/* --- losses --------------------------------------------------------------------- */

/* Returns a copy of the current scale, f32, in the current scope. A tape must not save a value that changes. */
static trek_var *present_scale(trek_grad_scaler *scaler, const trek_var *loss)
{
    if (!trek_scaler_record(scaler, loss->data->device))
        return NULL;
    trek_tensor *copy = trek_tensor_clone(scaler->scale);
    if (copy && copy->device.type == TREK_CPU)
        copy->device = copy->storage->device = loss->data->device; /* one memory, with several CPU devices */
    return copy ? trek_var_from(copy) : NULL;
}

trek_var *trek_scaler_seed(trek_grad_scaler *scaler, const trek_var *loss)
{
    trek_var *scale = present_scale(scaler, loss);
    return scale && loss->data->ndim > 0 ? trek_reshape(scale, trek_tensor_shape(loss->data)) : scale;
}

trek_var *trek_grad_scaler_scale(trek_grad_scaler *scaler, trek_var *loss)
{
    if (!scaler || !loss)
        return trek_fail_missing("grad_scaler_scale", scaler ? "loss" : "scaler"), NULL;
    if (scaler->no_scaling)
        return loss;
    trek_var *scale = present_scale(scaler, loss);
    return scale ? trek_mul(loss, scale) : NULL;
}

trek_status trek_grad_scaler_update(trek_grad_scaler *scaler)
{
    if (!scaler)
        return trek_fail_missing("grad_scaler_update", "scaler");
    trek_status status = trek_error_status();
    if (status != TREK_OK || scaler->no_scaling)
        return status;
    if (!scaler->record) {
        trek_update_scaler_adapt(&scaler->values);
        return TREK_OK;
    }
    trek_tensor_bump(scaler->scale);
    const trek_tensor *record = scaler->record;
    return trek_backends[record->device.type]->update_scaler(record->device, (trek_update_scaler *)(void *)record->data);
}

/* --- looking at it, keeping it ---------------------------------------------------------- */

double trek_grad_scaler_value(trek_grad_scaler *scaler)
{
    trek_grad_scaler_state state;
    if (scaler && scaler->no_scaling)
        return 1;
    return trek_grad_scaler_save(scaler, &state) == TREK_OK ? state.scale : (double)NAN;
}

trek_status trek_grad_scaler_save(trek_grad_scaler *scaler, trek_grad_scaler_state *state)
{
    if (!scaler || !state)
        return trek_fail_missing("grad_scaler_save", scaler ? "state" : "scaler");
    trek_status status = trek_scaler_read(scaler);
    if (status != TREK_OK)
        return status;
    const trek_update_scaler *v = &scaler->values;
    *state = (trek_grad_scaler_state){ .scale = v->scale, .growth_factor = v->growth_factor, .backoff_factor = v->backoff_factor,
                                       .growth_interval = v->growth_interval, .growth_tracker = v->growth_tracker };
    return TREK_OK;
}

trek_status trek_grad_scaler_load(trek_grad_scaler *scaler, const trek_grad_scaler_state *state)
{
    if (!scaler || !state)
        return trek_fail_missing("grad_scaler_load", scaler ? "state" : "scaler");
    trek_update_scaler values = { .scale = (float)state->scale, .growth_factor = state->growth_factor,
                                  .backoff_factor = state->backoff_factor, .growth_interval = state->growth_interval,
                                  .growth_tracker = state->growth_tracker };
    trek_status status = check(&values);
    if (status != TREK_OK)
        return status;
    scaler->values = values;
    scaler->serial = atomic_fetch_add(&serials, 1) + 1;
    return scaler->record ? trek_scaler_write(scaler) : TREK_OK;
}

trek_status trek_scaler_follow(trek_grad_scaler *copy, trek_grad_scaler *original)
{
    if (copy->follows == original->serial)
        return TREK_OK;
    trek_grad_scaler_state state;
    trek_status status = trek_grad_scaler_save(original, &state);
    if (status == TREK_OK)
        status = trek_grad_scaler_load(copy, &state);
    if (status == TREK_OK)
        copy->follows = original->serial;
    return status;
}
