/* SPDX-License-Identifier: Apache-2.0 */
/* matmul and linear, expressed by one product or many. */
#include <stdatomic.h>

#include "tensor/cpu/dense.h"
#include "tensor/cpu/products/gemm_amx.h"
#include "tensor/rank_context.h"

static trek_status run_gemm(const trek_gemm *g, trek_dtype dtype)
{
    return dtype == TREK_F64 ? TREK_ISA_NAME(trek_gemm_f64)(g) : TREK_ISA_NAME(trek_gemm_f32)(g);
}

static void *at(const trek_tensor *t, int64_t offset)
{
    return t->data + offset * (int64_t)trek_dtype_size((trek_dtype)t->dtype);
}

/* Combines the leading dimensions [0, count) into one if their strides allow it; those of an empty tensor do not
 * matter. */
static bool one_dimension(const trek_tensor *t, int count, int64_t *size, int64_t *stride)
{
    *size = 1;
    *stride = 0;
    if (t->numel == 0) {
        for (int d = 0; d < count; d++)
            *size *= t->sizes[d];
        return true;
    }
    for (int d = count - 1; d >= 0; d--) {
        if (t->sizes[d] == 1)
            continue;
        if (*size == 1)
            *stride = t->strides[d];
        else if (t->strides[d] != *stride * *size)
            return false;
        *size *= t->sizes[d];
    }
    return true;
}

/* Returns the rows of a grain if the thread runs several at once, and `rows` are theirs; 0: they are one product's. */
static int64_t rows_of_grain(int64_t rows)
{
    int64_t grains = trek_rank_here.grains;
    return grains > 1 && rows % grains == 0 ? rows / grains : 0;
}

/* -- linear -- */

/* Computes y = act(x W^T + b) into contiguous outputs; x has rows of one stride. */
static trek_status linear_rows(const trek_op_call *call, const trek_tensor *x, int64_t rows, int64_t stride,
                               const trek_tensor *bias)
{
    const trek_tensor *weight = call->inputs[1];
    trek_tensor *y = call->outputs[0];
    trek_gemm g = { .m = rows, .n = weight->sizes[0], .k = weight->sizes[1], .unit = rows_of_grain(rows) };
    g.a = x->data;
    g.a_dtype = (trek_dtype)x->dtype;
    g.a_row = stride;
    g.a_col = x->strides[x->ndim - 1];
    g.b = weight->data;
    g.b_dtype = (trek_dtype)weight->dtype;
    g.b_row = weight->strides[1];
    g.b_col = weight->strides[0];
    g.c = y->data;
    g.c_dtype = (trek_dtype)y->dtype;
    g.c_row = g.n;
    g.c_col = 1;
    g.bias = bias ? bias->data : NULL;
    g.bias_dtype = bias ? (trek_dtype)bias->dtype : TREK_F32;
    g.bias_col = 1;
    g.activation = (trek_activation)call->attrs.i[0];
    g.pre = g.activation == TREK_ACTIVATION_GELU && call->n_outputs > 1 && call->outputs[1] ? call->outputs[1]->data : NULL;
    return run_gemm(&g, (trek_dtype)y->dtype);
}

/* Outputs are contiguous; inputs may have any strides. */
static trek_status linear_contiguous(const trek_op_call *call)
{
    trek_tensor *x = call->inputs[0], *bias = call->n_inputs > 2 ? call->inputs[2] : NULL, *own_bias = NULL, *own_x = NULL;
    int64_t rows, stride;
    trek_status status = TREK_OK;
    trek_dtype result = (trek_dtype)call->outputs[0]->dtype;
    if (bias && (!bias->contiguous || (result == TREK_F64 && bias->dtype != TREK_F64))) {
        trek_tensor *cast = trek_tensor_cast(bias, result);
        bias = own_bias = cast ? trek_tensor_contiguous(cast) : NULL;
        trek_tensor_release(cast);
        if (!bias)
            return trek_error_status();
    }
    if (!one_dimension(x, x->ndim - 1, &rows, &stride)) {
        x = own_x = trek_tensor_contiguous(x);
        if (x)
            one_dimension(x, x->ndim - 1, &rows, &stride);
        else
            status = trek_error_status();
    }
    if (status == TREK_OK)
        status = linear_rows(call, x, rows, stride, bias);
    trek_tensor_release(own_bias);
    trek_tensor_release(own_x);
    return status;
}

static trek_status linear(const trek_op_call *call)
{
    bool contiguous = true;
    for (int k = 0; k < call->n_outputs; k++)
        contiguous = contiguous && (!call->outputs[k] || call->outputs[k]->contiguous);
    return contiguous ? linear_contiguous(call) : trek_cpu_run_dense(call, 0, 0, linear_contiguous);
}

/* -- matmul -- */

/* A matmul as a batch of products: the leading dimensions of C and each operand's strides over them (0: broadcast). */
typedef struct matmul_batch {
    trek_gemm gemm;
    const trek_tensor *x, *y, *c;
    trek_dtype dtype;
    int ndim;
    int64_t count;
    int64_t sizes[TREK_MAX_DIMS], x_strides[TREK_MAX_DIMS], y_strides[TREK_MAX_DIMS], c_strides[TREK_MAX_DIMS];
    atomic_bool failed;
} matmul_batch;

static void batch_strides(const trek_tensor *t, int own, const matmul_batch *batch, int64_t *strides)
{
    for (int d = 0; d < batch->ndim; d++) {
        int place = d - (batch->ndim - own);
        strides[d] = place >= 0 && t->sizes[place] > 1 ? t->strides[place] : 0;
    }
}

static void matmul_setup(const trek_op_call *call, matmul_batch *batch)
{
    const trek_tensor *x = call->inputs[0], *y = call->inputs[1], *c = call->outputs[0];
    bool x_vector = x->ndim == 1, y_vector = y->ndim == 1;
    trek_gemm *g = &batch->gemm;
    batch->x = x, batch->y = y, batch->c = c;
    batch->dtype = (trek_dtype)c->dtype;
    batch->ndim = c->ndim - !x_vector - !y_vector;
    batch->count = 1;
    for (int d = 0; d < batch->ndim; d++)
        batch->count *= batch->sizes[d] = c->sizes[d];
    batch_strides(x, x_vector ? 0 : x->ndim - 2, batch, batch->x_strides);
    batch_strides(y, y_vector ? 0 : y->ndim - 2, batch, batch->y_strides);
    batch_strides(c, batch->ndim, batch, batch->c_strides);
    g->accumulate = call->attrs.i[0] & 1;
    g->k = x->sizes[x->ndim - 1];
    g->m = x_vector ? 1 : x->sizes[x->ndim - 2];
    g->n = y_vector ? 1 : y->sizes[y->ndim - 1];
    g->a_dtype = (trek_dtype)x->dtype;
    g->b_dtype = (trek_dtype)y->dtype;
    g->c_dtype = batch->dtype;
    g->a_col = x->strides[x->ndim - 1];
    g->a_row = x_vector ? g->k : x->strides[x->ndim - 2];
    g->b_row = y->strides[y_vector ? 0 : y->ndim - 2];
    g->b_col = y_vector ? 1 : y->strides[y->ndim - 1];
    g->c_col = y_vector ? 1 : c->strides[c->ndim - 1];
    g->c_row = x_vector ? g->n : c->strides[c->ndim - (y_vector ? 1 : 2)];
}

/* One y for all: the rows of all x are the rows of one matrix, if their strides are regular. */
static void matmul_join_rows(matmul_batch *batch)
{
    trek_gemm *g = &batch->gemm;
    while (batch->ndim > 0 && batch->x->ndim > 1) {
        int d = batch->ndim - 1;
        if (g->m == 1 && batch->y_strides[d] == 0)
            g->a_row = batch->x_strides[d], g->c_row = batch->c_strides[d];
        if (batch->sizes[d] != 1 && (batch->y_strides[d] != 0 || batch->x_strides[d] != g->a_row * g->m ||
                                     batch->c_strides[d] != g->c_row * g->m))
            return;
        g->m *= batch->sizes[d];
        batch->count = batch->sizes[d] ? batch->count / batch->sizes[d] : 0;
        batch->ndim--;
    }
}

static void matmul_run(void *arg, int64_t begin, int64_t end)
{
    matmul_batch *batch = arg;
    const trek_amx *amx = end - begin > 1 ? TREK_ISA_NAME(trek_gemm_amx_serving)(&batch->gemm) : NULL;
    if (amx)
        amx->begin(); /* once for all */
    for (int64_t i = begin; i < end; i++) {
        int64_t x = 0, y = 0, c = 0, rest = i;
        for (int d = batch->ndim - 1; d >= 0; d--) {
            int64_t index = rest % batch->sizes[d];
            rest /= batch->sizes[d];
            x += index * batch->x_strides[d];
            y += index * batch->y_strides[d];
            c += index * batch->c_strides[d];
        }
        trek_gemm g = batch->gemm;
        g.a = at(batch->x, x);
        g.b = at(batch->y, y);
        g.c = at(batch->c, c);
        if (run_gemm(&g, batch->dtype) != TREK_OK)
            batch->failed = true;
    }
    if (amx)
        amx->end();
}

/* The output may have any floating dtype and any strides. */
static trek_status product_float(const trek_op_call *call)
{
    matmul_batch batch; /* large compared with a small product, so only what is necessary is set to zero */
    batch.gemm = (trek_gemm){ .m = 0 };
    atomic_init(&batch.failed, false);
    matmul_setup(call, &batch);
    matmul_join_rows(&batch);
    if (batch.count == 0)
        return TREK_OK;
    if (batch.count == 1)
        batch.gemm.unit = rows_of_grain(batch.gemm.m);
    const trek_gemm *g = &batch.gemm;
    double work = (double)g->m * (double)g->n * (double)(g->k + 1);
    if (batch.count == 1 || work > 1e6) {
        matmul_run(&batch, 0, batch.count);
    } else {
        int64_t grain = (int64_t)(1e5 / (work + 1)) + 1;
        trek_parallel(batch.count, grain, matmul_run, &batch);
    }
    return batch.failed ? trek_op_fail(call, TREK_ERR_MEMORY, "no memory for packing") : TREK_OK;
}

static trek_status matmul_float(const trek_op_call *call)
{
    trek_status status = product_float(call);
    if (status != TREK_OK || !(call->attrs.i[0] & 2))
        return status;
    trek_op_call sum = { .op = call->op, .n_inputs = 1, .inputs = call->inputs, .n_outputs = 1, .outputs = { call->outputs[1] } };
    sum.attrs.i[0] = 2; /* over dimension 1, by its bit */
    return trek_cpu_backend()->kernels[TREK_OP_sum][call->inputs[0]->dtype](&sum);
}

/* Integers: processes rows of all products, each sum in the dtype itself (wrapping). PANEL columns are summed in
 * registers at a time. B is read in place if its columns are adjacent; otherwise DEPTH rows of it are copied. */
enum { PANEL = 32, DEPTH = 64, TOGETHER = 4 };
#define TREK_MATMUL_INTEGER(NAME, name, type)                                                                                    \
    static inline __attribute__((always_inline)) void matmul_sums_##name(                                                        \
        const trek_gemm *g, int rows, const type *x, const type *panel, int64_t next, type *to, int64_t n, int64_t k, bool add)  \
    {                                                                                                                            \
        type sums[TOGETHER][PANEL] = { { 0 } };                                                                                  \
        for (int r = 0; r < rows; r++)                                                                                           \
            for (int64_t j = 0; add && j < n; j++)                                                                               \
                sums[r][j] = to[r * g->c_row + j * g->c_col];                                                                    \
        for (int64_t p = 0; p < k; p++)                                                                                          \
            for (int r = 0; r < rows; r++)                                                                                       \
                for (int64_t j = 0; j < PANEL; j++)                                                                              \
                    sums[r][j] = (type)(sums[r][j] + x[r * g->a_row + p * g->a_col] * panel[p * next + j]);                      \
        for (int r = 0; r < rows; r++)                                                                                           \
            for (int64_t j = 0; j < n; j++)                                                                                      \
                to[r * g->c_row + j * g->c_col] = sums[r][j];                                                                    \
    }                                                                                                                            \
    static void matmul_panel_##name(const trek_gemm *g, int64_t rows, const type *a, const type *b, type *c, int64_t n,          \
                                    int64_t k, bool add)                                                                         \
    {                                                                                                                            \
        type gathered[DEPTH * PANEL];                                                                                            \
        bool direct = g->b_col == 1 && n == PANEL;                                                                               \
        for (int64_t p = 0; !direct && p < k; p++)                                                                               \
            for (int64_t j = 0; j < PANEL; j++)                                                                                  \
                gathered[p * PANEL + j] = j < n ? b[p * g->b_row + j * g->b_col] : 0;                                            \
        const type *panel = direct ? b : gathered;                                                                               \
        const int64_t next = direct ? g->b_row : PANEL;                                                                          \
        int64_t row = 0;                                                                                                         \
        for (; row + TOGETHER <= rows; row += TOGETHER)                                                                          \
            matmul_sums_##name(g, TOGETHER, a + row * g->a_row, panel, next, c + row * g->c_row, n, k, add);                     \
        for (; row < rows; row++)                                                                                                \
            matmul_sums_##name(g, 1, a + row * g->a_row, panel, next, c + row * g->c_row, n, k, add);                            \
    }                                                                                                                            \
    static void matmul_rows_##name(void *arg, int64_t begin, int64_t end)                                                        \
    {                                                                                                                            \
        const matmul_batch *batch = arg;                                                                                         \
        const trek_gemm *g = &batch->gemm;                                                                                       \
        for (int64_t rows; begin < end; begin += rows) {                                                                         \
            int64_t i = begin % g->m, x = i * g->a_row, y = 0, c = i * g->c_row, rest = begin / g->m;                            \
            rows = g->m - i < end - begin ? g->m - i : end - begin;                                                              \
            for (int d = batch->ndim - 1; d >= 0; d--) {                                                                         \
                int64_t index = rest % batch->sizes[d];                                                                          \
                rest /= batch->sizes[d];                                                                                         \
                x += index * batch->x_strides[d];                                                                                \
                y += index * batch->y_strides[d];                                                                                \
                c += index * batch->c_strides[d];                                                                                \
            }                                                                                                                    \
            const type *a = at(batch->x, x), *b = at(batch->y, y);                                                               \
            type *to = at(batch->c, c);                                                                                          \
            for (int64_t j = 0; j < g->n; j += PANEL)                                                                            \
                for (int64_t p = 0; p == 0 || p < g->k; p += DEPTH)                                                              \
                    matmul_panel_##name(g, rows, a + p * g->a_col, b + p * g->b_row + j * g->b_col, to + j * g->c_col,           \
                                        g->n - j < PANEL ? g->n - j : PANEL, g->k - p < DEPTH ? g->k - p : DEPTH,                \
                                        p > 0 || g->accumulate);                                                                 \
        }                                                                                                                        \
    }                                                                                                                            \
    static trek_status matmul_##name(const trek_op_call *call)                                                                   \
    {                                                                                                                            \
        matmul_batch batch = { .failed = false };                                                                                \
        matmul_setup(call, &batch);                                                                                              \
        int64_t work = batch.gemm.n * batch.gemm.k;                                                                              \
        trek_parallel(batch.count *batch.gemm.m, 1 + 65536 / (work + 1), matmul_rows_##name, &batch);                            \
        return TREK_OK;                                                                                                          \
    }
TREK_MATMUL_INTEGER(I64, i64, int64_t)
TREK_MATMUL_INTEGER(I32, i32, int32_t)
TREK_MATMUL_INTEGER(U8, u8, uint8_t)

void TREK_ISA_NAME(trek_cpu_register_matmul)(trek_backend *b)
{
    trek_kernel *matmul = b->kernels[TREK_OP_matmul];
    matmul[TREK_F32] = matmul[TREK_F64] = matmul[TREK_BF16] = matmul[TREK_F16] = matmul_float;
    matmul[TREK_I64] = matmul_i64;
    matmul[TREK_I32] = matmul_i32;
    matmul[TREK_U8] = matmul_u8;
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1)
            b->kernels[TREK_OP_linear][dtype] = linear;
}
