/* SPDX-License-Identifier: Apache-2.0 */
/* What the run's thread does: it makes the model and the ranks and then trains epoch by epoch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/loader_position.h"
#include "distributed/comm/init_internal.h"
#include "distributed/grains/digests.h"
#include "distributed/job/agreement.h"
#include "distributed/pass/survivors.h"
#include "distributed/rounds/averaging.h"
#include "distributed/rounds/rounds.h"
#include "distributed/run/run_internal.h"
#include "distributed/stepper.h"
#include "distributed/stop.h"
#include "distributed/system/system.h"
#include "distributed/team/replica.h"
#include "distributed/trainer_internal.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/graph_loader_internal.h"
#include "graph/watch.h"
#include "nn/state_modules.h"
#include "optim/schedules.h"
#include "tensor/backend.h"

enum { DEFAULT_MOST_ANCHOR = 200 };

static trek_rounds *rounds_of(const trek_run *run) { return trek_ranks_rounds(trek_graph_ranks(run->graph)); }

static trek_comm *comm_of(const trek_run *run) { return trek_graph_job(run->graph)->comm; }

/* Agrees with the others, after something that may fail in one process only. They are in a step if this process has just come. */
static trek_status agree(const trek_run *run, trek_status own)
{
    return trek_run_has_come(run) ? own : trek_replica_agree(comm_of(run), own, "trainer_run");
}

/* --- setting up --------------------------------------------------------------------------------- */

/* Finds where rank 0's replica is built; trek_trainer_setup adds the other ranks. */
static trek_status find_device(const trek_trainer_opts *t, trek_device *device)
{
    const char *listed = trek_process_variable("TREK_DEVICES");
    char text[32];
    *device = trek_device_resolve(t->devices ? t->devices[0] : (trek_device){ 0 });
    if (t->ranks > 0 || !listed || !*listed)
        return TREK_OK;
    size_t size = strcspn(listed, ",");
    if (size >= sizeof text)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_run: TREK_DEVICES=%s: the first entry is not a device such as cpu:1",
                         listed);
    memcpy(text, listed, size);
    text[size] = '\0';
    return trek_device_parse(text, device);
}

static trek_loader *make_loader(const trek_run_opts *o, trek_dataset *dataset, int64_t batch_size, trek_device device,
                                bool training)
{
    return trek_loader_new(trek_dataset_retain(dataset),
                           &(trek_loader_opts){ .batch_size = batch_size, .shuffle = training && o->shuffle,
                                                .seed = o->seed, .drop_last = training && o->drop_last, .prefetch = o->prefetch,
                                                .workers = o->workers, .device = device });
}

static trek_status feed(trek_run *run, trek_loader *loader, trek_loss_fn fn, const char *name)
{
    trek_status status = trek_graph_set_loader(run->graph, loader, run->opts.input);
    if (status == TREK_OK)
        status = trek_graph_set_loss(run->graph, fn, run->opts.arg);
    if (status == TREK_OK)
        run->graph->graph_loader->measures = true, run->graph->graph_loader->loss_name = name;
    return status;
}

static trek_status scale_rates(trek_run *run)
{
    const trek_run_opts *o = &run->opts;
    bool come = trek_run_has_come(run); /* then the others' number is known, and the rate is theirs */
    int replayed = trek_grains_replayed_ranks(trek_graph_ranks(run->graph));
    if (!come)
        run->sites = trek_graph_world_size(run->graph);
    if (!come && o->site == TREK_SITE_PROCESS)
        run->sites = comm_of(run) ? trek_comm_world_size(comm_of(run)) : 1;
    if (!come && replayed > 0)
        run->sites = replayed;
    double factor = 1 + (run->sites - 1) * o->lr_scale;
    if (factor == 1)
        return TREK_OK;
    if (o->schedule.kind == TREK_SCHEDULE_KIND_NONE)
        return come ? TREK_OK : trek_graph_set_lr(run->graph, trek_graph_lr(run->graph) * factor);
    trek_schedule scaled = trek_scaled_lr(o->schedule, factor);
    return trek_graph_set_schedule(run->graph, &scaled);
}

/* Checks that all processes have the same of what decides when they meet, and what they decide. */
static trek_status compare(const trek_run *run)
{
    if (!comm_of(run) || trek_run_has_come(run)) /* it was compared before it was let in */
        return TREK_OK;
    trek_text text = trek_run_describe(run);
    trek_status status = trek_agree(comm_of(run), TREK_OK, "trainer_run: the options of the processes differ", &text);
    trek_text_clear(&text);
    return status;
}

static void show(trek_run *run, int64_t batches, int64_t samples, int64_t steps, double loss)
{
    trek_lock_acquire(&run->lock);
    trek_run_progress *p = &run->progress;
    double seconds = (double)(trek_now_ns() - run->epoch_start_ns) * 1e-9;
    run->epoch_samples += samples;
    p->batch += batches;
    p->samples += samples;
    p->steps += steps;
    p->samples_per_s = seconds > 0 ? (double)run->epoch_samples / seconds : 0;
    p->loss = loss;
    trek_lock_release(&run->lock);
}

/* Returns whether somebody has asked to end. Called by the thread that averages. */
static bool is_stop_wanted(void *arg)
{
    return atomic_load_explicit(&((trek_run *)arg)->stop, memory_order_relaxed) || trek_stop_requested();
}

/* Called by ranks' threads when a rank has trained a batch. */
static void show_rank(int64_t samples, void *arg) { show(arg, 1, samples, 1, NAN); }

static trek_status average_in_background(trek_run *run)
{
    const trek_run_opts *o = &run->opts;
    trek_step *s = trek_graph_ranks(run->graph);
    trek_outer_rule rule;
    if (o->transport != TREK_TRANSPORT_HOST || !s || !trek_step_averages(s))
        return TREK_OK;
    if (o->outer && trek_outer_check(o->outer, "trainer_run: .outer", &rule) != TREK_OK)
        return trek_error_status();
    return trek_rounds_new(s, &(trek_rounds_opts){ .one_batch = o->policy == TREK_POLICY_SYNC,
                                                           .eager = o->policy == TREK_POLICY_ASYNC,
                                                           .max_lead = o->max_lead == TREK_OFF ? -1 : o->max_lead,
                                                           .outer = o->outer ? &rule : NULL,
                                                           .stopped = is_stop_wanted, .progress = show_rank, .arg = run });
}

/* Returns whether the ranks train together with no others to average with: a job of one process that would be a site. */
static bool is_only_site(const trek_run_opts *o)
{
    const trek_comm *comm = o->trainer.comm;
    return o->site == TREK_SITE_PROCESS && (comm ? trek_comm_world_size(comm) : trek_comm_world_described(NULL)) == 1;
}

static trek_status set_up(trek_run *run)
{
    const trek_run_opts *o = &run->opts;
    trek_trainer_opts t = o->trainer;
    bool alone = is_only_site(o);
    t.build_replica = o->build_model;
    t.arg = o->arg;
    t.optimizer = o->optimizer;
    t.schedule = o->schedule;
    if (o->transport == TREK_TRANSPORT_HOST)
        t.average = alone ? TREK_AVERAGE_GRADIENTS : TREK_AVERAGE_PARAMETERS;
    t.plan = alone ? NULL : t.plan; /* a plan is for sites */
    if (o->policy == TREK_POLICY_SYNC || alone)
        t.max_anchor = TREK_OFF;
    else if (t.max_anchor == 0)
        t.max_anchor = DEFAULT_MOST_ANCHOR;
    t.min_processes = trek_run_outlives_in_steps(run) && run->elastic ? o->min_processes : 0;
    run->arrivals = trek_run_arrivals_state(run);
    const trek_trainer_run_opts of_run = { .sites = o->site == TREK_SITE_PROCESS, .regroup = trek_run_elastic_regroup(run),
                                           .program = t.min_processes > 0 ? trek_run_program(run) : 0,
                                           .state = &run->arrivals };
    trek_status status = trek_error_status();
    if (status == TREK_OK)
        status = trek_trainer_setup_run(run->graph, &t, &of_run);
    if (status == TREK_OK)
        status = compare(run);
    if (status == TREK_OK)
        status = average_in_background(run);
    return status == TREK_OK ? scale_rates(run) : status;
}

static trek_graph *graph_around(trek_module *module)
{
    return trek_flow_build(trek_flow_label(trek_flow_from(module), "model"));
}

static trek_status make(trek_run *run)
{
    const trek_run_opts *o = &run->opts;
    trek_device device;
    trek_status status = find_device(&o->trainer, &device);
    if (status != TREK_OK)
        return status;
    trek_seed(o->seed);
    run->graph = run->module ? graph_around(run->module) : o->build_model(device, o->arg);
    if (!run->graph && run->module)
        return trek_error_status();
    if (!run->graph)
        return trek_fail_after(TREK_ERR_CALLBACK, "trainer_run: .build_model: it returned NULL; must return a module");
    run->train = make_loader(o, o->dataset, o->batch_size, device, true);
    if (o->evaluation)
        run->evaluation = make_loader(o, o->evaluation, o->evaluation_batch ? o->evaluation_batch : o->batch_size, device, false);
    status = trek_error_status();
    return status == TREK_OK ? feed(run, run->train, o->train_step, "trainer_run: .train_step") : status;
}

/* Builds the graph on the ranks of all processes. */
static trek_status build(trek_run *run)
{
    trek_comm *comm = run->opts.trainer.comm;
    trek_comm_say(comm, "build"); /* which may take long */
    trek_status status = trek_replica_agree(comm, make(run), "trainer_run");
    trek_comm_say(comm, NULL);
    if (status == TREK_OK)
        status = set_up(run);
    memset(&run->averages, 0, sizeof run->averages);
    return status == TREK_OK ? agree(run, trek_run_save_begin(run)) : status;
}

static void clean_up(trek_run *run)
{
    if (run->graph)
        trek_graph_set_loader(run->graph, NULL, NULL);
    trek_loader_free(&run->train);
    trek_loader_free(&run->evaluation);
    trek_graph_free(&run->graph);
}

static trek_status prepare(trek_run *run)
{
    if (trek_comm_init_joins())
        return trek_run_elastic_join(run, make, clean_up, build);
    trek_status status = trek_run_elastic_begin(run);
    return status == TREK_OK ? trek_run_elastic_start(run, build) : status;
}

/* --- an epoch ------------------------------------------------------------------------------------ */

/* Returns whether this run or the job was asked to stop. All processes know it at the same step. */
static bool is_stopped(trek_run *run)
{
    bool asked = atomic_load_explicit(&run->stop, memory_order_relaxed);
    run->graph->settings.stop_wanted = asked;
    return run->graph->settings.stop_agreed || trek_stop_requested() || (asked && !comm_of(run));
}

static void show_epoch(trek_run *run, int64_t epoch)
{
    int64_t batch = 0;
    if (run->resumed)
        trek_loader_position(run->train, NULL, &batch);
    trek_lock_acquire(&run->lock);
    run->progress.epoch = epoch;
    run->progress.batch = batch;
    run->progress.batches = trek_loader_batches(run->train);
    run->progress.steps = trek_graph_steps(run->graph);
    run->epoch_start_ns = trek_now_ns() - run->before.ns;
    run->epoch_samples = 0;
    trek_lock_release(&run->lock);
}

static int64_t passes_of_step(const trek_run *run) { return run->opts.trainer.accumulate > 1 ? run->opts.trainer.accumulate : 1; }

/* A pass in the background was given all of the epoch; if it was stopped, a rest is left. */
static trek_status seek_rest(trek_run *run)
{
    int64_t epoch, next = trek_rounds_look(rounds_of(run)).next;
    trek_loader_position(run->train, &epoch, NULL);
    return next < trek_loader_batches(run->train) ? trek_loader_seek(run->train, epoch, next) : TREK_OK;
}

static trek_status step(trek_run *run)
{
    int64_t epoch, batch, steps = trek_graph_steps(run->graph);
    trek_status status = trek_graph_step(run->graph);
    if (status == TREK_OK && rounds_of(run))
        status = seek_rest(run);
    trek_loader_position(run->train, &epoch, &batch);
    if (status == TREK_OK)
        return trek_run_elastic_keep(run, epoch, batch);
    bool made = trek_graph_steps(run->graph) > steps; /* and the next one cannot begin */
    trek_kept_error why;
    trek_error_keep(&why);
    if (made && trek_run_outlives_in_steps(run))
        trek_run_elastic_keep(run, epoch, batch);
    trek_error_clear();
    trek_error_put_back(&why);
    return status;
}

/* Runs a pass, and the step if this is the step's last pass. */
static trek_status train_batch(trek_run *run, trek_batch *batch, bool steps)
{
    int64_t samples = batch->global, batches = batch->window ? batch->batches : 1, before = trek_graph_steps(run->graph);
    trek_var *loss = trek_graph_train_batch(run->graph, batch);
    if (!loss)
        return trek_error_status();
    double value = trek_var_device(loss).type == TREK_CPU ? trek_var_item(loss) : (double)NAN;
    if (rounds_of(run))
        is_stopped(run); /* the step tells all processes */
    trek_status status = steps ? step(run) : TREK_OK;
    if (!rounds_of(run) && status == TREK_OK)
        show(run, batches, samples, trek_graph_steps(run->graph) - before, value);
    return status;
}

/* How training of an epoch ends. */
typedef enum run_end { RUN_EPOCH_ENDED, RUN_REPORTS, RUN_STOPPED } run_end;

/* Notes what has been trained in the epoch. */
static void count(const trek_run *run, trek_epoch_metrics *m)
{
    const run_part *part = &run->part;
    int64_t every = part->every;
    m->seconds = (double)(trek_now_ns() - run->epoch_start_ns) * 1e-9;
    m->steps = trek_graph_steps(run->graph) - part->steps + part->before.steps;
    m->averages = trek_graph_world_size(run->graph) > 1 ? (part->passes + every - 1) / every + part->before.averages : 0;
    m->samples = run->progress.samples - part->samples + part->before.samples;
}

/* Saves a checkpoint in the midst of an epoch. */
static trek_status save_within(trek_run *run, run_epoch *e)
{
    count(run, &e->metrics);
    trek_status status = agree(run, trek_run_begin_within(run, e));
    if (status == TREK_OK)
        status = agree(run, trek_run_save(run, &e->metrics, true));
    trek_run_end_within(run);
    return status;
}

/* Does what is due between two steps. At the end of an epoch nothing is: a complete epoch is evaluated and reported, and only
 * then the run stops. */
static trek_status after_step(trek_run *run, run_epoch *e, run_end *end)
{
    bool reports = trek_run_is_due_report(run), saves = trek_run_is_due(run, run->opts.checkpoint_every_steps);
    bool stops = is_stopped(run);
    if ((reports || saves || stops) && !trek_loader_more(run->train))
        return trek_error_status();
    if (reports)
        *end = RUN_REPORTS;
    else if (saves || stops)
        *end = stops ? RUN_STOPPED : RUN_EPOCH_ENDED;
    trek_status status = !reports && (stops || saves) ? save_within(run, e) : TREK_OK;
    run->looked = reports ? run->looked : trek_graph_steps(run->graph);
    return status;
}

/* Trains to the epoch's end, or until metrics are due, or until the run was asked to stop. It stops between steps, so that it
 * resumes with the same steps. */
static trek_status train(trek_run *run, run_epoch *e, run_end *end)
{
    run_part *part = &run->part;
    *part = (run_part){ .before = run->before, .steps = trek_graph_steps(run->graph), .samples = run->progress.samples,
                        .every = passes_of_step(run) };
    trek_status status = trek_graph_train(run->graph, true);
    if (status == TREK_OK && !run->resumed)
        status = trek_graph_start(run->graph, e->metrics.epoch);
    show_epoch(run, e->metrics.epoch);
    run->resumed = false;
    *end = RUN_EPOCH_ENDED;
    if (status == TREK_OK)
        status = after_step(run, e, end);
    while (status == TREK_OK && *end == RUN_EPOCH_ENDED) {
        trek_run_limit_pass(run);
        trek_batch *batch = trek_graph_next(run->graph);
        if (!batch)
            break;
        status = train_batch(run, batch, ++part->passes % part->every == 0);
        if (status == TREK_OK && part->passes % part->every == 0)
            status = after_step(run, e, end);
    }
    if (status == TREK_OK)
        status = trek_error_status();
    if (status == TREK_OK && part->passes % part->every != 0) /* the epoch's last step has fewer passes */
        status = step(run);
    count(run, &e->metrics);
    e->metrics.complete = *end == RUN_EPOCH_ENDED;
    memset(&run->before, 0, sizeof run->before);
    return status;
}

/* *again: a process has died with its part of the evaluation. */
static trek_status evaluate_all(trek_run *run, run_epoch *e, bool *again)
{
    if (trek_graph_ranks(run->graph))
        trek_survivors_divide(trek_graph_ranks(run->graph));
    trek_status status = trek_graph_start(run->graph, 0);
    *again = false;
    run->graph->graph_loader->most_batches = 0;
    for (trek_batch *batch; status == TREK_OK && (batch = trek_graph_next(run->graph));)
        status = trek_graph_train_batch(run->graph, batch) ? TREK_OK : trek_error_status();
    if (status == TREK_OK)
        status = trek_error_status();
    status = agree(run, status);
    return status == TREK_OK ? trek_run_measure_evaluation(run, e, again) : status;
}

static trek_status evaluate(trek_run *run, run_epoch *e, bool last)
{
    const trek_run_opts *o = &run->opts;
    int64_t from = trek_now_ns();
    if (!run->evaluation || !trek_run_is_due_evaluation(run, &e->metrics, last))
        return TREK_OK;
    trek_status status = feed(run, run->evaluation, o->evaluate ? o->evaluate : o->train_step,
                              o->evaluate ? "trainer_run: .evaluate" : "trainer_run: .train_step (in evaluation)");
    if (status == TREK_OK)
        status = trek_graph_train(run->graph, false);
    for (bool again = true; status == TREK_OK && again;)
        status = evaluate_all(run, e, &again);
    e->evaluated = true;
    if (status == TREK_OK)
        status = feed(run, run->train, o->train_step, "trainer_run: .train_step");
    if (status == TREK_OK)
        status = trek_graph_train(run->graph, true);
    e->metrics.evaluation_s = (double)(trek_now_ns() - from) * 1e-9;
    return status;
}

static const char *best_metric(const trek_run_opts *o)
{
    return o->best_metric ? o->best_metric : o->evaluation ? "evaluation_loss" : "loss";
}

/* Returns whether this epoch has a metric of that name. *scalar NULL: it is a number that every epoch has. */
static bool has_metric(const trek_epoch_metrics *m, const char *name, const trek_epoch_scalar **scalar)
{
    *scalar = NULL;
    for (int k = 0; k < m->n_scalars; k++)
        if (strcmp(m->scalars[k].name, name) == 0)
            *scalar = &m->scalars[k];
    return *scalar || strcmp(name, "loss") == 0 || strcmp(name, "evaluation_loss") == 0;
}

static trek_status fail_no_metric(const char *name, const run_epoch *e)
{
    const trek_epoch_metrics *m = &e->metrics;
    trek_text names = { 0 };
    trek_text_add(&names, e->evaluated ? "loss, evaluation_loss" : "loss");
    for (int k = 0; k < m->n_scalars; k++)
        if (!m->scalars[k].values || trek_tensor_numel(m->scalars[k].values) == 1)
            trek_text_format(&names, ", %s", m->scalars[k].name);
    trek_fail(TREK_ERR_ARGUMENT, "trainer_run: .best_metric: \"%s\" was not measured in epoch %lld, which had %s", name,
              (long long)m->epoch, names.data ? names.data : "others");
    trek_text_clear(&names);
    return trek_error_status();
}

/* Checks, after the first epoch that could have it, whether .best_metric names a metric that is one number. */
static trek_status check_metric(trek_run *run, const run_epoch *e)
{
    const char *name = best_metric(&run->opts);
    const trek_epoch_scalar *scalar;
    bool of_evaluation = strncmp(name, "evaluation", strlen("evaluation")) == 0;
    if (run->rated || (of_evaluation && run->evaluation && !e->evaluated))
        return TREK_OK;
    run->rated = true;
    if (!has_metric(&e->metrics, name, &scalar))
        return fail_no_metric(name, e);
    if (scalar && scalar->values && trek_tensor_numel(scalar->values) != 1)
        return trek_fail(TREK_ERR_ARGUMENT, "trainer_run: .best_metric: \"%s\" is not a single number", name);
    return TREK_OK;
}

/* Determines by that metric whether the epoch is the best so far. */
static void rate(trek_run *run, trek_epoch_metrics *m)
{
    const trek_run_opts *o = &run->opts;
    double value = trek_metrics_get(m, best_metric(o));
    if (isnan(value))
        return; /* not measured in this epoch */
    double gain = o->best_is_largest ? value - run->best : run->best - value;
    m->best = isnan(run->best) || gain > o->min_delta;
    run->best = m->best ? value : run->best;
    run->since_best = m->best ? 0 : run->since_best + 1;
    run->best_epoch = m->best ? m->epoch : run->best_epoch;
}

/* Logs, in one process, that the run ends with epochs or steps left, and which was the best. */
static void tell_early(const trek_run *run, const trek_epoch_metrics *m)
{
    char number[40], epoch[40] = "one before this run began";
    if (trek_graph_job(run->graph)->process != 0)
        return;
    if (run->best_epoch >= 0)
        snprintf(epoch, sizeof epoch, "%lld", (long long)run->best_epoch);
    trek_log_message(TREK_LOG_LEVEL_WARNING, "trainer_run: stopped early after epoch %lld (.patience %lld): best epoch %s, %s %s",
                     (long long)m->epoch, (long long)run->opts.patience, epoch, best_metric(&run->opts),
                     trek_text_number(run->best, number));
}

static trek_status before_epoch(trek_run *run, int64_t epoch)
{
    const trek_run_opts *o = &run->opts;
    trek_status status = o->on_epoch ? o->on_epoch(run->graph, epoch, o->arg) : TREK_OK;
    status = status == TREK_OK ? trek_error_status() : trek_fail_after(status, "trainer_run: .on_epoch: it failed");
    return agree(run, status);
}

/* Returns whether no epoch or step is left behind these metrics. */
static bool is_last(const trek_run *run, const trek_epoch_metrics *m)
{
    return trek_run_is_over(run) || (m->complete && run->opts.epochs > 0 && m->epoch + 1 >= run->opts.epochs);
}

/* Evaluates, saves and reports an epoch, or a part of it. */
static trek_status report(trek_run *run, run_epoch *e, bool *last)
{
    const trek_run_opts *o = &run->opts;
    trek_status status = trek_run_measure_training(run, e);
    *last = is_last(run, &e->metrics);
    if (status == TREK_OK)
        status = evaluate(run, e, *last);
    if (status != TREK_OK)
        return status;
    status = check_metric(run, e);
    if (status != TREK_OK)
        return agree(run, status);
    rate(run, &e->metrics);
    if (!*last && o->patience > 0 && run->since_best >= o->patience) {
        tell_early(run, &e->metrics);
        *last = true;
    }
    status = trek_run_save(run, &e->metrics, trek_run_is_due_checkpoint(run, &e->metrics, *last));
    const trek_graph_watch *watch = trek_graph_watched();
    if (watch && status == TREK_OK)
        watch->epoch(run->graph, &e->metrics);
    if (status == TREK_OK && o->on_metrics)
        status = o->on_metrics(&e->metrics, o->arg);
    if (status != TREK_OK)
        trek_fail_after(status, "trainer_run: .on_metrics: it failed");
    else
        status = trek_error_status();
    run->pending = status == TREK_OK ? e : NULL;
    status = agree(run, status);
    run->pending = status == TREK_OK ? NULL : run->pending;
    return status;
}

/* Publishes metrics on which all have agreed. From here on the others could continue. */
static trek_status publish(trek_run *run, run_epoch *e)
{
    int64_t epoch = e->metrics.epoch + e->metrics.complete, batch = 0;
    if (!e->metrics.complete)
        trek_loader_position(run->train, NULL, &batch);
    trek_status status = trek_run_publish(run, e);
    run->parts++;
    run->looked = trek_graph_steps(run->graph);
    return status == TREK_OK ? trek_run_elastic_keep(run, epoch, batch) : status;
}

/* Trains an epoch, or a part of it: *complete says which. *last: the run ends with it. */
static trek_status run_part_of_epoch(trek_run *run, int64_t epoch, bool *complete, bool *last)
{
    run_end end = RUN_EPOCH_ENDED;
    run_epoch *e = trek_run_epoch_new(epoch);
    trek_status status = e ? train(run, e, &end) : trek_error_status();
    *complete = end == RUN_EPOCH_ENDED;
    if (status == TREK_OK && end == RUN_STOPPED) {
        *last = true;
        trek_run_epoch_free(e);
        return TREK_OK;
    }
    if (status == TREK_OK)
        status = report(run, e, last);
    if (status == TREK_OK)
        return publish(run, e);
    if (e != run->pending)
        trek_run_epoch_free(e);
    return status;
}

/* Returns, before an epoch, whether none is left. */
static bool is_over(const trek_run *run)
{
    return (run->opts.epochs > 0 && run->first_epoch >= run->opts.epochs) || trek_run_is_over(run) ||
        (run->opts.patience > 0 && run->since_best >= run->opts.patience);
}

/* Trains an epoch; *last: the run ends in it. */
static trek_status run_epoch_number(trek_run *run, int64_t epoch, bool *last)
{
    bool complete = false;
    trek_status status = before_epoch(run, epoch);
    while (status == TREK_OK && !complete && !*last) {
        status = run_part_of_epoch(run, epoch, &complete, last);
        run->resumed = !complete; /* the next part goes on in it */
    }
    return status;
}

static trek_status run_epochs(trek_run *run)
{
    trek_status status = TREK_OK;
    bool last = is_over(run);
    const trek_graph_watch *watch = trek_graph_watched();
    if (watch)
        watch->began(run->graph, run->opts.epochs);
    for (int64_t epoch = run->first_epoch; status == TREK_OK && !last; epoch++) {
        status = trek_run_elastic_admit(run, epoch, clean_up, build);
        if (status == TREK_OK)
            status = run_epoch_number(run, epoch, &last);
        if (status != TREK_OK && trek_run_elastic_go_on(run, &status, clean_up, build)) {
            epoch = run->first_epoch - 1;
            last = is_over(run);
        }
    }
    return status;
}

/* Waits until everything is written after training has ended. The process that should write may be the one that dies. */
static trek_status end_saving(trek_run *run)
{
    trek_status status = agree(run, trek_run_save_end(run, TREK_OK));
    while (status != TREK_OK && trek_run_elastic_go_on(run, &status, clean_up, build)) {
        status = is_over(run) ? trek_run_save(run, &(trek_epoch_metrics){ .epoch = run->first_epoch - 1 }, true)
            : run_epochs(run);
        if (status == TREK_OK)
            status = agree(run, trek_run_save_end(run, TREK_OK));
    }
    return status;
}

trek_status trek_run_train(trek_run *run)
{
    trek_status status = prepare(run);
    if (status != TREK_OK)
        trek_run_elastic_go_on(run, &status, clean_up, build);
    if (status == TREK_OK)
        status = run_epochs(run);
    if (status == TREK_OK)
        status = end_saving(run);
    if (status == TREK_OK)
        run->final = trek_state_of(trek_graph_module(run->graph));
    trek_status kept;
    char message[TREK_ERROR_SIZE];
    trek_run_leave(run);
    trek_error_take(&kept, message); /* the rest must be done in any case */
    trek_run_save_end(run, kept);
    clean_up(run);
    trek_run_elastic_end(run, status == TREK_OK && kept == TREK_OK);
    trek_run_epoch_free(run->pending);
    run->pending = NULL;
    trek_error_clear();
    if (status != TREK_OK || kept != TREK_OK)
        trek_fail(kept != TREK_OK ? kept : status, "%s", kept != TREK_OK ? message : trek_status_description(status));
    return trek_error_status();
}
