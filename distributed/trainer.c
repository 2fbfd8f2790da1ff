/* SPDX-License-Identifier: Apache-2.0 */
/* trek_trainer_setup: it finds the ranks and makes their replicas, the stepper and the options. */
#include "distributed/trainer_setup.h"

#include "autograd/var_internal.h"
#include "data/loader_position.h"
#include "data/stream.h"
#include "distributed/arrivals_state.h"
#include "distributed/job/agreement.h"
#include "distributed/job/job_products.h"
#include "distributed/memory_plan.h"
#include "distributed/pass/arrivals.h"
#include "distributed/pass/dry_pass.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/shares.h"
#include "distributed/policy/grain_size.h"
#include "distributed/reduce/sharded.h"
#include "distributed/stepper.h"
#include "distributed/system/system.h"
#include "distributed/team/settings.h"
#include "distributed/team/step.h"
#include "distributed/team/step_policy.h"
#include "graph/amp.h"
#include "graph/batch_run.h"
#include "graph/graph_internal.h"
#include "graph/graph_loader_internal.h"
#include "graph/timeline.h"
#include "nn/fp8.h"
#include "nn/module_tree.h"
#include "nn/ways.h"
#include "nn/text.h"
#include "tensor/backend.h"
#include "tensor/try_internal.h"

static trek_status check_global_batch(const trainer_setup *s)
{
    if (s->opts.global_batch > 0 && !(s->graph->graph_loader && s->graph->graph_loader->loader))
        return trek_fail(
            TREK_ERR_STATE,
            "trainer_setup: .global_batch: it counts batches of the graph's loader; call trek_graph_set_loader first");
    return TREK_OK;
}

/* Checks the number of shares when the number of ranks is known. */
static trek_status check_number_of_shares(const trainer_setup *s)
{
    int ranks = trek_graph_world_size(s->graph);
    if (!s->opts.shares || s->opts.n_shares == ranks)
        return TREK_OK;
    return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .n_shares: %d; must be the number of the job's ranks, %d",
                     s->opts.n_shares, ranks);
}

/* Returns whether the graph's loader reads a stream: it is read in order, so that ranks cannot take windows of it. */
static bool has_stream(const trainer_setup *s)
{
    const trek_graph_loader *graph_loader = s->graph->graph_loader;
    return graph_loader && trek_dataset_is_stream(trek_loader_dataset(graph_loader->loader));
}

/* Finds the size of grains where the program leaves it to trek: that of the environment. Otherwise it is measured when everything
 * has been set up; until then a grain is a batch. */
static trek_status begin_grain(trainer_setup *s)
{
    if (s->opts.grain != TREK_GRAIN)
        return TREK_OK;
    const trek_graph_loader *graph_loader = s->graph->graph_loader;
    s->opts.grain = trek_process_number("TREK_GRAIN", 1, 1000000000, 0);
    if (s->opts.grain > 0)
        return TREK_OK;
    if (!graph_loader || !graph_loader->loader || !graph_loader->loss || has_stream(s))
        return trek_fail(
            TREK_ERR_STATE,
            "trainer_setup: .grain: TREK_GRAIN, which measures training on a batch; call trek_graph_set_loader, with a "
            "loader that reads no stream, and trek_graph_set_loss first");
    s->chooses_grain = true;
    s->opts.grain = trek_loader_plan(graph_loader->loader)->batch_size;
    return TREK_OK;
}

/* --- replicas --------------------------------------------------------------------------------- */

static trek_status build_rank(int rank, void *arg)
{
    trainer_setup *s = arg;
    if (rank == 0)
        return TREK_OK;
    trek_lock_acquire(&s->building);
    trek_scope scope = trek_scope_begin();
    trek_graph *graph = s->opts.build_replica(s->devices[rank], s->opts.arg);
    trek_scope_end(scope);
    bool again = false;
    for (int r = 0; r < s->local_ranks; r++)
        again |= graph && s->graphs[r] == graph;
    if (!again)
        s->graphs[rank] = graph;
    trek_lock_release(&s->building);
    if (again)
        return trek_fail(
            TREK_ERR_ARGUMENT,
            "trainer_setup: .build_replica: it returned a graph that another rank already has; it must build a new one");
    if (graph)
        return TREK_OK;
    return trek_error_status() != TREK_OK
               ? trek_error_status()
               : trek_fail(TREK_ERR_CALLBACK, "trainer_setup: .build_replica: it returned NULL; it must return a graph");
}

static trek_status build_replicas(trainer_setup *s, trek_ranks *ranks)
{
    trek_lock_init(&s->building);
    s->graphs[0] = s->graph;
    trek_status status = trek_ranks_call(ranks, build_rank, s);
    for (int r = 0; r < s->local_ranks && status == TREK_OK; r++)
        status = trek_comm_set_deadline(trek_ranks_comm(ranks, r), s->opts.deadline_s);
    trek_lock_destroy(&s->building);
    return status;
}

/* Sets a plain stepper, so that parameters leave the old one's arena. The optimizer's state is kept for the next
 * stepper. */
static trek_status make_plain(trainer_setup *s)
{
    trek_optimizer *optimizer = trek_graph_optimizer(s->graph);
    trek_step *old = trek_graph_ranks(s->graph);
    if (trek_ranks_gather_state(old, trek_error_status(), true) != TREK_OK)
        return trek_error_status();
    if (optimizer)
        s->optimizer = trek_optimizer_snapshot_new(optimizer);
    trek_ranks_forget_state(old);
    if (optimizer && !s->optimizer)
        return trek_error_status();
    trek_stepper *plain = trek_stepper_single_new(s->graph);
    s->moved = plain != NULL;
    return plain ? trek_graph_set_stepper(s->graph, plain) : trek_error_status();
}

/* Takes the optimizer that the graph had, if setup gives it no other or has failed. */
static trek_status take_optimizer(trainer_setup *s)
{
    trek_stepper *stepper = s->optimizer ? trek_graph_stepper(s->graph) : NULL;
    return stepper ? stepper->klass->set_optimizer(stepper, &(trek_optimizer_source){ .snapshot = s->optimizer }) : TREK_OK;
}

/* The existing error remains the first one. */
static void put_back(trainer_setup *s)
{
    trek_kept_error first;
    trek_error_keep(&first);
    trek_stepper *plain = trek_graph_ranks(s->graph) || s->comm ? trek_stepper_single_new(s->graph) : NULL;
    if (plain)
        trek_graph_set_stepper(s->graph, plain);
    take_optimizer(s);
    trek_ways_forget(trek_graph_module(s->graph));
    trek_error_clear();
    trek_error_put_back(&first);
}

static trek_status note_meeting(const char *name, trek_module *module, void *meets)
{
    (void)name;
    *(bool *)meets |= module->own->klass->meets_ranks;
    return TREK_OK;
}

static trek_workload_opts workload_opts(const trainer_setup *s)
{
    const trek_trainer_opts *o = &s->opts;
    bool unequal = o->speed_hint.ratio > 1, meets = false, may = o->max_anchor == 0 && o->grain == 0 && o->min_processes == 0 &&
        !has_stream(s);
    trek_module_each(trek_graph_module(s->graph), note_meeting, &meets);
        /* if layers meet, shares are exact but windows are not */
    trek_workload_opts workload = { .unequal = unequal, .balance = o->balance,
                                    .windows = o->max_anchor > 0 || (may && o->global_batch > 0),
                                    .windows_if_unequal = may && !meets && !o->shares && o->shard < TREK_SHARD_GRADIENTS,
                                    .replay = o->plan, .shares = o->shares, .n_shares = o->n_shares };
    workload.balancer = (trek_balancer_opts){ .min_share = o->min_share, .allow_idle = o->allow_idle,
                                              .speed_ratio = o->speed_hint.ratio, .slow_rank = o->speed_hint.slow_rank };
    workload.elche = (trek_elche_opts){ .anchor = o->anchor, .max_anchor = o->max_anchor > 0 ? o->max_anchor : 0,
                                        .overhead_target = o->overhead_target,
                                        .max_batch_diff = o->max_batch_diff, .speed_ratio = o->speed_hint.ratio,
                                        .slow_rank = o->speed_hint.slow_rank };
    const trek_graph_loader *graph_loader = s->graph->graph_loader;
    if (o->global_batch > 0 && graph_loader && graph_loader->loader) {
        int64_t batch = trek_loader_plan(graph_loader->loader)->batch_size;
        workload.elche.global_batches = (o->global_batch + batch / 2) / batch > 0 ? (o->global_batch + batch / 2) / batch : 1;
    }
    return workload;
}

/* Layers with 8-bit products have buffers, which replicas have in common. They are made before buffers are listed. */
static trek_status make_products(trainer_setup *s)
{
    bool asked = s->opts.amp.products == TREK_AMP_PRODUCTS_FP8;
    const trek_fp8_opts *fp8 = asked ? &s->opts.amp.fp8 : &s->graph->fp8_opts;
    trek_status status = TREK_OK;
    for (int r = 0; r < s->local_ranks && status == TREK_OK && (asked || s->graph->fp8); r++)
        status = trek_fp8_enable(trek_graph_module(s->graphs[r]), fp8);
    return status;
}

static trek_status make_ranks(trainer_setup *s)
{
    if (has_stream(s) && (s->opts.max_anchor > 0 || s->opts.global_batch > 0))
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .max_anchor, .global_batch: set, with a loader over a stream, "
                                               "which is read in order; windows of batches need a dataset");
    if (!s->opts.build_replica && s->local_ranks > 1)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "trainer_setup: .build_replica: NULL, with %d ranks; they need it to make the graph on another device",
                         s->local_ranks);
    trek_ranks *ranks = trek_ranks_new(s->devices, s->local_ranks);
    if (!ranks)
        return trek_error_status();
    trek_status status = build_replicas(s, ranks);
    if (status == TREK_OK)
        status = make_plain(s);
    if (status == TREK_OK)
        status = make_products(s);
    trek_workload_opts workload = workload_opts(s);
    trek_ranks_opts opts = { .shared = s->opts.share_params != TREK_OFF && trek_trainer_count_cpus(s) == s->local_ranks,
                             .bucket_bytes = s->opts.bucket_bytes ? s->opts.bucket_bytes : 25 << 20, .workload = &workload,
                             .budgets = s->opts.memory_budget, .reduces_bf16 = s->opts.reduce_dtype == TREK_BF16,
                             .recomputes = s->opts.activations == TREK_AUTO, .host_budget = s->opts.host_budget,
                             .comm = s->comm, .outlives = trek_trainer_regroup(s) != NULL,
                             .redoes = trek_trainer_redoes(&s->opts),
                             .overlap = s->opts.grain > 0 || trek_trainer_redoes(&s->opts) ? TREK_OFF : s->opts.overlap,
                             .shards = s->opts.shard >= TREK_SHARD_STATE,
                             .shards_grads = s->opts.shard >= TREK_SHARD_GRADIENTS,
                             .shards_params = s->opts.shard >= TREK_SHARD_PARAMETERS,
                             .twice = s->opts.shard >= TREK_SHARD_STATE && s->opts.min_processes > 0, .joins = s->joins,
                             .averages = s->opts.average == TREK_AVERAGE_PARAMETERS,
                             .sites = s->run && s->run->sites, .grain = s->opts.grain,
                             .digests = s->opts.digests, .audit = s->opts.audit, .audit_removes = s->opts.audit_removes,
                             .divergence_threshold = s->opts.divergence_threshold == 0 ? 0.05
                                 : s->opts.divergence_threshold };
    if (status != TREK_OK) {
        for (int r = 1; r < s->local_ranks; r++)
            trek_graph_free(&s->graphs[r]);
        trek_ranks_free(&ranks);
        return status;
    }
    trek_stepper *stepper = trek_stepper_ranks_new(ranks, s->graphs, &opts);
    status = stepper ? trek_graph_set_stepper(s->graph, stepper) : trek_error_status();
    if (status == TREK_OK && s->comm && !s->opts.optimizer.klass)
        status = trek_job_sync_copy_optimizer(trek_graph_ranks(s->graph), s->optimizer);
    return status;
}

/* --- options ------------------------------------------------------------------------------------- */

/* Sets mixed precision, by which passes differ in what they need, before memory is planned. */
static trek_status apply_amp(const trainer_setup *s)
{
    const trek_amp_opts *amp = &s->opts.amp;
    bool asked = amp->dtype != TREK_F32 || amp->scaling != 0 || amp->products != TREK_AMP_PRODUCTS_DEFAULT;
    return asked ? trek_graph_set_amp(s->graph, amp) : TREK_OK;
}

/* Options that are not set leave the graph's values. */
static trek_status apply_options(trainer_setup *s)
{
    const trek_trainer_opts *o = &s->opts;
    const trek_graph_settings *has = &s->graph->settings;
    trek_status status = o->optimizer.klass ? trek_graph_set_optimizer(s->graph, o->optimizer) : take_optimizer(s);
    if (status == TREK_OK && o->schedule.kind != TREK_SCHEDULE_KIND_NONE)
        status = trek_graph_set_schedule(s->graph, &o->schedule);
    if (status == TREK_OK)
        status = trek_graph_set_clip(s->graph, o->max_grad_norm != 0 ? o->max_grad_norm : has->max_norm,
                                     o->max_grad_value != 0 ? o->max_grad_value : has->max_value);
    s->graph->accumulation.passes = o->accumulate > 0 ? o->accumulate : 1;
    if (status == TREK_OK && o->timeline)
        status = trek_timeline_attach(o->timeline);
    return status;
}

/* Checks that the processes of the job have the same options, and chooses what they are to have in common. A process that has
 * failed before tells the others. */
static trek_status agree_on_options(trainer_setup *s, trek_status own)
{
    trek_text text = { 0 };
    trek_step *stepper = trek_graph_ranks(s->graph);
    if (own == TREK_OK)
        trek_settings_describe_setup(stepper->team, &s->opts, &text);
    own = trek_agree(stepper->job.comm, own, "trainer_setup: the options of the processes differ", &text);
    trek_text_clear(&text);
    return own == TREK_OK ? trek_job_products_choose(stepper->job.comm) : own;
}

/* What is recomputed is chosen by measuring a pass. In evaluation there is nothing to choose. */
static trek_status check_measurable(const trainer_setup *s)
{
    const trek_graph_loader *graph_loader = s->graph->graph_loader;
    const trek_step *step = trek_graph_ranks(s->graph);
    if (s->opts.activations != TREK_AUTO || !step || trek_dry_pass_can_run(step) || !trek_graph_learns(s->graph))
        return TREK_OK;
    if (!graph_loader || !graph_loader->loader || !graph_loader->loss)
        return trek_fail(TREK_ERR_STATE, "trainer_setup: .activations: TREK_AUTO, which measures training on a batch; call "
                                         "trek_graph_set_loader and trek_graph_set_loss first");
    return trek_fail(TREK_ERR_UNSUPPORTED,
                     "trainer_setup: .activations: TREK_AUTO, with %s, with which a pass cannot be measured",
                     has_stream(s)                 ? "a loader over a stream"
                     : trek_team_meets(step->team) ? "layers that use other ranks"
                                                   : "a graph that carries states");
}

/* Returns the size of the largest grain that may be chosen, or 0 if none is chosen. */
static int64_t largest_grain(const trainer_setup *s) { return s->chooses_grain ? trek_grains_largest(s->opts.grain) : 0; }

/* GPUs of different models round differently, so a process with another one cannot join. */
static void describe_device(trek_device device, trek_text *text)
{
    trek_device_info info;
    if (device.type != TREK_CPU && trek_device_info_get(device, &info) == TREK_OK)
        trek_text_format(text, "device\t%s\n", info.name);
}

/* Makes the job able to go on without some of its processes. All processes have agreed on the options. */
static trek_status outlive(trainer_setup *s)
{
    int least = s->opts.min_processes;
    if (least > s->processes && !s->joins) /* how many there are when it joins is not known yet */
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .min_processes: %d; must be 0 to %d, the number of processes", least,
                         s->processes);
    if (has_stream(s))
        return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .min_processes: set, with a loader over a stream, whose samples "
                                               "cannot be read again when the process that had them has died");
    if (!(s->comm || s->joins) || least == 0)
        return TREK_OK;
    trek_step *step = trek_graph_ranks(s->graph);
    const trek_workload_opts workload = workload_opts(s);
    trek_text options = { 0 };
    trek_settings_describe_program(step->team, &s->opts, &options);
    trek_text_format(&options, "run\t%llu\n", s->run ? (unsigned long long)s->run->program : 0);
    describe_device(trek_ranks_device(step->team->ranks, 0), &options);
    const trek_survivors_opts opts = { .workload = &workload, .least = least, .lent = trek_trainer_regroup(s),
                                       .program = trek_arrivals_program(s->graph, &options),
                                       .state = s->run ? s->run->state : &trek_arrivals_state,
                                       .deadline_s = s->opts.deadline_s, .renew_plan = trek_memory_renew };
    trek_text_clear(&options);
    step->grain_chosen |= s->joins && s->chooses_grain; /* by the others */
    return s->joins ? trek_arrivals_join(step, &opts) : trek_survivors_begin(step, &opts);
}

/* --- the steps of setting up ----------------------------------------------------------------------------- */

/* Checks the options, and finds this process's ranks and the other processes. */
static trek_status find_ranks(trainer_setup *s)
{
    TRY(trek_trainer_check(&s->opts));
    TRY(begin_grain(s));
    TRY(check_global_batch(s));
    TRY(trek_trainer_find_ranks(s));
    if (s->opts.memory_budget && s->opts.n_memory_budget != s->local_ranks)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_setup: .n_memory_budget: %d; must be the number of this process's ranks, %d",
                         s->opts.n_memory_budget, s->local_ranks);
    return trek_constants_move(s->graph);
}

/* Makes the stepper that the options ask for; without options for ranks the one that there is stays. */
static trek_status make_stepper(trainer_setup *s)
{
    trek_ways_forget(trek_graph_module(s->graph)); /* what an earlier plan has chosen */
    if (s->local_ranks > 1 || s->comm || s->joins || s->opts.grain > 0 || s->opts.memory_budget ||
        s->opts.activations == TREK_AUTO)
        return make_ranks(s);
    return trek_graph_ranks(s->graph) ? make_plain(s) : TREK_OK;
}

/* Applies the options, now that the ranks have been made. What is a collective of the job is called whatever happened before. */
static trek_status apply_all(trainer_setup *s)
{
    trek_step *step = trek_graph_ranks(s->graph);
    bool planned = step && trek_memory_is_planned(step);
    trek_status status = check_number_of_shares(s);
    if (status == TREK_OK)
        status = apply_amp(s);
    if (status == TREK_OK)
        status = check_measurable(s);
    if (planned)
        status = trek_memory_divide(step, status, largest_grain(s), &s->opts.optimizer);
    if (status == TREK_OK)
        status = apply_options(s);
    if (s->comm)
        status = agree_on_options(s, status);
    if (status != TREK_OK)
        return status;
    if (s->opts.grain > 0)
        status = trek_job_products_fix(s->comm);
    if (status == TREK_OK && s->chooses_grain && !s->joins)
        status = trek_grains_choose(step);
    if (planned)
        status = trek_memory_settle(step, status);
    return status == TREK_OK && s->opts.min_processes > 0 ? outlive(s) : status;
}

trek_status trek_trainer_setup_run(trek_graph *graph, const trek_trainer_opts *opts, const trek_trainer_run_opts *run)
{
    if (!graph)
        return trek_fail_missing("trainer_setup", "graph");
    if (trek_error_status() != TREK_OK)
        return trek_error_status();
    trainer_setup *s = trek_calloc(1, sizeof *s);
    if (!s)
        return trek_error_status();
    s->graph = graph;
    s->run = run;
    if (opts)
        s->opts = *opts;
    trek_status status = find_ranks(s);
    if (status == TREK_OK)
        status = make_stepper(s);
    if (status == TREK_OK)
        status = apply_all(s);
    if (status == TREK_OK)
        trek_trainer_log_setup(s);
    else if (s->moved)
        put_back(s);
    trek_optimizer_snapshot_free(&s->optimizer);
    trek_comm_free(&s->comm);
    trek_free(s);
    return status;
}

trek_status trek_trainer_setup(trek_graph *graph, const trek_trainer_opts *opts)
{
    return trek_trainer_setup_run(graph, opts, NULL);
}
