/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs of several floating dtypes: the op refuses them, with DTYPE, or its
 * gradients come in each input's own dtype, with the numbers of f64. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/ops/suite.h"
#include "tests/support/support.h"

/* One choice of dtypes. */
typedef struct mixture {
    const op_row *row;
    const op_case *c;
    op_report *report;
    trek_dtype dtypes[SUITE_INPUTS];
    op_array x[SUITE_INPUTS], cotangent;
    bool create;
} mixture;

static bool floats(const op_case *c, int k)
{
    const op_input *in = &c->in[k];
    return !in->absent && (in->dtype == DTYPE_ROW || in->dtype == DTYPE_STATISTICS) && in->domain != D_INDEX;
}

/* Gradients of <op(x), cotangent>, x (vars) in the mixture's dtypes or in f64; grads[k] may be NULL. OK, or the forward's status.
 */
static trek_status differentiate(mixture *m, bool wide, trek_var **vars, trek_var **grads, trek_dtype *result)
{
    trek_var *out, *seed;
    memset(vars, 0, SUITE_INPUTS * sizeof *vars);
    for (int k = 0; k < m->c->n; k++) {
        grads[k] = NULL;
        if (m->c->in[k].absent)
            continue;
        op_array values = m->x[k];
        values.dtype = wide && floats(m->c, k) ? TREK_F64 : m->x[k].dtype;
        vars[k] = suite_var(&values, LAYOUT_PLAIN, case_differentiable(m->row, m->c, k));
    }
    if (trek_apply_many(&trek_ops[m->row->id], vars, m->c->n, &m->c->attrs, &out, 1) != TREK_OK)
        return trek_error_status();
    if (!trek_var_requires_grad(out))
        return TREK_OK;
    *result = trek_var_dtype(out);
    if (!m->cotangent.v)
        array_random(&m->cotangent, trek_var_data(out), 5);
    op_array values = m->cotangent;
    values.dtype = TREK_F64; /* of another dtype than the result: cast */
    seed = suite_var(&values, LAYOUT_PLAIN, false);
    trek_status status = trek_backward_with(out, seed, &(trek_backward_opts){ .create_graph = !wide && m->create });
    for (int k = 0; status == TREK_OK && k < m->c->n; k++)
        grads[k] = vars[k] ? trek_var_grad(vars[k]) : NULL;
    if (status != TREK_OK)
        report_fail(m->report, "the op took them, its gradient gives %s: %s", trek_status_name(status), trek_error());
    return status;
}

static double unit_of(trek_dtype dtype)
{
    return dtype == TREK_F64 ? 0x1p-52 : dtype == TREK_F32 ? 0x1p-23 : dtype == TREK_F16 ? 0x1p-10 : 0x1p-7;
}

static void compare(mixture *m, int k, const trek_var *want, const trek_var *got, double unit)
{
    op_array w, g;
    if (trek_var_dtype(got) != m->dtypes[k]) {
        report_fail(m->report, "gradient of input %d is %s", k, trek_dtype_name(trek_var_dtype(got)));
        return;
    }
    array_read(&w, trek_var_data(want));
    array_read(&g, trek_var_data(got));
    double size = 1;
    for (int64_t i = 0; i < w.numel; i++)
        size = fabs(w.v[i]) > size ? fabs(w.v[i]) : size;
    for (int64_t i = 0; i < w.numel && !report_bad(m->report); i++) {
        m->report->checks++;
        if (!(fabs(w.v[i] - g.v[i]) <= 64 * unit * size) && /* a row of one number cancels */ !(isnan(w.v[i]) && isnan(g.v[i])))
            report_fail(m->report, "gradient of input %d, element %lld: %.8g, in f64 %.8g", k, (long long)i, g.v[i], w.v[i]);
    }
    array_free(&w);
    array_free(&g);
}

static void forget(trek_var **vars)
{
    for (int k = 0; k < SUITE_INPUTS; k++)
        trek_var_zero_grad(vars[k]); /* a recorded gradient in a leaf that it depends on: a circle */
}

static void check_mixture(mixture *m)
{
    trek_var *vars[SUITE_INPUTS], *wide[SUITE_INPUTS], *want[SUITE_INPUTS], *got[SUITE_INPUTS];
    trek_dtype result = TREK_F64, in_f64 = TREK_F64;
    suite_poison();
    trek_scope scope = trek_scope_begin();
    trek_status status = differentiate(m, false, vars, got, &result);
    if (status != TREK_OK && status != TREK_ERR_DTYPE)
        report_fail(m->report, "%s: %s", trek_status_name(status), trek_error());
    trek_error_clear();
    if (status == TREK_OK && differentiate(m, true, wide, want, &in_f64) == TREK_OK) {
        double unit = unit_of(result);
        for (int k = 0; k < m->c->n; k++)
            if (floats(m->c, k) && unit_of(m->dtypes[k]) > unit)
                unit = unit_of(m->dtypes[k]);
        for (int k = 0; k < m->c->n && !report_bad(m->report); k++)
            if (want[k] && got[k])
                compare(m, k, want[k], got[k], unit);
            else if (!want[k] != !got[k])
                report_fail(m->report, "gradient of input %d is %s", k, got[k] ? "there, in f64 there is none" : "missing");
    }
    trek_error_clear();
    forget(vars);
    trek_scope_end(scope);
    if (!report_bad(m->report) && trek_tape_size() != 0)
        report_fail(m->report, "%lld nodes are left on the tape", (long long)trek_tape_size());
}

/* Values of input k that every dtype holds, so that all choices have the same gradients. */
static void round_values(op_array *a, trek_dtype dtype)
{
    for (int64_t i = 0; i < a->numel; i++)
        a->v[i] = dtype_round(dtype, dtype_round(TREK_BF16, a->v[i]));
    a->dtype = dtype;
}

/* Inputs in `set` are of dtype b, the other ones of dtype a. */
static void run_mixture(const op_row *row, const op_case *c, trek_dtype a, trek_dtype b, unsigned set, bool create, op_report *r)
{
    mixture m;
    trek_tensor *in[SUITE_INPUTS];
    memset(&m, 0, sizeof m);
    m = (mixture){ .row = row, .c = c, .report = r, .create = create };
    if (!make_inputs(c, TREK_F64, LAYOUT_PLAIN, 3000 + (uint64_t)row->id, in)) {
        report_fail(r, "inputs could not be made: %s", trek_error());
        return;
    }
    for (int k = 0; k < c->n; k++) {
        if (!in[k])
            continue;
        array_read(&m.x[k], in[k]);
        if (floats(c, k))
            round_values(&m.x[k], c->in[k].dtype == DTYPE_STATISTICS && unit_of(a) > 0x1p-23 ? TREK_F32 : set >> k & 1 ? b : a);
        m.dtypes[k] = m.x[k].dtype;
    }
    release_inputs(c, in);
    check_mixture(&m);
    for (int k = 0; k < SUITE_INPUTS; k++)
        array_free(&m.x[k]);
    array_free(&m.cotangent);
    if (!report_bad(r))
        return;
    char before[800], shape[TREK_SHAPE_TEXT];
    snprintf(before, sizeof before, "%.790s", r->text);
    r->text[0] = 0;
    report_fail(r, "%.60s %.60s (%s, inputs %#x %s%s): %s", c->label, trek_shape_format(c->in[0].shape, shape, sizeof shape),
                trek_dtype_name(a),
                set,
                trek_dtype_name(b), create ? ", create_graph" : "", before);
}

static void mixed_case(const op_row *row, const op_case *c, void *arg)
{
    static const trek_dtype pairs[][2] = { { TREK_F32, TREK_F64 }, { TREK_F64, TREK_F32 }, { TREK_BF16, TREK_F32 },
                                           { TREK_F32, TREK_BF16 },
                                           { TREK_F16, TREK_F32 }, { TREK_BF16, TREK_F16 }, { TREK_F64, TREK_BF16 } };
    op_report *r = arg;
    unsigned typed = 0;
    if (!checked_case(row, c, r))
        return;
    for (int k = 0; k < c->n; k++)
        typed |= (unsigned)(floats(c, k) && c->in[k].dtype == DTYPE_ROW) << k;
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        if (!case_runs(row, c, pairs[p][0]) || !case_runs(row, c, pairs[p][1]))
            continue;
        for (unsigned set = (typed - 1) & typed;; set = (set - 1) & typed) { /* proper subsets, the empty one last */
            for (int create = 0; create < (test_on_cpu() ? 2 : 1) && !report_bad(r);
                 create++) /* the tape is the same everywhere */
                run_mixture(row, c, pairs[p][0], pairs[p][1], set, create, r);
            if (set == 0 || report_bad(r))
                break;
        }
    }
}

void check_mixed(const op_row *row, op_report *r)
{
    row->family(row, mixed_case, r);
    if (!report_bad(r) && r->checks == 0)
        report_fail(r, "%s: nothing was differentiated", trek_ops[row->id].name);
}
