/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs, which trek_flow_build makes. A graph is a module: it can be part of another module, has parameters and is saved. It is
 * also the object of a training loop: forward, backward, step, optimizer, schedule, clipping. These calls train on one device
 * or, after trek_trainer_setup, on many.
 *
 * Only one thread at a time may use a graph, with one exception: any number of threads may run forwards without gradients
 * (trek_no_grad_begin, trek_graph_infer) at the same time, see docs/inference.md. If `graph` is NULL, a function sets an error
 * and returns NULL, a status, or the value that its comment states. A pointer that is "borrowed" must not be freed by the
 * caller. */
#ifndef TREK_GRAPH_GRAPH_H
#define TREK_GRAPH_GRAPH_H

#include "nn/fp8.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "optim/scaler.h"
#include "optim/schedule.h"

TREK_BEGIN

/* A graph of modules. */
typedef struct trek_graph trek_graph;

/* Returns the graph as a module, borrowed. Giving this module to a flow or to a parent module gives the graph away: the new
 * parent owns it. */
TREK_API trek_module *trek_graph_module(trek_graph *graph);
/* Returns the module as a graph if it is one, otherwise NULL without an error. To make a graph from any other module, call
 * trek_flow_build(trek_flow_from(module)). */
TREK_API trek_graph *trek_graph_from_module(trek_module *module);
/* Frees the graph with its modules and sets *graph to NULL. Errors: STATE if a parent owns the graph; nothing is freed then. */
TREK_API void trek_graph_free(trek_graph **graph);
/* Returns the module at a path of child names, such as "encoder.scan", borrowed. "" and NULL stand for the graph itself.
 * Errors: ARGUMENT if no such module exists; NULL is returned. */
TREK_API trek_module *trek_graph_at(trek_graph *graph, const char *path);

/* -- computing -- */

/* Computes the graph's output for one input. The result belongs to the caller's scope.
 * Errors: ARGUMENT if the graph has more than one input, SCOPE if no scope is open, and the errors of the modules. */
TREK_API trek_var *trek_graph_forward(trek_graph *graph, trek_var *x);
/* Computes the graph's output for `n` inputs, which are in the order of trek_graph_input_name. The result belongs to the
 * caller's scope.
 * Errors: ARGUMENT for a wrong number of inputs, SCOPE if no scope is open, and the errors of the modules. */
TREK_API trek_var *trek_graph_forward_many(trek_graph *graph, trek_var *const *inputs, int n);
/* Computes the graph's output without gradients, on the calling thread only, and returns also the tagged values of this call.
 * - `tags` holds the names of at most 64 tagged values. values[k] becomes the value of tags[k], or NULL on failure. If n_tags is
 *   0, both may be NULL. The result and the values belong to the caller's scope.
 * - The graph's autocast applies. States (trek_flow_using) start as in a first forward and are not carried on.
 * - Threads: the call writes nothing to the graph, nor to graphs nested in it. Any number of threads may call it at the same
 *   time, in eval mode, as long as nobody changes parameters, modes or structure.
 * - Errors: as trek_graph_forward_many; ARGUMENT for an unknown tag.
 *
 * Under trek_no_grad_begin, trek_graph_forward and trek_forward do the same if the calling thread is not the graph's own thread.
 * That is the thread that built the graph or last ran it with gradients. Only its forwards carry states and can be read with
 * trek_graph_tagged. */
TREK_API trek_var *trek_graph_infer(trek_graph *graph, trek_var *const *inputs, int n, const char *const *tags, trek_var **values,
                                    int n_tags);
/* Returns the number of the graph's inputs, or 0 if `graph` is NULL. */
TREK_API int trek_graph_input_count(const trek_graph *graph);
/* Returns the name of input k, borrowed, or NULL if k is out of range. */
TREK_API const char *trek_graph_input_name(const trek_graph *graph, int k);
/* Computes the gradients of `loss`, a scalar, and adds them to the gradients of this graph's parameters, but of no others. It
 * frees the tape. Several calls before a step add up, or form one large batch (trek_trainer_opts.accumulate). With several
 * processes the loss should be a mean, because the processes' losses are weighted by the number of elements they are the mean
 * of. If it is a sum, the result is the weighted mean of the processes' sums. If each rank computes a part of a gradient, hooks
 * on parameters (trek_var_on_grad) see rank 0's part before the reduction; after trek_graph_reduce the gradient is whole. */
TREK_API trek_status trek_graph_backward(trek_graph *graph, trek_var *loss);
/* Computes gradients as trek_graph_backward does, for a loss that is the mean over `weight` rows. The gradient counts with
 * this weight when it is combined with those of other ranks in this pass, and with those of other passes with .accumulate.
 * With weight 0 the parameters that the loss uses get gradients of 0, even if the loss is NaN.
 * Errors: ARGUMENT if `weight` is negative or not finite. */
TREK_API trek_status trek_graph_backward_weighted(trek_graph *graph, trek_var *loss, double weight);
/* Makes the gradients ready for reading before the step: it reduces them over all ranks and, if passes are weighted, divides
 * them so that they are the mean of the passes. It is a collective: every process must call it. */
TREK_API trek_status trek_graph_reduce(trek_graph *graph);
/* Performs one optimizer step: it sets the learning rate of the schedule, clips the gradients, updates the parameters and sets
 * the gradients to zero. If the calling thread has an error, it changes nothing and returns that error.
 * Errors: STATE if the graph has no optimizer. */
TREK_API trek_status trek_graph_step(trek_graph *graph);
/* Sets the gradients of the graph's parameters to zero. */
TREK_API trek_status trek_graph_zero_grad(trek_graph *graph);
/* Drops the states that trek_flow_using carries from one forward to the next, also those of nested graphs. */
TREK_API trek_status trek_graph_reset_state(trek_graph *graph);
/* Truncates backpropagation through time: it detaches the states, the tagged values and the traces of loops from the tape. They
 * keep their values, but no later gradient passes through them. This holds for all ranks of this process and for nested graphs.
 * A step does the same. */
TREK_API trek_status trek_graph_detach_state(trek_graph *graph);

/* -- training set-up -- */

/* Sets the graph's optimizer and replaces an earlier one with its state. The parameters move into one flat block of memory. It
 * may be called before or after trek_trainer_setup. If the processes divide the state (.shard_optimizer), all of them must call
 * it with the same values. */
TREK_API trek_status trek_graph_set_optimizer(trek_graph *graph, trek_optimizer_spec spec);
/* Sets the schedule of the learning rate: step k, counted from 0, uses trek_schedule_lr(schedule, k). The other groups of
 * parameters keep the ratio of their rates to the rate of group 0. NULL ends the schedule: the learning rate stays as it is. */
TREK_API trek_status trek_graph_set_schedule(trek_graph *graph, const trek_schedule *schedule);
/* Sets a fixed learning rate and ends the schedule. */
TREK_API trek_status trek_graph_set_lr(trek_graph *graph, double lr);
/* Sets how each step clips gradients: first the 2-norm of all gradients together to max_norm, then each element to
 * [-max_value, max_value]. A limit that is <= 0 is off.
 * Errors: ARGUMENT if a limit is NaN. */
TREK_API trek_status trek_graph_set_clip(trek_graph *graph, double max_norm, double max_value);

/* How mixed precision computes the matrix products of linear layers. */
typedef enum trek_amp_products {
    TREK_AMP_PRODUCTS_DEFAULT, /* in trek_amp_opts.dtype */
    TREK_AMP_PRODUCTS_FP8,     /* with operands of 8 bits (nn/fp8.h); all other ops run in bf16 */
} trek_amp_products;
/* Options of mixed precision: trek_graph_set_amp. */
typedef struct trek_amp_opts {
    /* TREK_BF16 or TREK_F16: the forward runs under autocast in this dtype. A 16-bit result is converted to f32, so that a loss
     * that the program computes from it is f32. Default TREK_F32: no autocast. */
    trek_dtype dtype;
    int scaling;                  /* loss scaling: 0 (default) only with TREK_F16, 1 always, TREK_OFF never */
    trek_grad_scaler_opts scaler; /* options of the scaler of the loss; the field .no_scaling is not used */
    trek_amp_products products; /* with TREK_AMP_PRODUCTS_FP8, .dtype must be TREK_BF16 or left out, which then means TREK_BF16 */
    trek_fp8_opts fp8; /* used with TREK_AMP_PRODUCTS_FP8: options of trek_fp8_enable, which is called for the graph's modules */
} trek_amp_opts;
/* Turns mixed precision on: autocast and dynamic loss scaling, with a new scaler. NULL for `opts` turns it off. Backward
 * multiplies the loss by the scale, so that gradients are scaled until the step. The step divides them by the scale. If a
 * gradient is infinite or NaN, the step is skipped on all ranks: parameters, optimizer state and its step counts do not
 * change, the gradients are dropped, and the scale is reduced. On GPUs the host does not wait for this decision, so a skipped
 * step counts in trek_graph_steps and in the schedule. TREK_AMP_PRODUCTS_FP8 must be set before trek_trainer_setup or in its
 * options. After that it cannot be turned off by another .products. Errors: STATE for such a change; ARGUMENT, MEMORY. */
TREK_API trek_status trek_graph_set_amp(trek_graph *graph, const trek_amp_opts *opts);
/* Returns the scaler of the loss, borrowed, for example to save or load its state. Returns NULL without an error if the loss is
 * not scaled. */
TREK_API trek_grad_scaler *trek_graph_scaler(trek_graph *graph);
/* Returns how many steps were skipped since the optimizer was set, or -1 on failure. It waits for the device. */
TREK_API int64_t trek_graph_skipped(trek_graph *graph);
/* Sets the mode of the graph and its modules: training mode for true, evaluation mode for false. It does not train. */
TREK_API trek_status trek_graph_train(trek_graph *graph, bool training);
/* Freezes the module at a path (NULL: the whole graph): its parameters get no gradients, see trek_module_freeze. */
TREK_API trek_status trek_graph_freeze(trek_graph *graph, const char *path);
/* Makes the parameters of the module at a path (NULL: the whole graph) trainable again after trek_graph_freeze. */
TREK_API trek_status trek_graph_thaw(trek_graph *graph, const char *path);
/* Copies the parameters and buffers to the replicas of the other ranks. Call it after the program has changed them: loaded,
 * reset or moved them. */
TREK_API trek_status trek_graph_parameters_changed(trek_graph *graph);
/* Marks an input that is the same for all samples: every rank gets the whole input instead of a part.
 * Errors: ARGUMENT if the graph has no input of this name. */
TREK_API trek_status trek_graph_replicate_input(trek_graph *graph, const char *input);

/* Returns the number of ranks that train this graph, or 0 if `graph` is NULL. */
TREK_API int trek_graph_world_size(trek_graph *graph);
/* Writes each rank's share of the global batch to `shares`, at most `capacity` of them, and returns the number of ranks. */
TREK_API int trek_graph_shares(trek_graph *graph, double *shares, int capacity);
/* Returns the current learning rate, or NaN if the graph has no optimizer. */
TREK_API double trek_graph_lr(trek_graph *graph);
/* Returns how many steps the graph has done, or 0 if `graph` is NULL. */
TREK_API int64_t trek_graph_steps(trek_graph *graph);
/* Returns the 2-norm of the last step's gradients before clipping. Returns NaN if it was not measured because no max_norm is
 * set. */
TREK_API double trek_graph_grad_norm(trek_graph *graph);
/* Returns the graph's optimizer, borrowed, or NULL without an error if it has none. */
TREK_API trek_optimizer *trek_graph_optimizer(trek_graph *graph);

/* -- inspection -- */

/* Returns the value of a tag in the last forward of the graph's own thread (see trek_graph_infer). It is borrowed until the
 * next forward or step; a step detaches it from the tape. Before the first forward NULL is returned without an error.
 * Errors: ARGUMENT for an unknown tag; UNSUPPORTED if the ranks' values do not fit together as rows of the batch. */
TREK_API trek_var *trek_graph_tagged(trek_graph *graph, const char *tag);
/* Returns the number of the graph's tags, or 0 if `graph` is NULL. */
TREK_API int trek_graph_tag_count(const trek_graph *graph);
/* Returns the name of tag k, borrowed, or NULL if k is out of range. Tags are in the order in which the flow defined them. */
TREK_API const char *trek_graph_tag_name(const trek_graph *graph, int k);

/* Returns how many values a loop published under `name` in the last forward (trek_loop_publish, trek_loop_opts.trace). It is 0
 * for an unknown name and -1 on failure. If several loops use the name, "path.name" selects one, with a path as in
 * trek_graph_at. For an inner loop the values are those of its last run.
 * Errors: ARGUMENT if several loops use the name. */
TREK_API int trek_graph_trace_count(trek_graph *graph, const char *name);
/* Returns value k, counted from 0, that a loop published under `name` in the last forward; see trek_graph_trace_count. On one
 * rank it is borrowed until the next forward or step; a step detaches it from the tape. With several ranks it is detached,
 * joined along dimension 0 in the order of the ranks, and belongs to the current scope. A rank whose rows had all halted
 * before contributes its last value.
 * Errors: ARGUMENT if no such value exists or several loops use the name; UNSUPPORTED for scalars of several ranks. */
TREK_API trek_var *trek_graph_trace(trek_graph *graph, const char *name, int k);

/* The number of bytes that trek_graph_hash needs for its text. */
#define TREK_GRAPH_HASH_TEXT 65
/* Writes the SHA-256 hash of the graph's structure as 64 hexadecimal digits to `text`, and returns `text`. The hash covers the
 * classes of the nodes, the edges, and the hashes of nested graphs. It covers the sorted names of parameters and buffers with
 * their shapes and dtypes, the sorted tags, and the names of the inputs. It covers the options and parts of loops, gates,
 * switches and maps. It covers neither labels nor values. Errors: ARGUMENT if `capacity`, the size of text in bytes, is below
 * TREK_GRAPH_HASH_TEXT. MEMORY. NULL is returned. */
TREK_API char *trek_graph_hash(trek_graph *graph, char *text, size_t capacity);
/* Returns a drawing of the graph in the DOT language of Graphviz. The caller frees the string with trek_string_free. draw.h has
 * more drawings, also as SVG. */
TREK_API char *trek_graph_dot(trek_graph *graph);

TREK_END

#endif
