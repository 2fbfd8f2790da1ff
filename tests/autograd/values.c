/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/autograd/values.h"

#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "tensor/copies.h"
#include "tensor/shapes.h"
#include "tests/support/support.h"

trek_var *numbers(uint32_t stream, trek_shape shape, bool requires_grad)
{
    trek_tensor *f32 = test_tensor(stream, shape, 1);
    trek_var *v = trek_var_from(trek_tensor_cast(f32, TREK_F64));
    trek_tensor_release(f32);
    if (requires_grad)
        assert_int_equal(trek_var_set_requires_grad(v, true), TREK_OK);
    return v;
}

double at(const trek_var *v, int64_t k)
{
    static double values[4096];
    assert_non_null(v);
    assert_true(trek_var_numel(v) <= 4096);
    assert_int_equal(trek_tensor_to_host(trek_var_data(v), TREK_F64, values, sizeof(double) * (size_t)trek_var_numel(v)),
                     TREK_OK);
    return values[k];
}

void same(const trek_var *a, const trek_var *b)
{
    assert_non_null(a);
    assert_non_null(b);
    assert_true(trek_shape_equal(trek_var_shape(a), trek_var_shape(b)));
    for (int64_t k = 0; k < trek_var_numel(a); k++) {
        double x = at(a, k), y = at(b, k);
        if (!(fabs(x - y) <= 1e-12 * (1 + fabs(x))))
            fail_msg("element %d: %.17g and %.17g", (int)k, x, y);
    }
}

