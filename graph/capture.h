/* SPDX-License-Identifier: Apache-2.0 */
/* A whole training step as one piece of work for the device (a CUDA graph).
 *
 *     static trek_status step(trek_graph *graph, void *arg)
 *     {
 *         trek_var *x = trek_graph_captured_input(graph, 0), *y = trek_graph_captured_input(graph, 1);
 *         trek_var *loss = trek_cross_entropy(trek_graph_forward(graph, x), y);
 *         trek_graph_capture_output(graph, 0, loss);
 *         trek_graph_backward(graph, loss);
 *         return trek_graph_step(graph);
 *     }
 *     ...
 *     trek_graph_capture_input(graph, 0, images);
 *     trek_graph_capture_input(graph, 1, labels);
 *     trek_graph_capture(graph, step, NULL);
 *
 * The function is called a few times as any other; then its work is recorded, and
 * from there on replayed without calling the function. Replays give the bits of
 * the calls they stand for: learning rate (schedules too), step counts, random
 * numbers, loss scale and clipping are the device's own. A change that the record
 * does not fit (other shapes of inputs, train or eval, what is frozen, another
 * optimizer) is noticed, and the step recorded anew.
 *
 * On several GPUs of one process, with NCCL, each rank's part is recorded by its own
 * thread (docs/gpu.md); a replay whose launch fails in the middle ends the ranks'
 * group, as a collective does that fails. Processes with a GPU each agree before each step
 * whether all call, record or replay it: trek_graph_capture is a collective then, one exchange by
 * the host where they replay.
 *
 * Where steps cannot be recorded (CPUs, processes with several GPUs each, a function that reads a value, computes
 * on the host, or takes another tensor at each call by another way than
 * trek_graph_capture_input) each call simply calls the function. */
#ifndef TREK_GRAPH_CAPTURE_H
#define TREK_GRAPH_CAPTURE_H

#include "graph/graph.h"

TREK_BEGIN

/* One step: forward, loss, backward, trek_graph_step once (or not at all). A scope is open around it. What it does beside
 * giving work to the device is done when it is called, not at replays; and where recording fails, it is called a second time. */
typedef trek_status (*trek_step_fn)(trek_graph *graph, void *arg);

/* Does one step. All calls from one thread, or it is recorded anew. Waits for nothing; on several ranks, for the merging of
 * running statistics; of several processes, for the others to come to it. What the function returns and reports, STATE from
 * inside such a function; what a replay reports; of several processes also PEER, TIMEOUT, COMM, ARGUMENT as a step. */
TREK_API trek_status trek_graph_capture(trek_graph *graph, trek_step_fn step, void *arg);

/* Value k (0 to 63) for the next steps, retained until another one is given: copied into a tensor of the graph's own, on its
 * device. Dtype and shape may change; then the step is recorded for these, too (at most 4 kinds are kept). */
TREK_API trek_status trek_graph_capture_input(trek_graph *graph, int k, trek_var *value);
/* For the function: value k on the graph's device, borrowed. NULL and STATE outside of it, ARGUMENT if it was not given. */
TREK_API trek_var *trek_graph_captured_input(trek_graph *graph, int k);

/* From the function: keeps `value` (detached) as result k (0 to 63) of this step and of its replays. */
TREK_API trek_status trek_graph_capture_output(trek_graph *graph, int k, trek_var *value);
/* Result k of the last step, borrowed until the next one. NULL without an error before there is one. */
TREK_API trek_var *trek_graph_captured_output(trek_graph *graph, int k);

TREK_API int64_t trek_graph_replays(const trek_graph *graph); /* steps that were replayed; -1 for NULL */
/* Why steps are not recorded, "" where they are, or will be; valid until the graph is freed. Of several processes, all whose
 * steps are called because of one have a reason, and it names that one. */
TREK_API const char *trek_graph_capture_problem(const trek_graph *graph);
/* Forgets records, inputs, results and an earlier problem; which all processes have to forget. STATE from inside the function. */
TREK_API trek_status trek_graph_capture_reset(trek_graph *graph);

TREK_END

#endif
