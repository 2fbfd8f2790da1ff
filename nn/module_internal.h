/* SPDX-License-Identifier: Apache-2.0 */
/* What trek keeps with a module besides what its header shows. Internal. */
#ifndef TREK_NN_MODULE_INTERNAL_H
#define TREK_NN_MODULE_INTERNAL_H

#include "nn/module.h"

/* Lies behind the module, in the same block. */
struct trek_module_upkeep {
    bool failed;             /* an add failed; trek_module_check reports it */
    int owners;              /* parents and graphs that hold the module */
    int cap_children, cap_params, cap_buffers;
    trek_module *next;       /* of those that trek_module_free has yet to free */
};

/* While trek_trace_records(): begins the frame of a module's forward, under its path in the module around it; 0: it is
 * that module itself. For trek_trace_end_frame. */
int trek_module_trace(trek_module *module);

#endif
