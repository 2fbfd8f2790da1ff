/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/distributed/run/measured.h"

#include "autograd/ops.h"
#include "graph/flow.h"
#include "graph/observe.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { CLASSES = 4, WIDTH = 3, MOST = 128 };

static const struct {
    trek_metric_spec spec;
    const char *pred, *target, *weight;
} measures[MEASURES] = {
    { { .kind = TREK_METRIC_KIND_ACCURACY, .classes = CLASSES }, "scores", "class", NULL },
    { { .kind = TREK_METRIC_KIND_F1, .classes = CLASSES, .ignore_index = 3 }, "scores", "class", "weight" },
    { { .kind = TREK_METRIC_KIND_AUROC }, "score", "bit", "weight" },
    { { .kind = TREK_METRIC_KIND_AUROC, .classes = CLASSES }, "scores", "class", NULL },
    { { .kind = TREK_METRIC_KIND_AVERAGE_PRECISION }, "score", "bit", NULL },
    { { .kind = TREK_METRIC_KIND_R2 }, "score", "number", "weight" },
    { { .kind = TREK_METRIC_KIND_RMSE, .outputs = WIDTH }, "x", "y", NULL },
    { { .kind = TREK_METRIC_KIND_PERPLEXITY }, "scores", "class", NULL },
    { { .kind = TREK_METRIC_KIND_CONFUSION, .classes = CLASSES }, "scores", "class", NULL },
};

const char *const measured_names[MEASURES] = { "accuracy", "f1", "area", "areas", "precision", "r2", "rmse", "perplexity",
                                               "confusion" };

static trek_tensor *weights(int64_t n)
{
    double values[MOST];
    for (int64_t k = 0; k < n; k++)
        values[k] = (double)((k + 1) % 3);
    return trek_tensor_from_data(values, trek_dims(n), TREK_F64, trek_cpu(0));
}

/* With steps: 0 .. steps - 1, each of which the first ones are. */
static trek_tensor *numbers(uint32_t stream, int64_t n, int64_t width, double steps)
{
    static double values[MOST * CLASSES];
    for (int64_t k = 0; k < n * (width ? width : 1); k++)
        values[k] = steps > 0 ? floor(steps * (0.5 + 0.5 * test_number(stream, (uint32_t)k))) : test_number(stream, (uint32_t)k);
    for (int64_t k = 0; !width && k < n && (double)k < steps; k++)
        values[k] = (double)k;
    return trek_tensor_from_data(values, width ? trek_dims(n, width) : trek_dims(n), TREK_F64, trek_cpu(0));
}

trek_dataset *measured_dataset(int64_t n)
{
    const char *names[] = { "x", "y", "scores", "class", "score", "bit", "number", "weight" };
    trek_tensor *t[] = { numbers(1, n, WIDTH, 0), numbers(2, n, WIDTH, 0), numbers(3, n, CLASSES, 8), numbers(4, n, 0, CLASSES),
                         numbers(5, n, 0, 10), numbers(6, n, 0, 2), numbers(7, n, 0, 0), weights(n) };
    for (int k = 3; k < 6; k += 2) {
        trek_tensor *labels = trek_tensor_cast(t[k], TREK_I64);
        trek_tensor_release(t[k]);
        t[k] = labels;
    }
    assert_true(n <= MOST);
    trek_dataset *dataset = trek_dataset_tensors(names, t, 8);
    for (int k = 0; k < 8; k++)
        trek_tensor_release(t[k]);
    return dataset;
}

trek_graph *measured_build(trek_device device, void *arg)
{
    trek_linear_opts o = { .in = WIDTH, .out = 1, .device = device, .dtype = TREK_F64 };
    trek_module *linear = trek_nn_linear_with(&o);
    trek_tensor *weight = trek_tensor_full(trek_dims(1, WIDTH), 0.5, TREK_F64, device);
    trek_tensor_copy_from(trek_var_data(trek_module_find(linear, "weight")), weight);
    trek_tensor_release(weight);
    return trek_flow_build(trek_flow_from(linear));
}

trek_metric *measured_new(int k) { return trek_metric_new(&measures[k].spec); }

static trek_var *field(const trek_batch *batch, const char *name) { return name ? trek_batch_get(batch, name) : NULL; }

void measured_update(trek_metric *const *metrics, const trek_batch *batch)
{
    for (int k = 0; k < MEASURES; k++)
        if (trek_metric_update_weighted(metrics[k], field(batch, measures[k].pred), field(batch, measures[k].target),
                                        field(batch, measures[k].weight)) != TREK_OK)
            fail_msg("%s: %s", measured_names[k], trek_error());
}

void measured_whole(trek_dataset *dataset, double *values)
{
    trek_metric *metrics[MEASURES];
    for (int k = 0; k < MEASURES; k++)
        metrics[k] = measured_new(k);
    trek_loader *loader = trek_loader_new(trek_dataset_retain(dataset), &(trek_loader_opts){ .batch_size = MOST, .whole = true,
                                                                                            .prefetch = TREK_ZERO });
    trek_loader_start(loader, 0);
    for (trek_batch *batch; (batch = trek_loader_next(loader));)
        measured_update(metrics, batch);
    for (int k = 0; k < MEASURES; k++) {
        values[k] = k == CONFUSION ? (double)NAN : trek_metric_compute(metrics[k], NULL);
        assert_true(k == CONFUSION || isfinite(values[k]));
        trek_metric_free(&metrics[k]);
    }
    trek_loader_free(&loader);
    assert_int_equal(trek_error_status(), TREK_OK);
}

trek_var *measured_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    for (int k = 0; k < MEASURES; k++) {
        trek_var *pred = field(batch, measures[k].pred), *target = field(batch, measures[k].target);
        trek_status status = measures[k].weight
            ? trek_record_metric_weighted(measured_names[k], &measures[k].spec, pred, target, field(batch, measures[k].weight))
            : trek_record_metric(measured_names[k], &measures[k].spec, pred, target);
        if (status != TREK_OK)
            return NULL;
    }
    trek_record_sum("samples", (double)trek_batch_size(batch));
    return trek_mean(trek_square(trek_sub(output, trek_narrow(trek_batch_get(batch, "y"), 1, 0, 1))), trek_dims_all(), false);
}

/* To the bit, but for perplexity, whose logarithms an op makes of the rows that it is given. */
void measured_compare(const char *what, int k, double value, const double *whole)
{
    double tolerance = measures[k].spec.kind == TREK_METRIC_KIND_PERPLEXITY ? 1e-13 * fabs(whole[k]) : 0;
    if (!(fabs(value - whole[k]) <= tolerance) && !(isnan(value) && isnan(whole[k])))
        fail_msg("%s: %s is %.17g instead of %.17g", what, measured_names[k], value, whole[k]);
}
