/* SPDX-License-Identifier: Apache-2.0 */
/* What a graph has captured: a record for each function and each set of shapes of its inputs. */
#ifndef TREK_GRAPH_CAPTURE_RECORDS_H
#define TREK_GRAPH_CAPTURE_RECORDS_H

#include <pthread.h>

#include "graph/capture_internal.h"
#include "nn/params.h"

enum { TREK_CAPTURE_VALUES = 64, TREK_CAPTURE_FIRST_RUNS = 3, TREK_CAPTURE_LATER_RUNS = 1 };

typedef struct trek_captured_tag {
    trek_graph *graph;
    int tag;
    trek_var *value;           /* retained */
} trek_captured_tag;

typedef struct trek_capture_record {
    trek_step_fn fn;
    void *arg;
    uint64_t team;             /* digest of the inputs of all processes, including these */
    int64_t number;            /* of its recording, in all processes; >= 1 */
    trek_var *inputs[TREK_CAPTURE_VALUES];  /* its own variables; NULL: not given */
    trek_var *outputs[TREK_CAPTURE_VALUES]; /* of the recorded run; after recording they hold each replay's results */
    int runs_left;             /* before it is recorded */
    uint64_t used;             /* when it was last used, counted in calls */
    uint64_t signature;        /* of what is recorded, otherwise after the last run */
    int64_t steps;             /* 0 or 1: calls of step() in the function */
    uint64_t first_draw, last_draw; /* of the random numbers, before and after a run */
    pthread_t thread;
    trek_captured_step *recording; /* NULL: not recorded */
    trek_touch_list touched;
    int n_tags, cap_tags;
    trek_captured_tag *tags;
} trek_capture_record;

struct trek_captures {
    trek_stepper *stepper;     /* of parts of a step (capture_internal.h); NULL: the graph's */
    bool in_parts;             /* the function runs, and the stepper records parts of its step */
    trek_device device;
    bool planned;              /* device, params and modules are set */
    trek_params *params;
    int n_modules, cap_modules;
    trek_module **modules;
    bool *had_grad;            /* [parameters] whether there was a gradient before a run that is recorded */
    trek_var *values[TREK_CAPTURE_VALUES];  /* as given */
    bool fresh[TREK_CAPTURE_VALUES];        /* not copied yet */
    trek_var *outputs[TREK_CAPTURE_VALUES]; /* of the last step */
    trek_capture_record *present; /* the one whose function is running */
    trek_capture_record *last;    /* the one whose inputs hold the values */
    int n_records;
    trek_capture_record *records[TREK_MOST_RECORDS];
    uint64_t calls;
    int64_t replays;
    char problem[TREK_ERROR_SIZE]; /* "": none */
};

/* Returns the stepper whose work is recorded. */
static inline trek_stepper *trek_captures_stepper(const trek_graph *graph, const struct trek_captures *c)
{
    return c->stepper ? c->stepper : graph->stepper;
}

/* Returns its calls. */
static inline const struct trek_stepper_capture *trek_captures_table(const trek_graph *graph, const struct trek_captures *c)
{
    return trek_captures_stepper(graph, c)->klass->capture;
}

/* Returns whether it records parts of its steps. */
static inline bool trek_captures_has_parts(const trek_graph *graph, const struct trek_captures *c)
{
    const struct trek_stepper_capture *capture = trek_captures_table(graph, c);
    return capture->has_parts && capture->has_parts(trek_captures_stepper(graph, c));
}

/* Returns what the graph has captured, which it makes if there is nothing yet; NULL: ARGUMENT, for `function`, or MEMORY. */
struct trek_captures *trek_captures_of(trek_graph *graph, const char *function);
void trek_captures_clear(struct trek_captures *c);
/* Drops what the graph's stepper has recorded of parts. */
void trek_captures_forget_parts(const trek_graph *graph);
/* Collects what the signature is made of, and the graph's device. Fails with MEMORY. */
trek_status trek_captures_plan(trek_graph *graph, struct trek_captures *c);
/* Releases variables [TREK_CAPTURE_VALUES]. */
void trek_captures_free_values(trek_var **values);

/* Drops the recorded work: the first keeps what is known of what the function used. */
void trek_capture_record_drop_work(trek_capture_record *r);
void trek_capture_record_drop(trek_capture_record *r);
/* Returns whether it is the record of this function for values like those given. */
bool trek_capture_record_matches(const trek_capture_record *r, const struct trek_captures *c, trek_step_fn fn, const void *arg);
/* Finds the record of this function for values like these, here and in other processes. A new one replaces the record that was
 * not used for the longest time. NULL: MEMORY. */
trek_capture_record *trek_captures_find_record(struct trek_captures *c, trek_step_fn fn, void *arg, uint64_t team);
/* Copies the values that were given to the record's own. */
trek_status trek_captures_bring_inputs(struct trek_captures *c, trek_capture_record *r);

#endif
