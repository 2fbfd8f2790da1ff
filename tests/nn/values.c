/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/nn/values.h"

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "nn/module_tree.h"
#include "tensor/memory.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

/* --- an allocator that can be told to fail --------------------------------------------------------------- */

long fail_in = -1, in_use;

void *test_allocate(size_t bytes, size_t alignment, void *arg)
{
    if (fail_in == 0)
        return NULL;
    if (fail_in > 0)
        fail_in--;
    void *memory = NULL;
    if (posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes ? bytes : 1))
        return NULL;
    in_use++;
    return memory;
}

void test_release(void *memory, size_t bytes, void *arg)
{
    in_use--;
    free(memory);
}

/* --- helpers --------------------------------------------------------------------------------------------- */

void fine(trek_status status)
{
    SUCCEEDS(status);
}

void refuse(trek_status status, trek_status wanted, const char *part)
{
    assert_int_equal(status, wanted);
    expect_error(wanted, part);
}

double *read_of(const trek_var *var)
{
    if (!var)
        fail_msg("%s", trek_error());
    double *values = test_read(trek_var_data(var));
    assert_non_null(values);
    return values;
}

trek_var *numbers(const double *values, trek_shape shape)
{
    return trek_var_from(test_values(values, shape, TREK_F32));
}

double at(const trek_var *var, int64_t k)
{
    assert_non_null(var);
    int64_t count = trek_var_numel(var);
    assert_in_range(k, 0, count - 1);
    double *values = malloc((size_t)count * sizeof *values);
    assert_int_equal(trek_tensor_to_host(trek_var_data(var), TREK_F64, values, (size_t)count * sizeof *values), TREK_OK);
    double value = values[k];
    free(values);
    return value;
}

void expect_near(double value, double wanted, double tolerance)
{
    if (!(fabs(value - wanted) <= tolerance))
        fail_msg("%.9g is not %.9g +- %g", value, wanted, tolerance);
}

void fill(trek_module *module, const char *name, const double *values)
{
    trek_var *var = trek_module_find(module, name);
    assert_non_null(var);
    trek_tensor *tensor = trek_tensor_from_data(values, trek_var_shape(var), TREK_F64, test_device());
    assert_int_equal(trek_tensor_copy_from(trek_var_data(var), tensor), TREK_OK);
    trek_tensor_release(tensor);
}

int teardown(void **state)
{
    fail_in = -1;
    trek_error_clear();
    return trek_tape_size() == 0 ? 0 : -1;
}

/* --- a module of our own --------------------------------------------------------------------------------- */

int freed;

void block_free(trek_module *self)
{
    freed++;
}

const trek_module_class bare_class = { .name = "bare", .size = sizeof(trek_module), .free = block_free };

trek_status join_name(const char *name, trek_var *var, void *arg)
{
    assert_non_null(var);
    strcat(strcat(arg, name), " ");
    return TREK_OK;
}
