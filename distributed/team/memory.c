/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/team/memory.h"

#include <inttypes.h>

#include "tensor/pages.h"
#include "tensor/print.h"

/* --- the record ------------------------------------------------------------------------- */

trek_status trek_team_memory_new(trek_team *team, const int64_t *budgets)
{
    trek_team_memory *memory = team->memory = trek_calloc(1, sizeof *memory);
    if (!memory)
        return TREK_ERR_MEMORY;
    memory->n_own = memory->n_rows = trek_memory_n_own(team);
    memory->rows = trek_calloc((size_t)memory->n_own, sizeof *memory->rows);
    memory->recomputed = trek_calloc((size_t)memory->n_own, sizeof *memory->recomputed);
    memory->moved = trek_calloc((size_t)memory->n_own, sizeof *memory->moved);
    memory->budgets = budgets ? trek_calloc((size_t)team->local_ranks, sizeof *budgets) : NULL;
    for (int r = 0; memory->budgets && r < team->local_ranks; r++)
        memory->budgets[r] = budgets[r];
    for (int k = 0; memory->rows && k < memory->n_own; k++)
        memory->rows[k].activations = -1;
    return memory->rows && memory->recomputed && memory->moved && (memory->budgets || !budgets) ? TREK_OK : TREK_ERR_MEMORY;
}

void trek_team_memory_free(trek_team *team)
{
    trek_team_memory *memory = team->memory;
    team->memory = NULL;
    if (!memory)
        return;
    for (int k = 0; memory->accounts && k < memory->n_own; k++)
        trek_memory_account_free(&memory->accounts[k]);
    trek_free(memory->accounts);
    for (int k = 0; memory->recomputed && k < memory->n_own; k++)
        trek_text_clear(&memory->recomputed[k]);
    for (int k = 0; memory->moved && k < memory->n_own; k++)
        trek_text_clear(&memory->moved[k]);
    trek_free(memory->recomputed);
    trek_free(memory->moved);
    trek_free(memory->budgets);
    trek_free(memory->rows);
    trek_free(memory);
}

/* --- measuring -------------------------------------------------------------------------- */

static int64_t bytes_of(const trek_tensor *t) { return t ? t->numel * (int64_t)trek_dtype_size((trek_dtype)t->dtype) : 0; }

static int64_t state_bytes(const trek_arena *arena, const trek_optimizer *optimizer)
{
    int64_t bytes = 0;
    for (int p = 0; p < arena->n_parts; p++) {
        if (trek_arena_part_is_low(&arena->parts[p]))
            bytes += bytes_of(arena->parts[p].master);
        for (int s = 0; optimizer && s < TREK_OWN_MASTERS; s++)
            bytes += bytes_of(trek_optimizer_own(optimizer, s, p));
    }
    return bytes;
}

void trek_memory_add(const trek_arena *arena, const trek_optimizer *optimizer, trek_memory_row *row)
{
    for (int p = 0; p < arena->n_parts; p++) {
        row->grads += arena->parts[p].pages ? trek_pages_taken(arena->parts[p].pages) : bytes_of(arena->parts[p].grads);
        if (!arena->sharing)
            row->params += arena->parts[p].param_pages ? trek_pages_taken(arena->parts[p].param_pages)
                                                       : bytes_of(arena->parts[p].params);
    }
    if (!arena->sharing)
        row->state += state_bytes(arena, optimizer);
}

void trek_memory_measure(const trek_team *team, const trek_job *job, const int64_t *sums, trek_memory_row *rows)
{
    const trek_team_memory *memory = team->memory;
    for (int k = 0; k < memory->n_own; k++) {
        trek_device device = trek_ranks_device(team->ranks, k);
        rows[k].first_rank = job->first_rank + k;
        rows[k].ranks = team->shared ? team->local_ranks : 1;
        rows[k].device_type = (int32_t)device.type;
        rows[k].device_index = device.index;
        rows[k].params = rows[k].grads = rows[k].state = rows[k].other = 0;
    }
    for (int r = 0; r < team->local_ranks; r++) {
        trek_memory_add(team->replicas[r].arena, team->replicas[r].optimizer, &rows[trek_memory_row_of(team, r)]);
        rows[trek_memory_row_of(team, r)].grads += sums[r];
    }
    for (int k = 0; k < memory->n_own && memory->accounts; k++) {
        int64_t used = memory->accounts[k] ? trek_memory_account_used(memory->accounts[k]) : 0;
        rows[k].other = used > trek_memory_fixed(&rows[k]) ? used - trek_memory_fixed(&rows[k]) : 0;
    }
}

/* --- the table -------------------------------------------------------------------------- */

enum { WIDTH = 12 };

/* Adds a number of KiB or MiB with one decimal, without the locale's point. */
static void add_number(trek_text *text, int64_t bytes, int64_t unit)
{
    int64_t tenths = (bytes * 10 + unit / 2) / unit;
    trek_text_format(text, "  %*" PRId64 ".%d", WIDTH - 2, tenths / 10, (int)(tenths % 10));
}

static void add_word(trek_text *text, const char *word) { trek_text_format(text, "  %*s", WIDTH, word); }

static void add_ranks(trek_text *text, const trek_memory_row *row)
{
    char device[16];
    trek_device of = { (trek_device_type)row->device_type, row->device_index };
    if (row->ranks > 1)
        trek_text_format(text, "%d-%d", row->first_rank, row->first_rank + row->ranks - 1);
    else
        trek_text_format(text, "%d", row->first_rank);
    trek_text_format(text, " (%s)", trek_device_name(of, device, sizeof device));
}

static void add_row(const trek_team_memory *memory, int k, int64_t unit, trek_text *text)
{
    const trek_memory_row *row = &memory->rows[k];
    int own = k - memory->first_own;
    trek_text ranks = { 0 };
    add_ranks(&ranks, row);
    trek_text_format(text, "%-14s", ranks.data ? ranks.data : "");
    trek_text_clear(&ranks);
    const int64_t numbers[] = { row->params, row->grads, row->state, row->other };
    for (int n = 0; n < 4; n++)
        add_number(text, numbers[n], unit);
    if (row->activations >= 0)
        add_number(text, row->activations, unit);
    else
        add_word(text, "?");
    add_number(text, trek_memory_total(row), unit);
    if (row->budget > 0)
        add_number(text, row->budget, unit);
    else
        add_word(text, "-");
    if (memory->accounts && own >= 0 && own < memory->n_own && memory->accounts[own])
        add_number(text, trek_memory_account_peak(memory->accounts[own]), unit);
    else
        add_word(text, "-");
    trek_text_format(text, "\n");
}

/* Names what is divided, and what is not. */
static const char *divided_of(const trek_team *team)
{
    return team->divides_params ? "parameters, gradients and the optimizer's state"
        : team->divides_grads ? "gradients and the optimizer's state" : "the optimizer's state";
}

static const char *whole_of(const trek_team *team)
{
    return team->divides_params ? "; parameters are gathered in buckets, which count with activations"
        : team->divides_grads ? "; parameters are whole on each rank" : "; parameters and gradients are whole on each rank";
}

static void add_parts_kept_twice(const trek_team *team, trek_text *text)
{
    const trek_arena *arena = team->replicas[0].arena;
    double all = 0;
    int n = 0;
    for (int r = 0; r < arena->sharers; r++) {
        all += arena->weights[r];
        n += arena->weights[r] > 0;
    }
    if (n == 1)
        trek_text_format(text, "%s: whole in one process", divided_of(team));
    else
        trek_text_format(text, "%s: each part is kept by two of %d processes, which have ", divided_of(team), arena->sharers);
    for (int r = 0; r < arena->sharers && n > 1; r++) {
        int64_t tenths = (int64_t)(2000 * arena->weights[r] / all + 0.5);
        trek_text_format(text, "%s%" PRId64 ".%d %%", r ? ", " : "", tenths / 10, (int)(tenths % 10));
    }
    trek_text_format(text, "%s%s\n", n > 1 ? " of it" : "", whole_of(team));
}

static void add_parts(const trek_team *team, trek_text *text)
{
    if (!team || team->sharers == 1) {
        trek_text_add(text, "the optimizer's state: whole wherever parameters are\n");
        return;
    }
    const double *weights = team->replicas[0].arena->weights;
    double all = 0;
    if (team->twice) {
        add_parts_kept_twice(team, text);
        return;
    }
    trek_text_format(text, "%s: in %d parts", divided_of(team), team->sharers);
    for (int r = 0; r < team->sharers && weights; r++)
        all += weights[r];
    for (int r = 0; r < team->sharers && weights; r++) {
        int64_t tenths = (int64_t)(1000 * weights[r] / all + 0.5);
        trek_text_format(text, "%s%" PRId64 ".%d %%", r ? ", " : ": ", tenths / 10, (int)(tenths % 10));
    }
    trek_text_format(text, "%s%s\n", weights ? "" : " of the same size", whole_of(team));
}

static void add_amount(trek_text *text, int64_t bytes, int64_t unit)
{
    int64_t tenths = (bytes * 10 + unit / 2) / unit;
    trek_text_format(text, "%" PRId64 ".%d %s", tenths / 10, (int)(tenths % 10), unit == 1 << 10 ? "KiB" : "MiB");
}

/* "recomputed in backward: rank 0 (cuda:0): 2 segments (...)"; the names are those of this process's own rows. */
static void add_segments(const trek_team_memory *memory, int k, const char *what, int64_t n, const trek_text *names,
                         trek_text *text)
{
    const trek_memory_row *row = &memory->rows[k];
    int own = k - memory->first_own;
    trek_text_format(text, "%s: rank%s ", what, row->ranks > 1 ? "s" : "");
    add_ranks(text, row);
    trek_text_format(text, ": %" PRId64 " segment%s", n, n > 1 ? "s" : "");
    if (own >= 0 && own < memory->n_own && names[own].length > 0)
        trek_text_format(text, " (%s%s)", names[own].data, row->ranks > 1 ? " of the first" : "");
    trek_text_add(text, ", ");
}

/* Says what a row's ranks recompute and move. */
static void add_recomputed(const trek_team_memory *memory, int k, int64_t unit, trek_text *text)
{
    const trek_memory_row *row = &memory->rows[k];
    if (row->recomputed > 0)
        add_segments(memory, k, "recomputed in backward", row->recomputed, memory->recomputed, text);
    if (row->moved > 0) {
        trek_text_add(text, row->recomputed > 0 ? "and\n" : "");
        add_segments(memory, k, "moved to host memory until backward", row->moved, memory->moved, text);
        add_amount(text, row->host, unit);
        trek_text_add(text, " of at most ");
        add_amount(text, row->host_budget, unit);
        trek_text_add(text, ", ");
    }
    add_amount(text, row->saved, unit);
    trek_text_format(text, " less; about %" PRId64 " %% more time for forward and backward\n",
                     row->pass_ns > 0 ? (100 * row->recompute_ns + row->pass_ns / 2) / row->pass_ns : 0);
}

static void add_recomputations(const trek_team_memory *memory, int64_t unit, trek_text *text)
{
    bool any = false;
    for (int k = 0; k < memory->n_rows; k++)
        if (memory->rows[k].recomputed > 0 || memory->rows[k].moved > 0) {
            add_recomputed(memory, k, unit, text);
            any = true;
        }
    if (memory->recomputes && !any)
        trek_text_add(text, "recomputed in backward: nothing\n");
}

/* Lists the rows that gather in this way. */
static void add_gathering(const trek_team_memory *memory, int64_t gathers, const char *how, trek_text *text)
{
    bool any = false;
    for (int k = 0; k < memory->n_rows; k++)
        if (memory->rows[k].gathers == gathers) {
            trek_text_add(text, any ? ", " : how);
            add_ranks(text, &memory->rows[k]);
            any = true;
        }
    if (any)
        trek_text_add(text, "\n");
}

static void add_notes(const trek_team_memory *memory, const trek_team *team, trek_text *text)
{
    int64_t samples = -1;
    for (int k = 0; k < memory->n_rows; k++)
        if (memory->rows[k].activations >= 0 && memory->rows[k].samples > samples)
            samples = memory->rows[k].samples;
    add_parts(team, text);
    add_gathering(memory, 1, "parameters are gathered once a step, and kept until its update, by rank ", text);
    add_gathering(memory, 2, "parameters are gathered in each pass of a step by rank ", text);
    if (samples >= 0)
        trek_text_format(text, "activations: of a forward and backward of at most %" PRId64 " samples\n", samples);
    else
        trek_text_add(text, "activations: not measured; that needs .memory_budget, and a loader and a loss before set-up\n");
    if (team)
        trek_text_format(text, "gradients: sent from where they are, in buckets of at most %" PRId64 " bytes%s\n",
                         team->bucket_bytes,
                         team->divides_grads ? ", whose memory is given back then (it counts with activations)" : "");
}

void trek_memory_describe(const trek_team_memory *memory, const trek_team *team, trek_text *text)
{
    static const char *const columns[] = { "parameters", "gradients", "state", "other", "activations", "total", "budget",
                                           "peak" };
    int64_t most = 0;
    for (int k = 0; k < memory->n_rows; k++)
        most = trek_memory_total(&memory->rows[k]) > most ? trek_memory_total(&memory->rows[k]) : most;
    int64_t unit = most < 10 << 20 ? 1 << 10 : 1 << 20;
    trek_text_format(text, "%-14s", unit == 1 << 10 ? "ranks, in KiB" : "ranks, in MiB");
    for (int k = 0; k < 8; k++)
        add_word(text, columns[k]);
    trek_text_add(text, "\n");
    for (int k = 0; k < memory->n_rows; k++)
        add_row(memory, k, unit, text);
    add_notes(memory, team, text);
    add_recomputations(memory, unit, text);
}

trek_status trek_memory_check(const trek_team_memory *memory, const char *function)
{
    trek_text text = { 0 };
    for (int k = 0; k < memory->n_rows; k++) {
        const trek_memory_row *row = &memory->rows[k];
        int64_t needed = trek_memory_total(row) - row->kept;
        if (row->budget == 0 || needed <= row->budget)
            continue;
        trek_text_format(&text, "%s%" PRId64 " for rank%s ", text.length ? ", and " : "", row->budget, row->ranks > 1 ? "s" : "");
        add_ranks(&text, row);
        trek_text_format(&text, ", which need%s %" PRId64 " (parameters %" PRId64 ", gradients %" PRId64 ", state %" PRId64
                         ", other %" PRId64 ", activations %" PRId64 "%s)", row->ranks > 1 ? "" : "s", needed, row->params,
                         row->grads, row->state, row->other, row->activations > 0 ? row->activations - row->kept : 0,
                         row->moved > 0 ? " with everything recomputed or moved that can be"
                             : row->recomputed > 0 ? " with everything recomputed that can be" : "");
    }
    if (text.length == 0 && !text.failed)
        return TREK_OK;
    trek_status status = trek_fail(TREK_ERR_MEMORY, "%s: .memory_budget: %s; must be at least as much", function,
                                   text.data ? text.data : "too little");
    trek_text_clear(&text);
    return status;
}
