/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TREK_NN_STATE_INTERNAL_H
#define TREK_NN_STATE_INTERNAL_H

#include <stdatomic.h>

#include "nn/state.h"
#include "nn/state_modules.h"

/* The prefix of what a checkpoint keeps in addition to the model's state, and the text that marks a checkpoint
 * (distributed/checkpoint.h). */
#define TREK_STATE_OWN "trek:"
#define TREK_STATE_CHECKPOINT "trek.checkpoint"

/* The change that a rule makes to a tensor: takes the part-th of `parts` along dim, then exchanges the last two
 * dimensions. */
typedef struct trek_state_change {
    bool transpose;
    int parts, part, dim;     /* parts is 0 for the whole tensor */
} trek_state_change;

/* Where tensors are that have not been read yet: a file. */
typedef struct trek_state_source trek_state_source;
struct trek_state_source {
    atomic_int refs;
    trek_tensor *(*read)(trek_state_source *self, int item); /* returns a new reference */
    /* Returns elements [begin, begin + count) of the tensor, in one dimension, without comparing checksums. Several threads may
     * call it. NULL: the whole tensor is read. */
    trek_tensor *(*read_part)(trek_state_source *self, int item, int64_t begin, int64_t count);
    trek_status (*check)(trek_state_source *self, int item); /* compares its checksum; NULL: there is none */
    void (*destroy)(trek_state_source *self);
};
trek_state_source *trek_state_source_retain(trek_state_source *source); /* NULL is allowed */
void trek_state_source_release(trek_state_source *source);

typedef struct trek_state_entry {
    char *name;
    trek_tensor *tensor;      /* NULL if it is still in its source: */
    trek_state_source *source; /* retained; NULL if there is none */
    int item;
    trek_dtype dtype;         /* of the source's tensor */
    trek_shape shape;
    trek_state_change change; /* to be applied to that tensor */
} trek_state_entry;

typedef struct trek_state_alias {
    char *name;
    int entry;                /* the entry it names */
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
    /* open addressing over names and aliases: 0 for free, k + 1 for entry k, -(k + 1) for alias k */
    int *slots;
    int n_slots;
    int *skipped_slots;       /* the same for the skipped ones; of equal names the first counts */
    int n_skipped_slots;
    bool checked;             /* read from a file that carries checksums, which all matched */
};

/* Like trek_state_of, but the tensors are the module's own, on its devices, so they have to be written before they change.
 * Returns NULL on failure. */
trek_state *trek_state_borrow(trek_module *module);

/* trek_state_apply_with in two parts: everything that can fail, and the copying, which cannot fail on CPUs. The state
 * stays in use until the loading is freed. opts may be NULL; report may not. */
typedef struct trek_state_loading trek_state_loading;
trek_state_loading *trek_state_loading_new(const trek_state *state, trek_module *module, const trek_state_load_opts *opts,
                                           trek_state_report *report);
trek_status trek_state_loading_commit(trek_state_loading *loading);
void trek_state_loading_free(trek_state_loading **loading);

/* Returns the entry that a name or alias stands for, or -1. */
int trek_state_lookup(const trek_state *state, const char *name);

/* Like trek_state_add, for an entry that may still be in a file, with a further change. The name and the references
 * of `like` are not taken over. Fails with MEMORY, ARGUMENT or IO. */
trek_status trek_state_add_like(trek_state *state, const char *name, const trek_state_entry *like,
                                const trek_state_change *change);
/* Adds a tensor that there is no dtype for. */
trek_status trek_state_add_skipped(trek_state *state, const char *name, const char *dtype);
/* Returns the index of the skipped tensor with this name, or -1. */
int trek_state_lookup_skipped(const trek_state *state, const char *name);
/* Copies those texts of `from` that `to` lacks. */
trek_status trek_state_take_metadata(trek_state *to, const trek_state *from);

/* Return dtype and shape without reading the tensor. */
trek_dtype trek_state_entry_dtype(const trek_state_entry *entry);
trek_shape trek_state_entry_shape(const trek_state_entry *entry);
/* Returns a new reference to the tensor and reads it if necessary. The entry does not keep it. */
trek_tensor *trek_state_entry_read(const trek_state_entry *entry);
/* Returns a new tensor of elements [begin, begin + count), in one dimension, on the CPU. It reads no more than these where the
 * file allows it, and does not compare checksums, which trek_state_entry_check does. Threads may call both at the same time. */
trek_tensor *trek_state_entry_read_part(const trek_state_entry *entry, int64_t begin, int64_t count);
/* Reads a tensor that is still in a file, a little at a time, and fails with FORMAT if its checksum does not match. */
trek_status trek_state_entry_check(const trek_state_entry *entry);
/* Returns the tensor borrowed. The entry keeps it and releases its file. */
trek_tensor *trek_state_entry_keep(trek_state_entry *entry);

/* Applies a change to a tensor in memory. The result is a view. */
trek_tensor *trek_state_changed(trek_tensor *tensor, const trek_state_change *change);
/* Applies a change to a shape. Fails with ARGUMENT, naming the tensor, if it has no such dimensions or parts. */
trek_status trek_state_change_shape(trek_shape *shape, const trek_state_change *change, const char *name);
static inline bool trek_state_change_is_none(const trek_state_change *change) { return !change->transpose && change->parts == 0; }

#endif
