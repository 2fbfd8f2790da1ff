/* SPDX-License-Identifier: Apache-2.0 */
/* What an elastic run keeps after each step (elastic.c): buffers, what its ranks have observed, and numbers; with averaged
 * parameters the whole state, in a file in memory. */
#include <unistd.h>

#include "data/loader_position.h"
#include "distributed/checkpoint_internal.h"
#include "distributed/job/job_file.h"
#include "distributed/run/elastic_internal.h"
#include "distributed/team/replica.h"
#include "graph/observe_internal.h"
#include "nn/safetensors.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* --- what ranks have observed, and buffers --- */

static void free_scalar(run_kept_scalar *s)
{
    trek_free(s->name);
    trek_tensor_release(s->on_device);
    trek_metric_mark_clear(&s->metric);
}

void trek_run_elastic_drop(run_elastic *e)
{
    for (int k = 0; k < e->n_buffers; k++)
        trek_tensor_release(e->buffers[k]);
    for (int r = 0; r < e->n_ranks; r++) {
        for (int k = 0; k < e->ranks[r].n; k++)
            free_scalar(&e->ranks[r].scalars[k]);
        trek_free(e->ranks[r].scalars);
    }
    trek_free(e->buffers);
    trek_free(e->ranks);
    e->buffers = NULL;
    e->ranks = NULL;
    e->n_buffers = e->n_ranks = 0;
}

static trek_status make_room(run_elastic *e, const trek_step *s)
{
    const trek_team *team = trek_step_team(s);
    const trek_replica *model = team->replicas[0].model;
    e->ranks = trek_calloc((size_t)team->local_ranks, sizeof *e->ranks);
    e->n_ranks = e->ranks ? team->local_ranks : 0;
    e->buffers = trek_calloc((size_t)model->n_buffers + 1, sizeof *e->buffers);
    if (!e->ranks || !e->buffers)
        return TREK_ERR_MEMORY;
    for (; e->n_buffers < model->n_buffers; e->n_buffers++)
        if (!(e->buffers[e->n_buffers] = trek_tensor_clone(model->buffers[e->n_buffers]->data)))
            return trek_error_status();
    return TREK_OK;
}

static trek_status keep_buffers(run_elastic *e, const trek_step *s)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < e->n_buffers && status == TREK_OK; k++)
        status = trek_tensor_copy_from(e->buffers[k], trek_step_team(s)->replicas[0].model->buffers[k]->data);
    return status;
}

/* Keeps scalars. Those of a graph have a fixed order, and none is removed. */
static trek_status keep_scalars(run_kept_rank *kept, const trek_graph *graph)
{
    trek_status status = trek_array_grow(&kept->scalars, &kept->capacity, graph->n_observations, sizeof *kept->scalars);
    for (int k = 0; k < graph->n_observations && status == TREK_OK; k++) {
        const trek_observation *o = &graph->observations[k];
        run_kept_scalar *to = &kept->scalars[k];
        if (k == kept->n) {
            *to = (run_kept_scalar){ .name = trek_strdup(o->name) };
            if (!to->name)
                return trek_error_status();
            kept->n++;
        }
        trek_tensor_release(to->on_device);
        *to = (run_kept_scalar){ to->name, o->seen, o->recorded, o->total, o->sum, o->weight,
                             o->on_device ? trek_tensor_retain(o->on_device) : NULL, to->metric };
        status = trek_metric_mark_set(&to->metric, o->metric);
    }
    return status;
}

trek_status trek_run_elastic_keep_observed(run_elastic *e, const trek_step *s)
{
    trek_status status = TREK_OK;
    for (int r = 0; r < e->n_ranks && status == TREK_OK; r++) {
        e->ranks[r].rows = trek_step_team(s)->replicas[r].measured_rows;
        e->ranks[r].ms = trek_step_team(s)->replicas[r].measured_ms;
        status = keep_scalars(&e->ranks[r], trek_step_team(s)->replicas[r].graph);
    }
    return status;
}

void trek_run_elastic_forget_observed(run_elastic *e)
{
    for (int r = 0; r < e->n_ranks; r++) {
        for (int k = 0; k < e->ranks[r].n; k++)
            e->ranks[r].scalars[k].seen = false;
        e->ranks[r].rows = 0;
        e->ranks[r].ms = 0;
    }
}

static trek_status give_metric(const run_kept_scalar *kept, trek_graph *graph)
{
    trek_metric *from = trek_metric_mark_make(&kept->metric);
    trek_metric *to = from ? trek_observation_metric(graph, kept->name, &from->form) : NULL;
    trek_status status = to ? trek_metric_merge(to, from) : trek_error_status();
    trek_metric_free(&from);
    return status;
}

trek_status trek_run_elastic_give_observed(run_elastic *e, trek_run *run)
{
    trek_step *s = trek_graph_ranks(run->graph);
    trek_status status = TREK_OK;
    for (int r = 0; r < e->n_ranks && status == TREK_OK; r++) {
        run_kept_rank *kept = &e->ranks[r];
        for (int k = 0; k < kept->n && status == TREK_OK; k++) {
            run_kept_scalar *o = &kept->scalars[k];
            if (!o->seen)
                continue;
            double more = o->on_device ? trek_tensor_item(o->on_device) : 0;
            status = o->metric.metric ? give_metric(o, run->graph)
                                      : trek_observation_add(run->graph, o->name, o->total, o->sum + more, o->weight);
            if (status == TREK_OK)
                trek_observation_find(run->graph, o->name)->recorded = o->recorded;
        }
        if (s && r < trek_step_team(s)->local_ranks) {
            trek_step_team(s)->replicas[r].measured_rows = kept->rows;
            trek_step_team(s)->replicas[r].measured_ms = kept->ms;
        }
    }
    return status == TREK_OK ? trek_error_status() : status;
}

/* --- a state in memory --- */

void trek_run_elastic_close_file(run_elastic *e)
{
    if (e->file >= 0)
        close(e->file);
    e->file = -1;
}

trek_status trek_run_elastic_write_state(trek_run *run)
{
    run_elastic *e = run->elastic;
    const trek_replica *model = trek_step_team(stepper_of(run))->replicas[0].model;
    trek_status status = trek_job_file_empty(&e->file);
    for (int k = 0; k < e->n_buffers && status == TREK_OK; k++)
        status = trek_tensor_copy_from(model->buffers[k]->data, e->buffers[k]);
    trek_rank_here.rng_step = e->rng_step;
    trek_rank_here.rng_draw = e->rng_draw;
    if (status == TREK_OK)
        status = trek_loader_seek(run->train, e->at.epoch, e->at.batch);
    if (status == TREK_OK)
        status = trek_checkpoint_write(run->graph, run->train, e->file, "the state of the run", e->numbers, TREK_RUN_NUMBERS);
    if (status != TREK_OK)
        trek_run_elastic_close_file(e);
    return status;
}

/* With averaged parameters every step writes its state. The loader is at its position already. */
static trek_status write_average(trek_run *run)
{
    run_elastic *e = run->elastic;
    trek_status status = trek_job_file_empty(&e->file);
    trek_state *state = status == TREK_OK ? trek_run_state(run, e->numbers) : NULL;
    if (status == TREK_OK)
        status = state ? trek_state_write_file(state, e->file, "the state of the run") : trek_error_status();
    trek_state_free(&state);
    return status;
}

/* --- keeping --- */

static trek_status keep(trek_run *run, int64_t epoch, int64_t batch)
{
    run_elastic *e = run->elastic;
    const trek_step *s = stepper_of(run);
    bool in_epoch = epoch == e->at.epoch && run->parts == e->at.parts;
    int64_t steps = trek_graph_steps(run->graph);
    trek_status status = e->n_ranks ? TREK_OK : make_room(e, s);
    if (status == TREK_OK)
        status = keep_buffers(e, s);
    if (status == TREK_OK && in_epoch)
        status = trek_run_elastic_keep_observed(e, s);
    else
        trek_run_elastic_forget_observed(e);
    e->epoch_steps = in_epoch ? e->epoch_steps + steps - e->at.steps : 0;
    e->epoch_ns = in_epoch ? trek_now_ns() - run->epoch_start_ns : 0;
    e->at = (run_place){ epoch, batch, steps, run->parts, run->looked };
    e->rng_step = trek_rank_here.rng_step;
    e->rng_draw = trek_rank_here.rng_draw;
    e->numbers[TREK_RUN_BEST] = run->best;
    e->numbers[TREK_RUN_SINCE_BEST] = (double)run->since_best;
    if (status == TREK_OK && trek_step_averages(s) && batch == 0)
        status = trek_loader_seek(run->train, epoch, 0); /* it is at the end of the epoch before */
    if (status == TREK_OK && trek_step_averages(s)) /* devices may still exchange what goes with the averages */
        status = trek_comm_settle(trek_graph_job(run->graph)->comm);
    return status == TREK_OK && trek_step_averages(s) ? write_average(run) : status;
}

trek_status trek_run_elastic_keep(trek_run *run, int64_t epoch, int64_t batch)
{
    if (!run->elastic || trek_job_is_alone(trek_graph_job(run->graph)))
        return TREK_OK;
    return keep(run, epoch, batch);
}

trek_status trek_run_elastic_keep_whole(trek_run *run, int64_t epoch)
{
    run_elastic *e = run->elastic;
    trek_run_elastic_forget_observed(e);
    e->epoch_steps = e->epoch_ns = 0;
    e->at = (run_place){ epoch, 0, trek_graph_steps(run->graph), run->parts, run->looked };
    e->numbers[TREK_RUN_BEST] = run->best;
    e->numbers[TREK_RUN_SINCE_BEST] = (double)run->since_best;
    trek_status status = trek_loader_seek(run->train, epoch, 0);
    return status == TREK_OK ? write_average(run) : status;
}
