/* SPDX-License-Identifier: Apache-2.0 */
/* The distribution and the places of random rows. */
#include "tests/ops/suite.h"

static bool is_random(const op_row *row)
{
    return trek_ops[row->id].flags & TREK_OP_RANDOM;
}

int main(void)
{
    return suite_main("random", check_random, is_random);
}
