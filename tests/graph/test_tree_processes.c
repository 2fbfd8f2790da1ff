/* SPDX-License-Identifier: Apache-2.0 */
/* What nested graphs record in a training function, over processes of several ranks each: the numbers of one device. */
#include "autograd/ops.h"
#include "data/loader.h"
#include "distributed/comm/comm.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/graph_loader.h"
#include "graph/tree.h"
#include "nn/layers.h"
#include "tensor/log.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { IN = 4, ROWS = 13, EPOCHS = 2 };

static trek_graph *build(trek_device device, void *arg)
{
    trek_linear_opts square = { .in = IN, .out = IN, .device = device, .dtype = TREK_F64 };
    trek_flow *core = trek_flow_tag(trek_flow_from(trek_nn_linear_with(&square)), "deep");
    trek_flow *encoder = trek_flow_tag(trek_flow_from(trek_nn_linear_with(&square)), "scan");
    trek_flow_label(trek_flow_through(encoder, trek_graph_module(trek_flow_build(core))), "core");
    return trek_flow_build(trek_flow_label(trek_flow_from(trek_graph_module(trek_flow_build(encoder))), "encoder"));
}

static trek_var *loss_of(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    trek_var *loss = trek_mean(trek_square(output), trek_dims_all(), false);
    bool fine = trek_graph_collect_at(graph, "encoder.scan", TREK_REDUCTION_MEAN) == TREK_OK &&
        trek_graph_collect_at(graph, "encoder.core.deep", TREK_REDUCTION_MEAN) == TREK_OK &&
        trek_graph_record_at(graph, "encoder.loss", trek_var_item(loss)) == TREK_OK &&
        trek_record_scalar("loss", loss) == TREK_OK;
    return fine ? loss : NULL;
}

/* Points of the last epoch: of the graph itself, and of those inside. */
static trek_status train(trek_comm *comm, int ranks, double points[4])
{
    double data[ROWS * IN];
    for (int k = 0; k < ROWS * IN; k++)
        data[k] = test_number(21, (uint32_t)k);
    trek_seed(5);
    trek_graph *graph = build(trek_cpu(0), NULL);
    trek_tensor *x = trek_tensor_from_data(data, trek_dims(ROWS, IN), TREK_F64, trek_cpu(0));
    trek_status status = trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = ranks, .comm = comm,
        .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }) });
    trek_loader *loader = trek_loader_new(trek_dataset_tensors((const char *const[]){ "x" }, &x, 1),
                                          &(trek_loader_opts){ .batch_size = 8 });
    trek_graph_set_loader(graph, loader, "x");
    trek_graph_set_loss(graph, loss_of, NULL);
    for (int64_t epoch = 0; epoch < EPOCHS && status == TREK_OK; epoch++) {
        trek_graph_start(graph, epoch);
        for (trek_batch *batch; (batch = trek_graph_next(graph)); trek_graph_step(graph))
            trek_graph_train_batch(graph, batch);
        status = trek_graph_flush(graph);
    }
    static const char *const names[] = { "loss", "encoder.loss", "encoder.scan", "encoder.core.deep" };
    for (int k = 0; k < 4; k++)
        points[k] = trek_trend_count(trek_graph_trend_at(graph, names[k])) == EPOCHS
            ? trek_trend_latest(trek_graph_trend_at(graph, names[k])) : NAN;
    trek_graph_free(&graph);
    trek_loader_free(&loader);
    trek_tensor_release(x);
    return status;
}

static int play(const part *me)
{
    double p[4];
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                                        .port = me->port, .token = "sesame", .deadline_s = 20 });
    trek_status status = comm ? train(comm, atoi(me->detail), p) : trek_error_status();
    if (status == TREK_OK)
        printf("points %.17g %.17g %.17g %.17g\n", p[0], p[1], p[2], p[3]);
    else
        printf("%s\n", trek_error());
    trek_comm_free(&comm);
    return status != TREK_OK;
}

static void over_processes(void **state)
{
    static world w;
    double one[4], p[4] = { 0 };
    assert_int_equal(train(NULL, 1, one), TREK_OK);
    assert_true(one[0] == one[1] && one[2] != 0 && one[3] != 0);
    for (int ranks = 1; ranks <= 2; ranks++) {
        processes_run_all(&w, 2, "train", ranks == 1 ? "1" : "2", -1, NULL);
        for (int k = 0; k < 2; k++) {
            const char *line = strstr(w.text[k], "points ");
            if (w.code[k] != 0 || !line || sscanf(line, "points %lf %lf %lf %lf", &p[0], &p[1], &p[2], &p[3]) != 4)
                FAIL_WORLD(&w, "process %d ended with %d", k, w.code[k]);
            for (int j = 0; j < 4; j++)
                assert_true(fabs(p[j] - one[j]) < 1e-12);
        }
    }
}

int main(void)
{
    part me;
    trek_log_set(TREK_LOG_LEVEL_ERROR, NULL, NULL);
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = { cmocka_unit_test(over_processes) };
    return cmocka_run_group_tests_name("tree_processes", tests, NULL, NULL);
}
