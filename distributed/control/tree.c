/* SPDX-License-Identifier: Apache-2.0 */
/* Computes parents and children from numbers alone: the first process of a row heads it, and the rest of the row is
 * cut into rows. */
#include "distributed/control/tree.h"

#include <limits.h>
#include <stdint.h>

int trek_tree_fan(int processes, int flat)
{
    if (processes <= flat)
        return 0;
    int levels = 1, fan = 1;
    for (int64_t reach = TREK_TREE_FAN; reach < processes; reach *= TREK_TREE_FAN)
        levels++;
    levels += levels == 1; /* a tree that is requested for no more processes than the fan has two levels */
    for (int64_t reach = 0; reach < processes;) {
        reach = ++fan;
        for (int level = 1; level < levels; level++)
            reach *= fan;
    }
    return fan;
}

static int row_start(const trek_tree_node *node, int k)
{
    return node->process + 1 + (int)((int64_t)(node->size - 1) * k / node->children);
}

int trek_tree_child(const trek_tree_node *node, int k, int *size)
{
    int start = row_start(node, k);
    *size = row_start(node, k + 1) - start;
    return start;
}

int trek_tree_which(const trek_tree_node *node, int process)
{
    int64_t place = (int64_t)process - node->process - 1;
    if (place < 0 || place >= node->size - 1)
        return -1;
    int k = (int)(((place + 1) * node->children - 1) / (node->size - 1));
    return row_start(node, k) == process ? k : -1;
}

static trek_tree_node head_of(int process, int parent, int size, int fan)
{
    return (trek_tree_node){ .process = process, .parent = parent, .size = size, .children = size - 1 < fan ? size - 1 : fan };
}

trek_tree_node trek_tree_place(int processes, int fan, int process)
{
    fan = fan ? fan : INT_MAX;
    trek_tree_node node = head_of(0, -1, processes, fan);
    while (node.process != process) {
        int k = (int)((((int64_t)process - node.process) * node.children - 1) / (node.size - 1)), size;
        int start = trek_tree_child(&node, k, &size);
        node = head_of(start, node.process, size, fan);
    }
    return node;
}
