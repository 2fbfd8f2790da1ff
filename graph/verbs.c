/* SPDX-License-Identifier: Apache-2.0 */
/* What loops, gates, switches and maps have in common. */
#include "graph/verbs.h"

#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

int64_t trek_verb_rows(const char *name, trek_var *x)
{
    if (trek_var_ndim(x) > 0)
        return trek_var_size(x, 0);
    trek_fail(TREK_ERR_SHAPE, "%s: input: it is a scalar; must have rows", name);
    return -1;
}

trek_status trek_verb_numbers(const char *what, trek_var *z, int64_t rows, double *numbers)
{
    char text[TREK_SHAPE_TEXT];
    if (!z)
        return trek_error_status();
    int ndim = trek_var_ndim(z);
    if (ndim < 1 || ndim > 2 || trek_var_size(z, 0) != rows || (ndim == 2 && trek_var_size(z, 1) != 1))
        return trek_fail(TREK_ERR_SHAPE, "%s: result of shape %s; must be one number for each row, [%lld] or [%lld, 1]", what,
                         trek_shape_format(trek_var_shape(z), text, sizeof text), (long long)rows, (long long)rows);
    return trek_tensor_to_host(trek_var_data(z), TREK_F64, numbers, (size_t)rows * sizeof *numbers);
}

trek_var *trek_verb_index(const int64_t *index, int64_t n, trek_device device)
{
    trek_tensor *tensor = trek_tensor_from_data(index, trek_dims(n), TREK_I64, device);
    return tensor ? trek_var_from(tensor) : NULL;
}

trek_module *trek_verb_taker(trek_module *module)
{
    while (module->own->klass->hands_inputs_on && module->own->n_children > 0)
        module = module->own->children[0].module;
    return module;
}

trek_var *trek_verb_by_rows(trek_var *of_rows, trek_var *x)
{
    trek_shape shape = trek_var_shape(x);
    for (int d = 1; d < shape.ndim; d++)
        shape.sizes[d] = 1;
    return of_rows ? trek_reshape(of_rows, shape) : NULL;
}

trek_status trek_detach_slot(trek_var **slot)
{
    if (!*slot || (trek_var_is_leaf(*slot) && !trek_var_requires_grad(*slot)))
        return TREK_OK;
    trek_scope scope = trek_scope_begin();
    if (scope.depth == 0)
        return trek_error_status();
    trek_var *detached = trek_var_detach(*slot);
    if (detached) {
        trek_var_retain(detached);
        trek_var_release(*slot);
        *slot = detached;
    }
    trek_scope_end(scope);
    return detached ? TREK_OK : trek_error_status();
}

static trek_status refuse(const char *path, trek_module *module, void *arg)
{
    if (!module->own->klass->meets_ranks)
        return TREK_OK;
    return trek_fail(TREK_ERR_UNSUPPORTED,
                     "%s: \"%s\" (%s) waits for the other ranks, which may run this part a different number of times; such a "
                     "module cannot be in it",
                     (const char *)arg, path, module->own->klass->name);
}

trek_status trek_verb_refuse_meeting(const char *name, trek_module *part)
{
    return part ? trek_module_each(part, refuse, (void *)(uintptr_t)name) : TREK_OK;
}

trek_var *trek_verb_run(trek_module *part, trek_var *const *inputs, int n)
{
    return n == 1 ? trek_forward(part, inputs[0]) : trek_forward_many(part, inputs, n);
}
