/* SPDX-License-Identifier: Apache-2.0 */
/* The progress of runs, from their metrics. */
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "distributed/run_progress.h"
#include "monitor/progress_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"
#include "tensor/trace.h"

enum { LOOK_MS = 20 };

static void tell_ranks(trek_progress *p, const trek_epoch_metrics *m)
{
    if (m->ranks < 2 || !m->per_rank || p->quiet || !p->terminal)
        return;
    trek_progress_rank *ranks = trek_calloc((size_t)m->ranks, sizeof *ranks);
    if (!ranks)
        return;
    for (int k = 0; k < m->ranks; k++) {
        const trek_rank_metrics *r = &m->per_rank[k];
        ranks[k] = (trek_progress_rank){ k, r->share, r->samples_per_s > 0 ? r->samples_per_s : (double)NAN, NULL };
    }
    trek_progress_ranks(p, ranks, m->ranks);
    trek_free(ranks);
}

/* Lists the scalars that are numbers, with evaluation_loss first. */
static int list_metrics(const trek_epoch_metrics *m, trek_epoch_scalar *list)
{
    int n = 0;
    if (!isnan(m->evaluation_loss))
        list[n++] = (trek_epoch_scalar){ .name = "evaluation_loss", .value = m->evaluation_loss };
    for (int k = 0; k < m->n_scalars; k++)
        if (!m->scalars[k].values)
            list[n++] = m->scalars[k];
    return n;
}

static void print_epoch(trek_progress *p, const trek_epoch_metrics *m)
{
    trek_epoch_scalar *list = trek_calloc((size_t)m->n_scalars + 1, sizeof *list);
    if (!list)
        return;
    tell_ranks(p, m);
    trek_progress_end_epoch(p, &(trek_epoch_line){ .epoch = m->epoch, .loss = m->loss, .has_loss = !isnan(m->loss),
                                                   .n = list_metrics(m, list), .metrics = list,
                                                   .samples_per_s = m->samples_per_s, .seconds = m->seconds + m->evaluation_s });
    trek_free(list);
}

trek_status trek_progress_metrics(const trek_epoch_metrics *metrics, void *progress)
{
    if (!metrics)
        return trek_fail_missing("progress_metrics", "metrics");
    if (progress) {
        print_epoch(progress, metrics);
        return TREK_OK;
    }
    trek_progress plain = { .stream = stderr, .quiet = !trek_progress_is_first(), .clock = trek_clock_ns, .first_epoch = -1 };
    plain.colour = trek_terminal_colours(trek_terminal_rewrites(fileno(stderr)));
    print_epoch(&plain, metrics);
    return TREK_OK;
}

trek_status trek_progress_follow(trek_run *run, const trek_progress_opts *opts)
{
    if (!run)
        return trek_fail_missing("progress_follow", "run");
    trek_run_progress look = { 0 };
    trek_status status = trek_run_look(run, &look);
    if (status != TREK_OK)
        return status;
    trek_progress_opts its = opts ? *opts : (trek_progress_opts){ 0 };
    its.epochs = look.epochs > 0 ? look.epochs : 1;
    trek_progress *p = trek_progress_new_with(&its);
    if (!p)
        return trek_error_status();
    for (trek_epoch_metrics m; status == TREK_OK; ) {
        if (trek_run_poll(run, &m)) {
            print_epoch(p, &m);
            continue;
        }
        status = trek_run_look(run, &look);
        if (status != TREK_OK || !look.running) {
            while (status == TREK_OK && trek_run_next(run, &m)) /* the last ones */
                print_epoch(p, &m);
            break;
        }
        p->opts.batches = look.batches;
        if (look.batch > 0)
            trek_progress_update(p, look.epoch, look.batch, look.loss);
        nanosleep(&(struct timespec){ .tv_nsec = LOOK_MS * 1000000 }, NULL);
    }
    trek_progress_free(&p);
    return status;
}
