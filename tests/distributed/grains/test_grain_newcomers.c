/* SPDX-License-Identifier: Apache-2.0 */
/* Real processes that train in grains, and newcomers that were not in the job before: it becomes larger than it was when it
 * began. All that get to the end have the bits of one process that trains alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/comm/gloo/gloo.h"
#include "tests/distributed/grains/arriving.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* Beyond the first ones: with every model and optimizer. */
static void newcomers_make_the_job_larger(void **state)
{
    for (int k = 0; k < MODELS; k++) {
        char detail[128];
        snprintf(detail, sizeof detail, "model=%d,optimizer=%d,steps=8,of=2,waits=%d,ranks=%d%s", k, k % 4, 2 + k % 3, 1 + k % 2,
                 k % 3 == 2 ? ",separate" : "");
        arriving_expect(detail, (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new"), { 0 } }, 3 * (1 + k % 2));
    }
}

/* One after the other, with more ranks than the others, and next to one that comes in its own place. */
static void several_newcomers(void **state)
{
    arriving_expect("model=1,steps=9,of=2,waits=3,again=6", (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new"),
                                                                   LIVES("as=new,turn=1,ranks=3"), { 0 } }, 6);
    arriving_expect("model=5,steps=9,of=2,waits=3,again=5", (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new"),
                                                                   LIVES("as=new,turn=1"), { 0 } }, 4);
    arriving_expect("model=2,steps=9,of=3,waits=4,again=6", (const role[]){ LIVES("-"), DIES("at=grain:2"), LIVES("-"),
                                                                   LIVES("as=new"), LIVES("as=1,turn=1"), { 0 } }, 4);
}

/* The first ones until none of them is left, newcomers, and the one that lets them in. */
static void they_die_around_newcomers(void **state)
{
    arriving_expect("model=1,steps=9,of=2,waits=3", (const role[]){ LIVES("-"), DIES("at=sync:5"), LIVES("as=new"), { 0 } }, 2);
    arriving_expect("model=0,steps=10,of=2,waits=3",
                    (const role[]){ DIES("at=sync:6"), DIES("at=sync:5"), LIVES("as=new"), { 0 } }, 1);
    arriving_expect("model=2,of=3,waits=3", (const role[]){ DIES("at=arrival:0"), LIVES("-"), LIVES("-"), LIVES("as=new"),
                                                            { 0 } }, 3);
    arriving_expect("model=3,of=2,waits=3", (const role[]){ LIVES("-"), LIVES("-"), DIES("as=new,at=arrival:0"), { 0 } }, 2);
    /* the one that listens dies, while the other one is not in a step */
    arriving_expect("model=5,steps=9,of=2,waits=4", (const role[]){ DIES("at=optimizer:3"), LIVES("-"), LIVES("as=new"), { 0 } },
                    2);
    arriving_expect("model=1,steps=12,of=2,waits=3,again=7", (const role[]){ LIVES("-"), LIVES("-"), DIES("as=new,at=sync:1"),
                                                                    LIVES("as=new,after=2,turn=1"), { 0 } }, 3);
}

/* A state that is divided is divided again among more, and its newcomers keep it for the next death. */
static void newcomers_get_their_part_of_the_state(void **state)
{
    (void)state;
    static const char *const details[] = { "model=0", "model=6,batch=21", "model=1,optimizer=2", "model=6,optimizer=4",
                                           "model=2,optimizer=5,overflow=2", "model=6,optimizer=6" };
    for (int k = 0; k < (test_short() ? 3 : 6); k++) {
        char detail[96];
        snprintf(detail, sizeof detail, "%s,sharded,steps=9,of=2,waits=2,again=5", details[k]);
        arriving_expect(detail, (const role[]){ LIVES("ranks=2"), LIVES("-"), LIVES("as=new"), LIVES("as=new,turn=1,ranks=2"),
                                               { 0 } }, 6);
    }
    arriving_expect("model=0,of=2,steps=10,waits=3,sharded",
                    (const role[]){ DIES("at=sync:6"), DIES("at=sync:8"), LIVES("as=new"), { 0 } }, 1);
    arriving_expect("model=6,of=2,steps=9,waits=2,sharded,divided=1",
                    (const role[]){ LIVES("-"), DIES("at=sync:5"), LIVES("as=new"),
                                                                                    { 0 } }, 2);
    arriving_expect("model=1,of=2,waits=3,sharded", (const role[]){ LIVES("-"), LIVES("-"), DIES("as=new,at=divide_state:1"),
                                                                   { 0 } }, 2);
    arriving_expect("model=6,of=3,waits=3,sharded", (const role[]){ LIVES("-"), LIVES("-"), DIES("at=divide_state:1"),
                                                                   LIVES("as=new"), { 0 } }, 3);
}

/* A newcomer gets its part of parameters of which nobody has all. It may be the one with whom they become enough again. */
static void newcomers_get_their_part_of_the_parameters(void **state)
{
    (void)state;
    static const char *const details[] = { "model=0", "model=6,batch=21,optimizer=4", "model=3,optimizer=5,overflow=2" };
    for (int k = 0; k < 3; k++) {
        char detail[96];
        snprintf(detail, sizeof detail, "%s,sharded,divided=2,steps=9,of=2,waits=2,again=5", details[k]);
        arriving_expect(detail, (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new"), LIVES("as=new,turn=1"), { 0 } }, 4);
    }
    arriving_expect("model=0,of=2,steps=10,waits=3,sharded,divided=2",
                    (const role[]){ DIES("at=sync:6"), DIES("at=sync:8"), LIVES("as=new"), { 0 } }, 1);
    arriving_expect("model=6,of=3,waits=3,sharded,divided=2",
                    (const role[]){ LIVES("-"), LIVES("-"), DIES("at=divide_state:1"), LIVES("as=new"), { 0 } }, 3);
}

/* Processes of one machine share memory; with one of another machine they go on over Gloo. */
static void a_newcomer_from_another_machine(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why) || !arriving_machines())
        skip();
    arriving_expect("model=1,of=2,waits=3", (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new,apart"), { 0 } }, 3);
    arriving_expect("model=4,of=3,steps=9,waits=3,again=6", (const role[]){ LIVES("-"), DIES("at=sync:5"), LIVES("-"),
                                                                   LIVES("as=new,apart"), LIVES("as=new,turn=1"), { 0 } },
           4);
    arriving_expect("model=1,of=2,steps=9,waits=3,sharded,divided=2",
                    (const role[]){ LIVES("-"), LIVES("-"), LIVES("as=new,apart"), { 0 } }, 3);
    arriving_expect("model=6,of=3,steps=9,waits=3,sharded,divided=2",
                    (const role[]){ LIVES("-"), DIES("at=sync:5"), LIVES("-"), LIVES("as=new,apart"), { 0 } }, 3);
}

/* Parts of other machines are read over connections, which end with the process that is read. */
static void processes_of_other_machines_die(void **state)
{
    static const char *const moments[] = { "at=grain:1", "at=sync:2", "at=optimizer:1", "at=digest:2", "at=sum_grain:5",
                                           "at=divide_state:0" };
    char why[256], detail[96], text[64];
    if (!trek_comm_gloo_there(why, sizeof why) || !arriving_machines())
        skip();
    for (int k = 0; k < 6; k++) {
        role roles[5] = { LIVES("-"), LIVES("apart"), LIVES("apart"), LIVES("-"), { 0 } };
        snprintf(detail, sizeof detail, "model=%d,of=4,steps=5,gloo,sharded,divided=%d", k % 2 ? 2 : 6, 1 + (k != 4));
        snprintf(text, sizeof text, "apart,%s", moments[k]);
        roles[k % 2 ? 3 : 2] = (role)DIES(k % 2 ? moments[k] : text);
        if (k == 5)
            roles[0] = (role)DIES("at=sync:1");
        arriving_expect(detail, roles, 3 - (k == 5));
    }
}

/* Before an evaluation, too: the others read what the dead one kept from the other process that keeps it, and notice the death in
 * the next step. */
static void processes_of_other_machines_die_before_evaluations(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why) || !arriving_machines())
        skip();
    for (int k = 0; k < 4; k++) {
        char detail[120];
        role roles[5] = { LIVES("apart"), LIVES("apart"), LIVES("apart"), LIVES("apart"), { 0 } };
        roles[k] = (role)DIES("apart,awaits=-1,at=epoch:0");
        snprintf(detail, sizeof detail, "model=2,of=4,steps=7,batch=26,gloo,sharded,divided=2,evaluates,awaits=%d", k);
        arriving_expect(detail, roles, 3);
    }
}

/* A newcomer that is not let in knows why, and the others go on as if it had not come. */
static void newcomers_that_do_not_fit_disturb_nobody(void **state)
{
    static const struct {
        const char *how, *says, *waits;
    } cases[] = {
        { "as=new,model=3", "TREK_ERR_ARGUMENT: comm_init: this process cannot join the job: its model", "waits=3" },
        { "as=new,grain=2", "TREK_ERR_ARGUMENT: comm_init: this process cannot join the job: its model", "waits=3" },
        { "as=new,batch=19", "TREK_ERR_ARGUMENT: comm_init: this process cannot join the job: its model", "waits=3" },
        { "as=new,wrong-token", "the token is not the one of the job at", "waits=3" },
        { "as=new,elsewhere", "TREK_ERR_TIMEOUT: comm_init: no process of the job accepts joining processes at 127", "waits=3" },
        { "as=new,after-the-end", "TREK_ERR_TIMEOUT: comm_init: no process of the job accepts joining", "model=0" },
        { "as=new,least=0", "TREK_ERR_STATE: comm_init: TREK_JOIN is set in the environment: this process comes", "waits=3" },
        { "as=new,other-seed", "TREK_ERR_STATE: graph_train_batch: graph: its optimizer, schedule, clipping", "waits=3" },
        { "as=new,from-the-start", "TREK_ERR_STATE: graph_train_batch: batch: number 0 of epoch 0; the job", "waits=3" },
        { "as=new,apart,no-engine", "TREK_ERR_UNSUPPORTED: comm_init: this process cannot join the job: it runs on", "waits=3" },
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++) {
        char detail[64], says[128];
        if (strstr(cases[k].how, "apart") && !arriving_machines())
            continue;
        snprintf(says, sizeof says, "*%s*", cases[k].says);
        snprintf(detail, sizeof detail, "model=0,of=2,%s", cases[k].waits);
        arriving_expect(detail, (const role[]){ LIVES("-"), LIVES("-"), { .text = cases[k].how, .fails = says }, { 0 } }, 2);
    }
}

/* Who dies, who comes, as whom, from where and with how many ranks, as it is drawn. TREK_TEST_DRAWS says how often. */
static void drawn_newcomers_do_not_show(void **state)
{
    static const char *const spans[] = { "sync", "reduce", "optimizer", "loader_wait" };
    const char *draws = getenv("TREK_TEST_DRAWS");
    char why[256];
    bool apart = trek_comm_gloo_there(why, sizeof why) && arriving_machines();
    int n = draws ? atoi(draws) : test_short() ? 3 : 8;
    for (int k = 0; k < n; k++) {
        uint64_t seed = test_seed() * 1000003 + (uint64_t)k + 2900;
        char detail[240], texts[4][96], living[4][96];
        role roles[7] = { { 0 } };
        int processes = 2 + (int)test_draw(&seed, 2), first = (int)test_draw(&seed, (uint64_t)processes), at = processes;
        bool dies = test_draw(&seed, 2), two = test_draw(&seed, 2);
        int left = processes - dies;
        snprintf(detail, sizeof detail,
                 "model=%d,grain=%d,batch=%d,steps=9,waits=4,again=%d,optimizer=%d,accumulate=%d,of=%d%s%s",
                 (int)test_draw(&seed, MODELS), 1 + (int)test_draw(&seed, 4), 8 + (int)test_draw(&seed, 20),
                 two ? 6 + (int)test_draw(&seed, 2) : 0, (int)test_draw(&seed, 4), (int)test_draw(&seed, 3), processes,
                 test_draw(&seed, 2) ? ",clipped" : "", test_draw(&seed, 2) ? ",separate" : "");
        dying_draw_ways(&seed, detail, sizeof detail);
        for (int p = 0; p < processes; p++) {
            strcpy(living[p], "-");
            dying_draw_stop(&seed, living[p], sizeof living[p]);
            roles[p] = (role)LIVES(living[p]);
        }
        snprintf(texts[3], sizeof texts[3], "at=%s:%d", spans[test_draw(&seed, 4)], (int)test_draw(&seed, 8));
        if (dies)
            roles[first] = (role)DIES(texts[3]);
        for (int c = 0; c <= two; c++) {
            bool again = test_draw(&seed, 4) == 0;
            int ranks = 1 + (int)test_draw(&seed, 3);
            snprintf(texts[c], sizeof texts[c], "as=new,turn=%d,ranks=%d%s%s", c, ranks,
                     apart && test_draw(&seed, 3) == 0 ? ",apart" : "",
                     !again ? "" : test_draw(&seed, 2) ? ",at=arrival:0" : ",at=sync:0");
            dying_draw_stop(&seed, texts[c], sizeof texts[c]);
            roles[at++] = (role){ .text = texts[c], .dies = again };
            left += again ? 0 : ranks;
        }
        arriving_expect(detail, roles, left);
    }
}

int main(void)
{
    static part me;
    if (processes_part(&me))
        return arriving_play(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(newcomers_make_the_job_larger, clear_error),
        cmocka_unit_test_setup(several_newcomers, clear_error),
        cmocka_unit_test_setup(they_die_around_newcomers, clear_error),
        cmocka_unit_test_setup(newcomers_get_their_part_of_the_state, clear_error),
        cmocka_unit_test_setup(newcomers_get_their_part_of_the_parameters, clear_error),
        cmocka_unit_test_setup(a_newcomer_from_another_machine, clear_error),
        cmocka_unit_test_setup(processes_of_other_machines_die, clear_error),
        cmocka_unit_test_setup(processes_of_other_machines_die_before_evaluations, clear_error),
        cmocka_unit_test_setup(newcomers_that_do_not_fit_disturb_nobody, clear_error),
        cmocka_unit_test_setup(drawn_newcomers_do_not_show, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
