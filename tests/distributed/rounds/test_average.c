/* SPDX-License-Identifier: Apache-2.0 */
/* Averaged parameters against as many single graphs, each with an optimizer of its own, whose parameters and optimizer
 * states are averaged by hand. */
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "data/dataset_class.h"
#include "data/loader_position.h"
#include "distributed/pass/shares.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "distributed/trainer_ranks.h"
#include "graph/amp.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/params.h"
#include "optim/schedules.h"
#include "tensor/memory.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/training.h"

enum { MOST_RANKS = 3 };

static trek_graph *build(trek_device device, void *arg)
{
    trek_graph *graph = training_build(device, arg);
    trek_module_train(trek_graph_at(graph, "0.drop"), false); /* single graphs draw other numbers */
    return graph;
}

/* What a net by hand lacks: a mean of some samples' squares. */
static trek_var *loss_of(trek_var *output, trek_var *target)
{
    trek_var *error = trek_sub(trek_narrow(output, 1, 0, 1), target);
    return trek_mean(trek_mul(error, error), trek_dims_all(), false);
}

static trek_var *loss_fn(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return loss_of(output, trek_batch_get(batch, "target"));
}

/* --- by hand -------------------------------------------------------------------------------------------- */

static void train_alone(trek_graph *graph, trek_dataset *data, const int64_t *indices, int64_t n, const trek_schedule *schedule,
                        int64_t step)
{
    trek_tensor *fields[3];
    trek_scope scope = trek_scope_begin();
    assert_int_equal(trek_dataset_get(data, indices, n, fields), TREK_OK);
    for (int k = 0; k < 3; k++) {
        trek_tensor *there = trek_tensor_to(fields[k], test_device());
        trek_tensor_release(fields[k]);
        fields[k] = there;
    }
    if (schedule)
        trek_graph_set_lr(graph, trek_schedule_lr(schedule, step));
    trek_var *loss = loss_of(trek_graph_forward(graph, trek_var_from(fields[0])), trek_var_from(fields[2]));
    assert_int_equal(trek_graph_backward(graph, loss), TREK_OK);
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    trek_tensor_release(fields[1]);
    trek_scope_end(scope);
}

static int find_entry(const trek_optimizer_entry *entries, int n, const char *name)
{
    for (int k = 0; k < n; k++)
        if (strcmp(entries[k].name, name) == 0)
            return k;
    return -1;
}

static void write_values(trek_tensor *to, const double *values)
{
    trek_tensor *from = trek_tensor_from_data(values, trek_tensor_shape(to), TREK_F64, trek_tensor_device(to));
    assert_int_equal(trek_tensor_copy_from(to, from), TREK_OK);
    trek_tensor_release(from);
}

/* The weighted mean of one tensor of all graphs, to all. */
static void average_tensors(trek_tensor *const *tensors, const double *weights, int n)
{
    int64_t count = 0;
    for (int r = 0; r < n; r++)
        count = tensors[r] ? trek_tensor_numel(tensors[r]) : count;
    double *sum = calloc((size_t)count + 1, sizeof *sum);
    for (int r = 0; r < n; r++) {
        double *values = tensors[r] ? test_read(tensors[r]) : NULL;
        for (int64_t i = 0; values && i < count; i++)
            sum[i] += weights[r] * values[i];
        free(values);
    }
    for (int r = 0; r < n; r++)
        if (tensors[r])
            write_values(tensors[r], sum);
    free(sum);
}

static void average_params(trek_graph **graphs, const double *weights, int n)
{
    trek_params *lists[MOST_RANKS];
    for (int r = 0; r < n; r++)
        lists[r] = trek_module_params(trek_graph_module(graphs[r]));
    for (int k = 0; k < trek_params_count(lists[0]); k++) {
        trek_tensor *tensors[MOST_RANKS];
        for (int r = 0; r < n; r++)
            tensors[r] = trek_var_data(trek_params_var(lists[r], k));
        average_tensors(tensors, weights, n);
    }
    for (int r = 0; r < n; r++)
        trek_params_free(&lists[r]);
}

/* States of the mean; the most updates of any. Who has not updated a parameter has zeros. */
static void average_states(trek_graph **graphs, const double *weights, int n)
{
    trek_optimizer_entry *entries[MOST_RANKS];
    int counts[MOST_RANKS], longest = 0;
    for (int r = 0; r < n; r++) {
        assert_int_equal(trek_optimizer_export(trek_graph_optimizer(graphs[r]), &entries[r], &counts[r]), TREK_OK);
        longest = counts[r] > counts[longest] ? r : longest;
    }
    for (int k = 0; k < counts[longest]; k++) {
        const char *name = entries[longest][k].name;
        trek_tensor *tensors[MOST_RANKS];
        double most = 0;
        bool is_step = strstr(name, ".step") != NULL;
        for (int r = 0; r < n; r++) {
            int at = find_entry(entries[r], counts[r], name);
            tensors[r] = at >= 0 ? entries[r][at].tensor : NULL;
            if (is_step && tensors[r] && trek_tensor_item(tensors[r]) > most)
                most = trek_tensor_item(tensors[r]);
        }
        if (!is_step)
            average_tensors(tensors, weights, n);
        else
            write_values(entries[longest][k].tensor, &most);
    }
    trek_optimizer_entry *copies = calloc((size_t)counts[longest], sizeof *copies);
    for (int k = 0; k < counts[longest]; k++)
        copies[k] = (trek_optimizer_entry){ .name = entries[longest][k].name,
                                            .tensor = trek_tensor_clone(entries[longest][k].tensor) };
    for (int r = 0; r < n; r++) /* who had the most has trained all that any has */
        assert_int_equal(trek_optimizer_import(trek_graph_optimizer(graphs[r]), copies, counts[longest]), TREK_OK);
    for (int k = 0; k < counts[longest]; k++)
        trek_tensor_release(copies[k].tensor);
    free(copies);
    for (int r = 0; r < n; r++)
        trek_optimizer_export_free(entries[r], counts[r]);
}

/* --- both -------------------------------------------------------------------------------------------------- */

typedef struct way {
    int ranks, batch;
    bool windows, adam, clip, schedule;
} way;

static void compare_params(trek_graph *graph, trek_graph *other, const way *w, int64_t step)
{
    static result a, b;
    training_params(graph, &a);
    training_params(other, &b);
    for (int k = 0; k < a.n; k++)
        if (!(fabs(a.params[k] - b.params[k]) <= 1e-11 * (1 + fabs(b.params[k]))))
            fail_msg("step %d, %d ranks, %s, %s: parameter %d is %.17g instead of %.17g", (int)step, w->ranks,
                     w->windows ? "windows" : "shares",
                     w->adam ? "Adam" : "SGD", k, a.params[k], b.params[k]);
}

static trek_optimizer_spec spec_of(const way *w)
{
    return w->adam ? trek_adam(&(trek_adam_opts){ .lr = 0.01, .weight_decay = 0.01 })
        : trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 });
}

static void step_by_hand(trek_graph **alone, trek_dataset *data, const way *w, const trek_batch *batch, const int64_t *counts,
                         const trek_schedule *schedule, int64_t steps)
{
    double weights[MOST_RANKS], total = 0;
    int64_t at = 0;
    for (int r = 0; r < w->ranks; r++) {
        int64_t samples = 0;
        for (int64_t k = 0; k < counts[r]; k++) {
            int64_t rest = trek_batch_size(batch) - at;
            int64_t size = w->windows ? w->batch : counts[r];
            size = size < rest ? size : rest;
            train_alone(alone[r], data, trek_batch_indices(batch) + at, size, schedule, steps + k);
            at += size;
            samples += size;
            if (!w->windows)
                break;
        }
        weights[r] = (double)samples;
        total += (double)samples;
    }
    for (int r = 0; r < w->ranks; r++)
        weights[r] /= total;
    average_params(alone, weights, w->ranks);
    average_states(alone, weights, w->ranks);
}

static void run_way(const way *w)
{
    trek_dataset *data = training_dataset();
    trek_loader *loader = trek_loader_new(trek_dataset_retain(data),
                                          &(trek_loader_opts){ .batch_size = w->batch, .shuffle = true });
    trek_graph *graph = build(test_device(), NULL), *alone[MOST_RANKS];
    trek_schedule schedule = trek_exponential_lr(0.02, 0.97);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, loss_fn, NULL);
    trek_trainer_opts opts = { .ranks = w->ranks, .devices = test_devices(), .build_replica = build, .optimizer = spec_of(w),
                               .average = TREK_AVERAGE_PARAMETERS, .anchor = 2, .max_anchor = w->windows ? 2 : TREK_OFF,
                               .max_grad_norm = w->clip ? 0.3 : 0,
                               .speed_hint = { .slow_rank = 0, .ratio = w->windows ? 2 : 0 } };
    if (w->schedule)
        opts.schedule = schedule;
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    for (int r = 0; r < w->ranks; r++) {
        alone[r] = build(test_device(), NULL);
        assert_int_equal(trek_graph_set_optimizer(alone[r], spec_of(w)), TREK_OK);
        trek_graph_set_clip(alone[r], w->clip ? 0.3 : 0, 0);
    }
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; (batch = trek_graph_next(graph));) {
            trek_step *s = trek_graph_ranks(graph);
            int64_t counts[MOST_RANKS], steps = trek_graph_steps(graph), size = trek_batch_size(batch);
            trek_status status = w->windows ? trek_workload_counts(s->pace.workload, (size + w->batch - 1) / w->batch, counts)
                : trek_ranks_split(s, size, counts);
            assert_int_equal(status, TREK_OK);
            assert_non_null(trek_graph_train_batch(graph, batch));
            step_by_hand(alone, data, w, batch, counts, w->schedule ? &schedule : NULL, steps);
            SUCCEEDS(trek_graph_step(graph));
            int64_t batches = w->windows ? (size + w->batch - 1) / w->batch : 1;
            assert_int_equal(trek_graph_steps(graph), steps + batches);
            for (int r = 0; r < w->ranks; r++)
                compare_params(trek_graph_replica(graph, r), alone[0], w, steps);
        }
    }
    assert_int_equal(trek_error_status(), TREK_OK);
    for (int r = 0; r < w->ranks; r++)
        trek_graph_free(&alone[r]);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_dataset_free(&data);
}

static void test_against_single_graphs(void **state)
{
    for (int ranks = 2; ranks <= MOST_RANKS; ranks++)
        for (int k = 0; k < 8; k++)
            run_way(&(way){ .ranks = ranks, .batch = k & 1 ? 2 : 8, .windows = k & 1, .adam = k & 2, .clip = k & 4,
                            .schedule = ranks == 3 });
}

/* --- drift ------------------------------------------------------------------------------------------------------ */

/* One number, drawn to 1 by a spring whose strength differs by rank: rank 1 alone would swing itself up, by 1.2 a step, the
 * mean of both calms down as long as they meet often enough. */
typedef struct spring {
    trek_module base;
    trek_var *x;
} spring;

static trek_var *spring_forward(trek_module *self, trek_var *input)
{
    return trek_mul(trek_add(trek_mul_scalar(input, 0),
                             trek_var_from(trek_tensor_full(trek_dims_none(), 1, TREK_F64, trek_var_device(input)))),
                    ((spring *)self)->x);
}

static const trek_module_class spring_class = { .name = "spring", .size = sizeof(spring), .forward = spring_forward };

static trek_graph *build_spring(trek_device device, void *arg)
{
    trek_module *m = trek_module_new(&spring_class);
    trek_module_param(m, "x", offsetof(spring, x), trek_tensor_full(trek_dims(1), 1.001, TREK_F64, device));
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

static trek_var *spring_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    double strength = trek_var_device(output).index == 0 ? 0.5 : 2.2;
    return trek_mean(trek_mul_scalar(trek_square(trek_add_scalar(output, -1)), strength / 2), trek_dims_all(), false);
}

/* How far it is from 1 after 40 windows, and the anchor. */
static double drift_away(double threshold, int64_t *anchor)
{
    trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 1 });
    trek_graph *graph = build_spring(trek_cpu(0), NULL);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, spring_loss, NULL);
    trek_trainer_opts opts = { .ranks = 2, .build_replica = build_spring, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 1 }),
                               .average = TREK_AVERAGE_PARAMETERS, .anchor = 8, .max_anchor = 8,
                               .shares = (double[]){ 1, 1 }, .n_shares = 2, /* whatever the machine is busy with */
                               .divergence_threshold = threshold };
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    int windows = 0;
    for (int64_t epoch = 0; windows < 40; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; windows < 40 && (batch = trek_graph_next(graph)); windows++) {
            assert_non_null(trek_graph_train_batch(graph, batch));
            assert_int_equal(trek_graph_step(graph), TREK_OK);
        }
    }
    trek_trainer_workload workload;
    assert_int_equal(trek_trainer_describe(graph, &workload), TREK_OK);
    *anchor = workload.anchor;
    trek_params *params = trek_module_params(trek_graph_module(graph));
    double *x = test_read(trek_var_data(trek_params_var(params, 0))), distance = fabs(*x - 1);
    free(x);
    trek_params_free(&params);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    return distance;
}

static void test_guard(void **state)
{
    int64_t anchor;
    if (!test_on_cpu())
        skip();
    double without = drift_away(TREK_OFF, &anchor);
    assert_true(!(without < 1e3)); /* or no number any more */
    assert_int_equal(anchor, 8);
    double with = drift_away(0, &anchor);
    if (!(with < 2) || anchor >= 8)
        fail_msg("%g from its aim, anchor %d", with, (int)anchor);
}

/* --- without memory --------------------------------------------------------------------------------------------- */

/* False: nothing failed, as the average takes fewer allocations. Whichever rank it happens to, both end with an error. */
static bool fails_at(int64_t at)
{
    trek_loader *loader =
        trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 4, .prefetch = TREK_ZERO });
    trek_graph *graph = build(trek_cpu(0), NULL);
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, loss_fn, NULL);
    trek_trainer_opts opts = { .ranks = 2, .build_replica = build, .optimizer = training_adam(),
                               .average = TREK_AVERAGE_PARAMETERS, .anchor = 2, .max_anchor = 2 };
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    assert_int_equal(trek_graph_start(graph, 0), TREK_OK);
    for (int k = 0; k < 2; k++) { /* the first one finds the states empty */
        assert_non_null(trek_graph_train_batch(graph, trek_graph_next(graph)));
        trek_memory_release_cached(trek_cpu(0));
        test_allocator_restart(k == 0 && at % 2 ? 0 : at / 2 + 1);
        test_memory.fail_count = 3; /* it is asked for again after caches were emptied */
        trek_status status = trek_graph_step(graph);
        bool failed = test_memory.fail_at && test_memory.calls >= test_memory.fail_at;
        test_allocator_restart(0);
        assert_int_equal(status, failed ? TREK_ERR_MEMORY : TREK_OK);
        if (failed || k == 1) {
            trek_error_clear();
            trek_graph_free(&graph);
            trek_loader_free(&loader);
            return failed;
        }
    }
    return false;
}

static void test_memory_runs_out(void **state)
{
    if (!test_on_cpu())
        skip();
    int failures = 0;
    for (int64_t at = 0; at < 30; at++) /* now the second average, now the first */
        failures += fails_at(at);
    assert_true(failures >= 1 && failures < 30);
}

/* --- what it refuses -------------------------------------------------------------------------------------------- */

static void expect(trek_status status, trek_status wanted, const char *text)
{
    if (status != wanted || !strstr(trek_error(), text))
        fail_msg("%s: %s", trek_status_name(status), trek_error());
    trek_error_clear();
}

static void test_refused(void **state)
{
    trek_loader *loader = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = 4 });
    trek_graph *graph = build(test_device(), NULL);
    trek_trainer_opts good = { .ranks = 2, .devices = test_devices(), .build_replica = build,
                               .average = TREK_AVERAGE_PARAMETERS };
    trek_trainer_opts opts = good;
    opts.accumulate = 2;
    expect(trek_trainer_setup(graph, &opts), TREK_ERR_ARGUMENT, ".accumulate");
    opts = good;
    opts.average = 3;
    expect(trek_trainer_setup(graph, &opts), TREK_ERR_ARGUMENT, ".average");
    opts = good;
    opts.divergence_threshold = -2;
    expect(trek_trainer_setup(graph, &opts), TREK_ERR_ARGUMENT, ".divergence_threshold");
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, loss_fn, NULL);
    assert_int_equal(trek_trainer_setup(graph, &good), TREK_OK);
    trek_graph_start(graph, 0);
    trek_batch *batch = trek_graph_next(graph);
    assert_null(trek_graph_train_batch(graph, batch));
    expect(trek_error_status(), TREK_ERR_STATE, "no optimizer");
    assert_int_equal(trek_graph_set_optimizer(graph, trek_with_state(training_adam(), TREK_U8)), TREK_OK);
    assert_null(trek_graph_train_batch(graph, batch));
    expect(trek_error_status(), TREK_ERR_UNSUPPORTED, "state in u8");
    assert_int_equal(trek_graph_set_optimizer(graph, training_adam()), TREK_OK);
    assert_int_equal(trek_graph_set_amp(graph, &(trek_amp_opts){ .scaling = 1 }), TREK_OK);
    assert_null(trek_graph_train_batch(graph, batch));
    expect(trek_error_status(), TREK_ERR_UNSUPPORTED, "scaled");
    assert_int_equal(trek_graph_set_amp(graph, NULL), TREK_OK);
    FAILS(trek_graph_reduce(graph), TREK_ERR_STATE, "");
    trek_var *y = trek_graph_forward(graph, trek_batch_get(batch, "x"));
    expect(trek_graph_backward(graph, loss_of(y, trek_batch_get(batch, "target"))), TREK_ERR_STATE, "averaged");
    assert_non_null(trek_graph_train_batch(graph, batch)); /* and goes on */
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

int main(void)
{
    assert_int_equal(test_allocator_use(), TREK_OK);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_against_single_graphs), cmocka_unit_test(test_guard),
                                          cmocka_unit_test(test_memory_runs_out), cmocka_unit_test(test_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
