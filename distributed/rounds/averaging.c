/* SPDX-License-Identifier: Apache-2.0 */
/* What all averages have in common: the steps that a rank makes by itself, and views of what is averaged. */
#include "distributed/rounds/averaging.h"

#include <math.h>

#include "autograd/ops.h"
#include "autograd/var_internal.h"
#include "distributed/team/step.h"
#include "graph/graph_internal.h"
#include "optim/schedules.h"

trek_status trek_averaging_begin(trek_step *s, double divergence_threshold)
{
    size_t segments = (size_t)s->team->replicas[0].arena->n_segments + 1;
    trek_averaging *averaging = s->averaging = trek_calloc(1, sizeof *averaging);
    if (!averaging)
        return trek_error_status();
    averaging->divergence_threshold = divergence_threshold;
    for (int r = 0; r < s->team->local_ranks; r++)
        if (!(s->team->replicas[r].trained = trek_calloc(segments, sizeof *s->team->replicas[r].trained)))
            return trek_error_status();
    averaging->segment_steps = trek_calloc(segments, sizeof *averaging->segment_steps);
    return averaging->segment_steps ? TREK_OK : trek_error_status();
}

void trek_averaging_end(trek_step *s)
{
    if (!s->averaging)
        return;
    trek_free(s->averaging->segment_steps);
    trek_free(s->averaging);
    s->averaging = NULL;
}

struct trek_rounds *trek_ranks_rounds(const trek_step *s) { return s && s->averaging ? s->averaging->rounds : NULL; }

trek_status trek_average_begin_pass(trek_step *s)
{
    trek_status status = TREK_OK;
    if (!s->team->replicas[0].optimizer)
        return trek_fail(TREK_ERR_STATE, "graph_train_batch: .average averages parameters, but the graph has no optimizer; call "
                                         "trek_graph_set_optimizer first");
    for (int k = 0; k < TREK_UPDATE_STATES; k++)
        if (s->team->replicas[0].optimizer->klass->states[k].extent != TREK_STATE_EXTENT_ELEMENTS)
            return trek_fail(TREK_ERR_UNSUPPORTED,
                             "graph_train_batch: .average of parameters together with %s, whose %s is not kept for each element; "
                             "choose another optimizer",
                             s->team->replicas[0].optimizer->klass->name, s->team->replicas[0].optimizer->klass->states[k].name);
    if (trek_optimizer_is_coded(s->team->replicas[0].optimizer) && !s->averaging->own_states)
        return trek_fail(TREK_ERR_UNSUPPORTED, "graph_train_batch: .average of parameters together with state in u8, which would "
                                               "be averaged, too; keep it in f32 or bf16");
    if (s->team->graph->scaler || trek_team_meets(s->team))
        return trek_fail(TREK_ERR_UNSUPPORTED, "graph_train_batch: .average of parameters together with %s is not possible",
                         s->team->graph->scaler ? "losses that are scaled" : "layers that meet other ranks");
    return status == TREK_OK ? trek_team_follow_groups(s->team) : status;
}

trek_status trek_average_local_step(trek_step *s, int rank)
{
    rank_replica *own = &s->team->replicas[rank];
    const trek_graph_settings *settings = &s->team->graph->settings;
    if (settings->schedule.kind != TREK_SCHEDULE_KIND_NONE) {
        double lr = trek_schedule_lr(&settings->schedule, settings->steps + own->steps_ahead + own->local_steps);
        trek_status status = isnan(lr) ? trek_error_status() : trek_optimizer_schedule_lr(own->optimizer, lr);
        if (status != TREK_OK)
            return status;
    }
    for (int k = 0; k < own->arena->n_segments; k++) {
        const trek_var *param = own->arena->segments[k].param;
        own->trained[k] |= param->leaf->has_grad && param->requires_grad;
    }
    own->local_steps++;
    trek_step_opts opts = { .max_norm = settings->max_norm, .max_value = settings->max_value, .zero_grad = true };
    return trek_optimizer_step_with(own->optimizer, &opts);
}

void trek_average_count(trek_step *s, int64_t batches) { s->averaging->window_batches += batches; }

/* --- what is averaged ------------------------------------------------------------------------------ */

trek_tensor *trek_average_source(const rank_replica *own, int part, int state)
{
    return state < 0 ? own->arena->parts[part].master : own->optimizer->state[state][part];
}

trek_var *trek_average_view(trek_tensor *flat, int64_t begin, int64_t count)
{
    trek_var *all = trek_var_from(trek_tensor_retain(flat));
    return all ? trek_narrow(all, 0, begin, count) : NULL;
}

trek_status trek_average_round(const rank_replica *own, int part_number, int64_t begin, int64_t count)
{
    const trek_arena_part *part = &own->arena->parts[part_number];
    trek_var *master = trek_average_view(part->master, begin, count), *low = trek_average_view(part->params, begin, count);
    trek_var *rounded = master && low ? trek_cast(master, part->dtype) : NULL;
    return rounded ? trek_tensor_copy_from(low->data, rounded->data) : trek_error_status();
}
