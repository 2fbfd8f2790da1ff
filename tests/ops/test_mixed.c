/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule's gradients where inputs have several floating dtypes. */
#include "tests/ops/suite.h"

int main(void)
{
    return suite_main("mixed dtypes", check_mixed, row_has_rule);
}
