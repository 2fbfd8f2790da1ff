/* SPDX-License-Identifier: Apache-2.0 */
/* A part that weighs nothing, as all its labels are ignored, uses its parameters all the same: they decay and keep their
 * momentum, as on one device, and nothing is added to them, NaN neither. An embedding whose rows occur on one rank each, a
 * parameter that only such parts use, batch norm over all ranks; in every way to train, on 1, 2 and 3 ranks. */
#include "autograd/backward.h"
#include "autograd/ops.h"
#include "distributed/ddp.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/graph_loader.h"
#include "graph/passes.h"
#include "nn/layers.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "tensor/shapes.h"
#include "tests/support/noted.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { ROWS = 6, FIELDS = 3, IDS = 7, WIDTH = 3, CLASSES = 3, RANKS = 3, STEPS = 3, MOST = 512 };
typedef enum way { BATCHES, GATHERED, REDUCED, BACKWARD, SENT_EARLY, WAYS } way;
static const char *const way_names[] = { "train_batch", "graph_backward", "reduce_gradients", "ddp_backward", "overlap" };

/* split: the data are those for so many ranks, on however many they are trained; 0: rank's own copy of what counts. */
typedef struct job {
    way way;
    int world, split;
    bool norm, sync, separate, poisoned;
} job;

/* --- the model ----------------------------------------------------------------------------------- */

typedef struct net {
    trek_module base;
    trek_module *norm;
    trek_var *table, *extra, *weight, *bias;
} net;

/* x: whether the row is marked, its number, and what its features are multiplied by. */
static trek_var *net_forward(trek_module *self, trek_var *x)
{
    net *m = (net *)self;
    trek_var *ids = trek_cast(trek_reshape(trek_narrow(x, 1, 1, 1), trek_dims(trek_var_size(x, 0))), TREK_I64);
    trek_var *h = trek_embedding(ids, m->table, -1);
    if (test_any_marked(x))
        h = trek_add(h, trek_mul(trek_cast(trek_gt_scalar(trek_narrow(x, 1, 0, 1), 1.5), TREK_F64), m->extra));
    h = trek_mul(h, trek_narrow(x, 1, 2, 1));
    return trek_linear(m->norm ? trek_forward(m->norm, h) : h, m->weight, m->bias);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(net), .forward = net_forward };

static trek_tensor *numbers(uint32_t stream, trek_shape shape, trek_device device)
{
    double values[IDS * WIDTH];
    for (int64_t k = 0; k < trek_shape_numel(shape); k++)
        values[k] = test_number(stream, (uint32_t)k);
    return trek_tensor_from_data(values, shape, TREK_F64, device);
}

static trek_module *net_new(trek_device device, const job *j)
{
    trek_module *m = trek_module_new(&net_class);
    trek_batch_norm_opts norm = { .features = WIDTH, .dtype = TREK_F64, .device = device };
    if (j->norm)
        trek_module_add(m, "norm", offsetof(net, norm),
                        j->sync ? trek_nn_sync_batch_norm_with(&norm) : trek_nn_batch_norm1d_with(&norm));
    trek_module_param(m, "table", offsetof(net, table), numbers(1, trek_dims(IDS, WIDTH), device));
    trek_module_param(m, "extra", offsetof(net, extra), numbers(2, trek_dims(WIDTH), device));
    trek_module_param(m, "weight", offsetof(net, weight), numbers(3, trek_dims(CLASSES, WIDTH), device));
    trek_module_param(m, "bias", offsetof(net, bias), numbers(4, trek_dims(CLASSES), device));
    return trek_module_check(m);
}

static trek_graph *build(trek_device device, void *arg) { return trek_flow_build(trek_flow_from(net_new(device, arg))); }

/* --- the data -------------------------------------------------------------------------------------- */

static int passes_of(const job *j) { return j->way <= GATHERED ? 2 * STEPS : STEPS; }

/* A rank's rows weigh nothing, then all rows of a pass, where a step has two of them. Else, of its only pass, the first rank's.
 */
static bool is_ignored(const job *j, int pass, int row)
{
    int each = ROWS / j->split, two = passes_of(j) / STEPS;
    return pass == two ? row >= ROWS - each && j->split > 1 : pass == 2 * two && (two == 2 || (j->split > 1 && row < each));
}

/* What is not finite lies where a whole loss weighs nothing. */
static void fill(const job *j, double *x, int64_t *labels)
{
    for (int pass = 0; pass < passes_of(j); pass++)
        for (int row = 0; row < ROWS; row++, x += FIELDS, labels++) {
            bool ignored = is_ignored(j, pass, row), alone = j->way != GATHERED || pass == 4;
            x[0] = ignored ? 2 : 0;
            x[1] = (row + pass / 2) % IDS;
            x[2] = ignored && alone && j->poisoned ? INFINITY : 1;
            *labels = ignored ? -100 : (row + pass) % CLASSES;
        }
}

typedef struct record {
    int n;
    double values[MOST];
} record;

static trek_optimizer_spec optimizer(void)
{
    return trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01 });
}

/* --- the trainer's ways ------------------------------------------------------------------------------ */

static trek_var *label_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_cross_entropy(output, trek_batch_get(batch, "label"));
}

static trek_loader *loader_new(const job *j)
{
    double x[2 * STEPS * ROWS * FIELDS];
    int64_t labels[2 * STEPS * ROWS], n = (int64_t)passes_of(j) * ROWS;
    fill(j, x, labels);
    trek_tensor *tensors[2] = { trek_tensor_from_data(x, trek_dims(n, FIELDS), TREK_F64, trek_cpu(0)),
                                trek_tensor_from_data(labels, trek_dims(n), TREK_I64, trek_cpu(0)) };
    trek_loader *loader = trek_loader_new(trek_dataset_tensors((const char *[]){ "x", "label" }, tensors, 2),
                                          &(trek_loader_opts){ .batch_size = ROWS, .device = test_device() });
    trek_tensor_release(tensors[0]);
    trek_tensor_release(tensors[1]);
    assert_non_null(loader);
    return loader;
}

static void train_graph(job *j, record *to)
{
    trek_graph *graph = build(test_device(), j);
    trek_loader *loader = loader_new(j);
    assert_non_null(graph);
    SUCCEEDS(trek_graph_set_loader(graph, loader, "x"));
    SUCCEEDS(trek_graph_set_loss(graph, j->way == GATHERED ? NULL : label_loss, NULL));
    SUCCEEDS(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build,
                                                             .arg = j,
                                                             .devices = test_devices(),
                                                             .ranks = j->world,
                                                             .optimizer = optimizer(),
                                                             .accumulate = 2,
                                                             .share_params = j->separate ? TREK_OFF : 0,
                                                             .deadline_s = 20 }));
    SUCCEEDS(trek_graph_start(graph, 0));
    int pass = 0;
    for (trek_batch *batch; (batch = trek_graph_next(graph)); pass++) {
        if (j->way == BATCHES)
            trek_graph_train_batch(graph, batch);
        else
            trek_graph_backward(graph, label_loss(graph, trek_graph_forward(graph, trek_batch_get(batch, "x")), batch, NULL));
        if (pass % 2)
            trek_graph_step(graph);
    }
    expect_no_error();
    to->n = note_state(trek_graph_module(graph), to->values, MOST);
    trek_graph_free(&graph);
    trek_loader_free(&loader);
}

/* --- loops of one's own ------------------------------------------------------------------------------ */

static struct {
    const job *j;
    int pass;
    trek_module *models[RANKS];
    trek_optimizer *optimizers[RANKS];
    trek_ddp *ddp;
    double counts[RANKS];
} hand;

static trek_status own_pass(int rank, void *arg)
{
    double x[STEPS * ROWS * FIELDS];
    int64_t labels[STEPS * ROWS], first = (int64_t)hand.pass * ROWS, each = ROWS / hand.j->world;
    fill(hand.j, x, labels);
    trek_scope scope = trek_scope_begin();
    hand.counts[rank] = 0;
    for (int64_t k = 0; k < each; k++)
        hand.counts[rank] += labels[first + rank * each + k] >= 0;
    trek_device device = test_device_of_rank(rank);
    trek_var *rows =
        trek_var_from(trek_tensor_from_data(x + (first + rank * each) * FIELDS, trek_dims(each, FIELDS), TREK_F64, device));
    trek_var *right = trek_var_from(trek_tensor_from_data(labels + first + rank * each, trek_dims(each), TREK_I64, device));
    trek_var *loss = trek_cross_entropy(trek_forward(hand.models[rank], rows), right);
    if (hand.j->way == REDUCED)
        trek_backward(loss);
    else
        trek_ddp_backward_weighted(hand.ddp, loss, hand.counts[rank]);
    trek_scope_end(scope);
    return trek_error_status();
}

static void train_by_hand(const job *j, record *to)
{
    hand.j = j;
    for (int r = 0; r < j->world; r++)
        hand.models[r] = net_new(test_device_of_rank(r), j);
    hand.ddp = trek_ddp_wrap(hand.models, j->world, &(trek_ddp_opts){ .overlap = j->way == SENT_EARLY ? 1 : TREK_OFF });
    assert_non_null(hand.ddp);
    for (int r = 0; r < j->world; r++) {
        trek_params *params = trek_module_params(hand.models[r]);
        hand.optimizers[r] = trek_optimizer_new(optimizer(), params);
        trek_params_free(&params);
    }
    for (hand.pass = 0; hand.pass < STEPS; hand.pass++) {
        SUCCEEDS(j->world > 1 ? trek_ranks_run(trek_ddp_ranks(hand.ddp), own_pass, NULL) : own_pass(0, NULL));
        if (j->way == REDUCED)
            SUCCEEDS(trek_ddp_reduce_gradients_weighted(hand.ddp, hand.counts));
        for (int r = 0; r < j->world; r++) {
            SUCCEEDS(trek_optimizer_step(hand.optimizers[r]));
            SUCCEEDS(trek_optimizer_zero_grad(hand.optimizers[r]));
        }
    }
    to->n = note_state(hand.models[j->world - 1], to->values, MOST);
    for (int r = 0; r < j->world; r++)
        trek_optimizer_free(&hand.optimizers[r]);
    trek_ddp_free(&hand.ddp);
}

/* --- the cases ---------------------------------------------------------------------------------------- */

static void train(job *j, record *to)
{
    to->n = 0;
    if (j->way <= GATHERED)
        train_graph(j, to);
    else
        train_by_hand(j, to);
}

/* As one device that nothing is poisoned for. What meets would pass on what is not finite: it is not poisoned. */
static void compare(job many)
{
    static record got, expected;
    job one = { .way = many.way, .world = 1, .split = many.split, .norm = many.norm };
    train(&one, &expected);
    train(&many, &got);
    assert_int_equal(got.n, expected.n);
    for (int k = 0; k < got.n; k++)
        if (!(fabs(got.values[k] - expected.values[k]) <= 1e-12 * (1 + fabs(expected.values[k]))))
            fail_msg("%s, %d ranks%s%s%s: number %d is %.17g instead of %.17g", way_names[many.way], many.world,
                     many.sync ? ", sync_batch_norm" : "", many.separate ? ", separate" : "", many.poisoned ? ", poisoned" : "",
                     k, got.values[k], expected.values[k]);
}

static void weigh_nothing(void **state)
{
    for (int w = 0; w < WAYS * 2; w++)
        for (int world = 1; world <= RANKS; world++) {
            bool separate = w % 2;
            compare((job){ .way = (way)(w / 2), .world = world, .split = world, .separate = separate });
            compare((job){ .way = (way)(w / 2), .world = world, .split = world, .separate = separate, .poisoned = true });
        }
}

/* By reduce_gradients_weighted after a plain backward it is refused (sync_batch_norm_ways). */
static void meet_and_weigh_nothing(void **state)
{
    for (int w = 0; w < WAYS * 2; w++)
        for (int world = 1; world <= RANKS && w / 2 != REDUCED; world++)
            compare((job){ .way = (way)(w / 2), .world = world, .split = world, .norm = true, .sync = true, .separate = w % 2 });
}

/* What is only said to weigh nothing, on one device: what is used has a gradient, of zeros. */
static void said_to_weigh_nothing(void **state)
{
    for (int world = 1; world <= 2; world++) {
        job j = { .world = world, .split = 1, .poisoned = true };
        trek_graph *graph = build(test_device(), &j);
        SUCCEEDS(trek_trainer_setup(
            graph, &(trek_trainer_opts){
                       .build_replica = build, .arg = &j, .devices = test_devices(), .ranks = world, .optimizer = optimizer() }));
        trek_scope scope = trek_scope_begin();
        double x[4 * FIELDS] = { 2, 0, INFINITY, 0, 1, 1, 0, 2, 1, 2, 3, INFINITY };
        trek_var *y = trek_graph_forward(graph, trek_var_from(test_values(x, trek_dims(4, FIELDS), TREK_F64)));
        SUCCEEDS(trek_graph_backward_weighted(graph, trek_mean(trek_square(y), trek_dims_all(), false), 0));
        SUCCEEDS(trek_graph_reduce(graph));
        net *m = (net *)trek_graph_module(graph)->own->children[0].module;
        trek_var *params[] = { m->table, m->extra, m->weight, m->bias };
        for (int k = 0; k < 4; k++) {
            assert_non_null(trek_var_grad(params[k]));
            double *values = test_read(trek_var_data(trek_var_grad(params[k])));
            for (int64_t i = 0; i < trek_var_numel(params[k]); i++)
                assert_true(values[i] == 0);
            free(values);
        }
        trek_scope_end(scope);
        trek_graph_free(&graph);
    }
}

int main(void)
{
    if (test_allocator_use() != TREK_OK)
        return 1;
    const struct CMUnitTest tests[] = { cmocka_unit_test(weigh_nothing), cmocka_unit_test(meet_and_weigh_nothing),
                                        cmocka_unit_test(said_to_weigh_nothing) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
