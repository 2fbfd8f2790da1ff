/* SPDX-License-Identifier: Apache-2.0 */
/* Logarithms of running sums of exponentials, computed in f64. For a stretch of a line the exponentials, their sums
 * and the logarithms are computed in vectors, relative to the stretch's largest element. That is exact enough if the
 * sum before it is not much smaller. Otherwise, and if elements are not finite, each element is processed separately. */
#include <math.h>

#include "tensor/cpu/order/order.h"
#include "tensor/cpu/row_math.h"

#define STRETCH 256

TREK_LIBRARY(log, f64, log)

/* The sum so far: total e^largest. */
typedef struct running {
    double largest, total;
} running;

static double step(running *sum, double x)
{
    if (x > sum->largest) {
        sum->total = sum->total * exp(sum->largest - x) + 1;
        sum->largest = x;
    } else if (x != -HUGE_VAL) { /* -infinity adds nothing; an infinity minus itself is not a difference */
        sum->total += x == sum->largest ? 1 : exp(x - sum->largest);
    }
    return sum->largest + log(sum->total);
}

/* x becomes the result. reach: how far the largest element may be above the sum so far. */
static void stretch(running *sum, double *x, int64_t n, double reach)
{
    double largest = sum->largest, lost = 0, first = x[0] > sum->largest ? x[0] : sum->largest;
    for (int64_t i = 0; i < n; i++) {
        largest = x[i] > largest ? x[i] : largest;
        lost += x[i] - x[i]; /* NaN if an element is not finite */
    }
    if (!(largest - first <= reach) || lost != 0) {
        for (int64_t i = 0; i < n; i++)
            x[i] = step(sum, x[i]);
        return;
    }
    double total = sum->total * exp(sum->largest - largest);
    trek_row_exp_f64(x, x, n, largest);
    for (int64_t i = 0; i < n; i++)
        x[i] = total += x[i];
    *sum = (running){ largest, total };
    for (int64_t i = 0, width = sizeof(trek_wide64) / sizeof *x; i < n; i += width) {
        size_t bytes = (size_t)(n - i < width ? n - i : width) * sizeof *x;
        trek_wide64 v = (trek_wide64){ 0 } + 1;
        memcpy(&v, x + i, bytes);
        v = trek_log_f64_library(v) + largest;
        memcpy(x + i, &v, bytes);
    }
}

/* f32 has digits to spare: e^-600 is still a number with all of f32's digits. */
static void line_f32(trek_lane lane, const char *from, int64_t from_step, char *to, int64_t to_step, int64_t n)
{
    running sum = { -HUGE_VAL, 0 };
    float row[STRETCH];
    double wide[STRETCH];
    for (int64_t begin = 0; begin < n; begin += STRETCH) {
        int64_t count = n - begin < STRETCH ? n - begin : STRETCH;
        TREK_ISA_NAME(trek_lane_load)(lane, row, from + begin * from_step, from_step, count);
        for (int64_t i = 0; i < count; i++)
            wide[i] = row[i];
        stretch(&sum, wide, count, 600);
        for (int64_t i = 0; i < count; i++)
            row[i] = (float)wide[i];
        TREK_ISA_NAME(trek_lane_store)(lane, to + begin * to_step, to_step, row, count);
    }
}

static void line_f64(trek_lane lane, const char *from, int64_t from_step, char *to, int64_t to_step, int64_t n)
{
    running sum = { -HUGE_VAL, 0 };
    double wide[STRETCH];
    for (int64_t begin = 0; begin < n; begin += STRETCH) {
        int64_t count = n - begin < STRETCH ? n - begin : STRETCH;
        TREK_ISA_NAME(trek_lane_load)(lane, wide, from + begin * from_step, from_step, count);
        stretch(&sum, wide, count, 4);
        TREK_ISA_NAME(trek_lane_store)(lane, to + begin * to_step, to_step, wide, count);
    }
}

static void lines(const trek_order *o, char *const *data, int64_t columns, void *scratch)
{
    trek_dtype dtype = (trek_dtype)o->call->inputs[0]->dtype;
    trek_lane lane = dtype == TREK_BF16 ? TREK_LANE_BF16 : dtype == TREK_F16 ? TREK_LANE_F16
                     : dtype == TREK_F32 ? TREK_LANE_4 : TREK_LANE_8;
    (void)scratch;
    for (int64_t c = 0; c < columns; c++)
        (dtype == TREK_F64 ? line_f64 : line_f32)(lane, data[0] + c * o->across[0] * o->width, o->along[0] * o->width,
                                                  data[1] + c * o->across[1] * o->width, o->along[1] * o->width, o->n);
}

static trek_status logcumsumexp(const trek_op_call *call)
{
    trek_order o;
    if (call->outputs[0]->numel == 0)
        return TREK_OK;
    trek_order_begin(&o, call, 16);
    o.run = lines;
    return trek_order_run(&o, 8 * o.n);
}

void TREK_ISA_NAME(trek_cpu_register_logcumsumexp)(trek_backend *b)
{
    trek_kernel *entries = b->kernels[TREK_OP_logcumsumexp];
    entries[TREK_F32] = entries[TREK_F64] = entries[TREK_BF16] = entries[TREK_F16] = logcumsumexp;
}
