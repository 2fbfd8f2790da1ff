/* SPDX-License-Identifier: Apache-2.0 */
/* Capture of a whole training step as one unit of work for the device (a CUDA graph).
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
 * The function is called normally a few times. Then its work is recorded, and later steps replay the record without calling the
 * function. Replays have the bits of the calls that they replace: the learning rate (also of schedules), step counts, random
 * numbers, loss scale and clipping are kept on the device. trek notices a change that does not fit the record and records the
 * step again. Such changes are other shapes of inputs, train or eval mode, frozen modules, and another optimizer.
 *
 * With several GPUs of one process and NCCL, each rank's thread records the rank's part (docs/gpu.md). If the launch of a
 * replay fails halfway, the group of ranks ends, as after a collective that fails. Several processes with one GPU each agree
 * before each step whether all of them call, record or replay it. trek_graph_capture is then a collective, with one exchange
 * between the hosts for a replay.
 *
 * In grains (trek_trainer_opts.grain) grains are recorded instead of steps, each by its rank: the function is called in each
 * step, and trek_graph_train_batch in it replays them (docs/same-bits.md). Processes exchange nothing for it.
 *
 * Some steps cannot be recorded: steps on CPUs, in processes with several GPUs each, and of a function that reads a value,
 * computes on the host, or gets different tensors at each call by another way than trek_graph_capture_input. Then each call
 * calls the function. */
#ifndef TREK_GRAPH_CAPTURE_H
#define TREK_GRAPH_CAPTURE_H

#include "graph/graph.h"

TREK_BEGIN

/* A function of the user that does one step: forward, loss, backward, and trek_graph_step at most once. A scope is open around
 * the call. Anything that it does other than giving work to the device happens only when it is called, not in replays. If
 * recording fails, it is called a second time. */
typedef trek_status (*trek_step_fn)(trek_graph *graph, void *arg);

/* Runs one step: it calls, records or replays `step`. It does not wait for the device. With several ranks it waits until running
 * statistics are merged. With several processes it waits for the other processes.
 * Threads: if a call comes from another thread than the one before, the step is recorded again.
 * Errors: STATE if `step` itself calls it. Otherwise the status of `step` or of the replay. With several processes also PEER,
 * TIMEOUT, COMM and ARGUMENT, as for a step. */
TREK_API trek_status trek_graph_capture(trek_graph *graph, trek_step_fn step, void *arg);

/* Sets input k (0 to 63) of the next steps. The value is retained until the next one is set, and is copied to a tensor of the
 * graph on its device. Dtype and shape may change: the step is then recorded for them, too. At most 4 records are kept. */
TREK_API trek_status trek_graph_capture_input(trek_graph *graph, int k, trek_var *value);
/* Returns input k on the graph's device, borrowed. It is called inside the step function.
 * Errors: STATE outside of the step function. ARGUMENT if input k was not set. NULL is returned. */
TREK_API trek_var *trek_graph_captured_input(trek_graph *graph, int k);

/* Keeps `value`, detached, as result k (0 to 63) of this step and of its replays. It is called inside the step function. */
TREK_API trek_status trek_graph_capture_output(trek_graph *graph, int k, trek_var *value);
/* Returns result k of the last step, borrowed until the next step. Returns NULL without an error if no step has set it yet. */
TREK_API trek_var *trek_graph_captured_output(trek_graph *graph, int k);

/* Returns how many steps were replayed, or -1 if `graph` is NULL. In grains these are the steps all of whose grains were. */
TREK_API int64_t trek_graph_replays(const trek_graph *graph);
/* Returns why steps are not recorded, or "" if they are or will be. The string is valid until the graph is freed. If one of
 * several processes prevents recording, all processes return a reason that names it. */
TREK_API const char *trek_graph_capture_problem(const trek_graph *graph);
/* Removes all records, inputs, results and an earlier reason. In a job of several processes all of them must call it.
 * Errors: STATE if it is called inside a step function. */
TREK_API trek_status trek_graph_capture_reset(trek_graph *graph);

TREK_END

#endif
