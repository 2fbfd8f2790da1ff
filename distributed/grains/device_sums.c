/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of gradients on GPUs. Every rank of the job gives its bins and its digits to collectives, which add integers, in any
 * order, and turns the sums of all into gradients in its own arena. Nothing waits for the host.
 *
 * If each process has one rank, or there is one process, a single collective adds the digits of all. Otherwise those of a process
 * go to its rank 0 first, which sums with the other processes; the ranks of a process get the gradients from it.
 *
 * The digits of a rank remain what they are until the step has been made, as on the host (exchange.c). If a process dies, the
 * others' collectives are aborted, and leave anything in the memory of their results. So where the job can go on, the bins of all
 * are used only when the device has finished with them, and the step only after a commit, which waits for the device, too. */
#include "autograd/var_internal.h"
#include "distributed/grains/digests.h"
#include "distributed/job/survival.h"
#include "distributed/team/step.h"
#include "tensor/trace.h"

/* A rank's part of the exchange. */
typedef struct exchange {
    trek_step *s;
    int rank;
    trek_grain_sums *sums;
    trek_arena *arena;
    trek_comm *local;        /* of the ranks of this process; NULL: there is one */
    trek_comm *job;          /* of the processes: of rank 0, if there are others now; otherwise NULL */
    bool others;             /* there are other processes */
} exchange;

static exchange exchange_of(trek_step *s, int rank)
{
    bool others = s->job.processes > 1; /* a survivor may be alone in its group */
    return (exchange){ .s = s, .rank = rank, .sums = &s->grains->sums[rank], .arena = s->team->replicas[rank].arena,
                       .local = s->team->local_ranks > 1 ? trek_ranks_comm(s->team->ranks, rank) : NULL,
                       .job = others && rank == 0 ? s->job.comm : NULL, .others = others };
}

trek_status trek_grain_device_sums_make(trek_step *s, int rank)
{
    exchange x = exchange_of(s, rank);
    int64_t most = 0, digits = 0;
    if ((!x.local && !x.others) || x.sums->all_bins || s->team->divides_grads)
        return TREK_OK;
    for (int p = 0; p < x.arena->n_parts; p++) {
        most = x.arena->parts[p].count > most ? x.arena->parts[p].count : most;
        digits = trek_binned_digits(x.arena->parts[p].wide) > digits ? trek_binned_digits(x.arena->parts[p].wide) : digits;
    }
    x.sums->all_bins = trek_tensor_zeros(trek_dims(trek_binned_blocks(most)), TREK_I32, x.arena->device);
    most = most < s->grains->piece ? most : s->grains->piece;
    for (int k = 0; k < digits; k++)
        if (!(x.sums->piece[k] = trek_tensor_zeros(trek_dims(most), TREK_I64, x.arena->device)))
            return trek_error_status();
    return x.sums->all_bins ? TREK_OK : trek_error_status();
}

/* The ranks of a process go on together: a rank that cannot would be waited for in the next collective. */
static trek_status agree(const exchange *x, trek_status own)
{
    if (own != TREK_OK && x->job && !trek_survival_may(&x->s->job, own))
        trek_comm_abort(x->job, "a rank cannot sum its gradients");
    return x->local ? trek_replica_agree(x->local, own, "step") : own;
}

static trek_status run(trek_comm *comm, trek_comm_kind kind, trek_reduction op, trek_dtype dtype, int64_t count, const void *in,
                       void *out)
{
    return trek_comm_run(comm, (trek_comm_call){ .kind = kind, .op = op, .dtype = dtype, .count = count, .in = in, .out = out,
                                                 .on_device = true });
}

/* Gives the rank's sums the bins that they have on all ranks. */
static trek_status share_bins(exchange *x, const trek_binned *part)
{
    int64_t blocks = trek_binned_blocks(part->count);
    void *all = x->sums->all_bins->data;
    trek_status status = TREK_OK;
    if (x->local)
        status = run(x->local, TREK_COMM_ALL_REDUCE, TREK_REDUCTION_MAX, TREK_I32, blocks, part->bins, all);
    if (x->job && status == TREK_OK)
        status = run(x->job, TREK_COMM_ALL_REDUCE, TREK_REDUCTION_MAX, TREK_I32, blocks, x->local ? all : part->bins, all);
    if (x->job && status == TREK_OK && x->s->job.survival)
        status = trek_comm_settle(x->job);
    status = agree(x, status);
    if (status == TREK_OK && x->local && x->others)
        status = run(x->local, TREK_COMM_BROADCAST, TREK_REDUCTION_SUM, TREK_I32, blocks, all, all);
    if (status == TREK_OK)
        x->arena->backend->binned_raise(part, all);
    return agree(x, status == TREK_OK ? trek_error_status() : status);
}

/* Adds the digits of a piece over all ranks. With other processes and several ranks, only rank 0 has the result. */
static trek_status add_digits(exchange *x, const trek_binned *part, int64_t begin, const trek_binned *piece)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < trek_binned_digits(part->dtype) && status == TREK_OK; k++) {
        const int64_t *own = part->digits[k] + begin;
        int64_t *all = piece->digits[k];
        if (x->local)
            status = run(x->local, x->others ? TREK_COMM_REDUCE : TREK_COMM_ALL_REDUCE, TREK_REDUCTION_SUM, TREK_I64,
                         piece->count,
                         own, all);
        if (x->job && status == TREK_OK)
            status = run(x->job, TREK_COMM_ALL_REDUCE, TREK_REDUCTION_SUM, TREK_I64, piece->count, x->local ? all : own, all);
    }
    return agree(x, status);
}

/* Returns the piece of a part that begins at an element, with room for the sums of all. */
static trek_binned piece_at(const exchange *x, const trek_binned *part, int64_t begin)
{
    trek_binned piece = { .dtype = part->dtype, .bins = part->bins + begin / TREK_BINNED_BLOCK };
    piece.count = part->count - begin < x->s->grains->piece ? part->count - begin : x->s->grains->piece;
    for (int k = 0; k < trek_binned_digits(part->dtype); k++)
        piece.digits[k] = (int64_t *)(void *)x->sums->piece[k]->data;
    return piece;
}

static trek_status read_piece(exchange *x, int p, int64_t begin)
{
    const trek_binned *part = &x->sums->parts[p];
    trek_binned piece = piece_at(x, part, begin);
    char *grads = x->arena->parts[p].grads->data + (size_t)begin * trek_dtype_size(part->dtype);
    trek_status status = add_digits(x, part, begin, &piece);
    bool has = !x->local || !x->others || x->rank == 0;
    if (status == TREK_OK && has)
        x->arena->backend->binned_read(&piece, x->s->grains->factor, grads, 0, trek_binned_blocks(piece.count));
    status = agree(x, status == TREK_OK ? trek_error_status() : status);
    if (status == TREK_OK && x->local && x->others)
        status = run(x->local, TREK_COMM_BROADCAST, TREK_REDUCTION_SUM, part->dtype, piece.count, grads, grads);
    return status;
}

static trek_status read_part(exchange *x, int p)
{
    const trek_binned *part = &x->sums->parts[p];
    trek_status status = TREK_OK;
    if (!x->local && !x->others) {
        x->arena->backend->binned_read(part, x->s->grains->factor, x->arena->parts[p].grads->data, 0,
                                       trek_binned_blocks(part->count));
        return trek_error_status();
    }
    status = share_bins(x, part);
    for (int64_t begin = 0; begin < part->count && status == TREK_OK; begin += x->s->grains->piece)
        status = read_piece(x, p, begin);
    return status;
}

/* Each rank digests its slice of the gradients, which are the same in all arenas. */
static void digest_part(const exchange *x, int p)
{
    int64_t first, blocks = trek_grain_sums_slice(x->s->team, x->rank, p, &first), end = (first + blocks) * TREK_BINNED_BLOCK;
    end = end < x->arena->parts[p].count ? end : x->arena->parts[p].count;
    trek_digests_read(x->s, x->rank, p, first * TREK_BINNED_BLOCK, end);
}

/* Clears what an aborted collective has left between parameters, too, whose blocks are added to the sums as a whole. */
static void drop_gradients(const exchange *x)
{
    trek_kept_error kept;
    trek_error_keep(&kept);
    trek_arena_zero_grads(x->arena);
    trek_error_put_back(&kept);
}

trek_status trek_grain_device_sums_read(trek_step *s, int rank)
{
    exchange x = exchange_of(s, rank);
    int64_t start = trek_trace_enter("reduce grains");
    trek_status status = TREK_OK;
    for (int p = 0; p < x.arena->n_parts && status == TREK_OK; p++) {
        status = read_part(&x, p);
        if (status == TREK_OK)
            digest_part(&x, p);
    }
    trek_trace_end("reduce grains", start, s->team->graph->settings.steps);
    status = agree(&x, status == TREK_OK ? trek_error_status() : status);
    if (status == TREK_OK && s->job.survival) /* all have the whole gradient */
        status = agree(&x, rank == 0 ? trek_survival_commit(&s->job) : TREK_OK);
    if (status == TREK_OK && rank == 0) {
        s->grains->pending = s->grains->broken = false;
        s->grains->n_records = 0;
    }
    if (status != TREK_OK)
        drop_gradients(&x);
    return status;
}
