/* SPDX-License-Identifier: Apache-2.0 */
/* The sums that ranks and processes exchange inside a layer: bits, failures, late ones. */
#include <pthread.h>
#include <unistd.h>

#include "distributed/ranks.h"
#include "distributed/team/rank_sums.h"
#include "tensor/rank_context.h"
#include "tests/distributed/team/sync_net.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { WORLD = 5, COUNT = 37, ROUNDS = 50 };

typedef struct sums_test {
    trek_rank_sums *sums[2];   /* of one process, or of two */
    int per_process;
    bool goes_back;            /* through the run before */
    bool takes_part[WORLD];
    int fails_at[WORLD];       /* the round in which a rank fails; -1: leaves without a word; 0: never */
    int counts_differ;         /* the rank that comes with one number fewer in round 3; 0: none */
    int late;                  /* the rank that sleeps in round 3 */
    int sleep_ms;
    trek_status results[WORLD];
    int64_t waited[WORLD];
    double last[WORLD][COUNT];
} sums_test;

static trek_status make_sums(sums_test *t, int rank)
{
    for (int round = 1; round <= ROUNDS; round++) {
        if (t->fails_at[rank] == round)
            return trek_fail(TREK_ERR_STATE, "rank %d was told to fail", rank);
        if (t->fails_at[rank] == -round)
            return TREK_OK;
        if (t->late == rank && t->sleep_ms && round == 3)
            usleep((useconds_t)t->sleep_ms * 1000);
        double *values = t->last[rank];
        for (int k = 0; k < COUNT; k++)
            values[k] = test_number(60 + (uint32_t)rank, (uint32_t)(round * COUNT + k)) * pow(10, k % 7);
        int64_t count = t->counts_differ == rank && rank > 0 && round == 3 ? COUNT - 1 : COUNT;
        const trek_rank_collectives *ranks = trek_rank_here.collectives;
        trek_status status = ranks->sum(values, count, ranks->arg);
        if (status != TREK_OK)
            return status;
    }
    return TREK_OK;
}

static trek_status sums_rank(int rank, void *arg)
{
    sums_test *t = arg;
    if (!t->takes_part[rank])
        return TREK_OK;
    trek_rank_sums *sums = t->sums[rank / t->per_process];
    int64_t before = trek_rank_here.waited_ns;
    trek_rank_sums_enter(sums, rank % t->per_process);
    t->results[rank] = make_sums(t, rank);
    trek_rank_sums_leave(sums, rank % t->per_process, t->results[rank]);
    t->waited[rank] = trek_rank_here.waited_ns - before;
    return t->results[rank];
}

static trek_status run_sums(trek_ranks *ranks, sums_test *t)
{
    bool of_process[WORLD];
    for (int p = 0; p < 2 && t->sums[p]; p++) {
        for (int r = 0; r < t->per_process; r++)
            of_process[r] = p * t->per_process + r < WORLD && t->takes_part[p * t->per_process + r];
        trek_rank_sums_begin(t->sums[p], of_process, t->sums[1] != NULL);
        if (t->goes_back)
            trek_rank_sums_goes_back(t->sums[p]);
    }
    return trek_ranks_run(ranks, sums_rank, t);
}

/* What the last round must have come to, added in rank order, within processes first. */
static void expect_sums(const sums_test *t)
{
    for (int k = 0; k < COUNT; k++) {
        double all = 0;
        for (int p = 0; p < 2 && t->sums[p]; p++) {
            double sum = 0;
            bool first = true;
            for (int r = p * t->per_process; r < (p + 1) * t->per_process && r < WORLD; r++) {
                if (!t->takes_part[r])
                    continue;
                double value = test_number(60 + (uint32_t)r, (uint32_t)(ROUNDS * COUNT + k)) * pow(10, k % 7);
                sum = first ? value : sum + value;
                first = false;
            }
            all = p ? all + sum : sum;
        }
        for (int r = 0; r < WORLD; r++)
            if (t->takes_part[r])
                assert_true(t->last[r][k] == all);
    }
}

static void sums_in_rank_order(void **state)
{
    trek_ranks *ranks = trek_ranks_new(NULL, WORLD);
    sums_test t = { .per_process = WORLD, .sums = { trek_rank_sums_new(WORLD, false) } };
    assert_non_null(ranks);
    assert_non_null(t.sums[0]);
    for (int set = 0; set < 1 << WORLD; set += 3) {
        int n = 0;
        for (int r = 0; r < WORLD; r++)
            n += t.takes_part[r] = set >> r & 1;
        if (n < 2)
            continue;
        assert_int_equal(run_sums(ranks, &t), TREK_OK);
        expect_sums(&t);
    }
    trek_rank_sums_free(&t.sums[0]);
    trek_ranks_free(&ranks);
}

static void who_is_alone_makes_none(void **state)
{
    trek_rank_sums *sums = trek_rank_sums_new(3, false);
    trek_rank_sums_begin(sums, (bool[]){ false, true, false }, false);
    for (int rank = 0; rank < 3; rank++) {
        trek_rank_sums_enter(sums, rank);
        assert_null(trek_rank_here.collectives);
        trek_rank_sums_leave(sums, rank, TREK_OK);
    }
    trek_rank_sums_begin(sums, (bool[]){ true, true, false }, false);
    trek_rank_sums_enter(sums, 2);
    assert_null(trek_rank_here.collectives);
    trek_rank_sums_enter(sums, 1);
    assert_non_null(trek_rank_here.collectives);
    trek_rank_sums_leave(sums, 1, TREK_OK);
    assert_null(trek_rank_here.collectives);
    trek_rank_sums_free(&sums);
}

static sums_test fresh(trek_rank_sums *sums)
{
    return (sums_test){ .per_process = WORLD, .sums = { sums }, .takes_part = { true, true, false, true, true } };
}

static void failures_wake_the_others(void **state)
{
    trek_ranks *ranks = trek_ranks_new(NULL, WORLD);
    trek_rank_sums *sums = trek_rank_sums_new(WORLD, false);
    static const int victims[] = { 0, 1, 3, 4 };
    for (int k = 0; k < 12; k++) {
        int victim = victims[k % 4];
        char who[32];
        sums_test t = fresh(sums);
        t.fails_at[victim] = 1 + 7 * (k / 4);
        snprintf(who, sizeof who, "rank %d: rank %d was told", victim, victim);
        FAILS(run_sums(ranks, &t), TREK_ERR_STATE, who);
        for (int r = 0; r < WORLD; r++)
            assert_int_equal(t.results[r], r == victim ? TREK_ERR_STATE : t.takes_part[r] ? TREK_ERR_PEER : TREK_OK);
        t = fresh(sums); /* and works again */
        assert_int_equal(run_sums(ranks, &t), TREK_OK);
        expect_sums(&t);
        t.fails_at[victim] = -5;
        assert_int_equal(run_sums(ranks, &t), TREK_ERR_COMM);
        snprintf(who, sizeof who, "rank %d ended after 4 sums", victim);
        expect_error(TREK_ERR_COMM, who);
    }
    sums_test t = fresh(sums);
    t.counts_differ = 3;
    FAILS(run_sums(ranks, &t), TREK_ERR_COMM, "rank 0 comes with 37 numbers, rank 3 with 36");
    trek_rank_sums_free(&sums);
    trek_ranks_free(&ranks);
}

static void late_ranks(void **state)
{
    trek_ranks *ranks = trek_ranks_new(NULL, WORLD);
    trek_rank_sums *sums = trek_rank_sums_new(WORLD, false);
    sums_test t = fresh(sums);
    t.late = 3, t.sleep_ms = 500;
    assert_int_equal(run_sums(ranks, &t), TREK_OK);
    expect_sums(&t);
    assert_true(t.waited[0] > 250000000 && t.waited[1] > 250000000 && t.waited[3] < 250000000); /* those who waited know it */
    trek_rank_sums_set_deadline(sums, 50000000);
    t.sleep_ms = 300;
    FAILS(run_sums(ranks, &t), TREK_ERR_TIMEOUT, "rank 3 did not come within 0.05 s");
    assert_int_equal(t.results[3], TREK_ERR_TIMEOUT);
    trek_rank_sums_free(&sums);
    trek_ranks_free(&ranks);
}

/* Two processes, each a thread for its rank here, of 3 and 2 ranks. */
static void between_processes(void **state)
{
    trek_ranks *ranks = trek_ranks_new(NULL, WORLD);
    trek_comm *comms[2];
    sums_test t = { .per_process = 3, .sums = { trek_rank_sums_new(3, false), trek_rank_sums_new(3, false) },
                    .takes_part = { true, true, true, true, true } };
    assert_int_equal(trek_comm_local(NULL, 2, comms), TREK_OK);
    for (int p = 0; p < 2; p++)
        trek_rank_sums_set_comm(t.sums[p], comms[p]);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(run_sums(ranks, &t), TREK_OK);
        expect_sums(&t);
        t.takes_part[4] = false; /* the second process has one rank now, which still meets the first's */
        t.takes_part[round] = round == 2;
    }
    for (int r = 0; r < WORLD; r++) {
        t.takes_part[r] = true;
        t.fails_at[r] = r == 1 ? 9 : 0;
    }
    assert_int_equal(run_sums(ranks, &t), TREK_ERR_STATE); /* ends the sums of the other process, too */
    expect_error(TREK_ERR_STATE, "rank 1 was told to fail");
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(t.results[r], r == 1 ? TREK_ERR_STATE : r < 3 ? TREK_ERR_PEER : TREK_ERR_CANCELLED);
    for (int p = 0; p < 2; p++)
        trek_comm_free(&comms[p]);
    assert_int_equal(trek_comm_local(NULL, 2, comms), TREK_OK);
    for (int p = 0; p < 2; p++)
        trek_rank_sums_set_comm(t.sums[p], comms[p]);
    t.fails_at[1] = 0;
    assert_int_equal(run_sums(ranks, &t), TREK_OK);
    t.goes_back = true; /* the other process waits for the sums that go back, of which this one makes none */
    for (int r = 0; r < 3; r++)
        t.fails_at[r] = 1;
    assert_int_equal(run_sums(ranks, &t), TREK_ERR_STATE);
    for (int r = 3; r < WORLD; r++)
        assert_int_equal(t.results[r], TREK_ERR_CANCELLED);
    for (int p = 0; p < 2; p++) {
        trek_rank_sums_free(&t.sums[p]);
        trek_comm_free(&comms[p]);
    }
    trek_ranks_free(&ranks);
}

int main(void)
{
    setenv("TREK_CACHE", "off", 1); /* so that each allocation can fail */
    if (test_allocator_use() != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(sums_in_rank_order, begin_test), cmocka_unit_test_setup(who_is_alone_makes_none, begin_test),
        cmocka_unit_test_setup(failures_wake_the_others, begin_test), cmocka_unit_test_setup(late_ranks, begin_test),
        cmocka_unit_test_setup(between_processes, begin_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
