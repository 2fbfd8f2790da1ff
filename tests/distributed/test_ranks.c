/* SPDX-License-Identifier: Apache-2.0 */
/* Rank threads and the gathered stepper: setting up, what reaches the replicas, buffers, and what happens when one fails. */
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "distributed/ranks_internal.h"
#include "graph/flow.h"
#include "tensor/memory.h"
#include "tensor/rank_context.h"
#include "tensor/status_internal.h"
#include "tests/distributed/probe.h"
#include "tests/support/refused.h"

/* --- the group ------------------------------------------------------------------------------------------- */

static trek_status place_fn(int rank, void *arg)
{
    atomic_int *good = arg;
    const trek_rank_context *p = &trek_rank_here;
    if (p->rank == rank && p->world == 3 && p->device.index == rank && p->pool)
        atomic_fetch_add(good, 1);
    return trek_comm_barrier(trek_ranks_comm(NULL, rank)) == TREK_OK ? TREK_ERR_STATE : (trek_error_clear(), TREK_OK);
}

static trek_status failing_fn(int rank, void *arg)
{
    const int *who = arg; /* who[0] fails itself; the others say that a peer did */
    if (rank == who[0])
        return trek_fail(TREK_ERR_IO, "no file for %d", rank);
    return rank > who[1] ? trek_fail(TREK_ERR_PEER, "another failed") : TREK_OK;
}

static trek_status quiet_fn(int rank, void *arg) { return (void)rank, (void)arg, trek_error_status(); /* clear on each rank */ }

/* By its number it is known whether the other processes have been told of an error. */
static void test_earlier_error_stays_the_same(void **state)
{
    trek_ranks *ranks = trek_ranks_new(NULL, 3);
    assert_non_null(ranks);
    trek_fail(TREK_ERR_IO, "before");
    uint64_t number = trek_error_number();
    assert_int_equal(trek_ranks_call(ranks, quiet_fn, NULL), TREK_OK);
    assert_int_equal(trek_ranks_run(ranks, quiet_fn, NULL), TREK_OK);
    assert_true(trek_error_number() == number);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(trek_ranks_call(ranks, failing_fn, (int[]){ rank, 3 }), TREK_ERR_IO);
    assert_true(trek_error_number() == number);
    expect_error(TREK_ERR_IO, "before");
    assert_int_equal(trek_ranks_call(ranks, failing_fn, (int[]){ 0, 3 }), TREK_ERR_IO);
    assert_true(trek_error_number() != number);
    expect_error(TREK_ERR_IO, "rank 0: no file for 0");
    trek_ranks_free(&ranks);
}

static trek_status nested_fn(int rank, void *arg)
{
    return rank == 0 ? trek_ranks_run(arg, place_fn, NULL) : TREK_OK;
}

static void test_group(void **state)
{
    trek_ranks *ranks = trek_ranks_new(NULL, 3), *same = trek_ranks_new(NULL, 3);
    assert_non_null(ranks);
    assert_ptr_equal(ranks, same);
    trek_ranks_free(&same);
    assert_int_equal(trek_ranks_world_size(ranks), 3);
    atomic_int good = 0;
    for (int i = 0; i < 50; i++)
        assert_int_equal(trek_ranks_run(ranks, place_fn, &good), TREK_OK);
    assert_int_equal(good, 150);
    assert_int_equal(trek_rank_here.world, 1);
    FAILS(trek_ranks_run(ranks, failing_fn, (int[]){ 2, 0 }), TREK_ERR_IO, "rank 2: no file for 2");
    FAILS(trek_ranks_run(ranks, failing_fn, (int[]){ 0, 3 }), TREK_ERR_IO, "rank 0: no file for 0");
    FAILS(trek_ranks_run(ranks, failing_fn, (int[]){ -1, 0 }), TREK_ERR_PEER, "rank 1: another failed");
    trek_fail(TREK_ERR_FORMAT, "an earlier one");
    trek_ranks_run(ranks, failing_fn, (int[]){ 1, 3 });
    expect_error(TREK_ERR_FORMAT, "an earlier one");
    FAILS(trek_ranks_run(ranks, nested_fn, ranks), TREK_ERR_STATE, "already running");
    assert_int_equal(trek_ranks_run(ranks, place_fn, &good), TREK_OK);
    trek_ranks_free(&ranks);
    REFUSED(trek_ranks_new(NULL, 0), TREK_ERR_ARGUMENT, "0 ranks");
}

/* --- setting up ------------------------------------------------------------------------------------------ */

static trek_graph *build_other(trek_device device, void *arg)
{
    int kind = *(const int *)arg;
    if (kind == 0)
        return trek_fail(TREK_ERR_IO, "no model file"), NULL;
    if (kind == 1)
        return NULL;
    return trek_flow_build(trek_flow_from(probe_new(kind, device)));
}

static trek_graph *build_same(trek_device device, void *arg)
{
    return arg;
}

static void test_set_up_mistakes(void **state)
{
    FAILS(trek_trainer_setup(NULL, NULL), TREK_ERR_ARGUMENT, "");
    trek_graph *graph = build(trek_cpu(0), NULL);
    int kind = 0;
    static const int wrong_ranks[] = { -1, 1025 };
    for (int k = 0; k < 2; k++) {
        FAILS(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = wrong_ranks[k] }),
              TREK_ERR_ARGUMENT, "ranks");
    }
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2 });
    expect_error(TREK_ERR_ARGUMENT, "build_replica");
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build_other, .arg = &kind });
    expect_error(TREK_ERR_IO, "rank 1: no model file");
    kind = 1;
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 3, .build_replica = build_other, .arg = &kind });
    expect_error(TREK_ERR_CALLBACK, ".build_replica: it returned NULL");
    kind = 4;
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build_other, .arg = &kind });
    expect_error(TREK_ERR_ARGUMENT, "weight\" [4, 3] f32 in rank 1");
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build_same, .arg = graph });
    expect_error(TREK_ERR_ARGUMENT, "another rank already has");
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build,
                                                    .devices = (trek_device[]){ trek_cpu(1), trek_cpu(0) } });
    expect_error(TREK_ERR_DEVICE, "rank 0's device is cpu:1");
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build,
                                                    .devices = (trek_device[]){ trek_cpu(0), trek_cuda(77) } });
    expect_error(TREK_ERR_DEVICE, "");
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build,
                                                    .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = -1 }) });
    expect_error(TREK_ERR_ARGUMENT, "lr");
    static const char *const wrong_lists[] = { "cpu:0,", ",cpu:0", "cpu:0;cpu:1", "cpu:0,gpu", "cpu:0,cpu:x", "cpu:0, cpu:1" };
    for (int k = 0; k < 6; k++) {
        setenv("TREK_DEVICES", wrong_lists[k], 1);
        FAILS(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build }), TREK_ERR_ARGUMENT, "");
    }
    unsetenv("TREK_DEVICES");
    assert_int_equal(trek_graph_world_size(graph), 1);
    assert_int_equal(trek_trainer_setup(graph, NULL), TREK_OK);
    trek_graph_free(&graph);
}

static void test_devices_from_the_environment(void **state)
{
    setenv("TREK_DEVICES", "cpu:0,cpu:3,cpu", 1);
    trek_graph *graph = build(trek_cpu(0), NULL);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build }), TREK_OK);
    unsetenv("TREK_DEVICES");
    assert_int_equal(trek_graph_world_size(graph), 3);
    double shares[3];
    assert_int_equal(trek_graph_shares(graph, shares, 3), 3);
    assert_true(fabs(shares[0] + shares[1] + shares[2] - 1) < 1e-12);
    FAILS(trek_graph_step(graph), TREK_ERR_STATE, "no optimizer");
    /* set up again: other ranks, then one */
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = 2,
        .optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.25 }) }), TREK_OK);
    assert_int_equal(trek_graph_world_size(graph), 2);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 1 }), TREK_OK);
    assert_int_equal(trek_graph_world_size(graph), 1);
    assert_true(trek_graph_lr(graph) == 0.25); /* the optimizer that it had */
    trek_graph_free(&graph);
}

/* --- calls that reach the replicas ----------------------------------------------------------------------- */

static void test_calls_reach_replicas(void **state)
{
    for (int share = 0; share >= TREK_OFF; share--) {
        set_up(NULL);
        trek_graph *graph = trained(4, share);
        train_once(graph, 8, 3);
        expect_clear();
        for (int r = 0; r < 4; r++)
            assert_true(seen.training[r] == 1 && seen.requires_grad[r] == 1 && seen.runs[r] == 1 && seen.rows[r] == 2);
        trek_graph_train(graph, false);
        trek_var_set_requires_grad(probe_of(graph)->weight, false); /* on the parameter itself */
        train_once(graph, 6, 4);
        expect_clear();
        for (int r = 0; r < 4; r++)
            assert_true(seen.training[r] == 0 && seen.requires_grad[r] == 0 && seen.rows[r] == (r < 2 ? 2 : 1));
        trek_graph_thaw(graph, NULL);
        trek_module_train(&probe_of(graph)->base, true); /* on the child module */
        train_once(graph, 2, 5); /* ranks 2 and 3 have no rows: they do not run */
        expect_clear();
        for (int r = 0; r < 4; r++)
            assert_true(seen.training[r] == (r < 2) && seen.requires_grad[r] == (r < 2) && seen.runs[r] == (r < 2 ? 3 : 2));
        /* a learning rate of 0 on every rank: nothing moves */
        float before[2 * FEATURES], after[2 * FEATURES];
        assert_int_equal(trek_graph_set_lr(graph, 0), TREK_OK);
        trek_tensor_to_host(trek_var_data(probe_of(graph)->weight), TREK_F32, before, sizeof before);
        train_once(graph, 8, 6);
        for (int r = 0; r < 4; r++) {
            trek_tensor_to_host(trek_var_data(probe_of(trek_graph_replica(graph, r))->weight), TREK_F32, after, sizeof after);
            assert_memory_equal(before, after, sizeof before);
        }
        /* parameters and buffers changed from outside */
        trek_scope scope = trek_scope_begin();
        trek_no_grad_begin();
        trek_fill_(probe_of(graph)->weight, 0.5);
        trek_fill_(probe_of(graph)->trace, 42);
        trek_no_grad_end();
        trek_scope_end(scope);
        assert_int_equal(trek_graph_parameters_changed(graph), TREK_OK);
        for (int r = 0; r < 4; r++) {
            trek_tensor_to_host(trek_var_data(probe_of(trek_graph_replica(graph, r))->weight), TREK_F32, after, sizeof after);
            assert_true(after[0] == 0.5f && after[5] == 0.5f);
            assert_true(trek_var_item(probe_of(trek_graph_replica(graph, r))->trace) == 42);
        }
        trek_graph_free(&graph);
    }
}

/* --- buffers --------------------------------------------------------------------------------------------- */

static void test_buffers_are_merged(void **state)
{
    for (int share = 0; share >= TREK_OFF; share--) {
        trek_graph *graph = trained(3, share);
        train_once(graph, 7, 11);
        expect_clear();
        float x[7 * FEATURES];
        trek_tensor *data = values(11, trek_dims(7, FEATURES), trek_cpu(0));
        trek_tensor_to_host(data, TREK_F32, x, sizeof x);
        trek_tensor_release(data);
        double all = 0;
        for (int f = 0; f < FEATURES; f++) {
            double mean = 0, var = 0;
            for (int i = 0; i < 7; i++)
                mean += x[i * FEATURES + f] / 7;
            for (int i = 0; i < 7; i++)
                var += (x[i * FEATURES + f] - mean) * (x[i * FEATURES + f] - mean) / 7;
            all += mean / FEATURES;
            for (int r = 0; r < 3; r++) {
                probe *p = probe_of(trek_graph_replica(graph, r));
                assert_true(fabs(((float *)trek_tensor_data(trek_var_data(p->running_mean)))[f] - mean) < 1e-6);
                assert_true(fabs(((float *)trek_tensor_data(trek_var_data(p->running_var)))[f] - var) < 1e-6);
            }
        }
        for (int r = 0; r < 3; r++) {
            probe *p = probe_of(trek_graph_replica(graph, r));
            assert_true(trek_var_item(p->count) == 2 + 5);
            assert_true(fabs(trek_var_item(p->trace) - all) < 1e-6);
        }
        trek_graph_free(&graph);
    }
}

/* --- failures -------------------------------------------------------------------------------------------- */

static void test_one_rank_fails(void **state)
{
    for (int share = 0; share >= TREK_OFF; share--)
        for (int rank = 0; rank < 3; rank++) {
            set_up(NULL);
            trek_graph *graph = trained(3, share);
            float before[2 * FEATURES], after[2 * FEATURES];
            char text[32];
            snprintf(text, sizeof text, "rank %d: ", rank);
            trek_tensor_to_host(trek_var_data(probe_of(graph)->weight), TREK_F32, before, sizeof before);
            seen.fail_forward = rank;
            train_once(graph, 6, 1); /* the error sticks: backward and step do nothing */
            assert_non_null(strstr(trek_error(), text));
            expect_error(TREK_ERR_CALLBACK, "the probe was told to fail");
            assert_int_equal(trek_graph_steps(graph), 0);
            seen.fail_forward = -1;
            seen.fail_backward = rank;
            train_once(graph, 6, 1);
            assert_non_null(strstr(trek_error(), text));
            expect_error(TREK_ERR_CALLBACK, "the probe was told to fail in backward");
            seen.fail_backward = -1;
            for (int r = 0; r < 3; r++) {
                trek_tensor_to_host(trek_var_data(probe_of(trek_graph_replica(graph, r))->weight), TREK_F32, after, sizeof after);
                assert_memory_equal(before, after, sizeof before);
            }
            assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
            train_once(graph, 6, 1); /* and on it goes */
            expect_clear();
            assert_int_equal(trek_graph_steps(graph), 1);
            trek_tensor_to_host(trek_var_data(probe_of(graph)->weight), TREK_F32, after, sizeof after);
            assert_memory_not_equal(before, after, sizeof before);
            trek_graph_free(&graph);
        }
}

/* Memory runs out at the n-th request of a whole life: always an error or a good end, never worse. */
static void test_no_memory(void **state)
{
    int failures = 0;
    for (int share = 0; share >= TREK_OFF; share--)
        for (long n = 1; n < 1000; n += n < 250 ? 1 : 37) {
            trek_memory_release_cached(trek_cpu(0));
            atomic_store(&allocations, 0);
            atomic_store(&fail_at, n);
            trek_graph *graph = build(trek_cpu(0), NULL);
            if (graph)
                trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = 2, .share_params = share,
                    .optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.1 }) });
            if (graph && trek_error_status() == TREK_OK)
                train_once(graph, 5, 1);
            bool reached = atomic_load(&allocations) >= n;
            atomic_store(&fail_at, 0);
            failures += trek_error_status() == TREK_ERR_MEMORY;
            if (trek_error_status() != TREK_OK && trek_error_status() != TREK_ERR_MEMORY)
                print_error("request %ld: %s\n", n, trek_error());
            assert_true(trek_error_status() == TREK_OK || trek_error_status() == TREK_ERR_MEMORY);
            trek_error_clear();
            if (graph && trek_graph_world_size(graph) == 2 && trek_graph_optimizer(graph)) {
                trek_graph_zero_grad(graph);
                train_once(graph, 5, 2);
                expect_clear();
            }
            trek_graph_free(&graph);
            if (!reached)
                break;
        }
    assert_true(failures > 20);
}

int main(void)
{
    trek_allocator allocator = { test_allocate, test_release, NULL };
    if (trek_allocator_set(&allocator) != TREK_OK)
        return 1;
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_group, set_up), cmocka_unit_test_setup(test_earlier_error_stays_the_same, set_up),
        cmocka_unit_test_setup(test_set_up_mistakes, set_up), cmocka_unit_test_setup(test_devices_from_the_environment, set_up),
        cmocka_unit_test_setup(test_calls_reach_replicas, set_up), cmocka_unit_test_setup(test_buffers_are_merged, set_up),
        cmocka_unit_test_setup(test_one_rank_fails, set_up), cmocka_unit_test_setup(test_no_memory, set_up),
    };
    return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
