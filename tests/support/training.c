/* SPDX-License-Identifier: Apache-2.0 */
/* The small training run of several test programs. */
#include "tests/support/noted.h"
#include "tests/support/training.h"

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "data/dataset_class.h"
#include "data/loader_position.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer_ranks.h"
#include "graph/constants.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

/* --- data and model ------------------------------------------------------------------ */

trek_dataset *training_dataset(void)
{
    double x[SAMPLES * IN], target[SAMPLES];
    int64_t label[SAMPLES];
    for (int i = 0; i < SAMPLES * IN; i++)
        x[i] = test_number(1, (uint32_t)i);
    for (int i = 0; i < SAMPLES; i++) {
        x[i * IN] = i % 12 == 2 || i % 20 == 0 ? 2 : x[i * IN]; /* some of them weigh nothing */
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

trek_graph *training_build(trek_device device, void *arg)
{
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
    trek_var *loss = trek_sum(trek_mul(w, trek_mul(error, error)), trek_dims_all(), false);
    return trek_loss_set_weight(loss, sum) == TREK_OK ? loss : NULL;
}

/* --- a teacher: what it says depends on its mode, in two ways ----------------------------------- */

typedef struct teacher {
    trek_module base;
    trek_module *drop;
    trek_var *weight, *shift;
} teacher;

static trek_var *teacher_forward(trek_module *self, trek_var *x)
{
    teacher *m = (teacher *)self;
    trek_var *y = trek_linear(x, m->weight, m->shift);
    return trek_module_is_training(self) ? trek_mul_scalar(y, 2) : trek_forward(m->drop, y);
}

static const trek_module_class teacher_class = { .name = "teacher", .size = sizeof(teacher), .forward = teacher_forward };

/* arg: its numbers, a uint32_t; NULL: numbers that none may keep. */
trek_module *training_teacher(trek_device device, void *arg)
{
    uint32_t stream = arg ? *(uint32_t *)arg : 50;
    trek_module *m = trek_module_new(&teacher_class);
    trek_module_add(m, "drop", offsetof(teacher, drop), trek_nn_dropout(0.5));
    trek_module_param(m, "weight", offsetof(teacher, weight), numbers(stream, trek_dims(CLASSES, IN), device));
    trek_module_buffer(m, "shift", offsetof(teacher, shift), numbers(stream + 1, trek_dims(CLASSES), device));
    return trek_module_check(m);
}

static trek_tensor *class_weights(trek_device device)
{
    double weights[CLASSES];
    for (int k = 0; k < CLASSES; k++)
        weights[k] = 0.5 + k;
    return trek_tensor_from_data(weights, trek_dims(CLASSES), TREK_F64, device);
}

void training_set_constants(trek_graph *graph)
{
    trek_scope scope = trek_scope_begin();
    trek_device device = trek_var_device(trek_module_find(trek_graph_module(graph), "0.w1"));
    trek_trainer_workload workload;
    trek_trainer_describe(graph, &workload);
    uint32_t stream = workload.rank > 0 ? 40 : 30; /* process 0's count */
    trek_var *weights = trek_var_from(class_weights(device));
    if (trek_graph_set_constant(graph, "weights", workload.rank > 0 ? trek_neg(weights) : weights) != TREK_OK ||
        trek_graph_set_teacher(graph, "teacher", training_teacher(trek_cpu(0), &stream), training_teacher, NULL) != TREK_OK)
        fail_msg("constants: %s", trek_error());
    trek_scope_end(scope);
}

/* Weighted by the classes' weights, which both parts are means by. */
static trek_var *teacher_loss(trek_var *output, trek_var *x, trek_var *labels, trek_var *weights, trek_module *module)
{
    trek_var *loss = trek_cross_entropy_with(output, labels, &(trek_cross_entropy_opts){ .weight = weights });
    trek_var *counts = trek_ne_scalar(labels, -100);
    trek_var *each = trek_mul(trek_index_select(weights, 0, trek_mul(labels, trek_cast(counts, TREK_I64))),
                              trek_cast(counts, TREK_F64));
    trek_var *distance = trek_sum(trek_square(trek_sub(output, trek_forward(module, x))), trek_dims(1), false);
    trek_var *sum = trek_sum(each, trek_dims_all(), false);
    double weight = sum ? trek_var_item(sum) : 0;
    trek_var *soft = trek_mul_scalar(trek_sum(trek_mul(each, distance), trek_dims_all(), false), weight > 0 ? 1 / weight : 0);
    trek_var *both = trek_add(loss, soft);
    return both && trek_loss_set_weight(both, weight) == TREK_OK ? both : NULL;
}

trek_var *training_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    if (trek_graph_tagged(graph, "logits") == NULL)
        return NULL; /* each rank sees the tags of its own batch */
    switch (*(const loss_kind *)arg) {
    case BY_LABELS:
        return trek_cross_entropy(output, trek_batch_get(batch, "label"));
    case BY_ROWS: /* computed by hand: nobody reports what it is the mean of */
        return trek_mean(trek_square(trek_sub(trek_narrow(output, 1, 0, 1), trek_batch_get(batch, "target"))), trek_dims_all(),
                         false);
    case BY_TEACHER:
        return teacher_loss(output, trek_batch_get(batch, "x"), trek_batch_get(batch, "label"),
                            trek_graph_constant(graph, "weights"),
                            trek_graph_teacher(graph, "teacher"));
    default:
        return stated_loss(output, batch);
    }
}

/* --- runs --------------------------------------------------------------------------------- */

trek_graph *training_set_up(const run *c, trek_loader *loader)
{
    trek_seed(7);
    trek_device devices[5];
    for (int r = 0; r < 5; r++)
        devices[r] = !c->devices ? test_device_of_rank(r) : r < c->world ? c->devices[r] : trek_cpu(r);
    trek_graph *graph = training_build(c->devices ? devices[0] : test_device(), NULL);
    assert_non_null(graph);
    if (loader)
        assert_int_equal(trek_graph_set_loader(graph, loader, "x"), TREK_OK);
    int64_t budgets[5]; /* which differ from rank to rank and from process to process */
    for (int r = 0; r < 5; r++)
        budgets[r] = (int64_t)(4 << 20) << (getenv("TREK_RANK") ? 2 * (atoi(getenv("TREK_RANK")) % 3) : r);
    trek_trainer_opts opts = { .build_replica = training_build, .devices = devices, .ranks = c->world, .optimizer = c->optimizer,
                               .share_params = c->separate ? TREK_OFF : 0,
                               .shard = c->sharded > 4 ? TREK_SHARD_PARAMETERS : c->sharded > 2 ? TREK_SHARD_GRADIENTS
                               : c->sharded ? TREK_SHARD_STATE : TREK_SHARD_NONE,
                               .memory_budget = c->sharded % 2 == 0 && c->sharded ? budgets : NULL,
                               .n_memory_budget = c->sharded % 2 == 0 && c->sharded ? c->world : 0,
                               .overlap = c->overlap,
                               .bucket_bytes = 256,
                               .max_grad_norm = c->clip ? 0.05 : 0,
                               .max_anchor = c->windows ? 3 : TREK_OFF, .anchor = 2, .plan = c->plan,
                               .balance = c->balance, .accumulate = c->accumulate, .shares = c->shares,
                               .n_shares = c->shares ? c->world : 0 };
    if (c->scaled)
        opts.amp = (trek_amp_opts){ .scaling = 1, .scaler = { .init_scale = 1024 } };
    if (c->loss == BY_TEACHER && !c->late)
        training_set_constants(graph);
    if (c->slowdown)
        setenv("TREK_SLOWDOWN", c->slowdown, 1);
    if (trek_trainer_setup(graph, &opts) != TREK_OK)
        fail_msg("setup: %s", trek_error());
    unsetenv("TREK_SLOWDOWN");
    if (c->overlap && c->world == 1 && trek_graph_ranks(graph))
        assert_true(trek_graph_ranks(graph)->overlap.possible == (c->overlap == 1));
    if (c->loss == BY_TEACHER && c->late)
        training_set_constants(graph);
    assert_int_equal(trek_module_thaw(trek_graph_module(graph)), TREK_OK);
    trek_var_set_requires_grad(((net *)trek_graph_at(graph, "0"))->frozen, false);
    if (c->accumulate > 1) /* its masks depend on the pass */
        assert_int_equal(trek_module_train(((net *)trek_graph_at(graph, "0"))->drop, false), TREK_OK);
    return graph;
}

static void note_batch(result *to, const trek_batch *batch)
{
    int64_t n = trek_batch_size(batch);
    assert_true(to->passes < PASSES && n <= 64);
    to->sizes[to->passes] = n;
    memcpy(to->windows[to->passes], trek_batch_indices(batch), (size_t)n * sizeof(int64_t));
}

void training_params(trek_graph *graph, result *to)
{
    to->n = note_params(trek_graph_module(graph), to->params, MOST);
}

/* One pass: by the registered loss, or by a forward that is split and a loss over its whole. */
static trek_var *make_pass(const run *c, trek_graph *graph, trek_batch *batch)
{
    if (!c->gathered)
        return trek_graph_train_batch(graph, batch);
    loss_kind kind = c->loss;
    trek_var *loss = training_loss(graph, trek_graph_forward(graph, trek_batch_get(batch, "x")), batch, &kind);
    if (!loss || trek_graph_backward(graph, loss) != TREK_OK)
        return NULL;
    double mean = trek_trainer_mean(graph, loss); /* of all processes */
    return isnan(mean) ? NULL : trek_var_from(trek_tensor_full(trek_dims_none(), mean, TREK_F64, trek_cpu(0)));
}

static trek_loader *make_loader(const run *c)
{
    return trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = c->batch, .shuffle = true, .seed = 3,
                                                                   .drop_last = c->drop_last,
                                                                   .device = c->devices ? c->devices[0] : (trek_device){ 0 } });
}

void training_run(const run *c, result *to)
{
    memset(to, 0, sizeof *to);
    trek_loader *loader = make_loader(c);
    trek_graph *graph = training_set_up(c, loader);
    loss_kind kind = c->loss;
    if (!c->gathered)
        assert_int_equal(trek_graph_set_loss(graph, training_loss, &kind), TREK_OK);
    for (int64_t epoch = 0; epoch < (c->epochs ? c->epochs : 2); epoch++) {
        assert_int_equal(trek_graph_start(graph, epoch), TREK_OK);
        for (trek_batch *batch; (batch = trek_graph_next(graph)); to->passes++) {
            note_batch(to, batch);
            trek_var *loss = make_pass(c, graph, batch);
            if (!loss)
                fail_msg("pass %d: %s", to->passes, trek_error());
            to->losses[to->passes] = trek_var_item(loss);
            if ((to->passes + 1) % c->passes == 0) {
                if (trek_graph_step(graph) != TREK_OK)
                    fail_msg("step %d: %s", to->steps, trek_error());
                to->steps++;
            }
        }
    }
    assert_int_equal(trek_error_status(), TREK_OK);
    to->made = trek_trainer_plan(graph);
    training_params(graph, to);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

static trek_status step_first(trek_graph *first, trek_var *x, trek_var *label)
{
    trek_status status = trek_graph_backward(first, trek_cross_entropy(trek_graph_forward(first, x), label));
    return status == TREK_OK ? trek_graph_step(first) : status;
}

static trek_status step_second(trek_graph *first, trek_graph *second, trek_var *x, trek_var *label)
{
    trek_var *y = trek_graph_forward(second, x); /* [n, CLASSES] -> the first graph's [n, IN] */
    trek_var *through = trek_cat((trek_var *[]){ y, trek_narrow(y, 1, 0, IN - CLASSES) }, 2, 1);
    trek_status status = trek_graph_backward(second, trek_cross_entropy(trek_graph_forward(first, through), label));
    return status == TREK_OK ? trek_graph_step(second) : status;
}

void training_pair(const run *c, result *to)
{
    memset(to, 0, sizeof *to);
    trek_loader *loader = make_loader(c);
    trek_graph *first = training_set_up(c, loader), *second = training_set_up(c, loader);
    trek_graph_train(first, true);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        assert_int_equal(trek_loader_start(loader, epoch), TREK_OK);
        for (trek_batch *batch; (batch = trek_loader_next(loader)); to->steps++) {
            trek_var *x = trek_batch_get(batch, "x"), *label = trek_batch_get(batch, "label");
            if (step_first(first, x, label) != TREK_OK || step_second(first, second, x, label) != TREK_OK)
                fail_msg("step %d: %s", to->steps, trek_error());
        }
    }
    trek_loader *whole = trek_loader_new(training_dataset(), &(trek_loader_opts){ .batch_size = c->batch, .whole = true });
    assert_int_equal(trek_loader_start(whole, 0), TREK_OK);
    assert_int_equal(trek_batch_size(trek_loader_next(whole)), c->batch); /* on every process */
    trek_loader_free(&whole);
    training_params(second, to);
    trek_graph_free(&first);
    trek_graph_free(&second);
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
    if (c->loss == BY_TEACHER) { /* of its own making */
        uint32_t stream = 30;
        trek_module *module = training_teacher(test_device(), &stream);
        trek_module_train(module, false);
        trek_module_freeze(module);
        trek_var *loss = teacher_loss(output, rows(dataset, "x", indices, n), rows(dataset, "label", indices, n),
                                      trek_var_from(class_weights(test_device())), module);
        trek_module_free(&module);
        return loss;
    }
    if (c->loss == BY_LABELS)
        return trek_cross_entropy(output, rows(dataset, "label", indices, n));
    trek_var *squares = trek_square(trek_sub(trek_narrow(output, 1, 0, 1), target));
    if (c->loss == BY_ROWS)
        return trek_mean(squares, trek_dims_all(), false);
    double weights[4 * SAMPLES], sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += (double)(indices[k] % 4);
    for (int64_t k = 0; k < n; k++)
        weights[k] = (double)(indices[k] % 4) / (sum > 0 ? sum : 1);
    return trek_sum(trek_mul(squares, trek_var_from(trek_tensor_from_data(weights, trek_dims(n, 1), TREK_F64, test_device()))),
                    trek_dims_all(), false);
}

/* The samples of the pass, or of all passes of its step together. */
static int64_t samples_of_pass(const run *c, const result *as, int pass, int64_t *indices)
{
    int first = c->accumulate > 1 ? pass - pass % c->passes : pass;
    int64_t n = 0;
    for (int k = first; k <= pass; k++) {
        memcpy(indices + n, as->windows[k], (size_t)as->sizes[k] * sizeof *indices);
        n += as->sizes[k];
    }
    return n;
}

void training_on_one(const run *c, const result *as, result *to)
{
    run alone = *c;
    alone.world = 1;
    alone.plan = NULL;
    alone.devices = NULL;
    alone.slowdown = NULL;
    alone.balance = 0;
    alone.windows = false;
    alone.accumulate = 0;
    memset(to, 0, sizeof *to);
    trek_dataset *dataset = training_dataset();
    trek_graph *graph = training_set_up(&alone, NULL);
    if (c->accumulate > 1)
        trek_module_train(((net *)trek_graph_at(graph, "0"))->drop, false);
    for (to->passes = 0; to->passes < as->passes; to->passes++) {
        if (c->accumulate > 1 && (to->passes + 1) % c->passes != 0)
            continue;
        trek_scope scope = trek_scope_begin();
        int64_t indices[4 * SAMPLES], n = samples_of_pass(c, as, to->passes, indices);
        trek_var *loss = loss_on_one(c, dataset, trek_graph_forward(graph, rows(dataset, "x", indices, n)), indices, n);
        assert_int_equal(trek_graph_backward(graph, loss), TREK_OK);
        to->losses[to->passes] = trek_var_item(loss);
        if ((to->passes + 1) % c->passes == 0) {
            assert_int_equal(trek_graph_step(graph), TREK_OK);
            to->steps++;
        }
        trek_scope_end(scope);
    }
    training_params(graph, to);
    trek_graph_free(&graph);
    trek_dataset_free(&dataset);
}

void training_compare(const run *c, const result *many, const result *one)
{
    assert_int_equal(many->steps, one->steps);
    assert_true(many->steps >= 2);
    for (int k = 0; k < many->n; k++)
        if (!(fabs(many->params[k] - one->params[k]) <= 1e-10 * (1 + fabs(one->params[k]))))
            fail_msg("world %d, loss %d, passes %d, windows %d: element %d is %.17g instead of %.17g", c->world, (int)c->loss,
                     c->passes, c->windows, k, many->params[k], one->params[k]);
}

trek_optimizer_spec training_momentum(void) { return trek_sgd(&(trek_sgd_opts){ .lr = 0.02, .momentum = 0.9 }); }
trek_optimizer_spec training_adam(void) { return trek_adam(&(trek_adam_opts){ .lr = 0.02 }); }
