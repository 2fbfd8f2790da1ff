/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a graph: the layout that the flow builder makes, the route that forward follows, and observed scalars. */
#ifndef TREK_GRAPH_GRAPH_INTERNAL_H
#define TREK_GRAPH_GRAPH_INTERNAL_H

#include <limits.h>
#include <stdatomic.h>

#include "graph/accumulate.h"
#include "graph/constants_internal.h"
#include "graph/graph.h"
#include "graph/inspect.h"
#include "graph/passes.h"
#include "graph/settings.h"
#include "graph/stepper.h"
#include "nn/fp8_opts.h"
#include "nn/text.h"
#include "optim/scaler.h"
#include "tensor/memory_internal.h"
#include "tensor/op_opts.h"
#include "tensor/status_internal.h"

/* --- layout: nodes and values ---------------------------------------------- */

typedef enum trek_graph_node_kind { TREK_GRAPH_MODULE, TREK_GRAPH_ADD, TREK_GRAPH_MEAN, TREK_GRAPH_CAT } trek_graph_node_kind;

/* Nodes are in an order in which they can run. A value is an input of the graph or the output of one node. Values are
 * numbered in the order in which they are made. */
typedef struct trek_graph_node {
    trek_graph_node_kind kind;
    trek_module *module;      /* owned through the graph's children; NULL for merges */
    char *label;              /* may be NULL */
    int number;               /* of module nodes, in the order of adding; -1 for merges */
    int dim;                  /* of CAT */
    int n_inputs;
    int *inputs;              /* values; ~k: state k */
    int output;               /* value */
    int n_results;            /* how many results, after the output, up to the last one that was tagged */
    int *results;             /* [n_results] values; -1: not tagged */
} trek_graph_node;

/* Stands for an input that is omitted. */
#define TREK_GRAPH_NOTHING INT_MIN

typedef struct trek_graph_name {
    char *name;
    int value;
} trek_graph_name;

typedef struct trek_graph_layout {
    int n_nodes, cap_nodes, n_inputs, cap_inputs, n_tags, cap_tags, n_states, cap_states;
    trek_graph_node *nodes;
    trek_graph_name *inputs;  /* in the order of forward_many */
    trek_graph_name *tags;
    int *states;              /* the value that each state carries to the next forward */
    int n_values, n_modules;
    int output;
} trek_graph_layout;

void trek_graph_layout_free(trek_graph_layout *layout);
/* Returns the value of a tag or graph input, or -1. */
int trek_graph_layout_find(const trek_graph_layout *layout, const char *name);
/* Returns the node that makes the value, or -1 for a graph input. */
int trek_graph_layout_producer(const trek_graph_layout *layout, int value);

/* --- route: what forward does, without names or searches -------------------- */

typedef enum trek_route_kind { TREK_ROUTE_ONE, TREK_ROUTE_MANY, TREK_ROUTE_RESULTS, TREK_ROUTE_FUSED,
                               TREK_ROUTE_MERGE } trek_route_kind;

typedef struct trek_route_step {
    uint8_t kind;             /* trek_route_kind */
    uint8_t activation;       /* of a FUSED step: trek_activation */
    int n_inputs, first_input; /* in route.places */
    int n_drops, first_drop;  /* slots whose last use is this step */
    int output;               /* a slot */
    int node;                 /* in the layout */
    trek_module *module;
} trek_route_step;

/* The variables of a forward. The graph has one frame, which keeps tagged values and states. Other calls have their
 * own. */
typedef struct trek_route_frame {
    trek_var **slots;         /* [n_values] */
    trek_var **states;        /* [n_states] owned */
    trek_var **scratch;       /* memory for the inputs of the widest step */
} trek_route_frame;

typedef struct trek_route {
    int n_steps, n_kept, widest; /* widest: number of inputs of the widest step */
    trek_route_step *steps;
    int *places;              /* inputs and drops of all steps */
    int *kept;                /* slots that are kept until the next forward: tagged values */
    bool *owned;              /* [n_values] whether the slot holds its own reference */
    bool *keeps;              /* [n_values] whether it is tagged */
    trek_route_frame frame;   /* the graph's own frame */
    _Atomic(const void *) owner; /* the thread whose forwards use it (trek_route_is_mine); forwards of others use it if they
                                  * record */
} trek_route;

/* Returns whether a forward of the calling thread would use the graph's own frame: because it records, runs on a
 * rank, or the thread is the graph's, which has built it or last recorded a forward. It never does between
 * trek_route_apart_begin and its end. */
bool trek_route_is_mine(const struct trek_graph *graph);
/* Between begin and end, which can be nested, forwards of the calling thread use their own frames, so that tags and
 * states do not change. */
void trek_route_apart_begin(void);
void trek_route_apart_end(void);
bool trek_route_is_apart(void);
/* Runs trek_graph_infer with numbers of tags. */
trek_var *trek_route_infer(struct trek_graph *graph, trek_var *const *inputs, int n, const int *tags, trek_var **values,
                           int n_tags);

/* Plans the route, once, when layout and modules are complete; and frees it. */
trek_status trek_route_plan(struct trek_graph *graph);
void trek_route_free(struct trek_graph *graph);

/* Returns the sum, mean or concatenation of `n` variables, in the current scope. */
trek_var *trek_graph_merge_run(const trek_graph_node *node, trek_var *const *inputs, int n);

/* --- the graph -------------------------------------------------------------- */

typedef struct trek_observation trek_observation;

/* What the program has set for training. Every stepper reads it here, so that it stays when the stepper changes. */
typedef struct trek_graph_settings {
    trek_schedule schedule;   /* kind NONE: no schedule */
    double max_norm, max_value; /* <= 0: off */
    bool *replicated;         /* [inputs] NULL: no input is replicated */
    int64_t steps;            /* steps done */
    bool stop_wanted,
        stop_agreed; /* of this graph's training, in addition to trek_request_stop: agreed at the same step on all processes */
} trek_graph_settings;

/* What a graph does with the captured steps that it owns. */
typedef struct trek_captures_class {
    void (*free)(struct trek_graph *graph); /* before the stepper, whose memory they use */
    bool (*drop)(struct trek_graph *graph); /* what was recorded, so that the stepper can be freed; false: a step function runs */
} trek_captures_class;

struct trek_graph {
    trek_module base;         /* must be the first member */
    trek_graph_layout layout;
    trek_route route;
    trek_stepper *stepper;    /* made when it is first needed */
    trek_graph_settings settings;
    trek_accumulation accumulation; /* of the current step's passes */
    trek_constants constants; /* and teachers */
    struct trek_graph_loader *graph_loader; /* graph_loader.c: loader and loss; NULL: none yet */
    trek_dtype autocast;      /* of forward; F32: no autocast */
    bool fp8;                 /* trek_graph_set_amp has made its products 8-bit products, */
    trek_fp8_opts fp8_opts;   /* with these options */
    trek_grad_scaler *scaler; /* NULL: the loss is not scaled */
    struct trek_captures *captures; /* capture.c; NULL: none yet; */
    const trek_captures_class *captures_class; /* what the graph does with them */
    int n_below, cap_below;
    struct trek_graph **below; /* capture.c; NULL: none yet */
    bool *unjoined;           /* [tags] whether the ranks' values could not be joined; NULL: none so far */
    int64_t began_ns, flushed_ns, flushes; /* times of the first pass and the last flush, number of flushes; 0: none yet */
    int n_loops, cap_loops;
    trek_module **loops;      /* at any depth, each once; borrowed */
    int n_observations, cap_observations;
    trek_observation *observations;
    _Atomic(void *) watched_by; /* used by graph/watch.h */
};

extern const trek_module_class trek_graph_class;
/* Returns the module as a graph if it is one, otherwise NULL without an error. */
trek_graph *trek_graph_of(trek_module *module);

/* Returns whether ranks get the whole of input k. */
static inline bool trek_graph_input_is_whole(const struct trek_graph *graph, int k)
{
    return graph->settings.replicated && graph->settings.replicated[k];
}

/* Returns whether something in the graph lasts from one batch to the next: a state, a tagged value, or what loops and nested
 * graphs keep. This is known when the graph has been built. */
static inline bool trek_graph_keeps(const struct trek_graph *graph)
{
    return graph->layout.n_states > 0 || graph->route.n_kept > 0 || graph->n_below > 0 || graph->n_loops > 0;
}
/* Ends a step: detaches states and tagged values from the tape, also those of nested graphs. It may allocate, so it
 * must be called before the step's commit point. */
trek_status trek_graph_detach(struct trek_graph *graph);
/* Return the value of tag k, borrowed, or NULL; and replace it (retained) by the values joined over the ranks. */
trek_var *trek_graph_tag_value(struct trek_graph *graph, int k);
/* Returns the value for a caller who gives its path. Fails with UNSUPPORTED if the ranks' values could not be joined. */
trek_var *trek_graph_tag_given(struct trek_graph *graph, int k, const char *path, const char *function);
void trek_graph_put_tag(struct trek_graph *graph, int k, trek_var *value);
trek_status trek_graph_unjoin_tag(struct trek_graph *graph, int k); /* sets no value: the ranks' values do not fit together */

void trek_observations_free(struct trek_graph *graph);

/* Returns the index of a name of tags or inputs, or -1. */
int trek_graph_find_name(const trek_graph_name *names, int n, const char *name);
/* Returns whether the graph has states, and none of them has a value. */
bool trek_graph_states_are_reset(const struct trek_graph *graph);
/* Called before a forward of the whole graph: forgets nested graphs' tags of the last forward. */
void trek_graph_forget_nested_tags(struct trek_graph *graph);
/* Forget what a loop has published in its last forward, and what all loops of the graph have. */
void trek_loop_clear(trek_module *loop);
static inline void trek_graph_clear_traces(struct trek_graph *graph)
{
    for (int k = 0; k < graph->n_loops; k++)
        trek_loop_clear(graph->loops[k]);
}

/* Fills `below` and `loops`, once, when all children are known. */
trek_status trek_graph_find_below(struct trek_graph *graph);
/* Calls fn for the graph itself and every graph below it, each once. Allocates nothing. */
typedef trek_status (*trek_graph_fn)(struct trek_graph *graph, void *arg);
trek_status trek_graph_each(struct trek_graph *graph, trek_graph_fn fn, void *arg);

/* --- text ------------------------------------------------------------------- */

/* Adds the string with ", \ and control characters escaped as in JSON. */
void trek_text_add_escaped(trek_text *text, const char *string);
/* Writes the value by "%.*g" with a point, whatever the locale; "null" if it is not finite (JSON). Returns buffer,
 * which has at least 40 bytes. */
char *trek_number_text(double value, int digits, char *buffer);

#endif
