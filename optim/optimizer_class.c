/* SPDX-License-Identifier: Apache-2.0 */
/* What a class of optimizers declares: whether it obeys the rules, its options with defaults and ranges, which states
 * they need, and which kernel a device has for it. */
#include "optim/optimizer_class.h"

#include <math.h>
#include <string.h>

#include "optim/optimizer_internal.h"
#include "tensor/option_internal.h"

/* --- the class ------------------------------------------------------------------ */

static bool is_option(const trek_optimizer_class *klass, int k)
{
    return k >= 0 && k < TREK_UPDATE_OPTIONS && klass->options[k].name;
}

static trek_status check_states(const trek_optimizer_class *klass)
{
    for (int s = 0; s < TREK_UPDATE_STATES; s++) {
        const trek_optimizer_state *state = &klass->states[s];
        if (!state->name)
            continue;
        if (strchr(state->name, '.') || strcmp(state->name, "step") == 0 || strcmp(state->name, "master") == 0 ||
            strcmp(state->name, "scale") == 0)
            return trek_fail(TREK_ERR_ARGUMENT, "%s: state \"%s\": this name is reserved, or contains a dot; choose another",
                             klass->name, state->name);
        for (int other = 0; other < s; other++)
            if (klass->states[other].name && strcmp(klass->states[other].name, state->name) == 0)
                return trek_fail(TREK_ERR_ARGUMENT, "%s: state \"%s\": it occurs twice; names must differ", klass->name,
                                 state->name);
        if (state->extent != TREK_STATE_EXTENT_ELEMENTS && !klass->whole)
            return trek_fail(TREK_ERR_ARGUMENT,
                             "%s: state \"%s\": it does not have one number for each element, which needs a class with `whole`",
                             klass->name, state->name);
        if (!is_option(klass, state->kept_with))
            return trek_fail(TREK_ERR_ARGUMENT, "%s: state \"%s\": kept_with: option %d does not exist", klass->name, state->name,
                             state->kept_with);
    }
    return TREK_OK;
}

static trek_status check_class(const trek_optimizer_class *klass)
{
    if (!klass)
        return trek_fail(
            TREK_ERR_ARGUMENT,
            "optimizer: spec: without a class; make it with trek_sgd, trek_adam or another function of optim/optimizer.h");
    if (!klass->name || !(klass->update || klass->whole))
        return trek_fail(TREK_ERR_ARGUMENT, "optimizer: class: it has no %s, which it needs", klass->name ? "update" : "name");
    if (klass->update && klass->whole)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: class: update and whole are both set; must be one of them", klass->name);
    if (!is_option(klass, 0) || strcmp(klass->options[0].name, "lr") != 0)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: class: the first option must be lr", klass->name);
    if (!is_option(klass, klass->maximize))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: class: maximize: option %d does not exist", klass->name, klass->maximize);
    int corrected = 0;
    for (int k = 0; k < TREK_UPDATE_OPTIONS; k++)
        corrected += klass->options[k].corrected;
    if (corrected > TREK_UPDATE_CORRECTIONS || klass->options[0].corrected || (corrected && !klass->by_step))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "%s: class: %d options are corrected; at most %d can be, not lr, and only with by_step", klass->name,
                         corrected, TREK_UPDATE_CORRECTIONS);
    return check_states(klass);
}

uint32_t trek_optimizer_positive(const trek_optimizer_class *klass)
{
    uint32_t positive = 0;
    for (int s = 0; s < TREK_UPDATE_STATES; s++)
        positive |= klass->states[s].positive ? 1u << s : 0;
    return positive;
}

void trek_optimizer_corrected(const trek_optimizer_class *klass, int32_t *corrected)
{
    int n = 0;
    memset(corrected, 0, TREK_UPDATE_CORRECTIONS * sizeof *corrected);
    for (int k = 0; k < TREK_UPDATE_OPTIONS; k++)
        if (klass->options[k].corrected)
            corrected[n++] = k;
}

trek_status trek_optimizer_find_kernel(const trek_optimizer_class *klass, const trek_arena *arena, trek_update_kernel *kernel)
{
    const trek_backend *backend = arena->backend;
    *kernel =
        (trek_update_kernel){ klass->update, backend->update_kernel && klass->gpu ? backend->update_kernel(klass->gpu) : -1 };
    if (!backend->update_kernel || kernel->device >= 0)
        return TREK_OK;
    char text[16];
    return trek_fail(TREK_ERR_UNSUPPORTED, "%s: it has no kernel for %s; the parameters must be on CPUs", klass->name,
                     trek_device_name(arena->device, text, sizeof text));
}

/* --- options -------------------------------------------------------------------- */

trek_status trek_optimizer_check_option(const trek_optimizer_class *klass, int k, double value)
{
    const trek_optimizer_option *option = &klass->options[k];
    switch (option->range) {
    case TREK_OPTION_RANGE_FROM_ZERO:
        if (isfinite(value) && value >= 0.0)
            return TREK_OK;
        return trek_fail(TREK_ERR_ARGUMENT, "%s: %s: %g; must be finite and at least 0", klass->name, option->name, value);
    case TREK_OPTION_RANGE_FRACTION:
        if (value >= 0.0 && value < 1.0)
            return TREK_OK;
        return trek_fail(TREK_ERR_ARGUMENT, "%s: %s: %g; must be inside [0, 1)", klass->name, option->name, value);
    case TREK_OPTION_RANGE_FINITE:
        break;
    }
    return isfinite(value) ? TREK_OK
                           : trek_fail(TREK_ERR_ARGUMENT, "%s: %s: %g; must be finite", klass->name, option->name, value);
}

trek_optimizer_spec trek_with_state(trek_optimizer_spec spec, trek_dtype dtype)
{
    spec.state_dtype = dtype;
    return spec;
}

static trek_status check_state_dtype(const trek_optimizer_spec *spec)
{
    if (spec->state_dtype == TREK_F32)
        return TREK_OK;
    if (spec->state_dtype != TREK_BF16 && spec->state_dtype != TREK_U8)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: state dtype: %s; must be f32, bf16 or u8", spec->klass->name,
                         trek_dtype_name(spec->state_dtype));
    if (spec->klass->whole)
        return trek_fail(TREK_ERR_UNSUPPORTED, "%s: state dtype: it updates whole parameters, and keeps its state in f32 only",
                         spec->klass->name);
    return TREK_OK;
}

trek_status trek_optimizer_resolve(trek_optimizer_spec *spec)
{
    const trek_optimizer_class *klass = spec->klass;
    trek_status status = check_class(klass);
    if (status == TREK_OK)
        status = check_state_dtype(spec);
    for (int k = 0; k < TREK_UPDATE_OPTIONS && status == TREK_OK; k++) {
        if (is_option(klass, k)) {
            spec->options[k] = trek_option(spec->options[k], klass->options[k].otherwise);
            status = trek_optimizer_check_option(klass, k, spec->options[k]);
        } else if (spec->options[k] != 0) {
            status = trek_fail(TREK_ERR_ARGUMENT, "%s: option %d does not exist", klass->name, k);
        }
    }
    return status == TREK_OK && klass->check ? klass->check(spec->options) : status;
}

trek_status trek_optimizer_spec_check(const trek_optimizer_spec *spec)
{
    if (!spec)
        return trek_fail_missing("optimizer_spec_check", "spec");
    trek_optimizer_spec copy = *spec;
    return trek_optimizer_resolve(&copy);
}

trek_optimizer_spec trek_optimizer_spec_again(const trek_optimizer_spec *resolved)
{
    trek_optimizer_spec spec = *resolved;
    for (int k = 0; k < TREK_UPDATE_OPTIONS; k++)
        if (is_option(spec.klass, k) && spec.options[k] == 0)
            spec.options[k] = TREK_ZERO;
    return spec;
}

uint32_t trek_optimizer_kept(const trek_optimizer_spec *spec)
{
    uint32_t kept = 0;
    for (int s = 0; s < TREK_UPDATE_STATES; s++) {
        const trek_optimizer_state *state = &spec->klass->states[s];
        if (state->name && (state->kept_with == 0 || spec->options[state->kept_with] > 0))
            kept |= 1u << s;
    }
    return kept;
}
