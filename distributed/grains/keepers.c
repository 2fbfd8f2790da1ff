/* SPDX-License-Identifier: Apache-2.0 */
/* Divided sums, to which the ranks of all processes add: a bucket of a rank's gradients goes to those who keep its pieces. Those
 * of the same machine are added to where they lie; those of other machines are given to a thread of their process. */
#include <string.h>

#include "distributed/comm/shared/lent.h"
#include "distributed/grains/grains.h"
#include "distributed/job/agreement.h"
#include "distributed/team/step.h"
#include "tensor/memory_internal.h"
#include "tensor/pages.h"

/* Returns the number of the first piece that a rank lends of a part: its digits, and then its bins. */
static int first_piece(const trek_arena *arena, int part)
{
    int k = 0;
    for (int p = 0; p < part; p++)
        k += trek_binned_digits(arena->parts[p].wide) + 1;
    return k;
}

static trek_binned lent_sums(const trek_grains *g, const trek_arena *arena, int sharer, int part)
{
    int digits = trek_binned_digits(arena->parts[part].wide), first = first_piece(arena, part);
    trek_binned sums = { .dtype = arena->parts[part].wide, .count = arena->parts[part].count };
    for (int k = 0; k < digits; k++)
        sums.digits[k] = (int64_t *)(void *)trek_lent_memory(g->lent, sharer, first + k);
    sums.bins = (int32_t *)(void *)trek_lent_memory(g->lent, sharer, first + digits);
    return sums;
}

/* Adds elements [begin, end) of a part, whole blocks, which begin at `data`, to the sums of a rank of this machine. */
static trek_status add_here(const trek_step *s, int sharer, const trek_bucket_piece *piece, int part, char *data, bool zero)
{
    trek_grains *g = s->grains;
    const trek_arena *arena = s->team->replicas[0].arena;
    trek_binned sums = g->lent ? lent_sums(g, arena, sharer, part) : g->sums[sharer].parts[part];
    char *first = data - (size_t)piece->begin * trek_dtype_size(sums.dtype);
    trek_status status = TREK_OK;
    if (g->lent)
        status = trek_lent_lock(g->lent, sharer);
    else
        trek_lock_acquire(&g->sums[sharer].lock);
    if (status != TREK_OK)
        return status;
    trek_cpu_backend()->binned_add(&sums, (void *[]){ first }, 1, piece->begin / TREK_BINNED_BLOCK,
                                   trek_binned_blocks(piece->end - piece->begin), zero);
    if (g->lent)
        trek_lent_unlock(g->lent, sharer);
    else
        trek_lock_release(&g->sums[sharer].lock);
    return TREK_OK;
}

/* Takes gradients of a part that a rank of another machine has given: k is the part, and offset is among its gradients. */
static bool take(void *arg, int rank, int k, uint64_t offset, void *data, uint64_t bytes)
{
    trek_step *s = arg;
    const trek_arena *arena = s->team->replicas[0].arena;
    if (k < 0 || k >= arena->n_parts)
        return false;
    uint64_t size = trek_dtype_size(arena->parts[k].wide), block = TREK_BINNED_BLOCK * size;
    uint64_t all = (uint64_t)trek_binned_blocks(arena->parts[k].count) * block;
    if (offset % block != 0 || bytes % block != 0 || offset > all || bytes > all - offset)
        return false;
    trek_bucket_piece piece = { .begin = (int64_t)(offset / size), .end = (int64_t)((offset + bytes) / size) };
    return add_here(s, s->team->replicas[rank].arena->sharer, &piece, k, data, false) == TREK_OK;
}

trek_status trek_grain_sums_lend(trek_step *s)
{
    trek_grains *g = s->grains;
    if (!s->team->divides_grads || s->job.processes == 1)
        return TREK_OK;
    const trek_arena *arena = s->team->replicas[0].arena;
    int n = first_piece(arena, arena->n_parts), at = 0;
    trek_pages **pages = trek_calloc((size_t)(s->team->local_ranks * n), sizeof(trek_pages *));
    for (int r = 0; r < s->team->local_ranks && pages; r++)
        for (int p = 0; p < arena->n_parts; p++) {
            for (int k = 0; k < trek_binned_digits(arena->parts[p].wide); k++)
                pages[at++] = trek_pages_of(g->sums[r].digits[p][k]);
            pages[at++] = trek_pages_of(g->sums[r].bins[p]);
        }
    trek_status status = trek_replica_agree(s->job.comm, pages ? TREK_OK : TREK_ERR_MEMORY, "trainer_setup: .shard");
    if (status == TREK_OK)
        status = trek_replica_agree(s->job.comm, trek_lent_new(s->job.comm, &(trek_lent_opts){ pages, s->team->local_ranks, n,
                                                                                             "gradients", take, s }, &g->lent),
                                    "trainer_setup: .shard");
    if (status != TREK_OK)
        trek_lent_free(&g->lent);
    trek_free(pages);
    return status;
}

/* Adds elements of a part, which lie at `data`, to the sums of one of those who keep them. */
static trek_status add_to(const trek_grain_bucket *on, int sharer, const trek_bucket_piece *piece, int part, char *data,
                          bool zero)
{
    const trek_step *s = on->s;
    size_t size = trek_dtype_size(s->team->replicas[on->rank].arena->parts[part].wide), at = (size_t)piece->begin * size;
    if (!s->grains->lent || trek_lent_memory(s->grains->lent, sharer, 0))
        return add_here(s, sharer, piece, part, data, zero);
    int64_t count = trek_binned_blocks(piece->end - piece->begin) * TREK_BINNED_BLOCK;
    return trek_lent_give(s->grains->lent, &(trek_lent_piece){ on->rank, sharer, part, at, (size_t)count * size }, data);
}

static bool keeps(const trek_bucket_piece *piece, int sharer) { return piece->owner == sharer || piece->second == sharer; }

trek_status trek_grain_sums_add_to_keepers(const trek_grain_bucket *on, int part, int64_t begin, int64_t end, char *data,
                                           bool zero)
{
    const rank_replica *own = &on->s->team->replicas[on->rank];
    int sharers = own->arena->sharers;
    size_t size = trek_dtype_size(own->arena->parts[part].wide);
    trek_bucket_piece piece;
    trek_status status = TREK_OK;
    for (int k = 0; k < sharers && status == TREK_OK; k++)
        for (int64_t at = begin; status == TREK_OK && trek_buckets_next_piece(&own->reducer->buckets, sharers, part, &at, end,
                                                                              &piece);)
            if (keeps(&piece, (own->arena->sharer + k) % sharers))
                status = add_to(on, (own->arena->sharer + k) % sharers, &piece, part,
                                data + (size_t)(piece.begin - begin) * size, zero && !own->arena->twice);
    if (zero && own->arena->twice)
        memset(data, 0, (size_t)(end - begin) * size);
    return status;
}
