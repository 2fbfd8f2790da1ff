/* SPDX-License-Identifier: Apache-2.0 */
/* How good generated digits are (the inception score of Salimans and others, 2016): whether each can be recognised, and whether
 * all classes occur. A small network that has been trained on real digits recognises them. */
#ifndef TREK_EXAMPLES_SCORE_H
#define TREK_EXAMPLES_SCORE_H

#include <math.h>

#include "trek.h"

enum { SCORE_BATCH = 50, SCORE_EPOCHS = 6 };

/* Pixels in [0, 1] as they are drawn: in [-1, 1]. */
static inline trek_var *score_pixels(trek_var *images) { return trek_add_scalar(trek_mul_scalar(images, 2), -1); }

static inline trek_module *score_layer(int64_t in, int64_t out, trek_device device)
{
    return trek_nn_conv2d_with(&(trek_conv2d_opts){
        .in = in, .out = out, .kernel = { 4, 4 }, .stride = { 2, 2 }, .padding = { 1, 1 }, .device = device });
}

/* What tells the classes of drawn digits: a network that has learnt real ones, in their order, from values of its own. The
 * caller's; NULL and an error on failure. */
static inline trek_module *score_reader(trek_dataset *digits)
{
    trek_device device = trek_cpu(0);
    trek_module *reader = trek_nn_sequential((trek_module *[]){
        score_layer(1, 24, device), trek_nn_relu(), score_layer(24, 48, device), trek_nn_relu(),
        trek_nn_flatten(), trek_nn_linear(48 * 49, 10, device) }, 6);
    trek_params *params = trek_module_params(reader);
    trek_optimizer *optimizer = trek_optimizer_new(trek_adam(&(trek_adam_opts){ .lr = 2e-3 }), params);
    int image = trek_dataset_field(digits, "image"), label = trek_dataset_field(digits, "label");
    int64_t steps = trek_dataset_length(digits) / SCORE_BATCH;
    for (int64_t step = 0; step < SCORE_EPOCHS * steps && trek_error_status() == TREK_OK; step++) {
        int64_t numbers[SCORE_BATCH];
        trek_tensor *fields[2] = { NULL };
        trek_scope scope = trek_scope_begin();
        for (int k = 0; k < SCORE_BATCH; k++)
            numbers[k] = step % steps * SCORE_BATCH + k;
        trek_dataset_get(digits, numbers, SCORE_BATCH, fields);
        trek_var *logits = trek_forward(reader, score_pixels(trek_var_from(fields[image])));
        trek_backward(trek_cross_entropy(logits, trek_var_from(fields[label])));
        trek_optimizer_step(optimizer);
        trek_optimizer_zero_grad(optimizer);
        trek_scope_end(scope);
    }
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    return reader;
}

/* exp of the mean divergence of each image's classes from those of all. 10: each image is of one class for sure, and all ten
 * are drawn alike; k: of k classes; 1: they are all alike, or of no class. Images [n, 1, 28, 28] in [-1, 1]; NAN on failure. */
static inline double score_of(trek_module *reader, trek_var *images)
{
    trek_scope scope = trek_scope_begin();
    trek_no_grad_begin();
    trek_var *logs = trek_log_softmax(trek_forward(reader, trek_to(images, trek_cpu(0))), 1), *chances = trek_exp(logs);
    trek_var *all = trek_log(trek_add_scalar(trek_mean(chances, trek_dims(0), true), 1e-12));
    trek_var *divergences = trek_sum(trek_mul(chances, trek_sub(logs, all)), trek_dims(1), false);
    trek_var *mean = trek_mean(divergences, trek_dims_all(), false);
    double value = mean ? exp(trek_var_item(mean)) : NAN;
    trek_no_grad_end();
    trek_scope_end(scope);
    return value;
}

#endif
