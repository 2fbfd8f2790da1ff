/* SPDX-License-Identifier: Apache-2.0 */
/* Passes in rounds: every rank trains its own batches and makes its own steps, and what the ranks hand over is averaged
 * (rounds.c). */
#include "distributed/rounds/rounds_pass.h"

#include "data/loader_internal.h"
#include "distributed/pass/job_sync.h"
#include "distributed/pass/per_rank_step.h"
#include "distributed/rounds/averaging.h"
#include "distributed/rounds/rounds.h"
#include "distributed/team/step.h"
#include "graph/graph_loader_internal.h"

/* Trains on batches [first, end) of the epoch, which the site reads itself. */
static trek_status run_batches(trek_step *s, int site, const trek_batch *window, trek_stretch of, const trek_rounds_way *way)
{
    trek_rounds *rounds = s->averaging->rounds;
    trek_loader *loader = s->team->graph->graph_loader->loader;
    trek_reader *reader = trek_ranks_reader(s, site, loader);
    trek_status status = reader ? trek_reader_begin(reader, window->epoch, of.first, of.end) : trek_error_status();
    for (int64_t k = of.first; k < of.end && status == TREK_OK; k++) {
        trek_batch *batch = trek_reader_next(reader);
        if (!batch)
            return trek_error_status();
        batch->first = (k - window->first_batch) * trek_loader_plan(loader)->batch_size;
        status = trek_rounds_before(rounds, site);
        if (status == TREK_OK)
            status = way->run(way->arg, batch);
        if (status == TREK_OK)
            trek_rounds_ran(rounds, site, batch->n);
        trek_job_say(&s->job, "forward and backward", false);
    }
    return status;
}

trek_status trek_rounds_run(trek_step *s, int site, const trek_batch *window, const trek_rounds_way *way)
{
    trek_rounds *rounds = s->averaging->rounds;
    trek_allotment a;
    trek_status status;
    while (trek_rounds_next(rounds, site, &a, &status)) {
        for (int k = 0; k < a.n && status == TREK_OK; k++)
            status = run_batches(s, site, window, a.of[k], way);
        if (status != TREK_OK && way->failed)
            way->failed(way->arg);
        if ((status = trek_rounds_done(rounds, site, status)) != TREK_OK)
            break;
    }
    if (s->team->replicas[site].reader)
        trek_reader_rest(s->team->replicas[site].reader, 0, 0);
    return status;
}

/* --- of ranks ------------------------------------------------------------------------------------------- */

static trek_status begin(trek_step *s, const trek_batch *window)
{
    return trek_rounds_begin(s->averaging->rounds, window->first_batch, window->first_batch + window->batches);
}

static trek_status end(trek_step *s, trek_status own)
{
    int64_t batches = 0;
    trek_status status = trek_rounds_end(s->averaging->rounds, own, &batches);
    trek_average_count(s, batches);
    return status;
}

typedef struct rank_run {
    const trek_pass *pass;
    int rank;
} rank_run;

static trek_status run_batch(void *arg, trek_batch *batch)
{
    const rank_run *r = arg;
    return trek_pass_run_batch(r->pass, r->rank, batch);
}

static trek_status run_rank(const trek_pass *pass, int rank)
{
    rank_run r = { pass, rank };
    return trek_rounds_run(trek_pass_step(pass), rank, trek_pass_window(pass), &(trek_rounds_way){ run_batch, NULL, &r });
}

static const trek_window_way by_rounds = { begin, run_rank, end };

trek_var *trek_rounds_train(trek_step *s, const trek_batch *window) { return trek_ranks_train_window(s, window, &by_rounds); }
