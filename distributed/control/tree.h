/* SPDX-License-Identifier: Apache-2.0 */
/* The tree by which a gather reaches process 0 and comes back. The processes below one are numbered in one row behind it,
 * so that what they give lies in order wherever it is put together. Internal. */
#ifndef TREK_DISTRIBUTED_CONTROL_TREE_H
#define TREK_DISTRIBUTED_CONTROL_TREE_H

/* So many processes are joined to process 0 directly, and no more to any process of a tree. */
#define TREK_TREE_FAN 16

/* Where a process is: its tree has processes [process, process + size), its own children `children` of them. */
typedef struct trek_tree_node {
    int process, parent, size, children; /* parent -1: process 0's */
} trek_tree_node;

/* How many children a process has at most: of a tree of as few levels as fit, the smallest; 0: no tree, all are process 0's
 * children. flat: the largest job without a tree. */
int trek_tree_fan(int processes, int flat);
trek_tree_node trek_tree_place(int processes, int fan, int process);
/* The k-th child, and how many processes its tree has. */
int trek_tree_child(const trek_tree_node *node, int k, int *size);
/* Which child that process is; -1: none. */
int trek_tree_which(const trek_tree_node *node, int process);

#endif
