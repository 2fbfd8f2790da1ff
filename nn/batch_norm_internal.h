/* SPDX-License-Identifier: Apache-2.0 */
/* What batch norm and synchronised batch norm share. */
#ifndef TREK_NN_BATCH_NORM_INTERNAL_H
#define TREK_NN_BATCH_NORM_INTERNAL_H

#include "nn/layers_internal.h"

typedef struct trek_batch_norm_layer {
    trek_module base;
    trek_var *weight, *bias, *running_mean, *running_var, *num_batches_tracked; /* each may be NULL */
    int64_t features;
    double eps, momentum;
    bool cumulative;          /* the running statistics are plain averages */
    bool recounts;            /* they are so temporarily, for trek_module_recount_statistics */
    const struct trek_rank_collectives *ranks;
        /* of a synchronised layer, retained: the ranks it exchanges with where the thread's rank context names none;
         * may be NULL */
} trek_batch_norm_layer;


trek_module *trek_batch_norm_layer_new(const trek_module_class *klass, const trek_batch_norm_opts *opts);
/* Normalises by the statistics of x, or by the running ones in evaluation mode. */
trek_var *trek_batch_norm_layer_normalize(trek_batch_norm_layer *m, trek_var *x);
/* Counts one more batch in training. *momentum becomes the weight with which its statistics enter the running ones. */
trek_status trek_batch_norm_layer_count(trek_batch_norm_layer *m, double *momentum);
trek_status trek_batch_norm_layer_reset(trek_module *self);
void trek_batch_norm_layer_describe(const trek_module *self, char *text, size_t size);

#endif
