/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of several processes in grains, some of which die: before and after every call in which they meet, and in every span.
 * Those that are left end with the bits and the metrics of one process that runs alone; and where a death comes within a step,
 * they keep their graph. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "data/dataset.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/run.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "tensor/dtypes.h"
#include "tensor/layout.h"
#include "tests/distributed/grains/dying.h"
#include "tests/distributed/grains/grain_runs.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { EPOCHS = 2 };

/* What comes of a run. */
typedef struct outcome {
    uint64_t digest;         /* of the final state */
    int builds, begun;       /* how often the model was built, and an epoch begun */
    int epochs;              /* that the program was told of */
    double loss, evaluation; /* of the last one */
} outcome;

static outcome now;
static int model;

/* --- a run --------------------------------------------------------------------------------------------------- */

static trek_graph *build(trek_device device, void *arg)
{
    now.builds++;
    return grain_build(device, arg);
}

static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

static trek_var *loss_of_evaluation(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    dying_enter("evaluation");
    return loss_of(graph, output, batch, arg);
}

static trek_status on_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    now.begun++;
    return TREK_OK;
}

static void take_state(const trek_state *state)
{
    now.digest = UINT64_C(0xcbf29ce484222325);
    for (int k = 0; k < trek_state_count(state); k++) {
        trek_tensor *tensor = trek_state_tensor(state, k);
        const unsigned char *bytes = trek_tensor_data(tensor);
        for (size_t i = 0; i < (size_t)trek_tensor_numel(tensor) * trek_dtype_size(trek_tensor_dtype(tensor)); i++)
            now.digest = (now.digest ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
}

/* Runs as the text says, with comm or alone. Returns false with an error. */
static bool train(const char *text, trek_comm *comm)
{
    const char *folder = comm ? dying_word(text, "checkpoints=") : NULL;
    char path[128];
    snprintf(path, sizeof path, "%.*s", folder ? (int)strcspn(folder, ",") : 0, folder ? folder : "");
    now = (outcome){ .loss = NAN };
    model = dying_number(text, "model=", MLP);
    trek_dataset *dataset = grain_dataset();
    trek_run_opts o = { .build_model = build, .train_step = loss_of, .arg = &model, .dataset = dataset, .evaluation = dataset,
                        .evaluate = loss_of_evaluation,
                        .input = "x", .optimizer = trek_adamw(NULL), .batch_size = dying_number(text, "batch=", 20),
                        .shuffle = true, .epochs = EPOCHS, .min_processes = comm ? dying_number(text, "least=", 1) : 0,
                        .on_epoch = on_epoch, .evaluation_batch = 13,
                        .checkpoint_folder = folder ? path : NULL, .checkpoint_every_steps = folder ? 2 : 0,
                        .trainer = { .grain = dying_number(text, "grain=", 3), .comm = comm, .balance = TREK_OFF,
                                     .accumulate = dying_number(text, "accumulate=", 0),
                                     .ranks = comm ? dying_number(text, "ranks=", 1) : 1 } };
    trek_run *run = trek_trainer_run(&o);
    trek_epoch_metrics m;
    for (; run && trek_run_next(run, &m); now.epochs++) {
        now.loss = m.loss;
        now.evaluation = m.evaluation_loss;
    }
    trek_state *state = run ? trek_run_join(run) : NULL;
    if (state)
        take_state(state);
    bool good = state != NULL;
    trek_state_free(&state);
    trek_dataset_free(&dataset);
    return good;
}

static int play(const part *me)
{
    trek_comm *comm = dying_join(me, me->processes);
    if (!comm)
        return 1;
    dying_begin(me, comm);
    bool good = train(me->detail, comm);
    dying_end();
    if (good)
        printf("digest %016" PRIx64 " builds %d begun %d epochs %d loss %.17g evaluation %.17g calls %d.\n", now.digest,
               now.builds, now.begun, now.epochs, now.loss, now.evaluation, dying_calls());
    else
        printf("%s: %s\n", trek_status_name(trek_error_status()), trek_error());
    trek_error_clear();
    trek_comm_free(&comm);
    return good ? 0 : 1;
}

/* --- what is expected ------------------------------------------------------------------------------------------ */

static world w;

static outcome alone(const char *detail)
{
    if (!train(detail, NULL))
        fail_msg("%s: %s", detail, trek_error());
    return now;
}

static bool read_outcome(const char *text, outcome *to)
{
    const char *at = strstr(text, "digest ");
    return at && sscanf(at, "digest %" SCNx64 " builds %d begun %d epochs %d loss %lf evaluation %lf", &to->digest, &to->builds,
                        &to->begun, &to->epochs, &to->loss, &to->evaluation) == 6;
}

/* Values that a program records are process 0's to add up, and go with it. */
static bool is_as(const outcome *got, const outcome *expected, bool records)
{
    bool losses = !records || (got->loss == expected->loss && fabs(got->evaluation - expected->evaluation) < 1e-6);
    return got->digest == expected->digest && got->epochs == expected->epochs && losses;
}

/* Runs n processes. deaths[p]: when process p dies; NULL: it does not. All others must come to what is expected. Returns how
 * often the first of them has built its model. */
static int expect(const char *detail, int n, const char *const *deaths, const outcome *expected, int *made)
{
    int builds = 0;
    dying_play(&w, detail, dying_roles(n, deaths));
    for (int p = 0; p < n; p++) {
        outcome got = { 0 };
        const char *calls = strstr(w.text[p], "calls ");
        if (made && p == 0 && calls)
            *made = atoi(calls + 6);
        if (deaths[p] && w.code[p] == -SIGKILL)
            continue;
        if (deaths[p] || w.code[p] != 0 || !read_outcome(w.text[p], &got) || !is_as(&got, expected, !deaths[0]))
            FAIL_WORLD(&w, "%s: process %d (%s) ended with %d, not with digest %016" PRIx64 " loss %.17g evaluation %.17g",
                       detail, p,
                     deaths[p] ? deaths[p] : "lives", w.code[p], expected->digest, expected->loss, expected->evaluation);
        builds = builds ? builds : got.builds;
    }
    return builds;
}

/* --- tests ------------------------------------------------------------------------------------------------------- */

/* Every call, and both sides of it: of passes, steps, metrics, and what the run agrees on besides. */
static void one_dies_before_or_after_any_call(void **state)
{
    const char *detail = "model=1", *nobody[3] = { 0 };
    outcome expected = alone(detail);
    int made = 0, kept = 0, every = test_short() ? 9 : 2, runs = 0;
    assert_int_equal(expect(detail, 3, nobody, &expected, &made), 1);
    assert_true(made > 30);
    for (int k = 0; k < made; k++)
        for (int after = 0; after < 2; after++) {
            char when[32];
            const char *deaths[3] = { 0 };
            snprintf(when, sizeof when, "%s=%d", after ? "after" : "before", k);
            deaths[(k + after) % 3] = when;
            if ((2 * k + after) % every != 0 || (after && k == made - 1)) /* after the last one it is done */
                continue;
            kept += expect(detail, 3, deaths, &expected, NULL) == 1;
            runs++;
        }
    assert_true(2 * kept > runs); /* most calls are made within steps, and nothing is built again */
}

static void within_a_step_nothing_is_built_again(void **state)
{
    static const char *const spans[] = { "at=grain:1", "at=sum_grain:4", "at=backward:3", "at=sync:1", "at=reduce:0",
                                         "at=reduce_processes:2", "at=optimizer:1", "at=grain:3" };
    for (int k = 0; k < (int)(sizeof spans / sizeof *spans); k++) {
        char detail[128];
        const char *deaths[4] = { 0 };
        snprintf(detail, sizeof detail, "model=%d,ranks=%d,accumulate=%d", k % 2 ? LSTM : k % 4 ? MLP : CONV_AND_BATCH_NORM,
                 1 + k % 2, k % 3);
        deaths[k % 3] = spans[k];
        outcome expected = alone(detail);
        if (expect(detail, 3, deaths, &expected, NULL) != 1 + k % 2) { /* once for each rank */
            processes_print(&w);
            fail_msg("%s: process %d (%s) has died within a step, and the model was built again", detail, k % 3, spans[k]);
        }
    }
}

/* In an evaluation the processes are in no step: the run goes back to the last one, and evaluates again. */
static void an_evaluation_is_made_again(void **state)
{
    outcome expected = alone("model=1");
    assert_int_equal(expect("model=1", 3, (const char *[]){ NULL, "at=evaluation:0", NULL }, &expected, NULL), 2);
}

static void several_die(void **state)
{
    static const struct {
        const char *detail, *deaths[4];
    } cases[] = {
        { "model=0", { NULL, "before=14", "before=14", NULL } },
        { "model=1", { "at=grain:1", NULL, "at=grain:5", NULL } },
        { "model=3", { NULL, "after=9", NULL, "at=regroup:0" } },
        { "model=5", { "at=take_over:0", "before=16", NULL, NULL } },
        { "model=0,ranks=2", { "at=grain:9", NULL, "before=11", NULL } },
    };
    for (int k = 0; k < (int)(sizeof cases / sizeof *cases); k++) {
        outcome expected = alone(cases[k].detail);
        expect(cases[k].detail, 4, cases[k].deaths, &expected, NULL);
    }
}

/* The process that writes checkpoints dies; another one writes those that follow, and the last is the run's end. */
static void another_process_writes_checkpoints(void **state)
{
    char detail[200], path[256];
    char folder[] = "/tmp/trek-run-deaths-XXXXXX";
    assert_non_null(mkdtemp(folder));
    snprintf(detail, sizeof detail, "model=1,checkpoints=%s", folder);
    outcome expected = alone(detail);
    assert_int_equal(expect(detail, 3, (const char *[]){ "at=grain:4", NULL, NULL }, &expected, NULL), 1);
    snprintf(path, sizeof path, "%s/step-%012d.safetensors", folder, 3 * EPOCHS);
    trek_state *file = trek_state_read(path);
    if (!file)
        fail_msg("%s", trek_error());
    trek_state_free(&file);
    snprintf(path, sizeof path, "rm -r %s", folder);
    assert_int_equal(system(path), 0);
}

static void over_gloo_too(void **state)
{
    char why[256];
    if (!trek_comm_gloo_there(why, sizeof why))
        skip();
    outcome expected = alone("model=0");
    expect("model=0,gloo", 3, (const char *[]){ NULL, "before=14", NULL }, &expected, NULL);
    expect("model=0,gloo", 3, (const char *[]){ "at=grain:5", NULL, NULL }, &expected, NULL);
}

static void too_few_are_left(void **state)
{
    dying_leave_too_few();
}

int main(void)
{
    static part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(within_a_step_nothing_is_built_again, clear_error),
        cmocka_unit_test_setup(one_dies_before_or_after_any_call, clear_error),
        cmocka_unit_test_setup(an_evaluation_is_made_again, clear_error),
        cmocka_unit_test_setup(several_die, clear_error),
        cmocka_unit_test_setup(another_process_writes_checkpoints, clear_error),
        cmocka_unit_test_setup(over_gloo_too, clear_error),
        cmocka_unit_test_setup(too_few_are_left, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
