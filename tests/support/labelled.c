/* SPDX-License-Identifier: Apache-2.0 */
/* Samples with labels, and what is trained on them. */
#include "tests/support/labelled.h"

#include "autograd/losses.h"
#include "autograd/ops.h"
#include "graph/passes.h"
#include "tests/support/noted.h"
#include "tests/support/support.h"

/* Takes both tensors' references. */
static trek_dataset *labelled(trek_tensor *x, trek_tensor *labels)
{
    trek_tensor *fields[] = { x, labels };
    trek_dataset *dataset = trek_dataset_tensors((const char *[]){ "x", "label" }, fields, 2);
    trek_tensor_release(x);
    trek_tensor_release(labels);
    assert_non_null(dataset);
    return dataset;
}

trek_dataset *labelled_rows(uint32_t stream, int samples, int width, int classes)
{
    float *x = malloc(sizeof(float) * (size_t)samples * (size_t)width);
    int64_t *labels = malloc(sizeof(int64_t) * (size_t)samples);
    for (int k = 0; k < samples * width; k++)
        x[k] = test_number(stream, (uint32_t)k);
    for (int k = 0; k < samples; k++)
        labels[k] = k % classes;
    trek_dataset *dataset = labelled(trek_tensor_from_data(x, trek_dims(samples, width), TREK_F32, trek_cpu(0)),
                                     trek_tensor_from_data(labels, trek_dims(samples), TREK_I64, trek_cpu(0)));
    free(x);
    free(labels);
    return dataset;
}

trek_dataset *labelled_tokens(int samples, int length, int vocabulary)
{
    float *x = malloc(sizeof(float) * (size_t)samples * (size_t)length);
    int64_t *next = malloc(sizeof(int64_t) * (size_t)samples);
    for (int k = 0; k < samples * length; k++)
        x[k] = (float)((k * 7 + k / 5) % vocabulary);
    for (int k = 0; k < samples; k++)
        next[k] = (int64_t)(x[k * length] * 3) % vocabulary;
    trek_dataset *dataset = labelled(trek_tensor_from_data(x, trek_dims(samples, length), TREK_F32, trek_cpu(0)),
                                     trek_tensor_from_data(next, trek_dims(samples), TREK_I64, trek_cpu(0)));
    free(x);
    free(next);
    return dataset;
}

trek_var *labelled_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg)
{
    return trek_cross_entropy(trek_cast(output, TREK_F32), trek_batch_get(batch, "label"));
}

trek_status labelled_epoch(trek_graph *graph, int64_t number, int passes)
{
    int made = 0;
    trek_graph_start(graph, number);
    for (trek_batch *batch; (batch = trek_graph_next(graph));) {
        trek_graph_train_batch(graph, batch);
        if (++made >= passes) {
            trek_graph_step(graph);
            made = 0;
        }
    }
    if (made > 0)
        trek_graph_step(graph);
    return trek_error_status();
}

enum { MOST = sizeof((elements){ 0 }.values) / sizeof(double) };

void elements_of_params(trek_graph *graph, elements *to) { to->n = note_params(trek_graph_module(graph), to->values, MOST); }

void elements_of_state(trek_graph *graph, elements *to) { to->n = note_state(trek_graph_module(graph), to->values, MOST); }

void elements_expect(const elements *got, const elements *expected, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    assert_int_equal(got->n, expected->n);
    for (int k = 0; k < got->n; k++)
        if (got->values[k] != expected->values[k])
            fail_msg("%s: number %d is %.17g instead of %.17g", what, k, got->values[k], expected->values[k]);
}
