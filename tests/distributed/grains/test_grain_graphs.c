/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that train several graphs in turn, and die between and within their steps. The others end with the bits of one
 * process that trains alone, and all of their graphs have the same group. */
#include <stdio.h>
#include <string.h>

#include "autograd/ops.h"
#include "data/loader.h"
#include "distributed/ddp.h"
#include "distributed/trainer_ranks.h"
#include "graph/graph_loader.h"
#include "graph/observe.h"
#include "graph/settings.h"
#include "nn/layers.h"
#include "tensor/creation.h"
#include "tests/distributed/grains/dying.h"
#include "tests/distributed/grains/grain_runs.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* A graph may be set up before the third step, or freed after it. */
enum { GRAPHS = 64, LATER = 2, FREED = 2 };

typedef struct training {
    const char *detail;
    int n;                   /* graphs */
    grain_run runs[GRAPHS];
    trek_graph *graphs[GRAPHS];
    trek_loader *loader;     /* of all */
    trek_ddp *wrapper;       /* of a module that is trained in turn, too; NULL: none */
    trek_module *wrapped;
    grain_result *result;
} training;

static bool says(const training *t, const char *word) { return strstr(t->detail, word) != NULL; }

/* --- training ------------------------------------------------------------------------------------------------------- */

static bool begin(training *t, int k)
{
    static const int models[] = { MLP, CONV_AND_BATCH_NORM, DROPOUT_AND_RECOMPUTATION };
    t->runs[k].model = models[k % 3];
    t->graphs[k] = grain_set_up(&t->runs[k], t->loader);
    return t->graphs[k] != NULL;
}

static bool wrap(training *t)
{
    t->wrapped = trek_nn_linear(4, 3, trek_cpu(0));
    t->wrapper = trek_ddp_wrap_process(t->wrapped, t->runs[0].comm, &(trek_ddp_opts){ .min_processes = 1 });
    return t->wrapper != NULL;
}

/* The ranks reduce gradients, which need not be equal: how many there are then does not change the graphs. */
static bool train_wrapped(const training *t)
{
    trek_scope scope = trek_scope_begin();
    trek_tensor *x = trek_tensor_full(trek_dims(2, 4), 0.25, TREK_F32, trek_cpu(0));
    trek_var *loss = trek_sum(trek_forward(t->wrapped, trek_var_from(x)), trek_dims_all(), false);
    bool good = trek_ddp_backward_weighted(t->wrapper, loss, 1) == TREK_OK && trek_ddp_sync_params(t->wrapper) == TREK_OK;
    trek_scope_end(scope);
    return good;
}

static void mix(grain_result *r, double number)
{
    unsigned char bytes[sizeof number];
    memcpy(bytes, &number, sizeof bytes);
    for (size_t k = 0; k < sizeof bytes; k++)
        r->digest = (r->digest ^ bytes[k]) * UINT64_C(0x100000001b3);
}

static bool pass(const training *t, int k, trek_batch *batch)
{
    trek_var *mean = trek_graph_train_batch(t->graphs[k], batch);
    mix(t->result, mean ? trek_var_item(mean) : 0);
    return mean != NULL;
}

static bool step(const training *t, int k)
{
    if (trek_graph_step(t->graphs[k]) != TREK_OK)
        return false;
    mix(t->result, trek_graph_grad_norm(t->graphs[k]));
    return true;
}

/* One step of each graph: one after the other, or woven, so that all have passes when the first one makes its step. */
static bool step_all(const training *t, trek_batch *batch)
{
    bool good = true, woven = says(t, "woven");
    for (int k = 0; k < t->n && good; k++)
        good = !t->graphs[k] || (pass(t, k, batch) && (woven || step(t, k)));
    if (good && t->wrapper)
        good = train_wrapped(t);
    for (int k = t->n - 1; k >= 0 && good && woven; k--)
        good = !t->graphs[k] || step(t, k);
    return good && trek_graph_flush(t->graphs[0]) == TREK_OK;
}

static bool train(training *t)
{
    for (int64_t epoch = 0, made = 0; made < t->runs[0].steps; epoch++) {
        if (trek_graph_start(t->graphs[0], epoch) != TREK_OK)
            return false;
        for (trek_batch *batch; made < t->runs[0].steps && (batch = trek_graph_next(t->graphs[0])); made++) {
            if (made == LATER && says(t, "later") && !begin(t, t->n - 1))
                return false;
            if (!step_all(t, batch))
                return false;
            if (made == FREED && says(t, "frees"))
                trek_graph_free(&t->graphs[t->n - 1]);
        }
        if (trek_error_status() != TREK_OK)
            return false;
    }
    return true;
}

/* What the graphs have become. Their ranks are the same, or 0 says that they are not. */
static bool conclude(training *t)
{
    bool good = true;
    t->result->world = trek_graph_world_size(t->graphs[0]);
    for (int k = 0; k < t->n && good; k++) {
        good = !t->graphs[k] || grain_add_state(&t->runs[k], t->graphs[k], t->result);
        if (t->graphs[k] && trek_graph_world_size(t->graphs[k]) != t->result->world)
            t->result->world = 0;
    }
    return good;
}

static bool train_graphs(const char *detail, trek_comm *comm, grain_result *result)
{
    training t = { .detail = detail, .n = dying_number(detail, "graphs=", 2), .result = result };
    *result = (grain_result){ .digest = 1 };
    for (int k = 0; k < t.n; k++) {
        t.runs[k] = dying_run(detail);
        t.runs[k].comm = comm;
        t.runs[k].min_processes = comm ? t.runs[k].min_processes : 0;
    }
    t.loader = trek_loader_new(grain_dataset(), &(trek_loader_opts){ .batch_size = t.runs[0].batch, .shuffle = true, .seed = 5 });
    bool good = t.loader != NULL && (!says(&t, "wrapper-first") || !comm || wrap(&t));
    for (int k = 0; k < t.n - says(&t, "later") && good; k++)
        good = begin(&t, k);
    if (good && says(&t, "wrapper-last") && comm)
        good = wrap(&t);
    trek_seed(23);
    good = good && train(&t) && conclude(&t);
    trek_ddp_free(&t.wrapper);
    for (int k = 0; k < t.n; k++)
        trek_graph_free(&t.graphs[k]);
    trek_loader_free(&t.loader);
    return good;
}

static int play(const part *me)
{
    static grain_result result;
    trek_comm *comm = dying_join(me, me->processes);
    if (!comm)
        return 1;
    dying_begin(me, comm);
    bool good = train_graphs(me->detail, comm, &result);
    dying_end();
    return dying_report(good ? &result : NULL, comm);
}

/* --- what is expected ------------------------------------------------------------------------------------------------- */

static uint64_t digest_of(const char *detail)
{
    static grain_result result;
    if (!train_graphs(detail, NULL, &result))
        fail_msg("%s: %s", detail, trek_error());
    return result.digest;
}

/* What two and three graphs are trained like. */
static const char *const ways[] = { "graphs=2,steps=3", "graphs=3,steps=3,woven,clipped", "graphs=3,steps=4,frees",
                                    "graphs=2,steps=3,sharded",
                                    "graphs=2,steps=3,woven,sharded,divided=1", "graphs=2,steps=3,sharded,divided=2",
                                    "graphs=2,steps=3,wrapper-first", "graphs=2,steps=3,wrapper-last,woven" };
enum { WAYS = sizeof ways / sizeof ways[0] };

static int count_calls(const char *way, uint64_t digest, int n)
{
    static const char *const nobody[PROCESSES];
    return dying_expect(way, dying_roles(n, nobody), digest, n);
}

/* Before and after every call of all graphs in which the processes meet. */
static void one_dies_before_or_after_any_call(void **state)
{
    int every = test_short() ? 47 : test_long() ? 5 : 23;
    for (int d = 0; d < WAYS; d++) {
        uint64_t digest = digest_of(ways[d]);
        int n = strstr(ways[d], "divided") ? 4 : 3, made = count_calls(ways[d], digest, n);
        assert_true(made > 30);
        for (int k = d % every; k < 2 * made - 1; k += every) { /* after the last one it is done */
            char when[32];
            const char *deaths[PROCESSES] = { 0 };
            snprintf(when, sizeof when, "%s=%d", k % 2 ? "after" : "before", k / 2);
            deaths[k % n] = when;
            dying_expect(ways[d], dying_roles(n, deaths), digest, n - 1);
        }
    }
}

/* Process 0 dies before its next call, in which the others are, while process 1 has not learned yet that the last one has ended:
 * that may be a call of another graph. */
static void another_is_in_another_graph(void **state)
{
    int every = test_short() ? 29 : test_long() ? 3 : 11;
    if (!test_on_cpu()) /* how many calls there are depends on who runs which grains */
        skip();
    for (int d = 0; d < WAYS; d++) {
        uint64_t digest = digest_of(ways[d]);
        int n = strstr(ways[d], "divided") ? 4 : 3, made = count_calls(ways[d], digest, n);
        for (int k = d % every; k < made - 1; k += every) {
            char dies[32], late[48];
            snprintf(dies, sizeof dies, "before=%d", k + 1);
            snprintf(late, sizeof late, "late=%d,of-process=0", k);
            dying_expect(ways[d], (const role[]){ DIES(dies), LIVES(late), LIVES("-"), { .text = n > 3 ? "-" : NULL }, { 0 } },
                         digest, n - 1);
        }
    }
}

/* What a process that has died knew of is no matter for a graph that is set up after that. A death within its set-up would be an
 * error, so no calls are counted here. */
static void a_graph_comes_later(void **state)
{
    static const char *const moments[] = { "at=grain:2", "at=sync:0", "at=sync:1", "at=optimizer:1", "at=sync:4", "at=sync:5" };
    static const char *const details[] = { "graphs=2,steps=4,later", "graphs=3,steps=4,later,woven,sharded" };
    for (int d = 0; d < 2; d++) {
        uint64_t digest = digest_of(details[d]);
        for (int k = d; k < 6; k += test_short() ? 3 : 1) {
            const char *deaths[PROCESSES] = { 0 };
            deaths[k % 3] = moments[k];
            dying_expect(details[d], dying_roles(3, deaths), digest, 2);
        }
    }
}

/* Those that have completed the last step of the last graph have left. One that has not learned that its last call has ended
 * completes it, too, although too few are left then. */
static void the_last_step_is_completed(void **state)
{
    static const char *const details[] = { "graphs=2,steps=2,least=2", "graphs=3,steps=3,frees,least=2" };
    for (int d = 0; d < 2; d++) {
        char late[24], dies[24];
        uint64_t digest = digest_of(details[d]);
        int last = count_calls(details[d], digest, 3) - 1;
        snprintf(late, sizeof late, "late=%d", last);
        snprintf(dies, sizeof dies, "after=%d", last);
        dying_expect(details[d], (const role[]){ LIVES(late), DIES(dies), LIVES("-"), { 0 } }, digest, -1);
    }
}

static void too_few_are_left(void **state)
{
    const role roles[] = { REPORTS("-", "TREK_ERR_PEER: *process 1*.min_processes is 3"), DIES("at=sync:2"),
                           REPORTS("-", "TREK_ERR_PEER: *process 1*.min_processes is 3"), { 0 } };
    dying_expect("graphs=2,least=3", roles, 0, -1);
}

static void there_may_be_too_many(void **state)
{
    const role roles[] = { REPORTS("-", "TREK_ERR_UNSUPPORTED: trainer_setup: .min_processes: set for one more graph*has 63"),
                           REPORTS("-", "TREK_ERR_UNSUPPORTED: trainer_setup: .min_processes: set for one more graph*has 63"),
                           { 0 } };
    dying_expect("graphs=64", roles, 0, -1);
}

int main(void)
{
    static part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(one_dies_before_or_after_any_call, clear_error),
        cmocka_unit_test_setup(another_is_in_another_graph, clear_error),
        cmocka_unit_test_setup(a_graph_comes_later, clear_error),
        cmocka_unit_test_setup(the_last_step_is_completed, clear_error),
        cmocka_unit_test_setup(too_few_are_left, clear_error),
        cmocka_unit_test_setup(there_may_be_too_many, clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
