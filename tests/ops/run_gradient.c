/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients: first and second, in f64, against central finite differences with
 * random cotangents. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/ops/suite.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

/* One case being differentiated: values of the inputs, and of the cotangent. */
typedef struct problem {
    const op_row *row;
    const op_case *c;
    op_array x[SUITE_INPUTS];
    op_array cotangent;
    op_array weights[SUITE_INPUTS]; /* of the gradients, for the second derivative */
    op_layout layout;
    op_report *report;
} problem;

bool case_differentiable(const op_row *row, const op_case *c, int k)
{
    return !c->in[k].absent && c->in[k].domain != D_INDEX && (row->gradients >> k & 1);
}

static bool differentiable(const problem *p, int k) { return case_differentiable(p->row, p->c, k); }

trek_var *suite_var(const op_array *a, op_layout layout, bool requires_grad)
{
    op_input in = { .shape = trek_shape_make(a->sizes, a->ndim), .domain = D_ANY, .dtype = DTYPE_ROW };
    trek_tensor *t = suite_tensor(&in, a->dtype, layout == LAYOUT_EXPANDED ? LAYOUT_PLAIN : layout, 1);
    if (!t)
        return NULL;
    array_write(a, t);
    trek_var *v = trek_var_constant(t);
    trek_tensor_release(t);
    if (v && requires_grad && trek_var_set_requires_grad(v, true) != TREK_OK)
        return NULL;
    return v;
}

/* The op on variables of the problem's values; inputs that are differentiated need gradients. */
static trek_var *apply_op(const problem *p, op_layout layout, trek_var **vars)
{
    for (int k = 0; k < p->c->n; k++) {
        vars[k] = NULL;
        if (p->c->in[k].absent)
            continue;
        vars[k] = suite_var(&p->x[k], p->c->in[k].plain ? LAYOUT_PLAIN : layout, differentiable(p, k));
        if (!vars[k])
            return NULL;
    }
    return trek_apply(&trek_ops[p->row->id], vars, p->c->n, &p->c->attrs);
}

static double dot(const op_array *a, const op_array *b)
{
    double sum = 0;
    for (int64_t i = 0; i < a->numel; i++)
        sum += a->v[i] * b->v[i];
    return sum;
}

/* <op(x), cotangent> of the op on a device, without a tape. */
static double value_on(problem *p, trek_device device)
{
    trek_tensor *in[SUITE_INPUTS] = { NULL };
    double value = NAN;
    for (int k = 0; k < p->c->n; k++) {
        if (p->c->in[k].absent)
            continue;
        in[k] = trek_tensor_make(p->x[k].ndim, p->x[k].sizes, p->x[k].dtype, device);
        if (in[k])
            array_write(&p->x[k], in[k]);
    }
    trek_op_call call = { .op = &trek_ops[p->row->id], .n_inputs = p->c->n, .inputs = in, .attrs = p->c->attrs };
    if (trek_op_run(&call) == TREK_OK) {
        op_array y;
        array_read(&y, call.outputs[0]);
        value = dot(&y, &p->cotangent);
        array_free(&y);
    }
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++)
        trek_tensor_release(call.outputs[k]);
    release_inputs(p->c, in);
    return value;
}

/* On the CPU, whatever the test's device is: see same_function. */
static double value_of(problem *p) { return value_on(p, trek_cpu(0)); }

void array_random(op_array *a, const trek_tensor *t, uint64_t seed)
{
    array_make(a, TREK_F64, t->ndim, t->sizes);
    for (int64_t i = 0; i < a->numel; i++)
        a->v[i] = floor(hash_unit(seed, (uint64_t)i) * 256 - 128) / 128;
}

static bool close_enough(double a, double b, double size)
{
    if (isnan(a) && isnan(b))
        return true;
    return fabs(a - b) <= 3e-6 * (1 + fabs(a) + fabs(b)) + size;
}

/* Central difference of f with respect to one number, with a step of h. */
static double difference(problem *p, double *x, double (*f)(problem *p), double h)
{
    double kept = *x;
    *x = kept + h;
    double above = f(p);
    *x = kept - h;
    double below = f(p);
    *x = kept;
    return (above - below) / (2 * h);
}

/* Compares an analytic gradient (NULL: zero) with differences over the array x. */
static void compare_gradient(problem *p, const char *what, int k, op_array *x, const trek_var *grad, double (*f)(problem *p))
{
    op_array g;
    memset(&g, 0, sizeof g);
    if (grad) {
        const trek_tensor *t = trek_var_data(grad);
        if (t->dtype != x->dtype || t->ndim != x->ndim || memcmp(t->sizes, x->sizes, sizeof(int64_t) * (size_t)x->ndim)) {
            char text[TREK_SHAPE_TEXT];
            report_fail(p->report, "%s of input %d is %s %s", what, k, trek_dtype_name((trek_dtype)t->dtype),
                        trek_tensor_shape_text(t, text));
            return;
        }
        array_read(&g, t);
    }
    for (int64_t i = 0; i < x->numel && !report_bad(p->report); i++) {
        double analytic = grad ? g.v[i] : 0, numeric = difference(p, &x->v[i], f, 1e-5);
        if (!close_enough(analytic, numeric, 0)) /* the activation's bend lay within the step: a shorter one does not reach it */
            numeric = difference(p, &x->v[i], f, 1e-8);
        p->report->checks++;
        if (!close_enough(analytic, numeric, 0))
            report_fail(p->report, "%s of input %d, element %lld of %lld: %.10g, differences say %.10g", what, k, (long long)i,
                        (long long)x->numel, analytic, numeric);
    }
    array_free(&g);
}

/* First gradients of <out, cotangent>, in the present scope. */
static bool first_gradient(problem *p, trek_var **vars, trek_var *out, trek_var *seed, bool create, trek_var **grads)
{
    trek_var *wanted[SUITE_INPUTS], *found[SUITE_INPUTS] = { NULL };
    int n = 0;
    for (int k = 0; k < p->c->n; k++)
        if (differentiable(p, k))
            wanted[n++] = vars[k];
    trek_backward_opts opts = { .create_graph = create };
    if (trek_grad(&out, 1, wanted, n, &seed, &opts, found) != TREK_OK)
        return false;
    for (int k = 0, at = 0; k < p->c->n; k++)
        grads[k] = differentiable(p, k) ? found[at++] : NULL;
    return true;
}

static void problem_free(problem *p)
{
    for (int k = 0; k < SUITE_INPUTS; k++) {
        array_free(&p->x[k]);
        array_free(&p->weights[k]);
    }
    array_free(&p->cotangent);
}

static bool problem_make(problem *p, const op_row *row, const op_case *c, op_layout layout, op_report *r)
{
    memset(p, 0, sizeof *p);
    *p = (problem){ .row = row, .c = c, .layout = layout, .report = r };
    trek_tensor *in[SUITE_INPUTS];
    if (!make_inputs(c, TREK_F64, layout, 1000 + (uint64_t)row->id * 8 + layout, in)) {
        report_fail(r, "inputs could not be made: %s", trek_error());
        return false;
    }
    for (int k = 0; k < c->n; k++)
        if (in[k]) {
            array_read(&p->x[k], in[k]);
            array_random(&p->weights[k], in[k], 77 + (uint64_t)k);
        }
    release_inputs(c, in);
    return true;
}

bool checked_case(const op_row *row, const op_case *c, const op_report *r)
{
    return c->expect == TREK_OK && !c->large && !c->no_gradient && case_runs(row, c, TREK_F64) && !report_bad(r);
}

/* Gradients by each way of the CPU in turn: the kernels' own numbers are compared in all of them by the forward check. */
static int next_way(void)
{
    static int turn;
    return turn++ % ways();
}

static void name_way(op_report *r, int way)
{
    size_t used = strlen(r->text);
    if (way_name(way)[0])
        snprintf(r->text + used, sizeof r->text - used, " [%s]", way_name(way));
}

static void name_case(op_report *r, const op_case *c, op_layout layout)
{
    char before[1024], shape[TREK_SHAPE_TEXT];
    snprintf(before, sizeof before, "%s", r->text);
    snprintf(r->text, sizeof r->text, "%.60s %.60s (layout %d, i0 %lld, f0 %g): %.500s", c->label,
             trek_shape_format(c->in[0].shape, shape, sizeof shape), layout, (long long)c->attrs.i[0], c->attrs.f[0], before);
}

/* A GPU's gradients are held against differences of the CPU's op, which is the same function: shown here at the point, and by
 * the forward check of both against one reference. Two launches for each number would be most of the time. */
static void same_function(problem *p)
{
    if (test_on_cpu())
        return;
    double here = value_on(p, test_device()), there = value_of(p);
    if (!close_enough(here, there, 0))
        report_fail(p->report, "the device's value is %.15g, the CPU's %.15g", here, there);
}

static void gradient_in_layout(const op_row *row, const op_case *c, op_layout layout, op_report *r)
{
    problem p;
    if (!problem_make(&p, row, c, layout, r))
        return;
    trek_scope scope = trek_scope_begin();
    trek_var *vars[SUITE_INPUTS], *grads[SUITE_INPUTS], *seed = NULL;
    int way = next_way();
    way_use(way);
    trek_var *out = apply_op(&p, layout, vars);
    if (out) {
        array_random(&p.cotangent, trek_var_data(out), 5);
        seed = suite_var(&p.cotangent, layout, false);
    }
    bool found = seed && first_gradient(&p, vars, out, seed, false, grads);
    way_use(-1);
    if (!found)
        report_fail(r, "%s: %s", trek_status_name(trek_error_status()), trek_error());
    else
        same_function(&p);
    for (int k = 0; k < c->n && !report_bad(r); k++)
        if (differentiable(&p, k))
            compare_gradient(&p, "gradient", k, &p.x[k], grads[k], value_of);
    trek_error_clear();
    trek_scope_end(scope);
    if (!report_bad(r) && trek_tape_size() != 0)
        report_fail(r, "%lld nodes are left on the tape", (long long)trek_tape_size());
    if (report_bad(r)) {
        name_case(r, c, layout);
        name_way(r, way);
    }
    problem_free(&p);
}

static void gradient_case(const op_row *row, const op_case *c, void *arg)
{
    op_report *r = arg;
    static const op_layout layouts[] = { LAYOUT_PLAIN, LAYOUT_TRANSPOSED, LAYOUT_NEGATIVE, LAYOUT_LAST };
    for (int k = 0; k < (int)(sizeof layouts / sizeof layouts[0]) && checked_case(row, c, r); k++)
        gradient_in_layout(row, c, layouts[k], r);
}

void check_gradient(const op_row *row, op_report *r)
{
    row->family(row, gradient_case, r);
    if (!report_bad(r) && r->checks == 0)
        report_fail(r, "%s: nothing was differentiated", trek_ops[row->id].name);
}

/* --- second derivatives ------------------------------------------------------------- */

/* sum_k <grad_k(x, cotangent), weights_k> */
static double gradient_value(problem *p)
{
    double value = 0;
    trek_scope scope = trek_scope_begin();
    trek_var *vars[SUITE_INPUTS], *grads[SUITE_INPUTS];
    trek_var *out = apply_op(p, LAYOUT_PLAIN, vars), *seed = out ? suite_var(&p->cotangent, LAYOUT_PLAIN, false) : NULL;
    if (!seed || !first_gradient(p, vars, out, seed, false, grads))
        value = NAN;
    for (int k = 0; k < p->c->n && !isnan(value); k++) {
        if (!differentiable(p, k) || !grads[k])
            continue;
        op_array g;
        array_read(&g, trek_var_data(grads[k]));
        value += dot(&g, &p->weights[k]);
        array_free(&g);
    }
    trek_scope_end(scope);
    return value;
}

/* Gradients of gradient_value with respect to the inputs and (last) the cotangent. */
static bool second_gradient(problem *p, trek_var **vars, trek_var *out, trek_var *seed, trek_var **found)
{
    trek_var *grads[SUITE_INPUTS], *outs[SUITE_INPUTS], *seeds[SUITE_INPUTS], *wanted[SUITE_INPUTS + 1];
    trek_var *got[SUITE_INPUTS + 1] = { NULL };
    if (!first_gradient(p, vars, out, seed, true, grads))
        return false;
    int n_out = 0, n = 0;
    for (int k = 0; k < p->c->n; k++) {
        if (!differentiable(p, k))
            continue;
        wanted[n++] = vars[k];
        if (!grads[k] || !trek_var_requires_grad(grads[k]))
            continue;
        outs[n_out] = grads[k];
        seeds[n_out++] = suite_var(&p->weights[k], LAYOUT_PLAIN, false);
    }
    wanted[n++] = seed;
    if (n_out > 0 && trek_grad(outs, n_out, wanted, n, seeds, NULL, got) != TREK_OK)
        return false;
    for (int k = 0, at = 0; k < p->c->n; k++)
        found[k] = differentiable(p, k) ? got[at++] : NULL;
    found[p->c->n] = got[n - 1];
    return true;
}

static void second_case(const op_row *row, const op_case *c, void *arg)
{
    op_report *r = arg;
    problem p;
    if (!checked_case(row, c, r) || !problem_make(&p, row, c, LAYOUT_PLAIN, r))
        return;
    trek_scope scope = trek_scope_begin();
    trek_var *vars[SUITE_INPUTS], *found[SUITE_INPUTS + 1], *seed = NULL;
    int way = next_way();
    way_use(way);
    trek_var *out = apply_op(&p, LAYOUT_PLAIN, vars);
    if (out) {
        array_random(&p.cotangent, trek_var_data(out), 5);
        seed = suite_var(&p.cotangent, LAYOUT_PLAIN, true);
    }
    bool made = seed && second_gradient(&p, vars, out, seed, found);
    way_use(-1);
    if (!made)
        report_fail(r, "%s: %s", trek_status_name(trek_error_status()), trek_error());
    for (int k = 0; k < c->n && !report_bad(r); k++)
        if (differentiable(&p, k))
            compare_gradient(&p, "second derivative", k, &p.x[k], found[k], gradient_value);
    if (!report_bad(r))
        compare_gradient(&p, "second derivative (cotangent)", c->n, &p.cotangent, found[c->n], gradient_value);
    trek_error_clear();
    trek_scope_end(scope);
    if (report_bad(r)) {
        name_case(r, c, LAYOUT_PLAIN);
        name_way(r, way);
    }
    problem_free(&p);
}

void check_second(const op_row *row, op_report *r)
{
    row->family(row, second_case, r);
    if (!report_bad(r) && r->checks == 0)
        report_fail(r, "%s: nothing was differentiated", trek_ops[row->id].name);
}
