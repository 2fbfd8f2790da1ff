/* SPDX-License-Identifier: Apache-2.0 */
/* Data parallelism by hand: replicas of a model, one for each rank, whose gradients
 * are brought together when the program says so. For loops that a trainer does not
 * know: GANs, reinforcement learning, several losses, models that grow.
 *
 * Two ways. trek_ddp_wrap_process: every rank has its own trek_ddp over its own
 * replica, and all ranks make the same calls in the same order, be they processes
 * (trek_comm_init) or threads (trek_ranks_comm inside trek_ranks_run, trek_comm_local).
 * trek_ddp_wrap: one trek_ddp over all replicas of this process, with rank threads of
 * its own; a call reaches all replicas, or, inside trek_ranks_run of trek_ddp_ranks, is
 * made by every rank for its own.
 *
 *     trek_ddp *ddp = trek_ddp_wrap_process(model, comm, NULL);
 *     trek_params *params = trek_module_params(trek_ddp_module(ddp));
 *     trek_optimizer *optimizer = trek_optimizer_new(trek_adam((trek_adam_opts){ .lr = 1e-3 }), params);
 *     for (each step) {
 *         trek_backward(loss_of(model, my_part_of_the_batch));
 *         trek_ddp_reduce_gradients(ddp);
 *         trek_optimizer_step(optimizer);
 *         trek_optimizer_zero_grad(optimizer);
 *     }
 *
 * Every rank's optimizer sees the same gradients and makes the same step. (With replicas
 * in one process the program may as well have one optimizer, for replica 0, and call
 * trek_ddp_sync_params after its steps.)
 *
 * Nothing is sent before it is asked for: backward passes add up, as many as wanted,
 * different numbers on different ranks, then one reduction. Parameters that a rank did
 * not use count as zero there; those that no rank used stay without a gradient; shared
 * ones count once; frozen ones are left alone; graphs may change from pass to pass. What
 * other systems have flags for needs none. Where an optimizer's arena holds the gradients
 * they are sent from it, without a copy.
 *
 * Layers that meet the other ranks (trek_nn_sync_batch_norm) do so in whatever way the replicas run: in trek_ddp_forward
 * those that have an input; inside trek_ranks_run, and with trek_ddp_wrap_process, all ranks, each of which makes the
 * same forwards and backwards in training, with an empty batch where it has no rows. They do not go with overlap.
 *
 * A rank whose thread has an error set still takes part, so that nobody waits for it:
 * it gets its own error back, the others PEER, which names it, and gradients and
 * parameters stay as they were. Where the communicator itself fails in mid-reduction (a
 * peer that dies), the gradients are not to be used; parameters are as they were. */
#ifndef TREK_DISTRIBUTED_DDP_H
#define TREK_DISTRIBUTED_DDP_H

#include "distributed/comm/comm.h"
#include "distributed/ranks.h"
#include "graph/metric.h"
#include "nn/module.h"
#include "optim/optimizer.h"

TREK_BEGIN

typedef struct trek_ddp trek_ddp;

/* The same on all ranks. */
typedef struct trek_ddp_opts {
    int64_t bucket_bytes; /* of gradients that are sent at once; default 25 MiB, the first bucket at most 1 MiB */
    int overlap;          /* trek_ddp_backward sends buckets while backward goes on. Default: where the communicator
                             progresses by itself (MPI, NCCL); TREK_OFF: never; 1: always */
    bool shard_optimizer; /* trek_ddp_optimizer's: each rank keeps and updates a part of the state, as of trek_trainer_opts */
} trek_ddp_opts;

/* n replicas (1 to 1024) in this process, replica r on the device of its parameters (CPUs, too; the same device
 * several times, too), each with a rank thread (trek_ranks); n = 1: none. Names, shapes and dtypes of parameters
 * and buffers must be the same (ARGUMENT names the first that differs), and all take rank 0's values.
 * The models belong to the wrapper, also on failure, as children belong to a module: a model that has other owners, too
 * (a graph's), stays theirs as well. opts may be NULL. NULL and ARGUMENT, DEVICE, MEMORY, STATE. */
TREK_API trek_ddp *trek_ddp_wrap(trek_module *const *models, int n, const trek_ddp_opts *opts);
/* This rank's one replica; all ranks of comm call it. The wrapper takes a handle of its own; NULL: one rank.
 * Else as trek_ddp_wrap; also what the communicator reports, and PEER where another rank failed. */
TREK_API trek_ddp *trek_ddp_wrap_process(trek_module *model, trek_comm *comm, const trek_ddp_opts *opts);
/* Frees the wrapper and its models. Not while another module owns it (STATE). */
TREK_API void trek_ddp_free(trek_ddp **ddp);
/* Frees the wrapper and gives the model of this process's first replica back, with the parameters and buffers that it has; *ddp
 * becomes NULL. The model is the caller's from here on, unless it has another owner, whose it stays; models of other replicas go
 * as by trek_ddp_free. Not a collective. To look at the model while the wrapper lives, which is PyTorch's ddp.module, take
 * trek_ddp_replica_module. Returns NULL and sets ARGUMENT without a wrapper, and STATE while another module owns the wrapper,
 * which then stays as it is. */
TREK_API trek_module *trek_ddp_unwrap(trek_ddp **ddp);

/* After the models have got other parameters, buffers or modules (all replicas alike; made before their optimizers): looks
 * at them anew, with the checks of wrapping, and all take rank 0's values. Collective. Errors as of wrapping; the
 * wrapper then is of use for nothing but another call, and trek_ddp_free. */
TREK_API trek_status trek_ddp_refresh(trek_ddp *ddp);

/* The wrapper as a module: parameters, buffers, modules, names ("up.weight", no prefix) and train/eval of replica 0, so
 * that optimizers, trek_state_save and whatever takes a module take it. Its forward: inside trek_ranks_run the calling
 * rank's replica; else, over several replicas, the rows of each input are divided among them evenly and the outputs
 * joined (trek_ddp_forward). Borrowed; it may be given to a parent, which then owns the wrapper. */
TREK_API trek_module *trek_ddp_module(trek_ddp *ddp);
/* The model of replica r of this process, borrowed: for forwards of one's own on its rank. NULL and ARGUMENT. */
TREK_API trek_module *trek_ddp_replica_module(trek_ddp *ddp, int r);
/* Over all processes. */
TREK_API int trek_ddp_world_size(const trek_ddp *ddp);
/* Of the calling rank: of the communicator, of the thread inside trek_ranks_run, else 0. */
TREK_API int trek_ddp_rank(const trek_ddp *ddp);
/* Writes the devices of up to `capacity` ranks, in rank order; returns the number of ranks. */
TREK_API int trek_ddp_devices(const trek_ddp *ddp, trek_device *devices, int capacity);
/* The group whose rank threads the replicas have, borrowed; NULL without an error: there is one replica here. */
TREK_API trek_ranks *trek_ddp_ranks(trek_ddp *ddp);
/* Returns the communicator of the calling rank, which PyTorch calls ddp.process_group. It is borrowed, and lives as long as the
 * wrapper. Inside trek_ranks_run it is that of the thread's rank; outside, of the first replica, whose calls would wait for the
 * other ranks'. The rank may make collectives of its own with it between calls of the wrapper, in the same order on all ranks.
 * Returns NULL without an error where there is one rank, or no wrapper. */
TREK_API trek_comm *trek_ddp_comm(trek_ddp *ddp);

/* Every replica's parameters become rank 0's: after an optimizer's step on rank 0 alone, or loading a state there; and after
 * each step where replicas are on CPUs and on GPUs, whose optimizers round differently. */
TREK_API trek_status trek_ddp_sync_params(trek_ddp *ddp);
/* Makes every replica's parameters those of rank `root`, one of all ranks of the wrapper, as Horovod's broadcast_parameters does
 * with its root_rank. It is a collective, and all ranks give the same root: COMM says whose differs, and ARGUMENT says that a
 * root is no rank. PyTorch's wrapper has no such call: it sends rank 0's when it is made. */
TREK_API trek_status trek_ddp_sync_params_from(trek_ddp *ddp, int root);
/* Every replica's buffers become those of all ranks together: running means and variances of batch norm as the
 * statistics of all samples, other floating buffers averaged, integers the maximum. counts: samples of each replica of
 * this process (so one number with trek_ddp_wrap_process), NULL: equal; a rank with 0 only receives (1 on rank 0 and 0
 * elsewhere: all take rank 0's). ARGUMENT if they are negative, not finite, or sum to 0. */
TREK_API trek_status trek_ddp_sync_buffers(trek_ddp *ddp, const double *counts);

/* Every replica's gradients become their mean over all ranks: what one device would have, where each rank's loss is a
 * mean over an equal part of the batch (where it is a sum: what one device would have, divided by the number of ranks). Hooks on
 * a rank's parameters have seen its own gradient. ARGUMENT also: a parameter that is frozen on some ranks only. */
TREK_API trek_status trek_ddp_reduce_gradients(trek_ddp *ddp);
/* Sum over ranks of (count / all counts) x gradient: what one device would have, where each rank's loss is a mean over
 * `count` samples (steps, tokens). counts as for trek_ddp_sync_buffers. Gradients of a rank with 0 count as zeros, whatever they
 * are: what is not finite there stays there, and its parameters have been used all the same, as on one device. UNSUPPORTED:
 * unequal counts after a backward through layers that meet (synchronised batch norm in training), which has mixed the ranks'
 * gradients before they were weighed: trek_ddp_backward_weighted does both. */
TREK_API trek_status trek_ddp_reduce_gradients_weighted(trek_ddp *ddp, const double *counts);

/* trek_backward and trek_ddp_reduce_gradients in one, the last pass before a step: with overlap, gradients are sent as
 * they become complete, together with what earlier passes left. Leaves other than the wrapped parameters get no
 * gradient. The loss is the calling rank's; outside trek_ranks_run, over several replicas, it is one over outputs of
 * trek_ddp_forward. */
TREK_API trek_status trek_ddp_backward(trek_ddp *ddp, trek_var *loss);
/* The same, weighted by this rank's count; with 0 the parameters that the loss uses get zeros, and loss may be NULL: the rank
 * then uses none (where layers meet, all ranks need one). Over several replicas: inside trek_ranks_run only (STATE). */
TREK_API trek_status trek_ddp_backward_weighted(trek_ddp *ddp, trek_var *loss, double count);

/* inputs[r] through replica r, side by side on the ranks' threads (one for each replica of this process; moved to its
 * device; NULL: replica r does not run); the outputs joined along dimension 0 on replica 0's device, scalars as the mean
 * weighted by rows. The result belongs to the caller's scope and is on the caller's tape: backward goes through all
 * replicas side by side, and gives each n times its share of the gradient of the joint loss (n replicas), so that
 * trek_ddp_reduce_gradients, which takes the mean, gives what one device would have, whatever the rows. Train and
 * freeze flags are replica 0's. STATE inside trek_ranks_run; SHAPE. */
TREK_API trek_var *trek_ddp_forward(trek_ddp *ddp, trek_var *const *inputs);
/* The same for models with several inputs: inputs[r * n_inputs + k] is input k of replica r; a replica whose first
 * input is NULL does not run. */
TREK_API trek_var *trek_ddp_forward_many(trek_ddp *ddp, trek_var *const *inputs, int n_inputs);

/* The calling rank's optimizer, over all parameters of its replica; a collective, with the same spec on all ranks (ARGUMENT). The
 * caller's: trek_optimizer_free. Over several replicas: inside trek_ranks_run, where each rank has one (STATE).
 *
 * With .shard_optimizer, and more ranks than one, each keeps the state of 1/N of the elements, and of the f32 copies of 16-bit
 * parameters, and updates these. Gradients are reduced and clipped as without it, and are whole on every rank. Then these are
 * collectives: trek_optimizer_step and trek_grad_scaler_step, which bring updated parameters to all; trek_optimizer_save, which
 * gives every rank the whole state; trek_optimizer_load, of a whole one, the same on all ranks, for any number of them. Each is
 * done by all or none: a rank that cannot gets its own error, the others PEER. Steps have the bits of those without it.
 * Optimizers that update whole parameters (Muon, LAMB, LARS, Adafactor) have each parameter's state on one rank.
 *
 * Without, it is trek_optimizer_new over the replica's parameters. */
TREK_API trek_optimizer *trek_ddp_optimizer(trek_ddp *ddp, trek_optimizer_spec spec);

/* A new metric (graph/metric.h) of what all ranks of the communicator have counted in theirs, which stay as they are; a
 * collective, for ranks that have counted nothing, too. comm NULL: a copy. NULL and the rank's own error, PEER on the others, or
 * ARGUMENT: their metrics differ. */
TREK_API trek_metric *trek_metric_join(trek_comm *comm, trek_metric *metric);

TREK_END

#endif
