/* SPDX-License-Identifier: Apache-2.0 */
/* What a replica consists of, in which order and buckets its gradients are sent,
 * and whether all ranks' replicas are alike. */
#include <stdio.h>
#include <string.h>

#include "distributed/ddp_internal.h"
#include "nn/text.h"

enum { SLOT_BYTES = 256, FIRST_BUCKET = 1 << 20, MESSAGE = 384 };

/* --- listing --------------------------------------------------------------------------- */

/* Everything in the order of the walk. */
typedef struct listing {
    trek_ddp_replica *r;
    bool counting;
    trek_var **params;
    char **names;
} listing;

static trek_status list_module(const char *name, trek_module *module, void *arg)
{
    (void)name;
    listing *l = arg;
    if (!l->counting)
        l->r->modules[l->r->n_modules] = module;
    l->r->n_modules++;
    return TREK_OK;
}

static trek_status check_entry(const trek_ddp_replica *r, const char *name, const trek_var *var)
{
    if (!trek_device_equal(var->data->device, r->device)) {
        char a[16], b[16];
        return trek_fail(TREK_ERR_DEVICE, "ddp: \"%s\" is on %s, the rest of the replica on %s", name,
                         trek_device_name(var->data->device, a), trek_device_name(r->device, b));
    }
    return var->data->contiguous ? TREK_OK : trek_fail(TREK_ERR_ARGUMENT, "ddp: \"%s\" is not contiguous", name);
}

static trek_status list_param(const char *name, trek_var *param, void *arg)
{
    listing *l = arg;
    int k = l->r->n_params;
    trek_status status = check_entry(l->r, name, param);
    if (!l->counting) {
        l->params[k] = param;
        if (!(l->names[k] = trek_strdup(name)))
            return TREK_ERR_MEMORY;
    }
    l->r->n_params++;
    return status;
}

static trek_status list_buffer(const char *name, trek_var *buffer, void *arg)
{
    listing *l = arg;
    int k = l->r->n_buffers;
    trek_status status = check_entry(l->r, name, buffer);
    if (!l->counting) {
        if (!(l->r->buffer_names[k] = trek_strdup(name)))
            return TREK_ERR_MEMORY;
        l->r->buffers[k] = trek_var_retain(buffer);
    }
    l->r->n_buffers++;
    return status;
}

static trek_status walk(listing *l)
{
    l->r->n_modules = l->r->n_params = l->r->n_buffers = 0;
    trek_status status = trek_module_each(l->r->model, list_module, l);
    if (status == TREK_OK)
        status = trek_module_each_param(l->r->model, list_param, l);
    if (status == TREK_OK)
        status = trek_module_each_buffer(l->r->model, list_buffer, l);
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

/* As optim/arena.c does it; names change hands. */
static void lay_out(trek_ddp_replica *r, listing *l)
{
    int at = 0;
    for (int k = r->n_params - 1; k >= 0; k--)
        part_of(r, (trek_dtype)l->params[k]->data->dtype);
    for (int p = 0; p < r->n_parts; p++) {
        trek_ddp_part *part = &r->parts[p];
        int64_t slot = SLOT_BYTES / (int64_t)trek_dtype_size(part->dtype);
        for (int k = r->n_params - 1; k >= 0; k--) {
            trek_var *var = l->params[k];
            if ((trek_dtype)var->data->dtype != part->dtype)
                continue;
            r->params[at] = (trek_ddp_param){ .var = trek_var_retain(var), .name = l->names[k], .part = p, .offset = part->count,
                                              .count = var->data->numel };
            l->names[k] = NULL;
            r->leaves[at++] = var;
            part->count += (var->data->numel + slot - 1) / slot * slot;
        }
    }
}

/* A bucket is full when the next parameter would not fit; a larger one has its own. */
static void cut_buckets(trek_ddp_replica *r, int64_t bucket_bytes)
{
    int64_t room = 0;
    for (int k = 0; k < r->n_params; k++) {
        const trek_ddp_param *p = &r->params[k];
        int64_t bytes = p->count * (int64_t)trek_dtype_size(r->parts[p->part].wide);
        bool other = k == 0 || r->params[k - 1].part != p->part;
        if (other || bytes > room) {
            room = r->n_buckets == 0 && bucket_bytes > FIRST_BUCKET ? FIRST_BUCKET : bucket_bytes;
            r->buckets[r->n_buckets++].first = k;
        }
        room -= bytes;
        r->buckets[r->n_buckets - 1].end = k + 1;
    }
}

trek_status trek_ddp_plan(trek_ddp_replica *r, int64_t bucket_bytes)
{
    listing l = { .r = r, .counting = true };
    trek_status status = walk(&l);
    size_t n = (size_t)r->n_params, buffers = (size_t)r->n_buffers, modules = (size_t)r->n_modules;
    r->n_params = r->n_buffers = r->n_modules = 0;
    if (status != TREK_OK)
        return status;
    r->word_bytes = (sizeof(trek_ddp_word) + n + 15) & ~(size_t)15;
    r->params = trek_calloc(n, sizeof *r->params);
    r->leaves = trek_calloc(n, sizeof *r->leaves);
    r->buckets = trek_calloc(n, sizeof *r->buckets);
    r->any = trek_calloc(n, sizeof *r->any);
    r->modules = trek_calloc(modules, sizeof *r->modules);
    r->buffers = trek_calloc(buffers, sizeof *r->buffers);
    r->buffer_names = trek_calloc(buffers, sizeof *r->buffer_names);
    r->buffer_plans = trek_calloc(buffers, sizeof *r->buffer_plans);
    r->word = trek_calloc(1, r->word_bytes);
    r->words = trek_calloc((size_t)r->world, r->word_bytes);
    l = (listing){ .r = r, .params = trek_calloc(n, sizeof *l.params), .names = trek_calloc(n, sizeof *l.names) };
    if (!r->params || !r->leaves || !r->buckets || !r->any || !r->modules || !r->buffers || !r->buffer_names ||
        !r->buffer_plans || !r->word || !r->words || !l.params || !l.names)
        status = trek_status_get();
    if (status == TREK_OK)
        status = walk(&l);
    if (status == TREK_OK) {
        lay_out(r, &l);
        cut_buckets(r, bucket_bytes);
        trek_buffers_plan(r->buffer_names, r->buffers, r->n_buffers, r->buffer_plans);
    } else {
        r->n_params = 0;
    }
    for (size_t k = 0; l.names && k < n; k++)
        trek_free(l.names[k]);
    trek_free(l.names);
    trek_free(l.params);
    if (status != TREK_OK)
        trek_ddp_plan_clear(r);
    return status;
}

void trek_ddp_plan_clear(trek_ddp_replica *r)
{
    for (int k = 0; k < r->n_params; k++) {
        trek_tensor_release(r->params[k].slot);
        trek_var_release(r->params[k].spare);
        trek_var_release(r->params[k].var);
        trek_free(r->params[k].name);
    }
    for (int k = 0; k < r->n_buffers; k++) {
        trek_var_release(r->buffers[k]);
        trek_free(r->buffer_names[k]);
    }
    for (int p = 0; p < r->n_parts; p++)
        trek_tensor_release(r->parts[p].staging);
    trek_free(r->params);
    trek_free(r->leaves);
    trek_free(r->buckets);
    trek_free(r->any);
    trek_free(r->modules);
    trek_free(r->buffers);
    trek_free(r->buffer_names);
    trek_free(r->buffer_plans);
    trek_free(r->word);
    trek_free(r->words);
    trek_free(r->pack);
    *r = (trek_ddp_replica){ .model = r->model, .comm = r->comm, .rank = r->rank, .world = r->world, .device = r->device,
                             .backend = r->backend };
}

/* --- comparing with rank 0 -------------------------------------------------------------------- */

typedef struct summary {
    int64_t status, bytes;
    uint64_t hash;
} summary;

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

static void add_tensor(trek_text *text, const char *what, const char *name, const trek_var *var)
{
    char shape[TREK_SHAPE_TEXT];
    trek_text_format(text, "%s \"%s\" %s %s\n", what, name, trek_dtype_name((trek_dtype)var->data->dtype),
                     trek_tensor_shape_text(var->data, shape));
}

/* What must be the same, a line each. In the order of the arena: last parameter first. */
static char *describe(const trek_ddp *ddp, const trek_ddp_replica *r)
{
    trek_text text = { 0 };
    trek_text_format(&text, "buckets of %lld bytes\noverlap %d\n", (long long)ddp->opts.bucket_bytes, ddp->opts.overlap);
    for (int k = r->n_params - 1; k >= 0; k--)
        add_tensor(&text, "parameter", r->params[k].name, r->params[k].var);
    for (int k = 0; k < r->n_buffers; k++)
        add_tensor(&text, "buffer", r->buffer_names[k], r->buffers[k]);
    return trek_text_take(&text);
}

static int line_length(const char *text) { return (int)strcspn(text, "\n"); }

/* The first line that differs, as a message; "" if there is none. */
static void find_difference(int rank, const char *own, const char *first, char *message)
{
    memset(message, 0, MESSAGE);
    while (*own || *first) {
        int a = line_length(own), b = line_length(first);
        if (a != b || memcmp(own, first, (size_t)a) != 0) {
            snprintf(message, MESSAGE, "rank %d differs from rank 0: %.*s instead of %.*s", rank, a > 150 ? 150 : a ? a : 7,
                     a ? own : "nothing", b > 150 ? 150 : b ? b : 7, b ? first : "nothing");
            return;
        }
        own += a + (own[a] == '\n');
        first += b + (first[b] == '\n');
    }
}

static trek_status gather_bytes(trek_ddp_replica *r, const void *own, void *all, size_t bytes)
{
    return trek_comm_run(r->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_GATHER, .dtype = TREK_U8, .count = (int64_t)bytes,
                                                    .in = own, .out = all });
}

/* Some rank differs: who, and in what. */
static trek_status name_difference(trek_ddp_replica *r, char *own, int64_t bytes)
{
    char *first = r->rank == 0 ? own : trek_alloc((size_t)bytes), mine[MESSAGE];
    char *all = trek_alloc((size_t)r->world * MESSAGE);
    trek_status status = trek_ddp_agree(r, first && all ? TREK_OK : trek_status_get());
    if (status == TREK_OK)
        status = trek_comm_run(
            r->comm,
            (trek_comm_call){ .kind = TREK_COMM_BROADCAST, .dtype = TREK_U8, .count = bytes, .in = first, .out = first });
    if (status == TREK_OK) {
        find_difference(r->rank, own, first, mine);
        status = gather_bytes(r, mine, all, MESSAGE);
    }
    for (int k = 0; k < r->world && status == TREK_OK; k++)
        if (all[(size_t)k * MESSAGE])
            status = trek_fail(TREK_ERR_ARGUMENT, "ddp: %s", all + (size_t)k * MESSAGE);
    if (status == TREK_OK)
        status = trek_fail(TREK_ERR_ARGUMENT, "ddp: the ranks' replicas differ");
    if (first != own)
        trek_free(first);
    trek_free(all);
    return status;
}

trek_status trek_ddp_compare(trek_ddp *ddp, trek_ddp_replica *r, trek_status own)
{
    if (r->world == 1)
        return own;
    char *text = own == TREK_OK ? describe(ddp, r) : NULL;
    if (own == TREK_OK && !text)
        own = trek_status_get();
    summary *all = trek_calloc((size_t)r->world, sizeof *all);
    trek_status status = trek_ddp_agree(r, own == TREK_OK && !all ? trek_status_get() : own);
    if (status == TREK_OK) {
        summary mine = { .bytes = (int64_t)strlen(text) + 1, .hash = hash_of(text) };
        status = gather_bytes(r, &mine, all, sizeof mine);
    }
    bool same = true;
    for (int k = 1; k < r->world && status == TREK_OK; k++)
        same = same && all[k].bytes == all[0].bytes && all[k].hash == all[0].hash;
    if (status == TREK_OK && !same)
        status = name_difference(r, text, all[0].bytes);
    trek_free(text);
    trek_free(all);
    return status;
}
