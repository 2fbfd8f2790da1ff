/* SPDX-License-Identifier: Apache-2.0 */
/* A model with two synchronised batch norms, a record of what training made of it, and its set-up. */
#ifndef TREK_TESTS_REPLICA_SYNC_NET_H
#define TREK_TESTS_REPLICA_SYNC_NET_H

#include "distributed/trainer.h"
#include "nn/layers.h"
#include "tests/support/refused.h"

enum { CHANNELS = 3, WIDTH = 4, CLASSES = 3, STEPS = 3, MOST = 4096 };
typedef enum failure { NOWHERE, IN_FORWARD, IN_BACKWARD } failure;

typedef struct net {
    trek_module base;
    trek_module *first, *norm, *second, *last;
    failure fails;            /* of this replica */
} net;

extern const trek_module_class net_class;

typedef struct model_opts {
    bool sync, cumulative, own; /* own: by a class that is not the library's */
    trek_dtype dtype;
} model_opts;

/* A synchronised batch norm, or a plain one to compare with; a model of two; the graph of it, for replicas. */
trek_module *norm_new(const model_opts *o, trek_device device, bool images, bool affine);
trek_module *net_new(const model_opts *o, trek_device device);
trek_graph *build(trek_device device, void *arg);

typedef struct record {
    int n;
    double values[MOST];
} record;

/* Adds a tensor's numbers to a record; for callbacks over parameters (with their gradients) and buffers. */
void note(record *to, const trek_tensor *tensor);
trek_status note_param(const char *name, trek_var *param, void *arg);
trek_status note_buffer(const char *name, trek_var *buffer, void *arg);
/* Numbers of a stream in a dtype; labels. */
trek_var *typed(uint32_t stream, trek_shape shape, trek_dtype dtype);
trek_var *labels_of(int64_t rows, int step);
void expect_close(const record *got, const record *expected, double tolerance, const char *what);
int begin_test(void **state);

#endif
