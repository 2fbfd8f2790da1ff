/* SPDX-License-Identifier: Apache-2.0 */
/* Merging buffers at the end of a step. Running means and variances of batch
 * norm are merged as the statistics of the ranks' samples together: means by
 * count, variances with the spread of the means added (Chan, Golub and LeVeque,
 * 1979); other floating buffers are averaged by count, integers take the maximum.
 *
 * Written as first + sum of weight * difference, so that what is equal on all
 * ranks keeps its bits. */
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/step/stepper_ranks.h"
#include "nn/batch_norm_internal.h"
#include "tensor/half_internal.h"

#define BLOCK 256

static bool ends_with(const char *name, const char *end)
{
    size_t size = strlen(name), tail = strlen(end);
    return size >= tail && strcmp(name + size - tail, end) == 0 && (size == tail || name[size - tail - 1] == '.');
}

/* The running_var beside running_mean k, or -1. */
static int find_partner(char *const *names, trek_var *const *buffers, int n, int k)
{
    size_t prefix = strlen(names[k]) - strlen("running_mean");
    for (int j = 0; j < n; j++)
        if (strlen(names[j]) == prefix + strlen("running_var") && memcmp(names[j], names[k], prefix) == 0 &&
            ends_with(names[j], "running_var") && trek_same_sizes(buffers[j]->data, buffers[k]->data) &&
            buffers[j]->data->dtype == buffers[k]->data->dtype)
            return j;
    return -1;
}

void trek_buffers_plan(char *const *names, trek_var *const *buffers, int n, trek_buffer_plan *plans)
{
    for (int k = 0; k < n; k++)
        plans[k] = (trek_buffer_plan){
            trek_dtype_is_float((trek_dtype)buffers[k]->data->dtype) ? TREK_BUFFER_AVERAGE : TREK_BUFFER_MAXIMUM, -1, -1 };
    for (int k = 0; k < n; k++) {
        int partner = plans[k].merge == TREK_BUFFER_AVERAGE && ends_with(names[k], "running_mean") ? find_partner(names, buffers, n, k) : -1;
        if (partner < 0)
            continue;
        plans[k] = (trek_buffer_plan){ TREK_BUFFER_MEAN, partner, -1 };
        plans[partner] = (trek_buffer_plan){ TREK_BUFFER_PARTNER, k, -1 };
    }
}

static int find_buffer(const trek_replica *replica, const trek_var *buffer)
{
    for (int k = 0; k < replica->n_buffers; k++)
        if (replica->buffers[k] == buffer)
            return k;
    return -1;
}

void trek_ranks_plan_buffers(ranks_stepper *s)
{
    const trek_replica *first = &s->replicas[0];
    trek_buffers_plan(s->buffer_names, first->buffers, first->n_buffers, s->buffer_plans);
    for (int m = 0; m < first->n_modules; m++) {
        if (first->modules[m]->klass != &trek_sync_batch_norm_class)
            continue;
        const trek_batch_norm_layer *layer = (const trek_batch_norm_layer *)first->modules[m];
        int mean = find_buffer(first, layer->running_mean), tracked = find_buffer(first, layer->num_batches_tracked);
        if (mean < 0 || tracked < 0 || s->buffer_plans[mean].merge != TREK_BUFFER_MEAN)
            continue;
        s->buffer_plans[mean].tracked = tracked;
        s->buffer_plans[tracked].tracked = mean;
    }
}

/* --- elements of any floating dtype as f64 ---------------------------------------- */

static void load(trek_dtype dtype, const char *from, int64_t at, int64_t n, double *to)
{
    switch (dtype) {
    case TREK_F64:
        memcpy(to, (const double *)from + at, (size_t)n * sizeof *to);
        break;
    case TREK_F32:
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const float *)from)[at + i];
        break;
    case TREK_BF16:
        for (int64_t i = 0; i < n; i++)
            to[i] = trek_f32_from_bf16(((const uint16_t *)from)[at + i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            to[i] = trek_f32_from_f16(((const uint16_t *)from)[at + i]);
    }
}

static void store(trek_dtype dtype, char *to, int64_t at, int64_t n, const double *from)
{
    switch (dtype) {
    case TREK_F64:
        memcpy((double *)to + at, from, (size_t)n * sizeof *from);
        break;
    case TREK_F32:
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[at + i] = (float)from[i];
        break;
    case TREK_BF16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[at + i] = trek_bf16_from_f32((float)from[i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[at + i] = trek_f16_from_f32((float)from[i]);
    }
}

/* --- merging ------------------------------------------------------------------------- */

static void store_all(const trek_buffer_copies *c, char *const *copies, int64_t at, int64_t n, const double *values)
{
    for (int r = 0; r < c->world; r++)
        store(c->dtype, copies[r], at, n, values);
}

/* Elements [at, at + n): the ranks that have samples, weighted by them. */
static void merge_block(const trek_buffer_copies *c, int64_t at, int64_t n)
{
    double mean0[BLOCK], mean[BLOCK], value[BLOCK], spread[BLOCK] = { 0 }, var0[BLOCK], var[BLOCK];
    bool first = true;
    for (int r = 0; r < c->world; r++) {
        if (c->counts[r] == 0)
            continue;
        double weight = c->counts[r] / c->total;
        load(c->dtype, c->values[r], at, n, value);
        for (int64_t i = 0; i < n; i++) {
            mean0[i] = first ? value[i] : mean0[i];
            mean[i] = first ? value[i] : mean[i] + weight * (value[i] - mean0[i]);
            spread[i] += weight * (value[i] - mean0[i]) * (value[i] - mean0[i]);
        }
        if (c->partners) {
            load(c->dtype, c->partners[r], at, n, value);
            for (int64_t i = 0; i < n; i++) {
                var0[i] = first ? value[i] : var0[i];
                var[i] = first ? value[i] : var[i] + weight * (value[i] - var0[i]);
            }
        }
        first = false;
    }
    if (c->partners) {
        for (int64_t i = 0; i < n; i++)
            var[i] += spread[i] - (mean[i] - mean0[i]) * (mean[i] - mean0[i]);
        store_all(c, c->partners, at, n, var);
    }
    store_all(c, c->values, at, n, mean);
}

void trek_buffers_merge(const trek_buffer_copies *c)
{
    for (int64_t at = 0; at < c->count; at += BLOCK)
        merge_block(c, at, c->count - at < BLOCK ? c->count - at : BLOCK);
}

/* Buffer k of a rank where the host can read and write it. */
static trek_tensor *buffer_of(const ranks_stepper *s, int rank, int k)
{
    const trek_replica *r = &s->replicas[rank];
    return r->staged ? r->staged[k] : r->buffers[k]->data;
}

static char *data_of(const ranks_stepper *s, int rank, int k) { return buffer_of(s, rank, k)->data; }

/* Statistics of a synchronised batch norm are alike on all ranks that took part in every forward since the last
 * merge; those that had no rows in one of them do not count. Returns the total of the counts. */
static double drop_late_ranks(const ranks_stepper *s, int tracked, double *counts, double total)
{
    int64_t most = 0;
    double left = 0;
    for (int r = 0; r < s->world; r++) {
        int64_t batches = *(const int64_t *)data_of(s, r, tracked);
        most = counts[r] > 0 && batches > most ? batches : most;
    }
    for (int r = 0; r < s->world; r++) {
        if (*(const int64_t *)data_of(s, r, tracked) < most)
            counts[r] = 0;
        left += counts[r];
    }
    return left > 0 ? left : total;
}

static void merge_floats(ranks_stepper *s, int k, int partner, double total)
{
    int tracked = s->windowed ? -1 : s->buffer_plans[k].tracked; /* in windows each rank has batches of its own */
    char *values[TREK_MAX_RANKS], *partners[TREK_MAX_RANKS];
    double counts[TREK_MAX_RANKS];
    for (int r = 0; r < s->world; r++) {
        values[r] = data_of(s, r, k);
        partners[r] = partner >= 0 ? data_of(s, r, partner) : NULL;
        counts[r] = (double)s->replicas[r].samples;
    }
    if (tracked >= 0)
        total = drop_late_ranks(s, tracked, counts, total);
    trek_buffers_merge(&(trek_buffer_copies){ .dtype = (trek_dtype)buffer_of(s, 0, k)->dtype, .count = buffer_of(s, 0, k)->numel,
                                              .world = s->world, .counts = counts, .total = total, .values = values,
                                              .partners = partner >= 0 ? partners : NULL });
}

static void merge_integers(ranks_stepper *s, int k)
{
    const trek_tensor *first = buffer_of(s, 0, k);
    const void *ins[TREK_MAX_RANKS];
    void *outs[TREK_MAX_RANKS];
    for (int r = 0; r < s->world; r++)
        ins[r] = outs[r] = data_of(s, r, k);
    trek_comm_combine((trek_dtype)first->dtype, TREK_MAX, ins, s->world, outs, s->world, 0, first->numel);
}

static void merge_mine(ranks_stepper *s, int rank, int64_t total)
{
    for (int k = rank; k < s->replicas[0].n_buffers; k += s->world) {
        const trek_buffer_plan *plan = &s->buffer_plans[k];
        if (plan->merge == TREK_BUFFER_MAXIMUM && plan->tracked < 0)
            merge_integers(s, k);
        else if (plan->merge == TREK_BUFFER_MEAN || plan->merge == TREK_BUFFER_AVERAGE)
            merge_floats(s, k, plan->partner, (double)total);
        if (plan->merge == TREK_BUFFER_MEAN && plan->tracked >= 0)
            merge_integers(s, plan->tracked); /* after it, which has looked at them */
    }
}

/* --- buffers on GPUs: each rank fetches its own, and puts them back -------------------------- */

static trek_status make_staged(trek_replica *r)
{
    trek_tensor **staged = trek_calloc((size_t)r->n_buffers, sizeof *staged);
    trek_status status = staged ? TREK_OK : TREK_ERR_MEMORY;
    for (int k = 0; k < r->n_buffers && status == TREK_OK; k++) {
        const trek_tensor *b = r->buffers[k]->data;
        trek_dtype dtype = trek_dtype_is_float((trek_dtype)b->dtype) ? TREK_F64 : TREK_I64;
        if (!(staged[k] = trek_tensor_empty(trek_tensor_shape(b), dtype, trek_cpu(0))))
            status = trek_status_get();
    }
    if (status == TREK_OK) {
        r->staged = staged;
        return status;
    }
    for (int k = 0; staged && k < r->n_buffers; k++)
        trek_tensor_release(staged[k]);
    trek_free(staged);
    return status;
}

static trek_status fetch(trek_replica *r)
{
    trek_status status = r->staged ? TREK_OK : make_staged(r);
    for (int k = 0; k < r->n_buffers && status == TREK_OK; k++)
        status = trek_tensor_to_host(r->buffers[k]->data, (trek_dtype)r->staged[k]->dtype, r->staged[k]->data,
                                     (size_t)r->staged[k]->numel * trek_dtype_size((trek_dtype)r->staged[k]->dtype));
    return status;
}

static trek_status merge_staged(ranks_stepper *s, int rank, int64_t total)
{
    trek_replica *own = &s->replicas[rank];
    trek_status status = fetch(own);
    trek_comm *comm = trek_ranks_comm(s->ranks, rank);
    int32_t failed = status != TREK_OK;
    trek_status met = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_MAX, .dtype = TREK_I32,
                                                            .count = 1, .in = &failed, .out = &failed });
    if (status != TREK_OK || met != TREK_OK)
        return status != TREK_OK ? status : met;
    if (failed)
        return trek_fail(TREK_ERR_PEER, "step: another rank's buffers could not be read");
    merge_mine(s, rank, total);
    status = trek_comm_barrier(comm);
    for (int k = 0; k < own->n_buffers && status == TREK_OK; k++)
        status = trek_tensor_copy_from(own->buffers[k]->data, own->staged[k]);
    return status;
}

trek_status trek_ranks_merge_buffers(ranks_stepper *s, int rank)
{
    int64_t total = 0;
    for (int r = 0; r < s->world; r++)
        total += s->replicas[r].samples;
    trek_replica *own = &s->replicas[rank];
    if (total == 0 || own->n_buffers == 0)
        return TREK_OK;
    if (!s->on_host)
        return merge_staged(s, rank, total);
    merge_mine(s, rank, total);
    for (int k = 0; k < own->n_buffers; k++)
        trek_tensor_bump(own->buffers[k]->data);
    return TREK_OK;
}
