/* SPDX-License-Identifier: Apache-2.0 */
/* Handing out the batches of an epoch. */
#include "distributed/rounds/dispatch.h"

#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

int64_t trek_allotment_batches(const trek_allotment *allotment)
{
    int64_t batches = 0;
    for (int k = 0; k < allotment->n; k++)
        batches += allotment->of[k].end - allotment->of[k].first;
    return batches;
}

static trek_status push(trek_dispatch *d, trek_stretch stretch)
{
    if (d->n == d->capacity) {
        int capacity = d->capacity ? 2 * d->capacity : 8;
        trek_stretch *left = trek_realloc(d->left, (size_t)capacity * sizeof *left);
        if (!left)
            return trek_error_status();
        d->left = left;
        d->capacity = capacity;
    }
    d->left[d->n++] = stretch;
    return TREK_OK;
}

trek_status trek_dispatch_begin(trek_dispatch *d, int64_t first, int64_t end)
{
    d->n = 0;
    return first < end ? push(d, (trek_stretch){ first, end }) : TREK_OK;
}

int64_t trek_dispatch_left(const trek_dispatch *d)
{
    int64_t left = 0;
    for (int k = 0; k < d->n; k++)
        left += d->left[k].end - d->left[k].first;
    return left;
}

void trek_dispatch_take(trek_dispatch *d, int64_t count, trek_allotment *to)
{
    *to = (trek_allotment){ 0 };
    while (count > 0 && d->n > 0 && to->n < TREK_ALLOTMENT_STRETCHES) {
        trek_stretch *top = &d->left[d->n - 1], *part = &to->of[to->n++];
        part->first = top->first;
        part->end = top->end - top->first < count ? top->end : top->first + count;
        count -= part->end - part->first;
        top->first = part->end;
        d->n -= top->first == top->end;
    }
}

trek_status trek_dispatch_give_back(trek_dispatch *d, const trek_allotment *from)
{
    trek_status status = TREK_OK;
    for (int k = from->n - 1; k >= 0 && status == TREK_OK; k--)
        status = push(d, from->of[k]);
    return status;
}

void trek_dispatch_drop(trek_dispatch *d) { d->n = 0; }

void trek_dispatch_free(trek_dispatch *d)
{
    trek_free(d->left);
    *d = (trek_dispatch){ 0 };
}
