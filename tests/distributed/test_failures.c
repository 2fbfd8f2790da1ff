/* SPDX-License-Identifier: Apache-2.0 */
/* Training jobs under trek-run in which one process fails the others, in every way and place: all others end by
 * themselves within seconds, with the right process named, parameters as the last complete step left them, and nothing
 * left behind. Processes that are slow, busy or asked to stop fail nobody. TREK_TEST_SEED: other random moments. */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "distributed/comm/gloo/gloo.h"
#include "tests/distributed/failures.h"
#include "tests/support/left.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* --- the tests ------------------------------------------------------------------------------------------- */

static uint32_t seed;

/* Runs, undisturbed, those that these are compared with, if no test has yet: a case may be run alone. */
static void make_references(const scenario *list, int n)
{
    scenario calm[SCENARIOS];
    int count = 0;
    for (int k = 0; k < n; k++) {
        const scenario *s = &list[k];
        bool there = s->mode == WINDOWS || references[s->gloo][s->processes][s->ranks][s->mode][0] != 0;
        for (int j = 0; j < count && !there; j++)
            there = calm[j].gloo == s->gloo && calm[j].processes == s->processes && calm[j].ranks == s->ranks &&
                calm[j].mode == s->mode;
        if (!there)
            calm[count++] = (scenario){ .gloo = s->gloo, .processes = s->processes, .ranks = s->ranks, .mode = s->mode,
                                        .victim = -1 };
    }
    assert_int_equal(run_all(calm, count, 3, look_well), 0);
}

static void run_expecting(const scenario *list, int n, int at_once, bool (*look)(running *r))
{
    if (look == look_failed)
        make_references(list, n);
    assert_int_equal(run_all(list, n, at_once, look), 0);
}

/* Engines, processes, ranks and victims in turn. */
static scenario nth(int k, act what, place where)
{
    static char why[256];
    static int with_gloo = -1;
    if (with_gloo < 0 && !(with_gloo = trek_comm_gloo_there(why, sizeof why)))
        print_message("shared memory only: %s\n", why);
    scenario s = { .gloo = with_gloo & k & 1,
                   .processes = 2 + (k >> 1 & 1),
                   .ranks = 1 + (k % 7 >= 5),
                   .mode = k % 7 == 3 ? PARTS : k % 7 == 6 ? OWNERS : k % PARTS,
                   .act = what,
                   .place = where,
                   .seed = seed + (uint32_t)k * 7919u };
    s.victim = k / 3 % s.processes;
    return s;
}

static void test_undisturbed(void **state)
{
    scenario list[2 * 2 * 2 * MODES];
    int n = 0;
    for (int processes = 2; processes <= 3; processes++)
        for (int ranks = 1; ranks <= 2; ranks++)
            for (int how = 0; how < MODES; how++) {
                list[n] = (scenario){ .processes = processes, .ranks = ranks, .mode = how, .victim = -1 };
                n++;
            }
    for (int k = 0, shared_ones = n; k < shared_ones; k++) {
        list[n] = list[k];
        list[n].gloo = nth(1, NOTHING, NOWHERE).gloo;
        n += list[n].gloo;
    }
    run_expecting(list, n, 3, look_well);
}

static void test_delays(void **state)
{
    scenario list[12];
    for (int k = 0; k < 12; k++) {
        list[k] = nth(k, NOTHING, NOWHERE);
        list[k].delays = 1 + (k & 2);
        list[k].victim = -1;
    }
    run_expecting(list, 12, 3, look_well);
}

static void test_stopped_and_silent(void **state)
{
    static const place places[] = { JOIN, SETUP, FIRST, BACKWARD, STEP, SAVE, EVALUATION, LEAVING };
    scenario list[SCENARIOS];
    int n = 0;
    for (size_t k = 0; k < sizeof places / sizeof *places; k++, n++)
        list[n] = nth(n, STOP, places[k]);
    run_expecting(list, n, test_on_cpu() ? AT_ONCE : AT_ONCE / 2, look_failed); /* they wait, most of the time */
    list[0] = nth(n, SILENT, FIRST);
    list[1] = nth(n + 1, SILENT, BACKWARD);
    run_expecting(list, 2, 2, look_failed);
}

static void test_killed(void **state)
{
    static const place places[] = { JOIN, SETUP, FIRST, LOSS, BACKWARD, SAVE, EVALUATION, LEAVING };
    scenario list[SCENARIOS];
    int n = 0;
    for (size_t k = 0; k < sizeof places / sizeof *places; k++, n++)
        list[n] = nth(n + 1, KILL, places[k]);
    for (int k = 0; k < 12; k++, n++)
        list[n] = nth(n, KILL, STEP);
    for (int k = 0; k < 6; k++, n++)
        list[n] = nth(n, KILL, EARLY);
    for (int k = 0; k < 4; k++, n++) {
        list[n] = nth(n, KILL, IN_SAVE);
        list[n].victim = 0; /* which writes */
        list[n].seed &= ~1u;
    }
    for (int k = 0; k < 6; k++, n++) { /* all of them write */
        list[n] = nth(n, KILL, IN_SAVE);
        list[n].mode = k % 3 == 0 ? list[n].mode : k % 3 == 1 ? PARTS : OWNERS;
        list[n].victim = k % list[n].processes;
        list[n].seed |= 1;
    }
    run_expecting(list, n, 3, look_failed);
}

static void test_killed_at_end(void **state)
{
    scenario list[3] = { nth(0, KILL, END), nth(1, KILL, END), nth(4, KILL, END) };
    run_expecting(list, 3, 3, look_died_at_end);
}

static void test_left_and_broken(void **state)
{
    static const place left[] = { JOIN, SETUP, FIRST, LOSS, BACKWARD, STEP, STEP, STEP, SAVE, EVALUATION, LEAVING };
    static const place counts[] = { SETUP, FIRST, SAVE, EVALUATION, LEAVING };
    static const place broken[] = { SETUP, LOSS, LOSS, LOSS, BACKWARD, BACKWARD, BACKWARD, EVALUATION };
    scenario list[SCENARIOS];
    int n = 0;
    for (size_t k = 0; k < sizeof left / sizeof *left; k++, n++)
        list[n] = nth(n + 2, EXIT, left[k]);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++, n++) {
        list[n] = nth(n, COUNT, counts[k]);
        list[n].ranks = 1; /* a wrong replica is found before the other processes are asked */
    }
    for (size_t k = 0; k < sizeof broken / sizeof *broken; k++, n++)
        list[n] = nth(n, ERROR, broken[k]);
    for (int k = 0; k < 4; k++, n++) { /* before backward's first sum over the ranks, in which the others wait */
        list[n] = nth(k, ERROR, BACKWARD);
        list[n].mode = SYNC;
        list[n].ranks = 1 + (k & 1);
    }
    list[n] = nth(n, ERROR, SAVE);
    list[n].seed &= ~1u;
    list[n++].victim = 0; /* which writes */
    list[n] = nth(n, ERROR, SAVE); /* all of them write */
    list[n].seed |= 1;
    list[n].victim = list[n].processes - 1, n++;
    run_expecting(list, n, 3, look_failed);
}

static void test_busy(void **state)
{
    scenario list[3] = { nth(0, BUSY, FIRST), nth(1, BUSY, LEAVING), nth(3, BUSY, SETUP) };
    run_expecting(list, 3, 3, look_well);
}

static void test_forked(void **state)
{
    if (!test_on_cpu())
        skip(); /* CUDA's own calls fail in a forked child, before any that reaches the group */
    scenario list[8];
    for (int k = 0; k < 8; k++)
        list[k] = nth(k, FORK, NOWHERE);
    run_expecting(list, 8, 3, look_well);
}

static void test_asked_to_stop(void **state)
{
    scenario list[8];
    for (int k = 0; k < 8; k++) {
        list[k] = nth(k, k & 4 ? TERM_ONE : TERM, NOWHERE);
        list[k].ranks = 1;
        list[k].mode = PER_RANK;
        list[k].delays = k & 1;
    }
    run_expecting(list, 8, 3, look_stopped);
}

/* --- nothing is left behind ------------------------------------------------------------------------------ */

static void test_nothing_left(void **state)
{
    for (double since = 0; processes_running(word) > 0 && test_wait(&since);)
        pause_us(20000); /* it is looked at all processes */
    assert_int_equal(processes_running(word), 0);
    const char *left = left_in_shm();
    if (left)
        fail_msg("/dev/shm/%s was left behind", left);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

int main(int count, char **words)
{
    const char *text = getenv("TREK_TEST_CHILD");
    self = words[0];
    if (text)
        return child(text, getenv("TREK_TEST_FILE"));
    seed = (uint32_t)test_seed();
    snprintf(word, sizeof word, "failures-of-%d", (int)getpid());
    if (!processes_launcher_there())
        return 77;
    launcher = processes_built("tools/trek-run");
    alarm(1100);
    left_own_shm();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_undisturbed),     cmocka_unit_test(test_delays),
        cmocka_unit_test(test_killed),          cmocka_unit_test(test_killed_at_end),
        cmocka_unit_test(test_left_and_broken), cmocka_unit_test(test_stopped_and_silent),
        cmocka_unit_test(test_forked),          cmocka_unit_test(test_busy),
        cmocka_unit_test(test_asked_to_stop),   cmocka_unit_test(test_nothing_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
