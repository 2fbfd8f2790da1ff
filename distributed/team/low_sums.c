/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/team/low_sums.h"

#include <string.h>

#include "tensor/half_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/tensor_internal.h"

static int64_t part_of(const trek_low_sums *s, int64_t count) { return (count + s->comm->world - 1) / s->comm->world; }
static uint16_t *numbers(const trek_tensor *t) { return (uint16_t *)(void *)t->data; }

trek_low_sums *trek_low_sums_new(trek_comm *comm, int64_t count)
{
    trek_low_sums *s = trek_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->comm = comm;
    s->count = part_of(s, count) * comm->world;
    s->sent = trek_tensor_zeros(trek_dims(s->count), TREK_BF16, trek_cpu(0));
    s->got = trek_tensor_zeros(trek_dims(s->count), TREK_BF16, trek_cpu(0));
    if (!s->sent || !s->got)
        trek_low_sums_free(&s);
    return s;
}

void trek_low_sums_free(trek_low_sums **sums)
{
    trek_low_sums *s = *sums;
    *sums = NULL;
    if (!s)
        return;
    trek_tensor_release(s->sent);
    trek_tensor_release(s->got);
    trek_free(s);
}

/* Leaves the sums of this process's part of s->sent in `to`. */
static trek_status add(const trek_low_sums *s, int64_t part, uint16_t *to)
{
    return trek_comm_run(s->comm, (trek_comm_call){ .kind = TREK_COMM_REDUCE_SCATTER, .op = TREK_REDUCTION_SUM,
                                                    .dtype = TREK_BF16, .count = part, .in = numbers(s->sent), .out = to });
}

trek_status trek_low_sums_all_reduce(const trek_low_sums *s, float *data, int64_t count)
{
    int64_t part = part_of(s, count);
    uint16_t *own = numbers(s->got) + part * s->comm->rank;
    trek_bf16_from_f32_row(numbers(s->sent), data, count);
    memset(numbers(s->sent) + count, 0, (size_t)(part * s->comm->world - count) * sizeof(uint16_t));
    trek_status status = add(s, part, own);
    if (status == TREK_OK)
        status = trek_comm_run(s->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_GATHER, .dtype = TREK_BF16, .count = part,
                                                          .in = own, .out = numbers(s->got) });
    if (status == TREK_OK)
        trek_f32_from_bf16_row(data, numbers(s->got), count);
    return status;
}

trek_status trek_low_sums_reduce_scatter(const trek_low_sums *s, const float *data, float *out, int64_t count)
{
    trek_bf16_from_f32_row(numbers(s->sent), data, count * s->comm->world);
    trek_status status = add(s, count, numbers(s->got));
    if (status == TREK_OK)
        trek_f32_from_bf16_row(out, numbers(s->got), count);
    return status;
}
