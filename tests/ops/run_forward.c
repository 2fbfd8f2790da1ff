/* SPDX-License-Identifier: Apache-2.0 */
/* Forward: every case of a row, for every dtype and layout, against its reference. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/suite.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

void report_fail(op_report *r, const char *format, ...)
{
    if (r->text[0])
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->text, sizeof r->text, format, arguments);
    va_end(arguments);
}

bool case_runs(const op_row *row, const op_case *c, trek_dtype dtype)
{
    const trek_op *op = &trek_ops[row->id];
    unsigned mask = op->dtypes;
    if (op->flags & TREK_OP_INT_TO_FLOAT)
        mask = TREK_ALL;
    return (mask >> dtype & 1) && (!c->dtypes || (c->dtypes >> dtype & 1));
}

bool make_inputs(const op_case *c, trek_dtype dtype, op_layout layout, uint64_t seed, trek_tensor **in)
{
    memset(in, 0, SUITE_INPUTS * sizeof *in);
    for (int k = 0; k < c->n; k++) {
        in[k] = suite_tensor(&c->in[k], dtype, layout, seed * 16 + (uint64_t)k);
        if (!in[k] && !c->in[k].absent) {
            release_inputs(c, in);
            return false;
        }
    }
    return true;
}

void release_inputs(const op_case *c, trek_tensor **in)
{
    for (int k = 0; k < c->n; k++)
        trek_tensor_release(in[k]);
}

static void describe(op_report *r, const op_case *c, trek_dtype dtype, op_layout layout)
{
    static const char *const layouts[LAYOUT_COUNT] = { "contiguous", "transposed", "stepped", "negative strides", "expanded",
                                                       "channels last" };
    char before[1024], shapes[TREK_SHAPE_TEXT], list[200] = "";
    snprintf(before, sizeof before, "%s", r->text);
    for (int k = 0; k < c->n && strlen(list) < 120; k++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%.40s", k ? " " : "",
                 c->in[k].absent ? "-" : trek_shape_format(c->in[k].shape, shapes, sizeof shapes));
    }
    snprintf(r->text, sizeof r->text, "%.60s %s (%s, %s, i0 %lld f0 %g): %.500s", c->label, list, trek_dtype_name(dtype),
             layouts[layout], (long long)c->attrs.i[0], c->attrs.f[0], before);
}

/* Compares outputs, and what a row updates in place (outputs from 3 on, inputs of that number). */
static void compare_outputs(const op_row *row, const trek_op_call *call, op_array *want, int n_want, op_report *r)
{
    char name[32];
    for (int k = 0; k < n_want && !report_bad(r); k++) {
        bool updated = row->id == TREK_OP_batch_norm && k >= 3;
        const trek_tensor *got = updated ? call->inputs[k] : call->outputs[k];
        snprintf(name, sizeof name, updated ? "updated input %d" : "output %d", k);
        if (!want[k].v || !got) {
            if (!want[k].v != !got)
                report_fail(r, "%s is %s", name, got ? "there, should be absent" : "missing");
            continue;
        }
        array_compare(r, name, &want[k], got, k == 0 || row->tolerance != T_EXACT ? row->tolerance : T_EXACT);
    }
}

/* One call of a case: inputs and what is to come out, made once for all ways. */
typedef struct forward_call {
    const op_row *row;
    const op_case *c;
    trek_dtype dtype;
    op_layout layout;
    bool given; /* a strided output */
    trek_tensor **in;
    const op_array *values; /* of the inputs: some rows write to theirs */
    op_array *want;
    int n_want;
} forward_call;

static void run_way(const forward_call *f, int way, bool again, op_report *r)
{
    const op_row *row = f->row;
    bool fills = trek_ops[row->id].flags & TREK_OP_FILL;
    trek_op_call call = { .op = &trek_ops[row->id], .n_inputs = f->c->n, .inputs = f->in, .attrs = f->c->attrs };
    for (int k = 0; again && k < f->c->n; k++)
        if (f->in[k] && f->c->in[k].plain)
            array_write(&f->values[k], f->in[k]);
    suite_poison();
    if (fills || f->given) {
        op_input out = { .shape = trek_shape_make(f->want[0].sizes, f->want[0].ndim), .domain = D_ANY, .dtype = DTYPE_ROW };
        call.outputs[0] =
            suite_tensor(&out, f->want[0].dtype, f->layout == LAYOUT_EXPANDED ? LAYOUT_PLAIN : f->layout, 99);
        call.n_outputs = 1;
    }
    way_use(way);
    trek_status status = trek_op_run(&call);
    if (status != TREK_OK)
        report_fail(r, "%s: %s", trek_status_name(status), trek_error());
    else
        compare_outputs(row, &call, f->want, f->n_want, r);
    if (report_bad(r) && way_name(way)[0]) {
        size_t used = strlen(r->text);
        snprintf(r->text + used, sizeof r->text - used, " [%s]", way_name(way));
    }
    trek_error_clear();
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++)
        trek_tensor_release(call.outputs[k]);
}

static void run_once(const op_row *row, const op_case *c, trek_dtype dtype, op_layout layout, bool given, op_report *r)
{
    trek_tensor *in[SUITE_INPUTS];
    op_array values[SUITE_INPUTS], want[SUITE_OUTPUTS];
    const op_array *refs[SUITE_INPUTS] = { NULL };
    memset(values, 0, sizeof values);
    memset(want, 0, sizeof want);
    if (!make_inputs(c, dtype, layout, 7 + (uint64_t)row->id, in)) {
        report_fail(r, "inputs could not be made: %s", trek_error());
        return;
    }
    for (int k = 0; k < c->n; k++)
        if (in[k]) {
            array_read(&values[k], in[k]);
            refs[k] = &values[k];
        }
    if (trek_ops[row->id].flags & TREK_OP_FILL)
        array_make(&want[0], dtype, c->given.shape.ndim, c->given.shape.sizes);
    forward_call f = { row, c, dtype, layout, given, in, values, want, row->reference(refs, c->n, &c->attrs, want) };
    bool again = false;
    for (int way = 0; way < ways() && !report_bad(r); way++)
        if (way_taken(way, dtype, c->large, (int)layout + given)) {
            run_way(&f, way, again, r);
            again = true;
        }
    way_use(-1);
    for (int k = 0; k < SUITE_OUTPUTS; k++)
        array_free(&want[k]);
    for (int k = 0; k < SUITE_INPUTS; k++)
        array_free(&values[k]);
    release_inputs(c, in);
}

typedef struct forward_run {
    op_report *report;
    bool quick; /* no large cases */
    bool brief; /* no large cases, every second layout: for a GPU's tools, under which a launch takes a millisecond */
    bool sampled; /* large cases in a third of their dtypes, which TREK_RANDOM_SEED draws: for sanitizers */
    bool products; /* no dtypes that are multiplied in one way only */
    unsigned dtypes_seen;
} forward_run;

/* Whether a sampled run takes a large case in that dtype. TREK_RANDOM_SEED asks for another draw. */
static bool is_drawn(const op_case *c, int dtype)
{
    static uint64_t seed;
    const char *asked = getenv("TREK_RANDOM_SEED");
    if (!seed)
        seed = (asked ? (uint64_t)strtoull(asked, NULL, 10) : 1) * 2 + 1; /* never 0 */
    uint64_t name = seed;
    for (const char *at = c->label; *at; at++)
        name = name * 31 + (unsigned char)*at;
    for (int d = 0; d < c->in[0].shape.ndim; d++)
        name = name * 31 + (uint64_t)c->in[0].shape.sizes[d];
    return dtype % 3 == (int)(3 * hash_unit(name, 0)); /* some floating dtype always is */
}

/* Of a large case the plain one; in one dtype also two in which it lies otherwise. */
static bool takes_layout(const forward_run *f, const op_case *c, trek_dtype dtype, op_layout layout)
{
    bool main = dtype == TREK_F32 || dtype == TREK_I64, images = c->in[0].shape.ndim == 4;
    if (layout == LAYOUT_LAST && c->in[0].shape.ndim < 3)
        return false;
    if (!c->large)
        return !f->brief || layout % 2 == 0;
    return layout == LAYOUT_PLAIN || (main && (layout == LAYOUT_TRANSPOSED || (layout == LAYOUT_LAST && images)));
}

/* Whether the ways in which products are computed are the same for it. */
static bool has_one_way(trek_dtype dtype) { return dtype == TREK_F64 || !trek_dtype_is_float(dtype); }

static void forward_case(const op_row *row, const op_case *c, void *arg)
{
    forward_run *f = arg;
    bool view = trek_ops[row->id].flags & TREK_OP_VIEW;
    if (c->expect != TREK_OK || ((f->quick || f->brief) && c->large))
        return;
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++) {
        if (!case_runs(row, c, (trek_dtype)dtype))
            continue;
        f->dtypes_seen |= 1u << dtype;
        if ((f->sampled && c->large && !is_drawn(c, dtype)) || (f->products && has_one_way((trek_dtype)dtype)))
            continue;
        for (int layout = 0; layout < LAYOUT_COUNT && !report_bad(f->report); layout++) {
            if (!takes_layout(f, c, (trek_dtype)dtype, (op_layout)layout))
                continue;
            run_once(row, c, (trek_dtype)dtype, (op_layout)layout, false, f->report);
            if (report_bad(f->report))
                describe(f->report, c, (trek_dtype)dtype, (op_layout)layout);
        }
        if (view || c->large || report_bad(f->report))
            continue;
        run_once(row, c, (trek_dtype)dtype, LAYOUT_STEPPED, true, f->report);
        if (report_bad(f->report)) {
            describe(f->report, c, (trek_dtype)dtype, LAYOUT_STEPPED);
            size_t used = strlen(f->report->text);
            snprintf(f->report->text + used, sizeof f->report->text - used, " [into a given, strided output]");
        }
    }
}

/* TREK_TEST_SHORT: 1 for what is slow on a device or under sanitizers, 2 on an emulated CPU. */
void check_forward(const op_row *row, bool quick, op_report *r)
{
    const char *is_short = getenv("TREK_TEST_SHORT");
    bool emulated = is_short && strcmp(is_short, "2") == 0;
    bool recurrent = is_short && (strstr(trek_ops[row->id].name, "lstm") || strstr(trek_ops[row->id].name, "gru"));
        /* many steps each */
    forward_run f = { .report = r, .quick = quick || emulated || recurrent, .brief = is_short && !test_on_cpu(),
                      .sampled = is_short && test_on_cpu(), .products = getenv("TREK_TEST_OPS") != NULL };
    row->family(row, forward_case, &f);
    unsigned missing = trek_ops[row->id].dtypes & ~f.dtypes_seen;
    if (!report_bad(r) && missing)
        report_fail(r, "%s: no case ran for dtypes %#x", trek_ops[row->id].name, missing);
}

/* --- a fused op equals its composite -------------------------------------------------- */

static void composite_case(const op_row *row, const op_case *c, void *arg)
{
    op_report *r = arg;
    trek_tensor *in[SUITE_INPUTS];
    if (c->expect != TREK_OK || c->large || report_bad(r) || !make_inputs(c, TREK_F64, LAYOUT_PLAIN, 31, in))
        return;
    trek_op_call call = { .op = &trek_ops[row->id], .n_inputs = c->n, .inputs = in, .attrs = c->attrs };
    trek_scope scope = trek_scope_begin();
    trek_var *vars[SUITE_INPUTS] = { NULL };
    for (int k = 0; k < c->n; k++)
        vars[k] = in[k] ? trek_var_constant(trek_tensor_clone(in[k])) : NULL;
    for (int k = 0; k < c->n; k++)
        if (vars[k])
            trek_tensor_release(trek_var_data(vars[k])); /* the constant keeps a reference of its own */
    if (trek_op_run(&call) != TREK_OK) {
        report_fail(r, "fused: %s", trek_error());
    } else {
        trek_var *plain = trek_composite_rules[row->id](call.op, &call.attrs, vars, c->n);
        op_array want;
        array_read(&want, call.outputs[0]);
        array_scaled(&want);
        for (int64_t i = 0; i < want.numel; i++)
            want.scale[i] = 4;
        if (plain)
            array_compare(r, "composite", &want, trek_var_data(plain), T_SUM);
        else
            report_fail(r, "composite: %s", trek_error());
        array_free(&want);
    }
    if (report_bad(r))
        describe(r, c, TREK_F64, LAYOUT_PLAIN);
    trek_error_clear();
    trek_scope_end(scope);
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++)
        trek_tensor_release(call.outputs[k]);
    release_inputs(c, in);
}

void check_composite(const op_row *row, op_report *r)
{
    if (!trek_composite_rules[row->id])
        report_fail(r, "%s has no composite in the table", trek_ops[row->id].name);
    else
        row->family(row, composite_case, r);
}
