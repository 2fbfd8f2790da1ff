/* SPDX-License-Identifier: Apache-2.0 */
/* The elements of a module's parameters and buffers, one after another, as doubles. */
#ifndef TREK_TESTS_SUPPORT_NOTED_H
#define TREK_TESTS_SUPPORT_NOTED_H

#include "nn/module_tree.h"
#include "tensor/copies.h"
#include "tests/support/unit.h"

typedef struct noted {
    double *values;
    int n, most;
} noted;

static inline trek_status note_elements(const char *name, trek_var *var, void *arg)
{
    noted *to = arg;
    int64_t count = trek_var_numel(var);
    assert_true(to->n + count <= to->most);
    trek_status status = trek_tensor_to_host(trek_var_data(var), TREK_F64, to->values + to->n, (size_t)count * sizeof(double));
    to->n += (int)count;
    return status;
}

/* Writes those of all parameters to values, which has room for `most`, and returns how many they are. The case fails if they are
 * more, or cannot be read. */
static inline int note_params(trek_module *module, double *values, int most)
{
    noted to = { .values = values, .most = most };
    assert_int_equal(trek_module_each_param(module, note_elements, &to), TREK_OK);
    return to.n;
}

/* The same of parameters, and then of buffers. */
static inline int note_state(trek_module *module, double *values, int most)
{
    noted to = { .values = values, .n = note_params(module, values, most), .most = most };
    assert_int_equal(trek_module_each_buffer(module, note_elements, &to), TREK_OK);
    return to.n;
}

#endif
