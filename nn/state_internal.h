/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_NN_STATE_INTERNAL_H
#define TREK_NN_STATE_INTERNAL_H

#include <stdatomic.h>

#include "nn/state.h"

/* What a checkpoint has beside the model's state, and the text that says that it is one (distributed/checkpoint.h). */
#define TREK_STATE_OWN "trek:"
#define TREK_STATE_CHECKPOINT "trek.checkpoint"

/* What a rule makes of a tensor: the part-th of `parts` along dim, then its last two dimensions exchanged. */
typedef struct trek_state_change {
    bool transpose;
    int parts, part, dim;     /* parts 0: the whole */
} trek_state_change;

/* Where tensors are that nobody has asked for yet: a file. */
typedef struct trek_state_source trek_state_source;
struct trek_state_source {
    atomic_int refs;
    trek_tensor *(*read)(trek_state_source *self, int item); /* a new reference */
    void (*destroy)(trek_state_source *self);
};
trek_state_source *trek_state_source_retain(trek_state_source *source); /* NULL is fine */
void trek_state_source_release(trek_state_source *source);

typedef struct trek_state_entry {
    char *name;
    trek_tensor *tensor;      /* NULL: still there: */
    trek_state_source *source; /* retained; NULL: there is none */
    int item;
    trek_dtype dtype;         /* of what is there */
    trek_shape shape;
    trek_state_change change; /* of it */
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
    trek_state_note *skipped; /* names and dtypes of tensors that trek has no dtype for */
    int n_entries, n_aliases, n_notes, n_skipped;
    int cap_entries, cap_aliases, cap_notes, cap_skipped;
    /* open addressing over both kinds of names: 0 free, k + 1 entry k, -(k + 1) alias k */
    int *slots;
    int n_slots;
    int *skipped_slots;       /* the same over the skipped ones, of which the first of a name counts */
    int n_skipped_slots;
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

/* trek_state_add of an entry that may be in a file still, changed once more: name and references of `like` are not taken
 * over. MEMORY, ARGUMENT, IO. */
trek_status trek_state_add_like(trek_state *state, const char *name, const trek_state_entry *like,
                                const trek_state_change *change);
/* One more tensor that there is no dtype for. */
trek_status trek_state_add_skipped(trek_state *state, const char *name, const char *dtype);
/* Which of them has this name, or -1. */
int trek_state_lookup_skipped(const trek_state *state, const char *name);
/* Copies of from's texts that `to` has none of. */
trek_status trek_state_take_metadata(trek_state *to, const trek_state *from);

/* The same without reading it. */
trek_dtype trek_state_entry_dtype(const trek_state_entry *entry);
trek_shape trek_state_entry_shape(const trek_state_entry *entry);
/* A new reference to the tensor, which is read where it is not there; it does not stay with the entry. */
trek_tensor *trek_state_entry_read(const trek_state_entry *entry);
/* Borrowed: it stays with the entry, and its file is let go of. */
trek_tensor *trek_state_entry_keep(trek_state_entry *entry);

/* Changes of tensors, in memory: views. */
trek_tensor *trek_state_changed(trek_tensor *tensor, const trek_state_change *change);
/* What the shape becomes; ARGUMENT, naming the tensor, where it has no such dimensions or parts. */
trek_status trek_state_change_shape(trek_shape *shape, const trek_state_change *change, const char *name);
static inline bool trek_state_change_is_none(const trek_state_change *change) { return !change->transpose && change->parts == 0; }

#endif
