/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of several processes that lose some of them: whoever dies, every sample is seen once, and all end with the bits of a run
 * that was resumed on so many ranks at that step. Deaths at any moment are simulated (tests/simulation/scenario_run.c). */
#include <math.h>

#include "tests/distributed/run/elastic.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* A step that as many tried again, a joiner in the place of one that had died, is read once, whoever had which samples; a line
 * that was cut is not. */
static void test_tries(void **state)
{
    static world w = { .n = 4, .text = { "built.\nsaw 0 3 1 2.\nbuilt.\nsaw 0 3 1 2.\nsaw 1 3 7.\n",
                                         "built.\nsaw 0 3 5 6.\nbuilt.\nsaw 0 3 3 4.\nsaw 1 3 8.\n",
                                         "built.\nsaw 0 3 3 4.\n", "built.\nsaw 0 3 5 6.\nsaw 1 3 9" } };
    history h = read_history(&w);
    assert_true(h.ranks[0] == 3 && h.ranks[1] == 3);
    for (int sample = 1; sample < 10; sample++)
        assert_int_equal(h.seen[sample > 6][sample], sample < 9);
}

/* Nobody dies. */
static void test_none(void **state)
{
    static world w;
    static const char *const details[PROCESSES] = { NULL };
    processes_run_each(&w, 3, "elastic", details);
    assert_good(&w, 3);
}

/* In each phase, now one and now another. */
static void test_one(void **state)
{
    static world w;
    static const char *const moments[] = { "at=build:0",        "at=epoch:0",      "at=loss:0",
                                           "at=loss:10",        "at=forward:9",    "at=backward:6",
                                           "at=sync:8",         "at=reduce:7",     "at=reduce_processes:11",
                                           "at=buffers:12",     "at=optimizer:5",  "at=optimizer:7",
                                           "at=loader_wait:13", "at=evaluation:2", "at=metrics:0",
                                           "at=metrics:2",      "at=epoch:1",      "at=loss:15" };
    for (int k = 0; k < (int)(sizeof moments / sizeof *moments); k++) {
        const char *details[PROCESSES] = { NULL };
        details[k % 3] = moments[k];
        processes_run_each(&w, 3, "elastic", details);
        if (!has_died(&w, k % 3))
            fprintf(stderr, "%s: process %d has not died\n", moments[k], k % 3);
        assert_good(&w, 2);
    }
}

/* What the devices of the others have not received changes nothing. Without batch norm the hosts do not meet again in the step.
 */
static void test_one_between_devices(void **state)
{
    static world w;
    if (test_on_cpu())
        skip();
    plain = true;
    for (int k = 0; k < 6; k++) {
        char detail[48];
        const char *all = k % 3 == 2 ? "plain,average" : "plain", *details[PROCESSES] = { all, all, all };
        snprintf(detail, sizeof detail, "%s,gave=%d", all, 6 + 3 * k);
        details[k % 3] = detail;
        processes_run_each(&w, 3, "elastic", details);
        if (!has_died(&w, k % 3))
            fail_msg("%s: process %d has not died", detail, k % 3);
        if (!is_good(&w, 2, k % 3 == 2))
            fail_msg("%s: not as one process", detail);
    }
    plain = false;
}

/* Processes on CPUs beside processes on GPUs, which all take the parameters of the first one after their update: those that are
 * left have the same bits, and are what ranks of one kind have, up to rounding. */
static void test_cpus_and_gpus(void **state)
{
    static world w;
    static const char *const moments[] = { "at=optimizer:5", "at=optimizer:7", "at=loss:10", "at=reduce:7", "at=build:0",
                                           "at=metrics:2",   "at=optimizer:11", "at=sync:8",  "at=evaluation:2" };
    if (test_on_cpu())
        skip();
    plain = mixed = true;
    for (int k = -1; k < (int)(sizeof moments / sizeof *moments); k++) {
        char detail[48];
        const char *details[PROCESSES] = { "mixed", "mixed", "mixed" };
        if (k >= 0) {
            snprintf(detail, sizeof detail, "mixed,%s", moments[k]);
            details[k % 3] = detail;
        }
        processes_run_each(&w, 3, "elastic", details);
        if (k >= 0 && !has_died(&w, k % 3))
            FAIL_WORLD(&w, "%s: process %d has not died", detail, k % 3);
        assert_good(&w, k < 0 ? 3 : 2);
    }
    static const char *const several[] = { "mixed,at=optimizer:5", "mixed", "mixed,at=loss:12", "mixed", "mixed" };
    processes_run_each(&w, 5, "elastic", several);
    assert_good(&w, 3);
    plain = mixed = false;
}

static void test_saving(void **state)
{
    static world w;
    char folder[] = "/tmp/trek-elastic-XXXXXX", detail[96], victim[96];
    assert_non_null(mkdtemp(folder));
    snprintf(detail, sizeof detail, "save=%s", folder);
    for (int k = 0; k < 2; k++) {
        const char *details[PROCESSES] = { victim, detail, detail };
        snprintf(victim, sizeof victim, "at=checkpoint:%d,save=%s", k, folder);
        processes_run_each(&w, 3, "elastic", details);
        assert_good(&w, 2);
    }
    assert_int_equal(test_remove(folder), 0);
}

static void test_several(void **state)
{
    static world w;
    static const struct {
        const char *details[4];
        int left;
    } rows[] = {
        { { "at=build:0", NULL, "at=build:0", NULL }, 2 },
        { { NULL, "at=build:0", "at=build:1", NULL }, 2 },
        { { "at=loss:5", NULL, "at=loss:5", NULL }, 2 },
        { { NULL, "at=backward:5", "at=reduce:5", NULL }, 2 },
        { { "at=loss:3", "at=loss:9", NULL, NULL }, 2 },
        { { NULL, NULL, "at=optimizer:4", "at=sync:14" }, 2 },
        { { "at=loss:5", "at=build:1", NULL, NULL }, 2 },
        { { "at=build:1", NULL, "at=loss:5", NULL }, 2 },
        { { "at=build:1", "at=build:1", NULL, "at=loss:5" }, 1 },
        { { NULL, "at=epoch:2", "at=buffers:1", NULL }, 2 },
        { { "at=epoch:1", "at=metrics:1", "at=loss:17", NULL }, 1 },
        { { "at=loss:2", "at=loss:2", "at=loss:2", NULL }, 1 },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        processes_run_each(&w, 4, "elastic", rows[k].details);
        assert_good(&w, rows[k].left);
    }
}

/* Two ranks in each process: to rounding, as the ranks of one process. */
static void test_ranks(void **state)
{
    plain = true;
    static world w;
    static const char *const details[] = { "two", "two,at=reduce:9", "two" }, *const none[] = { "two", "two", "two" };
    processes_run_each(&w, 3, "elastic", none);
    assert_good(&w, 3);
    processes_run_each(&w, 3, "elastic", details);
    assert_good(&w, 2);
    plain = false;
}

/* The run finds its processes itself. */
static void test_environment(void **state)
{
    static world w;
    static const char *const details[] = { "env,at=loss:3", "env", "env" };
    processes_run_each(&w, 3, "elastic", details);
    assert_good(&w, 2);
}

/* In windows, the samples of a window that was not complete are trained on by the others. */
static void expect_windows(const char *all)
{
    static world w;
    for (int victim = 0; victim < 3; victim++) {
        char detail[48];
        const char *details[PROCESSES] = { all, all, all };
        snprintf(detail, sizeof detail, "%s,%s", all, victim == 1 ? "at=loss:5" : "at=reduce:3"); /* however slow it is */
        details[victim] = detail;
        double number = NAN;
        processes_run_each(&w, 3, "elastic", details);
        for (int p = 0; p < 3; p++) {
            const char *final = strstr(w.text[p], "final 5 epochs number "), *last = strstr(w.text[p], "epoch 4 ranks 2 ");
            if (p == victim)
                continue;
            double got = final ? strtod(final + strlen("final 5 epochs number "), NULL) : NAN;
            number = isnan(number) ? got : number;
            WANT(&w, final && last && got == number && strstr(last, "samples 61 count 61 "));
        }
    }
}

static void test_windows(void **state)
{
    expect_windows("cadence");
    if (!test_on_cpu())
        expect_windows("cadence,mixed");
}

/* From the last average on. */
static void test_averages(void **state)
{
    static world w;
    for (int k = 0; k < 4; k++) {
        const char *details[PROCESSES] = { "average", "average", "average" };
        details[k % 3] = k == 0 ? "average,at=average:6" : k == 1 ? "average,at=loss:9" : k == 2 ? "average,at=bucket:30"
            : "average,at=loss:8";
        processes_run_each(&w, 3, "elastic", details);
        WANT(&w, is_good(&w, 2, true));
    }
}

/* Metrics of the epoch: what those who are left have seen of it. */
static void test_metrics(void **state)
{
    static world w;
    static const char *const details[] = { NULL, "at=loss:6", NULL };
    processes_run_each(&w, 3, "elastic", details);
    assert_good(&w, 2);
    for (int p = 0; p < 3; p += 2) {
        int ranks, steps, samples;
        double count;
        const char *first = strstr(w.text[p], "epoch 0 "), *second = strstr(w.text[p], "epoch 1 "),
                   *third = strstr(w.text[p], "epoch 2 ");
        assert_true(first && second && third);
        assert_int_equal(sscanf(first, "epoch 0 ranks %d steps %d samples %d count %lf", &ranks, &steps, &samples, &count), 4);
        assert_true(ranks == 3 && steps == STEPS && samples == SAMPLES && count == SAMPLES);
        assert_int_equal(sscanf(second, "epoch 1 ranks %d steps %d samples %d count %lf", &ranks, &steps, &samples, &count), 4);
        assert_true(ranks == 2 && steps == STEPS && samples < SAMPLES && samples >= SAMPLES / 2 && count == samples);
        assert_int_equal(sscanf(third, "epoch 2 ranks %d steps %d samples %d count %lf", &ranks, &steps, &samples, &count), 4);
        assert_true(ranks == 2 && steps == STEPS && samples == SAMPLES && count == SAMPLES);
    }
}

/* Too few are left, or it is the program that fails: an error on all, soon. */
static void test_ends(void **state)
{
    static world w;
    static const struct { const char *victim, *others, *text; } rows[] = {
        { "least=3,at=loss:5", "least=3", ".min_processes is 3" }, { "least=0,at=loss:5", "least=0", "died" },
        { "bad-loss", "-", "returned NULL" },                      { "least=4", "least=4", ".min_processes: 4; must be 1 to 3" },
        { "least=2", "least=1", ".min_processes is" },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const char *details[] = { rows[k].others, rows[k].victim, rows[k].others };
        processes_run_each(&w, 3, "elastic", details);
        for (int p = 0; p < 3; p++) {
            WANT(&w, has_died(&w, p) || (w.code[p] == 1 && strstr(w.text[p], rows[k].text) && !strstr(w.text[p], "are left\n")));
        }
    }
}

int main(void)
{
    int status;
    if (!elastic_begins(&status))
        return status;
    const struct CMUnitTest engine[] = { /* who dies when, in the others, is the same for every engine */
        cmocka_unit_test(test_none), cmocka_unit_test(test_one), cmocka_unit_test(test_several),
        cmocka_unit_test(test_ranks), cmocka_unit_test(test_metrics), cmocka_unit_test(test_windows),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_none), cmocka_unit_test(test_one), cmocka_unit_test(test_one_between_devices),
        cmocka_unit_test(test_cpus_and_gpus), cmocka_unit_test(test_saving),
        cmocka_unit_test(test_several), cmocka_unit_test(test_ranks), cmocka_unit_test(test_averages),
        cmocka_unit_test(test_metrics), cmocka_unit_test(test_environment), cmocka_unit_test(test_windows),
        cmocka_unit_test(test_ends), cmocka_unit_test(test_tries),
    };
    return elastic_has_all() ? cmocka_run_group_tests(tests, NULL, NULL) : cmocka_run_group_tests(engine, NULL, NULL);
}
