/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/reduce/state_stream.h"

#include <string.h>

#include "distributed/reduce/sharded.h"
#include "distributed/team/step.h"

struct trek_state_stream {
    trek_state_source base;
    trek_step *s;
    trek_optimizer *optimizer; /* rank 0's */
    trek_optimizer_item *items;
    int n;
    bool divided, between;   /* its state is divided, among processes */
    int *queue, *first;      /* the tensors of which pieces must be carried: those that process p reads are
                              * queue[first[p]] to queue[first[p + 1] - 1], in the order in which it reads them */
    int round, rounds;
    char *room;              /* [TREK_STATE_STREAM_ROOM] if pieces must be carried; otherwise NULL */
};

static int processes_of(const trek_state_stream *x) { return x->s ? x->s->job.processes : 1; }
static int process_of(const trek_state_stream *x) { return x->s ? x->s->job.process : 0; }

/* A count of steps is everywhere. */
static bool is_divided(const trek_state_stream *x, int k) { return x->divided && x->items[k].kind != TREK_OWN_STEPS; }

/* --- making --------------------------------------------------------------------------------- */

/* Brings step counts and masters of further sharers up to date; those of the first are when they are listed. */
static trek_status refresh_rank(int rank, void *arg)
{
    trek_step *s = arg;
    return rank > 0 && !s->team->shared ? trek_arena_refresh_masters(s->team->replicas[rank].arena) : TREK_OK;
}

static trek_tensor *read_item(trek_state_source *self, int k);

static void destroy(trek_state_source *self)
{
    trek_state_stream *x = (trek_state_stream *)self;
    trek_optimizer_list_free(&x->items, &x->n);
    trek_free(x->queue);
    trek_free(x->first);
    trek_free(x->room);
    trek_free(x);
}

trek_state_stream *trek_state_stream_new(trek_step *s, trek_optimizer *optimizer)
{
    trek_state_stream *x = trek_calloc(1, sizeof *x);
    if (!x)
        return NULL;
    atomic_init(&x->base.refs, 1);
    x->base.read = read_item;
    x->base.destroy = destroy;
    x->s = s;
    x->optimizer = optimizer;
    x->divided = s && s->team->sharers > 1;
    x->between = x->divided && trek_job_has_others(&s->job);
    trek_status status = TREK_OK;
    if (x->divided) /* a sharer that has made no step since has the same states to give */
        status = trek_team_follow_groups(s->team);
    if (x->divided && status == TREK_OK)
        status = trek_ranks_call(s->team->ranks, refresh_rank, s);
    if (status == TREK_OK)
        status = trek_optimizer_list(optimizer, &x->items, &x->n);
    if (status != TREK_OK)
        trek_state_stream_free(&x);
    return x;
}

void trek_state_stream_free(trek_state_stream **stream)
{
    if (*stream)
        trek_state_source_release(&(*stream)->base);
    *stream = NULL;
}

int trek_state_stream_count(const trek_state_stream *x) { return x->n; }

const trek_optimizer_item *trek_state_stream_item(const trek_state_stream *x, int k) { return &x->items[k]; }

int64_t trek_state_stream_kept(const trek_state_stream *x, int k, int process)
{
    const trek_optimizer_item *item = &x->items[k];
    int64_t kept = 0;
    if (!x->between || !is_divided(x, k))
        return trek_shape_numel(item->shape) * (int64_t)trek_dtype_size(item->dtype);
    trek_sharer sharer = trek_ranks_sharer(x->s, 0);
    trek_sharer_piece piece;
    int rank;
    for (int64_t at = 0; trek_sharer_next_piece(&sharer, item, &at, &piece);)
        kept += trek_ranks_sharer_process(x->s, piece.sharer, &rank) == process ? piece.count : 0;
    return kept * (int64_t)trek_dtype_size(item->dtype);
}

/* --- planning -------------------------------------------------------------------------------- */

static bool is_carried(const trek_state_stream *x, int k, int reader)
{
    const trek_optimizer_item *item = &x->items[k];
    return reader >= 0 && x->between && is_divided(x, k) &&
           trek_state_stream_kept(x, k, reader) < trek_shape_numel(item->shape) * (int64_t)trek_dtype_size(item->dtype);
}

trek_status trek_state_stream_plan(trek_state_stream *x, const int *reader)
{
    int n = 0, processes = processes_of(x);
    if (!x->between)
        return TREK_OK;
    x->queue = trek_calloc((size_t)x->n + 1, sizeof *x->queue);
    x->first = trek_calloc((size_t)processes + 1, sizeof *x->first);
    if (!x->queue || !x->first)
        return TREK_ERR_MEMORY;
    for (int p = 0; p < processes; p++) {
        x->first[p] = n;
        for (size_t size = 8; size > 0; size /= 2)
            for (int k = 0; k < x->n; k++)
                if (reader[k] == p && trek_dtype_size(x->items[k].dtype) == size && is_carried(x, k, p))
                    x->queue[n++] = k;
        x->rounds = n - x->first[p] > x->rounds ? n - x->first[p] : x->rounds;
    }
    x->first[processes] = n;
    x->room = n > 0 ? trek_alloc(TREK_STATE_STREAM_ROOM) : NULL;
    return n > 0 && !x->room ? TREK_ERR_MEMORY : TREK_OK;
}

/* --- carrying -------------------------------------------------------------------------------- */

/* Copies a piece that a rank of this process keeps, or some of its bytes, to host memory. */
static trek_status copy_own(const trek_state_stream *x, const trek_optimizer_item *item, const trek_sharer_piece *piece,
                            int64_t first, int64_t bytes, char *to)
{
    int rank;
    trek_ranks_sharer_process(x->s, piece->sharer, &rank);
    trek_sharer sharer = trek_ranks_sharer(x->s, rank);
    const trek_arena *arena = sharer.arena;
    return arena->backend->copy_bytes(to, trek_cpu(0), trek_sharer_own_piece(&sharer, item, piece) + first, arena->device,
                                      (size_t)bytes, NULL);
}

/* Carries a piece from the process that keeps it to all others, of which the one that reads it stores it in `to`. NULL: this
 * process does not read it. */
static trek_status carry(trek_state_stream *x, const trek_optimizer_item *item, const trek_sharer_piece *piece, char *to)
{
    trek_comm *comm = x->s->job.comm;
    int64_t size = (int64_t)trek_dtype_size(item->dtype), all = piece->count * size;
    int rank, root = trek_ranks_sharer_process(x->s, piece->sharer, &rank);
    bool own = root == process_of(x);
    trek_status status = TREK_OK;
    for (int64_t at = 0, bytes; at < all && status == TREK_OK; at += bytes) {
        bytes = all - at < TREK_STATE_STREAM_ROOM ? all - at : TREK_STATE_STREAM_ROOM;
        if (own && copy_own(x, item, piece, at, bytes, x->room) != TREK_OK) {
            trek_comm_abort(comm, "a rank cannot give its part of the optimizer's state");
            return trek_error_status();
        }
        status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_BROADCAST, .root = root, .dtype = TREK_U8,
                                                       .count = bytes, .in = x->room, .out = x->room });
        if (to && status == TREK_OK)
            memcpy(to + piece->begin * size + at, x->room, (size_t)bytes);
    }
    return status;
}

/* Carries the pieces of one tensor to the process that reads it. What that one keeps itself is not sent. */
static trek_status carry_item(trek_state_stream *x, int k, int reader, char *to)
{
    const trek_optimizer_item *item = &x->items[k];
    trek_sharer sharer = trek_ranks_sharer(x->s, 0);
    trek_sharer_piece piece;
    trek_status status = TREK_OK;
    int64_t size = (int64_t)trek_dtype_size(item->dtype);
    int rank;
    for (int64_t at = 0; status == TREK_OK && trek_sharer_next_piece(&sharer, item, &at, &piece);) {
        if (trek_ranks_sharer_process(x->s, piece.sharer, &rank) != reader)
            status = carry(x, item, &piece, to);
        else if (to)
            status = copy_own(x, item, &piece, 0, piece.count * size, to + piece.begin * size);
    }
    return status;
}

/* Makes the next round. to: where this process stores its tensor; NULL: it goes without. */
static trek_status make_round(trek_state_stream *x, char *to)
{
    trek_status status = TREK_OK;
    for (int p = 0; p < processes_of(x) && status == TREK_OK; p++) {
        int k = x->first[p] + x->round;
        if (k < x->first[p + 1])
            status = carry_item(x, x->queue[k], p, p == process_of(x) ? to : NULL);
    }
    x->round++;
    return status;
}

trek_status trek_state_stream_end(trek_state_stream *x)
{
    trek_status status = TREK_OK;
    while (x->round < x->rounds && status == TREK_OK)
        status = make_round(x, NULL);
    x->round = x->rounds;
    return status;
}

/* --- reading --------------------------------------------------------------------------------- */

/* Puts a tensor together from the ranks of this process. */
static trek_status collect(const trek_state_stream *x, int k, char *to)
{
    const trek_optimizer_item *item = &x->items[k];
    trek_sharer first = trek_ranks_sharer(x->s, 0);
    trek_sharer_piece piece;
    trek_status status = TREK_OK;
    int64_t size = (int64_t)trek_dtype_size(item->dtype), at = 0;
    while (status == TREK_OK && trek_sharer_next_piece(&first, item, &at, &piece))
        status = copy_own(x, item, &piece, 0, piece.count * size, to + piece.begin * size);
    return status;
}

static trek_tensor *read_item(trek_state_source *self, int k)
{
    trek_state_stream *x = (trek_state_stream *)self;
    if (!is_divided(x, k))
        return trek_optimizer_item_tensor(x->optimizer, &x->items[k]);
    trek_tensor *tensor = trek_tensor_empty(x->items[k].shape, x->items[k].dtype, trek_cpu(0));
    bool carried = is_carried(x, k, process_of(x));
    trek_status status = tensor ? TREK_OK : trek_error_status();
    if (status == TREK_OK && carried && x->queue[x->first[process_of(x)] + x->round] != k)
        status = trek_fail(TREK_ERR_STATE, "checkpoint_save: tensors are read in another order than planned");
    if (status == TREK_OK)
        status = carried ? make_round(x, tensor->data) : collect(x, k, tensor->data);
    if (status == TREK_OK)
        return tensor;
    trek_tensor_release(tensor);
    return NULL;
}

trek_status trek_state_stream_add(trek_state_stream *x, int k, const char *name, trek_state *state)
{
    trek_state_entry entry = { .source = &x->base, .item = k, .dtype = x->items[k].dtype, .shape = x->items[k].shape };
    return trek_state_add_like(state, name, &entry, &(trek_state_change){ 0 });
}
