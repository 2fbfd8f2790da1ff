/* SPDX-License-Identifier: Apache-2.0 */
/* Rotates pairs of elements of the last dimension by the angles of a table (Su and others 2021). */
#include <stdlib.h>

#include "tensor/cpu/elementwise/map.h"

enum { PART = 256 }; /* pairs at a time */

typedef struct rotary_job {
    char *to;
    const char *from, *table;     /* table: double for double, otherwise float */
    trek_lane lane;
    int64_t width, pairs, rest;   /* bytes of an element in memory; elements after the pairs */
    int64_t to_step, from_step;   /* bytes, of the last dimension */
    bool neighbours, back;
    int ndim;                     /* the other dimensions, the innermost first, with strides in bytes */
    int64_t sizes[TREK_MAX_DIMS], to_strides[TREK_MAX_DIMS], from_strides[TREK_MAX_DIMS], table_strides[TREK_MAX_DIMS];
} rotary_job;

/* Rotates n pairs of a and b, `step` apart, in place or not. */
#define TURN(T, name)                                                                                               \
    static void name(T *to_a, T *to_b, const T *a, const T *b, const T *cosines, const T *sines, int64_t n, bool back) \
    {                                                                                                               \
        const T sign = back ? -1 : 1;                                                                               \
        TREK_INDEPENDENT                                                                                            \
        for (int64_t j = 0; j < n; j++) {                                                                           \
            const T x = a[j], y = b[j], s = sign * sines[j];                                                        \
            to_a[j] = x * cosines[j] - y * s;                                                                       \
            to_b[j] = y * cosines[j] + x * s;                                                                       \
        }                                                                                                           \
    }                                                                                                               \
    static void name##_neighbours(T *to, const T *from, const T *cosines, const T *sines, int64_t n, bool back)     \
    {                                                                                                               \
        const T sign = back ? -1 : 1;                                                                               \
        TREK_INDEPENDENT                                                                                            \
        for (int64_t j = 0; j < n; j++) {                                                                           \
            const T x = from[2 * j], y = from[2 * j + 1], s = sign * sines[j];                                      \
            to[2 * j] = x * cosines[j] - y * s;                                                                     \
            to[2 * j + 1] = y * cosines[j] + x * s;                                                                 \
        }                                                                                                           \
    }
TURN(float, turn_f32)
TURN(double, turn_f64)

/* Returns elements as rows need them: in place, or copied to a buffer. */
static const void *row_of(const rotary_job *job, void *buffer, const char *from, int64_t n)
{
    if (job->from_step == trek_lane_row_bytes(job->lane) && job->lane <= TREK_LANE_8)
        return from;
    TREK_ISA_NAME(trek_lane_load)(job->lane, buffer, from, job->from_step, n);
    return buffer;
}

static void *place_of(const rotary_job *job, void *buffer, char *to)
{
    return job->to_step == trek_lane_row_bytes(job->lane) && job->lane <= TREK_LANE_8 ? to : buffer;
}

static void settle(const rotary_job *job, char *to, const void *row, int64_t n)
{
    if (row != to)
        TREK_ISA_NAME(trek_lane_store)(job->lane, to, job->to_step, row, n);
}

/* Rotates pairs [p, p + n) of a row. */
static void turn_part(const rotary_job *job, char *to, const char *from, const char *table, int64_t p, int64_t n)
{
    double held[2][2 * PART]; /* inputs and outputs */
    bool wide = job->lane == TREK_LANE_8;
    const int64_t item = wide ? 8 : 4, first = job->neighbours ? 2 * p : p, second = job->pairs + p;
    const void *cosines = table + p * item, *sines = table + (job->pairs + p) * item;
    char *to_a = to + first * job->to_step, *to_b = to + second * job->to_step;
    const char *from_a = from + first * job->from_step, *from_b = from + second * job->from_step;
    if (job->neighbours) {
        const void *row = row_of(job, held[0], from_a, 2 * n);
        void *result = place_of(job, held[1], to_a);
        if (wide)
            turn_f64_neighbours(result, row, cosines, sines, n, job->back);
        else
            turn_f32_neighbours(result, row, cosines, sines, n, job->back);
        settle(job, to_a, result, 2 * n);
        return;
    }
    const void *a = row_of(job, held[0], from_a, n), *b = row_of(job, held[0] + PART, from_b, n);
    void *result_a = place_of(job, held[1], to_a), *result_b = place_of(job, held[1] + PART, to_b);
    if (wide)
        turn_f64(result_a, result_b, a, b, cosines, sines, n, job->back);
    else
        turn_f32(result_a, result_b, a, b, cosines, sines, n, job->back);
    settle(job, to_a, result_a, n);
    settle(job, to_b, result_b, n);
}

/* Copies the elements after the pairs. */
static void keep_rest(const rotary_job *job, char *to, const char *from)
{
    to += 2 * job->pairs * job->to_step;
    from += 2 * job->pairs * job->from_step;
    if (job->to_step == job->width && job->from_step == job->width)
        memcpy(to, from, (size_t)(job->rest * job->width));
    else
        for (int64_t j = 0; j < job->rest; j++)
            memcpy(to + j * job->to_step, from + j * job->from_step, (size_t)job->width);
}

static void turn_rows(void *arg, int64_t begin, int64_t end)
{
    const rotary_job *job = arg;
    int64_t index[TREK_MAX_DIMS] = { 0 }, to = 0, from = 0, table = 0, left = begin;
    for (int d = 0; d < job->ndim; d++) {
        index[d] = left % job->sizes[d];
        left /= job->sizes[d];
        to += index[d] * job->to_strides[d];
        from += index[d] * job->from_strides[d];
        table += index[d] * job->table_strides[d];
    }
    for (int64_t row = begin; row < end; row++) {
        for (int64_t p = 0; p < job->pairs; p += PART)
            turn_part(job, job->to + to, job->from + from, job->table + table, p, job->pairs - p < PART ? job->pairs - p : PART);
        if (job->rest > 0)
            keep_rest(job, job->to + to, job->from + from);
        for (int d = 0; d < job->ndim; d++) {
            bool wraps = ++index[d] == job->sizes[d];
            int64_t step = wraps ? 1 - job->sizes[d] : 1;
            index[d] = wraps ? 0 : index[d];
            to += step * job->to_strides[d];
            from += step * job->from_strides[d];
            table += step * job->table_strides[d];
            if (!wraps)
                break;
        }
    }
}

/* Orders rows by the result's memory. */
static void lay_out(rotary_job *job, const trek_tensor *y, const trek_tensor *x, const trek_tensor *table)
{
    int64_t item = job->lane == TREK_LANE_8 ? 8 : 4;
    for (int d = y->ndim - 2; d >= 0; d--) {
        int own = d - (y->ndim - table->ndim), at = job->ndim++;
        for (; at > 0 && llabs(job->to_strides[at - 1]) > llabs(y->strides[d] * job->width); at--) {
            job->sizes[at] = job->sizes[at - 1];
            job->to_strides[at] = job->to_strides[at - 1];
            job->from_strides[at] = job->from_strides[at - 1];
            job->table_strides[at] = job->table_strides[at - 1];
        }
        job->sizes[at] = y->sizes[d];
        job->to_strides[at] = y->strides[d] * job->width;
        job->from_strides[at] = x->strides[d] * job->width;
        job->table_strides[at] = own >= 0 && table->sizes[own] != 1 ? table->strides[own] * item : 0;
    }
}

static trek_status rotary(const trek_op_call *call)
{
    const trek_tensor *x = call->inputs[0];
    trek_tensor *y = call->outputs[0], *given = call->inputs[1];
    if (y->numel == 0)
        return TREK_OK;
    int last = x->ndim - 1, of_table = given->ndim - 1;
    bool rows = given->sizes[of_table] == 1 || given->strides[of_table] == 1;
    trek_tensor *table = rows ? trek_tensor_retain(given) : trek_tensor_contiguous(given);
    if (!table)
        return trek_error_status();
    int64_t turned = table->sizes[of_table], width = trek_item_size[x->dtype];
    rotary_job job = { .to = y->data, .from = x->data, .table = table->data, .width = width, .pairs = turned / 2,
                       .rest = x->sizes[last] - turned, .to_step = y->strides[last] * width,
                       .from_step = x->strides[last] * width, .neighbours = call->attrs.i[0], .back = call->attrs.i[1],
                       .lane = x->dtype == TREK_BF16 ? TREK_LANE_BF16 : x->dtype == TREK_F16 ? TREK_LANE_F16
                               : x->dtype == TREK_F64 ? TREK_LANE_8 : TREK_LANE_4 };
    lay_out(&job, y, x, table);
    trek_parallel(y->numel / x->sizes[last], TREK_GRAIN_CHEAP / (x->sizes[last] + 1) + 1, turn_rows, &job);
    trek_tensor_release(table);
    return TREK_OK;
}

void TREK_ISA_NAME(trek_cpu_register_rotary)(trek_backend *b)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (TREK_FLOATS >> dtype & 1)
            b->kernels[TREK_OP_rotary][dtype] = rotary;
}
