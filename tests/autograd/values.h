/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of functions ask: an open scope, numbers, errors. */
#ifndef TREK_TESTS_AUTOGRAD_VALUES_H
#define TREK_TESTS_AUTOGRAD_VALUES_H

#include "autograd/ops.h"
#include "tests/support/scoped.h"

/* f64 numbers of a stream. */
trek_var *numbers(uint32_t stream, trek_shape shape, bool requires_grad);

double at(const trek_var *v, int64_t k);
void same(const trek_var *a, const trek_var *b);

#endif
