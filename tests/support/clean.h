/* SPDX-License-Identifier: Apache-2.0 */
/* A case begins without an error, and leaves none, nor a tape (setup and teardown of cmocka's). */
#ifndef TREK_TESTS_SUPPORT_CLEAN_H
#define TREK_TESTS_SUPPORT_CLEAN_H

#include "autograd/backward.h"
#include "autograd/grad.h"
#include "tensor/status.h"
#include "tests/support/unit.h"

static inline int clean(void **state)
{
    trek_error_clear();
    return 0;
}

static inline int no_error(void **state)
{
    if (trek_error_status() == TREK_OK && trek_tape_size() == 0)
        return 0;
    print_error("left: %s, %lld nodes\n", trek_error(), (long long)trek_tape_size());
    return 1;
}

#endif
