/* SPDX-License-Identifier: Apache-2.0 */
/* A step on N ranks against a step on one: gradients from the same parameters,
 * parameters after free steps, bits from run to run and among ranks. The model
 * has dropout, a layer norm, a weight used twice, a frozen one, one that is
 * never used, a branch that only the ranks with a marked sample take, weights
 * that are made of others by weight norm and spectral norm, and an adapter with
 * dropout, which merged on rank 0 is merged on all. */
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/checkpoint.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "nn/lora.h"
#include "nn/module_tree.h"
#include "nn/module_values.h"
#include "nn/parametrize.h"
#include "optim/averaged.h"
#include "optim/optimizers.h"
#include "optim/sam.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { IN = 6, HIDDEN = 12, CLASSES = 4, MOST_STEPS = 20, MAX_PARAMS = 24, MAX_ELEMENTS = 1024 };
static int n_steps = MOST_STEPS;

/* --- numbers that need no generator --------------------------------------------------- */

static double number(uint32_t stream, uint32_t k)
{
    uint32_t h = stream * 0x9e3779b9u ^ (k + 0x7f4a7c15u) * 0x85ebca6bu;
    h ^= h >> 16, h *= 0x7feb352du, h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 16;
    return (double)(h >> 8) * 0x1p-23 - 1;
}

static trek_tensor *numbers(uint32_t stream, double scale, trek_shape shape, trek_dtype dtype, trek_device device)
{
    int64_t count = trek_shape_numel(shape);
    double *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = scale * number(stream, (uint32_t)i);
    trek_tensor *wide = trek_tensor_from_data(values, shape, TREK_F64, device);
    trek_tensor *cast = trek_tensor_cast(wide, dtype);
    trek_tensor_release(wide);
    free(values);
    return cast;
}

/* --- the model --------------------------------------------------------------------------- */

typedef struct fixed_module {
    trek_module base;
    trek_var *weight;
} fixed_module;

static trek_var *fixed_forward(trek_module *self, trek_var *x) { return trek_matmul(x, ((fixed_module *)self)->weight); }
static const trek_module_class fixed_class = { .name = "fixed", .size = sizeof(fixed_module), .forward = fixed_forward };

typedef struct net {
    trek_module base;
    trek_module *drop, *fixed, *length, *bounded, *adapted;
    trek_var *w1, *b1, *gain, *shift, *branch, *unused, *w3, *b3;
} net;

static trek_var *net_forward(trek_module *self, trek_var *x)
{
    net *m = (net *)self;
    trek_var *h = trek_gelu(trek_layer_norm(trek_linear(x, m->w1, m->b1), 1, m->gain, m->shift, 1e-5));
    h = trek_forward(m->drop, h);
    if (test_any_marked(x)) {
        trek_var *mark = trek_cast(trek_gt_scalar(trek_narrow(x, 1, 0, 1), 1.5), trek_var_dtype(x));
        h = trek_add(h, trek_mul(mark, m->branch));
    }
    h = trek_tanh(trek_forward(m->fixed, trek_matmul(h, m->w1)));
    h = trek_tanh(trek_forward(m->bounded, trek_forward(m->length, h)));
    h = trek_tanh(trek_forward(m->adapted, h));
    return trek_linear(h, m->w3, m->b3);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

static trek_module *fixed_new(trek_dtype dtype, trek_device device)
{
    trek_module *m = trek_module_new(&fixed_class);
    trek_module_param(m, "weight", offsetof(fixed_module, weight), numbers(9, 0.6, trek_dims(IN, IN), dtype, device));
    return trek_module_check(m);
}

/* A linear layer of numbers that need no generator. */
static trek_module *linear_new(uint32_t stream, trek_dtype dtype, trek_device device)
{
    trek_module *m = trek_nn_linear_with(&(trek_linear_opts){ .in = IN, .out = IN, .dtype = dtype, .device = device });
    for (int k = 0; k < 2; k++) {
        trek_tensor *values = numbers(stream + (uint32_t)k, 0.6, trek_var_shape(m->own->params[k].var), dtype, device);
        trek_tensor_copy_from(trek_var_data(m->own->params[k].var), values);
        trek_tensor_release(values);
    }
    return m;
}

static trek_module *net_new(trek_dtype dtype, trek_device device)
{
    trek_module *length = linear_new(10, dtype, device), *bounded = linear_new(12, dtype, device);
    trek_weight_norm(length, NULL, 0);
    trek_seed(5);
    trek_spectral_norm(bounded, NULL, NULL);
    trek_module *adapted = linear_new(14, dtype, device);
    trek_lora(adapted, &(trek_lora_opts){ .r = 2, .lora_alpha = 3, .lora_dropout = 0.3 });
    for (int k = 0; k < 2; k++) {
        trek_var *part = trek_module_find(adapted, k ? "lora_B.weight" : "lora_A.weight");
        trek_tensor *values = numbers(16 + (uint32_t)k, 0.6, trek_var_shape(part), dtype, device);
        trek_tensor_copy_from(trek_var_data(part), values);
        trek_tensor_release(values);
    }
    trek_module *m = trek_module_new(&net_class);
    trek_module_add(m, "drop", offsetof(net, drop), trek_nn_dropout(0.3));
    trek_module_add(m, "fixed", offsetof(net, fixed), fixed_new(dtype, device));
    trek_module_add(m, "length", offsetof(net, length), length);
    trek_module_add(m, "bounded", offsetof(net, bounded), bounded);
    trek_module_add(m, "adapted", offsetof(net, adapted), adapted);
    trek_module_param(m, "w1", offsetof(net, w1), numbers(1, 0.5, trek_dims(HIDDEN, IN), dtype, device));
    trek_module_param(m, "b1", offsetof(net, b1), numbers(2, 0.5, trek_dims(HIDDEN), dtype, device));
    trek_module_param(m, "gain", offsetof(net, gain), numbers(3, 1, trek_dims(HIDDEN), dtype, device));
    trek_module_param(m, "shift", offsetof(net, shift), numbers(4, 0.5, trek_dims(HIDDEN), dtype, device));
    trek_module_param(m, "branch", offsetof(net, branch), numbers(5, 0.5, trek_dims(HIDDEN), dtype, device));
    trek_module_param(m, "unused", offsetof(net, unused), numbers(6, 0.5, trek_dims(3), dtype, device));
    trek_module_param(m, "w3", offsetof(net, w3), numbers(7, 0.7, trek_dims(CLASSES, IN), dtype, device));
    trek_module_param(m, "b3", offsetof(net, b3), numbers(8, 0.5, trek_dims(CLASSES), dtype, device));
    return trek_module_check(m);
}

static trek_graph *build(trek_device device, void *arg)
{
    return trek_flow_build(trek_flow_from(net_new(*(const trek_dtype *)arg, device)));
}

/* --- one training run ------------------------------------------------------------------------ */

typedef struct run_case {
    trek_dtype dtype;
    trek_optimizer_spec optimizer;
    double max_norm, max_value;
    int world, batch, passes;
    bool separate;
    const trek_optimizer_spec *plain; /* of what is no matrix; rates then go by layer, and half-way another graph goes on */
} run_case;

/* Row-major elements of all parameters, one after another. */
typedef struct record {
    int n_params;
    int64_t starts[MAX_PARAMS + 1];
    char names[MAX_PARAMS][64];
    bool has_grad[MAX_PARAMS];
    double params[MOST_STEPS + 1][MAX_ELEMENTS], grads[MOST_STEPS][MAX_ELEMENTS], losses[MOST_STEPS], norms[MOST_STEPS];
} record;

typedef struct listing {
    record *to;
    double *values;
    bool grads, write;
    int k;
} listing;

static trek_status each_param(const char *name, trek_var *param, void *arg)
{
    listing *l = arg;
    record *to = l->to;
    int k = l->k++;
    int64_t count = trek_var_numel(param);
    to->n_params = k + 1;
    to->starts[k + 1] = to->starts[k] + count;
    assert_true(k < MAX_PARAMS && to->starts[k + 1] <= MAX_ELEMENTS);
    strncpy(to->names[k], name, sizeof to->names[k] - 1);
    double *values = l->values + to->starts[k];
    if (l->write) {
        trek_tensor *wide = trek_tensor_from_data(values, trek_var_shape(param), TREK_F64, trek_var_device(param));
        trek_status status = trek_tensor_copy_from(trek_var_data(param), wide);
        trek_tensor_release(wide);
        return status;
    }
    trek_var *source = l->grads ? trek_var_grad(param) : param;
    if (l->grads)
        to->has_grad[k] = source != NULL;
    if (!source) {
        memset(values, 0, (size_t)count * sizeof *values);
        return TREK_OK;
    }
    return trek_tensor_to_host(trek_var_data(source), TREK_F64, values, (size_t)count * sizeof *values);
}

static void list(trek_graph *graph, record *to, double *values, bool grads, bool write)
{
    listing l = { to, values, grads, write, 0 };
    assert_int_equal(trek_module_each_param(trek_graph_module(graph), each_param, &l), TREK_OK);
}

static trek_var *inputs(const run_case *c, int step, int pass)
{
    int64_t rows = c->batch;
    double *values = malloc((size_t)rows * IN * sizeof *values);
    for (int64_t i = 0; i < rows * IN; i++)
        values[i] = number(100 + (uint32_t)(step * 7 + pass), (uint32_t)i);
    values[(rows - 1) * IN] = 2; /* the marked one */
    trek_var *x = trek_var_from(test_values(values, trek_dims(rows, IN), c->dtype));
    free(values);
    return x;
}

static trek_var *labels(const run_case *c, int step, int pass)
{
    int64_t rows = c->batch, values[64];
    for (int64_t i = 0; i < rows; i++)
        values[i] = (int64_t)((number(900 + (uint32_t)(step * 7 + pass), (uint32_t)i) + 1) * CLASSES / 2);
    return trek_var_from(trek_tensor_from_data(values, trek_dims(rows), TREK_I64, test_device()));
}

static trek_graph *set_up(run_case *c)
{
    trek_device devices[5];
    for (int r = 0; r < c->world; r++)
        devices[r] = test_device_of_rank(r);
    trek_graph *graph = build(devices[0], &c->dtype);
    assert_non_null(graph);
    trek_status status = trek_trainer_setup(graph, &(trek_trainer_opts){
        .build_replica = build, .arg = &c->dtype, .devices = devices, .ranks = c->world, .optimizer = c->optimizer,
        .max_grad_norm = c->max_norm, .max_grad_value = c->max_value, .share_params = c->separate ? TREK_OFF : 0,
        .bucket_bytes = 2048 });
    if (status != TREK_OK)
        print_error("%s\n", trek_error());
    assert_int_equal(status, TREK_OK);
    assert_int_equal(trek_graph_world_size(graph), c->world);
    /* frozen through the child, after set-up: replicas must follow */
    net *model = (net *)trek_graph_module(graph)->own->children[0].module;
    assert_ptr_equal(model->base.own->klass, &net_class);
    assert_int_equal(trek_module_freeze(model->fixed), TREK_OK);
    return graph;
}

/* Rates that fall from parameter to parameter. */
static trek_optimizer_spec by_layer(const char *name, trek_var *param, trek_optimizer_spec now, void *arg)
{
    int *k = arg;
    now.options[0] *= pow(0.9, (*k)++ + (strstr(name, "w3") != NULL));
    return now;
}

static trek_graph *set_up_groups(run_case *c)
{
    trek_graph *graph = set_up(c);
    int k = 0;
    if (c->plain) {
        assert_true(trek_optimizer_vectors(trek_graph_optimizer(graph), *c->plain) > 0);
        assert_int_equal(trek_optimizer_regroup(trek_graph_optimizer(graph), by_layer, &k), TREK_OK);
    }
    return graph;
}

/* By way of a file, as after a crash. */
static trek_graph *begin_anew(run_case *c, trek_graph *graph)
{
    char path[] = "/tmp/trek-exact-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    assert_int_equal(trek_checkpoint_save(graph, NULL, path), TREK_OK);
    trek_graph_free(&graph);
    graph = set_up_groups(c);
    SUCCEEDS(trek_checkpoint_load(graph, NULL, path));
    unlink(path);
    return graph;
}

/* Trains n_steps steps. from: each step begins at its parameters; NULL: freely. */
static trek_graph *train(run_case *c, record *to, record *from)
{
    trek_graph *graph = set_up_groups(c);
    trek_seed(77);
    memset(to, 0, sizeof *to);
    for (int step = 0; step < n_steps; step++) {
        if (c->plain && c->world > 1 && step == n_steps / 2)
            graph = begin_anew(c, graph);
        if (from) {
            list(graph, from, from->params[step], false, true);
            assert_int_equal(trek_graph_parameters_changed(graph), TREK_OK);
        }
        list(graph, to, to->params[step], false, false);
        for (int pass = 0; pass < c->passes; pass++) {
            trek_scope scope = trek_scope_begin();
            trek_var *loss = trek_cross_entropy(trek_graph_forward(graph, inputs(c, step, pass)), labels(c, step, pass));
            trek_graph_backward(graph, loss);
            if (trek_error_status() != TREK_OK)
                print_error("%s\n", trek_error());
            assert_int_equal(trek_error_status(), TREK_OK);
            to->losses[step] += trek_var_item(loss);
            trek_scope_end(scope);
        }
        assert_int_equal(trek_graph_reduce(graph), TREK_OK);
        list(graph, to, to->grads[step], true, false);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        to->norms[step] = trek_graph_grad_norm(graph);
    }
    list(graph, to, to->params[n_steps], false, false);
    assert_int_equal(trek_tape_size(), 0);
    return graph;
}

/* --- comparing ------------------------------------------------------------------------------------ */

static double difference(const record *shape, int k, const double *got, const double *expected)
{
    double error = 0, size = 0;
    for (int64_t i = shape->starts[k]; i < shape->starts[k + 1]; i++) {
        error += (got[i] - expected[i]) * (got[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    return error == 0 ? 0 : sqrt(error / size);
}

static void expect_close(const record *shape, const run_case *c, int step, const char *what, const double *got,
                         const double *expected, double tolerance)
{
    for (int k = 0; k < shape->n_params; k++) {
        double error = difference(shape, k, got, expected);
        if (!(error <= tolerance))
            print_error("%s of %s, step %d: relative difference %g; %s, %d ranks, batch %d, %d passes%s\n", what, shape->names[k],
                        step,
                        error, trek_dtype_name(c->dtype), c->world, c->batch, c->passes, c->separate ? ", own arenas" : "");
        assert_true(error <= tolerance);
    }
}

static run_case kinds(int k, trek_dtype dtype)
{
    run_case c = { .dtype = dtype };
    switch (k) {
    case 0:
        c.optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 });
        break;
    case 1:
        c.optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9, .weight_decay = 0.01 });
        break;
    case 2:
        c.optimizer = trek_adam(&(trek_adam_opts){ .lr = 0.01 });
        break;
    default:
        c.optimizer = trek_adamw(&(trek_adam_opts){ .lr = 0.01 });
        c.max_norm = 0.05;
        c.max_value = 0.01;
    }
    return c;
}

static const int worlds[] = { 1, 2, 3, 5 }, batches[] = { 1, 7, 64 };
/* Ranks on one GPU wait for each other's kernels: on a fake one two of them, of a CPU under sanitizers two and three. */
static bool brief(void) { return test_short_on_device(); }
static int n_worlds(void) { return test_short() ? (test_on_cpu() ? 3 : 2) : test_on_cpu() ? 4 : 3; }
static record one, many, again;

/* RAdam's steps are Adam's from the sixth on. */
static void choose_steps(void) { n_steps = test_short() ? 8 : MOST_STEPS; }

/* The frozen and the unused parameter stay as they are, the others move. */
static void expect_moved(const record *r, trek_dtype dtype)
{
    for (int k = 0; k < r->n_params; k++) {
        bool base = strstr(r->names[k], "adapted") && !strstr(r->names[k], "lora_");
        bool stays = base || strstr(r->names[k], "unused") || strstr(r->names[k], "fixed");
        size_t bytes = (size_t)(r->starts[k + 1] - r->starts[k]) * sizeof(double);
        bool same = memcmp(r->params[0] + r->starts[k], r->params[n_steps] + r->starts[k], bytes) == 0;
        /* few samples take the branch: where first steps are small (RAdam's), its masters move by less than 16 bits show */
        bool may_stay = (dtype == TREK_BF16 || dtype == TREK_F16) && strstr(r->names[k], "branch");
        assert_true(same == stays || (same && may_stay));
        assert_true(r->has_grad[k] == !stays);
    }
}

static void compare_worlds(trek_dtype dtype, int batch, int passes, bool separate)
{
    for (int kind = 0; kind < 4; kind++) {
        run_case c = kinds(kind, dtype);
        c.batch = batch;
        c.passes = passes;
        c.world = 1;
        trek_graph *graph = train(&c, &one, NULL);
        trek_graph_free(&graph);
        expect_moved(&one, dtype);
        c.separate = separate;
        for (int w = separate || test_short() ? 1 : 0; w < n_worlds();
             w++) { /* one rank against itself: the CPU does that, too */
            c.world = worlds[w];
            graph = train(&c, &many, &one);
            trek_graph_free(&graph);
            for (int step = 0; step < n_steps; step++) {
                expect_close(&one, &c, step, "gradient", many.grads[step], one.grads[step], dtype == TREK_F64 ? 1e-12 : 1e-5);
                assert_true(fabs(many.losses[step] - one.losses[step]) <= (dtype == TREK_F64 ? 1e-12
                                                                           : 1e-5) * fabs(one.losses[step]));
                assert_true(c.max_norm == 0 || fabs(many.norms[step] / one.norms[step] - 1) < 1e-5);
            }
            if (dtype != TREK_F64)
                continue;
            graph = train(&c, &many, NULL);
            trek_graph_free(&graph);
            expect_close(&one, &c, n_steps, "parameters", many.params[n_steps], one.params[n_steps], 1e-10);
            expect_moved(&many, dtype);
        }
    }
}

static void test_f64_one_pass(void **state)
{
    for (int b = 0; b < 3; b++)
        compare_worlds(TREK_F64, batches[b], 1, false);
}

static void test_f64_more_passes(void **state)
{
    compare_worlds(TREK_F64, 7, 2, false);
    if (!brief()) {
        compare_worlds(TREK_F64, 7, 3, false);
        compare_worlds(TREK_F64, 64, 3, false);
    }
}

static void test_f32(void **state)
{
    for (int b = brief() ? 1 : 0; b < 3; b++)
        compare_worlds(TREK_F32, batches[b], b + 1, false);
}

static void test_own_arenas(void **state)
{
    compare_worlds(TREK_F64, 7, 2, true);
    compare_worlds(TREK_F32, 64, 1, true);
}

/* --- optimizers beyond those, with groups, rates by layer, and a file half-way ------------------------------ */

enum { NEWER = 14 };

static trek_optimizer_spec newer(int k, bool plain)
{
    double decay = plain ? 0 : 0.05;
    switch (k) {
    case 0: return trek_adagrad(&(trek_adagrad_opts){ .lr = 0.02, .weight_decay = decay });
    case 1: return trek_adadelta(&(trek_adadelta_opts){ .lr = 0.5, .eps = 1e-4, .weight_decay = decay });
    case 2: return trek_adamax(&(trek_adamax_opts){ .lr = 0.01, .eps = 1e-4, .weight_decay = decay });
    case 3: return trek_nadam(&(trek_nadam_opts){ .lr = 0.01, .eps = 1e-4, .weight_decay = decay });
    case 4: return trek_radam(&(trek_radam_opts){ .lr = 0.01, .eps = 1e-4, .weight_decay = decay });
    case 5: return trek_adam(&(trek_adam_opts){ .lr = 0.01, .eps = 1e-4, .amsgrad = true, .weight_decay = decay });
    case 6: return trek_adamw(&(trek_adam_opts){ .lr = 0.01, .eps = 1e-4, .amsgrad = true });
    case 7: return trek_lion(&(trek_lion_opts){ .lr = 0.002, .weight_decay = decay });
    case 8: return trek_rmsprop(&(trek_rmsprop_opts){ .lr = 0.002, .eps = 1e-4, .momentum = 0.5, .weight_decay = decay });
    case 9: return trek_lamb(&(trek_lamb_opts){ .lr = 0.01, .eps = 1e-4, .weight_decay = decay });
    case 10:
        return trek_lars(&(trek_lars_opts){ .lr = 0.5, .trust_coefficient = plain ? TREK_ZERO : 0.02, .weight_decay = decay });
    case 11: return trek_adafactor(&(trek_adafactor_opts){ .lr = 0.02, .eps1 = 1e-8, .weight_decay = decay });
    case 12:
        return trek_muon(&(trek_muon_opts){ .lr = 0.02, .weight_decay = plain ? TREK_ZERO : 0.1, .adam = plain, .eps = 1e-4 });
    default: return trek_rprop(&(trek_rprop_opts){ .lr = 0.002, .step_max = 0.01 });
    }
}

/* How far b is from a, beside how far a has come. */
static double strayed(const record *a, const record *b)
{
    double apart = 0, come = 0;
    for (int64_t i = 0; i < a->starts[a->n_params]; i++) {
        double stray = b->params[n_steps][i] - a->params[n_steps][i], way = a->params[n_steps][i] - a->params[0][i];
        apart += stray * stray, come += way * way;
    }
    return sqrt(apart / come);
}

static void compare_newer(trek_dtype dtype, int kind, bool separate, double allowed)
{
    trek_optimizer_spec plain = newer(kind, true);
    run_case c = { .dtype = dtype, .optimizer = newer(kind, false), .plain = &plain, .world = 1, .batch = 7, .passes = 2,
                   .max_norm = kind % 2 ? 0.5 : 0 };
    trek_graph *graph = train(&c, &one, NULL);
    trek_graph_free(&graph);
    expect_moved(&one, dtype);
    c.separate = separate;
    for (c.world = 2; c.world <= (brief() ? 2 : 3); c.world++) {
        graph = train(&c, &many, NULL);
        trek_graph_free(&graph);
        expect_moved(&many, dtype);
        double far = strayed(&one, &many);
        if (!(far <= allowed))
            fail_msg("%s, %s, %d ranks%s: %g of the way apart", c.optimizer.klass->name, trek_dtype_name(dtype), c.world,
                     separate ? ", own arenas" : "", far);
    }
}

static void test_newer_optimizers(void **state)
{
    for (int kind = brief() ? 1 : 0; kind < NEWER; kind += brief() ? 2 : 1) /* the others come in 16 bits */
        for (int separate = brief() ? 1 : 0; separate < 2; separate++)
            compare_newer(TREK_F64, kind, separate, 1e-9);
}

/* What ranks add up in another order is rounded to 16 bits here and there: a part of a step, which signs make a whole one of. */
static void test_newer_optimizers_in_16_bits(void **state)
{
    n_steps = MOST_STEPS; /* in few of them not every value moves that is rounded so */
    for (int kind = 0; kind < NEWER; kind += brief() ? 2 : 1) {
        bool first = !test_short() || brief() || (kind + test_seed()) % 2 == 0; /* under sanitizers one of the two, by the seed */
        if (first)
            compare_newer(TREK_BF16, kind, false, 0.2);
        if (!brief() && (!test_short() || !first))
            compare_newer(TREK_F16, kind, true, 0.1);
    }
    choose_steps();
}

/* --- SAM and averages around a graph ------------------------------------------------------------------------- */

static double gradients_of(trek_graph *graph, const run_case *c, int step)
{
    double loss = 0;
    for (int pass = 0; pass < c->passes; pass++) {
        trek_scope scope = trek_scope_begin();
        trek_var *own = trek_cross_entropy(trek_graph_forward(graph, inputs(c, step, pass)), labels(c, step, pass));
        assert_int_equal(trek_graph_backward(graph, own), TREK_OK);
        loss += trek_var_item(own);
        trek_scope_end(scope);
    }
    return loss;
}

/* Losses are those where it has climbed to. */
static void train_sam(run_case *c, record *to)
{
    trek_graph *graph = set_up_groups(c);
    trek_sam *sam = trek_sam_new(trek_graph_optimizer(graph), &(trek_sam_opts){ .rho = 0.1, .adaptive = c->batch == 7 });
    assert_non_null(sam);
    trek_seed(77);
    memset(to, 0, sizeof *to);
    list(graph, to, to->params[0], false, false);
    for (int step = 0; step < n_steps; step++) {
        gradients_of(graph, c, step);
        assert_int_equal(trek_graph_reduce(graph), TREK_OK);
        assert_int_equal(trek_sam_first_step(sam), TREK_OK);
        to->losses[step] = gradients_of(graph, c, step);
        assert_int_equal(trek_graph_reduce(graph), TREK_OK);
        assert_int_equal(trek_sam_second_step(sam), TREK_OK);
    }
    list(graph, to, to->params[n_steps], false, false);
    trek_sam_free(&sam);
    trek_graph_free(&graph);
}

static void test_sam(void **state)
{
    trek_optimizer_spec plain = newer(6, true);
    for (int b = 1; b < 3; b++) {
        run_case c = { .dtype = TREK_F64, .optimizer = newer(6, false), .plain = &plain, .world = 1, .batch = batches[b],
                       .passes = 2 };
        train_sam(&c, &one);
        for (c.world = 2; c.world <= (test_on_cpu() ? 3 : 1); c.world++) { /* those that share their parameters: CPUs */
            train_sam(&c, &many);
            assert_true(strayed(&one, &many) <= 1e-9);
            for (int step = 0; step < n_steps; step++)
                assert_true(fabs(many.losses[step] - one.losses[step]) <= 1e-9 * fabs(one.losses[step]));
        }
    }
}

/* losses: of the average, by swaps in the midst of training. The average goes to another one half-way. */
static void train_averaged(run_case *c, bool ema, record *to)
{
    trek_averaged_opts opts = { .decay = ema ? 0.8 : 0 };
    trek_graph *graph = set_up_groups(c);
    trek_averaged *average = trek_averaged_new(trek_graph_module(graph), &opts);
    trek_seed(77);
    memset(to, 0, sizeof *to);
    list(graph, to, to->params[0], false, false);
    for (int step = 0; step < n_steps; step++) {
        gradients_of(graph, c, step);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        assert_int_equal(trek_averaged_update(average), TREK_OK);
        if (step == n_steps / 2) {
            trek_state *kept = trek_averaged_state(average);
            trek_averaged_free(&average);
            average = trek_averaged_new(trek_graph_module(graph), &opts);
            assert_int_equal(trek_averaged_load(average, kept), TREK_OK);
            trek_state_free(&kept);
        }
        assert_int_equal(trek_averaged_swap(average), TREK_OK);
        assert_int_equal(trek_graph_parameters_changed(graph), TREK_OK);
        trek_graph_train(graph, false);
        trek_scope scope = trek_scope_begin();
        trek_no_grad_begin();
        to->losses[step] = trek_var_item(trek_cross_entropy(trek_graph_forward(graph, inputs(c, step, 0)), labels(c, step, 0)));
        trek_no_grad_end();
        trek_scope_end(scope);
        trek_graph_train(graph, true);
        assert_int_equal(trek_averaged_swap(average), TREK_OK);
        assert_int_equal(trek_graph_parameters_changed(graph), TREK_OK);
    }
    assert_int_equal(trek_averaged_updates(average), n_steps);
    assert_int_equal(trek_averaged_swap(average), TREK_OK);
    list(graph, to, to->params[n_steps], false, false);
    trek_averaged_free(&average);
    trek_graph_free(&graph);
}

static void test_averages(void **state)
{
    for (int ema = 0; ema < 2; ema++)
        for (int separate = 0; separate < 2; separate++) {
            run_case c = { .dtype = TREK_F64, .optimizer = newer(6, false), .world = 1, .batch = 7, .passes = 1 };
            train_averaged(&c, ema, &one);
            c.separate = separate;
            for (c.world = 2; c.world <= (brief() ? 2 : 3); c.world++) {
                train_averaged(&c, ema, &many);
                assert_true(strayed(&one, &many) <= 1e-9);
                for (int step = 0; step < n_steps; step++)
                    assert_true(fabs(many.losses[step] - one.losses[step]) <= 1e-9 * fabs(one.losses[step]));
            }
        }
}

/* --- bits -------------------------------------------------------------------------------------------- */

static void test_bits_from_run_to_run(void **state)
{
    for (int kind = 0; kind < 4; kind++)
        for (int w = 1; w < n_worlds(); w++)
            for (int separate = 0; separate < 2; separate++) {
                run_case c = kinds(kind, TREK_F32);
                c.world = worlds[w];
                c.batch = 7;
                c.passes = 2;
                c.separate = separate;
                trek_graph *graph = train(&c, &many, NULL);
                trek_graph_free(&graph);
                graph = train(&c, &again, NULL);
                trek_graph_free(&graph);
                assert_memory_equal(many.params, again.params, sizeof many.params);
                assert_memory_equal(many.grads, again.grads, sizeof many.grads);
            }
}

static void test_bits_among_ranks(void **state)
{
    for (int kind = 0; kind < 4; kind++)
        for (int w = 1; w < n_worlds(); w++) {
            run_case c = kinds(kind, TREK_F32);
            c.world = worlds[w];
            c.batch = 64;
            c.passes = 1;
            c.separate = true;
            trek_graph *graph = train(&c, &many, NULL);
            for (int r = 1; r < c.world; r++) {
                trek_graph *replica = trek_graph_replica(graph, r);
                assert_non_null(replica);
                memset(&again, 0, sizeof again);
                list(replica, &again, again.params[n_steps], false, false);
                assert_memory_equal(again.params[n_steps], many.params[n_steps], sizeof again.params[n_steps]);
            }
            trek_graph_free(&graph);
        }
}

/* --- an adapter that is merged ------------------------------------------------------------------------ */

/* What the net gives in eval, after the adapter was merged where `merge` says so: on rank 0's net, which the others follow. */
static double *evaluated(trek_graph *graph, const run_case *c, bool merge)
{
    net *model = (net *)trek_graph_module(graph)->own->children[0].module;
    assert_int_equal(trek_graph_train(graph, false), TREK_OK);
    assert_int_equal(merge ? trek_lora_merge(model->adapted) : trek_lora_unmerge(model->adapted), TREK_OK);
    assert_int_equal(trek_graph_parameters_changed(graph), TREK_OK);
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_graph_forward(graph, inputs(c, 1, 0));
    double *values = y ? test_read(trek_var_data(y)) : NULL;
    trek_scope_end(scope);
    assert_non_null(values);
    return values;
}

static void test_merged(void **state)
{
    for (int w = 0; w < n_worlds(); w++)
        for (int separate = 0; separate < 2; separate++) {
            run_case c = kinds(2, TREK_F64);
            c.world = worlds[w];
            c.batch = 7;
            c.passes = 1;
            c.separate = separate;
            trek_graph *graph = train(&c, &many, NULL);
            double *apart = evaluated(graph, &c, false), *merged = evaluated(graph, &c, true),
                *again = evaluated(graph, &c, false);
            for (int k = 0; k < c.batch * CLASSES; k++)
                assert_true(fabs(merged[k] - apart[k]) < 1e-12 && fabs(again[k] - apart[k]) < 1e-12);
            free(apart), free(merged), free(again);
            trek_graph_free(&graph);
        }
}

int main(void)
{
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL); /* more ranks than cores is what this is about */
    choose_steps();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f64_one_pass), cmocka_unit_test(test_f64_more_passes), cmocka_unit_test(test_f32),
        cmocka_unit_test(test_own_arenas), cmocka_unit_test(test_bits_from_run_to_run), cmocka_unit_test(test_bits_among_ranks),
        cmocka_unit_test(test_newer_optimizers), cmocka_unit_test(test_newer_optimizers_in_16_bits), cmocka_unit_test(test_sam),
        cmocka_unit_test(test_averages), cmocka_unit_test(test_merged),
    };
    return cmocka_run_group_tests_name("exact", tests, NULL, NULL);
}
