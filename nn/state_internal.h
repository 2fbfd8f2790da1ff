/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_NN_STATE_INTERNAL_H
#define TREK_NN_STATE_INTERNAL_H

#include "nn/state.h"

typedef struct trek_state_entry {
    char *name;
    trek_tensor *tensor;
} trek_state_entry;

typedef struct trek_state_alias {
    char *name;
    int entry;                /* what it names */
} trek_state_alias;

typedef struct trek_state_note {
    char *key, *text;
} trek_state_note;

struct trek_state {
    trek_state_entry *entries;
    trek_state_alias *aliases;
    trek_state_note *notes;
    int n_entries, n_aliases, n_notes;
    int cap_entries, cap_aliases, cap_notes;
    /* open addressing over both kinds of names: 0 free, k + 1 entry k, -(k + 1) alias k */
    int *slots;
    int n_slots;
    bool checked;             /* read from a file that carries checksums, which all matched */
};

/* trek_state_of whose tensors may be the module's own: to be written before they change. NULL and an error. */
trek_state *trek_state_borrow(trek_module *module);

/* trek_state_apply_with in two parts: what can fail, and the copying, which on CPUs cannot. The state stays in use
 * until the loading is freed; opts may be NULL, report not. */
typedef struct trek_state_loading trek_state_loading;
trek_state_loading *trek_state_loading_new(const trek_state *state, trek_module *module, const trek_state_load_opts *opts,
                                           trek_state_report *report);
trek_status trek_state_loading_commit(trek_state_loading *loading);
void trek_state_loading_free(trek_state_loading **loading);

/* The entry that a name or alias stands for, or -1. */
int trek_state_lookup(const trek_state *state, const char *name);

#endif
