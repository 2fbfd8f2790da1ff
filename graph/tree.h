/* SPDX-License-Identifier: Apache-2.0 */
/* Access to a graph's modules, tags and observed scalars by paths with dots, such as "encoder.scan".
 *
 * A path is a list of names of children, as in parameter names. Each child is inside the one before it. "" and NULL stand for
 * the graph itself. A path names a module. The path of a nested graph with one more name names a tag or an observed scalar of
 * that graph. If a name could be a child or a tag, it is the child. Tags that begin with "_" are private: no path from outside
 * finds them. A path that does not exist is an error ARGUMENT, whose message says where the path leaves the tree. Changes that
 * are made here reach every rank, as those of trek_graph_freeze do. To save or load only a part, call
 * trek_state_save(trek_graph_at(graph, path), file) or trek_state_load; call trek_graph_parameters_changed after loading. */
#ifndef TREK_GRAPH_TREE_H
#define TREK_GRAPH_TREE_H

#include "graph/observe.h"
#include "graph/timeline.h"

TREK_BEGIN

/* -- structure -- */

/* What a path names. */
typedef enum trek_path_kind { TREK_PATH_KIND_NONE, TREK_PATH_KIND_MODULE, TREK_PATH_KIND_TAG } trek_path_kind;
/* Returns what the path names. Errors: ARGUMENT if the path does not exist; TREK_PATH_KIND_NONE is returned. */
TREK_API trek_path_kind trek_graph_path_kind(trek_graph *graph, const char *path);
/* Returns the number of children of the module at a path. Errors: ARGUMENT if no module is at the path; -1 is returned. */
TREK_API int trek_graph_child_count(trek_graph *graph, const char *path);
/* Returns the name of child k of the module at a path, borrowed. Children are in the order in which they were added. Returns
 * NULL if k is out of range.
 * Errors: ARGUMENT if no module is at the path; NULL is returned. */
TREK_API const char *trek_graph_child_name(trek_graph *graph, const char *path, int k);
/* Returns a text with one line for the module at the path and for each module below it. A line has the name, the class, the
 * number of parameters, "frozen" if all of them are frozen, and the tags of a graph. Shared parameters are counted where they
 * come first. The caller frees the string with trek_string_free. */
TREK_API char *trek_graph_tree(trek_graph *graph, const char *path);

/* -- parameters and modes -- */

/* Returns the parameters of the module at a path and of the modules below it, each once, with their names in the whole graph.
 * The caller frees the list with trek_params_free. */
TREK_API trek_params *trek_graph_params_at(trek_graph *graph, const char *path);
/* Returns true if the module at a path has parameters and all of them are frozen. */
TREK_API bool trek_graph_is_frozen(trek_graph *graph, const char *path);
/* Sets the mode of the module at a path, as trek_graph_train does for the whole graph: training mode for true, evaluation mode
 * for false. */
TREK_API trek_status trek_graph_train_at(trek_graph *graph, const char *path, bool training);

/* -- tags and observed scalars -- */

/* Returns the value of a nested graph's tag, as trek_graph_tagged does for the graph's own tags, and borrowed in the same way.
 * With several ranks the value is joined, and losses can be computed from it.
 * Errors: UNSUPPORTED if the ranks' values cannot be joined, because their rows are not those of the batch, or not every rank
 * ran the branch, or the graph has more than TREK_MOST_JOINED_TAGS of them. NULL is returned. */
TREK_API trek_var *trek_graph_tagged_at(trek_graph *graph, const char *path);
/* The most tags of nested graphs whose values are joined over ranks. */
#define TREK_MOST_JOINED_TAGS 255

/* Records a value for a nested graph, as trek_graph_record does. In the function of trek_graph_set_loss the value is weighted by
 * the rows of the current batch, and the point is computed from all ranks and processes, as with trek_record_scalar. */
TREK_API trek_status trek_graph_record_at(trek_graph *graph, const char *path, double value);
/* Records the value of a nested graph's tag, reduced to a scalar as trek_graph_collect_with does. The mean of a scalar is the
 * scalar.
 * Errors: UNSUPPORTED in the function of trek_graph_set_loss, where the value has the rows of one rank, unless `reduction`
 * is TREK_REDUCTION_MEAN. */
TREK_API trek_status trek_graph_collect_at(trek_graph *graph, const char *path, trek_reduction reduction);
/* Records the values of all tags of a group (trek_flow_tag_group) as trek_graph_collect_at does: "encoder.heads" records
 * heads_0, heads_1, ... If one of them fails, none is recorded. */
TREK_API trek_status trek_graph_collect_group(trek_graph *graph, const char *path, trek_reduction reduction);
/* Returns the trend of a name of a nested graph, as trek_graph_trend does: NULL without an error if nothing was recorded under
 * this name. */
TREK_API const trek_trend *trek_graph_trend_at(trek_graph *graph, const char *path);
/* Writes the trends of a group to `trends`, at most `capacity` of them, and returns how many the group has. A group consists of
 * the tags or observed scalars NAME_0, NAME_1, ... up to the last that exists. An entry is NULL if its name has no point yet.
 * Returns 0 without an error if no such name exists.
 * Errors: ARGUMENT; -1 is returned. */
TREK_API int trek_graph_trend_group(trek_graph *graph, const char *path, const trek_trend **trends, int capacity);
/* Removes all points of a trend. Values that were recorded since the last flush stay.
 * Errors: ARGUMENT if nothing was recorded under this name. */
TREK_API trek_status trek_graph_reset_trend(trek_graph *graph, const char *path);
/* Removes all points of all trends of the graph and of its nested graphs. */
TREK_API trek_status trek_graph_reset_trends(trek_graph *graph);

/* A function of the user that trek_graph_each_metric calls with an observed scalar: its name, its last point and its trend. */
typedef trek_status (*trek_metric_fn)(const char *name, double latest, const trek_trend *trend, void *arg);
/* Calls `fn` for each observed scalar that has a point. The graph's own scalars come first, in the order in which they were
 * first recorded. Then those of nested graphs follow with their paths ("encoder.loss"), except names that begin with "_". If
 * `fn` returns another status than TREK_OK, the calls end and this status is returned. */
TREK_API trek_status trek_graph_each_metric(trek_graph *graph, trek_metric_fn fn, void *arg);

/* Records the times of the graph's modules from a timeline with ops, since it was created or cleared. For each module down to
 * `depth` levels below the graph (0 stands for 1, TREK_OFF for all) it records two scalars over all ranks of this process:
 * "ms.PATH", the mean milliseconds of a forward, and "ms.PATH.backward", the mean milliseconds of backward per forward. They
 * become a trend of times if before each flush this function and trek_timeline_clear are called. Device times are used if the
 * timeline has them. Runs of the graph inside another module (a task head, a wrapper) do not count.
 * Errors: STATE if the timeline does not record ops. */
TREK_API trek_status trek_graph_record_times(trek_graph *graph, trek_timeline *timeline, int depth);

TREK_END

#endif
