/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of real processes that lose some of them and go on: who is left finds each other, in the old order, whoever dies. Deaths
 * at any moment, also of those who look for each other, are simulated (tests/simulation/scenario_regroup.c). */
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "distributed/comm/gloo/gloo.h"
#include "distributed/comm/regroup.h"
#include "distributed/control/control.h"
#include "distributed/system/socket.h"
#include "tests/support/left.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static void pause_us(long us) { nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000 }, NULL); }

/* --- a process -------------------------------------------------------------------------------------------- */

/* "call=40,in=500": the number behind a name; -1: it is not there. */
static long number_of(const part *me, const char *name)
{
    const char *at = me->detail;
    size_t size = strlen(name);
    while (at && (strncmp(at, name, size) != 0 || at[size] != '='))
        at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
    return at ? atol(at + size + 1) : -1;
}

static void *die_later(void *us)
{
    pause_us((long)(intptr_t)us);
    kill(getpid(), SIGKILL);
    return NULL;
}

static bool is_dying; /* it does not come to the end before: the others' last call waits for it */

/* Whether call i is the one behind a name, or the first after it: who was behind when another one died goes on where the others
 * are. */
static bool is_due(const part *me, const char *name, int64_t i)
{
    long at = number_of(me, name);
    return at >= 0 && i >= at;
}

static void die_in(long us)
{
    pthread_t thread;
    is_dying = true;
    if (us == 0)
        kill(getpid(), SIGKILL);
    pthread_create(&thread, NULL, die_later, (void *)(intptr_t)us);
    pthread_detach(thread);
}

/* Everybody's number, in rank order; false: the group has ended. */
static bool call(trek_comm *comm, int number, int64_t at, int64_t *most)
{
    struct { int64_t number, at; } own = { number, at }, all[PROCESSES];
    double one = 1;
    if (trek_comm_all_reduce_scalar(comm, &one, TREK_REDUCTION_SUM) != TREK_OK ||
        trek_comm_gather_bytes(comm, &own, sizeof own, all) != TREK_OK)
        return false;
    int world = trek_comm_world_size(comm);
    if (one != world || all[trek_comm_rank(comm)].number != number)
        printf("wrong: %g of %d\n", one, world);
    for (int r = 1; r < world; r++)
        if (all[r].number <= all[r - 1].number)
            printf("wrong order\n");
    for (int r = 0; r < world; r++)
        *most = all[r].at > *most ? all[r].at : *most;
    return true;
}

/* Listens at the job's address. Returns -1 while somebody else does. */
static int take_port(const part *me)
{
    int fd = -1, bound;
    trek_error_clear();
    bool taken = trek_socket_listen(me->address, me->port, &fd, &bound) == TREK_OK;
    trek_error_clear();
    return taken ? fd : -1;
}

/* Returns whether the process admits joiners before long, once the port is free. */
static bool admits_in_the_end(const part *me, trek_regroup *regroup, const trek_comm *comm)
{
    for (int k = 0; k < 6000; k++) {
        trek_regroup_joiners(regroup, comm);
        int fd = take_port(me);
        if (fd < 0)
            return true;
        trek_socket_close(fd);
        pause_us(10000);
    }
    return false;
}

static trek_comm *again(const part *me, trek_regroup *regroup, trek_comm *comm)
{
    if (number_of(me, "slow") >= 0) /* alive, and busy */
        pause_us(number_of(me, "slow"));
    int fd = -1;
    while (number_of(me, "port") >= 0 && (fd = take_port(me)) < 0) /* as if the system had not released it yet */
        pause_us(1000);
    trek_error_clear();
    double start = processes_now();
    long least = number_of(me, "least");
    trek_comm *next = trek_regroup_meet(regroup, comm, least > 0 ? (int)least : 1);
    if (next)
        printf("left %d rank %d lost %s after %.2f s\n", trek_comm_world_size(next), trek_comm_rank(next),
               trek_regroup_lost(regroup), processes_now() - start);
    if (fd >= 0)
        trek_socket_close(fd);
    if (next && fd >= 0 && !admits_in_the_end(me, regroup, next))
        printf("wrong: nobody admits\n");
    trek_comm_free(&comm);
    return next;
}

static int play(const part *me)
{
    int threads = left_threads() + left_by_engine(processes_engine()), files = left_files();
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .engine = processes_engine(), .rank = me->process,
                                                        .world_size = me->processes, .address = me->address, .port = me->port,
                                                        .token = "of the test", .deadline_s = 60 });
    trek_regroup *regroup = comm ? trek_regroup_new(comm, 0) : NULL;
    int64_t i = 0;
    bool stopped = false;
    while (regroup && comm && i < 300) {
        if (is_due(me, "call", i) && !is_dying)
            die_in(number_of(me, "in") > 0 ? number_of(me, "in") : 0);
        if (is_due(me, "stop", i) && !stopped) {
            stopped = true;
            kill(getpid(), SIGSTOP);
        }
        while (is_dying && i == 299)
            pause_us(10000);
        if (i == 299 && number_of(me, "holds") >= 0) {
            printf("holds\n");
            processes_await_go();
        }
        if (is_due(me, "abort", i))
            trek_comm_abort(comm, "enough");
        if (call(comm, me->process, i, &i))
            i++;
        else if (trek_regroup_may(comm))
            comm = again(me, regroup, comm);
        else
            break;
    }
    printf("%s calls %d world %d rank %d: %s\n", i == 300 && comm ? "done" : "ended", (int)i, comm ? comm->world : 0,
           comm ? comm->rank : -1, trek_error());
    bool good = i == 300 && comm;
    trek_regroup_free(&regroup);
    trek_comm_free(&comm);
    bool dies = number_of(me, "call") >= 0; /* by a thread of the test */
    int left = dies ? 0 : left_threads_settle(threads);
    if (left > threads) {
        printf("threads are left: %d of %d\n", left, threads);
        good = false;
    }
    int more = left_files() - files; /* the window of shared memory stays as long as the process */
    if (more > (strcmp(processes_engine(), "shared") == 0 ? 1 : 8))
        printf("files are left: %d\n", more);
    return good ? 0 : 1;
}

/* --- the tests ------------------------------------------------------------------------------------------------ */

static void assert_left(const world *w, int expected)
{
    int left = 0;
    for (int p = 0; p < w->n; p++) {
        bool dies = w->code[p] == -SIGKILL && !strstr(w->text[p], "done calls 300");
        char rank[64];
        snprintf(rank, sizeof rank, "world %d rank %d:", expected, left);
        WANT(w, dies || ((w->code[p] == 0 || w->code[p] == -SIGKILL) && strstr(w->text[p], "done calls 300") &&
                         strstr(w->text[p], rank) && !strstr(w->text[p], "wrong") && !strstr(w->text[p], "are left: ")));
        left += !dies;
    }
    assert_int_equal(left, expected);
}

/* Whoever it is, before, within and after a call: after the first, by which all have their rendezvous points. */
static void test_one(void **state)
{
    static world w;
    for (int n = 2; n <= 4; n++)
        for (int victim = 0; victim < n; victim++) {
            const char *details[PROCESSES] = { NULL };
            char detail[64];
            snprintf(detail, sizeof detail, "call=%d,in=%d", 1 + victim * 50, (n + victim) % 3 * 130);
            details[victim] = detail;
            processes_run_each(&w, n, "regroup", details);
            assert_left(&w, n - 1);
        }
}

static void test_several(void **state)
{
    static world w;
    static const char *const rows[][5] = {
        { "call=20", "call=20", NULL, NULL, NULL },        { NULL, "call=20", NULL, "call=20,in=50", NULL },
        { "call=10", "call=100", "call=200", NULL, NULL }, { NULL, NULL, "call=200", "call=100", "call=10" },
        { "call=1", "call=2", "call=3", "call=4", NULL },
    };
    static const int left[] = { 3, 3, 2, 2, 1 };
    for (size_t k = 0; k < sizeof left / sizeof *left; k++) {
        processes_run_each(&w, 5, "regroup", rows[k]);
        assert_left(&w, left[k]);
    }
}

/* The port of the process that has admitted joiners is free only later. */
static void test_late_port(void **state)
{
    static world w;
    processes_run_each(&w, 2, "regroup", (const char *[]){ "call=20", "port=1" });
    assert_left(&w, 1);
}

/* One is busy when the others look for it: it is waited for, as host or as guest. */
static void test_busy(void **state)
{
    static world worlds[3];
    for (int slow = 0; slow < 3; slow += 2) { /* both wait, most of the time */
        processes_init(&worlds[slow], 3);
        for (int p = 0; p < 3; p++)
            processes_start(&worlds[slow], p, "regroup", p == slow ? "slow=1500000" : p == 1 ? "call=30" : "-");
    }
    for (int slow = 0; slow < 3; slow += 2) {
        processes_finish(&worlds[slow], -1);
        assert_left(&worlds[slow], 2);
    }
}

static void test_too_few(void **state)
{
    static world w;
    static const char *const details[] = { "least=3", "call=30,least=3", "least=3" };
    processes_run_each(&w, 3, "regroup", details);
    for (int p = 0; p < 3; p++) {
        bool good = p == 1 ? w.code[p] == -SIGKILL
                           : w.code[p] == 1 && strstr(w.text[p], "2 of 3 processes are left; .min_processes is 3");
        WANT(&w, good);
    }
}

/* What a program does is no death. */
static void test_abort(void **state)
{
    static world w;
    static const char *const details[] = { NULL, "abort=30", NULL };
    processes_run_each(&w, 3, "regroup", details);
    for (int p = 0; p < 3; p++) {
        WANT(&w, w.code[p] == 1 && strstr(w.text[p], "enough") && !strstr(w.text[p], "left "));
    }
}

/* One that stood still is left behind, and told so when it goes on: be it a guest or the host that all would look for. */
static void test_stopped(void **state)
{
    static world worlds[3];
    if (strcmp(processes_engine(), "gloo") == 0) /* the control channel's, and half a minute */
        skip();
    for (int stopped = 0; stopped < 3; stopped += 2) { /* both wait, most of the time */
        processes_init(&worlds[stopped], 3);
        for (int p = 0; p < 3; p++)
            processes_start(&worlds[stopped], p, "regroup", p == stopped ? "stop=30" : "holds=1");
    }
    for (int stopped = 0; stopped < 3; stopped += 2) {
        world *w = &worlds[stopped];
        for (int p = 0; p < 3; p++) /* they have gone on without it, and are still there */
            assert_true(p == stopped || processes_await(w, p, "holds\n"));
        kill(w->pid[stopped], SIGCONT);
        processes_await(w, stopped, "ended calls ");
        for (int p = 0; p < 3; p++)
            processes_go(w, p);
        processes_finish(w, -1);
        for (int p = 0; p < 3; p++) {
            WANT(w, p == stopped ? w->code[p] == 1 && strstr(w->text[p], "continued without") : w->code[p] == 0 &&
                 strstr(w->text[p], "world 2") != NULL);
        }
    }
}

/* A tree of gathers in the old group and in the new one. */
static void test_many(void **state)
{
    static world w;
    const char *details[PROCESSES] = { [5] = "call=30", [11] = "call=30", [0] = "call=60" };
    processes_run_each(&w, 18, "regroup", details);
    assert_left(&w, 15);
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    char why[256];
    if (strcmp(processes_engine(), "gloo") == 0 && !trek_comm_gloo_there(why, sizeof why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const struct CMUnitTest engine[] = { /* who finds whom, in the others, is the same for every engine */
        cmocka_unit_test(test_one), cmocka_unit_test(test_several), cmocka_unit_test(test_many),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),     cmocka_unit_test(test_several), cmocka_unit_test(test_busy),
        cmocka_unit_test(test_late_port), cmocka_unit_test(test_too_few), cmocka_unit_test(test_abort),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_many),
    };
    bool all = strcmp(processes_engine(), "gloo") != 0 || test_long();
    return all ? cmocka_run_group_tests(tests, NULL, NULL) : cmocka_run_group_tests(engine, NULL, NULL);
}
