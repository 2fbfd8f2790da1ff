/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a run: what is missing or contradicts itself is found before anything starts. */
#include <math.h>
#include <string.h>

#include "distributed/outer/outer.h"
#include "data/stream.h"
#include "distributed/run/run_internal.h"
#include "distributed/control/call.h"
#include "distributed/team/team.h"
#include "distributed/trainer_internal.h"
#include "tensor/backend.h"
#include "tensor/byte_hash.h"
#include "tensor/memory_internal.h"
#include "data/dataset_class.h"

#define FAIL(...) return trek_fail(TREK_ERR_ARGUMENT, "trainer_run: " __VA_ARGS__)

static trek_status check_required(const trek_run_opts *o, const trek_module *module)
{
    const char *missing = !o->build_model && !module ? "build_model" : !o->train_step ? "train_step" : !o->dataset ? "dataset"
        : !o->optimizer.klass ? "optimizer" : NULL;
    if (missing)
        FAIL(".%s: missing; it must be given", missing);
    if (o->batch_size < 1)
        FAIL(".batch_size: %lld; must be at least 1", (long long)o->batch_size);
    if (o->epochs < 0 || o->max_steps < 0 || (o->epochs == 0 && o->max_steps == 0))
        FAIL(".epochs: %lld, .max_steps: %lld; one of them must be at least 1, and none negative", (long long)o->epochs,
             (long long)o->max_steps);
    return TREK_OK;
}

static trek_status check_field(const trek_run_opts *o, trek_dataset *dataset)
{
    bool windows = o->policy != TREK_POLICY_SYNC || o->transport == TREK_TRANSPORT_HOST;
    if (trek_dataset_is_stream(dataset) && windows)
        return trek_fail(
            TREK_ERR_UNSUPPORTED,
            "trainer_run: .dataset or .evaluation: dataset %s is a stream, of which ranks cannot read batches of their "
            "own; only TREK_POLICY_SYNC with TREK_TRANSPORT_DEVICE can train it",
            dataset->klass->name);
    return o->input && trek_dataset_field(dataset, o->input) < 0 ? trek_error_status() : TREK_OK;
}

static trek_status check_trainer(const trek_run_opts *o)
{
    const trek_trainer_opts *t = &o->trainer;
    if (t->build_replica || t->arg || t->optimizer.klass || t->schedule.kind != TREK_SCHEDULE_KIND_NONE)
        FAIL(".trainer: .build_replica, .arg, .optimizer or .schedule is set; these are options of the run itself");
    if (t->ranks < 0 || t->ranks > TREK_MAX_RANKS || (t->ranks == 0 && t->devices))
        FAIL(".trainer.ranks: %d%s; must be 0 to 1024, and at least 1 with .devices", t->ranks,
             t->devices ? ", with a list for each rank" : "");
    if (o->policy < TREK_POLICY_SYNC || o->policy > TREK_POLICY_ASYNC)
        FAIL(".policy: %d; must be a value of trek_policy", (int)o->policy);
    if (t->grain != 0 && (o->policy != TREK_POLICY_SYNC || o->transport != TREK_TRANSPORT_DEVICE))
        FAIL(".trainer.grain: set without TREK_POLICY_SYNC and TREK_TRANSPORT_DEVICE, in which ranks make each step together");
    if (t->min_processes != 0)
        FAIL(".trainer.min_processes: %d; must be 0, since a run has .min_processes of its own", t->min_processes);
    if (o->policy == TREK_POLICY_SYNC && t->max_anchor > 0)
        FAIL(".trainer.max_anchor: set together with TREK_POLICY_SYNC; only the other policies have windows");
    if (o->policy != TREK_POLICY_SYNC && t->max_anchor == TREK_OFF)
        FAIL(".trainer.max_anchor: TREK_OFF, but TREK_POLICY_%s needs windows",
             o->policy == TREK_POLICY_ASYNC ? "ASYNC" : "CADENCE");
    return trek_trainer_check(t);
}

static trek_status check_transport(const trek_run_opts *o)
{
    if (o->transport != TREK_TRANSPORT_DEVICE && o->transport != TREK_TRANSPORT_HOST)
        FAIL(".transport: %d; must be a value of trek_transport", (int)o->transport);
    if (o->transport == TREK_TRANSPORT_DEVICE && o->policy == TREK_POLICY_ASYNC)
        FAIL(".policy: TREK_POLICY_ASYNC, which needs .transport = TREK_TRANSPORT_HOST, since ranks wait for each other in "
             "collectives of their devices");
    if (o->transport == TREK_TRANSPORT_DEVICE && o->max_lead != 0)
        FAIL(".max_lead: set without TREK_TRANSPORT_HOST, which it needs");
    if (o->site != TREK_SITE_RANK && o->site != TREK_SITE_PROCESS)
        FAIL(".site: %d; must be a value of trek_site", (int)o->site);
    if (o->transport == TREK_TRANSPORT_DEVICE && o->site != TREK_SITE_RANK)
        FAIL(".site: TREK_SITE_PROCESS without TREK_TRANSPORT_HOST, which it needs");
    if (o->transport == TREK_TRANSPORT_DEVICE && o->outer)
        FAIL(".outer: set without TREK_TRANSPORT_HOST, which it needs");
    if (o->max_lead < 0 && o->max_lead != TREK_OFF)
        FAIL(".max_lead: %lld; must be TREK_OFF, 0 or more", (long long)o->max_lead);
    if (o->transport == TREK_TRANSPORT_HOST && o->policy == TREK_POLICY_SYNC && o->site == TREK_SITE_RANK &&
        o->trainer.shares)
        FAIL(".trainer.shares: set, but with TREK_POLICY_SYNC and TREK_TRANSPORT_HOST each rank gets one batch at a time");
    if (o->transport == TREK_TRANSPORT_HOST && o->trainer.accumulate > 1)
        FAIL(".trainer.accumulate: set together with TREK_TRANSPORT_HOST, which averages parameters, not gradients");
    trek_outer_rule rule;
    return o->outer ? trek_outer_check(o->outer, "trainer_run: .outer", &rule) : TREK_OK;
}

static trek_status check_evaluation(const trek_run_opts *o)
{
    if (!o->evaluation && (o->evaluate || o->evaluation_batch || o->evaluate_every))
        FAIL(".evaluate, .evaluation_batch or .evaluate_every: set without .evaluation, which it needs");
    if (o->evaluation_batch < 0 || o->evaluate_every < 0 || o->evaluate_every_steps < 0)
        FAIL(".evaluation_batch, .evaluate_every or .evaluate_every_steps: negative; must be 0 or more");
    return o->evaluation ? check_field(o, o->evaluation) : TREK_OK;
}

/* The number of processes is known when they have joined. */
static trek_status check_elastic(const trek_run_opts *o)
{
    if (o->min_processes < 0 || o->min_processes > TREK_MAX_RANKS)
        FAIL(".min_processes: %d; must be 0 to %d", o->min_processes, TREK_MAX_RANKS);
    return TREK_OK;
}

static trek_status check_keeping(const trek_run_opts *o)
{
    if (o->patience < 0 || !(o->min_delta >= 0) || isinf(o->min_delta))
        FAIL(".patience or .min_delta: negative or not finite; must be 0 or more");
    bool saves = o->checkpoint_every || o->checkpoint_every_steps || o->keep_last || o->keep_best || o->on_checkpoint;
    if (!o->checkpoint_folder && saves)
        FAIL(".checkpoint_every, .checkpoint_every_steps, .keep_last, .keep_best or .on_checkpoint: set without "
             ".checkpoint_folder, which it needs");
    if (o->checkpoint_every < 0 || o->checkpoint_every_steps < 0 || (o->keep_last < 0 && o->keep_last != TREK_OFF))
        FAIL(".checkpoint_every, .checkpoint_every_steps or .keep_last: negative; must be 0 or more (.keep_last also TREK_OFF)");
    return TREK_OK;
}

trek_status trek_run_check(const trek_run_opts *o, const trek_module *module)
{
    if (!o)
        return trek_fail_missing("trainer_run", "options");
    if (trek_error_status() != TREK_OK) /* a dataset or an optimizer that could not be made */
        return trek_error_status();
    trek_status status = check_required(o, module);
    if (status == TREK_OK)
        status = check_field(o, o->dataset);
    if (status == TREK_OK && !(o->lr_scale >= 0 && !isinf(o->lr_scale)))
        FAIL(".lr_scale: %g; must be finite and not negative", o->lr_scale);
    if (status == TREK_OK)
        status = check_trainer(o);
    if (status == TREK_OK)
        status = check_transport(o);
    if (status == TREK_OK)
        status = check_elastic(o);
    if (status == TREK_OK)
        status = check_evaluation(o);
    return status == TREK_OK ? check_keeping(o) : status;
}

/* --- copies -------------------------------------------------------------------------------- */

/* Returns NULL if `from` is NULL, and NULL with an error if there is no memory. */
static const void *copy_of(const void *from, size_t bytes)
{
    void *to = from ? trek_calloc(1, bytes) : NULL;
    return to ? memcpy(to, from, bytes) : NULL;
}

trek_status trek_run_opts_copy(trek_run_opts *to, const trek_run_opts *from)
{
    const char **texts[] = { &to->input, &to->best_metric, &to->checkpoint_folder, &to->resume_from };
    *to = *from;
    to->dataset = trek_dataset_retain(from->dataset);
    to->evaluation = trek_dataset_retain(from->evaluation);
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        *texts[k] = copy_of(*texts[k], *texts[k] ? strlen(*texts[k]) + 1 : 0);
    to->outer = copy_of(from->outer, sizeof *from->outer);
    trek_trainer_opts *t = &to->trainer;
    t->digests = copy_of(t->digests, t->digests ? strlen(t->digests) + 1 : 0);
    t->devices = copy_of(t->devices, (size_t)t->ranks * sizeof *t->devices);
    t->shares = copy_of(t->shares, (size_t)t->n_shares * sizeof *t->shares);
    t->memory_budget = copy_of(t->memory_budget, (size_t)t->n_memory_budget * sizeof *t->memory_budget);
    return trek_error_status();
}

void trek_run_opts_clear(trek_run_opts *o)
{
    trek_dataset_free(&o->dataset);
    trek_dataset_free(&o->evaluation);
    trek_free((void *)o->input);
    trek_free((void *)o->best_metric);
    trek_free((void *)o->checkpoint_folder);
    trek_free((void *)o->resume_from);
    trek_free((void *)o->outer);
    trek_free((void *)o->trainer.digests);
    trek_free((void *)o->trainer.devices);
    trek_free((void *)o->trainer.shares);
    trek_free((void *)o->trainer.memory_budget);
    *o = (trek_run_opts){ 0 };
}

/* --- what must be equal in all processes ----------------------------------------------------------------------- */

static void line(trek_text *text, const char *name, double value)
{
    char number[40];
    trek_text_format(text, "%s\t%s\n", name, trek_text_number(value, number));
}

trek_text trek_run_describe(const trek_run *run)
{
    const trek_run_opts *o = &run->opts;
    trek_text text = { 0 };
    line(&text, ".policy", o->policy);
    line(&text, ".transport", o->transport);
    line(&text, ".site", o->site);
    line(&text, ".max_lead", (double)o->max_lead);
    line(&text, ".outer", o->outer != NULL);
    line(&text, ".outer.lr", o->outer ? o->outer->lr : 0);
    line(&text, ".outer.momentum", o->outer ? o->outer->momentum : 0);
    line(&text, ".outer.nesterov", o->outer ? o->outer->nesterov : 0);
    line(&text, ".outer.bits", o->outer ? o->outer->bits : 0);
    line(&text, ".outer.fragments", o->outer ? o->outer->fragments : 0);
    line(&text, ".epochs", (double)o->epochs);
    line(&text, ".max_steps", (double)o->max_steps);
    line(&text, ".lr_scale", o->lr_scale);
    line(&text, "the evaluation's samples", o->evaluation ? (double)trek_dataset_length(o->evaluation) : -1);
    line(&text, ".evaluation_batch", (double)o->evaluation_batch);
    line(&text, ".evaluate_every", (double)o->evaluate_every);
    line(&text, ".evaluate_every_steps", (double)o->evaluate_every_steps);
    line(&text, ".patience", (double)o->patience);
    line(&text, ".min_delta", o->min_delta);
    line(&text, ".best_is_largest", o->best_is_largest);
    trek_text_format(&text, ".best_metric\t%s\n", o->best_metric ? o->best_metric : "");
    line(&text, ".checkpoint_folder", o->checkpoint_folder != NULL);
    line(&text, ".checkpoint_every", (double)o->checkpoint_every);
    line(&text, ".checkpoint_every_steps", (double)o->checkpoint_every_steps);
    line(&text, ".keep_best", o->keep_best);
    line(&text, ".resume_from", o->resume_from != NULL);
    line(&text, ".min_processes", o->min_processes);
    return text;
}

bool trek_run_outlives_in_steps(const trek_run *run)
{
    const trek_trainer_opts *t = &run->opts.trainer;
    bool fixed = t->shares || t->plan || t->speed_hint.ratio != 0; /* for a number of ranks */
    return run->opts.min_processes > 0 && t->grain != 0 && !fixed && !trek_dataset_is_stream(run->opts.dataset);
}

uint64_t trek_run_program(const trek_run *run)
{
    const trek_run_opts *o = &run->opts;
    trek_text text = trek_run_describe(run);
    line(&text, "the samples", (double)trek_dataset_length(o->dataset));
    line(&text, ".batch_size", (double)o->batch_size);
    trek_text_format(&text, ".seed\t%llu\n", (unsigned long long)o->seed);
    line(&text, ".shuffle", o->shuffle);
    line(&text, ".drop_last", o->drop_last);
    line(&text, "outlives deaths within a step", trek_run_outlives_in_steps(run));
    if (trek_run_outlives_in_steps(run)) /* with the same bits */
        line(&text, "instruction set", trek_cpu_backend()->isa);
    char *graph = trek_team_describe_graph(run->graph);
    trek_text_format(&text, "%s", graph ? graph : "");
    uint64_t hash = graph && !text.failed ? trek_hash_bytes(TREK_HASH_BEGIN, text.data, text.length) : 0;
    trek_free(graph);
    trek_text_clear(&text);
    return hash;
}
