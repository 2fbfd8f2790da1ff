/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of tensors in a state file, for check_metrics.py: metrics_tool FILE, then a line of stdin each:
 *   RANKS BATCH PRED TARGET WEIGHT KIND KEY=NUMBER...     WEIGHT may be "-"; RANKS 0: a metric by itself
 * answered by the values, or "error: ...". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trek.h"

static const char *const kinds[] = { "accuracy", "precision", "recall", "f1", "confusion", "auroc", "average_precision", "mse",
                                     "rmse",
                                     "mae", "r2", "perplexity" };

typedef struct request {
    int ranks;
    int64_t batch;
    char pred[32], target[32], weight[32];
    trek_metric_spec spec;
    trek_tensor *values;
} request;

static bool set(trek_metric_spec *s, const char *key, double value)
{
    if (!strcmp(key, "classes"))
        s->classes = (int64_t)value;
    else if (!strcmp(key, "multilabel"))
        s->multilabel = value != 0;
    else if (!strcmp(key, "average"))
        s->average = (trek_metric_average)value;
    else if (!strcmp(key, "top_k"))
        s->top_k = (int64_t)value;
    else if (!strcmp(key, "logits"))
        s->logits = value != 0;
    else if (!strcmp(key, "ignore_index"))
        s->ignore_index = (int64_t)value;
    else if (!strcmp(key, "beta"))
        s->beta = value;
    else if (!strcmp(key, "zero_division"))
        s->zero_division = value;
    else if (!strcmp(key, "outputs"))
        s->outputs = (int64_t)value;
    else
        return false;
    return true;
}

static bool read_request(char *line, request *r)
{
    char kind[32];
    long long batch;
    int used = 0;
    *r = (request){ 0 };
    if (sscanf(line, "%d %lld %31s %31s %31s %31s%n", &r->ranks, &batch, r->pred, r->target, r->weight, kind, &used) != 6)
        return false;
    r->batch = batch;
    int k = 0;
    while (k < 12 && strcmp(kinds[k], kind) != 0)
        k++;
    r->spec.kind = (trek_metric_kind)k;
    for (char *word = strtok(line + used, " \n"); word; word = strtok(NULL, " \n")) {
        char *value = strchr(word, '=');
        if (!value)
            return false;
        *value = '\0';
        if (!set(&r->spec, word, atof(value + 1)))
            return false;
    }
    return k < 12;
}

static trek_dataset *dataset_of(const trek_state *state, const request *r)
{
    const char *names[] = { "pred", "target", "x", "weight" };
    trek_tensor *pred = trek_state_find(state, r->pred), *weight = trek_state_find(state, r->weight);
    trek_tensor *x = pred ? trek_tensor_zeros(trek_dims(trek_tensor_shape(pred).sizes[0], 1), TREK_F32, trek_cpu(0)) : NULL;
    trek_tensor *tensors[] = { pred, trek_state_find(state, r->target), x, weight };
    trek_dataset *dataset = trek_dataset_tensors(names, tensors, weight ? 4 : 3);
    trek_tensor_release(x);
    return dataset;
}

static trek_var *weight_of(const request *r, const trek_batch *batch)
{
    return strcmp(r->weight, "-") != 0 ? trek_batch_get(batch, "weight") : NULL;
}

static trek_var *record(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    (void)graph;
    const request *r = arg;
    trek_status status = trek_record_metric_weighted("metric", &r->spec, trek_batch_get(batch, "pred"),
                                                     trek_batch_get(batch, "target"),
                                                     weight_of(r, batch));
    return status == TREK_OK ? trek_mean(output, trek_dims_all(), false) : NULL;
}

static trek_graph *build(trek_device device, void *arg)
{
    (void)arg;
    return trek_flow_build(trek_flow_from(trek_nn_linear(1, 1, device)));
}

static void on_ranks(trek_loader *loader, request *r)
{
    trek_graph *graph = build(trek_cpu(0), NULL);
    trek_status status = trek_graph_set_loader(graph, loader, "x");
    if (status == TREK_OK)
        status = trek_graph_set_loss(graph, record, r);
    if (status == TREK_OK)
        status = trek_trainer_setup(graph, &(trek_trainer_opts){ .build_replica = build, .ranks = r->ranks });
    if (status == TREK_OK)
        status = trek_graph_train(graph, false);
    if (status == TREK_OK)
        status = trek_graph_start(graph, 0);
    for (trek_batch *batch; status == TREK_OK && (batch = trek_graph_next(graph));)
        status = trek_graph_train_batch(graph, batch) ? TREK_OK : trek_error_status();
    if (status == TREK_OK && trek_graph_flush(graph) == TREK_OK)
        r->values = trek_graph_metric_values(graph, "metric");
    trek_graph_free(&graph);
}

static void alone(trek_loader *loader, request *r)
{
    trek_metric *m = trek_metric_new(&r->spec);
    trek_status status = m ? trek_loader_start(loader, 0) : trek_error_status();
    for (trek_batch *batch; status == TREK_OK && (batch = trek_loader_next(loader));)
        status = trek_metric_update_weighted(m, trek_batch_get(batch, "pred"), trek_batch_get(batch, "target"),
                                             weight_of(r, batch));
    if (status == TREK_OK)
        r->values = trek_metric_values(m, NULL);
    trek_metric_free(&m);
}

static void answer(const trek_state *state, request *r)
{
    trek_loader *loader = trek_loader_new(dataset_of(state, r), &(trek_loader_opts){ .batch_size = r->batch, .shuffle = true });
    if (loader && r->ranks)
        on_ranks(loader, r);
    else if (loader)
        alone(loader, r);
    trek_loader_free(&loader);
    int64_t n = r->values ? trek_tensor_numel(r->values) : 0;
    double *values = malloc((size_t)(n + 1) * sizeof *values);
    if (values && r->values && trek_tensor_to_host(r->values, TREK_F64, values, (size_t)n * sizeof *values) == TREK_OK)
        for (int64_t k = 0; k < n; k++)
            printf("%.17g%c", values[k], k + 1 < n ? ' ' : '\n');
    else
        printf("error: %s\n", trek_error());
    fflush(stdout);
    free(values);
    trek_tensor_release(r->values);
    trek_error_clear();
}

int main(int argc, char **argv)
{
    char line[512];
    request r;
    trek_state *state = argc == 2 ? trek_state_read(argv[1]) : NULL;
    if (!state)
        return 2;
    while (fgets(line, sizeof line, stdin)) {
        if (!read_request(line, &r))
            return 2;
        answer(state, &r);
    }
    trek_state_free(&state);
    return 0;
}
