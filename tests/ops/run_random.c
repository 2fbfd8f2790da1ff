/* SPDX-License-Identifier: Apache-2.0 */
/* Random rows: distribution, and numbers that depend on nothing but seed, step,
 * draw and place. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/ops/suite.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

/* Runs the row on `count` elements; those of dropout are ones. */
static trek_tensor *draw(const op_row *row, trek_dtype dtype, int64_t count, const trek_attrs *attrs, trek_device device,
                         op_report *r)
{
    trek_tensor *made = trek_tensor_ones(trek_dims(count), dtype, device);
    trek_op_call call = { .op = &trek_ops[row->id], .attrs = *attrs };
    if (row->id == TREK_OP_dropout) {
        call.n_inputs = 1;
        call.inputs = &made;
    } else {
        call.n_outputs = 1;
        call.outputs[0] = trek_tensor_retain(made);
    }
    if (!made || trek_op_run(&call) != TREK_OK) {
        report_fail(r, "%s", trek_error());
        trek_error_clear();
    }
    trek_tensor_release(made);
    for (int k = 1; k < TREK_MAX_OUTPUTS; k++)
        trek_tensor_release(call.outputs[k]);
    return call.outputs[0];
}

/* Of all draws; TREK_RANDOM_SEED gives another one. */
static int64_t present_seed = 0x123456789abcdef;

static trek_attrs attrs_of(const op_row *row, trek_dtype dtype, int64_t place)
{
    trek_attrs a = { .i = { present_seed, 5, 2, place }, .f = { 1, 6 } };
    if (row->id == TREK_OP_dropout)
        a.f[0] = 0.3;
    if (dtype == TREK_BOOL && row->id == TREK_OP_random_integers) {
        a.f[0] = 0;
        a.f[1] = 2;
    }
    return a;
}

static void moments(const op_array *a, double *mean, double *deviation)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < a->numel; i++)
        sum += a->v[i];
    *mean = sum / (double)a->numel;
    for (int64_t i = 0; i < a->numel; i++)
        squares += (a->v[i] - *mean) * (a->v[i] - *mean);
    *deviation = sqrt(squares / (double)a->numel);
}

/* Limits are five standard errors of what is estimated (and what 16 bits round). */
static void check_numbers(const op_row *row, const op_array *a, const trek_attrs *attrs, op_report *r)
{
    double low = attrs->f[0], high = attrs->f[1], mean, deviation, n = (double)a->numel;
    double coarse = a->dtype == TREK_BF16 ? 0x1p-8 : a->dtype == TREK_F16 ? 0x1p-11 : 0;
    moments(a, &mean, &deviation);
    double want_mean = (low + high) / 2, want_deviation = (high - low) / sqrt(12);
    if (row->id == TREK_OP_normal)
        want_mean = low, want_deviation = high;
    if (row->id == TREK_OP_random_integers) {
        want_mean = (low + high - 1) / 2;
        want_deviation = sqrt(((high - low) * (high - low) - 1) / 12);
    }
    if (row->id == TREK_OP_dropout)
        want_mean = 1, want_deviation = sqrt(low / (1 - low));
    if (fabs(mean - want_mean) > 5 * want_deviation / sqrt(n) + coarse * want_deviation)
        report_fail(r, "mean %g, should be %g", mean, want_mean);
    if (fabs(deviation / want_deviation - 1) > 5 / sqrt(2 * n) + coarse)
        report_fail(r, "deviation %g, should be %g", deviation, want_deviation);
    for (int64_t i = 0; i < a->numel && !report_bad(r); i++) {
        double x = a->v[i];
        bool fine = isfinite(x);
        if (row->id == TREK_OP_uniform)
            fine = x >= low && (x < high || (coarse > 0 && x <= high));
        else if (row->id == TREK_OP_random_integers)
            fine = x >= low && x < high && x == floor(x);
        else if (row->id == TREK_OP_dropout)
            fine = x == 0 || fabs(x * (1 - low) - 1) <= 1e-6 + coarse;
        if (!fine)
            report_fail(r, "element %lld is %.17g", (long long)i, x);
    }
}

static bool same_numbers(const op_array *a, int64_t from, const op_array *b)
{
    return memcmp(a->v + from, b->v, sizeof *b->v * (size_t)b->numel) == 0;
}

static void read_draw_on(const op_row *row, trek_dtype dtype, int64_t count, const trek_attrs *attrs, trek_device device,
                         op_array *a,
                         op_report *r)
{
    trek_tensor *t = draw(row, dtype, count, attrs, device, r);
    memset(a, 0, sizeof *a);
    if (t)
        array_read(a, t);
    trek_tensor_release(t);
}

static void read_draw(const op_row *row, trek_dtype dtype, int64_t count, const trek_attrs *attrs, op_array *a, op_report *r)
{
    read_draw_on(row, dtype, count, attrs, test_device(), a, r);
}

/* A GPU draws the CPU's numbers: the same bits, but for the logarithm and the cosine of normal ones. */
static void check_against_cpu(const op_row *row, trek_dtype dtype, const trek_attrs *attrs, op_report *r)
{
    op_array here, there;
    read_draw_on(row, dtype, 40000, attrs, test_device(), &here, r);
    read_draw_on(row, dtype, 40000, attrs, trek_cpu(0), &there, r);
    double allowed = row->id != TREK_OP_normal ? 0 : dtype == TREK_BF16 ? 0x1p-7 : dtype == TREK_F16 ? 0x1p-10 : 3e-6;
    for (int64_t i = 0; i < 40000 && !report_bad(r); i++)
        if (!(fabs(here.v[i] - there.v[i]) <= allowed * (fabs(there.v[i]) + 1)))
            report_fail(r, "element %lld is %.17g, on the CPU %.17g", (long long)i, here.v[i], there.v[i]);
    array_free(&here);
    array_free(&there);
}

/* Element e of the whole is element e - s of a part that starts at place s. */
static void check_split(const op_row *row, trek_dtype dtype, op_report *r)
{
    static const int64_t cuts[] = { 0, 1, 3, 4, 1001, 30011 };
    trek_attrs attrs = attrs_of(row, dtype, 0);
    op_array whole, part;
    read_draw(row, dtype, 40000, &attrs, &whole, r);
    for (int k = 0; k < 6 && !report_bad(r); k++) {
        trek_attrs at = attrs_of(row, dtype, cuts[k]);
        read_draw(row, dtype, 40000 - cuts[k], &at, &part, r);
        if (!report_bad(r) && !same_numbers(&whole, cuts[k], &part))
            report_fail(r, "a part from place %lld on has other numbers than the whole", (long long)cuts[k]);
        array_free(&part);
    }
    for (int k = 0; k < 3 && !report_bad(r); k++) { /* seed, step, draw */
        trek_attrs other = attrs;
        other.i[k]++;
        read_draw(row, dtype, 40000, &other, &part, r);
        if (!report_bad(r) && same_numbers(&whole, 0, &part))
            report_fail(r, "attribute %d does not change the numbers", k);
        array_free(&part);
    }
    array_free(&whole);
}

static void check_seed(const op_row *row, op_report *r)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT && !report_bad(r); dtype++) {
        if (!(trek_ops[row->id].dtypes >> dtype & 1))
            continue;
        trek_attrs attrs = attrs_of(row, (trek_dtype)dtype, 17);
        op_array a;
        read_draw(row, (trek_dtype)dtype, 1000000, &attrs, &a, r);
        if (!report_bad(r))
            check_numbers(row, &a, &attrs, r);
        array_free(&a);
        if (!report_bad(r))
            check_split(row, (trek_dtype)dtype, r);
        if (!report_bad(r) && !test_on_cpu())
            check_against_cpu(row, (trek_dtype)dtype, &attrs, r);
        if (report_bad(r)) {
            size_t used = strlen(r->text);
            r->text[used < 900 ? used : 900] = 0;
            strcat(r->text, " of ");
            strcat(r->text, trek_dtype_name((trek_dtype)dtype));
        }
    }
}

/* Once, or with TREK_RANDOM_SECONDS for so long on this row, from TREK_RANDOM_SEED on (five standard errors are passed by
 * chance once in two million numbers: a night finds some). */
void check_random(const op_row *row, op_report *r)
{
    const char *seed = getenv("TREK_RANDOM_SEED"), *seconds = getenv("TREK_RANDOM_SECONDS");
    time_t end = time(NULL) + (seconds ? (time_t)strtol(seconds, NULL, 10) : 0);
    present_seed = seed ? (int64_t)strtoll(seed, NULL, 10) : 0x123456789abcdef;
    do {
        for (int way = 0; way < ways() && !report_bad(r); way++) {
            way_use(way);
            check_seed(row, r);
            way_use(-1);
            size_t used = strlen(r->text);
            if (report_bad(r) && way_name(way)[0])
                snprintf(r->text + used, sizeof r->text - used, " [%s]", way_name(way));
        }
        if (report_bad(r) && (seed || seconds)) {
            size_t used = strlen(r->text);
            snprintf(r->text + used, sizeof r->text - used, ", TREK_RANDOM_SEED=%lld", (long long)present_seed);
        }
        present_seed++;
    } while (!report_bad(r) && time(NULL) < end);
}
