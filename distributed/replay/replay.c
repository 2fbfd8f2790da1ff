/* SPDX-License-Identifier: Apache-2.0 */
/* A replay: what is asked for, and what is said when it ends. */
#include "distributed/replay/replay_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/loader_internal.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"
#include "tensor/rank_context.h"

/* Reads "STEP" or "STEP:GRAIN". */
static bool parse(const char *text, int64_t *step, int64_t *grain)
{
    char *end;
    *grain = -1;
    *step = strtoll(text, &end, 10);
    if (end == text || *step < 1)
        return false;
    if (*end == ':') {
        const char *from = end + 1;
        *grain = strtoll(from, &end, 10);
        return end != from && *grain >= 0 && *end == '\0';
    }
    return *end == '\0';
}

bool trek_replay_asked(int64_t *step)
{
    const char *asked = trek_process_variable("TREK_REPLAY");
    int64_t grain, found;
    bool is = asked && *asked && parse(asked, &found, &grain);
    if (is && step)
        *step = found;
    return asked && *asked && (is || !step);
}

/* Reads the file of digests that the environment names, otherwise that of the program. */
static trek_status read_recorded(replay_recorded *recorded, const char **digests)
{
    const char *named = trek_process_variable("TREK_REPLAY_DIGESTS");
    *digests = named && *named ? named : *digests;
    if (!*digests)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "replay: TREK_REPLAY_DIGESTS: missing; it must name the file of digests, since .digests is not set");
    return trek_replay_read(recorded, *digests);
}

int64_t trek_replay_grain(const char *digests)
{
    replay_recorded recorded = { 0 };
    int64_t grain = read_recorded(&recorded, &digests) == TREK_OK ? recorded.grain : 0;
    trek_replay_forget(&recorded);
    if (grain < 1 && trek_error_status() == TREK_OK)
        trek_fail(TREK_ERR_FORMAT, "replay: TREK_REPLAY_DIGESTS: %s does not say how large its grains were", digests);
    return grain;
}

static trek_status begin(trek_replay *r, const char *digests)
{
    const char *asked = trek_process_variable("TREK_REPLAY"), *report = trek_process_variable("TREK_REPLAY_REPORT");
    if (!parse(asked ? asked : "", &r->step, &r->grain))
        return trek_fail(TREK_ERR_ARGUMENT, "replay: TREK_REPLAY: %s; must be a step from 1 on, or STEP:GRAIN", asked);
    trek_status status = read_recorded(&r->recorded, &digests);
    if (status == TREK_OK && !trek_replay_find(&r->recorded, r->step))
        status = trek_fail(TREK_ERR_ARGUMENT, "replay: TREK_REPLAY: step %" PRId64 " is not in %s, whose last step is %" PRId64,
                           r->step, digests, r->recorded.n_steps > 0 ? r->recorded.steps[r->recorded.n_steps - 1].step : 0);
    r->report = report && *report ? trek_strdup(report) : NULL;
    return status;
}

trek_replay *trek_replay_new(const char *digests)
{
    trek_replay *r = trek_calloc(1, sizeof *r);
    if (r && begin(r, digests) != TREK_OK)
        trek_replay_free(&r);
    return r;
}

static void forget_grains(trek_replay *r)
{
    for (int k = 0; k < r->n_grains; k++)
        trek_free(r->grains[k].samples);
    r->n_grains = 0;
}

void trek_replay_free(trek_replay **replay)
{
    trek_replay *r = *replay;
    *replay = NULL;
    if (!r)
        return;
    trek_replay_watch_end(r);
    forget_grains(r);
    trek_replay_forget(&r->recorded);
    trek_free(r->grains);
    trek_free(r->report);
    trek_free(r);
}

int trek_replay_ranks(const trek_replay *r) { return r->recorded.ranks; }

/* --- grains --- */

void trek_replay_enter(trek_replay *r, int64_t step, const trek_batch *grain)
{
    r->first = r->first ? r->first : step;
    if (trek_array_grow(&r->grains, &r->room, r->n_grains + 1, sizeof *r->grains) != TREK_OK)
        return;
    replay_grain *g = &r->grains[r->n_grains];
    *g = (replay_grain){ .number = (int64_t)trek_rank_here.grain - 1, .n = grain->n };
    if (r->n_grains > 0) /* one rank makes them in order */
        g->pass = g[-1].pass + (g->number <= g[-1].number);
    g->samples = trek_alloc((size_t)(g->n > 0 ? g->n : 1) * sizeof *g->samples);
    if (!g->samples)
        return;
    memcpy(g->samples, grain->indices, (size_t)g->n * sizeof *g->samples);
    r->n_grains++;
    if (step == r->step && (r->grain < 0 || g->number == r->grain))
        trek_replay_watch(r, grain);
}

void trek_replay_leave(trek_replay *r) { trek_replay_watch_end(r); }

static const replay_grain *grain_of(const trek_replay *r, int64_t pass, int64_t number)
{
    for (int k = 0; k < r->n_grains; k++)
        if (r->grains[k].number == number && r->grains[k].pass == pass)
            return &r->grains[k];
    return NULL;
}

/* --- the end --- */

/* Adds "grain 3 (samples 4 17 22)", or nothing if the grain is unknown. */
static void add_grain(const trek_replay *r, int64_t pass, int64_t number, trek_text *text)
{
    const replay_grain *g = grain_of(r, pass, number);
    if (!g)
        return;
    if (pass > 0)
        trek_text_format(text, "pass %" PRId64 ", ", pass);
    trek_text_format(text, "grain %" PRId64 " (samples", number);
    for (int64_t k = 0; k < g->n && k < 12; k++)
        trek_text_format(text, " %" PRId64, g->samples[k]);
    trek_text_add(text, g->n > 12 ? " ...): " : "): ");
}

static void add_found(const trek_replay *r, trek_text *text)
{
    const replay_grain *g = grain_of(r, r->found.pass, r->found.grain);
    add_grain(r, r->found.pass, r->found.grain, text);
    trek_text_add(text, r->found.what);
    if (g && r->found.row >= 0 && r->found.row < g->n)
        trek_text_format(text, ", for sample %" PRId64, g->samples[r->found.row]);
}

static trek_status end(const trek_replay *r, int64_t step, const trek_text *found)
{
    FILE *file = r->report ? fopen(r->report, "we") : NULL;
    const char *what = found->data ? found->data : "no memory";
    if (file) {
        fprintf(file, "%sreplayed from step %" PRId64 "\nstep %" PRId64 ": %s\n", found->failed ? "incomplete: no memory\n" : "",
                r->first, step, what);
        fclose(file);
    }
    return trek_fail(TREK_ERR_STATE, "replay: TREK_REPLAY: the replay has ended at step %" PRId64 ": %.300s", step, what);
}

trek_status trek_replay_compare(trek_replay *r, int64_t step, const char *lines)
{
    const char *recorded = trek_replay_find(&r->recorded, step);
    trek_text text = { 0 }, what = { 0 };
    int64_t grain = -1, pass = -1;
    trek_replay_watch_end(r);
    bool differs = recorded && trek_replay_differ(recorded, lines, step == r->step ? r->grain : -1, &what, &pass, &grain);
    bool ends = differs || r->found.found || step >= r->step;
    if (r->found.found)
        add_found(r, &text);
    if (differs) {
        trek_text_add(&text, r->found.found ? "; " : "");
        add_grain(r, pass, grain, &text);
        trek_text_bytes(&text, what.data ? what.data : "", what.length);
    }
    if (!differs && recorded && step >= r->step)
        trek_text_add(&text, r->found.found ? "; its digests are as recorded" : "as recorded");
    trek_status status = ends ? end(r, step, &text) : TREK_OK;
    forget_grains(r);
    trek_text_clear(&text);
    trek_text_clear(&what);
    return status;
}
