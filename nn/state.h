/* SPDX-License-Identifier: Apache-2.0 */
/* State: named tensors, in memory and in safetensors files.
 *
 * Names are PyTorch's for the same layers ("up.weight"), and independent of the
 * number of ranks. A tensor that has several names (tied weights, shared
 * modules) is kept once; its further names are aliases. */
#ifndef TREK_NN_STATE_H
#define TREK_NN_STATE_H

#include "nn/module.h"

TREK_BEGIN

/* An ordered list of named tensors, with texts beside it. Owned by the caller. */
typedef struct trek_state trek_state;

TREK_API trek_state *trek_state_new(void);
TREK_API void trek_state_free(trek_state **state);
/* Adds a tensor (retained, not copied). ARGUMENT for a name that is taken, empty or not UTF-8. */
TREK_API trek_status trek_state_add(trek_state *state, const char *name, trek_tensor *tensor);
/* One more name for the tensor called `name`. */
TREK_API trek_status trek_state_add_alias(trek_state *state, const char *alias, const char *name);
/* A text that is stored with the tensors (replaces an earlier one). Keys that begin "trek." are trek's own. */
TREK_API trek_status trek_state_set_text(trek_state *state, const char *key, const char *text);
TREK_API const char *trek_state_text(const trek_state *state, const char *key); /* borrowed; NULL: none */

TREK_API int trek_state_count(const trek_state *state); /* tensors, aliases not counted */
TREK_API const char *trek_state_name(const trek_state *state, int k);
TREK_API trek_tensor *trek_state_tensor(const trek_state *state, int k);              /* borrowed */
TREK_API trek_tensor *trek_state_find(const trek_state *state, const char *name);     /* by name or alias; borrowed; NULL: none */

/* Copies of all parameters and buffers, on the CPU. */
TREK_API trek_state *trek_state_of(trek_module *module);

/* What loading found. */
typedef struct trek_state_report {
    int loaded;               /* parameters and buffers that have a tensor in the state */
    int missing;              /* those that have none */
    int unexpected;           /* tensors of the state that the module has no place for */
    int differing;            /* those whose shape or dtype differs */
    char text[1024];          /* the names, "" if there is nothing to tell; long lists are cut */
} trek_state_report;

/* All strict by default. */
typedef struct trek_state_load_opts {
    bool allow_missing;       /* leave what the state has no tensor for */
    bool allow_unexpected;    /* pass over what the module has no place for */
    bool cast;                /* convert floating dtypes into each other, and integers into each other */
} trek_state_load_opts;

/* Copies the state into the module's tensors, wherever they live. All names,
 * shapes and dtypes are checked first; what is missing, unexpected or different
 * is listed in one message (ARGUMENT), and then nothing has changed. opts and
 * report may be NULL. */
TREK_API trek_status trek_state_apply(const trek_state *state, trek_module *module);
TREK_API trek_status trek_state_apply_with(const trek_state *state, trek_module *module, const trek_state_load_opts *opts,
                                           trek_state_report *report);

/* A safetensors file, with checksums of its header and of each tensor in its metadata (XXH64, the text "trek.checksum";
 * a program that changes the file should drop that text). It is written beside `path`, synced and renamed: a failed
 * or interrupted write (IO, with the system's reason) leaves what was there. */
TREK_API trek_status trek_state_write(const trek_state *state, const char *path);
/* FORMAT for anything but a well-formed file: nothing in it is trusted. A file with checksums is compared with them, one
 * without (others write those) is read as it is. UNSUPPORTED for dtypes that trek does not have. */
TREK_API trek_state *trek_state_read(const char *path);

/* The module's parameters and buffers to a file and back. */
TREK_API trek_status trek_state_save(trek_module *module, const char *path);
TREK_API trek_status trek_state_load(trek_module *module, const char *path, trek_state_report *report);
TREK_API trek_status trek_state_load_with(trek_module *module, const char *path, const trek_state_load_opts *opts,
                                          trek_state_report *report);

TREK_END

#endif
