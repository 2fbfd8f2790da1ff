/* SPDX-License-Identifier: Apache-2.0 */
/* Variables of numbers, and gradients against differences, in f64. */
#ifndef TREK_TESTS_DIFFERENCES_H
#define TREK_TESTS_DIFFERENCES_H

#include "autograd/var.h"

#define COUNT(...) (sizeof(double[]){ __VA_ARGS__ } / sizeof(double))
/* A variable of a shape and dtype with these numbers. */
#define VALUES(shape, dtype, ...) values_of(shape, dtype, (const double[]){ __VA_ARGS__ })
#define LIST(dtype, ...) VALUES(trek_dims((int64_t)COUNT(__VA_ARGS__)), dtype, __VA_ARGS__)
trek_var *values_of(trek_shape shape, trek_dtype dtype, const double *numbers);
/* Numbers in [-1, 1), f64. */
trek_var *random_values(uint32_t stream, trek_shape shape);

/* Fails unless v has these elements, in row-major order. */
#define ASSERT_VALUES(v, ...) assert_values(v, COUNT(__VA_ARGS__), (const double[]){ __VA_ARGS__ }, __LINE__)
void assert_values(trek_var *v, size_t n, const double *wanted, int line);

/* Fails unless v is NULL with that error. */
#define ASSERT_REFUSED(v, status)                      \
    do {                                               \
        assert_null(v);                                \
        assert_int_equal(trek_error_status(), status); \
        trek_error_clear();                            \
    } while (0)

/* Fails unless the gradients of a weighted sum of f's results over n inputs of these shapes are its differences, and, if asked,
 * gradients of gradients those of the gradients. */
typedef trek_var *function_of(trek_var *const *inputs);
void check_gradients(function_of *f, int n, const trek_shape *shapes, bool second);

#endif
