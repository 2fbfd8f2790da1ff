/* SPDX-License-Identifier: Apache-2.0 */
/* How streams are joined. */
#include "autograd/ops.h"
#include "graph/graph_internal.h"

trek_var *trek_graph_merge_run(const trek_graph_node *node, trek_var *const *inputs, int n)
{
    if (node->kind == TREK_GRAPH_CAT)
        return trek_cat(inputs, n, node->dim);
    trek_var *sum = inputs[0];
    for (int k = 1; k < n; k++)
        sum = trek_add(sum, inputs[k]);
    return node->kind == TREK_GRAPH_MEAN ? trek_mul_scalar(sum, 1.0 / n) : sum;
}
