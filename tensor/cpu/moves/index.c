/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that find positions by an index tensor: index_select, index_add, gather, scatter_add, one_hot. Selecting is
 * gathering with an index that is the same along all other dimensions, so one walk serves both. */
#include "tensor/cpu/moves/index.h"
#include "tensor/cpu/elementwise/elementwise.h"

#define COLUMNS 1024 /* of the last dimension in a unit of work */

/* Returns the offset of a tensor's element at a row-major position. */
static int64_t element_offset(const trek_tensor *t, int64_t place)
{
    int64_t offset = 0;
    for (int d = t->ndim - 1; d >= 0; d--) {
        offset += place % t->sizes[d] * t->strides[d];
        place /= t->sizes[d];
    }
    return offset;
}

typedef struct bounds {
    const trek_tensor *index;
    int64_t bound;
    atomic_bool outside;
} bounds;

static void compare_indices(void *arg, int64_t begin, int64_t end)
{
    bounds *b = arg;
    uint64_t largest = 0; /* negative ones are larger than all others */
    if (b->index->dtype == TREK_I64) {
        const uint64_t *at = (const uint64_t *)b->index->data;
        for (int64_t i = begin; i < end; i++)
            largest = at[i] > largest ? at[i] : largest;
    } else {
        for (int64_t i = begin; i < end; i++) {
            uint64_t at = (uint64_t)trek_index_at(b->index->data, i, (trek_dtype)b->index->dtype);
            largest = at > largest ? at : largest;
        }
    }
    if (end > begin && (b->bound <= 0 || largest >= (uint64_t)b->bound))
        atomic_store(&b->outside, true);
}

/* Looks at each number once, also where the index repeats along a dimension. */
static bool all_inside(const trek_tensor *index, int64_t bound)
{
    trek_tensor once = *index;
    int64_t next = 1;
    bool dense = true;
    if (index->numel == 0)
        return true;
    for (int d = index->ndim - 1; d >= 0; d--) {
        once.sizes[d] = index->strides[d] == 0 ? 1 : index->sizes[d];
        dense = dense && (once.sizes[d] == 1 || index->strides[d] == next);
        next *= once.sizes[d];
    }
    bounds b = { .index = &once, .bound = bound };
    if (dense)
        trek_parallel(next, TREK_GRAIN_CHEAP, compare_indices, &b);
    for (int64_t place = 0; !dense && place < next; place++) {
        int64_t value = trek_index_at(once.data, element_offset(&once, place), (trek_dtype)once.dtype);
        if (value < 0 || value >= bound)
            return false;
    }
    return !atomic_load(&b.outside);
}

static trek_status check_index(const trek_op_call *call, const trek_tensor *index, int64_t bound)
{
    if (all_inside(index, bound))
        return TREK_OK;
    for (int64_t place = 0; place < index->numel; place++) {
        int64_t value = trek_index_at(index->data, element_offset(index, place), (trek_dtype)index->dtype);
        if (value < 0 || value >= bound)
            return trek_op_fail(call, TREK_ERR_ARGUMENT, "index %lld at position %lld is outside [0, %lld)", (long long)value,
                                (long long)place, (long long)bound);
    }
    return TREK_OK;
}

/* Returns the dimension along which columns run: the last one, or the one before if the last one is dim and has size
 * 1; -1: none. */
static int columns_dim(const int64_t *sizes, int dim, int ndim)
{
    if (dim != ndim - 1)
        return ndim - 1;
    return ndim > 1 && sizes[dim] == 1 ? ndim - 2 : -1;
}

static trek_operand split_strides(const trek_tensor *t, int dim, int columns, int ndim)
{
    trek_operand o = { .data = t->data };
    int n = 0;
    for (int d = 0; d < ndim; d++) {
        if (d == dim)
            o.dim = t->strides[d];
        else if (d == columns)
            o.last = t->strides[d];
        else
            o.outer[n++] = t->strides[d];
    }
    return o;
}

static void lookup_units(const trek_lookup *l, int64_t begin, int64_t end)
{
    int width = l->width;
    int64_t pieces = l->pieces;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t piece = unit % pieces, column = unit / pieces % l->blocks * COLUMNS, outer = unit / pieces / l->blocks;
        int64_t first = piece * l->piece, n = l->n - first < l->piece ? l->n - first : l->piece;
        int64_t columns = l->columns - column < COLUMNS ? l->columns - column : COLUMNS;
        int64_t at = first * l->index.dim + column * l->index.last;
        int64_t in = column * l->indexed.last, other = first * l->other.dim + column * l->other.last;
        for (int d = l->n_outer - 1; d >= 0; d--) {
            int64_t coordinate = outer % l->outer_sizes[d];
            outer /= l->outer_sizes[d];
            at += coordinate * l->index.outer[d];
            in += coordinate * l->indexed.outer[d];
            other += coordinate * l->other.outer[d];
        }
        l->line(l, l->indexed.data + in * width, l->other.data + other * width,
                l->index.data + at * trek_item_size[l->index_dtype], n, columns);
    }
}

static void lookup_part(void *arg, int64_t begin, int64_t end)
{
    const trek_lookup *l = arg;
    if (l->line != TREK_ISA_NAME(trek_halves_line)) {
        lookup_units(l, begin, end);
        return;
    }
    trek_lookup own = *l;
    own.results = trek_block_alloc((size_t)TREK_ISA_NAME(trek_halves_room)(l) * sizeof *own.results);
    if (own.results)
        lookup_units(&own, begin, end);
    else
        atomic_store(l->no_memory, true);
    trek_block_free(own.results);
}

#define RUN 512 /* indices that are read together */

/* Returns n indices along dim from position `first` on: in place, or in `buffer` (which holds RUN). */
static const int64_t *run_of_indices(const trek_lookup *l, const char *index, int64_t first, int64_t n, int64_t *buffer)
{
    if (l->index_dtype == TREK_I64 && l->index.dim == 1)
        return (const int64_t *)index + first;
    for (int64_t i = 0; i < n; i++)
        buffer[i] = trek_index_at(index, (first + i) * l->index.dim, l->index_dtype);
    return buffer;
}

/* body: the operation between the elements `a` (indexed) and `b` (other), pointers to T. */
#define LINE(name, T, body)                                                                            \
    static void name(const trek_lookup *l, char *indexed, char *other, const char *index, int64_t n, int64_t columns) \
    {                                                                                                  \
        const int64_t a_step = l->indexed.last, b_step = l->other.last;                                \
        if (columns == 1) { /* a line along dim, as if that were the last dimension */                \
            const int64_t a_dim = l->indexed.dim, b_dim = l->other.dim;                                \
            int64_t buffer[RUN];                                                                       \
            for (int64_t first = 0; first < n; first += RUN) {                                         \
                const int64_t count = n - first < RUN ? n - first : RUN;                               \
                const int64_t *places = run_of_indices(l, index, first, count, buffer);                \
                T *b = (T *)other + first * b_dim;                                                     \
                for (int64_t i = 0; i < count; i++, b += b_dim) {                                      \
                    T *a = (T *)indexed + places[i] * a_dim;                                           \
                    body;                                                                              \
                }                                                                                      \
            }                                                                                          \
            return;                                                                                    \
        }                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                              \
            T *b_row = (T *)other + i * l->other.dim;                                                  \
            if (l->index.last == 0) {                                                                  \
                T *a_row = (T *)indexed + trek_index_at(index, i * l->index.dim, l->index_dtype) * l->indexed.dim; \
                if (a_step == 1 && b_step == 1) {                                                      \
                    TREK_INDEPENDENT                                                                   \
                    for (int64_t j = 0; j < columns; j++) {                                            \
                        T *a = a_row + j, *b = b_row + j;                                              \
                        body;                                                                          \
                    }                                                                                  \
                } else {                                                                               \
                    for (int64_t j = 0; j < columns; j++) {                                            \
                        T *a = a_row + j * a_step, *b = b_row + j * b_step;                            \
                        body;                                                                          \
                    }                                                                                  \
                }                                                                                      \
                continue;                                                                              \
            }                                                                                          \
            for (int64_t j = 0; j < columns; j++) {                                                    \
                int64_t place = trek_index_at(index, i * l->index.dim + j * l->index.last, l->index_dtype); \
                T *a = (T *)indexed + place * l->indexed.dim + j * a_step, *b = b_row + j * b_step;    \
                body;                                                                                  \
            }                                                                                          \
        }                                                                                              \
    }
LINE(gather_1, uint8_t, *b = *a)
LINE(gather_2, uint16_t, *b = *a)
LINE(gather_4, uint32_t, *b = *a)
LINE(gather_8, uint64_t, *b = *a)
LINE(add_f32, float, *a += *b)
LINE(add_f64, double, *a += *b)
LINE(add_i64, int64_t, *a += *b)
LINE(add_i32, int32_t, *a += *b)
LINE(add_u8, uint8_t, *a = (uint8_t)(*a + *b))
LINE(add_bool, uint8_t, *a |= *b)

/* sizes: of the space of index and other. split: pieces along dim may run in parallel. */
static void run_lookup(trek_lookup *l, int ndim, const int64_t *sizes, int dim, int width, bool split)
{
    l->n = ndim > 0 ? sizes[dim] : 1;
    int last = columns_dim(sizes, dim, ndim);
    l->columns = ndim > 0 && last >= 0 ? sizes[last] : 1;
    int64_t units = 1;
    for (int d = 0; d < ndim; d++) {
        if (d == dim || d == last)
            continue;
        l->outer_sizes[l->n_outer++] = sizes[d];
        units *= sizes[d];
    }
    if (units == 0 || l->n == 0 || l->columns == 0)
        return;
    l->blocks = (l->columns - 1) / COLUMNS + 1;
    int64_t columns = l->columns < COLUMNS ? l->columns : COLUMNS;
    l->piece = split ? TREK_GRAIN_FUNCTION / columns + 1 : l->n;
    l->pieces = (l->n - 1) / l->piece + 1;
    l->width = width;
    int64_t unit = columns * (l->n < l->piece ? l->n : l->piece);
    trek_parallel(units * l->blocks * l->pieces, (TREK_GRAIN_FUNCTION - 1) / unit + 1, lookup_part, l);
}

/* Returns the 1-D index of select and add as an operand of a space of ndim dimensions. */
static trek_operand broadcast_index(const trek_tensor *index)
{
    trek_operand o = { .data = index->data, .dim = index->ndim > 0 ? index->strides[0] : 0 };
    return o;
}

static trek_status gather_through(const trek_op_call *call, bool whole_index)
{
    const trek_tensor *x = call->inputs[0], *index = call->inputs[1], *out = call->outputs[0];
    int dim = (int)call->attrs.i[0], ndim = out->ndim;
    trek_status status = check_index(call, index, ndim > 0 ? x->sizes[dim] : 1);
    if (status != TREK_OK || out->numel == 0)
        return status;
    int width = (int)trek_dtype_size((trek_dtype)x->dtype);
    int columns = columns_dim(out->sizes, dim, ndim);
    trek_lookup l = { .indexed = split_strides(x, dim, columns, ndim), .other = split_strides(out, dim, columns, ndim),
                 .index = whole_index ? split_strides(index, dim, columns, ndim) : broadcast_index(index),
                 .index_dtype = (trek_dtype)index->dtype,
                 .line = width == 1 ? gather_1 : width == 2 ? gather_2 : width == 4 ? gather_4 : gather_8 };
    run_lookup(&l, ndim, out->sizes, dim, width, true);
    return TREK_OK;
}

static trek_status gather(const trek_op_call *call) { return gather_through(call, true); }
static trek_status index_select(const trek_op_call *call) { return gather_through(call, false); }

/* Sums 16 bits with one index for all. */
static trek_status add_by_place(trek_lookup *l, int ndim, const int64_t *sizes, int dim)
{
    int64_t places[TREK_MAX_DIMS] = { 0 }, n = ndim > 0 ? sizes[dim] : 1;
    for (int d = 0; d < ndim; d++)
        places[d] = d == dim ? l->bound : sizes[d];
    int64_t *sorted = TREK_ISA_NAME(trek_halves_by_place)(l, n);
    if (!sorted)
        return TREK_ERR_MEMORY;
    run_lookup(l, ndim, places, dim, sizeof(uint16_t), true);
    trek_block_free(sorted);
    return TREK_OK;
}

trek_status TREK_ISA_NAME(trek_scatter_through)(const trek_op_call *call, bool whole_index, trek_lookup_line line)
{
    trek_tensor *x = call->inputs[0], *index = call->inputs[1], *source = call->inputs[2], *out = call->outputs[0];
    int dim = (int)call->attrs.i[0], ndim = x->ndim;
    trek_status status = check_index(call, index, ndim > 0 ? x->sizes[dim] : 1);
    if (status != TREK_OK)
        return status;
    if (out->data != x->data || !out->contiguous || !x->contiguous) {
        trek_op_call copy = { .op = &trek_ops[TREK_OP_copy], .n_inputs = 1, .n_outputs = 1, .inputs = &x, .outputs = { out } };
        status = trek_cpu_backend()->kernels[TREK_OP_copy][x->dtype](&copy);
    }
    if (status != TREK_OK || index->numel == 0 || source->numel == 0)
        return status;
    const int64_t *sizes = whole_index ? index->sizes : source->sizes;
    int columns = columns_dim(sizes, dim, ndim);
    atomic_bool no_memory = false;
    trek_lookup l = { .indexed = split_strides(out, dim, columns, ndim), .other = split_strides(source, dim, columns, ndim),
                      .index = whole_index ? split_strides(index, dim, columns, ndim) : broadcast_index(index),
                      .index_dtype = (trek_dtype)index->dtype, .line = line, .bf16 = x->dtype == TREK_BF16,
                      .product = call->op->id == TREK_OP_scatter_reduce,
                      .bound = ndim > 0 ? x->sizes[dim] : 1, .no_memory = &no_memory };
    if (!whole_index && line == TREK_ISA_NAME(trek_halves_line) && columns >= 0 &&
        TREK_ISA_NAME(trek_halves_are_rows)(&l, sizes[columns]))
        return add_by_place(&l, ndim, sizes, dim);
    run_lookup(&l, ndim, sizes, dim, (int)trek_dtype_size((trek_dtype)x->dtype), false);
    return atomic_load(&no_memory) ? TREK_ERR_MEMORY : TREK_OK;
}

/* Computes out = x, then out[index] += source in the order of the index: along dim one thread processes everything. */
static trek_status add_through(const trek_op_call *call, bool whole_index)
{
    static const trek_lookup_line lines[TREK_DTYPE_COUNT] = {
        [TREK_F32] = add_f32, [TREK_F64] = add_f64, [TREK_I64] = add_i64,
        [TREK_I32] = add_i32, [TREK_U8] = add_u8,   [TREK_BOOL] = add_bool,
    };
    trek_dtype dtype = (trek_dtype)call->inputs[0]->dtype;
    trek_lookup_line line = lines[dtype] ? lines[dtype] : TREK_ISA_NAME(trek_halves_line);
    return TREK_ISA_NAME(trek_scatter_through)(call, whole_index, line);
}

static trek_status scatter_add(const trek_op_call *call) { return add_through(call, true); }
static trek_status index_add(const trek_op_call *call) { return add_through(call, false); }

/* i[0] is the number of classes; out is i64 [..., classes]. */
static trek_status one_hot(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0], *out = call->outputs[0];
    int64_t classes = call->attrs.i[0];
    trek_status status = check_index(call, x, classes);
    if (status != TREK_OK)
        return status;
    int64_t step = out->strides[out->ndim - 1];
    for (int64_t place = 0; place < x->numel; place++) {
        int64_t class = trek_index_at(x->data, element_offset(x, place), (trek_dtype)x->dtype);
        int64_t *row = (int64_t *)out->data + element_offset(out, place * classes);
        for (int64_t c = 0; c < classes; c++)
            row[c * step] = c == class;
    }
    return TREK_OK;
}

void TREK_ISA_NAME(trek_cpu_register_index)(trek_backend *b)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        b->kernels[TREK_OP_index_select][d] = index_select;
        b->kernels[TREK_OP_index_add][d] = index_add;
        b->kernels[TREK_OP_gather][d] = gather;
        b->kernels[TREK_OP_scatter_add][d] = scatter_add;
    }
    b->kernels[TREK_OP_one_hot][TREK_I64] = one_hot;
    b->kernels[TREK_OP_one_hot][TREK_I32] = one_hot;
    b->kernels[TREK_OP_one_hot][TREK_U8] = one_hot;
}
