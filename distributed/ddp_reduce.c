/* SPDX-License-Identifier: Apache-2.0 */
/* Bringing gradients together. The ranks first tell each other their weights, how they
 * are, and which parameters they have gradients of; so all know the same before
 * anything is sent. A rank's gradients are multiplied by its share of the weights (or
 * zeroed, where that is 0) and summed in buckets, each rank's calls in one order.
 *
 * With overlap the buckets go during the backward pass, as it completes them; which
 * parameters had gradients is then told afterwards. */
#include <math.h>
#include <string.h>

#include "autograd/ops.h"
#include "distributed/ddp_internal.h"
#include "tensor/trace.h"

/* --- a gradient's places --------------------------------------------------------------------- */

static trek_leaf *leaf_of(const trek_ddp_param *p) { return p->var->leaf; }
static bool has_grad(const trek_ddp_param *p) { return leaf_of(p) && leaf_of(p)->grad && leaf_of(p)->has_grad; }

/* Nobody else looks at its memory: two leaves may have been given one gradient. */
static bool is_alone(const trek_var *grad)
{
    const trek_tensor *t = grad->data;
    return atomic_load_explicit(&grad->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->storage->refs, memory_order_acquire) == 1 && !t->storage->parent && t->contiguous;
}

/* The variable that is, or will be, the parameter's gradient; NULL: a spare one is needed. The same from prepare to settle. */
static trek_var *target_of(const trek_ddp_param *p)
{
    const trek_leaf *leaf = leaf_of(p);
    if (p->spare)
        return p->spare;
    return leaf && leaf->grad && (leaf->grad_in_arena || is_alone(leaf->grad)) ? leaf->grad : NULL;
}

static trek_status ensure_spare(trek_ddp_param *p)
{
    if (!trek_var_leaf(p->var))
        return trek_status_get();
    if (target_of(p))
        return TREK_OK;
    const trek_tensor *like = p->var->data;
    trek_tensor *made = trek_tensor_make(like->ndim, like->sizes, (trek_dtype)like->dtype, like->device);
    p->spare = made ? trek_var_new(made, false) : NULL;
    trek_tensor_release(made);
    return p->spare ? TREK_OK : trek_status_get();
}

static bool trains(const trek_ddp_param *p) { return p->var->requires_grad; }

/* Whether the gradients of [first, end) lie in memory as they are sent. ahead: before the pass that makes them. */
static bool lies_in_place(const trek_ddp_replica *r, int first, int end, bool ahead)
{
    const trek_tensor *start = NULL;
    int64_t offset = 0;
    for (int k = first; k < end; k++) {
        const trek_ddp_param *p = &r->params[k];
        if (!trains(p))
            continue;
        const trek_leaf *leaf = leaf_of(p);
        bool in_arena = leaf && leaf->grad && leaf->grad_in_arena;
        const trek_var *target = target_of(p);
        trek_dtype wide = r->parts[p->part].wide;
        if (!target || (trek_dtype)target->data->dtype != wide || !target->data->contiguous)
            return false;
        if (!in_arena)
            return end == first + 1 && !ahead;
        if (!start) {
            start = target->data;
            offset = p->offset;
        }
        if (target->data->storage->parent != start->storage->parent ||
            target->data->data != start->data + (p->offset - offset) * (int64_t)trek_dtype_size(wide))
            return false;
    }
    return true;
}

/* --- before: what can fail, and what the others must know --------------------------------------- */

static trek_status make_staging(trek_ddp_replica *r, int p)
{
    trek_ddp_part *part = &r->parts[p];
    if (part->staging)
        return TREK_OK;
    part->staging = trek_tensor_zeros(trek_shape_make(1, &part->count), part->wide, r->device);
    trek_status status = part->staging ? TREK_OK : trek_status_get();
    for (int k = 0; k < r->n_params && status == TREK_OK; k++) {
        trek_ddp_param *param = &r->params[k];
        if (param->part != p)
            continue;
        param->slot = trek_tensor_make_part(part->staging, (size_t)param->offset * trek_dtype_size(part->wide),
                                            trek_tensor_shape(param->var->data), part->wide);
        status = param->slot ? TREK_OK : trek_status_get();
    }
    return status;
}

static void drop_staging(trek_ddp_replica *r, int p)
{
    for (int k = 0; k < r->n_params && r->parts[p].staging; k++)
        if (r->params[k].part == p) {
            trek_tensor_release(r->params[k].slot);
            r->params[k].slot = NULL;
        }
    trek_tensor_release(r->parts[p].staging);
    r->parts[p].staging = NULL;
}

static void drop_spares(trek_ddp_replica *r)
{
    for (int k = 0; k < r->n_params; k++) {
        trek_var_release(r->params[k].spare);
        r->params[k].spare = NULL;
    }
}

static trek_status prepare(trek_ddp_replica *r, bool ahead)
{
    bool needed[TREK_DTYPE_COUNT] = { false };
    trek_status status = trek_status_get();
    for (int k = 0; k < r->n_params && status == TREK_OK; k++)
        if (trains(&r->params[k]))
            status = ahead ? trek_var_leaf(r->params[k].var) ? TREK_OK : trek_status_get() : ensure_spare(&r->params[k]);
    for (int b = 0; b < r->buckets.n && status == TREK_OK; b++)
        if (!lies_in_place(r, r->buckets.list[b].first, r->buckets.list[b].end, ahead))
            needed[r->buckets.list[b].part] = true;
    for (int p = 0; p < r->n_parts && status == TREK_OK; p++) {
        if (needed[p] && (status = make_staging(r, p)) != TREK_OK)
            drop_staging(r, p);
        else if (!needed[p])
            drop_staging(r, p); /* an optimizer has moved the gradients since */
    }
    return status;
}

static const trek_ddp_word *word_of(const trek_ddp_replica *r, int rank)
{
    return (const trek_ddp_word *)(const void *)(r->words + (size_t)rank * r->word_bytes);
}

static const unsigned char *flags_of(const trek_ddp_word *word) { return (const unsigned char *)(word + 1); }

static trek_status check_frozen(const trek_ddp_replica *r)
{
    for (int k = r->n_params - 1; k >= 0; k--) /* by order of registration */
        for (int q = 1; q < r->world; q++) {
            bool first = flags_of(word_of(r, 0))[k] & TREK_DDP_TRAINS, other = flags_of(word_of(r, q))[k] & TREK_DDP_TRAINS;
            if (first != other)
                return trek_fail(TREK_ERR_ARGUMENT, "ddp: parameter \"%s\" is frozen on rank %d, but not on rank %d",
                                 r->params[k].name, first ? q : 0, first ? 0 : q);
        }
    return TREK_OK;
}

/* All ranks come to the same result. *factor: this rank's share of the weights. */
static trek_status meet(trek_ddp_replica *r, double weight, trek_status own, double *factor)
{
    trek_ddp_word *word = (trek_ddp_word *)(void *)r->word;
    unsigned char *flags = (unsigned char *)(word + 1);
    *word = (trek_ddp_word){ .weight = weight, .status = own };
    for (int k = 0; k < r->n_params; k++)
        flags[k] = trains(&r->params[k]) ? TREK_DDP_TRAINS | (has_grad(&r->params[k]) ? TREK_DDP_HAS : 0) : 0;
    trek_status status = trek_comm_run(
        r->comm,
        (trek_comm_call){
            .kind = TREK_COMM_ALL_GATHER, .dtype = TREK_U8, .count = (int64_t)r->word_bytes, .in = r->word, .out = r->words });
    if (own != TREK_OK || status != TREK_OK)
        return own != TREK_OK ? own : status;
    double total = 0;
    for (int q = 0; q < r->world; q++) {
        if (word_of(r, q)->status != TREK_OK)
            return trek_fail(TREK_ERR_PEER, "ddp: rank %d failed", q);
        total += word_of(r, q)->weight;
    }
    if (!(total > 0) || !isfinite(total))
        return trek_fail(TREK_ERR_ARGUMENT, "ddp: the ranks' counts sum to %s", total > 0 ? "infinity" : "0");
    *factor = weight / total;
    for (int k = 0; k < r->n_params; k++) {
        r->any[k] = false;
        for (int q = 0; q < r->world; q++)
            r->any[k] |= word_of(r, q)->weight > 0 && (flags_of(word_of(r, q))[k] & TREK_DDP_HAS);
    }
    return check_frozen(r);
}

/* --- sending ----------------------------------------------------------------------------------------- */

typedef struct sending {
    trek_ddp_replica *r;
    double factor;
    bool ahead;             /* during backward: */
    bool starts;            /* calls are started, not waited for */
    trek_status status;     /* the first failure; sending goes on, so that nobody waits */
} sending;

static void note(sending *s, trek_status status)
{
    if (s->status == TREK_OK)
        s->status = status;
}

static void zero(const trek_ddp_replica *r, trek_tensor *t)
{
    if (r->backend->host_accessible)
        memset(t->data, 0, (size_t)t->numel * trek_dtype_size((trek_dtype)t->dtype));
    else
        trek_tensor_release(trek_tensor_fill(t, 0));
}

static void scale(const trek_ddp_replica *r, trek_dtype dtype, void *data, int64_t count, double factor)
{
    if (factor != 1)
        r->backend->scale(dtype, data, count, factor);
}

/* Parameters side by side, or a piece of one. */
typedef struct stretch {
    int first, end;
    int64_t begin, count;   /* elements */
} stretch;

/* This rank's share of the gradients comes to where it is sent from; of one in pieces, with the first of them. */
static void *contribute(sending *s, const stretch *x)
{
    trek_ddp_replica *r = s->r;
    bool in_place = lies_in_place(r, x->first, x->end, s->ahead);
    const trek_ddp_param *start = &r->params[x->first];
    trek_dtype wide = r->parts[start->part].wide;
    for (int k = x->first; k < x->end && x->begin == start->offset; k++) {
        const trek_ddp_param *p = &r->params[k];
        trek_tensor *to = in_place ? target_of(p)->data : p->slot;
        if (!has_grad(p) || s->factor == 0)
            zero(r, to);
        else if (to != leaf_of(p)->grad->data)
            note(s, trek_tensor_copy_from(to, leaf_of(p)->grad->data));
    }
    char *data = (in_place ? target_of(start)->data
                  : start->slot)->data + (x->begin - start->offset) * (int64_t)trek_dtype_size(wide);
    if (s->factor > 0)
        scale(r, wide, data, x->count, s->factor);
    return data;
}

static void send_stretch(sending *s, const stretch *x)
{
    trek_ddp_replica *r = s->r;
    trek_dtype wide = r->parts[r->params[x->first].part].wide;
    if (x->count == 0)
        return;
    int64_t start = trek_trace_enter("bucket");
    void *data = contribute(s, x);
    trek_comm_call call = { .kind = TREK_COMM_ALL_REDUCE, .op = TREK_SUM, .dtype = wide, .count = x->count, .in = data,
                            .out = data,
                            .on_device = r->device.type != TREK_CPU };
    note(s, s->starts ? trek_comm_start(r->comm, call) : trek_comm_run(r->comm, call));
    trek_trace_end("bucket", start, x->count * (int64_t)trek_dtype_size(wide));
}

static bool is_sent(const sending *s, int k) { return s->ahead ? trains(&s->r->params[k]) : s->r->any[k]; }

/* The stretch of a bucket that begins with parameter k: as far as parameters are sent, or not sent, alike. */
static stretch stretch_at(const sending *s, const trek_bucket *bucket, int k)
{
    const trek_ddp_param *params = s->r->params;
    int end = k + 1;
    while (end < bucket->end && is_sent(s, k) && is_sent(s, end))
        end++;
    if (bucket->count < params[bucket->first].count) /* a piece */
        return (stretch){ k, end, bucket->begin, bucket->count };
    return (stretch){ k, end, params[k].offset, params[end - 1].offset + params[end - 1].count - params[k].offset };
}

static void send_bucket(const trek_bucket *bucket, void *arg)
{
    sending *s = arg;
    for (int k = bucket->first; k < bucket->end;) {
        stretch x = stretch_at(s, bucket, k);
        if (is_sent(s, k))
            send_stretch(s, &x);
        k = x.end;
    }
}

/* --- afterwards ----------------------------------------------------------------------------------------- */

static trek_status settle_run(const sending *s, int first, int end)
{
    trek_ddp_replica *r = s->r;
    bool in_place = lies_in_place(r, first, end, s->ahead);
    trek_status status = TREK_OK;
    for (int k = first; k < end; k++) {
        trek_ddp_param *p = &r->params[k];
        trek_leaf *leaf = leaf_of(p);
        if (!r->any[k]) {
            if (has_grad(p))
                trek_var_zero_grad(p->var); /* of a rank that does not count */
            continue;
        }
        trek_var *target = target_of(p);
        if (!in_place && status == TREK_OK)
            status = trek_tensor_copy_from(target->data, p->slot);
        else if (in_place)
            trek_tensor_bump(target->data);
        if (leaf->grad != target) {
            trek_var_release(leaf->grad);
            leaf->grad = target;
            p->spare = NULL;
        }
        leaf->has_grad = true;
    }
    return status;
}

/* As they were sent: whether a stretch lay in place is found again. */
static trek_status settle(const sending *s)
{
    trek_ddp_replica *r = s->r;
    trek_status status = TREK_OK;
    for (int b = 0; b < r->buckets.n; b++) {
        const trek_bucket *bucket = &r->buckets.list[b];
        for (int k = bucket->first; k < bucket->end;) {
            stretch x = stretch_at(s, bucket, k);
            bool concerned = is_sent(s, k) || (trains(&r->params[k]) && has_grad(&r->params[k]));
            bool last = x.begin + x.count == r->params[x.end - 1].offset + r->params[x.end - 1].count; /* of its pieces */
            trek_status done = concerned && last ? settle_run(s, k, x.end) : TREK_OK;
            status = status != TREK_OK ? status : done;
            k = x.end;
        }
    }
    return status;
}

/* A wrapper whose refresh failed has no lists; it only tells the others. */
static trek_status refuse(trek_ddp_replica *r)
{
    trek_status status = trek_status_get();
    if (status == TREK_OK)
        status = trek_fail(TREK_ERR_STATE, "ddp: the replicas could not be listed; see trek_ddp_refresh");
    if (r->world > 1)
        trek_comm_run(r->comm, (trek_comm_call){ .kind = TREK_COMM_INVALID });
    return status;
}

static trek_status reduce_alone(double count, trek_status own)
{
    if (own == TREK_OK && count == 0)
        own = trek_fail(TREK_ERR_ARGUMENT, "ddp: the ranks' counts sum to 0");
    return own;
}

/* A rank's count; seeded: its gradients have their share already, a rank with 0 among them. */
typedef struct weighing {
    double count;
    bool seeded;
} weighing;

static trek_status reduce_replica(trek_ddp_replica *r, weighing weight, trek_status own)
{
    if (r->world == 1)
        return reduce_alone(weight.count, own);
    if (!r->words)
        return refuse(r);
    if (own == TREK_OK)
        own = prepare(r, false);
    sending s = { .r = r };
    int64_t start = trek_trace_enter("reduce");
    trek_status status = meet(r, weight.seeded ? 1 : weight.count, own, &s.factor);
    if (weight.seeded)
        s.factor = 1;
    trek_buckets_begin(&r->buckets);
    if (status == TREK_OK)
        trek_buckets_rest(&r->buckets, send_bucket, &s);
    if (status == TREK_OK)
        status = s.status;
    if (status == TREK_OK)
        status = settle(&s);
    drop_spares(r);
    trek_trace_end("reduce", start, 0);
    return status;
}

/* --- the calls ---------------------------------------------------------------------------------------------- */

static trek_status reduce(trek_ddp *ddp, int k, void *arg)
{
    double count;
    trek_status own = trek_ddp_count(*(const double *const *)arg, k, &count), before = trek_status_get();
    return reduce_replica(&ddp->replicas[k], (weighing){ count, false }, before != TREK_OK ? before : own);
}

trek_status trek_ddp_reduce_gradients(trek_ddp *ddp)
{
    if (!ddp)
        return trek_fail_missing("ddp_reduce_gradients", "wrapper");
    return trek_ddp_call(ddp, reduce, &(const double *){ NULL });
}

trek_status trek_ddp_reduce_gradients_weighted(trek_ddp *ddp, const double *counts)
{
    if (!ddp)
        return trek_fail_missing("ddp_reduce_gradients_weighted", "wrapper");
    if (!counts && trek_status_get() == TREK_OK)
        trek_fail_missing("ddp_reduce_gradients_weighted", "counts"); /* this rank still takes part */
    return trek_ddp_call(ddp, reduce, &counts);
}

/* --- backward with buckets under it ------------------------------------------------------------------------------ */

static void leaf_complete(int k, void *arg)
{
    sending *s = arg;
    trek_buckets_complete(&s->r->buckets, k, send_bucket, s);
}

/* The pass over this replica's parameters alone, of factor * loss. */
static trek_status run_pass(trek_ddp_replica *r, trek_var *loss, double factor, void (*complete)(int k, void *arg), void *arg)
{
    if (!loss)
        return trek_fail_missing("ddp_backward", "loss");
    trek_backward_watch watch = {
        .leaves = r->leaves, .n_leaves = r->n_params, .only_these = true, .complete = complete, .arg = arg
    };
    if (factor == 1)
        return trek_backward_watched(&loss, NULL, 1, NULL, &watch);
    trek_scope scope = trek_scope_begin();
    const trek_tensor *y = loss->data;
    trek_var *seed = scope.depth ? trek_var_from(trek_tensor_full(factor, trek_tensor_shape(y), (trek_dtype)y->dtype, y->device))
        : NULL;
    trek_status status = seed ? trek_backward_watched(&loss, &seed, 1, NULL, &watch) : trek_status_get();
    trek_scope_end(scope);
    return status;
}

/* What earlier passes left, by the factor; with 0: dropped, never multiplied. */
static trek_status scale_left(trek_ddp_replica *r, double factor)
{
    trek_status status = TREK_OK;
    trek_no_grad_begin();
    for (int k = 0; k < r->n_params && status == TREK_OK && factor != 1; k++) {
        const trek_ddp_param *p = &r->params[k];
        if (!has_grad(p))
            continue;
        trek_scope scope = trek_scope_begin();
        trek_var *scaled = scope.depth && factor > 0 ? trek_mul_scalar(leaf_of(p)->grad, factor) : NULL;
        if (factor == 0)
            trek_var_zero_grad(p->var);
        else
            status = scaled ? trek_var_set_grad(p->var, scaled) : trek_status_get();
        trek_scope_end(scope);
    }
    trek_no_grad_end();
    return status;
}

/* Layers that meet mix the ranks' gradients in their backward: each rank's has its share of the weights from the loss on, and
 * the others wait for every rank's pass. */
static trek_status backward_meeting(trek_ddp_replica *r, trek_var *loss, double count, trek_status own)
{
    double factor = 0;
    if (own == TREK_OK && count > 0 && !loss)
        own = trek_fail_missing("ddp_backward", "loss");
    trek_status status = meet(r, count, own, &factor);
    if (status != TREK_OK)
        return status;
    own = scale_left(r, factor);
    if (own == TREK_OK && loss)
        own = run_pass(r, loss, factor, NULL, NULL);
    return reduce_replica(r, (weighing){ count, true }, own);
}

static trek_status backward_overlapped(trek_ddp_replica *r, trek_var *loss, double count, trek_status own)
{
    if (own == TREK_OK && count > 0 && !loss)
        own = trek_fail_missing("ddp_backward", "loss");
    if (own == TREK_OK)
        own = prepare(r, true);
    sending s = { .r = r, .ahead = true, .starts = true };
    trek_status status = meet(r, count, own, &s.factor);
    if (status != TREK_OK)
        return status;
    trek_buckets_begin(&r->buckets);
    own = count > 0 ? run_pass(r, loss, 1, leaf_complete, &s) : TREK_OK;
    trek_buckets_rest(&r->buckets, send_bucket, &s); /* of a pass that failed, or did not run */
    note(&s, trek_comm_finish(r->comm));
    for (int k = 0; k < r->n_params && own == TREK_OK; k++)
        if (trains(&r->params[k]))
            own = ensure_spare(&r->params[k]);
    if (own == TREK_OK)
        own = s.status;
    status = meet(r, count, own, &s.factor);
    if (status == TREK_OK)
        status = settle(&s);
    drop_spares(r);
    return status;
}

typedef struct backward_call {
    trek_var *loss;
    double count;
    bool gathered; /* the pass has been run: through trek_ddp_forward */
} backward_call;

static trek_status backward(trek_ddp *ddp, int k, void *arg)
{
    const backward_call *c = arg;
    trek_ddp_replica *r = &ddp->replicas[k];
    double count;
    trek_status own = trek_ddp_count(&c->count, 0, &count);
    if (r->world > 1 && !r->words)
        return refuse(r);
    if (trek_status_get() != TREK_OK)
        own = trek_status_get();
    if (ddp->overlap && !c->gathered)
        return backward_overlapped(r, c->loss, count, own);
    if (r->world > 1 && r->model->meets && !c->gathered)
        return backward_meeting(r, c->loss, count, own);
    if (own == TREK_OK && count > 0 && !c->gathered)
        own = run_pass(r, c->loss, 1, NULL, NULL);
    return reduce_replica(r, (weighing){ count, false }, own);
}

trek_status trek_ddp_backward(trek_ddp *ddp, trek_var *loss)
{
    if (!ddp)
        return trek_fail_missing("ddp_backward", "wrapper");
    backward_call call = { loss, 1, false };
    if (!ddp->ranks || trek_ranks_rank_here(ddp->ranks) >= 0)
        return trek_ddp_call(ddp, backward, &call);
    call.gathered = true;
    trek_status status = run_pass(&ddp->replicas[0], loss, 1, NULL, NULL);
    return status == TREK_OK ? trek_ddp_call(ddp, backward, &call) : status;
}

trek_status trek_ddp_backward_weighted(trek_ddp *ddp, trek_var *loss, double count)
{
    if (!ddp)
        return trek_fail_missing("ddp_backward_weighted", "wrapper");
    if (ddp->ranks && trek_ranks_rank_here(ddp->ranks) < 0)
        return trek_fail(TREK_ERR_STATE, "ddp_backward_weighted: over several replicas, inside trek_ranks_run only");
    return trek_ddp_call(ddp, backward, &(backward_call){ loss, count, false });
}
