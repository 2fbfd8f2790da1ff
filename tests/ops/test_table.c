/* SPDX-License-Identifier: Apache-2.0 */
/* The table is complete: every row has its kernels, a shape rule, and a
 * backward rule exactly where ops.def names one. */
#include "tests/ops/suite.h"
#include "tests/support/support.h"

static void has_kernels(const trek_op *op, trek_device_type type, op_report *r)
{
    const trek_backend *backend = trek_backend_get(type);
    if (!backend) {
        report_fail(r, "no backend: %s", trek_error());
        return;
    }
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++) {
        bool wanted = (op->dtypes >> dtype & 1) && !(op->flags & TREK_OP_VIEW);
        if (wanted && !backend->kernels[op->id][dtype])
            report_fail(r, "no kernel of %s for %s in %s", op->name, trek_dtype_name((trek_dtype)dtype), backend->name);
        if (!wanted && backend->kernels[op->id][dtype])
            report_fail(r, "%s: %s has a kernel for %s, which its row does not", op->name, backend->name,
                        trek_dtype_name((trek_dtype)dtype));
    }
}

static void complete(const op_row *row, op_report *r)
{
    const trek_op *op = &trek_ops[row->id];
    has_kernels(op, TREK_CPU, r);
    if (!test_on_cpu())
        has_kernels(op, test_device().type, r);
    if (!op->infer)
        report_fail(r, "%s has no shape rule", op->name);
    if (op->id != row->id || op->dtypes == 0)
        report_fail(r, "%s: its row is not filled in", op->name);
    if (row_has_rule(row) != (trek_backward_rules[row->id] != NULL))
        report_fail(r, "%s: the table of backward rules does not agree with ops.def", op->name);
    if (row_has_composite(row) != (trek_composite_rules[row->id] != NULL))
        report_fail(r, "%s: the table of composites does not agree with ops.def", op->name);
}

int main(void)
{
    return suite_main("table", complete, NULL);
}
