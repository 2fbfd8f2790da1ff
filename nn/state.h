/* SPDX-License-Identifier: Apache-2.0 */
/* State: named tensors, in memory and in safetensors files.
 *
 * Names are PyTorch's for the same layers ("up.weight") and do not depend on the number of ranks. A tensor that has several names
 * (tied weights, shared modules) is kept once; its further names are aliases.
 *
 * Errors that every function here can report: ARGUMENT if a required argument is NULL, MEMORY if memory runs out. */
#ifndef TREK_NN_STATE_H
#define TREK_NN_STATE_H

#include "nn/module.h"

TREK_BEGIN

/* An ordered list of named tensors, with texts that are stored next to them. The caller owns it. */
typedef struct trek_state trek_state;

/* Frees the state and releases its tensors. *state may be NULL and is NULL afterwards. */
TREK_API void trek_state_free(trek_state **state);

/* --- into a module ----------------------------------------------------------- */

/* What trek_state_apply_with and trek_state_load_with found. */
typedef struct trek_state_report {
    int loaded;      /* number of parameters and buffers that have a tensor in the state */
    int missing;     /* number of parameters and buffers that have no tensor in the state */
    int unexpected;  /* number of tensors of the state that the module has no parameter or buffer for */
    int differing;   /* number of tensors whose shape or dtype differs */
    char text[1024]; /* the names of these, cut if the list is long; "" if everything fits */
    int skipped;     /* number of tensors whose dtype trek does not have and which the module does not need */
    int assigned;    /* number of loaded tensors whose memory the module has taken over */
} trek_state_report;

/* Writes the parameters and buffers of the module to a safetensors file. A tensor that has several names (tied weights) is stored
 * once under its owner's name, and the other names are aliases, which other programs do not read. An exception: if the module, or
 * a module inside it, was loaded from a state that had a separate tensor under one of the other names, that name gets a tensor
 * here, too.
 * Errors: those of trek_state_write. */
TREK_API trek_status trek_state_save(trek_module *module, const char *path);

/* Reads a file as trek_state_read does and copies it into the module as trek_state_apply does. Writes what it found to *report
 * unless report is NULL. */
TREK_API trek_status trek_state_load(trek_module *module, const char *path, trek_state_report *report);

TREK_END

#endif
