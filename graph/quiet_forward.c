/* SPDX-License-Identifier: Apache-2.0 */
/* A forward that leaves a module unchanged: in eval mode, without a tape. */
#include "graph/quiet_forward.h"

#include "autograd/backward.h"
#include "graph/graph_internal.h"
#include "nn/module_internal.h"
#include "nn/module_tree.h"
#include "tensor/rank_context.h"

typedef struct mode {
    trek_module *module;
    bool training;
} mode;

typedef struct modes {
    mode *list;
    int n, capacity;
} modes;

static trek_status remember(const char *name, trek_module *module, void *arg)
{
    (void)name;
    modes *m = arg;
    trek_status status = trek_array_grow(&m->list, &m->capacity, m->n + 1, sizeof *m->list);
    if (status == TREK_OK)
        m->list[m->n++] = (mode){ module, module->own->training };
    return status;
}

trek_status trek_quiet_forward(trek_module *module, trek_var *const *inputs, int n)
{
    modes before = { 0 };
    trek_status status = trek_module_each(module, remember, &before);
    uint64_t step = trek_rank_here.rng_step, draw = trek_rank_here.rng_draw;
    if (status == TREK_OK) {
        trek_scope scope = trek_scope_begin();
        trek_no_grad_begin();
        trek_route_apart_begin();
        if (scope.depth && trek_module_train(module, false) == TREK_OK)
            trek_forward_many(module, inputs, n);
        status = trek_error_status();
        trek_route_apart_end();
        trek_no_grad_end();
        trek_scope_end(scope);
        for (int k = 0; k < before.n; k++)
            before.list[k].module->own->training = before.list[k].training;
    }
    trek_rank_here.rng_step = step;
    trek_rank_here.rng_draw = draw;
    trek_free(before.list);
    return status;
}
