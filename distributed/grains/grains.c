/* SPDX-License-Identifier: Apache-2.0 */
/* Beginning and end of grain mode, and what it cannot do. */
#include "distributed/comm/shared/lent.h"
#include "distributed/grains/counter.h"
#include "distributed/grains/digests.h"

#include <string.h>

#include "graph/graph_internal.h"
#include "nn/module_internal.h"
#include "distributed/job/rank_devices.h"
#include "distributed/team/step.h"
#include "tensor/random_internal.h"

static trek_status refuse(const char *why)
{
    return trek_fail(TREK_ERR_UNSUPPORTED, "trainer_setup: .grain: set, with %s", why);
}

static trek_status check(const trek_step *s)
{
    if (s->job.mixed)
        return refuse("ranks on CPUs and on GPUs; they round differently, so who takes which grains would show in the bits");
    if (!s->team->on_host && trek_ranks_devices_differ(&s->job, 0, s->job.world_size))
        return refuse("GPUs of different models; they round differently, so who takes which grains would show in the bits");
    if (s->averaging)
        return refuse("averaged parameters; grains are summed to one gradient");
    if (trek_team_meets(s->team))
        return refuse("layers that use the samples of other ranks (synchronised batch norm); each grain is normalised by itself");
    if (trek_team_has_states(s->team))
        return refuse("a graph that carries states from batch to batch; grains are independent of each other");
    return TREK_OK;
}

static trek_status plan_buffers(trek_grains *g, const trek_replica *replica)
{
    size_t at = (sizeof(trek_grain_record) + 15) & ~(size_t)15;
    g->buffer_at = trek_calloc((size_t)replica->n_buffers, sizeof *g->buffer_at);
    if (!g->buffer_at)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < replica->n_buffers; k++) {
        const trek_tensor *x = replica->buffers[k]->data;
        g->buffer_at[k] = at;
        at += ((size_t)x->numel * trek_dtype_size((trek_dtype)x->dtype) + 15) & ~(size_t)15;
    }
    g->record_bytes = at;
    g->first_buffers = trek_calloc(at, 1);
    return g->first_buffers ? TREK_OK : TREK_ERR_MEMORY;
}

/* Makes the words in which processes take grains from each other, if they share memory, and those of the ranks' pace. */
static trek_status make_pace(trek_step *s)
{
    trek_grains *g = s->grains;
    g->pace = (trek_grain_pace){ .ranks = s->team->local_ranks };
    g->pace.words = trek_calloc((size_t)g->pace.ranks * TREK_GRAIN_PACE_WORDS, sizeof *g->pace.words);
    if (!g->pace.words)
        return TREK_ERR_MEMORY;
    if (trek_job_is_alone(&s->job))
        return TREK_OK;
    int64_t n = s->job.processes + (int64_t)s->job.world_size * TREK_GRAIN_PACE_WORDS;
    trek_status status = trek_shared_words_make(s->job.comm, n, &g->words);
    if (status == TREK_OK && g->words.words)
        g->pace_of_all = (trek_grain_pace){ .words = g->words.words + s->job.processes, .ranks = s->job.world_size };
    return status;
}

trek_status trek_grains_make(trek_step *s)
{
    trek_status status = check(s);
    if (status != TREK_OK)
        return status;
    trek_grains *g = s->grains = trek_calloc(1, sizeof *g);
    if (!g)
        return TREK_ERR_MEMORY;
    status = make_pace(s);
    if (status == TREK_OK && trek_job_has_others(&s->job) && !g->words.words)
        status = trek_grain_counter_make(s->job.comm, &g->counter);
    if (status != TREK_OK)
        return status;
    g->recorders = trek_calloc((size_t)s->team->local_ranks, sizeof *g->recorders);
    if (!g->recorders)
        return TREK_ERR_MEMORY;
    g->size = s->grain;
    g->piece = TREK_GRAIN_PIECE;
    g->factor = 1;
    status = plan_buffers(g, s->team->replicas[0].model);
    return status == TREK_OK ? trek_grain_sums_make(s) : status;
}

void trek_grains_free(trek_step *s)
{
    trek_grains *g = s->grains;
    if (!g)
        return;
    trek_step_passes_clear(&g->passes);
    trek_shared_words_end(&g->words);
    trek_grain_counter_free(&g->counter);
    trek_lent_free(&g->lent);
    trek_grain_sums_free(s);
    trek_digests_free(s);
    trek_free((void *)g->pace.words);
    trek_free(g->buffer_at);
    trek_free(g->first_buffers);
    trek_free(g->recorders);
    trek_free(g->records);
    trek_free(g);
    s->grains = NULL;
}

void trek_grains_empty(trek_step *s)
{
    for (int r = 0; r < s->team->local_ranks && !s->grains->emptied; r++)
        trek_grain_sums_clear(&s->grains->sums[r]);
    s->grains->emptied = s->team->divides_grads;
}

void trek_grains_reset(trek_step *s)
{
    trek_grains *g = s->grains;
    trek_grains_empty(s);
    trek_digests_reset(s);
    g->passes.n = 0;
    g->n_records = 0;
    g->factor = 1;
    g->pending = g->broken = false;
}

trek_status trek_grains_refuse(const char *function)
{
    return trek_fail(TREK_ERR_UNSUPPORTED,
                     "%s: graph: it is trained in grains (.grain), which a forward and backward of the program's own would not "
                     "be divided into; register a loader and a loss, and call trek_graph_train_batch",
                     function);
}

/* The mix of SplitMix64. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

bool trek_grains_is_audited(const trek_step *s, int64_t pass, int64_t number)
{
    if (s->grains->audit <= 0 || s->job.world_size < 2)
        return false;
    uint64_t drawn = mix(trek_rng_seed() + 0x9e3779b97f4a7c15u);
    drawn = mix(drawn ^ (uint64_t)s->team->graph->settings.steps);
    drawn = mix(drawn ^ ((uint64_t)pass << 40) ^ (uint64_t)number);
    return (double)(drawn >> 11) * 0x1p-53 < s->grains->audit;
}
