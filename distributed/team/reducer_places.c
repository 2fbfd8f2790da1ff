/* SPDX-License-Identifier: Apache-2.0 */
/* Where the gradients of a reducer's parameters lie before, during and after a reduction. */
#include <string.h>

#include "distributed/team/reducer.h"
#include "tensor/memory_internal.h"

/* --- a gradient's places --------------------------------------------------------------------- */

bool trek_item_has_grad(const trek_reducer_item *item)
{
    const trek_leaf *leaf = item->var->leaf;
    return leaf && leaf->grad && leaf->has_grad;
}

/* Returns whether nothing else uses its memory: two leaves may have been given one gradient. */
static bool is_alone(const trek_var *grad)
{
    const trek_tensor *t = grad->data;
    return atomic_load_explicit(&grad->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->storage->refs, memory_order_acquire) == 1 && !t->storage->parent && t->contiguous;
}

static bool is_in_arena(const trek_leaf *leaf) { return leaf && leaf->grad && leaf->grad_in_arena; }

/* Returns the variable that is, or will be, the parameter's gradient; NULL: a spare one is needed. It does not change
 * until the reduction is settled. */
static trek_var *target_of(const trek_reducer_item *item)
{
    const trek_leaf *leaf = item->var->leaf;
    if (item->spare)
        return item->spare;
    return is_in_arena(leaf) || (leaf && leaf->grad && is_alone(leaf->grad)) ? leaf->grad : NULL;
}

/* ahead: before the pass that makes them. */
static bool lie_in_place(const trek_reducer *r, int first, int end, bool ahead)
{
    const trek_tensor *start = NULL;
    int64_t offset = 0;
    if (r->apart)
        return false;
    for (int k = first; k < end; k++) {
        const trek_reducer_item *item = &r->items[k];
        if (!trek_item_trains(item))
            continue;
        const trek_var *target = target_of(item);
        trek_dtype wide = r->parts[item->part].wide;
        if (!target || (trek_dtype)target->data->dtype != wide || !target->data->contiguous)
            return false;
        if (!is_in_arena(item->var->leaf))
            return end == first + 1 && !ahead;
        if (!start) {
            start = target->data;
            offset = item->offset;
        }
        if (target->data->storage->parent != start->storage->parent ||
            target->data->data != start->data + (item->offset - offset) * (int64_t)trek_dtype_size(wide))
            return false;
    }
    return true;
}

/* --- before ---------------------------------------------------------------------------------- */

static trek_status make_spare(trek_reducer_item *item)
{
    if (!trek_var_leaf(item->var))
        return trek_error_status();
    if (target_of(item))
        return TREK_OK;
    const trek_tensor *like = item->var->data;
    trek_tensor *made = trek_tensor_make(like->ndim, like->sizes, (trek_dtype)like->dtype, like->device);
    item->spare = made ? trek_var_new(made, false) : NULL;
    trek_tensor_release(made);
    return item->spare ? TREK_OK : trek_error_status();
}

trek_status trek_reducer_make_spares(trek_reducer *r)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < r->n && status == TREK_OK; k++)
        if (trek_item_trains(&r->items[k]))
            status = make_spare(&r->items[k]);
    return status;
}

void trek_reducer_drop_spares(trek_reducer *r)
{
    for (int k = 0; k < r->n; k++) {
        trek_var_release(r->items[k].spare);
        r->items[k].spare = NULL;
    }
}

static void drop_staging(trek_reducer *r, int p)
{
    for (int k = 0; k < r->n && r->parts[p].grads; k++)
        if (r->items[k].part == p) {
            trek_tensor_release(r->items[k].slot);
            r->items[k].slot = NULL;
        }
    trek_tensor_release(r->parts[p].grads);
    r->parts[p].grads = NULL;
}

static trek_status make_staging(trek_reducer *r, int p)
{
    trek_arena_part *part = &r->parts[p];
    if (part->grads)
        return TREK_OK;
    part->grads = trek_comm_zeros(r->home, trek_shape_make(&part->count, 1), part->wide, r->device);
    trek_status status = part->grads ? TREK_OK : trek_error_status();
    for (int k = 0; k < r->n && status == TREK_OK; k++) {
        trek_reducer_item *item = &r->items[k];
        if (item->part != p)
            continue;
        item->slot = trek_tensor_make_part(part->grads, (size_t)item->offset * trek_dtype_size(part->wide),
                                           trek_tensor_shape(item->var->data), part->wide);
        status = item->slot ? TREK_OK : trek_error_status();
    }
    if (status != TREK_OK)
        drop_staging(r, p);
    return status;
}

trek_status trek_reducer_prepare(trek_reducer *r, bool ahead)
{
    bool needed[TREK_DTYPE_COUNT] = { false };
    trek_status status = trek_error_status();
    if (status == TREK_OK && !ahead)
        status = trek_reducer_make_spares(r);
    for (int k = 0; k < r->n && ahead && status == TREK_OK; k++)
        if (trek_item_trains(&r->items[k]) && !trek_var_leaf(r->items[k].var))
            status = trek_error_status();
    for (int b = 0; b < r->buckets.n && status == TREK_OK; b++) {
        const trek_bucket *bucket = &r->buckets.list[b];
        needed[bucket->part] |= !lie_in_place(r, bucket->first, bucket->end, ahead);
    }
    for (int p = 0; p < r->n_parts && status == TREK_OK; p++) {
        if (needed[p])
            status = make_staging(r, p);
        else
            drop_staging(r, p); /* an optimizer has moved the gradients since */
    }
    return status;
}

/* --- during ---------------------------------------------------------------------------------- */

static void zero(const trek_reducer *r, trek_tensor *t)
{
    if (r->backend->host_accessible)
        memset(t->data, 0, (size_t)t->numel * trek_dtype_size((trek_dtype)t->dtype));
    else
        trek_tensor_release(trek_tensor_fill(t, 0));
}

trek_status trek_reducer_collect(trek_reducer *r, int first, int end)
{
    trek_status status = TREK_OK;
    bool in_place = lie_in_place(r, first, end, r->now.ahead);
    for (int k = first; k < end; k++) {
        trek_reducer_item *item = &r->items[k];
        item->in_place = in_place;
        trek_tensor *to = in_place ? target_of(item)->data : item->slot;
        if (!trek_item_has_grad(item) || r->now.factor == 0)
            zero(r, to);
        else if (to != item->var->leaf->grad->data && status == TREK_OK)
            status = trek_tensor_copy_from(to, item->var->leaf->grad->data);
    }
    return status;
}

char *trek_reducer_place(const trek_reducer *r, int k)
{
    const trek_reducer_item *item = &r->items[k];
    return item->in_place ? target_of(item)->data->data : item->slot->data;
}

/* --- after ----------------------------------------------------------------------------------- */

static trek_status settle(trek_reducer_item *item)
{
    trek_leaf *leaf = item->var->leaf;
    trek_var *target = target_of(item);
    trek_status status = TREK_OK;
    if (item->in_place)
        trek_tensor_bump(target->data);
    else
        status = trek_tensor_copy_from(target->data, item->slot);
    if (leaf->grad != target) {
        trek_var_release(leaf->grad);
        leaf->grad = target;
        item->spare = NULL;
    }
    leaf->has_grad = true;
    return status;
}

trek_status trek_reducer_settle(trek_reducer *r)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < r->n; k++) {
        trek_reducer_item *item = &r->items[k];
        trek_status done = trek_item_trains(item) && r->any[k] ? settle(item) : TREK_OK;
        status = status != TREK_OK ? status : done;
    }
    return status;
}
