/* SPDX-License-Identifier: Apache-2.0 */
/* Every fused row equals the plain ops it stands for. */
#include "tests/ops/suite.h"

int main(void)
{
    return suite_main("composite", check_composite, row_has_composite);
}
