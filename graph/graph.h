/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: what trek_flow_build makes. A graph is a module (it nests, has
 * parameters, is saved) and also what a training loop talks to: forward,
 * backward, step, optimizer, schedule, clipping. The same calls train on one
 * device or on many, once trek_trainer_setup has been called.
 *
 * A graph is used by one thread at a time, but for forwards without gradients (trek_no_grad_begin, trek_graph_infer), of which
 * any number of threads run as many as they like at once: docs/inference.md. Functions given a NULL graph leave
 * the first error in place and return NULL, a status, or what is named. */
#ifndef TREK_GRAPH_GRAPH_H
#define TREK_GRAPH_GRAPH_H

#include "nn/fp8.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"
#include "optim/schedule.h"

TREK_BEGIN

typedef struct trek_graph trek_graph;

/* The graph as a module (it begins with one), borrowed. Handing it to a flow or
 * a parent hands the graph over. */
TREK_API trek_module *trek_graph_module(trek_graph *graph);
/* The graph that a module is, or NULL without an error. (A graph is made of any other module by
 * trek_flow_build(trek_flow_from(module)).) */
TREK_API trek_graph *trek_graph_from_module(trek_module *module);
/* Frees the graph with its modules; STATE (and nothing done) while a parent owns it. */
TREK_API void trek_graph_free(trek_graph **graph);
/* The module at a path of child names, "encoder.scan", borrowed; "" or NULL: the
 * graph's own. NULL and ARGUMENT if there is none. */
TREK_API trek_module *trek_graph_at(trek_graph *graph, const char *path);

/* -- computing -- */

/* Result in the caller's scope. Errors: ARGUMENT for a wrong number of inputs, SCOPE, and what the modules report. */
TREK_API trek_var *trek_graph_forward(trek_graph *graph, trek_var *x);
TREK_API trek_var *trek_graph_forward_many(trek_graph *graph, trek_var *const *inputs, int n);
/* Without gradients, on the calling thread alone, of whatever rank: nothing of the graph is written, so any number of threads may
 * be in here at once (in eval mode, while nobody changes parameters, modes or structure). Tagged values of this call that are
 * asked for, up to 64 by name, come into the caller's scope like the result; `using` reads what a first forward reads, and
 * carries nothing on. The same holds of graphs nested in this one. Under the graph's autocast. tags and values: NULL with n_tags
 * 0; values are NULL on failure. Errors: as trek_graph_forward; ARGUMENT for an unknown tag.
 *
 * trek_graph_forward and trek_forward under trek_no_grad_begin do the same on threads other than the graph's own, which is the
 * one that built it or last ran it with gradients: only that one's forwards are seen by trek_graph_tagged and carry states. */
TREK_API trek_var *trek_graph_infer(trek_graph *graph, trek_var *const *inputs, int n, const char *const *tags, trek_var **values,
                                    int n_tags);
TREK_API int trek_graph_input_count(const trek_graph *graph);
TREK_API const char *trek_graph_input_name(const trek_graph *graph, int k); /* borrowed; NULL out of range */
/* Adds d loss / d parameter to the gradients of this graph's parameters, no
 * others. The tape is freed. Passes add up until step, or are one large batch (trek_trainer_opts.accumulate).
 * loss: a scalar. Over several processes: the mean of something, since each process's is weighted by what it is the mean of; a
 * sum there gives the weighted mean of the processes' sums. Hooks on parameters (trek_var_on_grad) see rank 0's part of a
 * gradient that ranks have parts of, before the reduction; after trek_graph_reduce the gradient itself is whole. */
TREK_API trek_status trek_graph_backward(trek_graph *graph, trek_var *loss);
/* The same for a loss that is the mean over `weight` rows (>= 0): what its
 * gradient counts for beside the other ranks' in this pass, and beside other passes with .accumulate. 0: parameters that it uses
 * get zeros, whatever the loss is, NaN too. */
TREK_API trek_status trek_graph_backward_weighted(trek_graph *graph, trek_var *loss, double weight);
/* Makes the gradients readable before the step: reduced over all ranks, and the mean of the passes where they are weighed. A
 * collective. */
TREK_API trek_status trek_graph_reduce(trek_graph *graph);
/* Learning rate from the schedule, clipping, update, gradients to zero. While the
 * thread has an error it changes nothing and returns that error. STATE without an optimizer. */
TREK_API trek_status trek_graph_step(trek_graph *graph);
TREK_API trek_status trek_graph_zero_grad(trek_graph *graph);
/* Drops the values that `using` carries from one forward to the next. Nested graphs', too. */
TREK_API trek_status trek_graph_reset_state(trek_graph *graph);
/* Truncates backpropagation through time: those values, tagged ones and traces of loops stay what they are, but leave the tape,
 * so that no gradient goes past here. On all ranks of this process and in nested graphs; a step does the same. */
TREK_API trek_status trek_graph_detach_state(trek_graph *graph);

/* -- training set-up -- */

/* All of this may be set before trek_trainer_setup or after it. */

/* The parameters move into a flat arena. Replaces an earlier optimizer and its state. Where processes divide the state
 * (.shard_optimizer) all of them call it, alike. */
TREK_API trek_status trek_graph_set_optimizer(trek_graph *graph, trek_optimizer_spec spec);
/* Step k (counted from 0) uses trek_schedule_lr(schedule, k). Further groups keep the ratio of their rates to group 0's. NULL:
 * the learning rate stays as it is. */
TREK_API trek_status trek_graph_set_schedule(trek_graph *graph, const trek_schedule *schedule);
/* A fixed learning rate; ends a schedule. */
TREK_API trek_status trek_graph_set_lr(trek_graph *graph, double lr);
/* Clips gradients at each step: their joint 2-norm to max_norm, then each element to
 * [-max_value, max_value]. <= 0: off. */
TREK_API trek_status trek_graph_set_clip(trek_graph *graph, double max_norm, double max_value);

/* Mixed precision. */
typedef enum trek_amp_products {
    TREK_PRODUCTS_DEFAULT,    /* in .dtype */
    TREK_FP8,                 /* of linear layers with operands of 8 bits, all else in bf16: nn/fp8.h */
} trek_amp_products;
typedef struct trek_amp_opts {
    trek_dtype dtype;             /* BF16 or F16: forward runs under autocast in it, and gives f32 where its result is 16-bit
                                     (a loss that the program computes is then f32). F32, the default: no autocast */
    int scaling;                  /* of the loss: default 0: with F16; 1: in any case; TREK_OFF: never */
    trek_grad_scaler_opts scaler; /* its numbers; .disabled is ignored */
    trek_amp_products products; /* TREK_FP8: .dtype is bf16 (or left out, which then means that) */
    trek_fp8_opts fp8;        /* with TREK_FP8: as for trek_fp8_enable, which this calls for the graph's modules */
} trek_amp_opts;
/* Autocast and dynamic loss scaling. Backward multiplies the loss by the scale (gradients that are looked at before the
 * step are scaled ones), step divides gradients by it, or is skipped on all ranks if one is inf or NaN: parameters,
 * optimizer state and its step counts stay, gradients go, the scale shrinks. On GPUs the host does not wait for that, so
 * a skipped step counts for trek_graph_steps and the schedule. opts NULL: off. Begins with a new scaler. TREK_FP8 comes
 * before trek_trainer_setup or in its options, and cannot be taken back by another .products after it: STATE. ARGUMENT, MEMORY.
 */
TREK_API trek_status trek_graph_set_amp(trek_graph *graph, const trek_amp_opts *opts);
/* The scaler, borrowed, e.g. to save and load its state; NULL without an error where the loss is not scaled. */
TREK_API trek_grad_scaler *trek_graph_scaler(trek_graph *graph);
/* Steps that were skipped since the optimizer was set; waits for the device. -1 on failure. */
TREK_API int64_t trek_graph_skipped(trek_graph *graph);
TREK_API trek_status trek_graph_train(trek_graph *graph, bool training);
/* Freezes the module at a path (NULL: all); see trek_module_freeze. */
TREK_API trek_status trek_graph_freeze(trek_graph *graph, const char *path);
TREK_API trek_status trek_graph_thaw(trek_graph *graph, const char *path);
/* To be called after parameters or buffers were changed from outside (loaded, reset, moved): replicas follow. */
TREK_API trek_status trek_graph_parameters_changed(trek_graph *graph);
/* Marks an input that is the same for all samples: ranks get it whole instead of a part. */
TREK_API trek_status trek_graph_replicate_input(trek_graph *graph, const char *input);

TREK_API int trek_graph_world_size(trek_graph *graph);   /* ranks that train this graph; 0 for NULL */
/* Writes each rank's share of the global batch to shares (at most `capacity`); returns the number of ranks. */
TREK_API int trek_graph_shares(trek_graph *graph, double *shares, int capacity);
TREK_API double trek_graph_lr(trek_graph *graph);        /* NaN without an optimizer */
TREK_API int64_t trek_graph_steps(trek_graph *graph);    /* steps done */
/* 2-norm of the last step's gradients before clipping; NaN when it was not measured (no max_norm). */
TREK_API double trek_graph_grad_norm(trek_graph *graph);
TREK_API trek_optimizer *trek_graph_optimizer(trek_graph *graph); /* borrowed; NULL without an error if there is none */

/* -- looking at it -- */

/* The tagged value of the last forward of the graph's own thread (trek_graph_infer), borrowed until the next forward or step (a
 * step detaches it from the tape). NULL without an error before the first
 * forward; NULL and ARGUMENT for an unknown tag. */
TREK_API trek_var *trek_graph_tagged(trek_graph *graph, const char *tag);
TREK_API int trek_graph_tag_count(const trek_graph *graph);
TREK_API const char *trek_graph_tag_name(const trek_graph *graph, int k); /* in order of tagging; NULL out of range */

/* What loops published under a name in the last forward (trek_loop_publish, trek_loop_opts.trace): how many values there are (0
 * for an unknown name; -1 on failure), and value k, counted from 0. With several loops that use a name, "path.name" says which,
 * as trek_graph_at. An inner loop's are those of its last run. Borrowed until the next forward or step (which detaches it); over
 * several ranks detached, joined along dimension 0 in rank order, and in the present scope: a rank whose rows had all halted
 * before gives its last value. ARGUMENT: no such value; several loops have the name. UNSUPPORTED: scalars of several ranks. */
TREK_API int trek_graph_trace_count(trek_graph *graph, const char *name);
TREK_API trek_var *trek_graph_trace(trek_graph *graph, const char *name, int k);

/* SHA-256 over structure: classes of the nodes, sorted parameter and buffer names
 * with shapes and dtypes, nested graphs' hashes, options and parts of loops,
 * gates, switches and maps, edges, sorted tags and input names. Labels and values
 * are left out. Writes 64 hex digits to text (at least
 * TREK_GRAPH_HASH_TEXT bytes) and returns it; NULL and MEMORY. */
#define TREK_GRAPH_HASH_TEXT 65
TREK_API char *trek_graph_hash(trek_graph *graph, char *text);
/* The graph in Graphviz' DOT language, a new string (trek_string_free). More in draw.h, which draws SVG, too. */
TREK_API char *trek_graph_dot(trek_graph *graph);

TREK_END

#endif
