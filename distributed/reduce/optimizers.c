/* SPDX-License-Identifier: Apache-2.0 */
/* One optimizer for ranks that share their parameters, or one for each rank. */
#include "distributed/reduce/optimizers.h"

#include "distributed/reduce/sharded.h"
#include "distributed/team/load_state.h"
#include "distributed/team/step.h"

typedef struct optimizer_call {
    trek_step *s;
    const trek_optimizer_source *source;
    trek_optimizer **made;
} optimizer_call;

static trek_status make_optimizer(int rank, void *arg)
{
    const optimizer_call *c = arg;
    if (rank > 0 && c->s->team->shared)
        return TREK_OK;
    c->made[rank] = trek_optimizer_make(c->source, c->s->team->replicas[rank].arena);
    if (!c->made[rank])
        return trek_error_status();
    return c->s->team->shared && trek_optimizer_is_whole(c->made[rank]) ? trek_optimizer_share(c->made[rank],
                                                                                               c->s->team->local_ranks)
                                                                  : TREK_OK;
}

/* Loads a state into the optimizers of all ranks of the job. */
static trek_status load(void *step, trek_status own, const trek_optimizer_loaded *state)
{
    const trek_step *s = step;
    trek_ranks_loading loading = { .team = s->team, .state = *state };
    trek_comm_say(s->job.comm, "load");
    own = trek_ranks_load_together(&loading, s->job.comm, own);
    trek_comm_say(s->job.comm, NULL);
    return own;
}

static const trek_optimizer_behind behind = { .load = load };

trek_status trek_ranks_set_optimizer(trek_step *s, const trek_optimizer_source *source)
{
    if (s->team->replicas[0].model->n_params == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "graph_set_optimizer: graph: it has no parameters; an optimizer needs some");
    trek_optimizer **made = trek_calloc((size_t)s->team->local_ranks, sizeof *made);
    if (!made)
        return trek_error_status();
    trek_optimizer_spec spec = trek_optimizer_source_spec(source);
    trek_ranks_cuts *before;
    trek_status status = trek_ranks_cut_for(s, &spec, &before);
    if (status == TREK_OK)
        status = trek_ranks_call(s->team->ranks, make_optimizer, &(optimizer_call){ s, source, made });
    if (before && s->team->lent) /* all take back the cuts, or none */
        status = trek_replica_agree(s->job.comm, status, "graph_set_optimizer");
    trek_ranks_cut_end(&before, status == TREK_OK);
    for (int r = 0; r < s->team->local_ranks; r++) {
        trek_optimizer *old = s->team->replicas[r].optimizer;
        if (status == TREK_OK)
            s->team->replicas[r].optimizer = made[r];
        else
            old = made[r];
        trek_optimizer_free(&old);
    }
    if (status == TREK_OK) {
        s->team->replicas[0].optimizer->behind = &behind;
        s->team->replicas[0].optimizer->behind_arg = s;
    }
    trek_free(made);
    return status;
}

trek_status trek_team_set_lr(const trek_team *team, double lr)
{
    if (!team->replicas[0].optimizer)
        return trek_fail(TREK_ERR_STATE, "graph_set_lr: the graph has no optimizer; call trek_graph_set_optimizer first");
    trek_status status = TREK_OK; /* the first rank's refusal comes before any change */
    for (int r = 0; r < team->local_ranks && status == TREK_OK; r++)
        if (team->replicas[r].optimizer)
            status = trek_optimizer_set_lr(team->replicas[r].optimizer, lr);
    return status;
}
