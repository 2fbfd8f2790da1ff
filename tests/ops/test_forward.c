/* SPDX-License-Identifier: Apache-2.0 */
/* Every row's results against its reference. */
#include "tests/ops/suite.h"

static void forward(const op_row *row, op_report *r)
{
    check_forward(row, false, r);
}

int main(void)
{
    return suite_main("forward", forward, NULL);
}
