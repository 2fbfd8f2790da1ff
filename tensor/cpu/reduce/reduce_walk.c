/* SPDX-License-Identifier: Apache-2.0 */
/* The walk of reductions: see reduce.h. The input is seen as rows along one dimension. If that is reduced, a row
 * folds into one partial result; if it is kept, rows fold element by element into a block of partial results. */
#include "tensor/cpu/reduce/reduce.h"

#define BUFFER TREK_FOLD_COLUMNS /* elements copied at once if rows are not contiguous; columns in a block */
#define CHUNK 16384     /* elements of a row that make one partial result */
#define CHUNK_BLOCK 65536 /* and of a block of columns */

typedef struct dimension {
    int64_t size, in, out; /* strides in bytes; out is 0 for reduced ones */
    bool reduced;
} dimension;

typedef struct walk {
    const trek_reduce_plan *plan;
    const trek_attrs *attrs;
    const trek_tensor *in, *out;
    trek_lane lane;
    dimension inner;                                /* rows run along it */
    dimension kept[TREK_MAX_DIMS], reduced[TREK_MAX_DIMS]; /* the other dimensions */
    int n_kept, n_reduced;
    bool direct;                                    /* rows are used in place */
    int64_t blocks, groups;     /* blocks of columns; groups of outputs that are computed together */
    int64_t pieces, rows, rows_per_chunk, chunks;   /* pieces of a row; pieces in total, in a chunk; number of chunks */
    int64_t count;                                  /* elements for each output */
    int64_t times;                                  /* how often each element occurs: a broadcast dimension is reduced */
    const trek_fold *fold;                          /* of the current pass over chunks; NULL: all passes at once */
    trek_partial *partials;                         /* [groups][chunks][width] */
    double *parameters;                             /* [groups][width] */
    int64_t width;                                  /* outputs of a group */
} walk;

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

/* Collects the dimensions in the order in which they lie in memory, and merges those that are one. */
static int collect_dims(walk *w, dimension *dims, uint64_t mask, bool keepdim)
{
    int n = 0, merged = 0, out_dim = 0;
    int64_t in_bytes = trek_lane_bytes(w->lane), out_bytes = (int64_t)trek_dtype_size((trek_dtype)w->out->dtype);
    for (int d = 0; d < w->in->ndim; d++) {
        bool reduced = mask >> d & 1;
        dimension dim = { w->in->sizes[d], w->in->strides[d] * in_bytes, 0, reduced };
        if (!reduced)
            dim.out = w->out->strides[out_dim] * out_bytes;
        out_dim += !reduced || keepdim;
        if (dim.size == 1)
            continue;
        if (reduced && dim.in == 0 && dim.size > 0) {
            w->times *= dim.size;
            continue;
        }
        int at = n++;
        for (; at > 0 && magnitude(dims[at - 1].in) < magnitude(dim.in); at--)
            dims[at] = dims[at - 1];
        dims[at] = dim;
    }
    for (int d = 0; d < n; d++) {
        const dimension dim = dims[d];
        dimension *last = merged > 0 ? &dims[merged - 1] : NULL;
        if (last && last->reduced == dim.reduced && last->in == dim.in * dim.size && last->out == dim.out * dim.size) {
            last->size *= dim.size;
            last->in = dim.in;
            last->out = dim.out;
        } else {
            dims[merged++] = dim;
        }
    }
    if (merged == 0)
        dims[merged++] = (dimension){ 1, in_bytes, 0, true };
    return merged;
}

static int64_t span_of(const dimension *d)
{
    return d->in == 0 ? INT64_MAX : magnitude(d->in); /* nothing moves along a broadcast dimension */
}

/* Chooses the dimension with the smallest stride; one of the other kind if that one is too short for a loop. */
static int choose_inner(const dimension *dims, int n)
{
    int best[2] = { -1, -1 };
    for (int d = 0; d < n; d++) {
        int kind = dims[d].reduced;
        if (best[kind] < 0 || span_of(&dims[d]) <= span_of(&dims[best[kind]]))
            best[kind] = d;
    }
    if (best[0] < 0 || best[1] < 0)
        return best[0] < 0 ? best[1] : best[0];
    int near = span_of(&dims[best[0]]) < span_of(&dims[best[1]]) ? best[0] : best[1], other = near == best[0] ? best[1] : best[0];
    return dims[near].size < 8 && dims[other].size >= 4 * dims[near].size ? other : near;
}

static void begin_walk(walk *w, const trek_op_call *call)
{
    dimension dims[TREK_MAX_DIMS + 1];
    w->times = 1;
    int n = collect_dims(w, dims, (uint64_t)call->attrs.i[0], call->attrs.i[9] != 0), inner = choose_inner(dims, n);
    w->inner = dims[inner];
    w->count = w->times;
    int64_t kept = 1, reduced = 1;
    for (int d = 0; d < n; d++) {
        w->count *= dims[d].reduced ? dims[d].size : 1;
        if (d == inner)
            continue;
        if (dims[d].reduced) {
            w->reduced[w->n_reduced++] = dims[d];
            reduced *= dims[d].size;
        } else {
            w->kept[w->n_kept++] = dims[d];
            kept *= dims[d].size;
        }
    }
    w->direct = w->inner.in == (int)w->lane;
    int64_t length = w->inner.size;
    if (w->inner.reduced) {
        w->width = w->blocks = 1;
        w->pieces = length > CHUNK ? (length + CHUNK - 1) / CHUNK : 1;
        w->rows_per_chunk = length > CHUNK || length == 0 ? 1 : CHUNK / length;
    } else {
        w->width = length < BUFFER ? length : BUFFER;
        w->blocks = length == 0 ? 0 : (length + BUFFER - 1) / BUFFER;
        w->pieces = 1;
        w->rows_per_chunk = w->width > 0 && CHUNK_BLOCK / w->width > 16 ? CHUNK_BLOCK / w->width : 16;
    }
    w->groups = kept * w->blocks;
    w->rows = reduced * w->pieces;
    w->chunks = w->rows == 0 ? 1 : (w->rows - 1) / w->rows_per_chunk + 1;
}

/* Splits a linear index into dimensions and adds the strides. */
static void locate(const dimension *dims, int n, int64_t index, int64_t *in, int64_t *out)
{
    for (int d = n - 1; d >= 0; d--) {
        int64_t at = index % dims[d].size;
        index /= dims[d].size;
        *in += at * dims[d].in;
        *out += at * dims[d].out;
    }
}

/* The position of a group: bytes into input and output, columns. */
typedef struct place {
    int64_t in, out, columns;
} place;

static place find_group(const walk *w, int64_t group)
{
    place p = { 0, 0, 1 };
    locate(w->kept, w->n_kept, group / w->blocks, &p.in, &p.out);
    if (!w->inner.reduced) {
        int64_t first = group % w->blocks * w->width;
        p.in += first * w->inner.in;
        p.out += first * w->inner.out;
        p.columns = w->inner.size - first < w->width ? w->inner.size - first : w->width;
    }
    return p;
}

static void fold_row(const walk *w, const trek_fold *fold, trek_partial *partial, const char *from, int64_t n, double parameter)
{
    if (w->direct) {
        fold->row(partial, from, n, parameter);
        return;
    }
    _Alignas(64) char buffer[BUFFER * 8];
    for (int64_t k = 0; k < n; k += BUFFER) {
        int64_t part = n - k < BUFFER ? n - k : BUFFER;
        TREK_ISA_NAME(trek_lane_load)(w->lane, buffer, from + k * w->inner.in, w->inner.in, part);
        fold->row(partial, buffer, part, parameter);
    }
}

/* Folds rows of a block of columns; consecutive rows of the innermost reduced dimension together. */
static void fold_block(const walk *w, const trek_fold *fold, trek_partial *partials, const place *p, int64_t begin, int64_t end,
                       const double *parameters)
{
    _Alignas(64) char buffer[BUFFER * 8];
    const dimension *last = w->n_reduced > 0 ? &w->reduced[w->n_reduced - 1] : NULL;
    for (int64_t rows; begin < end; begin += rows) {
        int64_t in = p->in, out = 0, stride = last ? last->in : 0;
        locate(w->reduced, w->n_reduced, begin, &in, &out);
        rows = last ? last->size - begin % last->size : 1;
        rows = rows < end - begin ? rows : end - begin;
        const char *from = w->in->data + in;
        if (w->direct) {
            fold->columns(partials, from, stride, rows, p->columns, parameters);
            continue;
        }
        for (int64_t row = 0; row < rows; row++) {
            TREK_ISA_NAME(trek_lane_load)(w->lane, buffer, from + row * stride, w->inner.in, p->columns);
            fold->columns(partials, buffer, 0, 1, p->columns, parameters);
        }
    }
}

/* Folds one chunk of one group into partial results that hold the start value. */
static void fold_chunk(const walk *w, const trek_fold *fold, const place *p, int64_t chunk, trek_partial *partials,
                       const double *parameters)
{
    int64_t begin = chunk * w->rows_per_chunk, end = begin + w->rows_per_chunk;
    end = end < w->rows ? end : w->rows;
    if (!w->inner.reduced) {
        fold_block(w, fold, partials, p, begin, end, parameters);
        return;
    }
    for (int64_t row = begin; row < end; row++) {
        int64_t in = p->in, out = 0, first = row % w->pieces * CHUNK;
        locate(w->reduced, w->n_reduced, row / w->pieces, &in, &out);
        int64_t n = w->pieces == 1 || w->inner.size - first < CHUNK ? w->inner.size - first : CHUNK;
        fold_row(w, fold, partials, w->in->data + in + first * w->inner.in, n, parameters[0]);
    }
}

static void store(trek_dtype dtype, char *to, trek_partial value, bool floating)
{
    switch (dtype) {
    case TREK_F32: *(float *)to = (float)value.f; break;
    case TREK_F64: *(double *)to = value.f; break;
    case TREK_BF16: *(uint16_t *)to = trek_bf16_from_f32((float)value.f); break;
    case TREK_F16: *(uint16_t *)to = trek_f16_from_f32((float)value.f); break;
    case TREK_I64: *(int64_t *)to = value.i; break;
    case TREK_I32: *(int32_t *)to = (int32_t)value.i; break;
    case TREK_U8: *(uint8_t *)to = (uint8_t)value.i; break;
    default: *(uint8_t *)to = floating ? value.f != 0 : value.i != 0; break;
    }
}

static void finish_group(const walk *w, const place *p, const trek_partial *partials, const double *parameters)
{
    const trek_reduce_plan *r = w->plan;
    char *to = w->out->data + p->out;
    if (!r->finish && w->out->dtype == TREK_F32 && w->inner.out == 4 && p->columns > 1) { /* the common case, vectorised */
        for (int64_t k = 0; k < p->columns; k++)
            ((float *)to)[k] = (float)partials[k].f;
        return;
    }
    for (int64_t k = 0; k < p->columns; k++, to += w->inner.out)
        store((trek_dtype)w->out->dtype, to, r->finish ? r->finish(partials[k], parameters[k], w->count, w->attrs) : partials[k],
              r->floating);
}

static void start_partials(const trek_fold *fold, trek_partial *partials, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        partials[k] = fold->start;
}

static void repeat_partials(const walk *w, const trek_fold *fold, trek_partial *partials, int64_t n)
{
    if (w->times > 1)
        fold->repeat(partials, n, w->times);
}

/* Processes groups of one chunk: all passes while the data are in the cache. */
static void whole_groups(void *arg, int64_t begin, int64_t end)
{
    const walk *w = arg;
    const trek_reduce_plan *r = w->plan;
    trek_partial partials[BUFFER];
    double parameters[BUFFER];
    parameters[0] = 0;
    for (int64_t group = begin; group < end; group++) {
        place p = find_group(w, group);
        start_partials(r->first, partials, p.columns);
        fold_chunk(w, r->first, &p, 0, partials, parameters);
        repeat_partials(w, r->first, partials, p.columns);
        for (int64_t k = 0; k < p.columns; k++)
            parameters[k] = r->second ? r->parameter(partials[k], w->count) : 0;
        if (r->second) {
            start_partials(r->second, partials, p.columns);
            fold_chunk(w, r->second, &p, 0, partials, parameters);
            repeat_partials(w, r->second, partials, p.columns);
        }
        finish_group(w, &p, partials, parameters);
    }
}

static void chunks_of_groups(void *arg, int64_t begin, int64_t end)
{
    const walk *w = arg;
    for (int64_t unit = begin; unit < end; unit++) {
        place p = find_group(w, unit / w->chunks);
        trek_partial *partials = w->partials + unit * w->width;
        start_partials(w->fold, partials, p.columns);
        fold_chunk(w, w->fold, &p, unit % w->chunks, partials, w->parameters + unit / w->chunks * w->width);
    }
}

/* Adds the chunks of a group, in order, into the first. */
static trek_partial *combine_group(const walk *w, int64_t group, int64_t columns)
{
    trek_partial *first = w->partials + group * w->chunks * w->width;
    for (int64_t chunk = 1; chunk < w->chunks; chunk++)
        w->fold->combine(first, first + chunk * w->width, columns);
    repeat_partials(w, w->fold, first, columns);
    return first;
}

static trek_status reduce_by_chunks(walk *w, int64_t grain)
{
    const trek_reduce_plan *r = w->plan;
    int64_t units = w->groups * w->chunks;
    w->partials = trek_block_alloc((size_t)(units * w->width) * sizeof *w->partials);
    w->parameters = trek_block_alloc((size_t)(w->groups * w->width) * sizeof *w->parameters);
    bool ready = w->partials && w->parameters;
    if (ready) {
        memset(w->parameters, 0, (size_t)(w->groups * w->width) * sizeof *w->parameters);
        w->fold = r->first;
        trek_parallel(units, grain, chunks_of_groups, w);
    }
    if (ready && r->second) {
        for (int64_t group = 0; group < w->groups; group++) {
            int64_t columns = find_group(w, group).columns;
            const trek_partial *sums = combine_group(w, group, columns);
            for (int64_t k = 0; k < columns; k++)
                w->parameters[group * w->width + k] = r->parameter(sums[k], w->count);
        }
        w->fold = r->second;
        trek_parallel(units, grain, chunks_of_groups, w);
    }
    for (int64_t group = 0; ready && group < w->groups; group++) {
        place p = find_group(w, group);
        finish_group(w, &p, combine_group(w, group, p.columns), w->parameters + group * w->width);
    }
    trek_block_free(w->partials);
    trek_block_free(w->parameters);
    return ready ? TREK_OK : TREK_ERR_MEMORY;
}

/* --- rows of which each makes one result: the same folds as above, without the walk --- */

typedef struct rows {
    const trek_reduce_plan *plan;
    const trek_op_call *call;
    int64_t n, in_step, out_step; /* elements of a row; bytes from one row, and from one result, to the next */
} rows;

static void whole_rows(void *arg, int64_t begin, int64_t end)
{
    const rows *w = arg;
    const trek_reduce_plan *r = w->plan;
    const trek_tensor *in = w->call->inputs[0], *out = w->call->outputs[0];
    for (int64_t k = begin; k < end; k++) {
        const char *row = in->data + k * w->in_step;
        trek_partial partial = r->first->start;
        double parameter = 0;
        r->first->row(&partial, row, w->n, 0);
        if (r->second) {
            parameter = r->parameter(partial, w->n);
            partial = r->second->start;
            r->second->row(&partial, row, w->n, parameter);
        }
        if (r->finish)
            partial = r->finish(partial, parameter, w->n, &w->call->attrs);
        store((trek_dtype)out->dtype, out->data + k * w->out_step, partial, r->floating);
    }
}

/* Reduces if the last dimensions of a contiguous tensor are reduced, with at least 8 and at most CHUNK elements at a
 * time. Returns false otherwise. */
static bool reduce_rows(const trek_op_call *call, const trek_reduce_plan *plan, trek_lane lane)
{
    const trek_tensor *in = call->inputs[0], *out = call->outputs[0];
    uint64_t mask = (uint64_t)call->attrs.i[0], all = ((uint64_t)1 << in->ndim) - 1, kept = all & ~mask;
    if (!in->contiguous || !out->contiguous || lane >= TREK_LANE_BF16 || (kept & (kept + 1)) != 0)
        return false;
    rows w = { plan, call, in->numel / out->numel, 0, (int64_t)trek_dtype_size((trek_dtype)out->dtype) };
    if (w.n > CHUNK || (w.n < 8 && out->numel > 1))
        return false;
    w.in_step = w.n * trek_lane_bytes(lane);
    trek_parallel(out->numel, plan->grain / (w.n + 1) + 1, whole_rows, &w);
    return true;
}

/* Does so if the walk found such rows in another order of dimensions, or with gaps between them. */
static bool reduce_found_rows(const walk *w, const trek_op_call *call)
{
    if (!w->direct || !w->inner.reduced || w->n_reduced > 0 || w->n_kept > 1 || w->times > 1 || w->inner.size > CHUNK)
        return false;
    const dimension across = w->n_kept > 0 ? w->kept[0] : (dimension){ .size = 1 };
    rows found = { w->plan, call, w->inner.size, across.in, across.out };
    trek_parallel(across.size, w->plan->grain / (found.n + 1) + 1, whole_rows, &found);
    return true;
}

/* Along kept dimensions in which the input repeats, so does the result: it is computed once, in memory of its own, and copied.
 * Returns false if there are none. */
static bool reduce_once(const trek_op_call *call, const trek_reduce_plan *plan, trek_status *status)
{
    const uint64_t mask = (uint64_t)call->attrs.i[0];
    trek_tensor in = *call->inputs[0], out = *call->outputs[0], repeated = out;
    bool repeats = false;
    for (int d = 0, to = 0; d < in.ndim; d++) {
        bool kept = !(mask >> d & 1);
        if (kept && in.strides[d] == 0 && in.sizes[d] > 1) {
            repeats = true;
            in.numel /= in.sizes[d];
            out.numel /= in.sizes[d];
            in.sizes[d] = out.sizes[to] = 1;
        }
        to += kept || call->attrs.i[9] != 0;
    }
    if (!repeats || repeated.numel == 0)
        return false;
    out.data = repeated.data = trek_block_alloc((size_t)out.numel * trek_dtype_size((trek_dtype)out.dtype));
    out.contiguous = true, repeated.contiguous = false;
    int64_t step = 1;
    for (int d = out.ndim - 1; d >= 0; step *= out.sizes[d--]) {
        out.strides[d] = step;
        repeated.strides[d] = out.sizes[d] == 1 ? 0 : step;
    }
    trek_tensor *from[] = { &in }, *once[] = { &repeated };
    trek_op_call first = { .op = call->op, .n_inputs = 1, .n_outputs = 1, .inputs = from, .outputs = { &out },
                           .attrs = call->attrs };
    const trek_op_call copies = { .op = call->op, .n_inputs = 1, .n_outputs = 1, .inputs = once,
                                  .outputs = { call->outputs[0] } };
    *status = out.data ? TREK_ISA_NAME(trek_reduce)(&first, plan) : TREK_ERR_MEMORY;
    if (*status == TREK_OK)
        *status = trek_backends[TREK_CPU]->kernels[TREK_OP_copy][out.dtype](&copies);
    trek_block_free(out.data);
    return true;
}

trek_status TREK_ISA_NAME(trek_reduce)(const trek_op_call *call, const trek_reduce_plan *plan)
{
    trek_status status;
    if (!call->inputs[0]->contiguous && reduce_once(call, plan, &status))
        return status;
    static const uint8_t lanes[TREK_DTYPE_COUNT] = {
        [TREK_F32] = TREK_LANE_4, [TREK_F64] = TREK_LANE_8, [TREK_BF16] = TREK_LANE_BF16, [TREK_F16] = TREK_LANE_F16,
        [TREK_I64] = TREK_LANE_8, [TREK_I32] = TREK_LANE_4, [TREK_U8] = TREK_LANE_1,      [TREK_BOOL] = TREK_LANE_1,
    };
    const trek_tensor *in = call->inputs[0], *out = call->outputs[0];
    trek_reduce_plan as_they_lie = *plan;
    as_they_lie.first = plan->halves;
    const trek_reduce_plan *direct = plan->halves ? &as_they_lie : plan;
    trek_lane lane = plan->halves ? TREK_LANE_2 : (trek_lane)lanes[in->dtype];
    if (out->numel == 0 || reduce_rows(call, direct, lane))
        return TREK_OK;
    walk w = { .plan = direct, .attrs = &call->attrs, .in = in, .out = out, .lane = lane };
    begin_walk(&w, call);
    if (!w.direct) {
        w.plan = plan;
        w.lane = (trek_lane)lanes[in->dtype];
    }
    if (reduce_found_rows(&w, call))
        return TREK_OK;
    int64_t rows = w.rows < w.rows_per_chunk ? w.rows : w.rows_per_chunk;
    int64_t length = w.inner.reduced && w.inner.size > CHUNK ? CHUNK : w.inner.size;
    int64_t unit = rows * (w.inner.reduced ? length : w.width) + 1, grain = (plan->grain - 1) / unit + 1;
    if (w.chunks > 1)
        return reduce_by_chunks(&w, grain);
    trek_parallel(w.groups, grain, whole_groups, &w);
    return TREK_OK;
}
