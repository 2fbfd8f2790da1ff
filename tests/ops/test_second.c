/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of gradients, for every rule. */
#include "tests/ops/suite.h"

int main(void)
{
    return suite_main("second derivative", check_second, row_has_rule);
}
