/* SPDX-License-Identifier: Apache-2.0 */
/* trek_ddp: wrapping replicas, the wrapper as a module, and its end. */
#include "distributed/ddp_internal.h"

#include <stdio.h>
#include <string.h>

#include "distributed/comm/nccl.h"
#include "distributed/team/rank_sums.h"
#include "nn/module_internal.h"
#include "tensor/debug.h"

/* --- the wrapper as a module --------------------------------------------------------- */

static trek_var *module_forward_many(trek_module *self, trek_var *const *inputs, int n)
{
    trek_ddp *ddp = (trek_ddp *)self;
    int here = ddp->ranks ? trek_ranks_rank_here(ddp->ranks) : 0;
    return here >= 0 ? trek_forward_many(ddp->replicas[here].module, inputs, n) : trek_ddp_forward_divided(ddp, inputs, n);
}

static trek_var *module_forward(trek_module *self, trek_var *x) { return module_forward_many(self, &x, 1); }

static void module_describe(const trek_module *self, char *text, size_t size)
{
    snprintf(text, size, "%d of %d ranks", ((const trek_ddp *)self)->n, trek_ddp_world_size((const trek_ddp *)self));
}

static void let_go(trek_module *model)
{
    if (model && --model->own->owners == 0)
        trek_module_free(&model);
}

static void module_free(trek_module *self)
{
    trek_ddp *ddp = (trek_ddp *)self;
    for (int r = 0; r < ddp->n; r++) {
        trek_ddp_plan_clear(&ddp->replicas[r]);
        if (r > 0)
            let_go(ddp->replicas[r].module); /* replica 0's module is a child of the wrapper */
    }
    if (ddp->n > 0 && !ddp->ranks)
        trek_comm_free(&ddp->replicas[0].comm);
    trek_ddp_job_leave(ddp);
    trek_free(ddp->replicas);
    trek_free(ddp->devices);
    trek_free(ddp->numbers);
    trek_ranks_free(&ddp->ranks);
}

static const trek_module_class ddp_class = { .name = "ddp",
                                             .size = sizeof(trek_ddp),
                                             .forward = module_forward,
                                             .forward_many = module_forward_many,
                                             .free = module_free,
                                             .describe = module_describe };

/* --- making ------------------------------------------------------------------------------ */

static trek_status resolve(trek_ddp *ddp, const trek_ddp_opts *opts)
{
    ddp->opts = opts ? *opts : (trek_ddp_opts){ 0 };
    if (ddp->opts.bucket_bytes == 0)
        ddp->opts.bucket_bytes = 25 << 20;
    if (ddp->opts.bucket_bytes < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "ddp_wrap: .bucket_bytes: %lld; must be 0 or more",
                         (long long)ddp->opts.bucket_bytes);
    if (ddp->opts.shard == TREK_SHARD_GRADIENTS || ddp->opts.shard == TREK_SHARD_PARAMETERS)
        return trek_fail(
            TREK_ERR_UNSUPPORTED,
            "ddp_wrap: .shard: TREK_SHARD_GRADIENTS or TREK_SHARD_PARAMETERS; a program's own loop may read gradients "
            "and parameters, so each rank has them all. trek_trainer_setup divides them");
    if (ddp->opts.shard != TREK_SHARD_NONE && ddp->opts.shard != TREK_SHARD_STATE)
        return trek_fail(TREK_ERR_ARGUMENT, "ddp_wrap: .shard: %d; must be a value of trek_shard", (int)ddp->opts.shard);
    if (ddp->opts.overlap != 0 && ddp->opts.overlap != 1 && ddp->opts.overlap != TREK_OFF)
        return trek_fail(TREK_ERR_ARGUMENT, "ddp_wrap: .overlap: %d; must be 0 (where it helps), 1 or TREK_OFF",
                         ddp->opts.overlap);
    if (ddp->opts.min_processes < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "ddp_wrap: .min_processes: %d; must be 0 or more", ddp->opts.min_processes);
    return TREK_OK;
}

static trek_status check_models(trek_module *const *models, int n)
{
    for (int r = 0; r < n; r++) {
        if (!models[r])
            return trek_fail_missing("ddp_wrap", "model");
        if (trek_gone(models[r], "ddp_wrap", "a model"))
            return TREK_ERR_STATE;
        for (int q = 0; q < r; q++)
            if (models[q] == models[r])
                return trek_fail(TREK_ERR_ARGUMENT,
                                 "ddp_wrap: models: ranks %d and %d were given the same one; each needs its own replica", q, r);
        if (models[r]->own->failed)
            return trek_fail(TREK_ERR_STATE,
                             "ddp_wrap: models: rank %d's is incomplete: a module that was added to it could not be made", r);
    }
    return TREK_OK;
}

/* Makes the wrapper the owner of a model. The model of replica 0 becomes a child without a name, so that parameter
 * names do not change. */
static trek_status adopt(trek_ddp *ddp, int r, trek_module *model)
{
    if (r == 0) {
        trek_status status = trek_array_grow(&ddp->base.own->children, &ddp->base.own->cap_children, 1,
                                             sizeof *ddp->base.own->children);
        char *name = status == TREK_OK ? trek_strdup("") : NULL;
        if (!name)
            return trek_error_status();
        ddp->base.own->children[0] = (trek_module_link){ name, model };
        ddp->base.own->n_children = 1;
        ddp->base.own->training = model->own->training;
    }
    model->own->owners++;
    ddp->replicas[r].module = model;
    return TREK_OK;
}

/* Frees the models that did not get into a wrapper. */
static void drop_models(trek_module *const *models, int n, const trek_ddp *ddp)
{
    for (int r = 0; r < n; r++) {
        trek_module *model = models[r];
        bool seen = ddp && r < ddp->n && ddp->replicas[r].module == model;
        for (int q = 0; q < r && !seen; q++)
            seen = models[q] == model;
        if (model && !seen && !trek_gone(model, "ddp_wrap", "a model") && model->own->owners == 0)
            trek_module_free(&model);
    }
}

static trek_ddp *make(trek_module *const *models, int n, const trek_ddp_opts *opts)
{
    trek_status status = check_models(models, n);
    trek_ddp *ddp = status == TREK_OK ? (trek_ddp *)trek_module_new(&ddp_class) : NULL;
    if (ddp) {
        ddp->replicas = trek_calloc((size_t)n, sizeof *ddp->replicas);
        ddp->n = ddp->replicas ? n : 0;
        status = ddp->replicas ? resolve(ddp, opts) : trek_error_status();
    }
    for (int r = 0; ddp && r < n && status == TREK_OK; r++)
        status = adopt(ddp, r, models[r]);
    if (ddp && status == TREK_OK)
        return ddp;
    drop_models(models, n, ddp);
    trek_ddp_free(&ddp);
    return NULL;
}

static int gpus_of(const trek_ddp *ddp, int world_size)
{
    int n = 0;
    for (int k = 0; k < world_size; k++)
        n += ddp->devices[k].type != TREK_CPU;
    return n;
}

/* Binds layers that meet. With a wrapper of its own on each rank the program runs the layers, on any thread. */
static trek_status bind_layers(const trek_ddp *ddp, trek_ddp_replica *r)
{
    if (ddp->ranks || r->world_size == 1 || !r->model->meets)
        return TREK_OK;
    r->sums = trek_comm_sums_new(r->comm);
    if (r->sums)
        trek_replica_bind(r->model, r->sums);
    return r->sums ? TREK_OK : trek_error_status();
}

/* Lets one rank make its lists and compare them with the others'. */
static trek_status list_rank(trek_ddp *ddp, int k, void *arg)
{
    trek_status own = *(const trek_status *)arg;
    trek_ddp_replica *r = &ddp->replicas[k];
    r->all_on_host = gpus_of(ddp, r->world_size) == 0;
    if (own == TREK_OK)
        own = trek_ddp_plan(ddp, r);
    if (own == TREK_OK && ddp->opts.min_processes > 0 && r->model->meets)
        own = trek_fail(TREK_ERR_UNSUPPORTED, "ddp_wrap_process: .min_processes: set, with layers that meet other ranks "
                                              "(sync_batch_norm), which wait for a process that has died");
    if (own == TREK_OK)
        own = bind_layers(ddp, r);
    char options[160];
    snprintf(options, sizeof options, "the size of buckets\t%lld bytes\noverlap\t%d\n.shard\t%s\n.min_processes\t%d\n",
             (long long)ddp->opts.bucket_bytes, ddp->opts.overlap, ddp->opts.shard != TREK_SHARD_NONE ? "set" : "not set",
             ddp->opts.min_processes);
    return trek_replica_compare(r->model, r->comm, options, "ddp: the replicas differ", own);
}

static trek_status take_values(trek_ddp *ddp, int k, void *arg)
{
    (void)arg;
    trek_status status = trek_ddp_take_first(&ddp->replicas[k], true, true, TREK_OK);
    return status == TREK_OK ? trek_ddp_commit(ddp) : status;
}

/* Lets one rank check with the others and take rank 0's values. */
static trek_status join_rank(trek_ddp *ddp, int k, void *arg)
{
    trek_status status = list_rank(ddp, k, arg);
    return status == TREK_OK ? take_values(ddp, k, NULL) : status;
}

/* Finds the device of a replica; the CPU if the model has no parameters or buffers. */
static trek_status find_device(trek_ddp_replica *r)
{
    r->device = trek_cpu(0);
    trek_status status = trek_replica_device(r->module, &r->device);
    return status != TREK_OK || trek_backend_get(r->device.type) ? status : trek_error_status();
}

static trek_status finish_local(trek_ddp *ddp)
{
    ddp->devices = trek_calloc((size_t)ddp->n, sizeof *ddp->devices);
    if (!ddp->devices)
        return trek_error_status();
    ddp->n_devices = ddp->n;
    for (int r = 0; r < ddp->n; r++)
        ddp->devices[r] = ddp->replicas[r].device;
    if (ddp->n > 1 && !(ddp->ranks = trek_ranks_new(ddp->devices, ddp->n)))
        return trek_error_status();
    for (int r = 0; r < ddp->n; r++) {
        ddp->replicas[r].comm = ddp->ranks ? trek_ranks_comm(ddp->ranks, r) : NULL;
        ddp->replicas[r].rank = r;
        ddp->replicas[r].world_size = ddp->n;
    }
    return TREK_OK;
}

/* All replicas make their lists before flags are copied between them. */
static trek_status join_all(trek_ddp *ddp)
{
    trek_status none = TREK_OK;
    if (!ddp->ranks)
        return join_rank(ddp, 0, &none);
    return trek_ddp_call_all(ddp, join_rank, &none);
}

static void set_overlap(trek_ddp *ddp)
{
    const trek_comm *comm = ddp->replicas[0].comm;
    int gpus = comm ? gpus_of(ddp, comm->world) : 0;
    bool mixed = gpus > 0 && gpus < comm->world; /* some ranks could start calls, but the others would wait in theirs */
    bool meets = ddp->replicas[0].model->meets; /* layers meet in backward, too: in one order with the buckets */
    bool by_itself = comm && (gpus > 0 ? comm->nccl != NULL : trek_comm_overlaps(comm));
    ddp->overlap = comm && comm->world > 1 && !mixed && !meets && ddp->opts.min_processes == 0 &&
        (ddp->opts.overlap == 1 || (ddp->opts.overlap == 0 && by_itself));
}

trek_ddp *trek_ddp_wrap(trek_module *const *models, int n, const trek_ddp_opts *opts)
{
    if (!models)
        return trek_fail_missing("ddp_wrap", "models"), NULL;
    if (n < 1 || n > TREK_MAX_RANKS)
        return trek_fail_null(TREK_ERR_ARGUMENT, "ddp_wrap: n: %d models; must be 1 to %d", n, TREK_MAX_RANKS);
    trek_status status = trek_error_status();
    if (status != TREK_OK) {
        drop_models(models, n, NULL);
        return NULL;
    }
    trek_ddp *ddp = make(models, n, opts);
    if (!ddp)
        return NULL;
    if (ddp->opts.min_processes > 0)
        status = trek_fail(TREK_ERR_ARGUMENT, "ddp_wrap: .min_processes: %d; must be 0, since all replicas are in one process; "
                                              "trek_ddp_wrap_process takes it",
                           ddp->opts.min_processes);
    for (int r = 0; r < n && status == TREK_OK; r++)
        status = find_device(&ddp->replicas[r]);
    if (status == TREK_OK)
        status = finish_local(ddp);
    if (status == TREK_OK)
        status = join_all(ddp);
    if (status == TREK_OK) {
        trek_ddp_follow_flags(ddp);
        set_overlap(ddp);
        return ddp;
    }
    trek_ddp_free(&ddp);
    return NULL;
}

/* Gathers the device of every rank. */
static trek_status gather_devices(trek_ddp *ddp, trek_status own)
{
    trek_ddp_replica *r = &ddp->replicas[0];
    ddp->devices = trek_calloc((size_t)r->world_size, sizeof *ddp->devices);
    ddp->numbers = trek_calloc((size_t)r->world_size, sizeof *ddp->numbers);
    bool room = ddp->devices && ddp->numbers;
    ddp->n_devices = room ? r->world_size : 0;
    trek_status status = trek_replica_agree(r->comm, own == TREK_OK && !room ? trek_error_status() : own, "ddp");
    if (status != TREK_OK)
        return status;
    ddp->devices[r->rank] = r->device;
    if (r->world_size == 1)
        return TREK_OK;
    return trek_comm_run(r->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_GATHER,
                                                    .dtype = TREK_U8,
                                                    .count = (int64_t)sizeof r->device,
                                                    .in = &r->device,
                                                    .out = ddp->devices });
}

/* A handle between processes takes the model's device, and its library if all processes can. */
static trek_status join_device(const trek_ddp *ddp)
{
    const trek_ddp_replica *r = &ddp->replicas[0];
    return gpus_of(ddp, r->world_size) > 0 ? trek_comm_nccl_join(r->comm, r->device) : TREK_OK;
}

/* Tells the others, where they wait for this rank, that it could not even begin. */
static trek_ddp *tell_others(trek_comm *comm)
{
    trek_replica_agree(comm, trek_error_status(), "ddp");
    return NULL;
}

trek_ddp *trek_ddp_wrap_process(trek_module *model, trek_comm *comm, const trek_ddp_opts *opts)
{
    trek_status before = trek_error_status();
    trek_ddp *ddp = NULL;
    comm = trek_ddp_job_comm(comm);
    if (before == TREK_OK)
        ddp = make(&model, 1, opts);
    else
        drop_models(&model, 1, NULL);
    if (!ddp)
        return tell_others(comm);
    trek_ddp_replica *r = &ddp->replicas[0];
    r->comm = comm && trek_comm_retain(comm) ? comm : NULL;
    r->rank = trek_comm_rank(comm);
    r->world_size = trek_comm_world_size(comm);
    trek_status own = find_device(r);
    if (own == TREK_OK)
        own = trek_ddp_job_check(ddp, comm);
    if (own == TREK_OK && comm && !comm->control && r->device.type != TREK_CPU && !trek_device_equal(r->device, comm->device)) {
        char a[16], b[16];
        own = trek_fail(TREK_ERR_DEVICE,
                        "ddp_wrap_process: model: it is on %s and the communicator's rank on %s; must be the same device",
                        trek_device_name(r->device, a, sizeof a),
                        trek_device_name(comm->device, b, sizeof b));
    }
    trek_status status = gather_devices(ddp, own);
    if (status == TREK_OK && comm && comm->control)
        status = join_device(ddp);
    if (status == TREK_OK)
        status = list_rank(ddp, 0, &(trek_status){ TREK_OK });
    if (status == TREK_OK)
        status = trek_ddp_job_begin(ddp);
    if (status == TREK_OK)
        status = trek_ddp_call(ddp, take_values, NULL, TREK_DDP_PARAMS | TREK_DDP_BUFFERS);
    if (status == TREK_OK) {
        set_overlap(ddp);
        return ddp;
    }
    trek_ddp_free(&ddp);
    return NULL;
}

void trek_ddp_free(trek_ddp **ddp)
{
    if (!ddp || !*ddp)
        return;
    trek_module *module = &(*ddp)->base;
    trek_module_free(&module);
    if (!module)
        *ddp = NULL;
}

/* Holds a reference of its own to the model while the wrapper is freed. */
trek_module *trek_ddp_unwrap(trek_ddp **ddp)
{
    if (!ddp || !*ddp)
        return trek_fail_missing("ddp_unwrap", "wrapper"), NULL;
    if ((*ddp)->base.own->owners > 0)
        return trek_fail_null(TREK_ERR_STATE, "ddp_unwrap: ddp: it belongs to another module or graph, which frees it");
    trek_module *model = (*ddp)->replicas[0].module;
    model->own->owners++;
    trek_ddp_free(ddp);
    model->own->owners--;
    return model;
}

static trek_status plan_again(trek_ddp *ddp, int k, void *arg)
{
    trek_ddp_plan_clear(&ddp->replicas[k]);
    if (!ddp->job)
        return join_rank(ddp, k, arg);
    trek_status status = list_rank(ddp, k, arg);
    return status == TREK_OK ? trek_ddp_commit(ddp) : status;
}

trek_status trek_ddp_refresh(trek_ddp *ddp)
{
    if (!ddp)
        return trek_fail_missing("ddp_refresh", "wrapper");
    trek_status own = trek_error_status();
    if (ddp->ranks && trek_ranks_rank_here(ddp->ranks) < 0)
        return own != TREK_OK ? own : trek_ddp_call_all(ddp, plan_again, &own);
    trek_status status = trek_ddp_call(ddp, plan_again, &own, 0);
    if (status == TREK_OK && ddp->job) /* what is taken from rank 0 is known now */
        status = trek_ddp_call(ddp, take_values, NULL, TREK_DDP_PARAMS | TREK_DDP_BUFFERS);
    return status;
}

/* --- what it is ------------------------------------------------------------------------------- */

trek_module *trek_ddp_module(trek_ddp *ddp)
{
    if (!ddp)
        return trek_fail_missing("ddp_module", "wrapper"), NULL;
    return &ddp->base;
}

trek_module *trek_ddp_replica_module(trek_ddp *ddp, int r)
{
    if (!ddp)
        return trek_fail_missing("ddp_replica_module", "wrapper"), NULL;
    if (r < 0 || r >= ddp->n)
        return trek_fail_null(TREK_ERR_ARGUMENT, "ddp_replica_module: r: %d; must be below %d, the number of replicas", r,
                              ddp->n);
    return ddp->replicas[r].module;
}

int trek_ddp_world_size(const trek_ddp *ddp)
{
    int rank;
    return !ddp ? 1 : ddp->job ? trek_ddp_job_shown(ddp->job, &rank) : ddp->replicas[0].world_size;
}

int trek_ddp_rank(const trek_ddp *ddp)
{
    int rank = 0;
    if (!ddp)
        return 0;
    if (ddp->job) {
        trek_ddp_job_shown(ddp->job, &rank);
        return rank;
    }
    int here = ddp->ranks ? trek_ranks_rank_here(ddp->ranks) : 0;
    return ddp->replicas[here > 0 ? here : 0].rank;
}

int trek_ddp_devices(const trek_ddp *ddp, trek_device *devices, int capacity)
{
    int n = trek_ddp_world_size(ddp);
    for (int r = 0; ddp && devices && r < n && r < capacity; r++)
        devices[r] = ddp->job ? trek_ddp_job_device(ddp, r) : ddp->devices[r];
    return n;
}

trek_ranks *trek_ddp_ranks(trek_ddp *ddp) { return ddp ? ddp->ranks : NULL; }

trek_comm *trek_ddp_comm(trek_ddp *ddp)
{
    if (!ddp)
        return NULL;
    if (ddp->job)
        return trek_ddp_job_group(ddp->job);
    int here = ddp->ranks ? trek_ranks_rank_here(ddp->ranks) : 0;
    return ddp->replicas[here > 0 ? here : 0].comm;
}
