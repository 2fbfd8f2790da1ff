/* SPDX-License-Identifier: Apache-2.0 */
/* A module that backward runs again gives the bits of one that keeps everything: with dropout, batch norm, autocast, parameters
 * that are shared, several inputs, inside itself, on several ranks. */
#include "autograd/autocast.h"
#include "autograd/backward.h"
#include "autograd/offload.h"
#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "nn/params.h"
#include "nn/recompute.h"
#include "tensor/memory.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { WIDTH = 12, ROWS = 6, STEPS = 3 };

static trek_module *block(trek_device device)
{
    return trek_nn_sequential((trek_module *[]){ trek_nn_linear(WIDTH, WIDTH, device), trek_nn_batch_norm1d(WIDTH, device),
                                                 trek_nn_gelu(), trek_nn_dropout(0.3), trek_nn_linear(WIDTH, WIDTH, device) }, 5);
}

typedef enum way { PLAIN, OUTER, NESTED } way;

/* Two blocks, a linear layer before and after; in one way or another. */
static trek_module *model(way w, trek_device device)
{
    trek_seed(3);
    trek_module *first = trek_nn_linear(WIDTH, WIDTH, device), *one = block(device), *two = block(device);
    if (w == NESTED)
        one = trek_nn_recompute(one);
    trek_module *middle = trek_nn_sequential((trek_module *[]){ one, two }, 2);
    if (w != PLAIN)
        middle = trek_nn_recompute(middle);
    return trek_nn_sequential((trek_module *[]){ first, middle, trek_nn_linear(WIDTH, 2, device) }, 3);
}

static trek_var *input(int step) { return trek_var_from(test_tensor((uint32_t)(20 + step), trek_dims(ROWS, WIDTH), 1)); }

/* All parameters and buffers after some steps, in order. */
static void train(trek_module *m, trek_dtype autocast, double *numbers, int *n)
{
    trek_params *params = trek_module_params(m);
    trek_optimizer *optimizer = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 }), params);
    trek_seed(8);
    *n = 0;
    for (int step = 0; step < STEPS; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = input(step);
        trek_var_set_requires_grad(x, true);
        trek_autocast_begin(autocast);
        trek_var *y = trek_forward(m, x);
        trek_autocast_end();
        trek_var *loss = trek_mean(trek_square(trek_cast(y, TREK_F32)), trek_dims_all(), false);
        SUCCEEDS(trek_backward(loss));
        numbers[(*n)++] = trek_var_item(loss);
        numbers[(*n)++] = trek_var_item(trek_sum(trek_square(trek_var_grad(x)), trek_dims_all(), false));
        trek_optimizer_step(optimizer);
        trek_optimizer_zero_grad(optimizer);
        trek_scope_end(scope);
    }
    for (int k = 0; k < trek_params_count(params); k++) {
        trek_scope scope = trek_scope_begin();
        numbers[(*n)++] = trek_var_item(trek_sum(trek_square(trek_params_var(params, k)), trek_dims_all(), false));
        trek_scope_end(scope);
    }
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    assert_int_equal(trek_error_status(), TREK_OK);
    assert_int_equal(trek_tape_size(), 0);
}

typedef struct sums {
    double numbers[64];
    int n;
} sums;

static trek_status add_buffer(const char *name, trek_var *buffer, void *arg)
{
    sums *s = arg;
    double *values = test_read(trek_var_data(buffer));
    for (int64_t i = 0; i < trek_var_numel(buffer); i++)
        s->numbers[s->n] += values[i] * (double)(i + 1);
    s->n++;
    free(values);
    return TREK_OK;
}

static void test_bits(void **state)
{
    for (int autocast = 0; autocast < 2; autocast++) {
        double wanted[64], got[64];
        int n, m;
        trek_module *plain = model(PLAIN, test_device());
        train(plain, autocast ? TREK_BF16 : TREK_F32, wanted, &n);
        sums buffers = { 0 };
        trek_module_each_buffer(plain, add_buffer, &buffers);
        for (way w = OUTER; w <= NESTED; w++) {
            trek_module *module = model(w, test_device());
            train(module, autocast ? TREK_BF16 : TREK_F32, got, &m);
            assert_int_equal(n, m);
            for (int k = 0; k < n; k++)
                if (got[k] != wanted[k])
                    fail_msg("autocast %d, way %d, number %d: %.17g instead of %.17g", autocast, (int)w, k, got[k], wanted[k]);
            sums own = { 0 };
            trek_module_each_buffer(module, add_buffer, &own);
            assert_int_equal(own.n, buffers.n);
            for (int k = 0; k < own.n; k++)
                assert_true(own.numbers[k] == buffers.numbers[k]); /* num_batches_tracked, too: once each */
            trek_module_free(&module);
        }
        trek_module_free(&plain);
    }
}

/* --- several inputs, parameters shared with what is outside ------------------------------------------ */

static void test_inputs_and_sharing(void **state)
{
    trek_seed(3);
    trek_module *attention = trek_nn_multihead_attention(WIDTH, 3, test_device()),
        *linear = trek_nn_linear(WIDTH, WIDTH, test_device());
    trek_module *both = trek_nn_sequential((trek_module *[]){ linear, trek_nn_tanh() }, 2);
    double sums_of[2][8];
    for (int again = 0; again < 2; again++) {
        trek_scope scope = trek_scope_begin();
        trek_var *q = trek_var_from(test_tensor(1, trek_dims(2, 4, WIDTH), 1)),
            *k = trek_var_from(test_tensor(2, trek_dims(2, 5, WIDTH), 1));
        trek_var_set_requires_grad(q, true);
        trek_var *inputs[] = { q, k };
        trek_var *y = again ? trek_forward_recomputed(attention, inputs, 2) : trek_forward_many(attention, inputs, 2);
        trek_var *z = trek_forward(linear, y), *s = again ? trek_forward_recomputed(both, &z, 1) : trek_forward(both, z);
        assert_int_equal(trek_backward(trek_mean(trek_mul(s, trek_square(s)), trek_dims_all(), false)), TREK_OK);
        trek_var *grads[] = { trek_var_grad(q), trek_var_grad(attention->own->params[0].var),
                              trek_var_grad(linear->own->params[0].var),
                              trek_var_grad(linear->own->params[1].var) };
        for (int g = 0; g < 4; g++)
            sums_of[again][g] = trek_var_item(trek_sum(trek_square(grads[g]), trek_dims_all(), false));
        assert_null(trek_var_grad(k)); /* it asked for none */
        trek_var_set_grad(attention->own->params[0].var, NULL);
        trek_var_set_grad(linear->own->params[0].var, NULL);
        trek_var_set_grad(linear->own->params[1].var, NULL);
        trek_scope_end(scope);
    }
    for (int g = 0; g < 4; g++)
        assert_true(fabs(sums_of[0][g] - sums_of[1][g]) <= 1e-6 * sums_of[0][g]);
    trek_module_free(&attention);
    trek_module_free(&both);
    assert_int_equal(trek_tape_size(), 0);
}

/* --- hooks ------------------------------------------------------------------------------------------------ */

enum { USES = 6 };

typedef struct watched {
    trek_module *shared;        /* whose weight and bias are used in several places */
    trek_module *recomputed[3]; /* in these ways; NULL: outside */
    int calls[2], completed[2];
    double *last[2], *sent[2];  /* the gradient at the last call, and when it was said to be complete */
} watched;

static trek_var *note(trek_var *var, trek_var *grad, void *arg)
{
    watched *w = arg;
    int k = var == w->shared->own->params[1].var;
    w->calls[k]++;
    free(w->last[k]);
    w->last[k] = test_read(trek_var_data(grad));
    return NULL;
}

/* What ranks that reduce under backward send (trek_ddp_backward). */
static void send_one(int k, void *arg)
{
    watched *w = arg;
    trek_var *grad = trek_var_grad(w->shared->own->params[k].var);
    w->completed[k]++;
    free(w->sent[k]);
    w->sent[k] = grad ? test_read(trek_var_data(grad)) : NULL;
}

static trek_status pass(watched *w, trek_var *loss, bool sends, const trek_backward_opts *opts)
{
    memset(w->calls, 0, sizeof w->calls);
    memset(w->completed, 0, sizeof w->completed);
    trek_var *leaves[2] = { w->shared->own->params[0].var, w->shared->own->params[1].var };
    return trek_backward_watched(&loss, NULL, 1, opts, &(trek_backward_watch){ .leaves = leaves, .n_leaves = sends ? 2 : 0,
                                                                               .only_these = sends, .arg = w,
                                                                               .complete = sends ? send_one : NULL });
}

static unsigned drawn(unsigned *state, unsigned below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 16) % below;
}

/* A chain of uses of the shared layer, each plain, within a segment that runs again, or within two. */
static trek_var *chain_loss(const watched *w, const int *ways, int n, int step)
{
    trek_var *x = input(step);
    for (int k = 0; k < n; k++) {
        trek_module *segment = w->recomputed[ways[k]];
        x = trek_tanh(segment ? trek_forward_recomputed(segment, &x, 1) : trek_forward(w->shared, x));
    }
    return trek_sum(trek_square(x), trek_dims_all(), false);
}

static void expect_whole(watched *w, bool hooks, bool sends)
{
    for (int k = 0; k < 2; k++) {
        size_t bytes = (size_t)trek_var_numel(w->shared->own->params[k].var) * sizeof(double);
        assert_int_equal(w->calls[k], hooks);
        assert_int_equal(w->completed[k], sends);
        double *grad = test_read(trek_var_data(trek_var_grad(w->shared->own->params[k].var)));
        if (hooks)
            assert_memory_equal(grad, w->last[k], bytes);
        if (sends)
            assert_memory_equal(grad, w->sent[k], bytes);
        free(grad);
    }
}

static void hook(watched *w, int *handles)
{
    for (int k = 0; k < 2; k++)
        handles[k] = trek_var_on_grad(w->shared->own->params[k].var, note, w);
}

static void unhook(watched *w, const int *handles)
{
    for (int k = 0; k < 2; k++)
        trek_var_remove_hook(w->shared->own->params[k].var, handles[k]);
}

/* One or two passes over the same tape, or over one each, which add up. */
static void hooked_passes(watched *w, unsigned *seed, int round)
{
    int ways[USES], handles[2], n = 1 + (int)drawn(seed, USES), passes = 1 + (int)drawn(seed, 2), kind = (int)drawn(seed, 3);
    bool hooks = kind != 1, sends = kind != 0, offloads = drawn(seed, 2);
    trek_backward_opts opts = { .retain_graph = drawn(seed, 2) };
    for (int k = 0; k < n; k++)
        ways[k] = (int)drawn(seed, 3);
    trek_scope scope = trek_scope_begin();
    if (offloads)
        trek_offload_begin(&(trek_offload_opts){ .min_bytes = 1 });
    trek_var *loss = chain_loss(w, ways, n, round);
    if (hooks)
        hook(w, handles);
    for (int k = 0; k < passes; k++) {
        if (k && !opts.retain_graph)
            loss = chain_loss(w, ways, n, round + 1);
        SUCCEEDS(pass(w, loss, sends, &opts));
        expect_whole(w, hooks, sends);
    }
    if (hooks)
        unhook(w, handles);
    if (offloads)
        trek_offload_end();
    trek_scope_end(scope);
    for (int k = 0; k < 2; k++)
        trek_var_set_grad(w->shared->own->params[k].var, NULL);
}

/* A hook on a parameter is called once a pass, with its whole gradient, wherever the parameter is used; and nothing is sent
 * before. */
static void test_hooks_see_whole_gradients(void **state)
{
    unsigned seed = 1;
    trek_seed(3);
    watched w = { .shared = trek_nn_linear(WIDTH, WIDTH, test_device()) };
    trek_module *plain = trek_nn_sequential((trek_module *[]){ trek_nn_tanh(), trek_nn_gelu() }, 2);
    trek_module *twice = trek_nn_sequential((trek_module *[]){ trek_nn_recompute(plain), trek_nn_recompute(w.shared) }, 2);
    w.recomputed[1] = w.shared;
    w.recomputed[2] = twice;
    for (int round = 0; round < (test_short_on_device() ? 20 : 100); round++)
        hooked_passes(&w, &seed, round);
    for (int k = 0; k < 2; k++) {
        free(w.last[k]);
        free(w.sent[k]);
    }
    trek_module_free(&twice);
    assert_int_equal(trek_tape_size(), 0);
}

/* --- memory -------------------------------------------------------------------------------------------- */

static int64_t in_use(void) { return trek_memory_usage(test_device()).allocated; }

/* The fake device takes its time. */
static int64_t held_rows(void) { return test_on_cpu() ? 2048 : 48; }

static int64_t peak_of(way w)
{
    trek_module *m = NULL;
    for (int k = 0; k < 8; k++) { /* deep and wide */
        trek_module *layers[3] = { m ? m : trek_nn_identity(), trek_nn_linear(256, 256, test_device()), trek_nn_gelu() };
        m = trek_nn_sequential(layers, 3);
    }
    if (w != PLAIN)
        m = trek_nn_recompute(m);
    trek_module *twice = trek_nn_sequential(&m, 1);
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(test_tensor(1, trek_dims(held_rows(), 256), 1));
    int64_t before = in_use();
    trek_var *y = trek_forward(twice, x);
    int64_t held = in_use() - before;
    assert_int_equal(trek_backward(trek_mean(y, trek_dims_all(), false)), TREK_OK);
    trek_scope_end(scope);
    trek_module_free(&twice);
    return held;
}

static void test_memory_held(void **state)
{
    int64_t plain = peak_of(PLAIN), again = peak_of(OUTER), one = held_rows() * 256 * 4;
    if (!(again <= 2 * one && plain >= 8 * one))
        fail_msg("%lld bytes held instead of %lld", (long long)again, (long long)plain);
}

/* --- ranks ------------------------------------------------------------------------------------------------ */

static trek_graph *build(trek_device device, void *arg)
{
    trek_module *body = trek_nn_sequential((trek_module *[]){ trek_nn_linear(WIDTH, WIDTH, device), trek_nn_dropout(0.3),
                                                              trek_nn_linear(WIDTH, 2, device) }, 3);
    return trek_flow_build(trek_flow_from(*(bool *)arg ? trek_nn_recompute(body) : body));
}

static double train_graph(bool recomputes, int world)
{
    trek_device devices[3];
    for (int r = 0; r < world; r++)
        devices[r] = test_device_of_rank(r);
    trek_seed(4);
    trek_graph *graph = build(devices[0], &recomputes);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .arg = &recomputes,
                                                                     .devices = devices,
        .ranks = world, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.5 }) }), TREK_OK);
    double loss = 0;
    trek_seed(9);
    for (int step = 0; step < 4; step++) {
        trek_scope scope = trek_scope_begin();
        trek_var *l = trek_mean(trek_square(trek_graph_forward(graph, input(step))), trek_dims_all(), false);
        if (trek_graph_backward(graph, l) != TREK_OK || trek_graph_step(graph) != TREK_OK)
            fail_msg("%s", trek_error());
        loss = trek_var_item(l);
        trek_scope_end(scope);
    }
    trek_graph_free(&graph);
    return loss;
}

static void test_on_ranks(void **state)
{
    double one = train_graph(false, 1);
    for (int world = 1; world <= (test_on_cpu() ? 3 : 2); world++)
        assert_true(fabs(train_graph(true, world) - one) < 1e-6);
}

/* --- what is refused ------------------------------------------------------------------------------------------ */

static void test_refused(void **state)
{
    trek_scope scope = trek_scope_begin();
    trek_module *m = trek_nn_linear(WIDTH, 2, test_device()), *meets = trek_nn_sync_batch_norm(WIDTH, test_device());
    trek_var *x = input(0), *none = NULL, *both[2] = { x, x };
    trek_var_set_requires_grad(x, true);
    trek_var *y = trek_forward_recomputed(m, &x, 1), *grad;
    trek_var *loss = trek_mean(trek_square(y), trek_dims_all(), false);
    FAILS(trek_grad(&loss, 1, &x, 1, NULL, &(trek_backward_opts){ .create_graph = true }, &grad),
          TREK_ERR_UNSUPPORTED, "gradients of gradients");
    REFUSED(trek_forward_recomputed(meets, &x, 1), TREK_ERR_UNSUPPORTED, "meets other ranks");
    REFUSED(trek_forward_recomputed(m, both, 2), TREK_ERR_UNSUPPORTED, "inputs: 2; it takes one");
    REFUSED(trek_forward_recomputed(m, &none, 1), TREK_ERR_ARGUMENT, "input");
    REFUSED(trek_forward_recomputed(NULL, &x, 1), TREK_ERR_ARGUMENT, "module");
    assert_null(trek_nn_recompute(NULL));
    y = trek_forward_recomputed(m, &x, 1);
    assert_int_equal(trek_module_train(m, false), TREK_OK);
    FAILS(trek_backward(trek_mean(y, trek_dims_all(), false)), TREK_ERR_STATE, "has changed between forward and backward");
    trek_no_grad_begin();
    assert_false(trek_var_requires_grad(trek_forward_recomputed(m, &x, 1)));
    trek_no_grad_end();
    trek_scope_end(scope);
    trek_module_free(&m);
    trek_module_free(&meets);
    assert_int_equal(trek_tape_size(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits), cmocka_unit_test(test_inputs_and_sharing), cmocka_unit_test(test_memory_held),
        cmocka_unit_test(test_hooks_see_whole_gradients), cmocka_unit_test(test_on_ranks), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("recompute", tests, NULL, NULL);
}
