/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of a classifier's last layer, which computes the logits for a piece of the rows at a time. For a sum or
 * mean, forward replaces the logits by their gradients and stores what these give to x and weight. Otherwise it
 * stores the rows' logsumexp, and backward computes the logits again. Pieces depend only on sizes, and are added in
 * order. */
#include "tensor/cpu/reduce/cross_entropy_rows.h"
#include "tensor/cpu/products/gemm.h"

typedef struct pieces {
    const trek_op_call *call;
    const trek_tensor *x, *weight, *bias;
    int64_t rows, columns, classes, piece;  /* piece: rows of one */
    bool wide;                              /* f64 */
    char *logits;                           /* [piece, classes] */
    char *dx, *dweight, *dbias;             /* where gradients are written, contiguous; NULL: not wanted */
} pieces;

/* Returns an eighth of the rows, so that all logits and their gradient would take 16 times the memory. Small ones are
 * one piece. A piece has at least 64 rows, which makes products faster, and otherwise at most 16 M numbers. */
static int64_t piece_of(int64_t rows, int64_t classes)
{
    const int64_t most = 1 << 24, small = 1 << 18;
    if (classes == 0 || rows <= small / classes)
        return rows;
    int64_t piece = (rows + 7) / 8;
    if (piece > most / classes)
        piece = most / classes;
    return piece < 64 ? 64 : piece;
}

static trek_status pieces_begin(pieces *p, const trek_op_call *call, const trek_tensor *x, const trek_tensor *weight,
                                const trek_tensor *bias)
{
    *p = (pieces){ .call = call, .x = x, .weight = weight, .bias = bias, .rows = x->sizes[0], .columns = x->sizes[1],
                   .classes = weight->sizes[0], .wide = x->dtype == TREK_F64 };
    p->piece = piece_of(p->rows, p->classes);
    p->logits = trek_block_alloc((size_t)(p->piece * p->classes + 1) * (p->wide ? 8 : 4));
    return p->logits ? TREK_OK : TREK_ERR_MEMORY;
}

static trek_status product(const pieces *p, const trek_gemm *g)
{
    trek_status status = p->wide ? TREK_ISA_NAME(trek_gemm_f64)(g) : TREK_ISA_NAME(trek_gemm_f32)(g);
    return status == TREK_OK ? TREK_OK : trek_op_fail(p->call, TREK_ERR_MEMORY, "no memory for packing");
}

static const void *rows_from(const trek_tensor *t, int64_t row)
{
    return t->data + row * t->strides[0] * trek_item_size[t->dtype];
}

/* Computes the logits of rows [first, first + n). */
static trek_status make_logits(const pieces *p, int64_t first, int64_t n)
{
    const trek_tensor *x = p->x, *w = p->weight;
    return product(p, &(trek_gemm){ .m = n, .n = p->classes, .k = p->columns, .a = rows_from(x, first),
                                    .a_dtype = (trek_dtype)x->dtype,
                                    .a_row = x->strides[0], .a_col = x->strides[1], .b = w->data, .b_dtype = (trek_dtype)w->dtype,
                                    .b_row = w->strides[1], .b_col = w->strides[0], .c = p->logits, .c_row = p->classes,
                                        .c_col = 1,
                                    .bias = p->bias ? p->bias->data : NULL, .bias_col = 1 });
}

static loss_job job_of(const pieces *p, const trek_tensor *labels)
{
    return (loss_job){ .logits = p->logits, .labels = labels, .classes = p->classes, .ignore = p->call->attrs.i[0],
                       .smoothing = p->call->attrs.f[0], .weight_sum = (double)p->classes,
                       .grad_logits = p->logits }; /* in place */
}

static int64_t row_grain(const pieces *p) { return 8192 / (p->classes + 1) + 1; }

/* --- gradients ------------------------------------------------------------------------ */

/* Adds the columns of a piece's gradients, row after row. */
typedef struct column_sums {
    const char *grads;
    char *to;
    int64_t rows, columns;
} column_sums;

#define COLUMN_SUMS(suffix, T)                                                                         \
    static void column_sums_##suffix(void *arg, int64_t begin, int64_t end)                            \
    {                                                                                                  \
        const column_sums *s = arg;                                                                    \
        T *to = (T *)(void *)s->to;                                                                    \
        for (int64_t row = 0; row < s->rows; row++) {                                                  \
            const T *from = (const T *)(const void *)s->grads + row * s->columns;                      \
            for (int64_t c = begin; c < end; c++)                                                      \
                to[c] += from[c];                                                                      \
        }                                                                                              \
    }
COLUMN_SUMS(f32, float)
COLUMN_SUMS(f64, double)

/* Adds what the gradients of a piece's logits, which are in p->logits, give to dx, dweight and dbias. */
static trek_status spread_gradients(const pieces *p, int64_t first, int64_t n)
{
    const trek_tensor *x = p->x, *w = p->weight;
    trek_dtype own = p->wide ? TREK_F64 : TREK_F32;
    trek_status status = TREK_OK;
    if (p->dx)
        status = product(p, &(trek_gemm){ .m = n, .n = p->columns, .k = p->classes, .a = p->logits, .a_dtype = own,
            .a_row = p->classes, .a_col = 1, .b = w->data, .b_dtype = (trek_dtype)w->dtype, .b_row = w->strides[0],
                .b_col = w->strides[1],
            .c = p->dx + first * p->columns * (p->wide ? 8 : 4), .c_row = p->columns, .c_col = 1 });
    if (status == TREK_OK && p->dweight)
        status = product(p, &(trek_gemm){ .m = p->classes, .n = p->columns, .k = n, .a = p->logits, .a_dtype = own, .a_row = 1,
            .a_col = p->classes, .b = rows_from(x, first), .b_dtype = (trek_dtype)x->dtype, .b_row = x->strides[0],
                .b_col = x->strides[1],
            .c = p->dweight, .c_row = p->columns, .c_col = 1, .accumulate = first > 0 });
    if (status != TREK_OK || !p->dbias)
        return status;
    column_sums sums = { .grads = p->logits, .to = p->dbias, .rows = n, .columns = p->classes };
    trek_parallel(p->classes, 16384 / (n + 1) + 16, p->wide ? column_sums_f64 : column_sums_f32, &sums);
    return TREK_OK;
}

/* Sets sums to zero to which pieces add, or which none will write. */
static void clear_sums(const pieces *p)
{
    size_t item = p->wide ? 8 : 4;
    if (p->dbias)
        memset(p->dbias, 0, (size_t)p->classes * item);
    if (p->dweight && p->rows == 0)
        memset(p->dweight, 0, (size_t)(p->classes * p->columns) * item);
}

/* Computes logits piece by piece, and of each piece the rows' losses, if job has memory for them, then its gradients,
 * if some are wanted. */
static trek_status each_piece(const pieces *p, const loss_job *job)
{
    bool gradients = p->dx || p->dweight || p->dbias;
    trek_status status = TREK_OK;
    clear_sums(p);
    for (int64_t first = 0; status == TREK_OK && first < p->rows; first += p->piece) {
        int64_t n = p->rows - first < p->piece ? p->rows - first : p->piece;
        loss_job part = *job;
        part.first_row = first;
        part.lse += first;
        part.losses = job->losses ? job->losses + first : NULL;
        part.grads = job->grads ? job->grads + first : NULL;
        status = make_logits(p, first, n);
        if (status == TREK_OK && part.losses)
            trek_parallel(n, row_grain(p), p->wide ? loss_rows_f64 : loss_rows_f32, &part);
        if (status != TREK_OK || !gradients)
            continue;
        trek_parallel(n, row_grain(p), p->wide ? grad_rows_f64 : grad_rows_f32, &part);
        status = spread_gradients(p, first, n);
    }
    return status;
}

/* --- forward -------------------------------------------------------------------------- */


static void write_losses(const trek_op_call *call, const trek_tensor *labels, const double *losses)
{
    double loss = 0, total = 0;
    for (int64_t row = 0; row < labels->numel; row++) {
        total += trek_cpu_integer(labels, row) != call->attrs.i[0];
        loss += losses[row];
    }
    if (call->attrs.i[1] == TREK_REDUCTION_MEAN)
        loss = total > 0 ? loss / total : 0;
    trek_cpu_write_vector(call->outputs[0], call->attrs.i[1] == TREK_REDUCTION_NONE ? losses : &loss);
    trek_cpu_write_vector(call->outputs[2], &total);
}

/* Writes the requested gradients into `kept`, one after the other. */
static void keep_gradients(pieces *p, char *kept)
{
    const int64_t wanted = p->call->attrs.i[2], item = p->wide ? 8 : 4;
    p->dx = wanted & TREK_HEAD_X ? kept : NULL;
    kept += wanted & TREK_HEAD_X ? p->rows * p->columns * item : 0;
    p->dweight = wanted & TREK_HEAD_WEIGHT ? kept : NULL;
    kept += wanted & TREK_HEAD_WEIGHT ? p->classes * p->columns * item : 0;
    p->dbias = wanted & TREK_HEAD_BIAS ? kept : NULL;
}

static trek_status forward_dense(const trek_op_call *call)
{
    const trek_tensor *labels = call->inputs[3];
    pieces p;
    trek_status status = check_labels(call, labels, call->inputs[1]->sizes[0]);
    if (status != TREK_OK)
        return status;
    double *losses = trek_block_alloc((size_t)(labels->numel + 1) * sizeof *losses);
    if (!losses)
        return TREK_ERR_MEMORY;
    status = pieces_begin(&p, call, call->inputs[0], call->inputs[1], call->inputs[2]);
    if (status == TREK_OK) {
        loss_job job = job_of(&p, labels);
        job.lse = (double *)(void *)call->outputs[1]->data;
        job.losses = losses;
        job.grad = TREK_HEAD_UNIT(call->inputs[0]->dtype);
        keep_gradients(&p, call->attrs.i[2] ? call->outputs[3]->data : NULL);
        status = each_piece(&p, &job);
    }
    if (status == TREK_OK)
        write_losses(call, labels, losses);
    trek_block_free(p.logits);
    trek_block_free(losses);
    return status;
}

/* --- backward --------------------------------------------------------------------------- */

/* Reads the gradients of the rows into grads[] (reduction none), or one for all of them. */
static void read_gradient(const trek_op_call *call, loss_job *job, double *grads)
{
    double total;
    if (call->attrs.i[1] == TREK_REDUCTION_NONE) {
        trek_cpu_read_vector(call->inputs[0], grads);
        job->grads = grads;
        return;
    }
    trek_cpu_read_vector(call->inputs[0], &job->grad);
    trek_cpu_read_vector(call->inputs[6], &total);
    if (call->attrs.i[1] == TREK_REDUCTION_MEAN)
        job->grad = total != 0 ? job->grad / total : 0;
}

static trek_status backward_dense(const trek_op_call *call)
{
    const trek_tensor *labels = call->inputs[4];
    pieces p;
    trek_status status = check_labels(call, labels, call->inputs[2]->sizes[0]);
    if (status != TREK_OK)
        return status;
    double *grads = trek_block_alloc((size_t)(labels->numel + 1) * sizeof *grads);
    if (!grads)
        return TREK_ERR_MEMORY;
    status = pieces_begin(&p, call, call->inputs[1], call->inputs[2], call->inputs[3]);
    if (status == TREK_OK) {
        loss_job job = job_of(&p, labels);
        job.lse = (double *)(void *)call->inputs[5]->data;
        read_gradient(call, &job, grads);
        p.dx = call->outputs[0]->data;
        p.dweight = call->outputs[1]->data;
        p.dbias = p.bias ? call->outputs[2]->data : NULL;
        status = each_piece(&p, &job);
    }
    trek_block_free(p.logits);
    trek_block_free(grads);
    return status;
}

/* --- backward of gradients that forward has kept ------------------------------------------- */

typedef struct scaling {
    const char *from;
    char *to;
    double factor;
    bool add;
} scaling;

#define SCALE(suffix, T)                                                                               \
    static void scale_##suffix(void *arg, int64_t begin, int64_t end)                                  \
    {                                                                                                  \
        const scaling *s = arg;                                                                        \
        const T *from = (const T *)(const void *)s->from, factor = (T)s->factor;                       \
        T *to = (T *)(void *)s->to;                                                                    \
        if (s->add)                                                                                    \
            for (int64_t i = begin; i < end; i++)                                                      \
                to[i] += from[i] * factor;                                                             \
        else                                                                                           \
            for (int64_t i = begin; i < end; i++)                                                      \
                to[i] = from[i] * factor;                                                              \
    }
SCALE(f32, float)
SCALE(f64, double)

static trek_status kept_dense(const trek_op_call *call)
{
    loss_job job = { 0 };
    const char *kept = call->inputs[7]->data;
    const bool wide = call->inputs[7]->dtype == TREK_F64;
    read_gradient(call, &job, NULL);
    for (int k = 0; k < 3; k++) {
        if (!(call->attrs.i[2] >> k & 1))
            continue;
        const int64_t n = call->outputs[k]->numel;
        scaling s = { .from = kept, .to = call->outputs[k]->data, .factor = job.grad / TREK_HEAD_UNIT(call->inputs[1]->dtype),
                      .add = k == 1 && call->attrs.i[3] };
        trek_parallel(n, 16384, wide ? scale_f64 : scale_f32, &s);
        kept += n * (wide ? 8 : 4);
    }
    return TREK_OK;
}

/* The products accept 16-bit x and weight of any strides directly. */
static trek_status linear_cross_entropy(const trek_op_call *call) { return trek_cpu_dense(call, 4 | 8, forward_dense); }
static trek_status linear_cross_entropy_backward(const trek_op_call *call)
{
    if (call->n_inputs > 7 && call->inputs[7])
        return trek_cpu_dense(call, 128, kept_dense);
    return trek_cpu_dense(call, 8 | 16 | 32, backward_dense);
}

void TREK_ISA_NAME(trek_cpu_register_linear_cross_entropy)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1) {
            b->kernels[TREK_OP_linear_cross_entropy][dtype] = linear_cross_entropy;
            b->kernels[TREK_OP_linear_cross_entropy_backward][dtype] = linear_cross_entropy_backward;
        }
}
