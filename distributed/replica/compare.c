/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the ranks' replicas are alike, and the first difference where they are not. */
#include <stdio.h>
#include <string.h>

#include "autograd/var_internal.h"
#include "distributed/replica/replica.h"
#include "nn/text.h"
#include "tensor/tensor_internal.h"

enum { MESSAGE = 384 };

/* What members of a set are called. */
static const char *member_of(const trek_comm *comm) { return comm->control ? "process" : "rank"; }

trek_status trek_replica_agree(trek_comm *comm, trek_status own, const char *what)
{
    if (!comm || comm->world == 1)
        return own;
    int32_t failed = own != TREK_OK ? comm->rank + 1 : 0;
    trek_status status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_MAX, .dtype = TREK_I32,
                                                               .count = 1, .in = &failed, .out = &failed });
    if (own != TREK_OK)
        return own;
    if (status == TREK_OK && failed)
        status = trek_fail(TREK_ERR_PEER, "%s: %s %d failed", what, member_of(comm), failed - 1);
    return status;
}

typedef struct summary {
    int64_t bytes;
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

/* What must be the same, a line each. */
static char *describe(const trek_replica *r, const char *more)
{
    trek_text text = { 0 };
    for (int k = 0; k < r->n_params; k++)
        add_tensor(&text, "parameter", r->param_names[k], r->params[k]);
    for (int k = 0; k < r->n_buffers; k++)
        add_tensor(&text, "buffer", r->buffer_names[k], r->buffers[k]);
    trek_text_format(&text, "%d modules\n%s", r->n_modules, more ? more : "");
    return trek_text_take(&text);
}

static int line_length(const char *text) { return (int)strcspn(text, "\n"); }

/* The first line that differs, as a message; "" if there is none. */
static void find_difference(const trek_comm *comm, const char *own, const char *first, char *message)
{
    memset(message, 0, MESSAGE);
    while (*own || *first) {
        int a = line_length(own), b = line_length(first);
        if (a != b || memcmp(own, first, (size_t)a) != 0) {
            snprintf(message, MESSAGE, "%s %d differs from %s 0: %.*s instead of %.*s", member_of(comm), comm->rank, member_of(comm),
                     a > 150 ? 150 : a ? a : 7, a ? own : "nothing", b > 150 ? 150 : b ? b : 7, b ? first : "nothing");
            return;
        }
        own += a + (own[a] == '\n');
        first += b + (first[b] == '\n');
    }
}

static trek_status gather_bytes(trek_comm *comm, const void *own, void *all, size_t bytes)
{
    return trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_GATHER, .dtype = TREK_U8, .count = (int64_t)bytes, .in = own,
                                                 .out = all });
}

/* Some rank differs: who, and in what. */
static trek_status name_difference(trek_comm *comm, const char *own, int64_t bytes, const char *what)
{
    char *first = trek_alloc((size_t)bytes), mine[MESSAGE];
    char *all = trek_alloc((size_t)comm->world * MESSAGE);
    trek_status status = trek_replica_agree(comm, first && all ? TREK_OK : trek_status_get(), what);
    if (status == TREK_OK && comm->rank == 0)
        memcpy(first, own, (size_t)bytes);
    if (status == TREK_OK)
        status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_BROADCAST, .dtype = TREK_U8, .count = bytes, .in = first,
                                                       .out = first });
    if (status == TREK_OK) {
        find_difference(comm, own, first, mine);
        status = gather_bytes(comm, mine, all, MESSAGE);
    }
    for (int k = 0; k < comm->world && status == TREK_OK; k++)
        if (all[(size_t)k * MESSAGE])
            status = trek_fail(TREK_ERR_ARGUMENT, "%s: %s", what, all + (size_t)k * MESSAGE);
    if (status == TREK_OK)
        status = trek_fail(TREK_ERR_ARGUMENT, "%s: the ranks' replicas differ", what);
    trek_free(first);
    trek_free(all);
    return status;
}

trek_status trek_replica_compare_text(trek_comm *comm, const char *text, const char *what, trek_status own)
{
    if (!comm || comm->world == 1)
        return own;
    summary *all = trek_calloc((size_t)comm->world, sizeof *all);
    trek_status status = trek_replica_agree(comm, own == TREK_OK && (!all || !text) ? trek_status_get() : own, what);
    if (status == TREK_OK) {
        summary mine = { .bytes = (int64_t)strlen(text) + 1, .hash = hash_of(text) };
        status = gather_bytes(comm, &mine, all, sizeof mine);
    }
    bool same = true;
    for (int k = 1; k < comm->world && status == TREK_OK; k++)
        same = same && all[k].bytes == all[0].bytes && all[k].hash == all[0].hash;
    if (status == TREK_OK && !same)
        status = name_difference(comm, text, all[0].bytes, what);
    trek_free(all);
    return status;
}

trek_status trek_replica_compare(const trek_replica *r, trek_comm *comm, const char *more, const char *what, trek_status own)
{
    if (!comm || comm->world == 1)
        return own;
    char *text = own == TREK_OK ? describe(r, more) : NULL;
    trek_status status = trek_replica_compare_text(comm, text, what, own);
    trek_free(text);
    return status;
}
