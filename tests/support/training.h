/* SPDX-License-Identifier: Apache-2.0 */
/* A small training run that several test programs make in several ways: on one
 * device, on ranks of one process, on processes; by passes per rank, windows, or
 * forwards that are split. The model has dropout, a frozen weight, one that is never
 * used, and one that only marked samples reach; labels are ignored here and
 * there, so that batches weigh differently. */
#ifndef TREK_TESTS_TRAINING_H
#define TREK_TESTS_TRAINING_H

#include "distributed/balance/plan.h"
#include "distributed/trainer.h"
#include "graph/graph_loader.h"

enum { IN = 6, HIDDEN = 10, CLASSES = 4, SAMPLES = 61, MOST = 1024, PASSES = 256 };

/* BY_TEACHER: labels of classes that weigh differently, and what a teacher says; see run.late. */
typedef enum loss_kind { BY_LABELS, BY_ROWS, BY_STATED, N_LOSSES, BY_TEACHER } loss_kind;

typedef struct run {
    int world, passes, batch; /* world: ranks of this process */
    loss_kind loss;
    bool separate, windows, gathered, drop_last, clip, scaled; /* scaled: the loss, dynamically */
    const trek_plan *plan;
    const char *slowdown;     /* TREK_SLOWDOWN while it is set up; NULL: ranks are as fast as they are */
    int balance, epochs;      /* epochs 0: 2 */
    bool late;                /* constants and teacher are set after setup */
    trek_optimizer_spec optimizer;
    int accumulate;           /* > 1: no dropout, and on_one makes one batch of the passes of a step */
    int sharded;              /* each rank, or process, keeps a part of the optimizer's state: 1 an equal one, 2 by its budget; 3
                               * and 4: of gradients, too; 5 and 6: of parameters, too */
    int overlap;              /* the option; with one rank in a process it is seen whether it is so */
    const double *shares;     /* [world] NULL: none fixed */
    const trek_device *devices; /* [world] NULL: the test device's */
} run;

typedef struct result {
    double params[MOST], losses[PASSES];
    int n, steps, passes;
    int64_t windows[PASSES][64]; /* [pass] the samples, so that another run can be given them */
    int64_t sizes[PASSES];
    trek_plan *made;
} result;

trek_dataset *training_dataset(void);
trek_graph *training_build(trek_device device, void *arg);
/* The graph, set up; loader may be NULL. */
trek_graph *training_set_up(const run *c, trek_loader *loader);
trek_var *training_loss(trek_graph *graph, trek_var *output, const trek_batch *batch, void *arg); /* arg: a loss_kind */
/* All parameters, one after another. */
void training_params(trek_graph *graph, result *to);
/* Constants and teacher of BY_TEACHER. */
void training_set_constants(trek_graph *graph);
trek_module *training_teacher(trek_device device, void *arg);
void training_run(const run *c, result *to);
/* Two graphs in turn, as in adversarial training: the second one's loss goes through the first, which it does not touch. The
 * parameters of the second. */
void training_pair(const run *c, result *to);
/* The samples of `as` on one device, each pass one batch, or with accumulate each step. */
void training_on_one(const run *c, const result *as, result *to);
/* Fails where they differ by more than rounding. */
void training_compare(const run *c, const result *many, const result *one);
trek_optimizer_spec training_momentum(void);
trek_optimizer_spec training_adam(void);

#endif
