/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that come to a run again after they have died, and processes that are new to it: every sample is seen once, and all
 * end with the bits of a run that was resumed on so many ranks at that step. Returns at any moment are simulated
 * (tests/simulation/scenario_run.c). */
#include <unistd.h>

#include "tests/distributed/run/elastic.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* Of n processes and joiners behind them, in a folder of their own; details[p] NULL: an ordinary one. */
static void run_again(world *w, int n, int joiners, const char *common, const char *const *details)
{
    char folder[] = "/tmp/trek-elastic-XXXXXX", text[PROCESSES][200];
    assert_non_null(mkdtemp(folder));
    processes_init(w, n + joiners);
    for (int p = 0; p < n + joiners; p++) {
        snprintf(text[p], sizeof text[p], "%s%s%sof=%d,in=%s", details[p] ? details[p] : "", details[p] ? "," : "", common, n,
                 folder);
    }
    arrivals_from = n;
    for (int p = 0; p < n + joiners; p++) {
        int all = w->n;
        w->n = p < n ? n : all; /* what a process is told */
        processes_start(w, p, "elastic", text[p]);
        w->n = all;
    }
    processes_finish(w, -1);
    assert_int_equal(test_remove(folder), 0);
}

static void assert_again(world *w, int n, int joiners, const char *common, const char *const *details, int left, bool averages)
{
    run_again(w, n, joiners, common, details);
    WANT(w, is_good(w, left, averages));
    arrivals_from = PROCESSES;
}

/* Whoever it is that died, and comes again two epochs later. */
static void test_again(void **state)
{
    static world w;
    static const char *const rows[][5] = {
        { NULL, "at=loss:5", NULL, "join,as=1" },
        { "at=loss:5", NULL, NULL, "join,as=0" },
        { NULL, NULL, "at=epoch:1", "join,as=2" },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        assert_again(&w, 3, 1, "hold=3,all=3,", rows[k], 3, false);
}

/* Two at once; and one that others have gone on without to the last. */
static void test_again_several(void **state)
{
    static world w;
    static const char *const two[] = { "at=loss:5", NULL, "at=reduce:5", "join,as=2", "join,as=0" };
    assert_again(&w, 3, 2, "hold=34,all=3,", two, 3, false);
    static const char *const one[] = { "at=loss:5", NULL, "join,as=0" };
    assert_again(&w, 2, 1, "hold=2,all=2,", one, 2, false);
}

/* Processes that were not in the run before: beside others that live, that have died, and that come again. */
static void test_newcomers(void **state)
{
    static world w;
    static const char *const one[] = { NULL, NULL, "join,new" };
    assert_again(&w, 2, 1, "hold=2,all=3,", one, 3, false);
    static const char *const two[] = { NULL, NULL, "join,new", "join,new" };
    assert_again(&w, 2, 2, "hold=23,all=4,", two, 4, false);
    static const char *const three[] = { NULL, "at=loss:5", NULL, "join,as=1", "join,new" };
    assert_again(&w, 3, 2, "hold=34,all=4,", three, 4, false);
    static const char *const dies[] = { NULL, "at=epoch:4", "join,new", "join,new,at=epoch:1" };
    assert_again(&w, 2, 2, "hold=23,", dies, 2, false);
}

/* One on a CPU in the place of one on a GPU, and a new one on a GPU, in a run of both. */
static void test_again_cpus_and_gpus(void **state)
{
    static world w;
    if (test_on_cpu())
        skip();
    plain = mixed = true;
    static const char *const again[] = { NULL, NULL, "at=loss:5", "join,as=2" };
    assert_again(&w, 3, 1, "mixed,hold=3,all=3,", again, 3, false);
    static const char *const two[] = { NULL, "at=optimizer:5", "join,new", "join,as=1" };
    assert_again(&w, 2, 2, "mixed,hold=23,all=3,", two, 3, false);
    plain = mixed = false;
}

static void test_again_averages(void **state)
{
    static world w;
    static const char *const details[] = { NULL, "at=loss:5", NULL, "join,as=1" };
    assert_again(&w, 3, 1, "average,hold=3,all=3,", details, 3, true);
}

/* A joiner that dies while it waits, or as soon as it is in the group; others that die when one comes. */
static void test_again_deaths(void **state)
{
    static world w;
    static const struct { const char *details[5]; int left; } rows[] = {
        { { NULL, "at=loss:5", NULL, "join,dies-waiting,as=1" }, 2 },
        { { NULL, "at=loss:5", NULL, "join,at=build:0,as=1" }, 2 },
        { { NULL, "at=loss:5", NULL, "join,at=build:1,as=1" }, 2 },
        { { NULL, "at=loss:5", NULL, "join,at=epoch:0,as=1" }, 2 },
        { { "at=build:2", "at=loss:5", NULL, "join,as=1" }, 2 },
        { { NULL, "at=loss:5", "at=build:2", "join,as=1" }, 2 },
        { { "at=epoch:4", "at=loss:5", NULL, "join,as=1" }, 2 },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        assert_again(&w, 3, 1, "hold=3,", rows[k].details, rows[k].left, false);
}

/* Who cannot join is told why, and the others do not care. */
static void test_again_refused(void **state)
{
    static world w;
    static const struct {
        const char *common, *joiner, *text;
    } rows[] = {
        { "until=3,", "join,wrong-token,as=1", "TREK_TOKEN" },
        { "until=3,", "join,least=2,as=1", "process 1 cannot join the job: its model, its options" },
        { "until=3,", "join,other-model,as=1", "process 1 cannot join the job: its model, its options" },
        { "until=3,", "join,new,other-model", "this process cannot join the job: its model, its options" },
        { "until=3,", "join,new,wrong-token", "TREK_TOKEN" },
        { "until=3,", "join,least=0,as=1", ".min_processes is 0" },
        { "until=3,", "join,of=4,as=1", "process 1 of 4 cannot join the job, which has 3" },
        { "", "join,late,as=1", "no process of the job accepts joining processes" },
        { "hold=3,", "join,alive=1,as=0", "is alive" },
        { "until=3,", "join,own-comm,as=1", "TREK_JOIN is set" },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const char *details[] = { NULL, "at=loss:5", NULL, rows[k].joiner };
        run_again(&w, 3, 1, rows[k].common, details);
        bool good = w.code[3] == 1 && strstr(w.text[3], rows[k].text) && !strstr(w.text[3], "are left\n");
        w.n = 3;
        good = good && is_good(&w, 2, false);
        w.n = 4;
        WANT(&w, good);
    }
    arrivals_from = PROCESSES;
}

/* Averages in the background, also an outer optimizer's, whose momentum a joiner is to have: all have the same in the end, of
 * as many ranks as in the beginning. */
static void test_again_host(void **state)
{
    static world w;
    static const char *const details[] = { "at=loss:2", NULL, NULL, "join,as=0" };
    for (int k = 0; k < 2; k++) {
        run_again(&w, 3, 1, k ? "host,outer,hold=3," : "host,hold=3,", details);
        for (int p = 1; p < 4; p++) {
            WANT(&w, result_of(&w, p) == result_of(&w, 1) && !strstr(w.text[p], "samples 0 ") &&
                 strstr(w.text[p], "epoch 4 ranks 3 ") && w.code[p] == 0);
        }
    }
    arrivals_from = PROCESSES;
}

/* One that dies under trek-run, by its own doing, at `at`. */
typedef struct launched {
    const char *detail;
    int restarts, left; /* so many get to the end */
} launched;

static void run_launched(const launched *row)
{
    char folder[] = "/tmp/trek-elastic-XXXXXX", command[1024], own[256], text[OUTPUT] = "", numbers[3][64];
    const char *at = text;
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    assert_true(length > 0 && mkdtemp(folder));
    own[length] = '\0';
    snprintf(command, sizeof command,
             "TREK_TEST_ROLE=elastic TREK_TEST_PART='0 3 0 127.0.0.1 launched,%s,in=%s' %s -n 3 -m 1 "
             "--restarts %d %s 2>&1",
             row->detail, folder, processes_built("tools/trek-run"), row->restarts, own);
    FILE *output = popen(command, "r");
    assert_non_null(output);
    text[fread(text, 1, sizeof text - 1, output)] = '\0';
    int status = pclose(output), n = 0;
    bool good = status == 0;
    good = good && (row->restarts == 0 || strstr(text, "it is started again (1 of 1)"));
    for (; good && n < 3 && (at = strstr(at, "epochs number ")); n++, at++)
        good = sscanf(at, "epochs number %63s", numbers[n]) == 1 && strcmp(numbers[n], numbers[0]) == 0;
    good = good && n == row->left && !strstr(text, "another program");
    if (!good)
        fprintf(stderr, "%s: %d\n%s\n", row->detail, n, text);
    assert_true(good);
    assert_int_equal(test_remove(folder), 0);
}

/* trek-run starts it again, or does not: in each phase of starting, and when there is nobody left to join. */
static void test_again_launched(void **state)
{
    static const launched rows[] = {
        { "at=loss:5,hold=0", 1, 3 },
        { "at=start:0,hold=0", 1, 3 },
        { "victim=0,at=start:0,hold=0", 1, 3 },
        { "at=start:0", 0, 2 },
        { "victim=0,at=start:0", 0, 2 },
        { "us=300000,slow=2", 0, 2 },
        { "victim=0,us=300000,slow=2,hold=0", 1, 3 },
        { "us=300000,slow=2,hold=0", 1, 3 },
        { "joined", 0, 2 },
        { "victim=0,joined", 0, 2 },
        { "joined,hold=0", 1, 3 },
        { "at=build:0,hold=0", 1, 3 },
        { "victim=0,at=build:0", 0, 2 },
        { "at=epoch:4,late", 1, 2 },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        run_launched(&rows[k]);
}

int main(void)
{
    int status;
    if (!elastic_begins(&status))
        return status;
    const struct CMUnitTest engine[] = { /* who comes when, in the others, is the same for every engine */
        cmocka_unit_test(test_again), cmocka_unit_test(test_again_several),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_again), cmocka_unit_test(test_again_several), cmocka_unit_test(test_newcomers),
        cmocka_unit_test(test_again_averages), cmocka_unit_test(test_again_deaths), cmocka_unit_test(test_again_refused),
        cmocka_unit_test(test_again_host), cmocka_unit_test(test_again_cpus_and_gpus), cmocka_unit_test(test_again_launched),
    };
    return elastic_has_all() ? cmocka_run_group_tests(tests, NULL, NULL) : cmocka_run_group_tests(engine, NULL, NULL);
}
