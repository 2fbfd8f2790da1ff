/* SPDX-License-Identifier: Apache-2.0 */
/* What recurrent layers do around their steps: lengths, initial states, threads, products. */
#include "tensor/cpu/recurrent/recurrent.h"

enum { FEW_ROWS = 1, ROW_TILE = 4, ROWS_MOST = 16 };

static size_t item(const recurrent *r) { return r->wide ? 8 : 4; }

static trek_status read_lengths(recurrent *r, const trek_tensor *lengths)
{
    if (!(r->ends = trek_block_alloc((size_t)(r->rows + 1) * sizeof *r->ends)))
        return TREK_ERR_MEMORY;
    for (int64_t row = 0; row < r->rows; row++) {
        int64_t length = trek_cpu_integer(lengths, row * lengths->strides[0]);
        if (length < 0 || length > r->steps)
            return trek_op_fail(r->call, TREK_ERR_ARGUMENT, "length %lld of row %lld is outside [0, %lld]", (long long)length,
                                (long long)row, (long long)r->steps);
        r->ends[row] = length;
    }
    return TREK_OK;
}

/* Allocates `spare` numbers and reads the lengths (NULL: all rows have all steps). Fails with ARGUMENT if a length is
 * outside [0, steps]. */
static trek_status set_up(recurrent *r, const trek_tensor *lengths, int64_t spare)
{
    atomic_init(&r->failed, false);
    trek_status status = lengths ? read_lengths(r, lengths) : TREK_OK;
    if (status != TREK_OK)
        return status;
    r->zeros = trek_block_alloc((size_t)(4 * r->hidden + 1) * item(r));
    r->spare = trek_block_alloc((size_t)(spare + 1) * item(r));
    if (!r->zeros || !r->spare)
        return TREK_ERR_MEMORY;
    memset(r->zeros, 0, (size_t)(4 * r->hidden) * item(r));
    return TREK_OK;
}

static void tear_down(recurrent *r)
{
    trek_block_free(r->spare);
    trek_block_free(r->zeros);
    trek_block_free(r->workspace);
    trek_block_free(r->packed);
    trek_block_free(r->ends);
}

/* Packs the product of every step, [rows, k] x B, with B's strides in elements of weight. A single row is a vector
 * times a matrix, which all threads read unpacked at the same speed. */
static trek_status pack(recurrent *r, const trek_tensor *weight, int64_t n, int64_t k, int64_t b_row, int64_t b_col,
                        bool accumulate)
{
    trek_dtype dtype = r->wide ? TREK_F64 : TREK_F32;
    r->product = (trek_gemm){ .n = n, .k = k, .a_col = 1, .c_col = 1, .a_dtype = dtype, .b_dtype = dtype, .b = weight->data,
                              .b_row = b_row, .b_col = b_col, .accumulate = accumulate };
    if (r->rows <= FEW_ROWS || r->steps == 0)
        return TREK_OK;
    r->packed = trek_block_alloc((TREK_ISA_NAME(trek_gemm_packed_size)(n, k) + 1) * item(r));
    r->workspace = trek_block_alloc((size_t)(r->rows * k + 1) * item(r));
    if (!r->packed || !r->workspace)
        return TREK_ERR_MEMORY;
    if (r->wide)
        TREK_ISA_NAME(trek_gemm_pack_f64)(&r->product, r->packed);
    else
        TREK_ISA_NAME(trek_gemm_pack_f32)(&r->product, r->packed);
    return TREK_OK;
}

void TREK_ISA_NAME(trek_recurrent_product)(recurrent *r, int64_t begin, int64_t end, const void *a, int64_t a_row, void *c,
                                           int64_t c_row)
{
    trek_gemm g = r->product;
    g.m = end - begin;
    g.a = a, g.a_row = a_row;
    g.c = c, g.c_row = c_row;
    if (!r->packed) {
        trek_status status = r->wide ? TREK_ISA_NAME(trek_gemm_f64)(&g) : TREK_ISA_NAME(trek_gemm_f32)(&g);
        if (status != TREK_OK)
            atomic_store(&r->failed, true);
        return;
    }
    char *workspace = (char *)r->workspace + (size_t)(begin * g.k) * item(r);
    if (r->wide)
        TREK_ISA_NAME(trek_gemm_packed_f64)(&g, r->packed, (double *)(void *)workspace);
    else
        TREK_ISA_NAME(trek_gemm_packed_f32)(&g, r->packed, (float *)(void *)workspace);
}

/* Makes two pieces for each thread, if they are not too small, because every piece reads the whole weight in every
 * step. */
static int64_t row_grain(int64_t rows)
{
    int64_t each = rows / (2 * trek_pool_threads(trek_pool_here())) / ROW_TILE * ROW_TILE;
    return each < ROW_TILE ? ROW_TILE : each < ROWS_MOST ? each : ROWS_MOST;
}

/* Calls fn for parts of the rows, or for all of them on the caller if the product has its own threads. */
static trek_status run(recurrent *r, void (*fn)(void *arg, int64_t begin, int64_t end))
{
    if (r->packed)
        trek_parallel(r->rows, row_grain(r->rows), fn, r);
    else if (r->rows > 0)
        fn(r, 0, r->rows);
    return atomic_load(&r->failed) ? trek_op_fail(r->call, TREK_ERR_MEMORY, "no memory for packing") : TREK_OK;
}

/* --- layers ---------------------------------------------------------------------- */

/* Takes sizes from a sequence [T, N, ...] and the weight [..., H]. */
static recurrent recurrent_of(const trek_op_call *call, const trek_tensor *sequence, const trek_tensor *weight)
{
    return (recurrent){ .call = call, .steps = sequence->sizes[0], .rows = sequence->sizes[1], .hidden = weight->sizes[1],
                        .reverse = call->attrs.i[0], .wide = weight->dtype == TREK_F64 };
}

/* Copies part `place` of another state to part k of a state [parts, rows, hidden]; from NULL: zeros. */
static void set_part(const recurrent *r, trek_tensor *state, int k, const trek_tensor *from, int place)
{
    size_t size = (size_t)(r->rows * r->hidden) * item(r);
    if (from)
        memcpy(state->data + (size_t)k * size, from->data + (size_t)place * size, size);
    else
        memset(state->data + (size_t)k * size, 0, size);
}

trek_status TREK_ISA_NAME(trek_recurrent_forward)(const trek_op_call *call, const recurrent_layer *layer)
{
    const trek_tensor *weight = call->inputs[1];
    recurrent r = recurrent_of(call, call->inputs[0], weight);
    trek_status status = set_up(&r, call->inputs[layer->lengths], call->attrs.i[1] ? 0 : r.rows * layer->kept * r.hidden);
    for (int k = 0; k < layer->parts; k++)
        set_part(&r, call->outputs[1], k, call->inputs[layer->initial + k], 0);
    if (status == TREK_OK)
        status = pack(&r, weight, layer->gates * r.hidden, r.hidden, 1, r.hidden, false);
    if (status == TREK_OK)
        status = run(&r, layer->forward[r.wide]);
    tear_down(&r);
    return status;
}

trek_status TREK_ISA_NAME(trek_recurrent_backward)(const trek_op_call *call, const recurrent_layer *layer)
{
    const trek_tensor *weight = call->inputs[0];
    recurrent r = recurrent_of(call, call->inputs[1], weight);
    trek_status status = set_up(&r, call->inputs[layer->grad_lengths], 0);
    for (int k = 0; k < layer->parts; k++)
        set_part(&r, call->outputs[layer->d_state], k, call->inputs[layer->grad_state], k);
    if (status == TREK_OK)
        status = pack(&r, weight, r.hidden, layer->gates * r.hidden, r.hidden, 1, true);
    if (status == TREK_OK)
        status = run(&r, layer->backward[r.wide]);
    tear_down(&r);
    return status;
}
