/* SPDX-License-Identifier: Apache-2.0 */
/* Means over processes: they announce their weights to each other, then send the data. */
#include "distributed/outer/exchange.h"

#include <math.h>
#include <string.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/outer/compress.h"
#include "tensor/memory_internal.h"

/* What a process announces first. */
typedef struct head {
    double weight;
    int64_t n;
    int32_t bits, status; /* status: why it cannot take part */
} head;

trek_status trek_exchange_init(trek_exchange *exchange, trek_comm *comm)
{
    *exchange = (trek_exchange){ .comm = comm };
    exchange->heads = trek_calloc((size_t)trek_comm_world_size(comm), sizeof(head));
    return exchange->heads ? TREK_OK : TREK_ERR_MEMORY;
}

void trek_exchange_clear(trek_exchange *exchange)
{
    trek_free(exchange->heads);
    trek_free(exchange->room);
    *exchange = (trek_exchange){ 0 };
}

/* Returns how many bytes a process sends for n floats: once around a ring, or twice in parts. */
static int64_t traffic(int world, int64_t n, int bits)
{
    return bits < 32 ? (world - 1) * trek_compress_bytes(n, bits) : 2 * (world - 1) * n * (int64_t)sizeof(float) / world;
}

int trek_exchange_bits(const trek_exchange *exchange, int64_t n, int bits)
{
    int world = trek_comm_world_size(exchange->comm);
    return world > 1 && traffic(world, n, bits) < traffic(world, n, 32) ? bits : 32;
}

/* Makes room for what is sent: scaled floats, or the codes of this process followed by those of all. */
static trek_status room_for(trek_exchange *exchange, int64_t n, int bits)
{
    size_t parts = bits < 32 ? (size_t)trek_comm_world_size(exchange->comm) + 1 : 1;
    size_t bytes = parts * (size_t)trek_compress_bytes(n, bits);
    if (bytes <= exchange->room_bytes)
        return TREK_OK;
    trek_free(exchange->room);
    exchange->room = trek_alloc(bytes);
    exchange->room_bytes = exchange->room ? bytes : 0;
    return exchange->room ? TREK_OK : TREK_ERR_MEMORY;
}

static trek_status check(const float *values, int64_t n, int bits, double weight)
{
    if (n < 0 || (n > 0 && !values))
        return trek_fail(TREK_ERR_ARGUMENT, "exchange_mean: values: %lld values%s; must be 0 or more, and not NULL", (long long)n,
                         values ? "" : " at NULL");
    if (!trek_compress_takes(bits))
        return trek_fail(TREK_ERR_ARGUMENT, "exchange_mean: bits: %d; must be 32, 16, 8 or 4", bits);
    if (!(weight >= 0) || isinf(weight))
        return trek_fail(TREK_ERR_ARGUMENT, "exchange_mean: weight: %g; must be finite and not negative", weight);
    return TREK_OK;
}

/* --- the meeting --------------------------------------------------------------------------------- */

static trek_status check_heads(const head *heads, int world, double *total)
{
    *total = 0;
    for (int p = 0; p < world; p++)
        if (heads[p].status != TREK_OK)
            return trek_fail_after(heads[p].status, "exchange_mean: process %d cannot take part: %s", p,
                                   trek_status_description(heads[p].status));
    for (int p = 0; p < world; p++) {
        if (heads[p].n != heads[0].n || heads[p].bits != heads[0].bits)
            return trek_fail(TREK_ERR_ARGUMENT,
                             "exchange_mean: process 0 has %lld values in %d bits, process %d %lld in %d; all must have the same",
                             (long long)heads[0].n, heads[0].bits, p, (long long)heads[p].n, heads[p].bits);
        *total += heads[p].weight;
    }
    if (!(*total > 0) || isinf(*total))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "exchange_mean: weights: their sum over all processes is %g; must be finite and above 0", *total);
    return TREK_OK;
}

/* Checks that all have come with the same call and can carry it out. */
static trek_status meet(trek_exchange *exchange, const head *mine, double *total)
{
    int world = exchange->comm->world;
    trek_status status = trek_comm_gather_bytes(exchange->comm, mine, sizeof *mine, exchange->heads);
    if (status != TREK_OK)
        return status;
    exchange->sent += (world - 1) * (int64_t)sizeof *mine;
    return check_heads(exchange->heads, world, total);
}

trek_status trek_exchange_decline(trek_exchange *exchange, trek_status why)
{
    double total;
    return trek_comm_world_size(exchange->comm) == 1 ? why : meet(exchange, &(head){ .status = (int32_t)why }, &total);
}

/* --- the data ------------------------------------------------------------------------------------- */

static trek_status mean_in_full(trek_exchange *exchange, float *values, int64_t n, double share)
{
    float *restrict scaled = (float *)(void *)exchange->room, factor = (float)share;
    for (int64_t i = 0; i < n; i++)
        scaled[i] = factor > 0 ? factor * values[i] : 0;
    trek_status status = trek_comm_run(exchange->comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_SUM,
                                                                         .dtype = TREK_F32, .count = n, .in = scaled,
                                                                         .out = scaled });
    if (status == TREK_OK)
        memcpy(values, scaled, (size_t)n * sizeof *values);
    return status;
}

/* Takes back what was encoded but not used, by adding it to the error again. */
static void undo(const char *codes, const float *values, float *error, int64_t n, int bits)
{
    trek_compress_add(codes, n, bits, 1, error);
    for (int64_t i = 0; i < n; i++) {
        float before = error[i] - values[i];
        error[i] = isfinite(before) ? before : 0;
    }
}

static trek_status mean_of_codes(trek_exchange *exchange, float *values, float *error, int64_t n, int bits, double total)
{
    const head *heads = exchange->heads;
    trek_comm *comm = exchange->comm;
    size_t bytes = (size_t)trek_compress_bytes(n, bits);
    char *mine = exchange->room, *all = mine + bytes;
    bool takes_part = heads[comm->rank].weight > 0;
    if (takes_part)
        trek_compress(values, error, n, bits, mine);
    else
        memset(mine, 0, bytes); /* nobody reads it */
    trek_status status = trek_comm_gather_bytes(comm, mine, bytes, all);
    if (status != TREK_OK) {
        if (takes_part && error)
            undo(mine, values, error, n, bits);
        return status;
    }
    memset(values, 0, (size_t)n * sizeof *values);
    for (int p = 0; p < comm->world; p++)
        if (heads[p].weight > 0)
            trek_compress_add(all + (size_t)p * bytes, n, bits, (float)(heads[p].weight / total), values);
    return TREK_OK;
}

trek_status trek_exchange_mean(trek_exchange *exchange, float *values, float *error, int64_t n, int bits, double weight)
{
    trek_status status = check(values, n, bits, weight);
    int travelling = status == TREK_OK ? trek_exchange_bits(exchange, n, bits) : 32;
    if (trek_comm_world_size(exchange->comm) == 1)
        return status == TREK_OK && !(weight > 0)
                   ? trek_fail(TREK_ERR_ARGUMENT, "exchange_mean: weight: 0, with no other process; must be above 0")
                   : status;
    if (status == TREK_OK)
        status = room_for(exchange, n, travelling);
    double total = 0;
    status = meet(exchange, &(head){ .weight = weight, .n = n, .bits = bits, .status = (int32_t)status }, &total);
    if (status != TREK_OK || n == 0)
        return status;
    status = travelling < 32 ? mean_of_codes(exchange, values, error, n, bits, total)
                             : mean_in_full(exchange, values, n, weight / total);
    if (status == TREK_OK)
        exchange->sent += traffic(exchange->comm->world, n, travelling);
    return status;
}
