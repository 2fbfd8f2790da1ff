/* SPDX-License-Identifier: Apache-2.0 */
/* What a graph is made of: the layout that the flow builder draws up, the route
 * that forward walks, observed scalars. */
#ifndef TREK_GRAPH_GRAPH_INTERNAL_H
#define TREK_GRAPH_GRAPH_INTERNAL_H

#include <limits.h>
#include <stdatomic.h>

#include "graph/accumulate.h"
#include "graph/constants_internal.h"
#include "graph/graph.h"
#include "graph/stepper.h"
#include "nn/text.h"
#include "tensor/memory_internal.h"
#include "tensor/op_opts.h"
#include "tensor/status_internal.h"

/* --- layout: nodes and values ---------------------------------------------- */

typedef enum trek_graph_node_kind { TREK_GRAPH_MODULE, TREK_GRAPH_ADD, TREK_GRAPH_MEAN, TREK_GRAPH_CAT } trek_graph_node_kind;

/* Nodes stand in an order in which they can run. A value is a graph input or the
 * output of one node; values are numbered as they are made. */
typedef struct trek_graph_node {
    trek_graph_node_kind kind;
    trek_module *module;      /* owned through the graph's children; NULL for merges */
    char *label;              /* NULL */
    int number;               /* of module nodes, in order of adding; -1 for merges */
    int dim;                  /* of CAT */
    int n_inputs;
    int *inputs;              /* values; ~k: state k */
    int output;               /* value */
    int n_results;            /* of those that were tagged, the last one's place behind the output */
    int *results;             /* [n_results] values; -1: nobody asked for it */
} trek_graph_node;

/* An input that is left out. */
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
    int *states;              /* the value that each carries to the next forward */
    int n_values, n_modules;
    int output;
} trek_graph_layout;

void trek_graph_layout_free(trek_graph_layout *layout);
/* Value of a tag or graph input; -1 if there is none. */
int trek_graph_layout_find(const trek_graph_layout *layout, const char *name);
/* The node that makes the value; -1 for a graph input. */
int trek_graph_layout_producer(const trek_graph_layout *layout, int value);

/* --- route: what forward does, without names or searches -------------------- */

typedef enum trek_route_kind { TREK_ROUTE_ONE, TREK_ROUTE_MANY, TREK_ROUTE_RESULTS, TREK_ROUTE_FUSED,
                               TREK_ROUTE_MERGE } trek_route_kind;

typedef struct trek_route_step {
    uint8_t kind;             /* trek_route_kind */
    uint8_t activation;       /* of FUSED: trek_activation */
    int n_inputs, first_input; /* in route.places */
    int n_drops, first_drop;  /* slots whose last use this step is */
    int output;               /* slot */
    int node;                 /* in the layout */
    trek_module *module;
} trek_route_step;

/* What a forward fills. The graph has one, whose tagged values and states stay; each other call has one of its own. */
typedef struct trek_route_frame {
    trek_var **slots;         /* [n_values] */
    trek_var **states;        /* [n_states] owned */
    trek_var **scratch;       /* room for the inputs of the widest step */
} trek_route_frame;

typedef struct trek_route {
    int n_steps, n_kept, widest; /* inputs of the widest step */
    trek_route_step *steps;
    int *places;              /* inputs and drops of all steps */
    int *kept;                /* slots that stay until the next forward: tagged values */
    bool *owned;              /* [n_values] whether the slot holds a reference of its own */
    bool *keeps;              /* [n_values] tagged */
    trek_route_frame frame;   /* the graph's own */
    _Atomic(const void *) owner; /* the thread whose forwards run in it (trek_route_is_mine); others' do where they record */
} trek_route;

/* Whether a forward of the calling thread would run in the graph's own frame: it records, is a rank's, or the thread is the
 * graph's: the one that built it or last recorded a forward. Never between trek_route_apart_begin and its end. */
bool trek_route_is_mine(const struct trek_graph *graph);
/* Between the two, which nest, forwards of the calling thread run in frames of their own: tags and states stay as they are. */
void trek_route_apart_begin(void);
void trek_route_apart_end(void);
bool trek_route_is_apart(void);
/* trek_graph_infer, with numbers of tags. */
trek_var *trek_route_infer(struct trek_graph *graph, trek_var *const *inputs, int n, const int *tags, trek_var **values,
                           int n_tags);

/* Once, when layout and modules are there. */
trek_status trek_route_plan(struct trek_graph *graph);
void trek_route_free(struct trek_graph *graph);

/* Sum, mean or concatenation of `n` variables; result in the present scope. */
trek_var *trek_graph_merge_run(const trek_graph_node *node, trek_var *const *inputs, int n);

/* --- the graph -------------------------------------------------------------- */

typedef struct trek_observation trek_observation;

/* What the program has set for training. Every stepper reads it here, so that it holds whichever the graph has. */
typedef struct trek_graph_settings {
    trek_schedule schedule;   /* kind NONE: none */
    double max_norm, max_value; /* <= 0: off */
    bool *replicated;         /* [inputs] NULL: none is */
    int64_t steps;            /* done */
    bool stop_wanted,
        stop_agreed; /* of this graph's training, beside trek_request_stop: agreed at the same step on all processes */
} trek_graph_settings;

struct trek_graph {
    trek_module base;         /* first */
    trek_graph_layout layout;
    trek_route route;
    trek_stepper *stepper;    /* made at first need */
    trek_graph_settings settings;
    trek_accumulation accumulation; /* of the present step's passes */
    trek_constants constants; /* and teachers */
    struct trek_graph_loader *graph_loader; /* graph_loader.c: loader and loss; NULL: none yet */
    trek_dtype autocast;      /* of forward; F32: none */
    bool fp8;                 /* trek_graph_set_amp has made its products 8-bit ones, */
    trek_fp8_opts fp8_opts;   /* of these options */
    trek_grad_scaler *scaler; /* NULL: the loss is not scaled */
    struct trek_captures *captures; /* capture.c; NULL: none yet */
    int n_below, cap_below;
    struct trek_graph **below; /* graphs inside this one, at any depth, each once; borrowed */
    bool *unjoined;           /* [tags] the ranks' values could not be joined; NULL: none so far */
    int64_t began_ns, flushed_ns, flushes; /* first pass, last flush, number of those; 0: none yet */
    int n_loops, cap_loops;
    trek_module **loops;      /* at any depth, each once; borrowed */
    int n_observations, cap_observations;
    trek_observation *observations;
    _Atomic(void *) watched_by; /* of graph/watch.h */
};

extern const trek_module_class trek_graph_class;

/* Whether ranks get the whole of input k. */
static inline bool trek_graph_input_is_whole(const struct trek_graph *graph, int k)
{
    return graph->settings.replicated && graph->settings.replicated[k];
}

/* End of a step: states and tagged values leave the tape, of nested graphs, too.
 * May allocate: to be called before the step's commit point. */
trek_status trek_graph_detach(struct trek_graph *graph);
/* Value of tag k, borrowed, or NULL; and its replacement (retained) by what was joined over the ranks. */
trek_var *trek_graph_tag_value(struct trek_graph *graph, int k);
/* The same for a caller, who gives its path: UNSUPPORTED where the ranks' values could not be joined. */
trek_var *trek_graph_tag_given(struct trek_graph *graph, int k, const char *path, const char *function);
void trek_graph_put_tag(struct trek_graph *graph, int k, trek_var *value);
trek_status trek_graph_unjoin_tag(struct trek_graph *graph, int k); /* or by nothing: the ranks' values do not fit together */

void trek_observations_free(struct trek_graph *graph);
void trek_graph_loader_free(struct trek_graph *graph);
void trek_captures_free(struct trek_graph *graph); /* before the stepper, whose memory captured steps use */
/* What was recorded goes, so that the stepper can. false: a step function is running. */
bool trek_captures_drop(struct trek_graph *graph);

/* Before a forward of the whole graph: what nested graphs' tags had is the last forward's. */
void trek_graph_forget_nested_tags(struct trek_graph *graph);
/* What loops have published is forgotten. */
void trek_graph_clear_traces(struct trek_graph *graph);

/* Fills `below` and `loops`: once, when all children are there. */
trek_status trek_graph_find_below(struct trek_graph *graph);
/* Calls fn for the graph itself and every graph below it, each once; allocates nothing. */
typedef trek_status (*trek_graph_fn)(struct trek_graph *graph, void *arg);
trek_status trek_graph_each(struct trek_graph *graph, trek_graph_fn fn, void *arg);

/* --- text ------------------------------------------------------------------- */

/* Adds the string with ", \, and control characters escaped as in JSON. */
void trek_text_add_escaped(trek_text *text, const char *string);
/* "%.*g" with a point, whatever the locale; "null" if not finite (JSON). buffer: at least 40 bytes; returned. */
char *trek_number_text(double value, int digits, char *buffer);

#endif
