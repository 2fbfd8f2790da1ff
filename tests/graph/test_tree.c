/* SPDX-License-Identifier: Apache-2.0 */
/* Paths: modules, parameters, modes, tags and observed scalars of nested graphs, on one rank and on several; trends of
 * groups; what is left of the time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "distributed/run.h"
#include "distributed/stepper_internal.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/graph_loader.h"
#include "graph/tree.h"
#include "monitor/progress.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/params.h"
#include "nn/state.h"
#include "tensor/print.h"
#include "tests/support/noted.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

enum { IN = 4, MID = 6, ROWS = 11, RANKS = 3, MOST = 256 };

/* --- a graph in a graph in a graph --------------------------------------------------- */

static trek_module *layer(int64_t in, int64_t out, trek_device device)
{
    return trek_nn_linear_with(&(trek_linear_opts){ .in = in, .out = out, .device = device, .dtype = TREK_F64 });
}

static trek_var *sums(trek_module *self, trek_var *x)
{
    return trek_sum(x, (trek_dims_list){ 1, { 0 } }, false);
}
static trek_var *level(trek_module *self, trek_var *x)
{
    return trek_mean(x, trek_dims_all(), false);
}
static const trek_module_class sums_class = { .name = "sums", .size = sizeof(trek_module), .forward = sums };
static const trek_module_class level_class = { .name = "level", .size = sizeof(trek_module), .forward = level };

/* stem -> encoder (input tagged; scan, tanh; core (heads_0 + heads_1)) -> out */
static trek_graph *build(trek_device device, void *arg)
{
    trek_flow *core = trek_flow_new();
    trek_module *heads[2] = { layer(MID, MID, device), layer(MID, MID, device) };
    trek_flow_tag_group(trek_flow_split(core, heads, 2), "heads");
    trek_flow_tag(trek_flow_merge(core, TREK_REDUCTION_SUM), "deep");

    trek_flow *encoder = trek_flow_tag(trek_flow_new(), "given");
    trek_flow_tag(trek_flow_label(trek_flow_through(encoder, layer(MID, MID, device)), "scan"), "scan");
    trek_flow_tag(trek_flow_through(encoder, trek_nn_tanh()), "_own");
    trek_flow_tag(trek_flow_fork(encoder, trek_module_new(&sums_class)), "sums");
    trek_flow_tag(trek_flow_fork(encoder, trek_module_new(&level_class)), "level");
    trek_flow_label(trek_flow_through(encoder, trek_graph_module(trek_flow_build(core))), "core");

    trek_flow *flow = trek_flow_label(trek_flow_from(layer(IN, MID, device)), "stem");
    trek_flow_tag(flow, "encoder"); /* of another's value: the child of that name beats it */
    trek_flow_label(trek_flow_through(flow, trek_graph_module(trek_flow_build(encoder))), "encoder");
    trek_flow_label(trek_flow_through(flow, layer(MID, 2, device)), "out");
    return trek_flow_build(flow);
}

static trek_graph *made(int ranks)
{
    trek_seed(5);
    trek_graph *graph = build(trek_cpu(0), NULL);
    assert_non_null(graph);
    assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = ranks,
        .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1, .momentum = 0.9 }) }), TREK_OK);
    return graph;
}

static trek_var *input(int64_t rows)
{
    double list[ROWS * IN];
    for (int64_t k = 0; k < rows * IN; k++)
        list[k] = test_number(9, (uint32_t)k);
    return trek_var_from(trek_tensor_from_data(list, trek_dims(rows, IN), TREK_F64, trek_cpu(0)));
}

/* --- what a path names ------------------------------------------------------------------ */

static void kinds(void **state)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    static const struct {
        const char *path;
        trek_path_kind kind;
    } known[] = {
        { "", TREK_PATH_KIND_MODULE }, { NULL, TREK_PATH_KIND_MODULE }, { "stem", TREK_PATH_KIND_MODULE },
            { "encoder", TREK_PATH_KIND_MODULE },
        { "encoder.core", TREK_PATH_KIND_MODULE }, { "encoder.core.1", TREK_PATH_KIND_MODULE },
        { "encoder.scan", TREK_PATH_KIND_MODULE },
        { "encoder.given", TREK_PATH_KIND_TAG }, { "encoder.core.deep", TREK_PATH_KIND_TAG },
        { "encoder.core.heads_1", TREK_PATH_KIND_TAG },
    };
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        assert_int_equal(trek_graph_path_kind(graph, known[k].path), known[k].kind);
    assert_int_equal(trek_error_status(), TREK_OK);
    static const char *const wrong[][2] = {
        { "decoder", "the graph has no child \"decoder\"; it has stem, encoder, out" },
        { "encoder.core.nothing", "\"encoder.core\" (graph) has no child \"nothing\"; it has 0, 1" },
        { "stem.x", "\"stem\" (linear) has no child \"x\"; it has no children" },
        { "encoder._own", "has no child \"_own\"" }, { "encoder.", "contains an empty name" },
        { ".encoder", "contains an empty name" },
        { "encoder..core", "contains an empty name" }, { ".", "contains an empty name" },
    };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        assert_int_equal(trek_graph_path_kind(graph, wrong[k][0]), TREK_PATH_KIND_NONE);
        expect_error(TREK_ERR_ARGUMENT, wrong[k][1]);
        assert_null(trek_graph_at(graph, wrong[k][0]));
        trek_error_clear();
        REFUSED(trek_graph_tagged_at(graph, wrong[k][0]), TREK_ERR_ARGUMENT, "");
    }
    assert_int_equal(trek_graph_path_kind(NULL, "x"), TREK_PATH_KIND_NONE);
    expect_error(TREK_ERR_ARGUMENT, "graph");
    trek_graph_free(&graph);
}

static void listing(void **state)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    assert_int_equal(trek_graph_child_count(graph, NULL), 3);
    assert_string_equal(trek_graph_child_name(graph, "", 1), "encoder");
    assert_string_equal(trek_graph_child_name(graph, "encoder", 0), "scan");
    assert_int_equal(trek_graph_child_count(graph, "stem"), 0);
    assert_null(trek_graph_child_name(graph, "stem", 0));
    assert_null(trek_graph_child_name(graph, "stem", -1));
    assert_int_equal(trek_error_status(), TREK_OK);
    assert_int_equal(trek_graph_child_count(graph, "no"), -1);
    expect_error(TREK_ERR_ARGUMENT, "graph_child_count: ");
    REFUSED(trek_graph_child_name(graph, "no", 0), TREK_ERR_ARGUMENT, "graph_child_name: ");
    assert_int_equal(trek_graph_freeze(graph, "encoder.core"), TREK_OK);
    char *text = trek_graph_tree(graph, "encoder");
    assert_non_null(text);
    assert_string_equal(text, "(here): graph, 126  #given #scan #_own #sums #level\n"
                              "  scan: linear, 42\n"
                              "  1: tanh, 0\n"
                              "  2: sums, 0\n"
                              "  3: level, 0\n"
                              "  core: graph, 84, frozen  #heads_0 #heads_1 #deep\n"
                              "    0: linear, 42, frozen\n"
                              "    1: linear, 42, frozen\n");
    trek_string_free(&text);
    text = trek_graph_tree(graph, NULL);
    assert_non_null(strstr(text, "  encoder: graph, 126  #given #scan #sums #level\n    scan: linear, 42\n"));
    trek_string_free(&text);
    assert_null(trek_graph_tree(graph, "nowhere"));
    trek_error_clear();
    trek_graph_free(&graph);
}

/* --- parameters and modes ------------------------------------------------------------------ */

static void parameters(void **state)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    static const char *const names[] = { "encoder.core.0.weight", "encoder.core.0.bias", "encoder.core.1.weight",
                                         "encoder.core.1.bias" };
    trek_params *params = trek_graph_params_at(graph, "encoder.core");
    assert_int_equal(trek_params_count(params), 4);
    for (int k = 0; k < 4; k++) {
        assert_string_equal(trek_params_name(params, k), names[k]);
        assert_ptr_equal(trek_params_var(params, k), trek_module_find(trek_graph_module(graph), names[k]));
    }
    trek_params_free(&params);
    params = trek_graph_params_at(graph, NULL);
    assert_int_equal(trek_params_count(params), 10);
    assert_string_equal(trek_params_name(params, 0), "stem.weight");
    trek_params_free(&params);
    params = trek_graph_params_at(graph, "encoder.1");
    assert_int_equal(trek_params_count(params), 0);
    trek_params_free(&params);
    REFUSED(trek_graph_params_at(graph, "encoder.core.2"), TREK_ERR_ARGUMENT, "graph_params_at: ");
    trek_graph_free(&graph);
}

/* Frozen parts and modes hold on every rank, and everything else trains as on one. */
static void freezing_and_modes(void **state)
{
    double one[MOST], before[MOST], now[MOST];
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        trek_graph *graph = made(ranks);
        assert_false(trek_graph_is_frozen(graph, "encoder.core"));
        assert_false(trek_graph_is_frozen(graph, "encoder.1")); /* has none */
        assert_int_equal(trek_graph_freeze(graph, "encoder.core.0"), TREK_OK);
        assert_true(trek_graph_is_frozen(graph, "encoder.core.0"));
        assert_false(trek_graph_is_frozen(graph, "encoder.core"));
        assert_int_equal(trek_graph_freeze(graph, "encoder.core.1"), TREK_OK);
        assert_true(trek_graph_is_frozen(graph, "encoder.core"));
        assert_false(trek_graph_is_frozen(graph, NULL));
        assert_false(trek_graph_is_frozen(graph, "nowhere"));
        expect_error(TREK_ERR_ARGUMENT, "graph_is_frozen: ");
        assert_int_equal(trek_graph_train_at(graph, "encoder.core", false), TREK_OK);
        int n = note_params(trek_graph_module(graph), before, MOST);
        for (int step = 0; step < 3; step++) {
            trek_var *y = trek_graph_forward(graph, input(ROWS));
            assert_int_equal(trek_graph_backward(graph, trek_mean(trek_square(y), trek_dims_all(), false)), TREK_OK);
            assert_int_equal(trek_graph_step(graph), TREK_OK);
        }
        for (int r = 0; r < ranks && ranks > 1; r++) {
            trek_graph *replica = trek_graph_replica(graph, r);
            assert_false(trek_graph_at(replica, "encoder.core.1")->own->training);
            assert_true(trek_module_is_training(trek_graph_at(replica, "encoder.scan")) &&
                        trek_module_is_training(trek_graph_at(replica, "encoder")));
            assert_true(trek_graph_is_frozen(replica, "encoder.core"));
        }
        note_params(trek_graph_module(graph), now, MOST);
        int changed = 0;
        for (int k = 0; k < n; k++)
            changed += now[k] != before[k];
        assert_int_equal(changed, n - 84);
        if (ranks == 1)
            memcpy(one, now, sizeof one);
        for (int k = 0; k < n; k++)
            assert_true(fabs(now[k] - one[k]) < 1e-12);
        assert_int_equal(trek_graph_thaw(graph, "encoder"), TREK_OK);
        assert_false(trek_graph_is_frozen(graph, "encoder.core.0"));
        FAILS(trek_graph_train_at(graph, "nowhere", true), TREK_ERR_ARGUMENT, "");
        trek_graph_free(&graph);
    }
}

/* A part's file has its names from there on; loading it leaves the rest, and reaches the ranks. */
static void state_of_a_part(void **state)
{
    char path[] = "/tmp/trek_tree_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    trek_graph *graph = made(RANKS), *other = build(trek_cpu(0), NULL); /* other: of other numbers */
    double before[MOST], after[MOST], from[MOST];
    note_params(trek_graph_module(graph), before, MOST);
    int n = note_params(trek_graph_module(other), from, MOST);
    assert_int_equal(trek_state_save(trek_graph_at(other, "encoder.core"), path), TREK_OK);
    assert_int_equal(trek_state_load(trek_graph_at(graph, "encoder.core"), path, NULL), TREK_OK);
    assert_int_equal(trek_graph_parameters_changed(graph), TREK_OK);
    note_params(trek_graph_module(graph), after, MOST);
    int first = IN * MID + MID + 42; /* stem, scan */
    for (int k = 0; k < n; k++)
        assert_true(after[k] == (k >= first && k < first + 84 ? from[k] : before[k]));
    assert_int_equal(trek_state_load(trek_graph_at(graph, "encoder.scan"), path, NULL), TREK_ERR_ARGUMENT); /* not its names */
    trek_error_clear();
    unlink(path);
    trek_graph_free(&graph);
    trek_graph_free(&other);
}

/* --- tags ----------------------------------------------------------------------------------- */

static double sum_of(trek_var *v)
{
    return trek_var_item(trek_sum(trek_mul(v, v), trek_dims_all(), false));
}

/* Joined over the ranks, as values and for gradients; what cannot be joined says so. */
static void tags_on_all_ranks(void **state)
{
    static const char *const paths[] = { "encoder.given", "encoder.scan", "encoder.level", "encoder.core.deep",
                                         "encoder.core.heads_0", "encoder.core.heads_1" };
    enum { PATHS = sizeof paths / sizeof *paths };
    double values[PATHS], params[MOST], now[MOST], x_grads[2];
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        trek_graph *graph = made(ranks);
        for (int k = 0; k < PATHS; k++)
            assert_null(trek_graph_tagged_at(graph, paths[k]));
        assert_int_equal(trek_error_status(), TREK_OK); /* not run yet */
        trek_var *x = trek_var_new(trek_var_data(input(ROWS)), true);
        trek_var *y = trek_graph_forward(graph, x), *loss = trek_mean(trek_square(y), trek_dims_all(), false);
        for (int k = 0; k < PATHS; k++) {
            trek_var *value = trek_graph_tagged_at(graph, paths[k]);
            assert_non_null(value);
            if (k != 2) {
                assert_int_equal(trek_var_size(value, 0), ROWS);
                assert_int_equal(trek_var_size(value, 1), MID);
            }
            if (ranks == 1)
                values[k] = sum_of(value);
            assert_true(fabs(sum_of(value) - values[k]) < 1e-12);
            loss = trek_add(loss, trek_mul_scalar(trek_mean(trek_square(value), trek_dims_all(), false), 0.3));
        }
        if (ranks == 1) {
            assert_non_null(trek_graph_tagged_at(graph, "encoder.sums"));
        } else {
            REFUSED(trek_graph_tagged_at(graph, "encoder.sums"), TREK_ERR_UNSUPPORTED,
                    "\"encoder.sums\": the ranks' values do not fit together");
            REFUSED(trek_graph_tagged(trek_graph_from_module(trek_graph_at(graph, "encoder")), "sums"), TREK_ERR_UNSUPPORTED,
                    "do not fit together");
        }
        REFUSED(trek_graph_tagged_at(graph, "encoder"), TREK_ERR_ARGUMENT,
                "\"encoder\" is a module, and the tag of that name belongs to another module's value");
        assert_non_null(trek_graph_tagged(graph, "encoder"));
        REFUSED(trek_graph_tagged_at(graph, "encoder._own"), TREK_ERR_ARGUMENT, "nothing is tagged \"encoder._own\"");
        REFUSED(trek_graph_tagged_at(graph, "encoder.core"), TREK_ERR_ARGUMENT, "it is a module");
        assert_int_equal(trek_graph_backward(graph, loss), TREK_OK);
        assert_int_equal(trek_graph_step(graph), TREK_OK);
        int n = note_params(trek_graph_module(graph), now, MOST);
        if (ranks == 1)
            memcpy(params, now, sizeof params);
        for (int k = 0; k < n; k++)
            assert_true(fabs(now[k] - params[k]) < 1e-12);
        trek_var_release(x);
        x_grads[0] = 0; /* and for the input: a tag that is a nested graph's input is no leaf of the ranks' here */
        x = trek_var_new(trek_var_data(input(ROWS)), true);
        trek_graph_forward(graph, x);
        trek_var *given = trek_graph_tagged_at(graph, "encoder.given");
        assert_int_equal(trek_backward(trek_sum(trek_square(given), trek_dims_all(), false)), TREK_OK);
        x_grads[1] = sum_of(trek_var_grad(x));
        assert_true(x_grads[1] > x_grads[0]);
        assert_int_equal(trek_graph_zero_grad(graph), TREK_OK);
        assert_non_null(trek_graph_forward(graph, input(2))); /* fewer rows than ranks */
        assert_int_equal(trek_var_size(trek_graph_tagged_at(graph, "encoder.scan"), 0), 2);
        trek_var_release(x);
        trek_graph_free(&graph);
        assert_int_equal(trek_error_status(), TREK_OK);
    }
}

/* The nested graph's input is the rank's own leaf, which needs a gradient. */
static trek_graph *build_leaf(trek_device device, void *arg)
{
    trek_flow *inner = trek_flow_through(trek_flow_tag(trek_flow_new(), "given"), layer(IN, 2, device));
    return trek_flow_build(trek_flow_label(trek_flow_from(trek_graph_module(trek_flow_build(inner))), "inner"));
}

static void tag_of_the_input(void **state)
{
    double expected = 0;
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        trek_seed(2);
        trek_graph *graph = build_leaf(trek_cpu(0), NULL);
        assert_int_equal(trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build_leaf, .ranks = ranks }), TREK_OK);
        trek_var *x = trek_var_new(trek_var_data(input(ROWS)), true), *y = trek_graph_forward(graph, x);
        trek_var *given = trek_graph_tagged_at(graph, "inner.given");
        assert_int_equal(trek_var_size(given, 0), ROWS);
        trek_var *loss = trek_add(trek_sum(trek_square(given), trek_dims_all(), false),
                                  trek_sum(trek_square(y), trek_dims_all(), false));
        assert_int_equal(trek_backward(loss), TREK_OK);
        double norm = sum_of(trek_var_grad(x));
        expected = ranks == 1 ? norm : expected;
        assert_true(fabs(norm - expected) < 1e-10);
        trek_var_release(x);
        trek_graph_free(&graph);
    }
}

/* --- observed scalars ------------------------------------------------------------------------- */

static void records(void **state)
{
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        trek_graph *graph = made(ranks);
        FAILS(trek_graph_collect_at(graph, "encoder.scan", TREK_REDUCTION_MEAN), TREK_ERR_STATE, "");
        trek_graph_forward(graph, input(ROWS));
        assert_int_equal(trek_graph_collect_at(graph, "encoder.scan", TREK_REDUCTION_NORM), TREK_OK);
        assert_int_equal(trek_graph_collect_at(graph, "encoder.level", TREK_REDUCTION_MEAN), TREK_OK);
        assert_int_equal(trek_graph_collect_group(graph, "encoder.core.heads", TREK_REDUCTION_MAX), TREK_OK);
        FAILS(trek_graph_collect_group(graph, "encoder.core.deep", TREK_REDUCTION_MAX), TREK_ERR_ARGUMENT,
              "nothing is tagged \"encoder.core.deep_0\"");
        assert_int_equal(trek_graph_record_at(graph, "encoder.loss", 3), TREK_OK);
        assert_int_equal(trek_graph_record_at(graph, "encoder.loss", 5), TREK_OK);
        assert_int_equal(trek_graph_record_at(graph, "loss", 7), TREK_OK);
        assert_int_equal(trek_graph_record_at(graph, "stem.loss", 7), TREK_ERR_ARGUMENT); /* no graph */
        trek_error_clear();
        FAILS(trek_graph_record_at(graph, "encoder.a\tb", 7), TREK_ERR_ARGUMENT, "");
        assert_int_equal(trek_trend_count(trek_graph_trend_at(graph, "encoder.loss")), 0);
        double norm = sqrt(sum_of(trek_graph_tagged_at(graph, "encoder.scan")));
        assert_int_equal(trek_graph_flush_local(graph), TREK_OK);
        assert_float_equal(trek_trend_latest(trek_graph_trend_at(graph, "loss")), 7, 0);
        assert_int_equal(trek_trend_count(trek_graph_trend_at(graph, "encoder.loss")), 0); /* goes on */
        assert_int_equal(trek_graph_record_at(graph, "encoder.loss", 10), TREK_OK);
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
        assert_int_equal(trek_graph_flushes(graph), 3);
        assert_float_equal(trek_trend_latest(trek_graph_trend_at(graph, "encoder.loss")), 6, 0);
        assert_int_equal(trek_trend_count(trek_graph_trend_at(graph, "encoder.loss")), 1);
        assert_float_equal(trek_trend_latest(trek_graph_trend_at(graph, "encoder.scan")), norm, 1e-12);
        assert_ptr_equal(trek_graph_trend_at(graph, "encoder.loss"),
                         trek_graph_trend(trek_graph_from_module(trek_graph_at(graph, "encoder")), "loss"));
        assert_null(trek_graph_trend_at(graph, "encoder.nothing"));
        assert_null(trek_graph_trend_at(graph, "nowhere.loss.x.y") ? "" : NULL);
        trek_error_clear();
        trek_graph_free(&graph);
    }
}

typedef struct listed {
    char text[600];
} listed;

static trek_status list(const char *name, double latest, const trek_trend *trend, void *arg)
{
    listed *to = arg;
    size_t length = strlen(to->text);
    snprintf(to->text + length, sizeof to->text - length, "%s=%g/%d ", name, latest, (int)trek_trend_count(trend));
    return strcmp(name, "stop") == 0 ? TREK_ERR_STATE : TREK_OK;
}

static void metrics_in_order(void **state)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    static const char *const names[] = { "z", "encoder.core.b", "a", "encoder.y", "encoder._hidden", "encoder.core.a", "_root" };
    for (int k = 0; k < 7; k++)
        assert_int_equal(trek_graph_record_at(graph, names[k], k), TREK_OK);
    listed to = { "" };
    assert_int_equal(trek_graph_each_metric(graph, list, &to), TREK_OK);
    assert_string_equal(to.text, "");
    assert_int_equal(trek_graph_flush(graph), TREK_OK);
    assert_int_equal(trek_graph_each_metric(graph, list, &to), TREK_OK);
    assert_string_equal(to.text, "z=0/1 a=2/1 _root=6/1 encoder.y=3/1 encoder.core.b=1/1 encoder.core.a=5/1 ");
    assert_int_equal(trek_graph_record(graph, "stop", 1), TREK_OK);
    assert_int_equal(trek_graph_flush(graph), TREK_OK);
    assert_int_equal(trek_graph_each_metric(graph, list, &to), TREK_ERR_STATE);
    FAILS(trek_graph_each_metric(graph, NULL, &to), TREK_ERR_ARGUMENT, "");
    trek_graph_free(&graph);
}

/* Of a training function, weighed by the rows of each rank, as on one. */
static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_var *scan = trek_graph_tagged_at(graph, "encoder.scan"); /* the rank's own */
    if (!scan || trek_var_size(scan, 0) != trek_var_size(output, 0) ||
        trek_graph_collect_at(graph, "encoder.scan", TREK_REDUCTION_MEAN) != TREK_OK ||
        trek_graph_record_at(graph, "encoder.core.mine", trek_var_item(trek_mean(scan, trek_dims_all(), false))) != TREK_OK)
        return NULL;
    if (trek_graph_collect_at(graph, "encoder.scan", TREK_REDUCTION_MAX) != TREK_ERR_UNSUPPORTED)
        return NULL;
    trek_error_clear();
    return trek_mean(trek_square(output), trek_dims_all(), false);
}

static void records_of_a_training_function(void **state)
{
    double one[2] = { 0, 0 }, data[ROWS * IN];
    for (int k = 0; k < ROWS * IN; k++)
        data[k] = test_number(21, (uint32_t)k);
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        trek_graph *graph = made(ranks);
        trek_tensor *x = trek_tensor_from_data(data, trek_dims(ROWS, IN), TREK_F64, trek_cpu(0));
        trek_dataset *dataset = trek_dataset_tensors((const char *const[]){ "x" }, &x, 1);
        trek_loader *loader = trek_loader_new(dataset, &(trek_loader_opts){ .batch_size = ROWS });
        assert_non_null(loader);
        assert_int_equal(trek_graph_set_loader(graph, loader, "x"), TREK_OK);
        assert_int_equal(trek_graph_set_loss(graph, loss_of, NULL), TREK_OK);
        assert_int_equal(trek_graph_start(graph, 0), TREK_OK);
        for (trek_batch *batch; (batch = trek_graph_next(graph)); trek_graph_step(graph))
            if (!trek_graph_train_batch(graph, batch))
                fail_msg("%s", trek_error());
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
        double now[2] = { trek_trend_latest(trek_graph_trend_at(graph, "encoder.scan")),
                          trek_trend_latest(trek_graph_trend_at(graph, "encoder.core.mine")) };
        if (ranks == 1)
            memcpy(one, now, sizeof one);
        assert_true(one[0] != 0 && fabs(now[0] - one[0]) < 1e-12 && fabs(now[1] - one[1]) < 1e-12);
        trek_graph_free(&graph);
        trek_loader_free(&loader);
        trek_tensor_release(x);
    }
}

static double told[2], told_evaluation;

static trek_status on_metrics(const trek_epoch_metrics *metrics, void *arg)
{
    told[metrics->epoch] = trek_metrics_get(metrics, "encoder.core.mine");
    told_evaluation = trek_metrics_get(metrics, "evaluation.encoder.scan");
    return TREK_OK;
}

/* A run tells what nested graphs record by its path; what an evaluation records is no part of the epoch behind it. */
static void metrics_of_a_run(void **state)
{
    double data[ROWS * IN], expected[2] = { 0, 0 };
    for (int k = 0; k < ROWS * IN; k++)
        data[k] = test_number(21, (uint32_t)k);
    trek_tensor *x = trek_tensor_from_data(data, trek_dims(ROWS, IN), TREK_F64, trek_cpu(0));
    for (int evaluates = 0; evaluates < 2; evaluates++) {
        trek_dataset *dataset = trek_dataset_tensors((const char *const[]){ "x" }, &x, 1);
        trek_run *run = trek_trainer_run(&(trek_run_opts){ .build_model = build, .train_step = loss_of, .dataset = dataset,
            .evaluation = evaluates ? dataset : NULL, .input = "x", .batch_size = 4, .shuffle = true, .epochs = 2, .seed = 3,
            .on_metrics = on_metrics,
            .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }), .trainer = { .ranks = 2 } });
        trek_state *final = run ? trek_run_join(run) : NULL;
        if (!final)
            fail_msg("%s", trek_error());
        trek_state_free(&final);
        trek_dataset_free(&dataset);
        if (!evaluates)
            memcpy(expected, told, sizeof told);
        assert_true(told[0] == expected[0] && told[1] == expected[1] && told[0] != told[1] && !isnan(told[1]));
        assert_int_equal(isnan(told_evaluation), !evaluates);
    }
    trek_tensor_release(x);
}

/* --- groups ---------------------------------------------------------------------------------- */

static void point(trek_graph *graph, const char *name, double value)
{
    assert_int_equal(trek_graph_record_at(graph, name, value), TREK_OK);
}

static void groups(void **state)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    const trek_trend *trends[4] = { NULL };
    assert_int_equal(trek_graph_trend_group(graph, "encoder.core.heads", trends, 4), 2); /* tags without points so far */
    assert_true(!trends[0] && !trends[1]);
    assert_false(trek_trends_all(trends, 2, TREK_TREND_STATE_STALLED, 0, 1));
    assert_false(trek_trends_any(trends, 2, TREK_TREND_STATE_IMPROVING, 0, 0));
    for (int k = 0; k < 5; k++) {
        point(graph, "encoder.core.heads_0", 10 - 2 * k); /* falls by 2 */
        point(graph, "encoder.core.heads_1", 4);          /* stays */
        point(graph, "free_0", k);
        point(graph, "free_1", -k);
        point(graph, "free_3", 0); /* free_2 is missing */
        assert_int_equal(trek_graph_flush(graph), TREK_OK);
    }
    assert_int_equal(trek_graph_trend_group(graph, "encoder.core.heads", trends, 1), 2);
    assert_null(trends[1]);
    assert_int_equal(trek_graph_trend_group(graph, "encoder.core.heads", trends, 4), 2);
    double slopes[2];
    trek_trends_slopes(trends, 2, 0, slopes);
    assert_float_equal(slopes[0], -2, 1e-12);
    assert_float_equal(slopes[1], 0, 1e-12);
    assert_float_equal(trek_trends_mean_slope(trends, 2, 3), -1, 1e-12);
    assert_float_equal(trek_trends_mean_slope(NULL, 0, 3), 0, 0);
    static const struct {
        trek_trend_state state;
        double tolerance;
        bool all, any;
    } expected[] = { { TREK_TREND_STATE_STALLED, 0.1, false, true }, { TREK_TREND_STATE_STALLED, 3, true, true },
                     { TREK_TREND_STATE_IMPROVING, 0, false, true }, { TREK_TREND_STATE_CONVERGED, 0.1, false, true },
                     { TREK_TREND_STATE_CONVERGED, 9, true, true }, { TREK_TREND_STATE_STALLED, 0, false, false } };
    for (int k = 0; k < 6; k++) {
        assert_int_equal(trek_trends_all(trends, 2, expected[k].state, 0, expected[k].tolerance), expected[k].all);
        assert_int_equal(trek_trends_any(trends, 2, expected[k].state, 0, expected[k].tolerance), expected[k].any);
    }
    assert_false(trek_trends_all(trends, 2, TREK_TREND_STATE_STALLED, 6, 3)); /* fewer points than the window */
    assert_false(trek_trends_all(trends, 0, TREK_TREND_STATE_STALLED, 0, 3) ||
                 trek_trends_any(trends, 0, TREK_TREND_STATE_STALLED, 0, 3));
    assert_int_equal(trek_graph_trend_group(graph, "free", trends, 4), 2);
    assert_int_equal(trek_graph_trend_group(graph, "none", NULL, 0), 0);
    assert_int_equal(trek_graph_trend_group(graph, "stem.none", NULL, 0), -1);
    trek_error_clear();

    const trek_trend *kept = trek_graph_trend_at(graph, "encoder.core.heads_0");
    point(graph, "encoder.core.heads_0", 1);
    assert_int_equal(trek_graph_reset_trend(graph, "encoder.core.heads_0"), TREK_OK);
    assert_int_equal(trek_trend_count(kept), 0);
    assert_int_equal(trek_trend_count(trek_graph_trend(graph, "free_0")), 5);
    assert_int_equal(trek_graph_flush(graph), TREK_OK); /* what was pending comes */
    assert_true(trek_trend_count(kept) == 1 && trek_trend_latest(kept) == 1);
    assert_int_equal(trek_graph_reset_trends(graph), TREK_OK);
    assert_int_equal(trek_trend_count(kept) + trek_trend_count(trek_graph_trend(graph, "free_0")), 0);
    FAILS(trek_graph_reset_trend(graph, "encoder.never"), TREK_ERR_ARGUMENT, "nothing was recorded as \"encoder.never\"");
    trek_graph_free(&graph);
}

/* --- time that is left -------------------------------------------------------------------------- */

static void eta(void **state)
{
    assert_float_equal(trek_eta(6, 2, 5), 9, 1e-12);
    assert_float_equal(trek_eta(6, 5, 5), 0, 0);
    assert_true(isnan(trek_eta(6, 0, 5)) && isnan(trek_eta(6, 6, 5)) && isnan(trek_eta(-1, 1, 5)));
    trek_graph *graph = build(trek_cpu(0), NULL);
    assert_true(isnan(trek_graph_eta(graph, 10)) && isnan(trek_graph_eta(NULL, 10)));
    trek_graph_forward(graph, input(2));
    usleep(20000);
    trek_graph_flush(graph);
    double left = trek_graph_eta(graph, 4); /* 3 more of at least 20 ms */
    assert_true(left >= 0.06 && left < 60);
    usleep(20000); /* counts from flush to flush */
    assert_true(trek_graph_eta(graph, 4) == left);
    assert_true(trek_graph_eta(graph, 1) == 0);
    FILE *stream = fopen("/dev/null", "w");
    trek_progress *p = trek_progress_new_with(&(trek_progress_opts){ .epochs = 4, .batches = 10, .stream = stream });
    assert_true(isnan(trek_progress_eta(p, 0, 0)) && isnan(trek_progress_eta(NULL, 1, 0)));
    usleep(20000);
    left = trek_progress_eta(p, 0, 5);
    double later = trek_progress_eta(p, 2, 0);
    assert_true(left >= 0.02 * 7 && later >= 0.02 && later < left);
    trek_progress_free(&p);
    fclose(stream);
    trek_graph_free(&graph);
}

int main(void)
{
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    const struct CMUnitTest tests[] = {
        TEST(kinds), TEST(listing), TEST(parameters), TEST(freezing_and_modes), TEST(state_of_a_part),
        TEST(tags_on_all_ranks), TEST(tag_of_the_input), TEST(records), TEST(metrics_in_order),
        TEST(records_of_a_training_function), TEST(metrics_of_a_run), TEST(groups), TEST(eta),
    };
    return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}
