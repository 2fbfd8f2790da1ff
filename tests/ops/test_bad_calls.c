/* SPDX-License-Identifier: Apache-2.0 */
/* What every row answers to calls that make no sense. */
#include "tests/ops/suite.h"

int main(void)
{
    return suite_main("bad calls", check_bad, NULL);
}
