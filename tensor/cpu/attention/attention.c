/* SPDX-License-Identifier: Apache-2.0 */
/* Scaled dot-product attention without the matrix of scores. It processes blocks of queries against blocks of keys
 * and updates the softmax with each block (Milakov and Gimelshein 2018; Dao and others 2022). Backward computes the
 * probabilities again from the logsumexp. Every sum runs over blocks in a fixed order, however the work is divided
 * among threads: ascending over keys, descending over queries, so that under a causal mask the first block that
 * reaches some keys reaches all of them. */
#include <math.h>
#include <stdatomic.h>

#include "tensor/cpu/dense.h"
#include "tensor/cpu/products/gemm.h"
#include "tensor/cpu/row_math.h"
#include "tensor/random_internal.h"

enum {
    QUERIES = 64,             /* of a block */
    KEYS = 256,
    PITCH = KEYS + 16,        /* between a block's rows: not a multiple of 1 KiB, which would map to few cache sets */
    FEW = 4,                  /* rows and vectors that a step's products keep in registers */
    FEW_QUERIES = 8,
    AHEAD = 8192,             /* bytes of keys and values that are prefetched */
};

typedef struct attention_job {
    const trek_op_call *call;
    const trek_tensor *q, *k, *v, *mask, *y, *dy;
    const trek_tensor *lse;   /* an output in the forward pass */
    const trek_tensor *dq, *dk, *dv; /* f32 or f64 */
    void *delta;              /* [B, H, T]: the sum of dy y */
    int64_t heads, kv_heads, group, queries, keys, depth;
    int64_t query_blocks, key_blocks;
    double scale, p;
    bool causal;
    atomic_bool failed;       /* no memory */
} attention_job;

static bool rows_are_plain(const trek_tensor *t) { return t->strides[3] == 1 && !trek_cpu_is_half(t); }

/* Returns whether each key is used too seldom to use tiles. 16-bit products have other methods for that. */
static bool few_queries(const attention_job *job)
{
    return job->queries <= FEW_QUERIES && rows_are_plain(job->q) && rows_are_plain(job->k) && rows_are_plain(job->v);
}

/* Returns element (b, h, i, 0) of a tensor with four dimensions. */
static const char *place_of(const trek_tensor *t, int64_t b, int64_t h, int64_t i)
{
    return t->data + (b * t->strides[0] + h * t->strides[1] + i * t->strides[2]) * trek_item_size[t->dtype];
}

/* Sets elements (b, h, [i, i + rows), :) to zero. */
static void clear_rows(const trek_tensor *t, int64_t b, int64_t h, int64_t i, int64_t rows)
{
    int64_t item = trek_item_size[t->dtype];
    for (int64_t r = i; r < i + rows; r++) {
        char *row = (char *)(uintptr_t)place_of(t, b, h, r);
        for (int64_t d = 0; d < t->sizes[3]; d += t->strides[3] == 1 ? t->sizes[3] : 1)
            memset(row + d * t->strides[3] * item, 0, (size_t)((t->strides[3] == 1 ? t->sizes[3] : 1) * item));
    }
}

/* Returns the offset of (b, h, i, j) in the mask, whose dimensions are aligned at the last one and repeat if their
 * size is 1. */
static int64_t mask_offset(const trek_tensor *mask, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t index[4] = { b, h, i, j };
    int64_t offset = 0;
    for (int d = 0; d < mask->ndim; d++)
        if (mask->sizes[d] != 1)
            offset += index[4 - mask->ndim + d] * mask->strides[d];
    return offset;
}

static double number_at(const trek_tensor *t, int64_t offset)
{
    const void *data = t->data;
    switch (t->dtype) {
    case TREK_F32: return ((const float *)data)[offset];
    case TREK_F64: return ((const double *)data)[offset];
    case TREK_BF16: return trek_f32_from_bf16(((const uint16_t *)data)[offset]);
    default: return trek_f32_from_f16(((const uint16_t *)data)[offset]);
    }
}

/* Draws random words for row (b, h, i), keys [j, j + n), with space for n + 8. Returns the position of the first. */
static const uint32_t *dropout_words(const attention_job *job, int64_t b, int64_t h, int64_t i, int64_t j, int64_t n,
                                     uint32_t *room)
{
    const int64_t *draw = job->call->attrs.i;
    int64_t place = draw[3] + ((b * job->heads + h) * job->queries + i) * job->keys + j;
    uint64_t first = (uint64_t)place / 4, last = (uint64_t)(place + n - 1) / 4;
    for (uint64_t block = first; block <= last; block++)
        trek_philox((uint64_t)draw[0], block, (uint32_t)draw[2], (uint32_t)draw[1], room + 4 * (block - first));
    return room + place % 4;
}

/* Computes e^(x - shift) in place, which is at most 1 except for rounding; -infinity gives 0. */
static void exponentials_f32(float *x, int64_t n, float shift)
{
    const trek_wide top = trek_spread_wide(shift);
    int64_t i = 0;
    for (; i + TREK_WIDE <= n; i += TREK_WIDE)
        trek_store_wide(x + i, trek_exp_negative_wide(trek_load_wide(x + i) - top));
    for (; i < n; i++)
        x[i] = trek_exp_negative_f32(x[i] - shift);
}

static void exponentials_f64(double *x, int64_t n, double shift)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = exp(x[i] - shift);
}

static double exp_sum_f32(float *x, int64_t n, float shift) { return trek_row_exp_sum_f32(x, x, n, shift); }

static double exp_sum_f64(double *x, int64_t n, double shift)
{
    exponentials_f64(x, n, shift);
    return trek_row_sum_f64(x, n);
}

static float largest_f32(const float *x, int64_t n) { return trek_row_max_number_f32(x, n); }

static double largest_f64(const double *x, int64_t n)
{
    double top = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        top = x[i] > top ? x[i] : top;
    return top;
}

#define TREK_REAL f32
#include "tensor/cpu/attention/attention_template.h"
#undef TREK_REAL
#define TREK_REAL f64
#include "tensor/cpu/attention/attention_template.h"
#undef TREK_REAL

static void job_init(attention_job *job, const trek_op_call *call, const trek_tensor *q, const trek_tensor *k,
                     const trek_tensor *v,
                     const trek_tensor *mask)
{
    job->call = call;
    job->q = q;
    job->k = k;
    job->v = v;
    job->mask = mask;
    job->heads = q->sizes[1];
    job->kv_heads = k->sizes[1];
    job->group = job->kv_heads ? job->heads / job->kv_heads : 0;
    job->queries = q->sizes[2];
    job->keys = k->sizes[2];
    job->depth = q->sizes[3];
    job->query_blocks = (job->queries + QUERIES - 1) / QUERIES;
    job->key_blocks = (job->keys + KEYS - 1) / KEYS;
    job->scale = call->attrs.f[1];
    job->p = call->attrs.f[0];
    job->causal = call->attrs.i[4] != 0;
    atomic_init(&job->failed, false);
}

/* Makes units of at least about 100 thousand multiplications. */
static int64_t unit_grain(double work) { return (int64_t)(1e5 / (work + 1)) + 1; }

static trek_status finish(const attention_job *job)
{
    return job->failed ? trek_op_fail(job->call, TREK_ERR_MEMORY, "no memory for blocks of scores") : TREK_OK;
}

static trek_status attention(const trek_op_call *call)
{
    attention_job job = { .y = call->outputs[0], .lse = call->outputs[1] };
    job_init(&job, call, call->inputs[0], call->inputs[1], call->inputs[2], call->n_inputs > 3 ? call->inputs[3] : NULL);
    double work = (double)(job.queries < QUERIES ? job.queries : QUERIES) * (double)job.keys * (double)(2 * job.depth + 8);
    trek_parallel(job.q->sizes[0] * job.heads * job.query_blocks, unit_grain(work),
                  job.q->dtype == TREK_F64 ? forward_units_f64 : forward_units_f32, &job);
    return finish(&job);
}

/* If there are fewer pairs of sample and head than threads, gradients of keys and of queries are computed separately,
 * each divided into blocks, with 7 products instead of 5. */
static trek_status backward_dense(const trek_op_call *call)
{
    attention_job job = { .dy = call->inputs[0], .y = call->inputs[4], .lse = call->inputs[5], .dq = call->outputs[0],
                          .dk = call->outputs[1], .dv = call->outputs[2] };
    job_init(&job, call, call->inputs[1], call->inputs[2], call->inputs[3], call->n_inputs > 6 ? call->inputs[6] : NULL);
    bool wide = job.q->dtype == TREK_F64;
    int64_t rows = job.q->sizes[0] * job.heads * job.queries, pairs = job.q->sizes[0] * job.kv_heads;
    job.delta = trek_block_alloc((size_t)(rows + 1) * (wide ? 8 : 4));
    if (!job.delta)
        return TREK_ERR_MEMORY;
    trek_parallel(rows, 16384 / (job.depth + 1) + 1, wide ? delta_rows_f64 : delta_rows_f32, &job);
    double per_block = (double)job.queries * (double)(job.keys < KEYS ? job.keys
                                                      : KEYS) * (double)(job.group * (5 * job.depth + 8));
    if (pairs >= 2 * trek_pool_threads(trek_pool_here()) || job.key_blocks * job.query_blocks <= 1) {
        trek_parallel(pairs, unit_grain(per_block * (double)job.key_blocks), wide ? backward_pairs_f64 : backward_pairs_f32,
                      &job);
    } else {
        trek_parallel(pairs * job.key_blocks, unit_grain(per_block), wide ? backward_keys_f64 : backward_keys_f32, &job);
        trek_parallel(job.q->sizes[0] * job.heads * job.query_blocks, unit_grain(per_block),
                      wide ? backward_queries_f64 : backward_queries_f32, &job);
    }
    trek_block_free(job.delta);
    return finish(&job);
}

/* The products accept 16-bit inputs of any strides directly, and write results of any strides. */
static trek_status attention_backward(const trek_op_call *call)
{
    bool direct = call->inputs[5]->contiguous && !trek_cpu_is_half(call->outputs[0]);
    return direct ? backward_dense(call) : trek_cpu_dense(call, 1u << 5, backward_dense);
}

void TREK_ISA_NAME(trek_cpu_register_attention)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_attention][dtype] = attention;
            b->kernels[TREK_OP_attention_backward][dtype] = attention_backward;
        }
}
