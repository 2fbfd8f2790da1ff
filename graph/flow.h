/* SPDX-License-Identifier: Apache-2.0 */
/* The flow builder describes a model as a stream of values that passes through modules. The stream can be split, merged and
 * tagged; parts of it can run in loops, be chosen by routers and be mapped. trek_flow_build makes a graph of it.
 *
 * The functions collect mistakes instead of reporting each one: trek_flow_build reports all of them. Each function returns the
 * flow, so that calls can be nested. If the flow is NULL because an earlier call failed, a function returns NULL. A module that
 * is given to a flow belongs to the flow, even if the call fails. A module that is given twice is shared: it has one set of
 * parameters. A flow may be used by one thread only. */
#ifndef TREK_GRAPH_FLOW_H
#define TREK_GRAPH_FLOW_H

#include "graph/graph.h"
#include "tensor/op_opts.h"

TREK_BEGIN

/* A model that is being described. */
typedef struct trek_flow trek_flow;

/* Returns a new flow with one stream: the graph's first input, which is named "input". Errors: MEMORY; NULL is returned. */
TREK_API trek_flow *trek_flow_new(void);
/* Returns a new flow that passes its input through `module`: trek_flow_through(trek_flow_new(), module). */
TREK_API trek_flow *trek_flow_from(trek_module *module);
/* Replaces the stream x by module(x). Exactly one stream must be open. */
TREK_API trek_flow *trek_flow_through(trek_flow *flow, trek_module *module);
/* Replaces the stream x by x + module(x), a residual connection. Exactly one stream must be open. */
TREK_API trek_flow *trek_flow_also(trek_flow *flow, trek_module *module);

/* Gives the stream's value a name for trek_flow_using and trek_graph_tagged. After trek_flow_fork it names the fork's value. A
 * name can be used only once in a flow. */
TREK_API trek_flow *trek_flow_tag(trek_flow *flow, const char *name);

/* -- Parts that run more than once, or for some of the rows only.
 * Each of these parts is one module of the graph: a "loop", "gate", "switch" or "map". The modules that are given to it are its
 * children "body" and "condition", or "router" and "0", "1", ... Rows are slices of dimension 0, mostly samples. With several
 * ranks, each rank loops, chooses and maps for its own rows; the results are those of one device, also with dropout inside. In a
 * loop with a condition, a switch, and a map over dimension 0, the number of runs depends on the rows. There, layers that
 * communicate with other ranks (trek_nn_sync_batch_norm) are a mistake, and layers that couple samples see only the rows of the
 * current run. -- */

/* Makes a graph of the flow and frees the flow. The caller owns the graph.
 * Errors: ARGUMENT if mistakes were made, with one line for each of them as far as the message is long enough. MEMORY. NULL is
 * returned. */
TREK_API trek_graph *trek_flow_build(trek_flow *flow);
/* Frees a flow that will not be built, with its modules, and sets *flow to NULL. */
TREK_API void trek_flow_free(trek_flow **flow);

TREK_END

#endif
