/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/distributed/probe.h"

#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "graph/flow.h"
#include "tensor/memory.h"
#include "tensor/rank_context.h"
#include "tests/support/refused.h"

/* --- an allocator that fails on demand ------------------------------------------------------------------- */

atomic_long allocations, alive, fail_at;

void *test_allocate(size_t bytes, size_t alignment, void *arg)
{
    long number = atomic_fetch_add(&allocations, 1) + 1, at = atomic_load(&fail_at);
    if (at && number >= at && number < at + 3)
        return NULL;
    void *memory = NULL;
    if (posix_memalign(&memory, alignment < 16 ? 16 : alignment, bytes ? bytes : 1) != 0)
        return NULL;
    atomic_fetch_add(&alive, 1);
    return memory;
}

void test_release(void *memory, size_t bytes, void *arg)
{
    atomic_fetch_sub(&alive, 1);
    free(memory);
}

/* --- a module that tells what happens to it -------------------------------------------------------------- */

sightings seen;

static trek_status break_forward(trek_function_context *context, trek_var *const *inputs, int n, trek_var **outputs,
                                 int n_outputs)
{
    outputs[0] = inputs[0];
    return TREK_OK;
}

static trek_status break_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **input_grads,
                                  int n_inputs)
{
    if (trek_rank_here.rank == atomic_load(&seen.fail_backward))
        return trek_fail(TREK_ERR_CALLBACK, "the probe was told to fail in backward");
    input_grads[0] = grads[0];
    return TREK_OK;
}

static const trek_function break_function = { "break", break_forward, break_backward, NULL };

static trek_var *probe_forward(trek_module *self, trek_var *x)
{
    probe *m = (probe *)self;
    int rank = trek_rank_here.rank;
    atomic_store(&seen.training[rank], trek_module_is_training(self));
    atomic_store(&seen.requires_grad[rank], trek_var_requires_grad(m->weight));
    atomic_store(&seen.rows[rank], (int)trek_rank_here.rows);
    atomic_fetch_add(&seen.runs[rank], 1);
    if (rank == atomic_load(&seen.fail_forward)) {
        trek_fail(TREK_ERR_CALLBACK, "the probe was told to fail");
        return NULL;
    }
    if (trek_module_is_training(self)) { /* statistics of this rank's part, as they are */
        trek_no_grad_begin();
        trek_var *mean = trek_mean(x, trek_dims(0), false);
        trek_copy_(m->running_mean, mean);
        trek_copy_(m->running_var, trek_mean(trek_square(trek_sub(x, mean)), trek_dims(0), false));
        trek_fill_(m->count, rank + 5);
        trek_copy_(m->trace, trek_mean(x, trek_dims_all(), false));
        trek_no_grad_end();
    }
    trek_var *y = trek_function_apply_one(&break_function, NULL, (trek_var *[]){ trek_linear(x, m->weight, m->bias) }, 1);
    return y;
}

static const trek_module_class probe_class = { .name = "probe", .size = sizeof(probe), .forward = probe_forward };

trek_tensor *values(uint32_t stream, trek_shape shape, trek_device device)
{
    float data[4096];
    for (int64_t i = 0; i < trek_shape_numel(shape); i++) {
        uint32_t h = (stream * 977u + (uint32_t)i + 1) * 2654435761u;
        h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 13;
        data[i] = (float)((double)(h >> 8) * 0x1p-23 - 1);
    }
    return trek_tensor_from_data(data, shape, TREK_F32, device);
}

trek_module *probe_new(int64_t out, trek_device device)
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

trek_graph *build(trek_device device, void *arg)
{
    return trek_flow_build(trek_flow_from(probe_new(2, device)));
}

probe *probe_of(trek_graph *graph) { return (probe *)trek_graph_module(graph)->own->children[0].module; }

trek_graph *trained(int world, int share)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    trek_status status = trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = build, .ranks = world, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }), .share_params = share });
    if (status != TREK_OK)
        print_error("%s\n", trek_error());
    assert_int_equal(status, TREK_OK);
    return graph;
}

int set_up(void **state)
{
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

void expect_clear(void)
{
    if (trek_error_status() != TREK_OK)
        print_error("%s\n", trek_error());
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* --- calls that reach the replicas ----------------------------------------------------------------------- */

trek_var *batch(uint32_t stream, int64_t rows)
{
    return trek_var_from(values(stream, trek_dims(rows, FEATURES), trek_cpu(0)));
}

void train_once(trek_graph *graph, int64_t rows, uint32_t stream)
{
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_graph_forward(graph, batch(stream, rows));
    trek_graph_backward(graph, trek_mean(trek_square(y), trek_dims_all(), false));
    trek_graph_step(graph);
    trek_scope_end(scope);
}
