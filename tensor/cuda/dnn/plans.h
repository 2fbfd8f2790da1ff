/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of cuDNN's operation graphs, kept by a queue for the calls that come again. */
#ifndef TREK_TENSOR_CUDA_DNN_PLANS_H
#define TREK_TENSOR_CUDA_DNN_PLANS_H

#include "tensor/cuda/dnn/graph.h"

#ifdef TREK_HAVE_CUDNN

enum { TREK_DNN_KEY = 512 }; /* bytes of a key, at most */

/* Graphs of one sort: what a key is, and how its graph is composed (a failure shows in the graph). */
typedef struct trek_dnn_sort {
    size_t key_size;         /* all that a graph depends on, compared by bytes; of the queue's device */
    size_t workspace_limit;  /* bytes */
    void (*compose)(trek_dnn_graph *graph, const void *key);
} trek_dnn_sort;

/* Runs the key's graph on the queue, by a plan made at the first call. addresses: n of them, by the tensors' numbers; NULL: not
 * of this graph. UNSUPPORTED by trek_cuda_refuse, with nothing done: there is no cuDNN, none of its engines takes the graph,
 * or it was first met in a capture, which cannot wait for a plan (then the process refuses it for good, so that eager steps and
 * replays give the same bits). MEMORY, CUDA. */
trek_status trek_dnn_run(const trek_op_call *call, trek_cuda_queue *queue, const trek_dnn_sort *sort, const void *key,
                         void *const *addresses, int n);

#endif
#endif
