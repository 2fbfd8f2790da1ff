/* SPDX-License-Identifier: Apache-2.0 */
/* Merges the buffers of all ranks. Running means and variances of batch norm are merged as the statistics of all
 * ranks' samples together: means by count, variances with the spread of the means added (Chan, Golub and LeVeque,
 * 1979). Other floating buffers are averaged by count; integers take the maximum.
 *
 * The formulas are first + sum of weight * difference, so that values that are equal on all ranks keep their bits. */
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/comm/comm_internal.h"
#include "distributed/team/replica.h"
#include "nn/module_internal.h"
#include "tensor/half_internal.h"

#define BLOCK 256

static bool ends_with(const char *name, const char *end)
{
    size_t size = strlen(name), tail = strlen(end);
    return size >= tail && strcmp(name + size - tail, end) == 0 && (size == tail || name[size - tail - 1] == '.');
}

/* Returns the index of the running_var that belongs to running_mean k, or -1. */
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

static int find_buffer(const trek_replica *replica, const trek_module *module, const char *name)
{
    for (int own = 0; own < module->own->n_buffers; own++)
        for (int k = 0; k < replica->n_buffers; k++)
            if (replica->buffers[k] == module->own->buffers[own].var && strcmp(module->own->buffers[own].name, name) == 0)
                return k;
    return -1;
}

/* Plans the statistics of layers that meet, and their counts of batches. */
static void plan_tracked(trek_replica *r)
{
    for (int m = 0; m < r->n_modules; m++) {
        if (!r->modules[m]->own->klass->meets_ranks)
            continue;
        int mean = find_buffer(r, r->modules[m], "running_mean"), tracked = find_buffer(r, r->modules[m], "num_batches_tracked");
        if (mean < 0 || tracked < 0 || r->plans[mean].merge != TREK_BUFFER_MEAN)
            continue;
        r->plans[mean].tracked = tracked;
        r->plans[tracked].tracked = mean;
    }
}

void trek_buffers_plan(trek_replica *r)
{
    for (int k = 0; k < r->n_buffers; k++)
        r->plans[k] = (trek_buffer_plan){
            trek_dtype_is_float((trek_dtype)r->buffers[k]->data->dtype) ? TREK_BUFFER_AVERAGE : TREK_BUFFER_MAXIMUM, -1, -1 };
    for (int k = 0; k < r->n_buffers; k++) {
        bool is_mean = r->plans[k].merge == TREK_BUFFER_AVERAGE && ends_with(r->buffer_names[k], "running_mean");
        int partner = is_mean ? find_partner(r->buffer_names, r->buffers, r->n_buffers, k) : -1;
        if (partner < 0)
            continue;
        r->plans[k] = (trek_buffer_plan){ TREK_BUFFER_MEAN, partner, -1 };
        r->plans[partner] = (trek_buffer_plan){ TREK_BUFFER_PARTNER, k, -1 };
    }
    plan_tracked(r);
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

/* The ranks' copies of one floating buffer, and of its partner (NULL: none). */
typedef struct copies {
    trek_dtype dtype;
    int n_ranks;
    double counts[TREK_MAX_RANKS], total;
    char *values[TREK_MAX_RANKS], *partners[TREK_MAX_RANKS];
    bool has_partner;
} copies;

static void store_all(const copies *c, char *const *to, int64_t at, int64_t n, const double *values)
{
    for (int r = 0; r < c->n_ranks; r++)
        store(c->dtype, to[r], at, n, values);
}

/* Merges elements [at, at + n) of the ranks that have samples, weighted by these. */
static void merge_block(const copies *c, int64_t at, int64_t n)
{
    double mean0[BLOCK], mean[BLOCK], value[BLOCK], spread[BLOCK] = { 0 }, var0[BLOCK], var[BLOCK];
    bool first = true;
    for (int r = 0; r < c->n_ranks; r++) {
        if (c->counts[r] == 0)
            continue;
        double weight = c->counts[r] / c->total;
        load(c->dtype, c->values[r], at, n, value);
        for (int64_t i = 0; i < n; i++) {
            mean0[i] = first ? value[i] : mean0[i];
            mean[i] = first ? value[i] : mean[i] + weight * (value[i] - mean0[i]);
            spread[i] += weight * (value[i] - mean0[i]) * (value[i] - mean0[i]);
        }
        if (c->has_partner) {
            load(c->dtype, c->partners[r], at, n, value);
            for (int64_t i = 0; i < n; i++) {
                var0[i] = first ? value[i] : var0[i];
                var[i] = first ? value[i] : var[i] + weight * (value[i] - var0[i]);
            }
        }
        first = false;
    }
    if (c->has_partner) {
        for (int64_t i = 0; i < n; i++)
            var[i] += spread[i] - (mean[i] - mean0[i]) * (mean[i] - mean0[i]);
        store_all(c, c->partners, at, n, var);
    }
    store_all(c, c->values, at, n, mean);
}

static int64_t batches_of(const trek_buffer_space *room, int rank, int tracked)
{
    return *(const int64_t *)(const void *)room->copy(room, rank, tracked);
}

/* Statistics of a synchronised batch norm are equal on all ranks that took part in every forward since the last
 * merge. Ranks that had no rows in one of these do not count. */
static void drop_late_ranks(const trek_buffer_space *room, int tracked, copies *c)
{
    int64_t most = 0;
    double left = 0;
    for (int r = 0; r < room->n_ranks; r++) {
        int64_t batches = batches_of(room, r, tracked);
        most = c->counts[r] > 0 && batches > most ? batches : most;
    }
    for (int r = 0; r < room->n_ranks; r++)
        left += c->counts[r] > 0 && batches_of(room, r, tracked) == most ? c->counts[r] : 0;
    for (int r = 0; r < room->n_ranks; r++)
        if (batches_of(room, r, tracked) != most)
            c->counts[r] = 0;
    c->total = left;
}

static void merge_floats(const trek_buffer_space *room, int k, int partner)
{
    const trek_tensor *like = room->replica->buffers[k]->data;
    int tracked = room->apart ? -1 : room->replica->plans[k].tracked;
    copies c = { .dtype = (trek_dtype)like->dtype, .n_ranks = room->n_ranks, .has_partner = partner >= 0 };
    for (int r = 0; r < room->n_ranks; r++) {
        c.values[r] = room->copy(room, r, k);
        c.partners[r] = partner >= 0 ? room->copy(room, r, partner) : NULL;
        c.counts[r] = room->counts[r];
        c.total += c.counts[r];
    }
    if (tracked >= 0)
        drop_late_ranks(room, tracked, &c);
    for (int64_t at = 0; at < like->numel; at += BLOCK)
        merge_block(&c, at, like->numel - at < BLOCK ? like->numel - at : BLOCK);
}

/* Computes the maximum over the ranks that have samples. */
static void merge_integers(const trek_buffer_space *room, int k)
{
    const trek_tensor *like = room->replica->buffers[k]->data;
    const void *ins[TREK_MAX_RANKS];
    void *outs[TREK_MAX_RANKS];
    int n = 0;
    for (int r = 0; r < room->n_ranks; r++) {
        outs[r] = room->copy(room, r, k);
        if (room->counts[r] > 0)
            ins[n++] = outs[r];
    }
    trek_comm_combine((trek_dtype)like->dtype, TREK_REDUCTION_MAX, ins, n, outs, room->n_ranks, 0, like->numel);
}

void trek_buffers_merge(const trek_buffer_space *room, int first, int stride)
{
    const trek_buffer_plan *plans = room->replica->plans;
    for (int k = first; k < room->replica->n_buffers; k += stride) {
        const trek_buffer_plan *plan = &plans[k];
        if (plan->merge == TREK_BUFFER_MAXIMUM && plan->tracked < 0)
            merge_integers(room, k);
        else if (plan->merge == TREK_BUFFER_MEAN || plan->merge == TREK_BUFFER_AVERAGE)
            merge_floats(room, k, plan->partner);
        if (plan->merge == TREK_BUFFER_MEAN && plan->tracked >= 0)
            merge_integers(room, plan->tracked); /* after drop_late_ranks, which reads them */
    }
}
