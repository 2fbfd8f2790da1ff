/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/optim/vars.h"

#include "autograd/leaf.h"
#include "nn/state_tensors.h"
#include "tensor/copies.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static trek_var *leaf(uint32_t stream, trek_shape shape, double scale, trek_dtype dtype, bool requires_grad)
{
    trek_tensor *values = test_tensor(stream, shape, scale), *own = trek_tensor_cast(values, dtype);
    trek_var *var = trek_var_new(own, requires_grad);
    assert_non_null(var);
    trek_tensor_release(own);
    trek_tensor_release(values);
    return var;
}

trek_var *numbered_var(uint32_t stream, trek_shape shape, trek_dtype dtype) { return leaf(stream, shape, 1, dtype, true); }

void set_numbered_grad(trek_var *var, uint32_t stream, double scale)
{
    trek_var *grad = leaf(stream, trek_var_shape(var), scale, trek_var_dtype(var), false);
    assert_int_equal(trek_var_set_grad(var, grad), TREK_OK);
    trek_var_release(grad);
}

void copy_vars(trek_var *const *to, trek_var *const *from, int n)
{
    for (int p = 0; p < n; p++)
        assert_int_equal(trek_tensor_copy_from(trek_var_data(to[p]), trek_var_data(from[p])), TREK_OK);
}

void assert_same_vars(trek_var *const *a, trek_var *const *b, const char *const *names, int n, const char *what)
{
    for (int p = 0; p < n; p++)
        if (!test_same_bits(trek_var_data(a[p]), trek_var_data(b[p])))
            fail_msg("%s: %s", what, names[p]);
}

trek_state *state_with(const trek_state *from, const char *leave, const char *add, trek_tensor *tensor, const char *key)
{
    trek_state *to = trek_state_new();
    for (int k = 0; k < trek_state_count(from); k++)
        if (!leave || strcmp(trek_state_name(from, k), leave) != 0)
            assert_int_equal(trek_state_add(to, trek_state_name(from, k), trek_state_tensor(from, k)), TREK_OK);
    if (add)
        assert_int_equal(trek_state_add(to, add, tensor), TREK_OK);
    if (key && trek_state_metadata(from, key))
        trek_state_set_metadata(to, key, trek_state_metadata(from, key));
    trek_tensor_release(tensor);
    return to;
}
