/* SPDX-License-Identifier: Apache-2.0 */
/* Loader and loss on the graph: passes per rank and windows on N ranks against one
 * device that is given the same samples. The model has dropout, a frozen weight,
 * one that is never used, and one that only marked samples reach; labels are
 * ignored here and there, so that batches weigh differently. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/trainer.h"
#include "graph/feed.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "tests/support/support.h"

enum { IN = 6, HIDDEN = 10, CLASSES = 4, SAMPLES = 61, MOST = 1024 };

/* --- data and model ------------------------------------------------------------------ */

static trek_dataset *make_dataset(void)
{
    double x[SAMPLES * IN], target[SAMPLES];
    int64_t label[SAMPLES];
    for (int i = 0; i < SAMPLES * IN; i++)
        x[i] = test_number(1, (uint32_t)i);
    for (int i = 0; i < SAMPLES; i++) {
        x[i * IN] = i % 12 == 2 && i % 7 != 0 ? 2 : x[i * IN]; /* none of them weighs nothing: a rank is skipped that has only such ones */
        target[i] = test_number(2, (uint32_t)i);
        label[i] = i % 3 == 1 || i % 7 == 0 ? -100 : i % CLASSES;
    }
    const char *names[] = { "x", "label", "target" };
    trek_tensor *tensors[] = {
        trek_tensor_from_data(x, trek_dims(SAMPLES, IN), TREK_F64, trek_cpu(0)),
        trek_tensor_from_data(label, trek_dims(SAMPLES), TREK_I64, trek_cpu(0)),
        trek_tensor_from_data(target, trek_dims(SAMPLES, 1), TREK_F64, trek_cpu(0)),
    };
    trek_dataset *dataset = trek_dataset_tensors(names, tensors, 3);
    for (int k = 0; k < 3; k++)
        trek_tensor_release(tensors[k]);
    return dataset;
}

static trek_tensor *numbers(uint32_t stream, trek_shape shape, trek_device device)
{
    double values[256];
    int64_t n = trek_shape_numel(shape);
    for (int64_t i = 0; i < n; i++)
        values[i] = 0.6 * test_number(stream, (uint32_t)i);
    return trek_tensor_from_data(values, shape, TREK_F64, device);
}

typedef struct net {
    trek_module base;
    trek_module *drop;
    trek_var *w1, *b1, *branch, *frozen, *unused, *w2;
    double drop_rate;
} net;

static trek_var *net_forward(trek_module *self, trek_var *x)
{
    net *m = (net *)self;
    trek_var *h = trek_tanh(trek_add(trek_linear(x, m->w1, m->b1), m->frozen));
    h = trek_forward(m->drop, h);
    double *values = test_read(trek_var_data(x));
    bool marked = false;
    for (int64_t i = 0; values && i < trek_var_size(x, 0); i++)
        marked |= values[i * IN] > 1.5;
    free(values);
    if (marked)
        h = trek_add(h, trek_mul(trek_cast(trek_gt_scalar(trek_narrow(x, 1, 0, 1), 1.5), TREK_F64), m->branch));
    return trek_linear(h, m->w2, NULL);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

static trek_graph *build(trek_device device, void *arg)
{
    (void)arg;
    trek_module *m = trek_module_new(&net_class);
    trek_module_add(m, "drop", offsetof(net, drop), trek_nn_dropout(0.3));
    trek_module_param(m, "w1", offsetof(net, w1), numbers(11, trek_dims(HIDDEN, IN), device));
    trek_module_param(m, "b1", offsetof(net, b1), numbers(12, trek_dims(HIDDEN), device));
    trek_module_param(m, "branch", offsetof(net, branch), numbers(13, trek_dims(HIDDEN), device));
    trek_module_param(m, "frozen", offsetof(net, frozen), numbers(14, trek_dims(HIDDEN), device));
    trek_module_param(m, "unused", offsetof(net, unused), numbers(15, trek_dims(3), device));
    trek_module_param(m, "w2", offsetof(net, w2), numbers(16, trek_dims(CLASSES, HIDDEN), device));
    trek_flow *flow = trek_flow_from(trek_module_check(m));
    trek_flow_tag(flow, "logits");
    return trek_flow_build(flow);
}

typedef enum loss_kind { BY_LABELS, BY_ROWS, BY_STATED, N_LOSSES } loss_kind;

static double stated_weight(const trek_batch *batch)
{
    double weight = 0;
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        weight += (double)(trek_batch_indices(batch)[k] % 4);
    return weight;
}

/* The mean over samples, sample i weighing i % 4. */
static trek_var *stated_loss(trek_var *output, const trek_batch *batch)
{
    int64_t n = trek_batch_size(batch);
    double weights[SAMPLES], sum = stated_weight(batch);
    for (int64_t k = 0; k < n; k++)
        weights[k] = (double)(trek_batch_indices(batch)[k] % 4) / (sum > 0 ? sum : 1);
    trek_var *w = trek_var_from(trek_tensor_from_data(weights, trek_dims(n, 1), TREK_F64, trek_var_device(output)));
    trek_var *error = trek_sub(trek_narrow(output, 1, 0, 1), trek_batch_get(batch, "target"));
    trek_var *loss = trek_sum(trek_mul(w, trek_mul(error, error)), trek_dims_none(), false);
    return trek_loss_set_weight(loss, sum) == TREK_OK ? loss : NULL;
}

static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    if (trek_graph_tagged(graph, "logits") == NULL)
        return NULL; /* each rank sees the tags of its own batch */
    switch (*(const loss_kind *)arg) {
    case BY_LABELS:
        return trek_cross_entropy(output, trek_batch_get(batch, "label"));
    case BY_ROWS: /* computed by hand: nobody reports what it is the mean of */
        return trek_mean(trek_square(trek_sub(trek_narrow(output, 1, 0, 1), trek_batch_get(batch, "target"))), trek_dims_none(), false);
    default:
        return stated_loss(output, batch);
    }
}

/* --- runs --------------------------------------------------------------------------------- */

typedef struct run {
    int world, passes, batch;
    loss_kind loss;
    bool separate, windows, drop_last, clip;
    const trek_plan *plan;
    const trek_slowdown *slowdowns;
    int balance;
    trek_optimizer_spec optimizer;
} run;

typedef struct result {
    double params[MOST], losses[512];
    int n, steps, passes;
    int64_t windows[256][64]; /* [pass] the samples, so that another run can be given them */
    int64_t sizes[256];
    trek_plan *made;
} result;

static trek_status each_param(const char *name, trek_var *param, void *arg)
{
    (void)name;
    result *to = arg;
    int64_t count = trek_var_numel(param);
    assert_true(to->n + count <= MOST);
    trek_status status = trek_tensor_to_host(trek_var_data(param), TREK_F64, to->params + to->n, (size_t)count * sizeof(double));
    to->n += (int)count;
    return status;
}

static trek_graph *set_up(const run *c, trek_loader *loader)
{
    trek_seed(7);
    trek_graph *graph = build(test_device(), NULL);
    assert_non_null(graph);
    trek_device devices[5];
    for (int r = 0; r < 5; r++)
        devices[r] = test_device_of_rank(r);
    if (loader)
        assert_int_equal(trek_graph_set_loader(graph, loader, "x"), TREK_OK);
    trek_trainer_opts opts = { .build_replica = build, .devices = devices, .ranks = c->world, .optimizer = c->optimizer,
                               .share = c->separate ? TREK_OFF : 0, .bucket_bytes = 256, .max_grad_norm = c->clip ? 0.05 : 0,
                               .max_anchor = c->windows ? 3 : TREK_OFF, .anchor = 2, .plan = c->plan, .slowdowns = c->slowdowns,
                               .balance = c->balance };
    assert_int_equal(trek_trainer_setup(graph, &opts), TREK_OK);
    assert_int_equal(trek_module_freeze(trek_graph_module(graph), false), TREK_OK);
    trek_var_set_requires_grad(((net *)trek_graph_at(graph, "0"))->frozen, false);
    return graph;
}

static void note_batch(result *to, const trek_batch *batch)
{
    int64_t n = trek_batch_size(batch);
    assert_true(to->passes < 256 && n <= 64);
    to->sizes[to->passes] = n;
    memcpy(to->windows[to->passes], trek_batch_indices(batch), (size_t)n * sizeof(int64_t));
}

static void train(const run *c, result *to)
{
    memset(to, 0, sizeof *to);
    trek_loader *loader = trek_loader_new(make_dataset(), &(trek_loader_opts){ .batch_size = c->batch, .shuffle = true, .seed = 3,
                                                                              .drop_last = c->drop_last });
    trek_graph *graph = set_up(c, loader);
    loss_kind kind = c->loss;
    assert_int_equal(trek_graph_set_loss(graph, loss_of, &kind), TREK_OK);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        assert_int_equal(trek_graph_start(graph, epoch), TREK_OK);
        for (trek_batch *batch; (batch = trek_graph_next(graph)); to->passes++) {
            note_batch(to, batch);
            trek_var *loss = trek_graph_forward_batch(graph, batch);
            assert_non_null(loss);
            to->losses[to->passes] = trek_var_item(loss);
            if ((to->passes + 1) % c->passes == 0) {
                assert_int_equal(trek_graph_step(graph), TREK_OK);
                to->steps++;
            }
        }
    }
    assert_int_equal(trek_status_get(), TREK_OK);
    to->made = trek_trainer_plan(graph);
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), each_param, to), TREK_OK);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

/* The same samples in the same order on one device, each pass one batch. */

static trek_var *rows(trek_dataset *dataset, const char *field, const int64_t *indices, int64_t n)
{
    trek_tensor *tensors[3];
    assert_int_equal(trek_dataset_get(dataset, indices, n, tensors), TREK_OK);
    int k = trek_dataset_field(dataset, field);
    for (int j = 0; j < 3; j++)
        if (j != k)
            trek_tensor_release(tensors[j]);
    trek_tensor *there = trek_tensor_to(tensors[k], test_device());
    trek_tensor_release(tensors[k]);
    return trek_var_from(there);
}

static trek_var *loss_on_one(const run *c, trek_dataset *dataset, trek_var *output, const int64_t *indices, int64_t n)
{
    trek_var *target = rows(dataset, "target", indices, n);
    if (c->loss == BY_LABELS)
        return trek_cross_entropy(output, rows(dataset, "label", indices, n));
    trek_var *squares = trek_square(trek_sub(trek_narrow(output, 1, 0, 1), target));
    if (c->loss == BY_ROWS)
        return trek_mean(squares, trek_dims_none(), false);
    double weights[64], sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += (double)(indices[k] % 4);
    for (int64_t k = 0; k < n; k++)
        weights[k] = (double)(indices[k] % 4) / (sum > 0 ? sum : 1);
    return trek_sum(trek_mul(squares, trek_var_from(trek_tensor_from_data(weights, trek_dims(n, 1), TREK_F64, test_device()))), trek_dims_none(), false);
}

static void train_on_one(const run *c, const result *as, result *to)
{
    run alone = *c;
    alone.world = 1;
    alone.plan = NULL;
    alone.slowdowns = NULL;
    alone.balance = 0;
    alone.windows = false;
    memset(to, 0, sizeof *to);
    trek_dataset *dataset = make_dataset();
    trek_graph *graph = set_up(&alone, NULL);
    for (to->passes = 0; to->passes < as->passes; to->passes++) {
        trek_scope scope = trek_scope_begin();
        const int64_t *indices = as->windows[to->passes];
        int64_t n = as->sizes[to->passes];
        trek_var *loss = loss_on_one(c, dataset, trek_graph_forward(graph, rows(dataset, "x", indices, n)), indices, n);
        bool counts = c->loss != BY_STATED; /* a pass that weighs nothing is skipped: no update of a momentum by zeros */
        for (int64_t k = 0; k < n; k++)
            counts |= indices[k] % 4 != 0;
        assert_int_equal(trek_graph_backward_weighted(graph, loss, counts), TREK_OK);
        to->losses[to->passes] = trek_var_item(loss);
        if ((to->passes + 1) % c->passes == 0) {
            assert_int_equal(trek_graph_step(graph), TREK_OK);
            to->steps++;
        }
        trek_scope_end(scope);
    }
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), each_param, to), TREK_OK);
    trek_graph_free(&graph);
    trek_dataset_free(&dataset);
}

static result many, one, again;

static void compare(const run *c)
{
    train(c, &many);
    train_on_one(c, &many, &one);
    assert_int_equal(many.steps, one.steps);
    assert_true(many.steps >= 2);
    for (int k = 0; k < many.passes; k++)
        if (fabs(many.losses[k] - one.losses[k]) > 2e-6 * (1 + fabs(one.losses[k])))
            fail_msg("world %d, loss %d, passes %d: pass %d has loss %.9g instead of %.9g", c->world, (int)c->loss, c->passes, k,
                     many.losses[k], one.losses[k]);
    for (int k = 0; k < many.n; k++)
        if (!(fabs(many.params[k] - one.params[k]) <= 1e-10 * (1 + fabs(one.params[k]))))
            fail_msg("world %d, loss %d, passes %d, windows %d: element %d is %.17g instead of %.17g", c->world, (int)c->loss,
                     c->passes, c->windows, k, many.params[k], one.params[k]);
    trek_plan_free(&many.made);
}

/* --- tests ------------------------------------------------------------------------------------ */

static trek_optimizer_spec momentum(void) { return trek_sgd((trek_sgd_opts){ .lr = 0.02, .momentum = 0.9 }); }
static trek_optimizer_spec adam(void) { return trek_adam((trek_adam_opts){ .lr = 0.02 }); }

static const int worlds[] = { 1, 2, 3, 5 };

static void test_batches(void **state)
{
    (void)state;
    for (int w = 0; w < 4; w++)
        for (int loss = 0; loss < N_LOSSES; loss++)
            for (int passes = 1; passes <= 2; passes++) {
                run c = { .world = worlds[w], .passes = passes, .batch = 8, .loss = loss, .clip = passes == 2,
                          .optimizer = loss == 0 ? adam() : momentum() };
                compare(&c);
                c.separate = true;
                compare(&c);
            }
}

static void test_small_batches(void **state)
{
    (void)state;
    for (int w = 1; w < 4; w++) /* ranks without samples; a last batch of one */
        compare(&(run){ .world = worlds[w], .passes = 1, .batch = w == 1 ? 3 : 4, .loss = BY_STATED, .optimizer = momentum() });
}

static void test_windows(void **state)
{
    (void)state;
    for (int w = 1; w < 4; w++)
        for (int loss = 0; loss < N_LOSSES; loss++)
            for (int passes = 1; passes <= 2; passes++)
                compare(&(run){ .world = worlds[w], .passes = passes, .batch = w == 3 ? 1 : 2, .loss = loss, .windows = true,
                                .separate = loss == 1, .clip = loss == 2, .optimizer = loss == 0 ? adam() : momentum() });
}

/* Ranks that are slowed down get less, and the result stays that of one device. */
static void test_uneven_shares(void **state)
{
    (void)state;
    trek_slowdown slow[3] = { { .factor = 1 }, { .factor = 30, .sleep = true }, { .factor = 3, .sleep = true } };
    run c = { .world = 3, .passes = 1, .batch = 5, .loss = BY_LABELS, .optimizer = momentum(), .slowdowns = slow, .balance = 1 };
    compare(&c);
}

static void test_replay(void **state)
{
    (void)state;
    for (int windows = 0; windows < 2; windows++) {
        trek_slowdown slow[3] = { { .factor = 1 }, { .factor = 40, .sleep = true }, { .factor = 3, .sleep = true } };
        run c = { .world = 3, .passes = 1, .batch = 2, .loss = BY_LABELS, .windows = windows, .optimizer = adam(), .slowdowns = slow,
                  .balance = 1 };
        train(&c, &many);
        trek_plan *plan = many.made;
        assert_true(trek_plan_size(plan) > 1);
        c.plan = plan;
        trek_slowdown other[3] = { { .factor = 25, .sleep = true }, { .factor = 1 }, { .factor = 9, .sleep = true } };
        c.slowdowns = other;
        train(&c, &again);
        assert_int_equal(many.steps, again.steps);
        assert_memory_equal(many.params, again.params, sizeof many.params);
        assert_memory_equal(many.losses, again.losses, sizeof many.losses);
        assert_memory_equal(many.windows, again.windows, sizeof many.windows);
        trek_plan_free(&again.made);
        trek_plan_free(&plan);
    }
}

static void test_without_training(void **state)
{
    (void)state;
    trek_loader *loader = trek_loader_new(make_dataset(), &(trek_loader_opts){ .batch_size = 9 });
    run c = { .world = 3, .passes = 1, .optimizer = momentum() };
    trek_graph *graph = set_up(&c, loader);
    loss_kind kind = BY_LABELS;
    trek_graph_set_loss(graph, loss_of, &kind);
    result before = { 0 };
    trek_module_each_param(trek_graph_module(graph), each_param, &before);
    trek_graph_train(graph, false);
    double sum = 0, weight = 0;
    trek_graph_start(graph, 0);
    for (trek_batch *batch; (batch = trek_graph_next(graph));) {
        double counted = 0;
        for (int64_t k = 0; k < trek_batch_size(batch); k++) {
            int64_t i = trek_batch_indices(batch)[k];
            counted += !(i % 3 == 1 || i % 7 == 0);
        }
        sum += trek_var_item(trek_graph_forward_batch(graph, batch)) * counted;
        weight += counted;
    }
    trek_graph_train(graph, true);
    trek_graph_start(graph, 0);
    trek_batch *batch = trek_graph_next(graph);
    trek_no_grad_begin();
    assert_non_null(trek_graph_forward_batch(graph, batch));
    trek_no_grad_end();
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    result after = { 0 };
    trek_module_each_param(trek_graph_module(graph), each_param, &after);
    assert_memory_equal(before.params, after.params, sizeof before.params);
    assert_true(sum / weight > 0.5 && sum / weight < 4);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

/* Without a loss, forward_batch is a forward, by the names of fields. */
static void test_forward_only(void **state)
{
    (void)state;
    trek_loader *loader = trek_loader_new(make_dataset(), &(trek_loader_opts){ .batch_size = 10 });
    run c = { .world = 2, .passes = 1, .optimizer = momentum() };
    trek_graph *graph = set_up(&c, loader);
    trek_graph_train(graph, false);
    trek_graph_start(graph, 0);
    trek_batch *batch = trek_graph_next(graph);
    trek_var *y = trek_graph_forward_batch(graph, batch), *same = trek_graph_forward(graph, trek_batch_get(batch, "x"));
    assert_true(test_same_bits(trek_var_data(y), trek_var_data(same)));
    assert_int_equal(trek_var_size(y, 0), 10);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

static trek_var *failing_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    for (int64_t k = 0; k < trek_batch_size(batch); k++)
        if (trek_batch_indices(batch)[k] == 7)
            return NULL;
    return trek_mean(output, trek_dims_none(), false);
}

static trek_var *vector_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph, (void)batch, (void)arg;
    return output;
}

static void expect(trek_status status, const char *part)
{
    assert_int_equal(trek_status_get(), status);
    if (!strstr(trek_error(), part))
        fail_msg("\"%s\" lacks \"%s\"", trek_error(), part);
    trek_error_clear();
}

static void test_mistakes(void **state)
{
    (void)state;
    trek_loader *loader = trek_loader_new(make_dataset(), &(trek_loader_opts){ .batch_size = 10 });
    run c = { .world = 2, .passes = 1, .optimizer = momentum(), .windows = true };
    trek_graph *graph = set_up(&c, loader);
    assert_int_equal(trek_graph_set_loader(graph, loader, "y"), TREK_ERR_ARGUMENT);
    expect(TREK_ERR_ARGUMENT, "target");
    trek_graph_set_loss(graph, failing_loss, NULL);
    trek_graph_start(graph, 0);
    trek_batch *batch = trek_graph_next(graph);
    assert_null(trek_batch_get(batch, "x"));
    expect(TREK_ERR_UNSUPPORTED, "window");
    assert_null(trek_graph_forward_batch(graph, batch));
    assert_int_equal(trek_graph_step(graph), TREK_ERR_CALLBACK);
    expect(TREK_ERR_CALLBACK, "rank 0");
    trek_graph_set_loss(graph, vector_loss, NULL);
    assert_null(trek_graph_forward_batch(graph, batch));
    expect(TREK_ERR_SHAPE, "scalar");
    trek_graph *other = build(test_device(), NULL);
    assert_null(trek_graph_next(other));
    expect(TREK_ERR_STATE, "loader");
    loss_kind kind = BY_ROWS; /* and all goes on */
    trek_graph_zero_grad(graph);
    trek_graph_set_loss(graph, loss_of, &kind);
    trek_graph_start(graph, 0);
    assert_non_null(trek_graph_forward_batch(graph, trek_graph_next(graph)));
    assert_int_equal(trek_graph_step(graph), TREK_OK);
    trek_graph_free(&other);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches), cmocka_unit_test(test_small_batches), cmocka_unit_test(test_windows),
        cmocka_unit_test(test_uneven_shares), cmocka_unit_test(test_replay), cmocka_unit_test(test_without_training),
        cmocka_unit_test(test_forward_only), cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
