/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule's gradients against finite differences. */
#include "tests/ops/suite.h"

int main(void)
{
    return suite_main("gradient", check_gradient, row_has_rule);
}
