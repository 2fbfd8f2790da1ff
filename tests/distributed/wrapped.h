/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas of a model under one trek_ddp. */
#ifndef TREK_TESTS_DISTRIBUTED_WRAPPED_H
#define TREK_TESTS_DISTRIBUTED_WRAPPED_H

#include "distributed/ddp.h"

enum { MAX_WORLD = 5 };

typedef struct wrapped {
    trek_module *models[MAX_WORLD];
    trek_ddp *ddp;
    double counts[MAX_WORLD];
    int who;
    trek_status status[MAX_WORLD];
    char message[MAX_WORLD][256];
    int n;
} wrapped;

/* n equal replicas in one trek_ddp. */
void wrap(wrapped *w, int n, trek_dtype dtype, const trek_ddp_opts *opts);
void expect_close(const trek_var *a, const trek_var *b);
bool same_values(trek_module *a, trek_module *b, const char *name);
/* A batch norm, which has buffers. */
trek_module *normed(void);

#endif
