/* SPDX-License-Identifier: Apache-2.0 */
/* Runs in grains to which processes come within an epoch: in the place of others that have died, or as newcomers that were not in
 * the job before. All that get to the end have the bits and the metrics of one process that runs alone, and nobody builds its
 * model again. An epoch has three steps here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/comm/gloo/gloo.h"
#include "tests/distributed/grains/running.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static const int models[] = { MLP, CONV_AND_BATCH_NORM, LSTM, DROPOUT_AND_RECOMPUTATION };

/* Returns how often the first process that lives has built its model. */
static int expect(const char *detail, const role *roles)
{
    outcome expected = running_alone(detail);
    return running_expect(detail, roles, &expected, NULL);
}

static void expect_kept(const char *detail, const role *roles)
{
    int ranks = dying_number(detail, "ranks=", 1), built = expect(detail, roles);
    if (built != ranks)
        fail_msg("%s: a model was built %d times for %d ranks", detail, built, ranks);
}

/* It comes before the second and the third step of an epoch, and before the first one. */
static void one_comes_at_any_step(void **state)
{
    for (int k = 0; k < 4; k++)
        for (int waits = k % 2; waits < 4; waits += test_short() ? 2 : 1) {
            char detail[128];
            snprintf(detail, sizeof detail, "model=%d,of=2,waits=%d,ranks=%d", models[k], waits, 1 + waits % 2);
            expect_kept(detail, (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new"), { 0 } });
        }
}

static void one_dies_and_comes_again(void **state)
{
    for (int k = 0; k < 4; k++) {
        char detail[128];
        snprintf(detail, sizeof detail, "model=%d,waits=%d,accumulate=%d,ranks=%d%s", models[k], k % 2 ? 3 : 1, k % 3, 1 + k % 2,
                 k > 1 ? ",clipped" : "");
        expect_kept(detail, k % 2 ? (const role[]){ DIES("at=grain:2"), LIVES("-"), LIVES("-"), LIVES("as=0"), { 0 } }
                                  : (const role[]){ LIVES("-"), DIES("at=sync:0"), LIVES("-"), LIVES("as=1"), { 0 } });
    }
}

/* Several at once, one after the other, and until none is left of those with which it began. */
static void several_come(void **state)
{
    expect_kept("model=1,of=2,waits=1,again=1", (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new"),
                                                               LIVES("as=new,turn=1,ranks=3"), { 0 } });
    expect_kept("model=0,of=2,waits=0,again=3", (const role[]){ LIVES("-"), DIES("at=sync:1"), LIVES("as=new"),
                                                               LIVES("as=1,turn=1"), { 0 } });
    expect_kept("model=3,of=2,waits=0,again=3", (const role[]){ LIVES("-"), LIVES("-"), DIES("as=new,at=sync:1"),
                                                               LIVES("as=new,after=2,turn=1"), { 0 } });
    expect_kept("model=5,of=2,waits=1", (const role[]){ DIES("at=sync:4"), DIES("at=sync:3"), LIVES("as=new"), { 0 } });
}

/* Those that let one in, and one that is let in. */
static void they_die_while_one_comes(void **state)
{
    expect_kept("model=0,of=3,waits=1", (const role[]){ LIVES("-"), LIVES("-"), DIES("at=arrival:0"), LIVES("as=new"), { 0 } });
    expect_kept("model=1,of=3,waits=1", (const role[]){ DIES("at=arrival:0"), LIVES("-"), LIVES("-"), LIVES("as=new"), { 0 } });
    expect_kept("model=3,of=3,waits=3", (const role[]){ LIVES("-"), LIVES("-"), DIES("at=take_over:0"), LIVES("as=new"), { 0 } });
    expect_kept("model=5,of=2,waits=1", (const role[]){ LIVES("-"), LIVES("-"), DIES("as=new,at=arrival:0"), { 0 } });
    expect_kept("model=0,of=2,waits=0", (const role[]){ LIVES("-"), LIVES("-"), DIES("as=new,at=grain:0"), { 0 } });
}

/* After a death outside a step the run is built again by those that are left, also if this is one. It can be joined then. */
static void one_comes_to_a_run_that_was_built_again(void **state)
{
    assert_int_equal(expect("model=1,of=2,waits=3", (const role[]){ LIVES("-"), DIES("at=evaluation:0"), LIVES("as=1"), { 0 } }),
                     2);
    assert_int_equal(expect("model=3,of=3,waits=4",
                            (const role[]){ LIVES("-"), LIVES("-"), DIES("at=evaluation:0"), LIVES("as=2"),
                                                                   { 0 } }), 2);
    assert_int_equal(expect("model=0,of=2,waits=1", (const role[]){ LIVES("-"), LIVES("-"), DIES("as=new,at=evaluation:0"),
                                                                   { 0 } }), 2);
}

/* It has the rate of the others, which .lr_scale has multiplied by their number. */
static void it_has_the_rate_of_the_others(void **state)
{
    expect_kept("model=0,waits=1,scaled", (const role[]){ LIVES("-"), LIVES("-"), LIVES("-"), LIVES("as=new"), { 0 } });
    expect_kept("model=1,waits=1,scaled,schedule",
                (const role[]){ LIVES("-"), LIVES("-"), DIES("at=sync:0"), LIVES("as=2"), { 0 } });
}

static void it_gets_its_part_of_a_divided_state(void **state)
{
    expect_kept("model=0,of=2,waits=1,sharded", (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new"), { 0 } });
    expect_kept("model=1,waits=1,again=3,sharded", (const role[]){ LIVES("-"), DIES("at=sync:0"), LIVES("-"), LIVES("as=1"),
                                                                  LIVES("as=new,turn=1"), { 0 } });
    expect_kept("model=3,of=2,waits=0,sharded", (const role[]){ LIVES("-"), DIES("at=sync:3"), LIVES("as=new"), { 0 } });
    expect("model=1,of=2,waits=3,sharded", (const role[]){ LIVES("-"), DIES("at=evaluation:0"), LIVES("as=1"), { 0 } });
    expect("model=0,of=2,waits=3,sharded,divided=1", (const role[]){ LIVES("-"), DIES("at=evaluation:0"), LIVES("as=1"), { 0 } });
    expect_kept("model=1,of=2,waits=1,sharded,divided=1", (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new"), { 0 } });
    expect_kept("model=0,of=2,waits=1,sharded,divided=2", (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new"), { 0 } });
    expect_kept("model=1,waits=1,again=3,sharded,divided=2", (const role[]){ LIVES("-"), DIES("at=sync:0"), LIVES("-"),
                                                                             LIVES("as=1"), LIVES("as=new,turn=1"), { 0 } });
    expect("model=3,of=2,waits=3,sharded,divided=2", (const role[]){ LIVES("-"), DIES("at=evaluation:0"), LIVES("as=1"), { 0 } });
    expect("model=0,of=3,waits=1,sharded", (const role[]){ LIVES("-"), LIVES("-"), DIES("at=evaluation:0"), LIVES("as=new"),
                                                          { 0 } });
}

/* The newcomer is the one that is left, and writes what is due. */
static void it_writes_checkpoints(void **state)
{
    char detail[200];
    char folder[] = "/tmp/trek-run-arrivals-XXXXXX";
    assert_non_null(mkdtemp(folder));
    snprintf(detail, sizeof detail, "model=1,of=2,waits=1,checkpoints=%s", folder);
    expect_kept(detail, (const role[]){ DIES("at=sync:4"), DIES("at=sync:4"), LIVES("as=new"), { 0 } });
    running_expect_checkpoint(folder);
}

/* Over a network, and from a machine that does not share memory with the others. */
static void over_gloo_too(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why))
        skip();
    expect_kept("model=0,of=2,waits=1,gloo", (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new"), { 0 } });
    if (arriving_machines())
        expect_kept("model=3,of=2,waits=1", (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new,apart"), { 0 } });
}

/* It is not let in, or leaves before it has trained, and the others go on as if it had not come. */
static void one_that_does_not_fit_disturbs_nobody(void **state)
{
    static const struct {
        const char *how, *says;
    } cases[] = {
        { "as=new,model=3", "*TREK_ERR_ARGUMENT: comm_init: this process cannot join the job: its model*" },
        { "as=new,grain=2", "*TREK_ERR_ARGUMENT: comm_init: this process cannot join the job: its model*" },
        { "as=new,batch=19", "*TREK_ERR_ARGUMENT: comm_init: this process cannot join the job: its model*" },
        { "as=new,clipped", "*TREK_ERR_ARGUMENT: comm_init: this process cannot join the job: its model*" },
        { "as=new,other-seed", "*TREK_ERR_ARGUMENT: comm_init: this process cannot join the job: its model*" },
        { "as=new,least=0", "*TREK_ERR_STATE: *TREK_JOIN is set in the environment*" },
        { "as=new,epoch-fails", "*TREK_ERR_CALLBACK: trainer_run: .on_epoch: it failed*" },
        { "as=new,frozen", "*TREK_ERR_STATE: graph_train_batch: graph: its optimizer, schedule, clipping*" },
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++)
        expect_kept("model=0,of=2,waits=1", (const role[]){ LIVES("-"), LIVES("-"),
                                                            { .text = cases[k].how, .fails = cases[k].says },
                                                           { 0 } });
}

/* Who dies, who comes, as whom and with how many ranks, as it is drawn. TREK_TEST_DRAWS says how often. */
static void drawn_arrivals_do_not_show(void **state)
{
    static const char *const spans[] = { "sync", "reduce", "optimizer", "loader_wait", "evaluation" };
    const char *draws = getenv("TREK_TEST_DRAWS");
    int n = draws ? atoi(draws) : test_short() ? 3 : 8;
    for (int k = 0; k < n; k++) {
        uint64_t seed = test_seed() * 1000003 + (uint64_t)k + 4700;
        char detail[240], texts[3][96], living[4][96];
        role roles[7] = { { 0 } };
        int processes = 2 + (int)test_draw(&seed, 2), victim = (int)test_draw(&seed, (uint64_t)processes), at = processes;
        bool dies = test_draw(&seed, 3) > 0, two = test_draw(&seed, 2), accumulates = test_draw(&seed, 3) == 0;
        int waits = accumulates ? 1 : 1 + (int)test_draw(&seed, 3); /* two epochs have four steps at least */
        snprintf(detail, sizeof detail, "model=%d,grain=%d,batch=%d,waits=%d,again=%d,accumulate=%d,of=%d,ranks=%d%s",
                 models[test_draw(&seed, 4)], 1 + (int)test_draw(&seed, 4), 10 + (int)test_draw(&seed, 11), waits,
                 two ? waits + (int)test_draw(&seed, 2) : -1, accumulates ? 2 : 0, processes,
                 1 + (int)test_draw(&seed, 2), test_draw(&seed, 2) ? ",clipped" : "");
        dying_draw_ways(&seed, detail, sizeof detail);
        for (int p = 0; p < processes; p++) {
            strcpy(living[p], "-");
            dying_draw_stop(&seed, living[p], sizeof living[p]);
            roles[p] = (role)LIVES(living[p]);
        }
        int span = (int)test_draw(&seed, 5);
        snprintf(texts[2], sizeof texts[2], "at=%s:%d", spans[span], (int)test_draw(&seed, waits > 1 ? 2 : 1));
        if (dies)
            roles[victim] = (role)DIES(texts[2]);
        for (int c = 0; c <= two; c++) {
            bool again = test_draw(&seed, 4) == 0, in_its_place = dies && c == 0 && span < 4 && test_draw(&seed, 2);
            char who[8];
            snprintf(who, sizeof who, in_its_place ? "%d" : "new", victim);
            snprintf(texts[c], sizeof texts[c], "as=%s,turn=%d,ranks=%d%s", who, c, 1 + (int)test_draw(&seed, 3),
                     !again ? "" : test_draw(&seed, 2) ? ",at=arrival:0" : ",at=sync:0");
            roles[at++] = (role){ .text = texts[c], .dies = again };
        }
        expect(detail, roles);
    }
}

int main(void)
{
    static part me;
    if (processes_part(&me))
        return running_play(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(one_comes_at_any_step, clear_error),
        cmocka_unit_test_setup(one_dies_and_comes_again, clear_error),
        cmocka_unit_test_setup(several_come, clear_error),
        cmocka_unit_test_setup(they_die_while_one_comes, clear_error),
        cmocka_unit_test_setup(one_comes_to_a_run_that_was_built_again, clear_error),
        cmocka_unit_test_setup(it_has_the_rate_of_the_others, clear_error),
        cmocka_unit_test_setup(it_gets_its_part_of_a_divided_state, clear_error),
        cmocka_unit_test_setup(it_writes_checkpoints, clear_error),
        cmocka_unit_test_setup(over_gloo_too, clear_error),
        cmocka_unit_test_setup(one_that_does_not_fit_disturbs_nobody, clear_error),
        cmocka_unit_test_setup(drawn_arrivals_do_not_show, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
