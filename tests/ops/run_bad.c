/* SPDX-License-Identifier: Apache-2.0 */
/* Bad calls: each gives its status, a message that begins with the op's name,
 * no result, and a library that works afterwards. A mistake in the data may show
 * on a GPU when the device is synchronised, and only then. */
#include <stdio.h>
#include <string.h>

#include "tensor/op_caller_internal.h"
#include "tests/ops/suite.h"
#include "tests/support/support.h"

static trek_dtype first_dtype(const op_row *row)
{
    for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
        if (trek_ops[row->id].dtypes >> dtype & 1)
            return (trek_dtype)dtype;
    return TREK_F32;
}

static bool fills(const op_row *row)
{
    return trek_ops[row->id].flags & TREK_OP_FILL;
}

static void expect_error(op_report *r, const char *what, const op_row *row, trek_status want)
{
    char prefix[80];
    int length = snprintf(prefix, sizeof prefix, "%s: ", trek_op_called(&trek_ops[row->id]));
    trek_status got = trek_error_status();
    r->checks++;
    if (got != want)
        report_fail(r, "%s: status is %s, should be %s (%s)", what, got == TREK_OK ? "TREK_OK" : trek_status_name(got),
                    trek_status_name(want), trek_error());
    else if (strncmp(trek_error(), prefix, (size_t)length) != 0)
        report_fail(r, "%s: the message does not begin with \"%s\": %s", what, prefix, trek_error());
    trek_error_clear();
}

/* An error that was told is not told again. */
static void expect_quiet(op_report *r, const char *what)
{
    if (trek_device_sync(test_device()) != TREK_OK)
        report_fail(r, "%s: the next synchronisation reports %s (%s)", what, trek_status_name(trek_error_status()), trek_error());
    trek_error_clear();
}

/* Runs the call on tensors and on variables; both must fail in the same way. */
static void run_bad(op_report *r, const char *what, const op_row *row, const op_case *c, trek_tensor **in, trek_status want)
{
    trek_op_call call = { .op = &trek_ops[row->id], .n_inputs = c->n, .inputs = in, .attrs = c->attrs };
    trek_status status = trek_op_run(&call);
    bool late = c->in_data && status == TREK_OK && !test_on_cpu();
    if (late)
        status = trek_device_sync(test_device());
    if (status != want)
        report_fail(r, "%s: returned %d, should be %s", what, (int)status, trek_status_name(want));
    for (int k = 0; k < TREK_MAX_OUTPUTS; k++) {
        if (call.outputs[k] && !late)
            report_fail(r, "%s: output %d was left behind", what, k);
        trek_tensor_release(call.outputs[k]);
    }
    expect_error(r, what, row, want);
    expect_quiet(r, what);
    if (fills(row))
        return;
    trek_scope scope = trek_scope_begin();
    trek_var *vars[SUITE_INPUTS] = { NULL };
    for (int k = 0; k < c->n; k++)
        vars[k] = in[k] ? trek_var_constant(in[k]) : NULL;
    trek_var *result = trek_apply(call.op, vars, c->n, &c->attrs);
    if (result && late)
        trek_device_sync(test_device());
    else if (result)
        report_fail(r, "%s: a result on variables", what);
    expect_error(r, what, row, want);
    expect_quiet(r, what);
    trek_scope_end(scope);
}

typedef struct bad_run {
    op_report *report;
    bool have_good;
    op_case good; /* a small case that works */
} bad_run;

static void bad_case(const op_row *row, const op_case *c, void *arg)
{
    bad_run *b = arg;
    int64_t numel = trek_shape_numel(c->n > 0 ? c->in[0].shape : c->given.shape);
    if (c->expect == TREK_OK && !b->have_good && !c->large && numel > 1 && case_runs(row, c, first_dtype(row))) {
        b->good = *c;
        b->have_good = true;
    }
    if (c->expect == TREK_OK || report_bad(b->report))
        return;
    trek_tensor *in[SUITE_INPUTS];
    if (!make_inputs(c, first_dtype(row), LAYOUT_PLAIN, 3, in)) {
        report_fail(b->report, "inputs could not be made: %s", trek_error());
        return;
    }
    run_bad(b->report, c->label, row, c, in, c->expect);
    release_inputs(c, in);
}

/* A dtype that the row takes for no input; -1 if it takes all. */
static int refused_dtype(const op_row *row)
{
    const trek_op *op = &trek_ops[row->id];
    static const int tried[] = { TREK_BOOL, TREK_I64, TREK_F32 };
    for (int k = 0; k < 3; k++) {
        bool promoted = (op->flags & (TREK_OP_INT_TO_FLOAT | TREK_OP_SCALAR)) && !dtype_floats((trek_dtype)tried[k]);
        if (!(op->dtypes >> tried[k] & 1) && !promoted)
            return tried[k];
    }
    return -1;
}

static void generic_bad(const op_row *row, const op_case *good, op_report *r)
{
    const trek_op *op = &trek_ops[row->id];
    trek_tensor *in[SUITE_INPUTS];
    int refused = refused_dtype(row);
    if (refused >= 0 && make_inputs(good, (trek_dtype)refused, LAYOUT_PLAIN, 3, in)) {
        run_bad(r, "a dtype that the row does not have", row, good, in, TREK_ERR_DTYPE);
        release_inputs(good, in);
    }
    if (!make_inputs(good, first_dtype(row), LAYOUT_PLAIN, 3, in))
        return;
    for (int k = 1; k < good->n && !report_bad(r); k++) {
        if (!in[k])
            continue;
        in[k]->device = test_on_cpu() ? trek_cuda(0) : test_device_other();
        run_bad(r, "inputs on two devices", row, good, in, TREK_ERR_DEVICE);
        in[k]->device = test_device();
    }
    for (int k = 0; k < good->n && !report_bad(r); k++) {
        trek_tensor *kept = in[k];
        if (!kept || !(op->needed >> k & 1))
            continue;
        in[k] = NULL;
        run_bad(r, "input: NULL", row, good, in, TREK_ERR_ARGUMENT);
        in[k] = kept;
    }
    release_inputs(good, in);
}

/* What a call gives with input k on another CPU (-1: none): the same bits, on the caller's CPU if an input is there. */
static void run_abroad(const op_row *row, const op_case *good, int k, trek_tensor **want, op_report *r)
{
    trek_tensor *in[SUITE_INPUTS];
    if (!make_inputs(good, first_dtype(row), LAYOUT_PLAIN, 3, in))
        return;
    trek_op_call call = { .op = &trek_ops[row->id], .n_inputs = good->n, .inputs = in, .attrs = good->attrs };
    if (k >= 0)
        in[k]->device = in[k]->storage->device = trek_cpu(3);
    trek_device home = trek_cpu(3);
    for (int j = 0; j < good->n; j++)
        if (in[j] && in[j]->device.index == 0)
            home = trek_cpu(0);
    if (trek_op_run(&call) != TREK_OK)
        report_fail(r, "inputs on several CPUs: %s", trek_error());
    for (int j = 0; j < TREK_MAX_OUTPUTS; j++) {
        trek_tensor *got = call.outputs[j];
        bool view = got && (trek_ops[row->id].flags & TREK_OP_VIEW);
        if (k < 0) {
            want[j] = got;
            continue;
        }
        if (!got != !want[j])
            report_fail(r, "inputs on several CPUs: output %d is %s", j, got ? "there" : "missing");
        else if (got && !view && (!trek_device_equal(got->device, home) || !test_same_bits(got, want[j])))
            report_fail(r, "inputs on several CPUs: output %d differs, or is elsewhere (cpu:%d)", j, got->device.index);
        trek_tensor_release(got);
        r->checks++;
    }
    release_inputs(good, in);
}

static void several_cpus(const op_row *row, const op_case *good, op_report *r)
{
    trek_tensor *want[TREK_MAX_OUTPUTS] = { NULL };
    if (!test_on_cpu() || test_device().index != 0 || good->n < 2)
        return;
    run_abroad(row, good, -1, want, r);
    for (int k = 0; k < good->n && !report_bad(r); k++)
        if (!good->in[k].absent)
            run_abroad(row, good, k, want, r);
    for (int j = 0; j < TREK_MAX_OUTPUTS; j++)
        trek_tensor_release(want[j]);
}

/* Without a scope an op on variables fails; with an error set it adds nothing. */
static void scope_and_sticky(const op_row *row, const op_case *good, op_report *r)
{
    trek_tensor *in[SUITE_INPUTS];
    trek_var *vars[SUITE_INPUTS] = { NULL };
    if (!make_inputs(good, first_dtype(row), LAYOUT_PLAIN, 3, in))
        return;
    for (int k = 0; k < good->n; k++)
        vars[k] = in[k] ? trek_var_new(in[k], false) : NULL;
    if (trek_apply(&trek_ops[row->id], vars, good->n, &good->attrs))
        report_fail(r, "a result without a scope");
    expect_error(r, "no scope", row, TREK_ERR_SCOPE);
    trek_scope scope = trek_scope_begin();
    trek_fail(TREK_ERR_CANCELLED, "first");
    trek_var *kept = vars[0];
    vars[0] = NULL;
    if ((trek_ops[row->id].needed & 1) && trek_apply(&trek_ops[row->id], vars, good->n, &good->attrs))
        report_fail(r, "a result from NULL");
    if (trek_error_status() != TREK_ERR_CANCELLED || strcmp(trek_error(), "first") != 0)
        report_fail(r, "the first error did not stick: %s", trek_error());
    trek_error_clear();
    vars[0] = kept;
    if (!report_bad(r) && !trek_apply(&trek_ops[row->id], vars, good->n, &good->attrs))
        report_fail(r, "after all these errors the op does not work: %s", trek_error());
    trek_error_clear();
    trek_scope_end(scope);
    for (int k = 0; k < good->n; k++)
        trek_var_release(vars[k]);
    release_inputs(good, in);
}

void check_bad(const op_row *row, op_report *r)
{
    bad_run b = { .report = r };
    row->family(row, bad_case, &b);
    if (!b.have_good)
        report_fail(r, "no small case");
    if (report_bad(r))
        return;
    if (fills(row)) { /* the one mistake that is possible: nothing to write to */
        op_case nothing = b.good;
        trek_tensor *in[1] = { NULL };
        trek_op_call call = { .op = &trek_ops[row->id], .inputs = in, .attrs = nothing.attrs };
        if (trek_op_run(&call) == TREK_OK)
            report_fail(r, "filled nothing");
        expect_error(r, "x: missing", row, TREK_ERR_ARGUMENT);
        return;
    }
    generic_bad(row, &b.good, r);
    if (!report_bad(r))
        several_cpus(row, &b.good, r);
    if (!report_bad(r))
        scope_and_sticky(row, &b.good, r);
    if (!report_bad(r) && r->checks == 0)
        report_fail(r, "nothing was checked");
}
