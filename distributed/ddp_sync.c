/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and buffers of all replicas: rank 0's to all, or all ranks' merged. */
#include <string.h>

#include "distributed/ddp_internal.h"

enum { SMALL_TENSOR = 64 * 1024, PACK_BYTES = 512 * 1024 };

/* --- rank 0's to all ----------------------------------------------------------------------- */

static trek_status send(trek_ddp_replica *r, void *data, size_t bytes, bool on_device)
{
    return trek_comm_run(r->comm, (trek_comm_call){ .kind = TREK_COMM_BROADCAST,
                                                    .dtype = TREK_U8,
                                                    .count = (int64_t)bytes,
                                                    .in = data,
                                                    .out = data,
                                                    .on_device = on_device });
}

/* Small tensors go together. */
typedef struct parcel {
    trek_ddp_replica *r;
    size_t bytes;
    int n;
    trek_tensor *tensors[256];
} parcel;

static size_t bytes_of(const trek_tensor *t) { return (size_t)t->numel * trek_dtype_size((trek_dtype)t->dtype); }

static void fill(const parcel *p, bool out)
{
    char *at = p->r->pack;
    for (int k = 0; k < p->n; k++) {
        size_t bytes = bytes_of(p->tensors[k]);
        memcpy(out ? p->tensors[k]->data : at, out ? at : p->tensors[k]->data, bytes);
        if (out)
            trek_tensor_bump(p->tensors[k]);
        at += bytes;
    }
}

static trek_status send_parcel(parcel *p)
{
    if (p->n == 0)
        return TREK_OK;
    if (p->r->rank == 0)
        fill(p, false);
    trek_status status = send(p->r, p->r->pack, p->bytes, false);
    if (status == TREK_OK && p->r->rank > 0)
        fill(p, true);
    p->n = 0;
    p->bytes = 0;
    return status;
}

static trek_status add(parcel *p, trek_tensor *tensor)
{
    size_t bytes = bytes_of(tensor);
    if (bytes == 0)
        return TREK_OK;
    bool on_host = p->r->backend->host_accessible;
    if (!p->r->all_on_host || bytes > SMALL_TENSOR) {
        trek_status status = send(p->r, tensor->data, bytes, !on_host);
        if (status == TREK_OK && p->r->rank > 0)
            trek_tensor_bump(tensor);
        return status;
    }
    trek_status status = p->n == 256 || p->bytes + bytes > PACK_BYTES ? send_parcel(p) : TREK_OK;
    p->tensors[p->n++] = tensor;
    p->bytes += bytes;
    return status;
}

trek_status trek_ddp_broadcast(trek_ddp_replica *r, bool params, bool buffers, trek_status own)
{
    if (r->world == 1)
        return own;
    if (own == TREK_OK && !r->pack && !(r->pack = trek_alloc(PACK_BYTES)))
        own = trek_status_get();
    trek_status status = trek_ddp_agree(r, own);
    parcel p = { .r = r };
    for (int k = 0; k < r->n_params && params && status == TREK_OK; k++)
        status = add(&p, r->params[k].var->data);
    for (int k = 0; k < r->n_buffers && buffers && status == TREK_OK; k++)
        status = add(&p, r->buffers[k]->data);
    return status == TREK_OK ? send_parcel(&p) : status;
}

/* A wrapper whose refresh failed has no lists. */
static trek_status ready(const trek_ddp_replica *r)
{
    trek_status status = trek_status_get();
    if (status == TREK_OK && !r->words)
        status = trek_fail(TREK_ERR_STATE, "ddp: the replicas could not be listed; see trek_ddp_refresh");
    return status;
}

static trek_status sync_params(trek_ddp *ddp, int k, void *arg)
{
    (void)arg;
    trek_ddp_replica *r = &ddp->replicas[k];
    return trek_ddp_broadcast(r, true, false, ready(r));
}

trek_status trek_ddp_sync_params(trek_ddp *ddp)
{
    if (!ddp)
        return trek_fail_missing("ddp_sync_params", "wrapper");
    return trek_ddp_call(ddp, sync_params, NULL);
}

/* --- all ranks' buffers merged ------------------------------------------------------------------ */

/* All ranks' buffers in wide dtypes: floating ones, then integers; and what each rank counts. */
typedef struct merging {
    trek_ddp_replica *r;
    int64_t floats, integers; /* elements of a rank */
    double *own_floats, *all_floats, *counts;
    int64_t *own_integers, *all_integers;
    double total;
} merging;

static bool is_float(const trek_var *buffer) { return trek_dtype_is_float((trek_dtype)buffer->data->dtype); }

static trek_status fetch(merging *m)
{
    const trek_ddp_replica *r = m->r;
    for (int k = 0; k < r->n_buffers; k++)
        *(is_float(r->buffers[k]) ? &m->floats : &m->integers) += r->buffers[k]->data->numel;
    size_t world = (size_t)r->world;
    m->own_floats = trek_calloc((size_t)m->floats, sizeof *m->own_floats);
    m->own_integers = trek_calloc((size_t)m->integers, sizeof *m->own_integers);
    m->all_floats = trek_calloc((size_t)m->floats * world, sizeof *m->all_floats);
    m->all_integers = trek_calloc((size_t)m->integers * world, sizeof *m->all_integers);
    m->counts = trek_calloc(world, sizeof *m->counts);
    if (!m->own_floats || !m->own_integers || !m->all_floats || !m->all_integers || !m->counts)
        return trek_status_get();
    double *floats_at = m->own_floats;
    int64_t *integers_at = m->own_integers;
    trek_status status = TREK_OK;
    for (int k = 0; k < r->n_buffers && status == TREK_OK; k++) {
        const trek_tensor *t = r->buffers[k]->data;
        size_t bytes = (size_t)t->numel * sizeof(double);
        if (is_float(r->buffers[k])) {
            status = trek_tensor_to_host(t, TREK_F64, floats_at, bytes);
            floats_at += t->numel;
        } else {
            status = trek_tensor_to_host(t, TREK_I64, integers_at, bytes);
            integers_at += t->numel;
        }
    }
    return status;
}

static trek_status exchange(merging *m, double count)
{
    trek_ddp_replica *r = m->r;
    trek_comm_call call = { .kind = TREK_COMM_ALL_GATHER, .dtype = TREK_F64, .count = 1, .in = &count, .out = m->counts };
    trek_status status = trek_comm_run(r->comm, call);
    for (int k = 0; k < r->world; k++)
        m->total += m->counts[k];
    if (status == TREK_OK && !(m->total > 0))
        return trek_fail(TREK_ERR_ARGUMENT, "ddp_sync_buffers: the ranks' counts sum to 0"); /* on all ranks */
    call = (trek_comm_call){
        .kind = TREK_COMM_ALL_GATHER, .dtype = TREK_F64, .count = m->floats, .in = m->own_floats, .out = m->all_floats
    };
    if (status == TREK_OK && m->floats > 0)
        status = trek_comm_run(r->comm, call);
    call = (trek_comm_call){ .kind = TREK_COMM_ALL_GATHER, .dtype = TREK_I64, .count = m->integers, .in = m->own_integers,
                             .out = m->all_integers };
    return status == TREK_OK && m->integers > 0 ? trek_comm_run(r->comm, call) : status;
}

/* Where buffer k's elements begin among the floating ones, or the integers, of a rank. */
static int64_t place_of(const trek_ddp_replica *r, int k)
{
    int64_t at = 0;
    for (int j = 0; j < k; j++)
        at += is_float(r->buffers[j]) == is_float(r->buffers[k]) ? r->buffers[j]->data->numel : 0;
    return at;
}

static void merge_floats(const merging *m, int k, int partner)
{
    const trek_ddp_replica *r = m->r;
    char *values[TREK_MAX_RANKS], *partners[TREK_MAX_RANKS];
    for (int q = 0; q < r->world; q++) {
        values[q] = (char *)(m->all_floats + (int64_t)q * m->floats + place_of(r, k));
        partners[q] = partner >= 0 ? (char *)(m->all_floats + (int64_t)q * m->floats + place_of(r, partner)) : NULL;
    }
    trek_buffers_merge(&(trek_buffer_copies){ .dtype = TREK_F64, .count = r->buffers[k]->data->numel, .world = r->world,
                                              .counts = m->counts, .total = m->total, .values = values,
                                              .partners = partner >= 0 ? partners : NULL });
}

static void merge_integers(const merging *m, int k)
{
    const trek_ddp_replica *r = m->r;
    int64_t at = place_of(r, k);
    for (int64_t i = at; i < at + r->buffers[k]->data->numel; i++) {
        bool first = true;
        for (int q = 0; q < r->world; q++) {
            int64_t value = m->all_integers[(int64_t)q * m->integers + i];
            if (m->counts[q] > 0 && (first || value > m->all_integers[i])) {
                m->all_integers[i] = value;
                first = false;
            }
        }
    }
}

/* Rank 0's copies hold what was merged. */
static trek_status put_back(const merging *m, int k)
{
    trek_var *buffer = m->r->buffers[k];
    void *data = is_float(buffer) ? (void *)(m->all_floats + place_of(m->r, k)) : (void *)(m->all_integers + place_of(m->r, k));
    trek_tensor *merged =
        trek_tensor_wrap(data, trek_tensor_shape(buffer->data), is_float(buffer) ? TREK_F64 : TREK_I64, NULL, NULL);
    trek_status status = merged ? trek_tensor_copy_from(buffer->data, merged) : trek_status_get();
    trek_tensor_release(merged);
    return status;
}

static trek_status merge(merging *m)
{
    const trek_ddp_replica *r = m->r;
    for (int k = 0; k < r->n_buffers; k++) {
        const trek_buffer_plan *plan = &r->buffer_plans[k];
        if (plan->merge == TREK_BUFFER_MAXIMUM)
            merge_integers(m, k);
        else if (plan->merge != TREK_BUFFER_PARTNER)
            merge_floats(m, k, plan->partner);
    }
    trek_status status = TREK_OK;
    for (int k = 0; k < r->n_buffers && status == TREK_OK; k++)
        status = put_back(m, k);
    return status;
}

static trek_status sync_buffers(trek_ddp *ddp, int k, void *arg)
{
    merging m = { .r = &ddp->replicas[k] };
    double count = 0;
    trek_status own = ready(m.r);
    if (own == TREK_OK)
        own = trek_ddp_count(*(const double *const *)arg, k, &count);
    if (m.r->world == 1)
        return own == TREK_OK && count == 0 ? trek_fail(TREK_ERR_ARGUMENT, "ddp_sync_buffers: the ranks' counts sum to 0") : own;
    if (own == TREK_OK)
        own = fetch(&m);
    trek_status status = trek_ddp_agree(m.r, own);
    if (status == TREK_OK)
        status = exchange(&m, count);
    if (status == TREK_OK)
        status = merge(&m);
    trek_free(m.own_floats);
    trek_free(m.own_integers);
    trek_free(m.all_floats);
    trek_free(m.all_integers);
    trek_free(m.counts);
    return status;
}

trek_status trek_ddp_sync_buffers(trek_ddp *ddp, const double *counts)
{
    if (!ddp)
        return trek_fail_missing("ddp_sync_buffers", "wrapper");
    return trek_ddp_call(ddp, sync_buffers, &counts);
}
