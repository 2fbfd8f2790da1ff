/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cuda/layout.cuh"

trek_plan trek_plan_begin(const trek_tensor *out)
{
    trek_plan p;
    p.operands = 1;
    p.ndim = out->ndim;
    for (int d = 0; d < out->ndim; d++) {
        p.sizes[d] = out->sizes[out->ndim - 1 - d];
        p.strides[0][d] = out->strides[out->ndim - 1 - d];
    }
    p.base[0] = 0;
    return p;
}

void trek_plan_add(trek_plan *p, const trek_tensor *t)
{
    int k = p->operands++;
    for (int d = 0; d < p->ndim; d++) {
        int own = t->ndim - 1 - d;
        p->strides[k][d] = own < 0 || t->sizes[own] == 1 ? 0 : t->strides[own];
    }
    p->base[k] = 0;
}

void trek_plan_add_strides(trek_plan *p, const int64_t *strides)
{
    int k = p->operands++;
    for (int d = 0; d < p->ndim; d++)
        p->strides[k][d] = strides[p->ndim - 1 - d];
    p->base[k] = 0;
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

static void swap_dims(trek_plan *p, int d, int e)
{
    int64_t size = p->sizes[d];
    p->sizes[d] = p->sizes[e];
    p->sizes[e] = size;
    for (int k = 0; k < p->operands; k++) {
        int64_t stride = p->strides[k][d];
        p->strides[k][d] = p->strides[k][e];
        p->strides[k][e] = stride;
    }
}

void trek_plan_finish(trek_plan *p, bool sort)
{
    for (int d = 1; sort && d < p->ndim; d++)
        for (int e = d; e > 0 && magnitude(p->strides[0][e]) < magnitude(p->strides[0][e - 1]); e--)
            swap_dims(p, e, e - 1);
    int last = -1;
    for (int d = 0; d < p->ndim; d++) {
        if (p->sizes[d] == 1)
            continue;
        bool merge = last >= 0;
        for (int k = 0; merge && k < p->operands; k++)
            merge = p->strides[k][d] == p->strides[k][last] * p->sizes[last];
        if (merge) {
            p->sizes[last] *= p->sizes[d];
            continue;
        }
        p->sizes[++last] = p->sizes[d];
        for (int k = 0; k < p->operands; k++)
            p->strides[k][last] = p->strides[k][d];
    }
    if (last < 0) {
        p->sizes[++last] = 1;
        for (int k = 0; k < p->operands; k++)
            p->strides[k][last] = k == 0 ? 1 : 0;
    }
    p->ndim = last + 1;
}

int64_t trek_plan_numel(const trek_plan *p)
{
    int64_t numel = 1;
    for (int d = 0; d < p->ndim; d++)
        numel *= p->sizes[d];
    return numel;
}

bool trek_plan_narrow(const trek_plan *p)
{
    const int64_t limit = (int64_t)1 << 31;
    if (trek_plan_numel(p) >= limit)
        return false;
    for (int k = 0; k < p->operands; k++) {
        int64_t reach = 0;
        for (int d = 0; d < p->ndim; d++)
            reach += (p->sizes[d] - 1) * magnitude(p->strides[k][d]);
        if (reach >= limit)
            return false;
    }
    return true;
}

trek_plan trek_plan_cut(trek_plan *p)
{
    int largest = 0; /* the largest reach of any operand or of `places` */
    int64_t most = -1;
    for (int d = 0; d < p->ndim; d++) {
        int64_t reach = p->sizes[d];
        for (int k = 0; k < p->operands; k++)
            reach = p->sizes[d] * magnitude(p->strides[k][d]) > reach ? p->sizes[d] * magnitude(p->strides[k][d]) : reach;
        if (p->sizes[d] > 1 && reach > most)
            most = reach, largest = d;
    }
    trek_plan rest = *p;
    int64_t half = p->sizes[largest] / 2;
    half = half >= 64 ? half / 64 * 64 : half; /* so that vectors stay whole and aligned */
    p->sizes[largest] = half;
    rest.sizes[largest] -= half;
    for (int k = 0; k < p->operands; k++)
        rest.base[k] += half * p->strides[k][largest];
    return rest;
}

trek_divider trek_divider_of(int64_t divisor)
{
    trek_divider d = { (uint32_t)divisor, 0, 0 };
    while (((int64_t)1 << d.shift) < divisor)
        d.shift++;
    d.factor = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)divisor)) / (uint64_t)divisor + 1);
    return d;
}
