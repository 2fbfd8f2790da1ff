/* SPDX-License-Identifier: Apache-2.0 */
/* The last pass of classes that update whole parameters. */
#include "optim/class_internal.h"

TREK_UPDATE_NUMBERS(whole_step)
{
    n[0] = s->options[0];
    return 0;
}

TREK_UPDATE_ELEMENT(whole_step, 0, 0, 1, { *x = *x * n[0] + d; })

#ifdef TREK_OPTIMIZER_HOME
#include "optim/whole.h"

void trek_whole_step(trek_dtype dtype, void *x, const void *direction, int64_t count, double keep, double factor)
{
    trek_update_slice s = { .param = x, .grad = (void *)(uintptr_t)direction, .count = count, .grad_scale = factor,
                            .options = { keep } };
    trek_whole_elements(whole_step_update, dtype, &s);
}
#endif
