/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule's gradients for every set of inputs, however they are asked for. */
#include "tests/ops/suite.h"

int main(void)
{
    return suite_main("leaves", check_leaves, row_has_rule);
}
