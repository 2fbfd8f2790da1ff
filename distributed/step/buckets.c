/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting an arena of gradients into buckets. */
#include "distributed/step/buckets.h"

#define FIRST_BYTES (1 << 20)

static int64_t bucket_size(const trek_arena_part *part, int64_t begin, int64_t bytes)
{
    int64_t n = bytes / (int64_t)trek_dtype_size(part->wide) / 64 * 64;
    n = n < 64 ? 64 : n;
    return n < part->count - begin ? n : part->count - begin;
}

trek_status trek_buckets_each(const trek_arena *arena, int64_t bytes, trek_bucket_fn fn, void *arg, int *n)
{
    trek_bucket bucket = { 0 };
    trek_status status = TREK_OK;
    for (bucket.part = 0; bucket.part < arena->n_parts; bucket.part++)
        for (bucket.begin = 0; bucket.begin < arena->parts[bucket.part].count && status == TREK_OK; bucket.begin += bucket.count) {
            int64_t room = bucket.number == 0 && bytes > FIRST_BYTES ? FIRST_BYTES : bytes;
            bucket.count = bucket_size(&arena->parts[bucket.part], bucket.begin, room);
            if (fn)
                status = fn(&bucket, arg);
            bucket.number++;
        }
    if (n)
        *n = bucket.number;
    return status;
}

trek_comm_call trek_bucket_call(const trek_arena *arena, const trek_bucket *bucket)
{
    const trek_arena_part *part = &arena->parts[bucket->part];
    char *data = part->grads->data + bucket->begin * (int64_t)trek_dtype_size(part->wide);
    return (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_SUM, .dtype = part->wide, .count = bucket->count, .in = data, .out = data,
                             .on_device = arena->device.type != TREK_CPU, .block = trek_comm_block(part->grads) };
}
