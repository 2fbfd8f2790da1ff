/* SPDX-License-Identifier: Apache-2.0 */
/* In which order and buckets a replica's gradients are sent. */
#include "distributed/ddp_internal.h"
#include "distributed/step/rank_sums.h"

enum { SLOT_BYTES = 256 };

static trek_status check_entry(const trek_ddp_replica *r, const char *name, const trek_var *var)
{
    if (!trek_device_equal(var->data->device, r->device)) {
        char a[16], b[16];
        return trek_fail(TREK_ERR_DEVICE, "ddp: \"%s\" is on %s, the rest of the replica on %s", name,
                         trek_device_name(var->data->device, a), trek_device_name(r->device, b));
    }
    return var->data->contiguous ? TREK_OK : trek_fail(TREK_ERR_ARGUMENT, "ddp: \"%s\" is not contiguous", name);
}

static trek_status check_entries(const trek_ddp_replica *r)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < r->model->n_params && status == TREK_OK; k++)
        status = check_entry(r, r->model->param_names[k], r->model->params[k]);
    for (int k = 0; k < r->model->n_buffers && status == TREK_OK; k++)
        status = check_entry(r, r->model->buffer_names[k], r->model->buffers[k]);
    return status;
}

/* --- slots and buckets --------------------------------------------------------------------- */

static int part_of(trek_ddp_replica *r, trek_dtype dtype)
{
    for (int p = 0; p < r->n_parts; p++)
        if (r->parts[p].dtype == dtype)
            return p;
    r->parts[r->n_parts] = (trek_ddp_part){ .dtype = dtype, .wide = dtype == TREK_F64 ? TREK_F64 : TREK_F32 };
    return r->n_parts++;
}

/* As optim/arena.c does it. */
static void lay_out(trek_ddp_replica *r)
{
    int at = 0;
    for (int k = r->n_params - 1; k >= 0; k--)
        part_of(r, (trek_dtype)r->model->params[k]->data->dtype);
    for (int p = 0; p < r->n_parts; p++) {
        trek_ddp_part *part = &r->parts[p];
        int64_t slot = SLOT_BYTES / (int64_t)trek_dtype_size(part->dtype);
        for (int k = r->n_params - 1; k >= 0; k--) {
            trek_var *var = r->model->params[k];
            if ((trek_dtype)var->data->dtype != part->dtype)
                continue;
            r->params[at] = (trek_ddp_param){ .var = var, .name = r->model->param_names[k], .part = p, .offset = part->count,
                                              .count = var->data->numel };
            r->leaves[at++] = var;
            part->count += (var->data->numel + slot - 1) / slot * slot;
        }
    }
}

static trek_status cut_buckets(trek_ddp_replica *r, int64_t bytes)
{
    trek_bucket_item *items = trek_calloc((size_t)r->n_params, sizeof *items);
    if (!items)
        return trek_status_get();
    for (int k = 0; k < r->n_params; k++)
        items[k] = (trek_bucket_item){ r->params[k].part, r->parts[r->params[k].part].wide, r->params[k].offset,
                                       r->params[k].count };
    trek_status status = trek_buckets_cut(&r->buckets, items, r->n_params, bytes);
    trek_free(items);
    return status;
}

trek_status trek_ddp_plan(trek_ddp_replica *r, int64_t bucket_bytes)
{
    trek_status status = TREK_OK;
    if (!(r->model = trek_replica_new(r->module)))
        return trek_status_get();
    size_t n = (size_t)r->model->n_params;
    r->word_bytes = (sizeof(trek_ddp_word) + n + 15) & ~(size_t)15;
    r->params = trek_calloc(n, sizeof *r->params);
    r->leaves = trek_calloc(n, sizeof *r->leaves);
    r->any = trek_calloc(n, sizeof *r->any);
    r->word = trek_calloc(1, r->word_bytes);
    r->words = trek_calloc((size_t)r->world, r->word_bytes);
    if (!r->params || !r->leaves || !r->any || !r->word || !r->words)
        status = trek_status_get();
    if (status == TREK_OK)
        status = check_entries(r);
    if (status == TREK_OK) {
        r->n_params = r->model->n_params;
        lay_out(r);
        status = cut_buckets(r, bucket_bytes);
    }
    if (status != TREK_OK)
        trek_ddp_plan_clear(r);
    return status;
}

void trek_ddp_plan_clear(trek_ddp_replica *r)
{
    for (int k = 0; k < r->n_params; k++) {
        trek_tensor_release(r->params[k].slot);
        trek_var_release(r->params[k].spare);
    }
    for (int p = 0; p < r->n_parts; p++)
        trek_tensor_release(r->parts[p].staging);
    if (r->sums)
        trek_replica_bind(r->model, NULL);
    trek_comm_sums_end(r->sums);
    trek_replica_release(r->model);
    trek_free(r->params);
    trek_free(r->leaves);
    trek_buckets_clear(&r->buckets);
    trek_free(r->any);
    trek_free(r->word);
    trek_free(r->words);
    *r = (trek_ddp_replica){ .module = r->module, .comm = r->comm, .rank = r->rank, .world = r->world, .device = r->device,
                             .all_on_host = r->all_on_host, .backend = r->backend };
}
