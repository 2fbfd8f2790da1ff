/* SPDX-License-Identifier: Apache-2.0 */
/* trek_ddp without memory: each allocation fails once, whatever is done; nobody waits for
 * whoever it happened to, nothing is half-done, and afterwards all goes on. */
#include <stdatomic.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/grad.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "distributed/ddp.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "tensor/log.h"
#include "tensor/memory.h"
#include "tests/support/ddp_net.h"
#include "tests/support/unit.h"

static atomic_long allocations, fail_at; /* fail_at 0: never */

static void *test_allocate(size_t bytes, size_t alignment, void *arg)
{
    long at = atomic_load(&fail_at), number = atomic_fetch_add(&allocations, 1) + 1;
    void *memory = NULL;
    if (at && number >= at && number < at + 3) /* it is asked for again after caches were emptied */
        return NULL;
    return posix_memalign(&memory, alignment < 16 ? 16 : alignment, bytes ? bytes : 1) == 0 ? memory : NULL;
}

static void test_release(void *memory, size_t bytes, void *arg)
{
    free(memory);
}

static void fail_from_here(long at)
{
    atomic_store(&allocations, 0);
    atomic_store(&fail_at, at);
}

/* Whether the allocation that is to fail has come; none fails from here. */
static bool failed(long at)
{
    atomic_store(&fail_at, 0);
    return atomic_load(&allocations) >= at;
}

static trek_module *model_new(uint32_t seed)
{
    trek_module *body = ddp_net_new(TREK_F32, seed);
    return trek_nn_sequential((trek_module *[]){ body, trek_nn_batch_norm1d(OUT, trek_cpu(0)) }, 2);
}

static trek_ddp *wrapped(const trek_ddp_opts *opts)
{
    trek_module *models[2] = { model_new(0), model_new(9) };
    return trek_ddp_wrap(models, 2, opts);
}

typedef struct work {
    trek_ddp *ddp;
    bool reduces;
} work;

static trek_status pass_of_rank(int rank, void *arg)
{
    work *w = arg;
    trek_scope scope = trek_scope_begin();
    trek_var *loss = ddp_loss_of(trek_ddp_replica_module(w->ddp, rank), (uint32_t)rank, 0, 3, TREK_F32);
    if (w->reduces)
        trek_ddp_backward(w->ddp, loss); /* with an error, too */
    else
        trek_backward(loss);
    trek_scope_end(scope);
    return trek_error_status();
}

static void drop_grads(trek_ddp *ddp)
{
    for (int r = 0; r < 2; r++) {
        ddp_net *m = (ddp_net *)trek_ddp_replica_module(ddp, r)->own->children[0].module;
        trek_var *params[] = { m->w1, m->b1, m->tied, m->frozen, m->unused, m->branch, m->w2, m->b2 };
        for (int k = 0; k < 8; k++)
            trek_var_zero_grad(params[k]);
    }
}

/* What is tried; true if it went well. */
static bool reduce_after(trek_ddp *ddp) { return trek_ddp_reduce_gradients_weighted(ddp, (double[]){ 1, 3 }) == TREK_OK; }

static bool backward_all(trek_ddp *ddp)
{
    return trek_ranks_run(trek_ddp_ranks(ddp), pass_of_rank, &(work){ ddp, true }) == TREK_OK;
}

static bool sync_all(trek_ddp *ddp)
{
    return trek_ddp_sync_params(ddp) == TREK_OK && trek_ddp_sync_buffers(ddp, (double[]){ 2, 1 }) == TREK_OK;
}

static bool forward_all(trek_ddp *ddp)
{
    trek_scope scope = trek_scope_begin();
    trek_var *inputs[] = { ddp_rows(1, 0, 2, IN, TREK_F32), ddp_rows(1, 2, 3, IN, TREK_F32) };
    trek_var *y = inputs[0] && inputs[1] ? trek_ddp_forward(ddp, inputs) : NULL;
    bool good = y && trek_ddp_backward(ddp, trek_mean(y, trek_dims_all(), false)) == TREK_OK;
    trek_scope_end(scope);
    return good;
}

static void every_allocation_fails_once(void **state)
{
    static bool (*const tries[])(trek_ddp *) = { reduce_after, backward_all, sync_all, forward_all };
    int failures = 0;
    for (int k = 0; k < 4; k++)
        for (long at = 1;; at++) {
            trek_ddp *ddp = wrapped(&(trek_ddp_opts){ .bucket_bytes = 300, .overlap = k == 1 });
            assert_non_null(ddp);
            if (k == 0)
                assert_int_equal(trek_ranks_run(trek_ddp_ranks(ddp), pass_of_rank, &(work){ ddp, false }), TREK_OK);
            fail_from_here(at);
            bool good = tries[k](ddp), reached = failed(at);
            assert_true(good || trek_error_status() != TREK_OK);
            failures += !good;
            trek_error_clear();
            drop_grads(ddp);
            assert_true(tries[k](ddp)); /* the next time all is well */
            trek_ddp_free(&ddp);
            if (!reached)
                break;
        }
    assert_true(failures > 20);
    assert_int_equal(trek_tape_size(), 0);
}

static void wrapping_without_memory(void **state)
{
    int failures = 0;
    for (long at = 1;; at++) {
        trek_module *models[2] = { model_new(0), model_new(9) };
        fail_from_here(at);
        trek_ddp *ddp = trek_ddp_wrap(models, 2, NULL);
        bool reached = failed(at);
        assert_true(ddp || trek_error_status() != TREK_OK);
        failures += !ddp;
        trek_error_clear();
        trek_ddp_free(&ddp);
        if (!reached)
            break;
    }
    assert_true(failures > 20);
}

int main(void)
{
    setenv("TREK_CACHE", "off", 1); /* each request comes to the allocator */
    trek_allocator allocator = { test_allocate, test_release, NULL };
    if (trek_allocator_set(&allocator) != TREK_OK)
        return 1;
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrapping_without_memory), cmocka_unit_test(every_allocation_fails_once),
    };
    alarm(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
