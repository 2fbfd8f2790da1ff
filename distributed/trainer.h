/* SPDX-License-Identifier: Apache-2.0 */
/* Sets a graph up for training on all available devices and processes. The calls of graph.h stay the same. */
#ifndef TREK_DISTRIBUTED_TRAINER_H
#define TREK_DISTRIBUTED_TRAINER_H

#include "distributed/shard.h"
#include "graph/amp_opts.h"
#include "graph/graph.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

TREK_BEGIN

/* A function of the user that builds the same graph on another device and returns it, or NULL on failure. It is called once
 * for each further rank, on the rank's own thread, but never by two threads at the same time. */
typedef trek_graph *(*trek_build_fn)(trek_device device, void *arg);

/* A hint about one slow rank. If all fields are 0, nothing is known. */
typedef struct trek_speed_hint {
    int slow_rank; /* the slow rank, numbered over the whole job */
    double ratio;  /* the speed of the other ranks divided by its speed, 1 to 1000000 */
} trek_speed_hint;

/* What the ranks average. */
typedef enum trek_average {
    TREK_AVERAGE_GRADIENTS, /* gradients: exact, all ranks make one step */
    /* Parameters (local SGD): each rank makes its own step after each of its batches. trek_graph_step replaces parameters,
     * optimizer states and buffers by the mean over the ranks, weighted by samples. */
    TREK_AVERAGE_PARAMETERS
} trek_average;

/* A size of grains that trek chooses (trek_trainer_opts). */
#define TREK_GRAIN (-2)

/* A choice that trek makes so that a plan fits (.activations). */
#define TREK_AUTO (-3)

/* Options of trek_trainer_setup. Fields that are 0 have their defaults.
 *
 * devices: by default a graph on a CPU uses cpu:0, ..., cpu:(ranks-1) if `ranks` is given, otherwise the devices of the
 * environment variable TREK_DEVICES ("cpu:0,cpu:1"), otherwise only its own device. A graph on a GPU uses as many GPUs as
 * `ranks` says, otherwise TREK_DEVICES, otherwise all usable GPUs (without build_replica only its own). A GPU may be listed
 * twice, and CPUs may be combined with GPUs: "cuda:0,cpu:0".
 *
 * accumulate: with k > 1 the passes (backward or trek_graph_train_batch) of a step are one large batch, and its gradient is
 * that of the joined batch: the mean of the passes, weighted by what each loss is the mean of (trek_loss_weight, otherwise the
 * weight of trek_graph_backward_weighted, otherwise the rows of the forward). This is so on one rank and on many. Every pass
 * since the last step counts; k only says which pass is the last, so that its gradients can be reduced while backward
 * continues. Until trek_graph_step, gradients are means multiplied by an internal factor, which trek_graph_reduce removes. It
 * can be combined with clipping, loss scaling, balancing and windows, each of which is a pass. Captured steps then run call by
 * call. On a GPU the host waits until the labels are counted. If it is 0 or 1, passes add up, as in PyTorch.
 *
 * shard: with TREK_SHARD_STATE ranks with their own parameters (GPU ranks, or CPU ranks with .share_params TREK_OFF) keep and
 * update a part of the optimizer's state and of the f32 copies of 16-bit parameters each. That needs 1/N of this memory if all
 * processes of the job have one rank, or the job is one process. CPU ranks that share parameters share the state; in several
 * such processes each process has a part.
 * - A step reduce-scatters the gradients, updates, and all-gathers the parameters. The bits are those without it if sums are
 *   in rank order (threads, processes of one machine) and gradients are not clipped by norm. Otherwise results are equal up to
 *   rounding.
 * - With memory_budget, or on GPUs of different sizes, the parts are in proportion to what is left of each rank's memory.
 * - Checkpoints contain the whole state, for any number of ranks.
 * - For optimizers that update whole parameters (Muon, LAMB, LARS, Adafactor) each parameter belongs to one rank, to which its
 *   gradient is reduced and which broadcasts it. That sends the same number of bytes, and needs 1/N of the memory as far as
 *   the parameters can be divided evenly.
 * - With one rank, or one copy of the parameters, it has no effect.
 * - Errors: UNSUPPORTED for several ranks in each of several processes that have their own parameters, together with reduce_dtype
 *   or min_processes.
 * With TREK_SHARD_GRADIENTS ranks keep only their part of the gradients, too. Every pass reduces its gradients, bucket by
 * bucket while backward goes on (whatever overlap says), and a bucket's memory is given back when it has been sent. So a rank
 * needs its own part and about one bucket more, or the largest parameter.
 * - The bits are those without it if a step has one pass. Passes that add up are added in another order.
 * - Gradients that a program reads (trek_var_grad) are this rank's own where it keeps them, and otherwise zeros.
 * - With grain ranks add each bucket to the sums of those who keep it instead of reducing it, on other machines by connections of
 *   their own. The bits are those of one rank.
 * - On GPUs memory comes and goes by the driver's virtual memory (CUDA 12), in pages of 2 MiB. With grain the sums lie in host
 *   memory: 16 bytes for each f32 gradient, or twice that in jobs with min_processes, over all processes.
 * - Errors: UNSUPPORTED for GPUs whose driver does not have that, for CPU ranks of one process that share their parameters,
 *   together with windows (max_anchor, global_batch), for grain together with audit or digests, and with layers that meet other
 *   ranks. trek_graph_reduce then fails with UNSUPPORTED.
 * With TREK_SHARD_PARAMETERS ranks, of one process or several, keep only their part of the parameters, too. A bucket of
 * parameters is gathered when an op is about to read one of them, in forward and backward, and its memory is given back when
 * two others have been gathered since. So a rank needs memory for its own part and for two buckets, or for as many as one op
 * reads.
 * - The bits are those of TREK_SHARD_GRADIENTS.
 * - If a step has several passes (grain, accumulate), a rank whose memory_budget allows it keeps what it has gathered until the
 *   update, so that one gathering serves all passes. trek_trainer_plan_text says which ranks do.
 * - Everything that reads parameters through trek gets their values: states, checkpoints, averages, evaluations, printing.
 *   Pointers to their memory are refused (STATE): trek_tensor_data returns NULL, and so does trek_tensor_to_dlpack.
 * - A program may write parameters of its graph between two passes. It must call trek_graph_parameters_changed before the next
 *   pass or step, which otherwise fails with STATE. Until then rank 0 has all parameters. Writing them in a pass, and in the
 *   graphs of other ranks (trek_graph_replica), fails with UNSUPPORTED. Over processes all programs write the same, and all call
 *   trek_graph_parameters_changed, which is a collective then.
 * - Over processes, parameters that a program has kept of a graph that is freed cannot be read (STATE).
 * - Over several machines, freeing the graph waits until the other processes have freed theirs, have ended, or wait for this one.
 * - GPUs of one process copy from each other. Of several processes each also keeps a copy of its part in host memory.
 * - Errors: UNSUPPORTED also for processes that have no control channel.
 *
 * memory_budget: how many bytes each rank of this process may use for parameters, gradients, the optimizer's state and
 * activations. Set-up then makes a plan (trek_trainer_plan_text): it measures a forward and backward, if the graph has its loader
 * and loss before, divides the optimizer's state (shard) in proportion to what is left, and refuses what does not fit.
 * - A rank for which nothing is left keeps no state, and still computes. A rank with a share of 0 (shares, allow_idle) computes
 *   nothing, and keeps its part of the state.
 * - CPU ranks cannot exceed it in a pass or a step: an allocation that would fails with MEMORY. What counts is what their threads
 *   have in use, the calling thread for rank 0, as far as it comes after set-up has begun. Ranks that share their parameters have
 *   the sum of their budgets together. With TREK_CACHE=off nothing is counted. On GPUs only the plan is compared with it. Saving
 *   and loading checkpoints does not count.
 * - If only some processes of a job set it, the others have the memory that is free.
 * - Errors: MEMORY, with the numbers, if a rank's budget is too small.
 *
 * reduce_dtype: with TREK_BF16 each process rounds its sum of f32 gradients (also those of 16-bit parameters) to bf16, the sums
 * over processes are made in f32, and each sum is rounded to bf16 once more, by the process that makes it. That sends half the
 * bytes. All processes get the same numbers. (PyTorch: MixedPrecisionPolicy.reduce_dtype, or bf16_compress_hook of DDP, which
 * adds in bf16.)
 * - Each gradient differs from its exact sum by at most 2^-8 of the sum of magnitudes. Gradients in f64 stay as they are.
 * - Gradients are not sent while backward goes on, unless shard divides them.
 * - Ranks of one process add in f32, so with one process it has no effect.
 * - Errors: UNSUPPORTED with grain, average, ranks on GPUs, and over MPI. All processes must give the same value.
 *
 * activations: with TREK_AUTO set-up chooses, for each rank that would exceed its memory (memory_budget, otherwise what is free),
 * which parts of its forward pass run again in backward (trek_forward_recomputed), and for GPUs also what backward needs of which
 * parts waits in host memory (trek_nn_offload), so that the plan fits in the least time. It measures what each module of a
 * forward keeps and how long it takes, and how fast values are copied, chooses, and measures again. Parts are modules, and
 * neighbouring children of a trek_nn_sequential. trek_trainer_plan_text names them.
 * - Results have the same bits, whatever each rank recomputes or moves. If everything fits, nothing is.
 * - Modules with several results, that run more than once in a forward, or with a graph inside are not recomputed or moved as a
 *   whole. Steps in which something is moved are not captured.
 * - What is moved takes at most host_budget bytes of host memory for all ranks of the process together, in equal parts for its
 *   GPUs. By default that is half of the memory that the machine has free at set-up, divided by the number of processes.
 * TREK_OFF: nothing is moved.
 * - It needs trek_graph_set_loader and trek_graph_set_loss before set-up; otherwise it fails with STATE.
 * - Errors: MEMORY, with the numbers, if it does not fit even so. UNSUPPORTED together with average, for streams, for layers that
 *   use other ranks, and for graphs that carry states.
 *
 * grain: each batch is cut into grains of this many samples, and each grain is a pass of its own. Parameters, buffers and the
 * optimizer's state then have the same bits for any ranks, processes, shares and threads, on CPUs with the same instruction set,
 * or on GPUs of one model; one rank may use it, too. docs/same-bits.md says what is promised.
 * - It needs trek_graph_set_loader, trek_graph_set_loss and trek_graph_train_batch; another loop fails with UNSUPPORTED. Several
 *   passes in a step need accumulate.
 * - TREK_GRAIN measures grains of several sizes at set-up, with samples and the loss of the graph, and chooses the smallest that
 *   costs at most 5 % more than the best. The size is part of the result and of checkpoints: a run that is loaded from one
 *   continues with its size. The variable TREK_GRAIN says the size instead. It needs trek_graph_set_loader and
 *   trek_graph_set_loss before set-up; otherwise it fails with STATE.
 * - Batch norm uses the statistics of each grain. Running statistics are merged once a step, in the order of grains.
 * - Errors: UNSUPPORTED together with average, max_anchor, global_batch or overlap, for ranks on CPUs and on GPUs, for
 *   GPUs of different models, for layers that use other ranks, and for graphs that carry states.
 *
 * audit: if the gradients of a grain differ that two ranks have computed, the log names the step, the grain and the ranks, and a
 * third rank decides which of them was wrong; trek_trainer_audit counts. The step is made as if nothing had been found. Streams
 * cannot be audited: the first step that would fails with UNSUPPORTED.
 * - audit_removes: the process of the rank that was wrong leaves the job in this step, and its trek_graph_step fails with STATE.
 *   The others compute its grains again, as after a death, so that nothing that it has found in this step is used. If fewer than
 *   min_processes would be left, it stays, and the log says so.
 *
 * min_processes: if processes of the job die, also in the middle of a step, the others compute what died with them, and go on.
 * Functions of the trainer do not fail. In grains (grain) parameters have the bits of a job in which nobody died
 * (docs/same-bits.md). Without grains those that are left drop the step's gradients, divide its batches among themselves, and
 * make its passes again: each sample counts once, and parameters are those of a job in which nobody died to rounding
 * (docs/distributed.md). trek_graph_world_size tells how many ranks are left.
 * - It has no effect in a job of one process.
 * - All graphs of a process that set it, and wrappers that do (trek_ddp), continue as one job, outside trek_trainer_run.
 * - A process that is started again (TREK_JOIN, trek-run --restarts), and one that was not in the job before (trek-run --join),
 * join the others in trek_trainer_setup, which waits for their next step. trek_trainer_joined tells where its loop
 * begins.
 * - If fewer processes are left, trek_graph_train_batch or trek_graph_step fails with PEER in all of them.
 * - A communicator of the program's own has ended, too. trek_comm_init returns the one of those that are left.
 * - trek_graph_reduce fails with UNSUPPORTED.
 * - Without grains it needs trek_graph_set_loader, trek_graph_set_loss and trek_graph_train_batch; another loop fails with
 *   UNSUPPORTED, and so does setup together with shard above TREK_SHARD_STATE, overlap, average, max_anchor, global_batch or
 *   reduce_dtype, for ranks on CPUs and on GPUs, for layers that use other ranks, and for graphs that carry states.
 * - With shard TREK_SHARD_STATE each part of the optimizer's state is kept by two processes. If both die before the others have
 *   copied it, trek_graph_train_batch or trek_graph_step fails with PEER, and names them.
 * - With shard TREK_SHARD_GRADIENTS so is each part of the sums of gradients, and all grains of the step are computed again.
 * - With shard TREK_SHARD_PARAMETERS so is each part of the parameters. Until the others divide them again, they read those of a
 *   process that has died from the other one that keeps them.
 * - With memory_budget and shard the plan is made again when processes have died or come. If a budget is too small then,
 *   trek_graph_train_batch or trek_graph_step fails with MEMORY and the numbers, in all processes.
 * - Errors: ARGUMENT if the job has fewer processes. UNSUPPORTED together with shares, plan or speed_hint, with a
 *   loader over a stream, and over MPI, which ends with the first process that dies.
 *
 * overlap: gradients are sent in buckets while backward goes on, as in trek_ddp_opts. It needs ranks that can send each by
 * itself: processes of one rank each, or the GPUs of one process. Results are equal up to the order of sums. All ranks must give
 * the same value.
 * - With TREK_SHARD_PARAMETERS a thread of each rank gathers the next bucket of parameters while one is used: always (1), if the
 *   ranks of a single process leave it a core (0), or never (TREK_OFF, and with grain). A rank then needs memory for one bucket
 *   more than an op reads. Results are the same.
 *
 * Ranks of different speeds: balancing (balance) changes each rank's share of a batch. Windows (max_anchor, El Che) let each
 * rank run whole batches at its own pace between two steps. Windows need trek_graph_set_loader and trek_graph_set_loss.
 *
 * shares: fixed numbers instead of measured speeds, one above 0 for each rank of the job (0 with allow_idle), with any sum.
 * Each rank gets its part of every batch, and of the batches of every window, rounded to whole ones. For windows set
 * max_anchor or global_batch; the anchor is then the count of the rank with the least, and only the guard (divergence_threshold)
 * changes it. shares cannot be combined with balance = 1, plan, speed_hint, min_share, overhead_target and max_batch_diff. */
typedef struct trek_trainer_opts {
    trek_build_fn build_replica;   /* builds the graph of a further rank; required for more than one rank */
    void *arg;                     /* passed to build_replica */
    const trek_device *devices;    /* a device for each of `ranks` ranks; the first is the graph's own; default: see above */
    int ranks;                     /* number of ranks of this process, 1 to 1024; default: see above */
    trek_optimizer_spec optimizer; /* default: the optimizer of the graph, if it has one */
    trek_schedule schedule;        /* default: the schedule of the graph */
    int accumulate;                /* number of passes of a step that form one large batch (see above); default: passes add up */
    /* Cuts each batch into grains of this many samples, so that the bits of training do not depend on the ranks, their
     * number and their shares (see above). TREK_GRAIN leaves the size to trek. Default 0: batches are not cut. */
    int64_t grain;
    /* With .grain, a text file to which process 0 appends what each step and each grain leaves behind (distributed/digests.h,
     * docs/same-bits.md); copied. If it cannot be written, that is logged, and training continues. Default NULL: no file. */
    const char *digests;
    /* With .grain and several ranks, the share of all grains whose gradients a second rank computes again, 0 to 1 (see above).
     * Default 0: none. */
    double audit;
    bool audit_removes;            /* a process with a rank that was wrong leaves the job (see above); default false */
    /* A job goes on while at least this number of its processes is left, in grains with the same bits (see above). Default 0: the
     * death of a process is an error in the others. */
    int min_processes;
    double max_grad_norm;          /* clips the 2-norm of all gradients; TREK_OFF: no clipping; default: the graph's limit */
    double max_grad_value;         /* clips each element of the gradients; TREK_OFF: no clipping; default: the graph's limit */
    trek_amp_opts amp;             /* mixed precision, see trek_graph_set_amp; default: that of the graph */
    /* By default CPU ranks share one copy of the parameters. With TREK_OFF every rank has its own parameters and optimizer
     * state, and gradients are reduced in buckets, as for GPU ranks always. */
    int share_params;
    trek_shard shard;              /* what the ranks divide among themselves (see above); default: nothing */
    const int64_t *memory_budget;  /* bytes of memory that each rank of this process may use (see above); copied; default NULL */
    int n_memory_budget;           /* number of `memory_budget`: the number of this process's ranks */
    /* TREK_AUTO: what does not fit into a rank's memory is recomputed in backward, or moved to host memory until then (see
     * above). Default 0: everything is kept. */
    int activations;
    int64_t host_budget;           /* bytes of host memory that activations of this process may be moved to (see above) */
    /* TREK_BF16: f32 gradients are sent between processes as bf16 (see above). Default TREK_F32. */
    trek_dtype reduce_dtype;
    int64_t bucket_bytes;          /* bytes of a bucket of gradients; the first has at most 1 MiB; default 25 MiB */
    /* Whether gradients are sent in buckets while backward goes on (see above). 1: always, also over shared memory. TREK_OFF:
     * never. Default: only if the communicator makes progress by itself (MPI, Gloo, NCCL). */
    int overlap;
    trek_speed_hint speed_hint;    /* a hint about a slow rank; default: no hint */
    /* Balancing: 1 always, TREK_OFF never. Default 0: if the devices of the job's ranks differ or a hint is given. Otherwise
     * shares stay equal, so that a run repeats its bits, and the log says if that costs much time. */
    int balance;
    const double *shares;          /* fixed shares instead of measured speeds (see above); copied; default NULL */
    int n_shares;                  /* number of `shares`: the number of ranks of the job */
    double min_share;              /* smallest share of a rank; TREK_ZERO: no limit; default min(0.05, 0.5 / ranks) */
    bool allow_idle;               /* a rank that costs more time than it saves gets no samples; default false */
    /* Windows: a number > 0 turns them on and is the most batches that the slowest rank runs between two steps. TREK_OFF turns
     * them off. Default 0: 200 if the devices of the job's ranks differ or a hint is given, otherwise off. */
    int64_t max_anchor;
    int64_t anchor;                /* batches of the slowest rank in the first window; default 10 */
    double overhead_target;        /* the anchor grows if reduction / compute is above it; 0.01 to 0.50; default 0.10 */
    int64_t max_batch_diff;        /* the most by which a rank's count changes at once; default 0: no limit */
    /* Samples of a step's window, rounded to whole batches: they are constant, and only their division follows the speeds. The
     * loader must be set first. Default 0: windows grow with the anchor. */
    int64_t global_batch;
    /* What the ranks average. Parameters: passes are those of trek_graph_train_batch, steps and schedule count batches of all
     * ranks, and accumulate, scaled losses and layers that use other ranks cannot be used. Default: gradients. */
    trek_average average;
    /* For averaged parameters: the anchor does not grow while the drift (the largest distance of a replica from the mean, over
     * the mean's norm) is above this or has risen in the last three windows. If both are true, the anchor is halved. TREK_OFF: no
     * guard. Default 0.05. */
    double divergence_threshold;
    /* Decisions of an earlier run that are used instead of measured ones; copied. Counts need windows: a pass of another loop
     * is then an error ARGUMENT. Default NULL. */
    const struct trek_plan *plan;
    /* The communicator of the job's processes, of which setup takes its own handle. Default: trek_comm_init(NULL) if the
     * environment describes more than one process. */
    struct trek_comm *comm;
    /* Seconds that a rank waits for another in a collective (default 600) and for all processes to join (at least 5, default
     * 300). TREK_OFF: no limit. */
    double deadline_s;
    struct trek_timeline *timeline;       /* a timeline that is attached; the caller keeps it; default NULL */
} trek_trainer_opts;

/* Sets the graph up for training: it builds the replicas, gives them the parameters and buffers of rank 0, and applies the
 * options. From then on the calls of graph.h are for all ranks. `opts` may be NULL. It may be called again with other ranks.
 * - Settings of the graph stay if no option replaces them: optimizer (with groups, moments and step counts), schedule,
 *   learning rate, clipping, mixed precision, mode, frozen parameters, replicated inputs, loader, loss and trek_graph_steps.
 * - The log (info) gets one line about the ranks and about what is not exact. With one rank it makes no threads and no copies.
 * - For layers that treat samples independently, gradients are those of one device up to rounding. Plain batch norm uses each
 *   rank's own statistics in training; its running statistics are merged at each step, weighted by counts.
 * - A step that fails in one process fails in all and changes nothing; the others get PEER, which names the process. When
 *   every process has cleared its error and dropped the step's gradients by trek_graph_zero_grad, the loop can continue.
 * - If some ranks of the job are on CPUs and others on GPUs, which round differently, rank 0's parameters are sent to all
 *   others after each update.
 * - Errors: ARGUMENT (also if a replica differs from the graph), DEVICE, UNSUPPORTED, MEMORY, STATE, and errors of
 *   build_replica. After an error the graph trains on its own device with the optimizer it had, to which trek_graph_optimizer
 *   returns another pointer. */
TREK_API trek_status trek_trainer_setup(trek_graph *graph, const trek_trainer_opts *opts);

/* Returns the mean over all processes of a loss that each process has computed for its part of a batch. The weights are those
 * of trek_graph_backward: trek_loss_weight, otherwise the rows of the last forward. It is a collective, and all processes get
 * the same number, which is 0 if nothing counted. With one process it is the loss. It waits for the device.
 * Errors: SHAPE if the loss is not a scalar. Errors of a process that fails. NaN is returned. */
TREK_API double trek_trainer_mean(trek_graph *graph, trek_var *loss);

TREK_END

#endif
