/* SPDX-License-Identifier: Apache-2.0 */
/* What a choice saves is estimated from one pass, and measured by another one. If it was estimated wrongly, the next choice is
 * made for less room, or more, and for less host memory. Recomputation gives the same bits; that this holds for the program's own
 * modules, too, is seen from a digest of the gradients. */
#include "distributed/recompute_plan.h"

#include <string.h>

#include "distributed/pass/dry_pass.h"
#include "distributed/pass/kept.h"
#include "distributed/team/memory.h"
#include "distributed/team/step.h"
#include "nn/ways.h"
#include "tensor/devices.h"
#include "tensor/try_internal.h"

enum { ROUNDS = 8 };

/* What is chosen for a rank. */
typedef struct choice {
    bool *now, *best;        /* [n_segments] the choice that is tried, and the fastest that has fitted so far */
    bool fits, ends;         /* there is a best one; no other is tried */
    int64_t room;            /* for the rank's activations, */
    int64_t target, least;   /* and for what its modules keep, by the estimate; the least that is possible */
    int64_t ns, best_ns;     /* what recomputing and moving take */
    int64_t host;            /* bytes of host memory that it may take */
} choice;

typedef struct planning {
    trek_step *s;
    int n_ranks, n_rows;
    int64_t *activations, *samples; /* [n_rows] of the last pass */
    int64_t *needed, *full;  /* [n_ranks] of the last pass, and if nothing is recomputed */
    int64_t *ns;             /* [n_ranks] of a pass that recomputes nothing */
    int64_t *sent, *before_pass; /* [n_ranks] bytes that the last pass has moved; all that earlier ones have */
    trek_moving *moving;     /* [n_ranks] */
    trek_kept *kept;         /* [n_ranks] */
    trek_digest *before, *after; /* [n_ranks] of gradients */
    choice *choices;         /* [n_ranks] */
} planning;

/* --- the record ------------------------------------------------------------------------------- */

static void end(planning *p)
{
    for (int r = 0; r < p->n_ranks; r++) {
        if (p->kept)
            trek_kept_clear(&p->kept[r]);
        trek_free(p->choices ? p->choices[r].now : NULL);
        trek_free(p->choices ? p->choices[r].best : NULL);
    }
    trek_free(p->activations);
    trek_free(p->samples);
    trek_free(p->needed);
    trek_free(p->full);
    trek_free(p->ns);
    trek_free(p->sent);
    trek_free(p->before_pass);
    trek_free(p->moving);
    trek_free(p->kept);
    trek_free(p->before);
    trek_free(p->after);
    trek_free(p->choices);
}

static trek_status begin(planning *p, trek_step *s)
{
    size_t ranks = (size_t)s->team->local_ranks, rows = (size_t)s->team->memory->n_own;
    *p = (planning){ .s = s, .n_ranks = (int)ranks, .n_rows = (int)rows };
    p->activations = trek_calloc(rows, sizeof *p->activations);
    p->samples = trek_calloc(rows, sizeof *p->samples);
    p->needed = trek_calloc(ranks, sizeof *p->needed);
    p->full = trek_calloc(ranks, sizeof *p->full);
    p->ns = trek_calloc(ranks, sizeof *p->ns);
    p->sent = trek_calloc(ranks, sizeof *p->sent);
    p->before_pass = trek_calloc(ranks, sizeof *p->before_pass);
    p->moving = trek_calloc(ranks, sizeof *p->moving);
    p->kept = trek_calloc(ranks, sizeof *p->kept);
    p->before = trek_calloc(ranks, sizeof *p->before);
    p->after = trek_calloc(ranks, sizeof *p->after);
    p->choices = trek_calloc(ranks, sizeof *p->choices);
    bool made = p->activations && p->samples && p->needed && p->full && p->ns && p->kept && p->before && p->after && p->choices;
    made = made && p->sent && p->before_pass && p->moving;
    return made ? TREK_OK : TREK_ERR_MEMORY;
}

static trek_module *root_of(const planning *p, int rank) { return trek_graph_module(p->s->team->replicas[rank].graph); }

static trek_memory_row *row_of(const planning *p, int rank)
{
    const trek_team_memory *memory = p->s->team->memory;
    return &memory->rows[memory->first_own + trek_memory_row_of(p->s->team, rank)];
}

static bool exceeds(const trek_memory_row *row) { return row->budget > 0 && trek_memory_total(row) > row->budget; }

/* --- passes ----------------------------------------------------------------------------------- */

/* Returns how many bytes of host memory a GPU rank may move values to. */
static int64_t host_room(const planning *p)
{
    const trek_team *team = p->s->team;
    int64_t room = team->memory->host_budget;
    trek_device_info info = { .memory_free = 0 };
    int gpus = 0;
    for (int r = 0; r < p->n_ranks; r++)
        gpus += trek_ranks_device(team->ranks, r).type != TREK_CPU;
    if (room == 0 && gpus > 0 && trek_device_info_get(trek_cpu(0), &info) == TREK_OK)
        room = info.memory_free / 2 / p->s->job.processes;
    return room > 0 && gpus > 0 ? room / gpus : 0;
}

/* Runs a pass in which everything is kept, and finds the segments. */
static trek_status observe(planning *p)
{
    int64_t host = host_room(p);
    trek_status status = host > 0 ? trek_moving_measure(p->s, p->moving) : TREK_OK;
    if (status == TREK_OK)
        status = trek_dry_pass(p->s, &(trek_dry_pass_result){ .activations = p->activations, .samples = p->samples,
                                                                      .needed = p->full, .ns = p->ns, .kept = p->kept,
                                                                      .gradients = p->before });
    for (int r = 0; r < p->n_ranks && status == TREK_OK; r++) {
        if (p->kept[r].n_points == 0)
            continue;
        status = trek_kept_find_segments(&p->kept[r], &p->moving[r], host);
        p->choices[r].host = host;
        p->choices[r].now = trek_calloc((size_t)p->kept[r].n_segments + 1, sizeof(bool));
        p->choices[r].best = trek_calloc((size_t)p->kept[r].n_segments + 1, sizeof(bool));
        if (status == TREK_OK && !(p->choices[r].now && p->choices[r].best))
            status = TREK_ERR_MEMORY;
    }
    return status;
}

static trek_status run_chosen(planning *p)
{
    TRY(trek_moving_count(p->s, p->before_pass));
    TRY(trek_dry_pass(p->s, &(trek_dry_pass_result){ .activations = p->activations, .samples = p->samples, .needed = p->needed,
                                                     .gradients = p->after }));
    TRY(trek_moving_count(p->s, p->sent));
    for (int r = 0; r < p->n_ranks; r++)
        p->sent[r] -= p->before_pass[r];
    return TREK_OK;
}

/* --- a rank's choice -------------------------------------------------------------------------- */

/* What a pass has in use above what the modules keep: the loss, and what backward needs for a moment. */
static int64_t above(const planning *p, int rank)
{
    const trek_kept *kept = &p->kept[rank];
    int64_t most = p->full[rank] - kept->held[kept->n_points - 1];
    return most > 0 ? most : 0;
}

/* Chooses for the target, or for the least that is possible. */
static trek_status choose(const planning *p, int rank)
{
    choice *c = &p->choices[rank];
    const trek_forward_line line = trek_kept_line(&p->kept[rank]);
    bool found;
    c->target = c->target > c->least ? c->target : c->least;
    TRY(trek_recomputing_choose(&line, c->target, c->now, &c->ns, &found));
    if (found)
        return TREK_OK;
    TRY(trek_recomputing_least(&line, &c->least)); /* there is less host memory than before */
    c->target = c->least;
    return trek_recomputing_choose(&line, c->target, c->now, &c->ns, &found);
}

/* Makes another choice, for less if `left` bytes are missing, or for more; for less host memory if it was exceeded by `beyond`
 * bytes. *other: there is one. */
static trek_status choose_again(const planning *p, int rank, int64_t left, int64_t beyond, bool *other)
{
    trek_kept *kept = &p->kept[rank];
    choice *c = &p->choices[rank];
    size_t n = (size_t)kept->n_segments;
    bool *tried = trek_calloc(n + 1, sizeof *tried);
    if (!tried)
        return TREK_ERR_MEMORY;
    memcpy(tried, c->now, n * sizeof *tried);
    int64_t step = left < 0 ? left - c->target / 100 - 1 : left / 2;
    trek_status status = TREK_OK;
    *other = false;
    do {
        if (beyond > 0)
            kept->host = kept->host - kept->host / 100 > beyond ? kept->host - kept->host / 100 - beyond : 0;
        c->target += beyond > 0 && left >= 0 ? 0 : step;
        status = choose(p, rank);
        *other = memcmp(tried, c->now, n * sizeof *tried) != 0;
    } while (status == TREK_OK && !*other && ((left < 0 && c->target > c->least) || (beyond > 0 && kept->host > 0)));
    trek_free(tried);
    return status;
}

static trek_status apply(const planning *p, int rank)
{
    const choice *c = &p->choices[rank];
    return c->now && p->kept[rank].n_points > 0 ? trek_kept_apply(&p->kept[rank], root_of(p, rank), c->now) : TREK_OK;
}

/* again: for those for which no choice has fitted, and nothing is moved. What is moved is estimated less exactly. */
static trek_status begin_choices(const planning *p, bool again)
{
    trek_status status = TREK_OK;
    for (int r = 0; r < p->n_ranks && status == TREK_OK; r++) {
        choice *c = &p->choices[r];
        const trek_memory_row *row = row_of(p, r);
        int64_t all = 0;
        for (int q = 0; q < p->n_ranks; q++)
            all += row_of(p, q) == row && p->full[q] > 0 ? p->full[q] : 0;
        c->ends = !exceeds(row) || p->full[r] <= 0 || p->kept[r].n_points == 0 || (again && (c->fits || p->kept[r].host == 0));
        if (c->ends)
            continue;
        p->kept[r].host = again ? 0 : p->kept[r].host;
        int64_t left = row->budget - trek_memory_fixed(row);
        c->room = left > 0 ? (int64_t)((double)left * ((double)p->full[r] / (double)all)) : 0;
        c->target = c->room - above(p, r);
        const trek_forward_line line = trek_kept_line(&p->kept[r]);
        status = trek_recomputing_least(&line, &c->least);
        if (status == TREK_OK)
            status = choose(p, r);
        if (status == TREK_OK)
            status = apply(p, r);
    }
    return status;
}

/* Takes note of what a rank's choice has needed, and makes another one if that may be better. */
static trek_status look(planning *p, int rank)
{
    choice *c = &p->choices[rank];
    int64_t left = c->room - p->needed[rank], n = p->kept[rank].n_segments, beyond = p->sent[rank] - c->host;
    bool other = false;
    if (c->ends)
        return TREK_OK;
    if (left >= 0 && beyond <= 0 && (!c->fits || c->ns < c->best_ns)) {
        c->fits = true;
        c->best_ns = c->ns;
        memcpy(c->best, c->now, (size_t)n * sizeof *c->best);
    }
    trek_status status = choose_again(p, rank, left, beyond, &other);
    c->ends = !other || (c->fits && c->ns >= c->best_ns);
    return status == TREK_OK && !c->ends ? apply(p, rank) : status;
}

/* Tries choices until each rank has one that fits and none is expected to be faster, or the least one does not fit. */
static trek_status try_choices(planning *p, bool again)
{
    trek_status status = begin_choices(p, again);
    bool goes_on = false;
    for (int r = 0; r < p->n_ranks; r++)
        goes_on |= !p->choices[r].ends;
    for (int round = 0; round < ROUNDS && goes_on && status == TREK_OK; round++) {
        status = run_chosen(p);
        goes_on = false;
        for (int r = 0; r < p->n_ranks && status == TREK_OK; r++) {
            status = look(p, r);
            goes_on |= !p->choices[r].ends;
        }
    }
    return status;
}

static trek_status search(planning *p)
{
    trek_status status = try_choices(p, false);
    if (status == TREK_OK)
        status = try_choices(p, true);
    for (int r = 0; r < p->n_ranks && status == TREK_OK; r++) {
        choice *c = &p->choices[r];
        if (c->fits) {
            memcpy(c->now, c->best, (size_t)p->kept[r].n_segments * sizeof *c->now);
            c->ns = c->best_ns;
        }
        status = apply(p, r);
    }
    return status == TREK_OK ? run_chosen(p) : status;
}

/* --- the result ------------------------------------------------------------------------------- */

static void forget(const planning *p)
{
    for (int r = 0; r < p->n_ranks; r++)
        trek_ways_forget(root_of(p, r));
}

static bool gradients_differ(const planning *p)
{
    bool differ = false;
    for (int r = 0; r < p->n_ranks; r++)
        differ |= !trek_digest_equal(&p->before[r], &p->after[r]);
    return differ;
}

static trek_status note_chosen(const planning *p)
{
    trek_team_memory *memory = p->s->team->memory;
    for (int r = 0; r < p->n_ranks; r++) {
        const choice *c = &p->choices[r];
        trek_memory_row *row = row_of(p, r);
        int own = trek_memory_row_of(p->s->team, r);
        trek_text others = { 0 };
        if (!c->now)
            continue;
        bool first = row->recomputed + row->moved == 0;
        int n = trek_kept_describe(&p->kept[r], root_of(p, r), c->now, false, first ? &memory->recomputed[own] : &others);
        int moved = trek_kept_describe(&p->kept[r], root_of(p, r), c->now, true, first ? &memory->moved[own] : &others);
        trek_text_clear(&others);
        if (n + moved == 0)
            continue;
        row->recomputed += n;
        row->moved += moved;
        row->host += p->sent[r];
        row->host_budget += moved > 0 ? c->host : 0;
        row->saved += p->full[r] - p->needed[r];
        row->recompute_ns = c->ns > row->recompute_ns ? c->ns : row->recompute_ns;
        row->pass_ns = p->ns[r] > row->pass_ns ? p->ns[r] : row->pass_ns;
    }
    for (int k = 0; k < p->n_rows; k++) {
        memory->rows[memory->first_own + k].activations = p->activations[k];
        memory->rows[memory->first_own + k].samples = p->samples[k];
        if (memory->recomputed[k].failed || memory->moved[k].failed)
            return TREK_ERR_MEMORY;
    }
    return TREK_OK;
}

/* Keeps everything, because a module cannot be recomputed. */
static trek_status give_up(planning *p, const char *why)
{
    forget(p);
    trek_log_message(TREK_LOG_LEVEL_WARNING, "trainer: .activations: nothing is recomputed, since a pass that recomputes %s",
                     why);
    return TREK_OK;
}

trek_status trek_recompute_choose(trek_step *s)
{
    planning p;
    const trek_team_memory *memory = s->team->memory;
    bool any = false;
    for (int k = 0; k < memory->n_own; k++)
        any |= memory->rows[memory->first_own + k].activations >= 0 && exceeds(&memory->rows[memory->first_own + k]);
    if (!any)
        return TREK_OK;
    trek_status status = begin(&p, s);
    if (status == TREK_OK)
        status = observe(&p);
    if (status == TREK_OK) {
        status = search(&p);
        if (status != TREK_OK && status != TREK_ERR_MEMORY) {
            trek_text text = { 0 };
            trek_text_format(&text, "fails: %s", trek_error());
            trek_error_clear();
            status = give_up(&p, text.data ? text.data : "fails");
            trek_text_clear(&text);
        } else if (status == TREK_OK) {
            status = gradients_differ(&p) ? give_up(&p, "has other gradients; a module may read variables that are neither its "
                                                        "inputs nor its parameters")
                                          : note_chosen(&p);
        }
    }
    end(&p);
    return status;
}

/* Adds what recomputing can save on a rank to the row of those that keep things together. */
static trek_status add_levels(const planning *p, int rank)
{
    trek_room *room = &row_of(p, rank)->room;
    trek_room_levels levels = { .bytes = { 0 } };
    int64_t full = p->full[rank] > 0 ? p->full[rank] : 0;
    bool some = p->kept[rank].n_points > 0 && full > 0;
    const trek_forward_line line = trek_kept_line(&p->kept[rank]);
    trek_status status = some ? trek_room_levels_of(&line, &levels) : TREK_OK;
    for (int k = 0; k <= TREK_ROOM_LEVELS; k++) {
        int64_t bytes = some ? levels.bytes[k] + above(p, rank) : full;
        room->levels.bytes[k] += k > 0 && bytes < full ? bytes : full;
        room->levels.ns[k] += levels.ns[k];
    }
    room->pass_ns += (double)p->ns[rank];
    return status;
}

trek_status trek_recompute_estimate(trek_step *s)
{
    planning p;
    const trek_team_memory *memory = s->team->memory;
    trek_status status = begin(&p, s);
    if (status == TREK_OK)
        status = observe(&p);
    for (int k = 0; k < memory->n_own && status == TREK_OK; k++)
        memory->rows[memory->first_own + k].room = (trek_room){ .samples = (double)p.samples[k] };
    for (int r = 0; r < p.n_ranks && status == TREK_OK; r++)
        status = add_levels(&p, r);
    end(&p);
    return status;
}
