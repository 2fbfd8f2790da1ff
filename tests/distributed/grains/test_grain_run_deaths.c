/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of several processes in grains, some of which die: before and after every call in which they meet, and in every span.
 * Those that are left end with the bits and the metrics of one process that runs alone; and where a death comes within a step,
 * they keep their graph. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/comm/gloo/gloo.h"
#include "tests/distributed/grains/running.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* deaths[p]: when process p of n dies; NULL: it does not. */
static int expect(const char *detail, int n, const char *const *deaths, const outcome *expected, int *made)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%s,of=%d", detail, n);
    return running_expect(whole, dying_roles(n, deaths), expected, made);
}

/* --- tests ------------------------------------------------------------------------------------------------------- */

/* Every call, and both sides of it: of passes, steps, metrics, and what the run agrees on besides. */
static void one_dies_before_or_after_any_call(void **state)
{
    const char *detail = "model=1", *nobody[3] = { 0 };
    outcome expected = running_alone(detail);
    int made = 0, kept = 0, every = test_short() ? 9 : test_long() ? 1 : 3, runs = 0;
    assert_int_equal(expect(detail, 3, nobody, &expected, &made), 1);
    assert_true(made > 30);
    for (int k = 0; k < made; k++)
        for (int after = 0; after < 2; after++) {
            char when[32];
            const char *deaths[3] = { 0 };
            snprintf(when, sizeof when, "%s=%d", after ? "after" : "before", k);
            deaths[(k + after) % 3] = when;
            if ((2 * k + after) % every != 0 || (after && k == made - 1)) /* after the last one it is done */
                continue;
            kept += expect(detail, 3, deaths, &expected, NULL) == 1;
            runs++;
        }
    assert_true(2 * kept > runs); /* most calls are made within steps, and nothing is built again */
}

static void within_a_step_nothing_is_built_again(void **state)
{
    const char *exchange = test_on_cpu() ? "at=reduce_processes:2" : "at=reduce_grains:2";
    const char *const spans[] = { "at=grain:1", "at=sum_grain:4", "at=backward:3",  "at=sync:1",
                                  "at=reduce:0", exchange,        "at=optimizer:1", "at=grain:3" };
    for (int k = 0; k < (int)(sizeof spans / sizeof *spans); k++) {
        char detail[128];
        const char *deaths[4] = { 0 };
        snprintf(detail, sizeof detail, "model=%d,ranks=%d,accumulate=%d", k % 2 ? LSTM : k % 4 ? MLP : CONV_AND_BATCH_NORM,
                 1 + k % 2, k % 3);
        deaths[k % 3] = spans[k];
        outcome expected = running_alone(detail);
        if (expect(detail, 3, deaths, &expected, NULL) != 1 + k % 2) /* once for each rank */
            fail_msg("%s: process %d (%s) has died within a step, and the model was built again", detail, k % 3, spans[k]);
    }
}

/* In an evaluation the processes are in no step: the run goes back to the last one, and evaluates again. */
static void an_evaluation_is_made_again(void **state)
{
    outcome expected = running_alone("model=1");
    assert_int_equal(expect("model=1", 3, (const char *[]){ NULL, "at=evaluation:0", NULL }, &expected, NULL), 2);
}

static void several_die(void **state)
{
    static const struct {
        const char *detail, *deaths[4];
    } cases[] = {
        { "model=0", { NULL, "before=14", "before=14", NULL } },
        { "model=1", { "at=grain:1", NULL, "at=grain:5", NULL } },
        { "model=3", { NULL, "after=9", NULL, "at=regroup:0" } },
        { "model=5", { "at=take_over:0", "before=16", NULL, NULL } },
        { "model=0,ranks=2", { "at=grain:9", NULL, "before=11", NULL } },
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++) {
        outcome expected = running_alone(cases[k].detail);
        expect(cases[k].detail, 4, cases[k].deaths, &expected, NULL);
    }
}

/* The process that writes checkpoints dies; another one writes those that follow, and the last is the run's end. */
static void another_process_writes_checkpoints(void **state)
{
    char detail[200];
    char folder[] = "/tmp/trek-run-deaths-XXXXXX";
    assert_non_null(mkdtemp(folder));
    snprintf(detail, sizeof detail, "model=1,checkpoints=%s", folder);
    outcome expected = running_alone(detail);
    assert_int_equal(expect(detail, 3, (const char *[]){ "at=grain:4", NULL, NULL }, &expected, NULL), 1);
    running_expect_checkpoint(folder);
}

/* Each part of the optimizer's state is kept by two processes. In a step it is divided again among those that are left. Outside a
 * step it is put together before the model is built again, and for checkpoints. */
static void a_state_in_parts_outlives_deaths(void **state)
{
    static const char *const moments[] = { "at=grain:2", "at=reduce:1", "at=optimizer:1", "at=sync:2", "at=divide_state:0",
                                           "at=evaluation:0", "at=evaluation:1", "before=20", "after=24" };
    for (int k = 0; k < (int)(sizeof moments / sizeof *moments); k += test_short() ? 2 : 1) {
        char detail[128];
        const char *deaths[4] = { 0 };
        snprintf(detail, sizeof detail, "model=%d,ranks=%d,sharded%s", k % 3 == 2 ? LSTM : k % 3, 1 + k % 2,
                 k % 4 ? "" : ",divided=1");
        deaths[k % 3] = moments[k];
        if (strstr(moments[k], "divide_state")) /* process 1 dies while the parts of process 0 are given to others */
            deaths[0] = "at=sync:1";
        outcome expected = running_alone(detail);
        expect(detail, 4, deaths, &expected, NULL);
    }
    outcome expected = running_alone("model=1");
    expect("model=1,sharded", 2, (const char *[]){ NULL, "at=evaluation:0" }, &expected, NULL); /* one is left */
    expect("model=1,sharded,divided=1", 2, (const char *[]){ NULL, "at=evaluation:0" }, &expected, NULL);
    expect("model=1,sharded,divided=1", 3, (const char *[]){ NULL, "at=grain:2", "at=evaluation:1" }, &expected, NULL);
    expect("model=1,sharded", 4, (const char *[]){ "at=grain:2", NULL, "at=evaluation:0", NULL }, &expected, NULL);
    expect("model=1,sharded", 4, (const char *[]){ "at=evaluation:0", "at=divide_state:0", NULL, NULL }, &expected, NULL);
}

/* And parameters, of which nobody has all: they are put together then, too. */
static void parameters_in_parts_outlive_deaths(void **state)
{
    static const char *const moments[] = { "at=grain:2", "at=reduce:1", "at=optimizer:1", "at=sync:2", "at=divide_state:0",
                                           "at=evaluation:0", "at=evaluation:1", "before=20", "after=24", "at=digest:2" };
    for (int k = 0; k < (int)(sizeof moments / sizeof *moments); k += test_short() ? 3 : 1) {
        char detail[128];
        const char *deaths[4] = { 0 };
        snprintf(detail, sizeof detail, "model=%d,sharded,divided=2", k % 3 == 2 ? LSTM : k % 3);
        deaths[k % 3] = moments[k];
        if (strstr(moments[k], "divide_state"))
            deaths[0] = "at=sync:1";
        outcome expected = running_alone(detail);
        expect(detail, 4, deaths, &expected, NULL);
    }
    outcome expected = running_alone("model=1");
    expect("model=1,sharded,divided=2", 2, (const char *[]){ NULL, "at=evaluation:0" }, &expected, NULL); /* one is left */
    expect("model=1,sharded,divided=2", 3, (const char *[]){ NULL, "at=grain:2", "at=evaluation:1" }, &expected, NULL);
    expect("model=1,sharded,divided=2", 4, (const char *[]){ "at=evaluation:0", "at=divide_state:0", NULL, NULL }, &expected,
           NULL);
}

static void with_checkpoints_too(void **state)
{
    char detail[200], folder[] = "/tmp/trek-run-deaths-XXXXXX";
    assert_non_null(mkdtemp(folder));
    snprintf(detail, sizeof detail, "model=0,sharded,checkpoints=%s", folder);
    outcome expected = running_alone("model=0");
    expect(detail, 3, (const char *[]){ "at=grain:4", NULL, NULL }, &expected, NULL);
    expect(detail, 3, (const char *[]){ NULL, "at=evaluation:0", NULL }, &expected, NULL);
    snprintf(detail, sizeof detail, "model=0,sharded,divided=2,checkpoints=%s", folder);
    expect(detail, 3, (const char *[]){ "at=grain:4", NULL, NULL }, &expected, NULL);
    expect(detail, 3, (const char *[]){ NULL, "at=evaluation:0", NULL }, &expected, NULL);
    assert_int_equal(test_remove(folder), 0);
}

/* Both keepers of a part die at once. */
static void a_part_that_is_lost_ends_the_run(void **state)
{
    static const char *const moments[] = { "at=sync:2", "at=evaluation:0", "at=reduce:1" };
    static const char says[] = "*TREK_ERR_PEER: *: .shard: processes 1 and 3 are lost*no other copy; load a checkpoint*";
    outcome expected = running_alone("model=1");
    for (int k = 0; k < 3; k++)
        running_expect("model=1,sharded,of=4", (const role[]){ { .text = "-", .fails = says }, DIES(moments[k]),
                                                               { .text = "-", .fails = says }, DIES(moments[k]), { 0 } },
                       &expected, NULL);
}

static void over_gloo_too(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why))
        skip();
    outcome expected = running_alone("model=0");
    expect("model=0,gloo", 3, (const char *[]){ NULL, "before=14", NULL }, &expected, NULL);
    expect("model=0,gloo", 3, (const char *[]){ "at=grain:5", NULL, NULL }, &expected, NULL);
}

static void too_few_are_left(void **state)
{
    dying_leave_too_few();
}

int main(void)
{
    static part me;
    if (processes_part(&me))
        return running_play(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(within_a_step_nothing_is_built_again, clear_error),
        cmocka_unit_test_setup(one_dies_before_or_after_any_call, clear_error),
        cmocka_unit_test_setup(an_evaluation_is_made_again, clear_error),
        cmocka_unit_test_setup(several_die, clear_error),
        cmocka_unit_test_setup(another_process_writes_checkpoints, clear_error),
        cmocka_unit_test_setup(a_state_in_parts_outlives_deaths, clear_error),
        cmocka_unit_test_setup(parameters_in_parts_outlive_deaths, clear_error),
        cmocka_unit_test_setup(with_checkpoints_too, clear_error),
        cmocka_unit_test_setup(a_part_that_is_lost_ends_the_run, clear_error),
        cmocka_unit_test_setup(over_gloo_too, clear_error),
        cmocka_unit_test_setup(too_few_are_left, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
