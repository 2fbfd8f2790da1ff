/* SPDX-License-Identifier: Apache-2.0 */
/* What a graph asks of the object that runs its steps: every graph call that must reach replicas. The default stepper
 * is a single device; distributed/ replaces it by others. graph/ does not know distributed/. */
#ifndef TREK_GRAPH_STEPPER_H
#define TREK_GRAPH_STEPPER_H

#include "autograd/grad.h"
#include "data/loader.h"
#include "graph/graph.h"
#include "graph/metric.h"
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
    /* Returns the result in the caller's scope, joined over the ranks. */
    trek_var *(*forward)(trek_stepper *self, trek_var *const *inputs, int n);
    /* Runs one pass, with gradients of this graph's parameters only. weight < 0: not stated. */
    trek_status (*backward)(trek_stepper *self, trek_var *loss, double weight);
    /* Gradients as results, over all processes. */
    trek_status (*grad)(trek_stepper *self, trek_var *loss, trek_var *const *inputs, int n, const trek_backward_opts *opts,
                        trek_var **grads);
    trek_status (*reduce)(trek_stepper *self);
    trek_status (*step)(trek_stepper *self);
    trek_status (*zero_grad)(trek_stepper *self);
    trek_status (*parameters_changed)(trek_stepper *self); /* after load, reset, to: replicas follow */
    /* Replaces the optimizer; the old one stays on failure. */
    trek_status (*set_optimizer)(trek_stepper *self, const trek_optimizer_source *source);
    trek_status (*set_lr)(trek_stepper *self, double lr);
    int (*world_size)(const trek_stepper *self);
    int (*shares)(const trek_stepper *self, double *shares, int capacity); /* returns the number of ranks */
    double (*lr)(const trek_stepper *self);
    double (*grad_norm)(const trek_stepper *self); /* of the last step; NaN if it was not measured */
    /* Returns the optimizer with the state of the whole job, for checkpoints. */
    trek_optimizer *(*optimizer)(trek_stepper *self);
    /* Called when the graph's constants or teachers have changed: replicas follow, or keep theirs on failure. NULL:
     * there are no replicas. */
    trek_status (*constants)(trek_stepper *self);
    /* Runs a pass over a batch with the registered loss (graph/graph_loader.c). Returns the mean loss in the caller's
     * scope. */
    trek_var *(*train_batch)(trek_stepper *self, const struct trek_batch *batch);
    /* Returns how many batches the next step's window has. 0, or NULL: there is no window, but one batch. */
    int64_t (*window)(trek_stepper *self);
    /* Returns whether ranks read their own rows of each batch, so that it is not fetched before. NULL: they do not. */
    bool (*reads_parts)(const trek_stepper *self);
    /* Called when the graph's loader is removed or replaced: its batches must not be read any more. NULL: the stepper
     * reads none itself. */
    void (*forget_loader)(trek_stepper *self);
    /* Detaches states, tagged values and traces of all replicas from the tape. NULL: there is only the graph. */
    trek_status (*detach)(trek_stepper *self);
    /* Returns the graph of that rank in this process, or NULL if the rank is out of range. NULL: there is only the
     * graph. */
    struct trek_graph *(*replica)(const trek_stepper *self, int rank);
    /* Gathers what training functions have recorded on all replicas in the graph. NULL: it is already there. */
    trek_status (*gather_observations)(trek_stepper *self);
    /* Returns a new metric of what all processes have counted in theirs; a collective. NULL: there are no other
     * processes. */
    struct trek_metric *(*join_metric)(trek_stepper *self, struct trek_metric *metric);
    const struct trek_stepper_capture *capture; /* NULL: its steps cannot be captured */
} trek_stepper_class;

/* The recorded work of a step. */
typedef struct trek_captured_step {
    /* Does the work, on the thread that recorded it. rng_step is the step of its random numbers. */
    trek_status (*replay)(struct trek_captured_step *self, uint64_t rng_step);
    void (*free)(struct trek_captured_step *self); /* called before its stepper is freed */
} trek_captured_step;

/* How a captured step is made: by a call of its function, by a call that is recorded, or by a replay. */
typedef enum trek_capture_way { TREK_CAPTURE_CALL, TREK_CAPTURE_RECORD, TREK_CAPTURE_REPLAY } trek_capture_way;

/* What a process wants to do about a step that begins (graph/capture_vote.c). A wish applies if the inputs of all
 * processes have this digest. Without a wish for a digest the step is called. */
enum { TREK_MOST_RECORDS = 4 };
typedef struct trek_capture_wish {
    uint64_t team;
    int64_t number; /* > 0: it has a valid record of this number; 0: it could record; < 0: it calls the function */
} trek_capture_wish;
typedef struct trek_capture_vote {
    uint64_t inputs; /* digest of the shapes of its inputs */
    int64_t n;
    trek_capture_wish wishes[TREK_MOST_RECORDS];
} trek_capture_vote;
typedef struct trek_capture_verdict {
    trek_capture_way way;
    uint64_t team;   /* digest of the inputs of all */
    char why[160];   /* why steps are only called from now on; "": they are not */
} trek_capture_verdict;

/* Decides from the votes of n processes. All find the same. */
trek_capture_verdict trek_capture_decide(const trek_capture_vote *votes, int n);

/* The functions of a stepper that capturing (graph/capture.c) needs. */
struct trek_stepper_capture {
    /* Returns why its steps cannot be recorded; NULL if they can, as far as this can be known in advance. obstacle
     * NULL: they always can. */
    const char *(*obstacle)(const trek_stepper *self);
    /* Returns a number that changes when a captured step no longer does what the stepper would do now. */
    uint64_t (*signature)(const trek_stepper *self);
    /* Returns whether a step also works on this device, besides the graph's. NULL: only on the graph's. */
    bool (*uses)(const trek_stepper *self, trek_device device);
    /* begin: what a step makes the devices do (device: the graph's) is recorded until end instead of being done. end
     * with result NULL drops it. If end fails, it has dropped it. */
    trek_status (*begin)(trek_stepper *self, trek_device device);
    trek_status (*end)(trek_stepper *self, trek_device device, trek_captured_step **result);
    /* Restores the stepper's state on the host after a recording that failed. NULL: only the graph has such state. */
    void (*put_back)(trek_stepper *self);
    /* Called before a replay: writes the learning rate of the next step (unless step() has set it), and other data
     * that the device reads. */
    trek_status (*before_replay)(trek_stepper *self, bool rate_is_set);
    /* Called after a replay: sets counts and versions as step() does. */
    void (*after_replay)(trek_stepper *self);
    /* For several processes that make a step together; all three are NULL if none do. agree is called before each
     * step and decides how all make it. settle is called after a recording, whatever its result here (own); it fails
     * if the recording failed in any process; *number is the same in all. abandon says that a process cannot do its
     * part of what was agreed, or does not come to it, because an error is set; the others learn of it. */
    trek_status (*agree)(trek_stepper *self, const trek_capture_vote *own, trek_capture_verdict *verdict);
    trek_status (*settle)(trek_stepper *self, trek_status own, int64_t *number);
    void (*abandon)(trek_stepper *self, trek_status status, bool replays);
    /* For a stepper that may record parts of its steps instead of whole steps, each on the thread that runs it, while the step's
     * function is called; all three are NULL if it does not. has_parts returns whether it does now. parts is called after the
     * function, and returns why parts are not recorded (NULL: they are); *replayed: all parts of the step were replays.
     * forget_parts drops what was recorded. */
    bool (*has_parts)(const trek_stepper *self);
    const char *(*parts)(trek_stepper *self, bool *replayed);
    void (*forget_parts)(trek_stepper *self);
};

/* Returns what a replay depends on besides the stepper's own state: where parameters (of `graph` or its replica) and
 * their gradients are, the plan of the optimizer (NULL: none), and constants. */
uint64_t trek_step_signature(const struct trek_graph *graph, trek_var *const *leaves, int n_leaves,
                             const trek_optimizer *optimizer);

struct trek_stepper {
    const trek_stepper_class *klass;
    struct trek_graph *graph;
};

/* graph/graph.c: runs a graph's route on the calling thread without a stepper. Replicas and the default stepper use
 * it. */
trek_var *trek_graph_run_route(struct trek_graph *graph, trek_var *const *inputs, int n);
/* Replaces (and frees) the graph's stepper; it owns the new one. */
trek_status trek_graph_set_stepper(struct trek_graph *graph, trek_stepper *stepper);
trek_stepper *trek_graph_stepper(struct trek_graph *graph);
trek_stepper *trek_stepper_single_new(struct trek_graph *graph);

#endif
