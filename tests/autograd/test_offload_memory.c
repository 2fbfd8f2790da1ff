/* SPDX-License-Identifier: Apache-2.0 */
/* What offloading holds on the device and in host memory, counted; what goes wrong leaves nothing, nor do threads that end. */
#include <pthread.h>

#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "nn/layers.h"
#include "tensor/devices.h"
#include "tensor/memory.h"
#include "tests/autograd/offloaded.h"
#include "tests/support/clean.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* --- memory, counted ------------------------------------------------------------------------------------ */

typedef struct use {
    int64_t held, peak, on_host;
} use;

static use use_of(trek_module *m, const trek_offload_opts *opts)
{
    use u;
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(TALL, BROAD), 1));
    int64_t before = in_use();
    trek_memory_reset_peak(test_device());
    if (opts)
        trek_offload_begin(opts);
    trek_var *y = trek_forward(m, x);
    if (opts)
        trek_offload_end();
    u.held = in_use() - before;
    u.on_host = trek_offload_usage().bytes;
    trek_var *loss = trek_mean(y, trek_dims_all(), false);
    assert_int_equal(trek_backward(loss), TREK_OK);
    u.peak = trek_memory_usage(test_device()).allocated_peak - before;
    trek_scope_end(scope);
    return u;
}

/* Of a linear layer the tape keeps the input, of a relu its result: one value for each pair. */
static void test_memory_counted(void **state)
{
    trek_seed(2);
    trek_module *m = deep_model();
    int64_t value = (int64_t)TALL * BROAD * 4;
    use_of(m, NULL); /* gradients are there from here on */
    use plain = use_of(m, NULL);
    for (int ahead = 1; ahead <= 3; ahead++) {
        trek_offload_opts opts = { .min_bytes = value, .ahead = ahead };
        use u = use_of(m, &opts);
        if (test_on_cpu()) {
            assert_int_equal(u.on_host, 0);
            continue;
        }
        print_message("ahead %d: %lld of %lld bytes held, peak %lld of %lld\n", ahead, (long long)u.held, (long long)plain.held,
                      (long long)u.peak, (long long)plain.peak);
        assert_int_equal(u.held + u.on_host, plain.held);
        assert_true(u.on_host >= (DEEP - 2 - ahead) * value && u.on_host % value == 0);
        assert_true(u.peak <= plain.peak - (DEEP - 4 - 2 * ahead) * value); /* what is on its way, and a gradient */
    }
    use none = use_of(m, &(trek_offload_opts){ .min_bytes = value + 1 });
    assert_int_equal(none.on_host, 0);
    assert_int_equal(none.held, plain.held);
    trek_module_free(&m);
}

/* Pinned memory is kept for the next step, and given back when somebody says so. */
static void test_host_memory(void **state)
{
    void *address = test_fake("trek_fake_device_bytes");
    size_t (*bytes)(int) = NULL;
    memcpy(&bytes, &address, sizeof bytes);
    if (!bytes)
        skip();
    trek_module *m = deep_model();
    trek_offload_opts opts = { .min_bytes = 1024, .ahead = 1 };
    use_of(m, NULL);
    trek_memory_release_cached(test_device());
    size_t before = bytes(-1);
    use first = use_of(m, &opts);
    size_t grown = bytes(-1) - before;
    assert_true(first.on_host > 0 && grown >= (size_t)first.on_host && grown <= (size_t)first.on_host * 2);
    trek_memory_release_cached(test_device());
    assert_true(bytes(-1) <= before);
    trek_module_free(&m);
}

static trek_var *branches(trek_var *x)
{
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_exp(x); /* saved by itself, and in three views of it */
    trek_var *a = trek_mul(trek_reshape(y, trek_dims(TALL * BROAD)), trek_reshape(y, trek_dims(TALL * BROAD)));
    trek_var *b = trek_square(trek_transpose(y, 0, 1));
    trek_var *sum = trek_add(trek_sum(a, trek_dims_all(), false), trek_sum(b, trek_dims_all(), false));
    trek_scope_end_keep(scope, sum);
    return sum;
}

static void test_storages_once(void **state)
{
    numbers with[2] = { { 0 } };
    for (int offload = 0; offload < 2; offload++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(3, trek_dims(TALL, BROAD), 1));
        trek_var_set_requires_grad(x, true);
        if (offload)
            trek_offload_begin(&(trek_offload_opts){ .min_bytes = 1024, .ahead = 1 });
        trek_offload_stats before = trek_offload_usage();
        trek_var *y = branches(x), *z = branches(x);
        for (int k = 0; k < 3; k++)
            z = trek_mul(z, y); /* ops that look at what has become free */
        trek_offload_stats now = trek_offload_usage();
        if (offload)
            trek_offload_end();
        int64_t value = (int64_t)TALL * BROAD * 4;
        assert_int_equal(now.sent - before.sent, offload && !test_on_cpu() ? 2 * value : 0);
        assert_int_equal(now.bytes, offload && !test_on_cpu() ? value : 0); /* the other one is on its way */
        assert_int_equal(trek_backward(z), TREK_OK);
        add_numbers(&with[offload], trek_var_grad(x));
        trek_scope_end(scope);
    }
    assert_same(&with[0], &with[1], "views");
}

/* --- what goes wrong ---------------------------------------------------------------------------------------------------- */

static trek_status step_of(trek_module *m)
{
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(TALL, BROAD), 1));
    trek_offload_begin(&everything);
    trek_var *loss = trek_mean(trek_forward(m, x), trek_dims_all(), false);
    trek_offload_end();
    trek_status status = trek_backward(loss);
    trek_scope_end(scope);
    return status == TREK_OK ? trek_error_status() : status;
}

/* Calls of the driver that fail: what cannot leave stays, what cannot be brought back is an error; nothing is lost. */
static void test_driver_fails(void **state)
{
    void *address = test_fake("trek_fake_fail");
    void (*fail_next)(const char *) = NULL;
    memcpy(&fail_next, &address, sizeof fail_next);
    if (!fail_next)
        skip();
    static const char *const functions[] = { "cudaHostAlloc", "cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaEventRecord",
                                             "cudaMalloc" };
    trek_seed(2);
    trek_module *m = deep_model();
    int warnings = 0, failed = 0;
    trek_log_set(TREK_LOG_LEVEL_WARNING, quiet, &warnings);
    assert_int_equal(step_of(m), TREK_OK);
    numbers none = { 0 };
    add_grads(&none, m);
    free(none.at);
    int64_t held = in_use();
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
        for (int call = 1; call <= 30; call += test_short_on_device() ? 5 : 1) {
            char text[64];
            numbers plain = { 0 }, got = { 0 };
            assert_int_equal(step_of(m), TREK_OK);
            add_grads(&plain, m);
            trek_memory_release_cached(test_device());
            snprintf(text, sizeof text, "%s:%d", functions[f], call);
            fail_next(text);
            trek_status status = step_of(m);
            fail_next(NULL);
            if (status == TREK_OK) {
                add_grads(&got, m);
                assert_same(&plain, &got, text);
            } else {
                assert_true(trek_error()[0] != 0);
                trek_error_clear();
                failed++;
                free(plain.at);
                numbers rest = { 0 };
                add_grads(&rest, m);
                free(rest.at);
            }
            assert_int_equal(trek_offload_usage().bytes, 0);
            assert_int_equal(trek_tape_size(), 0);
            if (in_use() != held)
                fail_msg("%s: %lld bytes held instead of %lld", text, (long long)in_use(), (long long)held);
        }
    trek_log_set(TREK_LOG_LEVEL_WARNING, NULL, NULL);
    assert_true(warnings >= 1 && failed >= 1);
    trek_module_free(&m);
}

static void test_memory_fails(void **state)
{
    trek_seed(2);
    trek_module *m = deep_model();
    for (int64_t call = 1; call < 400; call += 1 + call / 16) {
        test_allocator_restart(call);
        trek_status status = step_of(m);
        test_allocator_restart(0);
        assert_true(status == TREK_OK || trek_error_status() == TREK_ERR_MEMORY);
        trek_error_clear();
        assert_int_equal(trek_offload_usage().bytes, 0);
        assert_int_equal(trek_tape_size(), 0);
        numbers rest = { 0 };
        add_grads(&rest, m);
        free(rest.at);
    }
    trek_module_free(&m);
}

/* --- threads ---------------------------------------------------------------------------------------------------------------- */

static void *forward_only(void *arg)
{
    trek_module *m = arg;
    trek_scope scope = trek_scope_begin();
    trek_offload_begin(&everything);
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(TALL, BROAD), 1));
    trek_var *y = trek_var_retain(trek_forward(m, x));
    trek_scope_end(scope);
    trek_device_sync(test_device()); /* the weights are another's, who may let go of them */
    return y; /* the scope of offloading ends with the thread */
}

static void *let_strays_go(void *arg)
{
    trek_offload_begin(NULL); /* asks for a tape, and gets the one that is nobody's */
    trek_offload_end();
    *(int64_t *)arg = trek_tape_size();
    return NULL;
}

/* A tape that outlives its thread is the next thread's, with what it has on the host. */
static void test_thread_ends(void **state)
{
    trek_seed(2);
    trek_module *m = deep_model();
    pthread_t thread;
    void *y;
    assert_int_equal(trek_device_sync(test_device()), TREK_OK); /* another thread's stream is to read the weights */
    assert_int_equal(pthread_create(&thread, NULL, forward_only, m), 0);
    assert_int_equal(pthread_join(thread, &y), 0);
    assert_non_null(y);
    assert_true(test_on_cpu() || trek_offload_usage().bytes > 0);
    trek_var_release(y);
    int64_t left = -1;
    assert_int_equal(pthread_create(&thread, NULL, let_strays_go, &left), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(left, 0);
    assert_int_equal(trek_offload_usage().bytes, 0);
    trek_module_free(&m);
}

/* A forward whose tape goes without a backward, again and again: copies out are under way when it does. */
static void test_dropped(void **state)
{
    trek_seed(2);
    trek_module *m = deep_model();
    int64_t held = in_use();
    for (int k = 0; k < 10; k++) {
        trek_scope scope = trek_scope_begin();
        trek_offload_begin(&(trek_offload_opts){ .min_bytes = 1, .ahead = 1 + k });
        assert_non_null(trek_forward(m, trek_var_from(test_tensor(1, trek_dims(TALL, BROAD), 1))));
        trek_offload_end();
        trek_scope_end(scope);
        assert_int_equal(trek_offload_usage().bytes, 0);
        assert_int_equal(in_use(), held);
    }
    trek_module_free(&m);
}

int main(void)
{
    assert_int_equal(test_allocator_use(), TREK_OK);
#define CASE(name) cmocka_unit_test_setup_teardown(name, clean, nothing_left)
    const struct CMUnitTest tests[] = {
        CASE(test_memory_counted), CASE(test_storages_once), CASE(test_host_memory), CASE(test_driver_fails),
            CASE(test_memory_fails), CASE(test_thread_ends), CASE(test_dropped),
    };
    return cmocka_run_group_tests_name("offload_memory", tests, NULL, NULL);
}
