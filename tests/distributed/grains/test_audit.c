/* SPDX-License-Identifier: Apache-2.0 */
/* Audits: a share of the grains is computed again on other ranks; a rank whose gradients are wrong is found, and nothing is found
 * where all are right. */
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader.h"
#include "distributed/comm/comm.h"
#include "distributed/digests.h"
#include "distributed/grains/grains.h"
#include "distributed/stepper_internal.h"
#include "graph/graph_loader.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "optim/optimizers.h"
#include "tensor/log.h"
#include "tests/distributed/grains/grain_runs.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

typedef struct made {
    int model, ranks, steps, batch, grain;
    double audit;
    int wrong;               /* the rank of the job that changes a bit of each of its gradients; -1: none */
    int64_t from;            /* the first step in which it does */
    struct trek_comm *comm;
    bool separate;
    int least;               /* with it, a process with a rank that is wrong leaves, while so many processes are left */
    bool dies;               /* the process, in a grain of the step `from` */
} made;

static made now;
static _Atomic int faults;

static void flip(int rank, int64_t step, int64_t number, const trek_arena *arena)
{
    if (now.dies && step == now.from)
        _exit(0);
    if (rank != now.wrong || step < now.from)
        return;
    grain_flip(arena->device, arena->parts[0].grads->data + 1, 4);
    atomic_fetch_add(&faults, 1);
}

static trek_var *loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    bool tokens = now.model == GPT || now.model == TIED_EMBEDDING;
    trek_var *labels = trek_batch_get(batch, tokens ? "next" : "label");
    return trek_cross_entropy(output, tokens ? trek_reshape(labels, trek_dims(-1)) : labels);
}

/* Trains. Returns the digest of the last step, and what the audit has found. */
static trek_step_digest train(const made *m, trek_audit_report *report)
{
    trek_step_digest last = { .weight = 0 };
    bool tokens = m->model == GPT || m->model == TIED_EMBEDDING;
    now = *m;
    atomic_store(&faults, 0);
    trek_seed(3);
    trek_loader *loader = trek_loader_new(grain_dataset(), &(trek_loader_opts){ .batch_size = m->batch, .shuffle = true,
                                                                               .seed = 4 });
    trek_device room[GRAIN_RANKS];
    const trek_device *devices = grain_devices(m->comm, m->ranks, false, room);
    trek_graph *graph = grain_build(room[0], &now.model);
    assert_int_equal(trek_graph_set_loader(graph, loader, tokens ? "tokens" : "x"), TREK_OK);
    assert_int_equal(trek_graph_set_loss(graph, loss, NULL), TREK_OK);
    trek_trainer_opts o = { .build_replica = grain_build, .arg = &now.model, .ranks = m->ranks, .devices = devices,
                            .grain = m->grain,
                            .audit = m->audit, .comm = m->comm, .balance = TREK_OFF,
                            .min_processes = m->least, .audit_removes = m->least > 0,
                            .share_params = m->separate ? TREK_OFF : 0,
                            .optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.01 }) };
    if (trek_trainer_setup(graph, &o) != TREK_OK)
        fail_msg("%s", trek_error());
    trek_graph_ranks(graph)->grains->fault = m->wrong >= 0 || m->dies ? flip : NULL;
    for (int epoch = 0; trek_graph_steps(graph) < m->steps; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; (batch = trek_graph_next(graph));) {
            if (trek_graph_steps(graph) >= m->steps)
                continue;
            trek_graph_train_batch(graph, batch);
            if (trek_graph_step(graph) != TREK_OK && m->least == 0)
                fail_msg("%s", trek_error());
        }
        if (trek_error_status() != TREK_OK)
            break;
    }
    if (trek_error_status() != TREK_OK) {
        printf("%s: %s\n", trek_status_name(trek_error_status()), trek_error());
        trek_error_clear();
    }
    trek_status status = trek_trainer_digest(graph, m->steps, &last);
    assert_int_equal(status, trek_graph_steps(graph) == m->steps ? TREK_OK : TREK_ERR_ARGUMENT);
    trek_error_clear();
    assert_int_equal(trek_trainer_audit(graph, report), TREK_OK);
    trek_graph_set_loader(graph, NULL, NULL);
    trek_loader_free(&loader);
    trek_graph_free(&graph);
    return last;
}

/* Every grain twice: nothing differs, and the step has the bits of one without an audit. */
static void test_right(void **state)
{
    for (int model = 0; model < MODELS; model++) {
        trek_audit_report report, none;
        made m = { .model = model, .ranks = 1 + model % 3 + 1, .steps = 5, .batch = 12, .grain = 5, .wrong = -1,
                   .separate = model % 2 };
        if (!grain_takes(model))
            continue;
        trek_step_digest plain = train(&m, &none);
        m.audit = 1;
        trek_step_digest audited = train(&m, &report);
        assert_memory_equal(&plain, &audited, sizeof plain);
        assert_int_equal(none.grains, 0);
        assert_int_equal(report.grains, 4 * 3 + 1); /* the last batch of an epoch of 53 has 5 samples */
        assert_int_equal(report.differences, 0);
    }
}

/* A rank that is wrong from some step on. */
static void test_wrong(void **state)
{
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int wrong = 0; wrong < ranks; wrong++) {
            trek_audit_report report;
            if (!grain_takes(ranks + wrong))
                continue;
            made m = { .model = MLP, .ranks = ranks, .steps = 8, .batch = 12, .grain = 2, .audit = 1, .wrong = wrong, .from = 3 };
            train(&m, &report);
            assert_true(report.differences > 0 && report.step >= 3 && report.step <= 8);
            assert_true(report.ranks[0] == wrong || report.ranks[1] == wrong);
            assert_int_equal(report.wrong, ranks > 2 ? wrong : -1);
        }
}

/* A share of the grains: the number of audits is what is to be expected, and so is the number of faults found. */
static void test_share(void **state)
{
    trek_audit_report report;
    made m = { .model = MLP, .ranks = 2, .steps = test_short_on_device() ? 60 : 600, .batch = 16, .grain = 1, .audit = 0.05,
               .wrong = -1 };
    train(&m, &report);
    double grains = m.steps / 4 * 53.0, expected = 0.05 * grains, deviation = sqrt(expected * 0.95);
    assert_true(fabs((double)report.grains - expected) < 5 * deviation);
    assert_int_equal(report.differences, 0);
    int64_t audited = report.grains;
    m.wrong = 1;
    m.from = 1;
    train(&m, &report);
    assert_int_equal(report.grains, audited); /* the same ones */
    assert_int_equal(report.differences, audited); /* one of two ranks is always wrong */
}

static void test_refused(void **state)
{
    const struct {
        trek_trainer_opts opts;
        const char *words;
    } cases[] = {
        { { .ranks = 1, .audit = 0.1 }, "without .grain" },
        { { .ranks = 1, .grain = 2, .audit_removes = true }, ".audit_removes: set, without .audit" },
        { { .ranks = 1, .grain = 2, .audit = 1.1 }, "must be 0 to 1" },
        { { .ranks = 1, .grain = 2, .audit = -0.1 }, "must be 0 to 1" },
        { { .ranks = 1, .grain = 2, .audit = NAN }, "must be 0 to 1" },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int model = MLP;
        trek_graph *graph = grain_build(trek_cpu(0), &model);
        assert_int_equal(trek_trainer_setup(graph, &cases[k].opts), TREK_ERR_ARGUMENT);
        if (!strstr(trek_error(), cases[k].words))
            fail_msg("\"%s\" is not in: %s", cases[k].words, trek_error());
        trek_error_clear();
        trek_graph_free(&graph);
    }
}

/* All grains of all models twice, on four ranks: no audit finds anything. TREK_TEST_AUDITED says how many grains. */
static void test_no_false_alarm(void **state)
{
    const char *wanted = getenv("TREK_TEST_AUDITED");
    int64_t n = wanted ? atoll(wanted) : test_short_on_device() ? 240 : test_short() ? 600 : 3000, audited = 0;
    for (int model = 0; audited < n; model = (model + 1) % MODELS) {
        trek_audit_report report;
        int64_t grains = n / MODELS < 20000 ? n / MODELS + 1 : 20000;
        made m = { .model = model, .ranks = 4, .steps = (int)(grains * 4 / 53 + 1), .batch = 16, .grain = 1, .audit = 1,
                   .wrong = -1,
                   .separate = model % 2 };
        train(&m, &report);
        assert_true(report.grains >= grains - 53);
        if (report.differences > 0)
            fail_msg("model %d: step %d, grain %d: %d differences of %d grains", model, (int)report.step, (int)report.grain,
                     (int)report.differences, (int)report.grains);
        audited += report.grains;
    }
    printf("%d grains were audited\n", (int)audited);
}

/* --- processes --------------------------------------------------------------------------------------------- */

enum { STEPS = 9, BATCH = 16, GRAIN = 2 };

/* "2,3": process 2 is wrong, and at least 3 must be left. */
static int play_removal(const part *of)
{
    trek_audit_report report;
    int wrong = 0, least = 0, dies = -1;
    sscanf(of->detail, "%d,%d,%d", &wrong, &least, &dies);
    made m = { .model = MLP, .ranks = 1, .steps = STEPS, .batch = BATCH, .grain = GRAIN, .audit = 1, .from = 4, .least = least,
               .wrong = of->process == wrong ? wrong : -1, .dies = of->process == dies };
    m.comm = trek_comm_init(&(trek_comm_opts){ .rank = of->process, .world_size = of->processes, .address = of->address,
                                               .port = of->port, .token = "sesame", .deadline_s = 60 });
    trek_step_digest last = train(&m, &report);
    printf("digest %016" PRIx64 ".\n", last.parameters[0]);
    trek_comm_free(&m.comm);
    return 0;
}

static int play(const part *of)
{
    trek_audit_report report;
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL); /* where there are few GPUs, a warning says that processes share one */
    made m = { .model = MLP, .ranks = 1 + of->process, .steps = STEPS, .batch = BATCH, .grain = GRAIN, .audit = 0.7,
               .wrong = atoi(of->detail), .from = 4 };
    m.comm = trek_comm_init(&(trek_comm_opts){ .rank = of->process, .world_size = of->processes, .address = of->address,
                                               .port = of->port, .token = "sesame", .deadline_s = 60 });
    train(&m, &report);
    printf("%d grains, %s, wrong %d\n", (int)report.grains, report.differences > 0 ? "differences" : "no difference",
           report.differences > 0 ? report.wrong : -1);
    trek_comm_free(&m.comm);
    return 0;
}

/* --- one bit in every step --- */

/* The grain of a step in which whoever computes it first flips a bit. */
static int64_t planted(int64_t step, int64_t grains)
{
    return (int64_t)((uint64_t)step * UINT64_C(0x9e3779b97f4a7c15) >> 33) % grains;
}

static struct {
    _Atomic bool trains;     /* nothing is flipped while grains are computed again */
    int64_t grains;          /* of the batch */
    _Atomic int64_t step;    /* the last one in which this process has flipped a bit */
} bits;

static void flip_one(int rank, int64_t step, int64_t number, const trek_arena *arena)
{
    if (!atomic_load(&bits.trains) || number != planted(step, bits.grains))
        return;
    grain_flip(arena->device, arena->parts[0].grads->data + 1, 4);
    atomic_store(&bits.step, step);
}

/* Makes a step. Counts what should be found, and complains if it is not. */
static void step_with_a_bit(trek_graph *graph, trek_batch *batch, int rank, int64_t *expected)
{
    trek_audit_report before, after;
    int64_t step = trek_graph_steps(graph) + 1;
    trek_trainer_audit(graph, &before);
    bits.grains = (batch->global + 1) / 2;
    atomic_store(&bits.trains, true);
    trek_graph_train_batch(graph, batch);
    atomic_store(&bits.trains, false);
    bool audited = trek_grains_is_audited(trek_graph_ranks(graph), 0, planted(step, bits.grains));
    *expected += audited;
    if (trek_graph_step(graph) != TREK_OK || trek_trainer_audit(graph, &after) != TREK_OK)
        printf("%s\n", trek_error());
    else if (after.differences != before.differences + audited)
        printf("step %d: %d differences instead of %d\n", (int)step, (int)(after.differences - before.differences), audited);
    else if (audited && (after.step != step || after.grain != planted(step, bits.grains)))
        printf("step %d: step %d, grain %d was found\n", (int)step, (int)after.step, (int)after.grain);
    else if (audited && (after.wrong == rank) != (atomic_load(&bits.step) == step))
        printf("step %d: rank %d is said to be wrong\n", (int)step, after.wrong);
}

static int play_bits(const part *of)
{
    int64_t steps = atoll(of->detail), expected = 0;
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    now = (made){ .model = MLP };
    trek_seed(3);
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = of->process, .world_size = of->processes, .address = of->address,
                                                        .port = of->port, .token = "sesame", .deadline_s = 60 });
    trek_loader *loader = trek_loader_new(grain_dataset(), &(trek_loader_opts){ .batch_size = 16, .shuffle = true, .seed = 4 });
    trek_device room[GRAIN_RANKS];
    const trek_device *devices = grain_devices(comm, 1, false, room);
    trek_graph *graph = grain_build(room[0], &now.model);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, loss, NULL);
    if (trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = grain_build, .arg = &now.model, .ranks = 1,
                                                        .devices = devices, .grain = 2, .audit = 0.1, .comm = comm,
                                                        .balance = TREK_OFF, .optimizer = trek_adam(NULL) }) != TREK_OK)
        return printf("%s\n", trek_error()), 1;
    trek_graph_ranks(graph)->grains->fault = flip_one;
    for (int epoch = 0; trek_graph_steps(graph) < steps; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; (batch = trek_graph_next(graph));)
            if (trek_graph_steps(graph) < steps)
                step_with_a_bit(graph, batch, of->process, &expected);
    }
    printf("%d of them in grains that were audited\n", (int)expected);
    trek_graph_set_loader(graph, NULL, NULL);
    trek_loader_free(&loader);
    trek_graph_free(&graph);
    trek_comm_free(&comm);
    return 0;
}

/* In each step of four processes one bit of one grain is wrong. The audit finds it if it has chosen that grain, names the rank,
 * and finds nothing else. It has chosen a tenth of them, so a bit is found in every tenth step. TREK_TEST_DRAWS says how many
 * steps. */
static void test_bits(void **state)
{
    static world w;
    const char *draws = getenv("TREK_TEST_DRAWS");
    int steps = draws ? atoi(draws) : test_short() ? 60 : 200, found = 0;
    char detail[32];
    snprintf(detail, sizeof detail, "%d", steps);
    processes_run_all(&w, 4, "bits", detail, -1, NULL);
    for (int p = 0; p < 4; p++) {
        int own = -1;
        sscanf(w.text[p], "%d of them", &own);
        found = p == 0 ? own : found;
        if (w.code[p] != 0 || own != found)
            FAIL_WORLD(&w, "process %d found something else", p);
    }
    if (!(fabs(found - 0.1 * steps) < 5 * sqrt(0.09 * steps)))
        fail_msg("%d of %d bits were found", found, steps);
}

/* Ranks 0, 1 and 2, 3 to 5 of three processes. */
static void test_processes(void **state)
{
    static world w;
    const char *const wrong[] = { "-1", "0", "2", "5" };
    char first[64] = "";
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        char expected[100];
        if (!grain_takes((int)k))
            continue;
        processes_run_all(&w, 3, "audit", wrong[k], -1, NULL);
        if (k == 0)
            snprintf(first, sizeof first, "%.*s", (int)strcspn(w.text[0], ","), w.text[0]);
        snprintf(expected, sizeof expected, "%s, %s, wrong %s\n", first, k == 0 ? "no difference" : "differences", wrong[k]);
        for (int p = 0; p < 3; p++)
            if (w.code[p] != 0 || !strstr(w.text[p], expected))
                FAIL_WORLD(&w, "rank %s is wrong: process %d did not say: %s", wrong[k], p, expected);
    }
}

/* Formats what a process prints after training in which nobody was wrong. */
static void say_right(char *text, size_t capacity)
{
    trek_audit_report none;
    made right = { .model = MLP, .ranks = 1, .steps = STEPS, .batch = BATCH, .grain = GRAIN, .wrong = -1 };
    snprintf(text, capacity, "digest %016" PRIx64 ".", train(&right, &none).parameters[0]);
}

/* Any of four processes: the others end with the bits of a job in which nobody was wrong. If too few would be left, it stays. On
 * GPUs no job outlives a process. */
static void test_removal(void **state)
{
    if (!test_on_cpu())
        skip();
    static world w;
    char wanted[64];
    say_right(wanted, sizeof wanted);
    for (int wrong = 0; wrong <= 4; wrong++) {
        char detail[16];
        bool leaves = wrong < 4;
        snprintf(detail, sizeof detail, "%d,%d", wrong % 4, leaves ? 3 : 4);
        processes_run_all(&w, 4, "removal", detail, -1, NULL);
        for (int p = 0; p < 4; p++) {
            bool good = leaves && p == wrong ? strstr(w.text[p],
                                                      "TREK_ERR_STATE: graph_step: .audit_removes: a rank of this process "
                                                                 "was wrong in step 4") != NULL
                : leaves ? strstr(w.text[p], wanted) != NULL
                : strstr(w.text[p], "digest ") && !strstr(w.text[p], wanted) && !strstr(w.text[p], "TREK_ERR");
            if (w.code[p] == 0 && good && (leaves || p > 0 || strstr(w.text[p], "nobody leaves, because 3 of 4 processes")))
                continue;
            processes_print(&w);
            fail_msg("%s: process %d ended with %d, and not as it should (%s)", detail, p, w.code[p], wanted);
        }
    }
}

/* Process 0 dies in the step in which process 2 is wrong, so that ranks have other numbers when the audit asks whose grains those
 * are: it is process 2 that leaves, and no other. */
static void test_removal_after_death(void **state)
{
    if (!test_on_cpu())
        skip();
    static world w;
    char wanted[64];
    say_right(wanted, sizeof wanted);
    processes_run_all(&w, 4, "removal", "2,2,0", -1, NULL);
    for (int p = 1; p < 4; p++)
        if (w.code[p] != 0 || !strstr(w.text[p], p == 2 ? "a rank of this process was wrong in step 4" : wanted))
            FAIL_WORLD(&w, "process %d ended with %d, and not as it should (%s)", p, w.code[p], wanted);
}

int main(void)
{
    part of;
    if (processes_part(&of))
        return strcmp(of.role, "removal") == 0 ? play_removal(&of) : strcmp(of.role, "bits") == 0 ? play_bits(&of) : play(&of);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right), cmocka_unit_test(test_wrong), cmocka_unit_test(test_share), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_false_alarm), cmocka_unit_test(test_processes), cmocka_unit_test(test_bits),
        cmocka_unit_test(test_removal), cmocka_unit_test(test_removal_after_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
