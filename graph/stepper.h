/* SPDX-License-Identifier: Apache-2.0 */
/* What a graph asks of whoever runs its steps: every graph call that must reach
 * replicas. The default stepper is a single device; distributed/ puts another
 * in its place. graph/ does not know distributed/. Internal. */
#ifndef TREK_GRAPH_STEPPER_H
#define TREK_GRAPH_STEPPER_H

#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/optimizer_move.h"

struct trek_graph;
struct trek_batch;
struct trek_metric;
typedef struct trek_stepper trek_stepper;

typedef struct trek_stepper_class {
    const char *name;
    void (*free)(trek_stepper *self);
    /* Result in the caller's scope, joined over the ranks. */
    trek_var *(*forward)(trek_stepper *self, trek_var *const *inputs, int n);
    /* One pass: gradients of this graph's parameters only. weight < 0: not stated. */
    trek_status (*backward)(trek_stepper *self, trek_var *loss, double weight);
    trek_status (*reduce)(trek_stepper *self);
    trek_status (*step)(trek_stepper *self);
    trek_status (*zero_grad)(trek_stepper *self);
    trek_status (*train)(trek_stepper *self, const char *path, bool training); /* path NULL: all */
    trek_status (*freeze)(trek_stepper *self, const char *path, bool frozen); /* path NULL: all */
    trek_status (*parameters_changed)(trek_stepper *self); /* after load, reset, to: replicas follow */
    /* In the place of the one that is there, which stays on failure. */
    trek_status (*set_optimizer)(trek_stepper *self, const trek_optimizer_source *source);
    trek_status (*set_lr)(trek_stepper *self, double lr);
    int (*world_size)(const trek_stepper *self);
    int (*shares)(const trek_stepper *self, double *shares, int capacity); /* returns the number of ranks */
    double (*lr)(const trek_stepper *self);
    double (*grad_norm)(const trek_stepper *self); /* of the last step; NaN when not measured */
    /* the optimizer's state of the whole job, for checkpoints */
    trek_optimizer *(*optimizer)(trek_stepper *self);
    /* The graph's constants or teachers are others: replicas follow, or keep what they have. NULL: there are none. */
    trek_status (*constants)(trek_stepper *self);
    /* A pass over a batch by the registered loss (graph/graph_loader.c): the mean loss, in the caller's scope. */
    trek_var *(*train_batch)(trek_stepper *self, const struct trek_batch *batch);
    /* How many batches the next step's window has; 0, or NULL: no window, one batch. */
    int64_t (*window)(trek_stepper *self);
    /* Whether a pass over a batch has ranks read the rows of each: it is not fetched before. NULL: no. */
    bool (*reads_parts)(const trek_stepper *self);
    /* The graph's loader goes, or another one comes: nobody reads its batches any more. NULL: nobody does by himself. */
    void (*forget_loader)(trek_stepper *self);
    /* States, tagged values and traces of all replicas leave the tape. NULL: there is the graph alone. */
    trek_status (*detach)(trek_stepper *self);
    /* The graph of that rank in this process; NULL out of range, or all: there is the graph alone. */
    struct trek_graph *(*replica)(const trek_stepper *self, int rank);
    /* What training functions have recorded on all replicas comes to the graph. NULL: it is there. */
    trek_status (*gather_observations)(trek_stepper *self);
    /* A new metric of what all processes have counted in theirs, a collective. NULL: there are no others. */
    struct trek_metric *(*join_metric)(trek_stepper *self, struct trek_metric *metric);
    const struct trek_stepper_capture *capture; /* NULL: its steps cannot be captured */
} trek_stepper_class;

/* A step's work, recorded. */
typedef struct trek_captured_step {
    /* Does it, on the thread that recorded it. rng_step: of its random numbers. */
    trek_status (*replay)(struct trek_captured_step *self, uint64_t rng_step);
    void (*free)(struct trek_captured_step *self); /* before its stepper goes */
} trek_captured_step;

/* How a step that is captured is made: by a call of its function, which may be recorded, or by a replay. */
typedef enum trek_capture_way { TREK_CAPTURE_CALL, TREK_CAPTURE_RECORD, TREK_CAPTURE_REPLAY } trek_capture_way;

/* What a process would do about a step that begins (graph/capture_vote.c). A wish is for the case that the inputs of all
 * processes come to this digest; where there is none for a case, the step is called. */
enum { TREK_MOST_RECORDS = 4 };
typedef struct trek_capture_wish {
    uint64_t team;
    int64_t number; /* > 0: it has the record of this number, which fits; 0: it could record; < 0: it calls the function */
} trek_capture_wish;
typedef struct trek_capture_vote {
    uint64_t inputs; /* a digest of the shapes of its inputs */
    int64_t n;
    trek_capture_wish wishes[TREK_MOST_RECORDS];
} trek_capture_vote;
typedef struct trek_capture_verdict {
    trek_capture_way way;
    uint64_t team;   /* of the inputs of all */
    char why[160];   /* steps are called from now on, and this is why; "": they are not */
} trek_capture_verdict;

/* What n processes make of their votes: all find the same. */
trek_capture_verdict trek_capture_decide(const trek_capture_vote *votes, int n);

/* What capturing a step (graph/capture.c) asks of a stepper. */
struct trek_stepper_capture {
    /* Why its steps cannot be recorded; NULL: they can, as far as one can see beforehand. Where that is NULL: always. */
    const char *(*obstacle)(const trek_stepper *self);
    /* A number that is another one when a captured step no longer does what the stepper would do now. */
    uint64_t (*signature)(const trek_stepper *self);
    /* Whether a step works on this device, too, beside the graph's. NULL: on the graph's alone. */
    bool (*uses)(const trek_stepper *self, trek_device device);
    /* What a step makes the devices do (device: the graph's) is recorded from here on, not done, until the end; result NULL
     * drops it. The end's failure has dropped it. */
    trek_status (*begin)(trek_stepper *self, trek_device device);
    trek_status (*end)(trek_stepper *self, trek_device device, trek_captured_step **result);
    /* After a recording that comes to nothing: its host's side as it was when it began. NULL: the graph's is all. */
    void (*put_back)(trek_stepper *self);
    /* Before a replay: the learning rate of the step that follows (unless step() has set it), and what else the device reads. */
    trek_status (*before_replay)(trek_stepper *self, bool rate_is_set);
    /* After it: counts and versions, as step() leaves them. */
    void (*after_replay)(trek_stepper *self);
    /* Where several processes make a step together; all three NULL: none does.
     * agree: before each step, how all make this one. settle: after a recording, however it went here (own): not OK where it
     * went wrong in any; *number is the same in all. abandon: a process cannot do its part of what was agreed, or does not
     * come to it at all, as an error is set: the others learn of it. */
    trek_status (*agree)(trek_stepper *self, const trek_capture_vote *own, trek_capture_verdict *verdict);
    trek_status (*settle)(trek_stepper *self, trek_status own, int64_t *number);
    void (*abandon)(trek_stepper *self, trek_status status, bool replays);
};

/* What a replay depends on besides the stepper's own: where parameters (of `graph`, or of its replica) and their gradients
 * are, the plan of the optimizer (NULL: none), constants. */
uint64_t trek_step_signature(const struct trek_graph *graph, trek_var *const *leaves, int n_leaves,
                             const trek_optimizer *optimizer);

struct trek_stepper {
    const trek_stepper_class *klass;
    struct trek_graph *graph;
};

/* graph/graph.c: a graph's plain run of its route on the calling thread, with no stepper
 * between: what replicas run, and what the default stepper runs. */
trek_var *trek_graph_run_route(struct trek_graph *graph, trek_var *const *inputs, int n);
/* Replaces (and frees) the graph's stepper; takes the new one over. */
trek_status trek_graph_set_stepper(struct trek_graph *graph, trek_stepper *stepper);
trek_stepper *trek_graph_stepper(struct trek_graph *graph);
trek_stepper *trek_stepper_single_new(struct trek_graph *graph);

#endif
