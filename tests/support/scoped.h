/* SPDX-License-Identifier: Apache-2.0 */
/* Cases that run in a scope of their own (setup and teardown of cmocka's), and what errors they expect. A case fails that leaves
 * the scope broken or a tape behind. */
#ifndef TREK_TESTS_SUPPORT_SCOPED_H
#define TREK_TESTS_SUPPORT_SCOPED_H

#include "autograd/backward.h"
#include "autograd/grad.h"
#include "tensor/scope.h"
#include "tests/support/refused.h"

static trek_scope scope;

static inline int open_scope(void **state)
{
    trek_error_clear();
    scope = trek_scope_begin();
    return 0;
}

static inline int close_scope(void **state)
{
    trek_error_clear();
    return trek_scope_end(scope) == TREK_OK && trek_tape_size() == 0 ? 0 : -1;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_scope, close_scope)

#endif
