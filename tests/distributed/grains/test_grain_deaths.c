/* SPDX-License-Identifier: Apache-2.0 */
/* Real processes that train in grains and die: before and after every call in which they meet, in every span, in the middle of a
 * grain, several of them, and while the others find each other. Those that are left end with the bits of one process that trains
 * alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "data/dataset.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/run.h"
#include "distributed/trainer_ranks.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "graph/settings.h"
#include "tensor/print.h"
#include "tests/distributed/grains/dying.h"
#include "tests/distributed/grains/grain_runs.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* After the second step, when a process may have died. */
static void print_plan(trek_graph *graph)
{
    char *plan = trek_graph_steps(graph) == 2 ? trek_trainer_plan_text(graph) : NULL;
    printf("%s", plan ? plan : "");
    trek_string_free(&plan);
}

/* The first error remains the one that is told. */
static void step_again(trek_graph *graph)
{
    trek_kept_error first;
    trek_error_keep(&first);
    trek_error_clear();
    trek_status status = trek_graph_step(graph);
    if (status != TREK_ERR_MEMORY || !strstr(trek_error(), "graph_step: .memory_budget: ")) {
        printf("another step ended with %s: %s\n", trek_status_name(status), trek_error());
        exit(2);
    }
    trek_error_clear();
    trek_error_put_back(&first);
}

static int play(const part *me)
{
    static grain_result result;
    grain_run run = dying_run(me->detail);
    run.on_failed = strstr(me->detail, "insists") ? step_again : NULL;
    run.after_step = strstr(me->detail, "plan") ? print_plan : NULL;
    run.ranks += me->process == 0 && strstr(me->detail, "uneven"); /* processes may have different numbers of ranks */
    if (!(run.comm = dying_join(me, me->processes)))
        return 1;
    dying_begin(me, run.comm);
    bool good = grain_train(&run, &result);
    dying_end();
    return dying_report(good ? &result : NULL, run.comm);
}

/* Runs n processes. deaths[p]: when process p dies; NULL: it does not. All others must have the bits of one that trains alone,
 * and know that `left` ranks are left. Returns how many calls process 0 has made in the first group. */
static int expect(const char *detail, int n, const char *const *deaths, int left)
{
    return dying_expect(detail, dying_roles(n, deaths), dying_digest(detail, false), left);
}

/* --- tests -------------------------------------------------------------------------------------------------- */

static void dies_before_or_after_any_call(const char *detail, int n)
{
    const char *nobody[4] = { 0 };
    uint64_t digest = dying_digest(detail, false);
    int made = expect(detail, n, nobody, n), every = test_short() ? 5 : test_long() ? 1 : 3;
    assert_true(made > 12);
    for (int k = 0; k < made; k++)
        for (int after = 0; after < 2; after++) {
            char when[32];
            const char *deaths[4] = { 0 };
            snprintf(when, sizeof when, "%s=%d", after ? "after" : "before", k);
            deaths[(k + after) % n] = when;
            if ((2 * k + after) % every == 0 && !(after && k == made - 1)) /* after the last one it is done */
                dying_expect(detail, dying_roles(n, deaths), digest, n - 1);
        }
}

/* Every call of two steps, and both sides of it: rounds of messages, records, bins, digits, the commit. */
static void one_dies_before_or_after_any_call(void **state)
{
    dies_before_or_after_any_call("model=1,steps=3,clipped", 3);
}

/* The same if the optimizer's state is divided: parameters are gathered, too. */
static void one_dies_with_a_part_of_the_state(void **state)
{
    dies_before_or_after_any_call("model=1,steps=4,clipped,sharded", 3);
}

/* And if gradients are: all that grains have given in the step is made again. */
static void one_dies_with_a_part_of_the_gradients(void **state)
{
    dies_before_or_after_any_call("model=1,steps=4,clipped,sharded,divided=1", 3);
}

/* And if parameters are: they are divided again among the others, of whom none keeps all. */
static void one_dies_with_a_part_of_the_parameters(void **state)
{
    dies_before_or_after_any_call("model=2,steps=4,clipped,sharded,divided=2", 4);
}

/* The same where programs write parameters, of which each then keeps its part. Without deaths the calls come in one order: those
 * of trek_graph_parameters_changed are among them. */
static void one_dies_when_parameters_are_written(void **state)
{
    dies_before_or_after_any_call("model=0,steps=3,writes,sharded,divided=2", 4);
}

/* Process 0 dies before its next call, in which the others are, while process 1 has not learned yet that the last one has ended.
 */
static void another_is_behind(void **state)
{
    static const char *const details[] = { "model=1,steps=3,clipped", "model=1,steps=3,sharded",
                                           "model=2,steps=3,sharded,divided=1", "model=2,steps=3,clipped,sharded,divided=2" };
    if (!test_on_cpu()) /* how many calls there are depends on who runs which grains */
        skip();
    for (int d = 0; d < 4; d++) {
        const char *nobody[4] = { 0 };
        uint64_t digest = dying_digest(details[d], false);
        int made = expect(details[d], 4, nobody, 4), every = test_short() ? 7 : test_long() ? 1 : 3;
        for (int k = d % every; k < made - 1; k += every) {
            char dies[32], late[48];
            snprintf(dies, sizeof dies, "before=%d", k + 1);
            snprintf(late, sizeof late, "late=%d,of-process=0", k);
            dying_expect(details[d], (const role[]){ DIES(dies), LIVES(late), LIVES("-"), LIVES("-"), { 0 } }, digest, 3);
        }
    }
}

static void one_dies_in_any_span(void **state)
{
    const char *exchange = test_on_cpu() ? "at=reduce_processes:2" : "at=reduce_grains:2";
    const char *const spans[] = { "at=grain:1", "at=sum_grain:4", "at=backward:3",  "at=sync:1",
                                  "at=reduce:0", exchange,        "at=optimizer:1", "at=loader_wait:3" };
    for (int k = 0; k < (int)(sizeof spans / sizeof *spans); k++) {
        char detail[128];
        const char *deaths[4] = { 0 };
        snprintf(detail, sizeof detail, "model=%d,ranks=%d,optimizer=%d,steps=4%s", k % MODELS, 1 + k % 2, k % 4,
                 k % 4 == 3 ? ",separate" : "");
        deaths[k % 3] = spans[k];
        expect(detail, 3, deaths, 2 * (1 + k % 2));
    }
}

/* On two GPUs each process has one of its own. */
static void one_of_two_dies(void **state)
{
    static const char *const moments[] = { "before=3", "after=6", "before=9", "after=10", "before=12", "after=13", "at=grain:2",
                                           "at=sync:1", "at=reduce:1", "at=optimizer:0" };
    for (int k = 0; k < (int)(sizeof moments / sizeof *moments); k++) {
        const char *deaths[2] = { NULL };
        deaths[k % 2] = moments[k];
        expect(k % 3 ? "model=1,steps=4,clipped" : "model=0,steps=4,sharded", 2, deaths, 1);
    }
}

/* Two at once, one after the other, one while the others find each other, and all but one. */
static void several_die(void **state)
{
    static const struct {
        const char *detail, *deaths[4];
        int left;
    } cases[] = {
        { "model=0,steps=4", { NULL, "before=14", "before=14", NULL }, 2 },
        { "model=1,steps=5", { "at=grain:1", NULL, "at=grain:5", NULL }, 2 },
        { "model=2,steps=4", { NULL, "after=9", NULL, "at=regroup:0" }, 2 },
        { "model=5,steps=4", { "at=regroup:0", "before=16", NULL, NULL }, 2 },
        { "model=0,steps=5,ranks=2", { "at=grain:9", "at=regroup:1", "before=11", NULL }, 2 },
        { "model=3,steps=5", { NULL, "at=take_over:0", "after=12", NULL }, 2 },
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++)
        expect(cases[k].detail, 4, cases[k].deaths, cases[k].left);
}

/* Passes of a step that was cut short are several, losses overflow, and some processes have no grain at all. */
static void options_do_not_change_that(void **state)
{
    static const struct {
        const char *detail, *deaths[3];
        int left;
    } cases[] = {
        { "model=1,batch=7,accumulate=3,steps=4", { NULL, "at=grain:7", NULL }, 2 },
        { "model=5,batch=12,accumulate=2,steps=4,clipped", { "before=13", NULL, NULL }, 2 },
        { "model=0,overflow=3,steps=6", { NULL, NULL, "at=grain:6" }, 2 },
        { "model=2,grain=9,steps=4", { NULL, "after=11", NULL }, 2 },
        { "model=4,ranks=2,uneven,separate,steps=4", { NULL, "at=sum_grain:5", NULL }, 5 },
        /* the last batch of an epoch has one sample, which was to be the dead one's, and the step goes on after it */
        { "model=2,grain=2,batch=13,steps=3,accumulate=2", { "at=optimizer:1", NULL, NULL }, 2 },
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++)
        expect(cases[k].detail, 3, cases[k].deaths, cases[k].left);
}

/* With divided gradients or parameters, or without: optimizers that update elements and whole parameters, f32 copies of bf16,
 * parts of different sizes (an odd batch), ranks that share a part, a step that is skipped; one process after the other; and
 * deaths while the state is divided again. */
static void every_kind_of_state_is_kept_twice(void **state)
{
    static const struct {
        const char *detail, *deaths[4];
        int left;
    } cases[] = {
        { "model=0,steps=5", { NULL, "before=14", NULL, NULL }, 3 },
        { "model=0,optimizer=2,steps=5", { "at=grain:1", NULL, NULL, NULL }, 3 },
        { "model=2,optimizer=3,steps=5,batch=21", { NULL, NULL, "at=optimizer:1", NULL }, 3 },
        { "model=6,optimizer=0,steps=5,batch=21", { NULL, "at=optimizer:1", NULL, "at=optimizer:2" }, 2 },
        { "model=6,optimizer=4,steps=5", { NULL, "at=gather_parameters:1", NULL, NULL }, 3 },
        { "model=0,optimizer=4,steps=6", { "at=sync:1", NULL, "at=sync:3", NULL }, 2 },
        { "model=3,optimizer=5,steps=5,batch=21", { NULL, NULL, NULL, "at=gather_parameters:0" }, 3 },
        { "model=6,optimizer=6,steps=5", { "at=reduce:1", NULL, NULL, NULL }, 3 },
        { "model=5,optimizer=1,steps=7", { "at=sync:1", "at=sync:3", "at=sync:5", NULL }, 1 },
        { "model=4,ranks=2,uneven,steps=5", { NULL, "at=reduce:1", NULL, NULL }, 7 },
        { "model=0,overflow=3,steps=6", { NULL, "at=optimizer:2", NULL, NULL }, 3 },
        { "model=1,steps=6,optimizer=2,batch=21", { "at=sync:1", NULL, "at=divide_state:0", NULL }, 2 },
        { "model=2,steps=6", { NULL, "at=grain:1", NULL, "at=gather_parameters:2" }, 2 },
        { "model=6,optimizer=0,steps=5,batch=21,divided=2", { NULL, "at=digest:1", NULL, "at=optimizer:2" }, 2 },
        { "model=3,optimizer=5,steps=5,batch=21,divided=2", { NULL, NULL, NULL, "at=digest:0" }, 3 },
        { "model=6,optimizer=4,overflow=3,steps=6,divided=2", { "at=sync:1", "at=divide_state:0", NULL, NULL }, 2 },
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++) {
        char detail[96];
        static const char *const levels[] = { ",divided=1", "", ",divided=2" };
        const char *level = strstr(cases[k].detail, "ranks=") || strstr(cases[k].detail, "divided=") ? "" : levels[k % 3];
        snprintf(detail, sizeof detail, "%s,sharded%s", cases[k].detail, level);
        bool possible = test_on_cpu() || !strstr(detail, "ranks="); /* several GPUs of a process cannot have a part each */
        if (possible && (!test_short() || k % 3 == 0))
            expect(detail, 4, cases[k].deaths, cases[k].left);
    }
}

/* Of three processes each part has two: whichever two die at once, one part is lost. */
static void a_part_that_dies_twice_is_named(void **state)
{
    static const char *const details[] = { "model=0,sharded", "model=0,sharded,divided=1", "model=0,sharded,divided=2" };
    for (int k = 0; k < 3; k++)
        dying_expect(details[k], (const role[]){ DIES("before=14,with=2"),
                                                 REPORTS("-", "TREK_ERR_PEER: graph_*: .shard: processes 0 and "
                                                                            "2 are lost, with a part"),
                                                 DIES("before=14,with=0"), { 0 } }, 0, -1);
}

static void the_plan_says_that_parts_are_kept_twice(void **state)
{
    static world w;
    const char *detail = "model=0,steps=3,sharded,plan";
    dying_play(&w, detail, (const role[]){ LIVES("-"), LIVES("-"), LIVES("-"), { 0 } });
    assert_non_null(strstr(w.text[0], "the optimizer's state: each part is kept by two of 3 processes, which have "
                                      "66.7 %, 66.7 %, 66.7 % of it; parameters and gradients are whole on each rank\n"));
    dying_play(&w, "model=0,steps=3,sharded,divided=2,plan", (const role[]){ LIVES("-"), LIVES("-"), LIVES("-"), { 0 } });
    if (test_on_cpu())
        assert_non_null(strstr(w.text[0], "parameters, gradients and the optimizer's state: each part is kept by two of 3 "
                                          "processes, which have "));
    dying_play(&w, detail, (const role[]){ LIVES("-"), LIVES("-"), DIES("at=grain:1"), { 0 } });
    assert_non_null(strstr(w.text[1], "kept by two of 2 processes, which have 100.0 %, 100.0 % of it;"));
    dying_play(&w, detail, (const role[]){ LIVES("-"), DIES("at=grain:1"), { 0 } });
    assert_non_null(strstr(w.text[0], "the optimizer's state: whole in one process; parameters"));
}

enum { PARAMETERS, TOTAL = 5 };

/* Returns a number of a rank's row of the plan, in KiB. */
static double number_of(const char *plan, int rank, int column)
{
    char row[32];
    snprintf(row, sizeof row, "\n%d (cpu:", rank);
    char *at = strstr(plan, row);
    assert_non_null(at);
    double number = strtod(strchr(at, ')') + 1, &at);
    while (column-- > 0)
        number = strtod(at, &at);
    return number;
}

/* Parameters that a process does not keep any more take no memory: four have as much in all as the three that are left. */
static void what_has_gone_to_others_is_given_back(void **state)
{
    static world w;
    const char *detail = "model=2,batch=21,steps=4,sharded,divided=2,plan,budget=9000";
    double all[2] = { 0 };
    if (!test_on_cpu())
        skip();
    for (int dies = 0; dies < 2; dies++) {
        dying_play(&w, detail, (const role[]){ LIVES("-"), LIVES("-"), LIVES("-"), LIVES(dies ? "at=sync:0" : "-"), { 0 } });
        for (int r = 0; r < 4 - dies; r++)
            all[dies] += number_of(w.text[0], r, PARAMETERS);
    }
    assert_true(all[0] > 0 && all[1] == all[0]);
}

/* Budgets that are enough for three processes may be too small for two: both say so, with the numbers, and go no further. If they
 * are enough, the plan is that of two. */
static void what_is_left_may_not_fit(void **state)
{
    static world w;
    if (!test_on_cpu())
        skip();
    for (int level = 0; level < 3; level++) {
        char detail[160];
        const char *which = level == 0 ? "" : level == 1 ? ",divided=1" : ",divided=2";
        snprintf(detail, sizeof detail, "model=2,optimizer=1,batch=21,steps=4,sharded%s,plan,budget=9000", which);
        dying_play(&w, detail, (const role[]){ LIVES("-"), LIVES("-"), LIVES("-"), { 0 } });
        double three = 0, two = INFINITY, most = 0;
        for (int r = 0; r < 3; r++)
            three = fmax(three, number_of(w.text[0], r, TOTAL));
        dying_play(&w, detail, (const role[]){ LIVES("-"), LIVES("-"), DIES("at=sync:0"), { 0 } });
        for (int r = 0; r < 2; r++)
            two = fmin(two, number_of(w.text[0], r, TOTAL)), most = fmax(most, number_of(w.text[0], r, TOTAL));
        snprintf(detail, sizeof detail, "model=2,optimizer=1,batch=21,steps=4,sharded%s,insists,budget=%d", which,
                 (int)((three + two) / 2));
        const char *says = "*TREK_ERR_MEMORY: *: .memory_budget: * for rank 0 (cpu:0), which needs *, and * for rank 1 (cpu:0)*";
        dying_expect(detail, (const role[]){ LIVES("-"), LIVES("-"), LIVES("-"), { 0 } }, dying_digest(detail, false), 3);
        dying_expect(detail, (const role[]){ { .text = "-", .fails = says }, { .text = "-", .fails = says }, DIES("at=sync:0"),
                                             { 0 } }, 0, -1);
        snprintf(detail, sizeof detail, "model=2,optimizer=1,batch=21,steps=4,sharded%s,budget=%d", which, (int)most + 4);
        dying_expect(detail, (const role[]){ LIVES("-"), LIVES("-"), DIES("at=grain:3"), { 0 } }, dying_digest(detail, false), 2);
    }
}

static void over_gloo_too(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why))
        skip();
    expect("model=0,steps=4,gloo", 3, (const char *[]){ NULL, "before=14", NULL }, 2);
    expect("model=1,steps=4,gloo", 3, (const char *[]){ "at=grain:5", NULL, NULL }, 2);
    expect("model=1,steps=5,gloo,sharded", 3, (const char *[]){ NULL, NULL, "at=gather_parameters:1" }, 2);
    expect("model=2,steps=4,gloo,sharded,divided=1", 3, (const char *[]){ NULL, "at=grain:4", NULL }, 2);
    expect("model=1,steps=4,gloo,sharded,divided=2", 3, (const char *[]){ NULL, NULL, "at=grain:4" }, 2);
    expect("model=6,steps=5,gloo,sharded,divided=2", 3, (const char *[]){ "at=optimizer:1", NULL, NULL }, 2);
    expect("model=6,steps=5,gloo,sharded,batch=21", 4, (const char *[]){ NULL, "at=sync:1", "at=sync:3", NULL }, 2);
}

/* Moments and victims as they are drawn. TREK_TEST_DRAWS says how often. */
static void draw_deaths(int n, uint64_t first, bool sharded, int level)
{
    static const char *const usual[] = { "grain", "sum_grain", "backward", "sync", "reduce", "optimizer" };
    static const char *const divided[] = { "grain", "sum_grain", "sync", "optimizer", "gather_parameters", "divide_state" };
    static const char *const parted[] = { "grain", "sum_grain", "sync", "optimizer", "digest", "divide_state" };
    const char *const *spans = level > 1 ? parted : sharded ? divided : usual; /* with budgets, set-up makes a pass of its own */
    for (int k = 0; k < n; k++) {
        uint64_t seed = test_seed() * 1000003 + (uint64_t)k + first;
        char detail[240], when[4][96];
        role roles[5] = { { 0 } };
        int processes = 2 + (int)test_draw(&seed, 3), victims = 1 + (int)test_draw(&seed, (uint64_t)processes - 1);
        snprintf(detail, sizeof detail, "model=%d,grain=%d,batch=%d,steps=%d,optimizer=%d,accumulate=%d%s%s%s",
                 (int)test_draw(&seed, sharded ? MIXED + 1 : MODELS), 1 + (int)test_draw(&seed, 6),
                 6 + (int)test_draw(&seed, 20), 4 + (int)test_draw(&seed, 3), (int)test_draw(&seed, sharded ? 6 : 4),
                 (int)test_draw(&seed, 3), test_draw(&seed, 2) ? ",clipped" : "", test_draw(&seed, 2) ? ",separate" : "",
                 sharded ? ",sharded" : "");
        if (level > 0)
            snprintf(detail + strlen(detail), sizeof detail - strlen(detail), ",divided=%d", level);
        dying_draw_ways(&seed, detail, sizeof detail);
        for (int p = 0; p < processes; p++) {
            strcpy(when[p], "-");
            roles[p] = (role){ .text = when[p], .may_lose = sharded && victims > 1 };
        }
        for (int v = 0; v < victims; v++) {
            if (test_draw(&seed, 2))
                snprintf(when[v], sizeof when[v], "%s=%d", test_draw(&seed, 2) ? "before" : "after",
                         (int)test_draw(&seed, 30));
            else
                snprintf(when[v], sizeof when[v], "at=%s:%d", spans[test_draw(&seed, 6)], (int)test_draw(&seed, 3));
            roles[v].dies = roles[v].may_live = true; /* not every moment comes */
        }
        for (int p = 0; p < processes; p++)
            dying_draw_stop(&seed, when[p], sizeof when[p]);
        dying_expect(detail, roles, dying_digest(detail, false), -1);
    }
}

static int draws(void)
{
    const char *set = getenv("TREK_TEST_DRAWS");
    return set ? atoi(set) : test_short() ? 3 : 8;
}

static void drawn_deaths_do_not_show(void **state)
{
    draw_deaths(draws(), 900, false, 0);
}

static void drawn_deaths_do_not_show_in_divided_state(void **state)
{
    draw_deaths(draws(), 2100, true, 0);
}

static void drawn_deaths_do_not_show_in_divided_gradients(void **state)
{
    draw_deaths(draws(), 4100, true, 1);
}

static void drawn_deaths_do_not_show_in_divided_parameters(void **state)
{
    draw_deaths(draws(), 6100, true, 2);
}

static void too_few_are_left(void **state)
{
    dying_leave_too_few();
}

/* --- what is refused --------------------------------------------------------------------------------------- */

static void setup_with(const trek_trainer_opts *opts)
{
    int model = MLP;
    trek_graph *graph = grain_build(trek_cpu(0), &model);
    assert_int_not_equal(trek_trainer_setup(graph, opts), TREK_OK);
    trek_graph_free(&graph);
}

static trek_var *run_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

static void what_it_cannot_do_is_refused(void **state)
{
    double shares[2] = { 1, 2 };
    setup_with(&(trek_trainer_opts){ .min_processes = -1 });
    expect_error(TREK_ERR_ARGUMENT, "trainer_setup: .min_processes: -1; must be 0 or more");
    setup_with(&(trek_trainer_opts){ .min_processes = 1, .grain = 2, .shares = shares, .n_shares = 2 });
    expect_error(TREK_ERR_UNSUPPORTED, "trainer_setup: .min_processes: set together with .shares");
    int model = MLP;
    trek_dataset *dataset = grain_dataset();
    trek_run_opts opts = { .build_model = grain_build, .arg = &model, .train_step = run_loss, .dataset = dataset, .input = "x",
                           .optimizer = trek_adamw(NULL), .batch_size = 12, .epochs = 2,
                           .trainer = { .grain = 5, .min_processes = 1 } };
    REFUSED(trek_trainer_run(&opts), TREK_ERR_ARGUMENT, "trainer_run: .trainer.min_processes: 1; must be 0");
    trek_dataset_free(&dataset);
    setup_with(&(trek_trainer_opts){ .min_processes = 2, .grain = 2 });
    expect_error(TREK_ERR_ARGUMENT, "trainer_setup: .min_processes: 2; must be 0 to 1");
}

int main(void)
{
    static part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_it_cannot_do_is_refused, clear_error),
        cmocka_unit_test_setup(one_dies_before_or_after_any_call, clear_error),
        cmocka_unit_test_setup(one_dies_with_a_part_of_the_state, clear_error),
        cmocka_unit_test_setup(one_dies_with_a_part_of_the_gradients, clear_error),
        cmocka_unit_test_setup(one_dies_with_a_part_of_the_parameters, clear_error),
        cmocka_unit_test_setup(one_dies_when_parameters_are_written, clear_error),
        cmocka_unit_test_setup(another_is_behind, clear_error),
        cmocka_unit_test_setup(one_dies_in_any_span, clear_error),
        cmocka_unit_test_setup(one_of_two_dies, clear_error),
        cmocka_unit_test_setup(several_die, clear_error),
        cmocka_unit_test_setup(options_do_not_change_that, clear_error),
        cmocka_unit_test_setup(every_kind_of_state_is_kept_twice, clear_error),
        cmocka_unit_test_setup(a_part_that_dies_twice_is_named, clear_error),
        cmocka_unit_test_setup(the_plan_says_that_parts_are_kept_twice, clear_error),
        cmocka_unit_test_setup(what_has_gone_to_others_is_given_back, clear_error),
        cmocka_unit_test_setup(what_is_left_may_not_fit, clear_error),
        cmocka_unit_test_setup(over_gloo_too, clear_error),
        cmocka_unit_test_setup(drawn_deaths_do_not_show, clear_error),
        cmocka_unit_test_setup(drawn_deaths_do_not_show_in_divided_state, clear_error),
        cmocka_unit_test_setup(drawn_deaths_do_not_show_in_divided_gradients, clear_error),
        cmocka_unit_test_setup(drawn_deaths_do_not_show_in_divided_parameters, clear_error),
        cmocka_unit_test_setup(too_few_are_left, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
