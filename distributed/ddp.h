/* SPDX-License-Identifier: Apache-2.0 */
/* Data parallelism for training loops of the program: each rank has a replica of a model, and the gradients of the replicas
 * are reduced when the program asks for it. It is for loops that a trainer does not support: GANs, reinforcement learning,
 * several losses, models that grow.
 *
 * There are two ways to use it:
 * - trek_ddp_wrap_process: every rank has its own trek_ddp with its own replica, and all ranks make the same calls in the same
 *   order. Ranks are processes (trek_comm_init) or threads (trek_ranks_comm inside trek_ranks_run, trek_comm_local).
 * - trek_ddp_wrap: one trek_ddp has all replicas of this process and its own rank threads. A call is for all replicas. Inside
 *   trek_ranks_run with trek_ddp_ranks every rank makes the call for its own replica.
 *
 *     trek_ddp *ddp = trek_ddp_wrap_process(model, comm, NULL);
 *     trek_params *params = trek_module_params(trek_ddp_module(ddp));
 *     trek_optimizer *optimizer = trek_optimizer_new(trek_adam(&(trek_adam_opts){ .lr = 1e-3 }), params);
 *     for (each step) {
 *         trek_backward(loss_of(model, my_part_of_the_batch));
 *         trek_ddp_reduce_gradients(ddp);
 *         trek_optimizer_step(optimizer);
 *         trek_optimizer_zero_grad(optimizer);
 *     }
 *
 * The optimizers of all ranks get the same gradients and make the same step. With all replicas in one process, the program can
 * instead have one optimizer for replica 0 and call trek_ddp_sync_params after its steps.
 *
 * Nothing is reduced before the program asks for it. Any number of backward passes add up, also different numbers on different
 * ranks, before one reduction. Parameters that a rank did not use count as zero in it. Parameters that no rank used stay
 * without a gradient. Shared parameters count once, and frozen ones are not changed. Graphs may differ from pass to pass. No
 * flags are needed for this. If the gradients are in an optimizer's block of memory, they are sent without a copy.
 *
 * Layers that communicate with other ranks (trek_nn_sync_batch_norm) work in all ways of running. In trek_ddp_forward the
 * replicas with an input take part. Inside trek_ranks_run, and with trek_ddp_wrap_process, all ranks must make the same
 * forwards and backwards in training, with an empty batch if they have no rows. Such layers cannot be combined with overlap.
 *
 * A rank whose thread has an error still takes part, so that no rank waits for it. It gets its own error back, the others get
 * PEER, which names it, and gradients and parameters do not change. If the communicator itself fails during a reduction (a
 * process dies), the gradients must not be used; the parameters do not change.
 *
 * min_processes, for a job of several processes: if a process dies, the wrapper's calls succeed without it, as long as at least
 * this number of processes remains.
 * - If a process dies during a reduction, the remaining processes reduce the gradients that they have computed: the result is
 *   their mean, weighted by their counts. What the lost process has computed since the last reduction is missing.
 * - trek_ddp_world_size and trek_ddp_rank change at the end of the same call on all ranks. So a loop that divides its data by
 *   them in each step neither loses nor repeats samples in later steps. trek_ddp_comm then returns a new communicator.
 * - Gradients are sent from a copy, and calls that copy parameters or buffers keep the old values until they have succeeded.
 * - It works with every engine except MPI, and for processes on CPUs, on GPUs, and on both. All wrappers of a process that set it
 *   must use the communicator of the job.
 * - trek_metric_join with this communicator continues in the same way, without what lost processes had counted. The program's own
 *   collectives, and wrapping, fail with PEER when a process dies. A restarted process cannot join. */
#ifndef TREK_DISTRIBUTED_DDP_H
#define TREK_DISTRIBUTED_DDP_H

#include "distributed/comm/comm.h"
#include "distributed/ranks.h"
#include "distributed/shard.h"
#include "graph/metric.h"
#include "nn/module.h"
#include "optim/optimizer.h"

TREK_BEGIN

/* The wrapper of one or several replicas. */
typedef struct trek_ddp trek_ddp;

/* Options of a wrapper, which must be equal on all ranks. */
typedef struct trek_ddp_opts {
    int64_t bucket_bytes; /* bytes of gradients that are sent at once; the first bucket has at most 1 MiB; default 25 MiB */
    /* trek_ddp_backward sends buckets while backward continues: 1 always, TREK_OFF never. Default: only if the communicator makes
     * progress without calls (MPI, NCCL). */
    int overlap;
    trek_shard shard; /* TREK_SHARD_STATE: trek_ddp_optimizer divides the optimizer's state among the ranks; default: nothing.
                       * TREK_SHARD_GRADIENTS and _PARAMETERS are for trainers */
    int min_processes; /* processes that must be left for the others to continue when some die (see above); default 0: a loss ends
                        * the job. For trek_ddp_wrap_process */
} trek_ddp_opts;

/* Returns a wrapper of n replicas (1 to 1024) in this process. Each has a rank thread (trek_ranks), except for n = 1. Replica
 * r is on the device of its parameters, which may be a CPU; several may be on one device. The names, shapes and dtypes of
 * parameters and buffers must be equal, and all replicas get the values of rank 0. The wrapper owns the models, also on
 * failure, as a module owns its children. A model that also has other owners (a graph) stays theirs, too. `opts` may be NULL.
 * Errors: ARGUMENT, which names the first difference, if the replicas differ. DEVICE, MEMORY, STATE. NULL is returned. */
TREK_API trek_ddp *trek_ddp_wrap(trek_module *const *models, int n, const trek_ddp_opts *opts);
/* Returns a wrapper of the only replica of this rank. It is a collective of `comm`, of which the wrapper takes its own handle.
 * If `comm` is NULL, there is one rank. Otherwise it is as trek_ddp_wrap.
 * Errors: as trek_ddp_wrap. Errors of the communicator, and PEER if another rank failed. */
TREK_API trek_ddp *trek_ddp_wrap_process(trek_module *model, trek_comm *comm, const trek_ddp_opts *opts);
/* Frees the wrapper with its models and sets *ddp to NULL. Errors: STATE if another module owns the wrapper. */
TREK_API void trek_ddp_free(trek_ddp **ddp);
/* Frees the wrapper and returns the model of this process's first replica, with its parameters and buffers as they are. *ddp
 * becomes NULL. It is not a collective. To look at the model while the wrapper lives (PyTorch's ddp.module), use
 * trek_ddp_replica_module.
 * Ownership: the model belongs to the caller, unless it has another owner, which keeps it. The models of other replicas are
 * freed. Errors: ARGUMENT if there is no wrapper; STATE if another module owns the wrapper, which then stays as it is. NULL is
 * returned. */
TREK_API trek_module *trek_ddp_unwrap(trek_ddp **ddp);

/* Reads the models again after they have got other parameters, buffers or modules, with the checks of trek_ddp_wrap. All
 * replicas get the values of rank 0. All replicas must have changed in the same way, and optimizers must be made after it. It
 * is a collective.
 * Errors: as wrapping. After an error only this function and trek_ddp_free can be called. */
TREK_API trek_status trek_ddp_refresh(trek_ddp *ddp);

/* Returns the wrapper as a module, borrowed. It has the parameters, buffers, modules, names ("up.weight", no prefix) and mode
 * of replica 0, so that optimizers, trek_state_save and other functions for modules can use it. Its forward runs the calling
 * rank's replica inside trek_ranks_run. Otherwise, with several replicas, it divides the rows of each input evenly among them
 * and joins the outputs (trek_ddp_forward). The module may be given to a parent, which then owns the wrapper. */
TREK_API trek_module *trek_ddp_module(trek_ddp *ddp);
/* Returns the model of replica r of this process, borrowed, for forwards that its rank runs itself.
 * Errors: ARGUMENT if r is out of range; NULL is returned. */
TREK_API trek_module *trek_ddp_replica_module(trek_ddp *ddp, int r);
/* Returns the number of ranks of all processes. */
TREK_API int trek_ddp_world_size(const trek_ddp *ddp);
/* Returns the number of the calling rank: the communicator's rank, or the thread's rank inside trek_ranks_run, otherwise 0. */
TREK_API int trek_ddp_rank(const trek_ddp *ddp);
/* Writes the devices of the ranks to `devices`, at most `capacity` of them, and returns the number of ranks. */
TREK_API int trek_ddp_devices(const trek_ddp *ddp, trek_device *devices, int capacity);
/* Returns the group whose threads run the replicas, borrowed, or NULL without an error if this process has one replica. */
TREK_API trek_ranks *trek_ddp_ranks(trek_ddp *ddp);
/* Returns the communicator of the calling rank (PyTorch's ddp.process_group), or NULL without an error if there is one rank or no
 * wrapper. It is borrowed and lives as long as the wrapper. Inside trek_ranks_run it is that of the thread's rank, outside that
 * of the first replica. Between calls of the wrapper a rank may make collectives with it, in the same order on all ranks. */
TREK_API trek_comm *trek_ddp_comm(trek_ddp *ddp);

/* Copies the parameters of rank 0 to all replicas. Call it after a step of an optimizer of rank 0 only, after loading a state
 * on rank 0, and after each step if replicas are on CPUs and on GPUs, whose optimizers round differently. */
TREK_API trek_status trek_ddp_sync_params(trek_ddp *ddp);
/* Copies the parameters of rank `root`, which counts all ranks of the wrapper, into every replica, as Horovod's
 * broadcast_parameters does with its root_rank. It is a collective, and all ranks must give the same root.
 * Errors: COMM if the roots differ, and the message says whose; ARGUMENT if root is not a rank.
 * PyTorch's wrapper has no such call: it sends the parameters of rank 0 when it is made. */
TREK_API trek_status trek_ddp_sync_params_from(trek_ddp *ddp, int root);
/* Replaces the buffers of all replicas by those of all ranks together: running means and variances of batch norm by the
 * statistics of all samples, other floating buffers by their mean, integers by their maximum. `counts` are the numbers of
 * samples of the replicas of this process (one number with trek_ddp_wrap_process). NULL stands for equal numbers. A rank with
 * 0 only receives; with 1 on rank 0 and 0 elsewhere all get the buffers of rank 0.
 * Errors: ARGUMENT if a count is negative or not finite or all are 0. */
TREK_API trek_status trek_ddp_sync_buffers(trek_ddp *ddp, const double *counts);

/* Replaces the gradients of all replicas by their mean over all ranks. It is the gradient of one device if the loss of each
 * rank is a mean over an equal part of the batch. If the losses are sums, it is the gradient of one device divided by the
 * number of ranks. Hooks on a rank's parameters have seen the rank's own gradient.
 * Errors: ARGUMENT if a parameter is frozen on some ranks only. Errors of the communicator. */
TREK_API trek_status trek_ddp_reduce_gradients(trek_ddp *ddp);
/* Replaces the gradients of all replicas by the sum over the ranks of gradient * count / (sum of counts). It is the gradient
 * of one device if the loss of each rank is a mean over `count` samples (or steps, or tokens). `counts` are as in
 * trek_ddp_sync_buffers. The gradients of a rank with count 0 count as zeros, whatever their values are; a value that is not
 * finite changes no other rank. The parameters of such a rank still count as used, as on one device.
 * Errors: UNSUPPORTED for unequal counts after a backward through layers that communicate (synchronised batch norm in
 * training), which mixed the gradients before they were weighted; use trek_ddp_backward_weighted. */
TREK_API trek_status trek_ddp_reduce_gradients_weighted(trek_ddp *ddp, const double *counts);

/* Computes gradients as trek_backward does and reduces them as trek_ddp_reduce_gradients does: the last pass before a step.
 * With overlap, gradients are sent as soon as they are complete, together with those of earlier passes. Leaves that are not
 * parameters of the wrapper get no gradient. `loss` is that of the calling rank. Outside of trek_ranks_run, with several
 * replicas, it is computed from outputs of trek_ddp_forward. */
TREK_API trek_status trek_ddp_backward(trek_ddp *ddp, trek_var *loss);
/* Computes and reduces gradients as trek_ddp_backward does, weighted by the count of this rank as in
 * trek_ddp_reduce_gradients_weighted. With a count of 0 the parameters that the loss uses get zeros, and `loss` may be NULL:
 * the rank then uses no parameters. If layers communicate, all ranks need a loss.
 * Errors: STATE with several replicas outside of trek_ranks_run. */
TREK_API trek_status trek_ddp_backward_weighted(trek_ddp *ddp, trek_var *loss, double count);

/* Runs inputs[r] through replica r for each replica of this process, in parallel on the ranks' threads, and returns the joined
 * outputs.
 * - Each input is moved to the replica's device. If it is NULL, the replica does not run.
 * - The outputs are concatenated along dimension 0 on the device of replica 0. Scalars are averaged, weighted by rows.
 * - The result belongs to the caller's scope and tape. Backward runs through all replicas in parallel. With n replicas it
 *   gives each of them n times its part of the gradient of the joint loss, so that trek_ddp_reduce_gradients, which computes
 *   the mean, gives the gradient of one device for any division of the rows.
 * - The mode and the frozen parameters are those of replica 0.
 * - Errors: STATE inside trek_ranks_run. SHAPE. */
TREK_API trek_var *trek_ddp_forward(trek_ddp *ddp, trek_var *const *inputs);
/* Runs models with several inputs as trek_ddp_forward does: inputs[r * n_inputs + k] is input k of replica r. A replica whose
 * first input is NULL does not run. */
TREK_API trek_var *trek_ddp_forward_many(trek_ddp *ddp, trek_var *const *inputs, int n_inputs);

/* Returns a new optimizer of the calling rank for all parameters of its replica. It is a collective, and `spec` must be equal
 * on all ranks. The caller frees it with trek_optimizer_free. With several replicas each rank calls it inside trek_ranks_run
 * and gets its own.
 *
 * With .shard TREK_SHARD_STATE and more than one rank, each rank keeps the state of 1/N of the elements, and of the f32 copies of
 * 16-bit parameters, and updates these elements. Gradients are reduced and clipped as without it, and are whole on every rank.
 * The following functions are then collectives, which either all ranks or none complete: a rank that fails gets its own error,
 * the others PEER.
 * - trek_optimizer_step and trek_grad_scaler_step send the updated parameters to all ranks.
 * - trek_optimizer_save gives every rank the whole state.
 * - trek_optimizer_load takes a whole state, the same on all ranks, from any number of ranks.
 *
 * Steps have the same bits as without .shard. Optimizers that update whole parameters (Muon, LAMB, LARS, Adafactor)
 * have each parameter's state on one rank. Without it the function is trek_optimizer_new for the replica's parameters.
 *
 * Errors: ARGUMENT if the ranks' specs differ. STATE with several replicas outside of trek_ranks_run. NULL is returned. */
TREK_API trek_optimizer *trek_ddp_optimizer(trek_ddp *ddp, trek_optimizer_spec spec);

/* Returns a new metric (graph/metric.h) with the counts of the metrics of all ranks, which do not change. It is a collective,
 * also for ranks that have counted nothing. If `comm` is NULL, it returns a copy.
 * Errors: ARGUMENT if the metrics differ. The rank's own error, and PEER on the other ranks. NULL is returned. */
TREK_API trek_metric *trek_metric_join(trek_comm *comm, trek_metric *metric);

TREK_END

#endif
