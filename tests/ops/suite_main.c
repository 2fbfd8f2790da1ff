/* SPDX-License-Identifier: Apache-2.0 */
/* Makes one cmocka test of a check and a row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/ops/suite.h"
#include "tests/support/support.h"

static void (*present_check)(const op_row *row, op_report *r);

static void run_row(void **state)
{
    op_report report;
    memset(&report, 0, sizeof report);
    trek_error_clear();
    present_check(*state, &report);
    trek_error_clear();
    if (trek_device_sync(test_device()) != TREK_OK && !report_bad(&report))
        report_fail(&report, "the device reports what no call did: %s: %s", trek_status_name(trek_error_status()), trek_error());
    trek_error_clear();
    if (report_bad(&report))
        fail_msg("%s", report.text);
}

/* TREK_TEST_SHARD=k/n: only every n-th row, from row k on. */
static bool in_shard(int id)
{
    const char *text = getenv("TREK_TEST_SHARD");
    int k = 0, n = 1;
    return !text || sscanf(text, "%d/%d", &k, &n) != 2 || n < 1 || id % n == k;
}

/* TREK_TEST_OPS=products: only the rows whose kernels multiply matrices, in the dtypes for which there are several ways. */
static bool is_asked_for(int id)
{
    static const char *const beginnings[] = { "matmul", "linear", "conv", "attention", "fp8", "lstm", "gru" };
    const char *text = getenv("TREK_TEST_OPS"), *name = trek_ops[id].name;
    if (!text || strcmp(text, "products") != 0)
        return true;
    for (size_t k = 0; k < sizeof beginnings / sizeof *beginnings; k++)
        if (strncmp(name, beginnings[k], strlen(beginnings[k])) == 0)
            return true;
    return false;
}

int suite_main(const char *group, void (*check)(const op_row *row, op_report *r), bool (*applies)(const op_row *row))
{
    static struct CMUnitTest tests[TREK_OP_COUNT];
    size_t n = 0;
    present_check = check;
    for (int id = 0; id < TREK_OP_COUNT; id++) {
        if (!in_shard(id) || !is_asked_for(id) || (applies && !applies(&op_rows[id])))
            continue;
        tests[n++] = (struct CMUnitTest){ .name = trek_ops[id].name, .test_func = run_row,
                                          .initial_state = (void *)&op_rows[id] };
    }
    return _cmocka_run_group_tests(group, tests, n, NULL, NULL);
}
