/* SPDX-License-Identifier: Apache-2.0 */
/* Copying values between modules of the same structure: target networks, and slowly updated averages. */
#include <math.h>
#include <string.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "nn/batch_norm_internal.h"
#include "nn/module.h"
#include "nn/module_internal.h"
#include "nn/module_values.h"
#include "tensor/copies.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tensor/memory_internal.h"
#include "tensor/scope.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

typedef struct blend {
    trek_module *from;
    double weight;
    const char *function;
    bool check, exact;
} blend;

static trek_status check_one(const char *name, trek_var *to, const blend *b)
{
    trek_var *from = trek_module_find(b->from, name);
    if (!from)
        return trek_fail(TREK_ERR_ARGUMENT, "%s: from: it has no \"%s\"", b->function, name);
    if (trek_shape_equal(trek_var_shape(from), trek_var_shape(to)))
        return TREK_OK;
    char a[TREK_SHAPE_TEXT], c[TREK_SHAPE_TEXT];
    return trek_fail(TREK_ERR_SHAPE, "%s: \"%s\" has shape %s, but %s in the module that values come from", b->function, name,
                     trek_shape_format(trek_var_shape(to), a, sizeof a), trek_shape_format(trek_var_shape(from), c, sizeof c));
}

/* Counters are copied unchanged. */
static trek_status move_one(const char *name, trek_var *to, void *arg)
{
    const blend *b = arg;
    if (b->check)
        return check_one(name, to, b);
    trek_var *from = trek_module_find(b->from, name);
    if (b->exact || !trek_dtype_is_float(trek_var_dtype(to)))
        return trek_tensor_copy_from(trek_var_data(to), trek_var_data(from));
    trek_scope scope = trek_scope_begin();
    trek_tensor *here = trek_tensor_to(trek_var_data(from), trek_var_device(to));
    trek_var *own = trek_var_detach(to), *other = here ? trek_var_from(here) : NULL;
    trek_var *sum = own && other ? trek_add(own, trek_mul_scalar(trek_sub(other, own), b->weight)) : NULL;
    trek_status status = sum ? trek_tensor_copy_from(trek_var_data(to), trek_var_data(sum)) : trek_error_status();
    trek_scope_end(scope);
    return status;
}

static trek_status count_one(const char *name, trek_var *var, void *arg)
{
    (void)name, (void)var;
    ++*(int *)arg;
    return TREK_OK;
}

static int count_of(trek_module *module)
{
    int n = 0;
    trek_module_each_param(module, count_one, &n);
    trek_module_each_buffer(module, count_one, &n);
    return n;
}

/* Everything is checked before anything is written. */
static trek_status run(const char *function, trek_module *to, trek_module *from, double weight, bool exact)
{
    if (!to || !from)
        return trek_fail_missing(function, to ? "from" : "to");
    blend b = { from, weight, function, .check = true, .exact = exact };
    if (count_of(to) != count_of(from))
        return trek_fail(TREK_ERR_ARGUMENT, "%s: the modules have %d and %d parameters and buffers; must have the same", function,
                         count_of(to), count_of(from));
    trek_no_grad_begin();
    trek_status status = trek_error_status();
    for (int pass = 0; pass < 2 && status == TREK_OK; pass++, b.check = false) {
        status = trek_module_each_param(to, move_one, &b);
        if (status == TREK_OK)
            status = trek_module_each_buffer(to, move_one, &b);
    }
    trek_no_grad_end();
    return status;
}

trek_status trek_module_copy(trek_module *to, trek_module *from) { return run("module_copy", to, from, 1, true); }

trek_status trek_module_lerp(trek_module *to, trek_module *from, double weight)
{
    if (!isfinite(weight))
        return trek_fail(TREK_ERR_ARGUMENT, "module_lerp: weight: %g; must be finite", weight);
    return run("module_lerp", to, from, weight, weight == 1);
}

/* --- batch norm's statistics ------------------------------------------------------- */

static trek_status recount(const char *name, trek_module *module, void *arg)
{
    (void)name;
    if (module->own->klass->reset != trek_batch_norm_layer_reset)
        return TREK_OK;
    trek_batch_norm_layer *m = (trek_batch_norm_layer *)module;
    m->recounts = *(bool *)arg;
    if (!m->recounts || !m->num_batches_tracked)
        return TREK_OK;
    trek_tensor *mean = trek_var_data(m->running_mean), *var = trek_var_data(m->running_var);
    trek_tensor *count = trek_var_data(m->num_batches_tracked);
    trek_tensor *zero = trek_tensor_zeros(trek_tensor_shape(mean), trek_tensor_dtype(mean), trek_tensor_device(mean));
    trek_tensor *one = trek_tensor_ones(trek_tensor_shape(var), trek_tensor_dtype(var), trek_tensor_device(var));
    trek_tensor *none = trek_tensor_zeros(trek_dims_none(), TREK_I64, trek_tensor_device(count));
    trek_status status = zero && one && none ? trek_tensor_copy_from(mean, zero) : trek_error_status();
    if (status == TREK_OK)
        status = trek_tensor_copy_from(var, one);
    if (status == TREK_OK)
        status = trek_tensor_copy_from(count, none);
    trek_tensor_release(zero);
    trek_tensor_release(one);
    trek_tensor_release(none);
    return status;
}

trek_status trek_module_recount_statistics(trek_module *module, bool on)
{
    if (!module)
        return trek_fail_missing("module_recount_statistics", "module");
    return trek_module_each(module, recount, &on);
}
