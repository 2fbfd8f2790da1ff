/* SPDX-License-Identifier: Apache-2.0 */
/* One timeline of several ranks: bounds of clocks against clocks whose difference is known, threads that share a timeline, and
 * processes with one each. */
#include <pthread.h>
#include <unistd.h>

#include "distributed/timeline.h"
#include "distributed/timeline_internal.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { RANKS = 3, MEETINGS = 20, EVENTS = 5000 };

/* --- clocks ----------------------------------------------------------------------------------------------- */

/* Ranks come at any time and leave at any time after the last one; both clocks tell it, one of them far ahead or behind. */
static void clocks_are_bound(void **state)
{
    for (uint32_t round = 0; round < 200; round++) {
        trek_clock_meeting first[MEETINGS], other[MEETINGS];
        int64_t ahead = (int64_t)(test_number(round, 0) * 1e15), now = 1000, least, most, before = INT64_MAX;
        for (int n = 1; n <= MEETINGS; n++) {
            uint32_t at = (uint32_t)n * 8;
            int64_t came[2] = { now + (int64_t)(fabs((double)test_number(round, at)) * 1e5),
                                now + (int64_t)(fabs((double)test_number(round, at + 1)) * 1e5) };
            int64_t met = came[0] > came[1] ? came[0] : came[1];
            int64_t left[2] = { met + (int64_t)(fabs((double)test_number(round, at + 2)) * 3e4),
                                met + (int64_t)(fabs((double)test_number(round, at + 3)) * 3e4) };
            first[n - 1] = (trek_clock_meeting){ came[0], left[0] };
            other[n - 1] = (trek_clock_meeting){ came[1] + ahead, left[1] + ahead };
            now = left[0] > left[1] ? left[0] : left[1];
            trek_clock_bound(first, other, n, &least, &most);
            assert_true(least <= ahead && ahead <= most);
            assert_true(most - least <= before); /* more meetings know no less */
            before = most - least;
        }
    }
}

/* --- ranks ------------------------------------------------------------------------------------------------ */

/* What rank 0 has of all: in order of ends, each rank's events, all of its own kind of place. */
static bool holds(trek_timeline *joined, int ranks, int64_t each)
{
    int64_t seen[16] = { 0 }, last = INT64_MIN;
    bool good = trek_timeline_count(joined) == ranks * each;
    trek_timeline_entry e;
    for (int64_t k = 0; good && trek_timeline_get(joined, k, &e); k++) {
        good = e.rank >= 0 && e.rank < ranks && e.end_ns >= last && e.value == e.rank;
        last = e.end_ns;
        seen[good ? e.rank : 0]++;
    }
    for (int r = 0; good && r < ranks; r++)
        good = seen[r] == each;
    return good;
}

typedef struct thread_rank {
    trek_comm *comm;
    trek_timeline *shared;
    bool good;
} thread_rank;

static void *thread_main(void *arg)
{
    thread_rank *t = arg;
    int rank = trek_comm_rank(t->comm);
    int64_t error = -1;
    trek_timeline *joined = trek_timeline_join(t->comm, rank == 1 ? NULL : t->shared, &error);
    t->good = error == 0 && (joined != NULL) == (rank == 0);
    if (joined) /* it was given twice */
        t->good = t->good && trek_timeline_count(joined) == 1 && trek_timeline_dropped(joined) == 1;
    trek_timeline_free(&joined);
    t->good = t->good && trek_error_status() == TREK_OK;
    return NULL;
}

static void threads_give_one_timeline(void **state)
{
    trek_comm *comms[RANKS];
    pthread_t threads[RANKS];
    thread_rank ranks[RANKS];
    trek_timeline *timeline = trek_timeline_new(&(trek_timeline_opts){ .capacity = 1 });
    trek_timeline_event(timeline, "dropped", 0);
    trek_timeline_event(timeline, "kept", 0);
    assert_int_equal(trek_comm_local(NULL, RANKS, comms), TREK_OK);
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (thread_rank){ .comm = comms[r], .shared = timeline };
        assert_int_equal(pthread_create(&threads[r], NULL, thread_main, &ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < RANKS; r++) {
        assert_true(ranks[r].good);
        trek_comm_free(&comms[r]);
    }
    trek_timeline_free(&timeline);
    REFUSED(trek_timeline_join(NULL, NULL, NULL), TREK_ERR_ARGUMENT, "communicator");
}

/* Process 0 notes its events, all meet, and then the others note theirs, which therefore stand behind them. */
static int play(const part *me)
{
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                                        .port = me->port, .token = "of this test alone" });
    trek_timeline *timeline = trek_timeline_new(NULL), *joined = NULL;
    int64_t error = -1;
    bool good = comm && timeline && (me->process == 0 || trek_comm_barrier(comm) == TREK_OK);
    for (int k = 0; good && k < EVENTS; k++)
        trek_timeline_event(timeline, "event", me->process);
    good = good && (me->process > 0 || trek_comm_barrier(comm) == TREK_OK);
    if (good)
        joined = trek_timeline_join(comm, timeline, &error);
    good = good && error == 0 && (joined != NULL) == (me->process == 0);
    if (joined) {
        trek_timeline_entry last;
        good = good && holds(joined, me->processes, EVENTS) && trek_timeline_get(joined, EVENTS - 1, &last) && last.rank == 0;
        REFUSED(trek_timeline_summary(joined, NULL), TREK_ERR_STATE, "");
        good = good && trek_timeline_save(joined, me->detail) == TREK_OK;
    }
    printf("%s %s\n", good ? "good" : "bad", trek_error());
    trek_timeline_free(&joined);
    trek_timeline_free(&timeline);
    trek_comm_free(&comm);
    return good ? 0 : 1;
}

static void processes_make_one_file(void **state)
{
    static world w;
    static char text[8 << 20];
    char path[64];
    snprintf(path, sizeof path, "/tmp/trek-job-timeline-%d.json", (int)getpid());
    processes_run_all(&w, RANKS, "join", path, -1, NULL);
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[n] = 0;
    if (file)
        fclose(file);
    unlink(path);
    for (int p = 0; p < RANKS; p++) {
        char name[48];
        snprintf(name, sizeof name, "\"name\":\"rank %d\"", p);
        if (w.code[p] != 0 || !strstr(text, name)) {
            processes_print(&w);
            fail();
        }
    }
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = { cmocka_unit_test(clocks_are_bound), cmocka_unit_test(threads_give_one_timeline),
                                        cmocka_unit_test(processes_make_one_file) };
    alarm(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
