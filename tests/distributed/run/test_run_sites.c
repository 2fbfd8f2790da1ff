/* SPDX-License-Identifier: Apache-2.0 */
/* Runs in two levels, over real processes: what several ranks of a process train together is, to rounding, what one trains alone;
 * to the optimum, in uneven processes, and when a rank fails, a process dies, or a run is stopped and goes on. */
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/loader_position.h"
#include "distributed/run_progress.h"
#include "distributed/stepper_internal.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "optim/schedules.h"
#include "tests/distributed/run/line.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { HIDDEN = 4, MOST = 64, MOST_WAYS = 8, STOP_AFTER = ROWS + 9 };

/* --- what is trained ------------------------------------------------------------------------------------ */

typedef struct way {
    trek_policy policy;
    int64_t counts[2];       /* of the two processes' batches, in a plan; 0: none */
    bool adam, schedule, clip, masked, dropout;
    bool separate;           /* replicas of their own, gradients in several buckets */
    bool shared_out;         /* ranks have fixed shares of a batch, equal sums in each process */
    int64_t max_lead;
    int bits, fragments;     /* of an outer optimizer; 0: none. Then in f32 */
    double tolerance;
} way;

static const way ways[] = {
    { .policy = TREK_POLICY_SYNC, .masked = true, .clip = true, .tolerance = 1e-11 },
    { .policy = TREK_POLICY_CADENCE, .counts = { 2, 3 }, .adam = true, .schedule = true, .dropout = true, .tolerance = 1e-11 },
    { .policy = TREK_POLICY_SYNC, .max_lead = TREK_OFF, .adam = true, .dropout = true, .clip = true, .separate = true,
      .tolerance = 1e-11 },
    { .policy = TREK_POLICY_CADENCE, .counts = { 3, 1 }, .max_lead = 1, .separate = true, .masked = true, .schedule = true,
      .tolerance = 1e-11 },
    { .policy = TREK_POLICY_SYNC, .shared_out = true, .masked = true, .adam = true, .tolerance = 1e-11 },
    { .policy = TREK_POLICY_CADENCE, .counts = { 2, 2 }, .bits = 32, .fragments = 1, .masked = true, .tolerance = 1e-5 },
    { .policy = TREK_POLICY_SYNC, .bits = 8, .fragments = 3, .separate = true, .clip = true, .tolerance = 1e-3 },
};
enum { WAYS = sizeof ways / sizeof *ways };

static const way *present;
static const part *mine;
static trek_graph *first; /* rank 0's */
static int fails_at = -1; /* the second rank's call */
static _Atomic(trek_run *) to_stop; /* after STOP_AFTER rows of this process */
static bool stops;
static atomic_int rows;      /* trained here */
static bool normalized;
static double began;         /* when the process began, by processes_now */

static trek_graph *build(trek_device device, void *arg)
{
    trek_linear_opts a = { .in = FEATURES, .out = HIDDEN, .device = device, .dtype = line_dtype };
    trek_linear_opts b = { .in = HIDDEN, .out = 1, .device = device, .dtype = line_dtype };
    trek_batch_norm_opts norm = { .features = HIDDEN, .device = device, .dtype = line_dtype };
    trek_flow *flow = trek_flow_through(trek_flow_from(trek_nn_linear_with(&a)), trek_nn_tanh());
    if (normalized)
        trek_flow_through(flow, trek_nn_batch_norm1d_with(&norm));
    if (present && present->dropout)
        trek_flow_through(flow, trek_nn_dropout(0.3));
    return trek_flow_build(trek_flow_through(flow, trek_nn_linear_with(&b)));
}

/* Rows that a multiple of three does not number count, so that a part of a batch may weigh nothing. */
static trek_var *loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    static atomic_int calls;
    if (fails_at >= 0 && trek_var_device(output).index == 1 && trek_module_is_training(trek_graph_module(graph)) &&
        atomic_fetch_add(&calls, 1) >= fails_at)
        return (trek_fail(TREK_ERR_IO, "tired"), NULL);
    while (stops && !atomic_load(&to_stop)) /* trek_trainer_run has not returned yet */
        usleep(100);
    if (trek_module_is_training(trek_graph_module(graph)) && atomic_fetch_add(&rows, (int)trek_batch_size(batch)) >= STOP_AFTER &&
        stops)
        trek_run_stop(atomic_load(&to_stop));
    if (!present || !present->masked)
        return line_squares(graph, output, batch, arg);
    double counts[BATCH], sum = 0;
    int64_t n = trek_batch_size(batch);
    for (int64_t k = 0; k < n; k++)
        sum += counts[k] = trek_batch_indices(batch)[k] % 3 != 0;
    trek_tensor *wide = trek_tensor_from_data(counts, trek_dims(n, 1), TREK_F64, trek_var_device(output));
    trek_var *mask = trek_var_from(trek_tensor_cast(wide, line_dtype));
    trek_tensor_release(wide);
    trek_var *squares = trek_mul(mask, trek_square(trek_sub(output, trek_batch_get(batch, "y"))));
    trek_var *mean = trek_mul_scalar(trek_sum(squares, trek_dims_all(), false), sum > 0 ? 1 / sum : 0);
    trek_loss_set_weight(mean, sum);
    return mean;
}

/* All ranks of the process have the bits of the first. */
static trek_status compare_ranks(void)
{
    const trek_step *s = trek_graph_ranks(first);
    for (int r = 1; s && r < s->job.local_ranks; r++)
        for (int k = 0; k < s->team->replicas[0].model->n_params; k++)
            if (!test_same_bits(s->team->replicas[r].model->params[k]->data, s->team->replicas[0].model->params[k]->data))
                return trek_fail(TREK_ERR_STATE, "rank %d differs in parameter %d", r, k);
    return TREK_OK;
}

static trek_status on_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    char word[32];
    first = graph;
    snprintf(word, sizeof word, "kill%d.%d", mine ? mine->process : 0, (int)epoch);
    if (mine && strstr(mine->detail, word))
        kill(getpid(), SIGKILL);
    return compare_ranks();
}

/* Every sample once, of some rank. A rank's computing until now has taken no longer than the process has existed, by the test's
 * own clock, and some time if it trained before this epoch: what a step has taken may be told after the end of its epoch. */
static trek_status on_metrics(const trek_epoch_metrics *m, void *arg)
{
    static double computed[MOST];
    static int64_t trained[MOST];
    int64_t samples = 0;
    const trek_step *s = trek_graph_ranks(first);
    double elapsed = processes_now() - began;
    for (int r = 0; r < m->ranks; r++) {
        const trek_rank_metrics *of = &m->per_rank[r];
        samples += of->samples;
        int own = s ? r - s->job.first_rank : -1;
        if (own < 0 || own >= s->job.local_ranks)
            continue;
        computed[own] += of->compute_s;
        if (computed[own] > elapsed || (trained[own] > 0 && computed[own] <= 0 && test_on_cpu()))
            return trek_fail(TREK_ERR_STATE, "rank %d has computed for %g s in %g s; samples before this epoch: %d", r,
                             computed[own], elapsed, (int)trained[own]);
        trained[own] += of->samples;
    }
    if (samples != ROWS && !m->lost && !(mine && (strstr(mine->detail, "kill") || strcmp(mine->role, "stopped") == 0)))
        return trek_fail(TREK_ERR_STATE, "%d samples by the ranks, %d in all", (int)samples, (int)m->samples);
    return compare_ranks();
}

/* --- a process --------------------------------------------------------------------------------------------- */

static trek_comm *join_job(const part *me)
{
    return trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                             .port = me->port, .token = "sesame", .deadline_s = 20 });
}

static trek_run_opts opts_of(trek_dataset *data, int ranks, trek_comm *comm)
{
    return (trek_run_opts){ .build_model = build, .train_step = loss, .dataset = data, .input = "x", .batch_size = BATCH,
                            .shuffle = true,
                            .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }), .epochs = 3, .seed = 7,
                            .transport = TREK_TRANSPORT_HOST, .site = TREK_SITE_PROCESS, .on_epoch = on_epoch,
                            .on_metrics = on_metrics,
                            .trainer = { .ranks = ranks, .devices = test_devices(), .comm = comm } };
}

static int print_final(trek_state *final, const trek_epoch_metrics *m)
{
    if (!final) {
        printf("%s: %s\n", trek_status_name(trek_error_status()), trek_error());
        return 1;
    }
    printf("lost %d ranks %d loss %.17g %.17g values", m->lost, m->ranks, m->loss, m->evaluation_loss);
    for (int k = 0; k < trek_state_count(final); k++) {
        double *values = test_read(trek_state_tensor(final, k));
        for (int64_t i = 0; i < trek_tensor_numel(trek_state_tensor(final, k)); i++)
            printf(" %.17g", values[i]);
        free(values);
    }
    printf(" end\n");
    trek_state_free(&final);
    return 0;
}

static int run_and_print(const trek_run_opts *o)
{
    trek_run *run = trek_trainer_run(o);
    trek_epoch_metrics m = { 0 }, last = { 0 };
    while (run && trek_run_next(run, &m))
        last = m;
    return print_final(run ? trek_run_join(run) : NULL, &last);
}

/* Ranks of process p: the detail's digits. */
static int ranks_of(const part *me) { return me->detail[me->process] - '0'; }

static int play_way(const part *me, const way *w, trek_comm *comm)
{
    static const double parts[] = { 3, 1, 2 };
    double shares[16] = { 0 };
    int n = 0;
    present = w;
    line_dtype = w->bits ? TREK_F32 : TREK_F64;
    trek_dataset *data = line_dataset(true);
    trek_run_opts o = opts_of(data, ranks_of(me), comm);
    o.policy = w->policy;
    o.max_lead = w->max_lead;
    o.evaluation = data;
    if (w->adam)
        o.optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.01 });
    if (w->schedule)
        o.schedule = trek_exponential_lr(0.02, 0.97);
    o.trainer.max_grad_norm = w->clip ? 0.1 : 0;
    o.trainer.share_params = w->separate ? TREK_OFF : 0;
    o.trainer.bucket_bytes = w->separate ? 64 : 0;
    trek_plan *plan = trek_plan_new(me->processes);
    trek_plan_add_counts(plan, 0, w->counts, 1);
    o.trainer.plan = w->counts[0] ? plan : NULL;
    trek_error_clear();
    for (int p = 0; p < me->processes && w->shared_out; p++) {
        double sum = 0;
        for (int r = 0; r < me->detail[p] - '0'; r++)
            sum += parts[r];
        for (int r = 0; r < me->detail[p] - '0'; r++)
            shares[n++] = parts[r] / sum;
    }
    o.trainer.shares = n ? shares : NULL;
    o.trainer.n_shares = n;
    o.outer = w->bits ? &(trek_outer_opts){ .bits = w->bits, .fragments = w->fragments, .momentum = 0.5 } : NULL;
    int code = run_and_print(&o);
    trek_plan_free(&plan);
    trek_dataset_free(&data);
    return code;
}

static int play_ways(const part *me)
{
    trek_comm *comm = join_job(me);
    int code = !comm;
    for (int k = 0; k < WAYS && code == 0; k++)
        code = play_way(me, &ways[k], comm);
    trek_comm_free(&comm);
    return code;
}

/* "22-P-E": policy and epochs, of the convex problem. */
static int play_convex(const part *me)
{
    int policy = 0, epochs = 0;
    trek_comm *comm = join_job(me);
    sscanf(me->detail + me->processes, "-%d-%d", &policy, &epochs);
    trek_dataset *data = line_dataset(false);
    trek_run_opts o = opts_of(data, ranks_of(me), comm);
    o.build_model = line_build;
    o.policy = (trek_policy)policy;
    o.epochs = epochs;
    o.optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.05 });
    o.trainer.anchor = o.trainer.max_anchor = policy == TREK_POLICY_SYNC ? 0 : 2;
    o.trainer.balance = strstr(me->detail, "balance") ? 1 : 0;
    o.min_processes = strstr(me->detail, "kill") ? 1 : 0;
    if (strstr(me->detail, "fails") && me->process == 1)
        fails_at = 17;
    int code = comm ? run_and_print(&o) : 1;
    trek_dataset_free(&data);
    trek_comm_free(&comm);
    return code;
}

/* "22-OUTER-/tmp/folder": whole, then in two halves. */
static int play_halves(const part *me)
{
    char folder[64];
    int outer = 0;
    trek_comm *comm = join_job(me);
    sscanf(me->detail + me->processes, "-%d-%63s", &outer, folder);
    line_dtype = outer ? TREK_F32 : TREK_F64;
    normalized = !outer;
    trek_dataset *data = line_dataset(true);
    trek_run_opts o = opts_of(data, ranks_of(me), comm);
    o.outer = outer ? &(trek_outer_opts){ .fragments = 2 } : NULL;
    o.optimizer = outer ? trek_sgd(&(trek_sgd_opts){ .lr = 0.05 }) : o.optimizer; /* states are each site's own then */
    o.epochs = 4;
    o.batch_size = 6; /* of no rank one row alone */
    int code = comm ? run_and_print(&o) : 1;
    o.checkpoint_folder = o.resume_from = folder;
    for (o.epochs = 2; o.epochs <= 4 && code == 0; o.epochs += 2)
        code = run_and_print(&o);
    trek_dataset_free(&data);
    trek_comm_free(&comm);
    return code;
}

/* "22-0-/tmp/folder": stopped by the last process in mid-epoch, and gone on with: every row once an epoch. */
static int play_stopped(const part *me)
{
    char folder[64];
    int counts[2];
    trek_comm *comm = join_job(me);
    sscanf(me->detail + me->processes, "-%*d-%63s", folder);
    trek_dataset *data = line_dataset(true);
    trek_run_opts o = opts_of(data, ranks_of(me), comm);
    o.batch_size = 1; /* fewer than ranks */
    o.checkpoint_folder = o.resume_from = folder;
    stops = me->process == 1;
    trek_run *run = comm ? trek_trainer_run(&o) : NULL;
    atomic_store(&to_stop, run);
    trek_state *stopped = run ? trek_run_join(run) : NULL;
    trek_state_free(&stopped);
    stops = false;
    int before = atomic_load(&rows), code = run ? run_and_print(&o) : 1;
    int own = atomic_load(&rows);
    if (code == 0 && trek_comm_gather_bytes(comm, &own, sizeof own, counts) != TREK_OK)
        code = 2;
    if (code == 0 && (counts[0] + counts[1] != 3 * ROWS || before == own)) {
        printf("%d and %d rows, %d before the stop\n", counts[0], counts[1], before);
        code = 3;
    }
    trek_dataset_free(&data);
    trek_comm_free(&comm);
    return code;
}

/* --- what they say ------------------------------------------------------------------------------------------- */

typedef struct told {
    int lost, ranks, n;
    double loss, evaluation, values[MOST];
} told;

/* The text's lines; returns their number. */
static int read_lines(const char *text, told *lines, int most)
{
    int n = 0;
    for (const char *at = strstr(text, "lost "); at && n < most; at = strstr(at, "lost "), n++) {
        told *t = &lines[n];
        int used = 0;
        *t = (told){ 0 };
        if (sscanf(at, "lost %d ranks %d loss %lf %lf values%n", &t->lost, &t->ranks, &t->loss, &t->evaluation, &used) != 4)
            return n;
        at += used;
        for (int more; t->n < MOST && sscanf(at, " %lf%n", &t->values[t->n], &more) == 1; at += more)
            t->n++;
    }
    return n;
}

/* Of the first process that lives to the end; all that do end with the same bits. Those in `gone` are killed. */
static int run_world(const char *role, const char *detail, int processes, unsigned gone, told *lines)
{
    static world all;
    static told other[MOST_WAYS];
    int n = 0;
    processes_run_all(&all, processes, role, detail, -1, NULL);
    for (int p = 0; p < processes; p++) {
        if (gone & 1u << p)
            continue;
        int m = all.code[p] == 0 ? read_lines(all.text[p], n ? other : lines, MOST_WAYS) : 0;
        bool same = m > 0 && (n == 0 || m == n);
        for (int k = 0; k < m && n && same; k++)
            same = memcmp(&other[k], &lines[k], sizeof *lines) == 0;
        n = m;
        if (same)
            continue;
        processes_print(&all);
        fail_msg("%s of process %d", all.code[p] == 0 ? "the parameters" : "the failure", p);
    }
    return n;
}

static void test_as_one(void **state)
{
    static const char *const worlds[] = { "21", "22", "33" };
    size_t n = test_on_cpu() ? 3 : 1;
    static told one[MOST_WAYS], many[MOST_WAYS];
    assert_int_equal(run_world("ways", "11", 2, 0, one), WAYS);
    for (size_t w = 0; w < n; w++) {
        assert_int_equal(run_world("ways", worlds[w], 2, 0, many), WAYS);
        for (int k = 0; k < WAYS; k++) {
            assert_int_equal(many[k].ranks, worlds[w][0] + worlds[w][1] - 2 * '0');
            assert_int_equal(many[k].n, one[k].n);
            assert_true(fabs(many[k].loss - one[k].loss) < 1e-5 && fabs(many[k].evaluation - one[k].evaluation) < 1e-5);
            for (int i = 0; i < one[k].n; i++)
                if (!(fabs(many[k].values[i] - one[k].values[i]) <= ways[k].tolerance))
                    fail_msg("ranks %s, way %d: value %d is %.17g instead of %.17g", worlds[w], k, i, many[k].values[i],
                             one[k].values[i]);
        }
    }
}

static void expect_aim(const told *t, double tolerance, const char *what)
{
    assert_int_equal(t->n, FEATURES);
    for (int i = 0; i < FEATURES; i++)
        if (!(fabs(t->values[i] - line_aim[i]) < tolerance))
            fail_msg("%s: w[%d] is %g instead of %g", what, i, t->values[i], line_aim[i]);
}

static void test_converges(void **state)
{
    static const char *const details[] = { "22-1-40", "21-2-40", "13-2-40-balance" };
    told t;
    if (!test_on_cpu()) /* thousands of steps */
        skip();
    for (size_t k = 0; k < sizeof details / sizeof *details; k++) {
        run_world("convex", details[k], 2, 0, &t);
        assert_int_equal(t.lost, 0);
        expect_aim(&t, 2e-2, details[k]);
    }
}

/* One rank, and with it its process; the other trains all. */
static void test_failing_rank(void **state)
{
    static const char *const details[] = { "12-0-40-fails", "22-2-40-fails" };
    told t;
    if (!test_on_cpu())
        skip();
    for (size_t k = 0; k < sizeof details / sizeof *details; k++) {
        run_world("convex", details[k], 2, 0, &t);
        assert_int_equal(t.lost, 2);
        expect_aim(&t, 2e-2, details[k]);
    }
}

/* Two are left, which are two sites, then one, which is alone. */
static void test_killed(void **state)
{
    told t;
    run_world("convex", "222-1-40-kill2.2-kill1.4", 3, 6, &t);
    assert_int_equal(t.ranks, 2);
    expect_aim(&t, 2e-2, "killed");
}

static void test_resumed(void **state)
{
    for (int outer = 0; outer < 2; outer++) {
        char folder[] = "/tmp/trek-run-XXXXXX", detail[96];
        told lines[MOST_WAYS];
        assert_non_null(mkdtemp(folder));
        snprintf(detail, sizeof detail, "%s-%d-%s", outer ? "21" : "22", outer, folder);
        assert_int_equal(run_world("halves", detail, 2, 0, lines), 3);
        assert_memory_equal(&lines[2], &lines[0], sizeof *lines);
        assert_true(memcmp(lines[1].values, lines[0].values, sizeof lines->values) != 0);
        assert_int_equal(test_remove(folder), 0);
    }
}

static void test_stopped(void **state)
{
    char folder[] = "/tmp/trek-run-XXXXXX", detail[96];
    told lines[MOST_WAYS];
    assert_non_null(mkdtemp(folder));
    snprintf(detail, sizeof detail, "22-0-%s", folder);
    assert_int_equal(run_world("stopped", detail, 2, 0, lines), 1);
    assert_int_equal(test_remove(folder), 0);
}

/* --- one process -------------------------------------------------------------------------------------------------- */

static void run_here(const trek_run_opts *o, told *t)
{
    trek_run *run = trek_trainer_run(o);
    trek_state *final = run ? trek_run_join(run) : NULL;
    if (!final)
        fail_msg("%s", trek_error());
    *t = (told){ 0 };
    for (int k = 0; k < trek_state_count(final); k++) {
        double *values = test_read(trek_state_tensor(final, k));
        for (int64_t i = 0; i < trek_tensor_numel(trek_state_tensor(final, k)); i++)
            t->values[t->n++] = values[i];
        free(values);
    }
    trek_state_free(&final);
}

/* Nobody is there to average with: the bits of ranks that make every step together. */
static void test_alone(void **state)
{
    trek_dataset *data = line_dataset(true);
    for (int policy = TREK_POLICY_SYNC; policy <= TREK_POLICY_ASYNC; policy++) {
        told site, sync;
        trek_run_opts o = opts_of(data, 3, NULL);
        o.policy = (trek_policy)policy;
        o.outer = policy == TREK_POLICY_CADENCE ? &(trek_outer_opts){ .bits = 8 } : NULL;
        o.trainer.max_grad_norm = 0.1;
        run_here(&o, &site);
        o.policy = TREK_POLICY_SYNC;
        o.transport = TREK_TRANSPORT_DEVICE;
        o.site = TREK_SITE_RANK;
        o.outer = NULL;
        run_here(&o, &sync);
        assert_memory_equal(&site, &sync, sizeof site);
    }
    trek_dataset_free(&data);
}

static void test_refused(void **state)
{
    trek_dataset *data = line_dataset(true);
    trek_run_opts o = opts_of(data, 2, NULL);
    o.site = (trek_site)5;
    assert_null(trek_trainer_run(&o));
    assert_non_null(strstr(trek_error(), ".site: 5"));
    trek_error_clear();
    o.site = TREK_SITE_PROCESS;
    o.transport = TREK_TRANSPORT_DEVICE;
    REFUSED(trek_trainer_run(&o), TREK_ERR_ARGUMENT, ".site: TREK_SITE_PROCESS without TREK_TRANSPORT_HOST");
    trek_dataset_free(&data);
}

int main(void)
{
    part me;
    began = processes_now();
    if (processes_part(&me)) {
        mine = &me;
        return strcmp(me.role, "ways") == 0 ? play_ways(&me) : strcmp(me.role, "convex") == 0 ? play_convex(&me)
            : strcmp(me.role, "halves") == 0 ? play_halves(&me) : play_stopped(&me);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_one), cmocka_unit_test(test_converges), cmocka_unit_test(test_failing_rank),
        cmocka_unit_test(test_killed), cmocka_unit_test(test_resumed), cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_alone), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
