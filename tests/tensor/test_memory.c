/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory: alignment, the cache, blocks freed by other threads, counters,
 * and the replaceable allocator. */
#include <pthread.h>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/memory_account.h"
#include "tensor/memory_internal.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

static void allocations_are_aligned(void **state)
{
    for (size_t bytes = 0; bytes < 5000; bytes = bytes * 3 + 1) {
        char *a = trek_alloc(bytes), *b = trek_block_alloc(bytes);
        assert_non_null(a);
        assert_non_null(b);
        assert_int_equal((uintptr_t)a % 16, 0);
        assert_int_equal((uintptr_t)b % 64, 0);
        memset(a, 1, bytes);
        memset(b, 2, bytes);
        trek_free(a);
        trek_block_free(b);
    }
    trek_free(NULL);
    trek_block_free(NULL);
}

static void growing_keeps_what_is_there(void **state)
{
    int *array = NULL, capacity = 0;
    for (int k = 0; k < 1000; k++) {
        assert_int_equal(trek_array_grow(&array, &capacity, k + 1, sizeof *array), TREK_OK);
        array[k] = k;
    }
    for (int k = 0; k < 1000; k++)
        assert_int_equal(array[k], k);
    trek_free(array);
    REFUSED(trek_calloc(SIZE_MAX / 2, 3), TREK_ERR_MEMORY, "");
    char *text = trek_format("%s %d", "number", 7);
    assert_string_equal(text, "number 7");
    trek_free(text);
}

static void blocks_are_reused(void **state)
{
    trek_memory_stats before = trek_memory_usage(trek_cpu(0));
    for (int k = 0; k < 1000; k++) {
        void *block = trek_block_alloc(100000);
        assert_non_null(block);
        trek_block_free(block);
    }
    trek_memory_stats after = trek_memory_usage(trek_cpu(0));
    assert_int_equal(after.allocated, before.allocated);
    assert_true(after.allocations - before.allocations >= 1000);
    assert_true(after.system_requests - before.system_requests <= 2);
    assert_true(after.allocated_peak >= before.allocated + 100000);
}

/* --- blocks that cross threads ---------------------------------------------------- */

enum { BLOCKS = 2000, THREADS = 4 };
static void *blocks[THREADS][BLOCKS];

static void *make_blocks(void *arg)
{
    void **mine = arg;
    for (int k = 0; k < BLOCKS; k++) {
        mine[k] = trek_block_alloc((size_t)(64 << k % 6));
        if (mine[k])
            memset(mine[k], 1, (size_t)(64 << k % 6));
    }
    return NULL;
}

static void *free_blocks(void *arg)
{
    void **others = arg;
    for (int k = 0; k < BLOCKS; k++)
        trek_block_free(others[k]);
    return NULL;
}

static void on_threads(void *(*fn)(void *), int shift)
{
    pthread_t threads[THREADS];
    for (int k = 0; k < THREADS; k++)
        assert_int_equal(pthread_create(&threads[k], NULL, fn, blocks[(k + shift) % THREADS]), 0);
    for (int k = 0; k < THREADS; k++)
        pthread_join(threads[k], NULL);
}

static void blocks_cross_threads(void **state)
{
    trek_memory_release_cached(trek_cpu(0));
    trek_memory_stats before = trek_memory_usage(trek_cpu(0));
    for (int round = 0; round < 5; round++) {
        on_threads(make_blocks, 0);
        for (int t = 0; t < THREADS; t++)
            for (int k = 0; k < BLOCKS; k++)
                assert_non_null(blocks[t][k]);
        on_threads(free_blocks, 1 + round % 2);
    }
    assert_int_equal(trek_memory_usage(trek_cpu(0)).allocated, before.allocated);
    trek_memory_release_cached(trek_cpu(0)); /* those of threads that have ended, too */
    assert_int_equal(trek_memory_usage(trek_cpu(0)).reserved, before.reserved);
}

static void *make_and_free(void *arg)
{
    for (int k = 0; k < 3000; k++) {
        void *block = trek_block_alloc((size_t)(k % 7 * 1000 + 1));
        trek_block_free(block);
    }
    return NULL;
}

static void threads_at_once(void **state)
{
    on_threads(make_and_free, 0);
    assert_int_equal(trek_error_status(), TREK_OK);
}

/* --- the allocator -------------------------------------------------------------------- */

static int what_to_leave;

/* Ends in the middle of things. */
static void *leave_things_open(void *arg)
{
    trek_scope scope = trek_scope_begin();
    assert_true(scope.depth > 0);
    if (what_to_leave == 0)
        return NULL;
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(64, 64), TREK_F32, trek_cpu(0)));
    trek_var_set_requires_grad(x, true);
    if (what_to_leave == 2)
        trek_autocast_begin(TREK_BF16);
    trek_var *y = trek_matmul(x, x);
    trek_backward(trek_sum(trek_dropout(y, 0.5, true), trek_dims_all(), false));
    if (trek_error_status() != TREK_OK)
        printf("%s\n", trek_error());
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_matmul(x, NULL); /* its text is the thread's, too */
    return NULL;
}

static void threads_take_nothing_with_them(void **state)
{
    enum { AT_ONCE = 24, ROUNDS = 8 };
    pthread_t threads[AT_ONCE];
    for (what_to_leave = 0; what_to_leave < 3; what_to_leave++) {
        trek_memory_stats before = trek_memory_usage(trek_cpu(0)), after = before;
        for (int round = 0; round < ROUNDS; round++) {
            for (int k = 0; k < AT_ONCE; k++)
                assert_int_equal(pthread_create(&threads[k], NULL, leave_things_open, NULL), 0);
            for (int k = 0; k < AT_ONCE; k++)
                pthread_join(threads[k], NULL);
            after = trek_memory_usage(trek_cpu(0));
        }
        assert_int_equal(after.allocated, before.allocated);
        assert_true(after.reserved <= before.reserved); /* less, where earlier threads had left something */
    }
}

static void the_allocator_sees_everything(void **state)
{
    trek_tensor *alive = trek_tensor_ones(trek_dims(10000), TREK_F32, trek_cpu(0));
    FAILS(trek_allocator_set(NULL), TREK_ERR_STATE, "");
    assert_true(test_memory.bytes >= 40000);
    trek_tensor_release(alive);
    trek_memory_release_cached(trek_cpu(0));
    int64_t calls = test_memory.calls;
    alive = trek_tensor_ones(trek_dims(1000000), TREK_F32, trek_cpu(0));
    assert_true(test_memory.calls > calls);
    trek_tensor_release(alive);
    trek_memory_release_cached(trek_cpu(0));
    assert_true(test_memory.bytes < 1000000);
}

static void failures_are_reported(void **state)
{
    trek_memory_release_cached(trek_cpu(0));
    test_allocator_restart(1);
    test_memory.fail_count = INT64_MAX / 2;
    assert_null(trek_tensor_ones(trek_dims(5000000), TREK_F32, trek_cpu(0)));
    assert_int_equal(trek_error_status(), TREK_ERR_MEMORY);
    test_allocator_restart(0);
    test_memory.fail_count = 0;
    trek_error_clear();
    trek_tensor *t = trek_tensor_ones(trek_dims(5000000), TREK_F32, trek_cpu(0));
    assert_non_null(t);
    trek_tensor_release(t);
}

/* --- accounts ------------------------------------------------------------------------------------------ */

enum { BLOCK = 1 << 16, HELD = 1000 };

typedef struct member {
    trek_memory_account *account;
    pthread_barrier_t *together;
    void *made[4];
    int n;                   /* which it has got */
    trek_status status;
} member;

/* Joins as member 1, and asks for blocks until it gets no more. */
static void *spend(void *arg)
{
    member *m = arg;
    void *before = trek_block_alloc(1 << 20); /* what a thread has had does not count */
    assert_int_equal(trek_memory_account_join(m->account, 1), TREK_OK);
    pthread_barrier_wait(m->together);
    pthread_barrier_wait(m->together);
    while (m->n < 4 && (m->made[m->n] = trek_block_alloc(BLOCK)))
        m->n++;
    m->status = trek_error_status();
    trek_block_free(before);
    pthread_barrier_wait(m->together);
    pthread_barrier_wait(m->together);
    trek_memory_account_leave();
    return NULL;
}

/* What the calling thread has had before counts as `held`; the limit is for all members together; what another thread frees is
 * given back. */
static void accounts_limit_their_members(void **state)
{
    if (!trek_memory_account_counts())
        skip();
    trek_memory_account *account = trek_memory_account_new(2);
    assert_non_null(account);
    void *before = trek_block_alloc(BLOCK), *made[4];
    assert_int_equal(trek_memory_account_join(account, 0), TREK_OK);
    trek_memory_account_begin(account, HELD);
    assert_int_equal(trek_memory_account_used(account), HELD);
    for (int k = 0; k < 3; k++)
        assert_non_null(made[k] = trek_block_alloc(BLOCK));
    trek_block_free(made[2]);
    assert_int_equal(trek_memory_account_used(account), HELD + 2 * BLOCK);
    assert_int_equal(trek_memory_account_peak(account), HELD + 3 * BLOCK);
    trek_memory_account_reset_peak(account);
    assert_int_equal(trek_memory_account_peak(account), HELD + 2 * BLOCK);
    trek_memory_account_limit(account, HELD + 3 * BLOCK);
    assert_non_null(made[2] = trek_block_alloc(BLOCK));
    REFUSED(trek_block_alloc(64), TREK_ERR_MEMORY, "the budget is 197608");
    REFUSED(trek_tensor_ones(trek_dims(100, 100), TREK_F32, trek_cpu(0)), TREK_ERR_MEMORY, "the budget is 197608");
    trek_block_free(before); /* it was part of what is held */
    assert_non_null(made[3] = trek_block_alloc(BLOCK));
    for (int k = 0; k < 4; k++)
        trek_block_free(made[k]);
    trek_memory_account_leave();
    trek_memory_account_free(&account);
    assert_null(account);
}

/* The limit is for all members together, and memory counts to the member that has asked for it, whoever frees it. */
static void members_have_a_limit_together(void **state)
{
    if (!trek_memory_account_counts())
        skip();
    pthread_t thread;
    pthread_barrier_t together;
    trek_memory_account *account = trek_memory_account_new(2);
    member other = { .account = account, .together = &together };
    pthread_barrier_init(&together, NULL, 2);
    assert_int_equal(trek_memory_account_join(account, 0), TREK_OK);
    assert_int_equal(pthread_create(&thread, NULL, spend, &other), 0);
    pthread_barrier_wait(&together);
    trek_memory_account_begin(account, 1 << 20);
    trek_memory_account_limit(account, (1 << 20) + 3 * BLOCK);
    void *own = trek_block_alloc(BLOCK);
    pthread_barrier_wait(&together);
    pthread_barrier_wait(&together);
    assert_int_equal(other.n, 2);
    assert_int_equal(other.status, TREK_ERR_MEMORY);
    assert_int_equal(trek_memory_account_used(account), 3 * BLOCK); /* it has freed what it had had */
    trek_block_free(other.made[0]);
    assert_int_equal(trek_memory_account_used(account), 2 * BLOCK);
    trek_block_free(other.made[1]);
    trek_block_free(own);
    pthread_barrier_wait(&together);
    pthread_join(thread, NULL);
    trek_memory_account_leave();
    trek_memory_account_free(&account);
    pthread_barrier_destroy(&together);
}

int main(void)
{
    if (test_allocator_use() != TREK_OK)
        return 99;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_aligned), cmocka_unit_test(growing_keeps_what_is_there),
        cmocka_unit_test(blocks_are_reused), cmocka_unit_test(blocks_cross_threads), cmocka_unit_test(threads_at_once),
        cmocka_unit_test(threads_take_nothing_with_them), cmocka_unit_test(the_allocator_sees_everything),
        cmocka_unit_test(failures_are_reported), cmocka_unit_test(accounts_limit_their_members),
        cmocka_unit_test(members_have_a_limit_together),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
