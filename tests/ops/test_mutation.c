/* SPDX-License-Identifier: Apache-2.0 */
/* The suite's own proof: with each row's kernel, shape rule (for views) or
 * backward rule replaced in turn by one whose results are a hundredth too large
 * (off by one for integers, negated for bool), that row's check must go red. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/ops/suite.h"
#include "tests/support/support.h"

/* --- wrong results --------------------------------------------------------------- */

static void spoil(trek_tensor *t)
{
    op_array a;
    if (!t)
        return;
    array_read(&a, t);
    for (int64_t i = 0; i < a.numel; i++) {
        if (t->dtype == TREK_BOOL)
            a.v[i] = !a.v[i];
        else if (dtype_floats((trek_dtype)t->dtype))
            a.v[i] *= 1.01;
        else
            array_set(&a, i, a.v[i] + 1);
    }
    array_write(&a, t);
    array_free(&a);
}

static const trek_backend *sound; /* the table as it was */

static trek_status spoiled_kernel(const trek_op_call *call)
{
    const trek_op *op = call->op;
    int dtype = (op->key >= 0 ? call->inputs[op->key] : call->outputs[0])->dtype;
    trek_status status = sound->kernels[op->id][dtype](call);
    for (int k = 0; k < TREK_MAX_OUTPUTS && status == TREK_OK; k++)
        spoil(call->outputs[k]);
    return status;
}

static trek_infer_fn sound_infer;

static trek_status spoiled_view(trek_op_call *call)
{
    trek_status status = sound_infer(call);
    if (status != TREK_OK)
        return status;
    trek_tensor *wrong = trek_tensor_clone(call->outputs[0]);
    if (!wrong)
        return trek_error_status();
    spoil(wrong);
    trek_tensor_release(call->outputs[0]);
    call->outputs[0] = wrong;
    return TREK_OK;
}

static trek_backward_rule sound_rule;

static trek_status spoiled_rule(trek_backward_call *b)
{
    trek_status status = sound_rule(b);
    for (int k = 0; k < b->n_inputs && status == TREK_OK; k++) {
        if (!trek_rule_needs(b, k))
            continue;
        if (b->grads[k]) {
            b->grads[k] = trek_add_scalar(trek_mul_scalar(b->grads[k], 1.01), 1e-3);
        } else { /* no gradient: a small one is wrong, too */
            trek_shape shape = trek_rule_shape(b, k);
            b->grads[k] = trek_var_from(trek_tensor_full(shape, 0.01, TREK_F64, test_device()));
        }
    }
    return status;
}

/* --- putting them in place -------------------------------------------------------- */

/* Writes to a constant table. */
static void overwrite(const void *at, const void *value, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)at / page * page;
    if (mprotect((void *)start, (uintptr_t)at + size - start, PROT_READ | PROT_WRITE) != 0) {
        perror("mprotect");
        exit(99);
    }
    memcpy((void *)(uintptr_t)at, value, size);
}

static void survives(const op_row *row, op_report *r, const op_report *seen, const char *what)
{
    if (!report_bad(seen))
        report_fail(r, "%s: the suite does not notice a wrong %s", trek_ops[row->id].name, what);
}

static void mutate_forward(const op_row *row, op_report *r)
{
    const trek_op *op = &trek_ops[row->id];
    op_report seen;
    memset(&seen, 0, sizeof seen);
    if (op->flags & TREK_OP_VIEW) {
        trek_infer_fn wrong = spoiled_view;
        sound_infer = op->infer;
        overwrite(&op->infer, &wrong, sizeof wrong);
        check_forward(row, true, &seen);
        overwrite(&op->infer, &sound_infer, sizeof wrong);
    } else {
        trek_device_type type = test_device().type;
        trek_backend *table = malloc(sizeof *table);
        sound = trek_backend_get(type);
        if (!sound || !table) {
            report_fail(r, "no table");
            free(table);
            return;
        }
        memcpy(table, sound, sizeof *table);
        for (int dtype = 0; dtype < TREK_DTYPE_COUNT; dtype++)
            if (table->kernels[row->id][dtype])
                table->kernels[row->id][dtype] = spoiled_kernel;
        trek_backends[type] = table;
        check_forward(row, true, &seen);
        if (!report_bad(&seen) && (op->flags & TREK_OP_RANDOM))
            check_random(row, &seen);
        trek_backends[type] = sound;
        free(table);
    }
    survives(row, r, &seen, "result");
}

static void mutate_rule(const op_row *row, op_report *r)
{
    op_report seen;
    trek_backward_rule wrong = spoiled_rule;
    memset(&seen, 0, sizeof seen);
    sound_rule = trek_backward_rules[row->id];
    overwrite(&trek_backward_rules[row->id], &wrong, sizeof wrong);
    check_gradient(row, &seen);
    overwrite(&trek_backward_rules[row->id], &sound_rule, sizeof wrong);
    survives(row, r, &seen, "gradient");
}

static void mutate(const op_row *row, op_report *r)
{
    mutate_forward(row, r);
    if (row_has_rule(row) && !report_bad(r))
        mutate_rule(row, r);
    trek_error_clear();
    /* and put back, the row is sound */
    if (!report_bad(r) && !(trek_ops[row->id].flags & TREK_OP_RANDOM))
        check_forward(row, true, r);
}

int main(void)
{
    return suite_main("mutation", mutate, NULL);
}
