/* SPDX-License-Identifier: Apache-2.0 */
/* Compares whether the ranks are well and whether their replicas are alike. */
#include "autograd/var_internal.h"
#include "distributed/job/agreement.h"
#include "distributed/team/replica.h"
#include "nn/text.h"
#include "tensor/tensor_internal.h"

/* Returns the word for members of a set. */
static const char *member_of(const trek_comm *comm) { return comm->control ? "process" : "rank"; }

trek_status trek_replica_agree(trek_comm *comm, trek_status own, const char *what)
{
    if (!comm || comm->world == 1)
        return own;
    int32_t failed = own != TREK_OK ? comm->rank + 1 : 0;
    trek_status status = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_ALL_REDUCE, .op = TREK_REDUCTION_MAX,
                                                               .dtype = TREK_I32,
                                                               .count = 1, .in = &failed, .out = &failed });
    if (own != TREK_OK)
        return own;
    if (status == TREK_OK && failed)
        status = trek_fail(TREK_ERR_PEER, "%s: %s %d failed", what, member_of(comm), failed - 1);
    return status;
}

static void add_tensor(trek_text *text, const char *what, int number, const char *name, const trek_var *var)
{
    char shape[TREK_SHAPE_TEXT];
    trek_text_format(text, "%s %d\t\"%s\" %s %s\n", what, number, name, trek_tensor_shape_text(var->data, shape),
                     trek_dtype_name((trek_dtype)var->data->dtype));
}

/* Writes what must be the same, one line each. */
static void describe(const trek_replica *r, const char *more, trek_text *text)
{
    for (int k = 0; k < r->n_params; k++)
        add_tensor(text, "parameter", k, r->param_names[k], r->params[k]);
    for (int k = 0; k < r->n_buffers; k++)
        add_tensor(text, "buffer", k, r->buffer_names[k], r->buffers[k]);
    trek_text_format(text, "%sthe number of modules\t%d\n", more ? more : "", r->n_modules);
}

trek_status trek_replica_compare(const trek_replica *r, trek_comm *comm, const char *more, const char *subject, trek_status own)
{
    trek_text text = { 0 };
    if (!comm || comm->world == 1)
        return own;
    if (own == TREK_OK)
        describe(r, more, &text);
    trek_status status = trek_agree(comm, own, subject, &text);
    trek_text_clear(&text);
    return status;
}
