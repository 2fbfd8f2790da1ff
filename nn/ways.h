/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of the values that backward needs of a module: where it is, so that the tree, and the names of parameters, stay.
 */
#ifndef TREK_NN_WAYS_H
#define TREK_NN_WAYS_H

#include "nn/module.h"

typedef enum trek_module_way {
    TREK_WAY_KEEP,           /* they stay, */
    TREK_WAY_RECOMPUTE,      /* or backward runs the module again, as with trek_forward_recomputed, */
    TREK_WAY_MOVE            /* or they wait in host memory, as with trek_nn_offload. Only what is on a GPU is moved */
} trek_module_way;

/* How what is moved is moved: values of fewer bytes stay, and so many are under way at a time. */
enum { TREK_WAY_AHEAD = 2 };
extern int64_t trek_way_min_bytes; /* 1 MiB; tests have smaller values */

/* From now on, every forward in training that records runs the module in this way, whoever calls it. */
void trek_module_set_way(trek_module *module, trek_module_way way);
/* From now on, n children of a sequential, from number `first` on, are run in this way together. Layers that run fused must not
 * be separated by it, since they round differently then. Stretches do not overlap. Fails with MEMORY. */
trek_status trek_sequential_set_way(trek_module *sequential, int first, int n, trek_module_way way);
/* Undoes both in the whole tree. */
trek_status trek_ways_forget(trek_module *module);

#endif
