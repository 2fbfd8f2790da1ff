/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ddp_net.h"

#include <stddef.h>

#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "tensor/copies.h"
#include "tests/support/support.h"

static trek_tensor *numbers(uint32_t stream, trek_shape shape, trek_dtype dtype)
{
    trek_tensor *narrow = test_tensor(stream, shape, 0.6), *cast = trek_tensor_cast(narrow, dtype);
    trek_tensor_release(narrow);
    return cast;
}

static trek_var *net_forward(trek_module *self, trek_var *x)
{
    ddp_net *m = (ddp_net *)self;
    trek_var *h = trek_tanh(trek_linear(x, m->w1, m->b1));
    h = trek_tanh(trek_matmul(trek_matmul(h, m->tied), m->tied));
    h = trek_mul(h, m->frozen);
    if (test_any_marked(x)) /* another graph */
        h = trek_add(h, trek_mul(trek_cast(trek_gt_scalar(trek_narrow(x, 1, 0, 1), 1.5), trek_var_dtype(x)), m->branch));
    return trek_linear(h, m->w2, m->b2);
}

static const trek_module_class net_class = { .name = "net", .size = sizeof(ddp_net), .forward = net_forward };

trek_module *ddp_net_new_with(trek_dtype dtype, uint32_t seed, int64_t hidden)
{
    trek_module *m = trek_module_new(&net_class);
    trek_module_param(m, "w1", offsetof(ddp_net, w1), numbers(seed + 1, trek_dims(hidden, IN), dtype));
    trek_module_param(m, "b1", offsetof(ddp_net, b1), numbers(seed + 2, trek_dims(hidden), dtype));
    trek_module_param(m, "tied", offsetof(ddp_net, tied), numbers(seed + 3, trek_dims(hidden, hidden), dtype));
    trek_module_param(m, "frozen", offsetof(ddp_net, frozen), numbers(seed + 4, trek_dims(hidden), dtype));
    trek_module_param(m, "unused", offsetof(ddp_net, unused), numbers(seed + 5, trek_dims(4), dtype));
    trek_module_param(m, "branch", offsetof(ddp_net, branch), numbers(seed + 6, trek_dims(hidden), dtype));
    trek_module_param(m, "w2", offsetof(ddp_net, w2), numbers(seed + 7, trek_dims(OUT, hidden), dtype));
    trek_module_param(m, "b2", offsetof(ddp_net, b2), numbers(seed + 8, trek_dims(OUT), dtype));
    m = trek_module_check(m);
    if (m)
        trek_var_set_requires_grad(((ddp_net *)m)->frozen, false);
    return m;
}

trek_module *ddp_net_new(trek_dtype dtype, uint32_t seed) { return ddp_net_new_with(dtype, seed, HIDDEN); }

/* --- data: row k of a stream is the same on whatever rank ------------------------------------------------- */

trek_var *ddp_rows(uint32_t stream, int64_t first, int64_t n, int64_t width, trek_dtype dtype)
{
    double values[64 * IN];
    for (int64_t i = 0; i < n * width; i++)
        values[i] = test_number(stream, (uint32_t)(first * width + i));
    for (int64_t i = 0; i < n && width == IN; i++)
        if (first + i == 1 && stream % 4 != 0) /* marked, except in some passes */
            values[i * width] = 2;
    return trek_var_from(test_values(values, trek_dims(n, width), dtype));
}

trek_var *ddp_loss_of(trek_module *model, uint32_t stream, int64_t first, int64_t n, trek_dtype dtype)
{
    return trek_mse_loss(trek_forward(model, ddp_rows(stream, first, n, IN, dtype)),
                         ddp_rows(stream + 1000, first, n, OUT, dtype));
}
