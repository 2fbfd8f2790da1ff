/* SPDX-License-Identifier: Apache-2.0 */
/* Rank threads and the gathered stepper: what reaches the replicas, what comes
 * back from them, and what happens when one of them fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "distributed/step/stepper_ranks.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "tensor/memory.h"
#include "tensor/place.h"

/* --- an allocator that fails on demand ----------------------------------------------------- */

static atomic_long allocations, alive, fail_at; /* fail_at 0: never */

static void *test_allocate(size_t bytes, size_t alignment, void *arg)
{
    (void)arg;
    long number = atomic_fetch_add(&allocations, 1) + 1, at = atomic_load(&fail_at);
    if (at && number >= at && number < at + 3)
        return NULL;
    void *memory = NULL;
    if (posix_memalign(&memory, alignment < 16 ? 16 : alignment, bytes ? bytes : 1) != 0)
        return NULL;
    atomic_fetch_add(&alive, 1);
    return memory;
}

static void test_release(void *memory, size_t bytes, void *arg)
{
    (void)bytes, (void)arg;
    atomic_fetch_sub(&alive, 1);
    free(memory);
}

/* --- a module that tells what happens to it ------------------------------------------------- */

enum { MAX_WORLD = 8, FEATURES = 3 };

static struct {
    atomic_int training[MAX_WORLD], requires_grad[MAX_WORLD], runs[MAX_WORLD], rows[MAX_WORLD];
    atomic_int fail_forward, fail_backward; /* rank, -1: none */
} seen;

typedef struct probe {
    trek_module base;
    trek_var *weight, *bias, *running_mean, *running_var, *count, *trace;
} probe;

static trek_status break_forward(trek_function_context *context, trek_var *const *inputs, int n, trek_var **outputs,
                                 int n_outputs)
{
    (void)context, (void)n, (void)n_outputs;
    outputs[0] = inputs[0];
    return TREK_OK;
}

static trek_status break_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **input_grads,
                                  int n_inputs)
{
    (void)context, (void)n, (void)n_inputs;
    if (trek_place_here.rank == atomic_load(&seen.fail_backward))
        return trek_fail(TREK_ERR_CALLBACK, "the probe was told to fail in backward");
    input_grads[0] = grads[0];
    return TREK_OK;
}

static const trek_function break_function = { "break", break_forward, break_backward, NULL };

static trek_var *probe_forward(trek_module *self, trek_var *x)
{
    probe *m = (probe *)self;
    int rank = trek_place_here.rank;
    atomic_store(&seen.training[rank], self->training);
    atomic_store(&seen.requires_grad[rank], trek_var_requires_grad(m->weight));
    atomic_store(&seen.rows[rank], (int)trek_place_here.rows);
    atomic_fetch_add(&seen.runs[rank], 1);
    if (rank == atomic_load(&seen.fail_forward)) {
        trek_fail(TREK_ERR_CALLBACK, "the probe was told to fail");
        return NULL;
    }
    if (self->training) { /* statistics of this rank's part, as they are */
        trek_no_grad_begin();
        trek_var *mean = trek_mean(x, trek_dims(0), false);
        trek_copy_(m->running_mean, mean);
        trek_copy_(m->running_var, trek_mean(trek_square(trek_sub(x, mean)), trek_dims(0), false));
        trek_fill_(m->count, rank + 5);
        trek_copy_(m->trace, trek_mean(x, trek_dims_none(), false));
        trek_no_grad_end();
    }
    trek_var *y = trek_function_apply_one(&break_function, NULL, (trek_var *[]){ trek_linear(x, m->weight, m->bias) }, 1);
    return y;
}

static const trek_module_class probe_class = { .name = "probe", .size = sizeof(probe), .forward = probe_forward };

static trek_tensor *values(uint32_t stream, trek_shape shape, trek_device device)
{
    float data[4096];
    for (int64_t i = 0; i < trek_shape_numel(shape); i++) {
        uint32_t h = (stream * 977u + (uint32_t)i + 1) * 2654435761u;
        h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 13;
        data[i] = (float)((double)(h >> 8) * 0x1p-23 - 1);
    }
    return trek_tensor_from_data(data, shape, TREK_F32, device);
}

static trek_module *probe_new(int64_t out, trek_device device)
{
    trek_module *m = trek_module_new(&probe_class);
    trek_module_param(m, "weight", offsetof(probe, weight), values(1, trek_dims(out, FEATURES), device));
    trek_module_param(m, "bias", offsetof(probe, bias), values(2, trek_dims(out), device));
    trek_module_buffer(m, "running_mean", offsetof(probe, running_mean),
                       trek_tensor_zeros(trek_dims(FEATURES), TREK_F32, device));
    trek_module_buffer(m, "running_var", offsetof(probe, running_var), trek_tensor_ones(trek_dims(FEATURES), TREK_F32, device));
    trek_module_buffer(m, "count", offsetof(probe, count), trek_tensor_zeros(trek_dims_none(), TREK_I64, device));
    trek_module_buffer(m, "trace", offsetof(probe, trace), trek_tensor_zeros(trek_dims_none(), TREK_F32, device));
    return trek_module_check(m);
}

static trek_graph *build(trek_device device, void *arg)
{
    (void)arg;
    return trek_flow_build(trek_flow_from(probe_new(2, device)));
}

static probe *probe_of(trek_graph *graph) { return (probe *)trek_graph_module(graph)->children[0].module; }

static trek_graph *trained(int world, int share)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    trek_status status = trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = build, .ranks = world, .optimizer = trek_sgd((trek_sgd_opts){ .lr = 0.1 }), .share = share });
    if (status != TREK_OK)
        print_error("%s\n", trek_error());
    assert_int_equal(status, TREK_OK);
    return graph;
}

static int set_up(void **state)
{
    (void)state;
    for (int r = 0; r < MAX_WORLD; r++) {
        atomic_store(&seen.training[r], -1);
        atomic_store(&seen.requires_grad[r], -1);
        atomic_store(&seen.runs[r], 0);
        atomic_store(&seen.rows[r], -2);
    }
    atomic_store(&seen.fail_forward, -1);
    atomic_store(&seen.fail_backward, -1);
    return 0;
}

static void expect_error(trek_status status, const char *part)
{
    if (trek_status_get() != status || !strstr(trek_error(), part))
        print_error("expected %s with \"%s\", got \"%s\"\n", trek_status_name(status), part, trek_error());
    assert_int_equal(trek_status_get(), status);
    assert_non_null(strstr(trek_error(), part));
    trek_error_clear();
}

static void expect_clear(void)
{
    if (trek_status_get() != TREK_OK)
        print_error("%s\n", trek_error());
    assert_int_equal(trek_status_get(), TREK_OK);
}

/* --- the group ---------------------------------------------------------------------------------- */

static trek_status place_fn(int rank, void *arg)
{
    atomic_int *good = arg;
    const trek_place *p = &trek_place_here;
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

static trek_status nested_fn(int rank, void *arg)
{
    return rank == 0 ? trek_ranks_run(arg, place_fn, NULL) : TREK_OK;
}

static void test_group(void **state)
{
    (void)state;
    trek_ranks *ranks = trek_ranks_new(NULL, 3), *same = trek_ranks_new(NULL, 3);
    assert_non_null(ranks);
    assert_ptr_equal(ranks, same);
    trek_ranks_free(&same);
    assert_int_equal(trek_ranks_world_size(ranks), 3);
    atomic_int good = 0;
    for (int i = 0; i < 50; i++)
        assert_int_equal(trek_ranks_run(ranks, place_fn, &good), TREK_OK);
    assert_int_equal(good, 150);
    assert_int_equal(trek_place_here.world, 1);
    assert_int_equal(trek_ranks_run(ranks, failing_fn, (int[]){ 2, 0 }), TREK_ERR_IO);
    expect_error(TREK_ERR_IO, "rank 2: no file for 2");
    assert_int_equal(trek_ranks_run(ranks, failing_fn, (int[]){ 0, 3 }), TREK_ERR_IO);
    expect_error(TREK_ERR_IO, "rank 0: no file for 0");
    assert_int_equal(trek_ranks_run(ranks, failing_fn, (int[]){ -1, 0 }), TREK_ERR_PEER);
    expect_error(TREK_ERR_PEER, "rank 1: another failed");
    trek_fail(TREK_ERR_FORMAT, "an earlier one");
    trek_ranks_run(ranks, failing_fn, (int[]){ 1, 3 });
    expect_error(TREK_ERR_FORMAT, "an earlier one");
    assert_int_equal(trek_ranks_run(ranks, nested_fn, ranks), TREK_ERR_STATE);
    expect_error(TREK_ERR_STATE, "running already");
    assert_int_equal(trek_ranks_run(ranks, place_fn, &good), TREK_OK);
    trek_ranks_free(&ranks);
    assert_null(trek_ranks_new(NULL, 0));
    expect_error(TREK_ERR_ARGUMENT, "0 ranks");
}

/* --- setting up ------------------------------------------------------------------------------------ */

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
    (void)device;
    return arg;
}

static void test_set_up_mistakes(void **state)
{
    (void)state;
    assert_int_equal(trek_trainer_setup(NULL, NULL), TREK_ERR_ARGUMENT);
    trek_error_clear();
    trek_graph *graph = build(trek_cpu(0), NULL);
    int kind = 0;
    static const int wrong_ranks[] = { -1, 1025 };
    for (int k = 0; k < 2; k++) {
        assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = wrong_ranks[k] }),
                         TREK_ERR_ARGUMENT);
        expect_error(TREK_ERR_ARGUMENT, "ranks");
    }
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2 });
    expect_error(TREK_ERR_ARGUMENT, "build_replica");
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build_other, .arg = &kind });
    expect_error(TREK_ERR_IO, "rank 1: no model file");
    kind = 1;
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 3, .build_replica = build_other, .arg = &kind });
    expect_error(TREK_ERR_CALLBACK, "build_replica returned NULL");
    kind = 4;
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build_other, .arg = &kind });
    expect_error(TREK_ERR_ARGUMENT, "weight\" [4, 3] f32 in rank 1");
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build_same, .arg = graph });
    expect_error(TREK_ERR_ARGUMENT, "another rank has already");
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build,
                                                    .devices = (trek_device[]){ trek_cpu(1), trek_cpu(0) } });
    expect_error(TREK_ERR_DEVICE, "rank 0's device is cpu:1");
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build,
                                                    .devices = (trek_device[]){ trek_cpu(0), trek_cuda(77) } });
    expect_error(TREK_ERR_DEVICE, "");
    trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 2, .build_replica = build,
                                                    .optimizer = trek_sgd((trek_sgd_opts){ .lr = -1 }) });
    expect_error(TREK_ERR_ARGUMENT, "lr");
    static const char *const wrong_lists[] = { "cpu:0,", ",cpu:0", "cpu:0;cpu:1", "cpu:0,gpu", "cpu:0,cpu:x", "cpu:0, cpu:1" };
    for (int k = 0; k < 6; k++) {
        setenv("TREK_DEVICES", wrong_lists[k], 1);
        assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build }), TREK_ERR_ARGUMENT);
        trek_error_clear();
    }
    unsetenv("TREK_DEVICES");
    assert_int_equal(trek_graph_world_size(graph), 1);
    assert_int_equal(trek_trainer_setup(graph, NULL), TREK_OK);
    trek_graph_free(&graph);
}

static void test_devices_from_the_environment(void **state)
{
    (void)state;
    setenv("TREK_DEVICES", "cpu:0,cpu:3,cpu", 1);
    trek_graph *graph = build(trek_cpu(0), NULL);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build }), TREK_OK);
    unsetenv("TREK_DEVICES");
    assert_int_equal(trek_graph_world_size(graph), 3);
    double shares[3];
    assert_int_equal(trek_graph_shares(graph, shares, 3), 3);
    assert_true(fabs(shares[0] + shares[1] + shares[2] - 1) < 1e-12);
    assert_int_equal(trek_graph_step(graph), TREK_ERR_STATE);
    expect_error(TREK_ERR_STATE, "no optimizer");
    /* set up again: other ranks, then one */
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = 2,
        .optimizer = trek_adam((trek_adam_opts){ .lr = 0.25 }) }), TREK_OK);
    assert_int_equal(trek_graph_world_size(graph), 2);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .ranks = 1 }), TREK_OK);
    assert_int_equal(trek_graph_world_size(graph), 1);
    assert_true(trek_graph_lr(graph) == 0.25); /* the optimizer that it had */
    trek_graph_free(&graph);
}

/* --- calls that reach the replicas --------------------------------------------------------------------- */

static trek_var *batch(uint32_t stream, int64_t rows)
{
    return trek_var_from(values(stream, trek_dims(rows, FEATURES), trek_cpu(0)));
}

static void train_once(trek_graph *graph, int64_t rows, uint32_t stream)
{
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_graph_forward(graph, batch(stream, rows));
    trek_graph_backward(graph, trek_mean(trek_square(y), trek_dims_none(), false));
    trek_graph_step(graph);
    trek_scope_end(scope);
}

static void test_calls_reach_replicas(void **state)
{
    (void)state;
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

/* --- buffers ----------------------------------------------------------------------------------------------- */

static void test_buffers_are_merged(void **state)
{
    (void)state;
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

/* --- evaluation and forwards of all kinds ----------------------------------------------------------------------- */

static void test_evaluation_is_exact(void **state)
{
    (void)state;
    trek_graph *single = build(trek_cpu(0), NULL), *graph = trained(4, 0);
    trek_graph_train(single, false);
    trek_graph_train(graph, false);
    trek_no_grad_begin();
    double right[2] = { 0, 0 };
    for (int64_t at = 0, rows; at < 103; at += rows) { /* batches of 10, then 3 */
        rows = 103 - at < 10 ? 103 - at : 10;
        trek_scope scope = trek_scope_begin();
        trek_var *x = batch((uint32_t)at + 20, rows);
        trek_var *a = trek_graph_forward(single, x), *b = trek_graph_forward(graph, x);
        expect_clear();
        assert_false(trek_var_requires_grad(b));
        assert_true(trek_shape_equal(trek_var_shape(a), trek_var_shape(b)));
        assert_true(trek_var_item(trek_max(trek_abs(trek_sub(a, b)), trek_dims_none(), false)) < 1e-6);
        right[0] += trek_var_item(trek_sum(trek_gt_scalar(a, 0), trek_dims_none(), false));
        right[1] += trek_var_item(trek_sum(trek_gt_scalar(b, 0), trek_dims_none(), false));
        trek_scope_end(scope);
    }
    trek_no_grad_end();
    assert_true(right[0] == right[1] && right[0] > 0);
    assert_int_equal(trek_tape_size(), 0);
    trek_graph_free(&single);
    trek_graph_free(&graph);
}

static trek_status count_tape(int rank, void *arg)
{
    ((int64_t *)arg)[rank] = trek_tape_size();
    return TREK_OK;
}

static void test_forward_without_backward(void **state)
{
    (void)state;
    trek_graph *graph = trained(3, 0);
    int64_t used = 0, nodes[3];
    for (int i = 0; i < 20; i++) {
        trek_scope scope = trek_scope_begin();
        trek_var *kept = trek_var_retain(trek_graph_forward(graph, batch(5, 9)));
        assert_true(trek_var_requires_grad(kept));
        trek_scope_end(scope);
        trek_var_release(kept);
        trek_ranks *ranks = trek_ranks_new(NULL, 3);
        assert_int_equal(trek_ranks_run(ranks, count_tape, nodes), TREK_OK);
        trek_ranks_free(&ranks);
        for (int r = 0; r < 3; r++)
            assert_int_equal(nodes[r], 0);
        if (i == 5)
            used = trek_memory_stats(trek_cpu(0)).allocated;
        assert_true(i < 5 || trek_memory_stats(trek_cpu(0)).allocated <= used + 4096);
    }
    train_once(graph, 9, 5);
    expect_clear();
    trek_graph_free(&graph);
}

static void grads_of(trek_graph *graph, float *grads)
{
    assert_int_equal(trek_graph_reduce(graph), TREK_OK);
    trek_var *grad = trek_var_grad(probe_of(graph)->weight);
    assert_non_null(grad);
    trek_tensor_to_host(trek_var_data(grad), TREK_F32, grads, 2 * FEATURES * sizeof *grads);
}

/* Two forwards before one backward; then two backwards over one forward that is kept. */
static void test_several_forwards_and_backwards(void **state)
{
    (void)state;
    float grads[2][2 * FEATURES];
    for (int kind = 0; kind < 2; kind++)
        for (int w = 0; w < 2; w++) {
            trek_graph *graph = trained(w ? 3 : 1, 0);
            trek_scope scope = trek_scope_begin();
            trek_var *a = trek_graph_forward(graph, batch(1, 5));
            if (kind == 0) {
                trek_var *b = trek_graph_forward(graph, batch(2, 5));
                trek_graph_backward(graph, trek_mean(trek_mul(a, trek_tanh(b)), trek_dims_none(), false));
            } else {
                trek_backward_with(trek_mean(trek_square(a), trek_dims_none(), false), NULL,
                                   &(trek_backward_opts){ .retain_graph = true });
                trek_graph_backward(graph, trek_sum(trek_tanh(a), trek_dims_none(), false));
            }
            expect_clear();
            grads_of(graph, grads[w]);
            trek_scope_end(scope);
            assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
            assert_null(trek_var_grad(probe_of(graph)->weight));
            trek_graph_free(&graph);
            for (int i = 0; w && i < 2 * FEATURES; i++)
                assert_true(fabsf(grads[0][i] - grads[1][i]) < 1e-5f);
        }
}

static trek_var *note_sum(trek_var *var, trek_var *grad, void *arg)
{
    (void)var;
    *(double *)arg = trek_tensor_item(trek_var_data(trek_sum(grad, trek_dims_none(), false)));
    return NULL;
}

/* What graph.h says: a hook sees rank 0's part; the gradient is whole after the reduction. */
static void test_hooks_see_a_part(void **state)
{
    (void)state;
    double part[3] = { 0 }, whole[3] = { 0 };
    for (int world = 1; world <= 2; world++) {
        trek_graph *graph = trained(world, 0);
        assert_true(trek_var_on_grad(probe_of(graph)->bias, note_sum, &part[world]) > 0);
        trek_scope scope = trek_scope_begin();
        trek_graph_backward(graph, trek_sum(trek_graph_forward(graph, batch(1, 5)), trek_dims_none(), false));
            /* 5 rows: 3 and 2 */
        assert_int_equal(trek_graph_reduce(graph), TREK_OK);
        whole[world] = trek_tensor_item(trek_var_data(trek_sum(trek_var_grad(probe_of(graph)->bias), trek_dims_none(), false)));
        trek_scope_end(scope);
        expect_clear();
        trek_graph_free(&graph);
    }
    assert_true(fabs(part[1] - whole[1]) < 1e-6 && fabs(whole[2] - whole[1]) < 1e-6);
    assert_true(fabs(part[2] - 3.0 / 5 * whole[1]) < 1e-6);
}

/* What feeds a graph is trained, too: its gradient comes back through the split. */
static void test_gradient_of_the_input(void **state)
{
    (void)state;
    float grads[2][4 * FEATURES];
    for (int w = 0; w < 2; w++) {
        trek_graph *graph = trained(w ? 3 : 1, 0);
        trek_scope scope = trek_scope_begin();
        trek_tensor *data = values(7, trek_dims(4, FEATURES), trek_cpu(0));
        trek_var *leaf = trek_var_new(data, true);
        trek_tensor_release(data);
        trek_var *y = trek_graph_forward(graph, trek_tanh(leaf));
        assert_int_equal(trek_backward(trek_mean(trek_square(y), trek_dims_none(), false)), TREK_OK);
        assert_non_null(trek_var_grad(leaf));
        trek_tensor_to_host(trek_var_data(trek_var_grad(leaf)), TREK_F32, grads[w], sizeof grads[w]);
        /* and none for it where only this graph's parameters are asked for */
        trek_var_zero_grad(leaf);
        trek_graph_backward(graph, trek_sum(trek_graph_forward(graph, trek_tanh(leaf)), trek_dims_none(), false));
        expect_clear();
        assert_null(trek_var_grad(leaf));
        trek_var_release(leaf);
        trek_scope_end(scope);
        trek_graph_free(&graph);
    }
    for (int i = 0; i < 4 * FEATURES; i++)
        assert_true(fabsf(grads[0][i] - grads[1][i]) < 1e-6f && grads[0][i] != 0);
}

static void test_what_cannot_be_split(void **state)
{
    (void)state;
    trek_graph *graph = trained(2, 0);
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_graph_forward(graph, batch(1, 4));
    trek_var *loss = trek_mean(trek_square(y), trek_dims_none(), false), *grad;
    assert_int_equal(trek_grad(&loss, 1, &probe_of(graph)->weight, 1, NULL, NULL, &grad), TREK_ERR_UNSUPPORTED);
    expect_error(TREK_ERR_UNSUPPORTED, "trek_grad through a forward that is split over 2 ranks");
    y = trek_graph_forward(graph, batch(1, 4));
    loss = trek_mean(trek_square(y), trek_dims_none(), false);
    trek_backward_with(loss, NULL, &(trek_backward_opts){ .create_graph = true });
    expect_error(TREK_ERR_UNSUPPORTED, "create_graph through a forward that is split over 2 ranks");
    assert_null(trek_graph_forward(graph, NULL));
    trek_error_clear();
    trek_graph_backward(graph, trek_graph_forward(graph, batch(1, 4)));
    expect_error(TREK_ERR_SHAPE, "scalar");
    trek_graph_zero_grad(graph);
    trek_scope_end(scope);
    train_once(graph, 4, 1);
    expect_clear();
    trek_graph_free(&graph);
}

/* --- scalars, tags, several inputs ---------------------------------------------------------------------- */

typedef struct pair_module {
    trek_module base;
    trek_var *weight;
} pair_module;

static const char *const pair_inputs[] = { "table", NULL };

/* Mean over the rows of (x * weight) . table's first row: a scalar. */
static trek_var *pair_forward(trek_module *self, trek_var *const *inputs, int n)
{
    (void)n;
    trek_var *row = trek_narrow(inputs[1], 0, 0, 1);
    return trek_mean(trek_sum(trek_mul(trek_mul(inputs[0], ((pair_module *)self)->weight), row), trek_dims(1), false),
                     trek_dims_none(), false);
}

static const trek_module_class pair_class = { .name = "pair", .size = sizeof(pair_module), .forward_many = pair_forward,
                                              .input_names = pair_inputs };

static trek_graph *build_pair(trek_device device, void *arg)
{
    (void)arg;
    trek_module *m = trek_module_new(&pair_class);
    trek_module_param(m, "weight", offsetof(pair_module, weight), values(4, trek_dims(FEATURES), device));
    trek_flow *flow = trek_flow_from(trek_nn_tanh());
    trek_flow_tag(flow, "hidden");
    trek_flow_input(flow, "table");
    trek_flow_through(flow, trek_module_check(m));
    trek_flow_using(flow, "table");
    return trek_flow_build(flow);
}

static void test_scalars_tags_and_whole_inputs(void **state)
{
    (void)state;
    double losses[2];
    float table_grads[2][2 * FEATURES], x_grads[2][5 * FEATURES];
    for (int w = 0; w < 2; w++) {
        trek_graph *graph = build_pair(trek_cpu(0), NULL);
        assert_non_null(graph);
        assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build_pair, .ranks = w ? 3 : 1,
            .optimizer = trek_sgd((trek_sgd_opts){ .lr = 0.1 }) }), TREK_OK);
        trek_scope scope = trek_scope_begin();
        trek_tensor *x_data = values(1, trek_dims(5, FEATURES), trek_cpu(0)),
            *table_data = values(2, trek_dims(2, FEATURES), trek_cpu(0));
        trek_var *x = trek_var_new(x_data, true), *table = trek_var_new(table_data, true);
        trek_tensor_release(x_data);
        trek_tensor_release(table_data);
        trek_var *both[2] = { x, table };
        if (w) {
            assert_null(trek_graph_forward_many(graph, both, 2));
            expect_error(TREK_ERR_SHAPE, "trek_graph_replicate_input");
        }
        assert_int_equal(trek_graph_replicate_input(graph, "table"), TREK_OK);
        trek_var *y = trek_graph_forward_many(graph, both, 2);
        expect_clear();
        assert_int_equal(trek_var_ndim(y), 0);
        trek_var *hidden = trek_graph_tagged(graph, "hidden");
        assert_int_equal(trek_var_size(hidden, 0), 5);
        trek_var *loss = trek_add(trek_square(y), trek_mean(trek_square(hidden), trek_dims_none(), false));
        losses[w] = trek_var_item(loss);
        assert_int_equal(trek_backward(loss), TREK_OK);
        trek_tensor_to_host(trek_var_data(trek_var_grad(table)), TREK_F32, table_grads[w], sizeof table_grads[w]);
        trek_tensor_to_host(trek_var_data(trek_var_grad(x)), TREK_F32, x_grads[w], sizeof x_grads[w]);
        trek_scope_end(scope);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        trek_var_release(x);
        trek_var_release(table);
        trek_graph_free(&graph);
    }
    assert_true(fabs(losses[0] - losses[1]) < 1e-6);
    for (int i = 0; i < 2 * FEATURES; i++)
        assert_true(fabsf(table_grads[0][i] - table_grads[1][i]) < 1e-6f);
    for (int i = 0; i < 5 * FEATURES; i++)
        assert_true(fabsf(x_grads[0][i] - x_grads[1][i]) < 1e-6f && x_grads[0][i] != 0);
}

/* --- failures --------------------------------------------------------------------------------------------- */

static void test_one_rank_fails(void **state)
{
    (void)state;
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
    (void)state;
    int failures = 0;
    for (int share = 0; share >= TREK_OFF; share--)
        for (long n = 1; n < 1000; n += n < 250 ? 1 : 37) {
            trek_memory_release_cached(trek_cpu(0));
            atomic_store(&allocations, 0);
            atomic_store(&fail_at, n);
            trek_graph *graph = build(trek_cpu(0), NULL);
            if (graph)
                trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = 2, .share = share,
                    .optimizer = trek_adam((trek_adam_opts){ .lr = 0.1 }) });
            if (graph && trek_status_get() == TREK_OK)
                train_once(graph, 5, 1);
            bool reached = atomic_load(&allocations) >= n;
            atomic_store(&fail_at, 0);
            failures += trek_status_get() == TREK_ERR_MEMORY;
            if (trek_status_get() != TREK_OK && trek_status_get() != TREK_ERR_MEMORY)
                print_error("request %ld: %s\n", n, trek_error());
            assert_true(trek_status_get() == TREK_OK || trek_status_get() == TREK_ERR_MEMORY);
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
    trek_log_set(TREK_LOG_ERROR, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_group, set_up),
        cmocka_unit_test_setup(test_set_up_mistakes, set_up),
        cmocka_unit_test_setup(test_devices_from_the_environment, set_up),
        cmocka_unit_test_setup(test_calls_reach_replicas, set_up),
        cmocka_unit_test_setup(test_buffers_are_merged, set_up),
        cmocka_unit_test_setup(test_evaluation_is_exact, set_up),
        cmocka_unit_test_setup(test_forward_without_backward, set_up),
        cmocka_unit_test_setup(test_several_forwards_and_backwards, set_up),
        cmocka_unit_test_setup(test_hooks_see_a_part, set_up),
        cmocka_unit_test_setup(test_gradient_of_the_input, set_up),
        cmocka_unit_test_setup(test_what_cannot_be_split, set_up),
        cmocka_unit_test_setup(test_scalars_tags_and_whole_inputs, set_up),
        cmocka_unit_test_setup(test_one_rank_fails, set_up),
        cmocka_unit_test_setup(test_no_memory, set_up),
    };
    return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
