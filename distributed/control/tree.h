/* SPDX-License-Identifier: Apache-2.0 */
/* The tree by which a gather goes to process 0 and back. The processes below a process are numbered in one row after
 * it, so that their parts are in order wherever they are put together. */
#ifndef TREK_DISTRIBUTED_CONTROL_TREE_H
#define TREK_DISTRIBUTED_CONTROL_TREE_H

/* How many processes are connected to process 0 directly, and at most to any process of a tree. */
#define TREK_TREE_FAN 16

/* The position of a process: its tree has the processes [process, process + size), of which `children` are its own
 * children. */
typedef struct trek_tree_node {
    int process, parent, size, children; /* parent -1: this is process 0 */
} trek_tree_node;

/* Returns how many children a process has at most: the smallest number with which the tree has as few levels as
 * possible. 0: there is no tree, and all are children of process 0. flat: the largest job without a tree. */
int trek_tree_fan(int processes, int flat);
trek_tree_node trek_tree_place(int processes, int fan, int process);
/* Returns the k-th child, and how many processes its tree has. */
int trek_tree_child(const trek_tree_node *node, int k, int *size);
/* Returns which child that process is, or -1. */
int trek_tree_which(const trek_tree_node *node, int process);

#endif
