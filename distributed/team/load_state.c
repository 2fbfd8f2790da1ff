/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/team/load_state.h"

#include <inttypes.h>
#include <string.h>

#include "distributed/job/agreement.h"
#include "nn/text.h"
#include "tensor/memory_account.h"

/* --- the ranks of a process ----------------------------------------------------------------- */

static trek_optimizer *optimizer_of(const trek_ranks_loading *x, int rank)
{
    return x->team ? x->team->replicas[rank].optimizer : x->optimizer;
}

static trek_status on_ranks(trek_ranks_loading *x, trek_rank_fn fn)
{
    return x->team ? trek_ranks_call(x->team->ranks, fn, x) : fn(0, x);
}

static trek_status begin_rank(int rank, void *arg)
{
    trek_ranks_loading *x = arg;
    trek_optimizer *optimizer = optimizer_of(x, rank);
    bool works = trek_memory_account_work(false); /* what is loaded is no part of a rank's budget */
    trek_status status = TREK_OK;
    if (optimizer)
        status = trek_optimizer_import_begin(optimizer, x->state.entries, x->state.n_entries, &x->plans[rank]);
    trek_memory_account_work(works);
    return status;
}

static trek_status commit_rank(int rank, void *arg)
{
    trek_ranks_loading *x = arg;
    if (!x->plans[rank])
        return TREK_OK;
    trek_optimizer_import_end(optimizer_of(x, rank), &x->plans[rank], true);
    return trek_optimizer_set_rates(optimizer_of(x, rank), &x->state);
}

static trek_status drop_rank(int rank, void *arg)
{
    trek_ranks_loading *x = arg;
    if (x->plans[rank])
        trek_optimizer_import_end(optimizer_of(x, rank), &x->plans[rank], false);
    return TREK_OK;
}

trek_status trek_ranks_load_begin(trek_ranks_loading *x)
{
    x->plans = trek_calloc(x->team ? (size_t)x->team->local_ranks : 1, sizeof *x->plans);
    trek_status status = x->plans ? TREK_OK : TREK_ERR_MEMORY;
    if (status == TREK_OK && x->team)
        status = trek_team_follow_groups(x->team);
    return status == TREK_OK ? on_ranks(x, begin_rank) : status;
}

trek_status trek_ranks_load_commit(trek_ranks_loading *x) { return on_ranks(x, commit_rank); }

void trek_ranks_load_end(trek_ranks_loading *x)
{
    if (x->plans)
        on_ranks(x, drop_rank);
    trek_free(x->plans);
    x->plans = NULL;
}

/* --- the processes of a job -------------------------------------------------------------------- */

static uint64_t mix_bytes(uint64_t key, const trek_tensor *tensor)
{
    const char *at = tensor->data;
    size_t left = (size_t)tensor->numel * trek_dtype_size((trek_dtype)tensor->dtype);
    for (; left > 0;) {
        uint64_t word = 0;
        size_t n = left < sizeof word ? left : sizeof word;
        memcpy(&word, at, n);
        key = trek_mix(key, word);
        at += n;
        left -= n;
    }
    return key;
}

/* Writes one line for the whole state, which is equal if all entries are. */
static trek_status describe(const trek_optimizer_loaded *state, trek_text *text)
{
    uint64_t key = 0;
    for (int g = 0; g < state->n_rates; g++)
        key = trek_mix_double(key, state->rates[g]);
    for (int k = 0; k < state->n_entries; k++) {
        trek_tensor *here = trek_tensor_to(state->entries[k].tensor, trek_cpu(0)),
            *whole = here ? trek_tensor_contiguous(here) : NULL;
        for (const char *c = state->entries[k].name; *c; c++)
            key = trek_mix(key, (unsigned char)*c);
        key = whole ? mix_bytes(key, whole) : key;
        trek_tensor_release(here);
        trek_tensor_release(whole);
        if (!whole)
            return trek_error_status();
    }
    trek_text_format(text, "the state\t%d entries, sum %016" PRIx64 "\n", state->n_entries, key);
    return text->failed ? trek_error_status() : TREK_OK;
}

trek_status trek_ranks_load_together(trek_ranks_loading *x, trek_comm *comm, trek_status own)
{
    trek_text text = { 0 };
    if (own == TREK_OK)
        own = trek_ranks_load_begin(x);
    if (own == TREK_OK && comm)
        own = describe(&x->state, &text);
    if (comm)
        own = trek_agree(comm, own, "optimizer_load", own == TREK_OK ? &text : NULL);
    if (own == TREK_OK)
        own = trek_ranks_load_commit(x);
    trek_ranks_load_end(x);
    trek_text_clear(&text);
    return own;
}
