/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of cuDNN's operation graphs, which a queue keeps for repeated calls. */
#ifndef TREK_TENSOR_CUDA_DNN_PLANS_H
#define TREK_TENSOR_CUDA_DNN_PLANS_H

#include "tensor/cuda/dnn/graph.h"

#ifdef TREK_HAVE_CUDNN

enum { TREK_DNN_KEY = 512 }; /* the most bytes of a key */

/* A kind of graphs: the size of its key, and how its graph is composed (a failure is stored in the graph). */
typedef struct trek_dnn_sort {
    size_t key_size;         /* the key has everything that a graph depends on, and is compared by bytes; it is for the queue's
                              * device */
    size_t workspace_limit;  /* bytes */
    void (*compose)(trek_dnn_graph *graph, const void *key);
} trek_dnn_sort;

/* Runs the key's graph on the queue, with a plan that is made at the first call. addresses: n of them, by the
 * tensors' numbers; NULL: not used by this graph. Returns UNSUPPORTED by trek_cuda_refuse, without any effect, if
 * there is no cuDNN, if none of its engines supports the graph, or if it was first used in a capture, which cannot
 * wait for a plan (then the process always refuses it, so that eager steps and replays have the same bits). Fails
 * with MEMORY or CUDA. */
trek_status trek_dnn_run(const trek_op_call *call, trek_cuda_queue *queue, const trek_dnn_sort *sort, const void *key,
                         void *const *addresses, int n);

#endif
#endif
