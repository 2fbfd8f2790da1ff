/* SPDX-License-Identifier: Apache-2.0 */
/* What backward needs, kept in host memory: the bits of a run that keeps all on the device, over random models, real ones, ranks,
 * beside autocast and recomputing; what is held is counted; what goes wrong leaves nothing. On a CPU it does nothing, and all
 * must come out alike. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/function.h"
#include "autograd/offload.h"
#include "autograd/ops.h"
#include "distributed/trainer.h"
#include "graph/capture.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/offload.h"
#include "nn/recompute.h"
#include "tensor/memory.h"
#include "tests/support/support.h"
#include "tests/zoo/zoo.h"

static const trek_offload_opts everything = { .min_bytes = 1, .ahead = 2 };

static int64_t in_use(void) { return trek_memory_usage(test_device()).allocated; }

static int clean(void **state)
{
    (void)state;
    trek_error_clear();
    return 0;
}

static int nothing_left(void **state)
{
    (void)state;
    trek_offload_stats now = trek_offload_usage();
    if (trek_error_status() == TREK_OK && trek_tape_size() == 0 && now.bytes == 0)
        return 0;
    print_error("left: %s, %lld nodes, %lld bytes\n", trek_error(), (long long)trek_tape_size(), (long long)now.bytes);
    return 1;
}

/* --- bits ---------------------------------------------------------------------------------------------- */

/* Values of f32 one after another. */
typedef struct numbers {
    float *at;
    int64_t n;
} numbers;

static void add_numbers(numbers *to, trek_var *x)
{
    int64_t n = trek_var_numel(x);
    to->at = realloc(to->at, (size_t)(to->n + n) * sizeof *to->at);
    assert_non_null(to->at);
    assert_int_equal(trek_tensor_to_host(trek_var_data(x), TREK_F32, to->at + to->n, (size_t)n * sizeof *to->at), TREK_OK);
    to->n += n;
}

static void add_grads(numbers *to, trek_module *m)
{
    trek_params *params = trek_module_params(m);
    for (int k = 0; k < trek_params_count(params); k++) {
        trek_var *param = trek_params_var(params, k);
        if (trek_var_grad(param))
            add_numbers(to, trek_var_grad(param));
        trek_var_set_grad(param, NULL);
    }
    trek_params_free(&params);
}

static void assert_same(numbers *a, numbers *b, const char *what)
{
    assert_int_equal(a->n, b->n);
    for (int64_t k = 0; k < a->n; k++)
        if (memcmp(&a->at[k], &b->at[k], sizeof(float)) != 0)
            fail_msg("%s: number %lld is %.9g instead of %.9g", what, (long long)k, (double)b->at[k], (double)a->at[k]);
    free(a->at);
    free(b->at);
}

enum { WIDTH = 16, ROWS = 12 };

static uint32_t choices;

static int choose(int n) { return (int)(((uint32_t)(test_number(77, choices++) * 8388608.0f) & 0xffffff) % (uint32_t)n); }

static trek_module *random_layer(void)
{
    switch (choose(6)) {
    case 0: return trek_nn_gelu();
    case 1: return trek_nn_dropout(0.3);
    case 2: return trek_nn_batch_norm1d(WIDTH, test_device());
    case 3: return trek_nn_layer_norm(WIDTH, test_device());
    case 4: return trek_nn_relu();
    default: return trek_nn_linear(WIDTH, WIDTH, test_device());
    }
}

/* The same for the same state of `choices`; offload: parts of it are in trek_nn_offload, or inside a trek_nn_recompute that is.
 */
static trek_module *random_model(bool offload)
{
    trek_module *m = trek_nn_sequential(1, (trek_module *[]){ trek_nn_linear(WIDTH, WIDTH, test_device()) });
    for (int part = 0, parts = 2 + choose(3); part < parts; part++) {
        trek_module *body = trek_nn_sequential(0, NULL);
        for (int k = 0, n = 2 + choose(4); k < n; k++)
            trek_nn_sequential_add(body, random_layer());
        if (choose(4) == 0)
            trek_module_freeze(body, true);
        int way = choose(4);
        trek_offload_opts opts = { .min_bytes = choose(2) ? 1 : WIDTH * ROWS * 4, .ahead = 1 + choose(3) };
        if (way == 0)
            body = trek_nn_recompute(body);
        if (way == 1 && offload)
            body = trek_nn_offload(body, &opts);
        if (way == 2)
            body = trek_nn_recompute(offload ? trek_nn_offload(body, &opts) : body);
        trek_nn_sequential_add(m, body);
    }
    return trek_module_check(m);
}

static void run_random(uint32_t seed, bool offload, numbers *to)
{
    choices = seed * 1000;
    trek_seed(seed);
    trek_module *m = random_model(offload);
    bool low = choose(2), around = choose(3) > 0, twice = choose(3) == 0;
    trek_offload_opts opts = { .min_bytes = 1, .ahead = 1 + choose(4) };
    for (int step = 0; step < 2; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(seed + (uint32_t)step, trek_dims(step ? 2 + choose(ROWS) : ROWS, WIDTH), 1));
        assert_int_equal(trek_var_set_requires_grad(x, true), TREK_OK);
        if (offload && around)
            trek_offload_begin(&opts);
        trek_autocast_begin(low ? TREK_BF16 : TREK_F32);
        trek_var *y = trek_forward(m, x);
        trek_autocast_end();
        if (offload && around)
            trek_offload_end();
        trek_var *loss = trek_mean(trek_square(trek_cast(y, TREK_F32)), trek_dims_none(), false);
        if (twice)
            assert_int_equal(trek_backward_with(loss, NULL, &(trek_backward_opts){ .retain_graph = true }), TREK_OK);
        if (trek_backward(loss) != TREK_OK)
            fail_msg("seed %u: %s", seed, trek_error());
        add_numbers(to, loss);
        add_numbers(to, trek_var_grad(x));
        add_grads(to, m);
        trek_scope_end(scope);
    }
    trek_module_free(&m);
    assert_int_equal(trek_tape_size(), 0);
    assert_int_equal(trek_offload_usage().bytes, 0);
}

static void test_random_models(void **state)
{
    (void)state;
    void *address = test_fake("trek_fake_late");
    void (*late)(unsigned) = NULL;
    memcpy(&late, &address, sizeof late);
    trek_offload_stats before = trek_offload_usage();
    for (uint32_t seed = 1; seed <= (test_short_on_device() ? 12 : 40); seed++) {
        numbers plain = { 0 }, offloaded = { 0 };
        if (late)
            late(seed % 3 ? seed : 0);
        run_random(seed, false, &plain);
        run_random(seed, true, &offloaded);
        char name[32];
        snprintf(name, sizeof name, "seed %u", seed);
        assert_same(&plain, &offloaded, name);
    }
    trek_offload_stats after = trek_offload_usage();
    assert_true(test_on_cpu() ? after.sent == before.sent : after.sent > before.sent && after.returned > before.returned);
}

static void run_real(const zoo_model *model, bool offload, numbers *to)
{
    trek_seed(5);
    trek_module *m = model->build();
    trek_var *output;
    trek_scope scope = trek_scope_begin();
    if (offload)
        trek_offload_begin(&everything);
    trek_var *loss = model->loss(m, 0, &output);
    if (offload)
        trek_offload_end();
    assert_int_equal(trek_backward(loss), TREK_OK);
    add_numbers(to, loss);
    add_grads(to, m);
    trek_scope_end(scope);
    trek_module_free(&m);
}

static void test_real_models(void **state)
{
    (void)state;
    const zoo_model *models[] = { &zoo_gpt2, &zoo_resnet18 };
    zoo_device = test_device();
    zoo_dtype = TREK_F32;
    for (int k = 0; k < 2; k++) {
        numbers plain = { 0 }, offloaded = { 0 };
        run_real(models[k], false, &plain);
        trek_offload_stats before = trek_offload_usage();
        run_real(models[k], true, &offloaded);
        assert_same(&plain, &offloaded, models[k]->name);
        assert_true(test_on_cpu() || trek_offload_usage().returned > before.returned);
    }
}

/* --- memory, counted ------------------------------------------------------------------------------------------ */

enum { DEEP = 8, BROAD = 256, TALL = 32 }; /* one value: 32 KiB */

static trek_module *deep_model(void)
{
    trek_module *m = trek_nn_sequential(0, NULL);
    for (int k = 0; k < DEEP; k++) {
        trek_nn_sequential_add(m, trek_nn_linear(BROAD, BROAD, test_device()));
        trek_nn_sequential_add(m, trek_nn_relu());
    }
    return trek_module_check(m);
}

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
    trek_var *loss = trek_mean(y, trek_dims_none(), false);
    assert_int_equal(trek_backward(loss), TREK_OK);
    u.peak = trek_memory_usage(test_device()).allocated_peak - before;
    trek_scope_end(scope);
    return u;
}

/* Of a linear layer the tape keeps the input, of a relu its result: one value for each pair. */
static void test_memory_counted(void **state)
{
    (void)state;
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
    (void)state;
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
    trek_var *sum = trek_add(trek_sum(a, trek_dims_none(), false), trek_sum(b, trek_dims_none(), false));
    trek_scope_end_keep(scope, sum);
    return sum;
}

static void test_storages_once(void **state)
{
    (void)state;
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

/* --- tapes that are walked more than once ----------------------------------------------------------------------- */

static void test_retained(void **state)
{
    (void)state;
    trek_seed(2);
    trek_module *m = deep_model();
    numbers plain = { 0 }, offloaded = { 0 };
    int64_t value = (int64_t)TALL * BROAD * 4;
    for (int offload = 0; offload < 2; offload++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(TALL, BROAD), 1));
        if (offload)
            trek_offload_begin(&(trek_offload_opts){ .min_bytes = value, .ahead = 1 });
        trek_var *loss = trek_mean(trek_forward(m, x), trek_dims_none(), false);
        if (offload)
            trek_offload_end();
        trek_offload_stats before = trek_offload_usage();
        for (int pass = 0; pass < 3; pass++) {
            assert_int_equal(trek_backward_with(loss, NULL, &(trek_backward_opts){ .retain_graph = pass < 2 }), TREK_OK);
            trek_offload_stats now = trek_offload_usage();
            assert_int_equal(now.sent, before.sent); /* the copies hold */
            assert_true(pass == 2 ? now.bytes == 0 : now.bytes >= before.bytes);
        }
        add_grads(offload ? &offloaded : &plain, m);
        trek_scope_end(scope);
    }
    assert_same(&plain, &offloaded, "three passes");
    trek_module_free(&m);
}

static void test_second_derivatives(void **state)
{
    (void)state;
    trek_seed(2);
    trek_module *m = trek_nn_sequential(5, (trek_module *[]){ trek_nn_linear(WIDTH, WIDTH, test_device()), trek_nn_tanh(),
                                                              trek_nn_layer_norm(WIDTH, test_device()), trek_nn_gelu(),
                                                              trek_nn_linear(WIDTH, WIDTH, test_device()) });
    numbers plain = { 0 }, offloaded = { 0 };
    for (int offload = 0; offload < 2; offload++) {
        numbers *to = offload ? &offloaded : &plain;
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(ROWS, WIDTH), 1)), *grad;
        trek_var_set_requires_grad(x, true);
        if (offload)
            trek_offload_begin(&everything);
        trek_var *loss = trek_mean(trek_square(trek_forward(m, x)), trek_dims_none(), false);
        trek_backward_opts opts = { .create_graph = true };
        assert_int_equal(trek_grad(&loss, 1, &x, 1, NULL, &opts, &grad), TREK_OK);
        trek_var *penalty = trek_sum(trek_square(grad), trek_dims_none(), false);
        if (offload)
            trek_offload_end();
        if (trek_backward(trek_add(loss, penalty)) != TREK_OK)
            fail_msg("%s", trek_error());
        add_numbers(to, grad);
        add_numbers(to, trek_var_grad(x));
        add_grads(to, m);
        trek_scope_end(scope);
    }
    assert_same(&plain, &offloaded, "second derivatives");
    trek_module_free(&m);
}

/* --- what was saved is written to ----------------------------------------------------------------------------------- */

static void test_overwritten(void **state)
{
    (void)state;
    char messages[2][512];
    for (int offload = 0; offload < 2; offload++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(ROWS, WIDTH), 1));
        trek_var_set_requires_grad(x, true);
        if (offload)
            trek_offload_begin(&everything);
        trek_var *y = trek_exp(x), *z = y; /* y is ours, too: it stays */
        for (int k = 0; k < 6; k++)
            z = trek_tanh(z);
        if (offload)
            trek_offload_end();
        trek_tensor *zeros = trek_tensor_zeros(trek_dims(ROWS, WIDTH), TREK_F32, test_device());
        assert_int_equal(trek_tensor_copy_from(trek_var_data(y), zeros), TREK_OK);
        trek_tensor_release(zeros);
        assert_int_equal(trek_backward(trek_sum(z, trek_dims_none(), false)), TREK_ERR_STATE);
        snprintf(messages[offload], sizeof messages[offload], "%s", trek_error());
        trek_error_clear();
        trek_scope_end(scope);
    }
    assert_string_equal(messages[0], messages[1]);
    assert_non_null(strstr(messages[0], "overwritten"));
}

/* --- functions of one's own ------------------------------------------------------------------------------------------ */

static trek_status cube_forward(trek_function_context *context, trek_var *const *in, int n, trek_var **out, int n_out)
{
    (void)n, (void)n_out;
    out[0] = trek_mul(in[0], trek_square(in[0]));
    return trek_save_for_backward(context, in, 1);
}

static trek_status cube_backward(trek_function_context *context, trek_var *const *grads, int n, trek_var **in, int n_in)
{
    (void)n, (void)n_in;
    in[0] = trek_mul_scalar(trek_mul(grads[0], trek_square(trek_saved(context, 0))), 3);
    return trek_error_status();
}

static const trek_function cube = { .name = "cube", .forward = cube_forward, .backward = cube_backward };

static trek_var *cubes(trek_var *x)
{
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_function_apply_one(&cube, NULL, &(trek_var *){ trek_tanh(x) }, 1);
    trek_scope_end_keep(scope, y);
    return y;
}

/* A view that somebody holds of what was saved keeps its memory where it is. */
static void test_held_view(void **state)
{
    (void)state;
    numbers with[2] = { { 0 } };
    for (int offload = 0; offload < 2; offload++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(ROWS, WIDTH), 1));
        trek_var_set_requires_grad(x, true);
        if (offload)
            trek_offload_begin(&(trek_offload_opts){ .min_bytes = 1, .ahead = 1 });
        trek_scope inner = trek_scope_begin();
        trek_var *view = trek_reshape(trek_exp(x), trek_dims(ROWS * WIDTH)), *z = view;
        trek_scope_end_keep(inner, view);
        for (int k = 0; k < 6; k++)
            z = cubes(z);
        if (offload)
            trek_offload_end();
        add_numbers(&with[offload], view);
        assert_int_equal(trek_backward(trek_sum(trek_add(z, view), trek_dims_none(), false)), TREK_OK);
        add_numbers(&with[offload], trek_var_grad(x));
        trek_scope_end(scope);
    }
    assert_same(&with[0], &with[1], "a held view");
}

static void test_functions(void **state)
{
    (void)state;
    numbers plain = { 0 }, offloaded = { 0 };
    for (int offload = 0; offload < 2; offload++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(ROWS, WIDTH), 1));
        trek_var_set_requires_grad(x, true);
        if (offload)
            trek_offload_begin(&(trek_offload_opts){ .min_bytes = 64, .ahead = 1 });
        trek_scope inner = trek_scope_begin();
        trek_var *y = cubes(cubes(cubes(cubes(x))));
        trek_scope_end_keep(inner, y);
        trek_var *loss = trek_sum(trek_square(y), trek_dims_none(), false);
        trek_var *again = trek_add_scalar(loss, 1);
        if (offload)
            trek_offload_end();
        assert_true(!offload || test_on_cpu() || trek_offload_usage().bytes > 0);
        if (trek_backward(again) != TREK_OK)
            fail_msg("%s", trek_error());
        add_numbers(offload ? &offloaded : &plain, trek_var_grad(x));
        trek_scope_end(scope);
    }
    assert_same(&plain, &offloaded, "functions");
}

/* --- what goes wrong ---------------------------------------------------------------------------------------------------- */

static void quiet(trek_log_level level, const char *message, void *arg)
{
    *(int *)arg += level == TREK_LOG_WARNING && strstr(message, "offload") != NULL;
}

static trek_status step_of(trek_module *m)
{
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(TALL, BROAD), 1));
    trek_offload_begin(&everything);
    trek_var *loss = trek_mean(trek_forward(m, x), trek_dims_none(), false);
    trek_offload_end();
    trek_status status = trek_backward(loss);
    trek_scope_end(scope);
    return status == TREK_OK ? trek_error_status() : status;
}

/* Calls of the driver that fail: what cannot leave stays, what cannot be brought back is an error; nothing is lost. */
static void test_driver_fails(void **state)
{
    (void)state;
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
    trek_log_set(TREK_LOG_WARNING, quiet, &warnings);
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
    trek_log_set(TREK_LOG_WARNING, NULL, NULL);
    assert_true(warnings >= 1 && failed >= 1);
    trek_module_free(&m);
}

static void test_memory_fails(void **state)
{
    (void)state;
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
    (void)state;
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
    (void)state;
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

/* --- graphs --------------------------------------------------------------------------------------------------------------------
 */

typedef struct plan {
    bool layer, scope, recompute;
} plan;

static trek_graph *build(trek_device device, void *arg)
{
    const plan *p = arg;
    trek_module *body = trek_nn_sequential(0, NULL);
    for (int k = 0; k < 4; k++) {
        trek_nn_sequential_add(body, trek_nn_linear(WIDTH, WIDTH, device));
        trek_nn_sequential_add(body, trek_nn_tanh());
        trek_nn_sequential_add(body, trek_nn_dropout(0.2));
    }
    if (p->recompute)
        body = trek_nn_recompute(body);
    if (p->layer)
        body = trek_nn_offload(body, &everything);
    trek_flow *flow = trek_flow_from(trek_nn_linear(WIDTH, WIDTH, device));
    flow = trek_flow_through(flow, body);
    return trek_flow_build(trek_flow_through(flow, trek_nn_linear(WIDTH, 3, device)));
}

static void train(const plan *p, int world, numbers *to)
{
    trek_device devices[2] = { test_device_of_rank(0), test_device_of_rank(1) };
    plan own = *p;
    trek_seed(4);
    trek_graph *graph = build(devices[0], &own);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .arg = &own, .devices = devices,
        .ranks = world, .optimizer = trek_sgd((trek_sgd_opts){ .lr = 0.5 }) }), TREK_OK);
    trek_seed(9);
    for (int step = 0; step < 3; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(20u + (uint32_t)step, trek_dims(2 * ROWS, WIDTH), 1));
        if (p->scope)
            trek_offload_begin(&everything);
        trek_var *y = trek_graph_forward(graph, x);
        if (p->scope)
            trek_offload_end();
        trek_var *loss = trek_mean(trek_square(y), trek_dims_none(), false);
        if (trek_graph_backward(graph, loss) != TREK_OK || trek_graph_step(graph) != TREK_OK)
            fail_msg("%s", trek_error());
        add_numbers(to, loss);
        trek_scope_end(scope);
    }
    trek_params *params = trek_module_params((trek_module *)graph);
    for (int k = 0; k < trek_params_count(params); k++)
        add_numbers(to, trek_params_var(params, k));
    trek_params_free(&params);
    trek_graph_free(&graph);
}

static void test_ranks(void **state)
{
    (void)state;
    int64_t alone[8] = { 0 };
    for (int world = 1; world <= 2; world++)
        for (int way = 1; way < 8; way++) {
            plan p = { .layer = way & 1, .scope = way & 2, .recompute = way & 4 };
            numbers plain = { 0 }, offloaded = { 0 };
            train(&(plan){ .recompute = p.recompute }, world, &plain);
            trek_offload_stats before = trek_offload_usage();
            train(&p, world, &offloaded);
            int64_t sent = trek_offload_usage().sent - before.sent;
            assert_int_equal(sent > 0, !test_on_cpu() && (p.layer || p.scope));
            alone[way] = world == 1 ? sent : alone[way];
            assert_true(4 * sent >= 3 * alone[way]); /* both ranks do */
            assert_same(&plain, &offloaded, world == 1 ? "one rank" : "two ranks");
        }
}

static trek_status captured_step(trek_graph *graph, void *arg)
{
    if (*(bool *)arg)
        trek_offload_begin(&everything);
    trek_var *y = trek_graph_forward(graph, trek_graph_captured_input(graph, 0));
    if (*(bool *)arg)
        trek_offload_end();
    trek_var *loss = trek_mean(trek_square(y), trek_dims_none(), false);
    trek_graph_capture_output(graph, 0, loss);
    trek_graph_backward(graph, loss);
    return trek_graph_step(graph);
}

/* A step that offloads is not recorded, and says why. */
static void test_captured(void **state)
{
    (void)state;
    numbers plain = { 0 }, offloaded = { 0 };
    int warnings = 0;
    trek_log_set(TREK_LOG_WARNING, quiet, &warnings);
    for (int way = 0; way < 2; way++) {
        bool offload = way;
        plan p = { .layer = false };
        trek_seed(4);
        trek_graph *graph = build(test_device(), &p);
        assert_int_equal(trek_graph_set_optimizer(graph, trek_sgd((trek_sgd_opts){ .lr = 0.1 })), TREK_OK);
        for (int step = 0; step < 6; step++) {
            trek_scope scope = trek_scope_begin();
            trek_var *x = trek_var_from(test_tensor(20u + (uint32_t)step, trek_dims(ROWS, WIDTH), 1));
            assert_int_equal(trek_graph_capture_input(graph, 0, x), TREK_OK);
            if (trek_graph_capture(graph, captured_step, &offload) != TREK_OK)
                fail_msg("%s", trek_error());
            add_numbers(offload ? &offloaded : &plain, trek_graph_captured_output(graph, 0));
            trek_scope_end(scope);
        }
        if (!test_on_cpu()) {
            assert_int_equal(trek_graph_replays(graph) > 0, !offload);
            assert_int_equal(strstr(trek_graph_capture_problem(graph), "host memory") != NULL, offload);
        }
        trek_graph_free(&graph);
    }
    trek_log_set(TREK_LOG_WARNING, NULL, NULL);
    assert_same(&plain, &offloaded, "captured");
}

/* --- calls
 * ---------------------------------------------------------------------------------------------------------------------- */

static void expect(trek_status status, const char *part)
{
    assert_int_equal(trek_error_status(), status);
    if (!strstr(trek_error(), part))
        fail_msg("no \"%s\" in: %s", part, trek_error());
    trek_error_clear();
}

static void test_calls(void **state)
{
    (void)state;
    trek_offload_end();
    expect(TREK_ERR_STATE, "without a begin");
    trek_offload_begin(&(trek_offload_opts){ .min_bytes = -2 });
    expect(TREK_ERR_ARGUMENT, "-2");
    trek_offload_end();
    trek_offload_begin(&(trek_offload_opts){ .ahead = -1 });
    expect(TREK_ERR_ARGUMENT, "-1");
    trek_offload_end();
    for (int k = 0; k < 65; k++)
        trek_offload_begin(NULL);
    expect(TREK_ERR_STATE, "64");
    for (int k = 0; k < 65; k++)
        trek_offload_end();
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_offload_end();
    expect(TREK_ERR_STATE, "without a begin");
    assert_null(trek_nn_offload(NULL, NULL));
    assert_int_equal(trek_error_status(), TREK_OK);
    assert_null(trek_nn_offload(trek_nn_relu(), &(trek_offload_opts){ .ahead = -3 }));
    expect(TREK_ERR_ARGUMENT, "-3");
}

/* Off inside, and in evaluation; the innermost holds. */
static void test_nested(void **state)
{
    (void)state;
    trek_seed(2);
    trek_module *m = trek_nn_offload(deep_model(), &(trek_offload_opts){ .min_bytes = 1, .ahead = 1 }), *off = deep_model();
    for (int way = 0; way < 4; way++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(test_tensor(1, trek_dims(TALL, BROAD), 1));
        trek_offload_stats before = trek_offload_usage();
        trek_module_train(m, way != 1);
        trek_offload_begin(&(trek_offload_opts){ .min_bytes = way == 3 ? 1 : TREK_OFF });
        trek_var *y = trek_forward(way >= 2 ? off : m, x);
        trek_offload_end();
        assert_non_null(y);
        assert_int_equal(trek_offload_usage().sent > before.sent, !test_on_cpu() && (way == 0 || way == 3));
        trek_scope_end(scope);
    }
    trek_module_free(&m);
    trek_module_free(&off);
}

int main(void)
{
    assert_int_equal(test_allocator_use(), TREK_OK);
#define CASE(name) cmocka_unit_test_setup_teardown(name, clean, nothing_left)
    const struct CMUnitTest tests[] = {
        CASE(test_random_models), CASE(test_real_models), CASE(test_memory_counted), CASE(test_storages_once),
            CASE(test_host_memory),
        CASE(test_retained), CASE(test_second_derivatives), CASE(test_overwritten), CASE(test_functions), CASE(test_held_view),
        CASE(test_driver_fails), CASE(test_memory_fails), CASE(test_thread_ends), CASE(test_dropped), CASE(test_ranks),
        CASE(test_captured), CASE(test_calls), CASE(test_nested),
    };
    return cmocka_run_group_tests_name("offload", tests, NULL, NULL);
}
