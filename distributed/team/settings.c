/* SPDX-License-Identifier: Apache-2.0 */
/* One walk over everything that must be equal makes both the digest and the text, so that nothing is compared that
 * cannot be named. */
#include "distributed/team/settings.h"

#include <stdio.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "data/loader_internal.h"
#include "distributed/balance/plan.h"
#include "distributed/trainer.h"
#include "graph/graph_loader_internal.h"
#include "optim/optimizer_move.h"
#include "tensor/print.h"
#include "tensor/random_internal.h"

/* The destination of a walk: a digest, or lines of text. */
typedef struct walk {
    trek_text *text;         /* NULL: only the digest */
    uint64_t digest;
    int group;
} walk;

static void add_line(walk *w, const char *name, const char *value) { trek_text_format(w->text, "%s\t%s\n", name, value); }

static void number(walk *w, const char *name, double value)
{
    char text[40];
    w->digest = trek_mix_double(w->digest, value);
    if (w->text)
        add_line(w, name, trek_text_number(value, text));
}

static void count(walk *w, const char *name, uint64_t value)
{
    w->digest = trek_mix(w->digest, value);
    if (w->text)
        trek_text_format(w->text, "%s\t%llu\n", name, (unsigned long long)value);
}

static void word(walk *w, const char *name, int value, const char *text)
{
    w->digest = trek_mix(w->digest, (uint64_t)value);
    if (w->text)
        add_line(w, name, text);
}

/* --- the optimizer ------------------------------------------------------------------------------------------------- */

static void group_option(const char *name, double value, void *arg)
{
    walk *w = arg;
    char text[80];
    if (w->text)
        snprintf(text, sizeof text, w->group ? "%s of the optimizer's group %d" : "%s of the optimizer", name, w->group);
    number(w, w->text ? text : name, value);
}

static void group_members(walk *w, const trek_arena *arena)
{
    for (int k = 0; k < arena->n_segments; k++) {
        w->digest = trek_mix(w->digest, (uint64_t)arena->segments[k].group);
        if (w->text)
            trek_text_format(w->text, "the optimizer's group of \"%s\"\t%d\n", arena->segments[k].name, arena->segments[k].group);
    }
}

static void optimizer(walk *w, const trek_optimizer *o)
{
    const char *name = o ? o->groups[0].spec.klass->name : "none";
    for (const char *c = name; *c; c++)
        w->digest = trek_mix(w->digest, (uint64_t)*c);
    if (w->text)
        add_line(w, "the optimizer", name);
    if (!o)
        return;
    count(w, "the number of the optimizer's groups", (uint64_t)o->n_groups);
    for (w->group = 0; w->group < o->n_groups; w->group++)
        trek_optimizer_group_options(&o->groups[w->group], group_option, w);
    if (o->n_groups > 1)
        group_members(w, o->arena);
}

/* --- what the graph is told ---------------------------------------------------------------------------------------- */

static const char *const schedules[] = { "none", "constant", "step", "multistep", "cosine", "exponential", "onecycle", "cyclic",
                                         "polynomial", "inverse_sqrt", "linear", "cosine_restarts", "wsd", "lambda", "sequential",
                                         "chained" };

static void schedule_part(walk *w, const trek_schedule_part *s, const char *name)
{
    word(w, name, (int)s->kind, (size_t)s->kind < sizeof schedules / sizeof *schedules ? schedules[s->kind] : "?");
    if (s->kind == TREK_SCHEDULE_KIND_NONE)
        return;
    number(w, "the schedule's lr", s->lr);
    number(w, "the schedule's scale", s->scale);
    count(w, "the schedule's mode", (uint64_t)s->mode);
    count(w, "the schedule's warm-up", (uint64_t)s->warmup);
    count(w, "the schedule's first step", (uint64_t)s->begin);
    for (int k = 0; k < 2; k++)
        count(w, k ? "the schedule's second length" : "the schedule's length", (uint64_t)s->steps[k]);
    static const char *const names[] = { "the schedule's factor", "the schedule's second number", "the schedule's third number" };
    for (int k = 0; k < 3; k++)
        number(w, names[k], s->numbers[k]);
}

static void schedule(walk *w, const trek_schedule *s)
{
    trek_schedule_part whole = { .kind = s->kind, .mode = s->mode, .warmup = s->warmup, .lr = s->lr, .scale = s->scale };
    memcpy(whole.steps, s->steps, sizeof whole.steps);
    memcpy(whole.numbers, s->numbers, sizeof whole.numbers);
    schedule_part(w, &whole, "the schedule");
    count(w, "the number of the schedule's milestones", (uint64_t)s->n_milestones);
    for (int k = 0; k < s->n_milestones; k++)
        count(w, "a milestone of the schedule", (uint64_t)s->milestones[k]);
    count(w, "the number of the schedule's parts", (uint64_t)s->n_parts);
    for (int k = 0; k < s->n_parts; k++)
        schedule_part(w, &s->parts[k], "a part of the schedule");
}

static void precision(walk *w, const trek_graph *graph)
{
    static const char *const precisions[] = { "highest", "high", "medium" };
    const trek_grad_scaler *scaler = graph->scaler;
    word(w, "autocast", (int)graph->autocast, trek_dtype_name(graph->autocast));
    word(w, "the precision of products of f32", (int)trek_matmul_precision_get(), precisions[trek_matmul_precision_get()]);
    word(w, "8-bit products", graph->fp8, graph->fp8 ? "on" : "off");
    count(w, "the margin of 8-bit products", (uint64_t)(graph->fp8_opts.margin + 64));
    word(w, "loss scaling", scaler != NULL, scaler ? "on" : "off");
    if (!scaler)
        return;
    number(w, "the loss scaler's growth_factor", scaler->values.growth_factor);
    number(w, "the loss scaler's backoff_factor", scaler->values.backoff_factor);
    count(w, "the loss scaler's growth_interval", (uint64_t)scaler->values.growth_interval);
}

static double limit(double value) { return value > 0 ? value : 0; }

static void settings(walk *w, const trek_team *team)
{
    const trek_graph *graph = team->graph;
    optimizer(w, team->replicas[0].optimizer);
    schedule(w, &graph->settings.schedule);
    number(w, "max_grad_norm", limit(graph->settings.max_norm));
    number(w, "max_grad_value", limit(graph->settings.max_value));
    count(w, "accumulate", graph->accumulation.passes > 1 ? (uint64_t)graph->accumulation.passes : 1);
    precision(w, graph);
    for (int k = 0; k < graph->layout.n_inputs && graph->settings.replicated; k++)
        word(w, graph->layout.inputs[k].name, trek_graph_input_is_whole(graph, k),
             trek_graph_input_is_whole(graph, k) ? "replicated" : "split");
    count(w, "the seed", trek_rng_seed());
}

uint64_t trek_settings_digest(const trek_team *team)
{
    walk w = { .digest = 1 };
    settings(&w, team);
    return w.digest;
}

void trek_settings_describe(const trek_team *team, trek_text *text) { settings(&(walk){ .text = text }, team); }

/* --- at setup -------------------------------------------------------------------------------------------------------- */

static void setup_options(walk *w, const trek_trainer_opts *o)
{
    count(w, ".bucket_bytes", (uint64_t)o->bucket_bytes);
    word(w, ".reduce_dtype", (int)o->reduce_dtype, trek_dtype_name(o->reduce_dtype));
    number(w, ".overlap", o->overlap);
    number(w, ".balance", o->balance);
    count(w, ".grain", (uint64_t)o->grain);
    number(w, ".digests", o->digests != NULL);
    number(w, ".audit", o->audit);
    number(w, ".audit_removes", o->audit_removes);
    number(w, ".min_processes", o->min_processes);
    number(w, ".min_share", o->min_share);
    number(w, ".allow_idle", o->allow_idle);
    count(w, ".n_shares", (uint64_t)o->n_shares);
    for (int r = 0; r < o->n_shares; r++)
        trek_text_format(w->text, ".shares[%d]\t%.17g\n", r, o->shares[r]);
    number(w, ".speed_hint.ratio", o->speed_hint.ratio);
    number(w, ".speed_hint.slow_rank", o->speed_hint.slow_rank);
    number(w, ".max_anchor", (double)o->max_anchor);
    number(w, ".anchor", (double)o->anchor);
    number(w, ".overhead_target", o->overhead_target);
    number(w, ".max_batch_diff", (double)o->max_batch_diff);
    number(w, ".global_batch", (double)o->global_batch);
    word(w, ".shard", o->shard, o->shard == TREK_SHARD_PARAMETERS ? "parameters, gradients and the state"
                                   : o->shard == TREK_SHARD_GRADIENTS ? "gradients and the state"
                                   : o->shard == TREK_SHARD_STATE ? "the state" : "nothing");
    word(w, ".average", o->average, o->average == TREK_AVERAGE_PARAMETERS ? "parameters" : "gradients");
    number(w, ".divergence_threshold", o->divergence_threshold);
    word(w, ".plan", o->plan != NULL, o->plan ? "given" : "not given");
}

static void plan_decisions(const trek_plan *plan, trek_text *text)
{
    char *lines = plan ? trek_plan_text(plan) : NULL, *rest = lines;
    for (int64_t k = 0; rest && *rest; k++) {
        size_t length = strcspn(rest, "\n");
        trek_text_format(text, "line %lld of .plan\t%.*s\n", (long long)k, (int)length, rest);
        rest += length + (rest[length] == '\n');
    }
    text->failed |= plan && !lines;
    trek_string_free(&lines);
}

void trek_settings_describe_program(const trek_team *team, const trek_trainer_opts *opts, trek_text *text)
{
    const trek_graph *graph = team->graph;
    walk w = { .text = text };
    settings(&w, team);
    setup_options(&w, opts);
    plan_decisions(opts->plan, text);
    for (int k = 0; k < team->replicas[0].model->n_params; k++)
        trek_text_format(text, "parameter \"%s\"\t%s\n", team->replicas[0].model->param_names[k],
                         team->replicas[0].model->params[k]->requires_grad ? "trained" : "frozen");
    bool loads = graph->graph_loader && graph->graph_loader->loader;
    word(&w, "trek_graph_set_loader", loads, loads ? "called" : "not called");
    if (loads)
        trek_loader_describe(graph->graph_loader->loader, text);
}

void trek_settings_describe_setup(const trek_team *team, const trek_trainer_opts *opts, trek_text *text)
{
    trek_settings_describe_program(team, opts, text);
    count(&(walk){ .text = text }, "the number of steps done (trek_graph_steps)", (uint64_t)team->graph->settings.steps);
}
