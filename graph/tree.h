/* SPDX-License-Identifier: Apache-2.0 */
/* A graph's modules, tags and observed scalars by dotted paths: "encoder.scan".
 *
 * A path is names of children, as in parameter names, each inside the one before; "" or NULL is the graph itself. It names a
 * module, or, with one more name behind a nested graph's path, a tag or an observed scalar of that graph. Where a name could be
 * either, it is the child. Tags that begin with "_" are their graph's own: no path from outside leads to them.
 * A path that leads nowhere is an ARGUMENT error that tells where it leaves the tree. What is changed here reaches every rank, as
 * what trek_graph_freeze changes does. State of a part: trek_state_save(trek_graph_at(graph, path), file) and
 * trek_state_load leave the rest alone; trek_graph_parameters_changed after loading. */
#ifndef TREK_GRAPH_TREE_H
#define TREK_GRAPH_TREE_H

#include "graph/observe.h"
#include "graph/timeline.h"

TREK_BEGIN

/* -- what there is -- */

typedef enum trek_path_kind { TREK_PATH_NONE, TREK_PATH_MODULE, TREK_PATH_TAG } trek_path_kind;
/* What the path names; NONE and ARGUMENT where it leads nowhere. */
TREK_API trek_path_kind trek_graph_path_kind(trek_graph *graph, const char *path);
/* Children of the module at a path, in order of adding; -1 and ARGUMENT without one. */
TREK_API int trek_graph_child_count(trek_graph *graph, const char *path);
/* Borrowed; NULL out of range, and with ARGUMENT without such a module. */
TREK_API const char *trek_graph_child_name(trek_graph *graph, const char *path, int k);
/* The tree as text, a line for each module at the path and below: its name, class, number of parameters (shared ones where they
 * come first), "frozen" where all of them are, the tags of graphs. A new string (trek_string_free). */
TREK_API char *trek_graph_tree(trek_graph *graph, const char *path);

/* -- parameters and modes -- */

/* Parameters of the module at a path and below, each once, by their names in the whole graph. The caller's
 * (trek_params_free). */
TREK_API trek_params *trek_graph_params_at(trek_graph *graph, const char *path);
/* Whether there are parameters at the path and all of them are frozen. */
TREK_API bool trek_graph_is_frozen(trek_graph *graph, const char *path);
/* trek_graph_train of a part: "" or NULL: of all. */
TREK_API trek_status trek_graph_train_at(trek_graph *graph, const char *path, bool training);

/* -- tags and observed scalars -- */

/* trek_graph_tagged of a nested graph, borrowed as its. Over ranks the value is joined as the graph's own are, and losses may be
 * made of it, too. Where the ranks' values do not fit together (rows that are not the batch's, a branch that not every rank ran;
 * or there are more than TREK_MOST_JOINED_TAGS of them): NULL and UNSUPPORTED. */
TREK_API trek_var *trek_graph_tagged_at(trek_graph *graph, const char *path);
#define TREK_MOST_JOINED_TAGS 255

/* trek_graph_record of a nested graph. Inside the function of trek_graph_set_loss it counts with the rows of the batch that
 * runs, and the point is that of all ranks and processes, as with trek_record_scalar. */
TREK_API trek_status trek_graph_record_at(trek_graph *graph, const char *path, double value);
/* trek_graph_collect_with of a nested graph's tag (MEAN of a scalar is itself). Inside the function of
 * trek_graph_set_loss, where the value is that of one rank's rows, there is only MEAN: UNSUPPORTED. */
TREK_API trek_status trek_graph_collect_at(trek_graph *graph, const char *path, trek_collect how);
/* The same for each of a group's tags (trek_flow_tag_group): "encoder.heads" collects heads_0, heads_1, ... None, or all. */
TREK_API trek_status trek_graph_collect_group(trek_graph *graph, const char *path, trek_collect how);
/* trek_graph_trend of a nested graph. */
TREK_API const trek_trend *trek_graph_trend_at(trek_graph *graph, const char *path);
/* The trends of a group: of tags or observed scalars NAME_0, NAME_1, ... as far as there are, in that order. Writes the first
 * `room` of them (NULL: one without a point so far) and returns their number; 0 without an error: there is none, -1: ARGUMENT. */
TREK_API int trek_graph_trend_group(trek_graph *graph, const char *path, const trek_trend **trends, int room);
/* Forgets a trend's points; what was recorded since the last flush stays. ARGUMENT: nothing was recorded under that name. */
TREK_API trek_status trek_graph_reset_trend(trek_graph *graph, const char *path);
/* Those of all trends of the graph and of nested ones. */
TREK_API trek_status trek_graph_reset_trends(trek_graph *graph);

/* Calls fn for each observed scalar that has a point, with its last one: the graph's own in order of their first recording, then
 * those of nested graphs in order of the walk, under their paths ("encoder.loss"). A name that begins with "_" in a nested graph
 * is left out. fn's status other than TREK_OK ends it and is returned. */
typedef trek_status (*trek_metric_fn)(const char *name, double latest, const trek_trend *trend, void *arg);
TREK_API trek_status trek_graph_each_metric(trek_graph *graph, trek_metric_fn fn, void *arg);

/* Records what the modules of the graph took, of a timeline with ops, since that was made or cleared: for each module, down to
 * `depth` levels below the graph (0: 1; TREK_OFF: all), the mean milliseconds of a forward as "ms.PATH" and of its backward,
 * per forward, as "ms.PATH.backward", over all ranks of this process: a timing trend, where each flush follows such a
 * call and a trek_timeline_clear. Device times where the timeline has them. What ran inside another module than the graph (a task
 * head, a wrapper) is not the graph's own run, and left out. STATE: a timeline without ops. */
TREK_API trek_status trek_graph_record_times(trek_graph *graph, trek_timeline *timeline, int depth);

TREK_END

#endif
