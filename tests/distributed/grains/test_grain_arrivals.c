/* SPDX-License-Identifier: Apache-2.0 */
/* Real processes that train in grains, in a loop of their own: some die, and others come in their place and train with those that
 * are left. All that get to the end have the bits of one process that trains alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/dataset.h"
#include "distributed/arrivals.h"
#include "distributed/comm/gloo/gloo.h"
#include "graph/graph_internal.h"
#include "nn/module_tree.h"
#include "optim/optimizers.h"
#include "tests/distributed/grains/arriving.h"
#include "tests/distributed/grains/grain_runs.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* With every model and optimizer. */
static void one_dies_and_comes_again(void **state)
{
    for (int k = 0; k < MODELS; k++) {
        char detail[128];
        snprintf(detail, sizeof detail, "model=%d,optimizer=%d,steps=8,waits=%d,ranks=%d%s", k, k % 4, 3 + k % 3, 1 + k % 2,
                 k % 3 == 2 ? ",separate" : "");
        const role first[] = { { .text = "at=grain:2", .dies = true }, { .text = "-" }, { .text = "-" }, { .text = "as=0" },
                               { 0 } };
        const role second[] = { { .text = "-" }, { .text = "at=sync:1", .dies = true }, { .text = "-" }, { .text = "as=1" },
                                { 0 } };
        arriving_expect(detail, k % 2 ? first : second, 3 * (1 + k % 2));
    }
}

/* One, and then another one; both at once; after all others have died; and one that has come dies and comes again. */
static void several_come(void **state)
{
    arriving_expect("model=1,steps=9,waits=4,again=6",
                    (const role[]){ LIVES("-"), DIES("at=grain:2"), DIES("at=grain:9"), LIVES("as=1"),
                                                              LIVES("as=2,turn=1"), { 0 } }, 3);
    arriving_expect("model=5,steps=9,waits=5,again=5",
                    (const role[]){ LIVES("-"), DIES("at=grain:2"), DIES("at=grain:3"), LIVES("as=1"),
                                                              LIVES("as=2,turn=1"), { 0 } }, 3);
    arriving_expect("model=0,of=2,waits=4", (const role[]){ LIVES("-"), DIES("at=sync:2"), LIVES("as=1"), { 0 } }, 2);
    arriving_expect("model=2,of=2,waits=4", (const role[]){ DIES("at=sync:2"), LIVES("-"), LIVES("as=0"), { 0 } }, 2);
    arriving_expect("model=0,steps=12,waits=4,again=8", (const role[]){ LIVES("-"), DIES("at=grain:2"), LIVES("-"),
                                                               DIES("as=1,at=grain:4"),
                                                               LIVES("as=1,after=3,turn=1"), { 0 } }, 3);
}

/* The one that comes, those that let it in, and several of them. */
static void they_die_while_one_comes(void **state)
{
    static const char *const spans[] = { "at=arrival:0", "at=take_over:0", "at=take_over:1", "at=regroup:1" };
    for (int k = 0; k < 4; k++) {
        char detail[64];
        snprintf(detail, sizeof detail, "model=%d,of=4,waits=3", k);
        role roles[] = { LIVES("-"), DIES("at=grain:1"), LIVES("-"), LIVES("-"), LIVES("as=1"), { 0 } };
        int victim = k == 0 ? 4 : k == 1 ? 4 : k == 2 ? 0 : 2;
        char text[32];
        snprintf(text, sizeof text, "%s%s", victim == 4 ? "as=1," : "", spans[k]);
        roles[victim] = (role)DIES(text);
        arriving_expect(detail, roles, 3);
    }
    arriving_expect("model=1,of=4,waits=3", (const role[]){ DIES("at=arrival:0"), DIES("at=grain:1"), LIVES("-"),
                                                            DIES("at=arrival:0"),
                                                   LIVES("as=1"), { 0 } }, 2);
    arriving_expect("model=0,of=3,waits=3", (const role[]){ DIES("at=arrival:0"), DIES("at=grain:1"), LIVES("-"), LIVES("as=1"),
                                                            { 0 } },
           2);
}

/* While the others run grains and supply the state, one of them dies, or all but one, or the one that fetches. */
static void they_die_while_one_fetches(void **state)
{
    arriving_expect("model=2,of=4,waits=3", (const role[]){ LIVES("-"), DIES("at=grain:1"), DIES("at=give_state:0"), LIVES("-"),
                                                            LIVES("as=1"), { 0 } }, 3);
    arriving_expect("model=1,of=4,waits=3", (const role[]){ DIES("at=give_state:0"), DIES("at=grain:1"), LIVES("-"),
                                                            DIES("at=give_state:0"), LIVES("as=1"), { 0 } }, 2);
    arriving_expect("model=5,of=3,waits=3", (const role[]){ LIVES("-"), DIES("at=grain:1"), LIVES("-"),
                                                            DIES("as=1,at=fetch_state:0"), { 0 } }, 2);
    arriving_expect("model=4,of=3,waits=3,again=6",
                    (const role[]){ LIVES("-"), DIES("at=grain:1"), LIVES("stops=give_state:0:300"),
                                    DIES("as=1,at=fetch_state:0"), LIVES("as=1,after=3,turn=1,stops=fetch_state:0:300"), { 0 } },
                                    3);
    arriving_expect("model=6,of=3,waits=3,sharded", (const role[]){ LIVES("-"), DIES("at=grain:1"), LIVES("-"),
                                                                    DIES("as=1,at=fetch_state:0"), { 0 } }, 2);
}

/* One that comes gets its part of a state that is divided, whoever has it, and keeps it for the next death. */
static void one_comes_for_a_part_of_the_state(void **state)
{
    static const char *const details[] = { "model=0,sharded", "model=6,sharded,batch=21", "model=1,optimizer=2,sharded",
                                           "model=6,optimizer=4,sharded", "model=2,optimizer=5,sharded,overflow=2",
                                           "model=6,optimizer=6,sharded" };
    char detail[96];
    for (int k = 0; k < (test_short() ? 2 : 6); k++) {
        snprintf(detail, sizeof detail, "%s,steps=9,waits=3,again=6", details[k]);
        bool shares = test_on_cpu(); /* several GPUs of a process cannot have a part each */
        arriving_expect(detail, (const role[]){ LIVES(shares ? "ranks=2" : "-"), DIES("at=sync:1"), DIES("at=sync:4"),
                                       LIVES("as=1"), LIVES("as=2,turn=1"), { 0 } }, shares ? 4 : 3);
    }
    arriving_expect("model=0,of=2,waits=4,sharded", (const role[]){ LIVES("-"), DIES("at=sync:2"), LIVES("as=1"), { 0 } }, 2);
    arriving_expect("model=1,of=2,waits=4,sharded,divided=1",
                    (const role[]){ LIVES("-"), DIES("at=grain:2"), LIVES("as=1"), { 0 } },
                    2);
    arriving_expect("model=6,optimizer=4,sharded,divided=1,steps=9,waits=3,again=6",
                    (const role[]){ LIVES("-"), DIES("at=sync:1"), DIES("at=sync:4"), LIVES("as=1"), LIVES("as=2,turn=1"),
                                    { 0 } }, 3);
    arriving_expect("model=6,of=2,waits=4,sharded", (const role[]){ DIES("at=sync:2"), LIVES("-"), LIVES("as=0"), { 0 } }, 2);
    arriving_expect("model=1,of=4,waits=3,sharded",
                    (const role[]){ DIES("at=arrival:0"), DIES("at=grain:1"), LIVES("-"), LIVES("-"),
                                                           LIVES("as=1"), { 0 } }, 3);
    arriving_expect("model=6,of=4,waits=3,sharded",
                    (const role[]){ LIVES("-"), DIES("at=grain:1"), DIES("at=divide_state:2"), LIVES("-"),
                                                           LIVES("as=1"), { 0 } }, 3);
    arriving_expect("model=1,of=3,waits=3,sharded", (const role[]){ LIVES("-"), DIES("at=grain:1"), LIVES("-"),
                                                           DIES("as=1,at=divide_state:1"), { 0 } }, 2);
}

/* And of parameters, of which nobody has all: those that are left when one dies divide them, and divide them again when one
 * comes, which may die while it gets them. */
static void one_comes_for_a_part_of_the_parameters(void **state)
{
    static const char *const details[] = { "model=1", "model=6,batch=21", "model=0,optimizer=2", "model=6,optimizer=4",
                                           "model=2,optimizer=5,overflow=2", "model=6,optimizer=6" };
    char detail[96];
    for (int k = 0; k < (test_short() ? 2 : 6); k++) {
        snprintf(detail, sizeof detail, "%s,sharded,divided=2,steps=9,waits=3,again=6", details[k]);
        arriving_expect(detail, (const role[]){ LIVES("-"), DIES("at=sync:1"), DIES("at=sync:4"), LIVES("as=1"),
                                                LIVES("as=2,turn=1"), { 0 } }, 3);
    }
    arriving_expect("model=6,of=2,waits=4,sharded,divided=2",
                    (const role[]){ DIES("at=sync:2"), LIVES("-"), LIVES("as=0"), { 0 } }, 2);
    arriving_expect("model=1,of=4,waits=3,sharded,divided=2",
                    (const role[]){ DIES("at=arrival:0"), DIES("at=grain:1"), LIVES("-"), LIVES("-"), LIVES("as=1"), { 0 } }, 3);
    arriving_expect("model=6,of=3,waits=3,sharded,divided=2",
                    (const role[]){ LIVES("-"), DIES("at=grain:1"), LIVES("-"), DIES("as=1,at=fetch_state:0"), { 0 } }, 2);
    arriving_expect("model=1,of=3,waits=3,sharded,divided=2",
                    (const role[]){ LIVES("-"), DIES("at=grain:1"), LIVES("-"), DIES("as=1,at=divide_state:1"), { 0 } }, 2);
}

static void options_do_not_change_that(void **state)
{
    static const char *const details[] = { "model=1,batch=7,accumulate=3,waits=3",
                                           "model=5,batch=12,accumulate=2,waits=3,clipped",
                                           "model=0,overflow=3,waits=4,freezes", "model=2,grain=9,waits=3",
                                           "model=4,overflow=5,waits=3,separate" };
    for (int k = 0; k < 5; k++)
        arriving_expect(details[k], (const role[]){ LIVES("ranks=2"), DIES("at=grain:2"), LIVES("-"), LIVES("as=1,ranks=3"),
                                                    { 0 } }, 6);
}

/* Who dies, when, who comes in whose place, and who of these dies again, as they are drawn. TREK_TEST_DRAWS says how often. The
 * moments are those that come for certain. */
static void draw_arrivals(int n, uint64_t first_seed, bool sharded, int level)
{
    static const char *const spans[] = { "sync", "reduce", "optimizer", "loader_wait" };
    for (int k = 0; k < n; k++) {
        uint64_t seed = test_seed() * 1000003 + (uint64_t)k + first_seed;
        char detail[240], texts[4][96], living[4][96];
        role roles[7] = { { 0 } };
        int processes = 2 + (int)test_draw(&seed, 3), victims = 1 + (int)test_draw(&seed, (uint64_t)processes - 1);
        int first = (int)test_draw(&seed, (uint64_t)processes), at = processes, left = processes;
        victims = victims > 1 ? 2 - sharded : victims;
        snprintf(detail, sizeof detail,
                 "model=%d,grain=%d,batch=%d,steps=9,waits=5,again=6,optimizer=%d,accumulate=%d,of=%d%s%s%s",
                 (int)test_draw(&seed, sharded ? MIXED + 1 : MODELS), 1 + (int)test_draw(&seed, 4),
                 8 + (int)test_draw(&seed, 20),
                 (int)test_draw(&seed, sharded ? 6 : 4), (int)test_draw(&seed, 3), processes,
                 test_draw(&seed, 2) ? ",clipped" : "", test_draw(&seed, 2) ? ",separate" : "", sharded ? ",sharded" : "");
        if (level > 0)
            snprintf(detail + strlen(detail), sizeof detail - strlen(detail), ",divided=%d", level);
        dying_draw_ways(&seed, detail, sizeof detail);
        for (int p = 0; p < processes; p++) {
            strcpy(living[p], "-");
            dying_draw_stop(&seed, living[p], sizeof living[p]);
            roles[p] = (role)LIVES(living[p]);
        }
        for (int v = 0; v < 2; v++) { /* one that does not die has nobody who comes in its place */
            int victim = (first + v) % processes;
            bool again = v < victims && test_draw(&seed, 4) == 0;
            if (v >= victims)
                continue;
            snprintf(texts[2 * v], sizeof texts[0], "at=%s:%d", spans[test_draw(&seed, 4 - (uint64_t)sharded)],
                     (int)test_draw(&seed, 3));
            snprintf(texts[2 * v + 1], sizeof texts[0], "as=%d,turn=%d%s", victim, v,
                     !again ? "" : test_draw(&seed, 2) ? ",at=arrival:0" : ",at=sync:0");
            roles[victim] = (role)DIES(texts[2 * v]);
            roles[at++] = (role){ .text = texts[2 * v + 1], .dies = again };
            left -= again;
        }
        if (victims < 2)
            memcpy(strstr(detail, "again=6"), "again=0", 7);
        arriving_expect(detail, roles, left);
    }
}

static int draws(void)
{
    const char *set = getenv("TREK_TEST_DRAWS");
    return set ? atoi(set) : test_short() ? 3 : 8;
}

static void drawn_arrivals_do_not_show(void **state)
{
    draw_arrivals(draws(), 1700, false, 0);
}

/* One dies, since what two keep is lost if both die at once; and not in set-up, which makes a pass where there are budgets. */
static void drawn_arrivals_get_their_part_of_the_state(void **state)
{
    draw_arrivals(draws(), 3100, true, 0);
}

static void drawn_arrivals_get_their_part_of_the_gradients(void **state)
{
    draw_arrivals(draws(), 5100, true, 1);
}

static void drawn_arrivals_get_their_part_of_the_parameters(void **state)
{
    draw_arrivals(draws(), 7100, true, 2);
}

static void over_gloo_too(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why))
        skip();
    arriving_expect("model=1,waits=4,gloo", (const role[]){ LIVES("-"), LIVES("-"), DIES("at=grain:2"), LIVES("as=2"), { 0 } },
                    3);
}

/* It leaves, or is not let in, and the others go on without it. */
static void one_that_does_not_fit_disturbs_nobody(void **state)
{
    static const struct {
        const char *how, *says;
    } cases[] = {
        { "as=1,from-the-start", "TREK_ERR_STATE: graph_train_batch: batch: number 0 of epoch 0; the job*" },
        { "as=1,other-clip", "TREK_ERR_STATE: graph_train_batch: graph: its optimizer, schedule, clipping*" },
        { "as=1,other-seed", "TREK_ERR_STATE: graph_train_batch: graph: its optimizer, schedule, clipping*" },
        { "as=1,frozen", "TREK_ERR_STATE: graph_train_batch: graph: its optimizer, schedule, clipping*" },
        { "as=1,grain=2", "TREK_ERR_ARGUMENT: comm_init: process 1 cannot join the job*" },
        { "as=1,optimizer=2", "TREK_ERR_ARGUMENT: comm_init: process 1 cannot join the job*" },
        { "as=1,batch=19", "TREK_ERR_ARGUMENT: comm_init: process 1 cannot join the job*" },
        { "as=1,of=4", "TREK_ERR_ARGUMENT: comm_init: process 1 of 4 cannot join the job, which has 3*" },
        { "as=1,least=0", "TREK_ERR_STATE: comm_init: TREK_JOIN is set*" },
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++)
        arriving_expect("model=0,waits=3", (const role[]){ LIVES("-"), DIES("at=grain:2"), LIVES("-"),
                                                  { .text = cases[k].how, .fails = cases[k].says }, { 0 } }, 2);
}

static void who_has_not_joined_is_told_so(void **state)
{
    int model = MLP;
    assert_false(trek_trainer_joined(NULL, NULL));
    expect_error(TREK_ERR_ARGUMENT, "trainer_joined: graph");
    trek_graph *graph = grain_build(trek_cpu(0), &model);
    assert_false(trek_trainer_joined(graph, NULL));
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .grain = 2, .optimizer = trek_sgd(NULL) }), TREK_OK);
    assert_false(trek_trainer_joined(graph, NULL));
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_graph_free(&graph);
}

int main(void)
{
    static part me;
    if (processes_part(&me))
        return arriving_play(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(who_has_not_joined_is_told_so, clear_error),
        cmocka_unit_test_setup(one_dies_and_comes_again, clear_error),
        cmocka_unit_test_setup(several_come, clear_error),
        cmocka_unit_test_setup(they_die_while_one_comes, clear_error),
        cmocka_unit_test_setup(they_die_while_one_fetches, clear_error),
        cmocka_unit_test_setup(one_comes_for_a_part_of_the_state, clear_error),
        cmocka_unit_test_setup(options_do_not_change_that, clear_error),
        cmocka_unit_test_setup(drawn_arrivals_do_not_show, clear_error),
        cmocka_unit_test_setup(drawn_arrivals_get_their_part_of_the_state, clear_error),
        cmocka_unit_test_setup(drawn_arrivals_get_their_part_of_the_gradients, clear_error),
        cmocka_unit_test_setup(drawn_arrivals_get_their_part_of_the_parameters, clear_error),
        cmocka_unit_test_setup(one_comes_for_a_part_of_the_parameters, clear_error),
        cmocka_unit_test_setup(over_gloo_too, clear_error),
        cmocka_unit_test_setup(one_that_does_not_fit_disturbs_nobody, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
