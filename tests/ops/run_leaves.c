/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients however they are asked for: of every set of inputs while the others
 * are frozen, by trek_grad, into leaves and into placed gradients, once and again,
 * with create_graph and without, into memory full of NaN. All are those that
 * check_gradient compares with differences, and each is memory of its own. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/ops/suite.h"
#include "tests/support/support.h"

typedef enum way { WAY_GRAD, WAY_GRAD_RETAIN, WAY_LEAF, WAY_LEAF_RETAIN, WAY_PLACED, WAY_TWICE, WAYS } way;
static const char *const way_names[WAYS] = { "trek_grad", "trek_grad, retained", "into leaves", "into leaves, retained",
                                             "into placed gradients", "into leaves, twice" };

enum { ROOTS = 2 };

/* A case, its values, and what its gradients are. */
typedef struct scene {
    const op_row *row;
    const op_case *c;
    op_report *report;
    op_array x[SUITE_INPUTS];
    op_array want[SUITE_INPUTS];    /* gradients with respect to all that can have one */
    op_array weights[SUITE_INPUTS]; /* of the gradients, for second derivatives */
    op_array cotangents[ROOTS];
    unsigned all;                   /* bits: inputs that can have a gradient */
} scene;

/* One call of the op, with gradients for the inputs in `set`. */
typedef struct call_of {
    unsigned set;
    trek_var *vars[SUITE_INPUTS], *outs[ROOTS], *seeds[ROOTS], *grads[SUITE_INPUTS];
    int n_roots;
} call_of;

static bool is_pair(const scene *s) { return trek_ops[s->row->id].flags & TREK_OP_PAIR; }

/* Applies the op; roots are the outputs that have a gradient. */
static bool apply_set(scene *s, call_of *call, unsigned set, op_layout layout)
{
    trek_var *outs[ROOTS] = { NULL };
    *call = (call_of){ .set = set };
    for (int k = 0; k < s->c->n; k++)
        if (!s->c->in[k].absent &&
            !(call->vars[k] = suite_var(&s->x[k], s->c->in[k].plain ? LAYOUT_PLAIN : layout, set >> k & 1)))
            return false;
    if (trek_apply_many(&trek_ops[s->row->id], call->vars, s->c->n, &s->c->attrs, outs, is_pair(s) ? 2 : 1) != TREK_OK)
        return false;
    for (int k = 0; k < ROOTS && outs[k]; k++) {
        if (!s->cotangents[k].v)
            array_random(&s->cotangents[k], trek_var_data(outs[k]), 5 + (uint64_t)k);
        if (!trek_var_requires_grad(outs[k]))
            continue;
        call->outs[call->n_roots] = outs[k];
        if (!(call->seeds[call->n_roots++] = suite_var(&s->cotangents[k], LAYOUT_PLAIN, false)))
            return false;
    }
    return call->n_roots > 0;
}

static bool run_grad(const scene *s, call_of *call, const trek_backward_opts *opts)
{
    trek_var *wanted[SUITE_INPUTS], *found[SUITE_INPUTS] = { NULL };
    int n = 0;
    for (int k = 0; k < s->c->n; k++)
        if (call->set >> k & 1)
            wanted[n++] = call->vars[k];
    if (trek_grad(call->outs, call->n_roots, wanted, n, call->seeds, opts, found) != TREK_OK)
        return false;
    for (int k = 0, at = 0; k < s->c->n; k++)
        call->grads[k] = call->set >> k & 1 ? found[at++] : NULL;
    return true;
}

/* Gradients of leaves in memory that is there, as an optimizer's arena is: full of NaN, since nothing was added up yet. */
static bool place_grads(const scene *s, call_of *call)
{
    for (int k = 0; k < s->c->n; k++) {
        if (!(call->set >> k & 1))
            continue;
        const trek_tensor *x = trek_var_data(call->vars[k]);
        trek_tensor *place = trek_tensor_full(trek_tensor_shape(x), NAN, (trek_dtype)x->dtype, x->device);
        trek_status status = place ? trek_var_place_grad(call->vars[k], place) : trek_error_status();
        trek_tensor_release(place);
        if (status != TREK_OK)
            return false;
    }
    return true;
}

static bool run_way(const scene *s, call_of *call, way how, bool create)
{
    trek_backward_opts opts = { .create_graph = create, .retain_graph = how != WAY_GRAD && how != WAY_LEAF && how != WAY_PLACED };
    if (how == WAY_GRAD || how == WAY_GRAD_RETAIN)
        return run_grad(s, call, &opts);
    if (how == WAY_PLACED && !place_grads(s, call))
        return false;
    for (int pass = 0; pass < (how == WAY_TWICE ? 2 : 1); pass++)
        if (trek_backward_watched(call->outs, call->seeds, call->n_roots, &opts, NULL) != TREK_OK)
            return false;
    for (int k = 0; k < s->c->n; k++)
        call->grads[k] = call->vars[k] ? trek_var_grad(call->vars[k]) : NULL;
    return true;
}

/* --- what must hold of the gradients ------------------------------------------------------ */

static double largest(const op_array *a)
{
    double size = 0;
    for (int64_t i = 0; i < a->numel; i++)
        size = fabs(a->v[i]) > size ? fabs(a->v[i]) : size;
    return size;
}

/* Compares with want (v NULL: zeros) times `factor`. */
static void compare(scene *s, const char *what, int k, const op_array *want, double factor, const trek_var *got)
{
    op_array g;
    memset(&g, 0, sizeof g);
    if (got) {
        const trek_tensor *t = trek_var_data(got);
        const op_array *x = k < s->c->n ? &s->x[k] : &s->cotangents[0];
        if (t->dtype != x->dtype || t->ndim != x->ndim || memcmp(t->sizes, x->sizes, sizeof(int64_t) * (size_t)x->ndim)) {
            report_fail(s->report, "%s of input %d has another shape or dtype than the input", what, k);
            return;
        }
        array_read(&g, t);
    }
    double near = 1e-9 * (1 + (want->v ? factor * largest(want) : 0));
    int64_t n = got ? g.numel : want->v ? want->numel : 0;
    for (int64_t i = 0; i < n && !report_bad(s->report); i++) {
        double is = got ? g.v[i] : 0, should = want->v ? factor * want->v[i] : 0;
        s->report->checks++;
        if (!(fabs(is - should) <= near) && !(isnan(is) && isnan(should)))
            report_fail(s->report, "%s of input %d, element %lld of %lld: %.10g, should be %.10g", what, k, (long long)i,
                        (long long)n, is, should);
    }
    array_free(&g);
}

/* Whatever is not the gradient of input `written` still has its values. */
static void compare_untouched(scene *s, const call_of *call, int written, double factor)
{
    for (int k = 0; k < s->c->n && !report_bad(s->report); k++) {
        if (k > written && call->grads[k])
            compare(s, "after a write to another's gradient, the gradient", k, &s->want[k], factor, call->grads[k]);
        if (call->vars[k] && !s->c->in[k].plain) /* running statistics: the op itself writes them */
            compare(s, "after a write to a gradient, the value", k, &s->x[k], 1, call->vars[k]);
    }
    for (int k = 0; k < call->n_roots && !report_bad(s->report); k++) {
        op_array seed;
        array_read(&seed, trek_var_data(call->seeds[k]));
        bool same = false;
        for (int j = 0; j < ROOTS && !same; j++)
            same = s->cotangents[j].v && seed.numel == s->cotangents[j].numel &&
                   !memcmp(seed.v, s->cotangents[j].v, sizeof *seed.v * (size_t)seed.numel);
        if (!same)
            report_fail(s->report, "a write to the gradient of input %d changed the seed", written);
        array_free(&seed);
    }
}

/* Each gradient in turn is filled with a number. */
static void write_to_all(scene *s, call_of *call, double factor)
{
    for (int k = 0; k < s->c->n && !report_bad(s->report); k++) {
        if (!call->grads[k])
            continue;
        trek_tensor_release(trek_tensor_fill(trek_var_data(call->grads[k]), 1000 + k));
        compare_untouched(s, call, k, factor);
    }
}

static void fail_call(scene *s) { report_fail(s->report, "%s: %s", trek_status_name(trek_error_status()), trek_error()); }

static void check_way(scene *s, unsigned set, way how, bool create, op_layout layout)
{
    call_of call;
    double factor = how == WAY_TWICE ? 2 : 1;
    suite_poison();
    trek_scope scope = trek_scope_begin();
    if (!apply_set(s, &call, set, layout) || !run_way(s, &call, how, create))
        fail_call(s);
    for (int k = 0; k < s->c->n && !report_bad(s->report); k++) {
        if (set >> k & 1)
            compare(s, "gradient", k, &s->want[k], factor, call.grads[k]);
        else if (call.grads[k])
            report_fail(s->report, "input %d is frozen and has a gradient", k);
    }
    if (!report_bad(s->report))
        write_to_all(s, &call, factor);
    bool again = create || how == WAY_GRAD_RETAIN || how == WAY_LEAF_RETAIN || how == WAY_TWICE;
    if (!report_bad(s->report) && again) { /* what the tape kept is as it was */
        if (!run_grad(s, &call, NULL))
            fail_call(s);
        for (int k = 0; k < s->c->n && !report_bad(s->report); k++)
            if (set >> k & 1)
                compare(s, "after writes to gradients, the next gradient", k, &s->want[k], 1, call.grads[k]);
    }
    trek_error_clear();
    for (int k = 0; k < s->c->n; k++)
        trek_var_zero_grad(call.vars[k]); /* a recorded gradient in a leaf that it depends on: a circle */
    trek_scope_end(scope);
    if (!report_bad(s->report) && trek_tape_size() != 0)
        report_fail(s->report, "%lld nodes are left on the tape", (long long)trek_tape_size());
    if (!report_bad(s->report))
        return;
    char before[700];
    snprintf(before, sizeof before, "%.690s", s->report->text);
    s->report->text[0] = 0;
    report_fail(s->report, "gradients of inputs %#x, %s%s: %s", set, way_names[how], create ? ", create_graph" : "", before);
}

/* --- second derivatives, with inputs frozen ------------------------------------------------ */

/* d/d(vars, cotangents) of the sum of <gradient, weights> over the inputs in `set`; found[k], and
 * found[SUITE_INPUTS] for the first seed. False: an error, or nothing that could be differentiated. */
static bool second_of(scene *s, call_of *call, unsigned set, trek_var **found)
{
    trek_var *penalty = NULL, *wanted[SUITE_INPUTS + 1], *got[SUITE_INPUTS + 1] = { NULL };
    int n = 0;
    if (trek_var_set_requires_grad(call->seeds[0], true) != TREK_OK ||
        !run_grad(s, call, &(trek_backward_opts){ .create_graph = true }))
        return false;
    for (int k = 0; k < s->c->n; k++) {
        if (call->set >> k & 1)
            wanted[n++] = call->vars[k];
        if (!(set >> k & 1) || !call->grads[k] || !trek_var_requires_grad(call->grads[k]))
            continue;
        trek_var *part = trek_sum(trek_mul(call->grads[k], suite_var(&s->weights[k], LAYOUT_PLAIN, false)), trek_dims_all(),
                                  false);
        penalty = penalty ? trek_add(penalty, part) : part;
    }
    wanted[n++] = call->seeds[0];
    if (trek_error_status() != TREK_OK || (penalty && trek_grad(&penalty, 1, wanted, n, NULL, NULL, got) != TREK_OK))
        return false;
    for (int k = 0, at = 0; k < s->c->n; k++)
        found[k] = call->set >> k & 1 ? got[at++] : NULL;
    found[SUITE_INPUTS] = got[n - 1];
    return true;
}

static void read_or_none(op_array *a, const trek_var *v)
{
    memset(a, 0, sizeof *a);
    if (v)
        array_read(a, trek_var_data(v));
}

/* The same numbers come out whether the other inputs need gradients, or do not. */
static void check_second_of_set(scene *s, unsigned set)
{
    op_array want[SUITE_INPUTS + 1];
    call_of call;
    trek_var *found[SUITE_INPUTS + 1] = { NULL };
    memset(want, 0, sizeof want);
    suite_poison();
    trek_scope scope = trek_scope_begin();
    if (!apply_set(s, &call, s->all, LAYOUT_PLAIN) || !second_of(s, &call, set, found))
        fail_call(s);
    for (int k = 0; k <= SUITE_INPUTS; k++)
        read_or_none(&want[k], found[k]);
    memset(found, 0, sizeof found);
    if (!report_bad(s->report) && (!apply_set(s, &call, set, LAYOUT_PLAIN) || !second_of(s, &call, set, found)))
        fail_call(s);
    for (int k = 0; k < s->c->n && !report_bad(s->report); k++)
        if (set >> k & 1)
            compare(s, "second derivative", k, &want[k], 1, found[k]);
    if (!report_bad(s->report))
        compare(s, "second derivative (cotangent)", s->c->n, &want[SUITE_INPUTS], 1, found[SUITE_INPUTS]);
    for (int k = 0; k <= SUITE_INPUTS; k++)
        array_free(&want[k]);
    trek_error_clear();
    trek_scope_end(scope);
    char before[700];
    snprintf(before, sizeof before, "%.690s", s->report->text);
    if (!report_bad(s->report))
        return;
    s->report->text[0] = 0;
    report_fail(s->report, "second derivatives with gradients of inputs %#x: %s", set, before);
}

/* --- a case --------------------------------------------------------------------------------- */

static bool scene_make(scene *s, const op_row *row, const op_case *c, op_report *r)
{
    memset(s, 0, sizeof *s);
    *s = (scene){ .row = row, .c = c, .report = r };
    trek_tensor *in[SUITE_INPUTS];
    if (!make_inputs(c, TREK_F64, LAYOUT_PLAIN, 2000 + (uint64_t)row->id, in)) {
        report_fail(r, "inputs could not be made: %s", trek_error());
        return false;
    }
    for (int k = 0; k < c->n; k++)
        if (in[k]) {
            array_read(&s->x[k], in[k]);
            array_random(&s->weights[k], in[k], 77 + (uint64_t)k);
            s->all |= (unsigned)case_differentiable(row, c, k) << k;
        }
    release_inputs(c, in);
    call_of call;
    trek_scope scope = trek_scope_begin();
    if (s->all && (!apply_set(s, &call, s->all, LAYOUT_PLAIN) || !run_grad(s, &call, NULL)))
        fail_call(s);
    for (int k = 0; k < c->n; k++)
        read_or_none(&s->want[k], call.grads[k]);
    trek_error_clear();
    trek_scope_end(scope);
    return !report_bad(r) && s->all;
}

static void scene_free(scene *s)
{
    for (int k = 0; k < SUITE_INPUTS; k++) {
        array_free(&s->x[k]);
        array_free(&s->want[k]);
        array_free(&s->weights[k]);
    }
    for (int k = 0; k < ROOTS; k++)
        array_free(&s->cotangents[k]);
}

/* On a device, where an op takes long and the engine is the same, only all inputs together and each alone. */
static bool is_tried(const scene *s, unsigned set)
{
    return test_on_cpu() || set == s->all || (set & (set - 1)) == 0;
}

static void leaves_case(const op_row *row, const op_case *c, void *arg)
{
    op_report *r = arg;
    scene s;
    if (!checked_case(row, c, r))
        return;
    if (scene_make(&s, row, c, r))
        for (unsigned set = s.all; set && !report_bad(r); set = (set - 1) & s.all) {
            if (!is_tried(&s, set))
                continue;
            for (int how = 0; how < WAYS; how += test_on_cpu() ? 1 : WAY_PLACED)
                for (int create = 0; create < 2 && !report_bad(r); create++)
                    check_way(&s, set, (way)how, create, create || how % 2 ? LAYOUT_PLAIN : LAYOUT_TRANSPOSED);
            if (!report_bad(r))
                check_second_of_set(&s, set);
        }
    if (report_bad(r)) {
        char before[800], shape[TREK_SHAPE_TEXT];
        snprintf(before, sizeof before, "%.790s", r->text);
        r->text[0] = 0;
        report_fail(r, "%.60s %.60s (i0 %lld, f0 %g): %s", c->label, trek_shape_format(c->in[0].shape, shape, sizeof shape),
                    (long long)c->attrs.i[0],
                    c->attrs.f[0], before);
    }
    scene_free(&s);
}

void check_leaves(const op_row *row, op_report *r)
{
    row->family(row, leaves_case, r);
    if (!report_bad(r) && r->checks == 0)
        report_fail(r, "%s: nothing was differentiated", trek_ops[row->id].name);
}
