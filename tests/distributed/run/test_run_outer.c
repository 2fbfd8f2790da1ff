/* SPDX-License-Identifier: Apache-2.0 */
/* Runs with an outer optimizer over real processes: all have the same parameters in the end, which are the optimum's, however
 * few bits travel, in however many fragments; and what is sent is counted. */
#include "distributed/comm/comm.h"
#include "nn/state_tensors.h"
#include "tensor/log.h"
#include "tests/distributed/run/line.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { EPOCHS = 60 };

/* "N-M-P...": ranks of a process, bits, fragments, policy, epochs. */
typedef struct way {
    int ranks, bits, fragments, policy, epochs;
} way;

static int play(const part *me)
{
    way w;
    if (sscanf(me->detail, "%d-%d-%d-%d-%d", &w.ranks, &w.bits, &w.fragments, &w.policy, &w.epochs) != 5)
        return 2;
    line_dtype = TREK_F32;
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                                        .port = me->port, .token = "sesame", .deadline_s = 20 });
    trek_dataset *data = line_dataset(false);
    trek_run_opts o = { .build_model = line_build, .train_step = line_squares, .dataset = data, .input = "x", .batch_size = BATCH,
                        .shuffle = true,
                        .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.05 }), .epochs = w.epochs, .seed = 7,
                        .policy = (trek_policy)w.policy, .transport = TREK_TRANSPORT_HOST,
                        .outer = &(trek_outer_opts){ .bits = w.bits, .fragments = w.fragments, .momentum = 0.5 },
                        .trainer = { .ranks = w.ranks, .comm = comm } };
    if (w.policy != TREK_POLICY_SYNC)
        o.trainer.anchor = o.trainer.max_anchor = 2;
    trek_run *run = comm ? trek_trainer_run(&o) : NULL;
    int64_t sent = 0, averages = 0;
    for (trek_epoch_metrics m; run && trek_run_next(run, &m);) {
        sent += m.bytes_sent;
        averages += m.averages;
    }
    trek_state *final = run ? trek_run_join(run) : NULL;
    if (!final) {
        printf("%s: %s\n", trek_status_name(trek_error_status()), trek_error());
        return 1;
    }
    double *values = test_read(trek_state_tensor(final, 0));
    printf("sent %d averages %d w %.17g %.17g %.17g\n", (int)sent, (int)averages, values[0], values[1], values[2]);
    free(values);
    trek_state_free(&final);
    trek_dataset_free(&data);
    trek_comm_free(&comm);
    return 0;
}

typedef struct told {
    int sent, averages;
    double w[FEATURES];
} told;

/* Of each process, all of which came to the same. */
static told run_way(int processes, const way *w)
{
    static world all;
    char detail[64];
    told first = { 0 };
    snprintf(detail, sizeof detail, "%d-%d-%d-%d-%d", w->ranks, w->bits, w->fragments, w->policy, w->epochs);
    processes_run_all(&all, processes, "run", detail, -1, NULL);
    for (int p = 0; p < processes; p++) {
        told t;
        const char *at = strstr(all.text[p], "sent ");
        if (all.code[p] != 0 || !at ||
            sscanf(at, "sent %d averages %d w %lf %lf %lf", &t.sent, &t.averages, &t.w[0], &t.w[1], &t.w[2]) != 5) {
            processes_print(&all);
            fail();
        }
        first = p ? first : t;
        assert_true(memcmp(t.w, first.w, sizeof t.w) == 0);
        assert_int_equal(t.averages, first.averages);
        assert_true(t.sent > 0);
    }
    return first;
}

static void test_optimum(void **state)
{
    static const way ways[] = { { 1, 32, 1, TREK_POLICY_SYNC, EPOCHS },    { 1, 8, 1, TREK_POLICY_CADENCE, EPOCHS },
                                { 2, 8, 2, TREK_POLICY_ASYNC, EPOCHS },    { 1, 4, 3, TREK_POLICY_CADENCE, EPOCHS },
                                { 2, 16, 5, TREK_POLICY_SYNC, EPOCHS },    { 1, 4, 1, TREK_POLICY_ASYNC, EPOCHS } };
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        told t = run_way(2 + (int)k % 2, &ways[k]);
        for (int i = 0; i < FEATURES; i++)
            if (!(fabs(t.w[i] - line_aim[i]) < 2e-2))
                fail_msg("way %d: w[%d] is %g instead of %g", (int)k, i, t.w[i], line_aim[i]);
    }
}

/* Three floats in an average of two processes, as a ring sends them: 12 bytes, in 16 bits 6; and 24 of weights. */
static void test_bytes(void **state)
{
    told whole = run_way(2, &(way){ 1, 32, 1, TREK_POLICY_SYNC, 2 }), half = run_way(2, &(way){ 1, 16, 1, TREK_POLICY_SYNC, 2 });
    assert_int_equal(whole.averages, half.averages);
    assert_int_equal(whole.sent, whole.averages * (12 + 24));
    assert_int_equal(half.sent, half.averages * (6 + 24));
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_optimum), cmocka_unit_test(test_bytes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
